"""Backend methods for batch normalization, as op-trees or by a library kernel.

References: Ioffe and Szegedy 2015; with ``binary``, by powers of two only, Courbariaux et al. 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neonlite.backend.base import BackendBase
from neonlite.backend.planning.assignment import Assignment
from neonlite.backend.primitives.library_batch_norm import (
    bprop_bn_chwn,
    bprop_bn_nhwc,
    fprop_bn_chwn,
    fprop_bn_nhwc,
)
from neonlite.backend.primitives.primitive_operands import as_nhwc_matrices, check_floats, check_tensors
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import check_shape
from neonlite.messages import describe
from neonlite.ops.functions import widen_half
from neonlite.optree import Operand


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
            The layer that caches the compiled assignment.

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

        options = eps, rho, compute_batch_sum, accumbeta, relu, binary, inference
        _assign_cached(self, layer, "fprop_assignment", (x, *vectors, y, *options), assignment)
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
            The layer that caches the compiled assignment.

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

        _assign_cached(self, layer, "bprop_assignment", (delta_out, delta_in, x, *vectors, eps, binary), assignment)
        if nhwc:
            nhwc.commit()
        return result


def _orient_columns(axis: int, columns: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return vectors (F, 1) for features along the first axis, or (1, F) for features along the second."""
    return columns if axis else [t.reshape(1, -1) for t in columns]


def _assign_cached(
    be: BackendBase, layer: Any, attribute: str, operands: tuple[Any, ...], assignment: Callable[[], Assignment]
) -> None:
    """Run the assignment, with the compiled assignment that the layer caches if there is one."""
    if (cached := getattr(layer, attribute, None)) is not None:
        cached(be, operands, assignment)
    else:
        be.assign(*assignment())


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
