"""How does NumPy spell an op?  As ufunc calls into given buffers: {x}, {y}, {w} operands, {z} the result, {m} a mask.

{s} is a buffer like the result, where a number is spread out.

A test holds this table complete: every elementwise row of the op table has its words here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from neonlite.backend.plan import Const, Step
from neonlite.ops import FLOATS, Shape, boxed, in_range

COPY = "copyto({z}, {x}, casting='unsafe')"

WORDS: dict[str, str] = {
    "neg": "multiply({x}, {minus}, {z})",  # np.negative of a strided array into a strided one can be wrong (NumPy 2.4)
    "abs": "absolute({x}, {z})",
    "sgn": "sign({x}, {z})",
    "sqr": "square({x}, {z})",
    "sqrt": "sqrt({x}, {z})",
    "exp": "exp({x}, {z})",
    "exp2": "exp2({x}, {z})",
    "log": "log({x}, {z})",
    "log2": "log2({x}, {z})",
    "safelog": "{s}.fill(0); maximum({x}, {s}, out={z}); log({z}, {z}); {s}.fill(-50); maximum({z}, {s}, out={z})",
    "sig": "multiply({x}, {minus}, {z}); exp({z}, {z}); add({one}, {z}, {z}); divide({one}, {z}, {z})",
    "tanh": "tanh({x}, {z})",
    "rint": "rint({x}, {z})",
    "finite": "subtract({x}, {x}, {z}); equal({z}, 0, {m}); copyto({z}, {m})",  # so can np.isfinite
    "stop_gradient": COPY,
    "cast": COPY,
    "add": "add({x}, {y}, {z})",
    "sub": "subtract({x}, {y}, {z})",
    "mul": "multiply({x}, {y}, {z})",
    "div": "divide({x}, {y}, {z})",
    "pow": "power({x}, {y}, {z})",
    "maximum": "maximum({x}, {y}, out={z})",
    "minimum": "minimum({x}, {y}, out={z})",
    "shift": "absolute({y}, {z}); log2({z}, {z}); rint({z}, {z}); exp2({z}, {z}); "
    "copysign({z}, {y}, {z}); multiply({x}, {z}, {z})",
    "eq": "equal({x}, {y}, {m}); copyto({z}, {m})",
    "ne": "not_equal({x}, {y}, {m}); copyto({z}, {m})",
    "lt": "less({x}, {y}, {m}); copyto({z}, {m})",
    "le": "less_equal({x}, {y}, {m}); copyto({z}, {m})",
    "gt": "greater({x}, {y}, {m}); copyto({z}, {m})",
    "ge": "greater_equal({x}, {y}, {m}); copyto({z}, {m})",
    "where": "not_equal({x}, 0, {m}); copyto({z}, {w}); copyto({z}, {y}, where={m})",
}

# the same values in fewer or cheaper calls, where an operand is a whole number that is part of the structure
SHORT: dict[tuple[str, int | None, int | None], str] = {
    ("mul", 2, None): "add({y}, {y}, {z})",
    ("mul", None, 2): "add({x}, {x}, {z})",
    ("pow", None, 1): COPY,
    ("pow", None, 2): "square({x}, {z})",
}

# where an operand is a number: NumPy compares two arrays four times as fast as an array and a number
BESIDE_NUMBER = {
    name: (f"{{s}}.fill({{x}}); {name}({{s}}, {{y}}, out={{z}})", f"{{s}}.fill({{y}}); {name}({{x}}, {{s}}, out={{z}})")
    for name in ("maximum", "minimum")
}

# the words for ints, where they differ
OF_INTS = {"neg": "subtract(0, {x}, {z})", "rint": COPY}

REDUCE: dict[str, str] = {"sum": "add", "max": "maximum", "min": "minimum"}

ROOM = 1 << 20  # numbers that are scattered at once
LINE = 32  # of these, rows that are turned at once
SOME = 256  # places that are gone through at once


FASTER = {"sig", "exp", "stop_gradient"}  # what another library may do faster than NumPy


def faster(step: Step, size: int) -> Any:
    """Return what works out a step on so many elements faster than NumPy: a function of (x, z), or None."""
    if step.op.name not in FASTER or step.dtype != "float32":
        return None
    from neonlite.backend.onednn.functions import FUNCTIONS

    function = FUNCTIONS.get(step.op.name)
    return function if function and function.least <= size else None


def words(step: Step, numbers: Sequence[bool] = ()) -> str | None:
    """Return the words for a step; None when there are none, as for a user's own op.

    ``numbers`` tells of each operand whether it is a number.
    """
    consts = [x.number if isinstance(x, Const) else None for x in step.ins]
    if len(consts) == 2 and (short := SHORT.get((step.op.name, consts[0], consts[1]))):
        return short
    if step.dtype not in FLOATS and step.op.name in OF_INTS:
        return OF_INTS[step.op.name]
    if any(numbers) and step.dtype in FLOATS and step.op.name in BESIDE_NUMBER:
        return BESIDE_NUMBER[step.op.name][not numbers[0]]
    if step.op.name == "shift" and not step.attrs["value"]:
        return "exp2({y}, {z}); multiply({x}, {z}, {z})"
    return WORDS.get(step.op.name)


def run_scatter(x: Any, indices: Any, out: Any, held: Any, *, axis: int, size: int) -> None:
    """Write zeros to which the slices of x are added at their indices.

    ``np.add.at`` takes a number at a time. Here the slices for one place are brought side by side, and added up there.
    """
    place, order, key, first, again, *buffers = held
    positions(indices, size, place, again)  # before anything is written: it may raise
    n, bits = len(place), len(place).bit_length()
    order[...] = 1
    np.subtract(np.add.accumulate(order, out=order), 1, out=order)
    first[:n], first[n] = order, n
    np.bitwise_or(np.left_shift(place, bits, out=key), order, out=key)
    key.sort()  # by place, and those for one place in the order in which they came
    np.right_shift(key, bits, out=place)
    np.bitwise_and(key, (1 << bits) - 1, out=order)
    again[:1] = False
    np.equal(place[1:], place[:-1], out=again[1:])
    np.copyto(first[:n], n, where=again)
    first.sort()  # where each place begins in that order, and behind these n
    count = n - int(np.count_nonzero(again))
    place = np.take(place, first[:count], out=key[:count], mode="clip")
    out[...] = 0
    along, many = pieces(x.shape, axis)
    if axis == x.ndim - 1 == 1 and count and x.dtype == buffers[0].dtype:  # rows are walked through as they are
        for top in range(0, len(x), many):
            part = x[top : top + many]
            together, sums = (buffer[: part.size].reshape(part.shape) for buffer in buffers)
            np.take(part, order, axis=1, out=together, mode="clip")
            sums = sums.reshape(-1)[: len(part) * count].reshape(len(part), count)
            np.add.reduceat(together, first[:count], axis=1, out=sums)
            out[top : top + many, place] = sums
        return
    x, out = (np.moveaxis(a, (axis, along), (0, 1)) for a in (x, out))
    for left in range(0, x.shape[1], many):
        part = x[:, left : left + many]
        slices, together = (buffer[: part.size].reshape(part.shape) for buffer in buffers)
        for i in range(0, part.shape[1], LINE):
            np.copyto(slices[:, i : i + LINE], part[:, i : i + LINE])
        np.take(slices, order, axis=0, out=together, mode="clip")
        sums = np.take(together, first[:count], axis=0, out=slices[:count], mode="clip")  # of most, the one there is
        for i in range(0, count, SOME):
            for k, (start, end) in enumerate(pairwise(first[i : min(i + SOME, count) + 1].tolist()), i):
                if end - start > 1:
                    np.add.reduce(together[start:end], axis=0, out=sums[k])
        out[:, left : left + many][place] = sums


def scatter_buffers(dtype: str, x: Shape, indices: Shape, *, axis: int, size: int) -> list[tuple[Shape, str]]:
    """Return the shapes and dtypes of the buffers that ``run_scatter`` works in."""
    along, many = pieces(x, axis)
    n, numbers = x[axis], math.prod(x) // max(x[along], 1) * many
    wide = "float32" if dtype == "float16" else dtype
    return [*[((n,), "int64")] * 3, ((n + 1,), "int64"), ((n,), "bool"), ((numbers,), wide), ((numbers,), wide)]


def pieces(shape: Shape, axis: int) -> tuple[int, int]:
    """Return the longest other axis, and how much of it is scattered at once."""
    along = max((a for a in range(len(shape)) if a != axis), key=lambda a: shape[a])
    each = math.prod(shape) // max(shape[along], 1)
    return along, max(1, min(ROOM // max(each, 1), shape[along]))


def run_take(x: Any, indices: Any, out: Any, held: Any, *, axis: int) -> None:
    """Write the chosen slices."""
    np.take(x, positions(indices, x.shape[axis], *held), axis=axis, out=out, mode="clip")


def take_buffers(dtype: str, x: Shape, indices: Shape, *, axis: int) -> list[tuple[Shape, str]]:
    """Return the shapes and dtypes of the buffers that ``run_take`` works in."""
    n = math.prod(indices)
    return [((n,), "int64"), ((n,), "bool")]


def positions(indices: Any, size: int, places: Any, below: Any) -> Any:
    """Return flat indices from 0, in a buffer; IndexError when one is out of range, as ``in_range``."""
    places.reshape(indices.shape)[...] = indices
    if int(places.min(initial=0)) < -size or int(places.max(initial=-1)) >= size:
        in_range(np, indices, size)
    return np.add(places, size, out=places, where=np.less(places, 0, out=below))


def run_concat(*parts: Any, axis: int) -> None:
    """Write the parts end to end, into the last."""
    np.concatenate(parts[:-1], axis=axis, out=parts[-1])


def run_unslice(x: Any, out: Any, *, index: Any, to: Any) -> None:
    """Write zeros with x in a box."""
    out[...] = 0
    out[boxed(index)] = x


# stages of their own that NumPy can do into a given buffer, the last argument; products are the primitives' business,
# and what is not here runs as the table says and is copied
CALLS: dict[str, Any] = {
    "scatter": run_scatter,
    "take": run_take,
    "concat": run_concat,
    "unslice": run_unslice,
}

# those of them that work in buffers, their last argument: which, by the dtype of the result, shapes and attributes
BUFFERS: dict[str, Any] = {"scatter": scatter_buffers, "take": take_buffers}
