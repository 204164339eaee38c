"""Convolution on the GPU, by cuDNN or by an im2col kernel and one matrix product; and attention by cuDNN."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from neonlite.backend.concurrency import Cache
from neonlite.backend.primitives import scale_and_add
from neonlite.backend.primitives.geometry import (
    ConvLayer,
    ImageShape,
    Layout,
    ReorderedImages,
    as_chwn,
    chwn_view,
    image_shape,
)
from neonlite.backend.runtimes.cuda import libraries
from neonlite.backend.runtimes.cuda.codegen import MAX_BLOCKS
from neonlite.backend.runtimes.cuda.graphs import CaptureError, current_capture, is_recording, record, repeat_launches
from neonlite.backend.runtimes.cuda.kernels import KernelLauncher, workspace_limit
from neonlite.backend.runtimes.cuda.libraries import PerThread
from neonlite.backend.runtimes.cuda.op_templates import substitute
from neonlite.backend.validation import warn
from neonlite.ops.functions import Shape, contiguous_strides
from neonlite.typing import HALF_DTYPES, NativeArray

SPATIAL_AXES = "zyx"
AXIS_PARAMETERS = [
    f"{a}_{what}"
    for a in SPATIAL_AXES
    for what in ("size", "outputs", "taps", "stride", "offset", "dilation", "input_stride")
]

IM2COL_KERNEL = substitute(
    """
struct Axis { Index size, outputs, taps, stride, offset, dilation, input_stride; };
__device__ inline Index input_index(Axis axis, Index output, Index tap)  // -1: in the padding, or between strides
{
    const Index at = output * axis.stride + axis.offset + tap * axis.dilation;
    return at >= 0 && at % axis.input_stride == 0 && at / axis.input_stride < axis.size ? at / axis.input_stride : -1;
}

// columns[row, column] = the input at a filter tap of an output. row: (channel, tap), or (tap, channel) if channels
// are inner; column: (output, n).
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* columns, const Element* i, Index size, Index width, Index first, Index N, Index channels,
    Index channels_inner,
    {sizes})
{
    const Axis {axes};
    const Index taps = Z.taps * Y.taps * X.taps;
    for (GRID_STRIDE(at, size)) {
        const Index row = at / width, position = at % width, n = position % N, output = first + position / N;
        const Index tap = channels_inner ? row / channels : row % taps;
        const Index c = channels_inner ? row % channels : row / taps;
        const Index z = input_index(Z, output / X.outputs / Y.outputs, tap / X.taps / Y.taps);
        const Index y = input_index(Y, output / X.outputs % Y.outputs, tap / X.taps % Y.taps);
        const Index x = input_index(X, output % X.outputs, tap % X.taps);
        Pack<Element, V> values = {};
        if (z >= 0 && y >= 0 && x >= 0) values = load<V>(i + (((c * Z.size + z) * Y.size + y) * X.size + x) * N + n);
        store(columns + at, values);
    }
}
""",
    sizes=", ".join(f"Index {name}" for name in AXIS_PARAMETERS),
    axes=", ".join(f"{a.upper()} = {{{', '.join(x for x in AXIS_PARAMETERS if x[0] == a)}}}" for a in SPATIAL_AXES),
)


class CudaConvolution(KernelLauncher):
    """Convolution and its derivatives for contiguous arrays (C, D, H, W, N), (C, T, R, S, K), (K, M, P, Q, N)."""

    def conv_fprop(
        self, layer: ConvLayer, i: NativeArray, f: NativeArray, o: NativeArray, alpha: float, beta: float
    ) -> None:
        filters = self.runtime.reshape(f, layer.dimF2).T
        out = self.runtime.reshape(o, (layer.K, -1))
        for window, columns in self._im2col(layer, i, is_backward=False):
            self.gemm(filters, columns, out[:, window], alpha, beta)

    def conv_bprop(
        self, layer: ConvLayer, f: NativeArray, e: NativeArray, d: NativeArray, alpha: float, beta: float
    ) -> None:
        filters, out = self.runtime.reshape(f, (layer.C, -1)), self.runtime.reshape(d, (layer.C, -1))
        for window, columns in self._im2col(layer, e, is_backward=True):
            self.gemm(filters, columns, out[:, window], alpha, beta)

    def conv_update(
        self, layer: ConvLayer, i: NativeArray, e: NativeArray, u: NativeArray, alpha: float, beta: float
    ) -> None:
        errors, out = self.runtime.reshape(e, (layer.K, -1)), self.runtime.reshape(u, layer.dimF2)
        total = self.get_workspace(
            "gradient", out.shape, i if i.dtype.itemsize > 2 else self.xp.empty(0, dtype=self.xp.float32)
        )
        for n, (window, columns) in enumerate(self._im2col(layer, i, is_backward=False)):
            self.gemm(columns, errors[:, window].T, total, alpha, float(n > 0))
        scale_and_add(out, total, beta)

    def _im2col(self, layer: ConvLayer, image: NativeArray, is_backward: bool) -> Iterator[tuple[slice, NativeArray]]:
        """Yield slices of the result's columns with their im2col matrices."""
        channels, outputs = (layer.K, layer.DHW) if is_backward else (layer.C, layer.MPQ)
        axes = zip(image.shape[1:4], outputs, layer.TRS, layer.strides, layer.padding, layer.dilation, strict=True)
        sizes = [(n, m, k, 1, p, -d, s) if is_backward else (n, m, k, s, -p, d, 1) for n, m, k, s, p, d in axes]
        height, width = channels * math.prod(layer.TRS), math.prod(outputs) * layer.N
        if is_pointwise(layer):
            yield slice(0, width), self.runtime.reshape(image, (height, width))  # already in this layout
            return
        step = max(1, workspace_limit() // (height * layer.N * image.dtype.itemsize)) * layer.N
        for first in range(0, width, step):
            part_width = min(step, width - first)
            columns = self.get_workspace("columns", (height, part_width), image)
            size = height * part_width
            counts = size, part_width, first // layer.N, layer.N, channels, int(is_backward)
            arguments = [columns, image, *counts, *(n for x in sizes for n in x)]
            self.launch_elementwise(IM2COL_KERNEL, image, size, layer.N, arguments)
            yield slice(first, first + part_width), columns


def is_pointwise(layer: ConvLayer) -> bool:
    """Return whether a convolution has 1x1 filters, stride 1 and no padding, and so is a matrix product."""
    return {*layer.TRS, *layer.strides} == {1} and not any((*layer.padding, *layer.padding_after))


# --- reorder images to the layout of cuDNN and back with a tiled transpose through shared memory ---
#
# cuDNN is fastest with images (N, D, H, W, C) and filters (K, T, R, S, C) on tensor cores. Elsewhere it computes with
# (N, C, D, H, W) and (K, C, T, R, S), to which float32 plans for other layouts copy images in each call. Pooling needs
# no kernels for these layouts: with the sizes of axes exchanged or merged, the same kernels apply.

TILE_SIZE = 64  # elements along each side of a tile

REORDER_FUNCTION = substitute(
    """
// Transpose (channels, pixels, batch) to (batch, pixels, channels), or back. A block transposes tiles in shared
// memory. A thread loads and stores W elements at once. Rows of the tile have an odd number of
// elements, which avoids shared-memory bank conflicts. t is the next tile of the block; then that of the next copy.
enum { TILE = {TILE_SIZE} };
template <int W> __device__ void reorder(
    Element (*tile)[TILE + 1], Index& t, Element* target, const Element* source, Index channels, Index pixels,
    Index batch_size, Index to_chwn)
{
    enum { PACKS = TILE / W, ROWS = 256 / PACKS };
    const Index columns = channels * pixels, tiles_per_row = (batch_size + TILE - 1) / TILE;
    const Index tiles = (columns + TILE - 1) / TILE * tiles_per_row;
    const Index lane = threadIdx.x % PACKS * W, row = threadIdx.x / PACKS;
    for (; t < tiles; t += gridDim.x) {
        const Index first = t / tiles_per_row * TILE, image = t % tiles_per_row * TILE;
        #pragma unroll
        for (int r = 0; r < TILE / ROWS; ++r) {
            const Index k = row + r * ROWS, j = first + (to_chwn ? lane : k), n = image + (to_chwn ? k : lane);
            if (j < columns && n < batch_size) {
                const Index at = to_chwn ? n * columns + j : (j % channels * pixels + j / channels) * batch_size + n;
                const Pack<Element, W> values = load<W>(source + at);
                #pragma unroll
                for (int q = 0; q < W; ++q) tile[k][lane + q] = values.at[q];
            }
        }
        __syncthreads();
        #pragma unroll
        for (int r = 0; r < TILE / ROWS; ++r) {
            const Index k = row + r * ROWS, j = first + (to_chwn ? k : lane), n = image + (to_chwn ? lane : k);
            if (j < columns && n < batch_size) {
                const Index at = to_chwn ? (j % channels * pixels + j / channels) * batch_size + n : n * columns + j;
                Pack<Element, W> values;
                #pragma unroll
                for (int q = 0; q < W; ++q) values.at[q] = tile[lane + q][k];
                store(target + at, values);
            }
        }
        __syncthreads();
    }
    t -= tiles;
}
""",
    TILE_SIZE=str(TILE_SIZE),
)
MAX_COPIES = 64  # of a launch, whose arguments may have 4096 bytes


@cache
def reorder_kernel(widths: tuple[int, ...]) -> str:
    """Return the source of a kernel that reorders several arrays, each with packs of a width."""
    names = "channels", "pixels", "batch_size", "to_chwn"
    parameters, calls = [], []
    for k, W in enumerate(widths):
        parameters.append(f"Element* target{k}, const Element* source{k}, {', '.join(f'Index {x}{k}' for x in names)}")
        arguments = ", ".join(f"{x}{k}" for x in ("target", "source", *names))
        calls.append(f"    reorder<{W}>(tile, t, {arguments});")
    return "\n".join(
        [
            REORDER_FUNCTION,
            "// reorder images and filters",
            'extern "C" __global__ void __launch_bounds__(256) kernel(\n    ' + ",\n    ".join(parameters) + ")",
            "{",
            "    __shared__ Element tile[TILE][TILE + 1];",
            "    Index t = blockIdx.x;",
            *calls,
            "}",
            "",
        ]
    )


class CudaReorderer(KernelLauncher):
    """The kernel that reorders images and filters between CHWN and another layout."""

    takes_short_rows = True

    def reorder(self, shape: ImageShape, chwn: NativeArray, nhwc: NativeArray, to_chwn: bool) -> None:
        """Copy images from CHWN to another layout, or back with ``to_chwn``."""
        self.reorder_all([(shape, chwn, nhwc, to_chwn)])

    def reorder_all(self, copies: Sequence[tuple[ImageShape, NativeArray, NativeArray, bool]]) -> None:
        """Copy several images or filters, those of a dtype in one launch."""
        by_dtype: dict[str, list[Any]] = {}
        for copy in copies:
            if math.prod(copy[0]):
                by_dtype.setdefault(str(copy[1].dtype), []).append(copy)
        for dtype, group in by_dtype.items():
            for first in range(0, len(group), MAX_COPIES):
                self._launch_reorder(dtype, group[first : first + MAX_COPIES])

    def _launch_reorder(self, dtype: str, copies: Sequence[tuple[ImageShape, NativeArray, NativeArray, bool]]) -> None:
        tiles, widths, arguments = 0, [], list[Any]()
        for (channels, pixels, batch_size), chwn, nhwc, to_chwn in copies:
            tiles += -(-channels * pixels // TILE_SIZE) * -(-batch_size // TILE_SIZE)
            pair = (chwn, nhwc) if to_chwn else (nhwc, chwn)
            V = 16 // chwn.dtype.itemsize
            while (
                batch_size % V
                or channels * pixels % V
                or any(self.runtime.address_and_strides(x)[0] % (V * x.itemsize) for x in pair)
            ):
                V //= 2
            widths.append(V)
            arguments += *pair, channels, pixels, batch_size, int(to_chwn)
        self.launch(reorder_kernel(tuple(widths)), dtype, (min(tiles, MAX_BLOCKS), 1), arguments)

    def image_layout(self, dtypes: Collection[str]) -> Layout:
        """Return the layout of cuDNN: NCHW where it uses no tensor cores, for float32 without TF32."""
        return Layout.NCHW if {*dtypes} == {"float32"} and not self.runtime.driver.tf32 else Layout.NHWC

    def reordered_operand(self, purpose: str, x: NativeArray, layout: Layout) -> NativeArray:
        """Return flat images in a layout, copied to a workspace unless they are."""
        if isinstance(x, ReorderedImages):
            return x.flat
        copy = self.get_workspace(purpose, (x.size,), x)
        self.reorder(image_shape(x.shape, layout), x, copy, False)
        return copy


# --- cuDNN: one cudnn-frontend graph and execution plan per geometry and layout ---

MAX_CACHED_PLANS = 4096  # of a thread
MAX_AUTOTUNE_PLANS = 8  # plans that are timed, which takes milliseconds each in the first call
CUDNN_WORKSPACE_BYTES = 1 << 30  # the workspace limit of a plan, unless NEONLITE_WORKSPACE is set
CUDNN_DATA_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}
# operation -> the frontend's parameter names of its two operands
OPERAND_NAMES = {"fprop": ("image", "weight"), "dgrad": ("loss", "filter"), "wgrad": ("image", "loss")}
# operation -> which shape its operands and its result have: i(nputs), f(ilters), o(utputs)
OPERAND_DIMS = {"fprop": "ifo", "dgrad": "ofi", "wgrad": "iof"}


class PlanError(RuntimeError):
    """cuDNN cannot run a plan that it built."""


class CudnnPlan(NamedTuple):
    """A built graph: the ids of its tensors, in the order of the arrays, and the index of the plan that runs."""

    graph: Any
    tensors: list[int]
    plan_index: int | None  # None: chosen by cuDNN's heuristics
    workspace_bytes: int
    key: tuple[object, ...] = ()  # in the plan cache


class AttentionShape(NamedTuple):
    """What determines attention: the shapes (N, heads, steps, features) and strides of Q, K, V and the result.

    Of its derivative, the tensors are Q, K, V, the error of the result, the result, and the gradients of Q, K and V.
    """

    dtype: str
    causal: bool
    tensors: tuple[tuple[Shape, Shape], ...]

    @property
    def is_backward(self) -> bool:
        """Whether it is the derivative."""
        return len(self.tensors) > 4


class CudnnHandle:
    """A handle, the stream that it is set to, and the plans that were built with it."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.stream: int | None = None
        self.plans = Cache(MAX_CACHED_PLANS, owner=self)  # all backends use them, so no closing empties it


class Cudnn:
    """The cuDNN frontend, with one handle and one plan cache per thread. All backends of a GPU share it.

    ``measure_seconds(f)`` returns the GPU time of a function's launches. A handle is an address up to frontend 1.27 and
    an object from 1.28 on; this class does not depend on its type.
    """

    def __init__(
        self, frontend: ModuleType, stream: Callable[[], int], measure_seconds: Callable[[Callable[[], None]], float]
    ) -> None:
        self.frontend, self.stream, self.measure_seconds = frontend, stream, measure_seconds
        self.threads = PerThread(lambda: CudnnHandle(frontend.create_handle()))
        self.errors = frontend.cudnnGraphNotSupportedError, RuntimeError  # CUDA and the loader raise RuntimeError
        self.max_bytes = workspace_limit(CUDNN_WORKSPACE_BYTES)
        self.is_autotuned = os.environ.get("NEONLITE_AUTOTUNE") == "1"
        self.engines = read_plan_table(frontend.backend_version())
        self.handle()

    def handle(self) -> Any:
        """Return this thread's handle, set to the current stream."""
        state, stream = self.threads.get(), self.stream()
        if state.stream != stream:
            self.frontend.set_stream(state.handle, stream)
            state.stream = stream
        return state.handle

    def get_plan(
        self,
        operation: str,
        layer: ConvLayer,
        layout: Layout,
        tf32: bool,
        addresses: Callable[[], Sequence[int]],
        allocate_workspace: Callable[[int], int],
        bias: bool = False,
        relu: bool = False,
    ) -> CudnnPlan | None:
        """Return the cached plan of a convolution or derivative, built on first use; None if cuDNN has none.

        ``addresses()`` returns the addresses of two operands, the result and the bias if there is one.
        ``allocate_workspace(n)`` returns the address of n bytes. Both are called only for autotuning.
        """

        def build() -> CudnnPlan:
            if self.is_autotuned and current_capture():
                raise CaptureError("graph capture: cuDNN plans cannot be timed during a capture")
            tuning_addresses = addresses() if self.is_autotuned else None
            return self._build_plan(operation, layer, layout, tf32, tuning_addresses, allocate_workspace, bias, relu)

        key = operation, layer.dtype, *geometry(layer), layout, tf32, bias, relu
        return self._find_plan(key, layer, build)

    def attention_plan(self, shape: AttentionShape) -> CudnnPlan | None:
        """Return the cached plan of attention or its derivative, built on first use; None if cuDNN has none."""
        key = "attention" + "_backward" * shape.is_backward, shape
        return self._find_plan(key, shape, partial(self._build_attention_plan, shape))

    def _find_plan(self, key: tuple[Any, ...], what: object, build: Callable[[], CudnnPlan]) -> CudnnPlan | None:
        """Return a cached plan, or build it; None if cuDNN has none."""
        self.handle()
        plans = self.threads.get().plans
        try:
            return plans[key]
        except KeyError:
            pass
        try:
            plan = build()
        except CaptureError:
            raise
        except self.errors as error:
            self.mark_unsupported(key, what, error)
            return None
        return plans.add(key, plan._replace(key=key))

    def run(self, plan: CudnnPlan, addresses: Sequence[int], workspace: int) -> None:
        """Run a plan on arrays in the graph's layout; PlanError if it fails."""
        if (capture := current_capture()) is not None:
            capture.keepalive.append(plan)
        try:
            self.execute(plan, addresses, workspace)
        except self.errors as error:
            raise PlanError(str(error)) from error
        record(self.execute, plan, addresses, workspace)

    def mark_unsupported(self, key: tuple[Any, ...], what: object, error: Exception) -> None:
        """Mark a graph as unsupported, so that matrix products compute its result, and warn."""
        plans = self.threads.get().plans
        plans.add(key, None)
        plans[key] = None  # in place of a plan that failed
        instead = "matrix products are" if isinstance(what, AttentionShape) else "im2col and a matrix product are"
        warn(f"cuDNN cannot compute {key[0]} of {what!r}: {error}\n{instead} used instead.", RuntimeWarning)

    def _build_plan(
        self,
        operation: str,
        layer: ConvLayer,
        layout: Layout,
        tf32: bool,
        addresses: Sequence[int] | None,
        allocate_workspace: Callable[[int], int],
        bias: bool,
        relu: bool,
    ) -> CudnnPlan:
        """Build the graph of a convolution and choose its plan: the fastest if ``addresses`` for timing are given.

        Otherwise, it is that of the plan table if it can be built, or the choice of cuDNN's heuristics.
        """
        frontend, handle = self.frontend, self.handle()
        data_type = getattr(frontend.data_type, CUDNN_DATA_TYPES[layer.dtype])
        compute_type = frontend.data_type.DOUBLE if layer.dtype == "float64" else frontend.data_type.FLOAT
        graph = frontend.pygraph(
            handle=handle, io_data_type=data_type, intermediate_data_type=compute_type, compute_data_type=compute_type
        )
        is_2d = layer.D == layer.T == 1 and not layer.padding[0]  # two spatial axes, else three
        sizes = {"i": layer.dimI, "f": layer.dimF, "o": layer.dimO}
        *operands, result_sizes = (dims_strides(sizes[name], layout, is_2d) for name in OPERAND_DIMS[operation])
        operands += [dims_strides((layer.K, 1, 1, 1, 1), layout, is_2d)] * bias
        first, second, *column = (graph.tensor(dim=dim, stride=stride, data_type=data_type) for dim, stride in operands)
        axes = {
            name: list(sizes[is_2d:])
            for name, sizes in (("padding", layer.padding), ("stride", layer.strides), ("dilation", layer.dilation))
        }
        operand_tensors = dict(zip(OPERAND_NAMES[operation], (first, second), strict=True))
        result = getattr(graph, f"conv_{operation}")(**operand_tensors, **axes)
        if bias:
            result = graph.bias(input=result, bias=column[0])
        if relu:
            result = graph.relu(input=result)
        result.set_output(True).set_dim(result_sizes[0]).set_stride(result_sizes[1]).set_data_type(data_type)
        self._create_plans(graph, *("TENSOR_CORE", "DOWN_CONVERT_INPUTS") * (layer.dtype == "float32" and not tf32))
        tensors = [x.get_uid() for x in (first, second, result, *column)]
        if addresses is not None:
            return self._autotune(graph, tensors, addresses, allocate_workspace)
        engine = self.engines.get(plan_name(operation, layer, layout, tf32, bias, relu))
        for index in range(graph.get_execution_plan_count() if engine else 0):
            with suppress(*self.errors):  # its plan is deselected, or the GPU cannot run it
                if graph.get_plan_name_at_index(index) == engine:
                    return self._build_plan_at(graph, tensors, index)
        graph.build_plans()
        return CudnnPlan(graph, tensors, None, graph.get_workspace_size())

    def _create_plans(self, graph: Any, *excluded: str) -> None:
        """Create the plans of a graph, without those that are nondeterministic, too large or have an excluded note."""
        frontend = self.frontend
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([frontend.heur_mode.A, frontend.heur_mode.FALLBACK])
        notes = "NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION", *excluded
        graph.deselect_numeric_notes([getattr(frontend.numerical_note, name) for name in notes])
        graph.deselect_workspace_greater_than(self.max_bytes)
        graph.check_support()

    def _build_attention_plan(self, shape: AttentionShape) -> CudnnPlan:
        """Build the graph of attention or its derivative, with the choice of cuDNN's heuristics.

        The stats are after the result.
        """
        frontend, (dtype, causal, ((dims, _), *_)) = self.frontend, shape
        data_type, float32 = getattr(frontend.data_type, CUDNN_DATA_TYPES[dtype]), frontend.data_type.FLOAT
        graph = frontend.pygraph(
            handle=self.handle(), io_data_type=data_type, intermediate_data_type=float32, compute_data_type=float32
        )
        of_stats = (*dims[:-1], 1)
        described = [(*tensor, data_type) for tensor in shape.tensors]
        described.insert(5 if shape.is_backward else 4, (of_stats, contiguous_strides(of_stats), float32))
        names = ("q", "k", "v", "dO", "o", "stats") if shape.is_backward else ("q", "k", "v")
        operands = {
            name: graph.tensor(dim=list(dim), stride=list(stride), data_type=kind)
            for name, (dim, stride, kind) in zip(names, described, strict=False)
        }
        options = {"attn_scale": dims[-1] ** -0.5, "use_causal_mask": causal}
        if shape.is_backward:
            results = graph.sdpa_backward(**operands, **options, use_deterministic_algorithm=True)
        else:
            results = graph.sdpa(**operands, **options, generate_stats=True)
        for x, (dim, stride, kind) in zip(results, described[len(names) :], strict=True):
            x.set_output(True).set_dim(list(dim)).set_stride(list(stride)).set_data_type(kind)
        self._create_plans(graph)
        graph.build_plans()
        uids = [x.get_uid() for x in (*operands.values(), *results)]
        return CudnnPlan(graph, uids, None, graph.get_workspace_size())

    def _autotune(
        self, graph: Any, tensors: list[int], addresses: Sequence[int], allocate_workspace: Callable[[int], int]
    ) -> CudnnPlan:
        """Time the first plans that can be built, and return the fastest. Each run overwrites the result array.

        The plan count of the frontend includes deselected plans, which cannot be built.
        """
        timed: list[tuple[float, int, CudnnPlan]] = []
        for index in range(graph.get_execution_plan_count()):
            if len(timed) == MAX_AUTOTUNE_PLANS:
                break
            try:
                plan = self._build_plan_at(graph, tensors, index)
                once = partial(self.execute, plan, addresses, allocate_workspace(plan.workspace_bytes))
                timed.append((self.measure_seconds(once), index, plan))
            except (*self.errors, MemoryError):  # try the next plan
                continue
        if not timed:
            raise self.frontend.cudnnGraphNotSupportedError("none of its plans can be built")
        return min(timed)[2]

    def _build_plan_at(self, graph: Any, tensors: list[int], index: int) -> CudnnPlan:
        """Build one of the plans of a graph; errors are the frontend's."""
        graph.build_plan_at_index(index)
        return CudnnPlan(graph, tensors, index, graph.get_workspace_size_plan_at_index(index))

    def execute(self, plan: CudnnPlan, addresses: Sequence[int], workspace: int) -> None:
        """Run a plan; errors are the frontend's."""
        tensor_addresses, handle = dict(zip(plan.tensors, addresses, strict=True)), self.handle()
        if plan.plan_index is None:
            plan.graph.execute(tensor_addresses, workspace, handle=handle)
        else:
            plan.graph.execute_plan_at_index(tensor_addresses, workspace, plan.plan_index, handle=handle)


def geometry(layer: ConvLayer) -> tuple[Any, ...]:
    """Return what determines a convolution, besides its dtype."""
    return layer.dimI, layer.dimF, layer.dimO, layer.padding, layer.strides, layer.dilation


def plan_name(operation: str, layer: ConvLayer, layout: Layout, tf32: bool, bias: bool, relu: bool) -> str:
    """Return the name of a convolution or derivative in a plan table."""
    sizes = ("x".join(map(str, x)) for x in geometry(layer))
    dtype = "TF32" if tf32 and layer.dtype == "float32" else layer.dtype
    return " ".join([operation + "+bias" * bias + "+relu" * relu, dtype, layout.value, *sizes])


def read_plan_table(version: int) -> dict[str, str]:
    """Return the plan table of the file ``NEONLITE_PLANS``, {plan name: engine}; empty if it is not set.

    ``version``: that of cuDNN. A table of another version, or one that cannot be read, is empty, with a warning.
    """
    path = os.environ.get("NEONLITE_PLANS")
    if not path:
        return {}
    try:
        table = json.loads(Path(path).read_text())
        if table["cudnn"] != version:
            raise ValueError(f"it was measured with cuDNN {table['cudnn']}, and {version} is loaded")
        return {str(name): str(engine) for name, engine in table["plans"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        warn(f"the plan table NEONLITE_PLANS={path} is not used: {error!r}", RuntimeWarning)
        return {}


def with_free_strides(shape: Shape, strides: Sequence[int]) -> tuple[Shape, Shape]:
    """Return a shape and strides, in which those of axes of one element, which are arbitrary, are set."""
    found = list(strides)
    for n in range(len(shape) - 2, -1, -1):
        if shape[n] == 1:
            found[n] = found[n + 1] * shape[n + 1]
    return shape, tuple(found)


def attention_tensors(shapes: Sequence[Shape]) -> list[tuple[Shape, Shape]]:
    """Return the shapes (N, H, T, d) and strides of Q, K, V and the result, for contiguous operands."""
    if len(shapes) == 3:
        q, k, v = [
            (1,) * (4 - len(shape)) + (math.prod(shape[:-3]),) * (len(shape) > 3) + shape[-3:] for shape in shapes
        ]
        return [with_free_strides(shape, contiguous_strides(shape)) for shape in (q, k, v, q[:-1] + v[-1:])]
    (T, N, _, H, d), *_ = shapes
    part, whole = (with_free_strides((N, H, T, d), (count * H * d, d, count * N * H * d, 1)) for count in (3, 1))
    return [part] * 3 + [whole]


def dims_strides(shape: Sequence[int], layout: Layout, is_2d: bool) -> tuple[list[int], list[int]]:
    """Return the dimensions and strides, as (N, C, D, H, W), of images (C, D, H, W, N) in a layout.

    ``is_2d``: leave out D.
    """
    axes, strides = layout.axes(5), [1] * 5
    for inner, outer in pairwise(reversed(axes)):
        strides[outer] = strides[inner] * shape[inner]
    order = [a for a in Layout.NCHW.axes(5) if not (is_2d and a == 1)]
    return [shape[a] for a in order], [strides[a] for a in order]


class CudnnConvolution(CudaConvolution, CudaReorderer):
    """Convolution by cuDNN if it is available, else by im2col."""

    supports_fused_relu = True

    def computes(self, op: str, layer: Any) -> bool:
        """Return whether cuDNN, or a kernel for pooling, computes an op of the table for images."""
        if "pool" in op:
            return self.has_cudnn and layer.is_channelwise
        return self.has_cudnn and layer.has_equal_padding and layer.groups == 1

    def reorders_filters(self, layer: ConvLayer, layout: Layout) -> bool:
        """Return whether cuDNN computes a convolution: filters of one pixel in NHWC are the matrix of a product."""
        return self.computes("conv", layer) and not (layout is Layout.NHWC and is_pointwise(layer))

    @property
    def has_cudnn(self) -> bool:
        """Whether cuDNN is available."""
        return self.runtime.driver.cudnn is not None

    def conv_fprop(
        self, layer: ConvLayer, i: NativeArray, f: NativeArray, o: NativeArray, alpha: float, beta: float
    ) -> None:
        if not self._convolve("fprop", layer, (i, f), o, alpha, beta):
            with self._chwn_result(o) as out:
                self._run_library(super().conv_fprop, layer, as_chwn(i), as_chwn(f), out, alpha, beta)

    def conv_bias(
        self, layer: ConvLayer, i: NativeArray, f: NativeArray, bias: NativeArray, o: NativeArray, relu: bool
    ) -> None:
        if not self.try_conv_bias(layer, i, f, o, bias, relu):
            self.conv_fprop(layer, i, f, o, 1.0, 0.0)
            self._run_library(self._add_bias, chwn_view(o), bias, relu)

    def _add_bias(self, out: NativeArray, bias: NativeArray, relu: bool) -> None:
        """Add a bias (K,) to images (K, M, P, Q, N), then compute max(., 0) with ``relu``."""
        total = out + bias[:, None, None, None, None]
        out[...] = self.xp.maximum(total, self.xp.zeros_like(total)) if relu else total

    def try_conv_bias(
        self, layer: ConvLayer, i: NativeArray, f: NativeArray, o: NativeArray, bias: NativeArray, relu: bool
    ) -> bool:
        return self._convolve("fprop", layer, (i, f), o, 1.0, 0.0, bias, relu)

    def conv_bprop(
        self, layer: ConvLayer, f: NativeArray, e: NativeArray, d: NativeArray, alpha: float, beta: float
    ) -> None:
        if not self._convolve("dgrad", layer, (e, f), d, alpha, beta):
            with self._chwn_result(d) as out:
                self._run_library(super().conv_bprop, layer, as_chwn(f), as_chwn(e), out, alpha, beta)

    def conv_update(
        self, layer: ConvLayer, i: NativeArray, e: NativeArray, u: NativeArray, alpha: float, beta: float
    ) -> None:
        if not self._convolve("wgrad", layer, (i, e), u, alpha, beta):
            with self._chwn_result(u) as out:
                self._run_library(super().conv_update, layer, as_chwn(i), as_chwn(e), out, alpha, beta)

    def _run_library(self, f: Callable[..., None], *arguments: object) -> None:
        """Call a function that runs array-library operations."""
        record(None)
        self.runtime.driver.run(f, *arguments)

    @contextmanager
    def _chwn_result(self, out: NativeArray) -> Iterator[NativeArray]:
        """Yield an array for a result in CHWN, which is reordered at the end if the result is in another layout."""
        if not isinstance(out, ReorderedImages):
            yield out
            return
        array = self.get_workspace("CHWN result", out.array.shape, out.memory)
        yield array
        self.reorder(image_shape(array.shape, out.layout), array, out.flat, to_chwn=False)

    def _convolve(
        self,
        operation: str,
        layer: ConvLayer,
        operands: Sequence[NativeArray],
        out: NativeArray,
        alpha: float,
        beta: float,
        bias: NativeArray = None,
        relu: bool = False,
    ) -> bool:
        """Compute ``out = alpha conv + beta out`` by cuDNN and return True, or return False where it cannot."""
        if not self.has_cudnn or not layer.has_equal_padding:
            return False
        run = partial(self._run_cudnn, operation, layer, operands, out, alpha, beta, bias, relu)
        if current_capture() or is_recording():
            return run()
        address_of = self.runtime.address_and_strides
        memory = [
            (address_of(x.memory), x.layout) if isinstance(x, ReorderedImages) else address_of(x)
            for x in (*operands, out, *(() if bias is None else (bias,)))
        ]
        key = operation, layer.dtype, *geometry(layer), self.runtime.driver.tf32, alpha, beta, relu, *memory
        tracker, results = self.runtime.memory_tracker, list[bool]()
        repeat_launches(tracker, tracker.thread_cache, key, lambda: results.append(run()))
        return results[0] if results else True

    def _run_cudnn(
        self,
        operation: str,
        layer: ConvLayer,
        operands: Sequence[NativeArray],
        out: NativeArray,
        alpha: float,
        beta: float,
        bias: NativeArray,
        relu: bool,
    ) -> bool:
        """Convolve as ``_convolve`` does, without cached launches."""
        if is_pointwise(layer) and not isinstance(out if operation == "wgrad" else operands[1], ReorderedImages):
            is_computed = bias is None and self._convolve_pointwise(operation, layer, operands, out, alpha, beta)
            if not is_computed:
                record(None)
            return is_computed
        driver: Any = self.runtime.driver
        array, is_plain = chwn_view(out), alpha == 1 and beta == 0
        layouts = [x.layout for x in (*operands, out) if isinstance(x, ReorderedImages)]
        layout = layouts[0] if layouts else self.image_layout({layer.dtype})

        @cache
        def prepare_arrays() -> list[NativeArray]:
            """Return the operands and the buffer of the result in the layout."""
            arrays, copies = list[NativeArray](), []
            for n, x in enumerate(operands):
                if isinstance(x, ReorderedImages):
                    arrays.append(x.flat)
                else:
                    arrays.append(self.get_workspace(f"cudnn {n}", (x.size,), x))
                    copies.append((image_shape(x.shape, layout), x, arrays[-1], False))
            self.reorder_all(copies)
            is_reordered = isinstance(out, ReorderedImages)
            return [*arrays, out.flat if is_reordered else self.get_workspace("cudnn result", (array.size,), array)]

        def addresses() -> list[int]:
            return [
                self.runtime.address_and_strides(x)[0] for x in (*prepare_arrays(), *(() if bias is None else (bias,)))
            ]

        plan = driver.cudnn.get_plan(
            operation, layer, layout, driver.tf32, addresses, self._workspace_address, bias is not None, relu
        )
        if plan is None:
            record(None)
            return False
        if not self._run_plan(plan, addresses(), layer):
            return False
        if isinstance(out, ReorderedImages):
            return True
        result = array if is_plain else self.get_workspace("convolved", array.shape, array)
        self.reorder(image_shape(array.shape, layout), result, prepare_arrays()[-1], to_chwn=True)
        if not is_plain:
            self._run_library(self._scale_and_add, result, array, alpha, beta)
        return True

    def _run_plan(self, plan: CudnnPlan, addresses: Sequence[int], what: object) -> bool:
        """Run a plan and return True; False, with a warning, where it fails."""
        driver: Any = self.runtime.driver
        try:
            driver.run(driver.cudnn.run, plan, addresses, self._workspace_address(plan.workspace_bytes))
        except PlanError as error:
            if current_capture():
                raise CaptureError(f"cuDNN: {error}") from error
            driver.cudnn.mark_unsupported(plan.key, what, error)
            record(None)
            return False
        return True

    def computes_attention(self, shapes: Sequence[Shape], dtype: str, causal: bool) -> bool:
        """Return whether cuDNN has plans for attention and its derivative: of 16-bit floats, and depths such as 64."""
        if not (self.has_cudnn and dtype in HALF_DTYPES):
            return False
        q, k, v, z = attention_tensors(shapes)
        sizes, depths = [math.prod(shape) for shape, _ in (q, k, v, z)], (q[0][-1], v[0][-1])
        if 0 in sizes or q[0][2] == k[0][2] == 1 or any(n % 8 for n in depths):  # one step has no derivative
            return False
        plan = self.runtime.driver.cudnn.attention_plan
        kinds = (q, k, v, z), (q, k, v, z, z, q, k, v)
        return all(plan(AttentionShape(dtype, causal, kind)) is not None for kind in kinds)

    def attention(
        self, q: NativeArray, k: NativeArray, v: NativeArray, z: NativeArray, stats: NativeArray, *, causal: bool
    ) -> bool:
        return self._run_attention(causal, [q, k, v, z], stats)

    def attention_backward(
        self,
        dz: NativeArray,
        z: NativeArray,
        q: NativeArray,
        k: NativeArray,
        v: NativeArray,
        stats: NativeArray,
        dq: NativeArray,
        dk: NativeArray,
        dv: NativeArray,
        *,
        causal: bool,
    ) -> bool:
        return self._run_attention(causal, [q, k, v, dz, z], stats, [dq, dk, dv])

    def _run_attention(
        self, causal: bool, arrays: Sequence[NativeArray], stats: NativeArray, gradients: Sequence[NativeArray] = ()
    ) -> bool:
        """Run the plan of attention or its derivative, and return whether it succeeds."""
        located = [(x.shape, *self.runtime.address_and_strides(x)) for x in (*arrays, *gradients)]
        itemsize, driver = arrays[0].dtype.itemsize, self.runtime.driver
        tensors = [with_free_strides(shape, [n // itemsize for n in strides]) for shape, _, strides in located]
        shape, addresses = AttentionShape(str(arrays[0].dtype), causal, tuple(tensors)), [x for _, x, _ in located]
        is_aligned = not any(x % 16 for x in addresses)  # as plans assume
        if not is_aligned or (plan := driver.cudnn.attention_plan(shape)) is None:
            record(None)
            return False
        addresses.insert(len(arrays), self.runtime.address_and_strides(stats)[0])
        return self._run_plan(plan, addresses, shape)

    def _scale_and_add(self, result: NativeArray, out: NativeArray, alpha: float, beta: float) -> None:
        """Compute ``out = alpha result + beta out``."""
        dtype = self.xp.float32 if out.dtype.itemsize == 2 else out.dtype
        value = self.xp.astype(result, dtype) * alpha
        out[...] = value if beta == 0 else value + self.xp.astype(out, dtype) * beta

    def _convolve_pointwise(
        self,
        operation: str,
        layer: ConvLayer,
        operands: Sequence[NativeArray],
        out: NativeArray,
        alpha: float,
        beta: float,
    ) -> bool:
        """Convolve NHWC images with 1x1 filters by one GEMM and return True; False if no operand is in NHWC."""
        if not any(isinstance(x, ReorderedImages) for x in operands):
            return False

        def matrix(images: Any, channels: int) -> Any:
            return self.runtime.reshape(images, (images.size // channels, channels))

        if operation == "wgrad":
            i, e = (self.reordered_operand(f"cudnn {n}", x, Layout.NHWC) for n, x in enumerate(operands))
            self.gemm(matrix(i, layer.C).T, matrix(e, layer.K), matrix(out, layer.K), alpha, beta)
            return True
        if not isinstance(out, ReorderedImages):
            return False
        images, filters = self.reordered_operand("cudnn 0", operands[0], Layout.NHWC), matrix(operands[1], layer.K)
        left, right = (layer.C, layer.K) if operation == "fprop" else (layer.K, layer.C)
        self.gemm(matrix(images, left), filters if operation == "fprop" else filters.T, matrix(out.flat, right))
        return True

    def _workspace_address(self, nbytes: int) -> int:
        """Return the address of a workspace of ``nbytes`` bytes."""
        address: int = self.runtime.address_and_strides(
            self.get_workspace("cudnn", (nbytes,), self.xp.empty(0, dtype=self.xp.uint8))
        )[0]
        return address


def load_frontend() -> ModuleType | None:
    """Return NVIDIA's cudnn-frontend; None where it is not installed, or with ``NEONLITE_CUDNN=0``."""
    if os.environ.get("NEONLITE_CUDNN") == "0":
        return None
    for name in ("cudart", "nvrtc", "cublasLt", "cudnn"):  # the frontend opens these by their bare names
        libraries.load_library(name)
    try:
        return import_module("cudnn")
    except ImportError:
        return None
