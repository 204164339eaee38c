"""Softmax and norms of rows by oneDNN. The oracles are formulas in NumPy, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.onednn_primitives import needs, ops_of

from neonlite import Autodiff, Backend
from neonlite.backend.planning.steps import StepList
from neonlite.backend.primitives.rows import (
    NORMALIZED,
    NORMALIZED_BACKWARD,
    SOFTMAX,
    SOFTMAX_BACKWARD,
)
from neonlite.backend.runtimes.onednn.rows import GRADIENT_BLOCK_ELEMENTS, MAX_ROW_TERMS

pytestmark = needs
RNG = np.random.default_rng


def softmax(x: Any) -> Any:
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)


# --- softmax ---


@pytest.mark.parametrize("shape", [(3, 1), (5, 7), (1, 1000), (4, 8, 64, 64)])
def test_a_softmax_of_rows_is_one_step(cpu: Backend, shape: tuple[int, ...]) -> None:
    x = cpu.array(RNG(0).normal(scale=9, size=shape))
    tree = cpu.softmax(x, -1)
    assert ops_of(cpu.plan(tree)) == [SOFTMAX]
    np.testing.assert_allclose(tree.get(), softmax(x.get().astype(float)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(3, 1), (5, 7), (300, 1000), (4, 8, 64, 64)])
def test_the_gradient_of_a_softmax_of_rows_is_one_step(cpu: Backend, shape: tuple[int, ...]) -> None:
    x, e = (cpu.array(RNG(n).normal(scale=3, size=shape)) for n in (0, 1))
    tree = Autodiff(cpu.softmax(x, -1), cpu, e).get_grad_op_tree(x)
    assert ops_of(cpu.plan(tree)) == [SOFTMAX, SOFTMAX_BACKWARD]
    z, dz = softmax(x.get().astype(float)), e.get()
    np.testing.assert_allclose(tree.get(), z * (dz - (z * dz).sum(axis=-1, keepdims=True)), rtol=1e-4, atol=1e-6)


def test_a_product_with_the_sum_of_multiples_is_no_gradient_of_a_softmax(cpu: Backend) -> None:
    z, dz = (cpu.array(RNG(n).normal(size=(6, 20))) for n in (0, 1))
    tree = z * (dz - cpu.sum(z * 2, axis=1))
    assert SOFTMAX_BACKWARD not in ops_of(cpu.plan(tree))
    expected = z.get() * (dz.get() - 2 * z.get().sum(axis=1, keepdims=True))
    np.testing.assert_allclose(tree.get(), expected, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_softmax_may_be_written_by_hand_over_several_axes_and_in_place(cpu: Backend) -> None:
    z, dz = (cpu.array(RNG(n).normal(size=(6, 4, 5))) for n in (0, 1))
    a, b = z.get().astype(float), dz.get().astype(float)
    tree = (dz - cpu.sum(dz * z, axis=(1, 2))) * z
    assert ops_of(cpu.plan(tree)) == [SOFTMAX_BACKWARD]
    dz[:] = tree
    np.testing.assert_allclose(dz.get(), a * (b - (a * b).sum(axis=(1, 2), keepdims=True)), rtol=1e-4, atol=1e-5)


def test_expressions_like_the_gradient_of_a_softmax_are_computed_by_stages(cpu: Backend) -> None:
    z, dz, w = (cpu.array(RNG(n).normal(size=(5, 7))) for n in range(3))
    a, b, c = (x.get().astype(float) for x in (z, dz, w))
    total = (a * b).sum(axis=1, keepdims=True)
    cases = {
        "the sum first": (z * (cpu.sum(z * dz, axis=1) - dz), a * (total - b)),
        "the sum of another product": (z * (dz - cpu.sum(z * w, axis=1)), a * (b - (a * c).sum(axis=1, keepdims=True))),
        "another factor": (w * (dz - cpu.sum(z * dz, axis=1)), c * (b - total)),
        "columns": (z * (dz - cpu.sum(z * dz, axis=0)), a * (b - (a * b).sum(axis=0))),
        "a row": (z * (dz[:1] - cpu.sum(z * dz[:1], axis=1)), a * (b[:1] - (a * b[:1]).sum(axis=1, keepdims=True))),
    }
    for name, (tree, expected) in cases.items():
        assert SOFTMAX_BACKWARD not in ops_of(cpu.plan(tree)), name
        np.testing.assert_allclose(tree.get(), expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_nan_propagates_to_the_gradients_of_its_row(cpu: Backend) -> None:
    x, e = (RNG(n).normal(size=(4, 50)).astype(np.float32) for n in (0, 1))
    x[1, 3], e[2, 5] = np.nan, np.nan
    for function in (cpu.softmax, cpu.normalize):
        variable = cpu.array(x)
        found = Autodiff(function(variable, axis=1), cpu, cpu.array(e)).get_grad_tensor(variable).get()
        assert np.isnan(found).all(axis=1).tolist() == [False, True, True, False]
        assert np.isfinite(found[[0, 3]]).all()


def test_a_softmax_over_another_axis_or_of_float64_is_computed_by_stages(cpu: Backend) -> None:
    x, y = cpu.array(RNG(0).normal(size=(5, 7))), cpu.array(RNG(0).normal(size=(5, 7)), dtype="float64")
    for tree in (cpu.softmax(x, 0), cpu.softmax(x, (0, 1)), cpu.softmax(y, -1), cpu.softmax(x[:, ::2], -1)):
        assert SOFTMAX not in ops_of(cpu.plan(tree))


def test_a_row_with_nan_or_infinity_is_nan_and_other_rows_are_not(cpu: Backend) -> None:
    values = RNG(0).normal(size=(6, 37)).astype(np.float32)
    values[1, 3], values[2, 36], values[3], values[4, 5] = np.nan, np.inf, -np.inf, -np.inf
    found = cpu.softmax(cpu.array(values), -1).get()
    np.testing.assert_allclose(found, softmax(values.astype(float)), rtol=1e-5, atol=1e-7)
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, True, False, False]


@pytest.mark.parametrize("first", [0, -200, -np.inf])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_is_found_at_each_place_of_a_row(cpu: Backend, value: float, first: float) -> None:
    values = RNG(0).normal(size=(50, 50)).astype(np.float32)
    values[:, 0] = first
    values[np.arange(50), np.arange(50)] = value
    values = np.concatenate([values, np.ones((1, 50), np.float32)])
    found = cpu.softmax(cpu.array(values), -1).get()
    assert np.isnan(found[:-1]).all()
    np.testing.assert_allclose(found[-1], 1 / 50, rtol=1e-6)


def test_a_masked_softmax_of_rows_is_0_where_all_elements_are_masked(cpu: Backend) -> None:
    rng = RNG(0)
    values, mask = rng.normal(size=(9, 33)).astype(np.float32), rng.integers(0, 2, (9, 33))
    mask[2], mask[3], values[4, 1], mask[4, 1], values[5, 2], mask[5, 2] = 0, 1, np.nan, 0, np.nan, 1
    tree = cpu.masked_softmax(cpu.array(values), cpu.array(mask), -1)
    assert [op.name for op in ops_of(cpu.plan(tree))] == ["where", "softmax"]
    expected = softmax(np.where(mask, values.astype(float), -np.inf))
    expected[2] = 0
    np.testing.assert_allclose(tree.get(), expected, rtol=1e-5, atol=1e-7)
    assert np.isnan(expected[5]).all()


def test_a_masked_softmax_of_rows_with_infinity_is_that_of_its_formula(cpu: Backend) -> None:
    values = np.array([[np.inf, 1, 2], [np.inf, np.inf, 0], [np.inf, 1, 2], [-np.inf, 1, 2]], np.float32)
    mask = np.array([[1, 1, 1], [0, 1, 1], [0, 1, 1], [1, 1, 1]], np.float32)
    x, m = cpu.array(values), cpu.array(mask)
    found, expected = (cpu.masked_softmax(y, m, -1).get() for y in (x, cpu.array(values, dtype="float64")))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.isnan(found).sum() == 2


@pytest.mark.parametrize("name", ["softmax", "normalize"])
def test_rows_that_are_stored_with_gaps_are_copied(cpu: Backend, name: str) -> None:
    """An operand that a plan writes to a target with gaps, and a slice of a sequence that is stored by time."""
    wide, z, y = cpu.array(RNG(0).normal(size=(200, 400))), cpu.zeros((200, 200)), cpu.zeros((200, 200))
    a = wide[:, :200]
    function = (lambda x: cpu.softmax(x, -1)) if name == "softmax" else lambda x: cpu.normalize(x, axis=1)
    plain = (
        (lambda x: softmax(x)) if name == "softmax" else lambda x: (x - x.mean(1, keepdims=True)) / x.std(1)[:, None]
    )
    values = a.get().astype(float)
    cpu.assign([z, a, y], [a.T * 3, a + 1, function(a + 1) * a.T])
    np.testing.assert_allclose(y.get(), plain(values + 1) * values.T, rtol=1e-3, atol=1e-5)
    T, N, H = 16, 16, 128
    found = []
    for dtype in ("float32", "float64"):
        shapes = [(H, T * N), (4 * H, H), (4 * H, H), (4 * H, 1), (H, H)]
        x, W, U, b, V = (cpu.array(RNG(i).normal(size=shape) / 5, dtype=dtype) for i, shape in enumerate(shapes))
        states = [cpu.zeros((H, N), dtype=dtype) for _ in range(2)]
        h = cpu.lstm(x, W, U, b, *states, steps=T)
        part = cpu.build("slice", h, index=((0, 16, 1), (0, T * N, 1)))
        found.append([t.get() for t in cpu.evaluate([function(part), cpu.dot(V, h)])])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_a_read_only_target_is_not_written(cpu: Backend) -> None:
    x, y, statistics = cpu.array(RNG(0).normal(size=(5, 7))), np.zeros((5, 7), np.float32), np.zeros((2, 5), np.float32)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        cpu.primitives.softmax(x._array, y, is_masked=False)
    with pytest.raises(ValueError, match="read-only"):
        cpu.primitives.row_norm(x._array, y, *statistics, eps=1e-5)
    with pytest.raises(ValueError, match="read-only"):
        cpu.primitives.softmax_backward(x._array, x._array, y)
    with pytest.raises(ValueError, match="read-only"):
        cpu.primitives.row_norm_backward(x._array, x._array, *statistics, y, eps=1e-5)
    row = np.zeros((3, 7), np.float32)
    with pytest.raises(ValueError, match="read-only"):
        cpu.primitives.row_norm_backward(x._array, x._array, *statistics, row[0], y, row[1], row[2], eps=1e-5)
    assert not y.any()


# --- norms ---

NORMS: dict[str, tuple[tuple[int, ...], Callable[..., Any], tuple[int, ...]]] = {
    "normalize": ((6, 50), lambda be, x, g, b: be.normalize(x, axis=1), (1,)),
    "two axes": ((3, 4, 5), lambda be, x, g, b: be.normalize(x, axis=(1, 2)), (1, 2)),
    "all axes": ((3, 4, 5), lambda be, x, g, b: be.normalize(x, axis=(0, 1, 2)), (0, 1, 2)),
    "layer norm": ((6, 50), lambda be, x, g, b: be.layer_norm(x, axis=1, eps=1e-3), (1,)),
    "batch norm": ((6, 50), lambda be, x, g, b: be.batch_norm(x, g, b), (1,)),
    "batch norm of images": ((6, 3, 4, 5), lambda be, x, g, b: be.batch_norm(x, g, b), (1, 2, 3)),
    "batch norm without a shift": ((6, 50), lambda be, x, g, b: be.batch_norm(x, g), (1,)),
    "group norm": ((6, 4, 5), lambda be, x, g, b: be.batch_norm(x), (1, 2)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_and_their_gradients_are_those_of_float64(cpu: Backend, name: str) -> None:
    shape, network, axes = NORMS[name]
    found = []
    for dtype in ("float32", "float64"):
        x, weights = (cpu.array(RNG(n).normal(3, 2, shape), dtype=dtype) for n in (0, 1))
        gamma, beta = (cpu.array(RNG(n).normal(size=(shape[0], 1)), dtype=dtype) for n in (2, 3))
        y = network(cpu, x, gamma, beta)
        cost = cpu.sum(cpu.square(y) * weights)
        trees = [y, cpu.mean(x, axis=axes), *Autodiff(cost, cpu).get_grad_op_tree([x])]
        assert (NORMALIZED in ops_of(cpu.plan(*trees))) == (dtype == "float32")
        found.append([t.get() for t in cpu.evaluate(trees)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(1, np.abs(b).max()))


@pytest.mark.parametrize("name", [name for name in NORMS if "batch" not in name and "group" not in name])
def test_the_gradient_of_normalized_rows_is_one_step(cpu: Backend, name: str) -> None:
    shape, network, axes = NORMS[name]
    x, e = (cpu.array(RNG(n).normal(3, 2, shape)) for n in (0, 1))
    eps = 1e-3 if name == "layer norm" else 1e-5
    tree = Autodiff(network(cpu, x, None, None), cpu, e).get_grad_op_tree(x)
    ops = ops_of(cpu.plan(tree))
    assert NORMALIZED_BACKWARD in ops
    assert not {"mul", "sub", "sum"} & {op.name for op in ops}
    values, dz = x.get().astype(float), e.get().astype(float)
    scale = 1 / np.sqrt(values.var(axis=axes, keepdims=True) + eps)
    z = (values - values.mean(axis=axes, keepdims=True)) * scale
    means = dz.mean(axis=axes, keepdims=True) + z * (z * dz).mean(axis=axes, keepdims=True)
    np.testing.assert_allclose(tree.get(), (dz - means) * scale, rtol=1e-4, atol=1e-5)


def test_expressions_like_the_gradient_of_normalized_rows_are_computed_by_stages(cpu: Backend) -> None:
    x, e, w = (cpu.array(RNG(n).normal(size=(6, 50))) for n in range(3))
    deviation = cpu.sqrt(cpu.mean(cpu.square(x - cpu.mean(x, axis=1)), axis=1) + 1e-5)
    z, scale = cpu.normalize(x, axis=1), 1 / deviation
    of_z, of_e = cpu.mean(z * e, axis=1), cpu.mean(e, axis=1)
    gamma, beta = (cpu.array(RNG(n).normal(size=(6, 1))) for n in (3, 4))
    y, n = cpu.batch_norm(x, gamma, beta), cpu.batch_norm(x, gamma)
    trees = {
        "the mean of others": (e - cpu.mean(w, axis=1) - z * of_z) * scale,
        "the mean of another product": (e - of_e - z * cpu.mean(z * w, axis=1)) * scale,
        "another scale": (e - of_e - z * of_z) * cpu.exp(w),
        "a sum": (e - cpu.sum(e, axis=1) - z * of_z) * scale,
        "another factor": (e - cpu.sum(e, axis=1) * 0.25 - z * of_z) * scale,
        "columns": (e - cpu.mean(e, axis=0) - z * of_z) * scale,
        "the mean": (e - of_e - z * of_z) * cpu.mean(x, axis=1),
        "a deviation": (e - of_e - z * of_z) * deviation,
        "a batch norm": (e - of_e - y * cpu.mean(y * e, axis=1)) * scale,
        "a number in the product": (e - of_e - z * cpu.mean(z * 2, axis=1)) * scale,
        "a gain": (e - of_e - n * cpu.mean(n * e, axis=1)) * (scale * gamma),
    }
    for name, tree in trees.items():
        assert NORMALIZED_BACKWARD not in ops_of(cpu.plan(tree)), name


def test_a_gamma_that_is_computed_scales_the_rows(cpu: Backend) -> None:
    x, g = cpu.array(RNG(0).normal(size=(5, 70))), cpu.array(RNG(1).normal(size=(5, 1)))
    tree = cpu.batch_norm(x + 1, cpu.exp(g), g * 2)
    assert NORMALIZED in ops_of(cpu.plan(tree))
    values = x.get().astype(float) + 1
    d = values - values.mean(axis=1, keepdims=True)
    expected = d / np.sqrt((d**2).mean(axis=1, keepdims=True) + 1e-5) * np.exp(g.get()) + 2 * g.get()
    np.testing.assert_allclose(tree.get(), expected, rtol=1e-5, atol=1e-5)


ROW_SCALES: dict[str, tuple[Callable[..., Any], bool]] = {
    "layer norm": (lambda be, x, z, g, b: be.layer_norm(x, g, b, axis=-1), True),
    "other orders": (lambda be, x, z, g, b: b + g * z, True),
    "its mean is read, too": (lambda be, x, z, g, b: [z * g + b, be.mean(x, axis=-1)], True),
    "a gain alone": (lambda be, x, z, g, b: z * g, False),
    "a difference": (lambda be, x, z, g, b: z * g - b, False),
    "one number": (lambda be, x, z, g, b: z * 3 + b, False),
    "gamma twice": (lambda be, x, z, g, b: z * g + z * g * b, False),
    "rows that are read, too": (lambda be, x, z, g, b: [z * g + b, z], False),
    "rows with two readers": (lambda be, x, z, g, b: [z * g + b, be.exp(z)], False),
    "a gain that is read, too": (lambda be, x, z, g, b: [z * g + b, z * g], False),
    "a computed gamma": (lambda be, x, z, g, b: z * be.exp(g) + b, False),
    "a beta of each element": (lambda be, x, z, g, b: z * g + x, False),
    "a beta of each row": (lambda be, x, z, g, b: z * g + x[..., :1], False),
}


@pytest.mark.parametrize("shape", [(6, 50), (2, 3, 20)], ids=str)
@pytest.mark.parametrize("name", ROW_SCALES)
def test_gamma_and_beta_of_each_element_of_a_row_are_those_of_the_primitive(
    cpu: Backend, name: str, shape: tuple[int, ...]
) -> None:
    formula, is_one_step = ROW_SCALES[name]
    found = []
    for dtype in ("float32", "float64"):
        row = (1,) * (len(shape) - 1) + shape[-1:]
        x, g, b = (cpu.array(RNG(n).normal(2, 1, size), dtype=dtype) for n, size in enumerate((shape, row, row)))
        trees = formula(cpu, x, cpu.normalize(x, axis=-1, eps=1e-5), g, b)
        trees = trees if isinstance(trees, list) else [trees]
        ops = ops_of(cpu.plan(*trees))
        names = {op.name for op in ops}
        assert (NORMALIZED in ops and "sqrt" not in names) == (dtype == "float32")
        assert (not names & {"mul", "add"}) == (is_one_step and dtype == "float32")
        found.append([t.get() for t in cpu.evaluate(trees)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def layer_norm_gradients(x: Any, gamma: Any, error: Any) -> list[Any]:
    """Return the gradients of rows, gamma and beta, in float64 by the formula of a textbook."""
    x, gamma, error = (np.asarray(a, float) for a in (x, gamma, error))
    scale = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    z, dz = (x - x.mean(axis=-1, keepdims=True)) * scale, error * gamma
    means = dz.mean(axis=-1, keepdims=True) + z * (z * dz).mean(axis=-1, keepdims=True)
    leading = tuple(range(x.ndim - 1))
    return [(dz - means) * scale, *((a).sum(axis=leading, keepdims=True) for a in (z * error, error))]


GRADIENT_SHAPES = [(6, 50), (2, 3, 20), (9, 4), (3 * GRADIENT_BLOCK_ELEMENTS // 100 + 7, 100)]


@pytest.mark.parametrize("shape", GRADIENT_SHAPES, ids=str)
def test_the_gradients_of_rows_gamma_and_beta_are_one_step(cpu: Backend, shape: tuple[int, ...]) -> None:
    row = (1,) * (len(shape) - 1) + shape[-1:]
    x, gamma, beta, error = (cpu.array(RNG(n).normal(2, 1, size)) for n, size in enumerate((shape, row, row, shape)))
    y = cpu.layer_norm(x, gamma, beta, axis=-1)
    x_first = Autodiff(y, cpu, error).get_grad_op_tree([x, gamma, beta])
    names = [op.name for op in ops_of(cpu.plan(*x_first)) if op.kind != "view"]
    assert names == ["normalized", "means", "variances", "normalized_backward", "gamma_backward", "beta_backward"]
    names = [op.name for op in ops_of(cpu.plan(y, *x_first)) if op.kind != "view"]
    assert len(names) == 6, "the rows themselves need no step more"
    found = [t.get() for t in cpu.evaluate([y, *x_first[::-1]])]
    expected = layer_norm_gradients(x.get(), gamma.get(), error.get())
    for one, other in zip(found[:0:-1], expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5 * np.abs(other).max())


def test_gradients_of_some_parameters_of_a_layer_norm_are_computed_where_they_stand(cpu: Backend) -> None:
    """Each expression reads other parts, at other places, than the primitive computes."""
    shape = (7, 40)
    x, error, w = (cpu.array(RNG(n).normal(2, 1, shape)) for n in range(3))
    gamma, beta = (cpu.array(RNG(n).normal(2, 1, shape[1:]).reshape(1, -1)) for n in (3, 4))
    y = cpu.layer_norm(x, gamma, beta, axis=-1)
    dx, dgamma, dbeta = Autodiff(y, cpu, error).get_grad_op_tree([x, gamma, beta])
    rows, of_gamma, of_beta = layer_norm_gradients(x.get(), gamma.get(), error.get())
    z = (x.get() - x.get().mean(1, keepdims=True).astype(float)) / np.sqrt(x.get().astype(float).var(1)[:, None] + 1e-5)
    normal, e = cpu.normalize(x, axis=-1), error.get().astype(float)
    cases: dict[str, tuple[list[Any], list[Any]]] = {
        "gamma alone": ([dgamma], [of_gamma]),
        "beta alone": ([dbeta], [of_beta]),
        "rows alone": ([dx], [rows]),
        "rows and beta": ([dbeta, dx], [of_beta, rows]),
        "all, with beta first": ([dbeta, dgamma, dx], [of_beta, of_gamma, rows]),
        "products of gradients": ([dbeta * 2, dx * dgamma, dgamma - 1], [2 * of_beta, rows * of_gamma, of_gamma - 1]),
        "rows of a gradient": ([dx * cpu.exp(dbeta / 40), dgamma], [rows * np.exp(of_beta / 40), of_gamma]),
        "normalized rows": ([normal, dx, dgamma, dbeta], [z, rows, of_gamma, of_beta]),
        "another sum": ([dx, dgamma, cpu.sum(w, axis=0)], [rows, of_gamma, w.get().astype(float).sum(0)[None]]),
        "a sum over the rows": ([dx, dbeta, cpu.sum(normal * error, axis=1)], [rows, of_beta, (z * e).sum(1)[:, None]]),
        "a product with others": ([dx, dbeta, cpu.sum(w * error, axis=0)], [rows, of_beta, (w.get() * e).sum(0)[None]]),
        "twice": ([dx, dgamma, dbeta, dgamma + 1], [rows, of_gamma, of_beta, of_gamma + 1]),
    }
    for name, (trees, expected) in cases.items():
        for one, other in zip(cpu.evaluate(trees), expected, strict=True):
            np.testing.assert_allclose(one.get(), other, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_gain_of_each_element_or_each_row_is_no_gamma_of_a_layer_norm(cpu: Backend) -> None:
    x, error = (cpu.array(RNG(n).normal(2, 1, (7, 40))) for n in range(2))
    beta, normal = cpu.array(RNG(2).normal(size=(1, 40))), cpu.normalize(x, axis=-1)
    for shape in ((7, 40), (7, 1)):
        gain = cpu.array(RNG(3).normal(size=shape))
        dx, dbeta = Autodiff(normal * gain + beta, cpu, error).get_grad_op_tree([x, beta])
        found = [t.get() for t in cpu.evaluate([dx, dbeta, cpu.sum(normal * error, axis=0)])]
        expected = layer_norm_gradients(x.get(), gain.get(), error.get())
        for one, other in zip(found, (expected[0], expected[2], expected[1]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_the_search_for_norms_takes_time_proportional_to_their_number(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[int] = []
    steps: Any = StepList.numbered_steps
    counting = property(lambda plan: listed.append(len(plan.steps)) or steps.fget(plan))
    monkeypatch.setattr(StepList, "numbered_steps", counting)

    def count(n: int) -> int:
        x, (*rows,) = cpu.array(RNG(n).normal(size=(2, 3))), (cpu.array(RNG(k).normal(size=(1, 3))) for k in range(n))
        y: Any = x
        for row in rows:
            y = cpu.layer_norm(y, row, row, axis=-1) + x
        listed.clear()
        cpu.plan(*Autodiff(y, cpu, x).get_grad_op_tree([x, *rows]))
        return len(listed)

    assert count(4) == count(16)


def test_second_derivatives_of_a_layer_norm_are_those_of_float64(cpu: Backend) -> None:
    found = []
    for dtype in ("float32", "float64"):
        x, e, v = (cpu.array(RNG(n).normal(2, 1, (5, 12)), dtype=dtype) for n in range(3))
        gamma, beta = (cpu.array(RNG(n).normal(size=(1, 12)), dtype=dtype) for n in (3, 4))
        cost = cpu.sum(cpu.square(cpu.layer_norm(x, gamma, beta, axis=-1)) * e)
        first = Autodiff(cost, cpu).get_grad_op_tree([x, gamma, beta])
        total = cpu.sum(first[0] * v) + cpu.sum(first[1] * gamma) + cpu.sum(first[2])
        trees = [*first, *Autodiff(total, cpu).get_grad_op_tree([x, gamma, beta])]
        found.append([t.get() for t in cpu.evaluate(trees)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=1e-3)


def test_statistics_may_be_the_parameters_of_a_norm(cpu: Backend) -> None:
    x = cpu.array(RNG(0).normal(size=(6, 50)))
    mean = cpu.mean(x, axis=1)
    deviation = cpu.sqrt(cpu.mean(cpu.square(x - mean), axis=1) + 1e-5)
    np.testing.assert_allclose(cpu.batch_norm(x, deviation, mean).get(), x.get(), rtol=1e-4, atol=1e-6)
    variance = cpu.mean(cpu.square(x - mean), axis=1)
    values = x.get().astype(float)
    expected = (values - values.mean(1, keepdims=True)) * values.std(1, keepdims=True)
    found = cpu.batch_norm(x, variance).get()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("size", [100, 1 << 16, MAX_ROW_TERMS])
@pytest.mark.parametrize("loc", [0, 1000])
def test_statistics_of_rows_are_precise(cpu: Backend, size: int, loc: float) -> None:
    x = cpu.array(RNG(0).normal(loc, size=(2, size)))
    mean, variance = cpu.mean(x, axis=1), cpu.mean(cpu.square(x - cpu.mean(x, axis=1)), axis=1)
    trees = [cpu.normalize(x, axis=1), mean, variance]
    assert NORMALIZED in ops_of(cpu.plan(*trees))
    _, mean, variance = (t.get() for t in cpu.evaluate(trees))
    values = x.get().astype(float)
    np.testing.assert_allclose(mean, values.mean(axis=1, keepdims=True), rtol=1e-6, atol=2e-6)
    np.testing.assert_allclose(variance, values.var(axis=1, keepdims=True), rtol=3e-6)


def test_rows_of_other_lengths_are_computed_by_stages(cpu: Backend) -> None:
    for shape, axis in (((1, 2 * MAX_ROW_TERMS), 1), ((5, 7), 0), ((3, 4, 5), 1), ((0, 7), 1)):
        x = cpu.zeros(shape)
        assert NORMALIZED not in ops_of(cpu.plan(cpu.normalize(x, axis=axis)))


def test_the_gradients_of_many_rows_are_precise(cpu: Backend) -> None:
    x, error = (cpu.array(RNG(n).random(size=(1 << 16, 32))) for n in range(2))
    gamma, beta = cpu.ones((1, 32)), cpu.zeros((1, 32))
    trees = Autodiff(cpu.layer_norm(x, gamma, beta, axis=1), cpu, error).get_grad_op_tree([x, gamma, beta])
    found = [t.get() for t in cpu.evaluate(trees)]
    for one, other in zip(found, layer_norm_gradients(x.get(), gamma.get(), error.get()), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


def test_the_gradients_of_long_rows_need_little_memory_besides_the_results(
    cpu: Backend, threads: Callable[[int], None]
) -> None:
    threads(1)  # each thread has a workspace
    shape = (64, GRADIENT_BLOCK_ELEMENTS // 2)
    x, gamma, beta = (
        cpu.array(RNG(n).normal(size=size)) for n, size in enumerate([shape, (1, shape[1]), (1, shape[1])])
    )
    before = cpu.memory().workspaces
    y = cpu.layer_norm(x, gamma, beta, axis=1)
    cpu.evaluate([y, *Autodiff(y, cpu, x).get_grad_op_tree([x, gamma, beta])])
    assert 0 < cpu.memory().workspaces - before < x.nbytes / 4


def test_the_results_of_rows_do_not_depend_on_the_number_of_threads(
    cpu: Backend, threads: Callable[[int], None]
) -> None:
    found = []
    x, gamma, beta = (cpu.array(RNG(n).normal(size=size)) for n, size in enumerate([(601, 1009), (1, 1009), (1, 1009)]))
    for count in (1, 2):
        threads(count)
        gradients = Autodiff(cpu.layer_norm(x, gamma, beta, axis=1), cpu, x).get_grad_op_tree([x, gamma, beta])
        trees = [cpu.softmax(x, -1), cpu.batch_norm(x), cpu.mean(x, axis=1), *gradients]
        z = cpu.log_softmax(x, -1)
        trees += [z, *Autodiff(z, cpu, x).get_grad_op_tree([x]), cpu.log_softmax(x[:99], -1)]
        found.append([t.get() for t in cpu.evaluate(trees)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)
