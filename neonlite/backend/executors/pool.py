"""Who does the work?  A few threads that share the blocks of a stage; made when first needed, and anew after a fork."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

_pool: Any = None
_threads = 0


def threads() -> int:
    """Return how many threads share the work: as ``set_threads`` said, or OMP_NUM_THREADS, or the CPUs there are."""
    global _threads
    if not _threads:
        said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # one number a level of nesting
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        _threads = int(said) if said.isdecimal() and int(said) else available
    return _threads


def set_threads(n: int) -> None:
    """Set how many threads share the work; op-trees do not depend on it, sums inside of primitives may in last digits.

    ``n``: from 1; ValueError otherwise. It holds for the process, at once.
    """
    global _threads, _pool
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"the number of threads is a whole number from 1; got {n!r}")
    _threads, _pool = n, None  # threads of the old pool end when nobody uses it any more


def share(work: Callable[[Iterator[int]], None], count: int, workers: int = 0) -> None:
    """Call ``work`` in several threads with one iterator over range(count), which hands out each number once.

    ``workers``: how many calls; as many as there are threads unless given.
    """
    global _pool
    numbers = iter(range(count))
    pool, count_of_threads = _pool, threads()
    if pool is None:
        from concurrent.futures import ThreadPoolExecutor

        pool = _pool = ThreadPoolExecutor(max(1, count_of_threads - 1), "neonlite")
    helpers = [pool.submit(work, numbers) for _ in range((workers or count_of_threads) - 1)]
    try:
        work(numbers)
    finally:
        for _ in numbers:  # after an error, nothing is left to be started
            pass
        for helper in helpers:
            helper.result()


def _forget() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
