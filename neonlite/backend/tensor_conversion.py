"""Conversion of tensors to and from NumPy arrays, in-place updates, and display as text and HTML."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from neonlite import html_repr
from neonlite.backend.one_element import OneElement
from neonlite.backend.planning.layout import find_images, read_chwn
from neonlite.dtypes import FLOAT_DTYPES
from neonlite.optree import Operand, OpTreeNode
from neonlite.typing import ArrayLike, NumPyArray

if TYPE_CHECKING:
    import numpy.typing as npt

    from neonlite.backend.tensor import Tensor


def get(t: Tensor) -> NumPyArray:
    """Return a copy of the values as a NumPy array.

    Returns
    -------
    numpy.ndarray
        An array of the tensor's shape and dtype. With one element, ``float(array)`` works, too.

    Raises
    ------
    IndexError
        On a GPU, an earlier op used an index out of range.
    """
    array: NumPyArray = t.backend.runtime.get(read_chwn(t))
    return array.view(OneElement) if array.size == 1 else array


def numpy(t: Tensor) -> NumPyArray:
    """Return the values as a NumPy array that shares the memory where possible, else as a copy.

    Use it before the tensor is written again: later values may be in the layout cache only.

    Returns
    -------
    numpy.ndarray
        An array of the tensor's shape and dtype. Do not write to it.
    """
    try:
        return t.backend.runtime.numpy_view(read_chwn(t))
    except (BufferError, TypeError, RuntimeError):
        return t.get()


def to_array(t: Tensor, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> NumPyArray:
    """Convert to a NumPy array, which shares the memory if the runtime allows it and ``copy`` is not True."""
    array = None
    if not copy and (dtype is None or np.dtype(dtype) == np.dtype(t.info.dtype)):
        with suppress(BufferError, TypeError, RuntimeError):
            array = t.backend.runtime.numpy_view(t.backend.register_export(t))
    if array is None and copy is False:
        raise ValueError(
            f"{t._describe()}: expected memory that NumPy can share for copy=False, got memory that it cannot. "
            "Omit copy=False."
        )
    array = t.get() if array is None else array
    return array if dtype is None else array.astype(dtype, copy=False)


def to_dlpack(t: Tensor, **options: object) -> object:
    """Share the memory with another library, as in ``torch.from_dlpack(t)`` or ``np.from_dlpack(t)``."""
    return t.backend.register_export(t).__dlpack__(**options)


def dlpack_device(t: Tensor) -> tuple[int, int]:
    """Return the device as DLPack's pair (type, id)."""
    device: tuple[int, int] = t.storage.__dlpack_device__()
    return device


# --- writes ---


def set(t: Tensor, ary: ArrayLike) -> Tensor:
    """Copy an array into this tensor.

    Parameters
    ----------
    ary : array_like
        Values of the tensor's shape; cast to its dtype.

    Returns
    -------
    Tensor
        This tensor.
    """
    t[:] = np.asarray(ary) if isinstance(ary, Operand) else ary
    return t


def fill(t: Tensor, value: float) -> Tensor:
    """Set every element to a scalar.

    Parameters
    ----------
    value : float
        The scalar; cast to the tensor's dtype.

    Returns
    -------
    Tensor
        This tensor.

    Raises
    ------
    OverflowError, ValueError
        The scalar, or NaN, does not fit an integer dtype.
    """
    t[:] = value
    return t


def copy(t: Tensor, a: ArrayLike | None = None) -> Tensor:
    """Copy ``a`` into this tensor, as in neon; ``t.copy()`` returns a new tensor with a copy of the values.

    Parameters
    ----------
    a : Tensor, OpTreeNode or array_like, optional
        The values; their shape must broadcast to the tensor's.

    Returns
    -------
    Tensor
        This tensor; or a new one.
    """
    new = t.backend.empty(t.shape, t.info.dtype) if a is None else t
    new[:] = t if a is None else a
    return new


def update(t: Tensor, symbol: str, value: OpTreeNode) -> Tensor:
    """Write the value of ``t += y`` and the like into the tensor, with NumPy's casting rules."""
    have, got = t.info.dtype, value.info.dtype
    if value.shape != t.shape:
        raise ValueError(
            f"{t._describe()} {symbol} ...: expected a result of the same shape, got {value.shape}. "
            f"t = t {symbol[:-1]} ... builds an op-tree of that shape."
        )
    if have not in FLOAT_DTYPES and (got in FLOAT_DTYPES or not np.can_cast(got, have, "same_kind")):
        raise TypeError(
            f"{t._describe()} {symbol} ...: expected a result that can be cast to {have}, got {got}. "
            f"Cast it with t[:] = tree, or use be.astype(t, {got!r}) as the operand."
        )
    t[:] = value
    return t


# --- display ---


def format_text(t: Tensor) -> str:
    """Return the values, truncated, with name, shape, dtype, backend and layout."""
    name = f"{t.name!r}, " if t.name else ""
    layout = f", {t.layout}" if t.layout != "CHWN" else ""
    return f"Tensor({format_values(t, 'Tensor(')}, {name}{t.shape}, {t.info.dtype}, {t.backend.name}{layout})"


def format_html(t: Tensor) -> str:
    """Return the values of a small matrix as an HTML table, those of any other tensor as text, for notebooks."""
    layout = f", {t.layout}" if t.layout != "CHWN" else ""
    head = html_repr.title(t.name or "Tensor", f"{t.shape} {t.info.dtype} on {t.backend.name}{layout}")
    if t.ndim > 2 or t.size > 400:
        return str(html_repr.stack(head, html_repr.code(format_values(t))))
    return str(html_repr.stack(head, html_repr.table([[f"{x:.4g}" for x in row] for row in t.get().tolist()])))


def format_values(t: Tensor, prefix: str = "") -> str:
    """Return the values as text, truncated; lines after the first are indented to the width of the prefix."""
    return np.array2string(display_values(t), precision=4, threshold=60, edgeitems=3, prefix=prefix)


def display_values(t: Tensor) -> NumPyArray:
    """Return the values for printing, bfloat16 as float32. The layout of images in NHWC is not changed."""
    images = find_images(t)
    if images and not images.has_chwn and images.is_for(t, images.shape):
        nhwc: NumPyArray = t.backend.runtime.get(images.nhwc)
        values = nhwc.reshape(images.shape[::-1]).transpose().reshape(t.shape)
    else:
        values = t.numpy()
    return values.astype(np.float32) if t.info.dtype == "bfloat16" else values
