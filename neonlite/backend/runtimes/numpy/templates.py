"""NumPy code templates of elementwise ops, and NumPy functions that write library ops into given arrays.

Placeholders: {x}, {y}, {w} operands, {z} output, {mask} boolean buffer, {tmp} buffer like the output, {one} and
{minus_one} constants. Templates are optional: an op without one is computed by its forward function, which allocates
its result, and a reduction without a ufunc runs over all elements at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from neonlite.backend.planning.steps import Step
from neonlite.dtypes import FLOAT_DTYPES
from neonlite.ops.functions import normalize_indices, to_slices
from neonlite.ops.shapes import Shape
from neonlite.tree_structure import Constant
from neonlite.typing import NativeArray
from neonlite.typing import NumPyArray as Array

OPERAND_NAMES = "xywabcdefghijklnopqrtuv"  # placeholders of a step's operands in templates; z is the output
COPY_TEMPLATE = "copyto({z}, {x}, casting='unsafe')"

OP_TEMPLATES: dict[str, str] = {
    # np.negative of a strided array into a strided array can be wrong (NumPy 2.4)
    "neg": "multiply({x}, {minus_one}, {z})",
    "abs": "absolute({x}, {z})",
    "sgn": "sign({x}, {z})",
    "sqr": "square({x}, {z})",
    "sqrt": "sqrt({x}, {z})",
    "exp": "exp({x}, {z})",
    "exp2": "exp2({x}, {z})",
    "log": "log({x}, {z})",
    "log2": "log2({x}, {z})",
    "safelog": "{tmp}.fill(0); maximum({x}, {tmp}, out={z}); log({z}, {z}); "
    "{tmp}.fill(-50); maximum({z}, {tmp}, out={z})",
    "sig": "multiply({x}, {minus_one}, {z}); exp({z}, {z}); add({one}, {z}, {z}); divide({one}, {z}, {z})",
    "tanh": "tanh({x}, {z})",
    "rint": "rint({x}, {z})",
    "finite": "subtract({x}, {x}, {z}); equal({z}, 0, {mask}); copyto({z}, {mask})",
    "stop_gradient": COPY_TEMPLATE,
    "cast": COPY_TEMPLATE,
    "add": "add({x}, {y}, {z})",
    "sub": "subtract({x}, {y}, {z})",
    "mul": "multiply({x}, {y}, {z})",
    "div": "divide({x}, {y}, {z})",
    "pow": "power({x}, {y}, {z})",
    "maximum": "maximum({x}, {y}, out={z})",
    "minimum": "minimum({x}, {y}, out={z})",
    "shift": "absolute({y}, {z}); log2({z}, {z}); rint({z}, {z}); exp2({z}, {z}); "
    "copysign({z}, {y}, {z}); multiply({x}, {z}, {z})",
    "eq": "equal({x}, {y}, {mask}); copyto({z}, {mask})",
    "ne": "not_equal({x}, {y}, {mask}); copyto({z}, {mask})",
    "lt": "less({x}, {y}, {mask}); copyto({z}, {mask})",
    "le": "less_equal({x}, {y}, {mask}); copyto({z}, {mask})",
    "gt": "greater({x}, {y}, {mask}); copyto({z}, {mask})",
    "ge": "greater_equal({x}, {y}, {mask}); copyto({z}, {mask})",
    "where": "not_equal({x}, 0, {mask}); copyto({z}, {w}); copyto({z}, {y}, where={mask})",
}
# ops that one ufunc of the same name computes, by operands and result
UFUNC_NAMES = {
    "({x}, {z})": "log10 expm1 log1p sin cos tan asin acos atan sinh cosh asinh acosh atanh floor ceil trunc "
    "bitwise_invert",
    "({x}, {y}, {z})": "floor_divide remainder hypot atan2 logaddexp copysign nextafter "
    "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift",
    "({x}, {mask}); copyto({z}, {mask})": "isnan isinf signbit logical_not",
    "({x}, {y}, {mask}); copyto({z}, {mask})": "logical_and logical_or logical_xor",
}
OP_TEMPLATES |= {name: name + arguments for arguments, names in UFUNC_NAMES.items() for name in names.split()}

# cheaper templates for ops with an integer constant: {(op, first operand, second operand): template}
CONSTANT_TEMPLATES: dict[tuple[str, int | None, int | None], str] = {
    ("mul", 2, None): "add({y}, {y}, {z})",
    ("mul", None, 2): "add({x}, {x}, {z})",
    ("pow", None, 1): COPY_TEMPLATE,
    ("pow", None, 2): "square({x}, {z})",
}

# the end of the templates of comparisons, and how they write booleans as uint8, which have the memory of NumPy's
FLOAT_BOOLEAN, UINT8_BOOLEAN = "{mask}); copyto({z}, {mask})", "{z}.view(bool))"
UINT8_TEMPLATES = {"finite": "isfinite({x}, {z}.view(bool))"}

# templates for integers, where they differ
INTEGER_TEMPLATES = {"neg": "subtract(0, {x}, {z})"} | dict.fromkeys(("rint", "floor", "ceil", "trunc"), COPY_TEMPLATE)

REDUCTION_UFUNCS: dict[str, str] = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}

# the functions that templates and reductions call
UFUNCS: dict[str, Any] = {name: getattr(np, name) for name in REDUCTION_UFUNCS.values()} | {
    name: getattr(np, name)
    for template in chain(*(t.values() for t in (OP_TEMPLATES, CONSTANT_TEMPLATES, INTEGER_TEMPLATES, UINT8_TEMPLATES)))
    for name in re.findall(r"(?<!\.)\b([a-z_0-9]+)\(", template)
}

# cost relative to a cheap op, such as add
OP_COST = dict.fromkeys(("exp", "exp2", "log", "log2", "safelog", "sig", "tanh"), 8) | {"pow": 16, "shift": 16}
OP_COST |= dict.fromkeys(("log10", "expm1", "log1p", "sin", "cos", "floor_divide", "remainder", "hypot"), 8)
OP_COST |= dict.fromkeys(("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan2"), 16)
OP_COST |= {"logaddexp": 16, "erf": 48}

MAX_SCATTER_ELEMENTS = 1 << 20  # elements of a chunk of scatter_add
COPY_ROWS = 32  # rows of a chunk that are transposed at once
SUM_BATCH = 256  # indices whose segment bounds are converted to a Python list at once


def template_of(step: Step) -> str | None:
    """Return the template of a step; None for an op without one, such as a custom op."""
    consts = [x.value if isinstance(x, Constant) else None for x in step.inputs]
    if len(consts) == 2 and (template := CONSTANT_TEMPLATES.get((step.op.name, consts[0], consts[1]))):
        return template
    if step.dtype not in FLOAT_DTYPES and step.op.name in INTEGER_TEMPLATES:
        return INTEGER_TEMPLATES[step.op.name]
    if step.op.result_dtype == "boolean" and step.dtype == "uint8" and (template := OP_TEMPLATES.get(step.op.name)):
        return UINT8_TEMPLATES.get(step.op.name, template.replace(FLOAT_BOOLEAN, UINT8_BOOLEAN))
    if step.op.name == "shift" and not step.attrs["value"]:
        return "exp2({y}, {z}); multiply({x}, {z}, {z})"
    return OP_TEMPLATES.get(step.op.name)


def run_scatter_add(
    x: Array, indices: Array, out: Array, buffers: Sequence[NativeArray], *, axis: int, size: int
) -> None:
    """Write zeros into ``out``, and add each slice of x to the slice of ``out`` at its index.

    ``np.add.at`` is slow, since it adds one element at a time. Here the slices are sorted by index, and slices with the
    same index are summed.
    """
    index, order, sort_key, segment_starts, is_repeat, *work_buffers = buffers
    normalize_indices_into(indices, size, index, is_repeat)  # before out is written, since it may raise
    n, bits = len(index), len(index).bit_length()
    order[...] = 1
    np.subtract(np.add.accumulate(order, out=order), 1, out=order)
    segment_starts[:n], segment_starts[n] = order, n
    np.bitwise_or(np.left_shift(index, bits, out=sort_key), order, out=sort_key)
    sort_key.sort()  # by index, then by position
    np.right_shift(sort_key, bits, out=index)
    np.bitwise_and(sort_key, (1 << bits) - 1, out=order)
    is_repeat[:1] = False
    np.equal(index[1:], index[:-1], out=is_repeat[1:])
    np.copyto(segment_starts[:n], n, where=is_repeat)
    segment_starts.sort()  # where the slices of each index start, followed by n
    count = n - int(np.count_nonzero(is_repeat))
    index = np.take(index, segment_starts[:count], out=sort_key[:count], mode="clip")
    out[...] = 0
    chunk_axis, chunk_size = scatter_chunks(x.shape, axis)
    if axis == x.ndim - 1 == 1 and count and x.dtype == work_buffers[0].dtype:  # sum along rows, without a transpose
        for start in range(0, len(x), chunk_size):
            part = x[start : start + chunk_size]
            gathered, sums = (buffer[: part.size].reshape(part.shape) for buffer in work_buffers)
            np.take(part, order, axis=1, out=gathered, mode="clip")
            sums = sums.reshape(-1)[: len(part) * count].reshape(len(part), count)
            np.add.reduceat(gathered, segment_starts[:count], axis=1, out=sums)
            out[start : start + chunk_size, index] = sums
        return
    x, out = (np.moveaxis(a, (axis, chunk_axis), (0, 1)) for a in (x, out))
    for first in range(0, x.shape[1], chunk_size):
        part = x[:, first : first + chunk_size]
        slices, gathered = (buffer[: part.size].reshape(part.shape) for buffer in work_buffers)
        for i in range(0, part.shape[1], COPY_ROWS):
            np.copyto(slices[:, i : i + COPY_ROWS], part[:, i : i + COPY_ROWS])
        np.take(slices, order, axis=0, out=gathered, mode="clip")
        sums = np.take(
            gathered, segment_starts[:count], axis=0, out=slices[:count], mode="clip"
        )  # most indices have one slice
        for i in range(0, count, SUM_BATCH):
            for k, (start, end) in enumerate(pairwise(segment_starts[i : min(i + SUM_BATCH, count) + 1].tolist()), i):
                if end - start > 1:
                    np.add.reduce(gathered[start:end], axis=0, out=sums[k])
        out[:, first : first + chunk_size][index] = sums


def scatter_add_buffers(dtype: str, x: Shape, indices: Shape, *, axis: int, size: int) -> list[tuple[Shape, str]]:
    """Return the shapes and dtypes of the buffers of ``run_scatter_add``."""
    chunk_axis, chunk_size = scatter_chunks(x, axis)
    n, num_elements = x[axis], math.prod(x) // max(x[chunk_axis], 1) * chunk_size
    sum_dtype = "float32" if dtype == "float16" else dtype
    return [
        *[((n,), "int64")] * 3,
        ((n + 1,), "int64"),
        ((n,), "bool"),
        ((num_elements,), sum_dtype),
        ((num_elements,), sum_dtype),
    ]


def scatter_chunks(shape: Shape, axis: int) -> tuple[int, int]:
    """Return the longest axis other than ``axis``, along which x is split into chunks, and the chunk size."""
    chunk_axis = max((a for a in range(len(shape)) if a != axis), key=lambda a: shape[a])
    elements_per_slice = math.prod(shape) // max(shape[chunk_axis], 1)
    return chunk_axis, max(1, min(MAX_SCATTER_ELEMENTS // max(elements_per_slice, 1), shape[chunk_axis]))


def run_take(x: Array, indices: Array, out: Array, buffers: Sequence[Array], *, axis: int) -> None:
    """Write ``take(x, indices, axis)`` into ``out``."""
    np.take(x, normalize_indices_into(indices, x.shape[axis], *buffers), axis=axis, out=out, mode="clip")


def take_buffers(dtype: str, x: Shape, indices: Shape, *, axis: int) -> list[tuple[Shape, str]]:
    """Return the shapes and dtypes of the buffers of ``run_take``."""
    n = math.prod(indices)
    return [((n,), "int64"), ((n,), "bool")]


def normalize_indices_into(indices: Array, size: int, out: Array, mask: Array) -> Any:
    """Return flat non-negative indices in ``out``; IndexError if one is out of range, as ``normalize_indices``."""
    out.reshape(indices.shape)[...] = indices
    low = int(out.min(initial=0))
    if low < -size or int(out.max(initial=-1)) >= size:
        normalize_indices(np, indices, size)
    return out if low >= 0 else np.add(out, size, out=out, where=np.less(out, 0, out=mask))


def run_concat(*arrays: Array, axis: int) -> None:
    """Concatenate all arrays but the last into the last."""
    np.concatenate(arrays[:-1], axis=axis, out=arrays[-1])


def run_slice_backward(x: Array, out: Array, *, index: tuple[tuple[int, int, int], ...], to: Shape) -> None:
    """Write zeros into ``out``, then x into a strided slice of it."""
    out[...] = 0
    out[to_slices(index)] = x


# {op: function that writes to a given array, its last argument}. Matrix products are computed by the primitives; other
# library ops are evaluated by the reference executor and copied.
CALL_FUNCTIONS: dict[str, Any] = {
    "scatter_add": run_scatter_add,
    "take": run_take,
    "concat": run_concat,
    "slice_backward": run_slice_backward,
}

# {op: function that returns the buffers it needs, from the result's dtype, the operands' shapes and the attributes}
CALL_BUFFERS: dict[str, Any] = {"scatter_add": scatter_add_buffers, "take": take_buffers}
