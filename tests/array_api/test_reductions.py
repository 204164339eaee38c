"""Reductions, searches and selections."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import lacks_any

from neonlite.backend import Backend

# --- integers of NumPy ---


def test_no_axis_reduces_nothing(be: Backend) -> None:
    xp, values = be.array_api, np.asarray([[1.0, 2.0], [0.0, 4.0]])
    for name in ("sum", "prod", "max", "min", "mean", "all", "any", "count_nonzero"):
        z = getattr(xp, name)(xp.asarray(values), axis=())
        assert z.tolist() == getattr(np, name)(values, axis=()).tolist() if name != "count_nonzero" else True


@pytest.mark.parametrize("correction", [0, 1, 1.5, 2, 3])
def test_the_variance_of_two_elements_is_that_of_numpy_with_any_correction(be: Backend, correction: float) -> None:
    values = np.asarray([1.0, 3.0], np.float32)
    z = be.array_api.var(be.array_api.asarray(values), correction=correction)
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, where no degree of freedom is left
        assert float(z) == np.var(values, ddof=correction)


# --- integers and floats ---


N = 2**24 + 1  # not a float32


def test_searchsorted_compares_integers_with_floats_exactly(be: Backend) -> None:
    xp = be.array_api
    x, values = np.asarray([N - 1, N, N + 1]), np.asarray([N - 1, N + 1], np.float32)
    z = xp.searchsorted(xp.asarray(x), xp.asarray(values), side="right")
    assert z.tolist() == np.searchsorted(x, values, side="right").tolist()


# --- booleans, and two scalars ---


@pytest.mark.parametrize(
    ("x", "y", "dtype"),
    [
        *((2**62, 2**62, "int64"), (-(2**63), -1, "int64"), (2**63, 1, "uint64"), (True, False, "bool")),
        *((True, 2, "int64"), (1, 0.5, "float32"), (-0.0, 0.0, "float32"), (np.int64(3), 2**62, "int64")),
    ],
)
def test_where_selects_from_two_scalars(be: Backend, x: Any, y: Any, dtype: str) -> None:
    if lacks_any(be, dtype):
        return
    z = be.array_api.where(be.array_api.asarray([True, False]), x, y)
    assert (str(z.tolist()), z.dtype) == (str([np.dtype(dtype).type(v).item() for v in (x, y)]), dtype)


def test_where_refuses_two_scalars_without_a_common_dtype(be: Backend) -> None:
    xp = be.array_api
    with pytest.raises(OverflowError, match=r"where: expected an integer from .* for int64"):
        xp.where(xp.asarray([True]), 2**63, -1)


def test_isin_and_broadcast_shapes_are_numpys(be: Backend) -> None:
    xp = be.array_api
    cases: list[tuple[Any, Any]] = [
        ([[1, 2], [3, 4]], [2, 4]), ([1, 2, 3], [2.0, 9.5]), ([True, False], [True]), ([1.5, 2.0], []),
        ([1.0, np.nan], [np.nan, 1.0]), ([3.0, 9.0], [*[np.nan] * 4, 1.0, 2.0, 3.0]), ([[3]], [[3, 1], [2, 2]]),
        ([1, 300], np.array([44, 1], np.uint8)),
    ]  # fmt: skip
    for first, second in cases:
        for invert in (False, True):
            result = xp.isin(xp.asarray(first), xp.asarray(second), invert=invert)
            assert result.dtype == xp.bool
            np.testing.assert_array_equal(result.numpy(), np.isin(first, second, invert=invert))
    assert xp.isin(xp.asarray([1, 2]), 2).tolist() == [False, True]
    assert xp.isin(2, xp.asarray([1, 2])).item() is True
    assert xp.broadcast_shapes((2, 1), (3,), ()) == np.broadcast_shapes((2, 1), (3,), ()) == (2, 3)
    assert xp.broadcast_shapes() == ()
    with pytest.raises(ValueError, match=r"broadcast_shapes: .* do not broadcast"):
        xp.broadcast_shapes((2,), (3,))
