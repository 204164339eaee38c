"""The GPU runtimes: their common base, their primitives, and the 'gpu' runtime of CuPy arrays on an NVIDIA GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import neonlite.backend.runtimes.cuda.libraries as libraries
from neonlite.backend.concurrency import Cache
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.random import RandomStreams, mask_threshold
from neonlite.backend.runtimes.base import Runtime
from neonlite.backend.runtimes.cuda.codegen import MAX_BLOCKS, PREAMBLE, THREADS_PER_BLOCK
from neonlite.backend.runtimes.cuda.convolution import CudnnConvolution
from neonlite.backend.runtimes.cuda.executor import SPAWN_HINT, CudaExecutor, CuPyDriver, Driver
from neonlite.backend.runtimes.cuda.graphs import GraphCache, check_transfer
from neonlite.backend.runtimes.cuda.kernels import (
    FILLED_MASK,
    SCALED_NORMAL,
    BoundsChecker,
    CudaScatter,
    are_kernels_enabled,
    fill_source,
    reserve_blocks,
)
from neonlite.backend.runtimes.cuda.libraries import MAX_CACHED_KERNELS, Kernel
from neonlite.backend.runtimes.cuda.pooling import CudaPooling
from neonlite.typing import FLOAT_DTYPES, BackendBase, NativeArray, NumPyArray, has_bfloat16

if TYPE_CHECKING:
    from neonlite.backend.tensor import Tensor


class CudaPrimitives(CudnnConvolution, CudaPooling, CudaScatter):
    """Primitives on a GPU. Half-precision operands are computed in float32 and rounded once."""


def install_primitives(runtime: CudaRuntime) -> None:
    """Set a runtime's primitives: those of the GPU, or the reference primitives if kernels are disabled."""
    runtime.primitives, runtime.supports_half = (
        (CudaPrimitives, True) if are_kernels_enabled() else (ReferencePrimitives, False)
    )
    runtime.dtypes += ("bfloat16",) * has_bfloat16()


# --- the GPU runtimes: their common base, and the 'gpu' runtime of CuPy arrays on an NVIDIA GPU ---

T = TypeVar("T")
P = ParamSpec("P")
CudaRuntimeT = TypeVar("CudaRuntimeT", bound="CudaRuntime")


def translate_errors(method: Callable[Concatenate[CudaRuntimeT, P], T]) -> Callable[Concatenate[CudaRuntimeT, P], T]:
    """Decorate a runtime method so that known library errors are translated."""

    @wraps(method)
    def wrapper(self: CudaRuntimeT, /, *arguments: P.args, **options: P.kwargs) -> T:
        try:
            return method(self, *arguments, **options)
        except Exception as error:
            if (cause := self.translate_error(error)) is error:
                raise
            raise cause from error

    return wrapper


class CudaRuntime(Runtime):
    """Base of the GPU runtimes: generated kernels, CUDA graphs and bounds checks, by the runtime's driver.

    A subclass sets ``driver`` and implements ``copy_to_device`` and ``copy_to_host``. During a graph capture, methods
    that copy between host and GPU raise CaptureError.
    """

    executor: Any = CudaExecutor
    has_device_memory = True
    driver: Driver

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        self.bounds_checker = BoundsChecker(self)
        self.fill_kernels = Cache(MAX_CACHED_KERNELS, self.memory_tracker)  # compiled, by source
        install_primitives(self)

    def copy_to_device(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to the GPU."""
        raise NotImplementedError

    def copy_to_host(self, array: NativeArray) -> NumPyArray:
        """Copy an array to the host without a check for index errors."""
        raise NotImplementedError

    @translate_errors
    def put(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to the GPU."""
        check_transfer()
        return self.copy_to_device(array)

    @translate_errors
    def get(self, array: NativeArray) -> NumPyArray:
        """Copy an array to the host; IndexError if a kernel used an index out of range."""
        check_transfer()
        values = self.copy_to_host(array)
        self.bounds_checker.raise_pending()
        return values

    def write(self, array: NativeArray, values: NumPyArray, dtype: str) -> None:
        """Copy a NumPy array into an array on the GPU."""
        check_transfer()
        super().write(array, values, dtype)

    def allocate(self, nbytes: int) -> NativeArray:
        """Return ``nbytes`` bytes of new memory."""
        return self.driver.allocate(nbytes)

    def fill_mask(self, streams: RandomStreams, out: Tensor, keep: float) -> None:
        """Fill a tensor with a random mask, in a kernel if it is contiguous."""
        if out.is_contiguous:
            self._launch_fill(streams, "masks", out, 8, FILLED_MASK, {"limit": mask_threshold(keep)})
        else:
            super().fill_mask(streams, out, keep)

    def fill_normal(self, streams: RandomStreams, out: Tensor, mean: float, stdv: float) -> None:
        """Fill a tensor with normally distributed numbers, in a kernel if it is contiguous and of floats."""
        if out.is_contiguous and out.info.dtype in FLOAT_DTYPES:
            scalars: dict[str, int | float] = {"mean": float(mean), "stdv": float(stdv)}
            self._launch_fill(streams, "noise", out, 4, SCALED_NORMAL, scalars)
        else:
            super().fill_normal(streams, out, mean, stdv)

    def _launch_fill(
        self,
        streams: RandomStreams,
        stream: str,
        out: Tensor,
        values_per_block: int,
        values: str,
        scalars: dict[str, int | float],
    ) -> None:
        """Fill a contiguous tensor with values of the next blocks of a random stream; normal ones before rounding."""
        size = math.prod(out.shape)
        n = -(-size // values_per_block)
        blocks = reserve_blocks(streams, stream, n)
        address, _ = self.address_and_strides(out._array)
        if n:
            source = fill_source(values, out.info.dtype, scalars)
            kernel: Kernel = self.fill_kernels.find(source)
            kernel = kernel or self.fill_kernels.add(source, self.driver.compile(f"{PREAMBLE}\n{source}"))
            grid = min(-(-n // THREADS_PER_BLOCK), MAX_BLOCKS), 1
            self.driver.launch(kernel, grid, THREADS_PER_BLOCK, [address, n, size, *blocks, *scalars.values()])

    def create_graphs(self, be: BackendBase) -> GraphCache:
        """Return the cache of the backend's CUDA graphs."""
        return GraphCache(be)


class CuPyRuntime(CudaRuntime):
    """CuPy arrays; op-trees run as generated CUDA kernels. CuPy is imported by the constructor.

    Parameters
    ----------
    device_id : int
        The GPU, from 0.

    Raises
    ------
    ImportError
        CuPy is not installed.
    RuntimeError
        CuPy finds no GPU, or no compiler for its kernels.
    """

    name = "gpu"
    driver: CuPyDriver

    def __init__(self, device_id: int = 0) -> None:
        import array_api_compat.cupy as namespace

        self.xp, self.cupy = namespace, import_cupy()
        super().__init__(device_id)
        self.driver = CuPyDriver(self.cupy, device_id)
        # CuPy has a current device per thread. Creating a backend selects its device in this thread. Another thread
        # starts on device 0, and a thread that created two backends is on the second one's device; such a thread must
        # call cupy.cuda.Device(n).use() before it works with this backend.
        self.cupy.cuda.Device(device_id).use()

    @property
    def devices(self) -> int:
        """The number of GPUs."""
        return int(self.cupy.cuda.runtime.getDeviceCount())

    def copy_to_device(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to the GPU."""
        return self.cupy.array(array, order="C")

    def copy_to_host(self, array: NativeArray) -> NumPyArray:
        """Copy an array to the host without a check for index errors."""
        values: NumPyArray = self.cupy.asnumpy(array, order="C")
        return values

    def numpy_view(self, array: NativeArray) -> NumPyArray:
        """Raise BufferError: NumPy cannot access GPU memory."""
        check_transfer()
        raise BufferError("expected host memory, got GPU memory, which NumPy cannot access. Copy it with t.get().")

    def address_and_strides(self, array: NativeArray) -> tuple[int, tuple[int, ...]]:
        """Return the address of the first element on the GPU, and the strides in bytes."""
        return array.data.ptr, array.strides

    @translate_errors
    def synchronize(self) -> None:
        """Wait until the GPU has finished all work; IndexError if a kernel used an index out of range."""
        self.cupy.cuda.Device(self.device_id).synchronize()
        self.bounds_checker.raise_pending()

    def mem_get_info(self) -> tuple[int, int]:
        """Return the free bytes of the GPU, including those of CuPy's memory pool, and its total bytes."""
        return mem_get_info(self.cupy, self.device_id)

    def check_device(self) -> None:
        """Raise an error if the process was forked, or this thread's current device is another one."""
        self.driver.check_device()

    def translate_error(self, error: Exception) -> Exception:
        """Return the error of a forked process or a wrong current device if that is the cause, else ``error``."""
        return self.driver.explain_error(error)

    def version_info(self) -> str:
        """Return the versions and the GPUs."""
        return device_info(self.cupy, self.device_id)


def mem_get_info(cupy: ModuleType, device_id: int) -> tuple[int, int]:
    """Return the free bytes of a GPU, including those of CuPy's memory pool, and its total bytes."""
    with cupy.cuda.Device(device_id):
        free, total = cupy.cuda.runtime.memGetInfo()
        return free + cupy.get_default_memory_pool().free_bytes(), total


def import_cupy() -> ModuleType:
    """Import CuPy; RuntimeError if there is no GPU, or no compiler for its kernels."""
    cupy = import_module("cupy")
    cuda = cupy.cuda.runtime
    built, driver = cuda.runtimeGetVersion(), cuda.driverGetVersion()
    cannot_run = f"the runtime 'gpu' cannot run: CuPy {cupy.__version__} for CUDA {format_version(built)}"
    try:
        cuda.getDeviceCount()
    except cuda.CUDARuntimeError as error:
        forked = f"A process forked from one that used a GPU finds none. {SPAWN_HINT}"
        hint = forked if "cudaErrorInitializationError" in str(error) else install_hint(built, driver)
        raise RuntimeError(f"{cannot_run} finds no device: {error}. {hint}") from error
    libraries.load_library("nvrtc")  # also from folders that CuPy does not search
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise RuntimeError(
            f"{cannot_run}, on a driver for CUDA {format_version(driver)}, finds no NVRTC, its compiler: {error}. "
            f'Install the one of the same CUDA version: pip install "neonlite[cuda{built // 1000}]"'
        ) from error
    return cupy


def device_info(cupy: ModuleType, device_id: int) -> str:
    """Return the versions of CuPy and CUDA, the number of GPUs, and the name and memory of one of them."""
    cuda = cupy.cuda.runtime
    properties, count = cuda.getDeviceProperties(device_id), cuda.getDeviceCount()
    versions = f"CUDA {format_version(cuda.runtimeGetVersion())} (driver {format_version(cuda.driverGetVersion())})"
    memory = f"{properties['totalGlobalMem'] / 2**30:.0f} GiB"
    name = properties["name"].decode()
    return f"CuPy {cupy.__version__}, {versions}, {count} device{'s' * (count > 1)}: {name}, {memory}"


def format_version(version: int) -> str:
    """Return a CUDA version number as text: 13020 is "13.2"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def install_hint(built: int, driver: int) -> str:
    """Return what to do if there is no GPU, given the CUDA versions of CuPy and of the driver."""
    if driver == 0:
        return "There is no NVIDIA driver: nvidia-smi must list a GPU (start a container with --gpus all)"
    supported = f"The driver supports CUDA {format_version(driver)}"
    if driver // 1000 >= built // 1000:
        return f"{supported}, but lists no GPU: nvidia-smi must list one, and CUDA_VISIBLE_DEVICES must include it"
    if driver < 12000:
        return f"{supported} at most: update the driver"
    swap = f'pip uninstall cupy-cuda{built // 1000}x, and pip install "neonlite[cuda{driver // 1000}]"'
    return f"{supported} at most: {swap}; or update the driver"
