"""What policy and critic see of N simulated worlds.

The policy's vector is built by :mod:`real.observation` from the sensed signals, exactly as on the
robot. The critic's is the same from the true signals, followed by what only a simulator knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.frames import yaw
from real.kinematics import Kinematics
from real.observation import ObservationBuilder, ObservationSpec
from real.signals import RobotState
from real.spec import RobotSpec
from sim.engine import WorldState
from sim.terrain import Terrain

Array = NDArray[np.float64]
Float32 = NDArray[np.float32]
Ids = NDArray[np.intp]
Observations = dict[str, Float32]

#: Where the critic looks at the ground: forward and left of the base, in its heading [m]. A stride
#: of the largest shipped robot ahead and behind, and its width.
SCAN_B: Array = np.stack(
    np.meshgrid([-0.5, -0.25, 0.0, 0.25, 0.5], [-0.25, 0.0, 0.25], indexing="ij"), axis=-1
).reshape(-1, 2)


@dataclass(frozen=True)
class View:
    """Everything an observation of N worlds is made of.

    Attributes:
        world: the true state.
        sensed: the signals as the sensors report them.
        command: ``[N, C]``.
        prev_action: ``[N, A]`` clipped action of the last step, zero after a reset.
        foot_air_s: ``[N, F]`` how long each foot has been in the air [s].
        domain: ``[N, P]`` normalised values of the random terms.
        terrain: what the robots stand on; None for a plane.
    """

    world: WorldState
    sensed: RobotState
    command: Array
    prev_action: Array
    foot_air_s: Array
    domain: Array
    terrain: Terrain | None = None

    def of(self, rows: Ids) -> View:
        """The same of worlds ``rows`` alone, copied."""
        world = self.world.of(rows)
        perfect = self.sensed is self.world.robot
        return replace(
            self,
            world=world,
            sensed=world.robot if perfect else self.sensed.of(rows),
            command=self.command[rows],
            prev_action=self.prev_action[rows],
            foot_air_s=self.foot_air_s[rows],
            domain=self.domain[rows],
        )


@dataclass(frozen=True)
class Privileged:
    """A term of the critic: its size (from feet and random values) and how to read it."""

    doc: str
    dim: Callable[[int, int], int]
    read: Callable[[View], NDArray[Any]]


def ground_scan(view: View) -> Array:
    """``[N, 15]`` how far the base is above the ground at :data:`SCAN_B` about it [m]."""
    world = view.world
    height = world.position_w[:, 2:]
    if view.terrain is None:
        return np.tile(height, (1, len(SCAN_B)))
    heading = yaw(world.robot.quat_wb)
    cos, sin = np.cos(heading)[:, None], np.sin(heading)[:, None]
    forward, left = SCAN_B.T
    # p_w = R(yaw) p_b + base
    around = np.stack([cos * forward - sin * left, sin * forward + cos * left], axis=-1)
    return height - view.terrain.field.at(world.position_w[:, None, :2] + around)


#: The vocabulary of ``critic:``. All in SI units; the critic's normaliser scales them.
PRIVILEGED: dict[str, Privileged] = {
    "base_lin_vel": Privileged(
        "linear velocity in the base frame [m/s]", lambda f, p: 3, lambda x: x.world.lin_vel_b
    ),
    "base_height": Privileged(
        "height of the base above the ground [m]", lambda f, p: 1, lambda x: x.world.height[:, None]
    ),
    "ground_scan": Privileged(
        "height of the base above the ground at 15 points about it [m]",
        lambda f, p: len(SCAN_B),
        ground_scan,
    ),
    "foot_contact": Privileged(
        "whether each foot touches the ground", lambda f, p: f, lambda x: x.world.foot_contact
    ),
    "foot_air_time": Privileged(
        "how long each foot has been in the air [s]", lambda f, p: f, lambda x: x.foot_air_s
    ),
    "randomization": Privileged(
        "draws of the random terms, scaled to [-1, 1]", lambda f, p: p, lambda x: x.domain
    ),
}


class Observer:
    """Builds the observations of N worlds and owns their histories.

    Args:
        spec: the policy's terms.
        privileged: names of :data:`PRIVILEGED`, in order.
        robot: default pose, number of feet.
        num: N.
        domain_dim: P, numbers that the random terms report.
        kinematics: of the end effector, where poses are commanded.

    Attributes:
        policy_dim: D.
        critic_dim: C.
        critic_slices: where each privileged term stands in the critic's vector.
    """

    def __init__(
        self,
        spec: ObservationSpec,
        privileged: Sequence[str],
        robot: RobotSpec,
        num: int,
        *,
        domain_dim: int,
        kinematics: Kinematics | None = None,
    ) -> None:
        # Two histories: the policy's of noisy signals, the critic's of true ones.
        self._noisy = ObservationBuilder(spec, robot.q_default, num, kinematics=kinematics)
        self._true = ObservationBuilder(spec, robot.q_default, num, kinematics=kinematics)
        self.policy_dim: int = spec.dim
        self.critic_slices: dict[str, slice] = {}
        stop = spec.dim
        for name in privileged:
            size = PRIVILEGED[name].dim(len(robot.feet), domain_dim)
            self.critic_slices[name] = slice(stop, stop + size)
            stop += size
        self.critic_dim: int = stop

    def reset(self, rows: Ids) -> None:
        """Forget the history of worlds ``rows``."""
        self._noisy.reset(rows)
        self._true.reset(rows)

    def observe(self, view: View, *, rows: Ids | None = None, commit: bool = True) -> Observations:
        """Observe all worlds or some, into new arrays.

        Args:
            view: what to observe.
            rows: n worlds that it shows; all if None.
            commit: whether the sample enters the histories; only of all worlds.

        Returns:
            ``policy [N, D]`` and ``critic [N, C]``, float32.
        """
        given = (view.command, view.prev_action)
        how: dict[str, Any] = {"rows": rows, "commit": commit}
        policy = self._noisy.build(view.sensed, *given, **how)
        critic = np.empty((len(policy), self.critic_dim), dtype=np.float32)
        if view.sensed is view.world.robot:
            # Perfect sensors: the same numbers and so the same histories.
            critic[:, : self.policy_dim] = policy
        else:
            # Built side by side and copied: numpy clips a part of wider rows at half the speed.
            true = self._true.build(view.world.robot, *given, **how, gravity_b=view.world.down_b)
            critic[:, : self.policy_dim] = true
        for name, where in self.critic_slices.items():
            critic[:, where] = PRIVILEGED[name].read(view)
        return {"policy": policy, "critic": critic}

    def last(self, view: View, ended: Ids, *, void: NDArray[np.bool_]) -> Observations:
        """Last observations of episodes, looked at without advancing any history.

        Args:
            view: all worlds, before anything of those that ended is reset.
            ended: n worlds.
            void: ``[N]`` worlds without a meaningful observation; they get zeros.

        Returns:
            ``policy [n, D]`` and ``critic [n, C]``.
        """
        if not ended.size:
            return {
                "policy": np.empty((0, self.policy_dim), dtype=np.float32),
                "critic": np.empty((0, self.critic_dim), dtype=np.float32),
            }
        # A void world may hold anything, also numbers too large for float32.
        with np.errstate(over="ignore", invalid="ignore"):
            out = self.observe(view.of(ended), rows=ended, commit=False)
        for values in out.values():
            values[void[ended]] = 0.0
        return out

    def state_dict(self) -> dict[str, NDArray[np.generic]]:
        """Both histories, copied."""
        return {
            **{f"noisy.{k}": v for k, v in self._noisy.state_dict().items()},
            **{f"true.{k}": v for k, v in self._true.state_dict().items()},
        }

    def load_state_dict(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what :meth:`state_dict` gave."""
        for name, builder in (("noisy.", self._noisy), ("true.", self._true)):
            builder.load_state_dict(
                {k.removeprefix(name): v for k, v in state.items() if k.startswith(name)}
            )
