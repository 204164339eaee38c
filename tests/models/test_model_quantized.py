"""Model.quantize: int8 weights, their sums of products, accuracy, files and errors (neonlite/models/model.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neonlite as nl
from neonlite.layers import (
    LSTM,
    Activation,
    Affine,
    Conv,
    Convolution_bias,
    Linear,
    MergeSum,
    Pooling,
    QuantizedConvolution,
    QuantizedLinear,
    RecurrentLast,
    SkipNode,
)
from neonlite.models import Model, zoo

Array = np.ndarray[Any, Any]


def model_of(layers: Any, shape: Any, seed: int = 0) -> Model:
    """Return a model with random weights."""
    nl.gen_backend("cpu", batch_size=8, rng_seed=seed)
    model = Model(layers)
    model.initialize(shape)
    return model


def rows(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(x: Array, step: Array | float) -> Array:
    """Return multiples of a step, rounded to the nearest int8."""
    return np.clip(np.rint(x.astype(np.float64) / step), -128, 127).astype(np.int64)


# --- values ---


def test_a_linear_layer_adds_products_of_integers():
    model = model_of([Affine(5, bias=True, activation="relu", name="a")], 12)
    W, b, x = model.layers["a"].W.get(), rows(5, 1), rows(20, 12)
    model.layers["a_bias"].W[:] = b
    fast = model.quantize(x)
    scale, steps = np.abs(x).max() / 127, np.abs(W).max(axis=1, keepdims=True) / 127
    sums = integers(W, steps) @ integers(x.T, scale)
    np.testing.assert_allclose(fast.predict(x), np.maximum(sums * steps * scale + b, 0).T, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(fast.layers["a"].W.get(), integers(W, steps))
    assert [type(layer) for layer in fast.layers] == [QuantizedLinear]


@pytest.mark.parametrize(("C", "stride", "padding"), [(1, 1, 0), (3, 1, 1), (4, 2, 1)])
def test_a_convolution_adds_products_of_integers(C, stride, padding):
    layers = [Conv((3, 3, 6), strides=stride, padding=padding, batch_norm=True, activation="relu", name="c")]
    model = model_of(layers, (C, 7, 7))
    norm, x = model.layers["c_bnorm"], rows(5, C, 7, 7)
    norm.gmean[:], norm.gvar[:] = rows(6, 1), rows(6, 1, seed=2) ** 2 + 0.5
    norm.gamma[:], norm.beta[:] = rows(6, 1, seed=3), rows(6, 1, seed=4)
    W = model.layers["c"].W.get().reshape(C, 3, 3, 6)
    steps, scale = np.abs(W).max(axis=(0, 1, 2)) / 127, np.abs(x).max() / 127
    images = np.pad(integers(x, scale), ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
    sums = np.einsum("ncpqrs,crsk->nkpq", windows, integers(W, steps))
    mean, var, gamma, beta = (t.get().ravel()[:, None, None] for t in (norm.gmean, norm.gvar, norm.gamma, norm.beta))
    z = (sums * (steps * scale)[:, None, None] - mean) / np.sqrt(var + norm.eps) * gamma + beta
    fast = model.quantize(x)
    np.testing.assert_allclose(fast.predict(x), np.maximum(z, 0).reshape(5, -1), rtol=1e-4, atol=1e-4)
    assert [type(layer) for layer in fast.layers] == [QuantizedConvolution]


def test_a_larger_input_than_those_of_the_rows_is_clipped():
    model = model_of([Linear(1, [[1.0, 1.0]])], 2)
    fast = model.quantize([[1.0, -0.5]])
    np.testing.assert_allclose(fast.predict([[50.0, 0.0], [-50.0, 0.0]]).ravel(), [1, -128 / 127], rtol=1e-6)


def test_rounding_errors_are_at_most_half_a_step_of_each_factor():
    model = model_of([Linear(30)], 200)
    W, x = model.layers[0].W.get().astype(np.float64), rows(64, 200).astype(np.float64)
    error = model.quantize(x).predict(x) - x @ W.T
    step_x, steps = np.abs(x).max() / 127, np.abs(W).max(axis=1) / 127
    # |w x - w' x'| <= |w| step_x / 2 + |x'| step_w / 2, with |x'| <= |x| + step_x / 2
    bound = np.abs(W).sum(axis=1) * step_x / 2 + (np.abs(x) + step_x / 2).sum(axis=1)[:, None] * steps / 2
    assert (np.abs(error) <= bound).all()
    assert np.abs(error).max() < bound.max() / 4  # errors have both signs


def test_zero_weights_and_zero_inputs_give_the_bias():
    model = model_of([Affine(2, init="zeros", bias=[[3.0], [4.0]])], 3)
    np.testing.assert_array_equal(model.quantize(np.zeros((2, 3))).predict(np.zeros((1, 3))), [[3, 4]])


@pytest.mark.parametrize("network", [zoo.mlp, zoo.lenet])
def test_the_primitives_return_what_the_formulas_do(network, monkeypatch):
    def predict() -> Array:
        x = rows(9, 1, 12, 12)
        return model_of(network(), (1, 12, 12)).quantize(x).predict(x)

    outputs = predict()
    monkeypatch.setattr(type(nl.gen_backend("cpu").primitives), "computes_quantized", lambda self, dtype, layer: False)
    with pytest.warns(UserWarning, match="int8 is not faster here"):
        expected = predict()
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)


# --- networks ---


def test_the_accuracy_is_nearly_that_of_float32():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(5, 1, 8, 8))
    y = rng.integers(5, size=600)
    X = (centers[y] + rng.normal(size=(600, 1, 8, 8))).astype(np.float32)
    nl.gen_backend("cpu", rng_seed=0)
    model = Model([Conv((3, 3, 8), padding=1, batch_norm=True, activation="relu"), Pooling(2), *zoo.mlp(5, (32,))])
    model.fit(X[:400], y[:400], epochs=5, progress_bar=False)
    before, after = (m.evaluate(X[400:], y[400:])["accuracy"] for m in (model, model.quantize(X[:100])))
    assert before > 0.9
    assert abs(after - before) <= 0.02


def test_branches_and_other_layers_are_kept():
    residual = [Conv((3, 3, 4), padding=1, activation="relu"), Conv((3, 3, 4), padding=1)]
    layers = [Conv((3, 3, 4), padding=1), MergeSum([residual, SkipNode()]), Activation("tanh"), Affine(2)]
    model, x = model_of(layers, (4, 6, 6)), rows(8, 4, 6, 6)
    fast = model.quantize(x)
    kinds = [type(layer).__name__ for layer in fast.layers.leaves()]
    assert kinds.count("QuantizedConvolution") == 3
    assert {"SkipNode", "Activation", "QuantizedLinear"} <= {*kinds}
    np.testing.assert_allclose(fast.predict(x), model.predict(x), atol=0.15)


def test_a_product_over_time_steps_is_that_of_each_step():
    model, x = model_of([Affine(3, activation="relu"), LSTM(4), RecurrentLast(), Affine(2)], (5, 6)), rows(7, 5, 6)
    np.testing.assert_allclose(model.quantize(x).predict(x), model.predict(x), atol=0.05)


def test_a_convolution_with_a_bias_of_its_layer_is_replaced():
    model, x = model_of([Convolution_bias((3, 3, 4), bias=[[1.0], [2.0], [3.0], [4.0]])], (2, 5, 5)), rows(4, 2, 5, 5)
    np.testing.assert_allclose(model.quantize(x).predict(x), model.predict(x), atol=0.1)


def test_the_model_is_unchanged():
    model, x = model_of(zoo.lenet(), (1, 12, 12)), rows(4, 1, 12, 12)
    before, weights = model.predict(x), model.get_weights()
    model.quantize(x)
    np.testing.assert_array_equal(model.predict(x), before)
    assert all((weights[name] == w).all() for name, w in model.get_weights().items())


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_the_batch_size_of_the_calibration_does_not_matter(batch_size):
    model, x = model_of(zoo.mlp(3, (8,)), 6), rows(20, 6)
    expected, found = (model.quantize(x, n).get_weights() for n in (20, batch_size))
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


def test_small_weights_of_float16_have_factors_that_do_not_underflow():
    nl.gen_backend("cpu", batch_size=8, rng_seed=0, datatype="float16")
    model, x = Model([Linear(4, 0.001 * rows(4, 200), name="a")]), np.abs(rows(20, 200)) / 4
    model.initialize(200)
    W, fast = model.layers["a"].W.get().astype(np.float64), model.quantize(x)
    factors = np.abs(W).max(axis=1, keepdims=True) / 127 * np.float64(np.float16(x.max())) / 127
    np.testing.assert_allclose(fast.layers["a"].factors.get(), factors, rtol=1e-3)
    np.testing.assert_allclose(fast.predict(x), x @ W.T, atol=1e-4)


# --- files ---


def test_a_file_has_a_quarter_of_the_size_and_predicts_the_same(tmp_path):
    model, x = model_of(zoo.mlp(10, (200, 200)), 100), rows(9, 100)
    fast = model.quantize(x)
    files = [tmp_path / name for name in ("float", "int8")]
    model.save_params(files[0], keep_states=False)
    fast.save_params(files[1], keep_states=False)
    assert files[1].stat().st_size < 0.3 * files[0].stat().st_size
    loaded = Model(files[1])
    np.testing.assert_array_equal(loaded.predict(x), fast.predict(x))
    assert str(loaded.layers) == str(fast.layers)
    assert {w.dtype.name for name, w in loaded.get_weights().items() if name.endswith(".W")} == {"int8"}


def test_a_model_of_labels_and_scaled_rows_stays_one():
    nl.gen_backend("cpu", rng_seed=0)
    X, y = np.random.default_rng(0).integers(256, size=(64, 9)).astype(np.uint8), np.array(["a", "b"] * 32)
    model = Model(zoo.mlp(2, (8,)))
    model.fit(X, y, epochs=1, progress_bar=False)
    fast = model.quantize(X)
    assert fast.classes == ["a", "b"]
    np.testing.assert_allclose(fast.predict(X), model.predict(X), atol=0.05)


# --- errors ---


def test_a_model_of_int8_weights_is_not_trained():
    model, x = model_of(zoo.mlp(2, (4,)), 3), rows(8, 3)
    with pytest.raises(ValueError, match=r"expected float weights, .*Train the model that was quantized"):
        model.quantize(x).fit(x, np.arange(8) % 2, epochs=1)


def test_a_gradient_through_int8_weights_is_refused_instead_of_zero():
    model, x = model_of(zoo.mlp(2, (4,)), 3), rows(8, 3)
    inputs = model.be.array(x.T)
    tree = model.quantize(x).layers(inputs)
    with pytest.raises(NotImplementedError, match=r"expected float weights to differentiate, .*the model that was"):
        nl.Autodiff(tree, model.be).get_grad_op_tree([inputs])


@pytest.mark.filterwarnings("ignore:.*Check the weights")
@pytest.mark.parametrize("number", [0, 1])
def test_weights_that_are_not_finite_are_refused(number):
    model, x = model_of([Affine(4), Affine(2)], 3), rows(8, 3)
    layer = [layer for layer in model.layers.leaves() if layer.classnm == "Linear"][number]
    layer.W[0, 0] = np.nan
    message = rf"expected finite weights and inputs of {layer.name}, got NaN or infinity"
    with pytest.raises(ValueError, match=message):
        model.quantize(x)


def test_errors_name_the_way_out():
    x = rows(8, 3)
    nl.gen_backend("cpu", batch_size=8)
    with pytest.raises(RuntimeError, match=r"expected a trained or loaded model.* Call fit first"):
        Model([Affine(2)]).quantize(x)
    model = model_of([Affine(2)], 3)
    with pytest.raises(TypeError, match="X"):
        model.quantize()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"expected rows, .*Pass an array"):
        model.quantize(nl.data.ArrayIterator(x))
    with pytest.raises(ValueError, match="expected a Linear or Convolution layer, got QuantizedLinear"):
        model.quantize(x).quantize(x)
    with pytest.raises(ValueError, match="finite"):
        model.quantize(np.full((2, 3), np.nan))
