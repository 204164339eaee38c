"""Matrix products into a given array: GEMM, batched GEMM and batch-reduce GEMM."""

from __future__ import annotations

from typing import Any

from neonlite.typing import NativeArray as Array


class MatmulPrimitives:
    """Matrix products in array-API functions. ``c`` shares no memory with ``a`` and ``b``."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self.xp = runtime.xp

    def gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``: (m, k), (k, n), (m, n), or stacks of them. With beta 0, c is not read."""
        product = self.xp.matmul(a, b)
        if alpha != 1:
            product = product * alpha
        c[...] = product if beta == 0 else product + c * beta

    def batch_reduce_gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha sum_x a[x] b[x] + beta c``: (X, m, k), (X, k, n), (m, n)."""
        if not a.shape[0]:
            c[...] = c * beta if beta else self.xp.zeros_like(c)
        for x in range(a.shape[0]):
            self.gemm(a[x, ...], b[x, ...], c, alpha, beta if x == 0 else 1.0)

    def get_workspace(self, purpose: str, shape: tuple[int, ...], like: Array) -> Array:
        """Return an uninitialized array with the dtype of ``like``."""
        return self.xp.empty(shape, dtype=like.dtype)
