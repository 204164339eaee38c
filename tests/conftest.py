"""Fixtures: a test with the fixture ``be`` runs on every installed runtime, cpu and strict always.

A runtime states what it supports (``dtypes``, ``supports_negative_strides``). What it does not support raises a clear
error, which ``lacks`` and ``refused`` assert; the rest of a test runs on it.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from neonlite import Backend, cleanup_backend
from neonlite.backend import thread_pool

pytest.register_assert_rewrite("helpers")

from helpers.runtimes import ABSENT, RUNTIMES, new_backend  # noqa: E402 (after register_assert_rewrite)

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


ABOVE_BACKEND = tuple(
    f"neonlite.{name}" for name in ("callbacks", "data", "initializers", "layers", "models", "optimizers", "transforms")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``variant`` what ``make test`` leaves to CI, and as ``quick`` what ``make test-quick`` runs."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        runtime = params.get("be", params.get("be64", "cpu"))
        if runtime != "cpu" and imports_layers(item.module):
            item.add_marker("variant")
        elif not item.get_closest_marker("slow"):
            functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    seed = os.environ.get("NEONLITE_TEST_SEED", "0")
    for name, variants in functions.items():
        random.Random(seed + name).choice(variants).add_marker("quick")


@cache
def imports_layers(module: ModuleType) -> bool:
    """Return whether a test module imports layers, models or other code that is written against the Backend alone."""
    return any(
        str(getattr(value, "__module__", None) or getattr(value, "__name__", "")).startswith(ABOVE_BACKEND)
        for value in vars(module).values()
    )


def pytest_report_header() -> list[str]:
    return [f"runtimes: {', '.join(RUNTIMES)}", *(f"  without {name}: {why}" for name, why in ABSENT.items())]


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
def threads() -> Iterator[Callable[[int], None]]:
    """Return the function that sets the number of threads, which is restored."""
    before = thread_pool.get_num_threads()
    yield thread_pool.set_threads
    thread_pool.set_threads(before)
