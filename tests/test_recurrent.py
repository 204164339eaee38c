"""Layers that read a sequence: held to the textbook's loops, to torch and to slopes; and how a state is carried on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from allocations import buffers

from neonlite import Backend, NervanaObject, gen_backend
from neonlite.callbacks import Listener
from neonlite.data import Text
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
from neonlite.layers.recurrent import Recurrence
from neonlite.models import CheckpointError, Model
from neonlite.models.checkpoint import write_checkpoint
from neonlite.models.state import State
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

Array = np.ndarray[Any, Any]
G = Gaussian(scale=0.4)
NIN, NOUT = 4, 3


def gated(kind: Any, **options: Any) -> Any:
    return kind(NOUT, G, activation=Tanh(), gate_activation=Logistic(), **options)


def plain(kind: Any, **options: Any) -> Any:
    return kind(NOUT, G, activation=Tanh(), **options)


# name -> (kind of layer, how to make it)
KINDS: dict[str, Callable[..., Any]] = {
    "Recurrent": lambda **options: plain(Recurrent, **options),
    "LSTM": lambda **options: gated(LSTM, **options),
    "GRU": lambda **options: gated(GRU, **options),
    "BiRNN": lambda **options: plain(BiRNN, **options),
    "BiLSTM": lambda **options: gated(BiLSTM, **options),
    "BiBNRNN": lambda **options: plain(BiBNRNN, **options),
}
ONE_WAY = ["Recurrent", "LSTM", "GRU"]
BOTH_WAYS = ["BiRNN", "BiLSTM", "BiBNRNN"]
every_kind = pytest.mark.parametrize("kind", KINDS)
one_way = pytest.mark.parametrize("kind", ONE_WAY)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def made(be: Backend, layer: Any, T: int, N: int, nin: int = NIN, **options: Any) -> Any:
    """Return a layer that is ready to run, with deltas, and biases other than 0."""
    be.bsz = N
    layer.configure((nin, T))
    layer.prev_layer = True
    layer.allocate(**options)
    layer.allocate_deltas()
    for x in [layer] if isinstance(layer, Recurrence) else []:
        for end in [""] if x.ways == 1 else ["_f", "_b"]:
            b = getattr(x, f"b{end}")
            b[:] = np.random.default_rng(7).normal(size=b.shape)
    return layer


def close(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    got = got.get() if hasattr(got, "get") else got
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


# --- the textbook: one step after another, gate by gate; x, h and all errors are (T, features, N) -------------------


def sig(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


class Gate:
    """``U x + V h + b``, and its gradients."""

    def __init__(self, U: Array, V: Array, b: Array) -> None:
        self.U, self.V, self.b = U, V, b
        self.dU, self.dV, self.db = np.zeros_like(U), np.zeros_like(V), np.zeros_like(b)

    def of(self, u: Array, h: Array) -> Array:
        """u: U x, which a layer may have changed."""
        return u + self.V @ h + self.b

    def learn(self, da: Array, h: Array) -> Array:
        """Take an error, and return that of h."""
        self.dV += da @ h.T
        self.db += da.sum(axis=1, keepdims=True)
        return self.V.T @ da


def rnn(gates: list[Gate], u: list[Array], start: list[Array], dy: Array, dlast: list[Array]) -> Any:
    """Return outputs, last states, errors of each u, and errors of the states that it starts with."""
    (gate,), h, hs = gates, start[0], []
    for t in range(len(dy)):
        hs.append(np.tanh(gate.of(u[0][t], h)))
        h = hs[-1]
    du, dh = np.zeros_like(u[0]), dlast[0]
    for t in reversed(range(len(dy))):
        du[t] = (dh + dy[t]) * (1 - hs[t] ** 2)
        dh = gate.learn(du[t], hs[t - 1] if t else start[0])
    return np.array(hs), [h], [du], [dh]


def lstm(gates: list[Gate], u: list[Array], start: list[Array], dy: Array, dlast: list[Array]) -> Any:
    (h, c), kept, hs = start, [], []
    for t in range(len(dy)):
        i, f, o = (sig(gate.of(x[t], h)) for gate, x in zip(gates[:3], u[:3], strict=True))
        g = np.tanh(gates[3].of(u[3][t], h))
        new = f * c + i * g
        kept.append((i, f, o, g, h, c, new))
        h, c = o * np.tanh(new), new
        hs.append(h)
    du = [np.zeros_like(x) for x in u]
    dh, dc = dlast
    for t in reversed(range(len(dy))):
        i, f, o, g, before, c_before, now = kept[t]
        dh = dh + dy[t]
        dc = dc + dh * o * (1 - np.tanh(now) ** 2)
        du[0][t] = dc * g * i * (1 - i)
        du[1][t] = dc * c_before * f * (1 - f)
        du[2][t] = dh * np.tanh(now) * o * (1 - o)
        du[3][t] = dc * i * (1 - g**2)
        dh = sum(gate.learn(x[t], before) for gate, x in zip(gates, du, strict=True))
        dc = dc * f
    return np.array(hs), [h, c], du, [dh, dc]


def gru(gates: list[Gate], u: list[Array], start: list[Array], dy: Array, dlast: list[Array]) -> Any:
    (h,), kept, hs = start, [], []
    for t in range(len(dy)):
        r, z = (sig(gate.of(x[t], h)) for gate, x in zip(gates[:2], u[:2], strict=True))
        can = np.tanh(gates[2].of(u[2][t], r * h))
        kept.append((r, z, can, h))
        h = (1 - z) * h + z * can
        hs.append(h)
    du, dh = [np.zeros_like(x) for x in u], dlast[0]
    for t in reversed(range(len(dy))):
        r, z, can, before = kept[t]
        dh = dh + dy[t]
        du[1][t] = dh * (can - before) * z * (1 - z)
        du[2][t] = dh * z * (1 - can**2)
        drh = gates[2].learn(du[2][t], r * before)
        du[0][t] = drh * before * r * (1 - r)
        dh = dh * (1 - z) + drh * r + gates[0].learn(du[0][t], before) + gates[1].learn(du[1][t], before)
    return np.array(hs), [h], du, [dh]


# kind -> (the loop, how many gates, how many states)
BOOK: dict[str, tuple[Any, int, int]] = {"Recurrent": (rnn, 1, 1), "LSTM": (lstm, 4, 2), "GRU": (gru, 3, 1)}
BOOK |= {"BiRNN": BOOK["Recurrent"], "BiLSTM": BOOK["LSTM"], "BiBNRNN": BOOK["Recurrent"]}


def by_steps(x: Array, T: int) -> Array:
    """Return (F, T N), column t N + n, as (T, F, N)."""
    N = x.shape[1] // T
    return np.array([x[:, t * N : (t + 1) * N] for t in range(T)])


def by_columns(x: Array) -> Array:
    return np.concatenate(list(x), axis=1)


def normed(a: Array) -> tuple[Array, Array]:
    """Return rows of mean 0 and variance 1, over steps and minibatch, and what they were divided by."""
    mean, var = a.mean(axis=(0, 2), keepdims=True), a.var(axis=(0, 2), keepdims=True)
    return (a - mean) / np.sqrt(var + 1e-3), np.sqrt(var + 1e-3)


def textbook(kind: str, W: Array, x: Array, dy: Array, T: int, start: Any = None, last: Any = None, split: Any = False):
    """Return (outputs, dW, deltas, last states, errors of the first states) of a layer with the weights W.

    W: rows of W_input there (and back), of W_recur, of b, each read as (gates output_size, nin).
    """
    loop, g, states = BOOK[kind]
    ways = 1 + (kind in BOTH_WAYS)
    F, N = x.shape[0] // (2 if split else 1), x.shape[1] // T
    sizes = [F] * ways + [NOUT] * ways + [1] * ways
    rows = np.split(W, np.cumsum(sizes)[:-1])
    parts = [part.reshape(g * NOUT, size) for part, size in zip(rows, sizes, strict=True)]
    xs, errors = by_steps(x, T), by_steps(dy, T)
    zero = [np.zeros((NOUT, N)) for _ in range(states)]
    outputs, gradients, dx = [], [None] * len(parts), np.zeros_like(xs)
    for k in range(ways):
        order = slice(None, None, -1 if k else 1)
        mine = slice(k * F, (k + 1) * F) if split else slice(None)
        gates = [Gate(*(p[i * NOUT : (i + 1) * NOUT] for p in parts[k::ways])) for i in range(g)]
        u = [np.array([gate.U @ step for step in xs[order][:, mine]]) for gate in gates]
        if kind == "BiBNRNN":
            u0, deviation = normed(u[0])
            u = [u0]
        found = loop(gates, u, start or zero, errors[order][:, k * NOUT : (k + 1) * NOUT], last or zero)
        y, du = found[0], found[2]
        if k == 0:
            ends = found[1], found[3]
        if kind == "BiBNRNN":
            m = du[0].shape[0] * N
            mean, along = (a.sum(axis=(0, 2), keepdims=True) / m for a in (du[0], du[0] * u0))
            du = [(du[0] - mean - u0 * along) / deviation]
        for gate, d in zip(gates, du, strict=True):
            gate.dU = sum(a @ b.T for a, b in zip(d, xs[order][:, mine], strict=True))
            dx[order][:, mine] += np.array([gate.U.T @ a for a in d])
        outputs.append(y[order])
        for j, what in enumerate(("dU", "dV", "db")):
            gradients[j * ways + k] = np.concatenate([getattr(gate, what) for gate in gates])
    dW = np.concatenate([d.reshape(size, g * NOUT) for d, size in zip(gradients, sizes, strict=True)])
    return (by_columns(np.concatenate(outputs, axis=1)), dW, by_columns(dx), *ends)


def compare(be: Backend, kind: str, T: int, N: int, tolerance: float, start: bool = False, split: bool = False) -> None:
    """Hold a layer to the textbook, with and without states to begin with and errors of the last ones."""
    layer = made(be, KINDS[kind](**({"split_inputs": True} if split else {})), T, N)
    rng, (_, _, states) = np.random.default_rng(1), BOOK[kind]

    def random(*shape: int) -> tuple[Any, Array]:
        t = be.array(rng.normal(size=shape))
        return t, t.get().astype(float)

    (x, x_), (e, e_) = random(NIN, T * N), random(layer.out_shape[0], T * N)
    begin = [random(NOUT, N) for _ in range(states)] if start else None
    end = [random(NOUT, N) for _ in range(states)] if start else None
    h, d = ([t for t, _ in found] if found else None for found in (begin, end))
    given = [[a for _, a in found] if found else None for found in (begin, end)]
    y, dW, deltas, last, first = textbook(kind, layer.W.get().astype(float), x_, e_, T, *given, split=split)
    close(layer.fprop(x, init_state=h), y, tolerance)
    for t, want in zip(layer.final_states, last, strict=True):
        close(t, want, tolerance)
    close(layer.bprop(e, final_errors=d), deltas, tolerance)
    close(layer.dW, dW, tolerance)
    for t, want in zip(layer.initial_errors, first, strict=True):
        close(t, want, tolerance)


# --- each layer against the textbook --------------------------------------------------------------------------------


@pytest.fixture
def cpu64() -> Backend:
    return gen_backend("cpu", rng_seed=1, datatype=np.float64)


@pytest.mark.parametrize("N", [1, 4])
@pytest.mark.parametrize("T", [1, 2, 7, 64])
@every_kind
def test_outputs_and_all_gradients_are_the_textbooks(cpu64, kind, T, N):
    compare(cpu64, kind, T, N, 1e-10)


@pytest.mark.parametrize("N", [1, 4])
@pytest.mark.parametrize("T", [1, 2, 7, 64])
@one_way
def test_so_they_are_with_a_state_to_begin_with_and_errors_of_the_last_one(cpu64, kind, T, N):
    compare(cpu64, kind, T, N, 1e-10, start=True)


@pytest.mark.parametrize("T", [1, 5])
@pytest.mark.parametrize("kind", BOTH_WAYS)
def test_each_way_may_read_its_half_of_the_inputs(cpu64, kind, T):
    compare(cpu64, kind, T, 3, 1e-10, split=True)


@every_kind
def test_every_runtime_says_the_same(be64, kind):
    compare(be64, kind, 3, 2, 1e-10, start=kind in ONE_WAY)


@every_kind
def test_so_it_does_with_numbers_of_32_bits(be, kind):
    compare(be, kind, 3, 2, 2e-5)


SHORT = [1, 3]


@pytest.mark.parametrize("T", SHORT)
@every_kind
def test_slopes_are_the_gradients(cpu, kind, T):
    report = check_layer(KINDS[kind](reset_cells=True), (4, T))
    assert report.ok, report
    assert [row.of.split(".")[-1] for row in report.rows] == ["dW", "deltas"]
    assert report.worst < 1e-8


@every_kind
def test_slopes_are_the_gradients_also_where_a_state_would_go_on(cpu, kind):
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
def test_other_activations_have_right_gradients_too(cpu, layer):
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
def test_slopes_of_whole_networks_are_their_gradients(cpu, layers):
    report = check_layer(Sequential(layers()), (4, 3))
    assert report.ok, report


# --- against torch --------------------------------------------------------------------------------------------------


def to_torch(kind: str, layer: Any) -> Any:
    """Return torch's layer with the same weights."""
    import torch

    make = {"Recurrent": torch.nn.RNN, "BiRNN": torch.nn.RNN, "LSTM": torch.nn.LSTM, "BiLSTM": torch.nn.LSTM}[kind]
    peer = make(NIN, NOUT, bidirectional=layer.ways == 2).double()
    for end, theirs in [("", "")] if layer.ways == 1 else [("_f", ""), ("_b", "_reverse")]:
        for own, name in {"W_input": "weight_ih", "W_recur": "weight_hh", "b": "bias_ih"}.items():
            value = reordered(kind, getattr(layer, f"{own}{end}").get())
            getattr(peer, f"{name}_l0{theirs}").data = torch.tensor(value[:, 0] if own == "b" else value)
        getattr(peer, f"bias_hh_l0{theirs}").data[:] = 0
    return peer


def reordered(kind: str, a: Array) -> Array:
    """Return the rows in torch's order of gates, i f g o; and those of torch in ours."""
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

    layer = made(cpu64, KINDS[kind](), T, N)
    peer, rng = to_torch(kind, layer), np.random.default_rng(3)
    x, e = rng.normal(size=(NIN, T * N)), rng.normal(size=(layer.out_shape[0], T * N))
    start = [rng.normal(size=(NOUT, N)) for _ in layer.passed] if layer.ways == 1 else None
    tx = torch.tensor(by_steps(x, T).transpose(0, 2, 1), requires_grad=True)
    begin = None if start is None else [torch.tensor(s.T[None].copy(), requires_grad=True) for s in start]
    ty, tlast = (
        peer(tx, begin if begin is None or len(begin) == 1 else tuple(begin))
        if begin is None or len(begin) == 2
        else peer(tx, begin[0])
    )
    ty.backward(torch.tensor(by_steps(e, T).transpose(0, 2, 1)))

    y = layer.fprop(cpu64.array(x), init_state=start and [cpu64.array(s) for s in start])
    close(y, by_columns(ty.detach().numpy().transpose(0, 2, 1)))
    close(layer.bprop(cpu64.array(e)), by_columns(tx.grad.numpy().transpose(0, 2, 1)))
    for end, theirs in [("", "")] if layer.ways == 1 else [("_f", ""), ("_b", "_reverse")]:
        for own, name in {"dW_input": "weight_ih", "dW_recur": "weight_hh", "db": "bias_ih"}.items():
            grad = reordered(
                kind, getattr(peer, f"{name}_l0{theirs}").grad.numpy().reshape(4 * NOUT if "LSTM" in kind else NOUT, -1)
            )
            close(getattr(layer, f"{own}{end}"), grad)
    if start is not None and begin is not None:
        last = tlast if isinstance(tlast, tuple) else (tlast,)
        for got, want in zip(layer.final_states, last, strict=True):
            close(got, want.detach().numpy()[0].T)
        for got, want in zip(layer.initial_errors, begin, strict=True):
            close(got, want.grad.numpy()[0].T)


# --- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "g"), [("Recurrent", 1), ("LSTM", 4), ("GRU", 3)])
def test_all_weights_are_rows_of_one_tensor(be, kind, g):
    layer = made(be, KINDS[kind](), 2, 2)
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
def test_the_rows_of_both_ways_take_turns(cpu, kind, g, split):
    layer = made(cpu, KINDS[kind](split_inputs=split), 2, 2)
    F = NIN // 2 if split else NIN
    assert layer.W.shape == (2 * (F + NOUT + 1), g * NOUT)
    for whole, names in ((layer.W, ("W_input", "W_recur", "b")), (layer.dW, ("dW_input", "dW_recur", "db"))):
        whole[:] = np.arange(whole.size).reshape(whole.shape)
        parts = [getattr(layer, f"{name}{end}") for name in names for end in ("_f", "_b")]
        assert [part.shape for part in parts] == [(g * NOUT, m) for m in (F, F, NOUT, NOUT, 1, 1)]
        np.testing.assert_array_equal(np.concatenate([p.get().ravel() for p in parts]), np.arange(whole.size))


class Calls:
    """An initializer that fills with the number of its call."""

    def __init__(self, first: int = 1) -> None:
        self.calls, self.shapes = first - 1, []

    def fill(self, param: Any) -> None:
        self.calls += 1
        self.shapes.append(param.shape)
        param[:] = self.calls


def test_each_gate_is_filled_by_a_call_of_its_own(cpu):
    cpu.bsz = 2
    init = Calls()
    layer = LSTM(NOUT, init, activation=Tanh(), gate_activation=Logistic()).configure((NIN, 2))
    layer.allocate()
    assert init.shapes == [(NOUT, NIN)] * 4 + [(NOUT, NOUT)] * 4
    assert layer.W_input.get()[::NOUT, 0].tolist() == [1, 2, 3, 4]
    assert layer.W_recur.get()[::NOUT, 0].tolist() == [5, 6, 7, 8]
    assert not layer.b.get().any()


def test_what_is_between_states_may_have_an_initializer_of_its_own(cpu):
    cpu.bsz = 2
    init, inner = Calls(), Calls(11)
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
    one, other = (made(cpu64, gated(GRU), 3, 2) for _ in range(2))
    x = cpu64.array(np.random.default_rng(0).normal(size=(NIN, 6)))
    one.fprop(x)
    one.W = other.W.get()
    one.reset()
    np.testing.assert_array_equal(one.fprop(x).get(), other.fprop(x).get())


# --- a state that goes on -------------------------------------------------------------------------------------------


def sequence(be: Backend, T: int, N: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(NIN, T * N))


@one_way
def test_a_long_sequence_may_come_in_minibatches(be64, kind):
    T, N = 6, 2
    x = sequence(be64, T, N)
    long, short = made(be64, KINDS[kind](), T, N), made(be64, KINDS[kind](), T // 3, N)
    short.W = long.W.get()
    whole = long.fprop(be64.array(x)).get()
    parts = [short.fprop(be64.array(part)).get() for part in np.split(x, 3, axis=1)]
    close(np.concatenate(parts, axis=1), whole, 1e-12)
    again = short.fprop(be64.array(x[:, : T // 3 * N])).get()  # and on and on
    assert abs(again - parts[0]).max() > 1e-3


@one_way
def test_only_the_way_there_goes_on_with_a_state(cpu64, kind):
    name = {"Recurrent": "BiRNN", "LSTM": "BiLSTM"}.get(kind)
    if name is None:
        return
    layer = made(cpu64, KINDS[name](), 3, 2)
    one = made(cpu64, KINDS[kind](), 3, 2)
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


def test_gradients_end_where_a_minibatch_begins(cpu64):
    layer = made(cpu64, gated(LSTM), 3, 2)
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
    "begin_anew",
    [
        lambda layer: layer.reset(),
        lambda layer: layer.set_batch_size(2),
        lambda layer: layer.set_seq_len(3),
        lambda layer: layer.carry({}),
    ],
)
@every_kind
def test_a_state_may_begin_anew(cpu, kind, begin_anew):
    layer = made(cpu, KINDS[kind](), 3, 2)
    x = cpu.array(sequence(cpu, 3, 2))
    first = layer.fprop(x).get()
    assert (layer.fprop(x).get() != first).any()
    begin_anew(layer)
    np.testing.assert_array_equal(layer.fprop(x).get(), first)


@every_kind
def test_cells_that_are_reset_begin_with_zeros_each_time(cpu, kind):
    layer = made(cpu, KINDS[kind](reset_cells=True), 3, 2)
    x = cpu.array(sequence(cpu, 3, 2))
    first = layer.fprop(x).get()
    np.testing.assert_array_equal(layer.fprop(x).get(), first)
    assert layer.carried == {}


def test_another_tensor_is_no_reason_to_begin_anew(cpu):
    layer = made(cpu, plain(Recurrent), 2, 2)
    x, y = (cpu.array(sequence(cpu, 2, 2, seed)) for seed in range(2))
    layer.fprop(x)
    one = layer.fprop(y).get()
    layer.reset()
    layer.fprop(x)
    np.testing.assert_array_equal(layer.fprop(cpu.array(y)).get(), one)


@one_way
def test_what_is_carried_can_be_kept_and_taken_up(be, kind):
    layer = made(be, KINDS[kind](), 3, 2)
    x = be.array(sequence(be, 3, 2))
    assert layer.carried == {}
    layer.fprop(x)
    kept = layer.carried
    assert {name: array.shape for name, array in kept.items()} == dict.fromkeys(layer.passed, (NOUT, 2))
    second = layer.fprop(x).get()
    again = made(be, KINDS[kind](), 3, 2)
    again.W = layer.W.get()
    again.carry(kept)
    assert again.carried.keys() == kept.keys()
    np.testing.assert_array_equal(again.fprop(x).get(), second)
    layer.carry(kept)
    np.testing.assert_array_equal(layer.fprop(x).get(), second)
    layer.carry({**kept, "h": np.zeros((NOUT, 5))})
    with pytest.raises(ValueError, match=r"the h to go on with is \(3, 2\); got"):
        layer.fprop(x)


@one_way
def test_a_state_may_be_given_once_and_the_next_minibatch_goes_on(cpu64, kind):
    layer = made(cpu64, KINDS[kind](), 2, 2)
    x, h = cpu64.array(sequence(cpu64, 2, 2)), cpu64.array(np.full((NOUT, 2), 0.5))
    y = layer.fprop(x, init_state=h).get()  # h alone: an LSTM's cells begin with 0
    state = [h.get(), np.zeros((NOUT, 2))][: len(layer.passed)]
    nothing = np.zeros((NOUT, 4))
    want = textbook(kind, layer.W.get(), x.get(), nothing, 2, state)
    close(y, want[0])
    close(layer.fprop(x), textbook(kind, layer.W.get(), x.get(), nothing, 2, want[3])[0])
    np.testing.assert_array_equal(h.get(), 0.5)


@every_kind
def test_the_final_state_is_that_of_the_last_step(cpu, kind):
    layer = made(cpu, KINDS[kind](), 3, 2)
    y = layer.fprop(cpu.array(sequence(cpu, 3, 2))).get()
    np.testing.assert_array_equal(layer.final_state().get(), y[:NOUT, -2:])  # of the way there
    assert len(layer.final_states) == len(layer.passed)


@one_way
def test_errors_of_a_given_state_are_its_slopes(cpu64, kind):
    layer = made(cpu64, KINDS[kind](), 3, 2)
    rng = np.random.default_rng(5)
    x, e = cpu64.array(rng.normal(size=(NIN, 6))), cpu64.array(rng.normal(size=(NOUT, 6)))
    states = [rng.normal(size=(NOUT, 2)) for _ in layer.passed]
    finals = [rng.normal(size=(NOUT, 2)) for _ in layer.passed]

    def score() -> float:
        y = layer.fprop(x, init_state=[cpu64.array(s) for s in states]).get()
        ends = [t.get() for t in layer.final_states]
        return float((y * e.get()).sum() + sum((a * b).sum() for a, b in zip(finals, ends, strict=True)))

    score()
    layer.bprop(e, final_errors=[cpu64.array(f) for f in finals])
    for state, error in zip(states, layer.initial_errors, strict=True):
        for at in np.ndindex(state.shape):
            was = state[at]
            state[at] = was + 1e-6
            up = score()
            state[at] = was - 1e-6
            slope = (up - score()) / 2e-6
            state[at] = was
            assert error.get()[at] == pytest.approx(slope, abs=1e-8)


def test_errors_of_the_final_states_of_both_ways_are_those_of_the_way_there(cpu64):
    layer = made(cpu64, gated(BiLSTM), 2, 2)
    x, e = cpu64.array(sequence(cpu64, 2, 2)), cpu64.zeros((2 * NOUT, 4))
    layer.fprop(x)
    layer.bprop(e, final_errors=[cpu64.ones((NOUT, 2))])
    assert layer.dW_input_f.get().all()
    assert not layer.dW_input_b.get().any()


# --- steps of training ----------------------------------------------------------------------------------------------


@every_kind
def test_gradients_may_be_added_up(cpu64, kind):
    layer = made(cpu64, KINDS[kind](reset_cells=True), 3, 2, accumulate_updates=True)
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
def test_deltas_may_be_scaled_and_added_to_what_was_there(cpu64, kind):
    layer = made(cpu64, KINDS[kind](), 3, 2)
    rng = np.random.default_rng(2)
    x, e = cpu64.array(rng.normal(size=(NIN, 6))), cpu64.array(rng.normal(size=(layer.out_shape[0], 6)))
    layer.fprop(x)
    plain_deltas = layer.bprop(e).get()
    layer.deltas[:] = 10
    if kind == "BiBNRNN":  # whose way back reads what it wrote
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
def test_inference_computes_the_same_and_is_not_to_be_learned_from(cpu, kind):
    layer = made(cpu, KINDS[kind](reset_cells=True), 3, 2)
    x = cpu.array(sequence(cpu, 3, 2))
    y = layer.fprop(x).get()
    inferred = layer.fprop(x, inference=True).get()
    assert (inferred == y).all() == (kind != "BiBNRNN")
    with pytest.raises(RuntimeError, match="bprop comes after fprop, which was not called, or for inference"):
        layer.bprop(cpu.ones((layer.out_shape[0], 6)))


@pytest.mark.parametrize("split", [False, True])
def test_a_norm_keeps_running_means(be64, split):
    layer = made(be64, plain(BiBNRNN, split_inputs=split, reset_cells=True), 3, 2)
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
        found = rnn([gate], [steps], [np.zeros((NOUT, 2))], steps, [np.zeros((NOUT, 2))])
        close(y[rows], by_columns(found[0][order]))
    assert layer.get_weights().keys() == {f"{layer.name}.{x}" for x in ("W", "gmean", "gvar")}


@every_kind
def test_shorter_sequences_are_read_in_the_same_memory(cpu64, kind):
    layer = made(cpu64, KINDS[kind](reset_cells=True), 6, 2)
    W, roots = layer.W.get(), {name: t.root for name, t in layer._memory.items()}
    for T in (3, 6, 1):
        layer.set_seq_len(T)
        rng = np.random.default_rng(T)
        x, e = cpu64.array(rng.normal(size=(NIN, T * 2))), cpu64.array(rng.normal(size=(layer.out_shape[0], T * 2)))
        y, dW, deltas, *_ = textbook(kind, W, x.get(), e.get(), T)
        close(layer.fprop(x), y)
        close(layer.bprop(e), deltas)
        close(layer.dW, dW)
        assert {name: t.root for name, t in layer._memory.items()} == roots
        assert layer.outputs.root is roots["outputs", None]
    layer.set_seq_len(9)
    assert layer.out_shape == (layer.out_shape[0], 9)
    assert layer.fprop(cpu64.zeros((NIN, 18))).shape[1] == 18


@every_kind
def test_another_batch_size_is_read_right(cpu64, kind):
    layer = made(cpu64, KINDS[kind](), 3, 4)
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
def test_other_tensors_are_taken_for_what_they_are(cpu64, kind):
    layer = made(cpu64, KINDS[kind](reset_cells=True), 3, 2)
    rng = np.random.default_rng(0)
    pairs = [
        (cpu64.array(rng.normal(size=(NIN, 6))), cpu64.array(rng.normal(size=(layer.out_shape[0], 6)))) for _ in "ab"
    ]
    for x, e in [*pairs, *pairs, (pairs[0][0], pairs[1][1])]:
        y, dW, deltas, *_ = textbook(kind, layer.W.get(), x.get(), e.get(), 3)
        close(layer.fprop(x), y)
        close(layer.bprop(e), deltas)
        close(layer.dW, dW)


def test_a_network_learns_to_say_what_it_was_told_before(cpu):
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
        words = rng.integers(0, V, (T, 8))
        x = cpu.array(np.eye(V)[words].transpose(2, 0, 1).reshape(V, -1))
        late = np.vstack([np.zeros((1, 8), int), words[:-1]])
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


# --- what a file and a summary say ----------------------------------------------------------------------------------


@every_kind
def test_a_layer_is_made_anew_with_its_weights(cpu, kind):
    options = {"split_inputs": True} if kind in BOTH_WAYS else {}
    layer = made(cpu, KINDS[kind](reset_cells=True, init_inner=Uniform(-0.3, 0.3), name="r", **options), 3, 2)
    x = cpu.array(sequence(cpu, 3, 2))
    y = layer.fprop(x).get()
    again = Layer.recursive_gen(layer.get_description())
    assert again.get_description() == layer.get_description()
    again.configure((NIN, 3))
    again.allocate()
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again.fprop(x).get(), y)


@every_kind
def test_a_copy_goes_its_own_way(cpu64, kind):
    layer = made(cpu64, KINDS[kind](), 3, 2)
    x, e = cpu64.array(sequence(cpu64, 3, 2)), cpu64.ones((layer.out_shape[0], 6))
    layer.fprop(x)
    layer.bprop(e)
    other = copy.deepcopy(layer)
    one, two = (z.fprop(x).get() for z in (layer, other))
    np.testing.assert_array_equal(one, two)  # also of the state that it goes on with
    layer.bprop(e)
    before = layer.dW.get()
    other.W[:] = 0
    other.reset()
    other.fprop(x)
    other.bprop(e)
    np.testing.assert_array_equal(layer.dW.get(), before)
    layer.reset()
    assert layer.fprop(x).get().any()
    end = "_f" if kind in BOTH_WAYS else ""
    assert not getattr(other, f"W_recur{end}").get().any()


@every_kind
def test_a_summary_counts_what_a_run_takes(cpu, kind):
    layers = [KINDS[kind](name="r"), RecurrentLast(name="last"), Affine(2, G, name="fc")]
    cpu.bsz = 2
    net = Sequential(layers)
    told = net.summary((NIN, 3), GeneralizedCost(SumSquared()), GradientDescentMomentum(0.1, 0.9))
    assert net.in_shape is None
    parameters = {row.name: row.parameters for row in told.rows}
    ways, (_, g, _) = 1 + (kind in BOTH_WAYS), BOOK[kind]
    assert parameters["r"] == ways * g * NOUT * (NIN + NOUT + 1)
    assert {row.name: row.out_shape for row in told.rows}["r"] == (ways * NOUT, 3)
    products = 2 * ways * 2 * g * NOUT * 6 * (NIN + NOUT)  # multiply and add, there and for the weights
    assert {row.name: row.flops for row in told.rows}["r"] > products


# --- what becomes of a sequence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "book"),
    [
        (RecurrentSum, lambda x: x.sum(axis=0)),
        (RecurrentMean, lambda x: x.mean(axis=0)),
        (RecurrentLast, lambda x: x[-1]),
        (BiSum, lambda x: by_columns(x[:, :2] + x[:, 2:])),
    ],
)
@pytest.mark.parametrize("T", [1, 3])
def test_one_vector_of_a_sequence(be64, kind, book, T):
    layer = made(be64, kind(), T, 2)
    x = sequence(be64, T, 2)
    close(layer.fprop(be64.array(x)), book(by_steps(x, T)))
    assert layer.out_shape == ((2, T) if kind is BiSum else NIN)


@pytest.mark.parametrize("kind", [RecurrentSum, RecurrentMean, RecurrentLast, BiSum])
@pytest.mark.parametrize("T", [1, 3])
def test_its_error_goes_back_to_all_steps(cpu, kind, T):
    report = check_layer(kind(), (4, T))
    assert report.ok, report
    layer = made(cpu, kind(), T, 2)
    x, e = cpu.array(sequence(cpu, T, 2)), cpu.ones((2 if kind is BiSum else NIN, 2 * T if kind is BiSum else 2))
    layer.fprop(x)
    once = layer.bprop(e).get()
    layer.deltas[:] = 10
    close(layer.bprop(e, alpha=2.0, beta=0.5), 2 * once + 5, 1e-6)


def test_the_last_step_is_copied(cpu):
    layer = made(cpu, RecurrentLast(), 2, 2)
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
    with pytest.raises(ValueError, match=r"steps are those of a shape \(F, T\); got 5"):
        get_steps(x, 5)


def test_deep_layers_read_both_ways_of_those_before(cpu):
    deep = DeepBiRNN(3, G, activation=Tanh(), depth=3)
    assert [x.classnm for x in deep] == ["BiRNN"] * 3
    assert [x.split_inputs for x in deep] == [False, True, True]
    assert [x.split_inputs for x in DeepBiRNN(3, G, activation=Tanh(), depth=2, bi_sum=True)[::2]] == [False, False]
    assert {x.classnm for x in DeepBiRNN(3, G, activation=Tanh(), depth=2, batch_norm=True)} == {"BiBNRNN"}
    lstms = DeepBiLSTM(3, G, None, Tanh(), Logistic(), depth=2)
    assert [(x.classnm, x.split_inputs) for x in lstms] == [("BiLSTM", False), ("BiLSTM", True)]
    assert len({id(x) for x in deep} | {x.name for x in deep}) == 6


def test_words_are_looked_up_and_read(cpu64):
    cpu64.bsz = 2
    net = Sequential([LookupTable(5, NIN, G), gated(LSTM, reset_cells=True)])
    net.configure((1, 3))
    net.allocate()
    net.allocate_deltas()
    words = np.array([[0, 4, 1, 1, 4, 2]])
    y = net.fprop(cpu64.array(words, dtype="int32")).get()
    table, lstm_ = net.layers
    e = np.random.default_rng(0).normal(size=(NOUT, 6))
    want, dW, deltas, *_ = textbook("LSTM", lstm_.W.get(), table.W.get()[words[0]].T, e, 3)
    close(y, want)
    net.bprop(cpu64.array(e))
    close(lstm_.dW, dW)
    rows = np.zeros((5, NIN))
    np.add.at(rows, words[0], deltas.T)
    close(table.dW, rows)


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Recurrent(0, G, activation=Tanh(), name="r"), ValueError, "r: output_size is a whole number .* got 0"),
        (
            lambda: LSTM(2.5, G, activation=Tanh(), name="r"),
            ValueError,
            "output_size is a whole number from 1; got 2.5",
        ),
        (lambda: GRU(True, G, activation=Tanh()), ValueError, "got True"),
        (lambda: Recurrent(2, G, name="r"), TypeError, r"r: activation is a transform such as Tanh\(\); got None"),
        (lambda: LSTM(2, G, activation=Tanh(), name="r"), TypeError, "r: gate_activation is a transform .* got None"),
        (lambda: Recurrent(2, G, activation="tanh"), TypeError, "got 'tanh'"),
        (
            lambda: Recurrent(2, G, activation=GELU(), name="r"),
            ValueError,
            "r: .* activation has to follow .* got GELU",
        ),
        (lambda: GRU(2, G, None, Tanh(), Sign(), name="r"), ValueError, "gate_activation has to follow .* got Sign"),
        (lambda: BiRNN(2, G, activation=Rectlin(-0.5)), ValueError, "activation has to follow from its output"),
        (lambda: DeepBiRNN(2, G, activation=Tanh(), depth=0), ValueError, "depth is a whole number .* got 0"),
        (lambda: DeepBiLSTM(2, G, None, Tanh(), Logistic(), depth=1.5), ValueError, "depth is .* got 1.5"),
    ],
)
def test_what_a_layer_cannot_be_is_said_at_once(cpu, make, error, words):
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize("shape", [5, (3, 4, 4)])
@every_kind
def test_inputs_have_time_steps(cpu, kind, shape):
    cpu.bsz = 2
    words = r"r: \w+ reads sequences: inputs \(F, T\), .* the inputs' shape is .*: give the data set a shape \(F, T\)"
    with pytest.raises(ValueError, match=words):
        KINDS[kind](name="r").configure(shape)


@pytest.mark.parametrize("kind", [RecurrentSum, RecurrentMean, RecurrentLast])
def test_sequences_have_time_steps(cpu, kind):
    with pytest.raises(ValueError, match=r"s: Recurrent\w+ takes a sequence \(F, T\); the inputs' shape is 5"):
        kind(name="s").configure(5)


@pytest.mark.parametrize("kind", KINDS)
def test_views_with_gaps_are_read_as_well(cpu64, kind):
    cpu64.bsz = 2
    layer = KINDS[kind]().configure((NIN, 3))
    layer.allocate()
    x, e = (cpu64.array(np.random.default_rng(n).normal(size=(n, 12))) for n in (NIN, layer.ways * NOUT))
    found = []
    for inputs, error in ((x[:, :6], e[:, :6]), (cpu64.array(x[:, :6]), cpu64.array(e[:, :6]))):
        layer.reset()
        y = layer.fprop(inputs).get()
        layer.bprop(error)
        found.append((y, layer.dW.get()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-12, atol=1e-14)


def test_a_sequence_that_is_too_long_says_what_makes_room(cpu):
    cpu.bsz = 2
    layer = KINDS["GRU"](name="reader").configure((NIN, 3))
    layer.allocate()
    with pytest.raises(ValueError, match=r"reader: .* has 5 time steps: set_seq_len\(5\) is for these"):
        layer.fprop(cpu.zeros((NIN, 10)))
    for steps in (0, 5.5, True):
        with pytest.raises(ValueError, match=f"reader: time steps are a whole number from 1; got {steps}"):
            layer.set_seq_len(steps)
    with pytest.raises(RuntimeError, match="reader: it has no shapes yet"):
        KINDS["GRU"](name="reader").set_seq_len(3)


@pytest.mark.parametrize("shape", [5, (3, 2)])
def test_halves_are_of_an_even_number(cpu, shape):
    with pytest.raises(ValueError, match=r"s: BiSum adds the halves of \(2 F, T\); the inputs' shape is"):
        BiSum(name="s").configure(shape)
    with pytest.raises(ValueError, match="b: split_inputs halves the inputs' features; there are 5"):
        BiRNN(2, G, activation=Tanh(), split_inputs=True, name="b").configure((5, 2))


def test_inputs_and_errors_are_of_all_steps(cpu):
    layer = made(cpu, gated(LSTM, name="r"), 3, 2)
    with pytest.raises(ValueError, match=r"r: the inputs must have the shape \(4, 6\), that of \(4, 3\) for the batch"):
        layer.fprop(cpu.zeros((4, 8)))
    with pytest.raises(RuntimeError, match="r: bprop comes after fprop"):
        layer.bprop(cpu.zeros((NOUT, 6)))
    layer.fprop(cpu.zeros((4, 6)))
    with pytest.raises(ValueError, match=r"r: the error must have the shape \(3, 6\)"):
        layer.bprop(cpu.zeros((NOUT, 2)))
    with pytest.raises(ValueError, match=r"the states go on from step to step, .* got beta=0.5"):
        layer.fprop(cpu.zeros((4, 6)), beta=0.5)


@pytest.mark.parametrize(
    "state", [lambda be: be.zeros((3, 4)), lambda be: [be.zeros((3, 2))] * 3, lambda be: np.zeros(3)]
)
def test_states_to_begin_with_fit(cpu, state):
    layer = made(cpu, gated(LSTM, name="r"), 3, 2)
    with pytest.raises(ValueError, match=r"r: init_state is of h and c, each \(3, 2\); got "):
        layer.fprop(cpu.zeros((4, 6)), init_state=state(cpu))
    both = made(cpu, plain(BiRNN, name="b"), 3, 2)
    with pytest.raises(ValueError, match="b: init_state is of none: it reads both ways; got"):
        both.fprop(cpu.zeros((4, 6)), init_state=cpu.zeros((3, 2)))


def test_a_time_before_there_are_buffers_is_named():
    be = gen_backend("cpu", batch_size=2)
    NervanaObject.be = be
    layer = gated(LSTM, name="r")
    with pytest.raises(RuntimeError, match="r: it has no shapes yet"):
        layer.fprop(be.zeros((4, 6)))
    layer.configure((4, 3))
    with pytest.raises(RuntimeError, match="r: it has no buffers yet"):
        layer.fprop(be.zeros((4, 6)))


# --- in a training ---------------------------------------------------------------------------------------------------


PROSE = "the quick brown fox jumps over the lazy dog. " * 20


def reader(reset_cells: bool = False) -> tuple[Any, Any]:
    """A network that reads letters, and its text."""
    gen_backend("cpu", rng_seed=2, batch_size=4)
    text = Text(8, text=PROSE)
    layers = [
        LSTM(
            12, Gaussian(scale=0.3), activation=Tanh(), gate_activation=Logistic(), reset_cells=reset_cells, name="lstm"
        ),
        Affine(len(text.vocab), Gaussian(scale=0.3), bias=Constant(0), activation=Softmax(), name="out"),
    ]
    return Model(layers), text


def learn(model: Any, text: Any, epochs: int, listener: Any = None) -> dict[str, Any]:
    optimizer = model.optimizer or Adam(learning_rate=0.02)
    model.fit(text, CrossEntropyMulti(), optimizer, epochs, listener)
    return model.get_weights()


class Stop(Listener):
    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if (epoch, minibatch) == (1, 5):
            raise KeyboardInterrupt


def test_a_training_goes_on_from_a_file_with_the_state_of_its_cells(tmp_path):
    whole = learn(*reader(), 3)
    model, text = reader()
    with pytest.raises(KeyboardInterrupt):
        learn(model, text, 3, Stop())
    model.save_params(tmp_path / "half")
    _, text = reader()
    parts = learn(Model(tmp_path / "half"), text, 3)
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_to_judge_begins_with_zeros_and_leaves_the_state_of_the_training():
    class Judge(Listener):
        def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
            costs.append(model.eval_cost(other))

    costs: list[float] = []
    whole = learn(*reader(), 2)
    model, text = reader()
    other = Text(8, text=PROSE, vocab=text.vocab)
    judged = learn(model, text, 2, Judge())
    assert all(np.array_equal(whole[name], judged[name]) for name in whole)
    last = model.eval_cost(other)
    assert costs[-1] == last == model.eval_cost(other)


@pytest.mark.parametrize(
    "wrong", [{"h": (12, 4)}, {"h": (12, 4), "c": (11, 4)}, {"h": (12, 4), "c": (12, 4), "d": (1, 1)}]
)
def test_a_file_with_another_state_is_refused(wrong, tmp_path):
    model, text = reader()
    learn(model, text, 1)
    description, arrays = State.of(model)
    arrays = {name: x for name, x in arrays.items() if not name.startswith("carried")}
    arrays |= {f"carried/lstm/{name}": np.zeros(shape, np.float32) for name, shape in wrong.items()}
    write_checkpoint(tmp_path / "other", description, arrays)
    with pytest.raises(CheckpointError, match=r"other: carried: lstm: states are h, c, of 12 rows each"):
        Model(tmp_path / "other")


def test_words_are_not_read_as_numbers(cpu):
    cpu.bsz = 2
    layer = KINDS["LSTM"](name="reader").configure((1, 3))
    layer.allocate()
    with pytest.raises(ValueError, match=r"reader: LSTM reads vectors; .* int32: words go through a LookupTable first"):
        layer.fprop(cpu.zeros((1, 6), dtype="int32"))


def test_a_batch_size_that_is_set_by_hand_is_told(cpu):
    cpu.bsz = 3
    layer = KINDS["GRU"](name="reader").configure((NIN, 2))
    with pytest.raises(RuntimeError, match="reader: it has no buffers yet"):
        layer.final_state()
    layer.allocate()
    cpu.bsz = 2
    with pytest.raises(
        ValueError, match=r"reader: its buffers are for a batch size of 3; be.bsz is 2: set_batch_size\(2\)"
    ):
        layer.fprop(cpu.zeros((NIN, 4)))


def test_steps_have_as_many_columns_each(cpu):
    with pytest.raises(ValueError, match=r"5 steps have as many columns each; got .*\(3, 8\)"):
        get_steps(cpu.zeros((3, 8)), (3, 5))
