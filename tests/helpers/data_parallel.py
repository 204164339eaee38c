"""Small networks with their data, which the ranks of a data-parallel training and one process both build."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from neonlite.data import ArrayIterator, Text
from neonlite.initializers import Constant, Gaussian, GlorotUniform
from neonlite.layers import LSTM, Affine, BatchNorm, Conv, Dropout, GeneralizedCost, Pooling
from neonlite.optimizers import Adam, GradientDescentMomentum, Optimizer
from neonlite.transforms import CrossEntropyMulti, Rectlin, Softmax

TOTAL = 12  # columns of a minibatch, of all ranks
CLASSES = 3
EPOCHS = {"mlp": 4, "norm": 4, "lenet": 7, "lstm": 2, "partial": 7}  # about 20 steps


class Problem(NamedTuple):
    """The layers and the data of a training."""

    layers: list[Any]
    dataset: Any
    cost: GeneralizedCost


def affine(nout: int, name: str, activation: Any) -> Affine:
    return Affine(nout, GlorotUniform(), bias=Constant(0.1), activation=activation, name=name)


def rows(n: int, *shape: int) -> tuple[Any, Any]:
    """Return rows of a shape, and a class that follows from a row."""
    rng = np.random.default_rng(n)
    X = rng.normal(size=(n, *shape)).astype(np.float32)
    projected = X.reshape(n, -1) @ rng.normal(size=(X[0].size, CLASSES))
    return X, projected.argmax(axis=1)


def text(steps: int, batches: int) -> str:
    rng = np.random.default_rng(0)
    words = ["sea", "shell", "she", "sells", "shore"]
    return " ".join(words[i] for i in rng.integers(0, 5, TOTAL * steps * batches))[: TOTAL * steps * batches + 1]


def problem(kind: str, dropout: type[Dropout] = Dropout) -> Problem:
    """Return new layers and data: 5 minibatches an epoch, lenet 3, lstm 10, and partial 3, the last one of 2 rows."""
    cost, out = GeneralizedCost(CrossEntropyMulti()), affine(CLASSES, "out", Softmax())
    if kind in ("mlp", "norm"):
        X, y = rows(60, 6)
        layers = [affine(16, "hidden", Rectlin()), affine(8, "second", Rectlin()), out]
        if kind == "norm":
            layers.insert(1, BatchNorm(name="bn"))
        return Problem(layers, ArrayIterator(X, y, nclass=CLASSES, shuffle=True, name="rows"), cost)
    if kind == "partial":
        X, y = rows(26, 6)
        options: dict[str, Any] = {"shuffle": True, "partial_last": True, "name": "rows"}
        layers = [affine(16, "hidden", Rectlin()), dropout(0.7, name="drop"), out]
        return Problem(layers, ArrayIterator(X, y, nclass=CLASSES, **options), cost)
    if kind == "lenet":
        X, y = rows(36, 1, 8, 8)
        layers = [
            Conv((3, 3, 4), Gaussian(scale=0.3), activation=Rectlin(), name="conv1"),
            Pooling(2, name="pool1"),
            Conv((2, 2, 6), Gaussian(scale=0.3), activation=Rectlin(), name="conv2"),
            affine(16, "hidden", Rectlin()),
            dropout(0.7, name="drop"),
            out,
        ]
        return Problem(layers, ArrayIterator(X, y, nclass=CLASSES, shuffle=True, name="images"), cost)
    assert kind == "lstm"
    dataset = Text(5, text=text(5, 10), name="text")
    layers = [LSTM(8, GlorotUniform(), name="lstm"), affine(dataset.nclass or 0, "out", Softmax())]
    return Problem(layers, dataset, cost)


def optimizer(name: str) -> Optimizer:
    return (
        Adam(learning_rate=0.01)
        if name == "adam"
        else GradientDescentMomentum(learning_rate=0.1, momentum_coef=0.9, wdecay=0.001)
    )


def assert_same(results: list[dict[str, Any]]) -> None:
    """Assert that the weights of all ranks have the same bits."""
    for other in results[1:]:
        assert other.keys() == results[0].keys()
        for name, w in results[0].items():
            np.testing.assert_array_equal(other[name], w, err_msg=name, strict=True)
