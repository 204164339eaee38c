"""NaN and infinity in training: warnings, TerminateOnNaN, and checkpoints, which they never replace."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from helpers.small_models import data, network, same, start

from neonlite import gen_backend
from neonlite.callbacks import Callback, Callbacks, SaveBestStateCallback, TerminateOnNaN
from neonlite.data import ArrayIterator
from neonlite.initializers import Constant, Gaussian
from neonlite.layers import Affine, LookupTable
from neonlite.models import GAN, Model
from neonlite.models.zoo import gan
from neonlite.optimizers import (
    Adam,
    CosineSchedule,
    GradientDescentMomentum,
    LossScaling,
    MultiOptimizer,
    PolySchedule,
    RMSProp,
    WarmupSchedule,
)
from neonlite.transforms import Cost, CrossEntropyMulti, GANCost, MeanSquared, Rectlin, SumSquared

RIGHT = [[0.5], [0.25], [0.75], [1.0], [0.5], [0.25], [0.75], [1.0]]


class Spoil(Callback):
    """Write a value into the weights before or after a step."""

    def __init__(self, epoch: int, minibatch: int, value: float = np.nan, layer: int = 0, after: bool = False) -> None:
        super().__init__()
        self.at, self.value, self.layer, self.after = (epoch, minibatch), value, layer, after

    def spoil(self) -> None:
        self.model.layers.layers_to_optimize[self.layer].W[0, 0] = self.value

    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        if (epoch, minibatch) == self.at and not self.after:
            self.spoil()

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if (epoch, minibatch) == self.at and self.after:
            self.spoil()


def callbacks_of(model: Model, *more: Any, **options: Any) -> Callbacks:
    result = Callbacks(model, progress_bar=False, **options)
    for callback in more:
        result.add_callback(callback)
    return result


def train(model: Model, callbacks: Any = None, epochs: int = 3, rate: float = 0.05) -> None:
    model.fit(data(shuffle=True), CrossEntropyMulti(), Adam(learning_rate=rate), epochs, callbacks)


# --- fit warns -------------------------------------------------------------------------------------------------------


def test_a_diverging_training_warns_once_with_epoch_minibatch_and_remedies(be):
    be.bsz = 4
    rows = ArrayIterator([[x] for x in range(8)], RIGHT, make_onehot=False)
    model = Model([Affine(1, Constant(1), name="fc")], name="line")
    with pytest.warns(RuntimeWarning) as result, np.errstate(all="ignore"):
        model.fit(rows, MeanSquared(), GradientDescentMomentum(1e6, 0), 20)
    (warning,) = result
    words = str(warning.message)
    assert words.startswith("line: the cost is ")
    assert "in epoch " in words
    assert ", minibatch " in words
    assert "a lower learning rate, the optimizer's gradient_clip_norm, inputs scaled" in words
    assert "TerminateOnNaN()" in words
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (Spoil(1, 2), "cost is nan in epoch 2, minibatch 3: the previous step left NaN or infinity in hidden.W;"),
        (Spoil(0, 0, layer=-1), "cost is nan in epoch 1, minibatch 1: .* in out.W;"),
        (Spoil(2, 7, after=True), r"hidden.W have NaN or infinity after epoch 3; possible remedies: a lower"),
    ],
)
def test_weights_that_are_not_finite_are_named(spoil, message):
    model = start()
    with pytest.warns(RuntimeWarning, match=message) as result:
        train(model, callbacks_of(model, spoil))
    assert len(result) == 1


@pytest.mark.filterwarnings("ignore:.*are not scaled")
def test_the_first_layer_whose_outputs_are_not_finite_is_named(be):
    be.bsz = 8
    rows = ArrayIterator(np.full((8, 2), 1e30, np.float32), RIGHT, make_onehot=False)
    layers = [Affine(2, Constant(1e5), activation=Rectlin(), name=name) for name in ("near", "far")]
    model = Model([*layers, Affine(1, Constant(1), name="last")])
    message = "far is the first layer with such outputs"
    with pytest.warns(RuntimeWarning, match=message), np.errstate(all="ignore"):
        model.fit(rows, MeanSquared(), GradientDescentMomentum(0.1, 0), 1)


@pytest.mark.parametrize("what", ["inputs", "targets"])
def test_non_finite_data_is_named_as_the_source(what):
    gen_backend("cpu", batch_size=8)
    X, y = np.ones((8, 2), np.float32), np.array(RIGHT)
    (X if what == "inputs" else y)[3, 0] = np.inf
    rows = ArrayIterator(X, y, make_onehot=False, check_finite=False)
    with pytest.warns(RuntimeWarning, match=f"the {what} contain NaN or infinity; an iterator with check_finite=True"):
        Model([Affine(1, Constant(1))]).fit(rows, MeanSquared(), GradientDescentMomentum(0.1, 0), 1)


def test_a_custom_cost_function_is_named_where_everything_else_is_finite():
    class Log(Cost):
        def __call__(self, y, t):
            return self.be.sum(self.be.log(t - t), axis=0)

        def backward(self, y, t):
            return y - t

    gen_backend("cpu", batch_size=8)
    rows = ArrayIterator(np.ones((8, 2)), RIGHT, make_onehot=False)
    with pytest.warns(RuntimeWarning, match="cost is -inf .* all outputs are finite, but Log of them is not"):
        Model([Affine(1, Constant(1))]).fit(rows, Log(), GradientDescentMomentum(0.1, 0), 1)


@pytest.mark.filterwarnings("ignore:.*are not scaled")
def test_loss_scaling_is_suggested_for_float16():
    gen_backend("cpu", batch_size=8, datatype="float16")
    rows = ArrayIterator(np.full((8, 2), 300), RIGHT, make_onehot=False)
    for optimizer, advised in ((Adam(), True), (LossScaling(Adam()), False)):
        with pytest.warns(RuntimeWarning) as result, np.errstate(all="ignore"):
            Model([Affine(1, Constant(300))]).fit(rows, SumSquared(), optimizer, 1)
        texts = [str(x.message) for x in result if x.category is RuntimeWarning]
        assert ("LossScaling(optimizer) or float32" in texts[0]) == advised


def test_each_fit_warns_again():
    model = start()
    for epochs in (1, 2):
        with pytest.warns(RuntimeWarning, match=f"in epoch {epochs}, minibatch 1"):
            train(model, callbacks_of(model, Spoil(epochs - 1, 0)), epochs)


def test_a_gan_warns_of_the_step_with_nan():
    gen_backend("cpu", rng_seed=1, batch_size=4)
    images = ArrayIterator(np.zeros((8, 64), np.float32), lshape=(1, 8, 8))
    model = GAN(gan(), 8)
    model.initialize(images, GANCost())
    model.discriminator.layers_to_optimize[0].W[0, 0] = np.nan
    with pytest.warns(
        RuntimeWarning, match=r"nan in epoch 1, minibatch 1: the previous step left NaN .* in Linear.*\.W;"
    ):
        model.fit(images, GANCost(), RMSProp(), 1)


def test_a_finite_training_does_not_warn_and_reads_no_weights_until_its_end(monkeypatch):
    model, reads = start(), []
    monkeypatch.setattr(Model, "nonfinite_weights", lambda self: reads.append(self.epoch_index) or [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, epochs=3)
    assert reads == [3]


# --- TerminateOnNaN --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_training_ends_at_the_step_whose_cost_is_not_finite(value, tmp_path):
    model, steps = start(), []

    class Steps(Callback):
        def on_minibatch_end(self, epoch, minibatch):
            steps.append((epoch, minibatch))

        def on_interrupt(self):
            steps.append("interrupt")

        def on_train_end(self):
            steps.append("end")

    callbacks = callbacks_of(model, Spoil(1, 2, value), TerminateOnNaN(), Steps())
    with pytest.warns(RuntimeWarning, match="in epoch 2, minibatch 3"), np.errstate(all="ignore"):
        train(model, callbacks)
    assert steps[-3:] == [(1, 2), "interrupt", "end"]
    assert (model.epoch_index, model.minibatch_index) == (1, 3)
    assert callbacks.history.epochs("loss") == [1]


def test_training_ends_at_an_infinite_cost_also_if_everything_else_is_finite():
    gen_backend("cpu", batch_size=4)
    rows = ArrayIterator(np.ones((8, 1)), RIGHT, make_onehot=False)
    model = Model([Affine(1, Constant(1e20))])
    message = "the cost is inf in epoch 1, minibatch 1: all outputs are finite"
    with pytest.warns(RuntimeWarning, match=message), np.errstate(over="ignore"):
        model.fit(rows, SumSquared(), GradientDescentMomentum(1e-30, 0), 2, callbacks_of(model, TerminateOnNaN()))
    assert (model.epoch_index, model.minibatch_index) == (0, 1)
    assert not model.nonfinite_weights()


def test_a_training_that_became_nan_continues_after_finite_weights_are_set():
    model = start()
    model.initialize(data())
    finite, rows, cost, plain = model.get_weights(), data(), CrossEntropyMulti(), GradientDescentMomentum(0.01, 0)
    with pytest.warns(RuntimeWarning):
        model.fit(rows, cost, plain, 2, callbacks_of(model, Spoil(0, 2), TerminateOnNaN()))
    assert not np.isfinite(model.step_cost)
    model.set_weights(finite)
    callbacks = callbacks_of(model, TerminateOnNaN())
    model.fit(rows, cost, plain, 2, callbacks)
    assert model.epoch_index == 2
    costs = callbacks.history["loss"]
    assert np.isnan(costs[0])  # the epoch with the step that was NaN
    assert np.isfinite(costs[1])
    assert np.isfinite(model.step_cost)


def test_a_training_that_became_nan_continues_from_its_last_file(tmp_path):
    model, path = start(), tmp_path / "m"
    callbacks = callbacks_of(model, Spoil(1, 2), TerminateOnNaN(), save_path=path)
    with pytest.warns(RuntimeWarning):
        train(model, callbacks)
    model.load_params(path)
    train(model, callbacks_of(model, TerminateOnNaN()), rate=0.01)
    assert model.epoch_index == 3
    assert np.isfinite(model.total_cost)


class Plain:
    """A data set without get_state and set_state, which records the minibatches that are read."""

    def __init__(self) -> None:
        self.data, self.taken = data(), []
        self.nbatches, self.ndata, self.shape = self.data.nbatches, self.data.ndata, self.data.shape

    def reset(self) -> None:
        self.data.reset()

    def __iter__(self):
        self.data.reset()
        for index, pair in enumerate(self.data):
            self.taken.append(index)
            yield pair


class FinishAt(Callback):
    """Sets ``finished`` at an event."""

    def __init__(self, event: str, at: int) -> None:
        super().__init__()
        self.event, self.at, self.interrupts = event, at, 0

    def on_epoch_begin(self, epoch: int) -> None:
        self.model.finished = self.event == "epoch" and epoch == self.at

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self.model.finished = self.event == "minibatch" and minibatch == self.at

    def on_interrupt(self) -> None:
        self.interrupts += 1


def test_no_minibatch_is_read_after_a_callback_set_finished():
    model, rows = start(), Plain()
    model.fit(rows, CrossEntropyMulti(), Adam(), 2, callbacks_of(model, FinishAt("minibatch", 2)))
    assert rows.taken == [0, 1, 2]
    assert model.minibatch_index == 3
    model, rows = start(), Plain()
    model.fit(rows, CrossEntropyMulti(), Adam(), 2, callbacks_of(model, FinishAt("epoch", 0)))
    assert rows.taken == []


def test_a_training_finished_at_the_last_minibatch_has_completed_the_epoch():
    for make_rows in (Plain, lambda: data(shuffle=True)):
        model, rows = start(), make_rows()
        finish = FinishAt("minibatch", rows.nbatches - 1)
        model.fit(rows, CrossEntropyMulti(), Adam(), 2, callbacks_of(model, finish))
        assert (model.epoch_index, model.minibatch_index, finish.interrupts) == (1, 0, 0)
        model.fit(rows, CrossEntropyMulti(), Adam(), 2)
        assert model.epoch_index == 2


def test_a_training_that_a_callback_ended_within_an_epoch_continues_there():
    whole, parts = start(), start()
    train(whole)

    class Finish(Callback):
        def on_minibatch_end(self, epoch, minibatch):
            self.model.finished = (epoch, minibatch) == (1, 2)

    parts = start()
    train(parts, callbacks_of(parts, Finish()))
    assert (parts.epoch_index, parts.minibatch_index) == (1, 3)
    optimizer, rows = parts.optimizer, data(shuffle=True)
    parts.fit(rows, CrossEntropyMulti(), optimizer, 3)
    assert same(parts.get_weights(), whole.get_weights())


def test_a_finite_training_is_not_ended():
    model = start()
    callbacks = callbacks_of(model, TerminateOnNaN())
    train(model, callbacks)
    assert model.epoch_index == 3
    again = Callbacks.load_callbacks(callbacks.serialize(), model)
    assert any(isinstance(x, TerminateOnNaN) for x in again.callbacks)


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_finite_checkpoint_is_not_replaced_by_weights_that_are_not_finite(be, tmp_path):
    be.bsz = 8
    model, path = Model(network()), tmp_path / "m.neon"
    model.initialize(data())
    model.save_params(path)
    good = path.read_bytes()
    model.layers.layers[0].W[0, 0] = np.inf
    with pytest.warns(
        RuntimeWarning,
        match=r"^model.save_params: hidden.W contain NaN or infinity\. Saved to .*m.neon.nan instead of .*m.neon\.$",
    ):
        assert model.save_params(path) == f"{path}.nan"
    assert path.read_bytes() == good
    assert np.isinf(Model(f"{path}.nan").get_weights()["hidden.W"][0, 0])
    assert model.save_params(path, check_finite=False) == str(path)
    assert path.read_bytes() != good


def test_files_of_earlier_epochs_are_unchanged(tmp_path):
    model, path = start(), tmp_path / "m.neon"
    callbacks = callbacks_of(model, Spoil(3, 2), save_path=path, serialize=1, history=2)
    with pytest.warns(RuntimeWarning) as result:
        train(model, callbacks, 5)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["m.neon", "m.neon.nan", "m_2.neon", "m_3.neon"]
    assert Model(path).epoch_index == 3
    assert Model(f"{path}.nan").epoch_index == 5
    assert len([x for x in result if "the cost is nan" in str(x.message)]) == 1


def test_a_terminated_training_saves_its_weights_to_another_file(tmp_path):
    model, path = start(), tmp_path / "m.neon"
    callbacks = callbacks_of(model, Spoil(1, 2), TerminateOnNaN(), save_path=path)
    with pytest.warns(RuntimeWarning):
        train(model, callbacks)
    assert Model(path).epoch_index == 1
    assert Model(f"{path}.nan").minibatch_index == 3


def test_the_best_file_remains_if_weights_that_the_validation_set_does_not_use_are_not_finite(tmp_path):
    gen_backend("cpu", rng_seed=0, batch_size=4)
    ids, y = np.arange(4).reshape(4, 1) % 2, np.array(RIGHT[:4])
    rows = ArrayIterator(ids, y, make_onehot=False)
    model = Model([LookupTable(3, 2, Gaussian(), name="words"), Affine(1, Gaussian())])
    best = SaveBestStateCallback(tmp_path / "best")
    callbacks = callbacks_of(model, best, eval_set=rows)

    def fit(epochs: int) -> None:
        model.fit(rows, MeanSquared(), GradientDescentMomentum(0.01, 0), epochs, callbacks)

    fit(2)
    file, cost = (tmp_path / "best").read_bytes(), best.best_cost
    model.layers.layers[0].W[2] = np.nan  # no row contains this token
    with pytest.warns(RuntimeWarning, match="words.W (contain|have) NaN"):
        fit(4)
    assert callbacks.history.last("val_loss") < cost
    assert (tmp_path / "best").read_bytes() == file
    assert best.best_cost == cost


# --- likely mistakes -------------------------------------------------------------------------------------------------


def test_a_fit_without_epochs_left_warns_with_the_number_to_pass():
    model = start()
    train(model, epochs=2)
    weights = model.get_weights()
    with pytest.warns(
        UserWarning,
        match=r"num_epochs=2 is the total, and the model has trained 2 epochs. Pass num_epochs=4 to train 2 more",
    ):
        train(model, epochs=2)
    assert same(model.get_weights(), weights)
    with pytest.warns(
        UserWarning,
        match=r"num_epochs=1 is the total, and the model has trained 2 epochs. Pass num_epochs=3 to train 1 more",
    ):
        train(model, epochs=1)
    train(model, epochs=0)
    train(model, epochs=3)
    assert model.epoch_index == 3


@pytest.mark.parametrize("around", [lambda x: x, LossScaling, lambda x: MultiOptimizer({"default": x})])
@pytest.mark.parametrize("schedule", [CosineSchedule(2), WarmupSchedule(1, PolySchedule(2, 1.0))])
def test_a_schedule_that_ends_before_training_warns(around, schedule):
    model = start()
    optimizer = around(Adam(learning_rate=0.05, schedule=schedule))
    model.fit(data(), CrossEntropyMulti(), optimizer, 2)
    with pytest.warns(UserWarning, match=r"learning rate is 0 in epoch 4, .*Schedule.* ends before num_epochs=4"):
        model.fit(data(), CrossEntropyMulti(), optimizer, 4)


def test_a_fit_that_a_callback_had_ended_warns():
    model = start()
    callbacks = callbacks_of(model, eval_set=data())
    callbacks.add_early_stop_callback(lambda state, cost: (None, True))
    train(model, callbacks, 3)
    assert model.epoch_index == 1
    with pytest.warns(UserWarning, match="a callback, such as EarlyStop, ended this training after 1 epoch. Leave"):
        train(model, callbacks, 3)
