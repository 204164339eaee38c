"""Layers between those with weights: Activation, Dropout, Reshape, DataTransform, and batch and layer normalization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias, TypeVar

from neonlite.backend import NervanaObject, Tensor
from neonlite.backend.batch_size import Shard, draw_samples
from neonlite.backend.objects import has_builtin_method, is_builtin
from neonlite.backend.validation import check_number, from_name, function, instance, integer
from neonlite.initializers import Constant
from neonlite.layers.buffers import Operands, Trees, num_features, num_steps, plain
from neonlite.layers.layer import Layer, LayerInput
from neonlite.layers.parameter import ParameterLayer, ParameterSpec, TensorAttribute
from neonlite.layers.weights import accumulates
from neonlite.messages import describe
from neonlite.optree import Operand
from neonlite.transforms import Softmax, Transform
from neonlite.transforms.functions import ACTIVATIONS
from neonlite.tree_structure import note_activation

# --- layers without parameters ---


def check_activation(where: str, value: object, example: str = "Rectlin()") -> Transform:
    """Return a transform, a new one for the name of one; TypeError or ValueError for anything else."""
    transform = from_name(where, value, ACTIVATIONS)
    return instance(where, transform, Transform, f"a transform, such as {example},")


class Activation(Layer):
    """An activation, ``f(x)``: a transform f applied to each element or, as for Softmax, along an axis.

    If the cost is the one that f is paired with, such as CrossEntropyMulti with Softmax, the cost computes the gradient
    with respect to the inputs of this layer, and ``bprop`` does not multiply by the derivative of f (``shortcut``).

    Parameters
    ----------
    transform : Transform or str
        The activation function, such as ``Rectlin()``, or its name, such as "relu".
    name : str, optional
        Name, unique in a network.
    """

    def __init__(self, transform: ActivationLike, name: str | None = None) -> None:
        super().__init__(name)
        self.transform = check_activation(f"{self.name}: transform", transform)
        self.shortcut = False

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.transform.be = self.be
        self.shortcut = False  # set by the cost if this is the last layer
        if (axis := getattr(self.transform, "axis", None)) is not None:
            integer(f"{self.name}: axis of {self.transform.classnm}", axis, -2, 1)  # outputs have two axes
        self.out_shape = self.in_shape
        return self

    @property
    def takes_images(self) -> bool:  # type: ignore[override]
        """Whether the transform is a built-in one of single elements."""
        return is_builtin(type(self.transform)) and not isinstance(self.transform, Softmax)

    @property
    def is_expression(self) -> bool:
        """Whether the outputs are an op-tree of the inputs; not if f is custom and has a derivative."""
        return super().is_expression and not self.has_custom_derivative

    @property
    def has_custom_derivative(self) -> bool:
        """Whether f has a derivative that is not that of its formula: of a custom class, or of an instance."""
        f = self.transform
        return not all(has_builtin_method(type(f), name) and name not in vars(f) for name in ("bprop", "backward"))

    def formula(self, x: Tensor) -> Operand:
        """Return ``f(x)``."""
        return self.transform(x)

    def build_tree(self, x: Operands, training: bool) -> Trees:
        """Return ``f(x)``; note x, by which a cost that is paired with f differentiates (``shortcut``)."""
        note_activation(self, x)
        return super().build_tree(x, training)

    def build_gradients(self, error: Tensor, tensors: Sequence[Tensor]) -> list[Operand]:
        if tensors and self.shortcut:
            return [error]
        if tensors and self.has_custom_derivative:
            return [self.transform.backward(error, self.outputs, self.inputs)]
        return super().build_gradients(error, tensors)


class Dropout(Layer):
    """Dropout: ``x mask`` in training, with a new random mask of 0 and 1 for each ``fprop``; ``x keep`` at inference.

    If the ``compat_mode`` of the backend is "caffe": ``x mask / keep`` in training, and x at inference.

    Parameters
    ----------
    keep : float
        Probability of keeping an element (a one in the mask), above 0 and at most 1; default: 0.5.
    name : str, optional
        Name, unique in a network.
    dropout : float, optional
        Instead of ``keep``, the probability of dropping an element, ``1 - keep``.

    References
    ----------
    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
    """

    alternative_arguments = ("dropout",)
    takes_images = True

    def __init__(self, keep: float | None = None, name: str | None = None, dropout: float | None = None) -> None:
        super().__init__(name)
        self.keep = keep_probability(self.name, keep, dropout, 0.5)

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        caffe = self.be.check_caffe_compat()
        self.train_scale, self.inference_scale = (1 / self.keep, 1.0) if caffe else (1.0, self.keep)
        return self

    @property
    def mask(self) -> Tensor | None:
        """The mask of the last training ``fprop``, of all processes if there are several."""
        return self.random_numbers[0].reshape(num_features(self.out_shape), -1) if self.random_numbers else None

    def formula(self, x: Operand) -> Operand:
        """Return ``x mask``, scaled, with a mask that the op-tree draws."""
        T = num_steps(self.out_shape)
        sizes = x.shape[:-1] if T == 1 else (x.shape[0], T)
        be, keep = self.be, self.keep
        drawn = draw_samples(be, lambda n: be.random_mask((*sizes, n), keep=keep), x.shape[-1] // T)
        mask = be.reshape(drawn, x.shape)
        return x * mask if self.train_scale == 1 else x * mask * self.train_scale

    def inference_formula(self, x: Tensor) -> Operand:
        """Return x, scaled."""
        return x * self.inference_scale


def keep_probability(where: str, keep: float | None, dropout: float | None, default: float) -> float:
    """Return the probability of keeping an element; TypeError if both it and the one of dropping it are given."""
    if dropout is None:
        return check_number(f"{where}: keep", default if keep is None else keep, above=0, at_most=1)
    if keep is not None:
        raise TypeError(
            f"{where}: expected keep or dropout, got {keep=} and {dropout=}. Pass one of them: dropout is 1 - keep."
        )
    return 1 - check_number(f"{where}: dropout", dropout, 0, 1)


ActivationLike: TypeAlias = "Transform | str"  # an activation function; a name such as "relu"
Data = TypeVar("Data")
Result = TypeVar("Result")


class Reshape(Layer):
    """The inputs in another shape.

    Elements keep their row-major order, with the batch as the last axis: in an output (F, T), feature f at time step t
    is feature f T + t of the input. (embedding, tokens) can be reshaped to an image (1, embedding, tokens).

    Parameters
    ----------
    reshape : int or tuple
        F, (F, T) or (C, H, W). 0 keeps the size of the inputs on that axis, and one -1 is inferred.
    name : str, optional
        Name, unique in a network.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.layers import Reshape
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> Reshape((0, -1)).configure((3, 4, 5)).out_shape
    (3, 20)
    >>> Reshape(-1).configure((3, 4, 5)).out_shape
    60
    """

    def __init__(self, reshape: int | tuple[int, ...], name: str | None = None) -> None:
        super().__init__(name)
        items = reshape if isinstance(reshape, tuple | list) else (reshape,)
        sizes = plain(items)
        all_integers = {*map(type, sizes)} == {int} and bool not in map(type, items)
        if not all_integers or min(sizes) < -1 or list(sizes).count(-1) > 1:
            raise ValueError(
                f"{self.name}: reshape: expected sizes, 0 to keep a size, and at most one -1, got {reshape!r}."
            )
        self.reshape = reshape
        self.sizes = tuple(sizes)

    def configure(self, in_obj: LayerInput) -> Self:
        """Set the input shape and infer the output shape."""
        super().configure(in_obj)
        in_sizes = (self.in_shape,) if isinstance(self.in_shape, int) else self.in_shape
        if any(n == 0 and i >= len(in_sizes) for i, n in enumerate(self.sizes)):
            raise ValueError(f"{self.name}: expected 0 only for axes of the inputs {in_sizes}, got {self.sizes}.")
        sizes = [n or in_sizes[i] for i, n in enumerate(self.sizes)]
        total, known = math.prod(in_sizes), math.prod(n for n in sizes if n != -1)
        if total % known or (-1 not in sizes and total != known):
            raise ValueError(
                f"{self.name}: expected a shape of {total} elements for the inputs {in_sizes}, got {self.sizes}."
            )
        sizes = [total // known if n == -1 else n for n in sizes]
        self.out_shape = sizes[0] if len(sizes) == 1 else tuple(sizes)
        return self

    def formula(self, x: Tensor) -> Operand:
        """Return x in the shape of the outputs."""
        return self.be.reshape(x, num_features(self.out_shape), -1)


class DataTransform(Layer):
    """``f(x)`` for a transform f of the data.

    It must be the first layer, or follow other DataTransform layers, and has no deltas.

    Parameters
    ----------
    transform : callable
        Function from a tensor to an op-tree of its shape, such as ``Normalizer(divisor=255)``. Optional methods:
        ``inference(x)``, used instead at inference, and ``configure(shape)``, which may reject a data shape;
        ``ColorNoise`` has both.
    name : str, optional
        Name, unique in a network.
    """

    can_compute_deltas = False

    def __init__(self, transform: Callable[[Tensor], Operand], name: str | None = None) -> None:
        super().__init__(name)
        self.transform = function(f"{self.name}: transform", transform, "a function of the data")

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        if self.prev_layer is not None and not isinstance(self.prev_layer, DataTransform):
            raise ValueError(
                f"{self.name}: expected to be the first layer, got the previous layer {self.prev_layer.name}."
            )
        self.out_shape = self.in_shape
        if isinstance(self.transform, NervanaObject):
            self.transform.be = self.be
        if hasattr(self.transform, "configure"):
            self.call_with_context(self.transform.configure, self.in_shape)
        return self

    def formula(self, x: Tensor) -> Operand:
        """Return ``f(x)``."""
        return self.apply_transform(self.transform, x)

    def inference_formula(self, x: Tensor) -> Operand:
        """Return ``f(x)``, or ``f.inference(x)`` if the transform has this method."""
        return self.apply_transform(getattr(self.transform, "inference", self.transform), x)

    def apply_transform(self, f: Callable[[Tensor], Operand], x: Tensor) -> Operand:
        """Return ``f(x)``. ValueError if the shape is not that of x.

        Parameters
        ----------
        f : callable
            The transform.
        x : Tensor
            The data.
        """
        y = self.call_with_context(f, x)
        if getattr(y, "shape", None) != x.shape:
            raise ValueError(
                f"{self.name}: expected a transform that keeps the shape of {describe(x)}, got {describe(y)}."
            )
        return y

    def call_with_context(self, f: Callable[[Data], Result], x: Data) -> Result:
        """Return ``f(x)``; add the name of the layer to error messages.

        Parameters
        ----------
        f : callable
            The transform, or its ``configure``.
        x : Tensor or tuple
            Its argument.
        """
        try:
            return f(x)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.name}: {error}") from None


# --- batch normalization and layer normalization ---


class RunningStatistics(ParameterLayer):
    """Base class of layers with a running mean ``gmean`` and variance ``gvar``, which checkpoints contain."""

    gmean, gvar = TensorAttribute(), TensorAttribute()

    def init_params(self, nfm: int) -> None:
        """Allocate the running statistics unless they exist.

        Parameters
        ----------
        nfm : int
            The number of features or channels.
        """
        if self.gmean is None:
            names = ("gmean", "gvar")
            vars(self).update({name: self.be.zeros((nfm, 1), name=f"{self.name}.{name}") for name in names})

    @property
    def persistent_tensors(self) -> dict[str, Tensor]:
        """The tensors that are saved in checkpoints, by name: the parameters and the running statistics."""
        return {**super().persistent_tensors, "gmean": self.gmean, "gvar": self.gvar}


class NormalizationBase(ParameterLayer):
    """Base class of normalization layers: ``gamma xhat + beta``, with a gamma and beta for each of ``nfm`` features.

    Parameters
    ----------
    eps : float
        Added to the variance.
    name : str, optional
        Name, unique in a network.
    """

    beta, gamma = TensorAttribute(), TensorAttribute()
    grad_beta, grad_gamma = TensorAttribute(), TensorAttribute()

    def __init__(self, eps: float, name: str | None = None) -> None:
        super().__init__(None, name)
        self.eps = check_number(f"{self.name}: eps", eps, 0, 1)
        self.nfm = 0

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        self.nfm = num_features(self.in_shape)
        return self

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return beta, with initial value 0, and gamma, with initial value 1."""
        shape = (self.nfm, 1)
        return [
            ParameterSpec("beta", "grad_beta", shape, Constant(0)),
            ParameterSpec("gamma", "grad_gamma", shape, Constant(1)),
        ]


class BatchNorm(RunningStatistics, NormalizationBase):
    """Batch normalization, ``gamma (x - mean) / sqrt(var + eps) + beta``.

    Mean and population variance are those of the minibatch, computed per channel of images (C, H, W), over all pixels
    and samples, and per feature of F or (F, T), over all samples and time steps. At inference the running statistics
    ``gmean = rho gmean + (1 - rho) mean`` and likewise ``gvar`` are used; their initial value is 0.

    Parameters
    ----------
    rho : float
        Decay of the running statistics, at least 0 and below 1.
    eps : float
        Added to the variance.
    name : str, optional
        Name, unique in a network.
    binary : bool
        Round one factor of every product to a power of two (shift-based batch normalization).
    sync : bool
        In a ``fit`` in several processes, whether mean and variance are those of the minibatch of all processes
        together; default: False, those of each process. The running statistics are means over the processes.

    Attributes
    ----------
    x, y : Tensor
        The inputs and outputs of ``init_buffers`` as (nfm, columns).
    gmean, gvar : Tensor
        The running mean and variance, (nfm, 1).

    trainable : bool
        If False, training too normalizes with the running statistics, which do not change (as in Keras).

    Raises
    ------
    ValueError
        With both ``binary`` and ``sync``.

    References
    ----------
    Ioffe and Szegedy, "Batch normalization", 2015; binary: Courbariaux et al., "Binarized neural networks", 2016.
    """

    takes_images = True

    def __init__(
        self,
        rho: float = 0.9,
        eps: float = 1e-3,
        name: str | None = None,
        binary: bool = False,
        sync: bool = False,
    ) -> None:
        super().__init__(eps, name)
        self.rho, self.binary, self.sync = check_number(f"{self.name}: rho", rho, 0, 1), binary, sync
        if binary and sync:
            raise ValueError(f"{self.name}: expected binary or sync, got both. Leave sync out.")
        self.x: Tensor | Any = None
        self.y: Tensor | Any = None
        self.xmean: Tensor | Any = None
        self.xvar: Tensor | Any = None
        self.flat_inputs: Tensor | Any = None  # the inputs of which x is a view
        self.count = 0  # columns of the minibatch of all processes
        self.allparams: Any = None  # beta, gamma, gmean, gvar; None after a change of inputs

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.nfm = self.in_shape if isinstance(self.in_shape, int) else self.in_shape[0]
        return self

    @property
    def is_expression(self) -> bool:
        """Whether the outputs are an op-tree of the inputs; not if several processes compute the statistics."""
        return super().is_expression and not (self.sync and self.be.shard is not None)

    # --- buffers ---

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        self.flat_inputs = None  # outputs and batch size may have changed

    def allocate_parameters(self) -> None:
        super().allocate_parameters()
        if self.gmean is None or self.xmean is None:
            self.init_params(self.nfm)

    def init_params(self, nfm: int) -> None:
        """Allocate the statistics unless they exist, and set ``allparams``."""
        super().init_params(nfm)
        if self.xmean is None:
            self.xmean, self.xvar = (self.be.zeros((nfm, 1), name=f"{self.name}.{x}") for x in ("xmean", "xvar"))
        self.allparams = [self.beta, self.gamma, self.gmean, self.gvar]

    def init_buffers(self, inputs: Tensor) -> None:
        """Set the inputs of a training pass, and the views ``x`` and ``y`` of inputs and outputs.

        Parameters
        ----------
        inputs : Tensor
            The argument of ``fprop``.
        """
        if inputs is not self.flat_inputs:
            self.x, self.y = inputs.reshape(self.nfm, -1), self.outputs.reshape(self.nfm, -1)
            self.allparams = None
            self.inputs = self.flat_inputs = inputs
        self.deltas = None  # the bprop in neon's guide would reuse them as a view of the error

    # --- forward and backward pass ---

    def formula(self, x: Tensor) -> Operand:
        """Return the outputs, normalized with the statistics of the minibatch; if frozen, with the running ones."""
        if not self._trainable:
            return self.inference_formula(x)
        normalize = self.be.shift_batch_norm if self.binary else self.be.batch_norm
        return self.be.reshape(normalize(self.channels(x), self.gamma, self.beta, eps=self.eps), x.shape)

    def channels(self, x: Operand) -> Operand:
        """Return the inputs with the features along the first axis.

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The inputs.
        """
        return x if x.ndim > 2 else self.be.reshape(x, self.nfm, -1)

    def statistics(self, x: Operand) -> tuple[Operand, Operand]:
        """Return the mean and the variance of each feature, (nfm, 1).

        Parameters
        ----------
        x : Tensor or OpTreeNode
            The inputs.
        """
        be, x = self.be, self.channels(x)
        axes = tuple(range(1, x.ndim))
        mean, var = be.mean(x, axis=axes), be.var(x, axis=axes, binary=self.binary)
        return be.reshape(mean, self.nfm, 1), be.reshape(var, self.nfm, 1)

    def training_formula(self, x: Operand) -> Operand:
        """Return the outputs, normalized with the statistics of the minibatch, to which the running ones are moved."""
        if self._trainable:
            rho, (mean, var) = self.rho, self.statistics(x)
            values = [rho * self.gmean + (1 - rho) * mean, rho * self.gvar + (1 - rho) * var]
            self.be.assign([self.gmean, self.gvar], values)
        return self.formula(x)  # type: ignore[arg-type]

    def inference_formula(self, x: Tensor) -> Operand:
        """Return the outputs, normalized with the running statistics."""
        return self.normalize(x, self.gmean, self.gvar)

    def normalize(self, x: Operand, mean: Operand, var: Operand) -> Operand:
        """Return the outputs, given mean and variance.

        Parameters
        ----------
        x : Tensor
            The inputs.
        mean, var : Tensor or OpTreeNode
            The statistics, (nfm, 1).
        """
        be, multiply, inputs = self.be, self.be.shift if self.binary else self.be.multiply, self.channels(x)
        to = (self.nfm, *(1,) * (inputs.ndim - 1))
        mean, scale, gamma, beta = (
            be.reshape(v, to) for v in (mean, 1 / be.sqrt(var + self.eps), self.gamma, self.beta)
        )
        return be.reshape(multiply(multiply(inputs - mean, scale), gamma) + beta, x.shape)

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        """Compute the outputs; in training also update the running statistics, unless the layer is frozen."""
        shard = self.be.minibatch_shard
        if inference or shard is None or not (self.sync and self._trainable):
            return super().fprop(inputs, inference, beta)
        self.set_inputs(inputs, inference)
        self.init_buffers(inputs)
        self._fprop_sync(shard, beta)
        return self.outputs

    # --- several processes ---

    def _sum_over_processes(self, shard: Shard, *trees: Operand) -> Tensor:
        """Return the sums over all processes of op-trees (nfm, 1), as columns (nfm, n)."""
        sums = self.be.empty((self.nfm, len(trees)))
        self.be.assign([sums[:, k : k + 1] for k in range(len(trees))], list(trees))
        result: Tensor = shard.communicator.all_reduce(sums, bool(self.be.deterministic))
        return result

    def _fprop_sync(self, shard: Shard, accumbeta: float) -> None:
        """Compute the outputs with the statistics of the minibatch of all processes; update the running ones."""
        be, rho, x = self.be, self.rho, self.x
        self.count = x.shape[1] * shard.total // (shard.stop - shard.start)
        self.xmean[:] = self._sum_over_processes(shard, be.sum(x, axis=1)) / self.count
        self.xvar[:] = self._sum_over_processes(shard, be.sum(be.square(x - self.xmean), axis=1)) / self.count
        means = rho * self.gmean + (1 - rho) * self.xmean, rho * self.gvar + (1 - rho) * self.xvar
        be.assign([self.gmean, self.gvar], means)
        y = (x - self.xmean) * (self.gamma / be.sqrt(self.xvar + self.eps)) + self.beta
        self.y[:] = y + accumbeta * self.y if accumbeta else y

    def _bprop_sync(self, shard: Shard, error: Tensor, target: Tensor) -> None:
        """Compute the gradients of this process, and the derivative by the inputs for the statistics of all."""
        be = self.be
        scale = 1 / be.sqrt(self.xvar + self.eps)
        xhat = (self.x - self.xmean) * scale
        be.assign([self.grad_beta, self.grad_gamma], [be.sum(error, axis=1), be.sum(error * xhat, axis=1)])
        sums = self._sum_over_processes(shard, self.grad_beta, self.grad_gamma)
        target[:] = self.gamma * scale * (error - sums[:, :1] / self.count - xhat * (sums[:, 1:] / self.count))

    @accumulates
    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Compute the gradients of beta and gamma, and ``deltas = alpha dE/dinputs + beta deltas``."""
        shard = self.be.minibatch_shard
        if self.tree is not None or shard is None or not (self.sync and self._trainable):
            return super().bprop(error, alpha, beta)
        self.check_error(error)
        if self.deltas is None:
            self.allocate_deltas()
        target = self.be.empty_like(error)
        self._bprop_sync(shard, error.reshape(self.nfm, -1), target.reshape(self.nfm, -1))
        if self.deltas is not None:
            self.deltas[:] = alpha * target + beta * self.deltas if beta else alpha * target
        return self.deltas

    def _fprop_inference(self, inputs: Tensor, beta: float = 0.0) -> Tensor:
        """Compute the outputs with the running statistics, as a subclass in neon's guide does."""
        return super().fprop(inputs, True, beta)


class BatchNormAutodiff(BatchNorm):
    """``BatchNorm`` with other defaults.

    Parameters
    ----------
    rho, eps, name
        As for ``BatchNorm``.
    """

    def __init__(self, rho: float = 0.99, eps: float = 1e-6, name: str | None = None) -> None:
        super().__init__(rho, eps, name)


class ShiftBatchNorm(BatchNorm):
    """Shift-based batch normalization: ``BatchNorm`` with ``binary=True``.

    Parameters
    ----------
    rho, eps, name
        As for ``BatchNorm``.
    """

    def __init__(self, rho: float = 0.99, eps: float = 1e-6, name: str | None = None) -> None:
        super().__init__(rho, eps, name, binary=True)


class LayerNorm(NormalizationBase):
    """Layer normalization, ``gamma (x - mean) / sqrt(var + eps) + beta``.

    Mean and variance are over the features of each column. Training and inference are the same.

    Parameters
    ----------
    eps : float
        Added to the variance.
    name : str, optional
        Name, unique in a network.

    References
    ----------
    Ba, Kiros and Hinton, "Layer normalization", 2016.
    """

    def __init__(self, eps: float = 1e-5, name: str | None = None) -> None:
        super().__init__(eps, name)

    def formula(self, x: Tensor) -> Operand:
        """Return the outputs."""
        return self.be.layer_norm(x, self.gamma, self.beta, axis=0, eps=self.eps)
