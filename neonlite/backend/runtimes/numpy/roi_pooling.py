"""NumPy RoI max pooling over chunks of bins, in reused buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite.backend.primitives.reference import ReferencePrimitives
from neonlite.typing import NumPyArray as Array

MAX_GATHERED_PIXELS = 1 << 16  # gathered at once


class NumPyRoiPooling(ReferencePrimitives):
    """RoI max pooling: contiguous images (C, H, W, N), regions (n, 5), bins (C, PH, PW, n)."""

    def to_host_float64(self, array: Array) -> Array:
        """Return an array as float64 on the host, in a workspace."""
        buffer: Array = self.get_workspace("numbers", array.shape, np.float64(0))
        np.copyto(buffer, array)
        return buffer

    def roi_fprop(self, i: Array, regions: Array, o: Array, argmax: Array, scale: float) -> None:
        """Write the maximum of each bin to o, and its pixel index ``h W + w`` to argmax; 0 and -1 for an empty bin."""
        C, H, W, N = i.shape
        bins, count = o.shape[1:], o[0].size
        image, all_best, all_argmax = i.reshape(C, H * W * N), o.reshape(C, count), argmax.reshape(C, count)
        top, rows, left, columns, batch, pixel, cell = self.get_workspace("bins", (7, count), np.int64(0))
        self._fill_bin_bounds(regions[:, 2], regions[:, 4], scale, H, top.reshape(bins), rows.reshape(bins))
        across = [x.reshape(bins).swapaxes(0, 1) for x in (left, columns)]
        self._fill_bin_bounds(regions[:, 1], regions[:, 3], scale, W, *across)
        batch.reshape(bins)[...] = regions[:, 0]
        chunk = max(1, min(MAX_GATHERED_PIXELS // C, count))
        floats = self.get_workspace("pixels", (2, C * chunk), i)
        argmax_flat = self.get_workspace("argmax", (C * chunk,), argmax)
        masks = self.get_workspace("hits", (2, C * chunk), np.bool_(0))
        for start in range(0, count, chunk):
            chunk_slice = slice(start, min(start + chunk, count))
            shape, size = (C, chunk_slice.stop - start), C * (chunk_slice.stop - start)
            value, best, where, mask, is_number = (x[:size].reshape(shape) for x in (*floats, argmax_flat, *masks))
            pixel_chunk, cell_chunk = pixel[chunk_slice], cell[chunk_slice]
            for y in range(int(rows[chunk_slice].max())):
                for x in range(int(columns[chunk_slice].max())):
                    clamp_cell_index(top[chunk_slice], rows[chunk_slice], y, H, pixel_chunk)
                    clamp_cell_index(left[chunk_slice], columns[chunk_slice], x, W, cell_chunk)
                    np.add(np.multiply(pixel_chunk, W, out=pixel_chunk), cell_chunk, out=pixel_chunk)
                    np.add(np.multiply(pixel_chunk, N, out=cell_chunk), batch[chunk_slice], out=cell_chunk)
                    np.take(image, cell_chunk, axis=1, out=value, mode="clip")
                    if x == y == 0:
                        np.copyto(best, value)
                        np.copyto(where, pixel_chunk)
                        continue
                    np.less_equal(value, best, out=mask)  # also False for NaN, which is the maximum
                    np.greater(np.equal(best, best, out=is_number), mask, out=mask)
                    np.copyto(where, pixel_chunk, where=mask)
                    np.maximum(best, value, out=best)
            empty = np.less_equal(np.minimum(rows[chunk_slice], columns[chunk_slice], out=pixel_chunk), 0, out=mask[0])
            np.copyto(best, 0, where=empty)
            np.copyto(where, -1, where=empty)
            all_best[:, chunk_slice], all_argmax[:, chunk_slice] = best, where

    def _fill_bin_bounds(
        self, first: Array, last: Array, scale: float, size: int, bin_start: Array, bin_size: Array
    ) -> None:
        """Write the start and the number of cells of each bin along its first axis, as ``bin_bounds`` does."""
        count = len(bin_start)
        start, length, edge = self.get_workspace("edges", (3, len(first)), np.float64(0))
        round_half_up(first, scale, start)
        np.subtract(round_half_up(last, scale, length), start, out=length)
        np.maximum(np.add(length, 1, out=length), 1, out=length)
        for k in range(count):
            for bound, part, round_to_int in ((bin_start, k, np.floor), (bin_size, k + 1, np.ceil)):
                np.divide(np.multiply(length, part, out=edge), count, out=edge)
                np.add(round_to_int(edge, out=edge), start, out=edge)
                bound[k] = np.fmin(np.fmax(edge, 0, out=edge), size, out=edge)
            bin_size[k] -= bin_start[k]

    def roi_bprop(self, e: Array, regions: Array, argmax: Array, d: Array) -> None:
        """Add the error of each bin to the pixel that was its maximum."""
        C, count, N = d.shape[0], e[0].size, d.shape[3]
        image, errors, pixels = d.reshape(C, -1), e.reshape(C, count), argmax.reshape(C, count)
        batch, cell = self.get_workspace("bins", (2, count), np.int64(0))
        batch.reshape(e.shape[1:])[...] = regions[:, 0]
        error, is_empty = self.get_workspace("pixels", (count,), e), self.get_workspace("hits", (count,), np.bool_(0))
        d[...] = 0
        for c in range(C):
            np.copyto(cell, pixels[c])
            np.less(cell, 0, out=is_empty)
            np.add(np.multiply(np.maximum(cell, 0, out=cell), N, out=cell), batch, out=cell)
            np.copyto(error, errors[c])
            np.copyto(error, 0, where=is_empty)
            np.add.at(image[c], cell, error)


def round_half_up(x: Array, scale: float, out: Array) -> Any:
    """Return ``x scale`` rounded to the nearest integers, halves up."""
    return np.floor(np.add(np.multiply(x, scale, out=out), 0.5, out=out), out=out)


def clamp_cell_index(first: Array, count: Array, k: int, size: int, out: Array) -> None:
    """Write the index of the k-th cell of each window along an axis, or of its last cell if it has fewer."""
    np.minimum(np.subtract(count, 1, out=out), k, out=out)
    np.minimum(np.maximum(np.add(out, first, out=out), 0, out=out), size - 1, out=out)
