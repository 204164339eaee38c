"""Encoder and decoder against textbook loops and numerical gradients; greedy decoding and beam search."""

from __future__ import annotations

import copy
import itertools
import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.networks import check_gradient
from helpers.recurrent_textbook import NOUT, close, textbook

from neonlite import Autodiff, Backend, gen_backend, jit
from neonlite.data import ArrayIterator, Reversal
from neonlite.initializers import Constant, Gaussian, GlorotUniform
from neonlite.layers import (
    GRU,
    LSTM,
    Affine,
    BiBNRNN,
    BiLSTM,
    BiRNN,
    Decoder,
    Encoder,
    GeneralizedCost,
    GeneralizedCostMask,
    Layer,
    LookupTable,
    Recurrent,
    Seq2Seq,
    Sequential,
    SkipThought,
)
from neonlite.layers.recurrent import passed_states
from neonlite.models import BeamSearch, Model
from neonlite.optimizers import Adam, GradientDescentMomentum, PolySchedule
from neonlite.transforms import Accuracy, CrossEntropyMulti, Logistic, Softmax, Tanh

Array = np.ndarray[Any, Any]
G = Gaussian(scale=0.4)
V, N = 5, 3  # vocabulary size, batch size


def allocate(be: Backend, net: Any, shapes: Any, N: int = N) -> Any:
    """Return an allocated network."""
    be.bsz = N
    net.configure(shapes)
    net.allocate()
    net.allocate_deltas()
    return net


def kind(which: str, nout: int = NOUT, **options: Any) -> Any:
    make = {"LSTM": LSTM, "GRU": GRU, "Recurrent": Recurrent, "BiLSTM": BiLSTM, "BiRNN": BiRNN}[which]
    gate = {} if which in ("Recurrent", "BiRNN") else {"gate_activation": Logistic()}
    return make(nout, G, activation=Tanh(), **gate, **options)


def softmax_layer(scale: float = 1.0) -> Any:
    return Affine(V, Gaussian(scale=scale), bias=Constant(0), activation=Softmax())


def onehot(tokens: Array, nclass: int = V) -> Array:
    """Return token ids (T, N) as one-hot (V, T N)."""
    return np.eye(nclass)[tokens].transpose(2, 0, 1).reshape(nclass, -1)


def shifted(tokens: Array) -> Array:
    """Return token ids (T, N) as one-hot, shifted by one step, with zeros at the first step."""
    out = np.zeros((V, *tokens.shape))
    out[:, 1:] = np.eye(V)[tokens[:-1]].transpose(2, 0, 1)
    return out.reshape(V, -1)


def argmax_tokens(y: Any, T: int) -> Array:
    return y.get().argmax(axis=0).reshape(T, -1)


# --- outputs and gradients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["LSTM", "GRU", "Recurrent"])
def test_a_decoder_starts_from_the_encoders_states_and_returns_their_errors(be64, which):
    rng, T = np.random.default_rng(0), 3
    net = allocate(be64, Seq2Seq([[kind(which)], [kind(which)]]), [(4, 2), (V, T)])
    (encoder,), (decoder,) = net.encoder, net.decoder
    x, previous, e = (rng.normal(size=(f, t * N)) for f, t in ((4, 2), (V, T), (NOUT, T)))
    y = net.fprop([be64.array(x), be64.array(previous)])
    zeros = np.zeros((NOUT, 2 * N))
    _, _, _, last, _ = textbook(which, encoder.W.get(), x, zeros, 2)
    expected, dW, _, _, first = textbook(which, decoder.W.get(), previous, e, T, last)
    close(y, expected)
    net.bprop(be64.array(e))
    close(decoder.dW, dW)
    _, dW, _, _, _ = textbook(which, encoder.W.get(), x, zeros, 2, last=first)
    close(encoder.dW, dW)


def batch_tokens(be: Backend, rng: Any) -> tuple[Any, list[Any]]:
    ids = [be.array(rng.integers(0, n, (1, t * N)), dtype="int32") for n, t in ((6, 4), (V, 3))]
    return [(1, 4), (1, 3)], ids


def vectors(be: Backend, rng: Any) -> tuple[Any, list[Any]]:
    return [(4, 4), (V, 3)], [be.array(rng.normal(size=(f, t * N))) for f, t in ((4, 4), (V, 3))]


# name -> (layers, connections, inputs)
NETWORKS: dict[str, Any] = {
    "LSTM": (lambda: [[kind("LSTM")], [kind("LSTM"), softmax_layer()]], None, vectors),
    "two layers of token ids": (
        lambda: [
            [LookupTable(6, 3, G), kind("GRU"), kind("LSTM", 2)],
            [LookupTable(V, 2, G), kind("GRU"), kind("LSTM", 2), softmax_layer()],
        ],
        None,
        batch_tokens,
    ),
    "one starts from the first of two": (
        lambda: [[kind("GRU"), kind("GRU", 2)], [kind("GRU"), softmax_layer()]],
        [0],
        vectors,
    ),
    "crossed": (
        lambda: [[kind("GRU"), kind("LSTM", 2)], [kind("LSTM", 2), kind("Recurrent"), softmax_layer()]],
        [1, 0],
        vectors,
    ),
    "two start from one": (lambda: [[kind("LSTM")], [kind("LSTM"), kind("GRU"), softmax_layer()]], [0, 0], vectors),
    "only h of an LSTM is passed on": (lambda: [[kind("LSTM")], [kind("GRU"), softmax_layer()]], None, vectors),
    "cells start from 0": (lambda: [[kind("GRU")], [kind("LSTM"), softmax_layer()]], None, vectors),
    "bidirectional encoder": (
        lambda: [[kind("BiLSTM"), kind("BiRNN")], [kind("LSTM"), kind("GRU"), softmax_layer()]],
        None,
        vectors,
    ),
    "layers after the last states": (
        lambda: [[kind("GRU"), Affine(2, G)], [kind("GRU"), softmax_layer()]],
        None,
        vectors,
    ),
}


@pytest.mark.parametrize("which", NETWORKS)
def test_gradients_of_the_whole_network_match_numerical_gradients(which):
    be, rng = gen_backend("cpu", rng_seed=1, datatype=np.float64), np.random.default_rng(0)
    make, connections, inputs = NETWORKS[which]
    be.bsz = N
    shapes, x = inputs(be, rng)
    net, cost = allocate(be, Seq2Seq(make(), connections), shapes), GeneralizedCostMask(CrossEntropyMulti())
    cost.initialize(net)
    t = be.array(onehot(rng.integers(0, V, (3, N))))
    mask = be.array(np.array([[1] * N, [1] * (N - 1) + [0], [1] + [0] * (N - 1)]).reshape(1, -1))

    def score(p: Any, values: Array) -> float:
        p[:] = values
        return float(cost.get_cost(net.fprop(x), (t, mask)).item()) * 3 * N  # errors are not divided

    y = net.fprop(x)
    net.bprop(cost.get_errors(y, (t, mask)))
    assert len(net.parameters) == len(net.gradients) == len({p.name for p in net.parameters})
    idle = 0
    for p, g in zip(net.parameters, net.gradients, strict=True):
        values, got = p.get(), g.get()
        check_gradient(got, partial(score, p, values), values, rng)
        p[:] = values
        idle += not got.any()
    assert idle == {"one starts from the first of two": 1, "layers after the last states": 1}.get(which, 0)


def skip_thought() -> SkipThought:
    return SkipThought(7, 4, G, NOUT, GRU, G, Tanh(), Logistic(), G, Constant(0))


TWO = [(4, 3), (V, 2)]
EXPRESSIONS: dict[str, tuple[Any, Any]] = {
    "LSTM": (lambda: Seq2Seq([[kind("LSTM")], [kind("LSTM"), softmax_layer()]]), TWO),
    "two layers": (
        lambda: Seq2Seq([[kind("BiLSTM"), kind("GRU", 4)], [kind("GRU"), kind("GRU", 4), softmax_layer()]]),
        TWO,
    ),
    "other states": (lambda: Seq2Seq([[kind("LSTM")], [kind("Recurrent"), softmax_layer()]]), TWO),
    "fewer states": (lambda: Seq2Seq([[kind("GRU")], [kind("LSTM"), softmax_layer()]]), TWO),
    "normalized": (
        lambda: Seq2Seq([[BiBNRNN(NOUT, G, activation=Tanh())], [kind("Recurrent"), softmax_layer()]]),
        TWO,
    ),
    "SkipThought": (skip_thought, [(1, 4), (1, 3), (1, 2)]),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_the_op_tree_of_a_network_has_the_values_of_fprop_and_the_gradients_of_bprop(be64, rng, name, compiled):
    be, (make, shapes) = be64, EXPRESSIONS[name]
    net = allocate(be, make(), shapes)
    arrays = [rng.integers(0, 7, (F, T * N)) if F == 1 else rng.normal(size=(F, T * N)) for F, T in shapes]
    x = [be.array(a) for a in arrays]
    for _ in range(2):  # after the first fprop, layers have an init_state
        outputs = net.fprop(x)
        outputs = outputs if isinstance(outputs, list) else [outputs]
        errors = [be.array(rng.normal(size=y.shape)) for y in outputs]
        expected = [y.get() for y in outputs]
        net.bprop(errors if len(errors) > 1 else errors[0])

        def step(x: Any, errors: Any) -> Any:
            trees = net(x, training=True)
            trees = trees if isinstance(trees, list) else [trees]
            cost = sum(be.sum(y * e) for y, e in zip(trees, errors, strict=True))
            return trees, Autodiff(cost, be).get_grad_op_tree(net.parameters)

        trees, gradients = (jit(step) if compiled else step)(x, errors)
        for tree, y in zip(trees, expected, strict=True):
            close(tree.get(), y)
        for g, dw in zip(gradients, net.gradients, strict=True):
            close(g.get(), dw.get())
        assert net.is_expression
        assert passed_states.get() is None


def test_the_op_tree_of_a_recurrent_layer_starts_from_its_initial_state(be64, rng):
    be, T = be64, 3
    for layer in (kind("LSTM"), kind("GRU")):
        allocate(be, layer, (4, T))
        x, h, c = (be.array(rng.normal(size=size)) for size in ((4, T * N), (NOUT, N), (NOUT, N)))
        for state in (h, [h], [h, c][: len(layer.state_names)]):
            layer.init_state = state
            close(layer(x).get(), layer.fprop(x).get())
        layer.init_state = be.zeros((NOUT, N + 1))
        message = rf"expected as init_state h.*, each \({NOUT}, {N}\), got .*\({NOUT}, {N + 1}\)"
        with pytest.raises(ValueError, match=message):
            layer(x)


def test_deltas_of_both_inputs_are_available(be64):
    net = Seq2Seq([[kind("LSTM")], [kind("LSTM")]])
    net.needs_deltas = True
    allocate(be64, net, [(4, 2), (V, 3)])
    rng = np.random.default_rng(0)
    x, previous, e = (rng.normal(size=(f, t * N)) for f, t in ((4, 2), (V, 3), (NOUT, 3)))
    net.fprop([be64.array(x), be64.array(previous)])
    dx, dprevious = net.bprop(be64.array(e))
    (encoder,), (decoder,) = net.encoder, net.decoder
    zeros = np.zeros((NOUT, 2 * N))
    _, _, _, last, _ = textbook("LSTM", encoder.W.get(), x, zeros, 2)
    _, _, deltas, _, first = textbook("LSTM", decoder.W.get(), previous, e, 3, last)
    close(dprevious, deltas)
    close(dx, textbook("LSTM", encoder.W.get(), x, zeros, 2, last=first)[2])


# --- step by step ---------------------------------------------------------------------------------------------------


def translator(be: Backend, T: int = 4, ids: bool = False, start: int | None = None, which: str = "LSTM") -> Any:
    """Return a network whose predicted tokens differ from step to step."""
    table = [LookupTable(V, 4, Gaussian(scale=2.0))] if ids else []
    again = [LookupTable(V, 4, Gaussian(scale=2.0))] if ids else []
    decoder = Decoder([*again, kind(which, 8), softmax_layer(4.0)], start_index=start)
    return allocate(be, Seq2Seq([[*table, kind(which, 8)], decoder]), [(1 if ids else V, T)] * 2)


@pytest.mark.parametrize("which", ["LSTM", "GRU", "Recurrent"])
def test_the_decoder_reads_its_predictions(be64, which):
    T, rng = 4, np.random.default_rng(0)
    net = translator(be64, T, which=which)
    x = be64.array(rng.normal(size=(V, T * N)) * 3)
    y = net.fprop(x, inference=True)
    tokens, actual = argmax_tokens(y, T), y.get()
    assert len(np.unique(tokens)) > 1
    again = net.fprop([x, be64.array(shifted(tokens))], inference=True)
    close(again, actual, 1e-12)


@pytest.mark.parametrize("start", [None, 2])
@pytest.mark.parametrize("ids", [False, True])
def test_the_start_index_is_the_first_token_read(be, ids, start):
    T, rng = 4, np.random.default_rng(1)
    net = translator(be, T, ids, start)
    given = rng.integers(0, V, (T, N))
    x = be.array(given.reshape(1, -1) if ids else onehot(given))
    y = net.fprop(x, inference=True)
    tokens, actual = argmax_tokens(y, T), y.get()
    previous_tokens = np.vstack([np.full((1, N), start or 0), tokens[:-1]])
    previous = previous_tokens.reshape(1, -1) if ids else onehot(previous_tokens)
    if start is None and not ids:
        previous = shifted(tokens)
    again = net.fprop([x, be.array(previous)], inference=True)
    close(again, actual, 1e-5)
    np.testing.assert_array_equal(argmax_tokens(again, T), tokens)


def test_decoding_does_not_change_the_training(cpu64):
    T, rng = 4, np.random.default_rng(0)
    x, previous, e = (cpu64.array(rng.normal(size=(V, T * N))) for _ in range(3))
    net = translator(cpu64, T)

    def train_step() -> list[Array]:
        y = net.fprop([x, previous]).get()
        net.bprop(e)
        return [y, *(g.get() for g in net.gradients)]

    before = train_step()
    roots = [layer.outputs.root for layer in net.leaves() if layer.outputs is not None]
    net.fprop(x, inference=True)
    for one, other in zip(before, train_step(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [layer.outputs.root for layer in net.leaves() if layer.outputs is not None] == roots
    net.fprop(x, inference=True)
    net.set_batch_size(N - 1)
    net.set_batch_size(N)
    for one, other in zip(before, train_step(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("decode", ["greedily", "by beam search", "with an error"])
def test_the_network_is_an_expression_of_all_steps_after_decoding(cpu64, decode):
    T, rng = 4, np.random.default_rng(0)
    x, previous = (cpu64.array(rng.normal(size=(V, T * N))) for _ in range(2))
    net = translator(cpu64, T)
    before = net([x, previous]).get()
    if decode == "greedily":
        net.fprop(x, inference=True)
    elif decode == "by beam search":
        BeamSearch(net).beamsearch(x, num_beams=2)
    else:
        with pytest.raises(KeyError), net.decoding(x):
            raise KeyError
    np.testing.assert_array_equal(net([x, previous]).get(), before)
    np.testing.assert_array_equal(jit(lambda x, y: net([x, y]))(x, previous).get(), before)


def test_other_lengths_and_batch_sizes_are_processed_correctly(cpu64):
    rng = np.random.default_rng(0)
    net = translator(cpu64, 4)
    W = [layer.W.get() for layer in (*net.encoder, *net.decoder) if isinstance(layer, LSTM)]
    for T, n in ((2, 3), (4, 1), (3, 2)):
        net.set_batch_size(n)
        net.set_seq_len(T)
        assert net.in_shape == [(V, T)] * 2
        assert net.out_shape == (V, T)
        x, previous = (rng.normal(size=(V, T * n)) for _ in range(2))
        net.fprop([cpu64.array(x), cpu64.array(previous)], inference=True)
        zeros = np.zeros((8, T * n))
        outputs = long(W[1], previous, zeros, T, long(W[0], x, zeros, T)[1])[0]
        close(net.decoder.layers[0].outputs, outputs)
        y = net.fprop(cpu64.array(x), inference=True)
        assert y.shape == (V, T * n)


def long(W: Array, x: Array, e: Array, T: int, start: Any = None) -> Any:
    """Return outputs and last states of a textbook LSTM of 8."""
    actual = textbook("LSTM", W, x, e, T, start)
    return actual[0], actual[3]


# --- beam search -----------------------------------------------------------------------------------------------------


def probability(net: Any, be: Backend, x: Any, T: int, sentence: tuple[int, ...], end: int | None = None) -> Array:
    """Return the log probability of a sentence for each row, with the sentence as the inputs of the decoder."""
    tokens = np.repeat(np.array(sentence)[:, None], N, axis=1)
    y = net.fprop([x, be.array(shifted(tokens))], inference=True).get().reshape(V, T, N)
    each = np.log(y[tokens[:, 0], np.arange(T)])
    if end is not None and end in sentence:
        each = each[: sentence.index(end) + 1]
    return each.sum(axis=0)


@pytest.mark.long
@pytest.mark.parametrize("which", ["LSTM", "GRU"])
def test_enough_beams_find_all_sentences_in_order(be64, which):
    T, rng = 3, np.random.default_rng(0)
    net = translator(be64, T, which=which)
    x = be64.array(rng.normal(size=(V, T * N)))
    sentences, scores = BeamSearch(net).beamsearch(x, num_beams=V**T)
    assert sentences.shape == (N, V**T, T)
    every = list(itertools.product(range(V), repeat=T))
    table = np.array([probability(net, be64, x, T, s) for s in every])
    for n in range(N):
        order = np.argsort(-table[:, n], kind="stable")
        np.testing.assert_array_equal(sentences[n], np.array(every)[order])
        np.testing.assert_allclose(scores[n], table[order, n], rtol=1e-10)
    np.testing.assert_allclose(np.exp(scores).sum(axis=1), 1)


@pytest.mark.long
@pytest.mark.parametrize("beams", [1, 2, 4, 7])
def test_a_few_beams_match_the_reference_search(be64, beams):
    T, rng = 4, np.random.default_rng(1)
    net = translator(be64, T)
    x = be64.array(rng.normal(size=(V, T * N)))
    sentences, scores = BeamSearch(net).beamsearch(x, beams)

    def log_probabilities(prefix: tuple[int, ...]) -> Array:
        """Return the log probability of each next token: (V, N)."""
        tokens = np.array([*prefix, *[0] * (T - len(prefix))])
        y = net.fprop([x, be64.array(shifted(np.repeat(tokens[:, None], N, axis=1)))], inference=True)
        return np.log(y.get().reshape(V, T, N)[:, len(prefix)])

    for n in range(N):
        alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for _ in range(T):
            extended = [(s + log_probabilities(w)[v, n], (*w, v)) for s, w in alive for v in range(V)]
            alive = sorted(extended, key=lambda pair: -pair[0])[:beams]
        np.testing.assert_array_equal(sentences[n], [w for _, w in alive])
        np.testing.assert_allclose(scores[n], [s for s, _ in alive], rtol=1e-10)


def test_one_beam_is_greedy_decoding(be):
    T, rng = 5, np.random.default_rng(0)
    net = translator(be, T)
    x = be.array(rng.normal(size=(V, T * N)))
    tokens = argmax_tokens(net.fprop(x, inference=True), T)
    sentences, scores = BeamSearch(net).beamsearch(x, num_beams=1)
    np.testing.assert_array_equal(sentences[:, 0], tokens.T)
    assert scores.shape == (N, 1)
    longer, _ = BeamSearch(net).beamsearch(x, 1, steps=T + 2)
    assert longer.shape == (N, 1, T + 2)
    np.testing.assert_array_equal(longer[:, :, :T], sentences)


def test_more_beams_find_sentences_that_are_not_worse(cpu64):
    T, rng = 5, np.random.default_rng(3)
    net = translator(cpu64, T)
    x = cpu64.array(rng.normal(size=(V, T * N)) * 3)
    best = [BeamSearch(net).beamsearch(x, k)[1][:, 0] for k in (1, 20, 400)]
    assert (best[1] >= best[0] - 1e-12).all()
    assert (best[2] >= best[1] - 1e-12).all()
    assert (best[2] > best[0]).any()


def test_only_the_end_token_follows_the_end_token(cpu64):
    T, end, rng = 3, 1, np.random.default_rng(0)
    net = translator(cpu64, T)
    x = cpu64.array(rng.normal(size=(V, T * N)))
    sentences, scores = BeamSearch(net).beamsearch(x, V**T, end_token=end)
    every = [s for s in itertools.product(range(V), repeat=T) if end not in s or set(s[s.index(end) :]) == {end}]
    table = np.array([probability(net, cpu64, x, T, s, end) for s in every])
    for n in range(N):
        order = np.argsort(-table[:, n], kind="stable")
        np.testing.assert_array_equal(sentences[n, : len(every)], np.array(every)[order])
        np.testing.assert_allclose(scores[n, : len(every)], table[order, n], rtol=1e-10)
        assert (scores[n, len(every) :] == -np.inf).all()
    assert np.exp(scores).sum(axis=1) == pytest.approx(1)


def test_impossible_tokens_come_last(cpu):
    net = translator(cpu, 2)
    (bias,) = [layer for layer in net.decoder if layer.classnm == "Bias"]
    bias.W[:] = np.array([[0], [0], [-1e4], [0], [0]])
    x = cpu.zeros((V, 2 * N))
    sentences, scores = BeamSearch(net).beamsearch(x, V * V)
    assert np.isfinite(scores[:, :16]).all()
    assert (scores[:, 16:] == -np.inf).all()
    assert (sentences[:, 16:] == 2).any(axis=2).all()


# --- in a model -----------------------------------------------------------------------------------------------------


def digits(which: str, hidden: int, V: int = 10) -> Seq2Seq:
    """Return a network for digits, one-hot."""
    gates = {"activation": Tanh(), "gate_activation": Logistic()}
    make = {"LSTM": LSTM, "GRU": GRU}[which]
    end = Affine(V, GlorotUniform(), bias=Constant(0), activation=Softmax(), name="out")
    return Seq2Seq(
        [
            [make(hidden, GlorotUniform(), name="reads", **gates)],
            [make(hidden, GlorotUniform(), name="says", **gates), end],
        ],
        name="translator",
    )


def test_a_model_is_trained_saved_and_resumed(tmp_path):
    be = gen_backend("cpu", rng_seed=1, batch_size=8)

    def training() -> Any:
        return Reversal(3, ndata=24)

    model, data = Model(digits("GRU", 12)), training()
    model.fit(data, CrossEntropyMulti(), Adam(learning_rate=0.01), num_epochs=2)
    before = model.total_cost
    model.save_params(tmp_path / "half.neon")
    model.fit(data, CrossEntropyMulti(), model.optimizer, num_epochs=4)
    assert model.total_cost < before
    again = Model(tmp_path / "half.neon")
    assert again.layers.in_shape == [(10, 3), (10, 3)]
    assert [target.name for target, _ in again.layers.state_pairs] == ["says"]
    be.rng_reset()
    again.fit(training(), CrossEntropyMulti(), again.optimizer, num_epochs=4)
    assert again.get_weights().keys() == model.get_weights().keys() == {"reads.W", "says.W", "out.W", "out_bias.W"}
    for name, array in model.get_weights().items():
        np.testing.assert_array_equal(again.get_weights()[name], array, err_msg=name)
    np.testing.assert_array_equal(again.get_outputs(training()), model.get_outputs(training()))
    assert model.get_outputs(training()).shape == (24, 3, 10)


def test_a_training_continues_after_decoding():
    weights = []
    for decodes in (False, True):
        be = gen_backend("cpu", rng_seed=1, batch_size=8)
        model, data = Model(digits("GRU", 12)), Reversal(3, ndata=24)
        model.fit(data, CrossEntropyMulti(), Adam(learning_rate=0.01), num_epochs=1)
        accuracy = model.eval(data, Accuracy())
        if decodes:
            x = be.array(onehot(np.arange(24).reshape(3, 8) % 10, 10))
            BeamSearch(model.layers).beamsearch(x, num_beams=2)
            np.testing.assert_array_equal(model.eval(data, Accuracy()), accuracy)
        model.fit(data, CrossEntropyMulti(), model.optimizer, num_epochs=3)
        weights.append(model.get_weights())
    for name, array in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], array, err_msg=name)


def test_a_model_is_evaluated_on_its_predictions(cpu):
    cpu.bsz, T = 4, 3
    model = Model(digits("GRU", 6))
    model.initialize(Reversal(T))
    data = Reversal(T, ndata=10, get_prev_target=False)
    score = model.eval(data, Accuracy())[0]
    outputs = model.get_outputs(data)
    right = []
    for x, t in data:
        tokens = argmax_tokens(model.fprop(x, inference=True), T)
        right.append(tokens == argmax_tokens(t, T))
    assert outputs.shape == (10, T, 10)
    assert score == pytest.approx(np.concatenate(right, axis=1)[:, :10].mean())
    np.testing.assert_array_equal(outputs.argmax(axis=2)[8:, :], tokens.T[:2])


@pytest.mark.parametrize("source_only", [False, True])
def test_a_model_decodes_by_beam_search(cpu, source_only):
    cpu.bsz, T = 4, 3
    model = Model(digits("LSTM", 6))
    model.initialize(Reversal(T))

    def data() -> Any:
        return Reversal(T, ndata=10, get_prev_target=not source_only)

    actual = {k: model.get_outputs_beam(data(), k) for k in (0, 1, 3)}
    assert {tokens.shape for tokens in actual.values()} == {(10, T)}
    np.testing.assert_array_equal(actual[0], actual[1])
    search = BeamSearch(model.layers)
    for k in (1, 3):
        expected = [search.beamsearch(x if source_only else x[0], k)[0][:, 0] for x, _ in data()]
        np.testing.assert_array_equal(actual[k], np.concatenate(expected)[:10])
    assert model.get_outputs_beam(data(), 2, steps=5).shape == (10, 5)
    with pytest.raises(TypeError, match="BeamSearch: expected a Seq2Seq"):
        Model([Affine(2, G)]).get_outputs_beam(data())


def test_minibatches_of_sentences_are_independent(cpu):
    net = allocate(cpu, digits("LSTM", 6), [(10, 3), (10, 3)])
    x = [cpu.array(np.random.default_rng(0).normal(size=(10, 3 * N))) for _ in range(2)]
    first = net.fprop(x).get()
    net.fprop(x[::-1])
    np.testing.assert_array_equal(net.fprop(x).get(), first)
    assert [layer.get_state() for layer in net.leaves()] == [{}] * 5


def test_masked_steps_do_not_contribute_to_training(cpu64):
    net = allocate(cpu64, Seq2Seq([[kind("GRU")], [kind("GRU"), softmax_layer()]]), [(4, 2), (V, 3)])
    cost, rng = GeneralizedCostMask(CrossEntropyMulti()), np.random.default_rng(0)
    model = Model(net)
    x = [cpu64.array(rng.normal(size=(f, t * N))) for f, t in ((4, 2), (V, 3))]
    model.initialize(net.in_shape, cost)
    t, mask = onehot(rng.integers(0, V, (3, N))), cpu64.array(np.array([[1.0] * N + [0.0] * 2 * N]))
    model.optimizer = GradientDescentMomentum(0.0, 0.0)
    actual = []
    for other in (0, 1):
        t[:, N:] = np.roll(t[:, N:], other, axis=0)
        model.train_step(x, (cpu64.array(t), mask))
        actual.append([g.get() for g in net.gradients])
    for one, two in zip(*actual, strict=True):
        np.testing.assert_array_equal(one, two)
    assert actual[0][0].any()


def test_a_network_is_recreated_from_its_description(cpu):
    net = Seq2Seq(
        [
            Encoder([LookupTable(6, 3, G), kind("GRU", name="low"), kind("GRU", name="high")], name="enc"),
            Decoder([kind("GRU", name="d"), softmax_layer()], start_index=2, name="dec"),
        ],
        decoder_connections=[1],
        name="net",
    )
    description = json.loads(json.dumps(net.get_description()))
    again = Layer.recursive_gen(description)
    assert again.get_description() == net.get_description()
    assert [(target.name, source.name) for target, source in again.state_pairs] == [("d", "high")]
    assert (type(again.encoder), type(again.decoder), again.decoder.start_index) == (Encoder, Decoder, 2)
    for x in (net, again):
        allocate(cpu, x, [(1, 2), (V, 3)])
    again.load_weights(net.serialize())
    data = [cpu.array(np.arange(6)[None] % 6), cpu.ones((V, 9))]
    np.testing.assert_array_equal(again.fprop(data).get(), net.fprop(data).get())


def test_a_summary_and_a_copy(cpu):
    cpu.bsz = N
    net = digits("LSTM", 6)
    summary = net.summary([(10, 3), (10, 3)], GeneralizedCost(CrossEntropyMulti()), Adam())
    assert net.in_shape is None
    assert {row.name: row.parameters for row in summary.rows if row.parameters} == {
        "reads": 24 * 17,
        "says": 24 * 17,
        "out": 60,
        "out_bias": 10,
    }
    assert all(row.flops for row in summary.rows if row.parameters)
    allocate(cpu, net, [(10, 3), (10, 3)])
    x = cpu.array(np.random.default_rng(0).normal(size=(10, 3 * N)))
    one = net.fprop(x, inference=True).get()
    other = copy.deepcopy(net)
    np.testing.assert_array_equal(other.fprop(x, inference=True).get(), one)
    assert {source.name for _, source in other.state_pairs} == {"reads"}
    assert other.state_pairs[0][1] is other.encoder.layers[0]


def test_a_step_allocates_nothing():
    be, T = gen_backend("cpu", rng_seed=1, batch_size=16), 5
    net = Seq2Seq([[kind("LSTM", 32)], [kind("LSTM", 32), softmax_layer()]])
    allocate(be, net, [(24, T), (V, T)], 16)
    cost, optimizer, rng = GeneralizedCost(CrossEntropyMulti()), Adam(gradient_clip_norm=5.0), np.random.default_rng(0)
    cost.initialize(net)
    x = [be.array(rng.normal(size=(f, T * 16))) for f in (24, V)]
    t = be.array(onehot(rng.integers(0, V, (T, 16))))

    def step() -> None:
        net.bprop(cost.get_errors(net.fprop(x), t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)

    step()
    step()
    assert buffers(step) == []


@pytest.mark.slow
@pytest.mark.parametrize("which", ["LSTM", "GRU"])
def test_digits_are_reversed(which):
    gen_backend("cpu", rng_seed=1, batch_size=64)
    model = Model(digits(which, 64))
    optimizer = Adam(learning_rate=0.01, gradient_clip_norm=5.0, schedule=PolySchedule(10, 1.0))
    model.fit(Reversal(5, ndata=6400), CrossEntropyMulti(), optimizer, num_epochs=9)
    data = Reversal(5, ndata=1024, seed=7, get_prev_target=False)
    search, right = BeamSearch(model.layers), []
    for x, t in data:
        expected = argmax_tokens(t, 5)
        tokens = argmax_tokens(model.fprop(x, inference=True), 5)
        sentences, _ = search.beamsearch(x, num_beams=3)
        right.append([(tokens == expected).all(axis=0), (expected == sentences[:, 0].T).all(axis=0)])
    greedy, beam = np.concatenate(right, axis=1).mean(axis=1)
    assert greedy > 0.99
    assert beam > 0.99


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "connections", "message"),
    [
        ([[]], None, "expected two layers, an encoder and a decoder, each a layer or a list of layers, got 1: list"),
        (
            ["LSTM", ""],
            None,
            r"expected at least one recurrent layer .*those of the encoder: enc0; of the decoder: none",
        ),
        (
            ["LSTM LSTM", "LSTM"],
            None,
            r"expected as many recurrent .* those of the encoder: enc0, enc1; of the decoder: dec0",
        ),
        (["LSTM", "LSTM LSTM"], [0], r"expected decoder_connections of 2 integers from 0 to 0, got \[0\]"),
        (["LSTM", "LSTM"], [1], r"expected decoder_connections of 1 integers from 0 to 0, got \[1\]"),
        (["LSTM", "LSTM"], [-1], r"integers from 0 to 0, got \[-1\]"),
        (["LSTM", "LSTM"], "0", r"expected decoder_connections of 1 integers from 0 to 0, got '0'"),
        (["LSTM", "LSTM"], 0, r"expected decoder_connections of 1 integers from 0 to 0, got 0"),
        (
            ["LSTM", "GRU4"],
            None,
            r"expected the same output_size of dec0 \(decoder\) and enc0 \(encoder\), .* got 4 and 3",
        ),
        (["LSTM GRU", "LSTM LSTM4"], None, r"of dec1 \(decoder\) and enc1 \(encoder\), .* got 4 and 3"),
        (
            ["LSTM", "BiLSTM"],
            None,
            "expected a unidirectional recurrent layer in the decoder, got the bidirectional dec0. Use LSTM or GRU",
        ),
    ],
)
def test_layers_that_do_not_match_are_reported(cpu, layers, connections, message):
    def part(text: Any, name: str) -> list[Any]:
        layers = [
            kind(w.rstrip("4"), 4 if w.endswith("4") else NOUT, name=f"{name}{i}") for i, w in enumerate(text.split())
        ]
        return [*layers, softmax_layer()]

    parts = [part(x, name) if isinstance(x, str) else x for x, name in zip(layers, ("enc", "dec"), strict=False)]
    with pytest.raises(ValueError, match=f"both: .*{message}"):
        Seq2Seq(parts, connections, name="both")


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: kind("LSTM"), "got 1: LSTM"),
        (lambda: [kind("LSTM"), kind("LSTM"), softmax_layer()], "got 3: LSTM, LSTM, Affine"),
        (lambda: [Encoder([kind("LSTM")]), Decoder([kind("LSTM")]), Decoder([kind("LSTM")])], "got 3: Encoder, Dec"),
        (lambda: [Decoder([kind("LSTM")]), Encoder([kind("LSTM")])], "got 2: Decoder, Encoder"),
        (lambda: [[kind("LSTM")], Encoder([kind("LSTM")])], "got 2: list, Encoder"),
        (lambda: "two", "got 1: str"),
        (lambda: None, "got 1: NoneType"),
    ],
)
def test_layers_are_an_encoder_and_a_decoder(cpu, make, given):
    with pytest.raises(ValueError, match=f"both: expected two layers, an encoder and a decoder, .*, {given}"):
        Seq2Seq(make(), name="both")


@pytest.mark.parametrize(("one", "two"), [*itertools.product(["LSTM", "GRU", "Recurrent"], repeat=2)])
def test_layers_of_any_type_connect_if_their_sizes_match(cpu, one, two):
    net = allocate(cpu, Seq2Seq([[kind(one)], [kind(two), softmax_layer()]]), [(4, 2), (V, 3)])
    ((target, source),) = net.state_pairs
    net.fprop([cpu.ones((4, 2 * N)), cpu.ones((V, 3 * N))])
    assert len(target.init_state) == min(len(source.final_states), len(target.final_states))


def test_data_without_time_steps_is_rejected_with_a_hint(cpu):
    cpu.bsz = 4
    model = Model(Seq2Seq([[kind("LSTM")], [kind("LSTM"), softmax_layer()]], name="both"))
    flat = ArrayIterator(np.ones((8, V)), np.zeros(8, int), nclass=V)
    message = r"both: expected two shapes \(F, T\), .* got 5. Give the data set shape = \[\(F, T\), \(V, S\)\]"
    with pytest.raises(ValueError, match=message):
        model.fit(flat, CrossEntropyMulti(), Adam(), num_epochs=1)


def test_a_sequence_of_another_length_is_rejected(cpu):
    net = Seq2Seq([[kind("LSTM")], [kind("LSTM"), softmax_layer()]], name="both")
    for x in (cpu.zeros((4, 2 * N)), [cpu.zeros((4, 2 * N)), cpu.zeros((V, 3 * N))]):
        with pytest.raises(
            RuntimeError, match=r"both: expected a configured layer, got one without shapes. Call configure"
        ):
            net.fprop(x, inference=True)
    allocate(cpu, net, [(4, 2), (V, 3)])
    x, previous = cpu.zeros((4, 2 * N)), cpu.zeros((V, 3 * N))
    for wrong in ([cpu.zeros((4, 5 * N)), previous], [cpu.zeros((3, 2 * N)), previous], cpu.zeros((4, 2 * N + 1))):
        message = rf"both: expected inputs x of shape \(4, {2 * N}\) \(layer shape \(4, 2\), batch size {N}\), got"
        with pytest.raises(ValueError, match=message):
            net.fprop(wrong, inference=True)
    with pytest.raises(ValueError, match=rf"both: expected inputs previous of shape \(5, {3 * N}\) .*\(5, 12\)"):
        net.fprop([x, cpu.zeros((V, 4 * N))])
    with pytest.raises(TypeError, match=r"both: expected inputs previous as a tensor, got None"):
        net.fprop([x, None])
    net.set_seq_len(50)  # longer than the allocated buffers
    assert net.fprop([cpu.zeros((4, 50 * N)), cpu.zeros((V, 50 * N))]).shape == (V, 50 * N)


@pytest.mark.parametrize("shape", [[(4, 2)], 5, [5, (V, 3)], [(4, 2), (V, 3), (V, 3)], [(4, 2), (2, 3, 3)]])
def test_two_shapes_with_time_steps_are_needed(cpu, shape):
    net = Seq2Seq([[kind("LSTM")], [kind("LSTM")]], name="both")
    with pytest.raises(
        ValueError, match=r"both: expected two shapes \(F, T\), of the inputs of the encoder and of the decoder, got"
    ):
        net.configure(shape)


def test_inputs_are_those_of_both(cpu):
    net = allocate(cpu, Seq2Seq([[kind("LSTM")], [kind("LSTM"), softmax_layer()]], name="both"), [(4, 2), (V, 3)])
    x, previous = cpu.zeros((4, 2 * N)), cpu.zeros((V, 3 * N))
    for wrong in (x, [x], [x, previous, x]):
        with pytest.raises(
            ValueError, match=r"both: expected inputs \[x, previous\], of the encoder and of the decoder"
        ):
            net.fprop(wrong)
    with pytest.raises(RuntimeError, match="both: bprop: expected a training fprop before it"):
        net.bprop(cpu.zeros((V, 3 * N)))
    net.fprop(x, inference=True)
    with pytest.raises(RuntimeError, match="both: bprop: expected a training fprop before it"):
        net.bprop(cpu.zeros((V, 3 * N)))
    with pytest.raises(ValueError, match="expected alpha=1 and beta=0, got"):
        net.fprop([x, previous], beta=1.0)
    with pytest.raises(ValueError, match=r"expected inputs x of shape \(4, 6\)"):
        net.fprop([cpu.zeros((4, 9)), previous])


def test_a_decoder_that_cannot_read_its_predictions_is_rejected(cpu):
    net = allocate(cpu, Seq2Seq([[kind("LSTM")], Decoder([kind("LSTM"), softmax_layer()], name="d")]), [(4, 2), (4, 3)])
    with pytest.raises(ValueError, match=r"d: expected inputs of token ids \(1, T\) or one-hot \(5, T\), .*4"):
        net.fprop(cpu.zeros((4, 2 * N)), inference=True)


@pytest.mark.parametrize("start", [-1, 1.5, True, "go"])
def test_the_start_index_is_a_token_id(cpu, start):
    with pytest.raises((TypeError, ValueError), match="d: expected an integer >= 0 for start_index, got"):
        Decoder([kind("LSTM")], start_index=start, name="d")


def test_beam_search_arguments_are_integers(cpu):
    net = translator(cpu, 3)
    search, x = BeamSearch(net), cpu.zeros((V, 3 * N))
    for options, message in (
        ({"num_beams": 0}, "expected an integer >= 1 for num_beams, got 0"),
        ({"steps": 1.5}, "expected an integer >= 1 for steps, got 1.5"),
        ({"end_token": V}, "expected an integer from 0 to 4 for end_token, got 5"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            search.beamsearch(x, **options)
    with pytest.raises(TypeError, match="BeamSearch: expected a Seq2Seq for seq2seq, got"):
        BeamSearch(Sequential([kind("LSTM")]))
