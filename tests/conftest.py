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
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from neonlite import Backend, cleanup_backend
from neonlite.backend import concurrency
from neonlite.ops import OPS

pytest.register_assert_rewrite("helpers")

from helpers.parametrize import SEED, VARIANTS  # noqa: E402 (after register_assert_rewrite)
from helpers.runtimes import ABSENT, RUNTIMES, new_backend  # noqa: E402

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
OTHER_RUNTIMES = {*RUNTIMES, "simulated"} - {"cpu"}
SAMPLED = 6  # the sample has one in so many tests of a function on the runtimes other than cpu


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the tests of a function by NEONLITE_TEST_SEED, before they are created: all, one, or a sample.

    Most tests on runtimes other than cpu run the same code above them on each runtime. Tests of a runtime itself, those
    in tests/backend/runtimes, are all in the sample.
    """
    calls, rng = metafunc._calls, random.Random(SEED + metafunc.definition.nodeid)
    if VARIANTS == "one" and calls:
        calls[:] = [
            rng.choice([call for call in calls if not any(mark.name == "slow" for mark in call.marks)] or calls)
        ]
    elif VARIANTS == "sample" and "runtimes" not in metafunc.definition.path.parts:
        others = [
            i for i, call in enumerate(calls) if OTHER_RUNTIMES & {x for x in call.params.values() if type(x) is str}
        ]
        num_kept = max(int(len(others) / SAMPLED + rng.random()), len(calls) == len(others) > 0)
        for i in sorted(rng.sample(others, len(others) - num_kept), reverse=True):
            del calls[i]


# pytest's option faulthandler_timeout starts and joins a thread for each test, which takes 3 ms on a busy machine
MAX_TEST_SECONDS, REARM_SECONDS = 600, 60
armed_at = -math.inf


def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the process, and print all its threads, if a test takes ten minutes."""
    global armed_at
    if time.monotonic() - armed_at > REARM_SECONDS:
        stderr = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(MAX_TEST_SECONDS, exit=True, file=stderr)
        armed_at = time.monotonic()


def pytest_collection_finish() -> None:
    gc.freeze()  # gc.collect() in a test does not visit the objects of all collected tests, which takes a second


def pytest_report_header() -> list[str]:
    sample = f"tests of a function: NEONLITE_TEST_VARIANTS={VARIANTS} NEONLITE_TEST_SEED={SEED}"
    return [f"runtimes: {', '.join(RUNTIMES)}", sample, *(f"  without {name}: {why}" for name, why in ABSENT.items())]


@pytest.fixture(params=RUNTIMES)
def be(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield new_backend(request.param)
    cleanup_backend()


@pytest.fixture(params=RUNTIMES)
def be64(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield new_backend(request.param, datatype=np.float64)
    cleanup_backend()


@pytest.fixture
def cpu() -> Iterator[Backend]:
    yield new_backend("cpu")
    cleanup_backend()


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
