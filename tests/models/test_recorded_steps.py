"""Recorded training steps have the bits of those that run the layers; only what can be recorded is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES, new_backend

from neonlite.backend.current import current_backend
from neonlite.callbacks import CallbackBase
from neonlite.data import ArrayIterator
from neonlite.layers import (
    Activation,
    Affine,
    BatchNorm,
    Bias,
    Dropout,
    GeneralizedCost,
    GeneralizedCostMask,
    Linear,
    MergeBroadcast,
    Sequential,
)
from neonlite.models import Model
from neonlite.optimizers import Adam, GradientDescentMomentum, LossScaling
from neonlite.transforms import CrossEntropyMulti, Logistic, MeanSquared, Rectlin, Softmax, Tanh

STEPS = 19  # of three epochs of 50 rows in minibatches of 8


def perceptron() -> list[Any]:
    return [Affine(7, activation="relu"), Affine(3, activation="softmax")]


NETWORKS: dict[str, tuple[Callable[[], list[Any]], Any]] = {
    "a perceptron": (perceptron, CrossEntropyMulti),
    "layers": (lambda: [Linear(6), Bias(), Activation(Tanh()), Linear(3), Activation(Softmax())], CrossEntropyMulti),
    "nested": (
        lambda: [Sequential([Affine(5, activation=Logistic()), Affine(6, activation=Rectlin(slope=0.1))]), Affine(3)],
        MeanSquared,
    ),
    "sums of rows": (lambda: [Linear(5, bsum=True), Bias(), Affine(3)], MeanSquared),
    "without activations": (lambda: [Linear(4), Bias(), Linear(3)], MeanSquared),
}


class OnMinibatch(CallbackBase):
    """Calls a function of the model after each minibatch."""

    def __init__(self, act: Callable[[Model, int], None]) -> None:
        self.act, self.count = act, 0
        self.model: Any = None

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self.count += 1
        self.act(self.model, self.count)


def train(
    layers: list[Any],
    recorded: bool,
    cost: Any = CrossEntropyMulti,
    optimizer: Any = None,
    runtime: str = "cpu",
    act: Callable[[Model, int], None] = lambda model, count: None,
    **options: Any,
) -> list[Any]:
    """Train for three epochs; return the weights and the cost."""
    new_backend(runtime, batch_size=8)
    rng = np.random.default_rng(0)
    data = ArrayIterator(rng.normal(size=(50, 4)), rng.integers(0, 3, 50), nclass=3, shuffle=True, **options)
    model, callback = Model(layers), OnMinibatch(act)
    callback.model = model
    cost = cost if isinstance(cost, GeneralizedCost) else GeneralizedCost(cost())
    model.fit(data, cost, optimizer or Adam(), 3, callback, cuda_graphs=recorded)
    assert model.recorded_steps is None
    return [*model.get_weights().values(), model.total_cost]


def assert_same(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Linear]:
    """Return the list to which each forward pass of a Linear layer appends the layer."""
    result: list[Linear] = []
    fprop = Linear.fprop
    monkeypatch.setattr(Linear, "fprop", lambda self, *args: result.append(self) or fprop(self, *args))
    return result


@pytest.mark.parametrize("optimizer", [Adam, lambda: GradientDescentMomentum(0.1, 0.9, gradient_clip_norm=1.0)])
@pytest.mark.parametrize("partial_last", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_weights_and_cost_have_the_bits_of_steps_that_are_not_recorded(
    runtime: str, name: str, partial_last: bool, optimizer: Any
) -> None:
    layers, cost = NETWORKS[name]
    one, other = (train(layers(), x, cost, optimizer(), runtime, partial_last=partial_last) for x in (True, False))
    assert_same(one, other)


def test_the_layers_run_only_until_a_step_is_recorded(runs: list[Linear]) -> None:
    train(perceptron(), True)
    assert len(runs) == 2 * 4  # the first step allocates, two compile, one is recorded
    runs.clear()
    train(perceptron(), False)
    assert len(runs) == 2 * STEPS


def test_after_a_change_of_an_attribute_the_layers_run_again(runs: list[Linear]) -> None:
    def change(model: Model, count: int) -> None:
        if count == 10:
            model.layers.layers[2].transform.slope = 0.5

    one = train(perceptron(), True, act=change)
    assert len(runs) == 2 * (4 + 3)
    assert_same(one, train(perceptron(), False, act=change))


def test_an_attribute_that_changes_in_each_step_ends_the_recording(runs: list[Linear]) -> None:
    def change(model: Model, count: int) -> None:
        model.layers.layers[2].transform.slope = 0.01 * count

    one = train(perceptron(), True, act=change)
    assert len(runs) == 2 * STEPS
    assert_same(one, train(perceptron(), False, act=change))


def test_minibatches_in_new_tensors_are_not_recorded(runs: list[Linear]) -> None:
    class NewTensors:
        ndata, nbatches, shape = 160, 20, 4

        def __iter__(self) -> Any:
            be, rng = current_backend(), np.random.default_rng(0)
            for _ in range(20):
                yield be.array(rng.normal(size=(4, 8))), be.array(np.eye(3)[rng.integers(0, 3, 8)].T)

    results = []
    for recorded in (True, False):
        new_backend("cpu", batch_size=8)
        model = Model(perceptron())
        model.fit(NewTensors(), GeneralizedCost(CrossEntropyMulti()), Adam(), 2, cuda_graphs=recorded)
        results.append([*model.get_weights().values(), model.total_cost])
        assert len(runs) == 2 * 40
        runs.clear()
    assert_same(*results)


def test_changes_of_weights_and_passes_of_the_user_are_seen() -> None:
    def change(model: Model, count: int) -> None:
        layer: Any = model.layers.layers[0]
        if count == 8:
            layer.W[0] = 0.25
        if count == 12:
            layer.W = np.full(layer.W.shape, -0.5)
        if count % 5 == 0:  # its outputs are written to the same buffers
            model.fprop(model.be.ones(layer.inputs.shape), True)

    assert_same(*(train(perceptron(), x, act=change) for x in (True, False)))


def test_accumulated_gradients_are_not_recorded(runs: list[Linear]) -> None:
    def change(model: Model, count: int) -> None:
        layer: Any = model.layers.layers[0]
        if count == 7:
            layer.grad_accumulators = [model.be.zeros(layer.dW.shape)]
            layer.set_acc_on(True)

    one = train(perceptron(), True, act=change)
    assert len(runs) == 2 * (4 + STEPS - 7)
    assert_same(one, train(perceptron(), False, act=change))


class Counting(Linear):
    """A layer of a user."""


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [Affine(6, activation="relu"), Dropout(0.5), Affine(3, activation="softmax")],
        lambda: [Affine(6, activation="relu", batch_norm=True), Affine(3, activation="softmax")],
        lambda: [Linear(6), BatchNorm(), Affine(3, activation="softmax")],
        lambda: [MergeBroadcast([[Affine(3)], [Affine(2)]], merge="stack"), Affine(3, activation="softmax")],
        lambda: [Counting(6), Affine(3, activation="softmax")],
    ],
    ids=["dropout", "batch norm", "a BatchNorm layer", "branches", "a layer of the user"],
)
def test_other_layers_run_in_each_step(runs: list[Linear], layers: Callable[[], list[Any]]) -> None:
    one = train(layers(), True)
    assert len(runs) % STEPS == 0
    assert_same(one, train(layers(), False))


def test_a_scaled_loss_and_masked_targets_are_not_recorded(runs: list[Linear]) -> None:
    train(perceptron(), True, optimizer=LossScaling(Adam()))
    assert len(runs) == 2 * STEPS
    runs.clear()
    weights = np.linspace(0, 2, 50)
    train(perceptron(), True, GeneralizedCostMask(CrossEntropyMulti()), sample_weight=weights)
    assert len(runs) == 2 * STEPS


def test_a_model_whose_fprop_a_user_replaces_calls_it_in_each_step() -> None:
    class Mine(Model):
        def fprop(self, x: Any, inference: bool = False) -> Any:
            calls.append("overridden")
            return super().fprop(x, inference)

    calls: list[str] = []
    new_backend("cpu", batch_size=8)
    rows = ArrayIterator(np.eye(16, dtype="float32"), np.arange(16) % 3, nclass=3)
    Mine(perceptron()).fit(rows, GeneralizedCost(CrossEntropyMulti()), Adam(), 10)
    model = Model(perceptron())
    fprop = model.fprop
    model.fprop = lambda x, inference=False: calls.append("replaced") or fprop(x, inference)  # type: ignore[method-assign]
    model.fit(rows, GeneralizedCost(CrossEntropyMulti()), Adam(), 10)
    assert calls == ["overridden"] * 20 + ["replaced"] * 20


def test_a_copy_in_training_has_its_own_steps() -> None:
    copies: list[Model] = []

    def change(model: Model, count: int) -> None:
        if count == 10:
            copies.append(copy.deepcopy(model))

    assert_same(*(train(perceptron(), x, act=change) for x in (True, False)))
    assert copies[0].recorded_steps is None
