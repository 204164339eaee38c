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
    Layer,
    Linear,
    MergeBroadcast,
    Sequential,
)
from neonlite.models import Model
from neonlite.optimizers import Adam, GradientDescentMomentum, LossScaling
from neonlite.transforms import CrossEntropyMulti, Logistic, MeanSquared, Rectlin, Softmax, Tanh, Transform

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


DEFAULTS = (CrossEntropyMulti, None, "cpu")  # cost, optimizer and runtime of ``train``


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
    set_inputs = Layer.set_inputs

    def counted(self: Any, *args: Any) -> None:
        if isinstance(self, Linear):
            result.append(self)
        set_inputs(self, *args)

    monkeypatch.setattr(Layer, "set_inputs", counted)
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
    assert len(runs) == 2 * 3  # the first step builds the assignments, one compiles them, one is recorded
    runs.clear()
    train(perceptron(), False)
    assert len(runs) == 2 * STEPS


def test_after_a_change_of_an_attribute_the_layers_run_again(runs: list[Linear]) -> None:
    def change(model: Model, count: int) -> None:
        if count == 10:
            model.layers.layers[2].transform.slope = 0.5

    one = train(perceptron(), True, act=change)
    assert len(runs) == 2 * (3 + 3)  # as at the start
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
    assert len(runs) == 2 * (3 + STEPS - 7)
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


class Square(Transform):
    """A transform of a user, whose layer assigns its derivative in each step."""

    can_replay = True

    def __call__(self, x: Any) -> Any:
        return x * x

    def backward(self, error: Any, y: Any, x: Any) -> Any:
        return error * 2 * x


def test_a_transform_of_the_user_is_not_recorded(runs: list[Linear]) -> None:
    one, other = (
        train(
            [Affine(7, activation=Square()), Affine(3, activation="softmax")],
            x,
            optimizer=GradientDescentMomentum(0.05),
        )
        for x in (True, False)
    )
    assert len(runs) == 2 * 2 * STEPS
    assert_same(one, other)


def with_another_cost(model: Model, count: int) -> None:
    if count == 9:
        model.cost = GeneralizedCost(CrossEntropyMulti(scale=3))
        model.cost.initialize(model.layers)


def with_a_scaled_loss(model: Model, count: int) -> None:
    if count == 9:
        model.optimizer = LossScaling(Adam(0.1))


def with_a_function_as_fprop(model: Model, count: int) -> None:
    if count == 9:
        fprop: Any = model.fprop
        model.fprop = lambda x, inference=False: fprop((x * 0.5).astensor(), inference)  # type: ignore[method-assign]


def with_a_function_of_a_layer(model: Model, count: int) -> None:
    layer = model.layers.layers[0]
    if count == 9:
        bprop = layer.bprop

        def halved(*args: Any) -> Any:
            deltas = bprop(*args)
            layer.dW[:] = layer.dW * 0.5
            return deltas

        layer.bprop = halved


def with_scaled_errors(model: Model, count: int) -> None:
    if count == 9:
        model.scale_errors = lambda errors: (errors * 3).astensor()  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "act",
    [with_another_cost, with_a_scaled_loss, with_a_function_as_fprop, with_a_function_of_a_layer, with_scaled_errors],
)
def test_what_a_callback_replaces_is_used_from_the_next_step_on(act: Any) -> None:
    one, other, unchanged = (
        train(perceptron(), *x) for x in ((True, *DEFAULTS, act), (False, *DEFAULTS, act), (True,))
    )
    assert_same(one, other)
    assert any((a != b).any() for a, b in zip(one[:-1], unchanged[:-1], strict=True))


@pytest.mark.parametrize("cls", [Linear, Activation, GeneralizedCost, Model])
def test_methods_that_a_user_has_replaced_run_in_each_step(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "get_errors" if cls is GeneralizedCost else "bprop"
    calls, method = [], getattr(cls, name)
    monkeypatch.setattr(cls, name, lambda *args, **kwargs: calls.append(1) or method(*args, **kwargs))
    train(perceptron(), True)
    assert len(calls) == STEPS * (2 if issubclass(cls, Layer) else 1)


def test_a_benchmark_within_a_fit_measures_both_passes() -> None:
    times: list[dict[str, Any]] = []

    def measure(model: Model, count: int) -> None:
        if count == 10:
            times.append(model.benchmark(minibatches[0], niterations=2, nskip=1))

    new_backend("cpu", batch_size=8)
    minibatches = [ArrayIterator(np.eye(16, dtype="float32"), np.arange(16) % 3, nclass=3)]
    model, callback = Model(perceptron()), OnMinibatch(measure)
    callback.model = model
    model.fit(minibatches[0], GeneralizedCost(CrossEntropyMulti()), Adam(), 8, callback)
    assert {"fprop", "bprop", "iteration"} <= set(times[0])


def test_nothing_is_recorded_after_a_callback_that_fails_before_the_first_step() -> None:
    class Failing(CallbackBase):
        def on_train_begin(self, epochs: int) -> None:
            raise OSError("no disk")

    new_backend("cpu", batch_size=8)
    model = Model(perceptron())
    data = ArrayIterator(np.eye(16, dtype="float32"), np.arange(16) % 3, nclass=3)
    with pytest.raises(OSError, match="no disk"):
        model.fit(data, GeneralizedCost(CrossEntropyMulti()), Adam(), 8, Failing())
    assert model.recorded_steps is None


def test_a_variable_of_the_environment_switches_recording_off(
    runs: list[Linear], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEONLITE_GRAPHS", "0")
    train(perceptron(), True)
    assert len(runs) == 2 * STEPS


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("ambiguous")

    __hash__ = object.__hash__


def test_an_attribute_that_cannot_be_compared_counts_as_changed(runs: list[Linear]) -> None:
    def change(model: Model, count: int) -> None:
        if count == 10:
            model.layers.layers[0]._tag = Incomparable()

    def layers() -> list[Any]:
        linear: Any = Linear(7)
        linear._tag = Incomparable()
        return [linear, Affine(3)]

    assert_same(train(layers(), True, MeanSquared, act=change), train(layers(), False, MeanSquared, act=change))
    assert len(runs) == 2 * (3 + 3) + 2 * STEPS


def test_a_copy_in_training_has_its_own_steps() -> None:
    copies: list[Model] = []

    def change(model: Model, count: int) -> None:
        if count == 10:
            copies.append(copy.deepcopy(model))

    assert_same(*(train(perceptron(), x, act=change) for x in (True, False)))
    assert copies[0].recorded_steps is None
