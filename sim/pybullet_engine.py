"""N worlds of one robot in PyBullet: the second opinion on a policy trained in MuJoCo.

Same robot, same plane, same arrays as the other engine. What differs, knowingly, and by how much,
is in ``docs/engines.md``:

* Contacts are solved by sequential impulses and are hard; MuJoCo's are soft.
* Servo torques are held for a solver step of at most 1 ms, shorter where a light joint needs it;
  MuJoCo integrates their damping implicitly.
* Reflected rotor inertia is that of a small body geared to the joint; see :mod:`sim.rotors`.
* Dry joint friction is a velocity motor with target zero and that much effort.
* The accelerometer is the change of velocity over the last physics step, hence an average.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.signals import JointCommand
from real.spec import RobotSpec
from sim.engine import FLOOR_FRICTION, Ids, InitialState, State, WorldState
from sim.pybullet_block import Arrays, blank_state, copied, state_arrays
from sim.pybullet_plan import Blueprint, delay_slots, make_blueprint, moving_bodies, own_parameters
from sim.pybullet_pool import Here, Worker
from sim.terrain import Terrain
from sim.urdf import prepare

Array = NDArray[np.float64]


class PyBulletEngine:
    """Implements :class:`sim.engine.Engine`: one PyBullet client and one robot per world.

    World i does not depend on the others nor on the number of processes, bit for bit.

    Args:
        robot: the robot in every world; its limits must be known.
        num: N, at most about 1000 clients per process.
        friction: nominal contact friction of robot and floor.
        delay_max_s: longest actuator delay [s] that a world may be given.
        least_armature: ``[J]`` what the rotors of any world have at least; the robot's own if
            None, and then joints without armature have no rotors.
        processes: worker processes; 0 for the CPUs this process may use, None for none: the worlds
            are then in this process.
        timeout_s: longest time that a worker may take for a call [s].
        terrain: what the robots stand on, each on the tile that it starts on; a plane if None.

    Attributes:
        robot: the robot in every world.
        num: N.
        delay_max_s: see above.
        terrain: see above.
        bodies: B names of moving bodies, each by the link that its joint carries.
        parameters: ``[N, K]`` what worlds have of their own, by name; see :func:`own_parameters`.
        pids: of the worker processes.

    Raises:
        FerryError: the robot or a number is wrong; see :func:`sim.urdf.prepare`.
    """

    def __init__(
        self,
        robot: RobotSpec,
        num: int = 1,
        *,
        friction: float = FLOOR_FRICTION,
        delay_max_s: float = 0.0,
        least_armature: Array | None = None,
        processes: int | None = None,
        timeout_s: float = 60.0,
        terrain: Terrain | None = None,
    ) -> None:
        if num < 1:
            raise FerryError(f"number of worlds is {num}; expected at least 1")
        if not friction >= 0.0:
            raise FerryError(f"friction is {friction}; expected a number >= 0")
        if not (math.isfinite(delay_max_s) and delay_max_s >= 0.0):
            raise FerryError(f"delay_max_s is {delay_max_s} s; expected a finite number >= 0")
        self.robot = robot
        self.num = num
        self.delay_max_s = delay_max_s
        self.terrain = terrain
        urdf = prepare(robot)
        self.bodies, links = moving_bodies(robot, urdf)
        plan = make_blueprint(robot, urdf, links, least_armature, delay_max_s)
        own = own_parameters(robot, len(self.bodies), friction)
        if terrain is not None:
            plan = replace(plan, terrain=terrain.config.model_dump())
            own["ground"] = np.zeros(2)  # middle of the tile that a world is on
        self.parameters = {name: np.tile(values, (num, 1)) for name, values in own.items()}
        self._stale: NDArray[np.bool_] = np.zeros(num, dtype=bool)
        self._blocks: list[Here | Worker] = []
        self._rows = [np.arange(num)]
        if processes is not None:
            count = processes or len(os.sched_getaffinity(0))
            self._rows = [rows for rows in np.array_split(np.arange(num), count) if rows.size]
        try:
            for i, rows in enumerate(self._rows):
                self._blocks.append(self._start(plan, i, rows, processes, timeout_s))
            for block in self._blocks:
                block.ready()
        except BaseException:
            self.close()
            raise
        self._state = blank_state(num, len(robot.joints), len(robot.feet))
        self.reset(np.arange(num), InitialState.default(robot, num))

    def _start(
        self, plan: Blueprint, index: int, rows: Ids, processes: int | None, timeout_s: float
    ) -> Here | Worker:
        own = {name: values[rows] for name, values in self.parameters.items()}
        if processes is None:
            return Here(plan, own)
        name = f"PyBullet worker {index} (worlds {rows[0]} to {rows[-1]})"
        return Worker(plan, own, name=name, timeout_s=timeout_s)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers; empty where the worlds are in this process."""
        return [block.pid for block in self._blocks if isinstance(block, Worker)]

    # -------------------------------------------------------------- stepping

    def step(self, q_des: Array, *, substeps: int | None = None) -> None:
        """Track joint targets ``[N, A]`` with the robot's gains; see :class:`sim.engine.Engine`."""
        command = JointCommand.position(
            np.zeros(self.num, dtype=np.int64),
            np.asarray(q_des, dtype=np.float64),
            kp=self.robot.actuated_array("kp"),
            kd=self.robot.actuated_array("kd"),
        )
        self.apply(command, substeps=substeps)

    def apply(self, command: JointCommand, *, substeps: int | None = None) -> None:
        """Follow a whole command ``[N, A]``; see :class:`sim.engine.Engine`."""
        expected = (self.num, len(self.robot.actuated))
        if command.q_des.shape != expected:
            raise FerryError(f"command has shape {command.q_des.shape}; expected [N, A] {expected}")
        steps = np.array(self.robot.substeps if substeps is None else substeps)
        names = ("q_des", "dq_des", "tau_ff", "kp", "kd")
        targets = {f"targets.{name}": getattr(command, name) for name in names}
        self._flush()
        asked = [{n: v[rows] for n, v in targets.items()} | {"steps": steps} for rows in self._rows]
        self._state = blank_state(self.num, len(self.robot.joints), len(self.robot.feet))
        self._take("run", dict(enumerate(asked)), dict(enumerate(self._rows)))

    def add_velocity(self, rows: Ids, lin_w: Array, ang_b: Array) -> None:
        """Push the floating bases of worlds ``rows``; see :class:`sim.engine.Engine`."""
        if self.robot.base == "fixed":
            raise FerryError(f"robot {self.robot.name!r} has a fixed base, which nothing can push")
        self._state = copied(self._state)
        self._on_rows("push", rows, {"lin_w": lin_w, "ang_b": ang_b})

    def set_parameter(self, name: str, rows: Ids, values: Array) -> None:
        """Give worlds ``rows`` ``values [n, K]`` of one of :func:`own_parameters`.

        In force from the next step or reset on; a centre of mass from the next reset on.
        """
        self.parameters[name][rows] = values
        self._stale[rows] = True

    def refresh_constants(self, rows: Ids) -> None:
        """Nothing: PyBullet derives nothing in advance."""

    def _flush(self) -> None:
        """Send parameters that changed within an episode."""
        rows = np.flatnonzero(self._stale)
        if rows.size:
            self._stale[rows] = False
            self._on_rows("apply", rows, self._own(rows))

    def _own(self, rows: Ids) -> Arrays:
        return {f"parameters.{name}": values[rows] for name, values in self.parameters.items()}

    def facts(self, row: int = 0) -> dict[str, Array]:
        """What PyBullet made of the robot, as it stands in world ``row``.

        ``mass [L]``, ``moments [L, 3]``, ``com_w [L, 3]``, ``quat_w [L, 4]`` of every link with
        mass, axes of inertia in the world; ``joint_inertia [J, J]``, without armature;
        ``limits [J, 2]`` of positions.
        """
        (index,) = (i for i, rows in enumerate(self._rows) if row in rows)
        asked = {"row": np.array(row - self._rows[index][0])}
        answer = self._ask("facts", {index: asked})[index]
        return {name: np.asarray(values, dtype=np.float64) for name, values in answer.items()}

    # -------------------------------------------------------------- resetting and reading

    def reset(self, rows: Ids, start: InitialState) -> None:
        """Build worlds ``rows`` again from nothing and put the robots where ``start`` says."""
        if start.q.shape[0] != rows.size:
            raise ValueError(f"{rows.size} worlds to reset, but {start.q.shape[0]} initial states")
        if self.terrain is not None:
            tiles = self.terrain.tile_at(start.position_w[:, :2])
            self.parameters["ground"][rows] = self.terrain.centre(*tiles)
        names = ("q", "dq", "position_w", "quat_wb", "lin_vel_b", "ang_vel_b")
        given = {f"start.{name}": getattr(start, name) for name in names}
        self._stale[rows] = False
        self._state = copied(self._state)
        self._on_rows("reset", rows, given | self._own(rows))

    def state(self) -> WorldState:
        """The state after the last step or reset; its arrays are written to by nobody."""
        world = self._state
        if self.terrain is None:
            return world
        below = self.terrain.ground(world.position_w, world.foot_position_w)
        return replace(world, ground_w=below)

    def renew_state(self, world: WorldState, rows: Ids) -> WorldState:
        """See :class:`sim.engine.Engine`; a reset has written what it changed."""
        return self.state()

    def _on_rows(self, call: str, rows: Ids, given: Arrays) -> None:
        """A call that concerns some worlds only: each process gets its own."""
        asked: dict[int, Arrays] = {}
        written: dict[int, Ids] = {}
        for i, own in enumerate(self._rows):
            mine = np.flatnonzero((rows >= own[0]) & (rows <= own[-1]))
            if mine.size:
                asked[i] = {n: v[mine] for n, v in given.items()} | {"rows": rows[mine] - own[0]}
                written[i] = rows[mine]
        self._take(call, asked, written)

    def _take(self, call: str, asked: dict[int, Arrays], written: dict[int, Ids]) -> None:
        """Ask all first, so that processes work side by side; write the states they answer."""
        for i, answer in self._ask(call, asked).items():
            for name, values in state_arrays(self._state).items():
                if name in answer:
                    values[written[i]] = answer[name]

    def _ask(self, call: str, asked: dict[int, Arrays]) -> dict[int, Arrays]:
        if not self._blocks:
            raise FerryError("PyBullet engine: used after close(), or after a worker failed")
        try:
            for i, arrays in asked.items():
                self._blocks[i].ask(call, arrays)
            return {i: self._blocks[i].answer() for i in asked}
        except BaseException:
            self.close()  # the other processes are in the middle of something
            raise

    # -------------------------------------------------------------- keeping

    def state_dict(self) -> State:
        """Everything a bit-exact continuation needs, copied: about 70 kB a world."""
        self._flush()
        answers = self._ask("save", {i: {} for i in range(len(self._blocks))})
        out: State = {
            name: np.concatenate([answers[i][name] for i in sorted(answers)])
            for name in ("bullet", "sizes", "beside")
        }
        out |= {f"state/{name}": v.copy() for name, v in state_arrays(self._state).items()}
        return out | {f"own/{name}": values.copy() for name, values in self.parameters.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue where :meth:`state_dict` was taken, in an engine of the same robot and N.

        The number of processes may be another.

        Raises:
            FerryError: the state is of another engine, robot, number of worlds or longest delay.
        """
        motors, slots = len(self.robot.actuated), delay_slots(self.robot, self.delay_max_s) + 1
        expected = (self.num, 4 + motors + slots * motors)
        found = state["beside"].shape if "beside" in state else None
        if found != expected:
            raise FerryError(
                f"engine state is of shape {found}; expected {expected} for {self.num} PyBullet "
                f"worlds of {self.robot.name!r} with delays up to {self.delay_max_s} s"
            )
        for name, values in self.parameters.items():
            values[...] = state[f"own/{name}"]
        self._stale[:] = False
        ends = np.concatenate([[0], np.cumsum(state["sizes"])])
        asked = {
            i: self._own(rows)
            | {
                "bullet": state["bullet"][ends[rows[0]] : ends[rows[-1] + 1]],
                "sizes": state["sizes"][rows],
                "beside": state["beside"][rows],
            }
            for i, rows in enumerate(self._rows)
        }
        self._ask("load", asked)
        # As it was: what the last step did not leave in a world cannot be read from it again.
        self._state = copied(self._state)
        for name, values in state_arrays(self._state).items():
            values[...] = state[f"state/{name}"]

    def close(self) -> None:
        """End all processes and disconnect every world. May be called twice."""
        for block in self._blocks:
            block.close()
        self._blocks = []
