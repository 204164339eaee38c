"""What is a call in CUDA?  Stages that are no pass over elements in step: gathers, draws, and the place of an extreme.

Products are the array library's business, and what has no kernel here is worked out op by op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from neonlite.backend.cuda.kernels import BLOCKS, THREADS, Kernel, Launch, Layout, wrapped
from neonlite.backend.cuda.own import RAW, Own
from neonlite.backend.cuda.words import MEMORY, REDUCE, fill
from neonlite.backend.plan import Plan, Stage
from neonlite.ops import in_range

# The loop of a thread over n numbers.
OVER = """    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {"""

TAKE = """// y[row, i, e] = x[row, places[i], e]; places below 0 count from the end
extern "C" __global__ void {name}({T}* y, const {T}* x, const {P}* places,
                                  long long n, long long count, long long size, long long each)
{
{over}
        const long long e = i % each, slice = i / each, place = places[slice % count];
        y[i] = x[(slice / count * size + (place < 0 ? place + size : place)) * each + e];
    }
}
"""

ONEHOT = """// y = 1 in the {row} of each label, else 0
extern "C" __global__ void {name}({T}* y, const {P}* labels, long long n, long long width)
{
{over}
        const long long row = i / width, column = i % width;
        y[i] = {narrow}(labels[{column}] == {row} ? 1.0f : 0.0f);
    }
}
"""

RANDOM = """// A thread makes a block of Philox4x64-10: four words, a function of the block's number and (seed, stream).
// Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
extern "C" __global__ void {name}({T}* y, long long n, long long size, long long seed, long long stream,
                                  long long c0, long long c1, long long c2, long long c3)
{
    typedef unsigned long long Word;
{over}
        Word c[4] = {(Word)c0 + i, (Word)c1, (Word)c2, (Word)c3}, key[2] = {(Word)seed, (Word)stream};
        for (int k = 1; k < 4 && c[k - 1] < (k > 1 ? 1 : (Word)i); ++k) ++c[k];  // carry
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

# What words stand for: uniform numbers of the halves of a word, of 24 or 11 bits; of whole words; and normal ones.
LANES = """        for (int k = 0; k < 8; ++k) {  // the low half of a word comes first
            const unsigned lane = (unsigned)(c[k / 2] >> (k % 2 * 32));
            if (8 * i + k < size) y[8 * i + k] = {narrow}((float)(lane >> {shift}) * {scale});
        }"""
UNIFORM = """        for (int k = 0; k < 4; ++k)
            if (4 * i + k < size) y[4 * i + k] = (double)(c[k] >> 11) * 0x1p-53;"""
NORMAL = """        for (int k = 0; k < 4; k += 2) {  // Box and Muller, 1958
            const double radius = sqrt(-2.0 * log(((double)(c[k] >> 11) + 1.0) * 0x1p-53));
            const double angle = (double)(c[k + 1] >> 11) * (2.0 * 3.14159265358979323846 * 0x1p-53);
            if (4 * i + k < size) y[4 * i + k] = {narrow}(radius * cos(angle));
            if (4 * i + k + 1 < size) y[4 * i + k + 1] = {narrow}(radius * sin(angle));
        }"""
VALUES = {
    ("rand", "float16"): fill(LANES, shift="21", scale="0x1p-11f"),
    ("rand", "float32"): fill(LANES, shift="8", scale="0x1p-24f"),
    ("rand", "float64"): UNIFORM,
} | {("randn", dtype): NORMAL for dtype in ("float16", "float32", "float64")}


def call(plan: Plan, stage: Stage, xp: Any) -> Call | Kernel | Own | None:
    """Return the kernel of a call; None when there is none."""
    v = stage.steps[0]
    if plan.made(v).op.name in RAW:
        return Own(plan, v, xp)
    step = plan.made(v)
    if step.op.name in REDUCE and step.op.result == "index":
        return Kernel(plan, {v: step}, plan.shape(step.ins[0]), [], [v])
    gathers = step.op.name in ("take", "onehot") and all(isinstance(x, int) and plan.contiguous(x) for x in step.ins)
    return Call(plan, v, xp) if gathers or (step.op.name, step.dtype) in VALUES else None


class Call:
    """A gather or a draw as a kernel: ``source()`` and ``launches()`` as a ``Kernel`` has them."""

    work = 0

    def __init__(self, plan: Plan, v: int, xp: Any) -> None:
        self.v, self.xp, self.step = v, xp, plan.made(v)
        self.inputs = [x for x in self.step.ins if isinstance(x, int)]
        self.read = MEMORY.get(plan.dtype(self.inputs[-1]), "")  # the type of indices
        self.text = self.source()

    def source(self, name: str = "kernel") -> str:
        """Return the text of the kernel."""
        step, values = self.step, VALUES.get((self.step.op.name, self.step.dtype), "")
        classes = ["row", "column"] if step.attrs.get("axis") == 0 else ["column", "row"]
        return fill(
            {"take": TAKE, "onehot": ONEHOT}.get(step.op.name, RANDOM),
            name=name,
            over=OVER,
            values=values,
            narrow="narrowed" if step.dtype == "float16" else f"({MEMORY[step.dtype]})",
            T=MEMORY[step.dtype],
            P=self.read,
            row=classes[0],
            column=classes[1],
        )

    def legend(self, named: Callable[[int], str]) -> Iterator[str]:
        """Yield what each argument is, in the words of ``named``."""
        arrays = [] if self.step.kind == "random" else self.inputs
        words = ["y", "x", "places"] if len(arrays) == 2 else ["y", "labels"]
        yield from (f"{name}: {named(v)}" for name, v in zip(words, [self.v, *arrays], strict=False))

    def launches(self, values: dict[int, Any], layout: Layout, work: int) -> Iterator[Launch]:
        """Yield (source, grid, arguments) of what is to be run; IndexError when an index is out of range."""
        step, n = self.step, math.prod(self.step.shape)
        arrays = [layout(values[x])[0] for x in [self.v, *([] if step.kind == "random" else self.inputs)]]
        if step.op.name == "take":
            x, places = (values[v] for v in self.inputs)
            axis = step.attrs["axis"]
            self._check(places, x.shape[axis], True)
            sizes = [n, math.prod(places.shape), x.shape[axis], math.prod(x.shape[axis + 1 :])]
        elif step.op.name == "onehot":
            self._check(values[self.inputs[0]], step.attrs["nclass"], False)
            sizes = [n, step.shape[1]]
        else:
            size, n = n, -(-n // (4 if step.op.name == "randn" or step.dtype == "float64" else 8))
            seed, stream, first = values[self.inputs[0]].be.streams.blocks("noise", n)
            sizes = [
                n,
                size,
                *(wrapped(word) for word in (seed, stream, *(first >> 64 * k & 2**64 - 1 for k in range(4)))),
            ]
        if n:
            yield self.text, (min(-(-n // THREADS), BLOCKS), 1), [*arrays, *sizes]

    def _check(self, places: Any, size: int, below: bool) -> None:
        """Raise IndexError when an index is out of range: the card is asked for the least and the largest."""
        if math.prod(places.shape):
            low, high = int(self.xp.min(places)), int(self.xp.max(places))
            if low < (-size if below else 0) or high >= size:
                in_range(self.xp, places, size, "index" if below else "label", below)
