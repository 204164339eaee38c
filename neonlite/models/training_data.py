"""TrainingData: the encoded rows and targets of ``Model.fit(X, y)``, their weights, and iterators over them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite import layers, transforms
from neonlite.backend.validation import check_number, from_name, warn
from neonlite.data import ArrayIterator, NervanaDataIterator
from neonlite.data.iterator import Minibatch, map_rows, row_shape, to_array
from neonlite.data.minibatches import IntegerRange, MappedArray, MinibatchBuffers, Preprocessing
from neonlite.encoders import read_column
from neonlite.encoders.inputs import (
    MAX_TEXT_TOKENS,
    ArrayEncoder,
    InputEncoder,
    TextEncoder,
    choose_encoder,
    table_columns,
)
from neonlite.encoders.targets import (
    ClassEncoder,
    IndicatorEncoder,
    NumberEncoder,
    TargetEncoder,
    choose_target_encoder,
    one_hot,
)
from neonlite.layers.buffers import num_features, num_steps
from neonlite.messages import describe, describe_setting, wording
from neonlite.models.base import ModelBase
from neonlite.transforms.functions import COSTS
from neonlite.transforms.metrics import ClassMetric, LogLoss, Misclassification, SequenceMetric, TopKMisclassification
from neonlite.typing import ArrayLike, Data, is_real_array

UINT8_SCALE = 1 / 255
CLASSIFICATION_METRICS = (ClassMetric, Misclassification, LogLoss, TopKMisclassification, transforms.ROCAUC)


# of arrays and data sets, which are not iterables of minibatches
ARRAY_ATTRIBUTES = ("__array__", "__dlpack__", "nbatches", "ndata", "shape")
MAX_UNSCALED_RMS = 6  # a larger root mean square causes a warning: it is 1 in standardized data, below 1 in images
MAX_RMS_ROWS = 1000  # from which it is estimated: enough for a factor of 6, whatever the size of the data


class TrainingData:
    """Data encoded for a model.

    Parameters
    ----------
    model : Model
        The model; if it is not initialized, its network is configured for the data.
    where : str
        The caller, for error messages.
    X, y, cost, layout, standardize, text_length
        As for ``Model.fit``.
    encoders : tuple, optional
        The input encoder and the target encoder, either of which may be None. Default: those of the model.
    is_part : bool
        Whether these rows are a minibatch of others: a chosen target encoder then does not depend on their values, and
        only the minibatch for which the input encoder is chosen is checked for its scale. Default: False.

    Attributes
    ----------
    inputs : list of numpy.ndarray
        The encoded rows of each input.
    targets : numpy.ndarray or None
        Class indices (n,) or (n, T), or values (n, K) or (n, K, T).
    input_encoder, target_encoder : InputEncoder, TargetEncoder or None
        The encoders: the given ones, else chosen by the data.
    row_weights : numpy.ndarray or None
        The factor of the cost of each row, (n,).
    cost : Cost or GeneralizedCost
        The given cost, that of the last ``fit``, or the default for the targets.
    """

    def __init__(
        self,
        model: ModelBase,
        where: str,
        X: Data,
        y: Data | str | None = None,
        cost: layers.GeneralizedCost | transforms.Cost | str | None = None,
        layout: str | None = None,
        standardize: bool | None = None,
        text_length: int | None = None,
        encoders: tuple[InputEncoder | None, TargetEncoder | None] | None = None,
        is_part: bool = False,
    ) -> None:
        self.model, self.where, self.is_part = model, where, is_part
        self.input_encoder, self.target_encoder = encoders or (model.input_encoder, model.target_encoder)
        if isinstance(y, str):
            X, y = split_column(where, X, y)
        elif isinstance(y, list | tuple) and all(isinstance(name, str) for name in y):
            refuse_column_names(where, X, y)
        rows: Any = X
        rows = [map_rows(x) for x in rows] if is_list_of_arrays(X) else map_rows(X)
        y = np.asarray(y) if isinstance(y, MappedArray) else y
        num_targets = len(y) if isinstance(y, Sized) and getattr(y, "ndim", None) != 0 else None
        if is_list_of_arrays(rows) and len(rows) == num_targets != len(rows[0]):
            rows = to_array(where, rows, "X")  # an array for each row, and not for each input
        targets: Any = y
        if getattr(rows, "ndim", 0) == 1 < getattr(y, "ndim", 0) and is_real_array(np.asarray(rows)):
            shapes = f"got {np.shape(rows)} and {np.shape(targets)}"
            raise ValueError(f"{where}: expected rows X (n, F) and targets y (n,), {shapes}. Swap them: fit(y, X).")
        self.inputs = self._encode_inputs(rows, layout, standardize, text_length)
        self.cost: layers.GeneralizedCost | transforms.Cost = from_name(f"{where}: cost", cost, COSTS) or model.cost
        if isinstance(self.cost, layers.GeneralizedCostMask):
            self.cost = self.cost.costfunc  # set_weights wraps it again
        self.targets: NDArray[Any] | None = None if y is None else self._encode_targets(y)
        self.num_rows = len(self.inputs[0])
        if self.targets is not None and len(self.targets) != self.num_rows:
            lengths = f"{self.num_rows} and {len(self.targets)}"
            raise ValueError(f"{where}: expected X and y with equal numbers of rows, got {lengths}")
        if y is None:
            self._check_reconstruction()
            self.target_encoder = self._reconstruction_encoder()
        if self.cost is None:
            self.cost = self._default_cost()
        self.row_weights: NDArray[np.float32] | None = None
        check_encoders(where, model.layers, self.input_encoder, self.target_encoder)

    # --- encoding ---

    def _encode_inputs(
        self, X: Any, layout: str | None, standardize: bool | None, text_length: int | None
    ) -> list[NDArray[Any]]:
        model, network = self.model, self.model.layers
        if is_list_of_arrays(X):  # several inputs
            arrays = [to_array(self.where, x, "X") for x in X]
            if not model.initialized:
                network.configure([row_shape(self.where, x, None) for x in arrays])
            return arrays
        encoder = self.input_encoder
        if encoder is None:
            first = network.leaves()[0]
            vocab_size = first.vocab_size if isinstance(first, layers.LookupTable) else None
            expected = network.in_shape
            encoder = choose_encoder(self.where, X, layout, standardize, expected, vocab_size, text_length)
        inputs = encoder.encode(self.where, X)
        if encoder is not self.input_encoder or not self.is_part:
            self._check_scale(encoder, inputs)
        if not model.initialized:
            network.configure(encoder.shape)
        self.input_encoder = encoder
        return [inputs]

    def _check_scale(self, encoder: Any, inputs: NDArray[Any]) -> None:
        """Warn of large inputs that are not scaled; raise TypeError for a dtype that is scaled differently."""
        preprocessing = self.model.preprocessing
        limits = preprocessing.integers[0] if preprocessing is not None and preprocessing.integers else None
        if limits is not None and inputs.dtype != limits.dtype:
            raise TypeError(
                f"{self.where}: expected {limits.dtype} inputs, as in the training data, got {inputs.dtype}. Convert "
                f"them: (255 * X).astype({limits.dtype!r}) for values from 0 to 1."
            )
        inputs = in_memory(inputs)
        is_scaled = not isinstance(encoder, ArrayEncoder) or encoder.mean is not None or inputs.dtype == np.uint8
        if not is_scaled and encoder.layout != "NT":
            way_out = f"Scale them, such as X / {np.abs(inputs).max():.3g}; uint8 is divided by 255 automatically."
            warn_if_unscaled(self.where, self.model.layers, inputs, way_out)

    def _check_reconstruction(self) -> None:
        """Raise ValueError unless the inputs can be the targets, as of an autoencoder."""
        shapes = self.model.layers.in_shape, self.model.layers.out_shape
        if not any(isinstance(x, list) for x in shapes) and num_features(shapes[0]) != num_features(shapes[1]):
            raise ValueError(
                f"{self.where}: expected targets y, or a network with outputs of the shape of the inputs, {shapes[0]}, "
                f"got outputs {shapes[1]} and no y. Pass fit(X, y)."
            )

    def _reconstruction_encoder(self) -> NumberEncoder | None:
        """Return the encoder of targets that are the inputs: it decodes outputs to the units of ``X``."""
        encoder, num_outputs = self.input_encoder, self._num_outputs
        units = None if encoder is None else encoder.feature_units()
        if self.scale is not None:
            units = [0.0] * num_outputs, [1 / self.scale] * num_outputs
        return None if units is None else NumberEncoder(*units)

    def _encode_targets(self, y: Any) -> NDArray[Any]:
        network = self.model.layers
        encoder = self.target_encoder
        if isinstance(network.out_shape, list):
            raise ValueError(f"{self.where}: expected a network with one output, got {len(network.out_shape)}.")
        if isinstance(network.out_shape, tuple) and len(network.out_shape) == 2 and np.ndim(y) == 1:
            raise ValueError(
                f"{self.where}: expected targets (n, T) or (n, K, T) for outputs with time steps, {network.out_shape}, "
                "got one target for each row. For outputs without time steps, add RecurrentLast() after the last "
                "recurrent layer, or RecurrentMean() after a LookupTable."
            )
        if encoder is None:
            encoder = target_encoder_for(self.where, network, y, self.cost, is_training=not self.is_part)
        targets = encoder.encode(self.where, y)
        check_targets(self.where, network, encoder, targets, y)
        if encoder is not self.target_encoder and isinstance(encoder, NumberEncoder) and encoder.mean is None:
            warn_of_targets(self.where, targets)
        self.target_encoder = encoder
        return targets.astype(np.int32 if isinstance(encoder, ClassEncoder) else np.float32, copy=False)

    @property
    def scale(self) -> float | None:
        """The factor of inputs of uint8, which are not token ids; None for other inputs."""
        encoder = self.input_encoder
        is_scaled = isinstance(encoder, ArrayEncoder) and encoder.layout != "NT" and self.inputs[0].dtype == np.uint8
        return UINT8_SCALE if is_scaled else None

    @property
    def _num_outputs(self) -> int:
        return num_features(self.model.layers.out_shape)

    def _default_cost(self) -> transforms.Cost:
        if isinstance(self.target_encoder, ClassEncoder) and self._num_outputs > 1:
            return transforms.CrossEntropyMulti()
        is_probability = isinstance(self.target_encoder, ClassEncoder | IndicatorEncoder)
        return transforms.CrossEntropyBinary() if is_probability else transforms.MeanSquared()

    # --- rows ---

    @property
    def has_class_indices(self) -> bool:
        """Whether the targets are one class index for each row."""
        return isinstance(self.target_encoder, ClassEncoder) and self.targets is not None and self.targets.ndim == 1

    def set_weights(self, sample_weight: ArrayLike | None, class_weight: Mapping[Any, float] | str | None) -> None:
        """Set the factor of the cost of each row; ``cost`` is then a ``GeneralizedCostMask``.

        Parameters
        ----------
        sample_weight, class_weight
            As for ``Model.fit``.
        """
        if sample_weight is None and class_weight is None:
            return
        where, n = self.where, self.num_rows
        weights = np.ones(n) if sample_weight is None else read_column(where, sample_weight, of="sample_weight").values
        if weights.shape != (n,) or not is_real_array(weights) or not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(
                f"{where}: expected {n} finite numbers >= 0 for sample_weight, got {describe(sample_weight)}"
            )
        if class_weight is not None:
            weights = weights * self._class_factors(class_weight)
        self.row_weights = weights.astype(np.float32)
        self.cost = layers.GeneralizedCostMask(
            self.cost if isinstance(self.cost, transforms.Cost) else self.cost.costfunc
        )

    def _class_factors(self, class_weight: Mapping[Any, float] | str) -> NDArray[np.float64]:
        """Return the weight of the class of each row."""
        if not isinstance(self.target_encoder, ClassEncoder) or self.targets is None or not self.has_class_indices:
            raise ValueError(
                f"{self.where}: expected y with one class for each row for class_weight, got other targets"
            )
        classes = self.target_encoder.classes
        if isinstance(class_weight, str) and class_weight == "balanced":
            counts = np.bincount(self.targets, minlength=len(classes))
            factors = self.num_rows / (np.count_nonzero(counts) * np.maximum(counts, 1))
        elif isinstance(class_weight, Mapping) and class_weight.keys() <= {*classes}:
            factors = np.array(
                [check_number(f"{self.where}: class_weight", class_weight.get(x, 1), 0) for x in classes]
            )
        else:
            expected = f'"balanced", or a dict with the labels {describe(classes)}'
            raise ValueError(f"{self.where}: expected {expected} for class_weight, got {describe(class_weight)}")
        weights: NDArray[np.float64] = factors[self.targets]
        return weights

    # --- iterators ---

    def split(self, fraction: float, shuffle: bool) -> tuple[ArrayIterator, ArrayIterator | None]:
        """Return iterators over the rows to train on, and over a random fraction to validate on, or None for 0.

        Parameters
        ----------
        fraction : float
            The fraction to validate on, of each class.
        shuffle : bool
            Whether each epoch of training has a new random order.
        """
        check_number(f"{self.where}: validation_split", fraction, 0, 1)
        if not fraction:
            return self._iterator(self.row_weights, shuffle=shuffle), None
        labels = self.targets if self.targets is not None and self.has_class_indices else np.zeros(self.num_rows)
        seed = (self.model.data_state or {}).get("seed")  # a later fit validates on the same rows
        seed = self.model.be.rng_seed if seed is None else seed
        training, validation = split_rows(labels, fraction, seed)
        if not len(validation) or not len(training):
            raise ValueError(
                f"{self.where}: expected rows both to train and to validate on, got {self.num_rows} rows with "
                f"{wording('validation_split', f'validation_split={fraction}', fraction)}. Pass a fraction of at least "
                "one row."
            )
        return self._iterator(self.row_weights, training, shuffle), self.validation_set(validation)

    def with_data(self, pair: Sequence[Any]) -> TrainingData:
        """Return other data, encoded in the same way and with the same cost.

        Parameters
        ----------
        pair : tuple
            X and y, as for ``Model.fit``; X alone if the training data has no y.
        """
        where = f"{self.where}: validation_data"
        if not 1 <= len(pair) <= 2:
            raise ValueError(f"{where}: expected (X, y), got {len(pair)} objects. Weights and others are not possible.")
        if self.targets is not None and (len(pair) < 2 or pair[1] is None):
            raise ValueError(f"{where}: expected (X, y), as in the training data, got no y")
        encoders = self.input_encoder, self.target_encoder
        X, y = (*pair, None)[:2]
        data = TrainingData(self.model, where, X, y, self.cost, encoders=encoders)
        if self.row_weights is not None:
            data.row_weights = np.ones(data.num_rows, np.float32)
        return data

    def validation_set(self, rows: NDArray[np.intp] | None = None) -> ArrayIterator:
        """Return an iterator over rows, in order, with weights of 1.

        Parameters
        ----------
        rows : numpy.ndarray, optional
            The indices of the rows. Default: all.
        """
        weights = None if self.row_weights is None else np.ones_like(self.row_weights)
        return self._iterator(weights, rows, partial_last=True)

    def _iterator(
        self,
        weights: NDArray[np.float32] | None,
        rows: NDArray[np.intp] | None = None,
        shuffle: bool = False,
        partial_last: bool = False,
    ) -> ArrayIterator:
        """Return an iterator over rows."""

        def select(array: Any) -> Any:
            if rows is None:
                return array
            return array.select(rows) if isinstance(array, MappedArray) else array[rows]

        inputs, encoder, num_outputs = [select(x) for x in self.inputs], self.input_encoder, self._num_outputs
        nclass, targets = None, None if self.targets is None else select(self.targets)
        if targets is not None and isinstance(self.target_encoder, ClassEncoder):
            nclass = num_outputs if self.has_class_indices and num_outputs > 1 else None
            targets = one_hot(targets, num_outputs) if nclass is None else targets
        with self.model.be.batch_size(1):  # that of training is set later
            iterator = ArrayIterator(
                inputs if encoder is None else inputs[0],
                targets,
                nclass,
                lshape=None if encoder is None else encoder.shape,
                make_onehot=nclass is not None,
                shuffle=shuffle,
                partial_last=partial_last,
                scale=self.scale,
                sample_weight=None if weights is None else select(weights),
            )
        iterator.input_encoder, iterator.target_encoder = encoder, self.target_encoder
        return iterator


def is_list_of_arrays(X: object) -> bool:
    """Return whether data is a list of arrays with several axes."""
    return isinstance(X, list | tuple) and bool(X) and all(getattr(x, "ndim", 0) > 1 for x in X)


def split_rows(classes: ArrayLike, fraction: float, seed: int | None) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of the rows to train on, and of a random fraction to validate on, the same of each class.

    The numbers of rows of the classes are rounded such that their sum is ``round(fraction * n)``: largest remainders.
    """
    labels = np.asarray(classes)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    groups = [order[labels[order] == label] for label in np.unique(labels)]
    sizes = np.array([len(rows) for rows in groups])
    counts = np.floor(fraction * sizes).astype(int)
    # those with the largest remainders have one more; classes of a single row come last
    ranking = np.lexsort((rng.random(len(groups)), counts - fraction * sizes, counts + 1 >= sizes))
    counts[ranking[: round(fraction * len(labels)) - counts.sum()]] += 1
    validation = np.sort(np.concatenate([rows[:count] for rows, count in zip(groups, counts, strict=True)]))
    return np.setdiff1d(order, validation), validation


def check_inputs(where: str, encoder: InputEncoder | None, dataset: object) -> None:
    """Raise ValueError if the network was trained on standardized rows, and those of an iterator are not."""
    is_standardized = encoder is not None and encoder.feature_units() is not None
    if is_standardized and getattr(dataset, "input_encoder", None) is None:
        raise ValueError(
            f"{where}: expected arrays or a data frame, whose rows are standardized as those of fit(X, y), got an "
            f"iterator, {describe(dataset)}, whose rows are not. Pass its arrays, or train with standardize=False."
        )


def check_encoders(
    where: str, network: layers.Layer, inputs: InputEncoder | None, targets: TargetEncoder | None
) -> None:
    """Raise ValueError unless encoders fit each other and a configured network: its inputs, outputs and vocabulary."""
    shape, out_shape = network.in_shape, network.out_shape
    if inputs is not None and inputs.shape != shape:
        raise ValueError(f"{where}: inputs: expected rows of shape {shape}, as the network, got {inputs.shape}")
    if isinstance(inputs, TextEncoder):
        first, limit = network.leaves()[0], max(4 * MAX_TEXT_TOKENS, network.num_parameters)
        if not isinstance(first, layers.LookupTable) or len(inputs.vocabulary) > first.vocab_size:
            got = f"a vocabulary of {len(inputs.vocabulary)} for {first!r}"
            raise ValueError(f"{where}: inputs: expected a LookupTable with a row for each token, got {got}")
        if inputs.length > limit:  # the weights do not depend on it, but the memory for a text does
            raise ValueError(
                f"{where}: inputs: expected texts of at most {limit} tokens, the number of parameters if it is larger, "
                f"got a length of {inputs.length}. Pass a smaller text_length."
            )
    if targets is None:
        return
    if isinstance(out_shape, list):
        raise ValueError(f"{where}: targets: expected a network with one output, got {len(out_shape)}")
    K = num_features(out_shape)
    count = targets.num_outputs
    if count is not None and count != (2 if K == 1 and isinstance(targets, ClassEncoder) else K):
        raise ValueError(f"{where}: targets: expected {targets.num_outputs} outputs for {targets}, got {K}")


def check_targets(where: str, network: layers.Layer, encoder: TargetEncoder, targets: NDArray[Any], y: Any) -> None:
    """Raise ValueError unless targets have a value for each output, or a class for each row or time step."""
    n, K, T = len(targets), num_features(network.out_shape), num_steps(network.out_shape)
    is_class = isinstance(encoder, ClassEncoder)
    if targets.size == n * T * (1 if is_class else K) and (T > 1 or np.ndim(y) < 3):
        return
    outputs = f"a column for each of the {K} output{'s' * (K > 1)}"
    if T > 1:
        expected = f"a label for each of {T} time steps, {(n, T)}" if is_class else f"{outputs} and {T} time steps"
    else:
        one_hot_columns = f", or {K} columns of zeros and ones, {(n, K)}" if K > 1 and np.shape(y) != (n, K) else ""
        expected = f"one label for each row, {(n,)}{one_hot_columns}" if is_class else f"{outputs}, {(n, K)}"
    raise ValueError(f"{where}: expected y with {expected}, got {np.shape(y)}")


def target_encoder_for(
    where: str,
    network: layers.Layer,
    y: Any,
    cost: layers.GeneralizedCost | transforms.Cost | None,
    is_training: bool = True,
) -> TargetEncoder:
    """Return the encoder of targets for a configured network with one output."""
    transform = getattr(network.get_terminal(), "transform", None)
    activation = None if transform is None else transform.classnm
    is_probability = None if cost is None else expects_probabilities(cost)
    outputs, steps = num_features(network.out_shape), num_steps(network.out_shape)
    return choose_target_encoder(where, y, outputs, activation, is_probability, is_training, steps)


def expects_probabilities(cost: object) -> bool:
    """Return whether a cost expects probabilities, as cross-entropies do."""
    return bool(getattr(cost.costfunc if isinstance(cost, layers.GeneralizedCost) else cost, "activations", ()))


def metric_for(
    where: str, encoder: TargetEncoder | None, metric: transforms.Metric | transforms.Cost | str
) -> transforms.Metric:
    """Return a metric for targets; a name selects the variant for several labels if these are the targets."""
    result = transforms.get_metric(metric)
    if isinstance(metric, str) and isinstance(result, transforms.ConfusionMatrix) and isinstance(encoder, ClassEncoder):
        result.class_names = [*map(str, encoder.classes)]
    is_sequence = isinstance(result, SequenceMetric) and isinstance(encoder, NumberEncoder) and encoder.mean is not None
    if isinstance(encoder, NumberEncoder) and (is_sequence or isinstance(result, CLASSIFICATION_METRICS)):
        raise ValueError(f'{where}: expected a metric for numbers, such as "mse", "mae" or "r2", got {metric!r}.')
    if isinstance(encoder, IndicatorEncoder):
        if isinstance(metric, str) and isinstance(result, transforms.F1 | transforms.ROCAUC):
            result.multilabel = True
        elif isinstance(metric, str) or (
            isinstance(result, CLASSIFICATION_METRICS) and not getattr(result, "multilabel", False)
        ):
            labels = '"f1", "roc_auc" or F1(multilabel=True)'
            raise ValueError(f"{where}: expected a metric for several labels, {labels}, got {metric!r}.")
    return result


def split_column(where: str, X: Any, name: str) -> tuple[Any, Any]:
    """Return the other columns of a table, and the column of a name."""
    table = table_columns(where, X)
    if table is None or name not in table:
        columns = f"one of the columns {', '.join(table)}" if table is not None else "a data frame with that column"
        raise ValueError(f"{where}: expected {columns} for y={name!r}, got {describe(X) if table is None else name!r}")
    column = table.pop(name)
    return table, column


def refuse_column_names(where: str, X: Any, y: Sequence[str]) -> None:
    """Raise ValueError if texts are names of columns of a table, and not a label for each row."""
    table = table_columns(where, X)
    if table and y and table.keys() >= set(y) and len(y) != len(next(iter(table.values()))):
        names = ", ".join(map(repr, y))
        raise ValueError(
            f"{where}: expected the name of one column for y, got the names {names}. For several columns pass them as "
            f"y=X[[{names}]], and X without them."
        )


# --- minibatches of arrays -------------------------------------------------------------------------------------------


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
        model: ModelBase,
        where: str,
        minibatches: Any,
        cost: layers.GeneralizedCost | transforms.Cost | str | None = None,
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


# --- unscaled data ---------------------------------------------------------------------------------------------------


def check_scale(model: ModelBase, dataset: NervanaDataIterator) -> None:
    """Warn of an ArrayIterator over large inputs that are neither scaled nor token ids, and of large targets."""
    if not isinstance(dataset, ArrayIterator) or dataset.input_encoder is not None:  # that of arrays is checked before
        return
    where, name = f"{model.name}.fit", dataset.name
    if dataset.preprocessing is None and dataset.augment is None:
        for x in (in_memory(source.array) for source in dataset.sources):
            factor = "1 / 255" if x.dtype == "uint8" else f"1 / {np.abs(x).max():.3g}"
            warn_if_unscaled(where, model.layers, x, f"Pass scale={factor} to {name}.")
    if dataset.nclass is None and dataset.target_rows is not None:
        warn_of_targets(where, in_memory(dataset.target_rows))


def in_memory(rows: Any) -> NDArray[Any]:
    """Return rows, of files the first ones."""
    array: NDArray[Any] = rows[:MAX_RMS_ROWS] if isinstance(rows, MappedArray) else rows
    return array


def warn_if_unscaled(where: str, network: layers.LayerContainer, inputs: Any, way_out: str) -> None:
    """Warn of large inputs, unless the first layers scale them or read token ids."""
    first = network.leaves()[:1] if not isinstance(network.in_shape, list) else network.leaves()
    if not any(isinstance(layer, layers.LookupTable | layers.DataTransform | layers.BatchNorm) for layer in first):
        warn_if_large(f"{where}: the inputs", inputs, way_out)


def warn_of_targets(where: str, targets: Any) -> None:
    """Warn of large numbers as targets."""
    way_out = "Divide them by their standard deviation, and multiply the outputs by it."
    warn_if_large(f"{where}: the targets y", targets, way_out)


def warn_if_large(subject: str, rows: Any, way_out: str) -> None:
    """Warn of rows with a large root mean square; outliers of standardized rows have a small effect on it."""
    sample = rows[:: -(-len(rows) // MAX_RMS_ROWS)]
    mean_square = np.mean(np.square(sample, dtype=np.float64)) if len(sample) else 0.0
    if MAX_UNSCALED_RMS**2 < mean_square < math.inf:  # infinity has its own message
        low, high = float(rows.min()), float(rows.max())
        warn(f"{subject} are from {low:g} to {high:g} and are not scaled, so training may fail. {way_out}")
