"""Kernels of gathers and random numbers agree with NumPy."""

from __future__ import annotations

import itertools
import shutil
from typing import Any

import numpy as np
import pytest
from helpers import op_cases
from helpers.simulated_gpu import CLOSE, OpByOp, numbers, ran, simulated

from neonlite import Backend
from neonlite.backend.runtimes.cuda.simulator import SimulatedGPU
from neonlite.typing import FLOAT_DTYPES, INT_DTYPES

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")


# --- gathers and random numbers ---


@pytest.mark.parametrize("name", ["take", "onehot"])
def test_gathers(sim: Backend, name: str) -> None:
    for dtype, case in itertools.product(FLOAT_DTYPES, op_cases.CASES[name]):
        op_cases.check_value(sim, case, dtype, "tensor")


def test_indices_of_every_dtype_are_checked_before_anything_is_written(sim: Backend) -> None:
    x, out = sim.array(numbers(5, 4)), sim.zeros((2, 4)).fill(9)
    for dtype in INT_DTYPES:
        index = sim.array([[4, 1]], dtype)
        np.testing.assert_array_equal(sim.take(x, index, 0).asnumpyarray(), x.get()[[4, 1]])
        np.testing.assert_array_equal(sim.onehot(index, 0, nclass=5).asnumpyarray(), np.eye(5)[:, [4, 1]])
    for bad in ([0, 5], [-6, 0]):
        with pytest.raises(IndexError, match=f"index {bad[0] or bad[1]} is out of range for size 5"):
            out[:] = sim.take(x, bad, 0)
    with pytest.raises(IndexError, match="label -1 is out of range"):
        sim.onehot([-1, 0], 1, nclass=4, out=out)
    assert (out.get() == 9).all()


def test_an_index_out_of_range_raises_at_the_next_synchronization(monkeypatch: Any) -> None:
    monkeypatch.delenv("NEONLITE_WAIT")
    sim = simulated()
    x, out, hot = sim.array(numbers(5, 4)), sim.zeros((3, 4)).fill(9), sim.zeros((5, 3))
    for dtype, bad in [("int32", 5), ("int8", -6), ("int64", 2**40), ("uint8", 200)]:
        index = sim.array([[4, bad, 0]], dtype)
        ran(sim)
        out[:] = sim.take(x, index, 0)
        other = out * 2 + 1  # later work still runs
        (text, _), *_ = ran(sim)
        assert "report_index" in text
        words = rf"^be.take: index {bad} is out of range for size 5: expected -5 to 4; set NEONLITE_WAIT=1 in the"
        for see in (out.get, sim.runtime.synchronize, lambda: np.asarray(x), x.numpy):
            out[:] = sim.take(x, index, 0)
            with pytest.raises(IndexError, match=words):
                see()
            see()  # the error is raised once
        np.testing.assert_array_equal(out.get(), [x.get()[4], [0] * 4, x.get()[0]])
        assert other.asnumpyarray().shape == (3, 4)
    for bad in (-1, 5):
        hot[:] = sim.onehot([[1, bad, 4]], axis=0)
        with pytest.raises(IndexError, match=f"^be.onehot: label {bad} is out of range for size 5: expected 0 to 4"):
            hot.get()
        np.testing.assert_array_equal(hot.get(), np.eye(5)[:, [1, 0, 4]] * [1, 0, 1])
    hot[:] = sim.onehot([[1, 2, 9]], axis=0)
    out[:] = sim.take(x, [[7, 0, 0]], 0)
    with pytest.raises(IndexError, match="label 9"):  # the first of several
        out.get()
    for empty in (sim.zeros((5, 0)), sim.zeros((0, 4))):
        with pytest.raises(IndexError, match="index 7 is out of range"):
            sim.take(empty, [[7]], 0).asnumpyarray()


def test_a_gather_writes_its_target_directly_when_checks_are_asynchronous(monkeypatch: Any) -> None:
    monkeypatch.delenv("NEONLITE_WAIT")
    be = Backend(SimulatedGPU())
    assert be.plan(be.take(be.zeros((50, 4)), [1, 2], 0)).arena_bytes == 0


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (1, 8), (16, 16), (1, 1)], ids=str)
def test_random_numbers_have_the_bits_of_the_stream_on_every_runtime(dtype: str, shape: tuple[int, int]) -> None:
    sim, plain = simulated(dtype), Backend(OpByOp(), rng_seed=1, default_dtype=dtype)
    for _ in range(3):  # each continues the stream of the one before
        result, wanted = (be.rand(*shape).asnumpyarray() for be in (sim, plain))
        np.testing.assert_array_equal(result, wanted)
        result, wanted = (be.random_mask(*shape, keep=0.3).asnumpyarray() for be in (sim, plain))
        np.testing.assert_array_equal(result, wanted)
        result, wanted = (be.randn(*shape).asnumpyarray() for be in (sim, plain))
        np.testing.assert_allclose(
            result.astype(float), wanted.astype(float), CLOSE[dtype], 1e-14 if dtype == "float64" else 0
        )
    assert sim.rng_get_state() == plain.rng_get_state()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_normal_numbers_fill_a_tensor_in_a_kernel(dtype: str) -> None:
    sim, plain = simulated(dtype), Backend(OpByOp(), rng_seed=1, default_dtype=dtype)
    for shape, mean, stdv in [((3, 7), 0, 1), ((16, 16), -2.5, 0.25), ((1, 5), 100, 3)]:
        result, wanted = (be.empty(shape) for be in (sim, plain))
        for be, out in ((sim, result), (plain, wanted)):
            be.fill_normal(out, mean, stdv)
        close = CLOSE[dtype] / 2
        np.testing.assert_allclose(result.get().astype(float), wanted.get().astype(float), close, close * stdv)
    assert len(ran(sim)) == 3
    sim.fill_normal(part := sim.zeros((6, 8))[:, ::2], 5, 0.1)  # with gaps, and of integer dtype: as on the host
    sim.fill_normal(whole := sim.zeros((6, 8), "int32"), 50, 0.1)
    assert not ran(sim)[2:]
    assert (abs(part.get().astype(float) - 5) < 1).all()
    assert (abs(whole.get() - 50) <= 1).all()
    for columns in (4, 8):
        plain.fill_normal(plain.zeros((6, columns)))
    assert sim.rng_get_state() == plain.rng_get_state()


@pytest.mark.parametrize("first", [2**64 - 2, 2**128 - 1, 2**192 - 2, 2**256 - 3, 2**64 - 1, 5 * 2**64 - 1])
def test_the_block_counter_carries_over_all_four_words(first: int) -> None:
    values = []
    for be in (simulated(), Backend(OpByOp(), rng_seed=2**64 - 1)):
        be.gen_rng(2**64 - 1)
        be.streams._blocks["noise"] = first
        values.append(be.rand(1, 40).asnumpyarray())
    np.testing.assert_array_equal(*values)
