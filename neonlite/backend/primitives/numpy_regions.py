"""How does NumPy pool regions?  As ``Regions`` does, some thousand bins at a time, in buffers that are kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite.backend.primitives.generic import Generic

ROOM = 1 << 16  # pixels that are gathered at once

Array = np.ndarray[Any, Any]


class RegionsInPieces(Generic):
    """Maximum pooling of regions of interest: contiguous images (C, H, W, N), regions (n, 5), bins (C, PH, PW, n)."""

    def numbers(self, array: Any) -> Array:
        """Return an array as float64 on the host, in a buffer."""
        held: Array = self.scratch("numbers", array.shape, np.float64(0))
        np.copyto(held, array)
        return held

    def roi_fprop(self, i: Any, regions: Array, o: Any, argmax: Any, scale: float) -> None:
        """Compute the maximum of each bin, and in ``argmax`` where it is, ``h W + w``; an empty bin has 0, and -1."""
        C, H, W, N = i.shape
        bins, count = o.shape[1:], o[0].size
        image, best_of, place_of = i.reshape(C, H * W * N), o.reshape(C, count), argmax.reshape(C, count)
        top, rows, left, columns, batch, place, cell = self.scratch("bins", (7, count), np.int64(0))
        self._edges(regions[:, 2], regions[:, 4], scale, H, top.reshape(bins), rows.reshape(bins))
        across = [x.reshape(bins).swapaxes(0, 1) for x in (left, columns)]
        self._edges(regions[:, 1], regions[:, 3], scale, W, *across)
        batch.reshape(bins)[...] = regions[:, 0]
        wide = max(1, min(ROOM // C, count))
        floats = self.scratch("pixels", (2, C * wide), i)
        found = self.scratch("places", (C * wide,), argmax)
        truths = self.scratch("hits", (2, C * wide), np.bool_(0))
        for start in range(0, count, wide):
            some = slice(start, min(start + wide, count))
            shape, size = (C, some.stop - start), C * (some.stop - start)
            value, best, where, hit, real = (x[:size].reshape(shape) for x in (*floats, found, *truths))
            at, of = place[some], cell[some]
            for y in range(int(rows[some].max())):
                for x in range(int(columns[some].max())):
                    inner(top[some], rows[some], y, H, at)
                    inner(left[some], columns[some], x, W, of)
                    np.add(np.multiply(at, W, out=at), of, out=at)
                    np.add(np.multiply(at, N, out=of), batch[some], out=of)
                    np.take(image, of, axis=1, out=value, mode="clip")
                    if x == y == 0:
                        np.copyto(best, value)
                        np.copyto(where, at)
                        continue
                    np.less_equal(value, best, out=hit)  # false for a NaN, too, which is the maximum
                    np.greater(np.equal(best, best, out=real), hit, out=hit)
                    np.copyto(where, at, where=hit)
                    np.maximum(best, value, out=best)
            empty = np.less_equal(np.minimum(rows[some], columns[some], out=at), 0, out=hit[0])
            np.copyto(best, 0, where=empty)
            np.copyto(where, -1, where=empty)
            best_of[:, some], place_of[:, some] = best, where

    def _edges(self, first: Any, last: Any, scale: float, size: int, low: Any, many: Any) -> None:
        """Fill in where the bins begin along their first axis, and how many cells they have, as ``bins`` tells it."""
        count = len(low)
        start, length, edge = self.scratch("edges", (3, len(first)), np.float64(0))
        rounded(first, scale, start)
        np.subtract(rounded(last, scale, length), start, out=length)
        np.maximum(np.add(length, 1, out=length), 1, out=length)
        for k in range(count):
            for bound, part, whole in ((low, k, np.floor), (many, k + 1, np.ceil)):
                np.divide(np.multiply(length, part, out=edge), count, out=edge)
                np.add(whole(edge, out=edge), start, out=edge)
                bound[k] = np.fmin(np.fmax(edge, 0, out=edge), size, out=edge)
            many[k] -= low[k]

    def roi_bprop(self, e: Any, regions: Array, argmax: Any, d: Any) -> None:
        """Compute the sum of the errors of all bins whose maximum a pixel was."""
        C, count, N = d.shape[0], e[0].size, d.shape[3]
        image, errors, places = d.reshape(C, -1), e.reshape(C, count), argmax.reshape(C, count)
        batch, cell = self.scratch("bins", (2, count), np.int64(0))
        batch.reshape(e.shape[1:])[...] = regions[:, 0]
        error, none = self.scratch("pixels", (count,), e), self.scratch("hits", (count,), np.bool_(0))
        d[...] = 0
        for c in range(C):
            np.copyto(cell, places[c])
            np.less(cell, 0, out=none)
            np.add(np.multiply(np.maximum(cell, 0, out=cell), N, out=cell), batch, out=cell)
            np.copyto(error, errors[c])
            np.copyto(error, 0, where=none)
            np.add.at(image[c], cell, error)


def rounded(x: Any, scale: float, out: Any) -> Any:
    """Return ``x scale`` as the nearest whole numbers, halves upwards."""
    return np.floor(np.add(np.multiply(x, scale, out=out), 0.5, out=out), out=out)


def inner(first: Any, many: Any, k: int, size: int, out: Any) -> None:
    """Fill in the k-th cell of each window, or its last where it has no k-th, along an axis of a size."""
    np.minimum(np.subtract(many, 1, out=out), k, out=out)
    np.minimum(np.maximum(np.add(out, first, out=out), 0, out=out), size - 1, out=out)
