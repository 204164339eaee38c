"""How is a convolution made of matrix products?  Gather the shifts along a row once, multiply once a filter row.

For filter row (t, r) and some output rows, the S shifted copies of the input rows that it meets are a matrix
(C*S, columns): the product with the filter row (C*S, K) is what that row adds to the output. Input rows are shared by
filter rows, so each is copied S times and not R*S times as in im2col (Chellapilla et al. 2006), and a few rows at a
time, so that they stay in the cache. The derivatives run the same way back.

An image of one map, 4 by 5, and a filter of 3 by 3: output rows 0 and 1 meet input rows 0 to 3, of which the shifts
are ``x[0:4, 0:3]``, ``x[0:4, 1:4]`` and ``x[0:4, 2:5]``. Filter row r meets shifted rows r and r + 1: its three weights
times that (3, 2 * 3) matrix are what it adds to the two output rows. Three products, and the convolution is done.

A product with a thin filter row, as of three color maps, is slow for its size: there all filter rows are gathered, and
multiplied at once, as im2col does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from neonlite.backend.primitives.geometry import ConvLayer
from neonlite.backend.primitives.products import Products

CACHE = 1 << 23  # bytes of input, shifted, that are worked on at a time
LONG = 512  # times as long as their number: rows of which products are taken by halves
THIN = 48  # weights in a filter row, C * S, below which the rows are multiplied at once


class Rows(NamedTuple):
    """Some output rows: (m, p) to (m, p + n), which are ``columns`` of the output as a matrix (K, M*P*Q*N)."""

    m: int
    p: int
    n: int
    columns: slice


class Convolutions(Products):
    """Convolution and its two derivatives, of contiguous arrays. Results share no memory with operands."""

    def conv_fprop(self, layer: ConvLayer, i: Any, f: Any, o: Any, alpha: float, beta: float) -> None:
        """Compute ``o = alpha conv(i, f) + beta o``: (C, D, H, W, N), (C, T, R, S, K), (K, M, P, Q, N)."""
        padded, filters = self._padded(layer, i), self._by_row(layer, f)
        out = self.runtime.reshape(o, (layer.K, layer.sizeO // layer.K))
        for rows in self._rows(layer, i):
            for t in range(layer.T):
                shifted = self._shifted(layer, padded, rows, t)
                for r in range(filters.shape[1]):
                    row = self.xp.permute_dims(filters[t, r, ...], (1, 0))
                    met = self._matrix(layer, shifted[self._met(layer, rows, r)], row.shape[1])
                    self.gemm(row, met, out[:, rows.columns], alpha, beta if t == r == 0 else 1.0)

    def conv_bprop(self, layer: ConvLayer, f: Any, e: Any, d: Any, alpha: float, beta: float) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do."""
        error, filters = self.runtime.reshape(e, (layer.K, layer.sizeO // layer.K)), self._by_row(layer, f)
        padded = self.scratch("padded", self._padded_dim(layer), d)
        padded[...] = 0
        for rows in self._rows(layer, e):
            for t in range(layer.T):
                shifted = self.scratch("shifted", self._shifted_dim(layer, rows), d)
                shifted[...] = 0
                for r in range(filters.shape[1]):
                    row = filters[t, r, ...]
                    product = self.scratch("row", (row.shape[0], rows.n * layer.Q * layer.N), d)
                    self.gemm(row, error[:, rows.columns], product, alpha)
                    met = self._met(layer, rows, r)
                    shifted[met] += self.xp.reshape(product, shifted[met].shape)
                for k, (r, s) in enumerate(shifts(layer)):
                    padded[self._shift(layer, rows, t, r, s)] += shifted[:, k, ...]
        add(d, padded[self._inside(layer)], beta)

    def conv_update(self, layer: ConvLayer, i: Any, e: Any, u: Any, alpha: float, beta: float) -> None:
        """Compute ``u = alpha dE/df + beta u`` of the error e = dE/do."""
        padded = self._padded(layer, i)
        error = self.runtime.reshape(e, (layer.K, layer.sizeO // layer.K))
        by_row = self.scratch("filters", tuple(layer.dimF[axis] for axis in order(layer)), u)
        total = self.runtime.reshape(by_row, (layer.T, turns(layer), -1, layer.K))
        total[...] = 0
        for rows in self._rows(layer, i):
            for t in range(layer.T):
                shifted = self._shifted(layer, padded, rows, t)
                for r in range(turns(layer)):
                    met = self._matrix(layer, shifted[self._met(layer, rows, r)], total.shape[2])
                    self._add_product(met, error[:, rows.columns], total[t, r, ...], alpha)
        back = tuple(order(layer).index(axis) for axis in range(5))
        add(u, self.xp.permute_dims(by_row, back), beta)

    def conv_with_bias(self, layer: ConvLayer, i: Any, f: Any, o: Any, bias: Any, relu: bool) -> bool:
        """Compute ``o = conv(i, f) + bias``, with ``relu`` max(., 0) of it where the primitives rectify; tell whether.

        bias (K,). False: nothing was done.
        """
        return False

    def _add_product(self, a: Any, b: Any, total: Any, alpha: float) -> None:
        """Compute ``total += alpha a b'``; long rows by halves, as libraries share out results, and here are few."""
        m, k = a.shape
        if k % 2 or k < LONG * m:
            self.gemm(a, self.xp.permute_dims(b, (1, 0)), total, alpha, 1.0)
            return
        a, b = (self.runtime.reshape(x, (x.shape[0], 2, k // 2)) for x in (a, b))
        halves = self.scratch("halves", (2, *total.shape), total)
        self.gemm(self.xp.permute_dims(a, (1, 0, 2)), self.xp.permute_dims(b, (1, 2, 0)), halves, alpha)
        for half in (0, 1):
            total += halves[half, ...]

    # --- places ---

    def _rows(self, layer: ConvLayer, like: Any) -> Iterator[Rows]:
        """Yield the output rows, as many at a time as the cache holds."""
        bytes_a_row = (
            max(layer.C * len(shifts(layer)), layer.K) * layer.Q * layer.N * self.xp.finfo(like.dtype).bits // 8
        )
        count = max(1, CACHE // bytes_a_row)
        wide = layer.Q * layer.N
        for m in range(layer.M):
            for p in range(0, layer.P, count):
                first = (m * layer.P + p) * wide
                n = min(count, layer.P - p)
                yield Rows(m, p, n, slice(first, first + n * wide))

    def _by_row(self, layer: ConvLayer, f: Any) -> Any:
        """Return the filters as matrices, one for each product: (T, R, C*S, K), or (T, 1, C*R*S, K)."""
        filters = self.scratch("filters", tuple(layer.dimF[axis] for axis in order(layer)), f)
        filters[...] = self.xp.permute_dims(f, order(layer))
        return self.runtime.reshape(filters, (layer.T, turns(layer), -1, layer.K))

    def _padded_dim(self, layer: ConvLayer) -> tuple[int, ...]:
        spans = ((n + 2 * p) for n, p in zip(layer.DHW, layer.padding, strict=True))
        return (layer.C, *spans, layer.N)

    def _inside(self, layer: ConvLayer) -> tuple[slice, ...]:
        inner = (slice(p, p + n) for n, p in zip(layer.DHW, layer.padding, strict=True))
        return (slice(None), *inner, slice(None))

    def _padded(self, layer: ConvLayer, i: Any) -> Any:
        """Return the image with zeros around it."""
        if not any(layer.padding):
            return i
        padded = self.scratch("padded", self._padded_dim(layer), i)
        padded[...] = 0
        padded[self._inside(layer)] = i
        return padded

    def _shifted_dim(self, layer: ConvLayer, rows: Rows) -> tuple[int, ...]:
        """Return (C, shifts, input rows, Q, N): input rows from the first to the last that some output rows meet."""
        reach = 0 if thin(layer) else (rows.n - 1) * (layer.strides[1] - 1) + (layer.R - 1) * layer.dilation[1]
        return (layer.C, len(shifts(layer)), rows.n + reach, layer.Q, layer.N)

    def _shift(self, layer: ConvLayer, rows: Rows, t: int, r: int, s: int) -> tuple[Any, ...]:
        """Return where in the padded image a shift of these input rows is: (C, input rows, Q, N)."""
        z = rows.m * layer.strides[0] + t * layer.dilation[0]
        y, x = rows.p * layer.strides[1] + r * layer.dilation[1], s * layer.dilation[2]
        step, height = layer.strides[1] if thin(layer) else 1, self._shifted_dim(layer, rows)[2]
        down = slice(y, y + (height - 1) * step + 1, step)
        across = slice(x, x + (layer.Q - 1) * layer.strides[2] + 1, layer.strides[2])
        return (slice(None), z, down, across, slice(None))

    def _shifted(self, layer: ConvLayer, padded: Any, rows: Rows, t: int) -> Any:
        shifted = self.scratch("shifted", self._shifted_dim(layer, rows), padded)
        for k, (r, s) in enumerate(shifts(layer)):
            shifted[:, k, ...] = padded[self._shift(layer, rows, t, r, s)]
        return shifted

    def _matrix(self, layer: ConvLayer, met: Any, height: int) -> Any:
        """Return shifted input rows as a matrix: a view, or where rows between them are left out, a copy."""
        if not thin(layer) and layer.strides[1] > 1:
            apart, met = met, self.scratch("met", met.shape, met)
            met[...] = apart
        return self.xp.reshape(met, (height, -1))

    def _met(self, layer: ConvLayer, rows: Rows, r: int) -> tuple[Any, ...]:
        """Return which of the shifted input rows filter row r meets: all, where the shifts are those of each row."""
        if thin(layer):
            return (...,)
        y, stride = r * layer.dilation[1], layer.strides[1]
        return (slice(None), slice(None), slice(y, y + (rows.n - 1) * stride + 1, stride), ...)


def thin(layer: ConvLayer) -> bool:
    """Tell whether all filter rows are multiplied at once."""
    return layer.C * layer.S < THIN


def turns(layer: ConvLayer) -> int:
    """Return how many products there are for each depth of the filter."""
    return 1 if thin(layer) else layer.R


def shifts(layer: ConvLayer) -> list[tuple[int, int]]:
    """Return (r, s) for each copy of the input rows."""
    return [(r, s) for r in range(layer.R if thin(layer) else 1) for s in range(layer.S)]


def order(layer: ConvLayer) -> tuple[int, ...]:
    """Return the axes C, T, R, S, K of the filters in the order in which they are multiplied."""
    return (1, 0, 2, 3, 4) if thin(layer) else (1, 2, 0, 3, 4)


def add(out: Any, value: Any, beta: float) -> None:
    """Compute ``out = value + beta out`` in place."""
    if beta == 0:
        out[...] = value
    else:
        out *= beta
        out += value
