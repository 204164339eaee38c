"""Prefetching: compute the next minibatch in a background thread.

Reading and augmenting data then overlaps with the computation of the loop. The results and their order are those of
``map``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

Result = TypeVar("Result")


def prefetch(compute: Callable[[int], Result], steps: Sequence[int]) -> Generator[Result]:
    """Yield ``compute(k)`` for each step k; a background thread computes one step ahead of the loop.

    ``compute(k + 1)`` runs while the loop uses the result of step k, and starts after the loop has finished with that
    of step k - 1, so ``compute`` can alternate between two buffers. An exception of ``compute(k)`` is raised in the
    loop at step k. The thread ends when the generator is exhausted or closed.

    >>> list(prefetch(lambda k: k * k, range(4)))
    [0, 1, 4, 9]
    """
    from concurrent.futures import ThreadPoolExecutor

    if not steps:
        return
    with ThreadPoolExecutor(1, "neonlite-prefetch") as thread:  # leaving the block waits for the thread
        future = thread.submit(compute, steps[0])
        for k in steps[1:]:
            result = future.result()
            future = thread.submit(compute, k)
            yield result
        yield future.result()
