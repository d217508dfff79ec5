"""What follows joint targets: the engine's own servos, or a learned actuator beside it.

The servos are part of the physics and cost nothing: a control step is one call. A learned actuator
must see the state before every physics step, so it is the slower path: as many calls as physics
steps, and one inference in each, for all worlds at once. ``docs/actuators.md`` has its price.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from real.config import Config
from real.errors import FerryError
from real.signals import JointCommand
from sim.actuator_file import ActuatorNetwork, load_actuators
from sim.black_box import BlackBox
from sim.engine import Array, Engine, Ids
from sim.engine_terms import delay_room
from sim.mujoco_engine import MujocoEngine
from sim.state import State

#: Random terms of the engine's servos, which are not there under a learned actuator.
OF_SERVOS = ("kp", "kd")


class ActuatorsConfig(Config):
    """The ``actuators`` section of a task."""

    network: str = Field(description="ONNX file of a learned actuator, see docs/actuators.md")


class Motors(Protocol):
    """Moves the joints of N worlds for one control period."""

    def step(self, q_des: Array, /) -> None:
        """Track targets ``[N, A]`` with the robot's gains."""
        ...

    def apply(self, command: JointCommand, /) -> None:
        """Follow a whole command ``[N, A]``."""
        ...

    def reset(self, rows: Ids) -> None:
        """Worlds ``rows`` began anew in the engine; to be called right after."""
        ...

    def episode(self, rows: Ids) -> dict[str, NDArray[np.generic]]:
        """What is to be said of the episodes of worlds ``rows``, ``[n]`` each."""
        ...

    def state_dict(self) -> State:
        """What a continuation needs, copied."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore what :meth:`state_dict` gave."""
        ...


def make_motors(config: ActuatorsConfig | None, engine: Engine) -> Motors:
    """The motors of a task.

    Raises:
        FerryError: the network is not there, or belongs to something else.
    """
    if config is None:
        return Servos(engine)
    return NetworkMotors(load_actuators(config.network, engine.robot), engine)


class Servos:
    """The engine's own."""

    def __init__(self, engine: Engine) -> None:
        # One call less in every step.
        self.step: Callable[[Array], None] = engine.step
        self.apply: Callable[[JointCommand], None] = engine.apply

    def reset(self, rows: Ids) -> None:
        """Nothing: the engine resets them."""

    def episode(self, rows: Ids) -> dict[str, NDArray[np.generic]]:
        """Nothing."""
        return {}

    def state_dict(self) -> State:
        """Nothing: they are in the engine's."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing."""


class NetworkMotors:
    """A learned actuator in N worlds.

    Before every physics step the network sees errors and velocities of the last H of them and says
    torques, which the engine limits and scales by ``motor_strength`` as those of its servos. The
    part of its damping that is of the newest velocity goes to the engine as damping about that
    velocity: it adds nothing at the beginning of the physics step and is integrated within it as
    that of a servo, without which stiff motors shake at such steps.

    Before an episode every world is taken to have stood at its target with the velocity it begins
    with.

    Args:
        network: fits the engine's robot.
        engine: the worlds.
        substeps: physics steps of each call; those of a control period if None.

    Attributes:
        network: see above.
    """

    def __init__(
        self, network: ActuatorNetwork, engine: Engine, *, substeps: int | None = None
    ) -> None:
        self.network = network
        self._engine = engine
        robot, num = engine.robot, engine.num
        self._dt, self._substeps = robot.physics_dt_s, substeps or robot.substeps
        self._actuated = robot.actuated_ids
        self._kp, self._kd = robot.actuated_array("kp"), robot.actuated_array("kd")
        self._read, self._delay_s = _reader(engine)
        motors = len(self._actuated)
        self._error: Array = np.zeros((num, network.history, motors))
        self._velocity: Array = np.zeros_like(self._error)
        # Targets of the newest physics steps, newest first: [S, N, A].
        slots = math.ceil(delay_room(engine) / self._dt - 1e-6) + 1
        self._told: Array = np.zeros((slots, num, motors))
        self._everyone = np.arange(num)
        self._outside: Array = np.zeros(num)
        self._samples: Array = np.zeros(num)
        # A network that gains from speed is left explicit: negative damping has no implicit help.
        self._damping: Array = np.tile(np.maximum(network.damping.newest, 0.0), (num, 1))
        if isinstance(engine, MujocoEngine) and isinstance(engine.recorder, BlackBox):
            engine.recorder.keep_single_steps()
        self.reset(self._everyone)

    def step(self, q_des: Array) -> None:
        """See :class:`Motors`."""
        stamp = np.zeros(len(q_des), dtype=np.int64)
        self.apply(JointCommand.position(stamp, q_des, kp=self._kp, kd=self._kd))

    def apply(self, command: JointCommand) -> None:
        """See :class:`Motors`.

        The network stands for drives with its own gains. Worlds that are given others, as in a
        safe stop, have the engine's servos with those.
        """
        own = ((command.kp == self._kp) & (command.kd == self._kd)).all(axis=1)[:, None]
        for _ in range(self._substeps):
            q, dq = self._sample(command.q_des)
            torque = self.network.torque(self._error, self._velocity) + command.tau_ff
            self._engine.apply(
                JointCommand(
                    stamp_ns=command.stamp_ns,
                    q_des=np.where(own, q, command.q_des),
                    dq_des=np.where(own, dq, command.dq_des),
                    tau_ff=np.where(own, torque, command.tau_ff),
                    kp=np.where(own, 0.0, command.kp),
                    kd=np.where(own, self._damping, command.kd),
                ),
                substeps=1,
            )

    def _sample(self, q_des: Array) -> tuple[Array, Array]:
        """One more physics step begins under targets ``[N, A]``; positions and velocities then."""
        self._told[1:] = self._told[:-1]
        self._told[0] = q_des
        # A delay acts as the next multiple of the physics step, as in the engines.
        late = np.ceil(self._delay_s() / self._dt - 1e-6).astype(np.intp)
        q, dq = (values[:, self._actuated] for values in self._read())
        for kept, newest in (
            (self._error, self._told[late, self._everyone] - q),
            (self._velocity, dq),
        ):
            kept[:, :-1] = kept[:, 1:]
            kept[:, -1] = newest
        outside = self.network.outside(self._error[:, -1], self._velocity[:, -1])
        self._outside += outside.mean(axis=1)
        self._samples += 1.0
        return q, dq

    def reset(self, rows: Ids) -> None:
        """See :class:`Motors`."""
        q, dq = (values[rows][:, self._actuated] for values in self._read())
        self._error[rows] = 0.0
        self._velocity[rows] = dq[:, None]
        self._told[:, rows] = q
        self._outside[rows] = self._samples[rows] = 0.0

    def episode(self, rows: Ids) -> dict[str, NDArray[np.generic]]:
        """``out_of_range [n]``: share of joints and physics steps outside what was fitted."""
        return {"out_of_range": self._outside[rows] / np.maximum(self._samples[rows], 1.0)}

    def state_dict(self) -> State:
        """See :class:`Motors`."""
        return {name: values.copy() for name, values in self._kept().items()}

    def load_state_dict(self, state: State) -> None:
        """See :class:`Motors`.

        Raises:
            FerryError: the state is of other motors.
        """
        for name, values in self._kept().items():
            found = state.get(name)
            if found is None or found.shape != values.shape:
                raise FerryError(
                    f"the state has no history of the learned actuator {self.network.path}: its "
                    f"{name} is {None if found is None else found.shape}, expected {values.shape}"
                )
            values[...] = found

    def _kept(self) -> dict[str, Array]:
        return {
            "error": self._error,
            "velocity": self._velocity,
            "told": self._told,
            "outside": self._outside,
            "samples": self._samples,
        }


def _reader(engine: Engine) -> tuple[Callable[[], tuple[Array, Array]], Callable[[], Array]]:
    """What gives ``q, dq [N, J]`` now, and delays ``[N]`` of the targets [s]."""
    if isinstance(engine, MujocoEngine):
        built = engine.built
        # The whole state of a world takes longer to read than a physics step to make.
        qpos, qvel = engine.batch.bind("qpos"), engine.batch.bind("qvel")
        q, dq = built.joint_qpos_adr, built.joint_dof_adr
        return lambda: (qpos[:, q], qvel[:, dq]), lambda: engine.servos.delay_s
    from sim.pybullet_engine import PyBulletEngine

    assert isinstance(engine, PyBulletEngine)

    def read() -> tuple[Array, Array]:
        robot = engine.state().robot
        return robot.q, robot.dq

    return read, lambda: engine.parameters["delay_s"][:, 0]
