"""One robot on its floor in a PyBullet client of its own: starting, stepping, reading, keeping."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pybullet
from numpy.typing import NDArray

from real.errors import FerryError
from real.frames import IDENTITY, Pose, normalize, rotate, rotate_inverse
from sim.engine import GRAVITY, InitialState, WorldState
from sim.pybullet_body import Body, wxyz
from sim.pybullet_plan import Blueprint, Parameters
from sim.terrain import Terrain
from sim.urdf import BASE_FRAME, urdf_text

Array = NDArray[np.float64]

# Closer than this is touching [m]: Bullet also reports points that are only near.
_TOUCH_M = 1e-4
# Faster than this is an explosion, not a robot [m/s, rad/s].
_DIVERGED_SPEED = 1e3


@dataclass(frozen=True)
class Targets:
    """What the servos of one robot follow, each ``[A]``; see :class:`real.signals.JointCommand`."""

    q_des: Array
    dq_des: Array
    tau_ff: Array
    kp: Array
    kd: Array


class PyBulletWorld:
    """A robot in its own client, so that worlds cannot touch one another.

    Args:
        plan: the robot.
        folder: where the world writes the files that PyBullet reads.
        parameters: its own, one row of each.
        name: of its files in the folder.
        terrain: what it stands on, on the tile about ``parameters["ground"]``; a plane if None.

    Raises:
        FerryError: PyBullet cannot load it, or a joint is too light for its damping gain.
    """

    def __init__(
        self,
        plan: Blueprint,
        folder: Path,
        parameters: Parameters,
        *,
        name: str,
        terrain: Terrain | None = None,
    ) -> None:
        self._plan = plan
        self._terrain = terrain
        self._file = folder / f"{name}.urdf"
        self._kept = folder / f"{name}.bullet"
        self._com = np.full(3, np.nan)  # as in the file
        self._imu: Array = np.array(plan.imu)
        self._tau_max: Array = np.array(plan.tau_max)
        self._inner = 0  # solver steps per physics step, chosen once the robot is loaded
        self._client: int = pybullet.connect(pybullet.DIRECT)
        if self._client < 0:
            raise FerryError("PyBullet has no more clients; build fewer worlds or close engines")
        num_joints = len(plan.joints)
        start = InitialState(
            q=np.array([plan.q_default]),
            dq=np.zeros((1, num_joints)),
            position_w=np.array([[0.0, 0.0, plan.base_height_m]]),
            quat_wb=IDENTITY[None],
            lin_vel_b=np.zeros((1, 3)),
            ang_vel_b=np.zeros((1, 3)),
        )
        self.reset(start, 0, parameters)

    # -------------------------------------------------------------- starting

    def reset(self, start: InitialState, row: int, parameters: Parameters) -> None:
        """Empty the client, load everything again and place the robot at row ``row`` of start."""
        self._load(parameters)
        if self._plan.fixed:
            self._put_base(Pose(np.array([0.0, 0.0, self._plan.base_height_m]), IDENTITY))
        else:
            self._place_base(start, row)
        self._body.place_joints(start.q[row], start.dq[row])
        pybullet.performCollisionDetection(physicsClientId=self._client)
        self._time_ns = 0
        self._tau = np.zeros(len(self._plan.actuated))
        self._before = self._imu_velocity()
        # Targets of past steps, newest first; servos hold the start pose, also those that wait.
        held = start.q[row][self._plan.actuated].copy()
        slots = self._plan.delay_slots + 1
        self._past: deque[Array] = deque([held] * slots, maxlen=slots)

    def _load(self, parameters: Parameters) -> None:
        client = self._client
        self._write_file(parameters["com"])
        pybullet.resetSimulation(physicsClientId=client)
        pybullet.setGravity(0.0, 0.0, -GRAVITY, physicsClientId=client)
        pybullet.setPhysicsEngineParameter(deterministicOverlappingPairs=1, physicsClientId=client)
        ground = (self._terrain, parameters.get("ground"))
        self._body = Body(client, self._plan, self._file, terrain=ground[0], centre=ground[1])
        if self._inner == 0:
            self._inner = self._body.solver_steps()
        dt = self._plan.physics_dt_s / self._inner
        pybullet.setTimeStep(dt, physicsClientId=client)
        self.apply(parameters)

    def apply(self, parameters: Parameters) -> None:
        """Put parameters in force; a new centre of mass waits for the next reset."""
        self._parameters = parameters
        self._body.apply(parameters)
        late = float(parameters["delay_s"][0]) / self._plan.physics_dt_s
        self._late = math.ceil(late - 1e-9)

    def _write_file(self, com: Array) -> None:
        """PyBullet moves no centre of mass of a loaded body, so the file says where it is."""
        if np.array_equal(com, self._com):
            return
        self._com = com.copy()
        text = self._plan.urdf
        if com.any():
            robot = ElementTree.fromstring(text)
            (base,) = (e for e in robot.findall("link") if e.get("name") == BASE_FRAME)
            origin = base.find("inertial/origin")
            assert origin is not None  # written by sim.urdf.prepare
            place = np.array(origin.get("xyz", "0 0 0").split(), dtype=np.float64) + com
            origin.set("xyz", " ".join(repr(float(v)) for v in place))
            text = urdf_text(robot)
        self._file.write_text(text, encoding="utf-8")
        # PyBullet remembers what it has read under a name; switched off, it forgets.
        for caching in (0, 1):
            pybullet.setPhysicsEngineParameter(
                enableFileCaching=caching, physicsClientId=self._client
            )

    def _place_base(self, start: InitialState, row: int) -> None:
        base = Pose(start.position_w[row], normalize(start.quat_wb[row]))
        self._put_base(base)
        lin_w = rotate(base.quat, start.lin_vel_b[row])
        ang_w = rotate(base.quat, start.ang_vel_b[row])
        self._set_base_velocity(base, lin_w, ang_w)

    def _put_base(self, base: Pose) -> None:
        com = base.then(self._body.com)
        pybullet.resetBasePositionAndOrientation(
            self._body.index, com.position, com.quat[[1, 2, 3, 0]], physicsClientId=self._client
        )

    def _set_base_velocity(self, base: Pose, lin_w: Array, ang_w: Array) -> None:
        arm = rotate(base.quat, self._body.com.position)
        # PyBullet wants the velocity of the centre of mass: v_com = v + w x r
        pybullet.resetBaseVelocity(
            self._body.index, lin_w + np.cross(ang_w, arm), ang_w, physicsClientId=self._client
        )

    # -------------------------------------------------------------- stepping

    def push(self, lin_w: Array, ang_b: Array) -> None:
        """Add to the velocity of the base, ``[3]`` world frame and ``[3]`` base frame."""
        base, lin, ang = self._base()
        self._set_base_velocity(base, lin + lin_w, ang + rotate(base.quat, ang_b))

    def run(self, targets: Targets, steps: int) -> None:
        """Physics steps under servos that follow ``targets``, each as late as the world's delay."""
        for left in range(steps, 0, -1):
            if left == 1:
                self._before = self._imu_velocity()
            self._past.appendleft(targets.q_des)
            self._step(targets, self._past[self._late])

    def _step(self, targets: Targets, q_des: Array) -> None:
        """One physics step; tau = strength clip(kp (q_des - q) + kd (dq_des - dq) + tau_ff)."""
        client, actuated, body = self._client, self._body.actuated, self._body.index
        self._time_ns += round(self._plan.physics_dt_s * 1e9)
        if not actuated:  # nothing to command, and PyBullet answers None to an empty list
            for _ in range(self._inner):
                pybullet.stepSimulation(physicsClientId=client)
            return
        own = self._parameters
        kp, kd = own["kp_scale"] * targets.kp, own["kd_scale"] * targets.kd
        constant = kp * q_des + kd * targets.dq_des + targets.tau_ff
        for _ in range(self._inner):
            states = pybullet.getJointStates(body, actuated, physicsClientId=client)
            q = np.array([s[0] for s in states])
            dq = np.array([s[1] for s in states])
            tau = np.clip(constant - kp * q - kd * dq, -self._tau_max, self._tau_max)
            self._tau = own["strength"] * tau
            pybullet.setJointMotorControlArray(
                body,
                actuated,
                pybullet.TORQUE_CONTROL,
                forces=self._tau.tolist(),
                physicsClientId=client,
            )
            pybullet.stepSimulation(physicsClientId=client)

    # -------------------------------------------------------------- reading

    def read(self, into: WorldState, row: int) -> None:
        """Write the state into row ``row`` of a :class:`WorldState`'s arrays."""
        base, lin_w, ang_w = self._base()
        states = pybullet.getJointStates(
            self._body.index, self._body.joints, physicsClientId=self._client
        )
        robot = into.robot
        robot.stamp_ns[row] = self._time_ns
        robot.q[row] = [s[0] for s in states]
        robot.dq[row] = [s[1] for s in states]
        robot.tau[row, self._plan.actuated] = self._tau
        robot.quat_wb[row] = base.quat
        robot.gyro_b[row] = rotate_inverse(base.quat, ang_w)
        # Specific force: what an accelerometer feels is acceleration minus gravity.
        change = np.zeros(3) if self._time_ns == 0 else self._imu_velocity() - self._before
        felt_w = change / self._plan.physics_dt_s + np.array([0.0, 0.0, GRAVITY])
        robot.acc_b[row] = rotate_inverse(base.quat, felt_w)
        into.position_w[row] = base.position
        into.lin_vel_b[row] = rotate_inverse(base.quat, lin_w)
        self._read_feet(into, row)
        into.diverged[row] = _diverged(robot.q[row], robot.dq[row], base, lin_w, ang_w)

    def _base(self) -> tuple[Pose, Array, Array]:
        """Pose of the base frame, its linear and its angular velocity in the world frame."""
        body, client = self._body.index, self._client
        position, quat = pybullet.getBasePositionAndOrientation(body, physicsClientId=client)
        lin_w, ang_w = pybullet.getBaseVelocity(body, physicsClientId=client)
        base = Pose(np.array(position), wxyz(quat)).then(self._body.com.inverse())
        # v = v_com + w x (p - p_com)
        lin: Array = np.array(lin_w) + np.cross(np.array(ang_w), base.position - np.array(position))
        return base, lin, np.array(ang_w)

    def _imu_velocity(self) -> Array:
        """``[3]`` in the world frame [m/s]."""
        base, lin_w, ang_w = self._base()
        return lin_w + np.cross(ang_w, rotate(base.quat, self._imu))

    def _read_feet(self, into: WorldState, row: int) -> None:
        touching: set[int] = set()
        body, feet = self._body, self._body.feet
        points: list[Any] = pybullet.getContactPoints(
            body.index, body.floor, physicsClientId=self._client
        )
        for point in points:
            if point[8] <= _TOUCH_M or point[9] > 0.0:  # distance [m], normal force [N]
                touching.add(point[3])
        into.foot_contact[row] = [foot in touching for foot in feet]
        into.body_contact[row] = bool(touching.difference(feet))
        if not feet:
            return
        states = pybullet.getLinkStates(
            body.index,
            feet,
            computeLinkVelocity=1,
            computeForwardKinematics=1,
            physicsClientId=self._client,
        )
        com, frame, lin, ang = (np.array([s[i] for s in states]) for i in (0, 4, 6, 7))
        into.foot_position_w[row] = frame
        # The reported velocity is that of the centre of mass: v = v_com + w x (p - p_com)
        into.foot_velocity_w[row] = lin + np.cross(ang, frame - com)

    def facts(self) -> dict[str, Array]:
        """What PyBullet made of the robot, as it stands: see :class:`~sim.pybullet_body.Body`."""
        states = pybullet.getJointStates(
            self._body.index, self._body.joints, physicsClientId=self._client
        )
        matrix = self._body.mass_matrix(np.array([state[0] for state in states]))
        joints = len(self._plan.joints)
        return {
            **self._body.links(),
            "joint_inertia": matrix[-joints:, -joints:],
            "limits": self._body.limits(),
        }

    # -------------------------------------------------------------- keeping

    def save(self) -> tuple[bytes, Array]:
        """Bullet's own state, contacts included, and ``[4 + A + S A]`` what it does not know.

        These are the time [ns], the velocity of the IMU before the last step, the efforts, and the
        targets of past steps.
        """
        pybullet.saveBullet(str(self._kept), physicsClientId=self._client)
        beside = np.concatenate([[float(self._time_ns)], self._before, self._tau, *self._past])
        return self._kept.read_bytes(), beside

    def load(self, content: bytes, beside: Array, parameters: Parameters) -> None:
        """Continue where :meth:`save` was called, bit by bit, in a world with these parameters.

        Raises:
            FerryError: PyBullet cannot read it.
        """
        self._load(parameters)
        self._kept.write_bytes(content)
        try:
            pybullet.restoreState(fileName=str(self._kept), physicsClientId=self._client)
        except pybullet.error as error:
            raise FerryError(f"PyBullet cannot restore a saved world: {error}") from error
        motors = len(self._plan.actuated)
        self._time_ns = int(beside[0])
        self._before = beside[1:4].copy()
        self._tau = beside[4 : 4 + motors].copy()
        past = beside[4 + motors :].reshape(self._plan.delay_slots + 1, motors)
        self._past = deque([row.copy() for row in past], maxlen=len(past))

    def close(self) -> None:
        """Disconnect. May be called twice."""
        if self._client >= 0:
            pybullet.disconnect(physicsClientId=self._client)
            self._client = -1


def _diverged(q: Array, dq: Array, base: Pose, lin_w: Array, ang_w: Array) -> bool:
    speeds = np.concatenate([dq, lin_w, ang_w])
    numbers = np.concatenate([q, base.position, base.quat])
    # Written so that NaN counts as diverged.
    return not (np.isfinite(numbers).all() and (np.abs(speeds) < _DIVERGED_SPEED).all())
