"""Predictions, metrics and costs: in the units of the data that fit was given, and of the rows that were given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.data import ArrayIterator
from neonlite.layers import Affine, Recurrent
from neonlite.models import Model
from neonlite.optimizers import Adam
from neonlite.transforms import MeanSquared, Metric, SequenceAccuracy

EPOCH: dict[str, Any] = {"epochs": 1, "progress_bar": False}


@pytest.fixture(autouse=True)
def backend(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gen_backend("cpu", rng_seed=0, batch_size=16)


def line(rng: np.random.Generator, scale: float = 1000, offset: float = 7) -> tuple[Any, Any]:
    X = rng.normal(size=(64, 3))
    return X, scale * X[:, 0] + offset + rng.normal(size=64) * scale / 10


def errors(predicted: Any, y: Any) -> dict[str, float]:
    difference = np.asarray(predicted, np.float64) - y
    squares = ((y - y.mean(axis=0)) ** 2).sum(axis=0)
    return {
        "mse": (difference**2).mean(),
        "mae": np.abs(difference).mean(),
        "r2": (1 - (difference**2).sum(axis=0) / squares).mean(),
    }


class RootMeanSquare(Metric):
    """A metric of minibatches."""

    metric_names = ("RMS",)

    def __call__(self, y, t, calcrange=slice(0, None)):
        t = t[0] if isinstance(t, tuple) else t  # (targets, weights)
        return float(np.sqrt(((y.get() - t.get()) ** 2).mean()))


# --- units -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("outputs", [1, 2])
def test_metrics_of_fit_are_those_of_evaluate_and_of_predict(rng, outputs, weighted):
    X, y = line(rng)
    y = y if outputs == 1 else np.stack([y, -y / 100], axis=1)
    model, valid = Model([Affine(outputs)]), (X[48:], y[48:])
    weights = rng.random(48) if weighted else None
    metrics = ["mse", "mae", "r2"]
    history = model.fit(
        X[:48], y[:48], validation_data=valid, metrics=[*metrics, RootMeanSquare()], sample_weight=weights, **EPOCH
    )
    expected = errors(model.predict(X[48:]), y[48:])
    recorded = [history.last(name) for name in ("MeanSquaredError", "MeanAbsoluteError", "R2", "RMS")]
    np.testing.assert_allclose(recorded, [*expected.values(), expected["mse"] ** 0.5], rtol=1e-5)
    evaluated = model.evaluate(*valid, metrics)
    np.testing.assert_allclose([evaluated[name] for name in metrics], [*expected.values()], rtol=1e-6)


def test_the_cost_of_standardized_numbers_is_that_of_training(rng):
    X, y = line(rng)
    model = Model([Affine(1)])
    history = model.fit(X[:48], y[:48], validation_data=(X[48:], y[48:]), **EPOCH)
    mse = errors(model.predict(X[48:]), y[48:])["mse"]
    np.testing.assert_allclose(history.last("val_loss"), mse / y[:48].var() / 2, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("scale", "offset"), [(10, 1.7e9), (1e6, 0), (0.5, 2000)])
def test_predictions_are_float64_in_the_units_of_y(rng, dtype, scale, offset):
    gen_backend("cpu", rng_seed=0, datatype=np.dtype(dtype))
    X, y = line(rng, scale, offset)
    model = Model([Affine(1)])
    model.fit(X, y, epochs=100, optimizer=Adam(0.05), progress_bar=False)
    predicted = model.predict(X)
    assert predicted.dtype == np.float64
    np.testing.assert_allclose(predicted, y, rtol=0, atol=0.5 * scale)
    assert np.ptp(predicted) > scale
    np.testing.assert_allclose(model.evaluate(X, y, "mae")["mae"], errors(predicted, y)["mae"], rtol=1e-9)


@pytest.mark.filterwarnings("ignore:.*the targets y are from")
def test_after_training_on_an_iterator_outputs_are_compared_as_they_are(rng):
    X, y = line(rng, 3)
    model = Model([Affine(1)])
    model.fit(ArrayIterator(X, y[:, None], make_onehot=False), "mse", Adam(0.05), num_epochs=2)
    rows = rng.permutation(64)[:20]
    expected = errors(np.ravel(model.predict(X[rows])), y[rows])
    assert model.evaluate(X[rows], y[rows], ["mse", "mae", "r2"]) == pytest.approx(expected, rel=1e-5)
    data = ArrayIterator(X[rows], y[rows, None], make_onehot=False, partial_last=True)
    assert model.evaluate(data, metrics="mae")["mae"] == pytest.approx(expected["mae"], rel=1e-5)


def test_after_training_on_an_iterator_classes_are_their_indices(rng):
    X, y = rng.normal(size=(48, 2)), np.arange(48) % 3
    model = Model([Affine(3, activation="softmax")])
    model.fit(ArrayIterator(X, y, nclass=3), "cross_entropy", Adam(), num_epochs=1)
    accuracy = (model.predict(X).argmax(axis=1) == y).mean()
    assert model.evaluate(X, y) == model.evaluate(X, np.eye(3)[y]) == {"accuracy": pytest.approx(accuracy)}
    for labels, got in ((y + 5, "5"), (np.array(["a", "b", "c"])[y], "'a'")):
        with pytest.raises(ValueError, match=rf"expected one of the classes \[0, 1, 2\] in y, got {got}"):
            model.evaluate(X, labels)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("metric", ["mae", MeanSquared()])
def test_an_iterator_is_evaluated_in_its_units_or_rejected(rng, standardize, metric):
    X, y = line(rng)
    model, data = Model([Affine(1)]), ArrayIterator(X, y[:, None], make_onehot=False)
    options: dict[str, Any] = {**EPOCH, "standardize": standardize, "validation_data": data, "metrics": metric}
    if standardize:
        for call in (lambda: model.fit(X, y, **options), lambda: model.predict(data), lambda: model.eval(data, metric)):
            with pytest.raises(
                ValueError, match=r"whose rows are standardized as those of fit\(X, y\), got an iterator"
            ):
                call()
            model.fit(X, y, **EPOCH)
        return
    history = model.fit(X, y, **options)
    predicted = model.predict(X)
    np.testing.assert_allclose(model.predict(data), predicted)
    expected = errors(predicted, y)
    value = history.last("MeanAbsoluteError" if metric == "mae" else "MeanSquared")
    np.testing.assert_allclose(value, expected["mae"] if metric == "mae" else expected["mse"] / 2, rtol=1e-5)
    np.testing.assert_allclose(history.last("val_loss"), expected["mse"] / y.var() / 2, rtol=1e-5)


@pytest.mark.parametrize("kind", ["array", "table", "uint8"])
def test_an_autoencoder_predicts_in_the_units_of_its_inputs(rng, kind):
    numbers = rng.normal(size=(64, 3)) * [1, 10, 100] + [5, 50, 500]
    X: Any = numbers
    expected = numbers
    if kind == "table":
        X = {"a": numbers[:, 1], "city": ["Ulm", "Bonn"] * 32, "b": numbers[:, 2]}
        expected = np.stack([numbers[:, 1], *np.eye(2)[[1, 0] * 32].T, numbers[:, 2]], axis=1)
    if kind == "uint8":
        X = rng.integers(0, 256, (64, 3)).astype(np.uint8)
        expected = X.astype(float)
    model = Model([Affine(expected.shape[1])])
    model.fit(X, epochs=200, optimizer=Adam(0.05), progress_bar=False)
    np.testing.assert_allclose(model.predict(X), expected, atol=1)
    if kind == "array":
        assert model.evaluate(X + 1000, X + 1000, "r2")["r2"] > 0.9
        np.testing.assert_allclose(model.evaluate(X, X, "mae")["mae"], errors(model.predict(X), X)["mae"], rtol=1e-6)
        model.save_params("autoencoder.neon")
        np.testing.assert_array_equal(Model("autoencoder.neon").predict(X), model.predict(X))


def test_iterators_and_arrays_give_the_same_axes_for_sequences(rng):
    X, y = rng.normal(size=(12, 2, 5)), rng.integers(0, 3, (12, 5))
    model = Model([Recurrent(4, activation="tanh"), Affine(3, activation="softmax")])
    model.fit(X, y, layout="NFT", **EPOCH)
    targets = (y[:, None] == np.arange(3)[:, None]).astype(float)
    data = ArrayIterator(X, targets, lshape=(2, 5), make_onehot=False, partial_last=True)
    accuracy = (model.predict(X).argmax(axis=1) == y).all(axis=1).mean()
    assert model.evaluate(data, metrics=SequenceAccuracy(onehot=True)) == {"SequenceAccuracy": accuracy}
    data = ArrayIterator(X, lshape=(2, 5), partial_last=True)
    for method in (model.predict, model.predict_proba, model.predict_classes):
        np.testing.assert_allclose(method(data), method(X), rtol=1e-5)
