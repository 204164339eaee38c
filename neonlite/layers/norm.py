"""Batch normalization and layer normalization layers."""

from __future__ import annotations

from typing import Any, Self

from neonlite.backend import Tensor, batch_size, validation
from neonlite.initializers import Constant
from neonlite.layers import buffers, weights
from neonlite.layers.layer import LayerInput
from neonlite.layers.parameter import ParameterLayer, ParameterSpec, TensorAttribute
from neonlite.optree import Operand


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
        self.eps = validation.check_number(f"{self.name}: eps", eps, 0, 1)
        self.nfm = 0

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        self.nfm = buffers.num_features(self.in_shape)
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
        self, rho: float = 0.9, eps: float = 1e-3, name: str | None = None, binary: bool = False, sync: bool = False
    ) -> None:
        super().__init__(eps, name)
        self.rho, self.binary, self.sync = validation.check_number(f"{self.name}: rho", rho, 0, 1), binary, sync
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
        self.nfm = buffers.num_channels(self.in_shape)
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

    def _sum_over_processes(self, shard: batch_size.Shard, *trees: Operand) -> Tensor:
        """Return the sums over all processes of op-trees (nfm, 1), as columns (nfm, n)."""
        sums = self.be.empty((self.nfm, len(trees)))
        self.be.assign([sums[:, k : k + 1] for k in range(len(trees))], list(trees))
        result: Tensor = shard.communicator.all_reduce(sums, bool(self.be.deterministic))
        return result

    def _fprop_sync(self, shard: batch_size.Shard, accumbeta: float) -> None:
        """Compute the outputs with the statistics of the minibatch of all processes; update the running ones."""
        be, rho, x = self.be, self.rho, self.x
        self.count = x.shape[1] * shard.total // (shard.stop - shard.start)
        self.xmean[:] = self._sum_over_processes(shard, be.sum(x, axis=1)) / self.count
        self.xvar[:] = self._sum_over_processes(shard, be.sum(be.square(x - self.xmean), axis=1)) / self.count
        means = rho * self.gmean + (1 - rho) * self.xmean, rho * self.gvar + (1 - rho) * self.xvar
        be.assign([self.gmean, self.gvar], means)
        y = (x - self.xmean) * (self.gamma / be.sqrt(self.xvar + self.eps)) + self.beta
        self.y[:] = y + accumbeta * self.y if accumbeta else y

    def _bprop_sync(self, shard: batch_size.Shard, error: Tensor, target: Tensor) -> None:
        """Compute the gradients of this process, and the derivative by the inputs for the statistics of all."""
        be = self.be
        scale = 1 / be.sqrt(self.xvar + self.eps)
        xhat = (self.x - self.xmean) * scale
        be.assign([self.grad_beta, self.grad_gamma], [be.sum(error, axis=1), be.sum(error * xhat, axis=1)])
        sums = self._sum_over_processes(shard, self.grad_beta, self.grad_gamma)
        target[:] = self.gamma * scale * (error - sums[:, :1] / self.count - xhat * (sums[:, 1:] / self.count))

    @weights.accumulates
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
