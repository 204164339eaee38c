"""``WeightAverage``: averages of weights that belong to the training of a model."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.optimizer_equations import EQUATIONS, GDM, MAKERS, Layer, N, gradients, network, textbook, train, weights
from helpers.runtimes import lacks

import neonlite as nl
from neonlite.callbacks import Callback
from neonlite.layers import Affine
from neonlite.optimizers import LAMB, Adam, LossScaling, MultiOptimizer, Optimizer, WeightAverage

DECAY = 0.8
DATA = np.random.default_rng(0)
X, Y = DATA.normal(size=(40, 3)), DATA.integers(0, 2, 40)


def new_model():
    nl.gen_backend("cpu", rng_seed=0)
    return nl.Model([Affine(4, activation="tanh"), Affine(2, activation="softmax")])


def average_of(values):
    """Return the weighted mean of values, of which the last has the weight 1, the one before it DECAY, and so on."""
    return np.average(values, axis=0, weights=[DECAY**k for k in reversed(range(len(values)))])


class Record(Callback):
    def __init__(self):
        super().__init__()
        self.weights = []

    def on_minibatch_end(self, epoch, minibatch):
        self.weights.append(self.model.get_weights())


@pytest.mark.parametrize("name", ["adam, clipped", "decay and nesterov", "lamb", "no momentum"])
def test_the_weights_are_those_of_the_optimizer_and_the_averages_those_of_the_weights(be64, name):
    make, rule, options = EQUATIONS[name]
    layers, optimizer = network(be64), WeightAverage(make(), DECAY)
    be64.bsz = N
    start, gs, seen = weights(layers), [], []
    for step in range(5):
        gs.append(gradients(layers, step))
        optimizer.optimize(layers, 0)
        seen.append(weights(layers))
    for k, (layer, x) in enumerate(zip(layers, textbook(rule, start, gs, [0] * 5, **options), strict=True)):
        np.testing.assert_allclose(layer.W.get(), x, rtol=1e-10, atol=1e-10)
        average = layer.states[-1].get() / (1 - DECAY**5)
        np.testing.assert_allclose(average, average_of([w[k] for w in seen]), rtol=1e-10)


@pytest.mark.parametrize(
    "wrap",
    [lambda o: o, lambda o: LossScaling(o, 4.0), lambda o: MultiOptimizer({"default": o})],
    ids=["alone", "scaled", "chosen"],
)
def test_a_copy_of_a_trained_model_has_the_averages_and_the_model_keeps_its_weights(wrap):
    model, optimizer, record = new_model(), WeightAverage("adam", DECAY), Record()
    model.fit(X, Y, epochs=2, optimizer=wrap(optimizer), callbacks=record, progress_bar=False)
    averaged = optimizer.averaged(model)
    for name, w in averaged.get_weights().items():
        np.testing.assert_allclose(w, average_of([x[name] for x in record.weights]), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(model.get_weights()[name], record.weights[-1][name])
    assert averaged.evaluate(X, Y, "accuracy")["accuracy"] >= 0


def test_averages_are_resumed_from_a_checkpoint_to_the_same_bits(tmp_path):
    whole = new_model()
    whole.fit(X, Y, epochs=4, optimizer=WeightAverage(Adam(0.01), DECAY), progress_bar=False)
    half = new_model()
    half.fit(X, Y, epochs=2, optimizer=WeightAverage(Adam(0.01), DECAY), progress_bar=False)
    resumed = nl.Model(half.save_params(tmp_path / "model.neon"))
    resumed.fit(X, Y, epochs=2, progress_bar=False)
    assert (resumed.optimizer.decay, resumed.optimizer.wrapped.learning_rate) == (DECAY, 0.01)
    results = [model.optimizer.averaged(model).get_weights().values() for model in (whole, resumed)]
    for w, x in zip(*results, strict=True):
        np.testing.assert_array_equal(w, x)


def test_a_step_that_fails_leaves_weights_and_averages(cpu, monkeypatch):
    model, optimizer = new_model(), WeightAverage(Adam(0.01), DECAY)
    model.fit(X, Y, epochs=1, optimizer=optimizer, progress_bar=False)
    before = optimizer.averaged(model).get_weights() | {"t": model.layers.parameters[0].updates}

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(type(model.be), "replay", fail)
        with pytest.raises(MemoryError):
            model.fit(X, Y, epochs=1, progress_bar=False)
    after = optimizer.averaged(model).get_weights() | {"t": model.layers.parameters[0].updates}
    for name, w in before.items():
        np.testing.assert_array_equal(w, after[name])


def test_gradients_are_clipped_by_the_limit_of_the_optimizer(cpu):
    make = MAKERS["adam, clipped"]
    results = [train(optimizer, network(cpu), 3) for optimizer in (make(), WeightAverage(make()))]
    for x, y in zip(*results, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_rate_that_changes_is_used_in_the_next_step(cpu):
    layers, optimizer = network(cpu), WeightAverage(GDM(1.0, 0.0))
    before = weights(layers)
    optimizer.wrapped.learning_rate = 0.0
    for w, x in zip(train(optimizer, layers, 1), before, strict=True):
        np.testing.assert_array_equal(w, x)
    optimizer.wrapped.learning_rate = 0.5
    for w, x, layer in zip(train(optimizer, layers, 1), before, layers, strict=True):
        np.testing.assert_allclose(w, x - 0.5 * layer.dW.get() / N, rtol=1e-5, atol=1e-6)


def test_a_rule_of_the_user_reads_its_count_and_is_not_compiled(cpu):
    class Slower(Optimizer):
        learning_rate = 1.0

        def update_rule(self, be, w, g, states, rate):
            return [w - g * (rate / (1 + self.t))]

    layer, optimizer = Layer("layer", cpu.zeros((1, 1)), cpu.ones((1, 1))), WeightAverage(Slower(), 0.5)
    w, cpu.bsz = layer.W, 1
    for _ in range(3):
        optimizer.optimize([layer])
    assert w.get() == pytest.approx(-1 - 1 / 2 - 1 / 3)
    seen = [-1, -1.5, -1.5 - 1 / 3]
    assert w.states[-1].get() / (1 - 0.5**3) == pytest.approx(np.average(seen, weights=[1, 2, 4]))


def test_averages_of_16_bit_weights_are_of_32_bits(be):
    if lacks(be, "float16"):
        return
    w, optimizer = be.ones((1, 1), dtype="float16"), WeightAverage(GDM(2.0**-13, 0.0), 0.0)
    optimizer.step([w], [be.ones((1, 1))])
    assert (w.get(), w.states[-1].info.dtype) == (1, "float32")  # the update is lost in the weight
    assert w.states[-1].get() == 1 - 2.0**-13


def test_what_has_no_averages_is_an_error():
    with pytest.raises(TypeError, match="WeightAverage: expected an optimizer with an update_rule, got MultiOptimizer"):
        WeightAverage(MultiOptimizer({"default": Adam()}))
    with pytest.raises(ValueError, match="expected a finite number >= 0 and < 1 for decay, got 1"):
        WeightAverage(Adam(), 1)
    model, other = new_model(), WeightAverage(LAMB())
    model.fit(X, Y, epochs=1, optimizer=WeightAverage(Adam()), progress_bar=False)
    with pytest.raises(ValueError, match=r"averaged: expected a model that was trained by WeightAverage_\d+, got"):
        other.averaged(model)
