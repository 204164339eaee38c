"""Tests of tensors: shapes, views, memory, operators and creation."""

from __future__ import annotations

import copy
import operator
import pickle
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import lacks, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from neonlite import Backend, OpTreeNode, Tensor, gen_backend
from neonlite.backend import use_backend

FLOATS = ["float16", "float32", "float64"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def counted(be: Backend, *shape: int, dtype: str = "float32") -> tuple[Tensor, np.ndarray]:
    """Return a tensor of 0, 1, 2 ... and the same as an array."""
    a = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return be.array(a, dtype=dtype, name="x"), a


def holds(t: Tensor, a: Any) -> None:
    """Check values, shape and dtype."""
    assert type(t) is Tensor
    assert t.shape == np.shape(a)
    np.testing.assert_array_equal(t.get(), a)


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


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        (0, (1, 4)),
        (-1, (1, 4)),
        (np.int64(2), (1, 4)),
        (np.array(2), (1, 4)),
        ((slice(None), 1), (3, 1)),
        ((1, 1), (1, 1)),
        (slice(0, 1), (1, 4)),
        (slice(5, 9), (0, 4)),
        ((Ellipsis, -1), (3, 1)),
        ((Ellipsis,), (3, 4)),
        ((slice(None, None, -2), slice(3, 0, -1)), (2, 3)),
    ],
)
def test_an_index_of_a_matrix_keeps_two_dimensions(be, index, shape):
    x, a = counted(be, 3, 4)
    if not refused(be, lambda: x[index]):
        holds(x[index], a[index].reshape(shape))


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        (1, (3, 4)),
        ((0, 2), (1, 4)),
        ((slice(None), 2), (2, 4)),
        ((slice(None), 0, 1), (2, 1)),
        ((0, slice(None), 1), (3, 1)),
        ((1, 2, 3), (1, 1)),
        ((Ellipsis, 0), (2, 3)),
        (slice(0, 1), (1, 3, 4)),
        ((slice(0, 1), 1), (1, 4)),
    ],
)
def test_an_int_drops_its_own_axis_and_never_one_below_two(be, index, shape):
    x, a = counted(be, 2, 3, 4)
    holds(x[index], a[index].reshape(shape))


indices = st.one_of(
    st.integers(-4, 3),
    st.builds(slice, *[st.none() | st.integers(-9, 9)] * 2, st.none() | st.sampled_from([1, 2, 3, -1, -2])),
)


@settings(max_examples=300)
@given(
    shape=st.lists(st.integers(4, 6), min_size=2, max_size=4),
    index=st.lists(indices, max_size=4),
    dots=st.integers(0, 9),
)
def test_any_index_selects_the_same_elements_as_in_numpy(be, shape, index, dots):
    x, a = counted(be, *shape)
    index = index[: len(shape)]
    if dots <= len(index) < len(shape):
        index.insert(dots, Ellipsis)
    if refused(be, lambda: x[tuple(index)]):
        return
    t = x[tuple(index)]
    np.testing.assert_array_equal(t.get().ravel(), a[tuple(index)].ravel())
    assert t.ndim == max(2, a[tuple(index)].ndim)
    assert t.ndim == 2 or t.shape == a[tuple(index)].shape
    t[:] = -1
    a[tuple(index)] = -1
    np.testing.assert_array_equal(x.get(), a)


@pytest.mark.parametrize("index", [3, -4, (0, 4), (slice(None), -5), (0, 0, 0), (0, slice(None), slice(None))])
def test_an_index_out_of_range_raises_and_names_the_tensor(be, index):
    with pytest.raises(IndexError, match=r"tensor x \(3, 4\)"):
        counted(be, 3, 4)[0][index]


@pytest.mark.parametrize("index", [True, np.True_, (slice(None), False)])
def test_a_boolean_is_not_an_index(be, index):
    with pytest.raises(IndexError, match=r"Use t\[mask\]"):
        be.ones((3, 4))[index]


@pytest.mark.parametrize("index", [1.0, "a", None])
def test_an_object_that_is_not_an_index_is_rejected_with_a_hint(be, index):
    with pytest.raises(TypeError, match=r"Use t\.reshape"):
        be.ones((3, 4))[index]


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


@pytest.mark.parametrize("other", OTHERS, ids=repr)
@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
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


@pytest.mark.parametrize("op", AUGMENTED[:4], ids=lambda op: op.__name__)
@pytest.mark.parametrize("other", KINDS)
@pytest.mark.parametrize("dtype", KINDS)
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


# --- creating tensors ----------------------------------------------------------------------------------------------


def test_zeros_and_ones_have_those_values(be):
    holds(be.zeros((2, 3)), np.zeros((2, 3)))
    holds(be.ones((2, 3, 4), dtype="int8", name="x"), np.ones((2, 3, 4)))
    assert be.ones(3, "int8", "x").name == be.zeros(3, "int8", "x").name == be.empty(3, "int8", "x").name == "x"


@pytest.mark.parametrize(
    "values", [3, 2.5, [1, 2, 3], [[1, 2], [3, 4]], np.arange(24).reshape(2, 3, 4), np.eye(3)[::2], True, []]
)
def test_array_copies_values_into_the_default_dtype(be, values):
    t = be.array(values)
    a = np.asarray(values)
    holds(t, a if a.ndim > 1 else a.reshape(-1, 1))
    assert t.dtype == "float32"
    assert be.array(values, dtype="int32", name="n").dtype == "int32"


@pytest.mark.parametrize(
    "layout",
    [np.asfortranarray, lambda a: a.T.copy().T, lambda a: a[::-1], lambda a: np.broadcast_to(a[:1], a.shape), np.array],
)
def test_array_accepts_any_memory_order_and_returns_c_order(be, layout):
    a = layout(np.arange(600 * 500.0, dtype=np.float32).reshape(600, 500))
    t = be.array(a)
    holds(t, a)
    holds(t.reshape(-1), a.reshape(-1, 1))
    holds(be.array(t.T).reshape(-1), a.T.reshape(-1, 1))
    t[:] = t + t[0]
    holds(t, a + a[0])


def test_array_is_a_copy_also_of_tensors_and_trees(be):
    a = np.zeros((2, 2), np.float32)
    x = be.array(a)
    y, z = be.array(x, name="y"), be.array(x + 1)
    a[:] = 1
    x[:] = 2
    holds(y, np.zeros((2, 2)))
    holds(z, np.ones((2, 2)))
    assert y.name == "y"
    other = Backend("cpu", default_dtype="float64")
    assert other.array(x).dtype == "float64"
    holds(other.array(x), np.full((2, 2), 2))


@pytest.mark.parametrize("values", ["a", [[1, 2], [3]], None, object(), [1j], ["a"]])
def test_array_rejects_values_that_are_not_an_array_of_numbers(be, values):
    with pytest.raises((TypeError, ValueError), match=r"be\.array: expected (real numbers|nested lists)"):
        be.array(values)


@pytest.mark.parametrize("name", ["empty_like", "zeros_like", "ones_like"])
def test_like_functions_use_the_shape_of_tensors_and_arrays(be, name):
    like = getattr(be, name)
    x = be.ones((2, 3), dtype="int16")
    for source, shape, dtype in [
        (x, (2, 3), "int16"),
        (x.T, (3, 2), "int16"),
        (x * 2.0, (2, 3), "float32"),
        (np.ones((4, 5), "int8"), (4, 5), "float32"),
        (np.ones(4), (4, 1), "float32"),
    ]:
        t = like(source, name="t")
        assert (t.shape, t.dtype, t.name) == (shape, dtype, "t")
        assert like(source, dtype="float64").dtype == "float64"
        if name != "empty_like":
            assert (t.get() == (name == "ones_like")).all()


def test_iobuf_is_a_buffer_for_a_minibatch(be):
    with pytest.raises(ValueError, match="batch_size=N"):
        be.iobuf(3)
    be.bsz = 8
    for dim0, shape in [
        (5, (5, 8)),
        ((5,), (5, 8)),
        ((5, 3), (5, 24)),
        ([5, 3], (5, 24)),
        ((2, 3, 4), (24, 8)),
        ((1, 2, 3, 4), (24, 8)),
    ]:
        holds(be.iobuf(dim0), np.zeros(shape))
    t = be.iobuf(5, dtype="int32", name="t", parallelism="Data")
    assert (t.dtype, t.name) == ("int32", "t")
    x = be.ones((2, 2))
    assert be.iobuf(5, x=x) is x
    be.bsz = 2
    assert be.iobuf(5).shape == (5, 2)


def test_iobuf_may_use_the_memory_of_another(be):
    be.bsz = 4
    assert (be.shared_iobuf_size((3, 5), "Data"), be.shared_iobuf_size(7, None)) == (15, 7)
    pool = be.ones((30, 1))
    t = be.iobuf((5,), shared=pool, name="t")
    assert t.name == "t"
    holds(t, np.zeros((5, 4)))
    assert pool.get().sum() == 10
    t[:] = 2
    assert pool.get().sum() == 10 + 40
    with pytest.raises(ValueError, match=r"at most 30 elements, got \(8, 4\)"):
        be.iobuf(8, shared=pool)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_every_dtype_is_created_written_and_computed_with(be, dtype):
    if lacks(be, dtype):
        return
    for spelling in (dtype, np.dtype(dtype), np.dtype(dtype).type):
        x = be.array([[1, 2], [3, 4]], dtype=spelling)
        assert x.dtype == dtype
        assert x.get().dtype == dtype
    holds((x + x).astensor(), [[2, 4], [6, 8]])
    assert (x + x).astensor().dtype == dtype
    x[:] = x * 2
    holds(x, [[2, 4], [6, 8]])


def test_a_runtime_supports_float16_or_names_its_dtypes(be):
    if lacks(be, "float16"):
        with pytest.raises(TypeError, match=r"expected one of the dtypes .*, got 'float16'"):
            gen_backend(be.name, datatype=np.float16)
        return
    x = gen_backend(be.name, datatype=np.float16).array([[0.1]])
    assert x.get() == np.float16(0.1)
    assert (x * 2).astensor().dtype == "float16"


def test_cpu_supports_every_dtype_and_strict_lists_its_own():
    assert not lacks(gen_backend("cpu"), *FLOATS, *INTS)
    with pytest.raises(
        TypeError, match=r"backend 'strict': expected one of the dtypes float32, float64, .*, got 'float16'"
    ):
        gen_backend("strict").ones((2, 2), dtype=np.float16)


@pytest.mark.parametrize("dtype", ["bool", "complex64", "object", "float128", "quad", "S3", 3])
def test_a_dtype_that_a_backend_lacks_is_rejected(be, dtype):
    with pytest.raises(TypeError, match=r"expected one of the dtypes"):
        be.ones((2, 2), dtype=dtype)


def test_booleans_are_stored_as_numbers(be):
    with pytest.raises(TypeError, match="use uint8"):
        be.zeros((2, 2), dtype=bool)
    holds(be.array([[True, False]]), [[1, 0]])


@pytest.mark.parametrize("shape", [1.5, (2, 3.0), "ab", None, (2, None), True, ((2, 3), 4)])
def test_a_shape_consists_of_integers(be, shape):
    with pytest.raises(TypeError, match="expected integers as sizes, got"):
        be.zeros(shape)


@pytest.mark.parametrize("shape", [-1, (2, -3), (-1, 2)])
def test_a_size_is_not_negative(be, shape):
    with pytest.raises(ValueError, match="expected sizes >= 0"):
        be.ones(shape)


def test_the_creation_functions_of_the_guide(be):
    zeros = np.zeros((100, 100))
    empty, filled = be.empty((100, 100)), be.empty((100, 100))
    empty[:] = 0
    your = be.zeros((100, 100))
    for t in (be.zeros_like(zeros), be.array(zeros), empty, filled.fill(0), your.copy(your)):
        holds(t, zeros)
    holds(your[:, 1], np.zeros((100, 1)))
    holds(your[:, 3:10], np.zeros((100, 7)))


def test_one_element_is_formatted_as_a_number_and_several_are_rejected(be):
    x = be.array([[1.25, 2.5]])
    assert f"{x[0, 0]:.1f} {be.sum(x, axis=None):.2f}" == "1.2 3.75"
    assert f"{x}" == str(x)
    with pytest.raises(ValueError, match=r"expected one element, got .* with 2"):
        f"{x:.1f}"


def test_an_operand_of_another_backend_is_named_with_both(cpu):
    other = Backend("cpu")
    x = cpu.ones((2, 2), name="x")
    with pytest.raises(ValueError, match=r"expected operands of <backend cpu \d+>, got x \(2, 2\) on <backend"):
        other.exp(x)


# --- large integers ---


@pytest.mark.parametrize(
    "values", [[[1, 2**64 - 1]], [[2573020360226874006, 13687853399390180967]], [[2**53 + 1, 1.5]]]
)
def test_integers_of_lists_are_written_exactly(be: Backend, values: list[list[float]]) -> None:
    if lacks(be, "uint64"):
        return
    expected = [[int(x) for x in values[0]]]
    t = be.zeros((1, 2), dtype="uint64")
    t[:] = values
    assert t.get().tolist() == expected
    assert be.array(values, dtype="uint64").get().tolist() == expected
    t[:] = [[0, 0]]
    t[:, 1:] = values[0][1:]
    assert t.get().tolist() == [[0, expected[0][1]]]
    t.fill(values[0][1])
    assert t.get().tolist() == [[expected[0][1]] * 2]


@pytest.mark.parametrize("value", [[[1, 2**63]], [[-1, 2**64]], 2**63, [[np.uint64(2**63), 1]]])
def test_integers_above_int64_are_refused(be: Backend, value: Any) -> None:
    t = be.array([[3, 4]], dtype="int64")
    with pytest.raises(OverflowError, match="for int64, got"):
        t[:] = value
    with pytest.raises(OverflowError, match="for int64, got"):
        be.array(value, dtype="int64")
    assert t.get().tolist() == [[3, 4]]
