"""Frequent mistakes with layers: the error names the layer, what was expected, what it got, and how to fix it
(neonlite/layers/layer.py and its subclasses)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.callbacks import SerializeModelCallback
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import (
    LSTM,
    Activation,
    Affine,
    BatchNorm,
    Conv,
    GeneralizedCost,
    Layer,
    LayerNorm,
    Linear,
    LookupTable,
    MergeBroadcast,
    MergeSum,
    ParameterLayer,
    Pooling,
    Sequential,
    Tree,
)
from neonlite.models import Model
from neonlite.transforms import CrossEntropyMulti, Logistic, Rectlin, Softmax, SumSquared, Tanh

init = Gaussian()


def evaluate_cost(cost: Any, activation: Any, rows: int) -> None:
    """Evaluate a cost of a network with three outputs for targets of ``rows`` rows."""
    be = gen_backend("cpu", batch_size=4)
    net = Sequential(Affine(3, init, activation=activation, name="fc")).configure(5)
    net.allocate()
    loss = GeneralizedCost(cost, name="loss")
    loss.initialize(net)
    loss.get_cost(net.fprop(be.zeros((5, 4))), be.zeros((rows, 4)))


def network(*layers: Any) -> Any:
    return Sequential(layers, name="net")


def image(size: int, name: str, **more: Any) -> Any:
    return Conv((size, size, 2), init, name=name, **more)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: Affine(0, init, name="fc"), "fc: expected an integer >= 1 for nout, got 0"),
    (lambda: network(image(5, "cv")).configure((1, 3, 3)), "cv: a window of 5 .* larger than 3.*Use a smaller window"),
    (lambda: network(image(3, "cv", strides=0)).configure((1, 8, 8)), "cv: expected an integer >= 1 for str_h, got 0"),
    (lambda: Pooling(5, name="pl").configure((1, 3, 3)), "pl: a window of 5 .* is larger than 3.*Use a smaller window"),
    (
        lambda: network(Linear(9, init), image(3, "cv")).configure(5),
        r"cv: expected images .* input shape 9. Put Reshape",
    ),
    (
        lambda: MergeBroadcast([image(1, "a"), image(3, "b")], "depth", name="side").configure((1, 8, 8)),
        r"side: .* images of the same size, got a \(2, 8, 8\), b \(2, 6, 6\) .* Adjust their padding",
    ),
    (
        lambda: MergeSum([Linear(3, init, name="a"), Linear(4, init, name="b")], name="plus").configure(5),
        "plus: .* the same shape, got a 3, b 4 .* Linear changes the shape",
    ),
    (
        lambda: network(Linear(3, init, name="a")).configure(5).set_seq_len(3),
        r"a: expected inputs with time steps, \(F, T\), .* got 5",
    ),
    (
        lambda: evaluate_cost(SumSquared(), None, 2),
        r"SumSquared: expected targets with a row for each of the 3 outputs of the network, fc, got a tensor \(2, 4\)",
    ),
    (
        lambda: evaluate_cost(CrossEntropyMulti(), Softmax(), 1),
        r"loss, at fc_Softmax 3: .* with be.onehot\(labels, axis=0, nclass=F\)",
    ),
]


@pytest.mark.parametrize(("act", "words"), MISTAKES, ids=[str(i) for i in range(len(MISTAKES))])
def test_an_error_names_the_layer_and_the_way_out(act, words):
    gen_backend("cpu", batch_size=4)
    with pytest.raises(ValueError, match=words):
        act()


class WithoutShape(Layer):
    def formula(self, x):
        return x * 2


def layer(**options: Any) -> Any:
    return Linear(2, init, **options)


def configured() -> Any:
    return network(layer()).configure(3)


ARGUMENTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "Sequential": (
        lambda: Sequential(layer(), layer()),
        TypeError,
        r"Sequential: expected a list of layers, got .*Linear.*Pass one list of layers: Sequential\(\[a, b\]\)",
    ),
    "Sequential-lists": (lambda: Sequential(Affine(2, init), Affine(2, init)), TypeError, "expected a list of layers"),
    "Sequential-string": (lambda: Sequential("relu"), TypeError, "Sequential: expected a list of layers, got 'relu'"),
    "Sequential-class": (lambda: Sequential([Linear]), TypeError, "Sequential: expected layers and lists of layers"),
    "MergeSum": (lambda: MergeSum(layer(), layer()), TypeError, r"MergeSum: .* MergeSum\(\[a, b\]\)"),
    "MergeSum-one": (lambda: MergeSum(layer()), TypeError, r"MergeSum: expected a list of layers, got Linear"),
    "Tree-one": (lambda: Tree(layer()), TypeError, "Tree: expected a list of layers, got Linear"),
    "MergeBroadcast-one": (lambda: MergeBroadcast(layer(), "stack"), TypeError, "MergeBroadcast: expected a list of"),
    "Model": (lambda: Model(layer(), layer()), TypeError, r"model: expected a list of layers, .* Model\(\[a, b\]\)"),
    "Model-lists": (lambda: Model(Affine(2, init), Affine(2, init)), TypeError, r"Model\(\[a, b\]\)"),
    "name": (lambda: Activation(Rectlin(), 3), TypeError, "Activation: expected a string for name, got 3"),
    "LayerNorm": (lambda: LayerNorm(5), ValueError, "expected a finite number >= 0 and < 1 for eps, got 5"),
    "BatchNorm": (lambda: BatchNorm(1), ValueError, "expected a finite number >= 0 and < 1 for rho, got 1"),
    "allocate": (lambda: layer(name="fc").allocate(), RuntimeError, r"fc: expected a configured layer.*configure\("),
    "allocate-net": (lambda: network(layer()).allocate(), RuntimeError, "net: expected a configured layer"),
    "out_shape": (
        lambda: network(WithoutShape(name="own"), layer()).configure(3),
        RuntimeError,
        "own: expected WithoutShape.configure to set out_shape, got None",
    ),
    "activation-number": (
        lambda: Affine(2, init, activation=3, name="fc"),
        TypeError,
        r"fc: expected a transform, such as Rectlin\(\), for activation, got 3",
    ),
    "activation-string": (
        lambda: Affine(2, init, activation="rleu", name="fc"),
        ValueError,
        "fc: expected one of 'elu', .* for activation, got 'rleu'",
    ),
    "activation-ufunc": (lambda: Affine(2, init, activation=np.tanh), TypeError, "Affine: expected a transform"),
    "activation-class": (lambda: Affine(2, init, activation=Rectlin), TypeError, "Affine: expected a transform"),
    "init": (lambda: Linear(3, Gaussian, name="fc"), TypeError, r"fc: expected an initializer such as Gaussian\(\)"),
    "init-table": (lambda: LookupTable(3, 2, Gaussian), TypeError, r"expected an initializer such as Gaussian\(\)"),
    "bias": (lambda: Affine(3, init, bias=Gaussian, name="fc"), TypeError, "fc_bias: expected an initializer"),
    "cost": (lambda: GeneralizedCost(3, name="loss"), TypeError, "loss: expected a cost, .* for costfunc, got 3"),
    "cost-string": (lambda: GeneralizedCost("x", name="loss"), ValueError, "loss: expected one of .* got 'x'"),
    "cost-class": (
        lambda: GeneralizedCost(SumSquared),
        TypeError,
        "expected a cost, such as .* for costfunc, got <class",
    ),
    "summary": (lambda: network(layer()).summary(3, SumSquared()), TypeError, r"net.summary: .* GeneralizedCost\(cost"),
    "summary-optimizer": (lambda: configured().summary(None, None, "sgd"), TypeError, "net.summary: expected an optim"),
    "scale": (lambda: ArrayIterator(np.ones((3, 2)), scale=0), ValueError, "expected a factor other than 0 for scale"),
    "epoch_freq": (lambda: SerializeModelCallback("x.prm", 0), ValueError, "expected an epoch_freq of at least 1"),
}


@pytest.mark.parametrize(("call", "error", "words"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_an_invalid_argument_is_rejected_with_the_way_out(call, error, words):
    gen_backend("cpu", batch_size=4)
    with pytest.raises(error, match=words):
        call()


def test_predict_rejects_rows_with_nan():
    gen_backend("cpu", batch_size=4)
    model = Model([layer()], dataset=2)
    assert model.predict(np.ones((3, 2))).shape == (3, 2)
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="predict: expected finite values, got NaN or infinity in row 1"):
            model.predict([[1.0, 2.0], [1.0, wrong]])


def test_a_sequential_of_one_container_contains_it():
    gen_backend("cpu", batch_size=4)
    merged = MergeSum([layer(), layer()])
    assert Sequential(merged).layers == [merged]


@pytest.mark.parametrize("op", ["max", "avg", "l2"])
def test_the_flops_of_pooling_are_the_same_on_every_runtime(op):
    flops = set()
    for runtime in ("cpu", "strict"):
        gen_backend(runtime, batch_size=4)
        row = network(image(1, "cv"), Pooling(3, op, strides=2)).summary((3, 9, 9)).rows[-1]
        flops.add(row.flops)
    assert len(flops) == 1
    if op != "l2":  # fprop and bprop, of 4 images of 2 channels: the pixels, and the elements of the error
        assert flops == {4 * 2 * 9 * 9 + 4 * 2 * 4 * 4}


def test_prev_layer_false_clears_needs_deltas():
    first = layer()
    for value, expected in ((True, True), (False, False), (layer(), True), (None, False)):
        first.prev_layer = value
        assert first.needs_deltas is expected


def test_a_call_leaves_the_recurrent_state_unchanged_and_starts_at_zero():
    be = gen_backend("cpu", batch_size=2)
    model = Model([LSTM(3, init, activation=Tanh(), gate_activation=Logistic(), reset_cells=False)], dataset=(2, 4))
    x = be.array(np.ones((2, 4 * 2)))
    model.fprop(x)
    before, expected = model.layers.leaves()[0].get_state(), model.predict(np.ones((2, 2, 4)))
    for call in (model, model.layers, model):
        assert np.allclose(call(x).get().reshape(3, 4, 2).transpose(2, 0, 1), expected)
    after = model.layers.leaves()[0].get_state()
    assert before
    assert all(np.array_equal(before[name], after[name]) for name in before)


class Custom(ParameterLayer):
    """A layer that sets what its constructor is given."""

    def __init__(self, *names: str) -> None:
        super().__init__(init="gaussian")
        self.names = names

    def configure(self, in_obj: Any) -> Any:
        super().configure(in_obj)
        for name in self.names:
            setattr(self, name, {"out_shape": 3, "weight_shape": (3, 4)}[name])
        return self

    def formula(self, x: Any) -> Any:
        return self.be.dot(self.W, x)


class WithoutSuper(Layer):
    """A layer that does not run the constructor of its base class."""

    def __init__(self, width: int) -> None:
        self.width = width


class OneArgument(Layer):
    """A layer whose fprop lacks an argument."""

    def fprop(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Custom(), RuntimeError, "expected Custom.configure to set out_shape, got None"),
        (
            lambda: Custom("out_shape"),
            RuntimeError,
            r"expected Custom.configure to set weight_shape, got None. Set self",
        ),
        (lambda: WithoutSuper(3), TypeError, r"WithoutSuper: expected __init__ to call super\(\).__init__\(\), got no"),
        (lambda: OneArgument(), TypeError, r"fprop: expected fprop\(x, inference=False\), got the parameters \(x\)"),
    ],
)
def test_what_a_custom_layer_lacks_is_named(make, kind, message):
    gen_backend("cpu", batch_size=2)
    with pytest.raises(kind, match=message):
        Model([make()]).fit(np.ones((4, 4)), np.ones((4, 3)), epochs=1, progress_bar=False)


def test_a_custom_layer_that_lacks_nothing_is_trained():
    gen_backend("cpu", batch_size=2)
    model = Model([Custom("out_shape", "weight_shape")])
    model.fit(np.eye(4), np.ones((4, 3)), epochs=1, progress_bar=False)
    assert model.predict(np.eye(4)).shape == (4, 3)
