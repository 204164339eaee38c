"""Metrics against loops over columns, and BLEU against the definition of Papineni et al."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from helpers.runtimes import lacks
from helpers.transform_cases import Array, made, smooth

from neonlite.transforms import (
    Accuracy,
    BLEUScore,
    LogLoss,
    Metric,
    Misclassification,
    MultiMetric,
    ObjectDetection,
    PrecisionRecall,
    TopKMisclassification,
)

# --- metrics: loops over columns -----------------------------------------------------------------------------------


def first_best(column: Array) -> int:
    return next(i for i, v in enumerate(column) if v == max(column))


def top(k: int, y: Array, label: int) -> float:
    """How often the label is not among the k best, over all orders in which equal outputs may stand."""
    orders = [o for o in itertools.permutations(range(len(y))) if all(y[a] >= y[b] for a, b in itertools.pairwise(o))]
    return sum(label not in order[:k] for order in orders) / len(orders)


def guesses(rng: np.random.Generator, classes: int, n: int) -> tuple[Array, Array, list[int]]:
    """Return outputs with many ties, one-hot targets, labels."""
    y = rng.choice([0.125, 0.25, 0.5, 0.0625], (classes, n))
    labels = rng.integers(0, classes, n).tolist()
    t = np.zeros((classes, n))
    t[labels, range(n)] = 1
    return y, t, labels


RANGES = [slice(0, None), slice(2, 7), slice(None, None, 3), [0, 4, 5, 4]]


@pytest.mark.parametrize("calcrange", RANGES, ids=str)
def test_metrics_are_loops_over_columns(be, rng, calcrange):
    y, t, labels = guesses(rng, 5, 12)
    chosen = list(range(12))[calcrange] if isinstance(calcrange, slice) else calcrange
    Y, T = be.array(y), be.array(t)
    wrong = [first_best(y[:, n]) != labels[n] for n in chosen]
    loss = np.mean([-math.log(y[labels[n], n]) for n in chosen])
    for metric, wanted in [
        (Misclassification(), np.mean(wrong)),
        (Misclassification(steps=4), np.mean(wrong)),
        (Accuracy(), 1 - np.mean(wrong)),
        (LogLoss(), loss),
    ]:
        got = metric(Y, T, calcrange=calcrange)
        assert type(got) is float
        assert got == pytest.approx(wanted, rel=1e-6)
    for k in (1, 2, 3, 5):
        got = TopKMisclassification(k)(Y, T, calcrange)
        tops = [np.mean([top(j, y[:, n], labels[n]) for n in chosen]) for j in (1, k)]
        np.testing.assert_allclose(got, [loss, *tops], 1e-6, strict=True)


def test_all_outputs_equal_is_a_guess(be):
    y, t = be.ones((10, 4)), be.evaluate([be.onehot([0, 3, 9, 5], axis=0, nclass=10)])[0]
    np.testing.assert_allclose(TopKMisclassification(5)(y, t)[1:], [0.9, 0.5], 1e-6)
    assert Misclassification()(y, t) == 0.75  # the first of equals


def test_the_log_loss_of_a_certain_mistake_is_fifty(be):
    y, t = be.array([[0.0], [1.0]]), be.array([[1.0], [0.0]])
    assert LogLoss()(y, t) == 50
    assert TopKMisclassification(1)(y, t).tolist() == [50, 1, 1]


def test_the_log_loss_of_one_row_is_that_of_two_classes(be):
    y, t = np.array([[0.9, 0.2, 0.7]]), np.array([[1.0, 0.0, 0.0]])
    expected = -np.log([0.9, 0.8, 0.3]).mean()
    assert LogLoss()(be.array(y), be.array(t)) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="expected at least 2 classes, got 1"):
        TopKMisclassification(1)(be.array(y), be.array(t))


def test_infinite_outputs_and_halves_are_counted_too(be):
    y, t = be.array([[math.inf, 1.0], [-math.inf, 5.0], [0.0, 2.0]]), be.array([[0.0, 1], [1, 0], [0, 0]])
    assert TopKMisclassification(2)(y, t)[1:].tolist() == [1, 1]
    assert Accuracy()(y, t) == 0
    if not lacks(be, "float16"):
        many = be.ones((2, 4096), "float16")  # more columns than a half can count one by one
        right = be.evaluate([be.onehot([0] * 4096, axis=0, nclass=2)])[0]
        got = PrecisionRecall(2, binarize=True)(many, right)
        np.testing.assert_allclose(got, [0.5, 0.5], 1e-6)
        assert TopKMisclassification(1)(many, right).tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize("binarize", [False, True])
@pytest.mark.parametrize("calcrange", RANGES, ids=str)
def test_precision_and_recall_are_counts(be, rng, binarize, calcrange):
    y, t, labels = guesses(rng, 4, 12)
    if not binarize:
        y = np.float64(y > 0.2)
    before = be.array(y)
    got = PrecisionRecall(4, binarize, epsilon=0.01)(before, be.array(t), calcrange)
    chosen = list(range(12))[calcrange] if isinstance(calcrange, slice) else calcrange
    said = [{first_best(y[:, n])} if binarize else {c for c in range(4) if y[c, n]} for n in chosen]
    precision, recall = [], []
    for c in range(4):
        right = sum(c in s and labels[n] == c for s, n in zip(said, chosen, strict=True))
        precision.append(right / (sum(c in s for s in said) + 0.01))
        recall.append(right / (sum(labels[n] == c for n in chosen) + 0.01))
    np.testing.assert_allclose(got, [np.mean(precision), np.mean(recall)], 1e-6, strict=True)
    np.testing.assert_array_equal(before.get(), np.float32(y))


def test_a_class_that_never_occurs_counts_as_nothing(be):
    y = be.array([[1.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(PrecisionRecall(2)(y, y), [0.5, 0.5], 1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_detection_is_accuracy_and_smooth_l1_over_regions(be, rng, masked):
    y, t, labels = guesses(rng, 3, 8)
    boxes, truth = rng.normal(size=(2, 12, 8)) * 2
    mask = rng.choice([0.0, 1.0], (12, 8)) if masked else np.ones((12, 8))
    targets = (be.array(truth), be.array(mask)) if masked else be.array(truth)
    got = ObjectDetection()((be.array(y), be.array(boxes)), (be.array(t), targets), slice(1, 6))
    right = np.mean([first_best(y[:, n]) == labels[n] for n in range(1, 6)])
    losses = [sum(mask[i, n] * smooth(boxes[i, n] - truth[i, n], 1) for i in range(12)) for n in range(1, 6)]
    np.testing.assert_allclose(got, [right, np.mean(losses)], 1e-5, strict=True)


def test_multimetric_uses_one_of_several_outputs(be, rng):
    (y0, t0, _), (y1, t1, _) = guesses(rng, 3, 9), guesses(rng, 4, 9)
    y, t = [be.array(y0), be.array(y1)], (be.array(t0), be.array(t1))
    for index, metric in itertools.product((0, 1, -1), (Accuracy(), TopKMisclassification(2))):
        multi = MultiMetric(metric, index)
        assert multi.metric_names == metric.metric_names
        np.testing.assert_array_equal(multi(y, t, slice(0, 5)), metric(y[index], t[index], slice(0, 5)))


def test_names_match_what_a_metric_returns(cpu):
    named = {type(m).__name__: list(m.metric_names) for m in made() if isinstance(m, Metric)}
    assert named == {
        "LogLoss": ["LogLoss"],
        "TopKMisclassification": ["LogLoss", "Top1Misclass", "Top5Misclass"],
        "Misclassification": ["Top1Misclass"],
        "Accuracy": ["Accuracy"],
        "PrecisionRecall": ["Precision", "Recall"],
        "ObjectDetection": ["Accuracy", "SmoothL1Loss"],
        "BLEUScore": ["BLEU"],
        "BitsPerCharacter": ["BitsPerCharacter"],
        "Perplexity": ["Perplexity"],
        "SequenceAccuracy": ["SequenceAccuracy"],
        "EditDistance": ["EditDistance"],
        "MultiMetric": ["Accuracy"],
        "CostMetric": ["SquareHingeLoss"],
        "MeanSquaredError": ["MeanSquaredError"],
        "MeanAbsoluteError": ["MeanAbsoluteError"],
        "R2": ["R2"],
        "F1": ["F1_micro"],  # as made above
        "ROCAUC": ["ROCAUC"],
        "ConfusionMatrix": [],
    }


# --- BLEU ----------------------------------------------------------------------------------------------------------


def bleu(sentences: list[list[str]], references: list[list[list[str]]], N: int, penalty: bool) -> float:
    logs = 0.0
    for n in range(1, N + 1):
        right = total = 0
        for s, several in zip(sentences, references, strict=True):
            runs = [s[i : i + n] for i in range(len(s) - n + 1)]
            total += len(runs)
            for run in [r for i, r in enumerate(runs) if r not in runs[:i]]:
                most = max(sum(r[i : i + n] == run for i in range(len(r))) for r in several)
                right += 0 if "<unk>" in run else min(runs.count(run), most)
        logs += math.log((right / total if total else 0.0) + 1e-7) / N
    c, r = sum(map(len, sentences)), 0
    for s, several in zip(sentences, references, strict=True):
        r += sorted(several, key=lambda x: (abs(len(x) - len(s)), len(x)))[0].__len__()
    factor = 1.0 if c > r else math.exp(1 - r / c)
    return 100 * math.exp(logs) * (factor if penalty else 1)


def test_bleu_is_papineni_s(rng):
    words = ["a", "b", "c", "d", "<unk>"]
    for _ in range(40):
        count = int(rng.integers(1, 5))
        sentences = [rng.choice(words, rng.integers(1, 9)).tolist() for _ in range(count)]
        references = [
            [rng.choice(words, rng.integers(1, 9)).tolist() for _ in range(rng.integers(1, 4))] for _ in range(count)
        ]
        for N, penalty in [(1, False), (2, True), (4, False), (4, True)]:
            metric = BLEUScore()
            got = metric(sentences, references, N=N, brevity_penalty=penalty)
            assert got == pytest.approx(bleu(sentences, references, N, penalty), rel=1e-12)
            each = [bleu(sentences, references, n, penalty) for n in range(1, N + 1)]
            assert metric.bleu_n == pytest.approx(each, rel=1e-12)


def test_bleu_of_the_paper_s_first_example():
    """Papineni et al., 2.1: "the" seven times; a reference has it twice, so that the modified precision is 2/7."""
    references = [["the cat is on the mat", "there is a cat on the mat"]]
    assert BLEUScore()(["the the the the the the the"], references, N=1) == pytest.approx(200 / 7, rel=1e-6)


def test_bleu_without_the_penalty_ignores_that_a_sentence_is_short():
    assert BLEUScore()(["a b"], ["a b c d"], N=2) == pytest.approx(100, rel=1e-6)
    assert BLEUScore()(["a b"], ["a b c d"], N=2, brevity_penalty=True) == pytest.approx(100 * math.exp(-1), rel=1e-6)


def test_bleu_accepts_strings_lists_and_either_case():
    score = BLEUScore()
    exact = pytest.approx(100, rel=1e-6)
    assert score(["A b c d"], ["a B c d"]) == exact
    assert score([["A", "b", "c", "d"]], [["a b c d"]]) == exact
    assert score(["a b c d", "x"], [["a b c d"], ["y"]], slice(0, 1)) == exact
    assert score(["A b c d"], ["a b c d"], N=1, lower_case=False) == pytest.approx(75, rel=1e-6)
    assert score(["a UNK"], ["a UNK"], N=1) == exact
    assert BLEUScore(unk="UNK")(["a UNK"], ["a UNK"], N=1) == pytest.approx(50, rel=1e-6)
    assert score(["", ""], ["a", "b"], brevity_penalty=True) == 0
    assert 0 < score(["a"], ["b"]) < 1e-3


def test_bleu_refuses_what_does_not_match():
    with pytest.raises(ValueError, match="BLEUScore: expected as many sentences as lists of references"):
        BLEUScore()(["a", "b"], [["a"]])
    with pytest.raises(ValueError, match="BLEUScore: expected as many"):
        BLEUScore()("a b", ["a", "b"])
    with pytest.raises(ValueError, match=r"expected a sentence in calcrange slice\(3, None, None\)"):
        BLEUScore()(["a"], ["a"], slice(3, None))
    with pytest.raises(ValueError, match="a reference for each"):
        BLEUScore()(["a"], [[]])
    with pytest.raises(ValueError, match="BLEUScore: expected an integer >= 1 for N, got 0"):
        BLEUScore()(["a"], ["a"], N=0)


# --- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metric", [LogLoss(), Accuracy(), TopKMisclassification(2), PrecisionRecall(4)], ids=lambda x: x.classnm
)
def test_a_metric_needs_a_column(cpu, metric):
    y = cpu.ones((4, 3))
    with pytest.raises(
        ValueError, match=rf"{metric.classnm}: calcrange slice\(3, None, None\) selects none of the 3 col"
    ):
        metric(y, y, slice(3, None))
    with pytest.raises(ValueError, match="selects none of the 3 columns"):
        metric(y, y, calcrange=[])
    with pytest.raises(TypeError, match=rf"{metric.classnm}: expected a slice .*as calcrange, got 2"):
        metric(y, y, 2)
    with pytest.raises(IndexError):
        metric(y, y, [3])


def test_one_row_is_the_probability_of_the_second_of_two_classes(be):
    y, t = be.array([[0.2, 0.5, 0.6, 0.9]]), be.array([[0.0, 1.0, 1.0, 0.0]])
    assert Accuracy()(y, t) == 0.5
    assert Misclassification()(y, t) == 0.5
