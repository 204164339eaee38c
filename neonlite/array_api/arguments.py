"""The arguments of functions, as arrays."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.array_api.array import Array, from_numpy, from_operand
from neonlite.array_api.promotion import promote_scalar
from neonlite.backend import current_backend
from neonlite.backend.creation import to_host_array
from neonlite.optree import Operand
from neonlite.typing import NumPyArray

if TYPE_CHECKING:
    from neonlite.backend.base import BackendBase


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
    be = next((x.backend for x in arguments if isinstance(x, Array | Operand)), None)
    for x in arguments:
        is_array = isinstance(x, Array | Operand | np.ndarray | np.generic) or hasattr(x, "__dlpack__")
        if not is_array and (be is None or not isinstance(x, list | tuple)):
            raise TypeError(f"{name}: expected an array, got {x!r}. Create one with asarray(x).")
    return [x if isinstance(x, Array) else convert_any(be or current_backend(), x) for x in arguments]


def check_array(name: str, x: Any, *beside: Any) -> Array:
    """Return an argument as an array, as ``check_arrays``. The others, which may be numbers, are not checked."""
    return check_arrays(name, x, *(y for y in beside if isinstance(y, Array | Operand)))[0]


def convert_any(be: BackendBase, x: Any) -> Array:
    """Return an object that is not an array of neonlite as an array; a list may contain some."""
    if not isinstance(x, list | tuple):
        return convert(be, x)
    stacked: Array = be.array_api.asarray(x)
    return stacked


def convert(be: BackendBase, x: Any, dtype: np.dtype[Any] | None = None, name: str = "asarray") -> Array:
    """Return any other object as an array, Python numbers in a dtype; by default, floats in that of the backend."""
    if isinstance(x, Operand):
        return from_operand(x)
    if hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
        return from_numpy(be, from_dlpack(be, x))
    values = to_host_array(be, x, dtype and dtype.name, name)
    first = x[0] if isinstance(x, list | tuple) and x else None
    # or a DataFrame, a buffer, or a list of arrays
    is_array = hasattr(x, "__array__") or hasattr(x, "itemsize") or getattr(first, "shape", ()) != ()
    if not is_array and (dtype or values.dtype.kind == "f"):  # Python numbers
        values = values.astype(dtype or be.default_dtype_name)
    return from_numpy(be, values, not is_array)


def from_dlpack(be: BackendBase, x: Any) -> NumPyArray:
    """Return a copy of an array of another library as a NumPy array."""
    is_on_host = x.__dlpack_device__()[0] == 1  # kDLCPU
    return np.from_dlpack(x).copy() if is_on_host else be.from_dlpack(x).get()
