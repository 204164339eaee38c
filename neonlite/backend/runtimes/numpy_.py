"""The runtime 'cpu': NumPy, whose own namespace is the standard's."""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite.backend.executors.blocked import Blocked
from neonlite.ops import FLOATS, INTS


class NumPy:
    """Arrays of NumPy, run block by block."""

    name = "cpu"
    xp: Any = np
    dtypes = FLOATS + INTS
    negative_steps = True
    executor = Blocked

    def put(self, array: Any) -> Any:
        """Return a copy."""
        return np.array(array, order="C")

    get = put

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return a view of another shape."""
        return np.reshape(array, shape, copy=False)

    def wait(self) -> None:
        """Return at once: NumPy has always finished."""
