"""A small classifier and its data set, for tests of training."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

from neonlite import gen_backend
from neonlite.callbacks import Callback, CallbackBase
from neonlite.data import ArrayIterator, NervanaDataIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine, BatchNorm, Dropout, Linear
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti, Rectlin, Softmax

CLASSES = 3


class Nothing(NervanaDataIterator):
    """A data set without minibatches."""

    ndata, nbatches, shape = 1, 1, 2

    def __iter__(self) -> Any:
        return iter(())


def blobs(n: int = 60, seed: int = 0) -> tuple[Any, Any]:
    """Return points around the corners of a triangle, and the index of the corner."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    corners = np.array([[0, 0], [3, 0], [0, 3]])
    return (corners[y] + rng.normal(scale=0.5, size=(n, 2))).astype(np.float32), y


def network() -> list[Any]:
    return [
        Affine(8, Gaussian(scale=0.5), bias=Constant(0), activation=Rectlin(), name="hidden"),
        Dropout(0.9, name="drop"),
        Affine(CLASSES, Gaussian(scale=0.5), activation=Softmax(), name="out"),
    ]


def data(**more: Any) -> ArrayIterator:
    X, y = blobs()
    return ArrayIterator(X, y, nclass=CLASSES, name="blobs", **more)


def start(runtime: str = "cpu", batch_size: int = 8) -> Model:
    gen_backend(runtime, rng_seed=7, batch_size=batch_size)
    return Model(network())


def same(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


class Interrupting(CallbackBase):
    """Sends Ctrl-C within a step, and records the weights after it."""

    def __init__(self, model: Model, at: int) -> None:
        self.model, self.at, self.step = model, at, 0
        self.ended = False

    def on_minibatch_begin(self, epoch, minibatch):
        if self.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        self.step += 1

    def on_interrupt(self):
        self.ended = True


X, Y = blobs()


def fit(model: Model, callbacks: Any, epochs: int = 3) -> None:
    model.fit(data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=0.05), epochs, callbacks)


class Stop(Callback):
    """Ends training after a step."""

    def __init__(self, epoch: int, minibatch: int) -> None:
        super().__init__()
        self.at = (epoch, minibatch)

    def on_minibatch_end(self, epoch, minibatch):
        if (epoch, minibatch) == self.at:
            raise KeyboardInterrupt


def normalized() -> Model:
    gen_backend("cpu", rng_seed=7, batch_size=8)
    layers = [Linear(6, Gaussian(), name="a"), BatchNorm(name="bn"), Dropout(0.8, name="drop")]
    return Model([*layers, Affine(CLASSES, Gaussian(), activation=Softmax(), name="out")])
