"""Parameters: initial values, one buffer for a network, assignment (neonlite/layers/parameter.py)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.layer_cases import mlp
from helpers.networks import by_hand, close, data, network

from neonlite.initializers import Array, Constant, Gaussian
from neonlite.layers import Bias, Dropout, Linear, Sequential
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti


def test_parameters_are_views_of_one_buffer_and_gradients_of_another(be, rng):
    be.bsz = 2
    net = network([mlp(), Sequential([Linear(2, Gaussian(), name="in")])], 4)
    for tensors, names in ((net.parameters, "W"), (net.gradients, "dW")):
        assert [x.name for x in tensors] == [f"{x}.{names}" for x in ("h", "h_bias", "o", "o_bias", "in")]
        assert [x.shape for x in tensors] == [(5, 4), (5, 1), (3, 5), (3, 1), (2, 3)]
        assert len({id(x.allocation) for x in tensors}) == 1
        assert tensors[0].storage_offset == 0
        assert tensors[-1].span[1] == tensors[0].root.size == 20 + 5 + 15 + 3 + 6
        for x, y in itertools.pairwise(tensors):
            assert x.span[1] == y.storage_offset
    root = net.parameters[0].root
    close(root.get().ravel(), np.concatenate([p.get().ravel() for p in net.parameters]), 0)
    net.layers[0].W = np.arange(20.0).reshape(5, 4)
    close(root[:20].get().ravel(), np.arange(20.0), 0)
    assert net.parameters[0].allocation is not net.gradients[0].allocation
    assert [layer.name for layer in net.layers_to_optimize] == ["h", "h_bias", "o", "o_bias", "in"]


def test_an_optimizer_updates_a_network_in_one_pass(cpu, rng):
    cpu.bsz = 2
    net, cost = network(mlp(), 4, CrossEntropyMulti())
    x, t = data(cpu, rng, 4), cpu.array(np.eye(3)[:, :2])
    optimizer = Adam()
    cost.get_cost(net.fprop(x), t)
    net.bprop(cost.get_errors(net.outputs, t))
    optimizer.optimize(net.layers_to_optimize, 0)
    (program,) = optimizer._programs.values()
    assert [t.size for t in program.targets] == [43, 43, 43]  # the parameters and two states of each


def test_values_assigned_to_weights_are_copied(be):
    be.bsz = 2
    layer = by_hand(Linear(2, Constant(1.0)), 3)
    W, values = layer.W, np.arange(6.0).reshape(2, 3)
    for value in (values, be.array(values), be.array(values) * 1, values.astype("float32")):
        layer.W = 0
        close(W, np.zeros((2, 3)))
        layer.W = value
        assert layer.W is W
        close(W, values)
    layer.W = layer.W * 2
    assert layer.W is W
    close(W, 2 * values)
    values[:] = 9
    assert 9 not in W.get()
    for wrong in (np.zeros((3, 3)), np.zeros((1, 3)), be.zeros((3, 1))):
        with pytest.raises(ValueError, match=rf"{layer.name}\.W: expected the shape \(2, 3\), got "):
            layer.W = wrong
    with pytest.raises(ValueError, match=rf"{layer.name}\.W"):
        layer.W = np.zeros((3, 2))
    with pytest.raises(
        TypeError, match=r"fresh\.W: expected an allocated tensor to copy into, got none\. Call allocate"
    ):
        Linear(2, Constant(1.0), name="fresh").W = values


def test_weights_are_initialized_by_an_initializer_an_array_or_a_tensor(be):
    be.bsz = 2
    values = np.arange(6.0).reshape(2, 3)
    for init in (Array(values), values, be.array(values), values.astype("int32")):
        layer = by_hand(Linear(2, init), 3)
        close(layer.W, values)
        close(layer.dW, np.zeros((2, 3)))
    assert by_hand(Bias(np.ones((3, 1))), (3, 2, 5)).W.shape == (3, 1)
    for init in (np.ones((3, 2)), be.ones((3, 2)), np.ones(6), np.float32(1), Array(np.ones((3, 2)))):
        with pytest.raises(ValueError, match=r"far.*\(2, 3\)"):
            by_hand(Linear(2, init, name="far"), 3)
    with pytest.raises(TypeError, match=r"far.*: expected an initializer such as Gaussian"):
        Linear(2, 0.1, name="far")
    with pytest.raises(ValueError, match=r"far: expected one of .*'gaussian', .* for init, got 'Gauss'"):
        Linear(2, "Gauss", name="far")


def test_parameters_are_read_and_set_by_name(be):
    be.bsz = 2
    layer = by_hand(Linear(2, Constant(1.0)), 3)
    (W, dW), states = layer.get_params()
    assert W is layer.W
    assert dW is layer.dW
    assert states is layer.states == []
    layer.set_params({"W": np.full((2, 3), 7.0)})
    close(W, np.full((2, 3), 7.0))
    with pytest.raises(KeyError, match=f"{layer.name}: expected an array W, got only V"):
        layer.set_params({"V": 1})
    with pytest.raises(ValueError, match=rf"{layer.name}\.W: expected the shape"):
        layer.set_params({"W": np.ones((1, 3))})


def test_a_second_allocate_keeps_the_weights(be, rng):
    be.bsz = 2
    net = network(mlp(), 4)
    x, error = data(be, rng, 4), data(be, rng, 3)
    before = [p.get() for p in net.parameters]
    net.fprop(x)
    net.allocate()
    net.allocate_deltas()
    for p, value in zip(net.parameters, before, strict=True):
        close(p, value, 0)
    dropout = next(layer for layer in net.layers if isinstance(layer, Dropout))
    net.fprop(x)
    close(dropout.outputs, dropout.inputs.get() * dropout.mask.get(), 0)
    net.bprop(error)
    alone = by_hand(Dropout(), 4)
    for _ in range(5):
        alone.allocate()
        close(alone.fprop(x), x.get() * alone.mask.get(), 0)


def test_weights_reject_inputs_of_another_shape(be):
    be.bsz = 2
    layer = by_hand(Linear(2, Gaussian(), name="fc"), 3)
    layer.configure(4)
    with pytest.raises(
        ValueError,
        match=r"fc: expected .* shape \(2, 4\) for inputs of shape 4, got fc\.W \(2, 3\), allocated for other",
    ):
        layer.allocate()
