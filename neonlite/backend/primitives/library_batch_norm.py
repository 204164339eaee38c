"""Batch normalization by a library (oneDNN): per channel for NHWC images, per row for CHWN images and features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from neonlite.backend.errstate import IgnoreFPErrors
from neonlite.backend.planning.layout import CachedImages, can_cache_nhwc, find_images, layout_of, read_nhwc, write_nhwc
from neonlite.backend.primitives.primitive_operands import readable_as, writable_as
from neonlite.backend.tensor import Tensor
from neonlite.backend.tensor_views import overlap

if TYPE_CHECKING:
    from neonlite.backend.base import BackendBase

MAX_FLOAT32_TERMS = 1 << 18  # terms of a sum up to which the library's sequential float32 sums are precise enough


def fprop_bn_nhwc(
    be: BackendBase, x: Tensor, y: Tensor, channel_vectors: Sequence[Tensor], eps: float, rho: float, inference: bool
) -> bool:
    """Run ``compound_fprop_bn`` on NHWC images; ``channel_vectors``: xsum, xvar, gmean, gvar, gamma, beta."""
    images = _nhwc_input(be, x, channel_vectors, eps)
    if images is None or images.has_chwn or not can_cache_nhwc(y) or y.allocation is x.allocation:
        return False
    if y.info.dtype != x.info.dtype or any(t.allocation is y.allocation for t in channel_vectors):
        return False
    xsum, xvar, gmean, gvar, gamma, beta = channel_vectors
    as_array = readable_as if inference else writable_as
    moments = (gmean, gvar) if inference else (xsum, xvar)
    vector_shape = (images.shape.channels,)
    arrays = [
        *(readable_as(be, t, vector_shape) for t in (gamma, beta)),
        *(as_array(be, t, vector_shape) for t in moments),
    ]
    with write_nhwc(y, images.shape) as out:
        be.primitives.batch_norm_fprop(images.shape, images.nhwc, arrays, out, eps, inference)
    if not inference:
        be.assign([gmean, gvar], [rho * gmean + (1 - rho) * xsum, rho * gvar + (1 - rho) * xvar])
    return True


def bprop_bn_nhwc(
    be: BackendBase, delta_out: Tensor, delta_in: Tensor, x: Tensor, channel_vectors: Sequence[Tensor], eps: float
) -> bool:
    """Run ``compound_bprop_bn`` on NHWC images; ``channel_vectors``: grad_gamma, grad_beta, xsum, xvar, gamma."""
    images = _nhwc_input(be, x, channel_vectors, eps)
    if (
        images is None
        or not can_cache_nhwc(delta_out)
        or any(x.allocation is t.allocation for t in (delta_in, delta_out))
    ):
        return False
    in_place, full_tensors = delta_out.allocation is delta_in.allocation, (delta_in, delta_out)
    if any(t.allocation is full.allocation for t in channel_vectors for full in full_tensors):
        return False
    if any(t.info.dtype != x.info.dtype for t in full_tensors):
        return False
    if (in_place and delta_in.span != delta_out.span) or (images.has_chwn and layout_of(delta_in) != "NHWC"):
        return False
    if (errors := read_nhwc(delta_in, images.shape)) is None:
        return False
    grad_gamma, grad_beta, *inputs = channel_vectors
    vector_shape = (images.shape.channels,)
    arrays = [
        *(readable_as(be, t, vector_shape) for t in inputs),
        *(writable_as(be, t, vector_shape) for t in (grad_gamma, grad_beta)),
    ]
    with write_nhwc(delta_out, images.shape) as out:
        be.primitives.batch_norm_bprop(images.shape, images.nhwc, errors, arrays, out, eps)
    return True


def fprop_bn_chwn(
    be: BackendBase, x: Tensor, y: Tensor, channel_vectors: Sequence[Tensor], eps: float, rho: float
) -> bool:
    """Run ``compound_fprop_bn`` for training on CHWN images or features."""
    if not _can_normalize_rows(be, x, (y, *channel_vectors[:4]), channel_vectors[4:]):
        return False
    shape, vector_shape = x.shape, (len(x), 1)
    arrays = [
        *(writable_as(be, t, vector_shape) for t in channel_vectors[:4]),
        *(readable_as(be, t, vector_shape) for t in channel_vectors[4:]),
    ]
    with IgnoreFPErrors():
        rows = readable_as(be, x, shape), arrays, writable_as(be, y, shape)
        return bool(be.primitives.row_norm_fprop(*rows, eps, rho))


def bprop_bn_chwn(
    be: BackendBase, delta_out: Tensor, delta_in: Tensor, x: Tensor, channel_vectors: Sequence[Tensor], eps: float
) -> bool:
    """Run ``compound_bprop_bn`` on CHWN images or features."""
    is_in_place = overlap(delta_out, delta_in) == "exact"
    inputs = channel_vectors[2:] if is_in_place else (delta_in, *channel_vectors[2:])
    if delta_in.info.dtype != "float32":
        return False
    if not _can_normalize_rows(be, x, (delta_out, *channel_vectors[:2]), inputs):
        return False
    shape, vector_shape = x.shape, (len(x), 1)
    arrays = [
        *(writable_as(be, t, vector_shape) for t in channel_vectors[:2]),
        *(readable_as(be, t, vector_shape) for t in channel_vectors[2:]),
    ]
    with IgnoreFPErrors():
        errors, out = readable_as(be, delta_in, shape), writable_as(be, delta_out, shape)
        return bool(be.primitives.row_norm_bprop(readable_as(be, x, shape), errors, arrays, out, eps))


def _can_normalize_rows(be: BackendBase, x: Tensor, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Return whether the library can take these tensors: contiguous float32, outputs without overlap."""
    tensors = *outputs, *inputs, x
    if not be.primitives.supports_batch_norm or x.shape[1] > MAX_FLOAT32_TERMS:
        return False
    if not all(t.info.dtype == "float32" and t.is_contiguous for t in tensors):
        return False
    pairs = ((t, other) for n, t in enumerate(outputs) for other in tensors[n + 1 :])
    return not any(t.allocation is other.allocation and overlap(t, other) != "none" for t, other in pairs)


def _nhwc_input(be: BackendBase, x: Tensor, channel_vectors: Sequence[Tensor], eps: float) -> CachedImages | None:
    """Return images (C, pixels) in NHWC if the library can normalize them, else None."""
    images = find_images(x) if be.primitives.supports_batch_norm else None
    if images is None or not images.is_for(x, images.shape) or images.shape.channels != len(x):
        return None
    if not all(t.info.dtype == x.info.dtype == "float32" and t.allocation is not x.allocation for t in channel_vectors):
        return None
    if not all(t.is_contiguous for t in channel_vectors):
        return None
    if images.shape.pixels * images.shape.batch_size > MAX_FLOAT32_TERMS:
        return None
    return images if be.primitives.can_normalize(images.shape, eps) else None
