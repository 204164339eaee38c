"""Format a number of bytes as text, such as 1.5 kB."""

from __future__ import annotations


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes, formatted: 1.5 kB."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"
