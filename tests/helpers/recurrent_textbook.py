"""Textbook loops of recurrent layers and their gradients in NumPy, and their comparison with layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neonlite import Backend
from neonlite.initializers import Gaussian
from neonlite.layers import GRU, LSTM, BiBNRNN, BiLSTM, BiRNN, Recurrent
from neonlite.layers.recurrent import RecurrentBase
from neonlite.transforms import Logistic, Tanh

Array = np.ndarray[Any, Any]
G = Gaussian(scale=0.4)
NIN, NOUT = 4, 3


def gated(kind: Any, **options: Any) -> Any:
    return kind(NOUT, G, activation=Tanh(), gate_activation=Logistic(), **options)


def plain(kind: Any, **options: Any) -> Any:
    return kind(NOUT, G, activation=Tanh(), **options)


# name -> function that returns a layer
KINDS: dict[str, Callable[..., Any]] = {
    "Recurrent": lambda **options: plain(Recurrent, **options),
    "LSTM": lambda **options: gated(LSTM, **options),
    "GRU": lambda **options: gated(GRU, **options),
    "BiRNN": lambda **options: plain(BiRNN, **options),
    "BiLSTM": lambda **options: gated(BiLSTM, **options),
    "BiBNRNN": lambda **options: plain(BiBNRNN, **options),
}
BIDIRECTIONAL = ["BiRNN", "BiLSTM", "BiBNRNN"]


UNIDIRECTIONAL = ["Recurrent", "LSTM", "GRU"]
every_kind = pytest.mark.parametrize("kind", KINDS)
one_way = pytest.mark.parametrize("kind", UNIDIRECTIONAL)


def sequence(be: Backend, T: int, N: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(NIN, T * N))


def allocate(be: Backend, layer: Any, T: int, N: int, nin: int = NIN, **options: Any) -> Any:
    """Return an allocated layer with deltas and nonzero biases."""
    be.bsz = N
    layer.configure((nin, T))
    layer.needs_deltas = True
    layer.allocate(**options)
    layer.allocate_deltas()
    for x in [layer] if isinstance(layer, RecurrentBase) else []:
        for end in [""] if x.num_directions == 1 else ["_f", "_b"]:
            b = getattr(x, f"b{end}")
            b[:] = np.random.default_rng(7).normal(size=b.shape)
    return layer


def close(got: Any, expected: Any, tolerance: float = 1e-10) -> None:
    got = got.get() if hasattr(got, "get") else got
    assert got.shape == np.shape(expected)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def sigmoid(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


class Gate:
    """``U x + V h + b``, and its gradients."""

    def __init__(self, U: Array, V: Array, b: Array) -> None:
        self.U, self.V, self.b = U, V, b
        self.dU, self.dV, self.db = np.zeros_like(U), np.zeros_like(V), np.zeros_like(b)

    def apply(self, u: Array, h: Array) -> Array:
        """Return the preactivation. u: U x, which a layer may have normalized."""
        return u + self.V @ h + self.b

    def backward(self, da: Array, h: Array) -> Array:
        """Accumulate the gradients of V and b, and return the error of h."""
        self.dV += da @ h.T
        self.db += da.sum(axis=1, keepdims=True)
        return self.V.T @ da


def rnn(gates: list[Gate], u: list[Array], start: list[Array], dy: Array, final_errors: list[Array]) -> Any:
    """Return outputs, last states, errors of each u, and errors of the initial states."""
    (gate,), h, hs = gates, start[0], []
    for t in range(len(dy)):
        hs.append(np.tanh(gate.apply(u[0][t], h)))
        h = hs[-1]
    du, dh = np.zeros_like(u[0]), final_errors[0]
    for t in reversed(range(len(dy))):
        du[t] = (dh + dy[t]) * (1 - hs[t] ** 2)
        dh = gate.backward(du[t], hs[t - 1] if t else start[0])
    return np.array(hs), [h], [du], [dh]


def lstm(gates: list[Gate], u: list[Array], start: list[Array], dy: Array, final_errors: list[Array]) -> Any:
    (h, c), saved, hs = start, [], []
    for t in range(len(dy)):
        i, f, o = (sigmoid(gate.apply(x[t], h)) for gate, x in zip(gates[:3], u[:3], strict=True))
        g = np.tanh(gates[3].apply(u[3][t], h))
        new = f * c + i * g
        saved.append((i, f, o, g, h, c, new))
        h, c = o * np.tanh(new), new
        hs.append(h)
    du = [np.zeros_like(x) for x in u]
    dh, dc = final_errors
    for t in reversed(range(len(dy))):
        i, f, o, g, before, c_before, c_after = saved[t]
        dh = dh + dy[t]
        dc = dc + dh * o * (1 - np.tanh(c_after) ** 2)
        du[0][t] = dc * g * i * (1 - i)
        du[1][t] = dc * c_before * f * (1 - f)
        du[2][t] = dh * np.tanh(c_after) * o * (1 - o)
        du[3][t] = dc * i * (1 - g**2)
        dh = sum(gate.backward(x[t], before) for gate, x in zip(gates, du, strict=True))
        dc = dc * f
    return np.array(hs), [h, c], du, [dh, dc]


def gru(gates: list[Gate], u: list[Array], start: list[Array], dy: Array, final_errors: list[Array]) -> Any:
    (h,), saved, hs = start, [], []
    for t in range(len(dy)):
        r, z = (sigmoid(gate.apply(x[t], h)) for gate, x in zip(gates[:2], u[:2], strict=True))
        candidate = np.tanh(gates[2].apply(u[2][t], r * h))
        saved.append((r, z, candidate, h))
        h = (1 - z) * h + z * candidate
        hs.append(h)
    du, dh = [np.zeros_like(x) for x in u], final_errors[0]
    for t in reversed(range(len(dy))):
        r, z, candidate, before = saved[t]
        dh = dh + dy[t]
        du[1][t] = dh * (candidate - before) * z * (1 - z)
        du[2][t] = dh * z * (1 - candidate**2)
        drh = gates[2].backward(du[2][t], r * before)
        du[0][t] = drh * before * r * (1 - r)
        dh = dh * (1 - z) + drh * r + gates[0].backward(du[0][t], before) + gates[1].backward(du[1][t], before)
    return np.array(hs), [h], du, [dh]


# kind -> (the loop, number of gates, number of states)
LOOPS: dict[str, tuple[Any, int, int]] = {"Recurrent": (rnn, 1, 1), "LSTM": (lstm, 4, 2), "GRU": (gru, 3, 1)}
LOOPS |= {"BiRNN": LOOPS["Recurrent"], "BiLSTM": LOOPS["LSTM"], "BiBNRNN": LOOPS["Recurrent"]}


def by_steps(x: Array, T: int) -> Array:
    """Return (F, T N), column t N + n, as (T, F, N)."""
    N = x.shape[1] // T
    return np.array([x[:, t * N : (t + 1) * N] for t in range(T)])


def by_columns(x: Array) -> Array:
    return np.concatenate(list(x), axis=1)


def standardize(a: Array) -> tuple[Array, Array]:
    """Return rows standardized over steps and minibatch, and their standard deviation."""
    mean, var = a.mean(axis=(0, 2), keepdims=True), a.var(axis=(0, 2), keepdims=True)
    return (a - mean) / np.sqrt(var + 1e-3), np.sqrt(var + 1e-3)


def textbook(kind: str, W: Array, x: Array, dy: Array, T: int, start: Any = None, last: Any = None, split: Any = False):
    """Return (outputs, dW, deltas, last states, errors of the first states) of a layer with the weights W.

    W: rows of W_input, forward (and backward), of W_recur, of b, each read as (gates output_size, nin).
    """
    loop, g, states = LOOPS[kind]
    num_directions = 1 + (kind in BIDIRECTIONAL)
    nout = W.shape[1] // g
    F, N = x.shape[0] // (2 if split else 1), x.shape[1] // T
    sizes = [F] * num_directions + [nout] * num_directions + [1] * num_directions
    rows = np.split(W, np.cumsum(sizes)[:-1])
    parts = [part.reshape(g * nout, size) for part, size in zip(rows, sizes, strict=True)]
    xs, errors = by_steps(x, T), by_steps(dy, T)
    zero = [np.zeros((nout, N)) for _ in range(states)]
    outputs, gradients, dx = [], [None] * len(parts), np.zeros_like(xs)
    for k in range(num_directions):
        order = slice(None, None, -1 if k else 1)
        mine = slice(k * F, (k + 1) * F) if split else slice(None)
        gates = [Gate(*(p[i * nout : (i + 1) * nout] for p in parts[k::num_directions])) for i in range(g)]
        u = [np.array([gate.U @ step for step in xs[order][:, mine]]) for gate in gates]
        if kind == "BiBNRNN":
            u0, deviation = standardize(u[0])
            u = [u0]
        actual = loop(gates, u, start or zero, errors[order][:, k * nout : (k + 1) * nout], last or zero)
        y, du = actual[0], actual[2]
        if k == 0:
            ends = actual[1], actual[3]
        if kind == "BiBNRNN":
            m = du[0].shape[0] * N
            mean, projection = (a.sum(axis=(0, 2), keepdims=True) / m for a in (du[0], du[0] * u0))
            du = [(du[0] - mean - u0 * projection) / deviation]
        for gate, d in zip(gates, du, strict=True):
            gate.dU = sum(a @ b.T for a, b in zip(d, xs[order][:, mine], strict=True))
            dx[order][:, mine] += np.array([gate.U.T @ a for a in d])
        outputs.append(y[order])
        for j, what in enumerate(("dU", "dV", "db")):
            gradients[j * num_directions + k] = np.concatenate([getattr(gate, what) for gate in gates])
    dW = np.concatenate([d.reshape(size, g * nout) for d, size in zip(gradients, sizes, strict=True)])
    return (by_columns(np.concatenate(outputs, axis=1)), dW, by_columns(dx), *ends)


def compare(be: Backend, kind: str, T: int, N: int, tolerance: float, start: bool = False, split: bool = False) -> None:
    """Compare a layer with the textbook loops, with and without initial states and final errors."""
    layer = allocate(be, KINDS[kind](**({"split_inputs": True} if split else {})), T, N)
    rng, (_, _, states) = np.random.default_rng(1), LOOPS[kind]

    def random(*shape: int) -> tuple[Any, Array]:
        t = be.array(rng.normal(size=shape))
        return t, t.get().astype(float)

    (x, x_), (e, e_) = random(NIN, T * N), random(layer.out_shape[0], T * N)
    initial = [random(NOUT, N) for _ in range(states)] if start else None
    end = [random(NOUT, N) for _ in range(states)] if start else None
    h, d = ([t for t, _ in pairs] if pairs else None for pairs in (initial, end))
    given = [[a for _, a in pairs] if pairs else None for pairs in (initial, end)]
    y, dW, deltas, last, first = textbook(kind, layer.W.get().astype(float), x_, e_, T, *given, split=split)
    close(layer.fprop(x, False, h), y, tolerance)
    for t, expected in zip(layer.final_states, last, strict=True):
        close(t, expected, tolerance)
    close(layer.bprop(e, final_errors=d), deltas, tolerance)
    close(layer.dW, dW, tolerance)
    for t, expected in zip(layer.initial_errors, first, strict=True):
        close(t, expected, tolerance)
