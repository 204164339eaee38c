"""The constants that benchmarks/thresholds.py measures exist, and each changes what is called."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

pytest.importorskip("threadpoolctl")
import thresholds
from thresholds import CASES, CONSTANTS, HIGH, THRESHOLDS, Threshold

from neonlite.backend import concurrency
from neonlite.backend.runtimes.onednn.bindings import get_library

THREADS_ALONE = "chain threads"  # changes the number of threads of a call, and no call
SEEN = [case for case in THRESHOLDS if not case.where.isdigit() and case.constant != THREADS_ALONE]


def calls(run: Callable[[], object]) -> Counter[str]:
    """Return how often each function is called by the third run of some work."""
    count: Counter[str] = Counter()

    def record(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            count[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            count[function.__qualname__] += 1

    run()
    run()
    sys.setprofile(record)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_each_constant_exists_and_is_measured() -> None:
    assert {case.constant for case in CASES} == set(CONSTANTS)
    for constant in CONSTANTS:
        with thresholds.restored(constant) as value:
            assert isinstance(value, int)
            assert value > 0


@pytest.mark.parametrize("constant", ["chain cost", "sigmoid", "bprop channels"])
def test_a_constant_is_set_and_restored_also_after_an_error(constant: str) -> None:
    get_value, set_value = thresholds.accessors(constant)
    value = get_value()

    def fail() -> None:
        with thresholds.restored(constant):
            set_value(HIGH)
            assert get_value() == HIGH
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert get_value() == value


def test_a_constant_that_has_been_renamed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONSTANTS, "chain cost", (CONSTANTS["chain cost"][0], "MIN_COST"))
    with pytest.raises(AttributeError, match="MIN_COST"):
        thresholds.accessors("chain cost")


@pytest.fixture
def without_onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("NEONLITE_ONEDNN", "0")
        get_library.cache_clear()
        yield
    get_library.cache_clear()


@pytest.mark.parametrize("case", SEEN, ids=lambda case: f"{case.constant}, {case.work}, {case.where}")
def test_the_other_way_runs_on_both_sides_of_each_threshold(
    case: Threshold, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.where == "NumPy":
        request.getfixturevalue("without_onednn")
    elif get_library() is None:
        pytest.skip("oneDNN is not installed")
    monkeypatch.setattr(concurrency, "_num_threads", case.threads[0])
    with thresholds.restored(case.constant) as value:
        for size, other in zip(case.sizes[1:3], (case.low, HIGH), strict=True):
            chosen, forced = (thresholds.forced(case.constant, x, case.create, size, "cpu") for x in (value, other))
            assert calls(chosen) != calls(forced), size
