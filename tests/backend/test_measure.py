"""Histograms and timing marks."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from helpers.runtimes import back, lacks

from neonlite import Backend
from neonlite.typing import FLOAT_DTYPES

Array = np.ndarray[Any, Any]


def cases(be: Backend, few: int = 10) -> range:
    return range(100 if be.name == "cpu" else few)


# --- histograms ----------------------------------------------------------------------------------------------------


def counted(values: Array, bins: int = 64, offset: int = -48) -> list[int]:
    """Return how many values have each magnitude, one by one."""
    counts = [0] * bins
    for v in values.reshape(-1).tolist():
        if math.isnan(v):
            continue
        if v == 0:
            place = 0
        elif math.isinf(v):
            place = bins - 1
        else:
            place = min(max(round(math.log2(abs(v))) - offset, 0), bins - 1)
        counts[place] += 1
    return counts


def magnitudes(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Return values of many magnitudes, none where rounding decides about its bin; some are 0, infinite and NaN."""
    if "int" in dtype:
        sign = 1 if dtype[0] == "u" else rng.choice([-1, 1], shape)
        return sign * rng.choice([0, 1, 2, 3, 4, 6, 7, 8, 12, 64, 127], shape)
    low, high = {"float16": (-13, 15), "bfloat16": (-120, 120), "float32": (-120, 120), "float64": (-900, 900)}[dtype]
    exponents = rng.integers(low, high, shape) + rng.uniform(-0.45, 0.45, shape)
    values = rng.choice([-1, 1], shape) * 2.0**exponents
    return np.where(rng.random(shape) < 0.3, rng.choice([0, -0.0, math.inf, -math.inf, math.nan], shape), values)


@pytest.mark.parametrize("dtype", [*FLOAT_DTYPES, "int8", "uint8", "int32", "int64"])
def test_a_histogram_counts_magnitudes_in_powers_of_two(be, rng, dtype):
    if lacks(be, dtype):
        return
    for n in cases(be, 4):
        shape = tuple(rng.choice([0, 1, 2, 3, 7, 11], rng.integers(2, 4)))
        x = be.array(magnitudes(rng, shape, dtype), dtype=dtype)
        view = x.T if n % 2 else x[:: back(be)]
        got = view.hist("x")
        assert got is be.hist_buf["x"]
        assert (got.shape, got.info.dtype) == ((1, 64), "int32")
        assert got.get()[0].tolist() == counted(x.get())


def test_zero_is_in_the_lowest_bin_infinity_in_the_highest_and_nan_in_none(be):
    x = be.array([[0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, 2.0**-48, 2.0**-60, 2.0**15, 2.0**100]])
    counts = x.hist("x").get()[0]
    assert {i: int(n) for i, n in enumerate(counts) if n} == {0: 4, 48: 2, 49: 1, 63: 4}


def test_doubles_are_counted_beyond_the_range_of_floats(be):
    be.set_hist_buffers(5, 498)
    x = be.array(2.0 ** np.array([[-1000, 497, 498, 499, 500, 501, 502, 503, 1000]]), dtype="float64")
    assert x.hist("x").get().tolist() == [[3, 1, 1, 1, 3]]
    assert x.hist("x").get()[0].tolist() == counted(x.get(), 5, 498)


def test_a_tag_holds_its_latest_histogram_and_a_dump_takes_all_of_them(be, rng):
    x, y = (be.array(magnitudes(rng, (13, 7), "float32")) for _ in range(2))
    of_x, of_y = counted(x.get()), counted(y.get())
    y.hist("first")
    y.hist("second")
    x.hist("first")
    data, rows = be.dump_hist_data()
    assert (data.shape, data.info.dtype, rows) == ((2, 64), "int32", {"first": 0, "second": 1})
    assert data.get().tolist() == [of_x, of_y]
    y.hist("third")
    assert data.get().tolist() == [of_x, of_y]  # a dumped histogram does not change
    data, rows = be.dump_hist_data()
    assert (data.get().tolist(), rows) == ([of_y], {"third": 0})
    data, rows = be.dump_hist_data()
    assert (data.shape, rows, be.hist_buf) == ((0, 64), {}, {})


@pytest.mark.parametrize(("bins", "offset"), [(1, 0), (8, -4), (100, -90), (7, 3)])
def test_bins_and_their_offset_may_be_chosen(be, rng, bins, offset):
    x = be.array(magnitudes(rng, (20, 9), "float32"))
    x.hist("before")
    be.set_hist_buffers(bins, offset)
    assert (be.hist_buf, be.hist_bins, be.hist_offset) == ({}, bins, offset)
    x.hist("after")
    data, rows = be.dump_hist_data()
    assert (data.get().tolist(), rows) == ([counted(x.get(), bins, offset)], {"after": 0})
    assert (Backend.hist_bins, Backend.hist_offset) == (64, -48)  # of other backends


@pytest.mark.parametrize("bad", [(0, 0), (-1, 0), (True, 0), (2.5, 0), (8, 1.5), (8, None)])
def test_bins_and_their_offset_are_integers(cpu, bad):
    with pytest.raises((TypeError, ValueError), match=r"be.set_hist_buffers: expected an integer.* for hist_\w+, got"):
        cpu.set_hist_buffers(*bad)


def test_two_backends_have_separate_histograms(cpu):
    other = Backend("cpu")
    cpu.ones((2, 2)).hist("x")
    other.set_hist_buffers(2, 0)
    assert (list(cpu.hist_buf), other.hist_buf, cpu.hist_bins) == (["x"], {}, 64)


# --- time ----------------------------------------------------------------------------------------------------------


def test_the_time_between_two_marks_is_in_milliseconds(be):
    start, end = be.init_mark(), be.init_mark()
    before = time.perf_counter()
    be.record_mark(start)
    time.sleep(0.02)
    be.record_mark(end)
    be.synchronize_mark(end)
    most = (time.perf_counter() - before) * 1e3
    assert 19 < be.get_time(start, end) <= most
    assert be.get_time(end, start) == -be.get_time(start, end)


def test_a_mark_waits_for_pending_work(cpu, monkeypatch):
    waits: list[int] = []
    monkeypatch.setattr(type(cpu.runtime), "synchronize", lambda self: waits.append(1))
    cpu.record_mark(mark := cpu.init_mark())
    cpu.synchronize_mark(mark)
    assert len(waits) == 2


def test_a_mark_that_was_not_recorded_has_no_time(be):
    start, end = be.init_mark(), be.init_mark()
    be.record_mark(start)
    for marks in ((start, end), (end, start)):
        with pytest.raises(
            ValueError,
            match=r"be.get_time: expected two recorded marks, got one that is not. Call be.record_mark first",
        ):
            be.get_time(*marks)
