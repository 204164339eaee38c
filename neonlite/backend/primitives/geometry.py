"""Layer objects of convolution, deconvolution, pooling and LRN: shapes, strides, padding and dilation.

Images are (C, D, H, W, N): channels, depth, height, width, batch size. Filters are (C, T, R, S, K): input channels,
depth, height, width, output channels. Outputs are (K, M, P, Q, N).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neonlite.backend.base import BackendBase

from neonlite.backend.base import Untracked

Shape = tuple[int, ...]
WindowOffsets = list[tuple[int, slice, slice]]  # (index in the window, slice of the output, slice of the input)


def output_dim(
    X: int, S: int, padding: int, strides: int, pooling: bool = False, dilation: int = 1, caffe: bool = False
) -> int:
    """Return how many windows fit along an axis: ``(X - S' + 2 padding) // strides + 1``, ``S' = dilation (S-1) + 1``.

    In Caffe mode pooling also counts a partial last window if it starts inside the image or the padding before it.
    ValueError if no window fits.
    """
    dilated_size = dilation * (S - 1) + 1
    if pooling and padding >= dilated_size:
        raise ValueError(
            f"expected a padding smaller than the pooling window of {dilated_size}, got a padding of {padding}. "
            f"Use a padding of at most {dilated_size - 1}."
        )
    slack = X - dilated_size + 2 * padding
    if slack < 0:
        raise ValueError(
            f"a window of {dilated_size} (size {S}, dilation {dilation}) is larger than {X + 2 * padding}, "
            f"the size {X} with padding {padding} on both sides. Use a smaller window, or more padding."
        )
    if not (caffe and pooling):
        return slack // strides + 1
    size = -(-slack // strides) + 1
    return size - ((size - 1) * strides >= X + padding)


def input_dim(P: int, R: int, padding: int, strides: int, dilation: int = 1) -> int:
    """Return the size whose convolution has size P: ``(P - 1) strides - 2 padding + dilation (R - 1) + 1``."""
    size = (P - 1) * strides - 2 * padding + dilation * (R - 1) + 1
    if size < 1:
        raise ValueError(
            f"padding {padding} leaves nothing of {size + 2 * padding}. Use less padding, or a larger filter."
        )
    return size


def axis_window_offsets(size: int, count: int, window: int, stride: int, padding: int) -> WindowOffsets:
    """Return (window offset, slice of the outputs that use it, slice of the inputs that they read) along an axis.

    An output uses an offset if the input there is inside the image.
    """
    offsets = []
    for k in range(max(0, padding - (count - 1) * stride), min(window, size + padding)):  # those inside the image
        first = max(0, -(-(padding - k) // stride))
        last = min(count - 1, (size - 1 + padding - k) // stride)
        if first <= last:
            start = first * stride + k - padding
            offsets.append((k, slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)))
    return offsets


class LayerObject(Untracked):
    """Base of layer objects: ``dimI`` and ``dimO`` have five axes, ``dimI2`` and ``dimO2`` two."""

    padding: Shape
    strides: Shape

    def __init__(self, backend: BackendBase, dtype: str, N: int, dimI: Shape, dimO: Shape) -> None:
        self.backend, self.dtype, self.N = backend, dtype, N
        self.dimI, self.dimO = dimI, dimO
        self.C, self.DHW = dimI[0], dimI[1:4]
        self.K, self.MPQ = dimO[0], dimO[1:4]
        self.D, self.H, self.W = self.DHW
        self.M, self.P, self.Q = self.MPQ
        self.sizeI, self.sizeO = math.prod(dimI), math.prod(dimO)
        self.dimI2, self.dimO2 = (self.sizeI // N, N), (self.sizeO // N, N)
        self.nOut = self.sizeO // N
        self.NCK = (N, self.C, self.K)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dimI} -> {self.dimO}, padding {self.padding}, strides {self.strides})"


class ConvLayer(LayerObject):
    """The layer object of a convolution from (C, D, H, W, N) with filters (C, T, R, S, K) to (K, M, P, Q, N)."""

    def __init__(
        self,
        backend: BackendBase,
        dtype: str,
        NCK: Shape,
        DHW: Shape,
        TRS: Shape,
        padding: Shape,
        strides: Shape,
        dilation: Shape,
        MPQ: Shape | None = None,
        relu: bool = False,
    ) -> None:
        N, C, K = NCK
        self.TRS, self.padding, self.strides, self.dilation = TRS, padding, strides, dilation
        self.T, self.R, self.S = TRS
        each = zip(DHW, TRS, padding, strides, dilation, strict=True)
        MPQ = MPQ or tuple(output_dim(x, s, p, st, dilation=d) for x, s, p, st, d in each)
        super().__init__(backend, dtype, N, (C, *DHW, N), (K, *MPQ, N))
        self.dimF = (C, *TRS, K)
        self.dimF2 = (C * math.prod(TRS), K)
        self.sizeF = math.prod(self.dimF)
        self.relu, self.bsum = relu, False


class DeconvLayer(ConvLayer):
    """The layer object of a transposed convolution from (K, M, P, Q, N) with filters (C, T, R, S, K) to images.

    Its forward pass is ``bprop_conv``, and its backward pass ``fprop_conv``; its output shape is ``dimI``.
    """


class PoolLayer(LayerObject):
    """The layer object of a pooling of (C, D, H, W, N) over windows (J, T, R, S) to (K, M, P, Q, N).

    ``op`` is "max", "avg" or "l2".
    """

    def __init__(
        self,
        backend: BackendBase,
        dtype: str,
        op: str,
        N: int,
        CDHW: Shape,
        JTRS: Shape,
        padding: Shape,
        strides: Shape,
        caffe: bool,
    ) -> None:
        self.op, self.JTRS, self.padding, self.strides = op, JTRS, padding, strides
        self.TRS = JTRS[1:]
        self.J, self.T, self.R, self.S = JTRS
        each = zip(CDHW, JTRS, padding, strides, strict=True)
        KMPQ = tuple(output_dim(x, s, p, st, pooling=True, caffe=caffe) for x, s, p, st in each)
        super().__init__(backend, dtype, N, (*CDHW, N), (*KMPQ, N))
        self.dimF2 = None

    def window_offsets(self) -> list[WindowOffsets]:
        """Return the window offsets along each of the axes C, D, H and W."""
        each = zip(self.dimI[:4], self.dimO[:4], self.JTRS, self.strides, self.padding, strict=True)
        return [axis_window_offsets(*sizes) for sizes in each]


class LRNLayer(LayerObject):
    """The layer object of local response normalization of (C, D, H, W, N) over J neighboring channels from c - J//2."""

    def __init__(self, backend: BackendBase, dtype: str, N: int, CDHW: Shape, J: int) -> None:
        self.J, self.padding, self.strides = J, (J // 2, 0, 0, 0), (1, 1, 1, 1)
        super().__init__(backend, dtype, N, (*CDHW, N), (*CDHW, N))
