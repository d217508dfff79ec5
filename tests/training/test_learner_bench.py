"""The benchmark's record, and that what it times is a real update."""

from __future__ import annotations

import json

import pytest
import torch

from training import learner_bench
from training.learner import Learner
from training.learner_bench import bench_learner, made_up_rollout, table_rows
from training.learner_peers import PEERS, PeerMissing, Sizes
from training.networks import NetworkConfig
from training.ppo_config import PpoConfig

SMALL = Sizes(worlds=8, steps=4, obs_dim=5, action_dim=2, hidden=(8,), epochs=2, minibatches=2)


def test_the_record_has_the_agreed_keys_and_says_why_a_peer_is_missing(monkeypatch):
    def absent(sizes):
        raise PeerMissing("quick is not installed")

    monkeypatch.setattr(learner_bench, "PEERS", {"stable_baselines3": absent, "rsl_rl": absent})
    threads = torch.get_num_threads()
    record = json.loads(json.dumps(bench_learner(seconds=0.0, sizes=SMALL)))
    assert record["sample_passes_per_s"] > 0.0
    assert record["peers"] == {"stable_baselines3": None, "rsl_rl": None}
    assert record["ratio_to_best_peer"] is None
    assert record["device"] == "cpu"
    assert record["skipped"]["rsl_rl"] == "quick is not installed"
    assert torch.get_num_threads() == threads


def test_the_ratio_is_to_the_better_peer_and_each_counts_with_its_better_threads(monkeypatch):
    monkeypatch.setattr(learner_bench, "PEERS", {"a": lambda s: None, "b": lambda s: None})
    monkeypatch.setattr(learner_bench.os, "cpu_count", lambda: 4)
    times = {
        "ours": [0.1],
        "epochs": [0.05],
        "bf16": [0.2],
        "gpu": [0.01],
        "a/1": [0.4],
        "a/4": [0.2],
        "b/1": [0.25],
        "b/4": [0.8],
    }
    monkeypatch.setattr(learner_bench, "_take_turns", lambda contenders, **_: times)
    record = bench_learner(sizes=SMALL)
    passes = 2 * 8 * 4
    assert record["peers"] == pytest.approx({"a": passes / 0.2, "b": passes / 0.25})
    assert record["ratio_to_best_peer"] == pytest.approx(2.0)
    assert record["like_for_like"]["ratio_to_best_peer"] == pytest.approx(4.0)
    assert record["switches"] == {"bf16": pytest.approx(passes / 0.2), "compile": None}
    rows = table_rows(record)
    assert rows["on a GPU"] == "6,400"  # 64 passes in 0.01 s
    assert rows["with compile"] == "not measured"
    # 32 samples, two epochs: 0.01 s an update on the GPU, and 0.1 s here
    assert record["rates"] == {"update_s_per_sample": pytest.approx(0.01 / 32)}
    del times["gpu"]
    assert bench_learner(sizes=SMALL)["rates"] == {"update_s_per_sample": pytest.approx(0.1 / 32)}


def test_what_is_timed_learns_from_data_of_its_own_policy():
    network = NetworkConfig(hidden=SMALL.hidden, critic_hidden=SMALL.hidden)
    learner = Learner(5, 5, action_dim=2, network=network, ppo=PpoConfig(), seed=0)
    _, metrics = learner.update([made_up_rollout(learner, SMALL)])
    assert metrics["ppo/ratio_error"] < 1e-5
    assert metrics["learner/refused"] == 0.0
    assert learner.version == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
def test_a_peer_that_is_installed_makes_updates_of_the_given_size(name):
    try:
        update = PEERS[name](SMALL)
    except PeerMissing as error:
        pytest.skip(str(error))
    update()
    update()
