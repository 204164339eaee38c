"""Model: train, evaluate and predict with a network; save and load checkpoints. GAN: train two networks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import Tensor
from neonlite.backend.concurrency import defers_interrupt, exclusive
from neonlite.backend.objects import constructor_arguments
from neonlite.backend.random import RandomStreams
from neonlite.backend.transaction import atomic, restore_on_failure
from neonlite.backend.validation import check_number, checks_arguments, instance, integer, one_of, warn
from neonlite.data import NervanaDataIterator
from neonlite.files import check_writable
from neonlite.layers import (
    BatchNorm,
    Bias,
    Convolution,
    Convolution_bias,
    Dropout,
    GeneralizedCost,
    GeneralizedGANCost,
    GenerativeAdversarial,
    Layer,
    LayerContainer,
    Linear,
    Multicost,
    QuantizedConvolution,
    QuantizedLinear,
    Sequential,
)
from neonlite.layers.buffers import Operands, Trees, iobuf_shape, num_features, shape_of
from neonlite.layers.inference import InferenceProgram
from neonlite.layers.linear import WEIGHT_DTYPES
from neonlite.layers.summary import Summary, walk_layers
from neonlite.messages import describe
from neonlite.models.evaluation import STATISTICS, Benchmark
from neonlite.models.fit import FitMethods
from neonlite.models.predict import PredictionMethods, predict_rows, raw_outputs
from neonlite.models.training import nonfinite, shortened_list
from neonlite.models.training_data import is_minibatches
from neonlite.models.training_state import TrainingState, write_checkpoint
from neonlite.name_hints import MODEL, add_hints
from neonlite.optimizers import Optimizer
from neonlite.optree import Operand, postorder
from neonlite.transforms import Cost, GANCost, Rectlin
from neonlite.typing import ArrayLike, Data, LayerShape, LayerShapes, ShapeLike

SAVED_ARGUMENTS = ("layers", "dataset", "weights_only", "name", "optimizer")  # constructor arguments in a checkpoint


@add_hints(MODEL)
class Model(FitMethods, PredictionMethods):
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

    def __init__(
        self,
        layers: Sequence[Layer | Sequence[Layer]] | LayerContainer | str | Path | dict[str, Any],
        dataset: NervanaDataIterator | LayerShapes | None = None,
        weights_only: bool = False,
        name: str | None = None,
        optimizer: Optimizer | str | None = None,
    ) -> None:
        if any(isinstance(x, Layer) for x in (dataset if isinstance(dataset, list) else [dataset])):
            raise TypeError(
                f"{name or 'model'}: expected a list of layers, got {describe([layers, dataset])}. Pass one list of "
                "layers: Model([a, b])."
            )
        if isinstance(layers, str | Path | dict):
            state = TrainingState.read(layers)
            super().__init__(state.build_network(), name or state.get_field(str, "name"), optimizer)
            self.metadata = state.get_field(dict, "metadata")
            if state.arrays is not None:
                state.restore(self, not weights_only)
        else:
            super().__init__(layers, name or "model", optimizer)
        if dataset is not None:
            self.initialize(dataset)

    # --- weights and checkpoints ---

    @exclusive
    def get_weights(self) -> dict[str, NDArray[Any]]:
        """Return copies of all weights.

        Returns
        -------
        dict of numpy.ndarray
            The arrays by name: "fc.W" is the W of the layer fc.
        """
        weights: dict[str, NDArray[Any]] = self.layers.get_weights()
        return weights

    @defers_interrupt
    @exclusive
    @checks_arguments
    def set_weights(self, weights: Mapping[str, ArrayLike], partial: bool = False) -> None:
        """Copy arrays into the weights.

        Parameters
        ----------
        weights : dict of array_like
            The arrays, by the names of ``get_weights``.
        partial : bool
            Whether weights may be missing; these are unchanged. Default: False.

        Raises
        ------
        ValueError
            A name or a shape does not match.
        """
        self.layers.set_weights(weights, partial)

    @defers_interrupt
    @checks_arguments
    def save_params(self, path: str | Path, keep_states: bool = True, check_finite: bool = True) -> str:
        """Save a checkpoint.

        The file is written atomically: an existing file is replaced by a complete one, or is unchanged. In a ``fit`` in
        several processes, all of them call this method, and rank 0 writes the file.

        Parameters
        ----------
        path : str or Path
            The file to write.
        keep_states : bool
            Whether to save the training state as well: optimizer, progress, random streams, position of the data.
            Default: True.
        check_finite : bool
            Whether to save weights with NaN or infinity to ``path`` + ".nan" instead, with a RuntimeWarning. Default:
            True.

        Returns
        -------
        str
            The path of the file that was written: ``path``, or ``path`` + ".nan".

        Raises
        ------
        OSError
            The path cannot be written, such as a folder or a device.
        TypeError
            ``path`` is not a path, or the model cannot be saved; see ``check_savable``.
        """
        file = check_writable(f"{self.name}.save_params", path)
        description, arrays = TrainingState.from_model(self, keep_states, on_all_ranks=False)
        weights = (pair for pair in arrays.items() if pair[0].startswith("weights/"))
        if check_finite and (names := [name.partition("/")[2] for name in nonfinite(weights)]):
            problem = f"{self.name}.save_params: {shortened_list(names)} contain NaN or infinity"
            warn(f"{problem}. Saved to {file}.nan instead of {path}.", RuntimeWarning)
            file += ".nan"
        if self.data_parallel is None or self.data_parallel.communicator.rank == 0:
            write_checkpoint(file, description, arrays)
        return file

    @checks_arguments
    def check_savable(self, keep_states: bool = True) -> None:
        """Raise an error if ``save_params`` cannot save the model. Nothing is written.

        Parameters
        ----------
        keep_states : bool
            Whether the training state would be saved as well. Default: True.

        Raises
        ------
        TypeError
            A layer, the optimizer or ``metadata`` contains something that is not JSON data, such as a function. The
            message names it.
        """
        TrainingState.describe(self, keep_states)

    @defers_interrupt
    @exclusive
    @checks_arguments
    def load_params(self, path: str | Path | dict[str, Any], load_states: bool = True) -> None:
        """Load a checkpoint into this network.

        The layers are matched by name, or else those with weights by order and type.

        Parameters
        ----------
        path : str, Path or dict
            The file, or the return value of ``serialize``.
        load_states : bool
            Whether to load the training state as well, so that ``fit`` continues from there. Default: True.

        Raises
        ------
        CheckpointError
            The file is not a checkpoint, or one of another network. The model is unchanged.
        """
        TrainingState.read(path).restore(self, load_states)

    def load_weights(self, path: str | Path, load_states: bool = True) -> None:
        """Load parameters and states, as ``load_params`` does; deprecated in neon.

        Parameters
        ----------
        path, load_states
            See ``load_params``.
        """
        warnings.warn("Model.load_weights is deprecated; use load_params", DeprecationWarning, stacklevel=2)
        self.load_params(path, load_states)

    @checks_arguments
    def get_description(  # type: ignore[override]
        self, get_weights: bool = False, keep_states: bool = False
    ) -> dict[str, Any]:
        """Return the description that checkpoints contain.

        Parameters
        ----------
        get_weights : bool
            Whether to add the arrays, as "arrays". Default: False.
        keep_states : bool
            Whether to add the training state, as "training". Default: False.

        Returns
        -------
        dict
            JSON data, besides the arrays.
        """
        description, arrays = TrainingState.from_model(self, keep_states)
        return {**description, "arrays": arrays} if get_weights else description

    @checks_arguments
    def serialize(self, fn: str | Path | None = None, keep_states: bool = True) -> dict[str, Any]:
        """Return the description with all arrays.

        Parameters
        ----------
        fn : str or Path, optional
            A file to save the checkpoint to as well.
        keep_states : bool
            Whether to include the training state. Default: True.

        Returns
        -------
        dict
            JSON data, and the arrays as "arrays".
        """
        if fn is not None:
            self.save_params(fn, keep_states)
        return self.get_description(get_weights=True, keep_states=keep_states)

    @checks_arguments
    def deserialize(
        self, model_dict: dict[str, Any], data: NervanaDataIterator | ShapeLike | None = None, load_states: bool = True
    ) -> None:
        """Load the return value of ``serialize``.

        Parameters
        ----------
        model_dict : dict
            The description with the arrays.
        data : iterator or shape, optional
            Data to allocate buffers for.
        load_states : bool
            Whether to load the training state as well. Default: True.
        """
        self.load_params(model_dict, load_states)
        if data is not None:
            self.initialize(data)

    @property
    def callbacks_state(self) -> object:
        """The state of the callbacks; before the first ``fit`` after loading, that of the checkpoint."""
        return self.callbacks.get_state() if self.loaded_state is None else self.loaded_state.callbacks

    # --- copies ---

    def copy(self) -> Model:
        """Return an independent copy of the model, as if it were saved and loaded.

        It has the weights, the optimizer and its states, the progress of the training, the preprocessing and
        ``metadata``. Buffers, the cost and the callbacks are not copied. ``copy.copy``, ``copy.deepcopy`` and
        ``pickle`` do the same; a pickle is loaded onto the current backend of the process that loads it.

        Returns
        -------
        Model
            The copy.

        Raises
        ------
        TypeError
            The model cannot be saved; see ``check_savable``. Or the constructor of a subclass has no argument
            ``layers``, or other arguments without an attribute of the same name.

        Examples
        --------
        >>> import neonlite as nl
        >>> from neonlite.layers import Linear
        >>> be = nl.gen_backend("cpu", batch_size=2)
        >>> model = nl.Model([Linear(1, "ones", name="sum")])
        >>> model.initialize(3)
        >>> other = model.copy()
        >>> other.layers["sum"].W[:] = 0
        >>> model.layers["sum"].W.get()
        array([[1., 1., 1.]], dtype=float32)
        """
        create, arguments = self.__reduce__()
        result: Model = create(*arguments)
        return result

    @defers_interrupt
    @exclusive
    @checks_arguments
    def quantize(self, X: Data | None = None, batch_size: int | None = None, dtype: str = "int8") -> Model:
        """Return a copy for inference with weights of int8 or bfloat16: a quarter or a half of the memory of float32.

        Linear and Convolution layers are replaced by ``QuantizedLinear`` and ``QuantizedConvolution``, which include
        the bias, batch norm, Rectlin and Dropout that follow; all other layers compute as before. For int8, the weights
        of an output are integers from -127 to 127 times a factor, and the inputs of a layer such integers times
        ``max|x| / 127``, by the largest input for the rows X; larger ones are clipped. For bfloat16, weights and inputs
        have 8 significant bits and the range of float32, and rows X are not needed. With oneDNN on a CPU with VNNI
        instructions, int8 is faster than float32, and with AVX512_BF16, bfloat16; elsewhere, the rounded numbers are
        multiplied as floats, which is not faster.

        Parameters
        ----------
        X : array_like, data frame or list of str, optional
            Rows as for ``predict`` that represent the data, such as some hundred rows of the training set; required for
            int8, and not used for bfloat16.
        batch_size : int, optional
            The number of rows that are computed at once. Default: ``be.bsz``, or 128.
        dtype : str
            "int8" or "bfloat16". Default: "int8".

        Returns
        -------
        Model
            The copy, which predicts, prints, saves and loads like any model, and cannot be trained.

        Raises
        ------
        RuntimeError
            The model was neither trained nor loaded.
        TypeError
            X is missing for int8.
        ValueError
            There are no layers to replace, X is an iterator, ``dtype`` is another one, or the network is a Tree or has
            a layer without a formula.

        Examples
        --------
        >>> import neonlite as nl
        >>> from neonlite.layers import Linear
        >>> be = nl.gen_backend("cpu", batch_size=2)
        >>> model = nl.Model([Linear(1, [[1.0, -0.25]], name="y")])
        >>> model.initialize(2)
        >>> fast = model.quantize([[1.0, 3.0], [0.0, -2.0]])
        >>> fast.layers["y"].W.get(), fast.predict([[1.0, 3.0]]).round(2)
        (array([[127, -32]], dtype=int8), array([[0.24]], dtype=float32))
        >>> model.quantize(dtype="bfloat16").predict([[1.0, 3.0]])
        array([[0.25]], dtype=float32)
        """
        where, network = f"{self.name}.quantize", self.layers
        if isinstance(X, str) and X in WEIGHT_DTYPES:
            raise TypeError(f"{where}: expected rows, got {X!r}. Pass dtype={X!r}, by its name.")
        one_of(f"{where}: dtype", dtype, tuple(WEIGHT_DTYPES))
        if network.in_shape is None or any(p is None for p in network.parameters):
            raise RuntimeError(f"{where}: expected a trained or loaded model, got one without weights. Call fit first.")
        if not isinstance(network, Sequential) or not network.is_expression:
            raise ValueError(f"{where}: expected layers one after another that are op-trees, got {describe(network)}.")
        ranges = InputRanges.of(network)
        names = [layer.name for layer in ranges.measured_layers]
        if not names:
            classes = ", ".join(dict.fromkeys(layer.classnm for layer in network.leaves()))
            raise ValueError(f"{where}: expected a Linear or Convolution layer, got {classes}.")
        largest: dict[str, float | None] = dict.fromkeys(names)
        if dtype == "int8":
            if X is None:
                raise TypeError(
                    f"{where}: expected rows X for int8, got None. Pass some hundred rows of the training set, or "
                    'dtype="bfloat16", which needs none.'
                )
            if hasattr(X, "nbatches") or is_minibatches(where, X):
                raise ValueError(f"{where}: expected rows, got {describe(X)}. Pass an array of some hundred rows.")
            outputs, _ = raw_outputs(self, where, X, None, batch_size, ranges)
            largest = dict(zip(names, map(float, outputs.max(axis=0)), strict=True))
        if not self.be.primitives.computes_quantized(WEIGHT_DTYPES[dtype], (64, 64, 64)):
            instructions = {"int8": "VNNI", "bfloat16": "AVX512_BF16"}[dtype]
            warn(
                f"{where}: {dtype} is not faster here, without oneDNN and a CPU with {instructions}: the rounded "
                "numbers are multiplied as floats."
            )
        result = self.copy()
        quantize_layers(result.layers, largest)
        return create_model(type(self), result.serialize(keep_states=False), {}, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a function and its arguments that create a copy, for ``copy`` and ``pickle``."""
        arguments = constructor_arguments(type(self))
        names = [x for x in arguments if x not in SAVED_ARGUMENTS]
        if "layers" not in arguments or not all(hasattr(self, name) for name in names):
            raise TypeError(
                f"{self.name}: expected a constructor of {self.classnm} with the argument layers, and an attribute for "
                f"each other argument, got {', '.join(arguments)}. Override __reduce__, or use save_params and "
                "load_params."
            )
        options = {name: getattr(self, name) for name in names}
        if self.layers.in_shape is None:  # nothing to save yet
            layers, optimizer = deepcopy((self.layers, self.optimizer))
            return create_model, (type(self), layers, {**options, "optimizer": optimizer}, self.name, self.metadata)
        return create_model, (type(self), self.serialize(), options, self.name)

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


def create_model(
    cls: type[Model], layers: Any, options: dict[str, Any], name: str, metadata: dict[str, Any] | None = None
) -> Model:
    """Create a model from a container or the return value of ``serialize``."""
    model = cls(layers, name=name, **options)
    if metadata is not None:
        model.metadata = deepcopy(metadata)
    return model


# --- GAN: train a generator and a discriminator ----------------------------------------------------------------------

# With wgan_train_sched, the discriminator makes WGAN_CRITIC_STEPS steps for each of the first WGAN_WARMUP_STEPS steps
# of the generator, and for every WGAN_CRITIC_INTERVAL-th step after these.
WGAN_CRITIC_STEPS = 100
WGAN_WARMUP_STEPS, WGAN_CRITIC_INTERVAL = 25, 500


class GAN(Model):
    """A generator and a discriminator that are trained on data without targets.

    Each minibatch trains the discriminator for one step, on data and on outputs of the generator. After every ``k`` of
    these steps, the generator is trained for one step. One optimizer updates both.

    Parameters
    ----------
    layers : GenerativeAdversarial, str, Path or dict
        ``GenerativeAdversarial(generator, discriminator)``, or a checkpoint.
    noise_dim : shape
        The shape of one sample of the noise.
    noise_type : str
        "normal", or "uniform" for noise from -1 to 1. Default: "normal".
    weights_only : bool
        Whether to load only the weights of a checkpoint. Default: False.
    name : str, optional
        The name of the model.
    optimizer : Optimizer or str, optional
        The optimizer, or its name, for ``summary`` and ``benchmark``; ``fit`` replaces it.
    k : int
        The number of steps of the discriminator for each step of the generator. Default: 1.
    wgan_param_clamp : float, optional
        Clip the parameters of the discriminator to this magnitude after each of its steps, for
        ``GANCost(func="wasserstein")``. Default: no clipping.
    wgan_train_sched : bool
        Whether the discriminator makes 100 steps instead of ``k`` for each of the first 25 steps of the generator, and
        for every 500th. Default: False.

    Raises
    ------
    TypeError
        ``layers`` is not a GenerativeAdversarial.
    CheckpointError
        The checkpoint was saved by a GAN with other settings.

    References
    ----------
    Goodfellow et al. 2014, Generative Adversarial Nets, algorithm 1.
    Arjovsky, Chintala and Bottou 2017, Wasserstein GAN, algorithm 1 and its published code.
    """

    cost_wrapper = GeneralizedGANCost
    has_targets = False
    progress_fields: ClassVar[dict[str, type]] = {**Model.progress_fields, "gen_iterations": int, "dis_iterations": int}

    def __init__(
        self,
        layers: GenerativeAdversarial | str | Path | dict[str, Any],
        noise_dim: ShapeLike,
        noise_type: str = "normal",
        weights_only: bool = False,
        name: str | None = None,
        optimizer: Optimizer | str | None = None,
        k: int = 1,
        wgan_param_clamp: float | None = None,
        wgan_train_sched: bool = False,
    ) -> None:
        self.noise_type = one_of("GAN: noise_type", noise_type, ("normal", "uniform"))
        self.noise_dim, self.k, limit = noise_dim, integer("GAN: k", k), wgan_param_clamp
        self.wgan_param_clamp = None if limit is None else float(check_number("GAN: wgan_param_clamp", limit, above=0))
        self.wgan_train_sched = bool(wgan_train_sched)
        self.gen_iterations = 0  # the number of steps of the generator
        self.dis_iterations = 0  # the number of steps of the discriminator since the last one of the generator
        self.cost_gen = math.nan  # the cost of the generator in its last step
        super().__init__(layers, None, weights_only, name, optimizer)
        kind = "GenerativeAdversarial(generator, discriminator)"
        instance(f"{self.name}: layers", self.layers, GenerativeAdversarial, kind)

    # --- the two networks ---

    @property
    def generator(self) -> LayerContainer:
        """The network from noise to data."""
        return cast(GenerativeAdversarial, self.layers).generator

    @property
    def discriminator(self) -> LayerContainer:
        """The network that distinguishes data from outputs of the generator."""
        return cast(GenerativeAdversarial, self.layers).discriminator

    @property
    def data_shape(self) -> LayerShape:
        """The shape of one sample of the data: that of the outputs of the generator."""
        return cast(LayerShape, self.generator.out_shape)

    @property
    def resume_settings(self) -> dict[str, Any]:
        """Constructor arguments that must be the same when training resumes from a checkpoint."""
        names = ("noise_type", "k", "wgan_param_clamp", "wgan_train_sched")
        dim = list(self.noise_dim) if isinstance(self.noise_dim, tuple) else self.noise_dim
        return {"noise_dim": dim, **{name: getattr(self, name) for name in names}}

    def allocate(self, shape: LayerShapes) -> None:
        """Configure both networks and allocate their parameters.

        Parameters
        ----------
        shape : shape
            The shape of one sample of the data.

        Raises
        ------
        ValueError
            The outputs of the generator have another size.
        """
        self.layers.configure(self.noise_dim)
        if iobuf_shape(self.data_shape) != iobuf_shape(cast(LayerShape, shape)):
            raise ValueError(
                f"{self.name}: expected data of the shape of the generator's outputs, {self.data_shape}, got {shape}"
            )
        super().allocate(self.noise_dim)

    def initialize(
        self, dataset: NervanaDataIterator | LayerShapes, cost: GeneralizedCost | Multicost | Cost | str | None = None
    ) -> None:
        if cost is not None and not isinstance(cost, GANCost | GeneralizedGANCost):
            raise TypeError(f"{self.name}: expected GeneralizedGANCost(GANCost()), got {describe(cost)}")
        super().initialize(dataset, cost)

    def summary(self, dataset: NervanaDataIterator | LayerShapes | None = None) -> Summary:
        """Return shapes, parameters, FLOPs and memory of both networks, as in a training step of the generator.

        Parameters
        ----------
        dataset : optional
            Ignored: ``noise_dim`` is the shape of the inputs.
        """
        summary: Summary = self.layers.summary(self.noise_dim, None, self.optimizer)
        return summary

    # --- training ---

    @property
    def critic_steps_due(self) -> int:
        """The number of steps of the discriminator before the next step of the generator."""
        is_critic_phase = self.gen_iterations < WGAN_WARMUP_STEPS or self.gen_iterations % WGAN_CRITIC_INTERVAL == 0
        return WGAN_CRITIC_STEPS if self.wgan_train_sched and is_critic_phase else self.k

    def train_step(self, x: Tensor | list[Tensor], t: Tensor | list[Tensor], epoch: int = 0) -> float:
        """Train the discriminator on one minibatch, and then the generator if ``critic_steps_due`` steps are complete.

        Parameters
        ----------
        x : Tensor
            The data.
        t : object
            Ignored.
        epoch : int
            The index of the epoch, for the learning-rate schedule. Default: 0.

        Returns
        -------
        float
            The cost of the discriminator.
        """
        return atomic(self._step, x, epoch)

    def _step(self, x: Any, epoch: int) -> float:
        layers = self.discriminator.layers_to_optimize
        dis_cost = self._compute_all_gradients([self.draw_noise(), x], [])
        self.optimizer.optimize(layers, epoch)
        if (limit := self.wgan_param_clamp) is not None:
            params = [p for layer in layers for p in layer.parameters]
            self.be.assign(params, [self.be.clip(p, -limit, limit) for p in params])
        self.dis_iterations += 1
        if self.dis_iterations >= self.critic_steps_due:
            self.train_step_generator(epoch)
        return dis_cost

    def train_step_generator(self, epoch: int = 0) -> None:
        """Train the generator on the errors that the discriminator propagates to its outputs.

        Parameters
        ----------
        epoch : int
            The index of the epoch, for the learning-rate schedule. Default: 0.
        """
        restore_on_failure(self, "cost_gen")
        self.cost_gen = self._compute_all_gradients([self.draw_noise()], [])
        self.optimizer.optimize(self.generator.layers_to_optimize, epoch)
        self.gen_iterations, self.dis_iterations = self.gen_iterations + 1, 0

    def _build_step(self, x: Any, t: Any) -> tuple[Any, list[Operand | None], list[tuple[Operand, Operand]]]:
        """Return what the step of ``compute_gradients`` trains, its cost and errors, as op-trees.

        Noise comes first in the cost, too, so that random numbers are drawn in the same order.
        """
        y: Any = self.layers(x[0], training=True)
        arguments: Any = None, y, "gen"
        if len(x) == 1:
            network, outputs = self.generator, {"generator": y}
        else:
            network, outputs = self.discriminator, {"noise": y, "data": self.discriminator(x[1], training=True)}
            arguments = outputs["data"], y, "dis"
        mean: Any = self.be.mean(self.cost.call_with_context(self.cost.costfunc, *arguments), axis=1)
        return network, [mean], [(y, self.scale_errors(self.cost.build_errors(y, kind))) for kind, y in outputs.items()]

    def compute_gradients(
        self, x: Tensor | list[Tensor], t: Tensor | list[Tensor]
    ) -> tuple[Tensor | list[Tensor], float]:
        """Run the passes of a step: with [noise] as x of the generator, with [noise, data] of the discriminator."""
        net, y = self.discriminator, self.fprop(x[0])
        if len(x) == 1:
            self.bprop(self.scale_errors(self.cost.get_errors(y, "generator")))
            return y, float(self.cost.get_cost(None, y, "gen").item())
        net.bprop(self.scale_errors(self.cost.get_errors(y, "noise")))
        gradients = [dw for layer in net.layers_to_optimize for dw in layer.gradients]
        y_noise, *of_noise = [t.copy() for t in (cast(Tensor, y), *gradients)]  # the second pass overwrites them
        y = net.fprop(x[1])
        net.bprop(self.scale_errors(self.cost.get_errors(y, "data")))
        self.be.assign(gradients, [dw + before for dw, before in zip(gradients, of_noise, strict=True)])
        return y, float(self.cost.get_cost(y, y_noise, "dis").item())

    def _recompute_outputs(self, x: Any) -> None:
        self.fprop(x[0], inference=True)
        for y in x[1:]:
            self.discriminator.fprop(y, inference=True)

    def check_can_evaluate(self) -> None:
        """Raise TypeError, as there are no targets for the outputs of the generator."""
        raise TypeError(f"{self.name}: expected a model with targets, got a GAN. Use generate(n) or GANCostCallback().")

    # --- noise and samples ---

    def draw_noise(self) -> Tensor:
        """Return new noise for a minibatch.

        Returns
        -------
        Tensor
            The noise, (features, N).
        """
        be, z = self.be, self.layers.buffer("noise", self.layers.in_shape)
        z[:] = be.randn(z.shape) if self.noise_type == "normal" else 2 * be.rand(z.shape) - 1
        return z

    def get_noise(self, n: int) -> NDArray[Any]:
        """Return noise that depends only on the backend's seed; the random streams of training do not advance.

        Parameters
        ----------
        n : int
            The number of samples.

        Returns
        -------
        numpy.ndarray
            (n, features).
        """
        streams, shape = RandomStreams(self.be.rng_seed), (n, num_features(self.layers.in_shape))
        if self.noise_type == "normal":
            return streams.normal("noise", shape)
        return 2 * streams.uniform("noise", shape) - 1

    @exclusive
    def generate(self, n: int) -> NDArray[Any]:
        """Return the outputs of the generator for ``get_noise(n)``, so that epochs can be compared.

        Parameters
        ----------
        n : int
            The number of samples.

        Returns
        -------
        numpy.ndarray
            (n, C, H, W) or (n, F).

        Raises
        ------
        RuntimeError
            The network has no weights yet.
        ValueError
            ``n`` is below 1.
        """
        self._check_configured(f"{self.name}.generate")
        n = integer(f"{self.name}.generate: n", n)
        self.initialize(self.data_shape)
        noise = np.pad(self.get_noise(n), ((0, -n % self.be.bsz), (0, 0)))  # minibatches of one size: equal rounding
        outputs = predict_rows(f"{self.name}.generate", self.generator, noise, None, True, self.be.bsz)[:n]
        shape = self.data_shape
        return outputs.reshape(n, *([shape] if isinstance(shape, int) else shape))


# --- weights of int8 and bfloat16 ---

INT8_MAX = 127  # of weights, and of the inputs that were measured


class InputRanges(Sequential):
    """A network whose outputs are the largest absolute inputs of its Linear and Convolution layers, a row for each."""

    @classmethod
    def of(cls, network: Sequential) -> InputRanges:
        """Return the ranges of a network, whose layers it shares."""
        ranges = object.__new__(cls)
        vars(ranges).update(vars(network), inference_program=InferenceProgram())
        return ranges

    @property
    def measured_layers(self) -> list[Any]:
        """The layers whose inputs are measured."""
        return [x for x in self.leaves() if type(x) in (Linear, Convolution, Convolution_bias)]

    def build_tree(self, x: Operands, training: bool) -> Trees:
        """Return the largest absolute input of each layer in each sample, (layers, N)."""
        be, samples = self.be, self.num_samples(x)  # type: ignore[arg-type]
        inputs: dict[int, Operand] = {}  # {id of the weights: inputs}
        outputs = super().build_tree(x, training)
        for node in postorder(*(outputs if isinstance(outputs, list) else [outputs])):
            if node.op in ("dot", "conv"):
                W, data = (node.left, node.right) if node.op == "dot" else (node.right.left, node.left)
                inputs[id(W)] = data
        rows = [be.max(be.abs(inputs[id(layer.W)])) for layer in self.measured_layers]
        return be.concat([be.broadcast_to(be.reshape(row, (1, 1)), (1, samples)) for row in rows], axis=0)


def quantize_layers(network: LayerContainer, ranges: dict[str, float | None]) -> None:
    """Replace layers of a network by layers with rounded weights, which include bias, batch norm, Rectlin and Dropout.

    Parameters
    ----------
    network : LayerContainer
        The network.
    ranges : dict of float
        The largest absolute input of each layer that is replaced, by its name, for int8; or None, for bfloat16.
    """
    for _, container in [*walk_layers(network)]:
        if isinstance(container, Sequential):
            rest, container.layers = container.layers, []
            while rest:
                layer, *rest = rest
                if layer.name in ranges:
                    layer, rest = quantized_layer(layer, rest, ranges[layer.name])
                container.layers.append(layer)
    network.configure(network.in_shape)


def bfloat16_bits(x: NDArray[Any]) -> NDArray[np.int16]:
    """Return finite numbers rounded to bfloat16, ties to even: the upper 16 bits of those of float32."""
    bits = x.astype(np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16).view(np.int16)


def quantized_layer(layer: Any, rest: list[Any], largest: float | None) -> tuple[Any, list[Any]]:
    """Return the layer with rounded weights that replaces the first layers, and the others."""
    axis, scale = int(not layer.weights_are_columns), None if largest is None else (largest or 1) / INT8_MAX
    W = layer.W.get().astype(np.float64)
    if not np.isfinite(scale or 0) or not np.isfinite(W).all():
        raise ValueError(
            f"quantize: expected finite weights and inputs of {layer.name}, got NaN or infinity. Load weights that are "
            "finite, or use a dtype of a larger range."
        )
    factors = np.ones((W.shape[1 - axis], 1))
    bias = layer.weight_bias.get() if isinstance(layer, Convolution_bias) else np.zeros_like(factors)
    if rest and type(rest[0]) is Bias:
        bias, rest = bias + rest[0].W.get(), rest[1:]
    if rest and type(rest[0]) is BatchNorm and not rest[0].binary:
        norm, *rest = rest
        gamma, beta, mean, var = (x.get().astype(np.float64) for x in (norm.gamma, norm.beta, norm.gmean, norm.gvar))
        gain = gamma / np.sqrt(var + norm.eps)
        factors, bias = factors * gain, beta + (bias - mean) * gain
    transform = getattr(rest[0], "transform", None) if rest else None
    relu = isinstance(transform, Rectlin) and transform.slope == 0
    rest = rest[relu:]
    if rest and type(rest[0]) is Dropout:
        factors, bias, rest = factors * rest[0].inference_scale, bias * rest[0].inference_scale, rest[1:]
    options: dict[str, Any] = {"scale": scale, "relu": relu, "name": layer.name}
    if isinstance(layer, Linear):
        result: Any = QuantizedLinear(layer.nout, **options)
    else:
        window = {"strides": layer.strides, "padding": layer.padding, "dilation": layer.dilation}
        result = QuantizedConvolution(layer.fshape, **options, **window)
    result.configure(layer.in_shape).init_params(result.nfm)
    result.bias[:] = bias
    if scale is None:
        result.W[:] = bfloat16_bits(W * (factors if axis else factors.T))
    else:
        steps = np.abs(W).max(axis=axis, keepdims=True) / INT8_MAX
        steps[steps == 0] = 1
        result.W[:], result.factors[:] = np.rint(W / steps).astype(np.int8), factors * scale * steps.reshape(-1, 1)
    return result, rest
