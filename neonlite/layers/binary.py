"""Which layer multiplies by nothing but +1 and -1?  A product with the signs of its weights."""

from __future__ import annotations

from typing import Any

from neonlite.layers.layer import Layer, accumulates
from neonlite.layers.linear import Linear
from neonlite.layers.shape import Passing
from neonlite.transforms import Sign


class BinaryLinear(Linear):
    """``sign(W) x``, for x (nin, N) and W (nout, nin); the sign of 0 is +1. Behind a ``Sign`` x is +-1 as well.

    W itself are real numbers, which learn by the gradient of their signs, ``dW = error x^T``: the true derivative, 0,
    would teach nothing (straight-through). ``deltas = sign(W)^T error``. As only signs count, W is best kept within -1
    and 1, as ``ShiftAdaMax`` does, or ``param_clip_value=1`` of other optimizers.

    Source: Courbariaux et al. 2016, Binarized neural networks, algorithm 1.

    >>> import neonlite as nl
    >>> from neonlite.layers import BinaryLinear
    >>> be = nl.gen_backend("cpu", batch_size=1)
    >>> layer = BinaryLinear(1, init=be.array([[0.5, -0.25, 0.0]])).configure(3)
    >>> layer.allocate()
    >>> layer.fprop(be.array([[1.0], [2.0], [4.0]])).get()
    array([[3.]], dtype=float32)
    """

    def __init__(
        self, nout: int, init: Any, bsum: bool = False, name: str | None = None, parallelism: str = "Disabled"
    ) -> None:
        super().__init__(nout, init, bsum, name, parallelism)
        self.signs: Any = None  # of W, at the last fprop
        self.binary_inputs = False  # whether x is +-1, too

    def configure(self, in_obj: Any) -> BinaryLinear:
        """Take the inputs' shape: any of F features, or (F, T) with time steps."""
        super().configure(in_obj)
        self.binary_inputs = gives_signs(in_obj)
        return self

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Make the buffers."""
        super().allocate(shared_outputs, accumulate_updates)
        if self.signs is None:
            self.signs = self.be.zeros(self.weight_shape, name=f"{self.name}.signs")

    def formula(self, x: Any) -> Any:
        """Return ``sign(W) x``, whose derivative takes that of the signs by W for 1."""
        be, W = self.be, self.W
        through = W - be.stop_gradient(W)  # 0, with the derivative 1
        return be.dot(be.binarize(W, stochastic=False) + through, x)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute ``sign(W) x + beta outputs``."""
        self.prepare(inputs, inference)
        self.signs[:] = self.be.binarize(self.W, stochastic=False)
        product = self.be.xnor_compound_dot if self.binary_inputs else self.be.compound_dot
        return product(self.signs, inputs, self.outputs, beta=beta, bsum=self.batch_sum)

    @accumulates
    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute ``dW = error x^T`` and ``deltas = alpha sign(W)^T error + beta deltas``."""
        self.check_error(error)
        self.be.compound_dot(error, self.inputs.T, self.dW)
        if self.deltas is not None:
            self.be.compound_dot(self.signs.T, error, self.deltas, alpha=alpha, beta=beta)
        return self.deltas


def gives_signs(layer: Any) -> bool:
    """Tell whether the outputs of a layer are +1 and -1: those of ``Sign``, maybe in another shape."""
    last = layer.get_terminal() if isinstance(layer, Layer) else None
    if isinstance(last, Passing):
        return gives_signs(last.prev_layer)
    return isinstance(getattr(last, "transform", None), Sign)
