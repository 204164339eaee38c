"""MinibatchIterator: an iterable of minibatches (X, y), such as a DataLoader of PyTorch, as a data set of a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from neonlite.data import NervanaDataIterator
from neonlite.data.minibatch_buffers import MinibatchBuffers
from neonlite.data.preprocessing import IntegerRange, Preprocessing
from neonlite.encoders.targets import ClassEncoder, one_hot
from neonlite.layers.buffers import num_features
from neonlite.messages import describe, describe_setting
from neonlite.models.training_data import UINT8_SCALE, TrainingData

if TYPE_CHECKING:
    from neonlite.data.iterator import Minibatch
    from neonlite.encoders.inputs import InputEncoder
    from neonlite.encoders.targets import TargetEncoder
    from neonlite.layers import GeneralizedCost
    from neonlite.models.model import Model
    from neonlite.transforms import Cost

# of arrays and data sets, which are not iterables of minibatches
ARRAY_ATTRIBUTES = ("__array__", "__dlpack__", "nbatches", "ndata", "shape")


class MinibatchIterator(NervanaDataIterator):
    """Iterate over minibatches (X, y) of arrays, which are encoded for a model.

    All are read once at construction, to count and check them. Images are transposed to (N, C, H, W), uint8 is divided
    by 255, and classes become one-hot. Nothing is standardized unless the encoders do it, as this needs all rows.

    Parameters
    ----------
    model : Model
        The model; if it is not initialized, its network is configured for the data.
    where : str
        The caller, for error messages.
    minibatches : iterable
        Yields the same number of rows, or fewer, in pairs (X, y); again in each epoch.
    cost : Cost, GeneralizedCost or str, optional
        The cost, which decides whether targets are classes or numbers.
    layout : str, optional
        As for ``Model.fit``.
    encoders : tuple, optional
        The input encoder and the target encoder, either of which may be None. Default: those of the model.

    Attributes
    ----------
    cost : Cost or GeneralizedCost
        The given cost, that of the last ``fit``, or the default for the targets.
    batch_size : int
        The largest number of rows of a minibatch.

    Raises
    ------
    TypeError
        They cannot be read again, or are not pairs.
    ValueError
        There are none, or a minibatch does not match the first one or the network.
    """

    def __init__(
        self,
        model: Model,
        where: str,
        minibatches: Any,
        cost: GeneralizedCost | Cost | str | None = None,
        layout: str | None = None,
        encoders: tuple[InputEncoder | None, TargetEncoder | None] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.where, self.minibatches, self.layout = model, where, minibatches, layout
        self.input_encoder, self.target_encoder = encoders or (model.input_encoder, model.target_encoder)
        self.cost: Any = cost
        self.batch_size = 0
        first: TrainingData | None = None
        for data in self.encode():
            first = first or data
            self.ndata, self.nbatches = self.ndata + data.num_rows, self.nbatches + 1
            self.batch_size = max(self.batch_size, data.num_rows)
            if data.scale is not None:
                self._include_range(data)
        if first is None or first.targets is None:
            raise ValueError(f"{where}: expected minibatches (X, y), got none from {describe(minibatches)}")
        if next(iter(minibatches), None) is None:
            raise ends_after_one_epoch(where, minibatches)
        self.cost, self.shape = first.cost, model.layers.in_shape
        scale = None if first.scale is None else (first.scale, 0.0)
        shapes = self.shape if isinstance(self.shape, list) else [self.shape]
        self._inputs = [MinibatchBuffers(model.be, shape, f"{self.name}.inputs", scale) for shape in shapes]
        row = self._dense_targets(first).shape[1:]
        self._targets = MinibatchBuffers(model.be, row if len(row) > 1 else row[0], f"{self.name}.targets")
        self._dtypes = [x.dtype.kind for x in first.inputs]

    def _include_range(self, data: TrainingData) -> None:
        """Extend the range of integer inputs, which are scaled, by those of a minibatch."""
        (x,) = data.inputs
        if self.preprocessing is None:
            self.preprocessing = Preprocessing(UINT8_SCALE, 0.0, integers=(IntegerRange.from_array(x),))
        elif limits := self.preprocessing.integers[0]:
            limits.include(x)

    def encode(self) -> Iterator[TrainingData]:
        """Yield the minibatches of an epoch, encoded as the first one."""
        for i, pair in enumerate(self.minibatches):
            where = f"{self.where}: minibatch {i + 1}"
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise TypeError(f"{where}: expected a pair (X, y), got {describe(pair)}. Yield X and y: (X, y).")
            (X, y), encoders = pair, (self.input_encoder, self.target_encoder)
            if not np.ndim(y):
                raise ValueError(
                    f"{where}: expected X and y of several rows, got one sample {describe_setting(pair)}. Yield "
                    "minibatches, as a DataLoader with batch_size=32 does, or pass arrays: fit(X, y)."
                )
            data = TrainingData(
                self.model, where, X, y, self.cost, self.layout, standardize=False, encoders=encoders, is_part=True
            )
            self.input_encoder, self.target_encoder = data.input_encoder, data.target_encoder
            yield data

    def __iter__(self) -> Iterator[Minibatch]:
        for data in self.encode():
            n, dtypes = data.num_rows, [x.dtype.kind for x in data.inputs]
            if dtypes != self._dtypes:
                raise TypeError(f"{data.where}: expected the dtypes of the first minibatch, got {data.inputs[0].dtype}")
            pairs = zip(self._inputs, data.inputs, strict=True)
            inputs = [buffers.fill(n, [(slice(0, n), x.reshape(n, -1).T)]) for buffers, x in pairs]
            columns = self._dense_targets(data).reshape(n, -1).T
            yield inputs if len(inputs) > 1 else inputs[0], self._targets.fill(n, [(slice(0, n), columns)])

    def _dense_targets(self, data: TrainingData) -> NDArray[Any]:
        """Return encoded targets (n, K) or (n, K, T), classes one-hot."""
        targets = np.asarray(data.targets)
        is_class = isinstance(data.target_encoder, ClassEncoder)
        return one_hot(targets, num_features(self.model.layers.out_shape)) if is_class else targets


def is_minibatches(where: str, X: Any) -> bool:
    """Return whether data is an iterable of minibatches, and not rows; raise TypeError if it can be read only once."""
    if isinstance(X, list | tuple):
        return bool(X) and all(isinstance(x, list | tuple) and len(x) == 2 and is_pair(*x) for x in X)
    if isinstance(X, str | bytes | Mapping) or any(hasattr(X, name) for name in ARRAY_ATTRIBUTES):
        return False
    if hasattr(type(X), "columns"):  # a data frame; of a lazy one of polars, X.columns warns
        return False
    if isinstance(X, Iterator):
        raise ends_after_one_epoch(where, X)
    return isinstance(X, Iterable)


def is_pair(X: Any, y: Any) -> bool:
    """Return whether these are the rows and the targets of a minibatch: arrays, of which the first has rows."""
    arrays = X if isinstance(X, list | tuple) and X else [X]
    return all(getattr(x, "ndim", 0) > 1 for x in arrays) and (getattr(y, "ndim", 0) > 0 or isinstance(y, list | tuple))


def ends_after_one_epoch(where: str, X: object) -> TypeError:
    """Return the exception for an iterable that can be read only once, such as a generator."""
    return TypeError(
        f"{where}: expected data that can be read again in each epoch, got a {type(X).__name__}, which ends after the "
        "first one. Pass a list of its minibatches (X, y), or an object whose __iter__ starts again."
    )
