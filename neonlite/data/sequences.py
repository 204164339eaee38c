"""Sequence data: time series, contiguous minibatches, and synthetic memory tasks (copy, repeat copy, sort, reversal).

Minibatches are (F, T * N); column t * N + n is step t of sequence n. A long series is split into N contiguous parts, so
that each minibatch continues the N sequences of the previous one, as stateful recurrent layers expect. The sequences of
tasks are random: row i of epoch e is a pure function of the seed, e and i.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Backend, Tensor, batch_size
from neonlite.backend.tensor import OneHot
from neonlite.backend.validation import instance, integer
from neonlite.data.iterator import IteratorState, Minibatch, ResumableIterator, check_all_finite
from neonlite.data.minibatches import BufferPool, Epoch, bounded_integers, random_bits
from neonlite.typing import ArrayLike, is_real_array

Array = NDArray[Any]
RandomBits = NDArray[np.uint64]

PURPOSE_TASK = 1 << 32  # see ``random_bits``; larger than the purposes of augmentations


# --- buffers with time steps ---------------------------------------------------------------------------------------


class SequenceBuffers(BufferPool[tuple[Tensor, Tensor]]):
    """The tensors (F, T * N) that minibatches are written to, with a view of each as (F, T, N)."""

    def __init__(self, be: Backend, features: int, time_steps: int, name: str, dtype: str | None = None) -> None:
        super().__init__()
        self.be, self.shape, self.name, self.dtype = be, (features, time_steps), name, dtype

    def create(self, num_columns: int) -> tuple[Tensor, Tensor]:
        """Return a tensor, and its view."""
        features, steps = self.shape
        tensor = self.be.zeros((features, steps * num_columns), dtype=self.dtype, name=self.name)
        return tensor, tensor.reshape(features, steps, num_columns)


class TokenBuffers(BufferPool[tuple[Tensor, Tensor, OneHot | None]]):
    """The tensors that minibatches of tokens are written to: int32 ids (1, T * N), or one-hot (V, T * N).

    ``shape`` is (1, T) or (V, T). The id -1 means no token; its one-hot column is zero.
    """

    def __init__(self, be: Backend, vocab_size: int, time_steps: int, onehot: bool, name: str) -> None:
        super().__init__()
        self.name, self.shape, self.onehot = name, (vocab_size if onehot else 1, time_steps), onehot
        self._ids = SequenceBuffers(be, 1, time_steps, f"{name}.ids" if onehot else name, "int32")

    def create(self, num_columns: int) -> tuple[Tensor, Tensor, OneHot | None]:
        """Return the ids, their view, and the one-hot tensor, if there is one."""
        ids, view = self._ids.create(num_columns)
        return ids, view, OneHot(self.shape[0], ids, self.name, allow_empty=True) if self.onehot else None

    def fill(self, num_columns: int, parts: Iterable[tuple[slice, Array]], delay: int = 0) -> Tensor:
        """Write ids (T, m) to the columns of each part, delayed by ``delay`` steps, and return the tensor.

        The first ``delay`` steps have no token: zeros if one-hot, else id 0.
        """
        ids, view, onehot = self.get(num_columns)
        if onehot is not None and delay:
            view[0, :delay] = -1
        for columns, values in parts:
            view[0, delay:, columns] = values[: len(values) - delay]
        return ids if onehot is None else onehot.update()


class TokenIterator(ResumableIterator):
    """Base class of iterators over minibatches of tokens, with those of the previous steps as a second input."""

    time_steps = 1
    get_prev_target = False

    def _create_buffers(self, sizes: Sequence[int], onehot_input: bool) -> None:
        """Create the buffers of inputs, previous targets and targets, given the sizes of their vocabularies."""
        labels = (("inputs", onehot_input), ("previous", onehot_input), ("targets", True))
        self._inputs, self._previous, self._targets = (
            TokenBuffers(self.be, size, self.time_steps, onehot, f"{self.name}.{label}")
            for size, (label, onehot) in zip(sizes, labels, strict=True)
        )
        self.shape = [self._inputs.shape, self._previous.shape] if self.get_prev_target else self._inputs.shape

    def _config(self) -> IteratorState:
        return {**super()._config(), "time_steps": self.time_steps, "nclass": self.nclass}


# --- series ------------------------------------------------------------------------------------------------------


class ContiguousIterator(ResumableIterator):
    """Base class of iterators over one long series, which is split into N contiguous parts of equal length.

    Column n of minibatch k holds the k-th slice of T steps of part n. ``length`` is the number of steps that have a
    target. Steps after the last complete minibatch are not used.
    """

    time_steps = 1
    length = 0
    unit = "steps"

    @property
    def ndata(self) -> int:  # type: ignore[override]
        """Number of slices of T steps per epoch, N per minibatch; 0 if the batch size is not set."""
        n = batch_size.complete_batch_size(self.be)
        return n * (self.length // (n * self.time_steps)) if n else 0

    def _current_epoch(self) -> Epoch:
        n = batch_size.complete_batch_size(self.be)
        if n and self.length < n * self.time_steps:
            raise ValueError(
                f"{self.name}: expected at least {n * self.time_steps} {self.unit} with a target, for batch size {n} "
                f"and {self.time_steps} time steps, got {max(self.length, 0)}. Use fewer time steps, be.bsz = "
                f"{max(self.length // self.time_steps, 1)} or less, or more data"
            )
        return super()._current_epoch()

    def _config(self) -> IteratorState:
        return {**super()._config(), "time_steps": self.time_steps, "length": self.length}

    def minibatch_slice(self, series: Array, epoch: Epoch, k: int) -> Array:
        """Return the part of a series in minibatch k, as a view.

        Parameters
        ----------
        series : ndarray
            (n, ...).
        epoch : Epoch
            The epoch.
        k : int
            Index of the minibatch.

        Returns
        -------
        ndarray
            (N, T, ...), N being the number of columns of this process.
        """
        return self._split(series, epoch)[slice(*epoch.columns(k)), k]

    def _split(self, series: Array, epoch: Epoch | None = None) -> Array:
        """Return a series as minibatches (N, nbatches, T, ...), as a view."""
        epoch = epoch or self._current_epoch()
        n, steps = epoch.batch_size, self.time_steps
        return series[: epoch.nbatches * n * steps].reshape(n, epoch.nbatches, steps, *series.shape[1:])


class TimeSeries(ContiguousIterator):
    """Iterator for time-series prediction: inputs (F, T * N); the targets are the series ``forward`` steps later.

    Parameters
    ----------
    X : array-like
        The series (n, F), one row per time step.
    time_steps : int
        Number of time steps T.
    forward : int
        How many steps ahead the targets are.
    return_sequences : bool
        Whether each step has a target; minibatches are then contiguous. If False, inputs are all
        n - T - forward + 1 windows of T steps, and the target (F, N) is the value ``forward`` steps after the end of
        the window; the last minibatch is filled up with the first windows.
    shuffle : bool
        Whether to shuffle the windows; requires ``return_sequences=False``.
    name : str, optional
        Name of the iterator.
    check_finite : bool
        Whether to check X for NaN and infinity.

    Raises
    ------
    ValueError
        If X is not (n, F), is too short, or contains NaN or infinity.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.data import TimeSeries
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> for x, t in TimeSeries([[0], [1], [2], [3], [4], [5], [6], [7], [8]], time_steps=2):
    ...     print(x.get().tolist(), t.get().tolist())
    [[0.0, 4.0, 1.0, 5.0]] [[1.0, 5.0, 2.0, 6.0]]
    [[2.0, 6.0, 3.0, 7.0]] [[3.0, 7.0, 4.0, 8.0]]
    """

    def __init__(
        self,
        X: ArrayLike,
        time_steps: int,
        forward: int = 1,
        return_sequences: bool = True,
        shuffle: bool = False,
        name: str | None = None,
        check_finite: bool = True,
    ) -> None:
        super().__init__(name)
        self.time_steps = integer(f"{self.name}: time_steps", time_steps)
        self.forward = integer(f"{self.name}: forward", forward)
        X = np.asarray(X)
        if not is_real_array(X):
            raise TypeError(f"{self.name}: expected X as a real-valued array, got {X.dtype}")
        if X.ndim != 2 or not X.size:
            hint = ". Use X.reshape(-1, 1) for one feature" if X.ndim == 1 and X.size else ""
            raise ValueError(f"{self.name}: expected X of shape (n, F), one row per time step, got {X.shape}{hint}")
        if check_finite:
            check_all_finite(f"{self.name}: X", X, self.be.default_dtype)
        if shuffle and return_sequences:
            raise ValueError(
                f"{self.name}: expected shuffle=False with return_sequences=True, as minibatches are contiguous, got "
                "shuffle=True. Pass return_sequences=False"
            )
        self.X = X
        self.return_sequences, self.shuffle = bool(return_sequences), bool(shuffle)
        self.seed = self.be.rng_seed if shuffle else None
        self.length = len(X) - self.forward
        features = X.shape[1]
        self.shape = (features, self.time_steps)
        self._inputs = SequenceBuffers(self.be, features, self.time_steps, f"{self.name}.inputs")
        self._targets = SequenceBuffers(
            self.be, features, self.time_steps if return_sequences else 1, f"{self.name}.targets"
        )
        if not return_sequences:
            count = self.length - self.time_steps + 1
            if count < 1:
                raise ValueError(
                    f"{self.name}: expected X of at least {self.time_steps + self.forward} rows, for a window of "
                    f"{time_steps} time steps and its target {forward} later, got {len(X)}"
                )
            self._windows = np.lib.stride_tricks.sliding_window_view(X, self.time_steps, axis=0)[:count]
        if self.be.bsz:
            self._current_epoch()

    @property
    def ndata(self) -> int:  # type: ignore[override]
        """Number of slices, or windows, per epoch."""
        return super().ndata if self.return_sequences else len(self._windows)

    def _current_epoch(self) -> Epoch:
        return super()._current_epoch() if self.return_sequences else ResumableIterator._current_epoch(self)

    def _config(self) -> IteratorState:
        return {**super()._config(), "forward": self.forward, "return_sequences": self.return_sequences}

    def fill_minibatch(self, epoch: Epoch, k: int, values: object) -> Minibatch:
        (x, inputs), (t, targets) = (buffers.get(epoch.num_columns(k)) for buffers in (self._inputs, self._targets))
        if self.return_sequences:
            inputs[:] = self.minibatch_slice(self.X, epoch, k).transpose(2, 1, 0)
            targets[:] = self.minibatch_slice(self.X[self.forward :], epoch, k).transpose(2, 1, 0)
            return x, t
        for columns, rows in epoch.spans(k):
            inputs[:, :, columns] = self._windows[rows].transpose(1, 2, 0)
            targets[:, 0, columns] = self.X[self.time_steps + self.forward - 1 :][rows].T
        return x, t


# --- synthetic tasks ---------------------------------------------------------------------------------------------


def to_uniform(random_bits: RandomBits) -> NDArray[np.float64]:
    """Return floats in [0, 1): ``floor(bits / 2^11) / 2^53``."""
    return (random_bits >> 11).astype(np.float64) * 2.0**-53


def to_integers(random_bits: RandomBits, low: int, high: int) -> NDArray[np.int64]:
    """Return integers from low to high: ``low + floor(bits / 2^32) (high - low + 1) // 2^32``."""
    return low + bounded_integers(random_bits, high - low + 1)


def to_bits(random_bits: RandomBits, count: int) -> NDArray[np.uint8]:
    """Return the first ``count`` bits of each row, (m, count), the least significant bit of each uint64 first."""
    return np.unpackbits(random_bits.astype("<u8").view(np.uint8), axis=1, count=count, bitorder="little")


class GeneratedIterator(ResumableIterator):
    """Base class of iterators over randomly generated rows, which differ in each epoch.

    Row i of an epoch uses ``num_random`` uint64 values of ``random_bits``, from index ``i ceil(num_random / 4)`` on,
    for every batch size. The default seed is that of the backend; use another one for a validation set.
    """

    num_random = 1

    def __init__(self, ndata: int, seed: int | None, name: str | None) -> None:
        super().__init__(name)
        self.ndata = integer(f"{self.name}: ndata", ndata)
        self.seed = self.be.rng_seed if seed is None else integer(f"{self.name}: seed", seed, 0, 2**64 - 1)
        if self.be.bsz:
            self._current_epoch()

    def draw_rows(self, epoch: Epoch, k: int) -> Iterator[tuple[slice, RandomBits]]:
        """Yield the random bits of the rows in minibatch k.

        Parameters
        ----------
        epoch : Epoch
            The epoch.
        k : int
            Index of the minibatch.

        Yields
        ------
        columns : slice
            Columns of the minibatch.
        random_bits : ndarray of uint64
            (m, num_random), for the m rows of these columns.
        """
        blocks = -(-self.num_random // 4)
        for columns, _ in epoch.spans(k):
            epoch_offset, first = divmod(epoch.first_row(k) + columns.start, self.ndata)
            m = columns.stop - columns.start
            values = random_bits(self.seed or 0, epoch.index + epoch_offset, PURPOSE_TASK, first * blocks, m * blocks)
            yield columns, values.reshape(m, -1)[:, : self.num_random]


class Task:
    """Base class of the tasks of a ``Ticker``: random sequences of bits, and the expected outputs.

    The channels of the inputs are the bits, a start marker, and an end marker after the last bit. The steps of the
    expected output follow the end marker; in these steps the mask is 1. Subclasses implement ``synthesize`` and set
    ``nin`` and ``nout``, the numbers of channels of inputs and targets; ``time_steps``, the number of steps of the
    longest sequence with its output; and ``num_random``, the number of random uint64 values per row.

    Parameters
    ----------
    seq_len_max : int
        Length of the longest sequence.
    vec_size : int
        Number of bits per step.
    seq_len_min : int
        Length of the shortest sequence.
    """

    nin = nout = time_steps = num_random = 1

    def __init__(self, seq_len_max: int, vec_size: int, seq_len_min: int) -> None:
        name = type(self).__name__
        self.seq_len_max = integer(f"{name}: seq_len_max", seq_len_max)
        self.vec_size = integer(f"{name}: vec_size", vec_size)
        self.seq_len_min = integer(f"{name}: seq_len_min", seq_len_min)
        if self.seq_len_min > self.seq_len_max:
            raise ValueError(
                f"{name}: expected seq_len_min <= seq_len_max, got seq_len_min = {seq_len_min} and seq_len_max = "
                f"{seq_len_max}"
            )
        self.nbits = self.vec_size * self.seq_len_max
        self.num_random = 1 + -(-self.nbits // 64)  # the length, and the bits

    def __repr__(self) -> str:
        lengths = f"seq_len_min={self.seq_len_min}, seq_len_max={self.seq_len_max}"
        return f"{type(self).__name__}({lengths}, vec_size={self.vec_size})"

    def synthesize(self, random_bits: RandomBits) -> tuple[Array, Array, Array]:
        """Return inputs (m, nin, T), targets (m, nout, T) and mask (m, T).

        Parameters
        ----------
        random_bits : ndarray of uint64
            (m, num_random).

        Returns
        -------
        tuple of ndarray
            Inputs, targets and mask.
        """
        raise NotImplementedError(f"{type(self).__name__}: implement synthesize(random_bits)")

    def synthesize_inputs(self, random_bits: RandomBits) -> tuple[Array, Array, Array, Array, Array]:
        """Return the inputs with a random sequence and its markers, and the values to compute targets and mask from.

        Parameters
        ----------
        random_bits : ndarray of uint64
            (m, num_random).

        Returns
        -------
        tuple of ndarray
            Inputs, targets of zeros, a mask of zeros, the lengths (m,), and the bits (m, seq_len_max, vec_size), which
            are 0 after the end of a sequence.
        """
        m, max_len, size = len(random_bits), self.seq_len_max, self.vec_size
        length = to_integers(random_bits[:, 0], self.seq_len_min, max_len)
        sequence = to_bits(random_bits[:, 1:], self.nbits).reshape(m, max_len, size)
        sequence = sequence * (np.arange(max_len) < length[:, None])[:, :, None].astype(np.uint8)
        x = np.zeros((m, self.nin, self.time_steps), np.float32)
        x[:, :size, 1 : 1 + max_len] = sequence.transpose(0, 2, 1)
        x[:, size, 0] = 1
        x[np.arange(m), size + 1, length + 1] = 1
        return x, np.zeros((m, self.nout, self.time_steps), np.float32), np.zeros((m, x.shape[2])), length, sequence


class CopyTask(Task):
    """Copy task: output the sequence of random bits of the input.

    Inputs (vec_size + 2, T), targets (vec_size, T), T = 2 seq_len_max + 2.

    Parameters
    ----------
    seq_len_max : int
        Length of the longest sequence.
    vec_size : int
        Number of bits per step.
    seq_len_min : int
        Length of the shortest sequence.

    References
    ----------
    Graves, Wayne and Danihelka, "Neural Turing Machines", 2014, section 4.1.
    """

    def __init__(self, seq_len_max: int = 20, vec_size: int = 8, seq_len_min: int = 1) -> None:
        super().__init__(seq_len_max, vec_size, seq_len_min)
        self.nin, self.nout, self.time_steps = self.vec_size + 2, self.vec_size, 2 * self.seq_len_max + 2

    def synthesize(self, random_bits: RandomBits) -> tuple[Array, Array, Array]:
        x, t, mask, length, sequence = self.synthesize_inputs(random_bits)
        row, step = np.nonzero(np.arange(self.seq_len_max) < length[:, None])
        time = length[row] + 2 + step
        t[row, :, time], mask[row, time] = sequence[row, step], 1
        return x, t, mask


class RepeatCopyTask(Task):
    """Repeat copy task: output the sequence of the input a given number of times, then an end marker.

    Inputs (vec_size + 3, T): the last channel holds, in the step of the end marker, the number of copies, which is
    uniform in 1 to ``repeat_count_max`` and normalized to zero mean and unit variance. Targets (vec_size + 1, T): the
    last channel is 1 after the last copy. T = seq_len_max (1 + repeat_count_max) + 3.

    Parameters
    ----------
    seq_len_max : int
        Length of the longest sequence.
    repeat_count_max : int
        Largest number of copies.
    vec_size : int
        Number of bits per step.
    seq_len_min : int
        Length of the shortest sequence.

    References
    ----------
    Graves, Wayne and Danihelka, "Neural Turing Machines", 2014, section 4.2.
    """

    def __init__(
        self, seq_len_max: int = 10, repeat_count_max: int = 10, vec_size: int = 8, seq_len_min: int = 1
    ) -> None:
        super().__init__(seq_len_max, vec_size, seq_len_min)
        self.repeat_count_max = integer("RepeatCopyTask: repeat_count_max", repeat_count_max)
        self.nin, self.nout = self.vec_size + 3, self.vec_size + 1
        self.time_steps = self.seq_len_max * (1 + self.repeat_count_max) + 3
        self.num_random += 1

    def synthesize(self, random_bits: RandomBits) -> tuple[Array, Array, Array]:
        x, t, mask, length, sequence = self.synthesize_inputs(random_bits[:, :-1])
        max_copies, rows = self.repeat_count_max, np.arange(len(random_bits))
        copies = to_integers(random_bits[:, -1], 1, max_copies)
        deviation = ((max_copies * max_copies - 1) / 12) ** 0.5
        x[rows, -1, length + 1] = (copies - (max_copies + 1) / 2) / (deviation or 1)
        steps = np.arange(self.seq_len_max) < length[:, None]
        row, copy, step = np.nonzero((np.arange(max_copies) < copies[:, None])[:, :, None] & steps[:, None])
        time = length[row] + 2 + copy * length[row] + step
        t[row, :-1, time], mask[row, time] = sequence[row, step], 1
        done = length + 2 + copies * length
        t[rows, -1, done], mask[rows, done] = 1, 1
        return x, t, mask


class PrioritySortTask(Task):
    """Priority sort task: output the elements with the highest priorities, in decreasing order of priority.

    Inputs (vec_size + 3, T): the last channel holds the priority of each element, -1 to 1. Targets (vec_size, T):
    the ``top_k`` elements, or all of a shorter sequence. T = seq_len_max + top_k + 2.

    Parameters
    ----------
    seq_len_max : int
        Length of the longest sequence.
    vec_size : int
        Number of bits per step.
    top_k : int, optional
        Number of elements to output (default: 16, or seq_len_max if that is less).
    seq_len_min : int
        Length of the shortest sequence (default: seq_len_max).

    References
    ----------
    Graves, Wayne and Danihelka, "Neural Turing Machines", 2014, section 4.5.
    """

    def __init__(
        self, seq_len_max: int = 20, vec_size: int = 8, top_k: int | None = None, seq_len_min: int | None = None
    ) -> None:
        super().__init__(seq_len_max, vec_size, seq_len_max if seq_len_min is None else seq_len_min)
        max_len = self.seq_len_max
        self.top_k = min(16, max_len) if top_k is None else integer("PrioritySortTask: top_k", top_k, 1, max_len)
        self.nin, self.nout, self.time_steps = self.vec_size + 3, self.vec_size, max_len + self.top_k + 2
        self.num_random += max_len

    def synthesize(self, random_bits: RandomBits) -> tuple[Array, Array, Array]:
        max_len = self.seq_len_max
        x, t, mask, length, sequence = self.synthesize_inputs(random_bits[:, :-max_len])
        valid = np.arange(max_len) < length[:, None]
        priority = (2 * to_uniform(random_bits[:, -max_len:]) - 1).astype(np.float32)
        x[:, -1, 1 : 1 + max_len] = np.where(valid, priority, 0)
        order = np.where(valid, -priority, 2).argsort(axis=1, kind="stable")
        row, rank = np.nonzero(valid[:, : self.top_k])
        time = length[row] + 2 + rank
        t[row, :, time], mask[row, time] = sequence[row, order[row, rank]], 1
        return x, t, mask


class Ticker(GeneratedIterator):
    """Iterator over minibatches of a task: inputs (nin, T * N), and (targets (nout, T * N), mask (1, T * N)).

    Use it with ``GeneralizedCostMask``: sequences have different lengths, and only the steps whose mask is 1
    contribute to the cost.

    Parameters
    ----------
    task : Task
        The task, such as ``CopyTask()``.
    ndata : int
        Rows per epoch.
    seed : int, optional
        Seed (default: that of the backend); use another one for a validation set.
    name : str, optional
        Name of the iterator.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.data import CopyTask, Ticker
    >>> be = nl.gen_backend("cpu", rng_seed=0, batch_size=1)
    >>> x, (t, mask) = next(iter(Ticker(CopyTask(seq_len_max=3, vec_size=1, seq_len_min=3))))
    >>> x.get().astype(int).tolist()  # the bits, the start, the end
    [[0, 0, 1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]]
    >>> t.get().astype(int).tolist(), mask.get().astype(int).tolist()
    ([[0, 0, 0, 0, 0, 0, 1, 1]], [[0, 0, 0, 0, 0, 1, 1, 1]])
    """

    def __init__(self, task: Task, ndata: int = 10_000, seed: int | None = None, name: str | None = None) -> None:
        instance("Ticker: task", task, Task, "a task, such as CopyTask(),")
        super().__init__(ndata, seed, name)
        self.task, self.num_random, self.shape = task, task.num_random, (task.nin, task.time_steps)
        self.nclass = self.nout = task.nout
        self._buffers = [
            SequenceBuffers(self.be, features, task.time_steps, f"{self.name}.{label}")
            for label, features in (("inputs", task.nin), ("targets", task.nout), ("mask", 1))
        ]

    def _config(self) -> IteratorState:
        options = {key: value for key, value in vars(self.task).items() if isinstance(value, int)}
        return {**super()._config(), "task": type(self.task).__name__, **options}

    def fill_minibatch(self, epoch: Epoch, k: int, values: object) -> Minibatch:
        (x, inputs), (t, targets), (mask, masks) = (x.get(epoch.num_columns(k)) for x in self._buffers)
        for columns, bits in self.draw_rows(epoch, k):
            rows = self.task.synthesize(bits)
            inputs[:, :, columns] = rows[0].transpose(1, 2, 0)
            targets[:, :, columns] = rows[1].transpose(1, 2, 0)
            masks[0, :, columns] = rows[2].T
        return x, (t, mask)


class Reversal(GeneratedIterator, TokenIterator):
    """Iterator for a toy translation task: sequences of digits, and the same digits in reverse order.

    Inputs are [x, previous], for an encoder and a decoder, and targets are one-hot (vocab, T * N), T = length;
    ``previous`` is the target of the previous step, and zero in the first one.

    Parameters
    ----------
    length : int
        Number of digits.
    vocab : int
        Number of different digits.
    ndata : int
        Rows per epoch.
    seed : int, optional
        Seed (default: that of the backend); use another one for a validation set.
    onehot_input : bool
        Whether inputs are one-hot (vocab, T * N); otherwise they are token ids (1, T * N).
    get_prev_target : bool
        Whether inputs are [x, previous]; otherwise they are x alone.
    name : str, optional
        Name of the iterator.
    """

    def __init__(
        self,
        length: int,
        vocab: int = 10,
        ndata: int = 10_000,
        seed: int | None = None,
        onehot_input: bool = True,
        get_prev_target: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(ndata, seed, name)
        self.time_steps = self.num_random = integer(f"{self.name}: length", length)
        self.nclass = integer(f"{self.name}: vocab", vocab)
        self.onehot_input, self.get_prev_target = bool(onehot_input), bool(get_prev_target)
        self._create_buffers([self.nclass] * 3, onehot_input)

    def fill_minibatch(self, epoch: Epoch, k: int, values: object) -> Minibatch:
        largest = (self.nclass or 1) - 1
        digits = [(columns, to_integers(bits, 0, largest).T) for columns, bits in self.draw_rows(epoch, k)]
        reversed_ids = [(columns, ids[::-1]) for columns, ids in digits]
        n = epoch.num_columns(k)
        x, t = self._inputs.fill(n, digits), self._targets.fill(n, reversed_ids)
        return ([x, self._previous.fill(n, reversed_ids, delay=1)] if self.get_prev_target else x), t
