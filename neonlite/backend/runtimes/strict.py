"""The 'strict' runtime for tests: array-api-strict, which implements the array-API standard and nothing else."""

from __future__ import annotations

import array_api_strict
import numpy as np

from neonlite.backend.runtimes.base import Runtime
from neonlite.dtypes import INT_DTYPES
from neonlite.typing import NativeArray, NumPyArray


class StrictRuntime(Runtime):
    """Arrays of array-api-strict; op-trees run op by op."""

    name = "strict"
    xp = array_api_strict
    dtypes = ("float32", "float64", *INT_DTYPES)

    def put(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to an array of array-api-strict."""
        return self.xp.asarray(np.array(array, order="C"))

    def reshape(self, array: NativeArray, shape: tuple[int, ...]) -> NativeArray:
        """Return a view of a contiguous array in another shape."""
        # an empty array shares no memory, so the namespace would report a copy
        return self.xp.reshape(array, shape, copy=False if array.size else None)

    def get(self, array: NativeArray) -> NumPyArray:
        """Copy an array of array-api-strict to a NumPy array."""
        return np.array(np.from_dlpack(array))
