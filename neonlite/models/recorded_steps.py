"""Recorded training steps: those of small perceptrons, repeated without the Python code of their layers.

The forward and backward pass of fully connected layers runs the same compiled assignments and matrix products on the
same tensors in every step. The Python code around them, which for small networks takes as long as the numbers, runs
only until they are recorded, and again after an attribute of a layer or of the cost has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neonlite.backend.attribute_snapshot import AttributeSnapshot
from neonlite.backend.builtin_classes import is_builtin
from neonlite.backend.recording import Call, record
from neonlite.layers import Activation, Affine, Bias, GeneralizedCost, Linear, Sequential

if TYPE_CHECKING:
    from neonlite.models.model import Model

LAYERS = (Activation, Bias, Linear)  # they run compiled assignments and matrix products alone
CONTAINERS = (Sequential, Affine)
WARMUP_RUNS = 2  # runs before the recorded one, in which assignments are compiled
MAX_RECORDINGS = 4  # minibatches in different tensors, such as a partial one; others are not recorded
MAX_CHANGES = 4  # changes of attributes one after another, without a recorded run in between; then none is recorded


class RecordedSteps:
    """The recorded forward and backward passes of a model, one for each pair of input and target tensors."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.passes: dict[tuple[int, ...], RecordedPass] = {}

    def compute_gradients(self, x: Any, t: Any) -> tuple[Any, float | None]:
        """Run the forward and backward pass on a minibatch.

        Parameters
        ----------
        x, t : Tensor or list of Tensor
            The inputs and the targets.

        Returns
        -------
        outputs : Tensor or list of Tensor
            The outputs of the network.
        cost : float or None
            The cost; None if it is not computed yet.
        """
        be = self.model.be
        key = id(x), id(t), be.bsz, be.num_redefinitions
        recorded = self.passes.get(key)
        if recorded is None:
            if len(self.passes) == MAX_RECORDINGS:
                return self.model.compute_gradients(x, t)
            recorded = self.passes[key] = RecordedPass(self.model, x, t)
        return recorded(), None

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None  # a copy of a model that is in training records its own steps


class RecordedPass:
    """The forward and backward pass on two tensors, which are kept alive, so that their ids stay unique."""

    def __init__(self, model: Model, x: Any, t: Any) -> None:
        self.model, self.x, self.t = model, x, t
        self.calls: list[Call] = []
        self.changes = -1  # the first reset is no change
        self.reset()

    def reset(self) -> None:
        """Discard the recording, and take a new snapshot of the attributes."""
        self.changes = 0 if self.calls else self.changes + 1
        self.calls = []
        self.attributes = AttributeSnapshot([self.model.layers, self.model.cost])
        is_stable = self.changes <= MAX_CHANGES and not self.attributes.custom_class
        self.can_record = is_stable and can_record(self.model)
        self.runs = 0
        self.outputs: Any = None

    def __call__(self) -> Any:
        """Run it, or repeat its calls if it is recorded; return the outputs of the network."""
        if self.can_record and not self.attributes.is_unchanged():
            self.reset()
        if self.calls:
            for call in self.calls:
                call()
        elif self.can_record and self.runs == WARMUP_RUNS:
            with record() as calls:
                self.outputs = self._run()
            self.calls = calls
        else:
            self.runs += 1
            self.outputs = self._run()
        return self.outputs

    def _run(self) -> Any:
        model = self.model
        y = model.fprop(self.x)
        model.bprop(model.cost.get_errors(y, self.t))
        return y


def can_record(model: Model) -> bool:
    """Return whether the passes of a model run compiled assignments and matrix products alone, on a CPU."""
    network, cost = model.layers, model.cost
    return (
        type(model).__module__ == "neonlite.models.model"  # not a subclass, which may override fprop or bprop
        and not vars(model).keys() & {"fprop", "bprop", "compute_gradients"}
        and model.cuda_graphs
        and model.be.graphs is None
        and model.data_parallel is None
        and model.loss_scaling is None
        and (type(cost) is GeneralizedCost and is_builtin(type(cost.costfunc)))
        and _is_recordable(network)
    )


def _is_recordable(layer: Any) -> bool:
    if type(layer) in CONTAINERS:
        runs_other_code = layer.input_copies or layer.error_copies or layer.gradient_reducer is not None
        return not runs_other_code and all(map(_is_recordable, layer.layers))
    return type(layer) in LAYERS and not layer.acc_on
