"""How do rows of data become columns of a tensor?  Data is (n, F) on disk and in arrays, and (F, N) in a network.

Rows stay as they are given, in their own dtype: bytes stay bytes. A minibatch is gathered row by row, which reads
memory in long runs, and transposed and cast while it is written. Where tensors lie in the memory of the host, the data
does too, and is not copied; else it lies on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Backend, Tensor
from neonlite.data.order import Piece, Rows


def on_host(be: Backend) -> bool:
    """Tell whether a backend's tensors lie in memory that NumPy sees."""
    try:
        be.zeros((1, 1)).__array__(copy=False)
    except ValueError:
        return False
    return True


class Source:
    """An array of n rows, of which columns (F, m) are asked for; F numbers a row, whatever its shape."""

    def __init__(self, be: Backend, array: NDArray[Any], host: bool) -> None:
        self.be = be
        self.array = array = array.reshape(len(array), -1)
        self.tensor: Tensor | None = None
        if not host:
            kept = array.dtype.name in be.runtime.dtypes
            self.tensor = be.array(array, dtype=array.dtype.name if kept else None)
        self._taken = np.empty((0, array.shape[1]), array.dtype)  # where rows are gathered

    def rows(self, rows: Rows) -> NDArray[Any]:
        """Return rows (m, F): of the data itself, or of a buffer that the next call overwrites."""
        if isinstance(rows, slice):
            return self.array[rows]
        if len(self._taken) < len(rows):
            self._taken = np.empty((len(rows), self.array.shape[1]), self.array.dtype)
        return self.array.take(rows, axis=0, out=self._taken[: len(rows)], mode="clip")

    def columns(self, rows: Rows) -> Any:
        """Return rows as columns (F, m): an array, or an op-tree where the data lies on a device."""
        if self.tensor is None:
            return self.rows(rows).T
        return self.tensor[rows].T if isinstance(rows, slice) else self.be.take(self.tensor, rows, 0).T


class Columns:
    """The tensors that minibatches are written into: for each number of columns the same one, every time.

    ``shape``: F, (F, T) for T time steps, or (C, H, W). ``scale``: (factor, offset) for what is written, or None.
    ``nclass``: what is written are labels (1, N), to be one-hot (nclass, N).
    """

    def __init__(
        self, be: Backend, shape: Any, name: str, scale: tuple[float, float] | None = None, nclass: int | None = None
    ) -> None:
        self.be, self.shape, self.name, self.scale, self.nclass = be, shape, name, scale, nclass
        self._made: dict[int, tuple[Tensor, Tensor, Any]] = {}

    def _make(self, width: int) -> tuple[Tensor, Tensor, Any]:
        """Return a tensor, the view or buffer (rows, width) to write to, and what is then worked out in the tensor."""
        if width not in self._made:
            be, sizes = self.be, self.shape if isinstance(self.shape, tuple) else (self.shape,)
            shape = (sizes[0], sizes[1] * width) if len(sizes) == 2 else (math.prod(sizes), width)
            tensor = be.zeros((self.nclass, width) if self.nclass else shape, name=self.name)
            target = tensor.reshape(math.prod(sizes), width) if self.nclass is None else be.zeros(shape, dtype="int32")
            then = be.onehot(target, axis=0, nclass=self.nclass) if self.nclass else None
            if self.scale is not None:
                then = tensor * self.scale[0] + self.scale[1]
            self._made[width] = tensor, target, then
        return self._made[width]

    def fill(self, width: int, parts: Iterable[tuple[slice, Any]]) -> Tensor:
        """Write each part into its columns, and return the tensor."""
        tensor, target, then = self._make(width)
        for columns, values in parts:
            (target if columns == slice(0, width) else target[:, columns])[:] = values
        if then is not None:
            tensor[:] = then
        return tensor

    def gather(self, source: Source, width: int, pieces: list[Piece]) -> Tensor:
        """Write rows of a source into their columns, and return the tensor."""
        return self.fill(width, ((columns, source.columns(rows)) for columns, rows in pieces))
