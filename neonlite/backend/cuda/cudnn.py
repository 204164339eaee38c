"""How does a card convolve by cuDNN?  By graphs of NVIDIA's frontend, of which a plan is made once for each geometry.

cuDNN counts the axes of images as (N, C, D, H, W), and takes strides. It is fastest where these lie as (N, D, H, W, C),
and filters as (K, T, R, S, C): images are brought there, and stay so from layer to layer (``backend/stored.py``);
filters, which are small, are brought there and back each time.

``NEONLITE_CUDNN=0`` in the environment does without it, and so without images that lie apart. ``NEONLITE_WORKSPACE``
is the most bytes that a plan may work in. With ``NEONLITE_AUTOTUNE=1`` each plan that cuDNN offers is tried where a
geometry first comes, and the fastest is kept; else cuDNN's own choice. TF32 as for products.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from neonlite.backend.cuda.launching import workspace
from neonlite.backend.cuda.primitives_convolution import ConvolutionPrimitives, pointwise
from neonlite.backend.cuda.rooms import Rooms
from neonlite.backend.primitives.geometry import ConvLayer
from neonlite.backend.stored import Images, emptied, form_of, may_take, read_images, written_images

TRIED = 8  # plans that are timed, at most
TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}
WAYS = {"fprop": ("image", "weight"), "dgrad": ("loss", "filter"), "wgrad": ("image", "loss")}  # what each is made of
ARRAYS = {"fprop": "ifo", "dgrad": "ofi", "wgrad": "iof"}  # whose sizes: inputs, filters, outputs; the result is last


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

    def plan(
        self,
        way: str,
        layer: ConvLayer,
        tf32: bool,
        places: Callable[[], Sequence[int]],
        room: Callable[[int], int],
        bias: bool = False,
        relu: bool = False,
    ) -> Plan | None:
        """Return the plan of a convolution, or of a derivative, made when first asked for; None when cuDNN has none.

        ``places()``: the addresses of two operands, the result, and where there is one a bias; ``room(n)``: that of n
        bytes. Both are asked when plans are tried.
        """
        self.handle()
        geometry, cap = (layer.padding, layer.strides, layer.dilation), workspace()
        key = way, layer.dtype, layer.dimI, layer.dimF, layer.dimO, *geometry, tf32, bias, relu, cap
        plans = self.local.plans
        if key not in plans:
            try:
                plans[key] = self._plan(way, layer, tf32, places, room, bias, relu, cap)
            except self.frontend.cudnnGraphNotSupportedError as error:
                warnings.warn(f"cuDNN cannot {way} {layer!r}: {error}\nProducts do it.", RuntimeWarning, stacklevel=2)
                plans[key] = None
        found: Plan | None = plans[key]
        return found

    def _plan(
        self,
        way: str,
        layer: ConvLayer,
        tf32: bool,
        places: Callable[[], Sequence[int]],
        room: Callable[[int], int],
        bias: bool,
        relu: bool,
        cap: int,
    ) -> Plan:
        """Build the graph of a convolution, and choose its plan."""
        frontend, handle = self.frontend, self.handle()
        kind = getattr(frontend.data_type, TYPES[layer.dtype])
        wide = frontend.data_type.DOUBLE if layer.dtype == "float64" else frontend.data_type.FLOAT
        graph = frontend.pygraph(handle=handle, io_data_type=kind, intermediate_data_type=wide, compute_data_type=wide)
        flat = layer.D == layer.T == 1 and not layer.padding[0]  # two axes of space, or three
        sizes = {"i": layer.dimI, "f": layer.dimF, "o": layer.dimO}
        *operands, result_sizes = (described(sizes[name], flat) for name in ARRAYS[way])
        operands += [described((layer.K, 1, 1, 1, 1), flat)] * bias
        first, second, *column = (graph.tensor(dim=dim, stride=stride, data_type=kind) for dim, stride in operands)
        along = {
            name: list(sizes[flat:])
            for name, sizes in (("padding", layer.padding), ("stride", layer.strides), ("dilation", layer.dilation))
        }
        named = dict(zip(WAYS[way], (first, second), strict=True))
        result = getattr(graph, f"conv_{way}")(**named, **along)
        if bias:
            result = graph.bias(input=result, bias=column[0])
        if relu:
            result = graph.relu(input=result)
        result.set_output(True).set_dim(result_sizes[0]).set_stride(result_sizes[1]).set_data_type(kind)
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
        tensors = [first, second, result, *column]
        if os.environ.get("NEONLITE_AUTOTUNE") == "1":
            return self._fastest(graph, tensors, places(), room)
        graph.build_plans()
        return Plan(graph, tensors, None, graph.get_workspace_size())

    def _fastest(self, graph: Any, tensors: list[Any], addresses: Sequence[int], room: Callable[[int], int]) -> Plan:
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
                self.execute(plan, addresses, at)

            timed.append((self.seconds(once), index, plan))
        if not timed:
            raise self.frontend.cudnnGraphNotSupportedError("none of its plans can be built")
        return min(timed)[2]

    def execute(self, plan: Plan, addresses: Sequence[int], at: int) -> None:
        """Run a plan on arrays, which lie as the graph says, with the address of bytes to work in."""
        where, handle = dict(zip(plan.tensors, addresses, strict=True)), self.handle()
        if plan.number is None:
            plan.graph.execute(where, at, handle=handle)
        else:
            plan.graph.execute_plan_at_index(where, at, plan.number, handle=handle)


def described(shape: Sequence[int], flat: bool) -> tuple[list[int], list[int]]:
    """Return sizes and strides, in the order N, C, D, H, W, of images (C, D, H, W, N) that lie as (N, D, H, W, C).

    Without D where all is flat.
    """
    C, D, H, W, N = shape
    sizes, strides = [N, C, D, H, W], [D * H * W * C, 1, H * W * C, W * C, C]
    return [x[:2] + x[2 + flat :] for x in (sizes, strides)]  # type: ignore[return-value]


class CudnnConvolutions(ConvolutionPrimitives, Rooms):
    """Convolutions by cuDNN where the driver has it, and else by products."""

    rectifies = True

    def conv_fprop(self, layer: ConvLayer, i: Any, f: Any, o: Any, alpha: float, beta: float) -> None:
        if not self._convolve("fprop", layer, (i, f), o, alpha, beta):
            self._run(super().conv_fprop, layer, read_images(i), f, written_images(o, beta), alpha, beta)

    def conv_with_bias(self, layer: ConvLayer, i: Any, f: Any, o: Any, bias: Any, relu: bool) -> bool:
        return self._convolve("fprop", layer, (i, f), o, 1.0, 0.0, bias, relu)

    def conv_bprop(self, layer: ConvLayer, f: Any, e: Any, d: Any, alpha: float, beta: float) -> None:
        if not self._convolve("dgrad", layer, (e, f), d, alpha, beta):
            self._run(super().conv_bprop, layer, f, read_images(e), written_images(d, beta), alpha, beta)

    def conv_update(self, layer: ConvLayer, i: Any, e: Any, u: Any, alpha: float, beta: float) -> None:
        if not self._convolve("wgrad", layer, (i, e), u, alpha, beta):
            self._run(super().conv_update, layer, read_images(i), read_images(e), u, alpha, beta)

    def _run(self, f: Callable[..., None], *arguments: Any) -> None:
        """Run what works on arrays in order: now, or on a card's graph."""
        driver = getattr(self.runtime, "driver", None)
        f(*arguments) if driver is None else driver.call(f, *arguments)

    def _convolve(
        self,
        way: str,
        layer: ConvLayer,
        operands: Sequence[Any],
        out: Any,
        alpha: float,
        beta: float,
        bias: Any = None,
        relu: bool = False,
    ) -> bool:
        """Have cuDNN compute ``out = alpha conv + beta out``; tell whether it could."""
        if not self.has_rooms:
            return False
        if pointwise(layer):
            return bias is None and self._multiply(way, layer, operands, out, alpha, beta)
        driver: Any = self.runtime.driver
        whole, array = alpha == 1 and beta == 0, out.array if isinstance(out, Images) else out
        taken = whole and may_take(out, operands)

        @cache
        def lying() -> tuple[list[Any], Any]:
            """Bring the operands to where they lie apart; return them and what takes the result, and its room."""
            found = [self.apart(f"cudnn {n}", x) for n, x in enumerate(operands)]
            empty = emptied(out.tensor, out.form, self) if taken else None
            found.append(empty.room if empty else self.scratch("cudnn result", (array.size,), array))
            return found, empty

        def places() -> list[int]:
            return [self.runtime.layout(x)[0] for x in (*lying()[0], *(() if bias is None else (bias,)))]

        plan = driver.cudnn.plan(way, layer, driver.tf32, places, self._workspace, bias is not None, relu)
        if plan is None:
            return False
        driver.call(driver.cudnn.execute, plan, places(), self._workspace(plan.nbytes))
        (*_, made), empty = lying()
        if empty is not None:
            empty.end(in_order=False)
            return True
        written_images(out, beta)
        result = array if whole else self.scratch("convolved", array.shape, array)
        self.turn(form_of(array), result, made, back=True)
        if not whole:
            driver.call(self._scale, result, array, alpha, beta)
        return True

    def _scale(self, result: Any, out: Any, alpha: float, beta: float) -> None:
        """Compute ``out = alpha result + beta out``."""
        wide = self.xp.float32 if out.dtype.itemsize == 2 else out.dtype
        value = self.xp.astype(result, wide) * alpha
        out[...] = value if beta == 0 else value + self.xp.astype(out, wide) * beta

    def _multiply(
        self, way: str, layer: ConvLayer, operands: Sequence[Any], out: Any, alpha: float, beta: float
    ) -> bool:
        """Convolve images that lie apart with filters of one pixel: one product. Tell whether they do."""
        if not any(isinstance(x, Images) and x.apart for x in operands):
            return False

        def matrix(images: Any, maps: int) -> Any:
            return self.runtime.reshape(images, (images.size // maps, maps))

        if way == "wgrad":
            i, e = (self.apart(f"cudnn {n}", x) for n, x in enumerate(operands))
            self.gemm(matrix(i, layer.C).T, matrix(e, layer.K), matrix(out, layer.K), alpha, beta)
            return True
        if alpha != 1 or beta != 0 or not may_take(out, operands):
            return False
        images, filters = self.apart("cudnn 0", operands[0]), matrix(operands[1], layer.K)
        left, right = (layer.C, layer.K) if way == "fprop" else (layer.K, layer.C)
        empty = emptied(out.tensor, out.form, self)
        self.gemm(matrix(images, left), filters if way == "fprop" else filters.T, matrix(empty.room, right))
        empty.end(in_order=False)
        return True

    def _workspace(self, nbytes: int) -> int:
        """Return the address of bytes to work in."""
        address: int = self.runtime.layout(self.scratch("cudnn", (nbytes,), self.xp.empty(0, dtype=self.xp.uint8)))[0]
        return address


def load() -> Any:
    """Return NVIDIA's frontend; None where it is not installed, or ``NEONLITE_CUDNN=0`` says to do without."""
    if os.environ.get("NEONLITE_CUDNN") == "0":
        return None
    try:
        import cudnn
    except ImportError:
        return None
    return cudnn
