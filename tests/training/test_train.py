"""A run: its folder, its limits, resuming bit by bit, signals, and the choice of the best."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from real.config import config_hash, load_config
from real.errors import FerryError
from training.checkpoint import (
    checkpoint_folders,
    load_checkpoint,
    newest_checkpoint,
    pointed,
    set_pointer,
)
from training.networks import ActorCritic
from training.run_config import RunConfig, differences, load_run_config
from training.toy_env import PointEnv
from training.train import load_policy, train

ROOT = Path(__file__).resolve().parents[2]
WORLDS, HORIZON = 16, 8
#: Control steps in an iteration.
ITERATION = WORLDS * HORIZON

SMALL = (
    "training.network.hidden=[16, 16]",
    "training.network.critic_hidden=[16]",
    f"training.horizon={HORIZON}",
    "training.seed=4",
    "training.run.threads=1",
    "training.run.checkpoint_every=3",
    "training.run.evaluate_every=0",
    "training.symmetry.enabled=false",  # the toy has no left and right
)

#: The same run, for a process of its own: arguments are folder, iterations, "resume" or "", and
#: overrides.
SCRIPT = f"""
import sys
from pathlib import Path
from training.run_config import load_run_config
from training.toy_env import PointEnv
from training.train import train

config = load_run_config("a1_walk", [*{SMALL!r}, *sys.argv[4:]])
train(config, Path(sys.argv[1]), steps=int(sys.argv[2]) * {ITERATION}, resume=bool(sys.argv[3]),
      env_factory=lambda c, stream: PointEnv({WORLDS}, seed=c.training.seed, limit=11))
"""


def config(*overrides: str) -> RunConfig:
    return load_run_config("a1_walk", [*SMALL, *overrides])


def run(out: Path, iterations: int, *overrides: str, **kwargs):
    return train(
        config(*overrides),
        out,
        steps=iterations * ITERATION,
        env_factory=lambda c, stream: PointEnv(WORLDS, seed=c.training.seed, limit=11),
        **kwargs,
    )


def process(
    out: Path, iterations: int, *overrides: str, resume: bool = False
) -> subprocess.Popen[str]:
    arguments = [str(out), str(iterations), "resume" if resume else "", *overrides]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )


def assert_same_state(a: Path, b: Path) -> None:
    """All arrays of the newest checkpoints of two runs are equal, bit by bit."""
    one, two = newest_checkpoint(a / "checkpoints"), newest_checkpoint(b / "checkpoints")
    assert one.step == two.step
    for field in ("policy", "learner", "actor", "episodes", "probe"):
        x, y = getattr(one, field), getattr(two, field)
        assert x.keys() == y.keys()
        for name in x:
            np.testing.assert_array_equal(x[name], y[name], err_msg=f"{field}.{name}")


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ------------------------------------------------------------------ the folder


@pytest.mark.slow
def test_a_run_folder_says_what_the_run_is(tmp_path):
    out = tmp_path / "run"
    result = run(out, 4)
    assert (result.run_dir, result.steps, result.best_score) == (out, 4 * ITERATION, None)
    assert result.training_s > 0.0
    assert not result.interrupted
    stored = load_config(RunConfig, out / "config.yaml")
    assert (out / "config_hash.txt").read_text().strip() == config_hash(stored)
    assert stored.training.run.steps == 4 * ITERATION
    about = json.loads((out / "run.json").read_text())
    assert about["seed"] == 4
    assert about["git_sha"]
    assert about["command"]
    assert [r["step"] for r in records(out / "metrics.jsonl")] == [
        ITERATION * i for i in range(1, 5)
    ]
    assert list((out / "tensorboard").glob("events*"))
    # Every 3 iterations and at the end.
    names = [folder.name for folder in checkpoint_folders(out / "checkpoints")]
    assert names == [f"step_{3 * ITERATION:08d}", f"step_{4 * ITERATION:08d}"]


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    run(tmp_path, 1)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(FerryError, match=r"holds a run with checkpoints.*--resume.*--out"):
        run(tmp_path, 2)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_resuming_nothing_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(FerryError, match="nothing to resume; train without --resume"):
        run(tmp_path / "run", 1, resume=True)
    assert not (tmp_path / "run").exists()


def test_resuming_with_another_configuration_lists_what_differs(tmp_path):
    run(tmp_path, 1)
    with pytest.raises(FerryError) as error:
        run(tmp_path, 2, "training.ppo.gamma=0.9", "episode_s=7.0", resume=True)
    text = str(error.value)
    assert "training.ppo.gamma: the run has 0.98, given is 0.9" in text
    assert "episode_s: the run has 20.0, given is 7.0" in text
    assert len(text.splitlines()) == 3


def test_the_length_of_a_run_may_change_and_the_order_of_observations_may_not(tmp_path):
    longer = config("training.run.keep=9", "training.run.minutes=3.0", "sim.threads=1")
    assert differences(config(), longer) == []
    turned = dict(reversed(config().observation.items()))
    (found,) = differences(config(), config().model_copy(update={"observation": turned}))
    assert found.startswith("observation (order)")


def test_a_task_that_cannot_run_leaves_no_folder(tmp_path):
    def broken(c: RunConfig, stream: tuple[int, int]):
        raise FerryError("no such robot")

    with pytest.raises(FerryError, match="no such robot"):
        train(config(), tmp_path / "run", env_factory=broken)
    assert not (tmp_path / "run").exists()


# ------------------------------------------------------------------ going on


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [(), ("training.network.gru=6", "training.network.critic_gru=5")], ids=len
)
def test_n_and_n_iterations_in_a_fresh_process_are_2n_bit_by_bit(tmp_path, overrides):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run(whole, 10, *overrides)
    run(halves, 5, *overrides)
    child = process(halves, 10, *overrides, resume=True)
    assert child.wait(120) == 0, child.stderr.read()
    child.stderr.close()
    assert_same_state(whole, halves)
    a, b = records(whole / "metrics.jsonl"), records(halves / "metrics.jsonl")
    for x, y in zip(a, b, strict=True):
        timeless = {k for k in x if not k.startswith("time/")}
        assert {k: x[k] for k in timeless} == {k: y[k] for k in timeless}
    assert json.loads((halves / "run.json").read_text())["resumed"][0]["step"] == 5 * ITERATION


@pytest.mark.slow
def test_evaluating_in_between_changes_nothing_but_the_choice(tmp_path):
    def evaluate(policy: ActorCritic):
        torch.randn(3)
        np.random.default_rng().normal()
        with torch.no_grad():  # even a careless evaluator cannot reach the policy in training
            policy.log_std.add_(1.0)
            policy.obs_norm.count.zero_()
        return {"score": 0.5}

    run(tmp_path / "a", 6)
    run(tmp_path / "b", 6, "training.run.evaluate_every=2", evaluate=evaluate)
    assert_same_state(tmp_path / "a", tmp_path / "b")


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_checkpoint_as_if_nothing_had_happened(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    child = process(killed, 1_000_000)
    deadline = time.monotonic() + 60.0
    while len(checkpoint_folders(killed / "checkpoints")) < 2:
        assert child.poll() is None, child.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child.kill()
    child.wait(10)
    child.stderr.close()

    reached = newest_checkpoint(killed / "checkpoints").step // ITERATION
    run(killed, reached + 4, resume=True)
    run(whole, reached + 4)
    assert_same_state(whole, killed)
    steps = [r["step"] for r in records(killed / "metrics.jsonl")]
    assert steps == [ITERATION * i for i in range(1, reached + 5)]  # none twice, none lost


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_costs_the_steps_since_the_one_before(tmp_path, caplog):
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    run(whole, 8)
    run(damaged, 7)
    newest = checkpoint_folders(damaged / "checkpoints")[-1]
    (newest / "optimizer.safetensors").write_bytes(b"")
    run(damaged, 8, resume=True)
    assert newest.name in caplog.text
    assert_same_state(whole, damaged)


def test_resuming_a_run_that_is_done_changes_nothing(tmp_path):
    run(tmp_path, 3)
    before = newest_checkpoint(tmp_path / "checkpoints")
    assert run(tmp_path, 3, resume=True).steps == 3 * ITERATION
    assert newest_checkpoint(tmp_path / "checkpoints").step == before.step


@pytest.mark.slow
def test_a_checkpoint_whose_policy_is_not_what_answered_is_refused(tmp_path):
    """The state that is loaded into the module must be the state that was stored."""
    out = tmp_path / "run"
    run(out, 3)
    folder = checkpoint_folders(out / "checkpoints")[-1]
    stored = load_checkpoint(folder)
    about = (out / "run.json").read_bytes(), (out / "config.yaml").read_bytes()
    other = dict(stored.policy)
    other["actor.0.weight"] = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    from training.checkpoint import Checkpoint, save_checkpoint

    for changes, words in (
        ({"policy": other}, "weights in memory"),
        ({"probe": {**stored.probe, "mean": stored.probe["mean"] + 0.01}}, "policy's mean"),
        ({"probe": {**stored.probe, "value": stored.probe["value"] * np.nan}}, "policy's value"),
    ):
        save_checkpoint(out / "checkpoints", Checkpoint(**{**vars(stored), **changes}))
        with pytest.raises(FerryError, match=words):
            load_policy(out, "latest")
        with pytest.raises(FerryError, match=words):
            run(out, 4, resume=True)
    # Nothing says that the run went on, or how long it was to be.
    assert ((out / "run.json").read_bytes(), (out / "config.yaml").read_bytes()) == about


# ------------------------------------------------------------------ limits and signals


@pytest.mark.slow
def test_minutes_limit_the_run_and_count_earlier_sessions(tmp_path):
    shares: list[float] = []

    def progress(done: float, total: float, note: str = "") -> None:
        shares.append(done / total)

    first = run(tmp_path, 10_000_000, minutes=0.01, progress=progress)
    assert 0.6 <= first.training_s < 30.0
    assert first.steps < 10_000_000
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    second = run(tmp_path, 10_000_000, minutes=0.01, resume=True)
    assert second.steps == first.steps


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_cleanly_with_a_checkpoint(tmp_path, number):
    handler = signal.getsignal(number)
    calls = 0

    def progress(done: float, total: float, note: str = "") -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            os.kill(os.getpid(), number)

    result = run(tmp_path / "cut", 100, progress=progress)
    assert result.interrupted
    assert result.steps == 4 * ITERATION
    assert newest_checkpoint(tmp_path / "cut" / "checkpoints").step == result.steps
    assert signal.getsignal(number) is handler

    run(tmp_path / "cut", 9, resume=True)
    run(tmp_path / "whole", 9)
    assert_same_state(tmp_path / "cut", tmp_path / "whole")


def test_training_works_in_a_thread_which_cannot_take_signals(tmp_path):
    results = []
    thread = threading.Thread(target=lambda: results.append(run(tmp_path, 2)))
    thread.start()
    thread.join(60)
    assert results[0].steps == 2 * ITERATION


# ------------------------------------------------------------------ best and latest


@pytest.mark.slow
def test_best_is_the_checkpoint_with_the_highest_score_and_it_is_kept(tmp_path):
    scores = iter([0.2, 0.9, 0.4, 0.3, 0.1, 0.05])
    result = run(
        tmp_path,
        6,
        "training.run.evaluate_every=1",
        "training.run.keep=2",
        evaluate=lambda policy: {"score": next(scores), "falls_per_minute": 0.0},
    )
    assert result.best_score == 0.9
    root = tmp_path / "checkpoints"
    assert pointed(root, "best").name == f"step_{2 * ITERATION:08d}"
    assert pointed(root, "latest").name == f"step_{6 * ITERATION:08d}"
    assert len(checkpoint_folders(root)) == 3
    found = records(tmp_path / "evaluations.jsonl")
    assert [r["score"] for r in found] == [0.2, 0.9, 0.4, 0.3, 0.1, 0.05]
    assert [r["step"] for r in found] == [ITERATION * i for i in range(1, 7)]
    assert load_policy(tmp_path).meta["step"] == 2 * ITERATION
    assert load_policy(tmp_path, "latest").meta["step"] == 6 * ITERATION


@pytest.mark.slow
def test_training_stops_early_at_a_score_or_without_progress_and_not_before(tmp_path):
    scores = [0.2, 0.9, 0.4, 0.95, 0.3, 0.1, 0.2, 0.99]

    def stopped_at(name: str, *overrides: str) -> int:
        left = iter(scores)
        result = run(
            tmp_path / name,
            8,
            "training.run.evaluate_every=1",
            *overrides,
            evaluate=lambda policy: {"score": next(left)},
        )
        assert not result.interrupted
        return result.steps // ITERATION

    assert stopped_at("never") == 8
    assert stopped_at("score", "training.run.stop_score=0.9") == 2
    assert stopped_at("patience", "training.run.patience=2") == 6  # best at 4, none at 5 and 6


@pytest.mark.slow
def test_a_resumed_run_scores_what_it_loaded_before_it_trains_on(tmp_path):
    run(tmp_path, 3)
    seen: list[dict] = []

    def evaluate(policy: ActorCritic):
        seen.append({k: v.clone() for k, v in policy.state_dict().items()})
        return {"score": 0.1 * len(seen)}

    loaded = load_policy(tmp_path, "latest").module.state_dict()
    run(tmp_path, 4, resume=True, evaluate=evaluate)
    assert len(seen) == 2
    assert all(torch.equal(seen[0][name], loaded[name]) for name in loaded)
    assert [r["step"] for r in records(tmp_path / "evaluations.jsonl")] == [
        3 * ITERATION,
        4 * ITERATION,
    ]


@pytest.mark.slow
def test_the_best_score_survives_a_resume(tmp_path):
    run(tmp_path, 2, evaluate=lambda policy: {"score": 0.8})
    result = run(tmp_path, 4, resume=True, evaluate=lambda policy: {"score": 0.3})
    assert result.best_score == 0.8
    assert load_policy(tmp_path, "best").meta["step"] == 2 * ITERATION


@pytest.mark.slow
def test_a_run_killed_before_it_pointed_at_its_best_points_there_when_it_goes_on(
    tmp_path, monkeypatch
):
    root = tmp_path / "checkpoints"
    scores = iter([0.2, 0.9])

    class Killed(BaseException):
        pass

    def point(root: Path, pointer: str, name: str) -> None:
        if name.endswith(f"{2 * ITERATION:08d}"):
            raise Killed
        set_pointer(root, pointer, name)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("training.session.set_pointer", point)
        every = "training.run.evaluate_every=1"
        run(tmp_path, 2, every, evaluate=lambda policy: {"score": next(scores)})
    assert pointed(root, "best").name == f"step_{ITERATION:08d}"

    result = run(tmp_path, 3, every, resume=True, evaluate=lambda policy: {"score": 0.5})
    assert result.best_score == 0.9
    assert pointed(root, "best").name == f"step_{2 * ITERATION:08d}"


def test_a_run_killed_while_it_replaced_its_newest_checkpoint_is_still_read(tmp_path):
    run(tmp_path, 2)
    expected = load_policy(tmp_path, "latest")
    newest = pointed(tmp_path / "checkpoints", "latest")
    newest.rename(newest.with_name(f".replaced_{newest.name}_{os.getpid()}"))
    assert load_policy(tmp_path, "latest").meta == expected.meta


def test_an_evaluation_that_fails_leaves_the_checkpoint_of_its_step(tmp_path):
    def evaluate(policy: ActorCritic):
        raise FerryError("no second engine here")

    with pytest.raises(FerryError, match="second engine"):
        run(tmp_path, 2, evaluate=evaluate)
    assert newest_checkpoint(tmp_path / "checkpoints").step == 2 * ITERATION


# ------------------------------------------------------------------ reading a policy


def test_a_loaded_policy_is_the_trained_one_with_its_statistics(tmp_path):
    kept: list[ActorCritic] = []

    def evaluate(policy: ActorCritic):
        kept.append(policy)
        return {"score": 1.0}

    run(tmp_path, 3, evaluate=evaluate)
    loaded = load_policy(tmp_path)
    obs = 20.0 * torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded.module.mean(obs), kept[-1].mean(obs))
    assert loaded.module.obs_norm.count == 3 * ITERATION
    assert not loaded.module.training
    assert loaded.meta["version"] == 3
    assert loaded.meta["seed"] == 4
    assert loaded.meta["config_hash"] == (tmp_path / "config_hash.txt").read_text().strip()
    assert loaded.config.training.horizon == HORIZON


def test_what_is_no_run_folder_is_one_clear_error(tmp_path):
    with pytest.raises(FerryError, match="there is no run folder"):
        load_policy(tmp_path / "gone")
    with pytest.raises(FerryError, match="no run folder with checkpoints"):
        load_policy(tmp_path)
    run(tmp_path, 1)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(FerryError, match="no run folder with checkpoints"):
        load_policy(tmp_path)
