"""Log-softmax of rows by oneDNN. The oracles are formulas in NumPy, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.onednn_primitives import needs, ops_of

from neonlite import Autodiff, Backend
from neonlite.backend.primitives.rows import LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD, SOFTMAX
from neonlite.backend.runtimes.onednn.rows import EXP_BLOCK_ELEMENTS, MAX_ROW_TERMS

pytestmark = needs
RNG = np.random.default_rng


def log_softmax(x: Any) -> Any:
    """Return the formula in the dtype of x."""
    with np.errstate(invalid="ignore", over="ignore"):
        d = x - x.max(axis=-1, keepdims=True)
        return d - np.log(np.exp(d).sum(axis=-1, keepdims=True))


def gradient(x: Any, dz: Any) -> Any:
    """Return the gradient of the log-softmax of rows, by its textbook, in float64."""
    x, dz = np.asarray(x, float), np.asarray(dz, float)
    return dz - np.exp(log_softmax(x)) * dz.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("shape", [(7, 3), (1, 1000), (4, 8, 64, 64), (700, 1001), (2, MAX_ROW_TERMS)], ids=str)
def test_a_log_softmax_of_rows_is_one_step_as_precise_as_numpy(cpu: Backend, shape: tuple[int, ...]) -> None:
    x = cpu.array(RNG(0).normal(scale=3, size=shape))
    tree = cpu.log_softmax(x, -1)
    assert ops_of(cpu.plan(tree)) == [LOG_SOFTMAX]
    exact, numpy = log_softmax(x.get().astype(float)), log_softmax(x.get())
    error, of_numpy = (
        np.abs(z - exact).max() / np.spacing(np.abs(exact).max(), dtype="f") for z in (tree.get(), numpy)
    )
    assert error <= max(1, 1.25 * of_numpy)


ROWS: dict[str, Any] = {
    "one large element": np.eye(40) * 20,
    "one largest element": np.eye(40) * 200,
    "equal elements": np.full((40, 40), 3.3),
    "large elements": RNG(0).normal(size=(40, 40)) + 1e5,
    "large differences": RNG(0).normal(size=(40, 40)) * 300,
    "probabilities that are subnormal": np.pad(np.full((40, 40), -95.0), ((0, 0), (1, 0))),
    "subnormal elements": RNG(0).normal(size=(40, 40)) * 1e-40,
    "differences that overflow": RNG(0).uniform(-1, 1, size=(40, 40)) * 3.4e38,
}


@pytest.mark.parametrize("name", ROWS)
def test_each_element_is_as_precise_as_the_formula(cpu: Backend, name: str) -> None:
    values = ROWS[name].astype(np.float32)
    found, formula, exact = (
        cpu.log_softmax(cpu.array(values), -1).get(),
        *map(log_softmax, (values, values.astype(float))),
    )
    is_finite = np.isfinite(formula)
    np.testing.assert_array_equal(found[~is_finite], formula[~is_finite])
    errors = [np.abs(z[is_finite] - exact[is_finite]) for z in (found, formula)]
    assert np.all(errors[0] <= errors[1] + 1.2e-7 * np.maximum(np.abs(exact[is_finite]), 1))


@pytest.mark.parametrize("rows", [6, 300])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_with_nan_or_infinity_is_nan_and_other_rows_are_not(cpu: Backend, value: float, rows: int) -> None:
    values = RNG(0).normal(size=(rows, rows + 1001)).astype(np.float32)
    special = np.arange(0, rows, 2)
    values[special, special] = value
    values[1], values[3, 5] = -np.inf, -np.inf
    found = cpu.log_softmax(cpu.array(values), -1).get()
    np.testing.assert_allclose(found, log_softmax(values.astype(float)), rtol=1e-6, atol=1e-6)
    assert np.isnan(found).all(axis=1).tolist() == [n == 1 or n % 2 == 0 for n in range(rows)]
    assert found[3, 5] == -np.inf


def test_a_log_softmax_over_another_axis_or_of_float64_is_computed_by_stages(cpu: Backend) -> None:
    x, y = cpu.array(RNG(0).normal(size=(5, 7))), cpu.array(RNG(0).normal(size=(5, 7)), dtype="float64")
    for tree in (
        cpu.log_softmax(x, 0),
        cpu.log_softmax(x, (0, 1)),
        cpu.log_softmax(y, -1),
        cpu.log_softmax(x[:, ::2], -1),
    ):
        assert LOG_SOFTMAX not in ops_of(cpu.plan(tree))
    long = cpu.zeros((1, 2 * MAX_ROW_TERMS))
    assert LOG_SOFTMAX not in ops_of(cpu.plan(cpu.log_softmax(long, -1)))
    np.testing.assert_array_equal(cpu.log_softmax(x[:, :1], -1).get(), np.zeros((5, 1)))


def test_the_exponential_of_a_log_softmax_is_a_softmax(cpu: Backend) -> None:
    x = cpu.array(RNG(0).normal(size=(5, 7)))
    z = cpu.log_softmax(x, -1)
    assert ops_of(cpu.plan(cpu.exp(z))) == [SOFTMAX]
    assert LOG_SOFTMAX in ops_of(cpu.plan(cpu.exp(z), z))
    assert LOG_SOFTMAX in ops_of(cpu.plan(cpu.exp(z) + cpu.abs(z)))
    assert LOG_SOFTMAX in ops_of(cpu.plan(cpu.abs(z)))
    np.testing.assert_allclose(cpu.exp(z).get(), np.exp(log_softmax(x.get().astype(float))), rtol=1e-6)


@pytest.mark.parametrize("shape", [(7, 3), (2, 3, 20), (300, 1000)], ids=str)
def test_the_gradient_is_one_step_where_the_log_softmax_is_read_too(cpu: Backend, shape: tuple[int, ...]) -> None:
    x, e = (cpu.array(RNG(n).normal(scale=2, size=shape)) for n in (0, 1))
    z = cpu.log_softmax(x, -1)
    dx = Autodiff(z, cpu, e).get_grad_op_tree(x)
    assert ops_of(cpu.plan(z, dx)) == [LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD]
    ops = ops_of(cpu.plan(dx))
    assert SOFTMAX in ops
    assert "exp" not in [op.name for op in ops]
    values, both = dx.get(), cpu.evaluate([z, dx])[1].get()
    for found in (values, both):
        np.testing.assert_allclose(found, gradient(x.get(), e.get()), rtol=1e-5, atol=1e-5)


def test_expressions_like_the_gradient_of_a_log_softmax_are_computed_by_stages(cpu: Backend) -> None:
    x, e, w = (cpu.array(RNG(n).normal(size=(6, 20))) for n in range(3))
    z = cpu.log_softmax(x, -1)
    a, b, c = (t.get().astype(float) for t in (z.astensor(), e, w))
    p, total = np.exp(a), b.sum(axis=1, keepdims=True)
    cases = {
        "the product first": (cpu.exp(z) * cpu.sum(e, axis=1) - e, p * total - b),
        "the sum of another": (e - cpu.exp(z) * cpu.sum(w, axis=1), b - p * c.sum(axis=1, keepdims=True)),
        "a sum of columns": (e - cpu.exp(z) * cpu.sum(e, axis=0), b - p * b.sum(axis=0)),
        "exp of another": (e - cpu.exp(w) * cpu.sum(e, axis=1), b - np.exp(c) * total),
        "a row": (e[:1] - cpu.exp(z) * cpu.sum(e[:1], axis=1), b[:1] - p * total[:1]),
        "twice the product": (e - cpu.exp(z) * 2 * cpu.sum(e, axis=1), b - 2 * p * total),
    }
    for name, (tree, expected) in cases.items():
        assert LOG_SOFTMAX_BACKWARD not in ops_of(cpu.plan(tree, z)), name
        np.testing.assert_allclose(cpu.evaluate([tree, z])[0].get(), expected, rtol=1e-4, atol=1e-5, err_msg=name)
    written = e - cpu.sum(e, axis=1) * cpu.exp(z)
    assert LOG_SOFTMAX_BACKWARD in ops_of(cpu.plan(written, z)), "in another order"
    np.testing.assert_allclose(cpu.evaluate([written, z])[0].get(), b - p * total, rtol=1e-4, atol=1e-5)


def test_nan_propagates_to_the_gradients_of_its_row(cpu: Backend) -> None:
    x, e = (RNG(n).normal(size=(5, 50)).astype(np.float32) for n in (0, 1))
    x[1, 3], e[2, 5], x[3, 7], x[4, 0] = np.nan, np.nan, np.inf, -np.inf
    variable = cpu.array(x)
    z = cpu.log_softmax(variable, axis=1)
    dx = Autodiff(z, cpu, cpu.array(e)).get_grad_op_tree(variable)
    for found in (dx.get(), cpu.evaluate([z, dx])[1].get()):
        assert np.isnan(found).all(axis=1).tolist() == [False, True, True, True, False]
        assert np.isfinite(found[[0, 4]]).all()
        np.testing.assert_allclose(found[[0, 4]], gradient(x, e)[[0, 4]], rtol=1e-5, atol=1e-5)


def test_a_cross_entropy_of_rows_and_its_gradient_are_few_steps(cpu: Backend) -> None:
    found, rng = [], RNG(0)
    values, errors = rng.normal(size=(9, 33)), rng.random((9, 33))
    for dtype in ("float32", "float64"):
        x, t = (cpu.array(a, dtype=dtype) for a in (values, errors / errors.sum(axis=1, keepdims=True)))
        cost = cpu.cross_entropy(x, t, axis=1)
        trees = [cost, *Autodiff(cost, cpu).get_grad_op_tree([x])]
        assert (LOG_SOFTMAX_BACKWARD in ops_of(cpu.plan(*trees))) == (dtype == "float32")
        found.append([tree.get() for tree in cpu.evaluate(trees)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-8)


def test_second_derivatives_are_those_of_float64(cpu: Backend) -> None:
    found = []
    for dtype in ("float32", "float64"):
        x, e, v = (cpu.array(RNG(n).normal(size=(5, 12)), dtype=dtype) for n in range(3))
        cost = cpu.sum(cpu.square(cpu.log_softmax(x, -1)) * e)
        first = Autodiff(cost, cpu).get_grad_op_tree(x)
        trees = [cost, first, Autodiff(cpu.sum(first * v), cpu).get_grad_op_tree(x)]
        found.append([t.get() for t in cpu.evaluate(trees)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_targets_may_be_operands_and_not_read_only(cpu: Backend) -> None:
    values, errors = (RNG(n).normal(size=(300, 1000)).astype(np.float32) for n in (0, 1))
    x, dz = cpu.array(values), cpu.array(errors)
    z = cpu.log_softmax(x, -1)
    dz[:] = Autodiff(z, cpu, dz).get_grad_op_tree(x) + 0 * z
    np.testing.assert_allclose(dz.get(), gradient(values, errors), rtol=1e-5, atol=1e-4)
    x[:] = cpu.log_softmax(x, -1)
    np.testing.assert_allclose(x.get(), log_softmax(values.astype(float)), rtol=1e-5)
    y = np.zeros((300, 1000), np.float32)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        cpu.primitives.log_softmax(x._array, y)
    with pytest.raises(ValueError, match="read-only"):
        cpu.primitives.log_softmax_backward(x._array, x._array, y)


def test_the_exponentials_of_long_rows_need_the_memory_of_a_block(cpu: Backend, threads: Callable[[int], None]) -> None:
    threads(1)
    x = cpu.array(RNG(0).normal(size=(16, EXP_BLOCK_ELEMENTS)))
    before = cpu.memory().workspaces
    cpu.log_softmax(x, -1).astensor()
    assert cpu.memory().workspaces - before <= x.nbytes / 8
