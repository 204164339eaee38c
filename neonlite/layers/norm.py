"""Which layers keep numbers in a good range?  Those that take off the mean and divide by the deviation."""

from __future__ import annotations

from typing import Any

from neonlite.backend import Tensor
from neonlite.backend.numbers import number
from neonlite.initializers import Constant
from neonlite.layers.buffers import features
from neonlite.layers.layer import Layer, accumulates
from neonlite.layers.parameter import Learned, ParameterLayer, Slot


class Normalization(ParameterLayer):
    """``gamma xhat + beta``, with one gamma and one beta for each of ``nfm`` features; beta comes first in files."""

    reads_outputs = False
    beta, gamma = Learned(), Learned()
    grad_beta, grad_gamma = Learned(), Learned()

    def __init__(self, eps: float, name: str | None = None) -> None:
        super().__init__(None, name)
        self.eps = number(f"{self.name}: eps", eps, low=0)
        self.nfm = 0

    def configure(self, in_obj: Any) -> Normalization:
        """Take the inputs' shape, which is the outputs' as well."""
        super().configure(in_obj)
        self.out_shape = self.in_shape
        self.nfm = features(self.in_shape)
        return self

    def slots(self) -> list[Slot]:
        """Return beta, which begins with 0, and gamma, which begins with 1."""
        shape = (self.nfm, 1)
        return [Slot("beta", "grad_beta", shape, Constant(0)), Slot("gamma", "grad_gamma", shape, Constant(1))]


class BatchNorm(Normalization):
    """``gamma (x - mean) / sqrt(var + eps) + beta``, with the mean and the population variance of the minibatch.

    One of each for a map of images (C, H, W), over all places and columns; for a feature of F or (F, T), over all
    columns. ``gmean = rho gmean + (1 - rho) mean``, and gvar alike, stand in for them at inference; both begin with 0.
    ``x`` and ``y`` are the inputs and outputs as (nfm, columns). ``binary``: every product by a power of two.

    Source: Ioffe and Szegedy 2015; binary: Courbariaux et al. 2016.
    """

    gmean, gvar = Learned(), Learned()

    def __init__(self, rho: float = 0.9, eps: float = 1e-3, name: str | None = None, binary: bool = False) -> None:
        super().__init__(eps, name)
        if not 0 <= number(f"{self.name}: rho", rho) <= 1:
            raise ValueError(f"{self.name}: rho, the part of the running mean that stays, is 0 to 1; got {rho!r}")
        self.rho, self.binary = rho, binary
        self.x: Any = None
        self.y: Any = None
        self.xmean: Any = None
        self.xvar: Any = None
        self.wide: Any = None  # the inputs that x shows
        self.own_deltas: Any = None
        self.spare: Any = None
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}  # tensors, and what they are as (nfm, columns)
        self.allparams: Any = None  # beta, gamma, gmean, gvar; None when the inputs are others than before

    def configure(self, in_obj: Any) -> BatchNorm:
        """Take the inputs' shape, which is the outputs' as well."""
        super().configure(in_obj)
        self.nfm = self.in_shape if isinstance(self.in_shape, int) else self.in_shape[0]
        return self

    # --- buffers ---

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Make the buffers of the outputs, and those of the parameters and statistics unless they are there."""
        super().allocate(shared_outputs, accumulate_updates)
        self.init_params(self.nfm)
        self.wide = self.spare = None  # y is to show the new outputs, and the batch may have another size
        self.seen = {}

    def init_params(self, nfm: int) -> None:
        """Make the statistics of ``nfm`` features, unless they are there, and list them with the parameters."""
        if self.gmean is None:
            for name in ("gmean", "gvar", "xmean", "xvar"):
                setattr(self, name, self.be.zeros((nfm, 1), name=f"{self.name}.{name}"))
        self.allparams = [self.beta, self.gamma, self.gmean, self.gvar]

    def init_buffers(self, inputs: Any) -> None:
        """Take inputs for training: see them and the outputs as (nfm, columns), and begin anew where they are new."""
        if inputs is not self.wide:
            self.inputs = self.wide = inputs
            self.x, self.y = inputs.reshape(self.nfm, -1), self.outputs.reshape(self.nfm, -1)
            self.allparams = None
        self.deltas = None  # a bprop such as the guide's takes them for a view of the error of last time

    def allocate_deltas(self, global_deltas: Tensor | None = None) -> None:
        """Make the buffer of the deltas, or take a shared one; a first layer needs none."""
        super().allocate_deltas(global_deltas)
        self.own_deltas = self.deltas

    @property
    def stored(self) -> dict[str, Any]:
        """What a file keeps of this layer, tensors by name: the parameters, and the running statistics."""
        return {**super().stored, "gmean": self.gmean, "gvar": self.gvar}

    # --- forward and back ---

    def formula(self, x: Any) -> Any:
        """Return the outputs by the statistics of the minibatch."""
        be, wide = self.be, self.be.reshape(x, self.nfm, -1)
        return self.normalized(x, be.mean(wide, axis=1), be.var(wide, axis=1, binary=self.binary))

    def inference_formula(self, x: Any) -> Any:
        """Return the outputs by the running statistics."""
        return self.normalized(x, self.gmean, self.gvar)

    def normalized(self, x: Any, mean: Any, var: Any) -> Any:
        """Return the outputs by a given mean and variance."""
        be, times = self.be, self.be.shift if self.binary else self.be.multiply
        xhat = times(be.reshape(x, self.nfm, -1) - mean, 1 / be.sqrt(var + self.eps))
        return be.reshape(times(xhat, self.gamma) + self.beta, x.shape)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs, plus ``beta`` times what they were; in training the running statistics as well."""
        self.prepare(inputs, inference)
        if inference:
            return self._fprop_inference(inputs, beta)
        self.init_buffers(inputs)
        self._normalize(self.x, self.y, beta)
        return self.outputs

    def _fprop_inference(self, inputs: Any, beta: float = 0.0) -> Any:
        """Compute the outputs by the running statistics."""
        self._normalize(inputs.reshape(self.nfm, -1), self.outputs.reshape(self.nfm, -1), beta, inference=True)
        return self.outputs

    def _normalize(self, x: Any, y: Any, accumbeta: float, inference: bool = False) -> None:
        self.be.compound_fprop_bn(
            x,
            self.xmean,
            self.xvar,
            self.gmean,
            self.gvar,
            self.gamma,
            self.beta,
            y,
            self.eps,
            self.rho,
            accumbeta=accumbeta,
            binary=self.binary,
            inference=inference,
            layer=self,
        )

    def _by_feature(self, name: str, x: Tensor) -> Tensor:
        """Return a tensor as (nfm, columns): the same one for the same tensor as the last time."""
        if self.seen.get(name, (None,))[0] is not x:
            self.seen[name] = x, x.reshape(self.nfm, -1)
        wide: Tensor = self.seen[name][1]
        return wide

    @accumulates
    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute the gradients of beta and gamma, and ``deltas = alpha dE/dinputs + beta deltas``."""
        self.check_error(error)
        self.deltas = target = self.own_deltas if self.owns_delta else error
        if target is None or beta:
            if self.spare is None:
                self.spare = self.be.empty_like(error, name=f"{self.name}.spare")
            target = self.spare
        self.be.compound_bprop_bn(
            self._by_feature("target", target),
            self.grad_gamma,
            self.grad_beta,
            self._by_feature("error", error),
            self.x,
            self.xmean,
            self.xvar,
            self.gamma,
            self.eps,
            self.binary,
            layer=self,
        )
        if self.deltas is not None and (alpha != 1 or beta):
            self.deltas[:] = self.scaled(target, alpha, beta)
        return self.deltas


class BatchNormAutodiff(BatchNorm):
    """BatchNorm with a derivative that follows from its formula."""

    def __init__(self, rho: float = 0.99, eps: float = 1e-6, name: str | None = None) -> None:
        super().__init__(rho, eps, name)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs by the formula, and in training the running statistics."""
        self.prepare(inputs, inference)
        if inference:
            return self._fprop_inference(inputs, beta)
        self.init_buffers(inputs)
        be, rho = self.be, self.rho
        be.assign([self.xmean, self.xvar], [be.mean(self.x, axis=1), be.var(self.x, axis=1)])
        self.gmean = rho * self.gmean + (1 - rho) * self.xmean
        self.gvar = rho * self.gvar + (1 - rho) * self.xvar
        return Layer.fprop(self, inputs, beta=beta)

    @accumulates
    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute the gradients and the deltas by Autodiff."""
        self.deltas = self.own_deltas
        return Layer.bprop(self, error, alpha, beta)


class ShiftBatchNorm(BatchNorm):
    """BatchNorm with every product by a power of two."""

    def __init__(self, rho: float = 0.99, eps: float = 1e-6, name: str | None = None) -> None:
        super().__init__(rho, eps, name, binary=True)


class LayerNorm(Normalization):
    """``gamma (x - mean) / sqrt(var + eps) + beta``, with the mean and variance of the features of each column.

    Training and inference are the same. Source: Ba, Kiros and Hinton 2016.
    """

    def __init__(self, eps: float = 1e-5, name: str | None = None) -> None:
        super().__init__(eps, name)

    def formula(self, x: Any) -> Any:
        """Return the outputs."""
        d = x - self.be.mean(x, axis=0)
        return d / self.be.sqrt(self.be.mean(self.be.square(d), axis=0) + self.eps) * self.gamma + self.beta
