"""Gradients of functions of the namespace with respect to arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each
from helpers.reference import numerical_gradient

import neonlite as nl
from neonlite.array_api.array import Array
from neonlite.backend import Backend

# --- gradients ---

DIFFERENTIABLE = """
xp.sum(xp.sin(x) * xp.cos(x)); xp.mean(xp.tanh(x), axis=0); xp.std(x); xp.var(x, axis=1, correction=1)
xp.max(x, axis=0)
xp.prod(x, axis=1); xp.cumulative_sum(x, axis=0); xp.cumulative_prod(x, axis=1); xp.sort(x, axis=0); xp.flip(x, axis=1)
xp.roll(x, 1, axis=0); xp.tile(x, (2, 1)); xp.repeat(x, 2, axis=0); xp.concat([x, x * 2]); xp.stack([x, x**2], axis=1)
xp.moveaxis(x, 0, 1); x.T @ x; x[0] @ x[1]; xp.tensordot(x, x, axes=1); xp.vecdot(x, x[::-1]); xp.linalg.det(x)
xp.linalg.inv(x); xp.linalg.solve(x, x[:, :1]); xp.linalg.slogdet(x)[1]; xp.linalg.cholesky(x @ x.T + xp.eye(3))
xp.linalg.eigvalsh(x + x.T); xp.linalg.svdvals(x); xp.linalg.matrix_norm(x); xp.linalg.vector_norm(x, axis=0, ord=3)
xp.linalg.qr(x)[1]; xp.linalg.pinv(x); xp.linalg.trace(x @ x); xp.linalg.cross(x[0], x[1]); xp.linalg.outer(x[0], x[1])
x[[2, 0]]; x[x > 1.0]; x[1, ::-1]; xp.take(x, xp.asarray([1, 1]), axis=0); xp.where(x > 1, x * x, -x)
xp.clip(x, 0.5, 1.5)
xp.take_along_axis(x, xp.argsort(x, axis=1), axis=1); xp.tril(x) @ xp.triu(x); xp.diff(x, axis=0); xp.erf(x)
xp.hypot(x, 2.0)
xp.logaddexp(x, x[0]); xp.atan2(x, x.T); x**x; x % 0.7; xp.expand_dims(x, axis=1) - x; xp.broadcast_to(x[0], (4, 3)) * 2
""".replace("\n", ";")


@each("expression", [e.strip() for e in DIFFERENTIABLE.split(";") if e.strip()])
def test_a_function_of_the_namespace_is_differentiated(expression: str) -> None:
    be = Backend("cpu", default_dtype="float64")
    xp = be.array_api
    values = np.random.default_rng(1).uniform(0.3, 2.0, size=(3, 3)) + np.eye(3)

    def f(array: np.ndarray[Any, Any]) -> Any:
        return eval(expression, {"xp": xp, "x": xp.asarray(array)})

    x = xp.variable(values)
    y = eval(expression, {"xp": xp, "x": x})
    weights = np.random.default_rng(2).normal(size=y.shape)
    gradient = nl.Autodiff(xp.sum(y * xp.asarray(weights)), be).get_grad_asnumpyarray(x)
    expected = numerical_gradient(lambda: float(np.sum(weights * np.asarray(f(values)))), values)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)


def test_gradients_are_arrays_that_can_be_differentiated_again(be: Backend) -> None:
    xp = be.array_api
    x = xp.variable([1.0, 2.0])
    first = nl.Autodiff(xp.sum(x**3), be).get_grad_op_tree(x)
    assert isinstance(first, Array)
    assert first.tolist() == pytest.approx([3, 12])
    second = nl.Autodiff(xp.sum(first), be).get_grad_op_tree(x)
    assert second.tolist() == pytest.approx([6, 12])
    assert nl.check_grad(be, xp.sum(first * xp.sin(x)), x).ok


def test_methods_of_a_backend_and_tensors_take_arrays_without_cutting_off_the_gradient(be: Backend) -> None:
    xp, t = be.array_api, be.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    x = xp.variable([1.0, 2.0, 3.0])
    for tree in (t + x, be.multiply(t, x) * 1, np.add(t, x), be.exp(x) + t, t - x * x):
        assert isinstance(tree, nl.OpTreeNode)
        assert tree.shape == (2, 3)
        assert nl.check_grad(be, tree, x).ok
    assert isinstance(x + t, Array)
    assert (t @ x).tolist() == [14, 32]
    out = be.zeros((2, 3))
    out[:] = x * 2
    assert out.get().tolist() == [[2, 4, 6]] * 2
    out[:] = x
    assert out.get().tolist() == [[1, 2, 3]] * 2


def test_a_variable_that_was_replaced_is_reported(be: Backend) -> None:
    xp = be.array_api
    w = xp.variable([1.0, 2.0])
    w -= 0.1 * nl.Autodiff(xp.sum(w * w), be).get_grad_op_tree(w)
    with pytest.raises(ValueError, match="replaced the variable"):
        nl.Autodiff(xp.sum(w * w), be).get_grad_op_tree(w)


def test_distinct_values_and_lists_of_arrays_keep_the_gradient(be: Backend) -> None:
    xp = be.array_api
    v = xp.variable([2.0, 1.0, 1.0])
    assert nl.Autodiff(xp.sum(xp.unique_values(v) ** 2), be).get_grad_op_tree(v).tolist() == [4, 2, 0]
    assert nl.Autodiff(xp.sum(xp.asarray([v[0] * 2, v[1]])), be).get_grad_op_tree(v).tolist() == [2, 1, 0]


def test_the_second_derivative_of_a_product_is_exact_at_zero(be: Backend) -> None:
    xp = be.array_api
    v = xp.variable([1.5, 0.0, 2.0])
    gradient = nl.Autodiff(xp.prod(v), be).get_grad_op_tree(v)
    assert gradient.tolist() == [0, 3, 0]
    assert nl.Autodiff(xp.sum(gradient), be).get_grad_op_tree(v).tolist() == [2, 3.5, 1.5]


def test_a_value_does_not_cut_off_the_gradient(be: Backend) -> None:
    xp = be.array_api
    x = xp.variable(3.0)
    y = x * x
    if y > 2:  # evaluates y
        y = y * x
    assert float(nl.Autodiff(y, be).get_grad_op_tree(x)) == 27


def test_constants_cannot_be_differentiated_silently(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([1.0, 2.0])
    with pytest.raises(ValueError, match=r"array_api\.variable"):
        nl.Autodiff(xp.sum(x * x), be).get_grad_op_tree(x)
