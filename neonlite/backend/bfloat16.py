"""Does NumPy know bfloat16?  Once ml_dtypes is imported, which is done where a bfloat16 may come, and not before."""

from __future__ import annotations

from typing import Any

PIP = "pip install ml_dtypes"


def is_known() -> bool:
    """Tell whether there are arrays of bfloat16: whether ml_dtypes is installed. It is imported."""
    try:
        import ml_dtypes  # noqa: F401 - NumPy knows the name from now on
    except ImportError:
        return False
    return True


def holds_floats(array: Any) -> bool:
    """Tell whether an array of NumPy's holds floats; bfloat16 is of no kind that NumPy has."""
    return bool(array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def holds_numbers(array: Any) -> bool:
    """Tell whether an array of NumPy's holds real numbers."""
    return array.dtype.kind in "biu" or holds_floats(array)
