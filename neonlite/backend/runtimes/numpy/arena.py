"""ArenaSlot, the location of an array in the arena of a thread."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.planning.buffers import align_bytes
from neonlite.ops.shapes import Shape
from neonlite.typing import NumPyArray as Array


class ArenaSlot(NamedTuple):
    """The offset, shape and dtype of an array in an arena."""

    offset: int
    shape: Shape
    dtype: str | np.dtype[Any]

    @property
    def end(self) -> int:
        """The offset after this array, aligned."""
        return self.offset + align_bytes(self.nbytes)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def view(self, arena: Array) -> Array:
        """Return the array as a view of an arena."""
        array: Array = arena[self.offset : self.offset + self.nbytes].view(self.dtype).reshape(self.shape)
        return array
