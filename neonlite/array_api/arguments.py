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
    from neonlite.backend.backend import Backend


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
    return convert(like.backend, x)


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
    """Return arguments as arrays. TypeError unless they are arrays, tensors, op-trees or NumPy arrays."""
    be = next((x.backend for x in arguments if isinstance(x, Array | Operand)), None)
    for x in arguments:
        if not isinstance(x, Array | Operand | np.ndarray | np.generic):
            raise TypeError(f"{name}: expected an array, got {x!r}. Create one with asarray(x).")
    return [x if isinstance(x, Array) else convert(be or current_backend(), x) for x in arguments]


def convert(be: Backend, x: Any, dtype: np.dtype[Any] | None = None, name: str = "asarray") -> Array:
    """Return any other object as an array, Python numbers in a dtype; by default, floats in that of the backend."""
    if isinstance(x, Operand):
        return from_operand(x)
    if hasattr(x, "__dlpack__") and not hasattr(x, "__array__"):
        return from_numpy(be, from_dlpack(be, x))
    values = to_host_array(be, x, dtype and dtype.name, name)
    if not hasattr(x, "dtype") and (dtype or values.dtype.kind == "f"):  # Python numbers
        values = values.astype(dtype or be.default_dtype_name)
    is_new = not hasattr(x, "dtype") and not hasattr(x, "__array__")  # made of Python numbers
    return from_numpy(be, values, is_new)


def from_dlpack(be: Backend, x: Any) -> NumPyArray:
    """Return a copy of an array of another library as a NumPy array."""
    is_on_host = x.__dlpack_device__()[0] == 1  # kDLCPU
    return np.from_dlpack(x).copy() if is_on_host else be.from_dlpack(x).get()
