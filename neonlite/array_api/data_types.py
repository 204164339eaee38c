"""Data types: promotion, casts, arguments as arrays, and the inspection functions of the standard."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from neonlite import messages, numpy_methods, optree, typing
from neonlite.array_api.array import BOOL, Array, as_dtype, from_numpy, from_operand, padded, result, same
from neonlite.backend.creation import to_host_array
from neonlite.ops.functions import Shape, broadcast_shapes as common_shape
from neonlite.typing import BackendBase, NumPyArray, promote_types

DTypes = dict[str, np.dtype[Any]]
KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": (),
}
KINDS["integral"] = KINDS["signed integer"] + KINDS["unsigned integer"]
KINDS["numeric"] = KINDS["integral"] + KINDS["real floating"]
DTYPES: DTypes = {name: np.dtype(name) for name in KINDS["bool"] + KINDS["numeric"]}


def promote(x: np.dtype[Any], y: np.dtype[Any]) -> np.dtype[Any]:
    """Return the common dtype of two dtypes; bool is below all others."""
    if x == y or y == BOOL:
        return x
    return y if x == BOOL else np.dtype(promote_types(x.name, y.name))


def to_dtype(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return an array cast to a dtype."""
    if x.dtype == dtype:
        return x
    be = x.backend
    if dtype == BOOL:
        return result(be.not_equal(x.operand, 0), x.ndim, BOOL, x)
    return result(be.astype(x.operand, dtype.name), x.ndim, dtype, x)


def check_can_assign(x: Array, v: Array, value: object) -> None:
    """Raise TypeError if ``x[...] = value`` would lose the fractions of floats, or numbers in a boolean array."""
    order = {"b": 0, "u": 1, "i": 1, "f": 2}
    if order[v.dtype.kind] > order[x.dtype.kind]:
        raise TypeError(
            f"x[...] = value: expected a value that can be cast to {x.dtype.name}, got {messages.describe(v)}. Cast it "
            f"with astype(value, {x.dtype.name})."
        )


def promote_scalar(dtype: np.dtype[Any], x: Any, be: BackendBase) -> np.dtype[Any]:
    """Return the dtype of the result for an array and a Python scalar, which has the dtype of the array if it can."""
    if isinstance(x, complex):
        raise TypeError(f"expected a real number, got {x!r}. {messages.NO_COMPLEX}")
    if isinstance(x, float):
        return dtype if dtype.kind == "f" else np.dtype(be.default_dtype_name)
    return np.dtype(np.int64) if dtype == BOOL and not isinstance(x, bool) else dtype


# --- the arguments of functions, as arrays ---


def as_array(x: Any, like: Array, name: str = "asarray") -> Array:
    """Return an argument as an array: of the backend of ``like``, and for a Python scalar of its dtype if that fits."""
    if isinstance(x, np.generic):
        x = x.item()
    if isinstance(x, Array):
        if x.backend is not like.backend:
            raise ValueError(
                f"expected arrays of one backend, got arrays of {like.backend!r} and {x.backend!r}. Copy one of them: "
                "be.array_api.asarray(x)."
            )
        return x
    if isinstance(x, bool | int | float | complex):
        return convert(like.backend, x, promote_scalar(like.dtype, x, like.backend), name)
    return convert_any(like.backend, x)


def as_number(x: Any) -> Any:
    """Return a scalar of NumPy, or an array of one element, as a Python number."""
    return x.item() if isinstance(x, Array | np.generic | np.ndarray) else x


def as_integers(where: str, x: Any) -> tuple[int, ...]:
    """Return an integer, or a sequence of integers, as a tuple of Python integers. TypeError for others."""
    numbers = tuple(x) if hasattr(x, "__iter__") and getattr(x, "shape", None) != () else (x,)
    if any(isinstance(n, bool | np.bool) or not hasattr(n, "__index__") for n in numbers):
        raise TypeError(f"{where}: expected an integer or a sequence of integers, got {x!r}")
    return tuple(operator.index(n) for n in numbers)


def check_arrays(name: str, *arguments: Any) -> list[Array]:
    """Return arguments as arrays.

    TypeError unless they are arrays, of any library, tensors or op-trees; or lists beside one of neonlite.
    """
    be = next((x.backend for x in arguments if isinstance(x, Array | optree.Operand)), None)
    for x in arguments:
        is_array = isinstance(x, Array | optree.Operand | np.ndarray | np.generic) or hasattr(x, "__dlpack__")
        if not is_array and (be is None or not isinstance(x, list | tuple)):
            raise TypeError(f"{name}: expected an array, got {x!r}. Create one with asarray(x).")
    return [x if isinstance(x, Array) else convert_any(be or typing.current_backend(), x) for x in arguments]


def check_array(name: str, x: Any, *beside: Any) -> Array:
    """Return an argument as an array, as ``check_arrays``. The others, which may be numbers, are not checked."""
    return check_arrays(name, x, *(y for y in beside if isinstance(y, Array | optree.Operand)))[0]


def convert_any(be: BackendBase, x: Any) -> Array:
    """Return an object that is not an array of neonlite as an array; a list may contain some."""
    if not isinstance(x, list | tuple):
        return convert(be, x)
    stacked: Array = be.array_api.asarray(x)
    return stacked


def convert(be: BackendBase, x: Any, dtype: np.dtype[Any] | None = None, name: str = "asarray") -> Array:
    """Return any other object as an array, Python numbers in a dtype; by default, floats in that of the backend."""
    if isinstance(x, optree.Operand):
        return from_operand(x)
    if hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
        return from_numpy(be, dlpack_values(be, x))
    values = to_host_array(be, x, dtype and dtype.name, name)
    first = x[0] if isinstance(x, list | tuple) and x else None
    # or a DataFrame, a buffer, or a list of arrays
    is_array = hasattr(x, "__array__") or hasattr(x, "itemsize") or getattr(first, "shape", ()) != ()
    if not is_array and (dtype or values.dtype.kind == "f"):  # Python numbers
        values = values.astype(dtype or be.default_dtype_name)
    return from_numpy(be, values, not is_array)


def dlpack_values(be: BackendBase, x: Any) -> NumPyArray:
    """Return a copy of an array of another library as a NumPy array."""
    is_on_host = x.__dlpack_device__()[0] == 1  # kDLCPU
    return np.from_dlpack(x).copy() if is_on_host else be.from_dlpack(x).get()


# --- data types: promotion, casts, and the inspection functions of the standard ---


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: str | None = None) -> Array:
    """Return an array cast to a dtype.

    Parameters
    ----------
    x : Array
        The array.
    dtype : dtype
        The dtype.
    copy : bool
        False returns x itself if it has the dtype; default True.
    device : str, optional
        The device of the array.

    Returns
    -------
    Array
        The array of the dtype.
    """
    (x,) = check_arrays("astype", x)
    if device is not None:
        x.to_device(device)
    dtype = as_dtype(dtype)
    return x.__copy__() if copy and x.dtype == dtype else to_dtype(x, dtype)


def broadcast_to(x: Array, /, shape: tuple[int, ...]) -> Array:
    """Return an array broadcast to a shape.

    Parameters
    ----------
    x : Array
        The array.
    shape : tuple of int
        The shape.

    Returns
    -------
    Array
        The array of the shape.

    Raises
    ------
    ValueError
        The array does not broadcast to the shape.
    """
    (x,) = check_arrays("broadcast_to", x)
    shape = as_integers("broadcast_to: shape", shape)
    if x.shape == shape:
        return same(x)
    if broadcast_shapes(x.shape, shape) != shape:
        raise ValueError(f"broadcast_to: expected an array that broadcasts to {shape}, got {messages.describe(x)}")
    return result(x.backend.broadcast_to(x.operand, padded(shape)), len(shape), x.dtype, x)


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """Return arrays broadcast to their common shape.

    Parameters
    ----------
    *arrays : Array
        The arrays.

    Returns
    -------
    list of Array
        The arrays of the common shape.
    """
    arrays = tuple(check_arrays("broadcast_arrays", *arrays))
    shape = broadcast_shapes(*(x.shape for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the common shape to which arrays of these shapes are broadcast.

    Parameters
    ----------
    *shapes : tuple of int
        The shapes.

    Returns
    -------
    tuple of int
        The common shape.

    Raises
    ------
    ValueError
        There is none.
    """
    given = [as_integers("broadcast_shapes", shape) for shape in shapes]
    try:
        return common_shape((), *given)
    except ValueError as error:
        raise ValueError(f"broadcast_shapes: {error}") from None


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether a dtype can be cast to another one by promotion.

    Parameters
    ----------
    from_ : dtype or Array
        The dtype, or an array of it.
    to : dtype
        The other dtype.

    Returns
    -------
    bool
        Whether it can be cast.
    """
    return bool(np.can_cast(as_dtype(from_), as_dtype(to)))


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Return the dtype to which arrays, dtypes and Python scalars are promoted.

    Parameters
    ----------
    *arrays_and_dtypes : Array, dtype or scalar
        The arguments, at least one array or dtype.

    Returns
    -------
    dtype
        The common dtype.
    """
    scalars = [x for x in arrays_and_dtypes if isinstance(x, bool | int | float | complex)]
    dtypes = [as_dtype(x) for x in arrays_and_dtypes if not isinstance(x, bool | int | float | complex)]
    if not dtypes:
        raise ValueError("result_type: expected at least one array or dtype, got only Python scalars or nothing")
    common: np.dtype[Any] = dtypes[0]
    for dtype in dtypes[1:]:
        common = promote(common, dtype)
    for x in scalars:
        common = promote_scalar(common, x, typing.current_backend())
    return common


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is of a kind.

    Parameters
    ----------
    dtype : dtype
        The dtype.
    kind : str, dtype or tuple of these
        "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric", or a
        dtype.

    Returns
    -------
    bool
        Whether it is.
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind in KINDS:
        return as_dtype(dtype).name in KINDS[kind]
    if isinstance(kind, str):
        raise ValueError(f"isdtype: expected one of {', '.join(KINDS)}, or a dtype, got {kind!r}")
    return as_dtype(dtype) == as_dtype(kind)


def finfo(type: Any, /) -> Any:
    """Return the limits of a floating-point dtype.

    Parameters
    ----------
    type : dtype or Array
        The dtype, or an array of it.

    Returns
    -------
    numpy.finfo
        Its ``bits``, ``eps``, ``max``, ``min`` and ``smallest_normal``.
    """
    return Limits(np.finfo(as_dtype(type)), ("eps", "max", "min", "smallest_normal"), float)


def iinfo(type: Any, /) -> Any:
    """Return the limits of an integer dtype.

    Parameters
    ----------
    type : dtype or Array
        The dtype, or an array of it.

    Returns
    -------
    numpy.iinfo
        Its ``bits``, ``max`` and ``min``.
    """
    return Limits(np.iinfo(as_dtype(type)), ("max", "min"), int)


class Limits:
    """The limits of a dtype, as Python numbers."""

    def __init__(self, info: Any, names: tuple[str, ...], number: Any) -> None:
        self.bits, self.dtype = int(info.bits), as_dtype(info.dtype)
        for name in names:
            setattr(self, name, number(getattr(info, name)))

    def __repr__(self) -> str:
        return f"Limits({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


class NamespaceInfo:
    """What the namespace supports, by the standard."""

    def __init__(self, be: BackendBase) -> None:
        self.be = be

    def capabilities(self) -> dict[str, Any]:
        """Return the optional features: boolean indexing and shapes that depend on values, which evaluate."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 32}

    def default_device(self) -> str:
        """Return the device of the backend."""
        return numpy_methods.device_of(self.be)

    def devices(self) -> list[str]:
        """Return the device of the backend in a list."""
        return [numpy_methods.device_of(self.be)]

    def default_dtypes(self, *, device: str | None = None) -> DTypes:
        """Return the default dtypes.

        Parameters
        ----------
        device : str, optional
            The device.
        """
        real = DTYPES[self.be.default_dtype_name]
        names = {"real floating": real, "complex floating": np.dtype(np.complex64)}
        return {**names, "integral": DTYPES["int64"], "indexing": DTYPES["int64"]}

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> DTypes:
        """Return the supported dtypes of a kind by name.

        Parameters
        ----------
        device : str, optional
            The device.
        kind : str or tuple of str, optional
            As for ``isdtype``; all by default.
        """
        supported = ("bool", *self.be.runtime.dtypes)
        dtypes = {name: dtype for name, dtype in DTYPES.items() if name in supported}
        return {name: dtype for name, dtype in dtypes.items() if kind is None or isdtype(dtype, kind)}


def __array_namespace_info__() -> NamespaceInfo:
    """Return what the namespace supports.

    Returns
    -------
    NamespaceInfo
        Its methods return the capabilities, devices and dtypes.
    """
    return NamespaceInfo(typing.current_backend())
