"""One robot on a plane in a PyBullet client of its own: loading, stepping, reading."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pybullet
from numpy.typing import NDArray

from real.errors import FerryError
from real.frames import IDENTITY, normalize, rotate, rotate_inverse
from real.spec import RobotSpec
from sim.engine import GRAVITY, InitialState, WorldState
from sim.inertia import Pose
from sim.urdf import BASE_FRAME, UNLIMITED

Array = NDArray[np.float64]

# Closer than this is touching [m]: Bullet also reports points that are only near.
_TOUCH_M = 1e-4
# Faster than this is an explosion, not a robot [m/s, rad/s].
_DIVERGED_SPEED = 1e3
# Solver steps are at most this long [s] and at most this many per physics step.
_MAX_STEP_S = 0.001
_MAX_STEPS = 50
# PyBullet's index of the base, which is no "link" there.
_BASE = -1


@dataclass(frozen=True)
class Targets:
    """What the servos of one robot follow, each ``[A]``; see :class:`real.signals.JointCommand`."""

    q_des: Array
    dq_des: Array
    tau_ff: Array
    kp: Array
    kd: Array


class PyBulletWorld:
    """A robot in its own client, so that worlds cannot touch one another."""

    def __init__(self, robot: RobotSpec, file: Path, imu: Array, *, friction: float) -> None:
        """Load the robot in the default pose.

        Args:
            robot: the robot.
            file: its prepared URDF; read again at every reset.
            imu: ``[3]`` position of the IMU in the base frame [m].
            friction: contact friction of robot and floor.

        Raises:
            FerryError: PyBullet cannot load it, or a joint is too light for its damping gain.
        """
        self._robot = robot
        self._file = file
        self._imu = imu
        self._friction = friction
        self._inner = 0  # solver steps per physics step, chosen once the robot is loaded
        self._tau_max = robot.actuated_array("tau_max")
        self._time_ns = 0
        self._tau = np.zeros(len(robot.actuated))
        self._client = pybullet.connect(pybullet.DIRECT)
        if self._client < 0:
            raise FerryError("PyBullet has no more clients; build fewer worlds or close engines")
        self.reset(InitialState.default(robot, 1), 0)

    def reset(self, start: InitialState, row: int) -> None:
        """Empty the client, load everything again and place the robot at row ``row`` of start."""
        self._load()
        if self._robot.base == "floating":
            self._place_base(start, row)
        else:
            height = np.array([0.0, 0.0, self._robot.base_height_m])
            self._put_base(Pose(height, IDENTITY))
        for joint, q, dq in zip(self._joints, start.q[row], start.dq[row], strict=True):
            pybullet.resetJointState(self._body, joint, q, dq, physicsClientId=self._client)
        pybullet.performCollisionDetection(physicsClientId=self._client)
        self._time_ns = 0
        self._tau = np.zeros(len(self._actuated))
        self._before = self._imu_velocity()

    def step(self, targets: Targets) -> None:
        """One physics step of the servos tau = kp (q_des - q) + kd (dq_des - dq) + tau_ff."""
        client, body, actuated = self._client, self._body, self._actuated
        self._before = self._imu_velocity()
        for _ in range(self._inner):
            if not actuated:  # nothing to command, and PyBullet answers None to an empty list
                pybullet.stepSimulation(physicsClientId=client)
                continue
            states = pybullet.getJointStates(body, actuated, physicsClientId=client)
            q = np.array([s[0] for s in states])
            dq = np.array([s[1] for s in states])
            tau = targets.kp * (targets.q_des - q) + targets.kd * (targets.dq_des - dq)
            self._tau = np.clip(tau + targets.tau_ff, -self._tau_max, self._tau_max)
            pybullet.setJointMotorControlArray(
                body,
                actuated,
                pybullet.TORQUE_CONTROL,
                forces=self._tau.tolist(),
                physicsClientId=client,
            )
            pybullet.stepSimulation(physicsClientId=client)
        self._time_ns += round(self._robot.physics_dt_s * 1e9)

    def read(self, into: WorldState, row: int) -> None:
        """Write the state into row ``row`` of a :class:`WorldState`'s arrays."""
        base, lin_w, ang_w = self._base()
        states = pybullet.getJointStates(self._body, self._joints, physicsClientId=self._client)
        robot = into.robot
        robot.stamp_ns[row] = self._time_ns
        robot.q[row] = [s[0] for s in states]
        robot.dq[row] = [s[1] for s in states]
        robot.tau[row, self._robot.actuated_ids] = self._tau
        robot.quat_wb[row] = base.quat
        robot.gyro_b[row] = rotate_inverse(base.quat, ang_w)
        # Specific force: what an accelerometer feels is acceleration minus gravity.
        change = np.zeros(3) if self._time_ns == 0 else self._imu_velocity() - self._before
        felt_w = change / self._robot.physics_dt_s + np.array([0.0, 0.0, GRAVITY])
        robot.acc_b[row] = rotate_inverse(base.quat, felt_w)
        into.position_w[row] = base.position
        into.lin_vel_b[row] = rotate_inverse(base.quat, lin_w)
        self._read_feet(into, row)
        into.diverged[row] = self._diverged(robot.q[row], robot.dq[row], base, lin_w, ang_w)

    def close(self) -> None:
        """Disconnect. May be called twice."""
        if self._client >= 0:
            pybullet.disconnect(physicsClientId=self._client)
            self._client = -1

    # -------------------------------------------------------------- loading

    def _load(self) -> None:
        client = self._client
        pybullet.resetSimulation(physicsClientId=client)
        pybullet.setGravity(0.0, 0.0, -GRAVITY, physicsClientId=client)
        pybullet.setPhysicsEngineParameter(deterministicOverlappingPairs=1, physicsClientId=client)
        plane = pybullet.createCollisionShape(pybullet.GEOM_PLANE, physicsClientId=client)
        self._floor = pybullet.createMultiBody(0.0, plane, physicsClientId=client)
        try:
            # Without the flag inertias are recomputed from the collision shapes. There is no
            # self-collision unless another flag asks for it.
            self._body: int = pybullet.loadURDF(
                str(self._file),
                useFixedBase=self._robot.base == "fixed",
                flags=pybullet.URDF_USE_INERTIA_FROM_FILE,
                physicsClientId=client,
            )
        except pybullet.error as error:
            raise FerryError(
                f"{self._robot.description_file()}: PyBullet cannot load it: {error}"
            ) from error
        self._find()
        self._prepare()
        if self._inner == 0:
            self._inner = self._solver_steps()
        dt = self._robot.physics_dt_s / self._inner
        pybullet.setTimeStep(dt, physicsClientId=client)

    def _find(self) -> None:
        """Look joints and links up by name: their order in the file means nothing."""
        count = pybullet.getNumJoints(self._body, physicsClientId=self._client)
        infos = [
            pybullet.getJointInfo(self._body, i, physicsClientId=self._client) for i in range(count)
        ]
        joints = {info[1].decode(): i for i, info in enumerate(infos)}
        links = {info[12].decode(): i for i, info in enumerate(infos)} | {BASE_FRAME: _BASE}
        self._links = range(_BASE, count)
        self._joints: list[int] = [joints[j.name] for j in self._robot.joints]
        self._actuated: list[int] = [joints[j.name] for j in self._robot.actuated]
        self._feet: list[int] = [links[f] for f in self._robot.feet]
        base = pybullet.getDynamicsInfo(self._body, _BASE, physicsClientId=self._client)
        # PyBullet's "base position" is the frame of the principal axes in the centre of mass.
        self._com = Pose(np.array(base[3]), _wxyz(base[4]))

    def _prepare(self) -> None:
        """Switch off what PyBullet adds unasked: damping, velocity motors, velocity limits."""
        client, body = self._client, self._body
        # One call a topic: a call with `linearDamping` ignores the friction of a link beside it.
        pybullet.changeDynamics(
            body, _BASE, linearDamping=0.0, angularDamping=0.0, physicsClientId=client
        )
        friction = {"spinningFriction": 0.0, "rollingFriction": 0.0, "restitution": 0.0}
        for link in self._links:
            # The friction of a contact is the product of both bodies'.
            pybullet.changeDynamics(
                body, link, lateralFriction=1.0, physicsClientId=client, **friction
            )
        pybullet.changeDynamics(
            self._floor, _BASE, lateralFriction=self._friction, physicsClientId=client, **friction
        )
        for index, joint in zip(self._joints, self._robot.joints, strict=True):
            pybullet.changeDynamics(body, index, maxJointVelocity=UNLIMITED, physicsClientId=client)
            pybullet.changeDynamics(body, index, jointDamping=joint.damping, physicsClientId=client)
            # Every joint is born with a velocity motor; with the effort of the dry friction it
            # is one, with zero effort it is off.
            pybullet.setJointMotorControl2(
                body,
                index,
                pybullet.VELOCITY_CONTROL,
                targetVelocity=0.0,
                force=joint.friction,
                physicsClientId=client,
            )

    def _solver_steps(self) -> int:
        """Solver steps per physics step, so short that servo damping cannot overshoot.

        Torques are held during a solver step, so a joint of inertia I loses the share kd dt / I of
        its velocity in one; beyond 1 it overshoots, beyond 2 it explodes.
        """
        if not self._actuated:
            return _steps(self._robot.physics_dt_s, _MAX_STEP_S)
        inertia = self._joint_inertia()
        kd = np.maximum(self._robot.actuated_array("kd"), self._robot.damping_kd)
        with np.errstate(divide="ignore"):
            longest = inertia / kd  # [A]
        steps = _steps(self._robot.physics_dt_s, min(_MAX_STEP_S, float(longest.min())))
        if steps > _MAX_STEPS:
            worst = int(longest.argmin())
            raise FerryError(
                f"{self._robot.source}: joint {self._robot.actuated[worst].name!r}: damping gain "
                f"{kd[worst]:g} (kd or damping_kd) on an inertia of {inertia[worst]:.3g} needs "
                f"solver steps of {longest[worst]:.2g} s in PyBullet, which knows no rotor "
                f"inertia; expected at least {self._robot.physics_dt_s / _MAX_STEPS:.2g} s: lower "
                "the gain or simulate in MuJoCo"
            )
        return steps

    def _joint_inertia(self) -> Array:
        """``[A]`` inertia that a motor feels in the default pose, everything else free to move."""
        client = self._client
        default = dict(zip(self._joints, self._robot.q_default, strict=True))
        movable = sorted(self._joints)  # PyBullet's order: by index, fixed joints left out
        matrix = pybullet.calculateMassMatrix(
            self._body, [default[joint] for joint in movable], physicsClientId=client
        )
        felt = 1.0 / np.diag(np.linalg.inv(np.array(matrix)))[-len(movable) :]
        return np.array([felt[movable.index(joint)] for joint in self._actuated])

    def _place_base(self, start: InitialState, row: int) -> None:
        base = Pose(start.position_w[row], normalize(start.quat_wb[row]))
        arm = self._put_base(base)
        lin_w = rotate(base.quat, start.lin_vel_b[row])
        ang_w = rotate(base.quat, start.ang_vel_b[row])
        # PyBullet wants the velocity of the centre of mass: v_com = v + w x r
        pybullet.resetBaseVelocity(
            self._body, lin_w + np.cross(ang_w, arm), ang_w, physicsClientId=self._client
        )

    def _put_base(self, base: Pose) -> Array:
        """Place the base frame; returns the way from it to the centre of mass, world frame [m]."""
        com = base.then(self._com)
        pybullet.resetBasePositionAndOrientation(
            self._body, com.position, com.quat[[1, 2, 3, 0]], physicsClientId=self._client
        )
        return com.position - base.position

    # -------------------------------------------------------------- reading

    def _base(self) -> tuple[Pose, Array, Array]:
        """Pose of the base frame, its linear and its angular velocity in the world frame."""
        position, quat = pybullet.getBasePositionAndOrientation(
            self._body, physicsClientId=self._client
        )
        lin_w, ang_w = pybullet.getBaseVelocity(self._body, physicsClientId=self._client)
        base = Pose(np.array(position), _wxyz(quat)).then(self._com.inverse())
        # v = v_com + w x (p - p_com)
        lin: Array = np.array(lin_w) + np.cross(np.array(ang_w), base.position - np.array(position))
        return base, lin, np.array(ang_w)

    def _imu_velocity(self) -> Array:
        """``[3]`` in the world frame [m/s]."""
        base, lin_w, ang_w = self._base()
        return lin_w + np.cross(ang_w, rotate(base.quat, self._imu))

    def _read_feet(self, into: WorldState, row: int) -> None:
        touching: set[int] = set()
        points: list[Any] = pybullet.getContactPoints(
            self._body, self._floor, physicsClientId=self._client
        )
        for point in points:
            if point[8] <= _TOUCH_M or point[9] > 0.0:  # distance [m], normal force [N]
                touching.add(point[3])
        into.foot_contact[row] = [foot in touching for foot in self._feet]
        into.body_contact[row] = bool(touching.difference(self._feet))
        if not self._feet:
            return
        states = pybullet.getLinkStates(
            self._body,
            self._feet,
            computeLinkVelocity=1,
            computeForwardKinematics=1,
            physicsClientId=self._client,
        )
        com, frame, lin, ang = (np.array([s[i] for s in states]) for i in (0, 4, 6, 7))
        into.foot_position_w[row] = frame
        # The reported velocity is that of the centre of mass: v = v_com + w x (p - p_com)
        into.foot_velocity_w[row] = lin + np.cross(ang, frame - com)

    def _diverged(self, q: Array, dq: Array, base: Pose, lin_w: Array, ang_w: Array) -> bool:
        speeds = np.concatenate([dq, lin_w, ang_w])
        numbers = np.concatenate([q, base.position, base.quat])
        # Written so that NaN counts as diverged.
        return not (np.isfinite(numbers).all() and (np.abs(speeds) < _DIVERGED_SPEED).all())


def _steps(duration: float, longest: float) -> int:
    return math.ceil(duration / longest - 1e-9)


def _wxyz(quat: tuple[float, float, float, float]) -> Array:
    return np.array(quat)[[3, 0, 1, 2]]
