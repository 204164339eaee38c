"""Parameters of tests: all values in ``make test-slow``, a part of them in ``make test``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

# Numbers of nodes of a deep tree; recursion fails at 1,000.
DEEP = [10_000, pytest.param(40_000, marks=pytest.mark.slow)]


def thinned(share: int, *axes: Iterable[Any]) -> list[Any]:
    """Return the cases of a product: of ``make test`` one of ``share``, in which each value occurs, the rest slow."""
    cases = itertools.product(*map(enumerate, axes))
    return [
        pytest.param(*values, marks=() if sum(places) % share == 0 else pytest.mark.slow)
        for places, values in (zip(*case, strict=True) for case in cases)
    ]


# Architectures for which kernels are compiled.
ARCHITECTURES = [
    pytest.param("sm_80", marks=pytest.mark.slow),
    "sm_90",
]
