"""Callbacks that record costs, metrics, histograms and images."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.small_models import CLASSES, Stop, blobs, data, fit, normalized, same, start

from neonlite import gen_backend
from neonlite.callbacks import (
    BatchNormTuneCallback,
    Callback,
    Callbacks,
    GANCostCallback,
    GANPlotCallback,
    MetricCallback,
    MultiLabelStatsCallback,
)
from neonlite.data import ArrayIterator
from neonlite.initializers import Gaussian
from neonlite.layers import Affine, BranchNode, GeneralizedCost, Linear, Multicost, Tree
from neonlite.models import GAN, Model
from neonlite.models.zoo import gan
from neonlite.optimizers import Adam, GradientDescentMomentum
from neonlite.transforms import (
    Accuracy,
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


# --- serialization and mistakes --------------------------------------------------------------------------------------


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
