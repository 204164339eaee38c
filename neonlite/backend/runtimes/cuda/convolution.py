"""Convolution without cuDNN: im2col and a matrix product; and the reorder of images between CHWN and NHWC."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from neonlite.backend.planning.layout import ImageOperand, ImageShape, image_shape, read_chwn, read_nhwc
from neonlite.backend.primitives.convolution import scale_and_add
from neonlite.backend.primitives.geometry import ConvLayer
from neonlite.backend.runtimes.cuda.codegen import MAX_BLOCKS
from neonlite.backend.runtimes.cuda.kernels import KernelLauncher, workspace_limit
from neonlite.backend.runtimes.cuda.op_templates import substitute
from neonlite.typing import NativeArray

if TYPE_CHECKING:
    from neonlite.backend.memory import Allocation

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
    return {*layer.TRS, *layer.strides} == {1} and not any(layer.padding)


# --- reorder images between CHWN and NHWC on the GPU with a tiled transpose through shared memory ---
#
# cuDNN is fastest with images (N, D, H, W, C) and filters (K, T, R, S, C). Pooling and normalization need no kernels
# for NHWC: with the sizes of the batch and channel axes exchanged, the same kernels apply.

TILE_SIZE = 64  # elements along each side of a tile

REORDER_KERNEL = substitute(
    """
// Transpose (channels, pixels, batch) to (batch, pixels, channels), or back. A block transposes tiles in shared
// memory. A thread loads and stores V elements at once. Rows of the tile have an odd number of
// elements, which avoids shared-memory bank conflicts.
extern "C" __global__ void __launch_bounds__(256) kernel(
    Element* target, const Element* source, Index channels, Index pixels, Index batch_size, Index to_chwn)
{
    enum { TILE = {TILE_SIZE}, PACKS = TILE / V, ROWS = 256 / PACKS };
    __shared__ Element tile[TILE][TILE + 1];
    const Index columns = channels * pixels, tiles_per_row = (batch_size + TILE - 1) / TILE;
    const Index tiles = (columns + TILE - 1) / TILE * tiles_per_row;
    const Index lane = threadIdx.x % PACKS * V, row = threadIdx.x / PACKS;
    for (Index t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Index first = t / tiles_per_row * TILE, image = t % tiles_per_row * TILE;
        #pragma unroll
        for (int r = 0; r < TILE / ROWS; ++r) {
            const Index k = row + r * ROWS, j = first + (to_chwn ? lane : k), n = image + (to_chwn ? k : lane);
            if (j < columns && n < batch_size) {
                const Index at = to_chwn ? n * columns + j : (j % channels * pixels + j / channels) * batch_size + n;
                const Pack<Element, V> values = load<V>(source + at);
                #pragma unroll
                for (int q = 0; q < V; ++q) tile[k][lane + q] = values.at[q];
            }
        }
        __syncthreads();
        #pragma unroll
        for (int r = 0; r < TILE / ROWS; ++r) {
            const Index k = row + r * ROWS, j = first + (to_chwn ? k : lane), n = image + (to_chwn ? lane : k);
            if (j < columns && n < batch_size) {
                const Index at = to_chwn ? (j % channels * pixels + j / channels) * batch_size + n : n * columns + j;
                Pack<Element, V> values;
                #pragma unroll
                for (int q = 0; q < V; ++q) values.at[q] = tile[lane + q][k];
                store(target + at, values);
            }
        }
        __syncthreads();
    }
}
""",
    TILE_SIZE=str(TILE_SIZE),
)


class CudaReorderer(KernelLauncher):
    """NHWC buffers of images, and the kernel that reorders them."""

    supports_nhwc_trees = True

    @property
    def supports_nhwc(self) -> bool:  # type: ignore[override]
        """Whether images may be in NHWC: where cuDNN is available."""
        return self.runtime.driver.cudnn is not None

    def allocate_buffer(self, like: NativeArray) -> tuple[NativeArray, Allocation]:
        """Return a flat buffer of as many elements as ``like``, and its entry in the memory tracker."""
        request = "NHWC images", like.nbytes, lambda: self.runtime.allocate(like.nbytes).view(like.dtype)
        buffer: tuple[NativeArray, Allocation] = self.runtime.allocate_tracked("workspaces", *request)
        return buffer

    def reorder(self, shape: ImageShape, chwn: NativeArray, nhwc: NativeArray, to_chwn: bool) -> None:
        """Copy images from CHWN to NHWC, or back with ``to_chwn``."""
        channels, pixels, batch_size = shape
        tiles = -(-channels * pixels // TILE_SIZE) * -(-batch_size // TILE_SIZE)
        if tiles:
            pair = (chwn, nhwc) if to_chwn else (nhwc, chwn)
            V = 16 // chwn.dtype.itemsize
            while (
                batch_size % V
                or channels * pixels % V
                or any(self.runtime.address_and_strides(x)[0] % (V * x.itemsize) for x in pair)
            ):
                V //= 2
            self.launch(REORDER_KERNEL, str(chwn.dtype), (min(tiles, MAX_BLOCKS), 1), [*pair, *shape, int(to_chwn)], V)

    def nhwc_operand(self, purpose: str, x: NativeArray) -> NativeArray:
        """Return images in NHWC: from the layout cache of their memory, or as a copy in a workspace."""
        if isinstance(x, ImageOperand) and (images := read_nhwc(x)) is not None:
            return images
        array = read_chwn(x)
        copy = self.get_workspace(purpose, (array.size,), array)
        self.reorder(image_shape(array), array, copy, False)
        return copy
