"""Shape and dtype inference of op-tree nodes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers.op_cases import (
    CASES,
    CASTS,
    CLOSE,
    CONDITIONS,
    OF_FLOATS,
    SIGN_FREE,
    SUMS,
    call,
    check_cast,
    check_comparison_of_ints,
    check_scalar_condition,
    check_sum,
    fill,
    placed,
)
from helpers.parametrize import each
from helpers.reference import REFERENCE
from helpers.runtimes import lacks

from neonlite import Autodiff, Backend, OpTreeNode, Tensor
from neonlite.ops import OPS
from neonlite.typing import promote_types


@pytest.fixture
def x(be: Backend) -> Tensor:
    return be.array([[0.5, 1.0], [2.0, 4.0]], name="x")


@pytest.fixture
def y(be: Backend) -> Tensor:
    return be.array([[3.0, -1.0]], name="y")


# --- as the guide shows it -----------------------------------------------------------------------------------------


def test_the_shape_is_an_attribute_and_a_function(be, x, y):
    assert (x + y).shape == (2, 2)
    assert [OpTreeNode.shape(z) for z in (x, x.T @ y.T, 3, 2.5)] == [(2, 2), (2, 1), (1, 1), (1, 1)]
    assert be.zeros(OpTreeNode.shape(x), name="tensor-zero").shape == (2, 2)


# --- building and running ------------------------------------------------------------------------------------------


def test_build_checks_and_computes_the_shape(be, x, y):
    assert str(OpTreeNode.build("add", x, y)) == "({'shape': (2, 2), 'op': 'add'}, x, y)"
    assert OpTreeNode.build("sum", x, None, axis=(0,)).shape == (1, 2)
    assert OpTreeNode.build("sqrt", x, None).shape == (2, 2)
    assert OpTreeNode.build("sum", x, None).shape == OpTreeNode.build("sum", x).shape == (1, 1)
    with pytest.raises(TypeError, match="got 'a'"):
        OpTreeNode.build("add", x, "a")
    with pytest.raises(TypeError, match=r"name of an op, .*got 'plus'"):
        OpTreeNode.build("plus", x, y)
    with pytest.raises(ValueError, match="do not broadcast"):
        OpTreeNode.build("add", x, be.ones((3, 2)))
    with pytest.raises(TypeError, match="got None"):
        OpTreeNode.build("add", x)


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


@each(
    "n, dtype",
    itertools.product(
        [1, 100, True, 2.5, -0.0, np.int64(3), np.bool_(True), np.float64(2.5), np.float32(0.5), np.array(2.5)],
        ["float16", "float32", "float64", "int8", "int32"],
    ),
)
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


@each("dtype, n", itertools.product(["int8", "uint8", "int32", "float16", "float32"], CONDITIONS))
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


@each("name", sorted(set(OF_FLOATS) - {"onehot", *SIGN_FREE}))
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
            rtol, atol = CLOSE["float32"]
            np.testing.assert_allclose(out.get(), expected, rtol, atol * max(1, np.max(np.abs(expected), initial=0)))


# --- large arrays: block by block, on threads -----------------------------------------------------------------------
