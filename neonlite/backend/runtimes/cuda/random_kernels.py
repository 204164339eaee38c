"""Random-number kernels: Philox4x64-10 counters, and templates for uniform, normal and mask values.

A thread computes a block of four 64-bit words from the block's counter alone. The counter is a kernel argument. In a
CUDA graph the position in the stream is read from GPU memory, where it is written before each launch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neonlite.backend.planning.layout import write_chwn
from neonlite.backend.runtimes.cuda.codegen import MAX_BLOCKS, THREADS_PER_BLOCK, wrap_int64
from neonlite.backend.runtimes.cuda.graph_capture import current_capture
from neonlite.backend.runtimes.cuda.op_templates import STORAGE_TYPES, substitute
from neonlite.dtypes import FLOAT_DTYPES

if TYPE_CHECKING:
    from neonlite.backend.random import RandomStreams
    from neonlite.backend.runtimes.cuda.runtime import CudaRuntime
    from neonlite.backend.tensor import Tensor

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
            if (8 * i + k < size) store(y[8 * i + k], half_word < limit ? 1.0f : 0.0f);
        }"""
VALUE_TEMPLATES = {
    ("rand", "float16"): substitute(UNIFORM_FLOAT, shift="21", scale="0x1p-11f"),
    ("rand", "bfloat16"): substitute(UNIFORM_FLOAT, shift="24", scale="0x1p-8f"),
    ("rand", "float32"): substitute(UNIFORM_FLOAT, shift="8", scale="0x1p-24f"),
    ("rand", "float64"): UNIFORM_DOUBLE,
} | {("randn", dtype): substitute(NORMAL, scaled="") for dtype in FLOAT_DTYPES}
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


def launch_fill(
    runtime: CudaRuntime, out: Tensor, values: str, counter: list[int], scalars: dict[str, int | float]
) -> None:
    """Fill a contiguous tensor from reserved blocks; ``counter``: their number, then ``reserve_blocks``' result."""
    size, n = math.prod(out.shape), counter[0]
    arguments = [
        runtime.address_and_strides(write_chwn(out, overwrite=True))[0],
        n,
        size,
        *counter[1:],
        *scalars.values(),
    ]
    if n:
        kernel = runtime.get_fill_kernel(fill_source(values, out.info.dtype, scalars))
        runtime.driver.launch(kernel, (min(-(-n // THREADS_PER_BLOCK), MAX_BLOCKS), 1), THREADS_PER_BLOCK, arguments)


def fill_mask(runtime: CudaRuntime, streams: RandomStreams, out: Tensor, limit: int) -> None:
    """Fill a contiguous tensor with 1 where 32 random bits are below a limit, else 0."""
    n = -(-math.prod(out.shape) // 8)
    launch_fill(runtime, out, MASK, [n, *reserve_blocks(streams, "masks", n)], {"limit": limit})


def fill_normal(runtime: CudaRuntime, streams: RandomStreams, out: Tensor, mean: float, stdv: float) -> None:
    """Fill a contiguous tensor of floats with normal numbers, which are scaled before they are rounded to its dtype."""
    n = -(-math.prod(out.shape) // 4)
    launch_fill(
        runtime,
        out,
        SCALED_NORMAL,
        [n, *reserve_blocks(streams, "noise", n)],
        {"mean": float(mean), "stdv": float(stdv)},
    )
