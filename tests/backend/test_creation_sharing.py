"""Tests of arrays shared with other libraries: the same memory where possible, else copies."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import numpy as np
import pytest

from neonlite import Autodiff, Backend

ON_HOST = ("cpu", "mkl", "strict", "torch")  # runtimes whose arrays lie in the memory of the host


def array(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.fixture(autouse=True)
def _on_host(request):
    if "be" in request.fixturenames and request.getfixturevalue("be").name not in ON_HOST:
        pytest.skip("arrays of this runtime do not lie in the memory of the host")


# --- in ------------------------------------------------------------------------------------------------------------


def test_what_is_written_to_a_shared_tensor_is_seen_in_the_array(be):
    a = array(2, 3)
    t = be.from_dlpack(a, name="t")
    t[:] = t * 2 + 1
    np.testing.assert_array_equal(a, array(2, 3) * 2 + 1)
    a[0, 0] = -7
    assert t.get()[0, 0] == -7
    assert (t.name, t.shape, t.dtype, t.backend) == ("t", (2, 3), "float32", be)


@pytest.mark.parametrize("shape", [(), (4,), (1, 4), (2, 3, 2), (0, 3)])
def test_shared_arrays_have_at_least_two_dimensions(be, shape):
    a = array(*shape)
    t = be.from_dlpack(a)
    assert t.shape == (shape if len(shape) > 1 else (*shape, 1) if shape else (1, 1))
    np.testing.assert_array_equal(t.get().reshape(shape), a)
    t.fill(3)
    assert (a == 3).all()


@pytest.mark.parametrize("view", [lambda a: a.T, lambda a: a[1:, ::2], lambda a: a[:, 2]])
def test_views_with_gaps_are_shared_as_they_are(be, view):
    a = array(4, 6)
    t = be.from_dlpack(view(a))
    np.testing.assert_array_equal((t + 1).asnumpyarray().reshape(view(a).shape), view(a) + 1)
    expected = a.copy()
    view(expected)[...] *= 3
    t[:] = t * 3
    np.testing.assert_array_equal(a, expected)
    np.testing.assert_array_equal(t[1:].get(), t.get()[1:])


def test_shared_arrays_that_overlap_are_written_as_if_all_values_came_first(be):
    a = array(1, 6)
    whole, rest = be.from_dlpack(a), be.from_dlpack(a[:, 1:])
    rest[:] = whole[:, :-1] * 1
    np.testing.assert_array_equal(a, [[0, 0, 1, 2, 3, 4]])
    whole[:, :3], rest[:, 2:] = rest[:, :3], whole[:, :3]
    np.testing.assert_array_equal(a, [[0, 1, 2, 0, 1, 2]])


def test_a_tensor_that_comes_back_through_numpy_still_overlaps_itself(be):
    t = be.array(array(1, 6))
    back = be.from_dlpack(np.asarray(t)[:, 1:])
    back[:] = t[:, :-1] * 1
    np.testing.assert_array_equal(t.get(), [[0, 0, 1, 2, 3, 4]])
    t[:, :-1] = back + 0
    np.testing.assert_array_equal(t.get(), [[0, 1, 2, 3, 4, 4]])


def test_gradients_go_through_shared_tensors(be):
    t = be.from_dlpack(array(2, 3))
    np.testing.assert_array_equal(Autodiff(t * t, be).get_grad_asnumpyarray(t), 2 * array(2, 3))


def test_what_cannot_be_shared_is_refused_with_the_way_out(be):
    swapped = np.ones((1, 2), ">f4")
    for wrong, error, words in [
        ([[1.0]], TypeError, "expected an array with __dlpack__, got"),
        (np.ones((2, 2), bool), TypeError, "expected one of the dtypes .*, got 'bool'"),
        (np.ones((2, 2), complex), TypeError, "expected one of the dtypes .*, got 'complex128'"),
        (swapped, BufferError, "Copy it with be.array"),
    ]:
        with pytest.raises(error, match=words):
            be.from_dlpack(wrong)
    np.testing.assert_array_equal(be.array(swapped).get(), [[1, 1]])


def test_a_read_only_array_stays_as_it_is(be):
    a = array(2, 3)
    a.flags.writeable = False
    if not isinstance(be.ones((1, 1))._tensor, np.ndarray):
        with pytest.raises(BufferError, match="read-only"):
            be.from_dlpack(a)
    else:
        t = be.from_dlpack(a)
        np.testing.assert_array_equal((t * 2).asnumpyarray(), a * 2)
        for write in (lambda: t.fill(1), lambda: t.__setitem__(slice(None), t + 1)):
            with pytest.raises(ValueError, match="read-only"):
                write()
    np.testing.assert_array_equal(a, array(2, 3))


# --- out -----------------------------------------------------------------------------------------------------------


def test_numpy_sees_a_tensor_in_its_own_memory(be):
    t = be.array(array(2, 3))
    for seen in (np.asarray(t), np.array(t, copy=False), np.from_dlpack(t)):
        t.fill(0)
        assert seen.dtype == np.float32
        assert (seen == 0).all()
        t[:] = array(2, 3)
        np.testing.assert_array_equal(seen, array(2, 3))
    np.testing.assert_array_equal(np.asarray(t.T[1:]), array(2, 3).T[1:])


def test_copies_are_made_where_they_are_asked_for(be):
    t = be.array(array(2, 3))
    copies = [np.array(t), np.asarray(t, dtype=np.float64), t.get(), t.asnumpyarray(), be.array(t).get()]
    a = array(2, 3)
    made = be.array(a)
    for wanted in copies:
        wanted[...] = -1
    a[...] = -1
    np.testing.assert_array_equal(t.get(), array(2, 3))
    np.testing.assert_array_equal(made.get(), array(2, 3))
    with pytest.raises(ValueError, match=r"expected memory that NumPy can share for copy=False, .*Omit copy=False"):
        np.array(t, dtype=np.float64, copy=False)


@pytest.mark.skipif(not find_spec("torch"), reason="torch is not installed")
def test_pytorch_and_a_tensor_share_memory_both_ways(be):
    import torch

    t = be.array(array(2, 3))
    seen = torch.from_dlpack(t)
    seen += 1
    np.testing.assert_array_equal(t.get(), array(2, 3) + 1)
    other = torch.arange(6.0).reshape(2, 3)
    shared = be.from_dlpack(other)
    shared[:] = shared * 10
    assert other[1, 2] == 50
    with pytest.raises(BufferError, match=r"grad.*be\.array"):
        be.from_dlpack(torch.ones(2, 2, requires_grad=True))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_a_tensor_goes_from_backend_to_backend_by_memory_or_by_copy(be, dtype):
    other = Backend("cpu")
    t = be.array(array(2, 3), dtype=dtype)
    shared, copied = other.from_dlpack(t), other.array(t, dtype=dtype)
    t.fill(4)
    assert shared.dtype == copied.dtype == dtype
    assert (shared.get() == 4).all()
    np.testing.assert_array_equal(copied.get(), array(2, 3))


def test_assigning_an_array_copies_it_once(cpu):
    import tracemalloc

    a, t = np.ones((300, 300)), cpu.zeros((300, 300))
    t[:] = a
    tracemalloc.start()
    t[:] = a  # float64 into float32
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (t.get() == 1).all()
    assert peak < 50_000  # a copy of either kind would take 360 kB


# --- refused -------------------------------------------------------------------------------------------------------


def test_a_tensor_is_copied_deeply(be):
    t = be.array(array(2, 3), name="t")
    twin = copy.deepcopy(t)
    twin.fill(0)
    np.testing.assert_array_equal(t.get(), array(2, 3))
    assert twin.name == "t"
