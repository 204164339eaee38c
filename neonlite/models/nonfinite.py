"""Diagnose NaN and infinity in training: find the first tensor that contains them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.backend import Tensor
from neonlite.backend.warn import warn
from neonlite.dtypes import HALF_DTYPES

if TYPE_CHECKING:
    from neonlite.models.model import Model

REMEDIES = "a lower learning rate, the optimizer's gradient_clip_norm, inputs scaled to about -1 to 1"


def warn_nonfinite(model: Model, problem: str) -> None:
    """Warn of NaN or infinity, and record that this ``fit`` has warned."""
    model.warned = True
    warn(f"{model.name}: {problem}. Add the callback TerminateOnNaN() to end training then.", RuntimeWarning)


def check_step_cost(
    model: Model, cost: float, x: Tensor | list[Tensor] | None, t: Tensor | list[Tensor] | None
) -> None:
    """Warn if a cost is not finite, before the update spreads NaN to all weights; x and t help to find the cause."""
    if not math.isfinite(cost) and not model.warned:
        position = f"in epoch {model.epoch_index + 1}, minibatch {model.minibatch_index + 1}"
        warn_nonfinite(model, f"the cost is {cost} {position}: {diagnosis(model, x, t)}")


def check_final_weights(model: Model) -> None:
    """Warn at the end of ``fit`` if weights are not finite, unless it has warned before."""
    if not model.warned and (names := model.nonfinite_weights()):
        problem = f"{shortened_list(names)} have NaN or infinity after epoch {model.epoch_index}"
        warn_nonfinite(model, f"{problem}; possible remedies: {REMEDIES}")


def nonfinite(arrays: Iterable[tuple[str, Any]]) -> list[str]:
    """Return the names of the arrays that contain NaN or infinity."""
    return [name for name, array in arrays if not np.isfinite(array).all()]


def nonfinite_weights(model: Model) -> list[str]:
    """Return the names of the weights with NaN or infinity, as in ``get_weights``: "fc.W"."""
    weights = [
        (layer, name, tensor) for layer in model.layers.leaves() for name, tensor in layer.persistent_tensors.items()
    ]
    return nonfinite((f"{layer.name}.{name}", tensor.get()) for layer, name, tensor in weights if tensor is not None)


def diagnosis(model: Model, x: Any, t: Any) -> str:
    """Return the source of NaN or infinity in a step, before the weights are updated, and remedies."""
    if nonfinite(tensors(x)):
        return "the inputs contain NaN or infinity; an iterator with check_finite=True reports the row and the column"
    if nonfinite(tensors(t)):
        return "the targets contain NaN or infinity; an iterator with check_finite=True reports the row and the column"
    remedies = REMEDIES
    if model.be.default_dtype_name in HALF_DTYPES and model.loss_scaling is None:
        remedies += f", LossScaling(optimizer) or float32 instead of {model.be.default_dtype_name}"
    if weights := nonfinite_weights(model):
        return f"the previous step left NaN or infinity in {shortened_list(weights)}; possible remedies: {remedies}"
    layers = model.layers.leaves()
    for layer in layers:
        if nonfinite(tensors(layer.outputs)):
            shared = [x.name for x in layers if x.outputs is layer.outputs]  # in place: any may be the source
            return f"{' or '.join(shared)} is the first layer with such outputs; possible remedies: {remedies}"
    cost = type(getattr(model.cost, "costfunc", model.cost)).__name__
    return f"all outputs are finite, but {cost} of them is not; possible remedies: {remedies}"


def tensors(x: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and the arrays of the tensors in nested lists and tuples."""
    if isinstance(x, list | tuple):
        for part in x:
            yield from tensors(part)
    elif isinstance(x, Tensor):
        yield x.name or "", x.get()


def shortened_list(names: list[str], limit: int = 3) -> str:
    """Return the first names and the number of the others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
