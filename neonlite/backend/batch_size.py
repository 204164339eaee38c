"""The batch size of one thread: ``with be.batch_size(n): ...``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from neonlite.backend.base import BackendBase
from neonlite.backend.validation import integer

if TYPE_CHECKING:
    from neonlite.backend.shard import Shard


DEFAULT_BATCH_SIZE = 32  # of Model.fit(X, y), and of summary() if be.bsz is not set


class BatchSize(threading.local):
    """The batch size of the current thread, None if it uses the backend's; and its shards, see ``Shard``."""

    value: int | None = None
    shard: Shard | None = None  # of a complete minibatch
    minibatch_shard: Shard | None = None  # of the current minibatch, which may be partial


def check_batch_size(n: object) -> int:
    """Return a batch size as a Python int; TypeError or ValueError otherwise."""
    return integer("be.bsz: the batch size (0 if not set)", n, 0)


def require_batch_size(be: BackendBase, where: str) -> int:
    """Return the batch size of a backend; ValueError if it is not set."""
    if not be.bsz:
        raise ValueError(
            f"{where}: expected a batch size, got none. Set it with gen_backend(batch_size=N), or be.bsz = N."
        )
    return be.bsz


class BatchSizeMethods(BackendBase):
    """The batch size of a backend."""

    @property
    def bsz(self) -> int:
        """The batch size N; 0 if it is not set."""
        value = self.thread_bsz.value
        return self._bsz if value is None else value

    @bsz.setter
    def bsz(self, n: int) -> None:
        n = check_batch_size(n)
        if self.thread_bsz.value is None:
            self._bsz = n
        else:
            self.thread_bsz.value = n

    @property
    def shard(self) -> Shard | None:
        """The columns of a complete minibatch that this process computes; None: all. See ``Communicator.sharded``."""
        return self.thread_bsz.shard

    @property
    def minibatch_shard(self) -> Shard | None:
        """The columns of the current minibatch, which may be partial, that this process computes; None: all."""
        return self.thread_bsz.minibatch_shard

    @contextmanager
    def batch_size(self, n: int) -> Iterator[None]:
        """Set ``be.bsz`` within a ``with`` block, for the current thread only.

        Parameters
        ----------
        n : int
            The batch size.
        """
        before = self.thread_bsz.value
        self.thread_bsz.value = check_batch_size(n)
        try:
            yield
        finally:
            self.thread_bsz.value = before
