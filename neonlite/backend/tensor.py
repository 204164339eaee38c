"""Where do the numbers live?  A Tensor: an array of some runtime, with a backend and, if you like, a name."""

from __future__ import annotations

import copy
import math
import operator
from typing import Any, NoReturn

import numpy as np

from neonlite.backend.stored import read, shown
from neonlite.ops import Box, Shape, bits, boxed, c_strides, is_c, permuted, reshaped
from neonlite.optree import Info, Operand, OpTreeNode, describe, swapped

FULL = slice(None)
BOOLEANS = (
    "booleans or tensors, as the result's shape would depend on values: use be.where(mask, t, 0), "
    "or be.take(t, indices, axis)"
)


class Tensor(Operand):
    """An array of at least two dimensions; slices, reshapes and transposes are views that share its memory.

    ``t[:] = tree`` works out an op-tree; ``t.get()`` copies to NumPy. Made by the backend: ``be.zeros((2, 3))``.
    """

    info: Info
    _min_dims = 2
    __slots__ = (
        "__weakref__",
        "base",
        "info",
        "memory",
        "name",
        "origin",
        "persist_values",
        "rounding",
        "span",
        "start",
        "storage",
        "strides",
    )

    def __init__(
        self,
        array: Any,
        info: Info,
        name: str | None = None,
        base: Tensor | None = None,
        origin: tuple[str, dict[str, Any]] | None = None,
        start: int = 0,
        strides: tuple[int, ...] | None = None,
        span: tuple[int, int] | None = None,
        memory: object = None,
    ) -> None:
        self.storage = array  # which is read and written by ``stored.read`` and ``stored.written``
        self.info = info
        self.name = name
        self.base = base  # the tensor this is a view of, if any
        self.origin = origin  # (op, attributes) that make it of base
        # one and the same for all views of it; of memory that the backend handed out, its entry in the ledger
        self.memory: object = (memory or object()) if base is None else base.memory
        # where it lies in that memory, counted in elements: its first element, strides, and the span it keeps within
        self.start = start
        self.strides: tuple[int, ...] = strides or info.attrs["strides"]
        self.span: tuple[int, int] = span or info.attrs["span"]
        self.persist_values = True
        self.rounding = False

    # --- what it is ---

    @property
    def shape(self) -> Shape:
        """The sizes, two or more."""
        return self.info.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.info.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return self.size * bits(self.info.dtype) // 8

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after another, the last axis first."""
        return bool(self.info.attrs["contiguous"])

    @property
    def root(self) -> Tensor:
        """The tensor that owns the memory: itself, or the one at the end of the bases."""
        x = self
        while x.base is not None:
            x = x.base
        return x

    @property
    def _original_base(self) -> Tensor:
        return self.root

    @property
    def _array(self) -> Any:
        """The array, with the numbers in it from now on."""
        return shown(self)

    @property
    def _tensor(self) -> Any:
        return self._array

    def __len__(self) -> int:
        return self.info.shape[0]

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        values = np.array2string(self._printable(), precision=4, threshold=60, edgeitems=3, prefix="Tensor(")
        return f"Tensor({values}, {name}{self.shape}, {self.info.dtype}, {self.backend.name})"

    def _printable(self) -> np.ndarray[Any, Any]:
        """Return the values as NumPy prints them: bfloat16 as float32."""
        values = self.peek()
        return values.astype(np.float32) if self.info.dtype == "bfloat16" else values

    def _repr_html_(self) -> str:
        from html import escape

        head = f"<b>{escape(self.name or 'Tensor')}</b> {self.shape} {self.info.dtype} on {escape(self.backend.name)}"
        if self.ndim > 2 or self.size > 400:
            return f"{head}<pre>{escape(np.array2string(self._printable(), precision=4, threshold=60))}</pre>"
        rows = ("".join(f"<td>{x:.4g}</td>" for x in row) for row in self.get().tolist())
        return f"{head}<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    # --- host and back ---

    def get(self) -> np.ndarray[Any, Any]:
        """Return a copy of the values as a NumPy array."""
        return self.backend.runtime.get(read(self))  # type: ignore[no-any-return]

    def peek(self) -> np.ndarray[Any, Any]:
        """Return the values as a NumPy array to be read at once: the tensor's own memory where that can be shown."""
        try:
            return self.backend.runtime.share(read(self))  # type: ignore[no-any-return]
        except (BufferError, TypeError, RuntimeError):
            return self.get()

    def asnumpyarray(self) -> np.ndarray[Any, Any]:
        """Return the values as a NumPy array; the same as ``get``."""
        return self.get()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Show the values to NumPy: in the tensor's own memory where the runtime allows it, unless ``copy``."""
        array = None
        if not copy and (dtype is None or np.dtype(dtype) == np.dtype(self.info.dtype)):
            try:
                array = self.backend.runtime.share(self.backend.lend(self))
            except (BufferError, TypeError, RuntimeError):
                array = None
        if array is None and copy is False:
            raise ValueError(f"{self._words()} cannot be shown to NumPy without a copy: leave copy=False out")
        if array is None:
            array = self.get()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """Share the memory with another library: ``torch.from_dlpack(t)``, ``np.from_dlpack(t)``."""
        return self.backend.lend(self).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Return the device that the memory is on, in DLPack's numbers."""
        return self.storage.__dlpack_device__()

    def set(self, ary: Any) -> Tensor:
        """Copy values of the same shape from the host, and return the tensor."""
        self[:] = np.asarray(ary)
        return self

    # --- writing ---

    def __setitem__(self, index: Any, value: Any) -> None:
        target = self if type(index) is slice and index == FULL else self[index]
        if type(value) is OpTreeNode:
            value[0].be.run(target, value)
        else:
            target.backend.write(target, value)

    def fill(self, value: float) -> Tensor:
        """Set every element to a number, and return the tensor."""
        self[:] = value
        return self

    def copy(self, a: Any) -> Tensor:
        """Copy *from* ``a`` into this tensor, and return this tensor."""
        self[:] = a
        return self

    copy_from = copy

    # --- views ---

    def __getitem__(self, index: Any) -> Tensor:
        box, drop = self._box(index)
        shape = tuple(count for _, count, _ in box)
        start = self.start + sum(first * stride for (first, _, _), stride in zip(box, self.strides, strict=True))
        strides = tuple(step * stride for (_, _, step), stride in zip(box, self.strides, strict=True))
        whole = self._view(self.storage[boxed(box)], shape, strides, start, "slice", {"index": box})
        while drop and whole.ndim > 2:
            whole = whole._without(drop.pop(0))
            drop = [a - 1 for a in drop]
        return whole

    def _box(self, index: Any) -> tuple[Box, list[int]]:
        """Return (start, count, step) for each axis, and the axes that an int index drops."""
        if isinstance(index, Operand) or truths(index):
            raise IndexError(f"{self._words()} is not indexed by {BOOLEANS}")
        parts = list(index) if isinstance(index, tuple) else [index]
        if sum(p is Ellipsis for p in parts) == 1:
            at = [p is Ellipsis for p in parts].index(True)
            parts[at : at + 1] = [FULL] * (self.ndim - len(parts) + 1)
        if len(parts) > self.ndim:
            raise IndexError(f"{len(parts)} indices for {self._words()}, which has {self.ndim} dimensions")
        box, drop = [], []
        for axis, size in enumerate(self.shape):
            p = parts[axis] if axis < len(parts) else FULL
            if isinstance(p, slice):
                start, stop, step = p.indices(size)
                count = len(range(start, stop, step))
                if step < 0 and not self.backend.runtime.negative_steps:
                    raise IndexError(f"the runtime {self.backend.name!r} has no views with negative steps: use be.take")
                box.append((start if count else 0, count, step))
            elif isinstance(p, Operand) or truths(p):
                raise IndexError(f"{self._words()} is not indexed by {BOOLEANS}")
            elif hasattr(p, "__index__") and getattr(p, "shape", ()) == ():
                i = operator.index(p)
                if not -size <= i < size:
                    raise IndexError(f"index {i} is out of range: axis {axis} of {self._words()} has {size} elements")
                box.append((i % size, 1, 1))
                drop.append(axis)
            else:
                got = f"got {describe(p)}; for a list use be.take"
                raise TypeError(f"{self._words()} is indexed by whole numbers, slices and ...; {got}")
        return tuple(box), drop

    def _view(self, array: Any, shape: Shape, strides: Shape, start: int, op: str, attrs: dict[str, Any]) -> Tensor:
        span = reach(shape, strides, start)
        info = self.backend.leaf_info(shape, self.info.dtype, is_c(shape, strides))
        return Tensor(array, info, self.name, self, start=start, strides=strides, span=span, origin=(op, attrs))

    def _without(self, axis: int) -> Tensor:
        """Return a view without an axis of one element."""
        keep = [i for i in range(self.ndim) if i != axis]
        array = self.storage[tuple(0 if i == axis else FULL for i in range(self.ndim))]
        shape, strides = tuple(self.shape[i] for i in keep), tuple(self.strides[i] for i in keep)
        return self._view(array, shape, strides, self.start, "reshape", {"to": shape})

    def reshape(self, *shape: Any) -> Tensor:
        """Return a view of another shape with as many elements; one size may be -1."""
        to = shape[0] if len(shape) == 1 else shape
        try:
            to = reshaped(self.shape, to=self.backend.shape_of(to, unknown=True))
        except (ValueError, TypeError) as error:
            raise type(error)(f"{self._words()}.reshape({to}): {error}") from None
        if to == self.shape:
            return self
        if not self.is_contiguous:
            raise ValueError(
                f"{self._words()} is a view with gaps and cannot be reshaped in place: copy it first, be.array(t)"
            )
        array = self.backend.runtime.reshape(self.storage, to)
        return self._view(array, to, c_strides(to), self.start, "reshape", {"to": to})

    @property
    def T(self) -> Tensor:
        """A view with the last two axes swapped."""
        return self.permute(swapped(self.ndim))

    def permute(self, axes: tuple[int, ...]) -> Tensor:
        """Return a view with the axes in another order."""
        try:
            shape = permuted(self.shape, axes=axes)
        except ValueError as error:
            raise ValueError(f"{self._words()}.permute({axes}): {error}") from None
        array = self.backend.xp.permute_dims(self.storage, axes)
        strides = tuple(self.strides[a] for a in axes)
        return self._view(array, shape, strides, self.start, "transpose", {"axes": axes})

    def transpose(self, out: Any = None) -> Any:
        """Return ``T``; with ``out``, copy it there."""
        return self.T if out is None else self.backend.assign([out], [self.T])[0]

    def share(self, shape: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return a view of the first elements, in another shape."""
        shape = self.backend.shape_of(shape)
        if dtype is not None and self.backend.dtype_name(dtype) != self.info.dtype:
            raise ValueError(f"{self._words()} holds {self.info.dtype} and cannot be shared as {dtype}")
        size = math.prod(shape)
        if size > self.size:
            raise ValueError(f"{shape} has {size} elements, more than the {self.size} of {self._words()}")
        view = self.reshape(-1, 1)[:size].reshape(shape)
        view.name = name
        return view

    def take(self, indices: Any, axis: int) -> Tensor:
        """Return a copy of the slices with the given indices along an axis."""
        return self.backend.evaluate([self.backend.take(self, indices, axis)])[0]  # type: ignore[no-any-return]

    # --- the rest ---

    def hist(self, tag: str) -> Tensor:
        """Count the elements by magnitude, in powers of two, under a tag of ``be.hist_buf``; return the counts."""
        return self.backend.histogram(self, tag)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return len(self) > 0

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a tensor belongs to a running backend and is not pickled: save t.get(), and load with be.array"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Return a tensor of the same values; of a view, the same view of a copy of its base, made once for all views.

        It is on the same backend, unless ``memo`` gives another: ``copy.deepcopy(tensors, {id(be): other})``.
        """
        be = copy.deepcopy(self.backend, memo)
        if self.base is not None:
            made = self._view_again(copy.deepcopy(self.base, memo))
        elif be is self.backend:
            made = be.empty(self.shape, self.info.dtype)
            made[:] = self
        else:
            made = be.array(self, self.info.dtype)
        made.name, made.persist_values, made.rounding = self.name, self.persist_values, self.rounding
        return made

    def _view_again(self, base: Tensor) -> Tensor:
        """Return what this is of its base, of another base of the same shape."""
        op, attrs = self.origin or ("", {})
        if op == "slice":
            return base[boxed(attrs["index"])]
        if op == "transpose":
            return base.permute(attrs["axes"])
        if base.is_contiguous:
            return base.reshape(self.shape)
        axes = (i for i in range(base.ndim) if base.shape[:i] + base.shape[i + 1 :] == self.shape)
        return base._without(next(axes))  # of one element, or it would not be a view

    def _words(self) -> str:
        return f"tensor {self.name} {self.shape}" if self.name else f"a tensor {self.shape}"


def truths(index: Any) -> bool:
    """Tell whether an index is made of truth values."""
    if isinstance(index, list):
        return any(isinstance(x, bool | np.bool_) for x in index)
    return isinstance(index, bool | np.bool_) or getattr(index, "dtype", None) == np.bool_


def reach(shape: Shape, strides: Shape, start: int) -> tuple[int, int]:
    """Return the span that the elements keep within: the first place, and the one after the last."""
    if 0 in shape:
        return start, start
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return start + sum(e for e in ends if e < 0), start + sum(e for e in ends if e > 0) + 1


def overlap(x: Tensor, y: Tensor) -> str:
    """Tell how two tensors share memory: "none", "same" (every element at the same place) or "some"."""
    if x.memory is not y.memory or x.span[0] >= y.span[1] or y.span[0] >= x.span[1]:
        return "none"
    same = x.shape == y.shape and x.strides == y.strides and x.span == y.span
    return "same" if same else "some"
