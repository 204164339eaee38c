"""CUDA kernels of single ops: launches, scatter-add, users' kernels, gathers, and random numbers."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from neonlite.backend.concurrency import Cache, create_lock
from neonlite.backend.planning import Plan
from neonlite.backend.planning.steps import Stage, Step
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.random import RandomStreams, mask_threshold
from neonlite.backend.runtimes.cuda.codegen import (
    MAX_BLOCKS,
    PREAMBLE,
    THREADS_PER_BLOCK,
    AddressFunction,
    FusedKernel,
    Launch,
    wrap_int64,
)
from neonlite.backend.runtimes.cuda.graphs import current_capture, launch_kernel
from neonlite.backend.runtimes.cuda.libraries import MAX_CACHED_KERNELS, CudaMatmul
from neonlite.backend.runtimes.cuda.op_templates import (
    COMPUTE_TYPES,
    REDUCE_TEMPLATES,
    STORAGE_TYPES,
    USER_TEMPLATES,
    substitute,
)
from neonlite.backend.runtimes.numpy import NumPyPrimitives
from neonlite.ops import Op
from neonlite.ops.functions import Shape, index_error_message, normalize_indices
from neonlite.ops.images import bin_bounds
from neonlite.typing import FLOAT_DTYPES, NativeArray, NumPyArray

KERNEL_HEADER = """
typedef {Element} Element;  // in memory
typedef {Compute} Compute;  // in registers
typedef {Index} Index;  // a parameter takes the low bytes of an argument, which has 64 bits
constexpr int V = {V};  // adjacent elements per thread and iteration
#define GRID_STRIDE(i, size) \\
    Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < size; i += (Index)gridDim.x * blockDim.x * V
"""

# The workspace limit of a convolution without cuDNN, unless NEONLITE_WORKSPACE is set.
DEFAULT_WORKSPACE_BYTES = 1 << 28

Arguments = Sequence[Any]  # arrays, None for a null pointer, and scalars


def are_kernels_enabled() -> bool:
    """Return whether kernels may run: they are disabled by ``NEONLITE_KERNELS=0``."""
    return os.environ.get("NEONLITE_KERNELS") != "0"


def workspace_limit(default: int = DEFAULT_WORKSPACE_BYTES) -> int:
    """Return the bytes of workspace that a convolution may use: ``NEONLITE_WORKSPACE``, or the default."""
    value = os.environ.get("NEONLITE_WORKSPACE") or str(default)
    if not value.isdecimal():
        raise ValueError(f"NEONLITE_WORKSPACE: expected a number of bytes, got {value!r}")
    return int(value)


def kernel_source(template: str, dtype: str, V: int = 1, is_large: bool = False, **types: str) -> str:
    """Return the source of a kernel for a dtype.

    ``is_large``: use 64-bit indices; ``types``: further type names and their dtypes.
    """
    index = "long long" if is_large else "int"
    header = substitute(
        KERNEL_HEADER, Element=STORAGE_TYPES[dtype], Compute=COMPUTE_TYPES[dtype], Index=index, V=str(V)
    )
    typedefs = "".join(f"typedef {STORAGE_TYPES[t]} {name};\n" for name, t in types.items())
    return f"{PREAMBLE}{header}{typedefs}{template}"


class KernelLauncher(CudaMatmul, ReferencePrimitives):
    """Base of the GPU primitives: compile and launch kernels with the runtime's driver."""

    get_workspace: Any = NumPyPrimitives.get_workspace  # which caches buffers

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        self.compiled = Cache(MAX_CACHED_KERNELS, runtime.memory_tracker)

    def launch_elementwise(
        self, template: str, like: NativeArray, size: int, inner_size: int, arguments: Arguments, **types: str
    ) -> None:
        """Launch a kernel over ``size`` elements of the dtype of ``like``, vectorized where possible."""
        V = 16 // like.dtype.itemsize
        same_dtype = [x for x in arguments if hasattr(x, "dtype") and x.dtype == like.dtype]
        if inner_size % V or any(self.runtime.address_and_strides(x)[0] % 16 for x in same_dtype):
            V = 1
        if size:
            grid = min(-(-size // (THREADS_PER_BLOCK * V)), MAX_BLOCKS), 1
            self.launch(template, str(like.dtype), grid, arguments, V, **types)

    def launch(
        self, template: str, dtype: str, grid: tuple[int, int], arguments: Arguments, V: int = 1, **types: str
    ) -> None:
        """Launch a kernel on a grid of blocks of 256 threads."""
        driver = self.runtime.driver
        is_large = any(math.prod(getattr(x, "shape", ())) >= 2**30 for x in arguments)
        key = template, dtype, V, is_large, *types.items()
        kernel = self.compiled.find(key)
        if kernel is None:
            kernel = self.compiled.add(key, driver.compile(kernel_source(template, dtype, V, is_large, **types)))
        packed = [
            x if isinstance(x, int | float) else 0 if x is None else self.runtime.address_and_strides(x)[0]
            for x in arguments
        ]
        launch_kernel(driver, kernel, grid, THREADS_PER_BLOCK, packed)


# --- bounds checks for GPU indices ---
#
# Kernels record an index out of range, and the host raises IndexError at its next sync.
#
# The host reads the record when it synchronizes anyway: when it copies values, and in ``be.runtime.synchronize()``.
# With ``NEONLITE_WAIT=1`` in the environment the host checks indices before the kernel runs. That is slower, and the
# traceback points to the faulty call.


def is_check_synchronous() -> bool:
    """Return whether indices are checked on the host before kernels run: ``NEONLITE_WAIT=1`` in the environment."""
    return os.environ.get("NEONLITE_WAIT") == "1"


class BoundsChecker:
    """The error record in GPU memory: the id of the first check that failed (0 for none), and the bad index."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self.check_ids: dict[str, int] = {}  # message -> id of the check, from 1
        self.error_record: NativeArray = None
        self.is_pending = False  # whether a kernel may have written to the record since it was read
        self.lock = create_lock()

    def register(self, message: str) -> int:
        """Return the id of a check. In its message, {} stands for the index."""
        with self.lock:
            return self.check_ids.setdefault(message, len(self.check_ids) + 1)

    def record_address(self) -> int:
        """Return the address of the error record, and expect a kernel that may write to it."""
        with self.lock:
            if self.error_record is None:
                self.error_record = self.runtime.driver.allocate(16)
                self.error_record[...] = 0
            self.is_pending = True
            return int(self.runtime.address_and_strides(self.error_record)[0])

    def mark_pending(self) -> None:
        """Record that a captured graph was launched, whose kernels may write to the error record."""
        self.is_pending = self.error_record is not None

    def raise_pending(self) -> None:
        """Raise IndexError and clear the record if a kernel reported an index."""
        if not self.is_pending:
            return
        with self.lock:
            self.is_pending = False
            check_id, index = np.asarray(self.runtime.copy_to_host(self.error_record)).view(np.int64)
            if not check_id:
                return
            self.error_record[...] = 0
        raise IndexError(list(self.check_ids)[check_id - 1].format(index))


# --- scatter-add and ROI max pooling on the GPU ---
#
# Sorted indices instead of atomics, so results are deterministic.

# Up to this many indices are sorted by a kernel with n^2 comparisons; more by CuPy, whose sort synchronizes.
MAX_RANK_SORT = 1 << 15

RANK_SORT_KERNEL = """
// Stable sort of indices: the rank of an index is the number of indices that are smaller, or equal and earlier.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    long long* sorted, long long* order, const long long* indices, int count)
{
    __shared__ long long chunk[256];
    const int k = blockIdx.x * 256 + threadIdx.x;
    const long long value = k < count ? indices[k] : 0;
    int rank = 0;
    for (int first = 0; first < count; first += 256) {
        const int n = count - first < 256 ? count - first : 256;
        if (threadIdx.x < n) chunk[threadIdx.x] = indices[first + threadIdx.x];
        __syncthreads();
        for (int i = 0; i < n; ++i) rank += chunk[i] < value || (chunk[i] == value && first + i < k);
        __syncthreads();
    }
    if (k < count) sorted[rank] = value, order[rank] = k;
}
"""

SEGMENT = 64  # sorted indices that are summed by one thread if they are all equal
MIN_SEGMENTED = 256  # with fewer indices, segments are not summed first, which saves a launch

SEGMENT_SUM_KERNEL = (
    f"constexpr int SEGMENT = {SEGMENT};"
    + """
// s[n, j] = sum of x[k, j] over the n-th segment of sorted indices if they are all equal; else s is not written.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Compute* s, const Element* x, const long long* indices, const long long* order, Index size, Index width,
    long long row_stride, long long column_stride)
{
    for (GRID_STRIDE(at, size)) {
        const Index start = at / width * SEGMENT, j = at % width;
        if (indices[start] != indices[start + SEGMENT - 1]) continue;
        Compute total = 0;
        #pragma unroll 4
        for (Index k = start; k < start + SEGMENT; ++k)
            total += to_compute(x[order[k] * row_stride + j * column_stride]);
        s[at] = total;
    }
}
"""
)

SCATTER_KERNEL = (
    f"constexpr int SEGMENT = {SEGMENT};"
    + """
// y[p, j] = sum of x[k, j] over all k whose index is p. The indices are sorted; order has their original positions. The
// sum of a whole segment is taken from s. An index out of range is reported if there is a check; negative ones were
// counted from the end.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* y, const Element* x, const long long* indices, const long long* order, const Compute* s,
    uint64* error_record, long long check_id, Index size, Index count, Index width, Index axis,
    long long row_stride, long long column_stride)
{
    if (check_id && count && blockIdx.x == 0 && threadIdx.x == 0) {
        const long long lowest = indices[0], highest = indices[count - 1], end = size / width;
        if (lowest < 0 || highest >= end) report_index(error_record, check_id, lowest < 0 ? lowest - end : highest);
    }
    for (GRID_STRIDE(at, size)) {
        const Index p = axis ? at % (size / width) : at / width, j = axis ? at / (size / width) : at % width;
        Index low = 0, high = count;  // first position whose index is not below p
        while (low < high) {
            const Index middle = low + (high - low) / 2;
            if (indices[middle] < p) low = middle + 1; else high = middle;
        }
        Compute total = 0;
        while (low < count && indices[low] == p)
            if (s && low % SEGMENT == 0 && low + SEGMENT <= count && indices[low + SEGMENT - 1] == p) {
                total += s[low / SEGMENT * width + j];
                low += SEGMENT;
            } else {
                total += to_compute(x[order[low] * row_stride + j * column_stride]);
                ++low;
            }
        store(y[at], total);
    }
}
"""
)

ROI_POOL_KERNEL = """
// o = maximum of each bin, and argmax its index h W + w; 0 and -1 for an empty bin. The table contains, for n regions,
// the image index, and for each bin the first row, the number of rows, the first column and the number of columns.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* o, ArgIndex* argmax, const Element* i, const int* table, Index size, Index n, Index PH, Index PW,
    Index H, Index W, Index N)
{
    const int *images = table, *tops = images + n, *heights = tops + PH * n;
    const int *lefts = heights + PH * n, *widths = lefts + PW * n;
    for (GRID_STRIDE(at, size)) {
        const Index r = at % n, bin = at / n, pw = bin % PW, ph = bin / PW % PH, c = bin / PW / PH;
        const Index top = tops[ph * n + r], left = lefts[pw * n + r];
        const Index bottom = top + heights[ph * n + r], right = left + widths[pw * n + r];
        Compute best = 0;
        Index index = -1;
        for (Index y = top; y < bottom; ++y)
            for (Index x = left; x < right; ++x) {
                const Compute value = to_compute(i[((c * H + y) * W + x) * N + images[r]]);
                if (index < 0 || value > best || (value != value && best == best)) best = value, index = y * W + x;
            }
        store(o[at], best);
        argmax[at] = index;
    }
}
"""


class CudaScatter(KernelLauncher):
    """Scatter-add, and ROI max pooling: images (C, H, W, N), regions (n, 5), bins (C, PH, PW, n)."""

    supports_scatter = True

    def scatter(
        self, x: NativeArray, indices: NativeArray, y: NativeArray, axis: int = 0, check: tuple[int, int] = (0, 0)
    ) -> None:
        """Compute ``y[p] = sum of x[k] over all k with index p``: (n, m), (n,) integers, (size, m), or along axis 1.

        ``check``: the address of the error record and the id of the check for indices out of range; (0, 0): no check.
        """
        indices, order = self._sort_indices(indices)
        strides = [stride // x.dtype.itemsize for stride in self.runtime.address_and_strides(x)[1]]
        row_stride, column_stride = strides[::-1] if axis else strides
        count, width, sums = indices.shape[0], y.shape[1 - axis], None
        if count >= MIN_SEGMENTED:
            dtype = self.xp.float32 if y.dtype.itemsize == 2 else y.dtype
            sums = self.xp.empty((count // SEGMENT, width), dtype=dtype)
            self.launch_elementwise(
                SEGMENT_SUM_KERNEL,
                y,
                sums.size,
                1,
                [sums, x, indices, order, sums.size, width, row_stride, column_stride],
            )
        sizes = [y.size, count, width, axis, row_stride, column_stride]
        self.launch_elementwise(SCATTER_KERNEL, y, y.size, 1, [y, x, indices, order, sums, *check, *sizes])

    def _sort_indices(self, indices: NativeArray) -> tuple[NativeArray, NativeArray]:
        """Return the sorted indices (n,) and their original positions, int64; the sort is stable."""
        xp, n = self.xp, indices.shape[0]
        if n > MAX_RANK_SORT:
            order = xp.argsort(indices, stable=True)
            return tuple(xp.astype(x, xp.int64) for x in (xp.take(indices, order, axis=0), order))
        indices, values, order = xp.astype(indices, xp.int64), *(xp.empty((n,), dtype=xp.int64) for _ in range(2))
        if n:
            self.launch(RANK_SORT_KERNEL, "int64", (-(-n // THREADS_PER_BLOCK), 1), [values, order, indices, n])
        return values, order

    def roi_fprop(self, i: NativeArray, regions: NumPyArray, o: NativeArray, argmax: NativeArray, scale: float) -> None:
        (_, H, W, N), (_, PH, PW, n) = i.shape, o.shape
        rows = bin_bounds(np, regions[:, 2], regions[:, 4], scale, PH, H)
        bounds = [*rows, *bin_bounds(np, regions[:, 1], regions[:, 3], scale, PW, W)]
        table = self.runtime.put(np.concatenate([x.reshape(-1) for x in (regions[:, 0], *bounds)]).astype(np.int32))
        arguments = [o, argmax, i, table, o.size, n, PH, PW, H, W, N]
        self.launch_elementwise(ROI_POOL_KERNEL, o, o.size, 1, arguments, ArgIndex=str(argmax.dtype))

    def roi_bprop(self, e: NativeArray, regions: NumPyArray, argmax: NativeArray, d: NativeArray) -> None:
        xp, (C, H, W, N) = self.xp, d.shape
        images = self.runtime.put(regions[:, 0].astype(np.int64))[None, None, None, :]
        channels = self.runtime.put(np.arange(C))[:, None, None, None]
        flat_indices = (xp.astype(argmax, xp.int64) + channels * (H * W)) * N + images
        flat_indices = xp.where(argmax < 0, xp.full(flat_indices.shape, -1, dtype=flat_indices.dtype), flat_indices)
        reshape = self.runtime.reshape
        self.scatter(reshape(e, (e.size, 1)), xp.reshape(flat_indices, (-1,)), reshape(d, (d.size, 1)))


# --- user kernels ---
#
# CUDA expressions (``be.elementwise_kernel``) and whole CUDA kernels (``be.raw_kernel``) as ops.

RAW_KERNELS: dict[Op, RawKernel] = {}


def register_expression(op: Op, expression: str) -> None:
    """Register an expression of x, y and T as the template of an op."""
    USER_TEMPLATES[op] = re.sub(r"\b([xyT])\b", r"{\1}", expression)


def gpu_only_run(name: str) -> Callable[..., Any]:
    """Return a function for ``define_op(run=...)`` that raises NotImplementedError on runtimes without kernels."""

    def run(xp: Any, *operands: Any) -> Any:
        raise NotImplementedError(
            f"be.{name}: expected a GPU runtime, got {xp.__name__}. Pass run=lambda xp, x: ... with array-API "
            "functions to support other runtimes"
        )

    return run


def default_launch(z: Shape, *operands: Shape) -> tuple[Any, ...]:
    """Return the number of blocks for one thread per element of the result, and the number of elements."""
    n = math.prod(z)
    return -(-n // THREADS_PER_BLOCK), n


class RawKernel:
    """The source of a kernel: ``extern "C" __global__ void name(T* z, const T* x, ..., long long n)``.

    Pointers come first: the result, then each operand. ``launch(z, x, y)`` receives their shapes and returns the number
    of blocks (an integer or a pair) and the scalars after the pointers. ValueError for a source with another signature.
    """

    def __init__(self, name: str, source: str, launch: Callable[..., tuple[Any, ...]] = default_launch) -> None:
        self.name, self.source, self.launch = name, source, launch
        match = re.search(rf'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?{name}\(([^)]*)\)', source)
        parameters = [] if match is None else [part.strip() for part in match[1].split(",")]
        pointers = [part for part in parameters if "*" in part]
        if not 2 <= len(pointers) <= 3 or parameters[: len(pointers)] != pointers:
            raise ValueError(
                f'be.raw_kernel: expected extern "C" __global__ void {name}(T* z, const T* x, ...) with pointers to '
                f"the result and to one or two operands, then scalars, got {match[0] if match else source[:200]!r}"
            )
        self.arity, self.num_scalars = len(pointers) - 1, len(parameters) - len(pointers)

    def launch_config(self, *shapes: Shape) -> tuple[tuple[int, int], list[int | float]]:
        """Return the grid and the scalars for the shapes of the result and the operands."""
        blocks, *scalars = self.launch(*shapes)
        if len(scalars) != self.num_scalars:
            raise ValueError(
                f"be.{self.name}: expected {self.num_scalars} scalars from launch_config() after the number of "
                f"blocks, as the kernel's signature has, got {len(scalars)}: {scalars}"
            )
        grid = (blocks, 1) if isinstance(blocks, int) else tuple(blocks)
        return grid, [x if isinstance(x, float) else int(x) for x in scalars]


class UserKernel:
    """A stage that is a user's raw kernel, with the interface of ``FusedKernel``."""

    workspace_bytes = 0

    def __init__(self, plan: Plan, v: int, runtime: Any) -> None:
        self.v, self.runtime, self.step = v, runtime, plan.step_of(v)
        self.raw_kernel = RAW_KERNELS[self.step.op]

    def source(self, name: str = "kernel") -> str:
        """Return the source, with T replaced by the type in memory and Compute by the type in registers."""
        text = re.sub(rf"\b{self.raw_kernel.name}\b", name, self.raw_kernel.source.strip() + "\n")
        text = re.sub(r"\bCompute\b", COMPUTE_TYPES[self.step.dtype], text)
        return re.sub(r"\bT\b", STORAGE_TYPES[self.step.dtype], text)

    def argument_comments(self, describe: Callable[[int], str]) -> Iterator[str]:
        """Yield a comment for each pointer; ``describe`` returns the description of a value."""
        operands = [x for x in self.step.inputs if isinstance(x, int)]
        yield from (f"{name}: {describe(v)}" for name, v in zip("zxy", [self.v, *operands], strict=False))

    def launches(self, values: dict[int, NativeArray], address_of: AddressFunction, workspace: int) -> Iterator[Launch]:
        """Yield (source, grid, threads, arguments). Operands that are not contiguous are copied first."""
        arrays = [values[v] for v in (self.v, *self.step.inputs)]  # type: ignore[index]
        for n, x in enumerate(arrays):
            if address_of(x)[1] != contiguous_strides(x):
                arrays[n] = self.runtime.xp.empty(x.shape, dtype=x.dtype)
                self.runtime.driver.run(
                    operator.setitem, arrays[n], ..., x
                )  # through the driver, so that a captured graph repeats it
        grid, scalars = self.raw_kernel.launch_config(*(tuple(x.shape) for x in arrays))
        if math.prod(grid):
            yield self.source(), grid, THREADS_PER_BLOCK, [*(address_of(x)[0] for x in arrays), *scalars]


def contiguous_strides(array: NativeArray) -> tuple[int, ...]:
    """Return the strides in bytes of a C-contiguous array of the same shape."""
    sizes = [array.itemsize]
    for n in array.shape[:0:-1]:
        sizes.append(sizes[-1] * n)
    return tuple(sizes[::-1])


# --- random-number kernels: Philox4x64-10 counters, and templates for uniform, normal and mask values ---
#
# A thread computes a block of four 64-bit words from the block's counter alone. The counter is a kernel argument. In a
# CUDA graph the position in the stream is read from GPU memory, where it is written before each launch.

# A grid-stride loop over n blocks of words.
GRID_STRIDE_LOOP = """    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {"""

PHILOX_KERNEL = """// Philox4x64-10: each thread computes a block of four words from the counter and (seed, stream).
// Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
extern "C" __global__ void {name}({T}* y, long long n, long long size, long long seed, long long stream,
                                  long long c0, long long c1, long long c2, long long c3,
                                  const uint64* stream_offset{scalars})
{
{over}
        uint64 c[4] = {(uint64)c0, (uint64)c1, (uint64)c2, (uint64)c3};
        uint64 key[2] = {(uint64)seed, (uint64)stream}, carry = i;
        for (int k = 0; k < 4; ++k) {  // c + stream_offset + i; a CUDA graph gives the offset at launch
            const uint64 start = stream_offset ? stream_offset[k] : 0, sum = c[k] + start;
            c[k] = sum + carry, carry = (sum < start) + (c[k] < sum);
        }
        for (int round = 0; round < 10; ++round) {
            const uint64 a = 0xD2E7470EE14C6C93ULL * c[0], high_a = __umul64hi(0xD2E7470EE14C6C93ULL, c[0]);
            const uint64 b = 0xCA5A826395121157ULL * c[2], high_b = __umul64hi(0xCA5A826395121157ULL, c[2]);
            c[0] = high_b ^ c[1] ^ key[0], c[1] = b, c[2] = high_a ^ c[3] ^ key[1], c[3] = a;
            key[0] += 0x9E3779B97F4A7C15ULL, key[1] += 0xBB67AE8584CAA73BULL;
        }
{values}
    }
}
"""

# Conversion of random words to values: uniform numbers of 24, 11 or 8 bits from half words, uniform numbers of 53 bits,
# normal numbers, and masks.
UNIFORM_FLOAT = """        for (int k = 0; k < 8; ++k) {  // the low half of a word comes first
            const unsigned half_word = (unsigned)(c[k / 2] >> (k % 2 * 32));
            if (8 * i + k < size) store(y[8 * i + k], (float)(half_word >> {shift}) * {scale});
        }"""
UNIFORM_DOUBLE = """        for (int k = 0; k < 4; ++k)
            if (4 * i + k < size) y[4 * i + k] = (double)(c[k] >> 11) * 0x1p-53;"""
NORMAL = """        for (int k = 0; k < 4; k += 2) {  // Box and Muller, 1958
            const double radius = sqrt(-2.0 * log(((double)(c[k] >> 11) + 1.0) * 0x1p-53));
            const double angle = (double)(c[k + 1] >> 11) * (2.0 * 3.14159265358979323846 * 0x1p-53);
            if (4 * i + k < size) store(y[4 * i + k], radius * cos(angle){scaled});
            if (4 * i + k + 1 < size) store(y[4 * i + k + 1], radius * sin(angle){scaled});
        }"""
MASK = """        for (int k = 0; k < 8; ++k) {
            const unsigned half_word = (unsigned)(c[k / 2] >> (k % 2 * 32));
            if (8 * i + k < size) store(y[8 * i + k], half_word < {limit} ? 1.0f : 0.0f);
        }"""
VALUE_TEMPLATES = {
    ("rand", "float16"): substitute(UNIFORM_FLOAT, shift="21", scale="0x1p-11f"),
    ("rand", "bfloat16"): substitute(UNIFORM_FLOAT, shift="24", scale="0x1p-8f"),
    ("rand", "float32"): substitute(UNIFORM_FLOAT, shift="8", scale="0x1p-24f"),
    ("rand", "float64"): UNIFORM_DOUBLE,
}
VALUE_TEMPLATES |= {("randn", dtype): substitute(NORMAL, scaled="") for dtype in FLOAT_DTYPES}
VALUE_TEMPLATES |= {("random_mask", dtype): MASK for dtype in FLOAT_DTYPES}
VALUE_TEMPLATES["random_words", "int64"] = """        for (int k = 0; k < 4; ++k)
            if (4 * i + k < size) y[4 * i + k] = (long long)c[k];"""
FILLED_MASK = substitute(MASK, limit="limit")
SCALED_NORMAL = substitute(NORMAL, scaled=" * stdv + mean")


def reserve_blocks(streams: RandomStreams, stream: str, n: int) -> list[int]:
    """Reserve the next n blocks of a stream, and return the kernel arguments: seed, stream, counter, stream offset."""
    seed, stream_id, first = streams.blocks(stream, n)
    address = 0
    if graph := current_capture():
        address, first = graph.counter_address(stream, first, n)
    words = seed, stream_id, *(first >> 64 * k & 2**64 - 1 for k in range(4))
    return [*map(wrap_int64, words), address]


def fill_source(values: str, dtype: str, scalars: dict[str, int | float]) -> str:
    """Return the kernel that fills a tensor with values of random words; ``scalars``: further parameters."""
    parameters = "".join(f", {'double' if isinstance(x, float) else 'long long'} {name}" for name, x in scalars.items())
    return substitute(
        PHILOX_KERNEL, name="kernel", over=GRID_STRIDE_LOOP, values=values, T=STORAGE_TYPES[dtype], scalars=parameters
    )


# --- kernels for stages of one op: take, one-hot, random draws and argmax/argmin ---

WAIT_HINT = "set NEONLITE_WAIT=1 in the environment to raise this at the faulty call"

TAKE_KERNEL = """// y[row, i, e] = x[row, indices[i], e]; negative indices count from the end. Errors are recorded.
extern "C" __global__ void {name}({T}* y, const {T}* x, const {P}* indices, uint64* error_record, long long check_id,
                                  long long n, long long count, long long size, long long inner_size)
{
{over}
        const long long e = i % inner_size, outer_index = i / inner_size;
        const {P} index = indices[outer_index % count];
        const long long position = index < 0 ? index + size : index;
        const bool in_bounds = position >= 0 && position < size;
        y[i] = load_if(x + (outer_index / count * size + position) * inner_size + e, in_bounds);
        if (!in_bounds) report_index(error_record, check_id, index);
    }
}
"""

ONEHOT_KERNEL = """// y = 1 in the {row} of each label, else 0. A label out of range is recorded.
extern "C" __global__ void {name}({T}* y, const {P}* labels, uint64* error_record, long long check_id,
                                  long long n, long long width, long long classes)
{
{over}
        const long long row = i / width, column = i % width, label = labels[{column}];
        store(y[i], label == {row} ? 1.0f : 0.0f);
        if (label < 0 || label >= classes) report_index(error_record, check_id, label);
    }
}
"""


def single_op_kernel(plan: Plan, stage: Stage, runtime: Any) -> SingleOpKernel | FusedKernel | UserKernel | None:
    """Return the kernel of a stage of one op; None if there is none."""
    v = stage.steps[0]
    if plan.step_of(v).op in RAW_KERNELS:
        return UserKernel(plan, v, runtime)
    step = plan.step_of(v)
    if step.op.name in REDUCE_TEMPLATES and step.op.result_dtype == "index":
        return FusedKernel(plan, {v: step}, plan.shape(step.inputs[0]), [], [v])
    return (
        SingleOpKernel(plan, v, runtime)
        if is_gather(plan, step) or (step.op.name, step.dtype) in VALUE_TEMPLATES
        else None
    )


def is_gather(plan: Plan, step: Step) -> bool:
    """Return whether a step is a take or one-hot that has a kernel."""
    return step.op.name in ("take", "onehot") and all(isinstance(x, int) and plan.is_contiguous(x) for x in step.inputs)


class SingleOpKernel:
    """A kernel of a take, one-hot or random draw, with the interface of ``FusedKernel``."""

    workspace_bytes = 0

    def __init__(self, plan: Plan, v: int, runtime: Any) -> None:
        self.v, self.runtime, self.step = v, runtime, plan.step_of(v)
        self.inputs = [x for x in self.step.inputs if isinstance(x, int)]
        self.index_type = STORAGE_TYPES.get(plan.dtype(self.inputs[-1]), "")  # C type of the indices
        self.template = self.source()

    def source(self, name: str = "kernel") -> str:
        """Return the source of the kernel."""
        step, values = self.step, VALUE_TEMPLATES.get((self.step.op.name, self.step.dtype), "")
        if step.op.name == "random_mask":
            values = substitute(values, limit=f"{mask_threshold(step.attrs['keep'])}LL")
        classes = ["row", "column"] if step.attrs.get("axis") == 0 else ["column", "row"]
        return substitute(
            {"take": TAKE_KERNEL, "onehot": ONEHOT_KERNEL}.get(step.op.name, PHILOX_KERNEL),
            name=name,
            over=GRID_STRIDE_LOOP,
            values=values,
            scalars="",
            T=STORAGE_TYPES[step.dtype],
            P=self.index_type,
            row=classes[0],
            column=classes[1],
        )

    def argument_comments(self, describe: Callable[[int], str]) -> Iterator[str]:
        """Yield a comment for each array; ``describe`` returns the description of a value."""
        arrays = [] if self.step.kind == "random" else self.inputs
        names = ["y", "x", "indices"] if len(arrays) == 2 else ["y", "labels"]
        yield from (f"{name}: {describe(v)}" for name, v in zip(names, [self.v, *arrays], strict=False))

    def launches(self, values: dict[int, NativeArray], address_of: AddressFunction, workspace: int) -> Iterator[Launch]:
        """Yield (source, grid, threads, arguments). A random draw reserves its Philox blocks here."""
        step, n = self.step, math.prod(self.step.shape)
        arrays = [address_of(values[x])[0] for x in [self.v, *([] if step.kind == "random" else self.inputs)]]
        if step.op.name == "take":
            x, indices = (values[v] for v in self.inputs)
            axis = step.attrs["axis"]
            check = self._bounds_check(indices, x.shape[axis], "index")
            sizes = [*check, n, math.prod(indices.shape), x.shape[axis], math.prod(x.shape[axis + 1 :])]
        elif step.op.name == "onehot":
            classes = step.attrs["nclass"]
            sizes = [*self._bounds_check(values[self.inputs[0]], classes, "label"), n, step.shape[1], classes]
        else:
            is_mask = step.op.name == "random_mask"
            has_words = step.op.name in ("randn", "random_words") or step.dtype == "float64"
            per_block = 4 if has_words and not is_mask else 8
            size, n = n, -(-n // per_block)
            sizes = [n, size, *reserve_blocks(values[self.inputs[0]].streams, "masks" if is_mask else "noise", n)]
        if n:
            yield self.template, (min(-(-n // THREADS_PER_BLOCK), MAX_BLOCKS), 1), THREADS_PER_BLOCK, [*arrays, *sizes]

    def _bounds_check(self, indices: NativeArray, size: int, noun: str) -> list[int]:
        """Return the address of the error record, and the id of the check for indices out of range."""
        allow_negative, bounds_checker = noun == "index", self.runtime.bounds_checker
        if (is_check_synchronous() and not current_capture()) or not math.prod(
            self.step.shape
        ):  # no kernel runs without elements
            normalize_indices(self.runtime.xp, indices, size, noun, allow_negative)
        message = f"be.{self.step.op.method}: {index_error_message(noun, '{}', size, allow_negative)}"
        return [bounds_checker.record_address(), bounds_checker.register(f"{message}; {WAIT_HINT}")]
