# Written by `python docs/make_stubs.py` from neonlite/array_api.
import builtins
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from neonlite.array_api import Array as _Array
from neonlite.array_api.data_types import NamespaceInfo
from neonlite.array_api.linalg import EighResult, QRResult, SlogdetResult, SVDResult
from neonlite.array_api.manipulation import Axis
from neonlite.array_api.random import Generator as _Generator
from neonlite.array_api.reductions import UniqueAll, UniqueCounts, UniqueInverse
from neonlite.backend import Backend
from neonlite.ops.functions import Shape

class Linalg:
    @staticmethod
    def cholesky(x: _Array, /, *, upper: builtins.bool = False) -> _Array:
        """Return the triangular factors L of positive definite matrices, L L^T = x."""

    @staticmethod
    def cross(x1: _Array, x2: _Array, /, *, axis: int = -1) -> _Array:
        """Return the cross products of vectors with three elements along an axis."""

    @staticmethod
    def det(x: _Array, /) -> _Array:
        """Return the determinants of square matrices."""

    @staticmethod
    def diagonal(x: _Array, /, *, offset: int = 0) -> _Array:
        """Return the diagonals of matrices."""

    @staticmethod
    def eigh(x: _Array, /) -> EighResult:
        """Return the eigenvalues and eigenvectors of symmetric matrices."""

    @staticmethod
    def eigvalsh(x: _Array, /) -> _Array:
        """Return the eigenvalues of symmetric matrices."""

    @staticmethod
    def inv(x: _Array, /) -> _Array:
        """Return the inverses of square matrices."""

    @staticmethod
    def matmul(x1: _Array, x2: _Array, /) -> _Array:
        """Return the matrix products of the last two axes; the other axes broadcast. A vector is a row or a column."""

    @staticmethod
    def matrix_norm(x: _Array, /, *, keepdims: builtins.bool = False, ord: Any = "fro") -> _Array:
        """Return the norms of matrices."""

    @staticmethod
    def matrix_power(x: _Array, n: int, /) -> _Array:
        """Return powers of square matrices."""

    @staticmethod
    def matrix_rank(x: _Array, /, *, rtol: Any = None) -> _Array:
        """Return the ranks of matrices: the numbers of singular values above a threshold."""

    @staticmethod
    def matrix_transpose(x: _Array, /) -> _Array:
        """Transpose the matrices in the last two axes."""

    @staticmethod
    def norm(
        x: _Array, /, ord: Any = None, axis: int | Sequence[int] | None = None, keepdims: builtins.bool = False
    ) -> _Array:
        """Return a vector norm along an axis, or a matrix norm over two, as ``np.linalg.norm``."""

    @staticmethod
    def outer(x1: _Array, x2: _Array, /) -> _Array:
        """Return the outer product of two vectors."""

    @staticmethod
    def pinv(x: _Array, /, *, rtol: Any = None) -> _Array:
        """Return the pseudo-inverses of matrices, by the singular value decomposition."""

    @staticmethod
    def qr(x: _Array, /, *, mode: str = "reduced") -> QRResult:
        """Return the QR decompositions of matrices, x = Q R."""

    @staticmethod
    def slogdet(x: _Array, /) -> SlogdetResult:
        """Return the signs and the logarithms of the magnitudes of the determinants of square matrices."""

    @staticmethod
    def solve(x1: _Array, x2: _Array, /) -> _Array:
        """Return the solutions z of linear equations x1 z = x2."""

    @staticmethod
    def svd(x: _Array, /, *, full_matrices: builtins.bool = True) -> SVDResult:
        """Return the singular value decompositions of matrices, x = U diag(S) Vh."""

    @staticmethod
    def svdvals(x: _Array, /) -> _Array:
        """Return the singular values of matrices."""

    @staticmethod
    def tensordot(x1: _Array, x2: _Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> _Array:
        """Return the sum of products over axes of two arrays."""

    @staticmethod
    def trace(x: _Array, /, *, offset: int = 0, dtype: Any = None) -> _Array:
        """Return the sums of diagonals of matrices."""

    @staticmethod
    def vecdot(x1: _Array, x2: _Array, /, *, axis: int = -1) -> _Array:
        """Return the dot products along an axis; the other axes broadcast."""

    @staticmethod
    def vector_norm(
        x: _Array, /, *, axis: int | Sequence[int] | None = None, keepdims: builtins.bool = False, ord: int | float = 2
    ) -> _Array:
        """Return the norms of vectors: the sum of ``|x|^ord``, to the power of 1 / ord."""

class Random:
    Generator = _Generator
    @staticmethod
    def default_rng(seed: int | None = None) -> _Generator:
        """Return a generator of random arrays on the current backend; that of ``be.array_api`` on its backend."""

class Namespace:
    be: Backend
    linalg: Linalg
    random: Random
    def __init__(self, be: Backend) -> None: ...
    Array = _Array
    __array_api_version__: str
    @staticmethod
    def __array_namespace_info__() -> NamespaceInfo:
        """Return what the namespace supports."""

    @staticmethod
    def abs(x: _Array, /) -> _Array:
        """Return |x|, elementwise."""

    @staticmethod
    def acos(x: _Array, /) -> _Array:
        """Return the inverse cosine of x, elementwise."""

    @staticmethod
    def acosh(x: _Array, /) -> _Array:
        """Return the inverse hyperbolic cosine of x, elementwise."""

    @staticmethod
    def add(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return x + y, elementwise."""

    @staticmethod
    def all(x: _Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> _Array:
        """Return whether no element is 0 or False, over axes."""

    @staticmethod
    def any(x: _Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> _Array:
        """Return whether an element is not 0 or False, over axes."""

    @staticmethod
    def arange(
        start: int | float,
        /,
        stop: int | float | None = None,
        step: int | float = 1,
        *,
        dtype: Any = None,
        device: str | None = None,
    ) -> _Array:
        """Return evenly spaced numbers of an interval without its end."""

    @staticmethod
    def argmax(x: _Array, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> _Array:
        """Return the index of the largest element along an axis, the first one on ties."""

    @staticmethod
    def argmin(x: _Array, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> _Array:
        """Return the index of the smallest element along an axis, the first one on ties."""

    @staticmethod
    def argsort(
        x: _Array, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
    ) -> _Array:
        """Return the indices that sort an array along an axis."""

    @staticmethod
    def asarray(
        obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: builtins.bool | None = None
    ) -> _Array:
        """Return an object as an array."""

    @staticmethod
    def asin(x: _Array, /) -> _Array:
        """Return the inverse sine of x, elementwise."""

    @staticmethod
    def asinh(x: _Array, /) -> _Array:
        """Return the inverse hyperbolic sine of x, elementwise."""

    @staticmethod
    def astype(x: _Array, dtype: Any, /, *, copy: builtins.bool = True, device: str | None = None) -> _Array:
        """Return an array cast to a dtype."""

    @staticmethod
    def atan(x: _Array, /) -> _Array:
        """Return the inverse tangent of x, elementwise."""

    @staticmethod
    def atan2(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return the angle of the point (y, x), from -pi to pi, elementwise."""

    @staticmethod
    def atanh(x: _Array, /) -> _Array:
        """Return the inverse hyperbolic tangent of x, elementwise."""

    @staticmethod
    def bitwise_and(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return the bitwise AND of x and y, elementwise."""

    @staticmethod
    def bitwise_invert(x: _Array, /) -> _Array:
        """Return the bits of x inverted, elementwise."""

    @staticmethod
    def bitwise_left_shift(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return x shifted left by y >= 0 bits, elementwise."""

    @staticmethod
    def bitwise_or(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return the bitwise OR of x and y, elementwise."""

    @staticmethod
    def bitwise_right_shift(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return x shifted right by y >= 0 bits, elementwise."""

    @staticmethod
    def bitwise_xor(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return the bitwise XOR of x and y, elementwise."""

    bool: np.dtype[np.bool]
    @staticmethod
    def broadcast_arrays(*arrays: _Array) -> list[_Array]:
        """Return arrays broadcast to their common shape."""

    @staticmethod
    def broadcast_shapes(*shapes: Shape) -> Shape:
        """Return the common shape to which arrays of these shapes are broadcast."""

    @staticmethod
    def broadcast_to(x: _Array, /, shape: tuple[int, ...]) -> _Array:
        """Return an array broadcast to a shape."""

    @staticmethod
    def can_cast(from_: Any, to: Any, /) -> builtins.bool:
        """Return whether a dtype can be cast to another one by promotion."""

    @staticmethod
    def ceil(x: _Array, /) -> _Array:
        """Return the smallest integer >= x, elementwise."""

    @staticmethod
    def clip(x: _Array, /, min: Any = None, max: Any = None) -> _Array:
        """Return the elements, limited to an interval: min(max(x, min), max)."""

    @staticmethod
    def concat(arrays: Sequence[_Array], /, *, axis: int | None = 0) -> _Array:
        """Join arrays along an axis."""

    @staticmethod
    def conj(x: _Array, /) -> _Array:
        """Return the complex conjugates of real numbers: the numbers themselves."""

    @staticmethod
    def copysign(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return |x| with the sign of y, elementwise."""

    @staticmethod
    def cos(x: _Array, /) -> _Array:
        """Return the cosine of x, elementwise."""

    @staticmethod
    def cosh(x: _Array, /) -> _Array:
        """Return the hyperbolic cosine of x, elementwise."""

    @staticmethod
    def count_nonzero(x: _Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> _Array:
        """Return the number of elements that are not 0 over axes."""

    @staticmethod
    def cumulative_prod(
        x: _Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: builtins.bool = False
    ) -> _Array:
        """Return the products of the elements up to each one, along an axis."""

    @staticmethod
    def cumulative_sum(
        x: _Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: builtins.bool = False
    ) -> _Array:
        """Return the sums of the elements up to each one, along an axis."""

    @staticmethod
    def diff(
        x: _Array, /, n: int = 1, *, axis: int = -1, prepend: _Array | None = None, append: _Array | None = None
    ) -> _Array:
        """Return the differences of neighbors along an axis."""

    @staticmethod
    def divide(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return x / y, elementwise."""

    e: float
    @staticmethod
    def einsum(subscripts: str, /, *operands: _Array, optimize: object = True) -> _Array:
        """Return an Einstein summation, contracted pairwise in the order chosen by opt_einsum."""

    @staticmethod
    def empty(shape: int | tuple[int, ...], *, dtype: Any = None, device: str | None = None) -> _Array:
        """Return an array of zeros; the values of ``empty`` are unspecified in the standard."""

    @staticmethod
    def empty_like(x: _Array, /, *, dtype: Any = None, device: str | None = None) -> _Array:
        """Return an array of zeros, of the shape and dtype of another one."""

    @staticmethod
    def equal(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return 1 where x equals y, else 0, elementwise."""

    @staticmethod
    def erf(x: _Array, /) -> _Array:
        """Return the error function of x, elementwise."""

    @staticmethod
    def exp(x: _Array, /) -> _Array:
        """Return e^x, elementwise."""

    @staticmethod
    def expand_dims(x: _Array, /, axis: int | tuple[int, ...] = 0) -> _Array:
        """Insert axes of size 1."""

    @staticmethod
    def expm1(x: _Array, /) -> _Array:
        """Return e^x - 1, elementwise."""

    @staticmethod
    def eye(
        n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: str | None = None
    ) -> _Array:
        """Return a matrix with ones on a diagonal, else zeros."""

    @staticmethod
    def finfo(type: Any, /) -> Any:
        """Return the limits of a floating-point dtype."""

    @staticmethod
    def flip(x: _Array, /, *, axis: Axis = None) -> _Array:
        """Reverse the order of the elements along axes."""

    float32: np.dtype[np.float32]
    float64: np.dtype[np.float64]
    @staticmethod
    def floor(x: _Array, /) -> _Array:
        """Return the largest integer <= x, elementwise."""

    @staticmethod
    def floor_divide(x1: Any, x2: Any, /) -> _Array:
        """Return x1 / x2, rounded down, elementwise."""

    @staticmethod
    def from_dlpack(x: Any, /, *, device: str | None = None, copy: builtins.bool | None = None) -> _Array:
        """Return a copy of an array of another library, through DLPack."""

    @staticmethod
    def full(
        shape: int | tuple[int, ...],
        fill_value: builtins.bool | int | float,
        *,
        dtype: Any = None,
        device: str | None = None,
    ) -> _Array:
        """Return an array of one value."""

    @staticmethod
    def full_like(
        x: _Array, /, fill_value: builtins.bool | int | float, *, dtype: Any = None, device: str | None = None
    ) -> _Array:
        """Return an array of one value, of the shape and dtype of another array."""

    @staticmethod
    def greater(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return 1 where x > y, else 0, elementwise."""

    @staticmethod
    def greater_equal(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return 1 where x >= y, else 0, elementwise."""

    @staticmethod
    def hypot(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return (x^2 + y^2)^(1/2), without overflow, elementwise."""

    @staticmethod
    def iinfo(type: Any, /) -> Any:
        """Return the limits of an integer dtype."""

    @staticmethod
    def imag(x: _Array, /) -> _Array:
        """Return the imaginary parts of real numbers: zeros."""

    inf: float
    int8: np.dtype[np.int8]
    int16: np.dtype[np.int16]
    int32: np.dtype[np.int32]
    int64: np.dtype[np.int64]
    @staticmethod
    def isdtype(dtype: Any, kind: Any) -> builtins.bool:
        """Return whether a dtype is of a kind."""

    @staticmethod
    def isfinite(x: _Array, /) -> _Array:
        """Return 1 where x is finite, else 0, elementwise."""

    @staticmethod
    def isin(x1: _Array, x2: _Array, /, *, invert: builtins.bool = False) -> _Array:
        """Return, for each element of an array, whether another array has it."""

    @staticmethod
    def isinf(x: _Array, /) -> _Array:
        """Return 1 where x is infinite, else 0, elementwise."""

    @staticmethod
    def isnan(x: _Array, /) -> _Array:
        """Return 1 where x is NaN, else 0, elementwise."""

    @staticmethod
    def less(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return 1 where x < y, else 0, elementwise."""

    @staticmethod
    def less_equal(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return 1 where x <= y, else 0, elementwise."""

    @staticmethod
    def linspace(
        start: int | float,
        stop: int | float,
        /,
        num: int,
        *,
        dtype: Any = None,
        device: str | None = None,
        endpoint: builtins.bool = True,
    ) -> _Array:
        """Return evenly spaced numbers of an interval."""

    @staticmethod
    def log(x: _Array, /) -> _Array:
        """Return ln x, elementwise."""

    @staticmethod
    def log1p(x: _Array, /) -> _Array:
        """Return ln(1 + x), elementwise."""

    @staticmethod
    def log2(x: _Array, /) -> _Array:
        """Return log2 x, elementwise."""

    @staticmethod
    def log10(x: _Array, /) -> _Array:
        """Return log10 x, elementwise."""

    @staticmethod
    def logaddexp(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return ln(e^x + e^y), elementwise."""

    @staticmethod
    def logical_and(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return 1 where x and y are not 0, else 0, elementwise."""

    @staticmethod
    def logical_not(x: _Array, /) -> _Array:
        """Return 1 where x is 0, else 0, elementwise."""

    @staticmethod
    def logical_or(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return 1 where x or y is not 0, else 0, elementwise."""

    @staticmethod
    def logical_xor(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return 1 where exactly one of x and y is not 0, else 0, elementwise."""

    @staticmethod
    def matmul(x1: _Array, x2: _Array, /) -> _Array:
        """Return the matrix products of the last two axes; the other axes broadcast. A vector is a row or a column."""

    @staticmethod
    def matrix_transpose(x: _Array, /) -> _Array:
        """Transpose the matrices in the last two axes."""

    @staticmethod
    def max(x: _Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> _Array:
        """Return the largest element over axes."""

    @staticmethod
    def maximum(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return the elementwise maximum of x and y, elementwise."""

    @staticmethod
    def mean(x: _Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> _Array:
        """Return the mean over axes; integers are averaged in the default dtype of the backend."""

    @staticmethod
    def meshgrid(*arrays: _Array, indexing: str = "xy") -> list[_Array]:
        """Return the coordinates of a grid."""

    @staticmethod
    def min(x: _Array, /, *, axis: Axis = None, keepdims: builtins.bool = False) -> _Array:
        """Return the smallest element over axes."""

    @staticmethod
    def minimum(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return the elementwise minimum of x and y, elementwise."""

    @staticmethod
    def moveaxis(x: _Array, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> _Array:
        """Move axes to other positions."""

    @staticmethod
    def multiply(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return x * y, elementwise."""

    nan: float
    @staticmethod
    def negative(x: _Array, /) -> _Array:
        """Return -x, elementwise."""

    newaxis: None
    @staticmethod
    def nextafter(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return the next representable number after x toward y, elementwise."""

    @staticmethod
    def nonzero(x: _Array, /) -> tuple[_Array, ...]:
        """Return the indices of the elements that are not 0. Evaluates x at once, as the shapes depend on the values."""

    @staticmethod
    def not_equal(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return 1 where x differs from y, else 0, elementwise."""

    @staticmethod
    def ones(shape: int | tuple[int, ...], *, dtype: Any = None, device: str | None = None) -> _Array:
        """Return an array of ones."""

    @staticmethod
    def ones_like(x: _Array, /, *, dtype: Any = None, device: str | None = None) -> _Array:
        """Return an array of ones, of the shape and dtype of another one."""

    @staticmethod
    def permute_dims(x: _Array, /, axes: tuple[int, ...]) -> _Array:
        """Permute the axes."""

    pi: float
    @staticmethod
    def positive(x: _Array, /) -> _Array:
        """Return the elements themselves."""

    @staticmethod
    def pow(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return x^y, elementwise."""

    @staticmethod
    def prod(x: _Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: builtins.bool = False) -> _Array:
        """Return the product over axes."""

    @staticmethod
    def real(x: _Array, /) -> _Array:
        """Return the real parts of real numbers: the numbers themselves."""

    @staticmethod
    def reciprocal(x: _Array, /) -> _Array:
        """Return 1 / x, elementwise."""

    @staticmethod
    def remainder(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return x - y floor(x / y), with the sign of y; 0 for integers where y is 0, elementwise."""

    @staticmethod
    def repeat(x: _Array, repeats: int | _Array, /, *, axis: int | None = None) -> _Array:
        """Repeat each element."""

    @staticmethod
    def reshape(x: _Array, /, shape: tuple[int, ...], *, copy: builtins.bool | None = None) -> _Array:
        """Return the elements in another shape, in C order."""

    @staticmethod
    def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
        """Return the dtype to which arrays, dtypes and Python scalars are promoted."""

    @staticmethod
    def roll(x: _Array, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> _Array:
        """Shift the elements along axes; those behind the end come back at the start."""

    @staticmethod
    def round(x: _Array, /) -> _Array:
        """Return x rounded to the nearest integer, ties to even, elementwise."""

    @staticmethod
    def searchsorted(x1: _Array, x2: _Array, /, *, side: str = "left", sorter: _Array | None = None) -> _Array:
        """Return the positions at which values keep an array sorted."""

    @staticmethod
    def sign(x: _Array, /) -> _Array:
        """Return the sign of x: -1, 0 or 1, elementwise."""

    @staticmethod
    def signbit(x: _Array, /) -> _Array:
        """Return 1 where the sign bit of x is set, also for -0.0, else 0, elementwise."""

    @staticmethod
    def sin(x: _Array, /) -> _Array:
        """Return the sine of x, elementwise."""

    @staticmethod
    def sinh(x: _Array, /) -> _Array:
        """Return the hyperbolic sine of x, elementwise."""

    @staticmethod
    def sort(
        x: _Array, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
    ) -> _Array:
        """Return the elements in order along an axis."""

    @staticmethod
    def sqrt(x: _Array, /) -> _Array:
        """Return x^(1/2), elementwise."""

    @staticmethod
    def square(x: _Array, /) -> _Array:
        """Return x^2, elementwise."""

    @staticmethod
    def squeeze(x: _Array, /, axis: int | tuple[int, ...]) -> _Array:
        """Remove axes of size 1."""

    @staticmethod
    def stack(arrays: Sequence[_Array], /, *, axis: int = 0) -> _Array:
        """Join arrays of one shape along a new axis."""

    @staticmethod
    def std(
        x: _Array, /, *, axis: Axis = None, correction: int | float = 0.0, keepdims: builtins.bool = False
    ) -> _Array:
        """Return the standard deviation over axes, the square root of ``var``. The gradient is 0 where it is 0."""

    @staticmethod
    def subtract(x1: _Array | float, x2: _Array | float, /) -> _Array:
        """Return x - y, elementwise."""

    @staticmethod
    def sum(x: _Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: builtins.bool = False) -> _Array:
        """Return the sum over axes."""

    @staticmethod
    def take(x: _Array, indices: _Array, /, *, axis: int | None = None) -> _Array:
        """Return the elements at indices along an axis."""

    @staticmethod
    def take_along_axis(x: _Array, indices: _Array, /, *, axis: int = -1) -> _Array:
        """Return the elements at indices along an axis, with indices for each position on the other axes."""

    @staticmethod
    def tan(x: _Array, /) -> _Array:
        """Return the tangent of x, elementwise."""

    @staticmethod
    def tanh(x: _Array, /) -> _Array:
        """Return the hyperbolic tangent of x, elementwise."""

    @staticmethod
    def tensordot(x1: _Array, x2: _Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> _Array:
        """Return the sum of products over axes of two arrays."""

    @staticmethod
    def tile(x: _Array, repetitions: tuple[int, ...], /) -> _Array:
        """Repeat an array along its axes."""

    @staticmethod
    def tril(x: _Array, /, *, k: int = 0) -> _Array:
        """Return matrices with zeros above a diagonal."""

    @staticmethod
    def triu(x: _Array, /, *, k: int = 0) -> _Array:
        """Return matrices with zeros below a diagonal."""

    @staticmethod
    def trunc(x: _Array, /) -> _Array:
        """Return x rounded toward zero, elementwise."""

    uint8: np.dtype[np.uint8]
    uint16: np.dtype[np.uint16]
    uint32: np.dtype[np.uint32]
    uint64: np.dtype[np.uint64]
    @staticmethod
    def unique_all(x: _Array, /) -> UniqueAll:
        """Return the distinct elements, sorted, and where and how often they occur. Evaluates x at once."""

    @staticmethod
    def unique_counts(x: _Array, /) -> UniqueCounts:
        """Return the distinct elements, sorted, and how often they occur. Evaluates x at once."""

    @staticmethod
    def unique_inverse(x: _Array, /) -> UniqueInverse:
        """Return the distinct elements, sorted, and for each element the index of its value. Evaluates x at once."""

    @staticmethod
    def unique_values(x: _Array, /) -> _Array:
        """Return the distinct elements, sorted. Evaluates x at once."""

    @staticmethod
    def unstack(x: _Array, /, *, axis: int = 0) -> tuple[_Array, ...]:
        """Split an array along an axis."""

    @staticmethod
    def var(
        x: _Array, /, *, axis: Axis = None, correction: int | float = 0.0, keepdims: builtins.bool = False
    ) -> _Array:
        """Return the variance over axes: the sum of (x - mean)^2, divided by n - correction."""

    @staticmethod
    def variable(obj: Any, /, *, dtype: Any = None, name: str | None = None) -> _Array:
        """Return an array to differentiate with respect to: ``Autodiff(y).get_grad_op_tree(x)``."""

    @staticmethod
    def vecdot(x1: _Array, x2: _Array, /, *, axis: int = -1) -> _Array:
        """Return the dot products along an axis; the other axes broadcast."""

    @overload
    @staticmethod
    def where(condition: _Array, /) -> tuple[_Array, ...]:
        """Return the elements of one array where a condition holds, else those of another one."""

    @overload
    @staticmethod
    def where(condition: _Array, x1: Any, x2: Any, /) -> _Array:
        """Return the elements of one array where a condition holds, else those of another one."""

    @staticmethod
    def zeros(shape: int | tuple[int, ...], *, dtype: Any = None, device: str | None = None) -> _Array:
        """Return an array of zeros."""

    @staticmethod
    def zeros_like(x: _Array, /, *, dtype: Any = None, device: str | None = None) -> _Array:
        """Return an array of zeros, of the shape and dtype of another one."""
