"""Creation functions: integers and numbers of lists keep their values."""

from __future__ import annotations

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
