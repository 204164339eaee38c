"""Callbacks that react when a recorded value no longer improves: stop training, or reduce the learning rate."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

from neonlite.backend.bfloat16 import is_float_array
from neonlite.backend.validation import boolean, check_number, instance, integer, one_of
from neonlite.callbacks.callback import PRIORITY_STOP, Callback
from neonlite.callbacks.history import hint_for_name, is_cost
from neonlite.callbacks.recording import MetricCallback
from neonlite.files import printable
from neonlite.messages import describe
from neonlite.optimizers import Optimizer, ReducedSchedule
from neonlite.optimizers.loss_scaling import flatten_optimizers
from neonlite.transforms.metric_table import recorded_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from neonlite.typing import NumPyArray

log = logging.getLogger("neonlite")


class MonitorCallback(Callback):
    """Base class of callbacks that react when a recorded value has not improved for ``patience`` epochs.

    Subclasses implement ``on_improvement`` and ``on_plateau``. NaN is never an improvement. After an epoch in which the
    value was not recorded, nor before, training ends with ValueError, unless a callback lists the name in
    ``record_names``.

    Parameters
    ----------
    patience : int
        The number of epochs without improvement.
    monitor : str
        The name of the recorded value.
    min_delta : float
        The smallest change that is an improvement.
    mode : str, optional
        "min" or "max": whether the value is minimized or maximized. Default: that of the metric; "min" for costs.

    Attributes
    ----------
    best : float or None
        The best value so far.
    """

    priority = PRIORITY_STOP

    def __init__(self, patience: int, monitor: str, min_delta: float, mode: str | None) -> None:
        super().__init__()
        self.patience = integer(f"{self.classnm}: patience", patience, 1)
        self.monitor = instance(f"{self.classnm}: monitor", monitor, str, "the name of a recorded value")
        self.min_delta = check_number(f"{self.classnm}: min_delta", min_delta, 0)
        self.mode = one_of(f"{self.classnm}: mode", mode, ("min", "max", None))
        self.sign = 1  # -1 if the value is maximized
        self.best: float | None = None
        self.waiting_since: int | None = None  # the epoch of the best value, or of the last plateau

    def on_improvement(self) -> None:
        """Run after an epoch with the best value so far."""

    def on_plateau(self, epoch: int) -> None:
        """Run after ``patience`` epochs without improvement.

        Parameters
        ----------
        epoch : int
            The index of the epoch, from 0.
        """

    def on_train_begin(self, epochs: int) -> None:
        if self.monitor == "val_loss":
            self.callbacks.require_eval_set(self)
        self.sign = -1 if (self.mode or self.find_mode()) == "max" else 1
        if self.waiting_since is None:
            self.waiting_since = self.model.epoch_index - 1

    def find_mode(self) -> str:
        """Return "max" or "min" for the monitored value; raise ValueError if that is unknown."""
        name = recorded_name(self.monitor)
        for metric in (x.metric for x in self.callbacks.callbacks if isinstance(x, MetricCallback)):
            greater_is_better = getattr(metric, "greater_is_better", None)
            if {self.monitor, name} & {*metric.metric_names} and greater_is_better is not None:
                return "max" if greater_is_better else "min"
        if is_cost(self.monitor):
            return "min"
        error = self.unknown_monitor(["loss", *self.declared_names])
        raise ValueError(f"{error} For other values, pass mode='min' or mode='max'.")

    @property
    def declared_names(self) -> list[str]:
        """The names of the values that callbacks record, perhaps not in the first epoch."""
        return [name for callback in self.callbacks.callbacks for name in callback.record_names]

    def unknown_monitor(self, names: Collection[str]) -> ValueError:
        """Return the exception for a value that is none of those that are recorded.

        Parameters
        ----------
        names : sequence of str
            The names of the recorded values.
        """
        known = printable(", ".join(map(repr, names)))
        hint = hint_for_name(self.monitor, names)
        return ValueError(f"{self.classnm}: expected monitor to be one of {known}, got {self.monitor!r}.{hint}")

    def on_epoch_end(self, epoch: int) -> None:
        value = self.callbacks.epoch_value(self.monitor, epoch)
        if value is None:
            names = dict.fromkeys([*self.callbacks.history, *self.declared_names])
            if not names.keys() & {self.monitor, recorded_name(self.monitor)}:
                raise self.unknown_monitor(names)
            return
        if self.waiting_since is None:
            return
        if not math.isnan(value) and (self.best is None or self.sign * value < self.sign * self.best - self.min_delta):
            self.best, self.waiting_since = value, epoch
            self.on_improvement()
        elif epoch - self.waiting_since >= self.patience:
            self.waiting_since = epoch
            self.on_plateau(epoch)

    def get_state(self) -> dict[str, object]:
        return {"best": self.best, "waiting_since": self.waiting_since}

    def set_state(self, state: object) -> None:
        if not isinstance(state, dict) or state.keys() != self.get_state().keys():
            keys = ", ".join(self.get_state())
            raise ValueError(f"{self.classnm}: expected a dict with {keys} as its state, got {describe(state)}")
        best, since = state["best"], state["waiting_since"]
        if type(best) not in (int, float, type(None)):
            raise ValueError(f"{self.classnm}: expected the best value as a number, got {describe(best)}")
        self.best = None if best is None else float(best)
        self.waiting_since = None if since is None else integer(f"{self.classnm}: waiting_since", since, -1)


class EarlyStop(MonitorCallback):
    """End training when a value has not improved for ``patience`` epochs, and restore the best weights.

    If training reaches ``num_epochs`` instead, the model has the best weights as well. With the same ``Callbacks``, or
    after its checkpoint is loaded, training that was stopped stays stopped, and another ``fit`` with more epochs
    continues from the last weights, as if training had not been interrupted. In new ``Callbacks``, as in each
    ``fit(X, y)``, this callback starts again, with the weights of the model.

    Parameters
    ----------
    patience : int
        The number of epochs without improvement after which training ends. Default: 10.
    restore_best : bool
        Whether the model has the weights of the best epoch after training, instead of the last ones. A copy of them
        is kept in memory, and in checkpoints. Default: True.
    monitor : str
        The name of the recorded value, such as "loss" or "accuracy". Default: "val_loss".
    min_delta : float
        The smallest change that is an improvement. Default: 0.
    mode : str, optional
        "min" or "max": whether the value is minimized or maximized. Default: that of the metric; "min" for costs.

    Attributes
    ----------
    best : float or None
        The best value so far.
    stopped : bool
        Whether this callback has ended training.

    Raises
    ------
    ValueError
        When training starts: there is no validation set, or the direction of the value is unknown. After the first
        epoch: the value was not recorded.

    Examples
    --------
    >>> from neonlite.callbacks import EarlyStop
    >>> EarlyStop(patience=5, monitor="Accuracy")
    EarlyStop(patience=5, restore_best=True, monitor='Accuracy', min_delta=0.0, mode=None)
    """

    def __init__(
        self,
        patience: int = 10,
        restore_best: bool = True,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        mode: str | None = None,
    ) -> None:
        super().__init__(patience, monitor, min_delta, mode)
        self.restore_best = boolean("EarlyStop: restore_best", restore_best)
        self.stopped = False
        self.best_weights: Mapping[str, NumPyArray] | None = None
        self.last_weights: Mapping[str, NumPyArray] | None = None  # while the model has the best ones after fit

    def on_train_begin(self, epochs: int) -> None:
        super().on_train_begin(epochs)
        self.model.finished = self.model.finished or self.stopped
        if self.last_weights is not None and self.best_weights is not None:
            weights = self.model.get_weights()
            if all((weights[name] == best).all() for name, best in self.best_weights.items()):  # nobody changed them
                self.model.set_weights(self.last_weights)
            self.last_weights = None

    def on_improvement(self) -> None:
        if self.restore_best:
            self.best_weights = self.model.get_weights()

    def on_plateau(self, epoch: int) -> None:
        self.stopped = self.model.finished = True
        if self.best_weights is not None:
            self.model.set_weights(self.best_weights)  # before the checkpoint of this epoch is written

    def on_train_end(self) -> None:
        if self.best_weights is not None and not self.stopped:
            self.last_weights = self.model.get_weights()
            self.model.set_weights(self.best_weights)

    def get_state(self) -> dict[str, object]:
        weights = {"best_weights": self.best_weights, "last_weights": self.last_weights}
        return {**super().get_state(), "stopped": self.stopped, **weights}

    def set_state(self, state: object) -> None:
        super().set_state(state)
        if isinstance(state, dict):
            self.stopped = boolean("EarlyStop: stopped", state["stopped"])
            for name in ("best_weights", "last_weights"):
                if state[name] is not None:
                    arrays: Any = self.model.layers.check_weights(state[name])[1].values()
                    if not all(map(is_float_array, arrays)):
                        raise ValueError(f"EarlyStop: expected floats for {name}, got {describe(state[name])}")
            self.best_weights, self.last_weights = state["best_weights"], state["last_weights"]


class ReduceOnPlateau(MonitorCallback):
    """Multiply the learning rate by ``factor`` when a value has not improved for ``patience`` epochs.

    The rates of the optimizer's schedule are multiplied, whatever the schedule; see ``ReducedSchedule``. A
    MultiOptimizer reduces the rates of all its optimizers. When training ends, the optimizer has its first schedule.

    Parameters
    ----------
    factor : float
        The factor, between 0 and 1. Default: 0.1.
    patience : int
        The number of epochs without improvement after which the rate is reduced. Default: 10.
    min_rate : float
        The learning rate is not reduced below this value. Default: 0.
    monitor : str
        The name of the recorded value, such as "loss" or "accuracy". Default: "val_loss".
    min_delta : float
        The smallest change that is an improvement. Default: 0.
    mode : str, optional
        "min" or "max": whether the value is minimized or maximized. Default: that of the metric; "min" for costs.

    Attributes
    ----------
    best : float or None
        The best value so far.
    scale : float
        The product of all reductions so far.

    Raises
    ------
    TypeError
        When training starts: the optimizer is not an ``Optimizer``.
    ValueError
        When training starts: there is no validation set, or the direction of the value is unknown. After the first
        epoch: the value was not recorded.
    """

    def __init__(
        self,
        factor: float = 0.1,
        patience: int = 10,
        min_rate: float = 0.0,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        mode: str | None = None,
    ) -> None:
        super().__init__(patience, monitor, min_delta, mode)
        self.factor = check_number("ReduceOnPlateau: factor", factor, above=0, high=1)
        self.min_rate = check_number("ReduceOnPlateau: min_rate", min_rate, 0)
        self.scale = 1.0

    def on_train_begin(self, epochs: int) -> None:
        super().on_train_begin(epochs)
        instance("ReduceOnPlateau: optimizer", self.model.optimizer, Optimizer, "an Optimizer, such as Adam(),")
        self.reduce_schedules(self.scale)

    def on_train_end(self) -> None:
        self.reduce_schedules(1)

    def on_interrupt(self) -> None:
        self.reduce_schedules(1)

    def on_plateau(self, epoch: int) -> None:
        self.scale *= self.factor
        self.reduce_schedules(self.scale)
        log.info(
            "epoch %d: the learning rate is multiplied by %g: %s has not improved", epoch + 1, self.scale, self.monitor
        )

    def reduce_schedules(self, scale: float) -> None:
        """Set the scale of the schedules of all optimizers; an optimizer of a checkpoint is already reduced.

        Parameters
        ----------
        scale : float
            The factor of the rates; 1 restores the schedules.
        """
        for optimizer in flatten_optimizers(self.model.optimizer):
            schedule = optimizer.schedule
            while isinstance(schedule, ReducedSchedule):
                schedule = schedule.schedule
            optimizer.schedule = ReducedSchedule(schedule, scale, self.min_rate) if scale < 1 else schedule

    def get_state(self) -> dict[str, object]:
        return {**super().get_state(), "scale": self.scale}

    def set_state(self, state: object) -> None:
        super().set_state(state)
        if isinstance(state, dict):
            self.scale = check_number("ReduceOnPlateau: scale", state["scale"], 0, at_most=1)
