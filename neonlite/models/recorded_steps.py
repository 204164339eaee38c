"""Recorded training steps: those of small perceptrons, repeated without the Python code of their layers.

The forward and backward pass of fully connected layers runs the same compiled assignments and matrix products on the
same tensors in every step. The Python code around them, which for small networks takes as long as the numbers, runs
only until they are recorded, and again after an attribute of a layer or of the cost has changed. Models, layers,
transforms and costs of the user, and methods that the user has replaced, are not recorded.
"""

from __future__ import annotations

import os
from typing import Any

from neonlite.backend.attributes import AttributeSnapshot, is_builtin
from neonlite.backend.replay import Call, record
from neonlite.layers import Activation, Bias, GeneralizedCost, Linear, Sequential

LAYERS = (Activation, Bias, Linear)  # they run compiled assignments and matrix products alone
LAYER_METHODS = ("fprop", "bprop")
MODEL_METHODS = ("fprop", "bprop", "compute_gradients", "compute_cost", "scale_errors")
COST_METHODS = ("get_cost", "get_errors")
WARMUP_RUNS = 2  # runs before the recorded one: the first builds assignments, the second compiles them
MAX_RECORDINGS = 4  # minibatches in different tensors, such as a partial one; others are not recorded
MAX_CHANGES = 4  # changes of attributes one after another, without a recorded run in between; then none is recorded

METHODS: list[tuple[type, str]] = [(cls, name) for cls in (*LAYERS, Sequential) for name in LAYER_METHODS]
METHODS += [(GeneralizedCost, name) for name in COST_METHODS]
ORIGINAL_METHODS = [getattr(*method) for method in METHODS]


class RecordedSteps:
    """The recorded forward and backward passes of a model, one for each pair of input and target tensors."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.passes: dict[tuple[int, ...], RecordedPass] = {}

    def compute_gradients(self, x: Any, t: Any) -> Any:
        """Do what ``model.compute_gradients(x, t)`` does, by recorded calls if possible.

        Parameters
        ----------
        x, t : Tensor or list of Tensor
            The inputs and the targets.

        Returns
        -------
        outputs : Tensor or list of Tensor
            The outputs of the network.
        cost : float or None
            The cost.
        """
        model = self.model
        replaced = vars(model)
        if model.loss_scaling is None and model.cuda_graphs and not any(name in replaced for name in MODEL_METHODS):
            be = model.be
            key = id(x), id(t), id(model.layers), id(model.cost), be.bsz, be.num_redefinitions
            recorded = self.passes.get(key)
            if recorded is None and len(self.passes) < MAX_RECORDINGS:
                recorded = self.passes[key] = RecordedPass(model, x, t)
            if recorded is not None:
                return recorded()
        return model.compute_gradients(x, t)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None  # a copy of a model that is in training records its own steps


class RecordedPass:
    """The forward and backward pass on two tensors.

    It keeps all objects alive whose ids are in its key, so that these stay unique.
    """

    def __init__(self, model: Any, x: Any, t: Any) -> None:
        self.model, self.x, self.t = model, x, t
        self.network: Any = model.layers
        self.cost: Any = model.cost
        self.outputs: Any = None
        self.calls: list[Call] = []
        self.changes = self.runs = 0
        self.attributes: AttributeSnapshot | None = None  # at the second run; None if it is not to be recorded

    def reset(self) -> None:
        """Discard the recording and the snapshot of the attributes."""
        self.changes = 1 if self.calls else self.changes + 1
        self.outputs, self.calls, self.runs, self.attributes = None, [], 0, None

    def __call__(self) -> Any:
        """Run it, or repeat its calls if it is recorded; return the outputs of the network, and the cost."""
        if self.attributes is not None and not self.attributes.is_unchanged():
            self.reset()
        if self.calls:
            for call in self.calls:
                call()
            return self.outputs, float(self.cost.read_mean().item())
        if self.attributes is not None and self.runs == WARMUP_RUNS:
            with record() as calls:
                self.outputs, cost = self.model.compute_gradients(self.x, self.t)
            self.calls = calls
            return self.outputs, cost
        if self.runs == 1 and self.changes <= MAX_CHANGES and can_record(self.model):
            self.attributes = AttributeSnapshot([self.network, self.cost])
        self.runs += 1
        return self.model.compute_gradients(self.x, self.t)


def can_record(model: Any) -> bool:
    """Return whether the passes of a model run compiled assignments and matrix products alone, on a CPU."""
    cost = model.cost
    return (
        model.be.graphs is None
        and model.data_parallel is None
        and os.environ.get("NEONLITE_GRAPHS") != "0"
        and all(getattr(type(model), name).__module__.startswith("neonlite.models.") for name in MODEL_METHODS)
        and [getattr(*method) for method in METHODS] == ORIGINAL_METHODS
        and type(cost) is GeneralizedCost
        and not any(name in vars(cost) for name in COST_METHODS)
        and is_builtin(type(cost.costfunc))
        and _is_recordable(model.layers)
    )


def _is_recordable(layer: Any) -> bool:
    if any(name in vars(layer) for name in LAYER_METHODS):
        return False
    if type(layer) is Sequential:
        runs_other_code = layer.input_copies or layer.error_copies or layer.gradient_reducer is not None
        return not runs_other_code and all(map(_is_recordable, layer.layers))
    has_builtin_transform = type(layer) is not Activation or is_builtin(type(layer.transform))
    return type(layer) in LAYERS and has_builtin_transform and not layer.acc_on
