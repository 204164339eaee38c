"""How are primitives worked out in the words of the array-API standard?  Shifted slices and matrix products."""

from __future__ import annotations

from neonlite.backend.primitives.products import Products


class Generic(Products):
    """Every primitive, for any array library: the reference that each faster one is held to."""
