"""What random terms change in each engine, and which of them an engine cannot do.

Nominal values, bounds, labels and the order of draws are MuJoCo's in every engine: the same draws,
the same names and the same numbers for the critic, whatever simulates them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from real.errors import ConfigError, FerryError
from sim.engine import Array, Engine, Ids
from sim.mujoco_engine import MujocoEngine
from sim.random_terms import TERMS, Target

if TYPE_CHECKING:  # PyBullet is an extra of its own
    from sim.pybullet_engine import PyBulletEngine

EngineName = Literal["mujoco", "pybullet"]


@dataclass(frozen=True)
class Support:
    """How PyBullet has a random term.

    Attributes:
        how: for people; it stands in ``docs/engines.md``.
        parameter: of :func:`sim.pybullet_plan.own_parameters`; None for what happens within an
            episode.
        convert: from nominal values ``[K]`` and new ones ``[n, K]`` to the parameter's ``[n, K]``.
    """

    how: str
    parameter: str | None
    convert: Callable[[Array, Array], Array]


def _as_it_is(nominal: Array, values: Array) -> Array:
    return values


def _share(nominal: Array, values: Array) -> Array:
    """Values over nominal ones; 1 where both are zero, since nothing scales a zero."""
    zero = nominal == 0.0
    if (zero & (values != 0.0)).any():
        raise FerryError("a nominal gain is 0; nothing scales it")
    return np.where(zero, 1.0, values / np.where(zero, 1.0, nominal))


def _shift(nominal: Array, values: Array) -> Array:
    return values - nominal


#: Of PyBullet; a term that is not here cannot be simulated there.
PYBULLET: dict[str, Support] = {
    "friction": Support("of the floor; robots have 1, and the two multiply", "friction", _as_it_is),
    "mass": Support("masses and inertias of all links of a body", "mass", _share),
    "payload": Support("mass of the base", "payload", _as_it_is),
    "com": Support("written into the file that a reset loads", "com", _shift),
    "kp": Support("in the servo, which is the same in both engines", "kp_scale", _share),
    "kd": Support("in the servo", "kd_scale", _share),
    "motor_strength": Support("in the servo", "strength", _share),
    "armature": Support("inertia of a rotor geared to the joint", "armature", _as_it_is),
    "joint_friction": Support("effort of a velocity motor", "dry_friction", _as_it_is),
    "joint_damping": Support("explicit in the joint", "damping", _as_it_is),
    "joint_offset": Support("outside the engine, as in MuJoCo", None, _as_it_is),
    "backlash": Support("outside the engine, as in MuJoCo", None, _as_it_is),
    "delay_jitter": Support("in the servo, on top of the delay", None, _as_it_is),
    "dropout": Support("outside the engine, as in MuJoCo", None, _as_it_is),
    "observation_delay": Support("outside the engine, as in MuJoCo", None, _as_it_is),
    "observation_jitter": Support("outside the engine, as in MuJoCo", None, _as_it_is),
    "delay": Support("in the servo, in whole physics steps", "delay_s", _as_it_is),
    "push": Support("velocity of the base", None, _as_it_is),
}


def require_supported(engine: EngineName, terms: Iterable[str]) -> None:
    """Refuse random terms that an engine cannot do.

    Raises:
        ConfigError: naming each, and how to do without it.
    """
    lost = [name for name in terms if engine == "pybullet" and name not in PYBULLET]
    if lost:
        without = " ".join(f"--set randomize.{name}=null" for name in lost)
        raise ConfigError(
            f"PyBullet cannot simulate the random term{'s' * (len(lost) > 1)} {', '.join(lost)}; "
            f"leave them out ({without}), or simulate in MuJoCo (--set sim.engine=mujoco)"
        )


def target_maker(engine: Engine) -> Callable[[str], Target | None]:
    """What gives the target of a random term in an engine, None for what needs none.

    Raises:
        TypeError: there are no terms for this kind of engine.
    """
    if isinstance(engine, MujocoEngine):
        return lambda name: None if (make := TERMS[name].make) is None else make(engine)
    from sim.pybullet_engine import PyBulletEngine

    if isinstance(engine, PyBulletEngine):
        return _PyBulletTargets(engine).make
    raise TypeError(f"no random terms for a {type(engine).__name__}")


def delay_setter(engine: Engine) -> Callable[[Ids, Array], None]:
    """What lets worlds ``[n]`` hear targets ``[n]`` seconds late, also within an episode."""
    if isinstance(engine, MujocoEngine):
        return engine.servos.set_delay
    from sim.pybullet_engine import PyBulletEngine

    assert isinstance(engine, PyBulletEngine)
    return lambda rows, seconds: engine.set_parameter("delay_s", rows, seconds[:, None])


def delay_room(engine: Engine) -> float:
    """Longest delay that an engine was made for [s], and what sums of delays are rounded by."""
    if isinstance(engine, MujocoEngine):
        return engine.built.delay_max_s + 1e-12
    return float(getattr(engine, "delay_max_s", 0.0)) + 1e-12


class _PyBulletTargets:
    """Makes targets from those of a MuJoCo world of the same robot."""

    def __init__(self, engine: PyBulletEngine) -> None:
        self._engine = engine
        self._twin: MujocoEngine | None = None

    def make(self, name: str) -> Target | None:
        require_supported("pybullet", [name])
        make, support = TERMS[name].make, PYBULLET[name]
        if make is None or support.parameter is None:
            return None
        engine = self._engine
        if self._twin is None:
            self._twin = MujocoEngine(engine.robot, 1, threads=1, delay_max_s=engine.delay_max_s)
        return PyBulletTarget(engine, make(self._twin), name, support)


class PyBulletTarget(Target):
    """Parameters of PyBullet worlds that a random term changes.

    Args:
        engine: the worlds.
        like: the same term in MuJoCo.
        name: of the term.
        support: how PyBullet has it.
    """

    def __init__(self, engine: PyBulletEngine, like: Target, name: str, support: Support) -> None:
        super().__init__(like.labels, like.nominal, low=like.low, high=like.high)
        assert support.parameter is not None
        self._engine = engine
        self._name = name
        self._parameter = support.parameter
        self._convert = support.convert
        self._order = slice(None)
        if name == "mass":
            # MuJoCo's bodies in PyBullet's order.
            self._order = np.array([like.labels.index(body) for body in engine.bodies])

    def write(self, rows: Ids, values: Array) -> None:
        """Put ``[n, K]`` values in force in n worlds."""
        try:
            own = self._convert(self.nominal, values)
        except FerryError as error:
            raise FerryError(f"random term {self._name!r}: {error}") from error
        self._engine.set_parameter(self._parameter, rows, own[:, self._order])
