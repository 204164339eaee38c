"""Products and convolutions of int8 by oneDNN (neonlite/backend/runtimes/onednn/convolution.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neonlite as nl

Array = np.ndarray[Any, Any]
SCALE = 2.0**-5  # for which x / scale is exact


@pytest.fixture
def be() -> Any:
    be = nl.gen_backend("cpu")
    if not be.primitives.computes_quantized((64, 64, 64)):
        pytest.skip("no oneDNN, or a CPU without VNNI")
    return be


def build(be: Any, op: str, x: Any, W: Any, factors: Any, bias: Any, **options: Any) -> Any:
    """Return the op-tree of a row of the table with four operands."""
    return be.build(op, x, be.build("pair", W, be.build("pair", factors, bias)), scale=SCALE, **options)


def operands(x_shape: tuple[int, ...], W_shape: tuple[int, ...], K: int) -> tuple[Array, Array, Array, Array]:
    """Return inputs of which some are clipped, weights of all int8 from -127, factors and biases."""
    rng = np.random.default_rng(0)
    x, W = rng.normal(size=x_shape) * 2, rng.integers(-127, 128, W_shape)
    factors, bias = rng.random((K, 1)) / 100, rng.normal(size=(K, 1))
    return x.astype(np.float32), W.astype(np.int8), factors.astype(np.float32), bias.astype(np.float32)


def rounded(x: Array) -> Array:
    return np.clip(np.rint(x / SCALE), -128, 127).astype(np.int64)


def calls_of(be: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each call of a primitive adds its operands."""
    calls: list[Any] = []
    function = getattr(be.primitives, name)
    monkeypatch.setattr(be.primitives, name, lambda *args, **options: calls.append(args) or function(*args, **options))
    return calls


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 1), (10, 1024, 7), (65, 33, 128), (300, 700, 31)])
def test_a_product_is_the_sum_of_products_of_integers(be, sizes, relu, monkeypatch):
    nout, nin, N = sizes
    x, W, factors, bias = operands((nin, N), (nout, nin), nout)
    calls = calls_of(be, "quantized_dot", monkeypatch)
    z = build(be, "quantized_dot", *(be.array(a, dtype=a.dtype.name) for a in (x, W, factors, bias)), relu=relu).get()
    expected = factors.astype(np.float64) * (W.astype(np.int64) @ rounded(x)) + bias
    np.testing.assert_allclose(z, np.maximum(expected, 0) if relu else expected, rtol=1e-5, atol=1e-4)
    assert len(calls) == 1


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("C", "K", "window", "stride", "pad", "dilation"),
    [(1, 4, 3, 1, 1, 1), (3, 16, 5, 1, 0, 1), (7, 5, 3, 2, 1, 1), (16, 33, 1, 2, 0, 1), (4, 6, 3, 1, 2, 2)],
)
def test_a_convolution_is_the_sum_of_products_of_integers(be, C, K, window, stride, pad, dilation, relu, monkeypatch):
    x, W, factors, bias = operands((C, 11, 9, 6), (C, window, window, K), K)
    calls = calls_of(be, "quantized_conv", monkeypatch)
    tensors = [be.array(a, dtype=a.dtype.name) for a in (x, W, factors, bias)]
    options = {"strides": (stride,) * 2, "padding": ((pad, pad),) * 2, "dilation": (dilation,) * 2, "groups": 1}
    z = build(be, "quantized_conv", *tensors, relu=relu, **options).get()
    images, span = np.pad(rounded(x), ((0, 0), (pad, pad), (pad, pad), (0, 0))), dilation * (window - 1) + 1
    views = np.lib.stride_tricks.sliding_window_view(images, (span, span), axis=(1, 2))
    views = views[:, ::stride, ::stride, :, ::dilation, ::dilation]
    sums = np.einsum("cpqnrs,crsk->kpqn", views, W.astype(np.int64))
    expected = factors.reshape(-1, 1, 1, 1) * sums.astype(np.float64) + bias.reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(z, np.maximum(expected, 0) if relu else expected, rtol=1e-5, atol=1e-4)
    assert len(calls) == 1


def test_the_operand_of_a_product_may_be_a_transpose(be):
    x, W, factors, bias = operands((20, 30), (8, 30), 8)
    tensors = [be.array(a, dtype=a.dtype.name) for a in (W, factors, bias)]
    z = build(be, "quantized_dot", be.array(x).T, *tensors, relu=False).get()
    np.testing.assert_allclose(z, factors * (W.astype(np.int64) @ rounded(x.T)) + bias, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("isa", [0x7, 0x27], ids=["AVX2", "AVX-512 without VNNI"])
def test_a_cpu_without_vnni_does_not_multiply_int8(be, isa, monkeypatch):
    from neonlite.backend.runtimes.onednn.bindings import get_library

    monkeypatch.setattr(get_library().functions, "dnnl_get_effective_cpu_isa", lambda: isa)
    assert not be.primitives.computes_quantized((64, 64, 64))
