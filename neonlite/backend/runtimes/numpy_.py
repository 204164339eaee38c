"""The runtime 'cpu': NumPy, whose own namespace is the standard's, and oneDNN where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite.backend.executors.blocked import Blocked
from neonlite.backend.executors.pool import threads
from neonlite.backend.executors.quiet import Silence
from neonlite.backend.onednn.library import about
from neonlite.backend.onednn.products import Products
from neonlite.backend.onednn.recurrent import Sequences
from neonlite.backend.runtimes.base import Runtime


class Primitives(Sequences, Products):
    """Images, sequences and products by oneDNN where it is installed."""


class NumPy(Runtime):
    """Arrays of NumPy, run block by block."""

    name = "cpu"
    xp: Any = np
    executor = Blocked
    primitives: Any = Primitives

    def put(self, array: Any) -> Any:
        """Return a copy."""
        return np.array(array, order="C")

    get = put

    def write(self, array: Any, values: Any, dtype: str) -> None:
        """Write without a copy between."""
        with Silence():
            np.copyto(array, values, casting="unsafe")

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return a view, by the method, which takes a third of the time of NumPy's function."""
        return array.reshape(shape, copy=False)

    def share(self, array: Any) -> Any:
        """Return the array itself."""
        return array

    def closed(self, array: Any) -> Any:
        """Return a read-only view."""
        view = array.view()
        view.flags.writeable = False
        return view

    def about(self) -> str:
        """Return the version and the threads."""
        return f"NumPy {np.__version__}, {threads()} threads, {about()}"
