"""Accumulation of gradients over several passes (neonlite/layers/weights.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.network_cases import INIT, all_errors
from helpers.networks import Careful, Gain, branching, close, data, ready

import neonlite.layers
from neonlite.initializers import Constant, IdentityInit
from neonlite.layers import (
    LRN,
    Activation,
    Affine,
    Bias,
    Convolution,
    Convolution_bias,
    Deconvolution,
    Dropout,
    Layer,
    Linear,
    LookupTable,
    MergeBroadcast,
    MergeSum,
    ParameterLayer,
    Pooling,
    Reshape,
    Sequential,
    SkipNode,
)
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import Logistic, Tanh

NDArray = np.ndarray[Any, Any]


# --- accumulation of gradients ---------------------------------------------------------------------------------------
class ByHand(ParameterLayer):
    """A layer of the user's that has written its bprop: ``W x``, for one number W."""

    def configure(self, in_obj):
        super().configure(in_obj)
        self.out_shape, self.weight_shape = self.in_shape, (1, 1)
        return self

    def fprop(self, inputs, inference=False):
        self.prepare_fprop(inputs, inference)
        self.outputs[:] = self.W * inputs
        return self.outputs

    def inference_formula(self, x):
        return x

    formula = inference_formula

    @Layer.accumulates
    def bprop(self, error):
        self.dW[:] = self.be.sum(error * self.inputs)
        self.deltas[:] = self.W * error
        return self.deltas


GRAY = (2, 4, 5)


MAKERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "Linear": (lambda: Linear(3, INIT), 5),
    "BinaryLinear": (lambda: neonlite.layers.BinaryLinear(3, INIT), 5),
    "Bias": (lambda: Bias(INIT), GRAY),
    "Convolution": (lambda: Convolution((3, 3, 2), init=INIT), GRAY),
    "Convolution_bias": (lambda: Convolution_bias((3, 3, 2), init=INIT, bias=INIT), GRAY),
    "Deconvolution": (lambda: Deconvolution((3, 3, 2), init=INIT), GRAY),
    "LookupTable": (lambda: LookupTable(7, 3, INIT, pad_idx=2), 4),
    "MultiHeadAttention": (lambda: neonlite.layers.MultiHeadAttention(2, INIT, bias=INIT), (4, 3)),
    "PositionEmbedding": (lambda: neonlite.layers.PositionEmbedding(3, INIT), (4, 3)),
    "Gain": (lambda: Gain(INIT), 5),
    "ByHand": (lambda: ByHand(INIT), 5),
}


NORMS = ["BatchNorm", "BatchNormAutodiff", "ShiftBatchNorm", "LayerNorm"]


MAKERS |= {name: (getattr(neonlite.layers, name), GRAY) for name in NORMS}


PLAIN = {"activation": Tanh(), "reset_cells": True}


READERS = dict.fromkeys(("Recurrent", "BiRNN", "BiBNRNN"), PLAIN)


READERS |= dict.fromkeys(("LSTM", "GRU", "BiLSTM"), PLAIN | {"gate_activation": Logistic()})


MAKERS |= {
    name: (lambda name=name, options=options: getattr(neonlite.layers, name)(3, INIT, **options), (5, 4))
    for name, options in READERS.items()
}


LEARNING = [
    name for name, cls in vars(neonlite.layers).items() if isinstance(cls, type) and issubclass(cls, ParameterLayer)
]


@pytest.mark.parametrize(
    "which", sorted({*MAKERS, *LEARNING} - {"ParameterLayer", "QuantizedConvolution", "QuantizedLinear"})
)
@pytest.mark.parametrize("inside", [False, True])
def test_gradients_add_up_over_several_passes_when_enabled(be, rng, which, inside):
    be.bsz = 3
    make, shape = MAKERS[which]
    layer = make()
    net = Sequential([MergeSum([layer])]) if inside else layer
    net.configure(shape)
    net.needs_deltas = True
    net.allocate(accumulate_updates=True)
    net.allocate_deltas()
    words = isinstance(layer, LookupTable)
    batches = [
        (be.array(rng.integers(7, size=(4, 3))) if words else data(be, rng, shape), data(be, rng, net.out_shape))
        for _ in range(3)
    ]

    def passes() -> list[list[NDArray]]:
        found = []
        for x, error in batches:
            net.fprop(x)
            deltas = net.bprop(error)
            found.append([g.get() for g in net.gradients] + ([] if deltas is None else [deltas.get()]))
        return found

    one = passes()
    parts = [sum(g[i].astype(float) for g in one) for i in range(len(net.gradients))]
    assert all(np.abs(p).max() > 0 for p in parts)
    for g in net.gradients:
        g.fill(0)
    net.set_acc_on(True)
    many = passes()
    for i, want in enumerate(parts):
        np.testing.assert_allclose(many[-1][i], want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(many[1][i], one[0][i] + one[1][i], rtol=1e-5, atol=1e-5)
    for a, b in zip(one, many, strict=True):
        for deltas, want in zip(a[len(parts) :], b[len(parts) :], strict=True):
            close(deltas, want, 0)
    net.set_acc_on(False)
    for a, b in zip(one, passes(), strict=True):
        for got, want in zip(b, a, strict=True):
            close(got, want, 0)


def test_gradients_add_up_in_a_whole_network_and_after_another_batch_size(be64, rng):
    be64.bsz = 4
    net = branching(
        [Affine(4, INIT, batch_norm=True, activation=Tanh()), "one", MergeSum([Linear(4, INIT), Careful()])],
        ["one", MergeBroadcast([Linear(2, INIT), Bias(INIT)], "stack")],
    )
    net.configure(3)
    net.allocate(accumulate_updates=True)
    net.allocate_deltas()
    for N in (4, 2, 6):
        net.set_batch_size(N)
        net.set_acc_on(False)
        total: Any = 0
        batches = [(data(be64, rng, 3), all_errors(be64, net, rng)[0]) for _ in range(3)]
        for x, error in batches:
            net.fprop(x)
            net.bprop(error)
            total = total + np.concatenate([g.get().ravel() for g in net.gradients])
        for i, (x, error) in enumerate(batches):
            net.set_acc_on(i > 0)
            net.fprop(x)
            net.bprop(error)
        close(np.concatenate([g.get().ravel() for g in net.gradients]), total)


def test_gradients_cannot_add_up_without_buffers(be, rng):
    be.bsz = 2
    net = ready(Sequential([Activation(Tanh()), MergeSum([Linear(3, INIT, name="first"), SkipNode()])]), 3)
    message = (
        r"first: expected buffers for accumulating gradients, got none\. Call allocate\(accumulate_updates=True\) first"
    )
    for thing in (net, net.layers[1].layers[0].layers[0]):
        with pytest.raises(BufferError, match=message):
            thing.set_acc_on(True)
        thing.set_acc_on(False)
    Activation(Tanh()).set_acc_on(True)  # it has no gradients
    x = data(be, rng, 3)
    net.fprop(x)
    want = [net.bprop(x).get(), net.gradients[0].get()]
    net.bprop(x)
    close(net.gradients[0], want[1], 0)


def test_only_a_layer_accumulates(cpu):
    class Thing:
        @Layer.accumulates
        def bprop(self, error):
            return error

    with pytest.raises(TypeError, match=r"Layer\.accumulates: expected the bprop of a Layer, got that of .*Thing"):
        Thing().bprop(1)
    assert ByHand.bprop.__name__ == "bprop"


@pytest.mark.parametrize("layer", [Activation(Tanh()), Pooling(2), LRN(3), Dropout(), SkipNode(), Reshape(48)])
def test_a_layer_without_parameters_has_no_gradients_to_add_up(cpu, layer):
    cpu.bsz = 2
    layer.configure((3, 4, 4))
    with pytest.raises(
        TypeError, match=rf"{layer.name}: accumulate_updates: expected a layer with parameters, got {layer.classnm}"
    ):
        layer.allocate(accumulate_updates=True)
    layer.allocate()
    net = Sequential([Linear(3, INIT), Activation(Tanh())]).configure(4)
    net.allocate(accumulate_updates=True)
    net.set_acc_on(True)


def test_a_pass_that_fails_leaves_the_layer_accumulating(be, rng):
    be.bsz = 2
    layer = Linear(3, INIT).configure(4)
    layer.needs_deltas = True
    layer.allocate(accumulate_updates=True)
    layer.allocate_deltas()
    x, error = data(be, rng, 4), data(be, rng, 3)
    layer.fprop(x)
    layer.bprop(error)
    layer.set_acc_on(True)
    with pytest.raises(ValueError, match="expected an error of shape"):
        layer.bprop(x)
    assert layer.acc_on
    layer.bprop(error)
    np.testing.assert_allclose(layer.dW.get(), 2 * error.get() @ x.get().T, rtol=1e-5)


# --- trainable layers ------------------------------------------------------------------------------------------------
def test_layers_that_are_not_trainable_are_not_optimized(be):
    be.bsz = 2
    fixed = Linear(4, IdentityInit(), name="fixed")
    named = Bias(Constant(2), name="named")
    named.trainable = False
    words = LookupTable(5, 4, INIT, update=False, name="words")
    net = ready(
        Sequential([words, MergeSum([fixed, [Linear(4, INIT, name="learning"), named]]), Activation(Tanh())]),
        (1, 3),
        deltas=False,
    )
    assert {layer.name for layer in net.layers_to_optimize} == {"fixed", "learning"}
    x = be.array([[0, 1, 2, 3, 4, 0]])
    before = {layer.name: layer.W.get() for layer in net.leaves() if layer.has_params}
    net.fprop(x)
    net.bprop(be.ones((4, 6)))
    GradientDescentMomentum(0.1, 0.9).optimize(net.layers_to_optimize, epoch=0)
    moved = {
        name
        for layer in net.leaves()
        if layer.has_params
        for name in [layer.name]
        if (layer.W.get() != before[name]).any()
    }
    assert moved == {layer.name for layer in net.layers_to_optimize}
