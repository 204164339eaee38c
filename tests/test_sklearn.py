"""NeonClassifier and NeonRegressor in scikit-learn: its checks, pipelines, searches, pickle and random states."""

from __future__ import annotations

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from helpers.runtimes import RUNTIMES
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_digits, load_iris, make_classification, make_multilabel_classification
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import parametrize_with_checks

import neonlite as nl
from neonlite.backend import current_backend
from neonlite.layers import Affine, Dropout, Layer, Reshape
from neonlite.models import Model
from neonlite.optimizers import GradientDescentMomentum
from neonlite.sklearn import NeonClassifier, NeonRegressor
from neonlite.transforms import Rectlin

SMALL = {"layers": (20,), "epochs": 20, "learning_rate": 0.02}
SHORT = {"layers": (20,), "epochs": 10, "learning_rate": 0.04}
BOTH = [NeonClassifier, NeonRegressor]
both = pytest.mark.parametrize("cls", BOTH)


def expected_failures(estimator):
    """Return the checks that fail, with the reasons."""
    reason = "minibatches of weighted rows differ from those of repeated rows, as in scikit-learn's SGDClassifier"
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@parametrize_with_checks([cls(**SHORT) for cls in BOTH], expected_failed_checks=expected_failures)
def test_the_checks_of_scikit_learn_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [cls(dropout=dropout) for cls in BOTH for dropout in (0.0, 0.1)],
    expected_failed_checks=expected_failures,
)
def test_the_checks_of_scikit_learn_pass_with_the_defaults_and_with_dropout(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return X, np.array(["setosa", "versicolor", "virginica"])[y]


def data_for(cls, n=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    return X, (X[:, 0] > 0).astype(int) if cls is NeonClassifier else X @ [1.0, -2.0, 0.5, 3.0]


def outputs(estimator, X):
    return getattr(estimator, "predict_proba", estimator.predict)(X)


# --- results ---


def test_a_network_without_hidden_layers_is_a_logistic_regression(iris):
    X, y = iris
    binary = y != "setosa"
    X, y = X[binary] + [5.0, 0, 0, -3.0], y[binary]
    model = NeonClassifier(layers=(), epochs=2000, batch_size=100, learning_rate=0.05, random_state=0).fit(X, y)
    scaled = StandardScaler().fit_transform(X)
    expected = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(scaled, y).predict_proba(scaled)
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=0.02)
    assert model.classes_.tolist() == ["versicolor", "virginica"]
    assert model.predict(X).tolist() == model.classes_[model.predict_proba(X).argmax(axis=1)].tolist()
    assert model.score(X, y) == accuracy_score(y, model.predict(X)) > 0.95


@pytest.mark.parametrize("num_outputs", [None, 1, 3])
def test_a_network_without_hidden_layers_is_a_linear_regression(num_outputs):
    rng = np.random.default_rng(0)
    X = 1000 + 10 * rng.normal(size=(50, 3))
    Y = X @ rng.normal(size=(3, num_outputs or 1)) + rng.normal(size=(50, num_outputs or 1)) + 500
    y = Y if num_outputs == 3 else Y[:, 0]
    model = NeonRegressor(layers=(), epochs=600, batch_size=50, learning_rate=0.02, random_state=0).fit(X, y)
    expected = LinearRegression().fit(X, y).predict(X)
    assert model.predict(X).dtype == np.float64
    np.testing.assert_allclose(model.predict(X), expected, rtol=0, atol=0.02)
    assert model.score(X, y) == r2_score(y, model.predict(X))


def test_sample_weights_weight_the_cost_of_each_row():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y, weights = rng.normal(size=60), rng.uniform(0, 3, size=60)
    options = {"layers": (), "epochs": 800, "batch_size": 60, "learning_rate": 0.02, "random_state": 0}
    expected = LinearRegression().fit(X, y, weights).predict(X)
    np.testing.assert_allclose(NeonRegressor(**options).fit(X, y, weights).predict(X), expected, atol=0.005)
    assert np.abs(NeonRegressor(**options).fit(X, y).predict(X) - expected).max() > 0.05


@pytest.mark.parametrize("class_weight", ["balanced", {"b": 5.0}])
def test_class_weights_are_the_sample_weights_of_scikit_learn(class_weight):
    X, y = make_classification(80, 4, weights=[0.8], random_state=0)
    y = np.array(["a", "b"])[y]
    weights = compute_sample_weight(class_weight, y)
    weighted = NeonClassifier(**SMALL, random_state=0).fit(X, y, sample_weight=2 * weights)
    model = NeonClassifier(**SMALL, random_state=0, class_weight=class_weight).fit(X, y, sample_weight=np.full(80, 2.0))
    np.testing.assert_array_equal(model.predict_proba(X), weighted.predict_proba(X))
    assert (model.predict_proba(X) != NeonClassifier(**SMALL, random_state=0).fit(X, y).predict_proba(X)).any()


@pytest.mark.parametrize(
    "labels",
    [
        ["no", "yes"],
        np.array(["no", "yes"], dtype=object),
        [-3, 7],
        [0.0, 2.0],
        [False, True],
        np.array([200, 1], dtype=np.uint8),
        [10, 20, 30, 40],
    ],
    ids=str,
)
def test_labels_of_any_type_are_returned(labels):
    labels = np.asarray(labels)
    indices = np.arange(40) % len(labels)
    X, y = np.eye(len(labels))[indices], labels[indices]
    model = NeonClassifier(**SMALL, random_state=0).fit(X, y)
    assert model.predict(X).dtype == labels.dtype
    assert model.predict(X).tolist() == y.tolist()
    assert model.classes_.tolist() == sorted(labels.tolist())


def test_several_labels_are_zeros_and_ones():
    X, y = make_multilabel_classification(200, n_features=8, n_classes=3, random_state=0)
    model = NeonClassifier(random_state=0, learning_rate=0.01).fit(X, y)
    assert ((model.predict_proba(X) > 0.5) == model.predict(X)).all()
    assert accuracy_score(y, model.predict(X)) == model.score(X, y) > 0.9


def test_a_prediction_depends_on_its_row_only(iris):
    X, y = iris
    model = NeonClassifier(**SMALL, random_state=0).fit(X, y)
    probabilities = model.predict_proba(X)
    np.testing.assert_array_equal(model.predict_proba(X[::-1])[::-1], probabilities)
    np.testing.assert_array_equal(np.concatenate([model.predict_proba(x[None]) for x in X]), probabilities)


# --- random states, and the user's backend ---


@both
def test_one_random_state_gives_the_same_bits(cls):
    X, y = data_for(cls)
    first, second, other = (cls(**SMALL, dropout=0.2, random_state=seed).fit(X, y) for seed in (1, 1, 2))
    np.testing.assert_array_equal(outputs(first, X), outputs(second, X))
    np.testing.assert_array_equal(outputs(clone(first).fit(X, y), X), outputs(first, X))
    assert (outputs(first, X) != outputs(other, X)).any()


@both
def test_the_current_backend_is_not_changed(cls):
    X, y = data_for(cls)
    be = nl.gen_backend("cpu", rng_seed=5, batch_size=7, datatype="float64")
    state = be.rng_get_state()
    estimator = cls(**SMALL, dropout=0.5, random_state=0, early_stopping=True).fit(X, y)
    first = outputs(pickle.loads(pickle.dumps(estimator)).partial_fit(X, y), X)
    assert current_backend() is be
    assert not be.closed
    assert (be.bsz, be.rng_get_state()) == (7, state)
    assert estimator.model_.be is not be
    nl.cleanup_backend()
    second = outputs(pickle.loads(pickle.dumps(cls(**estimator.get_params()).fit(X, y))).partial_fit(X, y), X)
    np.testing.assert_array_equal(second, first)


@both
def test_threads_train_at_the_same_time(cls):
    X, y = data_for(cls)
    estimators = [cls(**SMALL, dropout=0.2, random_state=i) for i in range(4)]
    expected = [outputs(clone(x).fit(X, y), X) for x in estimators]
    joblib.Parallel(4, backend="threading")(joblib.delayed(x.fit)(X, y) for x in estimators)
    for estimator, values in zip(estimators, expected, strict=True):
        np.testing.assert_array_equal(outputs(estimator, X), values)


# --- pickle ---


@both
def test_a_pickled_estimator_predicts_and_continues_with_the_same_bits(cls):
    X, y = data_for(cls)
    estimator = cls(**SMALL, dropout=0.2, random_state=0).fit(X, y)
    copied = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(outputs(copied, X), outputs(estimator, X))
    assert (copied.loss_curve_, copied.n_iter_) == (estimator.loss_curve_, estimator.n_iter_)
    for rows in (slice(0, 40), slice(0, 60), slice(40, 50)):  # other rows than those of fit
        estimator.partial_fit(X[rows], y[rows])
        copied.partial_fit(X[rows], y[rows])
    np.testing.assert_array_equal(outputs(copied, X), outputs(estimator, X))
    assert copied.loss_curve_ == estimator.loss_curve_
    estimator.set_params(warm_start=True, early_stopping=True)
    copied.set_params(warm_start=True, early_stopping=True)
    np.testing.assert_array_equal(outputs(copied.fit(X, y), X), outputs(estimator.fit(X, y), X))


def test_the_model_is_saved_with_the_labels(tmp_path, iris):
    X, y = iris
    estimator = NeonClassifier(**SMALL, random_state=0).fit(X, y)
    path = estimator.model_.save_params(tmp_path / "iris.neon")
    nl.gen_backend("cpu")
    assert Model(path).predict_classes(X).tolist() == estimator.predict(X).tolist()


def test_an_estimator_that_was_not_trained_can_be_pickled():
    estimator = pickle.loads(pickle.dumps(NeonRegressor(layers=(3,))))
    assert estimator.get_params() == NeonRegressor(layers=(3,)).get_params()
    with pytest.raises(NotFittedError):
        estimator.predict([[1.0]])


# --- the rest of scikit-learn ---


@pytest.mark.long
def test_a_search_runs_in_processes_and_in_threads(iris):
    X, y = iris
    pipeline = make_pipeline(StandardScaler(), NeonClassifier(layers=(10,), epochs=10, random_state=0))
    grid = {"neonclassifier__learning_rate": [0.0001, 0.05]}
    searches = []
    for backend, n_jobs in (("loky", 2), ("threading", 2), ("sequential", 1)):
        with joblib.parallel_config(backend, n_jobs=n_jobs):
            searches.append(GridSearchCV(pipeline, grid, cv=2).fit(X, y))
    assert searches[0].best_params_ == {"neonclassifier__learning_rate": 0.05}
    assert searches[0].best_score_ > 0.9
    for search in searches[1:]:
        np.testing.assert_array_equal(search.predict_proba(X), searches[0].predict_proba(X))
        scores = [x.cv_results_["mean_test_score"] for x in (search, searches[0])]
        np.testing.assert_array_equal(*scores)


def test_data_frames_with_categories_need_a_column_transformer():
    frame = pd.DataFrame({"size": np.arange(40.0), "color": ["red", "green"] * 20})
    y = np.where(frame["color"] == "red", "warm", "cold")
    columns = ColumnTransformer([("numbers", StandardScaler(), ["size"]), ("colors", OneHotEncoder(), ["color"])])
    pipeline = make_pipeline(columns, NeonClassifier(**SMALL, random_state=0))
    assert cross_val_score(pipeline, frame, y, cv=2).mean() == 1
    with pytest.raises(ValueError, match="could not convert string to float"):
        NeonClassifier().fit(frame, y)


@pytest.mark.parametrize("argument", ["X", "y", "sample_weight"])
@both
def test_masked_values_are_refused(cls, argument):
    data = {"X": np.eye(4), "y": np.array([0, 1, 0, 1]), "sample_weight": np.ones(4)}
    data[argument] = np.ma.array(data[argument])
    data[argument][1:2] = np.ma.masked
    with pytest.raises(ValueError, match=f"every row of {argument}, got a masked value in row 1"):
        cls(**SMALL).fit(**data)


@pytest.mark.parametrize("is_frame", [False, True])
@both
def test_dates_are_no_features(cls, is_frame):
    days = np.array(["2020-01-01", "2021-01-01"] * 2, "M8[s]")[:, None]
    X = pd.DataFrame(days, columns=["day"]) if is_frame else days
    with pytest.raises(TypeError, match=r"got datetime64.* Convert it to numbers"):
        cls(**SMALL).fit(X, [0, 1, 0, 1])
    with pytest.raises(TypeError, match=r"got datetime64.* Convert it to numbers"):
        cls(**SMALL).fit([[0.0], [1.0]], [0, 1]).predict(X)


def test_feature_names_are_checked():
    frame = pd.DataFrame({"a": [0.0, 1, 2, 3], "b": [3.0, 1, 2, 0]})
    model = NeonRegressor(**SMALL).fit(frame, frame["a"])
    assert model.feature_names_in_.tolist() == ["a", "b"]
    assert model.n_features_in_ == 2
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a"]])


def test_an_estimator_has_a_representation_in_notebooks():
    estimator = NeonClassifier(layers=(7,), random_state=3)
    assert repr(estimator) == "NeonClassifier(layers=(7,), random_state=3)"
    assert "NeonClassifier" in estimator._repr_html_()


# --- training ---


@both
def test_partial_fit_trains_for_one_epoch(cls):
    X, y = data_for(cls)
    estimator = cls(**SMALL, random_state=0)
    first = [np.unique(y)] if cls is NeonClassifier else []
    for i in range(40):
        part = slice(30 * (i % 2), 30 * (i % 2) + 30)
        estimator.partial_fit(X[part], y[part], *first)
    assert estimator.n_iter_ == len(estimator.loss_curve_) == 40
    assert estimator.loss_curve_[-1] < estimator.loss_curve_[0] / 4
    assert estimator.score(X, y) > 0.9


@both
def test_partial_fit_has_a_new_order_in_each_call(cls, monkeypatch):
    X, y = data_for(cls)
    fit, calls = Model.fit, []
    monkeypatch.setattr(
        Model, "fit", lambda model, X, y, **options: calls.append((X, y)) or fit(model, X, y, **options)
    )
    estimator = cls(**SMALL, random_state=0).partial_fit(X, y, *([[0, 1]] if cls is NeonClassifier else []))
    estimator.partial_fit(X, y)
    assert (calls[0][0] != calls[1][0]).any()
    for rows, targets in calls:
        order = [int((x == X).all(axis=1).argmax()) for x in rows]
        assert sorted(order) == [*range(60)]
        np.testing.assert_array_equal(targets, y[order])


def test_partial_fit_weights_its_rows():
    X = np.repeat([[0.0], [1.0]], 50, axis=0)
    y = np.where(np.arange(100) % 2, X[:, 0], 1 - X[:, 0])  # half of the targets are wrong
    weights = np.arange(100) % 2
    model = NeonRegressor(layers=(), learning_rate=0.05, random_state=0)
    for _ in range(100):
        model.partial_fit(X, y, weights)
    np.testing.assert_allclose(model.predict([[0.0], [1.0]]), [0, 1], atol=0.02)


def test_partial_fit_needs_all_classes():
    X, y = data_for(NeonClassifier)
    with pytest.raises(ValueError, match=r"NeonClassifier\.partial_fit: expected all labels as classes in the first"):
        NeonClassifier().partial_fit(X, y)
    model = NeonClassifier(**SMALL).partial_fit(X[:1], y[:1], classes=[0, 1, 2])
    assert model.predict_proba(X).shape == (60, 3)
    with pytest.raises(ValueError, match=r"expected the classes \[0, 1, 2\], as before, got \[0, 1\]"):
        model.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"expected one of the classes \[0, 1, 2\] in y, got [34]"):
        model.partial_fit(X, y + 3)


@both
def test_warm_start_continues(cls):
    X, y = data_for(cls)
    cold = cls(**SMALL, random_state=0)
    assert cold.fit(X, y).fit(X, y).n_iter_ == 20
    warm = cls(**SMALL, random_state=0, warm_start=True).fit(X, y)
    model, before = warm.model_, warm.loss_curve_[0]
    assert warm.fit(X, y).model_ is model
    assert warm.n_iter_ == len(warm.loss_curve_) == 40
    assert warm.loss_curve_[20] < before / 2
    with pytest.raises(ValueError, match="features"):
        warm.fit(X[:, :2], y)
    assert warm.n_features_in_ == 4


def test_warm_start_needs_the_same_classes():
    X, y = data_for(NeonClassifier)
    model = NeonClassifier(**SMALL, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match=r"NeonClassifier.fit: expected the classes \[0, 1\], as before, got \[1, 2\]"):
        model.fit(X, y + 1)


@both
def test_early_stopping_has_the_weights_of_the_lowest_validation_cost(cls):
    X, y = data_for(cls, 40)
    rng = np.random.default_rng(1)
    y = rng.permutation(y)  # nothing to learn
    options = SMALL | {"epochs": 200}
    model = cls(**options, early_stopping=True, patience=3, validation_fraction=0.25, random_state=0).fit(X, y)
    costs = model.history_["val_loss"]
    assert len(costs) == model.n_iter_ < 200
    assert int(np.argmin(costs)) == model.n_iter_ - 4
    assert len(model.loss_curve_) == model.n_iter_


@both
def test_layers_may_be_layers(cls):
    X, y = data_for(cls)
    layers = [Reshape((1, 2, 2)), Affine(8, "glorot", activation="relu"), 4]
    estimator = cls(layers=layers, epochs=30, learning_rate=0.02, random_state=0).fit(X, y)
    assert [x.in_shape for x in (layers[0], layers[1][0])] == [None, None]  # of the parameter, unchanged
    sizes = [w.shape for w in estimator.model_.get_weights().values()]
    assert sizes == [(8, 4), (4, 8), (4, 1), *([(2, 4), (2, 1)] if cls is NeonClassifier else [(1, 4), (1, 1)])]
    assert estimator.score(X, y) > 0.8
    copied = pickle.loads(pickle.dumps(estimator))
    assert all(isinstance(x, Layer) for x in (copied.layers[0], copied.layers[1][0]))
    np.testing.assert_array_equal(outputs(copied, X), outputs(estimator, X))
    np.testing.assert_array_equal(outputs(clone(estimator).fit(X, y), X), outputs(estimator, X))


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("relu", lambda x: np.maximum(x, 0)),
        ("tanh", np.tanh),
        ("logistic", lambda x: 1 / (1 + np.exp(-x))),
        ("silu", lambda x: x / (1 + np.exp(-x))),
        ("gelu", lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))),
        ("identity", lambda x: x),
        (Rectlin(slope=0.1), lambda x: np.maximum(x, 0.1 * x)),
    ],
    ids=["relu", "tanh", "logistic", "silu", "gelu", "identity", "Rectlin(slope=0.1)"],
)
def test_the_network_is_standardization_hidden_layers_and_a_linear_layer(activation, function):
    X, y = data_for(NeonRegressor)
    X, y = X * [1, 10, 100, 0] + 5, 100 * y
    model = NeonRegressor((6, 5), activation, epochs=3, random_state=0).fit(X, y)
    W1, b1, W2, b2, W3, b3 = (w.astype(np.float64) for w in model.model_.get_weights().values())
    deviation = X.std(axis=0)
    h = ((X - X.mean(axis=0)) / np.where(deviation == 0, 1, deviation)).T
    for W, b in ((W1, b1), (W2, b2)):
        h = function(W @ h + b)
    expected = (W3 @ h + b3)[0] * y.std() + y.mean()
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-4, atol=0.01)


@both
def test_dropout_drops_the_fraction_after_each_hidden_layer(cls):
    X, y = data_for(cls)
    model = cls((6, 5), dropout=0.3, epochs=1).fit(X, y).model_
    assert [x.keep for x in model.layers.leaves() if isinstance(x, Dropout)] == [0.7, 0.7]


@pytest.mark.parametrize(
    "optimizer",
    ["adamw", "lamb", "lion", "nadam", "nesterov", "rmsprop", GradientDescentMomentum(0.05, 0.5)],
    ids=str,
)
def test_optimizers(optimizer):
    X, y = data_for(NeonClassifier)
    model = NeonClassifier(**SMALL, optimizer=optimizer, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.9
    expected = 0.02 if isinstance(optimizer, str) else 0.05
    assert model.model_.optimizer.learning_rate == expected
    assert model.model_.optimizer is not optimizer


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_runtime_is_that_of_the_argument(name):
    X, y = data_for(NeonRegressor)
    model = NeonRegressor((3,), epochs=2, backend=name, random_state=0).fit(X, y)
    expected = NeonRegressor((3,), epochs=2, backend="cpu", random_state=0).fit(X, y)
    assert model.model_.be.name == name
    np.testing.assert_allclose(model.predict(X), expected.predict(X), atol=1e-4)
    assert pickle.loads(pickle.dumps(model)).model_.be.name == name


@both
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layers": 100}, TypeError, "layers"),
        ({"layers": (0,)}, ValueError, "each of layers"),
        ({"activation": "rel"}, ValueError, "activation"),
        ({"dropout": 1.0}, ValueError, "dropout"),
        ({"optimizer": "adaam"}, ValueError, "optimizer"),
        ({"learning_rate": "0.1"}, TypeError, "learning_rate"),
        ({"epochs": 0}, ValueError, "epochs"),
        ({"epochs": 1.5}, TypeError, "epochs"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"early_stopping": "yes"}, TypeError, "early_stopping"),
        ({"early_stopping": True, "validation_fraction": 1.5}, ValueError, "validation"),
        ({"early_stopping": True, "patience": 0}, ValueError, "patience"),
        ({"warm_start": None}, TypeError, "warm_start"),
        ({"backend": "abacus"}, ValueError, "abacus"),
    ],
    ids=str,
)
def test_parameters_are_checked_in_fit(cls, options, error, message):
    X, y = data_for(cls)
    estimator = cls(**options)
    assert estimator.get_params() == cls().get_params() | options
    with pytest.raises(error, match=message):
        estimator.fit(X, y)
    with pytest.raises(NotFittedError):
        estimator.predict(X)


@both
@pytest.mark.parametrize("X", [[[1.0]] * 9, [[1.0, 2.0, 2.0]] * 9], ids=["one feature", "constant features"])
def test_constant_features(cls, X):
    y = [0, 1, 1] * 3
    estimator = cls(layers=(), epochs=400, learning_rate=0.02, random_state=0).fit(X, y)
    expected = [1 / 3, 2 / 3] if cls is NeonClassifier else 2 / 3  # the mean
    np.testing.assert_allclose(outputs(estimator, X[:1])[0], expected, atol=0.02)


def test_one_row_is_enough_for_a_regressor_but_not_for_a_classifier():
    model = NeonRegressor(**SMALL).fit([[1.0, 2.0]], [5.0])
    assert model.predict([[1.0, 2.0]]).shape == (1,)
    assert model.predict([[1.0, 2.0]])[0] == pytest.approx(5, abs=1)
    with pytest.raises(ValueError, match=r"NeonClassifier.fit: expected at least two classes, got 1 class, \[5\]"):
        NeonClassifier(**SMALL).fit([[1.0, 2.0]], [5])


@pytest.mark.slow
def test_accuracy_on_digits_and_diabetes():
    """The limits are about those of MLPClassifier and of a scaled MLPRegressor with early stopping."""
    X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
    assert NeonClassifier(random_state=0).fit(X, y).score(X_test, y_test) > 0.97
    X, X_test, y, y_test = train_test_split(*load_diabetes(return_X_y=True), random_state=0)
    assert NeonRegressor(random_state=0, early_stopping=True).fit(X, y).score(X_test, y_test) > 0.25
