"""Reshape and DataTransform layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Self, TypeVar

from neonlite.backend import NervanaObject, Tensor
from neonlite.backend.validation import function
from neonlite.layers.buffers import iobuf_shape, num_features, plain
from neonlite.layers.layer import Layer
from neonlite.layers.types import LayerInput, LayerShape
from neonlite.messages import describe
from neonlite.optree import Operand

Data = TypeVar("Data")
Result = TypeVar("Result")


class PassThrough(Layer):
    """Base class of layers whose outputs and deltas are views of their inputs and errors. Subclasses set ``out_shape``.

    Parameters
    ----------
    name : str, optional
        Name, unique in a network.
    """

    in_place = returns_error = True

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.output_buffer: Tensor | Any = None  # set if the outputs are a copy of the inputs
        self.last_error: Tensor | Any = None
        self.input_view: Tensor | Any = None
        self.error_view: Tensor | Any = None

    @property
    def needs_outputs(self) -> bool:  # type: ignore[override]
        """Whether later layers must not overwrite the outputs, which are the inputs of this layer."""
        return self.owns_output

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Use ``shared_outputs``, into which inputs are copied; without it nothing is allocated."""
        self.check_accumulation(accumulate_updates)
        self.output_buffer = (
            None if shared_outputs is None else self.buffer("outputs", self.out_shape, shared=shared_outputs)
        )

    def formula(self, x: Tensor) -> Operand:
        """Return x in the shape of the outputs."""
        return self.be.reshape(x, num_features(self.out_shape), -1)

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        """Return the inputs, plus ``beta outputs``."""
        self.check_tensor("inputs", inputs, self.in_shape)
        if inputs is not self.inputs:  # else keep the view: the next layer caches its op-tree
            self.inputs, self.input_view = inputs, self.reshape_buffer(inputs, self.in_shape, self.out_shape)
        if beta:
            self.output_buffer = self.output_buffer or self.buffer("outputs", self.out_shape)
            self.output_buffer[:] = self.input_view + beta * (self.outputs or 0)
        elif self.output_buffer is not None:
            self.output_buffer[:] = self.input_view
        self.outputs = self.output_buffer or self.input_view
        return self.outputs

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Return the error in the shape of the inputs, scaled."""
        if error is None:  # the next layer has no deltas, such as LookupTable
            return None
        self.check_tensor("an error", error, self.out_shape)
        if error is not self.last_error:
            self.last_error, self.error_view = error, self.reshape_buffer(error, self.out_shape, self.in_shape)
        if not self.owns_delta and alpha == 1 and beta == 0:
            self.deltas = self.error_view
        elif self.needs_deltas:
            self.deltas = self.deltas or self.buffer("deltas", self.in_shape)
            self.deltas[:] = self.scale_deltas(self.error_view, alpha, beta)
        return self.deltas

    def reshape_buffer(self, t: Tensor, shape: LayerShape, new_shape: LayerShape) -> Tensor:
        """Return a view of the buffer of one layer shape as the buffer of another.

        Parameters
        ----------
        t : Tensor
            The buffer.
        shape, new_shape : int or tuple
            Shapes without the batch dimension.
        """
        if iobuf_shape(shape) == iobuf_shape(new_shape):
            return t
        try:
            return t.reshape(num_features(new_shape), -1)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


class Reshape(PassThrough):
    """The inputs in another shape, as a view of the same buffer.

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

    can_compute_deltas = needs_outputs = False

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

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Do nothing: the data has no deltas."""
