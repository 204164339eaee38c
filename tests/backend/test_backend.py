"""Several backends at a time, copies of tensors between them, and arguments that are rejected."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.runtimes import RUNTIMES

from neonlite import Backend, NervanaObject, cleanup_backend, gen_backend


@pytest.fixture(autouse=True)
def no_backend_before_and_after() -> Iterator[None]:
    cleanup_backend()
    yield
    cleanup_backend()


# --- several backends -----------------------------------------------------------------------------------------------


def test_several_backends_exist_at_a_time():
    current = gen_backend("cpu")
    backends = [current, *(Backend.allocate_backend(name) for name in ("cpu", "strict", "cpu", *RUNTIMES[2:]))]
    assert NervanaObject.be is current
    tensors = [be.array([[1.0, n]]) for n, be in enumerate(backends)]
    for _ in range(2):
        for n, (be, x) in enumerate(zip(backends, tensors, strict=True)):
            tree = be.exp(x * 2) - x
            assert tree.backend is x.backend is be
            np.testing.assert_allclose(tree.asnumpyarray(), [[np.exp(2) - 1, np.exp(2 * n) - n]], rtol=1e-5)
    with pytest.raises(ValueError, match=r"be\.array"):
        _ = tensors[0] + tensors[1]
    with pytest.raises(ValueError, match=r"be\.array"):
        tensors[0][:] = tensors[2] * 2
    cleanup_backend()
    np.testing.assert_allclose((backends[1].array(tensors[0]) + tensors[1]).asnumpyarray(), [[2, 1]])


@pytest.mark.parametrize("source", RUNTIMES)
@pytest.mark.parametrize("target", RUNTIMES)
def test_tensors_are_copied_from_backend_to_backend(source, target):
    a, b = Backend(source), Backend(target, default_dtype="float64")
    x = a.array([[1, 2], [3, 4]], name="x")
    y = b.array(x.T, name="y")
    z = b.zeros((2, 2))
    z[:] = x.get()
    x.fill(0)
    np.testing.assert_array_equal(y.get(), [[1, 3], [2, 4]])
    np.testing.assert_array_equal(z.get(), [[1, 2], [3, 4]])
    assert y.dtype == "float64"


def cases(be: Backend, few: int = 10) -> range:
    return range(100 if be.name == "cpu" else few)


# --- moving data ---------------------------------------------------------------------------------------------------


def test_copy_transpose_permutes_the_axes(be, rng):
    for _ in cases(be):
        ndim = int(rng.integers(2, 6))
        shape = tuple(int(n) for n in rng.choice([0, 1, 2, 3, 5], ndim))
        dtype = str(rng.choice(be.runtime.dtypes))
        a = be.array(rng.integers(0, 99, shape), dtype=dtype)
        axes = [int(i) for i in rng.permutation(ndim)]
        given = axes if rng.integers(2) else None
        order = axes if given else list(range(ndim))[::-1]
        out = be.zeros([shape[i] for i in order], dtype=dtype)
        flat = out.reshape(1, -1) if rng.integers(2) and out.size else out  # layers store channels in two dimensions
        assert be.copy_transpose(a, flat, given, repeat=int(rng.integers(1, 3))) is flat
        values, got = a.get(), out.get()
        for at in np.ndindex(shape):
            assert got[tuple(at[i] for i in order)] == values[at]


def test_copy_transpose_may_overwrite_its_input(be):
    x = be.array(np.arange(9).reshape(3, 3))
    be.copy_transpose(x, x)
    assert x.get().tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_copy_transpose_rejects_mismatched_arguments(be):
    with pytest.raises(
        ValueError,
        match=r"assignment to a tensor \(2, 4\): expected a value that broadcasts to \(2, 4\), got .*\(3, 2\)",
    ):
        be.copy_transpose(be.ones((2, 3)), be.ones((2, 4)))
    with pytest.raises(ValueError, match="axes"):
        be.copy_transpose(be.ones((2, 3)), be.ones((3, 2)), axes=[0, 0])
