"""Custom ops pass the checks of every op; those that cannot be are refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from helpers.op_cases import LAYOUTS, Case, check_gradient, check_value
from helpers.op_checks import OWN, check_second_order
from helpers.reference import REFERENCE, each

from neonlite import Autodiff, Backend
from neonlite.ops import OPS

# --- users' own ops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN)
def test_users_ops_pass_the_same_checks(be64: Backend, own: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    op = OWN[name]
    method = own(name, op.run, op.grad, **op.options)
    assert (method.__name__, getattr(Backend, name)) == (name, method)
    monkeypatch.setitem(REFERENCE, name, op.textbook)
    for shapes, layout in itertools.product(op.shapes, LAYOUTS):
        case = Case(name, shapes, {})
        check_value(be64, case, "float64", layout)
        check_value(be64, case, "float32", layout)
        check_gradient(be64, case, layout)
        check_second_order(be64, case)


def test_a_users_op_of_ints_and_scalars_has_the_dtype_it_was_given(be: Backend, own: Any) -> None:
    for result, dtype in [("same", "int32"), ("float", "float32"), ("boolean", "float32")]:
        own(f"twice_{result}", lambda xp, x: x + x, None, result_dtype=result)
        tree = getattr(be, f"twice_{result}")(be.array([[3]], dtype="int32"))
        assert tree.dtype == dtype
        assert tree.asnumpyarray() == 6
    own("mix", lambda xp, x, y: x + 2 * y, None, arity=2)
    assert be.mix(1, be.array([[3.0]])).asnumpyarray() == be.mix(be.array([[1]], "int8"), 3.0).asnumpyarray() == 7


def test_a_users_op_without_a_derivative_raises_only_when_it_is_asked_for(be: Backend, own: Any) -> None:
    halve = own("halve", lambda xp, x: x / 2)
    x, y = be.array([[4.0]], name="x"), be.array([[6.0]], name="y")
    tree = x * 3 + halve(be, y)
    assert tree.asnumpyarray() == 15
    gradients = Autodiff(tree, be)
    assert gradients.get_grad_asnumpyarray(x) == 3
    assert Autodiff(halve(be, y), be, allow_unused=True).get_grad_asnumpyarray(x) == 0
    with pytest.raises(NotImplementedError, match="'halve' was defined without a derivative"):
        gradients.get_grad_op_tree(y)


def test_a_users_op_that_is_flat_has_the_derivative_zero(be: Backend, own: Any) -> None:
    own("stairs", lambda xp, x: xp.floor(x), None)
    own("gate", lambda xp, x, y: xp.where(y > 0, x, 0 * x), lambda be, dz, z, x, y: (dz * (y > 0), None), arity=2)
    x = be.array([[1.5, -2.5]])
    assert (Autodiff(x + be.stairs(x), be).get_grad_asnumpyarray(x) == 1).all()
    np.testing.assert_array_equal(be.gate(x, x).asnumpyarray(), [[1.5, 0]])
    np.testing.assert_array_equal(Autodiff(be.gate(x, x), be).get_grad_asnumpyarray(x), [[1, 0]])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("exp", {}, "taken"),
        ("sub", {}, "taken"),
        ("subtract", {}, "taken"),
        ("assign", {}, "taken"),
        ("two words", {}, "an identifier"),
        ("class", {}, "an identifier"),
        (3, {}, "an identifier"),
        ("fresh", {"kind": "reduction"}, "kind"),
        ("fresh", {"kind": "library"}, "expected a shape_fn for kind='library' only"),
        ("fresh", {"shape_fn": lambda x: x}, "expected a shape_fn for kind='library' only"),
        ("fresh", {"arity": 3}, "expected an integer from 1 to 2 for arity"),
        ("fresh", {"arity": 2}, r"expected a function run\(xp, x, y\) for run"),
        ("fresh", {"grad": lambda be, dz: (dz,)}, r"expected a function grad\(be, dz, z, x\) for grad"),
        ("fresh", {"kind": "library", "shape_fn": lambda x, y: x}, r"a function shape_fn\(x_shape\) for shape_fn"),
        ("fresh", {"result_dtype": "foo"}, "'same', 'float', 'boolean', 'index' for result_dtype, got 'foo'"),
    ],
)
def test_a_users_op_that_cannot_be_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    before = set(OPS)
    with pytest.raises(ValueError, match=message):
        Backend.define_op(name, lambda xp, x: x, **options)
    assert set(OPS) == before
    assert not hasattr(Backend, "fresh")


def test_a_users_op_whose_arity_was_forgotten_is_refused_with_a_hint() -> None:
    with pytest.raises(ValueError, match=r"expected a function run\(xp, x\) .* Pass arity=2"):
        Backend.define_op("fresh", lambda xp, x, y: x + y)
    assert not hasattr(Backend, "fresh")


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (lambda xp, x: None, TypeError, "array of real numbers .* got None"),
        (lambda xp, x: 1j * xp.astype(x, xp.complex64), TypeError, "array of real numbers .* got one of .*complex64"),
        (lambda xp, x: xp.sum(x, axis=1, keepdims=True), ValueError, r"\(2, 3\), got \(2, 1\). .*kind='library'"),
        (lambda xp, x: xp.permute_dims(x, (1, 0)), ValueError, r"\(2, 3\), got \(3, 2\)"),
    ],
    ids=["None", "complex", "reduction", "transpose"],
)
def test_a_users_function_with_an_unfit_result_is_reported(
    be: Backend, own: Any, run: Any, error: type[Exception], message: str
) -> None:
    own("unfit", run)
    x, out = be.ones((2, 3), name="x"), be.zeros((2, 3), name="out")
    with pytest.raises(error, match=rf"be.unfit\(x \(2, 3\)\): .*{message}"):
        out[:] = 2 * be.unfit(x)
    assert not out.get().any()


@pytest.mark.parametrize("shape", [None, 3, (2.5, 1), (-1, 1)])
def test_a_users_shape_rule_with_an_unfit_result_is_reported(be: Backend, own: Any, shape: Any) -> None:
    own("unfit", lambda xp, x: x, kind="library", shape_fn=lambda x: shape)
    with pytest.raises((TypeError, ValueError), match=r"be.unfit\(x \(2, 3\)\): shape_fn: expected"):
        be.unfit(be.ones((2, 3), name="x"))


def test_a_users_library_op_returns_the_shape_of_its_rule(be: Backend, own: Any) -> None:
    own("own_trace", lambda xp, x: xp.sum(xp.linalg.diagonal(x)), kind="library", shape_fn=lambda x: ())
    own("unfit", lambda xp, x: x, kind="library", shape_fn=lambda x: (x[0], 1))
    x = be.array(np.arange(9.0).reshape(3, 3))
    assert be.own_trace(x).astensor().get().tolist() == [[12]]
    with pytest.raises(ValueError, match=r"be.unfit.* of shape \(3, 1\) .* got \(3, 3\)"):
        be.unfit(x).get()


def test_any_error_of_a_users_function_names_the_op(be: Backend, own: Any) -> None:
    own("broken", lambda xp, x: xp.no_such_function(x))
    with pytest.raises(AttributeError, match="no_such_function") as caught:
        be.broken(be.ones((2, 3), name="x")).get()
    assert "be.broken(x (2, 3)) (while evaluating a tensor (2, 3))" in caught.value.__notes__


def test_a_users_op_may_return_indices(be: Backend, own: Any) -> None:
    own("rounded", lambda xp, x: xp.astype(xp.round(x), xp.int64), None, result_dtype="index")
    z = be.rounded(be.array([[1.2, 2.7]])).astensor()
    assert (z.get().tolist(), z.dtype) == ([[1, 3]], np.int64)


# --- large arrays: block by block, on threads -----------------------------------------------------------------------


# --- formulas -------------------------------------------------------------------------------------------------------


def test_a_composite_op_is_one_line(be64: Backend, own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own("mish", formula=lambda be, x: x * be.tanh(be.softplus(x)))
    monkeypatch.setitem(REFERENCE, "mish", each(lambda x: x * math.tanh(math.log(1 + math.exp(x)))))
    for shape, layout in itertools.product([(2, 3), (0, 2), (2, 1, 3)], LAYOUTS):
        case = Case("mish", (shape,), {})
        check_value(be64, case, "float64", layout)
        check_gradient(be64, case, layout)
        check_second_order(be64, case)


def test_a_formula_has_operands_and_attributes(be: Backend, own: Any) -> None:
    own("affine", formula=lambda be, x, w, b=None, *, scale=1.0, times=1, bare=False, axes=(0,), label="": (
        be.sum(scale * times * (w * x), axis=axes) + (0 if b is None or bare else b)
    ))  # fmt: skip
    x, w, b = be.array([[1.0, 2.0]], name="x"), be.array([[3.0], [4.0]], name="w"), be.array([[10.0]], name="b")
    for args, attrs, expected in [
        ((x, w), {}, [[7, 14]]),
        ((x, w, b), {}, [[17, 24]]),
        ((x, w, b), {"scale": 2, "times": 3, "bare": True}, [[42, 84]]),
        ((x, w), {"axes": (0, 1), "label": "sum"}, [[21]]),
        ((x, w, b, 0.5), {}, [[13.5, 17]]),
    ]:
        assert be.affine(*args, **attrs).get().tolist() == expected
    assert be.affine(x, w, b=b).get().tolist() == [[17, 24]]
    assert be.affine(x, w, out=(out := be.zeros((1, 2)))) is out
    dx, dw, db = Autodiff(be.affine(x, w, b), be).get_grad_asnumpyarray([x, w, b])
    assert (dx.tolist(), dw.tolist(), db.tolist()) == ([[7, 7]], [[3], [3]], [[2]])
    assert "scale : float" in be.affine.__doc__
    assert be.check_grad(be.affine(x, w, b, times=2)).ok


def test_a_formula_may_have_a_faster_rule(be: Backend, own: Any) -> None:
    own(
        "root2", formula=lambda be, x, *, k=1.0: k * be.exp(0.5 * be.log(x)), grad=lambda be, dz, z, x, k: (dz * z / x,)
    )
    x = be.array([[4.0, 9.0]], name="x")
    np.testing.assert_allclose(be.root2(x, k=2.0).get(), [[4, 6]], 1e-6)
    assert Autodiff(be.root2(x), be).get_grad_op_tree(x).pp() == "((error * (root2 x k=1.0)) / x)"
    own("flat", formula=lambda be, x: be.rint(x) * 1, grad=None)
    assert (Autodiff(be.flat(x) + x, be).get_grad_asnumpyarray(x) == 1).all()


def test_a_formula_is_evaluated_each_time_as_it_may_read_variables(be: Backend, own: Any) -> None:
    rate = [2.0]
    own("rated", formula=lambda be, x: x * rate[0])
    x = be.array([[3.0]])
    assert be.rated(x).get() == 6
    rate[0] = 5.0
    assert be.rated(x).get() == 15


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, TypeError, "expected either run, .*, or formula, .*, got neither"),
        ({"run": lambda xp, x: x, "formula": lambda be, x: x}, TypeError, "got both"),
        ({"formula": lambda be, x: x, "kind": "library"}, TypeError, "expected no kind with formula"),
        (
            {"formula": lambda be, x: x, "arity": 2, "result_dtype": "float"},
            TypeError,
            "expected no arity, result_dtype",
        ),
        ({"formula": 3}, TypeError, "expected a function formula"),
        ({"formula": lambda: 3}, ValueError, "expected a function formula"),
        ({"formula": lambda be: be.ones((1, 1))}, ValueError, "expected a function formula"),
        ({"formula": lambda be, *xs: xs[0]}, ValueError, "expected a function formula"),
        ({"formula": lambda be, x, **attrs: x}, ValueError, "expected a function formula"),
        ({"formula": lambda be, x, *, n: x}, ValueError, "expected a function formula"),
        ({"formula": lambda be, x, n=2: x * n}, ValueError, "expected a function formula"),
        ({"formula": lambda be, x=None: x}, ValueError, "expected a function formula"),
        ({"formula": lambda be, x: x, "grad": lambda be, dz: (dz,)}, ValueError, "grad"),
        ({"formula": lambda be, x, *, n=1: x, "grad": lambda be, dz, z, x: (dz,)}, ValueError, r"grad\(.*, n\)"),
    ],
)
def test_formulas_that_cannot_be_are_refused(own: Any, options: dict[str, Any], kind: Any, message: str) -> None:
    with pytest.raises(kind, match=rf"be\.define_op: .*{message}"):
        own("fresh", **options)
    assert "fresh" not in OPS


@pytest.mark.parametrize(
    ("formula", "call", "kind", "message"),
    [
        (lambda be, x: 3, {}, TypeError, r"be\.fresh\(x \(2, 3\)\): expected an op-tree as the result .*, got 3"),
        (lambda be, x: np.ones((2, 3)), {}, TypeError, "expected an op-tree as the result of the formula, got"),
        (lambda be, x: None, {}, TypeError, "expected an op-tree as the result of the formula, got None"),
        (lambda be, x: x @ x, {}, ValueError, r"be\.fresh\(x \(2, 3\)\): .*\(2, 3\)"),
        (lambda be, x, *, n=(): x, {"n": [1]}, TypeError, r"be\.fresh: n: expected a hashable value, got \[1\]"),
        (lambda be, x, *, n=1: x, {"n": 1.5}, TypeError, r"be\.fresh: expected an integer for n"),
        (lambda be, x, *, n=1.0: x, {"n": "a"}, TypeError, r"be\.fresh: expected a number for n"),
        (lambda be, x, *, n=1.0: x, {"m": 1}, TypeError, "expected the options a, n, out, got m"),
    ],
)
def test_wrong_uses_of_a_formula(be: Backend, own: Any, formula: Any, call: Any, kind: Any, message: str) -> None:
    own("fresh", formula=formula)
    with pytest.raises(kind, match=message):
        be.fresh(be.ones((2, 3), name="x"), **call)
