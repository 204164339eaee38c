"""How are primitives worked out in the words of the array-API standard?  Shifted slices and matrix products."""

from __future__ import annotations

from neonlite.backend.primitives.convolution import Convolutions
from neonlite.backend.primitives.pooling import Pooling
from neonlite.backend.primitives.regions import Regions


class Generic(Convolutions, Pooling, Regions):
    """Every primitive, for any array library: the reference that each faster one is held to."""

    has_rooms = False  # whether images may lie in rooms, and convolutions add a bias themselves
    norms = False  # whether they normalize batches
    trees_apart = False  # whether op-trees do that, and sum maps, of images that lie apart: matrices (pixels, maps)
    rectifies = False  # whether ``conv_with_bias`` sees to relu
