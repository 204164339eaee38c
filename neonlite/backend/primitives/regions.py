"""How are regions of an image pooled to one size?  Each bin is a maximum over a window of its own (Girshick 2015).

Windows differ in size, so the k-th cell of all of them is gathered at once, the last one again where a window has no
k-th: a maximum does not mind. The number of gathers is the size of the largest window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite.backend.primitives.products import Products
from neonlite.ops import run_scatter


class Regions(Products):
    """Maximum pooling of regions of interest: images (C, H, W, N), regions (n, 5), bins (C, PH, PW, n)."""

    def numbers(self, array: Any) -> np.ndarray[Any, Any]:
        """Return an array as float64 on the host."""
        found: np.ndarray[Any, Any] = self.runtime.get(array)
        return found.astype(np.float64)

    def roi_fprop(self, i: Any, regions: np.ndarray[Any, Any], o: Any, argmax: Any, scale: float) -> None:
        """Compute the maximum of each bin, and in ``argmax`` where it is, ``h W + w``; an empty bin has 0, and -1."""
        xp, (C, H, W, N) = self.xp, i.shape
        _, PH, PW, n = o.shape
        rows, height = bins(regions[:, 2], regions[:, 4], scale, PH, H)
        columns, width = bins(regions[:, 1], regions[:, 3], scale, PW, W)
        full = ((height[:, None, :] > 0) & (width[None, :, :] > 0)).reshape(-1)
        image = xp.reshape(i, (C, H * W * N))
        best = xp.full((C, full.size), -xp.inf, dtype=i.dtype)
        where = xp.full((C, full.size), -1, dtype=argmax.dtype)
        for y in range(int(height.max(initial=0))):
            for x in range(int(width.max(initial=0))):
                h = np.clip(rows + np.minimum(y, height - 1), 0, H - 1)
                w = np.clip(columns + np.minimum(x, width - 1), 0, W - 1)
                place = (h[:, None, :] * W + w[None, :, :]).reshape(-1)
                cell = place * N + np.broadcast_to(regions[:, 0].astype(np.int64), (PH, PW, n)).reshape(-1)
                value = xp.take(image, self.runtime.put(cell), axis=1)
                better = (value > best) | (where < 0) | (xp.isnan(value) & ~xp.isnan(best))
                best = xp.where(better, value, best)
                where = xp.where(better, xp.astype(self.runtime.put(place), argmax.dtype)[None, :], where)
        found = self.runtime.put(full)[None, :]
        o[...] = xp.reshape(xp.where(found, best, xp.zeros_like(best)), o.shape)
        argmax[...] = xp.reshape(xp.where(found, where, xp.full(where.shape, -1, dtype=argmax.dtype)), o.shape)

    def roi_bprop(self, e: Any, regions: np.ndarray[Any, Any], argmax: Any, d: Any) -> None:
        """Compute the sum of the errors of all bins whose maximum a pixel was."""
        xp, (C, H, W, N) = self.xp, d.shape
        images = self.runtime.put(regions[:, 0].astype(np.int64))[None, None, None, :]
        maps = self.runtime.put(np.arange(C))[:, None, None, None]
        none = argmax < 0
        pixels = xp.astype(xp.where(none, xp.zeros_like(argmax), argmax), xp.int64)
        cells = xp.reshape((pixels + maps * (H * W)) * N + images, (-1,))
        errors = xp.reshape(xp.where(none, xp.zeros_like(e), e), (-1,))
        d[...] = xp.reshape(run_scatter(xp, errors, cells, axis=0, size=C * H * W * N), d.shape)


def bins(first: Any, last: Any, scale: float, count: int, size: int) -> tuple[Any, Any]:
    """Return where the bins of each region begin along an axis, and how many cells they have: (count, regions)."""
    start = rounded(first * scale)
    length = np.maximum(rounded(last * scale) - start + 1, 1)
    n = np.arange(count)[:, None]
    low = np.clip(start + np.floor(n * length / count).astype(np.int64), 0, size)
    high = np.clip(start + np.ceil((n + 1) * length / count).astype(np.int64), 0, size)
    return low, high - low


def rounded(x: Any) -> Any:
    """Return the nearest whole numbers, halves upwards."""
    return np.floor(x + 0.5).astype(np.int64)
