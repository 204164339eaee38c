"""Recurrent layers against textbook loops, torch and numerical gradients; recurrent state across minibatches."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.recurrent_textbook import (
    BIDIRECTIONAL,
    KINDS,
    LOOPS,
    NIN,
    NOUT,
    Array,
    G,
    Gate,
    allocate,
    by_columns,
    by_steps,
    close,
    compare,
    gated,
    plain,
    rnn,
    textbook,
)

from neonlite import Backend, NervanaObject, gen_backend
from neonlite.callbacks import CallbackBase
from neonlite.data import ArrayIterator, Text
from neonlite.initializers import Array as Given
from neonlite.initializers import Constant, Gaussian, Uniform
from neonlite.layers import (
    GRU,
    LSTM,
    Affine,
    BiBNRNN,
    BiLSTM,
    BiRNN,
    BiSum,
    Convolution,
    DeepBiLSTM,
    DeepBiRNN,
    GeneralizedCost,
    Layer,
    LookupTable,
    Recurrent,
    RecurrentLast,
    RecurrentMean,
    RecurrentSum,
    Reshape,
    Sequential,
    check_layer,
    get_steps,
)
from neonlite.models import CheckpointError, Model
from neonlite.models.checkpoint import write_checkpoint
from neonlite.models.training_state import TrainingState
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import (
    GELU,
    CrossEntropyMulti,
    Identity,
    Logistic,
    MeanSquared,
    Rectlin,
    Sign,
    Softmax,
    SumSquared,
    Tanh,
)

UNIDIRECTIONAL = ["Recurrent", "LSTM", "GRU"]
every_kind = pytest.mark.parametrize("kind", KINDS)
one_way = pytest.mark.parametrize("kind", UNIDIRECTIONAL)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


# --- the textbook: one step after another, gate by gate; x, h and all errors are (T, features, N) -------------------


# --- each layer against the textbook --------------------------------------------------------------------------------


@pytest.fixture
def cpu64() -> Backend:
    return gen_backend("cpu", rng_seed=1, datatype=np.float64)


@pytest.mark.parametrize("N", [1, 4])
@pytest.mark.parametrize("T", [1, 2, 7, 64])
@every_kind
def test_outputs_and_all_gradients_match_the_textbook_loops(cpu64, kind, T, N):
    compare(cpu64, kind, T, N, 1e-10)


@pytest.mark.parametrize("N", [1, 4])
@pytest.mark.parametrize("T", [1, 2, 7, 64])
@one_way
def test_layers_with_initial_states_and_final_errors_match_the_textbook_loops(cpu64, kind, T, N):
    compare(cpu64, kind, T, N, 1e-10, start=True)


@every_kind
def test_images_are_sequences_of_their_columns(be64, kind):
    be64.bsz, actual = 2, []
    rng = np.random.default_rng(0)
    x, e = be64.array(rng.normal(size=(3 * 4 * 5, 2))), None
    for between in ([], [Reshape((-1, 4))]):
        net = Sequential([Convolution((2, 2, 2), init=Given(np.sin(np.arange(24.0).reshape(12, 2)))), *between])
        net.layers.append(KINDS[kind]())
        net.configure((3, 4, 5))
        assert net.out_shape == (net.layers[-1].num_directions * NOUT, 4)
        net.allocate()
        net.allocate_deltas()
        net.layers[-1].W[:] = np.cos(np.arange(net.layers[-1].W.size)).reshape(net.layers[-1].W.shape)
        e = e or be64.array(rng.normal(size=(net.out_shape[0], 4 * 2)))
        actual.append([])
        for _ in range(2):
            net.layers[-1].reset()
            y = net.fprop(x).get()
            net.bprop(e)
            actual[-1] += [y, *(g.get() for g in net.gradients)]
    for one, other in zip(*actual, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_first_layer_reads_images_column_by_column(cpu64):
    X = np.random.default_rng(0).normal(size=(4, 1, 3, 5))
    cpu64.bsz = 4
    data = ArrayIterator(X, np.arange(4), nclass=4)
    model = Model([plain(Recurrent), RecurrentLast(), Affine(4, G, activation=Softmax())])
    model.fit(data, CrossEntropyMulti(), Adam(), num_epochs=1)
    read, outputs = model.layers.layers[0], np.zeros((NOUT, 4))
    W, V, b = (t.get() for t in (read.W_input, read.W_recur, read.b))
    for column in range(5):
        outputs = np.tanh(W @ X[:, 0, :, column].T + V @ outputs + b)
    model.get_outputs(data)
    close(model.layers.layers[1].outputs, outputs)


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("kind", BIDIRECTIONAL)
def test_each_direction_may_read_its_half_of_the_inputs(cpu64, kind, T):
    compare(cpu64, kind, T, 3, 1e-10, split=True)


@every_kind
def test_every_runtime_gives_the_same_results(be64, kind):
    compare(be64, kind, 3, 2, 1e-10, start=kind in UNIDIRECTIONAL)


@every_kind
def test_every_runtime_gives_the_same_results_in_float32(be, kind):
    compare(be, kind, 3, 2, 2e-5)


SHORT = [1, 3]


@pytest.mark.parametrize("T", SHORT)
@every_kind
def test_gradients_match_numerical_gradients(cpu, kind, T):
    report = check_layer(KINDS[kind](reset_cells=True), (4, T))
    assert report.ok, report
    assert [row.name.split(".")[-1] for row in report.rows] == ["dW", "deltas"]
    assert report.worst < 1e-8


@every_kind
def test_gradients_match_numerical_gradients_of_stateful_layers(cpu, kind):
    report = check_layer(KINDS[kind](), (4, 2))
    assert report.ok, report


@pytest.mark.parametrize(
    "layer",
    [
        lambda: Recurrent(3, G, activation=Rectlin(), reset_cells=True),
        lambda: Recurrent(3, G, activation=Identity(), reset_cells=True),
        lambda: LSTM(2, G, Uniform(-1, 1), Rectlin(0.1), Logistic(), reset_cells=True),
        lambda: GRU(2, G, activation=Logistic(), gate_activation=Tanh(), reset_cells=True),
        lambda: BiRNN(2, G, activation=Tanh(), reset_cells=True, split_inputs=True),
        lambda: Recurrent(2, G, activation=Softmax(), reset_cells=True),
    ],
)
def test_gradients_of_other_activations_match_numerical_gradients(cpu, layer):
    report = check_layer(layer(), (4, 3))
    assert report.ok, report


def several(**options: Any) -> list[Any]:
    return [gated(LSTM, **options), gated(GRU, **options), plain(Recurrent, **options)]


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [*several(reset_cells=True), Affine(2, G, bias=Constant(0), activation=Tanh())],
        lambda: [*DeepBiRNN(3, G, activation=Tanh(), reset_cells=True, depth=2), RecurrentSum()],
        lambda: [*DeepBiRNN(2, G, activation=Tanh(), reset_cells=True, depth=2, batch_norm=True), RecurrentMean()],
        lambda: [*DeepBiRNN(2, G, activation=Tanh(), reset_cells=True, depth=2, bi_sum=True), RecurrentLast()],
        lambda: [*DeepBiLSTM(2, G, None, Tanh(), Logistic(), reset_cells=True, depth=2), BiSum(), RecurrentLast()],
        lambda: [Reshape((2, 6)), plain(Recurrent, reset_cells=True), RecurrentLast(), Affine(2, G)],
    ],
)
def test_gradients_of_whole_networks_match_numerical_gradients(cpu, layers):
    report = check_layer(Sequential(layers()), (4, 3))
    assert report.ok, report


# --- against torch --------------------------------------------------------------------------------------------------


def to_torch(kind: str, layer: Any) -> Any:
    """Return torch's layer with the same weights."""
    import torch

    make = {"Recurrent": torch.nn.RNN, "BiRNN": torch.nn.RNN, "LSTM": torch.nn.LSTM, "BiLSTM": torch.nn.LSTM}[kind]
    reference = make(NIN, NOUT, bidirectional=layer.num_directions == 2).double()
    for end, suffix in [("", "")] if layer.num_directions == 1 else [("_f", ""), ("_b", "_reverse")]:
        for attribute, name in {"W_input": "weight_ih", "W_recur": "weight_hh", "b": "bias_ih"}.items():
            value = reordered(kind, getattr(layer, f"{attribute}{end}").get())
            getattr(reference, f"{name}_l0{suffix}").data = torch.tensor(value[:, 0] if attribute == "b" else value)
        getattr(reference, f"bias_hh_l0{suffix}").data[:] = 0
    return reference


def reordered(kind: str, a: Array) -> Array:
    """Return rows in torch's order of gates, i f g o, or rows of torch in that of neonlite."""
    if not kind.endswith("LSTM"):
        return a
    i, f, o, g = np.split(a, 4)
    return np.concatenate([i, f, g, o])


@needs_torch
@pytest.mark.parametrize("N", [1, 4])
@pytest.mark.parametrize("T", [1, 2, 7, 64])
@pytest.mark.parametrize("kind", ["Recurrent", "LSTM", "BiRNN", "BiLSTM"])
def test_torch_computes_the_same(cpu64, kind, T, N):
    import torch

    layer = allocate(cpu64, KINDS[kind](), T, N)
    reference, rng = to_torch(kind, layer), np.random.default_rng(3)
    x, e = rng.normal(size=(NIN, T * N)), rng.normal(size=(layer.out_shape[0], T * N))
    start = [rng.normal(size=(NOUT, N)) for _ in layer.state_names] if layer.num_directions == 1 else None
    tx = torch.tensor(by_steps(x, T).transpose(0, 2, 1), requires_grad=True)
    initial = None if start is None else [torch.tensor(s.T[None].copy(), requires_grad=True) for s in start]
    ty, torch_last = (
        reference(tx, initial if initial is None or len(initial) == 1 else tuple(initial))
        if initial is None or len(initial) == 2
        else reference(tx, initial[0])
    )
    ty.backward(torch.tensor(by_steps(e, T).transpose(0, 2, 1)))

    y = layer.fprop(cpu64.array(x), init_state=start and [cpu64.array(s) for s in start])
    close(y, by_columns(ty.detach().numpy().transpose(0, 2, 1)))
    close(layer.bprop(cpu64.array(e)), by_columns(tx.grad.numpy().transpose(0, 2, 1)))
    for end, suffix in [("", "")] if layer.num_directions == 1 else [("_f", ""), ("_b", "_reverse")]:
        for attribute, name in {"dW_input": "weight_ih", "dW_recur": "weight_hh", "db": "bias_ih"}.items():
            grad = reordered(
                kind,
                getattr(reference, f"{name}_l0{suffix}").grad.numpy().reshape(4 * NOUT if "LSTM" in kind else NOUT, -1),
            )
            close(getattr(layer, f"{attribute}{end}"), grad)
    if start is not None and initial is not None:
        last = torch_last if isinstance(torch_last, tuple) else (torch_last,)
        for got, expected in zip(layer.final_states, last, strict=True):
            close(got, expected.detach().numpy()[0].T)
        for got, expected in zip(layer.initial_errors, initial, strict=True):
            close(got, expected.grad.numpy()[0].T)


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "g"), [("Recurrent", 1), ("LSTM", 4), ("GRU", 3)])
def test_all_weights_are_rows_of_one_tensor(be, kind, g):
    layer = allocate(be, KINDS[kind](), 2, 2)
    assert layer.W.shape == layer.dW.shape == layer.weight_shape == (NIN + NOUT + 1, g * NOUT)
    assert layer.parameters == [layer.W]
    for whole, parts in ((layer.W, "W_input W_recur b"), (layer.dW, "dW_input dW_recur db")):
        W_input, W_recur, b = (getattr(layer, name) for name in parts.split())
        assert W_input.shape == (g * NOUT, NIN)
        assert W_recur.shape == (g * NOUT, NOUT)
        assert b.shape == (g * NOUT, 1)
        whole[:] = np.arange(whole.size).reshape(whole.shape)  # read in another shape, not transposed
        flat = np.concatenate([part.get().ravel() for part in (W_input, W_recur, b)])
        np.testing.assert_array_equal(flat, np.arange(whole.size))
        W_recur[:] = -1
        np.testing.assert_array_equal(whole.get()[NIN : NIN + NOUT], -1)
        assert whole.get()[:NIN].min() == 0


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


class CallCounter:
    """An initializer that fills with the index of its call."""

    def __init__(self, first: int = 1) -> None:
        self.calls, self.shapes = first - 1, []

    def fill(self, param: Any) -> None:
        self.calls += 1
        self.shapes.append(param.shape)
        param[:] = self.calls


def test_each_gate_is_filled_by_a_separate_call(cpu):
    cpu.bsz = 2
    init = CallCounter()
    layer = LSTM(NOUT, init, activation=Tanh(), gate_activation=Logistic()).configure((NIN, 2))
    layer.allocate()
    assert init.shapes == [(NOUT, NIN)] * 4 + [(NOUT, NOUT)] * 4
    assert layer.W_input.get()[::NOUT, 0].tolist() == [1, 2, 3, 4]
    assert layer.W_recur.get()[::NOUT, 0].tolist() == [5, 6, 7, 8]
    assert not layer.b.get().any()


def test_the_recurrent_weights_may_have_another_initializer(cpu):
    cpu.bsz = 2
    init, inner = CallCounter(), CallCounter(11)
    layer = BiRNN(NOUT, init, inner, Tanh()).configure((NIN, 2))
    layer.allocate()
    assert (init.shapes, inner.shapes) == ([(NOUT, NIN)] * 2, [(NOUT, NOUT)] * 2)
    assert [w.get()[0, 0] for w in (layer.W_input_f, layer.W_input_b, layer.W_recur_f, layer.W_recur_b)] == [
        1,
        2,
        11,
        12,
    ]
    assert not layer.b_f.get().any()


def test_weights_may_be_given_as_arrays(cpu):
    cpu.bsz = 1
    layer = Recurrent(2, np.array([[1.0], [2.0]]), Given(np.eye(2)), Identity()).configure((1, 3))
    layer.allocate()
    y = layer.fprop(cpu.array([[1.0, 10.0, 100.0]]))
    np.testing.assert_array_equal(y.get(), [[1, 11, 111], [2, 22, 222]])


def test_weights_that_are_assigned_are_used(cpu64):
    one, other = (allocate(cpu64, gated(GRU), 3, 2) for _ in range(2))
    x = cpu64.array(np.random.default_rng(0).normal(size=(NIN, 6)))
    one.fprop(x)
    one.W = other.W.get()
    one.reset()
    np.testing.assert_array_equal(one.fprop(x).get(), other.fprop(x).get())


# --- stateful layers ------------------------------------------------------------------------------------------------


def sequence(be: Backend, T: int, N: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(NIN, T * N))


@one_way
def test_a_long_sequence_may_be_split_into_minibatches(be64, kind):
    T, N = 6, 2
    x = sequence(be64, T, N)
    long, short = allocate(be64, KINDS[kind](), T, N), allocate(be64, KINDS[kind](), T // 3, N)
    short.W = long.W.get()
    whole = long.fprop(be64.array(x)).get()
    parts = [short.fprop(be64.array(part)).get() for part in np.split(x, 3, axis=1)]
    close(np.concatenate(parts, axis=1), whole, 1e-12)
    again = short.fprop(be64.array(x[:, : T // 3 * N])).get()  # the state continues
    assert abs(again - parts[0]).max() > 1e-3


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


def test_gradients_do_not_flow_across_minibatches(cpu64):
    layer = allocate(cpu64, gated(LSTM), 3, 2)
    first, x, e = (cpu64.array(sequence(cpu64, 3, 2, seed)) for seed in range(3))
    e = e[:NOUT]
    layer.fprop(first)
    state = [t.get() for t in layer.final_states]
    layer.fprop(x)
    layer.bprop(e)
    y, dW, deltas, *_ = textbook("LSTM", layer.W.get(), x.get(), e.get(), 3, state)
    close(layer.outputs, y)
    close(layer.dW, dW)
    close(layer.deltas, deltas)


@pytest.mark.parametrize(
    "reset",
    [
        lambda layer: layer.reset(),
        lambda layer: layer.set_batch_size(2),
        lambda layer: layer.set_seq_len(3),
        lambda layer: layer.set_state({}),
    ],
)
@every_kind
def test_a_state_may_be_reset(cpu, kind, reset):
    layer = allocate(cpu, KINDS[kind](), 3, 2)
    x = cpu.array(sequence(cpu, 3, 2))
    first = layer.fprop(x).get()
    assert (layer.fprop(x).get() != first).any()
    reset(layer)
    np.testing.assert_array_equal(layer.fprop(x).get(), first)


@every_kind
def test_cells_that_are_reset_start_every_minibatch_from_zeros(cpu, kind):
    layer = allocate(cpu, KINDS[kind](reset_cells=True), 3, 2)
    x = cpu.array(sequence(cpu, 3, 2))
    first = layer.fprop(x).get()
    np.testing.assert_array_equal(layer.fprop(x).get(), first)
    assert layer.get_state() == {}


def test_another_input_tensor_does_not_reset_the_state(cpu):
    layer = allocate(cpu, plain(Recurrent), 2, 2)
    x, y = (cpu.array(sequence(cpu, 2, 2, seed)) for seed in range(2))
    layer.fprop(x)
    one = layer.fprop(y).get()
    layer.reset()
    layer.fprop(x)
    np.testing.assert_array_equal(layer.fprop(cpu.array(y)).get(), one)


@one_way
def test_a_recurrent_state_can_be_saved_and_restored(be, kind):
    layer = allocate(be, KINDS[kind](), 3, 2)
    x = be.array(sequence(be, 3, 2))
    assert layer.get_state() == {}
    layer.fprop(x)
    state = layer.get_state()
    assert {name: array.shape for name, array in state.items()} == dict.fromkeys(layer.state_names, (NOUT, 2))
    second = layer.fprop(x).get()
    again = allocate(be, KINDS[kind](), 3, 2)
    again.W = layer.W.get()
    again.set_state(state)
    assert again.get_state().keys() == state.keys()
    np.testing.assert_array_equal(again.fprop(x).get(), second)
    layer.set_state(state)
    np.testing.assert_array_equal(layer.fprop(x).get(), second)
    layer.set_state({**state, "h": np.zeros((NOUT, 5))})
    with pytest.warns(UserWarning, match=r"saved recurrent state is of a batch size of 5, be.bsz is 2: .* from zeros"):
        actual = layer.fprop(x).get()
    layer.reset()
    np.testing.assert_array_equal(layer.fprop(x).get(), actual)


@one_way
def test_an_initial_state_may_be_passed_once_and_the_next_minibatch_continues(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](), 2, 2)
    x, h = cpu64.array(sequence(cpu64, 2, 2)), cpu64.array(np.full((NOUT, 2), 0.5))
    y = layer.fprop(x, init_state=h).get()  # only h: the cells of an LSTM start from 0
    state = [h.get(), np.zeros((NOUT, 2))][: len(layer.state_names)]
    zeros = np.zeros((NOUT, 4))
    expected = textbook(kind, layer.W.get(), x.get(), zeros, 2, state)
    close(y, expected[0])
    close(layer.fprop(x), textbook(kind, layer.W.get(), x.get(), zeros, 2, expected[3])[0])
    np.testing.assert_array_equal(h.get(), 0.5)


@every_kind
def test_the_final_state_is_that_of_the_last_step(cpu, kind):
    layer = allocate(cpu, KINDS[kind](), 3, 2)
    y = layer.fprop(cpu.array(sequence(cpu, 3, 2))).get()
    np.testing.assert_array_equal(layer.final_state().get(), y[:NOUT, -2:])  # of the forward direction
    assert len(layer.final_states) == len(layer.state_names)


@one_way
def test_errors_of_an_initial_state_match_numerical_gradients(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](), 3, 2)
    rng = np.random.default_rng(5)
    x, e = cpu64.array(rng.normal(size=(NIN, 6))), cpu64.array(rng.normal(size=(NOUT, 6)))
    states = [rng.normal(size=(NOUT, 2)) for _ in layer.state_names]
    finals = [rng.normal(size=(NOUT, 2)) for _ in layer.state_names]

    def score() -> float:
        y = layer.fprop(x, init_state=[cpu64.array(s) for s in states]).get()
        ends = [t.get() for t in layer.final_states]
        return float((y * e.get()).sum() + sum((a * b).sum() for a, b in zip(finals, ends, strict=True)))

    score()
    layer.bprop(e, final_errors=[cpu64.array(f) for f in finals])
    for state, error in zip(states, layer.initial_errors, strict=True):
        for at in np.ndindex(state.shape):
            value = state[at]
            state[at] = value + 1e-6
            up = score()
            state[at] = value - 1e-6
            slope = (up - score()) / 2e-6
            state[at] = value
            assert error.get()[at] == pytest.approx(slope, abs=1e-8)


def test_final_errors_of_a_bidirectional_layer_are_those_of_the_forward_direction(cpu64):
    layer = allocate(cpu64, gated(BiLSTM), 2, 2)
    x, e = cpu64.array(sequence(cpu64, 2, 2)), cpu64.zeros((2 * NOUT, 4))
    layer.fprop(x)
    layer.bprop(e, final_errors=[cpu64.ones((NOUT, 2))])
    assert layer.dW_input_f.get().all()
    assert not layer.dW_input_b.get().any()


# --- training steps -------------------------------------------------------------------------------------------------


@every_kind
def test_gradients_may_be_accumulated(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](reset_cells=True), 3, 2, accumulate_updates=True)
    rng = np.random.default_rng(2)
    x, e = cpu64.array(rng.normal(size=(NIN, 6))), cpu64.array(rng.normal(size=(layer.out_shape[0], 6)))
    layer.fprop(x)
    layer.bprop(e)
    once = layer.dW.get()
    layer.set_acc_on(True)
    layer.bprop(e)
    close(layer.dW, 2 * once)
    layer.set_acc_on(False)
    layer.bprop(e)
    close(layer.dW, once)


@every_kind
def test_deltas_may_be_scaled_and_accumulated(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](), 3, 2)
    rng = np.random.default_rng(2)
    x, e = cpu64.array(rng.normal(size=(NIN, 6))), cpu64.array(rng.normal(size=(layer.out_shape[0], 6)))
    layer.fprop(x)
    plain_deltas = layer.bprop(e).get()
    layer.deltas[:] = 10
    if kind == "BiBNRNN":  # its backward pass reads the outputs
        layer.reset()
        layer.fprop(x)
    close(layer.bprop(e, alpha=2.0, beta=0.5), 2 * plain_deltas + 5)


@every_kind
def test_the_first_layer_has_no_deltas(cpu, kind):
    cpu.bsz = 2
    layer = KINDS[kind]().configure((NIN, 3))
    layer.allocate()
    layer.allocate_deltas()
    layer.fprop(cpu.array(sequence(cpu, 3, 2)))
    assert layer.bprop(cpu.ones((layer.out_shape[0], 6))) is None
    assert layer.dW.get().any()


@every_kind
def test_inference_computes_the_same_outputs_and_allows_no_bprop(cpu, kind):
    layer = allocate(cpu, KINDS[kind](reset_cells=True), 3, 2)
    x = cpu.array(sequence(cpu, 3, 2))
    y = layer.fprop(x).get()
    inferred = layer.fprop(x, inference=True).get()
    assert (inferred == y).all() == (kind != "BiBNRNN")
    with pytest.raises(
        RuntimeError, match="bprop: expected a training fprop before it, got none, or one with inference"
    ):
        layer.bprop(cpu.ones((layer.out_shape[0], 6)))


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


@every_kind
def test_shorter_sequences_use_the_same_memory(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](reset_cells=True), 6, 2)
    W, roots = layer.W.get(), {name: t.root for name, t in layer._buffers.items()}
    for T in (3, 6, 1):
        layer.set_seq_len(T)
        rng = np.random.default_rng(T)
        x, e = cpu64.array(rng.normal(size=(NIN, T * 2))), cpu64.array(rng.normal(size=(layer.out_shape[0], T * 2)))
        y, dW, deltas, *_ = textbook(kind, W, x.get(), e.get(), T)
        close(layer.fprop(x), y)
        close(layer.bprop(e), deltas)
        close(layer.dW, dW)
        assert {name: t.root for name, t in layer._buffers.items()} == roots
        assert layer.outputs.root is roots["outputs", None]
    layer.set_seq_len(9)
    assert layer.out_shape == (layer.out_shape[0], 9)
    assert layer.fprop(cpu64.zeros((NIN, 18))).shape[1] == 18


@every_kind
def test_another_batch_size_is_processed_correctly(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](), 3, 4)
    layer.fprop(cpu64.array(sequence(cpu64, 3, 4)))
    W = layer.W.get()
    for N in (1, 4, 7):
        layer.set_batch_size(N)
        rng = np.random.default_rng(N)
        x, e = cpu64.array(rng.normal(size=(NIN, 3 * N))), cpu64.array(rng.normal(size=(layer.out_shape[0], 3 * N)))
        y, dW, deltas, *_ = textbook(kind, W, x.get(), e.get(), 3)
        close(layer.fprop(x), y)
        close(layer.bprop(e), deltas)
        close(layer.dW, dW)


@every_kind
def test_other_input_tensors_are_recognized(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](reset_cells=True), 3, 2)
    rng = np.random.default_rng(0)
    pairs = [
        (cpu64.array(rng.normal(size=(NIN, 6))), cpu64.array(rng.normal(size=(layer.out_shape[0], 6)))) for _ in "ab"
    ]
    for x, e in [*pairs, *pairs, (pairs[0][0], pairs[1][1])]:
        y, dW, deltas, *_ = textbook(kind, layer.W.get(), x.get(), e.get(), 3)
        close(layer.fprop(x), y)
        close(layer.bprop(e), deltas)
        close(layer.dW, dW)


def test_a_network_learns_to_output_an_earlier_input(cpu):
    cpu.bsz, T, V = 8, 6, 4
    rng = np.random.default_rng(0)
    net = Sequential([LSTM(16, Gaussian(scale=0.2), activation=Tanh(), gate_activation=Logistic(), reset_cells=True)])
    net = Sequential([*net.layers, Affine(V, Gaussian(scale=0.2), bias=Constant(0), activation=Softmax())])
    cost, optimizer = GeneralizedCost(CrossEntropyMulti()), Adam(learning_rate=0.05)
    net.configure((V, T))
    net.allocate()
    net.allocate_deltas()
    cost.initialize(net)
    for _ in range(100):
        tokens = rng.integers(0, V, (T, 8))
        x = cpu.array(np.eye(V)[tokens].transpose(2, 0, 1).reshape(V, -1))
        late = np.vstack([np.zeros((1, 8), int), tokens[:-1]])
        t = cpu.array(np.eye(V)[late].transpose(2, 0, 1).reshape(V, -1))
        y = net.fprop(x)
        loss = float(cost.get_cost(y, t).item())
        net.bprop(cost.get_errors(y, t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)
    assert loss < 0.1, loss
    assert (y.get().argmax(axis=0) == late.ravel()).mean() > 0.98


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [LSTM(32, G, activation=Tanh(), gate_activation=Logistic()), RecurrentLast()],
        lambda: [GRU(32, G, activation=Tanh(), gate_activation=Logistic()), RecurrentSum()],
        lambda: [Recurrent(32, G, activation=Tanh()), RecurrentMean()],
        lambda: [*DeepBiRNN(32, G, activation=Tanh(), depth=2, batch_norm=True, bi_sum=True), RecurrentLast()],
        lambda: [BiLSTM(32, G, activation=Tanh(), gate_activation=Logistic()), RecurrentMean()],
    ],
    ids=["LSTM", "GRU", "Recurrent", "BiBNRNN", "BiLSTM"],
)
@pytest.mark.parametrize("name", ["cpu", "mkl"])
def test_a_step_allocates_nothing(name, layers):
    if find_spec("mkl") is None and name == "mkl":
        pytest.skip("mkl is not installed")
    be = gen_backend(name, rng_seed=1, batch_size=16)
    net = Sequential([*layers(), Affine(10, G, bias=Constant(0))])
    net.configure((24, 5))
    net.allocate()
    net.allocate_deltas()
    cost, optimizer = GeneralizedCost(MeanSquared()), GradientDescentMomentum(0.01, 0.9)
    cost.initialize(net)
    rng = np.random.default_rng(0)
    data = [(be.array(rng.normal(size=(24, 80))), be.array(rng.normal(size=(10, 16)))) for _ in range(2)]

    def step(x: Any, t: Any) -> None:
        net.bprop(cost.get_errors(net.fprop(x), t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)

    for _ in range(2):
        for pair in data:
            step(*pair)
    assert [buffers(lambda pair=pair: step(*pair)) for pair in data] == [[], []]


# --- checkpoints and summary ----------------------------------------------------------------------------------------


@every_kind
def test_a_layer_is_created_again_with_its_weights(cpu, kind):
    options = {"split_inputs": True} if kind in BIDIRECTIONAL else {}
    layer = allocate(cpu, KINDS[kind](reset_cells=True, init_inner=Uniform(-0.3, 0.3), name="r", **options), 3, 2)
    x = cpu.array(sequence(cpu, 3, 2))
    y = layer.fprop(x).get()
    again = Layer.recursive_gen(layer.get_description())
    assert again.get_description() == layer.get_description()
    again.configure((NIN, 3))
    again.allocate()
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again.fprop(x).get(), y)


@every_kind
def test_a_copy_is_independent(cpu64, kind):
    layer = allocate(cpu64, KINDS[kind](), 3, 2)
    x, e = cpu64.array(sequence(cpu64, 3, 2)), cpu64.ones((layer.out_shape[0], 6))
    layer.fprop(x)
    layer.bprop(e)
    other = copy.deepcopy(layer)
    one, two = (z.fprop(x).get() for z in (layer, other))
    np.testing.assert_array_equal(one, two)  # also of the recurrent state
    layer.bprop(e)
    before = layer.dW.get()
    other.W[:] = 0
    other.reset()
    other.fprop(x)
    other.bprop(e)
    np.testing.assert_array_equal(layer.dW.get(), before)
    layer.reset()
    assert layer.fprop(x).get().any()
    end = "_f" if kind in BIDIRECTIONAL else ""
    assert not getattr(other, f"W_recur{end}").get().any()


@every_kind
def test_a_summary_counts_parameters_and_operations(cpu, kind):
    layers = [KINDS[kind](name="r"), RecurrentLast(name="last"), Affine(2, G, name="fc")]
    cpu.bsz = 2
    net = Sequential(layers)
    summary = net.summary((NIN, 3), GeneralizedCost(SumSquared()), GradientDescentMomentum(0.1, 0.9))
    assert net.in_shape is None
    parameters = {row.name: row.parameters for row in summary.rows}
    num_directions, (_, g, _) = 1 + (kind in BIDIRECTIONAL), LOOPS[kind]
    assert parameters["r"] == num_directions * g * NOUT * (NIN + NOUT + 1)
    assert {row.name: row.out_shape for row in summary.rows}["r"] == (num_directions * NOUT, 3)
    products = (
        2 * num_directions * 2 * g * NOUT * 6 * (NIN + NOUT)
    )  # multiply and add, for the outputs and for the weights
    assert {row.name: row.flops for row in summary.rows}["r"] > products


# --- reductions of a sequence ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (RecurrentSum, lambda x: x.sum(axis=0)),
        (RecurrentMean, lambda x: x.mean(axis=0)),
        (RecurrentLast, lambda x: x[-1]),
        (BiSum, lambda x: by_columns(x[:, :2] + x[:, 2:])),
    ],
)
@pytest.mark.parametrize("T", [1, 3])
def test_one_vector_of_a_sequence(be64, kind, text, T):
    layer = allocate(be64, kind(), T, 2)
    x = sequence(be64, T, 2)
    close(layer.fprop(be64.array(x)), text(by_steps(x, T)))
    assert layer.out_shape == ((2, T) if kind is BiSum else NIN)


@pytest.mark.parametrize("kind", [RecurrentSum, RecurrentMean, RecurrentLast, BiSum])
@pytest.mark.parametrize("T", [1, 3])
def test_the_error_of_a_reduction_goes_to_all_steps(cpu, kind, T):
    report = check_layer(kind(), (4, T))
    assert report.ok, report
    layer = allocate(cpu, kind(), T, 2)
    x, e = cpu.array(sequence(cpu, T, 2)), cpu.ones((2 if kind is BiSum else NIN, 2 * T if kind is BiSum else 2))
    layer.fprop(x)
    once = layer.bprop(e).get()
    layer.deltas[:] = 10
    close(layer.bprop(e, alpha=2.0, beta=0.5), 2 * once + 5, 1e-6)


def test_the_last_step_is_copied(cpu):
    layer = allocate(cpu, RecurrentLast(), 2, 2)
    x = cpu.array(sequence(cpu, 2, 2))
    y = layer.fprop(x)
    y[:] = 9
    assert (x.get() != 9).all()
    np.testing.assert_allclose(layer.fprop(x, beta=2.0).get(), x.get()[:, 2:] + 18, rtol=1e-6)


def test_steps_are_views(cpu):
    x = cpu.array(sequence(cpu, 3, 2))
    steps = get_steps(x, (NIN, 3))
    np.testing.assert_array_equal([s.get() for s in steps], by_steps(x.get(), 3))
    steps[1][:] = 0
    assert not x.get()[:, 2:4].any()
    with pytest.raises(ValueError, match=r"get_steps: expected a shape \(F, T\), got 5"):
        get_steps(x, 5)


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


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Recurrent(0, G, activation=Tanh(), name="r"),
            ValueError,
            "r: expected an integer >= 1 for output_size, got 0",
        ),
        (
            lambda: LSTM(2.5, G, activation=Tanh(), name="r"),
            TypeError,
            "expected an integer >= 1 for output_size, got 2.5",
        ),
        (lambda: GRU(True, G, activation=Tanh()), TypeError, "got True"),
        (
            lambda: Recurrent(2, G, activation=3, name="r"),
            TypeError,
            r"r: expected a transform, such as Tanh\(\), for activation, got 3",
        ),
        (
            lambda: LSTM(2, G, activation=Tanh(), gate_activation=3, name="r"),
            TypeError,
            "r: expected a transform, such as Tanh\\(\\), for gate_activation, got 3",
        ),
        (lambda: Recurrent(2, G, activation="tanhh"), ValueError, "for activation, got 'tanhh'"),
        (lambda: Recurrent(2, G, activation="gelu"), ValueError, "derivative follows from its output, .* got GELU"),
        (
            lambda: Recurrent(2, G, activation=GELU(), name="r"),
            ValueError,
            "r: expected as activation .* derivative follows from its output, .* got GELU",
        ),
        (
            lambda: GRU(2, G, None, Tanh(), Sign(), name="r"),
            ValueError,
            "expected as gate_activation .* derivative follows .* got Sign",
        ),
        (
            lambda: BiRNN(2, G, activation=Rectlin(-0.5)),
            ValueError,
            "expected as activation a transform whose derivative follows from its output",
        ),
        (
            lambda: DeepBiRNN(2, G, activation=Tanh(), depth=0),
            ValueError,
            "expected an integer >= 1 for depth, got 0",
        ),
        (
            lambda: DeepBiLSTM(2, G, None, Tanh(), Logistic(), depth=1.5),
            TypeError,
            "expected an integer >= 1 for depth, got 1.5",
        ),
    ],
)
def test_invalid_arguments_are_rejected_by_the_constructor(cpu, make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("shape", [5, (3, 2, 4, 4)])
@every_kind
def test_inputs_have_time_steps(cpu, kind, shape):
    cpu.bsz = 2
    message = r"r: \w+ expected inputs \(F, T\), .* got the shape .*Give the data set a shape \(F, T\)"
    with pytest.raises(ValueError, match=message):
        KINDS[kind](name="r").configure(shape)


@pytest.mark.parametrize("kind", [RecurrentSum, RecurrentMean, RecurrentLast])
def test_sequences_have_time_steps(cpu, kind):
    with pytest.raises(ValueError, match=r"s: expected inputs with time steps, \(F, T\), .* got 5"):
        kind(name="s").configure(5)


@pytest.mark.parametrize("kind", KINDS)
def test_strided_views_are_read_as_well(cpu64, kind):
    cpu64.bsz = 2
    layer = KINDS[kind]().configure((NIN, 3))
    layer.allocate()
    x, e = (cpu64.array(np.random.default_rng(n).normal(size=(n, 12))) for n in (NIN, layer.num_directions * NOUT))
    actual = []
    for inputs, error in ((x[:, :6], e[:, :6]), (cpu64.array(x[:, :6]), cpu64.array(e[:, :6]))):
        layer.reset()
        y = layer.fprop(inputs).get()
        layer.bprop(error)
        actual.append((y, layer.dW.get()))
    np.testing.assert_array_equal(actual[0][0], actual[1][0])
    np.testing.assert_allclose(actual[0][1], actual[1][1], rtol=1e-12, atol=1e-14)


def test_a_sequence_of_another_length_names_set_seq_len(cpu):
    cpu.bsz = 2
    layer = KINDS["GRU"](name="reader").configure((NIN, 3))
    layer.allocate()
    with pytest.raises(ValueError, match=r"reader: .* For 5 time steps call set_seq_len\(5\)"):
        layer.fprop(cpu.zeros((NIN, 10)))
    for steps in (0, 5.5, True):
        with pytest.raises(
            (TypeError, ValueError), match=f"reader: expected an integer >= 1 for the number of time steps, got {steps}"
        ):
            layer.set_seq_len(steps)
    with pytest.raises(ValueError, match="reader: expected a configured layer, got one without shapes"):
        KINDS["GRU"](name="reader").set_seq_len(3)


@pytest.mark.parametrize("shape", [5, (3, 2)])
def test_split_inputs_need_an_even_number_of_features(cpu, shape):
    with pytest.raises(ValueError, match=r"s: BiSum expected inputs \(2 F, T\), got the shape"):
        BiSum(name="s").configure(shape)
    with pytest.raises(ValueError, match=r"b: split_inputs expected an even number of input features, .* got 5"):
        BiRNN(2, G, activation=Tanh(), split_inputs=True, name="b").configure((5, 2))


def test_inputs_and_errors_are_of_all_steps(cpu):
    layer = allocate(cpu, gated(LSTM, name="r"), 3, 2)
    with pytest.raises(ValueError, match=r"r: expected inputs of shape \(4, 6\) \(layer shape \(4, 3\), batch"):
        layer.fprop(cpu.zeros((4, 8)))
    with pytest.raises(RuntimeError, match="r: bprop: expected a training fprop before it"):
        layer.bprop(cpu.zeros((NOUT, 6)))
    layer.fprop(cpu.zeros((4, 6)))
    with pytest.raises(ValueError, match=r"r: expected an error of shape \(3, 6\)"):
        layer.bprop(cpu.zeros((NOUT, 2)))
    with pytest.raises(ValueError, match=r"expected beta=0, got beta=0.5"):
        layer.fprop(cpu.zeros((4, 6)), beta=0.5)


@pytest.mark.parametrize(
    "state", [lambda be: be.zeros((3, 4)), lambda be: [be.zeros((3, 2))] * 3, lambda be: np.zeros(3)]
)
def test_initial_states_are_checked(cpu, state):
    layer = allocate(cpu, gated(LSTM, name="r"), 3, 2)
    with pytest.raises(ValueError, match=r"r: expected as init_state h and c, each \(3, 2\), got "):
        layer.fprop(cpu.zeros((4, 6)), init_state=state(cpu))
    both = allocate(cpu, plain(BiRNN, name="b"), 3, 2)
    with pytest.raises(ValueError, match="b: expected as init_state None, as for every bidirectional layer, got"):
        both.fprop(cpu.zeros((4, 6)), init_state=cpu.zeros((3, 2)))


def test_fprop_before_allocate_is_an_error():
    be = gen_backend("cpu", batch_size=2)
    NervanaObject.be = be
    layer = gated(LSTM, name="r")
    with pytest.raises(RuntimeError, match="r: expected a configured layer, got one without shapes"):
        layer.fprop(be.zeros((4, 6)))
    layer.configure((4, 3))
    with pytest.raises(RuntimeError, match="r: expected allocated buffers, got none"):
        layer.fprop(be.zeros((4, 6)))


# --- in a model ------------------------------------------------------------------------------------------------------


TEXT = "the quick brown fox jumps over the lazy dog. " * 20


def reader(reset_cells: bool = False) -> tuple[Any, Any]:
    """Return a model that reads characters, and its data."""
    gen_backend("cpu", rng_seed=2, batch_size=4)
    text = Text(8, text=TEXT)
    layers = [
        LSTM(
            12, Gaussian(scale=0.3), activation=Tanh(), gate_activation=Logistic(), reset_cells=reset_cells, name="lstm"
        ),
        Affine(len(text.vocab), Gaussian(scale=0.3), bias=Constant(0), activation=Softmax(), name="out"),
    ]
    return Model(layers), text


def train(model: Any, text: Any, epochs: int, callbacks: Any = None) -> dict[str, Any]:
    optimizer = model.optimizer or Adam(learning_rate=0.02)
    model.fit(text, CrossEntropyMulti(), optimizer, epochs, callbacks)
    return model.get_weights()


class Stop(CallbackBase):
    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if (epoch, minibatch) == (1, 5):
            raise KeyboardInterrupt


def test_a_training_resumes_from_a_checkpoint_with_its_recurrent_state(tmp_path):
    whole = train(*reader(), 3)
    model, text = reader()
    with pytest.raises(KeyboardInterrupt):
        train(model, text, 3, Stop())
    model.save_params(tmp_path / "half")
    _, text = reader()
    parts = train(Model(tmp_path / "half"), text, 3)
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_evaluation_starts_from_zeros_and_keeps_the_state_of_the_training():
    class Evaluate(CallbackBase):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            costs.append(model.eval_cost(other))

    costs: list[float] = []
    whole = train(*reader(), 2)
    model, text = reader()
    other = Text(8, text=TEXT, vocab=text.vocab)
    evaluated = train(model, text, 2, Evaluate())
    assert all(np.array_equal(whole[name], evaluated[name]) for name in whole)
    last = model.eval_cost(other)
    assert costs[-1] == last == model.eval_cost(other)


@pytest.mark.parametrize(
    "wrong",
    [
        {"h": (12, 4)},
        {"h": (12,), "c": (12, 4)},
        {"h": (12, 4), "c": (11, 4)},
        {"h": (12, 4), "c": (12, 4), "d": (1, 1)},
    ],
)
def test_a_file_with_another_state_is_rejected(wrong, tmp_path):
    model, text = reader()
    train(model, text, 1)
    description, arrays = TrainingState.from_model(model)
    arrays = {name: x for name, x in arrays.items() if not name.startswith("recurrent")}
    arrays |= {f"recurrent/lstm/{name}": np.zeros(shape, np.float32) for name, shape in wrong.items()}
    write_checkpoint(tmp_path / "other", description, arrays)
    with pytest.raises(CheckpointError, match=r"other: recurrent: lstm: expected the states h, c, of 12 rows each"):
        Model(tmp_path / "other")


@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_checkpoint_state_of_another_batch_size_is_dropped_with_a_warning(tmp_path, buffers, known):
    model, text = reader()
    train(model, text, 1)
    assert model.layers.leaves()[0].get_state()
    model.save_params(tmp_path / "four")
    other, _ = reader()
    be = other.be
    if buffers:
        be.bsz = 2
        other.initialize(model.layers.in_shape)
    be.bsz = 2 if known else 0
    outputs = (
        r"lstm: the saved recurrent state is of a batch size of 4, be.bsz is 2: the next minibatch starts from zeros"
    )
    rows = be.array(np.eye(len(text.vocab))[np.arange(8 * 2) % 5].T)

    def load_and_read() -> Any:
        other.load_params(tmp_path / "four")
        assert len(warned) == known  # at once, if the batch size is known
        be.bsz = 2
        return other.fprop(rows, inference=True).get()

    with pytest.warns(UserWarning, match=outputs) as warned:
        actual = load_and_read()
    assert len(warned) == 1
    assert warned[0].filename == __file__
    other.layers.leaves()[0].reset()
    np.testing.assert_array_equal(other.fprop(rows, inference=True).get(), actual)


def test_token_ids_are_not_accepted_as_vectors(cpu):
    cpu.bsz = 2
    layer = KINDS["LSTM"](name="reader").configure((1, 3))
    layer.allocate()
    with pytest.raises(ValueError, match=r"reader: LSTM expected vectors, .* int32. Put a LookupTable before it"):
        layer.fprop(cpu.zeros((1, 6), dtype="int32"))


def test_a_batch_size_without_set_batch_size_is_an_error(cpu):
    cpu.bsz = 3
    layer = KINDS["GRU"](name="reader").configure((NIN, 2))
    with pytest.raises(RuntimeError, match="reader: expected allocated buffers, got none"):
        layer.final_state()
    layer.allocate()
    cpu.bsz = 2
    with pytest.raises(
        ValueError, match=r"reader: expected the batch size 3 of its buffers, got be.bsz = 2. Call set_batch_size\(2\)"
    ):
        layer.fprop(cpu.zeros((NIN, 4)))


def test_steps_have_as_many_columns_each(cpu):
    with pytest.raises(ValueError, match=r"get_steps: expected 5 steps of equally many columns, got .*\(3, 8\)"):
        get_steps(cpu.zeros((3, 8)), (3, 5))
