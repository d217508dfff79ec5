"""Fits a network to what motors did: one for all joints, from past errors and velocities to torque.

The architecture is that of Hwangbo et al. (2019): three layers of 32 softsign units. It sees more
than a linear filter where drives saturate, stick or have play; where it explains no more, the
linear one (:func:`sim.actuator_export.fit_linear`) is the better choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from sim.actuator_export import Fit, Split
from sim.actuator_models import shared_model
from sim.actuator_samples import Samples

_WIDTH, _LAYERS = 32, 3
_BATCH = 1024
_RATE = 3e-3


def fit_network(
    samples: Sequence[Samples], *, history: int = 6, passes: int = 40, seed: int = 0
) -> Fit:
    """Fit torque to the last samples of error and velocity, all joints by one network.

    Mean squared error by Adam, its rate falling to zero along a cosine. Joints whose drives differ
    in their gains are told apart by nothing but their motion: fit those linearly.

    Args:
        samples: of the motors, pieces without holes.
        history: H, samples that each torque may depend on.
        passes: over the samples.
        seed: of weights and order; the same gives the same network.

    Raises:
        FerryError: too few samples, or a joint that never moved.
    """
    split = Split.of(samples, history)
    flat = split.x[split.fitted].reshape(-1, 2 * history)
    x_spread, y_spread = flat.std(axis=0), float(split.y[split.fitted].std())
    x = torch.from_numpy((flat / x_spread).astype(np.float32))
    y = torch.from_numpy((split.y[split.fitted].reshape(-1, 1) / y_spread).astype(np.float32))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = [2 * history, *[_WIDTH] * _LAYERS, 1]
        linear = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        _train(linear, x, y, passes=passes)
    layers = [
        (layer.weight.detach().double().numpy().T, layer.bias.detach().double().numpy())
        for layer in linear
    ]
    layers[0] = layers[0][0] / x_spread[:, None], layers[0][1]
    layers[-1] = layers[-1][0] * y_spread, layers[-1][1] * y_spread
    with torch.no_grad():
        kept = torch.from_numpy((split.x[split.kept] / x_spread).astype(np.float32))
        predicted = _forward(linear, kept)[..., 0].double().numpy() * y_spread
    return split.fit(shared_model(layers, joints=split.y.shape[1]), predicted)


def _forward(layers: Sequence[nn.Linear], x: Tensor) -> Tensor:
    for layer in layers[:-1]:
        x = nn.functional.softsign(layer(x))
    return layers[-1](x)


def _train(layers: Sequence[nn.Linear], x: Tensor, y: Tensor, *, passes: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them wait for each other after every small layer
    adam = torch.optim.Adam([p for layer in layers for p in layer.parameters()], lr=_RATE)
    batches = -(-len(x) // _BATCH)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, passes * batches)
    try:
        for _ in range(passes):
            for rows in torch.randperm(len(x)).split(_BATCH):
                loss = (_forward(layers, x[rows]) - y[rows]).square().mean()
                adam.zero_grad()
                loss.backward()
                adam.step()
                falling.step()
    finally:
        torch.set_num_threads(before)
