"""Metrics of regression: mean squared error, mean absolute error, and the coefficient of determination R2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from neonlite.ops.functions import widen_half
from neonlite.optree import Operand
from neonlite.transforms.metric import ColumnMetric, require_columns, split_columns
from neonlite.transforms.transform import Metric, Outputs, Targets

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class ErrorMetric(ColumnMetric):
    """Base class of metrics of the errors ``y - t``, which are computed in float32 from 16-bit outputs."""

    greater_is_better = False

    def errors(self, y: Operand, t: Operand) -> Operand:
        """Return ``y - t``, (F, N).

        Parameters
        ----------
        y, t : Tensor or op-tree
            Outputs and targets (F, N).
        """
        y, t = (widen_half(self.be, x) for x in (y, t))
        return y - t


class MeanSquaredError(ErrorMetric):
    """Mean squared error: the mean of ``(y - t)^2`` over rows and columns, y and t (F, N).

    It is twice the cost ``MeanSquared``. With targets (t, mask), columns are weighted by the mask.

    Parameters
    ----------
    name : str, optional
        Name of the object.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> MeanSquaredError()(be.array([[1.0, 2.0]]), be.array([[1.0, 4.0]]))
    2.0
    """

    metric_names: Sequence[str] = ("MeanSquaredError",)

    def metric_values(self, y: Operand, t: Operand) -> Operand:
        return self.be.mean(self.be.square(self.errors(y, t)), axis=0)


class MeanAbsoluteError(ErrorMetric):
    """Mean absolute error: the mean of ``|y - t|`` over rows and columns, y and t (F, N).

    With targets (t, mask), columns are weighted by the mask.

    Parameters
    ----------
    name : str, optional
        Name of the object.
    """

    metric_names: Sequence[str] = ("MeanAbsoluteError",)

    def metric_values(self, y: Operand, t: Operand) -> Operand:
        return self.be.mean(self.be.absolute(self.errors(y, t)), axis=0)


class R2(Metric):
    """Coefficient of determination: the mean over rows of ``1 - sum_n (y_n - t_n)^2 / sum_n (t_n - mean(t))^2``.

    y and t are (F, N); sums and means are over all columns of the data set. 1 is the best value; predicting the mean of
    the targets gives 0. A row whose targets are all equal gives 1 if all errors are 0, else 0. With targets (t, mask),
    columns are weighted by the mask.

    Parameters
    ----------
    name : str, optional
        Name of the object.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> R2()(be.array([[1.0, 2.0, 4.0]]), be.array([[1.0, 2.0, 3.0]]))
    0.5
    """

    metric_names: Sequence[str] = ("R2",)
    greater_is_better = True

    def column_values(self, y: Outputs, t: Targets) -> Operand:
        return self.be.concat(split_columns(self, y, t))

    def sums(self, y: Outputs, t: Targets, calcrange: slice = slice(0, None)) -> tuple[NDArray[np.float64], float]:
        """Return, for each row, the sum of the squared errors, the mean of the targets, and their squared deviations.

        The deviations are those from the mean of this minibatch, which avoids the cancellation of large sums.

        Parameters
        ----------
        y, t : Tensor or op-tree
            Outputs and targets (F, N).
        calcrange : slice or list of int
            The columns to use (default: all).

        Returns
        -------
        sums : ndarray
            (3, F).
        count : float
            Total weight of the columns.
        """
        values = self.select_columns(y, t, calcrange)
        values = values[:, values[-1] != 0]  # masked columns may contain NaN
        F, weights = len(values) // 2, values[-1]
        outputs, targets, count = values[:F], values[F:-1], weights.sum()
        means = (targets @ weights) / (count or 1)
        parts = [(outputs - targets) ** 2 @ weights, means, (targets.T - means).T ** 2 @ weights]
        return values.__array_namespace__().stack(parts), float(count)

    def merge(self, parts: Sequence[tuple[NDArray[np.float64], float]]) -> tuple[NDArray[np.float64], float]:
        """Combine minibatches: their deviations, and those of their means from the mean of all.

        Parameters
        ----------
        parts : sequence of (ndarray, float)
            The results of ``sums`` of each minibatch.

        Returns
        -------
        sums : ndarray
            (3, F), as ``sums`` returns it.
        count : float
            Total weight of the columns.

        References
        ----------
        Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983, equation 2.1.
        """
        total, count = super().merge(parts)
        mean = sum(n * sums[1] for sums, n in parts) / (count or 1)
        total[1] = mean
        total[2] += sum(n * (sums[1] - mean) ** 2 for sums, n in parts)
        return total, count

    def compute(self, sums: NDArray[np.float64], count: float) -> Sequence[float]:
        require_columns(self, count)
        errors, means, deviations = sums
        is_constant = deviations <= count * (1e-12 * means) ** 2  # up to rounding
        scores = [
            (e if math.isnan(e) else float(e == 0)) if constant else 1 - e / d
            for e, d, constant in zip(errors.tolist(), deviations.tolist(), is_constant.tolist(), strict=True)
        ]
        return [sum(scores) / len(scores)]
