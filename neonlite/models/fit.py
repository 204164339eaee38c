"""Model.fit: train on arrays, data frames and texts, or on a data iterator."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, overload

import numpy as np

from neonlite import tree_structure, typing
from neonlite.backend import on_its_backend
from neonlite.backend.batch_size import DEFAULT_BATCH_SIZE
from neonlite.backend.concurrency import DeferredInterrupt
from neonlite.backend.validation import checks_arguments, integer, warn, with_attributes
from neonlite.callbacks import Callback, CallbackBase, Callbacks, History, MetricCallback
from neonlite.data import NervanaDataIterator
from neonlite.distributed.communicator import Communicator, launched_rank_and_size, world
from neonlite.distributed.optimizer import Distributed
from neonlite.encoders.targets import ClassEncoder
from neonlite.layers import GeneralizedCost, Multicost, recurrent
from neonlite.models.base import ModelBase
from neonlite.models.training import TrainingMethods, train
from neonlite.models.training_data import (
    MinibatchIterator,
    TrainingData,
    check_inputs,
    is_minibatches,
    is_pair,
    metric_for,
)
from neonlite.optimizers import Adam, Optimizer
from neonlite.transforms import Cost, Metric

DEFAULT_EPOCHS = 10


class FitMethods(TrainingMethods):
    """``Model.fit``."""

    @overload
    def fit(
        self,
        dataset: NervanaDataIterator,
        cost: GeneralizedCost | Multicost | Cost | str,
        optimizer: Optimizer | str,
        num_epochs: int,
        callbacks: CallbackBase | None = None,
        cuda_graphs: bool = True,
        *,
        accumulate: int = 1,
        distributed: bool | Communicator = False,
    ) -> None: ...
    @overload
    def fit(
        self,
        X: typing.Data | NervanaDataIterator,
        y: typing.Data | str | None = None,
        *,
        epochs: int = DEFAULT_EPOCHS,
        batch_size: int = DEFAULT_BATCH_SIZE,
        cost: GeneralizedCost | Cost | str | None = None,
        optimizer: Optimizer | str | None = None,
        validation_split: float = 0.0,
        validation_data: tuple[typing.Data, typing.Data] | NervanaDataIterator | None = None,
        metrics: Sequence[Metric | str] | Metric | str | None = None,
        callbacks: Callbacks | Sequence[Callback] | Callback | None = None,
        sample_weight: typing.ArrayLike | None = None,
        class_weight: typing.ClassWeights | str | None = None,
        shuffle: bool = True,
        progress_bar: bool = True,
        layout: str | None = None,
        standardize: bool | None = None,
        text_length: int | None = None,
        cuda_graphs: bool = True,
        accumulate: int = 1,
        distributed: bool | Communicator = False,
    ) -> History: ...
    @checks_arguments  # type: ignore[misc]
    @on_its_backend
    def fit(
        self,
        X: Any = None,
        y: Any = None,
        optimizer: Any = None,
        num_epochs: int | None = None,
        callbacks: Any = None,
        cuda_graphs: bool = True,
        *,
        dataset: Any = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        cost: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        metrics: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        shuffle: bool = True,
        progress_bar: bool = True,
        layout: str | None = None,
        standardize: bool | None = None,
        text_length: int | None = None,
        accumulate: int = 1,
        distributed: bool | Communicator = False,
    ) -> History | None:
        """Train on data, or as in neon on an iterator: ``fit(dataset, cost, optimizer, num_epochs, callbacks)``.

        Both continue a training: its optimizer, its cost and, after Ctrl-C, its epoch. In ``fit(X, y)``, what is done
        to the data is part of the model: ``predict`` repeats it, and checkpoints store it. This is: images are
        transposed to (N, C, H, W), and uint8 is divided by 255; rows of features, columns of numbers, and numbers as
        targets of a network without last activation are standardized, with mean and deviation of ``X`` and ``y``;
        categories become one-hot features; words become token ids. Recurrent layers start each row with a state of
        zeros (``reset_cells``).

        Parameters
        ----------
        X : array_like, data frame, list of str, or iterator
            Rows (n, F); images (n, C, H, W), (n, H, W, C) or (n, H, W); sequences (n, F, T) or (n, T, F); a data frame
            of pandas or polars, or a dict of columns, with numbers and categories; texts; a list of arrays for several
            inputs; a list of dicts, one for each row; an iterator, whose targets are used; or any iterable of
            minibatches (X, y), such as a DataLoader of PyTorch. Minibatches are read once before the first step, which
            counts and checks them, and once in each epoch. They are encoded as arrays are, but standardized only if an
            earlier ``fit(X, y)`` of this model standardized its data.
        y : array_like, data frame or str, optional
            Labels (n,) of any type, (n, T) with time steps; numbers (n,) or (n, K); zeros and ones (n, K) for several
            labels; the name of a column of ``X``. Default: the inputs. As in neon, the cost if ``X`` is an iterator.
        optimizer : Optimizer or str, optional
            The optimizer, such as ``Adam(0.01)``. Default: that of the last ``fit``, or ``Adam()``.
        num_epochs : int, optional
            As in neon, the total number of epochs, including those of earlier calls.
        callbacks : Callbacks, or list of Callback, optional
            The callbacks. As in neon, an object with their methods.
        cuda_graphs : bool
            Whether a GPU may replay minibatches and updates as CUDA graphs, see ``be.replay``. Default: True.
        dataset : iterator, optional
            neon's name of ``X``.
        epochs : int
            The number of epochs of this call. Default: 10.
        batch_size : int
            The number of rows of a minibatch of arrays; ``be.bsz`` is unchanged. Default: 32.
        cost : Cost or str, optional
            The cost, such as ``MeanSquared()``; that of standardized numbers is recorded as it is minimized, and not in
            their units. Default: that of the last ``fit``; else ``CrossEntropyMulti()`` for classes,
            ``CrossEntropyBinary()`` for two classes with one output and for several labels, ``MeanSquared()`` for
            numbers.
        validation_split : float
            The fraction of the rows to validate on, chosen at random: ``round(validation_split * n)`` rows, of each
            class in proportion. Default: 0. Not together with ``validation_data``.
        validation_data : tuple or iterator, optional
            (X, y) to validate on after each epoch.
        metrics : Metric, str or list of them, optional
            Metrics to record for the validation data, besides the cost, in the units of ``y``. They are computed once
            before the first step, so that those that cannot be computed raise an error. Default: ``Accuracy()`` for
            classes.
        sample_weight : array_like, optional
            A factor >= 0 of the cost of each row, (n,).
        class_weight : dict or "balanced", optional
            A factor of the cost for each class, by label; "balanced": n / (number of classes * rows of the class).
        shuffle : bool
            Whether each epoch has a new random order. Default: True.
        progress_bar : bool
            Whether to show a progress bar. Default: True.
        layout : str, optional
            The axes of an array: "NF", "NHW", "NFT", "NTF", "NCHW", "NHWC", or "NT" for token ids. Default: recognized
            by the number of channels and by uint8; an error if there are several possibilities.
        standardize : bool, optional
            Whether to standardize features and columns of numbers. Default: True, except for uint8.
        text_length : int, optional
            The number of words of a text; longer ones are cut. Default: that of the longest, at most 256.
        accumulate : int
            The number of minibatches of an update, which has the gradient of the mean cost of all their rows. The last
            update of an epoch is by the minibatches that are left. Default: 1.
        distributed : bool or Communicator
            Whether to train in all processes that ``mpiexec`` has started; see ``neonlite.distributed``. All pass the
            same data. Each computes ``batch_size`` rows of a minibatch, and the files of callbacks are written by rank
            0. A communicator: that of these processes. Default: False.

        Returns
        -------
        History
            The cost and metrics of each epoch of this call; of a model that was loaded or copied since its last
            ``fit``, also those of that call. None in neon's form: see ``Callbacks.history``.

        Raises
        ------
        TypeError, ValueError
            Invalid arguments, before the first step: labels that do not match the outputs, unknown layouts, NaN.
        KeyboardInterrupt
            Ctrl-C, after a complete step.
        SystemExit
            SIGTERM or SIGHUP, with the exit code 128 + the signal number.

        Warns
        -----
        RuntimeWarning
            The cost, or a weight at the end, is NaN or infinite: once per call, with the epoch, the minibatch and the
            first layer with such outputs. The callback ``TerminateOnNaN`` ends training then.
        UserWarning
            Inputs that are not scaled. In neon's form, no epoch is left to train, a callback had ended this training
            before, or the learning rate is 0 before ``num_epochs``.

        Examples
        --------
        >>> import neonlite as nl
        >>> from neonlite.layers import Affine
        >>> from neonlite.models import Model
        >>> from neonlite.transforms import Softmax
        >>> from neonlite.initializers import Gaussian
        >>> be = nl.gen_backend("cpu", rng_seed=1)
        >>> model = Model([Affine(2, Gaussian(), activation=Softmax())])
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"]
        >>> history = model.fit(X, y, epochs=100, progress_bar=False)
        >>> model.predict_classes([[0.5], [2.5]]).tolist()
        ['low', 'high']
        """
        tree_structure.refuse_in_trace(f"{self.name}.fit", "Call it outside of the compiled function")
        if isinstance(optimizer, Distributed):
            distributed, optimizer = distributed or True, optimizer.optimizer
        communicator = get_communicator(self, distributed)
        X = dataset if X is None else X
        where = f"{self.name}.fit"
        is_pairs = (y is None or isinstance(y, str | Cost | GeneralizedCost)) and is_minibatches(where, X)
        is_iterator = is_pairs or hasattr(X, "nbatches")
        if is_iterator:
            y, cost = None, y if cost is None else cost
        if is_pairs:
            X = MinibatchIterator(self, where, X, cost, layout)
            cost, layout = X.cost, None
        if num_epochs is not None or is_iterator:
            own = {"batch_size": batch_size, "sample_weight": sample_weight, "class_weight": class_weight}
            own |= {"layout": layout, "standardize": standardize, "text_length": text_length}
            own |= {"validation_split": validation_split or None, "shuffle": None if shuffle else shuffle}
            if num_epochs is not None:
                own |= {"epochs": epochs, "validation_data": validation_data, "metrics": metrics}
            refuse_options(where, own, "num_epochs" if num_epochs is not None else "an iterator")
        if num_epochs is not None:
            size = self.be.batch_size(X.batch_size) if is_pairs else nullcontext()
            with DeferredInterrupt(is_training=True) as interrupt, size, shard_minibatches(self, communicator):
                train(self, X, cost, optimizer, num_epochs, interrupt, callbacks, cuda_graphs, accumulate=accumulate)
            return None
        epochs = integer(f"{where}: epochs", DEFAULT_EPOCHS if epochs is None else epochs)
        if not self.has_targets:
            raise TypeError(
                f"{where}: expected fit(dataset, cost, optimizer, num_epochs) for a {self.classnm}, got {epochs=}"
            )
        if is_iterator:
            validation_set = validation_minibatches(self, X, cost or self.cost, validation_data) or validation_data
            batch_size = X.batch_size if is_pairs else self.be.bsz
            data = FitData(X, validation_set, cost or self.cost, batch_size, is_iterator=True)
        else:
            if y is None and isinstance(X, list | tuple) and len(X) == 2 and is_pair(*X) and np.ndim(X[1]) == 1:
                got = f"got one {type(X).__name__} of both"
                raise TypeError(f"{where}: expected X and y as two arguments, {got}. Pass fit(X, y).")
            if validation_split and validation_data is not None:
                raise ValueError(
                    f"{where}: expected validation_split or validation_data, got both. Pass the one whose rows are to "
                    "be validated on."
                )
            encoded = TrainingData(self, where, X, y, cost, layout, standardize, text_length)
            encoded.set_weights(sample_weight, class_weight)
            train_set, validation_set = encoded.split(validation_split, bool(shuffle))
            if validation_data is not None:
                validation_set = encode_validation_data(encoded, validation_data)
            data = prepare_rows(self, encoded, train_set, validation_set, batch_size, communicator)
        if as_list(metrics) and data.validation_set is None:
            raise ValueError(f"{where}: expected validation data for metrics, got none. Pass validation_split=0.2.")
        if not isinstance(callbacks, Callbacks):
            callbacks = make_callbacks(self, data, metrics, callbacks, progress_bar)
        size = self.be.batch_size(data.batch_size)
        with DeferredInterrupt(is_training=True) as interrupt, size, shard_minibatches(self, communicator):
            # the order of rows continues; an iterator has its position, except within an epoch
            continues = not data.is_iterator or self.minibatch_index or self.loaded_state is not None
            X, state = data.train_set, self.data_state
            is_other = bool(continues) and state is not None and not can_resume(X, state)
            optimizer, stop = optimizer or self.optimizer or Adam(), self.epoch_index + epochs
            train(self, X, data.cost, optimizer, stop, interrupt, callbacks, cuda_graphs, is_other, accumulate)
        history: History = callbacks.history
        return history


class FitData(NamedTuple):
    """The data sets of ``fit``, the cost, and the number of rows of a minibatch."""

    train_set: Any
    validation_set: Any
    cost: Any
    batch_size: int
    is_iterator: bool = False  # of the user, which has its own position


# --- data sets -------------------------------------------------------------------------------------------------------


def validation_minibatches(model: ModelBase, train_set: Any, cost: Any, data: Any) -> MinibatchIterator | None:
    """Return validation data that are minibatches (X, y), encoded as the training data; None for other data."""
    where = f"{model.name}.fit: validation_data"
    if data is None or not is_minibatches(where, data):
        return None
    return MinibatchIterator(model, where, data, cost, None, (train_set.input_encoder, train_set.target_encoder))


def encode_validation_data(encoded: TrainingData, data: Any) -> Any:
    """Return the data set of validation data for arrays: (X, y), minibatches of them, or an iterator."""
    minibatches = validation_minibatches(encoded.model, encoded, encoded.cost, data)
    if minibatches is not None:
        return minibatches
    if isinstance(data, tuple | list):
        return encoded.with_data(data).validation_set()
    where = f"{encoded.where}: validation_data"
    with_attributes(where, data, "nbatches", "(X, y), or an iterator,")
    check_inputs(where, encoded.input_encoder, data)
    return data


def prepare_rows(
    model: FitMethods,
    encoded: TrainingData,
    train_set: Any,
    validation_set: Any,
    batch_size: int | None,
    communicator: Communicator | None,
) -> FitData:
    """Return the data sets of arrays, whose rows are independent sequences."""
    where, processes = encoded.where, 1 if communicator is None else communicator.size
    for layer in model.layers.leaves():
        if isinstance(layer, recurrent.RecurrentBase):
            layer.reset_cells = True
    if train_set.ndata < processes:
        raise ValueError(f"{where}: expected a row for each of {processes} processes, got {train_set.ndata} rows.")
    batch_size = DEFAULT_BATCH_SIZE if batch_size is None else integer(f"{where}: batch_size", batch_size)
    return FitData(train_set, validation_set, encoded.cost, min(batch_size, train_set.ndata // processes))


# --- arguments -------------------------------------------------------------------------------------------------------


def refuse_options(where: str, options: dict[str, Any], form: str) -> None:
    """Raise TypeError for options that are given and have no effect in a form of ``fit``."""
    if given := [name for name, x in options.items() if x is not None]:
        ways_out = {
            "num_epochs": "Pass epochs=, the number of epochs of this call, instead of num_epochs, the total number.",
            "an iterator": "An iterator orders, splits, weights and scales its data; pass arrays to let fit do it.",
        }
        raise TypeError(f"{where}: expected no {', '.join(given)} together with {form}, got both. {ways_out[form]}")


def get_communicator(model: FitMethods, distributed: bool | Communicator) -> Communicator | None:
    """Return the communicator of a training in several processes, with the random streams of rank 0; None for one."""
    if not distributed:
        rank, size = launched_rank_and_size()
        if rank == 0 and size > 1:
            warn(
                f"{model.name}.fit: mpiexec has started {size} processes, and each trains a separate network. To train "
                "one network in all of them, pass distributed=True."
            )
        return None
    if not model.has_targets:
        raise TypeError(f"{model.name}.fit: distributed: expected a Model with targets, got a {model.classnm}.")
    communicator = distributed if isinstance(distributed, Communicator) else world()
    # they also choose the rows to validate on
    model.be.rng_set_state(communicator.broadcast_object(model.be.rng_get_state()))
    return communicator


def shard_minibatches(model: FitMethods, communicator: Communicator | None) -> AbstractContextManager[object]:
    """Return a context in which iterators yield the columns of this process."""
    return nullcontext() if communicator is None else communicator.sharded(model.be)


def make_callbacks(model: Any, data: FitData, metrics: Any, callbacks: Any, progress_bar: bool) -> Callbacks:
    """Return callbacks that record the costs and the metrics, and the given ones."""
    result = Callbacks(model, data.train_set, eval_set=data.validation_set, progress_bar=progress_bar)
    if data.validation_set is not None:
        encoder = data.train_set.target_encoder
        if metrics is None:
            metrics = "accuracy" if isinstance(encoder, ClassEncoder) else []
        for metric in as_list(metrics):
            result.add_callback(MetricCallback(data.validation_set, metric_for(f"{model.name}.fit", encoder, metric)))
    for callback in as_list(callbacks):
        result.add_callback(callback)
    return result


def as_list(x: Any) -> list[Any]:
    """Return a list or tuple as a list, None as an empty list, and another object as a list of one."""
    return list(x) if isinstance(x, list | tuple) else [] if x is None else [x]


def can_resume(dataset: Any, state: Any) -> bool:
    """Return whether a data set can continue an epoch at a position, which it can if data and options are the same."""
    try:
        dataset.set_state(state)
    except (AttributeError, ValueError):
        return False
    return True
