"""The thread pool: its size, and a parallel loop over indices.

The pool is created when it is first used, and again after a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

from neonlite.backend.validation import integer

_pool: Any = None
_num_threads = 0


def get_num_threads() -> int:
    """Return the number of threads: that of ``set_threads``, else OMP_NUM_THREADS, else the available CPUs.

    Returns
    -------
    int
        The number of threads.
    """
    global _num_threads
    if not _num_threads:
        env_value = (
            os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        )  # OMP_NUM_THREADS may list one number per nesting level
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        _num_threads = int(env_value) if env_value.isdecimal() and int(env_value) else available
    return _num_threads


def set_threads(n: int) -> None:
    """Set the number of threads of this process.

    Results of op-trees do not depend on it; sums inside of primitives may differ in the last digits.

    Parameters
    ----------
    n : int
        The number of threads, at least 1.

    Raises
    ------
    ValueError
        ``n`` is less than 1.
    """
    global _num_threads, _pool
    _num_threads = integer("the number of threads", n)
    _pool = None  # the threads of the old pool end once it is no longer referenced


def parallel_for(work: Callable[[Iterator[int]], None], count: int, workers: int = 0) -> None:
    """Call ``work`` in several threads with one shared iterator over range(count), which yields each index once.

    Parameters
    ----------
    work : callable
        Called with the iterator of indices.
    count : int
        The number of indices.
    workers : int, optional
        The number of calls; the number of threads by default.
    """
    global _pool
    indices = iter(range(count))
    pool, num_threads = _pool, get_num_threads()
    if pool is None:
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(max(1, num_threads - 1), "neonlite")
        are_started = Event()
        try:  # start all threads, as one that fails to start later would leave a part of the work done
            for _ in range(num_threads - 1):
                pool.submit(are_started.wait)
        finally:
            are_started.set()
        _pool = pool
    futures = [pool.submit(work, indices) for _ in range((workers or num_threads) - 1)]
    try:
        work(indices)
    finally:
        for _ in indices:  # after an error, skip the remaining indices
            pass
        errors = [future.exception() for future in futures]  # waits for all of them, so none writes after an error
    for error in filter(None, errors):
        raise error


def _reset_after_fork() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
