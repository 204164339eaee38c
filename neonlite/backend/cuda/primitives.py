"""Which primitives does a card work out by itself?  Those with kernels or a library of their own; the rest is Generic.

Batch normalization, softmax, dropout and look-ups are op-trees, which become kernels anyway.
"""

from __future__ import annotations

from typing import Any

from neonlite.backend.bfloat16 import is_known
from neonlite.backend.cuda.cudnn import CudnnConvolutions
from neonlite.backend.cuda.launching import kernels_are_on
from neonlite.backend.cuda.primitives_images import ImagePrimitives
from neonlite.backend.cuda.primitives_scatter import ScatterPrimitives
from neonlite.backend.primitives.generic import Generic


class Primitives(CudnnConvolutions, ImagePrimitives, ScatterPrimitives):
    """Primitives on a card. Halves are computed in float32, and rounded once."""


def equip(runtime: Any) -> None:
    """Give a runtime the primitives of a card, unless kernels are switched off, and bfloat16 where NumPy knows it."""
    runtime.primitives, runtime.halves = (Primitives, True) if kernels_are_on() else (Generic, False)
    runtime.dtypes += ("bfloat16",) * is_known()
