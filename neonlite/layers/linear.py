"""Linear, Bias, BinaryLinear and embedding layers; Affine, Conv, Deconv and BinaryAffine, lists with activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from neonlite.backend import Tensor
from neonlite.backend.validation import boolean, check_number, integer
from neonlite.initializers import Constant, Gaussian, GlorotUniform, Kaiming
from neonlite.layers.activation import Activation, ActivationLike, check_activation
from neonlite.layers.buffers import num_channels, num_elements, num_features
from neonlite.layers.container import LayerContainer, LayerList, flatten_layers
from neonlite.layers.images import Convolution, Convolution_bias, Deconvolution
from neonlite.layers.layer import Layer, LayerInput
from neonlite.layers.norm import BatchNorm, ShiftBatchNorm
from neonlite.layers.parameter import BatchSumLayer, InitLike, ParameterLayer, ParameterSpec, TensorAttribute
from neonlite.messages import describe
from neonlite.optree import Operand
from neonlite.transforms import GELU, Explin, Rectlin, SiLU
from neonlite.typing import HALF_DTYPES, SIGNIFICAND_BITS, LayerShapes, WindowSizes


class Linear(BatchSumLayer):
    """A linear layer, ``W x``, for inputs (nin, N) and weights (nout, nin).

    With inputs (nin, T) the weights are applied to each time step.

    Parameters
    ----------
    nout : int
        The number of outputs.
    init : Initializer, array, Tensor or str
        Initial values of W, (nout, nin); default: ``GlorotUniform()``.
    bsum : bool
        Also compute ``batch_sum`` (nout, 1), the sums of the rows of the outputs.
    name : str, optional
        Name, unique in a network.
    parallelism : str
        As for ``Layer``.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> be = nl.gen_backend("cpu", batch_size=32)
    >>> layer = Linear(10, Gaussian()).configure(784)
    >>> layer.weight_shape, layer.out_shape
    ((10, 784), 10)
    """

    def __init__(
        self,
        nout: int,
        init: InitLike | None = None,
        bsum: bool = False,
        name: str | None = None,
        parallelism: str = "Disabled",
    ) -> None:
        super().__init__(GlorotUniform() if init is None else init, name, parallelism)
        self.nout, self.bsum = integer(f"{self.name}: nout", nout), bsum

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        steps = self.in_shape[1:] if isinstance(self.in_shape, tuple) and len(self.in_shape) == 2 else ()
        self.nin = num_features(self.in_shape)
        self.out_shape = (self.nout, *steps) if steps else self.nout
        self.weight_shape = (self.nout, self.nin)
        return self

    def formula(self, x: Tensor) -> Operand:
        """Return ``W x``."""
        return self.be.dot(self.W, x)


# --- how it is made fast, and the rest ---


class Bias(ParameterLayer):
    """``x + b``, with one b for each feature, or for each channel of images (C, H, W).

    Parameters
    ----------
    init : Initializer, array, Tensor or str
        Initial values of b, the parameter W of this layer, (F, 1) or (C, 1); default: zeros.
    name : str, optional
        Name, unique in a network.
    """

    takes_images = True

    def __init__(self, init: InitLike | None = None, name: str | None = None) -> None:
        super().__init__(Constant(0) if init is None else init, name)

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        self.num_channels = num_channels(self.in_shape)
        self.weight_shape = (self.num_channels, 1)
        return self

    def formula(self, x: Tensor) -> Operand:
        """Return ``x + b``."""
        be = self.be
        if x.ndim > 2:
            return x + be.reshape(self.W, (-1, *[1] * (x.ndim - 1)))
        return be.reshape(be.reshape(x, self.num_channels, -1) + self.W, x.shape)


class BinaryLinear(Linear):
    """``sign(W) x``, for inputs (nin, N) and weights (nout, nin); the sign of 0 is +1.

    W is real-valued. The derivative of sign is 0, so ``dW = error x^T`` is the gradient with respect to sign(W) instead
    (straight-through estimator). ``deltas = sign(W)^T error``. Only the signs of W affect the outputs, so clip W to
    [-1, 1]: use ``ShiftAdaMax``, or ``param_clip_value=1`` of other optimizers.

    Parameters
    ----------
    nout, init, bsum, name, parallelism
        As for ``Linear``.

    References
    ----------
    Courbariaux et al., "Binarized neural networks", 2016, algorithm 1.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.layers import BinaryLinear
    >>> be = nl.gen_backend("cpu", batch_size=1)
    >>> layer = BinaryLinear(1, init=be.array([[0.5, -0.25, 0.0]])).configure(3)
    >>> layer.allocate()
    >>> layer.fprop(be.array([[1.0], [2.0], [4.0]])).get()
    array([[3.]], dtype=float32)
    """

    def formula(self, x: Tensor) -> Operand:
        """Return ``sign(W) x``, with the derivative of sign(W) with respect to W set to 1."""
        be, W = self.be, self.W
        straight_through = W - be.stop_gradient(W)  # 0, with derivative 1
        return be.dot(be.binarize(W, stochastic=False) + straight_through, x)


# --- int8 and bfloat16 inference ---

WEIGHT_DTYPES = {"int8": "int8", "bfloat16": "int16"}  # by the format of numbers; NumPy has no bfloat16, only its bits


class QuantizedLayer(ParameterLayer):
    """Base class of layers for inference with weights W of int8 or bfloat16, created by ``Model.quantize``.

    For int8, the inputs are divided by ``scale`` and rounded to integers from -128 to 127; sums of products are
    integers, which ``factors`` of the outputs or channels scale. For bfloat16, ``scale`` is None, inputs are rounded to
    bfloat16, and their products are added in float32.

    Attributes
    ----------
    W : Tensor
        The weights: int8, or the bits of bfloat16 in int16.
    factors : Tensor
        (nout, 1): ``scale`` times the size of a step of the weights; None for bfloat16.
    bias : Tensor
        (nout, 1): what is added.
    """

    factors, bias = TensorAttribute(), TensorAttribute()
    scale: float | None
    relu: bool

    def saved_specs(self) -> list[ParameterSpec]:
        """Return the names and shapes of the tensors."""
        shapes = {"W": self.weight_shape, "bias": (self.nfm, 1)}
        if self.scale is not None:
            shapes["factors"] = self.nfm, 1
        return [ParameterSpec(name, "", shape, None) for name, shape in shapes.items()]

    @property
    def number_format(self) -> str:
        """The format of the weights and of the rounded inputs."""
        return "bfloat16" if self.scale is None else "int8"

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the trainable parameters: none."""
        return []

    @property
    def nfm(self) -> int:
        """The number of outputs, or of channels of images."""
        return num_channels(self.out_shape)

    @property
    def num_parameters(self) -> int:
        """The number of elements of the tensors."""
        return sum(math.prod(spec.shape) for spec in self.saved_specs())

    @property
    def is_allocated(self) -> bool:
        """Whether the layer has its tensors."""
        return self.in_shape is not None and self.W is not None

    @property
    def persistent_tensors(self) -> dict[str, Tensor]:
        """The tensors that are saved in checkpoints, by name."""
        return {spec.name: getattr(self, spec.name) for spec in self.saved_specs()}

    def allocate_parameters(self) -> None:
        if not self.is_allocated:
            self.init_params(self.nfm)

    def init_params(self, nfm: int) -> None:
        """Allocate the tensors.

        Parameters
        ----------
        nfm : int
            The number of outputs or channels.
        """
        for name, _, shape, _ in self.saved_specs():
            dtype = WEIGHT_DTYPES[self.number_format] if name == "W" else self.be.default_dtype_name
            dtype = "float32" if dtype in HALF_DTYPES else dtype  # factors would underflow in float16
            vars(self)[name] = self.be.zeros(shape, dtype=dtype, name=f"{self.name}.{name}")

    def _quantized(self, op: str, x: Operand, W: Operand, **options: Any) -> Any:
        """Return the op-tree of a product or convolution.

        Parameters
        ----------
        op : str
            The name of the op.
        x, W : Tensor or OpTreeNode
            The inputs and the weights.
        **options
            Other attributes of the op.
        """
        be = self.be
        others = self.bias if self.scale is None else be.build("pair", self.bias, self.factors)
        return be.build(op, x, be.build("pair", W, others), scale=self.scale, relu=self.relu, **options)


class QuantizedLinear(QuantizedLayer, Linear):
    """``factors (W round(x / scale)) + bias`` with int8 weights (nout, nin), or max(., 0) of it, for inference.

    Without ``scale``: ``W round(x) + bias`` with weights and inputs of bfloat16.

    Parameters
    ----------
    nout : int
        The number of outputs.
    scale : float, optional
        The size of a step of the inputs for int8. Default: None, for bfloat16.
    relu : bool
        Whether to apply max(., 0).
    name : str, optional
        Name, unique in a network.
    """

    def __init__(self, nout: int, scale: float | None = None, relu: bool = False, name: str | None = None) -> None:
        super().__init__(nout, Constant(0), name=name)
        self.scale = None if scale is None else check_number(f"{self.name}: scale", scale, 0)
        self.relu = boolean(f"{self.name}: relu", relu)

    def formula(self, x: Tensor) -> Operand:
        """Return ``factors (W round(x / scale)) + bias``."""
        tree: Operand = self._quantized("quantized_dot", x, self.W)
        return tree


class QuantizedConvolution(QuantizedLayer, Convolution):
    """``factors conv(round(x / scale), W) + bias`` with int8 filters, or max(., 0) of it, for inference.

    Without ``scale``: ``conv(round(x), W) + bias`` with filters and images of bfloat16.

    Parameters
    ----------
    fshape, strides, padding, dilation
        As for ``Convolution``.
    scale : float, optional
        The size of a step of the inputs for int8. Default: None, for bfloat16.
    relu : bool
        Whether to apply max(., 0).
    name : str, optional
        Name, unique in a network.
    """

    def __init__(
        self,
        fshape: WindowSizes,
        scale: float | None = None,
        relu: bool = False,
        strides: WindowSizes = 1,
        padding: WindowSizes = 0,
        dilation: WindowSizes = 1,
        name: str | None = None,
    ) -> None:
        super().__init__(fshape, strides, padding, dilation, Constant(0), name=name)
        self.scale = None if scale is None else check_number(f"{self.name}: scale", scale, 0)
        self.relu = boolean(f"{self.name}: relu", relu)

    def _image_formula(self, x: Operand) -> Operand:
        """Return ``factors conv(round(x / scale), W) + bias``."""
        options = {name: tuple(value) for name, value in self.conv_options().items()} | {"groups": 1}
        tree: Operand = self._quantized("quantized_conv", x, self.be.reshape(self.W, self.nglayer.dimF), **options)
        return tree


# --- compound layers: Affine, Conv, Deconv and BinaryAffine, lists of a layer, bias or batch norm, and activation ---

Windows = tuple[WindowSizes, WindowSizes, WindowSizes, WindowSizes]  # fshape, strides, padding and dilation
RECTIFIERS = (Rectlin, Explin, SiLU, GELU)  # activations for which weights are initialized by Kaiming


NAME_SUFFIXES = ("_bias", "_bnorm", "_sbnorm")  # of the layers with parameters that follow the first one


class CompoundLayer(LayerList):
    """Base class of lists of layers: a main layer, an optional bias or batch normalization, an optional activation.

    Parameters
    ----------
    bias : Initializer, array, Tensor, str or bool, optional
        Initial values of the bias; True for zeros, False for no bias. Default: no bias; without ``init`` zeros, unless
        there is batch normalization.
    batch_norm : bool
        Add batch normalization. It has its own offset, so it cannot be combined with a bias.
    activation : Transform or str, optional
        The activation function, such as ``Rectlin()``, or its name, such as "relu". Default: none.
    name : str, optional
        Name of the first layer; the names of the others start with it.

    Raises
    ------
    AttributeError
        If both a bias and batch normalization are requested.
    """

    norm_class_and_suffix: tuple[type[BatchNorm], str] = BatchNorm, "bnorm"  # for ``batch_norm=True``
    weights_are_columns = False  # as in ``ParameterLayer``

    def __init__(
        self,
        bias: InitLike | bool | None = None,
        batch_norm: bool = False,
        activation: ActivationLike | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        if bias is not None and bias is not False and batch_norm:
            raise AttributeError(
                f"{name or self.__class__.__name__}: expected bias or batch_norm, got both. Leave out bias, because "
                "BatchNorm has an offset beta."
            )
        if activation is not None:
            activation = check_activation(f"{name or self.__class__.__name__}: activation", activation)
        self.uses_default_bias = bias is None and not batch_norm
        if isinstance(bias, bool):
            bias = Constant(0) if bias else None
        self.bias, self.batch_norm, self.activation, self.base_name = bias, batch_norm, activation, name

    def use_defaults(self, init: InitLike | None) -> InitLike:
        """Return the initial values of the weights; if there are none, use the defaults of textbooks, with a bias.

        Parameters
        ----------
        init : Initializer, array, Tensor or str, optional
            The constructor's argument.
        """
        if init is not None:
            return init
        if self.uses_default_bias:
            self.bias = Constant(0)
        return Kaiming(self.weights_are_columns) if isinstance(self.activation, RECTIFIERS) else GlorotUniform()

    def add_layers(self, layer: Layer) -> None:
        """Append the first layer, and the bias, batch normalization and activation that follow it.

        Parameters
        ----------
        layer : Layer
            The first layer.
        """
        self.append(layer)
        base = self.base_name or layer.name
        if self.bias is not None:
            self.append(Bias(self.bias, name=f"{base}_bias"))
        if self.batch_norm:
            norm, suffix = self.norm_class_and_suffix
            self.append(norm(name=f"{base}_{suffix}"))
        if self.activation is not None:
            self.append(Activation(self.activation, name=f"{base}_{self.activation.classnm}"))


class Affine(CompoundLayer):
    """``f(W x + b)``: a Linear layer, and a Bias, BatchNorm and Activation if requested.

    Parameters
    ----------
    nout : int
        The number of outputs.
    init : Initializer, array, Tensor or str, optional
        Initial values of W, (nout, nin). Default: ``Kaiming(local=False)`` if the activation is a rectifier (Rectlin,
        Explin, SiLU, GELU), else ``GlorotUniform()``; and a bias of zeros.
    bias, batch_norm, activation, name
        As for ``CompoundLayer``.
    parallelism : str
        As for ``Layer``.

    Examples
    --------
    >>> [layer.name for layer in Affine(100, activation="relu", name="hidden")]
    ['hidden', 'hidden_bias', 'hidden_Rectlin']
    >>> from neonlite.initializers import Gaussian
    >>> [layer.name for layer in Affine(100, Gaussian(), activation="relu", name="hidden")]  # with init: no bias
    ['hidden', 'hidden_Rectlin']
    """

    def __init__(
        self,
        nout: int,
        init: InitLike | None = None,
        bias: InitLike | bool | None = None,
        batch_norm: bool = False,
        activation: ActivationLike | None = None,
        name: str | None = None,
        parallelism: str = "Disabled",
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        self.add_layers(Linear(nout, self.use_defaults(init), name=name, parallelism=parallelism))


class BinaryAffine(CompoundLayer):
    """``f(sign(W) x + b)``: a BinaryLinear layer, and a Bias, ShiftBatchNorm and Activation if requested.

    Parameters
    ----------
    nout : int
        The number of outputs.
    init : Initializer, array, Tensor or str, optional
        Initial values of W, (nout, nin). Default: as for ``Affine``.
    bias, batch_norm, activation, name
        As for ``CompoundLayer``.

    Examples
    --------
    >>> from neonlite.initializers import Uniform
    >>> from neonlite.transforms import Sign
    >>> layers = BinaryAffine(100, Uniform(-1, 1), batch_norm=True, activation=Sign(), name="hidden")
    >>> [layer.name for layer in layers]
    ['hidden', 'hidden_sbnorm', 'hidden_Sign']
    """

    norm_class_and_suffix = ShiftBatchNorm, "sbnorm"

    def __init__(
        self,
        nout: int,
        init: InitLike | None = None,
        bias: InitLike | bool | None = None,
        batch_norm: bool = False,
        activation: ActivationLike | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        self.add_layers(BinaryLinear(nout, self.use_defaults(init), name=name))


class ImageCompoundLayer(CompoundLayer):
    """Base class of ``Conv`` and ``Deconv``."""

    weights_are_columns = True

    def __init__(
        self,
        fshape: WindowSizes,
        init: InitLike | None = None,
        strides: WindowSizes = 1,
        padding: WindowSizes = 0,
        dilation: WindowSizes = 1,
        bias: InitLike | bool | None = None,
        batch_norm: bool = False,
        activation: ActivationLike | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(bias, batch_norm, activation, name)
        init = self.use_defaults(init)
        self.add_layers(self._first_layer((fshape, strides, padding, dilation), init, name))

    def _first_layer(self, windows: Windows, init: InitLike, name: str | None) -> Layer:
        """Return the layer with the weights; ``windows``: fshape, strides, padding and dilation."""
        raise NotImplementedError


class Conv(ImageCompoundLayer):
    """``f(W * x + b)``: a Convolution or Convolution_bias, and a BatchNorm and Activation if requested.

    Parameters
    ----------
    fshape, strides, padding, dilation
        As for ``Convolution``.
    init : Initializer, array, Tensor or str, optional
        Initial values of W, (C T R S, K). Default: ``Kaiming()`` if the activation is a rectifier (Rectlin, Explin,
        SiLU, GELU), else ``GlorotUniform()``; and a bias of zeros.
    bias, batch_norm, activation, name
        As for ``CompoundLayer``.

    Examples
    --------
    >>> from neonlite.initializers import Constant, Gaussian
    >>> from neonlite.transforms import Rectlin
    >>> [layer.name for layer in Conv((3, 3, 16), Gaussian(), bias=Constant(0), activation=Rectlin(), name="edges")]
    ['edges', 'edges_Rectlin']
    """

    def _first_layer(self, windows: Windows, init: InitLike, name: str | None) -> Layer:
        bias, self.bias = self.bias, None  # the first layer includes it
        if bias is None:
            return Convolution(*windows, init, name=name)
        return Convolution_bias(*windows, init, name=name, bias=bias)


class Deconv(ImageCompoundLayer):
    """A transposed convolution: a Deconvolution, and a Bias, BatchNorm and Activation if requested.

    Parameters
    ----------
    fshape, strides, padding, dilation
        As for ``Deconvolution``.
    init : Initializer, array, Tensor or str, optional
        Initial values of W, (C T R S, K). Default: as for ``Conv``.
    bias, batch_norm, activation, name
        As for ``CompoundLayer``.

    Examples
    --------
    >>> from neonlite.initializers import Constant, Gaussian
    >>> [layer.name for layer in Deconv((3, 3, 1), Gaussian(), strides=2, bias=Constant(0), name="up")]
    ['up', 'up_bias']
    """

    def _first_layer(self, windows: Windows, init: InitLike, name: str | None) -> Layer:
        return Deconvolution(*windows, init, name=name)


def find_layers(where: str, network: LayerContainer, layers: Sequence[str | Layer | Sequence[Layer]]) -> list[Layer]:
    """Return layers of a network, given layers, lists of layers and names; a name includes the layers of a compound."""
    if not layers:
        raise ValueError(f"{where}: expected layers or names of layers, got none. All layers are model.layers.")
    found: list[Layer] = []
    for layer in layers:
        if isinstance(layer, str):
            names = [layer, *[layer + x for x in NAME_SUFFIXES if layer + x in network]]
            found += [network[name] for name in names]
        else:
            found += flatten_layers(where, [layer])
    members = {id(leaf) for leaf in network.leaves()}
    for layer in found:
        if not all(id(leaf) in members for leaf in layer.leaves()):
            raise ValueError(f"{where}: expected layers of {network.name}, got {layer.name}, which is not one of them.")
    return found


# --- embedding of sequences ---


class LookupTable(ParameterLayer):
    """Embedding: row i of the table ``W`` (vocab_size, embedding_dim) for each token id i.

    Inputs are token ids (nin, N), or (1, T) or (T, 1) with time steps, of any dtype that represents all ids exactly.
    Outputs are (embedding_dim, nin * N), with column t * N + n. Token ids have no deltas: ``bprop`` returns None.

    Parameters
    ----------
    vocab_size : int
        Number of rows; token ids are 0 to vocab_size - 1.
    embedding_dim : int
        Number of columns.
    init : initializer, array, Tensor or str, optional
        Fills W (default: ``Gaussian()``).
    update : bool
        Train W; otherwise its gradient stays zero.
    pad_idx : int, optional
        Token id of padding, whose row is zero and has no gradient.
    name : str, optional
        Name of the layer.

    Raises
    ------
    IndexError
        By ``fprop``, for token ids outside of the table.
    TypeError
        By ``fprop``, for a dtype that cannot represent all ids.
    """

    can_compute_deltas = False

    def __init__(
        self,
        vocab_size: int,
        embedding_dim: int,
        init: InitLike | None = None,
        update: bool = True,
        pad_idx: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(Gaussian() if init is None else init, name)
        self.vocab_size = integer(f"{self.name}: vocab_size", vocab_size)
        self.embedding_dim = integer(f"{self.name}: embedding_dim", embedding_dim)
        if pad_idx is not None:
            pad_idx = integer(f"{self.name}: pad_idx", pad_idx, 0, self.vocab_size - 1)
        self._trainable, self.pad_idx = update, pad_idx

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        if isinstance(self.in_shape, tuple) and len(self.in_shape) == 2 and 1 not in self.in_shape:
            raise ValueError(
                f"{self.name}: expected inputs of nin token ids, or (1, T) or (T, 1), one per time step, "
                f"got {self.in_shape}"
            )
        self.nin = num_elements(self.in_shape)
        self.out_shape = (self.embedding_dim, self.nin)
        self.weight_shape = (self.vocab_size, self.embedding_dim)
        return self

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        if self.pad_idx is not None:
            self.W[self.pad_idx] = 0

    @property
    def update(self) -> bool:
        """Whether the table is trained: ``trainable``, by neon's name."""
        return self.trainable

    @update.setter
    def update(self, value: bool) -> None:
        self.trainable = value

    def shape_for_seq_len(self, S: int) -> LayerShapes:
        self.check_seq_len(S)
        if isinstance(self.in_shape, int):
            return S
        return (1, S) if self.in_shape[0] == 1 else (S, 1)

    def to_token_ids(self, x: Operand) -> Operand:
        """Return inputs as a column of int32 token ids; invalid ones become ``vocab_size``, which ``be.take`` rejects.

        Parameters
        ----------
        x : Tensor or op-tree
            The inputs.
        """
        dtype, last = x.info.dtype, self.vocab_size - 1
        if last > 2 ** SIGNIFICAND_BITS.get(dtype, 64):
            raise TypeError(
                f"{self.name}: expected a dtype that represents the token ids 0 to {last}, got {describe(x)} of "
                f"{dtype}, which is exact up to {2 ** SIGNIFICAND_BITS[dtype]}. Use int32"
            )
        x = self.be.reshape(x, -1, 1)
        ids = self.be.astype(x, "int32")
        return self.be.where((ids == x) * (ids >= 0), ids, self.vocab_size)  # be.take accepts negative indices

    def formula(self, x: Tensor) -> Operand:
        """Return the rows of W as columns; those of ``pad_idx`` do not depend on W."""
        ids = self.to_token_ids(x)
        rows = self.be.take(self.W, ids, axis=0)
        return self.be.transpose(rows if self.pad_idx is None else self.be.where(ids == self.pad_idx, 0, rows))

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        try:
            return super().fprop(inputs, inference, beta)
        except IndexError:
            ids = self.to_token_ids(inputs).get()
            out_of_range = inputs.get().reshape(-1, 1)[ids >= self.vocab_size]
            raise IndexError(
                f"{self.name}: expected token ids from 0 to {self.vocab_size - 1}, got {out_of_range[0]}"
            ) from None


SINUSOID_BASE = 10000  # the longest wavelength is 2 pi times this many steps


class PositionalEncoding(Layer):
    """Add sinusoidal position encodings, (F, T) -> (F, T): ``x + PE``.

    ``PE[2i, t] = sin(t / 10000^(2i / F))`` and ``PE[2i + 1, t] = cos(t / 10000^(2i / F))``.

    Parameters
    ----------
    name : str, optional
        Name of the layer.

    References
    ----------
    Vaswani et al. 2017, section 3.5.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.table: Tensor | Any = None

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self._check_sequence_shape()
        return self

    def allocate_parameters(self) -> None:
        F, T = self.in_shape
        if self.table is None or self.table.shape != (F, T):
            self.table = self.be.array([sinusoid_row(i, F, T) for i in range(F)], name=f"{self.name}.table")

    def formula(self, x: Tensor) -> Operand:
        return add_per_step(x, self.table)


class PositionEmbedding(ParameterLayer):
    """Add trainable position embeddings, (F, T) -> (F, T): ``x + W[:, t]`` at step t, W (F, max_steps).

    Parameters
    ----------
    max_steps : int
        Largest T.
    init : initializer, array, Tensor or str, optional
        Fills W (default: ``Gaussian(scale=0.02)``).
    name : str, optional
        Name of the layer.

    References
    ----------
    Gehring et al. 2017, section 3.1.
    """

    def __init__(self, max_steps: int, init: InitLike | None = None, name: str | None = None) -> None:
        super().__init__(Gaussian(scale=0.02) if init is None else init, name)
        self.max_steps = integer(f"{self.name}: max_steps", max_steps)

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = F, T = self._check_sequence_shape()
        if self.max_steps < T:
            raise ValueError(
                f"{self.name}: expected at most max_steps = {self.max_steps} steps, got {T}. Use more max_steps"
            )
        self.weight_shape = (F, self.max_steps)
        return self

    def formula(self, x: Tensor) -> Operand:
        T = self.in_shape[1]
        return add_per_step(x, self.W if self.max_steps == T else self.W[:, :T])


def sinusoid_row(i: int, F: int, T: int) -> list[float]:
    """Return row i of the position encodings (F, T)."""
    f = math.cos if i % 2 else math.sin
    return [f(t / SINUSOID_BASE ** ((i - i % 2) / F)) for t in range(T)]


def add_per_step(x: Tensor, table: Tensor) -> Operand:
    """Return x (F, T N), with column t of a table (F, T) added to each column t N + n."""
    F, T = table.shape
    return x.backend.reshape(x.backend.reshape(x, (F, T, -1)) + x.backend.reshape(table, (F, T, 1)), x.shape)
