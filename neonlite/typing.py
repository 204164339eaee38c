"""Types: dtypes and their promotion, aliases for annotations, and BackendBase, which imports no other module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from weakref import WeakValueDictionary

    import numpy as np

# --- names, sizes, limits and promotion of dtypes; bfloat16 in NumPy through ml_dtypes ---

HALF_DTYPES = ("float16", "bfloat16")  # accumulated in float32
FLOAT_DTYPES = (*HALF_DTYPES, "float32", "float64")
# integers up to 2**bits are exact
SIGNIFICAND_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
INT_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def dtype_bits(dtype: str) -> int:
    """Return the number of bits of a dtype."""
    return int(dtype.lstrip("buintfloa"))


# {integer dtype: (minimum, maximum)}
LIMITS: dict[str, tuple[int, int]] = {name: (0, 2 ** dtype_bits(name) - 1) for name in INT_DTYPES if name[0] == "u"}
LIMITS |= {
    name: (-(2 ** (dtype_bits(name) - 1)), 2 ** (dtype_bits(name) - 1) - 1) for name in INT_DTYPES if name[0] == "i"
}


def overflow_message(value: float, dtype: str) -> str:
    """Return the message for a number that does not fit an integer dtype."""
    low, high = LIMITS[dtype]
    return (
        f"expected an integer from {low} to {high} for {dtype}, got {value}. Create the tensor with another dtype, or "
        "cast it with be.astype."
    )


def promote_types(x: str, y: str) -> str:
    """Return the common dtype: the float one of a float and an integer, else the smallest that holds both.

    It is float64 for uint64 and a signed integer, as in NumPy: no integer dtype holds all values of both.
    """
    if x == y:
        return x
    if (x in FLOAT_DTYPES) != (y in FLOAT_DTYPES):
        return x if x in FLOAT_DTYPES else y
    if {x, y} == {*HALF_DTYPES}:
        return "float32"
    smaller, larger = sorted((x, y), key=dtype_bits)
    if x in FLOAT_DTYPES or smaller[0] == larger[0]:
        return larger
    signed, unsigned = (x, y) if y[0] == "u" else (y, x)
    return "float64" if unsigned == "uint64" else f"int{max(dtype_bits(signed), 2 * dtype_bits(unsigned))}"


# --- bfloat16 support in NumPy through ml_dtypes ---

INSTALL_ML_DTYPES = "pip install ml_dtypes"


def has_bfloat16() -> bool:
    """Import ml_dtypes, which registers bfloat16 with NumPy, and return whether it is installed."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def is_float_array(array: NumPyArray) -> bool:
    """Return whether a NumPy array holds floats, bfloat16 included."""
    return bool(array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def is_real_array(array: NumPyArray) -> bool:
    """Return whether a NumPy array holds real numbers or booleans."""
    return array.dtype.kind in "biu" or is_float_array(array)


# --- aliases of arguments, for editors and type checkers ---


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


# --- BackendBase: what the classes of a Backend's methods, tensors and op-trees use of it ---

# the functions of ``backend/__init__.py``, which sets them, for the modules below it
current_backend: Callable[[], Any]
use_backend: Callable[[Any], AbstractContextManager[Any]]


class Untracked:
    """Base of classes whose objects a snapshot does not look into: they depend only on what is recorded elsewhere."""

    __slots__ = ()


class BackendBase(Untracked):
    """The base class of ``Backend`` and of the classes that define its methods.

    It is below tensors and op-trees, which therefore use it in annotations. For type checkers, it has the attributes
    of ``Backend`` that are listed here with their types, and all others with the type Any.
    """

    name: str
    bsz: int
    closed_by: str  # the call that closed the backend, with file and line; "" if it is open
    default_dtype_name: str
    compat_mode: str | None
    deterministic: bool | None
    streams: Any
    runtime: Any
    primitives: Any
    _executor: Any
    _bsz: int
    hist_bins: int
    hist_offset: int
    hist_buf: dict[str, Any]
    num_redefinitions: int
    exported: WeakValueDictionary[int, Any]
    distributed: WeakValueDictionary[int, Any]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
