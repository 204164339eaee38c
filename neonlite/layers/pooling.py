"""How does an image become smaller, or even?  By pooling windows, and by normalizing over neighboring maps."""

from __future__ import annotations

import math
from typing import Any

from neonlite.layers.convolution import ImageLayer, boxes, padded, sizes


class Pooling(ImageLayer):
    """Images (C, H, W) to (C, P, Q): the maximum, mean or l2 norm of each window. Padding does not count.

    ``fshape``: a number for height and width; (R, S), R high, S wide; (T, R, S) with depth; a dict of J, T, R, S, where
    J goes over the maps; or "all", the whole image. ``op``: "max", "avg" or "l2". Strides are the window's sizes unless
    given; they and padding are told as those of ``Convolution``, with ``str_c`` and ``pad_c`` over maps.

    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu", batch_size=32)
    >>> Pooling(3, strides=2).configure((16, 13, 28)).out_shape
    (16, 6, 13)
    >>> Pooling("all", op="avg").configure((16, 13, 28)).out_shape
    (16, 1, 1)
    """

    axes = "cdhw"

    def __init__(
        self, fshape: Any, op: str = "max", strides: Any = None, padding: Any = 0, name: str | None = None
    ) -> None:
        super().__init__(name)
        if op not in ("max", "avg", "l2"):
            raise ValueError(f"{self.name}: op is 'max', 'avg' or 'l2'; got {op!r}")
        self.fshape, self.op, self.strides, self.padding = fshape, op, strides, padding
        if fshape != "all":
            sizes(self.name, "fshape", fshape, "JTRS", 2, 2)
        self.argmax: Any = None

    def layer_object(self, N: int) -> Any:
        image = self.image()
        if self.fshape == "all":
            window = dict(zip("TRS", list(image.values())[1:], strict=True))
        else:
            window = sizes(self.name, "fshape", self.fshape, "JTRS", 2, 2)
        strides = {} if self.strides is None else self.strides
        steps = self.steps("T" in window, strides=("str", strides), padding=("pad", self.padding))
        return self.be.pool_layer(self.be.default_dtype, self.op, N, **image, **window, **steps)

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Make the buffers of the outputs, and of where the maxima were."""
        super().allocate(shared_outputs)
        if self.op == "max":
            dtype = "uint8" if math.prod(self.nglayer.JTRS) <= 256 else "int32"
            self.argmax = self.buffer("argmax", self.out_shape, dtype)

    def formula(self, x: Any) -> Any:
        """Return the maximum, the mean or the norm of slices, one for each place in the windows."""
        be, g = self.be, self.nglayer
        found = boxes(g, g.JTRS, g.strides, (1, 1, 1, 1), g.dimO[:4])

        def cells(images: Any) -> Any:
            """Return what is in the windows: (cells of a window, windows)."""
            canvas = padded(be, images, g.padding, found)
            return be.concat([be.reshape(be.build("slice", canvas, index=box), (1, -1)) for box in found], axis=0)

        values, inside = cells(be.reshape(x, g.dimI)), cells(be.ones(g.dimI))
        if self.op == "max":
            pooled = be.max(be.where(inside, values, -math.inf), axis=0)
        elif self.op == "avg":
            pooled = be.sum(values, axis=0) / be.sum(inside, axis=0)
        else:
            pooled = be.sqrt(be.sum(be.square(values), axis=0))
        return be.reshape(pooled, g.dimO2)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs, plus ``beta outputs``."""
        self.prepare(inputs, inference)
        return self.be.fprop_pool(self.nglayer, inputs, self.outputs, None if inference else self.argmax, beta)

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute ``deltas = alpha dE/dinputs + beta deltas``; of equal maxima the first takes the error."""
        self.check_error(error)
        if self.deltas is not None:
            more = {"alpha": alpha, "beta": beta, "argmax": self.argmax}
            self.be.bprop_pool(self.nglayer, self.inputs if self.op == "l2" else None, error, self.deltas, **more)
        return self.deltas


class LRN(ImageLayer):
    """``alpha x denom^-bpower + beta outputs``, ``denom = 1 + ascale / depth sum x^2`` over ``depth`` neighboring maps.

    Those of map c begin at ``c - depth // 2``. Source: Krizhevsky et al. 2012, section 3.3.
    """

    def __init__(
        self,
        depth: int,
        alpha: float = 1.0,
        beta: float = 0.0,
        ascale: float = 1.0,
        bpower: float = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.depth, self.alpha, self.beta, self.ascale, self.bpower = depth, alpha, beta, ascale, bpower
        self.denom: Any = None

    def layer_object(self, N: int) -> Any:
        return self.be.lrn_layer(self.be.default_dtype, N, **self.image(), J=self.depth)

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Make the buffers of the outputs and of the denominators."""
        super().allocate(shared_outputs)
        self.denom = self.buffer("denom", self.out_shape)

    def formula(self, x: Any) -> Any:
        """Return ``alpha x denom^-bpower``."""
        be, g = self.be, self.nglayer
        images, ones = be.reshape(x, g.dimI), (1, 1, 1, 1)
        found = boxes(g, (g.J, 1, 1, 1), ones, ones, g.dimI[:4])
        canvas = padded(be, be.square(images), g.padding, found)
        squares: Any = sum(be.build("slice", canvas, index=box) for box in found)
        return be.reshape(self.alpha * images * (1 + self.ascale / g.J * squares) ** -self.bpower, g.dimI2)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs, plus ``beta outputs``."""
        self.prepare(inputs, inference)
        more = {"alpha": self.alpha, "beta": self.beta + beta, "ascale": self.ascale, "bpower": self.bpower}
        return self.be.fprop_lrn(self.nglayer, inputs, self.outputs, self.denom, **more)

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute ``deltas = alpha dE/dinputs + beta deltas``."""
        self.check_error(error)
        if self.deltas is not None:
            more = {"alpha": alpha * self.alpha, "beta": beta, "ascale": self.ascale, "bpower": self.bpower}
            self.be.bprop_lrn(self.nglayer, self.inputs, self.outputs, error, self.deltas, self.denom, **more)
        return self.deltas
