"""Callback base classes: the events of training, and the order in which callbacks run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from neonlite.backend import NervanaObject
from neonlite.backend.validation import check_keys, expected_argument, integer, with_attributes
from neonlite.callbacks.history import History
from neonlite.name_hints import CALLBACK, look_up
from neonlite.typing import Model

if TYPE_CHECKING:
    from neonlite.data import NervanaDataIterator

DataSet = TypeVar("DataSet", bound="NervanaDataIterator")
Frequency = int | list[int]  # every n epochs or minibatches, or those of these indices

# The order of the callbacks of one event: lower priorities run first.
PRIORITY_UPDATE, PRIORITY_RECORD, PRIORITY_STOP, PRIORITY_DISPLAY, PRIORITY_SAVE, PRIORITY_CHECKPOINT = range(6)


class CallbackBase:
    """The events of ``Model.fit``, each a method that does nothing; subclasses override those that they need."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def on_train_begin(self, epochs: int) -> None:
        """Run when training starts or is resumed.

        Parameters
        ----------
        epochs : int
            The total number of epochs after which training ends.
        """

    def on_train_end(self) -> None:
        """Run when training has ended without an error."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Run when an epoch starts or is resumed.

        Parameters
        ----------
        epoch : int
            The index of the epoch, from 0.
        """

    def on_epoch_end(self, epoch: int) -> None:
        """Run when an epoch is complete.

        Parameters
        ----------
        epoch : int
            The index of the epoch, from 0.
        """

    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        """Run before a training step.

        Parameters
        ----------
        epoch, minibatch : int
            The index of the epoch, and of the minibatch in it, from 0.
        """

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        """Run after a training step; the weights are updated.

        Parameters
        ----------
        epoch, minibatch : int
            The index of the epoch, and of the minibatch in it, from 0.
        """

    def on_interrupt(self) -> None:
        """Run when training ends within an epoch: by a signal, by an error, or because ``finished`` was set.

        The model is in the state after the last complete step.
        """

    def get_state(self) -> object:
        """Return what a checkpoint stores of this callback, and what is reset when another training starts.

        Returns
        -------
        JSON data or None
            The state, which may contain NumPy arrays; None if there is nothing to store.
        """
        return None

    def set_state(self, state: object) -> None:
        """Restore a state, of a checkpoint or an interrupted training, or the first one; before training starts.

        Parameters
        ----------
        state : JSON data
            The return value of ``get_state``, with its NumPy arrays.

        Raises
        ------
        ValueError
            The state is not one of this callback.
        """


class CallbacksBase(CallbackBase):
    """The base class of ``Callbacks``: its attributes, which callbacks use. The others have the type Any."""

    model: Model
    train_set: NervanaDataIterator | None
    history: History
    callbacks: list[Callback]
    eval_seconds: dict[str, float]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Callback(NervanaObject, CallbackBase):
    """Base class of callbacks; a subclass overrides the events that it needs.

    Parameters
    ----------
    epoch_freq : int or list of int
        Run every ``epoch_freq`` epochs, or in the epochs of these indices; 0 for never. Default: 1.
    minibatch_freq : int or list of int
        The same for the minibatches of an epoch. Default: 1.
    name : str, optional
        The name of the callback.

    Attributes
    ----------
    callbacks : Callbacks
        The ``Callbacks`` that this was added to, with the model and the history.
    priority : int
        Callbacks with a lower priority run earlier, whatever the order in which they were added.
    output_path : str or None
        The file that the callback writes. Two callbacks with the same path are an error.
    rank_0_only : bool
        Whether, in a ``fit`` in several processes, only rank 0 runs the callback, as those that display or write.
    """

    callbacks: CallbacksBase
    initial_state: object = None  # the result of ``get_state`` before the first training
    output_path: str | None = None
    priority = PRIORITY_RECORD
    rank_0_only = False

    def __init__(
        self, epoch_freq: int | list[int] = 1, minibatch_freq: int | list[int] = 1, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.epoch_freq = check_frequency(f"{self.classnm}: epoch_freq", epoch_freq)
        self.minibatch_freq = check_frequency(f"{self.classnm}: minibatch_freq", minibatch_freq)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if (event := look_up(CALLBACK, name)) is not None:
                raise TypeError(
                    f"{cls.__name__}: expected methods of Callback, got {name}, which is never called. Define {event}."
                )

    @property
    def model(self) -> Model:
        """The model that is trained."""
        return self.callbacks.model

    @property
    def record_names(self) -> Sequence[str]:
        """The names of the values that only this callback records, perhaps not in the first epoch."""
        return ()

    @property
    def _state_fields(self) -> Mapping[str, Callable[[str, Any], Any]]:
        """The attributes that are the state, each with the function that checks a value: ``check(label, value)``.

        They are replaced, not changed in place, so that a state is a copy.
        """
        return {}

    def get_state(self) -> object:
        return {name: getattr(self, name) for name in self._state_fields} or None

    def set_state(self, state: object) -> None:
        values = check_keys(f"{self.classnm}: the state", state, self._state_fields)
        vars(self).update(
            {name: check(f"{self.classnm}: {name}", values[name]) for name, check in self._state_fields.items()}
        )

    def should_fire(self, index: int, freq: Frequency) -> bool:
        """Return whether the callback runs in an epoch or minibatch.

        Parameters
        ----------
        index : int
            The index of the epoch or minibatch, from 0.
        freq : int or list of int
            ``epoch_freq`` or ``minibatch_freq``.
        """
        return index in freq if isinstance(freq, list) else bool(freq) and (index + 1) % freq == 0


# --- arguments -------------------------------------------------------------------------------------------------------


def check_frequency(label: str, freq: int | Sequence[int], minimum: int = 0) -> Frequency:
    """Return a frequency, an integer or a list of integers; raise TypeError or ValueError for anything else."""
    if isinstance(freq, list | tuple):
        return [integer(f"{label}, in a list,", n, 0) for n in freq]
    return integer(label, freq, minimum)


def check_floats(label: str, values: Any) -> list[float]:
    """Return a list of floats, which may be NaN or infinite; raise ValueError for anything else."""
    if not isinstance(values, list) or not all(type(x) in (int, float) for x in values):
        raise ValueError(expected_argument(label, "a list of numbers", values))
    return [float(x) for x in values]


def check_dataset(label: str, dataset: DataSet, way_out: str = "") -> DataSet:
    """Return a data set; raise TypeError for anything else."""
    return with_attributes(label, dataset, "ndata __iter__", "a data set, such as ArrayIterator(X, y),", way_out)
