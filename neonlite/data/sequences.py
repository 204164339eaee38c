"""How does data with time steps come?  As (F, T * N), column t * N + n; and which tasks show that a network remembers?

A long series is cut into N parts, one for each column of the minibatch: each reads on where it stopped, so that a
recurrent layer may carry its state along. Tasks are drawn: row i of epoch e is a function of the seed, e and i.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Backend, Tensor
from neonlite.backend.bfloat16 import holds_numbers
from neonlite.backend.onehot import OneHot
from neonlite.data.iterator import Minibatches, State, check_numbers
from neonlite.data.order import Epoch, words
from neonlite.optree import describe

Array = NDArray[Any]
Words = NDArray[np.uint64]

TASK = 1 << 32  # what words are for, far behind a list of augmentations


def whole(name: str, **given: Any) -> None:
    """Raise ValueError unless each argument is a whole number from 1."""
    for what, n in given.items():
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"{name}: {what} is a whole number from 1; got {n!r}")


# --- tensors with time steps ---------------------------------------------------------------------------------------


class Steps:
    """The tensors (F, T * N) that minibatches are written into: for each N the same one, every time."""

    def __init__(self, be: Backend, features: int, time_steps: int, name: str, dtype: Any = None) -> None:
        self.be, self.shape, self.name, self.dtype = be, (features, time_steps), name, dtype
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, width: int) -> tuple[Tensor, Tensor]:
        """Return the tensor for N = width, and the same memory as (F, T, N)."""
        if width not in self._made:
            features, steps = self.shape
            made = self.be.zeros((features, steps * width), dtype=self.dtype, name=self.name)
            self._made[width] = made, made.reshape(features, steps, width)
        return self._made[width]


class Tokens:
    """The tensors of tokens: ids (1, T * N), int32, or one-hot (V, T * N).

    ``shape`` is (1, T) or (V, T). With ``gaps`` there may be no token, which is written as -1: a one-hot column is 0.
    """

    def __init__(
        self, be: Backend, vocab_size: int, time_steps: int, onehot: bool, name: str, gaps: bool = False
    ) -> None:
        self.gaps, self.name, self.shape = gaps, name, (vocab_size if onehot else 1, time_steps)
        self._ids = Steps(be, 1, time_steps, f"{name}.ids" if onehot else name, "int32")
        self._onehot: dict[int, OneHot] | None = {} if onehot else None

    def fill(self, width: int, parts: Iterable[tuple[slice, Array]], delay: int = 0) -> Tensor:
        """Write ids (T, m) into their columns, ``delay`` steps late, and return the tensor.

        The steps before have no token: zeros if one-hot, else id 0.
        """
        ids, view = self._ids(width)
        if self._onehot is not None and delay:
            view[0, :delay] = -1
        for columns, values in parts:
            view[0, delay:, columns] = values[: len(values) - delay]
        if self._onehot is None:
            return ids
        if width not in self._onehot:
            self._onehot[width] = OneHot(self.shape[0], ids, self.name, self.gaps)
        return self._onehot[width].show()


# --- a long series -------------------------------------------------------------------------------------------------


class Contiguous(Minibatches):
    """The iterators over one long series: column n of minibatch k is piece k, of T steps, of part n of N equal parts.

    ``length``: how many steps have a target. What is left behind the last minibatch is not used; another batch size
    makes other parts.
    """

    time_steps = 1
    length = 0
    unit = "steps"

    @property
    def ndata(self) -> int:  # type: ignore[override]
        """How many pieces of T steps an epoch has: N for each minibatch; 0 before there is a batch size."""
        n = self.be.bsz or 0
        return n * (self.length // (n * self.time_steps)) if n else 0

    def _epoch(self) -> Epoch:
        n = self.be.bsz
        if n and self.length < n * self.time_steps:
            raise ValueError(
                f"{self.name}: a minibatch of {n} with {self.time_steps} time steps takes {n * self.time_steps} "
                f"{self.unit} that have a target; there are {max(self.length, 0)}: fewer time steps, be.bsz = "
                f"{max(self.length // self.time_steps, 1)} or less, or more data"
            )
        return super()._epoch()

    def _made_as(self) -> State:
        return {**super()._made_as(), "time_steps": self.time_steps, "length": self.length}

    def piece(self, series: Array, epoch: Epoch, k: int) -> Array:
        """Return what of a series stands in minibatch k: (N, T, ...), a view."""
        n, steps = epoch.size, self.time_steps
        return series[: epoch.nbatches * n * steps].reshape(n, epoch.nbatches, steps, *series.shape[1:])[:, k]


class TimeSeries(Contiguous):
    """Minibatches that predict a series X (n, F): inputs (F, T * N), targets the same ``forward`` steps later.

    Without ``return_sequences`` the inputs are all n - T - forward + 1 windows of T steps, one step apart, and targets
    are (F, N): the step that is ``forward`` behind the last of the window. Windows may be shuffled, and the last
    minibatch is filled up from the start.

    >>> import neonlite as nl
    >>> from neonlite.data import TimeSeries
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> for x, t in TimeSeries([[0], [1], [2], [3], [4], [5], [6], [7], [8]], time_steps=2):
    ...     print(x.get().tolist(), t.get().tolist())
    [[0.0, 4.0, 1.0, 5.0]] [[1.0, 5.0, 2.0, 6.0]]
    [[2.0, 6.0, 3.0, 7.0]] [[3.0, 7.0, 4.0, 8.0]]

    ValueError for data that is no such series, or too short.
    """

    def __init__(
        self,
        X: Any,
        time_steps: int,
        forward: int = 1,
        return_sequences: bool = True,
        shuffle: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.be = self.be  # from now on this one, whatever becomes the current one
        whole(self.name, time_steps=time_steps, forward=forward)
        X = np.asarray(X)
        if not holds_numbers(X):
            raise TypeError(f"{self.name}: X is an array of numbers; got one of {X.dtype}")
        if X.ndim != 2 or not X.size:
            hint = "; X.reshape(-1, 1) is a series of one number a step" if X.ndim == 1 and X.size else ""
            raise ValueError(f"{self.name}: X is (n, F), a row a time step; got an array {X.shape}{hint}")
        check_numbers(self.name, X)
        if shuffle and return_sequences:
            raise ValueError(
                f"{self.name}: pieces that go on in the next minibatch stay in order: shuffle=True takes "
                "return_sequences=False, which gives windows"
            )
        self.X, self.time_steps, self.forward = X, int(time_steps), int(forward)
        self.return_sequences, self.shuffle = bool(return_sequences), bool(shuffle)
        self.seed = self.be.rng_seed if shuffle else None
        self.length = len(X) - self.forward
        features = X.shape[1]
        self.shape = (features, self.time_steps)
        self._inputs = Steps(self.be, features, self.time_steps, f"{self.name}.inputs")
        self._targets = Steps(self.be, features, self.time_steps if return_sequences else 1, f"{self.name}.targets")
        if not return_sequences:
            count = self.length - self.time_steps + 1
            if count < 1:
                raise ValueError(
                    f"{self.name}: a window of {time_steps} time steps and its target, {forward} behind, are "
                    f"{self.time_steps + self.forward} rows; X has {len(X)}"
                )
            self._windows = np.lib.stride_tricks.sliding_window_view(X, self.time_steps, axis=0)[:count]
        if self.be.bsz:
            self._epoch()

    @property
    def ndata(self) -> int:  # type: ignore[override]
        """How many pieces, or windows, an epoch has."""
        return super().ndata if self.return_sequences else len(self._windows)

    def _epoch(self) -> Epoch:
        return super()._epoch() if self.return_sequences else Minibatches._epoch(self)

    def _made_as(self) -> State:
        return {**super()._made_as(), "forward": self.forward, "return_sequences": self.return_sequences}

    def fill(self, epoch: Epoch, k: int, values: Any) -> tuple[Any, Any]:
        (x, inputs), (t, targets) = self._inputs(epoch.size), self._targets(epoch.size)
        if self.return_sequences:
            inputs[:] = self.piece(self.X, epoch, k).transpose(2, 1, 0)
            targets[:] = self.piece(self.X[self.forward :], epoch, k).transpose(2, 1, 0)
            return x, t
        for columns, rows in epoch.pieces(k):
            inputs[:, :, columns] = self._windows[rows].transpose(1, 2, 0)
            targets[:, 0, columns] = self.X[self.time_steps + self.forward - 1 :][rows].T
        return x, t


# --- tasks that are drawn ------------------------------------------------------------------------------------------


def uniform(words: Words) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each word: ``floor(word / 2^11) / 2^53``."""
    return (words >> 11).astype(np.float64) * 2.0**-53


def between(words: Words, low: int, high: int) -> NDArray[np.int64]:
    """Return a whole number from low to high for each word: ``low + floor(word / 2^32) (high - low + 1) // 2^32``."""
    return low + ((words >> 32) * np.uint64(high - low + 1) >> 32).astype(np.int64)


def bits(words: Words, count: int) -> NDArray[np.uint8]:
    """Return the first bits of rows of words, the lowest bit of a word first: (m, count)."""
    return np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, count=count, bitorder="little")


class Drawn(Minibatches):
    """The iterators over rows that are drawn, new ones in each epoch.

    Row i of epoch e is made of ``nwords`` words from place ``i ceil(nwords / 4)`` of the stream "data", whatever the
    batch size is. ``seed``: the backend's unless given; data to judge by takes another one.
    """

    nwords = 1

    def __init__(self, ndata: int, seed: int | None, name: str | None) -> None:
        super().__init__(name)
        self.be = self.be  # from now on this one, whatever becomes the current one
        whole(self.name, ndata=ndata)
        if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 64):
            raise ValueError(f"{self.name}: seed is a whole number from 0 to 2**64 - 1, or None; got {seed!r}")
        self.ndata, self.seed = int(ndata), self.be.rng_seed if seed is None else seed
        if self.be.bsz:
            self._epoch()

    def drawn(self, epoch: Epoch, k: int) -> Iterator[tuple[slice, Words]]:
        """Yield columns of minibatch k and the words (m, nwords) of the rows that stand there."""
        blocks = -(-self.nwords // 4)
        for later, (columns, _) in enumerate(epoch.pieces(k)):  # the second piece is of the next epoch
            first, m = 0 if later else epoch.start + k * epoch.size, columns.stop - columns.start
            made = words(self.seed or 0, epoch.number + later, TASK, first * blocks, m * blocks)
            yield columns, made.reshape(m, -1)[:, : self.nwords]


class Task:
    """What a ``Ticker`` draws: sequences of random bits, and what a network has to make of them.

    ``nin`` and ``nout`` are the channels of inputs and targets, ``time_steps`` those of the longest sequence and its
    answer, ``nwords`` the random words that a row takes. The inputs' channels are the bits, then one that is 1 at the
    start, then one that is 1 behind the last of the sequence; from then on the answer is due, where the mask is 1.
    """

    nin = nout = time_steps = nwords = 1

    def __init__(self, in_size: int, seq_len_max: int, seq_len_min: int) -> None:
        whole(type(self).__name__, in_size=in_size, seq_len_max=seq_len_max, seq_len_min=seq_len_min)
        if seq_len_min > seq_len_max:
            given = f"{seq_len_min} to {seq_len_max}"
            raise ValueError(f"{type(self).__name__}: sequences are seq_len_min to seq_len_max long; got {given}")
        self.in_size, self.seq_len_max, self.seq_len_min = in_size, seq_len_max, seq_len_min
        self.nbits = in_size * seq_len_max
        self.nwords = 1 + -(-self.nbits // 64)  # the length, and the bits

    def make(self, words: Words) -> tuple[Array, Array, Array]:
        """Return inputs (m, nin, T), targets (m, nout, T) and mask (m, T), given words (m, nwords)."""
        raise NotImplementedError(f"{type(self).__name__}: write make(words)")

    def begin(self, words: Words) -> tuple[Array, Array, Array, Array, Array]:
        """Return inputs with a sequence and its marks, targets and mask of zeros, the lengths (m,), the bits.

        The bits are (m, seq_len_max, in_size), and 0 behind the end of a sequence.
        """
        m, most, size = len(words), self.seq_len_max, self.in_size
        length = between(words[:, 0], self.seq_len_min, most)
        sequence = bits(words[:, 1:], self.nbits).reshape(m, most, size)
        sequence = sequence * (np.arange(most) < length[:, None])[:, :, None].astype(np.uint8)
        x = np.zeros((m, self.nin, self.time_steps), np.float32)
        x[:, :size, 1 : 1 + most] = sequence.transpose(0, 2, 1)
        x[:, size, 0] = 1
        x[np.arange(m), size + 1, length + 1] = 1
        return x, np.zeros((m, self.nout, self.time_steps), np.float32), np.zeros((m, x.shape[2])), length, sequence


class CopyTask(Task):
    """Say a sequence of random bits again.

    Inputs (in_size + 2, T), targets (in_size, T), T = 2 seq_len_max + 2.
    Source: Graves, Wayne and Danihelka, "Neural Turing Machines", 2014, section 4.1.
    """

    def __init__(self, in_size: int = 8, seq_len_max: int = 20, seq_len_min: int = 1) -> None:
        super().__init__(in_size, seq_len_max, seq_len_min)
        self.nin, self.nout, self.time_steps = in_size + 2, in_size, 2 * seq_len_max + 2

    def make(self, words: Words) -> tuple[Array, Array, Array]:
        x, t, mask, length, sequence = self.begin(words)
        row, step = np.nonzero(np.arange(self.seq_len_max) < length[:, None])
        at = length[row] + 2 + step
        t[row, :, at], mask[row, at] = sequence[row, step], 1
        return x, t, mask


class RepeatCopyTask(Task):
    """Say a sequence of random bits again, as many times as told, and then that it is done.

    Inputs (in_size + 3, T): the last channel has the number of copies, 1 to ``repeat_max``, less its mean and by its
    standard deviation, together with the mark of the end. Targets (in_size + 1, T): the last channel is 1 behind the
    last copy. T = seq_len_max (1 + repeat_max) + 3.
    Source: Graves, Wayne and Danihelka, "Neural Turing Machines", 2014, section 4.2.
    """

    def __init__(self, in_size: int = 8, seq_len_max: int = 10, repeat_max: int = 10, seq_len_min: int = 1) -> None:
        super().__init__(in_size, seq_len_max, seq_len_min)
        whole("RepeatCopyTask", repeat_max=repeat_max)
        self.repeat_max = repeat_max
        self.nin, self.nout, self.time_steps = in_size + 3, in_size + 1, seq_len_max * (1 + repeat_max) + 3
        self.nwords += 1

    def make(self, words: Words) -> tuple[Array, Array, Array]:
        x, t, mask, length, sequence = self.begin(words[:, :-1])
        most, every = self.repeat_max, np.arange(len(words))
        copies = between(words[:, -1], 1, most)
        deviation = ((most * most - 1) / 12) ** 0.5
        x[every, -1, length + 1] = (copies - (most + 1) / 2) / (deviation or 1)
        steps = np.arange(self.seq_len_max) < length[:, None]
        row, copy, step = np.nonzero((np.arange(most) < copies[:, None])[:, :, None] & steps[:, None])
        at = length[row] + 2 + copy * length[row] + step
        t[row, :-1, at], mask[row, at] = sequence[row, step], 1
        done = length + 2 + copies * length
        t[every, -1, done], mask[every, done] = 1, 1
        return x, t, mask


class PrioritySortTask(Task):
    """Say those parts of a sequence again that have the highest priorities, the highest first.

    Inputs (in_size + 3, T): the last channel has the priority of each, from -1 to 1. Targets (in_size, T): the first
    ``best``, or all of a shorter sequence. T = seq_len_max + best + 2.
    Source: Graves, Wayne and Danihelka, "Neural Turing Machines", 2014, section 4.5.
    """

    def __init__(self, in_size: int = 8, seq_len_max: int = 20, best: int = 16, seq_len_min: int | None = None) -> None:
        super().__init__(in_size, seq_len_max, seq_len_max if seq_len_min is None else seq_len_min)
        whole("PrioritySortTask", best=best)
        if best > seq_len_max:
            raise ValueError(f"PrioritySortTask: best is at most seq_len_max = {seq_len_max}; got {best}")
        self.best = best
        self.nin, self.nout, self.time_steps = in_size + 3, in_size, seq_len_max + best + 2
        self.nwords += seq_len_max

    def make(self, words: Words) -> tuple[Array, Array, Array]:
        most = self.seq_len_max
        x, t, mask, length, sequence = self.begin(words[:, :-most])
        there = np.arange(most) < length[:, None]
        priority = (2 * uniform(words[:, -most:]) - 1).astype(np.float32)
        x[:, -1, 1 : 1 + most] = np.where(there, priority, 0)
        order = np.where(there, -priority, 2).argsort(axis=1, kind="stable")
        row, place = np.nonzero(there[:, : self.best])
        at = length[row] + 2 + place
        t[row, :, at], mask[row, at] = sequence[row, order[row, place]], 1
        return x, t, mask


class Ticker(Drawn):
    """Minibatches of a task: inputs (nin, T * N), and (targets (nout, T * N), mask (1, T * N)).

    So they fit ``GeneralizedCostMask``: sequences are of unequal lengths, and only the answers count.

    >>> import neonlite as nl
    >>> from neonlite.data import CopyTask, Ticker
    >>> be = nl.gen_backend("cpu", rng_seed=0, batch_size=1)
    >>> x, (t, mask) = next(iter(Ticker(CopyTask(in_size=1, seq_len_max=3, seq_len_min=3))))
    >>> x.get().astype(int).tolist()  # the bits, the start, the end
    [[0, 0, 1, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]]
    >>> t.get().astype(int).tolist(), mask.get().astype(int).tolist()
    ([[0, 0, 0, 0, 0, 0, 1, 1]], [[0, 0, 0, 0, 0, 1, 1, 1]])

    ``ndata``: the rows of an epoch. ``seed``: the backend's unless given; a set to judge by takes another one.
    """

    def __init__(self, task: Task, ndata: int = 10_000, seed: int | None = None, name: str | None = None) -> None:
        if not isinstance(task, Task):
            raise TypeError(f"Ticker takes a task, such as CopyTask(in_size=8, seq_len_max=20); got {describe(task)}")
        super().__init__(ndata, seed, name)
        self.task, self.nwords, self.shape, self.nclass = task, task.nwords, (task.nin, task.time_steps), task.nout
        self._buffers = [
            Steps(self.be, features, task.time_steps, f"{self.name}.{what}")
            for what, features in (("inputs", task.nin), ("targets", task.nout), ("mask", 1))
        ]

    def _made_as(self) -> State:
        made = {key: value for key, value in vars(self.task).items() if isinstance(value, int)}
        return {**super()._made_as(), "task": type(self.task).__name__, **made}

    def fill(self, epoch: Epoch, k: int, values: Any) -> tuple[Any, Any]:
        (x, inputs), (t, targets), (mask, masks) = (made(epoch.size) for made in self._buffers)
        for columns, drawn in self.drawn(epoch, k):
            made = self.task.make(drawn)
            inputs[:, :, columns] = made[0].transpose(1, 2, 0)
            targets[:, :, columns] = made[1].transpose(1, 2, 0)
            masks[0, :, columns] = made[2].T
        return x, (t, mask)


class Reversal(Drawn):
    """Minibatches of a toy translation: digits, below ``vocab``, and the same backwards.

    Inputs [x, previous], for an encoder and a decoder, and targets: one-hot (vocab, T * N), T = length. ``previous`` is
    the target of the step before, and zeros in the first. Without ``onehot_input`` the two are ids (1, T * N); without
    ``get_prev_target`` there is x alone.
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
        whole(self.name, length=length, vocab=vocab)
        self.time_steps = self.nwords = int(length)
        self.nclass = int(vocab)
        self.onehot_input, self.get_prev_target = bool(onehot_input), bool(get_prev_target)
        self._inputs, self._previous, self._targets = (
            Tokens(self.be, self.nclass, self.time_steps, onehot, f"{self.name}.{what}", gaps=what == "previous")
            for what, onehot in (("inputs", onehot_input), ("previous", onehot_input), ("targets", True))
        )
        self.shape = [self._inputs.shape, self._previous.shape] if get_prev_target else self._inputs.shape

    def _made_as(self) -> State:
        return {**super()._made_as(), "time_steps": self.time_steps, "nclass": self.nclass}

    def fill(self, epoch: Epoch, k: int, values: Any) -> tuple[Any, Any]:
        made = [(columns, between(drawn, 0, (self.nclass or 1) - 1).T) for columns, drawn in self.drawn(epoch, k)]
        back = [(columns, ids[::-1]) for columns, ids in made]
        x, t = self._inputs.fill(epoch.size, made), self._targets.fill(epoch.size, back)
        return ([x, self._previous.fill(epoch.size, back, delay=1)] if self.get_prev_target else x), t
