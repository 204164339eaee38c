"""A training survives kill -9, Ctrl-C and its own length: benchmarks/survival.py in short, and awkward moments."""

from __future__ import annotations

import os
import signal
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.callbacks import Callbacks, Listener
from neonlite.data import digits
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine
from neonlite.models import Model
from neonlite.models.zoo import mlp
from neonlite.optimizers import Adam, MultiOptimizer
from neonlite.transforms import CrossEntropyMulti, Rectlin, Softmax

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import survival

RUNTIMES = survival.RUNTIMES


def held(rows: list[dict[str, Any]]) -> bool:
    for row in rows:
        print(row)
    return all(row["held"] for row in rows)


# --- short forms -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_two_processes_with_one_seed_have_the_same_weights_after_200_steps(runtime):
    assert held(survival.same_seed(200, 2, [runtime], [1]))


@pytest.mark.slow
def test_a_training_that_is_killed_and_goes_on_writes_the_same_file():
    assert held(survival.killed(4, 12))


@pytest.mark.slow
def test_so_does_one_that_ctrl_c_ends_in_the_middle_of_an_epoch():
    assert held(survival.killed(4, 12, signal.SIGINT))


@pytest.mark.slow
def test_so_does_one_with_augmentation_killed_in_a_step_a_save_and_a_validation():
    assert held(survival.killed_augmented(4, 3))


@pytest.mark.slow
def test_killed_while_it_saves_it_leaves_a_whole_file():
    assert held(survival.killed_while_saving(15))


@pytest.mark.slow
def test_ctrl_c_leaves_weights_of_a_whole_step_and_fit_goes_on():
    assert held(survival.interrupted(8, "mlp", 4))


@pytest.mark.slow
def test_so_does_ctrl_c_twice():
    assert held(survival.interrupted(15, "wide", 2, twice=True))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/statm is Linux's")
def test_memory_does_not_grow_in_2000_steps():
    assert held(survival.memory(2000, 500, ["mlp"], ["cpu"]))


# --- moments that are hard to hit ------------------------------------------------------------------------------------


def training(layers: Any = None) -> tuple[Model, Any, Any]:
    """Return a model, its training set and its cost, after a fixed seed."""
    gen_backend("cpu", rng_seed=3, batch_size=64)
    return Model(layers or mlp()), digits().iterators()[0], CrossEntropyMulti()


def same(a: Model, b: Model) -> bool:
    pairs = zip(a.get_weights().values(), b.get_weights().values(), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def press(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


class Pressing(Adam):
    """Presses Ctrl-C in a step, when other weights are updated and these are not."""

    times = 0

    def optimize(self, layer_list: Any, epoch: float) -> None:
        times, self.times = self.times, 0
        press(times)
        super().optimize(layer_list, epoch)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_step_whose_update_is_interrupted_is_made_whole(times):
    ends = []
    for at in (0, times):
        model, train, cost = training()
        late = Pressing()
        optimizer = MultiOptimizer({"default": Adam(), "Bias": late})
        model.fit(train, cost, optimizer, 1)
        late.times = at
        if at:
            with pytest.raises(KeyboardInterrupt):
                model.fit(train, cost, optimizer, 2)
            assert model.minibatch_index == 1
        model.fit(train, cost, optimizer, 2)
        ends.append(model)
    assert same(*ends)


class PressedGaussian(Gaussian):
    """Presses Ctrl-C before it draws, the first time."""

    pressed = False

    def fill(self, param: Any) -> None:
        if not self.pressed:
            self.pressed = True
            press()
        super().fill(param)


def test_ctrl_c_while_weights_are_drawn_leaves_the_weights_of_the_seed():
    ends = []
    for init in (Gaussian(scale=0.1), PressedGaussian(scale=0.1)):
        first = Affine(20, Gaussian(scale=0.1), bias=Constant(0), activation=Rectlin())
        model, train, cost = training([first, Affine(10, init, activation=Softmax())])
        optimizer = Adam()
        if isinstance(init, PressedGaussian):
            with pytest.raises(KeyboardInterrupt):
                model.fit(train, cost, optimizer, 1)
        model.fit(train, cost, optimizer, 1)
        ends.append(model)
    assert same(*ends)


class PressingAtTheEnd(Listener):
    """Presses Ctrl-C when training is done."""

    def on_train_end(self) -> None:
        press()


def test_ctrl_c_at_the_very_end_is_not_lost():
    model, train, cost = training()
    with pytest.raises(KeyboardInterrupt):
        model.fit(train, cost, Adam(), 1, PressingAtTheEnd())
    assert model.epoch_index == 1


def test_the_training_set_may_be_the_one_that_is_judged(tmp_path):
    ends, file = [], tmp_path / "m.neon"
    for stops in ([3], [1, 3]):
        model, train, cost = training()
        optimizer: Any = Adam()
        for i, stop in enumerate(stops):
            if i:
                model, train, cost = training(file)
                optimizer = model.optimizer
            callbacks = Callbacks(model, eval_set=train, progress_bar=False, save_path=file)
            model.fit(train, cost, optimizer, stop, callbacks)
        ends.append(model)
    assert same(*ends)


class Failing(Adam):
    """Fails in the step of a number, once."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def optimize(self, layer_list: Any, epoch: float) -> None:
        if self.t == self.at:
            self.at = -1
            raise MemoryError("no room")
        super().optimize(layer_list, epoch)


def test_a_step_that_failed_comes_again_with_the_same_dropout():
    ends = []
    for at in (-1, 30):
        model, train, cost = training()
        optimizer = Failing(at)
        if at >= 0:
            with pytest.raises(MemoryError):
                model.fit(train, cost, optimizer, 2)
        model.fit(train, cost, optimizer, 2)
        ends.append(model)
    assert same(*ends)


class Weighing(Listener):
    """Notes at the end of each epoch how much memory Python has."""

    def __init__(self, model: Model) -> None:
        self.model, self.bytes = model, list[int]()

    def on_epoch_end(self, epoch: int) -> None:
        self.model.be.runtime.ledger.memory()  # adds up its notes, which are up to a thousand
        self.bytes.append(tracemalloc.get_traced_memory()[0])


@pytest.mark.slow
def test_nothing_is_remembered_of_a_thousand_steps():
    model, train, cost = training(mlp(hidden=(16,)))
    weighing, many = Weighing(model), 1200 // train.nbatches
    tracemalloc.start()
    try:
        model.fit(train, cost, Adam(), 3 * many, weighing)
    finally:
        tracemalloc.stop()
    most = [max(weighing.bytes[i : i + many]) for i in (many, 2 * many)]  # tables have filled up by then
    assert most[1] - most[0] < 70_000  # of the tables that fill up and start afresh, not always at the same moment
