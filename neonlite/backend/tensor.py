"""Tensor: an array of a runtime with two or more dimensions; views of it share its memory. OneHot, its subclass."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from neonlite import messages, typing
from neonlite.backend.measure import ExternalMemory, Memory
from neonlite.messages import describe
from neonlite.ops.functions import (
    Shape,
    SliceSpec,
    contiguous_strides,
    memory_span,
    reshape_shape,
    to_slices,
    transpose_shape,
)
from neonlite.optree import Operand, OpTreeNode
from neonlite.tree_structure import Info, matrix_transpose_axes, traces

if TYPE_CHECKING:
    import numpy.typing as npt

FULL_SLICE = slice(None)
INDEX_ARRAY_HINT = "Use t[mask] with a mask of the tensor's shape or one per row, t[[0, 2]], or t[:, [1, 2]]."


class OneElement(np.ndarray[Any, np.dtype[Any]]):
    """An array that is also a scalar if it has one element: ``float(x)``, ``"%.1f" % x`` and ``f"{x:.3f}"`` work.

    NumPy rejects these for arrays with axes.
    """

    def __float__(self) -> float:
        """Return the only element; raise TypeError if there are several."""
        return float(self.only())

    def __int__(self) -> int:
        """Return the integer part of the only element."""
        return int(self.only())

    def __round__(self, ndigits: int | None = None) -> float:
        """Return the only element, rounded."""
        return round(float(self), ndigits)

    def __format__(self, spec: str) -> str:
        """Format the only element; without a format specification, the array."""
        return format(self.only(), spec) if spec else str(self)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __reduce__(self) -> Any:
        """Pickle as an array of NumPy."""
        return self.view(np.ndarray).__reduce__()

    def only(self) -> Any:
        """Return the only element; raise TypeError if there are several."""
        if self.size != 1:
            raise TypeError(f"expected one element, got an array {self.shape}. Select one by its index.")
        return self.item()


# --- tensor: an array of a runtime with at least two dimensions; views of it share its memory ---


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
        neon's flag; it has no effect.
    rounding : bool
        neon's flag for stochastic rounding; it has no effect.
    owner : (str, str), optional
        Of a parameter: the name of its layer, and that of the layer's class.
    states : list of Tensor, optional
        Of a parameter: the states of its optimizer.

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
    has_values = True  # False for an argument of a compiled function
    __slots__ = (
        "__weakref__",
        "allocation",
        "base",
        "info",
        "name",
        "owner",
        "persist_values",
        "rounding",
        "span",
        "states",
        "storage",
        "storage_offset",
        "strides",
        "unread_updates",
        "view_op",
    )  # fmt: skip

    def __init__(
        self,
        array: typing.NativeArray,
        info: Info | None = None,
        name: str | None = None,
        base: Tensor | None = None,
        view_op: tuple[str, dict[str, Any]] | None = None,
        storage_offset: int = 0,
        strides: tuple[int, ...] | None = None,
        span: tuple[int, int] | None = None,
        allocation: Memory | None = None,
    ) -> None:
        if type(info) is not Info:
            raise TypeError(f"Tensor: expected a method of a backend, got {describe(array)}. Call be.array(values).")
        self.storage = array  # outside of traces; else ``_array``, which refuses
        self.info = info
        self.name = name
        self.base = base
        self.view_op = view_op
        # shared by all views
        self.allocation: Memory = (allocation or ExternalMemory()) if base is None else base.allocation
        if traces and base is None and (trace := traces.get(get_ident())) is not None:
            trace.created[id(self.allocation)] = self.allocation
        self.storage_offset = storage_offset
        self.strides: tuple[int, ...] = strides or info.attrs["strides"]
        self.span: tuple[int, int] = span or info.attrs["span"]
        self.persist_values = True
        self.rounding = False
        self.owner: tuple[str, str] | None = None
        self.states: list[Tensor] | None = None
        self.unread_updates: tuple[str, int] | Callable[[], None] | None = None  # the updates, or what sets them

    @property
    def updates(self) -> tuple[str, int] | None:
        """Of a parameter: the kind of optimizer that the states belong to, and its number of updates.

        After steps of ``LossScaling``, to read it waits for the GPU.
        """
        if callable(self.unread_updates):
            self.unread_updates()
        return self.unread_updates  # type: ignore[return-value]

    @updates.setter
    def updates(self, value: tuple[str, int] | None) -> None:
        self.unread_updates = value

    @property
    def shape(self) -> Shape:
        """The shape, of at least two dimensions."""
        return self.info.shape

    @shape.setter
    def shape(self, shape: object) -> NoReturn:
        raise AttributeError(
            f"{self._describe()}.shape = {shape!r}: expected no assignment, as a shape is fixed. Use t.reshape."
        )

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self.size * typing.dtype_bits(self.info.dtype) // 8

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are contiguous in memory, in C order."""
        return bool(self.info.attrs["contiguous"])

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
    def _array(self) -> typing.NativeArray:
        """The runtime's array. TypeError in a function that is traced, where values are not computed yet."""
        if traces and (trace := traces.get(get_ident())) is not None:
            trace.check_access(self)
        return self.storage

    @property
    def _tensor(self) -> typing.NativeArray:
        return self._array

    def __len__(self) -> int:
        return self.info.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    # --- writes ---

    def __setitem__(self, index: typing.IndexLike, value: typing.ArrayLike) -> None:
        if type(index) is slice and index == FULL_SLICE:
            target = self
        else:
            parsed = parse_index(self, index)
            if parsed is None:
                return scatter(self, index, value)
            target = self._slice(*parsed)
        if type(value) is OpTreeNode:
            value.info.be.run(target, value)
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
        if have not in typing.FLOAT_DTYPES and (got in typing.FLOAT_DTYPES or not np.can_cast(got, have, "same_kind")):
            raise TypeError(
                f"{self._describe()} {symbol} ...: expected a result that can be cast to {have}, got {got}. "
                f"Cast it with t[:] = tree, or use be.astype(t, {got!r}) as the operand."
            )
        self[:] = value
        return self

    def set(self, ary: typing.ArrayLike) -> Tensor:
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

    def copy(self, a: typing.ArrayLike | None = None) -> Tensor:
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
        new = self.backend.empty(self.shape, self.info.dtype) if a is None else self
        new[:] = self if a is None else a
        return new

    copy_from = __copy__ = copy

    # --- conversion ---

    def get(self) -> typing.NumPyArray:
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
        array: typing.NumPyArray = self.backend.runtime.get(self._array)
        return array.view(OneElement) if array.size == 1 else array

    def numpy(self) -> typing.NumPyArray:
        """Return the values as a NumPy array that shares the memory where possible, else as a copy.

        Returns
        -------
        numpy.ndarray
            An array of the tensor's shape and dtype. Do not write to it.
        """
        try:
            return self.backend.runtime.numpy_view(self._array)
        except (BufferError, TypeError, RuntimeError):
            return self.get()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> typing.NumPyArray:
        """Convert to a NumPy array, which shares the memory if the runtime allows it and ``copy`` is not True."""
        array = None
        if not copy and (dtype is None or np.dtype(dtype) == np.dtype(self.info.dtype)):
            with suppress(BufferError, TypeError, RuntimeError):
                array = self.backend.runtime.numpy_view(self.backend.register_export(self))
        if array is None and copy is False:
            raise ValueError(
                f"{self._describe()}: expected memory that NumPy can share for copy=False, got memory that it cannot. "
                "Omit copy=False."
            )
        array = self.get() if array is None else array
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: object) -> object:
        """Share the memory with another library, as in ``torch.from_dlpack(t)`` or ``np.from_dlpack(t)``."""
        return self.backend.register_export(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device as DLPack's pair (type, id)."""
        device: tuple[int, int] = self.storage.__dlpack_device__()
        return device

    def __repr__(self) -> str:
        """Return the values, truncated, with name, shape, dtype and backend."""
        name = f"{self.name!r}, " if self.name else ""
        details = f"{name}{self.shape}, {self.info.dtype}, {self.backend.name}"
        return f"Tensor({format_values(self, 'Tensor(')}, {details})"

    def _repr_html_(self) -> str:
        """Return the values of a small matrix as an HTML table, those of any other tensor as text, for notebooks."""
        head = messages.title(self.name or "Tensor", f"{self.shape} {self.info.dtype} on {self.backend.name}")
        if self.ndim > 2 or self.size > 400:
            return str(messages.stack(head, messages.code(format_values(self))))
        return str(messages.stack(head, messages.table([[f"{x:.4g}" for x in row] for row in self.get().tolist()])))

    # --- views ---

    def __getitem__(self, index: typing.IndexLike) -> Tensor:
        parsed = parse_index(self, index)
        return gather(self, index) if parsed is None else self._slice(*parsed)

    def _slice(self, slices: SliceSpec, dropped_axes: list[int]) -> Tensor:
        shape = tuple(count for _, count, _ in slices)
        offset = self.storage_offset + sum(
            start * stride for (start, _, _), stride in zip(slices, self.strides, strict=True)
        )
        strides = tuple(step * stride for (_, _, step), stride in zip(slices, self.strides, strict=True))
        view = self._make_view(self.storage[to_slices(slices)], shape, strides, offset, "slice", {"index": slices})
        while dropped_axes and view.ndim > 2:
            view = drop_axis(view, dropped_axes.pop(0))
            dropped_axes = [axis - 1 for axis in dropped_axes]
        return view

    def _make_view(
        self, array: typing.NativeArray, shape: Shape, strides: Shape, offset: int, op: str, attrs: dict[str, Any]
    ) -> Tensor:
        span = memory_span(shape, strides, offset)
        info = self.backend.tensor_info(shape, self.info.dtype, strides)
        return Tensor(
            array, info, self.name, self, storage_offset=offset, strides=strides, span=span, view_op=(op, attrs)
        )

    @property
    def T(self) -> Tensor:
        """A view with the last two axes exchanged."""
        return self.permute(matrix_transpose_axes(self.ndim))

    def reshape(self, *shape: typing.ShapeLike) -> Tensor:
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

    _permute = permute

    def share(self, shape: typing.ShapeLike, dtype: typing.DTypeLike = None, name: str | None = None) -> Tensor:
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

    def take(self, indices: typing.ArrayLike, axis: int) -> Tensor:
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
        return self.backend.evaluate([self.backend.take(self, indices, axis)])[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Copy a tensor; the copy of a view is a view of the copy of its base, which all views share.

        The copy is on the same backend, or on the one that ``memo`` gives: ``copy.deepcopy(tensors, {id(be): other})``.
        """
        be = copy.deepcopy(self.backend, memo)
        if self.base is not None:
            copied = replay_view(self, copy.deepcopy(self.base, memo))
        elif be is self.backend:
            copied = be.empty(self.shape, self.info.dtype)
            copied[:] = self
        else:
            copied = be.array(self, self.info.dtype)
        for name in ("name", "persist_values", "rounding", "owner", "updates"):
            setattr(copied, name, getattr(self, name))
        copied.states = copy.deepcopy(self.states, memo)
        return copied

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
        return self.backend.histogram(self, tag)

    def __bool__(self) -> bool:  # as in neon's ``if not self.deltas``; for the value of one element use bool(t.item())
        return len(self) > 0

    def _describe(self) -> str:
        return f"tensor {self.name} {self.shape}" if self.name else f"a tensor {self.shape}"


# --- views ---


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


# --- indices: integers, slices and ``...`` select views; index arrays and masks copy and write elements ---


def parse_index(t: Tensor, index: typing.IndexLike) -> tuple[SliceSpec, list[int]] | None:
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


def gather(t: Tensor, index: typing.IndexLike) -> Tensor:
    """Return a copy of the elements that an index array or a mask selects."""
    view, axis, indices = _parse_index_array(t, index)
    x = view if axis is not None else t.backend.reshape(view, -1, 1)
    return t.backend.evaluate([t.backend.take(x, indices, axis or 0)])[0]


def scatter(t: Tensor, index: typing.IndexLike, value: typing.ArrayLike) -> None:
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


def _parse_index_array(t: Tensor, index: typing.IndexLike) -> tuple[Tensor, int | None, typing.NumPyArray]:
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


def _indices_along(t: Tensor, axis: int, item: object) -> typing.NumPyArray:
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


def _index_values(t: Tensor, item: Any) -> tuple[typing.NumPyArray, bool]:
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


# --- display ---


def format_values(t: Tensor, prefix: str = "") -> str:
    """Return the values as text, truncated; lines after the first are indented to the width of the prefix."""
    return np.array2string(display_values(t), precision=4, threshold=60, edgeitems=3, prefix=prefix)


def display_values(t: Tensor) -> typing.NumPyArray:
    """Return the values for printing, bfloat16 as float32."""
    values = t.numpy()
    return values.astype(np.float32) if t.info.dtype == "bfloat16" else values


# --- one-hot tensors that remember their class ids, so that a product with one becomes a table lookup ---


class OneHot(Tensor):
    """A read-only tensor (nclass, n) with a 1 in row ``ids[0, i]`` of each column i. Call ``update()`` to rewrite it.

    Parameters
    ----------
    nclass : int
        The number of classes, which is the number of rows.
    ids : Tensor
        The class ids, integers of shape (1, n).
    name : str, optional
        The name of the tensor.
    allow_empty : bool, default False
        Whether an id may be -1, which gives a column of zeros.

    Attributes
    ----------
    ids : Tensor
        The class ids.
    lowest : int
        The lowest id, 0, or -1 with ``allow_empty``.
    """

    __slots__ = ("_classes", "_writable", "ids", "lowest")

    def __init__(self, nclass: int, ids: Tensor, name: str | None = None, allow_empty: bool = False) -> None:
        be = ids.backend
        dense = be.zeros((nclass, ids.size), name=name)
        read_only = be.runtime.read_only_view(dense._array)
        array = dense._array if read_only is None else read_only
        super().__init__(array, dense.info, name, allocation=dense.allocation)
        self._writable = dense
        self._classes = be.array(np.arange(nclass).reshape(-1, 1), dtype="int32")
        self.ids, self.lowest = ids, -1 if allow_empty else 0

    def update(self) -> OneHot:
        """Write the columns for the current ids.

        Returns
        -------
        OneHot
            The tensor itself.

        Raises
        ------
        IndexError
            An id is not a class.
        """
        ids = self.ids.numpy()
        if ids.min(initial=0) < self.lowest or ids.max(initial=-1) >= self.shape[0]:
            raise IndexError(
                f"{self._describe()}.update: expected ids from {self.lowest} to {self.shape[0] - 1}, got {self.ids}"
            )
        # be.onehot would allocate, and does not accept -1
        self._writable[:] = self.backend.equal(self._classes, self.ids)
        return self

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise ValueError(
            f"{self._describe()}: expected a writable tensor, got a one-hot tensor. Change its ids "
            "and call update(), or copy it with be.array(t)."
        )
