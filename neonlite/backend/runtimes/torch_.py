"""The runtime 'torch': PyTorch's tensors on the CPU, in the words of the array-API standard."""

from __future__ import annotations

from typing import Any

import numpy as np

from neonlite.backend.bfloat16 import is_known
from neonlite.backend.runtimes.base import Runtime


class Torch(Runtime):
    """Tensors of PyTorch, run op by op. It is imported when one is made: this file can be read where there is none."""

    name = "torch"
    dtypes: tuple[str, ...] = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
    negative_steps = False

    def __init__(self, device_id: int = 0) -> None:
        import array_api_compat.torch as namespace
        import torch

        self.xp, self.torch = namespace, torch
        super().__init__(device_id)
        self.dtypes += ("bfloat16",) * is_known()

    def put(self, array: Any) -> Any:
        """Return a copy as a tensor of PyTorch."""
        copy = np.array(array, order="C")
        if copy.dtype.name == "bfloat16":  # which the two know apart
            return self.torch.from_numpy(copy.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(copy)

    def get(self, array: Any) -> Any:
        """Return a copy as a NumPy array."""
        return np.array(self.share(array) if array.dtype == self.torch.bfloat16 else array.numpy(), order="C")

    def share(self, array: Any) -> Any:
        """Return an array that shows the same memory."""
        if array.dtype == self.torch.bfloat16:
            return array.view(self.torch.int16).numpy().view("bfloat16")
        return super().share(array)

    def about(self) -> str:
        """Return the version and the threads."""
        return f"PyTorch {self.torch.__version__}, {self.torch.get_num_threads()} threads"
