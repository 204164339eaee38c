"""MetricValues: an array of metric values that converts to a scalar if it has one element."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from neonlite.backend.one_element import OneElement
from neonlite.callbacks.figures import new_figure, save_figure
from neonlite.transforms import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from neonlite.typing import ArrayLike


class MetricValues(OneElement):
    """An array (n,) of float64, with one element for each name of a metric, or the array of a metric without names.

    With one element, it is also a scalar: ``float(x)``, ``"%.1f" % (100 * x)`` and ``f"{x:.3f}"`` work.

    Examples
    --------
    >>> from neonlite.models.metric_values import MetricValues
    >>> error = MetricValues.of([0.125])
    >>> "%.1f%%" % (error * 100), f"{error:.2f}", error[0]
    ('12.5%', '0.12', np.float64(0.125))
    """

    metric: object = None  # that computed the values

    @classmethod
    def of(cls, values: ArrayLike, metric: object = None) -> MetricValues:
        """Return a sequence of values, or one value, as a MetricValues."""
        array = np.atleast_1d(np.asarray(values, np.float64)).view(cls)
        array.metric = metric
        return array

    def plot(self, target: str | Path | IO[bytes] | Axes | None = None) -> Figure:
        """Plot the values: a bar chart, or of a ConfusionMatrix, the matrix.

        Parameters
        ----------
        target : str, Path, file object or matplotlib.axes.Axes, optional
            Where to save the figure, such as "confusion.png", or the axes to plot into. Default: a new figure.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, which a notebook displays.

        Raises
        ------
        ImportError
            matplotlib is not installed.
        TypeError
            The values are not a result of ``Model.eval`` with a Metric.
        """
        if not isinstance(self.metric, Metric):
            raise TypeError(f"MetricValues.plot: expected a result of eval with a Metric, got {self}")
        side = 3 + 0.4 * len(self)
        axes: Any = target
        if target is None or isinstance(target, str | Path) or hasattr(target, "write"):
            axes = new_figure("MetricValues.plot", side + 1, side).subplots()
        self.metric.plot(self.view(np.ndarray), axes)
        figure: Figure = axes.figure
        if axes is not target:
            save_figure(figure, cast("str | Path | IO[bytes] | None", target))
        return figure
