"""How does NumPy spell an op?  As ufunc calls into given buffers: {x}, {y}, {w} operands, {z} the result, {m} a mask.

A test holds this table complete: every elementwise row of the op table has its words here.
"""

from __future__ import annotations

import math
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
    "safelog": "maximum({x}, 0, out={z}); log({z}, {z}); maximum({z}, -50, out={z})",
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

# the words for ints, where they differ
OF_INTS = {"neg": "subtract(0, {x}, {z})", "rint": COPY}

REDUCE: dict[str, str] = {"sum": "add", "max": "maximum", "min": "minimum"}

CELLS = 1 << 16  # numbers that are scattered at once


def words(step: Step) -> str | None:
    """Return the words for a step; None when there are none, as for a user's own op."""
    consts = [x.number if isinstance(x, Const) else None for x in step.ins]
    if len(consts) == 2 and (short := SHORT.get((step.op.name, consts[0], consts[1]))):
        return short
    if step.dtype not in FLOATS and step.op.name in OF_INTS:
        return OF_INTS[step.op.name]
    if step.op.name == "shift" and not step.attrs["value"]:
        return "exp2({y}, {z}); multiply({x}, {z}, {z})"
    return WORDS.get(step.op.name)


def run_scatter(x: Any, indices: Any, out: Any, held: Any, *, axis: int, size: int) -> None:
    """Write zeros to which the slices of x are added at their indices.

    ``np.add.at`` is fast for one index a number alone: so each number gets its own, some thousands at a time.
    """
    places, below, cells, more, values, start, along, total = held
    positions(indices, size, places, below)  # before anything is written: it may raise
    total = total if total.size else out
    total[...] = 0
    before, after, many = len(start), len(along), scattered_at_once(x.shape, axis)
    for numbers in (start, along):
        numbers[...] = 1
        np.add.accumulate(numbers, out=numbers)
        numbers -= 1
    for i in range(0, len(places), many):
        some, part = places[i : i + many], x[(slice(None),) * axis + (slice(i, i + many),)]
        cell, term, value = (buffer[: part.size].reshape(before, len(some), after) for buffer in (cells, more, values))
        cell[...] = start[:, None, None]  # cell = (start * size + some) * after + along, in contiguous steps
        term[...] = some[:, None]
        np.add(np.multiply(cell, size, out=cell), term, out=cell)
        term[...] = along
        np.add(np.multiply(cell, after, out=cell), term, out=cell)
        value.reshape(part.shape)[...] = part
        np.add.at(total.reshape(-1), cell.reshape(-1), value.reshape(-1))
    if total is not out:
        out[...] = total


def scatter_buffers(dtype: str, x: Shape, indices: Shape, *, axis: int, size: int) -> list[tuple[Shape, str]]:
    """Return the shapes and dtypes of the buffers that ``run_scatter`` works in."""
    before, after, many = math.prod(x[:axis]), math.prod(x[axis + 1 :]), scattered_at_once(x, axis)
    wide, out = "float32" if dtype == "float16" else dtype, (*x[:axis], size, *x[axis + 1 :])
    cells: Shape = (before * many * after,)
    numbers: list[tuple[Shape, str]] = [(cells, "int64"), (cells, "int64"), (cells, wide), ((before,), "int64")]
    total = out if wide != dtype else (0,)
    return [*take_buffers(dtype, x, indices, axis=axis), *numbers, ((after,), "int64"), (total, wide)]


def scattered_at_once(shape: Shape, axis: int) -> int:
    """Return how many slices are scattered at a time."""
    slices = math.prod(shape) // max(shape[axis], 1)
    return max(1, min(CELLS // max(slices, 1), shape[axis]))


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
