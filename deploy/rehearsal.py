"""One run of a rehearsal: robot in simulated time, messages on their way, the comparison."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from deploy.channel import Channel, Disturbance
from deploy.checks import upright
from deploy.rehearsal_score import score_of
from deploy.robot_loop import RobotLoop
from deploy.schedule import Schedule
from deploy.sim_world import begun_anew
from real.errors import FerryError
from real.robot_io import load_plugin
from real.signals import RobotState

if TYPE_CHECKING:  # it needs ROS 2, and this file does not
    from deploy.rehearsal_process import RehearsalNode

Array = NDArray[np.float64]

#: Arming is tried for so long [s].
PATIENCE_S = 60.0
#: Control periods without a command until the robot stops by itself; as robot_node's own.
TIMEOUT_PERIODS = 3.0
#: Cosine of the tilt beyond which a robot has fallen, 1.0 rad.
FALLEN = float(np.cos(1.0))


class Rehearsal:
    """One run: the robot in simulated time, the nodes by :class:`RehearsalNode`."""

    def __init__(self, node: RehearsalNode, plan: dict[str, Any]) -> None:
        self._node, self._plan = node, plan
        self._spec = node.spec
        rngs = np.random.default_rng(plan["seed"]).spawn(2)
        how = Disturbance(plan["latency_s"], plan["jitter_s"], plan["loss"])
        self._states: Channel[RobotState] = Channel(how, rngs[0])
        self._targets: Channel[Array | None] = Channel(how, rngs[1])
        self.difference, self.samples = 0.0, 0
        self.falls, self.stops = 0, list[str]()
        self._begun = 0
        self._score = score_of(node.shadow.contract, dt_s=self._spec.physics_dt_s)

    def _begin(self) -> tuple[RobotLoop, Any, RobotState]:
        """A robot that stands, armed: with nothing lost or late on the way."""
        node = self._node
        plugin = self._plan["plugin"]
        options = begun_anew(plugin, self._plan["options"], self._begun)
        robot = load_plugin(plugin, self._spec, options=options)
        self._begun += 1
        self._states.clear()
        self._targets.clear()
        timeout_s = TIMEOUT_PERIODS * self._spec.control_dt_s
        loop = RobotLoop(
            robot,
            self._spec,
            command_timeout_s=timeout_s,
            publish=lambda _state: None,
            clock=lambda: self._node.now_ns,
        )
        state, deadline = self._stamped(robot.start()), time.monotonic() + PATIENCE_S
        while True:
            state = self._step(loop, state)
            if not node.frame:  # without a target an arm stays where it is
                node.drive(np.zeros(node.shadow.contract.command.dim))
            node.tell(state)
            refused = node.arm(state) if node.commands else "no /joint_command has come"
            if not refused:
                return loop, robot, self._step(loop, state)
            if time.monotonic() > deadline:
                robot.close()
                raise FerryError(f"rehearsal: arming is refused: {refused}")

    def _stamped(self, state: RobotState) -> RobotState:
        return dataclasses.replace(state, stamp_ns=np.array([self._node.now_ns], dtype=np.int64))

    def _step(self, loop: RobotLoop, state: RobotState) -> RobotState:
        state = loop.step(state)
        self._node.now_ns += round(self._spec.physics_dt_s * 1e9)
        return self._stamped(state)

    def play(self, schedule: Schedule) -> dict[str, Any]:
        """Run the schedule; a robot that stops is replaced by one that stands."""
        steps = round(schedule.seconds / self._spec.physics_dt_s)
        loop, robot, state = self._begin()
        try:
            for step in range(steps):
                row = int(step * self._spec.physics_dt_s / schedule.dt_s + 1e-9)
                command = schedule.commands[min(row, schedule.commands.shape[0] - 1)]
                stopped = self._exchange(loop, state, command)
                state = self._step(loop, state)
                fell = self._fell(state)
                if stopped or fell:
                    self.falls += int(fell)
                    self.stops.append(f"{step * self._spec.physics_dt_s:.2f} s: {self._why(fell)}")
                    self._score.miss(command)
                    self._node.safety_stop()
                    robot.close()
                    loop, robot, state = self._begin()
                else:
                    seen = self._node.order.state(state)
                    self._score.add(command, seen, robot.ground_truth())
        finally:
            robot.close()
        return self.result(schedule)

    def _exchange(self, loop: RobotLoop, state: RobotState, command: Array) -> bool:
        """Everything on the wire at this moment; whether the nodes say stop."""
        node, stopped = self._node, False
        self._states.send(self._node.now_ns, state)
        for heard in self._states.arrived(self._node.now_ns):
            node.drive(command)
            if node.tell(heard):
                stamp = int(heard.stamp_ns[0])
                targets = node.answer(stamp)
                self._compare(heard, command, targets)
                stopped = stopped or targets is None
                self._targets.send(self._node.now_ns, targets)
        for targets in self._targets.arrived(self._node.now_ns):
            loop.command(targets)
        return stopped

    def _compare(self, state: RobotState, command: Array, targets: Array | None) -> None:
        node, seen = self._node, self._node.order.state(state)
        tick = node.shadow.tick(int(state.stamp_ns[0]), seen, command[None])
        self.samples += 1
        if (targets is None) != bool(tick.safety.stop[0]):
            self.difference = float("inf")
        elif targets is not None:
            apart = float(np.abs(targets - node.order.targets(tick.command.q_des[0])).max())
            self.difference = max(self.difference, apart)

    def _fell(self, state: RobotState) -> bool:
        """Whether it lies; what is bolted to its place cannot."""
        return self._spec.base != "fixed" and not float(upright(state.quat_wb)[0]) >= FALLEN

    def _why(self, fell: bool) -> str:
        return "fell" if fell else self._node.reason()

    def result(self, schedule: Schedule) -> dict[str, Any]:
        """What :func:`deploy.rehearse.rehearse` reads."""
        return {
            "samples": self.samples,
            "max_difference": self.difference,
            "falls": self.falls,
            "stops": self.stops,
            **self._score.result(),
            "lost": self._states.lost + self._targets.lost,
            "seconds": schedule.seconds,
        }
