"""How does a card pool images, and normalize them over channels?  A thread gathers what one element needs.

The way back gathers, too: a pixel asks the windows that have it. So nobody adds to what another thread adds to, and
the bits of a result are always the same.
"""

from __future__ import annotations

from typing import Any

from neonlite.backend.cuda.rooms import Rooms
from neonlite.backend.cuda.words import fill
from neonlite.backend.primitives.geometry import LRNLayer, PoolLayer
from neonlite.backend.stored import Images, emptied, may_take, read_images, written_images

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
// denom = 1 + a / J sum i^2 over the J channels around each, o = alpha i denom^-b + beta o. From an element to that of
// the next channel there are S: all of a channel, or 1 where images lie apart.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* o, Element* denom, const Element* i, double alpha, double beta, double each, double b,
    Index size, Index S, Index C, Index J)
{
    for (EACH(at, size)) {
        const Index c = at / S % C, first = c - J / 2;
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
        const Index c = at / S % C, last = c + J / 2;
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


class ImagePrimitives(Rooms):
    """Pooling, and normalization over neighboring channels, of images (C, D, H, W, N), or (N, D, H, W, C) in rooms."""

    def pool_fprop(self, layer: PoolLayer, i: Any, o: Any, argmax: Any, beta: float) -> None:
        """Pool; also into an ``o`` that is wider than the image, or into ``argmax`` alone."""
        layer.lies_apart = beta == 0 and self._pool_apart(layer, i, o, argmax)
        if not layer.lies_apart:
            self._pool(layer, read_images(i), written_images(o, beta), written_images(argmax), beta)

    def _pool_apart(self, layer: PoolLayer, i: Any, o: Any, argmax: Any) -> bool:
        """Pool images that lie apart, and leave the results apart; tell whether that could be done."""
        stored = i.apart if isinstance(i, Images) and goes_apart(layer) else None
        results = [o] if argmax is None else [o, argmax]
        if not stored or not all(may_take(x, [i, *(y for y in results if y is not x)]) for x in results):
            return False
        rooms = [emptied(x.tensor, x.form, self) for x in results]
        self._pool(layer, stored.room, rooms[0].room, rooms[1].room if argmax is not None else None, 0.0, apart=True)
        for x in rooms:
            x.end(in_order=False)
        return True

    def _pool(self, layer: PoolLayer, i: Any, o: Any, argmax: Any, beta: float, apart: bool = False) -> None:
        row = layer.C if apart else layer.N
        arguments = [o, argmax, i, beta, layer.sizeO, row, *geometry(layer, apart)]
        types = {
            "Out": str(i.dtype if o is None else o.dtype),
            "Place": str("int32" if argmax is None else argmax.dtype),
        }
        self.over(POOLS[layer.op], i, layer.sizeO, row, arguments, **types)

    def pool_bprop(self, layer: PoolLayer, i: Any, e: Any, d: Any, argmax: Any, alpha: float, beta: float) -> None:
        if not self._unpool_apart(layer, i, e, d, argmax, alpha, beta):
            i, e, argmax = (read_images(x) for x in (i, e, argmax))
            self._unpool(layer, i, e, written_images(d, beta), argmax, alpha, beta)

    def _unpool_apart(self, layer: PoolLayer, i: Any, e: Any, d: Any, argmax: Any, alpha: float, beta: float) -> bool:
        """Leave the errors of images apart, if those lay so when they were pooled; tell whether that could be done."""
        told = [] if layer.op == "avg" else [argmax if layer.op == "max" else i]  # what is asked beside the errors
        if not layer.lies_apart or alpha != 1 or beta != 0 or not may_take(d, [e, *told]):
            return False
        if not all(isinstance(x, Images) and x.apart for x in told):
            return False
        i, argmax = (x.apart.room if any(x is y for y in told) else None for x in (i, argmax))
        errors = self.apart("errors", e)
        room = emptied(d.tensor, d.form, self)
        self._unpool(layer, i, errors, room.room, argmax, alpha, beta, apart=True)
        room.end(in_order=False)
        return True

    def _unpool(
        self, layer: PoolLayer, i: Any, e: Any, d: Any, argmax: Any, alpha: float, beta: float, apart: bool = False
    ) -> None:
        norms, dtype = None, e.dtype if e.dtype.itemsize > 2 else self.xp.float32
        if layer.op == "max" and argmax is None:
            argmax = self.scratch("places", layer.dimO, self.xp.empty(0, dtype=self.xp.int32))
            self._pool(layer, i, None, argmax, 0.0)
        elif layer.op == "l2":
            norms = self.scratch("norms", layer.dimO, self.xp.empty(0, dtype=dtype))
            self._pool(layer, i, norms, None, 0.0, apart)
        row = layer.C if apart else layer.N
        sizes = [layer.sizeI, row, *geometry(layer, apart)]
        places = str("int32" if argmax is None else argmax.dtype)
        arguments = [d, argmax, norms, i, e, alpha, beta, *sizes]
        self.over(POOLS_BACK[layer.op], d, layer.sizeI, row, arguments, Place=places)

    def lrn_fprop(
        self, layer: LRNLayer, i: Any, o: Any, denom: Any, alpha: float, beta: float, a: float, b: float
    ) -> None:
        S, rooms = layer.sizeI // layer.C, []
        if beta == 0 and isinstance(i, Images) and i.apart and may_take(o, [i, denom]) and may_take(denom, [i, o]):
            rooms = [emptied(x.tensor, x.form, self) for x in (o, denom)]
            S, i, (o, denom) = 1, i.apart.room, (x.room for x in rooms)
        i, o, denom = read_images(i), written_images(o, beta), written_images(denom)
        self.over(LRN, o, layer.sizeI, S, [o, denom, i, alpha, beta, a / layer.J, b, layer.sizeI, S, layer.C, layer.J])
        for x in rooms:
            x.end(in_order=False)

    def lrn_bprop(
        self, layer: LRNLayer, i: Any, e: Any, d: Any, denom: Any, alpha: float, beta: float, a: float, b: float
    ) -> None:
        told, S, room = (i, denom), layer.sizeI // layer.C, None
        if beta == 0 and may_take(d, [e, *told]) and all(isinstance(x, Images) and x.apart for x in told):
            S, errors, (i, denom) = 1, self.apart("errors", e), (x.apart.room for x in told)
            room = emptied(d.tensor, d.form, self)
            e, d = errors, room.room
        i, e, denom, d = read_images(i), read_images(e), read_images(denom), written_images(d, beta)
        sizes = [layer.sizeI, S, layer.C, layer.J]
        self.over(LRN_BACK, d, layer.sizeI, S, [d, i, e, denom, alpha, beta, 2 * a * b / layer.J, b, *sizes])
        if room is not None:
            room.end(in_order=False)


def goes_apart(layer: PoolLayer) -> bool:
    """Tell whether each map is pooled alone, so that it does not matter where the others lie."""
    return layer.J == 1 and layer.C == layer.K and not layer.padding[0]


def geometry(layer: PoolLayer, apart: bool) -> list[int]:
    """Return the size, the count of windows, the window, stride and padding along each of C, D, H and W.

    Apart, N images stand where C maps do in order, and maps where images do.
    """
    each = list(zip(layer.dimI, layer.dimO, layer.JTRS, layer.strides, layer.padding, strict=False))
    if apart:
        each[0] = layer.N, layer.N, 1, 1, 0
    return [n for sizes in each for n in sizes]
