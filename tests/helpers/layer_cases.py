"""Layers with their NumPy formulas, and custom layers of which chains are built."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.networks import Careful, Gain, MultiplyByTwo, NDArray
from neonlite.initializers import Gaussian
from neonlite.layers import Activation, Affine, Bias, Dropout, Layer, Linear, Sequential
from neonlite.transforms import (
    GELU,
    Explin,
    Identity,
    Logistic,
    Normalizer,
    PixelwiseSoftmax,
    Rectlin,
    Rectlinclip,
    SiLU,
    Softmax,
    Tanh,
    Transform,
)


# --- each layer against its own formula ------------------------------------------------------------------------------
def along(axis: int, x: NDArray) -> NDArray:
    e = np.exp(x)
    return e / e.sum(axis=axis, keepdims=True)


def leaky(x: NDArray, slope: float) -> NDArray:
    return np.where(x > 0, x, slope * x)


TRANSFORMS: dict[str, tuple[Callable[[], Transform], Callable[[NDArray], NDArray]]] = {
    "Identity": (Identity, lambda x: x),
    "Rectlin": (Rectlin, lambda x: leaky(x, 0)),
    "leaky": (lambda: Rectlin(0.25), lambda x: leaky(x, 0.25)),
    "mirrored": (lambda: Rectlin(-0.5), lambda x: leaky(x, -0.5)),
    "Rectlinclip": (lambda: Rectlinclip(xcut=0.75), lambda x: np.minimum(leaky(x, 0), 0.75)),
    "Explin": (lambda: Explin(1.5), lambda x: np.where(x > 0, x, 1.5 * np.expm1(x))),
    "Normalizer": (Normalizer, lambda x: x / 128),
    "Softmax": (Softmax, lambda x: along(0, x)),
    "Softmax of rows": (lambda: Softmax(axis=1), lambda x: along(1, x)),
    "PixelwiseSoftmax": (lambda: PixelwiseSoftmax(1), lambda x: np.ones(x.shape)),
    "Tanh": (Tanh, np.tanh),
    "Logistic": (Logistic, lambda x: 1 / (1 + np.exp(-x))),
    "Logistic, shortcut": (lambda: Logistic(shortcut=True), lambda x: 1 / (1 + np.exp(-x))),
    "SiLU": (SiLU, lambda x: x / (1 + np.exp(-x))),
    "GELU": (GELU, lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
}


def product(layer: Any, W: NDArray, x: NDArray) -> NDArray:
    return np.array([[math.fsum(w * v for w, v in zip(row, column, strict=True)) for column in x.T] for row in W])


def shifted(layer: Any, W: NDArray, x: NDArray) -> NDArray:
    each = x.shape[0] // W.shape[0]  # features in a row that share a bias
    return np.array([[v + W[i // each, 0] for v in row] for i, row in enumerate(x)])


# name -> (how to make the layer, its outputs in NumPy)
LAYERS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any, NDArray], NDArray]]] = {
    "Linear to 1": (lambda: Linear(1, Gaussian()), product),
    "Linear to 7": (lambda: Linear(7, Gaussian()), product),
    "Bias": (lambda: Bias(Gaussian()), shifted),
    "Dropout": (lambda: Dropout(0.7), lambda layer, W, x: x * layer.mask.get()),
} | {
    name: (lambda make=make: Activation(make()), lambda layer, W, x, f=f: f(x))
    for name, (make, f) in TRANSFORMS.items()
}


each_layer = pytest.mark.parametrize("which", LAYERS)


# --- custom layers ---------------------------------------------------------------------------------------------------
class ByFormula(Layer):
    """An elementwise function of x, whose derivative may read the outputs."""

    def __init__(self, f, name=None):
        super().__init__(name)
        self.formula = f

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self


PARTS: dict[str, Callable[[], Any]] = {
    "Linear": lambda: Linear(4, Gaussian()),
    "Bias": lambda: Bias(Gaussian()),
    "Tanh": lambda: Activation(Tanh()),
    "Softmax": lambda: Activation(Softmax()),
    "SiLU": lambda: Activation(SiLU()),
    "twice": MultiplyByTwo,
    "carefully twice": Careful,
    "exp": lambda: ByFormula(lambda x: (x / 8).backend.exp(x / 8)),
    "square": lambda: ByFormula(lambda x: x * x),
    "same": lambda: ByFormula(lambda x: x),
    "Gain": lambda: Gain(Gaussian()),
    "network": lambda: Sequential([Linear(4, Gaussian()), Activation(Tanh())]),
    "in place": lambda: Sequential([Bias(Gaussian()), Activation(Tanh())]),
}


# --- parameters ------------------------------------------------------------------------------------------------------
def mlp(name: str = "") -> list[Any]:
    hidden = Affine(5, Gaussian(), bias=Gaussian(), activation=Rectlin(), name=f"{name}h")
    return [hidden, Dropout(0.9), Affine(3, Gaussian(), bias=Gaussian(), activation=Softmax(), name=f"{name}o")]
