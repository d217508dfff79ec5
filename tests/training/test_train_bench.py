from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from sim.env import make_env
from tests.extras import need
from training import ant_bench, train_bench
from training.a1_bench import Reached
from training.ant_bench import Contender, bench_ant
from training.bench_commands import flat_rows
from training.learner_peers import PeerMissing
from training.run_config import load_run_config
from training.suites import suites_on
from training.train_bench import TrainTimes
from training.train_peers import TRAINERS

SMALL = ["sim.worlds=8", "training.horizon=4", "training.ppo.epochs=1"]


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_a_peers_actor_becomes_one_of_ours_that_acts_alike(name: str) -> None:
    need(name)
    config = load_run_config("cartpole_balance", SMALL)
    env = make_env(config, seed=1)
    run = TRAINERS[name](env, config, 1)
    first = run.policy()
    for _ in range(3):
        run.iterate()
    later = run.policy()
    obs = torch.from_numpy(env.observation["policy"])
    assert (first.mean(obs) != later.mean(obs)).any()
    assert float(later.obs_norm.mean.abs().sum()) > 0.0
    assert torch.isfinite(later.mean(obs)).all()
    assert (later.mean(obs) == run.policy().mean(obs)).all()
    env.close()


def test_who_never_got_there_counts_as_the_longest_and_the_better_peer_is_compared_with() -> None:
    def run(seconds: float | None) -> Reached:
        return Reached(seconds, seconds, None if seconds is None else 10, 0.9)

    times = TrainTimes(
        {
            "ours": (run(100.0), run(None), run(120.0)),
            "rsl_rl": (run(300.0), run(200.0), run(400.0)),
        },
        {"stable_baselines3": "not here"},
    )
    json = times.as_json()
    assert json["seconds_to_0.9"] == {"ours": 120.0, "stable_baselines3": None, "rsl_rl": 300.0}
    assert json["ratio"] == pytest.approx(0.4)
    assert times.rows()["stable_baselines3"] == "not here"


def test_what_is_left_of_a_score_in_the_other_engine_is_told_on_any_ground() -> None:
    for terrain in (False, True):
        scores = dict(zip(suites_on(terrain=terrain), ((0.8,), (0.6,)), strict=True))
        assert TrainTimes({}, {}, scores).transfer == pytest.approx(0.75)


def test_a_peer_that_is_missing_is_said_and_others_are_run(monkeypatch) -> None:
    need("pybullet")

    def gone(*_: object) -> None:
        raise PeerMissing("it cannot be imported")

    monkeypatch.setattr(train_bench, "TRAINERS", {"stable_baselines3": gone, "rsl_rl": gone})
    mine = Reached(1.0, 0.5, 6, 0.95), {"nominal": 0.8, "pybullet": 0.6}
    monkeypatch.setattr(train_bench, "_ours", lambda *_, **__: mine)
    times = train_bench.bench_train(peers=True, seeds=2, config="cartpole_balance")
    assert set(times.missing) == {"stable_baselines3", "rsl_rl"}
    assert len(times.runs["ours"]) == 2
    assert times.as_json()["ratio"] is None
    assert times.as_json()["pybullet_over_mujoco"] == pytest.approx(0.75)


def test_the_ant_bench_tells_physics_from_the_rest_and_counts_the_time_of_processes() -> None:
    ours = ant_bench.CONTENDERS["ours"](3, 1)
    actions = np.full((3, 8), 0.5)
    before = ours.cpu_s()
    ours.step(actions)
    assert ours.physics is not None
    assert 0.0 < ours.physics.cpu_s <= ours.cpu_s() - before

    burn = "import sys\nfor _ in range(10**6): pass\nprint('done', flush=True)\nsys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", burn], stdin=pipe, stdout=pipe) as busy:
        assert busy.stdout is not None and busy.stdin is not None
        assert busy.stdout.readline() == b"done\n"
        own = ant_bench._cpu_with([])
        assert ant_bench._cpu_with([busy.pid]) >= own + 0.01
        busy.stdin.close()


def test_the_ant_bench_has_null_and_a_word_for_what_is_not_installed(monkeypatch) -> None:
    def ours(worlds: int, threads: int) -> Contender:
        return Contender(worlds, lambda actions: np.zeros(len(actions)), lambda: None, "4")

    monkeypatch.setattr(ant_bench, "_TURN_S", 0.0)
    monkeypatch.setitem(ant_bench.CONTENDERS, "ours", ours)
    for name in ("envpool", "gymnasium_async"):
        module = f"no_{name}"
        monkeypatch.setitem(ant_bench.CONTENDERS, name, lambda *_, m=module: ant_bench._module(m))
    found = bench_ant(worlds=2, threads=1, seconds=0.0)
    assert found["ant"]["ours"] > 0.0
    assert found["ant"]["envpool"] is found["ant"]["gymnasium_async"] is None
    assert found["ant_cpu_ratio"] == found["ant_bound"] == dict.fromkeys(found["ant_ratio"])
    assert "pip install 'ferry[peers]'" in found["ant_missing"]["envpool"]
    assert flat_rows(found)["ant_mujoco ours"] == "4"


def test_a_peer_that_cannot_be_started_costs_none_of_the_others(monkeypatch) -> None:
    def ours(worlds: int, threads: int) -> Contender:
        return Contender(worlds, lambda actions: np.zeros(len(actions)), lambda: None, "4")

    def full(worlds: int, threads: int) -> Contender:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(ant_bench, "_TURN_S", 0.0)
    monkeypatch.setattr(ant_bench, "CONTENDERS", {"ours": ours, "gymnasium_async": full})
    found = bench_ant(worlds=3, threads=1, seconds=0.0)
    assert found["ant"]["ours"] > 0.0
    assert "Cannot allocate memory" in found["ant_missing"]["gymnasium_async"]
    monkeypatch.setattr(ant_bench, "CONTENDERS", {"ours": full})
    with pytest.raises(OSError, match="Cannot allocate"):
        bench_ant(worlds=3, threads=1, seconds=0.0)
