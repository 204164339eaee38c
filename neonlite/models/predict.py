"""Prediction: the outputs of a network for arrays of rows; the training state does not change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import concurrency, on_its_backend
from neonlite.backend.validation import checks_arguments, integer, warn
from neonlite.data import ArrayIterator, NervanaDataIterator, iterator
from neonlite.data.minibatches import MappedArray, MinibatchBuffers, Preprocessing
from neonlite.encoders.inputs import ArrayEncoder
from neonlite.encoders.targets import ClassEncoder, IndicatorEncoder, NumberEncoder, class_indices, one_hot
from neonlite.layers.inference import inference
from neonlite.models import base, evaluation, training_data
from neonlite.optree import Operand
from neonlite.transforms import Cost, Logistic, Metric, Softmax
from neonlite.typing import Data, LayerShapes, is_float_array

DEFAULT_ROWS = 128  # the rows of a minibatch if the backend has no batch size
MAX_UNSCALED_INPUT = 50  # larger uint8 inputs cause a warning


class PredictionMethods(evaluation.EvaluationMethods):
    """Predictions and metrics of a model for arrays."""

    @property
    def classes(self) -> list[str | int | float | bool] | None:
        """The labels in the order of the outputs, if ``fit`` was given one class for each row, else None."""
        return self.target_encoder.classes if isinstance(self.target_encoder, ClassEncoder) else None

    @concurrency.defers_interrupt
    @checks_arguments
    def predict(
        self, X: Data | NervanaDataIterator, preprocessed: bool | None = None, batch_size: int | None = None
    ) -> NDArray[Any]:
        """Return the outputs for rows, or for one sample. Any thread may call it.

        Training, its buffers and ``be.bsz`` are not affected. During a ``fit`` in another thread, all rows use the
        weights of one complete step. Each row starts with recurrent states of zeros.

        Parameters
        ----------
        X : array_like, data frame, list of str, or iterator
            Data in the format of ``fit(X, y)``, which is encoded as there; else rows (n, F), (n, F, T), (n, C, H, W),
            or flattened; a list of arrays for a network with several inputs. One sample without the axis n, one text,
            or a dict of one row. An iterator gives rows in its order.
        preprocessed : bool, optional
            Whether the rows are preprocessed as the training set was, such as by the ``scale`` of an ArrayIterator. If
            not, that preprocessing, which checkpoints store, is applied. Default: only rows of floats are preprocessed,
            and only if the training set contained integers.
        batch_size : int, optional
            The number of rows that are computed at once. Default: ``be.bsz``, or 128.

        Returns
        -------
        numpy.ndarray
            Probabilities or numbers, (n, K), or (n, K, T) with time steps; (n,) if ``fit`` was given numbers (n,).
            Without the axis n for one sample. Numbers that ``fit(X, y)`` standardized are in the units of its ``y``, or
            of ``X`` if there was no ``y``, in float64.

        Raises
        ------
        ValueError
            The rows have another shape or layout, or contain NaN, infinity, or floats outside of the range of the
            preprocessed training set.
        """
        outputs, is_single = raw_outputs(self, f"{self.name}.predict", X, preprocessed, batch_size)
        values = outputs if self.target_encoder is None else self.target_encoder.decode(outputs)
        return values[0] if is_single else values

    @concurrency.defers_interrupt
    def op_tree(self, X: Data, preprocessed: bool | None = None) -> Operand | list[Operand]:
        """Return the outputs for rows as an op-tree of the rows and the weights, with the preprocessing of the model.

        It can be printed, drawn, planned (``be.plan``), compiled and differentiated: with respect to the weights,
        ``model.layers.parameters``, and to the rows, the tensor ``X`` in it.

        Parameters
        ----------
        X : array_like
            Rows as for ``predict``; a list for a network with several inputs.
        preprocessed : bool, optional
            As for ``predict``.

        Returns
        -------
        OpTreeNode, or list of OpTreeNode
            The outputs, (K, N), as those of ``model(x)``.

        Raises
        ------
        ValueError
            If the rows do not have the shape of the model's inputs.

        Examples
        --------
        >>> import neonlite as nl
        >>> from neonlite.layers import Affine
        >>> be = nl.gen_backend("cpu", batch_size=2)
        >>> model = nl.Model([Affine(1, init=[[1.0, 2.0]], bias=[[3.0]], name="y")])
        >>> model.initialize(2)
        >>> tree = model.op_tree([[1.0, 1.0], [0.0, 2.0]])
        >>> print(tree.pp())
        ((y.W @ X) + y_bias.W)
        >>> tree.get()
        array([[6., 7.]], dtype=float32)
        """
        where, be, network = f"{self.name}.op_tree", self.be, self.layers
        self.check_can_evaluate()
        self._check_configured(where)
        rows: Any = X if self.input_encoder is None else self.input_encoder.encode(where, X)
        arrays = [np.asarray(x) for x in read_rows(where, rows, network.in_shape)[0]]
        inputs: list[Operand] = []
        for k, (x, step) in enumerate(
            zip(arrays, choose_preprocessing(where, arrays, self.preprocessing, preprocessed), strict=True)
        ):
            t: Any = be.array(x.T, name="X" if len(arrays) == 1 else f"X{k}")
            if step is not None:
                t = t if step.mean is None else t - be.array(step.mean.reshape(-1, 1), name="mean")
                factor, offset = step.scale
                t = t if factor == 1 else t * factor
                t = t if offset == 0 else t + offset
            inputs.append(t)
        trees: Operand | list[Operand] = network(inputs if isinstance(network.in_shape, list) else inputs[0])
        return trees

    def predict_proba(self, X: Data | NervanaDataIterator, batch_size: int | None = None) -> NDArray[Any]:
        """Return the probabilities of the classes.

        Parameters
        ----------
        X : array_like, data frame, list of str, or iterator
            As for ``predict``.
        batch_size : int, optional
            The number of rows that are computed at once. Default: ``be.bsz``, or 128.

        Returns
        -------
        numpy.ndarray
            (n, K), or (n, K, T) with time steps, in the order of ``model.classes``; for a network with one output,
            which is the probability of the second class, (n, 2).

        Raises
        ------
        TypeError
            The network does not end with ``Softmax`` or ``Logistic``.
        """
        where = f"{self.name}.predict_proba"
        transform = getattr(self.layers.get_terminal(), "transform", None)
        if not isinstance(transform, Softmax | Logistic):
            activation = "no activation" if transform is None else transform.classnm
            raise TypeError(f"{where}: expected a network that ends with Softmax() or Logistic(), got {activation}.")
        outputs, is_single = raw_outputs(self, where, X, None, batch_size)
        if outputs.shape[1] == 1:
            outputs = np.concatenate([1 - outputs, outputs], axis=1)
        return outputs[0] if is_single else outputs

    @concurrency.defers_interrupt
    def predict_classes(self, X: Data | NervanaDataIterator, batch_size: int | None = None) -> NDArray[Any]:
        """Return the most probable class of each row, as a label of ``fit(X, y)``.

        Parameters
        ----------
        X : array_like, data frame, list of str, or iterator
            As for ``predict``.
        batch_size : int, optional
            The number of rows that are computed at once. Default: ``be.bsz``, or 128.

        Returns
        -------
        numpy.ndarray
            Labels (n,), or (n, T) with time steps; zeros and ones (n, K) if a row may have several labels. Class
            indices if the model was trained on an iterator.

        Raises
        ------
        TypeError
            The model was trained on numbers.
        """
        where = f"{self.name}.predict_classes"
        outputs, is_single = raw_outputs(self, where, X, None, batch_size)
        encoder = self.target_encoder
        classes = class_indices(outputs) if encoder is None else encoder.classes_of(where, outputs)
        return classes[0] if is_single else classes

    @concurrency.defers_interrupt
    @on_its_backend
    @checks_arguments
    def evaluate(
        self,
        X: Data | NervanaDataIterator,
        y: Data | str | None = None,
        metrics: Sequence[Metric | Cost | str] | Metric | Cost | str | None = None,
        batch_size: int | None = None,
    ) -> dict[str, Any]:
        """Return metrics of data. Any thread may call it, as with ``predict``.

        Parameters
        ----------
        X : array_like, data frame, list of str, or iterator
            As for ``fit``.
        y : array_like, data frame or str, optional
            As for ``fit``; numbers are compared in their units.
        metrics : Metric, str or list of them, optional
            Such as ``["accuracy", "f1"]``, each name once; see ``neonlite.transforms.get_metric``. Default: "accuracy"
            for classes, "f1" for several labels, "mse", "mae" and "r2" for numbers.
        batch_size : int, optional
            The number of rows that are computed at once. Default: ``be.bsz``, or 128.

        Returns
        -------
        dict
            The values by the short names, as they were given; of metric objects with one value, by its name, as in the
            history of ``fit``, and of others by their class.

        Raises
        ------
        ValueError
            Unknown metrics, two of one name, or labels that are not classes of the model.
        """
        where = f"{self.name}.evaluate"
        encoder = self.target_encoder
        if metrics is None:
            is_number = isinstance(encoder, NumberEncoder) or (encoder is None and not predicts_classes(self))
            is_indicator = isinstance(encoder, IndicatorEncoder)
            metrics = ["mse", "mae", "r2"] if is_number else "f1" if is_indicator else "accuracy"
        given: list[Any] = list(metrics) if isinstance(metrics, list | tuple) else [metrics]
        computed: dict[str, Metric] = {}
        for x in given:
            metric = training_data.metric_for(where, encoder, x)
            name = x if isinstance(x, str) else metric.metric_names[0] if len(metric.metric_names) == 1 else x.classnm
            if name in computed:
                raise ValueError(
                    f"{where}: expected metrics of different names, got {name} twice. Call evaluate for each."
                )
            computed[name] = metric
        if y is None and training_data.is_minibatches(where, X):
            X = training_data.MinibatchIterator(self, where, X)
        if isinstance(X, NervanaDataIterator):
            with batch_size_of(self, X):
                return {name: as_value(self.eval(X, metric), metric) for name, metric in computed.items()}
        if y is None:
            raise ValueError(
                f"{where}: expected targets y, got None. Pass evaluate(X, y), or an iterator with targets."
            )
        if isinstance(y, str):
            X, y = training_data.split_column(where, X, y)
        y = np.asarray(y) if isinstance(y, MappedArray) else y
        outputs, is_single = raw_outputs(self, where, X, None, batch_size)
        if is_single:
            raise ValueError(f"{where}: expected rows (n, ...), got one sample. Pass X[None] and y[None].")
        if encoder is None:
            encoder = training_data.target_encoder_for(where, self.layers, y, self.cost, is_training=False)
        targets = encoder.encode(where, y)
        training_data.check_targets(where, self.layers, encoder, targets, y)
        if isinstance(encoder, ClassEncoder):
            targets = one_hot(targets, outputs.shape[1])
        outputs, targets = encoder.decode(outputs), encoder.decode(targets)
        if len(targets) != len(outputs):
            raise ValueError(
                f"{where}: expected X and y with equal numbers of rows, got {len(outputs)} and {len(targets)}"
            )
        columns, t = (self.be.array(evaluation.as_columns(x), dtype=x.dtype.name) for x in (outputs, targets))
        return {name: as_value(metric(columns, t), metric) for name, metric in computed.items()}


def raw_outputs(
    model: evaluation.EvaluationMethods,
    where: str,
    X: Any,
    preprocessed: bool | None = None,
    batch_size: int | None = None,
    network: Any = None,
) -> tuple[NDArray[Any], bool]:
    """Return the outputs of the network, or of another one, for rows, and whether ``X`` is one sample."""
    model.check_can_evaluate()
    if training_data.is_minibatches(where, X):
        X = training_data.MinibatchIterator(model, where, X)
    if hasattr(X, "nbatches"):
        with batch_size_of(model, X):
            outputs = model.get_outputs(X)
        return outputs if outputs.ndim == 2 else outputs.transpose(0, 2, 1), False
    batch_size = model.be.bsz or DEFAULT_ROWS if batch_size is None else integer(f"{where}: batch_size", batch_size)
    if model.input_encoder is not None:
        X = iterator.map_rows(X) if isinstance(model.input_encoder, ArrayEncoder) else X
        batch = model.input_encoder.as_batch(X)
        rows: Any = model.input_encoder.encode(where, X if batch is None else batch)
        is_uint8 = model.preprocessing is None and rows.dtype == np.uint8
        if is_uint8 and (largest := training_data.in_memory(rows).max()) > MAX_UNSCALED_INPUT:
            warn(
                f"{where}: the rows are uint8 up to {largest} and are not scaled, as the training data were floats. "
                "Scale them in the same way."
            )
    else:
        batch = np.asarray(X)[None] if is_one_sample(X, model.layers.in_shape) else None
        rows = X if batch is None else batch
    with model.be.lock:
        if model.layers.in_shape is None or any(p is None for p in model.layers.parameters):
            warn(f"{where}: the weights are random: the model was neither trained nor loaded. Call fit or load_params.")
            with model.be.batch_size(batch_size):
                model.initialize(ArrayIterator(rows, lshape=model.layers.in_shape, partial_last=True))
    outputs = predict_rows(where, network or model.layers, rows, model.preprocessing, preprocessed, batch_size)
    if not np.isfinite(outputs).all():
        row = iterator.first_true_row(~np.isfinite(outputs))
        warn(f"{where}: the outputs of row {row} are NaN or infinite. Check the weights: model.get_weights()")
    return outputs, batch is not None


def predict_rows(
    where: str, network: Any, X: Any, preprocessing: Preprocessing | None, preprocessed: bool | None, batch_size: int
) -> NDArray[Any]:
    """Return the outputs of a network for rows, preprocessed if necessary; the training state is not changed."""
    be, shape = network.be, network.in_shape
    arrays, shapes = read_rows(where, X, shape)
    steps = choose_preprocessing(where, arrays, preprocessing, preprocessed)
    scales = [None if step is None or step.scale == (1, 0) else step.scale for step in steps]
    buffers = [MinibatchBuffers(be, x, f"{where}.inputs", scale) for x, scale in zip(shapes, scales, strict=True)]

    def minibatches() -> Iterator[tuple[Any, None]]:
        for first in range(0, len(arrays[0]), batch_size):
            parts = [x[first : first + batch_size] for x in arrays]
            for x, part in zip(arrays, parts, strict=True):
                if isinstance(x, MappedArray):
                    check_finite_rows(where, part, first)
            choose_preprocessing(where, parts, preprocessing, preprocessed)  # raises for floats of another range
            batch = [x if step is None else step.subtract_mean(x) for x, step in zip(parts, steps, strict=True)]
            n = len(batch[0])
            x = [buffer.fill(n, [(slice(0, n), rows.T)]) for buffer, rows in zip(buffers, batch, strict=True)]
            yield x if isinstance(shape, list) else x[0], None

    with be.lock, inference(network) as run:  # so that all rows use the same weights
        return np.concatenate(
            evaluation.map_minibatches(
                where, network, minibatches(), len(arrays[0]), run, partial(evaluation.output_rows, where)
            )
        )


def read_rows(where: str, X: Any, shape: Any) -> tuple[list[Any], list[Any]]:
    """Return the inputs as arrays (n, F), one for each input of the network, and the shapes of these inputs.

    Memory-mapped arrays are ``MappedArray``, whose rows are not read yet.
    """
    if isinstance(shape, list):
        if not isinstance(X, list | tuple) or len(X) != len(shape):
            got = f"{len(X)} arrays" if isinstance(X, list | tuple) else f"a {type(X).__name__}"
            raise ValueError(f"{where}: expected a list of {len(shape)} arrays with rows {shape}, got {got}")
        shapes, inputs = shape, list(X)
    else:
        shapes, inputs = [shape], [X]
    arrays = [iterator.map_rows(iterator.to_array(where, x, "X")) for x in inputs]
    if len({*map(len, arrays)}) > 1:
        raise ValueError(f"{where}: expected arrays with equal numbers of rows, got {[*map(len, arrays)]}")
    for x, expected in zip(arrays, shapes, strict=True):
        check_shape(where, x, expected)
        if not isinstance(x, MappedArray):
            check_finite_rows(where, x, 0)
    return [x.map(flatten_rows) if isinstance(x, MappedArray) else flatten_rows(x) for x in arrays], shapes


def flatten_rows(x: NDArray[Any]) -> NDArray[Any]:
    """Return rows as (n, F)."""
    return x.reshape(len(x), -1)


def check_finite_rows(where: str, x: NDArray[Any], first: int) -> None:
    """Raise ValueError for NaN or infinity; ``first`` is the index of the first row."""
    if is_float_array(x) and not np.isfinite(x).all():
        row = first + iterator.first_true_row(~np.isfinite(x))
        raise ValueError(
            f"{where}: expected finite values, got NaN or infinity in row {row}. Remove these rows, or replace the "
            "values."
        )


def check_shape(where: str, x: NDArray[Any], shape: Any) -> None:
    """Raise ValueError unless rows have this shape, or the same number of elements if either of the two is flat."""
    sizes, row = shape if isinstance(shape, tuple) else (shape,), x.shape[1:]
    if math.prod(sizes) == math.prod(row) and (1 in (len(sizes), len(row)) or ones_off(sizes) == ones_off(row)):
        return
    hint = iterator.transpose_hint(row, sizes)
    if not hint and len(sizes) == len(row) == 2 and sizes[0] == row[0]:
        hint = f"call model.set_seq_len({row[1]}) first"
    if x.ndim == 2 and len(x) == math.prod(sizes):
        hint = "pass rows: X.T"
    expected = f"rows of shape {shape}, an array {(len(x), *sizes)}"
    raise ValueError(f"{where}: expected {expected}, got {x.shape}{hint and f': {hint}'}")


def choose_preprocessing(
    where: str, arrays: list[NDArray[Any]], preprocessing: Preprocessing | None, preprocessed: bool | None
) -> list[Preprocessing | None]:
    """Return the preprocessing to apply to each input: none for floats if the training data were integers."""
    if preprocessing is None or preprocessed is not None:
        return [None if preprocessed else preprocessing] * len(arrays)
    steps: list[Preprocessing | None] = []
    for x, limits in zip_longest(arrays, preprocessing.integers[: len(arrays)]):
        if limits is None or x.dtype.kind in "iu":
            steps.append(preprocessing)
            continue
        if not isinstance(x, MappedArray) and not preprocessing.is_in_scaled_range(x, limits):
            raise ValueError(
                f"{where}: expected {limits}, as in the training data, or preprocessed floats, "
                f"{preprocessing.factor:g} * x + {preprocessing.offset:g}, got {x.dtype} from {x.min():g} to "
                f"{x.max():g}. Pass preprocessed=False to preprocess these rows, preprocessed=True to use them "
                "unchanged."
            )
        steps.append(None)
    return steps


def ones_off(sizes: Iterable[int]) -> list[int]:
    """Return the sizes that are not 1."""
    return [n for n in sizes if n != 1]


def batch_size_of(model: base.ModelBase, dataset: Any) -> AbstractContextManager[object]:
    """Return a context with the batch size of minibatches that have one; others have that of the backend."""
    return (
        model.be.batch_size(dataset.batch_size)
        if isinstance(dataset, training_data.MinibatchIterator)
        else nullcontext()
    )


def is_one_sample(X: Any, shape: LayerShapes | None) -> bool:
    """Return whether data has the shape of one sample, (F,) for F > 1, (F, T) for F > 1 or (C, H, W)."""
    if shape is None or isinstance(shape, list):
        return False
    sizes = shape if isinstance(shape, tuple) else (shape,)
    try:
        return np.shape(X) == sizes and (sizes[0] > 1 or len(sizes) > 2)
    except ValueError:  # rows of different lengths
        return False


def predicts_classes(model: base.ModelBase) -> bool:
    """Return whether the outputs are probabilities of classes, by the last activation and the cost."""
    transform, cost = getattr(model.layers.get_terminal(), "transform", None), model.cost
    if isinstance(transform, Softmax):
        return True
    return isinstance(transform, Logistic) if cost is None else training_data.expects_probabilities(cost)


def as_value(values: Any, metric: Metric) -> Any:
    """Return a metric's only value as a float, several as an array that can be plotted."""
    array = evaluation.MetricValues.of(values, metric)
    return array.only() if array.size == 1 else array
