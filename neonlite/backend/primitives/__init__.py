"""ReferencePrimitives, the primitives in array-API functions, which every runtime falls back to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from neonlite.backend.primitives.convolution import ConvPrimitives, MatmulPrimitives
from neonlite.backend.primitives.geometry import LRNLayer, PoolLayer, axis_window_offsets
from neonlite.ops.functions import run_scatter_add
from neonlite.ops.images import bin_bounds
from neonlite.typing import NativeArray as Array
from neonlite.typing import NumPyArray

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

    supports_nhwc = False  # whether images may be cached in NHWC
    supports_batch_norm = False  # by a library kernel, with ``sum_channels``
    supports_nhwc_trees = False  # whether op-trees may run on NHWC matrices (pixels, channels)
    supports_fused_relu = False  # whether ``try_conv_bias`` applies relu
    supports_scatter = False  # whether ``scatter`` computes the scatter-add of op-trees

    def reorder(self, shape: Any, chwn: Array, nhwc: Array, to_chwn: bool) -> None:
        """Copy images from CHWN to NHWC, or back with ``to_chwn``, where ``computes`` an op in NHWC."""
        raise NotImplementedError

    def operand_shifts(self, plan: Any) -> dict[int, int]:
        """Return the bytes by which values of a plan start after a multiple of the alignment: here none."""
        return {}

    def can_normalize(self, shape: Any, eps: float) -> bool:
        """Return whether ``batch_norm_fprop`` and ``batch_norm_bprop`` support NHWC images of a shape."""
        return False

    def batch_norm_fprop(self, shape: Any, *args: Any, **kwargs: Any) -> None:
        """Normalize NHWC images per channel, where ``can_normalize``."""
        raise NotImplementedError

    def batch_norm_bprop(self, shape: Any, *args: Any, **kwargs: Any) -> None:
        """Compute the backward pass of ``batch_norm_fprop``."""
        raise NotImplementedError

    def sum_channels(self, nhwc: Array, out: Array) -> None:
        """Write the sum of each channel of flat NHWC images into ``out`` (C,), where ``supports_batch_norm``."""
        raise NotImplementedError

    def row_norm_fprop(self, x: Array, *args: Any, **kwargs: Any) -> bool:
        """Normalize the rows of a matrix and return True, or return False where that is not supported."""
        return False

    def row_norm_bprop(self, x: Array, *args: Any, **kwargs: Any) -> bool:
        """Compute the backward pass of ``row_norm_fprop`` and return True, or return False."""
        return False

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
