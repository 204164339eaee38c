"""What are the layers of a fully connected network?  A product with weights, a bias, and both with an activation."""

from __future__ import annotations

from typing import Any

from neonlite.layers.buffers import features
from neonlite.layers.layer import accumulates
from neonlite.layers.parameter import ParameterLayer


class Linear(ParameterLayer):
    """``W x``, for x (nin, N) and W (nout, nin); of time steps (nin, T) each one.

    With ``bsum``, ``batch_sum`` (nout, 1) takes the sums of the outputs' rows.
    """

    reads_columns = True
    reads_outputs = False

    def __init__(
        self, nout: int, init: Any, bsum: bool = False, name: str | None = None, parallelism: str = "Disabled"
    ) -> None:
        super().__init__(init, name, parallelism)
        if isinstance(nout, bool) or not isinstance(nout, int) or nout < 1:
            raise ValueError(f"{self.name}: nout, the number of outputs, is a whole number from 1; got {nout!r}")
        self.nout, self.bsum = nout, bsum
        self.batch_sum: Any = None
        self.turned: dict[str, tuple[Any, Any]] = {}  # tensors and their transposes

    def configure(self, in_obj: Any) -> Linear:
        """Take the inputs' shape: any of F features, or (F, T) with time steps."""
        super().configure(in_obj)
        steps = self.in_shape[1:] if isinstance(self.in_shape, tuple) and len(self.in_shape) == 2 else ()
        self.nin = features(self.in_shape)
        self.out_shape = (self.nout, *steps) if steps else self.nout
        self.weight_shape = (self.nout, self.nin)
        return self

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Make the buffers."""
        super().allocate(shared_outputs, accumulate_updates)
        if self.bsum and self.batch_sum is None:
            self.batch_sum = self.be.zeros((self.nout, 1), name=f"{self.name}.batch_sum")

    def formula(self, x: Any) -> Any:
        """Return ``W x``."""
        return self.be.dot(self.W, x)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute ``W x + beta outputs``."""
        self.prepare(inputs, inference)
        return self.be.compound_dot(self.W, inputs, self.outputs, beta=beta, bsum=self.batch_sum)

    @accumulates
    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute ``dW = error x^T`` and ``deltas = alpha W^T error + beta deltas``."""
        self.check_error(error)
        self.be.compound_dot(error, self.transposed("inputs", self.inputs), self.dW)
        if self.deltas is not None:
            self.be.compound_dot(self.transposed("W", self.W), error, self.deltas, alpha=alpha, beta=beta)
        return self.deltas

    def transposed(self, name: str, x: Any) -> Any:
        """Return ``x.T``, which is kept as long as x is the same tensor."""
        if name not in self.turned or self.turned[name][0] is not x:
            self.turned[name] = x, x.T
        return self.turned[name][1]


class Bias(ParameterLayer):
    """``x + b``, with one b for each feature, or for each map of images (C, H, W)."""

    in_place = True
    reads_outputs = False

    def __init__(self, init: Any, name: str | None = None) -> None:
        super().__init__(init, name)

    def configure(self, in_obj: Any) -> Bias:
        """Take the inputs' shape, which is the outputs' as well."""
        super().configure(in_obj)
        self.out_shape = self.in_shape
        self.maps = self.in_shape if isinstance(self.in_shape, int) else self.in_shape[0]
        self.weight_shape = (self.maps, 1)
        return self

    def formula(self, x: Any) -> Any:
        """Return ``x + b``."""
        return self.be.reshape(self.be.reshape(x, self.maps, -1) + self.W, x.shape)
