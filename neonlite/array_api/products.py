"""Matrix and vector products, which both the namespace and its ``linalg`` extension have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from neonlite.array_api.arguments import as_integers, check_arrays
from neonlite.array_api.array import BOOL, Array, result
from neonlite.array_api.data_types import broadcast_to
from neonlite.array_api.elementwise import multiply
from neonlite.array_api.manipulation import axis_of, ordered_axes, permute_dims, reshape, squeeze
from neonlite.array_api.manipulation import matrix_transpose as matrix_transpose
from neonlite.array_api.promotion import promote, to_dtype
from neonlite.array_api.reductions import sum as sum_over
from neonlite.messages import describe
from neonlite.ops.shapes import broadcast_shapes


def check_numeric(name: str, *arrays: Any) -> list[Array]:
    """Return arrays in their common dtype. TypeError for boolean ones."""
    checked = check_arrays(name, *arrays)
    dtype = checked[0].dtype
    for x in checked:
        if x.dtype == BOOL:
            raise TypeError(f"{name}: expected numeric arrays, got {describe(x)}. Cast it with astype.")
        dtype = promote(dtype, x.dtype)
    return [to_dtype(x, dtype) for x in checked]


def matmul(x1: Array, x2: Array, /) -> Array:
    """Return the matrix products of the last two axes; the other axes broadcast. A vector is a row or a column.

    Parameters
    ----------
    x1 : Array
        Matrices (..., m, k), or a vector (k,).
    x2 : Array
        Matrices (..., k, n), or a vector (k,).

    Returns
    -------
    Array
        Matrices (..., m, n), without the axis of a vector.

    Raises
    ------
    ValueError
        The shapes do not fit.
    """
    x1, x2 = check_numeric("matmul", x1, x2)
    if not x1.ndim or not x2.ndim or x1.shape[-1] != x2.shape[-2 if x2.ndim > 1 else 0]:
        raise ValueError(f"matmul: expected arrays (..., m, k) and (..., k, n), got {describe(x1)} and {describe(x2)}")
    left = x1 if x1.ndim > 1 else reshape(x1, (1, -1))
    right = x2 if x2.ndim > 1 else reshape(x2, (-1, 1))
    if left.ndim == right.ndim == 2:
        z = _matrices(left, right)
    else:
        batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = (broadcast_to(x, (*batch, *x.shape[-2:])) for x in (left, right))
        stacks = [reshape(x, (math.prod(batch), *x.shape[-2:])) for x in (left, right)]
        z = reshape(_matrices(*stacks), (*batch, left.shape[-2], right.shape[-1]))
    z = z if x1.ndim > 1 else squeeze(z, -2)
    return z if x2.ndim > 1 else squeeze(z, -1)


def _matrices(x: Array, y: Array) -> Array:
    """Return the product of two matrices, or of two stacks of them; of integers as a sum of products."""
    if x.dtype.kind != "f" or not x.shape[-1]:
        left, right = reshape(x, (*x.shape, 1)), reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
        return sum_over(multiply(left, right), axis=-2, dtype=x.dtype)
    return result(x.operand @ y.operand, x.ndim, x.dtype, x, y)


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Return the sum of products over axes of two arrays.

    Parameters
    ----------
    x1, x2 : Array
        The arrays.
    axes : int or pair of sequences of int
        The axes of x1 and of x2 to sum over; a number n stands for the last n of x1 and the first n of x2.

    Returns
    -------
    Array
        The other axes of x1, then those of x2.
    """
    x1, x2 = check_numeric("tensordot", x1, x2)
    if hasattr(axes, "__index__"):
        (n,) = as_integers("tensordot: axes", axes)
        if not 0 <= n <= min(x1.ndim, x2.ndim):
            raise ValueError(
                f"tensordot: expected 0 to {min(x1.ndim, x2.ndim)} axes, got {n}, for {describe(x1)} and {describe(x2)}"
            )
        axes = range(x1.ndim - n, x1.ndim), range(n)
    elif len(axes) != 2:
        raise ValueError(f"tensordot: expected a number of axes, or two sequences of axes, got {axes}")
    first, second = (ordered_axes("tensordot", x, each) for x, each in zip((x1, x2), axes, strict=True))
    rest1, rest2 = ([i for i in range(x.ndim) if i not in each] for x, each in ((x1, first), (x2, second)))
    if [x1.shape[i] for i in first] != [x2.shape[i] for i in second]:
        raise ValueError(f"tensordot: expected equal sizes of axes {axes}, got {describe(x1)} and {describe(x2)}")
    k = math.prod(x1.shape[i] for i in first)
    shape1, shape2 = tuple(x1.shape[i] for i in rest1), tuple(x2.shape[i] for i in rest2)
    left = reshape(permute_dims(x1, (*rest1, *first)), (math.prod(shape1), k))
    right = reshape(permute_dims(x2, (*second, *rest2)), (k, math.prod(shape2)))
    return reshape(_matrices(left, right), shape1 + shape2)


def axis_from_end(name: str, x1: Array, x2: Array, axis: int) -> int:
    """Return an axis of two arrays as a negative number; it counts from the start only for as many dimensions."""
    first, second = (axis_of(name, x, axis) - x.ndim for x in (x1, x2))
    if first != second:
        raise ValueError(
            f"{name}: expected a negative axis for different numbers of dimensions, got {axis}, for "
            f"{describe(x1)} and {describe(x2)}"
        )
    return first


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Return the dot products along an axis; the other axes broadcast.

    Parameters
    ----------
    x1, x2 : Array
        The arrays.
    axis : int
        The axis, counted from the end; default the last.

    Returns
    -------
    Array
        The products, without the axis.
    """
    x1, x2 = check_numeric("vecdot", x1, x2)
    axis = axis_from_end("vecdot", x1, x2, axis)
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"vecdot: expected equal sizes on axis {axis}, got {describe(x1)} and {describe(x2)}")
    return sum_over(multiply(x1, x2), axis=axis, dtype=x1.dtype)


__all__ = ["matmul", "matrix_transpose", "tensordot", "vecdot"]
