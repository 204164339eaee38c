"""The 'mkl' runtime: NumPy arrays, with matrix products by Intel MKL."""

from __future__ import annotations

import os
import re
from functools import cached_property

import numpy as np

from neonlite.backend.runtimes import accelerated, accelerator_versions
from neonlite.backend.runtimes.mkl.gemm import MKLMatmul, load_library
from neonlite.backend.runtimes.native import short_spin_wait
from neonlite.backend.runtimes.numpy.runtime import NumPyRuntime
from neonlite.backend.thread_pool import get_num_threads


class MKLRuntime(NumPyRuntime):
    """NumPy arrays; matrix products run in MKL, on the same number of threads."""

    name = "mkl"

    @cached_property
    def primitives(self) -> type[MKLMatmul]:  # type: ignore[override]
        """The class of the primitives, with what accelerators compute."""
        return accelerated(MKLMatmul)

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        with short_spin_wait():
            load_library()  # first, as it selects MKL's threading layer
            import mkl

            mkl.get_max_threads()  # starts OpenMP
        self.mkl = mkl
        # MKL's conditional numerical reproducibility can be set only before its first product. It costs nothing on
        # Intel CPUs, so it is set here. Other CPUs have only the "compatible" branch, which is three times slower.
        is_fixed = bool(os.environ.get("MKL_CBWR")) or mkl.cbwr_get_auto_branch() == "compatible"
        self.is_reproducible = is_fixed or mkl.cbwr_set("auto") == "success"

    def make_deterministic(self) -> None:
        """Turn off MKL's dynamic number of threads; RuntimeError if MKL was used before its reproducibility was set."""
        if not self.is_reproducible:
            raise RuntimeError(
                "gen_backend: expected deterministic=True before any use of MKL in this process, got it after another "
                "package used MKL. Create the deterministic backend first, or start Python with the environment "
                "variable MKL_CBWR=AUTO."
            )
        self.mkl.set_dynamic(False)

    def version_info(self) -> str:
        """Return the versions and the number of threads."""
        version = re.search(r"Version ([\d.]+)", self.mkl.get_version_string())
        own = f"MKL {version and version[1]}", f"{get_num_threads()} threads", f"NumPy {np.__version__}"
        return ", ".join((*own, *accelerator_versions()))
