"""Compound layers: Affine, Conv, Deconv and BinaryAffine, lists of a layer, bias or batch norm, and activation."""

from __future__ import annotations

from typing import Any

from neonlite.backend.validation import checks_booleans, instance
from neonlite.layers.activation import Activation
from neonlite.layers.binary import BinaryLinear
from neonlite.layers.convolution import Convolution, Convolution_bias, Deconvolution
from neonlite.layers.display import LayerList
from neonlite.layers.layer import Layer
from neonlite.layers.linear import Bias, Linear
from neonlite.layers.norm import BatchNorm, ShiftBatchNorm
from neonlite.layers.types import InitLike, WindowSizes
from neonlite.transforms import Transform


class CompoundLayer(LayerList):
    """Base class of lists of layers: a main layer, an optional bias or batch normalization, an optional activation.

    Parameters
    ----------
    bias : Initializer, optional
        Initial values of the bias. Default: no bias.
    batch_norm : bool
        Add batch normalization. It has its own offset, so it cannot be combined with a bias.
    activation : Transform, optional
        The activation function. Default: none.
    name : str, optional
        Name of the first layer; the names of the others start with it.

    Raises
    ------
    AttributeError
        If both a bias and batch normalization are requested.
    """

    norm_class_and_suffix: tuple[type[BatchNorm], str] = BatchNorm, "bnorm"  # for ``batch_norm=True``

    @checks_booleans
    def __init__(
        self,
        bias: InitLike | None = None,
        batch_norm: bool = False,
        activation: Transform | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if bias is not None and batch_norm:
            raise AttributeError(
                f"{name or self.__class__.__name__}: expected bias or batch_norm, got both. Leave out bias, because "
                "BatchNorm has an offset beta."
            )
        if activation is not None:
            where = f"{name or self.__class__.__name__}: activation"
            instance(where, activation, Transform, "a transform, such as Rectlin(),")
        self.bias, self.batch_norm, self.activation, self.base_name = bias, batch_norm, activation, name

    def add_layers(self, layer: Layer) -> None:
        """Append the first layer, and the bias, batch normalization and activation that follow it.

        Parameters
        ----------
        layer : Layer
            The first layer.
        """
        self.append(layer)
        base = self.base_name or layer.name
        if self.bias is not None:
            self.append(Bias(self.bias, name=f"{base}_bias"))
        if self.batch_norm:
            norm, suffix = self.norm_class_and_suffix
            self.append(norm(name=f"{base}_{suffix}"))
        if self.activation is not None:
            self.append(Activation(self.activation, name=f"{base}_{self.activation.classnm}"))


class Affine(CompoundLayer):
    """``f(W x + b)``: a Linear layer, and a Bias, BatchNorm and Activation if requested.

    Parameters
    ----------
    nout : int
        The number of outputs.
    init : Initializer, array or Tensor
        Initial values of W, (nout, nin).
    bias, batch_norm, activation, name
        As for ``CompoundLayer``.
    parallelism : str
        As for ``Layer``.

    Examples
    --------
    >>> from neonlite.initializers import Constant, Gaussian
    >>> from neonlite.transforms import Rectlin
    >>> [layer.name for layer in Affine(100, Gaussian(), bias=Constant(0), activation=Rectlin(), name="hidden")]
    ['hidden', 'hidden_bias', 'hidden_Rectlin']
    """

    def __init__(
        self,
        nout: int,
        init: InitLike,
        bias: InitLike | None = None,
        batch_norm: bool = False,
        activation: Transform | None = None,
        name: str | None = None,
        parallelism: str = "Disabled",
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        self.add_layers(Linear(nout, init, name=name, parallelism=parallelism))


class BinaryAffine(CompoundLayer):
    """``f(sign(W) x + b)``: a BinaryLinear layer, and a Bias, ShiftBatchNorm and Activation if requested.

    Parameters
    ----------
    nout : int
        The number of outputs.
    init : Initializer, array or Tensor
        Initial values of W, (nout, nin).
    bias, batch_norm, activation, name
        As for ``CompoundLayer``.

    Examples
    --------
    >>> from neonlite.initializers import Uniform
    >>> from neonlite.transforms import Sign
    >>> layers = BinaryAffine(100, Uniform(-1, 1), batch_norm=True, activation=Sign(), name="hidden")
    >>> [layer.name for layer in layers]
    ['hidden', 'hidden_sbnorm', 'hidden_Sign']
    """

    norm_class_and_suffix = ShiftBatchNorm, "sbnorm"

    def __init__(
        self,
        nout: int,
        init: InitLike,
        bias: InitLike | None = None,
        batch_norm: bool = False,
        activation: Transform | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        self.add_layers(BinaryLinear(nout, init, name=name))


class Conv(CompoundLayer):
    """``f(W * x + b)``: a Convolution or Convolution_bias, and a BatchNorm and Activation if requested.

    Parameters
    ----------
    fshape, init, strides, padding, dilation
        As for ``Convolution``.
    bias, batch_norm, activation, name
        As for ``CompoundLayer``.

    Examples
    --------
    >>> from neonlite.initializers import Constant, Gaussian
    >>> from neonlite.transforms import Rectlin
    >>> [layer.name for layer in Conv((3, 3, 16), Gaussian(), bias=Constant(0), activation=Rectlin(), name="edges")]
    ['edges', 'edges_Rectlin']
    """

    def __init__(
        self,
        fshape: WindowSizes,
        init: InitLike,
        strides: WindowSizes = 1,
        padding: WindowSizes = 0,
        dilation: WindowSizes = 1,
        bias: InitLike | None = None,
        batch_norm: bool = False,
        activation: Transform | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        self.bias = None  # the first layer includes it
        options: dict[str, Any] = {
            "strides": strides,
            "padding": padding,
            "dilation": dilation,
            "init": init,
            "name": name,
        }
        self.add_layers(
            Convolution(fshape, **options) if bias is None else Convolution_bias(fshape, **options, bias=bias)
        )


class Deconv(CompoundLayer):
    """A transposed convolution: a Deconvolution, and a Bias, BatchNorm and Activation if requested.

    Parameters
    ----------
    fshape, init, strides, padding, dilation
        As for ``Deconvolution``.
    bias, batch_norm, activation, name
        As for ``CompoundLayer``.

    Examples
    --------
    >>> from neonlite.initializers import Constant, Gaussian
    >>> [layer.name for layer in Deconv((3, 3, 1), Gaussian(), strides=2, bias=Constant(0), name="up")]
    ['up', 'up_bias']
    """

    def __init__(
        self,
        fshape: WindowSizes,
        init: InitLike,
        strides: WindowSizes = 1,
        padding: WindowSizes = 0,
        dilation: WindowSizes = 1,
        bias: InitLike | None = None,
        batch_norm: bool = False,
        activation: Transform | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        self.add_layers(Deconvolution(fshape, strides, padding, dilation, init, name=name))
