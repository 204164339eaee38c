"""How does a card draw random numbers?  A thread makes a block of Philox4x64-10, from its number alone.

What a kernel needs to know is where the stream stands: numbers, to which a graph adds those of the moment.
"""

from __future__ import annotations

import math
from typing import Any

from neonlite.backend.cuda.graphs import recording
from neonlite.backend.cuda.kernels import BLOCKS, THREADS, wrapped
from neonlite.backend.cuda.words import MEMORY, fill
from neonlite.backend.stored import written
from neonlite.ops import FLOATS

# The loop of a thread over n numbers.
OVER = """    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {"""

RANDOM = """// A thread makes a block of Philox4x64-10: four words, a function of the block's number and (seed, stream).
// Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
extern "C" __global__ void {name}({T}* y, long long n, long long size, long long seed, long long stream,
                                  long long c0, long long c1, long long c2, long long c3,
                                  const unsigned long long* from{more})
{
    typedef unsigned long long Word;
{over}
        Word c[4] = {(Word)c0, (Word)c1, (Word)c2, (Word)c3}, key[2] = {(Word)seed, (Word)stream}, carry = i;
        for (int k = 0; k < 4; ++k) {  // c + from + i: in a graph, from is where the stream stood when it was launched
            const Word start = from ? from[k] : 0, sum = c[k] + start;
            c[k] = sum + carry, carry = (sum < start) + (c[k] < sum);
        }
        for (int round = 0; round < 10; ++round) {
            const Word a = 0xD2E7470EE14C6C93ULL * c[0], high_a = __umul64hi(0xD2E7470EE14C6C93ULL, c[0]);
            const Word b = 0xCA5A826395121157ULL * c[2], high_b = __umul64hi(0xCA5A826395121157ULL, c[2]);
            c[0] = high_b ^ c[1] ^ key[0], c[1] = b, c[2] = high_a ^ c[3] ^ key[1], c[3] = a;
            key[0] += 0x9E3779B97F4A7C15ULL, key[1] += 0xBB67AE8584CAA73BULL;
        }
{values}
    }
}
"""

# What words stand for: uniform numbers of the halves of a word, of 24, 11 or 8 bits; of whole words; and normal ones.
LANES = """        for (int k = 0; k < 8; ++k) {  // the low half of a word comes first
            const unsigned lane = (unsigned)(c[k / 2] >> (k % 2 * 32));
            if (8 * i + k < size) put(y[8 * i + k], (float)(lane >> {shift}) * {scale});
        }"""
UNIFORM = """        for (int k = 0; k < 4; ++k)
            if (4 * i + k < size) y[4 * i + k] = (double)(c[k] >> 11) * 0x1p-53;"""
NORMAL = """        for (int k = 0; k < 4; k += 2) {  // Box and Muller, 1958
            const double radius = sqrt(-2.0 * log(((double)(c[k] >> 11) + 1.0) * 0x1p-53));
            const double angle = (double)(c[k + 1] >> 11) * (2.0 * 3.14159265358979323846 * 0x1p-53);
            if (4 * i + k < size) put(y[4 * i + k], radius * cos(angle){scaled});
            if (4 * i + k + 1 < size) put(y[4 * i + k + 1], radius * sin(angle){scaled});
        }"""
MASK = """        for (int k = 0; k < 8; ++k) {
            const unsigned lane = (unsigned)(c[k / 2] >> (k % 2 * 32));
            if (8 * i + k < size) put(y[8 * i + k], lane < limit ? 1.0f : 0.0f);
        }"""
VALUES = {
    ("rand", "float16"): fill(LANES, shift="21", scale="0x1p-11f"),
    ("rand", "bfloat16"): fill(LANES, shift="24", scale="0x1p-8f"),
    ("rand", "float32"): fill(LANES, shift="8", scale="0x1p-24f"),
    ("rand", "float64"): UNIFORM,
} | {("randn", dtype): fill(NORMAL, scaled="") for dtype in FLOATS}
SCALED = fill(NORMAL, scaled=" * stdv + mean")


def counted(streams: Any, purpose: str, n: int) -> list[int]:
    """Take the next n blocks of a stream, and return what a kernel is to know of them: seed, stream, counter."""
    seed, stream, first = streams.blocks(purpose, n)
    address = 0
    if graph := recording():
        address, first = graph.counter(purpose, first, n)
    words = seed, stream, *(first >> 64 * k & 2**64 - 1 for k in range(4))
    return [*map(wrapped, words), address]


def text(values: str, dtype: str, more: dict[str, int | float]) -> str:
    """Return the kernel that fills a tensor of a dtype with what words stand for; ``more``: arguments of its own."""
    parameters = "".join(f", {'double' if isinstance(x, float) else 'long long'} {name}" for name, x in more.items())
    return fill(RANDOM, name="kernel", over=OVER, values=values, T=MEMORY[dtype], more=parameters)


def filled(executor: Any, out: Any, values: str, drawn: list[int], more: dict[str, int | float]) -> None:
    """Fill a contiguous tensor with what words stand for: blocks that were ``counted``, and arguments of its own."""
    size, n = math.prod(out.shape), drawn[0]
    arguments = [executor.runtime.layout(written(out, whole=True))[0], n, size, *drawn[1:], *more.values()]
    kernel = executor.kernel(text(values, out.info.dtype, more))
    if n:
        executor.driver.launch(kernel, (min(-(-n // THREADS), BLOCKS), 1), THREADS, arguments)


def mask(executor: Any, streams: Any, out: Any, limit: int) -> None:
    """Fill a contiguous tensor with ones, where the lane of a random word is below a limit, and zeros."""
    n = -(-math.prod(out.shape) // 8)
    filled(executor, out, MASK, [n, *counted(streams, "masks", n)], {"limit": limit})


def normal(executor: Any, streams: Any, out: Any, mean: float, stdv: float) -> None:
    """Fill a contiguous tensor of floats with normal numbers, scaled before they are rounded to its dtype."""
    n = -(-math.prod(out.shape) // 4)
    filled(executor, out, SCALED, [n, *counted(streams, "noise", n)], {"mean": float(mean), "stdv": float(stdv)})
