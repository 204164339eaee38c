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


def reshape(t: Tensor, *shape: ShapeLike) -> Tensor:
    """Return a view in another shape.

    Parameters
    ----------
    *shape : int or tuple of int
        The sizes, of as many elements; one may be -1.

    Returns
    -------
    Tensor
        A view of that shape.

    Raises
    ------
    ValueError
        The number of elements differs, or the tensor is not contiguous.
    """
    to = shape[0] if len(shape) == 1 else shape
    try:
        to = reshape_shape(t.shape, to=t.backend.shape_of(to, allow_unknown=True))
    except (ValueError, TypeError) as error:
        raise type(error)(f"{t._describe()}.reshape({to}): {error}") from None
    if to == t.shape:
        return t
    if not t.is_contiguous:
        raise ValueError(
            f"{t._describe()}.reshape: expected a contiguous tensor, got a strided view. Copy it first with "
            "be.array(t)."
        )
    array = t.backend.runtime.reshape(t.storage, to)
    return t._make_view(array, to, contiguous_strides(to), t.storage_offset, "reshape", {"to": to})


def permute(t: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return a view with the axes in another order.

    Parameters
    ----------
    axes : tuple of int
        For each axis of the result, the axis of this tensor.

    Returns
    -------
    Tensor
        The view.
    """
    try:
        shape = transpose_shape(t.shape, axes=axes)
    except ValueError as error:
        raise ValueError(f"{t._describe()}.permute({axes}): {error}") from None
    array = t.backend.xp.permute_dims(t.storage, axes)
    strides = tuple(t.strides[a] for a in axes)
    return t._make_view(array, shape, strides, t.storage_offset, "transpose", {"axes": axes})


def drop_axis(t: Tensor, axis: int) -> Tensor:
    """Return a view without an axis of size 1."""
    keep = [i for i in range(t.ndim) if i != axis]
    array = t.storage[tuple(0 if i == axis else FULL_SLICE for i in range(t.ndim))]
    shape, strides = tuple(t.shape[i] for i in keep), tuple(t.strides[i] for i in keep)
    return t._make_view(array, shape, strides, t.storage_offset, "reshape", {"to": shape})


def share(t: Tensor, shape: ShapeLike, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
    """Return a view of the first elements in another shape.

    Parameters
    ----------
    shape : int or tuple of int
        The shape, of at most as many elements.
    dtype : dtype, optional
        For compatibility with neon; must be the tensor's.
    name : str, optional
        The name of the view.

    Returns
    -------
    Tensor
        The view.

    Raises
    ------
    ValueError
        The shape has more elements, or the dtype differs.
    """
    to: Shape = t.backend.shape_of(shape)
    if dtype is not None and t.backend.dtype_name(dtype) != t.info.dtype:
        raise ValueError(f"{t._describe()}.share: expected dtype {t.info.dtype}, got {dtype}")
    size = math.prod(to)
    if size > t.size:
        raise ValueError(f"{t._describe()}.share: expected a shape of at most {t.size} elements, got {to} with {size}")
    view = t.reshape(-1, 1)[:size].reshape(to)
    view.name = name
    return view


def take(t: Tensor, indices: ArrayLike, axis: int) -> Tensor:
    """Return a copy of slices along an axis.

    Parameters
    ----------
    indices : Tensor or array_like of int
        The indices of the slices.
    axis : int
        The axis.

    Returns
    -------
    Tensor
        A new tensor.
    """
    return t.backend.evaluate([t.backend.take(t, indices, axis)])[0]


def deepcopy(t: Tensor, memo: dict[int, Any]) -> Tensor:
    """Copy a tensor; the copy of a view is a view of the copy of its base, which all views share.

    The copy is on the same backend, or on the one that ``memo`` gives: ``copy.deepcopy(tensors, {id(be): other})``.
    """
    be = copy.deepcopy(t.backend, memo)
    if t.base is not None:
        copied = replay_view(t, copy.deepcopy(t.base, memo))
    elif be is t.backend:
        copied = be.empty(t.shape, t.info.dtype)
        copied[:] = t
    else:
        copied = be.array(t, t.info.dtype)
    for name in ("name", "persist_values", "rounding", "updates"):
        setattr(copied, name, getattr(t, name))
    return copied


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
