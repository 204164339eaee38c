"""Kernels that may replace those of the library, once a GPU has shown that they are right and faster.

``benchmarks/gpu_run.py`` compares their bits with those of the library's kernels (part C), and their times (part D).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from neonlite import Backend, Tensor
from neonlite.backend.runtimes.cuda.codegen import region_kernels
from neonlite.backend.runtimes.cuda.op_templates import substitute

# Batch norm of (C, size) in one kernel a pass: the library reads x twice from memory, here the second time is from the
# L2 cache. The work is a list of items: each sums a part of a channel, or normalizes it. The sums of channel c + AHEAD
# are before the normalization of channel c, so that the channels in between have to fit into the cache:
#
#     sums of channels 0 ... AHEAD - 1; sums of AHEAD, channel 0; sums of AHEAD + 1, channel 1; ...; the last channels
#
# A block takes a ticket, the number of the next item, until there is none. An item that normalizes waits for the sums
# of its channel. Their tickets are lower, so blocks that run have taken them, and no sum waits for anything. So the
# kernel ends however many of its blocks run at a time.
#
# Order of memory accesses: thread 0 of a block writes the sums of its part, and then adds 1 to ``done`` of the channel
# by a release operation. Thread 0 of a block that normalizes reads ``done`` by acquire operations until it is complete.
# The additions are one release sequence, so that all sums of the channel are visible to this thread, and by the barrier
# that follows to its block. A ticket orders nothing, so its operation is relaxed. The last block that finds no item
# sets all counters to 0: those of all others have been read by then, as each block has added 1 to ``finished`` by a
# release operation after it. The next launch sees the zeros, as launches of a stream follow each other.
#
# Each item adds the sums of the parts in the order of the library's kernels, so that results have the same bits,
# whatever the order in which blocks run. The simulator runs one block after another, and the first takes all tickets:
# it shows that items and results are right, and that the counters are 0 in the end. A test also runs blocks as threads
# of the CPU, which wait. Neither shows how a GPU orders memory accesses, as a CPU reorders fewer.
ORDERED_BATCH_NORM = """
enum { LANES = 256, NEXT = 0, FINISHED = 1, DONE = 2 };  // DONE: of the first channel
#ifdef SIMULATED
extern "C" int sched_yield();
__device__ inline unsigned next_ticket(unsigned* x) { return __atomic_fetch_add(x, 1, __ATOMIC_RELAXED); }
__device__ inline unsigned count(unsigned* x) { return __atomic_fetch_add(x, 1, __ATOMIC_ACQ_REL); }
__device__ inline void wait_for(unsigned* x, unsigned n)
{
    while (__atomic_load_n(x, __ATOMIC_ACQUIRE) != n) sched_yield();
}
__device__ inline void store_streaming(float* x, const Pack<float, V>& values) { store(x, values); }
#else
__device__ inline unsigned next_ticket(unsigned* x) { return atomicAdd(x, 1); }
__device__ inline unsigned count(unsigned* x)  // what is written before is visible to who reads the new value
{
    unsigned was;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(was) : "l"(x) : "memory");
    return was;
}
__device__ inline void wait_for(unsigned* x, unsigned n)
{
    for (unsigned now = 0;; __nanosleep(100)) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(x) : "memory");
        if (now == n) return;
    }
}
__device__ inline void store_streaming(float* x, const Pack<float, V>& values)  // it need not stay in the cache
{
    __stcs((float4*)x, make_float4(values.at[0], values.at[1], values.at[2], values.at[3]));
}
#endif

// Call f(j, xs) for the packs of a part that this thread visits: j is the index of the first element in the channel,
// and xs has a pack of each array. Four packs of each are loaded before the first is used.
template <int ARRAYS, class F>
__device__ inline void visit(const float* const (&arrays)[ARRAYS], Index first, Index end, F f)
{
    constexpr int U = 4;
    const Index lane = threadIdx.x, packs = (end - first + (LANES - 1 - lane) * V) / (LANES * V);
    for (Index p = 0; p < packs; p += U) {
        Pack<float, V> xs[U][ARRAYS];
        #pragma unroll
        for (int u = 0; u < U; ++u) {
            const Index pack = p + u < packs ? p + u : packs - 1;  // the last one again after the end
            #pragma unroll
            for (int a = 0; a < ARRAYS; ++a) xs[u][a] = load<V>(arrays[a] + first + (lane + pack * LANES) * V);
        }
        #pragma unroll
        for (int u = 0; u < U; ++u) if (p + u < packs) f(first + (lane + (p + u) * LANES) * V, xs[u]);
    }
}

{SUMS}

// p[0] = the sums of all lanes, added as a tree.
__device__ inline void add_lanes(Sums* p, Sums mine, int lanes)
{
    p[threadIdx.x] = mine;
    __syncthreads();
    for (int offset = lanes / 2; offset; offset /= 2) {
        if (threadIdx.x < offset) p[threadIdx.x] = add(p[threadIdx.x], p[threadIdx.x + offset]);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256) kernel(
    {PARAMETERS}, Sums* partials, unsigned* counters,
    Index channels, Index size, Index chunk, Index parts, Index ahead, Index lanes, double over_size, double eps)
{
    __shared__ unsigned ticket;
    __shared__ Sums p[LANES];
    const Index before = ahead * parts, between = (channels - ahead) * 2 * parts;  // items: of sums, then of both
    for (;;) {
        if (threadIdx.x == 0) ticket = next_ticket(counters + NEXT);
        __syncthreads();
        const Index item = ticket;
        if (item >= 2 * channels * parts) break;
        const Index pair = (item - before) / (2 * parts), in_pair = (item - before) % (2 * parts);
        const bool is_sum = item < before || (item < before + between && in_pair < parts);
        const Index c = item < before ? item / parts
            : item >= before + between ? channels - ahead + (item - before - between) / parts
            : is_sum ? pair + ahead : pair;
        const Index part = item % parts, first = part * chunk, end = first + chunk < size ? first + chunk : size;
        {READ}
        if (is_sum) {
            Sums mine = {};
            visit(arrays, first, end, [&](Index j, const Pack<float, V>* xs) {
                #pragma unroll
                for (int q = 0; q < V; ++q) {
                    {ACCUMULATE}
                }
            });
            add_lanes(p, mine, LANES);
            if (threadIdx.x == 0) {
                partials[c * parts + part] = p[0];
                count(counters + DONE + c);
            }
        } else {
            if (threadIdx.x == 0) wait_for(counters + DONE + c, parts);
            __syncthreads();
            Sums mine = {};
            for (Index k = threadIdx.x; k < parts && threadIdx.x < lanes; k += lanes)
                mine = add(mine, partials[c * parts + k]);
            add_lanes(p, mine, lanes);
            const Sums sums = p[0];
            {RESULTS}
            visit(arrays, first, end, [&](Index j, const Pack<float, V>* xs) {
                Pack<float, V> out;
                #pragma unroll
                for (int q = 0; q < V; ++q) {
                    {NORMALIZE}
                }
                store_streaming(y + c * size + j, out);
            });
        }
        __syncthreads();  // before ticket and p change
    }
    if (threadIdx.x == 0 && count(counters + FINISHED) == gridDim.x - 1)
        for (Index k = 0; k < DONE + channels; ++k) counters[k] = 0;
}
"""

FORWARD = substitute(
    ORDERED_BATCH_NORM,
    SUMS="""struct Sums { float sum; Welford<float> far; };
__device__ inline Sums add(Sums a, Sums b) { return {a.sum + b.sum, combine(a.far, b.far)}; }""",
    PARAMETERS="""const float* x, const float* gamma, const float* beta, float* y, float* mean, float* variance,
    float* gmean, float* gvariance, double rho, double rest""",
    READ="const float* const arrays[] = {x + c * size};",
    ACCUMULATE="mine = {mine.sum + xs[0].at[q], update(mine.far, xs[0].at[q])};",
    RESULTS="""const float m = sums.sum * (float)over_size, off = sums.far.mean - m;
            const float var = (sums.far.m2 + sums.far.count * (off * off)) * (float)over_size;
            const float scale = 1.0f / sqrtf(var + (float)eps) * gamma[c], shift = beta[c];
            if (threadIdx.x == 0 && part == 0) {
                mean[c] = m, variance[c] = var;
                gmean[c] = (float)rho * gmean[c] + (float)rest * m;
                gvariance[c] = (float)rho * gvariance[c] + (float)rest * var;
            }""",
    NORMALIZE="out.at[q] = (xs[0].at[q] - m) * scale + shift;",
)
BACKWARD = substitute(
    ORDERED_BATCH_NORM,
    SUMS="""struct Sums { float gamma, beta; };
__device__ inline Sums add(Sums a, Sums b) { return {a.gamma + b.gamma, a.beta + b.beta}; }""",
    PARAMETERS="""const float* x, const float* dy, const float* gamma, const float* mean, const float* variance,
    float* y, float* dgamma, float* dbeta""",
    READ="""const float* const arrays[] = {x + c * size, dy + c * size};
        const float m = mean[c], scale = 1.0f / sqrtf(variance[c] + (float)eps);""",
    ACCUMULATE="""mine.gamma = mine.gamma + (xs[0].at[q] - m) * xs[1].at[q];
                    mine.beta = mine.beta + xs[1].at[q];""",
    RESULTS="""const float of_gamma = sums.gamma * scale, factor = scale * gamma[c];
            const float k = scale * of_gamma * (float)over_size, shift = sums.beta * (float)over_size;
            if (threadIdx.x == 0 && part == 0) dgamma[c] = of_gamma, dbeta[c] = sums.beta;""",
    NORMALIZE="out.at[q] = (xs[1].at[q] - (xs[0].at[q] - m) * k - shift) * factor;",
)


class OrderedBatchNorm:
    """Batch norm of (C, size) in float32, each pass in one kernel: ``be.compound_fprop_bn`` and its gradients.

    ``blocks``: of a launch, two to eight for each multiprocessor. ``ahead``: the number of channels between the sums
    and the normalization.
    """

    def __init__(self, be: Backend, C: int, size: int, blocks: int, ahead: int) -> None:
        self.be, self.blocks = be, blocks
        plan = be.plan(be.sum(be.empty((C, size), dtype="float32"), axis=1))
        kernels = region_kernels(plan, plan.stages[0]) or []
        if [(k.schedule, k.vector_width, k.lanes, k.num_splits > 1) for k in kernels] != [("rows", 4, 256, True)]:
            raise ValueError(f"expected rows of 4 n elements that several blocks sum, got {C} rows of {size}")
        (_, _, chunk), parts = kernels[0].counts, kernels[0].num_splits
        lanes = 256 // kernels[0]._results_per_finalize_block()
        self.sizes = C, size, chunk, parts, min(ahead, C), lanes, 1.0 / size
        self.partials, self.counters = be.empty((C * parts, 4)), be.zeros((1, 2 + C), dtype="int32")

    def launch(self, source: str, tensors: list[Tensor], *numbers: float, eps: float) -> None:
        """Launch the kernel of a pass."""
        arguments = [*(t._array for t in tensors), *numbers, self.partials._array, self.counters._array, *self.sizes]
        self.be.primitives.launch(source, "float32", (self.blocks, 1), [*arguments, eps], V=4)

    def forward(
        self,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        gmean: Tensor,
        gvariance: Tensor,
        gamma: Tensor,
        beta: Tensor,
        y: Tensor,
        eps: float,
        rho: float,
    ) -> None:
        """Compute what ``be.compound_fprop_bn`` computes."""
        self.launch(FORWARD, [x, gamma, beta, y, mean, variance, gmean, gvariance], rho, 1 - rho, eps=eps)

    def backward(
        self,
        dx: Tensor,
        dgamma: Tensor,
        dbeta: Tensor,
        dy: Tensor,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        gamma: Tensor,
        eps: float,
    ) -> None:
        """Compute what ``be.compound_bprop_bn`` computes."""
        self.launch(BACKWARD, [x, dy, gamma, mean, variance, dx, dgamma, dbeta], eps=eps)


class BatchNorms:
    """Batch norm of random (C, size), forward and backward, by the library and by candidates."""

    def __init__(self, be: Backend, C: int, size: int) -> None:
        draw = np.random.default_rng(7)
        self.be, self.shape, column = be, (C, size), (C, 1)
        self.x, self.dy, self.gamma, self.beta = (
            be.array(draw.standard_normal(shape)) for shape in (self.shape, self.shape, column, column)
        )
        self.y, self.dx = be.empty(self.shape), be.empty(self.shape)
        self.columns = [be.zeros(column) for _ in range(6)]  # mean, variance, their averages, dgamma, dbeta

    def run(self, norm: OrderedBatchNorm | None = None) -> None:
        """Run both passes; without a candidate by the library."""
        mean, variance, gmean, gvariance, dgamma, dbeta = self.columns
        forward = self.be.compound_fprop_bn if norm is None else norm.forward
        backward = self.be.compound_bprop_bn if norm is None else norm.backward
        forward(self.x, mean, variance, gmean, gvariance, self.gamma, self.beta, self.y, eps=1e-3, rho=0.9)
        backward(self.dx, dgamma, dbeta, self.dy, self.x, mean, variance, self.gamma, eps=1e-3)

    def candidates(self, *options: tuple[int, int]) -> dict[str, Callable[[], None]]:
        """Return the work of candidates by their blocks and channels ahead."""
        C, size = self.shape
        norms = {(blocks, ahead): OrderedBatchNorm(self.be, C, size, blocks, ahead) for blocks, ahead in options}
        return {f"{blocks} blocks, {ahead} ahead": partial(self.run, norm) for (blocks, ahead), norm in norms.items()}

    def poison(self) -> None:
        """Fill the results, so that what is not written has other bits; averages begin with the same numbers."""
        for out in (self.y, self.dx, *self.columns):
            out.fill(np.nan)
        for average in self.columns[2:4]:
            average.fill(0.5)

    def bits(self) -> list[Any]:
        """Return copies of the results as integers."""
        return [x.copy() for x in self._integers()]

    def differing(self, wanted: list[Any]) -> list[int]:
        """Return which results have other bits."""
        return [n for n, (x, y) in enumerate(zip(self._integers(), wanted, strict=True)) if bool((x != y).any())]

    def _integers(self) -> list[Any]:
        return [out._array.view("int32") for out in (self.y, self.dx, *self.columns)]
