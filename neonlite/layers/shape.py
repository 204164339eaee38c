"""Which layers come in where data is not as the next layer wants it?  Another shape, or another value."""

from __future__ import annotations

import math
from typing import Any

from neonlite.backend import NervanaObject
from neonlite.layers.buffers import by_columns, features
from neonlite.layers.deltas import Deltas, Place
from neonlite.layers.layer import Layer
from neonlite.optree import describe


class Passing(Layer):
    """Hands its inputs on as they are, in the same memory, and errors back. One of your own settles ``out_shape``."""

    in_place = True

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.own: Any = None  # a buffer of the outputs, where they cannot be those of the layer before
        self.error: Any = None
        self.input_view: Any = None
        self.error_view: Any = None

    @property
    def reads_outputs(self) -> bool:  # type: ignore[override]
        """Whether the layer after it must leave the outputs alone: they are the inputs, which this one may have to."""
        return self.owns_output

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Take a shared buffer, into which inputs are then copied; else there is nothing to make."""
        self.own = None if shared_outputs is None else self.buffer("outputs", self.out_shape, shared=shared_outputs)

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Say that the deltas lie where the error does."""
        if self.prev_layer is None:
            return super().reserve(deltas, error)
        self.owns_delta, self.deltas = False, None
        return error

    def formula(self, x: Any) -> Any:
        """Return x in the shape of the outputs."""
        return self.be.reshape(x, features(self.out_shape), -1)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Return the inputs, plus ``beta`` times what the outputs were."""
        self.check("the inputs", inputs, self.in_shape)
        if inputs is not self.inputs:  # the same view again for the same inputs: the next layer's tree hangs on it
            self.inputs, self.input_view = inputs, self.view(inputs, self.in_shape, self.out_shape)
        if beta:
            self.own = self.own or self.buffer("outputs", self.out_shape)
            self.own[:] = self.input_view + beta * (self.outputs or 0)
        elif self.own is not None:
            self.own[:] = self.input_view
        self.outputs = self.own or self.input_view
        return self.outputs

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Return the error in the shape of the inputs, scaled."""
        if error is None:  # nothing comes back, as from words
            return None
        self.check("the error", error, self.out_shape)
        if error is not self.error:
            self.error, self.error_view = error, self.view(error, self.out_shape, self.in_shape)
        if not self.owns_delta and alpha == 1 and beta == 0:
            self.deltas = self.error_view
        elif self.prev_layer is not None:
            self.deltas = self.deltas or self.buffer("deltas", self.in_shape)
            self.deltas[:] = self.scaled(self.error_view, alpha, beta)
        return self.deltas

    def view(self, t: Any, shape: Any, to: Any) -> Any:
        """Return a buffer of one shape as that of another."""
        if by_columns(shape) == by_columns(to):
            return t
        try:
            return t.reshape(features(to), -1)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


class Reshape(Passing):
    """The inputs in another shape: the same numbers in the same order, in the same buffer.

    ``reshape``: F, (F, T) or (C, H, W); 0 keeps the inputs' size at this place, and one -1 is what is left. A size
    varies the slower the further left it stands, also T in (F, T): features (F * T) may become T time steps and back,
    and (embedding, words) an image (1, embedding, words). The minibatch stays innermost.

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
        sizes = (reshape,) if isinstance(reshape, int) else reshape
        whole = isinstance(sizes, tuple | list) and all(isinstance(n, int) and not isinstance(n, bool) for n in sizes)
        if not whole or not sizes or min(sizes) < -1 or list(sizes).count(-1) > 1:
            raise ValueError(
                f"{self.name}: reshape is made of sizes, 0 for one that is kept, and one -1 at most; got {reshape!r}"
            )
        self.reshape = reshape
        self.sizes = tuple(sizes)

    def configure(self, in_obj: Any) -> Reshape:
        """Take the inputs' shape, and work out that of the outputs."""
        super().configure(in_obj)
        given = (self.in_shape,) if isinstance(self.in_shape, int) else self.in_shape
        if any(n == 0 and i >= len(given) for i, n in enumerate(self.sizes)):
            raise ValueError(f"{self.name}: 0 keeps a size of the inputs, {given}, which {self.sizes} has none for")
        sizes = [n or given[i] for i, n in enumerate(self.sizes)]
        total, known = math.prod(given), math.prod(n for n in sizes if n != -1)
        if total % known or (-1 not in sizes and total != known):
            raise ValueError(f"{self.name}: the inputs {given} have {total} elements; {self.sizes} cannot hold as many")
        sizes = [total // known if n == -1 else n for n in sizes]
        self.out_shape = sizes[0] if len(sizes) == 1 else tuple(sizes)
        return self


class DataTransform(Layer):
    """``f(x)`` for a transform f of the data; it is the first layer, or after others of its kind, and has no deltas.

    ``transform``: a function from a tensor to an op-tree of its shape, such as ``Normalizer(divisor=255)``. It may have
    an ``inference(x)``, which is then f for inference, and a ``configure(shape)``, which refuses data that it is not
    for; ``ColorNoise`` has both.
    """

    reads_outputs = False

    def __init__(self, transform: Any, name: str | None = None) -> None:
        super().__init__(name)
        if not callable(transform):
            raise TypeError(f"{self.name}: transform is a function of the data; got {transform!r}")
        self.transform = transform

    def configure(self, in_obj: Any) -> DataTransform:
        """Take the shape of the data, which is that of the outputs as well."""
        super().configure(in_obj)
        if self.prev_layer is not None and not isinstance(self.prev_layer, DataTransform):
            raise ValueError(f"{self.name} transforms the data: it is the first layer, and not after {in_obj.name}")
        self.out_shape = self.in_shape
        if isinstance(self.transform, NervanaObject):
            self.transform.be = self.be
        if hasattr(self.transform, "configure"):
            self.named(self.transform.configure, self.in_shape)
        return self

    def reserve(self, deltas: Deltas, error: Place | None) -> None:
        """Reserve nothing: data has no deltas. ValueError where a layer before it would want some."""
        if isinstance(self.prev_layer, Layer) and not isinstance(self.prev_layer, DataTransform):
            raise ValueError(
                f"{self.name} transforms the data: it is the first layer, not after {self.prev_layer.name}"
            )
        deltas.free(error)

    def formula(self, x: Any) -> Any:
        """Return ``f(x)``."""
        return self.transformed(self.transform, x)

    def inference_formula(self, x: Any) -> Any:
        """Return ``f(x)``, or what the transform has for inference."""
        return self.transformed(getattr(self.transform, "inference", self.transform), x)

    def transformed(self, f: Any, x: Any) -> Any:
        """Return ``f(x)``. ValueError when it has another shape than x."""
        y = self.named(f, x)
        if getattr(y, "shape", None) != x.shape:
            raise ValueError(f"{self.name}: a transform keeps the shape of {describe(x)}; got {describe(y)}")
        return y

    def named(self, f: Any, x: Any) -> Any:
        """Return ``f(x)``; its errors name the layer."""
        try:
            return f(x)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self.name}: {error}") from None

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Do nothing: data does not learn."""
