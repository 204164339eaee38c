"""The measured functions of a neonlite network: a training step, a step with its cost, and inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neonlite.optimizers import GradientDescentMomentum


def learner(net: Any, shape: Any, cost: Any, rate: float, data: Callable[[], Any]) -> tuple[Any, ...]:
    """Configure a network for a shape, and return step, loss, infer and outputs; ``data()`` returns x and t."""
    net.configure(shape)
    net.allocate()
    net.allocate_deltas()
    cost.initialize(net)
    optimizer, layers = GradientDescentMomentum(rate, 0.9), net.layers_to_optimize
    x, t = data()

    def step() -> None:
        net.be.replay("step", lambda: net.bprop(cost.get_errors(net.fprop(x), t)), [net, cost, x, t])
        optimizer.optimize(layers, epoch=0)

    def loss() -> float:
        y = net.fprop(x)
        value = float(cost.get_cost(y, t)[0, 0])
        net.bprop(cost.get_errors(y, t))
        optimizer.optimize(layers, epoch=0)
        return value

    return step, loss, lambda: net.fprop(x, inference=True), lambda y: y.get().T
