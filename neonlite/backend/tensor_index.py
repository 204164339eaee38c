"""Parsing of the indices of tensors: integers, slices and ``...``."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from neonlite.messages import describe
from neonlite.optree import Operand
from neonlite.shapes import SliceSpec
from neonlite.typing import IndexLike

if TYPE_CHECKING:
    from neonlite.backend.tensor import Tensor

FULL_SLICE = slice(None)
BOOLEAN_INDEX_HINT = "Select elements with be.where(mask, t, 0), or slices with be.take(t, indices, axis)."


def parse_index(t: Tensor, index: IndexLike) -> tuple[SliceSpec, list[int]]:
    """Return (start, count, step) for each axis, and the axes that an integer index drops."""
    if isinstance(index, Operand) or is_boolean_index(index):
        raise IndexError(_wrong_index(t, index))
    parts = list(index) if isinstance(index, tuple) else [index]
    if sum(item is Ellipsis for item in parts) == 1:
        at = [item is Ellipsis for item in parts].index(True)
        parts[at : at + 1] = [FULL_SLICE] * (t.ndim - len(parts) + 1)
    if len(parts) > t.ndim:
        raise IndexError(f"{t._describe()}: expected at most {t.ndim} indices, got {len(parts)}")
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
        elif isinstance(item, Operand) or is_boolean_index(item):
            raise IndexError(_wrong_index(t, item))
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
                f"{t._describe()}: expected integers, slices and ... as indices, got {describe(item)}. Use "
                "be.take for a list, and t.reshape to add an axis."
            )
    return tuple(slices), dropped_axes


def _wrong_index(t: Tensor, index: object) -> str:
    return (
        f"{t._describe()}: expected integers, slices and ... as indices, got the boolean or tensor index "
        f"{describe(index)}, which would give a shape that depends on values. {BOOLEAN_INDEX_HINT}"
    )


def is_boolean_index(index: object) -> bool:
    """Return whether an index is a boolean or contains booleans."""
    if isinstance(index, list):
        return any(isinstance(x, bool | np.bool_) for x in index)
    return isinstance(index, bool | np.bool_) or getattr(index, "dtype", None) == np.bool_
