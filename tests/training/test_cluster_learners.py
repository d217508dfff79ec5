"""Two learners through the whole runtime: they learn as one, and one of them dies."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import training.train as room
from tests.extras import reason
from tests.training.toy_run import FRAGMENT, PATIENCE_S, slow_env, toy_config, workers
from training.checkpoint import newest_checkpoint
from training.learner_group import LeadLearner
from training.shares import shares
from training.train import train

pytestmark = pytest.mark.ray
pytest.importorskip("ray", reason=reason("ray"))


def records(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [r for r in map(json.loads, lines) if "lag/mean" in r]


class Watched(LeadLearner):
    """Keeps what was learned from, and tells when an update begins."""

    def __init__(self, spec, host, **more) -> None:
        super().__init__(spec, host, **more)
        self.alone = spec.make()
        self.given: list[tuple] = []
        self.began = threading.Event()

    def update(self, rollouts, *, weights=None):
        self.began.set()
        result = super().update(rollouts, weights=weights)
        self.given.append((list(rollouts), weights))
        return result

    def kill_in_an_update(self, pid: int) -> None:
        # It has answered for the last update; stopped, it lets none of the next one end.
        assert self._host.ready(self._members[0].ticket, PATIENCE_S)
        os.kill(pid, signal.SIGSTOP)
        self.began.clear()

        def kill() -> None:
            self.began.wait(PATIENCE_S)
            os.kill(pid, signal.SIGKILL)

        threading.Thread(target=kill).start()


def test_two_learners_do_what_one_does_and_go_on_with_a_replacement_when_one_is_killed(
    tmp_path, monkeypatch, caplog, address
):
    leads: list[Watched] = []
    pids: list[int] = []

    def made(*arguments, **more) -> Watched:
        leads.append(Watched(*arguments, **more))
        return leads[-1]

    def tell(done: float, total: float, note: str = "") -> None:
        if not pids:
            pids.extend(workers("_Learner"))
            leads[0].kill_in_an_update(pids[0])
        elif len(pids) == 1 and records(tmp_path)[-1]["learner/restarts"] == 1:
            pids.extend(workers("_Learner"))

    monkeypatch.setattr(room, "LeadLearner", made)
    updates = 3
    result = train(
        # Each update is of one rollout, of which each learner has a half.
        toy_config("training.runtime.learners=2", "training.runtime.fragments_per_update=1"),
        tmp_path,
        steps=updates * FRAGMENT,
        env_factory=slow_env,
        runtime="ray",
        address=address,
        progress=tell,
    )
    assert len(set(pids)) == 2  # there is another one in its place
    assert "another learner ended or hangs" in caplog.text  # noticed on the line between them
    assert "is not applied" in caplog.text
    assert "learner 1 is replaced" in caplog.text
    found = records(tmp_path)
    # What was not applied is no version, and its rollouts were learned from later.
    assert [r["learner/version"] for r in found] == list(range(1, updates + 1))
    assert result.steps == updates * FRAGMENT
    # Every update compares the policies of both: one that lacked something would be replaced too.
    assert found[-1]["learner/restarts"] == 1
    assert max(r["learner/lag"] for r in found) <= 4

    (lead,) = leads
    assert len(lead.given) == updates
    for rollouts, weights in lead.given:
        parts = shares(rollouts, weights, size=2)
        assert {len(part) for part, _ in parts} == {1}
        joined = [rollout for part, _ in parts for rollout in part]
        lead.alone.update(joined, weights=[weight for _, own in parts for weight in own])
    stored = newest_checkpoint(tmp_path / "checkpoints")
    expected = {**lead.alone.snapshot().state, **lead.alone.state_dict()}
    kept = {**stored.policy, **stored.learner}
    assert kept.keys() == expected.keys()
    assert kept["version"] == updates
    for name, array in expected.items():
        np.testing.assert_allclose(kept[name], array, rtol=1e-6, atol=1e-6, err_msg=name)
    pooled = np.concatenate([r.obs[:-1] for rs, _ in lead.given for r in rs]).reshape(-1, 4)
    np.testing.assert_allclose(kept["obs_norm.var"], pooled.astype(np.float64).var(0), rtol=1e-12)
    assert kept["obs_norm.count"] == updates * FRAGMENT
