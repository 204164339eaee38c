"""Indices of tensors: integers, slices and ``...`` select views; index arrays and masks copy and write elements."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.messages import describe
from neonlite.ops.shapes import SliceSpec
from neonlite.optree import Operand
from neonlite.typing import ArrayLike, IndexLike, NumPyArray

if TYPE_CHECKING:
    from neonlite.backend.tensor import Tensor

FULL_SLICE = slice(None)
INDEX_ARRAY_HINT = "Use t[mask] with a mask of the tensor's shape or one per row, t[[0, 2]], or t[:, [1, 2]]."


def parse_index(t: Tensor, index: IndexLike) -> tuple[SliceSpec, list[int]] | None:
    """Return (start, count, step) for each axis, and the axes that an integer index drops; None for an index array."""
    if _is_index_array(index):
        return None
    parts = _expand(t, index)
    slices, dropped_axes = [], []
    for axis, size in enumerate(t.shape):
        item = parts[axis] if axis < len(parts) else FULL_SLICE
        if isinstance(item, slice):
            start, stop, step = item.indices(size)
            count = len(range(start, stop, step))
            if step < 0 and not t.backend.runtime.supports_negative_strides:
                raise IndexError(
                    f"{t._describe()}: expected a step >= 1 on the runtime {t.backend.name!r}, got {step}. Use be.take."
                )
            slices.append((start if count else 0, count, step))
        elif _is_index_array(item):
            return None
        elif isinstance(item, bool | np.bool_):
            raise IndexError(f"{t._describe()}: expected an index or a mask, got {item}. {INDEX_ARRAY_HINT}")
        elif hasattr(item, "__index__") and getattr(item, "shape", ()) == ():
            i = operator.index(item)
            if not -size <= i < size:
                raise IndexError(
                    f"{t._describe()}: expected an index from {-size} to {size - 1} for axis {axis}, got {i}"
                )
            slices.append((i % size, 1, 1))
            dropped_axes.append(axis)
        else:
            raise TypeError(
                f"{t._describe()}: expected integers, slices, ..., index arrays or masks as indices, got "
                f"{describe(item)}. Use t.reshape to add an axis."
            )
    return tuple(slices), dropped_axes


def _expand(t: Tensor, index: Any) -> list[Any]:
    """Return the index of each axis, with ``...`` replaced by slices."""
    parts = [*index] if type(index) is tuple else [index]
    if sum(item is Ellipsis for item in parts) == 1:
        at = [item is Ellipsis for item in parts].index(True)
        parts[at : at + 1] = [FULL_SLICE] * (t.ndim - len(parts) + 1)
    if len(parts) > t.ndim:
        raise IndexError(f"{t._describe()}: expected at most {t.ndim} indices, got {len(parts)}")
    return parts


def _is_index_array(item: object) -> bool:
    return isinstance(item, Operand | list) or getattr(item, "shape", ()) != ()


# --- index arrays and masks ------------------------------------------------------------------------------------------


def gather(t: Tensor, index: IndexLike) -> Tensor:
    """Return a copy of the elements that an index array or a mask selects."""
    view, axis, indices = _parse_index_array(t, index)
    x = view if axis is not None else t.backend.reshape(view, -1, 1)
    return t.backend.evaluate([t.backend.take(x, indices, axis or 0)])[0]


def scatter(t: Tensor, index: IndexLike, value: ArrayLike) -> None:
    """Write the elements that an index array or a mask selects; of an index given twice, the last value remains."""
    view, axis, indices = _parse_index_array(t, index)
    be = t.backend
    x, axis = (be.reshape(view, -1, 1), 0) if axis is None else (view, axis)
    n = x.shape[axis]
    values = be.empty((*x.shape[:axis], len(indices), *x.shape[axis + 1 :]), t.info.dtype)
    values[:] = value  # checked and cast like any assignment
    if values.size == 0:
        return
    is_written, source = np.zeros(n), np.zeros(n, np.int64)  # the position in values of each slice of x
    is_written[indices], source[indices] = 1, np.arange(len(indices))
    mask = be.array(is_written.reshape([n if i == axis else 1 for i in range(x.ndim)]))
    view[:] = be.reshape(be.where(mask, be.take(values, source, axis), x), view.shape)


def _parse_index_array(t: Tensor, index: IndexLike) -> tuple[Tensor, int | None, NumPyArray]:
    """Return a view of t, and the indices along an axis of it that an index with an array selects.

    Without an axis, they are indices of elements in C order.
    """
    parts = _expand(t, index)
    axes = [axis for axis, item in enumerate(parts) if _is_index_array(item)]
    array, is_mask = _index_values(t, parts[axes[0]])
    if is_mask and len(parts) == 1 and array.shape == t.shape:
        return t, None, np.flatnonzero(array)
    if len(axes) == 1:
        axis = axes[0]
        indices = _indices_along(t, axis, parts[axis])
        view = t[tuple([FULL_SLICE if i == axis else item for i, item in enumerate(parts)])]
        positions = [i for i, item in enumerate(parts) if not isinstance(item, slice)]
        if positions[-1] - positions[0] >= len(positions):  # NumPy moves these axes to the front
            raise IndexError(f"{t._describe()}: expected integers next to the index array, got a slice between them.")
        return view, axis - min(positions.index(axis), t.ndim - view.ndim), indices
    if len(axes) == len(parts) == t.ndim:
        try:
            arrays = np.broadcast_arrays(*[_indices_along(t, axis, parts[axis]) for axis in axes])
        except ValueError as error:
            raise IndexError(f"{t._describe()}: expected index arrays of one length; {error}") from None
        return t, None, np.ravel_multi_index(tuple(arrays), t.shape)
    raise IndexError(
        f"{t._describe()}: expected one index array and slices, or an index array for each of {t.ndim} axes, got "
        f"{len(axes)} index arrays. {INDEX_ARRAY_HINT}"
    )


def _indices_along(t: Tensor, axis: int, item: object) -> NumPyArray:
    """Return an index array or a mask as indices >= 0 along an axis."""
    array, is_mask = _index_values(t, item)
    n, what = t.shape[axis], f"{t._describe()}: expected"
    values = array.ravel()
    if array.size not in array.shape:
        raise IndexError(f"{what} a vector as the index of axis {axis}, got {array.shape}. {INDEX_ARRAY_HINT}")
    if is_mask:
        if len(values) != n or (axis == 0 and len(array) != n):
            raise IndexError(f"{what} a mask of {n} elements for axis {axis}, got {array.shape}. {INDEX_ARRAY_HINT}")
        return np.flatnonzero(values)
    if values.size and not (-n <= values.min() and values.max() < n):
        wrong = values[(values < -n) | (values >= n)][0]
        raise IndexError(f"{what} an index from {-n} to {n - 1} for axis {axis}, got {wrong}")
    return values % n if n else values


def _index_values(t: Tensor, item: Any) -> tuple[NumPyArray, bool]:
    """Return the values of an index array or a mask, and whether it is a mask: boolean, or 0 and 1 as floats."""
    if not isinstance(item, Operand):
        array = np.asarray(item)
        if array.dtype.kind not in "biu" and array.size:
            raise TypeError(f"{t._describe()}: expected integers or booleans as an index array, got {describe(item)}")
        return (array, array.dtype.kind == "b") if array.size else (array.astype(np.int64), False)
    array = item.get()
    is_mask = array.dtype.kind not in "iu"
    if is_mask and not ((array == 0) | (array == 1)).all():
        raise IndexError(
            f"{t._describe()}: expected a mask of 0 and 1, or an index array with an integer dtype, got "
            f"{describe(item)} with dtype {item.info.dtype}. Compare, as in t[x > 0], or cast: t[x.astype('int32')]."
        )
    return array, is_mask
