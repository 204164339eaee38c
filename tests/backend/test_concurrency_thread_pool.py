"""The number of threads: of the environment or of the CPUs."""

from __future__ import annotations

import os
import pickle

import pytest

from neonlite import Backend
from neonlite.backend import concurrency, set_threads

# --- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "n"), [("3", 3), (" 5 ", 5), ("7,2", 7), ("", None), ("0", None), ("many", None)])
def test_the_number_of_threads_is_that_of_the_environment_or_of_the_cpus(monkeypatch, setting, n):
    monkeypatch.setattr(concurrency, "_num_threads", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", setting)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert concurrency.get_num_threads() == (n or available)
    monkeypatch.setenv("OMP_NUM_THREADS", "11")
    assert concurrency.get_num_threads() == (n or available)  # read once
    set_threads(2)
    assert concurrency.get_num_threads() == 2


@pytest.mark.parametrize("n", [0, -1, 1.0, True, "2", None])
def test_an_invalid_number_of_threads_is_rejected(monkeypatch, n):
    monkeypatch.setattr(concurrency, "_num_threads", 4)
    with pytest.raises((TypeError, ValueError), match="expected an integer >= 1 for the number of threads, got"):
        set_threads(n)
    assert concurrency.get_num_threads() == 4


def test_a_backend_and_what_refers_to_it_are_not_pickled():
    be = Backend("cpu")
    for x in (be, be.array_api, be.plan(be.ones((2, 2)) + 1), [be]):
        with pytest.raises(TypeError, match=r"pickle: .* a backend.* model\.get_weights\(\).* t\.get\(\)"):
            pickle.dumps(x)
