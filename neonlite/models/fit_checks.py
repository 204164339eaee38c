"""Checks of the arguments of ``Model.fit``, before the first step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.backend.validation import from_name, with_attributes
from neonlite.backend.warn import warn
from neonlite.callbacks import CallbackBase, Callbacks
from neonlite.callbacks.callback import check_dataset
from neonlite.data import ArrayIterator
from neonlite.layers import BatchNorm, DataTransform, LookupTable
from neonlite.layers.buffers import num_features
from neonlite.messages import describe, wording
from neonlite.optimizers import Optimizer
from neonlite.optimizers.loss_scaling import flatten_optimizers
from neonlite.transforms import Cost
from neonlite.transforms.cost import COSTS

MAX_UNSCALED_INPUT = 50  # larger uint8 inputs of ``predict`` cause a warning
MAX_UNSCALED_RMS = 6  # a larger root mean square causes a warning: it is 1 in standardized data, below 1 in images
MAX_RMS_ROWS = 1000  # from which it is estimated

if TYPE_CHECKING:
    from neonlite.data import NervanaDataIterator
    from neonlite.layers import LayerContainer
    from neonlite.models.model import Model


def check_arguments(
    model: Model, dataset: NervanaDataIterator, cost: object, optimizer: object, callbacks: CallbackBase
) -> None:
    """Raise TypeError or ValueError if ``fit`` cannot use its arguments."""
    check_dataset(f"{model.name}.fit: dataset", dataset)
    cost = from_name(f"{model.name}.fit: cost", cost, COSTS)
    if not isinstance(cost, Cost):
        with_attributes(f"{model.name}.fit: cost", cost, "get_cost", "a cost, such as CrossEntropyMulti(),")
    way_out = f". The number of epochs is epochs={optimizer}." if type(optimizer) is int else ""
    with_attributes(f"{model.name}.fit: optimizer", optimizer, "optimize", "an optimizer, such as Adam(),", way_out)
    with_attributes(f"{model.name}.fit: callbacks", callbacks, "on_train_begin", "callbacks, such as Callbacks(model),")
    if isinstance(callbacks, Callbacks) and callbacks.model is not model:
        other = getattr(callbacks.model, "name", callbacks.model)
        raise ValueError(f"{model.name}.fit: expected callbacks of this model, got those of {describe(other)}")


def check_scale(model: Model, dataset: NervanaDataIterator) -> None:
    """Warn of an ArrayIterator over large inputs that are neither scaled nor token ids, and of large targets."""
    if not isinstance(dataset, ArrayIterator) or dataset.input_encoder is not None:  # that of arrays is checked before
        return
    where, name = f"{model.name}.fit", dataset.name
    if dataset.preprocessing is None and dataset.augment is None:
        for x in (source.array for source in dataset.sources):
            factor = "1 / 255" if x.dtype == "uint8" else f"1 / {np.abs(x).max():.3g}"
            warn_if_unscaled(where, model.layers, x, f"Pass scale={factor} to {name}.")
    if dataset.nclass is None and dataset.target_rows is not None:
        warn_of_targets(where, dataset.target_rows)


def warn_if_unscaled(where: str, network: LayerContainer, inputs: Any, way_out: str) -> None:
    """Warn of large inputs, unless the first layers scale them or read token ids."""
    first = network.leaves()[:1] if not isinstance(network.in_shape, list) else network.leaves()
    if not any(isinstance(layer, LookupTable | DataTransform | BatchNorm) for layer in first):
        warn_if_large(f"{where}: the inputs", inputs, way_out)


def warn_of_targets(where: str, targets: Any) -> None:
    """Warn of large numbers as targets."""
    way_out = "Divide them by their standard deviation, and multiply the outputs by it."
    warn_if_large(f"{where}: the targets y", targets, way_out)


def warn_if_large(subject: str, rows: Any, way_out: str) -> None:
    """Warn of rows with a large root mean square; outliers of standardized rows have a small effect on it."""
    sample = rows[:: -(-len(rows) // MAX_RMS_ROWS)]
    mean_square = np.mean(np.square(sample, dtype=np.float64)) if len(sample) else 0.0
    if MAX_UNSCALED_RMS**2 < mean_square < math.inf:  # infinity has its own message
        low, high = float(rows.min()), float(rows.max())
        warn(f"{subject} are from {low:g} to {high:g} and are not scaled, so training may fail. {way_out}")


def check_batch_norm(model: Model, dataset: NervanaDataIterator) -> None:
    """Warn of a minibatch with a single row whose features are normalized."""
    sizes = {model.be.bsz}
    if isinstance(dataset, ArrayIterator) and dataset.partial_last:
        sizes.add(dataset.ndata % model.be.bsz)
    for layer in model.layers.leaves():
        if 1 in sizes and isinstance(layer, BatchNorm) and layer.nfm == num_features(layer.in_shape):
            warn(
                f"{model.name}.fit: {layer.name}: a minibatch of one row is normalized to 0, so it does not train the "
                "layers before. Use a batch size of 2 or more that leaves no single row."
            )


def check_epochs(model: Model, num_epochs: int) -> None:
    """Warn if ``fit`` has no epoch to train, or if the learning rate is 0 in the last epochs."""
    done = model.epoch_index
    trained = f"{done} epoch{'s' * (done != 1)}"
    total, more = (wording("num_epochs", f"num_epochs={n}", n) for n in (num_epochs, done + num_epochs))
    if 0 < num_epochs <= done:
        warn(
            f"{model.name}.fit: nothing was trained: {total} is the total, and the model has trained {trained}. Pass "
            f"{more} to train {num_epochs} more."
        )
    elif model.finished and num_epochs:
        who = wording("EarlyStop", "a callback, such as EarlyStop,")
        way_out = wording("without EarlyStop", "Leave it out")
        warn(
            f"{model.name}.fit: nothing was trained: {who} ended this training after {trained}. {way_out} to continue."
        )
    elif num_epochs and isinstance(model.optimizer, Optimizer):
        for optimizer in flatten_optimizers(model.optimizer):
            if getattr(optimizer, "learning_rate", 0) and not optimizer.get_rate(num_epochs - 1):
                warn(
                    f"{model.name}.fit: the learning rate is 0 in epoch {num_epochs}, so the weights do not "
                    f"change then: {describe(optimizer.schedule)} ends before {total}"
                )
