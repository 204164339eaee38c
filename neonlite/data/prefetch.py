"""What is done while a minibatch is in use?  The next one is worked out, by a thread.

That pays where reading or changing data takes time and the loop is busy elsewhere. Nothing depends on the thread: the
results are those of ``map``, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

Result = TypeVar("Result")


def ahead(work: Callable[[int], Result], steps: Sequence[int]) -> Generator[Result]:
    """Yield ``work(k)`` for each step k, one step ahead of the loop, by a thread.

    ``work(k + 1)`` runs while the result of step k is in use, and begins when that of step k - 1 no longer is: two
    buffers in turns are enough. What ``work`` raises is raised in the loop, at its step. The thread ends with the
    loop, also with one that is abandoned.

    >>> list(ahead(lambda k: k * k, range(4)))
    [0, 1, 4, 9]
    """
    from concurrent.futures import ThreadPoolExecutor

    if not steps:
        return
    with ThreadPoolExecutor(1, "neonlite-prefetch") as thread:  # it waits for its thread, whatever ends the loop
        result = thread.submit(work, steps[0])
        for k in steps[1:]:
            made = result.result()
            result = thread.submit(work, k)
            yield made
        yield result.result()
