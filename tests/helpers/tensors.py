"""Tensors of 0, 1, 2 ..., and comparisons of tensors, and of arrays in containers, with arrays of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite import Backend, OpTreeNode, Tensor


def counted(be: Backend, *shape: int, dtype: str = "float32") -> tuple[Tensor, np.ndarray]:
    """Return a tensor of 0, 1, 2 ... and the same as an array."""
    a = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return be.array(a, dtype=dtype, name="x"), a


def holds(t: Tensor, a: Any) -> None:
    """Check values, shape and dtype."""
    assert type(t) is Tensor
    assert t.shape == np.shape(a)
    np.testing.assert_array_equal(t.get(), a)


def leaves_of(x: Any) -> list[Any]:
    """Return the arrays in nested containers, as arrays of NumPy."""
    if isinstance(x, dict):
        return [leaf for y in x.values() for leaf in leaves_of(y)]
    if isinstance(x, list | tuple):
        return [leaf for y in x for leaf in leaves_of(y)]
    return [x.get() if isinstance(x, Tensor | OpTreeNode) else np.asarray(x.numpy())]


def assert_close(got: Any, expected: Any, tolerance: float = 1e-7) -> None:
    """Check the shapes and values of the parts of nested containers."""
    pairs = list(zip(leaves_of(got), expected, strict=True))
    assert pairs
    for a, b in pairs:
        assert a.shape == np.shape(b)
        assert np.allclose(a, b, rtol=tolerance, atol=tolerance)
