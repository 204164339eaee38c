"""Convolution of float32 images in CHWN by a matrix product whose operands are gathered: a candidate for the GPU.

python benchmarks/_implicit_gemm.py    # instructions and registers of its kernels, which needs no GPU

``benchmarks/gpu_run.py`` checks it, and measures it beside cuDNN. It takes images with two axes, and one group.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from neonlite.backend.primitives.geometry import ConvLayer
from neonlite.backend.runtimes.cuda.codegen import MAX_BLOCKS, PREAMBLE
from neonlite.backend.runtimes.cuda.graphs import launch_kernel
from neonlite.backend.runtimes.cuda.kernels import kernel_source
from neonlite.typing import NativeArray

SOURCE = Path(__file__).with_suffix(".cu").read_text(encoding="utf-8")
PASSES = "fprop", "dgrad", "wgrad"
TERMS = 8  # of a step of a sum
MIN_STEPS = 8  # of a part of a sum
GROUP = 32  # images, whose elements of a pixel are 128 bytes
MAX_THREADS = 384  # of a multiprocessor, with 168 registers each
WANTED_THREADS = 132 * 256  # results depend on it, so it is the same for all GPUs


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


# tile -> the time of a multiplication relative to that of the first: by its instructions, not measured
TILES = {Tile(64, 128): 1.0, Tile(64, 64): 1.05, Tile(32, 128): 1.1, Tile(16, 128, 4, 8): 1.35, Tile(32, 32, 8, 4): 1.35}

ADD_PARTS = """
// out = the sum of the parts in order, + bias, rectified
extern "C" __global__ void __launch_bounds__(256) kernel(
    float* out, const float* x, const float* bias, int size, int parts, int row_size, int relu)
{
    for (GRID_STRIDE(i, size)) {
        float total = x[i];
        #pragma unroll 8
        for (int part = 1; part < parts; ++part) total += x[i + (long long)part * size];
        if (bias) total += bias[i / row_size];
        out[i] = relu ? max_nan(total, 0.0f) : total;
    }
}
"""


def source(operation: str, tile: Tile, along_n: int = 4, along_k: int = 4, whole: bool = True) -> str:
    """Return the source of a kernel that copies so many elements along N and along K at once, in whole steps or not."""
    VA, VB, VO = (along_n, along_n, along_k) if operation == "wgrad" else (along_k, along_n, along_n)
    constants = dict(zip(("ROWS", "COLUMNS", "TM", "TN"), tile, strict=True)) | {"VA": VA, "VB": VB, "VO": VO}
    constants |= {"PASS": PASSES.index(operation), "WHOLE": int(whole), "BLOCKS": MAX_THREADS // tile.threads}
    return f"{PREAMBLE}constexpr int {', '.join(f'{name} = {n}' for name, n in constants.items())};\n{SOURCE}"


class Work(NamedTuple):
    """How a pass is divided: its tile, the blocks of a part, phases, parts of sums, images of a group, and terms."""

    tile: Tile
    blocks: int
    phases: int
    parts: int
    group: int
    low: int  # terms that are adjacent, or channels


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
    parts = max(1, min(WANTED_THREADS // (tile.threads * blocks * phases), taps * -(-low // TERMS) // MIN_STEPS))
    group = N if N % GROUP or (operation == "wgrad" and N // GROUP > parts) else GROUP
    if operation == "wgrad":
        low, parts = group, parts - parts % (N // group)
    return Work(tile, blocks, phases, parts, group, low)


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
        work = divide(operation, layer, tile)
        parts = self.runtime.xp.empty((work.parts, out.size), dtype=out.dtype) if work.parts > 1 else out
        x, y, z, shift, to = (
            0 if t is None else self.runtime.address_and_strides(t)[0] for t in (a, b, out, bias, parts)
        )
        along_n, along_k = (1 if n % 4 or any(address % 16 for address in (x, y, z)) else 4 for n in (layer.N, layer.K))
        sizes = [layer.C, *layer.DHW[1:], layer.K, *layer.MPQ[1:], layer.N, *layer.TRS[1:]]
        windows = [*layer.padding[1:], *layer.strides[1:], *layer.dilation[1:], work.group, work.parts]
        last = [shift, int(relu)] if work.parts == 1 else [0, 0]
        text = source(operation, work.tile, along_n, along_k, work.low % TERMS == 0)
        grid = work.blocks, work.parts * work.phases
        self.launch(text, grid, work.tile.threads, [to, x, y, last[0], *sizes, *windows, last[1]])
        if work.parts > 1:
            grid = min(-(-out.size // 256), MAX_BLOCKS), 1
            arguments = [z, to, shift, out.size, work.parts, out.size // layer.K, int(relu)]
            self.launch(kernel_source(ADD_PARTS, "float32"), grid, 256, arguments)
