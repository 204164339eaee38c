"""Assignment of rows to minibatches: shuffling as a pure function of seed and epoch.

The rows are in the order of the data, or in a random permutation that is different in each epoch. The random bits come
from the backend's Philox generator "data". Their counter depends only on the epoch, the purpose and the index, and is
far beyond the counters of sequential draws. So the order is the same on every runtime, prefetching does not change it,
and training can resume at any minibatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.random import PURPOSES, philox

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
    starts at row 0. ``seed``: seed of the permutation; None keeps the order of the data.
    """

    index: int
    start: int  # number of rows of this epoch that the last minibatch of the previous epoch used
    ndata: int
    batch_size: int
    partial_last: bool
    seed: int | None

    @property
    def nbatches(self) -> int:
        """Number of minibatches."""
        return -(-(self.ndata - self.start) // self.batch_size)

    @property
    def next_start(self) -> int:
        """Number of rows of the next epoch that the last minibatch uses."""
        return 0 if self.partial_last else self.start + self.nbatches * self.batch_size - self.ndata

    def num_columns(self, k: int) -> int:
        """Return the number of columns of minibatch k."""
        if self.partial_last:
            return min(self.batch_size, self.ndata - self.start - k * self.batch_size)
        return self.batch_size

    def spans(self, k: int) -> list[Span]:
        """Return the columns of minibatch k with their rows: one span, or two if it has rows of two epochs."""
        first = self.start + k * self.batch_size
        count = min(self.batch_size, self.ndata - first)
        spans = [(slice(0, count), self._rows(self.index, first, first + count))]
        if count < self.num_columns(k):
            rest = self.batch_size - count
            spans.append((slice(count, self.batch_size), self._rows(self.index + 1, 0, rest)))
        return spans

    def _rows(self, epoch: int, first: int, stop: int) -> RowIndex:
        return slice(first, stop) if self.seed is None else permutation(self.seed, epoch, self.ndata)[first:stop]

    def random_bits(self, purpose: int, k: int, seed: int) -> RandomBits:
        """Return random bits (columns, 4) for the columns of minibatch k."""
        return random_bits(seed, self.index, purpose, k * self.batch_size, self.num_columns(k))
