"""Scatter-add and ROI max pooling on the GPU: sorted indices instead of atomics, so results are deterministic."""

from __future__ import annotations

import numpy as np

from neonlite.backend.primitives.roi_pooling import bin_bounds
from neonlite.backend.runtimes.cuda.codegen import THREADS_PER_BLOCK
from neonlite.backend.runtimes.cuda.launch import KernelLauncher
from neonlite.typing import NativeArray, NumPyArray

# Up to this many indices are sorted by a kernel with n^2 comparisons; more by CuPy, whose sort synchronizes.
MAX_RANK_SORT = 1 << 15

RANK_SORT_KERNEL = """
// Stable sort of indices: the rank of an index is the number of indices that are smaller, or equal and earlier.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    long long* sorted, long long* order, const long long* indices, int count)
{
    __shared__ long long chunk[256];
    const int k = blockIdx.x * 256 + threadIdx.x;
    const long long value = k < count ? indices[k] : 0;
    int rank = 0;
    for (int first = 0; first < count; first += 256) {
        const int n = count - first < 256 ? count - first : 256;
        if (threadIdx.x < n) chunk[threadIdx.x] = indices[first + threadIdx.x];
        __syncthreads();
        for (int i = 0; i < n; ++i) rank += chunk[i] < value || (chunk[i] == value && first + i < k);
        __syncthreads();
    }
    if (k < count) sorted[rank] = value, order[rank] = k;
}
"""

SEGMENT = 64  # sorted indices that are summed by one thread if they are all equal
MIN_SEGMENTED = 256  # with fewer indices, segments are not summed first

SEGMENT_SUM_KERNEL = (
    f"constexpr int SEGMENT = {SEGMENT};"
    + """
// s[n, j] = sum of x[k, j] over the n-th segment of sorted indices if they are all equal; else s is not written.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Compute* s, const Element* x, const long long* indices, const long long* order, Index size, Index width,
    long long row_stride, long long column_stride)
{
    for (GRID_STRIDE(at, size)) {
        const Index start = at / width * SEGMENT, j = at % width;
        if (indices[start] != indices[start + SEGMENT - 1]) continue;
        Compute total = 0;
        #pragma unroll 4
        for (Index k = start; k < start + SEGMENT; ++k)
            total += to_compute(x[order[k] * row_stride + j * column_stride]);
        s[at] = total;
    }
}
"""
)

SCATTER_KERNEL = (
    f"constexpr int SEGMENT = {SEGMENT};"
    + """
// y[p, j] = sum of x[k, j] over all k whose index is p. The indices are sorted; order has their original positions. The
// sum of a whole segment is taken from s. An index out of range is reported if there is a check; negative ones were
// counted from the end.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* y, const Element* x, const long long* indices, const long long* order, const Compute* s,
    uint64* error_record, long long check_id, Index size, Index count, Index width, Index axis,
    long long row_stride, long long column_stride)
{
    if (check_id && count && blockIdx.x == 0 && threadIdx.x == 0) {
        const long long lowest = indices[0], highest = indices[count - 1], end = size / width;
        if (lowest < 0 || highest >= end) report_index(error_record, check_id, lowest < 0 ? lowest - end : highest);
    }
    for (GRID_STRIDE(at, size)) {
        const Index p = axis ? at % (size / width) : at / width, j = axis ? at / (size / width) : at % width;
        Index low = 0, high = count;  // first position whose index is not below p
        while (low < high) {
            const Index middle = low + (high - low) / 2;
            if (indices[middle] < p) low = middle + 1; else high = middle;
        }
        Compute total = 0;
        while (low < count && indices[low] == p)
            if (s && low % SEGMENT == 0 && low + SEGMENT <= count && indices[low + SEGMENT - 1] == p) {
                total += s[low / SEGMENT * width + j];
                low += SEGMENT;
            } else {
                total += to_compute(x[order[low] * row_stride + j * column_stride]);
                ++low;
            }
        store(y[at], total);
    }
}
"""
)

ROI_POOL_KERNEL = """
// o = maximum of each bin, and argmax its index h W + w; 0 and -1 for an empty bin. The table contains, for n regions,
// the image index, and for each bin the first row, the number of rows, the first column and the number of columns.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* o, ArgIndex* argmax, const Element* i, const int* table, Index size, Index n, Index PH, Index PW,
    Index H, Index W, Index N)
{
    const int *images = table, *tops = images + n, *heights = tops + PH * n;
    const int *lefts = heights + PH * n, *widths = lefts + PW * n;
    for (GRID_STRIDE(at, size)) {
        const Index r = at % n, bin = at / n, pw = bin % PW, ph = bin / PW % PH, c = bin / PW / PH;
        const Index top = tops[ph * n + r], left = lefts[pw * n + r];
        const Index bottom = top + heights[ph * n + r], right = left + widths[pw * n + r];
        Compute best = 0;
        Index index = -1;
        for (Index y = top; y < bottom; ++y)
            for (Index x = left; x < right; ++x) {
                const Compute value = to_compute(i[((c * H + y) * W + x) * N + images[r]]);
                if (index < 0 || value > best || (value != value && best == best)) best = value, index = y * W + x;
            }
        store(o[at], best);
        argmax[at] = index;
    }
}
"""


class CudaScatter(KernelLauncher):
    """Scatter-add, and ROI max pooling: images (C, H, W, N), regions (n, 5), bins (C, PH, PW, n)."""

    supports_scatter = True

    def scatter(
        self, x: NativeArray, indices: NativeArray, y: NativeArray, axis: int = 0, check: tuple[int, int] = (0, 0)
    ) -> None:
        """Compute ``y[p] = sum of x[k] over all k with index p``: (n, m), (n,) integers, (size, m), or along axis 1.

        ``check``: the address of the error record and the id of the check for indices out of range; (0, 0): no check.
        """
        indices, order = self._sort_indices(indices)
        strides = [stride // x.dtype.itemsize for stride in self.runtime.address_and_strides(x)[1]]
        row_stride, column_stride = strides[::-1] if axis else strides
        count, width, sums = indices.shape[0], y.shape[1 - axis], None
        if count >= MIN_SEGMENTED:
            dtype = self.xp.float32 if y.dtype.itemsize == 2 else y.dtype
            sums = self.xp.empty((count // SEGMENT, width), dtype=dtype)
            self.launch_elementwise(
                SEGMENT_SUM_KERNEL,
                y,
                sums.size,
                1,
                [sums, x, indices, order, sums.size, width, row_stride, column_stride],
            )
        sizes = [y.size, count, width, axis, row_stride, column_stride]
        self.launch_elementwise(SCATTER_KERNEL, y, y.size, 1, [y, x, indices, order, sums, *check, *sizes])

    def _sort_indices(self, indices: NativeArray) -> tuple[NativeArray, NativeArray]:
        """Return the sorted indices (n,) and their original positions, int64; the sort is stable."""
        xp, n = self.xp, indices.shape[0]
        if n > MAX_RANK_SORT:
            order = xp.argsort(indices, stable=True)
            return tuple(xp.astype(x, xp.int64) for x in (xp.take(indices, order, axis=0), order))
        indices, values, order = xp.astype(indices, xp.int64), *(xp.empty((n,), dtype=xp.int64) for _ in range(2))
        if n:
            self.launch(RANK_SORT_KERNEL, "int64", (-(-n // THREADS_PER_BLOCK), 1), [values, order, indices, n])
        return values, order

    def roi_fprop(self, i: NativeArray, regions: NumPyArray, o: NativeArray, argmax: NativeArray, scale: float) -> None:
        (_, H, W, N), (_, PH, PW, n) = i.shape, o.shape
        rows = bin_bounds(regions[:, 2], regions[:, 4], scale, PH, H)
        bounds = [*rows, *bin_bounds(regions[:, 1], regions[:, 3], scale, PW, W)]
        table = self.runtime.put(np.concatenate([x.reshape(-1) for x in (regions[:, 0], *bounds)]).astype(np.int32))
        arguments = [o, argmax, i, table, o.size, n, PH, PW, H, W, N]
        self.launch_elementwise(ROI_POOL_KERNEL, o, o.size, 1, arguments, ArgIndex=str(argmax.dtype))

    def roi_bprop(self, e: NativeArray, regions: NumPyArray, argmax: NativeArray, d: NativeArray) -> None:
        xp, (C, H, W, N) = self.xp, d.shape
        images = self.runtime.put(regions[:, 0].astype(np.int64))[None, None, None, :]
        channels = self.runtime.put(np.arange(C))[:, None, None, None]
        flat_indices = (xp.astype(argmax, xp.int64) + channels * (H * W)) * N + images
        flat_indices = xp.where(argmax < 0, xp.full(flat_indices.shape, -1, dtype=flat_indices.dtype), flat_indices)
        reshape = self.runtime.reshape
        self.scatter(reshape(e, (e.size, 1)), xp.reshape(flat_indices, (-1,)), reshape(d, (d.size, 1)))
