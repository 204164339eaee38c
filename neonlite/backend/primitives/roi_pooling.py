"""RoI max pooling in array-API functions: one gather per window cell.

Each bin is the maximum over its own window (Girshick 2015). The k-th cell of all windows is gathered at once; a window
without a k-th cell repeats its last one, which does not change the maximum. The number of gathers is the size of the
largest window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite.backend.primitives.matmul import MatmulPrimitives
from neonlite.ops.functions import run_scatter_add
from neonlite.typing import NativeArray as Array
from neonlite.typing import NumPyArray


class RoiPooling(MatmulPrimitives):
    """RoI max pooling: images (C, H, W, N), regions (n, 5), bins (C, PH, PW, n)."""

    def to_host_float64(self, array: Array) -> NumPyArray:
        """Return an array as float64 on the host."""
        host: NumPyArray = self.runtime.get(array)
        return host.astype(np.float64)

    def roi_fprop(self, i: Array, regions: NumPyArray, o: Array, argmax: Array, scale: float) -> None:
        """Write the maximum of each bin to o, and its pixel index ``h W + w`` to argmax; 0 and -1 for an empty bin."""
        xp, (C, H, W, N) = self.xp, i.shape
        _, PH, PW, n = o.shape
        rows, height = bin_bounds(regions[:, 2], regions[:, 4], scale, PH, H)
        columns, width = bin_bounds(regions[:, 1], regions[:, 3], scale, PW, W)
        is_nonempty = ((height[:, None, :] > 0) & (width[None, :, :] > 0)).reshape(-1)
        image = xp.reshape(i, (C, H * W * N))
        best = xp.full((C, is_nonempty.size), -xp.inf, dtype=i.dtype)
        where = xp.full((C, is_nonempty.size), -1, dtype=argmax.dtype)
        for y in range(int(height.max(initial=0))):
            for x in range(int(width.max(initial=0))):
                h = np.clip(rows + np.minimum(y, height - 1), 0, H - 1)
                w = np.clip(columns + np.minimum(x, width - 1), 0, W - 1)
                pixel = (h[:, None, :] * W + w[None, :, :]).reshape(-1)
                cell = pixel * N + np.broadcast_to(regions[:, 0].astype(np.int64), (PH, PW, n)).reshape(-1)
                value = xp.take(image, self.runtime.put(cell), axis=1)
                better = (value > best) | (where < 0) | (xp.isnan(value) & ~xp.isnan(best))
                best = xp.where(better, value, best)
                where = xp.where(better, xp.astype(self.runtime.put(pixel), argmax.dtype)[None, :], where)
        mask = self.runtime.put(is_nonempty)[None, :]
        o[...] = xp.reshape(xp.where(mask, best, xp.zeros_like(best)), o.shape)
        argmax[...] = xp.reshape(xp.where(mask, where, xp.full(where.shape, -1, dtype=argmax.dtype)), o.shape)

    def roi_bprop(self, e: Array, regions: NumPyArray, argmax: Array, d: Array) -> None:
        """Add the error of each bin to the pixel that was its maximum."""
        xp, (C, H, W, N) = self.xp, d.shape
        images = self.runtime.put(regions[:, 0].astype(np.int64))[None, None, None, :]
        channels = self.runtime.put(np.arange(C))[:, None, None, None]
        is_empty = argmax < 0
        pixels = xp.astype(xp.where(is_empty, xp.zeros_like(argmax), argmax), xp.int64)
        cells = xp.reshape((pixels + channels * (H * W)) * N + images, (-1,))
        errors = xp.reshape(xp.where(is_empty, xp.zeros_like(e), e), (-1,))
        d[...] = xp.reshape(run_scatter_add(xp, errors, cells, axis=0, size=C * H * W * N), d.shape)


def bin_bounds(first: Any, last: Any, scale: float, count: int, size: int) -> tuple[Any, Any]:
    """Return the start and the number of cells of each region's bins along an axis, each (count, regions)."""
    start = round_half_up(first * scale)
    length = np.maximum(round_half_up(last * scale) - start + 1, 1)
    n = np.arange(count)[:, None]
    low = np.clip(start + np.floor(n * length / count).astype(np.int64), 0, size)
    high = np.clip(start + np.ceil((n + 1) * length / count).astype(np.int64), 0, size)
    return low, high - low


def round_half_up(x: Array) -> Array:
    """Return the nearest integers, halves rounded up."""
    return np.floor(x + 0.5).astype(np.int64)
