"""Any number of samples in calls of models and layers; models of the layers of another model."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from neonlite import gen_backend
from neonlite.layers import Affine, Linear, Sequential
from neonlite.models import Model
from neonlite.optimizers import Adam, GradientDescentMomentum
from tests.helpers.saved_networks import NETWORKS, create, flat, inputs

X = np.random.default_rng(0).normal(3, 5, size=(64, 4))
Y = np.arange(64) % 2


def trained(**options: Any) -> Any:
    gen_backend("cpu", rng_seed=1).bsz = 0
    model = Model([Affine(6, activation="relu", name="hidden"), Affine(2, activation="softmax", name="out")])
    model.fit(X, Y, epochs=1, progress_bar=False, **options)
    return model


@pytest.mark.parametrize("bsz", [0, 5])
@pytest.mark.parametrize("n", [1, 7, 64, 100])
def test_a_model_and_its_layers_take_any_number_of_rows_after_fit(n, bsz):
    model = trained()
    be, weights = model.be, model.get_weights()
    be.bsz = bsz
    x = np.random.default_rng(1).normal(size=(4, n)).astype("f")
    hidden = weights["hidden.W"] @ x
    relu = np.maximum(0, hidden + weights["hidden_bias.W"])
    z = np.exp(weights["out.W"] @ relu + weights["out_bias.W"])
    want = z / z.sum(axis=0)
    calls = (
        model(be.array(x)),
        model.fprop(be.array(x), inference=True),
        model.fprop(be.array(x)),
        model.layers(be.array(x)),
    )
    for y in calls:
        np.testing.assert_allclose(y.get(), want, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model["hidden"](be.array(x)).get(), hidden, rtol=1e-4, atol=1e-5)
    assert be.bsz == bsz


@pytest.mark.parametrize("name", NETWORKS)
def test_each_sample_gets_the_same_outputs_in_a_minibatch_of_another_size(name):
    shape = NETWORKS[name][1]
    model, rng = create(name), np.random.default_rng(3)
    x = inputs(model.be, shape, rng, 5)

    def first(tensors: Any, n: int) -> list[Any]:
        arrays = [t.get() for t in flat(tensors)]
        return [a.reshape(len(a), -1, 5)[:, :, :n].reshape(len(a), -1) for a in arrays]

    parts = [model.be.array(a) for a in first(x, 2)]
    want = first(model(x), 2)
    got = [t.get() for t in flat(model(parts if isinstance(x, list) else parts[0]))]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert model.be.bsz == 3


@pytest.mark.parametrize("bsz", [0, 3, 4])
@pytest.mark.parametrize("name", ["Conv", "MergeMultistream", "Tree", "LookupTable", "GRU", "attention", "Seq2Seq"])
def test_fprop_and_bprop_in_training_mode_take_the_batch_size_of_the_inputs(name, bsz):
    results = []
    for same in (True, False):
        model = create(name)
        for layer in model.layers.leaves():
            layer.set_state({})
        model.be.bsz = 6 if same else bsz
        y = model.fprop(inputs(model.be, NETWORKS[name][1], np.random.default_rng(3), 6))
        errors = [model.be.ones(t.shape) for t in flat(y)]
        model.bprop(errors if isinstance(y, list) else errors[0])
        results.append([t.get() for t in [*flat(y), *model.layers.gradients]])
        assert model.be.bsz == (6 if same else bsz)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_call_between_fprop_and_bprop_does_not_change_the_gradients():
    gradients = []
    for between in (False, True):
        model = trained()
        x, error = model.be.array(X.T), model.be.ones((2, 64))
        model.fprop(x)
        if between:
            model(x[:, :3])
            model["out"](model.be.ones((6, 9)))
        model.bprop(error)
        gradients.append([g.get() for g in model.layers.gradients])
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_array_equal(a, b)


def test_training_continues_to_the_same_bits_after_passes_of_other_sizes():
    weights = []
    for other in (False, True):
        model = trained()
        if other:
            model.bprop(model.be.ones(model.fprop(model.be.array(X.T[:, :5])).shape))
            model["hidden"](model.be.array(X.T[:, :9]))
        model.fit(X, Y, epochs=1, progress_bar=False)
        weights.append(model.get_weights())
    for name, w in weights[0].items():
        np.testing.assert_array_equal(w, weights[1][name])


def test_inputs_without_columns_and_of_other_kinds_are_errors():
    model = trained()
    with pytest.raises(ValueError, match="expected inputs with one column or more"):
        model(model.be.zeros((4, 0)))
    with pytest.raises(TypeError, match="expected inputs as a tensor"):
        model.fprop(X.T)
    with pytest.raises(ValueError, match=r"expected inputs of shape \(4, 64\)"):
        model.fprop(model.be.array(X.T[:3]))
    with pytest.raises(ValueError, match=r"hidden: expected a batch size, got none"):
        model["hidden"].fprop(model.be.array(X.T))


# --- models of the layers of another model ---


def test_the_first_layers_of_a_model_preprocess_as_it_does_without_a_warning():
    model = trained()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = Model(model[:3]).predict(X)
    weights = model.get_weights()
    rows = (X - X.mean(axis=0)) / X.std(axis=0)
    want = np.maximum(0, rows @ weights["hidden.W"].T + weights["hidden_bias.W"].T)
    np.testing.assert_allclose(outputs, want, rtol=1e-3, atol=1e-4)


def test_the_last_layers_of_a_model_read_the_outputs_of_the_others():
    model = trained()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        last = Model(model[3:])
        np.testing.assert_allclose(last.predict(Model(model[:3]).predict(X)), model.predict(X), rtol=1e-4, atol=1e-5)
    assert last.input_encoder is None


@pytest.mark.parametrize("optimizer", [Adam(0.01), GradientDescentMomentum(0.1, 0.9), GradientDescentMomentum(0.1)])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_new_head_is_trained_on_the_layers_of_another_model_by_any_optimizer(optimizer, frozen):
    model = trained(optimizer=Adam(0.01))
    new = Model([*model[:3], Affine(3, activation="softmax", name="head")])
    if frozen:
        new.freeze("hidden")
    before = model.get_weights()
    history = new.fit(X, np.arange(64) % 3, epochs=3, progress_bar=False, optimizer=optimizer)
    assert np.isfinite(new.total_cost)
    assert len(history.history["cost"] if hasattr(history, "history") else history) > 0
    after = model.get_weights()
    assert (after["hidden.W"] == before["hidden.W"]).all() == frozen  # the layers are shared
    assert (after["out.W"] == before["out.W"]).all()
    assert new.predict_classes(X[:5]).shape == (5,)


def test_two_models_with_common_layers_can_be_trained_in_turn():
    results = []
    for shared in (False, True):
        model = trained(optimizer=GradientDescentMomentum(0.1))
        if shared:
            other = Model([*model[:3], Linear(9, name="head")])
            with model.be.batch_size(5):
                other.initialize(4)
            other.fprop(model.be.array(X.T))
        model.fit(X, Y, epochs=1, progress_bar=False, shuffle=False)
        results.append(model.get_weights())
    for name, w in results[0].items():
        np.testing.assert_array_equal(w, results[1][name])


def test_a_container_of_configured_layers_is_configured():
    model = trained()
    assert Model(Sequential(model[:2])).layers.out_shape == 6
