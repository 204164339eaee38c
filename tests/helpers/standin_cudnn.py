"""A stand-in for the cuDNN frontend: graphs of convolutions and of attention, which reference code runs.

It accepts the calls of nvidia-cudnn-frontend 1.18 to 1.28: dims and strides of tensors in the order N, C, D, H, W, then
plans, then addresses. A handle is an address up to 1.27, and an object from 1.28 on. From 1.19 on, plans can be created
only after CUDA's runtime library has been loaded. Graphs read and write the memory at the given addresses. Only a GPU
can show whether cuDNN supports these graphs, and how fast it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np

from helpers import textbook

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
TENSOR_CORES = 9  # number of plans that use tensor cores: the first ones, without a workspace
PLANS = [0] * TENSOR_CORES + [3000, 2000, 100]  # workspace bytes of each plan


class cudnnGraphNotSupportedError(Exception):
    pass


class Handle:
    """A handle of version 1.28 or later."""


class Frontend(SimpleNamespace):
    """The module `cudnn`; ``graphs`` and ``streams`` record its calls.

    ``cudart()``: whether CUDA's runtime library is found. ``fails``: the step of a graph that fails.
    """

    __hash__ = object.__hash__  # as of a module

    def __init__(self, version: str = "1.28.0", cudart: Callable[[], bool] = lambda: True, fails: str = "") -> None:
        names = {"data_type": data_type, "heur_mode": heur_mode, "numerical_note": numerical_note}
        super().__init__(**names, graphs=[], streams=[], cudnnGraphNotSupportedError=cudnnGraphNotSupportedError)
        self.version, self.cudart, self.fails = tuple(map(int, version.split("."))), cudart, fails
        self.handle = Handle() if self.version >= (1, 28) else 7

    def backend_version(self) -> int:
        return 91900

    def create_handle(self) -> Any:
        return self.handle

    def set_stream(self, handle: Any, stream: int) -> None:
        assert handle is self.handle
        self.streams.append(stream)

    def pygraph(self, **named: Any) -> Graph:
        self.graphs.append(Graph(self, **named))
        return self.graphs[-1]


class GraphTensor:
    """A tensor of a graph."""

    def __init__(self, dim: Sequence[int] = (), stride: Sequence[int] = (), data_type: Any = None) -> None:
        self.dim, self.stride, self.kind, self.is_output = dim, stride, data_type, False

    def get_uid(self) -> int:
        return id(self)

    def set_output(self, value: bool) -> GraphTensor:
        self.is_output = value
        return self

    def set_dim(self, dim: Sequence[int]) -> GraphTensor:
        self.dim = dim
        return self

    def set_stride(self, stride: Sequence[int]) -> GraphTensor:
        self.stride = stride
        return self

    def set_data_type(self, kind: Any) -> GraphTensor:
        self.kind = kind
        return self

    def at(self, address: int) -> Any:
        """Return the array at an address, with three spatial axes."""
        array = self.array(address)
        return array[:, :, None] if array.ndim == 4 else array

    def array(self, address: int) -> Any:
        """Return the array at an address."""
        nbytes = np.dtype(KINDS[self.kind]).itemsize
        end = sum((n - 1) * step for n, step in zip(self.dim, self.stride, strict=True)) + 1
        memory = (ctypes.c_char * (end * nbytes)).from_address(address)
        return np.ndarray(self.dim, KINDS[self.kind], memory, strides=[step * nbytes for step in self.stride])


class Graph:
    def __init__(
        self, frontend: Frontend, handle: Any, io_data_type: Any, intermediate_data_type: Any, compute_data_type: Any
    ) -> None:
        assert handle is frontend.handle
        self.frontend = frontend
        self.kinds = io_data_type, intermediate_data_type, compute_data_type
        self.steps: list[str] = []  # names of the calls, in order
        self.excluded_notes: list[Any] = []
        self.max_workspace_bytes = 1 << 60
        self.ran: list[Any] = []
        self.bias_of = self.rectified = None
        self.heads: Any = None

    def tensor(self, dim: Sequence[int], stride: Sequence[int], data_type: Any) -> GraphTensor:
        assert len(dim) == len(stride) in (4, 5)
        return GraphTensor(dim, stride, data_type)

    def _conv(self, operation: str, first: GraphTensor, second: GraphTensor, **geometry: Sequence[int]) -> GraphTensor:
        assert {len(x) for x in geometry.values()} == {len(first.dim) - 2}
        self.operation, self.operands, self.geometry, self.result = operation, (first, second), geometry, GraphTensor()
        return self.result

    def conv_fprop(self, image: GraphTensor, weight: GraphTensor, **geometry: Any) -> GraphTensor:
        return self._conv("fprop", image, weight, **geometry)

    def conv_dgrad(self, loss: GraphTensor, filter: GraphTensor, **geometry: Any) -> GraphTensor:
        return self._conv("dgrad", loss, filter, **geometry)

    def conv_wgrad(self, image: GraphTensor, loss: GraphTensor, **geometry: Any) -> GraphTensor:
        return self._conv("wgrad", image, loss, **geometry)

    def bias(self, input: GraphTensor, bias: GraphTensor) -> GraphTensor:
        assert input is self.result
        assert list(bias.dim) == [1, bias.dim[1]] + [1] * (len(bias.dim) - 2)
        self.bias_of, self.result = bias, GraphTensor()
        return self.result

    def relu(self, input: GraphTensor) -> GraphTensor:
        assert input is self.result
        self.rectified, self.result = True, GraphTensor()
        return self.result

    def _attention(self, operands: dict[str, GraphTensor], results: int, scale: float, causal: bool) -> Any:
        """Record a graph of attention; the real library refuses what is refused here."""
        parts = [x for name, x in operands.items() if name != "stats"]
        if any(x.stride[-1] != 1 for x in parts):
            raise cudnnGraphNotSupportedError("The stride for the last dimension should be 1")
        if any(x.dim[-1] % 8 for x in parts) or not {x.kind for x in parts} <= {data_type.HALF, data_type.BFLOAT16}:
            raise cudnnGraphNotSupportedError("hidden_dim should be multiple of 8")
        self.heads, self.scale, self.causal = operands, scale, causal
        self.results = [GraphTensor() for _ in range(results)]
        return self.results

    def sdpa(self, attn_scale: float, use_causal_mask: bool, generate_stats: bool, **operands: GraphTensor) -> Any:
        assert generate_stats
        return self._attention(operands, 2, attn_scale, use_causal_mask)

    def sdpa_backward(
        self, attn_scale: float, use_causal_mask: bool, use_deterministic_algorithm: bool, **operands: GraphTensor
    ) -> Any:
        assert use_deterministic_algorithm
        return self._attention(operands, 3, attn_scale, use_causal_mask)

    def _run_attention(self, addresses: dict[int, int]) -> None:
        x = {name: t.array(addresses[t.get_uid()]).astype(float) for name, t in self.heads.items()}
        results = [t.array(addresses[t.get_uid()]) for t in self.results]
        for n, h in np.ndindex(x["q"].shape[:2]):
            q, k, v = x["q"][n, h], x["k"][n, h], x["v"][n, h]
            weights = np.zeros((len(q), len(k)))
            for t in range(len(q)):  # one query at a time
                seen = t + 1 if self.causal else len(k)
                weights[t, :seen] = np.exp(k[:seen] @ q[t] * self.scale)
                if "dO" not in x:
                    results[1][n, h, t] = np.log(weights[t].sum())
                    results[0][n, h, t] = weights[t] @ v / weights[t].sum()
            if "dO" in x:
                weights /= np.exp(x["stats"][n, h])
                de = x["dO"][n, h]
                dscores = weights * (de @ v.T - (de * x["o"][n, h]).sum(1, keepdims=True)) * self.scale
                for out, gradient in zip(results, (dscores @ k, dscores.T @ q, weights.T @ de), strict=True):
                    out[n, h] = gradient

    def __getattr__(self, name: str) -> Any:
        steps = ("validate", "build_operation_graph", "check_support", "build_plans")
        if name not in steps:
            raise AttributeError(name)
        return lambda: self.steps.append(name)

    def create_execution_plans(self, modes: Sequence[Any]) -> None:
        assert list(modes) == [heur_mode.A, heur_mode.FALLBACK]
        if self.frontend.version >= (1, 19) and not self.frontend.cudart():
            raise RuntimeError("Unable to load any libcudart.so.* library.")
        self.steps.append("create_execution_plans")

    def deselect_numeric_notes(self, notes: Sequence[Any]) -> None:
        self.excluded_notes += notes

    def deselect_workspace_greater_than(self, nbytes: int) -> None:
        self.max_workspace_bytes = nbytes
        if not self._allowed():
            raise cudnnGraphNotSupportedError("no plan has a workspace within the limit")

    def _allowed(self) -> list[int]:
        """Return the indices of the plans that are not deselected."""
        first = TENSOR_CORES if numerical_note.TENSOR_CORE in self.excluded_notes else 0
        return [n for n, nbytes in enumerate(PLANS) if n >= first and nbytes <= self.max_workspace_bytes]

    def get_execution_plan_count(self) -> int:
        return len(PLANS)

    def get_plan_name_at_index(self, index: int) -> str:
        return f"eng{index}_k2=1"

    def build_plan_at_index(self, index: int) -> None:
        if index not in self._allowed():
            raise cudnnGraphNotSupportedError("Deselecting execution plan")

    def get_workspace_size(self) -> int:
        return PLANS[self._allowed()[0]]

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return PLANS[index]

    def execute_plan_at_index(self, addresses: dict[int, int], workspace: int, index: int, handle: int) -> None:
        self.ran.append(index)
        self._run(addresses, workspace, handle, PLANS[index])

    def execute(self, addresses: dict[int, int], workspace: int, handle: int) -> None:
        self.ran.append(None)
        self._run(addresses, workspace, handle, self.get_workspace_size())

    def _run(self, addresses: dict[int, int], workspace: int, handle: int, nbytes: int) -> None:
        assert handle is self.frontend.handle
        if self.frontend.fails == "execute":
            raise RuntimeError("libnvrtc.so.13: cannot open shared object file")
        assert self.steps[:4] == ["validate", "build_operation_graph", "create_execution_plans", "check_support"]
        ctypes.memset(workspace, 0xFF, nbytes)
        if self.heads:
            return self._run_attention(addresses)
        a, b = (x.at(addresses[x.get_uid()]).astype(float) for x in self.operands)
        out, sizes = self.result.at(addresses[self.result.get_uid()]), {k: tuple(v) for k, v in self.geometry.items()}
        if len(sizes["padding"]) == 2:
            sizes = {k: (int(k != "padding"), *v) for k, v in sizes.items()}
        geometry = sizes["padding"], sizes["stride"], sizes["dilation"]
        images, filters = (1, 2, 3, 4, 0), (1, 2, 3, 4, 0)  # (N, C, D, H, W), (K, C, T, R, S) with the first axis last
        assert self.result.is_output
        if self.operation == "fprop":
            result = textbook.conv(a.transpose(images), b.transpose(filters), *geometry)
        elif self.operation == "dgrad":
            result = textbook.conv_bprop(b.transpose(filters), a.transpose(images), out.shape[2:], *geometry)
        else:
            result = textbook.conv_update(a.transpose(images), b.transpose(images), out.shape[2:], *geometry)
        result = result.transpose(4, 0, 1, 2, 3)
        if self.bias_of is not None:
            result = result + self.bias_of.at(addresses[self.bias_of.get_uid()])
        out[...] = np.maximum(result, 0) if self.rectified else result
