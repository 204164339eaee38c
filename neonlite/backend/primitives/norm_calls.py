"""How is a batch normalized?  By op-trees over features (F, columns), run into the buffers of the layer.

Source: Ioffe and Szegedy 2015; with ``binary`` by powers of two alone, Courbariaux et al. 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neonlite.backend.prepared import Assignment
from neonlite.backend.primitives.norm_apart import NormApart
from neonlite.backend.tensor import Tensor
from neonlite.ops import HALVES
from neonlite.optree import describe


class NormCalls(NormApart):
    """The backend's methods for batch normalization."""

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
        outputs: Any = None,
        layer: Any = None,
    ) -> Tensor:
        """Compute ``y = gamma (x - mean) / sqrt(var + eps) + beta + accumbeta y`` and return y.

        x and y (F, columns), all others (F, 1). Training: xsum holds the sums of the rows, or takes them with
        ``compute_batch_sum``; it ends up as the mean, xvar as the population variance, and ``gmean = rho gmean +
        (1 - rho) mean``, gvar alike. ``inference`` takes gmean and gvar and writes y alone. ``relu``: max(., 0) of the
        normalized x. ``binary``: every product by a power of two (``be.shift``).
        """
        rows = {"xsum": xsum, "xvar": xvar, "gmean": gmean, "gvar": gvar, "gamma": gamma, "beta": beta}
        self._features("compound_fprop_bn", {"x": x, "y": y}, rows, batch=not inference)
        eps, rho, accumbeta = self._numbers("compound_fprop_bn", eps=eps, rho=rho, accumbeta=accumbeta)
        columns = xsum, xvar, gmean, gvar, gamma, beta
        plain = not (binary or relu or accumbeta) and (compute_batch_sum or inference)
        if plain and self._fprop_bn_apart(x, y, columns, eps, rho, inference):
            return y
        if plain and not inference and self._fprop_bn_rows(x, y, columns, eps, rho):
            return y
        times = self.shift if binary else self.multiply
        axis, result = 1, y
        if apart := None if accumbeta else self._by_pixels([x], columns, y):
            (x,), y, axis = apart.operands, apart.out, 0

        def assignment() -> Assignment:
            xsum, xvar, gmean, gvar, gamma, beta = self._along(axis, columns)
            wide, mean, var, targets, values = self._widened(x), gmean, gvar, [], []
            if not inference:
                mean = self.mean(wide, axis=axis) if compute_batch_sum else xsum * (1.0 / x.shape[axis])
                d = wide - mean
                var = self.mean(times(d, d), axis=axis)
                targets = [xsum, xvar, gmean, gvar]
                values = [mean, var, rho * gmean + (1 - rho) * mean, rho * gvar + (1 - rho) * var]
            d = wide + -mean  # not d from above, which would have to be kept: to read that takes as long as to read x
            value = times(times(d, 1 / self.sqrt(self._widened(var) + eps)), gamma) + beta
            value = self.maximum(value, 0) if relu else value
            return [*targets, y], [*values, value + accumbeta * y if accumbeta else value]

        how = eps, rho, compute_batch_sum, accumbeta, relu, binary, inference
        self._again(layer, "fprop_habit", (x, *columns, y, *how), assignment)
        if apart:
            apart.end()
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
        layer: Any = None,
    ) -> Tensor:
        """Compute the gradients of the error delta_in at the result of ``compound_fprop_bn``, and return delta_out.

        With ``xhat = (x - mean) inv``, ``inv = 1 / sqrt(var + eps)``: ``grad_gamma = sum(xhat delta_in)``,
        ``grad_beta = sum(delta_in)``, ``delta_out = (delta_in - (xhat grad_gamma + grad_beta) / columns) gamma inv``.
        xsum holds the mean, and xvar the variance, as the forward pass left them. delta_out may be delta_in.
        """
        rows = {"grad_gamma": grad_gamma, "grad_beta": grad_beta, "xsum": xsum, "xvar": xvar, "gamma": gamma}
        self._features("compound_bprop_bn", {"x": x, "delta_out": delta_out, "delta_in": delta_in}, rows)
        (eps,) = self._numbers("compound_bprop_bn", eps=eps)
        columns = grad_gamma, grad_beta, xsum, xvar, gamma
        for way in () if binary else (self._bprop_bn_apart, self._bprop_bn_rows):
            if way(delta_out, delta_in, x, columns, eps):
                return delta_out
        times, axis, result = self.shift if binary else self.multiply, 1, delta_out
        if apart := self._by_pixels([x, delta_in], columns, delta_out):
            (x, delta_in), delta_out, axis = apart.operands, apart.out, 0

        def assignment() -> Assignment:
            grad_gamma, grad_beta, xsum, xvar, gamma = self._along(axis, columns)
            error, inv = self._widened(delta_in), 1 / self.sqrt(self._widened(xvar) + eps)
            xhat = times(self._widened(x) - xsum, inv)
            by_gamma, by_beta = self.sum(xhat * error, axis=axis), self.sum(error, axis=axis)
            xhat = times(self._widened(x) + -xsum, inv)  # anew, as d in the forward pass
            error = error - (times(xhat, by_gamma) + by_beta) * (1.0 / x.shape[axis])
            return [grad_gamma, grad_beta, delta_out], [by_gamma, by_beta, times(times(error, gamma), inv)]

        self._again(layer, "bprop_habit", (delta_out, delta_in, x, *columns, eps, binary), assignment)
        if apart:
            apart.end()
        return result

    def _along(self, axis: int, columns: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return columns (F, 1), of features along the first axis, as rows where features are along the second."""
        return columns if axis else [t.reshape(1, -1) for t in columns]

    def _again(self, layer: Any, habit: str, operands: tuple[Any, ...], assignment: Callable[[], Assignment]) -> None:
        """Assign, by the habit of the layer if there is one."""
        if (known := getattr(layer, habit, None)) is not None:
            known(self, operands, assignment)
        else:
            self.assign(*assignment())

    def _widened(self, x: Tensor) -> Any:
        """Return halves as float32, in which their sums and squares are kept."""
        return self.astype(x, "float32") if x.info.dtype in HALVES else x

    def _features(self, primitive: str, wide: dict[str, Tensor], rows: dict[str, Tensor], batch: bool = True) -> None:
        """Raise an error unless the first are all (F, columns), and the others (F, 1); a batch has a column."""
        self._own(primitive, **wide, **rows)
        shape = wide["x"].shape
        for name, t in (wide | rows).items():
            wanted = shape if name in wide else (shape[0], 1)
            if t.shape != wanted:
                axes = "(features, columns)" if name in wide else "(features, 1)"
                raise ValueError(f"be.{primitive}: {name} has the shape {wanted} = {axes}; got {describe(t)}")
        if len(shape) != 2 or (batch and not shape[1]):
            x = describe(wide["x"])
            raise ValueError(f"be.{primitive} takes x (features, columns), in training with a column at least; got {x}")
