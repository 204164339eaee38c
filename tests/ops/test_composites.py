"""Tests of composite ops at the edges of arithmetic, and in 16 bits: computed in float32, and rounded once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.reference import REFERENCE
from helpers.runtimes import lacks

from neonlite import Autodiff, Backend
from neonlite.ops import composites

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("softmax", [[0, -INF], [0, -INF], [-INF, -INF]], [[0.5, NAN], [0.5, NAN], [0, NAN]]),
        ("softmax", [[INF, 1e4], [0, -1e4], [0, NAN]], [[NAN, NAN]] * 3),
        ("log_softmax", [[1e4, 0], [1e4, 0], [-INF, 0]], [[-math.log(k)] * 1 for k in (2, 2)]),
        ("logsumexp", [[-INF, 1e4, INF, NAN, -INF], [-INF, 1e4, 0, 0, 1]], [[-INF, 1e4, INF, NAN, 1]]),
        ("silu", [[INF, 1e4, -1e4, NAN]], [[INF, 1e4, 0, NAN]]),
        ("gelu", [[INF, 1e4, -1e4, NAN]], [[INF, 1e4, 0, NAN]]),
        ("elu", [[INF, -INF, -1e4, NAN]], [[INF, -1, -1, NAN]]),
        ("leaky_relu", [[INF, -INF, NAN]], [[INF, -INF, NAN]]),
        ("softplus", [[INF, -INF, 1e4, -1e4, NAN]], [[INF, 0, 1e4, 0, NAN]]),
        ("layer_norm", [[7, INF], [7, 0]], [[0, NAN], [0, NAN]]),
        ("rms_norm", [[0, INF], [0, 0]], [[0, NAN], [0, 0]]),
    ],
)
def test_at_the_edges_of_arithmetic(be: Backend, name: str, values: Any, expected: Any) -> None:
    for dtype in (dtype for dtype in ("float64", "float32", "float16") if dtype in be.runtime.dtypes):
        found = getattr(be, name)(be.array(values, dtype)).get()
        if name == "log_softmax":
            np.testing.assert_allclose(found[:2, 0], np.ravel(expected), 1e-3)
            np.testing.assert_allclose(found[:, 1], [-math.log(3)] * 3, 1e-3)
            assert found[2, 0] == -INF
        else:
            np.testing.assert_allclose(found, np.array(expected), 1e-3, err_msg=dtype)


def bits_of_bfloat16(x: Any) -> Any:
    """Return the upper 16 bits of float32 after an addition that rounds to them, ties to even."""
    bits = x.view(np.uint32)
    return ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def test_float32_is_rounded_to_bfloat16_ties_to_even(be: Backend) -> None:
    if lacks(be, "float64"):
        return
    bits = np.random.default_rng(0).integers(0, 2**32, 1 << 14, dtype=np.uint32)
    bits[: 1 << 13] &= 0xFFFF8000  # half of these are ties
    x = bits.view(np.float32)[None]
    x = np.append(x[:, np.abs(x[0]) > 1e-37], [[3.4e38, -3.39e38, 0, -0.0, INF, -INF]], axis=1).astype(np.float32)
    found = composites.round_to_bfloat16(be, be.array(x)).get()
    np.testing.assert_array_equal(found, (bits_of_bfloat16(x).astype(np.uint32) << 16).view(np.float32))
    assert np.isnan(composites.round_to_bfloat16(be, be.array([[NAN]])).get()).all()


def test_every_finite_number_is_read_from_its_bits(be: Backend) -> None:
    if lacks(be, "int16") or lacks(be, "float64"):
        return
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = (bits.astype(np.uint32) << 16).view(np.float32)
    is_normal = np.isfinite(expected) & ((np.abs(expected) >= 2.0**-126) | (expected == 0))
    found = composites.from_bfloat16(be, be.array(bits[None, is_normal].view(np.int16), dtype="int16")).get()
    np.testing.assert_array_equal(found[0], expected[is_normal])


def test_masked_elements_have_no_weight_and_a_column_without_any_is_zero(be: Backend) -> None:
    x, mask = be.array([[1.0, INF, NAN], [1, 2, 3], [1, 2, 3]]), be.array([[0.0, 0, 0], [1, 1, 0], [1, 0, 0]])
    value = be.masked_softmax(x, mask)
    np.testing.assert_allclose(value.get(), [[0, 0, 0], [0.5, 1, 0], [0.5, 0, 0]])
    dx = Autodiff(value, be, be.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])).get_grad_asnumpyarray(x)
    np.testing.assert_allclose(dx, [[0, 0, 0], [-0.75, 0, 0], [0.75, 0, 0]])


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm"])
def test_an_empty_batch_has_an_empty_result_and_an_empty_axis_is_an_error(be: Backend, name: str) -> None:
    method = getattr(be, name)
    assert method(be.zeros((3, 0))).get().shape == (1 if name == "logsumexp" else 3, 0)
    with pytest.raises(ValueError, match=rf"be\.{name}\(x \(0, 3\)\): .*expected .* got"):
        method(be.zeros((0, 3), name="x"))


def test_the_cost_of_an_empty_batch_is_an_error(be: Backend) -> None:
    with pytest.raises(ValueError, match=r"be\.cross_entropy\(x \(3, 0\), t \(3, 0\)\): .*at least one element"):
        be.cross_entropy(be.zeros((3, 0), name="x"), be.zeros((3, 0), name="t"))


UNARY = ["silu", "gelu", "leaky_relu", "elu", "softplus", "softmax", "log_softmax", "layer_norm", "rms_norm"]


def is_rounded_once(found: Any, exact: Any, bits: int) -> bool:
    """Return whether no value is farther from the exact one than half a unit in the last place, and a little."""
    unit = 2.0 ** (np.floor(np.log2(np.maximum(abs(exact), 2.0**-14))) - bits)
    return bool((abs(found.astype(float) - exact) <= 0.51 * unit).all())


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 10), ("bfloat16", 7)])
@pytest.mark.parametrize("name", UNARY)
def test_16_bit_floats_are_rounded_once(be: Backend, name: str, dtype: str, bits: int) -> None:
    if lacks(be, dtype):
        pytest.skip(f"no {dtype}")
    x = be.array(np.random.default_rng(3).normal(0, 2, (40, 25)), dtype=dtype)
    tree, exact = getattr(be, name)(x), be.astype(x, "float64").get()
    assert tree.dtype == dtype
    assert is_rounded_once(be.astype(tree, "float64").get(), REFERENCE[name](exact), bits)


@pytest.mark.parametrize("name", ["silu", "gelu", "elu", "softplus", "rms_norm"])
def test_gradients_of_16_bit_floats_are_rounded_once(be: Backend, name: str) -> None:
    if lacks(be, "float16"):
        pytest.skip("no float16")
    x = be.array(np.random.default_rng(4).normal(0, 2, (40, 25)), dtype="float16")
    wide = be.astype(x, "float64").astensor()
    exact = Autodiff(getattr(be, name)(wide), be).get_grad_asnumpyarray(wide)
    found = Autodiff(getattr(be, name)(x), be).get_grad_tensor(x)
    assert found.dtype == "float16"
    np.testing.assert_allclose(found.get().astype(float), exact, 2.0**-11 * 1.02, 2.0**-24)


def test_operands_of_two_widths_have_the_wider_result(be: Backend) -> None:
    if lacks(be, "float16"):
        pytest.skip("no float16")
    x, gamma = be.ones((3, 2), dtype="float16"), be.ones((3, 1), dtype="float32")
    assert be.layer_norm(x, gamma).dtype == "float32"
    assert be.layer_norm(x, be.astype(gamma, "float16")).dtype == "float16"
    assert be.masked_softmax(x, gamma).dtype == "float16"  # a mask is only compared with 0


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_integers_do_not_wrap(be: Backend, dtype: str) -> None:
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    x = be.array([[low, 0], [high, 1]], dtype=dtype)
    np.testing.assert_allclose(be.softmax(x).get(), [[0, 1 / (1 + math.e)], [1, math.e / (1 + math.e)]], 1e-6, 1e-30)
    np.testing.assert_allclose(be.layer_norm(x).get(), [[-1, -1], [1, 1]], 1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda be, x, g: be.layer_norm(x, g), r"be\.layer_norm\(x \(3, 4\), g \(5, 1\)\): .* 3 and 5 on axis 0"),
        (lambda be, x, g: be.layer_norm(x, eps=2j), r"be\.layer_norm: expected a number for eps, got 2j"),
        (lambda be, x, g: be.layer_norm(x, beta=g), r"be\.layer_norm: expected gamma as well as beta, got None"),
        (lambda be, x, g: be.cross_entropy(x, g), r"be\.cross_entropy\(x \(3, 4\), g \(5, 1\)\): .* do not broadcast"),
        (lambda be, x, g: be.softmax(x, axis=2), r"be\.softmax\(x \(3, 4\)\): axis 2 is out of range"),
        (lambda be, x, g: be.softmax(x, dim=1), r"be\.softmax: .*expected the options a, axis, out, got dim"),
        (lambda be, x, g: be.group_norm(x, groups=2), r"be\.group_norm\(x \(3, 4\)\): .* divides the 3 .*, got 2"),
        (lambda be, x, g: be.group_norm(x, groups=0), r"be\.group_norm\(x \(3, 4\)\): .* divides the 3 .*, got 0"),
        (lambda be, x, g: be.batch_norm(x, g), r"be\.batch_norm\(x \(3, 4\), g \(5, 1\)\): .*"),
        (lambda be, x, g: be.attention(x, x, g), r"be\.attention\(x .*\): expected q .*got \(3, 4\), \(3, 4\) and"),
        (lambda be, x, g: be.gelu("x"), r"be\.gelu: expected tensors, op-trees, scalars or arrays"),
        (lambda be, x, g: be.silu(), r"missing .*'a'"),
        (lambda be, x, g: be.softmax(x, 0, axis=1), "multiple values for argument 'axis'"),
        (lambda be, x, g: be.softmax(x, 0, None, 3), "too many positional arguments"),
        (
            lambda be, x, g: be.build("softmax", x, g),
            r"be\.softmax\(x \(3, 4\), g \(5, 1\)\): expected 1 operands, got 2",
        ),
    ],
)
def test_an_error_names_the_function_and_its_operands(be: Backend, call: Any, message: str) -> None:
    x, g = be.ones((3, 4), name="x"), be.ones((5, 1), name="g")
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        call(be, x, g)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("factor", [-1.0, 1.0])
def test_self_attention_of_scores_far_from_0_is_that_of_float64(be: Backend, factor: float, causal: bool) -> None:
    """All scores are near -300, or near 300, where e^s is 0 or infinite in float32."""
    T, N, H, d = 5, 2, 2, 4
    values = np.random.default_rng(0).normal(size=(T, N, 3, H, d))
    values[:, :, :2] = 12 + values[:, :, :2] / 5
    values[:, :, 0] *= factor
    x = be.array(values, dtype="float32")
    q, k, v = np.moveaxis(x.get().astype(float), 2, 0)
    scores = np.einsum("tnhd,snhd->nhts", q, k) / np.sqrt(d)
    scores[..., ~np.tri(T, dtype=bool)] = -np.inf if causal else scores[..., ~np.tri(T, dtype=bool)]
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = np.einsum("nhts,snhd->tnhd", e / e.sum(axis=-1, keepdims=True), v)
    np.testing.assert_allclose(be.build("fused_attention", x, causal=causal).get(), expected, rtol=2e-3, atol=2e-4)
