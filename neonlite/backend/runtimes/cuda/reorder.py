"""Reorder images between CHWN and NHWC on the GPU with a tiled transpose through shared memory.

cuDNN is fastest with images (N, D, H, W, C) and filters (K, T, R, S, C). Pooling and normalization need no kernels for
NHWC: with the sizes of the batch and channel axes exchanged, the same kernels apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neonlite.backend.planning.layout import ImageOperand, ImageShape, image_shape, read_chwn, read_nhwc
from neonlite.backend.runtimes.cuda.codegen import MAX_BLOCKS
from neonlite.backend.runtimes.cuda.launch import KernelLauncher
from neonlite.backend.runtimes.cuda.op_templates import substitute
from neonlite.typing import NativeArray

if TYPE_CHECKING:
    from neonlite.backend.memory import Allocation

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
