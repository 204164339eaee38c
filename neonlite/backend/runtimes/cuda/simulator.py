"""Simulated GPU: compile CUDA kernels with a C++ compiler and run them on the CPU, for tests and teaching.

``simulator.h`` and ``simulator.cpp`` implement blocks, threads, shared memory and barriers; GPU memory is NumPy arrays.
Compiled kernels are cached in the user's cache folder (``NEONLITE_CACHE``, else ``$XDG_CACHE_HOME/neonlite``, else
``~/.cache/neonlite``).
Kernels run, and fail, as on a GPU, but about a thousand times as slowly.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np

from neonlite.backend.concurrency import create_lock
from neonlite.backend.planning import ALIGNMENT_BYTES
from neonlite.backend.runtimes.cuda import CudaRuntime, libraries
from neonlite.backend.runtimes.cuda.codegen import PREAMBLE
from neonlite.backend.runtimes.cuda.executor import CompileError, pack_arguments
from neonlite.backend.runtimes.cuda.graphs import check_transfer, record
from neonlite.backend.runtimes.cuda.row_reduction import MAX_BLOCK_THREADS
from neonlite.backend.runtimes.numpy import NumPyRuntime
from neonlite.typing import NativeArray, NumPyArray

SIMULATOR_HEADER, SIMULATOR_SOURCE = (
    Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("simulator.h", "simulator.cpp")
)
# Rounding and integer overflow are those of a GPU.
COMPILER_OPTIONS = ["-O1", "-std=c++17", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-w", "-fPIC"]
COMPILER_OPTIONS += ["-fno-exceptions"]  # which need a library


class SimulatedGPU(CudaRuntime, NumPyRuntime):
    """The runtime of a simulated GPU: CUDA kernels run on NumPy arrays. Use it by ``Backend(SimulatedGPU())``."""

    name = "simulated"
    driver: SimulatedDriver

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(SimulatedDriver(), device_id)
        self.primitives = record_calls(self.primitives)

    copy_to_device = copy_to_host = NumPyRuntime.put

    def numpy_view(self, array: NumPyArray) -> NumPyArray:
        """Return the array itself; IndexError as in ``get``."""
        check_transfer()
        self.bounds_checker.raise_pending()
        return array

    def synchronize(self) -> None:
        """Raise IndexError as in ``get``; all work has finished."""
        self.bounds_checker.raise_pending()

    def address_and_strides(self, array: NativeArray) -> tuple[int, tuple[int, ...]]:
        """Return the address of the first element and the strides, both in bytes."""
        if recording := self.driver.recording:
            recording.keepalive.append(array)  # a CUDA graph holds its memory, too
        return array.__array_interface__["data"][0], array.strides


class SimulatedDriver:
    """The driver of the simulated GPU: kernels are shared libraries built by a C++ compiler (``$CXX``, else g++)."""

    tf32 = False  # NumPy does not support it
    cudnn = None
    stream = 0

    def allocate(self, nbytes: int) -> NumPyArray:
        """Return ``nbytes`` bytes, aligned, filled with 0xff so that uninitialized floats are NaN."""
        raw = np.full(nbytes + ALIGNMENT_BYTES, 0xFF, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        return raw[start : start + nbytes]

    lock = create_lock()  # thread indices are global variables of a kernel's library
    stack_memory = np.empty(MAX_BLOCK_THREADS << 15, np.uint8)  # stacks of the simulated threads

    local = threading.local()

    @property
    def recording(self) -> CallGraph | None:
        """The graph that this thread captures, or None."""
        return getattr(self.local, "recording", None)

    def compile(self, source: str) -> libraries.Kernel:
        """Return a C function, compiled unless the cache folder contains it."""
        return compile_library(wrap_kernel(source), source.removeprefix(PREAMBLE)).launch

    def launch(
        self, kernel: libraries.Kernel, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> None:
        """Run a kernel, block by block."""
        self.run(self._run_kernel, kernel, grid, block, pack_arguments(arguments))

    def prepare_launch(
        self, kernel: libraries.Kernel, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> Callable[[], None]:
        """Return a function that repeats a launch."""
        return partial(self.launch, kernel, grid, block, arguments)

    def _run_kernel(self, kernel: libraries.Kernel, grid: tuple[int, int], block: int, packed: bytes) -> None:
        with self.lock:
            kernel((ctypes.c_uint * 2)(*grid), block, packed, ctypes.c_void_p(self.stack_memory.ctypes.data))

    def run(self, f: Callable[..., None], *arguments: object) -> None:
        """Run a call, or record it in the graph that this thread captures."""
        if (recording := self.recording) is not None:
            recording.calls.append((f, arguments))
        else:
            f(*arguments)

    @contextmanager
    def capture(self) -> Iterator[CallGraph]:
        """Capture calls in a CallGraph."""
        self.local.recording = CallGraph(self)
        try:
            yield self.local.recording
        finally:
            self.local.recording = None

    def check_device(self) -> None:
        """Do nothing: there is one device."""

    def current_stream(self) -> int:
        """Return the stream; tests set ``stream``."""
        return self.stream

    def gemm(self, desc: libraries.GemmDesc, alpha: float, beta: float) -> bool:
        """Compute the product by NumPy; 16-bit floats are computed in float32 and rounded once."""
        self.run(self._gemm, desc, alpha, beta)
        record(self.gemm, desc, alpha, beta)
        return True

    def _gemm(self, desc: libraries.GemmDesc, alpha: float, beta: float) -> None:
        dtype = np.float64 if desc.dtype == "float64" else np.float32
        a = strided_array(desc.a, desc.m, desc.k, desc.batch_count, desc.dtype)
        b = strided_array(desc.b, desc.k, desc.n, desc.batch_count, desc.dtype)
        c = strided_array(desc.c, desc.m, desc.n, desc.batch_count, desc.out_dtype)
        product = np.matmul(a.astype(dtype), b.astype(dtype)) * alpha
        c[...] = product + beta * c.astype(dtype) if beta else product

    def synchronize(self) -> None:
        """Return immediately: all work has finished."""


class CallGraph:
    """A simulated CUDA graph: a list of calls."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver
        self.calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.keepalive: list[Any] = []

    def launch(self) -> None:
        """Run the calls."""
        for f, arguments in self.calls:
            f(*arguments)


RECORDED_CALLS = ["gemm", "batch_reduce_gemm", "scatter", "conv_fprop", "conv_bprop", "conv_update", "pool_fprop"]
RECORDED_CALLS += ["pool_bprop", "lrn_fprop", "lrn_bprop", "roi_fprop", "roi_bprop"]


def record_calls(primitives: Any) -> Any:
    """Return a subclass of primitives whose calls a graph captures as a whole, both kernels and NumPy calls."""
    methods = {name: record_method(getattr(primitives, name)) for name in RECORDED_CALLS}
    return type(primitives.__name__, (primitives,), methods)


def record_method(method: Callable[..., None]) -> Callable[..., None]:
    """Decorate a primitive to run through the driver."""

    @wraps(method)
    def wrapper(self: Any, *arguments: object) -> None:
        self.runtime.driver.run(method, self, *arguments)

    return wrapper


def strided_array(desc: libraries.MatrixDesc, rows: int, columns: int, count: int, dtype: str) -> Any:
    """Return a batch of matrices in memory as an array."""
    along = (1, desc.leading_dim) if desc.is_transposed else (desc.leading_dim, 1)
    sizes, strides = (count, rows, columns), (desc.batch_stride, *along)
    nbytes = np.dtype(dtype).itemsize
    end = sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True)) + 1
    memory: Any = (ctypes.c_char * (end * nbytes)).from_address(desc.address)
    return np.ndarray(sizes, dtype, memory, strides=[stride * nbytes for stride in strides])


def wrap_kernel(source: str) -> str:
    """Return a kernel's source with the simulator header, and a function that unpacks the arguments.

    Line numbers of compiler errors count from the end of the preamble.
    """
    match = re.search(r"\bkernel\(([^)]*)\)", source)
    if match is None:
        raise RuntimeError(f"no kernel in {source!r}")
    types = [" ".join(parameter.split()[:-1]) for parameter in match[1].split(",")]
    values = ", ".join(f"*({kind}*)(arguments + {8 * n})" for n, kind in enumerate(types))
    preamble = PREAMBLE if source.startswith(PREAMBLE) else ""
    uses_barriers = str("__syncthreads" in source).lower()
    return f"""{SIMULATOR_HEADER}
namespace cuda {{
{preamble}
#line 1 "kernel.cu"
{source.removeprefix(preamble)}
static char arguments[{8 * len(types)}];
static void call() {{ kernel({values}); }}
extern "C" void launch(const unsigned* grid, unsigned block, const char* packed, void* stacks)
{{
    memcpy(arguments, packed, sizeof arguments);
    run(grid, block, call, stacks, {uses_barriers});
}}
}}  // namespace cuda
"""


def compile_library(source: str, excerpt: str) -> Any:
    """Return the shared library of a C++ source, from the cache folder or compiled into it.

    CompileError contains the compiler's log and ``excerpt``.
    """
    key = hash_options(SIMULATOR_SOURCE, source)
    path = libraries.cache_folder() / f"{key}.so"
    if libraries.read_binary(path) is None:
        common = SIMULATOR_HEADER + SIMULATOR_SOURCE
        object_file = libraries.cache_folder() / f"{hash_options(common)}.o"
        if libraries.read_binary(object_file) is None:
            compile_file(common, object_file, ["-c"], excerpt="")
        # without the libraries of C++, which kernels do not use, linking takes half the time
        compile_file(source, path, ["-shared", "-nostdlib", str(object_file), "-lm"], excerpt)
    return ctypes.CDLL(str(path))


def hash_options(*sources: str) -> str:
    """Return a hash of sources, the compiler and its options."""
    return hashlib.sha256(" ".join([find_compiler(), *COMPILER_OPTIONS, *sources]).encode()).hexdigest()[:32]


def find_compiler() -> str:
    """Return the command of the C++ compiler."""
    return os.environ.get("CXX", "g++")


def compile_file(source: str, path: Path, options: Sequence[str], excerpt: str) -> None:
    """Compile a C++ source into a file of the cache folder."""
    import subprocess
    import tempfile

    try:
        folder = tempfile.TemporaryDirectory(dir=libraries.create_folder())
    except OSError as error:
        raise RuntimeError(
            f"simulator: cannot write to the cache folder {path.parent}: {error}. Set NEONLITE_CACHE to another folder"
        ) from error
    compiler = find_compiler()
    with folder:
        code, binary = Path(folder.name, "kernel.cpp"), Path(folder.name, "kernel")
        code.write_text(source, encoding="utf-8")
        try:
            process = subprocess.run(
                [compiler, *COMPILER_OPTIONS, str(code), "-o", str(binary), *options],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
            )
        except FileNotFoundError as error:
            raise RuntimeError(f"simulator: expected a C++ compiler, {compiler} was not found. Set CXX") from error
        if process.returncode:
            raise CompileError(f"{compiler} cannot compile a kernel:\n{process.stderr}{excerpt}")
        libraries.write_binary(path, binary.read_bytes())
