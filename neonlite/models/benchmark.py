"""Benchmark: time training and inference steps of a model and of its layers."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.backend.lock import exclusive
from neonlite.backend.validation import checks_arguments, from_name, integer
from neonlite.data import NervanaDataIterator
from neonlite.layers import GeneralizedCost, Multicost
from neonlite.layers.weights import parameter_states
from neonlite.messages import describe
from neonlite.models.training import TrainingMethods, use_batch_size_of
from neonlite.optimizers import Optimizer
from neonlite.optimizers.rules import OPTIMIZERS
from neonlite.transforms import Cost
from neonlite.transforms.cost import COSTS

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

    @checks_arguments
    def __init__(self, model: TrainingMethods, time_layers: bool = True) -> None:
        self.model, self.time_layers, self.be = model, time_layers, model.be

    def __repr__(self) -> str:
        return f"Benchmark({self.model.name!r}, time_layers={self.time_layers})"

    @exclusive
    @checks_arguments
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
        cost = from_name(f"{model.name}: cost", cost, COSTS) or model.cost
        optimizer = from_name(f"{model.name}: optimizer", optimizer, OPTIMIZERS) or model.optimizer
        niterations, nskip = integer("niterations", niterations), integer("nskip", nskip, 0)
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
                    with use_batch_size_of(model, x):
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
        nskip = integer("print_stats: nskip", nskip, 0)
        if not stats or not len(functions):
            what = ("durations, the return value of time", stats) if not stats else ("one or more functions", functions)
            raise ValueError(f"print_stats: expected {what[0]}, got {describe(what[1])}")
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
    parameters = [(w, states) for layer in model.layers.leaves() for (w, _), states in parameter_states(layer)]
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
