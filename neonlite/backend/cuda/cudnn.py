"""How does a card convolve by cuDNN?  By graphs of NVIDIA's frontend, of which a plan is made once for each geometry.

cuDNN counts the axes of images as (N, C, D, H, W), and takes strides: so it is told where things are in memory that has
(C, D, H, W, N), and brings them into an order of its own where that is faster.

``NEONLITE_WORKSPACE`` is the most bytes that a plan may work in. With ``NEONLITE_AUTOTUNE=1`` each plan that cuDNN
offers is tried where a geometry first comes, and the fastest is kept; else cuDNN's own choice. TF32 as for products.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.cuda.launching import workspace
from neonlite.backend.cuda.primitives_convolution import ConvolutionPrimitives, pointwise
from neonlite.backend.primitives.geometry import ConvLayer

TRIED = 8  # plans that are timed, at most
TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}
WAYS = {"fprop": ("image", "weight"), "dgrad": ("loss", "filter"), "wgrad": ("image", "loss")}  # what each is made of


class Plan(NamedTuple):
    """A graph that is built: its tensors, in the order of the arrays, and which of its plans runs."""

    graph: Any
    tensors: list[Any]
    number: int | None  # None: cuDNN's choice
    nbytes: int


class Cudnn:
    """The plans of each thread. ``seconds(f)`` times what a function launches."""

    def __init__(
        self, frontend: Any, stream: Callable[[], int], seconds: Callable[[Callable[[], None]], float]
    ) -> None:
        self.frontend, self.stream, self.seconds = frontend, stream, seconds
        self.local = threading.local()
        self.handle()  # it fails here or never

    def handle(self) -> int:
        """Return this thread's handle, on the current stream."""
        local, stream = self.local, self.stream()
        if not hasattr(local, "handle"):
            local.handle, local.stream, local.plans = self.frontend.create_handle(), None, {}
        if local.stream != stream:
            self.frontend.set_stream(local.handle, stream)
            local.stream = stream
        return int(local.handle)

    def convolve(
        self,
        way: str,
        layer: ConvLayer,
        arrays: Sequence[tuple[tuple[int, ...], int]],
        room: Callable[[int], int],
        tf32: bool,
        relu: bool = False,
    ) -> bool:
        """Run a convolution, or a derivative, of (shape, address) each; tell whether cuDNN can.

        ``arrays``: its two operands, the result, and where there is one a bias; ``room(n)``: the address of n bytes.
        """
        handle, cap = self.handle(), workspace()
        geometry = layer.padding, layer.strides, layer.dilation
        key = way, layer.dtype, *(shape for shape, _ in arrays), *geometry, tf32, relu, cap
        plans = self.local.plans
        addresses = [address for _, address in arrays]
        if key not in plans:
            try:
                plans[key] = self._plan(way, layer, [shape for shape, _ in arrays], addresses, room, tf32, relu, cap)
            except self.frontend.cudnnGraphNotSupportedError as error:
                warnings.warn(f"cuDNN cannot {way} {layer!r}: {error}\nProducts do it.", RuntimeWarning, stacklevel=2)
                plans[key] = None
        if plans[key] is None:
            return False
        self._execute(plans[key], addresses, room(plans[key].nbytes), handle)
        return True

    def _plan(
        self,
        way: str,
        layer: ConvLayer,
        shapes: Sequence[tuple[int, ...]],
        addresses: Sequence[int],
        room: Callable[[int], int],
        tf32: bool,
        relu: bool,
        cap: int,
    ) -> Plan:
        """Build the graph of a convolution, and choose its plan."""
        frontend, handle = self.frontend, self.handle()
        kind = getattr(frontend.data_type, TYPES[layer.dtype])
        wide = frontend.data_type.DOUBLE if layer.dtype == "float64" else frontend.data_type.FLOAT
        graph = frontend.pygraph(handle=handle, io_data_type=kind, intermediate_data_type=wide, compute_data_type=wide)
        flat = layer.D == layer.T == 1 and not layer.padding[0]  # two axes of space, or three
        each = [described(shape, flat) for shape in shapes]
        first, second, *bias = (
            graph.tensor(dim=dim, stride=stride, data_type=kind) for dim, stride in [*each[:2], *each[3:]]
        )
        places = {
            name: list(sizes[flat:])
            for name, sizes in (("padding", layer.padding), ("stride", layer.strides), ("dilation", layer.dilation))
        }
        operands = dict(zip(WAYS[way], (first, second), strict=True))
        result = getattr(graph, f"conv_{way}")(**operands, **places)
        if bias:
            result = graph.bias(input=result, bias=bias[0])
        if relu:
            result = graph.relu(input=result)
        result.set_output(True).set_dim(each[2][0]).set_stride(each[2][1]).set_data_type(kind)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([frontend.heur_mode.A, frontend.heur_mode.FALLBACK])
        note = frontend.numerical_note
        avoided = [note.NONDETERMINISTIC, note.REDUCED_PRECISION_REDUCTION]
        if layer.dtype == "float32" and not tf32:
            avoided += [note.TENSOR_CORE, note.DOWN_CONVERT_INPUTS]
        graph.deselect_numeric_notes(avoided)
        graph.deselect_workspace_greater_than(cap)
        graph.check_support()
        tensors = [first, second, result, *bias]
        if os.environ.get("NEONLITE_AUTOTUNE") == "1":
            return self._fastest(graph, tensors, addresses, room, handle)
        graph.build_plans()
        return Plan(graph, tensors, None, graph.get_workspace_size())

    def _fastest(
        self, graph: Any, tensors: list[Any], addresses: Sequence[int], room: Callable[[int], int], handle: int
    ) -> Plan:
        """Try plans on the arrays themselves, whose result is written anew each time."""
        timed = []
        for index in range(min(TRIED, graph.get_execution_plan_count())):
            try:
                graph.build_plan_at_index(index)
            except self.frontend.cudnnGraphNotSupportedError:  # the next may do
                continue
            plan = Plan(graph, tensors, index, graph.get_workspace_size_plan_at_index(index))
            at = room(plan.nbytes)

            def once(plan: Plan = plan, at: int = at) -> None:
                self._execute(plan, addresses, at, handle)

            timed.append((self.seconds(once), index, plan))
        if not timed:
            raise self.frontend.cudnnGraphNotSupportedError("none of its plans can be built")
        return min(timed)[2]

    def _execute(self, plan: Plan, addresses: Sequence[int], at: int, handle: int) -> None:
        where = dict(zip(plan.tensors, addresses, strict=True))
        if plan.number is None:
            plan.graph.execute(where, at, handle=handle)
        else:
            plan.graph.execute_plan_at_index(where, at, plan.number, handle=handle)


def described(shape: tuple[int, ...], flat: bool) -> tuple[list[int], list[int]]:
    """Return sizes and strides of an array (C, D, H, W, N) in the order N, C, D, H, W, without D where all is flat."""
    strides = [int(np.prod(shape[n + 1 :], dtype=np.int64)) for n in range(5)]
    axes = [4, 0, 2, 3] if flat else [4, 0, 1, 2, 3]
    return [shape[n] for n in axes], [strides[n] for n in axes]


class CudnnConvolutions(ConvolutionPrimitives):
    """Convolutions by cuDNN where the driver has it, and else by products."""

    rectifies = True

    def conv_fprop(self, layer: ConvLayer, i: Any, f: Any, o: Any, alpha: float, beta: float) -> None:
        if not self._convolve("fprop", layer, (i, f), o, alpha, beta):
            super().conv_fprop(layer, i, f, o, alpha, beta)

    def conv_with_bias(self, layer: ConvLayer, i: Any, f: Any, o: Any, bias: Any, relu: bool) -> bool:
        column = self.runtime.reshape(bias, (layer.K, 1, 1, 1, 1))
        return self._convolve("fprop", layer, (i, f), o, 1.0, 0.0, column, relu)

    def conv_bprop(self, layer: ConvLayer, f: Any, e: Any, d: Any, alpha: float, beta: float) -> None:
        if not self._convolve("dgrad", layer, (e, f), d, alpha, beta):
            super().conv_bprop(layer, f, e, d, alpha, beta)

    def conv_update(self, layer: ConvLayer, i: Any, e: Any, u: Any, alpha: float, beta: float) -> None:
        if not self._convolve("wgrad", layer, (i, e), u, alpha, beta):
            super().conv_update(layer, i, e, u, alpha, beta)

    def _convolve(
        self, way: str, layer: ConvLayer, operands: Any, out: Any, alpha: float, beta: float, *bias: Any
    ) -> bool:
        """Have cuDNN compute ``out = alpha conv + beta out``; tell whether it could."""
        driver = getattr(self.runtime, "driver", None)
        if (cudnn := getattr(driver, "cudnn", None)) is None or pointwise(layer):  # which cuDNN brings into order first
            return False
        place = out if alpha == 1 and beta == 0 else self.scratch("convolved", out.shape, out)
        arrays = [(x.shape, self.runtime.layout(x)[0]) for x in (*operands, place, *bias[:1])]
        if not cudnn.convolve(way, layer, arrays, self._room, driver.tf32, *bias[1:]):  # type: ignore[union-attr]
            return False
        if place is not out:
            wide = self.xp.float32 if out.dtype.itemsize == 2 else out.dtype
            value = self.xp.astype(place, wide) * alpha
            out[...] = value if beta == 0 else value + self.xp.astype(out, wide) * beta
        return True

    def _room(self, nbytes: int) -> int:
        """Return the address of bytes to work in."""
        address: int = self.runtime.layout(self.scratch("cudnn", (nbytes,), self.xp.empty(0, dtype=self.xp.uint8)))[0]
        return address


def load() -> Any:
    """Return NVIDIA's frontend; None where it is not installed."""
    try:
        import cudnn
    except ImportError:
        return None
    return cudnn
