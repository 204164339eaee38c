"""Layers of images: convolution and deconvolution, in 2-D and 3-D, pooling, LRN, and RoiPooling of regions.

Images are (C, H, W), or (C, D, H, W) with a depth; each one is a column of the inputs (C D H W, N).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from neonlite.backend import Tensor, objects
from neonlite.backend.primitives.geometry import ConvLayer, DeconvLayer, LayerObject, LRNLayer, PoolLayer
from neonlite.backend.validation import check_number, one_of, pair, sequence
from neonlite.initializers import GlorotUniform
from neonlite.layers import buffers, parameter
from neonlite.layers.layer import Layer, LayerInput
from neonlite.optree import Operand
from neonlite.typing import LayerShapes, WindowSizes

# --- base class of image layers --------------------------------------------------------------------------------------


class ImageLayer(Layer):
    """Base class of layers whose inputs and outputs are images. Subclasses implement ``make_layer_object(N)``."""

    takes_images = True
    nglayer: Any = None
    axes = "dhw"  # axes of strides and padding

    def make_layer_object(self, N: int) -> LayerObject:
        """Return the backend's layer object for images of ``in_shape``.

        Parameters
        ----------
        N : int
            The batch size.
        """
        raise NotImplementedError(f"{self.classnm}: expected make_layer_object(N). Implement it.")

    @property
    def output_dims(self) -> tuple[int, ...]:
        """The dimensions (K, M, P, Q) of the outputs."""
        return tuple(self.nglayer.dimO[:4])

    def configure(self, in_obj: LayerInput) -> Self:
        """Set the input shape and infer the output shape.

        Parameters
        ----------
        in_obj : Layer, data set or tuple
            The previous layer, a data set, or a shape (C, H, W) or (C, D, H, W).

        Raises
        ------
        ValueError
            If the inputs are not images, or a window is larger than they are.
        """
        super().configure(in_obj)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) not in (3, 4):
            raise ValueError(
                f"{self.name}: expected images (C, H, W) or (C, D, H, W), got the input shape {self.in_shape}. Put "
                "Reshape((C, H, W)) before it, or set the shape of the data set."
            )
        try:
            self.nglayer = self.make_layer_object(self.be.bsz or 1)
        except (TypeError, ValueError) as error:
            message = str(error).split(": ", 1)[-1]  # without the name of the backend's function
            raise type(error)(f"{self.name}: {message} (input shape {self.in_shape})") from None
        K, M, P, Q = self.output_dims
        self.out_shape = (K, P, Q) if M == 1 and len(self.in_shape) == 3 else (K, M, P, Q)
        return self

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        if self.be.bsz != self.nglayer.N:
            self.nglayer = self.make_layer_object(self.be.bsz)

    @property
    def padded_size(self) -> int:
        """The number of pixels of all channels of an image with its padding."""
        g: Any = self.nglayer
        C, *sizes = self.input_sizes().values()
        paddings = g.padding[-3:] if isinstance(g, ConvLayer | PoolLayer) else (0, 0, 0)
        return C * math.prod(n + 2 * padding for n, padding in zip(sizes, paddings, strict=True))

    def build_tree(self, x: buffers.Operands, training: bool) -> buffers.Trees:
        images: Any = x
        if objects.has_builtin_method(type(self), "formula") and images.ndim == 2:
            images = self.be.reshape(images, (*self.input_dims, images.shape[1]))
        return super().build_tree(images, training)

    @property
    def input_dims(self) -> tuple[int, ...]:
        """The dimensions (C, D, H, W) of the inputs."""
        return tuple(self.input_sizes().values())

    def formula(self, x: Tensor) -> Operand:
        """Return the outputs for images x, with five axes if x has five axes, else as columns."""
        z = self._image_formula(self.be.reshape(x, (*self.input_dims, x.shape[-1])))
        return z if x.ndim > 2 else self.be.reshape(z, (-1, z.shape[-1]))

    def _image_formula(self, x: Operand) -> Operand:
        """Return the outputs (K, M, P, Q, N) for images (C, D, H, W, N)."""
        raise NotImplementedError(f"{self.classnm}: expected _image_formula(x). Implement it.")

    def input_sizes(self, names: str = "CDHW") -> dict[str, int]:
        """Return the sizes of the inputs by name.

        Parameters
        ----------
        names : str
            Names of channels, depth, height and width.
        """
        C, *depth, H, W = self.in_shape
        return dict(zip(names, (C, *(depth or [1]), H, W), strict=True))

    def window_params(self, is_3d: bool, **params: tuple[str, WindowSizes]) -> dict[str, Any]:
        """Return strides, paddings and dilations by name, such as ``str_h``.

        Parameters
        ----------
        is_3d : bool
            Whether a scalar applies to the depth as well.
        params : tuple
            For each parameter its prefix and value, such as ``strides=("str", 2)``.
        """
        scalar_count = 3 if is_3d and len(self.in_shape or ()) == 4 else 2
        result: dict[str, Any] = {}
        for label, (prefix, value) in params.items():
            result |= parse_sizes(self.name, label, value, [f"{prefix}_{axis}" for axis in self.axes], 2, scalar_count)
        return result


def parse_sizes(
    owner: str, label: str, value: Any, names: Sequence[str], min_count: int, scalar_count: int = 0
) -> dict[str, Any]:
    """Return a dict of sizes, given a dict, a tuple for the last ``min_count`` or more names, or a scalar.

    A scalar sets the last ``scalar_count`` names.
    """
    if scalar_count and hasattr(value, "__index__"):
        value = (value,) * scalar_count
    if isinstance(value, tuple | list) and min_count <= len(value) <= len(names):
        return dict(zip(names[-len(value) :], value, strict=True))
    if isinstance(value, dict) and set(value) <= set(names):
        return value
    options = [f"({', '.join(names[-n:])})" for n in range(min_count, len(names) + 1)]
    options = ["an integer", *options] if scalar_count else options
    raise ValueError(f"{owner}: {label}: expected {', '.join(options)}, or a dict of these names, got {value!r}.")


# --- convolution -----------------------------------------------------------------------------------------------------


class ConvolutionBase(ImageLayer, parameter.BatchSumLayer):
    """Base class of convolution and deconvolution, with weights (C T R S, K).

    Strides, padding and dilation are a scalar for height and width, and for the depth if ``fshape`` and the inputs have
    one; (height, width); (depth, height, width); or a dict with keys such as ``str_h``, ``pad_w`` and ``dil_d``.

    Parameters
    ----------
    fshape : tuple or dict
        Filter shape and number of filters.
    strides, padding, dilation : int, tuple or dict
        Strides, zero padding and dilation of the filters.
    init : Initializer, array, Tensor or str
        Initial values of W, (C T R S, K); default: ``GlorotUniform()``.
    bsum : bool
        Also compute ``batch_sum``, a column with the sum of each channel of the outputs.
    name : str, optional
        Name, unique in a network.
    parallelism : str
        As for ``Layer``.
    """

    weights_are_columns = True
    fshape_names = "TRSK"  # names of the sizes in fshape

    def __init__(
        self,
        fshape: WindowSizes,
        strides: WindowSizes = 1,
        padding: WindowSizes = 0,
        dilation: WindowSizes = 1,
        init: parameter.InitLike | None = None,
        bsum: bool = False,
        name: str | None = None,
        parallelism: str = "Data",
    ) -> None:
        super().__init__(None, name, parallelism)
        self.fshape, self.strides, self.padding, self.dilation, self.bsum = fshape, strides, padding, dilation, bsum
        self.filter_sizes = parse_sizes(self.name, "fshape", fshape, self.fshape_names, 3)
        if missing := [n for n in self.fshape_names[1:] if n not in self.filter_sizes]:
            raise ValueError(
                f"{self.name}: fshape: expected {', '.join(self.fshape_names[1:])}, got {fshape}. Add {missing[0]}."
            )
        self.conv_params()  # raises an error for invalid sizes
        self.init = self.initial_values(GlorotUniform() if init is None else init)

    def conv_params(self) -> dict[str, Any]:
        """Return the filter sizes, strides, paddings and dilations by name."""
        params = {
            "strides": ("str", self.strides),
            "padding": ("pad", self.padding),
            "dilation": ("dil", self.dilation),
        }
        return self.filter_sizes | self.window_params("T" in self.filter_sizes, **params)

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.weight_shape = self.nglayer.dimF2
        return self

    def conv_options(self) -> dict[str, Any]:
        """Return strides, padding and dilation as arguments of ``be.conv``."""
        g = self.nglayer
        return {"strides": g.strides, "padding": [(n, n) for n in g.padding], "dilation": g.dilation}


class Convolution(ConvolutionBase):
    """Convolution of images (C, H, W) to (K, P, Q) with K filters ``fshape = (R, S, K)`` of height R and width S.

    ``P = (H + 2 pad_h - dil_h (R - 1) - 1) // str_h + 1``, and so on. In 3-D: (C, D, H, W) to (K, M, P, Q) with
    ``fshape = (T, R, S, K)``. The weights W are (C T R S, K). Filters are not flipped (cross-correlation).

    Parameters
    ----------
    fshape : tuple or dict
        (R, S, K), (T, R, S, K), or a dict of these.
    strides, padding, dilation : int, tuple or dict
        A scalar for height and width, and for the depth in 3-D; (height, width); (depth, height, width); or a dict with
        keys such as ``str_h``, ``pad_w`` and ``dil_d``. Defaults: 1, 0 and 1.
    init : Initializer, array, Tensor or str
        Initial values of W, (C T R S, K); default: ``GlorotUniform()``.
    bsum : bool
        Also compute ``batch_sum`` (K, 1), the sum of each channel of the outputs.
    name : str, optional
        Name, unique in a network.
    parallelism : str
        As for ``Layer``.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> be = nl.gen_backend("cpu", batch_size=32)
    >>> layer = Convolution((5, 5, 16), strides=2, padding={"pad_w": 1}, init=Gaussian()).configure((3, 28, 28))
    >>> layer.out_shape, layer.weight_shape
    ((16, 12, 13), (75, 16))
    """

    def make_layer_object(self, N: int) -> ConvLayer:
        return self.be.conv_layer(self.be.default_dtype, N, **self.input_sizes(), **self.conv_params())

    def _image_formula(self, x: Operand) -> Operand:
        """Return the convolution of the images with W."""
        return self.be.conv(x, self.be.reshape(self.W, self.nglayer.dimF), **self.conv_options())


class Convolution_bias(Convolution):
    """A convolution plus a bias ``weight_bias`` (K, 1), one for each channel, with the gradient ``grad_bias``.

    Parameters
    ----------
    fshape, strides, padding, dilation, init, bsum, name, parallelism
        As for ``Convolution``.
    bias : Initializer, array, Tensor or str
        Initial values of the bias; required.
    """

    weight_bias = parameter.TensorAttribute()
    grad_bias = parameter.TensorAttribute()

    def __init__(
        self,
        fshape: WindowSizes,
        strides: WindowSizes = 1,
        padding: WindowSizes = 0,
        dilation: WindowSizes = 1,
        init: parameter.InitLike | None = None,
        bsum: bool = False,
        name: str | None = None,
        parallelism: str = "Data",
        bias: parameter.InitLike | None = None,
    ) -> None:
        super().__init__(fshape, strides, padding, dilation, init, bsum, name, parallelism)
        if bias is None:
            raise TypeError(
                f"{self.name}: bias: expected an initializer such as Constant(0), got None. Without a bias use "
                "Convolution."
            )
        self.bias = self.initial_values(bias)

    def parameter_specs(self) -> list[parameter.ParameterSpec]:
        return [
            *super().parameter_specs(),
            parameter.ParameterSpec("weight_bias", "grad_bias", (self.filter_sizes["K"], 1), self.bias),
        ]

    def _image_formula(self, x: Operand) -> Operand:
        """Return the convolution of the images with W, plus ``weight_bias``."""
        return super()._image_formula(x) + self.be.reshape(self.weight_bias, (-1, 1, 1, 1, 1))


class Deconvolution(ConvolutionBase):
    """Transposed convolution of images (K, P, Q) to (C, H, W), with ``fshape = (R, S, C)`` of height R and width S.

    Each pixel adds K weighted filters to the outputs: ``H = (P - 1) str_h - 2 pad_h + dil_h (R - 1) + 1``, and so on.
    In 3-D: (K, M, P, Q) to (C, D, H, W) with ``fshape = (T, R, S, C)``. The weights W are (C T R S, K). ``nglayer`` is
    the layer object of the convolution from (C, H, W) to (K, P, Q): its ``dimI`` are the dimensions of the outputs.

    Parameters
    ----------
    fshape : tuple or dict
        (R, S, C), (T, R, S, C), or a dict of these.
    strides, padding, dilation : int, tuple or dict
        Those of the corresponding convolution, as for ``Convolution``.
    init : Initializer, array, Tensor or str
        Initial values of W, (C T R S, K); default: ``GlorotUniform()``.
    bsum : bool
        Also compute ``batch_sum`` (C, 1), the sum of each channel of the outputs.
    name : str, optional
        Name, unique in a network.
    parallelism : str
        As for ``Layer``.
    """

    fshape_names = "TRSC"

    def make_layer_object(self, N: int) -> DeconvLayer:
        return self.be.deconv_layer(self.be.default_dtype, N, **self.input_sizes("KMPQ"), **self.conv_params())

    @property
    def output_dims(self) -> tuple[int, ...]:
        """The dimensions (C, D, H, W) of the outputs."""
        return tuple(self.nglayer.dimI[:4])

    def _image_formula(self, x: Operand) -> Operand:
        """Return the transposed convolution of the images with W."""
        return self.be.deconv(x, self.be.reshape(self.W, self.nglayer.dimF), **self.conv_options())


# --- pooling, local response normalization (LRN), and RoiPooling of regions of interest ---


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

    def _image_formula(self, x: Operand) -> Operand:
        """Return the maximum, mean or norm of each window."""
        be, g = self.be, self.nglayer
        padding = [(n, n) for n in g.padding]
        return be.pool(x, g.JTRS, self.op, g.strides, padding, ceil=be.check_caffe_compat())


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

    def _image_formula(self, x: Operand) -> Operand:
        """Return ``alpha x denom^-bpower``."""
        return self.alpha * self.be.lrn(x, self.nglayer.J, self.ascale, self.bpower)

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
        pair = in_obj.out_shape if isinstance(in_obj, Layer) else buffers.shape_of(in_obj)
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
        return self.be.iobuf(buffers.iobuf_shape(self.in_shape)), self.be.iobuf(self.regions_shape)

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
