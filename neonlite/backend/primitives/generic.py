"""How are primitives worked out in the words of the array-API standard?  Shifted slices and matrix products."""

from __future__ import annotations

import math

from neonlite.backend.primitives.convolution import Convolutions
from neonlite.backend.primitives.pooling import Pooling
from neonlite.backend.primitives.regions import Regions


class Generic(Convolutions, Pooling, Regions):
    """Every primitive, for any array library: the reference that each faster one is held to."""

    has_rooms = False  # whether images may lie in rooms, and convolutions add a bias and sum errors themselves
    moments_from: float = math.inf  # columns from which ``moments`` has mean and variance of rows in one pass
