"""Which primitives find objects?  Pooling of regions, and the choice among overlapping boxes (Girshick 2015)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from neonlite.backend.executors.quiet import Silence
from neonlite.backend.primitives.places import Places
from neonlite.backend.stored import read
from neonlite.backend.tensor import Tensor
from neonlite.optree import describe


class RegionCalls(Places):
    """The backend's methods for regions of interest."""

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
        """Compute the maximum in each of (pooled_height, pooled_width) bins of each region, and return O.

        I (C, H, W, N); rois (roi_count, 5): image, and first and last column and row, which ``spatial_scale`` brings to
        pixels of I; O and argmax (ints) (C, pooled_height, pooled_width, roi_count). A bin that holds no pixel is 0,
        and -1 in argmax. Source: Girshick 2015, section 2.1.
        """
        name, (image, bins) = "roipooling_fprop", ((C, H, W), (C, pooled_height, pooled_width, roi_count))
        regions, batch = self._regions(name, rois, roi_count, image, bins, I=I, O=O, argmax=argmax)
        (spatial_scale,) = self._numbers(name, spatial_scale=spatial_scale)
        images = self._shaped(self._dense(I), (*image, batch))
        with self._place(O, I) as o, self._place(argmax) as places, Silence():
            shaped = self._target(o, bins), self._target(places, bins)
            self.primitives.roi_fprop(images, regions, *shaped, spatial_scale)
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
        """Add the error I of each bin to the pixel that was its maximum; O (C, H, W, N) takes the sums. Return O.

        I and argmax are (C, pooled_height, pooled_width, roi_count), argmax as ``roipooling_fprop`` filled it.
        """
        name, (image, bins) = "roipooling_bprop", ((C, H, W), (C, pooled_height, pooled_width, roi_count))
        regions, batch = self._regions(name, rois, roi_count, image, bins, I=O, O=I, argmax=argmax)
        extremes = self.evaluate([self.min(argmax), self.max(argmax)]) if argmax.size else []
        if not all(-1 <= x.get().item() < H * W for x in extremes):
            raise IndexError(f"be.{name}: argmax holds pixels, -1 to {H * W - 1}; got {describe(argmax)} with others")
        errors, places = self._shaped(self._dense(I), bins), self._shaped(self._dense(argmax), bins)
        with self._place(O, I, argmax) as place, Silence():
            self.primitives.roi_bprop(errors, regions, places, self._target(place, (*image, batch)))
        return O

    def _regions(
        self, name: str, rois: Tensor, count: int, image: tuple[int, ...], bins: tuple[int, ...], **tensors: Tensor
    ) -> tuple[np.ndarray[Any, Any], int]:
        """Return the regions and the number of images, after checks; I is the image here, and O what is pooled."""
        self._own(name, rois=rois, **tensors)
        (C, H, W), (_, PH, PW, _) = image, bins
        self._whole_numbers(name, 0, roi_count=count, C=C, H=H, W=W, pooled_height=PH, pooled_width=PW)
        if rois.shape != (count, 5):
            raise ValueError(f"be.{name}: rois has the shape {(count, 5)} = (roi_count, 5); got {describe(rois)}")
        pixels = image[0] * image[1] * image[2]
        if not pixels or tensors["I"].size % pixels or not tensors["I"].size:
            raise ValueError(
                f"be.{name}: images have the shape (*{image}, N) = (C, H, W, N); got {describe(tensors['I'])}"
            )
        for key in ("O", "argmax"):
            if tensors[key].size != bins[0] * bins[1] * bins[2] * bins[3]:
                raise ValueError(
                    f"be.{name}: bins have the shape {bins} = (C, PH, PW, roi_count); got {describe(tensors[key])}"
                )
        if tensors["argmax"].info.dtype not in ("int32", "int64"):
            raise TypeError(f"be.{name}: argmax holds int32; got {tensors['argmax'].info.dtype}")
        self._one_float(name, I=tensors["I"], O=tensors["O"])
        regions, batch = self.primitives.numbers(read(rois)), tensors["I"].size // pixels
        if not all(math.isfinite(x) for x in (regions.min(initial=0), regions.max(initial=0))):
            raise ValueError(f"be.{name}: rois are finite numbers; got {describe(rois)} with others")
        images = regions[:, 0]
        if not 0 <= images.min(initial=0) <= images.max(initial=0) < batch:
            raise IndexError(f"be.{name}: rois name images from 0 to {batch - 1}; got {describe(rois)} with others")
        return regions, batch

    def nms(self, detections: Tensor, threshold: float, normalized: bool = False) -> list[int]:
        """Return which detections stay: best first, none that overlaps a better one by more than ``threshold``.

        detections (n, 5): first column and row, last column and row, score; the numbers returned count the rows whose
        score is not 0. Overlap is intersection over union; a box from 2 to 4 is 3 wide, unless ``normalized``.
        """
        self._own("nms", detections=detections)
        (threshold,) = self._numbers("nms", threshold=threshold)
        if detections.ndim != 2 or detections.shape[1] != 5:
            raise ValueError(f"be.nms takes detections (n, 5): x, y, x, y, score; got {describe(detections)}")
        boxes = detections.get().astype(np.float64)
        boxes = boxes[boxes[:, 4] != 0]
        x1, y1, x2, y2, score = boxes.T
        more = 0 if normalized else 1
        area = (x2 - x1 + more) * (y2 - y1 + more)
        left = np.argsort(-score, kind="stable")
        kept = []
        while left.size:
            best, left = left[0], left[1:]
            kept.append(int(best))
            width = np.minimum(x2[best], x2[left]) - np.maximum(x1[best], x1[left]) + more
            height = np.minimum(y2[best], y2[left]) - np.maximum(y1[best], y1[left]) + more
            common = np.maximum(width, 0) * np.maximum(height, 0)
            with Silence():
                left = left[~(common / (area[best] + area[left] - common) > threshold)]
        return kept
