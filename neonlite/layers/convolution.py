"""Convolution and deconvolution layers, in 2-D and 3-D.

Images are (C, H, W), or (C, D, H, W) with a depth; each one is a column of the inputs (C D H W, N).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from neonlite.backend import Tensor
from neonlite.backend.objects import has_builtin_method
from neonlite.backend.primitives.geometry import ConvLayer, DeconvLayer, LayerObject, PoolLayer
from neonlite.initializers import GlorotUniform
from neonlite.layers.buffers import Operands, Trees
from neonlite.layers.layer import Layer, LayerInput
from neonlite.layers.parameter import InitLike, ParameterLayer, ParameterSpec, TensorAttribute
from neonlite.optree import Operand
from neonlite.typing import WindowSizes

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

    def build_tree(self, x: Operands, training: bool) -> Trees:
        images: Any = x
        if has_builtin_method(type(self), "formula") and images.ndim == 2:
            images = self.be.reshape(images, (*self.input_dims, images.shape[1]))
        return super().build_tree(images, training)

    @property
    def input_dims(self) -> tuple[int, ...]:
        """The dimensions (C, D, H, W) of the inputs."""
        return tuple(self.input_sizes().values())

    def in_rank_of(self, x: Operand, z: Operand) -> Operand:
        """Return images z (K, M, P, Q, N) as they are if x has five axes too, else as columns.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The argument of ``formula``.
        z : OpTreeNode
            Its result, with five axes.
        """
        return z if x.ndim > 2 else self.be.reshape(z, (-1, z.shape[-1]))

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


class ConvolutionBase(ImageLayer, ParameterLayer):
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
        init: InitLike | None = None,
        bsum: bool = False,
        name: str | None = None,
        parallelism: str = "Data",
    ) -> None:
        super().__init__(None, name, parallelism)
        self.fshape, self.strides, self.padding, self.dilation, self.bsum = fshape, strides, padding, dilation, bsum
        self.batch_sum: Tensor | Any = None
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

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        if self.bsum and self.batch_sum is None:
            self.batch_sum = self.be.zeros((self.output_dims[0], 1), name=f"{self.name}.batch_sum")

    def conv_options(self) -> dict[str, Any]:
        """Return strides, padding and dilation as arguments of ``be.conv``."""
        g = self.nglayer
        return {"strides": g.strides, "padding": [(n, n) for n in g.padding], "dilation": g.dilation}

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        super().fprop(inputs, inference, beta)
        if self.batch_sum is not None:
            self.batch_sum[:] = self.be.sum(self.outputs.reshape(self.output_dims[0], -1), axis=1)
        return self.outputs


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

    def formula(self, x: Tensor) -> Operand:
        """Return the convolution of the images with W."""
        be, g = self.be, self.nglayer
        images = be.reshape(x, (*self.input_dims, x.shape[-1]))
        return self.in_rank_of(x, be.conv(images, be.reshape(self.W, g.dimF), **self.conv_options()))


class Convolution_bias(Convolution):
    """A convolution plus a bias ``weight_bias`` (K, 1), one for each channel, with the gradient ``grad_bias``.

    Parameters
    ----------
    fshape, strides, padding, dilation, init, bsum, name, parallelism
        As for ``Convolution``.
    bias : Initializer, array, Tensor or str
        Initial values of the bias; required.
    """

    weight_bias = TensorAttribute()
    grad_bias = TensorAttribute()

    def __init__(
        self,
        fshape: WindowSizes,
        strides: WindowSizes = 1,
        padding: WindowSizes = 0,
        dilation: WindowSizes = 1,
        init: InitLike | None = None,
        bsum: bool = False,
        name: str | None = None,
        parallelism: str = "Data",
        bias: InitLike | None = None,
    ) -> None:
        super().__init__(fshape, strides, padding, dilation, init, bsum, name, parallelism)
        if bias is None:
            raise TypeError(
                f"{self.name}: bias: expected an initializer such as Constant(0), got None. Without a bias use "
                "Convolution."
            )
        self.bias = self.initial_values(bias)

    def parameter_specs(self) -> list[ParameterSpec]:
        return [
            *super().parameter_specs(),
            ParameterSpec("weight_bias", "grad_bias", (self.filter_sizes["K"], 1), self.bias),
        ]

    def formula(self, x: Tensor) -> Operand:
        """Return the convolution of the images with W, plus ``weight_bias``."""
        be, z = self.be, super().formula(x)
        if z.ndim > 2:
            return z + be.reshape(self.weight_bias, (-1, *[1] * (z.ndim - 1)))
        return be.reshape(be.reshape(z, (self.nglayer.K, -1)) + self.weight_bias, z.shape)


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

    def formula(self, x: Tensor) -> Operand:
        """Return the transposed convolution of the images with W."""
        be, g = self.be, self.nglayer
        images = be.reshape(x, (*self.input_dims, x.shape[-1]))
        return self.in_rank_of(x, be.deconv(images, be.reshape(self.W, g.dimF), **self.conv_options()))
