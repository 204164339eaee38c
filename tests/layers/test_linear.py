"""Linear and Bias layers (neonlite/layers/linear.py; their passes with those of all layers in test_layer.py)."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.networks import by_hand, close, data

from neonlite.initializers import Gaussian
from neonlite.layers import Affine, Bias, Linear, Sequential


def test_a_linear_layer_computes_the_sums_of_its_outputs(be64, rng):
    be64.bsz = 4
    layer = by_hand(Linear(3, Gaussian(), bsum=True), 5)
    outputs = layer.fprop(data(be64, rng, 5))
    close(layer.batch_sum, outputs.get().sum(axis=1, keepdims=True))


# --- mistakes --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("nout", [0, -1, 2.0, True, "5", None])
def test_a_wrong_number_of_outputs_is_rejected(cpu, nout):
    with pytest.raises((TypeError, ValueError), match=f"fc: expected an integer >= 1 for nout, got {nout!r}"):
        Linear(nout, Gaussian(), name="fc")
    with pytest.raises((TypeError, ValueError), match="fc: expected an integer >= 1 for nout"):
        Affine(nout, Gaussian(), name="fc")


def test_buffers_of_two_batch_sizes_are_reused_and_new_weights_are_read(be):
    layer = Bias()
    network = Sequential([Linear(3, init=Gaussian()), layer])
    be.bsz = 4
    network.configure(5)
    network.allocate()
    network.allocate_deltas()
    buffers = []
    for n in [4, 2, 4, 2, 4, 2]:
        network.set_batch_size(n)
        x = be.ones((5, n))
        y = network.fprop(x)
        network.bprop(be.ones((3, n)))
        buffers.append(y)
        expected = layer.W.get() + network.layers[0].W.get().sum(axis=1, keepdims=True)
        np.testing.assert_allclose(y.get(), np.tile(expected, n), rtol=1e-5)
        layer.W[:] = layer.W + 1
    assert buffers[2] is buffers[4]
    assert buffers[3] is buffers[5]
