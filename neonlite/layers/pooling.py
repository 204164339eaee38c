"""Pooling of images: Pooling, local response normalization (LRN), and RoiPooling of regions of interest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from neonlite.backend import Tensor
from neonlite.backend.primitives.geometry import LRNLayer, PoolLayer
from neonlite.backend.validation import check_number, one_of, pair, sequence
from neonlite.layers.buffers import iobuf_shape, shape_of
from neonlite.layers.convolution import ImageLayer, parse_sizes
from neonlite.layers.layer import Layer, LayerInput
from neonlite.optree import Operand
from neonlite.typing import LayerShapes, WindowSizes


class Pooling(ImageLayer):
    """Pooling of images (C, H, W) to (C, P, Q): the maximum, mean or L2 norm of each window. Padding is ignored.

    Parameters
    ----------
    fshape : int, tuple, dict or "all"
        Window size: a scalar for height and width; (R, S) or (T, R, S); a dict of J, T, R, S, where J is the size over
        channels; or "all" for global pooling.
    op : str
        "max", "avg" or "l2".
    strides : int, tuple or dict, optional
        As for ``Convolution``, with ``str_c`` for channels. Default: the window size.
    padding : int, tuple or dict
        As for ``Convolution``, with ``pad_c`` for channels.
    name : str, optional
        Name, unique in a network.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu", batch_size=32)
    >>> Pooling(3, strides=2).configure((16, 13, 28)).out_shape
    (16, 6, 13)
    >>> Pooling("all", op="avg").configure((16, 13, 28)).out_shape
    (16, 1, 1)
    """

    axes = "cdhw"

    def __init__(
        self,
        fshape: WindowSizes | str,
        op: str = "max",
        strides: WindowSizes | None = None,
        padding: WindowSizes = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        one_of(f"{self.name}: op", op, ("max", "avg", "l2"))
        self.fshape, self.op, self.strides, self.padding = fshape, op, strides, padding
        if fshape != "all":
            parse_sizes(self.name, "fshape", fshape, "JTRS", 2, 2)

    def make_layer_object(self, N: int) -> PoolLayer:
        image = self.input_sizes()
        if self.fshape == "all":
            window = dict(zip("TRS", list(image.values())[1:], strict=True))
        else:
            window = parse_sizes(self.name, "fshape", self.fshape, "JTRS", 2, 2)
        strides = {} if self.strides is None else self.strides
        params = self.window_params("T" in window, strides=("str", strides), padding=("pad", self.padding))
        return self.be.pool_layer(self.be.default_dtype, self.op, N, **image, **window, **params)

    def formula(self, x: Tensor) -> Operand:
        """Return the maximum, mean or norm of each window."""
        be, g = self.be, self.nglayer
        images = be.reshape(x, (*self.input_dims, x.shape[-1]))
        padding = [(n, n) for n in g.padding]
        z = be.pool(images, g.JTRS, self.op, g.strides, padding, ceil=be.check_caffe_compat())
        return self.in_rank_of(x, z)


class LRN(ImageLayer):
    """Local response normalization, ``alpha x denom^-bpower``, with ``denom = 1 + ascale / depth sum x^2``.

    The sum is over ``depth`` neighboring channels, for channel c starting at ``c - depth // 2``.

    Parameters
    ----------
    depth : int
        The number of channels in a window.
    alpha : float
        Factor of the outputs.
    beta : float
        Factor of the old outputs, which are added.
    ascale : float
        Factor of the mean square.
    bpower : float
        Exponent of the denominator.
    name : str, optional
        Name, unique in a network.

    References
    ----------
    Krizhevsky et al., "ImageNet classification with deep convolutional neural networks", 2012, section 3.3.
    """

    def __init__(
        self,
        depth: int,
        alpha: float = 1.0,
        beta: float = 0.0,
        ascale: float = 1.0,
        bpower: float = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.depth, self.alpha, self.beta, self.ascale, self.bpower = depth, alpha, beta, ascale, bpower

    def make_layer_object(self, N: int) -> LRNLayer:
        return self.be.lrn_layer(self.be.default_dtype, N, **self.input_sizes(), J=self.depth)

    def formula(self, x: Tensor) -> Operand:
        """Return ``alpha x denom^-bpower``."""
        be, g = self.be, self.nglayer
        images = be.reshape(x, (*self.input_dims, x.shape[-1]))
        return self.in_rank_of(x, self.alpha * be.lrn(images, g.J, self.ascale, self.bpower))

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        return super().fprop(inputs, inference, self.beta + beta)


class RoiPooling(Layer):
    """Max pooling of regions of feature maps (C, H, W) to (C, PH, PW): the maximum in each of PH x PW bins of a region.

    It is the first layer of a network. ``configure`` takes a pair: the layer that computes the feature maps, or their
    shape, and the shape of the regions, (5, R) for R regions per image, or 5 for one. ``fprop`` takes a pair of
    tensors: the feature maps (C H W, N) and the regions (5, R N). A region is a column: index of the image in the
    minibatch, first column and row, last column and row, in pixels of the image. Regions may be in any order, and refer
    to any image; the outputs have the same order.

    The outputs are (C PH PW, R N), with ``out_shape`` (C PH PW, R), or (C, PH, PW) for one region per image. A bin
    without pixels is 0. ``bprop`` returns the deltas of the feature maps; regions have none.

    Parameters
    ----------
    HW : int or tuple
        The number of rows and columns of bins, (PH, PW).
    bprop_enabled : bool
        Compute deltas. If False, ``bprop`` returns None.
    spatial_scale : float
        Size of the feature maps relative to the image.
    name : str, optional
        Name, unique in a network.

    References
    ----------
    Girshick, "Fast R-CNN", 2015, section 2.1.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import Affine, Conv, RoiPooling, Sequential
    >>> from neonlite.transforms import Rectlin
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> trunk = Sequential(Conv((3, 3, 8), Gaussian(), strides=4, padding=1, activation=Rectlin()))
    >>> head = Sequential([RoiPooling(HW=(2, 2), spatial_scale=1 / 4), Affine(5, Gaussian())])
    >>> head.configure((trunk.configure((3, 32, 32)), (5, 3))).out_shape
    (5, 3)
    >>> for network in (trunk, head):
    ...     network.allocate()
    ...     network.allocate_deltas()
    >>> images = be.ones((3 * 32 * 32, 2))
    >>> regions = be.array([[0, 0, 0, 1, 1, 1], [0] * 6, [0] * 6, [15, 31, 7] * 2, [31, 15, 7] * 2])
    >>> y = head.fprop((trunk.fprop(images), regions))
    >>> y.shape
    (5, 6)
    >>> trunk.bprop(head.bprop(be.ones((5, 6))))  # None: the first layer has no deltas
    """

    def __init__(
        self,
        HW: int | Sequence[int] = (7, 7),
        bprop_enabled: bool = True,
        spatial_scale: float = 0.0625,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.HW = pair(f"{self.name}: HW", HW)
        self.bprop_enabled = bprop_enabled
        self.spatial_scale = check_number(f"{self.name}: spatial_scale", spatial_scale, above=0)
        self.regions_shape: Any = None  # 5, or (5, R)

    def configure(self, in_obj: LayerInput | Sequence[LayerInput]) -> Self:
        """Set the input shapes and infer the output shape.

        Parameters
        ----------
        in_obj : tuple
            The layer of the feature maps or their shape, which becomes ``in_shape``, and the shape of the regions.
        """
        pair = in_obj.out_shape if isinstance(in_obj, Layer) else shape_of(in_obj)
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            source = f" of {in_obj.name}" if isinstance(in_obj, Layer) else ""
            raise ValueError(
                f"{self.name}: expected a pair of feature maps, (C, H, W) or the layer that computes them, and "
                f"regions, (5, R) for R per image, got {pair!r}{source}. Use it as the first layer of a network."
            )
        maps, regions = pair
        super().configure(maps)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 3:
            raise ValueError(f"{self.name}: expected feature maps (C, H, W), got {self.in_shape}.")
        row, *count = regions if isinstance(regions, list | tuple) and regions else [regions]
        if row != 5 or len(count) > 1 or not all(type(n) is int and n > 0 for n in count):
            raise ValueError(f"{self.name}: expected regions (5, R) for R per image, or 5 for one, got {regions!r}.")
        self.needs_deltas = True
        self.regions_shape = (5, *count) if count else 5
        self.pooled_shape = (self.in_shape[0], *self.HW)
        self.out_shape = (math.prod(self.pooled_shape), *count) if count else self.pooled_shape
        return self

    @property
    def input_shape(self) -> LayerShapes:
        """The shapes of the feature maps and of the regions."""
        return [self.in_shape, self.regions_shape]

    def shape_for_seq_len(self, S: int) -> LayerShapes:
        """Return the input shapes with S regions per image."""
        return self.in_shape, (5, S)

    def make_zero_inputs(self) -> tuple[Tensor, Tensor]:
        """Return feature maps and regions, filled with zeros."""
        return self.be.iobuf(iobuf_shape(self.in_shape)), self.be.iobuf(self.regions_shape)

    @property
    def can_compute_deltas(self) -> bool:  # type: ignore[override]
        """Whether deltas are enabled."""
        return self.bprop_enabled

    def check_inputs(self, inputs: Tensor | Sequence[Tensor]) -> None:
        """Raise an error unless these are feature maps and regions, and the layer is allocated."""
        maps, regions = sequence(f"{self.name}: inputs", inputs, "a pair (feature maps, regions)", count=2)
        self.check_tensor("regions", regions, self.regions_shape)
        super().check_inputs(maps)

    def formula(self, x: Sequence[Tensor]) -> Operand:  # type: ignore[override]  # feature maps and regions
        """Return the largest pixel of each bin, and 0 for a bin without pixels."""
        be, (C, H, W), (maps, regions) = self.be, self.in_shape, x
        images = be.reshape(maps, (C, H, W, -1))
        options: dict[str, Any] = {"bins": self.HW, "scale": self.spatial_scale}
        index = be.build("roi_pool_indices", images, regions, **options)
        pixels = be.reshape(images if self.bprop_enabled else be.stop_gradient(images), (1, -1))
        values = be.reshape(be.take(pixels, be.reshape(be.maximum(index, 0), (1, -1)), axis=1), index.shape)
        return be.reshape(be.where(index < 0, 0, values), (math.prod(self.pooled_shape), -1))
