"""The arguments of functions, as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.array_api.array import Array, from_numpy, from_operand
from neonlite.array_api.promotion import promote_scalar
from neonlite.backend import current_backend
from neonlite.optree import Operand
from neonlite.typing import NumPyArray

if TYPE_CHECKING:
    from neonlite.backend.backend import Backend


def as_array(x: Any, like: Array) -> Array:
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
        return from_numpy(like.backend, np.asarray(x, promote_scalar(like.dtype, x, like.backend)))
    return convert(like.backend, x)


def check_arrays(name: str, *arguments: Any) -> list[Array]:
    """Return arguments as arrays. TypeError unless they are arrays, tensors, op-trees or NumPy arrays."""
    be = next((x.backend for x in arguments if isinstance(x, Array | Operand)), None)
    for x in arguments:
        if not isinstance(x, Array | Operand | np.ndarray | np.generic):
            raise TypeError(f"{name}: expected an array, got {x!r}. Create one with asarray(x).")
    return [x if isinstance(x, Array) else convert(be or current_backend(), x) for x in arguments]


def convert(be: Backend, x: Any) -> Array:
    """Return any other object as an array."""
    if isinstance(x, Operand):
        return from_operand(x)
    values = np.asarray(x) if hasattr(x, "__array__") or not hasattr(x, "__dlpack__") else from_dlpack(be, x)
    if values.dtype.kind not in "biuf":
        raise TypeError(f"asarray: expected real numbers or booleans, got {values.dtype}: {x!r}")
    if not hasattr(x, "dtype") and values.dtype.kind == "f":  # Python floats
        values = values.astype(be.default_dtype_name)
    return from_numpy(be, values)


def from_dlpack(be: Backend, x: Any) -> NumPyArray:
    """Return a copy of an array of another library as a NumPy array."""
    is_on_host = x.__dlpack_device__()[0] == 1  # kDLCPU
    return np.from_dlpack(x).copy() if is_on_host else be.from_dlpack(x).get()
