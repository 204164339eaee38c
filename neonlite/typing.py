"""Type aliases of arguments, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias

if TYPE_CHECKING:
    import numpy as np


class Array(Protocol):
    """An array of any library, a tensor, or an op-tree."""

    @property
    def shape(self) -> Any:
        """The shape."""

    @property
    def dtype(self) -> Any:
        """The dtype."""


class HasShape(Protocol):
    """A data set or tensor: an object with the shape of its data."""

    @property
    def shape(self) -> Any:
        """The shape."""


class DataFrame(Protocol):
    """A data frame of pandas or polars."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""

    @property
    def shape(self) -> Any:
        """The numbers of rows and columns."""


class DType(Protocol):
    """A dtype object, such as NumPy's and PyTorch's."""

    @property
    def itemsize(self) -> int:
        """The size of an element in bytes."""


# classes of other modules, in the annotations of the modules below them, which cannot import these
Operand: TypeAlias = Any  # a tensor or op-tree
Tensor: TypeAlias = Any
Model: TypeAlias = Any

OperandLike = Array | float  # an operand of an op
ArrayLike = Array | float | Sequence[Any]  # values of a new tensor: also nested lists
Data: TypeAlias = "Array | DataFrame | Sequence[Any] | Mapping[str, Any]"  # rows, columns or texts
ClassWeights: TypeAlias = "Mapping[Any, float]"  # a factor of each class, by label
DTypeLike = str | type | DType | None  # None: the default dtype
ShapeLike = int | Sequence[int]
AxisLike = int | Sequence[int] | None  # None: all axes
AxisIndex = SupportsIndex | slice | EllipsisType | Array | Sequence[int]
IndexLike = AxisIndex | tuple[AxisIndex, ...]  # t[i], t[..., i:j], t[[0, 2]], t[mask]
Namespace: TypeAlias = Any  # an array-API namespace; the standard has no type for it
NativeArray: TypeAlias = Any  # an array of the runtime's library; the array-API standard has no type for it
NestedLists: TypeAlias = Any  # lists of lists of numbers, as many levels as there are dimensions
NumPyArray: TypeAlias = "np.ndarray[Any, Any]"
LayerShape = int | tuple[int, ...]  # F, (F, T) or (C, H, W): without the batch dimension
LayerShapes: TypeAlias = "LayerShape | Sequence[LayerShapes]"  # also of several inputs or outputs
WindowSizes = int | Sequence[int] | dict[str, int]  # sizes of a window or filter: a scalar, by axis or by name
