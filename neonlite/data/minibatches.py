"""Minibatches: the order of rows, buffers, prefetching, random augmentation, and preprocessing that a model saves."""

from __future__ import annotations

import copy
import math
import mmap
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from neonlite import messages, optree, typing
from neonlite.backend import Backend, Tensor
from neonlite.backend.batch_size import Shard
from neonlite.backend.planning.assignment import write_array
from neonlite.backend.random import PURPOSES, philox
from neonlite.backend.validation import check_boolean_fields, check_keys, check_number, function, integer, pair

RowIndex = slice | NDArray[np.int64]
Span = tuple[slice, RowIndex]  # columns of a minibatch, and the rows of the data that they hold
RandomBits = NDArray[np.uint64]

PURPOSE_SHUFFLE, PURPOSE_AUGMENT = 0, 1  # augmentation i of a list uses PURPOSE_AUGMENT + i


def random_bits(seed: int, epoch: int, purpose: int, first: int, count: int) -> RandomBits:
    """Return random bits (count, 4), uint64, for the indices ``first`` to ``first + count - 1`` of an epoch.

    Row i is the Philox block with the counter ``(epoch + 1) 2^128 + purpose 2^64 + first + i`` of the generator "data".
    """
    block = ((epoch + 1) << 128) + (purpose << 64) + first
    return philox(seed, PURPOSES["data"], block).random_raw(4 * count).reshape(count, 4)


@lru_cache(maxsize=4)  # two for a minibatch with rows of two epochs, and two for a second iterator
def permutation(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    """Return a random permutation of 0 to n - 1 for an epoch: ``argsort(random_bits)``."""
    bits = random_bits(seed, epoch, PURPOSE_SHUFFLE, 0, -(-n // 4)).reshape(-1)[:n]
    order = bits.argsort(stable=True).astype(np.int64, copy=False)
    order.flags.writeable = False
    return order


WINDOW_BLOCKS = 64  # blocks of a file whose rows are shuffled together
BLOCK_BYTES = 1 << 20  # of a block: neighboring rows, which are read at once


@lru_cache(maxsize=4)  # two for a minibatch with rows of two windows, and two for a second iterator
def shuffle_window(seed: int, epoch: int, n: int, block_rows: int, window: int) -> NDArray[np.int64]:
    """Return the rows of a window in a random order: those of ``WINDOW_BLOCKS`` random blocks of n rows.

    The last window also has the rows that are left.
    """
    width = WINDOW_BLOCKS * block_rows
    blocks = permutation(seed, epoch, n // block_rows)[window * WINDOW_BLOCKS :]
    is_last = window == n // width - 1
    rows = (blocks[: None if is_last else WINDOW_BLOCKS, None] * block_rows + np.arange(block_rows)).reshape(-1)
    rows = np.concatenate([rows, np.arange(n - n % block_rows, n)]) if is_last else rows
    order = random_bits(seed, epoch, PURPOSE_SHUFFLE, n + window * width, len(rows))[:, 0].argsort(stable=True)
    rows = rows[order]
    rows.flags.writeable = False
    return rows


@dataclass(frozen=True)
class Epoch:
    """One pass over the data in minibatches of ``batch_size`` rows.

    The last minibatch is filled up with the first rows of the next epoch. The next epoch starts after these rows, so
    that all rows are used equally often. With ``partial_last`` the last minibatch is smaller instead, and each epoch
    starts at row 0. ``seed``: seed of the permutation; None keeps the order of the data. ``shard``: the columns of each
    minibatch that this process computes; None: all. ``block_rows``: the rows of a block of a file; 0: data in memory.

    Rows of files are shuffled by blocks: the blocks are permuted, and then the rows of each window of
    ``WINDOW_BLOCKS`` blocks. Those of a minibatch are in the order of the file, so that each process reads a part of
    the blocks. Files of less than two windows are shuffled as data in memory.
    """

    index: int
    start: int  # number of rows of this epoch that the last minibatch of the previous epoch used
    ndata: int
    batch_size: int
    partial_last: bool
    seed: int | None
    shard: Shard | None = None
    block_rows: int = 0

    @property
    def nbatches(self) -> int:
        """Number of minibatches."""
        return -(-(self.ndata - self.start) // self.batch_size)

    @property
    def next_start(self) -> int:
        """Number of rows of the next epoch that the last minibatch uses."""
        return 0 if self.partial_last else self.start + self.nbatches * self.batch_size - self.ndata

    def first_row(self, k: int) -> int:
        """Return the index, in the order of the epoch, of the row of the first column of minibatch k."""
        return self.start + k * self.batch_size + self.columns(k)[0]

    def columns(self, k: int) -> tuple[int, int]:
        """Return the columns of minibatch k that this process computes, as (start, stop)."""
        width = self.global_columns(k)
        if self.shard is None:
            return 0, width
        shard = self.shard.of(width)
        return shard.start, shard.stop

    def global_columns(self, k: int) -> int:
        """Return the number of columns of minibatch k, of all processes."""
        if self.partial_last:
            return min(self.batch_size, self.ndata - self.start - k * self.batch_size)
        return self.batch_size

    def num_columns(self, k: int) -> int:
        """Return the number of columns of minibatch k, of this process."""
        start, stop = self.columns(k)
        return stop - start

    def spans(self, k: int) -> list[Span]:
        """Return the columns of minibatch k with their rows: a span for each of the epochs whose rows it has.

        Column 0 is the first column of this process.
        """
        first, n = self.first_row(k), self.num_columns(k)
        count = max(0, min(n, self.ndata - first))  # of this epoch
        ends = self._ends(k)
        spans = [(slice(0, count), self._rows(self.index, first, first + count, ends[0]))] if count else []
        if count < n:
            next_row = first + count - self.ndata
            spans.append((slice(count, n), self._rows(self.index + 1, next_row, next_row + n - count, ends[1])))
        return spans

    def _ends(self, k: int) -> list[tuple[int, int]]:
        """Return first and last index + 1 of the rows of minibatch k, of all processes, in this epoch and the next."""
        first = self.start + k * self.batch_size
        stop = first + self.global_columns(k)
        return [(first, min(stop, self.ndata)), (0, max(stop - self.ndata, 0))]

    def _rows(self, epoch: int, first: int, stop: int, ends: tuple[int, int]) -> RowIndex:
        if self.seed is None:
            return slice(first, stop)
        if not self._num_windows:
            return permutation(self.seed, epoch, self.ndata)[first:stop]
        width = WINDOW_BLOCKS * self.block_rows
        parts = [self._window(epoch, w)[max(ends[0] - w * width, 0) : ends[1] - w * width] for w in self._windows(ends)]
        return np.sort(np.concatenate(parts))[first - ends[0] : stop - ends[0]]

    # --- rows of files ---

    @property
    def _num_windows(self) -> int:
        """The number of windows in which rows are shuffled; 0 if all rows are shuffled together."""
        count = self.ndata // (WINDOW_BLOCKS * self.block_rows) if self.block_rows and self.seed is not None else 0
        return count if count > 1 else 0

    def _window(self, epoch: int, window: int) -> NDArray[np.int64]:
        return shuffle_window(self.seed or 0, epoch, self.ndata, self.block_rows, window)

    def _windows(self, ends: tuple[int, int]) -> range:
        first, last = (
            min(i // (WINDOW_BLOCKS * self.block_rows), self._num_windows - 1) for i in (ends[0], ends[1] - 1)
        )
        return range(first, last + 1)

    def windows(self, k: int) -> set[tuple[int, int]]:
        """Return the windows of minibatch k, as (epoch, index)."""
        if not self._num_windows:
            return set()
        ends = [(self.index + i, ends) for i, ends in enumerate(self._ends(k)) if ends[0] < ends[1]]
        return {(epoch, window) for epoch, pair in ends for window in self._windows(pair)}

    def window_rows(self, epoch: int, window: int) -> NDArray[np.int64]:
        """Return the rows of a window in the order of the file, about those that this process reads."""
        rows = np.sort(self._window(epoch, window))
        start, stop = (0, len(rows)) if self.shard is None else self.shard.of(len(rows))[:2]
        return rows[start:stop]

    def random_bits(self, purpose: int, k: int, seed: int) -> RandomBits:
        """Return random bits (columns, 4) for the columns of minibatch k."""
        first = k * self.batch_size + self.columns(k)[0]
        return random_bits(seed, self.index, purpose, first, self.num_columns(k))


# --- prefetching: compute the next minibatch in a background thread ---

Result = TypeVar("Result")


def prefetch(compute: Callable[[int], Result], steps: Sequence[int]) -> Generator[Result]:
    """Yield ``compute(k)`` for each step k; a background thread computes one step ahead of the loop.

    ``compute(k + 1)`` runs while the loop uses the result of step k, and starts after the loop has finished with that
    of step k - 1, so ``compute`` can alternate between two buffers. An exception of ``compute(k)`` is raised in the
    loop at step k. The thread ends when the generator is exhausted or closed.

    >>> list(prefetch(lambda k: k * k, range(4)))
    [0, 1, 4, 9]
    """
    from concurrent.futures import ThreadPoolExecutor

    if not steps:
        return
    with ThreadPoolExecutor(1, "neonlite-prefetch") as thread:  # leaving the block waits for the thread
        future = thread.submit(compute, steps[0])
        for k in steps[1:]:
            result = future.result()
            future = thread.submit(compute, k)
            yield result
        yield future.result()


# --- gather rows of arrays into the columns of reusable minibatch tensors ---

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


class MappedArray:
    """Rows of files, one file after another, which are read to memory when they are indexed.

    ``ArrayIterator``, and ``fit``, ``predict`` and ``evaluate`` of a ``Model``, read the rows of one minibatch at a
    time. ``np.asarray`` reads all.

    Parameters
    ----------
    files : str, Path, numpy.ndarray, or a list of them
        The paths of .npy files, or memory-mapped arrays, as of ``np.memmap`` or ``np.load(path, mmap_mode="r")``.

    Attributes
    ----------
    shape : tuple
        (n, ...), with n the number of rows of all files.
    dtype : numpy.dtype
        The dtype.

    Raises
    ------
    ValueError
        If there are no rows, or those of the files have several shapes or dtypes.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from neonlite.data import MappedArray
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/0.npy", np.ones((2, 3), np.uint8))
    >>> np.save(f"{folder}/1.npy", np.zeros((4, 3), np.uint8))
    >>> MappedArray([f"{folder}/0.npy", f"{folder}/1.npy"])
    MappedArray((6, 3), uint8)
    """

    def __init__(self, files: str | Path | NDArray[Any] | Sequence[str | Path | NDArray[Any]]) -> None:
        paths = files if isinstance(files, list | tuple) else [files]
        self.parts = [np.load(x, mmap_mode="r") if isinstance(x, str | Path) else np.asarray(x) for x in paths]
        kinds = [f"{x.dtype} {('n', *x.shape[1:])}" for x in self.parts]
        if len({*kinds}) != 1 or not all(x.size and x.dtype.kind in "iuf" for x in self.parts):
            got = ", ".join({*kinds}) or "no file"
            raise ValueError(f"MappedArray: expected files with rows of numbers, of one shape and dtype, got {got}.")
        self.starts = np.cumsum([0, *map(len, self.parts)])
        self.dtype, self.shape = self.parts[0].dtype, (int(self.starts[-1]), *self.parts[0].shape[1:])
        self.block_rows = max(1, BLOCK_BYTES // self.parts[0][:1].nbytes)
        self._functions: tuple[Callable[[NDArray[Any]], NDArray[Any]], ...] = ()
        self._selected: NDArray[np.intp] | None = None

    def __repr__(self) -> str:
        return f"MappedArray({self.shape}, {self.dtype})"

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def __getitem__(self, rows: RowIndex) -> NDArray[Any]:
        """Return a copy of rows: of a slice, or of an array of indices."""
        index = self._indices(rows)
        order = index.argsort(stable=True)
        ends = np.searchsorted(index[order], self.starts)
        values = np.empty((len(index), *self.parts[0].shape[1:]), self.parts[0].dtype)
        for part, start, i, j in zip(self.parts, self.starts[:-1], ends[:-1], ends[1:], strict=True):
            if i < j:
                values[order[i:j]] = part[index[order[i:j]] - start]
                if (mapping := mapping_of(part)) is not None and hasattr(mapping, "madvise"):
                    mapping.madvise(mmap.MADV_DONTNEED)  # the file stays in the cache of the system
        for apply in self._functions:
            values = apply(values)
        return values

    def _indices(self, rows: RowIndex) -> NDArray[np.intp]:
        index = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        return index if self._selected is None else self._selected[index]

    def map(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> MappedArray:
        """Return the rows after a function, which is applied to the rows that are read.

        Parameters
        ----------
        function : callable
            A function of an array of any number of rows.
        """
        result = copy.copy(self)
        result._functions = (*self._functions, function)
        first = result[:1]
        result.dtype, result.shape = first.dtype, (len(self), *first.shape[1:])
        return result

    def select(self, rows: NDArray[np.intp]) -> MappedArray:
        """Return some of the rows.

        Parameters
        ----------
        rows : numpy.ndarray
            Their indices.
        """
        result = copy.copy(self)
        result._selected, result.shape = self._indices(rows), (len(rows), *self.shape[1:])
        return result

    def read_ahead(self, rows: NDArray[np.int64]) -> None:
        """Let the system start to read rows into its cache.

        Parameters
        ----------
        rows : numpy.ndarray
            Their indices, ascending.
        """
        index = self._indices(rows)
        ends = np.searchsorted(index, self.starts)
        for part, start, i, j in zip(self.parts, self.starts[:-1], ends[:-1], ends[1:], strict=True):
            mapping = mapping_of(part)
            if i == j or mapping is None or not hasattr(mapping, "madvise"):
                continue
            address = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
            offset, stride = part.__array_interface__["data"][0] - address, part.strides[0]
            for run in np.split(index[i:j], np.flatnonzero(np.diff(index[i:j]) > 1) + 1):
                first, stop = (offset + int(row - start) * stride for row in (run[0], run[-1] + 1))
                for position in range(max(first, 0) // ADVISED_BYTES * ADVISED_BYTES, stop, ADVISED_BYTES):
                    mapping.madvise(mmap.MADV_WILLNEED, position, min(ADVISED_BYTES, len(mapping) - position))


ADVISED_BYTES = 1 << 17  # at once: Linux reads no more than its read-ahead size, by default this one


def mapping_of(array: object) -> mmap.mmap | None:
    """Return the memory-mapped file that an array is a view of; None for other arrays, and for copies on write."""
    mode = "r"
    while isinstance(array, np.ndarray):
        mode, array = getattr(array, "mode", mode), array.base
    return array if isinstance(array, mmap.mmap) and mode != "c" else None


class RowSource:
    """An array of n rows, flattened to (n, F), from which columns (F, m) are read.

    ``dtype``: dtype on the device if it does not support the dtype of the array; default: that of the backend.
    ``check``: called with the rows (m, F) that are read from a file, and their indices.
    """

    def __init__(
        self,
        be: Backend,
        array: NDArray[Any] | MappedArray,
        host: bool,
        dtype: str | None = None,
        check: Callable[[NDArray[Any], RowIndex], None] | None = None,
    ) -> None:
        self.be, self.check = be, check
        self.tensor: Tensor | None = None
        self.mapped = array.map(lambda x: x.reshape(len(x), -1)) if isinstance(array, MappedArray) else None
        flat: Any = self.mapped if isinstance(array, MappedArray) else array.reshape(len(array), -1)
        self.array = flat
        if not host and self.mapped is None:
            is_supported = flat.dtype.name in be.runtime.dtypes
            self.tensor = be.array(flat, dtype=flat.dtype.name if is_supported else dtype)
        self._gather_buffer = np.empty((0, flat.shape[1]), flat.dtype)

    def get_rows(self, rows: RowIndex) -> NDArray[Any]:
        """Return rows (m, F): a view of the data, or a buffer that the next call overwrites."""
        if self.mapped is not None:
            values = self.mapped[rows]
            if self.check is not None:
                self.check(values, rows)
            return values
        if isinstance(rows, slice):
            return self.array[rows]
        if len(self._gather_buffer) < len(rows):
            self._gather_buffer = np.empty((len(rows), self.array.shape[1]), self.array.dtype)
        return self.array.take(rows, axis=0, out=self._gather_buffer[: len(rows)], mode="clip")

    def get_columns(self, rows: RowIndex) -> NDArray[Any] | optree.Operand:
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
        shape: typing.LayerShape,
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

    def _one_hot(self, labels: NDArray[Any] | optree.Operand) -> NDArray[Any] | optree.Operand:
        """Return labels (1, m), which are checked, as one-hot columns."""
        if isinstance(labels, np.ndarray) and not self.be.runtime.has_device_memory:
            columns: NDArray[np.bool_] = labels == self._classes
            return columns
        return self.be.onehot(labels, axis=0, nclass=self.nclass)

    def gather(self, source: RowSource, num_columns: int, spans: list[Span]) -> Tensor:
        """Write the rows of each span into its columns, and return the tensor."""
        return self.fill(num_columns, ((columns, source.get_columns(rows)) for columns, rows in spans))


# --- random image augmentation: flips, crops and shifts ---

Images = NDArray[Any]
Augmentation = Callable[[Images, NDArray[np.uint64]], Images]


def bounded_integers(random_bits: RandomBits, n: int) -> NDArray[np.int64]:
    """Map each random uint64 x to an integer from 0 to n - 1: ``floor(floor(x / 2^32) n / 2^32)``."""
    return ((random_bits >> 32) * np.uint64(n) >> 32).astype(np.int64)


@dataclass(frozen=True)
class Flip:
    """Mirror images left to right with probability ``p``.

    Parameters
    ----------
    p : float
        Probability that an image is mirrored; default: 0.5.

    Raises
    ------
    ValueError
        If ``p`` is not between 0 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> Flip(p=1.0)(np.array([[[[1, 2, 3]]]]), np.zeros((1, 4), np.uint64)).tolist()
    [[[[3, 2, 1]]]]
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        check_number("Flip: p", self.p, 0, at_most=1)

    def __call__(self, images: Images, random_bits: RandomBits) -> Images:
        """Return the images, some of them mirrored.

        Parameters
        ----------
        images : numpy.ndarray
            Images (n, C, H, W).
        random_bits : numpy.ndarray
            Random bits (n, 4), uint64.

        Returns
        -------
        numpy.ndarray
            Images (n, C, H, W).
        """
        mirrored = (random_bits[:, 0] >> 32) < math.ceil(self.p * 2**32)
        result = images.copy()
        result[mirrored] = images[mirrored][..., ::-1]
        return result


@dataclass(frozen=True)
class Crop:
    """Crop a window at a random offset from images, after padding them.

    Parameters
    ----------
    pad : int
        Pixels added on each side before cropping; default: 0.
    size : int or (int, int), optional
        Height and width of the window, or one integer for both; default: the size of the images.
    fill : float
        Value of the padding; default: 0.
    random : bool
        Whether offsets are random, all equally likely; False crops the center, as for validation. Default: True.

    Raises
    ------
    TypeError, ValueError
        If ``pad`` is not a non-negative integer, ``size`` not positive integers, or ``fill`` not a finite number.

    Examples
    --------
    >>> import numpy as np
    >>> Crop(size=1, random=False)(np.arange(9).reshape(1, 1, 3, 3), np.zeros((1, 4), np.uint64)).tolist()
    [[[[4]]]]
    """

    pad: int = 0
    size: int | tuple[int, int] | None = None
    fill: float = 0
    random: bool = True

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_boolean_fields(self)
        integer(f"{name}: pad", self.pad, 0)
        check_number(f"{name}: fill", self.fill)
        if self.size is not None:
            pair(f"{name}: size", self.size)

    def window(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the height and width of the window.

        Parameters
        ----------
        shape : tuple of int
            Shape of the images, (..., H, W).

        Returns
        -------
        (int, int)
            Height and width.

        Raises
        ------
        ValueError
            If the window is larger than the padded images.
        """
        height, width = shape[-2:]
        if self.size is not None:
            height, width = pair(f"{type(self).__name__}: size", self.size)
        if height > shape[-2] + 2 * self.pad or width > shape[-1] + 2 * self.pad:
            raise ValueError(
                f"{type(self).__name__}: expected a window that fits into images {shape[-2]} x {shape[-1]} with "
                f"padding {self.pad}, got {height} x {width}. Reduce size, or increase pad."
            )
        return height, width

    def __call__(self, images: Images, random_bits: RandomBits) -> Images:
        """Return a window of each image.

        Parameters
        ----------
        images : numpy.ndarray
            Images (n, C, H, W).
        random_bits : numpy.ndarray
            Random bits (n, 4), uint64.

        Returns
        -------
        numpy.ndarray
            Images (n, C, height, width).
        """
        n, c, h, w = images.shape
        height, width = self.window(images.shape)
        p = self.pad
        padded = np.full((n, c, h + 2 * p, w + 2 * p), self.fill, images.dtype)
        padded[:, :, p : p + h, p : p + w] = images
        max_offsets = padded.shape[2] - height, padded.shape[3] - width
        if self.random:
            tops, lefts = (bounded_integers(random_bits[:, i], max_offsets[i] + 1) for i in (0, 1))
        else:
            tops, lefts = (np.full(n, m // 2) for m in max_offsets)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
        return windows[np.arange(n), :, tops, lefts]


class Shift(Crop):
    """Shift images by a random offset, vertically and horizontally.

    Parameters
    ----------
    max_pixels : int
        Largest offset in each direction, in pixels; all offsets up to it are equally likely.
    fill : float
        Value of the pixels that are uncovered at the edges; default: 0.
    """

    def __init__(self, max_pixels: int, fill: float = 0) -> None:
        super().__init__(pad=max_pixels, fill=fill)


def check_augmentations(augment: Any, shape: object, dtype: DTypeLike) -> Images:
    """Check augmentations by applying them to one all-zero image of ``shape``, and return the result.

    Raise ValueError if ``shape`` is not (C, H, W), and TypeError if an augmentation is not callable, or does not return
    an array of one image.
    """
    if not isinstance(shape, tuple) or len(shape) != 3:
        raise ValueError(f"augment: expected images, lshape=(C, H, W), got rows of shape {shape!r}.")
    images = np.zeros((1, *shape), dtype)
    for augmentation in augment:
        function("augment", augmentation, "functions of images and random bits, such as Flip(),")
        result = augmentation(images, np.zeros((1, 4), np.uint64))
        if not isinstance(result, np.ndarray) or result.ndim != 4 or len(result) != 1:
            got = f"an array {result.shape}" if isinstance(result, np.ndarray) else messages.describe(result)
            raise TypeError(
                f"augment: expected {augmentation!r} to return images (n, C, H, W), as many as it gets, "
                f"got {got} for one image."
            )
        images = result
    return images


# --- preprocessing: the scale and mean that an iterator applies to its inputs, which a model saves for ``predict`` ---

TOLERANCE = 0.1  # how far values may exceed the range of the training data, as a fraction of the range
ROUNDING = 1e-3  # tolerance for rounding errors, as a fraction of the largest magnitude


@dataclass(eq=False)
class IntegerRange:
    """The dtype, such as "uint8", the minimum and the maximum of an integer input in the training data."""

    dtype: str
    low: int
    high: int

    @classmethod
    def from_array(cls, array: NDArray[Any] | MappedArray) -> IntegerRange | None:
        """Return the range of a non-empty array, or of the dtype of files; None for other dtypes than integers."""
        name = array.dtype.name
        if name not in INTEGERS:
            return None
        if isinstance(array, MappedArray):
            return cls(name, int(np.iinfo(name).min), int(np.iinfo(name).max))
        return cls(name, int(array.min()), int(array.max()))

    def include(self, array: NDArray[Any]) -> None:
        """Extend the range to include the values of an array."""
        self.low, self.high = min(self.low, int(array.min())), max(self.high, int(array.max()))

    def __str__(self) -> str:
        return f"{self.dtype} from {self.low} to {self.high}"


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Scale and mean of the inputs of a network: ``factor * (x - mean) + offset``.

    Parameters
    ----------
    factor, offset : float
        Scale of the inputs; default: 1 and 0.
    mean : numpy.ndarray, optional
        Mean of each feature (F,), subtracted before scaling.
    integers : tuple of IntegerRange or None
        For each input, the range of its training data if they are integers, else None. ``predict`` uses it to
        distinguish preprocessed rows from raw ones.
    """

    factor: float = 1.0
    offset: float = 0.0
    mean: NDArray[Any] | None = None
    integers: tuple[IntegerRange | None, ...] = ()

    @property
    def scale(self) -> tuple[float, float]:
        """Factor and offset."""
        return self.factor, self.offset

    def subtract_mean(self, rows: Any) -> Any:
        """Return rows (n, F), or a scalar, minus the mean."""
        return rows if self.mean is None else rows - self.mean

    def is_in_scaled_range(self, rows: NDArray[Any], limits: IntegerRange) -> bool:
        """Return whether rows (n, F) are in the range of preprocessed integers, within a tolerance."""
        ends = [self.factor * self.subtract_mean(float(x)) + self.offset for x in (limits.low, limits.high)]
        low, high = np.minimum(*ends), np.maximum(*ends)
        slack = TOLERANCE * (high - low) + ROUNDING * np.maximum(abs(low), abs(high))
        return not ((rows < low - slack) | (rows > high + slack)).any()

    # --- checkpoints ---

    def get_description(self) -> dict[str, Any]:
        """Return all attributes except the mean, as data for JSON."""
        integers = [None if x is None else [x.dtype, x.low, x.high] for x in self.integers]
        return {"factor": self.factor, "offset": self.offset, "integers": integers}

    @classmethod
    def from_description(
        cls, description: object, mean: NDArray[Any] | None, shape: typing.LayerShape | list[typing.LayerShape]
    ) -> Preprocessing:
        """Create the preprocessing of inputs from its description. Raise ValueError if that or the mean is invalid."""
        description = check_keys("preprocessing", description, ("factor", "offset", "integers"))
        num_inputs = len(shape) if isinstance(shape, list) else 1
        integers = parse_ranges(description["integers"], num_inputs)
        factor, offset = (check_number(key, description[key]) for key in ("factor", "offset"))
        features = None if isinstance(shape, list) else math.prod(shape) if isinstance(shape, tuple) else shape
        if mean is not None and (mean.shape != (features,) or mean.dtype.kind != "f"):
            raise ValueError(
                f"expected the mean to have a float for each of {features} features, got {mean.dtype} {mean.shape}"
            )
        return cls(factor, offset, mean, integers)


INTEGERS = tuple(f"{kind}int{n}" for kind in ("u", "") for n in (8, 16, 32, 64))


def parse_ranges(description: object, num_inputs: int) -> tuple[IntegerRange | None, ...]:
    """Return the ranges of a description: [dtype, low, high] or None for each input, or one dtype for all of them."""
    if not isinstance(description, list):
        if description is None:
            return ()
        if not isinstance(description, str) or description not in INTEGERS:
            raise ValueError(f"integers: expected None or one of {', '.join(INTEGERS)}, got {description!r}")
        limits = np.iinfo(description)
        return (IntegerRange(description, int(limits.min), int(limits.max)),) * num_inputs
    for x in description:
        if x is not None and not (
            isinstance(x, list)
            and len(x) == 3
            and x[0] in INTEGERS
            and all(type(end) is int for end in x[1:])
            and np.iinfo(x[0]).min <= x[1] <= x[2] <= np.iinfo(x[0]).max
        ):
            raise ValueError(f"integers: expected None or [dtype, low, high] for each input, got {x!r}")
    if len(description) not in (0, num_inputs):
        raise ValueError(f"integers: expected an entry for each of {num_inputs} inputs, got {len(description)}")
    return tuple(None if x is None else IntegerRange(*x) for x in description)
