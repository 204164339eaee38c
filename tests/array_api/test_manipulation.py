"""Indexing of arrays, assignments to their elements, and functions that change shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each

import neonlite as nl
from neonlite.array_api.array import Array
from neonlite.backend import Backend

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


@each(
    "expression",
    [
        "+x",
        "xp.positive(x)",
        "xp.real(x)",
        "xp.conj(x)",
        "xp.astype(x, x.dtype)",
        "x.astype(x.dtype)",
        "xp.abs(x)",
        "xp.broadcast_to(x, x.shape)",
        "xp.broadcast_arrays(x, x)[0]",
        "xp.permute_dims(x, (0,))",
        "xp.roll(x, 0, axis=0)",
        "xp.roll(x, 3)",
        "xp.clip(x)",
        "xp.sum(x, axis=())",
        "xp.prod(x, axis=())",
        "xp.max(x, axis=())",
        "xp.min(x, axis=())",
        "xp.mean(x, axis=())",
        "xp.diff(x, n=0)",
        "xp.reshape(x, (3,))",
        "xp.squeeze(x, axis=())",
        "xp.concat([x])",
        "xp.tile(x, (1,))",
        "xp.repeat(x, 1)",
        "xp.flip(x, axis=())",
        "xp.meshgrid(x)[0]",
        "x[...]",
        "xp.asarray(x, copy=True)",
        "xp.moveaxis(x, 0, 0)",
        "xp.where(x > 0, x, x)",
        "np.transpose(x)",
    ],
)
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


# --- as in NumPy, where the standard leaves it open ---


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


@pytest.mark.parametrize("index", [4, -5])
def test_an_index_that_is_out_of_range_is_reported_at_once(be: Backend, index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} is out of range for axis 0 with size 4"):
        be.array_api.ones(4)[be.array_api.asarray([0, index])]


# --- mistakes ---


def test_an_array_that_does_not_fit_is_not_assigned(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([1, 2, 3])
    with pytest.raises(TypeError, match="cast"):
        x[0] = 0.5
    with pytest.raises(ValueError, match="broadcast"):
        x[:2] = xp.asarray([1, 2, 3])
    assert x.tolist() == [1, 2, 3]


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


# --- indices ---


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64", "uint64"])
def test_indices_of_any_integer_dtype_select_elements(be: Backend, dtype: str) -> None:
    if dtype not in be.runtime.dtypes:
        return
    xp, values = be.array_api, np.arange(600.0).reshape(2, 300)
    indices = np.asarray([2, 100, 0] if dtype[0] == "u" else [-1, 100, -128], dtype)
    x, i = xp.asarray(values), xp.asarray(indices)
    assert xp.take(x, i, axis=1).tolist() == values[:, indices].tolist()
    rows = np.stack([indices, indices[::-1]])
    assert xp.take_along_axis(x, xp.asarray(rows)).tolist() == np.take_along_axis(values, rows, -1).tolist()
    assert be.take(be.array(values), indices, 1).astensor().get().tolist() == values[:, indices].tolist()


@pytest.mark.parametrize("index", [-7, -6, 5, 2**63 - 1, 2**64 - 1])
def test_an_index_out_of_range_raises_index_error(be: Backend, index: int) -> None:
    if index > 2**63 and "uint64" not in be.runtime.dtypes:
        return
    xp = be.array_api
    with pytest.raises(IndexError, match="out of range"):
        xp.take(xp.arange(5), xp.asarray([index])).tolist()
    with pytest.raises(IndexError):
        xp.take_along_axis(xp.arange(5), xp.asarray([index])).tolist()
    with pytest.raises(IndexError, match="out of range"):
        be.take(be.ones((5, 1)), [index], 0).astensor()
