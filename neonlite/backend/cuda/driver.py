"""What has a driver to do?  Hand out memory, compile a kernel, and run it: the narrow door to a card."""

from __future__ import annotations

import ctypes
import os
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, Protocol

from neonlite.backend.cuda.blas import Cublas, Product, load, tf32_is_wanted


class CompileError(RuntimeError):
    """A kernel did not compile: the compiler's words."""


class Astray(RuntimeError):
    """A card cannot be reached from here: the process was forked, or the thread stands on another device."""


BEHIND_A_FORK = 'Start processes by multiprocessing.get_context("spawn")'
# --fmad=false: x * y + z is rounded twice, as it is elsewhere, so + - * / and sqrt have the same bits on every runtime.
OPTIONS = ("-std=c++17", "--fmad=false")


class Driver(Protocol):
    """What runs kernels. ``compile`` takes the text of one that is named ``kernel``, with all that it needs."""

    tf32: bool  # whether products and convolutions of float32 may be rounded to TF32

    def allocate(self, nbytes: int) -> Any:
        """Return so many bytes of memory, as an array of uint8 of the runtime's library."""

    def compile(self, source: str) -> Any:
        """Return a kernel that can be launched; CompileError when it does not compile."""

    def launch(self, kernel: Any, grid: tuple[int, int], block: int, arguments: Sequence[int | float]) -> None:
        """Run a kernel on a grid of blocks. All arguments have 64 bits: addresses, whole numbers, doubles."""

    def prepare(
        self, kernel: Any, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> Callable[[], None]:
        """Return what launches a kernel as before, with less to do, in a thread that has launched one."""

    def call(self, f: Callable[..., None], *arguments: Any) -> None:
        """Run what is no kernel of ours: calls of the array library, which write into given arrays."""

    def capture(self) -> AbstractContextManager[Any]:
        """Record in this thread what is launched, and run none of it: ``with driver.capture() as graph: ...``.

        Then ``graph.launch()`` runs it, in memory that the graph holds. ``graph.taped(primitives)``: primitives whose
        calls are recorded.
        """

    def here(self) -> Any:
        """Return the stream to which work goes."""

    def multiply(self, form: Product, alpha: float, beta: float) -> bool:
        """Compute a product of matrices; tell whether it could: there may be no library for it."""

    def wait(self) -> None:
        """Wait until everything has run."""


class CuPyDriver:
    """The driver of an NVIDIA card, by CuPy, which compiles with NVRTC and keeps what it compiled on disk.

    Work goes to the stream that is CuPy's current one. Astray where that is not the device's, or behind a fork.
    """

    def __init__(self, cupy: Any, device_id: int) -> None:
        self.cupy, self.device_id, self.tf32 = cupy, device_id, tf32_is_wanted()
        self.process = os.getpid()

    def check(self, error: Any = None) -> None:
        """Raise Astray, with the words of an error if there was one, where the card cannot be reached from."""
        words = f": {error}" if error else ""
        if os.getpid() != self.process:
            raise Astray(
                f"the backend 'gpu' was made before this process was forked, and CUDA does not outlive a fork{words}. "
                f"{BEHIND_A_FORK}, or make the first backend behind the fork"
            )
        if (here := self.cupy.cuda.runtime.getDevice()) != self.device_id:
            raise Astray(
                f"this thread stands on device {here}, and the backend works on device {self.device_id}{words}. "
                f"cupy.cuda.Device({self.device_id}).use() comes before the work"
            )

    def explained(self, error: Exception) -> Exception:
        """Return an error, or Astray where that is its cause."""
        if not isinstance(error, MemoryError | Astray):
            try:
                self.check(error)
            except Astray as cause:
                return cause
        return error

    def allocate(self, nbytes: int) -> Any:
        """Return so many bytes of the card's memory, from CuPy's pool."""
        self.check()
        return self.cupy.empty(nbytes, dtype="uint8")

    def compile(self, source: str) -> Any:
        """Return CuPy's kernel."""
        self.check()
        try:
            return self.cupy.RawKernel(source, "kernel", OPTIONS).kernel  # now, and for the current device
        except self.cupy.cuda.compiler.CompileException as error:
            raise CompileError(f"NVRTC does not compile a kernel: {error}") from error

    def launch(self, kernel: Any, grid: tuple[int, int], block: int, arguments: Sequence[int | float]) -> None:
        """Run it on CuPy's current stream."""
        self.check()
        kernel(grid, (block,), tuple(arguments))  # CuPy passes int as 64 bits, and float as double

    def prepare(
        self, kernel: Any, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> Callable[[], None]:
        """Return a launch by CUDA's driver: the arguments are packed here, and CuPy does not look at them again.

        On another device, and behind a fork, that is an error of CUDA's own: nothing is looked at before.
        """
        n, launch, stream = len(arguments), self.cupy.cuda.driver.launchKernel, self.cupy.cuda.get_current_stream
        packed = (ctypes.c_char * (8 * n)).from_buffer_copy(pack(arguments))
        first = ctypes.addressof(packed)
        places = (ctypes.c_void_p * n)(*range(first, first + 8 * n, 8))

        def again(held: Any = (packed, places)) -> None:
            launch(kernel.ptr, *grid, 1, block, 1, 1, 0, stream().ptr, ctypes.addressof(held[1]), 0)

        return again

    def call(self, f: Callable[..., None], *arguments: Any) -> None:
        """Run it: CuPy's calls go to the same stream."""
        self.check()
        f(*arguments)

    @contextmanager
    def capture(self) -> Iterator[Captured]:
        """Record on a stream of its own; what is allocated meanwhile comes from a pool that the graph holds."""
        cuda = self.cupy.cuda
        stream, made = cuda.Stream(non_blocking=True), Captured(cuda.MemoryPool())
        with cuda.using_allocator(made.pool.malloc), stream:
            stream.begin_capture()
            try:
                yield made
            finally:
                made.graph = stream.end_capture()  # after a call that cannot be recorded this fails, too

    def here(self) -> Any:
        """Return CuPy's current stream."""
        self.check()
        return self._stream()

    def _stream(self) -> Any:
        return self.cupy.cuda.get_current_stream().ptr

    @cached_property
    def cublas(self) -> Cublas | None:
        """The library of products; None when it is not found."""

        def room(nbytes: int) -> tuple[Any, int]:
            made = self.allocate(nbytes)
            return made, made.data.ptr

        library = load()
        return library and Cublas(library, room, self._stream)

    @cached_property
    def cudnn(self) -> Any:
        """The library of convolutions; None, with a warning where it is installed, when it cannot be used."""
        from neonlite.backend.cuda.cudnn import Cudnn, load  # which imports primitives

        frontend = load()
        try:
            return frontend and Cudnn(frontend, self.here, self.seconds)
        except Exception as error:  # of whatever kind: the frontend's are none of the standard ones
            warnings.warn(f"cuDNN cannot be used: {error}\nProducts convolve.", RuntimeWarning, stacklevel=2)
            return None

    def seconds(self, f: Callable[[], None]) -> float:
        """Return how long the card takes for what a function launches, the second time."""
        f()
        first, last = (self.cupy.cuda.Event() for _ in range(2))
        first.record()
        f()
        last.record()
        last.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(first, last)) / 1000

    def multiply(self, form: Product, alpha: float, beta: float) -> bool:
        """Have cuBLAS compute it on CuPy's current stream."""
        self.check()
        if self.cublas is None:
            return False
        self.cublas.multiply(form, alpha, beta, self.tf32)
        return True

    def wait(self) -> None:
        """Wait for the card."""
        self.cupy.cuda.Device().synchronize()


def pack(arguments: Sequence[int | float]) -> bytes:
    """Return arguments as kernels have them: 64 bits each."""
    return b"".join(struct.pack("d" if isinstance(x, float) else "q", x) for x in arguments)


class Captured:
    """A CUDA graph, and the pool of its memory."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.graph: Any = None

    def launch(self) -> None:
        """Run it on CuPy's current stream."""
        self.graph.launch()

    def taped(self, primitives: Any) -> Any:
        """Return primitives as they are: the stream records what they call."""
        return primitives
