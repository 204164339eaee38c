"""Pooling and local response normalization in array-API functions, one slice per window offset.

Windows extend over channels, depth, height and width. For each offset within the window, the outputs whose window has
an image element at this offset are one slice of the output, and these elements are one slice of the image. Padding is
excluded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from neonlite.backend.primitives.geometry import LRNLayer, PoolLayer, axis_window_offsets
from neonlite.backend.primitives.matmul import MatmulPrimitives
from neonlite.typing import NativeArray as Array

Slices = tuple[Any, ...]


def saved_operand(layer: PoolLayer, i: Array, e: Array, argmax: Array) -> Array:
    """Return the operand of the backward pass whose layout the gradient has: argmax or the images, else the error."""
    if layer.op == "max":
        return argmax
    return e if i is None else i


class PoolingPrimitives(MatmulPrimitives):
    """Pooling and local response normalization of contiguous arrays (C, D, H, W, N)."""

    def pool_fprop(self, layer: PoolLayer, i: Array, o: Array, argmax: Array, beta: float) -> None:
        """Compute ``o = pool(i) + beta o``; unless ``argmax`` is None, write the window indices of the maxima to it."""
        xp = self.xp
        if layer.op == "max":
            pooled, indices = self._max_and_argmax(layer, i, None if argmax is None else argmax.dtype)
            if argmax is not None:
                argmax[...] = indices
        else:
            pooled = xp.zeros(o.shape, dtype=o.dtype)
            for _, to, of in self._window_offsets(layer):
                pooled[to] += i[of] if layer.op == "avg" else xp.square(i[of])
            pooled = pooled / self._valid_cell_counts(layer, o) if layer.op == "avg" else xp.sqrt(pooled)
        o[...] = pooled if beta == 0 else pooled + o * beta

    def pool_bprop(
        self, layer: PoolLayer, i: Array, e: Array, d: Array, argmax: Array, alpha: float, beta: float
    ) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do; max uses ``argmax`` or i, l2 uses i."""
        xp = self.xp
        if layer.op == "max" and argmax is None:
            argmax = self._max_and_argmax(layer, i, xp.int32)[1]
        if layer.op == "avg":
            e = e / self._valid_cell_counts(layer, e)
        elif layer.op == "l2":
            norm = xp.zeros(e.shape, dtype=e.dtype)
            for _, to, of in self._window_offsets(layer):
                norm[to] += xp.square(i[of])
            norm = xp.sqrt(norm)
            is_zero = norm == 0
            e = xp.where(is_zero, xp.zeros_like(e), e / xp.where(is_zero, xp.ones_like(norm), norm))
        d[...] = 0 if beta == 0 else d * beta
        for index, to, of in self._window_offsets(layer):
            error = e[to]
            if layer.op == "max":
                error = xp.where(argmax[to] == index, error, xp.zeros_like(error))
            elif layer.op == "l2":
                error = error * i[of]
            d[of] += error * alpha

    def _max_and_argmax(self, layer: PoolLayer, i: Array, dtype: Any) -> tuple[Any, Any]:
        """Return the maxima, and the window index of each first maximum in ``dtype``, or None without a dtype."""
        xp = self.xp
        best = xp.full(layer.dimO, -xp.inf, dtype=i.dtype)
        if dtype is None:
            for _, to, of in self._window_offsets(layer):
                best[to] = xp.maximum(best[to], i[of])
            return best, None
        first = xp.broadcast_to(self._first_window_index(layer, dtype), layer.dimO)
        argmax = first + xp.zeros(layer.dimO, dtype=dtype)
        for index, to, of in self._window_offsets(layer):
            x = i[of]
            better = (x > best[to]) | (xp.isnan(x) & ~xp.isnan(best[to]))  # the first NaN wins
            best[to] = xp.where(better, x, best[to])
            argmax[to] = xp.where(better, xp.asarray(index, dtype=dtype), argmax[to])
        return best, argmax

    def _window_offsets(self, layer: PoolLayer) -> Iterator[tuple[int, Slices, Slices]]:
        """Yield (window index, slices of the output, slices of the image) for each window offset."""
        _, T, R, S = layer.JTRS
        for (j, k, c), (t, m, d), (r, p, h), (s, q, w) in itertools.product(*layer.window_offsets()):
            yield ((j * T + t) * R + r) * S + s, (k, m, p, q, ...), (c, d, h, w, ...)

    def _broadcast_along(self, layer: PoolLayer, values: list[list[int]], axis: int, dtype: Any) -> Array:
        """Return integers along one axis as an array that broadcasts over the output."""
        shape = [1] * 5
        shape[axis] = layer.dimO[axis]
        return self.xp.reshape(self.xp.asarray(values[axis], dtype=dtype), tuple(shape))

    def _first_window_index(self, layer: PoolLayer, dtype: Any) -> Array:
        """Return the window index of the first element of each window that is inside the image."""
        each = zip(layer.dimO, layer.strides, layer.padding, strict=False)
        first = [[max(0, pad - n * stride) for n in range(count)] for count, stride, pad in each]
        weights = [math.prod(layer.JTRS[axis + 1 :]) for axis in range(4)]
        scaled = [[n * weight for n in numbers] for numbers, weight in zip(first, weights, strict=True)]
        return sum(self._broadcast_along(layer, scaled, axis, dtype) for axis in range(4))

    def _valid_cell_counts(self, layer: PoolLayer, like: Array) -> Array:
        """Return the number of elements of each window that are inside the image."""
        each = zip(layer.dimI, layer.dimO, layer.JTRS, layer.strides, layer.padding, strict=False)
        inside = [
            [min(size, n * stride - pad + window) - max(0, n * stride - pad) for n in range(count)]
            for size, count, window, stride, pad in each
        ]
        return math.prod(self._broadcast_along(layer, inside, axis, like.dtype) for axis in range(4))

    # --- local response normalization (Krizhevsky et al. 2012, section 3.3) ---

    def lrn_fprop(
        self, layer: LRNLayer, i: Array, o: Array, denom: Array, alpha: float, beta: float, a: float, b: float
    ) -> None:
        """Compute ``o = alpha i denom^-b + beta o``, ``denom = 1 + a / J sum i^2`` over J neighboring channels."""
        denom[...] = self._sum_neighbor_channels(layer, self.xp.square(i)) * (a / layer.J) + 1
        normal = i * denom**-b * alpha
        o[...] = normal if beta == 0 else normal + o * beta

    def lrn_bprop(
        self, layer: LRNLayer, i: Array, e: Array, d: Array, denom: Array, alpha: float, beta: float, a: float, b: float
    ) -> None:
        """Compute ``d = alpha (n - 2 a b / J i sum n i / denom) + beta d``, ``n = e denom^-b``, of e = dE/do."""
        n = e * denom**-b
        shared = self._sum_neighbor_channels(layer, n * i / denom, transpose=True)
        error = (n - i * shared * (2 * a * b / layer.J)) * alpha
        d[...] = error if beta == 0 else error + d * beta

    def _sum_neighbor_channels(self, layer: LRNLayer, x: Array, transpose: bool = False) -> Array:
        """Return the sum over J neighboring channels of each; ``transpose``: over those whose neighbors include it."""
        total = self.xp.zeros(x.shape, dtype=x.dtype)
        for _, to, of in axis_window_offsets(layer.C, layer.C, layer.J, 1, layer.J // 2):
            if transpose:
                to, of = of, to
            total[to, ...] += x[of, ...]
        return total
