"""What is the shape of a convolution, a pooling, a normalization over channels?  Layer objects: sizes, and no values.

Images are (C, D, H, W, N): feature maps, depth, height, width, and the minibatch innermost. Filters are
(C, T, R, S, K): input maps, depth, height, width, output maps. Results are (K, M, P, Q, N).
"""

from __future__ import annotations

import math
from typing import Any

Sizes = tuple[int, ...]
Taps = list[tuple[int, slice, slice]]  # (number in the window, where it lands, what it reads)


def output_dim(
    X: int, S: int, padding: int, strides: int, pooling: bool = False, dilation: int = 1, caffe: bool = False
) -> int:
    """Return how many windows fit along one axis: ``(X - S' + 2 padding) // strides + 1``, ``S' = dilation (S-1) + 1``.

    In caffe mode pooling counts a window that fits in part, as long as it begins inside the image or its first padding.
    ValueError when not one window fits.
    """
    reach = dilation * (S - 1) + 1
    if pooling and padding >= reach:
        raise ValueError(
            f"a pooling window of {reach} lies in the padding of {padding} alone: pad by {reach - 1} or less"
        )
    room = X - reach + 2 * padding
    if room < 0:
        raise ValueError(
            f"a window of {reach} (size {S}, dilation {dilation}) is larger than {X + 2 * padding}, "
            f"the size {X} with padding {padding} on both sides: use a smaller window, or more padding"
        )
    if not (caffe and pooling):
        return room // strides + 1
    size = -(-room // strides) + 1
    return size - ((size - 1) * strides >= X + padding)


def input_dim(P: int, R: int, padding: int, strides: int, dilation: int = 1) -> int:
    """Return the size whose convolution has size P: ``(P - 1) strides - 2 padding + dilation (R - 1) + 1``."""
    size = (P - 1) * strides - 2 * padding + dilation * (R - 1) + 1
    if size < 1:
        raise ValueError(f"padding {padding} leaves nothing of {size + 2 * padding}: pad less, or use a larger filter")
    return size


def windows(size: int, count: int, window: int, stride: int, padding: int) -> Taps:
    """Return, for each place in the windows along an axis, which windows have it inside the image, and where it is."""
    found = []
    for k in range(window):
        first = max(0, -(-(padding - k) // stride))
        last = min(count - 1, (size - 1 + padding - k) // stride)
        if first <= last:
            start = first * stride + k - padding
            found.append((k, slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)))
    return found


class LayerShape:
    """What all layer objects have: ``dimI`` and ``dimO`` with five sizes, ``dimI2`` and ``dimO2`` with two."""

    padding: Sizes
    strides: Sizes

    def __init__(self, backend: Any, dtype: str, N: int, dimI: Sizes, dimO: Sizes) -> None:
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


class ConvLayer(LayerShape):
    """A convolution from (C, D, H, W, N) with filters (C, T, R, S, K) to (K, M, P, Q, N)."""

    def __init__(
        self,
        backend: Any,
        dtype: str,
        NCK: Sizes,
        DHW: Sizes,
        TRS: Sizes,
        padding: Sizes,
        strides: Sizes,
        dilation: Sizes,
        MPQ: Sizes | None = None,
        relu: bool = False,
        bsum: bool = False,
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
        self.relu, self.bsum = relu, bsum


class DeconvLayer(ConvLayer):
    """The transpose of a convolution: from (K, M, P, Q, N) with filters (C, T, R, S, K) to (C, D, H, W, N).

    Its forward pass is ``bprop_conv``, and its backward pass ``fprop_conv``: ``dimI`` is what it gives.
    """


class PoolLayer(LayerShape):
    """Pooling of (C, D, H, W, N) over windows (J, T, R, S) to (K, M, P, Q, N): ``op`` is max, avg or l2."""

    lies_apart = False  # whether the images lay in a room when they were last pooled

    def __init__(
        self,
        backend: Any,
        dtype: str,
        op: str,
        N: int,
        CDHW: Sizes,
        JTRS: Sizes,
        padding: Sizes,
        strides: Sizes,
        caffe: bool,
    ) -> None:
        self.op, self.JTRS, self.padding, self.strides = op, JTRS, padding, strides
        self.TRS = JTRS[1:]
        self.J, self.T, self.R, self.S = JTRS
        each = zip(CDHW, JTRS, padding, strides, strict=True)
        KMPQ = tuple(output_dim(x, s, p, st, pooling=True, caffe=caffe) for x, s, p, st in each)
        super().__init__(backend, dtype, N, (*CDHW, N), (*KMPQ, N))
        self.dimF2 = None

    def taps(self) -> list[Taps]:
        """Return the places in the windows along each of the axes C, D, H and W."""
        each = zip(self.dimI[:4], self.dimO[:4], self.JTRS, self.strides, self.padding, strict=True)
        return [windows(*sizes) for sizes in each]


class LRNLayer(LayerShape):
    """Local response normalization of (C, D, H, W, N) over J neighboring channels: channels c - J//2 and on."""

    def __init__(self, backend: Any, dtype: str, N: int, CDHW: Sizes, J: int) -> None:
        self.J, self.padding, self.strides = J, (J // 2, 0, 0, 0), (1, 1, 1, 1)
        super().__init__(backend, dtype, N, (*CDHW, N), (*CDHW, N))
