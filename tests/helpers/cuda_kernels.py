"""What the tests of generated CUDA kernels share: trees that must agree with NumPy."""

from __future__ import annotations

from typing import Any

from neonlite import Backend
from neonlite.typing import FLOAT_DTYPES

DTYPES = [*FLOAT_DTYPES, "int8", "int32", "int64", "uint8", "uint32", "uint64"]


def reductions(be: Backend, x: Any, axis: Any) -> list[Any]:
    return [
        *(getattr(be, n)(x * 2, axis=axis) for n in ("sum", "max", "min")),
        be.sum(x, axis=axis, keepdims=False),
        x * 2,
    ]
