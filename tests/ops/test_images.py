"""The ops of images where they are more than sums of products: NaN, ties, infinities, integers, and numbers of windows.

``test_every_op.py`` compares their values and derivatives with reference loops.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from helpers.op_cases import CASES
from helpers.runtimes import lacks

from neonlite import Autodiff, Backend
from neonlite.ops.images import num_windows

NAN, INF = math.nan, math.inf


def test_the_cases_have_every_kind() -> None:
    kinds: list[str] = []
    for (x, f), attrs in [(case.operands, case.attrs) for case in CASES["conv"]]:
        window, padding, groups = f[1:-1], attrs["padding"], attrs["groups"]
        kinds.append(f"{len(window)} axes")
        kinds += ["strides"] * (max(attrs["strides"]) > 1) + ["dilation"] * (max(attrs["dilation"]) > 1)
        kinds += ["unequal padding"] * any(a != b for a, b in padding) + ["groups"] * (groups > 1 and f[0] > 1)
        kinds += ["depthwise"] * (groups == x[0] > 1) + ["empty"] * (0 in x + f)
        kinds += ["a window in the padding"] * any(a >= k or b >= k for k, (a, b) in zip(window, padding, strict=True))
    for (x,), attrs in [(case.operands, case.attrs) for case in CASES["max_pool"]]:
        axes = list(zip(x, attrs["window"], attrs["strides"], attrs["padding"], strict=False))
        kinds += ["channel windows"] * (attrs["window"][0] > 1) + ["overlap"] * any(k > s for _, k, s, _ in axes)
        kinds += ["gaps"] * any(s > k for _, k, s, _ in axes) + ["empty pool"] * (0 in x)
        kinds += ["unequal pool"] * any(a != b for *_, (a, b) in axes)
        last = [(-(-(n + a + b - k) // s)) * s + k > n + a + b for n, k, s, (a, b) in axes]
        kinds += ["partial window"] * (attrs["ceil"] and any(last))
    counts = {kind: kinds.count(kind) for kind in kinds}
    assert len(counts) == 16
    assert {kind: n for kind, n in counts.items() if n < (1 if "empty" in kind else 3)} == {}


def test_the_number_of_windows_is_that_of_their_starts() -> None:
    sizes, pads = range(1, 8), range(3)
    for size, k, stride, before, after, dilation in itertools.product(
        sizes, range(1, 4), (1, 2, 3), pads, pads, (1, 2)
    ):
        span = dilation * (k - 1) + 1
        starts = range(-before, size + after - span + 1, stride)
        if not starts:
            with pytest.raises(ValueError, match=f"a window of {span} .*size {k}, dilation {dilation}"):
                num_windows(size, k, stride, (before, after), dilation)
            continue
        assert num_windows(size, k, stride, (before, after), dilation) == len(starts)
        if max(before, after) >= k:  # which be.pool refuses
            continue
        covered = starts[-1] + span >= size + after
        begins_inside = starts[-1] + stride < size
        assert num_windows(size, k, stride, (before, after), dilation, True) == len(starts) + (
            not covered and begins_inside
        )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_maximum_with_nan_is_nan_and_its_error_goes_to_the_first_nan(be: Backend, dtype: str) -> None:
    if lacks(be, dtype):
        return
    x = be.array([[[1], [NAN], [2], [NAN], [5], [INF], [-INF], [-INF]]], dtype=dtype)
    z = be.pool(x, 3, strides=1, padding=1)
    np.testing.assert_array_equal(be.astype(z, "float64").get().ravel(), [NAN] * 5 + [INF, INF, -INF])
    errors = be.array(np.arange(1, 9).reshape(1, 8, 1), dtype=dtype)
    (dx,) = Autodiff(z, be, errors).get_grad_op_tree([x])
    # windows that start at -1 to 2 have the first NaN at 1 and 3; the last window's maximum is the first -inf
    np.testing.assert_array_equal(be.astype(dx, "float64").get().ravel(), [0, 6, 0, 9, 0, 13, 8, 0])


def test_the_maximum_of_a_window_of_infinities_is_inside_the_image(be: Backend) -> None:
    x = be.array(np.full((1, 2, 2, 1), -INF))
    z = be.pool(x, 3, strides=2, padding=((1, 1), (1, 1)))
    (dx,) = Autodiff(z, be).get_grad_op_tree([x])
    np.testing.assert_array_equal(z.get(), np.full((1, 1, 1, 1), -INF))
    np.testing.assert_array_equal(dx.get().ravel(), [1, 0, 0, 0])


def test_a_window_of_more_than_256_pixels_has_indices_of_32_bits(be: Backend) -> None:
    x = np.zeros((2, 17, 18, 3), np.float32)
    x[0, 16, 16, 0] = x[1, 0, 0, 1] = x[1, 16, 17, 2] = 1
    t = be.array(x)
    (dx,) = Autodiff(be.pool(t, 17), be).get_grad_op_tree([t])
    assert "int32" in dx.pp()
    expected = np.zeros_like(x)
    expected[0, 16, 16, 0] = expected[1, 0, 0, 1] = 1
    expected[0, 0, 0, 1:] = expected[1, 0, 0, 0] = expected[1, 0, 0, 2] = 1  # of equal pixels, the first
    np.testing.assert_array_equal(dx.get(), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64"])
def test_the_maximum_of_integers_is_exact_and_a_mean_is_a_float(be: Backend, dtype: str) -> None:
    if lacks(be, dtype):
        return
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    x = be.array(np.array([[[low], [low], [high], [high - 1]]], dtype), dtype=dtype)
    z = be.pool(x, 2, padding=((1, 1),))
    assert (z.dtype, z.get().ravel().tolist()) == (dtype, [low, high, high - 1])
    mean = be.pool(x, 2, "avg")
    assert mean.dtype == "float32"
    np.testing.assert_allclose(mean.get().ravel(), [low, high - 0.5], rtol=1e-6)
