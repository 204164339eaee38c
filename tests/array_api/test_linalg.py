"""Linear algebra of the namespace: thresholds, powers, integers, and axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite.backend import Backend

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


# --- axes that are refused ---


def test_a_negative_axis_of_products_counts_from_the_end_of_both_arrays(be: Backend) -> None:
    xp, x, y = be.array_api, np.arange(24.0).reshape(2, 3, 4), np.arange(12.0).reshape(3, 4) + 1
    assert xp.vecdot(xp.asarray(x), xp.asarray(y), axis=-2).tolist() == (x * y).sum(axis=-2).tolist()
    got: Any = xp.linalg.cross(xp.asarray(x), xp.asarray(y), axis=-2)
    assert got.tolist() == np.moveaxis(np.cross(np.moveaxis(x, -2, -1), np.moveaxis(y, -2, -1)), -1, -2).tolist()


# --- integers and floats ---


N = 2**24 + 1  # not a float32


def test_solve_casts_integers_to_the_dtype_of_the_result(be: Backend) -> None:
    xp = be.array_api
    right = np.asarray([float(N)])
    for x1, x2, expected in [([[N]], right, 1.0), ([[2.0**-24]], xp.asarray([1]), 2.0**24)]:
        z = xp.linalg.solve(xp.asarray(np.asarray(x1)), xp.asarray(x2))
        assert (z.tolist(), z.dtype) == ([expected], xp.float64)
