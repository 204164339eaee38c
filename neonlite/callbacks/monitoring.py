"""Callbacks that react to a recorded value: stop, save the best model, reduce the rate; and callbacks that save."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from neonlite.backend import objects, validation
from neonlite.callbacks.callback import PRIORITY_CHECKPOINT, PRIORITY_SAVE, PRIORITY_STOP, Callback, check_floats
from neonlite.callbacks.history import hint_for_name, is_cost
from neonlite.callbacks.recording import MetricCallback
from neonlite.files import check_writable, printable
from neonlite.messages import describe
from neonlite.optimizers import Optimizer, ReducedSchedule, wrappers
from neonlite.transforms.metrics import recorded_name
from neonlite.typing import NumPyArray, is_float_array


class SerializeModelCallback(Callback):
    """Save a checkpoint every so many epochs, and when training is interrupted.

    It runs after all other callbacks, so the checkpoint contains all records of the epoch. Weights with NaN or infinity
    never replace a file: they are saved to ``save_path`` + ".nan".

    Parameters
    ----------
    save_path : str or Path
        The file to write.
    epoch_freq : int or list of int
        Save every ``epoch_freq`` epochs, or in the epochs of these indices. Default: 1.
    history : int
        If above 1, also keep the files of the last ``history`` saves, named PATH_EPOCHS.EXT by the number of
        complete epochs. Default: 1.

    Raises
    ------
    TypeError
        When training starts: the model or its optimizer cannot be serialized.
    ValueError
        If ``epoch_freq`` is 0 or an empty list.
    """

    priority = PRIORITY_CHECKPOINT

    def __init__(self, save_path: str | Path, epoch_freq: int | list[int] = 1, history: int = 1) -> None:
        super().__init__(epoch_freq)
        if not self.epoch_freq:
            raise ValueError(
                f"SerializeModelCallback: expected an epoch_freq of at least 1, or a list of epochs, got {epoch_freq}, "
                "which saves nothing. Leave the callback out."
            )
        self.save_path = self.output_path = check_writable("save_path", save_path)
        self.history = validation.integer("SerializeModelCallback: history", history, 1)
        self.saved_epochs: list[int] = []  # those that have a file PATH_EPOCHS.EXT

    def on_train_begin(self, epochs: int) -> None:
        check_savable(self, self.save_path)

    def on_epoch_end(self, epoch: int) -> None:
        if not self.should_fire(epoch, self.epoch_freq):
            return
        if self.history > 1 and not self.model.nonfinite_weights():
            before = self.saved_epochs
            epochs = epoch + 1  # of which it is the checkpoint
            self.saved_epochs = [*(x for x in before if x < epochs), epochs][-self.history :]
            self.model.save_params(self.epoch_path(epochs))
            for old in set(before) - set(self.saved_epochs):
                self.epoch_path(old).unlink(missing_ok=True)
        self.model.save_params(self.save_path)  # after the other files, so that its list of saved epochs matches them

    def epoch_path(self, epochs: int) -> Path:
        """Return the path of the checkpoint after a number of epochs.

        Parameters
        ----------
        epochs : int
            The number of complete epochs, from 1.

        Returns
        -------
        Path
            PATH_EPOCHS.EXT for the ``save_path`` PATH.EXT.
        """
        path = Path(self.save_path)
        return path.with_name(f"{path.stem}_{epochs}{path.suffix}")

    def on_interrupt(self) -> None:
        self.model.save_params(self.save_path)

    def get_state(self) -> object:
        return self.saved_epochs if self.history > 1 else None

    def set_state(self, state: object) -> None:
        if not isinstance(state, list):
            raise ValueError(f"SerializeModelCallback: expected a list of epochs as its state, got {describe(state)}")
        self.saved_epochs = [validation.integer("SerializeModelCallback: an epoch", x, 1) for x in state]


def check_savable(callback: Callback, path: str) -> None:
    """Raise TypeError if a model cannot be saved, as with an optimizer that cannot be serialized."""
    try:
        callback.model.check_savable()
    except (AttributeError, TypeError) as error:
        raise TypeError(f"{callback.classnm}: this training cannot be saved to {path}: {error}") from error


class HistoryFileCallback(Callback):
    """Write the history to an HDF5 file after each epoch.

    Parameters
    ----------
    path : str or Path
        The file to write.

    Raises
    ------
    ImportError
        h5py is not installed.
    """

    priority = PRIORITY_SAVE
    rank_0_only = True

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = self.output_path = check_writable("output_file", path)
        validation.import_extra("h5py", "an HDF5 file", "hdf5")

    def on_epoch_end(self, epoch: int) -> None:
        self.callbacks.history.write(self.path)


# --- callbacks that watch a recorded value: stop training, save the best weights, or reduce the learning rate ---

State = TypeVar("State")  # JSON data

log = logging.getLogger("neonlite")


class ValueCallback(Callback):
    """Base class of callbacks that watch a recorded value; subclasses implement ``on_value``.

    After an epoch in which the value was not recorded, nor before, training ends with ValueError, unless a callback
    lists the name in ``record_names``.

    Parameters
    ----------
    monitor : str
        The name of the recorded value. Default: "val_loss".

    Attributes
    ----------
    stopped : bool
        Whether this callback has ended training.
    """

    priority = PRIORITY_STOP

    def __init__(self, monitor: str = "val_loss") -> None:
        super().__init__()
        self.monitor = validation.instance(f"{self.classnm}: monitor", monitor, str, "the name of a recorded value")
        self.stopped = False

    def on_value(self, epoch: int, value: float) -> None:
        """Run after each epoch in which the value was recorded.

        Parameters
        ----------
        epoch : int
            The index of the epoch, from 0.
        value : float
            The value.
        """
        raise NotImplementedError(f"{self.classnm}: implement on_value(epoch, value)")

    def on_train_begin(self, epochs: int) -> None:
        if self.monitor == "val_loss":
            self.callbacks.require_eval_set(self)
        self.model.finished = self.model.finished or self.stopped

    def on_epoch_end(self, epoch: int) -> None:
        value = self.callbacks.epoch_value(self.monitor, epoch)
        if value is not None:
            self.on_value(epoch, value)
            return
        names = dict.fromkeys([*self.callbacks.history, *self.declared_names])
        if not names.keys() & {self.monitor, recorded_name(self.monitor)}:
            raise self.unknown_monitor(names)

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


class MonitorCallback(ValueCallback):
    """Base class of callbacks that react when a recorded value has not improved for ``patience`` epochs.

    Subclasses implement ``on_improvement`` and ``on_plateau``. NaN is never an improvement.

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

    def __init__(self, patience: int, monitor: str, min_delta: float, mode: str | None) -> None:
        super().__init__(monitor)
        self.patience = validation.integer(f"{self.classnm}: patience", patience, 1)
        self.min_delta = validation.check_number(f"{self.classnm}: min_delta", min_delta, 0)
        self.mode = validation.one_of(f"{self.classnm}: mode", mode, ("min", "max", None))
        self.sign = 1  # -1 if the value is maximized
        self.best: float | None = None
        self.waiting_since: int | None = None  # the epoch of the best value, or of the last plateau

    @property
    def _state_fields(self) -> Mapping[str, Callable[[str, Any], Any]]:
        return {
            "best": lambda label, x: None if x is None else check_floats(label, [x])[0],
            "waiting_since": lambda label, x: None if x is None else validation.integer(label, x, -1),
        }

    def on_value(self, epoch: int, value: float) -> None:
        if self.waiting_since is None:
            return
        if not math.isnan(value) and (self.best is None or self.sign * value < self.sign * self.best - self.min_delta):
            self.best, self.waiting_since = value, epoch
            self.on_improvement()
        elif epoch - self.waiting_since >= self.patience:
            self.waiting_since = epoch
            self.on_plateau(epoch)

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
        super().on_train_begin(epochs)
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
        self.restore_best = validation.boolean("EarlyStop: restore_best", restore_best)
        self.best_weights: Mapping[str, NumPyArray] | None = None
        self.last_weights: Mapping[str, NumPyArray] | None = None  # while the model has the best ones after fit

    def on_train_begin(self, epochs: int) -> None:
        super().on_train_begin(epochs)
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

    @property
    def _state_fields(self) -> Mapping[str, Callable[[str, Any], Any]]:
        weights = {"best_weights": self._check_weights, "last_weights": self._check_weights}
        return {**super()._state_fields, "stopped": validation.boolean, **weights}

    def _check_weights(self, label: str, weights: Any) -> Any:
        """Return weights of the model, or None; raise ValueError for anything else."""
        if weights is not None:
            arrays: Any = self.model.layers.check_weights(weights)[1].values()
            if not all(map(is_float_array, arrays)):
                raise ValueError(validation.expected_argument(label, "floats", weights))
        return weights


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
        self.factor = validation.check_number("ReduceOnPlateau: factor", factor, above=0, high=1)
        self.min_rate = validation.check_number("ReduceOnPlateau: min_rate", min_rate, 0)
        self.scale = 1.0

    def on_train_begin(self, epochs: int) -> None:
        super().on_train_begin(epochs)
        validation.instance(
            "ReduceOnPlateau: optimizer", self.model.optimizer, Optimizer, "an Optimizer, such as Adam(),"
        )
        self.reduce_schedules(self.scale)

    def on_train_end(self) -> None:
        self.reduce_schedules(1)

    on_interrupt = on_train_end

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
        for optimizer in wrappers.flatten_optimizers(self.model.optimizer):
            schedule = optimizer.schedule
            while isinstance(schedule, ReducedSchedule):
                schedule = schedule.schedule
            optimizer.schedule = ReducedSchedule(schedule, scale, self.min_rate) if scale < 1 else schedule

    @property
    def _state_fields(self) -> Mapping[str, Callable[[str, Any], Any]]:
        return {**super()._state_fields, "scale": partial(validation.check_number, low=0, at_most=1)}


class SaveBestStateCallback(ValueCallback):
    """Save a checkpoint whenever the cost on the validation set is the lowest so far.

    Weights with NaN or infinity do not replace the file: they are saved to ``path`` + ".nan".

    Parameters
    ----------
    path : str or Path
        The file to write.

    Raises
    ------
    TypeError
        When training starts: the model or its optimizer cannot be serialized.
    ValueError
        When training starts: there is no validation set.
    """

    priority = PRIORITY_SAVE

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = self.output_path = check_writable("SaveBestStateCallback: path", path)
        self.best_cost = math.inf

    def on_train_begin(self, epochs: int) -> None:
        super().on_train_begin(epochs)
        check_savable(self, self.path)

    def on_value(self, epoch: int, value: float) -> None:
        before, written = self.best_cost, None
        if value < before:
            try:
                self.best_cost = value  # before saving, as the file contains it
                written = self.model.save_params(self.path)
            finally:
                if written != self.path:
                    self.best_cost = before

    def get_state(self) -> object:
        return self.best_cost

    def set_state(self, state: object) -> None:
        (self.best_cost,) = check_floats(f"{self.classnm}: the lowest cost so far", [state])


class EarlyStopCallback(ValueCallback):
    """End training when a function of the cost on the validation set returns True.

    With the same ``Callbacks``, or after its checkpoint is loaded, training that was stopped stays stopped. In new
    ``Callbacks``, as in each ``fit(X, y)``, this callback starts again.

    Parameters
    ----------
    stop_func : callable
        ``stop_func(state, cost)`` returns (state, whether to stop). It is called after each epoch in which the
        validation set is evaluated. The first state is None; others are JSON data, as checkpoints store them: scalars,
        strings, lists (tuples become lists) and dicts.

    Raises
    ------
    ValueError
        When training starts: there is no validation set.
    """

    def __init__(self, stop_func: Callable[[State | None, float], tuple[State, bool]]) -> None:
        super().__init__()
        self.stop_func = validation.function(
            "EarlyStopCallback: stop_func", stop_func, "a function of the state and the cost"
        )
        self.state: object = None

    @property
    def _state_fields(self) -> Mapping[str, Callable[[str, Any], Any]]:
        return {"state": lambda label, state: state, "stopped": validation.boolean}

    def on_value(self, epoch: int, value: float) -> None:
        result = self.stop_func(self.state, value)
        label = "EarlyStopCallback: the result of stop_func"
        state, stopped = validation.sequence(label, result, "a pair (state, whether to stop)", count=2)
        self.state = objects.serialize(state, "EarlyStopCallback: the state that stop_func returned")
        self.stopped = bool(stopped)
        self.model.finished = self.model.finished or self.stopped


class TerminateOnNaN(Callback):
    """End training after the first step whose cost is NaN or infinite.

    The saving callbacks write their files then. A later ``fit`` continues with the next minibatch, for example after
    ``load_params`` of the last file and with a lower learning rate. ``set_weights`` replaces the weights only: the
    states of an optimizer such as Adam, which may contain NaN as well, are unchanged. The mean cost of an epoch with
    such a step stays NaN or infinite; ``model.step_cost`` is the cost of the last step.

    Examples
    --------
    >>> from neonlite.callbacks import Callbacks, TerminateOnNaN
    >>> from neonlite.layers import Affine
    >>> from neonlite.initializers import Constant
    >>> from neonlite.models import Model
    >>> callbacks = Callbacks(Model([Affine(1, Constant(0))]), progress_bar=False)
    >>> callbacks.add_callback(TerminateOnNaN())
    """

    priority = PRIORITY_STOP

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self.model.finished = self.model.finished or not math.isfinite(self.model.step_cost)
