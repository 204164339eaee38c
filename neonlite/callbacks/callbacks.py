"""What happens beside the training?  Callbacks hear of its course: they show it, note it, judge it, keep it, end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neonlite.backend import NervanaObject
from neonlite.backend.description import arguments, known
from neonlite.callbacks.callback import Callback, Listener, data_set, frequency, whole
from neonlite.callbacks.history import History
from neonlite.callbacks.keep import EarlyStop, HistoryFile, SaveBestState, SerializeModelCallback
from neonlite.callbacks.note import Hist, Loss, Metric, RunTimer, TrainCost, TrainMulticost
from neonlite.callbacks.show import ProgressBar, TrainLogger
from neonlite.optree import describe

NOT_TOLD = ("eval_set", "tune_set", "file")  # arguments of callbacks that are no data


class Callbacks(NervanaObject, Listener):
    """The callbacks of a training, and its history.

    ``eval_set`` is judged every ``eval_freq`` epochs, by the cost and by a ``metric``. ``save_path``: the file that the
    model is written to every ``serialize`` epochs, and at Ctrl-C; ``history``: how many of them are kept.
    ``model_file``: one that training goes on from. ``output_file``: an HDF5 file for the history. ``multicost``: note
    each of several costs. ``minibatch_freq``: note the cost in every so many minibatches, too. ``log_token``: what the
    lines of the log begin with. ``train_set``: the data that is learned from, for callbacks that want to go through it.
    """

    def __init__(
        self,
        model: Any,
        train_set: Any = None,
        output_file: Any = None,
        eval_freq: Any = None,
        progress_bar: bool = True,
        save_path: Any = None,
        serialize: int = 0,
        history: int = 1,
        model_file: Any = None,
        eval_set: Any = None,
        metric: Any = None,
        log_token: Any = None,
        multicost: bool = False,
        minibatch_freq: Any = 0,
    ) -> None:
        super().__init__()
        if not hasattr(model, "fit"):
            raise TypeError(f"Callbacks(model): a Model; got {describe(model)}")
        self.model, self.train_set = model, None if train_set is None else data_set("train_set", train_set)
        self.history = History()
        self.seconds: dict[str, float] = {}  # how long it took to find out what is noted
        self.callbacks: list[Callback] = []
        if eval_set is not None:
            model.check_judged()
        if eval_freq is not None and eval_set is None:
            raise ValueError(f"eval_freq={eval_freq} says how often eval_set is judged; there is no eval_set")
        if metric is not None and eval_set is None:
            raise ValueError(f"{describe(metric)} judges eval_set; there is none")
        freq = 1 if eval_freq is None else frequency("eval_freq", eval_freq, 1)
        whole("history, the number of files that are kept,", history, 1)
        if whole("serialize", serialize, 0) and save_path is None:
            raise ValueError(f"serialize={serialize} says how often the model is written: save_path=... says where")
        self.add_callback((TrainMulticost if multicost else TrainCost)(minibatch_freq=minibatch_freq))
        if eval_set is not None:
            self.add_callback(Loss(eval_set, freq))
            if metric is not None:
                self.add_callback(Metric(eval_set, metric, freq))
        if progress_bar:
            self.add_callback(ProgressBar())
        if output_file is not None:
            self.add_callback(HistoryFile(output_file))
        if save_path is not None:
            self.add_callback(SerializeModelCallback(save_path, serialize or 1, history))
        self.add_callback(TrainLogger(log_token))
        self.add_callback(RunTimer())
        if model_file is not None:
            model.load_params(model_file)

    # --- more of them ---

    def add_callback(self, callback: Callback, insert_pos: int | None = None) -> None:
        """Add a callback, behind the others or at a place; those of a later turn are told later all the same."""
        if not isinstance(callback, Callback):
            hint = f": add_callback({callback.__name__}(...))" if isinstance(callback, type) else ""
            raise TypeError(f"add_callback takes an object of Callback; got {describe(callback)}{hint}")
        callback.callbacks = self
        self.callbacks.insert(len(self.callbacks) if insert_pos is None else insert_pos, callback)

    def add_hist_callback(self, plot_per_mini: bool = False, filter_key: Sequence[str] = ("W",)) -> None:
        """Note histograms of the weights, or of other tensors that layers have, each epoch or each minibatch."""
        self.add_callback(Hist(plot_per_mini, filter_key))

    def add_save_best_state_callback(self, path: Any) -> None:
        """Keep the best state in a file, by the cost of eval_set."""
        self.add_callback(SaveBestState(path))

    def add_early_stop_callback(self, stop_func: Callable[[Any, float], tuple[Any, bool]]) -> None:
        """End the training when a function of the costs of eval_set says so."""
        self.add_callback(EarlyStop(stop_func))

    def needs_validation(self, callback: Callback) -> None:
        """Raise ValueError, for a callback, unless a validation set is judged."""
        if not any(isinstance(x, Loss) for x in self.callbacks):
            raise ValueError(f"{callback.classnm} goes by the cost of a validation set: Callbacks(model, eval_set=...)")

    def validation_cost(self, epoch: int) -> float | None:
        """Return the cost of the validation set in an epoch; None when it was not judged then."""
        notes = self.history.notes.get("cost, validation")
        return notes[-1][1] if notes and notes[-1][0] == epoch + 1 else None

    # --- as data ---

    def serialize(self) -> dict[str, Any]:
        """Return the callbacks as data for JSON, by their classes and arguments; data sets are left out.

        TypeError for an EarlyStop, whose function is no data.
        """
        return {"callbacks": [callback.get_description(skip=NOT_TOLD) for callback in self.callbacks]}

    @classmethod
    def load_callbacks(cls, cdict: Any, model: Any, train_set: Any = None, eval_set: Any = None) -> Callbacks:
        """Return the callbacks that ``serialize`` told of, for a model and data sets."""
        if not isinstance(cdict, dict) or not isinstance(cdict.get("callbacks"), list):
            raise ValueError(f"callbacks are told by the dict that serialize() returns; got {describe(cdict)}")
        made = cls(model, train_set, progress_bar=False)
        made.callbacks = []
        for entry in cdict["callbacks"]:
            judging = "eval_set" in arguments(known(entry["type"]))
            config = {**entry["config"], **({"eval_set": eval_set} if judging else {})}
            made.add_callback(Callback.recursive_gen({"type": entry["type"], "config": config}))
        return made

    def get_state(self) -> dict[str, Any]:
        """Return the history, and the states of the callbacks that have one, each with its class."""
        states = [[callback.classnm, callback.get_state()] for callback in self.callbacks]
        return {"history": self.history.get_state(), "callbacks": [pair for pair in states if pair[1] is not None]}

    def set_state(self, state: Any) -> None:
        """Take the history, and the states of callbacks that are here too, by class and order; others are left out.

        ValueError when it is no state.
        """
        pairs = state.get("callbacks") if isinstance(state, dict) else None
        if not isinstance(pairs, list) or not all(isinstance(x, list) and len(x) == 2 for x in pairs):
            raise ValueError(f"the state of Callbacks is a dict with history and callbacks; got {describe(state)}")
        self.history.set_state(state.get("history"))
        left = list(self.callbacks)
        for classnm, saved in pairs:
            callback = next((x for x in left if x.classnm == classnm), None)
            if callback is not None:
                left.remove(callback)
                callback.set_state(saved)

    # --- telling them ---

    def _tell(self, event: str, *args: Any) -> None:
        for callback in sorted(self.callbacks, key=lambda x: x.turn):
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
        """Tell all that an epoch is done: in turns, so that all of it is noted before it is shown, and then kept."""
        self._tell("on_epoch_end", epoch)

    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        """Tell all that a step begins."""
        self._tell("on_minibatch_begin", epoch, minibatch)

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        """Tell all that a step is done."""
        self._tell("on_minibatch_end", epoch, minibatch)

    def on_interrupt(self) -> None:
        """Tell all that training ends before its time: an error of one, as of a closed pipe, keeps none from saving."""
        errors = []
        for callback in sorted(self.callbacks, key=lambda x: x.turn):
            try:
                callback.on_interrupt()
            except BaseException as error:
                errors.append(error)
        if errors:
            raise errors[0]
