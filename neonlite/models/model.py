"""Model: train, evaluate and predict with a network; save and load checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Block
from neonlite.backend.lock import exclusive
from neonlite.backend.transaction import Snapshot, atomic, on_failure, restore_on_failure
from neonlite.backend.validation import integer
from neonlite.backend.warn import warn
from neonlite.callbacks import CallbackBase
from neonlite.callbacks.callback import check_dataset
from neonlite.data import ArrayIterator
from neonlite.data.preprocessing import Preprocessing
from neonlite.layers import GeneralizedCost, LayerContainer, Sequential
from neonlite.layers.buffers import copy_tensors, shape_of
from neonlite.layers.summary import Summary, walk_layers
from neonlite.messages import describe
from neonlite.models.beam_search import BeamSearch
from neonlite.models.benchmark import STATISTICS, Benchmark
from neonlite.models.interrupt import DeferredInterrupt
from neonlite.models.metric_values import MetricValues
from neonlite.models.nonfinite import REMEDIES, diagnosis, shortened_list
from neonlite.models.persistence import PersistentModel
from neonlite.models.predict import Predictor
from neonlite.models.training_state import TrainingState
from neonlite.optimizers import LossScaling, Optimizer
from neonlite.optimizers.loss_scaling import flatten_optimizers
from neonlite.transforms import Cost

if TYPE_CHECKING:
    from neonlite.backend import Tensor
    from neonlite.data import NervanaDataIterator
    from neonlite.layers import Layer, Multicost
    from neonlite.transforms import Metric
    from neonlite.typing import ShapeLike


class Model(PersistentModel):
    """A network with the methods that train it, evaluate it, predict with it, and save it.

    Buffers for minibatches are allocated when they are first needed, so loading a file takes memory in proportion to
    the size of the file.

    Parameters
    ----------
    layers : list, LayerContainer, str, Path or dict
        The layers, a container, the path of a checkpoint, or the return value of ``serialize``.
    dataset : iterator or shape, optional
        Data to allocate buffers for now instead of at the first minibatch.
    weights_only : bool
        Whether to load only the weights of a checkpoint, not its training state. Default: False.
    name : str, optional
        The name, which error messages start with. Default: that of the checkpoint, or "model".
    optimizer : Optimizer, optional
        The optimizer, for ``summary`` and ``benchmark``; ``fit`` replaces it.

    Attributes
    ----------
    epoch_index : int
        The number of complete epochs.
    minibatch_index : int
        The number of complete minibatches of the current epoch.
    total_cost : float
        The mean cost of the minibatches of the current epoch, or of the last one.
    step_cost : float
        The cost of the last minibatch.
    finished : bool
        A callback sets it to end training, also within an epoch.
    metadata : dict
        JSON data that is stored in checkpoints, such as a vocabulary.

    Raises
    ------
    CheckpointError
        The file is not a checkpoint.

    Examples
    --------
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

    cost_wrapper: type[GeneralizedCost] = GeneralizedCost  # the class that wraps a Cost
    has_targets = True  # whether outputs can be compared with targets
    progress_fields: ClassVar[dict[str, type]] = {  # attributes that checkpoints store, with their types
        "epoch_index": int,
        "minibatch_index": int,
        "epoch_cost": float,
        "total_cost": float,
    }

    def __init__(
        self,
        layers: Sequence[Layer | Sequence[Layer]] | LayerContainer | str | Path | dict[str, Any],
        dataset: NervanaDataIterator | ShapeLike | None = None,
        weights_only: bool = False,
        name: str | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(name or "model")
        self.cost: Any = None
        self._initialized_cost: Any = None
        self.optimizer: Any = optimizer
        self.epoch_index = 0  # the number of complete epochs
        self.minibatch_index = 0  # the number of complete minibatches of this epoch
        self.epoch_cost = 0.0  # the sum of the costs of these minibatches
        self.step_cost = 0.0
        self.total_cost = 0.0  # the mean cost of the minibatches of this epoch, or of the last one
        self.nbatches = 0
        self.ndata = 0
        self.finished = False  # a callback sets it to end training, also within an epoch
        self.warned = False  # whether this fit has warned of NaN or infinity
        self.initialized = False
        self.allocated_batch_size = 0  # the batch size of the buffers
        self.metadata: dict[str, Any] = {}  # JSON data that checkpoints store
        self.data_state: Any = None  # the position of the training set
        self.cuda_graphs = True  # whether a GPU may replay minibatches
        self.snapshot: Snapshot | None = None  # of the tensors of layers besides parameters, before the last minibatch
        self.callbacks = CallbackBase()  # the callbacks of the last fit
        self.preprocessing: Preprocessing | None = None  # the preprocessing of the training set's inputs
        self.predictor = Predictor(f"{self.name}.predict")
        self.loaded_state: TrainingState | None = None  # of the checkpoint from which the next fit resumes
        if isinstance(layers, str | Path | dict):
            state = TrainingState.read(layers)
            self.name, self.layers = name or state.get_field(str, "name"), state.build_network()
            self.metadata = state.get_field(dict, "metadata")
            if state.arrays is not None:
                state.restore(self, not weights_only)
        else:
            self.layers = layers if isinstance(layers, LayerContainer) else Sequential(layers)
        if dataset is not None:
            self.initialize(dataset)

    def __repr__(self) -> str:
        lines = [f"{'  ' * depth}{layer!r}" for depth, layer in walk_layers(self.layers, 1)]
        return "\n".join([f"{self.classnm}({self.name!r})", *lines])

    def __str__(self) -> str:
        return f"Network Layers:\n{self.layers.nested_str(1)}"

    @exclusive
    def initialize(
        self, dataset: NervanaDataIterator | ShapeLike, cost: GeneralizedCost | Multicost | Cost | None = None
    ) -> None:
        """Configure the network and allocate its buffers, unless that is done, and set the cost.

        Parameters
        ----------
        dataset : iterator or shape
            The data, or the shape of one sample.
        cost : Cost, optional
            The cost. Default: the current one.

        Raises
        ------
        ValueError
            The network is configured for another number of time steps.
        """
        shape = shape_of(dataset)
        if not self.initialized:
            self.allocate(shape)
            self.initialized, self.allocated_batch_size = True, self.be.bsz
        else:
            self.check_seq_len(shape)
        current = self.cost if self.cost is self._initialized_cost else None
        if cost is not None and cost is not current and cost is not getattr(current, "costfunc", None):
            self.cost = self.cost_wrapper(cost) if isinstance(cost, Cost) else cost
            self.cost.initialize(self.layers)
            self._initialized_cost = self.cost

    def check_seq_len(self, shape: Any) -> None:
        """Raise ValueError if data has another number of time steps than the network is configured for.

        Parameters
        ----------
        shape : shape, or list of shapes
            The shape of one sample, for each input.
        """
        expected = self.data_shape
        pairs = zip(shape, expected, strict=False) if isinstance(expected, list) else [(shape, expected)]
        for actual, configured in pairs:
            if all(isinstance(x, tuple) and len(x) == 2 for x in (actual, configured)) and actual[1] != configured[1]:
                raise ValueError(
                    f"{self.name}: expected data with {configured[1]} time steps, got {actual[1]}. "
                    f"Call model.set_seq_len({actual[1]}) first."
                )

    def allocate(self, shape: Any) -> None:
        """Configure the network and allocate its buffers.

        Parameters
        ----------
        shape : shape, or list of shapes
            The shape of one sample, for each input.
        """
        self.layers.configure(shape)
        self.layers.allocate()
        self.layers.allocate_deltas()

    @property
    def resume_settings(self) -> dict[str, Any]:
        """Settings (JSON data) that must be the same when training resumes from a checkpoint."""
        return {}

    @property
    def data_shape(self) -> Any:
        """The shape of one sample of the inputs, or a list of shapes."""
        return self.layers.in_shape

    # --- training ---

    def fit(
        self,
        dataset: NervanaDataIterator,
        cost: GeneralizedCost | Multicost | Cost,
        optimizer: Optimizer,
        num_epochs: int,
        callbacks: CallbackBase | None = None,
        cuda_graphs: bool = True,
    ) -> None:
        """Train until ``num_epochs`` epochs are complete, or a callback sets ``finished``.

        Training continues where the last ``fit`` stopped, also within an epoch: after Ctrl-C, SIGTERM or SIGHUP, which
        end it after a complete step, after an error, after a callback that set ``finished``, and after ``load_params``.
        With a data set without ``get_state`` and ``set_state``, the epoch starts again at its first minibatch.

        Parameters
        ----------
        dataset : iterator
            The training set, such as an ArrayIterator.
        cost : GeneralizedCost or Cost
            The cost, such as CrossEntropyMulti().
        optimizer : Optimizer
            The optimizer, such as Adam().
        num_epochs : int
            The total number of epochs, including those of earlier calls; 0 trains nothing.
        callbacks : Callbacks or CallbackBase, optional
            The callbacks, such as Callbacks(model).
        cuda_graphs : bool
            Whether a GPU may replay minibatches and updates as CUDA graphs; see ``be.replay``. This needs layers of
            neonlite, or layers that set ``can_replay = True``. Default: True.

        Raises
        ------
        TypeError, ValueError
            Invalid arguments, before the first step.
        KeyboardInterrupt
            Ctrl-C.
        SystemExit
            SIGTERM or SIGHUP, with the exit code 128 + the signal number.

        Warns
        -----
        RuntimeWarning
            The cost, or a weight at the end, is NaN or infinite: once per call, with the epoch, the minibatch and the
            first layer with such outputs. The callback ``TerminateOnNaN`` ends training then.
        UserWarning
            No epoch is left to train (unless ``num_epochs`` is 0), a callback had ended this training before, or the
            learning rate is 0 before ``num_epochs``.
        """
        callbacks = CallbackBase() if callbacks is None else callbacks
        self.check_fit(dataset, cost, optimizer, callbacks)
        num_epochs = integer(f"{self.name}.fit: num_epochs", num_epochs, 0)
        if self.loaded_state is not None and type(optimizer) is type(self.optimizer):
            state = self.optimizer.get_state()
            if optimizer.get_state().keys() == state.keys():
                optimizer.set_state(state)  # of the same type as in the checkpoint: continue from its state
        self.optimizer, self.cuda_graphs = optimizer, cuda_graphs
        if isinstance(optimizer, Optimizer):
            optimizer.cuda_graphs = cuda_graphs
        self.finished = self.warned = False
        with DeferredInterrupt() as interrupt:
            with interrupt.defer():
                self.initialize(dataset, cost)
            if self.loaded_state is not None:
                self.loaded_state.resume(dataset, callbacks)
            elif self.minibatch_index and self.data_state and hasattr(dataset, "set_state"):
                dataset.set_state(self.data_state)
            self.loaded_state, self.callbacks = None, callbacks
            self.ndata, self.preprocessing = dataset.ndata, getattr(dataset, "preprocessing", None)
            callbacks.on_train_begin(num_epochs)
            self.check_epochs(num_epochs)
            is_complete = True  # the last epoch
            try:
                while is_complete and self.epoch_index < num_epochs and not self.finished:
                    self.nbatches = dataset.nbatches  # may differ between epochs
                    callbacks.on_epoch_begin(self.epoch_index)
                    is_complete = not self.finished and self._epoch(dataset, callbacks, interrupt)
                    if is_complete:
                        callbacks.on_epoch_end(self.epoch_index - 1)
                        interrupt.raise_if_pending()
            except BaseException:
                callbacks.on_interrupt()
                raise
            else:
                if not is_complete:
                    callbacks.on_interrupt()
            finally:
                if self.be.graphs is not None:
                    self.be.graphs.clear()
            if not self.warned and (names := self.nonfinite_weights()):
                problem = f"{shortened_list(names)} have NaN or infinity after epoch {self.epoch_index - 1}"
                self.warn_nonfinite(f"{problem}; possible remedies: {REMEDIES}")
            callbacks.on_train_end()

    def check_fit(self, dataset: Any, cost: Any, optimizer: Any, callbacks: Any) -> None:
        """Raise TypeError or ValueError if ``fit`` cannot use its arguments.

        Parameters
        ----------
        dataset, cost, optimizer
            The arguments of ``fit``.
        callbacks : Callbacks or CallbackBase
            The callbacks.
        """
        check_dataset(f"{self.name}.fit: dataset", dataset)
        if isinstance(cost, type) or not (isinstance(cost, Cost) or hasattr(cost, "get_cost")):
            raise TypeError(f"{self.name}.fit: expected a cost, such as CrossEntropyMulti(), got {describe(cost)}")
        if isinstance(optimizer, type) or not hasattr(optimizer, "optimize"):
            raise TypeError(f"{self.name}.fit: expected an optimizer, such as Adam(), got {describe(optimizer)}")
        if isinstance(callbacks, type) or not hasattr(callbacks, "on_train_begin"):
            raise TypeError(f"{self.name}.fit: expected callbacks, such as Callbacks(model), got {describe(callbacks)}")
        if getattr(callbacks, "callbacks", None) is not None and callbacks.model is not self:
            other = getattr(callbacks.model, "name", callbacks.model)
            raise ValueError(f"{self.name}.fit: expected callbacks of this model, got those of {describe(other)}")

    def check_epochs(self, num_epochs: int) -> None:
        """Warn if ``fit`` has no epoch to train, or if the learning rate is 0 in the last epochs.

        Parameters
        ----------
        num_epochs : int
            The total number of epochs.
        """
        done = self.epoch_index
        trained = f"{done} epoch{'s' * (done != 1)}"
        if 0 < num_epochs <= done:
            warn(
                f"{self.name}.fit: nothing was trained: num_epochs={num_epochs} is the total, and the model has "
                f"trained {trained}. Pass num_epochs={done + num_epochs} to train {num_epochs} more."
            )
        elif self.finished and num_epochs:
            warn(
                f"{self.name}.fit: nothing was trained: a callback, such as EarlyStopCallback, ended this training "
                f"after {trained}. Leave it out to continue."
            )
        elif num_epochs and isinstance(self.optimizer, Optimizer):
            for optimizer in flatten_optimizers(self.optimizer):
                if optimizer.learning_rate and not optimizer.get_rate(num_epochs - 1):
                    warn(
                        f"{self.name}.fit: the learning rate is 0 in epoch {num_epochs - 1}, so the weights do not "
                        f"change then: {describe(optimizer.schedule)} ends before num_epochs={num_epochs}"
                    )

    def warn_nonfinite(self, problem: str) -> None:
        """Warn of NaN or infinity, and record that this ``fit`` has warned.

        Parameters
        ----------
        problem : str
            The first sentence of the warning.
        """
        self.warned = True
        warn(f"{self.name}: {problem}. Add the callback TerminateOnNaN() to end training then.", RuntimeWarning)

    def _epoch(self, dataset: NervanaDataIterator, callbacks: CallbackBase, interrupt: DeferredInterrupt) -> bool:
        """Train on the remaining minibatches of an epoch; return False if a callback ended training before its end."""
        epoch = self.epoch_index
        self.be.begin(Block.epoch, epoch)
        for x, t in dataset:
            if self.finished:
                return False
            callbacks.on_minibatch_begin(epoch, self.minibatch_index)
            self.be.begin(Block.minibatch, self.minibatch_index)
            with interrupt.defer(), self.be.lock, self._use_batch_size_of(x):
                atomic(self._minibatch, dataset, x, t, epoch)
            self.be.end(Block.minibatch, self.minibatch_index - 1)
            callbacks.on_minibatch_end(epoch, self.minibatch_index - 1)
            interrupt.raise_if_pending()
            if (
                self.finished and self.minibatch_index < self.nbatches
            ):  # before the iterator computes the next minibatch
                return False
        if not self.minibatch_index:
            raise ValueError(
                f"{self.name}: expected at least one minibatch in epoch {epoch}, got none from {describe(dataset)}"
            )
        with interrupt.defer():
            atomic(self._end_epoch, dataset, epoch)
        self.be.end(Block.epoch, epoch)
        return True

    def _minibatch(
        self, dataset: NervanaDataIterator, x: Tensor | list[Tensor], t: Tensor | list[Tensor], epoch: int
    ) -> None:
        """Run a training step and count it; if it fails, restore everything that the next step depends on."""
        restore_on_failure(self, *self.progress_fields, "step_cost", "data_state")
        on_failure(
            self.be.rng_set_state, self.be.rng_get_state()
        )  # the next fit repeats the step with the same dropout
        tensors: list[Tensor] = []
        for layer in self.layers.leaves():
            tensors += layer.running_tensors
            if layer.progress:
                restore_on_failure(layer, *layer.progress)
        if tensors:
            if self.snapshot is None or not self.snapshot.is_of(tensors):
                self.snapshot = Snapshot(tensors)
            self.snapshot.take(self.cuda_graphs)
        self.step_cost = self.train_step(x, t, epoch)
        self.epoch_cost += self.step_cost
        self.minibatch_index += 1
        self.total_cost = self.epoch_cost / self.minibatch_index
        self._save_data_state(dataset)

    def _end_epoch(self, dataset: NervanaDataIterator, epoch: int) -> None:
        """Count a complete epoch."""
        restore_on_failure(self, *self.progress_fields, "data_state")
        self.epoch_index, self.minibatch_index, self.epoch_cost = epoch + 1, 0, 0.0
        self._save_data_state(dataset)

    def train_step(self, x: Tensor | list[Tensor], t: Tensor | list[Tensor], epoch: int = 0) -> float:
        """Train on one minibatch. If it raises an error, the trainable weights are unchanged.

        Parameters
        ----------
        x : Tensor or list of Tensor
            The inputs.
        t : Tensor or list of Tensor
            The targets.
        epoch : int
            The index of the epoch, for the learning-rate schedule. Default: 0.

        Returns
        -------
        float
            The cost of the minibatch.
        """
        uses, block = (self.layers, self.cost, x, t), (Block.minibatch, self.loss_scaling)
        y, computed = self.be.replay(block, lambda: self.compute_gradients(x, t), uses, self.cuda_graphs)
        cost: float = self.compute_cost(y, t) if computed is None else computed  # waits for the GPU, raises its errors
        self.check_cost(cost, x, t)
        self.optimizer.optimize(self.layers_to_optimize, epoch)
        return cost

    def compute_gradients(
        self, x: Tensor | list[Tensor], t: Tensor | list[Tensor]
    ) -> tuple[Tensor | list[Tensor], float | None]:
        """Run the forward and backward pass on one minibatch.

        The cost is computed before its derivative, as it may cache values for it.

        Parameters
        ----------
        x : Tensor or list of Tensor
            The inputs.
        t : Tensor or list of Tensor
            The targets.

        Returns
        -------
        outputs : Tensor or list of Tensor
            The outputs of the network.
        cost : float or None
            The cost; None if this may be captured as a CUDA graph, which must not copy to the host.
        """
        y = self.fprop(x)
        cost = None if self.cuda_graphs and self.be.graphs is not None else self.compute_cost(y, t)
        self.bprop(self.scale_errors(self.cost.get_errors(y, t)))
        return y, cost

    def check_cost(self, cost: float, x: Tensor | list[Tensor] | None, t: Tensor | list[Tensor] | None) -> None:
        """Warn if a cost is not finite, before the update spreads NaN to all weights.

        Parameters
        ----------
        cost : float
            The cost of the minibatch.
        x, t : Tensor, list of Tensor, or None
            The inputs and targets, to find the cause.
        """
        if not math.isfinite(cost) and not self.warned:
            position = f"in epoch {self.epoch_index}, minibatch {self.minibatch_index}"
            self.warn_nonfinite(f"the cost is {cost} {position}: {diagnosis(self, x, t)}")

    def compute_cost(self, y: Tensor | list[Tensor], t: Tensor | list[Tensor]) -> float:
        """Return the cost of outputs.

        Parameters
        ----------
        y : Tensor or list of Tensor
            The outputs of the network.
        t : Tensor or list of Tensor
            The targets.
        """
        return float(self.cost.get_cost(y, t).item())

    def scale_errors(self, errors: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
        """Return the errors of the outputs, multiplied by the scale of a ``LossScaling`` optimizer.

        Parameters
        ----------
        errors : Tensor or list of Tensor
            The gradient of the cost with respect to the outputs.
        """
        return errors if self.loss_scaling is None else self.loss_scaling.scale_errors(errors)

    @property
    def loss_scaling(self) -> LossScaling | None:
        """The optimizer if it is a ``LossScaling``, else None."""
        return self.optimizer if isinstance(self.optimizer, LossScaling) else None

    def fprop(self, x: Tensor | list[Tensor], inference: bool = False) -> Any:
        """Run the forward pass.

        Parameters
        ----------
        x : Tensor or list of Tensor
            The inputs.
        inference : bool
            Whether layers such as Dropout and BatchNorm use their inference mode. Default: False.

        Returns
        -------
        Tensor or list of Tensor
            The outputs of the network.
        """
        if not self.initialized and self.layers.in_shape is not None:
            self.initialize(self.data_shape)
        return self.layers.fprop(x, inference)

    def __call__(self, x: Tensor | list[Tensor]) -> Any:
        """Return the outputs of a minibatch at inference, ``fprop(x, inference=True)``.

        For arrays with any number of samples use ``predict``.

        Parameters
        ----------
        x : Tensor or list of Tensor
            The inputs.

        Returns
        -------
        Tensor or list of Tensor
            The outputs of the network, in new tensors.

        Raises
        ------
        RuntimeError
            If the network is not configured.

        Examples
        --------
        >>> import neonlite as nl
        >>> from neonlite.initializers import Constant
        >>> from neonlite.layers import Linear
        >>> from neonlite.models import Model
        >>> be = nl.gen_backend("cpu", batch_size=2)
        >>> model = Model([Linear(1, Constant(2), name="sum")])
        >>> model.initialize(3)
        >>> model(be.ones((3, 2))).get()
        array([[6., 6.]], dtype=float32)
        """
        if self.layers.in_shape is None:
            raise RuntimeError(
                f"{self.name}: expected a configured network, got none. Call initialize(dataset) or fit first."
            )
        return copy_tensors(self.fprop(x, inference=True))

    def bprop(self, delta: Tensor | list[Tensor]) -> Any:
        """Run the backward pass: compute the gradients of all parameters.

        Parameters
        ----------
        delta : Tensor or list of Tensor
            The gradient of the cost with respect to the outputs.

        Returns
        -------
        Tensor or None
            The gradient with respect to the inputs, if the first layer computes it.
        """
        return self.layers.bprop(delta)

    @property
    def layers_to_optimize(self) -> list[Layer]:
        """The layers with trainable parameters."""
        return list(self.layers.layers_to_optimize)

    @exclusive
    def set_batch_size(self, N: int) -> None:
        """Set the batch size ``be.bsz``, and reallocate the buffers of a configured network.

        Parameters
        ----------
        N : int
            The batch size.
        """
        if self.layers.in_shape is None:
            self.be.bsz = N
        else:
            self.allocated_batch_size = 0  # in case an allocation fails
            self.layers.set_batch_size(N)
            self.allocated_batch_size = N

    @exclusive
    def set_seq_len(self, S: int) -> None:
        """Reconfigure the network for another number of time steps.

        Parameters
        ----------
        S : int
            The number of time steps.
        """
        self.layers.set_seq_len(S)

    @contextmanager
    def _use_batch_size_of(self, x: Tensor | list[Tensor]) -> Iterator[int]:
        """Use the batch size of a minibatch, which may be partial; yield it, and restore the previous one."""
        previous, shape = self.be.bsz, self.layers.in_shape
        first = x[0] if isinstance(x, list | tuple) else x
        if isinstance(x, list | tuple) or isinstance(shape, list):
            shape = shape[0]
        steps = shape[1] if isinstance(shape, tuple) and len(shape) == 2 else 1
        width = first.shape[1] // steps
        if width == previous == self.allocated_batch_size:
            yield width
            return
        with self.be.batch_size(previous):  # of this thread only
            try:
                if width != self.allocated_batch_size:  # a partial minibatch, or be.bsz has changed
                    self.set_batch_size(width)
                yield width
            finally:
                if width != previous:
                    self.set_batch_size(previous)

    def _save_data_state(self, dataset: NervanaDataIterator) -> None:
        """Save the position of the data set after a minibatch."""
        if hasattr(dataset, "get_state"):
            self.data_state = dataset.get_state()

    # --- evaluation ---

    @exclusive
    def eval(self, dataset: NervanaDataIterator, metric: Metric) -> MetricValues:
        """Return a metric of a data set.

        Each row counts once, even if the last minibatch wraps around. If the metric is additive over minibatches, the
        result is the metric of all rows; otherwise it is the mean over the rows.

        Parameters
        ----------
        dataset : iterator
            The data set; its position is restored.
        metric : Metric
            The metric, such as Accuracy().

        Returns
        -------
        MetricValues
            An array with one element for each name of the metric. With one name, it converts to a scalar, as in
            ``"%.1f" % (100 * model.eval(data, metric))``.

        Raises
        ------
        TypeError
            ``metric`` is not a metric, or ``dataset`` is not a data set.
        ValueError
            The data set is empty.
        """
        if isinstance(metric, type | Cost) or not callable(metric):
            raise TypeError(f"{self.name}.eval: expected a metric, such as Accuracy(), got {describe(metric)}")
        is_additive = getattr(metric, "is_additive", False)
        total: Any = 0
        count: float = 0
        for y, t, columns, n in self._iter_outputs(dataset):
            if is_additive:
                sums, n = metric.sums(y, t, columns)
            else:
                sums = n * np.asarray(metric(y, t, calcrange=columns), np.float64)
            total, count = total + sums, count + n
        return MetricValues.of(metric.compute(total, count) if is_additive else total / count)

    @exclusive
    def eval_cost(self, dataset: NervanaDataIterator) -> float:
        """Return the mean cost over the rows of a data set. Each row counts once.

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
        total, rows = 0.0, 0
        for y, t, columns, n in self._iter_outputs(dataset):
            self.cost.get_cost(y, t)
            parts = self.cost.pair_outputs(y, t) if hasattr(self.cost, "pair_outputs") else [(self.cost, 1.0, y, t)]
            each = [w * float(c.outputs.get()[:, columns].mean()) for c, w, _, target in parts if target is not None]
            total += n * sum(each)
            rows += n
        return total / rows

    @exclusive
    def get_outputs(self, dataset: NervanaDataIterator) -> NDArray[Any]:
        """Return the outputs for a data set.

        Parameters
        ----------
        dataset : iterator
            The data set; its position is restored.

        Returns
        -------
        numpy.ndarray
            (rows, features), or (rows, T, features) with time steps.
        """
        outputs = []
        for y, _, columns, n in self._iter_outputs(dataset):
            if isinstance(y, list):
                raise ValueError(f"{self.name}: expected a network with one output, got {len(y)}. Use fprop.")
            values = y.get()[:, columns]
            steps = values.shape[1] // n
            outputs.append(values.T if steps == 1 else values.reshape(-1, steps, n).transpose(2, 1, 0))
        return np.concatenate(outputs)

    @exclusive
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
        search = BeamSearch(self.layers)

        def run(x: Any) -> Any:
            x = x[0] if isinstance(x, list | tuple) else x
            return search.beamsearch(x, num_beams or 1, steps)[0][:, 0].T

        return np.concatenate([y[:, columns].T for y, _, columns, _ in self._iter_outputs(dataset, run)])

    def predict(self, X: Any, preprocessed: bool | None = None) -> NDArray[Any]:
        """Return the outputs for rows of an array. Any thread may call it.

        Training, its buffers and ``be.bsz`` are not affected. During a ``fit`` in another thread, all rows use the
        weights of one complete step. Each row starts with recurrent states of zeros.

        Parameters
        ----------
        X : array_like, list of array_like, or iterator
            Rows (n, F), (n, F, T), (n, C, H, W), or flattened; a list of arrays for a network with several inputs. An
            iterator is passed to ``get_outputs``, which returns rows in its order and sequences as (n, T, K).
        preprocessed : bool, optional
            Whether the rows are preprocessed as the training set was, such as by the ``scale`` of an ArrayIterator. If
            not, that preprocessing, which checkpoints store, is applied. Default: only rows of floats are preprocessed,
            and only if the training set contained integers.

        Returns
        -------
        numpy.ndarray
            (n, K), or (n, K, T) with time steps.

        Raises
        ------
        ValueError
            The rows have another shape or layout, or contain floats outside of the range of the preprocessed training
            set.
        """
        self.check_can_evaluate()
        if hasattr(X, "nbatches"):
            return self.get_outputs(X)
        with self.be.lock:
            if self.layers.in_shape is None or any(p is None for p in self.layers.parameters):
                self.initialize(ArrayIterator(X, lshape=self.layers.in_shape, partial_last=True))
        return self.predictor(self.layers, X, self.preprocessing, preprocessed)

    def check_can_evaluate(self) -> None:
        """Raise TypeError if outputs cannot be compared with targets; here they can."""

    def _iter_outputs(self, dataset: Any, run: Callable[..., Any] | None = None) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Yield outputs, targets, the columns of rows that have not occurred before, and the number of these rows.

        ``run(x)`` computes the outputs; default: inference.
        """
        self.check_can_evaluate()
        self.initialize(check_dataset(f"{self.name}: dataset", dataset))
        before = dataset.get_state() if hasattr(dataset, "get_state") else None
        saved_states, previous_batch_size = (
            [(layer, layer.get_state()) for layer in self.layers.leaves()],
            self.allocated_batch_size,
        )
        for layer, _ in saved_states:
            layer.set_state({})
        dataset.reset()
        remaining = dataset.ndata
        try:
            for x, t in dataset:
                if remaining <= 0:
                    break
                with self._use_batch_size_of(x) as width:
                    n = min(remaining, width)
                    y = self.fprop(x, inference=True) if run is None else run(x)
                    first = y[0] if isinstance(y, list) else y
                    steps = first.shape[1] // width
                    columns: Any = slice(0, None)
                    if n < width:
                        columns = slice(0, n) if steps == 1 else [s * width + i for s in range(steps) for i in range(n)]
                    yield y, t, columns, n
                remaining -= n
        finally:
            dataset.reset()
            if before is not None:  # it may be the training set
                dataset.set_state({**before, "minibatch": 0})
            for layer, arrays in saved_states:
                layer.set_state(arrays if self.allocated_batch_size == previous_batch_size else {})
        if remaining == dataset.ndata:
            raise ValueError(f"{self.name}: expected a data set with at least one row, got {describe(dataset)}")

    @exclusive
    def summary(self, dataset: Any = None) -> Summary:
        """Return shapes, parameters, FLOPs and the memory of training.

        Parameters
        ----------
        dataset : iterator or shape, optional
            The data, or the shape of one sample. Needed only before the network is configured.

        Returns
        -------
        Summary
            A table when printed.
        """
        shape = shape_of(dataset)
        summary: Summary = self.layers.summary(None if self.initialized else shape, self.cost, self.optimizer)
        return summary

    def benchmark(
        self,
        dataset: NervanaDataIterator,
        inference: bool = False,
        cost: GeneralizedCost | Multicost | Cost | None = None,
        optimizer: Optimizer | None = None,
        niterations: int = 20,
        nskip: int = 2,
    ) -> dict[str, dict[str, float]]:
        """Measure the duration of training or inference steps; see ``Benchmark.time``.

        Parameters
        ----------
        dataset : iterator
            The data for the steps.
        inference : bool
            Whether to time inference instead of training. Default: False.
        cost : Cost, optional
            The cost. Default: that of the model.
        optimizer : Optimizer, optional
            The optimizer. Default: that of the model.
        niterations : int
            The number of steps to time. Default: 20.
        nskip : int
            The number of steps before the first timed one. Default: 2.

        Returns
        -------
        dict
            {"fprop": {"mean": ..., "median": ..., "min": ..., "max": ...}, "bprop": ..., "iteration": ...} in
            milliseconds.
        """
        times = Benchmark(self, time_layers=False).time(dataset, inference, niterations, cost, optimizer, nskip)
        return {name: {f.__name__: float(f(values)) for f in STATISTICS} for name, values in times.items()}
