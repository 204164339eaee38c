"""What happens beside the training?  Callbacks hear of its course: they show it, note it, judge it, keep it, end it."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neonlite.backend import NervanaObject
from neonlite.optree import describe


class Listener:
    """What ``fit`` tells of its course, step by step; one of your own overrides what it wants to hear."""

    def on_train_begin(self, epochs: int) -> None:
        """Hear that training begins, or goes on, until so many epochs are done."""

    def on_train_end(self) -> None:
        """Hear that training is done."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Hear that an epoch begins, or goes on."""

    def on_epoch_end(self, epoch: int) -> None:
        """Hear that an epoch is done."""

    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        """Hear that a step begins."""

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        """Hear that a step is done: weights are whole."""

    def on_interrupt(self) -> None:
        """Hear that training ends before its time, behind a whole step or with one left out."""


class Callback(NervanaObject, Listener):
    """Hears of the course of a training; one of your own overrides what it wants to hear.

    ``epoch_freq`` and ``minibatch_freq``: in every how many of them it acts, or a list of those in which it does.
    ``callbacks`` has the model and the history, from when it was added.
    """

    callbacks: Any = None

    def __init__(self, epoch_freq: Any = 1, minibatch_freq: Any = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.epoch_freq, self.minibatch_freq = epoch_freq, minibatch_freq

    @property
    def model(self) -> Any:
        """The model that is trained."""
        return self.callbacks.model

    def should_fire(self, number: int, freq: Any) -> bool:
        """Tell whether it acts in an epoch, or minibatch, of a number from 0."""
        return number in freq if isinstance(freq, list | tuple) else bool(freq) and (number + 1) % freq == 0


class History:
    """What was noted of a training: for each name a list of (epochs done, value)."""

    def __init__(self) -> None:
        self.notes: dict[str, list[tuple[float, float]]] = {}

    def note(self, name: str, epochs: float, value: float) -> None:
        """Note a value; one that is there for the same moment is replaced, as after a training that was taken up."""
        notes = self.notes.setdefault(name, [])
        while notes and notes[-1][0] >= epochs:
            notes.pop()
        notes.append((float(epochs), float(value)))

    def __getitem__(self, name: str) -> list[tuple[float, float]]:
        if name not in self.notes:
            raise KeyError(f"nothing of the name {name!r} was noted; there are {', '.join(self.notes) or 'none'}")
        return self.notes[name]

    def last(self, name: str) -> float:
        """Return the value that was noted last; NaN when there is none."""
        notes = self.notes.get(name)
        return notes[-1][1] if notes else math.nan

    def write(self, path: Any) -> None:
        """Write it to an HDF5 file, whole or not at all: "cost, train" is the data set cost/train, a row a note."""
        try:
            import h5py
        except ImportError:
            raise ImportError('HDF5 files are written by h5py: pip install "neonlite[hdf5]"') from None
        whole = Path(path)
        part = whole.with_name(whole.name + ".part")
        with h5py.File(part, "w") as file:
            for name, notes in self.notes.items():
                file.create_dataset(name.replace(", ", "/"), data=notes)
        os.replace(part, whole)

    def plot(self, path: Any = None) -> Any:
        """Draw all curves, costs above and metrics below, with matplotlib; write them to a file if there is a path."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise ImportError('curves are drawn by matplotlib: pip install "neonlite[viz]"') from None
        groups = [{k: v for k, v in self.notes.items() if k.startswith("cost") == first} for first in (True, False)]
        groups = [group for group in groups if group]
        figure = Figure(figsize=(7, 3 * max(len(groups), 1)), layout="constrained")
        for i, group in enumerate(groups):
            axes = figure.add_subplot(len(groups), 1, i + 1)
            for name, notes in group.items():
                axes.plot(*zip(*notes, strict=True), label=name, marker="o" if len(notes) < 40 else "")
            axes.set_xlabel("epochs")
            axes.legend()
            axes.grid(alpha=0.3)
        if path is not None:
            figure.savefig(path)
        return figure


# --- what is noted ---------------------------------------------------------------------------------------------------


class TrainCost(Callback):
    """Notes the mean cost of the minibatches of each epoch, as "cost, train"."""

    def on_epoch_end(self, epoch: int) -> None:
        self.callbacks.history.note("cost, train", epoch + 1, self.model.total_cost)


class Loss(Callback):
    """Notes the mean cost of a validation set, as "cost, validation"."""

    def __init__(self, eval_set: Any, epoch_freq: Any = 1) -> None:
        super().__init__(epoch_freq)
        self.eval_set = eval_set

    def on_epoch_end(self, epoch: int) -> None:
        if self.should_fire(epoch, self.epoch_freq):
            self.callbacks.history.note("cost, validation", epoch + 1, self.model.eval_cost(self.eval_set))


class Metric(Callback):
    """Notes a metric of a validation set, under its names."""

    def __init__(self, eval_set: Any, metric: Any, epoch_freq: Any = 1) -> None:
        super().__init__(epoch_freq)
        if isinstance(metric, type):
            raise ValueError(f"a metric is an object, {metric.__name__}(); got the class")
        self.eval_set, self.metric = eval_set, metric

    def on_epoch_end(self, epoch: int) -> None:
        if self.should_fire(epoch, self.epoch_freq):
            values = self.model.eval(self.eval_set, self.metric)
            for name, value in zip(self.metric.metric_names, values, strict=True):
                self.callbacks.history.note(name, epoch + 1, value)


class RunTimer(Callback):
    """Counts the seconds of the epochs that were done, in ``seconds``."""

    def __init__(self) -> None:
        super().__init__()
        self.began = self.seconds = 0.0

    def on_epoch_begin(self, epoch: int) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int) -> None:
        self.seconds += time.perf_counter() - self.began


# --- what is shown ---------------------------------------------------------------------------------------------------


class ProgressBar(Callback):
    """Shows an epoch as one line, which grows on a terminal, and is printed once where there is none.

    ``Epoch 0   [Train |████| 390/390 batches, 0.12 cost, 1.23 s] [cost, validation 0.11]``
    """

    def __init__(self, file: Any = None) -> None:
        super().__init__()
        self.file = file
        self.bar: Any = None

    def on_epoch_begin(self, epoch: int) -> None:
        from tqdm.std import tqdm

        file = self.file or sys.stderr
        live = bool(getattr(file, "isatty", lambda: False)()) or "ipykernel" in sys.modules
        self.bar = tqdm(
            total=self.model.nbatches,
            initial=self.model.minibatch_index,
            file=file,
            ncols=100 if live else 200,
            bar_format=f"Epoch {epoch:<3} [Train |{{bar:20}}| {{n_fmt}}/{{total_fmt}} batches{{postfix}}",
            mininterval=0.1 if live else 1e9,
            delay=0 if live else 1e9,
        )

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(self.words(), refresh=False)
            self.bar.update(1)

    def on_epoch_end(self, epoch: int) -> None:
        if self.bar is not None:
            notes = {k: v[-1][1] for k, v in self.callbacks.history.notes.items() if v[-1][0] == epoch + 1}
            after = " ".join(f"[{name} {value:.4g}]" for name, value in notes.items() if name != "cost, train")
            self.bar.set_postfix_str(f"{self.words()} {after}".rstrip(), refresh=False)
            self.bar.delay = 0
            self.bar.close()
            self.bar = None

    def on_interrupt(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def words(self) -> str:
        """Return the cost and the seconds so far."""
        return f"{self.model.total_cost:.4g} cost, {self.bar.format_dict['elapsed']:.2f} s]"


# --- what is kept, and what ends -------------------------------------------------------------------------------------


class SerializeModelCallback(Callback):
    """Writes the model to a file, every so many epochs; with ``history`` > 1 that many files, path_EPOCH.ext."""

    def __init__(self, save_path: Any, epoch_freq: Any = 1, history: int = 1) -> None:
        super().__init__(epoch_freq)
        self.save_path, self.history = Path(save_path), history
        self.files: list[Path] = []

    def on_epoch_end(self, epoch: int) -> None:
        if self.should_fire(epoch, self.epoch_freq):
            self.model.save_params(self.save_path)
            if self.history > 1:
                path = self.save_path.with_name(f"{self.save_path.stem}_{epoch}{self.save_path.suffix}")
                self.model.save_params(path)
                self.files = [*self.files, path]
                while len(self.files) > self.history:
                    self.files.pop(0).unlink(missing_ok=True)

    def on_interrupt(self) -> None:
        self.model.save_params(self.save_path)


class SaveBestState(Callback):
    """Writes the model to a file whenever the cost of the validation set is the lowest so far."""

    def __init__(self, path: Any) -> None:
        super().__init__()
        self.path = Path(path)
        self.best = math.inf

    def on_epoch_end(self, epoch: int) -> None:
        cost = self.callbacks.validation_cost(epoch, self)
        if cost < self.best:
            self.best = cost
            self.model.save_params(self.path)


class EarlyStop(Callback):
    """Ends the training when ``stop_func(state, cost)``, which returns (state, whether to stop), says so.

    ``cost`` is that of the validation set, and the first state is None.
    """

    def __init__(self, stop_func: Callable[[Any, float], tuple[Any, bool]]) -> None:
        super().__init__()
        self.stop_func = stop_func
        self.state: Any = None

    def on_epoch_end(self, epoch: int) -> None:
        self.state, self.model.finished = self.stop_func(self.state, self.callbacks.validation_cost(epoch, self))


# --- all of them -----------------------------------------------------------------------------------------------------


class Callbacks(NervanaObject, Listener):
    """The callbacks of a training, and its history.

    ``eval_set`` is judged every ``eval_freq`` epochs, by the cost and by a ``metric``. ``save_path``: the file that the
    model is written to every ``serialize`` epochs, and at Ctrl-C; ``history``: how many of them are kept.
    ``model_file``: one that training goes on from. ``output_file``: an HDF5 file for the history. ``train_set``,
    ``log_token`` and ``multicost`` are neon's, and have no effect.
    """

    def __init__(
        self,
        model: Any,
        train_set: Any = None,
        output_file: Any = None,
        eval_freq: int | None = None,
        progress_bar: bool = True,
        save_path: Any = None,
        serialize: int = 0,
        history: int = 1,
        model_file: Any = None,
        eval_set: Any = None,
        metric: Any = None,
        log_token: Any = None,
        multicost: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.output_file = model, output_file
        self.history = History()
        self.callbacks: list[Callback] = []
        if eval_freq is not None and eval_set is None:
            raise ValueError(f"eval_freq={eval_freq} says how often eval_set is judged; there is no eval_set")
        if metric is not None and eval_set is None:
            raise ValueError(f"{describe(metric)} judges eval_set; there is none")
        if model_file is not None:
            model.load_params(model_file)
        self.add_callback(TrainCost())
        if eval_set is not None:
            self.add_callback(Loss(eval_set, eval_freq or 1))
            if metric is not None:
                self.add_callback(Metric(eval_set, metric, eval_freq or 1))
        if progress_bar:
            self.add_callback(ProgressBar())
        if save_path is not None:
            self.add_callback(SerializeModelCallback(save_path, serialize or 1, history))
        self.add_callback(RunTimer())

    def add_callback(self, callback: Callback, insert_pos: int | None = None) -> None:
        """Add a callback, behind the others or at a place."""
        callback.callbacks = self
        self.callbacks.insert(len(self.callbacks) if insert_pos is None else insert_pos, callback)

    def add_save_best_state_callback(self, path: Any) -> None:
        """Keep the best state in a file, by the cost of eval_set."""
        self.add_callback(SaveBestState(path))

    def add_early_stop_callback(self, stop_func: Callable[[Any, float], tuple[Any, bool]]) -> None:
        """End the training when a function of the costs of eval_set says so."""
        self.add_callback(EarlyStop(stop_func))

    def validation_cost(self, epoch: int, asked_by: Callback) -> float:
        """Return the cost of the validation set in an epoch. ValueError when there is none."""
        if not any(isinstance(callback, Loss) for callback in self.callbacks):
            raise ValueError(f"{asked_by.classnm} goes by the cost of a validation set: Callbacks(model, eval_set=...)")
        return self.history.last("cost, validation")

    def _tell(self, event: str, *args: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*args)

    def on_train_begin(self, epochs: int) -> None:
        """Tell all that training begins, or goes on, until so many epochs are done."""
        self._tell("on_train_begin", epochs)

    def on_train_end(self) -> None:
        """Tell all that training is done."""
        self._tell("on_train_end")

    def on_epoch_begin(self, epoch: int) -> None:
        """Tell all that an epoch begins, or goes on."""
        self._tell("on_epoch_begin", epoch)

    def on_epoch_end(self, epoch: int) -> None:
        """Tell all that an epoch is done."""
        self._tell("on_epoch_end", epoch)
        if self.output_file is not None:
            self.history.write(self.output_file)

    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        """Tell all that a step begins."""
        self._tell("on_minibatch_begin", epoch, minibatch)

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        """Tell all that a step is done."""
        self._tell("on_minibatch_end", epoch, minibatch)

    def on_interrupt(self) -> None:
        """Tell all that training ends before its time."""
        self._tell("on_interrupt")
