"""The gradients of a training step as one program: those of a network and a cost that are expressions.

``Model.fit`` traces ``network_gradients`` once for each size of a minibatch, and again after an attribute of a layer or
of the cost has changed. The program writes the gradients of the parameters, the running statistics and the recurrent
states, and not the outputs and the errors of single layers: ``layer.outputs`` and ``layer.deltas`` are those of the
last ``fprop`` and ``bprop``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neonlite.backend import Tensor
from neonlite.backend.batch_size import Shard
from neonlite.backend.objects import has_builtin_method
from neonlite.layers import GeneralizedCost, Multicost
from neonlite.layers.inference import assign_gradients
from neonlite.optree import Operand
from neonlite.programs import Jit, jit
from neonlite.tree_structure import use_in_trace

MODEL_METHODS = frozenset(("fprop", "bprop", "compute_gradients", "compute_cost", "scale_errors"))
MAX_CHANGES = 16  # compilations in a row, as for an attribute that changes in each step; then the layers run
COST_METHODS = ("get_cost", "get_errors", "build_costs", "build_errors")


class NotAnExpressionError(Exception):
    """The network, the cost or the model has custom methods for the forward or backward pass."""


class GradientProgram:
    """The compiled function of the minibatches of a model, during ``fit``."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.is_active = False  # whether the model is in ``fit``
        self.compiled_from: Any = None  # the network, the cost, the loss scaling and others
        self.function: Jit[..., Any] | None = None
        self.count = self.changes = 0  # compilations; and steps, one after another, with one

    def __call__(self, x: Any, t: Any, shard: Shard | None) -> Any:
        """Compute the gradients, and return the mean of each cost, (1, 1); None if they are not an expression.

        Parameters
        ----------
        x, t : Tensor or list of Tensor
            The inputs and the targets.
        shard : Shard or None
            The columns of the minibatch that this process computes.
        """
        model, parallel = self.model, self.model.data_parallel
        uses_builtin_passes = MODEL_METHODS.isdisjoint(vars(model))
        parts = (
            model.layers,
            model.cost,
            model.loss_scaling,
            uses_builtin_passes,
            shard is None,
            parallel and parallel.reducer,
        )
        if parts != self.compiled_from:
            self.compiled_from, self.function, self.changes = parts, jit(self.trace), 0
        if self.function is None:
            return None
        count = self.count
        try:
            means = self.function(x, t) if shard is None else self.function(x, t, shard)
        except NotAnExpressionError:
            self.function = None
            return None
        self.changes = self.changes + 1 if self.count > count else 0
        if self.changes > MAX_CHANGES:
            self.function = None
        return means

    def trace(self, *args: Any) -> list[Operand | None]:
        """Return the costs as op-trees, and assign the gradients; count the compilation."""
        self.count += 1
        return network_gradients(self.model, *args)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None  # a copy of a model that is in training is not


def is_expression(model: Any) -> bool:
    """Return whether the gradients of a training step are an expression: of the network, the cost and the model.

    They are not if one of them, or its class, has methods of the user for the forward or backward pass, or if several
    processes sum gradients during the backward pass.
    """
    parallel, network, cost = model.data_parallel, model.layers, model.cost
    costs = cost.costs if type(cost) is Multicost else [cost]
    return (
        network.is_expression
        and (parallel is None or parallel.reducer.thread is None)
        and all(getattr(type(model), name).__module__.startswith("neonlite.models.") for name in MODEL_METHODS)
        and MODEL_METHODS.isdisjoint(vars(model))
        and not any(name in vars(cost) for name in COST_METHODS)
        and all(isinstance(x, GeneralizedCost) and has_builtin_costs(x) for x in costs)
    )


def has_builtin_costs(cost: GeneralizedCost) -> bool:
    """Return whether no method of the user computes a cost or its errors."""
    return not any(name in vars(cost) or not has_builtin_method(type(cost), name) for name in COST_METHODS)


def network_gradients(model: Any, x: Any, t: Any, shard: Shard | None = None) -> list[Operand | None]:
    """Return the mean of each cost as an op-tree, and assign the gradients of the parameters that are trained.

    The mean is None if there is no target. ``shard``: the columns of a minibatch that this process computes, on which
    random numbers depend.
    """
    if not is_expression(model):
        raise NotAnExpressionError
    use_in_trace(model.cost)
    network, means, roots = model._build_step(x, t)
    if not roots:
        raise ValueError(f"{model.cost.name}: expected targets for at least one output, got None for all.")
    assign_gradients(network, roots)
    return means


def record_costs(cost: GeneralizedCost | Multicost, means: Sequence[Tensor | None]) -> float:
    """Store the costs of a step as ``get_cost`` does; return that which is minimized."""
    parts = cost.costs if isinstance(cost, Multicost) else [cost]
    for part, mean in zip(parts, means, strict=False):
        if mean is not None:
            part.cost = mean.get()
    if isinstance(cost, Multicost):
        pairs = zip(cost.weights, cost.costs, means, strict=False)
        cost.cost = sum(weight * part.cost for weight, part, mean in pairs if mean is not None)
    return float(cost.cost.item())
