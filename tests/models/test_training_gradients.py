"""Gradients by one program are those of the layers, one after another; what a user replaces is used."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES, new_backend

from neonlite.callbacks import CallbackBase
from neonlite.data import ArrayIterator
from neonlite.layers import (
    GRU,
    LSTM,
    Activation,
    Affine,
    Bias,
    BiRNN,
    BranchNode,
    Conv,
    Dropout,
    GeneralizedCost,
    GeneralizedCostMask,
    Layer,
    Linear,
    MergeBroadcast,
    Multicost,
    MultiHeadAttention,
    Pooling,
    Recurrent,
    RecurrentMean,
    Reshape,
    Sequential,
    Tree,
)
from neonlite.models import Model, training as training_module
from neonlite.optimizers import Adam, GradientDescentMomentum, LossScaling
from neonlite.transforms import CrossEntropyMulti, Logistic, MeanSquared, Rectlin, Softmax, Tanh, Transform

STEPS = 21  # of three epochs of 50 rows in minibatches of 8, the last of an epoch of 2
SHAPE = (2, 6, 6)


def perceptron() -> list[Any]:
    return [Affine(7, activation="relu"), Affine(3, activation="softmax")]


def classify(*layers: Any) -> list[Any]:
    return [*layers, Affine(3, activation="softmax")]


NETWORKS: dict[str, tuple[Callable[[], list[Any]], Any]] = {
    "a perceptron": (perceptron, CrossEntropyMulti),
    "layers": (lambda: [Linear(6), Bias(), Activation(Tanh()), Linear(3), Activation(Softmax())], CrossEntropyMulti),
    "nested": (
        lambda: [Sequential([Affine(5, activation=Logistic()), Affine(6, activation=Rectlin(slope=0.1))]), Affine(3)],
        MeanSquared,
    ),
    "without activations": (lambda: [Linear(4), Bias(), Linear(3)], MeanSquared),
    "dropout": (lambda: classify(Affine(6, activation="relu"), Dropout(0.5)), CrossEntropyMulti),
    "batch norm": (lambda: classify(Affine(6, activation="relu", batch_norm=True)), CrossEntropyMulti),
    "images": (
        lambda: classify(Conv((3, 3, 4), activation="relu", batch_norm=True), Pooling(2), Dropout(0.7)),
        CrossEntropyMulti,
    ),
    "branches": (
        lambda: classify(MergeBroadcast([[Affine(3)], [Affine(2)]], merge="stack", alphas=[0.5, -2])),
        CrossEntropyMulti,
    ),
    "simple recurrence": (lambda: classify(Reshape((12, 6)), Recurrent(5), RecurrentMean()), CrossEntropyMulti),
    "lstm": (
        lambda: classify(Reshape((12, 6)), LSTM(5), LSTM(4, reset_cells=True), RecurrentMean()),
        CrossEntropyMulti,
    ),
    "gru": (lambda: classify(Reshape((12, 6)), GRU(5), RecurrentMean()), CrossEntropyMulti),
    "both directions": (lambda: classify(Reshape((12, 6)), BiRNN(5), RecurrentMean()), CrossEntropyMulti),
    "attention": (
        lambda: classify(Reshape((12, 6)), MultiHeadAttention(3, keep=0.8), RecurrentMean()),
        CrossEntropyMulti,
    ),
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
    compiled: bool = True,
    cost: Any = CrossEntropyMulti,
    optimizer: Any = None,
    runtime: str = "cpu",
    act: Callable[[Model, int], None] = lambda model, count: None,
    **options: Any,
) -> list[Any]:
    """Train for three epochs in float64; return the weights and the cost."""
    new_backend(runtime, batch_size=8, datatype="float64")
    rng = np.random.default_rng(0)
    data = ArrayIterator(
        rng.normal(size=(50, 72)), rng.integers(0, 3, 50), nclass=3, lshape=SHAPE, partial_last=True, **options
    )
    model, callback = Model(layers), OnMinibatch(act)
    callback.model = model
    cost = cost() if isinstance(cost, type) else cost
    cost = cost if hasattr(cost, "get_cost") else GeneralizedCost(cost)
    if not compiled:
        model.compute_gradients = model.compute_gradients  # type: ignore[method-assign]  # of the user
    model.fit(data, cost, optimizer or Adam(), 3, callback)
    assert not model.program.is_active
    return [*model.get_weights().values(), model.total_cost]


def assert_close(one: list[Any], other: list[Any]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list to which each step by the layers appends."""
    result: list[Any] = []
    fprop = Sequential.fprop
    monkeypatch.setattr(Sequential, "fprop", lambda self, *args: result.append(1) or fprop(self, *args))
    return result


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list to which each compilation of a step appends."""
    result: list[Any] = []
    compile_step = training_module.network_gradients

    def counted(*args: Any) -> Any:
        result.append(1)
        return compile_step(*args)

    monkeypatch.setattr(training_module, "network_gradients", counted)
    return result


# --- the same numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_weights_and_cost_are_those_of_the_layers(runtime: str, name: str) -> None:
    layers, cost = NETWORKS[name]
    one, other = (train(layers(), x, cost, GradientDescentMomentum(0.1, 0.9), runtime) for x in (True, False))
    assert_close(one, other)


def test_the_layers_do_not_run(runs: list[Any], compilations: list[Any]) -> None:
    train(perceptron())
    assert not runs
    assert len(compilations) == 2  # for the two sizes of a minibatch


@pytest.mark.parametrize("scale", [1.0, 64.0])
def test_several_costs_are_a_weighted_sum(scale: float) -> None:
    def layers() -> list[Any]:
        node = BranchNode("node")
        trunk = [Affine(5, activation="relu"), node, Affine(3, activation="softmax")]
        return [Tree([trunk, [node, Affine(3)]], alphas=[0.5, -2])]

    def cost() -> Any:
        return Multicost([GeneralizedCost(CrossEntropyMulti()), GeneralizedCost(MeanSquared())], [1, 0.25])

    optimizers = (LossScaling(Adam(), scale) if scale != 1 else Adam() for _ in range(2))
    assert_close(
        *(train(layers(), x, cost(), optimizer) for x, optimizer in zip((True, False), optimizers, strict=True))
    )


def test_weighted_rows_are_those_of_the_layers() -> None:
    weights = np.linspace(0, 2, 50)
    one, other = (
        train(perceptron(), x, GeneralizedCostMask(CrossEntropyMulti()), sample_weight=weights) for x in (True, False)
    )
    assert_close(one, other)


def test_only_parameters_that_are_trained_get_a_gradient() -> None:
    def freeze(model: Model, count: int) -> None:
        model.layers.layers[0].trainable = count < 5

    one, other = (train(perceptron(), x, act=freeze) for x in (True, False))
    assert_close(one, other)


def test_accumulated_gradients_are_added() -> None:
    def change(model: Model, count: int) -> None:
        layer: Any = model.layers.layers[0]
        if count == 7:
            layer.grad_accumulators = [model.be.zeros(layer.dW.shape)]
            layer.set_acc_on(True)

    assert_close(*(train(perceptron(), x, act=change) for x in (True, False)))


# --- what a user changes ---------------------------------------------------------------------------------------------


def test_a_changed_attribute_is_seen_in_the_next_step(compilations: list[Any]) -> None:
    def change(model: Model, count: int) -> None:
        if count == 3:
            model.layers.layers[2].transform.slope = 0.5

    one = train(perceptron(), act=change)
    assert len(compilations) == 3
    assert_close(one, train(perceptron(), False, act=change))
    assert any((a != b).any() for a, b in zip(one[:-1], train(perceptron())[:-1], strict=True))


def test_weights_that_a_user_writes_and_passes_of_the_user_are_seen(compilations: list[Any]) -> None:
    def change(model: Model, count: int) -> None:
        layer: Any = model.layers.layers[0]
        if count == 8:
            layer.W[0] = 0.25
        if count == 12:
            layer.W = np.full(layer.W.shape, -0.5)
        if count % 5 == 0:
            model.fprop(model.be.ones((72, 8)), True)

    one = train(perceptron(), act=change)
    assert len(compilations) == 2  # passes of the user change nothing that a program reads
    assert_close(one, train(perceptron(), False, act=change))


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
    one, other, unchanged = train(perceptron(), act=act), train(perceptron(), False, act=act), train(perceptron())
    assert_close(one, other)
    assert any((a != b).any() for a, b in zip(one[:-1], unchanged[:-1], strict=True))


class Doubled(Linear):
    """A custom layer with a gradient."""

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        deltas = super().bprop(error, alpha, beta)
        self.dW[:] = self.dW * 2
        return deltas


class Square(Transform):
    """A custom transform with a derivative."""

    def __call__(self, x: Any) -> Any:
        return x * x

    def bprop(self, x: Any) -> Any:
        return 2 * x


class Cubic(Layer):
    """A layer of a user with a formula."""

    factor = 0.1

    def configure(self, in_obj: Any) -> Any:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def formula(self, x: Any) -> Any:
        return x * x * x * self.factor


class Halved(GeneralizedCost):
    """A cost of a user."""

    def get_errors(self, inputs: Any, targets: Any) -> Any:
        errors = super().get_errors(inputs, targets)
        errors[:] = errors * 0.5
        return errors


@pytest.mark.parametrize(
    ("layers", "cost"),
    [
        (lambda: classify(Doubled(6)), CrossEntropyMulti),
        (lambda: classify(Affine(6, activation=Square())), CrossEntropyMulti),
        (perceptron, lambda: Halved(CrossEntropyMulti())),
    ],
    ids=["a layer", "a transform", "a cost"],
)
def test_passes_of_the_user_run_in_each_step(runs: list[Any], layers: Any, cost: Any) -> None:
    one = train(layers(), True, cost() if not isinstance(cost, type) else cost)
    assert len(runs) == STEPS
    assert_close(one, train(layers(), False, cost() if not isinstance(cost, type) else cost))


def test_a_formula_of_the_user_is_a_part_of_the_program(runs: list[Any]) -> None:
    def change(model: Model, count: int) -> None:
        if count == 5:
            model.layers.layers[2].factor = 0.3

    def layers() -> list[Any]:
        return classify(Affine(6), Cubic())

    one = train(layers(), act=change)
    assert not runs
    assert_close(one, train(layers(), False, act=change))


def test_an_attribute_that_cannot_be_compared_counts_as_changed() -> None:
    class Incomparable:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("ambiguous")

        __hash__ = object.__hash__

    def change(model: Model, count: int) -> None:
        if count == 10:
            model.layers.layers[0]._tag = Incomparable()

    def layers() -> list[Any]:
        linear: Any = Linear(7)
        linear._tag = Incomparable()
        return [linear, Affine(3)]

    assert_close(*(train(layers(), x, MeanSquared, act=change) for x in (True, False)))


def test_an_attribute_that_changes_in_each_step_is_left_to_the_layers(runs: list[Any], compilations: list[Any]) -> None:
    def change(model: Model, count: int) -> None:
        model.layers.layers[2].transform.slope = 0.01 * count

    one = train(perceptron(), act=change)
    assert len(compilations) == training_module.MAX_CHANGES + 1
    assert len(runs) == STEPS - len(compilations)
    assert_close(one, train(perceptron(), False, act=change))


def test_a_second_fit_compiles_nothing(compilations: list[Any]) -> None:
    new_backend("cpu", batch_size=8)
    data = ArrayIterator(np.eye(16, dtype="float32"), np.arange(16) % 3, nclass=3)
    model, cost = Model(perceptron()), GeneralizedCost(CrossEntropyMulti())
    for epochs in (1, 2, 3):
        model.fit(data, cost, Adam(), epochs)
    assert len(compilations) == 1


class Masked(Layer):
    """A custom layer with a formula, and an fprop that draws what it reads."""

    def configure(self, in_obj: Any) -> Any:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def allocate(self, *args: Any, **options: Any) -> None:
        super().allocate(*args, **options)
        self.mask = self.be.ones(self.outputs.shape)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        if not inference:
            self.mask[:] = self.be.rand(self.mask.shape) < 0.5
        return super().fprop(inputs, inference, beta)

    def formula(self, x: Any) -> Any:
        return x * self.mask

    def inference_formula(self, x: Any) -> Any:
        return x * 0.5


def test_the_fprop_and_the_formula_of_a_custom_class_are_used(runs: list[Any]) -> None:
    def layers() -> list[Any]:
        return classify(Affine(6, activation="relu"), Masked())

    one = train(layers())
    assert len(runs) == STEPS
    assert_close(one, train(layers(), False))


# --- fit -------------------------------------------------------------------------------------------------------------


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


def test_no_program_is_active_after_a_callback_that_fails_before_the_first_step() -> None:
    class Failing(CallbackBase):
        def on_train_begin(self, epochs: int) -> None:
            raise OSError("no disk")

    new_backend("cpu", batch_size=8)
    model = Model(perceptron())
    data = ArrayIterator(np.eye(16, dtype="float32"), np.arange(16) % 3, nclass=3)
    with pytest.raises(OSError, match="no disk"):
        model.fit(data, GeneralizedCost(CrossEntropyMulti()), Adam(), 8, Failing())
    assert model.program is None or not model.program.is_active


def test_a_copy_in_training_is_not_in_training() -> None:
    copies: list[Model] = []

    def change(model: Model, count: int) -> None:
        if count == 10:
            copies.append(copy.deepcopy(model))

    assert_close(train(perceptron(), act=change), train(perceptron()))
    assert copies[0].program is None
