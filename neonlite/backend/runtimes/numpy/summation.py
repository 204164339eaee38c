"""Sums along rows by np.einsum, chunked to keep the rounding error small, and reductions of few columns.

``np.einsum`` is three times as fast as ``np.add.reduce`` along rows, and multiplies in the same pass. It adds the
elements of a row sequentially into a few accumulators. Long rows are therefore summed in chunks, so that the rounding
error is about that of pairwise summation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from neonlite.backend.planning.plan import Plan
from neonlite.backend.planning.steps import Step
from neonlite.ops.shapes import Axes, Shape
from neonlite.typing import NumPyArray as Array

MIN_ELEMENTS = 1 << 13  # smaller arrays are summed by NumPy
# Elements of a chunk. A row is split into equal chunks between the first two limits if possible, else into chunks of
# the third size, of which the last is shorter.
MIN_CHUNK_ELEMENTS, MAX_UNSPLIT_ELEMENTS, UNEVEN_CHUNK_ELEMENTS = 1 << 11, 1 << 13, 1 << 14
# reductions of at most so many columns join their rows to rows of so many elements
MAX_FOLDED_COLUMNS, FOLDED_ROW_ELEMENTS = 1 << 7, 1 << 9
FOLDED_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}
ROW_SUBSCRIPTS = {1: "...i->...", 2: "...i,...i->..."}


def select_reduction_function(step: Step, shape: Shape, axes: Axes, product: bool) -> Callable[..., None] | None:
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
    is_narrow = shape[1] <= MAX_FOLDED_COLUMNS and step.op.name in FOLDED_UFUNCS and step.dtype != "float16"
    return partial(reduce_columns, FOLDED_UFUNCS[step.op.name]) if is_narrow else None


def find_product_factors(plan: Plan, step: Step, shape: Shape) -> tuple[int, ...]:
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
    """Write the sums of the columns of a product to ``out``, of shape (1, columns)."""
    np.einsum("ij,ij->j", x, y, out=out[0])


def reduce_columns(ufunc: np.ufunc, x: Array, out: Array) -> None:
    """Write the reductions of few columns to ``out``, of shape (1, columns).

    NumPy loops over each row. Several rows at a time, joined to a long one, are reduced first.
    """
    n, columns = x.shape
    joined = FOLDED_ROW_ELEMENTS // columns
    whole = n // joined * joined
    if not whole or not x.flags.c_contiguous:
        ufunc.reduce(x, axis=0, out=out, keepdims=True)
        return
    folded = ufunc.reduce(x[:whole].reshape(-1, joined * columns), axis=0)
    ufunc.reduce(folded.reshape(joined, columns), axis=0, out=out, keepdims=True)
    if whole < n:
        ufunc(out, ufunc.reduce(x[whole:], axis=0, keepdims=True), out=out)


def accumulation_dtype(step: Step) -> np.dtype[Any] | None:
    """Return the accumulation dtype of a sum or product: float32 for 16-bit floats, 64 bits for integers; else None."""
    if step.op.name not in ("sum", "prod") or step.dtype in ("float32", "float64"):
        return None
    return np.dtype("float32" if step.dtype == "float16" else "uint64" if step.dtype[0] == "u" else "int64")
