"""RoI pooling and non-maximum suppression, compared with loops over pixels and pairs of boxes.

Tests ``neonlite/backend/primitives/norm.py``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import lacks

from neonlite import Backend
from neonlite.backend.tensor import Tensor

Array = np.ndarray[Any, Any]
Size = tuple[int, ...]

DTYPES = pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])


def cases(be: Backend, few: int = 10) -> range:
    return range(100 if be.name == "cpu" else few)


# --- the textbook --------------------------------------------------------------------------------------------------


def half_up(x: float) -> int:
    return math.floor(x + 0.5)


def window(low: float, high: float, scale: float, bins: int, i: int, size: int) -> range:
    """Return the pixels of bin i of a region along an axis: whole pixels, in part counted, cut off at the border."""
    start = half_up(low * scale)
    length = max(half_up(high * scale) - start + 1, 1)
    first, after = start + i * length // bins, start - (-(i + 1) * length // bins)
    return range(min(max(first, 0), size), min(max(after, 0), size))


def pooled(images: Array, rois: Array, PH: int, PW: int, scale: float) -> tuple[Array, Array]:
    """Return the maximum of each bin and its pixel, ``h W + w``, the first of equals; 0 and -1 for an empty bin."""
    C, H, W, _ = images.shape
    out, argmax = np.zeros((C, PH, PW, len(rois))), np.full((C, PH, PW, len(rois)), -1)
    for r, (n, x1, y1, x2, y2) in enumerate(rois.tolist()):
        for c, i, j in np.ndindex(C, PH, PW):
            best = None
            for h in window(y1, y2, scale, PH, i, H):
                for w in window(x1, x2, scale, PW, j, W):
                    value = float(images[c, h, w, int(n)])
                    if best is None or value > best or (math.isnan(value) and not math.isnan(best)):
                        best = value
                        out[c, i, j, r], argmax[c, i, j, r] = value, h * W + w
    return out, argmax


def some_regions(rng: np.random.Generator, n: int, N: int, H: int, W: int, scale: float) -> Array:
    """Return regions in and around images: inverted, outside, at half pixels."""
    rois = np.zeros((n, 5))
    rois[:, 0] = rng.integers(0, N, n)
    for low, high, size in ((1, 3, W), (2, 4, H)):
        rois[:, low] = rng.uniform(-3, size + 3, n)
        rois[:, high] = rois[:, low] + rng.uniform(-2, size + 2, n)
    rois[:, 1:] = np.round(rois[:, 1:] * 2) / 2  # half pixels are common, and exact in every dtype
    rois[:, 1:] /= scale
    return rois


def laid(be: Backend, values: Array, shape: Size, dtype: str, rng: np.random.Generator) -> Tensor:
    """Return a tensor of values in a shape, dense or some columns of a wider one."""
    values = values.reshape(shape)
    if rng.integers(2):
        return be.array(values, dtype=dtype)
    whole = be.zeros((shape[0], shape[1] + 3), dtype=dtype)
    whole[:, 2:-1] = be.array(values, dtype=dtype)
    return whole[:, 2:-1]


def layouts(image: Size, bins: Size) -> tuple[Size, Size]:
    """Return 2-D shapes for images and bins, as layers have them: (everything else, N), (everything else, regions)."""
    return (math.prod(image[:3]), image[3]), (math.prod(bins[:3]), bins[3])


# --- pooling -------------------------------------------------------------------------------------------------------


@DTYPES
def test_each_bin_of_a_region_is_its_largest_pixel(be, rng, dtype):
    if lacks(be, dtype):
        return
    for case in cases(be):
        C, H, W, N, PH, PW = (int(n) for n in rng.choice([1, 2, 3, 5, 7, 8], 6))
        n, scale = int(rng.choice([0, 1, 2, 5])), float(rng.choice([1, 0.5, 0.25, 0.0625]))
        images = rng.integers(-4, 4, size=(C, H, W, N)) if case % 2 else rng.normal(size=(C, H, W, N))  # many ties
        rois = some_regions(rng, n, N, H, W, scale)
        image, bins = layouts((C, H, W, N), (C, PH, PW, n))
        x = laid(be, images, image, dtype, rng)
        regions = be.array(rois, dtype="float32")
        out, argmax = (laid(be, np.full(bins, 5), bins, t, rng) for t in (dtype, str(rng.choice(["int32", "int64"]))))
        assert be.roipooling_fprop(x, regions, out, argmax, n, C, H, W, PH, PW, scale) is out
        want, where = pooled(x.get().reshape(C, H, W, N), regions.get(), PH, PW, scale)
        assert np.array_equal(out.get().reshape(want.shape), want)
        assert np.array_equal(argmax.get().reshape(where.shape), where)


@DTYPES
def test_the_error_of_a_bin_goes_to_its_largest_pixel(be, rng, dtype):
    if lacks(be, dtype):
        return
    for _ in cases(be):
        C, H, W, N, PH, PW = (int(n) for n in rng.choice([1, 2, 3, 5, 7], 6))
        n, scale = int(rng.choice([0, 1, 2, 5])), float(rng.choice([1, 0.5]))
        images, rois = rng.normal(size=(C, H, W, N)), some_regions(rng, n, N, H, W, scale)
        _, where = pooled(images, rois, PH, PW, scale)
        image, bins = layouts((C, H, W, N), (C, PH, PW, n))
        errors = laid(be, rng.integers(-9, 9, size=(C, PH, PW, n)), bins, dtype, rng)
        argmax, out = laid(be, where, bins, "int32", rng), laid(be, np.full(image, 5), image, dtype, rng)
        args = (be.array(rois, dtype="float32"), out, argmax, n, C, H, W, PH, PW, scale)
        assert be.roipooling_bprop(errors, *args) is out
        want, each = np.zeros((C, H * W, N)), errors.get().reshape(C, PH, PW, n)
        for c, i, j, r in np.ndindex(C, PH, PW, n):
            if where[c, i, j, r] >= 0:
                want[c, where[c, i, j, r], int(rois[r, 0])] += each[c, i, j, r]
        assert np.array_equal(out.get().reshape(want.shape), want)


def test_the_error_is_the_slope_of_the_pooled_image(be64, rng):
    for _ in cases(be64, 4)[:20]:
        C, H, W, N, PH, PW, n = 2, 4, 5, 2, 2, 3, 3
        images, rois = rng.permutation(C * H * W * N).reshape(C, H, W, N) * 1.0, some_regions(rng, 3, N, H, W, 1)
        weights = rng.normal(size=(C, PH, PW, n))
        image, bins = layouts((C, H, W, N), (C, PH, PW, n))
        x, regions, sizes = be64.array(images.reshape(image)), be64.array(rois), (n, C, H, W, PH, PW, 1.0)
        argmax = be64.zeros(bins, dtype="int32")
        be64.roipooling_fprop(x, regions, be64.zeros(bins), argmax, *sizes)
        be64.roipooling_bprop(be64.array(weights.reshape(bins)), regions, x, argmax, *sizes)
        slope = np.zeros_like(images)
        for at in np.ndindex(images.shape):
            images[at] += 0.25
            up = pooled(images, rois, PH, PW, 1)[0]
            images[at] -= 0.5
            slope[at] = np.sum(weights * (up - pooled(images, rois, PH, PW, 1)[0])) / 0.5
            images[at] += 0.25
        assert np.allclose(x.get().reshape(slope.shape), slope)


def test_nan_is_the_largest_and_minus_infinity_is_a_pixel_like_others(be):
    nan, inf = math.nan, math.inf
    images = np.array([[[1, nan, 3], [nan, 2, -inf]], [[-inf, -inf, -inf], [-inf, -inf, inf]]])
    for backend in (be, Backend.allocate_backend("strict")):  # cpu has another implementation
        x = backend.array(images.reshape(12, 1))
        rois = backend.array([[0, 0, 0, 2, 1], [0, 2, 0, 2, 1], [0, 0, 0, 1, 1]])
        out, argmax = backend.zeros((2, 3)), backend.zeros((2, 3), dtype="int32")
        backend.roipooling_fprop(x, rois, out, argmax, 3, 2, 2, 3, 1, 1, 1.0)
        assert np.array_equal(out.get(), [[nan, 3, nan], [inf, inf, -inf]], equal_nan=True)
        assert argmax.get().tolist() == [[1, 2, 1], [5, 5, 0]]


def test_a_region_without_pixels_is_0_and_has_no_gradient(be):
    x, rois = be.array(np.full((4, 1), -1)), be.array([[0, 5, 5, 9, 9], [0, -9, 0, -5, 1]])
    out, argmax = be.ones((1, 2)), be.ones((1, 2), dtype="int32")
    be.roipooling_fprop(x, rois, out, argmax, 2, 1, 2, 2, 1, 1, 1.0)
    assert (out.get().tolist(), argmax.get().tolist()) == ([[0, 0]], [[-1, -1]])
    be.roipooling_bprop(be.ones((1, 2)), rois, x, argmax, 2, 1, 2, 2, 1, 1, 1.0)
    assert not x.get().any()


def test_pooling_may_write_over_what_it_reads(be):
    memory = be.array(np.arange(1, 9).reshape(8, 1))
    rois, argmax = be.array([[0, 0, 0, 1, 1], [0, 1, 0, 1, 1]]), be.zeros((1, 2), dtype="int32")
    be.roipooling_fprop(memory[:4], rois, memory[2:4].reshape(1, 2), argmax, 2, 1, 2, 2, 1, 1, 1.0)
    assert memory.get()[:, 0].tolist() == [1, 2, 4, 4, 5, 6, 7, 8]
    assert argmax.get().tolist() == [[3, 3]]
    be.roipooling_bprop(memory[4:6].reshape(1, 2), rois, memory[3:7], argmax, 2, 1, 2, 2, 1, 1, 1.0)
    assert memory.get()[:, 0].tolist() == [1, 2, 4, 0, 0, 0, 11, 8]


def test_regions_that_do_not_fit_are_refused(be):
    x, rois = be.ones((18, 2), name="x"), be.zeros((4, 5), name="rois")
    out, argmax = be.zeros((8, 4)), be.zeros((8, 4), dtype="int32")
    sizes = (4, 2, 3, 3, 2, 2, 1.0)

    def both(error: type[Exception], match: str, x: Any = x, rois: Any = rois, out: Any = out, argmax: Any = argmax):
        with pytest.raises(error, match="roipooling_fprop: " + match):
            be.roipooling_fprop(x, rois, out, argmax, *sizes)
        with pytest.raises(error, match="roipooling_bprop: " + match):
            be.roipooling_bprop(out, rois, x, argmax, *sizes)

    both(ValueError, r"expected rois of shape \(4, 5\) = \(roi_count, 5\), got", rois=be.zeros((5, 4)))
    both(ValueError, r"expected images of shape \(\*\(2, 3, 3\), N\) = \(C, H, W, N\), got", x=be.ones((17, 2)))
    both(ValueError, r"expected bins of shape \(2, 2, 2, 4\) = \(C, PH, PW, roi_count\), got", out=be.zeros((8, 3)))
    both(ValueError, r"expected bins of shape", argmax=be.zeros((7, 4), dtype="int32"))
    both(TypeError, "expected argmax of dtype int32 or int64, got float32", argmax=be.zeros((8, 4)))
    for bad in (2, -1):
        numbers = np.zeros((4, 5))
        numbers[2, 0] = bad
        both(IndexError, "expected image indices from 0 to 1 in rois, got", rois=be.array(numbers))
    for bad in (math.nan, math.inf):
        numbers = np.zeros((4, 5))
        numbers[2, 3] = bad
        both(ValueError, "expected finite rois, got", rois=be.array(numbers))
    with pytest.raises(TypeError, match="one float dtype, got I float32"):
        be.roipooling_fprop(x, rois, be.zeros((8, 4), dtype="float64"), argmax, *sizes)


# --- the choice among boxes ----------------------------------------------------------------------------------------


def chosen(detections: Any, threshold: float, normalized: bool) -> list[int]:
    """Return the boxes that stay, best first: pair by pair."""
    boxes = [d for d in detections if d[4] != 0]
    more = 0 if normalized else 1
    kept: list[int] = []
    while True:
        best = None
        for i, a in enumerate(boxes):
            if i in kept:
                continue
            for j in kept:
                b = boxes[j]
                width = max(min(a[2], b[2]) - max(a[0], b[0]) + more, 0)
                height = max(min(a[3], b[3]) - max(a[1], b[1]) + more, 0)
                areas = [(x2 - x1 + more) * (y2 - y1 + more) for x1, y1, x2, y2, _ in (a, b)]
                both = areas[0] + areas[1] - width * height
                if both and width * height / both > threshold:
                    break
            else:
                if best is None or a[4] > boxes[best][4]:
                    best = i
        if best is None:
            return kept
        kept.append(best)


@pytest.mark.parametrize("normalized", [False, True])
def test_boxes_that_overlap_a_better_one_are_left_out(be, rng, normalized):
    seen = 0
    for case in cases(be):
        n, size = int(rng.choice([0, 1, 2, 5, 13, 29])), float(rng.choice([4, 10, 40]))
        boxes = rng.uniform(0, size, size=(n, 5))
        boxes[:, 2:4] = boxes[:, :2] + rng.uniform(0, size / 2, size=(n, 2))
        boxes[:, 4] = rng.integers(-2, 6, n) if case % 2 else rng.normal(size=n)  # many equal ones, and some of 0
        if case % 3 == 0:
            boxes[:, :4] = np.round(boxes[:, :4])  # an overlap may be exactly the threshold
        detections = be.array(boxes, dtype=str(rng.choice(["float32", "float64"])))
        for threshold in (0.0, 0.3, 0.5, 1.0):
            got = be.nms(detections, threshold, normalized)
            assert got == chosen(detections.get().astype(float).tolist(), threshold, normalized)
            assert all(type(i) is int for i in got)
            seen += len(got) < int(np.count_nonzero(boxes[:, 4]))
    assert seen > len(cases(be)) // 2


def test_of_equal_boxes_the_first_stays(be):
    same = [0, 0, 4, 4, 0.5]
    assert be.nms(be.array([same] * 20), 0.5) == [0]
    boxes = [[10 * i, 0, 10 * i + 4, 4, 0.5] for i in range(40)]
    assert be.nms(be.array(boxes), 0.5) == list(range(40))
    assert be.nms(be.array([[0, 0, 1, 1, 0], [5, 5, 6, 6, 0.25], [0, 0, 1, 1, 0], [9, 9, 9, 9, 0.5]]), 0.5) == [1, 0]


def test_a_box_counts_its_last_pixel_unless_normalized(be):
    boxes = be.array([[0, 0, 1, 1, 0.9], [1, 0, 2, 1, 0.8]])  # 2 of 6 pixels in common; or an edge alone
    assert be.nms(boxes, 0.33) == [0]
    assert be.nms(boxes, 0.34) == [0, 1]
    assert be.nms(boxes, 0.0, normalized=True) == [0, 1]


def test_empty_and_malformed_boxes(be):
    assert be.nms(be.zeros((0, 5)), 0.5) == be.nms(be.zeros((7, 5)), 0.5) == []
    assert be.nms(be.array([[1, 1, 1, 1, 0.5], [1, 1, 1, 1, 0.4]]), 0.5, normalized=True) == [0, 1]  # no area at all
    with pytest.raises(
        ValueError, match=r"be.nms: expected detections \(n, 5\) of x, y, x, y, score, got boxes \(5, 4\)"
    ):
        be.nms(be.zeros((5, 4), name="boxes"), 0.5)
    with pytest.raises(TypeError, match="expected a tensor for detections, got"):
        be.nms(np.zeros((3, 5)), 0.5)
