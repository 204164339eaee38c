"""How is a matrix product put into a given place?  ``C = alpha A B + beta C``, for one matrix, a stack, and a sum."""

from __future__ import annotations

from typing import Any


class Products:
    """Products of arrays, in the standard's words. ``c`` shares no memory with ``a`` and ``b``."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self.xp = runtime.xp

    def gemm(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``: (m, k), (k, n), (m, n), or stacks of them. With beta 0, c is not read."""
        product = self.xp.matmul(a, b)
        if alpha != 1:
            product = product * alpha
        c[...] = product if beta == 0 else product + c * beta

    def summed(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha sum_x a[x] b[x] + beta c``: (X, m, k), (X, k, n), (m, n)."""
        if not a.shape[0]:
            c[...] = c * beta if beta else self.xp.zeros_like(c)
        for x in range(a.shape[0]):
            self.gemm(a[x, ...], b[x, ...], c, alpha, beta if x == 0 else 1.0)

    def scratch(self, purpose: str, shape: tuple[int, ...], like: Any) -> Any:
        """Return an array to work in, of the dtype of another; its values are not set."""
        return self.xp.empty(shape, dtype=like.dtype)
