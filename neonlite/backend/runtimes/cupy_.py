"""The runtime 'gpu': CuPy's arrays on an NVIDIA card, in the words of the array-API standard."""

from __future__ import annotations

from typing import Any

from neonlite.backend.runtimes.base import Runtime


class CuPy(Runtime):
    """Arrays of CuPy, run op by op. CuPy is imported when one is made: this file can be read where there is none.

    RuntimeError when CuPy is there but cannot compute: with what was found, and the way out.
    """

    name = "gpu"

    def __init__(self, device_id: int = 0) -> None:
        import array_api_compat.cupy as namespace
        import cupy

        self.xp, self.cupy, self.cuda = namespace, cupy, cupy.cuda.runtime
        self._probe()
        super().__init__(device_id)
        # CuPy's current device is the thread's: the one that makes the backend is put on it here. Any other thread
        # stands on device 0, which is nearly always the right one; if not, it calls cupy.cuda.Device(n).use() first.
        cupy.cuda.Device(device_id).use()

    def _probe(self) -> None:
        """Raise RuntimeError when there is no device, or no compiler for its kernels."""
        built, driver = self.cuda.runtimeGetVersion(), self.cuda.driverGetVersion()
        found = f"CuPy {self.cupy.__version__} for CUDA {dotted(built)}"
        try:
            self.cuda.getDeviceCount()
        except self.cuda.CUDARuntimeError as error:
            raise RuntimeError(f"{found} finds no device: {error}. {way_out(built, driver)}") from error
        try:
            self.cupy.cuda.nvrtc.getVersion()
        except (ImportError, OSError, RuntimeError) as error:
            raise RuntimeError(
                f"{found} (the driver: CUDA {dotted(driver)}) finds no NVRTC, which compiles its kernels: {error}. "
                f'To install that of the same CUDA: pip install "neonlite[cuda{built // 1000}]"'
            ) from error

    @property
    def devices(self) -> int:
        """How many cards there are."""
        return int(self.cuda.getDeviceCount())

    def put(self, array: Any) -> Any:
        """Return a copy on the card."""
        return self.cupy.array(array, order="C")

    def get(self, array: Any) -> Any:
        """Return a copy as a NumPy array."""
        return self.cupy.asnumpy(array, order="C")

    def wait(self) -> None:
        """Wait until the card has done all that it was given."""
        self.cupy.cuda.Device(self.device_id).synchronize()

    def about(self) -> str:
        """Return the versions, the card and how many there are."""
        card, many = self.cuda.getDeviceProperties(self.device_id), self.devices
        cuda = f"CUDA {dotted(self.cuda.runtimeGetVersion())} (the driver: {dotted(self.cuda.driverGetVersion())})"
        memory = f"{card['totalGlobalMem'] / 2**30:.0f} GiB"
        return f"CuPy {self.cupy.__version__}, {cuda}, {card['name'].decode()} {memory}, {many} device{'s'[: many - 1]}"


def dotted(version: int) -> str:
    """Return a version of CUDA as people write it: 13020 is 13.2."""
    return f"{version // 1000}.{version % 1000 // 10}"


def way_out(built: int, driver: int) -> str:
    """Return what to do when there is no device, given the CUDA that CuPy is built for and the driver's."""
    if driver == 0:
        return "There is no NVIDIA driver: nvidia-smi must list a card (a container is started with --gpus all)"
    if driver // 1000 < built // 1000:
        wheel = f"cupy-cuda{built // 1000}x"
        swap = f'pip uninstall {wheel}, then pip install "neonlite[cuda{driver // 1000}]"; or update it'
        return f"The driver goes up to CUDA {dotted(driver)}: {swap if driver >= 12000 else 'update it'}"
    return (
        f"The driver (CUDA {dotted(driver)}) hides it: nvidia-smi must list a card, and CUDA_VISIBLE_DEVICES its number"
    )
