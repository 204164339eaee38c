"""LookupTable and Reshape against loops over tokens, numerical gradients, torch and NumPy."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import lacks

from neonlite import Backend, NervanaObject
from neonlite.initializers import Array as Given
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    Activation,
    Bias,
    DataTransform,
    Dropout,
    Layer,
    LayerNorm,
    Linear,
    LookupTable,
    Reshape,
    Sequential,
)
from neonlite.optimizers import Adadelta, Adagrad, Adam, AdamW, GradientDescentMomentum, RMSProp, ShiftAdaMax
from neonlite.transforms import Logistic, Normalizer, Rectlin, Tanh

Array = np.ndarray[Any, Any]


def allocate(be: Backend, layer: Any, shape: Any, N: int, first: bool = False) -> Any:
    """Return an allocated layer."""
    be.bsz = N
    layer.configure(shape)
    layer.needs_deltas = not first
    layer.allocate()
    layer.allocate_deltas()
    return layer


def network(be: Backend, layers: list[Any], shape: Any, N: int) -> Sequential:
    be.bsz = N
    net = Sequential(layers)
    net.configure(shape)
    net.allocate()
    net.allocate_deltas()
    return net


def numerical_gradient(f: Any, x: Array) -> Array:
    """Return the gradient of a scalar function of an array by central differences."""
    grad = np.empty(x.shape)
    for i in np.ndindex(*x.shape):
        high, low = x.copy(), x.copy()
        high[i] += 1e-5
        low[i] -= 1e-5
        grad[i] = (f(high) - f(low)) / 2e-5
    return grad


# --- LookupTable ---------------------------------------------------------------------------------------------------


def looked_up(W: Array, ids: Array) -> Array:
    """Return a column for each token id; the columns of the first step come first."""
    nin, N = ids.shape
    out = np.empty((W.shape[1], nin * N))
    for t in range(nin):
        for n in range(N):
            out[:, t * N + n] = W[int(ids[t, n])]
    return out


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int16", "float32", "float64", "float16"])
@pytest.mark.parametrize(("shape", "N", "nin"), [(3, 4, 3), (1, 1, 1), ((5,), 3, 5), ((1, 7), 2, 7)])
def test_each_token_id_gives_its_row_as_a_column(be, rng, dtype, shape, N, nin):
    if lacks(be, dtype):
        return
    W = rng.normal(size=(11, 5)).astype("float32")
    layer = allocate(be, LookupTable(11, 5, Given(W)), shape, N)
    assert (layer.out_shape, layer.W.shape) == ((5, nin), (11, 5))
    for inference in (False, True):
        ids = rng.integers(0, 11, size=(nin, N))
        inputs = ids.reshape(1, -1) if shape == (1, 7) else ids
        out = layer.fprop(be.array(inputs, dtype=dtype), inference)
        assert out is layer.outputs
        assert np.array_equal(out.get(), looked_up(W, ids))


def test_token_ids_may_have_any_memory_order(be, rng):
    W = rng.normal(size=(11, 5)).astype("float32")
    layer = allocate(be, LookupTable(11, 5, Given(W)), 3, 4)
    ids = rng.integers(0, 11, size=(3, 4))
    out = layer.fprop(be.array(ids.T, dtype="int32").T)
    assert np.array_equal(out.get(), looked_up(W, ids))
    np.testing.assert_allclose(layer.fprop(be.array(ids), beta=2.0).get(), 3 * looked_up(W, ids), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize("pad_idx", [None, 0, 4])
@pytest.mark.parametrize(("shape", "N"), [(3, 4), (1, 1), ((1, 7), 2)])
def test_the_gradient_of_a_row_is_the_sum_of_the_errors_of_its_token(be, rng, dtype, pad_idx, shape, N):
    layer = allocate(be, LookupTable(5, 3, Gaussian(), pad_idx=pad_idx), shape, N)
    for _ in range(2):  # the second call does not accumulate
        ids = rng.integers(0, 5, size=(layer.nin, N))
        error = rng.normal(size=(3, ids.size))
        layer.fprop(be.array(ids.reshape(1, -1) if isinstance(shape, tuple) else ids, dtype=dtype))
        assert layer.bprop(be.array(error)) is layer.deltas is None
        expected = np.zeros((5, 3))
        for column, word in enumerate(ids.reshape(-1)):
            expected[word] += error[:, column] if word != pad_idx else 0
        np.testing.assert_allclose(layer.dW.get(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("vocabulary", "dim", "n"), [(7, 45, 30_000), (20_000, 3, 5_000), (1, 40, 300), (300, 1, 0)])
def test_errors_of_many_tokens_are_summed_per_token(be64, rng, vocabulary, dim, n):
    often = rng.integers(0, max(vocabulary // 3, 1), n)  # many tokens never occur, and others often
    ids = np.where(rng.random(n) < 0.8, often, rng.integers(0, vocabulary, n))
    error, dW = rng.normal(size=(dim, n)), be64.array(np.full((vocabulary, dim), np.nan))
    expected, rows = np.zeros((vocabulary, dim)), error.T.copy()
    for row, word in zip(rows, ids.tolist(), strict=True):
        expected[word] += row
    be64.compound_bprop_lut(1, be64.array(ids.reshape(1, -1), dtype="int32"), be64.array(error), None, dW, None)
    np.testing.assert_allclose(dW.get(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("pad_idx", [None, 2])
def test_values_and_gradients_are_those_of_torch(be64, rng, pad_idx):
    import torch

    layer = allocate(be64, LookupTable(9, 4, Gaussian(), pad_idx=pad_idx), 5, 3)
    ids, error = rng.integers(0, 9, size=(5, 3)), rng.normal(size=(4, 15))
    W = torch.tensor(layer.W.get(), requires_grad=True)
    y = torch.nn.functional.embedding(torch.tensor(ids), W, padding_idx=pad_idx).reshape(15, 4).T
    y.backward(torch.tensor(error))
    np.testing.assert_allclose(layer.fprop(be64.array(ids)).get(), y.detach(), rtol=1e-12)
    layer.bprop(be64.array(error))
    np.testing.assert_allclose(layer.dW.get(), W.grad, rtol=1e-10, atol=1e-12)


def test_bprop_uses_the_token_ids_of_the_last_fprop(be):
    layer = allocate(be, LookupTable(3, 1, Constant(1)), 1, 2)
    ids = be.array([[0, 2]])
    layer.fprop(ids)
    ids[:] = 1  # the buffer already contains the next minibatch
    layer.bprop(be.ones((1, 2)))
    assert np.array_equal(layer.dW.get()[:, 0], [1, 0, 1])


OPTIMIZERS = [
    GradientDescentMomentum(0.1, 0.9, wdecay=0.1),
    GradientDescentMomentum(0.1, 0.9, wdecay=0.1, nesterov=True),
    GradientDescentMomentum(0.1, 0.0, wdecay=0.1),
    RMSProp(),
    Adagrad(),
    Adadelta(),
    Adam(),
    AdamW(),
    ShiftAdaMax(),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.classnm)
def test_the_row_of_padding_is_zero_and_no_optimizer_changes_it(be, rng, optimizer):
    net = network(be, [LookupTable(6, 3, Constant(0.5), pad_idx=2), Linear(2, Gaussian())], 4, 3)
    layer, before = net.layers[0], net.layers[0].W.get()
    assert np.array_equal(before, np.where(np.arange(6)[:, None] == 2, 0, np.full((6, 3), 0.5)))
    optimizer.be = be
    for _ in range(3):
        net.fprop(be.array(rng.integers(0, 6, size=(4, 3)), dtype="int32"))
        net.bprop(be.array(rng.normal(size=(2, 12))))
        assert not layer.dW.get()[2].any()
        optimizer.optimize(net.layers_to_optimize, 0)
    assert not layer.W.get()[2].any()
    assert (np.abs(layer.W.get() - before).max(axis=1) > 0).sum() == 5


def test_without_update_the_gradient_stays_zero(be, rng):
    layer = allocate(be, LookupTable(6, 3, Gaussian(), update=False), 4, 3)
    layer.fprop(be.array(rng.integers(0, 6, size=(4, 3))))
    assert layer.bprop(be.ones((3, 12))) is None
    assert not layer.dW.get().any()


@pytest.mark.parametrize(("dtype", "word"), [
    ("int32", 6), ("int32", -1), ("int64", -6), ("int64", 2**33), ("uint8", 200), ("int32", -(2**31)),
    ("float32", 6), ("float32", -1), ("float32", 2.5), ("float32", -0.5), ("float32", np.nan), ("float32", np.inf),
])  # fmt: skip
@pytest.mark.parametrize("inference", [False, True])
def test_a_token_id_outside_of_the_table_is_reported_with_the_layer(be, dtype, word, inference):
    layer = allocate(be, LookupTable(6, 3, Gaussian(), name="words"), 2, 3)
    ids = np.zeros((2, 3), dtype=dtype)
    ids[1, 1] = word
    got = re.escape(str(ids[1, 1]))
    with pytest.raises(IndexError, match=f"words: expected token ids from 0 to 5, got {got}$"):
        layer.fprop(be.array(ids, dtype=dtype), inference)


@pytest.mark.parametrize(("dtype", "most"), [("float16", 2048), ("bfloat16", 256)])
def test_dtypes_that_round_token_ids_are_rejected(dtype, most):
    pytest.importorskip("torch")
    be = NervanaObject.be = Backend("torch")
    if dtype not in be.runtime.dtypes:
        pytest.skip("ml_dtypes is not here")
    last = be.array([[float(most)]], dtype=dtype, name="X")
    layer = allocate(be, LookupTable(most + 1, 1, Constant(1), name="few"), 1, 1)
    layer.W[most] = 3.0
    assert layer.fprop(last).get() == 3
    layer = allocate(be, LookupTable(most + 2, 1, Constant(1), name="many"), 1, 1)
    message = (
        rf"many: expected a dtype that represents the token ids 0 to {most + 1}, got X \(1, 1\) of {dtype}, which is "
        rf"exact up to {most}\. Use int32"
    )
    with pytest.raises(TypeError, match=message):
        layer.fprop(last)
    assert layer.fprop(be.array([[most + 1]], dtype="int32")).get() == 1


def test_an_embedding_and_later_layers_train_together(be64, rng):
    table = LookupTable(4, 3, Gaussian(), pad_idx=1)
    net = network(be64, [table, Linear(2, Gaussian()), Activation(Tanh())], 3, 2)
    ids, error = rng.integers(0, 4, size=(3, 2)), rng.normal(size=(2, 6))
    V = net.layers[1].W.get()

    def E(W: Array) -> float:
        return float(np.sum(np.tanh(V @ looked_up(W, ids)) * error))

    net.fprop(be64.array(ids))
    assert net.bprop(be64.array(error)) is None
    expected = numerical_gradient(E, table.W.get())
    expected[1] = 0
    np.testing.assert_allclose(table.dW.get(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("pad_idx", [None, 1])
def test_the_lookup_matches_the_formula(be64, rng, pad_idx):
    layer, formula = (
        allocate(be64, LookupTable(5, 3, Given(np.eye(5, 3) + 2), pad_idx=pad_idx), 4, 2) for _ in range(2)
    )
    ids, error = be64.array(rng.integers(0, 5, size=(4, 2))), be64.array(rng.normal(size=(3, 8)))
    assert np.array_equal(layer.fprop(ids).get(), Layer.fprop(formula, ids).get())
    layer.bprop(error)
    Layer.bprop(formula, error)
    np.testing.assert_allclose(layer.dW.get(), formula.dW.get(), rtol=1e-12, atol=1e-12)
    layer.fprop(ids, inference=True)
    with pytest.raises(RuntimeError, match="bprop: expected a training fprop before it"):
        layer.bprop(error)


def test_token_ids_may_be_reshaped_first(be):
    net = network(be, [Reshape((1, -1)), LookupTable(4, 2, Given(np.arange(8.0).reshape(4, 2)))], (3, 1, 2), 1)
    assert net.out_shape == (2, 6)
    assert np.array_equal(net.fprop(be.array([[0], [1], [2], [3], [3], [0]])).get()[1], [1, 3, 5, 7, 7, 1])
    assert net.bprop(be.ones((2, 6))) is None


def test_token_ids_may_be_rows(be):
    be.bsz, actual = 2, []
    for shape, ids in (((1, 3), [[0, 1, 2, 3, 3, 0]]), ((3, 1), [[0, 1], [2, 3], [3, 0]])):
        layer = LookupTable(4, 2, Given(np.arange(8.0).reshape(4, 2))).configure(shape)
        layer.allocate()
        y = layer.fprop(be.array(ids, dtype="int32")).get()
        layer.bprop(be.array(np.arange(12.0).reshape(2, 6)))
        assert layer.out_shape == (2, 3)
        assert layer.shape_for_seq_len(5) == ((1, 5) if shape[0] == 1 else (5, 1))
        actual.append((y, layer.dW.get()))
    np.testing.assert_array_equal(actual[0][0], actual[1][0])
    np.testing.assert_array_equal(actual[0][1], actual[1][1])


def test_invalid_tables_are_rejected(be):
    for args, more, message in (
        ((0, 3), {}, "lut: expected an integer >= 1 for vocab_size, got 0"),
        ((3, 2.0), {}, "lut: expected an integer >= 1 for embedding_dim, got 2.0"),
        ((3, True), {}, "lut: expected an integer >= 1 for embedding_dim, got True"),
        ((3, 2), {"pad_idx": 3}, "lut: expected an integer from 0 to 2 for pad_idx, got 3"),
        ((3, 2), {"pad_idx": -1}, "lut: expected an integer from 0 to 2 for pad_idx, got -1"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            LookupTable(*args, Gaussian(), name="lut", **more)
    be.bsz = 2
    with pytest.raises(
        ValueError, match=r"lut: expected inputs of nin token ids, or .* one per time step, got \(2, 5\)"
    ):
        LookupTable(3, 2, Gaussian(), name="lut").configure((2, 5))
    assert LookupTable(3, 2, Gaussian()).configure((2, 1, 3)).nin == 6


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
    net = network(be, [*(Reshape(shape) for shape in reshapes), then()], 4, 3)
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
    net = network(be64, [*layers, Linear(2, Given(U))], 3, 4)
    x, error = rng.normal(size=(3, 4)), rng.normal(size=(2, 4))

    def E(V: Array) -> float:
        h = V @ x
        h = 1 / (1 + np.exp(-h)) if before else h
        return float(np.sum((U @ np.tanh(h)) * error))

    inputs = be64.array(x)
    for _ in range(2):
        net.fprop(inputs)
        net.bprop(be64.array(error))
    np.testing.assert_allclose(net.layers[0].dW.get(), numerical_gradient(E, V), rtol=1e-6, atol=1e-9)


def test_a_reshape_copies_nothing_inside_a_network(be):
    net = network(be, [Linear(4, Gaussian()), Reshape((2, 2)), Activation(Rectlin()), Linear(3, Gaussian())], 3, 2)
    net.fprop(be.ones((3, 2)))
    net.bprop(be.ones((3, 4)))
    first, reshape, activation, last = net.layers
    assert first.outputs.allocation is reshape.outputs.allocation is activation.outputs.allocation
    assert reshape.deltas.allocation is activation.deltas.allocation is last.deltas.allocation


def test_channels_of_images_become_features_and_time_steps_in_a_network(be64, rng):
    V = rng.normal(size=(3, 4))
    net = network(be64, [Reshape((4, -1)), LayerNorm(), Linear(3, Given(V)), Reshape(-1)], (2, 2, 5), 2)
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
    net = network(be, [DataTransform(Normalizer(divisor=2.0)), Linear(2, Constant(1)), Activation(Rectlin())], 3, 4)
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
