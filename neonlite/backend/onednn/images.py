"""How does oneDNN work on images?  It convolves in a layout that it prefers, and pools in the one that is there.

oneDNN is fast where the maps of a pixel, or blocks of them, lie side by side, and has nothing but a slow loop for
(C, D, H, W, N): so images are copied to the layout that it prefers, and results back. Each copy transposes a matrix of
C*D*H*W by N, and takes a small part of the time of the convolution.

When images are pooled it does not matter which axis counts images, and which their maps. So (C, H, W, N) are C images
of H by W pixels with N maps, which lie side by side, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.executors.pool import threads
from neonlite.backend.mkl.blas import address
from neonlite.backend.onednn.library import (
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DST,
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
from neonlite.backend.primitives.geometry import ConvLayer, PoolLayer
from neonlite.backend.primitives.numpy_ import InPlace
from neonlite.backend.tensor import c_strides

FORMS = 1024  # primitives that a thread keeps
BLOCK = 16  # maps
COLORS = 3  # maps of a photograph, for which oneDNN has a way of its own
ALIGN = 64  # bytes of a cache line, with which arrays of oneDNN begin
DIRECT = 1  # to convolve by definition; other ways are less precise
POOLING = {"max": 0x1FF, "avg": 0x3FF}  # a mean is that of what lies inside the image
BYTES: Any = np.empty(0, np.uint8)
PLACES: dict[int, Any] = {1: BYTES, 4: np.empty(0, np.int32)}  # by bytes of a number


class Chain(NamedTuple):
    """A primitive and the copies around it; a copy is None where an array lies as the primitive takes it."""

    call: Call
    into: tuple[Call | None, ...]  # of each operand
    back: Call | None  # of the result, the last argument


class Images(InPlace):
    """Convolution and pooling of float32 by oneDNN; what it has no fast way for is left to NumPy."""

    # --- convolution ---

    def conv_fprop(self, layer: ConvLayer, i: Any, f: Any, o: Any, alpha: float, beta: float) -> None:
        """Compute ``o = alpha conv(i, f) + beta o``: (C, D, H, W, N), (C, T, R, S, K), (K, M, P, Q, N)."""
        if chain := self._convolution(fprop, layer, i):
            self._put(chain, (i, f), o, alpha, beta)
        else:
            super().conv_fprop(layer, i, f, o, alpha, beta)

    def conv_bprop(self, layer: ConvLayer, f: Any, e: Any, d: Any, alpha: float, beta: float) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do."""
        if chain := self._convolution(bprop, layer, e):
            self._put(chain, (f, e), d, alpha, beta)
        else:
            super().conv_bprop(layer, f, e, d, alpha, beta)

    def conv_update(self, layer: ConvLayer, i: Any, e: Any, u: Any, alpha: float, beta: float) -> None:
        """Compute ``u = alpha dE/df + beta u`` of the error e = dE/do."""
        if chain := self._convolution(update, layer, i):
            self._put(chain, (i, e), u, alpha, beta)
        else:
            super().conv_update(layer, i, e, u, alpha, beta)

    def _convolution(self, make: Make, layer: ConvLayer, like: Any) -> Chain | None:
        maps = layer.C
        if maps < FEWEST[make]:
            return None
        sizes = layer.dimI, layer.dimF, layer.dimO, layer.padding, layer.strides, layer.dilation
        return self._made(make, layer, like, sizes)

    # --- pooling ---

    def pool_fprop(self, layer: PoolLayer, i: Any, o: Any, argmax: Any, beta: float) -> None:
        """Compute ``o = pool(i) + beta o``; where not None, ``argmax`` takes the place of the first maximum."""
        kept = layer.op == "max" and argmax is not None
        chain = self._pooling(pool_with_places if kept else pool, layer, i)
        if not chain or (layer.op == "max" and not self._finite(i)):
            super().pool_fprop(layer, i, o, argmax, beta)
        elif kept:
            places = self._places(chain, layer, argmax)
            self._put(chain, (i, places), o, 1.0, beta)
            if places is not argmax:
                np.copyto(argmax, places, casting="unsafe")
        else:
            self._put(chain, (i,), o, 1.0, beta)

    def pool_bprop(self, layer: PoolLayer, i: Any, e: Any, d: Any, argmax: Any, alpha: float, beta: float) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do: max by ``argmax`` or the image i, l2 by i."""
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

    def _pooling(self, make: Make, layer: PoolLayer, like: Any) -> Chain | None:
        sizes = layer.dimI, layer.JTRS, layer.dimO, layer.padding, layer.strides, layer.op
        return self._made(make, layer, like, sizes)

    def _finite(self, i: Any) -> bool:
        """Tell whether there is no NaN and no infinity, which oneDNN's maximum passes over."""
        return bool(np.isfinite(i.min()) and np.isfinite(i.max()))  # np.dot would wake the threads of OpenBLAS

    def _places(self, chain: Chain, layer: PoolLayer, argmax: Any) -> Any:
        """Return an array for places in windows as oneDNN writes them: ``argmax``, if that will do."""
        size = chain.call.layouts[WORKSPACE].nbytes // layer.sizeO
        return argmax if argmax.itemsize == size else self.scratch("places", layer.dimO, PLACES[size])

    # --- how they run ---

    def _made(self, make: Make, layer: Any, like: Any, sizes: tuple[Any, ...], *more: Any) -> Chain | None:
        """Return the primitive of this thread for some sizes, made when first asked for; None when there is none."""
        library = found()
        if like.dtype != np.float32 or library is None:
            return None
        kept: dict[Any, Chain | None] = self.runtime.ledger.kept.__dict__.setdefault("onednn", {})
        key = make, sizes, more, min(threads(), library.most_threads)
        try:
            return kept[key]
        except KeyError:
            if len(kept) >= FORMS:
                kept.clear()
            try:
                with library.using(threads()):
                    kept[key] = make(library, layer, *more)
            except Unsupported:
                kept[key] = None
            return kept[key]

    def _put(self, chain: Chain, operands: Sequence[Any], out: Any, alpha: float, beta: float) -> None:
        """Write ``out = alpha result + beta out``."""
        result = out if alpha == 1 and beta == 0 else self.scratch("result", out.shape, out)
        call, into, back = chain
        copies = (*into, back)
        apart = [
            self._room(f"onednn {name}", layout.nbytes) if copy else None
            for (name, layout), copy in zip(call.layouts.items(), copies, strict=False)
        ]
        most = max(c.scratch.nbytes for c in (call, *copies) if c)
        self._run(chain, (*operands, result), apart, self._room("onednn scratch", most) if most else None)
        if result is not out:
            if alpha != 1:
                np.multiply(result, alpha, out=result)
            if beta != 0:
                np.add(result, np.multiply(out, beta, out=out), out=result)
            out[...] = result

    def _room(self, purpose: str, nbytes: int) -> Any:
        """Return so many bytes, which begin with a cache line, that are kept for a purpose."""
        return self.scratch(purpose, (nbytes + ALIGN,), BYTES)

    def _run(self, chain: Chain, arrays: Sequence[Any], apart: Sequence[Any], scratch: Any) -> None:
        """Run a primitive on operands and a result, each copied to or from a room of its own where there is one."""
        call, into, back = chain
        if not arrays[-1].flags.writeable:  # at which NumPy looks, and oneDNN does not
            raise ValueError("output array is read-only")
        users = [address(array).value for array in arrays]
        places = [user if room is None else aligned(room) for user, room in zip(users, apart, strict=True)]
        spare = (aligned(scratch),) if scratch is not None else ()
        with call.library.using(threads()):
            for copy, user, place in zip(into, users, places, strict=False):
                if copy:
                    copy(user, place, *spare[: copy.spare])
            call(*places, *spare[: call.spare])
            if back:
                back(places[-1], users[-1], *spare[: back.spare])


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


def chained(library: Library, description: Handle, users: dict[int, Layout]) -> Chain:
    """Return a primitive that takes its arguments, the last of which is its result, as they lie for the user."""
    call = library.primitive(description, *users)
    pairs = [(users[n], call.layouts[n]) for n in users]
    *into, back = (None if user.same(own) else (user, own) for user, own in pairs)
    copies = tuple(copy and library.reorder(*copy) for copy in into)
    return Chain(call, copies, library.reorder(*reversed(back)) if back else None)


class Convolution:
    """A convolution as oneDNN is told of it; depth is left out where it is 1.

    Where maps come in whole blocks oneDNN may choose the layout, and takes blocks of maps. It does so, too, where they
    do not, and fills the blocks up: there the maps of a pixel lie side by side, which is up to three times as fast.
    """

    def __init__(self, library: Library, layer: ConvLayer) -> None:
        self.library = library
        first = 2 if layer.D == layer.T == layer.M == 1 else 1  # of the axes that a filter slides along
        arrays = [(dim[0], *dim[first:]) for dim in (layer.dimI, layer.dimF, layer.dimO)]
        axes = (len(arrays[0]) - 1, *range(len(arrays[0]) - 1))  # (N, C, H, W), (K, C, R, S), (N, K, P, Q)
        self.images, self.filters, self.results = (in_order(library, sizes, axes) for sizes in arrays)
        self.open = [library.open([sizes[a] for a in axes]) for sizes in arrays]
        if layer.K % BLOCK or (layer.C % BLOCK and layer.C != COLORS):
            last = len(axes) - 1
            turned = [(sizes[-1], *sizes[1:-1], sizes[0]) for sizes in arrays]
            self.open[::2] = [in_order(library, turned[n], (0, last, *range(1, last))).handle for n in (0, 2)]
        apart = [n - 1 for n in layer.dilation]
        each = layer.strides, apart, layer.padding, layer.padding
        self.geometry = [numbers(along[first - 1 :]) for along in each]

    @property
    def forward(self) -> Handle:
        """The description of the forward pass, which oneDNN asks for to describe the others."""
        images, filters, results = self.open
        args = TRAINING, DIRECT, images, filters, None, results, *self.geometry, self.library.plain
        return self.library.describe("convolution_forward", self.library.engine, *args)

    def backward(self, name: str, *arrays: Any) -> Handle:
        """Return the description of a backward pass."""
        args = DIRECT, *arrays, *self.geometry, self.forward, self.library.plain
        return self.library.describe(f"convolution_backward_{name}", self.library.engine, *args)


def fprop(library: Library, layer: ConvLayer) -> Chain:
    """Return the results of images and filters."""
    made = Convolution(library, layer)
    return chained(library, made.forward, {SRC: made.images, WEIGHTS: made.filters, DST: made.results})


def bprop(library: Library, layer: ConvLayer) -> Chain:
    """Return the errors of images, of filters and the errors of results."""
    made = Convolution(library, layer)
    description = made.backward("data", *made.open)
    return chained(library, description, {WEIGHTS: made.filters, DIFF_DST: made.results, DIFF_SRC: made.images})


def update(library: Library, layer: ConvLayer) -> Chain:
    """Return the errors of filters, of images and the errors of results."""
    made = Convolution(library, layer)
    images, filters, results = made.open
    description = made.backward("weights", images, filters, None, results)
    return chained(library, description, {SRC: made.images, DIFF_DST: made.results, DIFF_WEIGHTS: made.filters})


class Windows:
    """A pooling as oneDNN is told of it: C images, of which N are the maps."""

    def __init__(self, library: Library, layer: PoolLayer) -> None:
        if layer.op not in POOLING or layer.J > 1 or layer.dimI[0] != layer.dimO[0] or layer.padding[0]:
            raise Unsupported(f"{layer!r} with op {layer.op!r} and a window of {layer.J} maps")
        self.library = library
        first = 2 if layer.D == layer.T == layer.M == 1 else 1
        self.arrays = [(dim[0], *dim[first:]) for dim in (layer.dimI, layer.dimO)]
        last = len(self.arrays[0]) - 1
        self.images, self.results = (in_order(library, sizes, (0, last, *range(1, last))) for sizes in self.arrays)
        each = zip(layer.DHW, layer.MPQ, layer.TRS, layer.strides[1:], layer.padding[1:], strict=True)
        after = [max(0, (m - 1) * stride + t - d - padding) for d, m, t, stride, padding in each]
        steps = layer.strides[1:], layer.TRS, (0, 0, 0), layer.padding[1:], after
        self.geometry = [numbers(along[first - 1 :]) for along in steps]
        self.op = POOLING[layer.op]

    def forward(self, kind: int) -> Handle:
        """Return the description of the forward pass, with or without places of maxima."""
        args = kind, self.op, self.images.handle, self.results.handle, *self.geometry, self.library.plain
        return self.library.describe("pooling_forward", self.library.engine, *args)

    def backward(self) -> Handle:
        """Return the description of the backward pass."""
        arrays = self.images.handle, self.results.handle
        args = self.op, *arrays, *self.geometry, self.forward(TRAINING), self.library.plain
        return self.library.describe("pooling_backward", self.library.engine, *args)


def pool(library: Library, layer: PoolLayer) -> Chain:
    """Return the maxima or means of images."""
    made = Windows(library, layer)
    return Chain(library.primitive(made.forward(INFERENCE), SRC, DST), (None,), None)


def pool_with_places(library: Library, layer: PoolLayer) -> Chain:
    """Return the maxima of images, and their places, which come second."""
    made = Windows(library, layer)
    return Chain(library.primitive(made.forward(TRAINING), SRC, WORKSPACE, DST), (None, None), None)


def unpool(library: Library, layer: PoolLayer) -> Chain:
    """Return the errors of images; of maxima, their places come second."""
    made = Windows(library, layer)
    arguments = (DIFF_DST, WORKSPACE, DIFF_SRC) if layer.op == "max" else (DIFF_DST, DIFF_SRC)
    return Chain(library.primitive(made.backward(), *arguments), (None,) * (len(arguments) - 1), None)


FEWEST: dict[Make, int] = {fprop: 2, bprop: 3, update: 2}  # maps of images; with fewer NumPy is faster
