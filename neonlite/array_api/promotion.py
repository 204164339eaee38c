"""The dtypes of the namespace, their promotion, and casts of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.array_api.array import BOOL, Array, result
from neonlite.dtypes import promote_types
from neonlite.messages import NO_COMPLEX, describe

if TYPE_CHECKING:
    from neonlite.backend.base import BackendBase

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
            f"x[...] = value: expected a value that can be cast to {x.dtype.name}, got {describe(v)}. Cast it "
            f"with astype(value, {x.dtype.name})."
        )


def promote_scalar(dtype: np.dtype[Any], x: Any, be: BackendBase) -> np.dtype[Any]:
    """Return the dtype of the result for an array and a Python scalar, which has the dtype of the array if it can."""
    if isinstance(x, complex):
        raise TypeError(f"expected a real number, got {x!r}. {NO_COMPLEX}")
    if isinstance(x, float):
        return dtype if dtype.kind == "f" else np.dtype(be.default_dtype_name)
    return np.dtype(np.int64) if dtype == BOOL and not isinstance(x, bool) else dtype
