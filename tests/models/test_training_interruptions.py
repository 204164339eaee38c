"""A call that Ctrl-C, a signal or an error ends leaves the model as it was, and the same call then works."""

from __future__ import annotations

import importlib
import os
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite.callbacks import Callback, CallbackBase, Callbacks
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import LSTM, Affine, BatchNorm, RecurrentLast, Sequential
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.programs import Program

ROWS, BATCH, EPOCHS = 22, 8, 3  # the last minibatch has 6 rows
rng = np.random.default_rng(0)
X, LABELS = rng.normal(size=(ROWS, 6)).astype(np.float32), rng.integers(0, 3, ROWS)


def data(**options: Any) -> ArrayIterator:
    return ArrayIterator(X, LABELS, nclass=3, partial_last=True, name="data", **options)


def start(*layers: Any) -> Model:
    nl.gen_backend("cpu", rng_seed=3, batch_size=BATCH)
    return Model([*layers, Affine(3, activation="softmax", name="out")])


def lstm() -> list[Any]:
    return [LSTM(4, name="lstm"), RecurrentLast()]


def fit(model: Model, train: Any, callbacks: Any = None, epochs: int = EPOCHS) -> None:
    model.fit(train, "cross_entropy", model.optimizer or Adam(0.01), epochs, callbacks)


def weights(model: Model) -> dict[str, bytes]:
    return {name: w.tobytes() for name, w in model.get_weights().items()}


class FailOnce:
    """Replace a method by one that raises an error in a call, once."""

    def __init__(self, monkeypatch: Any, owner: Any, name: str, at: int = 0, error: type[BaseException] = MemoryError):
        original, self.calls = getattr(owner, name), 0

        def method(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == at + 1:
                raise error("once")
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, method)


# --- a partial minibatch ---------------------------------------------------------------------------------------------


class Sends(Callback):
    """Sends a signal in the partial minibatch of the first epoch."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        if (epoch, minibatch) == (0, 2):
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_training_that_ends_in_a_partial_minibatch_continues_in_the_process_and_from_the_file(
    tmp_path, number, shuffle
):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        fit(straight := start(), data(shuffle=shuffle))
        model, train, file = start(), data(shuffle=shuffle), tmp_path / "m.neon"
        callbacks = Callbacks(model, progress_bar=False, save_path=file)
        callbacks.add_callback(Sends(number))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            fit(model, train, callbacks)
        assert (model.epoch_index, model.minibatch_index) == (0, 3)
        fit(model, train)
        start()
        fit(loaded := Model(file), data(shuffle=shuffle))
        assert weights(model) == weights(loaded) == weights(straight)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_recurrent_state_of_a_partial_minibatch_is_dropped_also_if_its_end_failed(monkeypatch):
    model, rows = start(*lstm()), []
    train = data(lshape=(3, 2))

    def set_state(layer: Any, arrays: Any) -> None:
        rows.append(layer.be.bsz)
        if rows.count(ROWS % BATCH) == 1 and rows[-1] == ROWS % BATCH:
            raise MemoryError("once")
        original(layer, arrays)

    original = LSTM.set_state
    monkeypatch.setattr(LSTM, "set_state", set_state)
    with pytest.raises(MemoryError, match="once"):
        fit(model, train, epochs=1)
    fit(model, train, epochs=1)  # nothing is left to train but the end of the epoch
    assert model.epoch_index == 1
    assert model.layers.leaves()[0].get_state() == {}


def test_a_position_counts_minibatches_of_the_size_with_which_its_epoch_started():
    be = nl.gen_backend("cpu", batch_size=BATCH)
    train = data()
    for _ in train:
        with be.batch_size(2):
            assert (train.get_state()["minibatch"], train.get_state()["batch_size"]) == (1, BATCH)
        break
    be.bsz = 2
    with pytest.raises(ValueError, match="batch_size = 8, here 2"):
        train.set_state(train.get_state())
    train.reset()
    assert train.get_state()["batch_size"] == 2


def test_a_data_set_is_evaluated_with_another_batch_size_than_that_of_a_loop_left_early():
    model = start()
    model.initialize(train := data())
    expected = model.get_outputs(train)
    next(iter(train))
    model.be.bsz = 4
    np.testing.assert_allclose(model.get_outputs(train), expected, rtol=1e-6)


# --- allocation ------------------------------------------------------------------------------------------------------


class FailingGaussian(Gaussian):
    """Raises an error after it has drawn, once."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(scale=0.3)
        self.error: type[BaseException] | None = error

    def fill(self, param: Any) -> None:
        super().fill(param)
        error, self.error = self.error, None
        if error is not None:
            raise error("once")


@pytest.mark.parametrize("error", [MemoryError, FileNotFoundError, KeyboardInterrupt])
@pytest.mark.parametrize("call", ["fit", "initialize", "predict"])
def test_an_initializer_that_fails_once_leaves_no_weights_and_the_next_call_has_those_of_the_seed(call, error):
    def run(init: Any) -> Model:
        model = start(Affine(5, Gaussian(scale=0.3), name="a"), Affine(4, init, name="b"), BatchNorm(name="norm"))
        train = data()
        calls: dict[str, Callable[[], object]] = {
            "fit": lambda: fit(model, train),
            "initialize": lambda: model.initialize(train),
            "predict": lambda: model.predict(X),
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "model.predict: the weights are random")
            if isinstance(init, FailingGaussian):
                with pytest.raises(error, match="once"):
                    calls[call]()
                assert not any(hasattr(w, "get") for w in model.layers.parameters)
            calls[call]()
        return model

    assert weights(run(FailingGaussian(error))) == weights(run(Gaussian(scale=0.3)))


def test_running_statistics_are_allocated_together(monkeypatch):
    model = start(BatchNorm(name="norm"))
    FailOnce(monkeypatch, model.be, "zeros", at=3)  # the third and later ones of the layer
    with pytest.raises(MemoryError):
        model.initialize(data())
    monkeypatch.undo()
    model.initialize(data())
    layer: Any = model.layers["norm"]
    assert all(x.shape == (6, 1) for x in (layer.gmean, layer.gvar, layer.xmean, layer.xvar))


def test_buffers_of_a_cost_have_one_batch_size_also_after_an_error(monkeypatch):
    model = start()
    fit(model, data())
    expected = model.eval_cost(data())
    for at in range(2):
        for k in range(2):
            FailOnce(monkeypatch, model.cost, "buffer", at=2 * at + k)
            with pytest.raises(MemoryError):
                model.eval_cost(data())
            monkeypatch.undo()
            assert model.eval_cost(data()) == expected


# --- evaluation and prediction ---------------------------------------------------------------------------------------


class StopAfter(CallbackBase):
    """Ends training after some steps."""

    def __init__(self, model: Model, steps: int) -> None:
        self.model, self.steps = model, steps

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self.steps -= 1
        self.model.finished = not self.steps


@pytest.mark.parametrize("at", [0, 1], ids=["before the partial minibatch", "after it"])
@pytest.mark.parametrize("call", ["eval", "eval_cost", "get_outputs"])
def test_an_evaluation_that_runs_out_of_memory_keeps_the_recurrent_state_of_training(monkeypatch, call, at):
    def run(fails: bool) -> dict[str, bytes]:
        model, train = start(*lstm()), data(lshape=(2, 3))
        fit(model, train, StopAfter(model, 4))  # the next minibatch has the same batch size
        state = model.layers["lstm"].get_state()
        calls = {"eval": lambda: model.eval(train, "accuracy"), "eval_cost": lambda: model.eval_cost(train)}
        calls["get_outputs"] = lambda: model.get_outputs(train)
        if fails:
            FailOnce(monkeypatch, Sequential, "allocate", at=at)
            with pytest.raises(MemoryError):
                calls[call]()
            monkeypatch.undo()
            after = model.layers["lstm"].get_state()
            assert {name: x.tobytes() for name, x in after.items()} == {n: x.tobytes() for n, x in state.items()}
        calls[call]()
        fit(model, train)
        return weights(model)

    assert run(True) == run(False)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("call", ["eval", "get_outputs", "predict", "evaluate", "predict_classes"])
def test_ctrl_c_in_a_pass_ends_an_evaluation_without_a_trace(monkeypatch, call, times):
    model, train = start(), data()
    fit(model, train)
    calls: dict[str, Callable[[], Any]] = {
        "eval": lambda: model.eval(train, "mse"),
        "get_outputs": lambda: model.get_outputs(train),
        "predict": lambda: model.predict(X),
        "evaluate": lambda: list(model.evaluate(train, metrics=["mse"]).values()),
        "predict_classes": lambda: model.predict_classes(X),
    }
    expected, state = calls[call](), train.get_state()
    original, sent = Program.__call__, list[bool]()

    def run(self: Any, *args: Any) -> Any:
        if not sent:
            sent.append(True)
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
        return original(self, *args)

    monkeypatch.setattr(Program, "__call__", run)
    with pytest.raises(KeyboardInterrupt):
        calls[call]()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert (model.be.bsz, train.get_state()) == (BATCH, state)
    assert not model.be.lock._lock._is_owned()
    np.testing.assert_array_equal(calls[call](), expected)


# --- loading ---------------------------------------------------------------------------------------------------------


def everything(model: Model) -> tuple[Any, ...]:
    description = model.serialize()
    arrays = {name: x.tobytes() for name, x in description["arrays"].items()}
    description["training"].pop("optimizer")  # its default name has a counter
    return arrays, repr(description["training"]), model.be.rng_get_state()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("at", range(5))
def test_an_error_while_weights_are_loaded_leaves_the_model_unchanged(tmp_path, monkeypatch, at, error):
    model, train = start(*lstm(), BatchNorm(name="norm")), data(lshape=(2, 3))
    fit(model, train)
    model.save_params(tmp_path / "end.neon")
    end = everything(model)
    other, train = start(*lstm(), BatchNorm(name="norm")), data(lshape=(2, 3))
    fit(other, train, StopAfter(other, 4))
    before = everything(other)
    steps = ["neonlite.layers.weights.to_host_array"] * 2 + ["neonlite.models.training_state.set_trainable"]
    steps += ["neonlite.models.training_state.other_batch_size", "neonlite.layers.weights.check_updates"]
    module, _, name = steps[at].rpartition(".")
    if name == "other_batch_size":
        monkeypatch.setattr(type(other.layers["lstm"]), "set_state", failing_once(error))
    else:
        FailOnce(monkeypatch, importlib.import_module(module), name, at=[0, 2, 1, 0, 0][at], error=error)
    with pytest.raises((error, ValueError)):
        other.load_params(tmp_path / "end.neon")
    monkeypatch.undo()
    assert everything(other) == before
    other.load_params(tmp_path / "end.neon")
    assert everything(other) == end


def failing_once(error: type[BaseException]) -> Any:
    calls = []
    original = LSTM.set_state

    def set_state(self: Any, arrays: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise error("once")
        original(self, arrays)

    return set_state


@pytest.mark.parametrize("method", ["set_weights", "load_weights"])
def test_an_error_between_two_weights_restores_the_first(monkeypatch, method):
    model = start(Affine(4, name="a"))
    fit(model, data())
    before = weights(model)
    new = {name: w + 1 for name, w in model.get_weights().items()}
    description = model.layers.serialize()
    for entry in description["config"]["layers"]:
        if "params" in entry:
            entry["params"] = {name: w + 1 for name, w in entry["params"].items()}
    argument = new if method == "set_weights" else description
    last = model.layers["out"].W
    monkeypatch.setattr(type(last), "__setitem__", refuse_once(type(last), last))
    with pytest.raises(MemoryError):
        getattr(model.layers, method)(argument)
    monkeypatch.undo()
    assert weights(model) == before


def refuse_once(cls: Any, tensor: Any) -> Any:
    original, calls = cls.__setitem__, []

    def setitem(self: Any, key: Any, value: Any) -> None:
        if self is tensor and not calls:
            calls.append(1)
            raise MemoryError("once")
        original(self, key, value)

    return setitem


# --- the set-up of fit -----------------------------------------------------------------------------------------------


class FailsToBegin(Callback):
    def on_train_begin(self, epochs: int) -> None:
        raise OSError("disk full")


def test_a_fit_that_fails_before_its_first_step_changes_neither_the_progress_nor_the_states_of_callbacks(tmp_path):
    def resume(fails: bool) -> tuple[Any, ...]:
        model, train, file = start(), data(), tmp_path / "m.neon"
        fit(model, train, Callbacks(model, progress_bar=False, save_path=file), 1)
        nl.gen_backend("cpu", rng_seed=3, batch_size=BATCH)
        model, train = Model(file), data()
        if fails:
            callbacks = Callbacks(model, progress_bar=False)
            callbacks.add_callback(FailsToBegin())
            with pytest.raises(OSError, match="disk full"):
                fit(model, train, callbacks)
        fit(model, train, callbacks := Callbacks(model, progress_bar=False))
        return weights(model), list(callbacks.history["loss"])

    assert resume(True) == resume(False)


def test_a_fit_on_other_data_that_fails_before_its_first_step_keeps_the_position_and_the_encoders():
    model = start()
    model.fit(X, LABELS, epochs=1, batch_size=BATCH, progress_bar=False)
    before, outputs = model.data_state, model.predict(X)
    with pytest.raises(OSError, match="disk full"):
        model.fit(100 * X[:10], LABELS[:10], epochs=1, callbacks=[FailsToBegin()], progress_bar=False)
    assert model.data_state == before
    np.testing.assert_array_equal(model.predict(X), outputs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_process_that_a_callback_has_forked(number):
    class Forks(Callback):
        def on_epoch_end(self, epoch: int) -> None:
            if (child := os.fork()) == 0:
                try:
                    signal.alarm(30)
                    os.kill(os.getpid(), number)
                    time.sleep(60)
                except KeyboardInterrupt:
                    os._exit(128 + signal.SIGINT)
                finally:
                    os._exit(1)
            ends.append(os.waitpid(child, 0)[1])

    ends: list[int] = []
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, default)  # another handler, which a library may have set, is inherited
    try:
        fit(start(), data(), Forks(), 1)
    finally:
        signal.signal(number, before)
    assert ends == [(128 + number) << 8 if number == signal.SIGINT else number]
