"""Costs with a mask, of several outputs and of GANs, compared with NumPy formulas and numerical gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.networks import close, ready

from neonlite import Backend, gen_backend
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, GeneralizedCost, GeneralizedGANCost, Linear, Sequential
from neonlite.transforms import (
    CrossEntropyBinary,
    CrossEntropyMulti,
    GANCost,
    Identity,
    Logistic,
    MeanSquared,
    PixelwiseSoftmax,
    SmoothL1Loss,
    Softmax,
    SquareHingeLoss,
    SumSquared,
    Tanh,
    Transform,
)

NDArray = np.ndarray[Any, Any]
INIT = Gaussian(scale=0.5)


def log(x: NDArray) -> NDArray:
    """Return logarithms that end at -50."""
    return np.log(np.maximum(x, math.exp(-50)))


# cost -> the cost of each column in NumPy
FORMULAS: dict[Any, Callable[[NDArray, NDArray], NDArray]] = {
    CrossEntropyMulti: lambda y, t: -(t * log(y)).sum(axis=0),
    CrossEntropyBinary: lambda y, t: -(t * log(y) + (1 - t) * log(1 - y)).sum(axis=0),
    SumSquared: lambda y, t: ((y - t) ** 2).sum(axis=0) / 2,
    MeanSquared: lambda y, t: ((y - t) ** 2).mean(axis=0) / 2,
    SmoothL1Loss: lambda y, t: np.where(abs(y - t) < 1, (y - t) ** 2 / 2, abs(y - t) - 0.5).sum(axis=0),
    SquareHingeLoss: lambda y, t: (np.maximum(1 - (2 * t - 1) * y, 0) ** 2).mean(axis=0),
}
ENDS: dict[str, Callable[[], Any]] = {"Softmax": Softmax, "Logistic": Logistic, "Tanh": Tanh, "Identity": Identity}
PAIRS = {("Softmax", CrossEntropyMulti), ("Logistic", CrossEntropyBinary)}


def small(end: str, shape: Any) -> Any:
    """Return a small network for three classes."""
    layers = [Affine(4, INIT, INIT, activation=Tanh()), Affine(3, INIT, INIT, activation=ENDS[end]())]
    return ready(Sequential(layers), shape, deltas=False)


def mask_of(be: Backend, rng: np.random.Generator, rows: int, columns: int) -> Any:
    """Return a mask with ones and zeros in it."""
    mask = (rng.random((rows, columns)) < 0.5).astype(float)
    mask[0, 0], mask[-1, -1] = 1, 0
    return be.array(mask)


# --- outputs that do not match a cost --------------------------------------------------------------------------------

EXPECTED: list[tuple[Any, Any, str]] = [
    (
        Linear(3, INIT),
        CrossEntropyMulti(),
        r"expects probabilities, got outputs of \w+ with no activation\. .*Softmax\(\)",
    ),
    (
        Linear(3, INIT),
        CrossEntropyBinary(),
        r"no activation\. End the network with Logistic\(\) or Softmax\(\), or use",
    ),
    (Affine(3, INIT, activation=Logistic()), CrossEntropyMulti(), r"of \w+ with Logistic\. End the network with"),
    (Affine(3, INIT, activation=Tanh()), CrossEntropyBinary(), r"of \w+ with Tanh\. End the network with"),
    (Affine(1, INIT, activation=Softmax()), CrossEntropyMulti(), "the softmax of a single output is always 1"),
    (Affine(1, INIT, activation=Softmax()), CrossEntropyBinary(), r"is always 1, so its gradient is 0\. Use an out"),
    (Linear(1, INIT), GANCost(), r"GANCost expects probabilities, got outputs of \w+ with no activation"),
]
MEANT = [
    (Affine(3, INIT, activation=Softmax()), CrossEntropyBinary()),
    (Affine(3, INIT, activation=PixelwiseSoftmax(3)), CrossEntropyMulti()),
    (Affine(1, INIT, activation=Logistic()), CrossEntropyBinary()),
    (Linear(3, INIT), SumSquared()),
    (Linear(1, INIT), GANCost(func="wasserstein")),
]


def initialize_cost(cost: Any, layers: Any) -> None:
    gen_backend("cpu", batch_size=2)
    kind = GeneralizedGANCost if isinstance(cost, GANCost) else GeneralizedCost
    kind(cost).initialize(ready(Sequential([layers]), 4))


@pytest.mark.parametrize(("layers", "cost", "words"), EXPECTED)
def test_a_cost_of_probabilities_warns_if_the_network_outputs_none(layers, cost, words):
    with pytest.warns(UserWarning, match=words) as found:
        initialize_cost(cost, layers)
    assert found[0].filename == __file__


@pytest.mark.parametrize(("layers", "cost"), MEANT)
def test_a_cost_does_not_warn_about_matching_outputs(layers, cost):
    initialize_cost(cost, layers)


def test_a_cost_does_not_warn_about_custom_activations_and_layers():
    class Share(Transform):
        def __call__(self, x):
            return self.be.exp(x) / self.be.sum(self.be.exp(x), axis=0)

    class Shares(Linear):
        def formula(self, x):
            return Share()(super().formula(x))

    initialize_cost(CrossEntropyMulti(), Affine(3, INIT, activation=Share()))
    initialize_cost(CrossEntropyMulti(), Shares(3, INIT))


# --- attributes ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*expects probabilities")
def test_a_cost_follows_its_attributes_and_its_targets(be64, rng):
    be64.bsz = 4
    costfunc = CrossEntropyMulti()
    cost = GeneralizedCost(costfunc)
    cost.initialize(ready(Sequential([Linear(3, INIT)]), 2))
    y, *targets = (be64.empty((3, 4)) for _ in range(3))
    for target, factor in [(0, 1.0), (0, 1.0), (1, 1.0), (1, 2.0), (1, 2.0)]:
        t, costfunc.log_base_factor = targets[target], factor
        y[:], t[:] = rng.uniform(0.1, 1, (3, 4)), rng.uniform(0.1, 1, (3, 4))
        close(cost.get_cost(y, t), -factor * (t.get() * np.log(y.get())).sum(0).mean())
