"""Metrics have written meanings, and episode statistics do not favour short episodes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from real.errors import FerryError
from real.rollout import EpisodeStats, Rollout
from training.metrics import (
    METRICS,
    EpisodeTracker,
    MetricsWriter,
    check_names,
    drop_records_after,
)


def rollout(num: int, *episodes: EpisodeStats, actor: str = "a") -> Rollout:
    return Rollout(
        obs=np.zeros((2, num, 1), np.float32),
        critic_obs=np.zeros((2, num, 1), np.float32),
        actions=np.zeros((1, num, 1), np.float32),
        log_probs=np.zeros((1, num), np.float32),
        rewards=np.zeros((1, num), np.float32),
        terminated=np.zeros((1, num), bool),
        truncated=np.zeros((1, num), bool),
        final_index=np.empty((0, 2), np.int64),
        final_critic_obs=np.empty((0, 1), np.float32),
        policy_version=0,
        actor_id=actor,
        episodes=episodes,
    )


def episode(env: int, total: float, length: int, **values: float) -> EpisodeStats:
    return EpisodeStats(env, total, length, terminated=length < 100, values=values)


def test_short_episodes_do_not_count_more_than_long_ones():
    tracker = EpisodeTracker()
    for _ in range(100):  # world 0 ends 100 times while world 1 ends once
        tracker.add(rollout(2, episode(0, 10.0, 10)))
    tracker.add(rollout(2, episode(1, 1000.0, 1000)))
    found = tracker.metrics()
    assert found["train/return"] == 505.0
    assert found["train/length"] == 505.0
    assert found["train/terminated"] == 0.5
    assert found["train/episodes"] == 101.0  # not the size of a window


def test_numbers_are_flagged_until_every_world_has_finished_an_episode():
    tracker = EpisodeTracker()
    tracker.add(rollout(4))
    assert tracker.metrics() == {"train/episodes": 0.0, "train/worlds_finished": 0.0}
    tracker.add(rollout(4, episode(2, 1.0, 5), episode(2, 3.0, 5), episode(0, 5.0, 5)))
    assert tracker.metrics()["train/worlds_finished"] == 0.5
    assert tracker.metrics()["train/return"] == 4.0  # the later of the two of world 2
    tracker.add(rollout(4, episode(1, 0.0, 9), episode(3, 0.0, 9)))
    assert tracker.metrics()["train/worlds_finished"] == 1.0


def test_worlds_of_two_actors_are_different_worlds():
    tracker = EpisodeTracker()
    tracker.add(rollout(1, episode(0, 1.0, 5), actor="a"))
    tracker.add(rollout(3, episode(0, 5.0, 5), actor="b"))
    assert tracker.metrics()["train/return"] == 3.0
    assert tracker.metrics()["train/worlds_finished"] == 0.5


def test_other_numbers_of_an_episode_are_averaged_alike_and_survive_a_checkpoint():
    tracker = EpisodeTracker()
    tracker.add(rollout(3, episode(0, 1.0, 5, tracking=0.5), episode(2, 1.0, 5, tracking=1.0)))
    assert tracker.metrics()["episode/tracking"] == 0.75
    restored = EpisodeTracker()
    restored.load_state_dict(tracker.state_dict())
    assert restored.metrics() == tracker.metrics()
    for each in (tracker, restored):
        each.add(rollout(3, episode(1, 1.0, 5, tracking=0.0)))
    assert restored.metrics() == tracker.metrics()


def test_a_metric_without_a_meaning_is_an_error_that_names_the_nearest():
    check_names({"ppo/kl": 1.0, "reward/anything": 1.0, "episode/tracking": 2.0})
    with pytest.raises(FerryError, match=r"'ppo/k1' .*did you mean 'ppo/kl'"):
        check_names({"ppo/k1": 1.0})
    for name, metric in METRICS.items():
        assert "/" in name
        assert metric.unit
        assert len(metric.meaning.split()) > 2


def test_records_go_to_a_file_and_to_tensorboard(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(10, {"ppo/kl": 0.25, "ppo/std": math.nan})
    with pytest.raises(FerryError, match="not in"):
        writer.write(20, {"nonsense": 1.0})
    writer.close()
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 10, "ppo/kl": 0.25, "ppo/std": None}

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (scalar,) = events.Scalars("ppo/kl")
    assert (scalar.step, scalar.value) == (10, 0.25)


def test_records_after_the_checkpoint_that_is_resumed_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step}) for step in (5, 10, 15)]
    path.write_text("\n".join([*lines, '{"step": 7, "cut sho']))
    drop_records_after(path, 10)
    assert path.read_text() == f"{lines[0]}\n{lines[1]}\n"
    drop_records_after(tmp_path / "absent", 10)
