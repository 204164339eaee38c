"""Training steps that fail: an error is raised at a random line of a step, and training continues.

``failing`` trains a network without errors and with an error in every step, and compares the states bit by bit.
"""

from __future__ import annotations

import dis
import linecache
import random
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

import neonlite
from neonlite import gen_backend
from neonlite.backend.transaction import log
from neonlite.callbacks import CallbackBase
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import LSTM, Affine, BatchNorm, Dropout, GeneralizedGANCost, GenerativeAdversarial
from neonlite.models import GAN, Model
from neonlite.models.training_state import TrainingState
from neonlite.optimizers import Adam, GradientDescentMomentum, LossScaling, MultiOptimizer, RMSProp
from neonlite.transforms import CrossEntropyMulti, GANCost, Logistic, MeanSquared, Rectlin, Softmax, Tanh

SOURCE = str(Path(neonlite.__file__).parent)
GENERATED = "<region>"  # the file name of functions that the executor generates
ROWS, BATCH, FEATURES = 64, 16, 12
State = dict[str, bytes]
Row = dict[str, Any]
Training = tuple[Model, Any, Any, Any]  # a model, its data, its cost, its optimizer


# --- networks --------------------------------------------------------------------------------------------------------


def dense(*between: Any, optimizer: Any) -> Training:
    """Return a classifier of two layers with others between them."""
    hidden = Affine(20, Gaussian(scale=0.3), bias=Constant(0), activation=Rectlin())
    last = Affine(4, Gaussian(scale=0.3), bias=Constant(0), activation=Softmax())
    rng = np.random.default_rng(0)
    data = ArrayIterator(rng.normal(size=(ROWS, FEATURES)), rng.integers(0, 4, ROWS), nclass=4, shuffle=True)
    return Model([hidden, *between, last]), data, CrossEntropyMulti(), optimizer


def several() -> Any:
    return MultiOptimizer({"default": Adam(learning_rate=0.01), "Bias": GradientDescentMomentum(0.1, 0.9)})


def recurrent() -> Training:
    lstm = LSTM(8, Gaussian(scale=0.3), activation=Tanh(), gate_activation=Logistic())
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, FEATURES)), rng.normal(size=(ROWS, 2, 4))
    data = ArrayIterator(x, y, lshape=(3, 4), make_onehot=False)
    model = Model([lstm, Affine(2, Gaussian(scale=0.3), bias=Constant(0))])
    return model, data, MeanSquared(), RMSProp(learning_rate=0.01)


def adversarial() -> Training:
    def part(n: int, activation: Any) -> list[Any]:
        hidden = Affine(8, Gaussian(scale=0.3), batch_norm=True, activation=Rectlin())
        return [hidden, Affine(n, Gaussian(scale=0.3), bias=Constant(0), activation=activation)]

    layers = GenerativeAdversarial(part(FEATURES, Tanh()), part(1, Logistic()))
    data = ArrayIterator(np.random.default_rng(0).normal(size=(ROWS, FEATURES)))
    return GAN(layers, noise_dim=4), data, GeneralizedGANCost(GANCost()), Adam(learning_rate=0.01)


SETUPS: dict[str, Callable[[], Training]] = {
    "plain": lambda: dense(optimizer=GradientDescentMomentum(0.1, 0.9)),
    "MultiOptimizer": lambda: dense(optimizer=several()),
    "batch norm, dropout": lambda: dense(BatchNorm(), Dropout(0.5), optimizer=Adam(learning_rate=0.01)),
    "LSTM with recurrent state": recurrent,
    "GAN": adversarial,
    "LossScaling": lambda: dense(BatchNorm(), optimizer=LossScaling(several(), scale=2.0**125, growth_interval=3)),
}


# --- errors ----------------------------------------------------------------------------------------------------------


CANNOT_FAIL = [f"{SOURCE}/backend/{name}.py" for name in ("lock", "interrupt")]
FAILING_OPS = ("CALL", "BINARY_OP", "BUILD_", "MAKE_FUNCTION", "GET_ITER", "FORMAT_VALUE", "RAISE_VARARGS")


@cache
def failing_lines(code: CodeType) -> frozenset[int]:
    """Return the numbers of the lines of a function that call or create something, except those of ``with``."""
    lines, number = set(), 0
    for instruction in dis.get_instructions(code):
        number = instruction.positions.lineno or number if instruction.positions else number
        if instruction.opname.startswith(FAILING_OPS):
            lines.add(number)
    return frozenset(n for n in lines if not linecache.getline(code.co_filename, n).lstrip().startswith("with "))


class Injector:
    """Raise an error at one of the lines of neonlite that run between ``start`` and ``stop``.

    Lines of ``with``, and the modules of locks and of signals, are left out: an error raised there by a trace function
    would leave locks held, which no real error does. So are lines that call and create nothing, such as the assignment
    of an attribute, and those from the last write of a transaction on, which is a single assignment without an
    allocation.
    """

    def __init__(self) -> None:
        self.at, self.lines, self.where = -1, 0, ""

    def start(self, frame: FrameType, at: int) -> None:
        self.at, self.lines, self.where = at, 0, ""
        frame.f_trace = self.trace
        sys.settrace(self.trace)

    def stop(self) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if (not name.startswith(SOURCE) and name != GENERATED) or frame.f_code.co_name in ("__del__", "__setattr__"):
            return None  # an error in __del__ is ignored; __setattr__ calls only that of object
        if name in CANNOT_FAIL:
            return None
        if log.is_writing:
            return self.trace
        if event == "line" and frame.f_lineno in failing_lines(frame.f_code):
            self.lines += 1
            if self.lines == self.at:
                self.at, self.where = -1, f"{name.removeprefix(SOURCE)}:{frame.f_lineno}"
                raise MemoryError("injected")
        return self.trace


class StateRecorder(CallbackBase):
    """Record the state of a model after each minibatch, and raise an error in each minibatch while ``armed``."""

    def __init__(self, model: Any, rng: random.Random | None = None, lines: int = 0) -> None:
        self.model, self.rng, self.lines, self.injector = model, rng, lines, Injector()
        self.before: State = {}
        self.states: list[State] = []
        self.armed = True

    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        self.before = state(self.model)
        armed = self.rng is not None and self.armed and self.lines
        self.injector.start(sys._getframe(1), self.rng.randint(1, self.lines) if armed else -1)

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self.injector.stop()
        self.lines, self.armed = self.injector.lines, True
        self.states.append(state(self.model))


def state(model: Any) -> State:
    """Return the complete training state, as in a checkpoint, without optimizer states of zeros."""
    description, arrays = TrainingState.from_model(model)
    found = {name: x.tobytes() for name, x in arrays.items() if x.any() or not name.startswith("states/")}
    del description["training"]["optimizer"]  # contains a generated name
    return found | {"training": repr(description["training"]).encode()}


def differences(a: State, b: State) -> list[str]:
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


# --- trainings -------------------------------------------------------------------------------------------------------


def start_training(name: str) -> Training:
    """Return a training, with the same seed and the same names each time."""
    gen_backend("cpu", rng_seed=7, batch_size=BATCH)
    training = SETUPS[name]()
    for i, layer in enumerate(training[0].layers.leaves()):
        layer.name = f"layer{i}"
    return training


def run_without_errors(name: str, epochs: int) -> StateRecorder:
    """Return the recorder of a training without errors."""
    model, data, cost, optimizer = start_training(name)
    recorder = StateRecorder(model)
    model.fit(data, cost, optimizer, epochs, recorder)
    return recorder


class FailureTest:
    """Trainings in which each step fails once, and the comparison of their states."""

    def __init__(self, name: str, errors: int, seed: int) -> None:
        self.name, self.rng = name, random.Random(seed)
        self.epochs = -(-errors // (ROWS // BATCH)) + 1
        self.expected = run_without_errors(name, self.epochs).states
        self.errors = self.undone = self.completed = 0
        self.wrong: list[str] = []

    def train(self, minibatches: int, lines: int = 0) -> None:
        """Train for some minibatches, each of which fails at a random line and is repeated."""
        model, data, cost, optimizer = start_training(self.name)
        recorder = StateRecorder(model, self.rng, lines)
        while len(recorder.states) < minibatches:
            try:
                model.fit(data, cost, optimizer, self.epochs, recorder)
            except MemoryError:
                recorder.injector.stop()
                if not recorder.injector.where:  # not an injected error
                    raise
                recorder.armed = False
                self.compare(recorder, state(model))
        last = len(recorder.states) - 1
        if found := differences(recorder.states[last], self.expected[last]):
            self.wrong.append(f"at the end: {', '.join(found)}")

    def compare(self, recorder: StateRecorder, now: State) -> None:
        """Compare the state after an error with those before and after the step."""
        done = len(recorder.states)
        self.errors += 1
        if not differences(now, recorder.before):
            self.undone += 1
        elif not differences(now, self.expected[done]):
            self.completed += 1
            recorder.states.append(now)
        else:
            self.wrong.append(f"{recorder.injector.where}: {', '.join(differences(now, recorder.before))}")


def failing(errors: int = 500, first: int = 50, names: Sequence[str] = tuple(SETUPS), seed: int = 0) -> list[Row]:
    """Run steps that fail at random lines: ``errors`` consecutive ones, and ``first`` times the first step."""
    rows = []
    for name in names:
        test = FailureTest(name, errors, seed)
        test.train(errors + 1)
        lines = 2 * run_without_errors(name, 1).lines  # the first step also plans and allocates
        for _ in range(first):
            test.train(2, lines)
        row = {"what": name, "errors": test.errors, "before": test.undone, "after": test.completed}
        rows.append(row | {"wrong": test.wrong, "held": not test.wrong})
    return rows
