"""Names, sizes, limits and promotion of dtypes; bfloat16 in NumPy through ml_dtypes."""

from __future__ import annotations

from neonlite.typing import NumPyArray

HALF_DTYPES = ("float16", "bfloat16")  # accumulated in float32
FLOAT_DTYPES = (*HALF_DTYPES, "float32", "float64")
# integers up to 2**bits are exact
SIGNIFICAND_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
INT_DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def dtype_bits(dtype: str) -> int:
    """Return the number of bits of a dtype."""
    return int(dtype.lstrip("buintfloa"))


# {integer dtype: (minimum, maximum)}
LIMITS: dict[str, tuple[int, int]] = {name: (0, 2 ** dtype_bits(name) - 1) for name in INT_DTYPES if name[0] == "u"}
LIMITS |= {
    name: (-(2 ** (dtype_bits(name) - 1)), 2 ** (dtype_bits(name) - 1) - 1) for name in INT_DTYPES if name[0] == "i"
}


def overflow_message(value: float, dtype: str) -> str:
    """Return the message for a number that does not fit an integer dtype."""
    low, high = LIMITS[dtype]
    return (
        f"expected an integer from {low} to {high} for {dtype}, got {value}. Create the tensor with another dtype, or "
        "cast it with be.astype."
    )


def promote_types(x: str, y: str) -> str:
    """Return the common dtype: the float one of a float and an integer, else the smallest that holds both.

    It is float64 for uint64 and a signed integer, as in NumPy: no integer dtype holds all values of both.
    """
    if x == y:
        return x
    if (x in FLOAT_DTYPES) != (y in FLOAT_DTYPES):
        return x if x in FLOAT_DTYPES else y
    if {x, y} == {*HALF_DTYPES}:
        return "float32"
    smaller, larger = sorted((x, y), key=dtype_bits)
    if x in FLOAT_DTYPES or smaller[0] == larger[0]:
        return larger
    signed, unsigned = (x, y) if y[0] == "u" else (y, x)
    return "float64" if unsigned == "uint64" else f"int{max(dtype_bits(signed), 2 * dtype_bits(unsigned))}"


# --- bfloat16 support in NumPy through ml_dtypes ---

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
