"""From a RobotSpec to a MuJoCo model: base, joints, position servos, floor, feet and IMU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from real.errors import FerryError
from real.spec import JointSpec, RobotSpec
from sim.engine import FLOOR_FRICTION, GRAVITY
from sim.height_field import HeightField
from sim.model_ground import lay_field, paint
from sim.urdf import BASE_FRAME, PreparedUrdf, imu_position, prepare
from sim.urdf_joints import limited, position_range

Ids = NDArray[np.intp]

_FLOOR = "floor"
_IMU = "imu"
_COMPILER = '<compiler fusestatic="true" discardvisual="false" strippath="false"/>'


@dataclass(frozen=True)
class MujocoModel:
    """A compiled model and where the robot's things are in it, in the order of the RobotSpec.

    Attributes:
        robot: the robot it was built from.
        model: the compiled model.
        joint_qpos_adr: ``[J]`` addresses in ``qpos``.
        joint_dof_adr: ``[J]`` addresses in ``qvel``.
        actuator_ids: ``[A]`` position servos; ``ctrl`` holds targets [rad or m].
        base_body_id: the body whose frame is the base frame.
        base_qpos_adr: first of 7 ``qpos`` of the floating base (position, quaternion), or -1.
        base_dof_adr: first of 6 ``qvel`` (linear in the world frame, angular in the base frame),
            or -1.
        foot_site_ids: ``[F]`` sites at the origins of the foot links.
        foot_geom_ids: ``[F]`` collision geoms of the feet.
        foot_radius: ``[F]`` radius of spherical feet [m], NaN for others.
        floor_geom_id: the floor, or -1. Its friction is the contact friction.
        gyro_adr: first of 3 in ``sensordata``: angular velocity, base frame [rad/s].
        accelerometer_adr: first of 3: specific force at the IMU, base frame [m/s^2].
        quat_adr: first of 4: orientation of the base, wxyz.
        foot_velocity_adr: ``[F]`` first of 3 each: velocity of the foot site, world frame [m/s].
        foot_contact_adr: ``[F]`` number of contacts between foot and floor (empty without floor).
        contact_adr: number of contacts between robot and floor, feet included, or -1.
        delay_max_s: longest actuator delay that the history buffers hold [s].
    """

    robot: RobotSpec
    model: mujoco.MjModel
    joint_qpos_adr: Ids
    joint_dof_adr: Ids
    actuator_ids: Ids
    base_body_id: int
    base_qpos_adr: int
    base_dof_adr: int
    foot_site_ids: Ids
    foot_geom_ids: Ids
    foot_radius: NDArray[np.float64]
    floor_geom_id: int
    gyro_adr: int
    accelerometer_adr: int
    quat_adr: int
    foot_velocity_adr: Ids
    foot_contact_adr: Ids
    contact_adr: int
    delay_max_s: float


def build_mujoco(
    robot: RobotSpec,
    *,
    delay_max_s: float = 0.0,
    floor: bool = True,
    visuals: bool = False,
    field: HeightField | None = None,
) -> MujocoModel:
    """Build the MuJoCo model of a robot.

    Position, velocity and orientation of the base body are those of the base frame (z up), also
    for files that are not. The robot touches the floor only, never itself: neighbouring links of
    real files overlap. The floor has priority, so ``geom_friction[floor_geom_id]`` is the friction
    of every contact. Divergence is not reset silently (``mjDSBL_AUTORESET``).

    Contact sensors and the accelerometer belong to the start of the last physics step; the other
    sensors to its end once ``mj_forward`` or ``stage=mjSTAGE_VEL`` ran.

    Args:
        robot: the robot.
        delay_max_s: size of the history buffers for delayed actuator commands [s]; the delay is
            ``model.actuator_delay``, initially zero. Delayed commands are held (zero-order), so a
            delay acts as the next multiple of the physics step above it.
        floor: whether there is a floor at height zero.
        visuals: keep what is only for the eye; slower, for rendering.
        field: the floor; a plane if None.

    Raises:
        FerryError: the description or the delay is wrong; see :func:`sim.urdf.prepare`.
    """
    if not (math.isfinite(delay_max_s) and delay_max_s >= 0.0):
        raise FerryError(f"delay_max_s is {delay_max_s} s; expected a finite number >= 0")
    urdf = prepare(robot, visuals=visuals)
    spec = _read(urdf, visuals=visuals)
    _configure(spec, robot)
    feet = _name_geoms(spec, robot)
    base = _add_base(spec, robot)
    _add_sites(spec, robot, urdf, base)
    for joint in robot.joints:
        _set_joint(spec, joint)
    for joint in robot.actuated:
        _add_servo(spec, joint, nsample=math.ceil(delay_max_s / robot.physics_dt_s - 1e-9))
    if floor:
        _add_floor(spec, visuals=visuals, field=field)
    _add_sensors(spec, robot, feet, base, floor=floor)
    try:
        model = spec.compile()
    except ValueError as error:
        raise FerryError(f"{urdf.path}: MuJoCo cannot build it: {error}") from error
    return _index(model, robot, feet, base, delay_max_s=delay_max_s)


# ------------------------------------------------------------------ building


def _read(urdf: PreparedUrdf, *, visuals: bool) -> mujoco.MjSpec:
    xml = urdf.xml(visuals=visuals)
    opening = xml.index(">") + 1
    xml = f"{xml[:opening]}<mujoco>{_COMPILER}</mujoco>{xml[opening:]}"
    try:
        return mujoco.MjSpec.from_string(xml)
    except ValueError as error:
        raise FerryError(f"{urdf.path}: MuJoCo cannot read it: {error}") from error


def _configure(spec: mujoco.MjSpec, robot: RobotSpec) -> None:
    spec.modelname = robot.name
    spec.option.timestep = robot.physics_dt_s
    spec.option.gravity = [0.0, 0.0, -GRAVITY]
    # Implicit in the damping of the servos, so stiff gains are stable at 5 ms.
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # Friction ten times as stiff as the normal force: standing feet creep apart by 0.01 rad of hip
    # in 2 s instead of 0.04. Elliptic cones would halve that again and cost a quarter of the speed.
    spec.option.impratio = 10.0
    spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)


def _add_base(spec: mujoco.MjSpec, robot: RobotSpec) -> str:
    """Place the base frame, free or fixed; returns the name of its body and joint."""
    base = spec.body(BASE_FRAME)
    if robot.base_link != "world":  # which is what MuJoCo calls the world itself
        spec.body(robot.base_link).name = f"{robot.base_link}/file"  # is fused into the base frame
        base.name = robot.base_link
    base.pos = [0.0, 0.0, robot.base_height_m]
    if robot.base == "floating":
        base.add_freejoint(name=base.name)
    else:
        base.fuse = False  # stays a body, so that the base frame can be read
    return base.name


def _name_geoms(spec: mujoco.MjSpec, robot: RobotSpec) -> dict[str, str]:
    """Name collision geoms by link, switch self-collision off, and find one per foot.

    Returns:
        Name of the collision geom by foot link.
    """
    feet: dict[str, str] = {}
    for body in list(spec.bodies):
        count = 0
        for geom in body.geoms:
            if geom.contype == 0 and geom.conaffinity == 0:  # the reader's mark of a visual
                geom.group = 2
                continue
            geom.name = f"{body.name}/{count}"
            # Robot against floor only: a pair collides if contype of one meets conaffinity of
            # the other.
            geom.contype, geom.conaffinity, geom.group = 1, 0, 3
            count += 1
        if body.name in robot.feet:
            if count != 1:
                raise FerryError(
                    f"{robot.source}: foot {body.name!r} has {count} collision shapes in "
                    f"{robot.description}; expected one, to tell whether it touches the ground"
                )
            feet[body.name] = f"{body.name}/0"
    return feet


def _add_sites(spec: mujoco.MjSpec, robot: RobotSpec, urdf: PreparedUrdf, base: str) -> None:
    """Attach feet and IMU before static links are fused and their names vanish."""
    for foot in robot.feet:
        spec.body(foot).add_site(name=foot)
    position = imu_position(robot, urdf).tolist()
    # At the IMU but with the axes of the base: RobotState reports in the base frame.
    spec.body(base).add_site(name=_IMU, pos=position)


def _set_joint(spec: mujoco.MjSpec, joint: JointSpec) -> None:
    found = spec.joint(joint.name)
    found.armature = joint.armature
    found.damping = [joint.damping, 0.0, 0.0]  # linear, and no higher order
    found.frictionloss = joint.friction
    found.range = list(position_range(joint))
    found.limited = (
        mujoco.mjtLimited.mjLIMITED_TRUE if limited(joint) else mujoco.mjtLimited.mjLIMITED_FALSE
    )
    # The URDF's effort is the motor's, not a clamp on all that acts on the joint.
    found.actfrclimited = mujoco.mjtLimited.mjLIMITED_FALSE


def _add_servo(spec: mujoco.MjSpec, joint: JointSpec, *, nsample: int) -> None:
    """A position servo, tau = kp (ctrl - q) - kd dq, clipped to +-tau_max."""
    servo = spec.add_actuator(name=joint.name, target=joint.name)
    servo.trntype = mujoco.mjtTrn.mjTRN_JOINT
    servo.gaintype = mujoco.mjtGain.mjGAIN_FIXED
    servo.biastype = mujoco.mjtBias.mjBIAS_AFFINE
    servo.gainprm[0] = joint.kp
    servo.biasprm[0:3] = [0.0, -joint.kp, -joint.kd]
    servo.ctrllimited = mujoco.mjtLimited.mjLIMITED_FALSE
    if math.isfinite(joint.tau_max):
        servo.forcelimited = mujoco.mjtLimited.mjLIMITED_TRUE
        servo.forcerange = [-joint.tau_max, joint.tau_max]
    servo.nsample = nsample


def _add_floor(spec: mujoco.MjSpec, *, visuals: bool, field: HeightField | None) -> None:
    plane = spec.worldbody.add_geom(
        name=_FLOOR, type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0.0, 0.0, 0.5]
    )
    plane.contype, plane.conaffinity = 0, 1
    plane.priority = 1  # its friction counts alone; the default would be the larger of the two
    plane.condim = 3
    plane.friction = [FLOOR_FRICTION, 0.005, 0.0001]
    if field is not None:
        lay_field(spec, plane, field)
    if visuals:
        paint(spec, plane)


def _add_sensors(
    spec: mujoco.MjSpec, robot: RobotSpec, feet: dict[str, str], base: str, *, floor: bool
) -> None:
    sensor, site = mujoco.mjtSensor, mujoco.mjtObj.mjOBJ_SITE
    spec.add_sensor(name="gyro", type=sensor.mjSENS_GYRO, objtype=site, objname=_IMU)
    spec.add_sensor(
        name="accelerometer", type=sensor.mjSENS_ACCELEROMETER, objtype=site, objname=_IMU
    )
    spec.add_sensor(name="quat", type=sensor.mjSENS_FRAMEQUAT, objtype=site, objname=_IMU)
    for foot in robot.feet:
        spec.add_sensor(
            name=f"{foot}/velocity", type=sensor.mjSENS_FRAMELINVEL, objtype=site, objname=foot
        )
    if not floor:
        return
    # "found" alone (bit 0), at most one slot: sensordata is the number of matching contacts.
    found = [1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND), 0, 1]
    for foot in robot.feet:
        spec.add_sensor(
            name=f"{foot}/contact",
            type=sensor.mjSENS_CONTACT,
            objtype=mujoco.mjtObj.mjOBJ_GEOM,
            objname=feet[foot],
            reftype=mujoco.mjtObj.mjOBJ_GEOM,
            refname=_FLOOR,
            intprm=found,
        )
    spec.add_sensor(
        name="contact",
        type=sensor.mjSENS_CONTACT,
        objtype=mujoco.mjtObj.mjOBJ_XBODY,
        objname=base,
        reftype=mujoco.mjtObj.mjOBJ_GEOM,
        refname=_FLOOR,
        intprm=found,
    )


# ------------------------------------------------------------------ indexing


def _index(
    model: mujoco.MjModel,
    robot: RobotSpec,
    feet: dict[str, str],
    base: str,
    *,
    delay_max_s: float,
) -> MujocoModel:
    def ids(values: list[int]) -> Ids:
        return np.array(values, dtype=np.intp)

    def sensor(name: str) -> int:
        return int(model.sensor_adr[model.sensor(name).id])

    floating = robot.base == "floating"
    floor = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, _FLOOR)
    joints = [model.joint(j.name).id for j in robot.joints]
    foot_geoms = ids([model.geom(feet[f]).id for f in robot.feet])
    spheres = model.geom_type[foot_geoms] == int(mujoco.mjtGeom.mjGEOM_SPHERE)
    base_joint = model.joint(base).id if floating else -1
    return MujocoModel(
        robot=robot,
        model=model,
        joint_qpos_adr=ids([int(model.jnt_qposadr[j]) for j in joints]),
        joint_dof_adr=ids([int(model.jnt_dofadr[j]) for j in joints]),
        actuator_ids=ids([model.actuator(j.name).id for j in robot.actuated]),
        base_body_id=model.body(base).id,
        base_qpos_adr=int(model.jnt_qposadr[base_joint]) if floating else -1,
        base_dof_adr=int(model.jnt_dofadr[base_joint]) if floating else -1,
        foot_site_ids=ids([model.site(f).id for f in robot.feet]),
        foot_geom_ids=foot_geoms,
        foot_radius=np.where(spheres, model.geom_size[foot_geoms, 0], np.nan),
        floor_geom_id=floor,
        gyro_adr=sensor("gyro"),
        accelerometer_adr=sensor("accelerometer"),
        quat_adr=sensor("quat"),
        foot_velocity_adr=ids([sensor(f"{f}/velocity") for f in robot.feet]),
        foot_contact_adr=ids([sensor(f"{f}/contact") for f in robot.feet] if floor >= 0 else []),
        contact_adr=sensor("contact") if floor >= 0 else -1,
        delay_max_s=delay_max_s,
    )
