"""Layer objects of primitives (shapes, strides, padding and dilation), and checks of their operands."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from numbers import Real
from typing import Any, NamedTuple

from neonlite.backend.tensor import Tensor, overlap
from neonlite.backend.validation import check_open, one_of
from neonlite.messages import describe
from neonlite.tree_structure import refuse_in_trace
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, BackendBase, DType, DTypeLike, NativeArray, Untracked

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


class Layout(Enum):
    """An order of the axes of images, besides CHWN, in which a library computes: with D, H and W for the pixels."""

    NHWC = "NHWC"
    NCHW = "NCHW"

    def axes(self, ndim: int) -> Shape:
        """Return the axes (C, *sizes, N) in the order of the layout."""
        channels, sizes = (0,), tuple(range(1, ndim - 1))
        return (ndim - 1, *sizes, *channels) if self is Layout.NHWC else (ndim - 1, *channels, *sizes)

    def from_chwn(self, shape: Shape) -> Shape:
        """Return a shape (C, *sizes, N) in the order of the layout."""
        return tuple(shape[a] for a in self.axes(len(shape)))

    def to_chwn(self, shape: Shape) -> Shape:
        """Return the shape (C, *sizes, N) of a shape in the order of the layout."""
        return tuple(shape[n] for n in self.inverse_axes(len(shape)))

    def keeps_order(self, shape: Shape) -> bool:
        """Return whether images (C, *sizes, N) have the same order in memory in the layout."""
        axes = [a for a in self.axes(len(shape)) if shape[a] > 1]
        return axes == sorted(axes)

    def inverse_axes(self, ndim: int) -> Shape:
        """Return the axes of the layout in the order (C, *sizes, N)."""
        return tuple(map(self.axes(ndim).index, range(ndim)))


class ImageShape(NamedTuple):
    """The shape of images with merged pixels: CHWN is (channels, pixels, batch_size), NHWC is its reverse.

    NCHW is the NHWC of images with one channel, whose pixels are those of all channels.
    """

    channels: int
    pixels: int  # D * H * W
    batch_size: int


class ReorderedImages(NamedTuple):
    """Images of a plan in another layout than CHWN: ``memory`` is (N, D, H, W, C) or (N, C, D, H, W)."""

    memory: NativeArray
    layout: Layout

    @property
    def array(self) -> NativeArray:
        """The view (C, D, H, W, N)."""
        return self.memory.transpose(self.layout.inverse_axes(5))

    @property
    def flat(self) -> NativeArray:
        """The view with one axis."""
        return self.memory.reshape(-1)

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.memory.dtype


def image_shape(shape: Shape, layout: Layout) -> ImageShape:
    """Return the image shape with which images (C, *sizes, N) are reordered to a layout, and back."""
    channels, *sizes, batch_size = shape
    if layout is Layout.NHWC:
        return ImageShape(channels, math.prod(sizes), batch_size)
    return ImageShape(1, math.prod(shape[:-1]), batch_size)


def chwn_view(x: NativeArray) -> NativeArray:
    """Return images of a plan as an array (C, D, H, W, N), of which those in another layout are a view."""
    return x.array if isinstance(x, ReorderedImages) else x


def as_chwn(x: NativeArray) -> NativeArray:
    """Return images of a plan as an array (C, D, H, W, N), copied from another layout."""
    return x.array.copy() if isinstance(x, ReorderedImages) else x


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
    """The layer object of a convolution from (C, D, H, W, N) with filters (C, T, R, S, K) to (K, M, P, Q, N).

    ``padding`` is that before the images. ``MPQ``, the numbers of windows, implies the padding after them; by default
    it is the same. With ``groups``, filters are (C / groups, T, R, S, K).
    """

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
        groups: int = 1,
    ) -> None:
        N, C, K = NCK
        self.TRS, self.padding, self.strides, self.dilation = TRS, padding, strides, dilation
        self.T, self.R, self.S = TRS
        each = zip(DHW, TRS, padding, strides, dilation, strict=True)
        MPQ = MPQ or tuple(output_dim(x, s, p, st, dilation=d) for x, s, p, st, d in each)
        super().__init__(backend, dtype, N, (C, *DHW, N), (K, *MPQ, N))
        self.groups = groups
        self.dimF = (C // groups, *TRS, K)
        self.dimF2 = (C // groups * math.prod(TRS), K)
        self.sizeF = math.prod(self.dimF)
        self.relu, self.bsum = relu, False

    @property
    def padding_after(self) -> Shape:
        """The padding after the images that the last windows cover."""
        each = zip(self.DHW, self.MPQ, self.TRS, self.strides, self.padding, self.dilation, strict=True)
        return tuple(max(0, (m - 1) * st + d * (k - 1) + 1 - x - p) for x, m, k, st, p, d in each)

    @property
    def has_equal_padding(self) -> bool:
        """Whether there are as many windows as with the same padding after the images as before."""
        each = zip(self.DHW, self.MPQ, self.TRS, self.strides, self.padding, self.dilation, strict=True)
        return all(m == (x + 2 * p - d * (k - 1) - 1) // st + 1 for x, m, k, st, p, d in each)


class DeconvLayer(ConvLayer):
    """The layer object of a transposed convolution from (K, M, P, Q, N) with filters (C, T, R, S, K) to images.

    Its forward pass is ``bprop_conv``, and its backward pass ``fprop_conv``; its output shape is ``dimI``.
    """


class PoolLayer(LayerObject):
    """The layer object of a pooling of (C, D, H, W, N) over windows (J, T, R, S) to (K, M, P, Q, N).

    ``op`` is "max", "avg", "l2", or in plans "sum". ``padding`` is that before the images, and ``KMPQ`` implies that
    after them.
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
        KMPQ: Shape | None = None,
    ) -> None:
        self.op, self.JTRS, self.padding, self.strides = op, JTRS, padding, strides
        self.TRS = JTRS[1:]
        self.J, self.T, self.R, self.S = JTRS
        each = zip(CDHW, JTRS, padding, strides, strict=True)
        KMPQ = KMPQ or tuple(output_dim(x, s, p, st, pooling=True, caffe=caffe) for x, s, p, st in each)
        super().__init__(backend, dtype, N, (*CDHW, N), (*KMPQ, N))
        self.dimF2 = None

    @property
    def is_channelwise(self) -> bool:
        """Whether windows have one channel and no padding along channels, so that NHWC images can be pooled."""
        return bool(self.J == 1 and self.C == self.K and not self.padding[0])

    @property
    def covers_image(self) -> bool:
        """Whether each element of the image is in exactly one window, and there is no padding."""
        each = zip(self.dimI[:4], self.dimO[:4], self.JTRS, self.strides, self.padding, strict=True)
        return all(not pad and window == stride and n == count * window for n, count, window, stride, pad in each)

    def window_offsets(self) -> list[WindowOffsets]:
        """Return the window offsets along each of the axes C, D, H and W."""
        each = zip(self.dimI[:4], self.dimO[:4], self.JTRS, self.strides, self.padding, strict=True)
        return [axis_window_offsets(*sizes) for sizes in each]


class LRNLayer(LayerObject):
    """The layer object of local response normalization of (C, D, H, W, N) over J neighboring channels from c - J//2."""

    def __init__(self, backend: BackendBase, dtype: str, N: int, CDHW: Shape, J: int) -> None:
        self.J, self.padding, self.strides = J, (J // 2, 0, 0, 0), (1, 1, 1, 1)
        super().__init__(backend, dtype, N, (*CDHW, N), (*CDHW, N))


# --- backend methods that create layer objects: conv_layer, deconv_layer, pool_layer and lrn_layer ---


class LayerObjectMethods(BackendBase):
    """The methods of ``Backend`` that create layer objects."""

    def output_dim(self, X: int, S: int, padding: int, strides: int, pooling: bool = False, dilation: int = 1) -> int:
        """Return the output size of a convolution or pooling: ``(X - S' + 2 padding) // strides + 1``.

        ``S' = dilation (S - 1) + 1``. In Caffe mode pooling also counts a partial last window.

        Parameters
        ----------
        X : int
            Input size along the axis.
        S : int
            Window size.
        padding, strides : int
            Padding on both sides, and stride.
        pooling : bool
            Whether it is a pooling window.
        dilation : int
            Distance of neighboring window elements.

        Returns
        -------
        int
            Number of windows that fit.

        Raises
        ------
        ValueError
            If no window fits.

        Examples
        --------
        >>> import neonlite as nl
        >>> nl.Backend("cpu").output_dim(28, 5, 2, 2)
        14
        """
        X, S, strides, dilation = check_ints("output_dim", 1, X=X, S=S, strides=strides, dilation=dilation)
        (padding,) = check_ints("output_dim", 0, padding=padding)
        caffe = self.check_caffe_compat()
        size = with_error_prefix("output_dim", output_dim, X, S, padding, strides, pooling, dilation, caffe)
        return int(size)

    def set_caffe_compat(self) -> None:
        """Compute pooling sizes and scale dropout as Caffe does, from now on."""
        self.compat_mode = "caffe"

    def check_caffe_compat(self) -> bool:
        """Return whether pooling sizes and dropout are as in Caffe."""
        return self.compat_mode == "caffe"

    def conv_layer(
        self,
        dtype: DTypeLike,
        N: int,
        C: int,
        K: int,
        D: int = 1,
        H: int = 1,
        W: int = 1,
        T: int = 1,
        R: int = 1,
        S: int = 1,
        pad_d: int = 0,
        pad_h: int = 0,
        pad_w: int = 0,
        str_d: int = 1,
        str_h: int = 1,
        str_w: int = 1,
        relu: int = False,
        bsum: int = False,
        dil_d: int = 1,
        dil_h: int = 1,
        dil_w: int = 1,
    ) -> ConvLayer:
        """Create the layer object of a convolution of images (C, D, H, W, N) with filters (C, T, R, S, K).

        Parameters
        ----------
        dtype : str or dtype
            A float dtype.
        N, C, K : int
            Batch size, input channels, output channels.
        D, H, W : int
            Depth, height and width of the images.
        T, R, S : int
            Depth, height and width of the filters.
        pad_d, pad_h, pad_w : int
            Padding on both sides.
        str_d, str_h, str_w : int
            Strides.
        relu : bool
            Whether ``fprop_conv`` always applies relu. As in neon 2.6, three positional integers after ``str_w`` are
            ``dil_d, dil_h, dil_w`` instead.
        bsum : bool
            For compatibility with neon, the attribute ``bsum`` without effect: pass ``bsum`` to ``fprop_conv``.
        dil_d, dil_h, dil_w : int
            Dilation.

        Returns
        -------
        ConvLayer
            The layer object.

        Raises
        ------
        ValueError
            If a filter does not fit its padded image, or a size is not an integer in its range.
        TypeError
            If the dtype is not a float dtype.
        """
        if not isinstance(relu, bool):  # positional arguments of neon 2.6; keyword arguments are unaffected
            dil_d, dil_h, dil_w = relu, dil_h if bsum is False else bsum, dil_w if dil_d == 1 else dil_d
            relu = bsum = False
        sizes = check_ints("conv_layer", 1, N=N, C=C, K=K, D=D, H=H, W=W, T=T, R=R, S=S)
        strides = check_ints("conv_layer", 1, str_d=str_d, str_h=str_h, str_w=str_w)
        dilation = check_ints("conv_layer", 1, dil_d=dil_d, dil_h=dil_h, dil_w=dil_w)
        padding = check_ints("conv_layer", 0, pad_d=pad_d, pad_h=pad_h, pad_w=pad_w)
        name, (NCK, DHW, TRS) = _check_float_dtype(self, "conv_layer", dtype), (sizes[:3], sizes[3:6], sizes[6:])
        layer: ConvLayer = with_error_prefix(
            "conv_layer", ConvLayer, self, name, NCK, DHW, TRS, padding, strides, dilation
        )
        layer.relu, layer.bsum = relu, bool(bsum)
        return layer

    def deconv_layer(self, dtype: DTypeLike, N: int, C: int, K: int, *sizes: int, **named: int) -> DeconvLayer:
        """Create the layer object of a transposed convolution, from images (K, M, P, Q, N) to (C, D, H, W, N).

        ``H = (P - 1) str_h - 2 pad_h + dil_h (R - 1) + 1``, and so on. Positional sizes are either ``P, Q, R, S,
        padding, strides`` or ``M, P, Q, T, R, S, padding, strides, dilation``, the latter in groups of three.

        Parameters
        ----------
        dtype : str or dtype
            A float dtype.
        N, C, K : int
            Batch size, output channels, input channels.
        M, P, Q : int
            Depth, height and width of the input images; M is 1 by default.
        T, R, S : int
            Depth, height and width of the filters, 1 by default.
        pad_d, pad_h, pad_w : int
            Padding, 0 by default.
        str_d, str_h, str_w : int
            Strides, 1 by default.
        dil_d, dil_h, dil_w : int
            Dilation, 1 by default.

        Returns
        -------
        DeconvLayer
            The layer object, for ``bprop_conv``.

        Raises
        ------
        ValueError
            If the output would be empty, or a size is not an integer in its range.
        TypeError
            If the dtype is not a float dtype, or sizes are missing, unknown or ambiguous.
        """
        positions = DECONV_2D_ARGS if len(sizes) % 3 else DECONV_3D_ARGS
        if len(sizes) > len(positions) or (positions is DECONV_2D_ARGS and len(sizes) not in (0, 1, 2, 4, 7, 10)):
            raise TypeError(f"be.deconv_layer: {len(sizes)} sizes by position are ambiguous. Give them by name.")
        if unknown := {*named} - {*DECONV_3D_ARGS}:
            raise TypeError(f"be.deconv_layer: expected {', '.join(DECONV_3D_ARGS)}, got {', '.join(sorted(unknown))}")
        if both := {*positions[: len(sizes)]} & {*named}:
            raise TypeError(f"be.deconv_layer: got {', '.join(sorted(both))} twice")
        if missing := {"P", "Q"} - {*positions[: len(sizes)], *named}:
            raise TypeError(
                f"be.deconv_layer: expected {', '.join(sorted(missing))}, the size of the input images, got none"
            )
        all_ = (
            {n: 0 if n.startswith("pad") else 1 for n in DECONV_3D_ARGS}
            | dict(zip(positions, sizes, strict=False))
            | named
        )
        NCK = check_ints("deconv_layer", 1, N=N, C=C, K=K)
        groups = (DECONV_3D_ARGS[i : i + 3] for i in range(0, 15, 3))
        MPQ, TRS, padding, strides, dilation = (
            check_ints("deconv_layer", 0 if "pad_d" in group else 1, **{n: all_[n] for n in group}) for group in groups
        )
        each = zip(MPQ, TRS, padding, strides, dilation, strict=True)
        DHW = tuple(with_error_prefix("deconv_layer", input_dim, *sizes) for sizes in each)
        name = _check_float_dtype(self, "deconv_layer", dtype)
        return DeconvLayer(self, name, NCK, DHW, TRS, padding, strides, dilation, MPQ)

    def pool_layer(
        self,
        dtype: DTypeLike,
        op: str,
        N: int,
        C: int,
        D: int = 1,
        H: int = 1,
        W: int = 1,
        J: int = 1,
        T: int = 1,
        R: int = 1,
        S: int = 1,
        pad_j: int = 0,
        pad_d: int = 0,
        pad_h: int = 0,
        pad_w: int = 0,
        str_j: int | None = None,
        str_d: int | None = None,
        str_h: int | None = None,
        str_w: int | None = None,
        *,
        pad_c: int | None = None,
        str_c: int | None = None,
    ) -> PoolLayer:
        """Create the layer object of a pooling of images (C, D, H, W, N) over windows (J, T, R, S).

        Parameters
        ----------
        dtype : str or dtype
            A float dtype.
        op : str
            "max", "avg" or "l2".
        N, C : int
            Batch size and channels.
        D, H, W : int
            Depth, height and width of the images.
        J, T, R, S : int
            Size of the window along channels, depth, height and width.
        pad_j, pad_d, pad_h, pad_w : int
            Padding on both sides.
        str_j, str_d, str_h, str_w : int, optional
            Strides; by default the window's sizes.
        pad_c, str_c : int, optional
            Other names of ``pad_j`` and ``str_j``.

        Returns
        -------
        PoolLayer
            The layer object.

        Raises
        ------
        ValueError
            If a window does not fit, or could consist of padding only.
        TypeError
            If the dtype is not a float dtype.
        """
        one_of("be.pool_layer: op", op, ("max", "avg", "l2"))
        pad_j, str_j = pad_j if pad_c is None else pad_c, str_j if str_c is None else str_c
        str_j, str_d = J if str_j is None else str_j, T if str_d is None else str_d
        str_h, str_w = R if str_h is None else str_h, S if str_w is None else str_w
        N, *image = check_ints("pool_layer", 1, N=N, C=C, D=D, H=H, W=W)
        window = check_ints("pool_layer", 1, J=J, T=T, R=R, S=S)
        strides = check_ints("pool_layer", 1, str_j=str_j, str_d=str_d, str_h=str_h, str_w=str_w)
        padding = check_ints("pool_layer", 0, pad_j=pad_j, pad_d=pad_d, pad_h=pad_h, pad_w=pad_w)
        name, caffe = _check_float_dtype(self, "pool_layer", dtype), self.check_caffe_compat()
        layer: PoolLayer = with_error_prefix(
            "pool_layer", PoolLayer, self, name, op, N, image, window, padding, strides, caffe
        )
        return layer

    def lrn_layer(self, dtype: DTypeLike, N: int, C: int, D: int = 1, H: int = 1, W: int = 1, J: int = 1) -> LRNLayer:
        """Create the layer object of a local response normalization over J neighboring channels.

        Parameters
        ----------
        dtype : str or dtype
            A float dtype.
        N, C : int
            Batch size and channels.
        D, H, W : int
            Depth, height and width of the images.
        J : int
            Number of channels in the sum.

        Returns
        -------
        LRNLayer
            The layer object.
        """
        N, *image, J = check_ints("lrn_layer", 1, N=N, C=C, D=D, H=H, W=W, J=J)
        return LRNLayer(self, _check_float_dtype(self, "lrn_layer", dtype), N, tuple(image), J)


def _check_float_dtype(be: BackendBase, primitive: str, dtype: DTypeLike) -> str:
    """Return the name of a float dtype; TypeError for another dtype."""
    name: str = with_error_prefix(primitive, be.dtype_name, dtype)
    if name not in FLOAT_DTYPES:
        raise TypeError(f"be.{primitive}: expected a dtype of {', '.join(FLOAT_DTYPES)}, got {name}")
    return name


DECONV_3D_ARGS = [
    *("M", "P", "Q", "T", "R", "S"),
    *(f"{prefix}_{axis}" for prefix in ("pad", "str", "dil") for axis in "dhw"),
]
DECONV_2D_ARGS = ["P", "Q", "R", "S", *DECONV_3D_ARGS[6:12]]


def _deconv_signature() -> inspect.Signature:
    """Return the signature that ``help`` shows: the guide's positional arguments, the others keyword-only."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    first = list(inspect.signature(LayerObjectMethods.deconv_layer).parameters.values())[:5]
    sizes = [
        inspect.Parameter(n, first[1].kind, default=inspect.Parameter.empty if n in "PQ" else int("pad" not in n))
        for n in DECONV_2D_ARGS
    ]
    return inspect.Signature(
        [
            *first,
            *sizes,
            *(inspect.Parameter(n, keyword, default=1) for n in DECONV_3D_ARGS if n not in DECONV_2D_ARGS),
        ],
        return_annotation=DeconvLayer,
    )


LayerObjectMethods.deconv_layer.__signature__ = _deconv_signature()  # type: ignore[attr-defined]


def with_error_prefix(primitive: str, f: Callable[..., Any], *args: Any) -> Any:
    """Return ``f(*args)``, with the name of the primitive before the message of an error."""
    try:
        return f(*args)
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        raise type(error)(f"be.{primitive}: {error}") from None


def check_ints(primitive: str, minimum: int, **values: Any) -> tuple[int, ...]:
    """Return the values as Python integers; ValueError unless each is an integer >= minimum."""
    for name, n in values.items():
        single = hasattr(n, "__index__") and not getattr(n, "ndim", 0) and not isinstance(n, bool)
        if not single or n.__index__() < minimum:
            raise ValueError(f"be.{primitive}: expected an integer >= {minimum} for {name}, got {n!r}")
    return tuple(n.__index__() for n in values.values())


# --- operands of primitives: argument checks, contiguous operands and output buffers ---

NUMBER_TYPES = (float, int, Real)  # isinstance is slowest for Real, so it comes last


def check_tensors(be: BackendBase, primitive: str, **tensors: object) -> None:
    """Raise an error unless the backend is open and all arguments are its tensors."""
    with_error_prefix(primitive, check_open, be)
    refuse_in_trace(f"be.{primitive}", "Use op-trees, such as be.convolution(x, w), be.dot(a, b) and layer(x)")
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise TypeError(
                f"be.{primitive}: expected a tensor for {name}, got {describe(t)}. "
                "Copy an array with be.array(x), and evaluate an op-tree with tree.astensor()."
            )
        if t.backend is not be:
            raise ValueError(
                f"be.{primitive}: expected a tensor of {be!r} for {name}, got {describe(t)} of {t.backend!r}. "
                "Copy it with be.array(t)."
            )


def check_floats(primitive: str, **values: Any) -> list[float]:
    """Return the values as Python floats, which do not promote the dtype of an array; TypeError for non-numbers."""
    for name, n in values.items():
        if not isinstance(n, NUMBER_TYPES):
            raise TypeError(f"be.{primitive}: expected a real number for {name}, got {describe(n)}")
    return [float(n) for n in values.values()]


def check_same_dtype(primitive: str, **tensors: Tensor) -> None:
    """Raise TypeError unless all tensors have the same float dtype."""
    dtypes = {name: t.info.dtype for name, t in tensors.items()}
    if len(set(dtypes.values())) > 1 or not set(dtypes.values()) <= set(FLOAT_DTYPES):
        listed = ", ".join(f"{name} {dtype} ({describe(tensors[name])})" for name, dtype in dtypes.items())
        raise TypeError(
            f"be.{primitive}: expected tensors of one float dtype, got {listed}. "
            "Cast with be.astype(t, dtype).astensor()."
        )


def check_layer_shapes(
    be: BackendBase, primitive: str, layer: LayerObject, **operands: tuple[Tensor, Sequence[int], str]
) -> None:
    """Raise an error unless each tensor has the layer object's dtype and the size of its shape."""
    check_tensors(be, primitive, **{name: t for name, (t, _, _) in operands.items()})
    for name, (t, shape, axes) in operands.items():
        if t.size != math.prod(shape):
            raise ValueError(
                f"be.{primitive}: expected {name} of shape {tuple(shape)} = {axes}, or any shape with "
                f"{math.prod(shape)} elements, got {describe(t)} with {t.size}, for {layer!r}"
            )
        if t.info.dtype != layer.dtype:
            raise TypeError(
                f"be.{primitive}: expected {name} of dtype {layer.dtype}, that of the layer object, got "
                f"{describe(t)} of {t.info.dtype}. Cast with be.astype(t, dtype).astensor(), or create "
                "the layer object with that dtype."
            )


def compute_dtype(be: BackendBase, dtype: str) -> str:
    """Return the dtype to compute in: float32 for 16-bit floats, unless the runtime has kernels for these."""
    return "float32" if dtype in HALF_DTYPES and not be.runtime.supports_half else dtype


def as_contiguous(be: BackendBase, t: Tensor) -> Tensor:
    """Return the tensor, or a contiguous copy in the compute dtype if it is strided or has another dtype."""
    dtype = compute_dtype(be, t.info.dtype)
    if t.is_contiguous and dtype == t.info.dtype:
        return t
    copy = be.empty(t.shape, dtype)
    copy[:] = t
    return copy


@contextmanager
def output_buffer(be: BackendBase, out: Tensor, *operands: Tensor | None, copy_in: bool = False) -> Iterator[Tensor]:
    """Yield a contiguous tensor that overlaps no operand: ``out``, or a temporary that is copied to it at the end.

    ``copy_in``: the result depends on the old values of ``out``.
    """
    dtype = compute_dtype(be, out.info.dtype)
    is_disjoint = all(x is None or overlap(out, x) == "none" for x in operands)
    if out.is_contiguous and dtype == out.info.dtype and is_disjoint:
        yield out
        return
    buffer = be.empty(out.shape, dtype)
    if copy_in:
        buffer[:] = out
    yield buffer
    out[:] = buffer


def array_as(be: BackendBase, t: Tensor, shape: tuple[int, ...]) -> NativeArray:
    """Return the array of a contiguous tensor in another shape."""
    return be.runtime.reshape(t._array, shape)
