"""Copies of layers for inference, and weights by name (neonlite/layers/weights.py)."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.layer_cases import (
    LAYERS,
    each_layer,
)
from helpers.networks import (
    by_hand,
    data,
)

import neonlite.layers
from neonlite.backend.serialization import find_class
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Activation, Bias, Linear, Sequential
from neonlite.transforms import (
    Rectlin,
)


@each_layer
def test_a_call_of_a_layer_is_inference(be, rng, which):
    be.bsz = 2
    layer = by_hand(LAYERS[which][0](), 3)
    x = data(be, rng, 3)
    want = layer.fprop(x, inference=True).get()
    layer.fprop(x)
    error = data(be, rng, layer.out_shape).get()
    deltas = layer.bprop(be.array(error)).get()
    outputs = layer(x)
    layer(data(be, rng, 3))  # does not overwrite them
    np.testing.assert_array_equal(outputs.get(), want)
    np.testing.assert_array_equal(layer.bprop(be.array(error)).get(), deltas)  # of the training fprop


def test_a_call_of_a_layer_that_works_in_place_keeps_its_inputs(be):
    be.bsz = 2
    net = Sequential([Linear(3, Gaussian()), Bias(Constant(1)), Activation(Rectlin())]).configure(3)
    net.allocate()
    x = be.array([[-1.0, 2], [3, -4], [0, 5]])
    assert net.layers[2](x).get().tolist() == [[0, 2], [3, 0], [0, 5]]
    assert net.layers[1](x).get().tolist() == [[0, 3], [4, -3], [1, 6]]
    assert x.get().tolist() == [[-1, 2], [3, -4], [0, 5]]


def test_a_call_configures_a_layer_and_allocates_its_parameters(be):
    for layer in (Linear(1, Gaussian(), name="fc"), Sequential([Linear(1, Gaussian(), name="fc")], name="fc")):
        assert layer(be.ones((3, 2))).shape == (1, 2)
        assert layer.in_shape == 3
        with pytest.raises(
            ValueError, match=r"fc: expected inputs \(3, N\), for the layer shape 3, got a tensor \(4, 2\)"
        ):
            layer(be.ones((4, 2)))


MOVED = {  # module of a class in files written before it moved
    "binary": "BinaryLinear",
    "branch": "BranchNode SkipNode Tree SingleOutputTree",
    "roi_pooling": "RoiPooling",
    "sequence_reduction": "RecurrentLast RecurrentMean RecurrentSum BiSum",
    "recurrent": "BiRNN BiLSTM BiBNRNN",
    "shape": "Reshape DataTransform",
    "skipthought": "SkipThought",
    "attention": "PositionalEncoding PositionEmbedding",
}


@pytest.mark.parametrize("module", MOVED)
def test_files_that_name_the_former_module_of_a_class_give_the_class(module):
    for name in MOVED[module].split():
        assert find_class(f"neonlite.layers.{module}.{name}") is getattr(neonlite.layers, name)
