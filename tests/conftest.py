"""Every test that asks for ``be`` runs on every runtime that is here: cpu and strict always, others as installed.

A runtime states what it has (``dtypes``, ``negative_steps``). What it lacks is refused with a clear error, which
``lacks`` and ``refused`` assert; all the rest of a test runs on it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from neonlite import Backend, cleanup_backend, gen_backend
from neonlite.backend.runtimes import KNOWN, load

RUNTIMES = ["cpu", "strict"]
ABSENT: dict[str, str] = {}  # runtime -> why nothing runs on it

for name, package in {"mkl": "mkl", "torch": "torch", "gpu": "cupy"}.items():
    if find_spec(package) is None:
        ABSENT[name] = f"{package} is not installed"
        continue
    try:
        load(name)
        RUNTIMES.append(name)
    except (ImportError, RuntimeError) as error:
        ABSENT[name] = str(error)

if os.environ.get(
    "NEONLITE_TEST_SIMULATED"
):  # the kernels of a card, on a C++ compiler: each takes a tenth of a second
    KNOWN["simulated"] = ("neonlite.backend.cuda.simulated", "Simulated", "a C++ compiler")
    RUNTIMES.append("simulated")

os.environ["NEONLITE_WAIT"] = "1"  # errors of a card are raised at once, as elsewhere

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs: tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

if "torch" in RUNTIMES:
    import torch

    torch.set_num_threads(1)  # more of them wait for each other on a machine that is busy, a hundred times as long


def pytest_report_header() -> list[str]:
    return [f"runtimes: {', '.join(RUNTIMES)}", *(f"  without {name}: {why}" for name, why in ABSENT.items())]


@pytest.fixture(params=RUNTIMES)
def be(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield gen_backend(request.param, rng_seed=1)
    cleanup_backend()


@pytest.fixture(params=RUNTIMES)
def be64(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield gen_backend(request.param, rng_seed=1, datatype=np.float64)
    cleanup_backend()


@pytest.fixture
def cpu() -> Iterator[Backend]:
    yield gen_backend("cpu", rng_seed=1)
    cleanup_backend()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# --- what a runtime lacks ------------------------------------------------------------------------------------------


def back(be: Backend) -> int:
    """Return the step of a view that goes backwards; 1 where the runtime has no negative steps."""
    return -1 if be.runtime.negative_steps else 1


def refused(be: Backend, act: Callable[[], Any]) -> bool:
    """Do something with a view; tell whether the runtime refused it, as it must when it has no negative steps."""
    try:
        act()
    except IndexError as error:
        if be.runtime.negative_steps or f"{be.name!r} has no views with negative steps: use be.take" not in str(error):
            raise
        return True
    return False


def lacks(be: Backend, *dtypes: str) -> bool:
    """Tell whether the runtime lacks one of the dtypes, and assert that it says so."""
    lacking = set(dtypes) - set(be.runtime.dtypes)
    for dtype in lacking:
        with pytest.raises(
            TypeError, match=rf"{be.name!r} has no dtype '{dtype}'( \(.*\))?; it has {be.runtime.dtypes[0]}, "
        ):
            be.zeros((1, 1), dtype=dtype)
    return bool(lacking)
