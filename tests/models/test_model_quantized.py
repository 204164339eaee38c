"""Model.quantize: weights of int8 and bfloat16, their products, accuracy, files, errors (neonlite/models/model.py)."""

from __future__ import annotations

import copy
import pickle
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
    Dropout,
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


def bfloat16(x: Array) -> Array:
    """Return numbers with 8 significant bits, ties to even."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(fraction * 256), exponent - 8)


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


@pytest.mark.parametrize("norm", [False, True])
def test_a_linear_layer_of_bfloat16_adds_products_of_8_significant_bits(norm):
    model = model_of([Affine(5, bias=None if norm else True, batch_norm=norm, activation="relu", name="a")], 12)
    W, b, x, gain = model.layers["a"].W.get().astype(np.float64), rows(5, 1), rows(20, 12), np.ones((5, 1))
    if norm:
        layer = model.layers["a_bnorm"]
        layer.gmean[:], layer.gvar[:] = rows(5, 1, seed=2), rows(5, 1, seed=3) ** 2 + 0.5
        layer.gamma[:], layer.beta[:] = rows(5, 1, seed=4), b
        mean, var, gamma = (t.get().astype(np.float64) for t in (layer.gmean, layer.gvar, layer.gamma))
        gain = gamma / np.sqrt(var + layer.eps)
        b = b - mean * gain
    else:
        model.layers["a_bias"].W[:] = b
    fast = model.quantize(dtype="bfloat16")
    expected = np.maximum(bfloat16(gain * W) @ bfloat16(x.T) + b, 0).T
    np.testing.assert_allclose(fast.predict(x), expected, rtol=1e-5, atol=1e-5)
    found = (fast.layers["a"].W.get().view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(found, bfloat16((gain * W).astype(np.float32)))
    assert [type(layer) for layer in fast.layers] == [QuantizedLinear]


def test_a_convolution_of_bfloat16_adds_products_of_8_significant_bits():
    layers = [Conv((3, 3, 6), strides=2, padding=1, bias=True, activation="relu", name="c")]
    model, x = model_of(layers, (4, 7, 7)), rows(5, 4, 7, 7)
    W, b = bfloat16(model.layers["c"].W.get()).reshape(4, 3, 3, 6), rows(6, 1)
    model.layers["c"].weight_bias[:] = b
    images = np.pad(bfloat16(x), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    z = np.einsum("ncpqrs,crsk->nkpq", windows, W) + b[None, :, :, None]
    fast = model.quantize(dtype="bfloat16")
    np.testing.assert_allclose(fast.predict(x), np.maximum(z, 0).reshape(5, -1), rtol=1e-4, atol=1e-4)
    assert [type(layer) for layer in fast.layers] == [QuantizedConvolution]


def test_weights_are_rounded_to_the_nearest_of_bfloat16_ties_to_even():
    W = [[1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1 - 2**-8, 3e-38, 0]]
    fast = model_of([Linear(1, W, name="y")], 6).quantize(dtype="bfloat16")
    expected = [1, 1 + 2**-6, 1 + 2**-7, -1, bfloat16(np.float32(3e-38)), 0]
    np.testing.assert_array_equal(fast.predict(np.eye(6)).ravel(), np.float32(expected))


def test_rows_for_bfloat16_may_be_given_and_do_not_matter():
    model, x = model_of(zoo.mlp(3, (8,)), 6), rows(20, 6)
    expected, found = (model.quantize(X, dtype="bfloat16").get_weights() for X in (None, x))
    assert all((expected[name] == w).all() for name, w in found.items())


def test_large_inputs_of_bfloat16_are_not_clipped():
    fast = model_of([Linear(1, [[1.0, 2.0]])], 2).quantize(dtype="bfloat16")
    np.testing.assert_array_equal(fast.predict([[2.0**60, 0.0], [-1.0, 2.0**-60]]).ravel(), [2.0**60, -1 + 2.0**-59])


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


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("network", [zoo.mlp, zoo.lenet])
def test_the_primitives_return_what_the_formulas_do(network, dtype, monkeypatch):
    def predict(batch_size: int) -> tuple[Array, int]:
        """Return outputs, and how many products a primitive computes; of each batch size, a plan is compiled once."""
        x, calls = rows(9, 1, 12, 12), []
        fast = model_of(network(), (1, 12, 12)).quantize(x, dtype=dtype)
        function = fast.be.primitives.quantized_dot
        monkeypatch.setattr(fast.be.primitives, "quantized_dot", lambda *a, **k: calls.append(a) or function(*a, **k))
        return fast.predict(x, batch_size=batch_size), len(calls)

    has_products = nl.gen_backend("cpu").primitives.computes_quantized(
        {"int8": "int8"}.get(dtype, "int16"), (64, 64, 64)
    )
    outputs, count = predict(9)
    monkeypatch.setattr(type(nl.gen_backend("cpu").primitives), "computes_quantized", lambda self, dtype, layer: False)
    with pytest.warns(UserWarning, match=f"{dtype} is not faster here"):
        expected, none = predict(8)
    assert (count > 0, none) == (has_products, 0)
    np.testing.assert_allclose(outputs, expected, rtol=1e-3, atol=1e-6)


# --- networks ---


def test_the_accuracy_is_nearly_that_of_float32():
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(5, 1, 8, 8))
    y = rng.integers(5, size=600)
    X = (centers[y] + rng.normal(size=(600, 1, 8, 8))).astype(np.float32)
    nl.gen_backend("cpu", rng_seed=0)
    model = Model([Conv((3, 3, 8), padding=1, batch_norm=True, activation="relu"), Pooling(2), *zoo.mlp(5, (32,))])
    model.fit(X[:400], y[:400], epochs=5, progress_bar=False)
    models = model, model.quantize(X[:100]), model.quantize(dtype="bfloat16")
    before, *after = (m.evaluate(X[400:], y[400:])["accuracy"] for m in models)
    assert before > 0.9
    assert np.abs(np.subtract(after, before)).max() <= 0.02


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_branches_and_other_layers_are_kept(dtype):
    residual = [Conv((3, 3, 4), padding=1, activation="relu"), Conv((3, 3, 4), padding=1)]
    layers = [Conv((3, 3, 4), padding=1), MergeSum([residual, SkipNode()]), Activation("tanh"), Affine(2)]
    model, x = model_of(layers, (4, 6, 6)), rows(8, 4, 6, 6)
    fast = model.quantize(x, dtype=dtype)
    kinds = [type(layer).__name__ for layer in fast.layers.leaves()]
    assert kinds.count("QuantizedConvolution") == 3
    assert {"SkipNode", "Activation", "QuantizedLinear"} <= {*kinds}
    np.testing.assert_allclose(fast.predict(x), model.predict(x), atol=0.15)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_a_product_over_time_steps_is_that_of_each_step(dtype):
    model, x = model_of([Affine(3, activation="relu"), LSTM(4), RecurrentLast(), Affine(2)], (5, 6)), rows(7, 5, 6)
    np.testing.assert_allclose(model.quantize(x, dtype=dtype).predict(x), model.predict(x), atol=0.05)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_the_factor_of_dropout_at_inference_is_that_of_the_weights_and_the_bias(dtype):
    model = model_of([Affine(3, bias=True, activation="relu", name="a"), Dropout(0.25), Affine(2), Dropout(0.5)], 5)
    x = rows(20, 5)
    model.layers["a_bias"].W[:] = rows(3, 1)
    fast = model.quantize(x, dtype=dtype)
    np.testing.assert_allclose(fast.predict(x), model.predict(x), atol=0.02)
    assert [type(layer) for layer in fast.layers] == [QuantizedLinear] * 2


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_a_convolution_with_a_bias_of_its_layer_is_replaced(dtype):
    model, x = model_of([Convolution_bias((3, 3, 4), bias=[[1.0], [2.0], [3.0], [4.0]])], (2, 5, 5)), rows(4, 2, 5, 5)
    np.testing.assert_allclose(model.quantize(x, dtype=dtype).predict(x), model.predict(x), atol=0.1)


def test_the_model_is_unchanged():
    model, x = model_of(zoo.lenet(), (1, 12, 12)), rows(4, 1, 12, 12)
    before, weights = model.predict(x), model.get_weights()
    model.quantize(x)
    model.quantize(dtype="bfloat16")
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


@pytest.mark.parametrize(("dtype", "stored", "share"), [("int8", "int8", 0.3), ("bfloat16", "int16", 0.53)])
def test_a_file_has_a_part_of_the_size_and_predicts_the_same(dtype, stored, share, tmp_path):
    model, x = model_of(zoo.mlp(10, (200, 200)), 100), rows(9, 100)
    fast = model.quantize(x, dtype=dtype)
    files = [tmp_path / name for name in ("float", "rounded")]
    model.save_params(files[0], keep_states=False)
    fast.save_params(files[1], keep_states=False)
    assert files[1].stat().st_size < share * files[0].stat().st_size
    loaded = Model(files[1])
    for copied in (loaded, fast.copy(), copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        np.testing.assert_array_equal(copied.predict(x), fast.predict(x))
        assert str(copied.layers) == str(fast.layers)
    assert {w.dtype.name for name, w in loaded.get_weights().items() if name.endswith(".W")} == {stored}


def test_a_file_of_another_number_format_is_not_loaded(tmp_path):
    model, x = model_of(zoo.mlp(3, (8,)), 6), rows(20, 6)
    fast, other = model.quantize(x), model.quantize(dtype="bfloat16")
    for source, target in ((fast, other), (other, fast), (fast, model), (model, other)):
        source.save_params(tmp_path / "file")
        before = target.predict(x)
        with pytest.raises(nl.models.CheckpointError):
            target.load_params(tmp_path / "file")
        np.testing.assert_array_equal(target.predict(x), before)


def test_a_model_of_labels_and_scaled_rows_stays_one():
    nl.gen_backend("cpu", rng_seed=0)
    X, y = np.random.default_rng(0).integers(256, size=(64, 9)).astype(np.uint8), np.array(["a", "b"] * 32)
    model = Model(zoo.mlp(2, (8,)))
    model.fit(X, y, epochs=1, progress_bar=False)
    fast = model.quantize(X)
    assert fast.classes == ["a", "b"]
    np.testing.assert_allclose(fast.predict(X), model.predict(X), atol=0.05)


# --- errors ---


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_a_model_of_rounded_weights_is_not_trained(dtype):
    model, x = model_of(zoo.mlp(2, (4,)), 3), rows(8, 3)
    message = rf"expected float weights, got the {dtype} weights of .*Train the model that was quantized"
    with pytest.raises(ValueError, match=message):
        model.quantize(x, dtype=dtype).fit(x, np.arange(8) % 2, epochs=1)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_a_gradient_through_rounded_weights_is_refused_instead_of_zero(dtype):
    model, x = model_of(zoo.mlp(2, (4,)), 3), rows(8, 3)
    inputs = model.be.array(x.T)
    tree = model.quantize(x, dtype=dtype).layers(inputs)
    with pytest.raises(NotImplementedError, match=r"expected float weights to differentiate, .*the model that was"):
        nl.Autodiff(tree, model.be).get_grad_op_tree([inputs])


@pytest.mark.filterwarnings("ignore:.*Check the weights")
@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("number", [0, 1])
def test_weights_that_are_not_finite_are_refused(number, dtype):
    model, x = model_of([Affine(4), Affine(2)], 3), rows(8, 3)
    layer = [layer for layer in model.layers.leaves() if layer.classnm == "Linear"][number]
    layer.W[0, 0] = np.nan
    message = rf"expected finite weights and inputs of {layer.name}, got NaN or infinity"
    with pytest.raises(ValueError, match=message):
        model.quantize(x, dtype=dtype)


def test_errors_name_the_way_out():
    x = rows(8, 3)
    nl.gen_backend("cpu", batch_size=8)
    with pytest.raises(RuntimeError, match=r"expected a trained or loaded model.* Call fit first"):
        Model([Affine(2)]).quantize(x)
    model = model_of([Affine(2)], 3)
    with pytest.raises(TypeError, match=r"expected rows X for int8, got None.*bfloat16"):
        model.quantize()
    with pytest.raises(ValueError, match=r"expected one of 'int8', 'bfloat16' for dtype, got 'float16'"):
        model.quantize(x, dtype="float16")
    with pytest.raises(TypeError, match=r"expected rows, got 'bfloat16'. Pass dtype='bfloat16'"):
        model.quantize("bfloat16")
    with pytest.raises(ValueError, match=r"expected rows, .*Pass an array"):
        model.quantize(nl.data.ArrayIterator(x))
    with pytest.raises(ValueError, match="expected a Linear or Convolution layer, got QuantizedLinear"):
        model.quantize(x).quantize(x)
    with pytest.raises(ValueError, match="finite"):
        model.quantize(np.full((2, 3), np.nan))
