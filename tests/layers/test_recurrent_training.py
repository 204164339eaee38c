"""Recurrent layers as expressions of training steps: they carry their state across minibatches as fprop does, with its
outputs, and the gradients of bprop (neonlite/layers/recurrent.py)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import thinned

import neonlite as nl
from neonlite import Autodiff, Backend
from neonlite.backend.objects import AttributeSnapshot
from neonlite.initializers import Gaussian
from neonlite.layers import GRU, LSTM, Affine, BiBNRNN, BiLSTM, BiRNN, Recurrent, Seq2Seq, Sequential
from neonlite.transforms import Rectlin

F, T, N = 3, 6, 4
INIT = Gaussian(scale=0.4)
NETWORKS: dict[str, Any] = {
    "Recurrent": lambda **options: [Recurrent(3, INIT, **options)],
    "LSTM": lambda **options: [LSTM(3, INIT, **options)],
    "GRU": lambda **options: [GRU(3, INIT, **options)],
    "BiRNN": lambda **options: [BiRNN(3, INIT, **options)],
    "BiLSTM": lambda **options: [BiLSTM(3, INIT, **options)],
    "BiBNRNN": lambda **options: [BiBNRNN(3, INIT, **options)],
    "LSTM, leaky": lambda **options: [LSTM(3, INIT, activation=Rectlin(0.1), **options)],  # no op of the table
    "several": lambda **options: [
        LSTM(4, INIT, **options),
        BiLSTM(3, INIT, **options),
        GRU(5, INIT, **options),
        Recurrent(3, INIT, **options),
        Affine(2, INIT),
    ],
}
every_network = pytest.mark.parametrize("name", NETWORKS)


class Pair:
    """A network trained by a compiled step, and an equal one that runs fprop and bprop."""

    def __init__(self, be: Backend, name: str, compiled: bool = True, **options: Any) -> None:
        be.bsz = N
        self.be, self.rng = be, np.random.default_rng(5)
        self.net = Sequential(NETWORKS[name](**options)).configure((F, T))
        self.net.allocate()
        self.other = copy.deepcopy(self.net)
        self.other.allocate_deltas()
        self.step: Any = nl.jit(self.build) if compiled else self.build

    def build(self, x: Any, e: Any) -> Any:
        y = self.net(x, training=True)
        return y, Autodiff(self.be.sum(y * e), self.be).get_grad_op_tree(self.net.parameters)

    def minibatches(self, count: int, steps: int = T) -> None:
        """Train on some minibatches, and compare outputs, gradients and states."""
        be, n = self.be, self.be.bsz
        for _ in range(count):
            x = be.array(self.rng.normal(size=(F, steps * n)))
            outputs = self.other.fprop(x)
            e = be.array(self.rng.normal(size=outputs.shape))
            self.other.bprop(e)
            y, gradients = self.step(x, e)
            close(y.get(), outputs.get())
            for g, expected in zip(gradients, self.other.gradients, strict=True):
                close(g.get(), expected.get())
            self.compare_states()

    def compare_states(self) -> None:
        for layer, other in zip(self.net.leaves(), self.other.leaves(), strict=True):
            state, expected = layer.get_state(), other.get_state()
            assert state.keys() == expected.keys()
            for key, array in state.items():
                close(array, expected[key])
            for t, u in zip(getattr(layer, "final_states", []), getattr(other, "final_states", []), strict=True):
                close(t.get(), u.get())
            for t, u in zip(layer.running_tensors, other.running_tensors, strict=True):
                close(t.get(), u.get())


def close(x: Any, y: Any) -> None:
    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("name", "reset_cells", "compiled"), thinned(2, NETWORKS, [False, True], [True, False]))
def test_minibatches_in_sequence_have_the_values_of_fprop_and_bprop(be64, name, reset_cells, compiled):
    pair = Pair(be64, name, compiled, reset_cells=reset_cells)
    pair.minibatches(3)
    state = pair.net.leaves()[0].get_state()
    assert any(array.any() for array in state.values()) != reset_cells


CHANGES: dict[str, Any] = {
    "reset": lambda net, state: [layer.reset() for layer in net.leaves() if hasattr(layer, "reset")],
    "no state": lambda net, state: [layer.set_state({}) for layer in net.leaves()],
    "a saved state": lambda net, state: [layer.set_state(x) for layer, x in zip(net.leaves(), state, strict=True)],
    "the same batch size": lambda net, state: net.set_batch_size(N),
    "another batch size": lambda net, state: net.set_batch_size(2),
    "another length": lambda net, state: net.set_seq_len(2),
}


@pytest.mark.parametrize(("name", "change"), thinned(2, NETWORKS, CHANGES))
def test_the_state_is_reset_and_restored_as_that_of_fprop(be64, name, change):
    pair = Pair(be64, name)
    pair.minibatches(1)
    state = [layer.get_state() for layer in pair.net.leaves()]
    pair.minibatches(2)
    for net in (pair.net, pair.other):
        CHANGES[change](net, state)
    if change == "another length":
        pair.step.clear()  # the program is for the number of steps
    pair.minibatches(2, pair.net.in_shape[1])
    if change in ("reset", "no state", "a saved state"):
        assert len(pair.step.programs) == 1


@every_network
def test_after_a_partial_minibatch_the_state_is_zero(be64, name):
    pair = Pair(be64, name)
    pair.minibatches(2)
    for _ in range(2):
        for size in (1, N):
            for net in (pair.net, pair.other):
                for layer in net.leaves():
                    layer.set_state({})
                net.set_batch_size(size)
            pair.minibatches(2)
    assert len(pair.step.programs) == 2


@every_network
def test_a_step_changes_tensors_only(be64, name):
    pair = Pair(be64, name)
    x, e = be64.ones((F, T * N)), be64.ones((pair.net.out_shape[0], T * N))
    y = pair.step(x, e)[0].get()
    attributes = AttributeSnapshot([pair.net])
    assert (pair.step(x, e)[0].get() != y).any()
    assert attributes.is_unchanged()


@every_network
def test_inference_starts_from_zeros_and_writes_no_state(be64, name):
    pair = Pair(be64, name)
    x, infer = be64.array(pair.rng.normal(size=(F, T * N))), nl.jit(pair.net)
    for _ in range(2):
        pair.minibatches(2)
        y = infer(x).get()
        pair.compare_states()
        fresh = copy.deepcopy(pair.net)
        for layer in fresh.leaves():
            layer.set_state({})
        close(y, fresh.fprop(x, inference=True).get())


def test_any_batch_size_has_its_state(be64):
    pair = Pair(be64, "LSTM")
    x = pair.rng.normal(size=(F, T * 2))
    layer, e = pair.net.leaves()[0], be64.ones((3, T * 2))
    one, two = (pair.step(be64.array(x), e)[0].get() for _ in range(2))
    assert be64.bsz == N
    assert layer.get_state() == {}
    layer.reset()  # of all batch sizes
    close(pair.step(be64.array(x), e)[0].get(), one)
    other = pair.other
    other.set_batch_size(2)
    close(one, other.fprop(be64.array(x)).get())
    close(two, other.fprop(be64.array(x)).get())


def test_a_saved_state_of_another_batch_size_is_dropped_with_a_warning(be64):
    pair = Pair(be64, "GRU")
    (layer,) = pair.net.leaves()
    layer.set_state({"h": np.ones((3, 7))})
    assert layer.get_state()["h"].shape == (3, 7)
    with pytest.warns(UserWarning, match="saved recurrent state is of a batch size of 7, be.bsz is 4: .* from zeros"):
        pair.minibatches(1)
    pair.minibatches(1)


def test_an_initial_state_is_read_and_the_final_one_written(be64):
    for kind in (LSTM, GRU, Recurrent):
        be64.bsz = N
        layer = kind(3, INIT).configure((F, T))
        layer.allocate()
        other = copy.deepcopy(layer)
        rng = np.random.default_rng(1)
        x = be64.array(rng.normal(size=(F, T * N)))
        states = [be64.array(rng.normal(size=(3, N))) for _ in layer.state_names]
        layer.init_state = states
        step = nl.jit(lambda x, layer=layer: layer(x, training=True))
        for _ in range(2):
            close(step(x).get(), other.fprop(x, init_state=states).get())
        for t, expected in zip(layer.final_states, other.final_states, strict=True):
            close(t.get(), expected.get())


def test_networks_that_pass_states_start_every_minibatch_from_zeros(be64):
    be = be64
    be.bsz = N
    for kinds in ((LSTM, LSTM), (GRU, Recurrent)):
        net = Seq2Seq([[kind(3, INIT)] for kind in kinds])
        net.configure([(F, T), (F, 2)])
        net.allocate()
        net.allocate_deltas()
        step = nl.jit(lambda x, net=net: net(x, training=True))
        for seed in range(3):
            rng = np.random.default_rng(seed)
            x = [be.array(rng.normal(size=(F, t * N))) for t in (T, 2)]
            y = step(x).get()
            states = [[t.get() for t in layer.final_states] for layer in net.leaves()]
            close(y, net.fprop(x).get())
            for layer, arrays in zip(net.leaves(), states, strict=True):
                assert layer.get_state() == {}
                for t, array in zip(layer.final_states, arrays, strict=True):
                    close(t.get(), array)
