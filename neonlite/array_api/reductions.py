"""Statistical, searching, sorting, set and utility functions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, overload

import numpy as np

from neonlite.array_api.array import BOOL, Array, as_dtype, from_numpy, same, with_shape
from neonlite.array_api.data_types import as_array, check_array, check_arrays, to_dtype
from neonlite.array_api.elementwise import FLOAT, REAL, check_kind, equal, minimum, not_equal, pow, select, sqrt
from neonlite.array_api.manipulation import Axis, axes_of, axis_of, concat, reshape, take
from neonlite.backend.validation import checks_names
from neonlite.messages import describe

INT64, UINT64 = np.dtype(np.int64), np.dtype(np.uint64)


def reduced(method: str, x: Array, axis: Axis, keepdims: bool, dtype: np.dtype[Any] | None = None) -> Array:
    """Return a reduction of an array over axes by a backend method; None: in the dtype of the method's result."""
    axes = axes_of(method, x, axis)
    if not axes:
        return same(x)
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    if method not in ("sum", "prod") and not math.prod(x.shape[i] for i in axes):
        raise ValueError(f"{method}: expected at least one element along axis {axis}, got {describe(x)}")
    pad = len(x.operand.shape) - x.ndim
    operand = getattr(x.backend, method)(x.operand, axis=tuple(i + pad for i in axes))
    if not keepdims:
        shape = tuple(n for i, n in enumerate(x.shape) if i not in axes)
    return with_shape(operand, shape, dtype, x)


def accumulated(x: Array, dtype: Any) -> Array:
    """Return an argument in the dtype of its sum: 64 bits for integers, unless a dtype is given."""
    if dtype is not None:
        return to_dtype(x, as_dtype(dtype))
    if x.dtype.kind == "f":
        return x
    return to_dtype(x, UINT64 if x.dtype.kind == "u" and "uint64" in x.backend.runtime.dtypes else INT64)


def numeric(name: str, kinds: str, x: Any) -> Array:
    """Return an argument as an array of an accepted kind."""
    (x,) = check_arrays(name, x)
    return x if x.dtype.kind in kinds else check_kind(name, kinds, x)


# --- statistical functions ---


@checks_names
def sum(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return the sum over axes.

    Parameters
    ----------
    x : Array
        The array.
    axis : int or tuple of int, optional
        The axes; default all.
    dtype : dtype, optional
        The dtype of the result; default that of x, but 64 bits for integers.
    keepdims : bool
        Whether the reduced axes stay, with size 1.

    Returns
    -------
    Array
        The sum.
    """
    x = accumulated(check_array("sum", x), dtype)
    return to_dtype(reduced("sum", x, axis, keepdims), x.dtype)


@checks_names
def prod(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return the product over axes.

    Parameters
    ----------
    x, axis, dtype, keepdims
        As for ``sum``.

    Returns
    -------
    Array
        The product.
    """
    x = accumulated(check_array("prod", x), dtype)
    return to_dtype(reduced("prod", x, axis, keepdims), x.dtype)


@checks_names
def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the largest element over axes.

    Parameters
    ----------
    x, axis, keepdims
        As for ``sum``.

    Returns
    -------
    Array
        The largest element.
    """
    return reduced("max", numeric("max", REAL, x), axis, keepdims)


@checks_names
def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the smallest element over axes.

    Parameters
    ----------
    x, axis, keepdims
        As for ``sum``.

    Returns
    -------
    Array
        The smallest element.
    """
    return reduced("min", numeric("min", REAL, x), axis, keepdims)


def count_of(x: Array, axis: Axis) -> int:
    """Return the number of elements that a reduction over axes reads for each result."""
    return math.prod(x.shape[i] for i in axes_of("axis", x, axis))


@checks_names
def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the mean over axes; integers are averaged in the default dtype of the backend.

    Parameters
    ----------
    x, axis, keepdims
        As for ``sum``.

    Returns
    -------
    Array
        The mean.
    """
    x = numeric("mean", FLOAT, x)
    return sum(x, axis=axis, keepdims=keepdims) / float(count_of(x, axis))


@checks_names
def var(x: Array, /, *, axis: Axis = None, correction: int | float = 0.0, keepdims: bool = False) -> Array:
    """Return the variance over axes: the sum of (x - mean)^2, divided by n - correction.

    Parameters
    ----------
    x, axis, keepdims
        As for ``sum``.
    correction : number
        What is subtracted from the number of elements n; 1 for the unbiased estimate. Default: 0.

    Returns
    -------
    Array
        The variance.
    """
    x = numeric("var", FLOAT, x)
    difference = x - mean(x, axis=axis, keepdims=True)
    total = sum(difference * difference, axis=axis, keepdims=keepdims)
    n = count_of(x, axis) - correction
    return total / float(n) if n > 0 else total / (total * 0.0)


@checks_names
def std(x: Array, /, *, axis: Axis = None, correction: int | float = 0.0, keepdims: bool = False) -> Array:
    """Return the standard deviation over axes, the square root of ``var``. The gradient is 0 where it is 0.

    Parameters
    ----------
    x, axis, correction, keepdims
        As for ``var``.

    Returns
    -------
    Array
        The standard deviation.
    """
    return root(var(x, axis=axis, correction=correction, keepdims=keepdims))


def root(total: Array, ord: int | float = 2) -> Array:
    """Return total^(1 / ord), of a sum of powers; the gradient is 0 where this is 0 or, for ord < 0, infinite."""
    at_zero = 0.0 if ord > 0 else math.inf
    return select(equal(total, 0.0), at_zero, sqrt(total) if ord == 2 else pow(total, 1 / ord))


@checks_names
def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the sums of the elements up to each one, along an axis.

    Parameters
    ----------
    x : Array
        The array.
    axis : int, optional
        The axis; may be left out for a one-dimensional array.
    dtype : dtype, optional
        As for ``sum``.
    include_initial : bool
        Whether the result starts with 0.

    Returns
    -------
    Array
        The sums.
    """
    return _cumulative("cumulative_sum", x, axis, dtype, include_initial, 0)


@checks_names
def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Return the products of the elements up to each one, along an axis.

    Parameters
    ----------
    x, axis, dtype
        As for ``cumulative_sum``.
    include_initial : bool
        Whether the result starts with 1.

    Returns
    -------
    Array
        The products.
    """
    return _cumulative("cumulative_prod", x, axis, dtype, include_initial, 1)


def _cumulative(name: str, x: Any, axis: int | None, dtype: Any, include_initial: bool, initial: int) -> Array:
    (x,) = check_arrays(name, x)
    if axis is None and x.ndim > 1:
        raise ValueError(f"{name}: expected axis for {describe(x)}, got none")
    x = accumulated(x if x.ndim else reshape(x, (1,)), dtype)
    i = axis_of(name, x, -1 if axis is None else axis)
    operand = getattr(x.backend, name)(x.operand, axis=i + len(x.operand.shape) - x.ndim)
    z = to_dtype(with_shape(operand, x.shape, None, x), x.dtype)
    if include_initial:
        first = np.full((*x.shape[:i], 1, *x.shape[i + 1 :]), initial, x.dtype)
        z = concat([from_numpy(x.backend, first), z], axis=i)
    return z


# --- searching ---


@checks_names
def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the index of the largest element along an axis, the first one on ties.

    Parameters
    ----------
    x : Array
        The array.
    axis : int, optional
        The axis; default: of the flattened array.
    keepdims : bool
        Whether the axis stays, with size 1.

    Returns
    -------
    Array
        The index, int64.
    """
    return _arg("argmax", x, axis, keepdims)


@checks_names
def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the index of the smallest element along an axis, the first one on ties.

    Parameters
    ----------
    x, axis, keepdims
        As for ``argmax``.

    Returns
    -------
    Array
        The index, int64.
    """
    return _arg("argmin", x, axis, keepdims)


def _arg(name: str, x: Any, axis: int | None, keepdims: bool) -> Array:
    x = numeric(name, REAL, x)
    if axis is not None:
        return reduced(name, x, axis, keepdims)
    z = reduced(name, reshape(x, (-1,)), 0, False)
    return reshape(z, (1,) * x.ndim) if keepdims else z


@checks_names
def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the number of elements that are not 0 over axes.

    Parameters
    ----------
    x, axis, keepdims
        As for ``sum``.

    Returns
    -------
    Array
        The number, int64.
    """
    (x,) = check_arrays("count_nonzero", x)
    return to_dtype(reduced("sum", to_dtype(x, BOOL), axis, keepdims), INT64)


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """Return the indices of the elements that are not 0. Evaluates x at once, as the shapes depend on the values.

    Parameters
    ----------
    x : Array
        The array.

    Returns
    -------
    tuple of Array
        The indices along each axis.
    """
    (x,) = check_arrays("nonzero", x)
    if not x.ndim:
        raise ValueError(f"nonzero: expected at least one dimension, got {describe(x)}")
    return tuple(from_numpy(x.backend, i.astype(np.int64, copy=False), True) for i in np.nonzero(x.numpy()))


@overload
def where(condition: Array, /) -> tuple[Array, ...]: ...
@overload
def where(condition: Array, x1: Any, x2: Any, /) -> Array: ...
def where(condition: Array, x1: Any = None, x2: Any = None, /) -> Array | tuple[Array, ...]:
    """Return the elements of one array where a condition holds, else those of another one.

    Without other arrays, return the indices where the condition holds, as NumPy does: ``nonzero(condition)``.

    Parameters
    ----------
    condition : Array
        The condition, boolean.
    x1, x2 : Array or number
        The values where it holds, and where not; all broadcast.

    Returns
    -------
    Array or tuple of Array
        The elements, or the indices along each axis.
    """
    return nonzero(condition) if x1 is None and x2 is None else select(condition, x1, x2)


def searchsorted(x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None) -> Array:
    """Return the positions at which values keep an array sorted.

    Parameters
    ----------
    x1 : Array
        The sorted array, one-dimensional.
    x2 : Array
        The values.
    side : {"left", "right"}
        The position before or behind equal elements.
    sorter : Array, optional
        The indices that sort x1.

    Returns
    -------
    Array
        The positions, int64, of the shape of x2.
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: expected side 'left' or 'right', got {side!r}")
    x1 = check_array("searchsorted", x1, x2)
    x2 = as_array(x2, x1)
    if x1.ndim != 1:
        raise ValueError(f"searchsorted: expected one dimension, got {describe(x1)}")
    if sorter is not None:
        x1 = take(x1, sorter)
    dtype = as_dtype(np.promote_types(x1.dtype, x2.dtype))  # NumPy's, in which integers are compared with floats
    x1, x2 = to_dtype(x1, dtype), to_dtype(x2, dtype)
    be = x1.backend
    operand = be.searchsorted(x1.operand, be.reshape(x2.operand, (1, x2.size)), side=side)
    return with_shape(operand, x2.shape, INT64, x1, x2)


def isin(x1: Array, x2: Array, /, *, invert: bool = False) -> Array:
    """Return, for each element of an array, whether another array has it.

    Parameters
    ----------
    x1, x2 : Array
        The arrays. One of them may be a Python number.
    invert : bool
        Return whether the other array does not have it.

    Returns
    -------
    Array
        Boolean, of the shape of x1.
    """
    like = x1 if isinstance(x1, Array) else x2
    x1, x2 = check_arrays("isin", as_array(x1, like), as_array(x2, like))
    dtype = as_dtype(np.promote_types(x1.dtype, x2.dtype))
    number = as_dtype("uint8") if dtype == BOOL else dtype  # of elements that are sorted
    x1, x2 = to_dtype(x1, number), sort(reshape(to_dtype(x2, number), (-1,)))
    if not x2.size:
        return not_equal(x1, x1) if not invert else equal(x1, x1)
    if number.kind == "f":  # PyTorch's search does not support NaN, which equals no element
        x2 = sort(select(not_equal(x2, x2), x2[0], x2))
    index = minimum(searchsorted(x2, x1), x2.size - 1)
    return (not_equal if invert else equal)(reshape(take(x2, reshape(index, (-1,))), x1.shape), x1)


# --- sorting ---


@checks_names
def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return the indices that sort an array along an axis.

    Parameters
    ----------
    x : Array
        The array.
    axis : int
        The axis; default the last.
    descending : bool
        Whether the largest element comes first.
    stable : bool
        For compatibility with the standard: equal elements always stay in order.

    Returns
    -------
    Array
        The indices, int64.
    """
    return _sorted("argsort", x, axis, descending, INT64)


@checks_names
def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Return the elements in order along an axis.

    Parameters
    ----------
    x, axis, descending, stable
        As for ``argsort``.

    Returns
    -------
    Array
        The sorted elements.
    """
    return _sorted("sort", x, axis, descending, None)


def _sorted(name: str, x: Any, axis: int, descending: bool, dtype: Any) -> Array:
    (x,) = check_arrays(name, x)
    i = axis_of(name, x, axis)
    operand = getattr(x.backend, name)(x.operand, axis=i + len(x.operand.shape) - x.ndim, descending=descending)
    return with_shape(operand, x.shape, x.dtype if dtype is None else dtype, x)


# --- sets: their shapes depend on the values, so they evaluate at once ---


class UniqueAll(NamedTuple):
    """The result of ``unique_all``."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """The result of ``unique_counts``."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """The result of ``unique_inverse``."""

    values: Array
    inverse_indices: Array


def unique_all(x: Array, /) -> UniqueAll:
    """Return the distinct elements, sorted, and where and how often they occur. Evaluates x at once.

    Parameters
    ----------
    x : Array
        The array.

    Returns
    -------
    UniqueAll
        ``values``, ``indices`` (of the first occurrences), ``inverse_indices`` and ``counts``.
    """
    return UniqueAll(*_unique("unique_all", x, return_index=True, return_inverse=True, return_counts=True))


def _unique(name: str, x: Any, **parts: bool) -> list[Array]:
    """Return the distinct elements, sorted, and parts of the result of ``np.unique``."""
    (x,) = check_arrays(name, x)
    unique: Any = np.unique  # its overloads need literal flags
    found = unique(x.numpy(), equal_nan=False, **parts)
    arrays = [from_numpy(x.backend, part, True) for part in (found if parts else (found,))]
    if x.is_live:  # the elements of a variable have a gradient
        _, indices = np.unique(x.numpy(), equal_nan=False, return_index=True)
        arrays[0] = take(reshape(x, (-1,)), from_numpy(x.backend, indices, True))
    return arrays


def unique_counts(x: Array, /) -> UniqueCounts:
    """Return the distinct elements, sorted, and how often they occur. Evaluates x at once.

    Parameters
    ----------
    x : Array
        The array.

    Returns
    -------
    UniqueCounts
        ``values`` and ``counts``.
    """
    return UniqueCounts(*_unique("unique_counts", x, return_counts=True))


def unique_inverse(x: Array, /) -> UniqueInverse:
    """Return the distinct elements, sorted, and for each element the index of its value. Evaluates x at once.

    Parameters
    ----------
    x : Array
        The array.

    Returns
    -------
    UniqueInverse
        ``values`` and ``inverse_indices``.
    """
    return UniqueInverse(*_unique("unique_inverse", x, return_inverse=True))


def unique_values(x: Array, /) -> Array:
    """Return the distinct elements, sorted. Evaluates x at once.

    Parameters
    ----------
    x : Array
        The array.

    Returns
    -------
    Array
        The elements.
    """
    return _unique("unique_values", x)[0]


# --- utility functions ---


@checks_names
def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether no element is 0 or False, over axes.

    Parameters
    ----------
    x, axis, keepdims
        As for ``sum``.

    Returns
    -------
    Array
        Whether all are true, boolean.
    """
    (x,) = check_arrays("all", x)
    if not count_of(x, axis):
        return equal(count_nonzero(x, axis=axis, keepdims=keepdims), 0)
    return reduced("min", to_dtype(x, BOOL), axis, keepdims, BOOL)


@checks_names
def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether an element is not 0 or False, over axes.

    Parameters
    ----------
    x, axis, keepdims
        As for ``sum``.

    Returns
    -------
    Array
        Whether any is true, boolean.
    """
    (x,) = check_arrays("any", x)
    if not count_of(x, axis):
        return not_equal(count_nonzero(x, axis=axis, keepdims=keepdims), 0)
    return reduced("max", to_dtype(x, BOOL), axis, keepdims, BOOL)


@checks_names
def diff(
    x: Array, /, n: int = 1, *, axis: int = -1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """Return the differences of neighbors along an axis.

    Parameters
    ----------
    x : Array
        The array.
    n : int
        How often differences are taken.
    axis : int
        The axis; default the last.
    prepend, append : Array, optional
        Values to put in front and behind first.

    Returns
    -------
    Array
        The differences; the size of the axis decreases by n.
    """
    x = check_array("diff", x, prepend, append)
    i = axis_of("diff", x, axis)
    if prepend is not None or append is not None:
        x = concat([part for part in (prepend, x, append) if part is not None], axis=i)
    head, tail = (slice(None),) * i + (slice(-1),), (slice(None),) * i + (slice(1, None),)
    for _ in range(n):
        x = not_equal(x[tail], x[head]) if x.dtype == BOOL else x[tail] - x[head]
    return same(x)
