"""Perplexity, sequence accuracy and edit distance against reference loops, with masks and over a data set."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest

from neonlite.data import ArrayIterator, NervanaDataIterator, Text
from neonlite.initializers import Gaussian, IdentityInit
from neonlite.layers import Affine, BranchNode, Linear, Tree
from neonlite.models import Model
from neonlite.transforms import (
    Accuracy,
    BitsPerCharacter,
    EditDistance,
    LogLoss,
    Metric,
    Misclassification,
    MultiMetric,
    Perplexity,
    PrecisionRecall,
    SequenceAccuracy,
    Softmax,
    TopKMisclassification,
)
from neonlite.transforms.metrics import ColumnMetric, SequenceMetric, levenshtein


def distributions(rng, V, columns):
    y = rng.random((V, columns)) + 0.01
    return y / y.sum(axis=0)


def onehot(ids, V):
    return np.array([[float(i == c) for i in ids] for c in range(V)])


# --- perplexity ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [None, "columns", "whole"])
def test_perplexity_is_e_to_the_mean_cross_entropy_of_a_token(be64, rng, masked):
    V, columns = 5, 12
    y, ids = distributions(rng, V, columns), rng.integers(0, V, columns)
    counts = rng.choice([0.0, 1.0], columns) if masked else np.ones(columns)
    t = be64.array(onehot(ids, V))
    if masked:
        t = (t, be64.array(counts[None] if masked == "columns" else counts * np.ones((V, 1))))
    chosen = [1, 2, 4, 5, 9, 11]
    for calcrange, places in ((slice(0, None), range(columns)), (chosen, chosen), (slice(2, 9), range(2, 9))):
        nats = [-math.log(y[ids[c], c]) for c in places if counts[c]]
        mean = sum(nats) / len(nats)
        assert Perplexity()(be64.array(y), t, calcrange) == pytest.approx(math.exp(mean), rel=1e-12)
        assert BitsPerCharacter()(be64.array(y), t, calcrange) == pytest.approx(mean / math.log(2), rel=1e-12)


def test_perplexity_of_uniform_guesses_is_the_vocabulary_size_and_of_certainty_one(be):
    t = be.array(onehot([0, 3, 7, 1], 8))
    assert Perplexity()(be.ones((8, 4)) / 8, t) == pytest.approx(8, rel=1e-5)
    assert BitsPerCharacter()(be.ones((8, 4)) / 8, t) == pytest.approx(3, rel=1e-5)
    assert Perplexity()(t, t) == 1
    assert BitsPerCharacter()(t, t) == 0
    assert Perplexity()(1 - t, t) == pytest.approx(math.exp(50), rel=1e-4)


def test_what_a_mask_shuts_out_does_not_count_whatever_it_is(be):
    y = be.array([[0.5, np.nan, 0.25], [0.5, np.nan, 0.75]])
    t, mask = be.array([[1.0, 1, 0], [0, 0, 1]]), be.array([[1.0, 0, 1]])
    assert Perplexity()(y, (t, mask)) == pytest.approx(math.sqrt(2 * 4 / 3), rel=1e-6)
    assert math.isnan(Perplexity()(y, t))


def test_bits_over_a_text_are_the_mean_over_all_its_tokens(cpu):
    cpu.bsz = 3
    data = Text(4, text="a rose is a rose is a rose is a rose.")
    model = Model([Affine(data.nclass, Gaussian(), activation=Softmax())])
    model.initialize(data)
    bits, count = 0.0, 0
    for x, t in data:
        y, right = model.fprop(x, inference=True).get(), t.get().argmax(axis=0)
        bits -= sum(math.log2(y[right[c], c]) for c in range(len(right)))
        count += len(right)
    assert count == 36
    assert model.eval(data, BitsPerCharacter())[0] == pytest.approx(bits / count, rel=1e-5)


# --- whole sequences -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [None, "columns", "whole"])
@pytest.mark.parametrize(("F", "T", "N"), [(1, 1, 1), (2, 3, 4), (1, 2, 40), (3, 5, 2)])
def test_a_sequence_is_right_when_all_its_rounded_bits_are(be, rng, F, T, N, masked):
    be.bsz = N
    for _ in range(5):
        t = rng.choice([0.0, 1.0], (F, T, N))
        y = np.where(rng.random((F, T, N)) < 0.12, 1 - t, t) * 0.8 + 0.1
        shape = {None: (1, 1, 1), "columns": (1, T, N), "whole": (F, T, N)}[masked]
        mask = rng.choice([0.0, 1.0], shape) if masked else np.ones(shape)
        mask[:, :, 0] = 1
        full = np.broadcast_to(mask, t.shape)
        right = []
        for n in range(N):
            places = [(f, s) for f in range(F) for s in range(T) if full[f, s, n]]
            if places:
                right.append(all(round(y[f, s, n]) == t[f, s, n] for f, s in places))
        targets = be.array(t.reshape(F, -1))
        if masked:
            targets = (targets, be.array(mask.reshape(len(mask), -1)))
        assert SequenceAccuracy()(be.array(y.reshape(F, -1)), targets) == pytest.approx(np.mean(right))


def test_a_sequence_of_tokens_is_right_when_all_are(be):
    be.bsz = 2
    t = be.array(onehot([0, 1, 2, 2, 1, 0], 3))  # 0 2 1 and 1 2 0
    y = be.array(onehot([0, 1, 2, 0, 1, 0], 3) * 0.2 + 0.1)  # 0 2 1 and 1 0 0; nothing rounds to 1
    assert SequenceAccuracy(onehot=True)(y, t) == 0.5
    assert SequenceAccuracy()(y, t) == 0
    assert SequenceAccuracy(onehot=True)(y, (t, be.array([[1.0, 1, 1, 0, 1, 1]]))) == 1


def test_nan_is_not_correct(be):
    be.bsz = 2
    y, t = be.array([[np.nan, 0, 1, 1]]), be.array([[0.0, 0, 1, 1]])
    assert SequenceAccuracy()(y, t) == 0.5


def test_sequences_follow_the_batch_size_and_may_be_selected(be):
    y, t = be.array([[1.0, 0, 1, 0, 1, 1]]), be.array([[1.0, 0, 1, 0, 1, 0]])
    for N, share in ((1, 0.0), (2, 0.5), (3, 2 / 3), (6, 5 / 6)):
        be.bsz = N
        assert SequenceAccuracy()(y, t) == pytest.approx(share)
    be.bsz = 3
    assert SequenceAccuracy()(y, t, [0, 1, 3, 4]) == 1
    assert SequenceAccuracy()(y, t, calcrange=[2, 5]) == 0
    for wrong in (slice(0, 3, 2), slice(0, 2)):
        SequenceAccuracy()(y, t, wrong)  # two steps of one sequence each cannot be detected
    with pytest.raises(
        ValueError, match=r"expected the columns of whole sequences, .* got 3 of 6 columns with be.bsz = 3"
    ):
        SequenceAccuracy()(y, t, slice(0, 3))
    be.bsz = 4
    with pytest.raises(ValueError, match=r"got 6 of 6 columns with be.bsz = 4"):
        SequenceAccuracy()(y, t)


def test_a_data_set_is_evaluated_with_each_sequence_once(cpu):
    cpu.bsz = 4
    rng = np.random.default_rng(3)
    X = rng.choice([0.0, 1.0], (10, 1, 3))
    y = np.where(rng.random(X.shape) < 0.15, 1 - X, X)
    data = ArrayIterator(X, y, lshape=(1, 3), make_onehot=False)
    model = Model([Affine(1, Gaussian())])
    model.initialize(data)
    model.layers.layers[0].W[:] = 1
    right = [all(a == b for a, b in zip(X[i].ravel(), y[i].ravel(), strict=True)) for i in range(10)]
    assert 0 < sum(right) < 10
    assert model.eval(data, SequenceAccuracy())[0] == pytest.approx(np.mean(right))


# --- a whole data set ----------------------------------------------------------------------------------------------

V, T, N = 5, 3, 4


class Given(NervanaDataIterator):
    """Minibatches (y, t, mask) of N sequences, of which the last repeats some to be full; the mask may be None."""

    def __init__(self, be, batches, ndata, shape=(V, T)):
        super().__init__()
        self.batches = [
            (be.array(y), be.array(t) if mask is None else (be.array(t), be.array(mask))) for y, t, mask in batches
        ]
        self.ndata, self.nbatches, self.shape = ndata, len(batches), shape

    def __iter__(self):
        return iter(self.batches)


def evaluate(be, data, metric):
    """What a model that lets everything through is found to be worth."""
    model = Model([Linear(data.shape[0], IdentityInit())])
    model.initialize(data)
    return model.eval(data, metric)


@pytest.fixture
def sequences(be64, rng):
    """Return minibatches, and of each of their 10 sequences the steps that count: (said, right token) each."""
    be64.bsz = N
    batches, steps = [], []
    for many in (0.9, 0.2, 0.0, 0.6):
        y, ids = distributions(rng, V, T * N), rng.integers(0, V, T * N)
        mask = (rng.random((1, T * N)) < many).astype(float)
        batches.append((y, onehot(ids, V), mask))
        rows = N if many != 0.6 else 2
        steps += [[(y[:, t * N + n], ids[t * N + n]) for t in range(T) if mask[0, t * N + n]] for n in range(rows)]
    return Given(be64, batches, 14), steps


def test_of_masked_minibatches_each_token_counts_the_same(be64, sequences):
    data, steps = sequences
    tokens = [step for sequence in steps for step in sequence]
    nats = sum(-math.log(y[i]) for y, i in tokens) / len(tokens)
    wrong = sum(i != max(range(V), key=lambda k: y[k]) for y, i in tokens) / len(tokens)
    second = sum(i not in sorted(range(V), key=lambda k: y[k])[-2:] for y, i in tokens) / len(tokens)
    for metric, right in [
        (Perplexity(), [math.exp(nats)]),
        (BitsPerCharacter(), [nats / math.log(2)]),
        (LogLoss(), [nats]),
        (Misclassification(), [wrong]),
        (Accuracy(), [1 - wrong]),
        (TopKMisclassification(2), [nats, wrong, second]),
    ]:
        np.testing.assert_allclose(evaluate(be64, data, metric), right, 1e-12, err_msg=metric.classnm)
    bits = evaluate(be64, data, BitsPerCharacter())[0]
    assert evaluate(be64, data, Perplexity())[0] == pytest.approx(2**bits, rel=1e-12)


def test_of_masked_minibatches_each_sequence_of_which_something_counts_does_once(be64, sequences):
    data, steps = sequences
    there = [sequence for sequence in steps if sequence]
    assert 0 < len(there) < len(steps)
    ids = [([max(range(V), key=lambda k: y[k]) for y, _ in sequence], [i for _, i in sequence]) for sequence in there]
    far = sum(distance(tuple(said), tuple(right)) for said, right in ids) / len(ids)
    assert evaluate(be64, data, EditDistance())[0] == pytest.approx(far, rel=1e-12)
    same = sum(said == right for said, right in ids) / len(ids)
    assert evaluate(be64, data, SequenceAccuracy(onehot=True))[0] == pytest.approx(same, rel=1e-12)


def test_a_column_is_weighted_by_its_mask(be64):
    y, t = be64.array([[0.5, 0.25, 0.125, 0.5], [0.5, 0.75, 0.875, 0.5]]), be64.array(onehot([0, 0, 0, 1], 2))
    mask = be64.array([[1.0, 0.5, 2.0, 0.0]])
    assert BitsPerCharacter()(y, (t, mask)) == pytest.approx((1 * 1 + 0.5 * 2 + 2 * 3) / 3.5, rel=1e-12)
    assert Accuracy()(y, (t, mask)) == pytest.approx(1 / 3.5, rel=1e-12)


def test_a_set_of_which_a_mask_lets_nothing_through_is_refused(be64):
    be64.bsz = N
    y = np.ones((V, T * N)) / V
    data = Given(be64, [(y, y, np.zeros((1, T * N)))] * 2, 2 * N)
    for metric, what in ((Perplexity(), "column"), (Accuracy(), "column"), (SequenceAccuracy(), "sequence")):
        with pytest.raises(
            ValueError, match=f"{metric.classnm}: expected a mask that selects {what}s, got one that is 0"
        ):
            evaluate(be64, data, metric)


def test_perplexity_of_a_text_is_e_to_the_mean_over_all_its_tokens(be64, rng):
    be64.bsz = 2
    data = Text(3, text="to be or not to be, that is the question")
    model = Model([Affine(data.nclass, Gaussian(1.0), activation=Softmax())])
    model.initialize(data)
    nats, alone = [], []
    for x, t in data:
        y, right = model.fprop(x, inference=True).get(), t.get().argmax(axis=0)
        nats.append([-math.log(y[right[c], c]) for c in range(len(right))])
        alone.append(math.exp(np.mean(nats[-1])))
    found = model.eval(data, Perplexity())[0]
    assert found == pytest.approx(math.exp(np.mean(nats)), rel=1e-12)
    assert found < np.mean(alone) * 0.99  # the mean of perplexities is another number


@pytest.mark.parametrize("binarize", [False, True])
def test_precision_and_recall_are_those_of_all_rows_together(be64, rng, binarize):
    be64.bsz = N
    y, t = (onehot(rng.integers(0, V, 3 * N), V) for _ in range(2))
    batches = [(y[:, k : k + N], t[:, k : k + N], None) for k in range(0, 3 * N, N)]
    said, true = ([row[:10].sum() for row in x] for x in (y, t))
    right = [sum(a * b for a, b in zip(*rows, strict=True)) for rows in zip(y[:, :10], t[:, :10], strict=True)]
    wanted = [np.mean([r / (n + 1e-6) for r, n in zip(right, of, strict=True)]) for of in (said, true)]
    found = evaluate(be64, Given(be64, batches, 10, (V,)), PrecisionRecall(V, binarize))
    np.testing.assert_allclose(found, wanted, 1e-12)


def test_one_of_several_outputs_is_evaluated_as_if_alone(be64, sequences):
    data, _ = sequences
    branch = BranchNode("two")
    model = Model(Tree([[branch, Linear(V, IdentityInit())], [branch, Linear(V, IdentityInit())]]))
    alone = evaluate(be64, data, Perplexity())
    data.batches = [(y, [t, None]) for y, t in data.batches]
    model.initialize(data)
    np.testing.assert_allclose(model.eval(data, MultiMetric(Perplexity(), 0)), alone, 1e-12)


def test_a_metric_that_overrides_call_is_averaged_over_rows(be64, sequences):
    data, _ = sequences

    class Own(Metric):
        metric_names = ("Own",)

        def __call__(self, y, t, calcrange=slice(0, None)):
            return float(len(range(T * N)[calcrange] if isinstance(calcrange, slice) else calcrange))

    assert not Own().is_additive
    assert not MultiMetric(Own(), 0).is_additive
    assert evaluate(be64, data, Own())[0] == pytest.approx((12 * T * N + 2 * T * 2) / 14)


# --- edit distance -------------------------------------------------------------------------------------------------


def distance(a, b):
    """The definition: the least over the first step of each way to come from a to b."""

    @cache
    def least(i, j):
        if i == len(a) or j == len(b):
            return len(a) - i + len(b) - j
        same = least(i + 1, j + 1) if a[i] == b[j] else math.inf
        return min(same, 1 + least(i + 1, j), 1 + least(i, j + 1), 1 + least(i + 1, j + 1))

    return least(0, 0)


def test_levenshtein_is_the_least_number_of_edits():
    known = [
        ("kitten", "sitting", 3),
        ("saturday", "sunday", 3),
        ("", "abc", 3),
        ("flaw", "lawn", 2),
        ("gumbo", "gambol", 2),
    ]
    for a, b, d in known:
        assert levenshtein(a, b) == levenshtein(b, a) == d
    strings = ["".join(s) for n in range(5) for s in itertools.product("ab", repeat=n)]
    for a, b in itertools.product(strings, strings):
        assert levenshtein(a, b) == distance(a, b)


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("eos", [None, 0])
def test_edit_distance_is_the_mean_over_sequences(be, rng, ids, masked, eos):
    V, T, N = 4, 6, 5
    be.bsz = N
    for _ in range(4):
        said, right = rng.integers(0, V, (2, T, N))
        said = np.where(rng.random((T, N)) < 0.6, right, said)
        lengths = rng.integers(1, T + 1, N) if masked else np.full(N, T)
        mask = (np.arange(T)[:, None] < lengths).astype(float)
        total = 0
        for n in range(N):
            a, b = said[:, n].tolist(), right[: lengths[n], n].tolist()
            a = a[: a.index(eos) if eos in a else lengths[n]]
            b = b[: b.index(eos)] if eos in b else b
            total += distance(tuple(a), tuple(b))
        y, t = (be.array(x.reshape(1, -1) if ids else onehot(x.reshape(-1), V)) for x in (said, right))
        targets = (t, be.array(mask.reshape(1, -1))) if masked else t
        assert EditDistance(eos)(y, targets) == pytest.approx(total / N)


def test_the_end_token_of_the_prediction_determines_its_length(be):
    """Said "a b c ." and ". b c d" where "a b ." was right: one too many, and two too few."""
    be.bsz = 2
    y = be.array([[1, 0, 2, 2, 3, 3, 0, 4]], dtype="int32")
    t = be.array([[1, 1, 2, 2, 0, 0, 0, 0]], dtype="int32")
    mask = be.array([[1.0, 1, 1, 1, 1, 1, 0, 0]])
    assert EditDistance(eos=0)(y, (t, mask)) == 1.5
    assert EditDistance()(y, (t, mask)) == 1.5  # a b c for a b ., and . b c for a b .
    assert EditDistance(eos=9)(y, (t, mask)) == 1.5


# --- mistakes ------------------------------------------------------------------------------------------------------

METRICS = [
    Perplexity(),
    BitsPerCharacter(),
    SequenceAccuracy(),
    SequenceAccuracy(onehot=True),
    EditDistance(eos=1),
    Accuracy(),
    LogLoss(),
]
every_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.classnm)


@every_metric
def test_arguments_that_do_not_fit_are_refused(cpu, metric):
    cpu.bsz = 3
    y = cpu.ones((4, 3), name="guess")
    name = metric.classnm
    for t, error, words in [
        (cpu.ones((4, 2)), ValueError, rf"{name}: expected y and t of the same shape \(F, N\), got guess \(4, 3\)"),
        ((cpu.ones((4, 2)), cpu.ones((1, 2))), ValueError, f"{name}: expected y and t of the same shape"),
        ([[1]], TypeError, f"{name}: expected tensors or op-trees"),
        ((y, cpu.ones((2, 3))), ValueError, rf"{name}: expected a mask of the shape of the targets, or \(1, columns\)"),
        ((y, [1, 1, 1]), ValueError, f"{name}: expected a mask of the shape of the targets"),
        ((y, cpu.zeros((1, 3))), ValueError, f"{name}: expected a mask that selects"),
    ]:
        with pytest.raises(error, match=words):
            metric(y, t)
    with pytest.raises(ValueError, match="selects none of the 3 columns"):
        metric(y, y, slice(3, None))


@every_metric
def test_a_description_recreates_the_metric(metric):
    description = metric.get_description()
    again = type(metric)(**description["config"])
    assert again.get_description() == description
    assert vars(again) == vars(metric)


def test_names_match_what_a_metric_returns():
    assert [list(metric.metric_names) for metric in METRICS] == [[metric.classnm] for metric in METRICS]
    with pytest.raises(NotImplementedError, match=r"SequenceMetric: implement score_sequences\(values\)"):
        SequenceMetric().score_sequences(None)
    with pytest.raises(NotImplementedError, match=r"ColumnMetric: implement metric_values\(y, t\)"):
        ColumnMetric().metric_values(None, None)
