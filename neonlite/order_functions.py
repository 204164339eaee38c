"""Functions of the op table for products, cumulative sums, sorting, searching, and gathers along an axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neonlite.op_functions import accumulation_dtype, normalize_indices, run_scatter_add
from neonlite.shapes import Axes, Shape, reduction_shape

if TYPE_CHECKING:
    from neonlite.backend.base import BackendBase
    from neonlite.op_functions import Gradients
    from neonlite.optree import Operand
    from neonlite.typing import Namespace, NativeArray


# --- forward functions ---


def run_prod(xp: Namespace, x: NativeArray, axis: Axes, keepdims: bool = True) -> NativeArray:
    """Return the product over some axes, accumulated in ``accumulation_dtype``."""
    return xp.prod(x, axis=axis, keepdims=keepdims, dtype=accumulation_dtype(xp, x))


def run_cumulative_sum(xp: Namespace, x: NativeArray, *, axis: int = -1, reverse: bool = False) -> NativeArray:
    """Return the sums of the elements up to each one, or from each one on if ``reverse``."""
    x = xp.flip(x, axis=axis) if reverse else x
    sums = xp.cumulative_sum(x, axis=axis, dtype=accumulation_dtype(xp, x))
    return xp.flip(sums, axis=axis) if reverse else sums


def run_cumulative_prod(xp: Namespace, x: NativeArray, *, axis: int = -1) -> NativeArray:
    """Return the products of the elements up to each one."""
    return xp.cumulative_prod(x, axis=axis, dtype=accumulation_dtype(xp, x))


def run_sort(xp: Namespace, x: NativeArray, *, axis: int = -1, descending: bool = False) -> NativeArray:
    """Return the elements in order along an axis."""
    x = xp.sort(x, axis=axis)
    return xp.flip(x, axis=axis) if descending else x


def run_argsort(xp: Namespace, x: NativeArray, *, axis: int = -1, descending: bool = False) -> NativeArray:
    """Return the indices that sort x along an axis; equal elements stay in order, also if ``descending``."""
    if not descending:
        return xp.argsort(x, axis=axis, stable=True)
    order = xp.flip(xp.argsort(xp.flip(x, axis=axis), axis=axis, stable=True), axis=axis)
    return x.shape[axis] - 1 - order


def run_searchsorted(xp: Namespace, x: NativeArray, values: NativeArray, *, side: str = "left") -> NativeArray:
    """Return the index at which each value would be inserted into the sorted vector x."""
    # copies, as PyTorch warns that operands are not contiguous
    vector, flat_values = (xp.reshape(a, (-1,), copy=True) for a in (x, values))
    return xp.reshape(xp.searchsorted(vector, flat_values, side=side), values.shape)


def run_take_along_axis(xp: Namespace, x: NativeArray, indices: NativeArray, *, axis: int = -1) -> NativeArray:
    """Return the elements of x at the indices along an axis."""
    flat = normalize_indices(xp, indices, x.shape[axis])
    return xp.take_along_axis(x, xp.reshape(flat, indices.shape), axis=axis)


def run_scatter_add_along_axis(
    xp: Namespace, x: NativeArray, indices: NativeArray, *, axis: int, size: int
) -> NativeArray:
    """Return zeros of ``size`` along an axis, to which each element of x is added at its index along this axis."""
    indices = xp.reshape(normalize_indices(xp, indices, size), x.shape)
    x, indices = xp.moveaxis(x, axis, -1), xp.moveaxis(indices, axis, -1)
    num_rows = math.prod(x.shape[:-1])
    first = xp.reshape(size * xp.arange(num_rows, dtype=indices.dtype), (*x.shape[:-1], 1))
    flat = run_scatter_add(xp, xp.reshape(x, (-1,)), indices + first, axis=0, size=num_rows * size)
    return xp.moveaxis(xp.reshape(flat, (*x.shape[:-1], size)), -1, axis)


# --- shape rules ---


def searchsorted_shape(x: Shape, values: Shape, **_: object) -> Shape:
    """Return the shape of the values; x must be a vector."""
    if len(x) != 2 or 1 not in x:
        raise ValueError(f"expected a sorted vector of shape (n, 1) or (1, n), got shape {x}")
    return values


def take_along_axis_shape(x: Shape, indices: Shape, *, axis: int) -> Shape:
    """Return the shape of the indices, which may differ from that of x along the axis only."""
    axis %= len(x)
    if len(x) != len(indices) or any(m != n for a, (m, n) in enumerate(zip(x, indices, strict=True)) if a != axis):
        raise ValueError(f"expected indices of a shape that differs from {x} along axis {axis} only, got {indices}")
    return indices


def scatter_add_along_axis_shape(x: Shape, indices: Shape, *, axis: int, size: int) -> Shape:
    """Return the shape with ``size`` elements along the axis; x and the indices have one shape."""
    if x != indices:
        raise ValueError(f"expected an index for each element of x, of shape {x}, got indices of shape {indices}")
    return (*x[:axis], size, *x[axis:][1:])


# --- gradient rules ---


def grad_prod(be: BackendBase, dz: Operand, z: Operand, x: Operand, axis: Axes, keepdims: bool = True) -> Gradients:
    """Each element gets the product of the others: of those before it, and of those behind it.

    Without a division, so the first and the second derivative are exact where elements are 0.
    """
    dz = be.reshape(dz, reduction_shape(x.shape, axis=axis))
    axes = tuple(i for i in range(x.ndim) if i not in axis) + tuple(axis)
    shape, n = tuple(x.shape[i] for i in axes), math.prod(x.shape[i] for i in axis)
    if n < 2:
        return (dz,)
    rows = be.reshape(be.transpose(x, axes), (-1, n))
    reverse, first = be.array([range(n)[::-1]], dtype="int64"), be.ones((rows.shape[0], 1), dtype=x.info.dtype)

    def before(y: Operand) -> Operand:
        """Return the product of the elements before each one."""
        others = be.build("slice", y, index=((0, y.shape[0], 1), (0, n - 1, 1)))
        return be.concat([first, be.cumulative_prod(others, axis=1)], axis=1)

    others = before(rows) * be.take(before(be.take(rows, reverse, 1)), reverse, 1)
    return (dz * be.transpose(be.reshape(others, shape), tuple(axes.index(i) for i in range(x.ndim))),)


def grad_cumulative_prod(be: BackendBase, dz: Operand, z: Operand, x: Operand, *, axis: int = -1) -> Gradients:
    """Each element gets sum(dz z) / x over itself and later elements; the first 0 gets the sum with 1 in its place.

    Exact where elements are 0; the second derivative is not.
    """

    def sum_from(y: Operand) -> Operand:
        return be.cumulative_sum(y, axis=axis, reverse=True)

    is_zero = be.equal(x, 0)
    is_first_zero = is_zero * be.equal(be.cumulative_sum(is_zero, axis=axis), 1)
    without_first_zero = be.cumulative_prod(be.where(is_first_zero, 1, x), axis=axis)
    regular = sum_from(dz * z) / be.where(is_zero, 1, x)
    return (be.where(is_first_zero, sum_from(dz * without_first_zero), regular),)


def grad_sort(
    be: BackendBase, dz: Operand, z: Operand, x: Operand, *, axis: int = -1, descending: bool = False
) -> Gradients:
    """Each element gets the gradient at its position in the sorted order."""
    order = be.argsort(x, axis=axis, descending=descending)
    return (be.build("scatter_add_along_axis", dz, order, axis=axis, size=x.shape[axis]),)


def grad_take_along_axis(
    be: BackendBase, dz: Operand, z: Operand, x: Operand, indices: Operand, *, axis: int = -1
) -> Gradients:
    """Add up the gradients of the elements at each index."""
    return be.build("scatter_add_along_axis", dz, indices, axis=axis, size=x.shape[axis]), None


def grad_scatter_add_along_axis(
    be: BackendBase, dz: Operand, z: Operand, x: Operand, indices: Operand, *, axis: int, size: int
) -> Gradients:
    """Each element gets the gradient at its index."""
    return be.take_along_axis(dz, indices, axis=axis), None
