"""Callbacks: recording, evaluation, interruption, serialization, and their errors."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.small_models import CLASSES, Stop, blobs, data, fit, normalized, same, start

from neonlite import callbacks as neonlite_callbacks
from neonlite import gen_backend
from neonlite.callbacks import (
    BatchNormTuneCallback,
    Callback,
    Callbacks,
    EarlyStopCallback,
    GANCostCallback,
    GANPlotCallback,
    MetricCallback,
    MultiLabelStatsCallback,
    ProgressBarCallback,
    SaveBestStateCallback,
)
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, BranchNode, GeneralizedCost, Linear, Multicost, Tree
from neonlite.models import Model
from neonlite.models.gan import GAN
from neonlite.models.zoo import gan
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import (
    Accuracy,
    ConfusionMatrix,
    CrossEntropyBinary,
    CrossEntropyMulti,
    GANCost,
    Logistic,
    MeanSquared,
    PrecisionRecall,
    TopKMisclassification,
)


def test_the_history_has_costs_and_metrics_of_each_epoch():
    model = start()
    valid = data()
    callbacks = Callbacks(model, eval_set=valid, metric=TopKMisclassification(2), progress_bar=False)
    fit(model, callbacks)
    notes = callbacks.history.records
    assert list(notes) == ["loss", "val_loss", "LogLoss", "Top1Misclass", "Top2Misclass"]
    assert all([at for at, _ in values] == [1, 2, 3] for values in notes.values())
    assert callbacks.history.last("loss") == model.total_cost
    assert callbacks.history["Top1Misclass"][-1] == pytest.approx(1 - model.eval(valid, Accuracy())[0])
    with pytest.raises(KeyError, match=r"expected a recorded name, got 'accuracy'\. Recorded: loss, val_loss"):
        callbacks.history["accuracy"]


def test_short_names_and_costs_are_metrics():
    model = start()
    callbacks = Callbacks(model, eval_set=data(), metric="accuracy", progress_bar=False)
    callbacks.add_callback(MetricCallback(data(), MeanSquared()))
    fit(model, callbacks, 1)
    assert callbacks.history.last("Accuracy") == model.eval(data(), Accuracy())[0]
    assert callbacks.history.last("MeanSquared") == model.eval(data(), MeanSquared())[0]


def test_the_validation_cost_is_the_mean_over_all_rows():
    model = start()
    valid = data()
    callbacks = Callbacks(model, eval_set=valid, progress_bar=False)
    fit(model, callbacks, 1)
    t = np.eye(CLASSES)[:, blobs()[1]]
    y = model.get_outputs(valid).T
    expected = -np.log(y)[t.astype(bool)].mean()
    assert callbacks.history.last("val_loss") == pytest.approx(expected, rel=1e-5)


def test_eval_freq_sets_how_often_the_validation_set_is_evaluated():
    model = start()
    callbacks = Callbacks(model, eval_set=data(), eval_freq=2, progress_bar=False)
    fit(model, callbacks, 5)
    assert callbacks.history.epochs("val_loss") == [2, 4]


def test_evaluation_does_not_change_training():
    plain, evaluated = start(), None
    fit(plain, None)
    evaluated = start()
    fit(evaluated, Callbacks(evaluated, eval_set=data(), metric=Accuracy(), progress_bar=False))
    assert same(plain.get_weights(), evaluated.get_weights())


class EventRecorder(Callback):
    """Records its events."""

    def __init__(self, **freqs: Any) -> None:
        super().__init__(**freqs)
        self.recorded: list[Any] = []

    def on_train_begin(self, epochs):
        self.recorded.append(("train", epochs))

    def on_epoch_begin(self, epoch):
        self.recorded.append(("epoch", epoch))

    def on_minibatch_end(self, epoch, minibatch):
        if self.should_fire(minibatch, self.minibatch_freq):
            self.recorded.append((epoch, minibatch))

    def on_train_end(self):
        self.recorded.append("end")


@pytest.mark.parametrize(("freq", "expected"), [(3, [2, 5]), ([0, 7], [0, 7]), (0, [])])
def test_a_custom_callback_receives_the_events_of_training(freq, expected):
    model = start()
    callbacks, recorded = Callbacks(model, progress_bar=False), EventRecorder(minibatch_freq=freq)
    callbacks.add_callback(recorded, insert_pos=0)
    fit(model, callbacks, 1)
    assert recorded.recorded == [("train", 1), ("epoch", 0), *((0, k) for k in expected), "end"]
    assert recorded.model is model


def test_the_history_is_written_to_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    model = start()
    fit(model, Callbacks(model, eval_set=data(), output_file=tmp_path / "h.h5", progress_bar=False))
    with h5py.File(tmp_path / "h.h5") as file:
        assert file["cost/train"].shape == (3, 2)
        assert file["cost/validation"][:, 0].tolist() == [1, 2, 3]
    assert [x.name for x in tmp_path.iterdir()] == ["h.h5"]


def test_the_cost_of_minibatches_is_recorded_with_minibatch_freq():
    model = start()
    callbacks, costs = Callbacks(model, progress_bar=False, minibatch_freq=3), []

    class Costs(Callback):
        def on_minibatch_end(self, epoch, minibatch):
            costs.append(float(self.model.cost.cost.item()))

    callbacks.add_callback(Costs())
    fit(model, callbacks, 2)  # 8 minibatches, then 7
    expected = [(k / 8, k) for k in (3, 6)] + [(1 + k / 7, 8 + k) for k in (3, 6)]
    notes = callbacks.history.records["loss_minibatches"]
    assert [at for at, _ in notes] == [at for at, _ in expected]
    assert [x for _, x in notes] == pytest.approx([np.mean(costs[max(0, k - 10) : k]) for _, k in expected])


def tree() -> Model:
    gen_backend("cpu", rng_seed=7, batch_size=8)
    branch = BranchNode("b")
    trunk = [Linear(4, Gaussian(), name="a"), branch, Linear(2, Gaussian(), name="c")]
    return Model(Tree([trunk, [branch, Linear(2, Gaussian(), name="d")]]))


def test_each_of_several_costs_is_recorded():
    X, _ = blobs()
    model = tree()
    callbacks, costs = Callbacks(model, multicost=True, progress_bar=False), []

    class Costs(Callback):
        def on_minibatch_end(self, epoch, minibatch):
            costs.append([float(x.cost.item()) for x in self.model.cost.costs])

    callbacks.add_callback(Costs())
    both = Multicost([GeneralizedCost(MeanSquared()), GeneralizedCost(MeanSquared())], weights=[1, 0.25])
    model.fit(ArrayIterator(X, X, make_onehot=False), both, GradientDescentMomentum(0.01, 0), 2, callbacks)
    for epoch, part in enumerate((costs[:8], costs[8:])):
        first, second = np.mean(part, axis=0)
        assert callbacks.history["loss_0"][epoch] == pytest.approx(first)
        assert callbacks.history["loss_1"][epoch] == pytest.approx(second)
        assert callbacks.history["loss"][epoch] == pytest.approx(first + 0.25 * second)
    with pytest.raises(TypeError, match="TrainMulticostCallback: expected a Multicost for cost, got "):
        fit(model := start(), Callbacks(model, multicost=True, progress_bar=False))


def test_each_of_several_costs_is_recorded_also_when_training_is_resumed(tmp_path):
    results = []
    for stop in (None, Stop(1, 2)):
        X, _ = blobs()
        model, sets = tree(), ArrayIterator(X, X, make_onehot=False)
        callbacks = Callbacks(model, multicost=True, progress_bar=False, save_path=tmp_path / "m")
        both = Multicost([GeneralizedCost(MeanSquared()), GeneralizedCost(MeanSquared())])
        if stop:
            callbacks.add_callback(stop)
            with pytest.raises(KeyboardInterrupt):
                model.fit(sets, both, GradientDescentMomentum(0.01, 0), 2, callbacks)
            model = Model(tmp_path / "m")
            callbacks = Callbacks(model, multicost=True, progress_bar=False)
        model.fit(sets, both, model.optimizer or GradientDescentMomentum(0.01, 0), 2, callbacks)
        results.append(callbacks.get_state())
    assert results[0]["history"] == results[1]["history"]
    assert results[0]["callbacks"][0] == results[1]["callbacks"][0]
    assert len(results[0]["callbacks"][0][1]["recent_costs"]) == 10


def test_precision_and_recall_of_each_label_are_recorded():
    gen_backend("cpu", rng_seed=3, batch_size=8)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4)).astype(np.float32)
    t = (rng.random((30, 3)) < 0.4).astype(np.float32)
    t[:, 2] = 0  # in no target

    class Round(Logistic):
        def __call__(self, x):
            return self.be.greater(x, 0)

    model = Model([Affine(3, Gaussian(), activation=Round())])
    valid = ArrayIterator(X, t, make_onehot=False)
    model.initialize(valid, CrossEntropyBinary())
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_callback(MultiLabelStatsCallback(valid, ["cat", "dog", "cow"], PrecisionRecall(3)))
    callbacks.on_epoch_end(0)
    assert {*callbacks.callbacks[-1].record_names} == {x for x in callbacks.history if x != "loss"}
    y = model.get_outputs(valid)
    for i, label in enumerate(["cat", "dog", "cow"]):
        right = ((y[:, i] == 1) & (t[:, i] == 1)).sum()
        said, true = (y[:, i] == 1).sum(), (t[:, i] == 1).sum()
        assert callbacks.history.last(f"Precision_{label}") == pytest.approx(right / said)
        assert callbacks.history.last(f"Recall_{label}") == pytest.approx(right / true if true else 0)


@pytest.mark.parametrize("per_minibatch", [False, True])
def test_histograms_count_weights_by_magnitude(per_minibatch):
    model = start()
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.add_hist_callback(per_minibatch, ["W"])
    fit(model, callbacks, 2)
    histograms, be = callbacks.history.histograms, model.be
    assert list(histograms) == ["hidden.W", "hidden_bias.W", "out.W"]
    for name, notes in histograms.items():
        assert [at for at, _ in notes] == (
            [*np.arange(1, 9) / 8, *(1 + np.arange(1, 8) / 7)] if per_minibatch else [1, 2]
        )
        w = model.get_weights()[name].ravel()
        bins = np.clip(np.rint(np.log2(np.abs(w))) - be.hist_offset, 0, 63).astype(int)
        assert notes[-1][1] == np.bincount(bins, minlength=64).tolist()
    assert not be.hist_buf


def test_the_statistics_of_batch_norm_are_those_of_all_data_and_training_is_unchanged():
    plain, tuned = normalized(), None
    fit(plain, None)
    tuned, train = normalized(), data(shuffle=True)
    callbacks = Callbacks(tuned, train_set=train, progress_bar=False)
    callbacks.add_callback(BatchNormTuneCallback())
    tuned.fit(train, CrossEntropyMulti(), Adam(learning_rate=0.05), 3, callbacks)
    weights, untuned = tuned.get_weights(), plain.get_weights()
    for name in weights:
        assert np.array_equal(weights[name], untuned[name]) == (name not in ("bn.gmean", "bn.gvar"))
    wide = ArrayIterator(*blobs(), nclass=CLASSES)  # not shuffled: its first 56 rows, and 4 and 4 that wrap around
    tune = BatchNormTuneCallback(wide)
    tune.callbacks = callbacks
    tune.on_epoch_end(0)
    X = np.concatenate([blobs()[0], blobs()[0][:4]]).astype(np.float64) @ weights["a.W"].T.astype(np.float64)
    batches = X.reshape(8, 8, 6)
    results = tuned.get_weights()
    np.testing.assert_allclose(results["bn.gmean"].ravel(), batches.mean(axis=1).mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results["bn.gvar"].ravel(), batches.var(axis=1).mean(axis=0), rtol=1e-4)
    assert tuned.layers.layers[1].rho == 0.9
    without = Callbacks(tuned, progress_bar=False)
    without.add_callback(BatchNormTuneCallback())
    with pytest.raises(ValueError, match=r"Pass tune_set, or use Callbacks\(train_set=...\)"):
        fit(tuned, without)


def adversaries(k: int = 2) -> tuple[GAN, ArrayIterator]:
    gen_backend("cpu", rng_seed=7, batch_size=8)
    X = np.tanh(np.random.default_rng(0).normal(size=(60, 1, 4, 4))).astype(np.float32)
    return GAN(gan((1, 4, 4), hidden=8), noise_dim=3, k=k), ArrayIterator(X.reshape(60, 16), lshape=(1, 4, 4))


def test_both_costs_of_a_gan_are_recorded_also_when_training_is_resumed(tmp_path):
    results = []
    for stops in ([], [Stop(1, 2)]):
        model, train = adversaries()
        callbacks, costs = Callbacks(model, progress_bar=False, save_path=tmp_path / "m"), []

        class Costs(Callback):
            def on_minibatch_end(self, epoch, minibatch, costs=costs):
                costs.append((epoch, self.model.cost_gen, self.model.dis_iterations == 0))

        for extra in (GANCostCallback(), Costs(), *stops):
            callbacks.add_callback(extra)
        args = GANCost(), GradientDescentMomentum(0.05, 0), 2, callbacks
        if stops:
            with pytest.raises(KeyboardInterrupt):
                model.fit(train, *args)
            _, train = adversaries()
            model = GAN(tmp_path / "m", noise_dim=3, k=2)
            callbacks = Callbacks(model, progress_bar=False)
            callbacks.add_callback(GANCostCallback())
            args = *args[:3], callbacks
        model.fit(train, *args)
        results.append(callbacks.history)
        if not stops:
            for epoch, (at, value) in enumerate(callbacks.history.records["loss_generator"]):
                expected = np.mean([cost for e, cost, learned in costs if e == epoch and learned])
                assert (at, value) == (epoch + 1, pytest.approx(expected))
            assert callbacks.history["loss_discriminator"] == callbacks.history["loss"]
    assert results[0].records == results[1].records
    plain = Callbacks(start(), progress_bar=False)
    plain.add_callback(GANCostCallback())
    with pytest.raises(TypeError, match="GANCostCallback: expected a GAN for model, got "):
        fit(plain.model, plain)


def test_images_of_a_generator_are_plotted_and_training_is_unchanged(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    weights = []
    for drawn in (False, True):
        model, train = adversaries()
        callbacks = Callbacks(model, progress_bar=False)
        if drawn:
            callbacks.add_callback(GANPlotCallback(tmp_path / "made.png", num_samples=9, zoom=2, epoch_freq=2))
        model.fit(train, GANCost(), GradientDescentMomentum(0.05, 0), 4, callbacks)
        weights.append(list(model.get_weights().values()))
    assert all(map(np.array_equal, *weights))
    assert sorted(x.name for x in tmp_path.iterdir()) == ["made_2.png", "made_4.png"]
    seen, created = image.imread(tmp_path / "made_4.png")[:, :, 0], model.generate(9)
    assert seen.shape == (3 * 4 * 2, 3 * 4 * 2)
    for i in range(9):
        expected = (created[i, 0] - created.min()) / (created.max() - created.min())
        part = seen[i // 3 * 8 :, i % 3 * 8 :][:8, :8]
        np.testing.assert_allclose(part, np.kron(expected, np.ones((2, 2))), atol=0.01)
    colors = GANPlotCallback(tmp_path / "made.png", zoom=1).make_grid(np.arange(4 * 3 * 2 * 5).reshape(4, 3, 2, 5))
    assert colors.shape == (4, 10, 3)
    assert colors[2, 5, 1] == pytest.approx((3 * 30 + 10) / 119)
    with pytest.raises(ValueError, match=r"expected images of 1 or 3 channels, got outputs of shape \(5,\)"):
        GANPlotCallback(tmp_path / "made.png").make_grid(np.zeros((4, 5)))


def test_images_are_plotted_in_the_given_sizes_and_range(tmp_path):
    pytest.importorskip("matplotlib.image")
    rows = np.linspace(-1, 1, 3 * 3 * 2 * 4).reshape(3, 24)
    drawn = GANPlotCallback(tmp_path / "a.png", (2, 4), 3, 3, 1, zoom=1).make_grid(rows)
    assert drawn.shape == (4, 8, 3)
    np.testing.assert_allclose(drawn[:2, 4:], (rows[1].reshape(3, 2, 4).transpose(1, 2, 0) + 1) / 2)
    assert not drawn[2:, 4:].any()  # three images leave the fourth cell black
    half = GANPlotCallback(tmp_path / "a.png", 5, sym_range=True, zoom=1).make_grid(np.zeros((1, 25)))
    assert half.shape == (5, 5)
    assert (half == 0.5).all()
    with pytest.raises(
        ValueError, match=r"images of shape \(1, 27, 27\) with 1 or 3 channels, got outputs of shape \(25,\)"
    ):
        GANPlotCallback(tmp_path / "a.png", 27).make_grid(np.zeros((1, 25)))


def test_each_epoch_is_a_line_of_the_log(caplog):
    model = start()
    callbacks = Callbacks(model, eval_set=data(), metric=Accuracy(), progress_bar=False, log_token="run 7")
    with caplog.at_level(logging.INFO, logger="neonlite"):
        fit(model, callbacks, 2)
    names = ("loss", "val_loss", "Accuracy")
    values = [[callbacks.history[name][epoch] for name in names] for epoch in (0, 1)]
    assert [(x.name, x.getMessage()) for x in caplog.records] == [
        ("neonlite", f"run 7 epoch {e}: loss {a:.6g}; val_loss {b:.6g}; Accuracy {c:.6g}")
        for e, (a, b, c) in enumerate(values, 1)
    ]


class Last(Callback):
    """Records on_interrupt, and may raise an error in it."""

    def __init__(self, recorded: list[str], word: str, priority: int, fails: bool = False) -> None:
        super().__init__()
        self.recorded, self.word, self.priority, self.fails = recorded, word, priority, fails

    def on_interrupt(self):
        self.recorded.append(self.word)
        if self.fails:
            raise OSError(f"{self.word}: nobody reads on")


def test_on_interrupt_runs_for_all_callbacks_in_order_also_when_some_fail(tmp_path):
    model, recorded = start(), []
    callbacks = Callbacks(model, progress_bar=False, save_path=tmp_path / "m")
    for word, priority, fails in (("d", 3, True), ("a", 1, True), ("b", 1, False), ("c", 2, False), ("z", 9, True)):
        callbacks.add_callback(Last(recorded, word, priority, fails))
    callbacks.add_callback(Stop(1, 2))
    with pytest.raises(OSError, match="a: nobody reads on") as error:
        fit(model, callbacks)
    assert recorded == ["a", "b", "c", "d", "z"]
    assert isinstance(error.value.__context__, KeyboardInterrupt)  # the cause is not lost
    assert Model(tmp_path / "m").minibatch_index == 3


def test_two_ctrl_c_abort_a_validation_but_no_training_step(tmp_path):
    def press(y, t, calcrange):
        if model.epoch_index == 2 and not pressed:
            pressed.append(True)
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        return 1.0

    press.metric_names = ["ones"]
    pressed: list[bool] = []
    fit(straight := start(), None)
    model = start()
    callbacks = Callbacks(model, eval_set=data(), metric=press, progress_bar=False, save_path=tmp_path / "m")
    train, optimizer = data(shuffle=True), Adam(learning_rate=0.05)
    with pytest.raises(KeyboardInterrupt):
        model.fit(train, CrossEntropyMulti(), optimizer, 3, callbacks)
    assert Model(tmp_path / "m").epoch_index == model.epoch_index == 2
    model.fit(train, CrossEntropyMulti(), optimizer, 3, callbacks)
    assert same(model.get_weights(), straight.get_weights())
    assert callbacks.history.epochs("loss") == [1, 2, 3]
    assert callbacks.history.epochs("ones") == [1, 3]  # it is not repeated


# --- serialization and mistakes --------------------------------------------------------------------------------------


def test_callbacks_are_serialized_and_created_from_the_description(tmp_path):
    pytest.importorskip("h5py")
    model = start()
    callbacks = Callbacks(
        model, eval_set=data(), eval_freq=2, metric=TopKMisclassification(2), save_path=tmp_path / "m", history=3,
        output_file=tmp_path / "h.h5", minibatch_freq=4,
    )  # fmt: skip
    callbacks.add_hist_callback(filter_key=["W", "dW"])
    callbacks.add_save_best_state_callback(tmp_path / "best")
    description = json.loads(json.dumps(callbacks.serialize()))
    created = Callbacks.load_callbacks(description, model, eval_set=data())
    assert created.serialize() == callbacks.serialize()
    assert [type(x) for x in created.callbacks] == [type(x) for x in callbacks.callbacks]
    created.callbacks = [x for x in created.callbacks if not isinstance(x, ProgressBarCallback)]
    fit(model, created, 2)
    assert created.history.epochs("Top2Misclass") == [2]
    with pytest.raises(ValueError, match="expected the dict that serialize"):
        Callbacks.load_callbacks([], model)


VALID = "a validation set"
MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "eval_freq alone": ({"eval_freq": 2}, ValueError, "expected eval_set together with eval_freq=2, got None"),
    "metric alone": ({"metric": Accuracy()}, ValueError, "expected eval_set together with metric=.*, got None"),
    "a class": (
        {"eval_set": VALID, "metric": Accuracy},
        TypeError,
        r"expected a metric, such as Accuracy\(\), for metric, got <class",
    ),
    "no metric": (
        {"eval_set": VALID, "metric": 5},
        TypeError,
        r"expected a metric, such as Accuracy\(\), for metric, got 5",
    ),
    "no names": (
        {"eval_set": VALID, "metric": ConfusionMatrix()},
        TypeError,
        "expected a metric of named values, .* got ConfusionMatrix",
    ),
    "an unknown name": (
        {"eval_set": VALID, "metric": "accurate"},
        ValueError,
        "get_metric: expected one of 'accuracy', .* got 'accurate'",
    ),
    "never": ({"eval_set": VALID, "eval_freq": 0}, ValueError, "expected an integer >= 1 for eval_freq, got 0"),
    "before": ({"eval_set": VALID, "eval_freq": -1}, ValueError, "expected an integer >= 1 for eval_freq, got -1"),
    "half": ({"eval_set": VALID, "eval_freq": 0.5}, TypeError, "expected an integer >= 1 for eval_freq, got 0.5"),
    "in a list": (
        {"eval_set": VALID, "eval_freq": [1, 2.5]},
        TypeError,
        "expected an integer >= 0 for eval_freq, in a list, got 2.5",
    ),
    "no data": (
        {"eval_set": np.zeros(3)},
        TypeError,
        "LossCallback: expected a data set, such as .* for eval_set, got",
    ),
    "no train data": ({"train_set": [1]}, TypeError, r"Callbacks: expected a data set.* for train_set, got \[1\]"),
    "serialize": ({"serialize": -1, "save_path": "m"}, ValueError, "expected an integer >= 0 for serialize, got -1"),
    "nowhere": ({"serialize": 1}, ValueError, "expected save_path together with serialize=1, got None"),
    "no files": (
        {"save_path": "m", "history": 0},
        ValueError,
        "Callbacks: expected an integer >= 1 for history.* got 0",
    ),
    "no folder": (
        {"save_path": "no/m"},
        FileNotFoundError,
        "save_path: no/m can not be written: there is no folder no",
    ),
    "a folder": ({"save_path": "."}, IsADirectoryError, "save_path: expected the path of a file, got the folder \\."),
    "no folder for the history": ({"output_file": "no/h"}, FileNotFoundError, "output_file: no/h can not be written"),
    "no model file": ({"model_file": "no"}, FileNotFoundError, "no: there is no such file"),
    "a misspelled word": ({"eval_frq": 1}, TypeError, "got eval_frq. Did you mean 'eval_freq'"),
    "minibatches": ({"minibatch_freq": -3}, ValueError, "expected an integer >= 0 for minibatch_freq, got -3"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_reported_before_training(what):
    arguments, error, message = MISTAKES[what]
    model = start()
    if arguments.get("eval_set") is VALID:
        arguments = {**arguments, "eval_set": data()}
    with pytest.raises(error, match=message):
        Callbacks(model, **arguments)


def test_a_read_only_folder_is_reported_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (Path(path) == tmp_path and mode == os.W_OK))
    with pytest.raises(PermissionError, match=f"save_path: {tmp_path}/m can not be written: .* is read-only for you"):
        Callbacks(start(), save_path=tmp_path / "m")


@pytest.mark.parametrize("kind", [np.int64, np.uint8, int])
def test_integers_may_be_those_of_numpy(kind):
    model = start()
    callbacks = Callbacks(model, eval_set=data(), eval_freq=kind(2), progress_bar=False)
    callbacks.add_callback(recorded := EventRecorder(epoch_freq=[kind(1)], minibatch_freq=kind(0)))
    fit(model, callbacks, kind(2))
    assert recorded.recorded == [("train", 2), ("epoch", 0), ("epoch", 1), "end"]
    assert type(recorded.recorded[0][1]) is int
    assert callbacks.history.epochs("val_loss") == [2]


def test_a_gan_cannot_be_evaluated_on_a_validation_set():
    model, train = adversaries()
    with pytest.raises(
        TypeError, match=r"expected a model with targets, got a GAN\. Use generate\(n\) or GANCostCallback\(\)"
    ):
        Callbacks(model, eval_set=train, eval_freq=1, progress_bar=False)
    with pytest.raises(TypeError, match="expected a model with targets, got a GAN"):
        Callbacks(model, eval_set=train, metric=Accuracy(), progress_bar=False)
    callbacks = Callbacks(model, eval_set=train, progress_bar=False)
    model.fit(train, GANCost(), GradientDescentMomentum(0.05, 0), 1, callbacks)
    assert [*callbacks.history.records] == ["loss"]


def test_callbacks_have_neons_class_names():
    neons = "Metric BatchNormTune EarlyStop Hist Loss GANPlot GANCost RunTimer TrainLogger ProgressBar SaveBestState"
    for name in neons.split():
        assert getattr(neonlite_callbacks, f"{name}Callback").__name__ == f"{name}Callback"


def test_more_mistakes_are_reported_before_training(tmp_path, monkeypatch):
    model = start()
    with pytest.raises(TypeError, match=r"Callbacks: expected a Model for model, got 5"):
        Callbacks(5)
    callbacks = Callbacks(model, progress_bar=False)
    with pytest.raises(
        TypeError,
        match=r"add_callback: expected a Callback, .* got .*: add_callback\(SaveBestStateCallback\(...\)\)",
    ):
        callbacks.add_callback(SaveBestStateCallback)
    with pytest.raises(TypeError, match=r"EarlyStopCallback: expected a function .* for stop_func, got 3"):
        callbacks.add_early_stop_callback(3)
    with pytest.raises(TypeError, match=r"expected filter_key as a list .*, got 'W'"):
        callbacks.add_hist_callback(filter_key="W")
    with pytest.raises(ValueError, match="MultiLabelStatsCallback: expected 3 labels, got "):
        MultiLabelStatsCallback(data(), ["a"], PrecisionRecall(3))
    with pytest.raises(TypeError, match=r"MultiLabelStatsCallback: expected PrecisionRecall\(1\) for metric, got "):
        MultiLabelStatsCallback(data(), ["a"], Accuracy())
    for callback in (SaveBestStateCallback(tmp_path / "x"), EarlyStopCallback(max)):
        callbacks = Callbacks(model, progress_bar=False)
        callbacks.add_callback(callback)
        with pytest.raises(ValueError, match=f"{callback.classnm}: expected a validation set, got none"):
            fit(model, callbacks, 1)
    assert model.epoch_index == 0
    with pytest.raises(RuntimeError, match=r"model\.eval_cost: expected a cost, got none"):
        start().eval_cost(data())
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r'pip install "neonlite\[hdf5\]"'):
        Callbacks(model, output_file=tmp_path / "h.h5")
