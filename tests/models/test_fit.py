"""Model.fit, predict, predict_proba, predict_classes and evaluate on arrays, data frames and texts."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neonlite import Backend, gen_backend
from neonlite.backend import use_backend
from neonlite.callbacks import Callbacks, History, TerminateOnNaN, TrainCostCallback
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers import (
    LSTM,
    Affine,
    BatchNorm,
    Conv,
    GeneralizedCost,
    GeneralizedCostMask,
    LookupTable,
    MergeMultistream,
    RecurrentLast,
)
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import read_checkpoint, write_checkpoint
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.optimizers.rules import OPTIMIZERS
from neonlite.transforms import CrossEntropyBinary, CrossEntropyMulti, Logistic, MeanSquared, Rectlin, Softmax, Tanh

init = GlorotUniform()
TRAINING = Path(__file__).parents[2] / "docs" / "training.md"


def affine(nout: int, activation: Any = None) -> Affine:
    return Affine(nout, init, bias=Constant(0), activation=activation)


def classifier(nout: int = 3, hidden: int = 8) -> Model:
    return Model([affine(hidden, Rectlin()), affine(nout, Softmax())])


def corners(n: int = 60) -> tuple[Any, Any]:
    """Return points around three corners, and the corner's name."""
    rng = np.random.default_rng(0)
    index = rng.integers(0, 3, n)
    points = np.array([[0, 0], [3, 0], [0, 3]])[index] + rng.normal(scale=0.5, size=(n, 2))
    return points * [1, 1000], np.array(["zero", "x", "y"])[index]


def fit(model: Model, *args: Any, **kwargs: Any) -> History:
    """Train quietly, fast."""
    options = {"epochs": 40, "optimizer": Adam(learning_rate=0.05), "progress_bar": False}
    return model.fit(*args, **options | kwargs)


# --- kinds of data and targets ---------------------------------------------------------------------------------------


def test_classes_are_learned_from_arrays_and_returned_as_given(be):
    X, y = corners()
    model = classifier()
    history = fit(model, X, y)
    assert isinstance(model.cost, GeneralizedCost)
    assert isinstance(model.cost.costfunc, CrossEntropyMulti)
    assert model.predict_classes(X).tolist() == y.tolist()
    probabilities = model.predict_proba(X)
    assert np.array_equal(probabilities, model.predict(X))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert history.last("loss") < 0.1
    assert model.evaluate(X, y) == {"accuracy": 1.0}


def test_a_regression_works_in_the_units_of_the_targets(be, rng):
    X = rng.normal(size=(80, 2)) * [1, 1e4]
    y = 1e5 + 300 * X[:, 0] - 0.02 * X[:, 1]
    model = Model([affine(1)])
    fit(model, X, y, epochs=60)
    assert isinstance(model.cost.costfunc, MeanSquared)
    predicted = model.predict(X)
    assert predicted.shape == (80,)  # as y
    np.testing.assert_allclose(predicted, y, atol=3)
    values = model.evaluate(X, y)
    assert list(values) == ["mse", "mae", "r2"]
    np.testing.assert_allclose(values["mse"], np.mean((predicted - y) ** 2), rtol=1e-2)
    np.testing.assert_allclose(values["mae"], np.abs(predicted - y).mean(), rtol=1e-2)
    np.testing.assert_allclose(values["r2"], 1 - values["mse"] / y.var(), rtol=1e-6)
    with pytest.raises(TypeError, match="predict_classes: expected a model that was trained on classes"):
        model.predict_classes(X)
    with pytest.raises(TypeError, match=r"predict_proba: expected a network that ends with Softmax\(\) or Logistic"):
        model.predict_proba(X)


def test_several_numbers_come_back_as_columns(be, rng):
    X = rng.normal(size=(60, 2))
    Y = np.column_stack([X[:, 0] * 100, X[:, 1] - 7])
    model = Model([affine(2)])
    fit(model, X, Y, epochs=80)
    np.testing.assert_allclose(model.predict(X), Y, atol=2)


def test_two_classes_with_one_output(be):
    X, y = corners()
    model = Model([affine(8, Tanh()), affine(1, Logistic())])
    history = fit(model, X, y == "x", validation_split=0.25)
    assert isinstance(model.cost.costfunc, CrossEntropyBinary)
    assert model.predict_classes(X).tolist() == (y == "x").tolist()
    p = model.predict(X)
    np.testing.assert_allclose(model.predict_proba(X), np.column_stack([1 - p[:, 0], p[:, 0]]))
    assert model.evaluate(X, y == "x", ["accuracy", "roc_auc"]) == {"accuracy": 1.0, "roc_auc": 1.0}
    assert history.last("Accuracy") == 1


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fit_accepts_the_name_of_every_optimizer(cpu, optimizer):
    X, y = corners()
    model = Model([affine(3, Softmax())])
    model.fit(X, y, epochs=1, optimizer=optimizer, progress_bar=False)
    before = model.get_weights()
    model.fit(X, y, epochs=1, optimizer=optimizer, progress_bar=False)
    after = model.get_weights()
    assert all(np.isfinite(x).all() and not np.array_equal(x, before[name]) for name, x in after.items())


def test_averages_of_f1_are_recorded_under_their_names(cpu):
    X, y = corners()
    history = fit(Model([affine(3, Softmax())]), X, y, validation_split=0.25, metrics=["f1_macro", "f1_micro"])
    assert {"F1", "F1_micro"} <= set(history)


def test_several_labels(be):
    X, y = corners()
    labels = np.column_stack([y == "x", y != "zero"]).astype(int)
    model = Model([affine(8, Tanh()), affine(2, Logistic())])
    history = fit(model, X, labels, validation_split=0.25, metrics="f1")
    assert isinstance(model.cost.costfunc, CrossEntropyBinary)
    assert np.array_equal(model.predict_classes(X), labels)
    assert model.evaluate(X, labels) == {"f1": 1.0}
    assert history.last("F1") == 1
    with pytest.raises(ValueError, match=r'several labels, "f1", "roc_auc" or .*, got \'accuracy\''):
        model.evaluate(X, labels, "accuracy")


def test_images_with_channels_last_give_the_results_of_channels_first(be, rng):
    images = rng.integers(0, 256, (24, 6, 6, 3), dtype=np.uint8)
    y = (images[..., 0].mean(axis=(1, 2)) > images[..., 1].mean(axis=(1, 2))).astype(int)
    results = []
    for X in (images, images.transpose(0, 3, 1, 2)):
        be.rng_reset()
        model = Model([Conv((3, 3, 4), init, activation=Rectlin()), affine(2, Softmax())])
        fit(model, X, y, epochs=2, shuffle=False)
        results.append(model.predict(X))
        np.testing.assert_allclose(model.predict(X[3]), results[-1][3], rtol=1e-5)
        np.testing.assert_allclose(model.predict(X / 255), results[-1], rtol=1e-4)  # scaled as the training data
    assert np.array_equal(*results)
    be.bsz = 1
    model.set_batch_size(1)
    direct = model.layers.fprop(be.array((images[:1] / 255).transpose(3, 1, 2, 0).reshape(-1, 1)), inference=True)
    np.testing.assert_allclose(results[0][:1], direct.get().T, rtol=1e-4)


def test_a_list_of_images_is_an_array_of_rows(be, rng):
    images, labels = rng.integers(0, 256, (12, 6, 6, 3), dtype=np.uint8), ["a", "b"] * 6
    model = Model([Conv((3, 3, 4), init, bias=Constant(0)), affine(2, Softmax())])
    fit(model, [*images], labels, epochs=1, shuffle=False)
    np.testing.assert_array_equal(model.predict([*images]), model.predict(images))
    assert model.callbacks.train_set.shape == (3, 6, 6)


def test_texts_are_classified(be):
    texts = ["good film", "bad film", "very good film", "very bad indeed"] * 6
    y = ["liked", "not", "liked", "not"] * 6
    gates = {"activation": Tanh(), "gate_activation": Logistic()}
    model = Model([LookupTable(20, 8, init), LSTM(8, init, **gates), RecurrentLast(), affine(1, Logistic())])
    fit(model, texts, y, epochs=20)
    assert model.predict_classes(["good", "bad"]).tolist() == ["liked", "not"]
    assert model.predict_classes("a good one") == "liked"


@pytest.mark.long
def test_sequences_have_one_layout_in_and_out(be, rng):
    X = rng.normal(size=(16, 2, 5)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)  # a class for each step
    gates = {"activation": Tanh(), "gate_activation": Logistic()}
    model = Model([LSTM(8, init, **gates), affine(2, Softmax())])
    fit(model, X, y, layout="NFT", epochs=80)
    assert model.predict(X).shape == (16, 2, 5)
    assert model.predict_classes(X).shape == (16, 5)
    assert (model.predict_classes(X) == y).mean() > 0.9
    assert model.evaluate(X, y)["accuracy"] == pytest.approx((model.predict_classes(X) == y).mean())
    with pytest.raises(ValueError, match=r"expected rows of shape \(2, 5\), .* got \(16, 5, 2\). The axes must be NFT"):
        model.predict(X.transpose(0, 2, 1))


def test_recurrent_layers_start_each_row_with_a_state_of_zeros(be, rng):
    X, y = rng.normal(size=(6, 5, 3)), rng.normal(size=6)
    model = Model([LSTM(4, init, activation=Tanh(), gate_activation=Logistic()), RecurrentLast(), affine(1)])
    fit(model, X, y, epochs=1, layout="NTF", batch_size=2, shuffle=False, optimizer=GradientDescentMomentum(0.0))
    losses = [0.5 * (model.predict(X[i : i + 2]) - y[i : i + 2]) ** 2 / y.std() ** 2 for i in (0, 2, 4)]
    assert model.total_cost == pytest.approx(np.mean(losses), rel=1e-4)


def test_data_frames_with_the_target_as_a_column(be):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": [20, 30, 40, 50] * 6, "job": ["a", "b", "a", "c"] * 6, "pay": [1.0, 2, 3, 4] * 6})
    model = Model([affine(8, Tanh()), affine(1)])
    fit(model, table, "pay", epochs=100)
    np.testing.assert_allclose(model.predict(table), table["pay"], atol=0.1)
    assert model.predict({"age": 30, "job": "b"}) == pytest.approx(2, abs=0.1)
    assert model.evaluate(table, "pay")["r2"] > 0.99
    with pytest.raises(ValueError, match="expected one of the columns age, job, pay for y='salary', got 'salary'"):
        fit(model, table, "salary")


def test_eight_lines_lead_from_a_csv_file_to_a_saved_model(cpu, tmp_path, monkeypatch, capsys):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    X, y = corners()
    pandas.DataFrame({"width": X[:, 0], "height": X[:, 1], "species": y}).to_csv("flowers.csv", index=False)
    code = TRAINING.read_text().partition("```python\n")[2].partition("```")[0]
    assert sum(line != "" for line in code.splitlines()) <= 8
    names: dict[str, Any] = {}
    exec(code, names)
    assert "Epoch" in capsys.readouterr().err
    assert names["matrix"].sum() == 60
    assert names["matrix"].metric.class_names == ["x", "y", "zero"]
    assert Path("confusion.png").read_bytes().startswith(b"\x89PNG")
    saved = Model("flowers.neon")
    assert saved.epoch_index == names["model"].epoch_index
    assert np.array_equal(saved.predict_classes(names["table"]), names["model"].predict_classes(names["table"]))


def test_an_autoencoder_has_its_inputs_as_targets(be, rng):
    X = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 6))
    model = Model([affine(3), affine(6)])
    history = fit(model, X, epochs=60)
    assert history.last("loss") < 0.05


def test_several_inputs_are_a_list_of_arrays(be, rng):
    a, b = rng.normal(size=(40, 3)), rng.normal(size=(40, 2))
    y = (a[:, 0] + b[:, 0] > 0).astype(int)
    model = Model([MergeMultistream([[affine(4, Tanh())], [affine(4, Tanh())]], merge="stack"), affine(2, Softmax())])
    fit(model, [a, b], y)
    assert (model.predict_classes([a, b]) == y).mean() > 0.9


# --- training --------------------------------------------------------------------------------------------------------


def test_training_equals_that_on_an_iterator_with_the_same_preprocessing(be):
    X, y = corners()
    names, indices = np.unique(y, return_inverse=True)
    model = classifier()
    fit(model, X, y, epochs=3, batch_size=16)
    be.rng_reset()
    be.bsz = 16
    other = classifier()
    data = ArrayIterator(((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32), indices, nclass=3, shuffle=True)
    other.fit(data, CrossEntropyMulti(), Adam(learning_rate=0.05), 3)
    for a, b in zip(model.get_weights().values(), other.get_weights().values(), strict=True):
        assert np.array_equal(a, b)
    assert names.tolist() == model.target_encoder.classes


def test_another_fit_continues_with_the_optimizer_and_the_encoders(cpu):
    X, y = corners()
    model = classifier()
    first = fit(model, X, y, epochs=2)
    optimizer, encoder = model.optimizer, model.input_encoder
    second = model.fit(X[:20] + 1, y[:20], epochs=3, progress_bar=False)
    assert model.optimizer is optimizer
    assert model.input_encoder is encoder
    assert model.epoch_index == 5
    assert first.epochs("loss") == [1, 2]
    assert second.epochs("loss") == [3, 4, 5]


def test_another_optimizer_starts_with_states_of_zeros(cpu):
    X, y = corners()
    model = classifier()
    fit(model, X, y, epochs=2, optimizer="momentum", shuffle=False, batch_size=20)
    other = model.copy()
    other.optimizer = None
    for layer in other.layers_to_optimize:
        layer.states.clear()
    for each in (model, other):
        fit(each, X, y, epochs=1, optimizer="rmsprop", shuffle=False, batch_size=20)
    for a, b in zip(model.get_weights().values(), other.get_weights().values(), strict=True):
        assert np.array_equal(a, b)
        assert np.isfinite(a).all()


@pytest.mark.parametrize("load", [lambda model, path: Model(model.save_params(path)), lambda model, path: model.copy()])
@pytest.mark.parametrize("options", [{}, {"batch_size": 8}, {"shuffle": False}, {"callbacks": TerminateOnNaN()}])
def test_a_loaded_model_and_a_copy_are_trained_further_on_other_data(cpu, tmp_path, load, options):
    X, y = corners()
    model = classifier()
    fit(model, X, y, epochs=2)
    loaded = load(model, tmp_path / "m.neon")
    history = fit(loaded, X[:41], y[:41], epochs=3, **options)
    assert loaded.epoch_index == 5
    assert history.epochs("loss")[-3:] == [3, 4, 5]
    assert loaded.optimizer.t == model.optimizer.t + -(-3 * 41 // options.get("batch_size", 32))


def test_neons_form_is_unchanged_and_forgets_the_encoders(cpu):
    cpu.bsz = 10
    X, y = corners()
    model = classifier()
    fit(model, X, y, epochs=1)
    data = ArrayIterator(X / [1, 1000], np.unique(y, return_inverse=True)[1], nclass=3)
    assert model.fit(data, CrossEntropyMulti(), Adam(), 2) is None
    assert model.fit(dataset=data, cost=model.cost, optimizer=model.optimizer, num_epochs=3) is None
    assert model.epoch_index == 3
    assert model.input_encoder is model.target_encoder is None
    assert model.predict_classes((X / [1, 1000])[:4]).dtype.kind == "i"


def test_an_iterator_can_be_trained_on_in_the_short_form(cpu):
    cpu.bsz = 10
    X, y = corners()
    data = ArrayIterator(X / [1, 1000], np.unique(y, return_inverse=True)[1], nclass=3)
    model = classifier()
    history = fit(model, data, CrossEntropyMulti(), epochs=4, validation_data=data, metrics=["accuracy"])
    assert list(history) == ["loss", "val_loss", "Accuracy"]
    assert model.evaluate(data, metrics="accuracy")["accuracy"] == history.last("Accuracy")
    with pytest.raises(TypeError, match="expected no validation_split together with an iterator, got both"):
        fit(model, data, validation_split=0.5)


def test_the_batch_size_of_the_backend_is_unchanged(cpu):
    X, y = corners()
    for bsz in (0, 7):
        cpu.bsz = bsz
        model = classifier()
        fit(model, X, y, epochs=1, batch_size=1000)
        model.predict(X)
        model.evaluate(X, y)
        assert cpu.bsz == bsz


def test_the_batch_size_of_the_backend_may_exceed_the_rows(cpu):
    X, y = corners()
    cpu.bsz = 128
    history = fit(classifier(), X, y, epochs=1, batch_size=8, validation_split=0.1)
    assert len(history["val_loss"]) == 1


def test_a_model_trains_on_its_own_backend(cpu):
    X, y = corners()
    with use_backend(Backend("cpu", rng_seed=3, batch_size=4)) as be:
        model = classifier()
        model.be = be
        model.initialize(2)
    model.fit(X, y, epochs=1, validation_split=0.5, progress_bar=False)
    assert model.callbacks.train_set.be is model.be
    assert model.layers.layers[0].W.backend is model.be
    assert cpu.bsz == 0


def test_validation_rows_are_a_random_part_of_each_class(cpu):
    X, y = np.arange(40.0)[:, None], ["a"] * 30 + ["b"] * 10  # sorted by class

    class Watch(TrainCostCallback):
        def on_epoch_end(self, epoch):
            self.rows = self.model.callbacks.callbacks[1].eval_set

    watch = Watch()
    model = Model([affine(2, Softmax())])
    history = fit(model, X, y, epochs=1, validation_split=0.2, callbacks=[watch])
    rows = watch.rows
    labels = rows._labels.array[:, 0]
    assert (rows.ndata, (labels == 0).sum(), (labels == 1).sum()) == (8, 6, 2)
    assert model.callbacks.train_set.ndata == 32
    chosen = np.sort(rows.sources[0].array[:, 0] * X.std() + X.mean()).round().astype(int).tolist()
    assert chosen[:6] != list(range(6))
    assert list(history) == ["loss", "val_loss", "Accuracy"]
    with pytest.raises(ValueError, match="expected rows both to train and to validate on"):
        fit(classifier(2), [[0.0], [1.0]], ["a", "b"], validation_split=0.01)


def test_validation_data_is_encoded_as_the_training_data(cpu):
    X, y = corners()
    model = classifier()
    history = fit(model, X[:40], y[:40], epochs=2, validation_data=(X[40:], y[40:]))
    values = model.evaluate(X[40:], y[40:], ["accuracy", "log_loss"])
    assert history.last("Accuracy") == pytest.approx(values["accuracy"])
    assert history.last("val_loss") == pytest.approx(values["log_loss"], rel=1e-4)
    with pytest.raises(ValueError, match=r"validation_data: expected one of the classes .*, got 'w'"):
        fit(model, X[:40], y[:40], validation_data=(X[40:41], ["w"]))


def test_weights_of_rows_equal_repeated_rows(be):
    X, y = corners(12)
    weights = np.array([3, 1, 0] * 4)
    weighted, repeated = classifier(), classifier()
    sgd = GradientDescentMomentum(0.1, 0.0)
    fit(weighted, X, y, sample_weight=weights, epochs=1, batch_size=12, optimizer=sgd, shuffle=False)
    assert isinstance(weighted.cost, GeneralizedCostMask)
    be.rng_reset()
    index = np.repeat(np.arange(12), weights)
    scale, shift = X.std(axis=0), X.mean(axis=0)
    initial = classifier()
    fit(initial, X, y, epochs=1, batch_size=12, optimizer=GradientDescentMomentum(0.0, 0.0), shuffle=False)
    start = initial.get_weights()
    be.bsz = 16
    repeated.initialize(2)
    repeated.set_weights({b: start[a] for a, b in zip(start, repeated.get_weights(), strict=True)})
    names = np.unique(y).tolist()
    data = ArrayIterator((X[index] - shift) / scale, [names.index(x) for x in y[index]], nclass=3)
    repeated.fit(data, CrossEntropyMulti(), GradientDescentMomentum(0.1 * 16 / 12, 0.0), 1)  # means over 16, not 12
    for a, b in zip(weighted.get_weights().values(), repeated.get_weights().values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_balanced_class_weights_are_those_of_scikit_learn(cpu):
    sklearn_utils = pytest.importorskip("sklearn.utils.class_weight")
    from neonlite.models.training_data import TrainingData

    X, y = np.zeros((10, 1)), np.array(["a"] * 7 + ["b"] * 3)
    data = TrainingData(Model([affine(2, Softmax())]), "fit", X, y)
    data.set_weights(None, "balanced")
    np.testing.assert_allclose(data.row_weights, sklearn_utils.compute_sample_weight("balanced", y), rtol=1e-6)
    data.set_weights(np.arange(10), {"b": 5.0})
    assert data.row_weights.tolist() == [0, 1, 2, 3, 4, 5, 6, 35, 40, 45]


def test_weighted_training_validates_without_weights(cpu):
    X, y = corners()
    history = fit(classifier(), X, y, class_weight="balanced", epochs=2, validation_split=0.3)
    assert history.last("val_loss") < 2


def test_an_interrupted_epoch_continues_with_the_same_data_and_starts_again_with_other_data(cpu):
    X, y = corners()

    class Interrupt(TrainCostCallback):
        def on_minibatch_end(self, epoch, minibatch):
            if (epoch, minibatch) == (1, 1):
                raise KeyboardInterrupt

    results = []
    for interrupted in (False, True):
        cpu.rng_reset()
        model = classifier()
        if interrupted:
            with pytest.raises(KeyboardInterrupt):
                fit(model, X, y, epochs=3, batch_size=10, callbacks=[Interrupt()])
            assert (model.epoch_index, model.minibatch_index) == (1, 2)
            model.fit(X, y, epochs=2, batch_size=10, progress_bar=False)
        else:
            fit(model, X, y, epochs=3, batch_size=10)
        results.append(list(model.get_weights().values()))
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))
    model = classifier()
    with pytest.raises(KeyboardInterrupt):
        fit(model, X, y, epochs=3, batch_size=10, callbacks=[Interrupt()])
    model.fit(X, y, epochs=1, batch_size=20, progress_bar=False)
    assert (model.epoch_index, model.minibatch_index) == (2, 0)


def test_callbacks_may_be_a_callbacks_object(cpu):
    X, y = corners()
    model = classifier()
    callbacks = Callbacks(model, progress_bar=False)
    assert fit(model, X, y, epochs=1, callbacks=callbacks) is callbacks.history


def test_a_progress_bar_is_shown_by_default(cpu, capsys):
    X, y = corners()
    classifier().fit(X, y, epochs=1)
    assert "Epoch 1/" in capsys.readouterr().err


# --- checkpoints and other processes ---------------------------------------------------------------------------------


def test_a_saved_model_predicts_from_raw_data_in_a_new_process(cpu, tmp_path):
    X, y = corners()
    model = classifier()
    fit(model, X, y)
    file = tmp_path / "corners.neon"
    model.save_params(file)
    script = f"import neonlite as nl\nprint(nl.Model({str(file)!r}).predict_classes({X[:5].tolist()}).tolist())"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(y[:5].tolist())
    loaded = Model(file)
    assert np.array_equal(loaded.predict(X), model.predict(X))
    assert repr(loaded.input_encoder) == repr(model.input_encoder)
    loaded.fit(X, y, epochs=1, progress_bar=False)
    assert loaded.epoch_index == 41


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d["encoders"]["inputs"]["config"].update(sizes=[3], mean=[0.0] * 3, deviation=[1.0] * 3),
        lambda d: d["encoders"]["inputs"].update(type="neonlite.encoders.targets.ClassEncoder"),
        lambda d: d["encoders"]["inputs"].update(type="neonlite.layers.linear.Linear"),
        lambda d: d["encoders"]["targets"]["config"].update(classes=["x", "x", "y"]),
        lambda d: d.update(encoders=3),
        lambda d: d["encoders"].update(inputs=[1]),
    ],
)
def test_a_file_with_encoders_that_make_no_sense_is_an_error(cpu, tmp_path, damage):
    model = classifier()
    fit(model, *corners(), epochs=1)
    file = tmp_path / "model.neon"
    model.save_params(file)
    description, arrays = read_checkpoint(file)
    damage(description)
    write_checkpoint(str(file), description, arrays)
    with pytest.raises(CheckpointError, match="encoders"):
        Model(file)


@pytest.mark.parametrize(("num_threads", "count"), [(4, 50), pytest.param(8, 1000, marks=pytest.mark.slow)])
def test_threads_predict_while_another_one_trains(cpu, num_threads, count):
    X, y = corners()
    model, other = classifier(), classifier()
    fit(model, X, y)
    starts = [i % 58 for i in range(count)]
    expected = [model.predict(X[i : i + 1 + i % 3]) for i in range(58)]
    correct, ended = [], threading.Event()

    def predict() -> None:
        for i in starts:
            correct.append(np.array_equal(model.predict(X[i : i + 1 + i % 3]), expected[i]))

    threads = [threading.Thread(target=predict) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    watcher = threading.Thread(target=lambda: [*(thread.join() for thread in threads), ended.set()])
    watcher.start()
    epochs = 0
    while not ended.is_set() or not epochs:
        fit(other, X, y, epochs=3)
        epochs += 3
    watcher.join()
    assert other.epoch_index == epochs > 0
    assert correct == [True] * (num_threads * count)  # an error in a thread would leave some out


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda X, y: {"y": y[:-1]}, "expected X and y with equal numbers of rows, got 60 and 59"),
        (lambda X, y: {"epochs": 0}, "fit: expected an integer >= 1 for epochs, got 0"),
        (lambda X, y: {"batch_size": 0}, "fit: expected an integer >= 1 for batch_size, got 0"),
        (lambda X, y: {"validation_split": 1.5}, "expected a finite number >= 0 and < 1 for validation_split, got 1.5"),
        (lambda X, y: {"sample_weight": [1, 2]}, "expected 60 finite numbers >= 0 for sample_weight"),
        (lambda X, y: {"sample_weight": -np.ones(60)}, "expected 60 finite numbers >= 0 for sample_weight"),
        (lambda X, y: {"class_weight": {"w": 1}}, r"a dict with the labels \['x', 'y', 'zero'\] for class_weight, got"),
        (lambda X, y: {"class_weight": "even"}, 'expected "balanced", or a dict with the labels'),
        (lambda X, y: {"metrics": "mse2", "validation_split": 0.5}, "expected one of 'accuracy', .*got 'mse2'"),
        (lambda X, y: {"layout": "NTF"}, r"expected one of 'NF', 'NT' for layout, got 'NTF' for an array \(60, 2\)"),
    ],
)
def test_invalid_arguments_are_reported_before_the_first_step(cpu, arguments, message):
    X, y = corners()
    model = classifier()
    with pytest.raises((TypeError, ValueError), match=message):
        fit(model, X, **({"y": y} | arguments(X, y)))
    assert model.epoch_index == 0
    fit(model, X, y, epochs=1)  # the model can be used


def test_after_targets_that_do_not_match_other_data_can_be_used(cpu, rng):
    model = classifier(nout=2)
    with pytest.raises(ValueError, match=r"expected 2 classes for the 2 outputs .*, got 3: .*Affine\(3"):
        fit(model, *corners())
    fit(model, rng.normal(size=(10, 7)), [0, 1] * 5, epochs=1)  # seven features


def test_large_inputs_that_are_not_scaled_cause_a_warning(cpu, rng):
    images = rng.uniform(0, 255, (8, 3, 6, 6))
    model = Model([Conv((3, 3, 4), init), affine(2, Softmax())])
    with pytest.warns(UserWarning, match=r"the inputs are from .* to 25\d?\.?\d* and are not scaled.*uint8 is divided"):
        fit(model, images, [0, 1] * 4, epochs=1)


def test_a_model_trained_on_uint8_is_not_trained_on_floats(cpu, rng):
    images = rng.integers(0, 256, (8, 3, 6, 6), dtype=np.uint8)
    model = Model([Conv((3, 3, 4), init), affine(2, Softmax())])
    fit(model, images, [0, 1] * 4, epochs=1)
    with pytest.raises(
        TypeError, match=r"expected uint8 inputs, as in the training data, got float64. .*astype\('uint8'"
    ):
        fit(model, images / 255, [0, 1] * 4)


def test_batch_normalization_never_sees_a_minibatch_of_one_row(cpu, rng):
    X, y = corners(33)  # 32 + 1
    model = Model([affine(4), BatchNorm(), affine(3, Softmax())])
    sizes = []

    class Sizes(TrainCostCallback):
        def on_minibatch_end(self, epoch, minibatch):
            sizes.append(self.model.be.bsz)

    fit(model, X, y, epochs=3, callbacks=[Sizes()])
    assert set(sizes) == {32}


def test_one_sample_cannot_be_evaluated(cpu):
    X, y = corners()
    model = classifier()
    fit(model, X, y, epochs=1)
    with pytest.raises(ValueError, match=r"evaluate: expected rows \(n, ...\), got one sample"):
        model.evaluate(X[0], y[:1])
    with pytest.raises(ValueError, match="expected X and y with equal numbers of rows, got 60 and 1"):
        model.evaluate(X, y[:1])


def test_a_model_without_training_needs_no_batch_size_to_predict(cpu):
    cpu.bsz = 0
    with pytest.warns(UserWarning, match="the weights are random"):
        assert Model([affine(2)]).predict(np.zeros((3, 4))).shape == (3, 2)


def test_without_training_a_network_with_probabilities_predicts_indices(cpu):
    gen_backend("cpu", batch_size=4)
    model = classifier()
    model.initialize(2)
    assert model.predict_classes(np.zeros((3, 2))).shape == (3,)
    assert model.predict_proba(np.zeros(2)).shape == (3,)
