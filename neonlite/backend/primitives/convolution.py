"""Matrix products and convolution in array-API functions: the reference of all runtimes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from neonlite.backend.primitives.geometry import ConvLayer
from neonlite.typing import NativeArray as Array


class MatmulPrimitives:
    """Matrix products in array-API functions. ``c`` shares no memory with ``a`` and ``b``."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self.xp = runtime.xp

    def gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``: (m, k), (k, n), (m, n), or stacks of them. With beta 0, c is not read."""
        product = self.xp.matmul(a, b)
        if alpha != 1:
            product = product * alpha
        c[...] = product if beta == 0 else product + c * beta

    def batch_reduce_gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha sum_x a[x] b[x] + beta c``: (X, m, k), (X, k, n), (m, n)."""
        if not a.shape[0]:
            c[...] = c * beta if beta else self.xp.zeros_like(c)
        for x in range(a.shape[0]):
            self.gemm(a[x, ...], b[x, ...], c, alpha, beta if x == 0 else 1.0)

    def get_workspace(self, purpose: str, shape: tuple[int, ...], like: Array) -> Array:
        """Return an uninitialized array with the dtype of ``like``."""
        return self.xp.empty(shape, dtype=like.dtype)


# --- convolution ---
#
# Forward, backward-data and backward-weights by matrix products over gathered rows (a row-wise im2col).
#
# For filter row (t, r) and some output rows, the S shifted copies of the input rows that it covers are a matrix (C*S,
# columns), and its product with the filter row (C*S, K) is the contribution of that row to the output. Filter rows
# share input rows, so each input row is copied S times and not R*S times as in im2col (Chellapilla et al. 2006). Only a
# few rows are copied at a time, so that they stay in the cache. The gradients use the same matrices.
#
# Example: an image of one channel, 4 by 5, and a filter of 3 by 3. Output rows 0 and 1 need input rows 0 to 3, whose
# shifts are ``x[0:4, 0:3]``, ``x[0:4, 1:4]`` and ``x[0:4, 2:5]``. Filter row r covers the shifted rows r and r + 1: its
# three weights times that (3, 2 * 3) matrix are its contribution to the two output rows. The result is the sum of three
# products.
#
# If a filter row has few weights, as with three color channels, these products are too small to be fast. Then all
# filter rows are gathered and multiplied at once, as in im2col.

MAX_GATHERED_BYTES = 1 << 23  # of shifted input rows that are processed at once
# weights in a filter row, C * S, below which all rows are multiplied at once; by benchmarks/thresholds.py with one
# thread, that takes 0.6 (3 weights) to 0.95 (24) of the time, and at 48 to 96 weights the same
MIN_ROW_WEIGHTS = 48


class OutputRows(NamedTuple):
    """The n output rows (m, p) to (m, p + n - 1): ``columns`` of the output viewed as a matrix (K, M*P*Q*N)."""

    m: int
    p: int
    n: int
    columns: slice


class ConvPrimitives(MatmulPrimitives):
    """Convolution and its two gradients, of contiguous arrays. Results share no memory with operands."""

    def conv_fprop(self, layer: ConvLayer, i: Array, f: Array, o: Array, alpha: float, beta: float) -> None:
        """Compute ``o = alpha conv(i, f) + beta o``: (C, D, H, W, N), (C, T, R, S, K), (K, M, P, Q, N)."""
        padded, filters = self._pad_image(layer, i), self._filters_by_row(layer, f)
        out = self.runtime.reshape(o, (layer.K, layer.sizeO // layer.K))
        for rows in self._iter_output_rows(layer, i):
            for t in range(layer.T):
                shifted = self._gather_shifts(layer, padded, rows, t)
                for r in range(filters.shape[1]):
                    row = self.xp.permute_dims(filters[t, r, ...], (1, 0))
                    input_rows = self._as_matrix(layer, shifted[self._filter_row_slices(layer, rows, r)], row.shape[1])
                    self.gemm(row, input_rows, out[:, rows.columns], alpha, beta if t == r == 0 else 1.0)

    def conv_bprop(self, layer: ConvLayer, f: Array, e: Array, d: Array, alpha: float, beta: float) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do."""
        error, filters = self.runtime.reshape(e, (layer.K, layer.sizeO // layer.K)), self._filters_by_row(layer, f)
        padded = self.get_workspace("padded", self._padded_shape(layer), d)
        padded[...] = 0
        for rows in self._iter_output_rows(layer, e):
            for t in range(layer.T):
                shifted = self.get_workspace("shifted", self._gathered_shape(layer, rows), d)
                shifted[...] = 0
                for r in range(filters.shape[1]):
                    row = filters[t, r, ...]
                    product = self.get_workspace("row", (row.shape[0], rows.n * layer.Q * layer.N), d)
                    self.gemm(row, error[:, rows.columns], product, alpha)
                    slices = self._filter_row_slices(layer, rows, r)
                    shifted[slices] += self.xp.reshape(product, shifted[slices].shape)
                for k, (r, s) in enumerate(list_shifts(layer)):
                    padded[self._shift_slices(layer, rows, t, r, s)] += shifted[:, k, ...]
        scale_and_add(d, padded[self._interior_slices(layer)], beta)

    def conv_update(self, layer: ConvLayer, i: Array, e: Array, u: Array, alpha: float, beta: float) -> None:
        """Compute ``u = alpha dE/df + beta u`` of the error e = dE/do."""
        padded = self._pad_image(layer, i)
        error = self.runtime.reshape(e, (layer.K, layer.sizeO // layer.K))
        gradient = self.get_workspace("filters", tuple(layer.dimF[axis] for axis in filter_axes_order(layer)), u)
        total = self.runtime.reshape(gradient, (layer.T, products_per_depth(layer), -1, layer.K))
        total[...] = 0
        for rows in self._iter_output_rows(layer, i):
            for t in range(layer.T):
                shifted = self._gather_shifts(layer, padded, rows, t)
                for r in range(products_per_depth(layer)):
                    input_rows = self._as_matrix(
                        layer, shifted[self._filter_row_slices(layer, rows, r)], total.shape[2]
                    )
                    errors = self.xp.permute_dims(error[:, rows.columns], (1, 0))
                    self.gemm(input_rows, errors, total[t, r, ...], alpha, 1.0)
        inverse = tuple(filter_axes_order(layer).index(axis) for axis in range(5))
        scale_and_add(u, self.xp.permute_dims(gradient, inverse), beta)

    def computes(self, op: str, layer: Any) -> bool:
        """Return whether a library computes an op of the table for images: in NHWC, and with groups."""
        return False

    def try_conv_bias(self, layer: ConvLayer, i: Array, f: Array, o: Array, bias: Array, relu: bool) -> bool:
        """Compute ``o = conv(i, f) + bias`` and return True, or return False where no fused kernel exists. bias (K,).

        With ``relu``, max(., 0) is applied if ``supports_fused_relu``.
        """
        return False

    # --- rows and shifts ---

    def _iter_output_rows(self, layer: ConvLayer, like: Array) -> Iterator[OutputRows]:
        """Yield groups of output rows whose gathered input rows fit in MAX_GATHERED_BYTES."""
        bytes_per_row = (
            max(layer.C * len(list_shifts(layer)), layer.K) * layer.Q * layer.N * self.xp.finfo(like.dtype).bits // 8
        )
        count = max(1, MAX_GATHERED_BYTES // bytes_per_row)
        row_size = layer.Q * layer.N
        for m in range(layer.M):
            for p in range(0, layer.P, count):
                first = (m * layer.P + p) * row_size
                n = min(count, layer.P - p)
                yield OutputRows(m, p, n, slice(first, first + n * row_size))

    def _filters_by_row(self, layer: ConvLayer, f: Array) -> Array:
        """Return the filters as one matrix per product: (T, R, C*S, K), or (T, 1, C*R*S, K)."""
        filters = self.get_workspace("filters", tuple(layer.dimF[axis] for axis in filter_axes_order(layer)), f)
        filters[...] = self.xp.permute_dims(f, filter_axes_order(layer))
        return self.runtime.reshape(filters, (layer.T, products_per_depth(layer), -1, layer.K))

    def _padded_shape(self, layer: ConvLayer) -> tuple[int, ...]:
        each = zip(layer.DHW, layer.padding, layer.padding_after, strict=True)
        return (layer.C, *(n + before + max(before, after) for n, before, after in each), layer.N)

    def _interior_slices(self, layer: ConvLayer) -> tuple[slice, ...]:
        inner = (slice(p, p + n) for n, p in zip(layer.DHW, layer.padding, strict=True))
        return (slice(None), *inner, slice(None))

    def _pad_image(self, layer: ConvLayer, i: Array) -> Array:
        """Return the image with zero padding."""
        if self._padded_shape(layer) == layer.dimI:
            return i
        padded = self.get_workspace("padded", self._padded_shape(layer), i)
        padded[...] = 0
        padded[self._interior_slices(layer)] = i
        return padded

    def _gathered_shape(self, layer: ConvLayer, rows: OutputRows) -> tuple[int, ...]:
        """Return (C, shifts, input rows, Q, N), the shape of the input rows gathered for a group of output rows."""
        extra = (rows.n - 1) * (layer.strides[1] - 1) + (layer.R - 1) * layer.dilation[1]
        height = rows.n if uses_full_im2col(layer) else rows.n + extra
        return (layer.C, len(list_shifts(layer)), height, layer.Q, layer.N)

    def _shift_slices(self, layer: ConvLayer, rows: OutputRows, t: int, r: int, s: int) -> tuple[Any, ...]:
        """Return the slices of the padded image that shift (r, s) copies: (C, input rows, Q, N)."""
        z = rows.m * layer.strides[0] + t * layer.dilation[0]
        y, x = rows.p * layer.strides[1] + r * layer.dilation[1], s * layer.dilation[2]
        step, height = layer.strides[1] if uses_full_im2col(layer) else 1, self._gathered_shape(layer, rows)[2]
        down = slice(y, y + (height - 1) * step + 1, step)
        across = slice(x, x + (layer.Q - 1) * layer.strides[2] + 1, layer.strides[2])
        return (slice(None), z, down, across, slice(None))

    def _gather_shifts(self, layer: ConvLayer, padded: Array, rows: OutputRows, t: int) -> Array:
        shifted = self.get_workspace("shifted", self._gathered_shape(layer, rows), padded)
        for k, (r, s) in enumerate(list_shifts(layer)):
            shifted[:, k, ...] = padded[self._shift_slices(layer, rows, t, r, s)]
        return shifted

    def _as_matrix(self, layer: ConvLayer, input_rows: Array, height: int) -> Array:
        """Return shifted input rows as a matrix: a view, or a copy if the stride between rows is above 1."""
        if not uses_full_im2col(layer) and layer.strides[1] > 1:
            strided, input_rows = input_rows, self.get_workspace("input rows", input_rows.shape, input_rows)
            input_rows[...] = strided
        return self.xp.reshape(input_rows, (height, -1))

    def _filter_row_slices(self, layer: ConvLayer, rows: OutputRows, r: int) -> tuple[Any, ...]:
        """Return the slices of the shifted input rows that filter row r covers."""
        if uses_full_im2col(layer):
            return (...,)
        y, stride = r * layer.dilation[1], layer.strides[1]
        return (slice(None), slice(None), slice(y, y + (rows.n - 1) * stride + 1, stride), ...)


def uses_full_im2col(layer: ConvLayer) -> bool:
    """Return whether all filter rows are multiplied at once."""
    return layer.C * layer.S < MIN_ROW_WEIGHTS


def products_per_depth(layer: ConvLayer) -> int:
    """Return the number of products per depth of the filter."""
    return 1 if uses_full_im2col(layer) else layer.R


def list_shifts(layer: ConvLayer) -> list[tuple[int, int]]:
    """Return (r, s) for each copy of the input rows."""
    return [(r, s) for r in range(layer.R if uses_full_im2col(layer) else 1) for s in range(layer.S)]


def filter_axes_order(layer: ConvLayer) -> tuple[int, ...]:
    """Return the axes C, T, R, S, K of the filters in the order of the matrices."""
    return (1, 0, 2, 3, 4) if uses_full_im2col(layer) else (1, 2, 0, 3, 4)


def scale_and_add(out: Array, value: Array, beta: float) -> None:
    """Compute ``out = value + beta out`` in place."""
    if beta == 0:
        out[...] = value
    else:
        out *= beta
        out += value
