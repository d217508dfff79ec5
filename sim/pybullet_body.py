"""One robot and its floor loaded into a PyBullet client, and what a world has of its own."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pybullet
from numpy.typing import NDArray

from real.errors import FerryError
from real.frames import Pose
from sim.pybullet_ground import lay_floor
from sim.pybullet_plan import Blueprint, Parameters
from sim.rotors import GEAR, rotor_inertia, rotor_of
from sim.terrain import Terrain
from sim.urdf import BASE_FRAME, UNLIMITED

Array = NDArray[np.float64]

# Solver steps are at most this long [s] and at most this many per physics step.
_MAX_STEP_S = 0.001
_MAX_STEPS = 50
# PyBullet's index of the base, which is no "link" there.
BASE = -1
# A gear holds whatever acts on the joint.
_GEAR_FORCE = 1e9


class Body:
    """A robot as PyBullet knows it: by indices.

    Args:
        client: an empty client.
        plan: the robot.
        file: its URDF.
        terrain: what it stands on; a plane if None.
        centre: ``[2]`` middle of its tile of the terrain [m].

    Attributes:
        index: of the robot.
        floor: index of the floor.
        joints: ``[J]`` indices in the order of the robot.
        actuated: ``[A]``.
        feet: ``[F]``.
        com: the frame of the principal axes of the base in the base frame, which is what PyBullet
            calls the base's position and orientation.

    Raises:
        FerryError: PyBullet cannot load it.
    """

    def __init__(
        self,
        client: int,
        plan: Blueprint,
        file: Path,
        *,
        terrain: Terrain | None = None,
        centre: Array | None = None,
    ) -> None:
        self._client = client
        self._plan = plan
        self.floor: int = lay_floor(client, terrain, centre)
        try:
            # Without the flag inertias are recomputed from the collision shapes. There is no
            # self-collision unless another flag asks for it.
            self.index: int = pybullet.loadURDF(
                str(file),
                useFixedBase=plan.fixed,
                flags=pybullet.URDF_USE_INERTIA_FROM_FILE,
                physicsClientId=client,
            )
        except pybullet.error as error:
            raise FerryError(f"{plan.description}: PyBullet cannot load it: {error}") from error
        self._applied: Parameters = {}
        self._find()
        self._prepare()
        self._gear()

    def _find(self) -> None:
        """Look joints and links up by name: their order in the file means nothing."""
        body, client, plan = self.index, self._client, self._plan
        count = pybullet.getNumJoints(body, physicsClientId=client)
        infos = [pybullet.getJointInfo(body, i, physicsClientId=client) for i in range(count)]
        joints = {info[1].decode(): i for i, info in enumerate(infos)}
        links = {info[12].decode(): i for i, info in enumerate(infos)} | {BASE_FRAME: BASE}
        self._links = range(BASE, count)
        self.joints: list[int] = [joints[name] for name in plan.joints]
        self.actuated: list[int] = [self.joints[i] for i in plan.actuated]
        self.feet: list[int] = [links[f] for f in plan.feet]
        self._rotors = {name: joints[rotor_of(name)] for name in plan.geared}
        self._bodies = [[links[name] for name in names] for names in plan.bodies]
        dynamics = {
            link: pybullet.getDynamicsInfo(body, link, physicsClientId=client)
            for link in {BASE, *(link for links in self._bodies for link in links)}
        }
        self._weight: dict[int, tuple[float, Array]] = {
            link: (float(info[0]), np.array(info[2])) for link, info in dynamics.items()
        }
        self.com = Pose(np.array(dynamics[BASE][3]), wxyz(dynamics[BASE][4]))

    def _prepare(self) -> None:
        """Switch off what PyBullet adds unasked: damping, velocity motors, velocity limits."""
        client, body = self._client, self.index
        # One call a topic: a call with `linearDamping` ignores the friction of a link beside it.
        pybullet.changeDynamics(
            body, BASE, linearDamping=0.0, angularDamping=0.0, physicsClientId=client
        )
        friction = {"spinningFriction": 0.0, "rollingFriction": 0.0, "restitution": 0.0}
        for link in self._links:
            # The friction of a contact is the product of both bodies'.
            pybullet.changeDynamics(
                body, link, lateralFriction=1.0, physicsClientId=client, **friction
            )
        pybullet.changeDynamics(self.floor, BASE, physicsClientId=client, **friction)
        for joint in self.joints:
            pybullet.changeDynamics(body, joint, maxJointVelocity=UNLIMITED, physicsClientId=client)

    def _gear(self) -> None:
        """Couple rotors to their joints: dq + dq_rotor / GEAR = 0."""
        client, body = self._client, self.index
        for name, rotor in self._rotors.items():
            joint = self.joints[self._plan.joints.index(name)]
            pybullet.changeDynamics(body, rotor, maxJointVelocity=UNLIMITED, physicsClientId=client)
            self._hold_back(rotor, 0.0)
            gear = pybullet.createConstraint(
                body,
                joint,
                body,
                rotor,
                pybullet.JOINT_GEAR,
                [0.0, 0.0, 1.0],
                [0.0, 0.0, 0.0],
                [0.0, 0.0, 0.0],
                physicsClientId=client,
            )
            # Where a rotor stands means nothing, so nothing pulls it back to where it should be.
            pybullet.changeConstraint(
                gear, gearRatio=1.0 / GEAR, maxForce=_GEAR_FORCE, erp=0.0, physicsClientId=client
            )

    def _hold_back(self, joint: int, effort: float) -> None:
        """Dry friction: every joint is born with a velocity motor; without effort it is off."""
        pybullet.setJointMotorControl2(
            self.index,
            joint,
            pybullet.VELOCITY_CONTROL,
            targetVelocity=0.0,
            force=effort,
            physicsClientId=self._client,
        )

    def place_joints(self, q: Array, dq: Array) -> None:
        """Joint positions and velocities ``[J]``, and rotors that turn with them."""
        client, body = self._client, self.index
        for name, joint, position, velocity in zip(
            self._plan.joints, self.joints, q, dq, strict=True
        ):
            pybullet.resetJointState(body, joint, position, velocity, physicsClientId=client)
            if name in self._rotors:
                turning = -GEAR * float(velocity)
                pybullet.resetJointState(
                    body, self._rotors[name], 0.0, turning, physicsClientId=client
                )

    # -------------------------------------------------------------- what differs between worlds

    def apply(self, parameters: Parameters) -> None:
        """Put a world's own friction, masses, rotors and joint friction in force.

        ``com`` is in the file, gains and delay are the servos'.
        """
        changed = {
            name
            for name, values in parameters.items()
            if name not in self._applied or not np.array_equal(values, self._applied[name])
        }
        client, body = self._client, self.index
        if "friction" in changed:
            friction = float(parameters["friction"][0])
            pybullet.changeDynamics(
                self.floor, BASE, lateralFriction=friction, physicsClientId=client
            )
        if changed & {"mass", "payload"}:
            self._weigh(parameters["mass"], float(parameters["payload"][0]))
        if "damping" in changed:
            for joint, value in zip(self.joints, parameters["damping"], strict=True):
                pybullet.changeDynamics(body, joint, jointDamping=value, physicsClientId=client)
        if "dry_friction" in changed:
            for joint, value in zip(self.joints, parameters["dry_friction"], strict=True):
                self._hold_back(joint, float(value))
        if "armature" in changed:
            for name, value in zip(self._plan.joints, parameters["armature"], strict=True):
                if name in self._rotors:
                    moment = rotor_inertia(float(value))
                    pybullet.changeDynamics(
                        body,
                        self._rotors[name],
                        localInertiaDiagonal=[moment] * 3,
                        physicsClientId=client,
                    )
        self._applied = {name: values.copy() for name, values in parameters.items()}

    def _weigh(self, factors: Array, payload: float) -> None:
        """Masses, with inertias in proportion, and a point mass at the base's centre of mass."""
        if not self._applied and payload == 0.0 and bool((factors == 1.0).all()):
            return  # as loaded
        for links, factor in zip(self._bodies, factors, strict=True):
            for link in links:
                mass, inertia = self._weight[link]
                if mass == 0.0:
                    continue
                extra = payload if link == BASE else 0.0
                # Both at once: a mass alone makes PyBullet guess an inertia from the shape.
                pybullet.changeDynamics(
                    self.index,
                    link,
                    mass=float(factor * mass + extra),
                    localInertiaDiagonal=(factor * inertia).tolist(),
                    physicsClientId=self._client,
                )

    # -------------------------------------------------------------- solver steps

    def solver_steps(self) -> int:
        """Solver steps per physics step, so short that servo damping cannot overshoot.

        Torques are held during a solver step, so a joint of inertia I loses the share kd dt / I of
        its velocity in one; beyond 1 it overshoots, beyond 2 it explodes.

        Raises:
            FerryError: a joint is too light for its damping gain.
        """
        plan = self._plan
        if not self.actuated:
            return _steps(plan.physics_dt_s, _MAX_STEP_S)
        inertia, damping = self._felt_inertia(), np.array(plan.damping)
        with np.errstate(divide="ignore"):
            longest = inertia / damping  # [A]
        steps = _steps(plan.physics_dt_s, min(_MAX_STEP_S, float(longest.min())))
        if steps > _MAX_STEPS:
            worst = int(longest.argmin())
            raise FerryError(
                f"{plan.source}: joint {plan.motors[worst]!r}: damping gain "
                f"{damping[worst]:g} (kd or damping_kd) on an inertia of {inertia[worst]:.3g} "
                f"needs solver steps of {longest[worst]:.2g} s in PyBullet; expected at least "
                f"{plan.physics_dt_s / _MAX_STEPS:.2g} s: lower the gain, give the joint the "
                "armature of its motor, or simulate in MuJoCo"
            )
        return steps

    def _felt_inertia(self) -> Array:
        """``[A]`` inertia that a motor feels in the default pose, everything else free to move."""
        plan = self._plan
        matrix = self.mass_matrix(np.array(plan.q_default))
        joints = len(plan.joints)
        base = len(matrix) - joints
        own = dict(zip(plan.joints, plan.armature, strict=True))
        for i, name in enumerate(plan.joints, start=base):
            matrix[i, i] += own[name] if name in self._rotors else 0.0
        felt = 1.0 / np.diag(np.linalg.inv(matrix))
        return np.asarray(felt[base:][plan.actuated], dtype=np.float64)

    def mass_matrix(self, q: Array) -> Array:
        """``[6 + J, 6 + J]`` inertia matrix at joint positions ``[J]``, ``[J, J]`` for fixed bases.

        Joints in the order of the robot; rotors are at rest in their carriers.
        """
        pose = dict(zip(self.joints, q.tolist(), strict=True))
        # PyBullet's order: by index, without fixed joints.
        movable = sorted({*self.joints, *self._rotors.values()})
        matrix = np.array(
            pybullet.calculateMassMatrix(
                self.index,
                [pose.get(joint, 0.0) for joint in movable],
                physicsClientId=self._client,
            )
        )
        base = len(matrix) - len(movable)  # 6 of a floating base
        kept = [*range(base), *(base + movable.index(joint) for joint in self.joints)]
        return matrix[np.ix_(kept, kept)]

    def links(self) -> dict[str, Array]:
        """What PyBullet made of every link with mass that can move, as it stands, without rotors.

        ``mass [L]``; ``moments [L, 3]`` of inertia about the axes ``quat_w [L, 4]`` (wxyz) in the
        centre of mass ``com_w [L, 3]``.
        """
        client, body = self._client, self.index
        found: list[tuple[float, Array, Array, Array]] = []
        for link in self._links:
            info = pybullet.getDynamicsInfo(body, link, physicsClientId=client)
            if info[0] == 0.0 or link in self._rotors.values() or self._is_welded(link):
                continue
            if link == BASE:
                place = pybullet.getBasePositionAndOrientation(body, physicsClientId=client)
            else:
                place = pybullet.getLinkState(
                    body, link, computeForwardKinematics=1, physicsClientId=client
                )
            found.append((info[0], np.array(info[2]), np.array(place[0]), wxyz(place[1])))
        names = ("mass", "moments", "com_w", "quat_w")
        return {name: np.array(v) for name, v in zip(names, zip(*found, strict=True), strict=True)}

    def _is_welded(self, link: int) -> bool:
        """Whether nothing but fixed joints is between a link and the world."""
        while link != BASE:
            info = pybullet.getJointInfo(self.index, link, physicsClientId=self._client)
            if info[2] != pybullet.JOINT_FIXED:
                return False
            link = info[16]
        # A base that is held has no mass, see getDynamicsInfo.
        return pybullet.getDynamicsInfo(self.index, BASE, physicsClientId=self._client)[0] == 0.0

    def limits(self) -> Array:
        """``[J, 2]`` position limits, -inf and inf where PyBullet has none."""
        infos = [
            pybullet.getJointInfo(self.index, joint, physicsClientId=self._client)
            for joint in self.joints
        ]
        out = np.array([[info[8], info[9]] for info in infos], dtype=np.float64)
        out[out[:, 0] > out[:, 1]] = (-np.inf, np.inf)
        return out


def _steps(duration: float, longest: float) -> int:
    return math.ceil(duration / longest - 1e-9)


def wxyz(quat: tuple[float, float, float, float]) -> Array:
    """PyBullet's xyzw as wxyz."""
    return np.array(quat)[[3, 0, 1, 2]]
