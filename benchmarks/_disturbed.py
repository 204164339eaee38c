"""Calls that are disturbed: an error at a random line, or Ctrl-C at a random time; then the same call again.

``disturbed`` fits, evaluates, predicts with, saves and loads seven networks. After a disturbed call the model must be
in its state before the call, or in that of the complete call. The same call must then return the same bits as without
the disturbance, and the lock of the backend must be free.
"""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from _failures import Injector, Row, State, differences

from neonlite import gen_backend
from neonlite.backend import current_backend
from neonlite.callbacks import CallbackBase, Callbacks
from neonlite.data import ArrayIterator
from neonlite.layers import (
    LSTM,
    Affine,
    BatchNorm,
    Conv,
    Dropout,
    MergeBroadcast,
    MultiHeadAttention,
    Pooling,
    RecurrentLast,
)
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import TrainingState
from neonlite.optimizers import Adam

ROWS, BATCH, EPOCHS = 52, 16, 2  # an epoch has three minibatches of 16 rows and one of 4
STEPS_BEFORE = (
    6  # steps of training before an evaluation: one full minibatch of the second epoch is left, and a partial
)
Rows = Any


# --- networks --------------------------------------------------------------------------------------------------------


class Network(Protocol):
    def __call__(self) -> tuple[list[Any], Any]: ...


def output(n: int = 3) -> Any:
    return Affine(n, activation="softmax")


SEQUENCE = (4, 5)  # features and time steps
IMAGE = (2, 6, 6)

NETWORKS: dict[str, tuple[Any, Callable[[], list[Any]]]] = {
    "MLP": (12, lambda: [Affine(10, activation="relu"), output()]),
    "convolution": (IMAGE, lambda: [Conv((3, 3, 4), activation="relu"), Pooling(2), output()]),
    "batch norm, dropout": (12, lambda: [Affine(10, batch_norm=True), BatchNorm(), Dropout(0.5), output()]),
    "LSTM with recurrent state": (
        SEQUENCE,
        lambda: [LSTM(6, activation="tanh", gate_activation="logistic"), RecurrentLast(), output()],
    ),
    "attention": (SEQUENCE, lambda: [MultiHeadAttention(2), RecurrentLast(), output()]),
    "autoencoder": (12, lambda: [Affine(5, activation="tanh"), Affine(12)]),
    "branches": (
        12,
        lambda: [MergeBroadcast([[Affine(4, activation="relu")], [Affine(3, activation="tanh")]], "stack"), output()],
    ),
}


class Case:
    """A model, its data, and the calls that are disturbed."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.be = gen_backend("cpu", rng_seed=7, batch_size=BATCH)
        shape, layers = NETWORKS[name]
        rng = np.random.default_rng(0)
        self.rows = rng.normal(size=(ROWS, int(np.prod(shape)))).astype("f")
        labels = rng.integers(0, 3, ROWS)
        shuffled, self.is_autoencoder = name != "LSTM with recurrent state", name == "autoencoder"

        def iterator(rows: Rows, labels: Any, shuffle: bool) -> ArrayIterator:
            y = (None, None) if self.is_autoencoder else (labels, 3)
            return ArrayIterator(rows, *y, lshape=shape, shuffle=shuffle, partial_last=True, name="data")

        self.train, self.valid = iterator(self.rows, labels, shuffled), iterator(self.rows[:37], labels[:37], False)
        self.model = Model(layers())
        for i, layer in enumerate(self.model.layers.leaves()):
            layer.name = f"layer{i}"
        self.optimizer = Adam(0.01)
        self.callbacks: Any = CallbackBase()

    def fit(self, epochs: int = EPOCHS, callbacks: Any = None) -> None:
        cost = "mse" if self.is_autoencoder else "cross_entropy"
        self.model.fit(self.train, cost, self.optimizer, epochs, callbacks or self.callbacks)

    def fit_until_evaluation(self) -> None:
        """Train for ``STEPS_BEFORE`` steps, so that an LSTM has a state of a full minibatch."""
        model, steps = self.model, 0

        class Stop(CallbackBase):
            def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
                nonlocal steps
                steps += 1
                model.finished = steps == STEPS_BEFORE

        self.fit(callbacks=Stop())

    def state(self) -> State:
        """Return the complete state of the model, its data and the backend."""
        description, arrays = TrainingState.from_model(self.model)
        found = {name: x.tobytes() for name, x in arrays.items() if not name.startswith("callbacks")}
        training = description["training"]
        del training["optimizer"], training["callbacks"]  # a generated name; durations
        found["training"] = repr(training).encode()
        position = self.train.get_state() | {"minibatch": 0}  # that of the iterator; ``fit`` restores that of the model
        is_current = current_backend() is self.be
        found["data"] = repr([position, self.be.bsz, self.be.rng_get_state(), is_current]).encode()
        return found

    def is_lock_free(self) -> bool:
        """Return whether another thread can acquire the lock of the backend."""
        acquired = []

        def acquire() -> None:
            if self.be.lock.acquire(1.0):
                acquired.append(True)
                self.be.lock.release()

        thread = threading.Thread(target=acquire)
        thread.start()
        thread.join()
        return bool(acquired)


# --- calls -----------------------------------------------------------------------------------------------------------


def bits(x: Any) -> bytes:
    return np.asarray(x).tobytes()


def save(case: Case) -> bytes:
    file = case.folder / "saved.neon"
    case.model.save_params(file)
    assert [x.name for x in case.folder.iterdir() if x.name.startswith("saved")] == [file.name]
    return file.read_bytes()


CALLS: dict[str, Callable[[Case], bytes]] = {
    "eval": lambda case: bits(case.model.eval(case.valid, "mse")),
    "eval_cost": lambda case: bits(case.model.eval_cost(case.valid)),
    "eval of the training set": lambda case: bits(case.model.eval(case.train, "mse")),
    "get_outputs": lambda case: bits(case.model.get_outputs(case.valid)),
    "predict": lambda case: bits(case.model.predict(case.rows[:37], batch_size=16)),
    "save": save,
}


# --- disturbances ----------------------------------------------------------------------------------------------------


class Lines:
    """Raise MemoryError at a random line."""

    error: type[BaseException] = MemoryError

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.injector, self.count = rng, Injector(), 0
        self.where = ""

    def measure(self, call: Callable[[], Any]) -> Any:
        """Run a call without a disturbance; return its result."""
        self.injector.start(sys._getframe(), -1)
        try:
            return call()
        finally:
            self.injector.stop()
            self.count = self.injector.lines

    def run(self, call: Callable[[], Any]) -> bool:
        """Run a call with a disturbance; return whether it raised the error of the disturbance."""
        self.injector.start(sys._getframe(), self.rng.randint(1, max(self.count, 1)))
        try:
            call()
        except (MemoryError, CheckpointError):  # which names the field of the file
            self.injector.stop()
            if not self.injector.where:  # not an injected error
                raise
            self.where = self.injector.where
            return True
        finally:
            self.injector.stop()
        return False


class Signals:
    """Send SIGINT at a random time."""

    error: type[BaseException] = KeyboardInterrupt

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.seconds, self.where = rng, 0.0, ""

    def measure(self, call: Callable[[], Any]) -> Any:
        clock = time.perf_counter()
        result = call()
        self.seconds = time.perf_counter() - clock
        return result

    def run(self, call: Callable[[], Any]) -> bool:
        before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        before_int = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored
        self.where = f"after {(after := self.rng.uniform(1e-6, self.seconds)):.6f} s of {self.seconds:.6f} s"
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, after)
                call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            return True
        finally:
            signal.signal(signal.SIGALRM, before)
            signal.signal(signal.SIGINT, before_int)
        return False


class Test:
    """The disturbed calls of one network, and what was wrong after them."""

    def __init__(self, name: str, disturbance: Lines | Signals, folder: Path, times: int) -> None:
        self.name, self.disturbance, self.folder, self.times = name, disturbance, folder, times
        self.counts: dict[str, int] = {}
        self.wrong: list[str] = []

    def note(self, call: str, case: Case, problems: Sequence[str]) -> None:
        """Count a disturbed call, and record its problems."""
        self.counts[call] = self.counts.get(call, 0) + 1
        problems = [*problems, *([] if case.is_lock_free() else ["the lock is held"])]
        if problems:
            self.wrong.append(f"{self.name}, {call}, {self.disturbance.where}: {', '.join(problems)}")

    def repeat(self, call: str, run: Callable[[], bool]) -> None:
        """Run until the call was disturbed often enough; an attempt may come too late."""
        attempts = 0
        while self.counts.get(call, 0) < self.times and attempts < 50 * self.times + 20:
            attempts += 1
            run()

    def fit(self, callbacks: Callable[[Case], Any], call: str, epochs: int = EPOCHS) -> None:
        """Disturb a complete training, from its set-up on."""

        def start() -> Case:
            case = Case(self.name, self.folder)
            case.callbacks = callbacks(case)
            return case

        start().fit(epochs)  # fills the caches of the process
        case = start()
        self.disturbance.measure(lambda: case.fit(epochs))
        expected = case.state()

        def run() -> bool:
            case = start()
            if not self.disturbance.run(lambda: case.fit(epochs)):
                return False
            case.fit(epochs)
            self.note(call, case, differences(case.state(), expected))
            return True

        self.repeat(call, run)

    def call(self, call: str) -> None:
        """Disturb a call that does not change the state; finally complete the training."""
        function, case = CALLS[call], Case(self.name, self.folder)
        case.fit()
        end = case.state()
        case = Case(self.name, self.folder)
        case.fit_until_evaluation()
        before, expected = case.state(), function(case)
        self.disturbance.measure(lambda: function(case))
        if found := differences(case.state(), before):
            self.wrong.append(f"{self.name}, {call}, undisturbed: {', '.join(found)}")

        def run() -> bool:
            if not self.disturbance.run(lambda: function(case)):
                return False
            problems = differences(case.state(), before)
            if function(case) != expected:
                problems.append("another result")
            self.note(call, case, problems)
            return True

        self.repeat(call, run)
        case.fit()
        if found := differences(case.state(), end):
            self.wrong.append(f"{self.name}, {call}, after the training: {', '.join(found)}")

    def load(self) -> None:
        """Disturb the loading of two checkpoints of one training by turns, into a trained model."""
        case, files, states = Case(self.name, self.folder), [], []
        for i, train in enumerate((case.fit_until_evaluation, case.fit)):
            train()
            files.append(self.folder / f"{i}.neon")
            case.model.save_params(files[-1])
        for file in files:
            case.model.load_params(file)
            states.append(case.state())
        self.disturbance.measure(lambda: case.model.load_params(files[0]))
        current = 0

        def run() -> bool:
            nonlocal current
            other = 1 - current
            if not self.disturbance.run(lambda: case.model.load_params(files[other])):
                current = other
                return False
            problems = differences(case.state(), states[current])
            if not differences(case.state(), states[other]):
                problems = []  # complete
            case.model.load_params(files[other])
            self.note("load", case, problems + differences(case.state(), states[other]))
            current = other
            return True

        self.repeat("load", run)


def with_validation(case: Case) -> Callbacks:
    path = case.folder / "fit.neon"
    return Callbacks(case.model, eval_set=case.valid, progress_bar=False, save_path=path)


def disturbed(
    errors: int = 500,
    signals: int = 150,
    names: Sequence[str] = tuple(NETWORKS),
    calls: Sequence[str] = (),
    seed: int = 0,
) -> list[Row]:
    """Disturb each call of each network so many times by errors, and by Ctrl-C."""
    rows = []
    for kind, title, times in ((Lines, "an error", errors), (Signals, "Ctrl-C", signals)):
        counts: dict[str, int] = {}
        wrong: dict[str, list[str]] = {}
        for name in names:
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                disturbance = kind(random.Random(seed))
                test = Test(name, disturbance, Path(folder), times)
                every: dict[str, Callable[[], None]] = {
                    "fit": lambda test=test: test.fit(lambda case: CallbackBase(), "fit"),
                    "set-up of fit": lambda test=test: test.fit(lambda case: CallbackBase(), "set-up of fit", 0),
                    "fit with validation and saves": lambda test=test: test.fit(
                        with_validation, "fit with validation and saves"
                    ),
                    **{call: lambda test=test, call=call: test.call(call) for call in CALLS},
                    "load": test.load,
                }
                for call, run in every.items():
                    if not calls or call in calls:
                        known = len(test.wrong)
                        run()
                        wrong.setdefault(call, []).extend(test.wrong[known:])
                        counts[call] = counts.get(call, 0) + test.counts.get(call, 0)
        for call, n in counts.items():
            row = {"what": f"{call}, {title}", "networks": len(names), "times": n, "wrong": wrong[call]}
            rows.append(row | {"held": n == times * len(names) and not wrong[call]})
    return rows
