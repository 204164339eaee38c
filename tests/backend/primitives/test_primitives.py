"""Convolution, pooling and LRN on every runtime equal the loops of a textbook.

Shapes are drawn from a seeded generator, and printed when they fail. Expected values come from textbook.py, from
central differences in float64, and from PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from helpers import textbook
from helpers.image_cases import (
    Conv,
    Pool,
    axis,
    conv_cases,
    conv_layer,
    lrn_cases,
    pool_cases,
    pool_layer,
    scaled,
    sizes,
)
from helpers.runtimes import lacks

from neonlite import Backend, Tensor
from neonlite.backend.primitives import ReferencePrimitives, convolution
from neonlite.backend.runtimes.numpy import pooling as numpy_pooling
from neonlite.backend.runtimes.numpy import pooling as numpy_roi_pooling
from neonlite.backend.runtimes.numpy.pooling import NumPyPrimitives

COUNT, FEW = 120, 14  # how many shapes of each kind are tried: on NumPy, on each other runtime

both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])
every_op = pytest.mark.parametrize("op", ["max", "avg", "l2"])


# --- shapes ----------------------------------------------------------------------------------------------------------


class Deconv(NamedTuple):
    N: int
    C: int
    K: int
    MPQ: tuple[int, ...]
    TRS: tuple[int, ...]
    padding: tuple[int, ...] = (0, 0, 0)
    strides: tuple[int, ...] = (1, 1, 1)
    dilation: tuple[int, ...] = (1, 1, 1)

    geometry = Conv.geometry


def deconv_cases() -> Iterator[Deconv]:
    yield Deconv(1, 1, 1, (1, 1, 1), (1, 1, 1))
    yield Deconv(2, 3, 2, (1, 3, 5), (1, 2, 3), (0, 1, 1), (1, 2, 3))
    yield Deconv(2, 1, 3, (2, 3, 2), (2, 3, 2), (1, 0, 1), (2, 1, 2), (1, 2, 2))
    rng = np.random.default_rng(2)
    while True:
        deep = rng.random() < 0.3
        axes = [axis(rng, most=3 if deep else 5) if n or deep else (1, 1, 0, 1, 1) for n in range(3)]
        size, taps, padding, strides, dilation = zip(*axes, strict=True)
        if all((n - 1) * s - 2 * p + d * (k - 1) >= 0 for n, k, p, s, d in axes):
            yield Deconv(*sizes(rng, 4, 5, 5), size, taps, padding, strides, dilation)


def first(cases: Iterator[Any], count: int = COUNT) -> list[Any]:
    """Return so many different cases."""
    found: dict[Any, None] = {}
    while len(found) < count:
        found[next(cases)] = None
    return list(found)


CONV, DECONV, POOL, NORM = first(conv_cases()), first(deconv_cases()), first(pool_cases()), first(lrn_cases())


def tried(be: Backend, cases: Sequence[Any]) -> Sequence[Any]:
    return cases if be.name == "cpu" else cases[:FEW]


def test_the_shapes_hold_every_kind() -> None:
    reach = [[d * (k - 1) + 1 for d, k in zip(c.dilation, c.TRS, strict=True)] for c in CONV]
    kinds = [
        *("deep" if c.DHW[0] > 1 else "flat" for c in CONV),
        *("wide" if c.DHW[2] > c.DHW[1] else "high" for c in CONV if c.DHW[1] != c.DHW[2]),
        *("stride over kernel" for c in CONV if any(s > k for s, k in zip(c.strides, c.TRS, strict=True))),
        *("dilated" for c in CONV if any(d > 1 and k > 1 for d, k in zip(c.dilation, c.TRS, strict=True))),
        *("padding alone" for c, r in zip(CONV, reach, strict=True) if any(map(int.__ge__, c.padding, r))),
        *("in one piece" for c, r in zip(CONV, reach, strict=True) if tuple(r) == c.DHW),
        *("many maps" for c in CONV if c.C > 3 and c.K > 3),
        *("prime" for c in CONV if {*c.DHW[1:]} <= {2, 3, 5, 7} and {*c.TRS[1:]} <= {2, 3}),
        *("channels" for c in POOL if c.JTRS[0] > 1 and c.strides[0] < c.JTRS[0]),
        *("overlap" for c in POOL if any(map(int.__lt__, c.strides[1:], c.JTRS[1:]))),
        *("padded pool" for c in POOL if any(c.padding[1:])),
        *("deep pool" for c in POOL if c.CDHW[1] > 1 and c.JTRS[1] > 1),
        *("even" if c.J % 2 == 0 else "odd" for c in NORM if 1 < c.J < c.CDHW[0]),
        *("wide J" for c in NORM if c.J > c.CDHW[0] > 1),
        *("deep deconv" for c in DECONV if c.MPQ[0] > 1 and c.TRS[0] > 1),
        *("strided deconv" for c in DECONV if max(c.strides) > 1 and max(c.padding) > 0 and max(c.dilation) > 1),
    ]
    assert {kind: kinds.count(kind) for kind in {*kinds} if kinds.count(kind) < 4} == {}
    assert len({*kinds}) == 19


# --- values, truths, and how near they must be -----------------------------------------------------------------------


def values(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    """Return normal numbers that float32 holds exactly."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(float)


def near(got: Any, wanted: Any, case: Any, dtype: str = "float64") -> None:
    """Assert that a tensor holds what is wanted, but for the rounding of its dtype."""
    given = np.asarray(got).reshape(wanted.shape)
    tolerance = 64 * np.finfo(dtype).eps * max(1.0, np.abs(wanted).max(initial=0, where=np.isfinite(wanted)))
    np.testing.assert_allclose(given, wanted, rtol=0, atol=tolerance, err_msg=str(case))


@cache
def conv_truth(case: Conv) -> SimpleNamespace:
    N, C, K, DHW, TRS = case[:5]
    i, f, e = values(1, C, *DHW, N), values(2, C, *TRS, K), None
    o = textbook.conv(i, f, *case.geometry)
    e = values(3, *o.shape)
    d, u = textbook.conv_bprop(f, e, DHW, *case.geometry), textbook.conv_update(i, e, TRS, *case.geometry)
    return SimpleNamespace(i=i, f=f, e=e, o=o, d=d, u=u)


def deconv_layer(be: Backend, dtype: str, case: Deconv) -> Any:
    return be.deconv_layer(dtype, *case[:3], *case.MPQ, *case.TRS, *case.padding, *case.strides, *case.dilation)


def start(be: Backend, wanted: Any, beta: float, dtype: str) -> tuple[Tensor, Any]:
    """Return a tensor to write to, and what it holds. Where it is not to be read, it holds NaN."""
    held = values(9, *wanted.shape) if beta else np.full(wanted.shape, np.nan)
    two = held.reshape(-1, wanted.shape[-1])
    return be.array(two, dtype), np.nan_to_num(held)


# --- the textbook ----------------------------------------------------------------------------------------------------


@both_dtypes
def test_a_convolution_is_the_textbooks(be: Backend, dtype: str) -> None:
    for case in tried(be, CONV):
        layer, truth, (alpha, beta) = conv_layer(be, dtype, case), conv_truth(case), scaled(case)
        O, held = start(be, truth.o, beta, dtype)
        given = be.fprop_conv(layer, be.array(truth.i, dtype), be.array(truth.f, dtype), O, alpha=alpha, beta=beta)
        assert given is O
        assert layer.dimO == truth.o.shape, case
        near(O, alpha * truth.o + beta * held, case, dtype)


@both_dtypes
def test_the_error_of_an_image_is_the_textbooks(be: Backend, dtype: str) -> None:
    for case in tried(be, CONV):
        layer, truth, (alpha, beta) = conv_layer(be, dtype, case), conv_truth(case), scaled(case)
        D, held = start(be, truth.d, beta, dtype)
        given = be.bprop_conv(layer, be.array(truth.f, dtype), be.array(truth.e, dtype), D, alpha=alpha, beta=beta)
        assert given is D
        near(D, alpha * truth.d + beta * held, case, dtype)


@both_dtypes
def test_the_gradient_of_filters_is_the_textbooks(be: Backend, dtype: str) -> None:
    for case in tried(be, CONV):
        layer, truth, (alpha, beta) = conv_layer(be, dtype, case), conv_truth(case), scaled(case)
        U, held = start(be, truth.u, beta, dtype)
        given = be.update_conv(layer, be.array(truth.i, dtype), be.array(truth.e, dtype), U, alpha=alpha, beta=beta)
        assert given is U
        near(U, alpha * truth.u + beta * held, case, dtype)


@cache
def deconv_truth(case: Deconv) -> SimpleNamespace:
    N, C, K, MPQ, TRS = case[:5]
    x, f = values(1, K, *MPQ, N), values(2, C, *TRS, K)
    y = textbook.deconv(x, f, *case.geometry)
    e = values(3, *y.shape)
    # Stamping is linear in x, and in f: what moves y along e is the error stamped back.
    d = textbook.conv(e, f, *case.geometry)
    u = textbook.conv_update(e, x, TRS, *case.geometry)
    return SimpleNamespace(x=x, f=f, y=y, e=e, d=d, u=u)


@both_dtypes
def test_a_deconvolution_stamps_filters(be: Backend, dtype: str) -> None:
    for case in tried(be, DECONV):
        layer, truth, (alpha, beta) = deconv_layer(be, dtype, case), deconv_truth(case), scaled(case)
        assert (layer.dimI, layer.dimO) == (truth.y.shape, truth.x.shape), case
        F, X, E = be.array(truth.f, dtype), be.array(truth.x, dtype), be.array(truth.e, dtype)
        Y, held = start(be, truth.y, beta, dtype)
        be.bprop_conv(layer, F, X, Y, alpha=alpha, beta=beta)
        near(Y, alpha * truth.y + beta * held, case, dtype)
        D, held = start(be, truth.x, beta, dtype)
        be.fprop_conv(layer, E, F, D, alpha=alpha, beta=beta)
        near(D, alpha * truth.d + beta * held, case, dtype)
        U, held = start(be, truth.f, beta, dtype)
        be.update_conv(layer, E, X, U, alpha=alpha, beta=beta)
        near(U, alpha * truth.u + beta * held, case, dtype)


@cache
def pool_truth(op: str, case: Pool, caffe: bool = False) -> SimpleNamespace:
    i = values(1, *case.CDHW, case.N)
    if op == "max":
        i = np.round(i)  # integers, so that many maxima tie
    o, places = textbook.pool(op, i, *case.geometry, caffe)
    e = values(3, *o.shape)
    d = textbook.pool_bprop(op, i, e, *case.geometry, caffe)
    return SimpleNamespace(i=i, o=o, places=places, e=e, d=d)


@every_op
@both_dtypes
def test_pooling_is_the_textbooks(be: Backend, dtype: str, op: str) -> None:
    for case in tried(be, POOL):
        layer, truth, (_, beta) = pool_layer(be, dtype, op, case), pool_truth(op, case), scaled(case)
        I, (O, held) = be.array(truth.i, dtype), start(be, truth.o, beta, dtype)
        argmax = be.array(np.full(truth.o.shape, 77), dtype="uint8")
        assert be.fprop_pool(layer, I, O, argmax, beta=beta) is O
        assert layer.dimO == truth.o.shape, case
        near(O, truth.o + beta * held, case, dtype)
        np.testing.assert_array_equal(argmax.get(), truth.places if op == "max" else 77, err_msg=str(case))
        O, held = start(be, truth.o, beta, dtype)
        near(be.fprop_pool(layer, I, O, beta=beta), truth.o + beta * held, case, dtype)


@every_op
@both_dtypes
def test_the_error_of_pooling_is_the_textbooks(be: Backend, dtype: str, op: str) -> None:
    for case in tried(be, POOL):
        layer, truth, (alpha, beta) = pool_layer(be, dtype, op, case), pool_truth(op, case), scaled(case)
        I, E, places = be.array(truth.i, dtype), be.array(truth.e, dtype), be.array(truth.places, dtype="int32")
        D, held = start(be, truth.d, beta, dtype)
        assert be.bprop_pool(layer, I, E, D, alpha=alpha, beta=beta) is D
        near(D, alpha * truth.d + beta * held, case, dtype)
        if op == "max":
            D, held = start(be, truth.d, beta, dtype)
            near(be.bprop_pool(layer, E, D, places, alpha, beta), alpha * truth.d + beta * held, case, dtype)


@every_op
def test_caffes_windows_may_hang_over_the_end(be: Backend, op: str) -> None:
    be.set_caffe_compat()
    wider = 0
    for case in tried(be, POOL):
        layer, truth = pool_layer(be, "float64", op, case), pool_truth(op, case, True)
        assert layer.dimO == truth.o.shape, case
        wider += layer.dimO != (*textbook.pool_dims(case.CDHW, *case.geometry), case.N)
        I, E, O = be.array(truth.i, "float64"), be.array(truth.e, "float64"), be.zeros(layer.dimO, "float64")
        near(be.fprop_pool(layer, I, O), truth.o, case)
        near(be.bprop_pool(layer, I, E, be.zeros(layer.dimI, "float64")), truth.d, case)
    assert wider > 1


def test_normalization_over_more_channels_than_there_are_takes_all(be: Backend) -> None:
    layer = be.lrn_layer("float32", 4, C=3, H=2, W=2, J=10**9)  # a loop over 10**9 channels would not end
    x, y, denominator = be.array(np.arange(48.0).reshape(12, 4)), be.empty(layer.dimO2), be.empty(layer.dimO2)
    be.fprop_lrn(layer, x, y, denominator, alpha=1.0, beta=0.0, ascale=1e9, bpower=0.5)
    images = np.arange(48.0).reshape(3, 4, 4)
    np.testing.assert_allclose(y.get(), (images / np.sqrt(1 + (images**2).sum(0))).reshape(12, 4), rtol=1e-5)


@both_dtypes
def test_normalization_over_channels_is_the_textbooks(be: Backend, dtype: str) -> None:
    for case in tried(be, NORM):
        N, CDHW, J, a, b = case
        layer, i, (alpha, beta) = be.lrn_layer(dtype, N, *CDHW, J), values(1, *CDHW, N), scaled(case)
        (o, denom), e = textbook.lrn(i, J, a, b), values(3, *i.shape)
        I, E, denoms = be.array(i, dtype), be.array(e, dtype), be.array(np.full(i.shape, np.nan), dtype)
        O, held = start(be, o, beta, dtype)
        assert be.fprop_lrn(layer, I, O, denoms, alpha, beta, a, b) is O
        near(O, alpha * o + beta * held, case, dtype)
        near(denoms, denom, case, dtype)
        D, held = start(be, o, beta, dtype)
        assert be.bprop_lrn(layer, I, be.array(o, dtype), E, D, denoms, alpha, beta, a, b) is D
        near(D, alpha * textbook.lrn_bprop(i, e, J, a, b) + beta * held, case, dtype)


@pytest.mark.parametrize(("dtype", "close"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_16_bit_floats_are_computed_in_float32(be: Backend, dtype: str, close: float) -> None:
    if lacks(be, dtype):
        return

    def rounded(got: Tensor, wanted: Any, case: Any, rounded_first: Any = 0) -> None:
        tolerance = close * 1.01 * (np.abs(wanted) + np.abs(rounded_first)) + 1e-6 * max(1, np.abs(wanted).max())
        assert got.info.dtype == dtype
        assert (np.abs(got.get().astype(float).reshape(wanted.shape) - wanted) <= tolerance).all(), case

    def half(seed: int, *shape: int) -> tuple[Tensor, Any]:
        held = values(seed, *shape).astype(dtype).astype(float)
        return be.array(held, dtype), held

    for case in [*CONV[:FEW], Conv(2, 64, 3, (1, 4, 4), (1, 3, 3))]:
        layer = conv_layer(be, dtype, case)
        (I, i), (F, f), (E, e) = half(1, *layer.dimI), half(2, *layer.dimF), half(3, *layer.dimO)
        rounded(be.fprop_conv(layer, I, F, be.empty(layer.dimO, dtype)), textbook.conv(i, f, *case.geometry), case)
        d, u = textbook.conv_bprop(f, e, case.DHW, *case.geometry), textbook.conv_update(i, e, case.TRS, *case.geometry)
        rounded(be.bprop_conv(layer, F, E, be.empty(layer.dimI, dtype)), d, case)
        rounded(be.update_conv(layer, I, E, be.empty(layer.dimF, dtype)), u, case)
        by_cudnn = u if be.name == "gpu" else 0  # cuDNN rounds a sum before it is added to the target
        rounded(be.update_conv(layer, I, E, be.ones(layer.dimF, dtype), beta=2.0), u + 2, case, by_cudnn)
    for op in ("max", "avg", "l2"):
        for pool in [*POOL[:FEW], Pool(2, (48, 1, 5, 5), (48, 1, 5, 5))]:
            layer = pool_layer(be, dtype, op, pool)
            (I, i), (E, e) = half(1, *layer.dimI), half(3, *layer.dimO)
            O, D = be.empty(layer.dimO, dtype), be.empty(layer.dimI, dtype)
            rounded(be.fprop_pool(layer, I, O), textbook.pool(op, i, *pool.geometry)[0], pool)
            rounded(be.bprop_pool(layer, I, E, D), textbook.pool_bprop(op, i, e, *pool.geometry), pool)
    layer = be.lrn_layer(dtype, 3, 64, 1, 2, 2, 63)
    (I, i), O, denom = half(1, *layer.dimI), be.empty(layer.dimI, dtype), be.empty(layer.dimI, dtype)
    be.fprop_lrn(layer, I, O, denom, None, None, 0.5, 0.75)
    rounded(O, textbook.lrn(i, 63, 0.5, 0.75)[0], layer)
    rounded(denom, textbook.lrn(i, 63, 0.5, 0.75)[1], layer)


# --- a few output rows at a time -------------------------------------------------------------------------------------


@pytest.mark.parametrize("primitives", [ReferencePrimitives, NumPyPrimitives])
@pytest.mark.parametrize("nbytes", [1, 700, 1500])
@pytest.mark.parametrize("thin", [0, 1000])
def test_a_few_rows_at_a_time_give_the_same(
    be64: Backend, monkeypatch: pytest.MonkeyPatch, primitives: Any, nbytes: int, thin: int
) -> None:
    if primitives is NumPyPrimitives and be64.name != "cpu":
        return
    be64.primitives = primitives(be64.runtime)
    monkeypatch.setattr(convolution, "MAX_GATHERED_BYTES", nbytes)
    monkeypatch.setattr(convolution, "MIN_ROW_WEIGHTS", thin)
    pieces = 0
    for case in [Conv(2, 3, 4, (2, 7, 5), (2, 3, 2), (1, 1, 1), (1, 2, 1), (1, 1, 2)), *tried(be64, CONV)[:60]]:
        layer, truth = conv_layer(be64, "float64", case), conv_truth(case)
        I, F, E = be64.array(truth.i), be64.array(truth.f), be64.array(truth.e)
        pieces = max(pieces, len(list(be64.primitives._iter_output_rows(layer, I._array))) / layer.M)
        for alpha, beta in ((1, 0), (0.5, -2)):
            O, D, U = be64.ones(layer.dimO), be64.ones(layer.dimI), be64.ones(layer.dimF)
            near(be64.fprop_conv(layer, I, F, O, alpha=alpha, beta=beta), alpha * truth.o + beta, case)
            near(be64.bprop_conv(layer, F, E, D, alpha=alpha, beta=beta), alpha * truth.d + beta, case)
            near(be64.update_conv(layer, I, E, U, alpha=alpha, beta=beta), alpha * truth.u + beta, case)
    assert pieces > 1


@both_dtypes
def test_split_k_products_give_the_same(be: Backend, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(convolution, "MIN_SPLIT_K_RATIO", 0)  # all rows are long
    for case in [*tried(be, CONV)[:60], Conv(64, 1, 20, (1, 12, 12), (1, 5, 5))]:
        layer, truth, (alpha, beta) = conv_layer(be, dtype, case), conv_truth(case), scaled(case)
        U, held = start(be, truth.u, beta, dtype)
        be.update_conv(layer, be.array(truth.i, dtype), be.array(truth.e, dtype), U, alpha=alpha, beta=beta)
        near(U, alpha * truth.u + beta * held, case, dtype)


def in_pieces(be: Backend) -> bool:
    return isinstance(be.primitives, NumPyPrimitives)


@pytest.mark.parametrize("op", ["max", "avg", "l2"])
@pytest.mark.parametrize("limit", [1, 10, 40])
def test_pooling_in_small_tiles_gives_the_same(
    be64: Backend, monkeypatch: pytest.MonkeyPatch, limit: int, op: str
) -> None:
    if not in_pieces(be64):
        return
    monkeypatch.setattr(numpy_pooling, "TILE_ELEMENTS", limit)
    most = 0
    for case in tried(be64, POOL)[:40]:
        layer, truth = pool_layer(be64, "float64", op, case), pool_truth(op, case)
        boxes = list(numpy_pooling.iter_tile_ranges(layer.dimO))
        cells = [math.prod(last - first for first, last in box) * layer.N for box in boxes]
        assert sum(cells) == layer.sizeO
        assert max(cells) == cells[0] <= max(limit, layer.N)
        most = max(most, len(boxes))
        I, E, places = be64.array(truth.i), be64.array(truth.e), be64.zeros(layer.dimO, dtype="int16")
        for alpha, beta in ((1, 0), (0.5, -2)):
            O, D = be64.ones(layer.dimO), be64.ones(layer.dimI)
            near(be64.fprop_pool(layer, I, O, places, beta=beta), truth.o + beta, case)
            if op == "max":
                np.testing.assert_array_equal(places.get().reshape(layer.dimO), truth.places, err_msg=str(case))
            near(be64.bprop_pool(layer, I, E, D, alpha, beta), alpha * truth.d + beta, case)
            near(
                be64.bprop_pool(layer, I, E, D.fill(1), alpha, beta, argmax=places if op == "max" else None),
                alpha * truth.d + beta,
                case,
            )
    assert most > 2


def test_windows_of_more_than_256_cells_have_argmax_too(be64: Backend) -> None:
    case = Pool(3, (2, 1, 20, 19), (1, 1, 18, 17), (0, 0, 3, 0), (1, 1, 2, 1))
    layer, truth = pool_layer(be64, "float64", "max", case), pool_truth("max", case)
    i = truth.i.copy()
    i[1, 0, 4, 5, 1] = np.nan
    for image in (truth.i, i):
        wanted, places = textbook.pool("max", image, *case.geometry)
        argmax = be64.zeros(layer.dimO, dtype="int32")
        O = be64.fprop_pool(layer, be64.array(image), be64.zeros(layer.dimO), argmax)
        np.testing.assert_array_equal(O.get(), wanted)
        np.testing.assert_array_equal(argmax.get(), places)
    D = be64.bprop_pool(layer, be64.array(truth.i), be64.array(truth.e), be64.zeros(layer.dimI))
    near(D, truth.d, case)


def test_normalization_of_a_few_columns_at_a_time_gives_the_same(
    be64: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_pieces(be64):
        return
    layer = be64.lrn_layer("float64", 7, 5, 2, 9, 11, 3)
    I, O, E, denom = (be64.array(values(n, *layer.dimI)) for n in range(4))
    results = []
    for limit in (1, 500, 1 << 20):
        monkeypatch.setattr(numpy_pooling, "TILE_ELEMENTS", limit)
        D, out = be64.ones(layer.dimI), be64.ones(layer.dimI)
        be64.fprop_lrn(layer, I, out, denom, 0.5, 2.0, 0.5, 0.75)
        be64.bprop_lrn(layer, I, O, E, D, denom, 0.5, 2.0, 0.5, 0.75)
        results.append([out.get(), denom.get(), D.get()])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("limit", [1, 50, 1 << 16])
def test_roi_pooling_in_small_chunks_equals_the_reference(
    be64: Backend, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    if not in_pieces(be64):
        return
    monkeypatch.setattr(numpy_roi_pooling, "MAX_GATHERED_PIXELS", limit)
    reference, i = ReferencePrimitives(be64.runtime), values(1, 4, 9, 8, 3)
    i[rng.random(i.shape) < 0.1] = np.nan
    i[2, :, 5] = -np.inf
    for n in (0, 1, 13):
        rois = np.concatenate([rng.integers(0, 3, (n, 1)), rng.integers(-4, 14, (n, 4))], axis=1).astype(float)
        got, wanted = ((np.full((4, 3, 2, n), 7.0), np.full((4, 3, 2, n), 7, np.int32)) for _ in range(2))
        be64.primitives.roi_fprop(i, rois, *got, 0.7)
        reference.roi_fprop(i, rois, *wanted, 0.7)
        for x, y in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(x, y)
        errors = values(2, 4, 3, 2, n)
        back_got, back_wanted = np.full(i.shape, 7.0), np.full(i.shape, 7.0)
        be64.primitives.roi_bprop(errors, rois, got[1], back_got)
        reference.roi_bprop(errors, rois, wanted[1], back_wanted)
        np.testing.assert_allclose(back_got, back_wanted, atol=1e-14)


# --- many shapes, compared with the reference ------------------------------------------------------------------------

MANY = 200  # shapes of each kind


@pytest.mark.slow
@both_dtypes
@pytest.mark.parametrize("way", ["as installed", "of NumPy"])
class TestManyShapes:
    """Primitives as installed, and NumPy's own, compared with ``ReferencePrimitives`` in float64."""

    @pytest.fixture
    def made(self, cpu: Backend, way: str) -> Any:
        return cpu.primitives if way == "as installed" else NumPyPrimitives(cpu.runtime)

    @staticmethod
    def held(made: Any, cpu: Backend, name: str, case: Any, given: Sequence[Any], targets: Sequence[Any]) -> None:
        """Call a primitive and the reference's with ``given``, where None stands for the next of the targets."""
        results = []
        for primitives, wide in ((made, False), (ReferencePrimitives(cpu.runtime), True)):
            widened = [np.copy(t).astype(float if wide and t.dtype.kind == "f" else t.dtype) for t in targets]
            rest = iter(widened)
            args = [
                next(rest) if x is None else x.astype(float) if wide and getattr(x, "dtype", None) == np.float32 else x
                for x in given
            ]
            getattr(primitives, name)(*args)
            results.append(widened)
        for got, wanted in zip(*results, strict=True):
            if got.dtype.kind == "f":
                near(got, wanted, (name, case), got.dtype.name)
            else:
                np.testing.assert_array_equal(got, wanted, err_msg=str((name, case)))

    def test_convolutions(self, made: Any, cpu: Backend, dtype: str) -> None:
        for case in first(conv_cases(), MANY) + first(deconv_cases(), MANY):
            layer = (deconv_layer if isinstance(case, Deconv) else conv_layer)(cpu, dtype, case)
            i, f, e = (values(n, *dim).astype(dtype) for n, dim in enumerate((layer.dimI, layer.dimF, layer.dimO)))
            self.held(made, cpu, "conv_fprop", case, [layer, i, f, None, *scaled(case)], [e])
            self.held(made, cpu, "conv_bprop", case, [layer, f, e, None, *scaled(case)], [i])
            self.held(made, cpu, "conv_update", case, [layer, i, e, None, *scaled(case)], [f])

    @every_op
    def test_poolings(self, made: Any, cpu: Backend, dtype: str, op: str) -> None:
        for case in first(pool_cases(), MANY):
            layer, (alpha, beta) = pool_layer(cpu, dtype, op, case), scaled(case)
            i, e = (values(n, *dim).astype(dtype) for n, dim in enumerate((layer.dimI, layer.dimO)))
            i = np.round(i * 2) if op == "max" else i  # so that there are equal maxima
            places = np.zeros(layer.dimO, np.int32)
            self.held(made, cpu, "pool_fprop", case, [layer, i, None, None, beta], [e, places])
            ReferencePrimitives(cpu.runtime).pool_fprop(layer, i, e.copy(), places, 0.0)
            self.held(made, cpu, "pool_bprop", case, [layer, i, e, None, places, alpha, beta], [i])

    def test_normalizations_over_channels(self, made: Any, cpu: Backend, dtype: str) -> None:
        for case in first(lrn_cases(), MANY):
            layer, (alpha, beta) = cpu.lrn_layer(dtype, case.N, *case.CDHW, case.J), scaled(case)
            i, e, o, d = (values(n, *layer.dimI).astype(dtype) for n in range(4))
            scales = alpha, beta, case.a, case.b
            self.held(made, cpu, "lrn_fprop", case, [layer, i, None, None, *scales], [o, d])
            denom = np.abs(d) + 1
            self.held(made, cpu, "lrn_bprop", case, [layer, i, e, None, denom, *scales], [d])

    def test_roi_pooling(self, made: Any, cpu: Backend, dtype: str) -> None:
        rng = np.random.default_rng(5)
        for n in range(MANY):
            C, H, W, N, PH, PW, count = sizes(rng, 4, 9, 9, 3, 4, 4, 12)
            i, e = values(n, C, H, W, N).astype(dtype), values(n + 1, C, PH, PW, count).astype(dtype)
            rois = np.concatenate([rng.integers(0, N, (count, 1)), rng.integers(-4, 14, (count, 4))], 1).astype(float)
            scale, places = float(rng.choice([0.5, 0.7, 1.0])), np.zeros(e.shape, np.int32)
            case = C, H, W, N, PH, PW, count, scale
            self.held(made, cpu, "roi_fprop", case, [i, rois, None, None, scale], [e, places])
            ReferencePrimitives(cpu.runtime).roi_fprop(i, rois, e.copy(), places, scale)
            self.held(made, cpu, "roi_bprop", case, [e, rois, places, None], [i])


# --- gradients: central differences, and PyTorch ---------------------------------------------------------------------

STEP = 1e-4


def differences(be: Backend, f: Callable[[Tensor], Tensor], x: Any, e: Any) -> Any:
    """Return the gradient of sum(e * f(x)) by x, element by element."""
    found = np.zeros(x.shape)
    for at in np.ndindex(*x.shape):
        for sign in (1, -1):
            moved = x.copy()
            moved[at] += sign * STEP
            found[at] += sign * (e * f(be.array(moved)).get().reshape(e.shape)).sum() / (2 * STEP)
    return found


def slope_is(got: Tensor, wanted: Any, case: Any) -> None:
    np.testing.assert_allclose(got.get().reshape(wanted.shape), wanted, rtol=1e-6, atol=1e-6, err_msg=str(case))


def test_derivatives_of_convolution_agree_with_differences(be64: Backend) -> None:
    be = be64
    for case in (
        Conv(2, 1, 2, (1, 5, 4), (1, 2, 2), (0, 2, 1), dilation=(1, 2, 3)),
        Conv(1, 2, 2, (2, 3, 4), (2, 2, 2), (1, 0, 1), (2, 1, 2), (1, 1, 2)),
        Conv(1, 2, 2, (1, 4, 5), (1, 2, 1), (0, 1, 2), (1, 3, 2)),
    ):
        layer, t = conv_layer(be, "float64", case), conv_truth(case)
        I, F, E = be.array(t.i), be.array(t.f), be.array(t.e)
        by_i = differences(be, lambda I: be.fprop_conv(layer, I, F, be.zeros(layer.dimO)), t.i, t.e)  # noqa: B023
        slope_is(be.bprop_conv(layer, F, E, be.zeros(layer.dimI)), by_i, case)
        by_f = differences(be, lambda F: be.fprop_conv(layer, I, F, be.zeros(layer.dimO)), t.f, t.e)  # noqa: B023
        slope_is(be.update_conv(layer, I, E, be.zeros(layer.dimF)), by_f, case)


def test_derivatives_of_deconvolution_agree_with_differences(be64: Backend) -> None:
    be = be64
    for case in (
        Deconv(2, 2, 1, (1, 2, 3), (1, 2, 2), (0, 1, 1), (1, 2, 3)),
        Deconv(1, 1, 2, (2, 2, 1), (2, 2, 2), (1, 0, 0), (2, 1, 2), (1, 2, 1)),
    ):
        layer, t = deconv_layer(be, "float64", case), deconv_truth(case)
        X, F, E = be.array(t.x), be.array(t.f), be.array(t.e)
        by_x = differences(be, lambda X: be.bprop_conv(layer, F, X, be.zeros(layer.dimI)), t.x, t.e)  # noqa: B023
        slope_is(be.fprop_conv(layer, E, F, be.zeros(layer.dimO)), by_x, case)
        by_f = differences(be, lambda F: be.bprop_conv(layer, F, X, be.zeros(layer.dimI)), t.f, t.e)  # noqa: B023
        slope_is(be.update_conv(layer, E, X, be.zeros(layer.dimF)), by_f, case)


@every_op
def test_derivatives_of_pooling_agree_with_differences(be64: Backend, op: str) -> None:
    be = be64
    for case in (
        Pool(1, (3, 1, 3, 4), (2, 1, 2, 2), (1, 0, 1, 1), (2, 1, 1, 3)),
        Pool(2, (1, 1, 4, 4), (1, 1, 3, 2), (0, 0, 1, 1), (1, 1, 1, 2)),
        Pool(1, (2, 1, 5, 3), (1, 1, 2, 1), strides=(1, 1, 3, 2)),
    ):
        layer = pool_layer(be, "float64", op, case)
        order = np.random.default_rng(0).permutation(math.prod(layer.dimI))
        i, e = (order - 7.5).reshape(layer.dimI) / 10, values(3, *layer.dimO)  # no two equal, none 0
        by_i = differences(be, lambda I: be.fprop_pool(layer, I, be.zeros(layer.dimO)), i, e)  # noqa: B023
        slope_is(be.bprop_pool(layer, be.array(i), be.array(e), be.zeros(layer.dimI)), by_i, case)


@pytest.mark.parametrize("J", [1, 2, 3, 9])
def test_derivatives_of_normalization_agree_with_differences(be64: Backend, J: int) -> None:
    be, (a, b) = be64, (0.7, 0.6)
    layer = be.lrn_layer("float64", 2, 5, 1, 2, 1, J)
    O, denom, D = be.zeros(layer.dimI), be.zeros(layer.dimI), be.zeros(layer.dimI)
    i, e = values(1, *layer.dimI), values(3, *layer.dimI)
    by_i = differences(be, lambda I: be.fprop_lrn(layer, I, O, denom, None, None, a, b), i, e)
    I = be.array(i)
    be.fprop_lrn(layer, I, O, denom, None, None, a, b)
    slope_is(be.bprop_lrn(layer, I, O, be.array(e), D, denom, None, None, a, b), by_i, J)


def test_the_gradient_of_a_scaled_normalization_reads_no_output(be64: Backend) -> None:
    be = be64
    layer = be.lrn_layer("float64", 2, 5, 1, 2, 1, 3)
    i, e = values(1, *layer.dimI), values(3, *layer.dimI)
    I, O, denom, D = be.array(i), be.ones(layer.dimI), be.zeros(layer.dimI), be.zeros(layer.dimI)
    be.fprop_lrn(layer, I, O, denom, alpha=2.0, beta=0.5, ascale=0.7, bpower=0.6)
    be.bprop_lrn(layer, I, O, be.array(e), D, denom, alpha=2.0, ascale=0.7, bpower=0.6)
    near(D, 2 * textbook.lrn_bprop(i, e, 3, 0.7, 0.6), layer)


def torched(*arrays: Any) -> Any:
    """Return images (C, D, H, W, N) as PyTorch has them, (N, C, D, H, W), and filters (C, T, R, S, K) alike."""
    import torch

    return [torch.tensor(np.moveaxis(x, -1, 0).copy(), requires_grad=True) for x in arrays]


def back(x: Any) -> Any:
    return np.moveaxis(x.detach().numpy(), 0, -1)


def test_convolutions_are_pytorchs(be64: Backend) -> None:
    functional = pytest.importorskip("torch").nn.functional
    be = be64
    for case in tried(be, CONV)[:40]:
        layer, t = conv_layer(be, "float64", case), conv_truth(case)
        x, w = torched(t.i, t.f)
        y = functional.conv3d(x, w, None, case.strides, case.padding, case.dilation)
        y.backward(torched(t.e)[0])
        I, F, E = be.array(t.i), be.array(t.f), be.array(t.e)
        near(be.fprop_conv(layer, I, F, be.zeros(layer.dimO)), back(y), case)
        near(be.bprop_conv(layer, F, E, be.zeros(layer.dimI)), back(x.grad), case)
        near(be.update_conv(layer, I, E, be.zeros(layer.dimF)), back(w.grad), case)
    case = Conv(2, 3, 4, (1, 6, 5), (1, 3, 2), (0, 1, 2), (1, 2, 1), (1, 1, 2))
    layer, t = conv_layer(be, "float64", case), conv_truth(case)
    flat = functional.conv2d(*(a[:, :, 0] for a in torched(t.i, t.f)), None, (2, 1), (1, 2), (1, 2))
    near(be.fprop_conv(layer, be.array(t.i), be.array(t.f), be.zeros(layer.dimO)), back(flat)[:, None], case)


def test_deconvolutions_are_pytorchs(be64: Backend) -> None:
    functional = pytest.importorskip("torch").nn.functional
    be = be64
    for case in tried(be, DECONV)[:40]:
        layer, t = deconv_layer(be, "float64", case), deconv_truth(case)
        x, w = torched(t.x, t.f)
        y = functional.conv_transpose3d(x, w, None, case.strides, case.padding, 0, 1, case.dilation)
        y.backward(torched(t.e)[0])
        X, F, E = be.array(t.x), be.array(t.f), be.array(t.e)
        near(be.bprop_conv(layer, F, X, be.zeros(layer.dimI)), back(y), case)
        near(be.fprop_conv(layer, E, F, be.zeros(layer.dimO)), back(x.grad), case)
        near(be.update_conv(layer, E, X, be.zeros(layer.dimF)), back(w.grad), case)


@pytest.mark.parametrize("caffe", [False, True])
@every_op
def test_poolings_are_pytorchs(be64: Backend, op: str, caffe: bool) -> None:
    functional = pytest.importorskip("torch").nn.functional
    be, seen = be64, 0
    if caffe:
        be.set_caffe_compat()
    for case in tried(be, POOL):
        window, padding, strides = (x[1:] for x in case.geometry)
        if any(2 * p > k or k > x for p, k, x in zip(padding, window, case.CDHW[1:], strict=True)):
            continue  # PyTorch pads by half a window at most, and windows are no larger than the image
        case = Pool(case.N, case.CDHW, (1, *window), (0, *padding), (1, *strides))
        layer, t = pool_layer(be, "float64", op, case), pool_truth(op, case, caffe)
        (x,) = torched(t.i)
        if op == "max":
            y = functional.max_pool3d(x, window, strides, padding, ceil_mode=caffe)
        elif op == "avg":
            y = functional.avg_pool3d(x, window, strides, padding, caffe, count_include_pad=False)
        else:
            y = functional.avg_pool3d(x * x, window, strides, padding, caffe, divisor_override=1).sqrt()
        y.backward(torched(t.e)[0])
        I, E = be.array(t.i), be.array(t.e)
        near(be.fprop_pool(layer, I, be.zeros(layer.dimO)), back(y), case)
        near(be.bprop_pool(layer, I, E, be.zeros(layer.dimI)), back(x.grad), case)
        seen += 1
    assert seen > 4


def test_normalizations_over_channels_are_pytorchs(be64: Backend) -> None:
    functional = pytest.importorskip("torch").nn.functional
    be = be64
    for N, CDHW, J, a, b in tried(be, NORM)[:40]:
        layer, i, e = be.lrn_layer("float64", N, *CDHW, J), values(1, *CDHW, N), values(3, *CDHW, N)
        (x,) = torched(i)
        y = functional.local_response_norm(x, J, alpha=a, beta=b, k=1)
        y.backward(torched(e)[0])
        I, O, denom, D = be.array(i), be.zeros(layer.dimI), be.zeros(layer.dimI), be.zeros(layer.dimI)
        near(be.fprop_lrn(layer, I, O, denom, ascale=a, bpower=b), back(y), layer)
        near(be.bprop_lrn(layer, I, O, be.array(e), D, denom, ascale=a, bpower=b), back(x.grad), layer)


# --- sizes and layer objects -----------------------------------------------------------------------------------------


def test_output_dim_counts_windows(be: Backend) -> None:
    assert [be.output_dim(*x) for x in ((28, 5, 0, 1), (7, 3, 0, 2), (5, 5, 0, 3), (1, 1, 0, 7))] == [24, 3, 1, 1]
    assert be.output_dim(10, 3, 2, 1, dilation=2) == 10
    assert be.output_dim(10, 3, 2, 1, False, 2) == 10
    assert be.output_dim(8, 3, 0, 2, pooling=True) == 3
    assert be.output_dim(8, 3, 1, 2, pooling=True) == 4
    be.set_caffe_compat()
    assert be.check_caffe_compat()
    assert be.output_dim(8, 3, 0, 2, pooling=True) == 4
    assert be.output_dim(8, 3, 1, 2, pooling=True) == 5
    assert be.output_dim(8, 3, 1, 2) == 4  # poolings alone
    assert be.output_dim(X=np.int64(8), S=3, padding=1, strides=3, pooling=True) == 3  # the 4th would begin at 8


def test_output_dim_is_the_textbooks_everywhere(cpu: Backend) -> None:
    for X, S, padding, strides, dilation in np.ndindex(9, 5, 4, 5, 4):
        each = X + 1, S + 1, padding, strides + 1
        reach = (dilation + 1) * S + 1
        found = [len(textbook.starts(each[0], reach, padding, each[3], caffe)) for caffe in (False, True)]
        if reach <= each[0] + 2 * padding:
            assert cpu.output_dim(*each, dilation=dilation + 1) == found[0], each
            if padding < reach:
                cpu.compat_mode = "caffe"
                assert cpu.output_dim(*each, pooling=True, dilation=dilation + 1) == found[1], each
                cpu.compat_mode = None


def attributes(layer: Any, names: str) -> list[Any]:
    return [getattr(layer, name) for name in names.split()]


SIZES = "dimI dimO sizeI sizeO dimI2 dimO2 nOut NCK DHW MPQ padding strides"


def test_a_layer_object_of_convolution_has_its_sizes(be: Backend) -> None:
    layer = be.conv_layer("float32", 2, 3, 4, 5, 6, 7, 1, 2, 3, 0, 1, 2, 3, 2, 1, dil_d=2, dil_h=3, dil_w=1)
    assert attributes(layer, SIZES) == [
        *((3, 5, 6, 7, 2), (4, 2, 3, 9, 2), 1260, 432, (630, 2), (216, 2), 216),
        *((2, 3, 4), (5, 6, 7), (2, 3, 9), (0, 1, 2), (3, 2, 1)),
    ]
    assert attributes(layer, "N C K D H W M P Q T R S") == [2, 3, 4, 5, 6, 7, 2, 3, 9, 1, 2, 3]
    assert attributes(layer, "TRS dilation dimF dimF2 sizeF") == [(1, 2, 3), (2, 3, 1), (3, 1, 2, 3, 4), (18, 4), 72]
    assert attributes(layer, "dtype backend relu bsum") == ["float32", be, False, False]
    assert str(layer.dimI) in repr(layer)


def test_a_layer_object_of_deconvolution_has_the_image_that_it_gives_as_dimI(be: Backend) -> None:
    layer = be.deconv_layer(
        "float64", 2, 3, 4, P=4, Q=5, R=3, S=2, pad_h=1, pad_w=0, str_h=2, str_w=3, M=2, T=2, str_d=2, dil_h=2
    )
    assert attributes(layer, SIZES) == [
        *((3, 4, 9, 14, 2), (4, 2, 4, 5, 2), 3024, 320, (1512, 2), (160, 2), 160),
        *((2, 3, 4), (4, 9, 14), (2, 4, 5), (0, 1, 0), (2, 2, 3)),
    ]
    assert attributes(layer, "TRS dilation dimF dimF2 sizeF") == [(2, 3, 2), (1, 2, 1), (3, 2, 3, 2, 4), (36, 4), 144]


def test_a_layer_object_of_pooling_has_its_sizes(be: Backend) -> None:
    layer = be.pool_layer("float32", "avg", 2, 5, 4, 6, 7, 3, 2, 2, 3, 1, 0, 1, 1, 2, 2, 1, 3)
    assert attributes(layer, SIZES) == [
        *((5, 4, 6, 7, 2), (3, 2, 7, 3, 2), 1680, 252, (840, 2), (126, 2), 126),
        *((2, 5, 3), (4, 6, 7), (2, 7, 3), (1, 0, 1, 1), (2, 2, 1, 3)),
    ]
    assert attributes(layer, "op JTRS J T R S N C K D H W M P Q") == [
        *("avg", (3, 2, 2, 3), 3, 2, 2, 3),
        *(2, 5, 3, 4, 6, 7, 2, 7, 3),
    ]
    named = be.pool_layer("float32", "avg", 2, 5, 4, 6, 7, 3, 2, 2, 3, pad_c=1, str_c=2, pad_h=1, pad_w=1, str_h=1)
    assert (named.padding, named.strides) == ((1, 0, 1, 1), (2, 2, 1, 3))  # strides are the window's unless given


def test_a_layer_object_of_normalization_has_images_of_one_size(be: Backend) -> None:
    layer = be.lrn_layer("float32", N=2, C=5, D=1, H=3, W=4, J=3)
    assert attributes(layer, "J dimI dimO dimI2 sizeO nOut NCK") == [
        *(3, (5, 1, 3, 4, 2), (5, 1, 3, 4, 2), (60, 2), 120, 60, (2, 5, 5)),
    ]


def test_numpy_integers_are_sizes_as_well(be: Backend) -> None:
    n = np.int64
    conv = be.conv_layer("float32", n(1), n(2), n(3), 1, n(4), n(5), 1, n(2), 2, 0, n(1), 0, 1, n(2), 1, n(1), n(1), 1)
    pool = be.pool_layer("float32", "max", n(1), n(2), n(1), n(4), 4, S=n(2), R=n(2), str_h=n(2), pad_w=n(1))
    deconv = be.deconv_layer("float32", n(1), n(2), n(3), n(4), n(5), n(2), 2, 0, n(1), 0, 1, n(2), 1)
    lrn = be.lrn_layer("float32", n(1), n(2), n(1), n(4), n(4), n(3))
    for layer in (conv, pool, deconv, lrn):
        assert {type(x) for x in (*layer.dimI, *layer.dimO, *layer.padding, *layer.strides)} == {int}
    O = be.fprop_pool(pool, be.ones(pool.dimI), be.zeros(pool.dimO), places := be.zeros(pool.dimO, "uint8"))
    assert (be.bprop_pool(pool, O, be.zeros(pool.dimI), places).get() <= 1).all()


# --- call forms ------------------------------------------------------------------------------------------------------


@pytest.fixture
def s(be: Backend) -> SimpleNamespace:
    """A small convolution: its layer object, tensors, and truth."""
    case = Conv(2, 3, 4, (1, 5, 4), (1, 3, 2), (0, 1, 0), (1, 2, 1))
    t = conv_truth(case)
    s = SimpleNamespace(be=be, t=t, layer=conv_layer(be, "float64", case), case=case)
    for name in "ifeodu":
        shape = getattr(t, name).shape
        setattr(s, name.upper(), be.array(getattr(t, name).reshape(-1, shape[-1]), "float64", name=name.upper()))
    for name, n in (("K", 4), ("C", 3)):
        s.__dict__[f"bias_{name}"] = be.array(values(5, n, 1), "float64")
        s.__dict__[f"bsum_{name}"] = be.array(np.full((n, 1), np.nan), "float32")
    s.X = be.array(np.round(values(6, *s.O.shape)), "float64")  # of both signs, and 0
    s.Y = be.array(np.round(values(6, *s.I.shape)), "float64")
    return s


def fresh(s: SimpleNamespace, like: Tensor) -> Tensor:
    return s.be.array(np.full(like.shape, 0.5), "float64")


def maps(x: Any) -> Any:
    return x.reshape(len(x), -1)


def test_alpha_scales_with_and_without_beta(s: SimpleNamespace) -> None:
    near(s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), alpha=3), 3 * s.t.o, "fprop")
    near(s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), alpha=3, beta=2), 3 * s.t.o + 1, "fprop")
    near(s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), alpha=3), 3 * s.t.d, "bprop")
    near(s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), alpha=3, beta=2), 3 * s.t.d + 1, "bprop")
    near(s.be.update_conv(s.layer, s.I, s.E, fresh(s, s.F), alpha=3), 3 * s.t.u, "update")
    near(s.be.update_conv(s.layer, s.I, s.E, fresh(s, s.F), alpha=3, beta=2.0), 3 * s.t.u + 1, "update")


def test_numpy_scalars_are_accepted(s: SimpleNamespace) -> None:
    a, b = np.float64(3), np.float32(2)
    near(s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), alpha=a, beta=b), 3 * s.t.o + 1, "fprop")
    near(s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), np.float32(3)), 3 * s.t.o, "fprop")
    near(s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), alpha=a, beta=b), 3 * s.t.d + 1, "bprop")
    near(s.be.update_conv(s.layer, s.I, s.E, fresh(s, s.F), alpha=a, beta=b), 3 * s.t.u + 1, "update")
    pool = s.be.pool_layer("float64", "max", 2, 1)
    two, half = s.be.array([[1, 2]], "float64"), s.be.array([[0.5, 0.5]], "float64")
    assert s.be.fprop_pool(pool, two, half, beta=b).get().tolist() == [[2, 3]]
    assert s.be.bprop_pool(pool, two, two, half, alpha=a, beta=b).get().tolist() == [[7, 12]]
    lrn = s.be.lrn_layer("float64", 2, 1)
    O, D, denom = (s.be.zeros((1, 2), "float64") for _ in range(3))
    near(s.be.fprop_lrn(lrn, two, O, denom, a, np.int32(0), b, np.float16(1)), np.array([[1, 2 / 3]]), "lrn")
    s.be.fprop_lrn(lrn, two, O, denom, None, None, b, np.float16(1))
    near(
        s.be.bprop_lrn(lrn, two, O, two, D, denom, a, np.int32(0), b, np.float16(1)),
        np.array([[-1 / 3, -14 / 27]]),
        "lrn",
    )


def test_beta_adds_X_instead_of_the_target(s: SimpleNamespace) -> None:
    before = s.X.get(), s.Y.get()
    O = s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), X=s.X, beta=2.0)
    near(O, s.t.o + 2 * before[0].reshape(s.t.o.shape), "fprop")
    D = s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), X=s.Y, beta=2.0)
    near(D, s.t.d + 2 * before[1].reshape(s.t.d.shape), "bprop")
    assert np.array_equal(s.X.get(), before[0])
    assert np.array_equal(s.Y.get(), before[1])
    near(s.be.fprop_conv(s.layer, s.I, s.F, s.X, X=s.X, beta=2), s.t.o + 2 * before[0].reshape(s.t.o.shape), "same")


def test_with_beta_nothing_else_is_done(s: SimpleNamespace) -> None:
    more = {"bias": s.bias_K, "bsum": s.bsum_K, "relu": True, "slope": 0.1, "X": s.X}
    near(s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), beta=1, **more), s.t.o + maps_like(s.X, s.t.o), "fprop")
    more = {"bias": s.bias_C, "bsum": s.bsum_C, "brelu": True, "slope": 0.1, "X": s.Y}
    near(s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), beta=1, **more), s.t.d + maps_like(s.Y, s.t.d), "bprop")
    assert np.isnan(s.bsum_K.get()).all()
    assert np.isnan(s.bsum_C.get()).all()


def maps_like(t: Tensor, wanted: Any) -> Any:
    return t.get().reshape(wanted.shape)


AFTER: list[dict[str, Any]] = [
    {"bias": True},
    {"bsum": True},
    {"relu": True},
    {"relu": True, "slope": 0.25},
    {"slope": 0.25},
    {"brelu": True},
    {"brelu": True, "slope": 0.25},
    {"brelu": True, "relu": True},
    {"bias": True, "relu": True, "bsum": True, "alpha": -2.0},
    {"bias": True, "brelu": True, "slope": -1.0, "bsum": True, "alpha": 0.5},
    {"bias": True, "relu": True, "slope": 2, "bsum": True, "X": True},
]


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("after", AFTER, ids=str)
def test_bias_then_relu_then_sums_follow(s: SimpleNamespace, after: dict[str, Any], forward: bool) -> None:
    bias, bsum, X = (s.bias_K, s.bsum_K, s.X) if forward else (s.bias_C, s.bsum_C, s.Y)
    wanted = maps(s.t.o if forward else s.t.d) * after.get("alpha", 1)
    slope, x = after.get("slope", 0), X.get().reshape(wanted.shape)
    if "bias" in after:
        wanted = wanted + bias.get()
    if "brelu" in after:
        wanted = wanted * np.where(x > 0, 1, np.where(x < 0, slope, 0))
    elif "relu" in after:
        wanted = np.where(wanted > 0, wanted, slope * wanted)
    given = after | {k: t for k, t in (("bias", bias), ("bsum", bsum)) if k in after}
    if "brelu" in after or "X" in after:
        given["X"] = X
    if forward:
        got = s.be.fprop_conv(s.layer, s.I, s.F, fresh(s, s.O), **given)
    else:
        got = s.be.bprop_conv(s.layer, s.F, s.E, fresh(s, s.I), **given)
    near(got, wanted, after)
    if "bsum" in after:
        near(bsum, wanted.sum(axis=1, keepdims=True), after, "float32")
    else:
        assert np.isnan(bsum.get()).all()


def test_a_layer_object_may_ask_for_relu(s: SimpleNamespace) -> None:
    sizes = (2, 3, 4, 1, 5, 4, 1, 3, 2, 0, 1, 0, 1, 2, 1)
    for layer in (s.be.conv_layer("float64", *sizes, True), s.be.conv_layer("float64", *sizes, relu=True, bsum=True)):
        assert layer.dilation == (1, 1, 1)
        near(s.be.fprop_conv(layer, s.I, s.F, fresh(s, s.O)), np.maximum(s.t.o, 0), "relu")


def test_dilations_come_by_position_or_name(be: Backend) -> None:
    start = (2, 3, 4, 1, 7, 7, 1, 3, 3, 0, 0, 0, 1, 1, 1)
    for layer in (
        be.conv_layer("float32", *start, 1, 2, 3),
        be.conv_layer("float32", *start, dil_h=2, dil_w=3),
        be.conv_layer("float32", *start, 1, dil_h=2, dil_w=3),
        be.conv_layer("float32", *start, 1, 2, dil_w=3),
        be.conv_layer("float32", *start, False, False, 1, 2, 3),
    ):
        assert layer.dilation == (1, 2, 3)
        assert not layer.relu
        assert layer.MPQ == (1, 3, 1)


# What is called, and what the target, 0.5 all over before, holds after it.
# fmt: off
FORMS: list[tuple[str, str]] = [
    ("fprop_conv(layer, I, F, O)", "o"),
    # as the guide does: alpha, relu, repeat
    ("fprop_conv(layer, I, F, O, 2.0)", "2 * o"),
    ("fprop_conv(layer, I, F, O, 2)", "2 * o"),
    ("fprop_conv(layer, I, F, O, 2.0, True)", "2 * relu(o)"),
    ("fprop_conv(layer, I, F, O, 2.0, False)", "2 * o"),
    ("fprop_conv(layer, I, F, O, 1.0, True, 3)", "relu(o)"),
    ("fprop_conv(layer, I, F, O, 1.0, False, 3)", "o"),
    ("fprop_conv(layer, I=I, F=F, O=O, alpha=2.0, relu=True, repeat=2)", "2 * relu(o)"),
    ("fprop_conv(layer, I, F, O, 2.0, relu=True)", "2 * relu(o)"),
    ("fprop_conv(layer, I, F, O, 2.0, bias=bias_K)", "2 * o + b"),
    # as neon does: X, bias, bsum, alpha, beta, relu, brelu, slope, layer_op
    ("fprop_conv(layer, I, F, O, None, bias_K, bsum_K, 2.0, 0.0, True, False, 0.0, None)", "relu(2 * o + b)"),
    ("fprop_conv(layer, I, F, O, X, None, None, 1.0, 2.0)", "o + 2 * x"),
    ("fprop_conv(layer=layer, I=I, F=F, O=O, bias=bias_K, layer_op=object())", "o + b"),
    ("bprop_conv(layer, F, E, D)", "d"),
    ("bprop_conv(layer, F, E, D, 2.0)", "2 * d"),
    ("bprop_conv(layer, F, E, D, 2.0, 3)", "2 * d"),
    ("bprop_conv(layer, F=F, E=E, grad_I=D, alpha=2.0, repeat=2)", "2 * d"),
    ("bprop_conv(layer, F, E, D, 2.0, bias=bias_C)", "2 * d + c"),
    ("bprop_conv(layer, F, E, D, None, bias_C, bsum_C, 2.0, 0.0, True, False, 0.0, None)", "relu(2 * d + c)"),
    ("bprop_conv(layer, F, E, D, Y, None, None, 1.0, 2.0)", "d + 2 * y"),
    ("bprop_conv(layer, F, E, grad_I=D, alpha=1.0, beta=1.0)", "d + 0.5"),
    ("update_conv(layer, I, E, U)", "u"),
    ("update_conv(layer, I, E, U, 2.0)", "2 * u"),
    ("update_conv(layer, I, E, U, 2.0, 3)", "2 * u"),
    ("update_conv(layer, I=I, E=E, grad_F=U, alpha=2.0, repeat=2)", "2 * u"),
    ("update_conv(layer, I, E, U, 2.0, 1.0, bias_K, None)", "2 * u + 0.5"),
    ("update_conv(layer, I, E, U=U, grad_bias=bias_K, layer_op=None)", "u"),
]
# fmt: on


@pytest.mark.parametrize(("call", "wanted"), FORMS, ids=[call for call, _ in FORMS])
def test_convolutions_are_called_as_the_guide_and_as_neon_do(s: SimpleNamespace, call: str, wanted: str) -> None:
    for name in "ODU":
        s.__dict__[name].fill(0.5)
    named = {
        **vars(s.t),
        "relu": lambda x: np.maximum(x, 0),
        "x": maps_like(s.X, s.t.o),
        "y": maps_like(s.Y, s.t.d),
        "b": s.bias_K.get()[..., None, None, None],
        "c": s.bias_C.get()[..., None, None, None],
    }
    near(eval(f"be.{call}", vars(s)), eval(wanted, named), call)


def test_the_gradient_of_a_bias_is_the_sum_of_errors_and_does_not_add_up(s: SimpleNamespace) -> None:
    for beta in (0.0, 1.0):
        s.be.update_conv(s.layer, s.I, s.E, fresh(s, s.F), beta=beta, grad_bias=s.bias_K)
        near(s.bias_K, maps(s.t.e).sum(axis=1, keepdims=True), beta)


def test_deconvolutions_are_made_as_the_guide_and_as_neon_do(be: Backend) -> None:
    for layer in (
        be.deconv_layer("float32", 2, 3, 4, 5, 6, 3, 2, 0, 1, 0, 1, 2, 3),  # the guide's: P, Q, R, S ...
        be.deconv_layer("float32", 2, 3, 4, P=5, Q=6, R=3, S=2, pad_d=0, pad_h=1, pad_w=0, str_d=1, str_h=2, str_w=3),
        be.deconv_layer("float32", N=2, C=3, K=4, P=5, Q=6, R=3, S=2, pad_h=1, str_h=2, str_w=3),
        be.deconv_layer("float32", 2, 3, 4, 5, 6, 3, 2, pad_h=1, str_h=2, str_w=3),
        be.deconv_layer("float32", 2, 3, 4, 5, 6, R=3, S=2, pad_h=1, str_h=2, str_w=3),
        be.deconv_layer("float32", 2, 3, 4, 1, 5, 6, 1, 3, 2, 0, 1, 0, 1, 2, 3),  # neon's: M, P, Q, T, R, S ...
        be.deconv_layer("float32", 2, 3, 4, 1, 5, 6, 1, 3, 2, 0, 1, 0, 1, 2, 3, 1, 1, 1),
        be.deconv_layer("float32", 2, 3, 4, 1, 5, 6, 1, 3, 2, pad_h=1, str_h=2, str_w=3, dil_d=1),
    ):
        assert (layer.dimI, layer.dimO, layer.dimF) == ((3, 1, 9, 17, 2), (4, 1, 5, 6, 2), (3, 1, 3, 2, 4))
        assert layer.dilation == (1, 1, 1)
    assert be.deconv_layer("float32", 2, 3, 4, 5, 6).dimI == (3, 1, 5, 6, 2)


POOL_CASES = {
    "smaller": Pool(2, (2, 1, 5, 4), (1, 1, 3, 2), (0, 0, 1, 0), (1, 1, 2, 1)),
    "as large": Pool(2, (2, 1, 4, 5), (1, 1, 3, 3), (0, 0, 1, 1)),
    "larger": Pool(2, (1, 1, 2, 2), (1, 1, 2, 2), (0, 0, 1, 1)),
}


# fmt: off
POOL_FORMS: list[tuple[str, str]] = [
    ("max avg l2", "bprop_pool(layer, I, E, D)"),  # the guide's
    ("max avg l2", "bprop_pool(layer, I=I, E=E, grad_I=D)"),
    ("max avg l2", "bprop_pool(layer, I, E, delta=D)"),
    ("max avg l2", "bprop_pool(layer, I, E, D, 1.0, 0.0)"),
    ("max avg l2", "bprop_pool(layer, I, E, D, argmax=places)"),
    ("max avg", "bprop_pool(layer, E, D, places)"),  # neon's
    ("max avg", "bprop_pool(layer, E, D, places, 1.0, 0.0)"),
    ("max avg", "bprop_pool(layer, E, D, argmax=places)"),
    ("max avg", "bprop_pool(layer, E, delta=D, argmax=places)"),
    ("max avg", "bprop_pool(layer, E=E, delta=D, argmax=places)"),
    ("max avg", "bprop_pool(layer, E=E, grad_I=D, argmax=places)"),
    ("max avg", "bprop_pool(layer, E, grad_I=D, argmax=places)"),
    ("avg", "bprop_pool(layer, E, D)"),
    ("avg", "bprop_pool(layer, E, D, None, 1.0, 0.0)"),
]
# fmt: on


@pytest.mark.parametrize("case", POOL_CASES.values(), ids=POOL_CASES)
@every_op
def test_the_error_of_pooling_is_asked_for_as_the_guide_and_as_neon_do(be64: Backend, op: str, case: Pool) -> None:
    be, t = be64, pool_truth(op, case)
    layer, I, E = pool_layer(be, "float64", op, case), be.array(t.i), be.array(t.e)
    places = be.array(t.places, dtype="int32")
    for ops, call in POOL_FORMS:
        if op in ops:
            D = be.array(np.full(t.d.shape, np.nan))
            near(eval(f"be.{call}", {**locals()}), t.d, call)


def test_argmax_may_have_any_integer_dtype(be: Backend) -> None:
    case = POOL_CASES["smaller"]
    truth, layer = pool_truth("max", case), pool_layer(be, "float32", "max", case)
    I, E = be.array(truth.i), be.array(truth.e)
    for dtype in ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64"):
        if dtype in be.runtime.dtypes:
            places = be.zeros((layer.dimO2), dtype)
            be.fprop_pool(layer, I, be.zeros(layer.dimO2), places)
            np.testing.assert_array_equal(places.get().reshape(layer.dimO), truth.places)
            near(be.bprop_pool(layer, E, be.zeros(layer.dimI2), places), truth.d, dtype, "float32")


# --- special values --------------------------------------------------------------------------------------------------


def test_the_first_of_equal_maxima_takes_the_error(be64: Backend) -> None:
    be = be64
    layer = be.pool_layer("float64", "max", 1, 2, 2, 2, 2, 2, 2, 2, 2)
    places, O = be.zeros((1, 1), dtype="int32"), be.zeros((1, 1))
    for n in range(16):  # cells in the order C, D, H, W
        i = np.zeros((16, 1))
        i[n:] = 5
        be.fprop_pool(layer, be.array(i), O, places)
        assert (O.get().item(), places.get().item()) == (5, n)
        D = be.bprop_pool(layer, be.ones((1, 1)), be.zeros((16, 1)), places)
        assert D.get().ravel().tolist() == [float(k == n) for k in range(16)]


def test_overlapping_windows_add_their_errors(be64: Backend) -> None:
    be = be64
    layer = be.pool_layer("float64", "max", 1, 1, 1, 1, 5, 1, 1, 1, 3, str_w=1)
    I, E = be.array([[0], [1], [9], [1], [0]]), be.array([[1], [10], [100]])
    assert be.bprop_pool(layer, I, E, be.zeros((5, 1))).get().ravel().tolist() == [0, 0, 111, 0, 0]
    layer = be.pool_layer("float64", "avg", 1, 1, 1, 1, 3, 1, 1, 1, 2, pad_w=1, str_w=1)
    O, D = be.fprop_pool(layer, be.array([[2], [4], [8]]), be.zeros((4, 1))), be.zeros((3, 1))
    assert O.get().ravel().tolist() == [2, 3, 6, 8]  # cells of the padding do not count
    assert be.bprop_pool(layer, be.array([[1], [2], [4], [8]]), D).get().ravel().tolist() == [2, 3, 10]


def test_maxima_of_minus_infinity_and_nan_have_an_argmax(be64: Backend) -> None:
    be, inf, nan = be64, np.inf, np.nan
    layer = be.pool_layer("float64", "max", 8, 1, 1, 1, 3, 1, 1, 1, 4, pad_w=1)
    i = np.array(
        [
            [-inf, -inf, 1, nan, 1, nan, -inf, inf],
            [-inf, 5, inf, 1, nan, nan, nan, nan],
            [-inf, -inf, inf, 2, nan, 3, -inf, 1],
        ]
    )
    I, O, places = be.array(i), be.zeros((1, 8)), be.zeros((1, 8), dtype="uint8")
    be.fprop_pool(layer, I, O, places)
    np.testing.assert_array_equal(O.get(), [[-inf, 5, inf, nan, nan, nan, nan, nan]])
    found = i.argmax(axis=0)  # the first NaN, if there is one
    assert places.get().ravel().tolist() == (found + 1).tolist()  # index 0 is padding
    np.testing.assert_array_equal(be.fprop_pool(layer, I, be.zeros((1, 8))).get(), O.get())
    taken = (np.arange(3)[:, None] == found).astype(float)
    for D in (
        be.bprop_pool(layer, be.ones((1, 8)), be.zeros((3, 8)), places),
        be.bprop_pool(layer, I, be.ones((1, 8)), be.zeros((3, 8))),
    ):
        np.testing.assert_array_equal(D.get(), taken)


def test_windows_of_minus_infinity_have_their_first_cell_as_argmax(be: Backend) -> None:
    for case in tried(be, POOL):
        layer = pool_layer(be, "float32", "max", case)
        I, O, places = be.zeros(layer.dimI), be.zeros(layer.dimO), be.zeros(layer.dimO, dtype="int32")
        be.fprop_pool(layer, I.fill(-np.inf), O, places)
        wanted = textbook.pool("max", I.get(), *case.geometry)
        np.testing.assert_array_equal(O.get(), wanted[0], err_msg=str(case))
        np.testing.assert_array_equal(places.get(), wanted[1], err_msg=str(case))


def test_infinities_and_nan_follow_the_formulas(be64: Backend) -> None:
    be, inf, nan = be64, np.inf, np.nan
    i = np.array([[1, inf, nan, 0], [2, 1, 1, 0.0]])
    I, E = be.array(i), be.ones((1, 4))
    for op, sums, errors in (
        ("avg", [1.5, inf, nan, 0], [[0.5] * 4, [0.5] * 4]),
        ("l2", [math.sqrt(5), inf, nan, 0], [[math.sqrt(0.2), nan, nan, 0], [math.sqrt(0.8), 0, nan, 0]]),
    ):
        layer = be.pool_layer("float64", op, 4, 1, 1, 1, 2, 1, 1, 1, 2)
        near(be.fprop_pool(layer, I, be.zeros((1, 4))), np.array([sums]), op)
        near(be.bprop_pool(layer, I, E, be.zeros((2, 4))), np.array(errors), op)
    layer = be.conv_layer("float64", 4, 1, 1, 1, 1, 2, 1, 1, 1)
    near(be.fprop_conv(layer, I, be.array([[2]]), be.zeros((2, 4))), 2 * i, "a NaN stays in its window")
    layer = be.lrn_layer("float64", 4, 2, J=1)
    O, denom = be.zeros((2, 4)), be.zeros((2, 4))
    near(be.fprop_lrn(layer, I, O, denom), np.array([[0.5, nan, nan, 0], [0.4, 0.5, 0.5, 0]]), "lrn")


# --- memory: what is written where -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """A primitive: how it is called with a result and operands, and the shapes of these."""

    run: Callable[..., Any]
    out: tuple[int, ...]
    operands: list[tuple[int, ...]]


def calls(be: Backend) -> dict[str, Call]:
    conv = be.conv_layer("float64", 2, 3, 4, 1, 5, 4, 1, 3, 2, 0, 1, 0, 1, 2, 1)
    pools = {
        op: be.pool_layer("float64", op, 2, 3, 1, 4, 3, 1, 1, 2, 2, str_h=1, str_w=1, pad_w=1)
        for op in ("max", "avg", "l2")
    }
    lrn = be.lrn_layer("float64", 2, 3, 1, 2, 2, 3)
    i, f, o = (conv.dimI2, conv.dimF2, conv.dimO2)
    many = {
        "fprop_conv": Call(lambda O, I, F, **more: be.fprop_conv(conv, I, F, O, **more), o, [i, f]),
        "fprop_conv beta": Call(lambda O, I, F, X: be.fprop_conv(conv, I, F, O, X=X, beta=2.0), o, [i, f, o]),
        "fprop_conv brelu": Call(lambda O, I, F, X: be.fprop_conv(conv, I, F, O, X=X, brelu=True), o, [i, f, o]),
        "fprop_conv bias": Call(lambda O, I, F, b: be.fprop_conv(conv, I, F, O, bias=b, relu=True), o, [i, f, (4, 1)]),
        "fprop_conv bsum": Call(
            lambda b, I, F: be.fprop_conv(conv, I, F, be.zeros(o, "float64"), bsum=b), (4, 1), [i, f]
        ),
        "bprop_conv": Call(lambda D, F, E, **more: be.bprop_conv(conv, F, E, D, **more), i, [f, o]),
        "bprop_conv brelu": Call(lambda D, F, E, X: be.bprop_conv(conv, F, E, D, X=X, brelu=True), i, [f, o, i]),
        "update_conv": Call(lambda U, I, E, **more: be.update_conv(conv, I, E, U, **more), f, [i, o]),
        "grad_bias": Call(
            lambda b, I, E: be.update_conv(conv, I, E, be.zeros(f, "float64"), grad_bias=b), (4, 1), [i, o]
        ),
        "fprop_lrn": Call(
            lambda O, I, **more: be.fprop_lrn(lrn, I, O, be.zeros(lrn.dimI, "float64"), bpower=0.5, **more),
            *(lrn.dimI2, [lrn.dimI2]),
        ),
        "denom": Call(lambda d, I: be.fprop_lrn(lrn, I, be.zeros(lrn.dimI, "float64"), d), lrn.dimI2, [lrn.dimI2]),
        "bprop_lrn": Call(
            lambda D, I, O, E, d, **more: be.bprop_lrn(lrn, I, O, E, D, d, bpower=0.5, **more),
            *(lrn.dimI2, [lrn.dimI2] * 4),
        ),
    }
    for op, pool in pools.items():
        i, o = pool.dimI2, pool.dimO2
        many[f"fprop_pool {op}"] = Call(lambda O, I, pool=pool, **more: be.fprop_pool(pool, I, O, **more), o, [i])
        many[f"bprop_pool {op}"] = Call(
            lambda D, I, E, pool=pool, **more: be.bprop_pool(pool, I, E, D, **more), i, [i, o]
        )
    return many


def operands(be: Backend, call: Call) -> list[Tensor]:
    return [be.array(values(n, *shape) + (n == 3), "float64") for n, shape in enumerate(call.operands)]


class Guard:
    """Primitives that refuse to write where they read, so that fast ones may write before they have read all."""

    results: ClassVar = {
        "conv_fprop": {3},
        "try_conv_bias": {3},
        "conv_bprop": {3},
        "conv_update": {3},
        "pool_fprop": {2, 3},
        "pool_bprop": {3},
        "lrn_fprop": {2, 3},
        "lrn_bprop": {3},
    }

    def __init__(self, primitives: Any) -> None:
        self.primitives, self.supports_nhwc = primitives, primitives.supports_nhwc

    def __getattr__(self, name: str) -> Any:
        def guarded(*args: Any) -> Any:
            each = {n: getattr(x, "array", x) for n, x in enumerate(args)}
            if name == "pool_bprop" and args[0].op == "avg":
                del each[1]  # of the images only the layout is used
            arrays = {n: x for n, x in each.items() if isinstance(x, np.ndarray)}
            for n in self.results.get(name, set()) & {*arrays}:
                assert not any(np.shares_memory(arrays[n], x) for m, x in arrays.items() if m != n), (name, n)
            return getattr(self.primitives, name)(*args)

        return guarded


def test_a_target_may_share_memory_with_any_operand(be: Backend) -> None:
    be.primitives = Guard(be.primitives)
    for name, call in calls(be).items():
        apart = operands(be, call)
        wanted = call.run(out := be.zeros(call.out, "float64"), *apart) and out.get()
        for n, x in enumerate(apart):
            for shift in {0, 1, x.size - 1}:
                whole = be.zeros((x.size + shift + math.prod(call.out), 1), "float64")
                operand = whole[shift : shift + x.size].reshape(x.shape)
                target = whole[: math.prod(call.out)].reshape(call.out)
                operand[:] = x
                call.run(target, *apart[:n], operand, *apart[n + 1 :])
                near(target, wanted, (name, n, shift))


ADDING = ["fprop_conv", "bprop_conv", "update_conv", "fprop_lrn", "bprop_lrn"]
ADDING += [f"{way}_pool {op}" for way in ("fprop", "bprop") for op in ("max", "avg", "l2")]


def test_a_target_with_beta_may_be_strided_or_share_memory(be: Backend) -> None:
    for name, call in calls(be).items():
        if name not in ADDING:
            continue
        apart = operands(be, call)
        call.run(out := be.zeros(call.out, "float64"), *apart)
        target, _ = gapped(be, np.full(call.out, 0.5), 2)
        call.run(target, *apart, beta=2.0)
        near(target, out.get() + 1, name)
        for n, x in enumerate(apart):
            whole = be.ones((x.size + math.prod(call.out), 1), "float64")
            operand, target = whole[1 : 1 + x.size].reshape(x.shape), whole[: math.prod(call.out)].reshape(call.out)
            operand[:] = x
            held = target.get()
            call.run(target, *apart[:n], operand, *apart[n + 1 :], beta=2.0)
            near(target, out.get() + 2 * held, (name, n))


def test_repeated_work_over_an_operand_begins_with_what_it_held(be64: Backend) -> None:
    layer = be64.conv_layer("float64", 1, 1, 1, H=1, W=3)
    I, F = be64.array([[1], [2], [3]]), be64.array([[2]])
    assert be64.fprop_conv(layer, I, F, be64.zeros((3, 1)), repeat=3).get().ravel().tolist() == [2, 4, 6]


def test_no_operand_is_changed(be: Backend) -> None:
    for name, call in calls(be).items():
        given = operands(be, call)
        before = [x.get() for x in given]
        call.run(be.zeros(call.out, "float64"), *given)
        for n, x in enumerate(given):
            assert np.array_equal(x.get(), before[n]), (name, n)


def gapped(be: Backend, value: Any, step: int) -> tuple[Tensor, Tensor]:
    """Return a view of every other column, or of the first ones, that holds a value; and the whole, 7 elsewhere."""
    rows, columns = value.shape
    whole = be.array(np.full((rows, columns * 2 + 1), 7.0), value.dtype.name)
    view = whole[:, ::2][:, :columns] if step == 2 else whole[:, :columns]
    view[:] = be.array(value, value.dtype.name)
    assert view.is_contiguous == (value.shape[0] == 1 and step == 1)
    return view, whole


@pytest.mark.parametrize("step", [1, 2])
def test_operands_and_targets_may_be_strided(be: Backend, step: int) -> None:
    for name, call in calls(be).items():
        given = operands(be, call)
        call.run(out := be.zeros(call.out, "float64"), *given)
        target, whole = gapped(be, np.full(call.out, np.nan), step)
        call.run(target, *(gapped(be, x.get(), step)[0] for x in given))
        near(target, out.get(), name)
        assert (whole.get() == 7).sum() == whole.size - target.size, name


def test_argmax_may_be_strided(be64: Backend) -> None:
    be = be64
    case = POOL_CASES["smaller"]
    t, layer = pool_truth("max", case), pool_layer(be, "float64", "max", case)
    places, whole = gapped(be, np.full(layer.dimO2, 5, np.int32), 1)
    be.fprop_pool(layer, be.array(t.i), be.zeros(layer.dimO2), places)
    np.testing.assert_array_equal(places.get().reshape(t.places.shape), t.places)
    assert (whole.get()[:, layer.N :] == 7).all()
    near(be.bprop_pool(layer, be.array(t.e), be.zeros(layer.dimI2), places), t.d, case)


def test_bias_and_sums_may_be_strided(s: SimpleNamespace) -> None:
    bias, _ = gapped(s.be, s.bias_K.get().T.copy(), 2)
    bsum, _ = gapped(s.be, np.zeros((1, 4)), 2)
    near(
        s.be.fprop_conv(s.layer, s.I, s.F, s.O, bias=bias, bsum=bsum), s.t.o + s.bias_K.get()[..., None, None, None], 0
    )
    near(bsum, maps(s.O.get().reshape(s.t.o.shape)).sum(axis=1)[None], "bsum")
    s.be.update_conv(s.layer, s.I, s.E, s.U, grad_bias=bsum)
    near(bsum, maps(s.t.e).sum(axis=1)[None], "grad_bias")


def test_filters_and_errors_may_be_transposed_views(s: SimpleNamespace) -> None:
    F, I, E = (s.be.array(x.get().T.copy(), "float64").T for x in (s.F, s.I, s.E))
    assert not F.is_contiguous
    near(s.be.fprop_conv(s.layer, I, F, fresh(s, s.O)), s.t.o, "fprop")
    near(s.be.bprop_conv(s.layer, F, E, fresh(s, s.I)), s.t.d, "bprop")
    U = s.be.zeros(s.F.shape[::-1], "float64").T
    near(s.be.update_conv(s.layer, I, E, U), s.t.u, "update")


def test_tensors_may_have_any_shape_of_as_many_elements(s: SimpleNamespace) -> None:
    flat, wide = s.I.reshape(-1, 1), s.F.reshape(s.layer.dimF)
    O = s.be.zeros((1, s.O.size), "float64")
    near(s.be.fprop_conv(s.layer, flat, wide, O), s.t.o, "flat")


def test_dtypes_are_the_layers_and_not_the_backends(be64: Backend) -> None:
    case = Conv(2, 3, 4, (1, 5, 4), (1, 3, 2), (0, 1, 0), (1, 2, 1))
    t, layer = conv_truth(case), conv_layer(be64, "float32", case)
    I, F, O = be64.array(t.i, "float32"), be64.array(t.f, "float32"), be64.zeros(layer.dimO, "float32")
    be64.fprop_conv(layer, I, F, O, relu=True, slope=0.5, bias=be64.zeros((4, 1)), bsum=(bsum := be64.zeros((4, 1))))
    assert (O.info.dtype, bsum.info.dtype) == ("float32", "float64")
    near(O, np.where(t.o > 0, t.o, t.o / 2), case, "float32")
