"""RoiPooling: max pooling over regions of interest of feature maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

from neonlite.backend import Tensor
from neonlite.backend.validation import check_number, pair
from neonlite.layers.buffers import shape_of
from neonlite.layers.layer import Layer
from neonlite.layers.types import LayerInput, LayerShapes
from neonlite.messages import describe


class RoiPooling(Layer):
    """Max pooling of regions of feature maps (C, H, W) to (C, PH, PW): the maximum in each of PH x PW bins of a region.

    It is the first layer of a network. ``configure`` takes a pair: the layer that computes the feature maps, or their
    shape, and the shape of the regions, (5, R) for R regions per image, or 5 for one. ``fprop`` takes a pair of
    tensors: the feature maps (C H W, N) and the regions (5, R N). A region is a column: index of the image in the
    minibatch, first column and row, last column and row, in pixels of the image. Regions may be in any order, and refer
    to any image; the outputs have the same order.

    The outputs are (C PH PW, R N), with ``out_shape`` (C PH PW, R), or (C, PH, PW) for one region per image. A bin
    without pixels is 0. ``bprop`` returns the deltas of the feature maps; regions have none.

    Parameters
    ----------
    HW : int or tuple
        The number of rows and columns of bins, (PH, PW).
    bprop_enabled : bool
        Compute deltas. If False, ``bprop`` returns None.
    spatial_scale : float
        Size of the feature maps relative to the image.
    name : str, optional
        Name, unique in a network.

    References
    ----------
    Girshick, "Fast R-CNN", 2015, section 2.1.

    Examples
    --------
    >>> import neonlite as nl
    >>> from neonlite.initializers import Gaussian
    >>> from neonlite.layers import Affine, Conv, RoiPooling, Sequential
    >>> from neonlite.transforms import Rectlin
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> trunk = Sequential(Conv((3, 3, 8), Gaussian(), strides=4, padding=1, activation=Rectlin()))
    >>> head = Sequential([RoiPooling(HW=(2, 2), spatial_scale=1 / 4), Affine(5, Gaussian())])
    >>> head.configure((trunk.configure((3, 32, 32)), (5, 3))).out_shape
    (5, 3)
    >>> for network in (trunk, head):
    ...     network.allocate()
    ...     network.allocate_deltas()
    >>> images = be.ones((3 * 32 * 32, 2))
    >>> regions = be.array([[0, 0, 0, 1, 1, 1], [0] * 6, [0] * 6, [15, 31, 7] * 2, [31, 15, 7] * 2])
    >>> y = head.fprop((trunk.fprop(images), regions))
    >>> y.shape
    (5, 6)
    >>> trunk.bprop(head.bprop(be.ones((5, 6))))  # None: the first layer has no deltas
    """

    needs_outputs = False

    def __init__(
        self,
        HW: int | Sequence[int] = (7, 7),
        bprop_enabled: bool = True,
        spatial_scale: float = 0.0625,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.HW = pair(f"{self.name}: HW", HW)
        self.bprop_enabled = bprop_enabled
        self.spatial_scale = check_number(f"{self.name}: spatial_scale", spatial_scale, above=0)
        self.regions_shape: Any = None  # 5, or (5, R)
        self.argmax: Tensor | Any = None  # the pixel h W + w of the maximum of each bin

    def configure(self, in_obj: LayerInput | Sequence[LayerInput]) -> Self:
        """Set the input shapes and infer the output shape.

        Parameters
        ----------
        in_obj : tuple
            The layer of the feature maps or their shape, which becomes ``in_shape``, and the shape of the regions.
        """
        pair = in_obj.out_shape if isinstance(in_obj, Layer) else shape_of(in_obj)
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            source = f" of {in_obj.name}" if isinstance(in_obj, Layer) else ""
            raise ValueError(
                f"{self.name}: expected a pair of feature maps, (C, H, W) or the layer that computes them, and "
                f"regions, (5, R) for R per image, got {pair!r}{source}. Use it as the first layer of a network."
            )
        maps, regions = pair
        super().configure(maps)
        if not isinstance(self.in_shape, tuple) or len(self.in_shape) != 3:
            raise ValueError(f"{self.name}: expected feature maps (C, H, W), got {self.in_shape}.")
        row, *count = regions if isinstance(regions, list | tuple) and regions else [regions]
        if row != 5 or len(count) > 1 or not all(type(n) is int and n > 0 for n in count):
            raise ValueError(f"{self.name}: expected regions (5, R) for R per image, or 5 for one, got {regions!r}.")
        self.needs_deltas = True
        self.regions_shape = (5, *count) if count else 5
        self.pooled_shape = (self.in_shape[0], *self.HW)
        self.out_shape = (math.prod(self.pooled_shape), *count) if count else self.pooled_shape
        return self

    def shape_for_seq_len(self, S: int) -> LayerShapes:
        """Return the input shapes with S regions per image."""
        return self.in_shape, (5, S)

    def make_zero_inputs(self) -> Any:
        """Return feature maps and regions, filled with zeros."""
        return super().make_zero_inputs(), self.be.iobuf(self.regions_shape)

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        super().allocate(shared_outputs, accumulate_updates)
        self.argmax = self.buffer("argmax", self.out_shape, "int32")

    @property
    def can_compute_deltas(self) -> bool:  # type: ignore[override]
        """Whether deltas are enabled."""
        return self.bprop_enabled

    def check_inputs(self, inputs: Tensor | Sequence[Tensor]) -> None:
        """Raise an error unless these are feature maps and regions, and the layer is allocated."""
        if not isinstance(inputs, list | tuple) or len(inputs) != 2:
            raise TypeError(f"{self.name}: expected inputs as a pair (feature maps, regions), got {describe(inputs)}.")
        self.check_tensor("regions", inputs[1], self.regions_shape)
        super().check_inputs(inputs[0])

    def formula(self, x: Any) -> Any:
        """Return the pixels at ``argmax``, which ``fprop`` has computed, and 0 where it is -1."""
        be, (C, H, W), (maps, regions) = self.be, self.in_shape, x
        first = be.array([[[c * H * W]] for c in range(C)], dtype="int64")  # first pixel of each channel
        index = be.reshape(self.argmax, (C, -1, regions.shape[1]))
        pixel = (be.maximum(index, 0) + first) * self.be.bsz + be.astype(regions[:1], "int64")
        values = be.take(be.reshape(maps, -1, 1), be.reshape(pixel, -1, 1), axis=0)
        return be.reshape(be.where(index < 0, 0, be.reshape(values, index.shape)), self.argmax.shape)

    def fprop(self, inputs: Tensor | Sequence[Tensor], inference: bool = False, beta: float = 0.0) -> Tensor:
        """Compute the outputs. IndexError if a region refers to an image that does not exist."""
        self.set_inputs(inputs, inference)
        pooled = self.buffer("pooled", self.out_shape) if beta else self.outputs
        self.call_primitive(self.be.roipooling_fprop, inputs[0], pooled)
        if beta:
            self.outputs[:] = pooled + beta * self.outputs
        return self.outputs

    def bprop(self, error: Tensor, alpha: float = 1.0, beta: float = 0.0) -> Tensor | None:
        """Compute ``deltas = alpha dE/dmaps + beta deltas``: the pixel of each maximum receives its error."""
        self.check_error(error)
        if not self.bprop_enabled or self.deltas is None:
            return None
        target = self.buffer("gradient", self.in_shape) if beta else self.deltas
        self.call_primitive(self.be.roipooling_bprop, error, target)
        if alpha != 1 or beta:
            self.deltas[:] = self.scale_deltas(target, alpha, beta)
        return self.deltas

    def call_primitive(self, primitive: Callable[..., Any], source: Tensor, target: Tensor) -> None:
        """Call a primitive of the backend; add the name of the layer to error messages.

        Parameters
        ----------
        primitive : callable
            ``be.roipooling_fprop`` or ``be.roipooling_bprop``.
        source, target : Tensor
            What it reads and writes.
        """
        rois = self.inputs[1].T
        try:
            primitive(source, rois, target, self.argmax, rois.shape[0], *self.in_shape, *self.HW, self.spatial_scale)
        except (IndexError, TypeError, ValueError) as error:
            raise type(error)(f"{self.name}: {error}") from None
