"""Random draws that have the same bits on every runtime."""

from __future__ import annotations

import numpy as np

from neonlite import Backend, Tensor

DRAWS = {
    "rand": lambda be: be.rand(40, 30).astensor(),
    "rand in a tree": lambda be: (be.rand(40, 30).T * 2 - 1).astensor(),
    "randn": lambda be: be.randn((5, 2, 3)).astensor(),
    "mask": lambda be: masked(be, be.empty((40, 30)), 0.3),
    "mask of ints": lambda be: masked(be, be.empty((40, 30), dtype="int8"), 0.7),
    "mask of a view": lambda be: masked(be, be.zeros((40, 30))[::2, 5:].T, 0.5).base.base,
    "normal": lambda be: normal(be, be.empty((40, 30))),
    "binarize": lambda be: be.binarize(be.array(np.linspace(-2, 2, 900).reshape(30, 30))).astensor(),
    "host": lambda be: be.array(be.rng.uniform(size=(40, 30))),
}


def masked(be: Backend, out: Tensor, keep: float) -> Tensor:
    assert be.make_binary_mask(out, keep) is None
    return out


def normal(be: Backend, out: Tensor) -> Tensor:
    be.fill_normal(out, mean=3, stdv=0.5)
    return out
