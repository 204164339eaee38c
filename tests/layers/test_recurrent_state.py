"""States of recurrent layers, initial and final, in checkpoints and evaluation (neonlite/layers/recurrent.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.recurrent_textbook import (
    KINDS,
    NIN,
    NOUT,
    allocate,
    close,
    compare,
    every_kind,
    gated,
    one_way,
    plain,
    sequence,
    textbook,
)
from helpers.reference import numerical_gradient

from neonlite import gen_backend
from neonlite.callbacks import CallbackBase
from neonlite.data import Text
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import LSTM, Affine, BiRNN, Recurrent
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import TrainingState, write_checkpoint
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti, Logistic, Softmax, Tanh


@pytest.mark.parametrize("N", [1, 4])
@pytest.mark.parametrize("T", [1, 2, 7, 64])
@one_way
def test_layers_with_initial_states_and_final_errors_match_the_textbook_loops(cpu64, kind, T, N):
    compare(cpu64, kind, T, N, 1e-10, start=True)


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
    layer.set_state({name: np.ones((NOUT, 5)) for name in state})
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
        np.testing.assert_allclose(error.get(), numerical_gradient(score, state), rtol=1e-6, atol=1e-8)


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


@pytest.mark.long
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
        {"h": (12, 4), "c": (12, 3)},
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
