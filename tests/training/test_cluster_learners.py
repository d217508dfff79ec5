"""Several learners through the whole runtime: they learn as one, and one may die."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import training.train as room
from tests.training.toy_run import FRAGMENT, slow_env, toy_config, workers
from training.checkpoint import newest_checkpoint
from training.learner_group import LeadLearner
from training.process_tree import descendants
from training.roles import RestartBudgetExceeded
from training.shares import shares
from training.train import train

pytestmark = pytest.mark.ray
pytest.importorskip("ray", reason="the `cluster` extra is not installed")

#: How long a fault may take to be noticed and mended on a busy machine [s].
PATIENCE_S = 200.0


def records(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if "lag/mean" in r]


@pytest.mark.parametrize("fragments", [2, 1])  # of whole rollouts, and of halves of one
def test_two_learners_in_a_run_do_what_one_does_with_all_samples(tmp_path, monkeypatch, fragments):
    seen = []

    class Recording(LeadLearner):
        def __init__(self, spec, host, **more):
            super().__init__(spec, host, **more)
            self.alone = spec.make()
            seen.append(self)
            self.given = []

        def update(self, rollouts, *, weights=None):
            self.given.append((list(rollouts), weights))
            return super().update(rollouts, weights=weights)

    monkeypatch.setattr(room, "LeadLearner", Recording)
    updates = 3
    train(
        toy_config(
            "training.runtime.learners=2",
            f"training.runtime.fragments_per_update={fragments}",
        ),
        tmp_path,
        steps=updates * fragments * FRAGMENT,
        env_factory=slow_env,
        runtime="ray",
    )
    assert descendants() == []
    (lead,) = seen
    assert len(lead.given) == updates
    for rollouts, weights in lead.given:
        parts = shares(rollouts, weights, size=2)
        assert {len(part) for part, _ in parts} == {1}
        joined = [rollout for part, _ in parts for rollout in part]
        of_joined = [weight for _, own in parts for weight in own]
        lead.alone.update(joined, weights=of_joined)
    stored = newest_checkpoint(tmp_path / "checkpoints")
    expected = {**lead.alone.snapshot().state, **lead.alone.state_dict()}
    found = {**stored.policy, **stored.learner}
    assert found.keys() == expected.keys()
    assert found["version"] == updates
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=1e-6, err_msg=name)
    pooled = np.concatenate([r.obs[:-1] for rs, _ in lead.given for r in rs]).reshape(-1, 4)
    np.testing.assert_allclose(found["obs_norm.var"], pooled.astype(np.float64).var(0), rtol=1e-12)
    assert found["obs_norm.count"] == updates * fragments * FRAGMENT


@pytest.mark.parametrize("when", ["between updates", "in an update"])
def test_a_learner_is_killed_and_training_goes_on_with_a_replacement(
    tmp_path, monkeypatch, caplog, when
):
    leads: list[Watched] = []
    killed: list[int] = []
    since = time.monotonic()

    class Watched(LeadLearner):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            self.began = threading.Event()
            leads.append(self)

        def update(self, *args, **more):
            self.began.set()
            return super().update(*args, **more)

    def kill_in_an_update(pid: int) -> None:
        # It has answered for the last update; stopped, it lets none of the next one end.
        (lead,) = leads
        assert lead._host.ready(lead._members[0].ticket, PATIENCE_S)
        os.kill(pid, signal.SIGSTOP)
        lead.began.clear()

        def kill() -> None:
            lead.began.wait(PATIENCE_S)
            os.kill(pid, signal.SIGKILL)

        threading.Thread(target=kill).start()

    def tell(done: float, total: float, note: str = "") -> None:
        assert time.monotonic() - since < PATIENCE_S, "the run does not end"
        if not killed and len(records(tmp_path)) >= 3:
            killed.extend(workers("_Learner"))
            (pid,) = killed
            if when == "in an update":
                kill_in_an_update(pid)
            else:
                os.kill(pid, signal.SIGKILL)
        if len(killed) == 1 and records(tmp_path)[-1]["learner/restarts"] == 1:
            killed.extend(workers("_Learner"))

    monkeypatch.setattr(room, "LeadLearner", Watched)
    updates = 15
    result = train(
        toy_config("training.runtime.learners=2"),
        tmp_path,
        steps=updates * FRAGMENT,
        env_factory=slow_env,
        runtime="ray",
        progress=tell,
    )
    assert descendants() == []
    assert len(set(killed)) == 2  # there is another one in its place
    assert "is not applied" in caplog.text
    if when == "in an update":  # noticed on the line between the learners
        assert "another learner ended or hangs" in caplog.text
    assert "learner 1 is replaced" in caplog.text
    found = records(tmp_path)
    # What was not applied is no version, and its rollouts were learned from later.
    assert [r["learner/version"] for r in found] == list(range(1, updates + 1))
    assert result.steps == updates * FRAGMENT
    stored = newest_checkpoint(tmp_path / "checkpoints")
    assert stored.policy["obs_norm.count"] == result.steps
    # Every update compares the policies of both: one that lacked something would be replaced too.
    assert found[-1]["learner/restarts"] == 1
    assert max(r["learner/lag"] for r in found) <= 4


def test_learners_that_always_die_end_the_run(tmp_path):
    since = time.monotonic()

    def tell(done: float, total: float, note: str = "") -> None:
        assert time.monotonic() - since < PATIENCE_S, "the run does not end"
        for pid in workers("_Learner"):
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(RestartBudgetExceeded, match="learner 1 failed"):
        train(
            toy_config(
                "training.runtime.learners=2",
                "training.runtime.max_restarts=1",
                "training.run.checkpoint_every=1",
            ),
            tmp_path,
            steps=10**6,
            env_factory=slow_env,
            runtime="ray",
            progress=tell,
        )
    assert descendants() == []
    # What was kept is whole updates.
    stored = newest_checkpoint(tmp_path / "checkpoints")
    assert stored.policy["obs_norm.count"] == stored.step == FRAGMENT * stored.learner["version"]
