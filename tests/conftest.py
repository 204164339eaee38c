"""Every test that asks for ``be`` runs on every runtime that imports; cpu and strict always do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from neonlite import Backend, cleanup_backend, gen_backend

RUNTIMES = ["cpu", "strict"]


@pytest.fixture(params=RUNTIMES)
def be(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield gen_backend(request.param, rng_seed=1)
    cleanup_backend()


@pytest.fixture(params=RUNTIMES)
def be64(request: pytest.FixtureRequest) -> Iterator[Backend]:
    yield gen_backend(request.param, rng_seed=1, datatype=np.float64)
    cleanup_backend()


@pytest.fixture
def cpu() -> Iterator[Backend]:
    yield gen_backend("cpu", rng_seed=1)
    cleanup_backend()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
