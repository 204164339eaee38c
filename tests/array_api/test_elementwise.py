"""Elementwise functions: exact integers, and the edges of arithmetic."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import numpy as np
import pytest
from helpers.parametrize import each
from helpers.runtimes import RUNTIMES, lacks_any

from neonlite.backend import Backend

# --- arguments of linear algebra ---


def test_a_remainder_of_0_has_the_sign_of_the_divisor_on_every_runtime() -> None:
    x, y = [[-1.0], [0.0], [-0.0], [2.0]], [0.5, -0.5, np.inf, -np.inf]
    expected = np.remainder(x, y)
    for runtime in RUNTIMES:
        xp = Backend.allocate_backend(runtime).array_api
        got = xp.remainder(xp.asarray(x), xp.asarray(y))
        np.testing.assert_array_equal(got.numpy(), expected)
        np.testing.assert_array_equal(xp.signbit(got).numpy(), np.signbit(expected))


LARGE: dict[str, list[Any]] = {  # values that no smaller dtype, or float32, holds
    "bool": [True, False, True],
    "int8": [-128, 0, 127],
    "uint8": [0, 200, 255],
    "int16": [-300, 1, 7],
    "int32": [2**24 + 1, -5, 2**31 - 1],
    "int64": [2**53 + 1, -1, 2**63 - 1],
    "uint64": [2**53 + 1, 2**64 - 1, 2**63],
    "float32": [2.0**24, -1.0, 0.5],
    "float64": [2.0**53, -0.0, 2.0**63],
}
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
SCALARS = (0.5, -0.0, 2, 0, -1, 16777216.5, 2.0**53, 2**53 + 1, 2**64 - 1, 1e30, -math.inf, 1 + 1e-10)


@each("dtypes", list(itertools.product(LARGE, LARGE)))
def test_comparisons_of_any_two_dtypes_are_those_of_numpy(be: Backend, dtypes: tuple[str, str]) -> None:
    if lacks_any(be, *dtypes):
        return
    x, y = (np.asarray(LARGE[dtype], dtype) for dtype in dtypes)
    xp, x = be.array_api, x[:, None]
    for name in COMPARISONS[: 2 if dtypes == ("bool", "bool") else 6]:
        z = getattr(xp, name)(xp.asarray(x), xp.asarray(y))
        assert z.dtype == xp.bool
        assert z.tolist() == getattr(np, name)(x, y).tolist(), name


@pytest.mark.parametrize("dtype", LARGE)
def test_comparisons_with_any_scalar_are_those_of_numpy(be: Backend, dtype: str) -> None:
    if lacks_any(be, dtype):
        return
    xp, x = be.array_api, np.asarray(LARGE[dtype], dtype)
    for name, scalar in itertools.product(COMPARISONS, SCALARS):
        if dtype == "bool" and abs(scalar) > 2**63:
            continue  # NumPy raises OverflowError
        compare, reference = getattr(xp, name), getattr(np, name)
        assert compare(xp.asarray(x), scalar).tolist() == reference(x, scalar).tolist(), (name, scalar)
        assert compare(scalar, xp.asarray(x)).tolist() == reference(scalar, x).tolist(), (scalar, name)


# --- integers and floats ---


N = 2**24 + 1  # not a float32


def test_clip_of_integers_keeps_them_exact_within_fractional_limits(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([-5, 1, 2, N])
    for low, high, expected in [
        (0.5, None, [1, 1, 2, N]),
        (1.5, 2.5, [2, 2, 2, 2]),
        (-math.inf, math.inf, [-5, 1, 2, N]),
        (None, N - 0.5, [-5, 1, 2, N - 1]),
        (-2.5, 1e30, [-2, 1, 2, N]),
        (np.float64(1.5), np.int8(3), [2, 2, 2, 3]),
    ]:
        z = xp.clip(x, low, high)
        assert (z.tolist(), z.dtype) == (expected, xp.int64)
    with pytest.raises(ValueError, match="leaves integers of int64, got nan"):
        xp.clip(x, math.nan, None)
    with pytest.raises(TypeError, match="limits that can be cast to int64, got an array"):
        xp.clip(x, xp.asarray([0.5]))


@pytest.mark.parametrize("digits", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float64"])
def test_round_of_any_dtype_to_any_number_of_digits_is_that_of_numpy(be: Backend, dtype: str, digits: int) -> None:
    values = np.asarray([0, 4, 5, 6, 14, 15, 25, 35, 50, 51, 94, 99], dtype)
    values = values if dtype == "uint8" else np.concatenate([values, -values])
    expected = np.round(values.astype(float), digits)
    x, t = be.array_api.asarray(values), be.array(values[None], dtype=dtype)
    for z in (x.round(digits), round(x, digits), x.round(np.int64(digits))):
        assert (z.tolist(), z.dtype) == (expected.tolist(), values.dtype)
    for z in (np.round(t, digits), t.round(digits)):
        assert (z.astensor().get()[0].tolist(), z.info.dtype) == (expected.tolist(), dtype)


def test_round_of_large_integers_is_exact(be: Backend) -> None:
    x = be.array_api.asarray([2**53 + 1, -(2**62) - 5])
    assert x.round(2).tolist() == x.tolist()
    assert x.round(-1).tolist() == [9007199254740990, -4611686018427387910]


# --- booleans, and two scalars ---


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "//", "%", "**", "<", "<=", "==", "!="])
def test_booleans_with_floats_are_numbers_as_in_numpy(be: Backend, operator: str) -> None:
    xp = be.array_api
    mask, floats = np.asarray([True, False, True]), np.asarray([0.5, 2.0, -3.0], np.float32)
    for code in (f"m {operator} 0.5", f"2.5 {operator} m", f"m {operator} f", f"f {operator} m"):
        with np.errstate(all="ignore"):
            expected = eval(code, {"m": mask, "f": floats})
        got = eval(code, {"m": xp.asarray(mask), "f": xp.asarray(floats)})
        if "//" in code:  # by the standard, x // 0 is infinite
            expected = np.where(np.isnan(expected) | np.isinf(expected), got, expected)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6)


def test_floor_divide_of_infinities_is_that_of_the_standard(be: Backend) -> None:
    xp = be.array_api
    x = xp.asarray([1.0, -1.0, math.inf])
    assert str((x // math.inf).tolist()[:2]) == "[0.0, -0.0]"
    assert (math.inf // x).tolist()[:2] == [math.inf, -math.inf]
    assert (x // 2.0).tolist() == [0, -1, math.inf]


def test_functions_whose_results_are_floats_accept_booleans_and_integers_as_in_numpy(be: Backend) -> None:
    xp, values = be.array_api, np.array([True, False])
    ufuncs = {name: getattr(np, name) for name in xp.__all__ if isinstance(getattr(np, name, None), np.ufunc)}
    tested = {"sin", "divide", "hypot", "sqrt"}
    for name, ufunc in ufuncs.items():
        with np.errstate(all="ignore"):
            try:
                if ufunc(*[values.astype("int8")] * ufunc.nin).dtype.kind != "f":
                    continue
            except TypeError:  # of matrices or vectors
                continue
            expected = ufunc(*[values.astype("float32")] * ufunc.nin)
        tested.discard(name)
        for x in (values, values.astype("int32")):
            z = getattr(xp, name)(*[xp.asarray(x)] * ufunc.nin)
            np.testing.assert_allclose(np.asarray(z), expected, rtol=1e-6, err_msg=name)
    assert not tested


@pytest.mark.parametrize("name", ["abs", "add", "floor", "less", "maximum", "negative", "sign", "square", "isnan"])
def test_functions_of_numbers_refuse_booleans(be: Backend, name: str) -> None:
    xp = be.array_api
    x = xp.asarray([True, False])
    with pytest.raises(TypeError, match=rf"{name}: expected an array of a numeric dtype"):
        getattr(xp, name)(*[x] * (2 if name in ("add", "less", "maximum") else 1))


@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_shifts_accept_integers_only(be: Backend, name: str, dtype: str) -> None:
    x = be.array_api.asarray(np.array([1, 2]).astype(dtype))
    with pytest.raises(TypeError, match=rf"{name}: expected an array of a integer dtype"):
        getattr(be.array_api, name)(x, x)


@pytest.mark.parametrize(
    ("name", "compare"),
    [
        ("equal", operator.eq),
        ("not_equal", operator.ne),
        ("less", operator.lt),
        ("less_equal", operator.le),
        ("greater", operator.gt),
        ("greater_equal", operator.ge),
    ],
)
def test_a_negative_integer_is_less_than_every_uint64(be: Backend, name: str, compare: Any) -> None:
    if lacks_any(be, "uint64"):
        return
    xp = be.array_api
    unsigned, signed = [0, 0, 1, 2**64 - 1, 5], [-1, 0, -2, -1, 5]
    x, y = xp.asarray(unsigned, dtype=xp.uint64), xp.asarray(signed, dtype=xp.int64)
    assert getattr(xp, name)(x, y).tolist() == list(map(compare, unsigned, signed))
    assert getattr(xp, name)(y, x).tolist() == list(map(compare, signed, unsigned))
