"""What does cuDNN's frontend ask of its users?  A stand-in for it: graphs of convolutions, which the textbook runs.

It takes the calls of nvidia-cudnn-frontend 1.18, by its documentation: sizes and strides of tensors, in the order
N, C, D, H, W, then plans, then addresses. It finds in memory what it was told to find there, and nothing else is known
of cuDNN: that cuDNN takes such graphs, and how fast it is, only a card can show.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import textbook

data_type = Enum("data_type", ["HALF", "BFLOAT16", "FLOAT", "DOUBLE"])
heur_mode = Enum("heur_mode", ["A", "FALLBACK"])
numerical_note = Enum(
    "numerical_note", ["NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION", "TENSOR_CORE", "DOWN_CONVERT_INPUTS"]
)
KINDS = {
    data_type.HALF: "float16",
    data_type.BFLOAT16: "bfloat16",
    data_type.FLOAT: "float32",
    data_type.DOUBLE: "float64",
}
PLANS = [3000, 2000, 100]  # bytes that each works in


class cudnnGraphNotSupportedError(Exception):
    pass


class Frontend(SimpleNamespace):
    """The module; what was asked of it is kept in ``graphs`` and ``streams``."""

    def __init__(self) -> None:
        names = {"data_type": data_type, "heur_mode": heur_mode, "numerical_note": numerical_note}
        super().__init__(**names, graphs=[], streams=[], cudnnGraphNotSupportedError=cudnnGraphNotSupportedError)

    def create_handle(self) -> int:
        return 7

    def set_stream(self, handle: int, stream: int) -> None:
        assert handle == 7
        self.streams.append(stream)

    def pygraph(self, **named: Any) -> Graph:
        self.graphs.append(Graph(**named))
        return self.graphs[-1]


class Made:
    """A tensor of a graph."""

    def __init__(self, dim: Sequence[int] = (), stride: Sequence[int] = (), data_type: Any = None) -> None:
        self.dim, self.stride, self.kind, self.is_output = dim, stride, data_type, False

    def set_output(self, value: bool) -> Made:
        self.is_output = value
        return self

    def set_dim(self, dim: Sequence[int]) -> Made:
        self.dim = dim
        return self

    def set_stride(self, stride: Sequence[int]) -> Made:
        self.stride = stride
        return self

    def set_data_type(self, kind: Any) -> Made:
        self.kind = kind
        return self

    def at(self, address: int) -> Any:
        """Return the array that lies there, with three axes of space."""
        nbytes = np.dtype(KINDS[self.kind]).itemsize
        end = sum((n - 1) * step for n, step in zip(self.dim, self.stride, strict=True)) + 1
        memory = (ctypes.c_char * (end * nbytes)).from_address(address)
        found: Any = np.ndarray(self.dim, KINDS[self.kind], memory, strides=[step * nbytes for step in self.stride])
        return found[:, :, None] if found.ndim == 4 else found


class Graph:
    def __init__(self, handle: int, io_data_type: Any, intermediate_data_type: Any, compute_data_type: Any) -> None:
        assert handle == 7
        self.kinds = io_data_type, intermediate_data_type, compute_data_type
        self.steps: list[str] = []  # what was done, in order
        self.avoided: list[Any] = []
        self.cap = 1 << 60
        self.ran: list[Any] = []
        self.bias_of = self.rectified = None

    def tensor(self, dim: Sequence[int], stride: Sequence[int], data_type: Any) -> Made:
        assert len(dim) == len(stride) in (4, 5)
        return Made(dim, stride, data_type)

    def _conv(self, way: str, first: Made, second: Made, **geometry: Sequence[int]) -> Made:
        assert {len(x) for x in geometry.values()} == {len(first.dim) - 2}
        self.way, self.operands, self.geometry, self.result = way, (first, second), geometry, Made()
        return self.result

    def conv_fprop(self, image: Made, weight: Made, **geometry: Any) -> Made:
        return self._conv("fprop", image, weight, **geometry)

    def conv_dgrad(self, loss: Made, filter: Made, **geometry: Any) -> Made:
        return self._conv("dgrad", loss, filter, **geometry)

    def conv_wgrad(self, image: Made, loss: Made, **geometry: Any) -> Made:
        return self._conv("wgrad", image, loss, **geometry)

    def bias(self, input: Made, bias: Made) -> Made:
        assert input is self.result
        assert list(bias.dim) == [1, bias.dim[1]] + [1] * (len(bias.dim) - 2)
        self.bias_of, self.result = bias, Made()
        return self.result

    def relu(self, input: Made) -> Made:
        assert input is self.result
        self.rectified, self.result = True, Made()
        return self.result

    def __getattr__(self, name: str) -> Any:
        steps = ("validate", "build_operation_graph", "check_support", "build_plans")
        if name not in steps:
            raise AttributeError(name)
        return lambda: self.steps.append(name)

    def create_execution_plans(self, modes: Sequence[Any]) -> None:
        assert list(modes) == [heur_mode.A, heur_mode.FALLBACK]
        self.steps.append("create_execution_plans")

    def deselect_numeric_notes(self, notes: Sequence[Any]) -> None:
        self.avoided += notes

    def deselect_workspace_greater_than(self, nbytes: int) -> None:
        self.cap = nbytes
        if min(PLANS) > nbytes:
            raise cudnnGraphNotSupportedError("no plan works in so little")

    def get_execution_plan_count(self) -> int:
        return len(PLANS)

    def build_plan_at_index(self, index: int) -> None:
        if PLANS[index] > self.cap:
            raise cudnnGraphNotSupportedError("deselected")

    def get_workspace_size(self) -> int:
        return next(n for n in PLANS if n <= self.cap)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return PLANS[index]

    def execute_plan_at_index(self, where: dict[Any, int], room: int, index: int, handle: int) -> None:
        self.ran.append(index)
        self._run(where, room, handle, PLANS[index])

    def execute(self, where: dict[Any, int], room: int, handle: int) -> None:
        self.ran.append(None)
        self._run(where, room, handle, self.get_workspace_size())

    def _run(self, where: dict[Any, int], room: int, handle: int, nbytes: int) -> None:
        assert handle == 7
        assert self.steps[:4] == ["validate", "build_operation_graph", "create_execution_plans", "check_support"]
        ctypes.memset(room, 0xFF, nbytes)
        a, b = (x.at(where[x]).astype(float) for x in self.operands)
        out, sizes = self.result.at(where[self.result]), {k: tuple(v) for k, v in self.geometry.items()}
        if len(sizes["padding"]) == 2:
            sizes = {k: (int(k != "padding"), *v) for k, v in sizes.items()}
        geometry = sizes["padding"], sizes["stride"], sizes["dilation"]
        images, filters = (1, 2, 3, 4, 0), (1, 2, 3, 4, 0)  # (N, C, D, H, W), (K, C, T, R, S) with the first axis last
        assert self.result.is_output
        if self.way == "fprop":
            made = textbook.conv(a.transpose(images), b.transpose(filters), *geometry)
        elif self.way == "dgrad":
            made = textbook.conv_bprop(b.transpose(filters), a.transpose(images), out.shape[2:], *geometry)
        else:
            made = textbook.conv_update(a.transpose(images), b.transpose(images), out.shape[2:], *geometry)
        made = made.transpose(4, 0, 1, 2, 3)
        if self.bias_of is not None:
            made = made + self.bias_of.at(where[self.bias_of])
        out[...] = np.maximum(made, 0) if self.rectified else made
