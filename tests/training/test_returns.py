"""Advantages and targets, by hand and against slow references."""

from __future__ import annotations

import numpy as np
import pytest

from training.returns import Ends, RatioSums, gae, vtrace

GAMMA, LAM = 0.9, 0.8


def ends(terminated, truncated, final_values=None) -> Ends:
    cut = np.asarray(truncated, dtype=bool)
    final = np.zeros(cut.shape) if final_values is None else np.asarray(final_values, float)
    return Ends(np.asarray(terminated, dtype=bool), cut, final)


def column(*values) -> np.ndarray:
    """One world: ``[T] -> [T, 1]``."""
    return np.array(values, dtype=float)[:, None]


def no_end(steps: int) -> Ends:
    return ends(np.zeros((steps, 1)), np.zeros((steps, 1)))


def slow(rewards, values, where: Ends, *, gamma, lam, rho=None, rho_bar=1.0, c_bar=1.0):
    """V-trace by its definition as a sum, world by world, step by step; GAE without ``rho``.

    v_s = V(x_s) + sum_t gamma^(t-s) (prod_{i<t} c_i) rho_t delta_t, within the episode.
    """
    steps, num = rewards.shape
    advantages, targets = np.zeros((steps, num)), np.zeros((steps, num))
    for n in range(num):
        for s in range(steps):
            total, own, weight, own_weight = 0.0, 0.0, 1.0, gamma * lam
            for t in range(s, steps):
                if where.terminated[t, n]:
                    following = 0.0
                elif where.truncated[t, n]:
                    following = where.final_values[t, n]
                else:
                    following = values[t + 1, n]
                delta = rewards[t, n] + gamma * following - values[t, n]
                ratio = 1.0 if rho is None else rho[t, n]
                total += weight * min(rho_bar, ratio) * delta
                weight *= gamma * lam * min(c_bar, ratio)
                # The advantage leaves the ratio of step s out: PPO multiplies by it.
                if t == s:
                    own += delta
                else:
                    own += own_weight * min(rho_bar, ratio) * delta
                    own_weight *= gamma * lam * min(c_bar, ratio)
                if where.terminated[t, n] or where.truncated[t, n]:
                    break
            targets[s, n] = values[s, n] + total
            advantages[s, n] = own
    return advantages, targets


def random_case(seed: int, steps: int = 13, num: int = 5):
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(steps, num)), rng.normal(size=(steps + 1, num))
    terminated = rng.random((steps, num)) < 0.15
    truncated = (rng.random((steps, num)) < 0.15) & ~terminated
    final = np.where(truncated, rng.normal(size=(steps, num)), np.nan)  # NaN: must not be read
    log_ratio = rng.normal(size=(steps, num))
    return rewards, values, ends(terminated, truncated, final), log_ratio


def test_two_steps_by_hand():
    # delta_0 = 1 + 0.9 * 3 - 2 = 1.7; delta_1 = 5 + 0.9 * 4 - 3 = 5.6
    # A_1 = 5.6; A_0 = 1.7 + 0.9 * 0.8 * 5.6 = 5.732
    advantages, targets = gae(column(1, 5), column(2, 3, 4), ends=no_end(2), gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(advantages[:, 0], [5.732, 5.6])
    np.testing.assert_allclose(targets[:, 0], [7.732, 8.6])


def test_a_time_out_bootstraps_from_the_observation_the_episode_ended_in():
    # V(s) = index of s. Step 9 -> 10 is cut; the next episode starts at s = 0.
    values = np.array([9.0, 0.0])[:, None]
    where = ends(column(0), column(1), column(10))
    _, targets = gae(column(2.0), values, ends=where, gamma=0.5, lam=LAM)
    assert targets[0, 0] == 2.0 + 0.5 * 10.0  # neither 0.5 * 9 nor 0.5 * V(reset) = 0


def test_a_terminal_state_is_worth_nothing():
    where = ends(column(1), column(0), column(10))
    _, targets = gae(column(2.0), column(9, 7), ends=where, gamma=0.5, lam=LAM)
    assert targets[0, 0] == 2.0


def test_terminated_wins_where_both_are_set():
    where = ends(column(1), column(1), column(10))
    _, targets = gae(column(2.0), column(9, 7), ends=where, gamma=0.5, lam=LAM)
    assert targets[0, 0] == 2.0


def test_the_end_of_a_fragment_bootstraps_from_the_next_observation():
    _, targets = gae(column(2.0), column(9, 7), ends=no_end(1), gamma=0.5, lam=LAM)
    assert targets[0, 0] == 2.0 + 0.5 * 7.0


@pytest.mark.parametrize("method", ["gae", "vtrace"])
def test_nothing_leaks_across_a_cut_between_two_episodes(method):
    # Two episodes with V = 1 and V = 100, no reward, gamma 1: every advantage is exactly 0.
    values = column(1, 1, 1, 100, 100, 100, 100)
    cut = column(0, 0, 1, 0, 0, 0)
    where = ends(np.zeros((6, 1)), cut, cut * 1.0)
    common = {"ends": where, "gamma": 1.0, "lam": 0.95}
    if method == "gae":
        advantages, targets = gae(np.zeros((6, 1)), values, **common)
    else:
        log_ratio = np.random.default_rng(0).normal(size=(6, 1))
        advantages, targets = vtrace(np.zeros((6, 1)), values, log_ratio=log_ratio, **common)
    np.testing.assert_array_equal(advantages, 0.0)
    np.testing.assert_array_equal(targets, values[:-1])


@pytest.mark.parametrize("method", ["gae", "vtrace"])
def test_two_episodes_in_one_fragment_equal_each_alone(method):
    rewards, values, _, log_ratio = random_case(3, steps=9, num=3)
    final = np.random.default_rng(1).normal(size=3)
    cut = np.zeros((9, 3), dtype=bool)
    cut[3] = True
    where = ends(np.zeros((9, 3)), cut, np.where(cut, final, 0.0))

    def run(part: slice, vals, where_part):
        common = {"ends": where_part, "gamma": GAMMA, "lam": LAM}
        if method == "gae":
            return gae(rewards[part], vals, **common)
        return vtrace(rewards[part], vals, log_ratio=log_ratio[part], **common)

    together = run(slice(None), values, where)
    first = run(slice(0, 4), np.vstack([values[:4], final]), ends(cut[5:9], cut[5:9]))
    second = run(slice(4, 9), values[4:], ends(cut[4:], cut[4:]))
    for whole, a, b in zip(together, first, second, strict=True):
        np.testing.assert_allclose(whole, np.concatenate([a, b]))


def test_a_reward_on_the_last_step_of_a_fragment_reaches_every_target():
    rewards = column(0, 0, 1)
    _, targets = gae(rewards, np.zeros((4, 1)), ends=no_end(3), gamma=GAMMA, lam=1.0)
    np.testing.assert_allclose(targets[:, 0], [0.81, 0.9, 1.0])


@pytest.mark.parametrize("kind", ["terminated", "truncated"])
def test_an_end_exactly_at_the_end_of_a_fragment_ignores_the_next_episode(kind):
    flags = column(0, 1)
    zero = np.zeros((2, 1))
    where = ends(flags, zero) if kind == "terminated" else ends(zero, flags, column(0, 4))
    values = column(2, 3, 1e9)
    advantages, _ = gae(column(0, 1), values, ends=where, gamma=0.5, lam=1.0)
    last = 1 - 3 if kind == "terminated" else 1 + 0.5 * 4 - 3
    np.testing.assert_allclose(advantages[:, 0], [0 + 0.5 * 3 - 2 + 0.5 * last, last])


@pytest.mark.parametrize("seed", range(4))
def test_gae_equals_its_slow_reference(seed):
    rewards, values, where, _ = random_case(seed)
    fast = gae(rewards, values, ends=where, gamma=GAMMA, lam=LAM)
    reference = slow(rewards, values, where, gamma=GAMMA, lam=LAM)
    for a, b in zip(fast, reference, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_vtrace_equals_its_slow_reference(seed):
    rewards, values, where, log_ratio = random_case(seed)
    bounds = {"rho_bar": 1.3, "c_bar": 0.9}
    fast = vtrace(rewards, values, log_ratio=log_ratio, ends=where, gamma=GAMMA, lam=LAM, **bounds)
    rho = np.exp(log_ratio)
    reference = slow(rewards, values, where, gamma=GAMMA, lam=LAM, rho=rho, **bounds)
    for a, b in zip(fast, reference, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_vtrace_equals_gae_where_the_ratio_is_one(lam):
    rewards, values, where, log_ratio = random_case(11)
    a = gae(rewards, values, ends=where, gamma=GAMMA, lam=lam)
    b = vtrace(rewards, values, log_ratio=0 * log_ratio, ends=where, gamma=GAMMA, lam=lam)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


def test_a_huge_ratio_is_bounded_and_does_not_overflow():
    rewards, values, where, log_ratio = random_case(5)
    with np.errstate(over="raise"):
        huge = vtrace(rewards, values, log_ratio=log_ratio + 1e4, ends=where, gamma=GAMMA, lam=LAM)
    one = gae(rewards, values, ends=where, gamma=GAMMA, lam=LAM)
    np.testing.assert_allclose(huge[1], one[1])


def test_worlds_do_not_mix():
    rewards, values, where, _ = random_case(2)
    order = np.array([3, 0, 4, 1, 2])
    swapped = ends(
        where.terminated[:, order], where.truncated[:, order], where.final_values[:, order]
    )
    a, _ = gae(rewards, values, ends=where, gamma=GAMMA, lam=LAM)
    b, _ = gae(rewards[:, order], values[:, order], ends=swapped, gamma=GAMMA, lam=LAM)
    np.testing.assert_array_equal(a[:, order], b)


def test_vtrace_by_hand_with_ratios_on_both_sides_of_the_bounds():
    # gamma 0.9, lambda 0.8, rho = 2 and 0.5, bounds 1: rho 1 and 0.5, c_0 = 0.8
    # delta_0 = 1 + 0.9 * 3 - 2 = 1.7; delta_1 = 5 + 0.9 * 4 - 3 = 5.6
    # v_1 - V_1 = 0.5 * 5.6 = 2.8; v_0 - V_0 = 1.7 + 0.9 * 0.8 * 2.8 = 3.716
    # A_1 = 5.6; A_0 = 1.7 + 0.9 * 0.8 * 2.8 = 3.716
    log_ratio = column(np.log(2.0), np.log(0.5))
    advantages, targets = vtrace(
        column(1, 5), column(2, 3, 4), log_ratio=log_ratio, ends=no_end(2), gamma=GAMMA, lam=LAM
    )
    np.testing.assert_allclose(targets[:, 0], [2 + 3.716, 3 + 2.8])
    np.testing.assert_allclose(advantages[:, 0], [3.716, 5.6])


def test_clip_shares_and_effective_sample_size_by_hand():
    log_ratio = np.log([0.5, 1.0, 1.2, 3.0])
    sums = RatioSums.of(log_ratio, rho_bar=2.0, c_bar=1.1)
    assert (sums.rho_clip_share, sums.c_clip_share) == (0.25, 0.5)
    # (5.7)^2 / (4 (0.25 + 1 + 1.44 + 9))
    assert sums.effective_sample_size == pytest.approx(5.7**2 / (4 * 11.69))


def test_fresh_data_is_not_bounded_by_rounding_and_counts_in_full():
    log_ratio = 1e-6 * np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    sums = RatioSums.of(log_ratio, rho_bar=1.0, c_bar=1.0)
    assert sums.rho_clip_share == sums.c_clip_share == 0.0
    assert sums.effective_sample_size == pytest.approx(1.0, abs=1e-9)


def test_one_sample_that_rules_leaves_one_of_n_also_where_its_ratio_overflows():
    sums = RatioSums.of(np.array([1e4, 0.0, 0.0, 0.0, 0.0]), rho_bar=1.0, c_bar=1.0)
    assert sums.effective_sample_size == pytest.approx(0.2)


def test_the_sums_of_parts_add_up_to_the_sums_of_the_whole():
    log_ratio = np.random.default_rng(1).normal(size=(6, 5))
    parts = [
        RatioSums.of(log_ratio[rows], rho_bar=1.0, c_bar=1.5) for rows in ([0, 1], [2, 3, 4, 5])
    ]
    whole = RatioSums.of(log_ratio, rho_bar=1.0, c_bar=1.5)
    np.testing.assert_allclose(parts[0].vector + parts[1].vector, whole.vector)
