"""The short names of metrics, such as "mse", and the conversion of names and costs to metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neonlite.backend.validation import expected_argument, instance
from neonlite.optree import Operand
from neonlite.transforms.classification_metrics import F1, ROCAUC, ConfusionMatrix
from neonlite.transforms.metric import (
    Accuracy,
    BitsPerCharacter,
    ColumnMetric,
    EditDistance,
    LogLoss,
    Misclassification,
    Perplexity,
    SequenceAccuracy,
    TopKMisclassification,
)
from neonlite.transforms.regression_metrics import R2, MeanAbsoluteError, MeanSquaredError
from neonlite.transforms.transform import Cost, Metric

METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "misclassification": Misclassification,
    "error": Misclassification,
    "top5": lambda: TopKMisclassification(5),
    "log_loss": LogLoss,
    "f1": F1,
    "f1_macro": F1,
    "f1_micro": lambda: F1(average="micro"),
    "roc_auc": ROCAUC,
    "confusion_matrix": ConfusionMatrix,
    "mse": MeanSquaredError,
    "mae": MeanAbsoluteError,
    "r2": R2,
    "perplexity": Perplexity,
    "bits_per_character": BitsPerCharacter,
    "sequence_accuracy": SequenceAccuracy,
    "edit_distance": EditDistance,
}


def recorded_name(name: str) -> str:
    """Return the name of the value of a metric that is given by its short name; other names are unchanged."""
    names = METRICS[name]().metric_names if name in METRICS else ()
    return names[0] if len(names) == 1 else name


class CostMetric(ColumnMetric):
    """The mean of a cost over columns, as a metric. With targets (t, mask), columns are weighted by the mask.

    Parameters
    ----------
    cost : Cost
        The cost, such as MeanSquared().
    name : str, optional
        Name of the object.
    """

    greater_is_better = False

    def __init__(self, cost: Cost, name: str | None = None) -> None:
        super().__init__(name)
        self.cost = instance("CostMetric: cost", cost, Cost, "a cost, such as MeanSquared(),")
        self.metric_names: Sequence[str] = (cost.classnm,)

    def metric_values(self, y: Operand, t: Operand) -> Operand:
        self.cost.be = self._be
        return self.cost(y, t)


def get_metric(metric: str | Metric | Cost) -> Metric:
    """Return a metric for a short name, such as "mse", for a cost, or the metric itself.

    Parameters
    ----------
    metric : str, Metric or Cost
        The name: "accuracy", "misclassification" or "error", "top5", "log_loss", "f1" or "f1_macro", "f1_micro",
        "roc_auc", "confusion_matrix", "mse", "mae", "r2", "perplexity", "bits_per_character", "sequence_accuracy",
        "edit_distance". A cost becomes the metric of its mean over all columns.

    Returns
    -------
    Metric
        A new metric, or ``metric`` itself.

    Raises
    ------
    TypeError
        ``metric`` is of another type, such as a class.
    ValueError
        There is no metric of this name.

    Examples
    --------
    >>> from neonlite.transforms import MeanSquared, get_metric
    >>> get_metric("mse").metric_names, get_metric(MeanSquared()).metric_names
    (('MeanSquaredError',), ('MeanSquared',))
    """
    if isinstance(metric, str):
        if metric not in METRICS:
            raise ValueError(expected_argument("get_metric: metric", f"one of {', '.join(map(repr, METRICS))}", metric))
        return METRICS[metric]()
    if isinstance(metric, Cost):
        return CostMetric(metric)
    return instance("get_metric: metric", metric, Metric, "a metric, such as Accuracy(), or its name, such as 'mse',")
