"""Measure the allocations of a call: the buffers of NumPy, and the peak of all memory."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np


def buffers(run: Callable[[], Any]) -> list[int]:
    """Return the sizes of the NumPy buffers of more than 2 kB that exist at a call or return of anything in a run.

    A snapshot takes long; one is taken where there is more memory in use than at the event before.
    """
    found: list[int] = []
    before = 0
    of_numpy = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)

    def look(frame: Any, event: str, arg: Any) -> None:
        nonlocal before
        if tracemalloc.get_traced_memory()[0] >= before + 1000:
            traces = tracemalloc.take_snapshot().filter_traces([of_numpy]).traces
            found.extend(trace.size for trace in traces if trace.size > 2048)
        before = tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    sys.setprofile(look)
    try:
        run()
    finally:
        sys.setprofile(None)
        tracemalloc.stop()
    return found


def peak(run: Callable[[], Any]) -> int:
    """Return the most bytes, of all kinds, that a run had at once: it sees what lives between two calls, too."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
