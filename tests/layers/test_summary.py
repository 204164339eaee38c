"""The summary of a network states what a run uses: shapes and sums computed by hand, memory to the byte."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.networks import trained_by_program
from helpers.runtimes import assert_same_memory

from neonlite import cleanup_backend, gen_backend
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import (
    LRN,
    Activation,
    Affine,
    BranchNode,
    Conv,
    Deconv,
    Dropout,
    GeneralizedCost,
    GeneralizedCostMask,
    Linear,
    LookupTable,
    MergeBroadcast,
    MergeMultistream,
    MergeSum,
    Multicost,
    Pooling,
    Reshape,
    Sequential,
    SkipNode,
    Tree,
)
from neonlite.optimizers import Adam, GradientDescentMomentum, RMSProp
from neonlite.transforms import CrossEntropyMulti, Logistic, MeanSquared, Rectlin, Softmax, Tanh

Parts = tuple[Any, Any, Any, Any]  # network, inputs' shape, cost, optimizer
init = Gaussian(scale=0.1)


def mlp() -> Parts:
    layers = [
        Affine(100, init, bias=Constant(0), activation=Rectlin(), name="hidden"),
        Dropout(0.5, name="drop"),
        Affine(10, init, activation=Softmax(), name="out"),
    ]
    optimizer = GradientDescentMomentum(0.1, 0.9, gradient_clip_norm=5)
    return Sequential(layers), 784, GeneralizedCost(CrossEntropyMulti()), optimizer


def images() -> Parts:
    layers = [
        Conv((5, 5, 8), init, padding=2, bias=Constant(0), activation=Rectlin()),
        LRN(5, ascale=0.1),
        Pooling(2),
        Conv((3, 3, 16), init, strides=2, batch_norm=True, activation=Tanh()),
        Pooling("all", op="avg"),
        Affine(3, init, activation=Softmax()),
    ]
    return Sequential(layers), (3, 13, 11), GeneralizedCost(CrossEntropyMulti()), Adam()


def residual() -> Parts:
    def block() -> Any:
        way = [Conv((3, 3, 8), init, padding=1, batch_norm=True, activation=Rectlin())]
        way += [Conv((3, 3, 8), init, padding=1, batch_norm=True)]
        return [MergeSum([way, SkipNode()]), Activation(Rectlin())]

    layers = [Conv((3, 3, 8), init, padding=1), block(), block(), Pooling("all", op="avg"), Affine(4, init)]
    return Sequential(layers), (3, 9, 9), GeneralizedCost(MeanSquared()), RMSProp()


def tree() -> Parts:
    node = BranchNode("here")
    trunk = [Affine(30, init, activation=Tanh()), node, Affine(5, init, activation=Softmax())]
    heads = Tree([trunk, [node, Affine(1, init, activation=Logistic())]], alphas=[1, 0.3])
    costs = [GeneralizedCost(CrossEntropyMulti()), GeneralizedCostMask(MeanSquared())]
    return heads, 20, Multicost(costs, weights=[1, 0.5]), GradientDescentMomentum(0.1, 0.0)


def streams() -> Parts:
    words = [LookupTable(50, 6, init), Reshape((1, 6, 7)), Conv((6, 3, 4), init), Reshape(-1)]
    autoencoder = [Conv((3, 3, 4), init, strides=2), Deconv((3, 3, 1), init, strides=2)]
    inception = MergeBroadcast([Conv((1, 1, 2), init), Pooling(3, strides=1, padding=1)], merge="depth")
    net = MergeMultistream([words, [*autoencoder, inception]], merge="stack")
    return Sequential([net, Affine(2, init)]), [7, (1, 9, 9)], GeneralizedCost(MeanSquared()), Adam()


NETWORKS: list[Callable[[], Parts]] = [mlp, images, residual, tree, streams]
each = pytest.mark.parametrize("make", NETWORKS, ids=lambda make: make.__name__)


def train(make: Callable[[], Parts], steps: int = 2) -> Any:
    """Create and train a network for some steps; return it with its data."""
    return trained_by_program(*make(), steps)


# --- memory ----------------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("batch_size", [1, 37])
def test_the_stated_memory_is_what_the_backend_allocates_to_the_byte(be, make, batch_size):
    be.bsz = batch_size
    net, shape, cost, optimizer = make()
    stated = net.summary(shape, cost, optimizer)
    assert be.memory().total == 0  # the summary itself allocates nothing
    kept = train(make)
    assert_same_memory(be, be.memory(), stated.memory)
    del kept


@each
def test_more_steps_allocate_no_more(be, make):
    be.bsz = 8
    net, shape, cost, optimizer = make()
    stated = net.summary(shape, cost, optimizer)
    kept = train(make, steps=5)
    assert_same_memory(be, be.memory(), stated.memory)
    del kept


@each
def test_numpy_allocates_hardly_more_than_stated(make):
    gen_backend("cpu", rng_seed=1, batch_size=16)
    train(make)  # what Python and NumPy make once
    net, shape, cost, optimizer = make()
    stated = net.summary(shape, cost, optimizer)
    cleanup_backend()
    be = gen_backend("cpu", rng_seed=1, batch_size=16)
    tracemalloc.start()
    before = of_numpy()
    kept = train(make)
    after = of_numpy()
    tracemalloc.stop()
    held = be.memory().total
    assert held == stated.memory.total
    assert held <= after - before <= held + 192 * 1024  # constants of plans, and a chunk of random bits for masks
    del kept


def of_numpy() -> int:
    domain = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum(x.size for x in tracemalloc.take_snapshot().filter_traces([domain]).statistics("filename"))


@each
def test_the_bytes_by_purpose_add_up_to_the_tensors(be, make):
    be.bsz = 4
    net, shape, cost, optimizer = make()
    stated = net.summary(shape, cost, optimizer)
    assert sum(stated.bytes_by_purpose.values()) == stated.memory.tensors
    assert all(n >= 0 for n in stated.bytes_by_purpose.values())
    size = 4 * stated.parameters
    assert stated.bytes_by_purpose["parameters"] == stated.bytes_by_purpose["gradients"] == size
    states = {GradientDescentMomentum: 1, Adam: 2, RMSProp: 1}[type(optimizer)]
    assert stated.bytes_by_purpose["optimizer states"] == (states * size if make is not tree else 0)


def test_the_summary_of_a_trained_network_is_that_of_a_new_one(be):
    be.bsz = 4
    for make in NETWORKS:
        net, _, _, cost, optimizer, step = train(make)
        afresh, shape, cost_afresh, optimizer_afresh = make()
        want = afresh.summary(shape, cost_afresh, optimizer_afresh)
        got = net.summary(cost=cost, optimizer=optimizer)
        assert (got.bytes_by_purpose, got.flops, got.parameters) == (want.bytes_by_purpose, want.flops, want.parameters)
        assert got.memory[:3] == want.memory[:3]
        step()  # it works on


def test_the_network_is_not_changed(be, rng):
    be.bsz = 4
    net, x, t, cost, _, _ = train(mlp)
    x[:] = rng.normal(size=x.shape)
    t[:] = 1
    weights, state = net.get_weights(), be.rng_get_state()
    y = net.fprop(x, inference=True).get()
    shared = net.layers[0].outputs
    net.summary(cost=cost, optimizer=GradientDescentMomentum(0.1, 0.9))
    assert be.rng_get_state() == state
    assert net.layers[0].outputs is shared
    assert np.array_equal(net.fprop(x, inference=True).get(), y)
    assert all(np.array_equal(net.get_weights()[name], w) for name, w in weights.items())
    assert net.layers[0].be is be
    assert net.layers[0].states


def test_large_networks_are_summarized_without_their_memory(cpu):
    cpu.bsz = 1024
    net = Sequential([Linear(200_000, init), Linear(200_000, init)])
    tracemalloc.start()
    stated = net.summary(100_000, GeneralizedCost(MeanSquared()), Adam())
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert stated.parameters == 200_000 * 300_000
    assert stated.peak > 4 * 4 * stated.parameters


# --- expected values -------------------------------------------------------------------------------------------------


def test_rows_state_shapes_parameters_and_arithmetic(be):
    be.bsz = 3
    net = Sequential([Conv((3, 3, 4), init, name="c"), Affine(2, init, bias=Constant(0), name="a")], name="net")
    stated = net.summary((2, 5, 5))
    rows = {row.name: row for row in stated.rows}
    assert list(rows) == ["net", "c", "a", "a_bias"]
    assert [row.depth for row in stated.rows] == [0, 1, 1, 1]
    assert rows["c"].out_shape == (4, 3, 3)
    assert [row.parameters for row in stated.rows] == [0, 2 * 3 * 3 * 4, 2 * 36, 2]
    assert stated.parameters == 72 + 72 + 2
    assert rows["a"].flops == 3 * (2 * 2 * 36 * 3)  # forward, gradient, deltas
    assert rows["a_bias"].flops == 2 * 3 + 2 * 3  # forward, and the sum that is the gradient
    assert rows["c"].flops >= 2 * (2 * 72 * 9 * 3)  # forward and gradient: the first layer has no deltas
    assert rows["c"].buffers == 4 * 36 * 3
    assert rows["a_bias"].buffers == 4 * 2 * 3


def test_the_deltas_of_the_first_layer_are_not_computed(be):
    be.bsz = 3
    flops = [Sequential([Linear(7, init) for _ in range(n)]).summary(5).flops for n in (1, 2, 3)]
    assert flops[0] == 2 * (2 * 5 * 7 * 3)
    assert flops[2] - flops[1] == 3 * (2 * 7 * 7 * 3)


def test_it_prints_a_table_and_the_memory(be):
    be.bsz = 4
    net, shape, cost, optimizer = mlp()
    text = str(net.summary(shape, cost, optimizer))
    assert text == repr(net.summary(shape, cost, optimizer))  # which an interactive session prints
    assert "hidden (Linear)" in text
    assert "78,400" in text
    assert "total (with cost and update)" in text
    assert "total (with cost)" in str(net.summary(shape, cost))
    assert "total  " in str(net.summary(shape))
    assert "minibatches of 4" in text
    assert text.rstrip().splitlines()[-1].split()[0] == "peak"
    assert len({len(line) for line in text.splitlines()[:2]}) == 1
    html = net.summary(shape, cost, optimizer)._repr_html_()
    assert "<table>" in html
    assert "hidden (Linear)" in html


def test_without_a_batch_size_the_memory_is_that_of_32_rows():
    be = gen_backend("cpu")
    be.bsz = 0
    net = Sequential([Linear(3, init, name="lin")], name="net")
    summary = net.summary(4)
    assert (summary.batch_size, be.bsz) == (32, 0)
    be.bsz = 32
    assert str(summary) == str(net.summary(4))


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_are_rejected():
    be = gen_backend("cpu")
    net = Sequential([Linear(3, init, name="lin")], name="net")
    be.bsz = 2
    with pytest.raises(
        RuntimeError, match=r"net: expected a configured network, got one without shapes\. .*: summary\(shape\)"
    ):
        net.summary()
    with pytest.raises(ValueError, match=r"lin: expected an input shape F, \(F, T\) or \(C, H, W\), got 'four'"):
        net.summary("four")
    assert net.layers[0].in_shape is None


def test_a_copy_of_a_network_is_trained_separately(be):
    be.bsz = 4
    net, x, t, cost, _, _ = train(mlp)
    twin = copy.deepcopy(net)
    before = json.dumps({name: w.tolist() for name, w in net.get_weights().items()})
    y = twin.fprop(x)
    twin.bprop(cost.get_errors(y, t))
    GradientDescentMomentum(0.1, 0.9).optimize(twin.layers_to_optimize, 0)
    twin.layers[0].W[:] = 1
    assert json.dumps({name: w.tolist() for name, w in net.get_weights().items()}) == before
