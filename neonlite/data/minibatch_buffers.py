"""Gather rows of arrays into the columns of reusable minibatch tensors.

Data is (n, F) in arrays and files, and (F, N) in a network. The source arrays keep their dtype, so uint8 images stay
uint8. The rows of a minibatch are gathered, then transposed and cast as they are written to its tensor. If tensors are
in host memory, the source arrays are not copied; otherwise they are copied to the device once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from neonlite.backend import Backend, Tensor
from neonlite.backend.planning.assignment import write_array
from neonlite.data.epoch import RowIndex, Span
from neonlite.optree import Operand

if TYPE_CHECKING:
    from neonlite.typing import LayerShape


T = TypeVar("T")


def uses_host_memory(be: Backend) -> bool:
    """Return whether NumPy can access the memory of a backend's tensors."""
    try:
        be.zeros((1, 1)).__array__(copy=False)
    except ValueError:
        return False
    return True


def scaling_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype in which inputs are scaled before they are cast to ``dtype``: float32 for 16-bit dtypes."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


class RowSource:
    """An array of n rows, flattened to (n, F), from which columns (F, m) are read.

    ``dtype``: dtype on the device if it does not support the dtype of the array; default: that of the backend.
    """

    def __init__(self, be: Backend, array: NDArray[Any], host: bool, dtype: str | None = None) -> None:
        self.be = be
        self.array = array = array.reshape(len(array), -1)
        self.tensor: Tensor | None = None
        if not host:
            is_supported = array.dtype.name in be.runtime.dtypes
            self.tensor = be.array(array, dtype=array.dtype.name if is_supported else dtype)
        self._gather_buffer = np.empty((0, array.shape[1]), array.dtype)

    def get_rows(self, rows: RowIndex) -> NDArray[Any]:
        """Return rows (m, F): a view of the data, or a buffer that the next call overwrites."""
        if isinstance(rows, slice):
            return self.array[rows]
        if len(self._gather_buffer) < len(rows):
            self._gather_buffer = np.empty((len(rows), self.array.shape[1]), self.array.dtype)
        return self.array.take(rows, axis=0, out=self._gather_buffer[: len(rows)], mode="clip")

    def get_columns(self, rows: RowIndex) -> NDArray[Any] | Operand:
        """Return rows as columns (F, m): an array, or an op-tree if the data is on a device."""
        if self.tensor is None:
            return self.get_rows(rows).T
        return self.tensor[rows].T if isinstance(rows, slice) else self.be.take(self.tensor, rows, 0).T


class BufferPool(Generic[T]):
    """Base class of the buffers that minibatches are written to: one for each number of columns, created once."""

    def __init__(self) -> None:
        self._created: dict[int, T] = {}

    def create(self, num_columns: int) -> T:
        """Return new buffers."""
        raise NotImplementedError

    def get(self, num_columns: int) -> T:
        """Return the buffers for a number of columns."""
        if num_columns not in self._created:
            self._created[num_columns] = self.create(num_columns)
        return self._created[num_columns]


class MinibatchBuffers(BufferPool[tuple[Tensor, Tensor, Any]]):
    """The tensors that minibatches of arrays are written to.

    ``shape``: F, (F, T) for T time steps, or (C, H, W). ``scale``: (factor, offset) applied to the values, or None.
    ``nclass``: the values are labels (1, N), written as one-hot columns (nclass, N).
    """

    def __init__(
        self,
        be: Backend,
        shape: LayerShape,
        name: str,
        scale: tuple[float, float] | None = None,
        nclass: int | None = None,
    ) -> None:
        super().__init__()
        self.be, self.shape, self.name, self.scale, self.nclass = be, shape, name, scale, nclass
        self._classes = np.arange(nclass or 0)[:, None]

    def create(self, num_columns: int) -> tuple[Tensor, Tensor, Any]:
        """Return a tensor, the view or buffer to write values to, and the op-tree that converts them, or None."""
        be, sizes = self.be, self.shape if isinstance(self.shape, tuple) else (self.shape,)
        shape = (sizes[0], sizes[1] * num_columns) if len(sizes) == 2 else (math.prod(sizes), num_columns)
        tensor = be.zeros((self.nclass, num_columns) if self.nclass else shape, name=self.name)
        rows = self.nclass or math.prod(sizes)  # not -1: a shard may have no columns
        target, final_tree = tensor.reshape(rows, num_columns), None
        if self.scale is not None:
            unscaled, dtype = tensor, scaling_dtype(be.default_dtype)
            if dtype != be.default_dtype:
                unscaled = be.zeros(shape, dtype=dtype.name)
                target = unscaled.reshape(target.shape)
            final_tree = unscaled * self.scale[0] + self.scale[1]
        return tensor, target, final_tree

    def fill(self, num_columns: int, parts: Iterable[tuple[slice, Any]]) -> Tensor:
        """Write each part into its columns, and return the tensor."""
        tensor, target, final_tree = self.get(num_columns)
        for columns, values in parts:
            if self.nclass:
                values = self._one_hot(values)
            part = target if columns == slice(0, num_columns) else target[:, columns]
            if isinstance(values, np.ndarray):
                write_array(self.be, part, self.be.runtime.host_values(values))
            else:
                part[:] = values
        if final_tree is not None:
            tensor[:] = final_tree
        return tensor

    def _one_hot(self, labels: NDArray[Any] | Operand) -> NDArray[Any] | Operand:
        """Return labels (1, m), which are checked, as one-hot columns."""
        if isinstance(labels, np.ndarray) and not self.be.runtime.has_device_memory:
            columns: NDArray[np.bool_] = labels == self._classes
            return columns
        return self.be.onehot(labels, axis=0, nclass=self.nclass)

    def gather(self, source: RowSource, num_columns: int, spans: list[Span]) -> Tensor:
        """Write the rows of each span into its columns, and return the tensor."""
        return self.fill(num_columns, ((columns, source.get_columns(rows)) for columns, rows in spans))
