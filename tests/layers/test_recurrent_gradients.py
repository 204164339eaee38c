"""Recurrent layers on every runtime: numerical gradients, PyTorch, buffers (neonlite/layers/recurrent.py)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.recurrent_textbook import (
    KINDS,
    NIN,
    NOUT,
    UNIDIRECTIONAL,
    Array,
    G,
    allocate,
    by_columns,
    by_steps,
    close,
    compare,
    every_kind,
    gated,
    one_way,
    plain,
    sequence,
    textbook,
)

from neonlite import gen_backend
from neonlite.initializers import Constant, Uniform
from neonlite.layers import (
    GRU,
    LSTM,
    Affine,
    BiLSTM,
    BiRNN,
    BiSum,
    DeepBiLSTM,
    DeepBiRNN,
    GeneralizedCost,
    Recurrent,
    RecurrentLast,
    RecurrentMean,
    RecurrentSum,
    Reshape,
    Sequential,
    check_layer,
)
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import GELU, Identity, Logistic, MeanSquared, Rectlin, Softmax, Tanh

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


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
    outputs = ["outputs"] * KINDS[kind]().is_expression  # compared with the formula
    assert [row.name.split(".")[-1] for row in report.rows] == [*outputs, "dW", "deltas"]
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
        lambda: LSTM(2, G, activation=GELU(), gate_activation=GELU(), reset_cells=True),
        lambda: Recurrent(2, G, activation=Rectlin(-0.5), reset_cells=True),
    ],
)
def test_gradients_of_other_activations_match_numerical_gradients(cpu, layer):
    report = check_layer(layer(), (2, 3), batch_size=2)
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
        lambda: [Reshape((2, 3)), plain(Recurrent, reset_cells=True), RecurrentLast(), Affine(2, G)],
    ],
)
def test_gradients_of_whole_networks_match_numerical_gradients(cpu, layers):
    report = check_layer(Sequential(layers()), (2, 3), batch_size=2)
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


# --- stateful layers ------------------------------------------------------------------------------------------------
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
