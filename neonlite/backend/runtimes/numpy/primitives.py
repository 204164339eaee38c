"""NumPy primitives that write into reused workspaces and allocate nothing after their first run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from neonlite.backend.runtimes.numpy.pooling import NumPyPooling
from neonlite.backend.runtimes.numpy.roi_pooling import NumPyRoiPooling
from neonlite.typing import NumPyArray as Array

MIN_UNBUFFERED_ROW = 4096  # elements of a strided row below which NumPy's ufuncs use internal buffers


class NumPyPrimitives(NumPyPooling, NumPyRoiPooling):
    """Primitives of NumPy arrays that allocate nothing after their first run."""

    def gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``; unless beta is 0, the product is written to a workspace first."""
        needs_temporary = (alpha != 1 or beta != 0) and not c.flags.forc and c.shape[-1] < MIN_UNBUFFERED_ROW
        out = self.get_workspace("summand", c.shape, c) if needs_temporary else c
        product = out if beta == 0 else self.get_workspace("product", c.shape, c)
        np.matmul(a, b, out=product)
        if alpha != 1:
            np.multiply(product, alpha, out=product)
        if beta != 0:
            if needs_temporary:
                np.copyto(out, c)
            if beta != 1:
                np.multiply(out, beta, out=out)
            np.add(out, product, out=out)
        if needs_temporary:
            np.copyto(c, out)

    def get_workspace(self, purpose: str, shape: tuple[int, ...], like: Array) -> Any:
        """Return this thread's workspace for a purpose, grown to the largest size requested."""
        workspaces: dict[Any, Any] = self.runtime.memory_tracker.thread_cache
        size, key = math.prod(shape), (purpose, like.dtype)
        if key not in workspaces or workspaces[key][0].size < size:
            workspaces.pop(key, None)  # free the old one first
            request = f"workspace of a primitive ({purpose})", size * like.dtype.itemsize
            workspaces[key] = self.runtime.allocate_tracked(
                "workspaces", *request, lambda: self.xp.empty(size, dtype=like.dtype)
            )
        return workspaces[key][0][:size].reshape(shape)
