"""Pooling and local response normalization on the GPU: gather kernels, deterministic in both passes.

In the backward pass each pixel gathers the errors of the windows that cover it. No thread accumulates in memory that
another thread writes, so results always have the same bits.
"""

from __future__ import annotations

from neonlite.backend.primitives.geometry import LRNLayer, NHWCImages, PoolLayer, as_chwn
from neonlite.backend.runtimes.cuda.convolution import CudaReorderer
from neonlite.backend.runtimes.cuda.op_templates import substitute
from neonlite.typing import NativeArray

POOL_AXES = "cdhw"
AXIS_PARAMETERS = ", ".join(
    f"Index {a}_size, Index {a}_count, Index {a}_window, Index {a}_stride, Index {a}_pad" for a in POOL_AXES
)

WINDOW_HELPERS = """
enum { MAX, AVG, L2, SUM };
constexpr int op = {OP};
// An axis: its size, the number of windows, their size and stride, and the padding.
struct Axis { Index size, count, window, stride, pad; };
struct Span { Index start, first, end; };  // the start of a window, which may be in the padding, and its cells
__device__ inline Span window_cells(Axis a, Index k)
{
    const Index start = k * a.stride - a.pad, end = start + a.window;
    return {start, start > 0 ? start : 0, end < a.size ? end : a.size};
}
__device__ inline Index cell_count(Span x) { return x.end - x.first; }
__device__ inline Span covering_windows(Axis a, Index x)  // the windows that cover a cell
{
    const Index from = x + a.pad - a.window, last = (x + a.pad) / a.stride;
    return {0, from < 0 ? 0 : from / a.stride + 1, last < a.count ? last + 1 : a.count};
}
"""

AXIS_STRUCTS = "    const Axis " + ", ".join(
    f"{a.upper()} = {{{a}_size, {a}_count, {a}_window, {a}_stride, {a}_pad}}" for a in POOL_AXES
)

POOL_FPROP = """{windows}
// o = pool(i) + beta o, and argmax = index of the first maximum in its window. A thread pools V images.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Out* o, ArgIndex* argmax, const Element* i, double beta, Index size, Index N, {sizes})
{
{axes};
    for (GRID_STRIDE(at, size)) {
        const Index n = at % N, window = at / N;
        const Index q = window % W.count, p = window / W.count % H.count, km = window / W.count / H.count;
        const Span c = window_cells(C, km / D.count), d = window_cells(D, km % D.count);
        const Span h = window_cells(H, p), w = window_cells(W, q);
        Compute value[V];
        Index index[V];
        for (int v = 0; v < V; ++v) {
            value[v] = op == MAX ? -(Compute)INF : 0;
            index[v] = (((c.first - c.start) * D.window + d.first - d.start) * H.window + h.first - h.start) * W.window
                       + w.first - w.start;
        }
        for (Index z = c.first; z < c.end; ++z)
            for (Index t = d.first; t < d.end; ++t)
                for (Index y = h.first; y < h.end; ++y)
                    for (Index x = w.first; x < w.end; ++x) {
                        const Index tap = (((z - c.start) * D.window + t - d.start) * H.window + y - h.start) * W.window
                                          + x - w.start;
                        const Pack<Element, V> xs = load<V>(i + (((z * D.size + t) * H.size + y) * W.size + x) * N + n);
                        #pragma unroll
                        for (int v = 0; v < V; ++v) {
                            const Compute x_value = to_compute(xs.at[v]);
                            if (op != MAX)
                                value[v] += op == L2 ? x_value * x_value : x_value;
                            else if (x_value > value[v] || (x_value != x_value && value[v] == value[v]))  // or NaN
                                value[v] = x_value, index[v] = tap;
                        }
                    }
        const Compute count = cell_count(c) * cell_count(d) * cell_count(h) * cell_count(w);
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const Compute total = op == AVG ? value[v] / count : value[v];
            const Compute pooled = op == L2 ? (Compute)sqrt(value[v]) : total;
            if (o) store(o[at + v], beta == 0 ? pooled : pooled + (Compute)beta * to_compute(o[at + v]));
            if (argmax) argmax[at + v] = index[v];
        }
    }
}
"""

POOL_BPROP = """{windows}
// d = alpha dE/di + beta d. A thread gathers the errors e of the windows that cover a pixel, for V images.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* d, const ArgIndex* argmax, const Compute* norms, const Element* i, const Element* e,
    double alpha, double beta, Index size, Index N, {sizes})
{
{axes};
    for (GRID_STRIDE(at, size)) {
        const Index n = at % N, cell = at / N, x = cell % W.size, y = cell / W.size % H.size;
        const Index t = cell / W.size / H.size % D.size, z = cell / W.size / H.size / D.size;
        const Span ks = covering_windows(C, z), ms = covering_windows(D, t);
        const Span ps = covering_windows(H, y), qs = covering_windows(W, x);
        Compute total[V];
        for (int v = 0; v < V; ++v) total[v] = 0;
        for (Index k = ks.first; k < ks.end; ++k)
            for (Index m = ms.first; m < ms.end; ++m)
                for (Index p = ps.first; p < ps.end; ++p)
                    for (Index q = qs.first; q < qs.end; ++q) {
                        const Span c = window_cells(C, k), r = window_cells(D, m);
                        const Span h = window_cells(H, p), w = window_cells(W, q);
                        const Index tap = (((z - c.start) * D.window + t - r.start) * H.window + y - h.start) * W.window
                                          + x - w.start;
                        const Compute count = cell_count(c) * cell_count(r) * cell_count(h) * cell_count(w);
                        const Index from = (((k * D.count + m) * H.count + p) * W.count + q) * N + n;
                        const Pack<Element, V> es = load<V>(e + from);
                        #pragma unroll
                        for (int v = 0; v < V; ++v) {
                            const Compute error = to_compute(es.at[v]);
                            if (op == MAX)
                                total[v] += argmax[from + v] == (ArgIndex)tap ? error : 0;
                            else if (op == AVG || op == SUM)
                                total[v] += op == AVG ? error / count : error;
                            else if (norms[from + v] != 0)
                                total[v] += error / norms[from + v] * to_compute(i[at + v]);
                        }
                    }
        #pragma unroll
        for (int v = 0; v < V; ++v)
            store(d[at + v], (Compute)alpha * total[v] + (beta == 0 ? 0 : (Compute)beta * to_compute(d[at + v])));
    }
}
"""

LRN_FPROP = """
// denom = 1 + a / J sum i^2 over the J channels around each one, o = alpha i denom^-b + beta o. S is the stride of the
// channel axis: the size of a channel in CHWN, 1 in NHWC.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* o, Element* denom, const Element* i, double alpha, double beta, double scale, double b,
    Index size, Index S, Index C, Index J)
{
    for (GRID_STRIDE(at, size)) {
        const Index c = at / S % C, first = c - J / 2;
        Compute sum[V];
        for (int v = 0; v < V; ++v) sum[v] = 0;
        for (Index z = first < 0 ? 0 : first; z < C && z < first + J; ++z) {
            const Pack<Element, V> xs = load<V>(i + at + (z - c) * S);
            #pragma unroll
            for (int v = 0; v < V; ++v) sum[v] += to_compute(xs.at[v]) * to_compute(xs.at[v]);
        }
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const Compute norm = sum[v] * (Compute)scale + 1;
            const Compute result = to_compute(i[at + v]) * (Compute)pow(norm, -(Compute)b) * (Compute)alpha;
            store(denom[at + v], norm);
            store(o[at + v], beta == 0 ? result : result + (Compute)beta * to_compute(o[at + v]));
        }
    }
}
"""

LRN_BPROP = """
// d = alpha (n - 2 a b / J i sum n i / denom) + beta d, n = e denom^-b; the sum is over the neighboring channels.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* d, const Element* i, const Element* e, const Element* denom, double alpha, double beta, double scale,
    double b, Index size, Index S, Index C, Index J)
{
    for (GRID_STRIDE(at, size)) {
        const Index c = at / S % C, last = c + J / 2;
        Compute neighbor_sum[V], own_term[V];
        for (int v = 0; v < V; ++v) neighbor_sum[v] = 0;
        for (Index z = last - J + 1 < 0 ? 0 : last - J + 1; z < C && z <= last; ++z) {
            const Index to = at + (z - c) * S;
            const Pack<Element, V> xs = load<V>(i + to), es = load<V>(e + to), ds = load<V>(denom + to);
            #pragma unroll
            for (int v = 0; v < V; ++v) {
                const Compute norm = to_compute(ds.at[v]), n = to_compute(es.at[v]) * (Compute)pow(norm, -(Compute)b);
                neighbor_sum[v] += n * to_compute(xs.at[v]) / norm;
                if (z == c) own_term[v] = n;
            }
        }
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const Compute term = to_compute(i[at + v]) * neighbor_sum[v] * (Compute)scale;
            const Compute error = (own_term[v] - term) * (Compute)alpha;
            store(d[at + v], beta == 0 ? error : error + (Compute)beta * to_compute(d[at + v]));
        }
    }
}
"""

POOL_FPROP_SOURCES, POOL_BPROP_SOURCES = (
    {
        op: substitute(text, windows=WINDOW_HELPERS, sizes=AXIS_PARAMETERS, axes=AXIS_STRUCTS, OP=op.upper())
        for op in ("max", "avg", "l2", "sum")
    }
    for text in (POOL_FPROP, POOL_BPROP)
)


class CudaPooling(CudaReorderer):
    """Pooling of images in CHWN or NHWC, and normalization over neighboring channels."""

    def pool_fprop(self, layer: PoolLayer, i: NativeArray, o: NativeArray, argmax: NativeArray, beta: float) -> None:
        """Pool images into ``o``, which may have a larger float dtype, or into ``argmax`` alone."""
        if isinstance(o, NHWCImages):
            indices = None if argmax is None else argmax.flat
            self._pool_fprop(layer, self.nhwc_operand("images", i), o.flat, indices, 0.0, is_nhwc=True)
        else:
            self._pool_fprop(layer, as_chwn(i), o, argmax, beta)

    def _pool_fprop(
        self, layer: PoolLayer, i: NativeArray, o: NativeArray, argmax: NativeArray, beta: float, is_nhwc: bool = False
    ) -> None:
        inner_size = layer.C if is_nhwc else layer.N
        arguments = [o, argmax, i, beta, layer.sizeO, inner_size, *window_geometry(layer, is_nhwc)]
        types = {
            "Out": str(i.dtype if o is None else o.dtype),
            "ArgIndex": str("int32" if argmax is None else argmax.dtype),
        }
        self.launch_elementwise(POOL_FPROP_SOURCES[layer.op], i, layer.sizeO, inner_size, arguments, **types)

    def pool_bprop(
        self,
        layer: PoolLayer,
        i: NativeArray,
        e: NativeArray,
        d: NativeArray,
        argmax: NativeArray,
        alpha: float,
        beta: float,
    ) -> None:
        if isinstance(d, NHWCImages):
            i, argmax = (None if x is None else x.flat for x in (i, argmax))
            self._pool_bprop(layer, i, self.nhwc_operand("errors", e), d.flat, argmax, 1.0, 0.0, is_nhwc=True)
        else:
            i, e, argmax = as_chwn(i) if layer.op in ("max", "l2") else None, as_chwn(e), as_chwn(argmax)
            self._pool_bprop(layer, i, e, d, argmax, alpha, beta)

    def _pool_bprop(
        self,
        layer: PoolLayer,
        i: NativeArray,
        e: NativeArray,
        d: NativeArray,
        argmax: NativeArray,
        alpha: float,
        beta: float,
        is_nhwc: bool = False,
    ) -> None:
        norms, dtype = None, e.dtype if e.dtype.itemsize > 2 else self.xp.float32
        if layer.op == "max" and argmax is None:
            argmax = self.get_workspace("argmax", layer.dimO, self.xp.empty(0, dtype=self.xp.int32))
            self._pool_fprop(layer, i, None, argmax, 0.0)
        elif layer.op == "l2":
            norms = self.get_workspace("norms", layer.dimO, self.xp.empty(0, dtype=dtype))
            self._pool_fprop(layer, i, norms, None, 0.0, is_nhwc)
        inner_size = layer.C if is_nhwc else layer.N
        sizes = [layer.sizeI, inner_size, *window_geometry(layer, is_nhwc)]
        argmax_dtype = str("int32" if argmax is None else argmax.dtype)
        arguments = [d, argmax, norms, i, e, alpha, beta, *sizes]
        self.launch_elementwise(
            POOL_BPROP_SOURCES[layer.op], d, layer.sizeI, inner_size, arguments, ArgIndex=argmax_dtype
        )

    def lrn_fprop(
        self,
        layer: LRNLayer,
        i: NativeArray,
        o: NativeArray,
        denom: NativeArray,
        alpha: float,
        beta: float,
        a: float,
        b: float,
    ) -> None:
        S = layer.sizeI // layer.C
        self.launch_elementwise(
            LRN_FPROP, o, layer.sizeI, S, [o, denom, i, alpha, beta, a / layer.J, b, layer.sizeI, S, layer.C, layer.J]
        )

    def lrn_bprop(
        self,
        layer: LRNLayer,
        i: NativeArray,
        e: NativeArray,
        d: NativeArray,
        denom: NativeArray,
        alpha: float,
        beta: float,
        a: float,
        b: float,
    ) -> None:
        S = layer.sizeI // layer.C
        sizes = [layer.sizeI, S, layer.C, layer.J]
        self.launch_elementwise(
            LRN_BPROP, d, layer.sizeI, S, [d, i, e, denom, alpha, beta, 2 * a * b / layer.J, b, *sizes]
        )


def window_geometry(layer: PoolLayer, is_nhwc: bool) -> list[int]:
    """Return the size, number of windows, window, stride and padding along each of C, D, H and W.

    In NHWC the batch axis and the channel axis are exchanged.
    """
    axes = list(zip(layer.dimI, layer.dimO, layer.JTRS, layer.strides, layer.padding, strict=False))
    if is_nhwc:
        axes[0] = layer.N, layer.N, 1, 1, 0
    return [n for sizes in axes for n in sizes]
