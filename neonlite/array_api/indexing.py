"""Indexing of arrays by integers, slices, ``...``, ``None``, integer arrays and boolean masks.

Integers and slices are views. Integer arrays and masks are evaluated at once, as the shape of the result may depend on
them; the elements that they select are gathered by an op-tree. An assignment gathers from the old elements and the new
values.
"""

from __future__ import annotations

import math
import sys
from typing import Any, cast

import numpy as np

from neonlite.array_api.arguments import as_array
from neonlite.array_api.array import Array, padded, with_shape
from neonlite.array_api.data_types import broadcast_to
from neonlite.array_api.manipulation import take_positions
from neonlite.array_api.promotion import check_can_assign, to_dtype
from neonlite.backend.planning.layout import write_chwn
from neonlite.backend.tensor import Tensor
from neonlite.messages import describe
from neonlite.ops.shapes import Shape, can_broadcast
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
    """Return ``x[key]``."""
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
    operand = broadcast_to(v, shape).operand if v.shape != shape else v.operand
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
    v = as_array(value, x)
    check_can_assign(x, v, value)
    v = to_dtype(v, x.dtype)
    if not write_in_place(x, key, v):
        x.replace(replaced(x, key, v))


def replaced(x: Array, key: Any, v: Array) -> Array:
    """Return x with the elements ``x[key]`` replaced by values of its dtype."""
    be = x.backend
    positions = select_positions(x.shape, key)
    if v.ndim > positions.ndim and v.size == math.prod(v.shape[v.ndim - positions.ndim :]):  # as in NumPy
        v = with_shape(v.operand, v.shape[v.ndim - positions.ndim :], v.dtype, v)
    try:
        value, v = v, broadcast_to(v, positions.shape)
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
        memory = t.backend.runtime.numpy_view(write_chwn(t))
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
