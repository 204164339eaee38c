"""SkipThought against textbook loops, torch and numerical gradients; training and checkpoints
(neonlite/layers/seq2seq.py)."""

from __future__ import annotations

import copy
import json
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.allocations import buffers
from helpers.networks import check_gradient
from helpers.recurrent_textbook import NOUT, close, textbook

from neonlite import Backend, gen_backend
from neonlite.initializers import Constant, Gaussian, GlorotUniform
from neonlite.layers import (
    GRU,
    LSTM,
    Affine,
    BiLSTM,
    Decoder,
    Encoder,
    GeneralizedCost,
    GeneralizedCostMask,
    Layer,
    Linear,
    LookupTable,
    Multicost,
    Recurrent,
    SkipThought,
)
from neonlite.layers.recurrent import RecurrentBase
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti, Logistic, Softmax, Tanh

Array = np.ndarray[Any, Any]
G = Gaussian(scale=0.4)
V, E, N = 7, 4, 3  # vocabulary size, embedding size, batch size
LENGTHS = 4, 3, 2
KINDS: dict[str, Any] = {"GRU": GRU, "LSTM": LSTM, "Recurrent": Recurrent}
every_kind = pytest.mark.parametrize("which", KINDS)


def allocate(be: Backend, net: Any, lengths: Any = LENGTHS, N: int = N) -> Any:
    """Return an allocated network."""
    be.bsz = N
    net.configure([(1, T) for T in lengths])
    net.allocate()
    net.allocate_deltas()
    return net


def thought(which: Any = "GRU", nhidden: int = NOUT, vocab: int = V, **options: Any) -> SkipThought:
    kind = KINDS.get(which, which) if isinstance(which, str) else which
    return SkipThought(vocab, E, G, nhidden, kind, G, Tanh(), Logistic(), G, Constant(0.1), **options)


def random_ids(rng: Any, lengths: Any = LENGTHS, N: int = N, lowest: int = 1) -> list[Array]:
    return [rng.integers(lowest, V, (1, T * N)) for T in lengths]


def layers_of(net: Any, which: type) -> list[Any]:
    return [layer for layer in net.leaves() if isinstance(layer, which)]


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(axis=0))
    return e / e.sum(axis=0)


# --- outputs and gradients ------------------------------------------------------------------------------------------


@every_kind
def test_outputs_and_all_gradients_match_the_textbook_loops(be64, which):
    rng = np.random.default_rng(0)
    net = allocate(be64, thought(which))
    ids = random_ids(rng)
    errors = [rng.normal(size=(V, T * N)) for T in LENGTHS[1:]]
    y = net.fprop([be64.array(x, dtype="int32") for x in ids])
    assert y is net.outputs
    net.bprop([be64.array(e) for e in errors])

    table, (encoder, *decoders) = net.table.W.get(), layers_of(net, RecurrentBase)
    vectors = [table[x[0]].T for x in ids]
    zeros = np.zeros((NOUT, LENGTHS[0] * N))
    last = textbook(which, encoder.W.get(), vectors[0], zeros, LENGTHS[0])[3]
    dtable, back = np.zeros_like(table), []
    for i, layer in enumerate(decoders):
        T, x = LENGTHS[i + 1], vectors[i + 1]
        W, b = layers_of(net, Linear)[i].W.get(), np.full((V, 1), 0.1)
        h = textbook(which, layer.W.get(), x, np.zeros((NOUT, T * N)), T, last)[0]
        p = softmax(W @ h + b)
        close(y[i], p)
        dz = p * (errors[i] - (p * errors[i]).sum(axis=0))
        _, dW, dx, _, first = textbook(which, layer.W.get(), x, W.T @ dz, T, last)
        close(layers_of(net, Linear)[i].dW, dz @ h.T)
        close(layer.dW, dW)
        np.add.at(dtable, ids[i + 1][0], dx.T)
        back.append(first)
    both = [a + b for a, b in zip(*back, strict=True)]
    _, dW, dx, _, _ = textbook(which, encoder.W.get(), vectors[0], zeros, LENGTHS[0], last=both)
    close(encoder.dW, dW)
    np.add.at(dtable, ids[0][0], dx.T)
    close(net.table.dW, dtable)


@every_kind
def test_gradients_of_both_costs_match_numerical_gradients(which):
    be, rng = gen_backend("cpu", rng_seed=1, datatype=np.float64), np.random.default_rng(1)
    net, weights = allocate(be, thought(which)), (1.0, 0.5)
    costs = Multicost([GeneralizedCostMask(CrossEntropyMulti()) for _ in weights], weights)
    costs.initialize(net)
    x = [be.array(w, dtype="int32") for w in random_ids(rng, lowest=0)]
    t = []
    for T in LENGTHS[1:]:
        mask = np.array([[1] * N] + [[1] * (N - 1) + [0]] * (T - 1)).reshape(1, -1)
        t.append((be.array(np.eye(V)[rng.integers(0, V, T * N)].T), be.array(mask)))

    def score(p: Any, values: Any) -> float:
        if p is net.table.W:
            values[0] = 0  # the padding token
        p[:] = values
        each = zip(costs.costs, weights, net.fprop(x), t, strict=True)
        return sum(w * float(cost.get_cost(y, u).item()) * y.shape[1] for cost, w, y, u in each)

    y = net.fprop(x)
    net.bprop(costs.get_errors(y, t))
    for p, g in zip(net.parameters, net.gradients, strict=True):
        values, got = p.get(), g.get()
        assert got.any(), p.name
        if p is net.table.W:
            assert not got[0].any()
            assert not values[0].any()
        check_gradient(got, partial(score, p, values), values, rng)
        p[:] = values


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_torch_computes_the_same_with_one_table_for_all_three():
    import torch

    be, rng = gen_backend("cpu", rng_seed=1, datatype=np.float64), np.random.default_rng(2)
    net, ids = allocate(be, thought("LSTM")), random_ids(np.random.default_rng(2), lowest=0)
    targets = [rng.integers(0, V, T * N) for T in LENGTHS[1:]]
    costs = Multicost([GeneralizedCost(CrossEntropyMulti()) for _ in targets])
    costs.initialize(net)
    y = net.fprop([be.array(x, dtype="int32") for x in ids])
    t = [be.array(np.eye(V)[each].T) for each in targets]
    cost = costs.get_cost(y, t).item()
    net.bprop(costs.get_errors(y, t))

    order = np.r_[0 : 2 * NOUT, 3 * NOUT : 4 * NOUT, 2 * NOUT : 3 * NOUT]  # torch has the gates i f g o

    def peer(layer: Any) -> Any:
        lstm = torch.nn.LSTM(E, NOUT, dtype=torch.float64)
        for name, own in {"weight_ih": "W_input", "weight_hh": "W_recur", "bias_ih": "b"}.items():
            value = torch.tensor(getattr(layer, own).get()[order])
            getattr(lstm, f"{name}_l0").data = value[:, 0] if own == "b" else value
        lstm.bias_hh_l0.data.zero_()
        return lstm

    table = torch.nn.Embedding(V, E, padding_idx=0, dtype=torch.float64)
    table.weight.data = torch.tensor(net.table.W.get())
    readers = [peer(layer) for layer in layers_of(net, LSTM)]
    heads = [torch.tensor(layer.W.get(), requires_grad=True) for layer in layers_of(net, Linear)]
    embedded = [table(torch.tensor(x.reshape(T, N))) for x, T in zip(ids, LENGTHS, strict=True)]
    _, state = readers[0](embedded[0])
    total: Any = 0
    for reader, head, x, target in zip(readers[1:], heads, embedded[1:], targets, strict=True):
        z = reader(x, state)[0] @ head.T + 0.1
        total = total + torch.nn.functional.cross_entropy(z.reshape(-1, V), torch.tensor(target), reduction="sum")
    total.backward()
    mean = sum(np.log(1 / p.get()[w, np.arange(len(w))]).mean() for p, w in zip(y, targets, strict=True))
    assert cost == pytest.approx(mean)
    close(net.table.dW, table.weight.grad.numpy())
    assert not net.table.dW.get()[0].any()
    for layer, reader in zip(layers_of(net, LSTM), readers, strict=True):
        close(layer.dW_input, reader.weight_ih_l0.grad.numpy()[order])
        close(layer.dW_recur, reader.weight_hh_l0.grad.numpy()[order])
        close(layer.db, reader.bias_ih_l0.grad.numpy()[order][:, None])
    for layer, head in zip(layers_of(net, Linear), heads, strict=True):
        close(layer.dW, head.grad.numpy())


@pytest.mark.parametrize("which", ["GRU", "LSTM"])
def test_a_single_sentence_has_a_vector(be64, which):
    net, rng = allocate(be64, thought(which)), np.random.default_rng(3)
    ids = random_ids(rng)
    x = [be64.array(each, dtype="int32") for each in ids]
    net.fprop(x)
    vectors = net.fprop(x[0], inference=True)
    assert vectors.shape == (NOUT, N)
    (encoder, *_), table = layers_of(net, RecurrentBase), net.table.W.get()
    T = LENGTHS[0]
    close(vectors, textbook(which, encoder.W.get(), table[ids[0][0]].T, np.zeros((NOUT, T * N)), T)[3][0])
    with pytest.raises(RuntimeError, match="bprop: expected a training fprop before it"):
        net.bprop([be64.zeros((V, T * N)) for T in LENGTHS[1:]])


def test_other_lengths_and_batch_sizes_give_the_results_of_a_new_network(be64):
    net = allocate(be64, thought("LSTM"))
    weights = [p.get() for p in net.parameters]
    for step, n in ((5, 3), (2, 1), (4, 2)):
        net.set_batch_size(n)
        net.set_seq_len(step)
        fresh, actual = allocate(be64, thought("LSTM"), [step] * 3, n), []
        assert (net.in_shape, net.out_shape) == (fresh.in_shape, fresh.out_shape)
        for p, w in zip(fresh.parameters, weights, strict=True):
            p[:] = w
        for each in (net, fresh):
            rng = np.random.default_rng(step)
            y = each.fprop([be64.array(x, dtype="int32") for x in random_ids(rng, [step] * 3, n)])
            each.bprop([be64.array(rng.normal(size=(V, step * n))) for _ in range(2)])
            actual.append([t.get() for t in (*y, *each.gradients)])
        for one, other in zip(*actual, strict=True):
            np.testing.assert_array_equal(one, other)


def test_token_ids_may_be_rows(be64):
    rng, actual = np.random.default_rng(0), []
    ids, errors = random_ids(rng), [rng.normal(size=(V, T * N)) for T in LENGTHS[1:]]
    net = allocate(be64, thought("GRU"))
    weights = [p.get() for p in net.parameters]
    for rows in (False, True):
        be64.bsz = N
        net = thought("GRU")
        net.configure([(T, 1) if rows else (1, T) for T in LENGTHS])
        net.allocate()
        net.allocate_deltas()
        for p, w in zip(net.parameters, weights, strict=True):
            p[:] = w
        shapes = [(T, N) if rows else (1, T * N) for T in LENGTHS]
        y = net.fprop([be64.array(x.reshape(shape), dtype="int32") for x, shape in zip(ids, shapes, strict=True)])
        net.bprop([be64.array(e) for e in errors])
        actual.append([t.get() for t in (*y, *net.gradients)])
    for one, other in zip(*actual, strict=True):
        np.testing.assert_array_equal(one, other)
    net.set_seq_len(2)
    assert net.in_shape == [(2, 1)] * 3


def test_gradients_accumulate_if_requested(cpu):
    cpu.bsz = N
    net, rng = thought(), np.random.default_rng(0)
    net.configure([(1, T) for T in LENGTHS])
    net.allocate(accumulate_updates=True)
    net.allocate_deltas()
    total: Any = 0
    batches = [(random_ids(rng), [rng.normal(size=(V, T * N)) for T in LENGTHS[1:]]) for _ in range(3)]

    def train_step(ids: Any, errors: Any) -> Array:
        net.fprop([cpu.array(x, dtype="int32") for x in ids])
        net.bprop([cpu.array(e) for e in errors])
        return np.concatenate([g.get().ravel() for g in net.gradients])

    for batch in batches:
        total = total + train_step(*batch)
    for i, batch in enumerate(batches):
        net.set_acc_on(i > 0)
        actual = train_step(*batch)
    np.testing.assert_allclose(actual, total, rtol=1e-5, atol=1e-5)


def test_a_step_allocates_nothing():
    be, rng, size = gen_backend("cpu", rng_seed=1), np.random.default_rng(0), 16
    net = allocate(be, thought("LSTM", 32), [5, 4, 4], size)
    costs, optimizer = Multicost([GeneralizedCost(CrossEntropyMulti()) for _ in range(2)]), Adam()
    costs.initialize(net)
    x = [be.array(w, dtype="int32") for w in random_ids(rng, [5, 4, 4], size)]
    t = [be.array(np.eye(V)[rng.integers(0, V, 4 * size)].T) for _ in range(2)]

    def step() -> None:
        net.bprop(costs.get_errors(net.fprop(x), t))
        optimizer.optimize(net.layers_to_optimize, epoch=0)

    step()
    step()
    assert buffers(step) == []


# --- training on sentences ------------------------------------------------------------------------------------------

LENGTH, PAD = 4, "<pad>"
STORIES = [
    f"{who} {goes} out . the sun is up . {who} {buys} a {what} ."
    for who, goes, buys, what in [
        ("ann", "walks", "picks", "rose"),
        ("bob", "runs", "takes", "stone"),
        ("eve", "rides", "buys", "melon"),
    ]
]


class Triples:
    """Minibatches of sentences with the previous and the next one, as token ids; 0 is padding."""

    def __init__(self, be: Backend, sentences_only: bool = False) -> None:
        self.be, self.sentences_only = be, sentences_only
        sentences = [[each.split() for each in story.split(".")[:-1]] for story in STORIES]
        self.vocab = [PAD, ".", *sorted({word for story in sentences for each in story for word in each})]
        ids = [[[self.vocab.index(word) for word in each] for each in story] for story in sentences]
        self.triples = [
            (self.pad_left(story[i]), [*self.pad_right(story[i - 1]), *self.pad_right(story[i + 1])])
            for story in ids
            for i in range(1, len(story) - 1)
        ] * 4
        self.sentences = [self.pad_left(each) for story in ids for each in story]
        self.ndata = len(self.sentences if sentences_only else self.triples)
        self.shape = [(1, LENGTH), (1, LENGTH + 1), (1, LENGTH + 1)]
        self.nbatches = -(-self.ndata // be.bsz)

    def pad_left(self, ids: list[int]) -> list[int]:
        return [0] * (LENGTH - len(ids)) + ids

    def pad_right(self, ids: list[int]) -> list[int]:
        return [*ids, 1] + [0] * (LENGTH - len(ids))

    def reset(self) -> None:
        pass

    def __iter__(self) -> Any:
        n, be = self.be.bsz, self.be
        for k in range(self.nbatches):
            rows = [(k * n + i) % self.ndata for i in range(n)]
            if self.sentences_only:
                yield be.array(np.array([self.sentences[i] for i in rows]).T.reshape(1, -1), dtype="int32"), None
                continue
            x = np.array([self.triples[i][0] for i in rows]).T
            pair = np.array([self.triples[i][1] for i in rows]).T.reshape(2, LENGTH + 1, n)
            shifted = np.concatenate([np.zeros((2, 1, n), int), pair[:, :-1]], axis=1)
            inputs = [be.array(a.reshape(1, -1), dtype="int32") for a in (x, *shifted)]
            targets = [np.eye(len(self.vocab))[a.ravel()].T for a in pair]
            yield inputs, [(be.array(t), be.array((a != 0).reshape(1, -1))) for t, a in zip(targets, pair, strict=True)]


def costs() -> Multicost:
    return Multicost([GeneralizedCostMask(CrossEntropyMulti()) for _ in range(2)])


def reader(vocab: int) -> SkipThought:
    init = GlorotUniform()
    return SkipThought(
        vocab, 8, Gaussian(scale=0.1), 16, GRU, init, Tanh(), Logistic(), init, Constant(0), name="thoughts"
    )


@pytest.mark.long
def test_a_model_learns_to_predict_the_neighboring_sentences():
    be = gen_backend("cpu", rng_seed=1, batch_size=6)
    data = Triples(be)
    model, actual = Model(reader(len(data.vocab))), []
    for epoch in (1, 100):
        model.fit(data, costs(), Adam(learning_rate=0.02), num_epochs=epoch)
        actual.append(model.total_cost)
    assert actual[1] < 0.4 * actual[0]
    assert model.eval_cost(data) == pytest.approx(actual[1], rel=0.1)
    # "the sun is up" is the same in each story, so only its neighbors identify the story
    (x, _), *_ = data
    before, after = model.fprop(x, inference=True)
    decoded = [[data.vocab[w] for w in y.get().argmax(axis=0).reshape(LENGTH + 1, -1)[:, 0]] for y in (before, after)]
    assert decoded[0][2:4] == ["out", "."]
    assert decoded[1][2] == "a"
    assert decoded[1][4] == "."


def test_sentences_become_vectors_in_a_model():
    be = gen_backend("cpu", rng_seed=1, batch_size=4)
    data, sentences = Triples(be), Triples(be, sentences_only=True)
    model = Model(reader(len(data.vocab)), data)
    vectors = model.get_outputs(sentences)
    assert vectors.shape == (9, 16)
    one = [story for story in range(9) if story % 3 == 1]
    np.testing.assert_array_equal(vectors[one[0]], vectors[one[1]])  # the same sentence
    assert abs(vectors[0] - vectors[3]).max() > 1e-3  # and another


def test_a_model_is_saved_and_training_resumes(tmp_path):
    be = gen_backend("cpu", rng_seed=1, batch_size=6)
    data = Triples(be)
    model = Model(reader(len(data.vocab)))
    model.fit(data, costs(), Adam(learning_rate=0.02), num_epochs=2)
    model.save_params(tmp_path / "half.neon")
    again = Model(tmp_path / "half.neon")
    assert type(again.layers) is SkipThought
    assert again.layers.in_shape == model.layers.in_shape
    assert [(target.name, source.name) for target, source in again.layers.state_pairs] == [
        ("thoughts_before", "thoughts_sentence"),
        ("thoughts_after", "thoughts_sentence"),
    ]
    for each in (model, again):
        each.fit(data, costs(), each.optimizer, num_epochs=4)
    assert set(model.get_weights()) == {
        *(f"thoughts_{what}.W" for what in ("table", "sentence", "before", "after")),
        *(f"thoughts_{what}_words{b}.W" for what in ("before", "after") for b in ("", "_bias")),
    }
    for name, array in model.get_weights().items():
        np.testing.assert_array_equal(again.get_weights()[name], array, err_msg=name)


def test_a_network_is_recreated_from_its_description_and_copied(cpu):
    net = allocate(cpu, thought("LSTM", name="net"))
    description = json.loads(json.dumps(net.get_description()))
    again = Layer.recursive_gen(description)
    assert again.get_description() == net.get_description()
    assert description["config"]["rec_layer"] == "neonlite.layers.recurrent.LSTM"
    allocate(cpu, again).load_weights(net.serialize())
    x = [cpu.array(w, dtype="int32") for w in random_ids(np.random.default_rng(0))]
    expected = [y.get() for y in net.fprop(x)]
    other = copy.deepcopy(net)
    assert {source for _, source in other.state_pairs} == {other.encoder.layers[0]}
    for each in (again, other):
        for y, z in zip(each.fprop(x), expected, strict=True):
            np.testing.assert_array_equal(y.get(), z)


def test_user_layers_replace_the_default_layers(cpu):
    def gru(nout: int = NOUT) -> Any:
        return GRU(nout, G, activation=Tanh(), gate_activation=Logistic())

    def decoder() -> Decoder:
        return Decoder([gru(), gru(2), Affine(5, G, activation=Softmax())])

    layers = [LookupTable(9, 3, G), Encoder([gru(), gru(2)]), decoder(), decoder()]
    net = allocate(cpu, thought("GRU", layers=layers))
    assert net.out_shape == [(5, 3), (5, 2)]
    assert len(net.state_pairs) == 4
    assert net.fprop(cpu.ones((1, 4 * N)), inference=True).shape == (2, N)


def test_a_summary_counts_each_table_once(cpu):
    cpu.bsz = N
    summary = thought("GRU", name="net").summary([(1, T) for T in LENGTHS], costs(), Adam())
    weights = {row.name: row.parameters for row in summary.rows if row.parameters}
    assert weights["net_table"] == V * E
    assert summary.parameters == V * E + 3 * (E + NOUT + 1) * 3 * NOUT + 2 * V * (NOUT + 1)


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BiLSTM, Linear, GRU(2, G, activation=Tanh(), gate_activation=Logistic()), None, 3])
def test_rec_layer_is_a_class_of_recurrent_layers(cpu, kind):
    with pytest.raises(
        TypeError, match="net: expected as rec_layer a class of unidirectional recurrent layers, such as GRU"
    ):
        thought(kind, name="net")


def test_a_class_may_be_named(cpu):
    assert [layer.classnm for layer in layers_of(thought("LSTM"), RecurrentBase)] == ["LSTM"] * 3
    assert [layer.classnm for layer in layers_of(SkipThought(5, 2, G, 3, "GRU", G, Tanh(), Logistic(), G, G), GRU)] == [
        "GRU"
    ] * 3
    with pytest.raises(ValueError, match="the type of a defined class, got 'GPU'"):
        thought("GPU")


def test_layers_of_other_types_are_rejected(cpu):
    with pytest.raises(
        ValueError, match=r"net: expected as layers a LookupTable, an Encoder, and Decoders .*, got LookupTa"
    ):
        thought("GRU", name="net", layers=thought("GRU").layers[:3])
    table, encoder, before, after = thought("GRU").layers
    with pytest.raises(ValueError, match="got LookupTable, Decoder, Encoder, Decoder"):
        thought("GRU", layers=[table, before, encoder, after])
    other = thought("GRU", NOUT + 1).layers
    with pytest.raises(ValueError, match=f"expected the same output_size of .* got {NOUT + 1} and {NOUT}"):
        thought("GRU", layers=[table, encoder, before, other[3]])


@pytest.mark.parametrize("shape", [5, (1, 2, 3), [(1, 4), (1, 3)], [(1, 4), (1, 3), (2, 3)], [(1, 4), 3, 3], (4, 3)])
def test_three_shapes_of_token_ids_are_needed(cpu, shape):
    with pytest.raises(ValueError, match=r"net: expected three shapes \(1, T\) or \(T, 1\) of token ids, .*, got "):
        thought(name="net").configure(shape)
    assert thought().configure((1, 4)).in_shape == [(1, 4)] * 3


def test_invalid_inputs_and_errors_are_reported(cpu):
    net = thought(name="net")
    with pytest.raises(RuntimeError, match=r"net: expected a configured layer, got one without shapes. Call configure"):
        net.fprop([cpu.zeros((1, 2))] * 3)
    cpu.bsz = 2
    net.configure((1, 1))
    allocate(cpu, net)
    x = [cpu.ones((1, T * N)) for T in LENGTHS]
    errors = [cpu.ones((V, T * N)) for T in LENGTHS[1:]]
    for wrong in (x[0], x[:2], [*x, x[0]]):
        with pytest.raises(ValueError, match=r"net: expected inputs \[sentence, before, after\], the last two delayed"):
            net.fprop(wrong)
    for i, what in enumerate(("sentence", "before", "after")):
        wrong = [*x[:i], cpu.ones((1, 9 * N)), *x[i + 1 :]]
        with pytest.raises(ValueError, match=rf"net: expected inputs {what} of shape \(1, {LENGTHS[i] * N}\)"):
            net.fprop(wrong)
        wrong[i] = cpu.array(np.full((1, LENGTHS[i] * N), V), dtype="int32")
        with pytest.raises(IndexError, match="net_table: expected token ids from 0 to 6, got 7"):
            net.fprop(wrong)
        wrong[i] = cpu.array(np.full((1, LENGTHS[i] * N), 1.5))
        with pytest.raises(IndexError, match=r"net_table: expected token ids from 0 to 6, got 1\.5"):
            net.fprop(wrong)
    with pytest.raises(RuntimeError, match="net: bprop: expected a training fprop before it"):
        net.bprop(errors)
    net.fprop(x)
    with pytest.raises(TypeError, match=r"net.bprop: expected a pair \[before, after\] for error, got"):
        net.bprop(errors[0])
    with pytest.raises(ValueError, match="expected alpha=1 and beta=0, got"):
        net.bprop(errors, alpha=2.0)
    with pytest.raises(ValueError, match="net_after_words_Softmax: expected an error of shape"):
        net.bprop([errors[0], errors[0]])
