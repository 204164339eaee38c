"""How does NumPy work out primitives?  As ``Generic`` does, but in buffers that are kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from neonlite.backend.primitives.numpy_pooling import PoolingInPieces
from neonlite.backend.primitives.numpy_regions import RegionsInPieces

SHORT = 4096  # elements of a row below which NumPy's ufuncs make buffers of their own for rows with gaps between


class InPlace(PoolingInPieces, RegionsInPieces):
    """Primitives of NumPy arrays that allocate nothing once they have run."""

    def gemm(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``; with beta by way of a buffer."""
        apart = (alpha != 1 or beta != 0) and not c.flags.forc and c.shape[-1] < SHORT
        into = self.scratch("summand", c.shape, c) if apart else c
        product = into if beta == 0 else self.scratch("product", c.shape, c)
        np.matmul(a, b, out=product)
        if alpha != 1:
            np.multiply(product, alpha, out=product)
        if beta != 0:
            if apart:
                np.copyto(into, c)
            if beta != 1:
                np.multiply(into, beta, out=into)
            np.add(into, product, out=into)
        if apart:
            np.copyto(c, into)

    def scratch(self, purpose: str, shape: tuple[int, ...], like: Any) -> Any:
        """Return this thread's buffer for a purpose, as large as it ever had to be."""
        kept: dict[Any, Any] = self.runtime.ledger.kept.__dict__
        size, key = math.prod(shape), (purpose, like.dtype)
        if key not in kept or kept[key][0].size < size:
            kept.pop(key, None)  # what is too small goes first
            more = f"what a primitive works in ({purpose})", size * like.dtype.itemsize
            kept[key] = self.runtime.taken("workspaces", *more, lambda: self.xp.empty(size, dtype=like.dtype))
        return kept[key][0][:size].reshape(shape)
