"""Arguments of functions: numbers and lists, NumPy's integers as axes and sizes, indices, and axes that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite.backend import Backend

BIG = [2573020360226874006, 13687853399390180967]  # below and above 2**63: NumPy rounds this list to float64


def test_integers_of_lists_stay_exact(be: Backend) -> None:
    xp = be.array_api
    assert xp.asarray([2**53 + 1, 1.5], dtype=xp.int64).tolist() == [2**53 + 1, 1]
    assert xp.arange(-(2**63), 3 - 2**63).tolist() == [-(2**63), 1 - 2**63, 2 - 2**63]
    assert xp.full(2, 2**53 + 1).tolist() == [2**53 + 1] * 2
    if "uint64" not in be.runtime.dtypes:
        return
    for values in (BIG, [BIG, BIG], [1, 2**64 - 1], [np.uint64(BIG[1]), 1], 2**63):
        assert xp.asarray(values, dtype=xp.uint64).tolist() == values
        assert xp.asarray(values).tolist() == values
        assert xp.asarray(values).dtype == xp.uint64
    assert xp.asarray([0.5, BIG[1]]).dtype == xp.float32
    assert xp.arange(2**63 - 1, 2**63 + 1, dtype=xp.uint64).tolist() == [2**63 - 1, 2**63]
    x = xp.zeros(2, dtype=xp.uint64)
    x[...] = BIG[1]
    assert x.tolist() == [BIG[1]] * 2


@pytest.mark.parametrize(
    ("code", "where"),
    [
        *(("xp.asarray([1, 2**63], dtype=xp.int64)", "asarray"), ("xp.asarray([-1, 2**63])", "asarray")),
        *(("xp.asarray([2**64])", "asarray"), ("xp.where(xp.asarray([True]), 2**64, 0)", "where")),
        *(("xp.arange(2**63 - 1, 2**63 + 1)", "arange"), ("xp.full(2, 300, dtype=xp.int8)", "full")),
        *(("xp.full_like(xp.zeros(2), -1, dtype=xp.uint8)", "full_like"), ("xp.asarray([1e30], dtype=int)", "asarray")),
    ],
)
def test_a_number_out_of_range_raises_overflow_error(be: Backend, code: str, where: str) -> None:
    with pytest.raises(OverflowError, match=f"^{where}: expected an integer from "):
        eval(code, {"xp": be.array_api})


def test_negative_zero_keeps_its_sign(be: Backend) -> None:
    xp = be.array_api
    zeros = [xp.full(2, -0.0), xp.full_like(xp.ones(2), -0.0), xp.full((), -0.0, dtype=xp.float64), xp.asarray(-0.0)]
    assert all(np.signbit(x.numpy()).all() for x in zeros)
    assert not np.signbit(xp.full(2, 0.0).numpy()).any()
    assert xp.full(2, -0.0, dtype=xp.int8).tolist() == [0, 0]


# --- integers of NumPy ---

WITH_INTEGERS = """
xp.sum(x, axis=c(1)); xp.prod(x, axis=c(0)); xp.max(x, axis=c(2)); xp.min(x, axis=c(0)); xp.mean(x, axis=c(1))
xp.var(x, axis=c(1)); xp.std(x, axis=c(1)); xp.all(x, axis=c(1)); xp.any(x, axis=c(0)); xp.argmax(x, axis=c(1))
xp.argmin(x, axis=c(1)); xp.count_nonzero(x, axis=c(0)); xp.cumulative_sum(x, axis=c(1)); xp.sort(x, axis=c(1))
xp.cumulative_prod(x, axis=c(0)); xp.argsort(x, axis=c(1)); xp.diff(x, axis=c(1), n=c(2)); xp.flip(x, axis=c(0))
xp.concat([x, x], axis=c(1)); xp.stack([x, x], axis=c(1)); xp.unstack(x, axis=c(1))[1]; xp.roll(x, c(2), axis=c(1))
xp.roll(x, (c(1), c(2)), axis=(c(0), c(2))); xp.repeat(x, c(2), axis=c(1)); xp.moveaxis(x, c(1), c(0))
xp.moveaxis(x, (c(1), c(2)), (c(0), c(1))); xp.expand_dims(x, axis=c(1)); xp.expand_dims(x, axis=(c(0), c(4)))
xp.squeeze(x[:1], axis=c(0)); xp.reshape(x, (c(4), c(6))); xp.reshape(x, c(24)); xp.permute_dims(x, (c(2), c(0), c(1)))
xp.tile(x, (c(2), c(1))); xp.broadcast_to(x[0], (c(2), c(3), c(4))); xp.take(x, xp.asarray([1, 0]), axis=c(1))
xp.take_along_axis(x, xp.argsort(x, axis=c(1)), axis=c(1)); xp.linalg.vector_norm(x, axis=c(1)); xp.tril(x, k=c(1))
xp.tensordot(x, x, axes=((c(0), c(1)), (c(0), c(1)))); xp.tensordot(x, xp.reshape(x, (4, 2, 3)), axes=c(1))
xp.linalg.cross(x, x * 2 + 1, axis=c(1)); xp.linalg.trace(x, offset=c(1)); xp.linalg.diagonal(x, offset=c(1))
xp.linalg.matrix_power(xp.eye(2) * 2, c(3)); xp.zeros((c(2), c(3))); xp.ones(c(3)); xp.full(c(2), 5); xp.arange(c(5))
xp.eye(c(3), c(2), k=c(1)); xp.linspace(c(0), c(1), c(5)); x[c(1), c(2)]; x[c(0) : c(2) : c(1)]
"""
CALLS = [call for line in WITH_INTEGERS.strip().splitlines() for call in line.split("; ")]


@pytest.mark.parametrize("call", CALLS)
def test_integers_of_numpy_are_axes_sizes_and_counts(be: Backend, call: str) -> None:
    xp, values = be.array_api, np.arange(24.0).reshape(2, 3, 4)
    expected = np.asarray(eval(call, {"xp": np, "x": values, "c": int}))
    for kind in (np.int64, np.uint8, np.asarray):
        z = eval(call, {"xp": xp, "x": xp.asarray(values), "c": kind})
        assert z.dtype.kind == expected.dtype.kind
        np.testing.assert_allclose(z.numpy(), expected, rtol=1e-6)


def test_vecdot_and_roll_accept_integers_of_numpy(be: Backend) -> None:
    xp, values = be.array_api, np.arange(6.0).reshape(2, 3)
    x = xp.asarray(values)
    assert xp.vecdot(x, x, axis=np.int64(0)).tolist() == (values * values).sum(axis=0).tolist()
    assert xp.roll(x, np.int64(1)).tolist() == np.roll(values, 1).tolist()


def test_no_axis_reduces_nothing(be: Backend) -> None:
    xp, values = be.array_api, np.asarray([[1.0, 2.0], [0.0, 4.0]])
    for name in ("sum", "prod", "max", "min", "mean", "all", "any", "count_nonzero"):
        z = getattr(xp, name)(xp.asarray(values), axis=())
        assert z.tolist() == getattr(np, name)(values, axis=()).tolist() if name != "count_nonzero" else True


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


# --- axes that are refused ---

X, Y = "xp.ones((2, 3, 4))", "xp.ones((3, 4))"
REFUSED: dict[str, tuple[type[Exception], str]] = {
    f"xp.tensordot({X}, {X}, axes=4)": (ValueError, "expected 0 to 3 axes, got 4"),
    f"xp.tensordot({X}, {X}, axes=-1)": (ValueError, "expected 0 to 3 axes, got -1"),
    f"xp.tensordot({X}, {X}, axes=True)": (TypeError, "expected an integer"),
    f"xp.tensordot({X}, {X}, axes=((0, 3), (0, 1)))": (IndexError, "axis 3 is out of range"),
    f"xp.tensordot({X}, {X}, axes=((0, 0), (0, 0)))": (ValueError, "distinct axes"),
    f"xp.tensordot({X}, {X}, axes=((0, 1), (0,)))": (ValueError, "equal sizes"),
    f"xp.tensordot({X}, {X}, axes=((0,),))": (ValueError, "two sequences of axes"),
    f"xp.vecdot({X}, {X}, axis=3)": (IndexError, "vecdot: axis 3 is out of range"),
    f"xp.vecdot({X}, {X}, axis=-4)": (IndexError, "vecdot: axis -4 is out of range"),
    f"xp.vecdot({X}, {Y}, axis=-3)": (IndexError, "vecdot: axis -3 is out of range"),
    f"xp.vecdot({X}, {Y}, axis=1)": (ValueError, "expected a negative axis"),
    f"xp.vecdot({X}, {X}, axis=1.0)": (TypeError, "expected an integer"),
    f"xp.linalg.cross({X}, {X}, axis=-4)": (IndexError, "cross: axis -4 is out of range"),
    f"xp.linalg.cross({X}, {Y}, axis=0)": (ValueError, "expected a negative axis"),
    f"xp.moveaxis({X}, 3, 0)": (IndexError, "moveaxis: axis 3"),
    f"xp.moveaxis({X}, (0, 0), (1, 2))": (ValueError, "distinct axes"),
    f"xp.moveaxis({X}, (0, 1), 2)": (ValueError, "as many destinations"),
    f"xp.permute_dims({X}, (0, 1))": (ValueError, "expected all axes"),
    f"xp.permute_dims({X}, (0, 1, 1))": (ValueError, "distinct axes"),
    f"xp.roll({X}, (1, 2), axis=(0, 1, 2))": (ValueError, "one shift for each axis"),
    f"xp.roll({X}, 1.5, axis=0)": (TypeError, "roll: shift: expected an integer"),
    f"xp.roll({X}, 1, axis=3)": (IndexError, "roll: axis 3"),
    f"xp.expand_dims({X}, axis=4)": (IndexError, "expand_dims: axis 4"),
    f"xp.tile({X}, 1.5)": (TypeError, "tile: repetitions: expected an integer"),
    f"xp.reshape({X}, 24.0)": (TypeError, "reshape: shape: expected an integer"),
    f"xp.sum({X}, axis=True)": (TypeError, "expected an integer"),
    f"xp.sum({X}, axis=(0, -3))": (ValueError, "distinct axes"),
    f"xp.take({X}, xp.asarray([True]), axis=0)": (TypeError, "take: expected integers as indices"),
    f"xp.take({X}, xp.asarray([1.0]), axis=0)": (TypeError, "take: expected integers as indices"),
    f"xp.take_along_axis({X}, xp.ones((2, 3, 4)))": (TypeError, "take_along_axis: expected integers as indices"),
    f"xp.take_along_axis({X}, xp.asarray([1]))": (ValueError, "expected indices of 3 dimensions"),
    "xp.zeros((2, True))": (TypeError, "expected an integer or a sequence of integers"),
    "xp.zeros((2.0,))": (TypeError, "expected an integer or a sequence of integers"),
}


@pytest.mark.parametrize("call", REFUSED)
def test_axes_sizes_and_indices_are_checked(be: Backend, call: str) -> None:
    error, message = REFUSED[call]
    with pytest.raises(error, match=message):
        eval(call, {"xp": be.array_api})


def test_a_negative_axis_of_products_counts_from_the_end_of_both_arrays(be: Backend) -> None:
    xp, x, y = be.array_api, np.arange(24.0).reshape(2, 3, 4), np.arange(12.0).reshape(3, 4) + 1
    assert xp.vecdot(xp.asarray(x), xp.asarray(y), axis=-2).tolist() == (x * y).sum(axis=-2).tolist()
    got: Any = xp.linalg.cross(xp.asarray(x), xp.asarray(y), axis=-2)
    assert got.tolist() == np.moveaxis(np.cross(np.moveaxis(x, -2, -1), np.moveaxis(y, -2, -1)), -1, -2).tolist()
