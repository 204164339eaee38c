"""Suppress NumPy's floating-point warnings, faster than np.errstate.

Infinities and NaNs are ordinary values on every runtime. ``np.errstate`` takes longer than a small op-tree; setting the
context variable it is based on does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

# The buffer size of ufuncs for non-contiguous operands. With NumPy's default of 8192 elements, each call allocates a
# buffer of this size per operand. If the buffer is smaller than a row, NumPy iterates over the rows without buffering.
UFUNC_BUFFER_ELEMENTS = 240

try:
    from numpy._core.umath import _extobj_contextvar, _make_extobj

    _IGNORE_ALL = _make_extobj(all="ignore", bufsize=UFUNC_BUFFER_ELEMENTS)

    # suppress NumPy's floating-point warnings in this context, and return the state for ``restore_fp_errors``
    ignore_fp_errors: Callable[[], Any] = partial(_extobj_contextvar.set, _IGNORE_ALL)
    restore_fp_errors = _extobj_contextvar.reset
except ImportError:  # another NumPy version: the public, slower function

    def ignore_fp_errors() -> Any:
        """Suppress NumPy's floating-point warnings in this context; return the state for ``restore_fp_errors``."""
        state = np.errstate(all="ignore")
        state.__enter__()
        np.setbufsize(UFUNC_BUFFER_ELEMENTS)
        return state

    def restore_fp_errors(state: Any) -> None:
        """Restore the state before ``ignore_fp_errors``."""
        state.__exit__(None, None, None)


class IgnoreFPErrors:
    """Context manager that suppresses floating-point warnings: ``with IgnoreFPErrors(): ...``."""

    def __enter__(self) -> None:
        self.state = ignore_fp_errors()

    def __exit__(self, *_: object) -> None:
        restore_fp_errors(self.state)


def copy_unsafe(array: Any, values: Any) -> None:
    """Copy values into an array, cast to its dtype, without floating-point warnings."""
    state = ignore_fp_errors()
    try:
        np.copyto(array, values, casting="unsafe")
    finally:
        restore_fp_errors(state)
