"""Buffers of deltas, other batch sizes and numbers of time steps (neonlite/layers/buffers.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers.network_cases import INIT, Grower, all_errors, listed, numbers
from helpers.networks import branching, close, data, network, ready
from helpers.parametrize import thinned

from neonlite import Backend, gen_backend
from neonlite.layers import (
    Activation,
    BatchNorm,
    GeneralizedCost,
    LayerContainer,
    Linear,
    LookupTable,
    MergeBroadcast,
    MergeMultistream,
    MergeSum,
    Multicost,
    Reshape,
    Sequential,
    SkipNode,
)
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import SumSquared, Tanh

NDArray = np.ndarray[Any, Any]


def containers_of(net: Any) -> Iterator[Any]:
    yield net
    for layer in net.layers:
        if isinstance(layer, LayerContainer):
            yield from containers_of(layer)


# --- another batch size, other time steps ----------------------------------------------------------------------------
def roots(net: Any) -> dict[str, int]:
    """Return the owner of the memory of the outputs and deltas of each layer of a network."""
    things = [*containers_of(net), *net.leaves()]
    buffers = {f"{x.name}.{name}": vars(x)[name] for x in things for name in ("outputs", "deltas")}
    return {name: id(t.root) for name, t in buffers.items() if t is not None}


def run(be: Backend, net: Any, x: Any, seed: int) -> list[NDArray]:
    """Return outputs, deltas and gradients for an error."""
    error, _ = all_errors(be, net, np.random.default_rng(seed))
    found = [y.get() for y in listed(net.fprop(x))]
    return [*found, net.bprop(error).get(), *(g.get() for g in net.gradients)]


@pytest.mark.parametrize("seed", thinned(3, range(400, 425)))
def test_another_batch_size_gives_the_results_of_a_new_network(seed):
    be = gen_backend("cpu", batch_size=4, datatype=np.float64)
    net, shape = Grower(seed, alphas=True).network()
    ready(net, shape)
    numbers(net, np.random.default_rng(seed))
    weights = [p.get() for p in net.parameters]
    for N in (4, 3, 4, 1, 7, 2, 7):
        if N != 4 or be.bsz != 4:
            net.set_batch_size(N)
        assert be.bsz == N
        fresh, _ = Grower(seed, alphas=True).network()
        ready(fresh, shape)
        for p, w in zip(fresh.parameters, weights, strict=True):
            p[:] = w
        x = data(be, np.random.default_rng(N), shape)
        for got, want in zip(run(be, net, x, N), run(be, fresh, x, N), strict=True):
            assert got.shape == want.shape
            assert got.tobytes() == want.tobytes()
    assert all(p.get().tobytes() == w.tobytes() for p, w in zip(net.parameters, weights, strict=True))


@pytest.mark.parametrize("seed", range(430, 436))
def test_a_smaller_batch_reuses_the_memory_of_a_larger_one(seed):
    be = gen_backend("cpu", batch_size=5)
    net, shape = Grower(seed, strangers=False).network()
    net = ready(Sequential([Linear(int(np.prod(shape)), INIT), Reshape(shape), net]), 3)
    kept: list[Any] = []  # keeps all memory alive, so that ids are unique

    def look(N: int) -> dict[str, int]:
        net.set_batch_size(N)
        kept.extend(t for thing in [*containers_of(net), *net.leaves()] for t in thing._buffers.values())
        net.fprop(be.ones((3, N)))
        return roots(net)

    was = look(5)
    assert len(was) > 3
    assert look(2) == look(5) == look(1) == was
    larger = look(9)
    assert larger.keys() == was.keys()
    assert not set(larger.values()) & set(was.values())
    assert look(5) == look(9) == larger


def test_a_cost_and_an_optimizer_follow_the_batch_size(be64, rng):
    be64.bsz = 4
    W, v = rng.normal(size=(2, 3)), np.zeros((2, 3))
    net, cost = network([Linear(2, W)], 3, SumSquared())
    optimizer = GradientDescentMomentum(0.1, 0.5)
    for N in (4, 2, 7, 4):
        if be64.bsz != N:
            net.set_batch_size(N)
        x, t = data(be64, rng, 3), data(be64, rng, 2)
        value = cost.get_cost(net.fprop(x), t)
        net.bprop(cost.get_errors(net.outputs, t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)
        wrong = W @ x.get() - t.get()
        close(value, [[np.sum(wrong**2) / 2 / N]])
        v = 0.5 * v - 0.1 / N * wrong @ x.get().T
        W = W + v
        close(net.layers[0].W, W)


def test_a_tree_and_its_costs_follow_the_batch_size(be64, rng):
    be64.bsz = 4
    net = ready(branching([Linear(3, INIT), "one", Linear(2, INIT)], ["one", Linear(1, INIT)]), 5, deltas=False)
    cost = Multicost([GeneralizedCost(SumSquared()), GeneralizedCost(SumSquared())], weights=[1, 0.5])
    cost.initialize(net)
    P = [p.get() for p in net.parameters]
    for N in (4, 1, 7):
        if N != 4:
            net.set_batch_size(N)
        x, t, u = data(be64, rng, 5), data(be64, rng, 2), data(be64, rng, 1)
        y = net.fprop(x)
        one = P[0] @ x.get()
        close(
            cost.get_cost(y, [t, u]),
            np.sum((P[1] @ one - t.get()) ** 2) / 2 / N + np.sum((P[2] @ one - u.get()) ** 2) / 4 / N,
        )
        net.bprop(cost.get_errors(y, [t, u]))
        close(net.gradients[1], (P[1] @ one - t.get()) @ one.T)
        close(net.gradients[2], (P[2] @ one - u.get()) @ one.T / 2)


STEPS: dict[str, tuple[Callable[[], Any], Any]] = {
    "Linear": (lambda: Sequential([Linear(3, INIT), Activation(Tanh()), BatchNorm(), Linear(2, INIT)]), (4, 3)),
    "MergeSum": (lambda: Sequential([MergeSum([Linear(4, INIT), SkipNode()]), Linear(2, INIT)]), (4, 3)),
    "stack": (lambda: MergeBroadcast([Linear(4, INIT), Linear(3, INIT)], "stack"), (4, 3)),
    "recurrent": (lambda: MergeBroadcast([Linear(4, INIT), SkipNode()], "recurrent"), (4, 3)),
    "streams": (lambda: MergeMultistream([Linear(4, INIT), Linear(4, INIT)], "recurrent"), [(4, 3), (2, 3)]),
    "Tree": (lambda: branching([Linear(4, INIT), "one", Linear(2, INIT)], ["one", Activation(Tanh())]), (4, 3)),
}


@pytest.mark.parametrize("which", STEPS)
def test_other_sequence_lengths_give_the_results_of_a_new_network(be64, which):
    be64.bsz = 2
    make, shape = STEPS[which]
    net = ready(make(), shape)
    weights = [p.get() for p in net.parameters]
    kept: list[Any] = []
    for T in (5, 1, 3, 5):
        net.set_seq_len(T)
        shapes = [(F, T) for F, _ in shape] if isinstance(shape, list) else (4, T)
        fresh = ready(make(), shapes)
        assert net.out_shape == fresh.out_shape
        assert net.in_shape == fresh.in_shape
        for p, w in zip(fresh.parameters, weights, strict=True):
            p[:] = w
        rng = np.random.default_rng(T)
        x = [data(be64, rng, s) for s in shapes] if isinstance(shape, list) else data(be64, rng, shapes)
        error, _ = all_errors(be64, net, rng)
        found = []
        for each in (net, fresh):
            outputs = [y.get() for y in listed(each.fprop(x))]
            deltas = [d.get() for d in listed(each.bprop(error))]
            found.append([*outputs, *deltas, *(g.get() for g in each.gradients)])
        for got, want in zip(*found, strict=True):
            close(got, want, 0)
        kept.append(net.outputs)
    if which == "stack":
        assert kept[0].root is kept[1].root is kept[2].root is kept[3].root


@pytest.mark.parametrize("shape", [3, (1, 3)])
def test_the_number_of_token_ids_may_change(be64, rng, shape):
    be64.bsz = 2
    net = ready(Sequential([LookupTable(7, 4, INIT), Linear(2, INIT)]), shape, deltas=False)
    W, V = (p.get() for p in net.parameters)
    for T in (3, 5, 1):
        net.set_seq_len(T)
        assert net.out_shape == (2, T)
        words = rng.integers(7, size=(T, 2))
        x = be64.array(words if isinstance(shape, int) else words.reshape(1, -1))
        close(net.fprop(x), V @ W[words.ravel()].T)
        error = data(be64, rng, (2, T))
        net.bprop(error)
        want = np.zeros_like(W)
        for word, e in zip(words.ravel(), (V.T @ error.get()).T, strict=True):
            want[word] += e
        close(net.gradients[0], want)


def test_set_seq_len_requires_inputs_with_time_steps(be):
    be.bsz = 2
    net = ready(Sequential([Linear(2, INIT, name="first")]), 3)
    with pytest.raises(ValueError, match=r"first: expected inputs with time steps, \(F, T\), .* got 3"):
        net.set_seq_len(4)
