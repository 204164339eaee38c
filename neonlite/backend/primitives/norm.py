"""Batch normalization of the Backend, as op-trees or by a library kernel."""

from __future__ import annotations

from collections.abc import Sequence

from neonlite.backend.errstate import IgnoreFPErrors
from neonlite.backend.planning.assignment import Assignment
from neonlite.backend.planning.layout import CachedImages, can_cache_nhwc, find_images, layout_of, read_nhwc, write_nhwc
from neonlite.backend.primitives.operands import as_nhwc_matrices, check_floats, check_tensors, readable_as, writable_as
from neonlite.backend.tensor import Tensor, overlap
from neonlite.backend.validation import check_shape
from neonlite.messages import describe
from neonlite.ops.functions import widen_half
from neonlite.optree import Operand
from neonlite.typing import BackendBase

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
        vectors = xsum, xvar, gmean, gvar, gamma, beta
        is_plain = not (binary or relu or accumbeta) and (compute_batch_sum or inference)
        if is_plain and fprop_bn_nhwc(self, x, y, vectors, eps, rho, inference):
            return y
        if is_plain and not inference and fprop_bn_chwn(self, x, y, vectors, eps, rho):
            return y
        times = self.shift if binary else self.multiply
        axis, result = 1, y
        if nhwc := None if accumbeta else as_nhwc_matrices(self, [x], vectors, y):
            (x,), y, axis = nhwc.operands, nhwc.out, 0

        def assignment() -> Assignment:
            xsum, xvar, gmean, gvar, gamma, beta = _orient_columns(axis, vectors)
            mean: Operand = gmean
            var: Operand = gvar
            x32, targets, values = widen_half(self, x), [], []
            if not inference:
                mean = self.mean(x32, axis=axis) if compute_batch_sum else xsum * (1.0 / x.shape[axis])
                d = x32 - mean
                var = self.mean(times(d, d), axis=axis)
                targets = [xsum, xvar, gmean, gvar]
                values = [mean, var, rho * gmean + (1 - rho) * mean, rho * gvar + (1 - rho) * var]
            d = x32 + -mean  # recomputed: reusing the d above would store it in a temporary
            value = times(times(d, 1 / self.sqrt(widen_half(self, var) + eps)), gamma) + beta
            value = self.maximum(value, 0) if relu else value
            return [*targets, y], [*values, value + accumbeta * y if accumbeta else value]

        self.assign(*assignment())
        if nhwc:
            nhwc.commit()
        return result

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
        vectors = grad_gamma, grad_beta, xsum, xvar, gamma
        for method in () if binary else (bprop_bn_nhwc, bprop_bn_chwn):
            if method(self, delta_out, delta_in, x, vectors, eps):
                return delta_out
        times, axis, result = self.shift if binary else self.multiply, 1, delta_out
        if nhwc := as_nhwc_matrices(self, [x, delta_in], vectors, delta_out):
            (x, delta_in), delta_out, axis = nhwc.operands, nhwc.out, 0

        def assignment() -> Assignment:
            grad_gamma, grad_beta, xsum, xvar, gamma = _orient_columns(axis, vectors)
            error, inv = widen_half(self, delta_in), 1 / self.sqrt(widen_half(self, xvar) + eps)
            xhat = times(widen_half(self, x) - xsum, inv)
            gamma_sum, beta_sum = self.sum(xhat * error, axis=axis), self.sum(error, axis=axis)
            xhat = times(widen_half(self, x) + -xsum, inv)  # recomputed, as d in the forward pass
            error = error - (times(xhat, gamma_sum) + beta_sum) * (1.0 / x.shape[axis])
            return [grad_gamma, grad_beta, delta_out], [gamma_sum, beta_sum, times(times(error, gamma), inv)]

        self.assign(*assignment())
        if nhwc:
            nhwc.commit()
        return result


def _orient_columns(axis: int, columns: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return vectors (F, 1) for features along the first axis, or (1, F) for features along the second."""
    return columns if axis else [t.reshape(1, -1) for t in columns]


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
