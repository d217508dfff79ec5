"""What a policy is evaluated on: engine, randomisation, length, and seeds that nobody trained on.

Every suite of the same length gives the same commands for the same seed, so that scores of two
engines or two policies can be compared episode by episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from real.contract import CommandLimits
from real.errors import FerryError, nearest
from real.reach import POSE_NAMES, ReachSpace
from sim.commands import CommandConfig, Commands, VelocityCommands
from sim.pose_commands import PoseCommands
from sim.task import StartConfig

Array = NDArray[np.float64]
Purpose = Literal["selection", "report"]

#: One mapping from :data:`STREAMS` to seeds for each of N episodes.
EpisodeSeeds = list[dict[str, np.random.SeedSequence]]

#: First element of the spawn key of every evaluation seed; "eval" in ASCII. Training's spawn keys
#: (sim.streams) have the same length and begin with the number of a worker, which never gets
#: there, and `SeedSequence` keeps different keys apart. So no episode of an evaluation, whatever
#: its seed, repeats one of a training run, whatever the run's seed.
EVALUATION_KEY = 0x6576616C

#: Selecting the best of many checkpoints on some episodes flatters it on those. Reports use others.
PURPOSES: Mapping[Purpose, int] = {"selection": 0, "report": 1}

#: Commands of an episode: one in ten stands, shorter ones than the dead band stand too [m/s and
#: rad/s], and each is held for a time in which a robot can reach it and keep it [s].
STANDING_SHARE, DEADBAND, HOLD_S = 0.1, 0.1, (4.0, 8.0)

#: How long the suites hold a pose: a second of motion, and time to settle [s].
POSE_HOLD_S = (3.0, 5.0)

#: How a robot with a passive hinge starts, uniform in +-value: its default pose is a balance, in
#: which a policy that does nothing would look perfect. Every suite without the task's own
#: randomisation uses it [rad and m, rad/s and m/s].
OFF_BALANCE = StartConfig(joint_offset=0.05, joint_vel=0.05)

#: How robots start on terrain: hills and stairs are met at any angle [rad].
ANY_HEADING = StartConfig(yaw=np.pi)

#: What an episode draws, each from a stream of its own. Append only.
STREAMS = ("command", "start", "domain", "sensor")


@dataclass(frozen=True)
class Suite:
    """One way of evaluating a policy.

    Attributes:
        name: key of :data:`SUITES`.
        doc: what it is, for people.
        engine: which physics.
        randomized: whether random terms, noise and spread initial states of the task apply.
        terrain: whether the ground is the task's terrain, all tiles and levels alike, or a plane.
        episode_s: length of an episode [s].
        episodes: how many by default.
    """

    name: str
    doc: str
    engine: Literal["mujoco", "pybullet"]
    randomized: bool
    terrain: bool = False
    episode_s: float = 20.0
    episodes: int = 20


SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("nominal", "MuJoCo without randomisation, noise or delay", "mujoco", False),
        Suite("pybullet", "PyBullet, a physics engine training never saw", "pybullet", False),
        Suite("randomized", "MuJoCo with the task's own randomisation", "mujoco", True),
        Suite(
            "pybullet_randomized", "PyBullet with the task's own randomisation", "pybullet", True
        ),
        # More episodes: what differs most between them is the tile and its level.
        Suite("terrain", "nominal, but on the task's terrain", "mujoco", False, True, episodes=36),
        Suite("pybullet_terrain", "the same in PyBullet", "pybullet", False, True, episodes=36),
    )
}


def find_suite(name: str) -> Suite:
    """A suite by name.

    Raises:
        FerryError: there is none of that name.
    """
    if name not in SUITES:
        raise FerryError(
            f"there is no suite {name!r}{nearest(name, SUITES)}; known: {', '.join(SUITES)}"
        )
    return SUITES[name]


def suites_on(*, terrain: bool) -> tuple[str, str]:
    """The suites without randomisation for a task, in MuJoCo and in PyBullet.

    Args:
        terrain: whether the task is on terrain.
    """
    return ("terrain", "pybullet_terrain") if terrain else ("nominal", "pybullet")


def require_engines(names: Iterable[str]) -> None:
    """Find out before a long run, not after it, that its policy could not be scored.

    Raises:
        FerryError: a suite's engine is not installed.
    """
    for name in names:
        if find_suite(name).engine == "pybullet" and find_spec("pybullet") is None:
            raise FerryError(
                f"suite {name!r} needs PyBullet, which is not installed here: "
                "pip install 'ferry[pybullet]'"
            )


def selection_suite(engine: Literal["mujoco", "pybullet"], *, terrain: bool) -> str:
    """The suite that chooses the best checkpoint: the ground of the task, nothing random in it.

    Args:
        engine: of the task.
        terrain: whether the task is on terrain.
    """
    in_mujoco, in_pybullet = suites_on(terrain=terrain)
    return in_mujoco if engine == "mujoco" else in_pybullet


def episode_seeds(seed: int, episodes: int, *, purpose: Purpose) -> EpisodeSeeds:
    """Seeds of every episode and stream.

    Args:
        seed: which of the purpose's sets of episodes, >= 0.
        episodes: how many; asking for more leaves the first ones as they are.
        purpose: whether the scores choose a checkpoint or are reported.

    Returns:
        N mappings from :data:`STREAMS` to seed sequence.

    Raises:
        FerryError: a number is out of range.
    """
    if seed < 0:
        raise FerryError(f"seed is {seed}; expected a whole number >= 0")
    if episodes < 1:
        raise FerryError(f"{episodes} episodes; expected at least 1")
    return [
        {
            stream: np.random.SeedSequence(
                seed, spawn_key=(EVALUATION_KEY, PURPOSES[purpose], episode, index)
            )
            for index, stream in enumerate(STREAMS)
        }
        for episode in range(episodes)
    ]


def generators(seeds: EpisodeSeeds, stream: str) -> list[np.random.Generator]:
    """One generator per episode for one of :data:`STREAMS`."""
    return [np.random.Generator(np.random.PCG64(episode[stream])) for episode in seeds]


def episode_commands(
    limits: CommandLimits,
    rngs: list[np.random.Generator],
    *,
    steps: int,
    dt_s: float,
    space: ReachSpace | None = None,
) -> Array:
    """Commands of N episodes, over the whole range the policy was trained on.

    They are a property of the suite, not of a task file, so that a bundle and the run it came from
    get the same ones.

    Args:
        limits: ranges of vx, vy [m/s] and wz [rad/s], of a pose, or of nothing.
        rngs: one generator per episode.
        steps: T.
        dt_s: control period [s].
        space: the poses, of a policy that is commanded poses.

    Returns:
        ``[T, N, 3]``, ``[T, N, 7]`` for poses, or ``[T, N, 0]`` for a policy without a command.

    Raises:
        FerryError: the policy takes another kind of command.
    """
    if limits.dim == 0:
        return np.empty((steps, len(rngs), 0))
    source: Commands
    if limits.names == POSE_NAMES and space is not None:
        source = PoseCommands(space, len(rngs), rngs, hold_s=POSE_HOLD_S, control_dt_s=dt_s)
        return _played(source, len(rngs), steps)
    if limits.names != ("vx", "vy", "wz"):
        raise FerryError(
            f"the policy's command is ({', '.join(limits.names)}); the suites command velocities "
            "(vx, vy, wz) or poses of an end effector"
        )
    ranges = zip(limits.names, limits.low, limits.high, strict=True)
    config = CommandConfig(
        **{name: (low, high) for name, low, high in ranges},
        standing_share=STANDING_SHARE,
        deadband=DEADBAND,
        hold_s=HOLD_S,
    )
    source = VelocityCommands(config, len(rngs), rngs, control_dt_s=dt_s)
    return _played(source, len(rngs), steps)


def _played(source: Commands, num: int, steps: int) -> Array:
    """``[T, N, C]`` what a source of commands gives from its beginning."""
    source.reset(np.arange(num))
    out = np.empty((steps, *source.value.shape))
    for step in range(steps):
        out[step] = source.value
        source.step()
    return out
