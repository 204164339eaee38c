"""The tensors of minibatches, their bytes, and the tokens that they encode."""

from __future__ import annotations

import numpy as np


def flat(x):
    return [t for part in x for t in flat(part)] if isinstance(x, list | tuple) else [x]


def bits(pair):
    return [t.get().tobytes() for t in flat(pair)]


def decode(x, vocab, N):
    """The tokens of a minibatch, one list a column of it; None where there is none."""
    a = x.get()
    if len(a) == 1 and x.info.dtype == "int32":
        tokens = [vocab[i] for i in a[0]]
    else:
        assert set(a.sum(axis=0)) <= {0, 1}
        assert set(np.unique(a)) <= {0, 1}
        tokens = [vocab[c.argmax()] if c.any() else None for c in a.T]
    return [tokens[n::N] for n in range(N)]
