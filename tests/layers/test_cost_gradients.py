"""Gradients of costs with and without the shortcut of activations (neonlite/layers/cost.py)."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.layer_cases import mlp
from helpers.networks import by_hand, check_cost, close, data, network, targets

from neonlite.initializers import Gaussian
from neonlite.layers import Activation, Affine, GeneralizedCost, Linear, Sequential
from neonlite.transforms import CrossEntropyMulti, Identity, Softmax, SumSquared


# --- costs -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [4, (4, 3), (1, 2, 2)])
def test_a_cost_is_the_mean_over_columns(be64, rng, shape):
    be64.bsz = 5
    layer = by_hand(Activation(Identity()), shape)
    cost = GeneralizedCost(SumSquared())
    cost.initialize(layer)
    y, t = data(be64, rng, shape), data(be64, rng, shape)
    each = ((y.get() - t.get()) ** 2).sum(axis=0) / 2
    assert len(each) == (15 if shape == (4, 3) else 5)
    got = cost.get_cost(y, t)
    assert got.shape == (1, 1)
    assert isinstance(got, np.ndarray)
    assert cost.cost is got
    close(got, [[each.mean()]])
    close(cost.outputs, [each])
    close(cost.get_errors(y, t), y.get() - t.get())  # not divided by the number of columns


@pytest.mark.parametrize("costfunc", [CrossEntropyMulti, SumSquared])
def test_a_softmax_in_the_middle_has_its_true_derivative(be64, rng, costfunc):
    be64.bsz = 3
    layers = [Affine(4, Gaussian(), activation=Softmax()), Affine(3, Gaussian(), activation=Softmax())]
    net, cost = network([*layers, Sequential([Affine(3, Gaussian(), activation=Softmax())])], 4, costfunc())
    softmaxes = [x for x in net.leaves() if isinstance(x, Activation)]
    assert [x.shortcut for x in softmaxes] == [False, False, costfunc is CrossEntropyMulti]
    check_cost(net, cost, data(be64, rng, 4), targets(be64, rng, (3, 3)))


def test_the_shortcut_follows_the_current_cost(be64, rng):
    be64.bsz = 3
    net, paired = network(Affine(3, Gaussian(), activation=Softmax()), 4, CrossEntropyMulti())
    x, t = data(be64, rng, 4), targets(be64, rng, (3, 3))
    assert net.layers[-1].shortcut
    other = GeneralizedCost(SumSquared())
    other.initialize(net)
    assert not net.layers[-1].shortcut
    assert not other.shortcut
    for cost in (other, paired, other):
        check_cost(net, cost, x, t)


def test_a_scaled_cross_entropy_scales_its_errors_with_and_without_the_shortcut(be64, rng):
    be64.bsz = 3
    x, t = data(be64, rng, 4), targets(be64, rng, (3, 3))
    W, found = rng.normal(size=(3, 4)), []
    for scale, last in ((1, Softmax()), (2.5, Softmax()), (2.5, Softmax(axis=0))):
        net, cost = network([Linear(3, W), Activation(last)], 4, CrossEntropyMulti(scale))
        if len(found) == 2:
            cost.shortcut = False
        net.fprop(x)
        net.bprop(cost.get_errors(net.outputs, t))
        found.append(net.gradients[0].get())
    close(found[1], 2.5 * found[0])
    close(found[2], found[1])


def test_a_cost_comes_after_its_network(be, rng):
    be.bsz = 2
    net, cost = Sequential(mlp()), GeneralizedCost(SumSquared(), name="loss")
    for act in (cost.get_cost, cost.get_errors):
        with pytest.raises(
            RuntimeError,
            match=r"loss: expected an initialized cost, got one without buffers. Call initialize\(network\)",
        ):
            act(be.zeros((3, 2)), be.zeros((3, 2)))
    with pytest.raises(RuntimeError, match=rf"loss: expected a configured network, got {net.name}"):
        cost.initialize(net)
    cost.initialize(net.configure(4))
    with pytest.raises(ValueError, match="SumSquared: expected targets with a row for each of the 3 outputs"):
        cost.get_cost(be.zeros((3, 2)), be.zeros((4, 2)))
