"""The runtimes without code of their libraries beyond the array-API standard: PyTorch and array-api-strict."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np

from neonlite.backend.runtimes.base import Runtime
from neonlite.typing import NativeArray, NumPyArray, has_bfloat16


class StrictRuntime(Runtime):
    """Arrays of array-api-strict, which the constructor imports; op-trees run op by op."""

    name = "strict"

    def __init__(self, device_id: int = 0) -> None:
        import array_api_strict

        self.xp = array_api_strict
        super().__init__(device_id)

    def put(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to an array of array-api-strict."""
        return self.xp.asarray(np.array(array, order="C"))

    def get(self, array: NativeArray) -> NumPyArray:
        """Copy an array of array-api-strict to a NumPy array."""
        return np.array(np.from_dlpack(array))


# --- the 'torch' runtime: PyTorch CPU tensors through the array API ---


class TorchRuntime(Runtime):
    """PyTorch CPU tensors; op-trees run op by op. PyTorch is imported by the constructor."""

    name = "torch"
    dtypes: tuple[str, ...] = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
    supports_negative_strides = False

    def __init__(self, device_id: int = 0) -> None:
        import array_api_compat.torch as namespace
        import torch

        self.xp, self.torch = namespace, torch
        limit_threads_after_fork(torch)
        super().__init__(device_id)
        self.dtypes += ("bfloat16",) * has_bfloat16()

    def put(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to a PyTorch tensor."""
        copy = np.array(array, order="C")
        if copy.dtype.name == "bfloat16":  # PyTorch does not read the bfloat16 of ml_dtypes
            return self.torch.from_numpy(copy.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(copy)

    def get(self, array: NativeArray) -> NumPyArray:
        """Copy a PyTorch tensor to a NumPy array."""
        return np.array(self.numpy_view(array) if array.dtype == self.torch.bfloat16 else array.numpy(), order="C")

    def numpy_view(self, array: NativeArray) -> Any:
        """Return a NumPy array that shares the memory of a tensor."""
        if array.dtype == self.torch.bfloat16:
            return array.view(self.torch.int16).numpy().view("bfloat16")
        return super().numpy_view(array)

    def version_info(self) -> str:
        """Return the version and the number of threads."""
        return f"PyTorch {self.torch.__version__}, {self.torch.get_num_threads()} threads"


@cache
def limit_threads_after_fork(torch: Any) -> None:
    """Let PyTorch use one thread in forked processes: its OpenMP library waits for threads that do not exist there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
