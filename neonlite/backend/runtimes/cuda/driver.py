"""GPU driver interface and its CuPy implementation: allocate memory, compile and launch kernels, capture graphs."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import neonlite.backend.runtimes.cuda.libraries as libraries
from neonlite.backend.runtimes.cuda.cublas import Cublas, GemmDesc, is_tf32_enabled
from neonlite.backend.runtimes.cuda.graphs import CaptureError, current_capture
from neonlite.backend.runtimes.cuda.libraries import Kernel, load_kernel
from neonlite.backend.validation import warn
from neonlite.typing import NativeArray

if TYPE_CHECKING:
    from neonlite.backend.runtimes.cuda.convolution import Cudnn


class CompileError(RuntimeError):
    """A kernel did not compile; the message contains the compiler's log."""


class WrongDeviceError(RuntimeError):
    """The GPU is not usable here: in a forked child, or in a thread whose current device is another one."""


SPAWN_HINT = 'Start processes with multiprocessing.get_context("spawn")'


class Graph(Protocol):
    """A captured graph."""

    def launch(self) -> None:
        """Run the captured launches."""


class Driver(Protocol):
    """The interface by which executors and primitives use a GPU."""

    tf32: bool  # whether float32 matrix products and convolutions may use TF32

    @property
    def cudnn(self) -> Cudnn | None:
        """The cuDNN library, or None."""

    def allocate(self, nbytes: int) -> NativeArray:
        """Return an array of ``nbytes`` bytes (uint8) of the runtime's library."""

    def compile(self, source: str) -> Kernel:
        """Compile source with one kernel, named ``kernel``, and return it; CompileError if that fails."""

    def launch(self, kernel: Kernel, grid: tuple[int, int], block: int, arguments: Sequence[int | float]) -> None:
        """Launch a kernel on a grid of blocks. Each argument has 64 bits: an address, an integer or a double."""

    def prepare_launch(
        self, kernel: Kernel, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> Callable[[], None]:
        """Return a function that repeats a launch with less overhead, in a thread that has launched a kernel before."""

    def run(self, f: Callable[..., None], *arguments: object) -> None:
        """Call a function that runs array-library operations and writes into its arguments."""

    def capture(self) -> AbstractContextManager[Graph]:
        """Capture the launches of this thread without running them: ``with driver.capture() as graph: ...``.

        ``graph.launch()`` runs them, in memory that the graph holds.
        """

    def current_stream(self) -> int:
        """Return the stream on which work is launched."""

    def gemm(self, desc: GemmDesc, alpha: float, beta: float) -> bool:
        """Compute a matrix product and return True, or return False where no library supports it."""

    def synchronize(self) -> None:
        """Wait until all work has finished."""


class CuPyDriver:
    """The driver of an NVIDIA GPU by CuPy and NVRTC.

    Work runs on CuPy's current stream. Methods raise WrongDeviceError in a forked child, or if the thread's current
    device is another one.
    """

    def __init__(self, cupy: ModuleType, device_id: int) -> None:
        self.cupy, self.device_id, self.tf32 = cupy, device_id, is_tf32_enabled()
        self.process_id, self.errstate = os.getpid(), import_module("cupyx").errstate

    def check_device(self, error: Exception | None = None) -> None:
        """Raise WrongDeviceError in a forked child or on another device; ``error`` is quoted in the message."""
        cause = f": {error}" if error else ""
        if os.getpid() != self.process_id:
            raise WrongDeviceError(
                f"gpu: expected the process that created the backend, got a forked child{cause}. CUDA contexts do not "
                f"survive a fork. {SPAWN_HINT}, or create the first backend in the child"
            )
        if (current := self.cupy.cuda.runtime.getDevice()) != self.device_id:
            raise WrongDeviceError(
                f"gpu: expected current device {self.device_id} of this thread, got {current}{cause}. "
                f"Call cupy.cuda.Device({self.device_id}).use() in this thread first"
            )

    def explain_error(self, error: Exception) -> Exception:
        """Return WrongDeviceError if it is the cause of an error, else the error."""
        if not isinstance(error, MemoryError | WrongDeviceError):
            try:
                self.check_device(error)
            except WrongDeviceError as cause:
                return cause
        return error

    def allocate(self, nbytes: int) -> NativeArray:
        """Return an array of ``nbytes`` bytes from CuPy's memory pool."""
        self.check_device()
        return self.cupy.empty(nbytes, dtype="uint8")

    def compile(self, source: str) -> Kernel:
        """Return a CuPy function for the current device."""
        self.check_device()
        try:
            return load_kernel(self.cupy, source)
        except self.cupy.cuda.compiler.CompileException as error:
            raise CompileError(f"NVRTC cannot compile a kernel: {error}") from error

    def launch(self, kernel: Kernel, grid: tuple[int, int], block: int, arguments: Sequence[int | float]) -> None:
        """Launch a kernel on CuPy's current stream."""
        self.check_device()
        kernel(grid, (block,), tuple(arguments))  # CuPy passes int as 64 bits, and float as double

    def prepare_launch(
        self, kernel: Kernel, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> Callable[[], None]:
        """Return a launch by the CUDA driver API whose arguments are packed once.

        On another device or in a forked child CUDA itself raises an error, since the device is not checked.
        """
        n, launch, stream = len(arguments), self.cupy.cuda.driver.launchKernel, self.cupy.cuda.get_current_stream
        packed = (ctypes.c_char * (8 * n)).from_buffer_copy(pack_arguments(arguments))
        base = ctypes.addressof(packed)
        pointers = (ctypes.c_void_p * n)(*range(base, base + 8 * n, 8))

        def relaunch(keepalive: Any = (packed, pointers)) -> None:
            launch(kernel.ptr, *grid, 1, block, 1, 1, 0, stream().ptr, ctypes.addressof(keepalive[1]), 0)

        return relaunch

    def run(self, f: Callable[..., None], *arguments: object) -> None:
        """Call a function that runs CuPy operations on the current stream.

        Outside a capture, CuPy checks the results of linear algebra, for which it waits for the GPU.
        """
        self.check_device()
        with self.errstate(linalg="ignore" if current_capture() else "raise"):
            f(*arguments)

    @contextmanager
    def capture(self) -> Iterator[CapturedGraph]:
        """Capture on a separate stream, with memory from a pool that the graph holds.

        CaptureError if memory runs out: on a CUDA error CuPy's pool would free blocks that captured kernels use.
        """
        cuda = self.cupy.cuda

        def new_memory(nbytes: int) -> Any:
            try:
                return cuda.MemoryPointer(cuda.Memory(nbytes), 0)
            except cuda.runtime.CUDARuntimeError as error:
                raise CaptureError(f"graph capture: cannot allocate {nbytes} more bytes: {error}") from error

        pool = cuda.MemoryPool(new_memory)
        pool.set_limit(0)  # no limit: at a limit the pool would free blocks
        stream, captured = cuda.Stream(non_blocking=True), CapturedGraph(pool)
        with cuda.using_allocator(captured.pool.malloc), stream:
            stream.begin_capture()
            try:
                yield captured
            finally:
                captured.graph = stream.end_capture()  # fails after a call that cannot be captured

    def current_stream(self) -> int:
        """Return the pointer of CuPy's current stream."""
        self.check_device()
        return current_stream(self.cupy)

    @cached_property
    def cublas(self) -> Cublas | None:
        """The cuBLAS library; None where it is not found."""
        library = libraries.load_library("cublas")
        return None if library is None else shared_cublas(library, self.cupy, self.device_id)

    @cached_property
    def cudnn(self) -> Cudnn | None:
        """The cuDNN library; None where it is not installed, or (with a warning) cannot be used."""
        from neonlite.backend.runtimes.cuda.convolution import load_frontend  # here, since it imports primitives

        self.check_device()
        frontend = load_frontend()
        try:
            return None if frontend is None else shared_cudnn(frontend, self.cupy, self.device_id)
        except Exception as error:  # the frontend defines further exception classes
            warn(
                f"cuDNN is not available: {error}\nConvolutions use im2col and matrix products instead.",
                RuntimeWarning,
            )
            return None

    def gemm(self, desc: GemmDesc, alpha: float, beta: float) -> bool:
        """Compute a matrix product by cuBLAS on CuPy's current stream."""
        self.check_device()
        if self.cublas is None:
            return False
        self.cublas.gemm(desc, alpha, beta, self.tf32)
        return True

    def synchronize(self) -> None:
        """Synchronize the current device."""
        self.cupy.cuda.Device().synchronize()


@cache
def shared_cublas(library: ctypes.CDLL, cupy: ModuleType, device_id: int) -> Cublas:
    """Return the cuBLAS library for a GPU; its handles are shared by all backends of the process."""

    def allocate_workspace(nbytes: int) -> tuple[NativeArray, int]:
        memory = cupy.empty(nbytes, dtype="uint8")
        return memory, memory.data.ptr

    return Cublas(library, allocate_workspace, lambda: current_stream(cupy))


@cache
def shared_cudnn(frontend: ModuleType, cupy: ModuleType, device_id: int) -> Cudnn:
    """Return the cuDNN library for a GPU; its handles and plans are shared by all backends of the process."""
    from neonlite.backend.runtimes.cuda.convolution import Cudnn

    return Cudnn(frontend, lambda: current_stream(cupy), lambda f: measure_seconds(cupy, f))


def current_stream(cupy: ModuleType) -> int:
    """Return the pointer of CuPy's current stream."""
    return int(cupy.cuda.get_current_stream().ptr)


def measure_seconds(cupy: ModuleType, f: Callable[[], None]) -> float:
    """Call a function twice and return the GPU time of the second call in seconds."""
    f()
    start, end = (cupy.cuda.Event() for _ in range(2))
    start.record()
    f()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / 1000


def pack_arguments(arguments: Sequence[int | float]) -> bytes:
    """Return the arguments packed for a launch, 64 bits each."""
    return b"".join(struct.pack("d" if isinstance(x, float) else "q", x) for x in arguments)


class CapturedGraph:
    """A CUDA graph and the memory pool that it uses."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.graph: Any = None

    def launch(self) -> None:
        """Launch the graph on CuPy's current stream."""
        self.graph.launch()
