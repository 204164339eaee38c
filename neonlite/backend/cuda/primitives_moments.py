"""How does a card measure a batch in one pass?  Each thread sums what its numbers differ from the first of them.

Means and squared differences are then joined in pairs, so a mean far from 0 costs no precision. The rest of batch
normalization are op-trees, of one kernel forwards and two backwards.

Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
"""

from __future__ import annotations

from typing import Any

from neonlite.backend.cuda.kernels import LANE, LONGEST, SHARED_BLOCKS, THREADS
from neonlite.backend.cuda.launching import Launching
from neonlite.backend.cuda.words import fill

JOIN = """
struct Moments { Wide n, mean, squares; };  // how many, their mean, and the squares of what they differ from it, summed
__device__ inline Moments joined(Moments a, Moments b)
{
    if (a.n == 0 || b.n == 0) return a.n == 0 ? b : a;
    const Wide n = a.n + b.n, d = b.mean - a.mean;
    return {n, a.mean + d * (b.n / n), a.squares + b.squares + d * d * (a.n * (b.n / n))};
}
__device__ inline Moments of_block(Moments own)
{
    __shared__ Moments found[256];
    found[threadIdx.x] = own;
    __syncthreads();
    for (int far = 128; far; far /= 2) {
        if (threadIdx.x < far) found[threadIdx.x] = joined(found[threadIdx.x], found[threadIdx.x + far]);
        __syncthreads();
    }
    return found[0];
}
"""

MEASURE = """{join}
// A block measures a part of a row of x (rows, columns): mean and population variance, or what is to be joined to them.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Wide* mean, Wide* var, Moments* parts, const Element* x, long long columns, long long chunk)
{
    const long long first = blockIdx.y * chunk, end = first + chunk < columns ? first + chunk : columns;
    const Element* row = x + blockIdx.x * columns;
    Wide pivot = 0, sum = 0, squares = 0, n = 0;
    for (long long j = first + threadIdx.x * V; j < end; j += 256 * V) {
        const Pack<Element, V> xs = load<V>(row + j);
        if (n == 0) pivot = wide(xs.at[0]);
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const Wide d = wide(xs.at[v]) - pivot;
            sum += d, squares += d * d;
        }
        n += V;
    }
    Moments own = {0, 0, 0};
    if (n) own = {n, pivot + sum / n, squares - sum * (sum / n)};
    const Moments all = of_block(own);
    if (threadIdx.x) return;
    if (parts)
        parts[blockIdx.y * gridDim.x + blockIdx.x] = all;
    else
        mean[blockIdx.x] = all.mean, var[blockIdx.x] = larger(all.squares / all.n, (Wide)0);
}
"""

LAST = """{join}
// A block joins the parts of a row.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(Wide* mean, Wide* var, const Moments* parts, int count)
{
    Moments own = {0, 0, 0};
    for (int p = threadIdx.x; p < count; p += 256) own = joined(own, parts[p * gridDim.x + blockIdx.x]);
    const Moments all = of_block(own);
    if (threadIdx.x == 0) mean[blockIdx.x] = all.mean, var[blockIdx.x] = larger(all.squares / all.n, (Wide)0);
}
"""
MEASURE, LAST = (fill(text, join=JOIN) for text in (MEASURE, LAST))


class MomentPrimitives(Launching):
    """Mean and variance of rows."""

    moments_from = 1024

    def moments(self, x: Any, mean: Any, var: Any) -> None:
        """Compute the mean and the population variance of each row of x (rows, columns): float32 for halves."""
        (rows, columns), V = x.shape, 16 // x.dtype.itemsize
        V = 1 if columns % V or self.runtime.layout(x)[0] % 16 else V
        each = THREADS * (16 // x.dtype.itemsize)
        parts = max(1, min(SHARED_BLOCKS // max(rows, 1), columns // (each * LANE)), -(-columns // (each * LONGEST)))
        chunk = -(-columns // (parts * V)) * V
        room = None if parts == 1 else self.scratch("moments", (parts, rows, 3), mean)
        if rows:
            self.launch(MEASURE, str(x.dtype), (rows, parts), [mean, var, room, x, columns, chunk], V)
        if rows and room is not None:
            self.launch(LAST, str(x.dtype), (rows, 1), [mean, var, room, parts])
