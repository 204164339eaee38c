"""Recording of the compiled assignments and matrix products that a function runs, to repeat them without it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Call = Callable[[], object]


class Recording(threading.local):
    """The calls that this thread records; None while it records none."""

    calls: list[Call] | None = None


recording = Recording()


@contextmanager
def record() -> Iterator[list[Call]]:
    """Append each call of a cached assignment or a matrix product to a list, while the context is active."""
    calls: list[Call] = []
    recording.calls = calls
    try:
        yield calls
    finally:
        recording.calls = None
