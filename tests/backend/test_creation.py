"""Tensors are created with the values, shapes and dtypes of their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.runtimes import lacks
from helpers.tensors import holds

from neonlite import Backend, gen_backend

FLOATS = ["float16", "float32", "float64"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


# --- creating tensors ----------------------------------------------------------------------------------------------


def test_zeros_and_ones_have_those_values(be):
    holds(be.zeros((2, 3)), np.zeros((2, 3)))
    holds(be.ones((2, 3, 4), dtype="int8", name="x"), np.ones((2, 3, 4)))
    assert be.ones(3, "int8", "x").name == be.zeros(3, "int8", "x").name == be.empty(3, "int8", "x").name == "x"


@pytest.mark.parametrize(
    "values", [3, 2.5, [1, 2, 3], [[1, 2], [3, 4]], np.arange(24).reshape(2, 3, 4), np.eye(3)[::2], True, []]
)
def test_array_copies_values_into_the_default_dtype(be, values):
    t = be.array(values)
    a = np.asarray(values)
    holds(t, a if a.ndim > 1 else a.reshape(-1, 1))
    assert t.dtype == "float32"
    assert be.array(values, dtype="int32", name="n").dtype == "int32"


@pytest.mark.parametrize(
    "layout",
    [np.asfortranarray, lambda a: a.T.copy().T, lambda a: a[::-1], lambda a: np.broadcast_to(a[:1], a.shape), np.array],
)
def test_array_accepts_any_memory_order_and_returns_c_order(be, layout):
    a = layout(np.arange(600 * 500.0, dtype=np.float32).reshape(600, 500))
    t = be.array(a)
    holds(t, a)
    holds(t.reshape(-1), a.reshape(-1, 1))
    holds(be.array(t.T).reshape(-1), a.T.reshape(-1, 1))
    t[:] = t + t[0]
    holds(t, a + a[0])


def test_array_is_a_copy_also_of_tensors_and_trees(be):
    a = np.zeros((2, 2), np.float32)
    x = be.array(a)
    y, z = be.array(x, name="y"), be.array(x + 1)
    a[:] = 1
    x[:] = 2
    holds(y, np.zeros((2, 2)))
    holds(z, np.ones((2, 2)))
    assert y.name == "y"
    other = Backend("cpu", default_dtype="float64")
    assert other.array(x).dtype == "float64"
    holds(other.array(x), np.full((2, 2), 2))


@pytest.mark.parametrize("values", ["a", [[1, 2], [3]], None, object(), [1j], ["a"]])
def test_array_rejects_values_that_are_not_an_array_of_numbers(be, values):
    with pytest.raises((TypeError, ValueError), match=r"be\.array: expected (real numbers|nested lists)"):
        be.array(values)


@pytest.mark.parametrize("name", ["empty_like", "zeros_like", "ones_like"])
def test_like_functions_use_the_shape_of_tensors_and_arrays(be, name):
    like = getattr(be, name)
    x = be.ones((2, 3), dtype="int16")
    for source, shape, dtype in [
        (x, (2, 3), "int16"),
        (x.T, (3, 2), "int16"),
        (x * 2.0, (2, 3), "float32"),
        (np.ones((4, 5), "int8"), (4, 5), "float32"),
        (np.ones(4), (4, 1), "float32"),
    ]:
        t = like(source, name="t")
        assert (t.shape, t.dtype, t.name) == (shape, dtype, "t")
        assert like(source, dtype="float64").dtype == "float64"
        if name != "empty_like":
            assert (t.get() == (name == "ones_like")).all()


def test_iobuf_is_a_buffer_for_a_minibatch(be):
    with pytest.raises(ValueError, match="batch_size=N"):
        be.iobuf(3)
    be.bsz = 8
    for dim0, shape in [
        (5, (5, 8)),
        ((5,), (5, 8)),
        ((5, 3), (5, 24)),
        ([5, 3], (5, 24)),
        ((2, 3, 4), (24, 8)),
        ((1, 2, 3, 4), (24, 8)),
    ]:
        holds(be.iobuf(dim0), np.zeros(shape))
    t = be.iobuf(5, dtype="int32", name="t", parallelism="Data")
    assert (t.dtype, t.name) == ("int32", "t")
    x = be.ones((2, 2))
    assert be.iobuf(5, x=x) is x
    be.bsz = 2
    assert be.iobuf(5).shape == (5, 2)


def test_iobuf_may_use_the_memory_of_another(be):
    be.bsz = 4
    assert (be.shared_iobuf_size((3, 5), "Data"), be.shared_iobuf_size(7, None)) == (15, 7)
    pool = be.ones((30, 1))
    t = be.iobuf((5,), shared=pool, name="t")
    assert t.name == "t"
    holds(t, np.zeros((5, 4)))
    assert pool.get().sum() == 10
    t[:] = 2
    assert pool.get().sum() == 10 + 40
    with pytest.raises(ValueError, match=r"at most 30 elements, got \(8, 4\)"):
        be.iobuf(8, shared=pool)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_every_dtype_is_created_written_and_computed_with(be, dtype):
    if lacks(be, dtype):
        return
    for given in (dtype, np.dtype(dtype), np.dtype(dtype).type):
        x = be.array([[1, 2], [3, 4]], dtype=given)
        assert x.dtype == dtype
        assert x.get().dtype == dtype
    holds((x + x).astensor(), [[2, 4], [6, 8]])
    assert (x + x).astensor().dtype == dtype
    x[:] = x * 2
    holds(x, [[2, 4], [6, 8]])


def test_a_runtime_supports_float16_or_names_its_dtypes(be):
    if lacks(be, "float16"):
        with pytest.raises(TypeError, match=r"expected one of the dtypes .*, got 'float16'"):
            gen_backend(be.name, datatype=np.float16)
        return
    x = gen_backend(be.name, datatype=np.float16).array([[0.1]])
    assert x.get() == np.float16(0.1)
    assert (x * 2).astensor().dtype == "float16"


def test_cpu_supports_every_dtype_and_strict_lists_its_own():
    assert not lacks(gen_backend("cpu"), *FLOATS, *INTS)
    with pytest.raises(
        TypeError, match=r"backend 'strict': expected one of the dtypes float32, float64, .*, got 'float16'"
    ):
        gen_backend("strict").ones((2, 2), dtype=np.float16)


@pytest.mark.parametrize("dtype", ["bool", "complex64", "object", "float128", "quad", "S3", 3])
def test_a_dtype_that_a_backend_lacks_is_rejected(be, dtype):
    with pytest.raises(TypeError, match=r"expected one of the dtypes"):
        be.ones((2, 2), dtype=dtype)


def test_booleans_are_stored_as_numbers(be):
    with pytest.raises(TypeError, match="use uint8"):
        be.zeros((2, 2), dtype=bool)
    holds(be.array([[True, False]]), [[1, 0]])


@pytest.mark.parametrize("shape", [1.5, (2, 3.0), "ab", None, (2, None), True, ((2, 3), 4)])
def test_a_shape_consists_of_integers(be, shape):
    with pytest.raises(TypeError, match="expected integers as sizes, got"):
        be.zeros(shape)


@pytest.mark.parametrize("shape", [-1, (2, -3), (-1, 2)])
def test_a_size_is_not_negative(be, shape):
    with pytest.raises(ValueError, match="expected sizes >= 0"):
        be.ones(shape)


def test_the_creation_functions_of_the_guide(be):
    zeros = np.zeros((100, 100))
    empty, filled = be.empty((100, 100)), be.empty((100, 100))
    empty[:] = 0
    your = be.zeros((100, 100))
    for t in (be.zeros_like(zeros), be.array(zeros), empty, filled.fill(0), your.copy(your)):
        holds(t, zeros)
    holds(your[:, 1], np.zeros((100, 1)))
    holds(your[:, 3:10], np.zeros((100, 7)))


def test_one_element_is_formatted_as_a_number_and_several_are_rejected(be):
    x = be.array([[1.25, 2.5]])
    assert f"{x[0, 0]:.1f} {be.sum(x, axis=None):.2f}" == "1.2 3.75"
    assert f"{x}" == str(x)
    with pytest.raises(ValueError, match=r"expected one element, got .* with 2"):
        f"{x:.1f}"


def test_an_operand_of_another_backend_is_named_with_both(cpu):
    other = Backend("cpu")
    x = cpu.ones((2, 2), name="x")
    with pytest.raises(ValueError, match=r"expected operands of <backend cpu \d+>, got x \(2, 2\) on <backend"):
        other.exp(x)


# --- large integers ---


@pytest.mark.parametrize(
    "values", [[[1, 2**64 - 1]], [[2573020360226874006, 13687853399390180967]], [[2**53 + 1, 1.5]]]
)
def test_integers_of_lists_are_written_exactly(be: Backend, values: list[list[float]]) -> None:
    if lacks(be, "uint64"):
        return
    expected = [[int(x) for x in values[0]]]
    t = be.zeros((1, 2), dtype="uint64")
    t[:] = values
    assert t.get().tolist() == expected
    assert be.array(values, dtype="uint64").get().tolist() == expected
    t[:] = [[0, 0]]
    t[:, 1:] = values[0][1:]
    assert t.get().tolist() == [[0, expected[0][1]]]
    t.fill(values[0][1])
    assert t.get().tolist() == [[expected[0][1]] * 2]


@pytest.mark.parametrize("value", [[[1, 2**63]], [[-1, 2**64]], 2**63, [[np.uint64(2**63), 1]]])
def test_integers_above_int64_are_refused(be: Backend, value: Any) -> None:
    t = be.array([[3, 4]], dtype="int64")
    with pytest.raises(OverflowError, match="for int64, got"):
        t[:] = value
    with pytest.raises(OverflowError, match="for int64, got"):
        be.array(value, dtype="int64")
    assert t.get().tolist() == [[3, 4]]
