"""The GPU runtimes: their common base, primitives and pooling, and the 'gpu' runtime of CuPy arrays on NVIDIA GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, TypeVar

from neonlite.backend.concurrency import Cache, parallel_for
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.primitives.geometry import Layout, LRNLayer, PoolLayer, ReorderedImages, as_chwn
from neonlite.backend.random import RandomStreams, mask_threshold
from neonlite.backend.runtimes.base import Runtime
from neonlite.backend.runtimes.cuda import kernels, libraries as libraries
from neonlite.backend.runtimes.cuda.codegen import MAX_BLOCKS, PREAMBLE, THREADS_PER_BLOCK
from neonlite.backend.runtimes.cuda.convolution import CudaReorderer, CudnnConvolution
from neonlite.backend.runtimes.cuda.executor import SPAWN_HINT, CudaExecutor, CuPyDriver, Driver
from neonlite.backend.runtimes.cuda.graphs import CudaStreams, GraphCache, buffer_stream, check_transfer
from neonlite.backend.runtimes.cuda.libraries import MAX_CACHED_KERNELS, Kernel
from neonlite.backend.runtimes.cuda.op_templates import substitute
from neonlite.backend.tensor import Tensor
from neonlite.typing import FLOAT_DTYPES, BackendBase, NativeArray, NumPyArray, has_bfloat16

# --- pooling and local response normalization: gather kernels, deterministic in both passes ---
#
# In the backward pass each pixel gathers the errors of the windows that cover it. No thread accumulates in memory that
# another thread writes, so results always have the same bits.

POOL_AXES = "cdhw"
AXIS_PARAMETERS = ", ".join(
    f"Index {a}_size, Index {a}_count, Index {a}_window, Index {a}_stride, Index {a}_pad" for a in POOL_AXES
)

WINDOW_HELPERS = """
enum { MAX, AVG, L2, SUM };
constexpr int op = {OP};
// An axis: its size, the number of windows, their size and stride, and the padding.
struct Axis { Index size, count, window, stride, pad; };
struct Span { Index start, first, end; };  // the start of a window, which may be in the padding, and its cells
__device__ inline Span window_cells(Axis a, Index k)
{
    const Index start = k * a.stride - a.pad, end = start + a.window;
    return {start, start > 0 ? start : 0, end < a.size ? end : a.size};
}
__device__ inline Index cell_count(Span x) { return x.end - x.first; }
__device__ inline Span covering_windows(Axis a, Index x)  // the windows that cover a cell
{
    const Index from = x + a.pad - a.window, last = (x + a.pad) / a.stride;
    return {0, from < 0 ? 0 : from / a.stride + 1, last < a.count ? last + 1 : a.count};
}
"""

AXIS_STRUCTS = "    const Axis " + ", ".join(
    f"{a.upper()} = {{{a}_size, {a}_count, {a}_window, {a}_stride, {a}_pad}}" for a in POOL_AXES
)

POOL_FPROP = """{windows}
// o = pool(i) + beta o, and argmax = index of the first maximum in its window. A thread pools V images.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Out* o, ArgIndex* argmax, const Element* i, double beta, Index size, Index N, {sizes})
{
{axes};
    for (GRID_STRIDE(at, size)) {
        const Index n = at % N, window = at / N;
        const Index q = window % W.count, p = window / W.count % H.count, km = window / W.count / H.count;
        const Span c = window_cells(C, km / D.count), d = window_cells(D, km % D.count);
        const Span h = window_cells(H, p), w = window_cells(W, q);
        Compute value[V];
        Index index[V];
        for (int v = 0; v < V; ++v) {
            value[v] = op == MAX ? -(Compute)INF : 0;
            index[v] = (((c.first - c.start) * D.window + d.first - d.start) * H.window + h.first - h.start) * W.window
                       + w.first - w.start;
        }
        for (Index z = c.first; z < c.end; ++z)
            for (Index t = d.first; t < d.end; ++t)
                for (Index y = h.first; y < h.end; ++y)
                    for (Index x = w.first; x < w.end; ++x) {
                        const Index tap = (((z - c.start) * D.window + t - d.start) * H.window + y - h.start) * W.window
                                          + x - w.start;
                        const Pack<Element, V> xs = load<V>(i + (((z * D.size + t) * H.size + y) * W.size + x) * N + n);
                        #pragma unroll
                        for (int v = 0; v < V; ++v) {
                            const Compute x_value = to_compute(xs.at[v]);
                            if (op != MAX)
                                value[v] += op == L2 ? x_value * x_value : x_value;
                            else if (x_value > value[v] || (x_value != x_value && value[v] == value[v]))  // or NaN
                                value[v] = x_value, index[v] = tap;
                        }
                    }
        const Compute count = cell_count(c) * cell_count(d) * cell_count(h) * cell_count(w);
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const Compute total = op == AVG ? value[v] / count : value[v];
            const Compute pooled = op == L2 ? (Compute)sqrt(value[v]) : total;
            if (o) store(o[at + v], beta == 0 ? pooled : pooled + (Compute)beta * to_compute(o[at + v]));
            if (argmax) argmax[at + v] = index[v];
        }
    }
}
"""

POOL_BPROP = """{windows}
// d = alpha dE/di + beta d. A thread gathers the errors e of the windows that cover a pixel, for V images.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* d, const ArgIndex* argmax, const Compute* norms, const Element* i, const Element* e,
    double alpha, double beta, Index size, Index N, {sizes})
{
{axes};
    for (GRID_STRIDE(at, size)) {
        const Index n = at % N, cell = at / N, x = cell % W.size, y = cell / W.size % H.size;
        const Index t = cell / W.size / H.size % D.size, z = cell / W.size / H.size / D.size;
        const Span ks = covering_windows(C, z), ms = covering_windows(D, t);
        const Span ps = covering_windows(H, y), qs = covering_windows(W, x);
        Compute total[V];
        for (int v = 0; v < V; ++v) total[v] = 0;
        for (Index k = ks.first; k < ks.end; ++k)
            for (Index m = ms.first; m < ms.end; ++m)
                for (Index p = ps.first; p < ps.end; ++p)
                    for (Index q = qs.first; q < qs.end; ++q) {
                        const Span c = window_cells(C, k), r = window_cells(D, m);
                        const Span h = window_cells(H, p), w = window_cells(W, q);
                        const Index tap = (((z - c.start) * D.window + t - r.start) * H.window + y - h.start) * W.window
                                          + x - w.start;
                        const Compute count = cell_count(c) * cell_count(r) * cell_count(h) * cell_count(w);
                        const Index from = (((k * D.count + m) * H.count + p) * W.count + q) * N + n;
                        const Pack<Element, V> es = load<V>(e + from);
                        #pragma unroll
                        for (int v = 0; v < V; ++v) {
                            const Compute error = to_compute(es.at[v]);
                            if (op == MAX)
                                total[v] += argmax[from + v] == (ArgIndex)tap ? error : 0;
                            else if (op == AVG || op == SUM)
                                total[v] += op == AVG ? error / count : error;
                            else if (norms[from + v] != 0)
                                total[v] += error / norms[from + v] * to_compute(i[at + v]);
                        }
                    }
        #pragma unroll
        for (int v = 0; v < V; ++v)
            store(d[at + v], (Compute)alpha * total[v] + (beta == 0 ? 0 : (Compute)beta * to_compute(d[at + v])));
    }
}
"""

LRN_FPROP = """
// denom = 1 + a / J sum i^2 over the J channels around each one, o = alpha i denom^-b + beta o. S is the stride of the
// channel axis: the size of a channel in CHWN, 1 in NHWC.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* o, Element* denom, const Element* i, double alpha, double beta, double scale, double b,
    Index size, Index S, Index C, Index J)
{
    for (GRID_STRIDE(at, size)) {
        const Index c = at / S % C, first = c - J / 2;
        Compute sum[V];
        for (int v = 0; v < V; ++v) sum[v] = 0;
        for (Index z = first < 0 ? 0 : first; z < C && z < first + J; ++z) {
            const Pack<Element, V> xs = load<V>(i + at + (z - c) * S);
            #pragma unroll
            for (int v = 0; v < V; ++v) sum[v] += to_compute(xs.at[v]) * to_compute(xs.at[v]);
        }
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const Compute norm = sum[v] * (Compute)scale + 1;
            const Compute result = to_compute(i[at + v]) * (Compute)pow(norm, -(Compute)b) * (Compute)alpha;
            store(denom[at + v], norm);
            store(o[at + v], beta == 0 ? result : result + (Compute)beta * to_compute(o[at + v]));
        }
    }
}
"""

LRN_BPROP = """
// d = alpha (n - 2 a b / J i sum n i / denom) + beta d, n = e denom^-b; the sum is over the neighboring channels.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* d, const Element* i, const Element* e, const Element* denom, double alpha, double beta, double scale,
    double b, Index size, Index S, Index C, Index J)
{
    for (GRID_STRIDE(at, size)) {
        const Index c = at / S % C, last = c + J / 2;
        Compute neighbor_sum[V], own_term[V];
        for (int v = 0; v < V; ++v) neighbor_sum[v] = 0;
        for (Index z = last - J + 1 < 0 ? 0 : last - J + 1; z < C && z <= last; ++z) {
            const Index to = at + (z - c) * S;
            const Pack<Element, V> xs = load<V>(i + to), es = load<V>(e + to), ds = load<V>(denom + to);
            #pragma unroll
            for (int v = 0; v < V; ++v) {
                const Compute norm = to_compute(ds.at[v]), n = to_compute(es.at[v]) * (Compute)pow(norm, -(Compute)b);
                neighbor_sum[v] += n * to_compute(xs.at[v]) / norm;
                if (z == c) own_term[v] = n;
            }
        }
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const Compute term = to_compute(i[at + v]) * neighbor_sum[v] * (Compute)scale;
            const Compute error = (own_term[v] - term) * (Compute)alpha;
            store(d[at + v], beta == 0 ? error : error + (Compute)beta * to_compute(d[at + v]));
        }
    }
}
"""

POOL_FPROP_SOURCES, POOL_BPROP_SOURCES = (
    {
        op: substitute(text, windows=WINDOW_HELPERS, sizes=AXIS_PARAMETERS, axes=AXIS_STRUCTS, OP=op.upper())
        for op in ("max", "avg", "l2", "sum")
    }
    for text in (POOL_FPROP, POOL_BPROP)
)


class CudaPooling(CudaReorderer):
    """Pooling, and normalization over neighboring channels, of images in CHWN, NHWC or NCHW."""

    def pool_fprop(self, layer: PoolLayer, i: NativeArray, o: NativeArray, argmax: NativeArray, beta: float) -> None:
        """Pool images into ``o``, which may have a larger float dtype, or into ``argmax`` alone."""
        if isinstance(o, ReorderedImages):
            indices = None if argmax is None else argmax.flat
            self._pool_fprop(layer, self.reordered_operand("images", i, o.layout), o.flat, indices, 0.0, o.layout)
        else:
            self._pool_fprop(layer, as_chwn(i), o, argmax, beta)

    def _pool_fprop(
        self,
        layer: PoolLayer,
        i: NativeArray,
        o: NativeArray,
        argmax: NativeArray,
        beta: float,
        layout: Layout | None = None,
    ) -> None:
        inner_size, *sizes = window_geometry(layer, layout)
        arguments = [o, argmax, i, beta, layer.sizeO, inner_size, *sizes]
        types = {
            "Out": str(i.dtype if o is None else o.dtype),
            "ArgIndex": str("int32" if argmax is None else argmax.dtype),
        }
        self.launch_elementwise(POOL_FPROP_SOURCES[layer.op], i, layer.sizeO, inner_size, arguments, **types)

    def pool_bprop(
        self,
        layer: PoolLayer,
        i: NativeArray,
        e: NativeArray,
        d: NativeArray,
        argmax: NativeArray,
        alpha: float,
        beta: float,
    ) -> None:
        if isinstance(d, ReorderedImages):
            i, argmax = (None if x is None else x.flat for x in (i, argmax))
            self._pool_bprop(
                layer, i, self.reordered_operand("errors", e, d.layout), d.flat, argmax, 1.0, 0.0, d.layout
            )
        else:
            i, e, argmax = as_chwn(i) if layer.op in ("max", "l2") else None, as_chwn(e), as_chwn(argmax)
            self._pool_bprop(layer, i, e, d, argmax, alpha, beta)

    def _pool_bprop(
        self,
        layer: PoolLayer,
        i: NativeArray,
        e: NativeArray,
        d: NativeArray,
        argmax: NativeArray,
        alpha: float,
        beta: float,
        layout: Layout | None = None,
    ) -> None:
        norms, dtype = None, e.dtype if e.dtype.itemsize > 2 else self.xp.float32
        if layer.op == "max" and argmax is None:
            argmax = self.get_workspace("argmax", layer.dimO, self.xp.empty(0, dtype=self.xp.int32))
            self._pool_fprop(layer, i, None, argmax, 0.0)
        elif layer.op == "l2":
            norms = self.get_workspace("norms", layer.dimO, self.xp.empty(0, dtype=dtype))
            self._pool_fprop(layer, i, norms, None, 0.0, layout)
        inner_size, *sizes = window_geometry(layer, layout)
        argmax_dtype = str("int32" if argmax is None else argmax.dtype)
        arguments = [d, argmax, norms, i, e, alpha, beta, layer.sizeI, inner_size, *sizes]
        self.launch_elementwise(
            POOL_BPROP_SOURCES[layer.op], d, layer.sizeI, inner_size, arguments, ArgIndex=argmax_dtype
        )

    def lrn_fprop(
        self,
        layer: LRNLayer,
        i: NativeArray,
        o: NativeArray,
        denom: NativeArray,
        alpha: float,
        beta: float,
        a: float,
        b: float,
    ) -> None:
        S = layer.sizeI // layer.C
        self.launch_elementwise(
            LRN_FPROP, o, layer.sizeI, S, [o, denom, i, alpha, beta, a / layer.J, b, layer.sizeI, S, layer.C, layer.J]
        )

    def lrn_bprop(
        self,
        layer: LRNLayer,
        i: NativeArray,
        e: NativeArray,
        d: NativeArray,
        denom: NativeArray,
        alpha: float,
        beta: float,
        a: float,
        b: float,
    ) -> None:
        S = layer.sizeI // layer.C
        sizes = [layer.sizeI, S, layer.C, layer.J]
        self.launch_elementwise(
            LRN_BPROP, d, layer.sizeI, S, [d, i, e, denom, alpha, beta, 2 * a * b / layer.J, b, *sizes]
        )


def window_geometry(layer: PoolLayer, layout: Layout | None) -> list[int]:
    """Return the size of the innermost axis, then size, number of windows, window, stride and padding of the others.

    In CHWN the others are C, D, H and W. In NHWC the first of them is N, and in NCHW N and C merged, without windows.
    """
    inner_size = {None: layer.N, Layout.NHWC: layer.C, Layout.NCHW: 1}[layout]
    axes = list(zip(layer.dimI, layer.dimO, layer.JTRS, layer.strides, layer.padding, strict=False))
    if layout is not None:
        outer_size = layer.N * layer.C // inner_size
        axes[0] = outer_size, outer_size, 1, 1, 0
    return [inner_size, *(n for sizes in axes for n in sizes)]


# --- the primitives ---


class CudaPrimitives(CudnnConvolution, CudaPooling, kernels.CudaScatter):
    """Primitives on a GPU. Half-precision operands are computed in float32 and rounded once."""


def install_primitives(runtime: CudaRuntime) -> None:
    """Set a runtime's primitives: those of the GPU, or the reference primitives if kernels are disabled."""
    runtime.primitives, runtime.supports_half = (
        (CudaPrimitives, True) if kernels.are_kernels_enabled() else (ReferencePrimitives, False)
    )
    runtime.dtypes += ("bfloat16",) * has_bfloat16()


# --- the GPU runtimes: their common base, and the 'gpu' runtime of CuPy arrays on an NVIDIA GPU ---

T = TypeVar("T")
P = ParamSpec("P")
CudaRuntimeT = TypeVar("CudaRuntimeT", bound="CudaRuntime")


def translate_errors(method: Callable[Concatenate[CudaRuntimeT, P], T]) -> Callable[Concatenate[CudaRuntimeT, P], T]:
    """Decorate a runtime method so that known library errors are translated."""

    @wraps(method)
    def wrapper(self: CudaRuntimeT, /, *arguments: P.args, **options: P.kwargs) -> T:
        try:
            return method(self, *arguments, **options)
        except Exception as error:
            if (cause := self.translate_error(error)) is error:
                raise
            raise cause from error

    return wrapper


class CudaRuntime(Runtime):
    """Base of the GPU runtimes: generated kernels, CUDA graphs and bounds checks, by the runtime's driver.

    A subclass implements ``copy_to_device`` and ``copy_to_host``. During a graph capture, methods
    that copy between host and GPU raise CaptureError.
    """

    executor: Any = CudaExecutor
    has_device_memory = True
    driver: Driver

    def __init__(self, driver: Driver, device_id: int = 0) -> None:
        super().__init__(device_id)
        self.driver = driver
        self.bounds_checker = kernels.BoundsChecker(self)
        self.memory_tracker.current_stream = partial(buffer_stream, driver.current_stream)
        self.fill_kernels = Cache(MAX_CACHED_KERNELS, self.memory_tracker)  # compiled, by source
        install_primitives(self)

    def copy_to_device(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to the GPU."""
        raise NotImplementedError

    def copy_to_host(self, array: NativeArray) -> NumPyArray:
        """Copy an array to the host without a check for index errors."""
        raise NotImplementedError

    @translate_errors
    def put(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to the GPU."""
        check_transfer()
        return self.copy_to_device(array)

    @translate_errors
    def get(self, array: NativeArray) -> NumPyArray:
        """Copy an array to the host; IndexError if a kernel used an index out of range."""
        check_transfer()
        values = self.copy_to_host(array)
        self.bounds_checker.raise_pending()
        return values

    def write(self, array: NativeArray, values: NumPyArray, dtype: str) -> None:
        """Copy a NumPy array into an array on the GPU."""
        check_transfer()
        super().write(array, values, dtype)

    def allocate(self, nbytes: int) -> NativeArray:
        """Return ``nbytes`` bytes of new memory."""
        return self.driver.allocate(nbytes)

    def fill_mask(self, streams: RandomStreams, out: Tensor, keep: float) -> None:
        """Fill a tensor with a random mask, in a kernel if it is contiguous."""
        if out.is_contiguous:
            self._launch_fill(streams, "masks", out, 8, kernels.FILLED_MASK, {"limit": mask_threshold(keep)})
        else:
            super().fill_mask(streams, out, keep)

    def fill_normal(self, streams: RandomStreams, out: Tensor, mean: float, stdv: float) -> None:
        """Fill a tensor with normally distributed numbers, in a kernel if it is contiguous and of floats."""
        if out.is_contiguous and out.info.dtype in FLOAT_DTYPES:
            scalars: dict[str, int | float] = {"mean": float(mean), "stdv": float(stdv)}
            self._launch_fill(streams, "noise", out, 4, kernels.SCALED_NORMAL, scalars)
        else:
            super().fill_normal(streams, out, mean, stdv)

    def _launch_fill(
        self,
        streams: RandomStreams,
        stream: str,
        out: Tensor,
        values_per_block: int,
        values: str,
        scalars: dict[str, int | float],
    ) -> None:
        """Fill a contiguous tensor with values of the next blocks of a random stream; normal ones before rounding."""
        size = math.prod(out.shape)
        n = -(-size // values_per_block)
        blocks = kernels.reserve_blocks(streams, stream, n)
        address, _ = self.address_and_strides(out._array)
        if n:
            source = kernels.fill_source(values, out.info.dtype, scalars)
            kernel: Kernel = self.fill_kernels.find(source)
            kernel = kernel or self.fill_kernels.add(source, self.driver.compile(f"{PREAMBLE}\n{source}"))
            grid = min(-(-n // THREADS_PER_BLOCK), MAX_BLOCKS), 1
            self.driver.launch(kernel, grid, THREADS_PER_BLOCK, [address, n, size, *blocks, *scalars.values()])

    def random_streams(self, seed: int | None) -> RandomStreams:
        """Return new random streams; without a seed, of a seed from the operating system."""
        return CudaStreams(seed, parallel_for)

    def create_graphs(self, be: BackendBase) -> GraphCache:
        """Return the cache of the backend's CUDA graphs."""
        return GraphCache(be)


class CuPyRuntime(CudaRuntime):
    """CuPy arrays; op-trees run as generated CUDA kernels. CuPy is imported by the constructor.

    Parameters
    ----------
    device_id : int
        The GPU, from 0.

    Raises
    ------
    ImportError
        CuPy is not installed.
    RuntimeError
        CuPy finds no GPU, or no compiler for its kernels.
    """

    name = "gpu"
    driver: CuPyDriver

    def __init__(self, device_id: int = 0) -> None:
        import array_api_compat.cupy as namespace

        self.xp, self.cupy = namespace, import_cupy()
        super().__init__(CuPyDriver(self.cupy, device_id), device_id)
        # CuPy has a current device per thread. Creating a backend selects its device in this thread. Another thread
        # starts on device 0, and a thread that created two backends is on the second one's device; such a thread must
        # call cupy.cuda.Device(n).use() before it works with this backend.
        self.cupy.cuda.Device(device_id).use()

    @property
    def devices(self) -> int:
        """The number of GPUs."""
        return int(self.cupy.cuda.runtime.getDeviceCount())

    def copy_to_device(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to the GPU."""
        return self.cupy.array(array, order="C")

    def copy_to_host(self, array: NativeArray) -> NumPyArray:
        """Copy an array to the host without a check for index errors."""
        values: NumPyArray = self.cupy.asnumpy(array, order="C")
        return values

    def numpy_view(self, array: NativeArray) -> NumPyArray:
        """Raise BufferError: NumPy cannot access GPU memory."""
        check_transfer()
        raise BufferError("expected host memory, got GPU memory, which NumPy cannot access. Copy it with t.get().")

    def address_and_strides(self, array: NativeArray) -> tuple[int, tuple[int, ...]]:
        """Return the address of the first element on the GPU, and the strides in bytes."""
        return array.data.ptr, array.strides

    @translate_errors
    def synchronize(self) -> None:
        """Wait until the GPU has finished all work; IndexError if a kernel used an index out of range."""
        self.cupy.cuda.Device(self.device_id).synchronize()
        self.bounds_checker.raise_pending()

    def mem_get_info(self) -> tuple[int, int]:
        """Return the free bytes of the GPU, including those of CuPy's memory pool, and its total bytes."""
        return mem_get_info(self.cupy, self.device_id)

    def check_device(self) -> None:
        """Raise an error if the process was forked, or this thread's current device is another one."""
        self.driver.check_device()

    def translate_error(self, error: Exception) -> Exception:
        """Return the error of a forked process or a wrong current device if that is the cause, else ``error``."""
        return self.driver.explain_error(error)

    def version_info(self) -> str:
        """Return the versions and the GPUs."""
        return device_info(self.cupy, self.device_id)


def mem_get_info(cupy: ModuleType, device_id: int) -> tuple[int, int]:
    """Return the free bytes of a GPU, including those of CuPy's memory pool, and its total bytes."""
    with cupy.cuda.Device(device_id):
        free, total = cupy.cuda.runtime.memGetInfo()
        return free + cupy.get_default_memory_pool().free_bytes(), total


def import_cupy() -> ModuleType:
    """Import CuPy; RuntimeError if there is no GPU, or no compiler for its kernels."""
    cupy = import_module("cupy")
    cuda = cupy.cuda.runtime
    built, driver = cuda.runtimeGetVersion(), cuda.driverGetVersion()
    cannot_run = f"the runtime 'gpu' cannot run: CuPy {cupy.__version__} for CUDA {format_version(built)}"
    try:
        cuda.getDeviceCount()
    except cuda.CUDARuntimeError as error:
        forked = f"A process forked from one that used a GPU finds none. {SPAWN_HINT}"
        hint = forked if "cudaErrorInitializationError" in str(error) else install_hint(built, driver)
        raise RuntimeError(f"{cannot_run} finds no device: {error}. {hint}") from error
    libraries.load_library("nvrtc")  # also from folders that CuPy does not search
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise RuntimeError(
            f"{cannot_run}, on a driver for CUDA {format_version(driver)}, finds no NVRTC, its compiler: {error}. "
            f'Install the one of the same CUDA version: pip install "neonlite[cuda{built // 1000}]"'
        ) from error
    return cupy


def device_info(cupy: ModuleType, device_id: int) -> str:
    """Return the versions of CuPy and CUDA, the number of GPUs, and the name and memory of one of them."""
    cuda = cupy.cuda.runtime
    properties, count = cuda.getDeviceProperties(device_id), cuda.getDeviceCount()
    versions = f"CUDA {format_version(cuda.runtimeGetVersion())} (driver {format_version(cuda.driverGetVersion())})"
    memory = f"{properties['totalGlobalMem'] / 2**30:.0f} GiB"
    name = properties["name"].decode()
    return f"CuPy {cupy.__version__}, {versions}, {count} device{'s' * (count > 1)}: {name}, {memory}"


def format_version(version: int) -> str:
    """Return a CUDA version number as text: 13020 is "13.2"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def install_hint(built: int, driver: int) -> str:
    """Return what to do if there is no GPU, given the CUDA versions of CuPy and of the driver."""
    if driver == 0:
        return "There is no NVIDIA driver: nvidia-smi must list a GPU (start a container with --gpus all)"
    supported = f"The driver supports CUDA {format_version(driver)}"
    if driver // 1000 >= built // 1000:
        return f"{supported}, but lists no GPU: nvidia-smi must list one, and CUDA_VISIBLE_DEVICES must include it"
    if driver < 12000:
        return f"{supported} at most: update the driver"
    swap = f'pip uninstall cupy-cuda{built // 1000}x, and pip install "neonlite[cuda{driver // 1000}]"'
    return f"{supported} at most: {swap}; or update the driver"
