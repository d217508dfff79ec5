"""N worlds of one robot in PyBullet: the second opinion on a policy trained in MuJoCo.

Same robot, same plane, same arrays as the training engine. What differs, knowingly:

* Rotor inertia (``JointSpec.armature``) does not exist here for the joints of a URDF.
* Contacts are solved by sequential impulses and are hard; MuJoCo's are soft.
* Servo torques are held for a solver step of at most 1 ms, shorter where a light joint needs it;
  MuJoCo integrates their damping implicitly.
* Dry joint friction is a velocity motor with target zero and that much effort.
* The accelerometer is the change of velocity over the last physics step, hence an average.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.signals import JointCommand, RobotState
from real.spec import RobotSpec
from sim.engine import FLOOR_FRICTION, Ids, InitialState, WorldState
from sim.pybullet_world import PyBulletWorld, Targets
from sim.urdf import imu_position, prepare

Array = NDArray[np.float64]


class PyBulletEngine:
    """Implements :class:`sim.engine.Engine`: one PyBullet client and one robot per world.

    Attributes:
        robot: the robot in every world.
        num: N.
    """

    def __init__(self, robot: RobotSpec, num: int = 1, *, friction: float = FLOOR_FRICTION) -> None:
        """Load the robot ``num`` times, each in the default pose.

        Args:
            robot: the robot in every world.
            num: N, at most about 1000 clients per process.
            friction: contact friction of robot and floor.

        Raises:
            FerryError: the description or a number is wrong; see :func:`sim.urdf.prepare`.
        """
        if num < 1:
            raise FerryError(f"number of worlds is {num}; expected at least 1")
        if not friction >= 0.0:
            raise FerryError(f"friction is {friction}; expected a number >= 0")
        self.robot = robot
        self.num = num
        urdf = prepare(robot)
        imu = imu_position(robot, urdf)
        self._folder = tempfile.TemporaryDirectory(prefix="ferry_")
        self._worlds: list[PyBulletWorld] = []
        file = Path(self._folder.name) / f"{robot.name}.urdf"
        file.write_text(urdf.xml(visuals=False), encoding="utf-8")
        try:
            for _ in range(num):
                self._worlds.append(PyBulletWorld(robot, file, imu, friction=friction))
        except BaseException:
            self.close()
            raise

    def reset(self, rows: Ids, start: InitialState) -> None:
        """Build worlds ``rows`` again from nothing and put the robots where ``start`` says."""
        for i, row in enumerate(rows):
            self._worlds[int(row)].reset(start, i)

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
        steps = self.robot.substeps if substeps is None else substeps
        for i, world in enumerate(self._worlds):
            targets = Targets(
                q_des=command.q_des[i],
                dq_des=command.dq_des[i],
                tau_ff=command.tau_ff[i],
                kp=command.kp[i],
                kd=command.kd[i],
            )
            for _ in range(steps):
                world.step(targets)

    def state(self) -> WorldState:
        """The state after the last step or reset, in fresh arrays."""
        num, feet = self.num, len(self.robot.feet)
        state = WorldState(
            robot=RobotState.zeros(num, len(self.robot.joints)),
            position_w=np.zeros((num, 3)),
            lin_vel_b=np.zeros((num, 3)),
            foot_position_w=np.zeros((num, feet, 3)),
            foot_velocity_w=np.zeros((num, feet, 3)),
            foot_contact=np.zeros((num, feet), dtype=bool),
            body_contact=np.zeros(num, dtype=bool),
            diverged=np.zeros(num, dtype=bool),
        )
        for row, world in enumerate(self._worlds):
            world.read(state, row)
        return state

    def close(self) -> None:
        """Disconnect every world and remove the prepared file. May be called twice."""
        for world in self._worlds:
            world.close()
        self._folder.cleanup()
