"""Training callbacks: recording, progress display, evaluation, checkpoints, early stopping, logs, and their list."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

# fmt: off
# ruff: isort: off
from neonlite.backend import NervanaObject
from neonlite.backend.objects import constructor_arguments, find_class
from neonlite.backend.validation import instance, integer, with_attributes
from neonlite.callbacks.callback import Callback, CallbackBase, CallbacksBase, check_dataset, check_frequency
from neonlite.callbacks.history import History
from neonlite.callbacks.loggers import (
    CSVLogger, LiveCurves, ProgressBarCallback, TensorBoardLogger, TrainLoggerCallback,
)
from neonlite.callbacks.monitoring import (
    EarlyStop, EarlyStopCallback, HistoryFileCallback, MonitorCallback, ReduceOnPlateau, SaveBestStateCallback,
    SerializeModelCallback, State, TerminateOnNaN,
)
from neonlite.callbacks.recording import (
    BatchNormTuneCallback, EvalCallback, GANCostCallback, GANPlotCallback, HistCallback, LossCallback, MetricCallback,
    MultiLabelStatsCallback, RunTimerCallback, TrainCostCallback, TrainMulticostCallback,
)
from neonlite.files import same_file
from neonlite.messages import describe, format_object
from neonlite.name_hints import module_getattr
from neonlite.typing import Model

if TYPE_CHECKING:
    from neonlite.data import NervanaDataIterator
    from neonlite.transforms import Cost, Metric

__all__ = [
    "BatchNormTuneCallback", "CSVLogger", "Callback", "CallbackBase", "Callbacks", "EarlyStop", "EarlyStopCallback",
    "EvalCallback", "GANCostCallback", "GANPlotCallback", "HistCallback", "History", "HistoryFileCallback",
    "LiveCurves", "LossCallback", "MetricCallback", "MonitorCallback", "MultiLabelStatsCallback", "ProgressBarCallback",
    "ReduceOnPlateau", "RunTimerCallback", "SaveBestStateCallback", "SerializeModelCallback", "TensorBoardLogger",
    "TerminateOnNaN", "TrainCostCallback", "TrainLoggerCallback", "TrainMulticostCallback",
]
# fmt: on

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)

UNSERIALIZED_ARGUMENTS = ("eval_set", "tune_set", "file")  # constructor arguments of callbacks that are not JSON data


class Callbacks(NervanaObject, CallbacksBase):
    """The callbacks of a training run, and its history.

    Parameters
    ----------
    model : Model
        The model to train.
    train_set : iterator, optional
        The training set, for callbacks that iterate over it, such as ``BatchNormTuneCallback``.
    output_file : str or Path, optional
        An HDF5 file for the history.
    eval_freq : int or list of int, optional
        Evaluate ``eval_set`` every ``eval_freq`` epochs, or in the epochs of these indices. Default: every epoch.
    progress_bar : bool
        Whether to show a progress bar. Default: True.
    save_path : str or Path, optional
        A file to which the model is saved every ``serialize`` epochs, and when training is interrupted.
    serialize : int
        The number of epochs between saves; 0 is 1 if there is a ``save_path``. Default: 0.
    history : int
        If above 1, also keep the files of the last ``history`` saves, named PATH_EPOCHS.EXT by the number of
        complete epochs. Default: 1.
    model_file : str or Path, optional
        A checkpoint to resume from.
    eval_set : iterator, optional
        The validation set. With a GAN, it has no effect without ``eval_freq`` and ``metric``.
    metric : Metric, Cost or str, optional
        A metric to evaluate on ``eval_set``, besides the cost, such as ``Accuracy()`` or "accuracy".
    log_token : str, optional
        A prefix for the lines of the log.
    multicost : bool
        Whether to record each cost of a ``Multicost``. Default: False.
    minibatch_freq : int or list of int
        Also record the training cost every ``minibatch_freq`` minibatches; 0 for never. Default: 0.

    Attributes
    ----------
    history : History
        The recorded values.
    callbacks : list of Callback
        The callbacks, in the order in which they were added.
    eval_seconds : dict
        The duration of the last evaluation in seconds, by the name of the last value that it recorded.

    Raises
    ------
    TypeError
        ``model`` is not a Model, or ``eval_set`` is not a data set, or a GAN, which has no targets, must be evaluated
        on it.
    ValueError
        An option for evaluation without ``eval_set``, or ``serialize`` without ``save_path``.
    """

    if TYPE_CHECKING:
        __getattr__: Callable[[Never], Never]  # type: ignore[assignment, misc]  # other attributes are errors

    def __init__(
        self,
        model: Model,
        train_set: NervanaDataIterator | None = None,
        output_file: str | Path | None = None,
        eval_freq: int | list[int] | None = None,
        progress_bar: bool = True,
        save_path: str | Path | None = None,
        serialize: int = 0,
        history: int = 1,
        model_file: str | Path | None = None,
        eval_set: NervanaDataIterator | None = None,
        metric: Metric | Cost | str | None = None,
        log_token: str | None = None,
        multicost: bool = False,
        minibatch_freq: int | list[int] = 0,
    ) -> None:
        super().__init__()
        self.model = with_attributes("Callbacks: model", model, "fit", "a Model")
        self.train_set = None if train_set is None else check_dataset("Callbacks: train_set", train_set)
        self.history = History()
        self.eval_seconds: dict[str, float] = {}
        self.callbacks: list[Callback] = []
        if not (getattr(model, "has_targets", True) or eval_freq is not None or metric):
            eval_set = None
        if eval_set is not None:
            model.check_can_evaluate()
        if eval_freq is not None and eval_set is None:
            raise ValueError(f"Callbacks: expected eval_set together with eval_freq={eval_freq}, got None")
        if metric is not None and eval_set is None:
            raise ValueError(f"Callbacks: expected eval_set together with metric={describe(metric)}, got None")
        freq = 1 if eval_freq is None else check_frequency("Callbacks: eval_freq", eval_freq, 1)
        integer("Callbacks: history", history, 1)
        if integer("Callbacks: serialize", serialize, 0) and save_path is None:
            raise ValueError(f"Callbacks: expected save_path together with serialize={serialize}, got None")
        self.add_callback((TrainMulticostCallback if multicost else TrainCostCallback)(minibatch_freq=minibatch_freq))
        if eval_set is not None:
            self.add_callback(LossCallback(eval_set, freq))
            if metric is not None:
                self.add_callback(MetricCallback(eval_set, metric, freq))
        if progress_bar:
            self.add_callback(ProgressBarCallback())
        if output_file is not None:
            self.add_callback(HistoryFileCallback(output_file))
        if save_path is not None:
            self.add_callback(SerializeModelCallback(save_path, serialize or 1, history))
        self.add_callback(TrainLoggerCallback(log_token))
        self.add_callback(RunTimerCallback())
        if model_file is not None:
            model.load_params(model_file)

    def __repr__(self) -> str:
        return f"Callbacks({self.model.name!r}, {self.callbacks})"

    def _repr_html_(self) -> str:
        settings = {"history": self.history, "callbacks": list(self.callbacks)}
        return str(format_object(self.classnm, [repr(self.model.name)], settings))

    # --- adding callbacks ---

    def add_callback(self, callback: Callback, insert_pos: int | None = None) -> None:
        """Add a callback. One that was added to other ``Callbacks`` before starts with the state that it had then.

        Parameters
        ----------
        callback : Callback
            The callback.
        insert_pos : int, optional
            Its index in ``callbacks``; default: at the end. It orders only callbacks of equal ``priority``.

        Raises
        ------
        TypeError
            ``callback`` is not a Callback, or one of its events has other parameters.
        ValueError
            Another callback writes the same file.
        """
        hint = f". Pass an instance: add_callback({callback.__name__}(...))" if isinstance(callback, type) else ""
        instance("add_callback: callback", callback, Callback, "a Callback, such as EarlyStop(),", hint)
        check_events(callback)
        for other in self.callbacks if callback.output_path else []:
            if other.output_path and same_file(callback.output_path, other.output_path):
                both = f"{other.classnm} and {callback.classnm}"
                raise ValueError(f"{both}: expected different files, got {callback.output_path} for both")
        if getattr(callback, "callbacks", None) is None:
            callback.initial_state = deepcopy(callback.get_state())
        elif callback.callbacks is not self and callback.initial_state is not None:  # of another training
            callback.set_state(deepcopy(callback.initial_state))
        callback.callbacks = self
        self.callbacks.insert(len(self.callbacks) if insert_pos is None else insert_pos, callback)

    def add_hist_callback(self, plot_per_mini: bool = False, filter_key: Sequence[str] = ("W",)) -> None:
        """Add a ``HistCallback``, which records histograms of tensors.

        Parameters
        ----------
        plot_per_mini : bool
            Whether to record after each minibatch instead of each epoch. Default: False.
        filter_key : sequence of str
            Attributes of layers, such as "W" and "dW". Default: ("W",).
        """
        self.add_callback(HistCallback(plot_per_mini, filter_key))

    def add_save_best_state_callback(self, path: str | Path) -> None:
        """Add a ``SaveBestStateCallback``, which saves the model with the lowest cost on ``eval_set``.

        Parameters
        ----------
        path : str or Path
            The file to write.
        """
        self.add_callback(SaveBestStateCallback(path))

    def add_early_stop_callback(self, stop_func: Callable[[State | None, float], tuple[State, bool]]) -> None:
        """Add an ``EarlyStopCallback``, which ends training depending on the cost on ``eval_set``.

        Parameters
        ----------
        stop_func : callable
            ``stop_func(state, cost)`` returns the new state and whether to stop.
        """
        self.add_callback(EarlyStopCallback(stop_func))

    def require_eval_set(self, callback: Callback) -> None:
        """Raise ValueError unless a validation set is evaluated.

        Parameters
        ----------
        callback : Callback
            The callback that needs it; the error names its class.
        """
        if not any(isinstance(x, LossCallback) for x in self.callbacks):
            raise ValueError(
                f"{callback.classnm}: expected a validation set, got none. Pass validation_split=0.2 to fit, or "
                "eval_set to Callbacks."
            )

    def epoch_value(self, name: str, epoch: int) -> float | None:
        """Return the value that was recorded at the end of an epoch.

        Parameters
        ----------
        name : str
            The name of the value, such as "loss"; of a metric also the short name, such as "accuracy".
        epoch : int
            The index of the epoch, from 0.

        Returns
        -------
        float or None
            The value; None if none of this name was recorded at the end of this epoch.
        """
        records = self.history.find_records(name)
        return records[-1][1] if records and records[-1][0] == epoch + 1 else None

    def validation_cost(self, epoch: int) -> float | None:
        """Return the cost on the validation set after an epoch.

        Parameters
        ----------
        epoch : int
            The index of the epoch, from 0.

        Returns
        -------
        float or None
            The cost; None if the validation set was not evaluated after this epoch.
        """
        return self.epoch_value("val_loss", epoch)

    # --- serialization ---

    def serialize(self) -> dict[str, Any]:
        """Return the classes and arguments of the callbacks, without data sets.

        Returns
        -------
        dict
            JSON data: {"callbacks": [{"type": ..., "config": ...}, ...]}.

        Raises
        ------
        TypeError
            An argument is not JSON data, such as the function of an ``EarlyStopCallback``.
        """
        return {"callbacks": [callback.get_description(skip=UNSERIALIZED_ARGUMENTS) for callback in self.callbacks]}

    @classmethod
    def load_callbacks(
        cls,
        cdict: dict[str, Any],
        model: Model,
        train_set: NervanaDataIterator | None = None,
        eval_set: NervanaDataIterator | None = None,
    ) -> Callbacks:
        """Create callbacks from a description.

        Parameters
        ----------
        cdict : dict
            The return value of ``serialize``.
        model : Model
            The model to train.
        train_set : iterator, optional
            The training set.
        eval_set : iterator, optional
            The validation set.

        Returns
        -------
        Callbacks

        Raises
        ------
        ValueError
            ``cdict`` is not a return value of ``serialize``.
        """
        if not isinstance(cdict, dict) or not isinstance(cdict.get("callbacks"), list):
            raise ValueError(f"load_callbacks: expected the dict that serialize() returns, got {describe(cdict)}")
        callbacks = cls(model, train_set, progress_bar=False)
        callbacks.callbacks = []
        for entry in cdict["callbacks"]:
            has_eval_set = "eval_set" in constructor_arguments(find_class(entry["type"]))
            config = {**entry["config"], **({"eval_set": eval_set} if has_eval_set else {})}
            callbacks.add_callback(Callback.recursive_gen({"type": entry["type"], "config": config}))
        return callbacks

    def get_state(self) -> dict[str, Any]:
        """Return the history, and the class and state of each callback that has a state."""
        states = [[callback.classnm, callback.get_state()] for callback in self.callbacks]
        return {"history": self.history.get_state(), "callbacks": [pair for pair in states if pair[1] is not None]}

    def set_state(self, state: object) -> None:
        """Restore the history, and the states of the callbacks, matched by class and order.

        States without a callback of their class are ignored.
        """
        pairs = state.get("callbacks") if isinstance(state, dict) else None
        if (
            not isinstance(state, dict)
            or not isinstance(pairs, list)
            or not all(isinstance(x, list) and len(x) == 2 for x in pairs)
        ):
            raise ValueError(f"Callbacks: expected a state with history and callbacks, got {describe(state)}")
        self.history.set_state(state.get("history"))
        unmatched = list(self.callbacks)
        for classnm, saved in pairs:
            callback = next((x for x in unmatched if x.classnm == classnm), None)
            if callback is not None:
                unmatched.remove(callback)
                callback.set_state(saved)

    def continue_from(self, states: object) -> None:
        """Restore the states of callbacks of an interrupted ``fit``, ``get_state()["callbacks"]``.

        Parameters
        ----------
        states : list
            The class and state of each callback.
        """
        self.set_state({"history": self.history.get_state(), "callbacks": states})

    def check_callbacks(self) -> None:
        """Raise ValueError if a callback now belongs to other ``Callbacks``, or two record values of one name."""
        recorded: set[str] = set()
        for callback in self.callbacks:
            names = callback.record_names
            for name in recorded.intersection(names):
                raise ValueError(
                    f"{callback.classnm}: expected one callback that records {name!r}, got two, of which the second "
                    "would replace the values of the first. Rename the values of a metric, such as "
                    'metric.metric_names = ["test_accuracy"].'
                )
            recorded.update(names)
            if callback.callbacks is not self:
                raise ValueError(
                    f"{callback.classnm}: expected a callback of the training of {self.model.name}, got one that was "
                    f"added to that of {callback.model.name} since. Use a callback object for each of two trainings "
                    "that alternate or run at the same time."
                )

    # --- events ---

    def _dispatch(self, event: str, *args: int) -> None:
        for callback in self.in_order():
            getattr(callback, event)(*args)

    def in_order(self) -> list[Callback]:
        """Return the callbacks that this process runs, by priority."""
        parallel = self.model.data_parallel
        is_rank_0 = parallel is None or parallel.communicator.rank == 0
        own = self.callbacks if is_rank_0 else [x for x in self.callbacks if not x.rank_0_only]
        return sorted(own, key=attrgetter("priority"))

    def on_train_begin(self, epochs: int) -> None:
        self.check_callbacks()
        self._dispatch("on_train_begin", epochs)

    def on_train_end(self) -> None:
        self._dispatch("on_train_end")

    def on_epoch_begin(self, epoch: int) -> None:
        self.check_callbacks()
        self._dispatch("on_epoch_begin", epoch)

    def on_epoch_end(self, epoch: int) -> None:
        self._dispatch("on_epoch_end", epoch)

    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        self._dispatch("on_minibatch_begin", epoch, minibatch)

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self._dispatch("on_minibatch_end", epoch, minibatch)

    def on_interrupt(self) -> None:
        """Run this event of all callbacks; then raise the first error, so that an error does not prevent saving."""
        errors = []
        for callback in self.in_order():
            try:
                callback.on_interrupt()
            except BaseException as error:
                errors.append(error)
        if errors:
            raise errors[0]


EVENTS = {name: inspect.signature(event) for name, event in vars(CallbackBase).items() if name.startswith("on_")}


def check_events(callback: Callback) -> None:
    """Raise TypeError unless a callback's events accept the arguments that ``fit`` passes."""
    for name, signature in EVENTS.items():
        expected = [*signature.parameters]
        try:
            inspect.signature(getattr(callback, name)).bind(*expected[1:])
        except TypeError:
            actual = inspect.signature(getattr(type(callback), name))
            raise TypeError(
                f"{callback.classnm}.{name}: expected the parameters ({', '.join(expected)}), got "
                f"({', '.join(actual.parameters)}). neon's model is self.model, and its callback_data is "
                "self.callbacks.history."
            ) from None
