"""Lists of layers that Affine and Conv create (neonlite/layers/linear.py)."""

from __future__ import annotations

import pytest

from neonlite import Backend
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    Activation,
    Affine,
    BatchNorm,
    Bias,
    Conv,
    Convolution,
    Convolution_bias,
    Deconv,
    Deconvolution,
    Linear,
)
from neonlite.transforms import Rectlin, Tanh


def test_an_affine_is_a_list_of_the_requested_layers():
    bias, activation = Constant(0.0), Tanh()
    assert [type(x) for x in Affine(3, Gaussian())] == [Linear]
    assert [type(x) for x in Affine(3, Gaussian(), bias)] == [Linear, Bias]
    assert [type(x) for x in Affine(3, Gaussian(), activation=activation)] == [Linear, Activation]
    affine = Affine(3, Gaussian(), bias, activation=activation)
    assert [x.name for x in affine[1:]] == [f"{affine[0].name}_bias", f"{affine[0].name}_Tanh"]
    assert affine[1].init is bias
    assert affine[2].transform is activation
    assert affine[0].nout == 3
    assert [type(x) for x in Affine(3, Gaussian(), batch_norm=True, activation=activation)] == [
        Linear,
        BatchNorm,
        Activation,
    ]
    with pytest.raises(AttributeError, match="fc: expected bias or batch_norm, got both"):
        Affine(3, Gaussian(), bias, batch_norm=True, name="fc")
    with pytest.raises(TypeError, match=r"fc: expected True or False for batch_norm, got Tanh"):
        Affine(3, Gaussian(), bias, activation, name="fc")


def test_compound_layers_contain_the_requested_layers(cpu: Backend) -> None:
    init, f = Constant(1), Rectlin()
    kinds = {
        (Convolution,): Conv((3, 3, 2), init),
        (Convolution_bias,): Conv((3, 3, 2), init, bias=init),
        (Convolution_bias, type(Affine(1, init, activation=f)[1])): Conv((3, 3, 2), init, bias=init, activation=f),
        (Deconvolution,): Deconv((3, 3, 2), init),
        (Deconvolution, Bias): Deconv((3, 3, 2), init, bias=init),
    }
    for wanted, layers in kinds.items():
        assert tuple(map(type, layers)) == wanted
    for kind in (Conv, Deconv):
        layer = kind((3, 3, 2), init, strides=2, padding=(1, 0), dilation={"dil_h": 2}, name="first")[0]
        g = layer.configure((2, 7, 7)).nglayer
        assert (layer.name, g.strides, g.padding, g.dilation) == ("first", (1, 2, 2), (0, 1, 0), (1, 2, 1))
