"""The runtime 'gpu': CuPy's arrays on an NVIDIA card, in the words of the array-API standard."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from neonlite.backend.cuda.driver import BEHIND_A_FORK, CuPyDriver
from neonlite.backend.cuda.executor import Cuda
from neonlite.backend.cuda.primitives import equip
from neonlite.backend.cuda.watch import Watch
from neonlite.backend.runtimes.base import Runtime


def told(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have a method of a runtime tell the causes of its errors."""

    @wraps(method)
    def telling(self: Any, *arguments: Any) -> Any:
        try:
            return method(self, *arguments)
        except Exception as error:
            if (cause := self.explained(error)) is error:
                raise
            raise cause from error

    return telling


class CuPy(Runtime):
    """Arrays of CuPy; op-trees run as generated kernels.

    CuPy is imported when one is made: this file can be read where there is none.
    RuntimeError when CuPy is there but cannot work: with what was found, and the way out.
    """

    name = "gpu"
    executor: Any = Cuda

    def __init__(self, device_id: int = 0) -> None:
        import array_api_compat.cupy as namespace

        self.xp, self.cupy = namespace, usable()
        super().__init__(device_id)
        self.driver, self.watch = CuPyDriver(self.cupy, device_id), Watch(self)
        equip(self)
        # CuPy's current device is the thread's, and nothing of ours is in the way of it: the thread that makes a
        # backend is put on its device. Another thread stands on device 0, and a thread that made two backends on the
        # device of the second: where that is the wrong one, cupy.cuda.Device(n).use() comes before the work.
        self.cupy.cuda.Device(device_id).use()

    @property
    def devices(self) -> int:
        """How many cards there are."""
        return int(self.cupy.cuda.runtime.getDeviceCount())

    @told
    def put(self, array: Any) -> Any:
        """Return a copy on the card."""
        return self.cupy.array(array, order="C")

    @told
    def get(self, array: Any) -> Any:
        """Return a copy as a NumPy array; IndexError when a kernel met an index that is out of range."""
        return self.watch.look(self.fetch(array))

    def fetch(self, array: Any) -> Any:
        """Return a copy as a NumPy array."""
        return self.cupy.asnumpy(array, order="C")

    def share(self, array: Any) -> Any:
        """Raise BufferError: NumPy does not see the memory of a card."""
        raise BufferError("the memory of a card is not shown to NumPy: t.get() copies it")

    def layout(self, array: Any) -> tuple[int, tuple[int, ...]]:
        """Return the address of the first element on the card, and the strides, both in bytes."""
        return array.data.ptr, array.strides

    @told
    def wait(self) -> None:
        """Wait until the card has done all that it was given; IndexError as in ``get``."""
        self.watch.look(self.cupy.cuda.Device(self.device_id).synchronize())

    def room(self) -> tuple[int, int]:
        """Return the free bytes of the card, those that CuPy keeps for later among them, and all of them."""
        return room(self.cupy, self.device_id)

    def check(self) -> None:
        """Raise Astray when the process was forked, or the thread stands on another device."""
        self.driver.check()

    def explained(self, error: Exception) -> Exception:
        """Return what went wrong when the process was forked, or the thread stands on another device."""
        return self.driver.explained(error)

    def about(self) -> str:
        """Return the versions, the card and how many there are."""
        return card(self.cupy, self.device_id)


def room(cupy: Any, device_id: int) -> tuple[int, int]:
    """Return the free bytes of a card and of CuPy's pool, and all bytes of the card."""
    with cupy.cuda.Device(device_id):
        free, total = cupy.cuda.runtime.memGetInfo()
        return free + cupy.get_default_memory_pool().free_bytes(), total


def usable() -> Any:
    """Return CuPy; RuntimeError when there is no device, or no compiler for its kernels."""
    import cupy

    cuda = cupy.cuda.runtime
    built, driver = cuda.runtimeGetVersion(), cuda.driverGetVersion()
    found = f"the backend 'gpu' cannot run: CuPy {cupy.__version__} for CUDA {dotted(built)}"
    try:
        cuda.getDeviceCount()
    except cuda.CUDARuntimeError as error:
        forked = f"A process that was forked from one that had used a card finds none. {BEHIND_A_FORK}"
        hint = forked if "cudaErrorInitializationError" in str(error) else way_out(built, driver)
        raise RuntimeError(f"{found} finds no device: {error}. {hint}") from error
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise RuntimeError(
            f"{found}, on a driver for CUDA {dotted(driver)}, finds no NVRTC, its compiler: {error}. "
            f'That of the same CUDA comes with: pip install "neonlite[cuda{built // 1000}]"'
        ) from error
    return cupy


def card(cupy: Any, device_id: int) -> str:
    """Return the versions of CuPy and CUDA, a card, and how many there are."""
    cuda = cupy.cuda.runtime
    found, many = cuda.getDeviceProperties(device_id), cuda.getDeviceCount()
    versions = f"CUDA {dotted(cuda.runtimeGetVersion())} (driver {dotted(cuda.driverGetVersion())})"
    memory = f"{found['totalGlobalMem'] / 2**30:.0f} GiB"
    return f"CuPy {cupy.__version__}, {versions}, {many} device{'s' * (many > 1)}: {found['name'].decode()}, {memory}"


def dotted(version: int) -> str:
    """Return a version of CUDA as people write it: 13020 is 13.2."""
    return f"{version // 1000}.{version % 1000 // 10}"


def way_out(built: int, driver: int) -> str:
    """Return what to do when there is no device: by the CUDA that CuPy is built for, and the driver's."""
    if driver == 0:
        return "There is no NVIDIA driver: nvidia-smi must list a card (start a container with --gpus all)"
    knows = f"The driver knows CUDA {dotted(driver)}"
    if driver // 1000 >= built // 1000:
        return f"{knows}, but shows no card: nvidia-smi must list one, and CUDA_VISIBLE_DEVICES its number"
    if driver < 12000:
        return f"{knows} at most: update the driver"
    swap = f'pip uninstall cupy-cuda{built // 1000}x, and pip install "neonlite[cuda{driver // 1000}]"'
    return f"{knows} at most: {swap}; or update the driver"
