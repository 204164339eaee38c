"""What the tests of oneDNN's primitives share: marks, and shapes of random layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neonlite.backend.runtimes.onednn import bindings

Array = np.ndarray[Any, Any]


HERE = bindings.get_library()


needs = pytest.mark.skipif(HERE is None, reason=bindings.version_info())


counts = pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])


every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return rng.standard_normal(shape).astype(dtype)


def near(got: Array, wanted: Array, case: Any, ulps: int = 64) -> None:
    tolerance = ulps * np.finfo(got.dtype).eps * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance, err_msg=repr(case))


def ops_of(plan: Any) -> list[Any]:
    """Return the ops that a plan computes, in order."""
    return [plan.step_of(v).op for stage in plan.stages for v in stage.steps]
