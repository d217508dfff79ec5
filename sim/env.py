"""The vector environment: N worlds of one task, stepped as one array program.

Worlds that end are reset within the same step (same-step autoreset): the observation returned for
such a row is the first of its new episode, and the last one of the old episode is in
``StepResult.final_obs``. No step is ever a filler without a transition.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from real.action import ActionDecoder, ActionSpec
from real.contract import CommandLimits
from real.errors import FerryError
from real.frames import projected_gravity
from real.observation import ObservationSpec
from real.signals import RobotState
from real.spec import RobotSpec, load_robot
from sim import streams
from sim.commands import command_limits, make_commands
from sim.engine import WorldState
from sim.episodes import Episodes
from sim.measure import Measure
from sim.mujoco_engine import MujocoEngine
from sim.observe import Observations, Observer, View
from sim.pose_commands import reach_space
from sim.randomize import Randomizer, delay_max_s
from sim.result import StepResult
from sim.rewards import RewardTable
from sim.sensors import Sensors
from sim.shaping import shaping_parts
from sim.state import State, Stateful, under
from sim.task import EnvConfig, action_spec, draw_start, observation_spec
from sim.terminations import Conditions, Terminations, finite_rows

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
    """

    def __init__(
        self,
        config: EnvConfig,
        robot: RobotSpec,
        *,
        engine: MujocoEngine,
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
        self._stream = stream
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
        space, kinematics = reach_space(config.command, robot)
        self._decoder = ActionDecoder(self.action_spec)
        self.randomizer = Randomizer(
            config.randomize, self.engine, control_dt_s=dt, rngs=rngs["domain"]
        )
        self._sensors = Sensors(config.sensors, num, rngs["sensor"], joints=len(robot.joints))
        self._commands = make_commands(
            config.command, num, rngs["command"], control_dt_s=dt, space=space
        )
        feet = self.engine.state().foot_position_w[0]  # a new engine stands in the default pose
        self._measure = Measure(
            robot, num, feet_b=feet, soft_limit=config.soft_limit, kinematics=kinematics
        )
        extra = shaping_parts(config.shaping)
        self._rewards = RewardTable(config.rewards, control_dt_s=dt, feet=len(feet), extra=extra)
        self._terminations = Terminations(
            config.terminations,
            num,
            fall_height_m=robot.fall_height_m,
            joints=robot.joint_names,
            q_default=robot.q_default,
            control_dt_s=dt,
        )
        self._episodes = Episodes(
            num, limit=max(1, round(config.episode_s / dt)), parts=self._rewards.names
        )
        self._observer = Observer(
            self.observation_spec,
            config.critic,
            robot,
            num,
            domain_dim=self.randomizer.privileged_dim,
            kinematics=kinematics,
        )

    # -------------------------------------------------------------- stepping

    def reset(self, seed: int | None = None) -> Observations:
        """Start a new episode in every world.

        Args:
            seed: start all random streams anew; None continues them.

        Returns:
            ``policy [N, D]`` and ``critic [N, C]``.
        """
        if seed is not None:
            fresh = streams.make_streams(seed, self.num_envs, stream=self._stream)
            for purpose, generators in self._rngs.items():
                streams.reseed(generators, fresh[purpose])
            self._sensors.forget()
        world = self._reset_rows(np.arange(self.num_envs))
        if self.config.randomize_episode_phase:
            limit = self._episodes.limit
            self._episodes.clock[:] = [int(rng.integers(limit)) for rng in self._rngs["start"]]
        self._obs = self._observer.observe(self._view(world))
        return dict(self._obs)

    def step(self, actions: NDArray[np.floating]) -> StepResult:
        """Advance every world by one control period.

        Args:
            actions: ``[N, A]``; clipped as the action spec says.

        Raises:
            FerryError: wrong shape, or an action that is NaN.
        """
        action = self._clip(actions)
        self.randomizer.before_step()
        observed = self._sensed.q[:, self.robot.actuated_ids]
        self.engine.step(self._decoder.decode(action, observed))
        world = self.engine.state()
        self._sensed = self._sensors.sense(world.robot)

        answered = self._commands.value.copy()  # the command that the action answered
        self._episodes.tick()
        self._commands.step()

        parts, conditions = self._score(world, action, answered)
        self._episodes.add(parts)
        terminated = conditions.terminated
        truncated = self._episodes.over() & ~terminated

        ended = np.flatnonzero(terminated | truncated)
        final_obs = self._observer.last(self._view(world), ended, void=conditions.diverged)
        episode = self._episodes.close(ended, conditions)

        if ended.size:
            world = self._reset_rows(ended)
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
        )

    def _clip(self, actions: NDArray[np.floating]) -> Array:
        """The action as it is executed and observed; a policy that gives NaN stops here."""
        expected = (self.num_envs, self.action_dim)
        if actions.shape != expected:
            raise FerryError(f"actions have shape {actions.shape}; expected {expected}")
        action = self._decoder.clip(actions)
        if not np.isfinite(action).all():
            rows = np.flatnonzero(np.isnan(action).any(axis=1)).tolist()
            raise FerryError(
                f"actions of worlds {rows[:8]} are not finite; the policy's output is broken"
            )
        return action

    def _score(self, world: WorldState, action: Array, command: Array) -> tuple[Array, Conditions]:
        """Reward parts ``[K, N]`` and what happened, with every broken world marked diverged."""
        # Broken numbers are expected here and are found below, so they need no warnings.
        with np.errstate(over="ignore", invalid="ignore"):
            gravity_b = projected_gravity(world.robot.quat_wb)
            diverged = world.diverged | ~finite_rows(world, self._sensed)
            conditions = self._terminations.check(
                gravity_b,
                world.position_w[:, 2],
                q=world.robot.q,
                body_contact=world.body_contact,
                diverged=diverged,
            )
            measured = self._measure.step(
                world, action, command=command, gravity_b=gravity_b, fallen=conditions.failed
            )
            parts = self._rewards.compute(measured, diverged)
            broken = ~np.isfinite(parts.sum(axis=0))
        if broken.any():
            self._rewards.void(parts, broken)
            conditions = conditions.with_diverged(broken)
        return parts, conditions

    def _view(self, world: WorldState) -> View:
        return View(
            world=world,
            sensed=self._sensed,
            command=self._commands.value,
            prev_action=self._measure.action_1,
            foot_air_s=self._measure.foot_air_s,
            domain=self.randomizer.values(),
        )

    def _reset_rows(self, rows: Ids) -> WorldState:
        """Begin new episodes in worlds ``rows``; all that remembers them forgets.

        Returns:
            The state of all N worlds.
        """
        self.randomizer.draw(rows)
        rngs = [self._rngs["start"][row] for row in rows.tolist()]
        self.engine.reset(rows, draw_start(self.config.start, self.robot, rngs))
        world = self.engine.state()
        self._commands.reset(rows)
        self._terminations.reset(rows)
        self._episodes.reset(rows)
        self._measure.reset(rows, world.robot.dq[rows])
        self._observer.reset(rows)
        self._sensors.reset(rows)
        self._sensed = self._sensors.sense_rows(world.robot, rows, self._sensed)
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
    def command(self) -> Array:
        """``[N, C]`` the commands in force, a copy; C is 0 for a task without."""
        return self._commands.value.copy()

    def state_dict(self) -> State:
        """Everything a bit-exact continuation needs, as flat arrays."""
        parts: dict[str, State] = {n: part.state_dict() for n, part in self._stateful().items()}
        parts["rng"] = {n: streams.pack_streams(rngs) for n, rngs in self._rngs.items()}
        parts["obs"] = {n: values.copy() for n, values in self._obs.items()}
        parts["sensed"] = {"q": self._sensed.q.copy()}  # from which a delta counts
        return {f"{n}.{key}": value for n, part in parts.items() for key, value in part.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue where :meth:`state_dict` was taken, in an env of the same task and N.

        Raises:
            FerryError: the state lacks a part, or is of another task or number of worlds.
        """
        lacking = [n for n in ("episodes", "engine", "rng", "obs", "sensed") if not under(state, n)]
        if lacking:
            raise FerryError(f"this is not the state of an env: it lacks {', '.join(lacking)}")
        for name, part in self._stateful().items():
            part.load_state_dict(under(state, name))
        for purpose, packed in under(state, "rng").items():
            streams.unpack_streams(self._rngs[purpose], packed.astype(np.uint64))
        self._obs = {k: v.astype(np.float32) for k, v in under(state, "obs").items()}
        self._sensed = dataclasses.replace(self._sensed, q=under(state, "sensed")["q"].copy())

    def _stateful(self) -> dict[str, Stateful]:
        # Episodes first: they refuse a state of another size in words.
        return {
            "episodes": self._episodes,
            "engine": self.engine,
            "randomizer": self.randomizer,
            "sensors": self._sensors,
            "commands": self._commands,
            "measure": self._measure,
            "terminations": self._terminations,
            "observer": self._observer,
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
) -> VecEnv:
    """Build the environment of a task, reset and ready to step.

    Args:
        config: the task.
        num: N; the task's if None.
        threads: physics threads, 0 for all CPUs; the task's if None.
        seed: root of all random numbers.
        randomize: False gives the nominal task: no random terms, no sensor noise, no delay, and
            every episode starts at its beginning.
        stream: (worker, restart), which share a seed without sharing random numbers.

    Raises:
        FerryError: the task or its robot cannot run.
    """
    robot = load_robot(config.robot)
    if not randomize:
        config = config.nominal()
    engine = MujocoEngine(
        robot,
        config.sim.worlds if num is None else num,
        threads=config.sim.threads if threads is None else threads,
        delay_max_s=delay_max_s(config.randomize),
    )
    from sim.shaped_env import env_class  # it builds on this module

    return env_class(config)(config, robot, engine=engine, seed=seed, stream=stream)
