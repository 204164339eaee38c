"""The runtime 'mkl': arrays of NumPy, with matrix products in Intel's MKL."""

from __future__ import annotations

import re

import numpy as np

from neonlite.backend.executors.pool import threads
from neonlite.backend.mkl.blas import Products, library
from neonlite.backend.runtimes.numpy_ import NumPy


class MKL(NumPy):
    """Arrays of NumPy, run block by block; products in MKL, on as many threads."""

    name = "mkl"
    primitives = Products

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        self.mkl = library()[1]

    def make_deterministic(self) -> None:
        """Fix the number of threads, and the order of sums; RuntimeError when MKL has multiplied already."""
        self.mkl.set_dynamic(False)
        if self.mkl.cbwr_get_auto_branch() == "compatible":  # not Intel's CPU: MKL's other way is three times as slow
            return
        if self.mkl.cbwr_set("auto") != "success":
            raise RuntimeError(
                "MKL has multiplied already in this process, and cannot be made deterministic any more: make the "
                "deterministic backend before anything is multiplied, or start Python with MKL_CBWR=AUTO"
            )

    def about(self) -> str:
        """Return the versions and the threads."""
        version = re.search(r"Version ([\d.]+)", self.mkl.get_version_string())
        return f"MKL {version and version[1]}, {threads()} threads, NumPy {np.__version__}"
