"""Launch hand-written CUDA kernels: dtype header, vector width, index type and grid size.

One template serves all dtypes. The header defines ``Element`` (the type in memory) and ``Compute`` (the type in
registers: float for 16-bit floats). A thread processes V adjacent elements. In CHWN the batch axis N is innermost, so
neighboring threads read neighboring memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from neonlite.backend.cache import Cache
from neonlite.backend.primitives.reference import ReferencePrimitives
from neonlite.backend.runtimes.cuda.codegen import MAX_BLOCKS, PREAMBLE, THREADS_PER_BLOCK
from neonlite.backend.runtimes.cuda.compiler import MAX_CACHED_KERNELS
from neonlite.backend.runtimes.cuda.cublas import CudaMatmul
from neonlite.backend.runtimes.cuda.op_templates import COMPUTE_TYPES, STORAGE_TYPES, substitute
from neonlite.backend.runtimes.numpy.primitives import NumPyPrimitives
from neonlite.typing import NativeArray

KERNEL_HEADER = """
typedef {Element} Element;  // in memory
typedef {Compute} Compute;  // in registers
typedef {Index} Index;  // a parameter takes the low bytes of an argument, which has 64 bits
constexpr int V = {V};  // adjacent elements per thread and iteration
#define GRID_STRIDE(i, size) \\
    Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < size; i += (Index)gridDim.x * blockDim.x * V
"""

# The workspace limit of a convolution without cuDNN, unless NEONLITE_WORKSPACE is set.
DEFAULT_WORKSPACE_BYTES = 1 << 28

Arguments = Sequence[Any]  # arrays, None for a null pointer, and scalars


def are_kernels_enabled() -> bool:
    """Return whether kernels may run: they are disabled by ``NEONLITE_KERNELS=0``."""
    return os.environ.get("NEONLITE_KERNELS") != "0"


def workspace_limit(default: int = DEFAULT_WORKSPACE_BYTES) -> int:
    """Return the bytes of workspace that a convolution may use: ``NEONLITE_WORKSPACE``, or the default."""
    value = os.environ.get("NEONLITE_WORKSPACE") or str(default)
    if not value.isdecimal():
        raise ValueError(f"NEONLITE_WORKSPACE: expected a number of bytes, got {value!r}")
    return int(value)


def kernel_source(template: str, dtype: str, V: int = 1, is_large: bool = False, **types: str) -> str:
    """Return the source of a kernel for a dtype.

    ``is_large``: use 64-bit indices; ``types``: further type names and their dtypes.
    """
    index = "long long" if is_large else "int"
    header = substitute(
        KERNEL_HEADER, Element=STORAGE_TYPES[dtype], Compute=COMPUTE_TYPES[dtype], Index=index, V=str(V)
    )
    typedefs = "".join(f"typedef {STORAGE_TYPES[t]} {name};\n" for name, t in types.items())
    return f"{PREAMBLE}{header}{typedefs}{template}"


class KernelLauncher(CudaMatmul, ReferencePrimitives):
    """Base of the GPU primitives: compile and launch kernels with the runtime's driver."""

    get_workspace: Any = NumPyPrimitives.get_workspace  # which caches buffers

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self.compiled = Cache(MAX_CACHED_KERNELS, runtime.memory_tracker)

    def launch_elementwise(
        self, template: str, like: NativeArray, size: int, inner_size: int, arguments: Arguments, **types: str
    ) -> None:
        """Launch a kernel over ``size`` elements of the dtype of ``like``, vectorized where possible."""
        V = 16 // like.dtype.itemsize
        same_dtype = [x for x in arguments if hasattr(x, "dtype") and x.dtype == like.dtype]
        if inner_size % V or any(self.runtime.address_and_strides(x)[0] % 16 for x in same_dtype):
            V = 1
        if size:
            grid = min(-(-size // (THREADS_PER_BLOCK * V)), MAX_BLOCKS), 1
            self.launch(template, str(like.dtype), grid, arguments, V, **types)

    def launch(
        self, template: str, dtype: str, grid: tuple[int, int], arguments: Arguments, V: int = 1, **types: str
    ) -> None:
        """Launch a kernel on a grid of blocks of 256 threads."""
        driver = self.runtime.driver
        is_large = any(math.prod(getattr(x, "shape", ())) >= 2**30 for x in arguments)
        key = template, dtype, V, is_large, *types.items()
        try:
            kernel = self.compiled[key]
        except KeyError:
            kernel = self.compiled.add(key, driver.compile(kernel_source(template, dtype, V, is_large, **types)))
        packed = [
            x if isinstance(x, int | float) else 0 if x is None else self.runtime.address_and_strides(x)[0]
            for x in arguments
        ]
        driver.launch(kernel, grid, THREADS_PER_BLOCK, packed)
