"""The measured functions of a neonlite network: a training step of ``fit``, a step with its cost, and inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import neonlite as nl
from neonlite.models import Model
from neonlite.models.training import GradientProgram, record_costs
from neonlite.optimizers import GradientDescentMomentum


def learner(net: Any, shape: Any, cost: Any, rate: float, data: Callable[[], Any]) -> tuple[Any, ...]:
    """Configure a network for a shape, and return step, loss, infer and outputs; ``data()`` returns x and t."""
    model = Model(net)
    model.initialize(shape, cost)
    optimizer, layers = GradientDescentMomentum(rate, 0.9), net.layers_to_optimize
    gradients, inference = GradientProgram(model), nl.jit(lambda x: net(x))
    x, t = data()

    def step() -> Any:
        means = net.be.replay("step", lambda: gradients(x, t, None), [net, cost, x, t])
        optimizer.optimize(layers, epoch=0)
        return means

    def loss() -> float:
        means = gradients(x, t, None)
        value = record_costs(cost, means)
        optimizer.optimize(layers, epoch=0)
        return value

    return step, loss, lambda: inference(x), lambda y: y.get().T
