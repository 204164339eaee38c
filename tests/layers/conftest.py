"""Fixtures of the tests of layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers.image_layers import Torch

from neonlite import Backend, cleanup_backend, gen_backend


@pytest.fixture
def cpu64() -> Iterator[Backend]:
    yield gen_backend("cpu", rng_seed=1, datatype=np.float64)
    cleanup_backend()


@pytest.fixture
def oracle() -> Torch:
    return Torch()
