"""Tensor: an array of a runtime with at least two dimensions, views that share memory, and conversion to NumPy."""

from __future__ import annotations

import copy
import math
import operator
from typing import Any, NoReturn

import numpy as np

from neonlite.backend.memory import ExternalMemory, Memory
from neonlite.backend.planning.layout import Layout, export_array, find_images, layout_of, read_chwn
from neonlite.dtypes import FLOAT_DTYPES, dtype_bits
from neonlite.messages import describe
from neonlite.ops import to_slices
from neonlite.optree import Operand, OpTreeNode
from neonlite.optree_structure import Info
from neonlite.optree_walks import matrix_transpose_axes
from neonlite.shapes import Shape, SliceSpec, contiguous_strides, is_contiguous, reshape_shape, transpose_shape
from neonlite.typing import ArrayLike, DTypeLike, ShapeLike

FULL_SLICE = slice(None)
BOOLEAN_INDEX_HINT = "Select elements with be.where(mask, t, 0), or slices with be.take(t, indices, axis)."


class Tensor(Operand):
    """An array of at least two dimensions; slices, reshapes and transposes are views that share its memory.

    Backends create tensors, as in ``be.zeros((2, 3))``; this constructor is internal. ``t[:] = tree`` evaluates an
    op-tree into a tensor, ``t.get()`` copies it to NumPy, and arithmetic of tensors builds op-trees.

    Parameters
    ----------
    array : array
        The runtime's array.
    info : Info
        Shape, dtype, strides and backend.
    name : str, optional
        The name in printed trees and error messages.
    base : Tensor, optional
        The tensor that this one is a view of.
    view_op : tuple, optional
        The op and its attributes that make this view of ``base``.
    storage_offset : int
        The offset of the first element in the allocation, in elements; default 0.
    strides : tuple of int, optional
        The strides, in elements; default contiguous.
    span : tuple of int, optional
        The range of offsets of all elements, in elements: (first, last + 1).
    allocation : Memory, optional
        The memory, which all its views share; default new.

    Attributes
    ----------
    persist_values : bool
        False if writing another tensor of the same memory may discard the values.
    rounding : bool
        neon's flag for stochastic rounding; it has no effect.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> x = be.array([[1, 2], [3, 4]])
    >>> x[:, 1:] = x[:, :1] * 10
    >>> x.get()
    array([[ 1., 10.],
           [ 3., 30.]], dtype=float32)
    """

    info: Info
    _min_dims = 2
    __slots__ = (
        "__weakref__",
        "allocation",
        "base",
        "info",
        "name",
        "persist_values",
        "rounding",
        "span",
        "storage",
        "storage_offset",
        "strides",
        "view_op",
    )

    def __init__(
        self,
        array: Any,
        info: Info,
        name: str | None = None,
        base: Tensor | None = None,
        view_op: tuple[str, dict[str, Any]] | None = None,
        storage_offset: int = 0,
        strides: tuple[int, ...] | None = None,
        span: tuple[int, int] | None = None,
        allocation: Memory | None = None,
    ) -> None:
        self.storage = array  # call ``layout.read_chwn`` or ``layout.write_chwn`` before reading or writing it
        self.info = info
        self.name = name
        self.base = base
        self.view_op = view_op
        # shared by all views
        self.allocation: Memory = (allocation or ExternalMemory()) if base is None else base.allocation
        self.storage_offset = storage_offset
        self.strides: tuple[int, ...] = strides or info.attrs["strides"]
        self.span: tuple[int, int] = span or info.attrs["span"]
        self.persist_values = True
        self.rounding = False

    # --- properties ---

    @property
    def shape(self) -> Shape:
        """The shape, of at least two dimensions."""
        return self.info.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.info.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self.size * dtype_bits(self.info.dtype) // 8

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are contiguous in memory, in C order."""
        return bool(self.info.attrs["contiguous"])

    @property
    def layout(self) -> Layout:
        """The physical layout of the values: "CHWN" (C order), "NHWC" (images), or "columns" (Fortran order)."""
        return layout_of(self)

    @property
    def root(self) -> Tensor:
        """The tensor that owns the memory: the last of the chain of bases, or this one."""
        x = self
        while x.base is not None:
            x = x.base
        return x

    @property
    def _original_base(self) -> Tensor:
        return self.root

    @property
    def _array(self) -> Any:
        """The runtime's array. Reading it exports the memory, which has no layout cache from then on."""
        return export_array(self)

    @property
    def _tensor(self) -> Any:
        return self._array

    def __len__(self) -> int:
        return self.info.shape[0]

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        layout = f", {self.layout}" if self.layout != "CHWN" else ""
        values = np.array2string(self._display_values(), precision=4, threshold=60, edgeitems=3, prefix="Tensor(")
        return f"Tensor({values}, {name}{self.shape}, {self.info.dtype}, {self.backend.name}{layout})"

    def _display_values(self) -> np.ndarray[Any, Any]:
        """Return the values for printing, bfloat16 as float32. The layout of images in NHWC is not changed."""
        images = find_images(self)
        if images and not images.has_chwn and images.is_for(self, images.shape):
            nhwc: np.ndarray[Any, Any] = self.backend.runtime.get(images.nhwc)
            values = nhwc.reshape(images.shape[::-1]).transpose().reshape(self.shape)
        else:
            values = self.numpy()
        return values.astype(np.float32) if self.info.dtype == "bfloat16" else values

    def _repr_html_(self) -> str:
        from html import escape

        head = f"<b>{escape(self.name or 'Tensor')}</b> {self.shape} {self.info.dtype} on {escape(self.backend.name)}"
        head += f", {self.layout}" if self.layout != "CHWN" else ""
        if self.ndim > 2 or self.size > 400:
            return f"{head}<pre>{escape(np.array2string(self._display_values(), precision=4, threshold=60))}</pre>"
        rows = ("".join(f"<td>{x:.4g}</td>" for x in row) for row in self.get().tolist())
        return f"{head}<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    # --- conversion to NumPy ---

    def get(self) -> np.ndarray[Any, Any]:
        """Return a copy of the values as a NumPy array.

        Returns
        -------
        numpy.ndarray
            An array of the tensor's shape and dtype.

        Raises
        ------
        IndexError
            On a GPU, an earlier op used an index out of range.
        """
        return self.backend.runtime.get(read_chwn(self))  # type: ignore[no-any-return]

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the values as a NumPy array that shares the memory where possible, else as a copy.

        Use it before the tensor is written again: later values may be in the layout cache only.

        Returns
        -------
        numpy.ndarray
            An array of the tensor's shape and dtype. Do not write to it.
        """
        try:
            return self.backend.runtime.numpy_view(read_chwn(self))  # type: ignore[no-any-return]
        except (BufferError, TypeError, RuntimeError):
            return self.get()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Convert to a NumPy array, which shares the memory if the runtime allows it and ``copy`` is not True."""
        array = None
        if not copy and (dtype is None or np.dtype(dtype) == np.dtype(self.info.dtype)):
            try:
                array = self.backend.runtime.numpy_view(self.backend.register_export(self))
            except (BufferError, TypeError, RuntimeError):
                array = None
        if array is None and copy is False:
            raise ValueError(
                f"{self._describe()}: expected memory that NumPy can share for copy=False, got memory that it cannot. "
                "Omit copy=False."
            )
        if array is None:
            array = self.get()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """Share the memory with another library, as in ``torch.from_dlpack(t)`` or ``np.from_dlpack(t)``."""
        return self.backend.register_export(self).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Return the device as DLPack's pair (type, id)."""
        return self.storage.__dlpack_device__()

    def set(self, ary: ArrayLike) -> Tensor:
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
        self[:] = np.asarray(ary) if isinstance(ary, Operand) else ary
        return self

    # --- writing ---

    def __setitem__(self, index: Any, value: ArrayLike) -> None:
        target = self if type(index) is slice and index == FULL_SLICE else self[index]
        if type(value) is OpTreeNode:
            value[0].be.run(target, value)
        else:
            target.backend.write(target, value)

    def _update(self, symbol: str, value: OpTreeNode) -> Tensor:
        """Write the value of ``t += y`` and the like into the tensor, with NumPy's casting rules."""
        have, got = self.info.dtype, value.info.dtype
        if value.shape != self.shape:
            raise ValueError(
                f"{self._describe()} {symbol} ...: expected a result of the same shape, got {value.shape}. "
                f"t = t {symbol[:-1]} ... builds an op-tree of that shape."
            )
        if have not in FLOAT_DTYPES and (got in FLOAT_DTYPES or not np.can_cast(got, have, "same_kind")):
            raise TypeError(
                f"{self._describe()} {symbol} ...: expected a result that can be cast to {have}, got {got}. "
                f"Cast it with t[:] = tree, or use be.astype(t, {got!r}) as the operand."
            )
        self[:] = value
        return self

    def fill(self, value: float) -> Tensor:
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
        self[:] = value
        return self

    def copy(self, a: ArrayLike) -> Tensor:
        """Copy ``a`` into this tensor.

        Parameters
        ----------
        a : Tensor, OpTreeNode or array_like
            The values; their shape must broadcast to the tensor's.

        Returns
        -------
        Tensor
            This tensor.
        """
        self[:] = a
        return self

    copy_from = copy

    # --- views ---

    def __getitem__(self, index: Any) -> Tensor:
        slices, dropped_axes = self._parse_index(index)
        shape = tuple(count for _, count, _ in slices)
        offset = self.storage_offset + sum(
            start * stride for (start, _, _), stride in zip(slices, self.strides, strict=True)
        )
        strides = tuple(step * stride for (_, _, step), stride in zip(slices, self.strides, strict=True))
        view = self._make_view(self.storage[to_slices(slices)], shape, strides, offset, "slice", {"index": slices})
        while dropped_axes and view.ndim > 2:
            view = view._drop_axis(dropped_axes.pop(0))
            dropped_axes = [axis - 1 for axis in dropped_axes]
        return view

    def _parse_index(self, index: Any) -> tuple[SliceSpec, list[int]]:
        """Return (start, count, step) for each axis, and the axes that an integer index drops."""
        if isinstance(index, Operand) or is_boolean_index(index):
            raise IndexError(self._wrong_index(index))
        parts = list(index) if isinstance(index, tuple) else [index]
        if sum(item is Ellipsis for item in parts) == 1:
            at = [item is Ellipsis for item in parts].index(True)
            parts[at : at + 1] = [FULL_SLICE] * (self.ndim - len(parts) + 1)
        if len(parts) > self.ndim:
            raise IndexError(f"{self._describe()}: expected at most {self.ndim} indices, got {len(parts)}")
        slices, dropped_axes = [], []
        for axis, size in enumerate(self.shape):
            item = parts[axis] if axis < len(parts) else FULL_SLICE
            if isinstance(item, slice):
                start, stop, step = item.indices(size)
                count = len(range(start, stop, step))
                if step < 0 and not self.backend.runtime.supports_negative_strides:
                    raise IndexError(
                        f"{self._describe()}: expected a step >= 1 on the runtime {self.backend.name!r}, got {step}. "
                        "Use be.take."
                    )
                slices.append((start if count else 0, count, step))
            elif isinstance(item, Operand) or is_boolean_index(item):
                raise IndexError(self._wrong_index(item))
            elif hasattr(item, "__index__") and getattr(item, "shape", ()) == ():
                i = operator.index(item)
                if not -size <= i < size:
                    raise IndexError(
                        f"{self._describe()}: expected an index from {-size} to {size - 1} for axis {axis}, got {i}"
                    )
                slices.append((i % size, 1, 1))
                dropped_axes.append(axis)
            else:
                raise TypeError(
                    f"{self._describe()}: expected integers, slices and ... as indices, got {describe(item)}. Use "
                    "be.take for a list, and t.reshape to add an axis."
                )
        return tuple(slices), dropped_axes

    def _wrong_index(self, index: Any) -> str:
        return (
            f"{self._describe()}: expected integers, slices and ... as indices, got the boolean or tensor index "
            f"{describe(index)}, which would give a shape that depends on values. {BOOLEAN_INDEX_HINT}"
        )

    def _make_view(
        self, array: Any, shape: Shape, strides: Shape, offset: int, op: str, attrs: dict[str, Any]
    ) -> Tensor:
        span = memory_span(shape, strides, offset)
        info = self.backend.tensor_info(shape, self.info.dtype, is_contiguous(shape, strides))
        return Tensor(
            array, info, self.name, self, storage_offset=offset, strides=strides, span=span, view_op=(op, attrs)
        )

    def _drop_axis(self, axis: int) -> Tensor:
        """Return a view without an axis of size 1."""
        keep = [i for i in range(self.ndim) if i != axis]
        array = self.storage[tuple(0 if i == axis else FULL_SLICE for i in range(self.ndim))]
        shape, strides = tuple(self.shape[i] for i in keep), tuple(self.strides[i] for i in keep)
        return self._make_view(array, shape, strides, self.storage_offset, "reshape", {"to": shape})

    def reshape(self, *shape: Any) -> Tensor:
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
            to = reshape_shape(self.shape, to=self.backend.shape_of(to, allow_unknown=True))
        except (ValueError, TypeError) as error:
            raise type(error)(f"{self._describe()}.reshape({to}): {error}") from None
        if to == self.shape:
            return self
        if not self.is_contiguous:
            raise ValueError(
                f"{self._describe()}.reshape: expected a contiguous tensor, got a strided view. Copy it first with "
                "be.array(t)."
            )
        array = self.backend.runtime.reshape(self.storage, to)
        return self._make_view(array, to, contiguous_strides(to), self.storage_offset, "reshape", {"to": to})

    @property
    def T(self) -> Tensor:
        """A view with the last two axes exchanged."""
        return self.permute(matrix_transpose_axes(self.ndim))

    def permute(self, axes: tuple[int, ...]) -> Tensor:
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
            shape = transpose_shape(self.shape, axes=axes)
        except ValueError as error:
            raise ValueError(f"{self._describe()}.permute({axes}): {error}") from None
        array = self.backend.xp.permute_dims(self.storage, axes)
        strides = tuple(self.strides[a] for a in axes)
        return self._make_view(array, shape, strides, self.storage_offset, "transpose", {"axes": axes})

    def share(self, shape: ShapeLike, dtype: DTypeLike = None, name: str | None = None) -> Tensor:
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
        to: Shape = self.backend.shape_of(shape)
        if dtype is not None and self.backend.dtype_name(dtype) != self.info.dtype:
            raise ValueError(f"{self._describe()}.share: expected dtype {self.info.dtype}, got {dtype}")
        size = math.prod(to)
        if size > self.size:
            raise ValueError(
                f"{self._describe()}.share: expected a shape of at most {self.size} elements, got {to} with {size}"
            )
        view = self.reshape(-1, 1)[:size].reshape(to)
        view.name = name
        return view

    def take(self, indices: ArrayLike, axis: int) -> Tensor:
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
        return self.backend.evaluate([self.backend.take(self, indices, axis)])[0]  # type: ignore[no-any-return]

    # --- statistics and copies ---

    def hist(self, tag: str) -> Tensor:
        """Count the elements by magnitude, in bins of powers of two; see ``be.set_hist_buffers``.

        Parameters
        ----------
        tag : str
            The name of the histogram for ``be.dump_hist_data``.

        Returns
        -------
        Tensor
            The counts, (1, hist_bins), int32.
        """
        return self.backend.histogram(self, tag)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:  # as in neon's ``if not self.deltas``; for the value of one element use bool(t.item())
        return len(self) > 0

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "pickle: expected a NumPy array, got a tensor, which belongs to a live backend. Save t.get(), and load it "
            "with be.array."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Copy a tensor; the copy of a view is a view of the copy of its base, which all views share.

        The copy is on the same backend, or on the one that ``memo`` gives: ``copy.deepcopy(tensors, {id(be): other})``.
        """
        be = copy.deepcopy(self.backend, memo)
        if self.base is not None:
            copied = self._replay_view(copy.deepcopy(self.base, memo))
        elif be is self.backend:
            copied = be.empty(self.shape, self.info.dtype)
            copied[:] = self
        else:
            copied = be.array(self, self.info.dtype)
        copied.name, copied.persist_values, copied.rounding = self.name, self.persist_values, self.rounding
        return copied

    def _replay_view(self, base: Tensor) -> Tensor:
        """Return the same view of another base of the same shape."""
        op, attrs = self.view_op or ("", {})
        if op == "slice":
            return base[to_slices(attrs["index"])]
        if op == "transpose":
            return base.permute(attrs["axes"])
        if base.is_contiguous:
            return base.reshape(self.shape)
        # a reshape of a non-contiguous base is a view only if it drops an axis of size 1
        axes = (i for i in range(base.ndim) if base.shape[:i] + base.shape[i + 1 :] == self.shape)
        return base._drop_axis(next(axes))

    def _describe(self) -> str:
        return f"tensor {self.name} {self.shape}" if self.name else f"a tensor {self.shape}"


def is_boolean_index(index: Any) -> bool:
    """Return whether an index is a boolean or contains booleans."""
    if isinstance(index, list):
        return any(isinstance(x, bool | np.bool_) for x in index)
    return isinstance(index, bool | np.bool_) or getattr(index, "dtype", None) == np.bool_


def memory_span(shape: Shape, strides: Shape, offset: int) -> tuple[int, int]:
    """Return the range of offsets of the elements, in elements: (first, last + 1)."""
    if 0 in shape:
        return offset, offset
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return offset + sum(e for e in ends if e < 0), offset + sum(e for e in ends if e > 0) + 1


def overlap(x: Tensor, y: Tensor) -> str:
    """Return how two tensors share memory: "none", "exact" (every element at the same address) or "partial"."""
    if x.allocation is not y.allocation or x.span[0] >= y.span[1] or y.span[0] >= x.span[1]:
        return "none"
    same = x.shape == y.shape and x.strides == y.strides and x.span == y.span
    return "exact" if same else "partial"
