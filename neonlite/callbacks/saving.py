"""Callbacks that save the model or the history, or stop training."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from neonlite.backend.serialization import serialize
from neonlite.backend.validation import function, integer, sequence
from neonlite.callbacks.callback import PRIORITY_CHECKPOINT, PRIORITY_SAVE, PRIORITY_STOP, Callback
from neonlite.callbacks.history import import_h5py
from neonlite.files import check_writable
from neonlite.messages import describe

State = TypeVar("State")  # JSON data


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
        self.history = integer("SerializeModelCallback: history", history, 1)
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
        self.saved_epochs = [integer("SerializeModelCallback: an epoch", x, 1) for x in state]


class SaveBestStateCallback(Callback):
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
        self.callbacks.require_eval_set(self)
        check_savable(self, self.path)

    def on_epoch_end(self, epoch: int) -> None:
        cost, before = self.callbacks.validation_cost(epoch), self.best_cost
        if cost is not None and cost < before:
            written = None
            try:
                self.best_cost = cost  # before saving, as the file contains it
                written = self.model.save_params(self.path)
            finally:
                if written != self.path:
                    self.best_cost = before

    def get_state(self) -> object:
        return self.best_cost

    def set_state(self, state: object) -> None:
        if not isinstance(state, int | float) or isinstance(state, bool):
            raise ValueError(
                f"SaveBestStateCallback: expected the lowest cost so far as its state, got {describe(state)}"
            )
        self.best_cost = float(state)


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
        import_h5py()

    def on_epoch_end(self, epoch: int) -> None:
        self.callbacks.history.write(self.path)


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


class EarlyStopCallback(Callback):
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

    priority = PRIORITY_STOP

    def __init__(self, stop_func: Callable[[State | None, float], tuple[State, bool]]) -> None:
        super().__init__()
        self.stop_func = function("EarlyStopCallback: stop_func", stop_func, "a function of the state and the cost")
        self.state: object = None
        self.stopped = False

    def on_train_begin(self, epochs: int) -> None:
        self.callbacks.require_eval_set(self)
        self.model.finished = self.model.finished or self.stopped

    def on_epoch_end(self, epoch: int) -> None:
        cost = self.callbacks.validation_cost(epoch)
        if cost is None:
            return
        result = self.stop_func(self.state, cost)
        label = "EarlyStopCallback: the result of stop_func"
        state, stopped = sequence(label, result, "a pair (state, whether to stop)", count=2)
        self.state = serialize(state, "EarlyStopCallback: the state that stop_func returned")
        self.stopped = bool(stopped)
        self.model.finished = self.model.finished or self.stopped

    def get_state(self) -> object:
        return {"state": self.state, "stopped": self.stopped}

    def set_state(self, state: object) -> None:
        if not isinstance(state, dict) or type(state.get("stopped")) is not bool or "state" not in state:
            raise ValueError(
                f"EarlyStopCallback: expected a dict with state and stopped as its state, got {describe(state)}"
            )
        self.state, self.stopped = state["state"], state["stopped"]
