"""The runtime 'strict': array-api-strict, which knows the array-API standard and not a word more. For tests."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np

from neonlite.backend.runtimes.base import Runtime
from neonlite.ops import INTS


class Strict(Runtime):
    """Arrays of array-api-strict, run op by op."""

    name = "strict"
    xp: Any = array_api_strict
    dtypes = ("float32", "float64", *INTS)

    def put(self, array: Any) -> Any:
        """Return a copy as an array of the standard."""
        return self.xp.asarray(np.array(array, order="C"))

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return a view of another shape."""
        # an array of nothing shares no memory with any other, and the strict namespace would call that a copy
        return self.xp.reshape(array, shape, copy=False if array.size else None)

    def get(self, array: Any) -> Any:
        """Return a copy as a NumPy array."""
        return np.array(np.from_dlpack(array))
