"""The vector environment: N worlds of one task, stepped as one array program.

Worlds that end are reset within the same step (same-step autoreset): the observation returned for
such a row is the first of its new episode, and the last one of the old episode is in
``StepResult.final_obs``. No step is ever a filler without a transition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real.action import ActionSpec
from real.contract import CommandLimits
from real.domain import DomainDraws, DomainSample
from real.observation import ObservationSpec
from real.signals import RobotState
from real.spec import RobotSpec, load_robot
from sim import streams
from sim.black_box import retire
from sim.commands import command_limits, make_commands
from sim.engine import Engine, WorldState
from sim.engines import make_engine
from sim.episodes import Episodes
from sim.motors import make_motors
from sim.observe import Observations, Observer, View
from sim.origins import Origins
from sim.pose_commands import reach_space
from sim.randomize import Randomizer
from sim.result import StepResult
from sim.sensors import Sensors
from sim.shaped_score import make_scorer
from sim.shared import Shared
from sim.starts import Starts
from sim.state import State, Stateful, pack, pack_parts, part_of, require_parts, unpack_parts
from sim.targets import Targets
from sim.task import EnvConfig, action_spec, observation_spec

Array = NDArray[np.float64]
Ids = NDArray[np.intp]


class VecEnv:
    """N worlds of a task. Make one with :func:`make_env`.

    Attributes:
        config: the task.
        robot: the robot in every world.
        engine: the physics. Whoever steps or resets it takes it out of the env's hands.
        num_envs: N.
        policy_dim: D.
        critic_dim: C; the policy's terms without noise, then the privileged ones.
        action_dim: A.
        observation_spec: meaning of the policy's observation.
        action_spec: meaning of an action.
        command_limits: ranges of the command.
        critic_slices: where each privileged term stands in the critic's observation.
        randomizer: the random terms; ``randomizer.sample(row)`` says what a world drew.
        targets: what becomes of actions, and the joint targets sent last.
        shared: what its worlds have in common with those of a run's other actors.
    """

    def __init__(
        self,
        config: EnvConfig,
        robot: RobotSpec,
        *,
        engine: Engine,
        seed: int,
        stream: tuple[int, int] = (0, 0),
    ) -> None:
        self.config = config
        self.robot = robot
        self.engine = engine
        self.num_envs: int = engine.num
        self.observation_spec: ObservationSpec = observation_spec(config, robot)
        self.action_spec: ActionSpec = action_spec(config, robot)
        self.command_limits: CommandLimits = command_limits(config.command)
        self._stream, self._dt = stream, robot.control_dt_s
        self._rngs = streams.make_streams(seed, self.num_envs, stream=stream)
        self._make_parts()
        self.policy_dim: int = self._observer.policy_dim
        self.critic_dim: int = self._observer.critic_dim
        self.critic_slices: dict[str, slice] = self._observer.critic_slices
        self.action_dim: int = self.action_spec.dim
        self._sensed: RobotState = RobotState.zeros(self.num_envs, len(robot.joints))
        self._obs: Observations = {}
        self.reset()

    def _make_parts(self) -> None:
        config, robot, num, rngs = self.config, self.robot, self.num_envs, self._rngs
        dt = robot.control_dt_s
        self.targets = Targets(self.action_spec, robot, num, config=config.filter)
        grows, table, j = config.curriculum, config.randomize, len(robot.joints)
        command, terrain = config.command, self.engine.terrain
        space, kinematics = reach_space(command, robot)
        self.randomizer = Randomizer(
            table, self.engine, control_dt_s=dt, rngs=rngs["domain"], curriculum=grows
        )
        self._motors = make_motors(config.actuators, self.engine)
        self._sensors = Sensors(config.sensors, num, rngs["sensor"], joints=j, control_dt_s=dt)
        self._commands = make_commands(command, num, rngs["command"], control_dt_s=dt, space=space)
        feet = self.engine.state().foot_position_w[0]  # a new engine stands in the default pose
        self._scorer = make_scorer(
            config, robot, num, feet_b=feet, kinematics=kinematics, commands=self._commands
        )
        self._measure, self._rewards = self._scorer.measure, self._scorer.rewards
        limit = max(1, round(config.episode_s / dt))
        self._episodes = Episodes(num, limit=limit, parts=self._rewards.names)
        starts = self._starts = Starts(config.start, robot, rngs["start"], terrain=terrain)
        self.shared = Shared({"curriculum": self.randomizer.curriculum, "terrain": starts.shared})
        self._origins = Origins(
            rngs, randomizer=self.randomizer, episodes=self._episodes, starts=starts
        )
        spec, critic, dim = self.observation_spec, config.critic, self.randomizer.privileged_dim
        self._observer = Observer(spec, critic, robot, num, domain_dim=dim, kinematics=kinematics)

    # -------------------------------------------------------------- stepping

    def reset(
        self,
        seed: int | Sequence[int] | None = None,
        *,
        domain: Mapping[int, DomainSample] | None = None,
    ) -> Observations:
        """Start a new episode in every world.

        Args:
            seed: start all random streams anew, N seeds each world's; None continues them.
            domain: world -> an earlier episode that it shall live through again. With the same
                actions all comes out the same, bit by bit, if the sample has its streams; if it
                has only values, these are in force and the rest is drawn anew.

        Returns:
            ``policy [N, D]`` and ``critic [N, C]``.

        Raises:
            FerryError: a sample is of another table of random terms, or there is no such world.
        """
        if seed is not None:
            streams.restart(self._rngs, seed, stream=self._stream)
            self.randomizer.forget()
        world = self._reset_rows(np.arange(self.num_envs), again := domain or {})
        if self.config.randomize_episode_phase:
            self._episodes.spread(self._rngs["start"])
        for row, sample in again.items():
            self._episodes.clock[row] = sample.clock
        self._obs = self._observer.observe(self._view(world))
        return dict(self._obs)

    def step(self, actions: NDArray[np.floating]) -> StepResult:
        """Advance every world by one control period.

        Args:
            actions: ``[N, A]``; clipped as the action spec says.

        Raises:
            FerryError: wrong shape, or an action that is NaN.
        """
        action = self.targets.clip(actions)
        self.randomizer.before_step()
        self._motors.step(self.randomizer.to_motors(self.targets.decode(action, self._sensed)))
        world = self.engine.state()
        self._sensed = self._sensors.sense(self.randomizer.reported(world.robot))

        answered = self._commands.value.copy()  # the command that the action answered
        self._episodes.tick()
        self._commands.step()

        parts, conditions = self._scorer.score(
            world, self._sensed, action=action, command=answered, clamped=self.targets.clamped
        )
        self._episodes.add(parts)
        terminated = conditions.terminated
        truncated = self._episodes.over(self._starts.left(world), terminated) & ~terminated

        ended = np.flatnonzero(terminated | truncated)
        view = self._view(world)
        retire(self.engine, conditions.diverged, view, self.randomizer)
        final_obs = self._observer.last(view, ended, void=conditions.diverged)
        episode = self._episodes.close(ended, conditions) | self._motors.episode(ended)

        if ended.size:
            could_s = self._episodes.could_last(ended) * self._dt
            self.randomizer.learn(ended, episode, could_s)
            self._starts.learn(ended, episode, could_s)
            world = self._reset_rows(ended, {}, world)
        self._obs = self._observer.observe(self._view(world))
        return StepResult(
            obs=dict(self._obs),
            reward=parts.sum(axis=0).astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            final_ids=ended,
            final_obs=final_obs,
            reward_parts=dict(zip(self._rewards.names, parts.astype(np.float32), strict=True)),
            episode=episode,
            clamped=self.targets.by_joint(),
        )

    def _view(self, world: WorldState) -> View:
        return View(
            world=world,
            sensed=self._sensed,
            command=self._commands.value,
            prev_action=self._measure.action_1,
            foot_air_s=self._measure.foot_air_s,
            domain=self.randomizer.values(),
            terrain=self.engine.terrain,
        )

    def _reset_rows(
        self, rows: Ids, again: Mapping[int, DomainSample], world: WorldState | None = None
    ) -> WorldState:
        """Begin new episodes in worlds ``rows``; all that remembers them forgets.

        Returns the state of all N worlds, for which ``world``, the one before, is used up. For
        ``again`` see :meth:`reset`.
        """
        self._origins.begin(rows, again)
        self.randomizer.draw(rows)
        for row, sample in again.items():
            self.randomizer.replay(row, sample)
        self.engine.reset(rows, self._starts.draw(rows, again))
        world = self.engine.state() if world is None else self.engine.renew_state(world, rows)
        for part in (self._motors, self._commands, self._episodes, self._observer, self.targets):
            part.reset(rows)
        self._scorer.terminations.reset(rows)
        self._measure.reset(rows, world.robot.dq[rows])
        self._scorer.begin(rows, world)
        self._sensors.reset(rows)
        true = self.randomizer.reported(world.robot)
        self._sensed = self._sensors.sense_rows(true, rows, self._sensed)
        return world

    # -------------------------------------------------------------- looking and keeping

    @property
    def observation(self) -> Observations:
        """The observations that the last reset or step returned."""
        return dict(self._obs)

    @property
    def counters(self) -> dict[str, int]:
        """Totals since construction: ``steps`` of all worlds, ``episodes``, ``diverged``."""
        return dict(self._episodes.counters)

    @property
    def sensed(self) -> RobotState:
        """The signals ``[N, .]`` that the last observation is made of, as the sensors gave them."""
        return self._sensed

    def drawn(self, rows: Ids | None = None) -> DomainDraws:
        """What worlds ``rows`` (all if None) drew for their present episodes.

        Pushes still to come are added to it; :meth:`DomainDraws.join` copies.
        """
        return self._origins.drawn(np.arange(self.num_envs) if rows is None else rows)

    @property
    def command(self) -> Array:
        """``[N, C]`` the commands in force, a copy; C is 0 for a task without."""
        return self._commands.value.copy()

    def state_dict(self) -> State:
        """Everything a bit-exact continuation needs, as flat arrays."""
        own: dict[str, State] = {
            "rng": {n: streams.pack_streams(rngs) for n, rngs in self._rngs.items()},
            "sensed": {n: values.copy() for n, values in self._sensed.reported().items()},
            "obs": {n: values.copy() for n, values in self._obs.items()},
        }
        return pack_parts(self._stateful()) | pack(own)

    def load_state_dict(self, state: State) -> None:
        """Continue where :meth:`state_dict` was taken, in an env of the same task and N.

        Raises:
            FerryError: the state lacks a part, or is of another task or number of worlds.
        """
        require_parts(state, "episodes", "engine", "rng", "sensed", "obs")
        unpack_parts(self._stateful(), state)
        for purpose, packed in part_of(state, "rng").items():
            streams.unpack_streams(self._rngs[purpose], packed.astype(np.uint64))
        self._sensed = RobotState(**part_of(state, "sensed"))  # pyright: ignore[reportArgumentType]
        self._obs = {k: v.astype(np.float32) for k, v in part_of(state, "obs").items()}

    def _stateful(self) -> dict[str, Stateful]:
        # Episodes first: they refuse a state of another size in words.
        return {
            "episodes": self._episodes,
            "engine": self.engine,
            "randomizer": self.randomizer,
            "sensors": self._sensors,
            "commands": self._commands,
            "measure": self._measure,
            "terminations": self._scorer.terminations,
            "observer": self._observer,
            "targets": self.targets,
            "motors": self._motors,
            "origins": self._origins,
            "shaping": self._scorer,
            "starts": self._starts,
        }

    def close(self) -> None:
        """Release the engine. May be called twice."""
        self.engine.close()


def make_env(
    config: EnvConfig,
    *,
    num: int | None = None,
    threads: int | None = None,
    seed: int = 0,
    randomize: bool = True,
    stream: tuple[int, int] = (0, 0),
    diverged: Path | None = None,
) -> VecEnv:
    """Build the environment of a task, reset and ready to step.

    Args:
        config: the task.
        num: N; the task's if None.
        threads: physics threads, of PyBullet processes, 0 for all CPUs; the task's if None.
        seed: root of all random numbers.
        randomize: False gives the nominal task: no random terms, no sensor noise, no delay, and
            every episode starts at its beginning.
        stream: (worker, restart), which share a seed without sharing random numbers.
        diverged: how names of files of worlds that diverge begin; see :mod:`sim.black_box`.

    Raises:
        FerryError: the task or its robot cannot run.
    """
    robot = load_robot(config.robot)
    config = config if randomize else config.nominal()
    engine = make_engine(
        config.sim.engine,
        robot,
        config.sim.worlds if num is None else num,
        threads=config.sim.threads if threads is None else threads,
        randomize=config.randomize,
        diverged=diverged,
        terrain=config.terrain,
    )
    return VecEnv(config, robot, engine=engine, seed=seed, stream=stream)
