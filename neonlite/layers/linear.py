"""Linear and Bias layers."""

from __future__ import annotations

from typing import Any, Self

from neonlite.backend import Tensor
from neonlite.backend.validation import integer
from neonlite.initializers import Constant, GlorotUniform
from neonlite.layers.accumulation import accumulates
from neonlite.layers.buffers import num_features
from neonlite.layers.parameter import ParameterLayer
from neonlite.layers.types import InitLike, LayerInput
from neonlite.optree import Operand


class Linear(ParameterLayer):
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

    input_layouts = ("CHWN", "columns")
    needs_outputs = False

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
        self.batch_sum: Tensor | Any = None
        self.transposes: dict[str, tuple[Tensor, Tensor]] = {}  # name -> (tensor, its transpose)

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        steps = self.in_shape[1:] if isinstance(self.in_shape, tuple) and len(self.in_shape) == 2 else ()
        self.nin = num_features(self.in_shape)
        self.out_shape = (self.nout, *steps) if steps else self.nout
        self.weight_shape = (self.nout, self.nin)
        return self

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        if self.bsum and self.batch_sum is None:
            self.batch_sum = self.be.zeros((self.nout, 1), name=f"{self.name}.batch_sum")

    def formula(self, x: Tensor) -> Operand:
        """Return ``W x``."""
        return self.be.dot(self.W, x)

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        """Compute ``W x + beta outputs``."""
        self.set_inputs(inputs, inference)
        return self.be.compound_dot(self.W, inputs, self.outputs, beta=beta, bsum=self.batch_sum)

    @accumulates
    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Compute ``dW = error x^T`` and ``deltas = alpha W^T error + beta deltas``."""
        self.check_error(error)
        if self._trainable:
            self.be.compound_dot(error, self.get_transpose("inputs", self.inputs), self.dW)
        if self.deltas is not None:
            self.be.compound_dot(self.get_transpose("W", self.W), error, self.deltas, alpha=alpha, beta=beta)
        return self.deltas

    def get_transpose(self, name: str, x: Tensor) -> Tensor:
        """Return ``x.T``, cached as long as x is the same tensor.

        Parameters
        ----------
        name : str
            Key of the cache.
        x : Tensor
            The tensor.
        """
        if name not in self.transposes or self.transposes[name][0] is not x:
            self.transposes[name] = x, x.T
        return self.transposes[name][1]


class Bias(ParameterLayer):
    """``x + b``, with one b for each feature, or for each channel of images (C, H, W).

    Parameters
    ----------
    init : Initializer, array, Tensor or str
        Initial values of b, the parameter W of this layer, (F, 1) or (C, 1); default: zeros.
    name : str, optional
        Name, unique in a network.
    """

    in_place = True
    needs_outputs = False

    def __init__(self, init: InitLike | None = None, name: str | None = None) -> None:
        super().__init__(Constant(0) if init is None else init, name)

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        self.num_channels = self.in_shape if isinstance(self.in_shape, int) else self.in_shape[0]
        self.weight_shape = (self.num_channels, 1)
        return self

    def formula(self, x: Tensor) -> Operand:
        """Return ``x + b``."""
        return self.be.reshape(self.be.reshape(x, self.num_channels, -1) + self.W, x.shape)

    def formula_constants(self) -> tuple[object, ...] | None:
        return (self.W,) if type(self).formula is Bias.formula else None
