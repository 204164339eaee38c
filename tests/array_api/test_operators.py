"""Operators of arrays, and NumPy's functions of them, are those of the namespace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite.array_api.array import Array
from neonlite.backend import Backend

# --- writes ---


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


# --- mistakes ---


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
