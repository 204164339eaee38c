"""Convolution, pooling and LRN on every runtime equal the loops of a textbook.

Tests ``neonlite/backend/primitives/__init__.py`` and
``neonlite/backend/runtimes/numpy/__init__.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers import textbook
from helpers.image_cases import Conv, Pool, conv_cases, conv_layer, lrn_cases, pool_cases, pool_layer, scaled, sizes
from helpers.image_primitives import (
    CONV,
    DECONV,
    FEW,
    NORM,
    POOL,
    Deconv,
    conv_truth,
    deconv_cases,
    deconv_layer,
    deconv_truth,
    every_op,
    first,
    near,
    pool_truth,
    start,
    tried,
    values,
)
from helpers.runtimes import lacks

from neonlite import Backend, Tensor
from neonlite.backend import primitives as reference_primitives
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.runtimes import numpy as numpy_pooling
from neonlite.backend.runtimes.numpy import NumPyPrimitives

both_dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


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


# --- a few windows at a time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("primitives", [ReferencePrimitives, NumPyPrimitives])
@pytest.mark.parametrize("nbytes", [1, 700, 1500, 10000])
def test_a_few_windows_at_a_time_give_the_same(
    be64: Backend, monkeypatch: pytest.MonkeyPatch, primitives: Any, nbytes: int
) -> None:
    if primitives is NumPyPrimitives and be64.name != "cpu":
        return
    be64.primitives = primitives(be64.runtime)
    monkeypatch.setattr(reference_primitives, "MAX_GATHERED_BYTES", nbytes)
    pieces = 0
    for case in [Conv(2, 3, 4, (2, 7, 5), (2, 3, 2), (1, 1, 1), (1, 2, 1), (1, 1, 2)), *tried(be64, CONV)[:60]]:
        layer, truth = conv_layer(be64, "float64", case), conv_truth(case)
        I, F, E = be64.array(truth.i), be64.array(truth.f), be64.array(truth.e)
        pieces = max(pieces, len(list(be64.primitives._iter_windows(layer, I._array))))
        for alpha, beta in ((1, 0), (0.5, -2)):
            O, D, U = be64.ones(layer.dimO), be64.ones(layer.dimI), be64.ones(layer.dimF)
            near(be64.fprop_conv(layer, I, F, O, alpha=alpha, beta=beta), alpha * truth.o + beta, case)
            near(be64.bprop_conv(layer, F, E, D, alpha=alpha, beta=beta), alpha * truth.d + beta, case)
            near(be64.update_conv(layer, I, E, U, alpha=alpha, beta=beta), alpha * truth.u + beta, case)
    assert pieces > 1


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
    monkeypatch.setattr(numpy_pooling, "MAX_GATHERED_PIXELS", limit)
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
