"""Arguments as numbers, integers and arrays; promotion of dtypes as in NumPy."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from helpers.parametrize import each
from helpers.runtimes import lacks_any

from neonlite.backend import Backend

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


@each("call", CALLS)
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


@each("call", REFUSED)
def test_axes_sizes_and_indices_are_checked(be: Backend, call: str) -> None:
    error, message = REFUSED[call]
    with pytest.raises(error, match=message):
        eval(call, {"xp": be.array_api})


@pytest.mark.parametrize("signed", ["int8", "int64"])
@pytest.mark.parametrize(
    "call",
    [
        *("x + y", "x * y", "x // y", "xp.maximum(x, y)", "xp.minimum(y, x)", "xp.concat([x, y])"),
        *("xp.where(xp.asarray([True, False]), x, y)", "xp.stack([y, x])", "xp.searchsorted(x, y)", "xp.matmul(x, y)"),
    ],
)
def test_uint64_with_signed_integers_gives_float64_as_in_numpy(be: Backend, call: str, signed: str) -> None:
    if lacks_any(be, "uint64"):
        return
    values = {"x": np.asarray([2**63, 2**64 - 2048], np.uint64), "y": np.asarray([1, -1], signed)}
    xp = be.array_api
    got = eval(call, {"xp": xp} | {name: xp.asarray(x) for name, x in values.items()})
    expected = eval(call, {"xp": np} | values)
    assert got.dtype == expected.dtype
    assert got.tolist() == expected.tolist()


def test_tensors_of_uint64_are_not_compared_with_signed_integers(be: Backend) -> None:
    if lacks_any(be, "uint64"):
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
