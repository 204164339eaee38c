"""How are numbers added up?  By ``np.einsum``, which is three times as fast as ``np.add`` along rows, and multiplies.

It adds many of a row side by side, but one after another to each of these sums: long rows are added up in pieces, which
keeps the error as small as that of adding in pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from neonlite.backend.plan import Plan, Step
from neonlite.ops import Axes, Shape

LEAST = 1 << 13  # elements from which it pays
# elements of a row that are added up at once: at least where the row is cut, at most, and at most where a cut is uneven
LEAST_OF_PARTS, SHORT, LONG = 1 << 11, 1 << 13, 1 << 14
ALONG = {1: "...i->...", 2: "...i,...i->..."}


def adding(step: Step, shape: Shape, axes: Axes, product: bool) -> Callable[..., None] | None:
    """Return what adds up an array of some shape, or a product, along axes; None where NumPy is as good."""
    plain = step.op.name == "sum" and step.common == step.dtype and step.dtype in ("float32", "float64")
    if not plain or math.prod(shape) < LEAST:
        return None
    if axes == (len(shape) - 1,):
        return add_rows
    return add_columns if product and len(shape) == 2 and axes == (0,) else None


def factors_of(plan: Plan, step: Step, shape: Shape) -> tuple[int, ...]:
    """Return the factors of a product or a square, if they are arrays of some shape and of its dtype."""
    ins = step.ins * 2 if step.op.name == "sqr" else step.ins if step.op.name == "mul" else ()
    factors = tuple(x for x in ins if isinstance(x, int) and plan.dtype(x) == step.dtype and plan.shape(x) == shape)
    return factors if len(factors) == len(ins) else ()


def add_rows(*operands: Any) -> None:
    """Put the sums of the rows, or of products of rows, into the last (..., 1)."""
    *factors, out = operands
    rows, size = factors[0].shape[:-1], factors[0].shape[-1]
    if size <= SHORT:
        np.einsum(ALONG[len(factors)], *factors, out=out[..., 0])
        return
    # parts are a few numbers, as rows are long
    if (part := even(size)) and all(x.flags.c_contiguous for x in factors):
        parts = np.empty((*rows, size // part), out.dtype)
        np.einsum(ALONG[len(factors)], *[x.reshape(*parts.shape, part) for x in factors], out=parts)
        np.add.reduce(parts, axis=-1, out=out[..., 0])
        return
    starts = range(0, size, LONG)
    parts = np.empty((len(starts), *rows), out.dtype)
    for n, start in enumerate(starts):
        np.einsum(ALONG[len(factors)], *[x[..., start : start + LONG] for x in factors], out=parts[n, ...])
    np.add.reduce(parts, axis=0, out=out[..., 0])


@cache
def even(size: int) -> int:
    """Return the size of parts of which a row is made up; 0 when there is none that is neither short nor long."""
    return next((n for n in range(SHORT, LEAST_OF_PARTS - 1, -1) if size % n == 0), 0)


def add_columns(x: Any, y: Any, out: Any) -> None:
    """Put the sums of the columns of a product into the last (1, columns)."""
    np.einsum("ij,ij->j", x, y, out=out[0])
