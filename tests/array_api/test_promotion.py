"""Dtypes of arrays: one object per dtype, mixed integers and floats as in NumPy, and integers that stay exact."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest

from neonlite.backend import Backend

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


def lacks(be: Backend, *dtypes: str) -> bool:
    return any(dtype != "bool" and dtype not in be.runtime.dtypes for dtype in dtypes)


@pytest.mark.parametrize("dtypes", list(itertools.product(LARGE, LARGE)), ids="-".join)
def test_comparisons_of_any_two_dtypes_are_those_of_numpy(be: Backend, dtypes: tuple[str, str]) -> None:
    if lacks(be, *dtypes):
        return
    x, y = (np.asarray(LARGE[dtype], dtype) for dtype in dtypes)
    xp, x = be.array_api, x[:, None]
    for name in COMPARISONS[: 2 if dtypes == ("bool", "bool") else 6]:
        z = getattr(xp, name)(xp.asarray(x), xp.asarray(y))
        assert z.dtype == xp.bool
        assert z.tolist() == getattr(np, name)(x, y).tolist(), name


@pytest.mark.parametrize("dtype", LARGE)
def test_comparisons_with_any_scalar_are_those_of_numpy(be: Backend, dtype: str) -> None:
    if lacks(be, dtype):
        return
    xp, x = be.array_api, np.asarray(LARGE[dtype], dtype)
    for name, scalar in itertools.product(COMPARISONS, SCALARS):
        if dtype == "bool" and abs(scalar) > 2**63:
            continue  # NumPy raises OverflowError
        compare, reference = getattr(xp, name), getattr(np, name)
        assert compare(xp.asarray(x), scalar).tolist() == reference(x, scalar).tolist(), (name, scalar)
        assert compare(scalar, xp.asarray(x)).tolist() == reference(scalar, x).tolist(), (scalar, name)


@pytest.mark.parametrize("signed", ["int8", "int64"])
@pytest.mark.parametrize(
    "call",
    [
        *("x + y", "x * y", "x // y", "xp.maximum(x, y)", "xp.minimum(y, x)", "xp.concat([x, y])"),
        *("xp.where(xp.asarray([True, False]), x, y)", "xp.stack([y, x])", "xp.searchsorted(x, y)", "xp.matmul(x, y)"),
    ],
)
def test_uint64_with_signed_integers_gives_float64_as_in_numpy(be: Backend, call: str, signed: str) -> None:
    if lacks(be, "uint64"):
        return
    values = {"x": np.asarray([2**63, 2**64 - 2048], np.uint64), "y": np.asarray([1, -1], signed)}
    xp = be.array_api
    got = eval(call, {"xp": xp} | {name: xp.asarray(x) for name, x in values.items()})
    expected = eval(call, {"xp": np} | values)
    assert got.dtype == expected.dtype
    assert got.tolist() == expected.tolist()


def test_tensors_of_uint64_are_not_compared_with_signed_integers(be: Backend) -> None:
    if lacks(be, "uint64"):
        return
    x, y = be.array([[2**63]], dtype="uint64"), be.array([[1]], dtype="int8")
    for operation in (be.greater, be.equal, be.bitwise_and):
        with pytest.raises(TypeError, match=r"one integer dtype, got uint64 and int8. Cast one of them with be.astype"):
            operation(x, y)
    assert be.add(x, y).info.dtype == "float64"


def test_a_dtype_is_one_object_wherever_it_comes_from(be: Backend) -> None:
    xp = be.array_api
    with_metadata = np.dtype(bool, metadata={"unit": 1})
    masks = [
        pickle.loads(pickle.dumps(xp.asarray([True, False]))),
        xp.asarray(pickle.loads(pickle.dumps(np.asarray([True, False])))),
        xp.asarray(np.asarray([True, False]).astype(with_metadata)),
        xp.asarray([True, False], dtype=with_metadata),
        xp.astype(xp.asarray([1, 0]), pickle.loads(pickle.dumps(with_metadata))),
        xp.where(xp.asarray([True, False]), True, False),
    ]
    for mask in masks:
        assert (~mask).tolist() == [False, True]
        assert (mask | True).dtype is xp.bool
    assert xp.full(2, True, dtype=with_metadata).dtype is xp.bool
    assert xp.result_type(with_metadata, with_metadata) is xp.bool


@pytest.mark.parametrize("dtype", [">i4", ">f4", ">f8", ">i8"])
def test_arrays_have_native_byte_order(be: Backend, dtype: str) -> None:
    xp, values = be.array_api, np.asarray([3, 1, 2], dtype)
    x, native = xp.asarray(values), np.dtype(dtype).newbyteorder("=")
    x += 1
    assert x.tolist() == [4, 2, 3]
    arrays = [x, xp.zeros(2, dtype=dtype), xp.astype(x, dtype), xp.sum(x, dtype=dtype), xp.full_like(x, 1, dtype=dtype)]
    assert {array.dtype for array in arrays} == {native}
    assert all(array.dtype.isnative for array in arrays)
    assert xp.isdtype(np.dtype(dtype), native)
    t = be.zeros((1, 3))
    t[:] = values
    assert t.get().tolist() == [[3, 1, 2]]
    assert be.add(t, values[None]).astensor().get().tolist() == [[6, 2, 4]]
    assert be.array(values, dtype=values.dtype).info.dtype == native.name


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


def test_solve_casts_integers_to_the_dtype_of_the_result(be: Backend) -> None:
    xp = be.array_api
    right = np.asarray([float(N)])
    for x1, x2, expected in [([[N]], right, 1.0), ([[2.0**-24]], xp.asarray([1]), 2.0**24)]:
        z = xp.linalg.solve(xp.asarray(np.asarray(x1)), xp.asarray(x2))
        assert (z.tolist(), z.dtype) == ([expected], xp.float64)


def test_searchsorted_compares_integers_with_floats_exactly(be: Backend) -> None:
    xp = be.array_api
    x, values = np.asarray([N - 1, N, N + 1]), np.asarray([N - 1, N + 1], np.float32)
    z = xp.searchsorted(xp.asarray(x), xp.asarray(values), side="right")
    assert z.tolist() == np.searchsorted(x, values, side="right").tolist()


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


@pytest.mark.parametrize(
    ("x", "y", "dtype"),
    [
        *((2**62, 2**62, "int64"), (-(2**63), -1, "int64"), (2**63, 1, "uint64"), (True, False, "bool")),
        *((True, 2, "int64"), (1, 0.5, "float32"), (-0.0, 0.0, "float32"), (np.int64(3), 2**62, "int64")),
    ],
)
def test_where_selects_from_two_scalars(be: Backend, x: Any, y: Any, dtype: str) -> None:
    if lacks(be, dtype):
        return
    z = be.array_api.where(be.array_api.asarray([True, False]), x, y)
    assert (str(z.tolist()), z.dtype) == (str([np.dtype(dtype).type(v).item() for v in (x, y)]), dtype)


def test_where_refuses_two_scalars_without_a_common_dtype(be: Backend) -> None:
    xp = be.array_api
    with pytest.raises(OverflowError, match=r"where: expected an integer from .* for int64"):
        xp.where(xp.asarray([True]), 2**63, -1)


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
