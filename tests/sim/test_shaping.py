"""Potential-based shaping leaves the optimum where it is: sums by hand, and those of an env."""

from __future__ import annotations

import numpy as np
import pytest

from real.config import config_dict, parse_config
from real.errors import ConfigError
from sim.env import make_env
from sim.shaping import Shaping
from sim.task import EnvConfig, load_env_config
from training.run_config import RunConfig, load_run_config

GAMMA = 0.9


def shaped(task: str, potentials: dict[str, dict], **changes: object) -> EnvConfig:
    config = config_dict(load_env_config(task))
    config["shaping"] = {"gamma": GAMMA, "potentials": potentials}
    return parse_config(EnvConfig, {**config, **changes}, source="test")


def test_the_reward_of_a_step_is_the_discounted_gain_of_potential():
    shaping = Shaping(3, gamma=GAMMA)
    shaping.begin(np.arange(3), np.array([1.0, 2.0, -4.0]))
    nobody = np.zeros(3, dtype=bool)
    # 0.9 * 3 - 1, 0.9 * 2 - 2, 0.9 * 0 + 4
    np.testing.assert_allclose(
        shaping.step(np.array([3.0, 2.0, 0.0]), terminated=nobody), [1.7, -0.2, 4.0]
    )
    # World 1 terminates at a state that looks good: 0 - 2. The others go on: 0.9 * 1 - 3, 0.9 * 5
    np.testing.assert_allclose(
        shaping.step(np.array([1.0, 50.0, 5.0]), terminated=np.array([False, True, False])),
        [-2.1, -2.0, 4.5],
    )
    shaping.begin(np.array([1]), np.array([7.0]))  # a new episode owes nothing to the old one
    np.testing.assert_allclose(
        shaping.step(np.array([1.0, 7.0, 5.0]), terminated=nobody), [-0.1, -0.7, -0.5]
    )


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_the_discounted_sum_telescopes_to_what_no_policy_can_change(ends):
    rng = np.random.default_rng(4)
    steps, path = 7, rng.normal(size=(8, 3))
    shaping = Shaping(3, gamma=GAMMA)
    shaping.begin(np.arange(3), path[0])
    total = np.zeros(3)
    for t in range(steps):
        last = t == steps - 1
        over = np.full(3, last and ends == "terminated")
        total += GAMMA**t * shaping.step(path[t + 1], terminated=over)
    # -Phi(s_0) after a terminal state. A truncated episode goes on in its bootstrapped value, which
    # under shaping is less by Phi(s_T): together again -Phi(s_0).
    if ends == "truncated":
        total += GAMMA**steps * (0.0 - path[steps])
    np.testing.assert_allclose(total, -path[0], atol=1e-12)


def test_the_best_action_of_a_small_problem_stays_the_best_under_any_potential():
    # Three states in a row and a terminal one; action 0 stays, action 1 goes on. Values by
    # iteration, with and without shaping by a potential that praises staying.
    reward = np.array([[0.1, -0.2], [0.3, 0.0], [0.2, 3.0]])
    goes = np.array([[0, 1], [1, 2], [2, 3]])
    potential = np.array([5.0, -3.0, 4.0, -9.0])

    def best(shape: bool) -> tuple[np.ndarray, np.ndarray]:
        value = np.zeros(4)
        paid = reward.copy()
        if shape:
            after = np.where(goes == 3, 0.0, potential[goes])  # 0 at the terminal state
            paid += GAMMA * after - potential[:3, None]
        for _ in range(500):
            q = paid + GAMMA * value[goes] * (goes != 3)
            value[:3] = q.max(axis=1)
        return q.argmax(axis=1), value[:3]

    plain, shaped_too = best(False), best(True)
    np.testing.assert_array_equal(plain[0], shaped_too[0])
    np.testing.assert_allclose(plain[1] - potential[:3], shaped_too[1], atol=1e-9)
    # With the potential of the terminal state kept, another policy would have won.
    naive = reward + GAMMA * potential[goes] - potential[:3, None]
    assert shaped_too[0][2] == 1
    assert naive[2].argmax() == 0


def test_an_env_pays_the_telescoping_sum_through_resets_and_new_commands():
    config = shaped(
        "iiwa_reach",
        {"reach_distance": {"weight": -3.0}, "reach_angle": {"weight": -0.5}},
        episode_s=0.2,
    )
    env = make_env(config, num=3, threads=1, seed=5)
    try:
        env.reset(1)
        start = env._scorer._shaping.potential.copy()
        assert (start < 0.0).all()
        total, steps = np.zeros(3), 10  # 0.2 s
        for t in range(steps):
            result = env.step(np.random.default_rng(t).normal(size=(3, 7)))
            phi = env._scorer._shaping.potential  # after a reset that of the next episode
            total += GAMMA**t * result.reward_parts["shaping"]
            np.testing.assert_allclose(
                result.reward, sum(result.reward_parts.values()), rtol=1e-5, atol=1e-6
            )
            if result.truncated.any():
                break
        ended = result.truncated
        assert ended.any()
        # gamma^T Phi(s_T) - Phi(s_0), with Phi(s_T) of the state that the episode was cut at
        at_end = (total + start) / GAMMA ** (t + 1)
        assert (at_end[ended] < 0.0).all()
        assert not np.isclose(at_end[ended], phi[ended]).any()
        np.testing.assert_allclose(at_end[~ended], phi[~ended], rtol=1e-4)
    finally:
        env.close()


def test_a_shaped_env_continues_bit_for_bit_from_its_state():
    config = shaped("iiwa_reach", {"reach_pose": {"weight": 1.0, "params": {"sigma": 0.1}}})
    one, two = (make_env(config, num=2, threads=1, seed=s) for s in (1, 2))
    try:
        for t in range(3):
            one.step(np.full((2, 7), 0.1 * t))
        two.load_state_dict(one.state_dict())
        a, b = one.step(np.ones((2, 7))), two.step(np.ones((2, 7)))
        for name in a.reward_parts:
            np.testing.assert_array_equal(a.reward_parts[name], b.reward_parts[name])
    finally:
        one.close()
        two.close()


def test_what_is_no_function_of_the_state_is_refused_with_those_that_are():
    with pytest.raises(ConfigError, match=r"'action_rate' is no potential.*reach_distance"):
        shaped("a1_walk", {"action_rate": {"weight": 1.0}})
    with pytest.raises(ConfigError, match=r"shaping\.potentials\.reach_angle follow a pose"):
        shaped("a1_walk", {"reach_angle": {"weight": 1.0}})


def test_the_discount_must_be_the_learners():
    config = config_dict(load_run_config("iiwa_reach"))
    config["shaping"] = {"gamma": 0.9, "potentials": {"reach_distance": {"weight": -1.0}}}
    with pytest.raises(ConfigError, match=r"shaping\.gamma is 0\.9 and training\.ppo\.gamma 0\.97"):
        parse_config(RunConfig, config, source="test")
    config["shaping"]["gamma"] = 0.97
    parse_config(RunConfig, config, source="test")
