"""Fixtures of the tests of kernels."""

from __future__ import annotations

import pytest
from helpers.simulated_gpu import OpByOp, simulated

from neonlite import Backend


@pytest.fixture
def sim() -> Backend:
    return simulated()


@pytest.fixture
def plain() -> Backend:
    return Backend(OpByOp(), rng_seed=1)
