"""Arrays: when they are evaluated, what they share, how they are indexed, written, differentiated, and their errors."""

from __future__ import annotations

import array
import copy
import pickle
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES

import neonlite as nl
from neonlite.array_api.array import MAX_PENDING_OPS, Array
from neonlite.backend import Backend, Tensor
from neonlite.backend.runtimes.numpy.stages import FusedStage

# --- evaluation ---


def test_functions_and_operators_are_not_evaluated_until_the_value_is_needed(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([1.0, 2.0])
    y = xp.exp(x) + 1
    assert not isinstance(y.operand, Tensor)
    assert y.shape == (2,)
    assert float(y[0]) == pytest.approx(np.exp(1) + 1)
    assert not isinstance(y.operand, Tensor)
    np.testing.assert_allclose(np.asarray(y), np.exp([1, 2]) + 1, rtol=1e-6)
    assert isinstance(y.operand, Tensor)  # evaluated once


def test_a_reduction_that_several_arrays_depend_on_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    xp = Backend("cpu").array_api
    values = np.random.default_rng(0).normal(size=(1 << 15, 4)).astype(np.float32)
    x = xp.asarray(values)
    total = xp.sum(x * x, axis=0)
    mean, root = total / len(x), xp.sqrt(total)
    scale = 1 / root
    passes: list[int] = []
    run = FusedStage.run
    monkeypatch.setattr(FusedStage, "run", lambda self, *args: (passes.append(self.size), run(self, *args))[1])
    expected = (values.astype(float) ** 2).sum(axis=0)
    for result, wanted in (
        (mean, expected / len(x)),
        (root, expected**0.5),
        (scale, expected**-0.5),
        (total, expected),
    ):
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5)
    assert passes.count(x.size) == 1
    x[0, :] = 100.0
    np.testing.assert_allclose((total + 1).numpy(), expected + 1, rtol=1e-5)  # an array does not change
    assert (xp.sum(x * x, axis=0).numpy() > 9000).all()


@pytest.mark.parametrize(
    "expression",
    [
        "x > 0", "xp.isnan(x)", "~(x > 0)", "(x > 0) & (x < 1)", "xp.any(x > 0)", "xp.all(x, axis=0)", "b ^ (x > 0)",
        "xp.where(b, x > 0, b)", "xp.concat([b, x > 0])", "b[::-1]", "b == (x > 0)", "xp.logical_or(x, b)",
        "xp.sort(b)", "xp.isfinite(x)", "xp.signbit(x)", "xp.astype(x, xp.bool)", "xp.reshape(x > 0, (2, 2))",
    ],
)  # fmt: skip
def test_boolean_arrays_take_one_byte_per_element(be: Backend, expression: str) -> None:
    xp, values, truth = be.array_api, np.asarray([-1.0, 0.0, 2.0, np.nan]), np.asarray([True, False, True, True])
    y = eval(expression, {"xp": xp, "x": xp.asarray(values), "b": xp.asarray(truth)})
    assert (y.dtype, y.operand.info.dtype) == (xp.bool, "uint8")
    expected = eval(expression, {"xp": np, "x": values, "b": truth})
    np.testing.assert_array_equal(y.numpy(), expected)
    assert y.numpy().dtype == bool


def test_a_comparison_writes_booleans_without_floats_in_between() -> None:
    be = Backend("cpu")
    x = be.array_api.asarray(np.ones((50, 4), np.float32))
    assert "gt; reads 800 B, writes 200 B" in repr(be.plan((x > 0).operand))
    assert "isnan max; reads 800 B, writes 1 B" in repr(be.plan(be.array_api.any(be.array_api.isnan(x)).operand))
    float_too = be.array([[1.0, -1.0]]) > 0  # read as numbers as well
    assert (be.astype(float_too, "uint8") + float_too * 2.5).get().tolist() == [[3.5, 0]]


def test_a_square_is_no_power() -> None:
    be = Backend("cpu")
    x, n = be.array([[3.0]]), be.array([[3]], dtype="int32")
    assert (x**2.0).info is (x**2).info
    assert (be.array_api.asarray(x) ** 2.0).operand.info is (x**2).info
    assert (n**2.0).info.dtype == "float32"
    assert (x**2.0).get().item() == (n**2.0).get().item() == 9


def test_an_evaluated_array_keeps_its_value_when_operands_are_written(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([1.0, 2.0])
    before, after = x * 10, x * 10
    assert before.tolist() == [10, 20]
    x[0] = 5.0
    x += 1
    assert before.tolist() == [10, 20]
    assert after.tolist() == [10, 20]  # the operands of an expression are values, not memory
    assert x.tolist() == [6, 3]


def test_expressions_of_tensors_read_their_current_values(be: Backend) -> None:
    xp, t = be.array_api, be.array([[1.0, 2.0]])
    y = xp.sum(xp.asarray(t) ** 2)
    assert float(y) == 5
    t[:] = 3
    assert float(y) == 18


def test_a_loop_does_not_build_an_ever_larger_expression(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([1.0])
    for _ in range(10 * MAX_PENDING_OPS):
        x = x * 0.5 + 1
        assert x.num_ops <= MAX_PENDING_OPS
    assert x.tolist() == [2]


def test_expressions_of_variables_grow_so_that_they_can_be_differentiated(be: Backend) -> None:
    xp = be.array_api
    x = xp.variable([1.0, 3.0])
    y = x
    for _ in range(MAX_PENDING_OPS):
        y = y * 1.01
    assert y.num_ops == MAX_PENDING_OPS
    np.testing.assert_allclose(nl.Autodiff(y, be).get_grad_asnumpyarray(x), 1.01**MAX_PENDING_OPS, rtol=1e-4)


# --- conversion ---


def test_numbers_and_truth_values_come_from_arrays_without_dimensions(be: Backend) -> None:
    xp = be.array_api
    assert (float(xp.asarray(2.5)), int(xp.asarray(7)), bool(xp.asarray(False))) == (2.5, 7, False)
    assert [10, 20, 30][xp.asarray(1)] == 20
    assert xp.asarray([[4]]).item() == 4
    assert isinstance(xp.asarray(True).item(), bool)
    assert xp.asarray([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert [row.tolist() for row in xp.asarray([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    assert len(xp.zeros((3, 2))) == 3
    assert f"{xp.asarray(2.5):.2f}" == "2.50"
    assert round(xp.asarray([1.26]), 1).tolist() == pytest.approx([1.3])
    assert [part.tolist() for part in divmod(xp.asarray([7, -7]), 2)] == [[3, -4], [1, 1]]
    assert xp.asarray([[1, 2]]).sum(0).tolist() == [1, 2]
    assert (xp.asarray([1], dtype=xp.uint8) > -1).tolist() == [True]
    assert (xp.asarray([1.0]) * np.float64(2)).dtype == xp.float32  # NumPy's scalars count as Python numbers
    if xp.any(xp.asarray([0, 1]) > 0):
        return
    raise AssertionError


def test_arrays_are_printed_as_numpy_prints_them(be: Backend) -> None:
    xp = be.array_api
    assert repr(xp.asarray([1.0, 2.0])) == "Array([1., 2.], dtype=float32)"
    assert repr(xp.asarray([True]) & True) == "Array([ True], dtype=bool)"
    assert repr(xp.asarray(3)) == "Array(3, dtype=int64)"


def test_copies_and_pickles_have_the_same_value(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([[1.0, 2.0]]) * 3
    for y in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x)), xp.asarray(x, copy=True)):
        x[0, 0] = 9.0
        assert y.tolist() == [[3, 6]]
        x[0, 0] = 3.0


COPIES: dict[str, Any] = {
    "asarray": lambda xp, x: xp.asarray(x, copy=True),
    "copy": lambda xp, x: copy.copy(x),
    "deepcopy": lambda xp, x: copy.deepcopy(x),
    "+x": lambda xp, x: +x,
    "from_dlpack": lambda xp, x: xp.from_dlpack(x),
    "astype": lambda xp, x: xp.astype(x, x.dtype),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_write_to_the_memory_of_an_array_does_not_change_its_copies(be: Backend, name: str, dtype: str) -> None:
    xp = be.array_api
    x = xp.asarray([1, 2], dtype=dtype)
    y = COPIES[name](xp, x)
    x.tensor()[:] = 9
    assert (x.tolist(), y.tolist()) == ([9, 9], [1, 2])
    y.tensor()[:] = 7
    assert (x.tolist(), y.tolist()) == ([9, 9], [7, 7])


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_variables_are_differentiated(be: Backend, name: str) -> None:
    xp = be.array_api
    v = xp.variable([1.0, 2.0])
    y = COPIES[name](xp, v)
    assert nl.Autodiff(xp.sum(y * y)).get_grad_op_tree(v).tolist() == [2, 4]
    y.tensor()[:] = 9
    assert v.tolist() == [1, 2]


def test_arrays_go_to_other_libraries_and_come_back(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([1.0, 2.0])
    assert np.asarray(x).tolist() == [1, 2]
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert xp.from_dlpack(np.arange(3)).tolist() == [0, 1, 2]
    if be.runtime.name != "strict":
        assert np.from_dlpack(x + 1).tolist() == [2, 3]
        shared = np.from_dlpack(x)  # NumPy 2.2 makes it read-only
        y = xp.asarray(x, copy=True)
        x.tensor()[:] = 9
        assert shared.tolist() == [9, 9]
        assert (x.tolist(), y.tolist()) == ([9, 9], [1, 2])
    with pytest.raises(BufferError, match="expected copy=True or None"):
        xp.from_dlpack(np.arange(3), copy=False)


def test_the_namespace_of_a_backend_creates_arrays_on_it(be: Backend) -> None:
    other = Backend("cpu", default_dtype="float64")
    assert other.array_api.zeros(2).backend is other
    assert other.array_api.zeros(2).dtype == np.float64
    x = be.array_api.ones(2)
    assert x.__array_namespace__() is be.array_api
    for version in ("2024.12", "2025.12"):
        assert x.__array_namespace__(api_version=version).asarray(1).backend is be
    with pytest.raises(ValueError, match=r"up to 2025\.12, got '2099\.12'"):
        x.__array_namespace__(api_version="2099.12")
    assert x.__array_namespace__().__array_namespace_info__().default_dtypes()["real floating"] == np.float32


# --- writes ---


@pytest.mark.parametrize(
    ("shape", "key", "value"),
    [
        ((3, 4), (1,), 7.0),
        ((3, 4), (slice(None), 2), [1.0, 2.0, 3.0]),
        ((3, 4), (slice(None, None, -1), slice(1, 3)), 5.0),
        ((3, 4), ([0, 2],), np.arange(8.0).reshape(2, 4)),
        ((3, 4), ([1, 1],), np.arange(8.0).reshape(2, 4)),  # the last value wins
        ((3, 4), (np.arange(12).reshape(3, 4) % 2 == 0,), -1.0),
        ((3, 4), (np.arange(12).reshape(3, 4) > 20,), -1.0),  # nothing
        ((3, 4), (Ellipsis,), np.arange(12.0).reshape(3, 4)),
        ((3, 4), ([0, 1], [2, 3]), [8.0, 9.0]),
        ((), (), 3.0),
        ((5,), (slice(1, 4),), [1, 2, 3]),
        ((2, 3, 4), (slice(None), 1), np.ones((1, 4))),
    ],
)
def test_assigning_to_an_index_changes_what_numpy_changes(be: Backend, shape: Any, key: Any, value: Any) -> None:
    xp, expected = be.array_api, np.arange(float(np.prod(shape))).reshape(shape).astype(np.float32)
    x = xp.asarray(expected)
    view, key = x[...], key[0] if len(key) == 1 else key
    before = expected.copy()
    x[key], expected[key] = (xp.asarray(value) if isinstance(value, np.ndarray) else value), value
    assert np.asarray(x).tolist() == expected.tolist()
    assert np.asarray(view).tolist() == before.tolist()  # arrays share no memory


def test_an_assignment_is_differentiated(be: Backend) -> None:
    xp = be.array_api
    v, w = xp.variable([1.0, 2.0, 3.0]), xp.variable(5.0)
    x = v * 2
    x[1] = w * w
    x[xp.asarray([False, False, True])] = 0.0
    gradients = nl.Autodiff(xp.sum(x * x), be).get_grad_asnumpyarray([v, w])
    assert gradients[0].tolist() == [8, 0, 0]
    assert gradients[1].tolist() == 4 * 5**3


def test_in_place_operators_keep_shape_and_dtype(be: Backend) -> None:
    xp = be.array_api
    x = y = xp.asarray([1, 2])
    x += 1
    x *= xp.asarray([2, 3])
    assert y is x
    assert y.tolist() == [4, 9]
    x += xp.asarray([1, 2], dtype=xp.int32)
    z = xp.asarray([1, 2], dtype=xp.int32)
    z += x  # as in NumPy, the result is cast to a dtype of its kind
    assert z.tolist() == [6, 13]
    assert (x.dtype, z.dtype) == (xp.int64, xp.int32)
    with pytest.raises(TypeError, match="expected a result of the shape and kind of an array"):
        x += 0.5
    with pytest.raises(ValueError, match="in-place add"):
        x += xp.ones((3, 2), dtype=xp.int64)
    assert y.tolist() == [5, 11]


def test_an_element_is_written_without_copying_the_rest(be: Backend) -> None:
    xp = be.array_api
    x = xp.zeros((3, 4))
    x[0, 0] = 1.0
    memory = id(x.operand)  # a reference would make x copy it
    x[1] = 2.0
    x[2, 1:3] += xp.asarray([3.0, 4.0])
    assert id(x.operand) == memory
    assert x.tolist() == [[1, 0, 0, 0], [2, 2, 2, 2], [0, 3, 4, 0]]


@pytest.mark.parametrize(
    "reader",
    [
        "x[...]",
        "x[0]",
        "x * 1",
        "xp.reshape(x, (4, 1))",
        "x.T",
        "xp.asarray(x, copy=True)",
        "xp.stack([x, x])[0]",
        "x + x[0]",
    ],
)
def test_a_write_does_not_change_what_was_read_before(be: Backend, reader: str) -> None:
    xp = be.array_api
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    x[0, 0] = 5.0  # the memory is of x alone
    read = eval(reader, {"xp": xp, "x": x})
    expected = np.asarray(eval(reader, {"xp": np, "x": np.asarray([[5.0, 2.0], [3.0, 4.0]])}))
    x[0, 0] = 7.0
    x[1] = 8.0
    assert read.tolist() == expected.tolist()
    assert x.tolist() == [[7, 2], [8, 8]]
    read = eval(reader, {"xp": xp, "x": x})
    read[0] = 100.0
    assert x.tolist() == [[7, 2], [8, 8]]


@pytest.mark.parametrize(
    "expression",
    [
        "+x", "xp.positive(x)", "xp.real(x)", "xp.conj(x)", "xp.astype(x, x.dtype)", "x.astype(x.dtype)", "xp.abs(x)",
        "xp.broadcast_to(x, x.shape)", "xp.broadcast_arrays(x, x)[0]", "xp.permute_dims(x, (0,))",
        "xp.roll(x, 0, axis=0)",
        "xp.roll(x, 3)", "xp.clip(x)", "xp.sum(x, axis=())", "xp.prod(x, axis=())", "xp.max(x, axis=())",
        "xp.min(x, axis=())", "xp.mean(x, axis=())", "xp.diff(x, n=0)", "xp.reshape(x, (3,))", "xp.squeeze(x, axis=())",
        "xp.concat([x])", "xp.tile(x, (1,))", "xp.repeat(x, 1)", "xp.flip(x, axis=())", "xp.meshgrid(x)[0]", "x[...]",
        "xp.asarray(x, copy=True)", "xp.moveaxis(x, 0, 0)", "xp.where(x > 0, x, x)", "np.transpose(x)",
    ],
)  # fmt: skip
def test_no_function_returns_its_argument_which_a_write_would_change(be: Backend, expression: str) -> None:
    xp = be.array_api
    x = xp.asarray([1.0, 2.0, 3.0])
    y = eval(expression, {"xp": xp, "np": np, "x": x})
    y += 10.0
    y[0] = 0.0
    assert x.tolist() == [1, 2, 3]


def test_elements_are_swapped_and_shifted_as_in_numpy(be: Backend) -> None:
    xp, expected = be.array_api, np.asarray([1.0, 2.0, 3.0, 4.0])
    x = xp.asarray(expected)
    for values in (x, expected):
        values[0], values[3] = float(values[3]), float(values[0])
        values[1:] = values[:-1] * 1
    assert x.tolist() == expected.tolist()


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


@pytest.mark.parametrize("expression", [e.strip() for e in DIFFERENTIABLE.split(";") if e.strip()])
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
    h, expected = 1e-6, np.zeros((3, 3))
    for index in np.ndindex(3, 3):
        step = np.zeros((3, 3))
        step[index] = h
        expected[index] = np.sum(weights * (np.asarray(f(values + step)) - np.asarray(f(values - step)))) / (2 * h)
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


# --- as in NumPy, where the standard leaves it open ---

AS_NUMPY = """
xp.where(x > 1)[0]; xp.where(m > 1)[1]; xp.diff(x, 2); x.astype(dtype=xp.int32); xp.sort(x > 1); xp.argsort(x > 1)
xp.repeat(m, 3, axis=1); xp.repeat(m, 0); xp.arange(-3, 20, 7); xp.arange(0.5, 3.0, 0.1); xp.arange(5, -5, -3)
xp.arange(3, 3); m[[1, 0, -1]]; m[[[1], [0]]]; m[m > 2]
""".replace("\n", ";")


@pytest.mark.parametrize("expression", [each.strip() for each in AS_NUMPY.split(";") if each.strip()])
def test_calls_beyond_the_standard_give_what_numpy_gives(expression: str) -> None:
    xp = Backend("cpu", default_dtype="float64").array_api
    values: dict[str, Any] = {"x": np.asarray([1.0, 2.0, 0.5, 4.0]), "m": np.arange(6.0).reshape(2, 3)}
    expected = eval(expression, {"xp": np, **values})
    got = eval(expression, {"xp": xp, **{name: xp.asarray(array) for name, array in values.items()}})
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("key", [[True, False, True, True], [3, 0], np.asarray([1, 1, 2])])
def test_elements_are_assigned_without_changes_of_other_arrays(be: Backend, key: Any) -> None:
    xp = be.array_api
    x = xp.asarray([1.0, 2.0, 3.0, 4.0])
    other, double = xp.reshape(x, (2, 2)), x * 2
    expected = np.asarray([1.0, 2.0, 3.0, 4.0])
    expected[key] = expected[key] * 10 + 1
    x[xp.asarray(key)] = x[xp.asarray(key)] * 10 + 1
    assert x.tolist() == expected.tolist()
    assert other.tolist() == [[1, 2], [3, 4]]
    assert double.tolist() == [2, 4, 6, 8]


def test_arrays_do_not_share_the_memory_of_what_they_are_created_from(be: Backend) -> None:
    values = np.asarray([1.0, 2.0], dtype=np.float32)
    x = be.array_api.asarray(values)
    values[0] = 9
    assert x.tolist() == [1, 2]


@pytest.mark.parametrize("index", [4, -5])
def test_an_index_that_is_out_of_range_is_reported_at_once(be: Backend, index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} is out of range for axis 0 with size 4"):
        be.array_api.ones(4)[be.array_api.asarray([0, index])]


def test_an_object_with_a_dtype_keeps_it_and_python_numbers_get_the_default(be: Backend) -> None:
    pd = pytest.importorskip("pandas")
    asarray = be.array_api.asarray
    large = np.array([[2.0**24 + 1, 3.0]])  # float32 does not have it
    frame = pd.DataFrame(large)
    for x in (large, frame, memoryview(large), [large[0]], (frame.loc[0],), [memoryview(large[0])]):
        assert asarray(x).dtype == np.float64
        assert asarray(x).tolist() == large.tolist()
    assert asarray(frame.astype("float32")).dtype == np.float32
    assert asarray(frame.astype(int)).dtype == np.int64
    assert asarray(frame > 5).dtype == bool
    for x in (large.tolist(), [large[0, 0]], 1.5, [[np.float64(1.5)]]):
        assert asarray(x).dtype == np.float32
    values = array.array("f", [1.0, 2.0])
    x = asarray(values)
    values[0] = 9.0  # the memory is not that of the array
    assert x.tolist() == [1, 2]


# --- mistakes ---

MISTAKES: dict[str, tuple[type[Exception], str]] = {
    "xp.exp([1.0])": (TypeError, "asarray"),
    "xp.add(1, 2)": (TypeError, "asarray"),
    "bool(xp.asarray([1, 2]))": (TypeError, "any"),
    "float(xp.ones(2))": (TypeError, "sum"),
    "complex(xp.asarray(1.0))": (TypeError, "float"),
    "xp.asarray(1j)": (TypeError, "real numbers.*Complex numbers are not supported: compute with NumPy's array"),
    "1j * xp.ones(2)": (TypeError, "Complex numbers are not supported: compute with NumPy's array"),
    "xp.ones(2) == 1j": (TypeError, "Complex numbers are not supported"),
    "xp.complex128": (AttributeError, "complex numbers are not supported: compute with NumPy's array"),
    "xp.fft": (AttributeError, "complex numbers are not supported: compute with NumPy's array"),
    "xp.ones(2) + 1j": (TypeError, "Complex numbers are not supported: compute with NumPy"),
    "np.fft.fft([1.0, 2.0]) - xp.ones(2)": (TypeError, r"real numbers.* NumPy's array"),
    "xp.zeros(2, dtype=np.complex64)": (TypeError, r"got 'complex64'.* NumPy's array"),
    "xp.astype(xp.ones(2), 'complex128')": (TypeError, r"got 'complex128'.* NumPy's array"),
    "xp.ones(2).__setitem__(0, 1j)": (TypeError, r"a real number, got 1j.* NumPy's array"),
    "xp.asarray('a')": (TypeError, "real numbers"),
    "xp.ones((2, 3)) + xp.ones((3, 2))": (ValueError, "broadcast"),
    "xp.ones((2, 3)) @ xp.ones((2, 3))": (ValueError, "matmul"),
    "xp.ones(3).T": (ValueError, "mT or permute_dims"),
    "xp.asarray([True]) + xp.asarray([True])": (TypeError, "logical_or"),
    "-xp.asarray([True])": (TypeError, "logical_not"),
    "xp.asarray([1.0]) & xp.asarray([1.0])": (TypeError, "astype"),
    "xp.where(xp.ones(2), 1.0, 2.0)": (TypeError, "condition != 0"),
    "xp.ones(3)[5]": (IndexError, "out of range"),
    "xp.ones(3)[0, 0]": (IndexError, "at most 1"),
    "xp.ones(3)[0.5]": (IndexError, "indices"),
    "xp.reshape(xp.ones(6), (4, 2))": (ValueError, "6 elements"),
    "xp.concat([xp.ones((2, 2)), xp.ones((3, 3))])": (ValueError, "equal except on axis 0"),
    "xp.sum(xp.ones((2, 2)), axis=2)": (IndexError, "out of range"),
    "xp.asarray(xp.ones(2), device='tpu')": (ValueError, "device"),
    "xp.asarray([1], dtype=xp.uint8) + 300": (OverflowError, "255"),
    "xp.squeeze(xp.ones((2, 1)), axis=0)": (ValueError, "size 1"),
    "xp.take(xp.ones((2, 2)), xp.asarray([0]))": (ValueError, "axis"),
    "xp.linalg.inv(xp.ones((2, 3)))": (ValueError, "square"),
    "xp.linalg.solve(xp.eye(2), xp.ones(3))": (ValueError, "n, k"),
    "xp.ones(2).dot(xp.ones(2))": (AttributeError, "x @ y"),
    "xp.ones(2).sort()": (AttributeError, r"xp\.sort\(x\)"),
    "xp.ones(2).copy()": (AttributeError, "copy=True"),
    "xp.ones(2).cumsum()": (AttributeError, "cumulative_sum"),
    "xp.concatenate": (AttributeError, "Use xp.concat"),
    "xp.arctan": (AttributeError, "Use xp.atan"),
    "np.copyto(xp.ones(2), 0)": (
        TypeError,
        r"np.copyto\(an array \(2,\) .* a NumPy array to write to.* np.array\(t\)",
    ),
    "xp.no_such_function": (AttributeError, "no attribute"),
    "xp.asarray([3, 4]) == [3, 4]": (TypeError, "asarray"),
    "xp.ones(2) + [1, 2]": (TypeError, "asarray"),
    "xp.ones(2) != (1, 2)": (TypeError, "asarray"),
    "xp.ones(2) == range(2)": (TypeError, "asarray"),
    "format(xp.ones(2), '.2f')": (ValueError, r"expected one element, got 2. Index the array"),
    "format(xp.ones((2, 2)), '>30')": (ValueError, r"expected one element, got 4. Index the array"),
    "setattr(xp.ones(2), 'shape', (2, 1))": (AttributeError, "reshape"),
    "setattr(xp.ones(2), 'dtype', xp.int64)": (AttributeError, "astype"),
    "xp.max(xp.zeros(0))": (ValueError, "at least one element"),
    "xp.asarray(nl.Backend('cpu').array_api.ones(2)) + nl.Backend('cpu').array_api.ones(2)": (ValueError, "backend"),
    "np.sort(xp.ones((2, 2)), axis=None)": (TypeError, "expected an integer as axis, got None"),
    "np.argsort(xp.ones((2, 2)), None)": (TypeError, "expected an integer as axis, got None"),
    "np.linspace(xp.ones(2), 3.0, 4)": (ValueError, "one element"),
    "xp.permute_dims(xp.ones((2, 2)), (0, 0))": (ValueError, "distinct axes"),
    "hash(xp.ones(2))": (TypeError, "unhashable"),
    "len(xp.asarray(1))": (TypeError, "dimension"),
    "nl.array_api.Array(1)": (TypeError, "asarray"),
}


@pytest.mark.parametrize("expression", MISTAKES)
def test_a_mistake_is_answered_with_the_way_out(be: Backend, expression: str) -> None:
    error, text = MISTAKES[expression]
    with pytest.raises(error, match=text):
        eval(expression, {"xp": be.array_api, "np": np, "nl": nl})


def test_an_array_that_does_not_fit_is_not_assigned(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([1, 2, 3])
    with pytest.raises(TypeError, match="cast"):
        x[0] = 0.5
    with pytest.raises(ValueError, match="broadcast"):
        x[:2] = xp.asarray([1, 2, 3])
    assert x.tolist() == [1, 2, 3]


def test_numpy_functions_call_those_of_the_namespace(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    for y in (np.exp(x), np.sum(x, axis=0), np.add(x, 1), np.add.reduce(x), np.concatenate([x, x]), np.arctan2(x, x)):
        assert isinstance(y, Array)
    assert isinstance(np.ones((2, 2)) * x, Array)
    assert np.sum(x, axis=0).tolist() == [4, 6]
    values = np.arange(24.0).reshape(2, 3, 4) ** 2
    z = xp.asarray(values, dtype=xp.float64)
    calls: list[Any] = [
        lambda a: np.add.reduce(a),
        lambda a: np.multiply.reduce(a, keepdims=True),
        lambda a: np.maximum.reduce(a, axis=1),
        lambda a: np.logical_or.reduce(a > 7),
        lambda a: np.diff(a, 2),
        lambda a: np.diff(a, 1, 0),
        lambda a: np.diff(a, axis=1),
        lambda a: np.sum(a, 1),
        lambda a: np.sort(-a, 0),
        lambda a: np.cumsum(a, 1),
        lambda a: np.roll(a, 1, 2),
        lambda a: np.concatenate([a, a], 2),
        lambda a: np.stack([a, a], 1),
        lambda a: np.take(a, np.asarray([1, 0]), 1),
        lambda a: np.argmax(a, 1),
        lambda a: np.tile(a, 2),
        lambda a: np.trace(a[0]),
        lambda a: np.linspace(a[0, 0, 1], a[0, 0, 2], 3, dtype=np.float64),
        lambda a: divmod(7.5, a + 1)[0],
        lambda a: divmod(7.5, a + 1)[1],
    ]
    for k, call in enumerate(calls):
        np.testing.assert_allclose(np.asarray(call(z)), call(values), rtol=1e-12, err_msg=str(k))
    assert np.transpose(x).tolist() == [[1, 3], [2, 4]]
    np.testing.assert_allclose(np.linalg.inv(x).tolist(), np.linalg.inv(np.asarray(x)), rtol=1e-5)
    assert np.allclose(x, x + 1e-9)
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((2, 2), 2, 4)
    assert (np.ones((2, 2), np.float32) + x).tolist() == [[2, 3], [4, 5]]


# --- assignments to the result of an expression ---

CHAINED = ["x[1:3][0] = 1", "x[1:3][x[1:3] > 0] = 5", "x[1:3][0] += 1", "(x + 1)[0] = 1", "xp.zeros(3)[0] = 1"]


@pytest.mark.parametrize("statement", CHAINED)
def test_an_assignment_that_would_be_lost_is_refused(be: Backend, statement: str) -> None:
    xp, scope = be.array_api, {}
    exec(f"def assign(xp, x):\n    {statement}", scope)
    x = xp.arange(6.0)
    with pytest.raises(ValueError, match=r"x\[i\]\[j\] = value: .* Use one index, x\[i, j\] = value"):
        scope["assign"](xp, x)
    with pytest.raises(ValueError, match="would be lost"):
        exec(statement, {"xp": xp, "x": x})
    assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_an_array_that_something_refers_to_is_written(be: Backend) -> None:
    xp = be.array_api
    x = xp.arange(4.0)
    y = x[1:3]
    y[0] = 7
    y[:] += 1
    holder, listed = {"y": x[:2]}, [x[2:]]
    holder["y"][0], listed[0][1] = 5, 6

    def write(parameter: Array) -> list[float]:
        parameter[0] = 9
        y[1] = -1  # of the enclosing function
        return parameter.tolist()

    assert write(x[:2]) == [9, 1]
    assert (y.tolist(), holder["y"].tolist(), listed[0].tolist()) == ([8, -1], [5, 1], [2, 6])
    for row in (rows := [xp.zeros(2), xp.zeros(2)]):
        row[1] = 1
    assert [row.tolist() for row in rows] == [[0, 1], [0, 1]]
    assert x.tolist() == [0, 1, 2, 3]


# --- arguments of linear algebra ---


def test_the_threshold_of_each_matrix_may_be_an_array_of_any_library(be: Backend) -> None:
    xp, values = be.array_api, np.array([np.diag([1.0, 0.5, 0.01])] * 3)
    x, rtol = xp.asarray(values), [0.001, 0.1, 0.7]
    for argument in (np.array(rtol), rtol, xp.asarray(rtol), xp.asarray(np.array(rtol))):
        assert xp.linalg.matrix_rank(x, rtol=argument).tolist() == [3, 2, 1]
        expected = np.linalg.pinv(values, rtol=np.array(rtol))
        np.testing.assert_allclose(xp.linalg.pinv(x, rtol=argument).numpy(), expected, rtol=1e-5, atol=1e-5)
    one = np.float64(0.1)
    assert xp.linalg.matrix_rank(x[0], rtol=one) == xp.linalg.matrix_rank(x[0], rtol=np.array(one)) == 2
    assert xp.linalg.pinv(xp.zeros((0, 3))).shape == (3, 0)


@pytest.mark.parametrize("n", [0.5, 2.0, True, "2"])
def test_a_matrix_power_is_an_integer(be: Backend, n: Any) -> None:
    x = be.array_api.asarray([[4.0, 0], [0, 9]])
    with pytest.raises(TypeError, match="matrix_power: expected an integer for n, got"):
        be.array_api.linalg.matrix_power(x, n)
    assert be.array_api.linalg.matrix_power(x, np.int64(-1)).tolist()[0] == [0.25, 0]


def test_a_remainder_of_0_has_the_sign_of_the_divisor_on_every_runtime() -> None:
    x, y = [[-1.0], [0.0], [-0.0], [2.0]], [0.5, -0.5, np.inf, -np.inf]
    expected = np.remainder(x, y)
    for runtime in RUNTIMES:
        xp = Backend.allocate_backend(runtime).array_api
        got = xp.remainder(xp.asarray(x), xp.asarray(y))
        np.testing.assert_array_equal(got.numpy(), expected)
        np.testing.assert_array_equal(xp.signbit(got).numpy(), np.signbit(expected))
