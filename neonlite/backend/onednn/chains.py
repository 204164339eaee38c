"""Which ops does oneDNN do in one pass?  A chain: each op takes what the one before it gives, and another operand.

NumPy reads and writes memory in every op. oneDNN writes machine code for all of them at once, which holds a number in a
register meanwhile; all but exp, tanh and the logistic function come out with the same bits, though of 0.0 and -0.0 the
larger and the smaller one may be either. A chain takes its operands and ``out``, which may be one of them. It runs in
one thread, where whoever calls shares out blocks; or ``shared``, in several of OpenMP, which wake up a hundred times as
fast as those of Python and do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import c_float
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.executors.fusion import EFFORT
from neonlite.backend.executors.pool import threads
from neonlite.backend.mkl.blas import address
from neonlite.backend.onednn.functions import EXP, LOGISTIC, LOWEST, Function
from neonlite.backend.onednn.library import DST, GIVEN, INFERENCE, SRC, Call, Handle, Layout, Library, Unsupported
from neonlite.ops import Shape, c_strides

LONGEST = 16  # ops of a chain
KEPT = 1024  # chains
GRAIN = 1 << 15  # elements times cheap ops, at least, for each thread
ARITHMETIC = {"add": 0x1FFF0, "mul": 0x1FFF1, "div": 0x1FFF4, "sub": 0x1FFF5}
BOUNDS = {"maximum": 0x1FFF2, "minimum": 0x1FFF3}
BINARY = ARITHMETIC | BOUNDS
# oneDNN's functions, each with two numbers of its own
UNARY = {"tanh": (0x21, 0, 0), "sqr": (0x23, 0, 0), "abs": (0x24, 0, 0), "sqrt": (0x25, 0, 0), "rint": (0x32, 0, 0)}
UNARY |= {"sig": (LOGISTIC, 0, 0), "exp": (EXP, 0, 0), "reciprocal": (0x30, 1, -1)}
SECOND, POST_OP = 2, 1 << 15  # arguments: the second operand, and the n-th op of those that come after
LARGE, ZERO, ONE, MINUS, OUT = -5, -4, -3, -2, -1  # operands: the numbers 2^75, 0, 1 and -1, and the result
TINY, HUGE = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))

# 1 where x > 0, else 0, as oneDNN's own comparisons take a NaN for larger: a NaN is 0 here, and twice 2^75 lifts the
# smallest number above 1
RISING = [("maximum", ZERO), ("mul", LARGE), ("mul", LARGE), ("minimum", ONE)]
MANY = {"neg": [("mul", MINUS)], "rising": RISING, "falling": [("mul", MINUS), *RISING]}  # ops that are several

# each op in NumPy's words: what comes before it, the other operand, {z} the result
SPELLED = {
    "add": "add({}, {}, {{z}})",
    "mul": "multiply({}, {}, {{z}})",
    "div": "divide({}, {}, {{z}})",
    "sub": "subtract({}, {}, {{z}})",
    "maximum": "maximum({}, {}, out={{z}})",
    "minimum": "minimum({}, {}, out={{z}})",
    "neg": "multiply({}, MINUS, {{z}})",
    "reciprocal": "divide(ONE, {}, {{z}})",
    "rising": "greater({}, 0, {{z}})",
    "falling": "less({}, 0, {{z}})",
    "sqr": "square({}, {{z}})",
    "abs": "absolute({}, {{z}})",
    "sqrt": "sqrt({}, {{z}})",
    "rint": "rint({}, {{z}})",
    "tanh": "tanh({}, {{z}})",
    "exp": "exp({}, {{z}})",
    "sig": "multiply({}, MINUS, {{z}}); exp({{z}}, {{z}}); add(ONE, {{z}}, {{z}}); divide(ONE, {{z}}, {{z}})",
}
WORDS: dict[str, Any] = {"ONE": np.float32(1), "MINUS": np.float32(-1)}
WORDS |= {name: getattr(np, name) for name in ("add", "multiply", "divide", "subtract", "maximum", "minimum")}
WORDS |= {name: getattr(np, name) for name in ("square", "absolute", "sqrt", "rint", "tanh", "exp", "greater", "less")}

Array = np.ndarray[Any, Any]


class Link(NamedTuple):
    """An op of a chain. What comes before it is its first operand, and ``operand`` is the number of its second.

    ``turned``: the other way round. Before the first op comes operand 0.
    """

    op: str
    operand: int | None = None
    turned: bool = False

    def words(self, before: str) -> str:
        """Return it in NumPy's words, with the operands {0}, {1} ... and the result {z} left open."""
        if self.operand is None:
            return SPELLED[self.op].format(before)
        pair = before, f"{{{self.operand}}}"
        return SPELLED[self.op].format(*(reversed(pair) if self.turned else pair))

    def steps(self) -> list[tuple[str, int | None]]:
        """Return what oneDNN does: y - x is -x + y, with the same bits, as it has no other way."""
        if self.op in MANY:
            return list(MANY[self.op])
        if self.turned and self.op == "sub":
            return [("mul", MINUS), ("add", self.operand)]
        return [(self.op, self.operand)]


def begins(op: str, number: bool) -> bool:
    """Tell whether a chain may begin with an op, whose second operand, if it has one, is a ``number``.

    Of a NaN and something else oneDNN's bounds are the second operand: what is bounded has to come in once more.
    """
    return op != "exp" and (op in ARITHMETIC or op in UNARY or op in MANY or (op in BOUNDS and number))


def continues(links: Sequence[Link], op: str, turned: bool, binary: bool, multiple: bool) -> bool:
    """Tell whether a chain may go on with an op, which takes what comes before as its second operand if ``turned``.

    ``multiple``: what comes before is one, by numbers, of the other operand, so it is NaN where that is.
    """
    if op == "exp":
        return len(links) == 1 and links[0].op == "sub"
    if op in BOUNDS:
        return multiple
    return op in ARITHMETIC and not (turned and op == "div") if binary else op in UNARY or op in MANY


def spelled(links: Iterable[Link]) -> str:
    """Return a chain in NumPy's words, one ufunc after another, with the operands and the result left open."""
    return "; ".join(link.words("{z}" if n else "{0}") for n, link in enumerate(links))


def taking(links: Iterable[Link]) -> list[tuple[str, int]]:
    """Return the links that have another operand: op, and its number."""
    return [(link.op, link.operand) for link in links if link.operand is not None]


class Made(NamedTuple):
    """A primitive for a chain: where its arguments lie, in operands or, None, at an address; numbers have a room."""

    call: Call
    places: list[tuple[int | None, int]]
    room: Array


class Chain(Function):
    """A chain of float32 by oneDNN, where operands and result are contiguous; NumPy does the rest.

    Some of its ``count`` operands are numbers. ``exp`` comes second, behind a difference.
    """

    def __init__(self, links: tuple[Link, ...], count: int, numbers: frozenset[int]) -> None:
        names = [f"x{n}" for n in range(count)]
        lines = spelled(links).format(*names, z="z").split("; ")
        scope = dict(WORDS)
        exec("\n    ".join([f"def words({', '.join(names)}, z):", *lines]), scope)
        super().__init__(0, 0, self._by_numpy)
        self.words = scope["words"]
        self.links, self.count, self.numbers = links, count, numbers
        self.arrays = [*(n for n in range(count) if n not in numbers), OUT]
        self.late = {n for _, n in taking(links[1:])} - numbers  # operands that are read late
        self.work = sum(EFFORT.get(link.op, 1) for link in links)
        self.exponential = any(link.op == "exp" for link in links)
        last = max((n for n, link in enumerate(links) if link.op in BOUNDS), default=-1)
        least = {"mul": TINY} | dict.fromkeys(BOUNDS, 0.0)  # of numbers that a bound, or what it bounds, depends on
        self.limits = [(n, least[op]) for op, n in taking(links[: last + 1]) if op in least and n in numbers]

    def __call__(self, *arrays: Any) -> None:
        """Put what the chain makes of all but the last into the last, in one thread."""
        self.run(1, arrays)

    def shared(self, *arrays: Any) -> None:
        """Do so in as many threads as it is worth."""
        self.run(max(1, min(threads(), arrays[OUT].size * self.work // GRAIN)), arrays)

    def run(self, threads: int, arrays: Sequence[Any]) -> None:
        """Put what the chain makes of all but the last into the last."""
        made = self.made(self.key(*arrays))
        if made is None or not self.fits(*arrays):
            self.plain(*arrays)
            return
        call, places, room = made
        for n in self.numbers:
            room[n] = arrays[n]
        where = [start if n is None else address(arrays[n]).value for n, start in places]
        if self.held.alone:
            call(*where)
        else:
            with call.library.using(threads):
                call(*where)

    def made(self, key: tuple[Shape, ...]) -> Made | None:
        """Return the primitive of this thread for the shapes of operands and result; None when there is none."""
        try:
            made: Made | None = self.held.calls[key]
        except (AttributeError, KeyError):
            made = self._made(key)
        return made

    def alone(self, shapes: tuple[Shape, ...]) -> bool:
        """Tell whether oneDNN can do all of it, whatever the numbers, for the shapes of operands and result."""
        return not self.exponential and self.made(shapes) is not None

    def key(self, *arrays: Any) -> tuple[Shape, ...]:
        """Return the shapes of the operands that are arrays, and of the result."""
        return tuple([arrays[n].shape for n in self.arrays])

    def fits(self, *arrays: Any) -> bool:
        """Tell whether oneDNN can do it: the exponential function of no NaN, and of nothing too low.

        Bounds, and what multiplies before, are neither NaN nor make one.
        """
        for n in self.arrays:
            flags = arrays[n].flags
            if not (flags.c_contiguous and flags.aligned):
                return False
        if not arrays[OUT].flags.writeable:
            return False
        for n, least in self.limits:  # in a loop, as a generator takes a microsecond
            if not least <= abs(arrays[n]) <= HUGE:
                return False
        if self.exponential:
            low, high = np.minimum.reduce(arrays[0], axis=None), np.maximum.reduce(arrays[1], axis=None)
            return bool(low - high >= LOWEST)  # a comparison with NaN is false
        return True

    def make(self, library: Library, shapes: tuple[Shape, ...]) -> Made:
        """Return the primitive for some shapes."""
        if not library.precise and any(link.op in ("exp", "sig") for link in self.links):
            raise Unsupported(f"oneDNN {library.version}: exp and the logistic function without AVX2")
        layouts = dict(zip(self.arrays, laid_out(library, shapes), strict=True))
        room = np.zeros(self.count - LARGE, np.float32)
        room[LARGE], room[ONE], room[MINUS] = 2.0**75, 1, -1
        start, single = address(room).value, laid_out(library, [(1,), shapes[OUT]])[0]
        places: list[tuple[int | None, int]] = []
        arguments: dict[int, Layout] = {}

        def taken(argument: int, n: int) -> Handle:
            """Note where an argument lies, and return how."""
            places.append((n, 0) if n in layouts else (None, start + n % len(room) * room.itemsize))
            arguments[argument] = layouts.get(n, single)
            return arguments[argument].handle

        (op, second), *others = self._steps()
        if second is None and not others:
            source, result = taken(SRC, 0), taken(DST, OUT)
            function, alpha, beta = UNARY[op]
            args = INFERENCE, function, source, result, c_float(alpha), c_float(beta), library.plain
            return Made(
                Call(library, library.describe("eltwise_forward", library.engine, *args), arguments), places, room
            )
        if second is None:  # what comes first has two operands
            others, op, second = [(op, None), *others], "mul", ONE
        pair = BINARY[op], taken(SRC, 0), taken(SECOND, second)
        after = library.make("post_ops", "post_ops_create")
        for count, (op_after, n) in enumerate(others, 1):
            if n is None:
                function, alpha, beta = UNARY[op_after]
                library.call("post_ops_append_eltwise", after, function, c_float(alpha), c_float(beta))
            else:
                library.call("post_ops_append_binary", after, BINARY[op_after], taken(POST_OP * count | SECOND, n))
        attributes = library.make("primitive_attr", "primitive_attr_create")
        library.call("primitive_attr_set_scratchpad_mode", attributes, GIVEN)
        library.call("primitive_attr_set_post_ops", attributes, after)
        description = library.describe("binary", library.engine, *pair, taken(DST, OUT), attributes)
        call = Call(library, description, arguments)
        if call.spare:
            raise Unsupported(f"oneDNN {library.version}: a chain that needs room to work in")
        return Made(call, places, room)

    def _steps(self) -> list[tuple[str, int | None]]:
        """Return what oneDNN does. What a chain begins to bound comes in again, so that a NaN stays one."""
        steps = [step for link in self.links for step in link.steps()]
        if self.links[0].op in BOUNDS:
            steps.insert(1, (self.links[0].op, 0))
        return steps

    def _by_numpy(self, *arrays: Any) -> None:
        """Do the ops one after another; apart from the result, where an operand is read again that lies there."""
        out = arrays[OUT]
        apart = any(np.may_share_memory(arrays[n], out) for n in self.late)
        z = np.empty_like(out) if apart else out
        self.words(*arrays[:OUT], z)
        if apart:
            np.copyto(out, z)


@lru_cache(KEPT)
def chain(links: tuple[Link, ...], count: int, numbers: frozenset[int]) -> Chain:
    """Return the chain of some links: one for all who ask."""
    return Chain(links, count, numbers)


def laid_out(library: Library, shapes: Sequence[Shape]) -> list[Layout]:
    """Return how contiguous arrays lie, each repeated along axes of 1 to be as large as the last."""
    return [library.layout(shape, c_strides(shape)) for shape in alike(shapes)]


def alike(shapes: Sequence[Shape]) -> list[Shape]:
    """Return shapes with as many axes as one another: two at least, and those merged that all arrays walk together.

    Where a number is repeated along a row, rows become the second axis: oneDNN has code for that, and for no other.
    """
    out = shapes[OUT]
    shapes = [(1,) * (len(out) - len(shape)) + shape for shape in shapes]
    merged: list[list[int]] = []  # the sizes of all arrays along each axis
    for sizes in zip(*shapes, strict=True):
        repeated = [size < sizes[OUT] for size in sizes]
        if sizes[OUT] == 1:
            continue
        if merged and repeated == [size < merged[-1][OUT] for size in merged[-1]]:
            merged[-1] = [a * b for a, b in zip(merged[-1], sizes, strict=True)]
        else:
            merged.append(list(sizes))
    rows = len(merged) > 1 and any(
        1 == last < merged[-1][OUT] and before > 1 for before, last in zip(*merged[-2:], strict=True)
    )
    while len(merged) < 2 + rows:
        merged.insert(0, [1] * len(shapes))
    return list(zip(*merged, strict=True))
