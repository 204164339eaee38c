"""Creation functions. They create arrays on the current backend; those of ``be.array_api`` on that backend."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from neonlite import optree, typing
from neonlite.array_api.array import Array, as_dtype, check_device, from_numpy, new_array, padded
from neonlite.array_api.data_types import as_integers, as_number, check_arrays, convert, dlpack_values, to_dtype
from neonlite.array_api.manipulation import stack
from neonlite.backend.validation import checks_names
from neonlite.typing import BackendBase


def backend_on(device: str | None) -> Any:
    """Return the current backend; ValueError unless it is on a device, if one is given."""
    be = typing.current_backend()
    check_device(be, device)
    return be


def _dtype(dtype: Any, default: str) -> np.dtype[Any]:
    return as_dtype(default if dtype is None else dtype)


@checks_names
def asarray(obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None) -> Array:
    """Return an object as an array.

    Parameters
    ----------
    obj : array_like
        A Python number, nested lists, a NumPy array, a DataFrame, an array of another library with DLPack, an Array, or
        a list of these. A tensor or op-tree of a backend is not copied: the array is evaluated with its current values
        each time.
    dtype : dtype, optional
        The dtype. Default: that of obj; for Python numbers bool, int64, or the default dtype of the backend.
    device : str, optional
        The device of the backend.
    copy : bool, optional
        Whether an Array is copied to other memory; default False. False is refused for objects that must be copied.

    Returns
    -------
    Array
        The array.

    Examples
    --------
    >>> from neonlite import array_api as xp
    >>> xp.asarray([True, False])
    Array([ True, False], dtype=bool)
    """
    be = backend_on(device)
    if copy is False and not isinstance(obj, Array | optree.Operand):
        raise ValueError(f"asarray: expected an Array, tensor or op-tree for copy=False, got {type(obj).__name__}.")
    dtype = None if dtype is None else as_dtype(dtype)
    if isinstance(obj, list | tuple) and any(isinstance(x, Array) for x in obj):
        x = stack([asarray(each) for each in obj])
    elif isinstance(obj, Array) and obj.backend is not be:
        x = from_numpy(be, np.asarray(obj))
    else:
        x = convert(be, obj, dtype) if not isinstance(obj, Array) else obj.__copy__() if copy else obj
    return x if dtype is None else to_dtype(x, dtype)


def variable(obj: Any, /, *, dtype: Any = None, name: str | None = None) -> Array:
    """Return an array to differentiate with respect to: ``Autodiff(y).get_grad_op_tree(x)``.

    Expressions of it are not replaced by their values when they are evaluated.

    Parameters
    ----------
    obj : array_like
        The values, as for ``asarray``.
    dtype : dtype, optional
        The dtype, as for ``asarray``.
    name : str, optional
        The name in printed op-trees.

    Returns
    -------
    Array
        The array.
    """
    x = asarray(obj, dtype=dtype)
    be = x.backend
    return new_array(be.array(x.tensor(), x.operand.info.dtype, name=name), x.shape, x.dtype, True, 0)


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Array:
    """Return a copy of an array of another library, through DLPack.

    Parameters
    ----------
    x : object
        An array with ``__dlpack__``.
    device : str, optional
        The device of the backend.
    copy : bool, optional
        Whether to copy; False is refused, as the values are always copied.

    Returns
    -------
    Array
        The array.
    """
    be = backend_on(device)
    if copy is False:
        raise BufferError("from_dlpack: expected copy=True or None, as the values are copied; got False.")
    return x.__copy__() if isinstance(x, Array) else from_numpy(be, dlpack_values(be, x))


def empty(shape: int | tuple[int, ...], *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of zeros; the values of ``empty`` are unspecified in the standard.

    Parameters
    ----------
    shape : int or tuple of int
        The shape.
    dtype : dtype, optional
        The dtype; default that of the backend.
    device : str, optional
        The device of the backend.

    Returns
    -------
    Array
        The array.
    """
    return full(shape, 0, dtype=_dtype(dtype, typing.current_backend().default_dtype_name), device=device)


@checks_names
def zeros(shape: int | tuple[int, ...], *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of zeros.

    Parameters
    ----------
    shape, dtype, device
        As for ``empty``.

    Returns
    -------
    Array
        The array.
    """
    return empty(shape, dtype=dtype, device=device)


@checks_names
def ones(shape: int | tuple[int, ...], *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of ones.

    Parameters
    ----------
    shape, dtype, device
        As for ``empty``.

    Returns
    -------
    Array
        The array.
    """
    return full(shape, 1, dtype=_dtype(dtype, typing.current_backend().default_dtype_name), device=device)


@checks_names
def full(
    shape: int | tuple[int, ...], fill_value: bool | int | float, *, dtype: Any = None, device: str | None = None
) -> Array:
    """Return an array of one value.

    Parameters
    ----------
    shape : int or tuple of int
        The shape.
    fill_value : number
        The value.
    dtype : dtype, optional
        The dtype; default that of ``asarray(fill_value)``.
    device : str, optional
        The device of the backend.

    Returns
    -------
    Array
        The array.
    """
    return _full("full", typing.current_backend(), shape, fill_value, dtype, device)


def _full(
    name: str, be: BackendBase, shape: int | tuple[int, ...], fill_value: Any, dtype: Any, device: str | None
) -> Array:
    check_device(be, device)
    sizes = as_integers(f"{name}: shape", shape)
    dtype = None if dtype is None else as_dtype(dtype)
    value = convert(be, fill_value, dtype, name)
    value = value if dtype is None else to_dtype(value, dtype)
    is_zero = not any(value.numpy().tobytes())  # -0.0 is not 0
    tensor = (be.zeros if is_zero else be.empty)(padded(sizes), dtype=value.operand.info.dtype)
    if not is_zero:
        tensor[:] = value.operand
    return new_array(tensor, sizes, value.dtype, False, 0)


def empty_like(x: Array, /, *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of zeros, of the shape and dtype of another one.

    Parameters
    ----------
    x : Array
        The other array.
    dtype : dtype, optional
        Another dtype.
    device : str, optional
        The device of the backend.

    Returns
    -------
    Array
        The array.
    """
    return full_like(x, 0, dtype=dtype, device=device)


@checks_names
def zeros_like(x: Array, /, *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of zeros, of the shape and dtype of another one.

    Parameters
    ----------
    x, dtype, device
        As for ``empty_like``.

    Returns
    -------
    Array
        The array.
    """
    return full_like(x, 0, dtype=dtype, device=device)


@checks_names
def ones_like(x: Array, /, *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of ones, of the shape and dtype of another one.

    Parameters
    ----------
    x, dtype, device
        As for ``empty_like``.

    Returns
    -------
    Array
        The array.
    """
    return full_like(x, 1, dtype=dtype, device=device)


def full_like(x: Array, /, fill_value: bool | int | float, *, dtype: Any = None, device: str | None = None) -> Array:
    """Return an array of one value, of the shape and dtype of another array.

    Parameters
    ----------
    x : Array
        The other array.
    fill_value : number
        The value.
    dtype : dtype, optional
        Another dtype.
    device : str, optional
        The device of the backend.

    Returns
    -------
    Array
        The array.
    """
    (x,) = check_arrays("full_like", x)
    return _full("full_like", x.backend, x.shape, fill_value, x.dtype if dtype is None else dtype, device)


@checks_names
def arange(
    start: int | float,
    /,
    stop: int | float | None = None,
    step: int | float = 1,
    *,
    dtype: Any = None,
    device: str | None = None,
) -> Array:
    """Return evenly spaced numbers of an interval without its end.

    Parameters
    ----------
    start : number
        The first number; if stop is not given, the end, and the first is 0.
    stop : number, optional
        The end.
    step : number
        The distance; default 1.
    dtype : dtype, optional
        The dtype; default int64 for integers, else that of the backend.
    device : str, optional
        The device of the backend.

    Returns
    -------
    Array
        The numbers.
    """
    be = backend_on(device)
    numbers: list[Any] = [as_number(x) for x in ((0, start, step) if stop is None else (start, stop, step))]
    first, end, distance = numbers
    is_integer = all(isinstance(x, int) for x in numbers)
    count = len(range(*numbers)) if is_integer else max(0, math.ceil((end - first) / distance))
    dtype = _dtype(dtype, "int64" if is_integer else be.default_dtype_name)
    ends = [first, first + distance * (count - 1)] if count else []
    convert(be, ends, dtype, "arange")  # raises OverflowError for integers that the dtype does not have
    if is_integer and max(map(abs, ends), default=0) >= 2**63:  # NumPy's integers of 64 bits do not have them
        return convert(be, list(range(*numbers)), dtype, "arange")
    if is_integer:
        values = np.arange(*numbers)
    else:
        values = np.arange(count, dtype=np.float64)
        values *= distance
        values += first
    return from_numpy(be, values.astype(dtype, copy=False), True)


@checks_names
def linspace(
    start: int | float,
    stop: int | float,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Array:
    """Return evenly spaced numbers of an interval.

    Parameters
    ----------
    start, stop : number
        The interval.
    num : int
        How many numbers.
    dtype : dtype, optional
        The dtype; default that of the backend.
    device : str, optional
        The device of the backend.
    endpoint : bool
        Whether ``stop`` is the last number; default True.

    Returns
    -------
    Array
        The numbers.
    """
    be = backend_on(device)
    dtype = _dtype(dtype, be.default_dtype_name)
    start, stop = as_number(start), as_number(stop)
    return from_numpy(be, np.linspace(start, stop, num, dtype=dtype, endpoint=endpoint), True)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: str | None = None
) -> Array:
    """Return a matrix with ones on a diagonal, else zeros.

    Parameters
    ----------
    n_rows, n_cols : int
        The shape; default square.
    k : int
        The diagonal: 0 is the main one, positive ones are above.
    dtype : dtype, optional
        The dtype; default that of the backend.
    device : str, optional
        The device of the backend.

    Returns
    -------
    Array
        The matrix.
    """
    be = backend_on(device)
    return from_numpy(be, np.eye(n_rows, n_cols, k, dtype=_dtype(dtype, be.default_dtype_name)), True)
