"""Which layers have no weights and keep the shape?  Activations, and dropout."""

from __future__ import annotations

from typing import Any

from neonlite.backend.numbers import number
from neonlite.layers.layer import Layer
from neonlite.transforms import Transform


class Activation(Layer):
    """``f(x)`` for a transform f, element by element, or along an axis as softmax.

    Inside a network it writes over its inputs where its derivative can be told from the outputs alone. Under the cost
    that its transform is paired with, the error that comes is that of the inputs already (``shortcut``).
    """

    def __init__(self, transform: Transform, name: str | None = None) -> None:
        super().__init__(name)
        if not isinstance(transform, Transform):
            raise TypeError(f"{self.name}: an activation is made with a transform such as Rectlin(); got {transform!r}")
        self.transform = transform
        self.in_place = transform.from_output
        self.shortcut = False

    def configure(self, in_obj: Any) -> Activation:
        """Take the inputs' shape, which is the outputs' as well."""
        super().configure(in_obj)
        self.transform.be = self.be
        self.shortcut = False  # until a cost says otherwise: this may not be the last layer any more
        self.out_shape = self.in_shape
        return self

    def formula(self, x: Any) -> Any:
        """Return ``f(x)``."""
        return self.transform(x)

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute ``deltas = alpha f'(x) error + beta deltas``."""
        self.check_error(error)
        if not self.owns_delta:
            self.deltas = error
        if self.deltas is not None:
            operands = error, self.outputs, self.inputs, self.deltas, self.transform, self.shortcut, alpha, beta
            if type(self.transform).__module__.startswith("neonlite."):
                known = operands + tuple(vars(self.transform).values())
                self.bprop_habit(self.be, known, lambda: self.way_back(error, alpha, beta))
            else:  # what others do on the way back may change each time
                self.be.assign(*self.way_back(error, alpha, beta))
        return self.deltas

    def way_back(self, error: Any, alpha: float, beta: float) -> tuple[list[Any], list[Any]]:
        """Return what bprop writes to, and the op-tree of what it writes there."""
        delta = error if self.shortcut else self.transform.backward(error, self.outputs, self.inputs)
        delta = self.scaled(delta, alpha, beta)
        return ([], []) if delta is self.deltas else ([self.deltas], [delta])


class Dropout(Layer):
    """``x mask``, a new random mask of ones and zeros each time, with ones for the fraction ``keep``.

    For inference it is ``x keep``. In Caffe mode it is ``x mask / keep``, and for inference x.

    Source: Srivastava et al. 2014.
    """

    in_place = True
    reads_outputs = False

    def __init__(self, keep: float = 0.5, name: str | None = None) -> None:
        super().__init__(name)
        self.keep = number(f"{self.name}: keep", keep)
        if not 0 < self.keep <= 1:
            raise ValueError(f"{self.name}: keep, the fraction that stays, is above 0 and at most 1; got {keep!r}")
        self.mask: Any = None

    def configure(self, in_obj: Any) -> Dropout:
        """Take the inputs' shape, which is the outputs' as well."""
        super().configure(in_obj)
        self.out_shape = self.in_shape
        caffe = self.be.check_caffe_compat()
        self.train_scale, self.inference_scale = (1 / self.keep, 1.0) if caffe else (1.0, self.keep)
        return self

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Make the buffers of the outputs and of the mask."""
        super().allocate(shared_outputs)
        self.mask = self.buffer("mask", self.out_shape)

    def formula(self, x: Any) -> Any:
        """Return ``x mask``, scaled."""
        return x * self.mask if self.train_scale == 1 else x * self.mask * self.train_scale

    def inference_formula(self, x: Any) -> Any:
        """Return x, scaled."""
        return x * self.inference_scale

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Draw a mask, and compute the outputs."""
        if not inference and self.mask is not None:
            self.be.make_binary_mask(self.mask, self.keep)
        return super().fprop(inputs, inference, beta)
