"""LSTM and GRU by oneDNN: they equal the textbook and the unrolled steps, and run where oneDNN supports them."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.networks import trained_by_program
from helpers.recurrent_textbook import compare

from neonlite import Backend, cleanup_backend, gen_backend
from neonlite.backend import concurrency
from neonlite.backend.runtimes.onednn import bindings
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import GRU, LSTM, Affine, BiLSTM, GeneralizedCost, Recurrent, RecurrentLast, Sequential
from neonlite.optimizers import GradientDescentMomentum
from neonlite.transforms import Logistic, MeanSquared, Rectlin, Tanh

Array = np.ndarray[Any, Any]
G = Gaussian(scale=0.3)
KINDS: dict[str, Any] = {"LSTM": LSTM, "GRU": GRU, "BiLSTM": BiLSTM}
T, N, F, H = 9, 6, 20, 33
every_kind = pytest.mark.parametrize("kind", KINDS)
one_way = pytest.mark.parametrize("kind", ["LSTM", "GRU"])
pytestmark = pytest.mark.skipif(bindings.get_library() is None, reason=bindings.version_info())


@pytest.fixture(params=["cpu", "mkl"])
def be(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "mkl" and find_spec("mkl") is None:
        pytest.skip("mkl is not installed")
    yield gen_backend(request.param, rng_seed=1)
    cleanup_backend()


def gated(kind: str, nout: int = H, **options: Any) -> Any:
    return KINDS[kind](nout, G, activation=Tanh(), gate_activation=Logistic(), **options)


def made(be: Backend, layer: Any, T: int = T, N: int = N, F: int = F) -> Any:
    """Return a layer that is ready to run, with deltas, and biases other than 0."""
    layer.be, be.bsz = be, N
    layer.configure((F, T))
    layer.needs_deltas = True
    layer.allocate()
    layer.allocate_deltas()
    rng = np.random.default_rng(7)
    layer.W[:] = rng.normal(size=layer.W.shape) * 0.4
    return layer


@pytest.fixture
def be64(be: Backend) -> Iterator[Backend]:
    """Yield a backend that computes layers step by step, in float64."""
    steps = Backend(be.name, 1, "float64")
    yield steps
    steps.cleanup_backend()


def count_fused(be: Backend, monkeypatch: Any) -> list[Any]:
    """Return a list to which each forward pass by oneDNN appends its key."""
    calls, fprop = [], be.primitives.recurrent_fprop

    def counted(key: Any, *args: Any) -> None:
        calls.append(key)
        fprop(key, *args)

    monkeypatch.setattr(be.primitives, "recurrent_fprop", counted)
    return calls


def numbers(be: Backend, *shape: int, seed: int = 0) -> Any:
    return be.array(np.random.default_rng(seed).normal(size=shape))


def near(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    got, want = (x.get() if hasattr(x, "get") else x for x in (got, want))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * max(1, abs(want).max()))


# --- the same as elsewhere -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("N", [1, 4])
@pytest.mark.parametrize("T", [5, 7, 64])
@every_kind
def test_outputs_and_all_gradients_are_the_textbooks(be, kind, T, N):
    compare(be, kind, T, N, 1e-4 if T == 64 else 2e-5)


@pytest.mark.parametrize("T", [5, 30])
@one_way
def test_initial_states_and_errors_of_final_states_give_the_textbooks_gradients(be, kind, T):
    compare(be, kind, T, 3, 5e-5, start=True)


def test_each_direction_may_read_its_half_of_the_inputs(be):
    compare(be, "BiLSTM", 6, 3, 2e-5, split=True)


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(n, marks=pytest.mark.slow) for n in range(30, 80))])
def test_random_sizes_equal_the_unrolled_steps(be, be64, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    T, N, H = (int(n) for n in rng.integers((5, 1, 1), (20, 20, 70)))
    F = int(rng.integers(1, 4 * H + 1))
    kind = list(KINDS)[seed % 3]
    once, steps = (made(backend, gated(kind, H), T, N, F) for backend in (be, be64))
    calls = count_fused(be, monkeypatch)
    alpha, beta = (1.0, 0.0) if seed % 2 else (2.0, 0.5)
    for _ in range(2):  # the second continues from the first
        for layer in (once, steps):
            layer.deltas[:] = 3
            layer.fprop(x := numbers(layer.be, F, T * N))
            layer.bprop(numbers(layer.be, layer.out_shape[0], T * N, seed=1), alpha, beta)
        for name in ("outputs", "deltas", "dW"):
            near(getattr(once, name), getattr(steps, name))
        for name in ("final_states", "initial_errors"):
            for one, other in zip(getattr(once, name), getattr(steps, name), strict=True):
                near(one, other)
    near(once.fprop(numbers(be, F, T * N), inference=True), steps.fprop(x, inference=True))
    assert calls


def test_strided_views_and_other_memory_orders_are_read(be):
    layer = made(be, gated("LSTM"))
    x, e = numbers(be, F, T * N + 5), numbers(be, H, T * N + 5)
    turned = (numbers(be, T * N, F).T, numbers(be, T * N, H).T)
    backwards = (x[::-1, 5:], e[:, 5:][:, ::-1])
    for inputs, error in ((x[:, 5:], e[:, 5:]), turned, backwards):
        found = []
        for pair in ((inputs, error), (be.array(inputs.get()), be.array(error.get()))):
            layer.reset()
            layer.fprop(pair[0])
            layer.bprop(pair[1])
            found.append([t.get() for t in (layer.outputs, layer.dW, layer.deltas)])
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)


@one_way
@pytest.mark.parametrize("rows", [((1, 3, 1),), ((0, 8, 1), (2, 3, 1))], ids=["rows", "rows of rows"])
def test_rows_of_the_outputs_may_be_reshaped(be, kind, rows):
    """Outputs that are stored by time have other strides: a reshape of some of their rows would be a copy."""
    T, N, H = 8, 32, 24
    found = []
    for dtype in ("float32", "float64"):
        rng, gates = np.random.default_rng(0), 4 if kind == "LSTM" else 3
        shapes = [(20, T * N), (gates * H, 20), (gates * H, H), (gates * H, 1), *[(H, N)] * (gates - 2)]
        y = getattr(be, kind.lower())(*(be.array(rng.normal(size=s) / 3, dtype=dtype) for s in shapes), steps=T)
        for part in rows:
            y = be.build("slice", y, index=(part, (0, T * N, 1)))
        found.append(be.evaluate([be.reshape(y, (3 * T, N))])[0].get())
    np.testing.assert_allclose(*found, atol=1e-5)


@every_kind
def test_the_backward_pass_may_run_twice(be, kind):
    layer = made(be, gated(kind))
    layer.fprop(numbers(be, F, T * N))
    e = numbers(be, layer.out_shape[0], T * N, seed=1)
    layer.bprop(e)
    once = layer.dW.get(), layer.deltas.get()
    layer.bprop(e)
    np.testing.assert_array_equal(layer.dW.get(), once[0])
    np.testing.assert_array_equal(layer.deltas.get(), once[1])


@one_way
def test_a_long_sequence_may_come_in_minibatches(be, kind):
    long, short = made(be, gated(kind), 18), made(be, gated(kind), 6)
    x = numbers(be, F, 18 * N)
    whole = long.fprop(x).get()
    parts = [short.fprop(be.array(part)).get() for part in np.split(x.get(), 3, axis=1)]
    near(np.concatenate(parts, axis=1), whole)
    kept = short.get_state()
    again = made(be, gated(kind), 6)
    again.set_state(kept)
    np.testing.assert_array_equal(again.fprop(x[:, : 6 * N]).get(), short.fprop(x[:, : 6 * N]).get())


def test_other_sizes_are_read_in_the_same_layer(be, be64):
    layer, steps = (made(backend, gated("LSTM", reset_cells=True)) for backend in (be, be64))
    for length, rows in ((9, 6), (5, 2), (3, 6), (12, 9), (9, 6)):
        for x in (layer, steps):
            x.be.bsz = rows
            x.set_seq_len(length)
            x.fprop(numbers(x.be, F, length * rows))
            x.bprop(numbers(x.be, H, length * rows, seed=1))
        for name in ("outputs", "deltas", "dW"):
            near(getattr(layer, name), getattr(steps, name))


@every_kind
def test_a_copy_of_a_layer_is_independent(be, kind):
    layer = made(be, gated(kind))
    x, e = numbers(be, F, T * N), be.ones((layer.out_shape[0], T * N))
    layer.fprop(x)
    layer.bprop(e)
    other = copy.deepcopy(layer)
    np.testing.assert_array_equal(layer.fprop(x).get(), other.fprop(x).get())  # also of the recurrent state
    layer.bprop(e)
    before = layer.dW.get()
    other.W[:] = 0
    other.fprop(numbers(be, F, T * N, seed=5))
    other.bprop(e)
    assert (other.dW.get() != before).any()
    np.testing.assert_array_equal(layer.dW.get(), before)
    layer.bprop(e)
    np.testing.assert_array_equal(layer.dW.get(), before)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@one_way
def test_nan_is_not_lost(be, be64, kind, value, inference):
    x = numbers(be, F, T * N)
    x[3, 2 * N + 1 : 2 * N + 2] = value
    once, steps = (made(backend, gated(kind)) for backend in (be, be64))
    found, want = (layer.fprop(layer.be.array(x.get()), inference=inference).get() for layer in (once, steps))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    assert np.isnan(want).any() == np.isnan(value)


# --- several layers -----------------------------------------------------------------------------------------


def reader(be: Backend, *layers: Any, sizes: tuple[int, int] = (T, N)) -> Any:
    """Return a network that reads sequences, ready to train, with weights other than 0."""
    be.bsz, net = sizes[1], Sequential(layers)
    for layer in (net, *net.layers):
        layer.be = be
    net.configure((F, sizes[0]))
    net.allocate(accumulate_updates=True)
    net.allocate_deltas()
    for n, layer in enumerate(net.layers_to_optimize):
        layer.W[:] = np.random.default_rng(n).normal(size=layer.W.shape) * 0.4
    return net


def read(net: Any, be: Backend, length: int, rows: int) -> list[Array]:
    """Return the outputs of a network in training and inference, and its gradients, accumulated twice."""
    x, e = numbers(be, F, length * rows), numbers(be, net.out_shape[0], length * rows, seed=1)
    found = [net.fprop(x, inference=True).get()]
    for acc in (False, True):
        net.set_acc_on(acc)
        found.append(net.fprop(x).get())
        net.bprop(e)
    net.set_acc_on(False)
    return [*found, *(layer.dW.get() for layer in net.layers_to_optimize)]


@pytest.mark.parametrize("second", [*KINDS, "Recurrent"])
@one_way
def test_consecutive_layers_equal_the_unrolled_steps(be, be64, kind, second):
    def layers() -> list[Any]:
        makes = {"Recurrent": partial(Recurrent, 24, G, activation=Tanh())}
        another = makes.get(second, partial(gated, second, 24))(reset_cells=True)
        return [gated(kind, reset_cells=True), another, *Affine(10, G, bias=Constant(0.1), activation=Tanh())]

    once, steps = (reader(backend, *layers()) for backend in (be, be64))
    for length, rows in ((T, N), (5, 2), (12, 9), (T, N)):
        for net in (once, steps):
            net.be.bsz = rows
            net.set_seq_len(length)
        for one, other in zip(read(once, be, length, rows), read(steps, be64, length, rows), strict=True):
            near(one, other)


# --- which layers use oneDNN -----------------------------------------------------------------------------------------


class CustomLSTM(LSTM):
    """A user-defined subclass with the same steps."""


@pytest.mark.parametrize(
    ("layer", "T", "at_once"),
    [
        (lambda: gated("LSTM"), 5, True),
        (lambda: gated("GRU"), 5, True),
        (lambda: gated("BiLSTM"), 5, True),
        (lambda: gated("LSTM"), 4, False),
        (lambda: gated("LSTM", 4), 5, False),  # many inputs for few states may be one-hot token ids
        (lambda: LSTM(H, G, activation=Rectlin(), gate_activation=Logistic()), 5, False),
        (lambda: GRU(H, G, activation=Tanh(), gate_activation=Tanh()), 5, False),
        (lambda: CustomLSTM(H, G, activation=Tanh(), gate_activation=Logistic()), 5, True),
        (lambda: Recurrent(H, G, activation=Tanh()), 5, False),
    ],
)
def test_which_layers_run_all_steps_in_one_primitive(be, layer, T, at_once, monkeypatch):
    layer, calls = made(be, layer(), T), count_fused(be, monkeypatch)
    layer.fprop(numbers(be, F, T * N))
    assert len(calls) == at_once * layer.num_directions


def test_without_onednn_it_is_step_by_step(be, monkeypatch):
    monkeypatch.setattr(bindings, "get_library", lambda: None)
    layer, calls = made(be, gated("LSTM")), count_fused(be, monkeypatch)
    layer.fprop(numbers(be, F, T * N))
    assert not calls


# --- threads, processes, memory --------------------------------------------------------------------------------------


def gone(layer: Any, be: Backend) -> list[Array]:
    layer.reset()
    layer.fprop(numbers(be, F, T * N))
    layer.bprop(numbers(be, H, T * N, seed=1))
    return [t.get() for t in (layer.outputs, layer.dW, layer.deltas)]


@one_way
def test_more_threads_or_fewer_change_nothing(be, kind, threads):
    layer = made(be, gated(kind))
    concurrency.set_threads(1)
    want = gone(layer, be)
    concurrency.set_threads(2)
    for one, other in zip(gone(layer, be), want, strict=True):
        near(one, other, 1e-6)
    layer.reset()
    layer.fprop(numbers(be, F, T * N))  # forward with two threads, backward with one
    concurrency.set_threads(1)
    layer.bprop(numbers(be, H, T * N, seed=1))
    near(layer.dW, want[1], 1e-6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_runs_recurrent_layers_too(be, threads):
    concurrency.set_threads(2)
    layer = made(be, gated("LSTM"))
    want = gone(layer, be)
    child = os.fork()
    if not child:
        same = all(np.allclose(a, b, atol=1e-5) for a, b in zip(gone(layer, be), want, strict=True))
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def network(be: Backend, kind: str) -> tuple[Any, Any, Any]:
    """Return a network with its cost and optimizer."""
    net = Sequential([gated(kind, name="first"), gated(kind, 24), RecurrentLast(), Affine(10, G, bias=Constant(0))])
    return net, GeneralizedCost(MeanSquared()), GradientDescentMomentum(0.01, 0.9)


def trained(be: Backend, kind: str, steps: int) -> tuple[Any, ...]:
    """Return what a training holds after some steps, and the step."""
    net, cost, optimizer = network(be, kind)
    return trained_by_program(net, (F, T), cost, optimizer, steps)


@every_kind
def test_a_step_allocates_nothing(be, kind):
    be.bsz = 16
    *_, step = trained(be, kind, 2)
    assert buffers(step) == []


@every_kind
def test_a_summary_states_the_memory_to_the_byte_and_the_products(be, kind):
    be.bsz = 16
    net, cost, optimizer = network(be, kind)
    stated = net.summary((F, T), cost, optimizer)
    assert be.memory().total == 0
    kept = trained(be, kind, 3)
    assert be.memory() == stated.memory
    first = kept[0].layers[0]
    products = 4 * 2 * first.num_directions * first.num_gates * H * T * 16 * (F + H)
    assert products <= {row.name: row.flops for row in stated.rows}["first"] < 1.2 * products
