"""Fixtures of the tests of oneDNN."""

from __future__ import annotations

import pytest

from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.runtimes import load_runtime
from neonlite.backend.runtimes.onednn import bindings, convolution


@pytest.fixture
def made() -> convolution.OneDNNConvolution:
    """Return the primitives with an empty cache."""
    bindings.primitives.clear()
    return convolution.OneDNNConvolution(load_runtime("cpu"))


@pytest.fixture
def plain() -> ReferencePrimitives:
    return ReferencePrimitives(load_runtime("cpu"))
