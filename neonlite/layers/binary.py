"""BinaryLinear: a linear layer with weights binarized to +1 and -1 (straight-through gradients)."""

from __future__ import annotations

from typing import Any, Self

from neonlite.backend import Tensor
from neonlite.layers.accumulation import accumulates
from neonlite.layers.layer import Layer
from neonlite.layers.linear import Linear
from neonlite.layers.shape import PassThrough
from neonlite.layers.types import InitLike, LayerInput
from neonlite.optree import Operand
from neonlite.transforms import Sign


class BinaryLinear(Linear):
    """``sign(W) x``, for inputs (nin, N) and weights (nout, nin); the sign of 0 is +1.

    W is real-valued. The derivative of sign is 0, so ``dW = error x^T`` is the gradient with respect to sign(W) instead
    (straight-through estimator). ``deltas = sign(W)^T error``. Only the signs of W affect the outputs, so clip W to
    [-1, 1]: use ``ShiftAdaMax``, or ``param_clip_value=1`` of other optimizers. After a ``Sign`` activation the inputs
    are binary as well, and the product is computed with ``xnor_compound_dot``.

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

    def __init__(
        self,
        nout: int,
        init: InitLike | None = None,
        bsum: bool = False,
        name: str | None = None,
        parallelism: str = "Disabled",
    ) -> None:
        super().__init__(nout, init, bsum, name, parallelism)
        self.binary_W: Tensor | Any = None  # the signs of W at the last fprop
        self.binary_inputs = False  # whether the inputs are +1 and -1

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.binary_inputs = has_binary_outputs(in_obj)
        return self

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        if self.binary_W is None:
            self.binary_W = self.be.zeros(self.weight_shape, name=f"{self.name}.binary_W")

    def formula(self, x: Tensor) -> Operand:
        """Return ``sign(W) x``, with the derivative of sign(W) with respect to W set to 1."""
        be, W = self.be, self.W
        straight_through = W - be.stop_gradient(W)  # 0, with derivative 1
        return be.dot(be.binarize(W, stochastic=False) + straight_through, x)

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        """Compute ``sign(W) x + beta outputs``."""
        self.set_inputs(inputs, inference)
        self.binary_W[:] = self.be.binarize(self.W, stochastic=False)
        product = self.be.xnor_compound_dot if self.binary_inputs else self.be.compound_dot
        return product(self.binary_W, inputs, self.outputs, beta=beta, bsum=self.batch_sum)

    @accumulates
    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Compute ``dW = error x^T`` and ``deltas = alpha sign(W)^T error + beta deltas``."""
        self.check_error(error)
        self.be.compound_dot(error, self.inputs.T, self.dW)
        if self.deltas is not None:
            self.be.compound_dot(self.binary_W.T, error, self.deltas, alpha=alpha, beta=beta)
        return self.deltas


def has_binary_outputs(layer: LayerInput | None) -> bool:
    """Return whether the outputs of a layer are those of a ``Sign`` activation, possibly reshaped."""
    last = layer.get_terminal() if isinstance(layer, Layer) else None
    if isinstance(last, PassThrough):
        return has_binary_outputs(last.prev_layer)
    return isinstance(getattr(last, "transform", None), Sign)
