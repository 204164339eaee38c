"""Several minibatches for one update: ``fit(..., accumulate=n)``."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest
from helpers.small_models import CLASSES, Stop, blobs, same

import neonlite as nl
from neonlite import gen_backend
from neonlite.callbacks import Callback
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, GeneralizedGANCost, GenerativeAdversarial, Linear
from neonlite.models import GAN, CheckpointError, Model
from neonlite.models.training import TrainingMethods
from neonlite.optimizers import (
    Adam,
    GradientDescentMomentum,
    LossScaling,
    MultiOptimizer,
    Optimizer,
    PowerSchedule,
    UpdateSchedule,
    WeightAverage,
)
from neonlite.transforms import CrossEntropyMulti, GANCost, Rectlin, Softmax

ROWS, N = 37, 5  # 8 minibatches an epoch, the last one of 2 rows
X, Y = blobs(ROWS)


def rows(batch_size: int = N, dtype: Any = "float64", **options: Any) -> ArrayIterator:
    gen_backend("cpu", rng_seed=3, batch_size=batch_size, datatype=dtype)
    return ArrayIterator(X, Y, nclass=CLASSES, partial_last=True, name="blobs", **options)


def classifier() -> Model:
    hidden = Affine(8, Gaussian(scale=0.5), bias=Gaussian(), activation=Rectlin(), name="hidden")
    return Model([hidden, Affine(CLASSES, Gaussian(scale=0.5), activation=Softmax(), name="out")])


def fit(optimizer: Any, accumulate: int, epochs: int = 3, batch_size: int = N, **options: Any) -> Model:
    dataset, model = rows(batch_size, options.pop("dtype", "float64")), classifier()
    model.fit(dataset, CrossEntropyMulti(), optimizer, epochs, accumulate=accumulate, **options)
    return model


def train(model: Model, dataset: Any, optimizer: Any, *callbacks: Any, accumulate: int = 3, epochs: int = 3) -> None:
    run = nl.callbacks.Callbacks(model, dataset, progress_bar=False)
    for callback in callbacks:
        run.add_callback(callback)
    model.fit(dataset, CrossEntropyMulti(), optimizer, epochs, run, accumulate=accumulate)


def train_until(at: tuple[int, int], *args: Any, **options: Any) -> None:
    """Train, and stop after a step."""
    with pytest.raises(KeyboardInterrupt):
        train(*args, Stop(*at), **options)


def assert_close(model: Model, expected: dict[str, Any], tolerance: float = 1e-12) -> None:
    weights = model.get_weights()
    assert weights.keys() == expected.keys()
    for name, w in weights.items():
        np.testing.assert_allclose(w, expected[name], tolerance, tolerance, err_msg=name)


# --- oracles ---------------------------------------------------------------------------------------------------------


def first_weights() -> dict[str, Any]:
    dataset, model = rows(), classifier()
    model.initialize(dataset)
    return model.get_weights()


def in_numpy(
    size: int, epochs: int, rate: float, momentum: float, limit: float, first: Any = None, part: slice = slice(0, ROWS)
) -> dict[str, Any]:
    """Return the weights after gradient descent in NumPy: an update for each ``size`` rows, and for those left."""
    names = ["hidden.W", "hidden_bias.W", "out.W"]
    weights = first or first_weights()
    velocity = {name: np.zeros_like(w) for name, w in weights.items()}
    for _ in range(epochs):
        for k in range(part.start, part.stop, size):
            x, y = X[k : min(k + size, part.stop)].astype(float), Y[k : min(k + size, part.stop)]
            before = x @ weights[names[0]].T + weights[names[1]].T
            hidden = np.where(before > 0, before, 0)
            scores = np.exp(hidden @ weights[names[2]].T)
            error = scores / scores.sum(1, keepdims=True) - np.eye(CLASSES)[y]
            inner = error @ weights[names[2]] * (before > 0)
            found = [inner.T @ x, inner.sum(0)[:, None], error.T @ hidden]
            found = [g / len(x) for g in found]
            norm = np.sqrt(sum((g * g).sum() for g in found))
            for name, g in zip(names, found, strict=True):
                velocity[name] = momentum * velocity[name] - rate * g * min(1, limit / norm)
                weights[name] = weights[name] + velocity[name]
    return weights


@pytest.mark.parametrize("accumulate", [1, 2, 3, 4, 8, 100])
def test_updates_have_the_clipped_mean_gradient_of_all_their_rows(accumulate):
    """The last update of an epoch is by the rows that are left, of a smaller minibatch, too."""
    model = fit(GradientDescentMomentum(0.5, 0.9, gradient_clip_norm=0.1), accumulate)
    assert_close(model, in_numpy(N * accumulate, 3, 0.5, 0.9, 0.1))
    assert model.layers.parameters[0].updates[1] == 3 * -(-8 // accumulate)
    assert (model.accumulated_rows, model.accumulate) == (0, 1)


class Custom(Optimizer):
    """A custom optimizer, which divides by the batch size of the backend."""

    learning_rate = 0.1

    def optimize(self, layer_list, epoch=0):
        for layer in layer_list:
            (w, dw), _ = layer.get_params()
            w[:] = w - 0.1 * dw / layer.be.bsz


OPTIMIZERS: dict[str, Any] = {
    "adam": lambda: Adam(0.05),
    "several": lambda: MultiOptimizer({"default": Adam(0.05), "Bias": GradientDescentMomentum(0.1, 0.9)}),
    "average": lambda: WeightAverage(Adam(0.05), 0.5),
    "scaled": lambda: LossScaling(Adam(0.05), growth_interval=4),
    "each update": lambda: Adam(0.05, schedule=UpdateSchedule(PowerSchedule(1, 0.7))),
    "custom": Custom,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_that_with_larger_minibatches(name):
    create = OPTIMIZERS[name]
    model, expected = fit(create(), 3), fit(create(), 1, batch_size=3 * N)
    assert_close(model, expected.get_weights())
    assert [w.updates for w in model.layers.parameters] == [w.updates for w in expected.layers.parameters]
    assert getattr(model.optimizer, "scale", 0) == getattr(expected.optimizer, "scale", 0)
    if isinstance(model.optimizer, WeightAverage):
        assert_close(model.optimizer.averaged(model), expected.optimizer.averaged(expected).get_weights())


def test_every_runtime_adds_gradients(be64):
    first = np.linspace(-1, 1, 2 * CLASSES).reshape(CLASSES, 2)

    def trained(batch_size: int, accumulate: int) -> Any:
        model = Model([Affine(CLASSES, first, activation="softmax", name="out")])
        options: dict[str, Any] = {"batch_size": batch_size, "accumulate": accumulate, "shuffle": False}
        model.fit(X[:30], Y[:30], optimizer=Adam(0.05), epochs=2, progress_bar=False, **options)
        return model

    assert_close(trained(5, 3), trained(15, 1).get_weights())


def test_gradients_of_layers_that_run_one_after_another_are_added(monkeypatch):
    """As those of a custom method of the model are not an expression."""
    model, expected = classifier(), fit(Adam(0.05), 4)
    monkeypatch.setattr(model, "bprop", model.bprop)
    model.fit(rows(), CrossEntropyMulti(), Adam(0.05), 3, accumulate=4)
    assert_close(model, expected.get_weights())


def test_sums_of_16_bit_gradients_have_32_bits():
    """Beside 1, 2^-12 is lost in a sum of float16."""
    gen_backend("cpu", rng_seed=3, batch_size=1, datatype="float16")
    x, t = np.ones((4000, 1)), np.full((4000, 1), -1.0)
    x[1:] = 2.0**-12
    model = Model([Linear(1, np.zeros((1, 1)), name="fc")])
    dataset = ArrayIterator(x, t, make_onehot=False)
    model.fit(dataset, nl.transforms.MeanSquared(), GradientDescentMomentum(1.0, 0), 1, accumulate=4000)
    assert model.layers["fc"].dW.get().item() == pytest.approx(1 + 3999 * 2.0**-12, rel=1e-3)


def test_a_layer_that_is_frozen_between_two_updates_adds_no_gradient():
    class Freezes(Callback):
        def on_minibatch_end(self, epoch, minibatch):
            if minibatch == 0:
                self.model.freeze("hidden", "hidden_bias")
            if minibatch == 1:
                self.model.unfreeze("hidden", "hidden_bias")

    def gradient(accumulate: int, last: int, *callbacks: Any) -> Any:
        dataset, model = rows(), classifier()
        train_until((0, last), model, dataset, GradientDescentMomentum(0.0, 0), *callbacks, accumulate=accumulate)
        return model.layers["hidden"].dW.get()

    parts = [gradient(1, k) for k in (0, 1, 2)]
    np.testing.assert_allclose(gradient(3, 2), sum(parts), 1e-12)
    np.testing.assert_allclose(gradient(3, 2, Freezes()), parts[0] + parts[2], 1e-12)


# --- NaN -------------------------------------------------------------------------------------------------------------


def test_an_update_with_a_gradient_that_overflows_is_skipped_as_a_whole():
    """Its other gradients are not part of the next update."""

    class Overflows(Callback):
        def on_minibatch_begin(self, epoch, minibatch):
            optimizer.scale = np.inf if minibatch == 1 else 1024.0

        def on_minibatch_end(self, epoch, minibatch):
            weights.append(model.get_weights())

    dataset, model = rows(), classifier()
    weights: list[Any] = []
    optimizer = LossScaling(GradientDescentMomentum(0.5, 0), dynamic=False)
    train(model, dataset, optimizer, Overflows(), epochs=1)
    assert same(weights[2], weights[0])
    assert (optimizer.total_skips, optimizer.good_steps) == (1, 2)
    expected = weights[2]
    for start_row, end in ((15, 30), (30, 37)):
        expected = in_numpy(ROWS, 1, 0.5, 0, np.inf, expected, slice(start_row, end))
    assert_close(model, expected)


# --- stop and continue -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["same object", "copy", "file"])
@pytest.mark.parametrize("stop", [(0, 0), (0, 1), (0, 2), (1, 6), (1, 7)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_training_that_stops_between_two_updates_continues_with_the_same_bits(tmp_path, how, stop, dtype):
    dataset, expected = rows(dtype=dtype, shuffle=True), classifier()
    train(expected, dataset, Adam(0.05))
    dataset, model = rows(dtype=dtype, shuffle=True), classifier()
    train_until(stop, model, dataset, Adam(0.05))
    assert model.accumulated_rows == {0: 5, 1: 10, 2: 0, 6: 5, 7: 7}[stop[1]]
    if how == "file":
        model.save_params(tmp_path / "m")
        model = Model(tmp_path / "m")
    model = model.copy() if how == "copy" else model
    train(model, dataset, model.optimizer)
    assert same(model.get_weights(), expected.get_weights())


@pytest.mark.parametrize("name", ["adam", "scaled", "custom"])
def test_a_step_that_fails_leaves_the_gradients_that_wait_unchanged(monkeypatch, name):
    """Whether it adds to them or updates the weights, and at the end of an epoch: each write fails once."""
    expected, optimizer = fit(OPTIMIZERS[name](), 3), OPTIMIZERS[name]()
    dataset, model = rows(), classifier()
    original, counts = TrainingMethods._sum_gradients, [0]

    def fails_before_and_after(self: Any, count: int) -> Any:
        counts[0] += 1
        if counts[0] % 3 == 1:
            raise MemoryError
        result = original(self, count)
        if counts[0] % 3 == 2:
            self.be.assign(*result)
            raise MemoryError
        return result

    monkeypatch.setattr(TrainingMethods, "_sum_gradients", fails_before_and_after)
    while model.epoch_index < 3:
        with contextlib.suppress(MemoryError):
            train(model, dataset, optimizer)
    assert counts[0] == 3 * 3 * (8 + 1)  # attempts, epochs, and minibatches with the end of an epoch
    assert_close(model, expected.get_weights())


def test_another_number_of_minibatches_continues_with_the_gradients_that_wait():
    dataset, model, optimizer = rows(), classifier(), GradientDescentMomentum(0.5, 0)
    train_until((0, 5), model, dataset, optimizer, accumulate=4)
    assert (model.accumulated_rows, optimizer.t) == (2 * N, 1)
    train(model, dataset, optimizer, accumulate=1, epochs=1)
    expected = None
    for part in (slice(0, 20), slice(20, 35), slice(35, 37)):
        expected = in_numpy(ROWS, 1, 0.5, 0, np.inf, expected, part)
    assert_close(model, expected)


def test_other_data_starts_the_epoch_again_without_the_gradients_that_wait():
    options: dict[str, Any] = {"epochs": 1, "batch_size": N, "progress_bar": False, "accumulate": 4}
    gen_backend("cpu", rng_seed=3, datatype="float64")
    model = classifier()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, callbacks=Stop(0, 5), **options)
    other = model.copy()
    assert model.accumulated_rows == 2 * N
    other.accumulated_rows = 0
    for x in (model, other):
        x.fit(X[:30], Y[:30], **options)
    assert_close(model, other.get_weights())


def test_two_models_with_one_optimizer_do_not_mix_their_gradients():
    """They are trained alternately, and stop between two updates."""
    expected, optimizer = fit(GradientDescentMomentum(0.5, 0.9), 3, epochs=1), GradientDescentMomentum(0.5, 0.9)
    sets, models, first = [rows(), rows()], [classifier(), classifier()], first_weights()
    for model, dataset in zip(models, sets, strict=True):
        model.initialize(dataset)
        model.set_weights(first)
    for k in (0, 1, 3, 4, 6):
        for model, dataset in zip(models, sets, strict=True):
            train_until((0, k), model, dataset, optimizer, epochs=1)
    for model, dataset in zip(models, sets, strict=True):
        train(model, dataset, optimizer, epochs=1)
        assert_close(model, expected.get_weights())


# --- files and arguments ---------------------------------------------------------------------------------------------


def waiting_state() -> dict[str, Any]:
    """Return the state of a model whose gradients of two minibatches wait for an update."""
    dataset, model = rows(dtype="float32"), classifier()
    train_until((0, 1), model, dataset, Adam())
    return model.serialize()


MESSAGE = re.escape("model.fit: expected an integer >= 1 for accumulate, got")

DAMAGES: dict[str, Any] = {
    "a sum is missing": lambda state: state["arrays"].pop("gradients/out/0"),
    "another shape": lambda state: state["arrays"].update({"gradients/out/0": np.zeros((2, 2), np.float32)}),
    "an unknown layer": lambda state: state["arrays"].update({"gradients/no/0": np.zeros((2, 2), np.float32)}),
    "no rows": lambda state: state["training"].update(accumulated_rows=0),
    "negative rows": lambda state: state["training"].update(accumulated_rows=-8),
    "another dtype": lambda state: state["arrays"].update({"gradients/out/0": np.zeros((3, 8))}),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_whose_gradients_contradict_its_rows_is_rejected(name):
    state, dataset, model = waiting_state(), rows(dtype="float32"), classifier()
    model.initialize(dataset)
    weights = model.get_weights()
    DAMAGES[name](state)
    with pytest.raises(CheckpointError, match=r"gradients|accumulated_rows"):
        model.load_params(state)
    assert same(model.get_weights(), weights)
    assert not model.accumulated_rows


def test_a_file_of_an_earlier_version_has_no_gradients_that_wait():
    expected = fit(Adam(0.05), 1, epochs=1)
    state = expected.serialize()
    del state["training"]["accumulated_rows"]
    model = Model(state)
    assert (model.accumulated_rows, model.epoch_index) == (0, 1)
    assert same(model.get_weights(), expected.get_weights())


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("4", TypeError), (True, TypeError)]
)
def test_accumulate_is_an_integer_of_at_least_1(value, error):
    with pytest.raises(error, match=MESSAGE):
        fit(Adam(), value)
    with pytest.raises(error, match=MESSAGE):
        classifier().fit(X, Y, progress_bar=False, accumulate=value)


def test_models_with_another_training_step_are_refused():
    class Own(Model):
        def train_step(self, x, t, epoch=0):
            return super().train_step(x, t, epoch)

    dataset = rows()
    with pytest.raises(TypeError, match="expected a model with the train_step of Model, got a Own"):
        Own([Affine(CLASSES, Gaussian())]).fit(dataset, CrossEntropyMulti(), Adam(), 1, accumulate=2)
    gan = GAN(GenerativeAdversarial([Affine(2, Gaussian())], [Affine(1, Gaussian())]), noise_dim=3)
    with pytest.raises(TypeError, match="got a GAN with another one"):
        gan.fit(dataset, GeneralizedGANCost(GANCost()), Adam(), 1, accumulate=2)


def test_a_step_after_fit_updates_the_weights():
    model = fit(Adam(0.05), 4)
    before = model.get_weights()
    x, t = next(iter(rows()))
    model.train_step(x, t)
    assert not same(model.get_weights(), before)
