"""Inference of a layer or network, by a program or by a copy (neonlite/layers/inference.py)."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from helpers.layer_cases import LAYERS, each_layer
from helpers.networks import by_hand, data

from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Activation, Affine, BatchNorm, Bias, Dropout, Layer, Linear, Recurrent, Sequential
from neonlite.models import Model
from neonlite.transforms import Rectlin

rng = np.random.default_rng(0)


@each_layer
def test_a_call_of_a_layer_is_inference(be, rng, which):
    be.bsz = 2
    layer = by_hand(LAYERS[which][0](), 3)
    x = data(be, rng, 3)
    want = layer.fprop(x, inference=True).get()
    layer.fprop(x)
    error = data(be, rng, layer.out_shape).get()
    deltas = layer.bprop(be.array(error)).get()
    outputs = layer(x)
    layer(data(be, rng, 3))  # does not overwrite them
    np.testing.assert_array_equal(outputs.get(), want)
    np.testing.assert_array_equal(layer.bprop(be.array(error)).get(), deltas)  # of the training fprop


def test_a_call_of_a_layer_that_works_in_place_keeps_its_inputs(be):
    be.bsz = 2
    net = Sequential([Linear(3, Gaussian()), Bias(Constant(1)), Activation(Rectlin())]).configure(3)
    net.allocate()
    x = be.array([[-1.0, 2], [3, -4], [0, 5]])
    assert net.layers[2](x).get().tolist() == [[0, 2], [3, 0], [0, 5]]
    assert net.layers[1](x).get().tolist() == [[0, 3], [4, -3], [1, 6]]
    assert x.get().tolist() == [[-1, 2], [3, -4], [0, 5]]


def test_a_call_configures_a_layer_and_allocates_its_parameters(be):
    for layer in (Linear(1, Gaussian(), name="fc"), Sequential([Linear(1, Gaussian(), name="fc")], name="fc")):
        assert layer(be.ones((3, 2))).shape == (1, 2)
        assert layer.in_shape == 3
        with pytest.raises(
            ValueError, match=r"fc: expected inputs \(3, N\), for the layer shape 3, got a tensor \(4, 2\)"
        ):
            layer(be.ones((4, 2)))


# --- networks --------------------------------------------------------------------------------------------------------


class Factor(Layer):
    """Base of two layers that multiply by a factor, an attribute."""

    def __init__(self, factor: float, name: str | None = None) -> None:
        super().__init__(name)
        self.factor, self.sizes = factor, list[int]()

    def configure(self, in_obj: Any) -> Layer:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self


class Scaled(Factor):
    """Has a formula."""

    def formula(self, x: Any) -> Any:
        return self.factor * x


class ScaledInPython(Factor):
    """Computes its outputs in Python, in its buffer, and notes the batch sizes."""

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        self.sizes.append(self.be.bsz)
        self.outputs[:] = self.factor * inputs
        return self.outputs

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        raise NotImplementedError


def affine(model: Model, name: str, x: Any) -> Any:
    """Return ``W x + b`` of rows, computed by NumPy."""
    weights = model.get_weights()
    return x @ weights[f"{name}.W"].T + weights[f"{name}_bias.W"].T


def network(be: Any, middle: Layer) -> tuple[Model, Any]:
    """Return a model with a layer between two others, and rows with a partial last minibatch."""
    be.bsz = 4
    first = Affine(5, Gaussian(), bias=Gaussian(), activation="relu", name="first")
    model = Model([first, middle, Dropout(0.5), Affine(2, Gaussian(), bias=Gaussian(), name="last")])
    model.initialize(3)
    return model, rng.normal(size=(10, 3)).astype(np.float32)


def outputs_by_numpy(model: Model, factor: float, X: Any) -> Any:
    return affine(model, "last", 0.5 * factor * np.maximum(affine(model, "first", X), 0))  # keep = 0.5 at inference


@pytest.mark.parametrize("kind", [Scaled, ScaledInPython])
def test_predictions_see_new_attributes_and_weights(be, kind):
    layer = kind(3.0)
    model, X = network(be, layer)
    dataset = ArrayIterator(X, np.zeros((10, 2)), make_onehot=False, partial_last=True)
    assert model.layers.is_expression == (kind is Scaled)

    def check(factor: float) -> None:
        expected = outputs_by_numpy(model, factor, X)
        for found in (model.predict(X), model.get_outputs(dataset), model.predict(X, batch_size=10)):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert model.eval(dataset, "mse")[0] == pytest.approx((expected**2).mean(), rel=1e-5)
        assert be.bsz == 4

    check(3.0)
    layer.factor = -2.0
    check(-2.0)
    model.set_weights({name: 2 * w for name, w in model.get_weights().items()})
    check(-2.0)
    model["first"].W[:] = 0.25
    check(-2.0)
    model["first"].W = be.ones((5, 3))
    check(-2.0)
    assert [*dict.fromkeys(layer.sizes)] == ([4, 2, 10] if kind is ScaledInPython else [])


def test_a_program_is_traced_once_for_each_number_of_rows_until_an_attribute_changes(be):
    layer = Scaled(3.0)
    model, X = network(be, layer)
    model.fprop(be.ones((3, 4)), inference=True)
    traced, formula = list[int](), layer.formula
    layer.formula = lambda x: traced.append(x.shape[1]) or formula(x)
    dataset = ArrayIterator(X, np.zeros((10, 2)), make_onehot=False, partial_last=True)
    for _ in range(3):
        model.predict(X)
        model.get_outputs(dataset)
        model.fprop(be.ones((3, 4)), inference=True)  # not by the program, which does not read its buffers
        model.layers["last"].W[:] = 1.0
    assert traced[:2] == [4, 2]
    assert sorted(traced) == [2, 4, 4, 4, 4]  # and three times by fprop
    layer.factor = 1.0
    model.predict(X)
    assert traced[5:] == [4, 2]


@pytest.mark.parametrize("kind", [Scaled, ScaledInPython])
def test_an_evaluation_changes_no_buffer_of_training(be, kind):
    model, X = network(be, kind(3.0))
    dataset = ArrayIterator(X, np.zeros((10, 2)), make_onehot=False, partial_last=True)
    model.initialize(dataset, "mse")
    x = be.array(X[:4].T)
    y = model.fprop(x)
    before, attributes = y.get(), [dict(vars(layer)) for layer in [model.layers, *model.layers.leaves()]]
    for _ in range(2):
        model.predict(X)
        model.eval(dataset, "mse")
        model.eval_cost(dataset)
        model.get_outputs(dataset)
    for layer, old in zip([model.layers, *model.layers.leaves()], attributes, strict=True):
        assert vars(layer).keys() == old.keys()
        assert all(vars(layer)[name] is value for name, value in old.items())
    np.testing.assert_array_equal(y.get(), before)


def duplicates(x: Any) -> list[Any]:
    return [copy.deepcopy(x), pickle.loads(pickle.dumps(x))]


def test_copies_of_a_network_have_separate_programs(be):
    model, X = network(be, BatchNorm())
    expected = model.predict(X)
    for other in duplicates(model):
        np.testing.assert_array_equal(other.predict(X), expected)
        other["last"].W[:] = 0.0
        assert not np.array_equal(other.predict(X), expected)
        np.testing.assert_array_equal(model.predict(X), expected)
    net = Sequential([Linear(2, Gaussian(), name="Linear")]).configure(3)
    net.allocate()
    one = Model(net)
    expected = one.predict(X)
    other = Model(copy.deepcopy(net))
    other["Linear"].W[:] = 0.0
    assert not other.predict(X).any()
    shallow = copy.copy(net)
    shallow.layers = [Linear(2, Constant(0)).configure(3)]
    shallow.layers[0].allocate()
    assert not Model(shallow).predict(X).any()
    np.testing.assert_array_equal(one.predict(X), expected)


# --- recurrent states ------------------------------------------------------------------------------------------------


def recurrence(layer: Any, X: Any, initial: Any) -> Any:
    """Return the states of all steps, (n, K, T), computed by NumPy."""
    W, R, b = (x.get() for x in (layer.W_input, layer.W_recur, layer.b))
    h, states = initial, []
    for t in range(X.shape[2]):
        h = np.tanh(X[:, :, t] @ W.T + h @ R.T + b.T)
        states.append(h)
    return np.stack(states, axis=2)


@pytest.mark.parametrize("has_custom_layer", [False, True])
@pytest.mark.parametrize("resets", [False, True])
def test_an_evaluation_continues_the_states_of_its_last_minibatch_and_a_prediction_starts_from_zeros(
    be, resets, has_custom_layer
):
    be.bsz = 4
    layer = Recurrent(3, Gaussian(), Gaussian(), activation="tanh", reset_cells=resets)
    model = Model([layer, *([ScaledInPython(1.0)] if has_custom_layer else [])])
    X = rng.normal(size=(10, 2, 5)).astype(np.float32)
    dataset = ArrayIterator(X, lshape=(2, 5), partial_last=True)
    model.initialize(dataset)
    first = be.array(X[4:8].transpose(1, 2, 0).reshape(2, 20))
    model.fprop(first, inference=True)
    state = layer.get_state()
    zeros = np.zeros((4, 3))
    a = recurrence(layer, X[:4], zeros)
    b = recurrence(layer, X[4:8], zeros if resets else a[:, :, -1])
    c = recurrence(layer, X[8:], zeros[:2])  # a minibatch of another size starts from zeros
    for _ in range(2):
        np.testing.assert_allclose(model.get_outputs(dataset).transpose(0, 2, 1), [*a, *b, *c], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(model.predict(X), recurrence(layer, X, np.zeros((10, 3))), rtol=1e-4, atol=1e-6)
    after = layer.get_state()
    assert state.keys() == after.keys() == ({*()} if resets else {"h"})
    assert all(np.array_equal(after[name], state[name]) for name in state)


class Centered(Layer):
    """Subtracts a running mean, which ``allocate`` creates, with passes of its class."""

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape = self.in_shape
        return self

    def allocate(self, shared_outputs=None, accumulate_updates=False):
        super().allocate(shared_outputs, accumulate_updates)
        self.mean, self.steps = self.be.zeros((self.in_shape, 1)), 0
        self.buffers = [self.be.iobuf(self.in_shape)]

    def fprop(self, inputs, inference=False, beta=0.0):
        self.set_inputs(inputs, inference)
        if not inference:
            self.mean[:] = self.mean + 0.5 * (self.be.mean(inputs, axis=1) - self.mean)
            self.steps += 1
        self.buffers[0][:] = inputs - self.mean
        self.outputs[:] = self.buffers[0] * (self.steps > 0)
        return self.outputs

    def bprop(self, error, alpha=1.0, beta=0.0):
        return error


@pytest.mark.parametrize("rows", [4, 2])
def test_inference_reads_what_a_custom_allocate_has_created_and_training_has_moved(be, rows):
    be.bsz = 4
    x, y = np.ones((8, 3), np.float32) + np.arange(3), np.zeros((8, 3))
    model = Model([Centered(name="centered")])
    data = ArrayIterator(x, y, make_onehot=False)
    model.fit(data, cost="mse", optimizer="sgd", num_epochs=3)
    mean = model.layers.layers[0].mean.get()
    assert mean.max() > 1
    np.testing.assert_allclose(model.predict(x[:rows]), x[:rows] - mean.T, rtol=1e-6)
    np.testing.assert_allclose(model.get_outputs(data), x - mean.T, rtol=1e-6)
    np.testing.assert_array_equal(model.layers.layers[0].mean.get(), mean)
