"""Functions that change shapes, and that join, repeat and reorder elements; indexing by integers, slices and masks."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from neonlite.array_api import data_types
from neonlite.array_api.array import Array, padded, result, same, with_shape
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import checks_names
from neonlite.messages import describe
from neonlite.ops.functions import Shape, can_broadcast, normalize_axes
from neonlite.typing import NumPyArray

MAX_INT64 = np.uint64(2**63 - 1)


def is_basic(key: Any) -> bool:
    """Return whether an index has only integers, slices, ``...`` and ``None``."""
    keys = key if isinstance(key, tuple) else (key,)
    for k in keys:
        if k is None or k is Ellipsis or isinstance(k, slice):
            continue
        if isinstance(k, bool | np.bool_ | list | np.ndarray):
            return False
        if isinstance(k, Array) and (k.shape or k.dtype.kind == "b"):
            return False
        if not hasattr(k, "__index__"):
            return False
    return True


def get(x: Array, key: Any) -> Array:
    """Return ``x[key]``. An index that depends on tensors or variables is a part of the expression."""
    if isinstance(key, Array) and key.is_live and key.dtype.kind in "iu" and x.shape:
        return take(x, key, axis=0)
    if not is_basic(key):
        return gather(x, key)
    starts, shape = basic_index(x, key)
    be, operand = x.backend, x.operand
    pad = len(operand.shape) - len(x.shape)
    for axis, (start, count, step) in enumerate(starts, pad):  # the runtime has no views with negative steps
        if step < 0 and not be.runtime.supports_negative_strides:
            positions = be.array([[start + step * i for i in range(count)]], dtype="int64")
            operand, starts[axis - pad] = be.take(operand, positions, axis), (0, count, 1)
    if any(spec != (0, n, 1) for spec, n in zip(starts, operand.shape[pad:], strict=True)):
        operand = be.build("slice", operand, index=((0, 1, 1),) * pad + tuple(starts))
    return with_shape(operand, shape, x.dtype, x)


def basic_index(x: Array, key: Any) -> tuple[list[tuple[int, int, int]], Shape]:
    """Return (start, count, step) for each axis, and the shape of the result."""
    keys = list(key) if isinstance(key, tuple) else [key]
    num_indexed = sum(k is not None and k is not Ellipsis for k in keys)
    if num_indexed > x.ndim or keys.count(Ellipsis) > 1:
        raise IndexError(f"expected at most {x.ndim} indices and one '...' for an array {x.shape}, got {key!r}")
    rest = [slice(None)] * (x.ndim - num_indexed)
    position = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    keys[position : position + 1] = rest
    starts: list[tuple[int, int, int]] = []
    shape: list[int] = []
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        n = x.shape[len(starts)]
        if isinstance(k, slice):
            start, stop, step = k.indices(n)
            count = len(range(start, stop, step))
            starts.append((start if count else 0, count, step if count else 1))
            shape.append(count)
        else:
            i = k.__index__()
            if not -n <= i < n:
                raise IndexError(f"index {i} is out of range for axis {len(starts)} with size {n}, in {x.shape}")
            starts.append((i % n, 1, 1))
    return starts, tuple(shape)


def gather(x: Array, key: Any) -> Array:
    """Return the elements that integer arrays or a mask select."""
    be = x.backend
    if x.shape and (rows := as_rows(x.shape[0], key)) is not None:
        taken = take_positions(x, rows.reshape(-1), 0)
        return with_shape(taken.operand, rows.shape + x.shape[1:], x.dtype, x)
    positions = select_positions(x.shape, key)
    flat = be.reshape(x.operand, (1, x.size))
    indices = be.array(positions.reshape(1, -1), dtype="int64")
    return with_shape(be.take(flat, indices, 1), positions.shape, x.dtype, x)


def write_in_place(x: Array, key: Any, v: Array) -> bool:
    """Write a value to ``x[key]`` in the memory of x, in time proportional to the value; return whether it could.

    It is for constants and an index without arrays. The memory of x is copied first if an expression, a view or another
    array refers to it.
    """
    be = x.backend
    if x.is_live or v.is_live or not is_basic(key):
        return False
    starts, shape = basic_index(x, key)
    if (
        not all(step > 0 for _, _, step in starts)
        or not can_broadcast(padded(v.shape), padded(shape))
        or v.ndim > len(shape)
    ):
        return False
    v.tensor()  # an expression of x, as in x[0] += 1, no longer refers to its memory
    x.own_memory()
    slices = tuple(
        slice(start, start + (count - 1) * step + 1 if count else start, step) for start, count, step in starts
    )
    target = cast("Tensor", x.operand)[(slice(None),) * (len(x.operand.shape) - x.ndim) + slices]
    operand = data_types.broadcast_to(v, shape).operand if v.shape != shape else v.operand
    target[:] = be.reshape(operand, target.shape)
    return True


def as_rows(n: int, key: Any) -> NumPyArray | None:
    """Return an index that is one array of integers, which are checked; None for any other index."""
    if isinstance(key, tuple) or not (hasattr(key, "__array__") or isinstance(key, list)):
        return None
    rows = np.asarray(key)
    if rows.dtype.kind not in "iu" or not rows.size:
        return None
    low, high = int(rows.min()), int(rows.max())
    if low < -n or high >= n:
        raise IndexError(f"index {low if low < -n else high} is out of range for axis 0 with size {n}")
    return rows


class _Probe:
    """An object that counts the references to itself during an item assignment, where nothing else refers to it."""

    count = 0

    def __setitem__(x, key: Any, value: Any) -> None:  # named as the parameter of assign
        _Probe.count = sys.getrefcount(x)


_Probe()[0] = None


def assign(x: Array, key: Any, value: Any) -> None:
    """Write a value, cast to the dtype of x, to ``x[key]``.

    ValueError if nothing else refers to x, as in ``y[i][j] = value``, where x is a copy ``y[i]``.
    """
    # Python 3.14 does not count the use of a local variable of the caller as a reference
    if sys.getrefcount(x) == _Probe.count and id(x) not in map(id, sys._getframe(1).f_locals.values()):
        raise ValueError(
            f"x[i][j] = value: expected an array that a name refers to, got the result of an expression, "
            f"{describe(x)}. Arrays share no memory, so it would be lost. Use one index, x[i, j] = value, "
            "or x[...] = where(condition, value, x)."
        )
    v = data_types.as_array(value, x)
    data_types.check_can_assign(x, v, value)
    v = data_types.to_dtype(v, x.dtype)
    if not write_in_place(x, key, v):
        x.replace(replaced(x, key, v))


def replaced(x: Array, key: Any, v: Array) -> Array:
    """Return x with the elements ``x[key]`` replaced by values of its dtype."""
    be = x.backend
    positions = select_positions(x.shape, key)
    if v.ndim > positions.ndim and v.size == math.prod(v.shape[v.ndim - positions.ndim :]):  # as in NumPy
        v = with_shape(v.operand, v.shape[v.ndim - positions.ndim :], v.dtype, v)
    try:
        value, v = v, data_types.broadcast_to(v, positions.shape)
    except ValueError:
        raise ValueError(
            f"x[...] = value: expected a value that broadcasts to {positions.shape}, got {describe(v)}"
        ) from None
    if not positions.size:
        return x
    if positions.size == x.size and (positions.ravel() == np.arange(x.size)).all():
        return with_shape(v.operand, x.shape, x.dtype, v)
    if not (x.is_live or v.is_live):
        values = value.numpy()
        x.own_memory()
        if (memory := host_view(cast("Tensor", x.operand))) is not None:
            memory.reshape(-1)[positions] = values
            return x
    source = np.arange(x.size)
    source[positions.ravel()] = x.size + np.arange(positions.size)  # the last value wins
    both = be.concat([be.reshape(x.operand, (1, x.size)), be.reshape(v.operand, (1, v.size))], axis=1)
    return with_shape(be.take(both, be.array(source[None], dtype="int64"), 1), x.shape, x.dtype, x, v)


def host_view(t: Tensor) -> NumPyArray | None:
    """Return a NumPy array on the memory of a tensor, to be written; None if the library of the runtime has none."""
    try:
        memory = t.backend.runtime.numpy_view(t._array)
    except BufferError:
        return None
    return memory if memory.flags.writeable else None


def select_positions(shape: Shape, key: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the positions in C order of the elements that an index selects, by NumPy's rules."""
    keys = key if isinstance(key, tuple) else (key,)
    keys = tuple(np.asarray(k) if hasattr(k, "__array__") or isinstance(k, list) else k for k in keys)
    keys = tuple(
        k.astype(np.int64) if isinstance(k, np.ndarray) and k.size == 0 and k.dtype.kind == "f" else k for k in keys
    )
    # NumPy casts indices to int64: one that it does not hold is out of range
    keys = tuple(np.minimum(k, MAX_INT64) if getattr(k, "dtype", None) == np.uint64 else k for k in keys)
    if len(keys) == 1 and getattr(keys[0], "dtype", None) == np.bool and keys[0].shape == shape != ():
        return np.flatnonzero(keys[0])
    positions: np.ndarray[Any, np.dtype[np.int64]] = np.arange(math.prod(shape)).reshape(shape)[keys]
    return np.asarray(positions)


# --- functions that change shapes, and that join, repeat and reorder elements ---

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
    axes = data_types.as_integers(f"{name}: axis", axis)
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
    parts = data_types.check_arrays("concat", *arrays)
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
        dtype = data_types.promote(dtype, x.dtype)
    parts = [data_types.to_dtype(x, dtype) for x in parts]
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
    (x,) = data_types.check_arrays("expand_dims", x)
    axes = data_types.as_integers("expand_dims: axis", axis)
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
    (x,) = data_types.check_arrays("flip", x)
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
    return data_types.check_arrays("matrix_transpose", x)[0].mT


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
    (x,) = data_types.check_arrays("moveaxis", x)
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
    (x,) = data_types.check_arrays("permute_dims", x)
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
    (x,) = data_types.check_arrays("repeat", x)
    x, axis = (reshape(x, (-1,)), 0) if axis is None else (x, axis_of("repeat", x, axis))
    n, counts = x.shape[axis], np.asarray(repeats)
    if counts.dtype.kind in "iu" and counts.size == 1 and counts.min() >= 0:
        before, after, count = x.shape[:axis], x.shape[axis + 1 :], int(counts.min())
        wide = data_types.broadcast_to(reshape(x, (*before, n, 1, *after)), (*before, n, count, *after))
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
    (x,) = data_types.check_arrays("reshape", x)
    sizes = [*data_types.as_integers("reshape: shape", shape)]
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
    (x,) = data_types.check_arrays("roll", x)
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    axes, shifts = data_types.as_integers("roll: axis", axis), data_types.as_integers("roll: shift", shift)
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
    (x,) = data_types.check_arrays("squeeze", x)
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
    return concat([expand_dims(x, axis=axis) for x in data_types.check_arrays("stack", *arrays)], axis=axis)


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
    (x,) = data_types.check_arrays("tile", x)
    counts = data_types.as_integers("tile: repetitions", repetitions)
    ndim = max(x.ndim, len(counts))
    counts = (1,) * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - x.ndim) + x.shape
    between = reshape(x, tuple(n for size in shape for n in (1, size)))
    wide = data_types.broadcast_to(between, tuple(n for pair in zip(counts, shape, strict=True) for n in pair))
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
    (x,) = data_types.check_arrays("unstack", x)
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
    x, indices = data_types.check_arrays("take", x, indices)
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
    x, indices = data_types.check_arrays("take_along_axis", x, indices)
    check_indices("take_along_axis", indices)
    i = axis_of("take_along_axis", x, axis)
    if x.ndim != indices.ndim:
        raise ValueError(
            f"take_along_axis: expected indices of {x.ndim} dimensions, got {describe(indices)} for {describe(x)}"
        )
    shape = np.broadcast_shapes((*x.shape[:i], 1, *x.shape[i + 1 :]), (*indices.shape[:i], 1, *indices.shape[i + 1 :]))
    x = data_types.broadcast_to(x, (*shape[:i], x.shape[i], *shape[i + 1 :]))
    indices = data_types.broadcast_to(indices, (*shape[:i], indices.shape[i], *shape[i + 1 :]))
    pad = len(x.operand.shape) - x.ndim
    return result(x.backend.take_along_axis(x.operand, indices.operand, i + pad), x.ndim, x.dtype, x, indices)


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
    arrays = tuple(data_types.check_arrays("meshgrid", *arrays))
    if any(x.ndim != 1 for x in arrays):
        raise ValueError(f"meshgrid: expected one dimension, got {describe(*arrays)}")
    order = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        order[:2] = 1, 0
    shapes = [tuple(-1 if k == axis else 1 for k in order) for axis in range(len(order))]
    return data_types.broadcast_arrays(*(reshape(x, shape) for x, shape in zip(arrays, shapes, strict=True)))


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
    (x,) = data_types.check_arrays(name, x)
    if x.ndim < 2:
        raise ValueError(f"{name}: expected at least two dimensions, got {describe(x)}")
    return result(getattr(x.backend, name)(x.operand, k), x.ndim, x.dtype, x)
