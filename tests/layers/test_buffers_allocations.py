"""After a few steps of training, further steps allocate no NumPy buffer of 1 kB or more
(neonlite/layers/buffers.py).

This holds for steps with the same tensors, with other tensors, and for inference. The memory of Python objects, and
of objects that live between two calls, is smaller than most arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers, peak
from helpers.runtimes import RUNTIMES

from neonlite import gen_backend
from neonlite.backend import Backend
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers import LRN, Affine, Conv, Deconv, Dropout, GeneralizedCost, Pooling, Sequential
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import CrossEntropyMulti, Logistic, MeanSquared, Rectlin, Softmax

N = 32
LITTLE = 120_000  # bytes: objects of Python, and buffers of NumPy's ufuncs: 8192 numbers of up to three operands


def hidden() -> dict[str, Any]:
    return {"init": GlorotUniform(), "bias": Constant(0), "activation": Rectlin()}


def classes() -> list[Any]:
    return [Affine(10, GlorotUniform(), bias=Constant(0), activation=Softmax())]


# name -> the shape of inputs, and what makes the layers
NETWORKS: dict[str, tuple[Any, Callable[[], list[Any]]]] = {
    "mlp": (784, lambda: [Affine(250, **hidden()), *classes()]),
    "wide mlp": (784, lambda: [Affine(1024, **hidden()), Affine(1024, **hidden()), *classes()]),
    "batch norm": (
        784,
        lambda: [Affine(256, GlorotUniform(), batch_norm=True, activation=Logistic()), *classes()],
    ),
    "dropout": (784, lambda: [Affine(256, **hidden()), Dropout(0.5), *classes()]),
    "lenet": (
        (1, 28, 28),
        lambda: [
            *(Conv((5, 5, 20), **hidden()), Pooling(2), Conv((5, 5, 50), **hidden()), Pooling(2)),
            *(Affine(500, **hidden()), *classes()),
        ],
    ),
    "cifar": (
        (3, 32, 32),
        lambda: [
            *(Conv((5, 5, 16), **hidden()), Pooling(2), Conv((5, 5, 32), **hidden()), Pooling(2)),
            *(Affine(500, **hidden()), *classes()),
        ],
    ),
    "overlapping pools, LRN": (
        (3, 20, 20),
        lambda: [
            *(Conv((3, 3, 16), padding=1, **hidden()), LRN(5, ascale=1e-3, bpower=0.75)),
            *(Pooling(3, strides=2), Pooling("all", op="avg"), *classes()),
        ],
    ),
    "autoencoder": (
        (1, 28, 28),
        lambda: [
            *(Conv((4, 4, 8), **hidden()), Pooling(2), Conv((4, 4, 32), **hidden()), Pooling(2)),
            *(Deconv((4, 4, 8), **hidden()), Deconv((3, 3, 8), strides=2, **hidden())),
            Deconv((2, 2, 1), GlorotUniform(), strides=2, padding=1, bias=Constant(0)),
        ],
    ),
}


@pytest.fixture(params=[name for name in ("cpu", "mkl") if name in RUNTIMES])
def be(request: pytest.FixtureRequest) -> Backend:
    return gen_backend(request.param, rng_seed=1, batch_size=N)


def network(be: Backend, name: str) -> tuple[Sequential, GeneralizedCost, Callable[[], list[Any]]]:
    """Return a network with its cost, and a function that returns a minibatch: inputs and targets."""
    shape, layers = NETWORKS[name]
    net, sorts = Sequential(layers()), name != "autoencoder"
    cost = GeneralizedCost(CrossEntropyMulti() if sorts else MeanSquared())
    net.configure(shape)
    net.allocate()
    net.allocate_deltas()
    cost.initialize(net)
    rng, features = np.random.default_rng(0), int(np.prod(shape))

    def minibatch() -> list[Any]:
        x = be.array(rng.random((features, N)))
        return [x, be.array(np.eye(10)[:, rng.integers(0, 10, N)]) if sorts else x]

    return net, cost, minibatch


def steps(be: Backend, name: str, optimizer: Any) -> tuple[dict[str, Callable[[], Any]], Callable[[], Any]]:
    """Run some steps; return the parts of a step, to be run in order, and one with other tensors."""
    net, cost, minibatch = network(be, name)
    layers, (x, t), (x2, t2) = net.layers_to_optimize, minibatch(), minibatch()
    parts = {
        "fprop": lambda: net.fprop(x),
        "cost": lambda: cost.get_cost(net.outputs, t),
        "error": lambda: cost.get_errors(net.outputs, t),
        "bprop": lambda: net.bprop(cost.deltas),
        "update": lambda: optimizer.optimize(layers, epoch=0),
    }

    def other() -> None:
        net.bprop(cost.get_errors(net.fprop(x2), t2))
        optimizer.optimize(layers, epoch=0)

    for _ in range(2):
        other()
        for part in parts.values():
            part()
    other()
    return parts, other


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_step_allocates_nothing(be: Backend, name: str) -> None:
    parts, other = steps(be, name, GradientDescentMomentum(0.01, 0.9))
    found = {what: buffers(part) for what, part in parts.items()}
    assert {what: sizes for what, sizes in found.items() if sizes} == {}
    assert peak(other) < LITTLE
    assert {what: most for what, part in parts.items() if (most := peak(part)) >= LITTLE} == {}


def test_an_update_with_more_states_and_limits_allocates_nothing(be: Backend) -> None:
    parts, other = steps(be, "mlp", Adam(gradient_clip_norm=1.0, gradient_clip_value=0.5))
    assert buffers(parts["update"]) == []
    assert peak(other) < LITTLE


@pytest.mark.parametrize("name", NETWORKS)
def test_inference_allocates_nothing(be: Backend, name: str) -> None:
    net, cost, minibatch = network(be, name)
    (x, t), (x2, _) = minibatch(), minibatch()
    for _ in range(2):
        net.fprop(x, inference=True)
        net.fprop(x2, inference=True)
        cost.get_cost(net.outputs, t)
    assert buffers(lambda: cost.get_cost(net.fprop(x, inference=True), t)) == []
    assert peak(lambda: net.fprop(x2, inference=True)) < LITTLE


def test_a_smaller_batch_allocates_nothing_once_it_has_run(be: Backend) -> None:
    net, cost, minibatch = network(be, "mlp")
    optimizer, (x, t) = GradientDescentMomentum(0.01, 0.9), minibatch()

    def step(x: Any, t: Any) -> None:
        net.bprop(cost.get_errors(net.fprop(x), t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)

    step(x, t)
    net.set_batch_size(N // 2)
    x, t = x[:, : N // 2], t[:, : N // 2]
    for _ in range(2):
        step(x, t)
    assert buffers(lambda: step(x, t)) == []
    assert peak(lambda: step(x, t)) < LITTLE
