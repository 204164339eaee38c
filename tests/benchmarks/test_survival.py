"""Training survives kill -9, Ctrl-C, errors and long runs: short forms of benchmarks/survival.py, and edge cases."""

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
from neonlite.callbacks import CallbackBase, Callbacks
from neonlite.data import digits
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine, BatchNorm
from neonlite.layers.parameter import ParameterLayer
from neonlite.models import Model
from neonlite.models.training_state import TrainingState
from neonlite.models.zoo import mlp
from neonlite.optimizers import Adam, LossScaling, MultiOptimizer
from neonlite.transforms import CrossEntropyMulti, Rectlin, Softmax

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import survival
from _disturbed import NETWORKS, disturbed
from _failures import SETUPS, failing

RUNTIMES = survival.RUNTIMES


def held(rows: list[dict[str, Any]]) -> bool:
    for row in rows:
        print(row)
    return all(row["held"] for row in rows)


# --- short forms -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_two_processes_with_one_seed_have_the_same_weights_after_60_steps(runtime):
    assert held(survival.same_seed(60, 2, [runtime], [1]))


@pytest.mark.slow
def test_a_killed_and_resumed_training_writes_the_same_file():
    assert held(survival.killed(2, 8))


@pytest.mark.slow
def test_so_does_one_interrupted_by_ctrl_c_within_an_epoch():
    assert held(survival.killed(2, 8, signal.SIGINT))


@pytest.mark.slow
def test_so_does_one_with_augmentation_killed_in_a_step_a_save_and_a_validation():
    assert held(survival.killed_augmented(2, 2))


@pytest.mark.slow
def test_a_process_killed_while_it_saves_leaves_a_complete_file():
    assert held(survival.killed_while_saving(6))


@pytest.mark.slow
def test_ctrl_c_leaves_the_weights_of_a_complete_step_and_fit_continues():
    assert held(survival.interrupted(8, "mlp", 4))


@pytest.mark.slow
def test_so_does_ctrl_c_twice():
    assert held(survival.interrupted(8, "wide", 2, twice=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETUPS)
def test_training_after_an_error_at_any_line_of_a_step_is_bit_identical(name):
    assert held(failing(60, 5, [name]))


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_call_that_an_error_or_ctrl_c_ends_changes_nothing_and_works_when_it_is_repeated(name):
    assert held(disturbed(3, 3, [name], seed=int(os.environ.get("NEONLITE_TEST_SEED", "0"))))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/statm is Linux's")
def test_memory_does_not_grow_in_2000_steps():
    assert held(survival.memory(2000, 500, ["mlp"], ["cpu"]))


def test_threads_predict_with_one_model_without_a_wrong_value_also_during_a_fit():
    assert held(survival.predicted(8, 25, ["cpu"]))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_so_do_threads_that_predict_100_times(runtime):
    assert held(survival.predicted(8, 100, [runtime]))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc/self/statm is Linux's")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_memory_stays_bounded_while_shapes_models_and_backends_change(runtime):
    assert held(survival.soak(0.25, [runtime], cached_primitives=128, most=50e6))


# --- edge cases ------------------------------------------------------------------------------------------------------


def training(layers: Any = None) -> tuple[Model, Any, Any]:
    """Return a model, its training set and its cost, for a fixed seed."""
    gen_backend("cpu", rng_seed=3, batch_size=64)
    return Model(layers or mlp()), digits().iterators()[0], CrossEntropyMulti()


def same(a: Model, b: Model) -> bool:
    pairs = zip(a.get_weights().values(), b.get_weights().values(), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def send_ctrl_c(times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


class InterruptedAdam(Adam):
    """Sends Ctrl-C within a step, when other weights are updated and these are not."""

    times = 0

    def optimize(self, layer_list: Any, epoch: float) -> None:
        times, self.times = self.times, 0
        send_ctrl_c(times)
        super().optimize(layer_list, epoch)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_step_interrupted_in_its_update_is_completed(times):
    ends = []
    for at in (0, times):
        model, train, cost = training()
        late = InterruptedAdam()
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


class InterruptedGaussian(Gaussian):
    """Sends Ctrl-C before it draws for the first time."""

    pressed = False

    def fill(self, param: Any) -> None:
        if not self.pressed:
            self.pressed = True
            send_ctrl_c()
        super().fill(param)


def test_ctrl_c_during_initialization_leaves_the_weights_of_the_seed():
    ends = []
    for init in (Gaussian(scale=0.1), InterruptedGaussian(scale=0.1)):
        first = Affine(20, Gaussian(scale=0.1), bias=Constant(0), activation=Rectlin())
        model, train, cost = training([first, Affine(10, init, activation=Softmax())])
        optimizer = Adam()
        if isinstance(init, InterruptedGaussian):
            with pytest.raises(KeyboardInterrupt):
                model.fit(train, cost, optimizer, 1)
        model.fit(train, cost, optimizer, 1)
        ends.append(model)
    assert same(*ends)


class InterruptAtEnd(CallbackBase):
    """Sends Ctrl-C when training has ended."""

    def on_train_end(self) -> None:
        send_ctrl_c()


def test_ctrl_c_at_the_very_end_is_not_lost():
    model, train, cost = training()
    with pytest.raises(KeyboardInterrupt):
        model.fit(train, cost, Adam(), 1, InterruptAtEnd())
    assert model.epoch_index == 1


def test_the_training_set_may_be_the_validation_set(tmp_path):
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


class FailingAdam(Adam):
    """Raises an error in one step, once."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def optimize(self, layer_list: Any, epoch: float) -> None:
        if self.t == self.at:
            self.at = -1
            raise MemoryError("no memory")
        super().optimize(layer_list, epoch)


def test_a_failed_step_is_repeated_with_the_same_dropout():
    ends = []
    for at in (-1, 30):
        model, train, cost = training()
        optimizer = FailingAdam(at)
        if at >= 0:
            with pytest.raises(MemoryError):
                model.fit(train, cost, optimizer, 2)
        model.fit(train, cost, optimizer, 2)
        ends.append(model)
    assert same(*ends)


class FailingOtherAdam(Adam):
    """Raises an error when other weights are updated, once."""

    fails = True

    def optimize(self, layer_list: Any, epoch: float) -> None:
        if self.t == 3 and self.fails:
            self.fails = False
            raise MemoryError("no memory")
        super().optimize(layer_list, epoch)


def everything(model: Model) -> dict[str, bytes]:
    """Return weights, running statistics, optimizer states and recurrent states."""
    return {name: x.tobytes() for name, x in TrainingState.from_model(model)[1].items()}


@pytest.mark.parametrize("scaled", [False, True])
def test_an_error_in_the_second_group_of_a_multi_optimizer_restores_the_first(scaled):
    model, train, cost = training([*mlp()[:1], BatchNorm(), *mlp()[1:]])
    optimizer: Any = MultiOptimizer({"default": Adam(), "Bias": FailingOtherAdam()})
    optimizer = LossScaling(optimizer, growth_interval=2) if scaled else optimizer
    seen: list[Any] = []

    class Seeing(CallbackBase):
        def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
            seen.append((everything(model), repr(optimizer.get_state()), model.be.rng_get_state()))

    with pytest.raises(MemoryError):
        model.fit(train, cost, optimizer, 1, Seeing())
    assert model.minibatch_index == 3
    assert seen[-1] == (everything(model), repr(optimizer.get_state()), model.be.rng_get_state())


def test_an_update_outside_of_fit_is_undone_as_well():
    model, train, cost = training()
    optimizer = MultiOptimizer({"default": Adam(), "Bias": FailingOtherAdam()})
    model.initialize(train, cost)
    x, t = next(iter(train))
    model.optimizer = optimizer
    for _ in range(3):
        model.train_step(x, t)
    before = everything(model), optimizer.t, optimizer.optimizer_mapping["default"].t
    with pytest.raises(MemoryError):
        model.train_step(x, t)
    assert before == (everything(model), optimizer.t, optimizer.optimizer_mapping["default"].t)


class Running(ParameterLayer):
    """A layer that counts its minibatches in a persistent tensor."""

    def configure(self, in_obj: Any) -> Running:
        super().configure(in_obj)
        self.out_shape, self.weight_shape = self.in_shape, (1, 1)
        return self

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        self.seen = self.be.zeros((1, 1)) if not hasattr(self, "seen") else self.seen

    @property
    def persistent_tensors(self) -> dict[str, Any]:
        return {**super().persistent_tensors, "seen": self.seen}

    def formula(self, x: Any) -> Any:
        return x * self.W

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        self.seen[:] = self.seen + (not inference)
        return super().fprop(inputs, inference, beta)


def test_the_persistent_tensors_of_a_custom_layer_are_restored_too():
    model, train, cost = training([Running(Constant(1)), *mlp()])
    with pytest.raises(MemoryError):
        model.fit(train, cost, FailingAdam(5), 1)
    assert model.layers.layers[0].seen.get() == 5


class MemoryRecorder(CallbackBase):
    """Records the memory of Python at the end of each epoch."""

    def __init__(self, model: Model) -> None:
        self.model, self.bytes = model, list[int]()

    def on_epoch_end(self, epoch: int) -> None:
        self.model.be.runtime.memory_tracker.usage()  # processes its queue, of up to a thousand entries
        self.bytes.append(tracemalloc.get_traced_memory()[0])


@pytest.mark.slow
def test_memory_does_not_grow_in_a_thousand_steps():
    model, train, cost = training(mlp(hidden=(16,)))
    memory_recorder, epochs_per_part = MemoryRecorder(model), 1200 // train.nbatches
    tracemalloc.start()
    try:
        model.fit(train, cost, Adam(), 3 * epochs_per_part, memory_recorder)
    finally:
        tracemalloc.stop()
    most = [
        max(memory_recorder.bytes[i : i + epochs_per_part]) for i in (epochs_per_part, 2 * epochs_per_part)
    ]  # the caches are full by then
    assert most[1] - most[0] < 70_000  # of caches that are cleared at different times
