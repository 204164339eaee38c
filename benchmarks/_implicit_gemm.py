"""Convolution of float32 images in CHWN by a matrix product whose operands are gathered: a candidate for the GPU.

python benchmarks/_implicit_gemm.py    # the instructions and registers of its kernels, which needs no GPU

``benchmarks/gpu_run.py`` checks it, and measures it beside cuDNN. It takes images with two axes, and one group.
"""

from __future__ import annotations

import re
import sys
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from neonlite.backend.primitives.geometry import ConvLayer
from neonlite.backend.runtimes.cuda.codegen import MAX_BLOCKS, PREAMBLE
from neonlite.backend.runtimes.cuda.graphs import launch_kernel
from neonlite.backend.runtimes.cuda.kernels import kernel_source
from neonlite.backend.runtimes.cuda.libraries import OPTIONS
from neonlite.typing import NativeArray

SOURCE = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
PASSES = "fprop", "dgrad", "wgrad"
GROUP = 32  # images, whose elements of a pixel are 128 bytes
MAX_THREADS = 384  # of a multiprocessor, so that each can have 168 registers; copies of single elements need more
WANTED_THREADS = 132 * MAX_THREADS  # results depend on it, so it is the same for all GPUs
MIN_TERMS = 128  # of a part of a sum; its result is written and read once more
SEGMENTS = 8  # of many parts, which are added by as many threads


class Tile(NamedTuple):
    """The rows and columns of the result that a block computes, and that a thread computes."""

    rows: int
    columns: int
    thread_rows: int = 8
    thread_columns: int = 8

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    def blocks(self, rows: int, columns: int) -> int:
        """Return the number of blocks of a result."""
        return -(-rows // self.rows) * -(-columns // self.columns)


# tile -> the instructions of a multiplication relative to those of the first
TILES = {
    Tile(64, 128): 1.0,
    Tile(64, 64): 1.02,
    Tile(32, 128): 1.03,
    Tile(16, 64, 4, 8): 1.15,
    Tile(32, 32, 8, 4): 1.15,
}

ADD_PARTS = """
// out = the sum of the parts, + bias, rectified. A thread adds every SEGMENTS-th part, in order; one adds their sums.
extern "C" __global__ void __launch_bounds__(256) kernel(
    float* out, const float* x, const float* bias, int size, int parts, int row_size, int relu)
{
    constexpr int WIDTH = 256 / SEGMENTS;
    __shared__ float sums[256];
    for (int first = blockIdx.x * WIDTH; first < size; first += gridDim.x * WIDTH) {
        const int i = first + threadIdx.x % WIDTH;
        float total = 0;
        if (i < size)
            #pragma unroll 8
            for (int part = threadIdx.x / WIDTH; part < parts; part += SEGMENTS) total += x[i + (long long)part * size];
        sums[threadIdx.x] = total;
        __syncthreads();
        if (threadIdx.x < WIDTH && i < size) {
            for (int n = 1; n < SEGMENTS; ++n) total += sums[threadIdx.x + n * WIDTH];
            if (bias) total += bias[i / row_size];
            out[i] = relu ? max_nan(total, 0.0f) : total;
        }
        __syncthreads();
    }
}
"""


class Work(NamedTuple):
    """How a pass is divided: its tile, the blocks of a part, phases, parts of sums, and images of a group."""

    tile: Tile
    blocks: int
    phases: int
    parts: int
    group: int
    terms: int  # of a step
    whole: bool  # whether all steps have so many terms


def divide(operation: str, layer: ConvLayer, tile: Tile | None = None) -> Work:
    """Return how a pass is divided, by default with the tile that is expected to be fastest."""
    (N, C, K), (R, S), strides = layer.NCK, layer.TRS[1:], layer.strides[1:]
    phases = prod(strides) if operation == "dgrad" else 1
    inputs = prod(-(-size // stride) for size, stride in zip(layer.DHW[1:], strides, strict=True))  # of a phase
    rows, columns, low, taps = {
        "fprop": (K, layer.P * layer.Q * N, C, R * S),
        "dgrad": (C, inputs * N, K, -(-R * S // phases)),
        "wgrad": (K, C * R * S, N, layer.P * layer.Q),
    }[operation]
    tile = tile or min(TILES, key=lambda t: TILES[t] * t.blocks(rows, columns) * t.rows * t.columns)
    blocks = tile.blocks(rows, columns)
    parts = max(1, min(WANTED_THREADS // (tile.threads * blocks * phases), taps * low // MIN_TERMS))
    group = N if N % GROUP or (operation == "wgrad" and parts < N // GROUP) else GROUP
    if operation == "wgrad":
        low, parts = group, parts - parts % (N // group)
    terms = 4 if low <= 4 else 8
    return Work(tile, blocks, phases, parts, group, terms, low % terms == 0)


def source(operation: str, work: Work, along_n: int = 4, along_k: int = 4) -> str:
    """Return the source of a kernel that copies so many elements along N and along K at once."""
    VA, VB, VO = (along_n, along_n, along_k) if operation == "wgrad" else (along_k, along_n, along_n)
    constants = dict(zip(("ROWS", "COLUMNS", "TM", "TN"), work.tile, strict=True)) | {"VA": VA, "VB": VB, "VO": VO}
    constants |= {"PASS": PASSES.index(operation), "TERMS": work.terms, "WHOLE": int(work.whole)}
    constants["BLOCKS"] = (MAX_THREADS if along_n == along_k == 4 else 256) // work.tile.threads
    return f"{PREAMBLE}constexpr int {', '.join(f'{name} = {n}' for name, n in constants.items())};\n{SOURCE}"


class ImplicitGemm:
    """The passes of convolutions, on a runtime with CUDA kernels."""

    def __init__(self, runtime: Any) -> None:
        self.runtime, self.kernels = runtime, dict[str, Any]()

    def launch(self, text: str, grid: tuple[int, int], threads: int, arguments: list[int]) -> None:
        """Launch a kernel, which is compiled first unless it has been."""
        if text not in self.kernels:
            self.kernels[text] = self.runtime.driver.compile(text)
        launch_kernel(self.runtime.driver, self.kernels[text], grid, threads, arguments)

    def run(
        self,
        operation: str,
        layer: ConvLayer,
        a: NativeArray,
        b: NativeArray,
        out: NativeArray,
        bias: NativeArray | None = None,
        relu: bool = False,
        tile: Tile | None = None,
    ) -> None:
        """Compute a pass of filters and images (fprop), filters and errors (dgrad), or errors and images (wgrad)."""
        if layer.groups > 1 or {layer.T, layer.D, layer.M} != {1} or layer.dtype != "float32":
            raise ValueError(f"expected a convolution of float32 images with two axes and one group, got {layer!r}")
        if max(layer.sizeI, layer.sizeO, layer.sizeF) >= 2**30 or max(layer.dimI[1:4]) + max(layer.padding) >= 2**15:
            raise ValueError(f"expected less than 2^30 elements and 2^15 pixels along an axis, got {layer!r}")
        work = divide(operation, layer, tile)
        parts = self.runtime.xp.empty((work.parts, out.size), dtype=out.dtype) if work.parts > 1 else out
        addresses = [0 if x is None else self.runtime.address_and_strides(x)[0] for x in (a, b, out, bias, parts)]
        x, y, z, shift, to = addresses
        along_n, along_k = (1 if n % 4 or any(address % 16 for address in (x, y, z)) else 4 for n in (layer.N, layer.K))
        sizes = layer.C, *layer.DHW[1:], layer.K, *layer.MPQ[1:], layer.N, *layer.TRS[1:]
        windows = *layer.padding[1:], *layer.strides[1:], *layer.dilation[1:], work.group, work.parts
        is_last = work.parts == 1
        arguments = [to, x, y, shift * is_last, *sizes, *windows, relu * is_last]
        grid = work.blocks, work.parts * work.phases
        self.launch(source(operation, work, along_n, along_k), grid, work.tile.threads, arguments)
        if work.parts > 1:
            self.add(parts, out, bias, relu, out.size // layer.K)

    def add(self, parts: NativeArray, out: NativeArray, bias: NativeArray | None, relu: bool, row_size: int) -> None:
        """Add parts (count, size), and rectify them; each row of the result has an element of the bias."""
        count, size = parts.shape
        segments = SEGMENTS if count > 2 * SEGMENTS else 1
        text = kernel_source(f"constexpr int SEGMENTS = {segments};{ADD_PARTS}", "float32")
        z, x, shift = (0 if t is None else self.runtime.address_and_strides(t)[0] for t in (out, parts, bias))
        grid = min(-(-size * segments // 256), MAX_BLOCKS), 1
        self.launch(text, grid, 256, [z, x, shift, size, count, row_size, int(relu)])


# --- instructions ----------------------------------------------------------------------------------------------------


def ways(lines: list[tuple[str, str]]) -> list[list[str]]:
    """Return the instructions of each way once around the loop that multiplies most; ``lines``: of ``sass.body``."""
    blocks, labels = list[list[str]]([[]]), dict[str, int]()
    for label, text in lines:
        if label or (blocks[-1] and re.search(r"\b(BRA|EXIT)\b", blocks[-1][-1])):
            blocks.append([])
        if label:
            labels[label] = len(blocks) - 1
        elif text != "NOP":
            blocks[-1].append(text)

    def after(n: int) -> set[int]:
        last = blocks[n][-1] if blocks[n] else ""
        target = re.search(r"\bBRA\b.*`\((\S+)\)", last)
        goes_on = n + 1 < len(blocks) and not re.match(r"EXIT|BRA `", last)
        return {n for n in (n + 1,) if goes_on} | ({labels[target[1]]} if target else set())

    first = max(range(len(blocks)), key=lambda n: count(blocks[n], "FFMA"))
    loop = {first}
    while more := {n for n in range(len(blocks)) if n not in loop and loop & after(n)}:
        loop |= more
    found, paths = list[list[int]](), [[first]]
    while paths:
        path = paths.pop()
        found += [path] * (first in after(path[-1]))
        paths += [[*path, n] for n in (after(path[-1]) & loop) - {*path}]
    return [[text for n in path for text in blocks[n]] for path in found]


def count(instructions: list[str], name: str) -> int:
    """Return how many instructions have a name."""
    return sum(bool(re.match(rf"(@!?U?P\d )?{name}\b", text)) for text in instructions)


def main() -> None:
    """Print, for each GPU, pass and tile, the instructions of a step of a sum, and registers and memory."""
    import sass
    from helpers import nvrtc

    if nvrtc.library() is None or (nvdisasm := sass.disassembler()) is None:
        sys.exit("expected nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvdisasm, which are not installed")
    for architecture in sass.ARCHITECTURES:
        for operation, tile in ((operation, tile) for operation in PASSES for tile in TILES):
            compiled = nvrtc.compiled(source(operation, Work(tile, 1, 1, 1, GROUP, 8, True)), architecture, OPTIONS)
            found = ways(sass.body(sass.listings(compiled.binary, nvdisasm)["kernel"]))
            found = [way for way in found if count(way, "LDG") == max(count(way, "LDG") for way in found)]
            usual, most = min(found, key=len), max(found, key=len)
            shared = re.search(r"(\d+) bytes smem", compiled.log)
            warps = 65536 // (-(-compiled.registers // 8) * 8 * tile.threads) * tile.threads // 32
            print(
                f"{architecture} {operation} {tile.rows}x{tile.columns}: FFMA {count(usual, 'FFMA')} of {len(usual)}, "
                f"of {len(most)} at the next tap or pixel; {compiled.registers} registers, "
                f"{compiled.spilled + compiled.stack} bytes spilled, {warps} of 64 warps, "
                f"{shared[1]} bytes shared"
            )


if __name__ == "__main__":
    main()
