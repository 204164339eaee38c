"""Metrics of a whole data set, for any size of minibatches, against textbook loops and scikit-learn."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

from neonlite import gen_backend
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant
from neonlite.layers import Activation, Affine
from neonlite.models import Model
from neonlite.transforms import (
    F1,
    R2,
    ROCAUC,
    Accuracy,
    BitsPerCharacter,
    ConfusionMatrix,
    CrossEntropyBinary,
    CrossEntropyMulti,
    EditDistance,
    LogLoss,
    MeanAbsoluteError,
    MeanSquared,
    MeanSquaredError,
    Metric,
    Misclassification,
    MultiMetric,
    PrecisionRecall,
    SequenceAccuracy,
    SmoothL1Loss,
    TopKMisclassification,
    get_metric,
)
from neonlite.transforms.functions import Identity

Array = np.ndarray[Any, Any]
needs_sklearn = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
every_batch_size = pytest.mark.parametrize(
    ("batch_size", "partial_last"), [(1, True), (7, True), (7, False), (64, True)]
)
N = 53


class Echo:
    """A model whose outputs are its inputs."""

    def __new__(cls) -> Model:
        return Model([Activation(Identity())])


def evaluate(metric: Any, y: Array, t: Array, batch_size: int = 7, partial_last: bool = True) -> Any:
    """Return a metric of outputs (n, F) and targets (n, F) over minibatches."""
    gen_backend("cpu", batch_size=batch_size, datatype=np.float64)
    data = ArrayIterator(y, t, make_onehot=False, partial_last=partial_last)
    return Echo().eval(data, metric)


def onehot(labels: Array, classes: int) -> Array:
    return (labels[:, None] == np.arange(classes)).astype(float)


def classes_of(rng: np.random.Generator, K: int) -> tuple[Array, Array]:
    """Return scores (n, K) with ties, and labels of which each occurs."""
    labels = np.concatenate([np.arange(K), rng.integers(0, K, N - K)])
    return rng.integers(0, 6, (N, K)) / 8 + 0.375 * onehot(labels, K), labels


# --- textbook loops --------------------------------------------------------------------------------------------------


def area_by_pairs(scores: Array, positive: Array) -> float:
    """Return the fraction of pairs (positive, negative) in which the positive has the higher score; ties count half."""
    wins = pairs = 0.0
    for s, p in zip(scores, positive, strict=True):
        for other, q in zip(scores, positive, strict=True):
            if p and not q:
                pairs += 1
                wins += 1.0 if s > other else 0.5 if s == other else 0.0
    return wins / pairs


def f1_of(predicted: Array, actual: Array) -> float:
    tp = sum(1 for p, a in zip(predicted, actual, strict=True) if p and a)
    fp = sum(1 for p, a in zip(predicted, actual, strict=True) if p and not a)
    fn = sum(1 for p, a in zip(predicted, actual, strict=True) if a and not p)
    return tp / (tp + (fp + fn) / 2) if tp + fp + fn else 0.0


@every_batch_size
def test_squared_and_absolute_error_are_means_over_all_rows(rng, batch_size, partial_last):
    y, t = rng.normal(size=(N, 3)), rng.normal(size=(N, 3))
    squares = [float(a - b) ** 2 for a, b in zip(y.ravel(), t.ravel(), strict=True)]
    distances = [abs(float(a - b)) for a, b in zip(y.ravel(), t.ravel(), strict=True)]
    assert float(evaluate(MeanSquaredError(), y, t, batch_size, partial_last)) == pytest.approx(sum(squares) / (3 * N))
    assert float(evaluate("mae", y, t, batch_size, partial_last)) == pytest.approx(sum(distances) / (3 * N))


@every_batch_size
def test_r2_is_one_minus_the_ratio_of_the_errors_to_the_deviations(rng, batch_size, partial_last):
    t = rng.normal(size=(N, 3)) * [1, 5, 0.1] + [0, 100, -3]
    y = t + rng.normal(size=(N, 3)) * [0.5, 1, 0.2]
    each = []
    for column in range(3):
        mean = sum(t[:, column]) / N
        errors = sum((y[i, column] - t[i, column]) ** 2 for i in range(N))
        each.append(1 - errors / sum((t[i, column] - mean) ** 2 for i in range(N)))
    assert float(evaluate(R2(), y, t, batch_size, partial_last)) == pytest.approx(sum(each) / 3, rel=1e-9)


def test_r2_is_exact_where_the_targets_have_a_large_mean(rng):
    t = rng.normal(size=(N, 1))
    y = t + rng.normal(size=(N, 1))
    expected = 1 - ((y - t) ** 2).sum() / ((t - t.mean()) ** 2).sum()
    for batch_size in (1, 7, 64):
        found = float(evaluate("r2", y + 2.0**30, t + 2.0**30, batch_size))  # sums of squares lose all digits
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [2.0, 3.3])  # the mean of 3.3 is rounded
@pytest.mark.parametrize(("error", "expected"), [(0.0, 1.0), (0.5, 0.0)])
def test_r2_of_equal_targets_is_one_without_errors_and_else_zero(error, expected, value):
    t = np.full((5, 1), value)
    assert float(evaluate(R2(), t + error, t, 2)) == expected


@every_batch_size
@pytest.mark.parametrize("K", [3, 5])
def test_the_area_under_the_roc_curve_counts_ordered_pairs(rng, batch_size, partial_last, K):
    scores, labels = classes_of(rng, K)
    expected = sum(area_by_pairs(scores[:, k], labels == k) for k in range(K)) / K
    found = evaluate(ROCAUC(), scores, onehot(labels, K), batch_size, partial_last)
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_the_area_of_two_classes_is_that_of_the_second_and_of_labels_the_mean(rng):
    scores, labels = classes_of(rng, 2)
    t = onehot(labels, 2)
    areas = [area_by_pairs(scores[:, k], labels == k) for k in range(2)]
    assert areas[0] != pytest.approx(areas[1])
    assert float(evaluate(ROCAUC(), scores, t)) == pytest.approx(areas[1], rel=1e-12)
    assert float(evaluate(ROCAUC(), scores[:, 1:], t[:, 1:])) == pytest.approx(areas[1], rel=1e-12)
    assert float(evaluate(ROCAUC(multilabel=True), scores, t)) == pytest.approx(sum(areas) / 2, rel=1e-12)


def test_the_area_is_invariant_under_increasing_functions_and_nan_where_a_score_is_nan(rng):
    scores, labels = classes_of(rng, 2)
    y, t = scores[:, 1:], onehot(labels, 2)[:, 1:]
    assert float(evaluate("roc_auc", np.exp(5 * y) - 9, t)) == float(evaluate("roc_auc", y, t))
    assert float(evaluate("roc_auc", -y, t)) == pytest.approx(1 - float(evaluate("roc_auc", y, t)))
    be = gen_backend("cpu", datatype=np.float64)
    assert np.isnan(ROCAUC()(be.array([[0.5, np.nan]]), be.array([[0.0, 1.0]])))


@pytest.mark.parametrize(("label", "amount"), [(0, "none"), (1, "all")])
def test_the_area_needs_columns_in_the_class_and_in_others(label, amount):
    with pytest.raises(ValueError, match=f"columns in class 1 and columns in others, got {amount} of 9"):
        evaluate(ROCAUC(), np.linspace(0, 1, 9)[:, None], np.full((9, 1), float(label)))
    with pytest.raises(ValueError, match="got none of 3 in class 2"):
        evaluate(ROCAUC(), np.eye(3), onehot(np.array([0, 1, 1]), 3))


@every_batch_size
def test_f1_is_computed_from_the_counts_of_all_rows(rng, batch_size, partial_last):
    scores, labels = classes_of(rng, 4)
    predicted, t = scores.argmax(axis=1), onehot(labels, 4)
    each = [f1_of(predicted == k, labels == k) for k in range(4)]
    per_class = evaluate(F1(None, class_names=["a", "b", "c", "d"]), scores, t, batch_size, partial_last)
    np.testing.assert_allclose(per_class, each, rtol=1e-12)
    assert float(evaluate("f1", scores, t, batch_size, partial_last)) == pytest.approx(sum(each) / 4, rel=1e-12)
    micro = evaluate(F1("micro"), scores, t, batch_size, partial_last)
    assert float(micro) == pytest.approx((predicted == labels).mean(), rel=1e-12)  # of one class each
    weighted = sum(f * (labels == k).mean() for k, f in enumerate(each))
    assert float(evaluate(F1("weighted"), scores, t, batch_size, partial_last)) == pytest.approx(weighted, rel=1e-12)


def test_f1_of_two_classes_is_the_same_with_one_row_and_with_two(rng):
    p = rng.integers(0, 9, N) / 8
    labels = rng.integers(0, 2, N)
    both = [f1_of((p > 0.5) == k, labels == k) for k in range(2)]
    one_row, two_rows = (p[:, None], labels[:, None] * 1.0), (np.stack([1 - p, p], 1), onehot(labels, 2))
    for y, t in (one_row, two_rows):
        assert float(evaluate(F1("binary"), y, t)) == pytest.approx(both[1], rel=1e-12)
        assert float(evaluate(F1(), y, t)) == pytest.approx(sum(both) / 2, rel=1e-12)
    high = F1("binary", threshold=0.8)
    assert float(evaluate(high, *one_row)) == pytest.approx(f1_of(p > 0.8, labels == 1), rel=1e-12)
    with pytest.raises(ValueError, match="F1: expected two classes with average='binary', got "):
        evaluate(F1("binary"), np.eye(3), np.eye(3))


def test_f1_of_labels_compares_each_row_with_the_threshold(rng):
    p, t = rng.random((N, 3)), rng.integers(0, 2, (N, 3)).astype(float)
    p[:, 2], t[:, 2] = 0, 0  # a label that never occurs: 0, and part of the mean
    each = [f1_of(p[:, k] > 0.25, t[:, k]) for k in range(3)]
    assert each[2] == 0
    assert float(evaluate(F1(multilabel=True, threshold=0.25), p, t)) == pytest.approx(sum(each) / 3, rel=1e-12)
    one = F1("binary", multilabel=True, threshold=0.25)
    assert float(evaluate(one, p[:, :1], t[:, :1])) == pytest.approx(each[0], rel=1e-12)


def test_f1_leaves_out_classes_that_are_neither_predicted_nor_actual():
    scores, t = onehot(np.array([0, 1, 1, 0]), 3), onehot(np.array([0, 1, 0, 0]), 3)
    assert float(evaluate(F1(), scores, t)) == pytest.approx((0.8 + 2 / 3) / 2)
    none = np.zeros((4, 2))
    assert float(evaluate(F1("micro", multilabel=True), none, none)) == 0


@every_batch_size
def test_the_confusion_matrix_has_true_classes_as_rows_and_predicted_ones_as_columns(rng, batch_size, partial_last):
    scores, labels = classes_of(rng, 4)
    expected = np.zeros((4, 4))
    for true, predicted in zip(labels, scores.argmax(axis=1), strict=True):
        expected[true, predicted] += 1
    assert not np.array_equal(expected, expected.T)
    found = evaluate(ConfusionMatrix(), scores, onehot(labels, 4), batch_size, partial_last)
    np.testing.assert_array_equal(found, expected)
    one_row = evaluate(ConfusionMatrix(threshold=0.3), np.array([[0.1], [0.4], [0.2]]), np.array([[0.0], [0], [1]]), 2)
    np.testing.assert_array_equal(one_row, [[1, 1], [1, 0]])


# --- scikit-learn ----------------------------------------------------------------------------------------------------


@needs_sklearn
@every_batch_size
def test_metrics_of_regression_are_those_of_scikit_learn(rng, batch_size, partial_last):
    from sklearn import metrics as sk

    t = rng.normal(size=(N, 2)) + 3
    y = t + 0.3 * rng.normal(size=(N, 2))
    for name, f in (("mse", sk.mean_squared_error), ("mae", sk.mean_absolute_error), ("r2", sk.r2_score)):
        assert float(evaluate(name, y, t, batch_size, partial_last)) == pytest.approx(f(t, y), rel=1e-6)


@needs_sklearn
@every_batch_size
@pytest.mark.parametrize("K", [2, 3, 6])
def test_metrics_of_classification_are_those_of_scikit_learn(rng, batch_size, partial_last, K):
    from sklearn import metrics as sk

    scores, labels = classes_of(rng, K)
    scores /= scores.sum(axis=1, keepdims=True)
    predicted, t = scores.argmax(axis=1), onehot(labels, K)
    for average in ("macro", "micro", "weighted", *["binary"] * (K == 2)):
        found = evaluate(F1(average), scores, t, batch_size, partial_last)
        assert float(found) == pytest.approx(sk.f1_score(labels, predicted, average=average), rel=1e-6)
    area = sk.roc_auc_score(labels, scores[:, 1] if K == 2 else scores, multi_class="ovr")
    assert float(evaluate(ROCAUC(), scores, t, batch_size, partial_last)) == pytest.approx(area, rel=1e-6)
    matrix = evaluate(ConfusionMatrix(), scores, t, batch_size, partial_last)
    np.testing.assert_array_equal(matrix, sk.confusion_matrix(labels, predicted))


@needs_sklearn
def test_metrics_of_labels_are_those_of_scikit_learn(rng):
    from sklearn import metrics as sk

    p, t = rng.random((N, 4)), rng.integers(0, 2, (N, 4))
    for average in ("macro", "micro", "weighted", None):
        metric = F1(average, multilabel=True, class_names=list("abcd") if average is None else None)
        np.testing.assert_allclose(evaluate(metric, p, t * 1.0), sk.f1_score(t, p > 0.5, average=average), rtol=1e-6)
    area = sk.roc_auc_score(t, p)
    assert float(evaluate(ROCAUC(multilabel=True), p, t * 1.0)) == pytest.approx(area, rel=1e-6)
    one = sk.f1_score(t[:, 0], p[:, 0] > 0.5, average="macro")
    assert float(evaluate(F1(), p[:, :1], t[:, :1] * 1.0)) == pytest.approx(one, rel=1e-6)


@needs_sklearn
def test_masked_metrics_are_the_weighted_ones_of_scikit_learn(rng):
    from sklearn import metrics as sk

    be = gen_backend("cpu", datatype=np.float64)
    scores, labels = classes_of(rng, 3)
    weights = rng.integers(0, 3, N) * 1.0
    values, t = rng.normal(size=(N, 1)), rng.normal(size=(N, 1))
    targets = (be.array(onehot(labels, 3).T), be.array(weights[None]))
    y, predicted = be.array(scores.T), scores.argmax(axis=1)
    assert F1()(y, targets) == pytest.approx(sk.f1_score(labels, predicted, average="macro", sample_weight=weights))
    np.testing.assert_allclose(
        ConfusionMatrix()(y, targets), sk.confusion_matrix(labels, predicted, sample_weight=weights)
    )
    areas = [sk.roc_auc_score(labels == k, scores[:, k], sample_weight=weights) for k in range(3)]
    assert ROCAUC()(y, targets) == pytest.approx(np.mean(areas))
    pair = be.array(values.T), (be.array(t.T), be.array(weights[None]))
    assert R2()(*pair) == pytest.approx(sk.r2_score(t, values, sample_weight=weights))
    assert MeanSquaredError()(*pair) == pytest.approx(sk.mean_squared_error(t, values, sample_weight=weights))
    assert MeanAbsoluteError()(*pair) == pytest.approx(sk.mean_absolute_error(t, values, sample_weight=weights))


@pytest.mark.parametrize("metric", [R2(), ROCAUC(), MeanSquaredError()], ids=lambda x: x.classnm)
def test_masked_columns_have_no_effect_and_an_empty_mask_is_an_error(metric):
    be = gen_backend("cpu", datatype=np.float64)
    y, t = [[0.5, np.nan, 0.25, 1.0]], [[1.0, np.nan, 0.0, 0.0]]
    found = metric(be.array(y), (be.array(t), be.array([[1.0, 0, 1, 1]])))
    kept = [[0.5, 0.25, 1.0]], [[1.0, 0.0, 0.0]]
    assert found == pytest.approx(metric(*(be.array(x) for x in kept)))
    with pytest.raises(ValueError, match=f"{metric.classnm}: expected a mask that selects columns"):
        metric(be.array(kept[0]), (be.array(kept[1]), be.zeros((1, 3))))


# --- every runtime, costs, names -------------------------------------------------------------------------------------


def test_metrics_of_float32_outputs_are_the_same_on_every_runtime(be, rng):
    scores, labels = classes_of(rng, 3)
    y, t = be.array(scores.T), be.array(onehot(labels, 3).T)
    areas = [area_by_pairs(scores[:, k].astype(np.float32), labels == k) for k in range(3)]
    assert ROCAUC()(y, t) == pytest.approx(sum(areas) / 3, rel=1e-6)
    predicted = scores.argmax(axis=1)
    assert F1()(y, t) == pytest.approx(sum(f1_of(predicted == k, labels == k) for k in range(3)) / 3, rel=1e-6)
    matrix = np.asarray(ConfusionMatrix()(y, t))
    assert [matrix[a, b] for a in range(3) for b in range(3)] == [
        ((labels == a) & (predicted == b)).sum() for a in range(3) for b in range(3)
    ]
    squares = (scores - onehot(labels, 3)) ** 2
    assert MeanSquaredError()(y, t) == pytest.approx(squares.mean(), rel=1e-6)


def test_errors_of_16_bit_outputs_are_computed_in_float32():
    be = gen_backend("cpu", datatype="float16")
    y, t = be.array([[600.0, 0.0]]), be.array([[0.0, 0.0]])
    assert MeanSquaredError()(y, t) == 180_000  # the square is above the range of float16


@every_batch_size
@pytest.mark.parametrize(
    ("cost", "f"),
    [
        (MeanSquared(), lambda y, t: ((y - t) ** 2).mean(axis=1) / 2),
        (CrossEntropyBinary(), lambda y, t: -(t * np.log(y) + (1 - t) * np.log(1 - y)).sum(axis=1)),
        (CrossEntropyMulti(), lambda y, t: -(t * np.log(y)).sum(axis=1)),
        (SmoothL1Loss(), lambda y, t: ((y - t) ** 2 / 2).sum(axis=1)),
    ],
    ids=lambda x: getattr(x, "classnm", ""),
)
def test_a_cost_as_the_metric_is_its_mean_over_all_rows(rng, batch_size, partial_last, cost, f):
    y, t = rng.uniform(0.1, 0.9, (N, 3)), onehot(rng.integers(0, 3, N), 3)
    found = evaluate(cost, y, t, batch_size, partial_last)
    assert float(found) == pytest.approx(f(y, t).mean(), rel=1e-9)


def test_a_cost_as_the_metric_is_the_cost_of_eval_cost(rng):
    gen_backend("cpu", batch_size=7)
    data = ArrayIterator(rng.normal(size=(N, 2)), rng.normal(size=(N, 1)), make_onehot=False, partial_last=True)
    model = Model([Affine(1, Constant(0.5))])
    model.initialize(data, MeanSquared())
    assert float(model.eval(data, MeanSquared())) == pytest.approx(model.eval_cost(data), rel=1e-6)
    assert get_metric(MeanSquared()).metric_names == ("MeanSquared",)


NAMES: dict[str, type[Metric]] = {
    "accuracy": Accuracy,
    "error": Misclassification,
    "misclassification": Misclassification,
    "mse": MeanSquaredError,
    "mae": MeanAbsoluteError,
    "r2": R2,
    "roc_auc": ROCAUC,
    "f1": F1,
    "f1_macro": F1,
    "f1_micro": F1,
    "log_loss": LogLoss,
    "confusion_matrix": ConfusionMatrix,
    "bits_per_character": BitsPerCharacter,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_short_name_selects_a_metric(name):
    assert type(get_metric(name)) is NAMES[name]


def test_other_metrics_are_selected_or_listed_in_the_error():
    scores: list[Any] = [get_metric(name) for name in ("f1", "f1_macro", "f1_micro")]
    assert [score.average for score in scores] == ["macro", "macro", "micro"]
    top5, accuracy = get_metric("top5"), Accuracy()
    assert isinstance(top5, TopKMisclassification)
    assert top5.k == 5
    assert get_metric(accuracy) is accuracy
    with pytest.raises(ValueError, match=r"get_metric: expected one of 'accuracy', .*'mse', .* for metric, got 'rmse'"):
        get_metric("rmse")
    wrong: Any = Accuracy
    with pytest.raises(TypeError, match="get_metric: expected a metric, such as Accuracy"):
        get_metric(wrong)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (Accuracy(), True),
        (Misclassification(), False),
        (PrecisionRecall(3), True),
        (LogLoss(), False),
        (TopKMisclassification(2), False),
        (F1(), True),
        (ROCAUC(), True),
        (R2(), True),
        (MeanSquaredError(), False),
        (MeanAbsoluteError(), False),
        (get_metric(MeanSquared()), False),
        (MultiMetric(Accuracy(), 0), True),
        (ConfusionMatrix(), None),
    ],
    ids=lambda x: getattr(x, "classnm", ""),
)
def test_metrics_declare_whether_greater_is_better(metric, expected):
    assert metric.greater_is_better is expected


def test_a_metric_of_one_of_several_outputs_merges_minibatches_likewise(rng):
    be = gen_backend("cpu", datatype=np.float64)
    scores, labels = rng.random((1, 8)), np.array([[0, 1, 1, 0, 1, 0, 0, 1.0]])
    metric = MultiMetric(ROCAUC(), 1)
    parts = [
        metric.sums(
            [be.zeros((1, 4)), be.array(scores[:, i : i + 4])], [be.zeros((1, 4)), be.array(labels[:, i : i + 4])]
        )
        for i in (0, 4)
    ]
    (found,) = metric.compute(*metric.merge(parts))
    assert found == pytest.approx(area_by_pairs(scores[0], labels[0]))


# --- arguments, results and plots ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: F1("samples"), "F1: expected one of 'macro', 'micro', 'weighted', 'binary', None for average"),
        (lambda: F1(None), "F1: expected class_names together with average=None"),
        (lambda: F1(multilabel="yes"), "F1: expected True or False for multilabel"),
        (lambda: ConfusionMatrix("ab"), "ConfusionMatrix: expected class_names as a list of strings, got 'ab'"),
        (
            lambda: evaluate(ConfusionMatrix(["a"]), np.eye(3), np.eye(3)),
            r"ConfusionMatrix: expected class_names of 3 classes, got \['a'\]",
        ),
        (lambda: evaluate("accurate", np.eye(3), np.eye(3)), "get_metric: expected one of"),
        (lambda: evaluate(R2(), np.eye(3), np.eye(3)[:, :1]), "R2: expected y and t of the same shape"),
    ],
)
def test_mistakes_are_reported(create: Callable[[], Any], message):
    with pytest.raises((TypeError, ValueError), match=message):
        create()


def drawn(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_confusion_matrix_is_plotted_with_class_names_and_counts(tmp_path):
    t = onehot(np.array([0, 0, 0, 1, 1]), 2)
    matrix = evaluate(ConfusionMatrix(["cat", "dog"]), onehot(np.array([0, 0, 1, 1, 1]), 2), t)
    figure = matrix.plot(tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes()[:4] == b"\x89PNG"
    axes = figure.axes[0]
    assert [x.get_text() for x in axes.get_xticklabels()] == ["cat", "dog"]
    assert [x.get_text() for x in axes.get_yticklabels()] == ["cat", "dog"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert drawn(figure) == ["2", "1", "0", "2"]
    np.testing.assert_allclose(axes.images[0].get_array(), [[2 / 3, 1 / 3], [0, 1]])
    buffer = io.BytesIO()
    matrix.plot(buffer)
    assert buffer.getvalue()[:4] == b"\x89PNG"


def test_the_labels_of_a_confusion_matrix_are_inside_the_picture(tmp_path):
    from matplotlib import image

    y = onehot(np.arange(10), 10)
    evaluate(ConfusionMatrix(), y, y).plot(tmp_path / "confusion.png")
    pixels = image.imread(tmp_path / "confusion.png")[:, :, :3]
    for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert (edge > 0.95).all()


def test_a_result_is_plotted_into_given_axes():
    from matplotlib.figure import Figure

    figure = Figure()
    left, right = figure.subplots(1, 2)
    y, t = np.eye(21), np.eye(21)
    matrix = evaluate(ConfusionMatrix(), y, t)
    assert matrix.plot(left) is figure
    assert not left.texts  # too many classes for numbers
    scores = evaluate(F1(None, class_names=["a", "b"]), np.eye(2), np.eye(2))
    assert scores.plot(right) is figure
    assert [x.get_text() for x in right.get_yticklabels()] == ["F1_a", "F1_b"]
    assert [bar.get_width() for bar in right.patches] == [1, 1]
    with pytest.raises(TypeError, match=r"MetricValues.plot: expected a result of eval with a Metric"):
        (matrix + 0).plot(left)


# --- NaN -------------------------------------------------------------------------------------------------------------

SCORES = np.array([[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.1, 0.2, 0.7], [0.7, 0.2, 0.1]])
CLASSES = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
NAN_METRICS: dict[str, tuple[Any, int, float]] = {  # metric, rows of outputs, value with one NaN in four columns
    "accuracy": (Accuracy(), 3, 0.75),
    "accuracy of two classes": (Accuracy(), 1, 0.75),
    "misclassification": (Misclassification(), 3, 0.25),
    "top 1": (TopKMisclassification(1), 3, 0.25),
    "top 2": (TopKMisclassification(2), 3, 0.25),
    "sequence accuracy": (SequenceAccuracy(onehot=True), 3, 0.75),
    "sequence accuracy of bits": (SequenceAccuracy(), 3, 0.75),
    "edit distance": (EditDistance(), 3, 0.25),
    **{
        type(metric).__name__ + str(rows) + str(i): (metric, rows, np.nan)
        for rows in (1, 3)
        for i, metric in enumerate(
            [F1(), F1("micro"), F1("weighted"), F1(multilabel=True), ConfusionMatrix(), LogLoss(), R2(), ROCAUC()]
        )
    },
    "f1 of each class": (F1(None, class_names=["a", "b", "c"]), 3, np.nan),
    "f1 of the second class": (F1("binary"), 1, np.nan),
    "precision and recall": (PrecisionRecall(3, binarize=True), 3, np.nan),
    "mean squared error": (MeanSquaredError(), 3, np.nan),
    "mean absolute error": (MeanAbsoluteError(), 3, np.nan),
    "cost": (get_metric(CrossEntropyMulti()), 3, np.nan),
}


@each("name, nan", itertools.product(NAN_METRICS, [slice(0, 1), slice(-1, None), slice(None)]))
def test_an_output_of_nan_is_never_right(name, nan):
    metric, rows, expected = NAN_METRICS[name]
    be = gen_backend("cpu", batch_size=4)
    y, t = SCORES[:, :rows].T.copy(), CLASSES[:, :rows].T
    y[nan, 0] = np.nan
    values = np.asarray(metric(be.array(y), be.array(t)))
    if name.startswith("top"):
        values = values[1:]  # after the log loss
    if np.isnan(expected):
        assert np.isnan(values).any()
    else:
        assert np.allclose(values, expected)


@pytest.mark.parametrize(
    "metric", [Accuracy(), F1(), F1("micro"), ConfusionMatrix(), R2(), ROCAUC(), SequenceAccuracy(onehot=True)]
)
def test_an_output_of_nan_that_the_mask_excludes_is_ignored(metric):
    be = gen_backend("cpu", batch_size=4)
    y, t = SCORES.T.copy(), CLASSES.T
    y[:, 3] = np.nan
    masked = metric(be.array(y), (be.array(t), be.array([[1.0, 1, 1, 0]])))
    be = gen_backend("cpu", batch_size=3)
    np.testing.assert_allclose(masked, metric(be.array(SCORES.T[:, :3]), be.array(t[:, :3])))
