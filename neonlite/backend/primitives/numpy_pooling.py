"""How does NumPy pool?  Some ten thousand results at a time, which stay in the cache, in buffers that are kept.

What a place in the window reads is first brought together: NumPy is several times as fast on contiguous arrays, and
needs no buffers of its own for them. One thread does it all: the calls are short, and two would wait for each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from neonlite.backend.primitives.generic import Generic
from neonlite.backend.primitives.geometry import LRNLayer, PoolLayer, windows

ROOM = 1 << 16  # results in a piece: large enough that a call costs little, small enough for the cache
ALIGNED = 64  # columns that are normalized at a time, at least

Box = tuple[tuple[int, int], ...]  # from where to where along K, M, P and Q
Slices = tuple[slice, ...]

reach = lru_cache(4096)(windows)


class Piece:
    """Some results of a pooling, one after another in memory, with buffers of their shape to work in."""

    def __init__(self, layer: PoolLayer, box: Box, buffers: Sequence[Any]) -> None:
        self.layer, self.box = layer, box
        self.at = tuple(slice(*ends) for ends in box)
        shape = (*(last - first for first, last in box), layer.N)
        count = math.prod(shape)
        self.x, self.y, self.z, self.hit, self.place, *wide = (buffer[:count].reshape(shape) for buffer in buffers)
        self.number = wide[0] if wide else self.hit.view(np.uint8)

    def sides(self) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield size, results, window, stride and padding along each axis: a piece is a pooling with less padding."""
        layer = self.layer
        each = zip(layer.dimI, self.box, layer.JTRS, layer.strides, layer.padding, strict=False)
        for size, (first, last), window, stride, padding in each:
            yield size, last - first, window, stride, padding - first * stride

    def taps(self) -> list[tuple[int, Slices, Slices]]:
        """Return each place in the window: its number, where it lands, and what it reads."""
        _, T, R, S = self.layer.JTRS
        return [
            (((j * T + t) * R + r) * S + s, (k, m, p, q), (c, d, h, w))
            for (j, k, c), (t, m, d), (r, p, h), (s, q, w) in itertools.product(*(reach(*s) for s in self.sides()))
        ]

    def first(self, place: Any) -> None:
        """Fill an array with the first place of each window that lies inside the image."""
        _, T, R, S = self.layer.JTRS
        weights = (T * R * S, R * S, S, 1)
        numbers = [
            [max(0, padding - n * stride) * weight for n in range(count)]
            for (_, count, _, stride, padding), weight in zip(self.sides(), weights, strict=True)
        ]
        fill(place, numbers, sum)

    def counts(self, cells: Any) -> None:
        """Fill an array with the number of cells of each window that lie inside the image."""
        numbers = [
            [min(size, n * stride - pad + window) - max(0, n * stride - pad) for n in range(count)]
            for size, count, window, stride, pad in self.sides()
        ]
        fill(cells, numbers, math.prod)

    def gather(self, image: Any, to: Slices, of: Slices, rest: float) -> Any:
        """Return, in x, what a place in the window reads, and ``rest`` where that is outside the image."""
        source = image[of]
        if source.shape != self.x.shape:
            self.x[...] = rest
        self.x[to] = source
        return self.x

    def maxima(self, image: Any, best: Any, place: Any) -> None:
        """Put the maxima into ``best``, and the place of the first of each into ``place`` unless that is None."""
        taps = self.taps()
        best[...] = -np.inf
        if place is not None:
            self.first(place)
        for tap, to, of in taps:
            x = self.gather(image, to, of, -np.inf)
            if place is not None:  # places grow from tap to tap: the last that was better is the largest of them
                np.greater(x, best, out=self.hit)
                if self.number.itemsize > 1:  # else it shows hit
                    np.copyto(self.number, self.hit)
                np.multiply(self.number, tap, out=self.number)
                np.maximum(place, self.number, out=place)
            np.maximum(best, x, out=best)
        if place is not None and np.not_equal(best, best, out=self.hit).any():
            for tap, to, of in reversed(taps):  # a NaN is the maximum, although it is not greater than anything
                x = self.gather(image, to, of, 0)
                np.copyto(place, tap, where=np.not_equal(x, x, out=self.hit))

    def totals(self, image: Any, total: Any) -> None:
        """Put the sum over each window, for l2 of squares, into an array."""
        total[...] = 0
        for _, to, of in self.taps():
            x = self.gather(image, to, of, 0)
            np.add(total, np.square(x, out=x) if self.layer.op == "l2" else x, out=total)

    def only(self, errors: Any, place: Any, tap: int) -> Any:
        """Return, in y, the errors that go to one place in the window, and 0 for the others."""
        number = np.equal(place, tap, out=self.hit).view(np.int8)
        bits = self.y.view(f"i{self.y.itemsize}")
        np.copyto(bits, np.multiply(number, -1, out=number))  # all bits, or none: infinity times 0 would be NaN
        np.bitwise_and(bits, errors.view(bits.dtype), out=bits)
        return self.y

    def send(self, errors: Any, image: Any, to: Slices, of: Slices, alone: bool) -> None:
        """Add errors to what a place in the window reads; ``alone``: it is 0."""
        if not alone:
            self.x[to] = image[of]
            errors = np.add(self.x, errors, out=self.x)
        image[of] = errors[to]


class PoolingInPieces(Generic):
    """Pooling, and normalization over neighboring channels, of contiguous NumPy arrays (C, D, H, W, N)."""

    def pool_fprop(self, layer: PoolLayer, i: Any, o: Any, argmax: Any, beta: float) -> None:
        """Compute ``o = pool(i) + beta o``; where not None, ``argmax`` takes the place of the first maximum."""
        for piece in self._pieces(layer, i):
            out = o[piece.at]
            pooled = out if beta == 0 else piece.y
            if layer.op == "max":
                piece.maxima(i, pooled, None if argmax is None else piece.place)
                if argmax is not None:
                    argmax[piece.at] = piece.place
            else:
                piece.totals(i, pooled)
                if layer.op == "avg":
                    piece.counts(piece.x)
                    np.divide(pooled, piece.x, out=pooled)
                else:
                    np.sqrt(pooled, out=pooled)
            if beta != 0:
                np.add(pooled, np.multiply(out, beta, out=out), out=out)

    def pool_bprop(self, layer: PoolLayer, i: Any, e: Any, d: Any, argmax: Any, alpha: float, beta: float) -> None:
        """Compute ``d = alpha dE/di + beta d`` of the error e = dE/do: max by ``argmax`` or the image i, l2 by i."""
        alone = beta == 0 and all(window <= stride for window, stride in zip(layer.JTRS, layer.strides, strict=True))
        if beta == 0:
            d[...] = 0
        else:
            np.multiply(d, beta, out=d)
        for piece in self._pieces(layer, e):
            errors, place = self._errors(piece, i, e[piece.at], alpha), piece.place
            if layer.op == "max" and argmax is None:
                piece.maxima(i, piece.y, place)
            elif layer.op == "max":
                place = argmax[piece.at]
            for tap, to, of in piece.taps():
                sent = errors
                if layer.op == "max":
                    sent = piece.only(errors, place, tap)
                elif layer.op == "l2":
                    sent = np.multiply(piece.gather(i, to, of, 0), errors, out=piece.y)
                piece.send(sent, d, to, of, alone)

    def _errors(self, piece: Piece, i: Any, e: Any, alpha: float) -> Any:
        """Return what each window has to send: its error, over the cells that share it, or over the norm."""
        errors = e
        if piece.layer.op == "avg":
            piece.counts(piece.x)
            errors = np.divide(e, piece.x, out=piece.z)
        elif piece.layer.op == "l2":
            piece.totals(i, piece.y)
            norm = np.sqrt(piece.y, out=piece.y)
            errors = np.divide(e, norm, out=piece.z)
            np.copyto(errors, 0, where=np.equal(norm, 0, out=piece.hit))
        return errors if alpha == 1 else np.multiply(errors, alpha, out=piece.z)

    def _pieces(self, layer: PoolLayer, like: Any) -> Iterator[Piece]:
        """Yield the pieces of a result, with buffers for floats as in an array, hits, and places in the window."""
        most = math.prod(last - first for first, last in next(boxes(layer.dimO))) * layer.N
        places = [np.uint8(0)] if math.prod(layer.JTRS) <= 256 else [np.int32(0)] * 2
        likes = [like, like, like, np.bool_(0), *places]
        buffers = [self.scratch(f"pooling {n}", (most,), x) for n, x in enumerate(likes)]
        return (Piece(layer, box, buffers) for box in boxes(layer.dimO))

    # --- local response normalization ---

    def lrn_fprop(
        self, layer: LRNLayer, i: Any, o: Any, denom: Any, alpha: float, beta: float, a: float, b: float
    ) -> None:
        """Compute ``o = alpha i denom^-b + beta o``, ``denom = 1 + a / J sum i^2`` over J neighboring channels."""
        for (image, out, divisor), (x, y, total) in self._columns(layer, (i, o, denom), 3):
            np.copyto(x, image)
            neighbors(layer, np.square(x, out=y), total)
            np.multiply(total, a / layer.J, out=total)
            divisor[...] = np.add(total, 1, out=total)
            total **= -b  # with the short ways that np.power does not know, as to the square root
            finish(out, np.multiply(x, total, out=x), alpha, beta, y)

    def lrn_bprop(
        self, layer: LRNLayer, i: Any, e: Any, d: Any, denom: Any, alpha: float, beta: float, a: float, b: float
    ) -> None:
        """Compute ``d = alpha (n - 2 a b / J i sum n i / denom) + beta d``, ``n = e denom^-b``, of e = dE/do."""
        for (image, error, out, divisor), (x, y, n, total) in self._columns(layer, (i, e, d, denom), 4):
            np.copyto(y, divisor)
            np.copyto(n, y)
            n **= -b
            np.copyto(x, error)
            np.multiply(x, n, out=n)
            np.copyto(x, image)
            np.divide(np.multiply(n, x, out=total), y, out=y)
            neighbors(layer, y, total, back=True)
            np.multiply(np.multiply(x, total, out=total), 2 * a * b / layer.J, out=total)
            finish(out, np.subtract(n, total, out=n), alpha, beta, x)

    def _columns(self, layer: LRNLayer, arrays: Sequence[Any], many: int) -> Iterator[tuple[list[Any], list[Any]]]:
        """Yield some columns of the arrays as (C, columns), and as many buffers of that shape as are asked for."""
        count = layer.sizeI // layer.C
        wide = min(max(ALIGNED, ROOM // layer.C), count)
        flat = [array.reshape(layer.C, count) for array in arrays]
        buffers = [self.scratch(f"pooling {n}", (layer.C * wide,), arrays[0]) for n in range(many)]
        for start in range(0, count, wide):
            columns = slice(start, min(start + wide, count))
            shape = layer.C, columns.stop - start
            yield [x[:, columns] for x in flat], [x[: math.prod(shape)].reshape(shape) for x in buffers]


# --- where the pieces are, and what is done to one of them ---


def boxes(shape: tuple[int, ...]) -> Iterator[Box]:
    """Yield parts of an array (K, M, P, Q, N) that lie in a row, of ROOM elements or fewer if one column is fewer."""
    axis = next((axis for axis in range(3) if math.prod(shape[axis + 1 :]) <= ROOM), 3)
    many = max(1, ROOM // math.prod(shape[axis + 1 :]))
    for before in itertools.product(*(range(n) for n in shape[:axis])):
        for start in range(0, shape[axis], many):
            ends = start, min(start + many, shape[axis])
            yield (*((n, n + 1) for n in before), ends, *((0, n) for n in shape[axis + 1 : 4]))


def fill(values: Any, numbers: list[list[int]], combine: Callable[[Iterator[int]], int]) -> None:
    """Fill an array with what ``combine`` makes of a number for each step along each of its first axes."""
    runs: list[list[tuple[int, slice]]] = []  # a number, and the steps for which it stays
    for along in numbers:
        edges = [n for n in range(len(along)) if n == 0 or along[n] != along[n - 1]]
        runs.append([(along[a], slice(a, b)) for a, b in itertools.pairwise([*edges, len(along)])])
    for run in itertools.product(*runs):
        values[tuple(steps for _, steps in run)] = combine(number for number, _ in run)


def neighbors(layer: LRNLayer, x: Any, total: Any, back: bool = False) -> None:
    """Put the sum over the J channels around each into ``total``; ``back``: over those that have it among theirs."""
    total[...] = 0
    for _, to, of in reach(layer.C, layer.C, layer.J, 1, layer.J // 2):
        to, of = (of, to) if back else (to, of)
        np.add(total[to], x[of], out=total[to])


def finish(out: Any, x: Any, alpha: float, beta: float, held: Any) -> None:
    """Write ``out = alpha x + beta out``, by way of x and a buffer."""
    np.multiply(x, alpha, out=x)
    if beta != 0:
        np.copyto(held, out)
        np.add(x, np.multiply(held, beta, out=held), out=x)
    out[...] = x
