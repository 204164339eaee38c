"""Model: train, evaluate and predict with a network; save and load checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast, overload

from neonlite import html_repr
from neonlite.backend import NervanaObject, Tensor
from neonlite.backend.lock import exclusive
from neonlite.backend.transaction import Snapshot
from neonlite.backend.validation import checks_arguments, from_name
from neonlite.callbacks import CallbackBase
from neonlite.data.preprocessing import Preprocessing
from neonlite.encoders.inputs import InputEncoder
from neonlite.encoders.targets import ClassEncoder, TargetEncoder
from neonlite.layers import GeneralizedCost, Layer, LayerContainer, Sequential
from neonlite.layers.buffers import Deltas, LayerOutputs, Tensors, shape_of
from neonlite.layers.compound import find_layers
from neonlite.layers.layer import set_trainable
from neonlite.layers.summary import Summary, walk_layers
from neonlite.messages import describe
from neonlite.models import copying, evaluation, fit, nonfinite, persistence, predict, training
from neonlite.models.benchmark import STATISTICS, Benchmark
from neonlite.models.predict import Predictor
from neonlite.models.training_state import TrainingState
from neonlite.name_hints import MODEL, add_hints
from neonlite.optimizers import LossScaling, Optimizer
from neonlite.optimizers.rules import OPTIMIZERS
from neonlite.transforms import Cost
from neonlite.transforms.cost import COSTS
from neonlite.typing import LayerShapes

if TYPE_CHECKING:
    from neonlite.data import NervanaDataIterator
    from neonlite.layers import Multicost
    from neonlite.layers.container import AnyLayer
    from neonlite.models.data_parallel import DataParallel
    from neonlite.models.recorded_steps import RecordedSteps


@add_hints(MODEL)
class Model(NervanaObject):
    """A network with the methods that train it, evaluate it, predict with it, and save it.

    Buffers for minibatches are allocated when they are first needed, so loading a file takes memory in proportion to
    the size of the file.

    Parameters
    ----------
    layers : list, LayerContainer, str, Path or dict
        The layers, a container, the path of a checkpoint, or the return value of ``serialize``. Layers of another
        model, such as ``other[:3]``, are shared with it, with their weights; if its first layer is the first one here,
        its input encoder and preprocessing are used as well.
    dataset : iterator or shape, optional
        Data to allocate buffers for now instead of at the first minibatch.
    weights_only : bool
        Whether to load only the weights of a checkpoint, not its training state. Default: False.
    name : str, optional
        The name, which error messages start with. Default: that of the checkpoint, or "model".
    optimizer : Optimizer or str, optional
        The optimizer, or its name, for ``summary`` and ``benchmark``; ``fit`` replaces it.

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
        dataset: NervanaDataIterator | LayerShapes | None = None,
        weights_only: bool = False,
        name: str | None = None,
        optimizer: Optimizer | str | None = None,
    ) -> None:
        super().__init__(name or "model")
        if any(isinstance(x, Layer) for x in (dataset if isinstance(dataset, list) else [dataset])):
            raise TypeError(
                f"{self.name}: expected a list of layers, got {describe([layers, dataset])}. Pass one list of layers: "
                "Model([a, b])."
            )
        self.cost: Any = None
        self._initialized_cost: Any = None
        self.optimizer: Optimizer | Any = from_name(f"{self.name}: optimizer", optimizer, OPTIMIZERS)
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
        self.metadata: dict[str, Any] = {}  # JSON data that checkpoints store
        self.data_state: Any = None  # the position of the training set
        self.cuda_graphs = True  # whether a GPU may replay minibatches
        self.snapshot: Snapshot | None = None  # of the tensors of layers besides parameters, before the last minibatch
        self.callbacks = CallbackBase()  # the callbacks of the last fit
        self.interrupted_callbacks: Any = None  # their states if it was interrupted
        self.data_parallel: DataParallel | None = None  # during a fit in several processes
        self.recorded_steps: RecordedSteps | None = None  # during a fit of a network whose steps can be recorded
        self.target_encoder: TargetEncoder | None = None
        self.predictor = Predictor(f"{self.name}.predict")
        self.loaded_state: TrainingState | None = None  # of the checkpoint from which the next fit resumes
        self.layers: LayerContainer
        if isinstance(layers, str | Path | dict):
            state = TrainingState.read(layers)
            self.name, self.layers = name or state.get_field(str, "name"), state.build_network()
            self.metadata = state.get_field(dict, "metadata")
            if state.arrays is not None:
                state.restore(self, not weights_only)
        else:
            self.layers = layers if isinstance(layers, LayerContainer) else Sequential(layers)
            self.reuse_layers()
        if dataset is not None:
            self.initialize(dataset)

    def reuse_layers(self) -> None:
        """Configure a network whose first layers are configured, as those of another model; use its input encoding."""
        first = self.layers.layers[0]
        if self.layers.in_shape is None and first.in_shape is not None:
            source: Any = first.container
            if source is not None and source.layers[0] is first:
                self.layers.input_encoding = source.input_encoding
            self.layers.configure(first.in_shape)

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The preprocessing of the training set's inputs."""
        value: Preprocessing | None = self.layers.input_encoding.preprocessing
        return value

    @preprocessing.setter
    def preprocessing(self, value: Preprocessing | None) -> None:
        self.layers.input_encoding = self.layers.input_encoding.replace(preprocessing=value)

    @property
    def input_encoder(self) -> InputEncoder | None:
        """The encoder of the inputs of ``fit(X, y)``."""
        value: InputEncoder | None = self.layers.input_encoding.encoder
        return value

    @input_encoder.setter
    def input_encoder(self, value: InputEncoder | None) -> None:
        self.layers.input_encoding = self.layers.input_encoding.replace(encoder=value)

    def __repr__(self) -> str:
        lines = [f"{'  ' * depth}{layer!r}" for depth, layer in walk_layers(self.layers, 1)]
        return "\n".join([f"{self.classnm}({self.name!r})", *lines])

    def _repr_html_(self) -> str:
        facts = [repr(self.name), *self.layers.repr_details()]
        parts = {"cost": self.cost, "optimizer": self.optimizer, "layers": list(self.layers.layers)}
        settings = {name: x for name, x in parts.items() if x is not None}
        return str(html_repr.format_object(self.classnm, facts, settings))

    def __str__(self) -> str:
        return f"Network Layers:\n{self.layers.nested_str(1)}"

    @exclusive
    def initialize(
        self, dataset: NervanaDataIterator | LayerShapes, cost: GeneralizedCost | Multicost | Cost | str | None = None
    ) -> None:
        """Configure the network and allocate its buffers, unless that is done, and set the cost.

        Parameters
        ----------
        dataset : iterator or shape
            The data, or the shape of one sample.
        cost : Cost or str, optional
            The cost, or its name. Default: the current one.

        Raises
        ------
        ValueError
            The network is configured for another number of time steps.
        """
        shape = shape_of(dataset)
        if not (self.initialized and self.layers.owns_layers):  # another model may have allocated some of its layers
            self.initialized = False
            self.allocate(shape)
            self.initialized = True
        else:
            self.check_seq_len(shape)
            if not self.layers.batch_size:  # an error left some buffers of another batch size
                self.set_batch_size(self.be.bsz)
        cost = from_name(f"{self.name}.initialize: cost", cost, COSTS)
        current = self.cost if self.cost is self._initialized_cost else None
        if isinstance(cost, Cost):  # its last wrapper may be another class, such as that of weighted rows
            is_same = type(current) is self.cost_wrapper and current.costfunc is cost
            cost = current if is_same else self.cost_wrapper(cost)
        if cost is not None and cost is not current:
            cost.initialize(self.layers)
            self.cost = self._initialized_cost = cost

    def check_seq_len(self, shape: LayerShapes) -> None:
        """Raise ValueError if data has another number of time steps than the network is configured for.

        Parameters
        ----------
        shape : shape, or list of shapes
            The shape of one sample, for each input.
        """
        shapes: Any = shape
        expected: Any = self.data_shape
        pairs = zip(shapes, expected, strict=False) if isinstance(expected, list) else [(shapes, expected)]
        for actual, configured in pairs:
            if all(isinstance(x, tuple) and len(x) == 2 for x in (actual, configured)) and actual[1] != configured[1]:
                raise ValueError(
                    f"{self.name}: expected data with {configured[1]} time steps, got {actual[1]}. "
                    f"Call model.set_seq_len({actual[1]}) first."
                )

    def allocate(self, shape: LayerShapes) -> None:
        """Configure the network and allocate its buffers.

        Parameters
        ----------
        shape : shape, or list of shapes
            The shape of one sample, for each input.
        """
        self.layers.configure(shape)
        self.layers.allocate_buffers()

    @property
    def resume_settings(self) -> dict[str, Any]:
        """Settings (JSON data) that must be the same when training resumes from a checkpoint."""
        return {}

    @property
    def data_shape(self) -> LayerShapes:
        """The shape of one sample of the inputs, or a list of shapes."""
        return cast("LayerShapes", self.layers.in_shape)

    # --- training ---

    fit = fit.fit
    train_step = training.train_step
    compute_gradients = training.compute_gradients
    compute_cost = training.compute_cost
    scale_errors = training.scale_errors

    @property
    def is_finished(self) -> bool:
        """Whether a callback, of any process, has ended training."""
        return self.finished if self.data_parallel is None else self.data_parallel.finished

    @property
    def loss_scaling(self) -> LossScaling | None:
        """The optimizer if it is a ``LossScaling``, else None."""
        return self.optimizer if isinstance(self.optimizer, LossScaling) else None

    def fprop(self, x: Tensors, inference: bool = False) -> LayerOutputs:
        """Run the forward pass, for any number of samples: the batch size is that of the inputs.

        Parameters
        ----------
        x : Tensor or list of Tensor
            The inputs, (F, N), or (F, T N) with time steps.
        inference : bool
            Whether layers such as Dropout and BatchNorm use their inference mode. Default: False.

        Returns
        -------
        Tensor or list of Tensor
            The outputs of the network.
        """
        network: Any = self.layers
        n = network.num_samples(x)
        if n == self.be.bsz == network.batch_size and self.initialized:
            return cast("Tensor | list[Tensor]", network.fprop(x, inference))
        with self.be.batch_size(n):
            if not self.initialized:
                self.initialize(self.data_shape)
            elif n != network.batch_size:
                network.set_batch_size(n)
            return cast("Tensor | list[Tensor]", network.fprop(x, inference))

    def __call__(self, x: Tensors) -> LayerOutputs:
        """Return the outputs at inference, as ``fprop(x, inference=True)`` does, for any number of samples.

        For arrays, which are encoded and preprocessed, use ``predict``. Training, its buffers and ``be.bsz`` are not
        affected. Recurrent states start at zero, as in ``predict``.

        Parameters
        ----------
        x : Tensor or list of Tensor
            The inputs, (F, N), or (F, T N) with time steps.

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
        return cast("Tensor | list[Tensor]", self.layers(x))

    def bprop(self, delta: Tensors) -> Deltas:
        """Run the backward pass of the last ``fprop``: compute the gradients of all parameters that are trained.

        Parameters
        ----------
        delta : Tensor or list of Tensor
            The gradient of the cost with respect to the outputs.

        Returns
        -------
        Tensor or None
            The gradient with respect to the inputs, if the first layer computes it.
        """
        network: Any = self.layers
        if network.batch_size == self.be.bsz:
            return cast("Deltas", network.bprop(delta))
        with self.be.batch_size(network.batch_size):
            return cast("Deltas", network.bprop(delta))

    @property
    def layers_to_optimize(self) -> list[Layer]:
        """The layers with trainable parameters."""
        return list(self.layers.layers_to_optimize)

    @exclusive
    def freeze(self, *layers: str | Layer | Sequence[Layer]) -> None:
        """Stop training layers: set their ``trainable`` to False. Their parameters do not change, until ``unfreeze``.

        Parameters
        ----------
        *layers : str, Layer or list of Layer
            Layers or containers, or their names; that of an ``Affine`` or ``Conv`` includes its bias and batch
            normalization.

        Raises
        ------
        KeyError
            A name is unknown.
        ValueError
            No layers were given, or one that is not of this model.

        Examples
        --------
        >>> import neonlite as nl
        >>> from neonlite.layers import Affine
        >>> model = nl.Model([Affine(8, activation="relu", name="hidden"), Affine(2, name="output")])
        >>> model.freeze("hidden")
        >>> [layer.name for layer in model.layers_to_optimize]
        ['output', 'output_bias']
        """
        set_trainable(find_layers(f"{self.name}.freeze", self.layers, layers), False)

    @exclusive
    def unfreeze(self, *layers: str | Layer | Sequence[Layer]) -> None:
        """Train layers again: set their ``trainable`` to True.

        Parameters
        ----------
        *layers : str, Layer or list of Layer
            As for ``freeze``.
        """
        set_trainable(find_layers(f"{self.name}.unfreeze", self.layers, layers), True)

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
            self.layers.set_batch_size(N)

    @exclusive
    def set_seq_len(self, S: int) -> None:
        """Reconfigure the network for another number of time steps.

        Parameters
        ----------
        S : int
            The number of time steps.
        """
        self.layers.set_seq_len(S)

    # --- evaluation and prediction ---

    eval = evaluation.eval
    eval_cost = evaluation.eval_cost
    get_outputs = evaluation.get_outputs
    get_outputs_beam = evaluation.get_outputs_beam
    evaluate = predict.evaluate
    predict_classes = predict.predict_classes
    predict_proba = predict.predict_proba
    predict = predict.predict

    @property
    def classes(self) -> list[str | int | float | bool] | None:
        """The labels in the order of the outputs, if ``fit`` was given one class for each row, else None."""
        return self.target_encoder.classes if isinstance(self.target_encoder, ClassEncoder) else None

    def check_can_evaluate(self) -> None:
        """Raise TypeError if outputs cannot be compared with targets; here they can."""

    # --- weights and checkpoints ---

    get_weights = persistence.get_weights
    set_weights = persistence.set_weights
    nonfinite_weights = nonfinite.nonfinite_weights
    save_params = persistence.save_params
    load_params = persistence.load_params
    load_weights = persistence.load_weights
    check_savable = persistence.check_savable
    serialize = persistence.serialize
    deserialize = persistence.deserialize
    get_description = persistence.get_description  # type: ignore[assignment]

    @property
    def callbacks_state(self) -> object:
        """The state of the callbacks; before the first ``fit`` after loading, that of the checkpoint."""
        return self.callbacks.get_state() if self.loaded_state is None else self.loaded_state.callbacks

    # --- summary and benchmark ---

    @exclusive
    def summary(self, dataset: NervanaDataIterator | LayerShapes | None = None) -> Summary:
        """Return shapes, parameters, FLOPs and the memory of a training step, without running it.

        The step includes the cost of ``initialize`` or ``fit``, and the optimizer of the constructor or ``fit``, if
        there are any. Its batch size is ``be.bsz``, or 32 if that is not set. The network is not changed.

        Parameters
        ----------
        dataset : iterator or shape, optional
            The data, or the shape of one sample. Default: the shape for which the network is configured.

        Returns
        -------
        Summary
            A table when printed.
        """
        shape = None if dataset is None else shape_of(dataset)
        summary: Summary = self.layers.summary(shape, self.cost, self.optimizer)
        return summary

    @checks_arguments
    def benchmark(
        self,
        dataset: NervanaDataIterator,
        inference: bool = False,
        cost: GeneralizedCost | Multicost | Cost | str | None = None,
        optimizer: Optimizer | str | None = None,
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
        cost : Cost or str, optional
            The cost, or its name. Default: that of the model.
        optimizer : Optimizer or str, optional
            The optimizer, or its name. Default: that of the model.
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

    # --- the model as a sequence of layers, and copies ---

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[AnyLayer]:
        return iter(self.layers)

    @overload
    def __getitem__(self, key: int | str) -> AnyLayer: ...
    @overload
    def __getitem__(self, key: slice) -> list[AnyLayer]: ...
    def __getitem__(self, key: int | slice | str) -> AnyLayer | list[AnyLayer]:
        return self.layers[key]

    def get_layer(self, name: str) -> Layer:
        """Return the layer with a name, as ``model[name]`` does.

        Parameters
        ----------
        name : str
            The name of a layer or container.

        Returns
        -------
        Layer
            The layer.

        Raises
        ------
        KeyError
            No layer has this name.
        """
        return self[name]

    def __contains__(self, item: object) -> bool:
        return item in self.layers

    copy = copying.copy
    __reduce__ = copying.reduce
