"""The runtime 'mkl': arrays of NumPy, with matrix products in Intel's MKL, or in oneDNN where that is sooner."""

from __future__ import annotations

import os
import re

import numpy as np

from neonlite.backend.executors.pool import threads
from neonlite.backend.mkl.blas import Products, library
from neonlite.backend.onednn import products
from neonlite.backend.onednn.library import about
from neonlite.backend.onednn.recurrent import Sequences
from neonlite.backend.runtimes.numpy_ import NumPy


class Primitives(Sequences, products.Products, Products):
    """Images, sequences and large products of float32 by oneDNN where it is installed; other products by MKL.

    MKL's are as fast on CPUs of Intel, and take twice as long on those of AMD.
    """


class MKL(NumPy):
    """Arrays of NumPy, run block by block; products in MKL, on as many threads."""

    name = "mkl"
    primitives = Primitives

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        library()  # first, as it settles how MKL makes threads
        import mkl

        self.mkl = mkl
        # Only before it first multiplies can MKL be told to add up in one order. On Intel's CPUs that costs nothing, so
        # it is told at once; on others "compatible" is the only way, and three times as slow.
        chosen = bool(os.environ.get("MKL_CBWR")) or mkl.cbwr_get_auto_branch() == "compatible"
        self.in_order = chosen or mkl.cbwr_set("auto") == "success"

    def make_deterministic(self) -> None:
        """Fix the number of threads of a product; RuntimeError when MKL was used too soon to fix the order of sums."""
        if not self.in_order:
            raise RuntimeError(
                "another package has used MKL in this process before, and it cannot be made deterministic any more: "
                "make the deterministic backend first, or start Python with the environment variable MKL_CBWR=AUTO"
            )
        self.mkl.set_dynamic(False)

    def about(self) -> str:
        """Return the versions and the threads."""
        version = re.search(r"Version ([\d.]+)", self.mkl.get_version_string())
        return f"MKL {version and version[1]}, {threads()} threads, NumPy {np.__version__}, {about()}"
