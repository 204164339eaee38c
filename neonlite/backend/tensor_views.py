"""Views and copies of tensors: ``reshape``, ``permute``, ``share``, ``take``, deep copies; whether tensors overlap."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from neonlite.backend.tensor_index import FULL_SLICE
from neonlite.ops.functions import to_slices
from neonlite.ops.shapes import Shape, contiguous_strides, reshape_shape, transpose_shape
from neonlite.typing import ArrayLike, DTypeLike, ShapeLike

if TYPE_CHECKING:
    from neonlite.backend.tensor import Tensor






def drop_axis(t: Tensor, axis: int) -> Tensor:
    """Return a view without an axis of size 1."""
    keep = [i for i in range(t.ndim) if i != axis]
    array = t.storage[tuple(0 if i == axis else FULL_SLICE for i in range(t.ndim))]
    shape, strides = tuple(t.shape[i] for i in keep), tuple(t.strides[i] for i in keep)
    return t._make_view(array, shape, strides, t.storage_offset, "reshape", {"to": shape})








def view_steps(t: Tensor) -> Iterator[tuple[Tensor, str, dict[str, Any]]]:
    """Yield (base, op, attributes) of each view, from this tensor to the one that owns the memory."""
    while t.base is not None and t.view_op is not None:
        yield t.base, *t.view_op
        t = t.base


def replay_view(t: Tensor, base: Tensor) -> Tensor:
    """Return the same view of another base of the same shape."""
    op, attrs = t.view_op or ("", {})
    if op == "slice":
        return base[to_slices(attrs["index"])]
    if op == "transpose":
        return base.permute(attrs["axes"])
    if base.is_contiguous:
        return base.reshape(t.shape)
    # a reshape of a non-contiguous base is a view only if it drops an axis of size 1
    axes = (i for i in range(base.ndim) if base.shape[:i] + base.shape[i + 1 :] == t.shape)
    return drop_axis(base, next(axes))


def overlap(x: Tensor, y: Tensor) -> str:
    """Return how two tensors share memory: "none", "exact" (every element at the same address) or "partial"."""
    if x.allocation is not y.allocation or x.span[0] >= y.span[1] or y.span[0] >= x.span[1]:
        return "none"
    same = x.shape == y.shape and x.strides == y.strides and x.span == y.span
    return "exact" if same else "partial"
