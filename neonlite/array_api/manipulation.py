"""Functions that change shapes, and that join, repeat and reorder elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from neonlite.array_api.arguments import as_integers, check_arrays
from neonlite.array_api.array import Array, result, same, with_shape
from neonlite.array_api.data_types import broadcast_arrays, broadcast_to
from neonlite.array_api.promotion import promote, to_dtype
from neonlite.backend.validation import checks_names
from neonlite.messages import describe
from neonlite.ops.shapes import normalize_axes

Axis = int | Sequence[int] | None


def axes_of(name: str, x: Array, axis: Axis) -> tuple[int, ...]:
    """Return axes as sorted numbers from 0; IndexError for an axis that the array does not have."""
    try:
        return normalize_axes(axis, x.ndim)
    except (IndexError, ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}, for {describe(x)}") from None


def axis_of(name: str, x: Array, axis: int) -> int:
    """Return one axis as a number from 0."""
    if not hasattr(axis, "__index__"):
        raise TypeError(f"{name}: expected an integer as axis, got {axis!r}, for {describe(x)}")
    return axes_of(name, x, axis)[0]


def ordered_axes(name: str, x: Array, axis: Any) -> tuple[int, ...]:
    """Return an axis, or several, as numbers from 0 in the given order."""
    axes = as_integers(f"{name}: axis", axis)
    axes_of(name, x, axes)
    return tuple(a % x.ndim for a in axes)


@checks_names
def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Join arrays along an axis.

    Parameters
    ----------
    arrays : sequence of Array
        The arrays, of equal sizes on the other axes.
    axis : int or None
        The axis; None joins the flattened arrays. Default: 0.

    Returns
    -------
    Array
        The joined array.
    """
    parts = check_arrays("concat", *arrays)
    if not parts:
        raise ValueError("concat: expected at least one array, got none")
    if axis is None:
        parts, axis = [reshape(x, (-1,)) for x in parts], 0
    axis = axis_of("concat", parts[0], axis)
    rest = {(x.ndim, *x.shape[:axis], *x.shape[axis + 1 :]) for x in parts}
    if len(rest) > 1:
        shapes = ", ".join(str(x.shape) for x in parts)
        raise ValueError(f"concat: expected shapes that are equal except on axis {axis}, got {shapes}")
    dtype = parts[0].dtype
    for x in parts[1:]:
        dtype = promote(dtype, x.dtype)
    parts = [to_dtype(x, dtype) for x in parts]
    pad = len(parts[0].operand.shape) - parts[0].ndim
    operand = parts[0].backend.concat([x.operand for x in parts], axis=axis + pad)
    return result(operand, parts[0].ndim, dtype, *parts)


@checks_names
def expand_dims(x: Array, /, axis: int | tuple[int, ...] = 0) -> Array:
    """Insert axes of size 1.

    Parameters
    ----------
    x : Array
        The array.
    axis : int or tuple of int
        The positions in the new shape.

    Returns
    -------
    Array
        The array with more axes.
    """
    (x,) = check_arrays("expand_dims", x)
    axes = as_integers("expand_dims: axis", axis)
    ndim = x.ndim + len(axes)
    try:
        axes = normalize_axes(axes, ndim)
    except (IndexError, ValueError) as error:
        raise type(error)(f"expand_dims: {error}, for {describe(x)}") from None
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if i in axes else next(sizes) for i in range(ndim)))


@checks_names
def flip(x: Array, /, *, axis: Axis = None) -> Array:
    """Reverse the order of the elements along axes.

    Parameters
    ----------
    x : Array
        The array.
    axis : int or tuple of int, optional
        The axes; default all.

    Returns
    -------
    Array
        The array.
    """
    (x,) = check_arrays("flip", x)
    axes = axes_of("flip", x, axis)
    return x[tuple(slice(None, None, -1 if i in axes else 1) for i in range(x.ndim))]


def matrix_transpose(x: Array, /) -> Array:
    """Transpose the matrices in the last two axes.

    Parameters
    ----------
    x : Array
        The matrices.

    Returns
    -------
    Array
        The transposes.
    """
    return check_arrays("matrix_transpose", x)[0].mT


def moveaxis(x: Array, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Array:
    """Move axes to other positions.

    Parameters
    ----------
    x : Array
        The array.
    source, destination : int or tuple of int
        The positions before and after.

    Returns
    -------
    Array
        The array.
    """
    (x,) = check_arrays("moveaxis", x)
    sources, targets = ordered_axes("moveaxis", x, source), ordered_axes("moveaxis", x, destination)
    if len(sources) != len(targets):
        raise ValueError(f"moveaxis: expected as many destinations as sources, got {source} and {destination}")
    order = [i for i in range(x.ndim) if i not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return permute_dims(x, tuple(order))


def permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
    """Permute the axes.

    Parameters
    ----------
    x : Array
        The array.
    axes : tuple of int
        The axes in the new order.

    Returns
    -------
    Array
        The array.
    """
    (x,) = check_arrays("permute_dims", x)
    order = ordered_axes("permute_dims", x, axes)
    if len(order) != x.ndim:
        raise ValueError(f"permute_dims: expected all axes of {describe(x)}, got {axes}")
    return result(x.backend.transpose(x.operand, order), x.ndim, x.dtype, x) if x.ndim > 1 else same(x)


@checks_names
def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Repeat each element.

    Parameters
    ----------
    x : Array
        The array.
    repeats : int or Array
        How often; an array gives a number for each element along the axis, and is evaluated at once.
    axis : int, optional
        The axis; default: of the flattened array.

    Returns
    -------
    Array
        The array.
    """
    (x,) = check_arrays("repeat", x)
    x, axis = (reshape(x, (-1,)), 0) if axis is None else (x, axis_of("repeat", x, axis))
    n, counts = x.shape[axis], np.asarray(repeats)
    if counts.dtype.kind in "iu" and counts.size == 1 and counts.min() >= 0:
        before, after, count = x.shape[:axis], x.shape[axis + 1 :], int(counts.min())
        wide = broadcast_to(reshape(x, (*before, n, 1, *after)), (*before, n, count, *after))
        return reshape(wide, (*before, n * count, *after))
    return take_positions(x, np.repeat(np.arange(x.shape[axis]), counts), axis)


def take_positions(x: Array, positions: np.ndarray[Any, Any], axis: int) -> Array:
    """Return the elements at positions along an axis."""
    be, pad = x.backend, len(x.operand.shape) - x.ndim
    indices = be.array(positions.reshape(1, -1), dtype="int64")
    return result(be.take(x.operand, indices, axis + pad), x.ndim, x.dtype, x)


def reshape(x: Array, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Array:
    """Return the elements in another shape, in C order.

    Parameters
    ----------
    x : Array
        The array.
    shape : tuple of int
        The shape; -1 for one size that follows from the others.
    copy : bool, optional
        For compatibility with the standard: arrays share no memory.

    Returns
    -------
    Array
        The array.

    Raises
    ------
    ValueError
        The shape has another number of elements.
    """
    (x,) = check_arrays("reshape", x)
    sizes = [*as_integers("reshape: shape", shape)]
    known = math.prod(n for n in sizes if n != -1)
    if sizes.count(-1) == 1 and known and not x.size % known:
        sizes[sizes.index(-1)] = x.size // known
    if -1 in sizes or math.prod(sizes) != x.size:
        raise ValueError(f"reshape: expected a shape of {x.size} elements for {describe(x)}, got {shape}")
    return with_shape(x.operand, tuple(sizes), x.dtype, x)


@checks_names
def roll(x: Array, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> Array:
    """Shift the elements along axes; those behind the end come back at the start.

    Parameters
    ----------
    x : Array
        The array.
    shift : int or tuple of int
        The number of positions.
    axis : int or tuple of int, optional
        The axes; default: of the flattened array.

    Returns
    -------
    Array
        The array.
    """
    (x,) = check_arrays("roll", x)
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    axes, shifts = as_integers("roll: axis", axis), as_integers("roll: shift", shift)
    if len(shifts) == 1:
        shifts *= len(axes)
    if len(axes) == 1:
        axes *= len(shifts)
    if len(axes) != len(shifts):
        raise ValueError(f"roll: expected one shift for each axis, got shift {shift} and axis {axis}")
    for i in axes:
        axis_of("roll", x, i)
    for n, a in zip(shifts, axes, strict=True):
        i = a % x.ndim
        size = x.shape[i]
        if size and n % size:
            head, tail = ((slice(None),) * i + (s,) for s in (slice(size - n % size, None), slice(size - n % size)))
            x = concat([x[head], x[tail]], axis=i)
    return same(x)


@checks_names
def squeeze(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """Remove axes of size 1.

    Parameters
    ----------
    x : Array
        The array.
    axis : int or tuple of int
        The axes.

    Returns
    -------
    Array
        The array with fewer axes.

    Raises
    ------
    ValueError
        An axis has another size.
    """
    (x,) = check_arrays("squeeze", x)
    axes = axes_of("squeeze", x, axis)
    if any(x.shape[i] != 1 for i in axes):
        raise ValueError(f"squeeze: expected axes of size 1, got {axis} of {describe(x)}")
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes))


@checks_names
def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Join arrays of one shape along a new axis.

    Parameters
    ----------
    arrays : sequence of Array
        The arrays.
    axis : int
        The position of the new axis.

    Returns
    -------
    Array
        The joined array.
    """
    return concat([expand_dims(x, axis=axis) for x in check_arrays("stack", *arrays)], axis=axis)


def tile(x: Array, repetitions: tuple[int, ...], /) -> Array:
    """Repeat an array along its axes.

    Parameters
    ----------
    x : Array
        The array.
    repetitions : tuple of int
        How often, for each axis; the shorter one of it and the shape gets ones in front.

    Returns
    -------
    Array
        The array.
    """
    (x,) = check_arrays("tile", x)
    counts = as_integers("tile: repetitions", repetitions)
    ndim = max(x.ndim, len(counts))
    counts = (1,) * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - x.ndim) + x.shape
    between = reshape(x, tuple(n for size in shape for n in (1, size)))
    wide = broadcast_to(between, tuple(n for pair in zip(counts, shape, strict=True) for n in pair))
    return reshape(wide, tuple(n * size for n, size in zip(counts, shape, strict=True)))


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """Split an array along an axis.

    Parameters
    ----------
    x : Array
        The array.
    axis : int
        The axis.

    Returns
    -------
    tuple of Array
        The parts, without the axis.
    """
    (x,) = check_arrays("unstack", x)
    i = axis_of("unstack", x, axis)
    return tuple(x[(slice(None),) * i + (n,)] for n in range(x.shape[i]))


# --- indexing functions ---


def check_indices(name: str, indices: Array) -> None:
    """Raise TypeError unless an array holds integers."""
    if indices.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers as indices, got {describe(indices)}")


@checks_names
def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """Return the elements at indices along an axis.

    Parameters
    ----------
    x : Array
        The array.
    indices : Array
        The indices, one-dimensional; negative ones count from the end.
    axis : int, optional
        The axis; may be left out for a one-dimensional array.

    Returns
    -------
    Array
        The elements.
    """
    x, indices = check_arrays("take", x, indices)
    check_indices("take", indices)
    if axis is None and x.ndim != 1:
        raise ValueError(f"take: expected axis for {describe(x)}, got none")
    i = axis_of("take", x, 0 if axis is None else axis)
    be, pad = x.backend, len(x.operand.shape) - x.ndim
    flat = be.take(x.operand, be.reshape(indices.operand, (1, indices.size)), i + pad)
    return with_shape(flat, (*x.shape[:i], *indices.shape, *x.shape[i + 1 :]), x.dtype, x, indices)


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """Return the elements at indices along an axis, with indices for each position on the other axes.

    Parameters
    ----------
    x : Array
        The array.
    indices : Array
        The indices, of the shape of x except on the axis, or of size 1.
    axis : int
        The axis; default the last.

    Returns
    -------
    Array
        The elements, of the shape of the indices.
    """
    x, indices = check_arrays("take_along_axis", x, indices)
    check_indices("take_along_axis", indices)
    i = axis_of("take_along_axis", x, axis)
    if x.ndim != indices.ndim:
        raise ValueError(
            f"take_along_axis: expected indices of {x.ndim} dimensions, got {describe(indices)} for {describe(x)}"
        )
    shape = np.broadcast_shapes((*x.shape[:i], 1, *x.shape[i + 1 :]), (*indices.shape[:i], 1, *indices.shape[i + 1 :]))
    x = broadcast_to(x, (*shape[:i], x.shape[i], *shape[i + 1 :]))
    indices = broadcast_to(indices, (*shape[:i], indices.shape[i], *shape[i + 1 :]))
    grids: list[Any] = list(np.indices(indices.shape, sparse=True))
    grids[i] = indices
    return x[tuple(grids)]


# --- matrices and grids ---


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Return the coordinates of a grid.

    Parameters
    ----------
    *arrays : Array
        The coordinates along each axis, one-dimensional.
    indexing : {"xy", "ij"}
        "ij": the first array varies along the first axis. "xy", the default: along the second one.

    Returns
    -------
    list of Array
        An array of the shape of the grid for each axis.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: expected indexing 'xy' or 'ij', got {indexing!r}")
    arrays = tuple(check_arrays("meshgrid", *arrays))
    if any(x.ndim != 1 for x in arrays):
        raise ValueError(f"meshgrid: expected one dimension, got {describe(*arrays)}")
    order = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        order[:2] = 1, 0
    shapes = [tuple(-1 if k == axis else 1 for k in order) for axis in range(len(order))]
    return broadcast_arrays(*(reshape(x, shape) for x, shape in zip(arrays, shapes, strict=True)))


def tril(x: Array, /, *, k: int = 0) -> Array:
    """Return matrices with zeros above a diagonal.

    Parameters
    ----------
    x : Array
        The matrices, in the last two axes.
    k : int
        The diagonal, as for ``eye``.

    Returns
    -------
    Array
        The matrices.
    """
    return _triangle("tril", x, k)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """Return matrices with zeros below a diagonal.

    Parameters
    ----------
    x : Array
        The matrices, in the last two axes.
    k : int
        The diagonal, as for ``eye``.

    Returns
    -------
    Array
        The matrices.
    """
    return _triangle("triu", x, k)


def _triangle(name: str, x: Any, k: int) -> Array:
    (x,) = check_arrays(name, x)
    if x.ndim < 2:
        raise ValueError(f"{name}: expected at least two dimensions, got {describe(x)}")
    return result(getattr(x.backend, name)(x.operand, k), x.ndim, x.dtype, x)
