"""Reshape and DataTransform layers (neonlite/layers/activation.py)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from helpers.networks import allocate
from helpers.reference import numerical_gradient

from neonlite.initializers import Array as Given, Constant, Gaussian
from neonlite.layers import (
    Activation,
    Bias,
    DataTransform,
    Dropout,
    LayerNorm,
    Linear,
    LookupTable,
    Reshape,
    Sequential,
)
from neonlite.transforms import Logistic, Normalizer, Rectlin, Tanh

Array = np.ndarray[Any, Any]


def test_token_ids_may_be_reshaped_first(be):
    net = allocate(
        be, [Reshape((1, -1)), LookupTable(4, 2, Given(np.arange(8.0).reshape(4, 2)))], (3, 1, 2), 1, first=True
    )
    assert net.out_shape == (2, 6)
    assert np.array_equal(net.fprop(be.array([[0], [1], [2], [3], [3], [0]])).get()[1], [1, 3, 5, 7, 7, 1])
    assert net.bprop(be.ones((2, 6))) is None


# --- Reshape -------------------------------------------------------------------------------------------------------
SHAPES = [  # shape of the inputs, reshape, shape of the outputs
    (6, 6, 6), (6, (6,), 6), (6, 0, 6), (6, -1, 6), (6, (2, 3), (2, 3)), (6, (1, 2, 3), (1, 2, 3)),
    (6, (-1, 1, 2), (3, 1, 2)), ((6,), (0, 1), (6, 1)),
    ((2, 3, 4), 24, 24), ((2, 3, 4), -1, 24), ((2, 3, 4), (0, -1), (2, 12)), ((2, 3, 4), (0, 4, 3), (2, 4, 3)),
    ((2, 3, 4), (-1, 0, 1), (8, 3, 1)), ((2, 3, 4), (6, 2, 2), (6, 2, 2)), ((2, 3, 4), [4, 0, 2], (4, 3, 2)),
    ((2, 3, 4), (0, 0, 0), (2, 3, 4)), ((1, 2, 3, 4), (0, -1, 0, 1), (1, 8, 3, 1)),
    ((5, 3), -1, 15), ((5, 3), (1, 0, 5), (1, 3, 5)), ((5, 3), (3, 5), (3, 5)), ((5, 3), (0, 0), (5, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("in_shape", "reshape", "shape"), SHAPES)
@pytest.mark.parametrize("N", [1, 4])
def test_inputs_take_another_shape_in_the_same_memory(be, rng, in_shape, reshape, shape, N):
    layer = allocate(be, Reshape(reshape), in_shape, N)
    assert layer.out_shape == shape
    inputs = be.iobuf(in_shape)
    values = rng.normal(size=inputs.shape).astype("float32")
    inputs[:] = values
    outputs = layer.fprop(inputs)
    assert outputs.shape == be.iobuf(shape).shape
    assert np.array_equal(outputs.get(), values.reshape(-1).reshape(outputs.shape))
    assert layer.fprop(inputs) is outputs
    assert np.array_equal(layer.formula(inputs).asnumpyarray(), outputs.get()) or layer.formula(inputs) is inputs
    inputs[:] = 7
    assert np.array_equal(outputs.get(), np.full(outputs.shape, 7))
    for _ in range(2):
        error = rng.normal(size=outputs.shape).astype("float32")
        assert np.array_equal(layer.bprop(be.array(error)).get(), error.reshape(inputs.shape))


def test_time_steps_become_rows_of_one_column_and_back(be):
    N, steps = 3, allocate(be, Reshape((1, 0, -1)), (4, 5), 3)
    inputs = be.array(np.arange(4 * 5 * N).reshape(4, 5 * N))
    image = steps.fprop(inputs).get().reshape(1, 4, 5, N)
    for t in range(5):
        for n in range(N):
            assert np.array_equal(image[0, :, t, n], inputs.get()[:, t * N + n])
    again = allocate(be, Reshape((4, 5)), (1, 4, 5), N)
    assert np.array_equal(again.fprop(steps.outputs).get(), inputs.get())


@pytest.mark.parametrize(
    ("shape", "reshape", "message"),
    [
        (6, (2, 2), "r: expected a shape of 6 elements for the inputs (6,), got (2, 2)"),
        ((2, 3, 4), 12, "r: expected a shape of 24 elements for the inputs (2, 3, 4), got (12,)"),
        ((5, 3), (2, -1), "r: expected a shape of 15 elements for the inputs (5, 3), got (2, -1)"),
        ((5, 3), 0, "r: expected a shape of 15 elements for the inputs (5, 3), got (0,)"),
        ((5, 3), (1, 5, 0), "r: expected 0 only for axes of the inputs (5, 3), got (1, 5, 0)"),
    ],
)
def test_shapes_that_do_not_match_are_reported_with_the_layer(be, shape, reshape, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Reshape(reshape, name="r").configure(shape)


@pytest.mark.parametrize("reshape", [(-1, -1), (-2, 3), (), (2.0, 3), "3", None, True, (True, 3)])
def test_invalid_shapes_are_reported_with_the_layer(reshape):
    message = f"r: reshape: expected sizes, 0 to keep a size, and at most one -1, got {reshape!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        Reshape(reshape, name="r")


def test_strided_inputs_are_rejected_because_they_cannot_be_a_view(be):
    layer = allocate(be, Reshape(-1, name="r"), (4, 5), 2)
    parent = be.ones((4, 12), name="wide")
    with pytest.raises(ValueError, match=r"r: tensor wide .*: expected a contiguous tensor, got a strided view"):
        layer.fprop(parent[:, :10])


@pytest.mark.parametrize("then", [lambda: Activation(Tanh()), lambda: Bias(Constant(1)), lambda: Dropout(0.5)])
@pytest.mark.parametrize("reshapes", [[4], [(4, 1), 4]])
def test_data_is_not_overwritten_by_layers_after_a_reshape(be, rng, then, reshapes):
    net = allocate(be, [*(Reshape(shape) for shape in reshapes), then()], 4, 3, first=True)
    x = be.array(rng.normal(size=(4, 3)))
    before = x.get()
    net.fprop(x)
    net.bprop(be.ones((4, 3)))
    assert np.array_equal(x.get(), before)


@pytest.mark.parametrize("before", [Logistic(), None])
@pytest.mark.parametrize("twice", [False, True])
def test_gradients_through_a_reshape_match_numerical_gradients(be64, rng, before, twice):
    """A later activation may overwrite the outputs of a product, but not outputs that are read again."""
    V, U = rng.normal(size=(6, 3)), rng.normal(size=(2, 6))
    middle = [Reshape((2, -1)), Reshape(6)] if twice else [Reshape((6,))]
    layers = [Linear(6, Given(V)), *([Activation(before)] if before else []), *middle, Activation(Tanh())]
    net = allocate(be64, [*layers, Linear(2, Given(U))], 3, 4, first=True)
    x, error = rng.normal(size=(3, 4)), rng.normal(size=(2, 4))

    def E(V: Array) -> float:
        h = V @ x
        h = 1 / (1 + np.exp(-h)) if before else h
        return float(np.sum((U @ np.tanh(h)) * error))

    inputs = be64.array(x)
    for _ in range(2):
        net.fprop(inputs)
        net.bprop(be64.array(error))
    np.testing.assert_allclose(net.layers[0].dW.get(), numerical_gradient(lambda: E(V), V, 1e-5), rtol=1e-6, atol=1e-9)


def test_a_reshape_copies_nothing_inside_a_network(be):
    net = allocate(
        be, [Linear(4, Gaussian()), Reshape((2, 2)), Activation(Rectlin()), Linear(3, Gaussian())], 3, 2, first=True
    )
    net.fprop(be.ones((3, 2)))
    net.bprop(be.ones((3, 4)))
    first, reshape, activation, last = net.layers
    assert first.outputs.allocation is reshape.outputs.allocation is activation.outputs.allocation
    assert reshape.deltas.allocation is activation.deltas.allocation is last.deltas.allocation


def test_channels_of_images_become_features_and_time_steps_in_a_network(be64, rng):
    V = rng.normal(size=(3, 4))
    net = allocate(be64, [Reshape((4, -1)), LayerNorm(), Linear(3, Given(V)), Reshape(-1)], (2, 2, 5), 2, first=True)
    assert net.out_shape == 15
    x = rng.normal(size=(20, 2))
    y = net.fprop(be64.array(x)).get()
    for n in range(2):
        for t in range(5):
            column = x[:, n].reshape(4, 5)[:, t]
            column = (column - column.mean()) / np.sqrt(column.var() + 1e-5)
            np.testing.assert_allclose(y[:, n].reshape(3, 5)[:, t], V @ column, rtol=1e-9)


def test_a_reshape_copies_into_buffers_that_are_shared(be, rng):
    be.bsz = 3
    layer = Reshape((2, 2)).configure(4)
    shared = be.zeros((20, 1))
    layer.needs_deltas = True
    layer.allocate(shared)
    layer.allocate_deltas()
    x, error = be.array(rng.normal(size=(4, 3))), be.array(rng.normal(size=(2, 6)))
    assert layer.fprop(x).root is shared
    assert np.array_equal(shared.get()[:12, 0], x.get().reshape(-1))
    np.testing.assert_allclose(layer.fprop(x, beta=0.5).get(), 1.5 * x.get().reshape(2, 6), rtol=1e-6)
    layer.bprop(error)
    np.testing.assert_allclose(layer.bprop(error, 2.0, 0.5).get(), 2.5 * error.get().reshape(4, 3), rtol=1e-6)


def test_a_reshape_that_is_first_has_no_deltas(be):
    layer = allocate(be, Reshape(-1), (2, 2), 3, first=True)
    layer.fprop(be.ones((2, 6)))
    assert layer.bprop(be.ones((4, 3))) is None


# --- DataTransform -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_data_is_transformed_into_a_new_tensor(be, rng, dtype):
    values = rng.integers(0, 255, size=(6, 3)).astype(dtype)
    for transform, expected in (
        (lambda x: x / 255.0 - 0.5, values.astype(float) / 255 - 0.5),
        (Normalizer(divisor=100.0), values.astype(float) / 100),
    ):
        layer = allocate(be, DataTransform(transform), (1, 2, 3), 3, first=True)
        assert layer.out_shape == (1, 2, 3)
        x = be.array(values, dtype=dtype)
        for inference in (False, True):
            y = layer.fprop(x, inference)
            assert y.dtype == np.float32
            np.testing.assert_allclose(y.get(), expected, rtol=1e-5, atol=1e-6)
        assert np.array_equal(x.get(), values)
        assert layer.bprop(be.ones((6, 3))) is None


def test_a_network_may_start_with_a_transform(be, rng):
    net = allocate(
        be, [DataTransform(Normalizer(divisor=2.0)), Linear(2, Constant(1)), Activation(Rectlin())], 3, 4, first=True
    )
    x = rng.uniform(size=(3, 4))
    np.testing.assert_allclose(net.fprop(be.array(x)).get()[0], x.sum(axis=0) / 2, rtol=1e-5)
    assert net.bprop(be.ones((2, 4))) is None
    np.testing.assert_allclose(net.layers[1].dW.get()[0], x.sum(axis=1) / 2, rtol=1e-5)


def test_a_transform_that_is_not_first_is_rejected(be):
    be.bsz = 2
    net = Sequential([Linear(3, Constant(1), name="fc"), DataTransform(Normalizer(divisor=2.0), name="scale")])
    with pytest.raises(ValueError, match="scale: expected to be the first layer, got the previous layer fc"):
        net.configure(3)
    with pytest.raises(TypeError, match="scale: expected a function of the data for transform, got 3"):
        DataTransform(3, name="scale")
    with pytest.raises(ValueError, match=r"scale: expected an input shape F, \(F, T\) or \(C, H, W\)"):
        DataTransform(Normalizer(divisor=2.0), name="scale").configure("abc")


def test_a_description_recreates_the_layer():
    for layer in (LookupTable(5, 3, Gaussian(name="g"), False, 2, "n"), Reshape((0, -1), "n"), Reshape(4, "n")):
        description = layer.get_description()
        given = {"init": Gaussian(name="g")} if isinstance(layer, LookupTable) else {}
        assert type(layer).gen_class(description["config"] | given).get_description() == description
