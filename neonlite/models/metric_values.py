"""MetricValues: an array of metric values that converts to a scalar if it has one element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from neonlite.typing import ArrayLike


class MetricValues(np.ndarray[Any, np.dtype[np.float64]]):
    """An array (n,) of float64, with one element for each name of a metric.

    With one element, it is also a scalar: ``float(x)``, ``"%.1f" % (100 * x)`` and ``f"{x:.3f}"`` work, which NumPy
    rejects for one-dimensional arrays.

    Examples
    --------
    >>> from neonlite.models.metric_values import MetricValues
    >>> error = MetricValues.of([0.125])
    >>> "%.1f%%" % (error * 100), f"{error:.2f}", error[0]
    ('12.5%', '0.12', np.float64(0.125))
    """

    @classmethod
    def of(cls, values: ArrayLike) -> MetricValues:
        """Return a sequence of values, or one value, as a MetricValues."""
        return np.atleast_1d(np.asarray(values, np.float64)).view(cls)

    def __float__(self) -> float:
        """Return the only element; raise TypeError if there are several."""
        return float(self.only())

    def __int__(self) -> int:
        """Return the integer part of the only element."""
        return int(self.only())

    def __round__(self, ndigits: int | None = None) -> float:
        """Return the only element, rounded."""
        return round(float(self), ndigits)

    def __format__(self, spec: str) -> str:
        """Format the only element; without a format specification, the array."""
        return format(float(self), spec) if spec else str(self)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def only(self) -> float:
        """Return the only element; raise TypeError if there are several."""
        if self.size != 1:
            raise TypeError(f"MetricValues: expected one element, got {self}. Select one by its index.")
        return self.item()
