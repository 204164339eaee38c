"""Which lists of layers have a name?  A product or a convolution, with what usually follows it."""

from __future__ import annotations

from typing import Any

from neonlite.layers.activation import Activation
from neonlite.layers.binary import BinaryLinear
from neonlite.layers.convolution import Convolution, Convolution_bias, Deconvolution
from neonlite.layers.linear import Bias, Linear
from neonlite.layers.norm import BatchNorm, ShiftBatchNorm


class CompoundLayer(list[Any]):
    """A list of layers: some first one, then a bias or a batch norm and an activation where they are asked for."""

    norm: tuple[type[BatchNorm], str] = BatchNorm, "bnorm"  # what ``batch_norm`` puts in, and the end of its name

    def __init__(
        self, bias: Any = None, batch_norm: bool = False, activation: Any = None, name: str | None = None
    ) -> None:
        super().__init__()
        if not isinstance(batch_norm, bool):
            raise TypeError(f"{name or self.__class__.__name__}: batch_norm is True or False; got {batch_norm!r}")
        if bias is not None and batch_norm:
            raise AttributeError(f"{name or self.__class__.__name__}: batch_norm adds a beta, so bias is left out")
        self.bias, self.batch_norm, self.activation, self.base_name = bias, batch_norm, activation, name

    def add(self, layer: Any) -> None:
        """Put the first layer in, and what follows it, named after it."""
        self.append(layer)
        base = self.base_name or layer.name
        if self.bias is not None:
            self.append(Bias(self.bias, name=f"{base}_bias"))
        if self.batch_norm:
            norm, ending = self.norm
            self.append(norm(name=f"{base}_{ending}"))
        if self.activation is not None:
            self.append(Activation(self.activation, name=f"{base}_{self.activation.classnm}"))


class Affine(CompoundLayer):
    """``f(W x + b)``: a Linear layer, a Bias and an Activation, the last two where they are given.

    >>> from neonlite.initializers import Constant, Gaussian
    >>> from neonlite.transforms import Rectlin
    >>> [layer.name for layer in Affine(100, Gaussian(), bias=Constant(0), activation=Rectlin(), name="hidden")]
    ['hidden', 'hidden_bias', 'hidden_Rectlin']
    """

    def __init__(
        self,
        nout: int,
        init: Any,
        bias: Any = None,
        batch_norm: bool = False,
        activation: Any = None,
        name: str | None = None,
        parallelism: str = "Disabled",
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        self.add(Linear(nout, init, name=name, parallelism=parallelism))


class BinaryAffine(CompoundLayer):
    """``f(sign(W) x + b)``: a BinaryLinear layer, a Bias or a ShiftBatchNorm, and an Activation, where given.

    >>> from neonlite.initializers import Uniform
    >>> from neonlite.transforms import Sign
    >>> layers = BinaryAffine(100, Uniform(-1, 1), batch_norm=True, activation=Sign(), name="hidden")
    >>> [layer.name for layer in layers]
    ['hidden', 'hidden_sbnorm', 'hidden_Sign']
    """

    norm = ShiftBatchNorm, "sbnorm"

    def __init__(
        self,
        nout: int,
        init: Any,
        bias: Any = None,
        batch_norm: bool = False,
        activation: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        self.add(BinaryLinear(nout, init, name=name))


class Conv(CompoundLayer):
    """``f(W * x + b)``: a Convolution, or a Convolution_bias where bias is given, and an Activation.

    >>> from neonlite.initializers import Constant, Gaussian
    >>> from neonlite.transforms import Rectlin
    >>> [layer.name for layer in Conv((3, 3, 16), Gaussian(), bias=Constant(0), activation=Rectlin(), name="edges")]
    ['edges', 'edges_Rectlin']
    """

    def __init__(
        self,
        fshape: Any,
        init: Any,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        bias: Any = None,
        batch_norm: bool = False,
        activation: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        self.bias = None  # it is in the first layer
        more = {"strides": strides, "padding": padding, "dilation": dilation, "init": init, "name": name}
        self.add(Convolution(fshape, **more) if bias is None else Convolution_bias(fshape, **more, bias=bias))


class Deconv(CompoundLayer):
    """The transpose of a convolution: a Deconvolution, a Bias and an Activation, the last two where they are given.

    >>> from neonlite.initializers import Constant, Gaussian
    >>> [layer.name for layer in Deconv((3, 3, 1), Gaussian(), strides=2, bias=Constant(0), name="back")]
    ['back', 'back_bias']
    """

    def __init__(
        self,
        fshape: Any,
        init: Any,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        bias: Any = None,
        batch_norm: bool = False,
        activation: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        self.add(Deconvolution(fshape, strides, padding, dilation, init, name=name))
