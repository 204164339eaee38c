"""The runtime 'cpu': NumPy, whose own namespace is the standard's."""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite.backend.executors.blocked import Blocked
from neonlite.backend.executors.pool import threads
from neonlite.backend.primitives.numpy_ import InPlace
from neonlite.backend.runtimes.base import Runtime


class NumPy(Runtime):
    """Arrays of NumPy, run block by block."""

    name = "cpu"
    xp: Any = np
    executor = Blocked
    primitives = InPlace

    def put(self, array: Any) -> Any:
        """Return a copy."""
        return np.array(array, order="C")

    get = put

    def about(self) -> str:
        """Return the version and the threads."""
        return f"NumPy {np.__version__}, {threads()} threads"
