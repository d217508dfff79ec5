"""Every random term changes what it says, by as much as it says, and never compounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from real.config import Config, load_config
from real.domain import DomainSample
from real.errors import ConfigError, FerryError
from real.signals import JointCommand
from real.spec import RobotSpec, load_robot
from sim.engine import InitialState, WorldState
from sim.model import build_mujoco
from sim.mujoco_engine import MujocoEngine
from sim.random_terms import TERMS
from sim.randomize import RandomizeConfig, Randomizer, delay_max_s
from sim.streams import make_streams

DT = 0.02
G = 9.81

#: A term of every kind, strong enough to be seen in a second of A1 walking on the spot.
FULL: dict[str, Any] = {
    "friction": "=U(0.4, 0.6)",
    "mass": "*U(0.8, 1.2)",
    "payload": "+U(1, 3)",
    "com": "+U(0.01, 0.03)",
    "kp": "*U(0.8, 1.2)",
    "kd": {"value": "*LogU(0.5, 2)", "per": "world"},
    "motor_strength": "*U(0.7, 0.9)",
    "armature": "*N(1.5, 0.1)",
    "joint_friction": "+U(0.1, 0.3)",
    "joint_damping": "=U(0.1, 0.3)",
    "delay": "=U(0.003, 0.03)",
    "push": {"value": "=U(0.5, 1)", "interval_s": [0.1, 0.3]},
    "friction_spin": "=U(0.1, 0.3)",
    "friction_roll": "=U(0.01, 0.05)",
    "contact_stiffness": "*U(0.2, 0.5)",
    "contact_damping": "*U(0.3, 0.6)",
    "gravity_tilt": "=U(0.05, 0.1)",
    "no_load_speed": "=U(2, 3)",
    "joint_offset": "+U(0.01, 0.05)",
    "backlash": "=U(0.02, 0.05)",
    "delay_jitter": "=U(0.01, 0.02)",
    "dropout": "=U(0.3, 0.5)",
    "observation_delay": "=U(0.01, 0.04)",
    "observation_jitter": "=U(0.01, 0.03)",
}


@pytest.fixture(scope="module")
def a1() -> RobotSpec:
    return load_robot("a1")


LINK = """<link name="{name}"><inertial><origin xyz="{at}"/><mass value="{mass}"/>
  <inertia ixx="{i}" iyy="{i}" izz="{i}" ixy="0" ixz="0" iyz="0"/></inertial>{shape}</link>"""

#: A pendulum of 2 kg at 0.3 m, inertia 0.01 about its centre.
ARM_MASS, ARM_LENGTH, ARM_INERTIA, ARM_KP = 2.0, 0.3, 0.01, 40.0


def small_robot(
    folder: Path,
    *,
    kind: str,
    arm_mass: float = ARM_MASS,
    arm_inertia: float = ARM_INERTIA,
    armature: float = 0.0,
    friction: float = 0.0,
    damping: float = 0.0,
) -> RobotSpec:
    """A box with its centre of mass at its origin that carries a pendulum."""
    box = """<collision><geometry><box size="0.4 0.4 0.1"/></geometry></collision>"""
    base = LINK.format(name="base", at="0 0 0", mass=3.0, i=0.05, shape=box)
    arm = LINK.format(name="arm", at=f"0 0 {-ARM_LENGTH}", mass=arm_mass, i=arm_inertia, shape="")
    (folder / "robot.urdf").write_text(
        f"""<robot name="box">{base}{arm}<joint name="hinge" type="revolute">
        <parent link="base"/><child link="arm"/><origin xyz="0 0 0"/><axis xyz="0 1 0"/>
        <limit lower="-3" upper="3" effort="20" velocity="20"/></joint></robot>"""
    )
    (folder / "robot.yaml").write_text(
        f"""schema_version: 1
name: box
description: robot.urdf
base: {{kind: {kind}, link: base, height_m: 0.05}}
imu_link: null
control_dt_s: {DT}
physics_dt_s: 0.005
safe_stop: damp
damping_kd: 1.0
defaults: {{kp: {ARM_KP}, kd: 2.0, action_scale: 0.3, armature: {armature},
  friction: {friction}, damping: {damping}}}
joints: {{hinge: {{q_default: 0.0}}}}
"""
    )
    return load_robot(folder / "robot.yaml")


def randomized(
    robot: RobotSpec, terms: Mapping[str, Any], num: int, *, seed: int = 0
) -> tuple[MujocoEngine, Randomizer]:
    """Engine and randomiser, drawn and reset once."""
    engine = MujocoEngine(robot, num, delay_max_s=delay_max_s(terms))
    randomizer = Randomizer(terms, engine, control_dt_s=DT, rngs=make_streams(seed, num)["domain"])
    randomizer.draw(np.arange(num))
    engine.reset(np.arange(num), InitialState.default(robot, num))
    return engine, randomizer


def drawn(randomizer: Randomizer, name: str, num: int) -> np.ndarray:
    return np.array([randomizer.sample(row).values[name] for row in range(num)])


def settle(engine: MujocoEngine, q_des: float, *, seconds: float = 6.0) -> np.ndarray:
    for _ in range(round(seconds / DT)):
        engine.step(np.full((engine.num, 1), q_des))
    state = engine.state()
    assert (np.abs(state.robot.dq) < 1e-6).all()
    return state.robot.q[:, 0]


def wiggle(robot: RobotSpec, num: int, step: int) -> np.ndarray:
    phase = 0.4 * step + np.arange(len(robot.actuated))
    return np.tile(robot.actuated_array("q_default") + 0.2 * np.sin(phase), (num, 1))


def run(engine: MujocoEngine, randomizer: Randomizer | None, steps: int) -> WorldState:
    for step in range(steps):
        if randomizer is not None:
            randomizer.before_step()
        target = wiggle(engine.robot, engine.num, step)
        engine.step(target if randomizer is None else randomizer.to_motors(target))
    return engine.state()


def assert_same(left: WorldState, right: WorldState) -> None:
    for f in fields(left.robot):
        np.testing.assert_array_equal(
            getattr(left.robot, f.name), getattr(right.robot, f.name), err_msg=f.name
        )
    np.testing.assert_array_equal(left.position_w, right.position_w)
    np.testing.assert_array_equal(left.foot_velocity_w, right.foot_velocity_w)


# ------------------------------------------------------------------ laws over all terms


def test_the_laws_are_tried_on_every_term() -> None:
    assert set(FULL) == set(TERMS)


#: What the policy sees alone; tests/sim/test_late_signals.py.
OBSERVED = ("observation_delay", "observation_jitter")


@pytest.mark.parametrize("name", [name for name in TERMS if name not in OBSERVED])
def test_every_term_changes_a_trajectory(a1: RobotSpec, name: str) -> None:
    engine, randomizer = randomized(a1, {name: FULL[name]}, 3)
    state = run(engine, randomizer, 40)
    plain = MujocoEngine(a1, 3)
    assert (np.abs(state.robot.q - run(plain, None, 40).robot.q).max(axis=1) > 1e-4).all()
    assert len(np.unique(state.robot.q[:, 0])) > 1, "worlds drew the same"


#: Draws that change nothing, where that is neither 1 under * nor 0.
NEUTRAL = {"friction": 0.8, "no_load_speed": np.inf, "friction_spin": 0.005}


@pytest.mark.parametrize("name", [n for n in TERMS if n != "push" and "friction_" not in n])
def test_nominal_draws_are_no_randomisation_bit_by_bit(a1: RobotSpec, name: str) -> None:
    """Scaling by 1 and adding 0; for = the nominal value itself.

    Not for friction against turning, which MuJoCo does not even compute in a nominal world.
    """
    engine, randomizer = randomized(a1, {name: FULL[name]}, 3)
    scales = name != "kd" and str(FULL[name]).startswith("*")
    neutral = NEUTRAL.get(name, float(scales or name == "kd"))
    count = len(randomizer.sample(0).values[name])
    for row in range(3):
        randomizer.replay(row, DomainSample(seed=0, values={name: [neutral] * count}))
    engine.reset(np.arange(3), InitialState.default(a1, 3))
    plain = MujocoEngine(a1, 3)
    assert_same(run(engine, randomizer, 30), run(plain, None, 30))


def test_a_thousand_draws_never_compound(a1: RobotSpec) -> None:
    terms = {
        "mass": "*U(0.9, 1.1)",
        "payload": "+U(0, 1)",
        "kp": "*U(0.9, 1.1)",
        "com": "+U(-0.01, 0.01)",
    }
    engine, randomizer = randomized(a1, terms, 3)
    model = engine.built.model
    mass, centre = engine.field("body_mass"), engine.field("body_ipos")
    gain, bias = engine.field("actuator_gainprm"), engine.field("actuator_biasprm")
    base = engine.built.base_body_id
    limbs = np.arange(2, model.nbody)
    seen = []
    for _ in range(1000):
        randomizer.draw(np.arange(3))
        seen.append(
            np.concatenate([mass[:, limbs] / model.body_mass[limbs], gain[:, :, 0] / 40.0], 1)
        )
        assert (mass[:, base] >= 0.9 * model.body_mass[base]).all()
        assert (mass[:, base] <= 1.1 * model.body_mass[base] + 1.0).all()
        assert (np.abs(centre[:, base] - model.body_ipos[base]) <= 0.01 + 1e-15).all()
        np.testing.assert_array_equal(gain[:, :, 0], -bias[:, :, 1])
    found = np.array(seen)
    assert found.min() >= 0.9 - 1e-12 and found.max() <= 1.1 + 1e-12
    assert found.min() < 0.901 and found.max() > 1.099
    assert abs(found[500:].mean() - 1.0) < 0.002, "the mean drifts"


def test_a_draw_changes_its_rows_only(a1: RobotSpec) -> None:
    engine, randomizer = randomized(a1, FULL, 5)
    before = {k: v.copy() for k, v in engine.state_dict().items() if k.startswith("field/")}
    values = randomizer.values().copy()
    randomizer.draw(np.array([3, 1]))
    for key, old in before.items():
        new = engine.state_dict()[key]
        np.testing.assert_array_equal(new[[0, 2, 4]], old[[0, 2, 4]], err_msg=key)
    changed = [
        key
        for key, old in before.items()
        if (engine.state_dict()[key][[1, 3]] != old[[1, 3]]).any()
    ]
    assert sorted([*changed, "field/geom_condim"]) == sorted(before)  # the same for all draws
    np.testing.assert_array_equal(randomizer.values()[[0, 2, 4]], values[[0, 2, 4]])
    assert (randomizer.values()[[1, 3]] != values[[1, 3]]).all()


def test_a_world_draws_the_same_whatever_the_others_do(a1: RobotSpec) -> None:
    _, together = randomized(a1, FULL, 4)
    engine = MujocoEngine(a1, 4, delay_max_s=0.05)
    apart = Randomizer(FULL, engine, control_dt_s=DT, rngs=make_streams(0, 4)["domain"])
    for rows in ([2], [3, 0], [0], [0, 1]):
        apart.draw(np.array(rows))
    assert apart.sample(1) == together.sample(1)
    assert apart.sample(2) == together.sample(2)
    assert apart.sample(0) != together.sample(0)
    samples = [str(together.sample(row).values) for row in range(4)]
    assert len(set(samples)) == 4


def test_the_order_of_the_file_means_nothing(a1: RobotSpec) -> None:
    _, forward = randomized(a1, FULL, 2)
    _, backward = randomized(a1, dict(reversed(FULL.items())), 2)
    assert forward.names == backward.names
    assert forward.sample(1) == backward.sample(1)


def test_a_sample_rebuilds_its_world_elsewhere(a1: RobotSpec) -> None:
    later = ("push", "delay_jitter", "dropout")  # not said by the draws
    terms = {name: term for name, term in FULL.items() if name not in later}
    engine, randomizer = randomized(a1, terms, 4, seed=7)
    other, copy = randomized(a1, terms, 3, seed=8)
    sample = randomizer.sample(2)
    assert sample.seed == 7
    copy.replay(1, sample)
    other.reset(np.arange(3), InitialState.default(a1, 3))
    assert copy.sample(1).values == sample.values
    np.testing.assert_array_equal(copy.values()[1], randomizer.values()[2])
    one, two = run(other, copy, 30), run(engine, randomizer, 30)
    np.testing.assert_array_equal(one.robot.q[1], two.robot.q[2])
    with pytest.raises(FerryError, match="terms"):
        copy.replay(0, DomainSample(seed=0, values={"kp": [1.0]}))


def test_values_are_the_draws_between_minus_one_and_one(a1: RobotSpec) -> None:
    terms = {"kd": FULL["kd"], "mass": "*U(0.8, 1.2)", "delay": "=U(0, 0.03)"}
    _, randomizer = randomized(a1, terms, 50)
    assert randomizer.names[0] == "mass.trunk" and randomizer.names[-2:] == ("kd", "delay")
    assert randomizer.privileged_dim == 15 == randomizer.values().shape[1]
    np.testing.assert_allclose(
        randomizer.values()[:, :13], (drawn(randomizer, "mass", 50) - 1.0) / 0.2, atol=1e-12
    )
    np.testing.assert_allclose(  # LogU(0.5, 2): log2 runs from -1 to 1
        randomizer.values()[:, 13:14], np.log2(drawn(randomizer, "kd", 50)), atol=1e-12
    )
    assert np.abs(randomizer.values()).max() <= 1.0
    assert (np.ptp(randomizer.values(), axis=0) > 1.0).all()


def test_a_saved_randomizer_continues_bit_by_bit(a1: RobotSpec) -> None:
    engine, randomizer = randomized(a1, FULL, 4)
    run(engine, randomizer, 23)
    randomizer.draw(np.array([1]))
    engine.reset(np.array([1]), InitialState.default(a1, 1))
    run(engine, randomizer, 9)
    kept = (engine.state_dict(), randomizer.state_dict())
    streams = [r.bit_generator.state for r in randomizer._rngs]
    other_engine, other = randomized(a1, FULL, 4, seed=99)
    other_engine.load_state_dict(kept[0])
    other.load_state_dict(kept[1])
    for mine, state in zip(other._rngs, streams, strict=True):
        mine.bit_generator.state = state
    for _ in range(2):
        assert_same(run(engine, randomizer, 30), run(other_engine, other, 30))
        for row in range(4):
            assert other.sample(row).values == randomizer.sample(row).values
        for part in (randomizer, other):
            part.draw(np.array([0, 3]))
    np.testing.assert_array_equal(other.values(), randomizer.values())
    with pytest.raises(FerryError, match="expected"):
        randomized(a1, {"kp": "*U(0.8, 1.2)"}, 4)[1].load_state_dict(kept[1])


# ------------------------------------------------------------------ each term by hand


def test_friction_decides_how_far_a_box_slides(tmp_path: Path) -> None:
    """d = v^2 / (2 mu g)."""
    robot = small_robot(tmp_path, kind="floating")
    engine, randomizer = randomized(robot, {"friction": "=U(0.2, 1.0)"}, 4)
    mu = drawn(randomizer, "friction", 4)[:, 0]
    floor = engine.built.floor_geom_id
    np.testing.assert_array_equal(engine.field("geom_friction")[:, floor, 0], mu)
    start = InitialState.default(robot, 4)
    start.lin_vel_b[:, 1] = 1.0
    engine.reset(np.arange(4), start)
    for _ in range(60):
        engine.step(np.zeros((4, 1)))
    np.testing.assert_allclose(engine.state().position_w[:, 1], 1.0 / (2 * mu * G), rtol=0.1)


def test_mass_takes_inertia_and_derived_constants_along(tmp_path: Path) -> None:
    """All equal to a model that was compiled with that mass."""
    robot = small_robot(tmp_path, kind="floating")
    engine, randomizer = randomized(robot, {"mass": "*U(1.2, 1.8)"}, 3)
    factor = drawn(randomizer, "mass", 3)
    assert factor.shape == (3, 2)
    for row in range(3):
        folder = tmp_path / str(row)
        folder.mkdir()
        base, arm = factor[row].tolist()
        small_robot(folder, kind="floating", arm_mass=ARM_MASS * arm, arm_inertia=ARM_INERTIA * arm)
        text = (folder / "robot.urdf").read_text()
        text = text.replace('"3.0"', f'"{3.0 * base!r}"').replace('"0.05"', f'"{0.05 * base!r}"')
        (folder / "robot.urdf").write_text(text)
        compiled = build_mujoco(load_robot(folder / "robot.yaml")).model
        ours = engine.batch.get_model(row)
        for name in (
            "body_mass", "body_inertia", "body_subtreemass", "body_invweight0", "dof_invweight0",
            "dof_M0", "actuator_acc0",
        ):  # fmt: skip
            np.testing.assert_allclose(
                getattr(ours, name), getattr(compiled, name), rtol=1e-12, err_msg=name
            )


def test_mass_makes_the_pendulum_sag(tmp_path: Path) -> None:
    """kp (q_des - q) = m g l sin(q)."""
    robot = small_robot(tmp_path, kind="fixed")
    engine, randomizer = randomized(robot, {"mass": "*U(0.5, 1.5)"}, 3)
    mass = ARM_MASS * drawn(randomizer, "mass", 3)[:, 0]
    assert drawn(randomizer, "mass", 3).shape == (3, 1), "the fixed base never moves"
    q = settle(engine, 1.0)
    np.testing.assert_allclose(ARM_KP * (1.0 - q), mass * G * ARM_LENGTH * np.sin(q), rtol=1e-6)


def test_payload_adds_to_the_base_and_to_nothing_else(a1: RobotSpec) -> None:
    terms = {"mass": "*U(0.8, 1.2)", "payload": "+U(1, 3)"}
    engine, randomizer = randomized(a1, terms, 3)
    own, base = engine.built.model, engine.built.base_body_id
    factor, payload = drawn(randomizer, "mass", 3), drawn(randomizer, "payload", 3)[:, 0]
    moving = np.flatnonzero(own.body_mass > 0.0)
    expected = own.body_mass[moving] * factor
    total = expected.sum(axis=1)
    expected[:, 0] += payload
    np.testing.assert_allclose(engine.field("body_mass")[:, moving], expected, rtol=1e-12)
    np.testing.assert_allclose(  # a point mass has no inertia about the centre it sits at
        engine.field("body_inertia")[:, base], own.body_inertia[base] * factor[:, :1], rtol=1e-12
    )
    subtree = engine.batch.expanded("body_subtreemass")
    assert subtree is not None
    np.testing.assert_allclose(subtree[:, base], total + payload, rtol=1e-12)
    for _ in range(100):
        engine.step(np.tile(a1.q_default, (3, 1)))
    order = np.argsort(total + payload)
    assert (np.diff(engine.state().position_w[order, 2]) < 0.0).all(), "heavier stands lower"


def test_centre_of_mass_is_what_a_spinning_base_turns_about(tmp_path: Path) -> None:
    """In free fall at w about z, the origin feels w^2 towards the common centre of mass.

    The base's own centre is its origin in the description, for which MuJoCo knows a short cut.
    """
    robot = small_robot(tmp_path, kind="floating", arm_mass=1e-6, arm_inertia=1e-6, armature=1.0)
    engine, randomizer = randomized(robot, {"com": "+U(-0.1, 0.1)"}, 3)
    offset = drawn(randomizer, "com", 3)
    np.testing.assert_array_equal(engine.field("body_ipos")[:, engine.built.base_body_id], offset)
    start = InitialState.default(robot, 3)
    start.position_w[:, 2] = 2.0
    start.ang_vel_b[:, 2] = 4.0
    engine.reset(np.arange(3), start)
    acc = engine.state().robot.acc_b
    np.testing.assert_allclose(acc[:, :2], 16.0 * offset[:, :2], rtol=1e-3, atol=1e-3)


def test_doubling_kp_halves_the_deflection_and_leaves_the_equilibrium(tmp_path: Path) -> None:
    robot = small_robot(tmp_path, kind="fixed")
    engine, randomizer = randomized(robot, {"kp": "*U(0.5, 2.0)"}, 4)
    randomizer.replay(0, DomainSample(seed=0, values={"kp": [1.0]}))
    randomizer.replay(1, DomainSample(seed=0, values={"kp": [2.0]}))
    kp = ARM_KP * drawn(randomizer, "kp", 4)[:, 0]
    np.testing.assert_allclose(engine.field("actuator_gainprm")[:, 0, 0], kp)
    np.testing.assert_allclose(engine.field("actuator_biasprm")[:, 0, 1], -kp)
    # Hanging straight down is where gravity asks for nothing: every spring rests at its target.
    np.testing.assert_allclose(settle(engine, 0.0), 0.0, atol=1e-6)
    q = settle(engine, 0.05)
    sag = 0.05 - q
    np.testing.assert_allclose(kp * sag, ARM_MASS * G * ARM_LENGTH * np.sin(q), rtol=1e-5)
    # Half, but for the torque that the sag itself takes away: m g l / kp is 0.15.
    torque = ARM_MASS * G * ARM_LENGTH
    np.testing.assert_allclose(
        sag[0] / sag[1], (ARM_KP * 2 + torque) / (ARM_KP + torque), rtol=1e-3
    )


def test_kp_may_also_be_given_or_added_to(tmp_path: Path) -> None:
    robot = small_robot(tmp_path, kind="fixed")
    for text, low, high in (("=U(10, 20)", 10, 20), ("+U(-5, -1)", ARM_KP - 5, ARM_KP - 1)):
        engine, _ = randomized(robot, {"kp": text}, 5)
        gain = engine.field("actuator_gainprm")[:, 0, 0]
        assert (gain >= low).all() and (gain <= high).all() and len(np.unique(gain)) == 5


def test_kd_brakes(tmp_path: Path) -> None:
    """At the target, effort = -kd dq, also when the gain comes with a command."""
    robot = small_robot(tmp_path, kind="fixed")
    engine, randomizer = randomized(robot, {"kd": "*U(0.5, 2.0)"}, 3)
    factor = drawn(randomizer, "kd", 3)[:, 0]
    start = replace(InitialState.default(robot, 3), dq=np.array([[1.0], [-2.0], [3.0]]))
    engine.reset(np.arange(3), start)
    engine.step(np.zeros((3, 1)), substeps=1)
    np.testing.assert_allclose(engine.state().robot.tau[:, 0], -2.0 * factor * start.dq[:, 0])
    engine.reset(np.arange(3), start)
    engine.apply(JointCommand.damping(np.zeros(3, dtype=np.int64), 1, damping_kd=0.7), substeps=1)
    np.testing.assert_allclose(engine.state().robot.tau[:, 0], -0.7 * factor * start.dq[:, 0])


def test_motor_strength_scales_effort_and_its_limit(tmp_path: Path) -> None:
    robot = small_robot(tmp_path, kind="fixed")
    engine, randomizer = randomized(robot, {"motor_strength": "*U(0.5, 1.5)"}, 3)
    strength = drawn(randomizer, "motor_strength", 3)[:, 0]
    for target, effort in ((0.1, 4.0), (2.0, 20.0)):  # 40 N m/rad, at most 20 N m
        engine.reset(np.arange(3), InitialState.default(robot, 3))
        engine.step(np.full((3, 1), target), substeps=1)
        np.testing.assert_allclose(engine.state().robot.tau[:, 0], strength * effort)


def first_acceleration(robot: RobotSpec, engine: MujocoEngine, *, dq: float) -> np.ndarray:
    """Joint acceleration while hanging straight down at ``dq``, servo off."""
    num = engine.num
    engine.reset(
        np.arange(num), replace(InitialState.default(robot, num), dq=np.full((num, 1), dq))
    )
    engine.apply(JointCommand.damping(np.zeros(num, dtype=np.int64), 1, damping_kd=0.0), substeps=1)
    return engine.batch.bind("qacc")[:, 0]


def test_armature_is_inertia_of_the_joint(tmp_path: Path) -> None:
    """kp d = (I + m l^2 + armature) ddq; derived constants as of a model compiled with it."""
    robot = small_robot(tmp_path, kind="fixed", armature=0.05)
    engine, randomizer = randomized(robot, {"armature": "*U(0.5, 2.0)"}, 3)
    armature = 0.05 * drawn(randomizer, "armature", 3)[:, 0]
    engine.step(np.full((3, 1), 0.2), substeps=1)
    inertia = ARM_INERTIA + ARM_MASS * ARM_LENGTH**2 + armature
    np.testing.assert_allclose(engine.batch.bind("qacc")[:, 0], ARM_KP * 0.2 / inertia, rtol=1e-9)
    for row in range(3):
        compiled = build_mujoco(small_robot(tmp_path, kind="fixed", armature=armature[row])).model
        ours = engine.batch.get_model(row)
        for name in ("dof_armature", "dof_invweight0", "dof_M0", "actuator_acc0"):
            np.testing.assert_allclose(
                getattr(ours, name), getattr(compiled, name), rtol=1e-12, err_msg=name
            )


def test_joint_friction_holds_the_pendulum_until_gravity_wins(tmp_path: Path) -> None:
    """At 0.3 rad gravity pulls with 1.74 N m; friction is drawn on both sides of it."""
    robot = small_robot(tmp_path, kind="fixed")
    engine, randomizer = randomized(robot, {"joint_friction": "=U(0.5, 3.0)"}, 8)
    friction = drawn(randomizer, "joint_friction", 8)[:, 0]
    pull = ARM_MASS * G * ARM_LENGTH * np.sin(0.3)
    engine.reset(np.arange(8), replace(InitialState.default(robot, 8), q=np.full((8, 1), 0.3)))
    off = JointCommand.damping(np.zeros(8, dtype=np.int64), 1, damping_kd=0.0)
    for _ in range(10):
        engine.apply(off)
    fell = engine.state().robot.q[:, 0] < 0.25
    clear = np.abs(friction - pull) > 0.3
    assert fell[clear].tolist() == (friction < pull)[clear].tolist()
    assert fell[clear].any() and not fell[clear].all()


def test_joint_damping_brakes_without_a_motor(tmp_path: Path) -> None:
    """(I + m l^2) ddq = -damping dq."""
    robot = small_robot(tmp_path, kind="fixed", damping=0.1)
    engine, randomizer = randomized(robot, {"joint_damping": "+U(0.0, 0.5)"}, 3)
    damping = 0.1 + drawn(randomizer, "joint_damping", 3)[:, 0]
    inertia = ARM_INERTIA + ARM_MASS * ARM_LENGTH**2
    np.testing.assert_allclose(
        first_acceleration(robot, engine, dq=3.0), -damping * 3.0 / inertia, rtol=1e-9
    )


def test_delay_shifts_when_a_target_is_heard(tmp_path: Path) -> None:
    """By the next multiple of the physics step of 5 ms."""
    robot = small_robot(tmp_path, kind="fixed")
    engine, randomizer = randomized(robot, {"delay": "=U(0.0, 0.04)"}, 6)
    delay = drawn(randomizer, "delay", 6)[:, 0]
    np.testing.assert_array_equal(engine.servos.delay_s, delay)
    np.testing.assert_array_equal(engine.field("actuator_delay")[:, 0], delay)
    heard = np.full(6, -1)
    for substep in range(10):
        engine.step(np.full((6, 1), 0.5), substeps=1)
        moved = (np.abs(engine.state().robot.tau[:, 0]) > 1.0) & (heard < 0)
        heard[moved] = substep
    assert heard.tolist() == np.ceil(delay / 0.005).astype(int).tolist()
    assert len(set(heard.tolist())) > 2


def test_pushes_come_at_their_times_and_change_the_velocity(a1: RobotSpec) -> None:
    """Robots in the air, so that nothing but pushes and gravity moves them."""
    terms = {"push": {"value": "=U(0.5, 2.0)", "interval_s": [0.1, 0.4]}}
    engine, randomizer = randomized(a1, terms, 3)
    start = InitialState.default(a1, 3)
    start.position_w[:, 2] = 20.0
    engine.reset(np.arange(3), start)
    velocity = engine.batch.bind("qvel")
    times: list[list[float]] = [[], [], []]
    for step in range(60):
        before = velocity[:, :2].copy()
        randomizer.before_step()
        gained = velocity[:, :2] - before
        for row in range(3):
            if gained[row].any():
                times[row].append(step * DT)
                assert (gained[row] >= 0.5 - 1e-12).all() and (gained[row] <= 2.0 + 1e-12).all()
                given = randomizer.sample(row).values["push"][-3:]
                np.testing.assert_allclose(given, [step * DT, *gained[row]], atol=1e-12)
        engine.step(start.q)
    for row in range(3):
        waits = np.diff([0.0, *times[row]])
        assert len(waits) >= 3 and (waits >= 0.1 - 1e-9).all() and (waits <= 0.4 + 1e-9).all()
    assert times[0] != times[1]
    randomizer.draw(np.array([1]))
    assert randomizer.sample(1).values["push"] == []
    assert len(randomizer.sample(2).values["push"]) == 3 * len(times[2])
    while not randomizer.sample(1).values["push"]:
        randomizer.before_step()
    assert 0.1 - 1e-9 <= randomizer.sample(1).values["push"][0] <= 0.4 + 1e-9, "time of the episode"


# ------------------------------------------------------------------ what is refused


class Task(Config):
    """A file with nothing but a table."""

    randomize: RandomizeConfig = {}


def test_a_table_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(
        'randomize:\n  friction: "=U(0.4, 1.2)"\n  kp: {value: "*U(0.8, 1.2)", per: world}\n'
        '  delay: "=U(0, 0.02)"\n  push: {value: "=U(-1, 1)", interval_s: [4, 8]}\n'
    )
    table = load_config(Task, path).randomize
    assert list(table) == ["friction", "kp", "delay", "push"]
    assert delay_max_s(table) == 0.02
    assert delay_max_s({}) == 0.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('frction: "=U(0.4, 1.2)"', "no random term 'frction' .did you mean 'friction'.*known:"),
        ('joint-friction: "=U(0, 1)"', "did you mean 'joint_friction'"),
        ('friction: "U(0.4, 1.2)"', "replace"),
        ('mass: "=U(1, 2)"', r"masses.*cannot be given by '='.*expected one of \*, \+"),
        ('com: "*U(0.9, 1.1)"', r"expected one of \+"),
        ('mass: {value: "*U(0.8, 1.2)", per: joint}', "drawn per joint; expected body or world"),
        ('mass: {value: "*U(0.8, 1.2)", pre: body}', "did you mean 'per'"),
        ('mass: "*U(1, 1)"', "changes nothing"),
        ('mass: "*N(1, 0)"', "changes nothing"),
        ('com: "+U(0, 0)"', "changes nothing"),
        ('push: {value: "=U(0, 0)", interval_s: [1, 2]}', "changes nothing"),
        ('push: "=U(-1, 1)"', "needs interval_s"),
        ('push: {value: "=U(-1, 1)", interval_s: [8, 4]}', "empty"),
        ('push: {value: "=U(-1, 1)", interval_s: [0, 4]}', "greater than 0|> 0"),
        ('mass: {value: "*U(0.8, 1.2)", interval_s: [4, 8]}', "cannot change within an episode"),
        ('kp: {value: "*U(0.8, 1.2)", interval_s: [4, 8], when: once}', "is drawn once"),
        ('restitution: "=U(0, 1)"', "contact_stiffness and contact_damping"),
        ('friction: "=choice(0.4)"', "two or more finite numbers"),
        ("kp: 1.1", "kp"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused_with_file_and_line(
    tmp_path: Path, line: str, said: str
) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(f"randomize:\n  {line}\n")
    with pytest.raises(ConfigError, match=said) as error:
        load_config(Task, path)
    assert "task.yaml" in str(error.value)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"joint_friction": "*U(0.5, 2)"}, "changes nothing, since the nominal value is 0 N m"),
        ({"delay": "=U(0, 0)"}, "changes nothing"),
        ({"friction": "=U(0.8, 0.8)"}, "changes nothing"),
        ({"friction": "+U(-1, 1)"}, r"gives -0\.2 to 1\.8 1; expected"),
        ({"mass": "*U(-0.1, 1)"}, "expected"),
        ({"kp": "+N(0, 20)"}, "gives -20 to 100 N m/rad"),
        ({"payload": "+U(-1, 1)"}, "gives -1 to 1 kg"),
        ({"motor_strength": "*N(1, 0.5)"}, "motor_strength"),
    ],
)
def test_terms_that_do_nothing_or_nonsense_on_this_robot_are_refused(
    a1: RobotSpec, terms: dict[str, str], said: str
) -> None:
    with pytest.raises(FerryError, match=said):
        randomized(a1, terms, 2)


def test_a_delay_longer_than_the_engine_can_remember_is_refused(a1: RobotSpec) -> None:
    engine = MujocoEngine(a1, 2, delay_max_s=0.01)
    with pytest.raises(FerryError, match=r"gives 0 to 0\.02 s; expected 0 to 0\.01; .*delay_max_s"):
        Randomizer(
            {"delay": "=U(0, 0.02)"},
            engine,
            control_dt_s=DT,
            rngs=make_streams(0, 2)["domain"],
        )


@pytest.mark.parametrize("name", ["payload", "com", "push"])
def test_what_moves_the_base_is_refused_where_it_is_fixed(tmp_path: Path, name: str) -> None:
    robot = small_robot(tmp_path, kind="fixed")
    with pytest.raises(FerryError, match=f"'{name}'.*fixed.*change nothing"):
        randomized(robot, {name: FULL[name]}, 2)


def test_an_empty_table_randomises_nothing(a1: RobotSpec) -> None:
    engine, randomizer = randomized(a1, {}, 3)
    assert randomizer.values().shape == (3, 0) and randomizer.names == ()
    assert randomizer.sample(1) == DomainSample(seed=0, values={})
    assert_same(run(engine, randomizer, 10), run(MujocoEngine(a1, 3), None, 10))
