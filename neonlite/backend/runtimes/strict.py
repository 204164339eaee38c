"""The 'strict' runtime for tests: array-api-strict, which implements the array-API standard and nothing else."""

from __future__ import annotations

import array_api_strict
import numpy as np

from neonlite.backend.runtimes.base import Runtime
from neonlite.typing import NativeArray, NumPyArray


class StrictRuntime(Runtime):
    """Arrays of array-api-strict; op-trees run op by op."""

    name = "strict"
    xp = array_api_strict

    def put(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to an array of array-api-strict."""
        return self.xp.asarray(np.array(array, order="C"))

    def get(self, array: NativeArray) -> NumPyArray:
        """Copy an array of array-api-strict to a NumPy array."""
        return np.array(np.from_dlpack(array))
