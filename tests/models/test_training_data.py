"""TrainingData: the split of the rows, and errors of data, metrics and weights before the first step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.callbacks import Callback, MetricCallback
from neonlite.data import ArrayIterator
from neonlite.layers import Affine, Recurrent
from neonlite.models import Model
from neonlite.models.training_data import split_rows
from neonlite.optimizers import Adam
from neonlite.transforms import (
    F1,
    Accuracy,
    BLEUScore,
    CrossEntropyBinary,
    CrossEntropyMulti,
    ObjectDetection,
    PrecisionRecall,
)

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
        (classifier, (X[:2], [0, 1]), {"sample_weight": RAGGED}, "expected rows of one length for sample_weight"),
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


@pytest.mark.filterwarnings("ignore:.*all rows of y have the class 1")
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


# --- evaluate and records --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metrics", [[F1(), F1("macro")], ["f1", "f1"], [Accuracy(), Accuracy()]])
def test_evaluate_rejects_two_metrics_of_one_name_as_one_value_would_be_lost(metrics):
    model = classifier()
    fit(model, X, CLASSES, callbacks=None)
    with pytest.raises(ValueError, match=r"expected metrics of different names, got (F1|f1|Accuracy) twice"):
        model.evaluate(X, CLASSES, metrics)


@pytest.mark.parametrize("options", [{"metrics": [F1(threshold=0.9), F1()]}, {"metrics": "accuracy", "add": True}])
def test_two_callbacks_that_record_values_of_one_name_fail_before_the_first_step(options):
    add = options.pop("add", False)
    others = [MetricCallback(ArrayIterator(X, CLASSES, nclass=3), "accuracy")] if add else []
    with pytest.raises(ValueError, match=r"expected one callback that records '(F1|Accuracy)', got two"):
        fit(classifier(), X, CLASSES, validation_split=0.2, callbacks=[NoStep(), *others], **options)


def test_metrics_of_two_data_sets_are_recorded_by_different_names():
    X_test, is_first = X[:10], CLASSES[:10] == 0
    gen_backend("cpu", rng_seed=0, batch_size=5)
    model, metric = classifier(), Accuracy()
    metric.metric_names = ["accuracy, test"]
    callback = MetricCallback(ArrayIterator(X_test, np.where(is_first, 0, 1), 3, partial_last=True), metric)
    history = fit(model, X, CLASSES, standardize=False, validation_data=(X, CLASSES), callbacks=callback, batch_size=7)
    predicted = model.predict(X).argmax(axis=1)
    np.testing.assert_allclose(history["Accuracy"][-1], np.mean(predicted == CLASSES))
    np.testing.assert_allclose(history["accuracy, test"][-1], np.mean(predicted[:10] == np.where(is_first, 0, 1)))


@pytest.mark.parametrize("activation", [None, "logistic"])
def test_without_an_encoder_numbers_are_evaluated_as_numbers_by_default(activation):
    gen_backend("cpu", rng_seed=0, batch_size=20)
    targets = (X[:, :1] - X.min()) / np.ptp(X)
    model, data = Model([Affine(1, activation=activation)]), ArrayIterator(X, targets, make_onehot=False)
    model.fit(data, "mse", Adam(), num_epochs=1)
    errors = model.predict(X)[:, :1] - targets
    r2 = 1 - np.mean(errors**2) / np.var(targets)
    expected = {"mse": np.mean(errors**2), "mae": np.mean(np.abs(errors)), "r2": r2}
    for result in model.evaluate(data), model.evaluate(X, targets):
        assert result == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("activation", "outputs", "cost"), [("softmax", 2, None), ("logistic", 1, "binary")])
def test_without_an_encoder_classes_are_evaluated_by_their_accuracy_by_default(activation, outputs, cost):
    gen_backend("cpu", rng_seed=0, batch_size=20)
    labels = (X[:, 0] > 0).astype(int)
    is_one_hot = outputs == 2
    data = ArrayIterator(X, labels, 2) if is_one_hot else ArrayIterator(X, labels[:, None], make_onehot=False)
    model = Model([Affine(outputs, activation=activation)])
    model.fit(data, CrossEntropyBinary() if cost else CrossEntropyMulti(), Adam(), num_epochs=1)
    scores = model.predict(X)
    predicted = scores.argmax(axis=1) if is_one_hot else scores[:, 0] > 0.5
    assert model.evaluate(data) == pytest.approx({"accuracy": np.mean(predicted == labels)})


def test_errors_of_y_do_not_contradict_themselves():
    model = classifier()
    fit(model, X, CLASSES, callbacks=None)
    with pytest.raises(ValueError, match=r"expected y with one label for each row, \(60,\), got \(60, 3\)$"):
        model.evaluate(X, ONE_HOT)
    with pytest.raises(ValueError, match=r"fit: expected y with at least one row, .*got \(\)"):
        fit(regressor(), X, np.array(5.0))
