"""What is left of a training, and when does it end?  Files of the model, of the best one, of the history."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neonlite.backend.description import described
from neonlite.callbacks.callback import ENDS, KEEPS, SAVES, Callback, whole, writable
from neonlite.callbacks.history import hdf5
from neonlite.optree import describe


class SerializeModelCallback(Callback):
    """Writes the model to a file every so many epochs, and when training is interrupted.

    With ``history`` > 1 that many files stay beside it, path_EPOCH.ext. It is told last, so the file has all that was
    noted of the epoch, and what other files there are has been written.
    """

    turn = SAVES

    def __init__(self, save_path: Any, epoch_freq: Any = 1, history: int = 1) -> None:
        super().__init__(epoch_freq)
        self.save_path = writable("save_path", save_path)
        self.history = whole("history, the number of files that are kept,", history, 1)
        self.kept: list[int] = []  # the epochs of the files beside it

    def on_epoch_end(self, epoch: int) -> None:
        if not self.should_fire(epoch, self.epoch_freq):
            return
        if self.history > 1:
            before = self.kept
            self.kept = [*(x for x in before if x < epoch), epoch][-self.history :]
            self.model.save_params(self.beside(epoch))
            for old in set(before) - set(self.kept):
                self.beside(old).unlink(missing_ok=True)
        self.model.save_params(self.save_path)  # the last: what is taken up from it finds the others as they should be

    def beside(self, epoch: int) -> Path:
        """Return the path of an epoch's own file."""
        path = Path(self.save_path)
        return path.with_name(f"{path.stem}_{epoch}{path.suffix}")

    def on_interrupt(self) -> None:
        self.model.save_params(self.save_path)

    def get_state(self) -> Any:
        return self.kept if self.history > 1 else None

    def set_state(self, state: Any) -> None:
        if not isinstance(state, list):
            raise ValueError(f"SerializeModelCallback: its state is a list of epochs; got {describe(state)}")
        self.kept = [whole("an epoch", x, 0) for x in state]


class SaveBestState(Callback):
    """Writes the model to a file whenever the cost of the validation set is the lowest so far."""

    turn = KEEPS

    def __init__(self, path: Any) -> None:
        super().__init__()
        self.path = writable("SaveBestState: path", path)
        self.best = math.inf

    def on_train_begin(self, epochs: int) -> None:
        self.callbacks.needs_validation(self)

    def on_epoch_end(self, epoch: int) -> None:
        cost, before = self.callbacks.validation_cost(epoch), self.best
        if cost is not None and cost < before:
            self.best = cost  # the file has it
            try:
                self.model.save_params(self.path)
            except BaseException:
                self.best = before
                raise

    def get_state(self) -> Any:
        return self.best

    def set_state(self, state: Any) -> None:
        if type(state) not in (int, float):
            raise ValueError(f"SaveBestState: its state is the lowest cost so far; got {describe(state)}")
        self.best = float(state)


class HistoryFile(Callback):
    """Writes the history to an HDF5 file after each epoch. ImportError without h5py."""

    turn = KEEPS

    def __init__(self, path: Any) -> None:
        super().__init__()
        self.path = writable("output_file", path)
        hdf5()

    def on_epoch_end(self, epoch: int) -> None:
        self.callbacks.history.write(self.path)


class EarlyStop(Callback):
    """Ends the training when ``stop_func(state, cost)``, which returns (state, whether to stop), says so.

    ``cost`` is that of the validation set; it is asked in the epochs that have one. The first state is None, others are
    data that files can keep: numbers, strings, lists (tuples become lists) and dicts. A training that was ended stays
    so, also when it is taken up from a file: leave EarlyStop out to go on.
    """

    turn = ENDS

    def __init__(self, stop_func: Callable[[Any, float], tuple[Any, bool]]) -> None:
        super().__init__()
        if not callable(stop_func):
            raise TypeError(f"EarlyStop: stop_func(state, cost) is a function; got {describe(stop_func)}")
        self.stop_func = stop_func
        self.state: Any = None
        self.ended = False

    def on_train_begin(self, epochs: int) -> None:
        self.callbacks.needs_validation(self)
        self.model.finished = self.model.finished or self.ended

    def on_epoch_end(self, epoch: int) -> None:
        cost = self.callbacks.validation_cost(epoch)
        if cost is None:
            return
        found = self.stop_func(self.state, cost)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise TypeError(f"EarlyStop: stop_func returns (state, whether to stop); got {describe(found)}")
        self.state = described(found[0], "EarlyStop: the state that stop_func returned")
        self.ended = bool(found[1])
        self.model.finished = self.model.finished or self.ended

    def get_state(self) -> Any:
        return {"state": self.state, "ended": self.ended}

    def set_state(self, state: Any) -> None:
        if not isinstance(state, dict) or type(state.get("ended")) is not bool or "state" not in state:
            raise ValueError(f"EarlyStop: its state is a dict of state and ended; got {describe(state)}")
        self.state, self.ended = state["state"], state["ended"]
