"""The batch size of one thread: ``with be.batch_size(n): ...``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neonlite.backend.validation import integer

if TYPE_CHECKING:
    from neonlite.backend.backend import Backend
    from neonlite.backend.shard import Shard


DEFAULT_BATCH_SIZE = 32  # of Model.fit(X, y), and of summary() if be.bsz is not set


class BatchSize(threading.local):
    """The batch size of the current thread, None if it uses the backend's; and its shards, see ``Shard``."""

    value: int | None = None
    shard: Shard | None = None  # of a complete minibatch
    minibatch_shard: Shard | None = None  # of the current minibatch, which may be partial


@contextmanager
def batch_size(be: Backend, n: int) -> Iterator[None]:
    """Set ``be.bsz`` within a ``with`` block, for the current thread only.

    Parameters
    ----------
    n : int
        The batch size.
    """
    before = be.thread_bsz.value
    be.thread_bsz.value = check_batch_size(n)
    try:
        yield
    finally:
        be.thread_bsz.value = before


def check_batch_size(n: object) -> int:
    """Return a batch size as a Python int; TypeError or ValueError otherwise."""
    return integer("be.bsz: the batch size (0 if not set)", n, 0)


def require_batch_size(be: Backend, where: str) -> int:
    """Return the batch size of a backend; ValueError if it is not set."""
    if not be.bsz:
        raise ValueError(
            f"{where}: expected a batch size, got none. Set it with gen_backend(batch_size=N), or be.bsz = N."
        )
    return be.bsz
