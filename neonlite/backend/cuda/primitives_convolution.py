"""How does a card convolve without cuDNN?  What filters meet is copied into columns, and multiplied at once (im2col).

A kernel writes as many columns as there is room for, and a product follows, which adds up each result in one go:
halves are rounded once. For the way back to the images, the columns hold the errors that a pixel met, so nothing is
added in memory. With a stride above 1 many of these are 0: cuDNN does better.

Source: Chellapilla, Puri and Simard, "High Performance Convolutional Neural Networks for Document Processing", 2006.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from neonlite.backend.cuda.launching import Launching, workspace
from neonlite.backend.cuda.words import fill
from neonlite.backend.primitives.convolution import add
from neonlite.backend.primitives.geometry import ConvLayer

AXES = "zyx"
SIZES = [f"{a}_{what}" for a in AXES for what in ("size", "places", "taps", "step", "offset", "reach", "over")]

COLUMNS = fill(
    """
struct Axis { Index size, places, taps, step, offset, reach, over; };
__device__ inline Index met(Axis a, Index place, Index tap)  // -1: it is outside, or between two
{
    const Index at = place * a.step + a.offset + tap * a.reach;
    return at >= 0 && at % a.over == 0 && at / a.over < a.size ? at / a.over : -1;
}

// Row (channel, tap), or (tap, channel) where channels are inner, and column (place, n): the pixel that the tap meets.
extern "C" __global__ void __launch_bounds__(256, 2) kernel(
    Element* rows, const Element* i, Index size, Index width, Index first, Index N, Index channels, Index inner,
    {sizes})
{
    const Axis {axes};
    const Index taps = Z.taps * Y.taps * X.taps;
    for (EACH(at, size)) {
        const Index row = at / width, column = at % width, n = column % N, place = first + column / N;
        const Index tap = inner ? row / channels : row % taps, c = inner ? row % channels : row / taps;
        const Index z = met(Z, place / X.places / Y.places, tap / X.taps / Y.taps);
        const Index y = met(Y, place / X.places % Y.places, tap / X.taps % Y.taps);
        const Index x = met(X, place % X.places, tap % X.taps);
        Pack<Element, V> pixels = {};
        if (z >= 0 && y >= 0 && x >= 0) pixels = load<V>(i + (((c * Z.size + z) * Y.size + y) * X.size + x) * N + n);
        store(rows + at, pixels);
    }
}
""",
    sizes=", ".join(f"Index {name}" for name in SIZES),
    axes=", ".join(f"{a.upper()} = {{{', '.join(x for x in SIZES if x[0] == a)}}}" for a in AXES),
)


class ConvolutionPrimitives(Launching):
    """Convolution and its two derivatives, of contiguous arrays (C, D, H, W, N), (C, T, R, S, K), (K, M, P, Q, N)."""

    def conv_fprop(self, layer: ConvLayer, i: Any, f: Any, o: Any, alpha: float, beta: float) -> None:
        filters = self.runtime.reshape(f, layer.dimF2).T
        out = self.runtime.reshape(o, (layer.K, -1))
        for columns, met in self._columns(layer, i, back=False):
            self.gemm(filters, met, out[:, columns], alpha, beta)

    def conv_bprop(self, layer: ConvLayer, f: Any, e: Any, d: Any, alpha: float, beta: float) -> None:
        filters, out = self.runtime.reshape(f, (layer.C, -1)), self.runtime.reshape(d, (layer.C, -1))
        for columns, met in self._columns(layer, e, back=True):
            self.gemm(filters, met, out[:, columns], alpha, beta)

    def conv_update(self, layer: ConvLayer, i: Any, e: Any, u: Any, alpha: float, beta: float) -> None:
        errors, out = self.runtime.reshape(e, (layer.K, -1)), self.runtime.reshape(u, layer.dimF2)
        total = self.scratch(
            "gradient", out.shape, i if i.dtype.itemsize > 2 else self.xp.empty(0, dtype=self.xp.float32)
        )
        for n, (columns, met) in enumerate(self._columns(layer, i, back=False)):
            self.gemm(met, errors[:, columns].T, total, alpha, float(n > 0))
        add(out, total, beta)

    def _columns(self, layer: ConvLayer, image: Any, back: bool) -> Iterator[tuple[slice, Any]]:
        """Yield some columns of the result, and the matrix of what filters meet there."""
        channels, places = (layer.K, layer.DHW) if back else (layer.C, layer.MPQ)
        each = zip(image.shape[1:4], places, layer.TRS, layer.strides, layer.padding, layer.dilation, strict=True)
        sizes = [(n, m, k, 1, p, -d, s) if back else (n, m, k, s, -p, d, 1) for n, m, k, s, p, d in each]
        height, width = channels * math.prod(layer.TRS), math.prod(places) * layer.N
        if pointwise(layer):
            yield slice(0, width), self.runtime.reshape(image, (height, width))  # they lie so already
            return
        step = max(1, workspace() // (height * layer.N * image.dtype.itemsize)) * layer.N
        for first in range(0, width, step):
            wide = min(step, width - first)
            rows = self.scratch("columns", (height, wide), image)
            more = [height * wide, wide, first // layer.N, layer.N, channels, int(back), *(n for x in sizes for n in x)]
            self.over(COLUMNS, image, height * wide, layer.N, [rows, image, *more])
            yield slice(first, first + wide), rows


def pointwise(layer: ConvLayer) -> bool:
    """Tell whether each pixel meets one filter of one pixel: then a product is all there is to do."""
    return {*layer.TRS, *layer.strides} == {1} and not any(layer.padding)
