"""A group of two learners, one of which hangs, dies, or rounds otherwise than the other."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from real.rollout import Rollout
from tests.training.learner_case import NETWORK, assert_same, made_up, state_of
from tests.training.pipe_host import PipeHost
from tests.training.test_async_loop import NearbyEngine
from tests.training.test_session import session
from tests.training.toy_run import FRAGMENT, HORIZON, alive, toy_config, wait_until
from training.async_loop import AsyncRuntime
from training.checkpoint import newest_checkpoint
from training.interrupt import stop_on_signal
from training.learner_group import LeadLearner
from training.learner_member import LearnerSpec
from training.parallel import LearnerLostError
from training.ppo import PpoConfig
from training.roles import RestartBudget, RestartBudgetExceeded
from training.run_config import RuntimeConfig
from training.staging import Staged, Staging

pytestmark = pytest.mark.slow

SPEC = LearnerSpec(
    4,
    5,
    action_dim=2,
    network=NETWORK,
    ppo=PpoConfig(),
    seed=0,
    mirror=None,
    threads=1,
    device="cpu",
)
#: Far longer than a test may take: nobody may wait for it.
LONG_S = 1e4


@pytest.fixture
def group() -> Iterator[tuple[LeadLearner, PipeHost, RestartBudget]]:
    host = PipeHost(SPEC)
    budget = RestartBudget(3, 600.0, clock=time.monotonic)
    config = RuntimeConfig(learners=2, learner_timeout_s=LONG_S, start_timeout_s=LONG_S)
    lead = LeadLearner(SPEC, host, config=config, budget=budget, clock=time.monotonic)
    wait_until(lambda: lead.ready(0.1), "the learners")
    yield lead, host, budget
    lead.close()
    assert alive(handle.process.pid for handle in host.handles) == []


def rollouts(lead: LeadLearner, update: int) -> list[Rollout]:
    return [made_up(lead, 10 * update + seed) for seed in range(2)]


def test_when_the_run_shall_stop_a_learner_that_hangs_is_ended_and_not_awaited(group):
    lead, host, budget = group
    lead.update(rollouts(lead, 0))
    ticket = lead._members[0].ticket
    wait_until(lambda: host.ready(ticket, 0.1), "the other one's end of the update")
    pid = host.handles[0].process.pid
    os.kill(pid, signal.SIGSTOP)
    before, given = state_of(lead), rollouts(lead, 1)

    # The signal comes while this thread is in compiled code.
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with stop_on_signal() as stop:
        lead.heed(stop)
        timer.start()
        with pytest.raises(LearnerLostError, match="is not awaited any longer"):
            lead.update(given)
        assert stop.is_set()
    assert_same(state_of(lead), before)
    assert alive([pid]) == []
    assert budget.spent == 0


def test_a_learner_that_dies_in_an_update_is_replaced_and_the_update_made_with_the_new_one(group):
    lead, host, budget = group
    lead.update(rollouts(lead, 0))
    before, given = state_of(lead), rollouts(lead, 1)
    ticket = lead._members[0].ticket
    wait_until(lambda: host.ready(ticket, 0.1), "the other one's end of the update")
    pid = host.handles[0].process.pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(0.5, lambda: os.kill(pid, signal.SIGKILL)).start()
    with pytest.raises(LearnerLostError, match="another learner ended or hangs"):
        lead.update(given)
    assert_same(state_of(lead), before)
    wait_until(lambda: lead.ready(0.1), "a replacement")
    assert len(host.handles) == 2
    lead.update(given)
    assert (lead.version, budget.spent) == (2, 1)


def test_a_learner_that_dies_between_updates_is_replaced_and_nothing_is_lost(group):
    lead, host, budget = group
    lead.update(rollouts(lead, 0))
    given = rollouts(lead, 1)
    host.kill(host.handles[0])
    with pytest.raises(LearnerLostError, match=r"the process died|another learner ended"):
        lead.update(given)
    wait_until(lambda: lead.ready(0.1), "a replacement")
    lead.update(given)
    assert (lead.version, budget.spent, len(host.handles)) == (2, 1, 2)
    alone = SPEC.make()
    for update in range(2):
        alone.update(rollouts(alone, 0) if update == 0 else given)
    for name, array in state_of(alone).items():
        np.testing.assert_allclose(state_of(lead)[name], array, rtol=1e-6, atol=1e-6, err_msg=name)


def test_learners_that_always_die_end_the_run_and_what_it_keeps_is_whole_updates(tmp_path):
    config = toy_config("training.runtime.learners=2", "training.runtime.max_restarts=1")
    training = config.training
    spec = dataclasses.replace(SPEC, network=training.network, ppo=training.ppo)
    host = PipeHost(spec)
    lead = LeadLearner(
        spec,
        host,
        config=training.runtime,
        budget=RestartBudget(1, 600.0, clock=time.monotonic),
        clock=time.monotonic,
    )
    engine = NearbyEngine(config)
    runtime = AsyncRuntime(lead, engine, config=training.runtime, actors=1, horizon=HORIZON)
    try:
        with pytest.raises(RestartBudgetExceeded, match="learner 1 failed"):
            session(tmp_path, runtime, config).run(
                lambda done, total, note="": host.kill(host.handles[-1]), resumed=False
            )
    finally:
        runtime.rest()
        lead.close()
    stored = newest_checkpoint(tmp_path / "checkpoints")
    assert stored.learner["version"] == lead.version == 2
    assert stored.policy["obs_norm.count"] == stored.step == 2 * FRAGMENT


def tell(host: PipeHost, method: str, *arguments: float) -> None:
    ticket = host.ask(host.handles[-1], method, *arguments)
    wait_until(lambda: host.ready(ticket, 0.1), method)


def test_who_rounds_otherwise_gets_the_first_ones_weights_and_who_goes_another_way_begins_anew(
    group,
):
    lead, host, budget = group
    alone = SPEC.make()
    tell(host, "round_otherwise", 1.0 + 5e-4)
    realigned = []
    for update in range(3):
        given = rollouts(lead, update)
        realigned.append(lead.update(given)[1]["learner/realigned"])
        alone.update(given)
    assert realigned == [0.0, 1.0, 1.0]  # before each update but the first
    # Were it not for that, the other one's part of each gradient would be of other weights.
    expected = state_of(alone)
    for name, array in state_of(lead).items():
        np.testing.assert_allclose(array, expected[name], rtol=2e-6, atol=2e-6, err_msg=name)

    tell(host, "round_otherwise", 1.5)
    lead.update(rollouts(lead, 3))
    before, given = state_of(lead), rollouts(lead, 4)
    with pytest.raises(LearnerLostError, match=r"learner 1 did not end .* is another one"):
        lead.update(given)
    assert_same(state_of(lead), before)
    tell(host, "round_otherwise", 1.0)
    wait_until(lambda: lead.ready(0.1), "the learners, anew")
    assert lead.update(given)[1]["learner/realigned"] == 0.0
    assert (lead.version, budget.spent, len(host.handles)) == (5, 0, 1)


def test_each_learner_brings_near_its_share_and_learns_from_that(group):
    lead, _, _ = group

    class Near(Staging):
        """A device on which rollouts are once :meth:`begin` was called."""

        def __init__(self) -> None:
            super().__init__()
            self.begun: list[int] = []
            self.used: list[int] = []

        def begin(self, rollout: Rollout) -> None:
            self.begun.append(id(rollout))

        def holds(self, rollout: Rollout) -> bool:
            return id(rollout) in self.begun

        def __call__(self, rollout: Rollout) -> Staged:
            self.used.append(id(rollout))
            return super().__call__(rollout)

    near = lead._staging = Near()
    given = [made_up(lead, seed) for seed in range(4)]
    for rollout in given:
        lead.expect(rollout)
    assert near.begun == [id(given[1]), id(given[3])]  # half of them, for one of two learners
    lead.update(given)
    assert set(near.used) == set(near.begun)
    assert lead.version == 1
