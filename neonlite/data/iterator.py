"""How does data come to a network?  In minibatches (inputs, targets), from iterators that can stop and go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import NervanaObject
from neonlite.backend.bfloat16 import holds_floats, holds_numbers
from neonlite.backend.numbers import number
from neonlite.data.augment import tried
from neonlite.data.columns import Columns, Source, on_host
from neonlite.data.order import AUGMENT, Epoch
from neonlite.data.prefetch import ahead
from neonlite.optree import describe

State = dict[str, Any]


class NervanaDataIterator(NervanaObject):
    """Gives minibatches (inputs, targets), one epoch a loop.

    One of your own sets ``ndata`` rows, ``nbatches``, the ``shape`` of the inputs (F, (F, T), (C, H, W), or a list of
    them) and ``nclass``, and says ``__iter__``, and ``reset`` where it has a state.
    """

    nbatches: Any = 0
    ndata: int = 0
    shape: Any = None
    nclass: int | None = None

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        raise NotImplementedError(f"{self.classnm} gives no minibatches: write __iter__")

    def reset(self) -> None:
        """Start over with the first row."""


class Minibatches(NervanaDataIterator):
    """The iterators over rows that are numbered: where they are, and how they go on.

    The tensors are the same ones every time, and the next minibatch overwrites them. A loop is one epoch; one that is
    left early ends there, and the next begins the epoch anew. ``get_state()`` says what has been handed out:
    ``set_state`` with that goes on behind it, with the same bits, also in the middle of an epoch.
    """

    start = 0  # how many rows the epoch before has had of this one
    epoch = 0  # how many epochs have gone by
    minibatch = 0  # how many minibatches of this one have been handed out
    shuffle = ragged = False
    seed: int | None = None  # of what is drawn: the backend's, when the iterator was made
    _first = 0  # the minibatch that the next loop begins with

    @property
    def nbatches(self) -> int:
        """How many minibatches this epoch has: one less, now and then, when the last one wraps around."""
        return self._epoch().nbatches

    def _epoch(self) -> Epoch:
        """Return the epoch that is due, for the backend's batch size. ValueError when there is none that fits."""
        n = self.be.bsz
        if not n:
            raise ValueError(f"{self.name}: the batch size is not set yet: gen_backend(batch_size=N), or be.bsz = N")
        if n > self.ndata and not self.ragged:
            raise ValueError(
                f"{self.name}: {self.ndata} rows of data are fewer than a minibatch of {n}: be.bsz = {self.ndata} "
                "or less, or an ArrayIterator with ragged=True"
            )
        seed = self.seed if self.shuffle else None
        return Epoch(self.epoch, self.start, self.ndata, n, self.ragged, seed)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        self.minibatch, self._first = self._first, 0
        epoch = self._epoch()
        steps = range(self.minibatch, epoch.nbatches)
        work = self.work(epoch)
        with closing(ahead(work, steps) if work else (None for _ in steps)) as worked:
            for k, values in zip(steps, worked, strict=True):
                pair = self.fill(epoch, k, values)
                self.minibatch = k + 1
                yield pair
        self.epoch, self.start, self.minibatch = epoch.number + 1, epoch.next_start, 0

    def work(self, epoch: Epoch) -> Callable[[int], Any] | None:
        """Return what a thread works out for minibatch k while the one before is in use; None for nothing."""
        return None

    def fill(self, epoch: Epoch, k: int, values: Any) -> tuple[Any, Any]:
        """Return minibatch k, given what was worked out for it."""
        raise NotImplementedError(f"{self.classnm} gives no minibatches: write fill(epoch, k, values)")

    def reset(self) -> None:
        """Start over with the first row. The epochs are counted on, so a shuffled order does not come again."""
        self.start = self.minibatch = self._first = 0

    # --- where it is ---

    def _made_as(self) -> State:
        return {"ndata": self.ndata, "batch_size": self.be.bsz, "shuffle": self.shuffle, "ragged": self.ragged}

    def get_state(self) -> State:
        """Return what has been handed out: a small dict of numbers, fit for JSON."""
        place = {"epoch": self.epoch, "start": self.start, "minibatch": self.minibatch, "seed": self.seed}
        return {**place, **self._made_as()}

    def set_state(self, state: State) -> None:
        """Go on from a state of ``get_state``, of an iterator that was made the same way: its seed is taken over.

        ValueError when it is no such state; the old one then stays.
        """
        made, here = self._made_as(), self.get_state()
        if not isinstance(state, dict) or set(state) != set(here):
            raise ValueError(f"{self.name}: a state is the dict of get_state(), with {', '.join(here)}; got {state!r}")
        differ = [f"{key} = {state[key]!r}, here {made[key]!r}" for key in made if state[key] != made[key]]
        if (state["seed"] is None) != (self.seed is None):
            differ.append(f"seed = {state['seed']!r}, here {self.seed!r}")
        if differ:
            raise ValueError(f"{self.name}: the state is that of another iterator: {'; '.join(differ)}")
        numbers = ("epoch", "start", "minibatch", *(("seed",) if self.seed is not None else ()))
        wrong = [key for key in numbers if type(state[key]) is not int or state[key] < 0]
        if wrong or state["start"] >= self.ndata or state["minibatch"] > -(-self.ndata // max(self.be.bsz, 1)):
            raise ValueError(f"{self.name}: a state has whole numbers that are within the data; got {state!r}")
        self.epoch, self.start, self.seed = state["epoch"], state["start"], state["seed"]
        self._first = self.minibatch = state["minibatch"]


class ArrayIterator(Minibatches):
    """Minibatches of arrays: inputs (F, N), and targets (nclass, N), one-hot, of labels.

    >>> import neonlite as nl
    >>> from neonlite.data import ArrayIterator
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> train = ArrayIterator([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], y=[0, 2, 1], nclass=3)
    >>> for x, t in train:
    ...     print(x.get().tolist(), t.get().argmax(axis=0).tolist())
    [[1.0, 3.0], [2.0, 4.0]] [0, 2]
    [[5.0, 1.0], [6.0, 2.0]] [1, 0]

    The last minibatch is filled up from the start of the data, and the next epoch begins behind what was borrowed; with
    ``ragged`` it is narrower instead, and every epoch begins at the first row. Data is not copied where tensors lie on
    the host: arrays belong to the iterator from now on.

    ``X``: (n, F), images (n, C, H, W), or with ``lshape`` any array of n rows; a list of such arrays gives a list of
    inputs, one for each branch of MergeMultistream. ``y``: n labels; with ``make_onehot=False`` n numbers, as (1, N),
    or (n, K), as (K, N); the inputs themselves unless given. ``lshape``: F, (C, H, W), or (F, T) with time steps,
    which come as (F, T * N); a list for a list. ``shuffle``: a new order each epoch, the same on every runtime.
    ``augment``: a function of ``neonlite.data`` such as Flip, or a list of them; a thread works one minibatch ahead.
    ``scale``: the inputs' factor, or (factor, offset): bytes stay bytes, and come as ``factor * x + offset``.

    ValueError for data and labels that do not fit; AttributeError for labels without ``nclass``.
    """

    def __init__(
        self,
        X: Any,
        y: Any = None,
        nclass: int | None = None,
        lshape: Any = None,
        make_onehot: bool = True,
        name: str | None = None,
        shuffle: bool = False,
        ragged: bool = False,
        augment: Any = None,
        scale: float | tuple[float, float] | None = None,
    ) -> None:
        super().__init__(name)
        self.be = self.be  # from now on this one, whatever becomes the current one
        self.nclass, self.lshape, self.make_onehot = nclass, lshape, make_onehot
        self.shuffle, self.ragged, self.scale = bool(shuffle), bool(ragged), scale
        streams = isinstance(X, list | tuple) and bool(X) and all(getattr(x, "ndim", 0) > 1 for x in X)
        arrays = [self._array(x, "X") for x in (X if streams else [X])]
        self.ndata = len(arrays[0])
        self._check_lengths(arrays, y if y is None else self._array(y, "y"))
        self.augment = augment if isinstance(augment, list | tuple) or augment is None else [augment]
        shapes = self._shapes(arrays)
        self._several = len(arrays) > 1
        self.shape = shapes if self._several else shapes[0]
        self.seed = self.be.rng_seed if shuffle or self.augment is not None else None
        if scale is not None:
            factor, offset = scale if isinstance(scale, tuple) and len(scale) == 2 else (scale, 0.0)
            scale = number(f"{self.name}: scale", factor), number(f"{self.name}: the offset of scale", offset)
        host = on_host(self.be)
        self._sources = [Source(self.be, x, host or self.augment is not None) for x in arrays]
        self._inputs = [Columns(self.be, shape, f"{self.name}.inputs", scale) for shape in shapes]
        self._targets = self._labels = None
        if y is not None:
            targets = self._one_label_each(y) if make_onehot else self._numbers(y)
            shape = targets.shape[1:] if targets.ndim == 3 else math.prod(targets.shape[1:])
            self._labels = Source(self.be, targets, host)
            self._targets = Columns(self.be, shape, f"{self.name}.targets", nclass=self.nclass if make_onehot else None)
        if self.be.bsz:
            self._epoch()

    # --- what it is given ---

    def _array(self, x: Any, what: str) -> NDArray[Any]:
        """Return data as an array of numbers: the array itself where it is one."""
        try:
            array = np.asarray(x)
        except ValueError as error:
            raise ValueError(f"{self.name}: {what} has rows of different lengths: {error}") from None
        if not holds_numbers(array):
            raise TypeError(f"{self.name}: {what} is an array of numbers; got one of {array.dtype}: {describe(x)}")
        if array.ndim < (2 if what == "X" else 1) or not array.size:
            shapes = "(n, F), (n, C, H, W), or any with lshape=" if what == "X" else "(n,), (n, 1) or (n, K)"
            hint = "; X.reshape(-1, 1) is n rows of one number" if array.ndim == 1 and array.size else ""
            raise ValueError(f"{self.name}: {what} is {shapes}, of one row at least; got an array {array.shape}{hint}")
        return array.view(np.uint8) if array.dtype.kind == "b" else array

    def _check_lengths(self, arrays: Sequence[NDArray[Any]], y: NDArray[Any] | None) -> None:
        lengths = {f"X[{i}]" if len(arrays) > 1 else "X": len(x) for i, x in enumerate(arrays)}
        lengths |= {} if y is None else {"y": len(y)}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{what} has {n}" for what, n in lengths.items())
            hint = "; n images in a list are one array: X=np.stack(images)" if len(arrays) > 2 else ""
            raise ValueError(f"{self.name}: as many rows everywhere; {found}{hint}")

    def _shapes(self, arrays: Sequence[NDArray[Any]]) -> list[Any]:
        """Return the shapes of the inputs: those of rows, or what an augmentation makes of images."""
        given = self.lshape if len(arrays) > 1 else [self.lshape]
        if given is None:
            given = [None] * len(arrays)
        if not isinstance(given, list) or len(given) != len(arrays):
            raise ValueError(f"{self.name}: lshape is a list of {len(arrays)} shapes, one an array; got {given!r}")
        shapes = [shape_of(self.name, x, shape) for x, shape in zip(arrays, given, strict=True)]
        if self.augment is None:
            return shapes
        if len(arrays) > 1:
            raise ValueError(f"{self.name}: augment is for one array of images; X is a list of {len(arrays)}")
        example = tried(self.augment, shapes[0], arrays[0].dtype)
        self._image, self._changed = shapes[0], example.dtype
        return [example.shape[1:]]

    def _one_label_each(self, y: Any) -> NDArray[Any]:
        """Return labels (n, 1), checked."""
        if self.nclass is None:
            raise AttributeError(
                f"{self.name}: one-hot targets need the number of classes: nclass=10, or make_onehot=False "
                "for targets as they are"
            )
        if isinstance(self.nclass, bool) or not isinstance(self.nclass, int | np.integer) or self.nclass < 1:
            raise ValueError(f"{self.name}: nclass is a whole number from 1; got {self.nclass!r}")
        self.nclass = int(self.nclass)
        labels = self._array(y, "y")
        if labels.size != self.ndata:
            raise ValueError(
                f"{self.name}: y has one label a row, (n,) or (n, 1); got {labels.shape}: targets that are one-hot "
                "already, or no labels, come with make_onehot=False"
            )
        if holds_floats(labels):
            nan = " with NaN in it" if np.isnan(labels).any() else ""
            raise ValueError(
                f"{self.name}: labels are whole numbers from 0 to {self.nclass - 1}; got {labels.dtype}{nan}: "
                "y.astype(int) for whole ones, make_onehot=False for other targets"
            )
        check_labels(self.name, labels, self.nclass)
        return labels.astype(np.int32).reshape(-1, 1)

    def _numbers(self, y: Any) -> NDArray[Any]:
        """Return targets (n, 1), (n, K) or (n, F, T), checked."""
        targets = self._array(y, "y")
        if targets.ndim > 3:
            raise ValueError(f"{self.name}: y is (n,), (n, K), or (n, F, T) with time steps; got {targets.shape}")
        check_numbers(self.name, targets)
        return targets

    # --- minibatches ---

    def work(self, epoch: Epoch) -> Callable[[int], Any] | None:
        changes = self.augment
        if changes is None:
            return None
        shape = (math.prod(self.shape), epoch.size)
        buffers = [np.empty(shape, self._changed) for _ in range(2)]

        def changed(k: int) -> NDArray[Any]:
            """Return the inputs of minibatch k, changed: (F, N)."""
            images = np.concatenate([self._sources[0].array[rows] for _, rows in epoch.pieces(k)])
            images = images.reshape(-1, *self._image)
            for i, change in enumerate(changes):
                images = change(images, epoch.words(AUGMENT + i, k, self.seed or 0))
            out = buffers[k % 2][:, : len(images)]
            out[...] = images.reshape(len(images), -1).T
            return out

        return changed

    def fill(self, epoch: Epoch, k: int, values: Any) -> tuple[Any, Any]:
        width, pieces = epoch.width(k), epoch.pieces(k)
        if values is None:
            inputs = [x.gather(rows, width, pieces) for x, rows in zip(self._inputs, self._sources, strict=True)]
        else:
            inputs = [self._inputs[0].fill(width, [(slice(0, width), values)])]
        made = inputs if self._several else inputs[0]
        if self._targets is None or self._labels is None:
            return made, made
        return made, self._targets.gather(self._labels, width, pieces)


# --- what iterators share ------------------------------------------------------------------------------------------


def shape_of(name: str, x: NDArray[Any], lshape: Any) -> Any:
    """Return the shape of a row of an array, or the one that is given for it: F, (F, T) or (C, H, W)."""
    features = math.prod(x.shape[1:])
    if lshape is None:
        if x.ndim == 3:
            _, a, b = x.shape
            raise ValueError(
                f"{name}: what are rows of {(a, b)}?  lshape=(1, {a}, {b}) for images of one channel, ({a}, {b}) for "
                f"{a} features in {b} time steps, {features} for features"
            )
        return features if x.ndim == 2 else x.shape[1:]
    sizes = tuple(lshape) if isinstance(lshape, tuple | list) else (lshape,)
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in sizes)
    if not whole or not sizes or math.prod(sizes) != features:
        raise ValueError(
            f"{name}: lshape={lshape!r} is not the shape of a row: the array is {x.shape}, {features} numbers a row"
        )
    return int(sizes[0]) if len(sizes) == 1 else tuple(int(n) for n in sizes)


def first_row(wrong: NDArray[np.bool_]) -> int:
    """Return the first row of an array of truth values that has a true one."""
    return int(wrong.reshape(len(wrong), -1).any(axis=1).argmax())


def check_numbers(name: str, targets: NDArray[Any]) -> None:
    """Raise ValueError for targets that are not numbers."""
    if holds_floats(targets) and np.isnan(targets).any():
        raise ValueError(f"{name}: targets are numbers; row {first_row(np.isnan(targets))} has NaN")


def check_labels(name: str, labels: NDArray[Any], nclass: int) -> None:
    """Raise ValueError for labels that are not classes."""
    wrong = (labels < 0) | (labels >= nclass)
    if wrong.any():
        row = first_row(wrong)
        raise ValueError(
            f"{name}: labels are whole numbers from 0 to {nclass - 1}, with nclass={nclass}; "
            f"row {row} has {labels.reshape(len(labels), -1)[row, 0]}"
        )
