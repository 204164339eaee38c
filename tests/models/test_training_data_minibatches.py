"""Training, evaluation and prediction on iterables of minibatches, and on lists of dicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant
from neonlite.layers import Affine, Conv, Linear
from neonlite.models import Model
from neonlite.optimizers import Adam, GradientDescentMomentum

PAIRS = r"Pass inputs and targets as two arrays, .* Minibatches are passed alone, .* pairs \(X, y\) of several rows"
QUICK: dict[str, Any] = {"epochs": 1, "progress_bar": False}
RNG = np.random.default_rng(3)
X = RNG.normal(size=(50, 4)).astype(np.float32)
Y = np.arange(50) % 3


class Loader:
    """Yields minibatches of 20, 20 and 10 rows, again in each loop; counts the loops."""

    def __init__(self, *arrays: Any, sizes: tuple[int, ...] = (20, 20, 10)) -> None:
        self.arrays, self.sizes, self.loops = arrays, sizes, 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self.loops += 1
        start = 0
        for size in self.sizes:
            yield tuple(x[start : start + size] for x in self.arrays)
            start += size


@pytest.fixture(autouse=True)
def backend() -> Any:
    return gen_backend("cpu", rng_seed=0, batch_size=7)


def classifier(*first: Any) -> Model:
    return Model([*first, Affine(3, activation="softmax")])


def test_training_on_minibatches_is_gradient_descent_on_each_of_them(backend):
    y, w = X @ [[1.0], [2.0], [-1.0], [0.5]], np.zeros((1, 4))
    model = Model([Linear(1, Constant(0))])
    loader = Loader(X, y)
    history = model.fit(loader, cost="mse", optimizer=GradientDescentMomentum(0.1, 0.0), **QUICK | {"epochs": 2})
    losses = []
    for _ in range(2):
        costs = []
        for x, t in Loader(X.astype(float), y):
            error = x @ w.T - t
            costs.append(np.mean(error**2 / 2))
            w = w - 0.1 * (error.T @ x) / len(x)
        losses.append(np.mean(costs))
    np.testing.assert_allclose(model[0].W.get(), w, rtol=1e-5)
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    assert (model.ndata, model.nbatches, backend.bsz) == (50, 3, 7)
    assert loader.loops == 2 + 2  # they are read once before, and the start of a second loop is tried


def test_predictions_and_metrics_of_minibatches_are_those_of_their_rows():
    model = classifier()
    model.fit(Loader(X, Y), validation_data=Loader(X, Y), metrics="accuracy", **QUICK)
    p = model.predict(Loader(X, Y))
    np.testing.assert_allclose(p, model.predict(X), rtol=1e-5)
    assert model.evaluate([(X, Y)])["accuracy"] == np.mean(p.argmax(axis=1) == Y)
    assert model.callbacks.history["Accuracy"] == [np.mean(p.argmax(axis=1) == Y)]


def test_the_form_of_neon_takes_minibatches_too():
    model = classifier()
    model.fit(Loader(X, Y), "cross_entropy", Adam(0.1), num_epochs=30)
    model.fit(Loader(X, Y), "cross_entropy", model.optimizer, num_epochs=31)
    assert model.epoch_index == 31
    assert model.evaluate(X, Y, "log_loss")["log_loss"] < np.log(3)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_uint8_images_are_transposed_and_scaled_as_in_an_array(layout):
    images = RNG.integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
    given = images if layout == "NHWC" else images.transpose(0, 3, 1, 2)
    model = classifier(Conv((3, 3, 4)))
    model.fit(Loader(given, Y), **QUICK)
    data = ArrayIterator(images.transpose(0, 3, 1, 2) / 255.0, Y, nclass=3, partial_last=True)
    np.testing.assert_allclose(model.predict(given), model.get_outputs(data), rtol=1e-4)
    np.testing.assert_allclose(model.predict(Loader(given, Y)), model.get_outputs(data), rtol=1e-4)


def test_a_network_trained_on_standardized_rows_reads_minibatches_in_the_same_units():
    model = Model([Affine(1)])
    model.fit(1000 * X, 50 * X[:, 0] + 7, **QUICK)
    values = model.evaluate(1000 * X, 50 * X[:, 0] + 7)
    assert model.evaluate(Loader(1000 * X, 50 * X[:, 0] + 7)) == pytest.approx(values, rel=1e-4)


def test_fit_of_minibatches_keeps_how_the_model_prepares_data_and_fit_of_a_data_iterator_forgets_it():
    given, y = 1000 * X + 7, 50 * X[:, :1] + 7
    x, t = ((a - a.mean(axis=0)) / a.std(axis=0) for a in (given.astype(float), y.astype(float)))
    model = Model([Linear(1, Constant(0))])
    optimizer = GradientDescentMomentum(0.1, 0.0)
    model.fit(given, y, optimizer=optimizer, batch_size=50, **QUICK)
    model.fit([(given, y)], optimizer=optimizer, **QUICK)
    w = np.zeros((1, 4))
    for _ in range(2):
        w -= 0.1 * (x @ w.T - t).T @ x / 50
    np.testing.assert_allclose(model.layers[0].W.get(), w, rtol=1e-4)
    model.fit(ArrayIterator(x, t, make_onehot=False), **QUICK)
    assert model.input_encoder is None


class Samples:
    """Yields one sample at a time, as a data set of PyTorch does."""

    def __iter__(self) -> Iterator[Any]:
        return zip(X, Y, strict=True)


class Once:
    """Has one iterator, which ends."""

    def __init__(self) -> None:
        self.iterator = iter([(X, Y)])

    def __iter__(self) -> Iterator[Any]:
        return self.iterator


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (
            lambda: ((x, y) for x, y in Loader(X, Y)),
            TypeError,
            "again in each epoch, got a generator, which ends after",
        ),
        (
            lambda: zip([X], [Y], strict=True),
            TypeError,
            "again in each epoch, got a zip, which ends after the first one",
        ),
        (Once, TypeError, "again in each epoch, got a Once, which ends after the first one. Pass a list"),
        (lambda: Loader(X), TypeError, r"minibatch 1: expected a pair \(X, y\), got"),
        (lambda: Loader(X, Y, Y), TypeError, r"minibatch 1: expected a pair \(X, y\), got"),
        (lambda: [(X, Y, Y)], TypeError, f"got a list of tuples of 3, as of samples or minibatches. {PAIRS}"),
        (lambda: list(zip(X, Y, strict=True)), TypeError, f"got a list of tuples of 2, as of samples .* {PAIRS}"),
        (lambda: [*zip(X.tolist(), "abcde" * 10, strict=True)], TypeError, f"got a list of tuples of 2, as .* {PAIRS}"),
        (
            lambda: [[x.tolist(), int(y)] for x, y in zip(X, Y, strict=True)],
            TypeError,
            f"a list of lists of 2.* {PAIRS}",
        ),
        (lambda: Samples(), ValueError, r"minibatch 1: expected X and y of several rows, got one sample .*fit\(X, y\)"),
        (lambda: Loader(X, Y, sizes=()), ValueError, r"expected minibatches \(X, y\), got none from"),
        (lambda: [(X, Y), (X[:, :2], Y)], ValueError, r"minibatch 2: expected rows of shape \(4,\), .* got \(50, 2\)"),
        (
            lambda: [(X, Y), (X, Y[1:])],
            ValueError,
            "minibatch 2: expected X and y with equal numbers of rows, got 50 and",
        ),
        (lambda: [(X, Y), (np.nan * X, Y)], ValueError, "minibatch 2: X: expected finite values, got nan in row 0"),
        (lambda: [(X, Y), (X, Y + 1)], ValueError, r"minibatch 2: expected one of the classes \[0, 1, 2\] in y, got 3"),
    ],
)
def test_minibatches_that_cannot_be_trained_on_are_refused_before_the_first_step(data, kind, message):
    model = classifier()
    with pytest.raises(kind, match=message):
        model.fit(data(), **QUICK)
    assert model.minibatch_index == 0


def test_another_dtype_in_a_later_epoch_is_refused():
    class Changing(Loader):
        def __iter__(self) -> Iterator[Any]:
            self.loops += 1
            images = (np.full((5, 8, 8, 3), 9) if self.loops < 3 else np.zeros((5, 8, 8, 3))).astype("uint8")
            yield (images if self.loops < 4 else images / 255.0), Y[:5]

    with pytest.raises(TypeError, match="minibatch 1: expected the dtypes of the first minibatch, got float64"):
        classifier(Conv((3, 3, 4))).fit(Changing(), **QUICK | {"epochs": 2})


def test_a_dataloader_of_pytorch_is_trained_on_and_evaluated():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    loader = torch.utils.data.DataLoader(data, batch_size=20, shuffle=True)
    model = classifier()
    history = model.fit(loader, optimizer=Adam(0.1), validation_data=loader, **QUICK | {"epochs": 20})
    assert history["loss"][-1] < history["loss"][0]
    assert model.evaluate(loader)["accuracy"] == history.last("Accuracy") == np.mean(model.predict_classes(X) == Y)


# --- lists of dicts --------------------------------------------------------------------------------------------------

ROWS = [{"size": float(i % 7), "color": ("red", "blue", "green")[i % 3]} for i in range(42)]


def test_a_list_of_dicts_is_a_table():
    labels = [row["color"][0] for row in ROWS]
    model = classifier()
    model.fit(ROWS, labels, optimizer=Adam(0.1), **QUICK | {"epochs": 30})
    assert model.predict_classes(ROWS).tolist() == labels
    columns = {name: [row[name] for row in ROWS] for name in ("size", "color")}
    np.testing.assert_array_equal(model.predict(ROWS), model.predict(columns))
    np.testing.assert_allclose(model.predict(ROWS[4]), model.predict(ROWS)[4], rtol=1e-5)
    assert model.evaluate(ROWS, labels)["accuracy"] == 1


def test_the_target_may_be_a_name_in_a_list_of_dicts():
    model = classifier()
    model.fit(ROWS, "color", **QUICK)
    assert model.classes == ["blue", "green", "red"]
    assert model.predict([{"size": 1.0}, {"size": 2}]).shape == (2, 3)


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([*ROWS, {"size": 1.0}], ValueError, "expected the columns size, color in every row of X, got size in row 42"),
        ([*ROWS, 3], TypeError, "expected a dict in every row of X, got 3 in row 42"),
        ([*ROWS, {"size": None, "color": "red"}], ValueError, "got None in column 'size', row 42"),
    ],
)
def test_dicts_with_other_names_or_missing_values_are_refused(rows, kind, message):
    with pytest.raises(kind, match=message):
        classifier().fit(rows, [0, 1, 2] * 14 + [0], **QUICK)
