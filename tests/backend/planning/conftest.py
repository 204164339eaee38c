"""Fixtures of the tests of plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers.runtimes import RUNTIMES

import neonlite.backend.planning.assignment as run_module
from neonlite import Backend
from neonlite.backend.planning import Plan
from neonlite.backend.runtimes import onednn
from neonlite.backend.runtimes.numpy import stages as stages_module, templates


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Return the list of all plans that are made during a test."""
    plans: list[Plan] = []

    class Counted(Plan):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            plans.append(self)

    monkeypatch.setattr(run_module, "Plan", Counted)
    return plans


@pytest.fixture
def threads(threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return the function that sets the number of threads, which share also cheap work."""
    monkeypatch.setattr(stages_module, "MIN_THREADED_COST", 0)
    return threads


@pytest.fixture(params=[*RUNTIMES, "blocks of 8", "blocks of 30"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, threads: Any) -> Backend:
    """Return a backend of each kind; in small blocks every path of the blocked executor is taken by small tensors."""
    if request.param in RUNTIMES:
        return Backend(request.param)
    threads(3)
    whole, block, run, align, threaded = {"8": (4, 8, 2, 2, 16), "30": (31, 30, 4, 1, 60)}[request.param.split()[-1]]
    for name, value in {
        "MAX_UNTILED_ELEMENTS": whole,
        "BLOCK_ELEMENTS": block,
        "MIN_LAST_AXIS_ELEMENTS": run,
        "ALIGNMENT_BYTES": align,
        "MIN_THREADED_ELEMENTS": threaded,
    }.items():
        monkeypatch.setattr(stages_module, name, value)
    monkeypatch.setattr(stages_module, "MAX_BLOCK_ELEMENTS", 2 * block)
    monkeypatch.setattr(stages_module, "MAX_SHARED_ELEMENTS", 4 * block)
    monkeypatch.setattr(onednn, "MIN_CHAIN_COST", 1)
    monkeypatch.setattr(onednn, "MIN_EXACT_CHAIN_ELEMENTS", 1)
    for name, value in {
        "MIN_ELEMENTS": 1,
        "MIN_CHUNK_ELEMENTS": 2,
        "MAX_UNSPLIT_ELEMENTS": 3,
        "UNEVEN_CHUNK_ELEMENTS": 5,
    }.items():
        monkeypatch.setattr(templates, name, value)
    templates.even_chunk_size.cache_clear()
    return Backend("cpu")
