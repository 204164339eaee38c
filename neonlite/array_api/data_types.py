"""Data types: promotion, casts, and the inspection functions of the standard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.array_api.arguments import as_integers, check_arrays
from neonlite.array_api.array import Array, as_dtype, padded, result, same
from neonlite.array_api.promotion import DTYPES, KINDS, DTypes, promote, promote_scalar, to_dtype
from neonlite.backend import current_backend
from neonlite.messages import describe
from neonlite.numpy_methods import device_of
from neonlite.ops.shapes import Shape
from neonlite.ops.shapes import broadcast_shapes as common_shape

if TYPE_CHECKING:
    from neonlite.backend.base import BackendBase


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
        raise ValueError(f"broadcast_to: expected an array that broadcasts to {shape}, got {describe(x)}")
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
        common = promote_scalar(common, x, current_backend())
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
        return device_of(self.be)

    def devices(self) -> list[str]:
        """Return the device of the backend in a list."""
        return [device_of(self.be)]

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
    return NamespaceInfo(current_backend())
