"""How does a card add up what goes to one place?  By places in order, in the order of what goes there: no atomics.

So the bits of a sum are always the same: of the rows of a look-up table, and of the pixels under regions of interest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite.backend.cuda.kernels import THREADS
from neonlite.backend.cuda.launching import Launching
from neonlite.backend.primitives.regions import bins

FEW = 1 << 15  # places that a kernel of ours sorts, by n^2 comparisons; CuPy, which sorts more, waits for the card

SORT = """
// Places in order, and where each came from: before a place come as many as are smaller, or as large and earlier.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    long long* sorted, long long* order, const long long* places, int count)
{
    __shared__ long long near[256];
    const int k = blockIdx.x * 256 + threadIdx.x;
    const long long mine = k < count ? places[k] : 0;
    int before = 0;
    for (int first = 0; first < count; first += 256) {
        const int n = count - first < 256 ? count - first : 256;
        if (threadIdx.x < n) near[threadIdx.x] = places[first + threadIdx.x];
        __syncthreads();
        for (int i = 0; i < n; ++i) before += near[i] < mine || (near[i] == mine && first + i < k);
        __syncthreads();
    }
    if (k < count) sorted[before] = mine, order[before] = k;
}
"""

SCATTER = """
// y[p, j] = the sum of x[k, j] over all k whose place is p; order tells where the places, sorted, came from. A place
// that y does not have is told of as a failed check, if there is one; below 0 it was an index from the end.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* y, const Element* x, const long long* places, const long long* order, Word* failed, long long check,
    Index size, Index count, Index width, Index axis, long long down, long long across)
{
    if (check && count && blockIdx.x == 0 && threadIdx.x == 0) {
        const long long least = places[0], most = places[count - 1], end = size / width;
        if (least < 0 || most >= end) tell(failed, check, least < 0 ? least - end : most);
    }
    for (EACH(at, size)) {
        const Index p = axis ? at % (size / width) : at / width, j = axis ? at / (size / width) : at % width;
        Index low = 0, high = count;  // the first place that is not below p
        while (low < high) {
            const Index middle = low + (high - low) / 2;
            if (places[middle] < p) low = middle + 1; else high = middle;
        }
        Wide total = 0;
        for (; low < count && places[low] == p; ++low) total += wide(x[order[low] * down + j * across]);
        put(y[at], total);
    }
}
"""

REGIONS = """
// o = the maximum of each bin, and argmax where it is, h W + w; 0 and -1 where there is no pixel. The table has
// the image of each of n regions, and the first row, the rows, the first column and the columns of each of its bins.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* o, Place* argmax, const Element* i, const int* table, Index size, Index n, Index PH, Index PW,
    Index H, Index W, Index N)
{
    const int *images = table, *tops = images + n, *heights = tops + PH * n;
    const int *lefts = heights + PH * n, *widths = lefts + PW * n;
    for (EACH(at, size)) {
        const Index r = at % n, bin = at / n, pw = bin % PW, ph = bin / PW % PH, c = bin / PW / PH;
        const Index top = tops[ph * n + r], left = lefts[pw * n + r];
        const Index bottom = top + heights[ph * n + r], right = left + widths[pw * n + r];
        Wide best = 0;
        Index place = -1;
        for (Index y = top; y < bottom; ++y)
            for (Index x = left; x < right; ++x) {
                const Wide value = wide(i[((c * H + y) * W + x) * N + images[r]]);
                if (place < 0 || value > best || (value != value && best == best)) best = value, place = y * W + x;
            }
        put(o[at], best);
        argmax[at] = place;
    }
}
"""


class ScatterPrimitives(Launching):
    """Sums by place, and maximum pooling of regions: images (C, H, W, N), regions (n, 5), bins (C, PH, PW, n)."""

    def scatter(self, x: Any, places: Any, y: Any, axis: int = 0, told: tuple[int, int] = (0, 0)) -> None:
        """Compute ``y[p] = sum of x[k] over all k whose place is p``: (n, m), (n,) ints, (size, m), or along axis 1.

        ``told``: where to tell of a place that is none, and as which check; else it is left out.
        """
        places, order = self._sorted(places)
        steps = [step // x.dtype.itemsize for step in self.runtime.layout(x)[1]]
        down, across = steps[::-1] if axis else steps
        more = [y.size, places.shape[0], y.shape[1 - axis], axis, down, across]
        self.over(SCATTER, y, y.size, 1, [y, x, places, order, *told, *more])

    def _sorted(self, places: Any) -> tuple[Any, Any]:
        """Return places (n,) in order, and where each came from, int64; equal ones stay as they are."""
        xp, n = self.xp, places.shape[0]
        if n > FEW:
            order = xp.argsort(places, stable=True)
            return tuple(xp.astype(x, xp.int64) for x in (xp.take(places, order, axis=0), order))
        places, found, order = xp.astype(places, xp.int64), *(xp.empty((n,), dtype=xp.int64) for _ in range(2))
        if n:
            self.launch(SORT, "int64", (-(-n // THREADS), 1), [found, order, places, n])
        return found, order

    def roi_fprop(self, i: Any, regions: np.ndarray[Any, Any], o: Any, argmax: Any, scale: float) -> None:
        (_, H, W, N), (_, PH, PW, n) = i.shape, o.shape
        each = [*bins(regions[:, 2], regions[:, 4], scale, PH, H), *bins(regions[:, 1], regions[:, 3], scale, PW, W)]
        table = self.runtime.put(np.concatenate([x.reshape(-1) for x in (regions[:, 0], *each)]).astype(np.int32))
        arguments = [o, argmax, i, table, o.size, n, PH, PW, H, W, N]
        self.over(REGIONS, o, o.size, 1, arguments, Place=str(argmax.dtype))

    def roi_bprop(self, e: Any, regions: np.ndarray[Any, Any], argmax: Any, d: Any) -> None:
        xp, (C, H, W, N) = self.xp, d.shape
        images = self.runtime.put(regions[:, 0].astype(np.int64))[None, None, None, :]
        maps = self.runtime.put(np.arange(C))[:, None, None, None]
        cells = (xp.astype(argmax, xp.int64) + maps * (H * W)) * N + images
        cells = xp.where(argmax < 0, xp.full(cells.shape, -1, dtype=cells.dtype), cells)
        flat = self.runtime.reshape
        self.scatter(flat(e, (e.size, 1)), xp.reshape(cells, (-1,)), flat(d, (d.size, 1)))
