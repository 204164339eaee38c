"""ReferencePrimitives, the primitives in array-API functions, which every runtime falls back to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.primitives.geometry import ConvLayer, Layout, LRNLayer, PoolLayer, axis_window_offsets
from neonlite.ops.functions import Shape, run_scatter_add
from neonlite.ops.images import bin_bounds
from neonlite.typing import NativeArray as Array, NumPyArray

# --- matrix products ---


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
# Forward, backward-data and backward-weights by matrix products over gathered windows (im2col, Chellapilla et al.
# 2006).
#
# The shifted copies of some windows, one for each weight of a filter, are a matrix (C*T*R*S, columns). Its product with
# the filters (C*T*R*S, K) is the output there. The gradients use the same matrices. Only a few windows are gathered at
# a time, so that they stay in the cache.
#
# Example: an image of one channel, 4 by 5, and a filter of 3 by 3. The nine shifted copies of the two rows of three
# windows are ``x[r : r + 2, s : s + 3]``, a matrix (9, 6). Its product with the nine weights is the output.

MAX_GATHERED_BYTES = 1 << 22  # of the matrix of gathered windows; 1 << 21 to 1 << 24 differ by less than 10 %


class Windows(NamedTuple):
    """Consecutive windows: the ranges along M, P and Q, and ``columns`` of the output as a matrix (K, M*P*Q*N)."""

    ranges: tuple[range, ...]
    columns: slice


class ConvPrimitives(MatmulPrimitives):
    """Convolution and its two gradients, of contiguous arrays. Results share no memory with operands."""

    def conv_fprop(self, layer: ConvLayer, i: Array, f: Array, o: Array, alpha: float, beta: float) -> None:
        """Compute ``o = alpha conv(i, f) + beta o``: (C, D, H, W, N), (C, T, R, S, K), (K, M, P, Q, N)."""
        padded, filters = self._pad_image(layer, i), self.runtime.reshape(f, layer.dimF2)
        out = self.runtime.reshape(o, (layer.K, layer.sizeO // layer.K))
        for windows in self._iter_windows(layer, i):
            gathered = self._gather_windows(layer, padded, windows)
            self.gemm(self.xp.permute_dims(filters, (1, 0)), gathered, out[:, windows.columns], alpha, beta)

    def conv_bprop(self, layer: ConvLayer, f: Array, e: Array, d: Array, alpha: float, beta: float) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do."""
        error = self.runtime.reshape(e, (layer.K, layer.sizeO // layer.K))
        filters, shape = self.runtime.reshape(f, layer.dimF2), self._padded_shape(layer)
        total = d if shape == layer.dimI else self.get_workspace("padded", shape, d)
        scale_and_add(total, 0, beta if total is d else 0)
        for windows in self._iter_windows(layer, e):
            product, by_shift = self._windows_matrix(layer, windows, d)
            self.gemm(filters, error[:, windows.columns], product, alpha)
            for k, slices in enumerate(iter_shifts(layer, windows)):
                total[slices] += by_shift[:, k, ...]
        if total is not d:
            scale_and_add(d, total[self._interior_slices(layer)], beta)

    def conv_update(self, layer: ConvLayer, i: Array, e: Array, u: Array, alpha: float, beta: float) -> None:
        """Compute ``u = alpha dE/df + beta u`` of the error e = dE/do."""
        padded, total = self._pad_image(layer, i), self.runtime.reshape(u, layer.dimF2)
        error = self.runtime.reshape(e, (layer.K, layer.sizeO // layer.K))
        for windows in self._iter_windows(layer, i):
            gathered = self._gather_windows(layer, padded, windows)
            self.gemm(gathered, self.xp.permute_dims(error[:, windows.columns], (1, 0)), total, alpha, beta)
            beta = 1.0

    def computes(self, op: str, layer: Any) -> bool:
        """Return whether a library computes an op of the table for images: in the layout of plans, and with groups."""
        return False

    def try_conv_bias(self, layer: ConvLayer, i: Array, f: Array, o: Array, bias: Array, relu: bool) -> bool:
        """Compute ``o = conv(i, f) + bias`` and return True, or return False where no fused kernel exists. bias (K,).

        With ``relu``, max(., 0) is applied if ``supports_fused_relu``.
        """
        return False

    # --- windows and shifts ---

    def _iter_windows(self, layer: ConvLayer, like: Array) -> Iterator[Windows]:
        """Yield groups of windows whose gathered matrix fits in MAX_GATHERED_BYTES."""
        bytes_per_window = max(layer.dimF2) * layer.N * self.xp.finfo(like.dtype).bits // 8
        limit, sizes = max(1, MAX_GATHERED_BYTES // bytes_per_window), layer.MPQ
        axis = next(a for a in range(3) if a == 2 or math.prod(sizes[a + 1 :]) <= limit)
        later = sizes[axis + 1 :]
        count, end = limit // math.prod(later) or 1, 0
        for before in itertools.product(*map(range, sizes[:axis])):
            for first in range(0, sizes[axis], count):
                along = range(first, min(first + count, sizes[axis]))
                ranges = *(range(n, n + 1) for n in before), along, *map(range, later)
                start, end = end, end + math.prod(map(len, ranges)) * layer.N
                yield Windows(ranges, slice(start, end))

    def _windows_matrix(self, layer: ConvLayer, windows: Windows, like: Array) -> tuple[Array, Array]:
        """Return an uninitialized matrix (C*T*R*S, columns), and its view (C, T*R*S, windows along M, P and Q, N)."""
        sizes = *map(len, windows.ranges), layer.N
        matrix = self.get_workspace("gathered windows", (layer.dimF2[0], math.prod(sizes)), like)
        return matrix, self.runtime.reshape(matrix, (layer.C, math.prod(layer.TRS), *sizes))

    def _gather_windows(self, layer: ConvLayer, padded: Array, windows: Windows) -> Array:
        """Return the shifted copies of a padded image as a matrix (C*T*R*S, columns)."""
        matrix, by_shift = self._windows_matrix(layer, windows, padded)
        for k, slices in enumerate(iter_shifts(layer, windows)):
            by_shift[:, k, ...] = padded[slices]
        return matrix

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


def iter_shifts(layer: ConvLayer, windows: Windows) -> Iterator[tuple[slice, ...]]:
    """Yield, for each weight of a channel, the slices of the padded image that it multiplies for some windows."""
    each = zip(windows.ranges, layer.TRS, layer.strides, layer.dilation, strict=True)
    along = [
        [slice(r.start * stride + k * gap, (r.stop - 1) * stride + k * gap + 1, stride) for k in range(size)]
        for r, size, stride, gap in each
    ]
    return ((slice(None), *slices, slice(None)) for slices in itertools.product(*along))


def scale_and_add(out: Array, value: Array, beta: float) -> None:
    """Compute ``out = value + beta out`` in place."""
    if beta == 0:
        out[...] = value
    else:
        out *= beta
        out += value


# --- pooling and local response normalization ---

Slices = tuple[Any, ...]


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
                pooled[to] += xp.square(i[of]) if layer.op == "l2" else i[of]
            if layer.op != "sum":
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


# --- RoI max pooling in array-API functions: one gather per window cell ---
#
# Each bin is the maximum over its own window (Girshick 2015). The k-th cell of all windows is gathered at once; a
# window without a k-th cell repeats its last one, which does not change the maximum. The number of gathers is the size
# of the largest window.


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
        rows, height = bin_bounds(np, regions[:, 2], regions[:, 4], scale, PH, H)
        columns, width = bin_bounds(np, regions[:, 1], regions[:, 3], scale, PW, W)
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


# --- the reference primitives in array-API functions, and declarations of optional library kernels ---


class ReferencePrimitives(ConvPrimitives, PoolingPrimitives, RoiPooling):
    """The primitives, for any array library. Faster implementations are tested against it.

    Kernels that only some libraries have are declared with a flag that is False, and raise NotImplementedError.
    """

    takes_short_rows = False  # whether elementwise steps are as fast on rows as short as the channels of images
    supports_fused_relu = False  # whether ``try_conv_bias`` applies relu
    supports_scatter = False  # whether ``scatter`` computes the scatter-add of op-trees

    def image_layout(self, dtypes: Collection[str]) -> Layout:
        """Return the layout of images between the steps of a plan whose convolutions have these dtypes."""
        return Layout.NHWC

    def reorder(self, shape: Any, chwn: Array, nhwc: Array, to_chwn: bool) -> None:
        """Copy images of a shape from CHWN to NHWC, or back with ``to_chwn``."""
        raise NotImplementedError

    def reorder_all(self, copies: Sequence[tuple[Any, Array, Array, bool]]) -> None:
        """Call ``reorder`` for each of several arguments."""
        for arguments in copies:
            self.reorder(*arguments)

    def reorders_filters(self, layer: ConvLayer, layout: Layout) -> bool:
        """Return whether a convolution takes filters in the layout of its images, and ``conv_bias`` computes it."""
        return False

    def conv_bias(self, layer: ConvLayer, i: Any, f: Any, bias: Array, o: Any, relu: bool) -> None:
        """Compute ``o = conv(i, f) + bias``, with ``relu`` max(., 0) of it, where ``reorders_filters``. bias (K,)."""
        raise NotImplementedError

    def computes_batch_norm(self, rows: tuple[int, ...], eps: float) -> bool:
        """Return whether ``batch_norm`` computes images with these rows of several pixels."""
        return False

    def batch_norm(
        self, x: Array, gamma: Array, beta: Array, y: Array, mean: Array, variance: Array, *, eps: float, relu: bool
    ) -> None:
        """Compute ``y = gamma (x - mean) / sqrt(variance + eps) + beta``, or max(., 0) of it, and the statistics.

        x and y are images in NHWC, as rows of several pixels, and the others (1, C).
        """
        raise NotImplementedError

    def computes_transposes(self) -> bool:
        """Return whether ``copy_transposed`` is faster than elementwise steps that read a transpose."""
        return False

    def copy_transposed(self, x: Array, out: Array) -> None:
        """Copy a transpose of float32 into a contiguous array."""
        raise NotImplementedError

    def try_copy_transposed(self, x: Any, out: Array) -> bool:
        """Copy a large transpose of float32 from the host and return True, or return False if that is not faster."""
        return False

    def computes_softmax(self, rows: tuple[int, ...]) -> bool:
        """Return whether ``softmax`` computes rows of this shape."""
        return False

    def softmax(self, x: Array, y: Array, *, is_masked: bool) -> None:
        """Compute the softmax y of each row of x. If ``is_masked``, that of a row of only -inf is 0, else NaN."""
        raise NotImplementedError

    def computes_softmax_backward(self, rows: tuple[int, ...]) -> bool:
        """Return whether ``softmax_backward`` computes rows of this shape."""
        return False

    def softmax_backward(self, dz: Array, z: Array, dx: Array) -> None:
        """Compute ``dx = z (dz - sum(z dz))`` of each row."""
        raise NotImplementedError

    def computes_row_norm(self, rows: tuple[int, ...], eps: float) -> bool:
        """Return whether ``row_norm`` computes rows of this shape."""
        return False

    def row_norm(self, x: Array, *arrays: Array, eps: float) -> None:
        """Compute rows ``y = gamma (x - mean) / sqrt(variance + eps) + beta``, and the statistics of each.

        ``arrays``: gamma and beta, of the size of a row, or neither; then y, and mean and variance of each row.
        """
        raise NotImplementedError

    def row_norm_backward(self, dz: Array, x: Array, mean: Array, variance: Array, *arrays: Array, eps: float) -> None:
        """Compute ``dx = (dz - mean(dz) - z mean(z dz)) / sqrt(variance + eps)``, where z are the normalized rows x.

        ``arrays``: dx; or gamma, dx and the gradients of gamma and beta, where dz is the error of ``gamma z + beta``.
        """
        raise NotImplementedError

    def computes_attention(self, shapes: Sequence[Shape], dtype: str, causal: bool) -> bool:
        """Return whether ``attention`` and ``attention_backward`` compute fused_attention of operands."""
        return False

    def attention(self, q: Array, k: Array, v: Array, z: Array, stats: Array, *, causal: bool) -> bool:
        """Compute fused_attention of heads (N, H, T, d), and its stats, and return True, or False where that fails."""
        raise NotImplementedError

    def attention_backward(
        self,
        dz: Array,
        z: Array,
        q: Array,
        k: Array,
        v: Array,
        stats: Array,
        dq: Array,
        dk: Array,
        dv: Array,
        *,
        causal: bool,
    ) -> bool:
        """Compute the gradients of fused_attention and return True, or return False where that fails."""
        raise NotImplementedError

    def computes_quantized(self, dtype: str, layer: Any) -> bool:
        """Return whether ``quantized_conv`` computes a layer, or ``quantized_dot`` a product (nout, nin, N).

        ``dtype``: "int8", or "int16" for the bits of bfloat16.
        """
        return False

    def round_to(self, x: Array, out: Array, *, scale: float | None) -> None:
        """Compute ``out = round(x / scale)`` in int8, or x rounded to the bits of bfloat16."""
        raise NotImplementedError

    def quantized_dot(self, x: Array, W: Array, bias: Array, *arrays: Array, relu: bool) -> None:
        """Compute ``out = factors (W x) + bias`` of rounded x, or max(., 0) of it.

        ``arrays``: the factors, for int8 only, and out.
        """
        raise NotImplementedError

    def quantized_conv(self, layer: Any, x: Array, W: Array, bias: Array, *arrays: Array, relu: bool) -> None:
        """Compute ``out = factors conv(x, W) + bias`` of rounded images in NHWC, or max(., 0) of it."""
        raise NotImplementedError

    def operand_shifts(self, plan: Any) -> dict[int, int]:
        """Return the bytes by which values of a plan start after a multiple of the alignment: here none."""
        return {}

    def recurrent_shape(self, shape: Sequence[Any], dtype: str) -> Any:
        """Return (kind, T, N, F, H, is_reversed) as the key of a fused recurrent layer, or None without a fast one."""
        return None

    def recurrent_workspace_size(self, shape: Any) -> int:
        """Return the elements of the buffer that ``recurrent_fprop`` saves for the backward pass."""
        raise NotImplementedError

    def recurrent_fprop(self, shape: Any, *args: Any, **kwargs: Any) -> None:
        """Compute a recurrent layer over all time steps, for a key of ``recurrent_shape``."""
        raise NotImplementedError

    def recurrent_bprop(self, shape: Any, *args: Any, **kwargs: Any) -> None:
        """Compute the backward pass of ``recurrent_fprop``."""
        raise NotImplementedError

    def gemm_accumulate(self, products: Sequence[tuple[Array, Array, float]], c: Array, beta: float = 0.0) -> bool:
        """Compute ``c = beta c + alpha a b + ...`` and return True, or return False where that is not supported."""
        return False

    def scatter(self, x: Array, indices: Array, y: Array, axis: int = 0, check: tuple[int, int] = (0, 0)) -> None:
        """Compute ``y[p] = sum of x[k] over all k with index p``, where ``supports_scatter``."""
        raise NotImplementedError
