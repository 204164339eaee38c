"""Data whose rows encode their index, the order of minibatches by a simple loop, and threads that prefetch."""

from __future__ import annotations

import threading
import time
from itertools import chain

import numpy as np

from neonlite.data.minibatches import MinibatchBuffers


def rows(n, F=2):
    """Return n rows that encode their index: row i is i, i + 0.25, ..."""
    return np.arange(n, dtype=np.float32)[:, None] + np.arange(F, dtype=np.float32) / 4


def indices(x):
    """Return the indices of the rows in a minibatch of ``rows``, whose columns must be complete rows."""
    values = x.get()
    assert (values - values[0] == np.arange(len(values))[:, None] / 4).all()
    return values[0].astype(int).tolist()


def epoch(it):
    return [indices(x) for x, _ in it]


def joined(lists):
    return list(chain.from_iterable(lists))


def in_order(n, N, epochs):
    """Return the rows of all minibatches by a simple loop: an epoch ends when its last row is used."""
    at, result = 0, []
    for e in range(epochs):
        result.append([])
        while at < (e + 1) * n:
            result[-1].append([(at + j) % n for j in range(N)])
            at += N
    return result


def textbook_order(seed, number, n):
    """Return the order by its formula: argsort of the random bits from block (number + 1) 2^128 on."""
    key = np.array([seed, 2], np.uint64)  # a list would become float64 for seeds above 2^63
    generator = np.random.Philox(key=key, counter=((number + 1) << 128) - 1)
    words = [int(word) for word in generator.random_raw(n)]
    return sorted(range(n), key=words.__getitem__)


def bits(pair):
    return [t.get().tobytes() for t in pair]


def prefetch_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("neonlite-prefetch")]


def delay_filling(monkeypatch):
    """Delay writing a minibatch until the next one is computed."""
    fill = MinibatchBuffers.fill

    def slow(self, *args):
        time.sleep(0.03)
        return fill(self, *args)

    monkeypatch.setattr(MinibatchBuffers, "fill", slow)
