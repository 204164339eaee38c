"""Layers without parameters: Activation, Dropout, Reshape, and DataTransform, a transform of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Self, TypeAlias, TypeVar

from neonlite.backend import NervanaObject, Tensor, batch_size, objects, validation
from neonlite.layers.buffers import Operands, Trees, num_features, num_steps, plain
from neonlite.layers.layer import Layer, LayerInput
from neonlite.messages import describe
from neonlite.optree import Operand
from neonlite.transforms import Softmax, Transform, functions
from neonlite.tree_structure import note_activation


def check_activation(where: str, value: object, example: str = "Rectlin()") -> Transform:
    """Return a transform, a new one for the name of one; TypeError or ValueError for anything else."""
    transform = validation.from_name(where, value, functions.ACTIVATIONS)
    return validation.instance(where, transform, Transform, f"a transform, such as {example},")


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
            validation.integer(f"{self.name}: axis of {self.transform.classnm}", axis, -2, 1)  # outputs have two axes
        self.out_shape = self.in_shape
        return self

    @property
    def takes_images(self) -> bool:  # type: ignore[override]
        """Whether the transform is a built-in one of single elements."""
        return objects.is_builtin(type(self.transform)) and not isinstance(self.transform, Softmax)

    @property
    def is_expression(self) -> bool:
        """Whether the outputs are an op-tree of the inputs; not if f is custom and has a derivative."""
        return super().is_expression and not self.has_custom_derivative

    @property
    def has_custom_derivative(self) -> bool:
        """Whether f has a derivative that is not that of its formula: of a custom class, or of an instance."""
        f = self.transform
        return not all(
            objects.has_builtin_method(type(f), name) and name not in vars(f) for name in ("bprop", "backward")
        )

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
        drawn = batch_size.draw_samples(be, lambda n: be.random_mask((*sizes, n), keep=keep), x.shape[-1] // T)
        mask = be.reshape(drawn, x.shape)
        return x * mask if self.train_scale == 1 else x * mask * self.train_scale

    def inference_formula(self, x: Tensor) -> Operand:
        """Return x, scaled."""
        return x * self.inference_scale


def keep_probability(where: str, keep: float | None, dropout: float | None, default: float) -> float:
    """Return the probability of keeping an element; TypeError if both it and the one of dropping it are given."""
    if dropout is None:
        return validation.check_number(f"{where}: keep", default if keep is None else keep, above=0, at_most=1)
    if keep is not None:
        raise TypeError(
            f"{where}: expected keep or dropout, got {keep=} and {dropout=}. Pass one of them: dropout is 1 - keep."
        )
    return 1 - validation.check_number(f"{where}: dropout", dropout, 0, 1)


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
        self.transform = validation.function(f"{self.name}: transform", transform, "a function of the data")

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
