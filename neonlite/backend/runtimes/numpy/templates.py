"""NumPy templates of ops for generated code, and sums with few roundings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain, pairwise
from typing import Any

import numpy as np

from neonlite.backend.planning import Plan, steps
from neonlite.numpy_methods import UFUNC_REDUCTIONS
from neonlite.ops import OPS
from neonlite.ops.functions import Axes, Shape, normalize_indices, to_slices
from neonlite.tree_structure import Constant
from neonlite.typing import FLOAT_DTYPES, NativeArray, NumPyArray as Array

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

REDUCTION_UFUNCS = {op: ufunc for ufunc, op in UFUNC_REDUCTIONS.items() if op in OPS}

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

MAX_SCATTER_ELEMENTS = 1 << 20  # elements of a chunk of scatter_add: faster than an eighth and 8 times as many
COPY_ROWS = 32  # rows of a chunk that are transposed at once
SUM_BATCH = 256  # indices whose segment bounds are converted to a Python list at once


def template_of(step: steps.Step) -> str | None:
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


# --- sums along rows by np.einsum ---
#
# Chunked to keep the rounding error small, and reductions of few columns.
#
# ``np.einsum`` is three times as fast as ``np.add.reduce`` along rows, and multiplies in the same pass. It adds the
# elements of a row sequentially into a few accumulators. Long rows are therefore summed in chunks, so that the rounding
# error is about that of pairwise summation.

MIN_ELEMENTS = 1 << 13  # smaller arrays are summed by NumPy, as fast at this size by benchmarks/thresholds.py
# Elements of a chunk. A row is split into equal chunks between the first two limits if possible, else into chunks of
# the third size, of which the last is shorter.
MIN_CHUNK_ELEMENTS, MAX_UNSPLIT_ELEMENTS, UNEVEN_CHUNK_ELEMENTS = 1 << 11, 1 << 13, 1 << 14
FOLDED_ROW_ELEMENTS = 1 << 9  # reductions of columns join their rows to rows of so many elements
FOLDED_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}
ROW_SUBSCRIPTS = {1: "...i->...", 2: "...i,...i->..."}


def select_reduction_function(step: steps.Step, shape: Shape, axes: Axes, product: bool) -> Callable[..., None] | None:
    """Return a function that reduces an array, or sums a product, along axes; None where NumPy is as fast."""
    if step.compute_dtype != step.dtype or math.prod(shape) < MIN_ELEMENTS:
        return None
    is_float_sum = step.op.name == "sum" and step.dtype in ("float32", "float64")
    if is_float_sum and axes == (len(shape) - 1,):
        return sum_rows
    if len(shape) != 2 or axes != (0,):
        return None
    if is_float_sum and product:
        return sum_column_products
    is_narrow = shape[1] <= FOLDED_ROW_ELEMENTS // 2 and step.op.name in FOLDED_UFUNCS and step.dtype != "float16"
    return partial(reduce_columns, FOLDED_UFUNCS[step.op.name]) if is_narrow else None


def find_product_factors(plan: Plan, step: steps.Step, shape: Shape) -> tuple[int, ...]:
    """Return the factors of a product or square if they all have the given shape and the step's dtype; else ()."""
    inputs = step.inputs * 2 if step.op.name == "sqr" else step.inputs if step.op.name == "mul" else ()
    factors = tuple(x for x in inputs if isinstance(x, int) and plan.dtype(x) == step.dtype and plan.shape(x) == shape)
    return factors if len(factors) == len(inputs) else ()


def sum_rows(*operands: Array) -> None:
    """Write the sums of rows, or of products of rows, to the last operand, of shape (..., 1)."""
    *factors, out = operands
    rows, size = factors[0].shape[:-1], factors[0].shape[-1]
    if size <= MAX_UNSPLIT_ELEMENTS:
        np.einsum(ROW_SUBSCRIPTS[len(factors)], *factors, out=out[..., 0])
        return
    # partial sums are few, since rows are long, so allocating them is cheap
    if (chunk := even_chunk_size(size)) and all(x.flags.c_contiguous for x in factors):
        partial_sums = np.empty((*rows, size // chunk), out.dtype)
        np.einsum(
            ROW_SUBSCRIPTS[len(factors)], *[x.reshape(*partial_sums.shape, chunk) for x in factors], out=partial_sums
        )
        np.add.reduce(partial_sums, axis=-1, out=out[..., 0])
        return
    starts = range(0, size, UNEVEN_CHUNK_ELEMENTS)
    partial_sums = np.empty((len(starts), *rows), out.dtype)
    for i, start in enumerate(starts):
        np.einsum(
            ROW_SUBSCRIPTS[len(factors)],
            *[x[..., start : start + UNEVEN_CHUNK_ELEMENTS] for x in factors],
            out=partial_sums[i, ...],
        )
    np.add.reduce(partial_sums, axis=0, out=out[..., 0])


@lru_cache(4096)
def even_chunk_size(size: int) -> int:
    """Return the largest allowed chunk size that divides the row; 0 if there is none."""
    return next((n for n in range(MAX_UNSPLIT_ELEMENTS, MIN_CHUNK_ELEMENTS - 1, -1) if size % n == 0), 0)


def sum_column_products(x: Array, y: Array, out: Array) -> None:
    """Write the sums of the columns of a product to ``out``, of shape (..., 1, columns)."""
    np.einsum("...ij,...ij->...j", x, y, out=out[..., 0, :])


def reduce_columns(ufunc: np.ufunc, x: Array, out: Array) -> None:
    """Write the reductions of few columns to ``out``, of shape (..., 1, columns).

    NumPy loops over each row. Several rows at a time, joined to a long one, are reduced first.
    """
    *stack, n, columns = x.shape
    joined = FOLDED_ROW_ELEMENTS // columns
    whole = n // joined * joined
    if not whole or not x.flags.c_contiguous:
        ufunc.reduce(x, axis=-2, out=out, keepdims=True)
        return
    folded = ufunc.reduce(x[..., :whole, :].reshape(*stack, -1, joined * columns), axis=-2)
    ufunc.reduce(folded.reshape(*stack, joined, columns), axis=-2, out=out, keepdims=True)
    if whole < n:
        ufunc(out, ufunc.reduce(x[..., whole:, :], axis=-2, keepdims=True), out=out)


def accumulation_dtype(step: steps.Step) -> np.dtype[Any] | None:
    """Return the accumulation dtype of a sum or product: float32 for 16-bit floats, 64 bits for integers; else None."""
    if step.op.name not in ("sum", "prod") or step.dtype in ("float32", "float64"):
        return None
    return np.dtype("float32" if step.dtype == "float16" else "uint64" if step.dtype[0] == "u" else "int64")
