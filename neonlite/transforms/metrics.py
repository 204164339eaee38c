"""Metrics of classification and regression, and the short names of metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from neonlite.backend.validation import boolean, check_number, expected_argument, instance, one_of
from neonlite.messages import describe
from neonlite.ops.functions import widen_half
from neonlite.optree import Operand
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
    has_nan,
    require_columns,
    split_columns,
)
from neonlite.transforms.transform import Cost, Metric, Outputs, Targets

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

AVERAGES = ("macro", "micro", "weighted", "binary", None)
MAX_ANNOTATED_CLASSES = 20  # of the plot of a confusion matrix; more numbers are not legible


class ClassMetric(Metric):
    """Base class of metrics that compare predicted classes with those of the targets.

    y and t are (classes, N): the class of a column is its argmax. One row is the probability of class 1, of two: a
    column is in class 1 if it is above ``threshold``. With ``multilabel``, rows are independent labels, each of which a
    column has if its value is above ``threshold``. With outputs of NaN, the metric is NaN.
    """

    multilabel = False
    threshold = 0.5

    def indicators(self, y: Outputs, t: Targets) -> tuple[Operand, Operand, Operand]:
        """Return predictions, targets and weights of columns.

        Parameters
        ----------
        y : Tensor or op-tree
            Outputs (F, N).
        t : Tensor, op-tree or tuple
            Targets (F, N), or (targets, mask).

        Returns
        -------
        predictions, targets : op-tree
            (classes, N): 1 where a column is in a class, else 0; NaN for outputs of NaN, unless their weight is 0.
        weights : op-tree
            (1, N).
        """
        outputs, targets, weights = split_columns(self, y, t)
        be, F = self.be, outputs.shape[0]
        if not self.multilabel and F > 1:
            predicted, actual = (be.onehot(be.argmax(x, axis=0), axis=0, nclass=F) for x in (outputs, targets))
        else:
            predicted, actual = be.greater(outputs, self.threshold), be.greater(targets, 0.5)
            if not self.multilabel:
                predicted, actual = (be.concat([1 - x, x]) for x in (predicted, actual))
        is_nan = be.not_equal(outputs, outputs) if self.multilabel else has_nan(self, outputs)
        return be.where(is_nan * be.not_equal(weights, 0), math.nan, predicted), actual, weights


class F1(ClassMetric):
    """F1 score: the harmonic mean of precision and recall, ``2 tp / (predicted + actual)``.

    y and t are (classes, N), or (1, N) for the probability of class 1 of two classes. For each class, ``predicted``
    counts the columns predicted as this class, ``actual`` those of this class, and ``tp`` those that are both. The
    score of a class without either is 0. With targets (t, mask), columns are weighted by the mask.

    Parameters
    ----------
    average : str, optional
        "macro": the mean over the classes that are predicted or actual, or over all labels with ``multilabel``;
        "weighted": the mean weighted by ``actual``; "micro": the score of the counts summed over the classes; "binary":
        the score of class 1 of two; None: one score for each of ``class_names``. Default: "macro".
    multilabel : bool
        Whether rows are independent labels, as with the outputs of Logistic, instead of the classes of which each
        column has one. Default: False.
    threshold : float
        With ``multilabel``, or one row, the output above which a label is predicted. Default: 0.5.
    class_names : sequence of str, optional
        The names of the classes, for ``average=None``.
    name : str, optional
        Name of the object.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> y, t = be.array([[0.9, 0.2, 0.8, 0.1]]), be.array([[1.0, 1.0, 0.0, 0.0]])
    >>> F1("binary")(y, t)
    0.5
    """

    greater_is_better = True

    def __init__(
        self,
        average: str | None = "macro",
        multilabel: bool = False,
        threshold: float = 0.5,
        class_names: Sequence[str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.average = one_of("F1: average", average, AVERAGES)
        self.multilabel = boolean("F1: multilabel", multilabel)
        self.threshold = check_number("F1: threshold", threshold)
        self.class_names = check_class_names(self, class_names)
        if average is None and not self.class_names:
            raise ValueError("F1: expected class_names together with average=None, got None. They name the scores")
        self.metric_names: Sequence[str] = ["F1" if average == "macro" else f"F1_{average}"]
        if average is None:
            self.metric_names = [f"F1_{x}" for x in self.class_names or []]

    def column_values(self, y: Outputs, t: Targets) -> Operand:
        predicted, actual, weights = self.indicators(y, t)
        check_class_count(self, predicted.shape[0])
        if self.average == "binary" and predicted.shape[0] != (1 if self.multilabel else 2):
            raise ValueError(f"F1: expected two classes with average='binary', got {describe(y)}. Use average='macro'")
        return self.be.concat([x * weights for x in (predicted * actual, predicted, actual)])

    def compute(self, sums: NDArray[np.float64], count: float) -> Sequence[float]:
        positives, predicted, actual = sums.reshape(3, -1)
        totals = predicted + actual
        if self.average == "micro":
            return [2 * positives.sum() / totals.sum() if totals.any() else 0.0]
        scores = [2 * tp / total if total else 0.0 for tp, total in zip(positives, totals, strict=True)]
        if self.average is None:
            return scores
        if self.average == "binary":
            return scores[-1:]
        weights = actual if self.average == "weighted" else 1.0 * (self.multilabel | (totals > 0))
        return [float((weights @ scores) / (weights.sum() or 1))]


class ROCAUC(Metric):
    """Area under the ROC curve: the probability that a positive column has a higher score than a negative one.

    Equal scores count half. y (1, N) are the scores of class 1 of two; of y (2, N), the second row is used. With more
    classes, the area is the mean over classes of this class against all others, and with ``multilabel`` the mean over
    all rows. t is 0 or 1, of the shape of y. The scores need not be probabilities. All scores of the data set are in
    memory at once. With targets (t, mask), columns are weighted by the mask.

    Parameters
    ----------
    multilabel : bool
        Whether rows are independent labels; this matters for two rows only. Default: False.
    name : str, optional
        Name of the object.

    Raises
    ------
    ValueError
        When it is computed: all columns of the data set, or none of them, are in a class.

    References
    ----------
    Fawcett, "An introduction to ROC analysis", 2006, algorithm 2.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> ROCAUC()(be.array([[0.1, 0.4, 0.35, 0.8]]), be.array([[0.0, 0.0, 1.0, 1.0]]))
    0.75
    """

    metric_names: Sequence[str] = ("ROCAUC",)
    greater_is_better = True

    def __init__(self, multilabel: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.multilabel = boolean("ROCAUC: multilabel", multilabel)

    def column_values(self, y: Outputs, t: Targets) -> Operand:
        scores, targets, weights = split_columns(self, y, t)
        if scores.shape[0] == 2 and not self.multilabel:
            scores, targets = scores[1:], targets[1:]
        return self.be.concat([scores, self.be.greater(targets, 0.5), weights])

    def sums(self, y: Outputs, t: Targets, calcrange: slice = slice(0, None)) -> tuple[NDArray[np.float64], float]:
        """Return the scores, targets and weights of the columns, which ``merge`` concatenates.

        Parameters
        ----------
        y, t : Tensor or op-tree
            Outputs and targets.
        calcrange : slice or list of int
            The columns to use (default: all).

        Returns
        -------
        sums : ndarray
            (2 F + 1, columns).
        count : float
            Total weight of the columns.
        """
        values = self.select_columns(y, t, calcrange)
        values = values[:, values[-1] != 0]
        return values, float(values[-1].sum())

    def merge(self, parts: Sequence[tuple[NDArray[np.float64], float]]) -> tuple[NDArray[np.float64], float]:
        """Concatenate the columns of minibatches.

        Parameters
        ----------
        parts : sequence of (ndarray, float)
            The results of ``sums`` of each minibatch.

        Returns
        -------
        sums : ndarray
            (2 F + 1, columns).
        count : float
            Total weight of the columns.
        """
        arrays = [values for values, _ in parts]
        return arrays[0].__array_namespace__().concat(arrays, axis=1), sum(count for _, count in parts)

    def compute(self, sums: NDArray[np.float64], count: float) -> Sequence[float]:
        require_columns(self, count)
        rows, weights = len(sums) // 2, sums[-1]
        areas = [area_under_roc(sums[i], sums[rows + i], weights) for i in range(rows)]
        for i, area in enumerate(areas):
            if area is None:
                is_all = sums[rows + i].all()
                name = i if rows > 1 else 1
                raise ValueError(
                    f"ROCAUC: expected columns in class {name} and columns in others, got "
                    f"{'all' if is_all else 'none'} of {sums.shape[1]} in class {name}"
                )
        return [sum(area for area in areas if area is not None) / rows]


def area_under_roc(
    scores: NDArray[np.float64], positive: NDArray[np.float64], weights: NDArray[np.float64]
) -> float | None:
    """Return the area under the ROC curve; NaN if a score is NaN, None if all or no columns are positive."""
    if not positive.any() or positive.all():
        return None
    order = (-scores).argsort()
    scores, weights, positive = scores[order], weights[order], positive[order]
    is_last = scores == scores  # of equal scores: a point of the curve
    if not is_last.all():
        return float("nan")
    is_last[:-1] = scores[:-1] != scores[1:]
    tp, fp = (weights * positive).cumsum()[is_last], (weights * (1 - positive)).cumsum()[is_last]
    area = tp[0] * fp[0] + ((tp[1:] + tp[:-1]) * (fp[1:] - fp[:-1])).sum()  # twice, by the trapezoidal rule
    return float(area / (2 * tp[-1] * fp[-1]))


class ConfusionMatrix(ClassMetric):
    """Confusion matrix: the number of columns of each class (rows) that are predicted as each class (columns).

    y and t are (classes, N), whose argmax is the class, or (1, N), the probability of class 1 of two. With targets
    (t, mask), columns are weighted by the mask. ``Model.eval`` returns the matrix, whose ``plot`` draws it.

    Parameters
    ----------
    class_names : sequence of str, optional
        The names of the classes in the plot. Default: their indices.
    threshold : float
        With one row, the output above which class 1 is predicted. Default: 0.5.
    name : str, optional
        Name of the object.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> y, t = be.array([[0.9, 0.2, 0.8, 0.1]]), be.array([[1.0, 1.0, 0.0, 0.0]])
    >>> ConfusionMatrix()(y, t)
    array([[1., 1.],
           [1., 1.]])
    """

    def __init__(
        self, class_names: Sequence[str] | None = None, threshold: float = 0.5, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.class_names = check_class_names(self, class_names)
        self.threshold = check_number("ConfusionMatrix: threshold", threshold)

    def column_values(self, y: Outputs, t: Targets) -> Operand:
        predicted, actual, weights = self.indicators(y, t)
        check_class_count(self, predicted.shape[0])
        return self.be.concat([actual, predicted, weights])

    def sums(self, y: Outputs, t: Targets, calcrange: slice = slice(0, None)) -> tuple[NDArray[np.float64], float]:
        """Return the matrix of the selected columns, and their total weight.

        Parameters
        ----------
        y, t : Tensor or op-tree
            Outputs and targets.
        calcrange : slice or list of int
            The columns to use (default: all).

        Returns
        -------
        sums : ndarray
            (classes, classes).
        count : float
            Total weight of the columns.
        """
        values = self.select_columns(y, t, calcrange)
        K, weights = len(values) // 2, values[-1]
        return (values[:K] * weights) @ values[K:-1].T, float(weights.sum())

    def compute(self, sums: NDArray[np.float64], count: float) -> NDArray[np.float64]:
        return sums

    def plot(self, values: NDArray[np.float64], axes: Axes) -> None:
        """Plot the matrix: the shade is the fraction of the true class, the numbers are counts.

        Parameters
        ----------
        values : ndarray
            The matrix (classes, classes).
        axes : matplotlib.axes.Axes
            Where to plot it.
        """
        names = self.class_names or [str(i) for i in range(len(values))]
        totals = values.sum(axis=1, keepdims=True)
        fractions = values / (totals + (totals == 0))
        image = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
        axes.figure.colorbar(image, ax=axes, label="fraction of the true class")
        axes.set(xlabel="predicted class", ylabel="true class")
        axes.set_xticks(range(len(names)), names, rotation=0 if max(map(len, names)) < 4 else 90)
        axes.set_yticks(range(len(names)), names)
        if len(names) > MAX_ANNOTATED_CLASSES:
            return
        for i, row in enumerate(values.tolist()):
            for j, count in enumerate(row):
                color = "white" if fractions[i, j] > 0.5 else "black"
                axes.text(j, i, f"{count:g}", ha="center", va="center", color=color)


def check_class_names(owner: Metric, names: Sequence[str] | None) -> list[str] | None:
    """Return the names of classes as a list; raise TypeError unless they are strings."""
    if names is not None and (isinstance(names, str) or not all(isinstance(x, str) for x in names)):
        raise TypeError(f"{owner.classnm}: expected class_names as a list of strings, got {describe(names)}")
    return None if names is None else list(names)


def check_class_count(owner: F1 | ConfusionMatrix, count: int) -> None:
    """Raise ValueError if there are names, but not one for each class."""
    if owner.class_names and len(owner.class_names) != count:
        raise ValueError(f"{owner.classnm}: expected class_names of {count} classes, got {owner.class_names}")


# --- metrics of regression: mean squared error, mean absolute error, and the coefficient of determination R2 ---


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


# --- the short names of metrics, such as "mse", and the conversion of names and costs to metrics ---

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
