"""TrainingData: the split of the rows, and errors of data, metrics and weights before the first step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.callbacks import Callback
from neonlite.layers import Affine, Recurrent
from neonlite.models import Model
from neonlite.models.training_data import split_rows
from neonlite.transforms import F1, Accuracy, BLEUScore, ObjectDetection, PrecisionRecall

X = np.random.default_rng(0).normal(size=(60, 4))
CLASSES = np.arange(60) % 3
NUMBERS = 5 * X[:, 0] + 3
LABELS = (X[:, :3] > 0).astype(float)
ONE_HOT = np.eye(3)[CLASSES]
RAGGED: Any = [[1.0, 2.0], [3.0]]


@pytest.fixture(autouse=True)
def backend():
    gen_backend("cpu", rng_seed=0)


def classifier() -> Model:
    return Model([Affine(3, activation="softmax")])


def labeler() -> Model:
    return Model([Affine(3, activation="logistic")])


def regressor() -> Model:
    return Model([Affine(1)])


class NoStep(Callback):
    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        raise AssertionError("a step began")


def fit(model: Model, *data: Any, **options: Any) -> Any:
    return model.fit(*data, **{"epochs": 1, "progress_bar": False, "callbacks": NoStep(), **options})


# --- splits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "fraction"),
    [([3] * 20, 0.2), ([2] * 30, 0.2), ([100], 0.29), ([50, 30, 20], 0.1), ([10, 1, 1, 1, 50], 0.2), ([1] * 10, 0.3)],
)
def test_a_split_has_the_fraction_of_all_rows_and_of_each_class_up_to_one_row(counts, fraction):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    for seed in range(20):
        training, validation = split_rows(labels, fraction, seed)
        assert sorted([*training, *validation]) == [*range(len(labels))]
        assert len(validation) == round(fraction * len(labels))
        held_out = Counter(labels[validation].tolist())
        assert all(abs(held_out[i] - fraction * n) <= 1 for i, n in enumerate(counts))
        if max(counts) > 1:  # one row of each class to train on
            assert {*labels[training].tolist()} == {*range(len(counts))}
    assert {tuple(split_rows(labels, fraction, seed)[1]) for seed in range(20)} != {tuple(validation)}


def test_the_rows_of_a_split_or_of_validation_data_are_all_used():
    seen: list[int] = []

    class Rows(Callback):
        def on_train_begin(self, epochs: int) -> None:
            seen.append(self.model.ndata)

    fit(regressor(), X, NUMBERS, validation_split=0.25, callbacks=Rows())
    fit(regressor(), X, NUMBERS, validation_data=(X[:5], NUMBERS[:5]), callbacks=Rows())
    assert seen == [45, 60]
    with pytest.raises(ValueError, match="expected validation_split or validation_data, got both"):
        fit(regressor(), X, NUMBERS, validation_split=0.5, validation_data=(X, NUMBERS))


# --- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "y", "metric", "message"),
    [
        (regressor, NUMBERS, "foo", "expected one of 'accuracy'"),
        *[
            (regressor, NUMBERS, metric, 'a metric for numbers, such as "mse"')
            for metric in ("accuracy", "error", "log_loss", "f1", "roc_auc", "confusion_matrix", "sequence_accuracy")
        ],
        (regressor, NUMBERS, Accuracy(), 'a metric for numbers, such as "mse"'),
        (classifier, CLASSES, Accuracy, r"Pass an instance: Accuracy\(\)"),
        (classifier, CLASSES, len, "expected a metric, such as"),
        (classifier, CLASSES, "top5", "at least k = 5 classes, got 3"),
        (classifier, CLASSES, "confusion_matrix", "expected a metric of named values"),
        (classifier, CLASSES, PrecisionRecall(5), "expected num_classes = 5 rows"),
        (classifier, CLASSES, F1("binary"), "expected two classes"),
        (classifier, CLASSES, BLEUScore(), "BLEUScore: expected sentences"),
        (classifier, CLASSES, ObjectDetection(), "ObjectDetection: expected y ="),
        (classifier, [2, *[0, 1] * 29, 0], "roc_auc", "none of 12 in class 2"),
        (labeler, LABELS, "accuracy", "expected a metric for several labels"),
        (labeler, LABELS, Accuracy(), "expected a metric for several labels"),
        (labeler, LABELS, F1(), r"expected a metric for several labels, .*F1\(multilabel=True\)"),
    ],
)
def test_a_metric_that_cannot_be_computed_fails_before_the_first_step(make, y, metric, message):
    with pytest.raises((TypeError, ValueError), match=message):
        fit(make(), X, y, metrics=["mse", metric] if make is regressor else metric, validation_split=0.2)


def test_a_metric_of_one_kind_of_targets_is_rejected_by_evaluate_too():
    model = regressor()
    fit(model, X, NUMBERS, callbacks=None)
    with pytest.raises(
        ValueError, match='expected a metric for numbers, such as "mse", "mae" or "r2", got \'roc_auc\''
    ):
        model.evaluate(X, NUMBERS, "roc_auc")


# --- data and weights ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "data", "options", "message"),
    [
        (classifier, (X, CLASSES), {"validation_data": (X, CLASSES, CLASSES)}, r"expected \(X, y\), got 3 objects"),
        (classifier, (X, CLASSES), {"validation_data": ()}, r"expected \(X, y\), got 0 objects"),
        (classifier, (X, CLASSES), {"validation_data": (X,)}, r"expected \(X, y\), as in the training data, got no y"),
        (classifier, (X, CLASSES), {"validation_data": (RAGGED, [0, 1])}, "rows of X to have one length"),
        (classifier, (X, CLASSES), {"validation_data": (X[:2], RAGGED)}, "rows of one length for y"),
        (classifier, (X, CLASSES), {"class_weight": np.ones(3)}, 'expected "balanced", or a dict with the labels'),
        (classifier, (X, CLASSES), {"class_weight": [1, 2, 3]}, 'expected "balanced", or a dict with the labels'),
        (classifier, (X[:2], [0, 1]), {"sample_weight": RAGGED}, "expected 2 finite numbers >= 0 for sample_weight"),
        (classifier, (RAGGED, [0, 1]), {}, "rows of X to have one length"),
        (classifier, ([np.ones((2, 3)), np.ones((3, 3)), X[:4, :3]], CLASSES[:3]), {}, "rows of X to have one length"),
        (classifier, (X[:2], RAGGED), {}, "rows of one length for y"),
        (classifier, (X, ONE_HOT[:, :2]), {}, r"or 3 columns of zeros and ones, \(60, 3\), got \(60, 2\)"),
        (classifier, (X, np.hstack([ONE_HOT, ONE_HOT])), {}, r"3 columns of zeros and ones, \(60, 3\), got \(60, 6\)"),
        (classifier, (X, np.stack([CLASSES] * 3, axis=1)), {}, r"one label for each row, \(60,\)"),
        (labeler, (X, LABELS[:, :2]), {}, r"or 3 columns of zeros and ones, \(60, 3\), got \(60, 2\)"),
        (regressor, (X, X[:, :2]), {}, "expected y with a column for each of the 1 output"),
    ],
)
def test_an_error_names_the_data_before_the_first_step(make, data, options, message):
    with pytest.raises(ValueError, match=message):
        fit(make(), *data, **options)


@pytest.mark.parametrize(
    ("make", "y", "other", "message"),
    [
        (classifier, CLASSES, ONE_HOT[:, :2], r"expected y with one label for each row, \(60,\), or 3 columns"),
        (labeler, LABELS, LABELS[:, :2], r"expected zeros and ones \(60, 3\) for y"),
        (regressor, NUMBERS, X[:, :2], r"expected 1 columns in y, as in the training data, got \(60, 2\)"),
        (lambda: Model([Affine(1, activation="tanh")]), NUMBERS, X[:, :2], "a column for each of the 1 output"),
    ],
)
def test_evaluate_expects_the_columns_of_y_that_fit_had(make, y, other, message):
    model = make()
    fit(model, X, y, callbacks=None)
    with pytest.raises(ValueError, match=message):
        model.evaluate(X, other)
    for method in (model.predict, lambda rows: model.evaluate(rows, y[:2])):
        with pytest.raises(ValueError, match="rows of X to have one length"):
            method(RAGGED)


@pytest.mark.parametrize("labels", [np.eye(4, 3, dtype=int), np.ones((4, 3), int)])
def test_labels_of_time_steps_are_no_one_hot_columns(labels):
    for steps in (3, 5):
        model = Model([Recurrent(3, activation="tanh"), Affine(3, activation="softmax")])
        sequences = np.random.default_rng(0).normal(size=(4, 2, steps))
        if steps == 5:
            with pytest.raises(ValueError, match=r"a label for each of 5 time steps, \(4, 5\), got \(4, 3\)"):
                fit(model, sequences, labels, layout="NFT")
        else:
            fit(model, sequences, labels, layout="NFT", callbacks=None)
            accuracy = (model.predict(sequences).argmax(axis=1) == labels).mean()
            assert model.evaluate(sequences, labels)["accuracy"] == pytest.approx(accuracy)
