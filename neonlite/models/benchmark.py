"""How long does a step take, and each layer in it?  Milliseconds, with a model that is afterwards as it was."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neonlite.layers.serialize import pairs

FUNCTIONS = (np.mean, np.median, np.min, np.max)
Times = dict[str, NDArray[np.float64]]


class Benchmark:
    """Times the steps of a model, and with ``time_layers`` each layer, whose end is then waited for."""

    def __init__(self, model: Any, time_layers: bool = True) -> None:
        self.model, self.time_layers = model, time_layers

    def time(
        self,
        dataset: Any,
        inference: bool = False,
        niterations: int = 20,
        cost: Any = None,
        optimizer: Any = None,
        nskip: int = 2,
    ) -> Times:
        """Return the milliseconds of ``niterations`` steps, behind ``nskip`` that do not count, by what is timed.

        "fprop" and "bprop" of the network, "iteration": all of a step, and "fprop fc", "bprop fc" of the layer fc.
        Cost and optimizer are the model's unless given. Weights, optimizer, random numbers and the data set's place
        are afterwards what they were. ValueError for no data and no iterations, RuntimeError when there is no cost or
        no optimizer to learn with.
        """
        model = self.model
        cost, optimizer = cost or model.cost, optimizer or model.optimizer
        for name, value, least in (("niterations", niterations, 1), ("nskip", nskip, 0)):
            if type(value) is not int or value < least:
                raise ValueError(f"{name} is a whole number from {least}; got {value!r}")
        if not inference and (cost is None or optimizer is None):
            raise RuntimeError(f"{model.name}: steps of learning take cost= and optimizer=; others inference=True")
        if not getattr(dataset, "ndata", 1):
            raise ValueError(f"{model.name}: there is no data to time steps with; got {dataset!r}")
        model.initialize(dataset)
        times: dict[str, list[float]] = {}

        def clocked(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **options: Any) -> Any:
                begin = time.perf_counter()
                result = f(*args, **options)
                model.be.runtime.wait()
                times.setdefault(name, []).append((time.perf_counter() - begin) * 1e3)
                return result

            return run

        with unchanged(model, optimizer):
            model.initialize(dataset, None if inference else cost)
            model.optimizer, model.graphs = optimizer, False  # fprop and bprop are to be called
            layers = model.layers.leaves() if self.time_layers else []
            step = clocked("iteration", (lambda x, t: model.fprop(x, inference=True)) if inference else model.step)
            things = [("", model), *((f" {layer.name}", layer) for layer in layers)]
            with watched(things, clocked), closing(minibatches(copy.copy(dataset))) as found:
                for i, (x, t) in enumerate(islice(found, nskip + niterations)):
                    if i == nskip:
                        times.clear()
                    with model._wide(x):
                        step(x, t)
        return {name: np.array(values) for name, values in times.items()}

    @staticmethod
    def print_stats(
        stats: Times, functions: Sequence[Callable[..., Any]] | None = None, output: Callable[[str], Any] = print
    ) -> None:
        """Print times as a table, with a column for each function; mean, median, min and max unless given."""
        functions = functions or FUNCTIONS
        wide = max(map(len, stats), default=0)
        lines = [" " * wide + "".join(f"{f.__name__.capitalize():>10}" for f in functions) + "  ms"]
        lines += [f"{name:<{wide}}" + "".join(f"{f(x):>10.3f}" for f in functions) for name, x in stats.items()]
        output("\n".join(lines))


def minibatches(dataset: Any) -> Generator[Any]:
    """Yield the minibatches of a data set over and over. ValueError when there are none."""
    while True:
        pair = None
        for pair in dataset:
            yield pair
        if pair is None:
            raise ValueError(f"there is no data to time steps with; got {dataset!r}")


@contextmanager
def watched(things: Sequence[tuple[str, Any]], clocked: Callable[..., Any]) -> Iterator[None]:
    """Have fprop and bprop of a model and of layers timed."""
    for label, thing in things:
        for step in ("fprop", "bprop"):
            setattr(thing, step, clocked(step + label, getattr(thing, step)))
    try:
        yield
    finally:
        for _, thing in things:
            del thing.fprop, thing.bprop


@contextmanager
def unchanged(model: Any, optimizer: Any) -> Iterator[None]:
    """Give a model, an optimizer and the random numbers back as they were."""
    attributes, weights, chance = vars(model).copy(), model.get_weights(), model.be.rng_get_state()
    steps = None if optimizer is None else optimizer.get_state()
    kept = [states for layer in model.layers.leaves() for _, states in pairs(layer)]
    before = [[(tensor, tensor.get()) for tensor in states] for states in kept]
    try:
        yield
    finally:
        vars(model).update(attributes)
        model.set_weights(weights)
        model.be.rng_set_state(chance)
        if steps is not None:
            optimizer.set_state(steps)
        for states, old in zip(kept, before, strict=True):
            states[:] = [tensor for tensor, _ in old]
            for tensor, value in old:
                tensor[:] = value
