"""How do regions of images, whatever their size, become inputs of one size?  By the maxima of a grid of bins."""

from __future__ import annotations

import math
from typing import Any

from neonlite.backend.numbers import number
from neonlite.layers.deltas import Deltas, Place
from neonlite.layers.layer import Layer
from neonlite.optree import describe


class RoiPooling(Layer):
    """Regions of feature maps (C, H, W), each pooled to (C, PH, PW): the maximum in each of ``HW`` = (PH, PW) bins.

    It begins the network that looks at regions. ``configure`` takes a pair: the layer or network that makes the feature
    maps, or their shape; and that of the regions, (5, R) for R of them per image, or 5 for one. ``fprop`` takes a pair
    of tensors: the maps (C H W, N), and the regions (5, R N). A column is: number of the image in the minibatch, first
    column and row, last column and row, in pixels of the image, which ``spatial_scale`` brings to those of the maps.
    Columns stand in any order, and may name any image; outputs are in the same order.

    Outputs are features by regions, (C PH PW, R N): ``out_shape`` is (C PH PW, R), or (C, PH, PW) with one per image.
    A bin without a pixel is 0. ``bprop`` returns the deltas of the maps, or None unless ``bprop_enabled``; regions
    have none. Source: Girshick 2015, Fast R-CNN, section 2.1.

    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import Affine, Conv, RoiPooling, Sequential
    >>> from neonlite.transforms import Rectlin
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> maps = Sequential(Conv((3, 3, 8), Gaussian(), strides=4, padding=1, activation=Rectlin()))
    >>> head = Sequential([RoiPooling(HW=(2, 2), spatial_scale=1 / 4), Affine(5, Gaussian())])
    >>> head.configure((maps.configure((3, 32, 32)), (5, 3))).out_shape
    (5, 3)
    >>> for network in (maps, head):
    ...     network.allocate()
    ...     network.allocate_deltas()
    >>> images = be.ones((3 * 32 * 32, 2))
    >>> regions = be.array([[0, 0, 0, 1, 1, 1], [0] * 6, [0] * 6, [15, 31, 7] * 2, [31, 15, 7] * 2])
    >>> y = head.fprop((maps.fprop(images), regions))
    >>> y.shape
    (5, 6)
    >>> maps.bprop(head.bprop(be.ones((5, 6))))  # the first layer of all has no deltas
    """

    reads_outputs = False

    def __init__(
        self, HW: Any = (7, 7), bprop_enabled: bool = True, spatial_scale: float = 0.0625, name: str | None = None
    ) -> None:
        super().__init__(name)
        sizes = (HW, HW) if isinstance(HW, int) else HW
        whole = isinstance(sizes, tuple | list) and all(type(n) is int and n > 0 for n in sizes)
        if not whole or len(sizes) != 2:
            raise ValueError(f"{self.name}: HW, the rows and columns of bins, are two whole numbers from 1; got {HW!r}")
        self.HW, self.bprop_enabled = tuple(sizes), bprop_enabled
        self.spatial_scale = number(f"{self.name}: spatial_scale", spatial_scale)
        if self.spatial_scale <= 0:
            raise ValueError(f"{self.name}: spatial_scale, of maps to images, is above 0; got {spatial_scale!r}")
        self.regions: Any = None  # their shape: 5, or (5, R)
        self.argmax: Any = None  # of each bin, the pixel h W + w that is its maximum

    def configure(self, in_obj: Any) -> RoiPooling:
        """Take a pair: the feature maps' layer or shape, which becomes ``in_shape``, and the regions' shape."""
        pair = in_obj.out_shape if isinstance(in_obj, Layer) else getattr(in_obj, "shape", in_obj)
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            source = f" of {in_obj.name}" if isinstance(in_obj, Layer) else ""
            raise ValueError(
                f"{self.name} begins a network, which takes a pair of feature maps, (C, H, W) or the layer that makes "
                f"them, and regions, (5, R) for R per image; got {pair!r}{source}"
            )
        maps, regions = pair
        super().configure(maps)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 3:
            raise ValueError(f"{self.name}: feature maps are images (C, H, W); got {self.in_shape}")
        row, *count = regions if isinstance(regions, list | tuple) and regions else [regions]
        if row != 5 or len(count) > 1 or not all(type(n) is int and n > 0 for n in count):
            raise ValueError(
                f"{self.name}: the regions' shape is (5, R) for R per image, or 5 for one; got {regions!r}"
            )
        self.prev_layer = (self.prev_layer or True) if self.bprop_enabled else None  # who wants deltas
        self.regions = (5, *count) if count else 5
        self.bins = (self.in_shape[0], *self.HW)
        self.out_shape = (math.prod(self.bins), *count) if count else self.bins
        return self

    def in_steps(self, S: int) -> Any:
        """Return the inputs' shapes with S regions per image."""
        return self.in_shape, (5, S)

    def blank_inputs(self) -> Any:
        """Return feature maps and regions, of zeros."""
        return super().blank_inputs(), self.be.iobuf(self.regions)

    def allocate(self, shared_outputs: Any = None, accumulate_updates: bool = False) -> None:
        """Make the buffers of the outputs, and of which pixels they are."""
        super().allocate(shared_outputs)
        self.argmax = self.buffer("argmax", self.out_shape, "int32")

    def reserve(self, deltas: Deltas, error: Place | None) -> Place | None:
        """Say where the deltas of the feature maps are to lie, if these are wanted."""
        if not self.bprop_enabled:
            self.prev_layer = None
        return super().reserve(deltas, error)

    def accept(self, inputs: Any) -> None:
        """Raise an error unless these are feature maps and regions, and there are buffers."""
        if not isinstance(inputs, list | tuple) or len(inputs) != 2:
            raise TypeError(f"{self.name}: inputs are a pair, (feature maps, regions); got {describe(inputs)}")
        self.check("the regions", inputs[1], self.regions)
        super().accept(inputs[0])

    def formula(self, x: Any) -> Any:
        """Return the pixels at ``argmax``, where ``fprop`` found the maxima, and 0 where that is -1."""
        be, (C, H, W), (maps, regions) = self.be, self.in_shape, x
        first = be.array([[[c * H * W]] for c in range(C)], dtype="int64")  # pixel of each map
        place = be.reshape(self.argmax, (C, -1, regions.shape[1]))
        pixel = (be.maximum(place, 0) + first) * self.be.bsz + be.astype(regions[:1], "int64")
        found = be.take(be.reshape(maps, -1, 1), be.reshape(pixel, -1, 1), axis=0)
        return be.reshape(be.where(place < 0, 0, be.reshape(found, place.shape)), self.argmax.shape)

    def fprop(self, inputs: Any, inference: bool = False, beta: float = 0.0) -> Any:
        """Compute the outputs, plus ``beta outputs``. IndexError for a region of an image that there is not."""
        self.accept(inputs)
        self.inputs, self.tree = inputs, None if inference else True  # no tree: bprop has argmax
        pooled = self.buffer("pooled", self.out_shape) if beta else self.outputs
        self.pool(self.be.roipooling_fprop, inputs[0], pooled)
        if beta:
            self.outputs[:] = pooled + beta * self.outputs
        return self.outputs

    def bprop(self, error: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """Compute ``deltas = alpha dE/dmaps + beta deltas``: each maximum's pixel takes its error."""
        self.check_error(error)
        if not self.bprop_enabled or self.deltas is None:
            return None
        target = self.buffer("back", self.in_shape) if beta else self.deltas
        self.pool(self.be.roipooling_bprop, error, target)
        if alpha != 1 or beta:
            self.deltas[:] = self.scaled(target, alpha, beta)
        return self.deltas

    def pool(self, primitive: Any, source: Any, target: Any) -> None:
        """Run a primitive of the backend; its errors name the layer."""
        rois = self.inputs[1].T
        try:
            primitive(source, rois, target, self.argmax, rois.shape[0], *self.in_shape, *self.HW, self.spatial_scale)
        except (IndexError, TypeError, ValueError) as error:
            raise type(error)(f"{self.name}: {error}") from None
