"""Formulas of activations and costs in numbers, and an object of every class of transforms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from neonlite import NervanaObject
from neonlite.transforms import (
    F1,
    GELU,
    R2,
    ROCAUC,
    Accuracy,
    BitsPerCharacter,
    BLEUScore,
    ColorNoise,
    ConfusionMatrix,
    CostMetric,
    CrossEntropyBinary,
    CrossEntropyMulti,
    EditDistance,
    Explin,
    GANCost,
    Identity,
    Logistic,
    LogLoss,
    MeanAbsoluteError,
    MeanSquared,
    MeanSquaredError,
    Misclassification,
    MultiMetric,
    Normalizer,
    ObjectDetection,
    Perplexity,
    PixelwiseSoftmax,
    PrecisionRecall,
    Rectlin,
    Rectlinclip,
    SequenceAccuracy,
    Sign,
    SiLU,
    SmoothL1Loss,
    Softmax,
    SquareHingeLoss,
    SumSquared,
    Tanh,
    TopKMisclassification,
)

Array = np.ndarray[Any, Any]
STEP = 1e-5
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def host(tree: Any) -> Array:
    return np.asarray(tree.asnumpyarray(), np.float64)


def close(got: Any, wanted: Any, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(
        host(got) if hasattr(got, "asnumpyarray") else got, np.asarray(wanted, float), rtol, atol, strict=True
    )


def sig(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def softmax_of(column: Array) -> Array:
    most = max(column)
    e = [math.exp(v - most) for v in column]
    return np.array([v / sum(e) for v in e])


def softmax(x: Array, axis: int = 0) -> Array:
    return np.apply_along_axis(softmax_of, axis, x)


def pixelwise(x: Array, c: int) -> Array:
    """Softmax over the channels at each pixel of each image; row k * HW + p is pixel p of channel k."""
    out, pixels = np.zeros(x.shape), x.shape[0] // c
    for p, n in itertools.product(range(pixels), range(x.shape[1])):
        out[p::pixels, n] = softmax_of(x[p::pixels, n])
    return out


def ln(p: float) -> float:
    return max(math.log(p), -50.0) if p > 0 else -50.0


def smooth(x: float, s: float) -> float:
    return 0.5 * (s * x) ** 2 if abs(x) < 1 / s**2 else abs(x) - 0.5 / s**2


def each(f: Callable[[float, float], float], mean: bool = False) -> Callable[[Array, Array], float]:
    def column(y: Array, t: Array) -> float:
        total = sum(f(a, b) for a, b in zip(y.tolist(), t.tolist(), strict=True))
        return total / len(y) if mean else total

    return column


def multi(y: float, t: float) -> float:
    return -t * ln(y)


def made() -> list[NervanaObject]:
    """One of every public class, with different arguments."""
    return [
        Identity(),
        Rectlin(slope=0.1),
        Rectlinclip(0.1, "clip", 6.0),
        Explin(alpha=0.5),
        Normalizer(divisor=255.0),
        Softmax(axis=1, epsilon=0.5),
        PixelwiseSoftmax(21, "pixels", 0.25),
        Tanh("tanh"),
        Logistic(shortcut=True),
        Sign(),
        ColorNoise(brightness=0.5),
        SiLU(),
        GELU(),
        CrossEntropyBinary(scale=2),
        CrossEntropyMulti(3, usebits=True),
        SumSquared(),
        MeanSquared(name="mse"),
        SmoothL1Loss(sigma=3.0),
        SquareHingeLoss(margin=2),
        GANCost(0.5, "gen", "wasserstein"),
        LogLoss(),
        TopKMisclassification(5),
        Misclassification(steps=7),
        Accuracy(),
        PrecisionRecall(4, binarize=True, epsilon=1e-3),
        ObjectDetection(),
        BLEUScore(unk="?"),
        BitsPerCharacter(),
        Perplexity(),
        SequenceAccuracy(onehot=True),
        EditDistance(eos=1),
        MultiMetric(Accuracy("a"), 1),
        CostMetric(SquareHingeLoss(2.0, "margin")),
        MeanSquaredError(),
        MeanAbsoluteError(),
        R2(),
        F1("micro", True, 0.25),
        ROCAUC(multilabel=True),
        ConfusionMatrix(["cat", "dog"], 0.25),
    ]
