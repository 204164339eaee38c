"""How is an image pooled?  One shifted slice for each place in the window; cells of the padding do not count.

Windows reach over channels, depth, height and width. Along each axis ``windows`` tells which of them have their k-th
place inside the image, so a place is one slice of the result and one of the image.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from neonlite.backend.primitives.geometry import LRNLayer, PoolLayer, windows
from neonlite.backend.primitives.products import Products

Slices = tuple[Any, ...]


class Pooling(Products):
    """Pooling, and normalization over neighboring channels, of contiguous arrays (C, D, H, W, N)."""

    def pool_fprop(self, layer: PoolLayer, i: Any, o: Any, argmax: Any, beta: float) -> None:
        """Compute ``o = pool(i) + beta o``; where not None, ``argmax`` takes the place of the first maximum."""
        xp = self.xp
        if layer.op == "max":
            pooled, places = self._maxima(layer, i, None if argmax is None else argmax.dtype)
            if argmax is not None:
                argmax[...] = places
        else:
            pooled = xp.zeros(o.shape, dtype=o.dtype)
            for _, to, of in self._taps(layer):
                pooled[to] += i[of] if layer.op == "avg" else xp.square(i[of])
            pooled = pooled / self._counts(layer, o) if layer.op == "avg" else xp.sqrt(pooled)
        o[...] = pooled if beta == 0 else pooled + o * beta

    def pool_bprop(self, layer: PoolLayer, i: Any, e: Any, d: Any, argmax: Any, alpha: float, beta: float) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do: max by ``argmax`` or the image i, l2 by i."""
        xp = self.xp
        if layer.op == "max" and argmax is None:
            argmax = self._maxima(layer, i, xp.int32)[1]
        if layer.op == "avg":
            e = e / self._counts(layer, e)
        elif layer.op == "l2":
            norm = xp.zeros(e.shape, dtype=e.dtype)
            for _, to, of in self._taps(layer):
                norm[to] += xp.square(i[of])
            norm = xp.sqrt(norm)
            flat = norm == 0
            e = xp.where(flat, xp.zeros_like(e), e / xp.where(flat, xp.ones_like(norm), norm))
        d[...] = 0 if beta == 0 else d * beta
        for tap, to, of in self._taps(layer):
            error = e[to]
            if layer.op == "max":
                error = xp.where(argmax[to] == tap, error, xp.zeros_like(error))
            elif layer.op == "l2":
                error = error * i[of]
            d[of] += error * alpha

    def _maxima(self, layer: PoolLayer, i: Any, places: Any) -> tuple[Any, Any]:
        """Return the maxima, and the place in the window of the first of each, in a dtype; None leaves them out."""
        xp = self.xp
        best = xp.full(layer.dimO, -xp.inf, dtype=i.dtype)
        if places is None:
            for _, to, of in self._taps(layer):
                best[to] = xp.maximum(best[to], i[of])
            return best, None
        where = xp.broadcast_to(self._first(layer, places), layer.dimO) + xp.zeros(layer.dimO, dtype=places)
        for tap, to, of in self._taps(layer):
            x = i[of]
            better = (x > best[to]) | (xp.isnan(x) & ~xp.isnan(best[to]))  # of several NaN the first
            best[to] = xp.where(better, x, best[to])
            where[to] = xp.where(better, xp.asarray(tap, dtype=places), where[to])
        return best, where

    def _taps(self, layer: PoolLayer) -> Iterator[tuple[int, Slices, Slices]]:
        """Yield each place in the window: its number, the slices of the result, the slices of the image."""
        _, T, R, S = layer.JTRS
        for (j, k, c), (t, m, d), (r, p, h), (s, q, w) in itertools.product(*layer.taps()):
            yield ((j * T + t) * R + r) * S + s, (k, m, p, q, ...), (c, d, h, w, ...)

    def _along(self, layer: PoolLayer, values: list[list[int]], axis: int, dtype: Any) -> Any:
        """Return whole numbers along one axis as an array that broadcasts over the result."""
        shape = [1] * 5
        shape[axis] = layer.dimO[axis]
        return self.xp.reshape(self.xp.asarray(values[axis], dtype=dtype), tuple(shape))

    def _first(self, layer: PoolLayer, dtype: Any) -> Any:
        """Return the first place in each window that lies inside the image."""
        each = zip(layer.dimO, layer.strides, layer.padding, strict=False)
        first = [[max(0, pad - n * stride) for n in range(count)] for count, stride, pad in each]
        weights = [math.prod(layer.JTRS[axis + 1 :]) for axis in range(4)]
        scaled = [[n * weight for n in numbers] for numbers, weight in zip(first, weights, strict=True)]
        return sum(self._along(layer, scaled, axis, dtype) for axis in range(4))

    def _counts(self, layer: PoolLayer, like: Any) -> Any:
        """Return how many cells of each window lie inside the image."""
        each = zip(layer.dimI, layer.dimO, layer.JTRS, layer.strides, layer.padding, strict=False)
        inside = [
            [min(size, n * stride - pad + window) - max(0, n * stride - pad) for n in range(count)]
            for size, count, window, stride, pad in each
        ]
        return math.prod(self._along(layer, inside, axis, like.dtype) for axis in range(4))

    # --- local response normalization (Krizhevsky et al. 2012, section 3.3) ---

    def lrn_fprop(
        self, layer: LRNLayer, i: Any, o: Any, denom: Any, alpha: float, beta: float, a: float, b: float
    ) -> None:
        """Compute ``o = alpha i denom^-b + beta o``, ``denom = 1 + a / J sum i^2`` over J neighboring channels."""
        denom[...] = self._neighbors(layer, self.xp.square(i)) * (a / layer.J) + 1
        normal = i * denom**-b * alpha
        o[...] = normal if beta == 0 else normal + o * beta

    def lrn_bprop(
        self, layer: LRNLayer, i: Any, e: Any, d: Any, denom: Any, alpha: float, beta: float, a: float, b: float
    ) -> None:
        """Compute ``d = alpha (n - 2 a b / J i sum n i / denom) + beta d``, ``n = e denom^-b``, of e = dE/do."""
        n = e * denom**-b
        shared = self._neighbors(layer, n * i / denom, back=True)
        error = (n - i * shared * (2 * a * b / layer.J)) * alpha
        d[...] = error if beta == 0 else error + d * beta

    def _neighbors(self, layer: LRNLayer, x: Any, back: bool = False) -> Any:
        """Return the sum over the J channels around each; ``back``: over the channels that have it among theirs."""
        total = self.xp.zeros(x.shape, dtype=x.dtype)
        for _, to, of in windows(layer.C, layer.C, layer.J, 1, layer.J // 2):
            if back:
                to, of = of, to
            total[to, ...] += x[of, ...]
        return total
