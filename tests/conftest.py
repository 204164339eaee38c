"""Fixtures: a test with the fixture ``be`` runs on every installed runtime, cpu and strict always.

A runtime states what it supports (``dtypes``, ``supports_negative_strides``). What it does not support raises a clear
error, which ``lacks`` and ``refused`` assert; the rest of a test runs on it.
"""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import random
import signal
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.doctest import DoctestModule
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from neonlite import Backend, backend
from neonlite.backend import concurrency
from neonlite.ops import OPS

pytest.register_assert_rewrite("helpers")

from helpers.parametrize import OTHER_RUNTIMES, SAMPLED, SEED, VARIANTS  # noqa: E402 (after register_assert_rewrite)
from helpers.runtimes import ABSENT, RUNTIMES, new_backend  # noqa: E402

gc.set_threshold(20_000)  # with Python's 700, the garbage collector takes a tenth of the time of all tests
os.environ["NEONLITE_WAIT"] = "1"  # errors of a GPU are raised immediately, as elsewhere

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs: tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "torch" in RUNTIMES:
    import torch

    torch.set_num_threads(1)  # more of them wait for each other on a machine that is busy, a hundred times as long


# Hypothesis draws the same examples in each run of "fixed"; of "random", from the seed of --hypothesis-seed.
settings.register_profile(
    "fixed", derandomize=True, deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
settings.register_profile("random", settings.get_profile("fixed"), derandomize=False)
settings.load_profile("fixed")


if VARIANTS not in ("all", "sample", "one"):
    raise pytest.UsageError(f"NEONLITE_TEST_VARIANTS: expected all, sample or one, got {VARIANTS!r}")
TESTS = Path(__file__).parent
MIN_SLOW = 2  # of the slow tests of a function, the sample has at least so many


def is_slow(call: Any) -> bool:
    return any(mark.name == "slow" for mark in call.marks)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the tests of a function by NEONLITE_TEST_SEED, before they are created: all, one, or a sample.

    Most tests on runtimes other than cpu run the same code above them on each runtime. Tests of a runtime itself, those
    in tests/backend/runtimes, are all in the sample, except slow ones.
    """
    calls, rng = metafunc._calls, random.Random(SEED + metafunc.definition.nodeid)
    if VARIANTS == "one" and calls:
        calls[:] = [rng.choice([call for call in calls if not is_slow(call)] or calls)]
    elif VARIANTS == "sample":
        samples_cases = getattr(metafunc.function, "samples_cases", False)
        if not samples_cases and "runtimes" not in metafunc.definition.path.parts:
            others = [call for call in calls if OTHER_RUNTIMES & {x for x in call.params.values() if type(x) is str}]
            keep_some(calls, others, int(len(calls) == len(others) > 0), rng)
        slow = calls if metafunc.definition.get_closest_marker("slow") else filter(is_slow, calls)
        keep_some(calls, [*slow], MIN_SLOW, rng)


def keep_some(calls: list[Any], some: list[Any], at_least: int, rng: random.Random) -> None:
    """Remove some calls of a test function except one in SAMPLED of them."""
    num_kept = min(max(int(len(some) / SAMPLED + rng.random()), at_least), len(some))
    removed = {id(call) for call in rng.sample(some, len(some) - num_kept)}
    calls[:] = [call for call in calls if id(call) not in removed]


# pytest's option faulthandler_timeout starts and joins a thread for each test, which takes 3 ms on a busy machine
MAX_TEST_SECONDS, REARM_SECONDS = 600, 60
armed_at = -math.inf


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget the backend of the last test; end the process, and print all its threads, if a test takes ten minutes."""
    global armed_at
    backend._current_backend = None  # fixtures of a module have tensors on it: it is not closed
    if time.monotonic() - armed_at > REARM_SECONDS:
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(MAX_TEST_SECONDS, exit=True, file=stderr)
        gc.collect()
        gc.freeze()  # the objects in caches, too
        armed_at = time.monotonic()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Search only the package and the pages for doctests: in all tests, this would take a second."""
    collectors = yield
    return [x for x in collectors if TESTS not in file_path.parents or not isinstance(x, DoctestModule)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the long tests first, so that no process waits for another at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    gc.freeze()  # the garbage collector does not visit the objects of all collected tests, which takes a second


def pytest_report_header() -> list[str]:
    sample = f"tests of a function: NEONLITE_TEST_VARIANTS={VARIANTS} NEONLITE_TEST_SEED={SEED}"
    return [f"runtimes: {', '.join(RUNTIMES)}", sample, *(f"  without {name}: {why}" for name, why in ABSENT.items())]


@pytest.fixture(params=RUNTIMES)
def be(request: pytest.FixtureRequest) -> Backend:
    return new_backend(request.param)


@pytest.fixture(params=RUNTIMES)
def be64(request: pytest.FixtureRequest) -> Backend:
    return new_backend(request.param, datatype=np.float64)


@pytest.fixture
def cpu() -> Backend:
    return new_backend("cpu")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def own() -> Iterator[Callable[..., Any]]:
    """Define ops that are gone after the test."""
    defined: list[str] = []

    def define(name: str, *rules: Any, **options: Any) -> Any:
        method = Backend.define_op(name, *rules, **options)
        defined.append(name)
        return method

    yield define
    for name in defined:
        del OPS[name]
        delattr(Backend, name)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Return the function that sets the number of threads, which is restored."""
    before = concurrency.get_num_threads()
    yield concurrency.set_threads
    concurrency.set_threads(before)
