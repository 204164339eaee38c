"""How does a card pool images, and normalize them over channels?  A thread gathers what one element needs.

The way back gathers, too: a pixel asks the windows that have it. So nobody adds to what another thread adds to, and
the bits of a result are always the same.
"""

from __future__ import annotations

from typing import Any

from neonlite.backend.cuda.launching import Launching
from neonlite.backend.cuda.words import fill
from neonlite.backend.primitives.geometry import LRNLayer, PoolLayer

AXES = "cdhw"
SIZES = ", ".join(f"Index {a}_size, Index {a}_count, Index {a}_window, Index {a}_stride, Index {a}_pad" for a in AXES)

WINDOWS = """
enum { MAX, AVG, L2 };
constexpr int op = {OP};
// Windows along an axis: how many cells there are, how many windows, and how these lie.
struct Axis { Index size, count, window, stride, pad; };
struct Span { Index start, first, end; };  // where a window would begin, and its cells that are there
__device__ inline Span cells(Axis a, Index k)
{
    const Index start = k * a.stride - a.pad, end = start + a.window;
    return {start, start > 0 ? start : 0, end < a.size ? end : a.size};
}
__device__ inline Index cells_of(Span x) { return x.end - x.first; }
__device__ inline Span windows(Axis a, Index x)  // that have a cell
{
    const Index from = x + a.pad - a.window, last = (x + a.pad) / a.stride;
    return {0, from < 0 ? 0 : from / a.stride + 1, last < a.count ? last + 1 : a.count};
}
"""

LAID_OUT = "    const Axis " + ", ".join(
    f"{a.upper()} = {{{a}_size, {a}_count, {a}_window, {a}_stride, {a}_pad}}" for a in AXES
)

POOL = """{windows}
// o = pool(i) + beta o, and argmax the place of the first maximum in its window: a thread pools V images.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Out* o, Place* argmax, const Element* i, double beta, Index size, Index N, {sizes})
{
{axes};
    for (EACH(at, size)) {
        const Index n = at % N, window = at / N;
        const Index q = window % W.count, p = window / W.count % H.count, km = window / W.count / H.count;
        const Span c = cells(C, km / D.count), d = cells(D, km % D.count), h = cells(H, p), w = cells(W, q);
        Wide found[V];
        Index place[V];
        for (int v = 0; v < V; ++v) {
            found[v] = op == MAX ? -(Wide)INF : 0;
            place[v] = (((c.first - c.start) * D.window + d.first - d.start) * H.window + h.first - h.start) * W.window
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
                            const Wide value = wide(xs.at[v]);
                            if (op != MAX)
                                found[v] += op == AVG ? value : value * value;
                            else if (value > found[v] || (value != value && found[v] == found[v]))  // the first NaN
                                found[v] = value, place[v] = tap;
                        }
                    }
        const Wide count = cells_of(c) * cells_of(d) * cells_of(h) * cells_of(w);
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const Wide pooled = op == MAX ? found[v] : op == AVG ? found[v] / count : (Wide)sqrt(found[v]);
            if (o) put(o[at + v], beta == 0 ? pooled : pooled + (Wide)beta * wide(o[at + v]));
            if (argmax) argmax[at + v] = place[v];
        }
    }
}
"""

POOL_BACK = """{windows}
// d = alpha dE/di + beta d: a thread has V images of a pixel, and gathers the errors e of the windows that have it.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* d, const Place* argmax, const Wide* norms, const Element* i, const Element* e, double alpha, double beta,
    Index size, Index N, {sizes})
{
{axes};
    for (EACH(at, size)) {
        const Index n = at % N, cell = at / N, x = cell % W.size, y = cell / W.size % H.size;
        const Index t = cell / W.size / H.size % D.size, z = cell / W.size / H.size / D.size;
        const Span ks = windows(C, z), ms = windows(D, t), ps = windows(H, y), qs = windows(W, x);
        Wide total[V];
        for (int v = 0; v < V; ++v) total[v] = 0;
        for (Index k = ks.first; k < ks.end; ++k)
            for (Index m = ms.first; m < ms.end; ++m)
                for (Index p = ps.first; p < ps.end; ++p)
                    for (Index q = qs.first; q < qs.end; ++q) {
                        const Span c = cells(C, k), r = cells(D, m), h = cells(H, p), w = cells(W, q);
                        const Index tap = (((z - c.start) * D.window + t - r.start) * H.window + y - h.start) * W.window
                                          + x - w.start;
                        const Wide count = cells_of(c) * cells_of(r) * cells_of(h) * cells_of(w);
                        const Index from = (((k * D.count + m) * H.count + p) * W.count + q) * N + n;
                        const Pack<Element, V> es = load<V>(e + from);
                        #pragma unroll
                        for (int v = 0; v < V; ++v) {
                            const Wide error = wide(es.at[v]);
                            if (op == MAX)
                                total[v] += argmax[from + v] == (Place)tap ? error : 0;
                            else if (op == AVG)
                                total[v] += error / count;
                            else if (norms[from + v] != 0)
                                total[v] += error / norms[from + v] * wide(i[at + v]);
                        }
                    }
        #pragma unroll
        for (int v = 0; v < V; ++v)
            put(d[at + v], (Wide)alpha * total[v] + (beta == 0 ? 0 : (Wide)beta * wide(d[at + v])));
    }
}
"""

LRN = """
// denom = 1 + a / J sum i^2 over the J channels around each, o = alpha i denom^-b + beta o; S elements a channel.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* o, Element* denom, const Element* i, double alpha, double beta, double each, double b,
    Index size, Index S, Index C, Index J)
{
    for (EACH(at, size)) {
        const Index c = at / S, first = c - J / 2;
        Wide sum[V];
        for (int v = 0; v < V; ++v) sum[v] = 0;
        for (Index z = first < 0 ? 0 : first; z < C && z < first + J; ++z) {
            const Pack<Element, V> xs = load<V>(i + at + (z - c) * S);
            #pragma unroll
            for (int v = 0; v < V; ++v) sum[v] += wide(xs.at[v]) * wide(xs.at[v]);
        }
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const Wide below = sum[v] * (Wide)each + 1;
            const Wide normal = wide(i[at + v]) * (Wide)pow(below, -(Wide)b) * (Wide)alpha;
            put(denom[at + v], below);
            put(o[at + v], beta == 0 ? normal : normal + (Wide)beta * wide(o[at + v]));
        }
    }
}
"""

LRN_BACK = """
// d = alpha (n - 2 a b / J i sum n i / denom) + beta d, n = e denom^-b, over the channels that have it among theirs.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* d, const Element* i, const Element* e, const Element* denom, double alpha, double beta, double each,
    double b, Index size, Index S, Index C, Index J)
{
    for (EACH(at, size)) {
        const Index c = at / S, last = c + J / 2;
        Wide shared[V], own[V];
        for (int v = 0; v < V; ++v) shared[v] = 0;
        for (Index z = last - J + 1 < 0 ? 0 : last - J + 1; z < C && z <= last; ++z) {
            const Index to = at + (z - c) * S;
            const Pack<Element, V> xs = load<V>(i + to), es = load<V>(e + to), ds = load<V>(denom + to);
            #pragma unroll
            for (int v = 0; v < V; ++v) {
                const Wide below = wide(ds.at[v]), n = wide(es.at[v]) * (Wide)pow(below, -(Wide)b);
                shared[v] += n * wide(xs.at[v]) / below;
                if (z == c) own[v] = n;
            }
        }
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const Wide error = (own[v] - wide(i[at + v]) * shared[v] * (Wide)each) * (Wide)alpha;
            put(d[at + v], beta == 0 ? error : error + (Wide)beta * wide(d[at + v]));
        }
    }
}
"""

POOLS, POOLS_BACK = (
    {op: fill(text, windows=WINDOWS, sizes=SIZES, axes=LAID_OUT, OP=op.upper()) for op in ("max", "avg", "l2")}
    for text in (POOL, POOL_BACK)
)


class ImagePrimitives(Launching):
    """Pooling, and normalization over neighboring channels, of contiguous arrays (C, D, H, W, N)."""

    def pool_fprop(self, layer: PoolLayer, i: Any, o: Any, argmax: Any, beta: float) -> None:
        """Pool; also into an ``o`` that is wider than the image, or into ``argmax`` alone."""
        arguments = [o, argmax, i, beta, layer.sizeO, layer.N, *geometry(layer)]
        types = {
            "Out": str(i.dtype if o is None else o.dtype),
            "Place": str("int32" if argmax is None else argmax.dtype),
        }
        self.over(POOLS[layer.op], i, layer.sizeO, layer.N, arguments, **types)

    def pool_bprop(self, layer: PoolLayer, i: Any, e: Any, d: Any, argmax: Any, alpha: float, beta: float) -> None:
        norms, dtype = None, e.dtype if e.dtype.itemsize > 2 else self.xp.float32
        if layer.op == "max" and argmax is None:
            argmax = self.scratch("places", layer.dimO, self.xp.empty(0, dtype=self.xp.int32))
            self.pool_fprop(layer, i, None, argmax, 0.0)
        elif layer.op == "l2":
            norms = self.scratch("norms", layer.dimO, self.xp.empty(0, dtype=dtype))
            self.pool_fprop(layer, i, norms, None, 0.0)
        sizes = [layer.sizeI, layer.N, *geometry(layer)]
        places = str("int32" if argmax is None else argmax.dtype)
        self.over(
            POOLS_BACK[layer.op], d, layer.sizeI, layer.N, [d, argmax, norms, i, e, alpha, beta, *sizes], Place=places
        )

    def lrn_fprop(
        self, layer: LRNLayer, i: Any, o: Any, denom: Any, alpha: float, beta: float, a: float, b: float
    ) -> None:
        S = layer.sizeI // layer.C
        self.over(LRN, o, layer.sizeI, S, [o, denom, i, alpha, beta, a / layer.J, b, layer.sizeI, S, layer.C, layer.J])

    def lrn_bprop(
        self, layer: LRNLayer, i: Any, e: Any, d: Any, denom: Any, alpha: float, beta: float, a: float, b: float
    ) -> None:
        S, each = layer.sizeI // layer.C, 2 * a * b / layer.J
        sizes = [layer.sizeI, S, layer.C, layer.J]
        self.over(LRN_BACK, d, layer.sizeI, S, [d, i, e, denom, alpha, beta, each, b, *sizes])


def geometry(layer: PoolLayer) -> list[int]:
    """Return the size, the count of windows, the window, stride and padding along each of C, D, H and W."""
    each = zip(layer.dimI, layer.dimO, layer.JTRS, layer.strides, layer.padding, strict=False)
    return [n for sizes in each for n in sizes]
