"""Evaluation: metrics, the cost and the outputs of a model for a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.interrupt import defers_interrupt, raise_interrupt
from neonlite.backend.lock import exclusive
from neonlite.backend.transaction import atomic, on_failure
from neonlite.callbacks.callback import check_dataset
from neonlite.data.iterator import ResumableIterator
from neonlite.encoders.targets import NumberEncoder, TargetEncoder
from neonlite.messages import describe
from neonlite.models.beam_search import BeamSearch
from neonlite.models.metric_values import MetricValues
from neonlite.models.step_parts import use_batch_size_of
from neonlite.transforms import Cost, Metric, get_metric

if TYPE_CHECKING:
    from neonlite.data import NervanaDataIterator
    from neonlite.encoders.inputs import InputEncoder
    from neonlite.layers.seq2seq import Seq2Seq
    from neonlite.models.model import Model
    from neonlite.typing import ArrayLike

Part = TypeVar("Part")


@defers_interrupt
@exclusive
def eval(
    model: Model,
    dataset: NervanaDataIterator | None = None,
    metric: Metric | Cost | str | Callable[..., ArrayLike] | None = None,
) -> MetricValues:
    """Return a metric of a data set.

    Each row counts once, even if the last minibatch wraps around. The metric is that of all rows, whatever the batch
    size. Only if its class overrides ``__call__``, or if it is a function, it is the mean over the rows. Numbers that
    ``fit(X, y)`` standardized are compared in the units of its ``y``, in float64.

    Parameters
    ----------
    dataset : iterator
        The data set; its position is restored.
    metric : Metric, Cost, str or callable
        The metric, such as Accuracy(), a cost, or the short name of a metric, such as "mse"; see
        ``neonlite.transforms.get_metric``. Or a function ``f(y, t, calcrange=columns)`` of a minibatch.

    Returns
    -------
    MetricValues
        An array with one element for each name of the metric. With one name, it converts to a scalar, as in
        ``"%.1f" % (100 * model.eval(data, metric))``. Of a ConfusionMatrix, the matrix (classes, classes).

    Raises
    ------
    TypeError
        ``metric`` is not a metric, or ``dataset`` is not a data set.
    ValueError
        The data set is empty, or there is no metric of this name.
    """
    if dataset is None:
        raise TypeError(
            f"{model.name}.eval: expected a data set and a metric, got none. Pass eval(dataset, metric). There is "
            "no mode to set: predict, evaluate and fprop(x, inference=True) compute the outputs at inference."
        )
    if isinstance(metric, str | Cost):
        metric = get_metric(metric)
    if isinstance(metric, type) or not callable(metric):
        raise TypeError(f"{model.name}.eval: expected a metric, such as Accuracy(), got {describe(metric)}")
    outputs_encoder, targets_encoder = model.target_encoder, getattr(dataset, "target_encoder", None)

    def decode(y: Any, t: Any) -> tuple[Any, Any]:
        return decode_columns(y, outputs_encoder), decode_columns(t, targets_encoder)

    if isinstance(metric, Metric) and metric.is_additive:
        parts = map_outputs(model, dataset, lambda y, t, columns, n: metric.sums(*decode(y, t), columns))
        return MetricValues.of(metric.compute(*metric.merge(gather(model, dataset, parts))), metric)

    def evaluate(y: Any, t: Any, columns: Any, n: int) -> tuple[int, NDArray[Any]]:
        return n, np.asarray(metric(*decode(y, t), calcrange=columns), np.float64)

    values = map_outputs(model, dataset, evaluate)
    return MetricValues.of(mean_over_rows(gather(model, dataset, values)), metric)


@defers_interrupt
@exclusive
def eval_cost(model: Model, dataset: NervanaDataIterator) -> float:
    """Return the mean cost over the rows of a data set. Each row counts once.

    It is what training minimizes: numbers that ``fit(X, y)`` standardized are not in the units of its ``y``.

    Parameters
    ----------
    dataset : iterator
        The data set; its position is restored.

    Raises
    ------
    RuntimeError
        The model has no cost yet.
    """
    model.check_can_evaluate()
    if model.cost is None:
        raise RuntimeError(
            f"{model.name}.eval_cost: expected a cost, got none. Call initialize(dataset, cost) or fit first."
        )
    cost, encoder = model.cost, model.target_encoder
    if getattr(dataset, "target_encoder", None) is not None:
        encoder = None  # its targets are encoded

    def evaluate(y: Any, t: Any, columns: Any, n: int) -> tuple[int, float]:
        t = encode_columns(f"{model.name}.eval_cost", t, encoder)
        cost.get_cost(y, t)
        parts = cost.pair_outputs(y, t) if hasattr(cost, "pair_outputs") else [(cost, 1.0, y, t)]
        each = [w * float(c.outputs.get()[:, columns].mean()) for c, w, _, target in parts if target is not None]
        return n, sum(each)

    return float(mean_over_rows(gather(model, dataset, map_outputs(model, dataset, evaluate))))


@defers_interrupt
@exclusive
def get_outputs(model: Model, dataset: NervanaDataIterator) -> NDArray[Any]:
    """Return the outputs of the network for a data set; ``predict`` returns numbers in the units of ``fit(X, y)``.

    Parameters
    ----------
    dataset : iterator
        The data set; its position is restored.

    Returns
    -------
    numpy.ndarray
        (rows, features), or (rows, T, features) with time steps.
    """

    def read(y: Any, t: Any, columns: Any, n: int) -> NDArray[Any]:
        if isinstance(y, list):
            raise ValueError(f"{model.name}: expected a network with one output, got {len(y)}. Use fprop.")
        values: NDArray[Any] = y.get()[:, columns]
        steps = values.shape[1] // n
        return values.T if steps == 1 else values.reshape(-1, steps, n).transpose(2, 1, 0)

    return np.concatenate(gather(model, dataset, map_outputs(model, dataset, read)))


@defers_interrupt
@exclusive
def get_outputs_beam(
    model: Model, dataset: NervanaDataIterator, num_beams: int = 0, steps: int | None = None
) -> NDArray[np.int64]:
    """Return the token ids that a Seq2Seq network generates for each row.

    Parameters
    ----------
    dataset : iterator
        The data set; its position is restored.
    num_beams : int
        The number of beams; 0 and 1 are greedy decoding. Default: 0.
    steps : int, optional
        The number of tokens to generate. Default: that of the network.

    Returns
    -------
    numpy.ndarray
        Token ids (rows, steps).
    """
    search = BeamSearch(cast("Seq2Seq", model.layers))

    def run(x: Any) -> Any:
        x = x[0] if isinstance(x, list | tuple) else x
        return search.beamsearch(x, num_beams or 1, steps)[0][:, 0].T

    tokens = map_outputs(model, dataset, lambda y, t, columns, n: y[:, columns].T, run)
    return np.concatenate(gather(model, dataset, tokens))


def check_inputs(where: str, encoder: InputEncoder | None, dataset: object) -> None:
    """Raise ValueError if the network was trained on standardized rows, and those of an iterator are not."""
    is_standardized = encoder is not None and encoder.feature_units() is not None
    if is_standardized and getattr(dataset, "input_encoder", None) is None:
        raise ValueError(
            f"{where}: expected arrays or a data frame, whose rows are standardized as those of fit(X, y), got an "
            f"iterator, {describe(dataset)}, whose rows are not. Pass its arrays, or train with standardize=False."
        )


def as_columns(rows: NDArray[Any]) -> NDArray[Any]:
    """Return rows (n,), (n, K) or (n, K, T) as columns (K, T n) of a minibatch."""
    columns: NDArray[Any] = rows.reshape(len(rows), rows.shape[1] if rows.ndim > 1 else 1, -1).transpose(1, 2, 0)
    return columns.reshape(len(columns), -1)


def decode_columns(columns: Any, encoder: TargetEncoder | None) -> Any:
    """Return outputs or targets (K, n), or (targets, mask), in the units of the user if they are standardized."""
    if not is_standardized(encoder):
        return columns
    if isinstance(columns, list | tuple):
        return decode_columns(columns[0], encoder), *columns[1:]
    return columns.backend.array(as_columns(encoder.decode(columns.get().T)), dtype="float64")


def encode_columns(where: str, columns: Any, encoder: TargetEncoder | None) -> Any:
    """Return targets (K, n), or (targets, mask), as they are in training if an encoder standardizes them."""
    if not is_standardized(encoder):
        return columns
    if isinstance(columns, list | tuple):
        return encode_columns(where, columns[0], encoder), *columns[1:]
    return columns.backend.array(as_columns(encoder.encode(where, columns.get().T)), dtype=columns.dtype)


def is_standardized(encoder: TargetEncoder | None) -> TypeGuard[NumberEncoder]:
    """Return whether targets are numbers that differ from those of the user."""
    return isinstance(encoder, NumberEncoder) and encoder.mean is not None


def mean_over_rows(values: Sequence[tuple[int, Any]]) -> Any:
    """Return the mean of values, given as (number of rows, mean over these rows)."""
    total: Any = 0
    for n, value in values:
        total = total + n * value
    return total / sum(n for n, _ in values)


def gather(model: Model, dataset: Any, parts: list[Part]) -> list[Part]:
    """Return the parts of all processes that evaluate together, in the order of the rows; of one process, its own.

    There is a part for each minibatch. A process may have fewer: the last minibatches may have no row for it.
    """
    shard = model.be.shard
    if shard is None or not isinstance(dataset, ResumableIterator):
        return parts
    everywhere = shard.communicator.all_gather_objects(parts)
    return [part for minibatch in zip_longest(*everywhere) for part in minibatch if part is not None]


def map_outputs(
    model: Model, dataset: Any, function: Callable[[Any, Any, Any, int], Part], run: Callable[..., Any] | None = None
) -> list[Part]:
    """Return ``function(outputs, targets, columns, n)`` for each minibatch: the n columns of rows not evaluated before.

    ``run(x)`` computes the outputs; default: inference. In a ``fit`` in several processes, these are the columns of
    this process. Afterwards, also after an error, the data set and the layers have their previous states.
    """
    model.check_can_evaluate()
    check_inputs(model.name, model.input_encoder, dataset)
    model.initialize(check_dataset(f"{model.name}: dataset", dataset))
    return atomic(evaluate_minibatches, model, dataset, function, run)


def evaluate_minibatches(
    model: Model, dataset: Any, function: Callable[[Any, Any, Any, int], Part], run: Callable[..., Any] | None
) -> list[Part]:
    """Return the values for ``map_outputs``; restore the data set and the layers, or let the transaction do it."""
    parts: list[Part] = []
    sharded = isinstance(dataset, ResumableIterator)
    if sharded:
        dataset.minibatch = 0  # its epoch starts again, also with another batch size than before
    before = dataset.get_state() if hasattr(dataset, "get_state") else None
    has_batch_size = model.layers.batch_size in (0, model.be.bsz)  # else the next minibatch starts from zeros
    states = [(layer, layer.get_state() if has_batch_size else {}) for layer in model.layers.leaves()]

    def restore() -> None:
        dataset.reset()
        if before is not None:  # it may be the training set
            dataset.set_state({**before, "minibatch": 0})
        for layer, arrays in states:
            layer.set_state(arrays)

    on_failure(restore)
    for layer, _ in states:
        layer.set_state({})
    dataset.reset()
    remaining = dataset.ndata
    for x, t in dataset:
        raise_interrupt()
        if remaining <= 0:
            break
        with use_batch_size_of(model, x) as width:
            shard = model.be.minibatch_shard if sharded else None
            first_column, columns_of_all = (0, width) if shard is None else (shard.start, shard.total)
            n = max(0, min(remaining - first_column, width))
            remaining -= columns_of_all
            if not n:
                continue
            y = model.fprop(x, inference=True) if run is None else run(x)
            first = y[0] if isinstance(y, list) else y
            steps = first.shape[1] // width
            columns: Any = slice(0, None)
            if n < width:
                columns = slice(0, n) if steps == 1 else [s * width + i for s in range(steps) for i in range(n)]
            parts.append(function(y, t, columns, n))
    if remaining == dataset.ndata:
        raise ValueError(f"{model.name}: expected a data set with at least one row, got {describe(dataset)}")
    restore()
    return parts
