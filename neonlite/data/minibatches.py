"""Minibatches: the order of rows, buffers, prefetching, random augmentation, and preprocessing that a model saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from neonlite.backend import Backend, Tensor
from neonlite.backend.batch_size import Shard
from neonlite.backend.planning.assignment import write_array
from neonlite.backend.random import PURPOSES, philox
from neonlite.backend.validation import check_boolean_fields, check_keys, check_number, function, integer, pair
from neonlite.messages import describe
from neonlite.optree import Operand
from neonlite.typing import LayerShape

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


@dataclass(frozen=True)
class Epoch:
    """One pass over the data in minibatches of ``batch_size`` rows.

    The last minibatch is filled up with the first rows of the next epoch. The next epoch starts after these rows, so
    that all rows are used equally often. With ``partial_last`` the last minibatch is smaller instead, and each epoch
    starts at row 0. ``seed``: seed of the permutation; None keeps the order of the data. ``shard``: the columns of each
    minibatch that this process computes; None: all.
    """

    index: int
    start: int  # number of rows of this epoch that the last minibatch of the previous epoch used
    ndata: int
    batch_size: int
    partial_last: bool
    seed: int | None
    shard: Shard | None = None

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
        spans = [(slice(0, count), self._rows(self.index, first, first + count))] if count else []
        if count < n:
            next_row = first + count - self.ndata
            spans.append((slice(count, n), self._rows(self.index + 1, next_row, next_row + n - count)))
        return spans

    def _rows(self, epoch: int, first: int, stop: int) -> RowIndex:
        return slice(first, stop) if self.seed is None else permutation(self.seed, epoch, self.ndata)[first:stop]

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
            got = f"an array {result.shape}" if isinstance(result, np.ndarray) else describe(result)
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
    def from_array(cls, array: NDArray[Any]) -> IntegerRange | None:
        """Return the range of a non-empty array, or None if its dtype is not an integer dtype."""
        name = array.dtype.name
        return cls(name, int(array.min()), int(array.max())) if name in INTEGERS else None

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
        cls, description: object, mean: NDArray[Any] | None, shape: LayerShape | list[LayerShape]
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
