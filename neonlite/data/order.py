"""Which rows make which minibatch?  A pure function of the epoch: nothing is replayed to find it again.

The order is that of the data, or a permutation, a new one for each epoch. It comes from the backend's stream "data" at
a place that the epoch's number gives, far beyond where draws in sequence come. So it is the same on every runtime, a
thread that works ahead shifts nothing, and a run that stopped goes on with the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.random import PURPOSES, philox

Rows = slice | NDArray[np.int64]
Piece = tuple[slice, Rows]  # columns of a minibatch, and the rows of the data that stand there

ORDER, AUGMENT = 0, 1  # what words are for; a list of augmentations goes on from AUGMENT


def words(seed: int, epoch: int, what: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return random words for ``count`` places of an epoch from ``first``.

    Formula: row i is block ``(epoch + 1) 2^128 + what 2^64 + first + i`` of the stream "data".

    **Shapes**: (count, 4), uint64.
    """
    block = ((epoch + 1) << 128) + (what << 64) + first
    return philox(seed, PURPOSES["data"], block).random_raw(4 * count).reshape(count, 4)


@lru_cache(maxsize=4)  # a minibatch across the end of an epoch needs two of them, a second iterator two more
def permutation(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    """Return the numbers 0 to n - 1 in the random order of an epoch: ``argsort(words)``."""
    order = words(seed, epoch, ORDER, 0, -(-n // 4)).reshape(-1)[:n].argsort(stable=True).astype(np.int64, copy=False)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class Epoch:
    """One pass over the data, in minibatches of ``size`` rows.

    The last one is filled up with the first rows of the next epoch, which then starts behind them; so each row comes
    as often as any other. With ``ragged`` it stays narrow, and the next epoch starts at 0. ``seed``: that of the
    order; None leaves the data as they are.
    """

    number: int
    start: int  # how many rows the epoch before has had of this one
    ndata: int
    size: int
    ragged: bool
    seed: int | None

    @property
    def nbatches(self) -> int:
        """How many minibatches there are."""
        return -(-(self.ndata - self.start) // self.size)

    @property
    def next_start(self) -> int:
        """How many rows of the next epoch the last minibatch takes."""
        return 0 if self.ragged else self.start + self.nbatches * self.size - self.ndata

    def width(self, k: int) -> int:
        """Return how many columns minibatch k has."""
        return min(self.size, self.ndata - self.start - k * self.size) if self.ragged else self.size

    def pieces(self, k: int) -> list[Piece]:
        """Return which columns of minibatch k are which rows: one piece, or two across the end of the epoch."""
        first = self.start + k * self.size
        here = min(self.size, self.ndata - first)
        pieces = [(slice(0, here), self._rows(self.number, first, first + here))]
        if here < self.width(k):
            pieces.append((slice(here, self.size), self._rows(self.number + 1, 0, self.size - here)))
        return pieces

    def _rows(self, number: int, first: int, stop: int) -> Rows:
        return slice(first, stop) if self.seed is None else permutation(self.seed, number, self.ndata)[first:stop]

    def words(self, what: int, k: int, seed: int) -> Any:
        """Return four random words for each column of minibatch k: (columns, 4)."""
        return words(seed, self.number, what, k * self.size, self.width(k))
