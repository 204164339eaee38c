"""Checks of the arguments of ``Model.fit``, before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neonlite.backend.validation import from_name
from neonlite.backend.warn import warn
from neonlite.callbacks import CallbackBase, Callbacks
from neonlite.callbacks.callback import check_dataset
from neonlite.messages import describe
from neonlite.optimizers import Optimizer
from neonlite.optimizers.loss_scaling import flatten_optimizers
from neonlite.transforms import Cost
from neonlite.transforms.cost import COSTS

if TYPE_CHECKING:
    from neonlite.data import NervanaDataIterator
    from neonlite.models.model import Model


def check_arguments(
    model: Model, dataset: NervanaDataIterator, cost: object, optimizer: object, callbacks: CallbackBase
) -> None:
    """Raise TypeError or ValueError if ``fit`` cannot use its arguments."""
    check_dataset(f"{model.name}.fit: dataset", dataset)
    cost = from_name(f"{model.name}.fit: cost", cost, COSTS)
    if isinstance(cost, type) or not (isinstance(cost, Cost) or hasattr(cost, "get_cost")):
        raise TypeError(f"{model.name}.fit: expected a cost, such as CrossEntropyMulti(), got {describe(cost)}")
    if isinstance(optimizer, type) or not hasattr(optimizer, "optimize"):
        raise TypeError(f"{model.name}.fit: expected an optimizer, such as Adam(), got {describe(optimizer)}")
    if isinstance(callbacks, type) or not hasattr(callbacks, "on_train_begin"):
        raise TypeError(f"{model.name}.fit: expected callbacks, such as Callbacks(model), got {describe(callbacks)}")
    if isinstance(callbacks, Callbacks) and callbacks.model is not model:
        other = getattr(callbacks.model, "name", callbacks.model)
        raise ValueError(f"{model.name}.fit: expected callbacks of this model, got those of {describe(other)}")


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
            f"{model.name}.fit: nothing was trained: a callback, such as EarlyStopCallback, ended this training "
            f"after {trained}. Leave it out to continue."
        )
    elif num_epochs and isinstance(model.optimizer, Optimizer):
        for optimizer in flatten_optimizers(model.optimizer):
            if optimizer.learning_rate and not optimizer.get_rate(num_epochs - 1):
                warn(
                    f"{model.name}.fit: the learning rate is 0 in epoch {num_epochs - 1}, so the weights do not "
                    f"change then: {describe(optimizer.schedule)} ends before num_epochs={num_epochs}"
                )
