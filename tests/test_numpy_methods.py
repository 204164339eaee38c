"""NumPy habits: functions, methods, operators and indices of NumPy work on tensors and op-trees, or say what does."""

from __future__ import annotations

import copy
import io
import itertools
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

from neonlite import Backend, Tensor
from neonlite.numpy_methods import FUNCTIONS, READERS, SAME_ARGUMENTS
from neonlite.optree import OpTreeNode

A = np.array([[0.5, -1.0, 2.0], [3.0, 0.0, -2.5]])
B = np.array([[1.0, 2.0, 4.0], [0.5, 3.0, 2.0]])
N = np.array([[1, 6, 3], [4, 5, 2]])


def at_least_2d(values: Any) -> Any:
    """Return NumPy's result with axes of size 1 appended up to two dimensions."""
    values = np.asarray(values)
    return values.reshape((*values.shape, 1, 1)[:2]) if values.ndim < 2 else values


def holds(x: Any, expected: Any, rtol: float = 1e-5) -> None:
    """Assert that a tensor or op-tree has the values and the shape of an array, with axes up to two dimensions."""
    assert x.ndim >= 2
    values = x.get()
    assert values.shape == at_least_2d(expected).shape
    np.testing.assert_allclose(values.astype(float), at_least_2d(expected).astype(float), rtol=rtol, atol=1e-6)


# --- functions -----------------------------------------------------------------------------------------------------

UNARY = ["abs", "negative", "square", "exp", "exp2", "tanh", "sign", "rint", "isfinite", "isnan", "floor", "ceil"]
UNARY += ["sin", "cos", "arctan", "expm1", "logical_not", "reciprocal"]
BINARY = ["add", "subtract", "multiply", "divide", "true_divide", "maximum", "minimum", "greater", "less_equal"]
BINARY += ["equal", "not_equal", "floor_divide", "remainder", "arctan2", "logical_and", "logaddexp"]


@pytest.mark.parametrize("name", UNARY)
def test_a_ufunc_of_one_operand_builds_an_op_tree(be, name):
    x, f = be.array(B), getattr(np, name)
    for operand, values in ((x, B), (x - 1, B - 1)):
        with np.errstate(divide="ignore"):
            expected = f(values)
        assert type(f(operand)) is OpTreeNode
        holds(f(operand), expected)


@pytest.mark.parametrize("name", BINARY)
def test_a_ufunc_of_two_operands_takes_arrays_and_scalars_on_either_side(be, name):
    x, f = be.array(A), getattr(np, name)
    for tree, expected in (
        (f(x, B), f(A, B)),
        (f(B, x + 4), f(B, A + 4)),
        (f(x, be.array(B)), f(A, B)),
        (f(x, 2), f(A, 2)),
        (f(np.float64(2), x + 4), f(2, A + 4)),
    ):
        assert type(tree) is OpTreeNode
        assert tree.dtype == "float32"
        holds(tree, expected)


def test_matmul_builds_a_product_on_either_side(be):
    x = be.array(A)
    for tree in (np.matmul(x, B.T), x @ B.T, np.matmul(A, be.array(B.T)), A @ be.array(B.T), np.dot(x, B.T)):
        holds(tree, A @ B.T)


def test_arrays_and_tensors_build_op_trees_with_the_tensors_dtype(be):
    x = be.array(A)
    for tree in (B + x, B - x, x < B, operator.gt(B, x), np.float64(2) * x, np.int64(2) * x, np.ma.array(B) + x):
        assert type(tree) is OpTreeNode
        assert tree.dtype == "float32"


def test_out_is_a_tensor(be):
    x, out = be.array(A), be.zeros((2, 3))
    assert np.exp(x, out=out) is out
    holds(out, np.exp(A))
    assert np.add(B, x, out=(out,)) is out
    holds(out, A + B)
    total = be.zeros((2, 1))
    assert np.sum(x, axis=1, out=total) is np.add.reduce(x, axis=1, out=total) is total
    holds(total, A.sum(1, keepdims=True))


@pytest.mark.parametrize("name", ["add", "maximum", "minimum", "logical_or", "logical_and"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_reduce_of_a_ufunc_is_a_reduction(be, name, axis):
    reduce = getattr(np, name).reduce
    holds(reduce(be.array(A), axis=axis), reduce(A, axis=axis, keepdims=True))
    holds(reduce(be.array(A)), reduce(A, keepdims=True))


REDUCTIONS = ["sum", "mean", "max", "min", "std", "var", "any", "all", "argmax", "argmin", "prod"]


@each("name, axis", itertools.product([*REDUCTIONS, "amax", "amin"], [None, 0, 1, -1]))
def test_a_reduction_keeps_two_dimensions(be, name, axis):
    f = getattr(np, name)
    expected = f(A, axis=axis, keepdims=True)
    holds(f(be.array(A), axis=axis), expected)
    holds(f(be.array(A) * 1, axis), expected)
    holds(f(be.array(A), axis=axis, keepdims=False), f(A, axis=axis))
    if name in REDUCTIONS:
        for x in (be.array(A), be.array(A) * 1):
            holds(getattr(x, name)(axis), expected)
            holds(getattr(x, name)(axis=axis, keepdims=False), f(A, axis=axis))


def test_methods_of_tensors_are_those_of_the_backend(be):
    x = be.array(A)
    for name in ("sum", "mean", "max", "min", "std", "var", "argmax", "argmin"):
        holds(getattr(x, name)(), getattr(be, name)(x).get())


FUNCTION_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "np.clip(x, -1, 1)": lambda x, y: np.clip(x, -1, 1),
    "np.clip(x, a_min=0, a_max=None)": lambda x, y: np.clip(x, 0, None),
    "np.clip(x, max=y)": lambda x, y: np.clip(x, max=y),
    "np.clip(x, min=0, max=1)": lambda x, y: np.clip(x, min=0, max=1),
    "np.where(x > 0, x, y)": lambda x, y: np.where(x > 0, x, y),
    "np.where(x > 0, 1, 0)": lambda x, y: np.where(x > 0, 1, 0),
    "np.concatenate([x, y])": lambda x, y: np.concatenate([x, y]),
    "np.concatenate((x, B), axis=1)": lambda x, y: np.concatenate((x, B), axis=1),
    "np.stack([x, y])": lambda x, y: np.stack([x, y]),
    "np.vstack([x, y])": lambda x, y: np.vstack([x, y]),
    "np.hstack([x, y])": lambda x, y: np.hstack([x, y]),
    "np.transpose(x)": lambda x, y: np.transpose(x),
    "np.transpose(np.stack([x, y]))": lambda x, y: np.transpose(np.stack([x, y])),
    "np.transpose(x, (1, 0))": lambda x, y: np.transpose(x, (1, 0)),
    "np.swapaxes(x, 0, 1)": lambda x, y: np.swapaxes(x, 0, 1),
    "np.matrix_transpose(x)": lambda x, y: np.matrix_transpose(x),
    "np.reshape(x, (3, 2))": lambda x, y: np.reshape(x, (3, 2)),
    "np.ravel(x)": lambda x, y: np.ravel(x),
    "np.broadcast_to(x, (4, 2, 3))": lambda x, y: np.broadcast_to(x[:1], (4, 3)),
    "np.take(x, [1, 0], axis=1)": lambda x, y: np.take(x, [1, 0], axis=1),
    "np.dot(x, y.T)": lambda x, y: np.dot(x, y.T),
    "np.einsum('ij,kj->ik', x, y)": lambda x, y: np.einsum("ij,kj->ik", x, y),
    "np.round(x)": lambda x, y: np.round(x),
    "np.round(x / 3, 2)": lambda x, y: np.round(x / 3, 2),
    "np.around(x * 100, -1)": lambda x, y: np.around(x * 100 + 1, -1),
    "np.copy(x)": lambda x, y: np.copy(x),
    "np.zeros_like(x)": lambda x, y: np.zeros_like(x),
    "np.ones_like(x)": lambda x, y: np.ones_like(x),
    "np.sort(x)": lambda x, y: np.sort(x),
    "np.argsort(x, 0)": lambda x, y: np.argsort(x, 0),
    "np.cumsum(x, axis=1)": lambda x, y: np.cumsum(x, axis=1),
    "np.cumprod(y)": lambda x, y: np.cumprod(y),
    "np.tril(x)": lambda x, y: np.tril(x),
    "np.triu(x, 1)": lambda x, y: np.triu(x, 1),
    "np.take_along_axis(x, indices, axis=1)": lambda x, y: np.take_along_axis(x, np.array([[0], [2]]), axis=1),
    "np.linalg.inv(y @ y.T)": lambda x, y: np.linalg.inv(y @ y.T),
    "np.linalg.det(y @ y.T)": lambda x, y: np.linalg.det(y @ y.T),
    "np.linalg.solve(y @ y.T, x)": lambda x, y: np.linalg.solve(y @ y.T, x),
    "np.sum(x, dtype=float)": lambda x, y: np.sum(x, axis=1, keepdims=True, dtype="float32"),
    "np.var(x, 1, float)": lambda x, y: np.var(x, 1, "float32", keepdims=True),
    "x.clip(0, 1)": lambda x, y: x.clip(0, 1),
    "x.clip(min=0)": lambda x, y: x.clip(min=0),
    "x.round(1)": lambda x, y: (x / 3).round(1),
    "round(x)": lambda x, y: x.round(),
    "x.astype('int32')": lambda x, y: x.astype("int32"),
    "x.reshape(3, 2)": lambda x, y: (x * 2).reshape(3, 2),
    "x.reshape(-1, 1)": lambda x, y: x.reshape(-1, 1),
    "x.flatten()": lambda x, y: x.flatten(),
    "x.T.ravel()": lambda x, y: x.T.ravel(),
    "x.transpose()": lambda x, y: x.transpose(),
    "x.transpose(1, 0)": lambda x, y: x.transpose(1, 0),
    "x.transpose((0, 1))": lambda x, y: (x + y).transpose((0, 1)),
    "x.mT": lambda x, y: (x + y).mT + x.mT,
    "x.T.T": lambda x, y: x.T.T,
    "x % 2": lambda x, y: x % 2,
    "7 % y": lambda x, y: 7 % y,
    "x // y": lambda x, y: x // y,
    "B // y": lambda x, y: B // y,
    "divmod(x, 2)": lambda x, y: divmod(x, 2)[0] + divmod(x, 2)[1],
    "~(x > 0)": lambda x, y: ~(x > 0),
    "(x > 0) & (y > 1)": lambda x, y: (x > 0) & (y > 1),
    "(x > 0) | (B > 1)": lambda x, y: (x > 0) | (B > 1),
    "(B > 1) ^ (x > 0)": lambda x, y: (B > 1) ^ (x > 0),
    "+x": lambda x, y: +x,
    "y ** x": lambda x, y: y**x,
    "abs(x)": lambda x, y: abs(x),
}


@each("name", FUNCTION_CALLS)
def test_a_call_has_numpys_values(be, name):
    call = FUNCTION_CALLS[name]
    holds(call(be.array(A), be.array(B)), call(A, B))


def test_round_gives_numpys_values(be):
    holds(round(be.array(A)), np.round(A))
    holds(round(be.array(A / 3), 2), np.round(A / 3, 2))


def test_float_power_of_integers_is_a_float_as_in_numpy(be):
    x, values = be.array([[2, 3]], dtype="int64"), np.array([[2, 3]])
    for exponent in (64, -1, 0.5, be.array([[3, -2]], dtype="int64")):
        reference = np.array([[3, -2]]) if isinstance(exponent, Tensor) else exponent
        holds(np.float_power(x, exponent), np.float_power(values, reference).astype(np.float32))
    holds(np.float_power(2, x), np.float_power(2, values).astype(np.float32))


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor, operator.floordiv, operator.mod])
def test_operators_of_integers_are_bitwise(be, op):
    x = be.array(N, dtype="int32")
    for tree, expected in ((op(x, 3), op(N, 3)), (op(N, x), op(N, N)), (op(x, x + 1), op(N, N + 1))):
        assert "int" in str(tree.dtype)
        holds(tree, expected)
    holds(~x, ~N)
    holds(x << 1, N << 1)
    holds(x >> 1, N >> 1)


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor])
def test_operators_of_an_integer_and_a_float_are_logical(be, op):
    x, y = be.array(N - 3, dtype="int32"), be.array(A)
    expected = op(N != 3, A != 0)
    for tree in (op(x, y), op(y, x), op(x, A), op(x, y != 0)):
        holds(tree, expected)


@pytest.mark.parametrize("op", [operator.ifloordiv, operator.imod])
def test_augmented_assignments_write_to_the_tensor(be, op):
    x = t = be.array(B)
    x = op(x, 2)
    assert x is t
    holds(t, op(B.copy(), 2))


def test_augmented_assignments_of_masks_write_to_the_mask(be):
    mask = be.array(A > 0)
    kept = mask
    mask &= be.array(B) > 1
    mask |= be.array(A) == 0
    assert mask is kept
    holds(mask, ((A > 0) & (B > 1)) | (A == 0))


def test_shape_ndim_size_and_device_are_python_values(be):
    x = be.array(A)
    for t in (x, x + 1):
        assert (np.shape(t), np.ndim(t), np.size(t), np.size(t, 1)) == ((2, 3), 2, 6, 3)
        assert (t.shape, t.ndim, t.size) == ((2, 3), 2, 6)
        assert t.to_device(t.device) is t
        with pytest.raises(ValueError, match="another device"):
            t.to_device("tpu")


# --- values --------------------------------------------------------------------------------------------------------


def test_values_are_read_as_arrays_lists_and_scalars(be):
    x = be.array(A)
    for t in (x, x * 1):
        assert type(np.asarray(t)) is type(np.array(t)) is np.ndarray
        assert t.tolist() == A.tolist()
        assert (t.item(1, 2), t.item(3)) == (-2.5, 3.0)
        assert np.array([t, t]).shape == (2, 2, 3)
        assert float(t.sum()) == int(t.sum() + 2) - 2 + 0.0 == 2.0
    i = be.array([[1]], dtype="int32")
    assert [10, 20][i] == 20
    assert list(range(i)) == [0]
    with pytest.raises(TypeError, match=r"expected an integer dtype, got float32.*int\(t\)"):
        [10, 20][x[0, 0]]
    with pytest.raises(TypeError, match=r"real numbers.*float\(t\)"):
        complex(x[0, 0])


def test_comparisons_and_files_read_the_values(be, tmp_path):
    x = be.array(A)
    for t in (x, x * 1):
        np.testing.assert_allclose(t, A)
        np.testing.assert_array_equal(A, t)
        np.testing.assert_almost_equal(t, A)
        assert np.allclose(t, A)
        assert np.array_equal(t, A)
        assert np.isclose(A, t).all()
        assert not np.allclose([t, t], [A, B])
        file = io.BytesIO()
        np.save(file, t)
        file.seek(0)
        np.testing.assert_array_equal(np.load(file), A)
        np.savez(tmp_path / "a.npz", x=t)
        np.testing.assert_array_equal(np.load(tmp_path / "a.npz")["x"], A)
        np.savetxt(tmp_path / "a.txt", t)
        np.testing.assert_allclose(np.loadtxt(tmp_path / "a.txt"), A)
        assert np.array_repr(t) == repr(A.astype("float32"))


def test_matplotlib_plots_tensors_and_trees(be):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    x = be.array(A)
    for t in (x, x * 1):
        axes.imshow(t)
        axes.pcolormesh(t)
        axes.contourf(t)
        axes.set_ylim(float(t.min()), float(t.max()))
    axes.plot(x)
    axes.plot(x[0].T, x[1].T)
    axes.scatter(x, x)
    figure.canvas.draw()


# --- index arrays and masks ----------------------------------------------------------------------------------------

C = np.arange(24.0).reshape(2, 3, 4)
INDICES: dict[str, tuple[Any, Any]] = {
    "t[[0, 1, 0]]": (A, [0, 1, 0]),
    "t[[-1]]": (A, [-1]),
    "t[[]]": (A, []),
    "t[np.array([1])]": (A, np.array([1])),
    "t[:, [1, 2]]": (A, (slice(None), [1, 2])),
    "t[..., [2, -3]]": (A, (..., [2, -3])),
    "t[::1, [1]]": (A, (slice(1, None), [1])),
    "t[mask]": (A, A > 0),
    "t[all]": (A, A > -9),
    "t[none]": (A, A > 9),
    "t[[True, False]]": (A, [True, False]),
    "t[:, [True, False, True]]": (A, (slice(None), [True, False, True])),
    "t[rows, columns]": (A, ([0, 1, 1], [2, 0, -1])),
    "t[rows of masks, columns]": (A, ([True, True], [2, 0])),
    "c[[1]]": (C, [1]),
    "c[:, [2, 0]]": (C, (slice(None), [2, 0])),
    "c[1, [2, 0]]": (C, (1, [2, 0])),
    "c[:, [2, 0], 1]": (C, (slice(None), [2, 0], 1)),
    "c[:, 1, [2, 0]]": (C, (slice(None), 1, [2, 0])),
    "c[mask]": (C, C % 3 == 0),
}
every_index = pytest.mark.parametrize(("values", "index"), INDICES.values(), ids=INDICES)


@every_index
def test_an_index_array_copies_what_numpy_copies(be, values, index):
    t = be.array(values)
    selected = t[index]
    assert type(selected) is Tensor
    assert selected.dtype == t.dtype
    holds(selected, values[index])
    selected[:] = 7
    holds(t, values)


@every_index
def test_an_index_array_writes_what_numpy_writes(be, values, index):
    for dtype in ("float32", "int32"):
        t, a = be.array(values, dtype), values.astype(dtype)
        t[index] = 7
        a[index] = 7
        holds(t, a)
        new = np.arange(a[index].size, dtype=dtype).reshape(a[index].shape)
        t[index] = new
        a[index] = new
        holds(t, a)
        t[index] += 1
        a[index] += 1
        holds(t, a)


def test_masks_are_tensors_trees_and_arrays(be):
    t = be.array(A)
    positive = be.zeros((2, 3))
    positive[:] = t > 0
    for mask in (t > 0, positive, A > 0, (A > 0).tolist(), ~(t <= 0), (t > 0) & (t < 99)):
        holds(t[mask], A[A > 0])
        t[mask] = -t[mask]
        t[t < 0] *= -1
        t[A < 0] *= -1
        holds(t, A)


def test_a_column_of_0_and_1_selects_rows(be):
    t = be.array(A)
    holds(t[t[:, 0] > 1], A[A[:, 0] > 1])
    holds(t[t.sum(axis=1) < 1], A[A.sum(axis=1) < 1])
    holds(t[:, t[0] > 0], A[:, A[0] > 0])


def test_integer_tensors_are_indices(be):
    t = be.array(A)
    for index in (be.array([1, 0], dtype="int32"), be.array([[1, 0]], dtype="int64"), be.argmax(t) - 0 * 1):
        holds(t[:, index], A[:, index.get().ravel()])
    labels = be.array([2, 0], dtype="int32")
    holds(t[np.arange(2), labels], A[np.arange(2), [2, 0]])


def test_a_strided_tensor_is_written_through_an_index_array(be):
    t, a = be.array(A), A.copy()
    t.T[t.T > 0] = [1, 2, 3]
    a.T[a.T > 0] = [1, 2, 3]
    holds(t, a)
    t[:, 1:][:, [1]] = 9
    a[:, 1:][:, [1]] = 9
    holds(t, a)


def test_the_last_value_of_an_index_given_twice_remains(be):
    t = be.zeros((3, 1))
    t[[1, 1, 0]] = [1, 2, 3]
    holds(t, [[3], [2], [0]])


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([5], r"tensor t \(2, 3\).* from -2 to 1 for axis 0, got 5"),
        ((slice(None), [0, -4]), r"from -3 to 2 for axis 1, got -4"),
        ([True, False, True], r"mask of 2 elements for axis 0, got \(3,\)"),
        (np.ones((3, 3), bool), r"a vector.*t\[mask\]"),
        (np.ones((1, 2), bool), r"mask of 2 elements for axis 0, got \(1, 2\)"),
        (([0, 1], [0, 1, 2]), r"index arrays of one length"),
        ((0, 0, [0]), r"at most 2 indices, got 3"),
    ],
)
def test_a_wrong_index_array_raises_and_names_the_tensor(be, index, message):
    t = be.array(A, name="t")
    for act in (lambda: t[index], lambda: t.__setitem__(index, 0)):
        with pytest.raises(IndexError, match=message):
            act()
    holds(t, A)


def test_index_arrays_that_numpy_moves_to_the_front_are_refused(be):
    with pytest.raises(IndexError, match="next to the index array"):
        be.array(C)[0, :, [1, 2]]
    with pytest.raises(IndexError, match="got 2 index arrays"):
        be.array(C)[[0, 1], [1, 2]]


def test_a_float_tensor_is_not_a_mask_unless_it_is_0_or_1(be):
    t = be.array(A, name="t")
    with pytest.raises(IndexError, match=r"mask of 0 and 1.*t\[x > 0\].*astype\('int32'\)"):
        t[t]


# --- functions that NumPy computes -----------------------------------------------------------------------------------

CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "np.median(x)": np.median,
    "np.linalg.pinv(x)": np.linalg.pinv,
    "np.fft.fft(x)": np.fft.fft,
    "np.std(x, ddof=1)": lambda x: np.std(x, ddof=1),
    "np.std(x, 0, None, None, 1)": lambda x: np.std(x, 0, None, None, 1),
    "np.sum(x, where=m)": lambda x: np.sum(x, where=A > 0),
    "np.modf(x)": np.modf,
    "np.cbrt(x)": np.cbrt,
    "np.add.accumulate(x)": np.add.accumulate,
    "np.multiply.outer(x, x)": lambda x: np.multiply.outer(x, x),
    "np.add(x, 1, dtype='float32')": lambda x: np.add(x, 1, dtype="float32"),
    "np.linalg.svd(x)": lambda x: np.linalg.svd(x, full_matrices=False).S,
    "np.squeeze(x)": np.squeeze,
}


@pytest.mark.parametrize("call", CONSTANTS.values(), ids=CONSTANTS)
def test_another_function_or_argument_computes_a_constant_and_warns(be, call):
    x = be.array(A)
    for operand in (x, x * 1):
        with pytest.warns(
            UserWarning, match=r"np\..*NumPy computes a constant, which has no gradient.*t\.get\(\)"
        ) as caught:
            result = call(operand)
        assert caught[0].filename == __file__
        for values, reference in zip(np.atleast_1d(result), np.atleast_1d(call(A.astype("float32"))), strict=True):
            np.testing.assert_allclose(values, reference, rtol=1e-5, atol=1e-6)


def test_results_without_floats_and_integers_do_not_warn(be):
    x, n = be.array(A), be.array(N, dtype="int64")
    assert [i.tolist() for i in np.where(x > 1)] == [i.tolist() for i in np.where(A > 1)]
    assert np.unique(n).tolist() == [1, 2, 3, 4, 5, 6]
    assert np.median(n) == 3.5
    assert np.argwhere(x > 1).shape == (2, 2)


def test_numpy_memory_is_written(be):
    x, array = be.array(B), A.copy()
    assert np.exp(x, out=array) is array
    np.testing.assert_allclose(array, np.exp(B), rtol=1e-6)
    array += x
    array *= x + 1
    np.testing.assert_allclose(array, (np.exp(B) + B) * (B + 1), rtol=1e-6)
    np.copyto(array, x)
    np.testing.assert_array_equal(array, B)


def test_a_constant_shares_no_memory_with_the_tensor(be):
    x = be.array(A)
    with pytest.warns(UserWarning, match="no gradient"):
        values = np.squeeze(x)
    values[:] = 7
    holds(x, A)
    x[:] = 5
    assert (values == 7).all()


# --- first mistakes ------------------------------------------------------------------------------------------------

MISTAKES: list[tuple[type[Exception], str, str]] = [
    (TypeError, "np.sort(t, axis=None)", "be.sort(t (2, 3)) | expected an integer as axis, got None"),
    (TypeError, "np.concatenate([t, t], None)", "be.concat(t (2, 3)) | expected an integer as axis, got None"),
    (TypeError, "be.stack([t, t], (0, 1))", "be.stack(t (2, 3)) | expected an integer as axis, got (0, 1)"),
    (
        TypeError,
        "np.copyto(t, 0)",
        "np.copyto(t (2, 3), 0) | a NumPy array to write to | t[...] = values | np.array(t)",
    ),
    (TypeError, "np.add.at(t, [0], 1)", "np.add.at(t (2, 3) | t[...] = values | np.array(t)"),
    (TypeError, "np.median(t, out=t)", "np.median(t (2, 3)) | a NumPy array to write to"),
    (TypeError, "np.exp(A, out=tree)", "np.exp | a NumPy array to write to | t[...] = values"),
    (AttributeError, "setattr(t, 'shape', (3, 2))", "t (2, 3)} | (3, 2) | t.reshape"),
    (AttributeError, "setattr(tree, 'shape', (3, 2))", "(3, 2) | tree.reshape"),
    (AttributeError, "t.resize(3, 2)", "'Tensor' | 'resize' | t.reshape(shape)"),
    (AttributeError, "t.view(3, 2)", "'view' | t.reshape"),
    (AttributeError, "t.nonzero()", "'nonzero' | t.get().nonzero"),
    (AttributeError, "t.dot(t.T)", "'dot' | be.dot(t"),
    (AttributeError, "t.sort()", "'sort' | be.sort(t"),
    (AttributeError, "t.cumsum()", "'cumsum' | be.cumulative_sum(t, axis=0)"),
    (AttributeError, "t.flat", "'flat' | t.get()"),
    (AttributeError, "t.real", "'real' | all dtypes are real"),
    (AttributeError, "t.imag", "'imag' | all dtypes are real"),
    (AttributeError, "t.tobytes()", "'tobytes' | t.get().tobytes"),
    (AttributeError, "t.squeeze()", "'squeeze' | t.reshape"),
    (AttributeError, "t.swapaxes(0, 1)", "'swapaxes' | be.transpose(t, axes)"),
    (AttributeError, "t.repeat(2)", "'repeat' | be.concat"),
    (AttributeError, "t.exp()", "'exp' | be.exp(t"),
    (AttributeError, "tree.tanh()", "'OpTreeNode' | 'tanh' | be.tanh(tree"),
    (AttributeError, "t.cpu()", "'cpu' | t.get()"),
    (AttributeError, "t.backward()", "'backward' | nl.Autodiff"),
    (AttributeError, "tree.fill(0)", "'OpTreeNode' | 'fill' | out[:] = value"),
    (AttributeError, "tree.copy()", "'copy' | tree.astensor()"),
    (TypeError, "tree.__setitem__(0, 1)", "op-tree | out[:] = tree"),
    (TypeError, "bool(t > 0)", "ambiguous | be.min | be.max"),
    (TypeError, "0 < t < 1", "ambiguous | be.min | be.max"),
    (TypeError, "t > 0 and t < 1", "ambiguous | be.min | be.max"),
    (ValueError, "float(t)", "one element | t (2, 3) | .get()"),
    (ValueError, "t.clip()", "t (2, 3) | min, max or both"),
    (TypeError, "t + 'a'", "Tensor | str"),
    (TypeError, "t > None", "Tensor | NoneType"),
    (TypeError, "t @ None", "Tensor | NoneType"),
    (TypeError, "t + 1j", "a real number | 1j | NumPy's array"),
    (TypeError, "np.complex64(1j) * tree", "a real number | 1j | NumPy's array"),
    (TypeError, "np.fft.fft(A) * t", "real numbers | complex128 | NumPy's array"),
    (TypeError, "be.zeros((2, 3), dtype='complex64')", "'complex64' | NumPy's array"),
    (TypeError, "t << 1", "expected integers | be.astype(x, 'int32')"),
    (ValueError, "t @ t", "be.dot(t (2, 3), t (2, 3))"),
    (ValueError, "np.matmul(t, A)", "be.dot(t (2, 3)"),
    (ValueError, "np.add(t, np.ones((4, 5)))", "be.add(t (2, 3)"),
    (TypeError, "t[..., None]", "t (2, 3) | None | t.reshape"),
    (IndexError, "t[2]", "t (2, 3) | index from -2 to 1"),
    (TypeError, "t['a']", "t (2, 3) | 'a'"),
    (ValueError, "t.to_device('cuda:9')", "t (2, 3) | 'cuda:9' | nl.gen_backend"),
    (TypeError, "complex(t)", "t (2, 3) | real numbers | float(t)"),
    (TypeError, "range(t)", "t (2, 3) | integer dtype | int(t)"),
]


@each("exception, mistake, words", MISTAKES)
def test_a_mistake_raises_an_error_that_says_what_to_use(be: Backend, exception, mistake, words):
    t = be.array(A, name="t")
    names = {"np": np, "be": be, "t": t, "tree": t + 1, "m": t > 0, "A": A, "array": A.copy(), "operator": operator}
    with pytest.raises(exception) as raised:
        eval(mistake, names)
    message = " ".join(str(raised.value).split())
    missing = [word for word in words.split(" | ") if word.rstrip("}") not in message]
    assert not missing, f"{message}\nlacks {missing}"
    assert len(message) < 400


@pytest.mark.parametrize("other", [[[1.0, 2.0, 3.0]], ((0, 1, 2),), range(3)], ids=["list", "tuple", "range"])
def test_a_comparison_refuses_a_list_and_compares_with_other_objects(be: Backend, other: Any) -> None:
    t = be.array(A, name="t")
    for x in (t, t + 0):
        for name in ("eq", "ne", "lt", "le", "gt", "ge"):
            apply = getattr(operator, name)
            for call in (lambda apply=apply, x=x: apply(x, other), lambda apply=apply, x=x: apply(other, x)):
                with pytest.raises(TypeError, match=r"be\.\w+: expected tensors, .*, got .*Pass np.array\(x\)"):
                    call()
        assert (x == "a", x == None, x != object(), x == {}) == (False, False, True, False)  # noqa: E711
        assert [y for y in ("a", None, x) if y is not x] == ["a", None]
        assert "a" not in [x]
        np.testing.assert_array_equal((x == np.array([[1.0, 2.0, 3.0]])).get(), np.array([[1.0, 2.0, 3.0]]) == A)


def test_numpy_warns_of_shuffling_a_tensor(be):
    with pytest.warns(UserWarning, match="shuffle"):
        np.random.default_rng(0).shuffle(be.array(A))


def test_copy_without_an_argument_returns_a_new_tensor(be):
    t = be.array(N, dtype="int32")
    for new in (t.copy(), t.T.copy().T, copy.copy(t), np.copy(t), np.copy(t * 1)):
        assert new.dtype == "int32"
        new[:] = 0
    holds(t, N)


def test_an_unknown_attribute_has_the_usual_error(be):
    t = be.array(A)
    for x, kind in ((t, "Tensor"), (t + 1, "OpTreeNode")):
        assert not hasattr(x, "no_such_name")
        assert not hasattr(x, "__cuda_array_interface__")
        with pytest.raises(AttributeError, match=f"^'{kind}' object has no attribute 'no_such_name'$"):
            _ = x.no_such_name


def test_the_tables_name_functions_of_numpy_and_methods_of_the_backend():
    for name in [*FUNCTIONS, *SAME_ARGUMENTS.split(), *READERS.split()]:
        assert operator.attrgetter(name)(np).__name__ == name.split(".")[-1]
    assert not [name for name in SAME_ARGUMENTS.split() if not hasattr(Backend, name.removeprefix("linalg."))]


def test_what_works_does_not_warn(be):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t = be.array(A)
        np.exp(t).sum().item()
        t[t > 0] = np.mean(t)


# --- arrays of one dimension ---

MATRIX, VECTOR = np.arange(1.0, 10).reshape(3, 3), np.array([1.0, 2, 4])
ROWS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, v: x + v, "reflected": lambda x, v: v - x, "/": lambda x, v: x / v, "**": lambda x, v: v**x,
    "<": lambda x, v: x < v, "tree": lambda x, v: (x * 2) * v, "np.multiply": np.multiply, "np.maximum": np.maximum,
    "np.where": lambda x, v: np.where(x > 2, v, x), "where scalar": lambda x, v: np.where(x > 2, 0.5, v),
    "np.clip": lambda x, v: np.clip(x, v, v + 1), "row": lambda x, v: x[:1] + v,
    "of another size": lambda x, v: x[:, :1] * v[:2],
    "v @ x": lambda x, v: v @ x, "element": lambda x, v: x[:1, :1] + v,
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_an_array_of_one_dimension_broadcasts_as_in_numpy(be: Backend, name: str) -> None:
    got, expected = ROWS[name](be.array(MATRIX), VECTOR), ROWS[name](MATRIX, VECTOR)
    np.testing.assert_allclose(got.get(), np.atleast_2d(expected), rtol=1e-6)


@pytest.mark.parametrize(
    "f", [np.add, lambda x, v: v < x, lambda x, v: np.where(x > 1, v, 0), lambda x, v: x.clip(v, 9)]
)
def test_an_array_beside_a_column_of_as_many_elements_is_refused(be: Backend, f: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"an array \(3,\): expected .* Use v\[:, None\], a column; or v\[None, :\]"):
        f(be.array(VECTOR), VECTOR)
    assert f(be.array(VECTOR), VECTOR[:, None]).shape == (3, 1)


def test_an_array_of_one_dimension_is_written_as_a_row_or_to_a_column(be: Backend) -> None:
    t, column, other = be.zeros((3, 3)), be.zeros((3, 1)), be.zeros((3, 3))
    t[1:], column[:] = VECTOR, VECTOR
    t += VECTOR
    t[0] -= VECTOR
    column *= VECTOR
    be.assign([other, t[:1]], [VECTOR, VECTOR])
    np.testing.assert_array_equal(t.get(), [VECTOR, 2 * VECTOR, 2 * VECTOR])
    np.testing.assert_array_equal(column.get(), VECTOR[:, None] ** 2)
    np.testing.assert_array_equal(other.get(), [VECTOR] * 3)
    with pytest.raises(ValueError, match=r"got an array \(3,\)"):
        be.zeros((3, 2))[:] = VECTOR


def test_an_array_of_one_dimension_without_a_tensor_is_a_column(be: Backend) -> None:
    assert (
        be.array(VECTOR).shape
        == be.add(VECTOR, VECTOR).shape
        == be.exp(VECTOR).shape
        == be.add(VECTOR, 1).shape
        == (3, 1)
    )
    np.testing.assert_allclose((be.array(MATRIX) @ VECTOR).get(), (MATRIX @ VECTOR)[:, None], rtol=1e-6)
