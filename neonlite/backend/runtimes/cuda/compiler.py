"""Compile CUDA kernels with NVRTC, and cache their binaries on disk.

CuPy's ``RawKernel`` is not used: it appends ``-ftz=true`` to its options, which flushes denormal numbers (float32 below
1.2e-38) to 0.
"""

from __future__ import annotations

import hashlib
import os
from types import ModuleType
from typing import Any, TypeAlias

from neonlite.backend.runtimes.cuda.kernel_cache import cache_folder, read_binary, write_binary
from neonlite.backend.warn import warn

MAX_CACHED_KERNELS = 8192  # of each cache of compiled kernels
Kernel: TypeAlias = Any  # a compiled kernel of a driver: a function of CuPy, or of the simulator's C library
# --fmad=false: x * y + z is rounded twice, so that + - * / and sqrt give the same bits on every runtime.
# --ftz=false: denormal numbers are not flushed to 0, for the same reason.
OPTIONS = ("-std=c++17", "--fmad=false", "--ftz=false")


def load_kernel(cupy: ModuleType, source: str) -> Kernel:
    """Return the kernel named ``kernel`` in a source as a CuPy function for the current device.

    The binary comes from the cache folder (``NEONLITE_CACHE``) or is compiled and written there.
    """
    cuda = cupy.cuda
    versions = cuda.Device().compute_capability, cuda.nvrtc.getVersion(), os.environ.get("CUPY_COMPILE_WITH_PTX")
    name = hashlib.sha256(repr((versions, OPTIONS, source)).encode()).hexdigest()[:32]
    path = cache_folder() / f"{name}.cubin"
    if (binary := read_binary(path)) is None:
        code, _ = cuda.compiler.compile_using_nvrtc(source, OPTIONS, filename="kernel.cu", cache_in_memory=True)
        binary = code.encode() if isinstance(code, str) else code  # PTX is text
        try:
            write_binary(path, binary)
        except OSError as error:
            warn(
                f"compiled kernels cannot be cached in {path.parent}: {error}. Set NEONLITE_CACHE to another folder",
                RuntimeWarning,
            )
    module = cuda.Module()
    module.load(binary)
    return module.get_function("kernel")
