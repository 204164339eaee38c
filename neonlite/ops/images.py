"""The rows of the op table for images: convolution and pooling.

Images have the shape (C, *sizes, N): channels, one to three axes of pixels, and the minibatch. Padding is a pair
(before, after) for each axis. Each function goes through the positions in a window: the pixels there of all windows are
one strided slice of the padded images.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from neonlite.ops.functions import Gradients, Shape, accumulation_dtype, normalize_indices
from neonlite.typing import BackendBase, Namespace, NativeArray, Operand

Slices = tuple[Any, ...]
Padding = tuple[tuple[int, int], ...]  # (before, after) for each axis


# --- shapes ----------------------------------------------------------------------------------------------------------


def num_windows(
    size: int, window: int, stride: int, padding: tuple[int, int], dilation: int = 1, ceil: bool = False
) -> int:
    """Return how many windows fit along an axis; with ``ceil``, also a partial one that starts inside the image."""
    (before, after), span = padding, dilation * (window - 1) + 1
    slack = size + before + after - span
    if slack < 0:
        raise ValueError(
            f"a window of {span} (size {window}, dilation {dilation}) is larger than {size + before + after}, the size "
            f"{size} with padding {before} before and {after} after it. Use a smaller window, or more padding."
        )
    if not ceil:
        return slack // stride + 1
    count = -(-slack // stride) + 1
    return count - ((count - 1) * stride >= size + before)


def convolution_shape(x: Shape, f: Shape, *, strides: Shape, padding: Padding, dilation: Shape, groups: int) -> Shape:
    """(C, *sizes, N), (C / groups, *window, K) -> (K, *counts, N)."""
    if len(x) != len(f) or not 3 <= len(x) <= 5:
        raise ValueError(
            "expected images (C, H, W, N) and filters (C, R, S, K), or with one or three axes of pixels, got shapes "
            f"{x} and {f}"
        )
    if x[0] % groups or f[-1] % groups:
        raise ValueError(f"expected multiples of {groups} groups, got {x[0]} channels and {f[-1]} filters")
    if f[0] * groups != x[0]:
        raise ValueError(
            f"expected filters of {x[0] // groups} channels, for images of {x[0]} in {groups} groups, got {f[0]}"
        )
    counts = map(num_windows, x[1:-1], f[1:-1], strides, padding, dilation)
    return (f[-1], *counts, x[-1])


def pooling_shape(x: Shape, *, window: Shape, strides: Shape, padding: Padding, ceil: bool, **_: object) -> Shape:
    """(C, *sizes, N) -> (K, *counts, N), with one size of the window for each axis but the last."""
    if len(x) != len(window) + 1:
        raise ValueError(f"expected images of {len(window) + 1} axes for a window of {len(window)}, got the shape {x}")
    ceils = (ceil,) * len(window)
    return (*map(num_windows, x[:-1], window, strides, padding, (1,) * len(window), ceils), x[-1])


def max_pool_take_shape(x: Shape, y: Shape, **_: object) -> Shape:
    """Return the shape of the positions."""
    return y


def roi_pool_indices_shape(x: Shape, y: Shape, *, bins: Shape, **_: object) -> Shape:
    """(C, H, W, N), (5, R) -> (C, *bins, R)."""
    if len(x) != 4 or len(y) != 2 or y[0] != 5:
        raise ValueError(f"expected images (C, H, W, N) and regions (5, R), got shapes {x} and {y}")
    return (x[0], *bins, y[1])


def convolution_flops(z: Shape, x: Shape, y: Shape) -> int:
    """Return two operations for each output, each channel of a group and each element of the window."""
    return 2 * math.prod(z) * math.prod(y) // y[-1]


def convolution_backward_flops(z: Shape, e: Shape, f: Shape) -> int:
    """Return as many operations as the convolution has."""
    return 2 * math.prod(e) * math.prod(f) // f[-1]


def convolution_update_flops(z: Shape, x: Shape, e: Shape) -> int:
    """Return as many operations as the convolution has."""
    return 2 * math.prod(e) * math.prod(z) // z[-1]


# --- forward functions -----------------------------------------------------------------------------------------------


def window_parts(window: Shape, counts: Shape, strides: Shape, dilation: Shape) -> Iterator[tuple[Shape, Slices]]:
    """Yield each position in a window, and the slices of the padded pixels at this position of all windows."""
    for position in itertools.product(*map(range, window)):
        starts = [k * step for k, step in zip(position, dilation, strict=True)]
        axes = zip(starts, counts, strides, strict=True)
        yield position, tuple(slice(start, start + (n - 1) * stride + 1, stride) for start, n, stride in axes)


def padded_sizes(
    sizes: Shape, window: Shape, counts: Shape, strides: Shape, padding: Padding, dilation: Shape
) -> Shape:
    """Return the sizes with padding on both sides, and with what a partial last window covers."""
    axes = zip(sizes, window, counts, strides, padding, dilation, strict=True)
    return tuple(max(n + sum(pad), (count - 1) * st + d * (k - 1) + 1) for n, k, count, st, pad, d in axes)


def pad(xp: Namespace, x: NativeArray, sizes: Shape, padding: Padding, value: float = 0) -> NativeArray:
    """Return an array surrounded by a value: the leading axes have new sizes, and start after the padding."""
    if x.shape[: len(sizes)] == sizes:
        return x
    padded = xp.full((*sizes, *x.shape[len(sizes) :]), value, dtype=x.dtype)
    padded[interior(x.shape, padding)] = x
    return padded


def interior(shape: Shape, padding: Padding) -> Slices:
    """Return the slices of the pixels inside of the padding."""
    return (*(slice(before, before + n) for n, (before, _) in zip(shape, padding, strict=False)), ...)


def widen(xp: Namespace, *arrays: NativeArray) -> list[NativeArray]:
    """Return arrays in the dtypes in which their elements are added."""
    return [xp.astype(x, accumulation_dtype(xp, x), copy=False) for x in arrays]


def multiply(x: NativeArray, y: NativeArray) -> NativeArray:
    """Return stacks of matrix products; those of columns with rows elementwise, which is faster."""
    return x * y if x.shape[-1] == 1 else x @ y


def run_convolution(
    xp: Namespace, x: NativeArray, y: NativeArray, *, strides: Shape, padding: Padding, dilation: Shape, groups: int
) -> NativeArray:
    """Return the correlation of images x (C, *sizes, N) with filters y (C / groups, *window, K)."""
    x, f = widen(xp, x, y)
    C, N, c, K, window = x.shape[0], x.shape[-1], f.shape[0], f.shape[-1], f.shape[1:-1]
    axes = zip(x.shape[1:-1], window, strides, padding, dilation, strict=True)
    counts = tuple(num_windows(*axis) for axis in axes)
    around = padded_sizes(x.shape[1:-1], window, counts, strides, padding, dilation)
    padded = pad(xp, x, (C, *around), ((0, 0), *padding))
    size = math.prod(counts) * N
    z = xp.zeros((groups, K // groups, size), dtype=x.dtype)
    for position, part in window_parts(window, counts, strides, dilation):
        weights = xp.reshape(f[(slice(None), *position, slice(None))], (c, groups, K // groups))
        pixels = xp.reshape(padded[(slice(None), *part, slice(None))], (groups, c, size))
        z += multiply(xp.permute_dims(weights, (1, 2, 0)), pixels)
    return xp.reshape(z, (K, *counts, N))


def run_convolution_backward(
    xp: Namespace,
    x: NativeArray,
    y: NativeArray,
    *,
    strides: Shape,
    padding: Padding,
    dilation: Shape,
    groups: int,
    to: Shape,
) -> NativeArray:
    """Return the gradient of a convolution with respect to its images, of the error x (K, *counts, N)."""
    e, f = widen(xp, x, y)
    c, K, window, counts = f.shape[0], f.shape[-1], f.shape[1:-1], e.shape[1:-1]
    around = padded_sizes(to[1:-1], window, counts, strides, padding, dilation)
    padded = xp.zeros((to[0], *around, to[-1]), dtype=e.dtype)
    errors = xp.reshape(e, (groups, K // groups, math.prod(e.shape[1:])))
    for position, part in window_parts(window, counts, strides, dilation):
        weights = xp.reshape(f[(slice(None), *position, slice(None))], (c, groups, K // groups))
        pixels = multiply(xp.permute_dims(weights, (1, 0, 2)), errors)
        padded[(slice(None), *part, slice(None))] += xp.reshape(pixels, (to[0], *counts, to[-1]))
    return padded[interior(to, ((0, 0), *padding))]


def run_convolution_update(
    xp: Namespace,
    x: NativeArray,
    y: NativeArray,
    *,
    strides: Shape,
    padding: Padding,
    dilation: Shape,
    groups: int,
    to: Shape,
) -> NativeArray:
    """Return the gradient of a convolution with respect to its filters, of images x and the error y."""
    x, e = widen(xp, x, y)
    c, K, window, counts = to[0], to[-1], to[1:-1], e.shape[1:-1]
    around = padded_sizes(x.shape[1:-1], window, counts, strides, padding, dilation)
    padded = pad(xp, x, (x.shape[0], *around), ((0, 0), *padding))
    size = math.prod(e.shape[1:])
    errors = xp.permute_dims(xp.reshape(e, (groups, K // groups, size)), (0, 2, 1))
    u = xp.zeros(to, dtype=x.dtype)
    for position, part in window_parts(window, counts, strides, dilation):
        pixels = xp.reshape(padded[(slice(None), *part, slice(None))], (groups, c, size))
        u[(slice(None), *position, slice(None))] = xp.reshape(xp.permute_dims(pixels @ errors, (1, 0, 2)), (c, K))
    return u


def least(xp: Namespace, x: NativeArray) -> float:
    """Return the smallest value of an array's dtype."""
    return -math.inf if xp.isdtype(x.dtype, "real floating") else int(xp.iinfo(x.dtype).min)


def max_pool_parts(
    xp: Namespace, x: NativeArray, window: Shape, strides: Shape, padding: Padding, ceil: bool, value: float
) -> Iterator[tuple[int, NativeArray]]:
    """Yield the number of each position in a window, and the pixels there of all windows; outside, a value."""
    counts = pooling_shape(x.shape, window=window, strides=strides, padding=padding, ceil=ceil)[:-1]
    ones = (1,) * len(window)
    padded = pad(xp, x, padded_sizes(x.shape[:-1], window, counts, strides, padding, ones), padding, value)
    for number, (_, part) in enumerate(window_parts(window, counts, strides, ones)):
        yield number, padded[(*part, ...)]


def run_max_pool(
    xp: Namespace, x: NativeArray, *, window: Shape, strides: Shape, padding: Padding, ceil: bool
) -> NativeArray:
    """Return the largest pixel of each window."""
    best: Any = None
    for _, pixels in max_pool_parts(xp, x, window, strides, padding, ceil, least(xp, x)):
        best = pixels if best is None else xp.maximum(best, pixels)
    return best


def run_max_pool_indices(
    xp: Namespace, x: NativeArray, *, window: Shape, strides: Shape, padding: Padding, ceil: bool, to: str
) -> NativeArray:
    """Return the position in its window of the first of the largest pixels, or of the first NaN."""
    inside = xp.ones(x.shape, dtype=xp.bool)
    parts = max_pool_parts(xp, x, window, strides, padding, ceil, least(xp, x))
    insides = max_pool_parts(xp, inside, window, strides, padding, ceil, False)
    best: Any = None
    for (number, pixels), (_, is_inside) in zip(parts, insides, strict=True):
        if best is None:
            best, found = pixels, is_inside
            indices = xp.zeros(best.shape, dtype=getattr(xp, to))
        better = is_inside & (~found | exceeds(pixels, best))
        best, found = xp.where(better, pixels, best), found | is_inside
        indices = xp.where(better, xp.asarray(number, dtype=indices.dtype), indices)
    return indices


def run_max_pool_take(
    xp: Namespace, x: NativeArray, y: NativeArray, *, window: Shape, strides: Shape, padding: Padding, ceil: bool
) -> NativeArray:
    """Return the pixel of each window at a position in it."""
    z = xp.zeros(y.shape, dtype=x.dtype)
    for number, pixels in max_pool_parts(xp, x, window, strides, padding, ceil, 0.0):
        z = xp.where(y == number, pixels, z)
    return z


def run_max_unpool(
    xp: Namespace,
    x: NativeArray,
    y: NativeArray,
    *,
    window: Shape,
    strides: Shape,
    padding: Padding,
    ceil: bool,
    to: Shape,
) -> NativeArray:
    """Return zeros with each error x added to the pixel at the position y in its window."""
    (e,), ones = widen(xp, x), (1,) * len(window)
    padded = xp.zeros((*padded_sizes(to[:-1], window, e.shape[:-1], strides, padding, ones), to[-1]), dtype=e.dtype)
    for number, (_, part) in enumerate(window_parts(window, e.shape[:-1], strides, ones)):
        padded[(*part, ...)] += xp.where(y == number, e, xp.zeros_like(e))
    return padded[interior(to, padding)]


def pixels_of_windows(sizes: Shape, window: Shape, counts: Shape, strides: Shape, padding: Padding) -> list[list[int]]:
    """Return, along each axis, how many pixels of each window are inside the image."""
    axes = zip(sizes, window, counts, strides, padding, strict=True)
    return [
        [min(size, n * stride - before + k) - max(0, n * stride - before) for n in range(count)]
        for size, k, count, stride, (before, _) in axes
    ]


def divide_by_pixels(
    xp: Namespace, z: NativeArray, sizes: Shape, window: Shape, strides: Shape, padding: Padding
) -> Any:
    """Return a value for each window divided by the number of its pixels that are inside the image."""
    for axis, counts in enumerate(pixels_of_windows(sizes, window, z.shape[:-1], strides, padding)):
        z = z / xp.reshape(xp.asarray(counts, dtype=z.dtype), (-1, *[1] * (z.ndim - 1 - axis)))
    return z


def run_sum_pool(
    xp: Namespace, x: NativeArray, *, window: Shape, strides: Shape, padding: Padding, ceil: bool, mean: bool
) -> NativeArray:
    """Return the sum of each window, or the mean of its pixels that are inside the image."""
    (x,) = widen(xp, x)
    z: Any = 0
    for _, pixels in max_pool_parts(xp, x, window, strides, padding, ceil, 0.0):
        z = z + pixels
    return divide_by_pixels(xp, z, x.shape[:-1], window, strides, padding) if mean else z


def run_sum_unpool(
    xp: Namespace, x: NativeArray, *, window: Shape, strides: Shape, padding: Padding, ceil: bool, mean: bool, to: Shape
) -> NativeArray:
    """Return zeros with the error of each window added to its pixels: the gradient of ``sum_pool``."""
    (e,), ones = widen(xp, x), (1,) * len(window)
    e = divide_by_pixels(xp, e, to[:-1], window, strides, padding) if mean else e
    padded = xp.zeros((*padded_sizes(to[:-1], window, e.shape[:-1], strides, padding, ones), to[-1]), dtype=e.dtype)
    for _, part in window_parts(window, e.shape[:-1], strides, ones):
        padded[(*part, ...)] += e
    return padded[interior(to, padding)]


def run_roi_pool_indices(xp: Namespace, x: NativeArray, y: NativeArray, *, bins: Shape, scale: float) -> NativeArray:
    """Return, for each bin of the regions y (5, R), the index of its first largest pixel in x, or of its first NaN.

    It is the index in the flat array x (C, H, W, N); -1 for a bin without pixels.
    """
    (C, H, W, N), regions = x.shape, xp.astype(y, xp.float64)
    image = check_regions(xp, regions, N)
    shape = (C, *bins, y.shape[1])
    if 0 in x.shape or 0 in shape:
        return xp.full(shape, -1, dtype=xp.int64)
    top, height = (v[:, None, :] for v in bin_bounds(xp, regions[2, ...], regions[4, ...], scale, bins[0], H))
    left, width = (v[None, :, :] for v in bin_bounds(xp, regions[1, ...], regions[3, ...], scale, bins[1], W))
    flat, first = xp.reshape(x, (C, H * W * N)), xp.reshape(xp.arange(C, dtype=xp.int64) * (H * W * N), (C, 1))
    best: Any = None
    for i, j in itertools.product(range(max(1, int(xp.max(height)))), range(max(1, int(xp.max(width))))):
        h = clip(xp, top + clip(xp, height - 1, i), H - 1)
        w = clip(xp, left + clip(xp, width - 1, j), W - 1)
        cell = xp.reshape((h * W + w) * N + image, (1, -1))
        pixels = xp.take(flat, cell[0, ...], axis=1)
        if best is None:
            best, indices = pixels, cell + first
        better = exceeds(pixels, best)
        best, indices = xp.where(better, pixels, best), xp.where(better, cell + first, indices)
    indices = xp.reshape(indices, shape)
    return xp.where((height <= 0) | (width <= 0), xp.full_like(indices, -1), indices)


def check_regions(xp: Namespace, regions: NativeArray, N: int) -> NativeArray:
    """Return the image of each region; an error for numbers that are not finite, or images that do not exist."""
    if not xp.all(xp.isfinite(regions)):
        raise ValueError("expected finite regions, got infinity or NaN")
    return normalize_indices(xp, regions[0, ...], N, "image", allow_negative=False)


def clip(xp: Namespace, x: NativeArray, high: float) -> NativeArray:
    """Return numbers limited to the range from 0 to ``high``; ``xp.clip`` needs a function that CuPy does not have."""
    return xp.minimum(xp.maximum(x, xp.zeros_like(x)), xp.full_like(x, high))


def exceeds(x: NativeArray, y: NativeArray) -> NativeArray:
    """Return where x is larger than y, or the first NaN."""
    return (x > y) | ((x != x) & (y == y))


def bin_bounds(xp: Namespace, first: NativeArray, last: NativeArray, scale: float, count: int, size: int) -> Any:
    """Return the start and the number of cells of each region's bins along an axis, each (count, regions)."""

    def to_cells(edges: NativeArray) -> NativeArray:
        return xp.astype(clip(xp, start + edges, size), xp.int64)

    start = xp.floor(first * scale + 0.5)  # halves are rounded up
    length = xp.floor(last * scale + 0.5) - start + 1
    length = xp.where(length < 1, xp.ones_like(length), length)
    n = xp.reshape(xp.arange(count, dtype=xp.float64), (count, 1))
    low, high = to_cells(xp.floor(n * length / count)), to_cells(xp.ceil((n + 1) * length / count))
    return low, high - low


# --- gradient rules --------------------------------------------------------------------------------------------------
#
# A convolution and its two gradients are linear in each operand, and each is a derivative of the others, so these
# three rules give the derivatives of every order.


def grad_convolution(be: BackendBase, dz: Operand, z: Operand, x: Operand, f: Operand, **options: Any) -> Gradients:
    """Return the gradients of the convolution of images x with filters f."""
    return (
        be.build("conv_backward", dz, f, to=x.shape, **options),
        be.build("conv_update", x, dz, to=f.shape, **options),
    )


def grad_convolution_backward(
    be: BackendBase, dz: Operand, z: Operand, e: Operand, f: Operand, to: Shape, **options: Any
) -> Gradients:
    """Return the gradients of ``convolution_backward``."""
    return be.build("conv", dz, f, **options), be.build("conv_update", dz, e, to=f.shape, **options)


def grad_convolution_update(
    be: BackendBase, dz: Operand, z: Operand, x: Operand, e: Operand, to: Shape, **options: Any
) -> Gradients:
    """Return the gradients of ``convolution_update``."""
    return be.build("conv_backward", e, dz, to=x.shape, **options), be.build("conv", x, dz, **options)


def grad_max_pool(be: BackendBase, dz: Operand, z: Operand, x: Operand, **options: Any) -> Gradients:
    """Return the gradient of ``max_pool``: the error of a window goes to its first largest pixel."""
    to = "uint8" if math.prod(options["window"]) <= 256 else "int32"
    return (be.build("max_unpool", dz, be.build("max_pool_indices", x, to=to, **options), to=x.shape, **options),)
