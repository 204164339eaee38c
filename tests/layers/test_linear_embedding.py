"""LookupTable, compared with NumPy indexing and PyTorch (neonlite/layers/linear.py)."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.networks import allocate
from helpers.reference import numerical_gradient
from helpers.runtimes import lacks

from neonlite import Backend, NervanaObject
from neonlite.initializers import Array as Given, Constant, Gaussian
from neonlite.layers import Activation, Layer, Linear, LookupTable
from neonlite.optimizers import (
    LAMB,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    GradientDescentMomentum,
    Lion,
    Muon,
    NAdam,
    RMSProp,
    ShiftAdaMax,
)
from neonlite.transforms import Tanh

Array = np.ndarray[Any, Any]


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


OPTIMIZERS = [
    GradientDescentMomentum(0.1, 0.9, wdecay=0.1),
    GradientDescentMomentum(0.1, 0.9, wdecay=0.1, nesterov=True),
    GradientDescentMomentum(0.1, 0.0, wdecay=0.1),
    RMSProp(),
    Adagrad(),
    Adadelta(),
    Adam(),
    AdamW(),
    LAMB(),
    Lion(),
    Muon(),
    NAdam(),
    ShiftAdaMax(),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.classnm)
def test_the_row_of_padding_is_zero_and_no_optimizer_changes_it(be, rng, optimizer):
    net = allocate(be, [LookupTable(6, 3, Constant(0.5), pad_idx=2), Linear(2, Gaussian())], 4, 3, first=True)
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
    net = allocate(be64, [table, Linear(2, Gaussian()), Activation(Tanh())], 3, 2, first=True)
    ids, error = rng.integers(0, 4, size=(3, 2)), rng.normal(size=(2, 6))
    V = net.layers[1].W.get()

    def E(W: Array) -> float:
        return float(np.sum(np.tanh(V @ looked_up(W, ids)) * error))

    net.fprop(be64.array(ids))
    assert net.bprop(be64.array(error)) is None
    W = table.W.get()
    expected = numerical_gradient(lambda: E(W), W, 1e-5)
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
