"""Comparison of the result of another library for arrays of neonlite with its result for NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


def compare_results(ours: Any, expected: Any) -> None:
    """Raise AssertionError unless arrays are arrays of neonlite, and all dtypes and values agree with NumPy's."""
    if isinstance(expected, dict):
        assert ours.keys() == expected.keys()
        for key, value in expected.items():
            compare_results(ours[key], value)
    elif isinstance(expected, tuple | list):
        assert len(ours) == len(expected)
        for x, y in zip(ours, expected, strict=True):
            compare_results(x, y)
    elif isinstance(expected, np.ndarray | np.generic):
        if type(ours).__name__ != "Array":
            raise AssertionError(f"expected an Array, got {type(ours).__name__}")
        expected = np.asarray(expected)
        assert ours.shape == expected.shape, f"shape {ours.shape}, NumPy's {expected.shape}"
        assert ours.dtype == expected.dtype, f"dtype {ours.dtype}, NumPy's {expected.dtype}"
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-7, atol=1e-10)
    elif isinstance(expected, float):
        np.testing.assert_allclose(ours, expected, rtol=1e-7, atol=1e-10)
    else:
        assert ours == expected, f"{ours!r}, NumPy's {expected!r}"
