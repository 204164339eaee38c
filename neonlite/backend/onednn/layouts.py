"""How do images stay in the layout that oneDNN prefers?  As arrays that are copied to their own order when it is read.

What a convolution writes is left as oneDNN wrote it; the pooling or convolution that comes next takes it as it lies,
and nothing is copied between them. Whoever reads the array in its own order has it copied there first, once; and what
was copied to a layout is kept, as the backward pass wants it again, until somebody writes to the array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from neonlite.backend.executors.pool import threads
from neonlite.backend.mkl.blas import address
from neonlite.backend.onednn.images import ALIGN, Chain, Images, Windows, aligned, bprop, fprop, in_order, update
from neonlite.backend.onednn.library import (
    DIFF_DST,
    DIFF_SRC,
    DST,
    SRC,
    TRAINING,
    WORKSPACE,
    Call,
    Layout,
    Library,
    library,
)
from neonlite.backend.primitives.geometry import ConvLayer, PoolLayer

SINGLE: Any = np.empty(0, np.float32)


class Stored:
    """An array (C, D, H, W, N), and a room for its numbers in another layout; one of both is current, or both are."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.is_current = True  # whether the array is; the room is, where it has a layout
        self.layout: Layout | None = None
        self.room: Any = np.empty(0, np.uint8)
        self.copies: dict[tuple[Layout, Layout], Call] = {}
        self.order: Layout | None = None  # of the array
        self.of: Layout | None = None  # of places of maxima: that of the images

    dtype = property(lambda self: self.array.dtype, doc="That of the numbers.")

    def copy(self, source: Layout, target: Layout, *addresses: int) -> None:
        """Copy from one layout to another."""
        if (source, target) not in self.copies:
            self.copies[source, target] = library().reorder(source, target)
        with library().using(threads()):
            self.copies[source, target](*addresses)

    def read(self) -> Any:
        """Return the array, current."""
        if not self.is_current and self.layout and self.order:
            self.copy(self.layout, self.order, aligned(self.room), address(self.array).value)
            self.is_current = True
        return self.array

    def write(self) -> Any:
        """Return the array, of which every element is to be written."""
        self.is_current, self.layout = True, None
        return self.array

    def lie(self, layout: Layout, order: Layout) -> int:
        """Return the address of the numbers in a layout; ``order`` is that of the array."""
        if layout.same(order):
            return int(address(self.read()).value)
        if not (self.layout and self.layout.same(layout)):
            source = address(self.read()).value
            self.copy(order, layout, source, self.take(layout, order))
            self.is_current = True
        return aligned(self.room)

    def take(self, layout: Layout, order: Layout) -> int:
        """Return the address where all numbers are to be written in a layout."""
        if layout.same(order):
            return int(address(self.write()).value)
        if self.room.nbytes < layout.nbytes + ALIGN:
            self.room = np.empty(layout.nbytes + ALIGN, np.uint8)
        self.layout, self.order, self.is_current = layout, order, False
        return aligned(self.room)

    def each(self, change: bool = False) -> Any:
        """Return the numbers as they lie: what is done to each alone can be done there. ``change``: it will be."""
        if self.layout is None or self.layout.nbytes != self.array.nbytes:  # with blocks that are not full
            array = self.read()
            return (self.write() if change else array).reshape(-1)
        self.is_current &= not change
        first = aligned(self.room) - int(address(self.room).value)
        return self.room[first : first + self.layout.nbytes].view(self.dtype)


def read(x: Any) -> Any:
    """Return an array, current."""
    return x.read() if isinstance(x, Stored) else x


def written(x: Any, beta: float = 0.0) -> Any:
    """Return an array to be written, current where what it holds counts."""
    if isinstance(x, Stored):
        if beta != 0:
            x.read()
        return x.write()
    return x


class Kept(Images):
    """The primitives of ``Images``, of which images, results and errors may be ``Stored``, and stay as they lie."""

    def conv_fprop(self, layer: ConvLayer, i: Any, f: Any, o: Any, alpha: float, beta: float) -> None:
        if not self._stay(self._convolution(fprop, layer, i), (i, f), (o,), alpha, beta):
            super().conv_fprop(layer, read(i), f, written(o, beta), alpha, beta)

    def conv_bprop(self, layer: ConvLayer, f: Any, e: Any, d: Any, alpha: float, beta: float) -> None:
        if not self._stay(self._convolution(bprop, layer, e), (f, e), (d,), alpha, beta):
            super().conv_bprop(layer, f, read(e), written(d, beta), alpha, beta)

    def conv_update(self, layer: ConvLayer, i: Any, e: Any, u: Any, alpha: float, beta: float) -> None:
        chain = self._convolution(update, layer, i)
        if not self._stay(chain, (i, e), (u,), alpha, beta):
            super().conv_update(layer, read(i), read(e), u, alpha, beta)

    def pool_fprop(self, layer: PoolLayer, i: Any, o: Any, argmax: Any, beta: float) -> None:
        lies = i.layout if all(isinstance(x, Stored) for x in (i, o, argmax)) else None
        chain = self._pooling_within(lies, layer, argmax, back=False)
        if chain and self._finite(i.each()) and self._stay(chain, (i,), (o, argmax), 1.0, beta):
            argmax.of = lies
        else:
            super().pool_fprop(layer, read(i), written(o, beta), written(argmax), beta)

    def pool_bprop(self, layer: PoolLayer, i: Any, e: Any, d: Any, argmax: Any, alpha: float, beta: float) -> None:
        lies = argmax.of if all(isinstance(x, Stored) for x in (e, d, argmax)) and argmax.layout else None
        chain = self._pooling_within(lies, layer, argmax, back=True)
        if not self._stay(chain, (e, argmax), (d,), alpha, beta):
            super().pool_bprop(layer, read(i), read(e), written(d, beta), read(argmax), alpha, beta)

    def _pooling_within(self, lies: Layout | None, layer: PoolLayer, argmax: Any, back: bool) -> Chain | None:
        """Return the pooling of images that lie in a layout; None where they lie in order."""
        if lies is None or layer.op != "max" or argmax.dtype != np.uint8 or math.prod(layer.TRS) > 255:
            return None
        sizes = layer.dimI, layer.JTRS, layer.dimO, layer.padding, layer.strides
        return self._made(pooling_within, layer, SINGLE, sizes, lies, back)

    def _stay(
        self, chain: Chain | None, operands: Sequence[Any], results: Sequence[Any], alpha: float, beta: float
    ) -> bool:
        """Run a primitive where one of its arrays is ``Stored``, and leave results as they lie; tell whether it did."""
        arrays = *operands, *results
        if not chain or alpha != 1 or beta != 0 or not any(isinstance(x, Stored) for x in arrays):
            return False
        call, places = chain.call, []
        copies = *chain.into, chain.back
        spare = [aligned(self._room("onednn scratch", call.scratch.nbytes))] if call.spare else []
        with call.library.using(threads()):
            for n, (name, layout) in enumerate(call.layouts.items()):
                x, copy = arrays[n], copies[n] if n < len(copies) else None
                if isinstance(x, Stored):
                    place = (x.lie if n < len(operands) else x.take)(layout, chain.orders[n])
                else:  # filters, or their errors
                    user = place = int(address(x).value)
                    if copy:
                        place = aligned(self._room(f"onednn {name}", layout.nbytes))
                        if n < len(operands):
                            copy(user, place)
                places.append(place)
            call(*places, *spare)
            if chain.back and not isinstance(results[-1], Stored):
                chain.back(places[-1], user)
        return True


def pooling_within(library: Library, layer: PoolLayer, layout: Layout, back: bool) -> Chain:
    """Return the maxima of images that lie in some layout; ``back``: the errors of such images."""
    windows = Windows(library, layer)
    axes = (len(windows.arrays[0]) - 1, *range(len(windows.arrays[0]) - 1))  # N, C and the others
    images, results = (in_order(library, sizes, axes) for sizes in windows.arrays)
    places = in_order(library, windows.arrays[1], axes, "uint8")
    windows.images = layout
    windows.results = Layout(library.functions, library.open([windows.arrays[1][a] for a in axes]))
    forward = windows.forward(TRAINING)
    windows.results = library.layout_of(forward, DST)
    if back:
        call = library.primitive(windows.backward(), DIFF_DST, WORKSPACE, DIFF_SRC)
        return Chain(call, (), None, (results, places, images))
    return Chain(library.primitive(forward, SRC, DST, WORKSPACE), (), None, (images, results, places))
