"""Tensors of 0, 1, 2 ..., and the comparison of a tensor with an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite import Backend, Tensor


def counted(be: Backend, *shape: int, dtype: str = "float32") -> tuple[Tensor, np.ndarray]:
    """Return a tensor of 0, 1, 2 ... and the same as an array."""
    a = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return be.array(a, dtype=dtype, name="x"), a


def holds(t: Tensor, a: Any) -> None:
    """Check values, shape and dtype."""
    assert type(t) is Tensor
    assert t.shape == np.shape(a)
    np.testing.assert_array_equal(t.get(), a)
