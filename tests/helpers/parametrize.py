"""Parameters of tests: all values in ``make test-slow``, a part of them in ``make test``."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

SEED = os.environ.get("NEONLITE_TEST_SEED", "0")
VARIANTS = os.environ.get("NEONLITE_TEST_VARIANTS", "sample")
NUM_PARTS = 3

T = TypeVar("T")


def part(trials: Sequence[T], key: str, n: int, num_parts: int = NUM_PARTS) -> Sequence[T]:
    """Return the trials of a test, in random order: one of several parts, or all with NEONLITE_TEST_VARIANTS=all.

    Tests that differ in one parameter, such as the dtype, pass one key, which seeds the order, and successive numbers
    n: together they run all trials.
    """
    if VARIANTS == "all":
        return trials
    return random.Random(SEED + key).sample(trials, len(trials))[n % num_parts :: num_parts] or trials


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
