"""Bidirectional layers and their lists."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.recurrent_textbook import (
    BIDIRECTIONAL,
    KINDS,
    NIN,
    NOUT,
    G,
    Gate,
    allocate,
    by_columns,
    by_steps,
    close,
    compare,
    gated,
    one_way,
    plain,
    rnn,
    sequence,
    textbook,
)

from neonlite.layers import LSTM, BiBNRNN, BiLSTM, BiRNN, BiSum, DeepBiLSTM, DeepBiRNN, LookupTable, Sequential
from neonlite.transforms import Logistic, Tanh


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("kind", BIDIRECTIONAL)
def test_each_direction_may_read_its_half_of_the_inputs(cpu64, kind, T):
    compare(cpu64, kind, T, 3, 1e-10, split=True)


@pytest.mark.parametrize(("kind", "g"), [("BiRNN", 1), ("BiLSTM", 4), ("BiBNRNN", 1)])
@pytest.mark.parametrize("split", [False, True])
def test_the_rows_of_both_directions_alternate(cpu, kind, g, split):
    layer = allocate(cpu, KINDS[kind](split_inputs=split), 2, 2)
    F = NIN // 2 if split else NIN
    assert layer.W.shape == (2 * (F + NOUT + 1), g * NOUT)
    for whole, names in ((layer.W, ("W_input", "W_recur", "b")), (layer.dW, ("dW_input", "dW_recur", "db"))):
        whole[:] = np.arange(whole.size).reshape(whole.shape)
        parts = [getattr(layer, f"{name}{end}") for name in names for end in ("_f", "_b")]
        assert [part.shape for part in parts] == [(g * NOUT, m) for m in (F, F, NOUT, NOUT, 1, 1)]
        np.testing.assert_array_equal(np.concatenate([p.get().ravel() for p in parts]), np.arange(whole.size))


@one_way
def test_only_the_forward_direction_keeps_its_state(cpu64, kind):
    name = {"Recurrent": "BiRNN", "LSTM": "BiLSTM"}.get(kind)
    if name is None:
        return
    layer = allocate(cpu64, KINDS[name](), 3, 2)
    one = allocate(cpu64, KINDS[kind](), 3, 2)
    one.W_input[:], one.W_recur[:], one.b[:] = layer.W_input_b, layer.W_recur_b, layer.b_b
    x = sequence(cpu64, 3, 2)
    backwards = cpu64.array(by_columns(by_steps(x, 3)[::-1]))
    before = None
    for _ in range(2):
        y = layer.fprop(cpu64.array(x)).get()
        one.reset()
        close(by_columns(by_steps(one.fprop(backwards).get(), 3)[::-1]), y[NOUT:], 1e-12)
        assert before is None or abs(before - y[:NOUT]).max() > 1e-3
        before = y[:NOUT]


def test_final_errors_of_a_bidirectional_layer_are_those_of_the_forward_direction(cpu64):
    layer = allocate(cpu64, gated(BiLSTM), 2, 2)
    x, e = cpu64.array(sequence(cpu64, 2, 2)), cpu64.zeros((2 * NOUT, 4))
    layer.fprop(x)
    layer.bprop(e, final_errors=[cpu64.ones((NOUT, 2))])
    assert layer.dW_input_f.get().all()
    assert not layer.dW_input_b.get().any()


@pytest.mark.parametrize("split", [False, True])
def test_a_norm_keeps_running_means(be64, split):
    layer = allocate(be64, plain(BiBNRNN, split_inputs=split, reset_cells=True), 3, 2)
    x = sequence(be64, 3, 2)
    halves = (x[:2], x[2:]) if split else (x, x)
    weights = (layer.W_input_f.get(), layer.W_input_b.get())
    u = np.concatenate([W @ half for W, half in zip(weights, halves, strict=True)])
    mean, var = u.mean(axis=1, keepdims=True), u.var(axis=1, keepdims=True)
    want_mean = want_var = 0
    for _ in range(3):
        layer.fprop(be64.array(x))
        want_mean, want_var = 0.9 * want_mean + 0.1 * mean, 0.9 * want_var + 0.1 * var
        close(layer.gmean, want_mean)
        close(layer.gvar, want_var)
    y = layer.fprop(be64.array(x), inference=True).get()
    close(layer.gmean, want_mean)
    for k, end in enumerate("fb"):
        rows = slice(k * NOUT, (k + 1) * NOUT)
        normal = (u[rows] - want_mean[rows]) / np.sqrt(want_var[rows] + 1e-3)
        gate = Gate(weights[k], getattr(layer, f"W_recur_{end}").get(), getattr(layer, f"b_{end}").get())
        order = slice(None, None, -1 if k else 1)
        steps = by_steps(normal, 3)[order]
        actual = rnn([gate], [steps], [np.zeros((NOUT, 2))], steps, [np.zeros((NOUT, 2))])
        close(y[rows], by_columns(actual[0][order]))
    assert layer.get_weights().keys() == {f"{layer.name}.{x}" for x in ("W", "gmean", "gvar")}


def test_deep_layers_read_both_directions_of_the_previous_layer(cpu):
    deep = DeepBiRNN(3, G, activation=Tanh(), depth=3)
    assert [x.classnm for x in deep] == ["BiRNN"] * 3
    assert [x.split_inputs for x in deep] == [False, True, True]
    assert [x.split_inputs for x in DeepBiRNN(3, G, activation=Tanh(), depth=2, bi_sum=True)[::2]] == [False, False]
    assert {x.classnm for x in DeepBiRNN(3, G, activation=Tanh(), depth=2, batch_norm=True)} == {"BiBNRNN"}
    lstms = DeepBiLSTM(3, G, None, Tanh(), Logistic(), depth=2)
    assert [(x.classnm, x.split_inputs) for x in lstms] == [("BiLSTM", False), ("BiLSTM", True)]
    assert len({id(x) for x in deep} | {x.name for x in deep}) == 6


def test_token_ids_are_embedded_and_read(cpu64):
    cpu64.bsz = 2
    net = Sequential([LookupTable(5, NIN, G), gated(LSTM, reset_cells=True)])
    net.configure((1, 3))
    net.allocate()
    net.allocate_deltas()
    ids = np.array([[0, 4, 1, 1, 4, 2]])
    y = net.fprop(cpu64.array(ids, dtype="int32")).get()
    table, lstm_ = net.layers
    e = np.random.default_rng(0).normal(size=(NOUT, 6))
    expected, dW, deltas, *_ = textbook("LSTM", lstm_.W.get(), table.W.get()[ids[0]].T, e, 3)
    close(y, expected)
    net.bprop(cpu64.array(e))
    close(lstm_.dW, dW)
    rows = np.zeros((5, NIN))
    np.add.at(rows, ids[0], deltas.T)
    close(table.dW, rows)


@pytest.mark.parametrize("shape", [5, (3, 2)])
def test_split_inputs_need_an_even_number_of_features(cpu, shape):
    with pytest.raises(ValueError, match=r"s: BiSum expected inputs \(2 F, T\), got the shape"):
        BiSum(name="s").configure(shape)
    with pytest.raises(ValueError, match=r"b: split_inputs expected an even number of input features, .* got 5"):
        BiRNN(2, G, activation=Tanh(), split_inputs=True, name="b").configure((5, 2))
