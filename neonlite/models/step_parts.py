"""Parts of a training step: what is restored if it fails, the batch size of its minibatch, its cost and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neonlite.backend.transaction import Snapshot, on_failure, restore_on_failure

if TYPE_CHECKING:
    from neonlite.backend import Tensor
    from neonlite.models.model import Model


def restore_step_on_failure(model: Model) -> None:
    """Register everything that the next training step depends on, to restore it if this one fails."""
    restore_on_failure(model, *model.progress_fields, "step_cost", "data_state")
    on_failure(model.be.rng_set_state, model.be.rng_get_state())  # the next fit repeats the step with the same dropout
    tensors: list[Tensor] = []
    for layer in model.layers.leaves():
        tensors += layer.running_tensors
        if layer.progress:
            restore_on_failure(layer, *layer.progress)
    if tensors:
        if model.snapshot is None or not model.snapshot.is_of(tensors):
            model.snapshot = Snapshot(tensors)
        model.snapshot.take(model.cuda_graphs)


@contextmanager
def use_batch_size_of(model: Model, x: Tensor | list[Tensor]) -> Iterator[int]:
    """Use the batch size of a minibatch, which may be partial; yield it, and restore the previous one."""
    previous, first = model.be.bsz, x[0] if isinstance(x, list | tuple) else x
    width = model.layers.num_samples(x) if first.shape[1] else 0
    if not width or width == previous == model.layers.batch_size:
        yield width
        return
    with model.be.batch_size(width):  # of this thread only
        try:
            if width != model.layers.batch_size:  # a partial minibatch, or be.bsz has changed
                model.set_batch_size(width)
            yield width
        finally:
            if width != previous:
                model.layers.batch_size = 0  # that of no buffers, if the reallocation fails
                for layer in model.layers.leaves():
                    layer.set_state({})  # those of this batch size
                model.set_batch_size(previous)


def compute_cost(model: Model, y: Tensor | list[Tensor], t: Tensor | list[Tensor]) -> float:
    """Return the cost of outputs.

    Parameters
    ----------
    y : Tensor or list of Tensor
        The outputs of the network.
    t : Tensor or list of Tensor
        The targets.
    """
    return float(model.cost.get_cost(y, t).item())


def scale_errors(model: Model, errors: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
    """Return the errors of the outputs, multiplied by the scale of a ``LossScaling`` optimizer.

    Parameters
    ----------
    errors : Tensor or list of Tensor
        The gradient of the cost with respect to the outputs.
    """
    return errors if model.loss_scaling is None else model.loss_scaling.scale_errors(errors)
