"""The runtime 'torch': PyTorch's tensors on the CPU, in the words of the array-API standard."""

from __future__ import annotations

from typing import Any

import array_api_compat.torch
import numpy as np
import torch

from neonlite.backend.runtimes.base import Runtime


class Torch(Runtime):
    """Tensors of PyTorch, run op by op."""

    name = "torch"
    xp: Any = array_api_compat.torch
    dtypes = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
    negative_steps = False

    def put(self, array: Any) -> Any:
        """Return a copy as a tensor of PyTorch."""
        return torch.from_numpy(np.array(array, order="C"))

    def get(self, array: Any) -> Any:
        """Return a copy as a NumPy array."""
        return np.array(array.numpy(), order="C")

    def about(self) -> str:
        """Return the version and the threads."""
        return f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads"
