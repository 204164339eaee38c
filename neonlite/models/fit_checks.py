"""Checks of the arguments of ``Model.fit``, before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neonlite.backend.validation import from_name, with_attributes
from neonlite.backend.warn import warn
from neonlite.callbacks import CallbackBase, Callbacks
from neonlite.callbacks.callback import check_dataset
from neonlite.data import ArrayIterator
from neonlite.layers import BatchNorm, DataTransform, LookupTable
from neonlite.layers.buffers import num_features
from neonlite.messages import describe
from neonlite.optimizers import Optimizer
from neonlite.optimizers.loss_scaling import flatten_optimizers
from neonlite.transforms import Cost
from neonlite.transforms.cost import COSTS

MAX_UNSCALED_INPUT = 50  # larger inputs cause a warning

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
    with_attributes(f"{model.name}.fit: optimizer", optimizer, "optimize", "an optimizer, such as Adam(),")
    with_attributes(f"{model.name}.fit: callbacks", callbacks, "on_train_begin", "callbacks, such as Callbacks(model),")
    if isinstance(callbacks, Callbacks) and callbacks.model is not model:
        other = getattr(callbacks.model, "name", callbacks.model)
        raise ValueError(f"{model.name}.fit: expected callbacks of this model, got those of {describe(other)}")


def check_scale(model: Model, dataset: NervanaDataIterator) -> None:
    """Warn of an ArrayIterator over uint8 that are neither scaled nor token ids."""
    if isinstance(dataset, ArrayIterator) and dataset.preprocessing is None and dataset.augment is None:
        for x in (source.array for source in dataset.sources):
            if x.dtype == "uint8":
                way_out = f"Pass scale=1 / 255 to {dataset.name}."
                warn_if_unscaled(f"{model.name}.fit", model.layers, x, way_out)


def warn_if_unscaled(where: str, network: LayerContainer, inputs: Any, way_out: str) -> None:
    """Warn of large inputs, unless the first layer scales them or reads token ids."""
    if not isinstance(network.leaves()[0], LookupTable | DataTransform | BatchNorm):
        low, high = float(inputs.min()), float(inputs.max())
        if max(-low, high) > MAX_UNSCALED_INPUT:
            warn(
                f"{where}: the inputs are from {low:g} to {high:g} and are not scaled, so training may fail. {way_out}"
            )


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
    if 0 < num_epochs <= done:
        warn(
            f"{model.name}.fit: nothing was trained: num_epochs={num_epochs} is the total, and the model has "
            f"trained {trained}. Pass num_epochs={done + num_epochs} to train {num_epochs} more."
        )
    elif model.finished and num_epochs:
        warn(
            f"{model.name}.fit: nothing was trained: a callback, such as EarlyStop, ended this training "
            f"after {trained}. Leave it out to continue."
        )
    elif num_epochs and isinstance(model.optimizer, Optimizer):
        for optimizer in flatten_optimizers(model.optimizer):
            if getattr(optimizer, "learning_rate", 0) and not optimizer.get_rate(num_epochs - 1):
                warn(
                    f"{model.name}.fit: the learning rate is 0 in epoch {num_epochs}, so the weights do not "
                    f"change then: {describe(optimizer.schedule)} ends before num_epochs={num_epochs}"
                )
