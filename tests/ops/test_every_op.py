"""Tests of every op of the table against reference.py: value, shape, dtype and derivative, on every runtime.

The cases are generated from the table, so a new elementwise op or reduction is tested automatically once it has a
reference; any other op fails ``test_every_op_has_...`` until it has cases.

Tests ``neonlite/ops/__init__.py``, ``neonlite/ops/functions.py`` and ``neonlite/ops/functions.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
from helpers.op_cases import (
    CASES,
    CLOSE,
    EDGES,
    FLAT,
    GRADIENTS,
    INF,
    INTEGER_OPS,
    INTS,
    LAYOUTS,
    NAN,
    OF_FLOATS,
    OF_INT8,
    ROW,
    able,
    call,
    check_edges,
    check_gradient,
    check_value,
    check_value_of_ints,
    differentiable,
    drawn,
    fill,
    share,
)
from helpers.op_checks import check_second_order
from helpers.parametrize import each, part
from helpers.reference import REFERENCE, gradient_of_operand, off
from helpers.runtimes import RUNTIMES, lacks, refused

from neonlite import Autodiff, Backend
from neonlite.backend.runtimes.numpy import templates
from neonlite.ops import OP_TABLE, Op, missing_gradient
from neonlite.tree_structure import RandomSource

TIES = {"assign", "pair"}  # they join trees and have no derivative

# --- cases ----------------------------------------------------------------------------------------------------------

SECOND_ORDER = {name: cases[::2] for name, cases in GRADIENTS.items()}

# --- the table is whole ---------------------------------------------------------------------------------------------


def test_every_op_has_a_reference_and_cases() -> None:
    assert len({op.name for op in OP_TABLE}) == len({op.method for op in OP_TABLE}) == len(OP_TABLE)
    assert set(REFERENCE) == set(ROW)
    assert set(CASES) == set(ROW) - TIES - {"rand", "randn", "random_mask", "random_words"}
    assert all(CASES.values())


def test_every_op_has_a_gradient_check_or_is_flat_by_name() -> None:
    assert {op.name for op in OP_TABLE if op.grad is None} == FLAT
    assert {op.name for op in OP_TABLE if op.grad is missing_gradient and op.formula is None} == TIES
    estimators = {op.name for op in OP_TABLE if op.is_estimator}  # compared with bprop in test_layer_expression.py
    assert set(GRADIENTS) == set(ROW) - FLAT - OF_INT8 - TIES - estimators


def num_gradient_checks(names: Collection[str]) -> tuple[int, int]:
    """Return how many first-order gradients of ops are checked, and how many of second order."""
    first_order = {repr(case) for name in names for case in GRADIENTS.get(name, ())}
    second_order = {repr(case): case for name in names for case in SECOND_ORDER.get(name, ())}.values()
    # with respect to the error, and to each operand
    return len(first_order) * len(LAYOUTS), sum(1 + len(differentiable(case)) for case in second_order)


def test_there_are_six_thousand_gradient_checks_and_two_thousand_of_second_order() -> None:
    first_order, second_order = num_gradient_checks(ROW)
    assert first_order >= 6000
    assert second_order >= 2000


def test_there_are_six_hundred_gradient_checks_of_images_and_three_hundred_of_second_order() -> None:
    first_order, second_order = num_gradient_checks([name for name in ROW if name.startswith("conv") or "pool" in name])
    assert first_order >= 600
    assert second_order >= 300


@each("op", OP_TABLE)
def test_every_op_has_a_description(op: Op) -> None:
    assert op.doc
    method = getattr(Backend, op.method, None)
    if op.name not in TIES and op.has_method:
        assert method is not None
        assert method.__name__ == op.method
        assert method.__doc__


METHODS = {"neg": "negative", "abs": "absolute", "sqr": "square", "sub": "subtract", "mul": "multiply", "div": "divide"}
METHODS |= {"pow": "power", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater"}
METHODS |= {"ge": "greater_equal", "broadcast": "broadcast_to", "cast": "astype"}


def test_methods_are_named_as_in_the_guide() -> None:
    assert {name: ROW[name].method for name in METHODS} == METHODS


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OF_FLOATS)
@each("dtype, layout", itertools.product(CLOSE, LAYOUTS))
def test_the_value_is_what_the_textbook_says(be: Backend, name: str, dtype: str, layout: str) -> None:
    if lacks(be, dtype):
        return
    for case in able(be, share(name, dtype, layout)):
        check_value(be, case, dtype, layout)


@pytest.mark.parametrize("name", [op.name for op in OP_TABLE if op.kind in ("elementwise", "reduction")])
def test_without_templates_an_op_is_computed_by_its_forward_function(
    cpu: Backend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[dict[Any, str]] = [templates.OP_TEMPLATES, templates.INTEGER_TEMPLATES, templates.REDUCTION_UFUNCS]
    for table in [*tables, templates.CONSTANT_TEMPLATES]:
        for key in [key for key in table if name in (key, key[0])]:
            monkeypatch.delitem(table, key)  # type: ignore[arg-type]
    if name in INTEGER_OPS:
        check_value_of_ints(cpu, name, "int32")
        return
    for case in part(CASES[name], name, 0):
        check_value(cpu, case, "float32", "tensor")


@pytest.mark.parametrize("name", ["slice", "slice_backward"])
def test_a_box_that_goes_backwards_is_refused_where_there_are_no_negative_steps(be: Backend, name: str) -> None:
    could, cases = able(be, CASES[name]), CASES[name]
    for case in cases:
        tree = call(be, name, [be.ones(shape) for shape in case.shapes], case.attrs)
        assert refused(be, tree.asnumpyarray) == (case not in could), case
    assert (len(could) == len(cases)) == be.runtime.supports_negative_strides


@pytest.mark.parametrize("name", CASES)
@each("dtype", INTS)
def test_the_value_of_ints_is_what_the_textbook_says(be: Backend, name: str, dtype: str) -> None:
    check_value_of_ints(be, name, dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("name", "options"), [("rand", {}), ("randn", {}), ("random_mask", {"keep": 0.7})])
def test_random_numbers_are_those_of_the_stream(name: str, options: dict[str, float], dtype: str) -> None:
    expected = REFERENCE[name](to=(3, 5), seed=7, bits=int(dtype[5:]), **options)
    for runtime in RUNTIMES:
        if not lacks(Backend.allocate_backend(runtime), dtype):
            be = Backend.allocate_backend(runtime, rng_seed=7, default_dtype=dtype)
            tree = getattr(be, name)(3, 5, **options)
            assert (tree.shape, tree.dtype) == ((3, 5), dtype)
            np.testing.assert_allclose(tree.asnumpyarray(), expected, *CLOSE[dtype])


def test_random_words_are_those_of_the_stream_as_signed_integers() -> None:
    expected = REFERENCE["random_words"](to=(3, 5), seed=7, bits=64)
    for runtime in RUNTIMES:
        be = Backend.allocate_backend(runtime, rng_seed=7)
        tree = be.build("random_words", RandomSource(be), to=(3, 5))
        assert tree.dtype == "int64"
        np.testing.assert_array_equal(tree.asnumpyarray(), expected)


# --- derivatives ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRADIENTS)
@each("layout", LAYOUTS)
def test_the_gradient_is_that_of_finite_differences(be64: Backend, name: str, layout: str) -> None:
    for case in able(be64, part(GRADIENTS[name], name, LAYOUTS.index(layout))):
        check_gradient(be64, case, layout)


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_of_the_gradient_is_that_of_finite_differences(be64: Backend, name: str) -> None:
    for case in able(be64, part(SECOND_ORDER[name], name, 0, num_parts=2)):
        check_second_order(be64, case)


def test_a_tensor_that_is_both_operands_gets_both_gradients(be64: Backend) -> None:
    square, dz = drawn("twice", (3, 3), 0.5, 2.0, False), drawn("twice dz", (3, 3), -2, 2, False)
    for name in ("add", "sub", "mul", "div", "pow", "dot", "matmul"):
        x = be64.array(square)
        numeric = gradient_of_operand(lambda x, name=name: REFERENCE[name](x, x), [square], 0, dz)
        analytic = Autodiff(call(be64, name, [x, x], {}), be64, be64.array(dz)).get_grad_asnumpyarray(x)
        assert off(analytic, numeric) <= 1e-6, name


@each("name", sorted(FLAT & set(OF_FLOATS) - {"argmax", "argmin", "onehot", "max_pool_indices", "roi_pool_indices"}))
def test_the_gradient_through_a_flat_op_is_zero(be64: Backend, name: str) -> None:
    case = CASES[name][0]
    x, *others = (be64.array(x) for x in fill(case))
    assert (Autodiff(3 * x + call(be64, name, [x, *others], case.attrs), be64).get_grad_asnumpyarray(x) == 3).all()


def test_the_place_of_an_extreme_is_a_constant_to_derivatives(be64: Backend) -> None:
    x = be64.array([[1.0, 3.0], [2.0, 0.0]])
    for tree, place in [(be64.argmax(x), [[1, 1], [0, 0]]), (be64.argmin(x), [[0, 0], [1, 1]])]:
        np.testing.assert_array_equal(Autodiff(tree * x, be64).get_grad_asnumpyarray(x), place)


# --- kinks: where the derivative has two sides ----------------------------------------------------------------------


KINKS: dict[str, tuple[Callable[..., Any], list[float], list[float]]] = {
    "abs is 0 at 0": (lambda be, x: be.absolute(x), [-2, 0, 3], [-1, 0, 1]),
    "relu is 0 at 0": (lambda be, x: be.maximum(x, 0), [-1, 0, 2], [0, 0, 1]),
    "relu is 0 at 0, the other way round": (lambda be, x: be.maximum(0.0, x), [-1, 0, 2], [0, 0, 1]),
    "a numpy scalar is a constant": (lambda be, x: be.maximum(x, np.float32(0)), [-1, 0, 2], [0, 0, 1]),
    "a tie with a constant goes to the constant": (lambda be, x: be.minimum(x, 1), [0, 1, 2], [1, 0, 0]),
    "and in the first place": (lambda be, x: be.minimum(1.5, x), [0, 1.5, 2], [1, 0, 0]),
    "a bound of clip is a constant": (lambda be, x: be.clip(x, -1, 1), [-2, -1, 0, 1, 2], [0, 0, 1, 0, 0]),
    "equal largest elements share": (lambda be, x: be.max(x), [3, 1, 3], [0.5, 0, 0.5]),
    "equal smallest elements share": (lambda be, x: be.min(x), [1, 1, 1, 1], [0.25] * 4),
    "a tensor that meets itself keeps all": (lambda be, x: be.maximum(x, x) + be.minimum(x, x), [1, 2], [2, 2]),
    "tensors share a tie": (lambda be, x: be.maximum(x, be.array([[1.0, 2.0, 3.0]])), [1, 3, 2], [0.5, 1, 0]),
    "tensors share a tie of minimum": (
        lambda be, x: be.minimum(x, be.array([[1.0, 2.0, 3.0]])),
        [1, 3, 2],
        [0.5, 0, 1],
    ),
    "safelog is flat on its floor": (lambda be, x: be.safelog(x), [2, 0, -1, 1e-30, math.exp(-50)], [0.5, 0, 0, 0, 0]),
    "a square is flat at 0": (lambda be, x: x**2, [0, -3], [0, -6]),
    "the power 1 is straight": (lambda be, x: x**1, [0, -3], [1, 1]),
    "the power 0 is flat": (lambda be, x: x**0, [0, -3], [0, 0]),
    "a root is steep at 0": (lambda be, x: x**0.5, [0, 4], [math.inf, 0.25]),
    "a negative number has whole powers": (lambda be, x: x**-1 + x**3.0, [-2], [-0.25 + 12]),
    "exponents in a tensor": (lambda be, x: x ** be.array([[2.0, 1, 3, 0, 0]]), [0, 0, -2, 5, 0], [0, 1, 12, 0, 0]),
    "the exponent of 0": (lambda be, x: be.zeros((1, 4)) ** x, [2, 0.5, 0, -1], [0, 0, 0, -math.inf]),
    "the exponent of a number that is 0": (lambda be, x: 0**x, [2, 0.5, 0], [0, 0, 0]),
    "a choice ends at its border": (lambda be, x: be.where(x > 0, x, 0), [-1, 0, 2], [0, 0, 1]),
    "a choice does not mix": (lambda be, x: be.where(x > 0, be.log(x), x), [-1, -2, 2], [1, 1, 0.5]),
}


@each("what", KINKS)
def test_at_a_kink(be64: Backend, what: str) -> None:
    tree, values, gradients = KINKS[what]
    x = be64.array([values])
    np.testing.assert_allclose(Autodiff(tree(be64, x), be64).get_grad_asnumpyarray(x), [gradients], rtol=1e-12)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_ties_are_split_equally_between_tensors_that_broadcast(be64: Backend, name: str) -> None:
    x, y = be64.array([[1.0], [2.0]]), be64.array([[1.0, 2.0, 2.0]])
    dx, dy = Autodiff(getattr(be64, name)(x, y), be64).get_grad_asnumpyarray([x, y])
    wins = np.array([[0.5, 0, 0], [1, 0.5, 0.5]])
    wins = wins if name == "maximum" else np.array([[0.5, 1, 1], [0, 0.5, 0.5]])
    np.testing.assert_array_equal(dx, wins.sum(1, keepdims=True))
    np.testing.assert_array_equal(dy, (1 - wins).sum(0, keepdims=True))


# --- the edges of arithmetic ----------------------------------------------------------------------------------------


@each("name, operands, expected", EDGES)
def test_at_the_edges_of_arithmetic(be: Backend, name: str, operands: list[Any], expected: list[float]) -> None:
    check_edges(be, [(name, operands, expected)])


def test_every_elementwise_op_is_tested_at_its_edges() -> None:
    assert {name for name, _, _ in EDGES} == {op.name for op in OP_TABLE if op.kind == "elementwise"} - {
        "stop_gradient",
        "cast",
        *INTEGER_OPS,
    }


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint64"])
def test_integers_are_divided_exactly_and_by_0_and_minus_1_without_a_trap(be: Backend, dtype: str) -> None:
    if lacks(be, dtype):
        return
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    values = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7, *([-1, -2, -3, -7] if low else [])]
    pairs = list(itertools.product(values, values))
    tensors = [be.array(np.array(x, dtype), dtype=dtype) for x in zip(*pairs, strict=True)]
    for name, f in {"floor_divide": int.__floordiv__, "remainder": int.__mod__}.items():
        tree = getattr(be, name)(*tensors)
        expected = [f(a, b) if b else 0 for a, b in pairs]
        assert tree.dtype == dtype
        wrapped = [n if n <= high else low for n in expected]  # the least integer divided by -1
        assert tree.asnumpyarray().ravel().tolist() == wrapped, name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_next_number_is_the_nearest_of_the_dtype(be: Backend, dtype: str) -> None:
    if lacks(be, dtype):
        return
    digits, least = {"float16": (10, -24), "bfloat16": (7, -133), "float32": (23, -149), "float64": (52, -1074)}[dtype]
    step = 2.0**-digits
    x, y = [1, 1, -1, -1, 0, 0, 2.0**least, 1], [2, 0, 0, -2, 1, -1, 0, 1]
    expected = [1 + step, 1 - step / 2, step / 2 - 1, -1 - step, 2.0**least, -(2.0**least), 0, 1]
    z = be.astype(be.nextafter(be.array(x, dtype=dtype), be.array(y, dtype=dtype)), "float64").asnumpyarray()
    assert z.ravel().tolist() == expected


def test_erf_is_accurate_to_the_last_digits(be64: Backend) -> None:
    x = np.concatenate([np.linspace(-6.5, 6.5, 4001), [1e-300, 0.46875, -0.46875, 40.0]])
    expected = np.array([math.erf(n) for n in x.tolist()])
    np.testing.assert_allclose(be64.erf(be64.array(x)).asnumpyarray().ravel(), expected, rtol=1e-15)


@pytest.mark.parametrize("name", sorted(INTEGER_OPS))
def test_bits_are_those_of_integers_only(be: Backend, name: str) -> None:
    x, m = be.ones((2, 3), name="x"), be.ones((2, 3), dtype="int32", name="m")
    others = [()] if ROW[name].arity == 1 else [(1,), (m,)]
    for operands in [*((x, *y) for y in others), *([(m, 0.5)] if ROW[name].arity == 2 else [])]:
        with pytest.raises(TypeError, match=rf"be\.{name}\(.*\): expected integers, got float32\. .*be\.astype"):
            getattr(be, name)(*operands)


@pytest.mark.parametrize("dtype", ["int8", "uint64"])
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "isnan", "isinf", "finite", "signbit"])
def test_integers_are_whole_and_finite(be: Backend, name: str, dtype: str) -> None:
    if not lacks(be, dtype):
        values = np.array([[np.iinfo(dtype).min, 0, 1, np.iinfo(dtype).max]], dtype)
        expected = {"finite": values == values, "signbit": values < 0}.get(name, values != values)
        z = getattr(be, name)(be.array(values, dtype=dtype)).asnumpyarray()
        np.testing.assert_array_equal(z, values if name in ("floor", "ceil", "trunc") else expected)


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
def test_reductions_at_the_edges_of_arithmetic(be: Backend, axis: Any) -> None:
    x = np.array([[1.0, NAN, 3.0], [INF, 2.0, -INF], [INF, 0.0, 5.0]], np.float32)
    for name in ("sum", "max", "min"):
        with np.errstate(invalid="ignore"):
            expected = getattr(np, name)(x, axis=axis, keepdims=True)
        np.testing.assert_array_equal(getattr(be, name)(be.array(x), axis=axis).asnumpyarray(), expected)


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_there_is_no_extreme_of_nothing(be: Backend, name: str) -> None:
    with pytest.raises(ValueError, match=r"non-empty axis.*\(0, 3\)"):
        getattr(be, name)(be.zeros((0, 3)), axis=0)


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_negative_powers_of_integers_raise_and_leave_the_target_unchanged(be: Backend, dtype: str) -> None:
    x, y, out = (be.array([n], dtype=dtype) for n in ([2, 1], [3, -1], [7, 7]))
    for tree in (x**y, 2**y, x**-1, x**-20):
        with pytest.raises(ValueError, match=r"pow-tree.*negative integer powers"):
            out[:] = tree
    np.testing.assert_array_equal(out.get(), [[7, 7]])
    np.testing.assert_array_equal((x**-1.0).asnumpyarray(), [[0.5, 1]])


# --- large arrays: block by block, on threads -----------------------------------------------------------------------
