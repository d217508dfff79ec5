"""Random terms in PyBullet: the same draws as in MuJoCo, and the same robots from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from real.errors import ConfigError, FerryError
from real.spec import RobotSpec, load_robot
from sim.engine import Engine, InitialState, WorldState
from sim.engine_terms import PYBULLET, require_supported
from sim.engines import make_engine
from sim.mujoco_engine import MujocoEngine
from sim.parity_measures import as_built
from sim.pybullet_engine import PyBulletEngine
from sim.random_terms import TERMS
from sim.randomize import Randomizer
from sim.signal_errors import SIGNAL_TERMS
from sim.streams import make_streams
from sim.task import load_env_config

N = 3

#: Every term, far from its nominal value. What happens within an episode has its own test.
STRONG: dict[str, Any] = {
    "friction": "=U(0.1, 0.2)",
    "mass": "*U(0.5, 2.0)",
    "payload": "=U(3.0, 6.0)",
    "com": "+U(-0.05, 0.05)",
    "kp": "*U(0.5, 0.6)",
    "kd": "*U(0.3, 0.6)",
    "motor_strength": "*U(0.5, 0.6)",
    "armature": "=U(0.02, 0.05)",
    "joint_friction": "=U(1.0, 2.0)",
    "joint_damping": "=U(0.5, 1.0)",
    "delay": "=U(0.01, 0.02)",
}


@pytest.fixture(scope="module")
def a1() -> RobotSpec:
    return load_robot("a1")


@pytest.fixture
def drawn(a1) -> Iterator[Any]:
    """Builds an engine with a table drawn once in each of three worlds, and closes it."""
    made: list[Engine] = []

    def build(name: Any, terms: dict[str, Any], *, seed: int = 0) -> tuple[Any, Randomizer]:
        engine = make_engine(name, a1, N, threads=1 if name == "mujoco" else None, randomize=terms)
        made.append(engine)
        rngs = make_streams(seed, N)["domain"]
        randomizer = Randomizer(terms, engine, control_dt_s=a1.control_dt_s, rngs=rngs)
        randomizer.draw(np.arange(N))
        engine.reset(np.arange(N), InitialState.default(a1, N))
        return engine, randomizer

    yield build
    for engine in made:
        engine.close()


def walk(engine: Engine, steps: int = 4) -> WorldState:
    default = engine.robot.actuated_array("q_default")
    for step in range(steps):
        engine.step(np.tile(default + 0.3 * np.sin(step + np.arange(12)), (N, 1)))
    return engine.state()


def test_every_random_term_is_in_the_table_of_pybullet():
    refused = {
        "friction_spin", "friction_roll", "contact_stiffness", "contact_damping", "gravity_tilt",
        "no_load_speed",
    }  # fmt: skip
    assert set(PYBULLET) == set(TERMS) - refused
    assert set(STRONG) == set(PYBULLET) - {"push", *SIGNAL_TERMS}
    for name in refused:
        with pytest.raises(ConfigError, match=f"PyBullet cannot simulate the random term {name}"):
            require_supported("pybullet", [name])


@pytest.mark.slow
def test_errors_outside_the_engine_move_both_engines_alike(drawn, a1):
    terms = {
        "joint_offset": "=U(0.1, 0.2)",
        "backlash": "=U(0.1, 0.2)",
        "delay": "=U(0, 0.01)",
        "delay_jitter": "=U(0.01, 0.02)",
        "dropout": "=U(0.3, 0.5)",
    }
    default, paths, told = a1.actuated_array("q_default"), [], []
    for name, table in (("mujoco", terms), ("pybullet", terms), ("pybullet", {})):
        engine, randomizer = drawn(name, table)
        start = InitialState.default(a1, N)
        start.position_w[:, 2] += 1.0
        engine.reset(np.arange(N), start)
        for step in range(5):
            randomizer.before_step()
            target = np.tile(default + 0.3 * np.sin(step + np.arange(12)), (N, 1))
            told.append(randomizer.to_motors(target))
            engine.step(told[-1])
        paths.append(engine.state().robot.q)
    np.testing.assert_array_equal(told[:5], told[5:10])
    assert (np.abs(paths[1] - paths[2]).max(axis=1) > 0.1).all()
    np.testing.assert_allclose(paths[1], paths[0], atol=0.02)


def test_draws_names_and_the_numbers_for_the_critic_are_those_of_mujoco(drawn):
    (_, one), (_, two) = drawn("mujoco", STRONG), drawn("pybullet", STRONG)
    assert one.names == two.names
    np.testing.assert_array_equal(one.values(), two.values())
    assert len({tuple(row) for row in one.values().tolist()}) == N
    assert [one.sample(i) for i in range(N)] == [two.sample(i) for i in range(N)]


@pytest.mark.slow
@pytest.mark.parametrize("term", STRONG)
def test_each_term_moves_each_world_otherwise_and_can_be_replayed_in_any(drawn, a1, term):
    engine, randomizer = drawn("pybullet", {term: STRONG[term]})
    changed = walk(engine, 2).robot.q.copy()
    plain, _ = drawn("pybullet", {})
    nominal = walk(plain, 2).robot.q
    assert (np.abs(changed - nominal).max(axis=1) > 1e-4).all()
    again = randomizer.sample(1)
    for row in range(N):  # the same draw in another world is the same world
        randomizer.replay(row, again)
    engine.reset(np.arange(N), InitialState.default(a1, N))
    np.testing.assert_array_equal(walk(engine, 2).robot.q, np.tile(changed[1], (N, 1)))


@pytest.mark.slow
def test_nominal_values_leave_a_world_as_it_was_bit_by_bit(drawn, a1):
    plain, _ = drawn("pybullet", {})
    engine, _ = drawn("pybullet", {n: v for n, v in STRONG.items() if n != "armature"})
    for name, values in plain.parameters.items():
        engine.set_parameter(name, np.arange(N), values)
    for one in (plain, engine):
        one.reset(np.arange(N), InitialState.default(a1, N))
    np.testing.assert_array_equal(walk(engine).robot.q, walk(plain).robot.q)


@pytest.mark.slow
def test_bodies_are_as_heavy_as_in_mujoco_and_draws_do_not_compound(drawn):
    terms = {name: STRONG[name] for name in ("mass", "payload", "com")}
    (one, first), (two, second) = drawn("mujoco", terms), drawn("pybullet", terms)
    for _ in range(20):
        for engine, randomizer in ((one, first), (two, second)):
            randomizer.draw(np.arange(N))
            engine.reset(np.arange(N), InitialState.default(engine.robot, N))
    for mine, other in as_built(one, two):
        for name in ("mass", "com", "inertia"):
            np.testing.assert_allclose(other[name], mine[name], rtol=1e-9, atol=1e-9, err_msg=name)
        # Rotors at rest weigh a milligram each in the inertias of the joints above them.
        largest = np.abs(mine["joint_inertia"]).max()
        np.testing.assert_allclose(
            other["joint_inertia"], mine["joint_inertia"], atol=1e-3 * largest
        )
    masses = [mine["mass"][0] for mine, _ in as_built(one, two)]
    assert np.ptp(masses) > 0.5  # three different robots


@pytest.mark.slow
def test_all_terms_at_once_give_nearly_the_same_motion_in_both_engines(drawn):
    terms = {name: term for name, term in STRONG.items() if name != "friction"}
    paths = []
    for name, table in (("mujoco", terms), ("pybullet", terms), ("pybullet", {})):
        engine, _ = drawn(name, table)
        start = InitialState.default(engine.robot, N)
        start.position_w[:, 2] += 1.0  # in the air: contacts are another matter
        engine.reset(np.arange(N), start)
        paths.append(walk(engine, 6).robot.q)
    one, two, nominal = paths
    assert (np.abs(one - nominal).max(axis=1) > 0.2).all()  # terms do far more than engines
    np.testing.assert_allclose(two, one, atol=0.02)


def test_a_delay_is_as_many_physics_steps_as_in_mujoco(drawn, a1):
    heard = {}
    for name in ("mujoco", "pybullet"):
        engine, _ = drawn(name, {"delay": "=U(0.0, 0.02)"})
        late = np.array([0.0, 0.006, 0.02])
        if isinstance(engine, MujocoEngine):
            engine.servos.set_delay(np.arange(N), late)
        else:
            engine.set_parameter("delay_s", np.arange(N), late[:, None])
        start = InitialState.default(a1, N)
        start.position_w[:, 2] += 1.0
        engine.reset(np.arange(N), start)
        target = np.tile(a1.actuated_array("q_default") + 0.2, (N, 1))
        first = np.full(N, -1)
        for step in range(6):
            engine.step(target, substeps=1)
            answered = np.abs(engine.state().robot.tau).max(axis=1) > 4.0  # 40 N m/rad, 0.2 rad
            first[(first < 0) & answered] = step
        heard[name] = first.tolist()
    # ceil(delay / 5 ms)
    assert heard == {"mujoco": [0, 2, 4], "pybullet": [0, 2, 4]}


def test_a_push_is_the_same_in_both_engines(drawn):
    pushed = []
    for name in ("mujoco", "pybullet"):
        engine, _ = drawn(name, {})
        start = InitialState.default(engine.robot, N)
        start.position_w[:, 2] += 1.0
        start.quat_wb[:] = [np.sqrt(0.5), 0.0, 0.0, np.sqrt(0.5)]  # facing world y
        engine.reset(np.arange(N), start)
        engine.add_velocity(
            np.array([2, 0]), np.array([[0.5, 0.2, 0.0], [0.0, -0.4, 0.1]]), np.zeros((2, 3))
        )
        walk(engine, 1)
        pushed.append(engine.state().lin_vel_b)
    np.testing.assert_allclose(pushed[1], pushed[0], atol=0.02)
    fallen = pushed[0][1]  # was not pushed
    # World (0.5, 0.2) is (0.2, -0.5) for who faces world y.
    np.testing.assert_allclose(pushed[1][2] - fallen, [0.2, -0.5, 0.0], atol=0.02)


# ------------------------------------------------------------------ what is refused


def test_a_term_that_pybullet_cannot_do_is_refused_at_load_with_what_to_do(monkeypatch):
    monkeypatch.delitem(PYBULLET, "armature")
    message = (
        r"a1_walk.*PyBullet cannot simulate the random term armature; leave them out "
        r"\(--set randomize.armature=null\), or simulate in MuJoCo"
    )
    with pytest.raises(ConfigError, match=message):
        load_env_config("a1_walk", ["sim.engine=pybullet"])
    load_env_config("a1_walk", ["sim.engine=mujoco"])
    config = load_env_config("a1_walk", ["sim.engine=pybullet", "randomize.armature=null"])
    assert "armature" not in config.randomize and "friction" in config.randomize
    with pytest.raises(ConfigError, match=r"'frictoin' \(did you mean 'friction'\?\)"):
        load_env_config("a1_walk", ["randomize.frictoin=null"])
    with pytest.raises(ConfigError, match=r"terms armature, x; .*armature=null --set randomize.x="):
        require_supported("pybullet", ["armature", "friction", "x"])


def test_a_gain_of_zero_is_not_scaled_and_a_fixed_base_not_pushed():
    with pytest.raises(FerryError, match="nominal gain is 0"):
        PYBULLET["kd"].convert(np.array([1.0, 0.0]), np.array([[1.0, 0.5]]))
    np.testing.assert_array_equal(
        PYBULLET["kd"].convert(np.array([2.0, 0.0]), np.array([[1.0, 0.0]])), [[0.5, 1.0]]
    )
    with pytest.raises(FerryError, match="fixed base, which nothing can push"):
        fixed = PyBulletEngine(load_robot("cartpole"), 1)
        fixed.add_velocity(np.arange(1), np.zeros((1, 3)), np.zeros((1, 3)))
