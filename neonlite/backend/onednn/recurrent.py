"""How does oneDNN go through time?  All steps of an LSTM or a GRU are one primitive, there, and one on the way back.

It reads sequences (T, N, F), with the features of a row side by side: they are copied there from (F, T N), and results
back. So are the weights, with the gates in oneDNN's order, as weights change in each step of training. Inputs, results
and what oneDNN notes for the way back are kept in one room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_uint, c_void_p
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.executors.pool import threads
from neonlite.backend.mkl.blas import address
from neonlite.backend.onednn.images import ALIGN, aligned
from neonlite.backend.onednn.library import (
    BACKWARD,
    BIAS,
    DIFF_DST,
    DIFF_SRC,
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
)
from neonlite.backend.onednn.norms import Norms
from neonlite.ops import c_strides

ERROR = 128  # from the number of an argument to that of its error
BY_NUMBER = 255  # to ask for the layout of an argument
THERE_BACK = 1, 2  # from the first step to the last, or from the last to the first
FEWEST = 5  # steps from which oneDNN is sooner than NumPy, step by step: both copies of the weights take their time
SINGLE: Any = np.empty(0, np.float32)
INDEX: Any = np.empty(0, np.intp)
WIDEST = 4  # times as many inputs as states: with more, to look words up may be much sooner


class Kind(NamedTuple):
    """How many states a kind of layer has, and which of our gates each of oneDNN's is.

    ``turned``: oneDNN's first gate is a GRU's that keeps the state, where ours changes it: 1 - s(z) = s(-z).
    """

    states: int
    order: tuple[int, ...]  # also from oneDNN's to ours
    turned: bool = False


KINDS = {"lstm": Kind(2, (0, 1, 3, 2)), "gru": Kind(1, (1, 0, 2), turned=True)}


class Way(NamedTuple):
    """A way through time: T steps of N rows, from F inputs to H states; ``back``: the last step comes first."""

    kind: str
    T: int
    N: int
    F: int
    H: int
    back: bool

    @property
    def gates(self) -> int:
        """How many vectors of H a step makes of its inputs."""
        return len(KINDS[self.kind].order)

    @property
    def flops(self) -> int:
        """The operations of the products; the errors and gradients of these take twice as many."""
        return 2 * self.T * self.N * self.gates * self.H * (self.F + self.H)


class Passage(NamedTuple):
    """A primitive; the copies of W_input and W_recur to its layouts, and those of their gradients back."""

    call: Call
    into: list[Call]
    out: list[Call]


class Sequences(Norms):
    """Images and sequences of float32 by oneDNN; what it has no fast way for is left to NumPy."""

    def recurrent(self, way: Sequence[Any], dtype: str) -> Way | None:
        """Return the way (kind, T, N, F, H, back) if oneDNN goes it sooner than NumPy, step by step; else None."""
        asked = Way(*way)
        if asked.kind not in KINDS or dtype != "float32" or asked.T < FEWEST or asked.F > WIDEST * asked.H:
            return None
        return asked if self._passage(there, asked, TRAINING) and self._passage(back, asked) else None

    def recurrent_room(self, way: Way) -> int:
        """Return how many numbers are kept from the way there to the way back."""
        return -(-sum(self._sizes(way)) // 4)

    def recurrent_fprop(
        self,
        way: Way,
        weights: Sequence[Any],
        first: Sequence[Any],
        last: Sequence[Any],
        kept: Any,
        x: Any,
        y: Any,
        words: Any = None,
    ) -> None:
        """Compute the results y (H, T N) of inputs x (F, T N), and the last states out of the first, each (N, H).

        ``weights``: W_input, W_recur and b, gate by gate. ``kept`` is a room for what is kept; None for inference.
        ``words``: where each column of x has a 1 and zeros, its place.
        """
        passage = self._passage(there, way, INFERENCE if kept is None else TRAINING)
        layouts = passage.call.layouts
        steps, inner = self._weights(way, passage, weights)
        if kept is None:
            xs, ys, *notes = [self._room(f"onednn {n}", layouts[n].nbytes) for n in (SRC, DST)]
        else:
            xs, ys, *notes = self._rooms(way, kept)
        if words is None:
            xs = self._in_steps(way, x, xs, steps)
        else:
            index = self.scratch("onednn index", (way.T * way.N,), INDEX)
            np.copyto(index, words.reshape(-1))
            self._show(xs, np.add(index, self._passage(starts, way), out=index), way.F)
        results = y if by_rows(y) else ys
        steps.append((passage.call, (xs, *first, *inner, results, *last, *notes)))
        if results is not y:
            steps.append((self._turn(way, y, False), (ys, y)))
        self._go(steps)

    def recurrent_bprop(
        self,
        way: Way,
        weights: Sequence[Any],
        first: Sequence[Any],
        last: Sequence[Any],
        kept: Any,
        x: Any,
        y: Any,
        error: Any,
        ends: Sequence[Any],
        starts: Sequence[Any],
        gradients: Sequence[Any],
        deltas: Any,
        alpha: float,
        beta: float,
    ) -> None:
        """Compute the gradients, the errors ``starts`` of the first states, and ``deltas = alpha dE/dx + beta deltas``.

        ``x`` and ``y`` are those of the way there, x None where there were words. ``error`` is that of the results,
        ``ends`` those of the last states. There may be no deltas, None.
        """
        passage, kind = self._passage(back, way), KINDS[way.kind]
        layouts = passage.call.layouts
        steps, inner = self._weights(way, passage, weights)
        xs, ys, notes = self._rooms(way, kept)
        xs, ys = x if x is not None and by_rows(x) else xs, y if by_rows(y) else ys
        numbers = DIFF_DST, DIFF_SRC, WEIGHTS + ERROR, WEIGHTS + ERROR + 1
        errors, ds, *learned = [self._room(f"onednn {n}", layouts[n].nbytes) for n in numbers]
        theirs = [self.scratch(f"onednn gradient {n}", g.shape, g) for n, g in enumerate(gradients)]
        learned.append(theirs[-1])
        for room in learned:
            room[...] = 0  # gradients are added to what is there
        errors = self._in_steps(way, error, errors, steps)
        result = deltas
        if deltas is not None and (alpha != 1 or beta != 0):
            result = self.scratch("result", deltas.shape, deltas)
        found = result if result is not None and by_rows(result) else ds
        forward = xs, *first, *inner, ys, *last, notes
        steps.append((passage.call, (*forward, found, *starts, *learned, errors, *ends)))
        steps += [(copy, pair) for copy, *pair in zip(passage.out, learned, theirs, strict=False)]
        if found is not result and result is not None:
            steps.append((self._turn(way, result, False), (ds, result)))
        self._go(steps)
        for given, gradient in zip(theirs, gradients, strict=True):
            sort(kind, given, gradient, kind.order[0])
        if result is not deltas:
            np.multiply(result, alpha, out=result)
            if beta != 0:
                np.add(result, np.multiply(deltas, beta, out=deltas), out=result)
            deltas[...] = result

    def _passage(self, make: Make, way: Way, *more: Any) -> Any:
        """Return a primitive of this thread with the copies around it; None when there is none."""
        return self._made(make, way, SINGLE, way, *more)

    def _turn(self, way: Way, x: Any, inside: bool) -> Any:
        """Return the copy of an array (rows, T N) to (T, N, rows), or back."""
        return self._passage(turned, way, x.shape[0], tuple(n // x.itemsize for n in x.strides), inside)

    def _in_steps(self, way: Way, x: Any, room: Any, steps: list[Step]) -> Any:
        """Return where an array (rows, T N) lies as (T, N, rows): there already, or in a room after one more step."""
        if by_rows(x):
            return x
        if x.dtype != np.float32 or min(x.strides) <= 0:  # which oneDNN does not read
            copy = self.scratch("onednn operand", x.shape, SINGLE)
            np.copyto(copy, x)
            x = copy
        steps.append((self._turn(way, x, True), (x, room)))
        return room

    def _sizes(self, way: Way) -> list[int]:
        """Return how many bytes the inputs, results and notes take that are kept, with room to begin a cache line."""
        layouts = self._passage(there, way, TRAINING).call.layouts
        return [layouts[n].nbytes + ALIGN for n in (SRC, DST, WORKSPACE)]

    def _rooms(self, way: Way, kept: Any) -> list[Any]:
        """Return the rooms for what is kept."""
        memory, ends = kept.reshape(-1).view(np.uint8), list(accumulate(self._sizes(way)))
        return [memory[start:end] for start, end in pairwise((0, *ends))]

    def _weights(self, way: Way, passage: Passage, weights: Sequence[Any]) -> tuple[list[Step], list[Any]]:
        """Return what copies the weights to where the primitive takes them, and these places."""
        layouts = passage.call.layouts
        sorted_ = [self.scratch(f"onednn gates {n}", W.shape, W) for n, W in enumerate(weights)]
        for W, out in zip(weights, sorted_, strict=True):
            sort(KINDS[way.kind], W, out, 0)
        rooms = [self._room(f"onednn {n}", layouts[n].nbytes) for n in (WEIGHTS, WEIGHTS + 1)]
        steps: list[Step] = [(copy, pair) for copy, *pair in zip(passage.into, sorted_, rooms, strict=False)]
        return steps, [*rooms, sorted_[-1]]

    def _go(self, steps: Sequence[Step]) -> None:
        """Run primitives one after another, each on arrays; those of bytes are rooms, and begin with a cache line."""
        scratch = self._room("onednn scratch", max(call.scratch.nbytes for call, _ in steps))
        self._run_all(steps, scratch)

    def _show(self, room: Any, index: Any, rows: int) -> None:
        """Write zeros, and ones at some places."""
        start = aligned(room) - address(room).value
        flat = room[start : start + index.size * rows * SINGLE.itemsize].view(np.float32)
        flat.fill(0)
        flat[index] = 1

    def _run_all(self, steps: Sequence[Step], scratch: Any) -> None:
        room = aligned(scratch)
        with steps[0][0].library.using(threads()):
            for call, arrays in steps:
                places = [aligned(x) if x.dtype == np.uint8 else address(x).value for x in arrays]
                call(*places, *(room,) * call.spare)


Make = Callable[..., Any]
Step = tuple[Call, Sequence[Any]]


def by_rows(x: Any) -> bool:
    """Tell whether an array (rows, T N) lies in memory as oneDNN's (T, N, rows) does."""
    return bool(x.dtype == np.float32 and x.flags.f_contiguous and x.flags.aligned)


def sort(kind: Kind, gates: Any, out: Any, first: int) -> None:
    """Put our gates into oneDNN's order, or oneDNN's into ours; ``first`` is where oneDNN's first gate comes then."""
    into = out.reshape(len(kind.order), -1)
    np.take(gates.reshape(into.shape), kind.order, axis=0, out=into, mode="clip")
    if kind.turned:
        np.negative(into[first], out=into[first])


# --- what is made ----------------------------------------------------------------------------------------------------


class Told:
    """A way as oneDNN is told of it."""

    def __init__(self, library: Library, way: Way) -> None:
        self.library, self.way = library, way
        T, N, F, H, gates = way.T, way.N, way.F, way.H, way.gates
        self.states = KINDS[way.kind].states
        state, bias = [dense(library, sizes).handle for sizes in ((1, 1, N, H), (1, 1, gates, H))]
        inner = [library.open((1, 1, n, gates, H)) for n in (F, H)]
        none = [None] * 2 * (way.kind == "lstm")  # it has no peepholes, and no projection
        x, h = (dense(library, (T, N, n)).handle for n in (F, H))
        self.arrays = [x, *[state] * self.states, *inner, *none, bias, h, *[state] * self.states]
        self.direction = THERE_BACK[way.back]

    def forward(self, purpose: int) -> Handle:
        """Return the description of the way there."""
        return self._described("forward", purpose, *self.arrays, c_uint(0))

    def backward(self) -> Handle:
        """Return the description of the way back; errors and gradients lie as what they are of."""
        return self._described("backward", BACKWARD, *self.arrays, *self.arrays, c_uint(0), self.forward(TRAINING))

    def _described(self, name: str, purpose: int, *args: Any) -> Handle:
        library, kind = self.library, self.way.kind
        args = library.engine, purpose, self.direction, *args, library.plain
        return library.make("primitive_desc", f"{kind}_{name}_primitive_desc_create", *args)

    def call(self, description: Handle, *more: int, back: bool = False) -> Call:
        """Return the primitive: it takes inputs, states, weights, results and states, then more, then their errors."""
        states = range(self.states)
        first, last = ([n + 1 + k for k in states] for n in (SRC, DST))
        numbers = [SRC, *first, WEIGHTS, WEIGHTS + 1, BIAS, DST, *last, *more]
        if back:
            numbers += [n + ERROR for n in numbers if n not in more]
        return Call(self.library, description, {n: self.layout(description, n) for n in numbers})

    def layout(self, description: Handle, number: int) -> Layout:
        """Return the layout of an argument."""
        library = self.library
        theirs = c_void_p(library.functions.dnnl_primitive_desc_query_md(description, BY_NUMBER, number))
        return Layout(library.functions, library.make("memory_desc", "memory_desc_clone", theirs))

    def gates(self, n: int) -> Layout:
        """Return the layout of weights of n inputs, gate by gate, as we have them."""
        gates, H = self.way.gates, self.way.H
        return self.library.layout((1, 1, n, gates, H), (gates * H * n, gates * H * n, 1, H * n, n))


def there(library: Library, way: Way, purpose: int) -> Passage:
    """Return the way there: from inputs, first states and weights to results and last states, and to notes."""
    told = Told(library, way)
    call = told.call(told.forward(purpose), *[WORKSPACE] * (purpose == TRAINING))
    wanted = zip((way.F, way.H), (WEIGHTS, WEIGHTS + 1), strict=True)
    return Passage(call, [library.reorder(told.gates(n), call.layouts[number]) for n, number in wanted], [])


def back(library: Library, way: Way) -> Passage:
    """Return the way back, which takes all that the way there had, and then errors and gradients."""
    told = Told(library, way)
    call = told.call(told.backward(), WORKSPACE, back=True)
    sides = list(zip((way.F, way.H), (WEIGHTS, WEIGHTS + 1), strict=True))
    into = [library.reorder(told.gates(n), call.layouts[number]) for n, number in sides]
    out = [library.reorder(call.layouts[number + ERROR], told.gates(n)) for n, number in sides]
    return Passage(call, into, out)


def turned(library: Library, way: Way, rows: int, strides: tuple[int, int], inside: bool) -> Call:
    """Return the copy of an array (rows, T N) to (T, N, rows), or back."""
    sizes = way.T, way.N, rows
    down, across = strides
    outer, inner = library.layout(sizes, (way.N * across, across, down)), dense(library, sizes)
    return library.reorder(outer, inner) if inside else library.reorder(inner, outer)


def starts(_: Library, way: Way) -> Any:
    """Return where the numbers of each row of (T, N, F) begin."""
    return np.arange(0, way.T * way.N * way.F, way.F)


def dense(library: Library, sizes: Sequence[int]) -> Layout:
    """Return the layout of an array in C's order."""
    return library.layout(sizes, c_strides(tuple(sizes)))
