"""Arrays: when they are evaluated, what they share, how they are converted, and errors of mistakes."""

from __future__ import annotations

import array
import copy
import pickle
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

import neonlite as nl
from neonlite.array_api.array import MAX_PENDING_OPS
from neonlite.backend import Backend, Tensor

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
    be = Backend("cpu")
    xp = be.array_api
    values = np.random.default_rng(0).normal(size=(1 << 15, 4)).astype(np.float32)
    x = xp.asarray(values)
    total = xp.sum(x * x, axis=0)
    mean, root = total / len(x), xp.sqrt(total)
    scale = 1 / root
    plans: list[str] = []
    compile_plan = be._executor.compile
    monkeypatch.setattr(be._executor, "compile", lambda plan: (plans.append(repr(plan)), compile_plan(plan))[1])
    expected = (values.astype(float) ** 2).sum(axis=0)
    for result, wanted in (
        (mean, expected / len(x)),
        (root, expected**0.5),
        (scale, expected**-0.5),
        (total, expected),
    ):
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5)
    assert sum("sum" in plan for plan in plans) == 1 < len(plans)
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


# --- as in NumPy, where the standard leaves it open ---


def test_arrays_do_not_share_the_memory_of_what_they_are_created_from(be: Backend) -> None:
    values = np.asarray([1.0, 2.0], dtype=np.float32)
    x = be.array_api.asarray(values)
    values[0] = 9
    assert x.tolist() == [1, 2]


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


@each("expression", MISTAKES)
def test_a_mistake_is_answered_with_the_way_out(be: Backend, expression: str) -> None:
    error, text = MISTAKES[expression]
    with pytest.raises(error, match=text):
        eval(expression, {"xp": be.array_api, "np": np, "nl": nl})
