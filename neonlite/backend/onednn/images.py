"""How does oneDNN work on images?  It convolves where the maps of a pixel lie side by side, and pools as they lie.

oneDNN has nothing but a slow loop for (C, D, H, W, N): so images are copied to (N, D, H, W, C), in a room that goes
with their memory, and results are left there, for the next convolution or pooling; ``backend/stored.py`` sees to those
who want them in order. What has no such room is copied there and back.

When images are pooled it does not matter which axis counts images, and which their maps. So (C, H, W, N) are C images
of H by W pixels with N maps, which lie side by side, and nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_float
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.executors.pool import share, threads
from neonlite.backend.executors.quiet import Silence
from neonlite.backend.mkl.blas import address
from neonlite.backend.onednn.library import (
    BIAS,
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DST,
    DTYPES,
    INFERENCE,
    SRC,
    TRAINING,
    WEIGHTS,
    WORKSPACE,
    Call,
    Handle,
    Layout,
    Library,
    Unsupported,
    found,
    numbers,
)
from neonlite.backend.primitives.geometry import ConvLayer, LRNLayer, PoolLayer
from neonlite.backend.primitives.numpy_ import InPlace
from neonlite.backend.stored import Form, brought, emptied, form_of, may_take
from neonlite.backend.stored import Images as Apart
from neonlite.backend.stored import read_images as read
from neonlite.backend.stored import written_images as written
from neonlite.ops import c_strides

FORMS = 1024  # primitives that a thread keeps
WIDE = 4096  # numbers that are added to at a time
ROWS = 64  # how many are added to each of them
LARGE = 1 << 23  # bytes of images that are copied in pieces
NEAR = 1 << 11  # bytes of a map in such a piece
ALIGN = 64  # bytes of a cache line, with which arrays of oneDNN begin
DIRECT = 1  # to convolve by definition; other ways are less precise
POOLING = {"max": 0x1FF, "avg": 0x3FF}  # a mean is that of what lies inside the image
SUM = 0x2FFF4  # of reductions
SHARED = 1 << 20  # numbers that are added up in several threads
PARTS = 64  # of which each thread takes some
BYTES: Any = np.empty(0, np.uint8)
PLACES: dict[int, Any] = {1: BYTES, 4: np.empty(0, np.int32)}  # by bytes of a number


class Chain(NamedTuple):
    """A primitive, and how its arguments are brought to it: filters by copies, images as they lie apart, or as is."""

    call: Call
    apart: tuple[int, ...] = ()  # the arguments that are images (N, D, H, W, C)
    copies: dict[int, Call] = {}  # by argument; that of the result copies back  # noqa: RUF012


class Images(InPlace):
    """Convolution and pooling of float32 by oneDNN; what it has no fast way for is left to NumPy.

    Images are arrays, or ``stored.Images``, which may lie apart.
    """

    has_rooms = True

    # --- convolution ---

    def conv_fprop(self, layer: ConvLayer, i: Any, f: Any, o: Any, alpha: float, beta: float) -> None:
        """Compute ``o = alpha conv(i, f) + beta o``: (C, D, H, W, N), (C, T, R, S, K), (K, M, P, Q, N)."""
        if chain := self._convolution(fprop, layer, i):
            self._put(chain, (i, f), o, alpha, beta)
        else:
            super().conv_fprop(layer, read(i), f, written(o, beta), alpha, beta)

    def conv_with_bias(self, layer: ConvLayer, i: Any, f: Any, o: Any, bias: Any, relu: bool) -> bool:
        """Compute ``o = conv(i, f) + bias``, with (K,) of these, if oneDNN has a fast way; tell whether it has."""
        chain = self._convolution(fprop, layer, i, True)
        if chain:
            self._put(chain, (i, f), o, more=bias)
        return chain is not None

    def conv_bprop(self, layer: ConvLayer, f: Any, e: Any, d: Any, alpha: float, beta: float) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do."""
        if chain := self._convolution(bprop, layer, e):
            self._put(chain, (f, e), d, alpha, beta)
        else:
            super().conv_bprop(layer, f, read(e), written(d, beta), alpha, beta)

    def conv_update(self, layer: ConvLayer, i: Any, e: Any, u: Any, alpha: float, beta: float) -> None:
        """Compute ``u = alpha dE/df + beta u`` of the error e = dE/do."""
        if chain := self._convolution(update, layer, i):
            self._put(chain, (i, e), u, alpha, beta)
        else:
            super().conv_update(layer, read(i), read(e), u, alpha, beta)

    def sum_maps(self, room: Any, out: Any) -> None:
        """Put the sum of each map of images that lie apart into an array (C,).

        Pixels are added up a few thousand numbers at a time, as NumPy is slow where rows are short, and a few rows to
        each of the sums, so that errors stay small. oneDNN would sum along with ``conv_update``, and take half as long
        again for both.
        """
        maps, pixels = len(out), room.size // len(out)
        side = max(1, min(WIDE // maps, pixels))
        whole = pixels // side * side * maps
        rows = room[:whole].reshape(-1, side * maps)
        sums = self.scratch("sums", (-(-len(rows) // ROWS) + 1, side * maps), out)

        def add(numbers: Iterator[int]) -> None:
            with Silence():
                for n in numbers:
                    np.add.reduce(rows[n * ROWS : (n + 1) * ROWS], axis=0, out=sums[n])

        parts = len(sums) - 1
        if room.size < SHARED:
            add(iter(range(parts)))
        else:
            share(add, parts)
        sums[-1] = 0
        sums[-1, : room.size - whole] = room[whole:]
        first = sums[0]
        for part in sums[1:]:
            np.add(first, part, out=first)
        while side > 1:  # in pairs
            half = side // 2
            np.add(first[: half * maps], first[(side - half) * maps : side * maps], out=first[: half * maps])
            side -= half
        out[...] = first[:maps]

    def _convolution(self, make: Make, layer: ConvLayer, like: Any, *with_bias: bool) -> Chain | None:
        maps = layer.C
        if maps < FEWEST[make]:
            return None
        sizes = layer.dimI, layer.dimF, layer.dimO, layer.padding, layer.strides, layer.dilation
        return self._made(make, layer, like, sizes, *with_bias)

    # --- pooling ---

    def pool_fprop(self, layer: PoolLayer, i: Any, o: Any, argmax: Any, beta: float) -> None:
        """Compute ``o = pool(i) + beta o``; where not None, ``argmax`` takes the place of the first maximum."""
        kept = layer.op == "max" and argmax is not None
        make = pool_with_places if kept else pool
        layer.lies_apart = beta == 0 and self._pool_apart(make, layer, i, [argmax, o] if kept else [o])
        if layer.lies_apart:
            return
        i, o = read(i), written(o, beta)
        argmax = None if argmax is None else written(argmax)
        chain = self._pooling(make, layer, i)
        if not chain or (layer.op == "max" and not self._finite(i)):
            super().pool_fprop(layer, i, o, argmax, beta)
        elif kept:
            places = self._places(chain, layer, argmax)
            self._put(chain, (i, places), o, 1.0, beta)
            if places is not argmax:
                np.copyto(argmax, places, casting="unsafe")
        else:
            self._put(chain, (i,), o, 1.0, beta)

    def _pool_apart(self, make: Make, layer: PoolLayer, i: Any, results: list[Any]) -> bool:
        """Pool images that lie apart, and leave the results apart; tell whether that could be done."""
        stored = i.apart if isinstance(i, Apart) else None
        if not stored or not all(may_take(x, [i, *(y for y in results if y is not x)]) for x in results):
            return False
        chain = self._pooling(make, layer, i, True)
        if not chain or not self._same_places(chain, layer, results[:-1]):
            return False
        if layer.op == "max" and not self._finite(stored.room):
            return False
        rooms = [emptied(x.tensor, x.form, self) for x in results]
        self._run(chain.call, (stored.room, *(x.room for x in rooms)))
        for x in rooms:
            x.end(in_order=False)
        return True

    def pool_bprop(self, layer: PoolLayer, i: Any, e: Any, d: Any, argmax: Any, alpha: float, beta: float) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do: max by ``argmax`` or the image i, l2 by i."""
        if self._unpool_apart(layer, e, d, argmax, alpha, beta):
            return
        i, e, argmax = (None if x is None else read(x) for x in (i, e, argmax))
        d = written(d, beta)
        chain = None if layer.op == "max" and argmax is None else self._pooling(unpool, layer, e)
        if not chain:
            super().pool_bprop(layer, i, e, d, argmax, alpha, beta)
        elif layer.op == "max":
            places = self._places(chain, layer, argmax)
            if places is not argmax:
                np.copyto(places, argmax, casting="unsafe")
            self._put(chain, (e, places), d, alpha, beta)
        else:
            self._put(chain, (e,), d, alpha, beta)

    def _unpool_apart(self, layer: PoolLayer, e: Any, d: Any, argmax: Any, alpha: float, beta: float) -> bool:
        """Leave the errors of images apart, if those lay so when they were pooled; tell whether that could be done."""
        places = [argmax] if layer.op == "max" else []
        if not layer.lies_apart or alpha != 1 or beta != 0 or not may_take(d, [e, *places]):
            return False
        if not all(isinstance(x, Apart) and x.apart for x in places):
            return False
        chain = self._pooling(unpool, layer, e, True)
        if not chain or not self._same_places(chain, layer, places):
            return False
        self._put(chain, (e, *places), d)
        return True

    def _pooling(self, make: Make, layer: PoolLayer, like: Any, *apart: bool) -> Chain | None:
        sizes = layer.dimI, layer.JTRS, layer.dimO, layer.padding, layer.strides, layer.op
        return self._made(make, layer, like, sizes, *apart)

    def _finite(self, i: Any) -> bool:
        """Tell whether there is no NaN and no infinity, which oneDNN's maximum passes over: nor is there in the sum."""
        numbers, rows = i.reshape(-1), parts(i.size)
        if numbers.size >= SHARED and (call := self._sums((rows, numbers.size // rows))):
            sums = self.scratch("sums", (rows,), numbers)
            self._run(call, (numbers, sums))
            numbers = sums
        return math.isfinite(np.einsum("i->", numbers))  # several times as fast as np.sum, which is more precise

    def _sums(self, shape: tuple[int, int]) -> Call | None:
        """Return the sums of rows; None when oneDNN has none."""
        call: Call | None = self._ready("onednn sums", adding, shape, shape)
        return call

    def _same_places(self, chain: Chain, layer: PoolLayer, places: Sequence[Any]) -> bool:
        """Tell whether oneDNN writes places in windows as numbers of as many bytes."""
        return all(x.dtype.itemsize * layer.sizeO == chain.call.layouts[WORKSPACE].nbytes for x in places)

    def _places(self, chain: Chain, layer: PoolLayer, argmax: Any) -> Any:
        """Return an array for places in windows as oneDNN writes them: ``argmax``, if that will do."""
        size = chain.call.layouts[WORKSPACE].nbytes // layer.sizeO
        return argmax if argmax.itemsize == size else self.scratch("places", layer.dimO, PLACES[size])

    # --- normalization over channels, which NumPy does in order ---

    def lrn_fprop(self, layer: LRNLayer, i: Any, o: Any, denom: Any, alpha: float, beta: float, *more: float) -> None:
        """Compute ``denom = 1 + a / J sum i^2``, ``o = alpha i denom^-b + beta o``."""
        super().lrn_fprop(layer, read(i), written(o, beta), written(denom), alpha, beta, *more)

    def lrn_bprop(
        self, layer: LRNLayer, i: Any, e: Any, d: Any, denom: Any, alpha: float, beta: float, *more: float
    ) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do."""
        super().lrn_bprop(layer, read(i), read(e), written(d, beta), read(denom), alpha, beta, *more)

    # --- how they run ---

    def _made(self, make: Make, layer: Any, like: Any, sizes: tuple[Any, ...], *more: Any) -> Chain | None:
        """Return the primitive of this thread for some sizes, made when first asked for; None when there is none."""
        return self._ready("onednn", make, layer, sizes, more) if like.dtype == np.float32 else None

    def _ready(self, kind: str, make: Any, what: Any, sizes: tuple[Any, ...], more: tuple[Any, ...] = ()) -> Any:
        library = found()
        if library is None:
            return None
        kept: dict[Any, Any] = self.runtime.ledger.kept.__dict__.setdefault(kind, {})
        key = make, sizes, more, min(threads(), library.most_threads)
        try:
            return kept[key]
        except KeyError:
            if len(kept) >= FORMS:
                kept.clear()
            try:
                with library.using(threads()):
                    kept[key] = make(library, what, *more)
            except Unsupported:
                kept[key] = None
            return kept[key]

    def _put(
        self, chain: Chain, operands: Sequence[Any], out: Any, alpha: float = 1.0, beta: float = 0.0, more: Any = None
    ) -> None:
        """Write ``out = alpha result + beta out``. ``more`` is a last argument, which is taken as it is."""
        array = out.array if isinstance(out, Apart) else out
        if not array.flags.writeable:  # at which NumPy looks, and oneDNN does not
            raise ValueError("output array is read-only")
        numbers, whole = list(chain.call.layouts), alpha == 1 and beta == 0
        n = numbers[len(operands)]
        arrays = [self._brought(chain, *pair) for pair in zip(numbers, operands, strict=False)]
        last = () if more is None else (more,)
        if whole and n in chain.apart and may_take(out, operands):
            stored = emptied(out.tensor, out.form, self)
            self._run(chain.call, (*arrays, stored.room, *last))
            stored.end(in_order=False)
            return
        written(out, beta)
        result = array if whole else self.scratch("result", array.shape, array)
        copied = n in chain.apart or n in chain.copies
        place = self._row(n, chain.call.layouts[n].nbytes, array.dtype) if copied else result
        self._run(chain.call, (*arrays, place, *last))
        if n in chain.apart:
            self.turn(form_of(array), result, place, True)
        elif copied:
            self._run(chain.copies[n], (place, result))
        if result is not array:
            if alpha != 1:
                np.multiply(result, alpha, out=result)
            if beta != 0:
                np.add(result, np.multiply(array, beta, out=array), out=result)
            array[...] = result

    def _brought(self, chain: Chain, n: int, x: Any) -> Any:
        """Return an operand as the primitive takes it."""
        if n in chain.apart:
            return self._images(n, x)
        if n not in chain.copies:
            return x
        place = self._row(n, chain.call.layouts[n].nbytes, x.dtype)
        self._run(chain.copies[n], (x, place))
        return place

    def _images(self, n: int, x: Any) -> Any:
        """Return images as they lie apart, copied there unless they do: to the room of their memory, or to one here."""
        if isinstance(x, Apart) and (stored := brought(x.tensor, x.form, self)):
            return stored.room
        array = read(x)
        place = self._row(n, array.nbytes, array.dtype)
        self.turn(form_of(array), array, place, False)
        return place

    # --- rooms ---

    def room(self, like: Any) -> tuple[Any, Any]:
        """Return a row of as many elements as another, and its entry in the ledger."""
        nbytes = like.nbytes + ALIGN
        more = "images that lie apart", nbytes, lambda: self.xp.empty(nbytes, dtype=BYTES.dtype)
        made, entry = self.runtime.taken("workspaces", *more)
        return self._aligned(made, like.nbytes, like.dtype), entry

    def turn(self, form: Form, array: Any, room: Any, back: bool) -> None:
        """Copy images from (C, D, H, W, N) to a room, or back."""
        pixels = piece(form, array.dtype.itemsize)
        more = pixels, array.dtype, back
        if call := self._ready("onednn copies", turning, form, form, more):
            steps = form.images * pixels * array.dtype.itemsize, form.maps * pixels * array.dtype.itemsize
            order = slice(None, None, -1 if back else 1)
            self._run(call, (array, room)[order], steps[order], form.pixels // pixels)
        else:
            apart, images = room.reshape(form[::-1]), self.xp.permute_dims(array.reshape(form), (2, 1, 0))
            np.copyto(images, apart) if back else np.copyto(apart, images)

    def _row(self, n: int, nbytes: int, dtype: Any) -> Any:
        """Return a row of so many bytes that is kept for an argument."""
        return self._aligned(self._room(f"onednn {n}", nbytes), nbytes, dtype)

    def _room(self, purpose: str, nbytes: int) -> Any:
        """Return so many bytes, which begin with a cache line, that are kept for a purpose."""
        return self.scratch(purpose, (nbytes + ALIGN,), BYTES)

    def _aligned(self, room: Any, nbytes: int, dtype: Any) -> Any:
        """Return the elements of a room, which begin with a cache line."""
        start = self._start(room)
        return room[start : start + nbytes].view(dtype)

    def _start(self, room: Any) -> int:
        """Return where in a room the first cache line begins."""
        return -int(address(room).value) % ALIGN

    def _run(self, call: Call, arrays: Sequence[Any], steps: Sequence[int] = (), times: int = 1) -> None:
        """Run a primitive on arrays; several times, with so many bytes from each place to the next."""
        scratch = self._room("onednn scratch", call.scratch.nbytes) if call.spare else None
        self._execute(call, arrays, scratch, steps, times)

    def _execute(self, call: Call, arrays: Sequence[Any], scratch: Any, steps: Sequence[int], times: int) -> None:
        spare = () if scratch is None else (aligned(scratch),)
        places = [address(x).value for x in arrays]
        with call.library.using(threads()):
            call(*places, *spare)
            for k in range(1, times):
                call(*(place + k * step for place, step in zip(places, steps, strict=True)), *spare)


Make = Callable[..., Chain]


def aligned(room: Any) -> int:
    """Return the first address in a room that begins a cache line."""
    start: int = address(room).value
    return start + -start % ALIGN


# --- what is made ----------------------------------------------------------------------------------------------------


def in_order(library: Library, sizes: Sequence[int], axes: Sequence[int], dtype: str = "float32") -> Layout:
    """Return the layout of an array that lies in C's order, with its axes told in another."""
    strides = c_strides(tuple(sizes))
    return library.layout([sizes[a] for a in axes], [strides[a] for a in axes], dtype)


def piece(form: Form, itemsize: int) -> int:
    """Return how many pixels are copied at a time: all, unless images are too many for the processor's cache.

    Then oneDNN goes from page to page of memory, twice as slowly as with a few pixels at a time.
    """
    if math.prod(form) * itemsize < LARGE:
        return form.pixels
    most = max(1, NEAR // (form.images * itemsize))
    return next(n for n in range(min(most, form.pixels), 0, -1) if form.pixels % n == 0)


def turning(library: Library, form: Form, pixels: int, dtype: Any, back: bool) -> Call:
    """Return the copy of some pixels of images (maps, pixels, images) to (images, pixels, maps), or back."""
    if dtype.name not in DTYPES:
        raise Unsupported(f"a copy of {dtype}")
    sizes, wide = (form.images, pixels, form.maps), form.pixels
    images = library.layout(sizes, (1, form.images, wide * form.images), dtype.name)
    apart = library.layout(sizes, (wide * form.maps, form.maps, 1), dtype.name)
    return library.reorder(*((apart, images) if back else (images, apart)))


def parts(size: int) -> int:
    """Return into how many parts of one size numbers are cut, for threads to share."""
    return next(n for n in range(PARTS, 0, -1) if size % n == 0)


def adding(library: Library, shape: Sequence[int]) -> Call:
    """Return the sums of rows."""
    rows, sums = library.layout(shape, (shape[1], 1)), library.layout((shape[0], 1), (1, 1))
    nothing = c_float(0), c_float(0)  # of what norms would take
    args = library.engine, SUM, rows.handle, sums.handle, *nothing, library.plain
    return Call(library, library.describe("reduction", *args), {SRC: rows, DST: sums})


class Convolution:
    """A convolution as oneDNN is told of it; depth is left out where it is 1.

    The maps of a pixel lie side by side, which is as fast as the blocks of maps that oneDNN would choose, or faster,
    however many maps there are. How filters lie is for oneDNN to choose.
    """

    def __init__(self, library: Library, layer: ConvLayer, with_bias: bool = False) -> None:
        self.library = library
        first = 2 if layer.D == layer.T == layer.M == 1 else 1  # of the axes that a filter slides along
        inner, (C, *window, K) = slice(first, 4), (layer.dimF[0], *layer.dimF[first:])
        self.images, self.results = (
            self.apart((dim[-1], *dim[inner], dim[0])) for dim in (layer.dimI, layer.dimO)
        )  # (N, C, H, W), which lie as (N, H, W, C)
        last = len(window) + 1
        self.filters = in_order(library, (C, *window, K), (last, *range(last)))  # (K, C, R, S)
        self.bias = library.layout((K,), (1,)) if with_bias else None
        apart = [n - 1 for n in layer.dilation]
        each = layer.strides, apart, layer.padding, layer.padding
        self.geometry = [numbers(along[first - 1 :]) for along in each]
        self.arrays = self.images.handle, library.open((K, C, *window)), self.bias and self.bias.handle

    def apart(self, sizes: Sequence[int]) -> Layout:
        """Return the layout of images (N, H, W, C)."""
        last = len(sizes) - 1
        return in_order(self.library, sizes, (0, last, *range(1, last)))

    @property
    def forward(self) -> Handle:
        """The description of the forward pass, which oneDNN asks for to describe the others."""
        args = TRAINING, DIRECT, *self.arrays, self.results.handle, *self.geometry, self.library.plain
        return self.library.describe("convolution_forward", self.library.engine, *args)

    def backward(self, name: str, *arrays: Any) -> Handle:
        """Return the description of a backward pass."""
        args = DIRECT, *arrays, *self.geometry, self.forward, self.library.plain
        return self.library.describe(f"convolution_backward_{name}", self.library.engine, *args)

    def chain(self, description: Handle, images: Sequence[int], filters: int, *arguments: int) -> Chain:
        """Return a primitive with these arguments; filters are copied to where it takes them, or from there."""
        known = {BIAS: self.bias} if self.bias else None
        call = self.library.primitive(description, *arguments, known=known)
        pair = self.filters, call.layouts[filters]
        if pair[0].same(pair[1]):
            return Chain(call, tuple(images))
        copy = self.library.reorder(*(pair if filters == WEIGHTS else reversed(pair)))
        return Chain(call, tuple(images), {filters: copy})


def fprop(library: Library, layer: ConvLayer, with_bias: bool = False) -> Chain:
    """Return the results of images and filters, to which a bias is added."""
    made = Convolution(library, layer, with_bias)
    return made.chain(made.forward, (SRC, DST), WEIGHTS, SRC, WEIGHTS, DST, *(BIAS,) * with_bias)


def bprop(library: Library, layer: ConvLayer) -> Chain:
    """Return the errors of images, of filters and the errors of results."""
    made = Convolution(library, layer)
    images, filters, _ = made.arrays
    description = made.backward("data", images, filters, made.results.handle)
    return made.chain(description, (DIFF_DST, DIFF_SRC), WEIGHTS, WEIGHTS, DIFF_DST, DIFF_SRC)


def update(library: Library, layer: ConvLayer) -> Chain:
    """Return the errors of filters, of images and the errors of results."""
    made = Convolution(library, layer)
    description = made.backward("weights", *made.arrays, made.results.handle)
    return made.chain(description, (SRC, DIFF_DST), DIFF_WEIGHTS, SRC, DIFF_DST, DIFF_WEIGHTS)


class Windows:
    """A pooling as oneDNN is told of it: C images, of which N are the maps; or N images with C maps, if they lie so."""

    def __init__(self, library: Library, layer: PoolLayer, apart: bool) -> None:
        if layer.op not in POOLING or layer.J > 1 or layer.dimI[0] != layer.dimO[0] or layer.padding[0]:
            raise Unsupported(f"{layer!r} with op {layer.op!r} and a window of {layer.J} maps")
        self.library = library
        first = 2 if layer.D == layer.T == layer.M == 1 else 1
        ends = (-1, 0) if apart else (0, -1)
        arrays = [(dim[ends[0]], *dim[first:4], dim[ends[1]]) for dim in (layer.dimI, layer.dimO)]
        last = len(arrays[0]) - 1
        self.images, self.results = (in_order(library, sizes, (0, last, *range(1, last))) for sizes in arrays)
        each = zip(layer.DHW, layer.MPQ, layer.TRS, layer.strides[1:], layer.padding[1:], strict=True)
        after = [max(0, (m - 1) * stride + t - d - padding) for d, m, t, stride, padding in each]
        steps = layer.strides[1:], layer.TRS, (0, 0, 0), layer.padding[1:], after
        self.geometry = [numbers(along[first - 1 :]) for along in steps]
        self.op = POOLING[layer.op]
        self.apart = apart

    def chain(self, description: Handle, *arguments: int) -> Chain:
        """Return a primitive with these arguments."""
        return Chain(self.library.primitive(description, *arguments), arguments if self.apart else ())

    def forward(self, kind: int) -> Handle:
        """Return the description of the forward pass, with or without places of maxima."""
        args = kind, self.op, self.images.handle, self.results.handle, *self.geometry, self.library.plain
        return self.library.describe("pooling_forward", self.library.engine, *args)

    def backward(self) -> Handle:
        """Return the description of the backward pass."""
        arrays = self.images.handle, self.results.handle
        args = self.op, *arrays, *self.geometry, self.forward(TRAINING), self.library.plain
        return self.library.describe("pooling_backward", self.library.engine, *args)


def pool(library: Library, layer: PoolLayer, apart: bool = False) -> Chain:
    """Return the maxima or means of images."""
    made = Windows(library, layer, apart)
    return made.chain(made.forward(INFERENCE), SRC, DST)


def pool_with_places(library: Library, layer: PoolLayer, apart: bool = False) -> Chain:
    """Return the maxima of images, and their places, which come second."""
    made = Windows(library, layer, apart)
    return made.chain(made.forward(TRAINING), SRC, WORKSPACE, DST)


def unpool(library: Library, layer: PoolLayer, apart: bool = False) -> Chain:
    """Return the errors of images; of maxima, their places come second."""
    made = Windows(library, layer, apart)
    arguments = (DIFF_DST, WORKSPACE, DIFF_SRC) if layer.op == "max" else (DIFF_DST, DIFF_SRC)
    return made.chain(made.backward(), *arguments)


FEWEST: dict[Make, int] = {fprop: 2, bprop: 3, update: 2}  # maps of images; with fewer NumPy is faster
