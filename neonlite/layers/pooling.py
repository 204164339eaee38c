"""Pooling and local response normalization (LRN) layers."""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Any

from neonlite.backend import Tensor
from neonlite.backend.primitives.geometry import LRNLayer, PoolLayer
from neonlite.backend.validation import one_of
from neonlite.layers.convolution import ImageLayer, pad_images, parse_sizes, window_slices
from neonlite.layers.types import WindowSizes
from neonlite.ops.functions import widen_half
from neonlite.optree import Operand, OpTreeNode


class Pooling(ImageLayer):
    """Pooling of images (C, H, W) to (C, P, Q): the maximum, mean or L2 norm of each window. Padding is ignored.

    Parameters
    ----------
    fshape : int, tuple, dict or "all"
        Window size: a scalar for height and width; (R, S) or (T, R, S); a dict of J, T, R, S, where J is the size over
        channels; or "all" for global pooling.
    op : str
        "max", "avg" or "l2".
    strides : int, tuple or dict, optional
        As for ``Convolution``, with ``str_c`` for channels. Default: the window size.
    padding : int, tuple or dict
        As for ``Convolution``, with ``pad_c`` for channels.
    name : str, optional
        Name, unique in a network.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu", batch_size=32)
    >>> Pooling(3, strides=2).configure((16, 13, 28)).out_shape
    (16, 6, 13)
    >>> Pooling("all", op="avg").configure((16, 13, 28)).out_shape
    (16, 1, 1)
    """

    axes = "cdhw"

    def __init__(
        self,
        fshape: WindowSizes | str,
        op: str = "max",
        strides: WindowSizes | None = None,
        padding: WindowSizes = 0,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        one_of(f"{self.name}: op", op, ("max", "avg", "l2"))
        self.fshape, self.op, self.strides, self.padding = fshape, op, strides, padding
        if fshape != "all":
            parse_sizes(self.name, "fshape", fshape, "JTRS", 2, 2)
        self.argmax: Tensor | Any = None

    def make_layer_object(self, N: int) -> PoolLayer:
        image = self.input_sizes()
        if self.fshape == "all":
            window = dict(zip("TRS", list(image.values())[1:], strict=True))
        else:
            window = parse_sizes(self.name, "fshape", self.fshape, "JTRS", 2, 2)
        strides = {} if self.strides is None else self.strides
        params = self.window_params("T" in window, strides=("str", strides), padding=("pad", self.padding))
        return self.be.pool_layer(self.be.default_dtype, self.op, N, **image, **window, **params)

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        if self.op == "max":
            dtype = "uint8" if math.prod(self.nglayer.JTRS) <= 256 else "int32"
            self.argmax = self.buffer("argmax", self.out_shape, dtype)

    def formula(self, x: Tensor) -> Operand:
        """Return the maximum, mean or norm over all positions in the window."""
        be, g = self.be, self.nglayer
        slices = window_slices(g, g.JTRS, g.strides, (1, 1, 1, 1), g.dimO[:4])

        def window_elements(images: Operand) -> Any:
            """Return the elements of the windows: (elements of a window, windows)."""
            padded = pad_images(be, images, g.padding, slices)
            rows = [be.reshape(be.build("slice", padded, index=index), (1, -1)) for index in slices]
            return be.concat(rows, axis=0)

        values, valid_mask = window_elements(be.reshape(x, g.dimI)), window_elements(be.ones(g.dimI))
        if self.op == "max":
            pooled = be.max(be.where(valid_mask, values, -math.inf), axis=0)
        elif self.op == "avg":
            pooled = be.sum(widen_half(be, values), axis=0) / be.sum(widen_half(be, valid_mask), axis=0)
        else:
            pooled = be.sqrt(be.sum(be.square(widen_half(be, values)), axis=0))
        return be.astype(be.reshape(pooled, g.dimO2), x.info.dtype)

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        self.set_inputs(inputs, inference)
        return self.be.fprop_pool(self.nglayer, inputs, self.outputs, None if inference else self.argmax, beta)

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Compute ``deltas = alpha dE/dinputs + beta deltas``. Among equal maxima the first one receives the error."""
        self.check_error(error)
        if self.deltas is not None:
            options: dict[str, Any] = {"alpha": alpha, "beta": beta, "argmax": self.argmax}
            self.be.bprop_pool(self.nglayer, self.inputs if self.op != "max" else None, error, self.deltas, **options)
        return self.deltas


class LRN(ImageLayer):
    """Local response normalization, ``alpha x denom^-bpower``, with ``denom = 1 + ascale / depth sum x^2``.

    The sum is over ``depth`` neighboring channels, for channel c starting at ``c - depth // 2``.

    Parameters
    ----------
    depth : int
        The number of channels in a window.
    alpha : float
        Factor of the outputs.
    beta : float
        Factor of the old outputs, which are added.
    ascale : float
        Factor of the mean square.
    bpower : float
        Exponent of the denominator.
    name : str, optional
        Name, unique in a network.

    References
    ----------
    Krizhevsky et al., "ImageNet classification with deep convolutional neural networks", 2012, section 3.3.
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
        self.denom: Tensor | Any = None

    def make_layer_object(self, N: int) -> LRNLayer:
        return self.be.lrn_layer(self.be.default_dtype, N, **self.input_sizes(), J=self.depth)

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        self.denom = self.buffer("denom", self.out_shape)

    def formula(self, x: Tensor) -> Operand:
        """Return ``alpha x denom^-bpower``."""
        be, g = self.be, self.nglayer
        images, ones = be.reshape(x, g.dimI), (1, 1, 1, 1)
        slices = window_slices(g, (g.J, 1, 1, 1), ones, ones, g.dimI[:4])
        padded = pad_images(be, be.square(images), g.padding, slices)
        squares = reduce(add, (be.build("slice", padded, index=index) for index in slices))
        scale: OpTreeNode = (1 + self.ascale / g.J * squares) ** -self.bpower
        return be.reshape(self.alpha * images * scale, g.dimI2)

    def fprop(self, inputs: Tensor, inference: bool = False, beta: float = 0.0) -> Tensor:
        self.set_inputs(inputs, inference)
        options: dict[str, Any] = {
            "alpha": self.alpha,
            "beta": self.beta + beta,
            "ascale": self.ascale,
            "bpower": self.bpower,
        }
        return self.be.fprop_lrn(self.nglayer, inputs, self.outputs, self.denom, **options)

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        self.check_error(error)
        if self.deltas is not None:
            options: dict[str, Any] = {
                "alpha": alpha * self.alpha,
                "beta": beta,
                "ascale": self.ascale,
                "bpower": self.bpower,
            }
            self.be.bprop_lrn(self.nglayer, self.inputs, self.outputs, error, self.deltas, self.denom, **options)
        return self.deltas
