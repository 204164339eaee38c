"""Products and convolutions of int8 and bfloat16 by oneDNN (neonlite/backend/runtimes/onednn/convolution.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neonlite as nl

Array = np.ndarray[Any, Any]
SCALE = 2.0**-5  # for which x / scale is exact
DTYPES = {"int8": "int8", "bfloat16": "int16"}  # of the weights


@pytest.fixture(params=DTYPES)
def number_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def be(number_format: str) -> Any:
    be = nl.gen_backend("cpu")
    if not be.primitives.computes_quantized(DTYPES[number_format], (64, 64, 64)):
        pytest.skip("no oneDNN, or a CPU without these products")
    return be


def build(be: Any, op: str, x: Any, *operands: Array, **options: Any) -> Any:
    """Return the op-tree of a row of the table with W, bias and, for int8, factors."""
    W, *columns = (be.array(a, dtype=a.dtype.name) for a in operands)
    pair = columns[0] if len(columns) == 1 else be.build("pair", *columns)
    scale = SCALE if len(columns) == 2 else None
    x = be.array(x, dtype="float32") if isinstance(x, np.ndarray) else x
    return be.build(op, x, be.build("pair", W, pair), scale=scale, **options)


def bits_of(x: Array) -> Array:
    """Return float32 rounded to bfloat16, ties to even, as the upper 16 bits, by the two numbers around each x."""
    lower = (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    upper = (lower.view(np.uint32) + 0x10000).view(np.float32)
    gaps = [abs(x.astype(np.float64) - a) for a in (lower, upper)]
    is_odd = lower.view(np.uint32) >> 16 & 1
    nearest = np.where((gaps[0] > gaps[1]) | ((gaps[0] == gaps[1]) & (is_odd == 1)), upper, lower)
    return (nearest.view(np.uint32) >> 16).astype(np.uint16).view(np.int16)


def value_of(bits: Array) -> Array:
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def operands(number_format: str, x_shape: tuple[int, ...], W_shape: tuple[int, ...], K: int) -> list[Array]:
    """Return inputs, of which some are clipped in int8, weights, biases and, for int8, factors."""
    rng = np.random.default_rng(0)
    x, bias = rng.normal(size=x_shape) * 2, rng.normal(size=(K, 1)).astype(np.float32)
    if number_format == "bfloat16":
        return [x.astype(np.float32), bits_of(rng.normal(size=W_shape).astype(np.float32)), bias]
    W, factors = rng.integers(-127, 128, W_shape), rng.random((K, 1)) / 100
    return [x.astype(np.float32), W.astype(np.int8), bias, factors.astype(np.float32)]


def rounded(number_format: str, x: Array, W: Array) -> tuple[Array, Array]:
    """Return the inputs and the weights that are multiplied."""
    if number_format == "bfloat16":
        return value_of(bits_of(x)), value_of(W)
    return np.clip(np.rint(x / SCALE), -128, 127).astype(np.int64), W.astype(np.int64)


def calls_of(be: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each call of a primitive adds its operands."""
    calls: list[Any] = []
    function = getattr(be.primitives, name)
    monkeypatch.setattr(be.primitives, name, lambda *args, **options: calls.append(args) or function(*args, **options))
    return calls


def scaled(sums: Array, bias: Array, factors: Any, relu: bool) -> Array:
    """Return what is computed from sums of products, whose first axis is that of the outputs or channels."""
    columns = [a.astype(np.float64).reshape(-1, *[1] * (sums.ndim - 1)) for a in (*factors, bias)]
    z = (columns[0] * sums if factors else sums) + columns[-1]
    return np.maximum(z, 0) if relu else z


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 5, 1), (10, 1024, 7), (65, 33, 128), (300, 700, 31)])
def test_a_product_is_the_sum_of_products_of_rounded_numbers(be, number_format, sizes, relu, monkeypatch):
    nout, nin, N = sizes
    x, W, bias, *factors = operands(number_format, (nin, N), (nout, nin), nout)
    calls = calls_of(be, "quantized_dot", monkeypatch)
    z = build(be, "quantized_dot", x, W, bias, *factors, relu=relu).get()
    rows, weights = rounded(number_format, x, W)
    np.testing.assert_allclose(z, scaled(weights @ rows, bias, factors, relu), rtol=1e-5, atol=1e-4)
    assert len(calls) == 1


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(
    ("C", "K", "window", "stride", "pad", "dilation"),
    [(1, 4, 3, 1, 1, 1), (3, 16, 5, 1, 0, 1), (7, 5, 3, 2, 1, 1), (16, 33, 1, 2, 0, 1), (4, 6, 3, 1, 2, 2)],
)
def test_a_convolution_is_the_sum_of_products_of_rounded_numbers(
    be, number_format, C, K, window, stride, pad, dilation, relu, monkeypatch
):
    x, W, bias, *factors = operands(number_format, (C, 11, 9, 6), (C, window, window, K), K)
    calls = calls_of(be, "quantized_conv", monkeypatch)
    options = {"strides": (stride,) * 2, "padding": ((pad, pad),) * 2, "dilation": (dilation,) * 2, "groups": 1}
    z = build(be, "quantized_conv", x, W, bias, *factors, relu=relu, **options).get()
    images, filters = rounded(number_format, x, W)
    images, span = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0))), dilation * (window - 1) + 1
    views = np.lib.stride_tricks.sliding_window_view(images, (span, span), axis=(1, 2))
    views = views[:, ::stride, ::stride, :, ::dilation, ::dilation]
    sums = np.einsum("cpqnrs,crsk->kpqn", views, filters)
    np.testing.assert_allclose(z, scaled(sums, bias, factors, relu), rtol=1e-5, atol=1e-4)
    assert len(calls) == 1


def test_the_operand_of_a_product_may_be_a_transpose(be, number_format):
    x, W, bias, *factors = operands(number_format, (20, 30), (8, 30), 8)
    z = build(be, "quantized_dot", be.array(x).T, W, bias, *factors, relu=False).get()
    rows, weights = rounded(number_format, x.T, W)
    np.testing.assert_allclose(z, scaled(weights @ rows, bias, factors, False), rtol=1e-5, atol=1e-4)


OPTIONS = {"strides": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}


def test_images_that_several_convolutions_read_are_rounded_and_copied_once(be, number_format, monkeypatch):
    x, W, *columns = operands(number_format, (4, 6, 6, 8), (4, 3, 3, 4), 4)
    rounds, reorders = (calls_of(be, name, monkeypatch) for name in ("round_to", "reorder"))
    t = be.array(x)
    trees = [build(be, "quantized_conv", t, W, *columns, relu=relu, **OPTIONS) for relu in (True, False)]
    (trees[0] + trees[1]).get()
    assert len(rounds) == 1
    assert [args[1].dtype.name for args in reorders] == [DTYPES[number_format], "float32"]  # the images and the sum


@pytest.mark.parametrize("number_format", ["bfloat16"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("op", ["quantized_dot", "quantized_conv"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_input_of_bfloat16_that_is_not_finite_stays_so(be, op, relu, value):
    is_conv = op == "quantized_conv"
    x, W, bias = operands("bfloat16", (4, 6, 6, 8) if is_conv else (4, 8), (4, 1, 1, 5) if is_conv else (5, 4), 5)
    x[2, ..., 3] = value
    options = OPTIONS | {"padding": ((0, 0), (0, 0))} if is_conv else {}
    z = build(be, op, x, W, bias, relu=relu, **options).get()[..., 3].reshape(5, -1)
    weights = value_of(W)[2].ravel() if is_conv else value_of(W)[:, 2]
    expected = np.maximum(value * weights, 0) if relu else value * weights
    is_finite = np.isfinite(expected)  # -inf is 0 after max(., 0)
    np.testing.assert_array_equal(z[~is_finite], np.broadcast_to(expected[~is_finite, None], z[~is_finite].shape))
    assert (z[is_finite] == 0).all()


@pytest.mark.parametrize("number_format", ["bfloat16"])
def test_every_number_of_16_bits_is_copied_to_nhwc_unchanged(be):
    from neonlite.backend.primitives.geometry import ImageShape

    x = np.arange(1 << 16, dtype=np.uint16).view(np.int16).reshape(4, 128, 128)
    out = np.empty((128, 128, 4), np.int16)
    be.primitives.reorder(ImageShape(4, 128, 128), x, out, False)
    np.testing.assert_array_equal(out, x.transpose(2, 1, 0))


@pytest.mark.parametrize("number_format", ["bfloat16"])
def test_rounding_to_bfloat16_is_to_nearest_even(be):
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -2.5, 1e30, 3.4e38, np.inf, -0.0], np.float32)
    out = np.empty(x.size, np.int16)
    be.primitives.round_to(x, out, scale=None)
    assert value_of(out).tolist() == [1, 1 + 2**-6, 1 + 2**-7, -2.5, *value_of(bits_of(x[4:5])), np.inf, np.inf, 0]


@pytest.mark.parametrize(
    ("number_format", "isa"),
    [("int8", 0x7), ("int8", 0x27), ("bfloat16", 0x67), ("bfloat16", 0xF)],
    ids=["AVX2", "AVX-512 without VNNI", "AVX-512 without BF16", "AVX2 with VNNI"],
)
def test_a_cpu_without_these_instructions_does_not_multiply(be, number_format, isa, monkeypatch):
    from neonlite.backend.runtimes.onednn.bindings import get_library

    monkeypatch.setattr(get_library().functions, "dnnl_get_effective_cpu_isa", lambda: isa)
    assert not be.primitives.computes_quantized(DTYPES[number_format], (64, 64, 64))
