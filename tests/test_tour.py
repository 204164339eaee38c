"""A tour of neonlite: the examples of the README and of the guide's first page."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from neonlite import Autodiff, Backend, OpTreeNode

DOCS = Path(__file__).parents[1] / "docs"


def test_a_tensor_holds_numbers(be: Backend) -> None:
    x = be.array([[-1.0, 0.0, 2.0]], name="x")
    assert x.shape == (1, 3)
    assert x.dtype == np.float32
    assert x.get().tolist() == [[-1, 0, 2]]  # get() copies them to NumPy
    x[:, 0] = 7  # a slice is a view of the same memory
    assert x.get().tolist() == [[7, 0, 2]]


def test_an_expression_is_data(be: Backend) -> None:
    x = be.array([[-1.0, 0.0, 2.0]], name="x")
    f = be.log(1 + be.exp(x))  # nothing is evaluated yet
    assert isinstance(f, OpTreeNode)
    assert f.pp() == "(log ((1) + (exp x)))"
    op, left, right = x + 1  # a node is a triple
    assert op == {"shape": (1, 3), "op": "add"}
    assert left is x
    assert right == 1


def test_an_assignment_evaluates_it(be: Backend) -> None:
    x = be.array([[-1.0, 0.0, 2.0]], name="x")
    f = be.log(1 + be.exp(x))
    y = be.empty(f.shape)
    y[:] = f
    np.testing.assert_allclose(y.get(), np.log(1 + np.exp([[-1.0, 0.0, 2.0]])), rtol=1e-6)
    x[:] = 0  # the tree names its tensors: new numbers, same tree
    y[:] = f
    np.testing.assert_allclose(y.get(), np.log([[2.0, 2.0, 2.0]]), rtol=1e-6)


def test_the_derivative_of_an_expression_is_an_expression(be: Backend) -> None:
    x = be.array([[-1.0, 0.0, 2.0]], name="x")
    e = be.ones((1, 3), name="e")
    dx = Autodiff(be.log(1 + be.exp(x)), be, e).get_grad_op_tree(x)
    assert dx.pp() == "((e / ((1) + (exp x))) * (exp x))"
    np.testing.assert_allclose(dx.asnumpyarray(), 1 / (1 + np.exp([[1.0, 0.0, -2.0]])), rtol=1e-6)
    ddx = Autodiff(dx, be).get_grad_op_tree(x)  # and so on
    np.testing.assert_allclose(ddx.asnumpyarray()[0, 1], 0.25, rtol=1e-6)


def test_a_derivative_is_checked_by_finite_differences(be: Backend) -> None:
    x = be.array([[-1.0, 0.5, 2.0]], name="x")
    assert be.check_grad(be.log(1 + be.exp(x))).ok
    assert not be.check_grad(be.stop_gradient(x * x)).ok  # a constant to Autodiff, but not in truth


def test_a_wrong_line_is_named_when_it_is_written(be: Backend) -> None:
    x, w = be.ones((2, 3), name="x"), be.ones((4, 5), name="w")
    with pytest.raises(ValueError, match=r"be\.dot\(x \(2, 3\), w \(4, 5\)\): expected equal inner sizes"):
        be.dot(x, w)


def test_a_few_lines_learn_a_line(be: Backend) -> None:
    x = be.array([[0.0, 1.0, 2.0, 3.0]], name="x")
    t = be.array([[1.0, 3.0, 5.0, 7.0]], name="t")  # 2 x + 1
    w, b = be.zeros((1, 1), name="w"), be.zeros((1, 1), name="b")
    dw, db = be.empty((1, 1)), be.empty((1, 1))
    cost = be.mean(be.square(w * x + b - t))
    for _ in range(300):
        Autodiff(cost, be).back_prop_grad([w, b], [dw, db])
        w[:] = w - 0.1 * dw
        b[:] = b - 0.1 * db
    np.testing.assert_allclose([w.get().item(), b.get().item()], [2, 1], atol=1e-3)


def test_the_page_of_ops_matches_the_table() -> None:
    page = runpy.run_path(str(DOCS / "make_ops.py"))["text"]()
    assert (DOCS / "ops.md").read_text() == page, "run python docs/make_ops.py"
    assert "| `tanh` | `be.tanh` | the hyperbolic tangent of x | dx = `(dz * ((1) - (z * z)))` |" in page
    assert "| `rint` | `be.rint` | x rounded to the nearest integer, ties to even | **0** |" in page
