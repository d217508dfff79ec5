"""Statistics merge exactly, count every sample once, and stay put between updates."""

from __future__ import annotations

import numpy as np
import torch

from training.normalizer import VARIANCE_FLOOR, Moments, Normalizer, merge

D = 3


def samples(seed: int, num: int, *, shift: float = 0.0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    scale = np.array([0.5, 2.0, 30.0])
    return torch.from_numpy(rng.normal(size=(num, D)) * scale + shift)


def assert_equal(found: Moments, data: torch.Tensor) -> None:
    assert float(found.count) == len(data)
    np.testing.assert_allclose(found.mean, data.mean(0), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.var, data.var(0, correction=0), rtol=1e-8, atol=1e-8)


def test_three_numbers_and_one_by_hand():
    a, b = Moments.of(torch.tensor([[1.0], [2.0], [3.0]])), Moments.of(torch.tensor([[6.0]]))
    assert (a.mean.item(), round(a.var.item(), 12), a.count.item()) == (2.0, round(2 / 3, 12), 3.0)
    both = merge(a, b)  # 1 2 3 6: mean 3, squares 4 1 0 9
    assert (both.mean.item(), both.var.item(), both.count.item()) == (3.0, 3.5, 4.0)


def test_workers_with_different_means_merge_to_the_pooled_statistics_over_ten_rounds():
    norm = Normalizer(D, clip=10.0)
    seen = []
    for round_ in range(10):
        for worker, num in enumerate((40, 7, 0, 25)):  # one worker has nothing to give
            data = samples(10 * round_ + worker, num, shift=100.0 * worker)
            norm.update(Moments.of(data))
            seen.append(data)
        if round_ == 4:  # a resume in between neither loses nor repeats samples
            fresh = Normalizer(D, clip=10.0)
            fresh.load_state_dict(norm.state_dict())
            norm = fresh
    assert_equal(norm.moments, torch.cat(seen))


def test_the_order_of_merging_does_not_matter():
    parts = [Moments.of(samples(i, 5 + i, shift=50.0 * i)) for i in range(4)]
    left = merge(merge(merge(parts[0], parts[1]), parts[2]), parts[3])
    right = merge(parts[2], merge(parts[3], merge(parts[1], parts[0])))
    for a, b in zip(vars(left).values(), vars(right).values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-9)


def test_merging_is_symmetric_to_the_last_bit():
    for seed in range(20):
        a = Moments.of(samples(seed, 3 + 1000 * seed, shift=1e3 * seed))
        b = Moments.of(samples(seed + 100, 50, shift=-7.0))
        for x, y in zip(vars(merge(a, b)).values(), vars(merge(b, a)).values(), strict=True):
            assert torch.equal(x, y)


def test_merging_with_nothing_changes_nothing():
    full, empty = Moments.of(samples(0, 9)), Moments.of(torch.empty(0, D))
    assert merge(full, empty) is full
    assert merge(empty, full) is full


def test_leading_axes_are_all_samples():
    data = samples(0, 24)
    assert_equal(Moments.of(data.reshape(2, 3, 4, D)), data)


def test_float32_samples_far_from_zero_keep_their_variance():
    data = (1e4 + 0.5 * torch.randn(20000, 1, generator=torch.Generator().manual_seed(0))).float()
    found = Moments.of(data)
    assert_equal(found, data.double())
    assert 0.2 < found.var.item() < 0.3


def test_it_normalises_to_mean_zero_and_deviation_one():
    norm = Normalizer(D, clip=10.0)
    data = samples(1, 4000, shift=-7.0)
    norm.update(Moments.of(data))
    out = norm(data.float())
    np.testing.assert_allclose(out.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(out.std(0, correction=0), 1.0, atol=1e-3)


def test_a_signal_that_never_moves_is_not_blown_up():
    norm = Normalizer(1, clip=10.0)
    norm.update(Moments.of(torch.full((100, 1), 3.0)))
    out = norm(torch.tensor([[3.0], [3.01], [1000.0]]))
    np.testing.assert_allclose(out[:, 0], [0.0, 0.01 / VARIANCE_FLOOR**0.5, 10.0], rtol=1e-4)


def test_the_forward_pass_never_changes_the_statistics():
    norm = Normalizer(D, clip=10.0)
    norm.update(Moments.of(samples(0, 50)))
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    norm.train()
    for _ in range(100):
        norm(torch.full((4, D), 1e3))
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name])


def test_before_any_sample_it_is_the_identity_within_the_bound():
    x = torch.tensor([[-20.0, 0.3, 5.0]])
    out = Normalizer(D, clip=10.0)(x)
    np.testing.assert_allclose(out, [[-10.0, 0.3, 5.0]], rtol=1e-4)
