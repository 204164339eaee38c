"""Floating-point warnings of NumPy are suppressed in a block or a copy, and reported again after it."""

from __future__ import annotations

import numpy as np
import pytest

from neonlite.backend.validation import UFUNC_BUFFER_ELEMENTS, IgnoreFPErrors, copy_unsafe


def divide() -> float:
    return float(np.array(1.0) / np.array(0.0))


def test_a_block_has_no_warnings_and_a_small_buffer_and_then_the_state_before():
    before = np.geterr(), np.getbufsize()
    with IgnoreFPErrors():
        assert (divide(), np.getbufsize()) == (np.inf, UFUNC_BUFFER_ELEMENTS)
    assert (np.geterr(), np.getbufsize()) == before
    with pytest.raises(RuntimeWarning, match="divide by zero"):
        divide()


def test_a_copy_casts_without_a_warning_and_restores_the_state():
    array, before = np.zeros(2, "float32"), np.geterr()
    copy_unsafe(array, np.array([1e300, 0.5]))
    assert array.tolist() == [np.inf, 0.5]
    with pytest.raises(ValueError, match="broadcast"):
        copy_unsafe(array, np.zeros(3))
    assert np.geterr() == before
