"""Reference loops for convolution, pooling and local response normalization, without neonlite.

Images are (C, D, H, W, N), filters (C, T, R, S, K), results (K, M, P, Q, N): NumPy arrays of float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

Sizes = tuple[int, ...]

# --- positions of windows --------------------------------------------------------------------------------------------


def starts(size: int, reach: int, padding: int | tuple[int, int], stride: int, caffe: bool = False) -> list[int]:
    """Return the start of each window, which ends inside the padding; in caffe mode the last one may extend beyond."""
    before, after = padding if isinstance(padding, tuple) else (padding, padding)
    if not caffe:
        return list(range(-before, size + after - reach + 1, stride))
    found = []
    for start in range(-before, size, stride):
        found.append(start)
        if start + reach >= size + after:
            break
    return found


def meetings(
    DHW: Sizes, TRS: Sizes, padding: Sizes, strides: Sizes, dilation: Sizes
) -> Iterator[tuple[Sizes, Sizes, Sizes]]:
    """Yield the indices (of the result, of the filter, of the image) of every product inside the image."""
    axes = []
    for size, taps, pad, stride, step in zip(DHW, TRS, padding, strides, dilation, strict=True):
        begin = starts(size, step * (taps - 1) + 1, pad, stride)
        met = [(n, k, first + k * step) for n, first in enumerate(begin) for k in range(taps)]
        axes.append([(n, k, x) for n, k, x in met if 0 <= x < size])
    for (m, t, z), (p, r, y), (q, s, x) in product(*axes):
        yield (m, p, q), (t, r, s), (z, y, x)


def conv_dims(DHW: Sizes, TRS: Sizes, padding: Sizes, strides: Sizes, dilation: Sizes) -> Sizes:
    """Return (M, P, Q)."""
    each = zip(DHW, TRS, padding, strides, dilation, strict=True)
    return tuple(len(starts(size, step * (taps - 1) + 1, pad, stride)) for size, taps, pad, stride, step in each)


# --- convolution: o[k, n] = sum of i[c, n] f[c, k] wherever a filter meets the image ---------------------------------


def conv(i: Any, f: Any, *geometry: Sizes) -> Any:
    """Return the correlation of images with filters; ``geometry``: padding, strides, dilation."""
    DHW, TRS = i.shape[1:4], f.shape[1:4]
    o = np.zeros((f.shape[4], *conv_dims(DHW, TRS, *geometry), i.shape[4]))
    for (m, p, q), (t, r, s), (z, y, x) in meetings(DHW, TRS, *geometry):
        o[:, m, p, q] += f[:, t, r, s].T @ i[:, z, y, x]
    return o


def conv_bprop(f: Any, e: Any, DHW: Sizes, *geometry: Sizes) -> Any:
    """Return the gradient of sum(e * conv(i, f)) by i."""
    d = np.zeros((f.shape[0], *DHW, e.shape[4]))
    for (m, p, q), (t, r, s), (z, y, x) in meetings(DHW, f.shape[1:4], *geometry):
        d[:, z, y, x] += f[:, t, r, s] @ e[:, m, p, q]
    return d


def conv_update(i: Any, e: Any, TRS: Sizes, *geometry: Sizes) -> Any:
    """Return the gradient of sum(e * conv(i, f)) by f."""
    u = np.zeros((i.shape[0], *TRS, e.shape[0]))
    for (m, p, q), (t, r, s), (z, y, x) in meetings(i.shape[1:4], TRS, *geometry):
        u[:, t, r, s] += i[:, z, y, x] @ e[:, m, p, q].T
    return u


def deconv(x: Any, f: Any, padding: Sizes, strides: Sizes, dilation: Sizes) -> Any:
    """Return what pixels (K, M, P, Q, N) make when each stamps its filters on a canvas, whose border is cut off."""
    MPQ, TRS = x.shape[1:4], f.shape[1:4]
    reach = [step * (taps - 1) + 1 for step, taps in zip(dilation, TRS, strict=True)]
    canvas = [(n - 1) * stride + r for n, stride, r in zip(MPQ, strides, reach, strict=True)]
    stamped = np.zeros((f.shape[0], *canvas, x.shape[4]))
    for pixel in np.ndindex(*MPQ):
        for tap in np.ndindex(*TRS):
            z, y, w = (p * st + k * step for p, st, k, step in zip(pixel, strides, tap, dilation, strict=True))
            stamped[:, z, y, w] += f[:, *tap] @ x[:, *pixel]
    return stamped[:, *(slice(pad, size - pad) for pad, size in zip(padding, canvas, strict=True))]


# --- pooling: cells of the padding do not count ----------------------------------------------------------------------


def pools(
    CDHW: Sizes, JTRS: Sizes, padding: Sizes, strides: Sizes, caffe: bool
) -> Iterator[tuple[Sizes, tuple[slice, ...], Any]]:
    """Yield (place in the result, its cells of the image, their numbers in the window) for each window."""
    axes = []
    for size, window, pad, stride in zip(CDHW, JTRS, padding, strides, strict=True):
        begin = starts(size, window, pad, stride, caffe)
        axes.append([(n, max(0, a), min(size, a + window), a) for n, a in enumerate(begin)])
    numbers = np.arange(np.prod(JTRS)).reshape(JTRS)
    for window in product(*axes):
        cells = tuple(slice(low, high) for _, low, high, _ in window)
        inside = tuple(slice(low - a, high - a) for _, low, high, a in window)
        yield tuple(n for n, _, _, _ in window), cells, numbers[inside].ravel()


def pool_dims(CDHW: Sizes, JTRS: Sizes, padding: Sizes, strides: Sizes, caffe: bool = False) -> Sizes:
    """Return (K, M, P, Q)."""
    return tuple(len(starts(*axis, caffe)) for axis in zip(CDHW, JTRS, padding, strides, strict=True))


def pool(
    op: str, i: Any, JTRS: Sizes, padding: Sizes, strides: Sizes, caffe: bool = False
) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return what each window makes, and the number of its first maximum in the window."""
    o = np.zeros((*pool_dims(i.shape[:4], JTRS, padding, strides, caffe), i.shape[4]))
    places = np.zeros(o.shape, int)
    for place, cells, numbers in pools(i.shape[:4], JTRS, padding, strides, caffe):
        x = i[cells].reshape(len(numbers), -1)
        o[place] = {"max": x.max(0), "avg": x.sum(0) / len(x), "l2": np.sqrt((x * x).sum(0))}[op]
        places[place] = numbers[x.argmax(0)]
    return o, places


def pool_bprop(
    op: str, i: Any, e: Any, JTRS: Sizes, padding: Sizes, strides: Sizes, caffe: bool = False
) -> np.ndarray[Any, Any]:
    """Return the gradient of sum(e * pool(i)) by i: the first maximum takes all, and l2 of zeros is flat."""
    d = np.zeros(i.shape)
    for place, cells, numbers in pools(i.shape[:4], JTRS, padding, strides, caffe):
        x = i[cells].reshape(len(numbers), -1)
        if op == "max":
            error = np.where(np.arange(len(x))[:, None] == x.argmax(0), e[place], 0)
        elif op == "avg":
            error = np.broadcast_to(e[place] / len(x), x.shape)
        else:
            norm = np.sqrt((x * x).sum(0))
            error = e[place] * x / np.where(norm == 0, 1, norm)
        d[cells] += error.reshape(d[cells].shape)
    return d


# --- local response normalization: o[c] = i[c] denom[c]^-b, denom[c] = 1 + a/J sum of i^2 over J channels ------------


def neighbors(C: int, J: int, c: int) -> range:
    """Return the channels in the window of one: it begins J // 2 before."""
    return range(max(0, c - J // 2), min(C, c - J // 2 + J))


def lrn(i: Any, J: int, a: float, b: float) -> tuple[Any, Any]:
    """Return the normalized images, and the denominators."""
    denom = np.ones(i.shape)
    for c in range(len(i)):
        for n in neighbors(len(i), J, c):
            denom[c] += a / J * i[n] ** 2
    return i * denom**-b, denom


def lrn_bprop(i: Any, e: Any, J: int, a: float, b: float) -> Any:
    """Return the gradient of sum(e * lrn(i)) by i, one derivative do[c]/di[n] at a time."""
    d, (_, denom) = np.zeros(i.shape), lrn(i, J, a, b)
    for c in range(len(i)):
        d[c] += e[c] * denom[c] ** -b
        for n in neighbors(len(i), J, c):
            d[n] += e[c] * i[c] * -b * denom[c] ** (-b - 1) * (2 * a / J * i[n])
    return d
