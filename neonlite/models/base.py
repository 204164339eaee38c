"""ModelBase: the network of a model, its forward and backward passes, and the state of its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast, overload

from neonlite import messages
from neonlite.backend import NervanaObject, Tensor, concurrency, objects, validation
from neonlite.backend.transaction import Snapshot
from neonlite.callbacks import CallbackBase
from neonlite.data import NervanaDataIterator, minibatches
from neonlite.encoders.inputs import InputEncoder
from neonlite.encoders.targets import TargetEncoder
from neonlite.layers import GeneralizedCost, Layer, LayerContainer, Multicost, Sequential, linear, summary
from neonlite.layers.buffers import Deltas, LayerOutputs, Tensors, shape_of
from neonlite.layers.layer import set_trainable
from neonlite.optimizers import Optimizer, rules
from neonlite.transforms import Cost, functions
from neonlite.typing import LayerShapes

if TYPE_CHECKING:
    from neonlite.layers.container import AnyLayer


class ModelBase(NervanaObject):
    """The network of a model, and the state of its training; see ``Model``.

    Parameters
    ----------
    layers : list of Layer, or LayerContainer
        The layers.
    name : str
        The name, which error messages start with.
    optimizer : Optimizer or str, optional
        The optimizer, or its name.
    """

    cost_wrapper: type[GeneralizedCost] = GeneralizedCost  # the class that wraps a Cost
    has_targets = True  # whether outputs can be compared with targets
    progress_fields: ClassVar[dict[str, type]] = {  # attributes that checkpoints store, with their types
        "epoch_index": int,
        "minibatch_index": int,
        "epoch_cost": float,
        "total_cost": float,
        "accumulated_rows": int,
    }

    def __init__(
        self,
        layers: Sequence[Layer | Sequence[Layer]] | LayerContainer,
        name: str,
        optimizer: Optimizer | str | None = None,
    ) -> None:
        super().__init__(name)
        self.cost: Any = None
        self._initialized_cost: Any = None
        self.optimizer: Optimizer | Any = validation.from_name(f"{self.name}: optimizer", optimizer, rules.OPTIMIZERS)
        self.epoch_index = 0  # the number of complete epochs
        self.minibatch_index = 0  # the number of complete minibatches of this epoch
        self.epoch_cost = 0.0  # the sum of the costs of these minibatches
        self.step_cost = 0.0
        self.total_cost = 0.0  # the mean cost of the minibatches of this epoch, or of the last one
        self.accumulate = 1  # the number of minibatches of an update, during fit
        self.accumulated_rows = 0  # the number of rows whose gradients the next update adds to those of its minibatch
        self.gradient_sums: list[Tensor] = []  # the sums of these gradients, of all parameters
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
        self.data_parallel: Any = None  # during a fit in several processes
        self.program: Any = None  # the compiled function of a minibatch, after the first step of fit
        self.target_encoder: TargetEncoder | None = None
        self.loaded_state: Any = None  # of the checkpoint from which the next fit resumes
        self.layers: LayerContainer = layers if isinstance(layers, LayerContainer) else Sequential(layers)
        first = self.layers.layers[0]
        if self.layers.in_shape is None and first.in_shape is not None:  # the layers of another model
            source: Any = first.container
            if source is not None and source.layers[0] is first:
                self.layers.input_encoding = source.input_encoding
            self.layers.configure(first.in_shape)

    @property
    def preprocessing(self) -> minibatches.Preprocessing | None:
        """The preprocessing of the training set's inputs."""
        value: minibatches.Preprocessing | None = self.layers.input_encoding.preprocessing
        return value

    @preprocessing.setter
    def preprocessing(self, value: minibatches.Preprocessing | None) -> None:
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
        lines = [f"{'  ' * depth}{layer!r}" for depth, layer in summary.walk_layers(self.layers, 1)]
        return "\n".join([f"{self.classnm}({self.name!r})", *lines])

    def _repr_html_(self) -> str:
        facts = [repr(self.name), *self.layers.repr_details()]
        parts = {"cost": self.cost, "optimizer": self.optimizer, "layers": list(self.layers.layers)}
        settings = {name: x for name, x in parts.items() if x is not None}
        return str(messages.format_object(self.classnm, facts, settings))

    def __str__(self) -> str:
        return f"Network Layers:\n{self.layers.nested_str(1)}"

    @concurrency.exclusive
    def initialize(
        self, dataset: NervanaDataIterator | LayerShapes, cost: GeneralizedCost | Multicost | Cost | str | None = None
    ) -> None:
        """Configure the network and allocate its parameters, unless that is done, and set the cost.

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
        cost = validation.from_name(f"{self.name}.initialize: cost", cost, functions.COSTS)
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
        """Configure the network and allocate its parameters. The first ``fprop`` allocates its buffers.

        Parameters
        ----------
        shape : shape, or list of shapes
            The shape of one sample, for each input.
        """
        network = self.layers
        network.configure(shape)
        if all(objects.has_builtin_method(type(layer), "allocate") for layer in network.leaves()):
            network.allocate_parameters()
            network.take_layers()
        else:  # a custom layer may create its tensors there
            network.allocate_buffers()

    @property
    def resume_settings(self) -> dict[str, Any]:
        """Settings (JSON data) that must be the same when training resumes from a checkpoint."""
        return {}

    @property
    def data_shape(self) -> LayerShapes:
        """The shape of one sample of the inputs, or a list of shapes."""
        return cast("LayerShapes", self.layers.in_shape)

    def _check_configured(self, where: str) -> None:
        """Raise RuntimeError before ``initialize``."""
        if self.layers.in_shape is None:
            raise RuntimeError(
                f"{where}: expected a configured network, got none. Call initialize(dataset) or fit first."
            )

    def check_can_evaluate(self) -> None:
        """Raise TypeError if outputs cannot be compared with targets; here they can."""

    # --- forward and backward passes ---

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
        is_allocated = n == network.batch_size
        if n == self.be.bsz and is_allocated and self.initialized:
            return cast("Tensor | list[Tensor]", network.fprop(x, inference))
        with self.be.batch_size(n):
            if not self.initialized:
                self.initialize(self.data_shape)
            if not is_allocated:
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
        self._check_configured(self.name)
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

    @concurrency.exclusive
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
        set_trainable(linear.find_layers(f"{self.name}.freeze", self.layers, layers), False)

    @concurrency.exclusive
    def unfreeze(self, *layers: str | Layer | Sequence[Layer]) -> None:
        """Train layers again: set their ``trainable`` to True.

        Parameters
        ----------
        *layers : str, Layer or list of Layer
            As for ``freeze``.
        """
        set_trainable(linear.find_layers(f"{self.name}.unfreeze", self.layers, layers), True)

    @concurrency.exclusive
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

    @concurrency.exclusive
    def set_seq_len(self, S: int) -> None:
        """Reconfigure the network for another number of time steps.

        Parameters
        ----------
        S : int
            The number of time steps.
        """
        self.layers.set_seq_len(S)

    # --- the model as a sequence of layers ---

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
