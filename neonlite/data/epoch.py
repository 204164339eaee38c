"""Assignment of rows to minibatches: shuffling as a pure function of seed and epoch.

The rows are in the order of the data, or in a random permutation that is different in each epoch. The random bits come
from the backend's Philox generator "data". Their counter depends only on the epoch, the purpose and the index, and is
far beyond the counters of sequential draws. So the order is the same on every runtime, prefetching does not change it,
and training can resume at any minibatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.random import PURPOSES, philox

if TYPE_CHECKING:
    from neonlite.backend.shard import Shard

RowIndex = slice | NDArray[np.int64]
Span = tuple[slice, RowIndex]  # columns of a minibatch, and the rows of the data that they hold
RandomBits = NDArray[np.uint64]

PURPOSE_SHUFFLE, PURPOSE_AUGMENT = 0, 1  # augmentation i of a list uses PURPOSE_AUGMENT + i


def random_bits(seed: int, epoch: int, purpose: int, first: int, count: int) -> RandomBits:
    """Return random bits (count, 4), uint64, for the indices ``first`` to ``first + count - 1`` of an epoch.

    Row i is the Philox block with the counter ``(epoch + 1) 2^128 + purpose 2^64 + first + i`` of the generator "data".
    """
    block = ((epoch + 1) << 128) + (purpose << 64) + first
    return philox(seed, PURPOSES["data"], block).random_raw(4 * count).reshape(count, 4)


@lru_cache(maxsize=4)  # two for a minibatch with rows of two epochs, and two for a second iterator
def permutation(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    """Return a random permutation of 0 to n - 1 for an epoch: ``argsort(random_bits)``."""
    bits = random_bits(seed, epoch, PURPOSE_SHUFFLE, 0, -(-n // 4)).reshape(-1)[:n]
    order = bits.argsort(stable=True).astype(np.int64, copy=False)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class Epoch:
    """One pass over the data in minibatches of ``batch_size`` rows.

    The last minibatch is filled up with the first rows of the next epoch. The next epoch starts after these rows, so
    that all rows are used equally often. With ``partial_last`` the last minibatch is smaller instead, and each epoch
    starts at row 0. ``seed``: seed of the permutation; None keeps the order of the data. ``shard``: the columns of each
    minibatch that this process computes; None: all.
    """

    index: int
    start: int  # number of rows of this epoch that the last minibatch of the previous epoch used
    ndata: int
    batch_size: int
    partial_last: bool
    seed: int | None
    shard: Shard | None = None

    @property
    def nbatches(self) -> int:
        """Number of minibatches."""
        return -(-(self.ndata - self.start) // self.batch_size)

    @property
    def next_start(self) -> int:
        """Number of rows of the next epoch that the last minibatch uses."""
        return 0 if self.partial_last else self.start + self.nbatches * self.batch_size - self.ndata

    def first_row(self, k: int) -> int:
        """Return the index, in the order of the epoch, of the row of the first column of minibatch k."""
        return self.start + k * self.batch_size + self.columns(k)[0]

    def columns(self, k: int) -> tuple[int, int]:
        """Return the columns of minibatch k that this process computes, as (start, stop)."""
        width = self.global_columns(k)
        if self.shard is None:
            return 0, width
        shard = self.shard.of(width)
        return shard.start, shard.stop

    def global_columns(self, k: int) -> int:
        """Return the number of columns of minibatch k, of all processes."""
        if self.partial_last:
            return min(self.batch_size, self.ndata - self.start - k * self.batch_size)
        return self.batch_size

    def num_columns(self, k: int) -> int:
        """Return the number of columns of minibatch k, of this process."""
        start, stop = self.columns(k)
        return stop - start

    def spans(self, k: int) -> list[Span]:
        """Return the columns of minibatch k with their rows: a span for each of the epochs whose rows it has.

        Column 0 is the first column of this process.
        """
        first, n = self.first_row(k), self.num_columns(k)
        count = max(0, min(n, self.ndata - first))  # of this epoch
        spans = [(slice(0, count), self._rows(self.index, first, first + count))] if count else []
        if count < n:
            next_row = first + count - self.ndata
            spans.append((slice(count, n), self._rows(self.index + 1, next_row, next_row + n - count)))
        return spans

    def _rows(self, epoch: int, first: int, stop: int) -> RowIndex:
        return slice(first, stop) if self.seed is None else permutation(self.seed, epoch, self.ndata)[first:stop]

    def random_bits(self, purpose: int, k: int, seed: int) -> RandomBits:
        """Return random bits (columns, 4) for the columns of minibatch k."""
        first = k * self.batch_size + self.columns(k)[0]
        return random_bits(seed, self.index, purpose, first, self.num_columns(k))
