"""Who hears of a training's course, and in which order?  First who notes, then who shows, and last who keeps."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neonlite.backend import NervanaObject
from neonlite.optree import describe

CHANGES, NOTES, ENDS, SHOWS, KEEPS, SAVES = range(6)  # the turns in which callbacks hear of one event


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

    def get_state(self) -> Any:
        """Return what a training that is taken up from a file has to know, as data for JSON; None for nothing."""
        return None

    def set_state(self, state: Any) -> None:
        """Take what ``get_state`` returned, before training begins. ValueError when it does not fit."""


class Callback(NervanaObject, Listener):
    """Hears of the course of a training; one of your own overrides what it wants to hear.

    ``epoch_freq`` and ``minibatch_freq``: in every how many of them it acts, or a list of those in which it does.
    ``callbacks`` has the model and the history, from when it was added. ``turn``: the later it is, the later it hears
    of an event, whatever the order in which callbacks were added: who writes files comes last, and finds all notes.
    """

    callbacks: Any = None
    turn = NOTES

    def __init__(self, epoch_freq: Any = 1, minibatch_freq: Any = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.epoch_freq = frequency(f"{self.classnm}: epoch_freq", epoch_freq)
        self.minibatch_freq = frequency(f"{self.classnm}: minibatch_freq", minibatch_freq)

    @property
    def model(self) -> Any:
        """The model that is trained."""
        return self.callbacks.model

    def should_fire(self, number: int, freq: Any) -> bool:
        """Tell whether it acts in an epoch, or minibatch, of a number from 0."""
        return number in freq if isinstance(freq, list | tuple) else bool(freq) and (number + 1) % freq == 0


# --- arguments -------------------------------------------------------------------------------------------------------


def whole(what: str, n: Any, low: int) -> int:
    """Return a whole number; TypeError when it is none, ValueError when it is too low."""
    try:
        found = None if isinstance(n, bool) else operator.index(n)
    except TypeError:
        found = None
    if found is None:
        raise TypeError(f"{what} is a whole number from {low}; got {describe(n)}")
    if found < low:
        raise ValueError(f"{what} is a whole number from {low}; got {n}")
    return found


def frequency(what: str, freq: Any, low: int = 0) -> Any:
    """Return a whole number, or a list of whole numbers; TypeError or ValueError for anything else."""
    if isinstance(freq, list | tuple):
        return [whole(f"{what}, in a list,", n, 0) for n in freq]
    return whole(what, freq, low)


def writable(what: str, path: Any) -> str:
    """Return the path of a file that can be written; FileNotFoundError or IsADirectoryError when it can not be."""
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"{what} is a file to be written; {file} is a folder")
    if not file.parent.is_dir():
        raise FileNotFoundError(f"{what}: {file} can not be written: there is no folder {file.parent}")
    if not os.access(file.parent, os.W_OK):
        raise PermissionError(f"{what}: {file} can not be written: the folder {file.parent} is read-only for you")
    return os.fspath(file)


def data_set(what: str, dataset: Any) -> Any:
    """Return a data set; TypeError when it is none."""
    if not hasattr(dataset, "ndata") or not hasattr(dataset, "__iter__"):
        raise TypeError(f"{what} is a data set, such as ArrayIterator(X, y); got {describe(dataset)}")
    return dataset


@contextmanager
def undisturbed(dataset: Any) -> Iterator[None]:
    """Leave a data set where it was: it may be the one that is trained on."""
    state = dataset.get_state() if hasattr(dataset, "get_state") else None
    try:
        yield
    finally:
        if state is not None:
            dataset.set_state(state)
