"""Evaluation: metrics, the cost and the outputs of a model for a data set, and the times of its steps and layers."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from neonlite import messages, typing
from neonlite.backend import batch_size, concurrency, validation
from neonlite.backend.tensor import OneElement
from neonlite.backend.transaction import atomic, on_failure
from neonlite.callbacks.callback import check_dataset
from neonlite.callbacks.history import new_figure, save_figure
from neonlite.data import NervanaDataIterator, iterator
from neonlite.encoders.targets import NumberEncoder, TargetEncoder
from neonlite.layers import GeneralizedCost, Multicost, Seq2Seq
from neonlite.layers.inference import inference, shallow_copy
from neonlite.layers.weights import parameter_states
from neonlite.models import base, generation, training, training_data
from neonlite.optimizers import Optimizer, rules
from neonlite.transforms import Cost, Metric, get_metric
from neonlite.transforms.functions import COSTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Part = TypeVar("Part")


class MetricValues(OneElement):
    """An array (n,) of float64, with one element for each name of a metric, or the array of a metric without names.

    With one element, it is also a scalar: ``float(x)``, ``"%.1f" % (100 * x)`` and ``f"{x:.3f}"`` work.

    Examples
    --------
    >>> from neonlite.models.evaluation import MetricValues
    >>> error = MetricValues.of([0.125])
    >>> "%.1f%%" % (error * 100), f"{error:.2f}", error[0]
    ('12.5%', '0.12', np.float64(0.125))
    """

    metric: object = None  # that computed the values

    @classmethod
    def of(cls, values: typing.ArrayLike, metric: object = None) -> MetricValues:
        """Return a sequence of values, or one value, as a MetricValues."""
        array = np.atleast_1d(np.asarray(values, np.float64)).view(cls)
        array.metric = metric
        return array

    def plot(self, target: str | Path | IO[bytes] | Axes | None = None) -> Figure:
        """Plot the values: a bar chart, or of a ConfusionMatrix, the matrix.

        Parameters
        ----------
        target : str, Path, file object or matplotlib.axes.Axes, optional
            Where to save the figure, such as "confusion.png", or the axes to plot into. Default: a new figure.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which a notebook displays.

        Raises
        ------
        ImportError
            matplotlib is not installed.
        TypeError
            The values are not a result of ``Model.eval`` with a Metric.
        """
        if not isinstance(self.metric, Metric):
            raise TypeError(f"MetricValues.plot: expected a result of eval with a Metric, got {self}")
        side = 3 + 0.4 * len(self)
        axes: Any = target
        if target is None or isinstance(target, str | Path) or hasattr(target, "write"):
            axes = new_figure("MetricValues.plot", side + 1, side).subplots()
        self.metric.plot(self.view(np.ndarray), axes)
        figure: Figure = axes.figure
        if axes is not target:
            save_figure(figure, cast("str | Path | IO[bytes] | None", target))
        return figure


class EvaluationMethods(base.ModelBase):
    """Metrics, the cost and the outputs of a model for a data set."""

    @concurrency.defers_interrupt
    @concurrency.exclusive
    def eval(
        self,
        dataset: NervanaDataIterator | None = None,
        metric: Metric | Cost | str | Callable[..., typing.ArrayLike] | None = None,
    ) -> MetricValues:
        """Return a metric of a data set.

        Each row counts once, even if the last minibatch wraps around. The metric is that of all rows, whatever the
        batch size. Only if its class overrides ``__call__``, or if it is a function, it is the mean over the rows.
        Numbers that ``fit(X, y)`` standardized are compared in the units of its ``y``, in float64.

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
                f"{self.name}.eval: expected a data set and a metric, got none. Pass eval(dataset, metric). There is "
                "no mode to set: predict, evaluate and fprop(x, inference=True) compute the outputs at inference."
            )
        if isinstance(metric, str | Cost):
            metric = get_metric(metric)
        if isinstance(metric, type) or not callable(metric):
            raise TypeError(f"{self.name}.eval: expected a metric, such as Accuracy(), got {messages.describe(metric)}")
        outputs_encoder, targets_encoder = self.target_encoder, getattr(dataset, "target_encoder", None)

        def decode(y: Any, t: Any) -> tuple[Any, Any]:
            return decode_columns(y, outputs_encoder), decode_columns(t, targets_encoder)

        if isinstance(metric, Metric) and metric.is_additive:
            parts = map_outputs(self, dataset, lambda y, t, columns, n: metric.sums(*decode(y, t), columns))
            return MetricValues.of(metric.compute(*metric.merge(gather(self, dataset, parts))), metric)

        def evaluate(y: Any, t: Any, columns: Any, n: int) -> tuple[int, NDArray[Any]]:
            return n, np.asarray(metric(*decode(y, t), calcrange=columns), np.float64)

        values = map_outputs(self, dataset, evaluate)
        return MetricValues.of(mean_over_rows(gather(self, dataset, values)), metric)

    @concurrency.defers_interrupt
    @concurrency.exclusive
    def eval_cost(self, dataset: NervanaDataIterator) -> float:
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
        self.check_can_evaluate()
        if self.cost is None:
            raise RuntimeError(
                f"{self.name}.eval_cost: expected a cost, got none. Call initialize(dataset, cost) or fit first."
            )
        cost, encoder = self.cost, self.target_encoder
        if getattr(dataset, "target_encoder", None) is not None:
            encoder = None  # its targets are encoded

        def evaluate(y: Any, t: Any, columns: Any, n: int) -> tuple[int, float]:
            t = encode_columns(f"{self.name}.eval_cost", t, encoder)
            cost.get_cost(y, t)
            parts = cost.pair_outputs(y, t) if hasattr(cost, "pair_outputs") else [(cost, 1.0, y, t)]
            each = [w * float(c.outputs.get()[:, columns].mean()) for c, w, _, target in parts if target is not None]
            return n, sum(each)

        return float(mean_over_rows(gather(self, dataset, map_outputs(self, dataset, evaluate))))

    @concurrency.defers_interrupt
    @concurrency.exclusive
    def get_outputs(self, dataset: NervanaDataIterator) -> NDArray[Any]:
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
        parts = map_outputs(self, dataset, partial(output_rows, self.name))
        outputs = np.concatenate(gather(self, dataset, parts))
        return outputs if outputs.ndim == 2 else outputs.transpose(0, 2, 1)

    @concurrency.defers_interrupt
    @concurrency.exclusive
    def get_outputs_beam(
        self, dataset: NervanaDataIterator, num_beams: int = 0, steps: int | None = None
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
        generation.BeamSearch(cast(Seq2Seq, self.layers))  # raises an error for another network

        def run(x: Any) -> Any:
            x = x[0] if isinstance(x, list | tuple) else x
            with shallow_copy(self.layers) as network:
                network.allocate()
                return generation.BeamSearch(network).beamsearch(x, num_beams or 1, steps)[0][:, 0].T

        tokens = map_outputs(self, dataset, lambda y, t, columns, n: y[:, columns].T, run)
        return np.concatenate(gather(self, dataset, tokens))


# --- the loop over minibatches ---------------------------------------------------------------------------------------


def map_minibatches(
    where: str,
    network: Any,
    minibatches: Any,
    num_rows: int,
    run: Callable[[Any], Any],
    function: Callable[[Any, Any, Any, int], Part],
) -> list[Part]:
    """Return ``function(outputs, targets, columns, n)`` for each minibatch: the n columns of rows not evaluated before.

    ``run(x)`` returns the outputs; meanwhile ``be.bsz`` is the number of rows of the minibatch. In a ``fit`` in several
    processes, a minibatch of a data set has the columns of this process.
    """
    parts: list[Part] = []
    remaining, be = num_rows, network.be
    is_sharded = isinstance(minibatches, iterator.ResumableIterator)
    for x, t in minibatches:
        concurrency.raise_interrupt()
        if remaining <= 0:
            break
        width = network.num_samples(x) if (x[0] if isinstance(x, list | tuple) else x).shape[1] else 0
        shard = be.minibatch_shard if is_sharded else None
        first_column, columns_of_all = (0, width) if shard is None else (shard.start, shard.total)
        n = max(0, min(remaining - first_column, width))
        remaining -= columns_of_all
        if not n:
            continue
        with be.batch_size(width):
            y = run(x)
            steps = (y[0] if isinstance(y, list) else y).shape[1] // width
            columns: Any = slice(0, None)
            if n < width:
                columns = slice(0, n) if steps == 1 else [s * width + i for s in range(steps) for i in range(n)]
            parts.append(function(y, t, columns, n))
    if remaining == num_rows:
        raise ValueError(f"{where}: expected a data set with at least one row, got {messages.describe(minibatches)}")
    return parts


def map_outputs(
    model: base.ModelBase,
    dataset: Any,
    function: Callable[[Any, Any, Any, int], Part],
    run: Callable[[Any], Any] | None = None,
) -> list[Part]:
    """Return the values of ``map_minibatches`` for a data set. Training, its buffers and states are not changed.

    ``run(x)`` computes the outputs; default: inference. Afterwards, also after an error, the data set has its previous
    state.
    """
    model.check_can_evaluate()
    training_data.check_inputs(model.name, model.input_encoder, dataset)
    model.initialize(check_dataset(f"{model.name}: dataset", dataset))

    def evaluate() -> list[Part]:
        if isinstance(dataset, iterator.ResumableIterator):
            dataset.minibatch = 0  # its epoch starts again, also with another batch size than before
        before = dataset.get_state() if hasattr(dataset, "get_state") else None

        def restore() -> None:
            dataset.reset()
            if before is not None:  # it may be the training set
                dataset.set_state({**before, "minibatch": 0})

        on_failure(restore)
        dataset.reset()
        with nullcontext(run) if run is not None else inference(model.layers, passes_states=True) as compute:
            parts = map_minibatches(model.name, model.layers, dataset, dataset.ndata, compute, function)
        restore()
        return parts

    return atomic(evaluate)


def gather(model: base.ModelBase, dataset: Any, parts: list[Part]) -> list[Part]:
    """Return the parts of all processes that evaluate together, in the order of the rows; of one process, its own.

    There is a part for each minibatch. A process may have fewer: the last minibatches may have no row for it.
    """
    shard = model.be.shard
    if shard is None or not isinstance(dataset, iterator.ResumableIterator):
        return parts
    everywhere = shard.communicator.all_gather_objects(parts)
    return [part for minibatch in zip_longest(*everywhere) for part in minibatch if part is not None]


def output_rows(where: str, y: Any, t: Any, columns: Any, n: int) -> NDArray[Any]:
    """Return outputs as rows (n, K), or (n, K, T) with time steps."""
    if isinstance(y, list):
        raise ValueError(f"{where}: expected a network with one output, got {len(y)}. Use fprop.")
    values: NDArray[Any] = y.get()[:, columns]
    steps = values.shape[1] // n
    return values.T if steps == 1 else values.reshape(-1, steps, n).transpose(2, 0, 1)


def mean_over_rows(values: Sequence[tuple[int, Any]]) -> Any:
    """Return the mean of values, given as (number of rows, mean over these rows)."""
    total: Any = 0
    for n, value in values:
        total = total + n * value
    return total / sum(n for n, _ in values)


# --- units -----------------------------------------------------------------------------------------------------------


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


# --- benchmark: time training and inference steps of a model and of its layers ---

STATISTICS = (np.mean, np.median, np.min, np.max)
Timings = dict[str, NDArray[np.float64]]


class Benchmark:
    """Measure the duration of training or inference steps of a model.

    Parameters
    ----------
    model : Model
        The model; it is unchanged afterwards.
    time_layers : bool
        Whether to time each layer as well, which synchronizes a GPU after each layer. Default: True.
    """

    @validation.checks_arguments
    def __init__(self, model: training.TrainingMethods, time_layers: bool = True) -> None:
        self.model, self.time_layers, self.be = model, time_layers, model.be

    def __repr__(self) -> str:
        return f"Benchmark({self.model.name!r}, time_layers={self.time_layers})"

    @concurrency.exclusive
    @validation.checks_arguments
    def time(
        self,
        dataset: NervanaDataIterator,
        inference: bool = False,
        niterations: int = 20,
        cost: GeneralizedCost | Multicost | Cost | str | None = None,
        optimizer: Optimizer | str | None = None,
        nskip: int = 2,
    ) -> Timings:
        """Run steps and return their durations.

        The weights, the optimizer, the random streams and the position of the data set are restored.

        Parameters
        ----------
        dataset : iterator
            The data for the steps.
        inference : bool
            Whether to time inference instead of training. Default: False.
        niterations : int
            The number of steps to time. Default: 20.
        cost : Cost or str, optional
            The cost. Default: that of the model.
        optimizer : Optimizer or str, optional
            The optimizer. Default: that of the model.
        nskip : int
            The number of steps before the first timed one. Default: 2.

        Returns
        -------
        dict of numpy.ndarray
            Arrays (niterations,) in milliseconds: "fprop" and "bprop" of the network, "iteration" for the whole step,
            and "fprop fc" and "bprop fc" for the layer fc.

        Raises
        ------
        ValueError
            The data set is empty, or ``niterations`` is 0.
        RuntimeError
            There is no cost or no optimizer to train with.
        """
        model = self.model
        cost = validation.from_name(f"{model.name}: cost", cost, COSTS) or model.cost
        optimizer = validation.from_name(f"{model.name}: optimizer", optimizer, rules.OPTIMIZERS) or model.optimizer
        niterations, nskip = validation.integer("niterations", niterations), validation.integer("nskip", nskip, 0)
        if not inference and (cost is None or optimizer is None):
            raise RuntimeError(
                f"{model.name}: expected cost and optimizer for training steps. Pass them, or inference=True."
            )
        if not getattr(dataset, "ndata", 1):
            raise ValueError(f"{model.name}: expected a data set with at least one row, got {dataset!r}")
        model.initialize(dataset)
        times: dict[str, list[float]] = {}

        def timed(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **options: Any) -> Any:
                start = time.perf_counter()
                result = f(*args, **options)
                model.be.runtime.synchronize()
                times.setdefault(name, []).append((time.perf_counter() - start) * 1e3)
                return result

            return run

        with preserve_state(model, optimizer):
            model.initialize(dataset, None if inference else cost)
            model.optimizer, model.cuda_graphs = optimizer, False  # replay would not call fprop and bprop
            layers = model.layers.leaves() if self.time_layers else []
            step = timed("iteration", (lambda x, t: model.fprop(x, inference=True)) if inference else model.train_step)
            targets = [("", model), *((f" {layer.name}", layer) for layer in layers)]
            with patch_timers(targets, timed), closing(cycle_minibatches(copy.copy(dataset))) as batches:
                for i, (x, t) in enumerate(islice(batches, nskip + niterations)):
                    if i == nskip:
                        times.clear()
                    with training.use_batch_size_of(model, x):
                        step(x, t)
        return {name: np.array(values) for name, values in times.items()}

    @staticmethod
    def print_stats(
        stats: Timings,
        functions: Sequence[Callable[[NDArray[np.float64]], float]] | None = None,
        output: Callable[[str], object] = print,
        nskip: int = 0,
    ) -> None:
        """Print a table of durations, with a column for each statistic.

        Parameters
        ----------
        stats : dict of numpy.ndarray
            The return value of ``time``.
        functions : sequence of callable, optional
            The statistics. Default: ``np.mean``, ``np.median``, ``np.amin`` and ``np.amax``.
        output : callable or logging.Logger
            The function to call with the text, or a logger. Default: print.
        nskip : int
            The number of first iterations to leave out. Default: 0.

        Raises
        ------
        ValueError
            There are no durations, no functions, or not more than ``nskip`` iterations.
        """
        functions = (np.mean, np.median, np.amin, np.amax) if functions is None else functions
        nskip = validation.integer("print_stats: nskip", nskip, 0)
        if not stats or not len(functions):
            what = ("durations, the return value of time", stats) if not stats else ("one or more functions", functions)
            raise ValueError(f"print_stats: expected {what[0]}, got {messages.describe(what[1])}")
        if few := [name for name, values in stats.items() if len(values) <= nskip]:
            raise ValueError(
                f"print_stats: expected nskip below {len(stats[few[0]])}, the number of iterations of {few[0]}, "
                f"got {nskip}"
            )
        stats = {name: values[nskip:] for name, values in stats.items()}
        width = max(map(len, stats), default=0)
        lines = [" " * width + "".join(f"{f.__name__.capitalize():>10}" for f in functions) + "  ms"]
        lines += [f"{name:<{width}}" + "".join(f"{f(x):>10.3f}" for f in functions) for name, x in stats.items()]
        (output if callable(output) else output.info)("\n".join(lines))


def cycle_minibatches(dataset: Any) -> Generator[Any]:
    """Yield the minibatches of a data set repeatedly; raise ValueError if there are none."""
    while True:
        pair = None
        for pair in dataset:
            yield pair
        if pair is None:
            raise ValueError(f"Benchmark: expected a data set with at least one minibatch, got {dataset!r}")


@contextmanager
def patch_timers(targets: Sequence[tuple[str, Any]], timed: Callable[..., Any]) -> Iterator[None]:
    """Time the methods fprop and bprop of a model and of layers."""
    for label, target in targets:
        for step in ("fprop", "bprop"):
            setattr(target, step, timed(step + label, getattr(target, step)))
    try:
        yield
    finally:
        for _, target in targets:
            del target.fprop, target.bprop


@contextmanager
def preserve_state(model: Any, optimizer: Any) -> Iterator[None]:
    """Restore a model, an optimizer and the random streams at the end."""
    attributes, weights, rng_state = vars(model).copy(), model.get_weights(), model.be.rng_get_state()
    optimizer_state = None if optimizer is None else optimizer.get_state()
    pairs = [(w, states) for layer in model.layers.leaves() for (w, _), states in parameter_states(layer)]
    parameters = [(w, states) for w, states in pairs if not isinstance(states, batch_size.RemoteStates)]
    before = [(w.updates, [(tensor, tensor.get()) for tensor in states]) for w, states in parameters]
    try:
        yield
    finally:
        vars(model).update(attributes)
        model.set_weights(weights)
        model.be.rng_set_state(rng_state)
        if optimizer_state is not None:
            optimizer.set_state(optimizer_state)
        for (w, states), (updates, old) in zip(parameters, before, strict=True):
            w.updates = updates
            states[:] = [tensor for tensor, _ in old]
            for tensor, value in old:
                tensor[:] = value
