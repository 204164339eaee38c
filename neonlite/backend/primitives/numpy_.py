"""How does NumPy work out primitives?  As ``Generic`` does, but in buffers that are kept."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from neonlite.backend.primitives.generic import Generic


class InPlace(Generic):
    """Primitives of NumPy arrays that allocate nothing once they have run."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self.local = threading.local()

    def gemm(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``; with beta by way of a buffer."""
        product = c if beta == 0 else self.scratch("product", c.shape, c)
        np.matmul(a, b, out=product)
        if alpha != 1:
            np.multiply(product, alpha, out=product)
        if beta != 0:
            if beta != 1:
                np.multiply(c, beta, out=c)
            np.add(c, product, out=c)

    def scratch(self, purpose: str, shape: tuple[int, ...], like: Any) -> Any:
        """Return this thread's buffer for a purpose, as large as it ever had to be."""
        kept: dict[Any, Any] = self.local.__dict__
        size = math.prod(shape)
        key = f"{purpose} {like.dtype}"
        if key not in kept or kept[key].size < size:
            kept[key] = np.empty(size, like.dtype)
        return kept[key][:size].reshape(shape)
