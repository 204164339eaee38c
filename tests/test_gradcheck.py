"""check_grad: right derivatives pass, and wrong ones are found where they are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers.expressions import draw, normed
from helpers.runtimes import back

from neonlite import Autodiff, Backend, NervanaObject, check_grad
from neonlite.ops import OPS
from neonlite.optree import postorder

# --- check_grad -----------------------------------------------------------------------------------------------------


@pytest.fixture
def define_op() -> Iterator[Callable[..., Any]]:
    defined: list[str] = []

    def define(name: str, *rules: Any, **options: Any) -> Any:
        defined.append(name)
        return Backend.define_op(name, *rules, **options)

    yield define
    for name in defined:
        del OPS[name]
        delattr(Backend, name)


def test_a_right_tree_passes_op_by_op_and_as_a_whole(be: Backend) -> None:
    *tensors, _, tree = normed(be)
    before = [t.get() for t in tensors]
    report = be.check_grad(tree, tensors)
    assert report
    assert report.ok
    assert report.worst <= 1e-6
    assert {row.op for row in report.rows} == {node.op for node in postorder(tree)} | {"the tree"}
    assert [row.operand for row in report.rows if row.op == "the tree"] == ["x", "g", "b"]
    for row in report.rows:
        assert math.isclose(row.analytic, row.numeric, rel_tol=1e-5, abs_tol=1e-6)
        assert row.error <= 1e-6
    assert "all derivatives agree" in repr(report)
    assert all((t.get() == values).all() for t, values in zip(tensors, before, strict=True))
    assert NervanaObject.be is be


@pytest.mark.parametrize("wrong", [1.01, 1 + 1e-5, -1.0, 0.0])
def test_a_wrong_derivative_is_flagged_where_it_is(be: Backend, define_op: Any, wrong: float) -> None:
    bend = define_op("bend", lambda xp, x: x * x * x, lambda be, dz, z, x: (wrong * dz * 3 * x * x,))
    x = be.array(draw(60, 3, 2), name="x")
    report = be.check_grad(be.exp(bend(be, be.tanh(x)) * 0.5), x)
    assert not report.ok
    assert not report
    assert {row.op for row in report.rows if row.error > report.tolerance} == {"bend", "the tree"}
    assert {row.op for row in report.rows} == {"bend", "tanh", "mul", "exp", "the tree"}
    assert "derivatives DISAGREE" in repr(report)
    assert [line.split()[0] for line in repr(report).splitlines() if line.endswith("WRONG")] == ["bend", "the"]


def test_a_derivative_of_the_wrong_operand_is_flagged_by_operand(be: Backend, define_op: Any) -> None:
    define_op("lean", lambda xp, x, y: x * y * y, lambda be, dz, z, x, y: (dz * y * y, dz * x * y), arity=2)
    x, y = be.array(draw(61, 2, 2), name="x"), be.array(draw(62, 2, 2), name="y")
    report = be.check_grad(be.lean(x, y))
    assert [(row.op, row.operand) for row in report.rows if row.error > report.tolerance] == [
        ("lean", "y=y"),
        ("the tree", "y"),
    ]


def test_a_derivative_that_is_no_number_is_flagged(be: Backend, define_op: Any) -> None:
    define_op("gap", lambda xp, x: x + 1, lambda be, dz, z, x: (dz / (x - x),))
    report = be.check_grad(be.gap(be.array([[1.0, 2.0]], name="x")))
    assert not report.ok


STEEP = {
    "log": lambda be, x: be.log(x),
    "log2": lambda be, x: be.log2(x),
    "sqrt": lambda be, x: be.sqrt(x),
    "1/x": lambda be, x: 1 / x,
    "x^-2.5": lambda be, x: x**-2.5,
    "log of a difference": lambda be, x: be.log(2 * x - x.get()),
    "x log x": lambda be, x: be.square(x * be.log(x)),
}


@pytest.mark.parametrize("at", [1e-12, 1e-6, 0.001, 0.01, 0.5, 40.0, 1e6, 1e12])
@pytest.mark.parametrize("f", STEEP.values(), ids=STEEP)
def test_a_right_derivative_agrees_close_to_a_pole_and_far_from_it(cpu: Backend, f: Any, at: float) -> None:
    report = cpu.check_grad(f(cpu, cpu.array([[at]], name="x")))
    assert report.ok, report


def test_elements_of_all_sizes_agree_at_once(be: Backend) -> None:
    x = be.array([[1e-9, 0.001, 0.01], [1.0, 50.0, 1e8]], name="x")
    for tree in (be.log(x), be.sqrt(x), 1 / (x + 1), be.tanh(x) * x, be.exp(-x) + x):
        report = be.check_grad(tree)
        assert report.ok, report


POLES = {
    "log at 0": lambda be, x: be.log(x),
    "sqrt at 0": lambda be, x: be.sqrt(x),
    "1/x at 0": lambda be, x: 1 / x,
    "log below 0": lambda be, x: be.log(x - 1),
    "max(x, 0) at 0": lambda be, x: be.maximum(x, 0) * 2,
}


@pytest.mark.parametrize("f", POLES.values(), ids=POLES)
def test_a_pole_and_a_kink_are_not_measurable_and_not_wrong(be: Backend, f: Any) -> None:
    report = be.check_grad(f(be, be.zeros((1, 3), name="x")))
    assert "not measurable here" in repr(report)
    assert not re.search("WRONG|DISAGREE", repr(report))
    assert not report.ok  # as nothing is known of it
    assert np.isfinite(report.worst)


@pytest.mark.parametrize("at", [1e-9, 0.001, 0.01, 1.0, 1e6])
@pytest.mark.parametrize("wrong", [1 + 1e-4, 0.5, -1.0, 0.0, math.nan, math.inf])
def test_a_wrong_derivative_is_wrong_close_to_a_pole_as_well(
    cpu: Backend, define_op: Any, wrong: float, at: float
) -> None:
    define_op("ln", lambda xp, x: xp.log(x), lambda be, dz, z, x: (wrong * dz / x,))
    report = cpu.check_grad(cpu.ln(cpu.array([[at, 2 * at]], name="x")))
    assert [line.split()[0] for line in repr(report).splitlines() if line.endswith("WRONG")] == ["ln", "the"]
    assert "DISAGREE" in repr(report)


def test_the_derivative_of_a_constant_is_not_allowed_to_be_something(cpu: Backend, define_op: Any) -> None:
    define_op("flat", lambda xp, x: 0 * x + 3, lambda be, dz, z, x: (dz * 0.01,))
    assert "WRONG" in repr(cpu.check_grad(cpu.flat(cpu.array([[1.0, 0.0, -2.0]]))))


def test_the_implicit_error_of_a_gradient_is_called_error(be: Backend) -> None:
    x = be.ones((2, 2), name="x")
    gradient = Autodiff(be.exp(x), be).get_grad_op_tree(x)
    assert gradient.pp() == "(error * (exp x))"
    assert str(gradient).startswith("({'shape': (2, 2), 'op': 'mul'}, error, ")


def test_trees_with_views_gathers_and_shared_parts_are_checked(be: Backend) -> None:
    x, n = be.array(draw(63, 4, 3), name="x"), be.array([[0, 2, 2]], dtype="int32", name="n")
    y = be.take(x[1:] * x[:3], n, 0)
    tree = be.concat([y, be.where(y > 0, y, 0.5 * y), x.T[:: back(be), 1:]], 0)
    report = check_grad(be, be.max(tree * tree, axis=1, keepdims=False))
    assert report.ok, report
    assert {"take", "concat", "where", "max"} <= {row.op for row in report.rows}


def test_a_value_and_its_gradient_in_one_assignment_have_the_same_random_numbers(be: Backend) -> None:
    x, y, dx = be.ones((3, 4)), be.empty((3, 4)), be.empty((3, 4))
    tree = x * be.rand((3, 4))
    (gradient,) = Autodiff(tree, be).get_grad_op_tree([x])
    for _ in range(2):
        be.assign([y, dx], [tree, gradient])
        np.testing.assert_array_equal(dx.get(), y.get())


def test_a_tree_with_random_ops_is_rejected(be: Backend) -> None:
    with pytest.raises(ValueError, match="without random numbers"):
        be.check_grad(be.ones((2, 2)) * be.rand(2, 2))


@pytest.mark.parametrize("thing", [lambda be: be.ones((2, 2), name="x"), lambda be: 3.0, lambda be: np.ones(2)])
def test_what_is_no_op_tree_has_no_derivative_to_check(cpu: Backend, thing: Any) -> None:
    with pytest.raises(TypeError, match=r"be\.check_grad: expected an op-tree for tree, got "):
        cpu.check_grad(thing(cpu))
    with pytest.raises(TypeError, match=r"got x \(2, 2\); be\.check_grad\(1 \* x\) checks a tensor"):
        cpu.check_grad(cpu.ones((2, 2), name="x"))


def test_a_tree_of_ints_has_no_derivative_and_is_not_called_right(cpu: Backend) -> None:
    report = cpu.check_grad(cpu.array([[1, 2]], dtype="int32") + 1)
    assert not report.ok
    assert repr(report).endswith("there is no derivative to check")


def test_one_slope_or_the_mean_of_both_is_right_at_a_kink(cpu: Backend) -> None:
    x = cpu.array([[0.0]], name="x")
    assert cpu.check_grad(cpu.maximum(x, 0)).ok
    assert cpu.check_grad(abs(x)).ok
