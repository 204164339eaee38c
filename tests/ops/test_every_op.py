"""Tests of every op of the table against reference.py: value, shape, dtype and derivative, on every runtime.

The cases are generated from the table, so a new elementwise op or reduction is tested automatically once it has a
reference; any other op fails ``test_every_op_has_...`` until it has cases.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.op_cases import (
    ATTRS,
    CASES,
    CASTS,
    CLOSE,
    CONDITIONS,
    EDGES,
    FLAT,
    FLAT_OPERANDS,
    GRADIENTS,
    INF,
    INTEGER_OPS,
    LAYOUTS,
    NAN,
    OF_FLOATS,
    PAIRS,
    ROW,
    SIGN_FREE,
    SUMS,
    Case,
    able,
    allocate,
    by_the_book,
    call,
    check_cast,
    check_comparison_of_ints,
    check_edges,
    check_gradient,
    check_scalar_condition,
    check_sum,
    check_value,
    check_value_of_ints,
    differentiable,
    drawn,
    fill,
    placed,
)
from helpers.reference import REFERENCE, each, numeric_gradient, off, slope
from helpers.runtimes import RUNTIMES, lacks, refused

from neonlite import Autodiff, Backend
from neonlite.backend.runtimes.numpy import stages, templates
from neonlite.backend.runtimes.numpy.stages import MAX_UNTILED_ELEMENTS, MIN_THREADED_ELEMENTS
from neonlite.dtypes import promote_types
from neonlite.ops import OP_TABLE, OPS, Op, missing_gradient

TIES = {"assign", "pair"}  # they join trees and have no derivative


# --- cases ----------------------------------------------------------------------------------------------------------


SECOND_ORDER = {name: cases[::2] for name, cases in GRADIENTS.items()}


# --- the table is whole ---------------------------------------------------------------------------------------------


def test_every_op_has_a_reference_and_cases() -> None:
    assert len({op.name for op in OP_TABLE}) == len({op.method for op in OP_TABLE}) == len(OP_TABLE)
    assert set(REFERENCE) == set(ROW)
    assert set(CASES) == set(ROW) - TIES - {"rand", "randn"}
    assert all(CASES.values())


def test_every_op_has_a_gradient_check_or_is_flat_by_name() -> None:
    assert {op.name for op in OP_TABLE if op.grad is None} == FLAT
    assert {op.name for op in OP_TABLE if op.grad is missing_gradient} == TIES
    assert set(GRADIENTS) == set(ROW) - FLAT - TIES


def test_there_are_six_thousand_gradient_checks_and_two_thousand_of_second_order() -> None:
    assert len({repr(case) for cases in GRADIENTS.values() for case in cases}) * len(LAYOUTS) >= 6000
    second_order = {repr(case): case for cases in SECOND_ORDER.values() for case in cases}.values()
    # with respect to the error, and to each operand
    assert sum(1 + len(differentiable(case)) for case in second_order) >= 2000


@pytest.mark.parametrize("op", OP_TABLE, ids=lambda op: op.name)
def test_every_op_has_a_description(op: Op) -> None:
    assert op.doc
    method = getattr(Backend, op.method, None)
    # trees and derivatives make these
    if (
        op.name not in ("assign", "pair", "slice", "scatter_add", "scatter_add_along_axis")
        and "backward" not in op.name
    ):
        assert method is not None
        assert method.__name__ == op.method
        assert method.__doc__


METHODS = {"neg": "negative", "abs": "absolute", "sqr": "square", "sub": "subtract", "mul": "multiply", "div": "divide"}
METHODS |= {"pow": "power", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater"}
METHODS |= {"ge": "greater_equal", "broadcast": "broadcast_to", "cast": "astype"}


def test_methods_are_named_as_in_the_guide() -> None:
    assert {name: ROW[name].method for name in METHODS} == METHODS


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("name", OF_FLOATS)
def test_the_value_is_what_the_textbook_says(be: Backend, name: str, dtype: str, layout: str) -> None:
    if lacks(be, dtype):
        return
    for case in able(be, CASES[name]):
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
    for case in CASES[name]:
        check_value(cpu, case, "float32", "tensor")


@pytest.mark.parametrize("name", ["slice", "slice_backward"])
def test_a_box_that_goes_backwards_is_refused_where_there_are_no_negative_steps(be: Backend, name: str) -> None:
    could, cases = able(be, CASES[name]), CASES[name]
    for case in cases:
        tree = call(be, name, [be.ones(shape) for shape in case.shapes], case.attrs)
        assert refused(be, tree.asnumpyarray) == (case not in could), case
    assert (len(could) == len(cases)) == be.runtime.supports_negative_strides


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
@pytest.mark.parametrize("name", CASES)
def test_the_value_of_ints_is_what_the_textbook_says(be: Backend, name: str, dtype: str) -> None:
    check_value_of_ints(be, name, dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", ["rand", "randn"])
def test_random_numbers_are_those_of_the_stream(name: str, dtype: str) -> None:
    expected = REFERENCE[name](to=(3, 5), seed=7, bits=int(dtype[5:]))
    for runtime in RUNTIMES:
        if not lacks(Backend.allocate_backend(runtime), dtype):
            be = Backend.allocate_backend(runtime, rng_seed=7, default_dtype=dtype)
            tree = getattr(be, name)(3, 5)
            assert (tree.shape, tree.dtype) == ((3, 5), dtype)
            np.testing.assert_allclose(tree.asnumpyarray(), expected, *CLOSE[dtype])


# --- derivatives ----------------------------------------------------------------------------------------------------


def check_second_order(be: Backend, case: Case) -> None:
    """E = sum(w dx): its gradients in the operands by differences of E, and in the error by those of the reference."""
    xs, dz, _ = by_the_book(case)
    operands = [placed(be, x, "float64", "tensor")[0] for x in xs]
    tree, error = call(be, case.op, operands, case.attrs), be.array(dz)
    places = [k for k in differentiable(case) if (case.op, k) not in FLAT_OPERANDS]
    asked = [operands[k] for k in places]
    ways = [drawn(f"{case} way {k}", xs[k].shape, -2, 2, False) for k in places]
    grads = Autodiff(tree, be, error).get_grad_op_tree(asked)
    energy = sum((be.sum(dx * be.array(way)) for dx, way in zip(grads, ways, strict=True)), start=0)
    *analytic, in_error = Autodiff(energy, be, allow_unused=True).get_grad_asnumpyarray([*asked, error])

    def worth(*values: Any) -> Any:
        for x, value in zip(asked, values, strict=True):
            x[:] = value
        return energy.asnumpyarray()

    start = [xs[k] for k in places]
    for k, dx in enumerate(analytic):
        assert off(dx, numeric_gradient(worth, start, k, 1.0)) <= 1e-6, case
    pushed = [slope(partial(REFERENCE[case.op], **case.attrs), xs, k, way) for k, way in zip(places, ways, strict=True)]
    assert off(in_error, sum(pushed, start=np.zeros(dz.shape))) <= 1e-6, case


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_is_that_of_finite_differences(be64: Backend, name: str, layout: str) -> None:
    for case in able(be64, GRADIENTS[name]):
        check_gradient(be64, case, layout)


@pytest.mark.parametrize("name", GRADIENTS)
def test_the_gradient_of_the_gradient_is_that_of_finite_differences(be64: Backend, name: str) -> None:
    for case in able(be64, SECOND_ORDER[name]):
        check_second_order(be64, case)


def test_a_tensor_that_is_both_operands_gets_both_gradients(be64: Backend) -> None:
    square, dz = drawn("twice", (3, 3), 0.5, 2.0, False), drawn("twice dz", (3, 3), -2, 2, False)
    for name in ("add", "sub", "mul", "div", "pow", "dot", "matmul"):
        x = be64.array(square)
        numeric = numeric_gradient(lambda x, name=name: REFERENCE[name](x, x), [square], 0, dz)
        analytic = Autodiff(call(be64, name, [x, x], {}), be64, be64.array(dz)).get_grad_asnumpyarray(x)
        assert off(analytic, numeric) <= 1e-6, name


@pytest.mark.parametrize("name", sorted(FLAT & set(OF_FLOATS) - {"argmax", "argmin", "onehot"}))
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


@pytest.mark.parametrize("what", KINKS)
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


@pytest.mark.parametrize(("name", "operands", "expected"), EDGES, ids=lambda x: x if isinstance(x, str) else "")
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


# --- dtypes ---------------------------------------------------------------------------------------------------------

TOGETHER = [
    *(("float32", "float64", "float64"), ("float16", "float32", "float32"), ("float16", "float64", "float64")),
    *(("float16", "bfloat16", "float32"), ("bfloat16", "float32", "float32"), ("bfloat16", "float64", "float64")),
    *(("int64", "float32", "float32"), ("uint8", "float64", "float64"), ("int32", "float16", "float16")),
    *(("int8", "int16", "int16"), ("int8", "int8", "int8"), ("int32", "int64", "int64"), ("uint8", "uint32", "uint32")),
    *(("uint8", "int8", "int16"), ("uint16", "int32", "int32"), ("uint32", "int32", "int64")),
]


def test_dtypes_are_joined_alike_in_either_order() -> None:
    for a, b, together in [
        *TOGETHER,
        ("uint64", "int8", "float64"),
        ("uint64", "int64", "float64"),
    ]:  # also where no runtime here has both
        assert promote_types(a, b) == promote_types(b, a) == together


@pytest.mark.parametrize(("a", "b", "together"), TOGETHER)
def test_two_tensors_meet_in_the_wider_dtype(be: Backend, a: str, b: str, together: str) -> None:
    if lacks(be, a, b):
        return
    x, y = be.array([[3, 2]], dtype=a), be.array([[2, 4]], dtype=b)
    same, as_floats = {
        x + y: [5, 6], y - x: [-1, 2], x * y: [6, 8], x**y: [9, 16], be.maximum(x, y): [3, 4],
        be.where(x > 2, x, y): [3, 4], be.concat([x, y], 1): [3, 2, 2, 4], be.dot(x, y.T): [14],
    }, {x / y: [1.5, 0.5], x == y: [0, 0], x > y: [1, 0], be.shift(x, y): [6, 8]}  # fmt: skip
    for tree, value in [*same.items(), *as_floats.items()]:
        dtype = together if tree in same or "float" in together else "float32"
        assert tree.dtype == dtype, tree
        np.testing.assert_array_equal(tree.asnumpyarray(), np.array([value]).astype(dtype), err_msg=str(tree))


@pytest.mark.parametrize(
    "n",
    [1, 100, True, 2.5, -0.0, np.int64(3), np.bool_(True), np.float64(2.5), np.float32(0.5), np.array(2.5)],
    ids=repr,
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32"])
def test_a_scalar_takes_the_dtype_of_the_tensor(be: Backend, n: Any, dtype: str) -> None:
    if lacks(be, dtype):
        return
    x = be.array([[3, 4]], dtype=dtype)
    is_float = not isinstance(n, int | np.integer | np.bool_)
    expected = "float32" if "int" in dtype and is_float else dtype
    for tree, value in [
        (x + n, [3 + n, 4 + n]),
        (n - x, [n - 3, n - 4]),
        (x * n, [3 * n, 4 * n]),
        (be.maximum(n, x), [max(n, 3), max(n, 4)]),
    ]:
        assert tree.dtype == expected, tree
        np.testing.assert_array_equal(tree.asnumpyarray(), np.array([value]).astype(expected), err_msg=str(tree))
    for tree in (x / n if n else n / x, x > n, n == x):
        assert tree.dtype == (dtype if "float" in dtype else "float32")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float16", "float32"])
@pytest.mark.parametrize("n", CONDITIONS, ids=repr)
def test_a_scalar_condition_is_compared_with_0_before_it_is_rounded(be: Backend, n: Any, dtype: str) -> None:
    check_scalar_condition(be, n, dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint32", "uint64"])
def test_ints_are_compared_with_scalars_out_of_the_range_of_their_dtype(be: Backend, dtype: str) -> None:
    check_comparison_of_ints(be, dtype)


def test_a_wide_tree_of_ints_is_compared_with_numbers_that_their_dtype_does_not_hold(be: Backend) -> None:
    tensors = [be.array([[i]], dtype="uint8") for i in range(200)]  # too many to be remembered with the tree
    total = tensors[0]
    for x in tensors[1:]:
        total = be.maximum(total, be.clip(x, -500, 1000))
    assert (total.asnumpyarray(), (total > -500).asnumpyarray(), (total > 500).asnumpyarray()) == (199, 1, 0)


def test_a_number_out_of_range_is_an_error_where_it_would_be_the_result(be: Backend) -> None:
    x = be.array([[1, 2]], dtype="uint8")
    for tree in (x + 300, x - 300, be.where(x > 1, x, 300), be.where(x > 1, -1, x), be.concat([x, x], 0) * -1):
        with pytest.raises(OverflowError, match=r"expected an integer from 0 to 255 for uint8, got .*be\.astype"):
            tree.asnumpyarray()


@pytest.mark.slow
def test_argmax_indices_may_exceed_two_billion_elements(cpu: Backend) -> None:
    x = cpu.zeros((1, 2**31 + 9), dtype="int8")
    x[0, 2**31 + 5], x[0, 2**31 + 7] = 1, -1
    assert cpu.argmax(x, axis=1).asnumpyarray() == 2**31 + 5
    assert cpu.argmin(x, axis=None).asnumpyarray() == 2**31 + 7


@pytest.mark.parametrize(("dtype", "n", "value", "total"), SUMS)
def test_sums_of_ints_are_int64_and_those_of_halves_are_added_up_in_float32(
    be: Backend, dtype: str, n: int, value: Any, total: Any
) -> None:
    check_sum(be, dtype, n, value, total)


@pytest.mark.parametrize(("dtype", "values", "to", "expected"), CASTS, ids=str)
def test_astype_casts_as_numpy_does(be: Backend, dtype: str, values: Any, to: str, expected: Any) -> None:
    check_cast(be, dtype, values, to, expected)


def test_the_gradient_through_a_cast_is_cast_back(be: Backend) -> None:
    x = be.array([[1.5, -2.5]], dtype="float32")
    wide = be.astype(x, "float64")
    slope = Autodiff(wide * wide, be).get_grad_op_tree(x)
    assert slope.dtype == "float32"
    np.testing.assert_array_equal(slope.asnumpyarray(), [[3, -5]])
    whole = be.astype(x, "int32") * 2.0 + x  # a staircase is flat
    np.testing.assert_array_equal(Autodiff(whole, be).get_grad_asnumpyarray(x), [[1, 1]])


def test_the_row_of_sums_asks_any_namespace_for_the_wider_dtype() -> None:
    for dtype, wide in {"float16": "float32", "int8": "int64", "uint16": "int64", "uint64": "uint64"}.items():
        made = OPS["sum"].run(np, np.full((5000, 2), 50, dtype), axis=(0,))
        assert made.dtype == wide
        assert (made == 250_000).all()


@pytest.mark.parametrize("name", sorted(set(OF_FLOATS) - {"onehot", *SIGN_FREE}))
def test_out_is_written_at_once_cast_and_returned(be: Backend, name: str) -> None:
    case = next(case for case in CASES[name] if 0 not in case.shapes[0])
    xs = fill(case)
    operands = [placed(be, x, "float32", "tensor")[0] for x in xs]
    tree = call(be, name, operands, case.attrs)
    for dtype in ("float32", "float64", "int16"):
        out = be.empty(tree.shape, dtype)
        assert call(be, name, operands, {**case.attrs, "out": out}) is out
        expected = REFERENCE[name](
            *(x.astype("f4") if getattr(x, "dtype", "") == "float64" else x for x in xs), **case.attrs
        )
        if dtype == "int16":
            np.testing.assert_array_equal(out.get(), np.trunc(tree.asnumpyarray()).astype(dtype))
        else:
            np.testing.assert_allclose(out.get(), expected, *CLOSE["float32"])


# --- users' own ops -------------------------------------------------------------------------------------------------


class Own(NamedTuple):
    """An op of a user's, with its textbook."""

    run: Callable[..., Any]
    grad: Callable[..., Any]
    textbook: Callable[..., Any]
    shapes: list[tuple[tuple[int, ...], ...]]
    options: dict[str, Any]


OWN = {
    "third_power": Own(
        lambda xp, x: x * x * x,
        lambda be, dz, z, x: (dz * (3 * x * x),),
        each(lambda x: x**3),
        [((2, 3),), ((1, 1),), ((2, 1, 3),), ((0, 2),)],
        {},
    ),
    "hypotenuse": Own(
        lambda xp, x, y: xp.sqrt(x * x + y * y),
        lambda be, dz, z, x, y: (dz * x / z, dz * y / z),
        each(math.hypot),
        PAIRS,
        {"arity": 2, "result_dtype": "float"},
    ),
    "table": Own(  # every sum of an element of a column and an element of a row, squared
        lambda xp, x, y: (x + y) ** 2,
        lambda be, dz, z, x, y: (be.sum(2 * dz * (x + y), axis=1), be.sum(2 * dz * (x + y), axis=0)),
        each(lambda x, y: (x + y) ** 2),
        [((3, 1), (1, 2)), ((1, 1), (1, 4))],
        {"arity": 2, "kind": "library", "shape_fn": lambda x, y: (x[0], y[1])},
    ),
}


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

LARGE, LARGER, DEEP = (547, 529), (727, 731), (47, 67, 89)


def test_the_large_arrays_are_large() -> None:
    assert MAX_UNTILED_ELEMENTS < math.prod(LARGE) < MIN_THREADED_ELEMENTS < math.prod(LARGER)
    assert math.prod(DEEP) > MAX_UNTILED_ELEMENTS


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads share all that is large, cheap as it may be."""
    monkeypatch.setattr(stages, "MIN_THREADED_COST", 0)


@pytest.fixture
def runtimes() -> Iterator[list[Backend]]:
    """A backend of every runtime, the one that works op by op in NumPy's arithmetic last."""
    names = sorted(RUNTIMES, key=lambda name: name == "strict")
    made = [Backend.allocate_backend(name, rng_seed=1, default_dtype="float64") for name in names]
    yield made
    for be in made:
        be.cleanup_backend()


def laid_out(be: Backend, x: Any, layout: str) -> Any:
    if isinstance(x, int | float):
        return x
    if layout == "transposed":
        return be.array(np.swapaxes(x, -1, -2), dtype=x.dtype).T
    view = allocate(be, x.shape, x.dtype.name, "view") if layout == "strided" else be.zeros(x.shape, x.dtype.name)
    view[:] = x
    return view


def agree(
    runtimes: Sequence[Backend], make: Any, arrays: Sequence[Any], layouts: Sequence[str], rtol: float = 1e-12
) -> None:
    """Assert that all backends compute the same values of the trees ``make(be, *operands)`` as the last."""
    *made, plain = (
        [t.get() for t in be.evaluate(make(be, *map(partial(laid_out, be), arrays, layouts)))] for be in runtimes
    )
    for be, values in zip(runtimes, made, strict=False):
        for a, b in zip(values, plain, strict=True):
            np.testing.assert_allclose(a, b, rtol, rtol * max(1.0, np.abs(b).max()), err_msg=be.name)


@pytest.mark.parametrize("shape", [LARGE, LARGER], ids=str)
@pytest.mark.parametrize("name", [op.name for op in OP_TABLE if op.kind == "elementwise"])
def test_large_arrays_give_the_same_values_as_small_ones(
    runtimes: list[Backend], name: str, shape: tuple[int, int]
) -> None:
    op, (m, n), floats = ROW[name], shape, name not in INTEGER_OPS
    ways: list[tuple[Any, ...]] = {
        1: [(shape,)],
        2: [
            (shape, shape),
            (shape, (m, 1)),
            ((1, n), shape),
            ((m, 1), (1, n)),
            (shape, (1, 1)),
            (shape, 2),
            (shape, 0.7 if floats else 3),
        ],
        3: [(shape, shape, shape), ((m, 1), (1, n), shape), (shape, 1, (m, 1))],
    }[op.arity]
    for operands in ways[: None if shape == LARGE else 2]:
        for layouts in [("", "transposed", ""), ("transposed", "strided", "strided")]:
            xs = fill(Case(name, operands, {}))
            if not floats:
                xs = [x if isinstance(x, int) else np.rint(9 * x).astype("int64") for x in xs]
            agree(runtimes, lambda be, *xs: [call(be, name, xs, ATTRS.get(name, {}))], xs, layouts)


@pytest.mark.parametrize(
    "shape", [LARGE, DEEP, (1, 300007), (300007, 1), (3, 100003), (100003, 3), (2, 3, 5, 10007)], ids=str
)
def test_large_reductions_over_any_axes_run_beside_each_other(runtimes: list[Backend], shape: tuple[int, ...]) -> None:
    x, y = (drawn(f"large {i}", s, -2, 2, False) for i, s in enumerate([shape, (*shape[:-2], shape[-2], 1)]))
    several = [c for k in range(1, len(shape) + 1) for c in itertools.combinations(range(len(shape)), k)]
    for layouts in [("", ""), ("transposed", "")]:
        agree(
            runtimes,
            lambda be, x, y: [
                *(be.sum(x * y, axis=axes, keepdims=keep) for axes in several for keep in (True, False)),
                *(be.max(x * y, axis=axes) for axes in several),
                *(be.min(x - y, axis=axes) for axes in several),
                x * y,
                x - be.sum(x, axis=several[-2]),
            ],
            [x, y],
            layouts,
        )


def test_large_arrays_of_users_ops_views_and_mixed_dtypes(runtimes: list[Backend], own: Any) -> None:
    own("third_power", OWN["third_power"].run, OWN["third_power"].grad)
    x, y = (drawn(f"mixed {i}", LARGE, -2, 2, False) for i in range(2))

    def trees(be: Backend, x: Any, y: Any) -> list[Any]:
        narrow, whole = be.array(x, dtype="float32"), be.array(x * 50, dtype="int16")
        view = y[::-2, 1::3]
        return [
            be.third_power(x) + be.third_power(y.T).T,
            narrow * y,
            whole * 3,
            whole / 7 + x,
            be.sum(whole, axis=0),
            be.sum(narrow * narrow, axis=1),
            be.reshape(x * y, -1, 23) * 2,
            x[1:] - x[:-1],
            view * be.max(view, axis=1),
            be.where(whole > 3, x, be.rint(y)),
            be.maximum(whole, 5),
        ]

    agree([be for be in runtimes if be.runtime.supports_negative_strides], trees, [x, y], ["", ""], rtol=1e-5)


@pytest.mark.parametrize("layout", ["strided", "transposed", "backwards"])
def test_large_results_are_written_into_views(cpu: Backend, layout: str) -> None:
    (m, n), dtype = LARGE, "float64"
    x, y = (drawn(f"views {i}", LARGE, -2, 2, False) for i in range(2))
    for place in range(2):
        outs = [cpu.zeros(LARGE, dtype) for _ in range(2)]
        outs[place] = {
            "strided": lambda: allocate(cpu, LARGE, dtype, "view"),
            "transposed": lambda: cpu.zeros((n, m), dtype).T,
            "backwards": lambda: cpu.zeros(LARGE, dtype)[::-1, ::-1],
        }[layout]()
        rows = cpu.zeros((2 * m, 3), dtype)[::2, 1:2]
        a, b = cpu.array(x, dtype), cpu.array(y, dtype)
        wanted = [x * y, np.exp(x) - y, (x * y).sum(1, keepdims=True)]
        for targets in (outs, [*outs, rows]):
            cpu.assign(targets, [a * b, cpu.exp(a) - b, cpu.sum(a * b, axis=1)][: len(targets)])
            for made, expected in zip(targets, wanted, strict=False):
                np.testing.assert_allclose(made.get(), expected, 1e-12, 1e-12)
                made[:] = 0


def test_large_sums_are_added_up_in_a_wider_dtype(be: Backend) -> None:
    n = 3 * MIN_THREADED_ELEMENTS + 1
    assert be.sum(be.array(np.ones((n, 1)), dtype="int8")).asnumpyarray() == n
    if not lacks(be, "float16"):
        assert be.sum(be.array(np.full((n, 1), 2**-5), dtype="float16")).asnumpyarray() == np.float16(n / 2**5)
    thirds = np.full((7, n // 7), 1 / 3, np.float32)
    total = be.sum(be.array(thirds)).asnumpyarray().item()
    assert abs(total / thirds.sum(dtype=np.float64) - 1) < 1e-5
