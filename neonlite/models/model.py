"""How does a network learn from data?  Minibatch by minibatch: forward, cost, back, update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Block
from neonlite.callbacks import Listener
from neonlite.callbacks.callback import data_set, whole
from neonlite.data import ArrayIterator
from neonlite.layers import GeneralizedCost, LayerContainer, Sequential
from neonlite.layers.summary import Summary
from neonlite.models.beam import BeamSearch
from neonlite.models.benchmark import FUNCTIONS, Benchmark
from neonlite.models.interrupt import Interruptible
from neonlite.models.kept import Kept
from neonlite.models.state import State
from neonlite.optimizers import LossScaling, Optimizer
from neonlite.optree import describe
from neonlite.transforms import Cost


class Model(Kept):
    """A network, with what it takes to train it, to judge it, and to keep it in a file.

    ``layers``: a list of layers, a container, or the path of a file that ``save_params`` wrote (or what ``serialize``
    returned), whose weights the model then has, and unless ``weights_only`` the state of its training. Buffers for
    minibatches are made when they are first needed: the memory of loading is bounded by the size of the file.

    >>> import neonlite as nl
    >>> from neonlite.data import ArrayIterator
    >>> from neonlite.initializers import Constant
    >>> from neonlite.layers import Affine
    >>> from neonlite.models import Model
    >>> from neonlite.optimizers import GradientDescentMomentum
    >>> from neonlite.transforms import MeanSquared
    >>> be = nl.gen_backend("cpu", batch_size=4)
    >>> data = ArrayIterator([[0.0], [1.0], [2.0], [3.0]], y=[[1.0], [3.0], [5.0], [7.0]], make_onehot=False)
    >>> model = Model([Affine(1, Constant(0), bias=Constant(0))])
    >>> model.fit(data, MeanSquared(), GradientDescentMomentum(0.1, 0.5), num_epochs=200)
    >>> model.predict([[4.0], [5.0]]).round(2)  # 2 x + 1
    array([[ 9.],
           [11.]], dtype=float32)
    """

    generalized: Any = GeneralizedCost  # what a cost is made into
    progress: ClassVar[dict[str, type]] = {  # how far it is: the numbers that files have
        "epoch_index": int,
        "minibatch_index": int,
        "epoch_cost": float,
        "total_cost": float,
    }

    def __init__(
        self,
        layers: Any,
        dataset: Any = None,
        weights_only: bool = False,
        name: str | None = None,
        optimizer: Any = None,
    ) -> None:
        super().__init__(name or "model")
        self.cost: Any = None
        self.optimizer = optimizer
        self.epoch_index = 0  # epochs that are done
        self.minibatch_index = 0  # minibatches that are done in this one
        self.epoch_cost = 0.0  # the sum of their costs
        self.total_cost = 0.0  # the mean cost of a minibatch, in the epoch that was last at work
        self.nbatches = 0
        self.ndata = 0
        self.finished = False  # a callback sets it to end the training
        self.initialized = False
        self.width = 0  # the minibatch that there are buffers for
        self.notes: dict[str, Any] = {}  # what files are to say besides: data for JSON, as the words of a vocabulary
        self.data_state: Any = None  # where the data is
        self.graphs = True  # whether a card may replay minibatches
        self.listener = Listener()  # of the last fit
        self.loaded: State | None = None  # what the next one brings its data and its listener to
        if isinstance(layers, str | Path | dict):
            state = State.read(layers)
            self.name, self.layers = name or state.field(str, "name"), state.network()
            self.notes = state.field(dict, "notes")
            if state.arrays is not None:
                state.give(self, not weights_only)
        else:
            self.layers = layers if isinstance(layers, LayerContainer) else Sequential(layers)
        if dataset is not None:
            self.initialize(dataset)

    def __str__(self) -> str:
        return f"Network Layers:\n{self.layers.nested_str(1)}"

    def initialize(self, dataset: Any, cost: Any = None) -> None:
        """Settle shapes and make buffers for a data set, or the shape of one; once. Then take the cost, if given."""
        shape = getattr(dataset, "shape", dataset)
        if not self.initialized:
            self.allocate(shape)
            self.initialized, self.width = True, self.be.bsz
        else:
            self.check_steps(shape)
        if cost is not None and cost is not self.cost and cost is not getattr(self.cost, "costfunc", None):
            self.cost = self.generalized(cost) if isinstance(cost, Cost) else cost
            self.cost.initialize(self.layers)

    def check_steps(self, shape: Any) -> None:
        """Raise ValueError when data of a shape has other time steps than the network is ready for."""
        wanted = self.data_shape
        pairs = zip(shape, wanted, strict=False) if isinstance(wanted, list) else [(shape, wanted)]
        for have, want in pairs:
            if all(isinstance(x, tuple) and len(x) == 2 for x in (have, want)) and have[1] != want[1]:
                raise ValueError(
                    f"{self.name}: the data has {have[1]} time steps, the network is ready for {want[1]}: "
                    f"model.set_seq_len({have[1]}) makes it ready for these"
                )

    def allocate(self, shape: Any) -> None:
        """Settle shapes and make buffers for data of a shape."""
        self.layers.configure(shape)
        self.layers.allocate()
        self.layers.allocate_deltas()

    @property
    def settings(self) -> dict[str, Any]:
        """What a training that goes on has to have like the one before, as data for JSON."""
        return {}

    @property
    def data_shape(self) -> Any:
        """The shape of the data: what the network takes."""
        return self.layers.in_shape

    # --- learning ---

    def fit(
        self,
        dataset: Any,
        cost: Any,
        optimizer: Any,
        num_epochs: int,
        callbacks: Listener | None = None,
        graphs: bool = True,
    ) -> None:
        """Train until ``num_epochs`` are done, or a callback sets ``finished``.

        ``cost``: a GeneralizedCost, or a cost such as CrossEntropyMulti(). It goes on where it was: after Ctrl-C, which
        ends it behind a whole step, after an error, and after ``load_params``, also in the middle of an epoch.
        ``graphs``: whether a card may replay a minibatch and its update, as ``be.replay`` says, where all layers are
        neonlite's own or say ``can_replay = True``.
        """
        listener = Listener() if callbacks is None else callbacks
        self.check_fit(dataset, cost, optimizer, listener)
        num_epochs = whole(f"{self.name}.fit: num_epochs", num_epochs, 0)
        if self.loaded is not None and type(optimizer) is type(self.optimizer):
            state = self.optimizer.get_state()
            if optimizer.get_state().keys() == state.keys():
                optimizer.set_state(state)  # one like that of the file goes on as that one would
        self.optimizer, self.graphs = optimizer, graphs
        if isinstance(optimizer, Optimizer):
            optimizer.graphs = graphs
        self.finished = False
        with Interruptible() as interrupt:
            with interrupt.whole():
                self.initialize(dataset, cost)
            if self.loaded is not None:
                self.loaded.take_up(dataset, listener)
            elif self.minibatch_index and self.data_state and hasattr(dataset, "set_state"):
                dataset.set_state(self.data_state)
            self.loaded, self.listener = None, listener
            self.ndata = dataset.ndata
            listener.on_train_begin(num_epochs)
            try:
                while self.epoch_index < num_epochs and not self.finished:
                    self.nbatches = dataset.nbatches  # one less, now and then
                    listener.on_epoch_begin(self.epoch_index)
                    self._epoch(dataset, listener, interrupt)
                    listener.on_epoch_end(self.epoch_index - 1)
                    interrupt.check()
            except BaseException:
                listener.on_interrupt()
                raise
            finally:
                if self.be.graphs is not None:
                    self.be.graphs.forget()
            listener.on_train_end()
            interrupt.check()

    def check_fit(self, dataset: Any, cost: Any, optimizer: Any, listener: Any) -> None:
        """Raise TypeError or ValueError unless these are what ``fit`` takes."""
        data_set(f"{self.name}.fit: dataset", dataset)
        if isinstance(cost, type) or not (isinstance(cost, Cost) or hasattr(cost, "get_cost")):
            raise TypeError(f"{self.name}.fit: cost is an object such as CrossEntropyMulti(); got {describe(cost)}")
        if isinstance(optimizer, type) or not hasattr(optimizer, "optimize"):
            raise TypeError(f"{self.name}.fit: optimizer is an object such as Adam(); got {describe(optimizer)}")
        if isinstance(listener, type) or not hasattr(listener, "on_train_begin"):
            raise TypeError(f"{self.name}.fit: callbacks are Callbacks(model), or a Listener; got {describe(listener)}")
        if getattr(listener, "callbacks", None) is not None and listener.model is not self:
            raise ValueError(f"{self.name}.fit: the callbacks are those of another model, {describe(listener.model)}")

    def _epoch(self, dataset: Any, listener: Listener, interrupt: Interruptible) -> None:
        """Train on what is left of an epoch."""
        epoch = self.epoch_index
        self.be.begin(Block.epoch, epoch)
        for x, t in dataset:
            listener.on_minibatch_begin(epoch, self.minibatch_index)
            self.be.begin(Block.minibatch, self.minibatch_index)
            with interrupt.whole():
                before = self.be.rng_get_state()
                try:
                    with self._wide(x):
                        cost = self.step(x, t, epoch)
                except BaseException:
                    self.be.rng_set_state(before)  # the step comes again, with the same dropout
                    raise
                self.epoch_cost += cost
                self.minibatch_index += 1
                self.total_cost = self.epoch_cost / self.minibatch_index
                self._note(dataset)
            self.be.end(Block.minibatch, self.minibatch_index - 1)
            listener.on_minibatch_end(epoch, self.minibatch_index - 1)
            interrupt.check()
        if not self.minibatch_index:
            raise ValueError(f"{self.name}: epoch {epoch} has no minibatches; got {describe(dataset)}")
        with interrupt.whole():
            self.epoch_index, self.minibatch_index, self.epoch_cost = epoch + 1, 0, 0.0
            self._note(dataset)
        self.be.end(Block.epoch, epoch)

    def step(self, x: Any, t: Any, epoch: int = 0) -> float:
        """Learn from one minibatch, and return its cost. An error leaves the weights that are learned as they were."""
        uses, block = (self.layers, self.cost, x, t), (Block.minibatch, self.scaling)
        y, found = self.be.replay(block, lambda: self.find_gradients(x, t), uses, self.graphs)
        # what went wrong on a card comes to light here
        cost: float = self.find_cost(y, t) if found is None else found
        self.optimizer.optimize(self.layers_to_optimize, epoch)
        return cost

    def find_gradients(self, x: Any, t: Any) -> tuple[Any, float | None]:
        """Compute the outputs for a minibatch and all gradients, and return the outputs and their cost.

        The cost comes before its derivative, as it may remember what it finds; but it is None where this may be
        replayed, as no number goes to the host then.
        """
        y = self.fprop(x)
        cost = None if self.graphs and self.be.graphs is not None else self.find_cost(y, t)
        self.bprop(self.scaled(self.cost.get_errors(y, t)))
        return y, cost

    def find_cost(self, y: Any, t: Any) -> float:
        """Return the cost of outputs."""
        return float(self.cost.get_cost(y, t).item())

    def scaled(self, errors: Any) -> Any:
        """Return the errors with which ``bprop`` begins: of a LossScaling, those of the cost times its scale."""
        return errors if self.scaling is None else self.scaling.scaled(errors)

    @property
    def scaling(self) -> LossScaling | None:
        """The optimizer, if it is a LossScaling."""
        return self.optimizer if isinstance(self.optimizer, LossScaling) else None

    def fprop(self, x: Any, inference: bool = False) -> Any:
        """Return the outputs of the network."""
        if not self.initialized and self.layers.in_shape is not None:
            self.initialize(self.data_shape)
        return self.layers.fprop(x, inference)

    def bprop(self, delta: Any) -> Any:
        """Compute all gradients, from the error of the outputs."""
        return self.layers.bprop(delta)

    @property
    def layers_to_optimize(self) -> list[Any]:
        """The layers with parameters that are to be learned."""
        return list(self.layers.layers_to_optimize)

    def set_batch_size(self, N: int) -> None:
        """Make ready for minibatches of N."""
        self.layers.set_batch_size(N)
        self.width = N

    def set_seq_len(self, S: int) -> None:
        """Make ready for inputs of S time steps."""
        self.layers.set_seq_len(S)

    @contextmanager
    def _wide(self, x: Any) -> Iterator[int]:
        """Be ready for a minibatch that may be narrower than others; give its size."""
        usual, shape = self.be.bsz, self.layers.in_shape
        first = x[0] if isinstance(x, list | tuple) else x
        if isinstance(x, list | tuple) or isinstance(shape, list):
            shape = shape[0]
        steps = shape[1] if isinstance(shape, tuple) and len(shape) == 2 else 1
        width = first.shape[1] // steps
        if width != self.width:  # narrower than others, or be.bsz was set since
            self.set_batch_size(width)
        try:
            yield width
        finally:
            if width != usual:
                self.set_batch_size(usual)

    def _note(self, dataset: Any) -> None:
        """Take note of where the data is, behind the minibatch that was learned from."""
        if hasattr(dataset, "get_state"):
            self.data_state = dataset.get_state()

    # --- judging ---

    def eval(self, dataset: Any, metric: Any) -> NDArray[np.float64]:
        """Return a metric of a data set, one number for each of its names. Each row counts once.

        It is that of all rows together, where the metric's sums over minibatches add up to it; else the mean over rows.
        """
        if isinstance(metric, type | Cost) or not callable(metric):
            raise TypeError(f"{self.name}.eval: a metric is an object such as Accuracy(); got {describe(metric)}")
        adds_up = getattr(metric, "adds_up", False)
        total: Any = 0
        count: float = 0
        for y, t, columns, n in self._judged(dataset):
            if adds_up:
                sums, n = metric.sums(y, t, columns)
            else:
                sums = n * np.asarray(metric(y, t, calcrange=columns), np.float64)
            total, count = total + sums, count + n
        return np.atleast_1d(np.asarray(metric.summary(total, count) if adds_up else total / count, np.float64))

    def eval_cost(self, dataset: Any) -> float:
        """Return the mean cost of a data set. Each row counts once. RuntimeError before there is a cost."""
        self.check_judged()
        if self.cost is None:
            raise RuntimeError(f"{self.name} has no cost yet: initialize(dataset, cost), or fit, gives it one")
        total, rows = 0.0, 0
        for y, t, columns, n in self._judged(dataset):
            self.cost.get_cost(y, t)
            judged = self.cost.judged(y, t) if hasattr(self.cost, "judged") else [(self.cost, 1.0, y, t)]
            each = [w * float(c.outputs.get()[:, columns].mean()) for c, w, _, target in judged if target is not None]
            total += n * sum(each)
            rows += n
        return total / rows

    def get_outputs(self, dataset: Any) -> NDArray[Any]:
        """Return the outputs for a data set: (rows, features), or (rows, T, F) of those with time steps."""
        found = []
        for y, _, columns, n in self._judged(dataset):
            if isinstance(y, list):
                raise ValueError(f"{self.name}: the network has {len(y)} kinds of outputs; fprop returns them all")
            values = y.get()[:, columns]
            steps = values.shape[1] // n
            found.append(values.T if steps == 1 else values.reshape(-1, steps, n).transpose(2, 1, 0))
        return np.concatenate(found)

    def get_outputs_beam(self, dataset: Any, num_beams: int = 0, steps: int | None = None) -> NDArray[np.int64]:
        """Return the words that a Seq2Seq says to each row, (rows, steps): the likeliest each time, or by beams."""
        search = BeamSearch(self.layers)

        def run(x: Any) -> Any:
            x = x[0] if isinstance(x, list | tuple) else x
            return search.beamsearch(x, num_beams or 1, steps)[0][:, 0].T

        return np.concatenate([y[:, columns].T for y, _, columns, _ in self._judged(dataset, run)])

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the outputs for an array of rows, (n, F) or (n, C, H, W): (n, outputs)."""
        self.check_judged()
        shape = self.layers.in_shape
        n = len(X) if hasattr(X, "__len__") else 1
        usual = self.be.bsz
        data = ArrayIterator(X, lshape=shape, ragged=True) if n else None
        if data is None:
            raise ValueError(f"{self.name}.predict takes one row or more; got {describe(X)}")
        try:
            return self.get_outputs(data)
        finally:
            if self.be.bsz != usual:
                self.set_batch_size(usual)

    def check_judged(self) -> None:
        """Raise TypeError unless outputs for data say how good the model is: here they do."""

    def _judged(self, dataset: Any, run: Any = None) -> Iterator[tuple[Any, Any, Any, int]]:
        """Yield outputs, targets, the columns of rows that were not there before, and how many rows these are.

        Outputs are those of inference, unless ``run(x)`` says others.
        """
        self.check_judged()
        self.initialize(data_set(f"{self.name}: what is judged", dataset))
        before = dataset.get_state() if hasattr(dataset, "get_state") else None
        carried, ready = [(layer, layer.carried) for layer in self.layers.leaves()], self.width
        for layer, _ in carried:
            layer.carry({})  # what is judged begins anew
        dataset.reset()
        left = dataset.ndata
        try:
            for x, t in dataset:
                if left <= 0:
                    break
                with self._wide(x) as width:
                    n = min(left, width)
                    y = self.fprop(x, inference=True) if run is None else run(x)
                    first = y[0] if isinstance(y, list) else y
                    steps = first.shape[1] // width
                    columns: Any = slice(0, None)
                    if n < width:
                        columns = slice(0, n) if steps == 1 else [s * width + i for s in range(steps) for i in range(n)]
                    yield y, t, columns, n
                left -= n
        finally:
            dataset.reset()
            if before is not None:  # a training may go on with it
                dataset.set_state({**before, "minibatch": 0})
            for layer, arrays in carried:
                layer.carry(arrays if self.width == ready else {})
        if left == dataset.ndata:
            raise ValueError(f"{self.name}: what is judged has one row or more; {describe(dataset)} has none")

    def summary(self, dataset: Any = None) -> Summary:
        """Return what training takes: shapes, parameters, arithmetic, memory."""
        shape = getattr(dataset, "shape", dataset)
        found: Summary = self.layers.summary(None if self.initialized else shape, self.cost, self.optimizer)
        return found

    def benchmark(
        self,
        dataset: Any,
        inference: bool = False,
        cost: Any = None,
        optimizer: Any = None,
        niterations: int = 20,
        nskip: int = 2,
    ) -> dict[str, dict[str, float]]:
        """Return the milliseconds of "fprop", "bprop" and a whole "iteration": mean, median, min and max of each.

        ``Benchmark.time`` says how; that model, optimizer, random numbers and data go on as if nothing was.
        """
        times = Benchmark(self, time_layers=False).time(dataset, inference, niterations, cost, optimizer, nskip)
        return {name: {f.__name__: float(f(values)) for f in FUNCTIONS} for name, values in times.items()}
