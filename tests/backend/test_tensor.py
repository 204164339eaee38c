"""Tensors: attributes, views, memory, values, operators and copies."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each
from helpers.runtimes import lacks, refused
from helpers.tensors import counted, holds
from hypothesis import strategies as st

from neonlite import Backend, OpTreeNode
from neonlite.backend import use_backend

# --- attributes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (5, (5, 1)),
        ((5,), (5, 1)),
        ((), (1, 1)),
        ([2, 3], (2, 3)),
        ((2, 3, 4), (2, 3, 4)),
        (np.int64(3), (3, 1)),
        (0, (0, 1)),
    ],
)
def test_a_tensor_has_at_least_two_dimensions(be, given, shape):
    for make in (be.empty, be.zeros, be.ones):
        assert make(given).shape == shape


def test_attributes_describe_the_tensor(be):
    x = be.zeros((3, 4), dtype="int16", name="x")
    assert (x.shape, x.size, x.ndim, x.dtype, x.name, len(x)) == ((3, 4), 12, 2, np.dtype("int16"), "x", 3)
    assert (x.backend, x.base, x._original_base, x.is_contiguous) == (be, None, x, True)
    assert (x.persist_values, x.rounding, be.ones((1, 1), persist_values=False).persist_values) == (True, False, False)
    view = x[1:].T
    assert view.base.base is view._original_base is x
    assert not view.is_contiguous
    x.rounding, x.name = 8, "y"
    assert (x.rounding, x.name) == (8, "y")


def test_a_view_keeps_the_name_of_its_tensor(be):
    x = be.ones((4, 6), name="weights")
    assert [t.name for t in (x[1:], x.T, x.reshape(6, 4), x[0][:, 1])] == ["weights"] * 4
    assert be.ones((2, 2)).name is None


def test_a_tensor_has_a_length_and_so_a_truth_value(be):
    assert bool(be.zeros((1, 1)))
    assert not be.zeros((0, 4))


def test_iterating_gives_the_rows_as_views_and_ends(be):
    x, a = counted(be, 3, 4)
    rows = list(x)
    for row, expected in zip(rows, a, strict=True):
        holds(row, expected[None])
    rows[1][:] = 7
    assert x.get()[1].tolist() == [7, 7, 7, 7]
    for matrix, expected in zip(be.array(np.ones((2, 3, 4))), np.ones((2, 3, 4)), strict=True):
        holds(matrix, expected)


def test_the_hash_is_by_identity_and_equality_is_an_op_tree(be):
    x, y = be.ones((2, 2)), be.ones((2, 2))
    assert {x: 1, y: 2}[x] == 1
    assert hash(x) != hash(y)
    assert type(x == y) is type(x != y) is OpTreeNode
    with pytest.raises(TypeError, match=r"truth value of eq-tree \(2, 2\) is ambiguous.*be.min.*evaluate it first"):
        bool(x == y)
    with pytest.raises(TypeError, match="evaluate it first"):
        _ = y in [x]
    assert x in [x]


# --- indexing ------------------------------------------------------------------------------------------------------


indices = st.one_of(
    st.integers(-4, 3),
    st.builds(slice, *[st.none() | st.integers(-9, 9)] * 2, st.none() | st.sampled_from([1, 2, 3, -1, -2])),
)

# --- views share memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1:],
        lambda x: x[:, ::2],
        lambda x: x[::-1, 1],
        lambda x: x.T,
        lambda x: x.T[2:].T,
        lambda x: x.reshape(8, 3),
        lambda x: x.reshape(-1)[3:9].reshape(2, 3),
        lambda x: x.reshape(2, 2, 6)[1].T,
        lambda x: x.reshape(2, 2, 6)[:, 0, ::-1],
        lambda x: x.transpose(),
    ],
)
def test_a_view_and_its_tensor_show_the_same_memory(be, view):
    x, a = counted(be, 4, 6)
    if refused(be, lambda: view(x)):
        return
    b = view(a).copy() if view(a).ndim > 1 else view(a).copy()[:, None]
    t = view(x)
    holds(t, b)
    x[:] = x + 100
    holds(t, b + 100)
    t[:] = -t
    a += 100
    view(a)[...] *= -1
    holds(x, a)


def test_T_swaps_the_last_two_axes(be):
    for shape in [(3, 4), (2, 3, 4), (2, 3, 4, 5)]:
        x, a = counted(be, *shape)
        holds(x.T, a.swapaxes(-1, -2))
        out = be.empty(x.T.shape)
        assert x.transpose(out=out) is out
        holds(out, a.swapaxes(-1, -2))
    x, a = counted(be, 2, 3, 4)
    holds(x.permute((2, 0, 1)), a.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("to", "shape"),
    [
        ((4, 3), (4, 3)),
        (((4, 3),), (4, 3)),
        (([4, 3],), (4, 3)),
        ((-1,), (12, 1)),
        ((12,), (12, 1)),
        ((2, -1), (2, 6)),
        ((-1, 1, 3), (4, 1, 3)),
        ((np.int64(6), 2), (6, 2)),
    ],
)
def test_reshape_is_a_view(be, to, shape):
    x, a = counted(be, 3, 4)
    holds(x.reshape(*to), a.reshape(shape))
    x.reshape(*to)[0, 0] = 99
    assert x.get()[0, 0] == 99


def test_reshape_to_the_same_shape_is_the_tensor_itself(be):
    x = be.ones((3, 4))
    assert x.reshape(3, 4) is x.reshape((3, -1)) is x


@pytest.mark.parametrize("to", [(5, 2), (13,), (-1, 5), (-1, -1), (0, -1), (-2, 6)])
def test_a_reshape_that_does_not_fit_names_both(be, to):
    with pytest.raises(ValueError, match=r"x \(3, 4\)|expected sizes >= 0"):
        counted(be, 3, 4)[0].reshape(to)


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[:, 1:], lambda x: x[::-1], lambda x: x[::2]])
def test_a_strided_view_is_reshaped_only_after_a_copy(be, view):
    x, a = counted(be, 4, 6)
    if refused(be, lambda: view(x)):
        return
    with pytest.raises(ValueError, match=r"be\.array\(t\)"):
        view(x).reshape(-1)
    holds(be.array(view(x)).reshape(-1), view(a).reshape(-1, 1))


def test_share_is_a_view_of_the_first_elements(be):
    x, a = counted(be, 4, 6)
    t = x.share((2, 5), name="part")
    assert t.name == "part"
    holds(t, a.ravel()[:10].reshape(2, 5))
    t[:] = 0
    assert (x.get() == 0).sum() == 10
    assert x.share(7).shape == (7, 1)
    assert x.share((4, 6), dtype="float32").shape == (4, 6)
    with pytest.raises(ValueError, match=r"at most 24 elements, got \(5, 5\) with 25"):
        x.share((5, 5))
    with pytest.raises(ValueError, match="expected dtype float32, got int32"):
        x.share((2, 2), dtype="int32")


def test_take_copies_slices(be):
    x, a = counted(be, 4, 6)
    for indices in ([3, 0, 0, -1], np.array([[3], [0], [0], [-1]]), be.array([3, 0, 0, -1], dtype="int32")):
        t = x.take(indices, axis=0)
        holds(t, a[[3, 0, 0, -1]])
        holds(x.take(indices, 1), a[:, [3, 0, 0, -1]])
    t[:] = 0
    holds(x, a)


# --- writing and reading -------------------------------------------------------------------------------------------


def test_get_and_asnumpyarray_copy(be):
    x, a = counted(be, 2, 3)
    for read in (x.get, x.asnumpyarray, x.T.get):
        values = read()
        assert type(values) is np.ndarray
        values[...] = 0
    holds(x, a)


def test_numpy_reads_a_tensor(be):
    x, a = counted(be, 2, 3)
    for copied in (np.asarray(x), np.array(x), np.asarray(x, dtype="float64"), np.asarray(x[:, 1:])):
        assert copied.dtype in ("float32", "float64")
        assert copied.tolist() in (a.tolist(), a[:, 1:].tolist())


def test_set_fill_and_copy_write_in_place_and_return_the_tensor(be):
    x, a = counted(be, 2, 3)
    t = be.zeros((2, 3))
    assert t.set(a) is t.fill(3).set(a) is t
    holds(t, a)
    assert t.fill(0.5) is t
    holds(t, np.full((2, 3), 0.5))
    assert t.copy(x) is t
    holds(t, a)
    assert t.fill(0).copy_from(x) is t
    holds(t, a)
    assert x.copy(x) is x  # as in the guide
    holds(x, a)


@pytest.mark.parametrize(
    "value",
    [
        lambda be, a: be.array(a),
        lambda be, a: be.array(a) * 1,
        lambda be, a: a,
        lambda be, a: a.tolist(),
        lambda be, a: np.asfortranarray(a),
        lambda be, a: a[::-1][::-1],
        lambda be, a: be.array(a.T).T,
        lambda be, a: a.astype(int),
    ],
)
def test_everything_with_values_is_assigned(be, value):
    a = np.arange(6.0).reshape(2, 3)
    t = be.zeros((2, 3))
    t[:] = value(be, a)
    holds(t, a)
    t = be.zeros((4, 5))
    t[1:3, ::2] = value(be, a)
    expected = np.zeros((4, 5))
    expected[1:3, ::2] = a
    holds(t, expected)


@pytest.mark.parametrize("value", [2, 2.0, True + 1, np.float32(2), np.int8(2), np.array(2), np.array([[2]]), [2]])
def test_every_kind_of_number_is_assigned(be, value):
    t = be.zeros((2, 3))
    t[:, 1] = value
    holds(t, [[0, 2, 0]] * 2)
    t[...] = value
    holds(t, np.full((2, 3), 2))


def test_an_assignment_broadcasts(be):
    t = be.zeros((2, 3))
    row, column = np.array([[1, 2, 3]]), np.array([[4], [5]])
    for value in (row, be.array(row), be.array(row) + 0):
        t.fill(0)[:] = value
        holds(t, [[1, 2, 3]] * 2)
    for value in (column, be.array(column), be.array(column) + 0):
        t.fill(0)[:] = value
        holds(t, [[4] * 3, [5] * 3])
    t[:] = np.arange(6)  # as many elements in one dimension
    holds(t, [[0, 1, 2], [3, 4, 5]])
    cube = be.zeros((2, 2, 3))
    cube[:] = t
    holds(cube, [t.get()] * 2)


@pytest.mark.parametrize(
    "value", [lambda be, v: np.int64(v), lambda be, v: np.array(v), lambda be, v: be.array(v, dtype="int32")]
)
def test_an_assignment_casts(be, value):
    small, whole, real = be.zeros((1, 1), dtype="int8"), be.zeros((1, 1), dtype="int32"), be.zeros((1, 1))
    small[:] = value(be, 300)
    holds(small, [[44]])
    small[:] = value(be, 300) * be.ones((1, 1), dtype="int32")
    holds(small, [[44]])
    real[:] = value(be, 7)
    holds(real, [[7]])
    whole[:] = be.array([[-1.7]])
    holds(whole, [[-1]])
    whole[:] = -1.7
    holds(whole, [[-1]])
    assert (small.dtype, whole.dtype, real.dtype) == ("int8", "int32", "float32")


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (lambda be: np.ones((3, 2)), ValueError),
        (lambda be: be.ones((3, 2)), ValueError),
        (lambda be: be.ones((3, 2)) * 2, ValueError),
        (lambda be: np.ones((1, 2, 3)), ValueError),
        (lambda be: "a", TypeError),
        (lambda be: None, TypeError),
        (lambda be: {}, TypeError),
        (lambda be: [[1, 2], [3]], ValueError),
        (lambda be: np.ones((2, 3), complex), TypeError),
    ],
)
def test_values_that_do_not_fit_are_rejected_and_nothing_is_written(be, value, error):
    t = be.zeros((2, 3))
    with pytest.raises(error):
        t[:] = value(be)
    holds(t, np.zeros((2, 3)))


# --- operators -----------------------------------------------------------------------------------------------------


BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]
BINARY += [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
OTHERS: list[Any] = [2, 2.5, True, np.float32(2.5), np.float64(2.5), np.float16(2.5), np.int8(2), np.int64(3), np.True_]
OTHERS += [
    np.array(2.5),
    np.array([[2.0, 3.0]]),
    np.array([[1], [2]]),
    np.arange(4.0).reshape(2, 2),
    np.array([[True, False]]),
]


@each("other, op", itertools.product(OTHERS, BINARY))
def test_operators_take_numbers_and_arrays_on_either_side(be, op, other):
    a = np.array([[0.5, 1.0], [2.0, 2.5]])
    x = be.array(a)
    value = other if isinstance(other, float) else np.asarray(other).astype(float)
    with np.errstate(divide="ignore"):
        both = [(op(x, other), op(a, value)), (op(other, x), op(value, a))]
    for tree, expected in both:
        assert type(tree) is OpTreeNode
        assert tree.dtype == "float32"
        np.testing.assert_allclose(tree.asnumpyarray(), expected * 1.0, rtol=1e-6)
        np.testing.assert_allclose((tree * 2).asnumpyarray(), expected * 2.0, rtol=1e-6)


def test_operators_take_tensors_and_trees(be):
    a, b = np.array([[1.0, 2.0]]), np.array([[3.0], [0.5]])
    x, y = be.array(a), be.array(b)
    for op in BINARY:
        for tree in (op(x, y), op(x * 1, y), op(x, y + 0), op(x * 1, y + 0)):
            np.testing.assert_allclose(tree.asnumpyarray(), op(a, b) * 1.0, rtol=1e-6)
    np.testing.assert_array_equal((-x).asnumpyarray(), -a)
    np.testing.assert_array_equal(abs(x - 3).asnumpyarray(), abs(a - 3))
    np.testing.assert_array_equal((y @ x).asnumpyarray(), b @ a)
    np.testing.assert_array_equal((b @ x).asnumpyarray(), b @ a)
    np.testing.assert_array_equal((y @ a).asnumpyarray(), b @ a)


@pytest.mark.parametrize("other", ["a", None, [1, 2], (1, 2), {}, object(), 1j, float])
def test_operators_reject_operands_without_a_value_at_once(be, other):
    x = be.ones((2, 2))
    for op in (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.lt):
        for a, b in ((x, other), (other, x), (x * 1, other)):
            with pytest.raises(TypeError):
                op(a, b)


@pytest.mark.parametrize("op", [operator.lshift, operator.rshift])
def test_bits_of_floats_are_not_shifted(be, op):
    with pytest.raises(TypeError, match=r"expected integers, got float32"):
        op(be.ones((2, 2)), 2)


# --- augmented assignment ------------------------------------------------------------------------------------------


AUGMENTED = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow]


@pytest.mark.parametrize("other", [2, 0.5, np.array([[2.0], [3.0]]), "tensor", "tree"], ids=repr)
@pytest.mark.parametrize("op", AUGMENTED, ids=lambda op: op.__name__)
def test_an_augmented_assignment_writes_into_the_tensor_and_its_views(be, op, other):
    a = np.array([[0.5, 1.0], [2.0, 2.5]])
    x = be.array(a)
    view, value = x[1:], a.T if isinstance(other, str) else other
    given = {"tensor": lambda: be.array(a.T), "tree": lambda: be.array(a).T * 1}.get(str(other), lambda: other)()
    assert op(x, given) is x
    np.testing.assert_allclose(x.get(), op(a.copy(), value), rtol=1e-6)
    np.testing.assert_array_equal(view.get(), x.get()[1:])


def test_a_step_of_gradient_descent_trains(be):
    W, dW = be.array([[1.0, 2.0]], name="W"), be.array([[2.0, 4.0]])
    original = W
    W -= 0.5 * dW
    assert W is original
    holds(W, [[0, 0]])


def test_an_augmented_product_of_matrices_writes_in_place(be):
    a, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.0, 1.0], [1.0, 1.0]])
    x = be.array(a)
    x @= be.array(b)
    holds(x, a @ b)
    x @= x.T  # reads all elements that it overwrites
    holds(x, (a @ b) @ (a @ b).T)
    with pytest.raises(
        ValueError, match=r"a tensor \(2, 2\) @= ...: expected a result of the same shape, got \(2, 1\)"
    ):
        x @= be.ones((2, 1))
    stack, b = be.array(np.arange(8.0).reshape(2, 2, 2)), np.ones((2, 2, 2))
    stack @= b
    holds(stack, np.arange(8.0).reshape(2, 2, 2) @ b)


def test_an_augmented_assignment_of_a_part_reads_before_it_writes(be):
    a = np.arange(12.0).reshape(4, 3)
    x = be.array(a)
    x[1:] += x[:-1]
    a[1:] += a[:-1].copy()
    holds(x, a)
    x[0] *= 2
    x[:, 1] -= x[:, 0]
    a[0] *= 2
    a[:, 1] -= a[:, 0]
    holds(x, a)


def test_assigning_a_view_to_itself_does_nothing(be, monkeypatch):
    x = be.array(np.arange(6.0).reshape(2, 3))
    monkeypatch.setattr(Backend, "run", None)
    x[:] = x
    x[1:] = x[1:]
    holds(x, np.arange(6.0).reshape(2, 3))


KINDS = ["float16", "float32", "float64", "int8", "int32", "uint8", "uint32"]


@each("op, other, dtype", itertools.product(AUGMENTED[:4], KINDS, KINDS))
def test_an_augmented_assignment_casts_what_numpy_casts_and_rejects_the_rest(cpu, dtype, other, op):
    a, b = np.array([[6, 4]], dtype), np.array([[2, 1]], other)
    x = cpu.array(a, dtype=dtype, name="x")
    try:
        expected = op(a.copy(), b)
    except TypeError:
        with pytest.raises(
            TypeError, match=rf"tensor x \(1, 2\) .=.* expected a result that can be cast to {dtype}, got .*int|float"
        ):
            op(x, cpu.array(b, dtype=other))
        holds(x, a)
    else:
        assert op(x, cpu.array(b, dtype=other)).dtype == dtype
        holds(x, expected)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_integers_are_not_divided_in_place_nor_changed_by_a_fraction(be, dtype):
    if lacks(be, dtype):
        return
    for op, other in ((operator.itruediv, 2), (operator.iadd, 0.5), (operator.iadd, np.array([[0.5]]))):
        x = be.array([[4, 6]], dtype=dtype)
        with pytest.raises(
            TypeError, match=f"expected a result that can be cast to {dtype}, got float32. Cast it with t.* = tree"
        ):
            op(x, other)
        holds(x, [[4, 6]])
    x += 3
    x *= 2
    holds(x, [[14, 18]])


def test_a_result_that_is_larger_than_the_tensor_is_rejected(be):
    row = be.ones((1, 2), name="row")
    with pytest.raises(
        ValueError, match=r"row \(1, 2\) \+= .*same shape, got \(3, 2\)\. t = t \+ ... builds an op-tree"
    ):
        row += be.ones((3, 2))
    holds(row, [[1, 1]])


@pytest.mark.parametrize("op", [*AUGMENTED, operator.imatmul], ids=lambda op: op.__name__)
def test_an_augmented_assignment_of_a_tree_is_rejected_with_a_hint(be, op):
    tree = be.ones((2, 2)) * 2
    with pytest.raises(TypeError, match=r"mul-tree \(2, 2\) .*= .*Write tree = tree .* \.\.\., or .*out\[:\] = tree"):
        op(tree, be.ones((2, 2)))


@pytest.mark.parametrize("op", AUGMENTED, ids=lambda op: op.__name__)
@pytest.mark.parametrize("other", ["a", None, [1, 2], {}, 1j])
def test_an_augmented_assignment_rejects_operands_without_a_value(be, op, other):
    x = be.ones((2, 2))
    with pytest.raises(TypeError, match="a real number as operand" if other == 1j else "unsupported operand"):
        op(x, other)
    holds(x, np.ones((2, 2)))


def test_an_augmented_assignment_on_a_closed_backend_raises(be):
    other = Backend(be.name)
    x = other.ones((2, 2))
    x += 1
    other.cleanup_backend()
    with pytest.raises(RuntimeError, match="closed"):
        x += 1
    holds(x, 2 * np.ones((2, 2)))


# --- one element ---------------------------------------------------------------------------------------------------


def test_one_element_becomes_a_python_number(be):
    x = be.array([[1.5, -2.0], [3.0, 4.0]])
    for one in (x[1, 0], be.max(x[:, 0]), x[1:, :1], be.sum(x[1, 0])):
        assert (one.item(), float(one), int(one)) == (3.0, 3.0, 3)
        assert type(one.item()) is float
    assert type(be.argmax(x[0]).item()) is type(be.array([[7]], dtype="int32").item()) is int
    assert f"{be.mean(x).item():.3f}" == "1.625"
    assert np.isnan(float(be.log(be.array([[-1.0]]))))


@pytest.mark.parametrize("size", [(2, 3), (0, 3)])
def test_more_or_fewer_elements_are_not_a_scalar(be, size):
    x = be.ones(size, name="x")
    for value in (x, x * 2):
        for convert in (float, int, lambda t: t.item()):
            with pytest.raises(ValueError, match=r"expected one element, got (x|mul-tree) .* with [06]\. .*\.get\(\)"):
                convert(value)


def test_get_evaluates_a_tree(be):
    x = be.array([[1.0, 2.0]])
    np.testing.assert_array_equal((x + 1).get(), [[2, 3]])
    assert (x + 1).get().dtype == "float32"


def test_an_array_operand_is_a_snapshot(be):
    x, a = be.ones((2, 2)), np.ones((2, 2))
    trees = [x + a, a * x, be.maximum(x, a), x @ a, be.where(a, x, a)]
    values = [t.asnumpyarray() for t in trees]
    a[:] = 5
    for tree, value in zip(trees, values, strict=True):
        np.testing.assert_array_equal(tree.asnumpyarray(), value)


def test_a_tree_reads_a_tensor_when_it_is_evaluated(be):
    x = be.ones((2, 2))
    tree = x + 1
    x[:] = 5
    np.testing.assert_array_equal(tree.asnumpyarray(), np.full((2, 2), 6))


# --- display, copies -----------------------------------------------------------------------------------------------


def test_the_repr_of_a_tensor_has_values_shape_dtype_backend_and_name(be):
    text = repr(be.array([[0.5, 1.25], [2.0, -3.0]], name="x"))
    for word in ("0.5", "1.25", "-3.", "'x'", "(2, 2)", "float32", be.name):
        assert word in text
    assert str(be.ones((1000, 1000))).count("\n") < 10
    assert "None" not in repr(be.ones((2, 2)))


def test_a_notebook_displays_a_table(be):
    page = be.array([[0.5, 1.25]], name="<x> & y")._repr_html_()
    assert page.count("<td>") == 2
    assert "1.25" in page
    assert "&lt;x&gt; &amp; y" in page
    assert len(be.ones((500, 500))._repr_html_()) < 5000
    assert "(2, 3, 4)" in be.ones((2, 3, 4))._repr_html_()


def test_a_deep_copy_is_a_separate_tensor(be):
    x, a = counted(be, 2, 3, dtype="int32")
    copied, view = copy.deepcopy([x, x.T])
    assert (copied.name, copied.dtype, copied.base) == ("x", x.dtype, None)
    assert view.base is copied
    holds(copied, a)
    holds(view, a.T)
    copied[:] = 0
    holds(x, a)


def test_a_pickled_tensor_is_loaded_on_the_current_backend(be):
    x = be.array([[1.5, -2.0], [0.0, 3.0]], name="x")
    with use_backend(Backend("cpu")) as other:
        for t in (x, x.T, x[:, 1:], be.array([[3, 4]], dtype="int8")):
            loaded = pickle.loads(pickle.dumps(t))
            assert (loaded.backend, loaded.name, loaded.dtype, loaded.shape) == (other, t.name, t.dtype, t.shape)
            np.testing.assert_array_equal(loaded.get(), t.get())


def test_an_op_tree_is_copied_but_not_pickled(be):
    tree = be.ones((2, 2)) + 1
    assert copy.copy(tree) is tree
    with pytest.raises(TypeError, match=r"got an op-tree.* tree\.astensor\(\) or tree\.get\(\)"):
        pickle.dumps(tree)
