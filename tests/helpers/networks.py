"""Small networks and custom layers, and their comparison with numerical gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from neonlite import Backend
from neonlite.layers import BranchNode, GeneralizedCost, Layer, ParameterLayer, Sequential, Tree
from neonlite.models import Model
from neonlite.models.training import GradientProgram

NDArray = np.ndarray[Any, Any]
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def rows(shape: Any) -> int:
    return shape if isinstance(shape, int) else shape[0] if len(shape) == 2 else math.prod(shape)


def data(be: Backend, rng: np.random.Generator, shape: Any, name: str | None = None) -> Any:
    """Return random inputs for a layer of a shape."""
    steps = shape[1] if isinstance(shape, tuple) and len(shape) == 2 else 1
    return be.array(rng.normal(size=(rows(shape), steps * be.bsz)), name=name)


def by_hand(layer: Any, shape: Any) -> Any:
    """Take a layer through the steps before fprop, with deltas."""
    assert layer.configure(shape) is layer
    layer.needs_deltas = True
    layer.allocate()
    layer.allocate_deltas()
    return layer


def network(layers: Any, shape: Any, cost: Any = None, deltas: bool = False) -> Any:
    """Return a network that is ready to run, and its cost if there is one."""
    net = Sequential(layers)
    net.configure(shape)
    if deltas:
        net.needs_deltas = True
    net.allocate()
    net.allocate_deltas()
    if cost is None:
        return net
    cost = GeneralizedCost(cost)
    cost.initialize(net)
    return net, cost


def close(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    got = got.get() if hasattr(got, "get") else got
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


class MultiplyByTwo(Layer):
    "A layer that multiples the input by two."

    # constructor and initialize buffers
    def __init__(self, name=None):
        super(MultiplyByTwo, self).__init__(name)  # noqa: UP008 (as the guide prints it)

    # configure the layer input and output shapes
    def configure(self, in_obj):
        super(MultiplyByTwo, self).configure(in_obj)  # noqa: UP008
        self.out_shape = self.in_shape
        return self

    # compute the fprop
    def fprop(self, inputs, inference=False):
        self.outputs = inputs
        self.outputs[:] = inputs * 2
        return self.outputs

    # backprop the gradients
    def bprop(self, error):
        error[:] = 2 * error
        return error


class Careful(MultiplyByTwo):
    """A second one of the same kind, with separate buffers."""

    def allocate(self, shared_outputs=None):
        super().allocate(shared_outputs)
        self.mine = self.be.iobuf(self.out_shape)

    def fprop(self, inputs, inference=False):
        self.mine[:] = 2 * inputs
        self.outputs = self.mine
        return self.mine

    def bprop(self, error):
        self.deltas[:] = 2 * error
        return self.deltas


class Gain(ParameterLayer):
    """A layer of the user's with weights: one factor for each feature."""

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape, self.weight_shape = self.in_shape, (self.in_shape, 1)
        return self

    def formula(self, x):
        return self.W * x


def check_gradient(got: Any, f: Callable[[], float], x: Any, rng: np.random.Generator, step: float = 1e-6) -> None:
    """Assert that an array is the gradient df/dx, by central differences along random directions.

    The difference along a direction depends on all elements, and takes two calls of f, not two for each element.
    """
    start = x.copy()
    for _ in range(2):
        direction = rng.normal(size=x.shape)
        x[:] = start + step * direction
        up = f()
        x[:] = start - step * direction
        terms = got * direction
        assert abs((up - f()) / (2 * step) - terms.sum()) < 1e-6 * (1 + abs(terms).sum())
        x[:] = start


def check_numerical_gradients(net: Any, rng: np.random.Generator, width: int) -> None:
    """Assert that the deltas and gradients of a network are the numerical gradients of sum(error * outputs)."""
    be = net.be
    x, error = data(be, rng, width), data(be, rng, net.out_shape)
    e, values = error.get(), x.get()
    for _ in range(2):
        assert net.fprop(x) is net.outputs
        deltas = net.bprop(be.array(e)).get()
        gradients = [g.get() for g in net.gradients]
    close(x, values, 0)

    def total() -> float:
        x[:] = values
        for p, w in zip(net.parameters, weights, strict=True):
            p[:] = w
        return float(np.sum(e * net.fprop(x, inference=True).get()))

    weights = [p.get() for p in net.parameters]
    check_gradient(deltas, total, values, rng)
    for got, w in zip(gradients, weights, strict=True):
        check_gradient(got, total, w, rng)


def targets(be: Backend, rng: np.random.Generator, shape: tuple[int, int]) -> Any:
    return be.array(np.eye(shape[0])[:, rng.integers(shape[0], size=shape[1])])


def check_cost(net: Any, cost: Any, x: Any, t: Any) -> None:
    """Assert that gradients are the numerical gradients of the total cost of a minibatch."""

    def total() -> float:
        for p, w in zip(net.parameters, weights, strict=True):
            p[:] = w
        return float(cost.get_cost(net.fprop(x, inference=True), t).item()) * x.shape[1]

    net.fprop(x)
    net.bprop(cost.get_errors(net.outputs, t))
    gradients, weights = [g.get() for g in net.gradients], [p.get() for p in net.parameters]
    for got, w in zip(gradients, weights, strict=True):
        check_gradient(got, total, w, np.random.default_rng(1))


def ready(net: Any, shape: Any, deltas: bool = True) -> Any:
    """Return an allocated network that computes deltas."""
    net.configure(shape)
    net.needs_deltas |= deltas
    net.allocate()
    net.allocate_deltas()
    return net


def allocate(be: Backend, layer: Any, shape: Any, N: int, first: bool = False) -> Any:
    """Return an allocated layer, or network of a list of layers; it computes deltas unless it is the first one."""
    be.bsz = N
    return ready(Sequential(layer) if isinstance(layer, list) else layer, shape, not first)


def branching(trunk: list[Any], *branches: list[Any], **more: Any) -> Tree:
    """Return a tree of lists, in which a text stands for the node of that name."""
    nodes: dict[str, BranchNode] = {}
    paths = [
        [nodes.setdefault(x, BranchNode(name=x)) if isinstance(x, str) else x for x in path]
        for path in (trunk, *branches)
    ]
    return more.pop("cls", Tree)(paths, **more)


def made_ready(layer: Any, be: Any, N: int) -> Any:
    """Return a layer of three inputs, allocated for N columns, with deltas."""
    return allocate(be, layer, 3, N)


def trained_by_program(net: Any, shape: Any, cost: Any, optimizer: Any, steps: int) -> tuple[Any, ...]:
    """Train a network for some steps, as ``fit`` does; return what training holds, and the function of a step."""
    net.configure(shape)
    x = net.make_zero_inputs()
    cost.initialize(net)
    t = cost.make_zero_targets()
    net.allocate_parameters()
    model = Model(net)
    model.cost = cost
    program = GradientProgram(model)

    def step() -> None:
        assert program(x, t, None) is not None
        optimizer.optimize(net.layers_to_optimize, epoch=0)

    for _ in range(steps):
        step()
    return net, x, t, cost, optimizer, step
