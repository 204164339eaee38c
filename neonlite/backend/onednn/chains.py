"""Which ops does oneDNN do in one pass?  A chain: each op takes what the one before it gives, and another operand.

NumPy reads and writes memory in every op. oneDNN writes machine code for all of them at once, which holds a number in a
register meanwhile; sums, products, quotients and roots come out with the same bits. A chain takes its operands and
``out``, which may be one of them, and runs in one thread of its own: whoever calls shares out the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import c_float
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.mkl.blas import address
from neonlite.backend.onednn.functions import EXP, LOGISTIC, LOWEST, Function
from neonlite.backend.onednn.library import DST, GIVEN, SRC, Call, Handle, Layout, Library, Unsupported
from neonlite.backend.tensor import c_strides
from neonlite.ops import Shape

LONGEST = 16  # ops of a chain
KEPT = 1024  # chains
BINARY = {"add": 0x1FFF0, "mul": 0x1FFF1, "div": 0x1FFF4, "sub": 0x1FFF5}
UNARY = {"sqr": 0x23, "sqrt": 0x25, "sig": LOGISTIC, "exp": EXP}
SECOND, POST_OP = 2, 1 << 15  # arguments: the second operand, and the n-th op of those that come after

# each op in NumPy's words: what comes before it, the other operand, {z} the result
SPELLED = {
    "add": "add({}, {}, {{z}})",
    "mul": "multiply({}, {}, {{z}})",
    "div": "divide({}, {}, {{z}})",
    "sub": "subtract({}, {}, {{z}})",
    "sqr": "square({}, {{z}})",
    "sqrt": "sqrt({}, {{z}})",
    "exp": "exp({}, {{z}})",
    "sig": "multiply({}, MINUS, {{z}}); exp({{z}}, {{z}}); add(ONE, {{z}}, {{z}}); divide(ONE, {{z}}, {{z}})",
}
WORDS: dict[str, Any] = {"ONE": np.float32(1), "MINUS": np.float32(-1)}
WORDS |= {f.__name__: f for f in (np.add, np.multiply, np.divide, np.subtract, np.square, np.sqrt, np.exp)}

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
        if self.turned and self.op == "sub":
            return [("mul", MINUS), ("add", self.operand)]
        return [(self.op, self.operand)]


MINUS, OUT = -2, -1  # operands: the number -1, and the result


def continues(links: Sequence[Link], op: str, turned: bool, binary: bool) -> bool:
    """Tell whether a chain may go on with an op, which takes what comes before as its second operand if ``turned``."""
    if op == "exp":
        return len(links) == 1 and links[0].op == "sub"
    return op in BINARY and not (turned and op == "div") if binary else op in UNARY


def spelled(links: Iterable[Link]) -> str:
    """Return a chain in NumPy's words, one ufunc after another, with the operands and the result left open."""
    return "; ".join(link.words("{z}" if n else "{0}") for n, link in enumerate(links))


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
        exec("\n    ".join([f"def plain({', '.join(names)}, z):", *lines]), scope)
        super().__init__(0, 0, scope["plain"])
        self.links, self.count, self.numbers = links, count, numbers
        self.arrays = [*(n for n in range(count) if n not in numbers), OUT]
        self.exponential = any(link.op == "exp" for link in links)

    def __call__(self, *arrays: Any) -> None:
        """Put what the chain makes of all but the last into the last."""
        key = self.key(*arrays)
        try:
            made: Made | None = self.held.calls[key]
        except (AttributeError, KeyError):
            made = self._made(key)
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
            with call.library.using(1):
                call(*where)

    def key(self, *arrays: Any) -> tuple[Shape, ...]:
        """Return the shapes of the operands that are arrays, and of the result."""
        return tuple([arrays[n].shape for n in self.arrays])

    def fits(self, *arrays: Any) -> bool:
        """Tell whether oneDNN can do it: the exponential function of no NaN, and of nothing too low."""
        for n in self.arrays:
            flags = arrays[n].flags
            if not (flags.c_contiguous and flags.aligned):
                return False
        if not arrays[OUT].flags.writeable:
            return False
        if self.exponential:
            low, high = np.minimum.reduce(arrays[0], axis=None), np.maximum.reduce(arrays[1], axis=None)
            return bool(low - high >= LOWEST)  # a comparison with NaN is false
        return True

    def make(self, library: Library, shapes: tuple[Shape, ...]) -> Made:
        """Return the primitive for some shapes, in one thread."""
        layouts = dict(zip(self.arrays, laid_out(library, shapes), strict=True))
        room = np.full(self.count - MINUS, -1, np.float32)
        start, single = address(room).value, laid_out(library, [(1,), shapes[OUT]])[0]
        places: list[tuple[int | None, int]] = []
        arguments: dict[int, Layout] = {}

        def taken(argument: int, n: int) -> Handle:
            """Note where an argument lies, and return how."""
            places.append((n, 0) if n in layouts else (None, start + n % len(room) * room.itemsize))
            arguments[argument] = layouts.get(n, single)
            return arguments[argument].handle

        (op, second), *others = [step for link in self.links for step in link.steps()]
        pair = BINARY[op], taken(SRC, 0), taken(SECOND, second)  # type: ignore[arg-type]
        after = library.make("post_ops", "post_ops_create")
        for count, (op_after, n) in enumerate(others, 1):
            if n is None:
                library.call("post_ops_append_eltwise", after, UNARY[op_after], c_float(0), c_float(0))
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
