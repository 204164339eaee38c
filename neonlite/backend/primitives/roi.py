"""Backend methods for object detection: RoI pooling and non-maximum suppression."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from neonlite.backend.errstate import IgnoreFPErrors
from neonlite.backend.planning.layout import read_chwn
from neonlite.backend.primitives.geometry import check_ints
from neonlite.backend.primitives.operands import (
    as_contiguous,
    check_floats,
    check_same_dtype,
    check_tensors,
    output_buffer,
    readable_as,
    writable_as,
)
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import check_shape
from neonlite.messages import describe
from neonlite.typing import BackendBase


class RoiMethods(BackendBase):
    """The methods of ``Backend`` for object detection."""

    def roipooling_fprop(
        self,
        I: Tensor,
        rois: Tensor,
        O: Tensor,
        argmax: Tensor,
        roi_count: int,
        C: int,
        H: int,
        W: int,
        pooled_height: int,
        pooled_width: int,
        spatial_scale: float,
    ) -> Tensor:
        """Compute RoI max pooling: the maximum in each of (pooled_height, pooled_width) bins of each region.

        A bin without pixels is 0, and -1 in argmax.

        Parameters
        ----------
        I : Tensor
            Images (C, H, W, N).
        rois : Tensor
            Regions (roi_count, 5): image index, first column and row, last column and row.
        O : Tensor
            Output (C, pooled_height, pooled_width, roi_count).
        argmax : Tensor
            Output of O's size and dtype int32 or int64: the pixel index ``h W + w`` of each maximum.
        roi_count : int
            Number of regions.
        C, H, W : int
            Channels, height and width of the images.
        pooled_height, pooled_width : int
            Number of bins along each axis.
        spatial_scale : float
            Factor from the regions' coordinates to pixels.

        Returns
        -------
        Tensor
            O.

        Raises
        ------
        ValueError
            If a size does not fit, or a region is not finite.
        IndexError
            If an image index is out of range.
        TypeError
            If dtypes do not fit.

        References
        ----------
        Girshick 2015, section 2.1.
        """
        name, (image, bins) = "roipooling_fprop", ((C, H, W), (C, pooled_height, pooled_width, roi_count))
        regions, batch = _check_rois(self, name, rois, roi_count, image, bins, "I", I=I, O=O, argmax=argmax)
        (spatial_scale,) = check_floats(name, spatial_scale=spatial_scale)
        images = readable_as(self, as_contiguous(self, I), (*image, batch))
        with output_buffer(self, O, I) as o, output_buffer(self, argmax) as indices, IgnoreFPErrors():
            outputs = writable_as(self, o, bins), writable_as(self, indices, bins)
            self.primitives.roi_fprop(images, regions, *outputs, spatial_scale)
        return O

    def roipooling_bprop(
        self,
        I: Tensor,
        rois: Tensor,
        O: Tensor,
        argmax: Tensor,
        roi_count: int,
        C: int,
        H: int,
        W: int,
        pooled_height: int,
        pooled_width: int,
        spatial_scale: float,
    ) -> Tensor:
        """Compute the gradient of RoI pooling: each error is added to the pixel that was the maximum of its bin.

        Parameters
        ----------
        I : Tensor
            Errors (C, pooled_height, pooled_width, roi_count).
        rois : Tensor
            Regions, as in ``roipooling_fprop``.
        O : Tensor
            Output (C, H, W, N).
        argmax : Tensor
            The pixel indices that ``roipooling_fprop`` wrote.
        roi_count : int
            Number of regions.
        C, H, W : int
            Channels, height and width of the images.
        pooled_height, pooled_width : int
            Number of bins along each axis.
        spatial_scale : float
            As in ``roipooling_fprop``.

        Returns
        -------
        Tensor
            O.

        Raises
        ------
        ValueError
            If a size does not fit, or a region is not finite.
        IndexError
            If an image index or a pixel index is out of range.
        TypeError
            If dtypes do not fit.
        """
        name, (image, bins) = "roipooling_bprop", ((C, H, W), (C, pooled_height, pooled_width, roi_count))
        regions, batch = _check_rois(self, name, rois, roi_count, image, bins, "O", I=I, O=O, argmax=argmax)
        extremes = self.evaluate([self.min(argmax), self.max(argmax)]) if argmax.size else []
        if not all(-1 <= x.get().item() < H * W for x in extremes):
            raise IndexError(
                f"be.{name}: expected argmax from -1 to {H * W - 1}, got other values in {describe(argmax)}"
            )
        errors, indices = (
            readable_as(self, as_contiguous(self, I), bins),
            readable_as(self, as_contiguous(self, argmax), bins),
        )
        with output_buffer(self, O, I, argmax) as buffer, IgnoreFPErrors():
            self.primitives.roi_bprop(errors, regions, indices, writable_as(self, buffer, (*image, batch)))
        return O

    def nms(self, detections: Tensor, threshold: float, normalized: bool = False) -> list[int]:
        """Return the indices of the detections that non-maximum suppression keeps, best first.

        A detection is dropped if its intersection over union with a better one exceeds ``threshold``.

        Parameters
        ----------
        detections : Tensor
            Boxes (n, 5): first column and row, last column and row, score. Boxes with score 0 are removed first; the
            returned indices refer to the remaining boxes.
        threshold : float
            Largest intersection over union of two boxes that are both kept.
        normalized : bool
            Whether coordinates are continuous, so that a box from 2 to 4 has width 2. By default they are pixel
            indices, and its width is 3.

        Returns
        -------
        list of int
            The indices.
        """
        if not self.runtime.has_values:
            raise RuntimeError(f"be.nms: expected a backend with values, got {self!r}")
        check_tensors(self, "nms", detections=detections)
        (threshold,) = check_floats("nms", threshold=threshold)
        if detections.ndim != 2 or detections.shape[1] != 5:
            raise ValueError(f"be.nms: expected detections (n, 5) of x, y, x, y, score, got {describe(detections)}")
        boxes = detections.get().astype(np.float64)
        boxes = boxes[boxes[:, 4] != 0]
        x1, y1, x2, y2, score = boxes.T
        offset = 0 if normalized else 1
        area = (x2 - x1 + offset) * (y2 - y1 + offset)
        order = np.argsort(-score, kind="stable")
        keep = []
        while order.size:
            best, order = order[0], order[1:]
            keep.append(int(best))
            width = np.minimum(x2[best], x2[order]) - np.maximum(x1[best], x1[order]) + offset
            height = np.minimum(y2[best], y2[order]) - np.maximum(y1[best], y1[order]) + offset
            intersection = np.maximum(width, 0) * np.maximum(height, 0)
            with IgnoreFPErrors():
                iou = intersection / (area[best] + area[order] - intersection)
                order = order[~(iou > threshold)]
        return keep


def _check_rois(
    be: BackendBase,
    name: str,
    rois: Tensor,
    count: int,
    image: tuple[int, ...],
    bins: tuple[int, ...],
    image_arg: str,
    **tensors: Tensor,
) -> tuple[np.ndarray[Any, Any], int]:
    """Check arguments; return the regions and the batch size. ``image_arg`` names the images; the others are bins."""
    check_tensors(be, name, rois=rois, **tensors)
    (C, H, W), (_, PH, PW, _) = image, bins
    check_ints(name, 0, roi_count=count, C=C, H=H, W=W, pooled_height=PH, pooled_width=PW)
    check_shape(f"be.{name}: rois", rois, (count, 5), " = (roi_count, 5)")
    pixels = image[0] * image[1] * image[2]
    images = tensors[image_arg]
    if not pixels or images.size % pixels or not images.size:
        raise ValueError(f"be.{name}: expected images of shape (*{image}, N) = (C, H, W, N), got {describe(images)}")
    for key in sorted(tensors.keys() - {image_arg}):
        if tensors[key].size != bins[0] * bins[1] * bins[2] * bins[3]:
            raise ValueError(
                f"be.{name}: expected bins of shape {bins} = (C, PH, PW, roi_count), got {describe(tensors[key])}"
            )
    if tensors["argmax"].info.dtype not in ("int32", "int64"):
        raise TypeError(f"be.{name}: expected argmax of dtype int32 or int64, got {tensors['argmax'].info.dtype}")
    check_same_dtype(name, I=tensors["I"], O=tensors["O"])
    regions, batch = be.primitives.to_host_float64(read_chwn(rois)), images.size // pixels
    if not all(math.isfinite(x) for x in (regions.min(initial=0), regions.max(initial=0))):
        raise ValueError(f"be.{name}: expected finite rois, got infinity or NaN in {describe(rois)}")
    indices = regions[:, 0]
    if not 0 <= indices.min(initial=0) <= indices.max(initial=0) < batch:
        raise IndexError(
            f"be.{name}: expected image indices from 0 to {batch - 1} in rois, got others in {describe(rois)}"
        )
    return regions, batch
