"""The 'cpu' runtime: NumPy arrays, primitives, and the blocked executor, which runs stages over cache-sized blocks.

The primitives (products, pooling, LRN, ROI pooling) allocate nothing after their first run. Stages of elementwise ops
and reductions, and their generated code, are in ``stages.py``. A subclass of the executor may compute some steps by
another library: see the hooks of ``StageExecutor``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from operator import itemgetter
from typing import Any

import numpy as np

from neonlite.backend.concurrency import get_num_threads
from neonlite.backend.planning import ALIGNMENT_BYTES, Plan
from neonlite.backend.planning.steps import Stage, Step
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.primitives.geometry import LRNLayer, PoolLayer, axis_window_offsets
from neonlite.backend.primitives.recurrent import store_by_time
from neonlite.backend.primitives.rows import choose_primitives, find_primitives, join_results
from neonlite.backend.random import RandomStreams
from neonlite.backend.runtimes import accelerated, accelerator_versions, data_address
from neonlite.backend.runtimes.base import Runner, Runtime
from neonlite.backend.runtimes.numpy.stages import ArenaSlot, FusedStage, StageExecutor
from neonlite.backend.runtimes.numpy.templates import CALL_BUFFERS, CALL_FUNCTIONS
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import copy_unsafe, ignore_fp_errors, restore_fp_errors
from neonlite.ops import OPS
from neonlite.typing import NativeArray, NumPyArray, NumPyArray as Array

# --- pooling ---

TILE_ELEMENTS = 1 << 16  # outputs in a tile: amortizes the overhead of calls, and fits the cache

TileRanges = tuple[tuple[int, int], ...]  # (start, end) along K, M, P and Q
Slices = tuple[slice, ...]

cached_windows = lru_cache(4096)(axis_window_offsets)


class PoolingTile:
    """A contiguous range of pooling outputs, with buffers of its shape."""

    def __init__(self, layer: PoolLayer, ranges: TileRanges, buffers: Sequence[Array]) -> None:
        self.layer, self.ranges = layer, ranges
        self.slices = tuple(slice(*ends) for ends in ranges)
        shape = (*(last - first for first, last in ranges), layer.N)
        count = math.prod(shape)
        self.x, self.y, self.z, self.mask, self.argmax, *int_masks = (
            buffer[:count].reshape(shape) for buffer in buffers
        )
        self.int_mask = int_masks[0] if int_masks else self.mask.view(np.uint8)

    def axis_geometry(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield size, outputs, window, stride and padding along each axis: a tile is a pooling with other padding."""
        layer = self.layer
        each = zip(layer.dimI, self.ranges, layer.JTRS, layer.strides, layer.padding, strict=False)
        for size, (first, last), window, stride, padding in each:
            yield size, last - first, window, stride, padding - first * stride

    def window_offsets(self) -> list[tuple[int, Slices, Slices]]:
        """Return (window index, slices of the output, slices of the image) for each window offset."""
        _, T, R, S = self.layer.JTRS
        return [
            (((j * T + t) * R + r) * S + s, (k, m, p, q), (c, d, h, w))
            for (j, k, c), (t, m, d), (r, p, h), (s, q, w) in itertools.product(
                *(cached_windows(*sizes) for sizes in self.axis_geometry())
            )
        ]

    def fill_first_index(self, argmax: Array) -> None:
        """Fill an array with the window index of the first element of each window that is inside the image."""
        _, T, R, S = self.layer.JTRS
        weights = (T * R * S, R * S, S, 1)
        numbers = [
            [max(0, padding - n * stride) * weight for n in range(count)]
            for (_, count, _, stride, padding), weight in zip(self.axis_geometry(), weights, strict=True)
        ]
        fill_separable(argmax, numbers, sum)

    def fill_valid_counts(self, cells: Array) -> None:
        """Fill an array with the number of elements of each window that are inside the image."""
        numbers = [
            [min(size, n * stride - pad + window) - max(0, n * stride - pad) for n in range(count)]
            for size, count, window, stride, pad in self.axis_geometry()
        ]
        fill_separable(cells, numbers, math.prod)

    def gather_offset(self, image: Array, to: Slices, of: Slices, fill_value: float, out: NativeArray = None) -> Any:
        """Write the image elements at a window offset, and ``fill_value`` outside the image, to ``out`` or buffer x."""
        out, source = self.x if out is None else out, image[of]
        if source.shape != out.shape:
            out[...] = fill_value
        out[to] = source
        return out

    def compute_max(self, image: Array, best: Array, argmax: NativeArray) -> None:
        """Write the maxima into ``best``, and the index of the first of each into ``argmax`` unless that is None."""
        offsets = self.window_offsets()
        self.gather_offset(image, *offsets[0][1:], -np.inf, best)
        if argmax is not None:
            self.fill_first_index(argmax)
        for index, to, of in offsets[1:]:
            x = self.gather_offset(image, to, of, -np.inf)
            if argmax is not None:  # indices increase, so the last improvement is the largest
                np.greater(x, best, out=self.mask)
                if self.int_mask.itemsize > 1:  # else it is a view of mask
                    np.copyto(self.int_mask, self.mask)
                np.multiply(self.int_mask, index, out=self.int_mask)
                np.maximum(argmax, self.int_mask, out=argmax)
            np.maximum(best, x, out=best)
        if argmax is not None and np.not_equal(best, best, out=self.mask).any():
            for index, to, of in reversed(offsets):  # NaN is the maximum, although no comparison finds it
                x = self.gather_offset(image, to, of, 0)
                np.copyto(argmax, index, where=np.not_equal(x, x, out=self.mask))

    def compute_sum(self, image: Array, total: Array) -> None:
        """Write the sum over each window, for l2 of squares, into an array."""
        total[...] = 0
        for _, to, of in self.window_offsets():
            x = self.gather_offset(image, to, of, 0)
            np.add(total, np.square(x, out=x) if self.layer.op == "l2" else x, out=total)

    def select_errors(self, errors: Array, argmax: Array, index: int) -> Any:
        """Return the buffer y with the errors of the windows whose maximum is at an index, and 0 for the others."""
        selected = np.equal(argmax, index, out=self.mask).view(np.int8)
        bits = self.y.view(f"i{self.y.itemsize}")
        np.copyto(bits, np.multiply(selected, -1, out=selected))  # a bit mask, as infinity times 0 is NaN
        np.bitwise_and(bits, errors.view(bits.dtype), out=bits)
        return self.y

    def add_errors(self, errors: Array, image: Array, to: Slices, of: Slices, is_first: bool) -> None:
        """Add errors to the image at a window offset; ``is_first``: the image has none yet there."""
        if not is_first:
            self.x[to] = image[of]
            errors = np.add(self.x, errors, out=self.x)
        image[of] = errors[to]


class NumPyPooling(ReferencePrimitives):
    """Pooling and local response normalization of contiguous NumPy arrays (C, D, H, W, N)."""

    def pool_fprop(self, layer: PoolLayer, i: Array, o: Array, argmax: NativeArray, beta: float) -> None:
        """Compute ``o = pool(i) + beta o``; unless ``argmax`` is None, write the window indices of the maxima to it."""
        for tile in self._iter_tiles(layer, i):
            out = o[tile.slices]
            pooled = out if beta == 0 else tile.y
            if layer.op == "max":
                tile.compute_max(i, pooled, None if argmax is None else tile.argmax)
                if argmax is not None:
                    argmax[tile.slices] = tile.argmax
            else:
                tile.compute_sum(i, pooled)
                if layer.op == "avg":
                    tile.fill_valid_counts(tile.x)
                    np.divide(pooled, tile.x, out=pooled)
                elif layer.op == "l2":
                    np.sqrt(pooled, out=pooled)
            if beta != 0:
                np.add(pooled, np.multiply(out, beta, out=out), out=out)

    def pool_bprop(
        self, layer: PoolLayer, i: NativeArray, e: Array, d: Array, argmax: NativeArray, alpha: float, beta: float
    ) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do; max uses ``argmax`` or i, l2 uses i."""
        is_first = beta == 0 and all(window <= stride for window, stride in zip(layer.JTRS, layer.strides, strict=True))
        if beta != 0:
            np.multiply(d, beta, out=d)
        elif not layer.covers_image:
            d[...] = 0
        for tile in self._iter_tiles(layer, e):
            errors, indices = self._scaled_errors(tile, i, e[tile.slices], alpha), tile.argmax
            if layer.op == "max" and argmax is None:
                tile.compute_max(i, tile.y, indices)
            elif layer.op == "max":
                indices = argmax[tile.slices]
            for index, to, of in tile.window_offsets():
                offset_errors = errors
                if layer.op == "max":
                    offset_errors = tile.select_errors(errors, indices, index)
                elif layer.op == "l2":
                    offset_errors = np.multiply(tile.gather_offset(i, to, of, 0), errors, out=tile.y)
                tile.add_errors(offset_errors, d, to, of, is_first)

    def _scaled_errors(self, tile: PoolingTile, i: NativeArray, e: Array, alpha: float) -> Array:
        """Return the errors of windows, divided by their element counts (avg) or norms (l2), times alpha."""
        errors = e
        if tile.layer.op == "avg":
            tile.fill_valid_counts(tile.x)
            errors = np.divide(e, tile.x, out=tile.z)
        elif tile.layer.op == "l2":
            tile.compute_sum(i, tile.y)
            norm = np.sqrt(tile.y, out=tile.y)
            errors = np.divide(e, norm, out=tile.z)
            np.copyto(errors, 0, where=np.equal(norm, 0, out=tile.mask))
        return errors if alpha == 1 else np.multiply(errors, alpha, out=tile.z)

    def _iter_tiles(self, layer: PoolLayer, like: Array) -> Iterator[PoolingTile]:
        """Yield the tiles of an output, with workspaces for floats, masks and indices."""
        tile_size = math.prod(last - first for first, last in next(iter_tile_ranges(layer.dimO))) * layer.N
        index_templates = [np.uint8(0)] if math.prod(layer.JTRS) <= 256 else [np.int32(0)] * 2
        templates = [like, like, like, np.bool_(0), *index_templates]
        buffers = [self.get_workspace(f"pooling {n}", (tile_size,), x) for n, x in enumerate(templates)]
        return (PoolingTile(layer, ranges, buffers) for ranges in iter_tile_ranges(layer.dimO))

    # --- local response normalization ---

    def lrn_fprop(
        self, layer: LRNLayer, i: Array, o: Array, denom: Array, alpha: float, beta: float, a: float, b: float
    ) -> None:
        """Compute ``o = alpha i denom^-b + beta o``, ``denom = 1 + a / J sum i^2`` over J neighboring channels."""
        for (image, out, divisor), (x, y, total) in self._iter_column_blocks(layer, (i, o, denom), 3):
            np.copyto(x, image)
            sum_neighbor_channels(layer, np.square(x, out=y), total)
            np.multiply(total, a / layer.J, out=total)
            divisor[...] = np.add(total, 1, out=total)
            total **= -b  # unlike np.power it has fast paths, such as sqrt
            write_scaled(out, np.multiply(x, total, out=x), alpha, beta, y)

    def lrn_bprop(
        self, layer: LRNLayer, i: Array, e: Array, d: Array, denom: Array, alpha: float, beta: float, a: float, b: float
    ) -> None:
        """Compute ``d = alpha (n - 2 a b / J i sum n i / denom) + beta d``, ``n = e denom^-b``, of e = dE/do."""
        for (image, error, out, divisor), (x, y, n, total) in self._iter_column_blocks(layer, (i, e, d, denom), 4):
            np.copyto(y, divisor)
            np.copyto(n, y)
            n **= -b
            np.copyto(x, error)
            np.multiply(x, n, out=n)
            np.copyto(x, image)
            np.divide(np.multiply(n, x, out=total), y, out=y)
            sum_neighbor_channels(layer, y, total, transpose=True)
            np.multiply(np.multiply(x, total, out=total), 2 * a * b / layer.J, out=total)
            write_scaled(out, np.subtract(n, total, out=n), alpha, beta, x)

    def _iter_column_blocks(
        self, layer: LRNLayer, arrays: Sequence[Array], num_buffers: int
    ) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield blocks of columns of the arrays as (C, columns), and as many buffers of this shape as requested."""
        count = layer.sizeI // layer.C
        width = min(max(1, TILE_ELEMENTS // layer.C), count)
        flat = [array.reshape(layer.C, count) for array in arrays]
        buffers = [self.get_workspace(f"pooling {n}", (layer.C * width,), arrays[0]) for n in range(num_buffers)]
        for start in range(0, count, width):
            columns = slice(start, min(start + width, count))
            shape = layer.C, columns.stop - start
            yield [x[:, columns] for x in flat], [x[: math.prod(shape)].reshape(shape) for x in buffers]


# --- tiles ---


def iter_tile_ranges(shape: tuple[int, ...]) -> Iterator[TileRanges]:
    """Yield contiguous parts of an array (K, M, P, Q, N), of at most TILE_ELEMENTS elements where possible."""
    axis = next((axis for axis in range(3) if math.prod(shape[axis + 1 :]) <= TILE_ELEMENTS), 3)
    step = max(1, TILE_ELEMENTS // math.prod(shape[axis + 1 :]))
    for before in itertools.product(*(range(n) for n in shape[:axis])):
        for start in range(0, shape[axis], step):
            ends = start, min(start + step, shape[axis])
            yield (*((n, n + 1) for n in before), ends, *((0, n) for n in shape[axis + 1 : 4]))


def fill_separable(values: Array, numbers: list[list[int]], combine: Callable[[Iterator[int]], int]) -> None:
    """Fill ``values[i, j, ...]`` with ``combine(numbers[0][i], numbers[1][j], ...)``, by runs of equal numbers."""
    runs: list[list[tuple[int, slice]]] = []  # (number, slice of equal numbers)
    for along in numbers:
        edges = [n for n in range(len(along)) if n == 0 or along[n] != along[n - 1]]
        runs.append([(along[a], slice(a, b)) for a, b in itertools.pairwise([*edges, len(along)])])
    for run in itertools.product(*runs):
        values[tuple(steps for _, steps in run)] = combine(number for number, _ in run)


def sum_neighbor_channels(layer: LRNLayer, x: Array, total: Array, transpose: bool = False) -> None:
    """Write the sum over J neighboring channels of each; ``transpose``: over those whose neighbors include it."""
    total[...] = 0
    for _, to, of in cached_windows(layer.C, layer.C, layer.J, 1, layer.J // 2):
        to, of = (of, to) if transpose else (to, of)
        np.add(total[to], x[of], out=total[to])


def write_scaled(out: Array, x: Array, alpha: float, beta: float, buffer: Array) -> None:
    """Compute ``out = alpha x + beta out``; x and ``buffer`` are overwritten."""
    np.multiply(x, alpha, out=x)
    if beta != 0:
        np.copyto(buffer, out)
        np.add(x, np.multiply(buffer, beta, out=buffer), out=x)
    out[...] = x


# --- NumPy RoI max pooling over chunks of bins, in reused buffers ---

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


# --- NumPy primitives that write into reused workspaces and allocate nothing after their first run ---


class NumPyPrimitives(NumPyPooling, NumPyRoiPooling):
    """Primitives of NumPy arrays that allocate nothing after their first run."""

    def gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``; unless beta is 0, the product is written to a workspace first."""
        product = c if beta == 0 else self.get_workspace("product", c.shape, c)
        np.matmul(a, b, out=product)
        if alpha != 1:
            np.multiply(product, alpha, out=product)
        if beta != 0:
            if beta != 1:
                np.multiply(c, beta, out=c)
            np.add(c, product, out=c)

    def find_gemm(self, dtypes: Sequence[str], a: tuple[int, ...], b: tuple[int, ...]) -> Callable[..., None]:
        """Return the function (a, b, out) that computes a product of arrays of some dtypes and shapes."""
        return np.matmul

    def get_workspace(self, purpose: str, shape: tuple[int, ...], like: Array) -> Any:
        """Return this thread's workspace for a purpose, grown to the largest size requested."""
        workspaces: dict[Any, Any] = self.runtime.memory_tracker.thread_cache
        size, key = math.prod(shape), (purpose, like.dtype)
        if key not in workspaces or workspaces[key][0].size < size:
            if workspaces.pop(key, None):  # free the old one first
                workspaces.pop("launches", None)  # of a GPU: they refer to it
            request = f"workspace of a primitive ({purpose})", size * like.dtype.itemsize
            workspaces[key] = self.runtime.allocate_tracked(
                "workspaces", *request, lambda: self.xp.empty(size, dtype=like.dtype)
            )
        return workspaces[key][0][:size].reshape(shape)


# --- the blocked executor ---

TRANSPOSE = OPS["transpose"]


class BlockedExecutor(StageExecutor):
    """The executor for NumPy arrays.

    Each thread has one arena, as large as its largest plan requires. It contains the temporaries of a plan, followed by
    the partial results and registers (block-sized buffers for intermediate values) of the current stage.
    """

    def compile(self, plan: Plan) -> Runner:
        """Return ``run(targets, leaves)`` for a plan, and set ``plan.required_arena_bytes`` and ``primitives``."""
        choose_primitives(self.primitives, plan)
        join_results(self.primitives, plan)
        store_by_time(self.primitives, plan)
        plan.reuse_operands(self.primitives.operand_shifts(plan))
        plan.primitives = find_primitives(self.primitives, plan, self.compile)
        stages = [FusedStage(plan, s, self) if s.kind == "fused" else CallStage(plan, s, self) for s in plan.stages]
        plan.required_arena_bytes = lambda: max((stage.required_arena_bytes() for stage in stages), default=0)
        if len(stages) == 1 and isinstance(stages[0], FusedStage) and stages[0].is_whole_plan:
            return stages[0].make_runner()
        return MultiStageRunner(plan, stages, self).run


# the function of a stage, a function that gets its arguments from all values, those that are views to create, and the
# buffers that follow the arguments
BoundStage = tuple[Callable[..., None], Callable[[Sequence[Any]], tuple[Any, ...]], Sequence[int], Sequence[Any]]


def values_at(numbers: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return a function that returns the values of some numbers."""
    return itemgetter(*numbers) if len(numbers) > 1 else lambda values: (values[numbers[0]],)


class MultiStageRunner:
    """The runner of a plan with more than one stage, or with temporaries."""

    def __init__(self, plan: Plan, stages: Sequence[FusedStage | CallStage], executor: StageExecutor) -> None:
        self.plan = plan
        self.stages = stages
        self.executor = executor
        self.views = {v: step for v, step in plan.numbered_steps if step.kind == "view"}
        self.arena_views = {v for v in self.views if plan.view_base(v) in plan.offsets}
        self.direct = [(i, v) for v, i in plan.outputs.items() if plan.is_direct[i]]
        self.direct += [(i, v) for i, values in plan.held_in_targets.items() for v in values]
        self.copied = [(i, v) for v, i in plan.outputs.items() if not plan.is_direct[i]]

    def run(self, targets: Sequence[Array], leaves: Sequence[NativeArray]) -> None:
        """Compute all values, then copy those that could not be written to their targets directly."""
        in_arena, calls = self.executor.cached_views(self, self._bind)
        env = [*leaves, *in_arena]
        for i, v in self.direct:
            env[v] = targets[i]
        state = ignore_fp_errors()
        try:
            for function, arguments, views, buffers in calls:
                for v in views:
                    if env[v] is None:
                        self._make_view(v, env)
                function(*arguments(env), *buffers)
            for i, v in self.copied:
                targets[i][...] = env[v]
        finally:
            restore_fp_errors(state)

    def _make_view(self, v: int, env: list[NativeArray]) -> None:
        """Create a view, which is first read after its base was computed."""
        step: Any = self.views[v]
        base = step.inputs[0]
        if env[base] is None:
            self._make_view(base, env)
        # NumPy's own function calls three others in Python
        x = env[base]
        env[v] = x.transpose(step.attrs["axes"]) if step.op is TRANSPOSE else step.op.run(np, x, **step.attrs)

    def _bind(self) -> tuple[list[NativeArray], list[BoundStage]]:
        """Return the values in the arena of this thread, with None for those that a run computes; and the calls."""
        plan: Plan = self.plan
        env: list[NativeArray] = [None] * plan.step_values.stop
        arena = self.executor.arena(plan.required_arena_bytes())
        for v, start in plan.offsets.items():
            shape, dtype, is_stored_by_time = plan.step_of(v).shape, plan.step_of(v).dtype, v in plan.strides
            array = ArenaSlot(start, shape[::-1] if is_stored_by_time else shape, dtype).view(arena)
            env[v] = array.T if is_stored_by_time else array
        for v in self.arena_views:
            if env[v] is None:
                self._make_view(v, env)
        calls: list[BoundStage] = []
        for stage in self.stages:
            views = [v for v in stage.arguments if v in self.views and v not in self.arena_views]
            calls.append((stage.function, values_at(stage.arguments), views, stage.buffers()))
        return env[len(plan.leaves) :], calls


class CallStage:
    """A stage of one library call: a primitive, a matrix product, a gather, or random numbers."""

    def __init__(self, plan: Plan, stage: Stage, executor: StageExecutor) -> None:
        self.executor = executor
        v = stage.steps[0]
        step, primitive = plan.step_of(v), plan.primitives.get(v)
        name, shapes = step.op.name, [plan.shape(x) for x in step.inputs if isinstance(x, int)]
        self.buffer_slots: list[ArenaSlot] = []  # arena slots of its buffers, after the plan's temporaries
        self.end_offset = plan.arena_bytes
        self.arguments = [*(x for x in step.inputs if isinstance(x, int)), v]
        self.plans: Sequence[Plan] = ()  # that the primitive runs
        self.function: Callable[..., None]  # of the arrays of the arguments, and of the buffers
        if primitive is not None:
            self.plans, self.function = primitive.plans, primitive.run
            self.arguments = [*primitive.inputs, *primitive.outputs]
            return
        if name in ("dot", "matmul"):
            primitives: Any = executor.primitives
            self.function = primitives.find_gemm([plan.dtype(x) for x in self.arguments], *shapes)
        elif name in CALL_FUNCTIONS:
            self.function = partial(CALL_FUNCTIONS[name], **step.attrs)
        else:
            self.function = partial(self._run_reference, step)
        for shape, dtype in CALL_BUFFERS[name](step.dtype, *shapes, **step.attrs) if name in CALL_BUFFERS else ():
            self.buffer_slots.append(ArenaSlot(self.end_offset, shape, dtype))
            self.end_offset = self.buffer_slots[-1].end

    def _run_reference(self, step: Step, *arrays: NativeArray) -> None:
        """Write the result of a step, the last array, by the reference executor."""
        *operands, out = arrays
        numbers = [x for x in step.inputs if isinstance(x, int)]
        out[...] = self.executor.reference.evaluate_step(step, dict(zip(numbers, operands, strict=True)))

    def buffers(self) -> list[list[Array]]:
        """Return its buffers in the arena of this thread, as one argument, if it has any."""
        if not self.buffer_slots:
            return []
        arena = self.executor.arena(self.required_arena_bytes())
        return [[slot.view(arena) for slot in self.buffer_slots]]

    def required_arena_bytes(self) -> int:
        """Return the arena size: the temporaries of the plan, and the buffers or the plans that the primitive runs."""
        return max([self.end_offset, *(plan.required_arena_bytes() for plan in self.plans)])


# --- memory of large arrays, used again ---
#
# The C library returns the memory of deleted large arrays to the system, which clears the pages of the next ones: a
# compiled step of Adam that returns six new matrices (1024, 1024) takes 1.8 times as long. So the base of a large array
# is a ``Lease`` of a block of memory, which is deleted with the last array or view that needs it.

MIN_REUSED_BYTES = 1 << 19  # a lease takes 5 us
MIN_REUSED_ELEMENTS = MIN_REUSED_BYTES // 8  # of the largest dtype
MAX_WAITING_BYTES = 1 << 28

free_memory: dict[int, list[Memory]] = {}  # {bytes: blocks of this size}; its methods are atomic, as threads share it


class Memory(np.ndarray[Any, Any]):
    """A block of memory, of bytes."""


class Lease(np.ndarray[Any, Any]):
    """A block of memory while arrays use it."""

    def __del__(self, free: dict[int, list[Memory]] = free_memory, limit: int = MAX_WAITING_BYTES) -> None:
        block = self.base
        if isinstance(block, Memory) and self.nbytes <= limit:  # else a view or a copy of a lease
            if self.nbytes + sum(size * len(blocks) for size, blocks in list(free.items())) > limit:
                free.clear()
            free.setdefault(self.nbytes, []).append(block)


def new_array(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array of uninitialized values, in memory of a deleted one if there is any of its size."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    if nbytes < MIN_REUSED_BYTES:
        return np.empty(shape, dtype)
    granularity = 1 << nbytes.bit_length() - 4
    size = -(-nbytes // granularity) * granularity  # so that sizes that differ by a few rows share blocks
    try:
        block = free_memory[size].pop()
    except (KeyError, IndexError):
        try:
            block = Memory(size, np.uint8)
        except MemoryError:
            free_memory.clear()
            block = Memory(size, np.uint8)
    return np.ndarray(shape, dtype, Lease(size, np.uint8, block))


# --- the 'cpu' runtime: NumPy arrays ---


class NumPyRuntime(Runtime):
    """NumPy arrays; op-trees run block by block on several threads."""

    name = "cpu"
    xp = np

    @cached_property
    def executor(self) -> type[BlockedExecutor]:  # type: ignore[override]
        """The class of the executor, with what accelerators compute."""
        return accelerated(BlockedExecutor)

    @cached_property
    def primitives(self) -> type[NumPyPrimitives]:  # type: ignore[override]
        """The class of the primitives, with what accelerators compute."""
        return accelerated(NumPyPrimitives)

    def put(self, array: NumPyArray) -> NumPyArray:
        """Copy a NumPy array."""
        return np.array(array, order="C")

    get = put

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NumPyArray:
        """Return an array of uninitialized values."""
        return np.empty(shape, dtype) if math.prod(shape) < MIN_REUSED_ELEMENTS else new_array(shape, dtype)

    def free_unused(self) -> None:
        """Give memory that waits for new arrays back to the system."""
        free_memory.clear()

    def adopt(self, array: NumPyArray) -> NumPyArray:
        """Return the array itself, if it is contiguous."""
        return np.ascontiguousarray(array)

    def write(self, array: NumPyArray, values: NumPyArray, dtype: str) -> None:
        """Copy an array into another one without an intermediate copy."""
        copy_unsafe(array, values)

    def allocate(self, nbytes: int) -> NumPyArray:
        """Return new memory, aligned to a cache line."""
        raw = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
        return raw[-raw.ctypes.data % ALIGNMENT_BYTES :][:nbytes]

    def fill_mask(self, streams: RandomStreams, out: Tensor, keep: float) -> None:
        """Fill a tensor with a random mask in place."""
        streams.mask("masks", out._array, keep)

    def reshape(self, array: NumPyArray, shape: tuple[int, ...]) -> NumPyArray:
        """Return a view by the array's method, which is three times faster than NumPy's function."""
        return array.reshape(shape, copy=False)

    def numpy_view(self, array: NumPyArray) -> NumPyArray:
        """Return the array itself."""
        return array

    def address_and_strides(self, array: NumPyArray) -> tuple[int, tuple[int, ...]]:
        """Return the address of the first element, and the strides in bytes."""
        return data_address(array).value, array.strides

    def read_only_view(self, array: NumPyArray) -> NumPyArray:
        """Return a read-only view."""
        view = array.view()
        view.flags.writeable = False
        return view

    def version_info(self) -> str:
        """Return the versions and the number of threads."""
        return ", ".join((f"NumPy {np.__version__}", f"{get_num_threads()} threads", *accelerator_versions()))
