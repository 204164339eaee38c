"""Activation and Dropout layers."""

from __future__ import annotations

from typing import Any, Self

from neonlite.backend import Tensor
from neonlite.backend.builtin_classes import is_builtin
from neonlite.backend.shard import draw_minibatch_mask
from neonlite.backend.validation import check_number, from_name, instance, integer
from neonlite.layers import layer_checks
from neonlite.layers.buffers import num_steps
from neonlite.layers.layer import Layer
from neonlite.layers.types import ActivationLike, LayerInput
from neonlite.optree import Operand
from neonlite.transforms import Transform
from neonlite.transforms.activation import ACTIVATIONS


def check_activation(where: str, value: object, example: str = "Rectlin()") -> Transform:
    """Return a transform, a new one for the name of one; TypeError or ValueError for anything else."""
    transform = from_name(where, value, ACTIVATIONS)
    return instance(where, transform, Transform, f"a transform, such as {example},")


class Activation(Layer):
    """An activation, ``f(x)``: a transform f applied to each element or, as for Softmax, along an axis.

    In a network, the outputs overwrite the inputs if the derivative of f can be computed from the outputs alone. If the
    cost is the one that f is paired with, such as CrossEntropyMulti with Softmax, the cost computes the gradient with
    respect to the inputs of this layer, and ``bprop`` does not multiply by the derivative of f (``shortcut``).

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
        self.in_place = self.transform.has_grad_from_output
        self.shortcut = False

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.transform.be = self.be
        self.shortcut = False  # set by the cost if this is the last layer
        if (axis := getattr(self.transform, "axis", None)) is not None:
            integer(f"{self.name}: axis of {self.transform.classnm}", axis, -2, 1)  # outputs have two axes
        self.out_shape = self.in_shape
        return self

    def formula(self, x: Tensor) -> Operand:
        """Return ``f(x)``."""
        return self.transform(x)

    def formula_constants(self) -> tuple[object, ...] | None:
        if is_builtin(type(self.transform)) and type(self).formula is Activation.formula:
            return self.transform, *vars(self.transform).values()
        return None  # a custom transform may read other objects

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Compute ``deltas = alpha f'(x) error + beta deltas``."""
        self.check_error(error)
        if not self.owns_delta:
            self.deltas = error
        if self.deltas is not None:
            constants = self.formula_constants()
            if constants is None:
                self.be.assign(*self.build_backward(error, alpha, beta))
            else:
                operands = error, self.outputs, self.inputs, self.deltas, self.shortcut, alpha, beta, *constants
                self.bprop_assignment(self.be, operands, lambda: self.build_backward(error, alpha, beta))
        return self.deltas

    def build_backward(self, error: Tensor, alpha: float, beta: float) -> tuple[list[Tensor], list[Operand]]:
        if not (self.owns_output or self.shortcut or self.transform.has_grad_from_output):
            raise ValueError(
                f"{self.name}: expected a transform whose derivative can be computed from the outputs, which overwrite "
                f"the inputs, got {self.transform!r}. Create the layer with it."
            )
        delta = error if self.shortcut else self.transform.backward(error, self.outputs, self.inputs)
        delta = self.scale_deltas(delta, alpha, beta)
        layer_checks.check_no_random_numbers(self, [delta])
        return ([], []) if delta is self.deltas else ([self.deltas], [delta])


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
    in_place = True
    needs_outputs = False

    def __init__(self, keep: float | None = None, name: str | None = None, dropout: float | None = None) -> None:
        super().__init__(name)
        self.keep = keep_probability(self.name, keep, dropout, 0.5)
        self.mask: Tensor | Any = None

    def configure(self, in_obj: LayerInput) -> Self:
        super().configure(in_obj)
        self.out_shape = self.in_shape
        caffe = self.be.check_caffe_compat()
        self.train_scale, self.inference_scale = (1 / self.keep, 1.0) if caffe else (1.0, self.keep)
        return self

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        self.mask = self.buffer("mask", self.out_shape)

    def formula(self, x: Tensor) -> Operand:
        """Return ``x mask``, scaled."""
        return x * self.mask if self.train_scale == 1 else x * self.mask * self.train_scale

    def inference_formula(self, x: Tensor) -> Operand:
        """Return x, scaled."""
        return x * self.inference_scale

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        """Draw a new mask if training, and compute the outputs."""
        if not inference and self.mask is not None:
            draw_minibatch_mask(self.be, self.mask, self.keep, (-1, num_steps(self.out_shape), self.be.bsz), axis=2)
        return super().fprop(inputs, inference, beta)


def keep_probability(where: str, keep: float | None, dropout: float | None, default: float) -> float:
    """Return the probability of keeping an element; TypeError if both it and the one of dropping it are given."""
    if dropout is None:
        return check_number(f"{where}: keep", default if keep is None else keep, above=0, at_most=1)
    if keep is not None:
        raise TypeError(
            f"{where}: expected keep or dropout, got {keep=} and {dropout=}. Pass one of them: dropout is 1 - keep."
        )
    return 1 - check_number(f"{where}: dropout", dropout, 0, 1)
