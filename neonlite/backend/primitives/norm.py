"""Backend methods for batch normalization, and those for object detection: RoI pooling, non-maximum suppression."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from neonlite.backend.primitives.geometry import (
    array_as,
    as_contiguous,
    check_floats,
    check_ints,
    check_same_dtype,
    check_tensors,
    output_buffer,
)
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import IgnoreFPErrors, check_shape
from neonlite.messages import describe
from neonlite.ops.composites import batch_norm_gradients, shift_batch_norm_gradients
from neonlite.ops.functions import widen_half
from neonlite.optree import Operand
from neonlite.typing import BackendBase

# --- backend methods for batch normalization, as op-trees or by a library kernel ---


class NormMethods(BackendBase):
    """The methods of ``Backend`` for batch normalization."""

    def compound_fprop_bn(
        self,
        x: Tensor,
        xsum: Tensor,
        xvar: Tensor,
        gmean: Tensor,
        gvar: Tensor,
        gamma: Tensor,
        beta: Tensor,
        y: Tensor,
        eps: float,
        rho: float,
        compute_batch_sum: bool = True,
        accumbeta: float = 0.0,
        relu: bool = False,
        binary: bool = False,
        inference: bool = False,
        outputs: object = None,
        layer: object = None,
    ) -> Tensor:
        """Compute batch normalization: ``y = gamma (x - mean) / sqrt(var + eps) + beta + accumbeta y``.

        In training also ``gmean = rho gmean + (1 - rho) mean``, and the same for gvar.

        Parameters
        ----------
        x : Tensor
            Features (F, columns).
        xsum : Tensor
            Output (F, 1): the mean in training. If ``compute_batch_sum`` is False, it contains the row sums of x on
            entry.
        xvar : Tensor
            Output (F, 1): the population variance in training.
        gmean, gvar : Tensor
            Running averages (F, 1), updated in training and used for inference.
        gamma, beta : Tensor
            Scale and shift (F, 1).
        y : Tensor
            Output (F, columns).
        eps : float
            Added to the variance.
        rho : float
            Decay of the running averages.
        compute_batch_sum : bool
            Whether to compute the sums of x.
        accumbeta : float
            Scale of the old values of y.
        relu : bool
            Whether to apply max(., 0) to the result.
        binary : bool
            Whether to multiply by powers of two only (``be.shift``).
        inference : bool
            Whether to normalize with gmean and gvar; only y is written then.
        outputs : object, optional
            Ignored.
        layer : Layer, optional
            Accepted as in neon, and ignored.

        Returns
        -------
        Tensor
            y.

        Raises
        ------
        ValueError
            If a shape does not fit.
        """
        rows = {"xsum": xsum, "xvar": xvar, "gmean": gmean, "gvar": gvar, "gamma": gamma, "beta": beta}
        _check_features(self, "compound_fprop_bn", {"x": x, "y": y}, rows, needs_batch=not inference)
        eps, rho, accumbeta = check_floats("compound_fprop_bn", eps=eps, rho=rho, accumbeta=accumbeta)
        mean: Operand = gmean
        var: Operand = gvar
        x32, targets, values = widen_half(self, x), [], []
        if not inference:
            share = 1.0 / x.shape[1]
            mean = (self.sum(x32, axis=1) if compute_batch_sum else xsum) * share
            d = x32 - mean
            var = self.sum(self.shift(d, d) if binary else self.square(d), axis=1) * share
            targets = [xsum, xvar, gmean, gvar]
            values = [mean, var, rho * gmean + (1 - rho) * mean, rho * gvar + (1 - rho) * var]
        if inference or binary or not compute_batch_sum:
            times = self.shift if binary else self.multiply
            value = times(times(x32 - mean, 1 / self.sqrt(widen_half(self, var) + eps)), gamma) + beta
        else:
            value = self.batch_norm(x32, gamma, beta, eps=eps)
        value = self.maximum(value, 0) if relu else value
        self.assign([*targets, y], [*values, value + accumbeta * y if accumbeta else value])
        return y

    def compound_bprop_bn(
        self,
        delta_out: Tensor,
        grad_gamma: Tensor,
        grad_beta: Tensor,
        delta_in: Tensor,
        x: Tensor,
        xsum: Tensor,
        xvar: Tensor,
        gamma: Tensor,
        eps: float,
        binary: bool = False,
        layer: object = None,
    ) -> Tensor:
        """Compute the gradients of batch normalization.

        With ``xhat = (x - mean) inv``, ``inv = 1 / sqrt(var + eps)``: ``grad_gamma = sum(xhat delta_in)``, ``grad_beta
        = sum(delta_in)``, ``delta_out = (delta_in - (xhat grad_gamma + grad_beta) / columns) gamma inv``.

        Parameters
        ----------
        delta_out : Tensor
            Output (F, columns): the gradient with respect to x. It may be delta_in.
        grad_gamma, grad_beta : Tensor
            Outputs (F, 1).
        delta_in : Tensor
            Error (F, columns) at the output of ``compound_fprop_bn``.
        x : Tensor
            Features (F, columns) of the forward pass.
        xsum, xvar : Tensor
            Mean and variance (F, 1) that the forward pass wrote.
        gamma : Tensor
            Scale (F, 1).
        eps : float
            As in the forward pass.
        binary : bool
            As in the forward pass.
        layer : Layer, optional
            Accepted as in neon, and ignored.

        Returns
        -------
        Tensor
            delta_out.

        Raises
        ------
        ValueError
            If a shape does not fit.
        """
        rows = {"grad_gamma": grad_gamma, "grad_beta": grad_beta, "xsum": xsum, "xvar": xvar, "gamma": gamma}
        _check_features(self, "compound_bprop_bn", {"x": x, "delta_out": delta_out, "delta_in": delta_in}, rows)
        (eps,) = check_floats("compound_bprop_bn", eps=eps)
        d, scale = widen_half(self, x) - xsum, 1 / self.sqrt(widen_half(self, xvar) + eps)
        gradients = shift_batch_norm_gradients if binary else batch_norm_gradients
        dx, *sums = gradients(self, widen_half(self, delta_in), d, scale, gamma)
        self.assign([grad_gamma, grad_beta, delta_out], [*sums, dx])
        return delta_out


def _check_features(
    be: BackendBase, primitive: str, features: dict[str, Tensor], vectors: dict[str, Tensor], needs_batch: bool = True
) -> None:
    """Raise an error unless features are (F, columns) and vectors (F, 1), with at least one column in training."""
    check_tensors(be, primitive, **features, **vectors)
    shape = features["x"].shape
    for name, t in (features | vectors).items():
        size, axes = (shape, "(features, columns)") if name in features else ((shape[0], 1), "(features, 1)")
        check_shape(f"be.{primitive}: {name}", t, size, f" = {axes}")
    if len(shape) != 2 or (needs_batch and not shape[1]):
        x = describe(features["x"])
        raise ValueError(f"be.{primitive}: expected x (features, columns), for training with columns, got {x}")


# --- object detection ---


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
        images = array_as(self, as_contiguous(self, I), (*image, batch))
        with output_buffer(self, O, I) as o, output_buffer(self, argmax) as indices, IgnoreFPErrors():
            outputs = array_as(self, o, bins), array_as(self, indices, bins)
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
            array_as(self, as_contiguous(self, I), bins),
            array_as(self, as_contiguous(self, argmax), bins),
        )
        with output_buffer(self, O, I, argmax) as buffer, IgnoreFPErrors():
            self.primitives.roi_bprop(errors, regions, indices, array_as(self, buffer, (*image, batch)))
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
    regions, batch = be.primitives.to_host_float64(rois._array), images.size // pixels
    if not all(math.isfinite(x) for x in (regions.min(initial=0), regions.max(initial=0))):
        raise ValueError(f"be.{name}: expected finite rois, got infinity or NaN in {describe(rois)}")
    indices = regions[:, 0]
    if not 0 <= indices.min(initial=0) <= indices.max(initial=0) < batch:
        raise IndexError(
            f"be.{name}: expected image indices from 0 to {batch - 1} in rois, got others in {describe(rois)}"
        )
    return regions, batch
