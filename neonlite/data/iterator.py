"""Iterators over minibatches: NervanaDataIterator and ArrayIterator, which can save and restore its position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from neonlite.backend import NervanaObject, Tensor
from neonlite.backend.batch_size import complete_batch_size, require_batch_size
from neonlite.backend.validation import check_number, integer
from neonlite.data import minibatches
from neonlite.encoders import WAYS_OUT, check_unmasked, holds_pairs, names_of_columns, refuse_unread
from neonlite.messages import describe, listed, wording
from neonlite.name_hints import DATA, add_hints
from neonlite.typing import ArrayLike, ShapeLike, is_float_array, is_real_array

PAIRS_WAY_OUT = (
    "Pass inputs and targets as two arrays, such as fit(X, y). Minibatches are passed alone, fit(minibatches), and are "
    "pairs (X, y) of several rows each."
)
IteratorState = dict[str, Any]
MinibatchPart: TypeAlias = "Tensor | Sequence[MinibatchPart]"  # several inputs or targets, or targets with a mask
# Inputs and targets: tensors; several inputs in a list, several targets as MinibatchParts (Any, because few sets do)
Minibatch: TypeAlias = "tuple[Tensor | Any, Tensor | Any]"


@add_hints(DATA)
class NervanaDataIterator(NervanaObject):
    """Base class of data iterators: iterating over one yields the minibatches (inputs, targets) of an epoch.

    Subclasses set the attributes and implement ``__iter__``, and ``reset`` if they store a position.

    Parameters
    ----------
    name : str, optional
        Name; default: the class name and a counter.

    Attributes
    ----------
    ndata : int
        Number of rows.
    nbatches : int
        Number of minibatches per epoch.
    shape : int, tuple or list
        Shape of the inputs without the batch dimension: F, (F, T), (C, H, W), or a list of shapes.
    nclass : int or None
        Number of classes.
    preprocessing : Preprocessing or None
        Scale and mean that the iterator applies to its inputs; ``Model.predict`` applies them too.
    input_encoder, target_encoder : InputEncoder, TargetEncoder or None
        How its arrays were made of the data of ``Model.fit(X, y)``; ``Model.predict`` does the same.
    """

    nbatches: Any = 0
    ndata: int = 0
    shape: Any = None
    nclass: int | None = None
    preprocessing: minibatches.Preprocessing | None = None
    input_encoder: Any = None  # encoders import this module
    target_encoder: Any = None

    def __iter__(self) -> Iterator[Minibatch]:
        raise NotImplementedError(f"{self.classnm}: expected a method __iter__ that yields minibatches, got none.")

    def reset(self) -> None:
        """Restart at the first row."""

    def repr_details(self) -> list[str]:
        classes = [] if self.nclass is None else [f"{self.nclass} classes"]
        return [f"{self.ndata:,} rows of shape {self.shape}", *classes]


POSITION = ("epoch", "start", "minibatch", "seed", "ndata", "batch_size", "shuffle", "partial_last")


def check_position(name: str, state: IteratorState) -> None:
    """Raise ValueError unless the state of an iterator, with the keys of ``POSITION``, is a position in its data."""
    counts = [state[key] for key in ("epoch", "start", "minibatch", "ndata", "batch_size")]
    seed, flags = state["seed"], (state["shuffle"], state["partial_last"])
    is_valid = all(type(n) is int and 0 <= n < 2**64 for n in (*counts, 0 if seed is None else seed))
    if not is_valid or not all(type(x) is bool for x in flags) or not is_within(*counts[1:]):
        raise ValueError(f"{name}: expected the state to be integers within the data, got {state!r}.")


def is_within(start: int, minibatch: int, ndata: int, batch_size: int) -> bool:
    """Return whether there is such a row and such a minibatch."""
    return start < ndata and minibatch <= -(-ndata // max(batch_size, 1))


class ResumableIterator(NervanaDataIterator):
    """Base class of iterators over indexed rows, with a position that can be saved and restored.

    Iterating once over it is one epoch. The tensors of a minibatch are reused: the next minibatch overwrites them. If
    you leave a loop early, the next loop starts the epoch again; two loops at a time are an error. To resume after the
    last minibatch that was yielded, save ``get_state()`` and pass it to ``set_state``; the remaining minibatches are
    bit-identical.
    """

    start = 0  # number of rows of this epoch that the last minibatch of the previous epoch used
    epoch = 0  # number of completed epochs
    minibatch = 0  # number of minibatches of this epoch that were yielded
    shuffle = partial_last = False
    seed: int | None = None  # seed for shuffling and augmentation, that of the backend at construction
    _next_minibatch = 0  # index of the first minibatch of the next loop
    _batch_size = 0  # of the minibatches that ``minibatch`` counts; be.bsz may be that of a partial minibatch
    block_rows = 0  # rows of a block of a file, by which rows are shuffled; 0 for data in memory

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.be = self.be  # keep this backend if another one becomes current

    @property
    def nbatches(self) -> int:
        """Number of minibatches of this epoch. It may vary by one, as the last one uses rows of the next epoch."""
        return self._current_epoch().nbatches

    def _current_epoch(self) -> minibatches.Epoch:
        """Return the current epoch. Raise ValueError if the batch size is not set or too large."""
        shard = self.be.shard
        n = require_batch_size(self.be, self.name) if shard is None else shard.total
        if n > self.ndata and not self.partial_last:
            way_out = f"Set be.bsz = {self.ndata} or less, or use an ArrayIterator with partial_last=True."
            raise ValueError(
                f"{self.name}: expected a batch size of at most {self.ndata}, the number of rows, got {n}. "
                + wording("batch_size", way_out, self.ndata)
            )
        seed = self.seed if self.shuffle else None
        return minibatches.Epoch(self.epoch, self.start, self.ndata, n, self.partial_last, seed, shard, self.block_rows)

    def __iter__(self) -> Iterator[Minibatch]:
        self.minibatch, self._next_minibatch = self._next_minibatch, 0
        epoch = self._current_epoch()
        self._batch_size = epoch.batch_size
        steps = range(self.minibatch, epoch.nbatches)
        compute = self.make_prefetcher(epoch)
        with closing(minibatches.prefetch(compute, steps) if compute else (None for _ in steps)) as prefetched:
            for k, values in zip(steps, prefetched, strict=True):
                pair = self.fill_minibatch(epoch, k, values)
                self.minibatch = k + 1
                if epoch.shard is not None:
                    self.be.thread_bsz.minibatch_shard = epoch.shard.of(epoch.global_columns(k))
                yield pair
                if (self.epoch, self.minibatch) != (epoch.index, k + 1):
                    raise RuntimeError(
                        f"{self.name}: expected one loop at a time, got another one during minibatch {k}. They share "
                        "the tensors and the position: use an iterator for each, or restore the position by get_state "
                        "and set_state."
                    )
        self.epoch, self.start, self.minibatch, self._next_minibatch = epoch.index + 1, epoch.next_start, 0, 0

    def make_prefetcher(self, epoch: minibatches.Epoch) -> Callable[[int], object] | None:
        """Return a function that computes values for minibatch k in a background thread, or None.

        Parameters
        ----------
        epoch : Epoch
            The current epoch.

        Returns
        -------
        callable or None
            A function of the index k of a minibatch. Its result is passed to ``fill_minibatch`` as ``values``.
        """
        return None

    def fill_minibatch(self, epoch: minibatches.Epoch, k: int, values: object) -> Minibatch:
        """Write minibatch k into the tensors, and return them. Subclasses implement it.

        Parameters
        ----------
        epoch : Epoch
            The current epoch.
        k : int
            Index of the minibatch.
        values : object
            Result of the function from ``make_prefetcher`` for k, or None without one.

        Returns
        -------
        (inputs, targets)
            The tensors of the minibatch.
        """
        raise NotImplementedError(
            f"{self.classnm}: expected a method fill_minibatch(epoch, k, values) that returns a minibatch, got none."
        )

    def reset(self) -> None:
        """Restart at the first row. The epoch count does not change, so that a shuffled order is not repeated."""
        self.start = self.minibatch = self._next_minibatch = 0

    # --- position ---

    def _config(self) -> IteratorState:
        """Return the options that must be the same when a state is restored."""
        options = {"shuffle": self.shuffle, "partial_last": self.partial_last}
        return {"ndata": self.ndata, "batch_size": complete_batch_size(self.be), **options}

    def get_state(self) -> IteratorState:
        """Return the position in the data.

        Returns
        -------
        dict
            Integers, flags and None, which can be saved as JSON.
        """
        position = {"epoch": self.epoch, "start": self.start, "minibatch": self.minibatch, "seed": self.seed}
        counted = {"batch_size": self._batch_size} if self.minibatch else {}
        return {**position, **self._config(), **counted}

    def set_state(self, state: IteratorState) -> None:
        """Restore a position and the seed.

        Parameters
        ----------
        state : dict
            The result of ``get_state()`` of an iterator with the same data and options.

        Raises
        ------
        ValueError
            If the state is invalid, or data or options differ; the position is then unchanged.
        """
        config, current = self._config(), self.get_state()
        if not isinstance(state, dict) or set(state) != set(current):
            raise ValueError(
                f"{self.name}: expected the state to be the dict of get_state(), with {', '.join(current)}, "
                f"got {state!r}."
            )
        differences = [f"{key} = {state[key]!r}, here {config[key]!r}" for key in config if state[key] != config[key]]
        if (state["seed"] is None) != (self.seed is None):
            differences.append(f"seed = {state['seed']!r}, here {self.seed!r}")
        if differences:
            raise ValueError(f"{self.name}: expected a state of this iterator, got one with {'; '.join(differences)}.")
        check_position(self.name, state)
        self.epoch, self.start, self.seed = state["epoch"], state["start"], state["seed"]
        self._next_minibatch = self.minibatch = state["minibatch"]
        self._batch_size = state["batch_size"]


class ArrayIterator(ResumableIterator):
    """Iterate over arrays in minibatches: inputs (F, N) and targets, by default one-hot labels (nclass, N).

    The last minibatch of an epoch is filled up with the first rows of the next epoch, which then starts after them.
    If tensors are in host memory, the arrays are not copied; do not change them afterwards.

    Parameters
    ----------
    X : array_like or list of array_like
        Inputs: rows (n, F), images (n, C, H, W), or with ``lshape`` any array of n rows. A list of arrays gives a
        list of inputs, one for each branch of MergeMultistream.
    y : array_like, optional
        Targets: n labels; with ``make_onehot=False`` values (n,) -> (1, N), (n, K) -> (K, N), or time steps
        (n, F, T) -> (F, T * N). Default: the inputs.
    nclass : int, optional
        Number of classes; required for one-hot targets.
    lshape : int, tuple or list, optional
        Shape of a row: F, (C, H, W), or (F, T) with time steps, which gives inputs (F, T * N). A list of shapes for
        a list of arrays. Default: the shape of the rows of ``X``.
    make_onehot : bool
        Whether ``y`` holds labels, which are converted to one-hot targets; default: True.
    name : str, optional
        Name, used in error messages; default: the class name and a counter.
    shuffle : bool
        Whether each epoch has a new random order, the same on all runtimes; default: False.
    partial_last : bool
        Whether the last minibatch is smaller instead of filled up; each epoch then starts at row 0. Default: False.
    augment : callable or list of callable, optional
        Image augmentations, such as ``Flip()``, computed one minibatch ahead by a background thread.
    scale : float or (float, float), optional
        Factor, or (factor, offset): inputs are ``factor * x + offset``. ``X`` itself keeps its dtype, so uint8 images
        stay uint8. A model that is trained on the iterator applies the same scale in ``predict``.
    check_finite : bool
        Whether to check all inputs and targets for NaN and infinity at construction; default: True.
    sample_weight : array_like, optional
        A weight for each row, (n,). Targets are then pairs (targets, weights), as for ``GeneralizedCostMask``.

    Raises
    ------
    ValueError
        If shapes or labels do not match, or there is NaN or infinity; the message then names row and column.
    TypeError
        If data is not numeric.
    AttributeError
        If ``nclass`` is missing for one-hot targets.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.data import ArrayIterator
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> train = ArrayIterator([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], y=[0, 2, 1], nclass=3)
    >>> for x, t in train:
    ...     print(x.get().tolist(), t.get().argmax(axis=0).tolist())
    [[1.0, 3.0], [2.0, 4.0]] [0, 2]
    [[5.0, 1.0], [6.0, 2.0]] [1, 0]
    """

    def __init__(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        nclass: int | None = None,
        lshape: ShapeLike | Sequence[ShapeLike] | None = None,
        make_onehot: bool = True,
        name: str | None = None,
        shuffle: bool = False,
        partial_last: bool = False,
        augment: minibatches.Augmentation | Sequence[minibatches.Augmentation] | None = None,
        scale: float | tuple[float, float] | None = None,
        check_finite: bool = True,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        super().__init__(name)
        self.nclass, self.lshape, self.make_onehot = nclass, lshape, make_onehot
        self.check_finite = bool(check_finite)
        self.shuffle, self.partial_last, self.scale = bool(shuffle), bool(partial_last), scale
        inputs = X if isinstance(X, list | tuple) and X and all(getattr(x, "ndim", 0) > 1 for x in X) else [X]
        arrays = [map_rows(to_array(self.name, x, "X")) for x in inputs]
        self.ndata = len(arrays[0])
        self._check_lengths(arrays, y if y is None else to_array(self.name, y, "y"))
        if scale is not None:
            factor, offset = scale if isinstance(scale, tuple) and len(scale) == 2 else (scale, 0.0)
            scale = (check_number(f"{self.name}: scale", factor), check_number(f"{self.name}: offset of scale", offset))
            if not scale[0]:
                raise ValueError(f"{self.name}: expected a factor other than 0 for scale, got 0: all inputs are equal.")
            self.preprocessing = minibatches.Preprocessing(
                *scale, integers=tuple(minibatches.IntegerRange.from_array(x) for x in arrays)
            )
        labels = [f"{self.name}: X[{i}]" if len(arrays) > 1 else f"{self.name}: X" for i in range(len(arrays))]
        checks = [self._check_rows(label, x, scale) for label, x in zip(labels, arrays, strict=True)]
        self.augment = (augment if isinstance(augment, list | tuple) or augment is None else [augment]) or None
        shapes = self._input_shapes(arrays)
        self._has_multiple_inputs = len(arrays) > 1
        self.shape = shapes if self._has_multiple_inputs else shapes[0]
        self.seed = self.be.rng_seed if shuffle or self.augment is not None else None
        host = minibatches.uses_host_memory(self.be)
        dtype = None if scale is None else minibatches.scaling_dtype(self.be.default_dtype).name
        in_host = host or self.augment is not None
        self.sources = [
            minibatches.RowSource(self.be, x, in_host, dtype, check) for x, check in zip(arrays, checks, strict=True)
        ]
        self._inputs = [minibatches.MinibatchBuffers(self.be, shape, f"{self.name}.inputs", scale) for shape in shapes]
        self._targets = self._labels = self._weights = None
        if y is not None:
            targets = self._check_labels(y) if make_onehot else self._check_targets(y)
            shape = targets.shape[1:] if targets.ndim == 3 else math.prod(targets.shape[1:])
            check = None if make_onehot else self._check_rows(f"{self.name}: y", targets)
            self._labels = minibatches.RowSource(self.be, targets, host, check=check)
            nclass = self.nclass if make_onehot else None
            self._targets = minibatches.MinibatchBuffers(self.be, shape, f"{self.name}.targets", nclass=nclass)
            if sample_weight is not None:
                weights = self._check_weights(sample_weight, shape[1] if isinstance(shape, tuple) else 1)
                buffers = minibatches.MinibatchBuffers(self.be, weights.shape[1:], f"{self.name}.weights")
                self._weights = buffers, minibatches.RowSource(self.be, weights, host)
        self._mapped = [x.mapped for x in (*self.sources, self._labels) if x is not None and x.mapped is not None]
        self._windows: set[tuple[int, int]] = set()  # of the last minibatch
        if self._mapped:
            self.block_rows = min(x.block_rows for x in self._mapped)
        if self.be.bsz:
            self._current_epoch()

    @property
    def target_rows(self) -> NDArray[Any] | None:
        """The targets of all rows, or their class indices; None if the inputs are the targets."""
        return None if self._labels is None else self._labels.array

    # --- checks of the arguments ---

    def _check_lengths(self, arrays: Sequence[NDArray[Any]], y: NDArray[Any] | None) -> None:
        lengths = {f"X[{i}]" if len(arrays) > 1 else "X": len(x) for i, x in enumerate(arrays)}
        lengths |= {} if y is None else {"y": len(y)}
        if len(set(lengths.values())) > 1:
            got = ", ".join(f"{label} has {n}" for label, n in lengths.items())
            hint = " Stack n images in a list into one array: X=np.stack(images)." if len(arrays) > 2 else ""
            raise ValueError(f"{self.name}: expected the same number of rows everywhere; {got}.{hint}")

    def _input_shapes(self, arrays: Sequence[NDArray[Any]]) -> list[Any]:
        """Return the shapes of the inputs: those of rows, or of augmented images."""
        lshapes = self.lshape if isinstance(self.lshape, list) and len(arrays) > 1 else [self.lshape] * len(arrays)
        if len(lshapes) != len(arrays):
            raise ValueError(
                f"{self.name}: expected lshape to be a list of {len(arrays)} shapes, one for each array, "
                f"got {lshapes!r}."
            )
        shapes = [row_shape(self.name, x, shape) for x, shape in zip(arrays, lshapes, strict=True)]
        if self.augment is None:
            return shapes
        if len(arrays) > 1:
            raise ValueError(f"{self.name}: augment: expected one array of images, got a list of {len(arrays)}.")
        example = minibatches.check_augmentations(self.augment, shapes[0], arrays[0].dtype)
        self._image, self._augmented_dtype = shapes[0], example.dtype
        return [example.shape[1:]]

    def _check_labels(self, y: ArrayLike) -> NDArray[Any]:
        """Return labels (n, 1) after checking them."""
        if self.nclass is None:
            raise AttributeError(
                f"{self.name}: expected nclass, the number of classes, for one-hot targets, got None. Pass nclass=10 "
                "for example, or make_onehot=False to use y unchanged."
            )
        self.nclass = integer(f"{self.name}: nclass", self.nclass)
        labels = np.asarray(to_array(self.name, y, "y"))
        if labels.size != self.ndata:
            raise ValueError(
                f"{self.name}: expected y to have one label a row, (n,) or (n, 1), got {labels.shape}. "
                "Pass make_onehot=False if y is already one-hot, or not labels."
            )
        if is_float_array(labels):
            nan = " with NaN" if np.isnan(labels).any() else ""
            raise ValueError(
                f"{self.name}: expected integer labels from 0 to {self.nclass - 1}, got {labels.dtype}{nan}. "
                "Convert them by y.astype(int), or pass make_onehot=False for other targets."
            )
        check_labels(self.name, labels, self.nclass)
        return labels.astype(np.int32).reshape(-1, 1)

    def _check_targets(self, y: ArrayLike) -> NDArray[Any]:
        """Return targets (n,), (n, K) or (n, F, T) after checking them."""
        targets = map_rows(to_array(self.name, y, "y"))
        if targets.ndim > 3:
            raise ValueError(
                f"{self.name}: expected y to be (n,), (n, K), or (n, F, T) with time steps, got {targets.shape}."
            )
        return targets

    def _check_rows(
        self, label: str, x: Any, scale: tuple[float, float] | None = None
    ) -> Callable[[NDArray[Any], minibatches.RowIndex], None] | None:
        """Raise ValueError for NaN and infinity; return a function that does so for the rows of files."""
        if not self.check_finite:
            return None
        if not isinstance(x, minibatches.MappedArray):
            check_all_finite(label, x, self.be.default_dtype, scale=scale)
            return None

        def check(values: NDArray[Any], rows: minibatches.RowIndex) -> None:
            first = rows.start if isinstance(rows, slice) else rows
            check_all_finite(label, values, self.be.default_dtype, first, scale)

        return check

    def _check_weights(self, sample_weight: ArrayLike, steps: int) -> NDArray[Any]:
        """Return the weights of rows, repeated for each time step, (n, 1, steps), after checking them."""
        weights = to_array(self.name, sample_weight, "sample_weight")
        if weights.shape != (self.ndata,):
            raise ValueError(f"{self.name}: expected a weight for each of {self.ndata} rows, got {weights.shape}.")
        check_all_finite(f"{self.name}: sample_weight", weights, self.be.default_dtype)
        return weights[:, None, None].repeat(steps, axis=2)

    # --- minibatches ---

    def make_prefetcher(self, epoch: minibatches.Epoch) -> Callable[[int], object] | None:
        augmentations, source = self.augment or (), self.sources[0]
        if self.augment is None and (source.mapped is None or self._has_multiple_inputs):
            return None
        features = math.prod(self.shape) if isinstance(self.shape, tuple) else self.shape
        dtype = source.array.dtype if self.augment is None else self._augmented_dtype
        buffers = [np.empty((features, epoch.num_columns(0)), dtype) for _ in range(2)]

        def augmented(k: int) -> NDArray[Any]:
            """Return the inputs of minibatch k, augmented: (F, N)."""
            self._read_ahead(epoch, k)
            if not (spans := epoch.spans(k)):  # a shard without columns
                return buffers[k % 2][:, :0]
            read = source.array.__getitem__ if source.mapped is None else source.get_rows
            images = np.concatenate([read(rows) for _, rows in spans])
            images = images.reshape(-1, *self._image) if augmentations else images
            for i, augmentation in enumerate(augmentations):
                images = augmentation(images, epoch.random_bits(minibatches.PURPOSE_AUGMENT + i, k, self.seed or 0))
            out = buffers[k % 2][:, : len(images)]
            out[...] = images.reshape(len(images), -1).T
            return out

        return augmented

    def _read_ahead(self, epoch: minibatches.Epoch, k: int) -> None:
        """Let the system read the blocks of files that minibatch k is the first one to need."""
        windows, before = epoch.windows(k), self._windows
        self._windows = windows
        for window in sorted(windows - before):
            rows = epoch.window_rows(*window)
            for x in self._mapped:
                x.read_ahead(rows)

    def fill_minibatch(self, epoch: minibatches.Epoch, k: int, values: object) -> Minibatch:
        num_columns, spans = epoch.num_columns(k), epoch.spans(k)
        if values is None:
            self._read_ahead(epoch, k)
            pairs = zip(self._inputs, self.sources, strict=True)
            inputs = [buffers.gather(source, num_columns, spans) for buffers, source in pairs]
        else:
            inputs = [self._inputs[0].fill(num_columns, [(slice(0, num_columns), values)])]
        result = inputs if self._has_multiple_inputs else inputs[0]
        if self._targets is None or self._labels is None:
            return result, result
        targets = self._targets.gather(self._labels, num_columns, spans)
        if self._weights is None:
            return result, targets
        buffers, weights = self._weights
        return result, (targets, buffers.gather(weights, num_columns, spans))


# --- checks shared by iterators ----------------------------------------------------------------------------------


def map_rows(x: Any) -> Any:
    """Return a memory-mapped array as a MappedArray, and other arrays unchanged."""
    return x if minibatches.mapping_of(x) is None else minibatches.MappedArray(x)


def to_array(name: str, x: object, label: str) -> Any:
    """Convert data to a numeric array, without a copy if it is one. Raise TypeError or ValueError if that fails."""
    refuse_unread(name, x)
    check_unmasked(name, x, of=label)
    try:
        array: Any = x if isinstance(x, minibatches.MappedArray) else np.asarray(x)
    except ValueError as error:
        if isinstance(x, list | tuple) and holds_pairs(x):
            raise TypeError(
                f"{name}: expected {label} to be rows, got a list of {type(x[0]).__name__}s of {len(x[0])}, as of "
                f"samples or minibatches. {PAIRS_WAY_OUT}"
            ) from None
        raise ValueError(f"{name}: expected the rows of {label} to have one length: {error}") from None
    if (columns := names_of_columns(x)) is not None:
        raise TypeError(
            f"{name}: expected {label} to be a numeric array, got a table with the columns {listed(columns)}. Pass an "
            "array of its numbers, such as df.to_numpy()."
        )
    if not is_real_array(array):
        is_text = label == "y" and array.dtype.kind in "UT"
        way_out = ". Number the labels: np.unique(y, return_inverse=True)[1], or use Model.fit(X, y)" if is_text else ""
        if isinstance(x, Iterable) and not array.ndim:
            way_out = f". {PAIRS_WAY_OUT}"
        if array.dtype.kind in WAYS_OUT:
            way_out = f". {WAYS_OUT[array.dtype.kind]}"
        raise TypeError(f"{name}: expected {label} to be a numeric array, got {array.dtype}: {describe(x)}{way_out}")
    if array.ndim < (2 if label == "X" else 1) or not array.size:
        shapes = "(n, F), (n, F, T) or (n, C, H, W)" if label == "X" else "(n,), (n, 1) or (n, K)"
        is_vector = array.ndim == 1 and array.size
        hint = " Use X[None] for one row, X[:, None] for n rows of one feature." if is_vector else ""
        raise ValueError(f"{name}: expected {label} to be {shapes}, with at least one row, got {array.shape}.{hint}")
    return array.view(np.uint8) if array.dtype.kind == "b" else array


def row_shape(name: str, x: NDArray[Any], lshape: ShapeLike | None) -> Any:
    """Return the shape of the rows of an array, or ``lshape`` after checking it: F, (F, T) or (C, H, W)."""
    features = math.prod(x.shape[1:])
    if lshape is None:
        if x.ndim == 3:
            _, a, b = x.shape
            raise ValueError(
                f"{name}: expected lshape for rows of shape {(a, b)}, got None. Pass lshape=(1, {a}, {b}) for images "
                f"of one channel, ({a}, {b}) for {a} features in {b} time steps, {features} for features."
            )
        return features if x.ndim == 2 else x.shape[1:]
    sizes = tuple(lshape) if isinstance(lshape, tuple | list) else (lshape,)
    is_valid = all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n > 0 for n in sizes)
    if not is_valid or not sizes or math.prod(sizes) != features:
        raise ValueError(
            f"{name}: expected lshape to be a shape of {features} features, as X of shape {x.shape} has, "
            f"got lshape={lshape!r}."
        )
    if hint := transpose_hint(x.shape[1:], sizes):
        raise ValueError(f"{name}: expected lshape to have the axes of X of shape {x.shape}, got {lshape!r}: {hint}.")
    return int(sizes[0]) if len(sizes) == 1 else tuple(int(n) for n in sizes)


def transpose_hint(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Return how to transpose rows that have the expected sizes in a different order, else an empty string."""
    without_ones = [[n for n in sizes if n > 1] for sizes in (shape, expected)]
    if without_ones[0] == without_ones[1] or len(shape) != len(expected) or sorted(shape) != sorted(expected):
        return ""
    if len(shape) == 2:
        return "features come before time steps: X.transpose(0, 2, 1)"
    is_nhwc = (shape[-1], *shape[:-1]) == expected
    return "channels come first: X.transpose(0, 3, 1, 2)" if is_nhwc else f"rows have the shape {expected}"


def first_true_row(mask: NDArray[np.bool_]) -> int:
    """Return the index of the first row of a mask with a true element."""
    return int(mask.reshape(len(mask), -1).any(axis=1).argmax())


BLOCK_SIZE = 1 << 18  # elements checked at a time; small enough for the CPU cache


def check_all_finite(
    label: str,
    array: NDArray[Any],
    dtype: DTypeLike,
    first: int | NDArray[np.int64] = 0,
    scale: tuple[float, float] | None = None,
    way_out: str = "; check_finite=False skips this check",
) -> None:
    """Raise ValueError, with row and column, for NaN, infinity, and values that overflow when cast to ``dtype``.

    ``first``: index of the first row, or of all, for the message. ``scale``: (factor, offset), applied before the cast.
    """
    dtype = np.dtype(dtype)

    def is_finite(x: NDArray[Any]) -> NDArray[np.bool_]:
        with np.errstate(over="ignore", invalid="ignore"):
            if scale is not None:
                x = x.astype(minibatches.scaling_dtype(dtype), copy=False) * scale[0] + scale[1]
            finite: NDArray[np.bool_] = np.isfinite(x.astype(dtype, copy=False))
            return finite

    if not is_float_array(array):
        limits = np.iinfo(np.uint8 if array.dtype.kind == "b" else array.dtype)
        if is_finite(np.array([limits.min, limits.max])).all():
            return
    step = max(BLOCK_SIZE * len(array) // max(array.size, 1), 1)
    for start in range(0, len(array), step):
        block = array[start : start + step]
        finite = is_finite(block)
        if not finite.all():
            row, *column = np.unravel_index(int(finite.argmin()), block.shape)
            value, index = block[(row, *column)], start + int(row)
            index = first + index if isinstance(first, int) else int(first[index])
            at = ", ".join(map(str, column)) or "0"
            overflow = f", infinite in {dtype}{'' if scale is None else ' after scaling'}"
            raise ValueError(
                f"{label}: expected finite values, got {value} in row {index}, "
                f"column {f'({at})' if len(column) > 1 else at}{overflow if np.isfinite(value) else ''}. "
                f"Remove these rows, or replace the values{way_out}."
            )


def check_labels(name: str, labels: NDArray[Any], nclass: int, first: int = 0) -> None:
    """Raise ValueError for labels out of the range 0 to nclass - 1. ``first``: index of the first row."""
    invalid = (labels < 0) | (labels >= nclass)
    if invalid.any():
        row = first_true_row(invalid)
        raise ValueError(
            f"{name}: expected integer labels from 0 to {nclass - 1}, as nclass={nclass}, "
            f"got {labels.reshape(len(labels), -1)[row, 0]} in row {first + row}."
        )
