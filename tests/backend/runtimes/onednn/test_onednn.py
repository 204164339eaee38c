"""oneDNN primitives: they equal ``ReferencePrimitives``, run where they should, and fall back to NumPy without oneDNN.

Shapes are drawn from a seeded generator; the expected values are those of ``ReferencePrimitives`` in float64.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers

from neonlite import Backend
from neonlite.backend import thread_pool
from neonlite.backend.onehot import OneHot
from neonlite.backend.planning.layout import ImageShape, layout_of
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.runtimes import load_runtime, native
from neonlite.backend.runtimes import native as openblas_module
from neonlite.backend.runtimes.numpy.pooling import NumPyPrimitives
from neonlite.backend.runtimes.onednn import bindings, convolution, matmul, post_ops
from neonlite.backend.runtimes.onednn.batch_norm import OneDNNBatchNorm
from neonlite.backend.runtimes.onednn.matmul import OneDNNMatmul

Array = np.ndarray[Any, Any]

HERE = bindings.get_library()
needs = pytest.mark.skipif(HERE is None, reason=bindings.version_info())
needs_avx2 = pytest.mark.skipif(
    not ((there := bindings.get_library()) and there.has_precise_exp),
    reason="exp and the logistic function are oneDNN's with AVX2 alone",
)
counts = pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
every_scale = pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (0.5, 2.0)])


@pytest.fixture
def made() -> convolution.OneDNNConvolution:
    """Return the primitives with an empty cache."""
    return convolution.OneDNNConvolution(load_runtime("cpu"))


@pytest.fixture
def plain() -> ReferencePrimitives:
    return ReferencePrimitives(load_runtime("cpu"))


def cached(made: convolution.OneDNNConvolution) -> list[Any]:
    """Return the cached primitives in the order of their creation, with None where oneDNN has no fast one."""
    return bindings.primitives.values()


# --- shapes ----------------------------------------------------------------------------------------------------------


def convolutions(be: Backend, dtype: str, count: int) -> Iterator[Any]:
    """Yield layer objects of convolutions, flat and deep, and of their transposes."""
    rng = np.random.default_rng(1)
    yield be.conv_layer(dtype, 1, 1, 1)
    yield be.conv_layer(dtype, 3, 2, 5, 1, 1, 9, 1, 1, 3, str_w=2, pad_w=1)  # in one direction alone
    yield be.conv_layer(dtype, 2, 16, 32, 1, 9, 9, 1, 3, 3, pad_h=1, pad_w=1)
    yield be.conv_layer(dtype, 8, 32, 16, 1, 6, 5)  # of one pixel
    yield be.conv_layer(dtype, 2, 3, 16, 1, 12, 12, 1, 5, 5, str_h=2, str_w=2, pad_h=2, pad_w=2)
    for k in range(count):
        deep = k % 4 == 0
        axes = "dhw" if deep else "hw"
        one = {
            f"{what}_{a}": int(rng.integers(low, 3)) for a in axes for what, low in (("pad", 0), ("str", 1), ("dil", 1))
        }
        N, C, K = (int(rng.choice(sizes)) for sizes in ((1, 2, 5, 8), (1, 3, 8, 16, 19), (1, 4, 16, 17)))
        window = dict(zip("TRS", [int(n) for n in rng.integers(1, 4, 3)], strict=True)) | ({} if deep else {"T": 1})
        if k % 3:
            size = dict(zip("DHW", [int(n) for n in rng.integers(5, 10, 3)], strict=True)) | ({} if deep else {"D": 1})
            yield be.conv_layer(dtype, N, C, K, **size, **window, **one)
        else:
            size = dict(zip("MPQ", [int(n) for n in rng.integers(5, 8, 3)], strict=True)) | ({} if deep else {"M": 1})
            yield be.deconv_layer(dtype, N, C, K, **size, **window, **one)


def poolings(be: Backend, dtype: str, op: str, count: int) -> Iterator[Any]:
    rng = np.random.default_rng(2)
    yield be.pool_layer(dtype, op, 1, 1)
    yield be.pool_layer(dtype, op, 4, 3, 1, 20, 20, 1, 1, 20, 20)  # argmax up to 399
    yield be.pool_layer(dtype, op, 3, 2, 1, 7, 5, 1, 1, 2, 1, str_h=3, str_w=2)  # cells that no window has
    for k in range(count):
        deep = k % 4 == 0
        N, C = (int(rng.choice(sizes)) for sizes in ((1, 3, 8, 16, 33), (1, 2, 5)))
        size = {"D": int(rng.integers(3, 6)) if deep else 1, "H": int(rng.integers(4, 9)), "W": int(rng.integers(4, 9))}
        window = {a: int(rng.integers(1, 4)) for a in "TRS"} | ({} if deep else {"T": 1})
        steps = {f"str_{a}": int(rng.integers(1, 4)) for a in "dhw"}
        pads = {f"pad_{a}": int(rng.integers(0, n)) for a, n in zip("dhw", window.values(), strict=True)}
        yield be.pool_layer(dtype, op, N, C, **size, **window, **steps, **pads)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def near(got: Array, wanted: Array, case: Any, ulps: int = 64) -> None:
    tolerance = ulps * np.finfo(got.dtype).eps * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance, err_msg=repr(case))


# --- convolution -----------------------------------------------------------------------------------------------------


@needs
@counts
@every_scale
@every_dtype
def test_convolutions_equal_the_reference(
    made: convolution.OneDNNConvolution,
    plain: ReferencePrimitives,
    cpu: Backend,
    dtype: str,
    alpha: float,
    beta: float,
    count: int,
) -> None:
    rng = np.random.default_rng(3)
    for layer in convolutions(cpu, dtype, count):
        i, f, e = (normal(rng, shape, dtype) for shape in (layer.dimI, layer.dimF, layer.dimO))
        for name, a, b, shape in (
            ("conv_fprop", i, f, layer.dimO),
            ("conv_bprop", f, e, layer.dimI),
            ("conv_update", i, e, layer.dimF),
        ):
            got = normal(rng, shape, dtype)
            wanted = got.astype(float)
            if not beta:
                got[...] = np.nan
            kept = a.copy(), b.copy()
            getattr(made, name)(layer, a, b, got, alpha, beta)
            getattr(plain, name)(layer, a.astype(float), b.astype(float), wanted, alpha, beta)
            near(got, wanted, (name, layer, layer.TRS, layer.dilation))
            assert (a == kept[0]).all()
            assert (b == kept[1]).all()
    found = cached(made)
    if dtype == "float64":
        assert found == []  # which oneDNN has not
    else:
        assert len(found) > 2 * count  # all but those of one or two channels
        assert None not in found


@needs
def test_nan_in_an_image_stays_in_its_windows(made: convolution.OneDNNConvolution, cpu: Backend) -> None:
    layer = cpu.conv_layer("float32", 2, 3, 20, 1, 6, 6, 1, 3, 3)
    i, o = np.ones(layer.dimI, np.float32), np.zeros(layer.dimO, np.float32)
    i[1, 0, 0, 0, 1] = np.nan
    made.conv_fprop(layer, i, np.ones(layer.dimF, np.float32), o, 1.0, 0.0)
    wanted = np.full(layer.dimO, 27.0)
    wanted[:, :, 0, 0, 1] = np.nan
    np.testing.assert_array_equal(o, wanted)


# --- pooling ---------------------------------------------------------------------------------------------------------


@needs
@counts
@every_dtype
@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("op", ["max", "avg", "l2"])
def test_pooling_equals_the_reference(
    made: convolution.OneDNNConvolution,
    plain: ReferencePrimitives,
    cpu: Backend,
    op: str,
    beta: float,
    dtype: str,
    count: int,
) -> None:
    rng = np.random.default_rng(4)
    for layer in poolings(cpu, dtype, op, count):
        i, e, o, d = (normal(rng, shape, dtype) for shape in (layer.dimI, layer.dimO, layer.dimO, layer.dimI))
        i = np.round(2 * i) if op == "max" else i  # so that there are equal maxima
        for places in ("int32", "int64") if max(layer.TRS) > 16 else ("uint8", "int32"):
            for kept in (True, False):
                case = layer, op, places, kept
                found = [np.zeros(layer.dimO, places) if kept else None for _ in range(2)]
                got, wanted, back, wanted_back = o.copy(), o.astype(float), d.copy(), d.astype(float)
                made.pool_fprop(layer, i, got, found[0], beta)
                plain.pool_fprop(layer, i.astype(float), wanted, found[1], beta)
                near(got, wanted, case)
                if op == "max" and kept:
                    np.testing.assert_array_equal(*found, err_msg=repr(case))
                made.pool_bprop(layer, i, e, back, found[0], 0.5, beta)
                plain.pool_bprop(layer, i.astype(float), e.astype(float), wanted_back, found[1], 0.5, beta)
                near(back, wanted_back, case)
    asked = cached(made)
    assert (None in asked) == (op == "l2" and dtype == "float32")
    assert len(asked) >= (count if dtype == "float32" else 0)


@needs
def test_windows_over_channels_are_left_to_numpy(
    made: convolution.OneDNNConvolution, plain: ReferencePrimitives, cpu: Backend
) -> None:
    layer = cpu.pool_layer("float32", "max", 4, 6, 1, 4, 4, 3, 1, 2, 2)
    i, (o, wanted) = normal(np.random.default_rng(5), layer.dimI, "float32"), np.zeros((2, *layer.dimO), np.float32)
    made.pool_fprop(layer, i, o, None, 0.0)
    plain.pool_fprop(layer, i, wanted, None, 0.0)
    np.testing.assert_array_equal(o, wanted)
    assert cached(made) == [None]


@needs
@pytest.mark.parametrize("shared", [1, 1 << 30])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_maxima_of_infinity_and_nan_equal_the_reference(
    made: convolution.OneDNNConvolution,
    plain: ReferencePrimitives,
    cpu: Backend,
    monkeypatch: pytest.MonkeyPatch,
    value: float,
    shared: int,
) -> None:
    monkeypatch.setattr(convolution, "MIN_PARALLEL_SUM", shared)
    layer = cpu.pool_layer("float32", "max", 8, 2, 1, 6, 6, 1, 1, 2, 2)
    i = normal(np.random.default_rng(6), layer.dimI, "float32")
    i[:, :, :2, :2] = value
    i[1, 0, 5, 3, 2] = value
    (o, wanted), (at, places) = np.zeros((2, *layer.dimO), np.float32), np.zeros((2, *layer.dimO), np.uint8)
    made.pool_fprop(layer, i, o, at, 0.0)
    plain.pool_fprop(layer, i, wanted, places, 0.0)
    np.testing.assert_array_equal(o, wanted)
    np.testing.assert_array_equal(at, places)


# --- batch normalization ---------------------------------------------------------------------------------------------


@needs
@pytest.mark.parametrize("shared", [1, 1 << 30])
@pytest.mark.parametrize("size", [1, 64, 97, 640])
def test_one_infinite_element_is_found_at_any_index(
    made: convolution.OneDNNConvolution, monkeypatch: pytest.MonkeyPatch, size: int, shared: int
) -> None:
    monkeypatch.setattr(convolution, "MIN_PARALLEL_SUM", shared)
    for n, value in itertools.product((0, size // 2, size - 1), (np.nan, np.inf, -np.inf)):
        numbers = np.ones(size, np.float32)
        assert made._is_finite(numbers)
        numbers[n] = value
        assert not made._is_finite(numbers)


@needs
@counts
def test_nhwc_images_are_normalized_by_the_formula(count: int) -> None:
    rng, norms = np.random.default_rng(count), OneDNNBatchNorm(load_runtime("cpu"))
    for _ in range(count):
        form = ImageShape(*(int(n) for n in rng.integers(1, (70, 50, 12))))
        eps = float(rng.choice([1e-5, 1e-3, 0.1]))
        n, shape = form.pixels * form.batch_size, (form.pixels * form.batch_size, form.channels)
        x, e = (rng.normal(rng.normal(), 3, shape).astype(np.float32) for _ in "xe")
        gamma, beta, given, by_gamma, by_beta, mean = rng.normal(size=(6, form.channels)).astype(np.float32)
        var, y = np.empty_like(mean), np.empty_like(x)
        assert norms.can_normalize(form, eps)
        norms.batch_norm_fprop(form, x, [gamma, beta, mean, var], y, eps, inference=False)
        wide, error = x.astype(float), e.astype(float)
        inv = 1 / np.sqrt(wide.var(axis=0) + eps)
        hat = (wide - wide.mean(axis=0)) * inv
        near = {"rtol": 1e-4, "atol": 1e-4 * inv.max()}
        np.testing.assert_allclose(mean, wide.mean(axis=0), **near)
        np.testing.assert_allclose(var, wide.var(axis=0), **near)
        np.testing.assert_allclose(y, gamma * hat + beta, **near)
        norms.batch_norm_bprop(form, x, e, [mean, var, gamma, by_gamma, by_beta], e, eps)  # in place
        np.testing.assert_allclose(by_gamma, (hat * error).sum(axis=0), rtol=1e-4, atol=1e-5 * n * inv.max())
        np.testing.assert_allclose(by_beta, error.sum(axis=0), rtol=1e-4, atol=1e-5 * n)
        wanted = (error - (hat * (hat * error).mean(axis=0) + error.mean(axis=0))) * gamma * inv
        np.testing.assert_allclose(e, wanted, rtol=1e-3, atol=1e-4 * max(1, inv.max() ** 2))
        norms.batch_norm_fprop(form, x, [gamma, beta, given, var], y, eps, inference=True)
        np.testing.assert_allclose(y, gamma * (wide - given) / np.sqrt(var.astype(float) + eps) + beta, **near)


@needs
@counts
def test_chwn_features_are_normalized_by_the_formula(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    rng, norms = np.random.default_rng(count), OneDNNBatchNorm(load_runtime("cpu"))
    for _ in range(count):
        monkeypatch.setattr(
            "neonlite.backend.runtimes.onednn.batch_norm.ROW_BLOCK_SIZE", int(rng.choice([1, 5000, 1 << 19]))
        )
        shape = tuple(int(n) for n in rng.integers((1, 2), (50, 3000)))
        eps, offset, rho = float(rng.choice([1e-5, 1e-3, 0.1])), rng.normal(0, 30), float(rng.random())
        x, e = (rng.normal(size, 3, shape).astype(np.float32) for size in (offset, 1))
        gamma, beta, gmean, gvar = rng.normal(size=(4, shape[0], 1)).astype(np.float32)
        (mean, var, by_gamma, by_beta), y = np.full((4, shape[0], 1), np.nan, np.float32), np.full_like(x, np.nan)
        on_the_run = gmean.astype(float), gvar.astype(float)
        assert norms.row_norm_fprop(x, [mean, var, gmean, gvar, gamma, beta], y, eps, rho)
        wide, error, over = x.astype(float), e.astype(float), {"axis": 1, "keepdims": True}
        ulps = 16 * np.finfo("float32").eps * np.abs(wide).max()
        np.testing.assert_allclose(mean, wide.mean(**over), rtol=0, atol=ulps)
        np.testing.assert_allclose(var, wide.var(**over), rtol=1e-5, atol=ulps**2)
        np.testing.assert_allclose(gmean, rho * on_the_run[0] + (1 - rho) * mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(gvar, rho * on_the_run[1] + (1 - rho) * var, rtol=1e-5, atol=1e-6)
        inv = 1 / np.sqrt(wide.var(**over) + eps)
        hat, near = (wide - wide.mean(**over)) * inv, ulps * inv.max()
        np.testing.assert_allclose(y, gamma * hat + beta, rtol=1e-5, atol=near * np.abs(gamma).max() + 1e-6)
        d = e if rng.random() < 0.5 else np.full_like(e, np.nan)
        assert norms.row_norm_bprop(x, e, [by_gamma, by_beta, mean, var, gamma], d, eps)
        absolute = np.abs(error).sum(**over)
        assert (np.abs(by_beta - error.sum(**over)) <= 1e-5 * absolute).all()
        assert (np.abs(by_gamma - (hat * error).sum(**over)) <= (1e-5 * np.abs(hat).max() + near) * absolute).all()
        wanted = (error - (hat * (hat * error).mean(**over) + error.mean(**over))) * gamma * inv
        scale = np.abs(error).max() * np.abs(gamma).max() * inv.max()
        np.testing.assert_allclose(d, wanted, rtol=1e-4, atol=(1e-5 + near) * (1 + np.abs(hat).max() ** 2) * scale)


@needs
def test_rows_of_one_number_are_left_to_op_trees(cpu: Backend) -> None:
    x, e, d, y = (cpu.array(np.arange(5.0) - n).reshape(5, 1) for n in range(4))
    columns = [cpu.ones((5, 1)) for _ in range(6)]
    cpu.compound_fprop_bn(x, *columns, y, 1e-3, 0.9)
    np.testing.assert_allclose(y.get(), 1)
    cpu.compound_bprop_bn(d, *columns[:2], e, x, *columns[2:5], 1e-3)
    np.testing.assert_allclose(columns[1].get(), e.get())


@needs
@pytest.mark.parametrize("shared", ["y", "xsum", "gamma", "gvar", None])
def test_a_batch_is_normalized_by_one_dnn_unless_tensors_share_memory(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, shared: str | None
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        cpu.primitives, "row_norm_fprop", lambda *args: asked.append(args)
    )  # returns None: not supported
    x = cpu.array(np.random.default_rng(0).normal(size=(3, 8)))
    columns = {name: cpu.ones((3, 1)) for name in ("xsum", "xvar", "gmean", "gvar", "gamma", "beta")}
    y = x if shared == "y" else cpu.empty((3, 8))
    if shared == "xsum":
        columns["xsum"] = y.reshape(-1, 1)[:3]
    elif shared == "gamma":
        columns["gamma"] = columns["xvar"]
    elif shared == "gvar":
        columns["gvar"] = columns["beta"]
    before = x.get().astype(float)
    cpu.compound_fprop_bn(x, *columns.values(), y, 1e-3, 0.9)
    assert bool(asked) == (shared is None)
    hat = (before - before.mean(axis=1, keepdims=True)) / np.sqrt(before.var(axis=1, keepdims=True) + 1e-3)
    if shared in (None, "y"):
        np.testing.assert_allclose(y.get(), hat + 1, rtol=1e-5, atol=1e-5)


@needs
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("locked", range(5))
def test_a_batch_is_not_normalized_into_what_is_read_only(cpu: Backend, locked: int, apart: bool) -> None:
    before = np.arange(24, dtype=np.float32).reshape(3, 8) + 1
    arrays = [before.copy(), *(before[:, :1].copy() for _ in range(4))]
    arrays[locked].flags.writeable = False
    y, first, second, third, fourth = map(cpu.from_dlpack, arrays)
    x, error, gamma, beta = cpu.array(before), cpu.array(before), cpu.ones((3, 1)), cpu.ones((3, 1))
    if apart:
        as_they_are = cpu.conv_layer("float32", 8, 3, 3)
        x = cpu.fprop_conv(as_they_are, x, cpu.array(np.eye(3)), cpu.empty(x.shape))
        y = y if locked == 0 else cpu.empty(x.shape)  # the first one is exported, so it has no layout cache
        assert layout_of(x) == "NHWC"
    with pytest.raises(ValueError, match="read-only"):
        cpu.compound_fprop_bn(x, first, second, third, fourth, gamma, beta, y, 1e-3, 0.9)
    if locked < 3:
        with pytest.raises(ValueError, match="read-only"):
            cpu.compound_bprop_bn(y, first, second, error, x, beta, beta, gamma, 1e-3)
    np.testing.assert_array_equal(arrays[locked], before[:, : arrays[locked].shape[1]])


@needs
@pytest.mark.parametrize("shared", ["x", "grad_gamma", "some", "delta_in", None])
def test_errors_of_a_batch_are_those_of_one_dnn_unless_tensors_share_memory_but_in_place(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, shared: str | None
) -> None:
    asked: list[Any] = []
    plain = cpu.primitives.row_norm_bprop
    monkeypatch.setattr(cpu.primitives, "row_norm_bprop", lambda *args: asked.append(args) or plain(*args))
    rng = np.random.default_rng(0)
    x, buffer = cpu.array(rng.normal(size=(3, 8))), cpu.array(rng.normal(size=(4, 8)))
    error = buffer[:3]
    mean, var, gamma, by_gamma, by_beta = (cpu.array(rng.random((3, 1))) for _ in range(5))
    out = {"x": x, "some": buffer[1:], "delta_in": error}.get(str(shared), cpu.empty((3, 8)))
    by_gamma = gamma if shared == "grad_gamma" else by_gamma
    hat = (x.get() - mean.get()) / np.sqrt(var.get() + 1e-3)
    e, factor = error.get(), gamma.get() / np.sqrt(var.get() + 1e-3)
    sums = [np.sum(values, axis=1, keepdims=True) for values in (hat * e, e)]
    cpu.compound_bprop_bn(out, by_gamma, by_beta, error, x, mean, var, gamma, 1e-3)
    assert bool(asked) == (shared in (None, "delta_in"))
    np.testing.assert_allclose(by_gamma.get(), sums[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_beta.get(), sums[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out.get(), (e - (hat * sums[0] + sums[1]) / 8) * factor, rtol=1e-4, atol=1e-5)


# --- products --------------------------------------------------------------------------------------------------------


@pytest.fixture
def sgemm_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give products of all sizes to oneDNN; return the list to which each call of dnnl_sgemm appends 1."""
    calls: list[int] = []
    run = OneDNNMatmul._run_sgemm
    monkeypatch.setattr(matmul, "MIN_WORK", 0)
    monkeypatch.setattr(matmul, "min_gemm_work", lambda: 0)
    monkeypatch.setattr(OneDNNMatmul, "_run_sgemm", lambda *args: calls.append(1) or run(*args))
    return calls


LAID = ("rows", "columns", "wide rows", "wide columns", "every other")


def laid(array: Array, way: str) -> Array:
    """Return an array of the same values with other strides."""
    if "columns" in way:
        return laid(array.swapaxes(-1, -2), way.replace("columns", "rows")).swapaxes(-1, -2)
    if way == "rows":
        return array.copy(order="C")
    step = 2 if way == "every other" else 1
    buffer = np.full((*array.shape[:-1], 2 * array.shape[-1] + 3), np.nan, array.dtype)
    part = buffer[..., 1 : 1 + step * array.shape[-1] : step]
    part[...] = array
    return part


@needs
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (-2.0, 0.25)])
@pytest.mark.parametrize("sizes", [(65, 70, 66), (1, 60, 70), (70, 1, 60), (30, 90, 1), (3, 5, 7)])
def test_products_are_those_of_64_bits(
    cpu: Backend, sgemm_calls: list[int], sizes: Any, alpha: float, beta: float
) -> None:
    rng = np.random.default_rng(0)
    m, k, n = sizes
    products = OneDNNMatmul(cpu.runtime)
    for ways in itertools.product(LAID, LAID, LAID):
        plain = [rng.normal(size=shape).astype("float32") for shape in ((m, k), (k, n), (m, n))]
        a, b, c = (laid(array, way) for array, way in zip(plain, ways, strict=True))
        if beta == 0:
            c[...] = np.nan  # which is not read
        products.gemm(a, b, c, alpha, beta)
        a64, b64, c64 = (x.astype("float64") for x in plain)
        wanted = alpha * (a64 @ b64) + (beta * c64 if beta else 0)
        np.testing.assert_allclose(c, wanted, rtol=1e-5, atol=1e-5 * np.sqrt(k) * abs(alpha), err_msg=str(ways))
    assert len(sgemm_calls) >= 4**3 if min(m, n) > 1 else not sgemm_calls  # of 125; strided rows go to NumPy


@needs
@counts
@every_dtype
def test_products_of_random_sizes_equal_the_reference(
    plain: ReferencePrimitives, cpu: Backend, sgemm_calls: list[int], dtype: str, count: int
) -> None:
    rng = np.random.default_rng(count)
    products = OneDNNMatmul(cpu.runtime)
    for _ in range(count):
        m, k, n = (int(x) for x in rng.integers(1, 200, 3))
        in_a, in_b = (((3,) if rng.random() < 0.2 else ()) for _ in "ab")  # one or both may be a stack
        shapes = [(*in_a, m, k), (*in_b, k, n), (*(in_a or in_b), m, n)]
        a, b, c = (laid(rng.normal(size=shape).astype(dtype), str(rng.choice(LAID))) for shape in shapes)
        alpha, beta = ((1.0, 0.0), (1.0, 1.0), (-0.5, 0.25))[rng.integers(3)]
        wanted = c.copy()
        plain.gemm(a, b, wanted, alpha, beta)
        products.gemm(a, b, c, alpha, beta)
        near = (1e-6 if dtype == "float32" else 1e-14) * k
        np.testing.assert_allclose(c, wanted, rtol=near, atol=near, err_msg=f"{shapes} {alpha} {beta}")
    assert bool(sgemm_calls) == (dtype == "float32")


@needs
def test_stacks_are_multiplied_one_matrix_after_another(cpu: Backend, sgemm_calls: list[int]) -> None:
    rng = np.random.default_rng(1)
    products = OneDNNMatmul(cpu.runtime)
    a, b = rng.normal(size=(3, 70, 80)).astype("float32"), rng.normal(size=(3, 80, 90)).astype("float32")
    c, total = np.empty((3, 70, 90), "float32"), np.empty((70, 90), "float32")
    products.gemm(a, b, c)
    np.testing.assert_allclose(c, a.astype("float64") @ b, rtol=1e-4, atol=1e-4)
    products.gemm(a[0], b, c)
    np.testing.assert_allclose(c, a[0].astype("float64") @ b, rtol=1e-4, atol=1e-4)
    products.batch_reduce_gemm(a, b, total)
    np.testing.assert_allclose(total, (a.astype("float64") @ b).sum(axis=0), rtol=1e-4, atol=1e-4)


def woven(array: Array) -> Array:
    """Return a stack of the same values, in which the elements with the same index in all matrices are contiguous."""
    return np.moveaxis(np.moveaxis(array, 0, -1).copy(), -1, 0)


@needs
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", [(32, 64, 32, 64), (64, 2, 33, 70), (500, 3, 5, 40), (5, 70, 64, 70)])
def test_stacks_of_any_strides_are_multiplied_in_one_call(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, sizes: Any, threads: int
) -> None:
    X, m, k, n = sizes
    rng, products, at_once = np.random.default_rng(0), OneDNNMatmul(cpu.runtime), []
    run = OneDNNMatmul._execute_batched
    monkeypatch.setattr(OneDNNMatmul, "_execute_batched", lambda *args: at_once.append(1) or run(*args))
    monkeypatch.setattr(thread_pool, "_num_threads", threads)
    for ways in itertools.product([*LAID[:4], "woven"], repeat=3):
        plain = [rng.normal(size=shape).astype("float32") for shape in ((X, m, k), (X, k, n), (X, m, n))]
        a, b, c = (woven(x) if way == "woven" else laid(x, way) for x, way in zip(plain, ways, strict=True))
        a[-1, 0, 0] = np.nan
        c[...] = np.nan  # which is not read
        products.gemm(a, b, c)
        wanted = plain[0].astype("float64") @ plain[1].astype("float64")
        np.testing.assert_allclose(c[:, 1:], wanted[:, 1:], rtol=1e-5, atol=1e-5 * np.sqrt(k), err_msg=str(ways))
        np.testing.assert_allclose(c[:-1, 0], wanted[:-1, 0], rtol=1e-5, atol=1e-5 * np.sqrt(k), err_msg=str(ways))
        assert np.isnan(c[-1, 0]).all()
    assert len(at_once) > 60  # of 125


@needs
def test_a_stack_of_one_is_multiplied_with_each_of_the_other(cpu: Backend) -> None:
    a, b = np.random.default_rng(4).normal(size=(2, 8, 64, 64)).astype("float32")
    c = np.empty((8, 64, 64), "float32")
    for first, second in ((a[:1], b), (a, b[:1]), (np.broadcast_to(a[:1], a.shape), b), (a[::-1], b)):
        OneDNNMatmul(cpu.runtime).gemm(first, second, c)
        np.testing.assert_allclose(c, first.astype("float64") @ second, rtol=1e-4, atol=1e-4)


@needs
def test_a_stack_may_be_written_over_its_operands(cpu: Backend) -> None:
    for shift in (0, 64, 64 * 64):
        buffer = np.random.default_rng(2).normal(size=9 * 64 * 64).astype("float32")
        other = np.random.default_rng(3).normal(size=(8, 64, 64)).astype("float32")
        x, c = (buffer[start : start + 8 * 64 * 64].reshape(8, 64, 64) for start in (0, shift))
        wanted = x.astype("float64") @ other
        OneDNNMatmul(cpu.runtime).gemm(x, other, c)
        np.testing.assert_allclose(c, wanted, rtol=1e-4, atol=1e-4)


@needs
def test_stacks_that_do_not_fit_are_refused(cpu: Backend) -> None:
    a, b, c = np.ones((8, 64, 64), "float32"), np.ones((7, 64, 64), "float32"), np.ones((8, 64, 64), "float32")
    with pytest.raises(ValueError, match="broadcast"):
        OneDNNMatmul(cpu.runtime).gemm(a, b, c)


@needs
@pytest.mark.parametrize("shift", [0, 1, 40 * 100, 41 * 100])
def test_a_product_may_be_written_over_its_operands(cpu: Backend, shift: int) -> None:
    products = OneDNNMatmul(cpu.runtime)
    for first in (True, False):
        buffer = np.random.default_rng(2).normal(size=20_000).astype("float32")
        other = np.random.default_rng(3).normal(size=(100, 100)).astype("float32")
        x, c = buffer[:10_000].reshape(100, 100), buffer[shift : shift + 10_000].reshape(100, 100)
        a, b = (x, other) if first else (other, x)
        wanted = a.astype("float64") @ b
        products.gemm(a, b, c)
        np.testing.assert_allclose(c, wanted, rtol=1e-4, atol=1e-4)


@needs
def test_a_product_is_not_written_into_a_read_only_array(cpu: Backend) -> None:
    x, closed = np.ones((100, 100), "float32"), np.zeros((100, 100), "float32")
    closed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        OneDNNMatmul(cpu.runtime).gemm(x, x, closed)
    assert not closed.any()
    letters = OneHot(100, cpu.zeros((1, 100), dtype="int32"), "letters").update()
    with pytest.raises(ValueError, match="read-only"):
        cpu.compound_dot(cpu.ones((100, 100)), cpu.ones((100, 100)), letters)
    assert letters.get().sum() == 100


@needs
def test_a_nan_times_zero_stays_one(cpu: Backend) -> None:
    x, c = np.full((100, 100), np.nan, "float32"), np.zeros((100, 100), "float32")
    OneDNNMatmul(cpu.runtime).gemm(x, x, c, 0.0)
    assert np.isnan(c).all()


@needs
def test_unaligned_matrices_are_multiplied_too(cpu: Backend) -> None:
    raw = np.zeros(40_001, np.uint8)[1:].view("float32").reshape(100, 100)
    raw[...] = np.random.default_rng(4).normal(size=(100, 100))
    c = np.empty((100, 100), "float32")
    OneDNNMatmul(cpu.runtime).gemm(raw, raw, c)
    np.testing.assert_allclose(c, raw.astype("float64") @ raw, rtol=1e-4, atol=1e-4)


@needs
@pytest.mark.parametrize("runtime", ["cpu", "mkl"])
def test_large_products_of_float32_are_one_dnn_s_and_others_are_not(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runtime == "mkl" and find_spec("mkl") is None:
        pytest.skip("mkl is not installed")
    be = Backend(runtime)
    taken: list[Any] = []
    monkeypatch.setattr(native, "get_num_threads", lambda: 2)
    monkeypatch.setattr(OneDNNMatmul, "_run_sgemm", lambda self, library, form, a, *more: taken.append(a.shape))
    for dtype, size in (("float32", 102), ("float32", 101), ("float64", 102)):
        x = be.ones((size, size), dtype=dtype)
        be.compound_dot(x, x, be.empty((size, size), dtype=dtype))
    be.compound_dot(be.ones((1000, 1000)), be.ones((1000, 1)), be.empty((1000, 1)))  # a vector
    assert taken == [(102, 102)]


@pytest.mark.parametrize(("threads", "size"), [(1, 162), (2, 102)])
def test_with_one_thread_numpy_computes_larger_products(
    monkeypatch: pytest.MonkeyPatch, threads: int, size: int
) -> None:
    monkeypatch.setattr(native, "get_num_threads", lambda: threads)
    assert (size - 1) ** 3 <= native.min_gemm_work() < size**3


@needs
def test_an_interrupt_while_addresses_are_set_does_not_corrupt_memory() -> None:
    assert HERE is not None
    numbers, turned = (HERE.memory_desc((20, 30), strides) for strides in ((30, 1), (1, 20)))
    copy = HERE.create_reorder(numbers, turned)
    x, y, others = np.ones((20, 30), "float32"), np.zeros((30, 20), "float32"), np.zeros((30, 20), "float32")
    copy(x.ctypes.data, y.ctypes.data)
    set_address = copy.library.set_address

    def interrupted(*args: Any) -> None:
        set_address(*args)
        raise InterruptedError  # as Ctrl-C does when a function of C returns

    copy.library = SimpleNamespace(set_address=interrupted, execute=HERE.execute)  # type: ignore[assignment]
    with pytest.raises(InterruptedError):
        copy(x.ctypes.data, others.ctypes.data)
    copy.library = HERE
    x += 1
    copy(x.ctypes.data, y.ctypes.data)
    assert (y == 2).all()
    assert (others == 0).all()


SIGNALS = """
import signal
import numpy as np
from neonlite import Backend
from neonlite.backend import thread_pool
thread_pool.set_threads(1)
be, signals, others = Backend("cpu"), [], []
a, b, c = be.ones((100, 784)), be.ones((784, 128)), be.empty((100, 128))
signal.signal(signal.SIGALRM, lambda *_: signals.append(1))
signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
for n in range(8000):
    be.compound_dot(a, b, c)
    others.append(np.empty(40 + n * 37 % 30_000, "u1"))
    if len(others) > 50:
        del others[n % 50]
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(signals) > 100, (c.get() == 784).all())
"""


@needs
def test_signals_that_come_while_matrices_are_multiplied_leave_the_heap_alone() -> None:
    got = subprocess.run([sys.executable, "-c", SIGNALS], capture_output=True, text=True, check=True)
    assert got.stdout == "True True\n"


# --- memory, threads, processes --------------------------------------------------------------------------------------


def a_step(made: convolution.OneDNNConvolution, be: Backend, seed: int = 7) -> tuple[Callable[[], None], list[Array]]:
    """Return what runs a convolution and a pooling, forwards and backwards, and its results."""
    rng = np.random.default_rng(seed)
    conv = be.conv_layer("float32", 16, 8, 16, 1, 12, 12, 1, 3, 3)
    pooled = be.pool_layer("float32", "max", 16, 16, 1, 10, 10, 1, 1, 2, 2)
    i, f, e = (normal(rng, shape, "float32") for shape in (conv.dimI, conv.dimF, pooled.dimO))
    o, p, d, di = (np.empty(shape, np.float32) for shape in (conv.dimO, pooled.dimO, conv.dimO, conv.dimI))
    df, at = np.empty(conv.dimF, np.float32), np.empty(pooled.dimO, np.uint8)

    def run() -> None:
        made.conv_fprop(conv, i, f, o, 1.0, 0.0)
        made.pool_fprop(pooled, o, p, at, 0.0)
        made.pool_bprop(pooled, o, e, d, at, 1.0, 0.0)
        made.conv_update(conv, i, d, df, 1.0, 0.0)
        made.conv_bprop(conv, f, d, di, 0.5, 0.0)

    return run, [o, p, at, d, df, di]


@needs
def test_nothing_is_allocated_once_it_has_run(made: convolution.OneDNNConvolution, cpu: Backend) -> None:
    run, _ = a_step(made, cpu)
    run()
    before = made.runtime.memory_tracker.usage()
    assert before.workspaces > 0
    assert buffers(run) == []
    assert made.runtime.memory_tracker.usage() == before
    made.runtime.memory_tracker.clear_thread_cache()
    assert made.runtime.memory_tracker.usage().workspaces == 0


@needs
def test_the_number_of_threads_is_the_runtimes_during_a_call_only(
    made: convolution.OneDNNConvolution, cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HERE is not None
    seen: list[int] = []
    execute = HERE.execute
    monkeypatch.setattr(HERE, "execute", lambda *args: seen.append(HERE.get_threads()) or execute(*args))
    before, wanted = HERE.get_threads(), None
    for n in (1, 3):
        monkeypatch.setattr(thread_pool, "_num_threads", n)
        run, results = a_step(made, cpu)
        run()
        assert {*seen} == {n}
        assert HERE.get_threads() == before
        seen.clear()
        wanted = wanted or [x.copy() for x in results]
        for got, x in zip(results, wanted, strict=True):
            near(got.astype(np.float32), x, n)


@needs
def test_several_threads_convolve_at_once(made: convolution.OneDNNConvolution, cpu: Backend) -> None:
    alone = [a_step(made, cpu, seed) for seed in range(4)]
    for run, _ in alone:
        run()
    together = [a_step(made, cpu, seed) for seed in range(4)]
    workers = [threading.Thread(target=lambda run=run: [run() for _ in range(20)]) for run, _ in together]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for (_, got), (_, wanted) in zip(together, alone, strict=True):
        for x, y in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(x, y)


FORKED = """
import os, signal, sys
import numpy as np
from neonlite import Backend
from neonlite.backend import thread_pool
thread_pool.set_threads(2)
be = Backend("cpu")
if sys.argv[1] == "product":  # of stacks, as in attention
    x, out = be.ones((64, 96, 96)), be.empty((64, 96, 96))
    run, expected = lambda: out.__setitem__(slice(None), be.matmul(x, x)), 96
else:
    channels = int(sys.argv[1])
    layer = be.conv_layer("float32", 64, channels, 16, 1, 28, 28, 1, 5, 5)
    i, e = be.ones(layer.dimI2), be.ones(layer.dimO2)
    out, expected = be.empty(layer.dimF2), 64 * 24 * 24
    run = lambda: be.update_conv(layer, i, e, out)
run()
if (child := os.fork()) == 0:
    signal.alarm(60)
    out[:] = 0
    run()
    os._exit(0 if (out.get() == expected).all() else 1)
print(os.waitpid(child, 0)[1])
"""


@needs
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes fork here")
@pytest.mark.parametrize("operation", ["1", "16", "product"])
def test_a_forked_process_runs_primitives_that_its_parent_has_created(operation: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, operation]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["0"]


@pytest.fixture
def openblas() -> Iterator[Any]:
    """Return NumPy's OpenBLAS with four threads; afterwards it has as many as before."""
    found = openblas_module.get_openblas()
    if not isinstance(found, openblas_module.SingleThreadedBLAS):
        pytest.skip("NumPy uses another BLAS library here")
    before = found.get_threads()
    found.set_threads(4)
    yield found
    found.set_threads(before)


@needs
@pytest.mark.parametrize(
    ("sizes", "dtype", "expected"),
    [
        ((70, 70, 70), "float32", 1),  # small: NumPy's
        ((1, 300, 300), "float32", 1),  # a matrix-vector product
        ((70, 70, 70), "float64", 4),
        ((3, 5, 7), "float32", 4),  # too small for a second thread of OpenBLAS
    ],
)
def test_products_of_numpy_beside_onednn_use_one_thread(
    cpu: Backend, openblas: Any, monkeypatch: pytest.MonkeyPatch, sizes: Any, dtype: str, expected: int
) -> None:
    m, k, n = sizes
    a, b, out = (cpu.ones(shape, dtype=dtype) for shape in ((m, k), (k, n), (m, n)))
    threads: list[int] = []
    gemm = NumPyPrimitives.gemm
    monkeypatch.setattr(NumPyPrimitives, "gemm", lambda *args: threads.append(openblas.get_threads()) or gemm(*args))
    cpu.compound_dot(a, b, out)
    assert threads == [expected]
    assert openblas.get_threads() == 4
    assert (out.get() == k).all()


def test_openblas_is_found_in_a_folder_with_spaces_and_a_removed_file_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = "/home/a user/numpy.libs/libscipy_openblas64_-1.so"
    maps = [
        "7f00-7f10 r--p 00000000 00:00 0 ",
        *(f"7f10-7f20 r-xp 00000000 fe:00 123   {x}" for x in (path, "/home/m\xe9")),
    ]
    maps.insert(1, "7f00-7f10 r-xp 00000000 fe:00 122   /old/numpy.libs/libopenblas.so (deleted)")
    monkeypatch.setattr(Path, "read_bytes", lambda self: "\n".join(maps).encode("latin-1"))
    counts = SimpleNamespace(scipy_openblas_get_num_threads64_=lambda: 4, scipy_openblas_set_num_threads64_=print)

    def load(name: str) -> Any:
        if name != path:
            raise OSError(f"{name}: cannot open shared object file")
        return counts

    monkeypatch.setattr(openblas_module, "ctypes", SimpleNamespace(PyDLL=load))
    found = openblas_module.get_openblas.__wrapped__()
    assert isinstance(found, openblas_module.SingleThreadedBLAS)
    assert found.get_threads() == 4
    monkeypatch.setattr(Path, "read_bytes", lambda self: (_ for _ in ()).throw(FileNotFoundError(2, "no /proc")))
    assert isinstance(openblas_module.get_openblas.__wrapped__(), contextlib.nullcontext)


def test_the_last_thread_that_leaves_restores_the_number_of_threads_of_openblas(openblas: Any) -> None:
    entered, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with openblas:
            entered.set()
            leave.wait(60)

    other = threading.Thread(target=stay)
    with openblas:
        other.start()
        entered.wait(60)
    assert openblas.get_threads() == 1
    leave.set()
    other.join()
    assert openblas.get_threads() == 4


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="tells no process what it has loaded")
def test_to_import_neonlite_does_not_load_it() -> None:
    modules = "neonlite.backend.runtimes.onednn.convolution, neonlite.backend.runtimes.onednn.post_ops"
    code = f"import {modules}; print(open('/proc/self/maps').read())"
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "libdnnl" not in got.stdout


SPINNING = """
import os
from neonlite.backend.runtimes.onednn.bindings import load_library
load_library()
print(os.environ.get("GOMP_SPINCOUNT"))
"""


@needs
@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP is not what oneDNN brings here")
@pytest.mark.parametrize(
    ("given", "looks"),
    [({}, 6000), ({"GOMP_SPINCOUNT": "7"}, 7), ({"OMP_WAIT_POLICY": "passive"}, 0)],
    ids=["nothing said", "a number", "a policy"],
)
def test_its_threads_spin_briefly_unless_the_environment_sets_otherwise(given: dict[str, str], looks: int) -> None:
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment = others | given | {"OMP_DISPLAY_ENV": "verbose"}
    got = subprocess.run([sys.executable, "-c", SPINNING], env=environment, capture_output=True, text=True, check=True)
    assert f"GOMP_SPINCOUNT = '{looks}'" in got.stderr
    assert got.stdout.strip() == str(given.get("GOMP_SPINCOUNT"))  # and child processes do not inherit it


# --- functions -------------------------------------------------------------------------------------------------------

SIG = post_ops.EltwiseFunction(post_ops.ELTWISE_LOGISTIC, 64, post_ops.logistic_numpy)
EXP = post_ops.ExpFunction(post_ops.ELTWISE_EXP, 64, np.exp)
TRUTHS: dict[str, tuple[post_ops.EltwiseFunction, Callable[[Array], Array]]] = {
    "sig": (SIG, lambda x: 1 / (1 + np.exp(-x))),
    "exp": (EXP, np.exp),
}


@needs
@pytest.mark.parametrize("word", TRUTHS)
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 65536, 100_003])
def test_functions_are_right_to_some_units_in_the_last_place(word: str, size: int) -> None:
    function, truth = TRUTHS[word]
    for low, high, ulps in ((-86.9, 88.7, 6), (-10, 10, 4), (-1, 1, 3), (-1e-6, 1e-6, 2)):
        x = np.random.default_rng(8).uniform(low, high, size).astype(np.float32)
        wanted, out = truth(x.astype(float)), np.empty_like(x)
        function(x, out)
        assert np.abs((out - wanted) / np.spacing(wanted.astype(np.float32))).max() <= ulps
        function(x, x)  # in place
        np.testing.assert_array_equal(x, out)


@needs_avx2
@pytest.mark.parametrize("word", TRUTHS)
def test_functions_of_infinities_nan_and_very_small_numbers(word: str) -> None:
    function, truth = TRUTHS[word]
    for value in (np.inf, -np.inf, np.nan, 0, -0.0, 1e-40, -1e-40, 88, 100, 1e30, -1e30, -86.95, -87.2, -90, -110):
        x, out = np.full(256, 0.5, np.float32), np.empty(256, np.float32)
        x[77] = value
        function(x, out)
        with np.errstate(over="ignore"):
            wanted = truth(x.astype(float)).astype(np.float32)
        near_zero = 0 if word == "exp" else 2e-38  # below, oneDNN gives 0
        np.testing.assert_allclose(out, wanted, rtol=1e-6, atol=near_zero)


@needs
def test_functions_fall_back_to_numpy() -> None:
    wide = np.linspace(-3, 3, 400).reshape(20, 20)
    for dtype, part in (
        ("float64", np.s_[:]),
        ("float32", np.s_[:, ::2]),
        ("float32", np.s_[::2, 3:]),
        ("float16", np.s_[:]),
    ):
        x = wide.astype(dtype)[part]
        out = np.empty_like(wide.astype(dtype))[part]
        SIG(x, out)
        np.testing.assert_allclose(out, 1 / (1 + np.exp(-x.astype(float))), rtol=4 * float(np.finfo(dtype).eps))


@needs
@counts
def test_transposed_copies_are_bit_exact(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, copy = np.random.default_rng(count), post_ops.TransposedCopy(64)
    made, make = [], post_ops.TransposedCopy.create_primitive
    monkeypatch.setattr(post_ops.TransposedCopy, "create_primitive", lambda *args: made.append(args[2]) or make(*args))
    for _ in range(count):
        ndim = int(rng.integers(2, 5))
        order = rng.permutation(ndim)  # of the axes in memory, which also has gaps
        shape = rng.integers(1, (0, 0, 600, 60, 20)[ndim], ndim)
        buffer = rng.integers(0, 1 << 32, shape[order] + rng.integers(0, 3, ndim), np.uint32).view(np.float32)
        part = tuple(slice(n) for n in shape[order])
        x, out, back = buffer[part].transpose(np.argsort(order)), np.zeros(shape, np.float32), np.zeros_like(buffer)
        copy(x, out)
        np.testing.assert_array_equal(out.view(np.uint32), np.ascontiguousarray(x).view(np.uint32))  # also of NaNs
        copy(out, back[part].transpose(np.argsort(order)))
        np.testing.assert_array_equal(back[part].view(np.uint32), buffer[part].view(np.uint32))
    assert len(made) > count / 2


@needs
def test_copies_that_onednn_does_not_support_are_numpys() -> None:
    copy = post_ops.TransposedCopy(64)
    whole = np.random.default_rng(0).normal(size=(60, 70)).astype(np.float32)
    between = np.frombuffer(bytes(1) + whole.tobytes(), np.float32, whole.size, 1).reshape(whole.shape)
    for x in (
        whole.T[::-1],
        whole.T[:, ::-1],
        whole.astype(float).T,
        between.T,
        np.broadcast_to(whole[:, :1], whole.shape).T,
    ):
        out = np.empty(x.shape, np.float32)
        copy(x, out)
        np.testing.assert_array_equal(out, x.astype(np.float32))
    ints = np.empty((70, 60), np.int32)
    copy(whole.T * 9, ints)
    np.testing.assert_array_equal(ints, (whole.T * 9).astype(np.int32))
    closed = np.zeros((70, 60), np.float32)
    closed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        copy(whole.T, closed)
    assert not closed.any()


@needs
def test_a_transpose_is_copied_by_one_dnn(cpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], post_ops.TransposedCopy.create_primitive
    monkeypatch.setattr(post_ops.TransposedCopy, "create_primitive", lambda *args: made.append(args[2]) or make(*args))
    x, y = cpu.array(np.random.default_rng(0).normal(size=(301, 703))), cpu.empty((703, 301))
    for source in (x.T, cpu.transpose(x)):
        y[:] = 0
        y[:] = source
        np.testing.assert_array_equal(y.get(), x.get().T)
    assert made


SHARED = """
import numpy as np
from neonlite.backend import thread_pool
from neonlite.backend.runtimes.onednn import bindings
from neonlite.backend.runtimes.onednn import eltwise
thread_pool.set_threads(3)
oneDNN = bindings.load_library()
function = post_ops.EltwiseFunction(post_ops.ELTWISE_LOGISTIC, 64, post_ops.logistic_numpy)
seen, execute = set(), oneDNN.execute
def counting(*args):
    seen.add(oneDNN.get_threads())
    return execute(*args)
oneDNN.execute = counting
x, out = np.random.default_rng(9).standard_normal(1 << 16).astype(np.float32), np.empty((100, 1 << 16), np.float32)
def work(numbers):
    for n in numbers:
        function(x, out[n])
thread_pool.parallel_for(work, len(out))
print(seen, oneDNN.get_threads(), (out == out[0]).all())
"""


@needs_avx2
def test_workers_run_functions_in_one_thread_each() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "4"}  # that is what a new thread begins with
    got = subprocess.run([sys.executable, "-c", SHARED], env=environment, capture_output=True, text=True, check=True)
    assert got.stdout == "{1} 4 True\n"


# --- where it is not there, or is another ----------------------------------------------------------------------------


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, the only one in which oneDNN is looked for, under a name that no system has."""
    monkeypatch.delenv("NEONLITE_ONEDNN", raising=False)
    monkeypatch.setattr(bindings, "library_folders", lambda: [tmp_path])
    monkeypatch.setattr(bindings, "LIBRARY_FILE", "libdnnl.so.3.of.a.test")
    monkeypatch.setattr(bindings, "load_library", bindings.load_library.__wrapped__)
    monkeypatch.setattr(bindings, "get_library", bindings.get_library.__wrapped__)
    monkeypatch.setattr(convolution, "get_library", bindings.get_library)
    monkeypatch.setattr(post_ops, "get_library", bindings.get_library)
    return tmp_path


def test_a_missing_library_error_names_the_searched_folders(nowhere: Path) -> None:
    with pytest.raises(
        ImportError,
        match=rf"libdnnl.so.3.of.a.test is not in {nowhere}. Install it: pip install \"neonlite\[onednn\]\"",
    ):
        bindings.load_library()
    (nowhere / "libdnnl.so.2").touch()
    with pytest.raises(
        ImportError, match=f"found {nowhere}/libdnnl.so.2, of another API version. Install it: pip install"
    ):
        bindings.load_library()
    gain = "which makes convolutional and recurrent networks about twice as fast"
    assert bindings.version_info().startswith(f"without oneDNN, {gain}: libdnnl.so.3.of.a.test is not in")


def test_a_file_that_is_no_library_is_named(nowhere: Path) -> None:
    (nowhere / bindings.LIBRARY_FILE).write_text("This is no library.")
    with pytest.raises(ImportError, match=rf"oneDNN cannot be loaded: {nowhere}.* Install it: pip install"):
        bindings.load_library()
    assert bindings.get_library() is None


def test_another_version_is_named() -> None:
    older = bindings.Version(2, 7, 3)

    class Ask:
        restype: Any = None

        def __call__(self) -> Any:
            return ctypes.pointer(older)

    with pytest.raises(
        ImportError, match=r"expected version 3.x, got 2.7.3 in there/libdnnl.so. Install it: pip install"
    ):
        bindings.Library(SimpleNamespace(dnnl_version=Ask()), "there/libdnnl.so")
    with pytest.raises(
        ImportError, match=r"onednn: expected a library with dnnl_version, got there/libx.so. Install it: pip install"
    ):
        bindings.Library(SimpleNamespace(), "there/libx.so")


def test_without_it_numpy_does_all(nowhere: Path, plain: ReferencePrimitives, cpu: Backend) -> None:
    made = convolution.OneDNNConvolution(load_runtime("cpu"))
    layer = cpu.conv_layer("float32", 2, 3, 4, 1, 6, 6, 1, 3, 3)
    pooled = cpu.pool_layer("float32", "max", 2, 3, 1, 6, 6, 1, 1, 2, 2)
    rng = np.random.default_rng(10)
    i, f = normal(rng, layer.dimI, "float32"), normal(rng, layer.dimF, "float32")
    (o, wanted), (p, pooled_by_it) = (np.zeros((2, *shape), np.float32) for shape in (layer.dimO, pooled.dimO))
    made.conv_fprop(layer, i, f, o, 1.0, 0.0)
    plain.conv_fprop(layer, i, f, wanted, 1.0, 0.0)
    near(o, wanted, layer)
    made.pool_fprop(pooled, i, p, None, 0.0)
    plain.pool_fprop(pooled, i, pooled_by_it, None, 0.0)
    np.testing.assert_array_equal(p, pooled_by_it)
    x, out = i.reshape(-1), np.empty(i.size, np.float32)
    post_ops.EltwiseFunction(post_ops.ELTWISE_LOGISTIC, 1, post_ops.logistic_numpy)(x, out)
    near(out, 1 / (1 + np.exp(-x.astype(float))), "sig")


def test_the_environment_can_do_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEONLITE_ONEDNN", "0")
    assert bindings.get_library.__wrapped__() is None
    assert bindings.version_info() == "without oneDNN (NEONLITE_ONEDNN=0)"


@needs
def test_an_error_of_onednn_names_the_call_and_the_reason() -> None:
    assert HERE is not None
    with pytest.raises(
        bindings.UnsupportedError, match=r"oneDNN 3\..*: dnnl_memory_desc_create_with_tag: invalid arguments"
    ):
        HERE.any_memory_desc((-1, 2))


def test_the_primitives_of_all_threads_together_are_bounded(
    made: convolution.OneDNNConvolution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings.primitives, "capacity", 4)

    def use(first: int) -> None:
        for n in range(first, first + 5):
            made._get_row_sum((n, 2))
            assert len(bindings.primitives) <= 4

    bindings.primitives.clear()
    use(1)
    thread = threading.Thread(target=use, args=(3,))
    thread.start()
    thread.join()
    assert len({ident for ident, *_ in bindings.primitives}) == 1
