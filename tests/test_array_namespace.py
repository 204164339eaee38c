"""The namespace of a backend, be.array_api."""

from __future__ import annotations

import numpy as np
import pytest

from neonlite.backend import Backend

# --- conversion ---


def test_the_namespace_of_a_backend_creates_arrays_on_it(be: Backend) -> None:
    other = Backend("cpu", default_dtype="float64")
    assert other.array_api.zeros(2).backend is other
    assert other.array_api.zeros(2).dtype == np.float64
    x = be.array_api.ones(2)
    assert x.__array_namespace__() is be.array_api
    for version in ("2024.12", "2025.12"):
        assert x.__array_namespace__(api_version=version).asarray(1).backend is be
    with pytest.raises(ValueError, match=r"up to 2025\.12, got '2099\.12'"):
        x.__array_namespace__(api_version="2099.12")
    assert x.__array_namespace__().__array_namespace_info__().default_dtypes()["real floating"] == np.float32
