"""Worlds that are broken for real: what is left of them, and that it diverges again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from real.errors import FerryError
from sim import black_box
from sim.env import StepResult, VecEnv, make_env
from sim.replay import Record, read_record, replay
from sim.task import load_env_config

NUM, BROKEN, OTHERS = 4, 1, [0, 2, 3]
#: When worlds are broken, and when the test ends; more steps than are kept lie before.
BREAK, END = 11, 16
CONFIG = load_env_config("a1_walk", ["randomize_episode_phase=false"])


def make(folder: Path | None = None, name: str = "actor-0", num: int = NUM) -> VecEnv:
    files = None if folder is None else folder / name
    return make_env(CONFIG, num=num, threads=1, seed=3, diverged=files)


def actions(step: int, num: int = NUM) -> np.ndarray:
    return 0.4 * np.random.default_rng(step).normal(size=(num, 12))


def array(env: VecEnv, name: str) -> np.ndarray:
    """A field of the states or, where worlds have their own, of the model: live, ``[N, ...]``."""
    return env.engine.fields[name] if name in env.engine.fields else env.engine.batch.bind(name)


@pytest.fixture(scope="module")
def healthy() -> list[StepResult]:
    env = make()
    return [env.step(actions(step)) for step in range(END)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "diverged"


def steps(env: VecEnv, first: int, end: int) -> Iterator[tuple[int, StepResult]]:
    for step in range(first, end):
        yield step, env.step(actions(step))


def test_nothing_is_written_where_nothing_diverges_or_no_folder_is_given(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for env in (make(), make(folder)):
        for _ in steps(env, 0, 3):
            pass
    broken = make()
    array(broken, "qpos")[BROKEN] = np.nan
    broken.step(actions(0))
    assert broken.counters["diverged"] == 1
    assert list(tmp_path.rglob("*")) == []


STATE = ["qpos", "qvel", "time", "history", "qacc_warmstart", "qfrc_applied", "xfrc_applied"]
MODEL = ["body_mass", "body_inertia", "body_ipos", "dof_armature", "geom_friction"]
MODEL += ["actuator_biasprm"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", STATE + MODEL)
def test_a_broken_number_in_any_field_leaves_a_file_that_diverges_again(
    name: str, value: float, healthy: list[StepResult], folder: Path
) -> None:
    env = make(folder)
    for step, result in steps(env, 0, END):
        # The others are those of a run in which nothing broke, bit for bit.
        for obs in ("policy", "critic"):
            np.testing.assert_array_equal(result.obs[obs][OTHERS], healthy[step].obs[obs][OTHERS])
            assert np.isfinite(result.obs[obs]).all()
        np.testing.assert_array_equal(result.reward[OTHERS], healthy[step].reward[OTHERS])
        assert result.terminated.tolist() == [False, step == BREAK, False, False]
        if step == BREAK - 1:
            array(env, name)[BROKEN] = value
    assert env.counters["diverged"] == 1
    (path,) = folder.glob("*.npz")
    assert path.name == "actor-0-00.npz"
    assert sorted(p.suffix for p in folder.iterdir()) == [".mjb", ".npz"]

    again = replay(path)
    assert (again.record.actor, again.record.world) == ("actor-0", BROKEN)
    assert len(again.record.states) == black_box.STEPS
    if name in MODEL:  # the model is as it was in the end, so the first step is the last
        assert again.diverged_at == 0
        assert f"model/{name}" in again.record.broken
        assert f"model/{name}" in again.broken
    else:
        assert again.diverged_at == black_box.STEPS - 1
        assert again.moved == (black_box.STEPS - 1,)  # by this test
        assert again.same
        assert "bit for bit" in str(again)
    assert again.broken


def test_a_force_beyond_measure_diverges_again_from_states_and_targets_alone(folder: Path) -> None:
    env = make(folder)
    force = array(env, "xfrc_applied")
    done = False
    for step in range(40):
        # It grows until the physics gives up, some steps after it began; a part of each input.
        force[BROKEN, 1, 0] = 10.0 ** (step - 8) if step > 10 else 0.0
        done = bool(env.step(actions(step)).episode.get("diverged", np.zeros(1)).any())
        if done:
            break
    assert done
    again = replay(folder / "actor-0-00.npz")
    assert again.same
    assert again.diverged_at == len(again.record.states) - 1
    # Only the force of each step was given by hand: it is in the states.
    states = again.record.states
    assert np.isfinite(states).all()
    assert len(again.moved) == len(states) - 1


def test_inputs_are_what_the_steps_before_left_so_that_pushes_show(folder: Path) -> None:
    pushed = ['randomize.push.value="=U(0.5, 1)"', "randomize.push.interval_s=[0.1, 0.1]"]
    config = load_env_config("a1_walk", ["randomize_episode_phase=false", *pushed])
    env = make_env(config, num=3, threads=1, seed=3, diverged=folder / "actor-0")
    for step in range(12):
        env.step(actions(step, 3))
    array(env, "qvel")[2, 7] = np.inf
    env.step(actions(12, 3))
    again = replay(folder / "actor-0-00.npz")
    pushes = np.array(again.record.sample["values"]["push"]).reshape(-1, 3)
    # 13 steps, of which the last eight are kept; one in five begins with a push.
    pushed = np.rint(pushes[:, 0] / env.robot.control_dt_s).astype(int) - (13 - black_box.STEPS)
    assert again.moved == tuple(sorted({*(k for k in pushed.tolist() if k > 0), 7}))
    assert len(again.moved) >= 2
    assert again.same


def test_a_world_that_breaks_under_another_gravity_is_written_down_too(folder: Path) -> None:
    tilted = "randomize={gravity_tilt: {value: '=U(0.05, 0.1)'}}"
    config = load_env_config("a1_walk", ["randomize_episode_phase=false", tilted])
    env = make_env(config, num=3, threads=1, seed=3, diverged=folder / "actor-0")
    assert "opt.gravity" in env.engine.fields
    env.step(actions(0, 3))
    env.engine.batch.bind("qvel")[BROKEN] = 1e12
    assert env.step(actions(1, 3)).terminated.tolist() == [False, True, False]
    (file,) = folder.glob("*.npz")
    assert replay(file).diverged_at is not None


def test_a_file_has_what_the_world_drew_was_told_and_sensed(folder: Path) -> None:
    env = make(folder)
    for _ in steps(env, 0, 5):
        pass
    sample = env.randomizer.sample(BROKEN)
    mass = array(env, "body_mass")[BROKEN].copy()
    array(env, "qpos")[BROKEN, 2] = np.nan
    env.step(actions(5))
    record = read_record(folder / "actor-0-00.npz")
    assert record.sample["seed"] == sample.seed == 3
    assert record.sample["values"] == sample.values
    np.testing.assert_array_equal(record.fields["body_mass"], mass)
    assert len(record.states) == 6  # as many as the episode had
    np.testing.assert_array_equal(record.arrays["action"], actions(5)[BROKEN])
    assert np.isnan(record.arrays["world/position_w"]).any()
    assert "world/position_w" in record.broken
    assert record.model.nq == env.engine.built.model.nq


def test_a_broken_sensor_lies_outside_of_the_physics(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make(folder)
    for _ in steps(env, 0, 3):
        pass
    env._sensors._bias[BROKEN] = np.nan
    assert env.step(actions(3)).terminated.tolist() == [False, True, False, False]
    again = replay(folder / "actor-0-00.npz")
    assert again.diverged_at is None
    assert again.same
    assert again.moved == ()
    assert "sensed/gyro_b" in again.record.broken
    assert "world/" not in again.record.broken
    assert "lies outside of it" in str(again)


def test_steps_of_an_earlier_episode_or_of_another_state_are_not_kept(folder: Path) -> None:
    env = make(folder)
    for _ in steps(env, 0, 6):
        pass
    kept = env.state_dict()
    array(env, "qpos")[BROKEN] = np.nan
    env.step(actions(6))
    env.step(actions(7))
    array(env, "qpos")[[0, BROKEN]] = np.nan
    env.step(actions(8))
    records = [read_record(path) for path in sorted(folder.glob("*.npz"))]
    assert [(r.world, len(r.states)) for r in records] == [(BROKEN, 7), (0, 8), (BROKEN, 2)]
    env.load_state_dict(kept)
    array(env, "qpos")[2] = np.nan
    env.step(actions(6))
    assert len(read_record(folder / "actor-0-03.npz").states) == 1


def test_so_many_files_and_no_more_whoever_writes_them(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make(folder, "actor-0"), make(folder, "actor-1-restart-2")
    for step in range(4):
        for env in (first, second):
            array(env, "qpos")[[0, 3], 2] = np.inf
            env.step(actions(step))
    assert first.counters["diverged"] == second.counters["diverged"] == 8
    names = [path.name for path in sorted(folder.glob("*.npz"))]
    assert len(names) == black_box.LIMIT == 10
    assert sum(name.startswith("actor-0-") for name in names) == 6
    assert sum(name.startswith("actor-1-restart-2-") for name in names) == 4
    assert len(list(folder.glob("*.mjb"))) == 1
    assert list(folder.glob("*.part")) == []
    assert sum("diverged" in record.message for record in caplog.records) == 10


def test_a_folder_that_cannot_be_written_is_one_warning_and_no_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    env = make(tmp_path / "file" / "diverged")
    for step in range(3):
        array(env, "qpos")[2] = np.nan
        env.step(actions(step))
    assert env.counters["diverged"] == 3
    assert len([r for r in caplog.records if "cannot write" in r.message]) == 1


def test_what_is_no_record_is_refused_in_words(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FerryError, match=r"none\.npz is no record .*No such file"):
        read_record(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(FerryError, match=r"other\.npz is no record"):
        read_record(tmp_path / "other.npz")
    env = make(folder)
    array(env, "qpos")[2] = np.nan
    env.step(actions(0))
    path = folder / "actor-0-00.npz"
    assert isinstance(read_record(path), Record)
    (model,) = folder.glob("*.mjb")
    model.write_bytes(model.read_bytes()[:100])
    with pytest.raises(FerryError, match=r"model-.*\.mjb cannot be loaded"):
        read_record(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FerryError, match="is no record"):
        read_record(path)
