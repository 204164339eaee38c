"""bfloat16 support in NumPy through ml_dtypes."""

from __future__ import annotations

from neonlite.typing import NumPyArray

INSTALL_COMMAND = "pip install ml_dtypes"


def is_available() -> bool:
    """Import ml_dtypes, which registers bfloat16 with NumPy, and return whether it is installed."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def is_float_array(array: NumPyArray) -> bool:
    """Return whether a NumPy array holds floats, bfloat16 included."""
    return bool(array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def is_real_array(array: NumPyArray) -> bool:
    """Return whether a NumPy array holds real numbers or booleans."""
    return array.dtype.kind in "biu" or is_float_array(array)
