"""The 'cpu' runtime: NumPy arrays."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from neonlite.backend.errstate import copy_unsafe
from neonlite.backend.planning.buffers import ALIGNMENT_BYTES
from neonlite.backend.planning.layout import write_chwn
from neonlite.backend.random import RandomStreams
from neonlite.backend.runtimes import accelerated, accelerator_versions
from neonlite.backend.runtimes.base import Runtime
from neonlite.backend.runtimes.native import data_address
from neonlite.backend.runtimes.numpy.executor import BlockedExecutor
from neonlite.backend.runtimes.numpy.primitives import NumPyPrimitives
from neonlite.backend.tensor import Tensor
from neonlite.backend.thread_pool import get_num_threads
from neonlite.typing import NumPyArray


class NumPyRuntime(Runtime):
    """NumPy arrays; op-trees run block by block on several threads."""

    name = "cpu"
    xp = np

    @cached_property
    def executor(self) -> type[BlockedExecutor]:  # type: ignore[override]
        """The class of the executor, with what accelerators compute."""
        return accelerated(BlockedExecutor)

    @cached_property
    def primitives(self) -> type[NumPyPrimitives]:  # type: ignore[override]
        """The class of the primitives, with what accelerators compute."""
        return accelerated(NumPyPrimitives)

    def put(self, array: NumPyArray) -> NumPyArray:
        """Copy a NumPy array."""
        return np.array(array, order="C")

    get = put

    def adopt(self, array: NumPyArray) -> NumPyArray:
        """Return the array itself, if it is contiguous."""
        return np.ascontiguousarray(array)

    def write(self, array: NumPyArray, values: NumPyArray, dtype: str) -> None:
        """Copy an array into another one without an intermediate copy."""
        copy_unsafe(array, values)

    def allocate(self, nbytes: int) -> NumPyArray:
        """Return new memory, aligned to a cache line."""
        raw = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        return raw[start : start + nbytes]

    def fill_mask(self, streams: RandomStreams, out: Tensor, keep: float) -> None:
        """Fill a tensor with a random mask in place."""
        streams.mask("masks", write_chwn(out, overwrite=True), keep)

    def reshape(self, array: NumPyArray, shape: tuple[int, ...]) -> NumPyArray:
        """Return a view by the array's method, which is three times faster than NumPy's function."""
        return array.reshape(shape, copy=False)

    def numpy_view(self, array: NumPyArray) -> NumPyArray:
        """Return the array itself."""
        return array

    def address_and_strides(self, array: NumPyArray) -> tuple[int, tuple[int, ...]]:
        """Return the address of the first element, and the strides in bytes."""
        return data_address(array).value, array.strides

    def read_only_view(self, array: NumPyArray) -> NumPyArray:
        """Return a read-only view."""
        view = array.view()
        view.flags.writeable = False
        return view

    def version_info(self) -> str:
        """Return the versions and the number of threads."""
        return ", ".join((f"NumPy {np.__version__}", f"{get_num_threads()} threads", *accelerator_versions()))
