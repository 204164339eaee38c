"""Tensor: an array of a runtime with at least two dimensions; views of it share its memory.

Longer methods are functions of a tensor, in tensor_views.py, tensor_conversion.py and histograms.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from neonlite.backend import histograms, tensor_conversion, tensor_views
from neonlite.backend.memory import ExternalMemory, Memory
from neonlite.backend.planning.layout import export_array, layout_of
from neonlite.backend.tensor_index import FULL_SLICE, gather, parse_index, scatter
from neonlite.dtypes import dtype_bits
from neonlite.messages import describe
from neonlite.ops.functions import to_slices
from neonlite.ops.shapes import Shape, SliceSpec, is_contiguous, memory_span
from neonlite.optree import Operand, OpTreeNode
from neonlite.tree_structure import Info, matrix_transpose_axes
from neonlite.typing import ArrayLike, IndexLike, NativeArray


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
    updates : (str, int), optional
        Of a parameter with optimizer states: the kind of optimizer that they belong to, and its number of updates.

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
        "__weakref__", "allocation", "base", "info", "name", "persist_values", "rounding", "span", "storage",
        "storage_offset", "strides", "updates", "view_op",
    )  # fmt: skip

    def __init__(
        self,
        array: NativeArray,
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
        self.updates: tuple[str, int] | None = None

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
        return self.size * dtype_bits(self.info.dtype) // 8

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are contiguous in memory, in C order."""
        return bool(self.info.attrs["contiguous"])

    @property
    def layout(self) -> str:
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
    def _array(self) -> NativeArray:
        """The runtime's array. Reading it exports the memory, which has no layout cache from then on."""
        return export_array(self)

    @property
    def _tensor(self) -> NativeArray:
        return self._array

    def __len__(self) -> int:
        return self.info.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    # --- writes ---

    def __setitem__(self, index: IndexLike, value: ArrayLike) -> None:
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

    _update = tensor_conversion.update
    set = tensor_conversion.set
    fill = tensor_conversion.fill
    copy = copy_from = __copy__ = tensor_conversion.copy

    # --- conversion ---

    get = tensor_conversion.get
    numpy = tensor_conversion.numpy
    __array__ = tensor_conversion.to_array
    __dlpack__ = tensor_conversion.to_dlpack
    __dlpack_device__ = tensor_conversion.dlpack_device
    __repr__ = tensor_conversion.format_text
    _repr_html_ = tensor_conversion.format_html

    # --- views ---

    def __getitem__(self, index: IndexLike) -> Tensor:
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
            view = tensor_views.drop_axis(view, dropped_axes.pop(0))
            dropped_axes = [axis - 1 for axis in dropped_axes]
        return view

    def _make_view(
        self, array: NativeArray, shape: Shape, strides: Shape, offset: int, op: str, attrs: dict[str, Any]
    ) -> Tensor:
        span = memory_span(shape, strides, offset)
        info = self.backend.tensor_info(shape, self.info.dtype, is_contiguous(shape, strides))
        return Tensor(
            array, info, self.name, self, storage_offset=offset, strides=strides, span=span, view_op=(op, attrs)
        )

    @property
    def T(self) -> Tensor:
        """A view with the last two axes exchanged."""
        return self.permute(matrix_transpose_axes(self.ndim))

    reshape = tensor_views.reshape
    permute = tensor_views.permute
    _permute = tensor_views.permute
    share = tensor_views.share
    take = tensor_views.take
    hist = histograms.hist
    __deepcopy__ = tensor_views.deepcopy

    def __bool__(self) -> bool:  # as in neon's ``if not self.deltas``; for the value of one element use bool(t.item())
        return len(self) > 0

    def _describe(self) -> str:
        return f"tensor {self.name} {self.shape}" if self.name else f"a tensor {self.shape}"
