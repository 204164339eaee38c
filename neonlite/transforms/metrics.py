"""Metrics of classification, regression and sequences, and the short names of metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from neonlite.backend.validation import boolean, check_number, expected_argument, instance, integer, one_of
from neonlite.messages import describe
from neonlite.ops.functions import widen_half
from neonlite.optree import Operand
from neonlite.transforms.functions import SmoothL1Loss
from neonlite.transforms.transform import Cost, Metric, Outputs, Targets, check_same_shape

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from neonlite.transforms.transform import MetricResult, MetricValue

AVERAGES = ("macro", "micro", "weighted", "binary", None)
MAX_ANNOTATED_CLASSES = 20  # of the plot of a confusion matrix; more numbers are not legible
Sentence = str | Sequence[str]  # words separated by white space, or a list of words


def split_mask(t: Targets) -> tuple[Any, Any]:
    """Split targets (t, mask) into t and mask; the mask of other targets is None."""
    return (t[0], t[1]) if isinstance(t, list | tuple) and len(t) == 2 else (t, None)


def column_weights(owner: Metric, t: Operand, mask: Any) -> Operand:
    """Return the weight of each column, (1, columns): the maximum of the mask in it, or 1 without a mask."""
    if mask is None:
        return owner.be.ones((1, t.shape[1]))
    if getattr(mask, "shape", None) not in (t.shape, (1, t.shape[1])):
        raise ValueError(
            f"{owner.classnm}: expected a mask of the shape of the targets, or (1, columns), got {describe(mask)} for "
            f"{describe(t)}"
        )
    return owner.be.max(mask, axis=0)


def split_columns(owner: Metric, y: Outputs, t: Targets) -> tuple[Any, Any, Any]:
    """Return outputs and targets (F, N), and the weights of the columns (1, N), from y and t or (t, mask)."""
    targets, mask = split_mask(t)
    check_same_shape(owner, y, targets)
    return y, targets, column_weights(owner, targets, mask)


def has_nan(owner: Metric, y: Operand) -> Operand:
    """Return 1 for each column of outputs with NaN, else 0, (1, columns). Such a column is in no class."""
    return owner.be.max(owner.be.not_equal(y, y), axis=0)


def require_columns(owner: Metric, count: float) -> None:
    """Raise ValueError if the total weight of the columns is 0."""
    if not count:
        raise ValueError(f"{owner.classnm}: expected a mask that selects columns, got one that is 0 everywhere")


class ColumnMetric(Metric):
    """Base class of metrics that are weighted means over columns.

    With targets (t, mask), the weight of a column is the maximum of the mask in it; a mask has the shape of t, or
    (1, columns). Subclasses implement ``metric_values(y, t)``.
    """

    def metric_values(self, y: Operand, t: Operand) -> Operand:
        """Return the metric of each column.

        Parameters
        ----------
        y : Tensor or op-tree
            Outputs (F, N).
        t : Tensor or op-tree
            Targets (F, N).

        Returns
        -------
        op-tree
            (number of names, N).
        """
        raise NotImplementedError(
            f"{self.classnm}: implement metric_values(y, t); return an op-tree of self.be's functions"
        )

    def column_values(self, y: Outputs, t: Targets) -> Operand:
        outputs, targets, count = split_columns(self, y, t)
        return self.be.concat([self.be.where(count, self.metric_values(outputs, targets) * count, 0), count])

    def sums(self, y: Outputs, t: Targets, calcrange: slice = slice(0, None)) -> tuple[NDArray[np.float64], float]:
        total = self.select_columns(y, t, calcrange).sum(axis=1)
        return total[:-1], total[-1]

    def compute(self, sums: NDArray[np.float64], count: float) -> MetricResult:
        require_columns(self, count)
        return sums / count


class LogLoss(ColumnMetric):
    """Log loss: the mean over columns of ``-ln sum_i y_i t_i``.

    y (classes, N) are probabilities, t is one-hot, or (t, mask). One row, y and t (1, N), is the probability of the
    second of two classes: ``-ln(y t + (1 - y) (1 - t))``. Logarithms are clipped at -50.

    Parameters
    ----------
    name : str, optional
        Name of the object.
    """

    metric_names: Sequence[str] = ("LogLoss",)
    greater_is_better = False

    def metric_values(self, y: Operand, t: Operand) -> Operand:
        if y.shape[0] == 1:
            return -self.be.safelog(y * t + (1 - y) * (1 - t))
        return -self.be.safelog(self.be.sum(y * t, axis=0))


class TopKMisclassification(ColumnMetric):
    """Log loss, top-1 error and top-k error: the fraction of columns whose class is not among the k largest outputs.

    y is (classes, N), t one-hot, or (t, mask). With ties the error is fractional: if b outputs are larger than that of
    the correct class, and e are equal to it, including itself, ``misclassified = 1 - clip((k - b) / e, 0, 1)``.

    Parameters
    ----------
    k : int
        Number of largest outputs of the top-k error.
    name : str, optional
        Name of the object.

    References
    ----------
    Russakovsky et al. 2015, section 4.1 (top-5 error).

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> y, t = be.array([[0.5], [0.25], [0.25]]), be.array([[0.0], [1.0], [0.0]])
    >>> TopKMisclassification(k=2)(y, t)
    array([1.386, 1.   , 0.5  ])
    """

    greater_is_better = False

    def __init__(self, k: int, name: str | None = None) -> None:
        super().__init__(name)
        self.k = integer(f"{self.classnm}: k", k)
        self.metric_names = ["LogLoss", "Top1Misclass", f"Top{self.k}Misclass"]

    def metric_values(self, y: Operand, t: Operand) -> Operand:
        classes = y.shape[0]
        if self.k > classes or classes == 1:
            expected = f"k = {self.k}" if self.k > 1 else "2"
            raise ValueError(
                f"TopKMisclassification: expected at least {expected} classes, got {classes}, those of {describe(y)}"
            )
        correct = self.be.onehot(self.be.argmax(t, axis=0), axis=0, nclass=classes)
        score = self.be.sum(self.be.where(correct, y, 0), axis=0)
        num_above, num_equal = self.be.sum(y > score, axis=0), self.be.sum(self.be.equal(y, score), axis=0)
        top1, topk = (1 - self.be.clip((k - num_above) / num_equal, 0, 1) for k in (1, self.k))
        errors = [self.be.maximum(x, has_nan(self, y)) for x in (top1, topk)]
        return self.be.concat([-self.be.safelog(self.be.sum(y * t, axis=0)), *errors])


class Misclassification(ColumnMetric):
    """The fraction of columns where ``argmax(y)`` differs from ``argmax(t)``, y and t (classes, N).

    One row, y and t (1, N), is the probability of the second of two classes, which is predicted above 0.5. If several
    elements are largest, the first one is used. A column with NaN is wrong. With targets (t, mask), columns are
    weighted by the mask.

    Parameters
    ----------
    steps : int
        No effect; accepted for compatibility with neon. All columns count.
    name : str, optional
        Name of the object.
    """

    metric_names: Sequence[str] = ("Top1Misclass",)
    greater_is_better = False

    def __init__(self, steps: int = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.steps = steps

    def metric_values(self, y: Operand, t: Operand) -> Operand:
        predicted, actual = (x > 0.5 if y.shape[0] == 1 else self.be.argmax(x, axis=0) for x in (y, t))
        return self.be.maximum(self.be.not_equal(predicted, actual), has_nan(self, y))


class Accuracy(Misclassification):
    """The fraction of columns where ``argmax(y)`` equals ``argmax(t)``, y and t (classes, N).

    One row, y and t (1, N), is the probability of the second of two classes, which is predicted above 0.5. If several
    elements are largest, the first one is used. A column with NaN is wrong. With targets (t, mask), columns are
    weighted by the mask.

    Parameters
    ----------
    name : str, optional
        Name of the object.
    """

    metric_names: Sequence[str] = ("Accuracy",)
    greater_is_better = True

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)

    def metric_values(self, y: Operand, t: Operand) -> Operand:
        return 1 - super().metric_values(y, t)


class PrecisionRecall(Metric):
    """Precision and recall: means over classes of ``tp / (predicted + epsilon)`` and ``tp / (actual + epsilon)``.

    y and t (num_classes, N) hold 0 and 1. Over all columns, ``predicted`` counts where y is 1, ``actual`` where t is 1,
    and ``tp`` where both are. The precision or recall of a class without such columns is 0.

    Parameters
    ----------
    num_classes : int
        Number of classes.
    binarize : bool
        Whether to replace y by the one-hot encoding of its argmax; y itself is not changed.
    epsilon : float
        Added to the denominators.
    name : str, optional
        Name of the object.
    """

    metric_names: Sequence[str] = ("Precision", "Recall")
    greater_is_better = True

    def __init__(
        self, num_classes: int, binarize: bool = False, epsilon: float = 1e-6, name: str | None = None
    ) -> None:
        super().__init__(name)
        self.num_classes = integer(f"{self.classnm}: num_classes", num_classes)
        self.binarize, self.epsilon = binarize, epsilon

    def column_values(self, y: Outputs, t: Targets) -> Operand:
        y, t = check_same_shape(self, y, t)
        if y.shape[0] != self.num_classes:
            raise ValueError(f"PrecisionRecall: expected num_classes = {self.num_classes} rows, got {describe(y)}")
        if self.binarize:
            classes = self.be.onehot(self.be.argmax(y, axis=0), axis=0, nclass=self.num_classes)
            y = self.be.where(has_nan(self, y), math.nan, classes)
        return self.be.concat([y * t, y, t])

    def compute(self, sums: NDArray[np.float64], count: float) -> MetricResult:
        counts = sums.reshape(3, self.num_classes)
        means: NDArray[np.float64] = (counts[0] / (counts[1:] + self.epsilon)).mean(axis=1)
        return means


class ObjectDetection(Metric):
    """Accuracy of the classes and smooth L1 loss of the boxes of R regions: means over the regions.

    ``y = (scores (classes, R), boxes (4 classes, R))`` and ``t = (one-hot labels, boxes)`` or
    ``t = (one-hot labels, (boxes, mask))``; the mask has the shape of the boxes, and is 1 for boxes that contribute to
    the loss, else 0.

    Parameters
    ----------
    name : str, optional
        Name of the object.

    References
    ----------
    Girshick 2015, Fast R-CNN, section 2.3.
    """

    metric_names: Sequence[str] = ("Accuracy", "SmoothL1Loss")

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._accuracy, self._smooth = Accuracy(), SmoothL1Loss()

    def column_values(self, y: Outputs, t: Targets) -> Operand:
        for label, x in (("y = (scores, boxes)", y), ("t = (labels, boxes) or (labels, (boxes, mask))", t)):
            if not isinstance(x, list | tuple) or len(x) != 2:
                raise TypeError(f"ObjectDetection: expected {label}, got {describe(x)}")
        (scores, boxes), (labels, targets) = cast(Sequence[Any], y), cast(Sequence[Any], t)
        if type(targets) in (list, tuple):
            targets, mask = targets
            boxes, mask = check_same_shape(self, boxes, mask, "boxes and their mask")
            boxes, targets = boxes * mask, targets * mask
        for part in (self._accuracy, self._smooth):
            part.be = self._be
        check_same_shape(self, scores, labels, "scores and their labels")
        check_same_shape(self, boxes, targets, "boxes and their targets")
        return self.be.concat([self._accuracy.metric_values(scores, labels), self._smooth(boxes, targets)])


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


# --- sequences -----------------------------------------------------------------------------------------------------


class BitsPerCharacter(LogLoss):
    """Bits per character: the mean over columns of ``-log2 sum_i y_i t_i``.

    y (V, T * N) are probabilities of tokens, t is one-hot, or (t, mask). Logarithms are clipped at -50 / ln 2.

    Parameters
    ----------
    name : str, optional
        Name of the object.
    """

    metric_names: Sequence[str] = ("BitsPerCharacter",)

    def compute(self, sums: NDArray[np.float64], count: float) -> MetricResult:
        return [nats / math.log(2) for nats in super().compute(sums, count)]


class Perplexity(LogLoss):
    """Perplexity: the exponential of the mean cross-entropy of a token, ``exp(mean(-ln sum_i y_i t_i))``.

    y (V, T * N) are probabilities of tokens, t is one-hot, or (t, mask). For a data set, the mean is over all its
    tokens.

    Parameters
    ----------
    name : str, optional
        Name of the object.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> y, t = be.array([[0.5, 0.25], [0.5, 0.75]]), be.array([[1.0, 1.0], [0.0, 0.0]])
    >>> round(Perplexity()(y, t), 3)  # sqrt(2 * 4)
    2.828
    """

    metric_names: Sequence[str] = ("Perplexity",)

    def compute(self, sums: NDArray[np.float64], count: float) -> MetricResult:
        return [math.exp(nats) for nats in super().compute(sums, count)]


class SequenceMetric(Metric):
    """Base class of metrics of whole sequences: column t * N + n is step t of sequence n, N = be.bsz.

    ``calcrange`` must select the same sequences in each step. Subclasses implement ``column_values(y, t)``, whose last
    row is the mask, and ``score_sequences(values)``.
    """

    def score_sequences(self, values: NDArray[np.float64]) -> MetricResult:
        """Return one score per sequence.

        Parameters
        ----------
        values : ndarray
            (rows, T, n) column values of n sequences, on the host; the last row is the mask.

        Returns
        -------
        sequence of float
            n scores.
        """
        raise NotImplementedError(f"{self.classnm}: implement score_sequences(values)")

    def sums(self, y: Outputs, t: Targets, calcrange: slice = slice(0, None)) -> tuple[NDArray[np.float64], float]:
        values, total, N = self.select_columns(y, t, calcrange), cast(Operand, y).shape[1], self.be.bsz
        steps = total // N if N and not total % N else 0
        if not steps or values.shape[1] % steps:
            raise ValueError(
                f"{self.classnm}: expected the columns of whole sequences, t * N + n, got {values.shape[1]} of {total} "
                f"columns with be.bsz = {N}"
            )
        values = values.reshape(len(values), steps, -1)
        values = values[:, :, values[-1].any(axis=0)]  # skip sequences whose mask is 0 in every step
        total_score: Any = sum(self.score_sequences(values))
        return total_score, values.shape[2]

    def compute(self, sums: NDArray[np.float64], count: float) -> MetricResult:
        if not count:
            raise ValueError(f"{self.classnm}: expected a mask that selects sequences, got one that is 0 everywhere")
        return [float(sums) / count]


class SequenceAccuracy(SequenceMetric):
    """The fraction of sequences that are correct in every step: y and t (F, T * N) agree when rounded to 0 or 1.

    With targets (t, mask), steps whose mask is 0 are ignored. N is be.bsz.

    Parameters
    ----------
    onehot : bool
        Whether to compare ``argmax(y)`` with ``argmax(t)`` instead, as for one-hot tokens.
    name : str, optional
        Name of the object.
    """

    metric_names: Sequence[str] = ("SequenceAccuracy",)
    greater_is_better = True

    def __init__(self, onehot: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.onehot = onehot

    def column_values(self, y: Outputs, t: Targets) -> Operand:
        outputs, targets, count = split_columns(self, y, t)
        if self.onehot:
            wrong = self.be.not_equal(self.be.argmax(outputs, axis=0), self.be.argmax(targets, axis=0))
            wrong = self.be.maximum(wrong, has_nan(self, outputs))
        else:
            is_nan = self.be.not_equal(outputs, outputs)  # which is always wrong
            wrong = self.be.maximum(self.be.not_equal(outputs > 0.5, targets > 0.5), is_nan)
            mask = split_mask(t)[1]
            if mask is not None and mask.shape == targets.shape:
                wrong = wrong * self.be.not_equal(mask, 0)
            wrong = self.be.max(wrong, axis=0)
        return self.be.concat([wrong, count])

    def score_sequences(self, values: NDArray[np.float64]) -> MetricResult:
        scores: NDArray[np.float64] = 1.0 - ((values[0] != 0) & (values[1] != 0)).any(axis=0)
        return scores


class EditDistance(SequenceMetric):
    """Mean edit distance: the number of tokens to insert, delete or replace to turn y into t.

    y and t are probabilities or one-hot (V, T * N), of which the argmax is used, or token ids (1, T * N). With targets
    (t, mask), tokens whose mask is 0 are ignored. N is be.bsz.

    Parameters
    ----------
    eos : int, optional
        Id of the end-of-sentence token: y and t are each truncated at the first one.
    name : str, optional
        Name of the object.

    References
    ----------
    Wagner and Fischer, "The string-to-string correction problem", 1974.
    """

    metric_names: Sequence[str] = ("EditDistance",)
    greater_is_better = False

    def __init__(self, eos: int | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.eos = eos

    def column_values(self, y: Outputs, t: Targets) -> Operand:
        outputs, targets, count = split_columns(self, y, t)
        predicted, correct = ((x if x.shape[0] == 1 else self.be.argmax(x, axis=0)) * 1.0 for x in (outputs, targets))
        return self.be.concat([self.be.where(has_nan(self, outputs), math.nan, predicted), correct, count])

    def score_sequences(self, values: NDArray[np.float64]) -> MetricResult:
        distances = []
        for predicted, correct, counts in values.transpose(2, 0, 1).tolist():
            # y ends at its own <eos> if it has one, else where t does
            valid = [True] * len(counts) if self.eos in predicted else counts
            distances.append(levenshtein(self._truncate(predicted, valid), self._truncate(correct, counts)))
        return distances

    def _truncate(self, tokens: list[float], counts: list[float]) -> list[float]:
        """Return the tokens whose count is not 0, up to the first ``eos``."""
        tokens = [token for token, counted in zip(tokens, counts, strict=True) if counted]
        return tokens[: tokens.index(self.eos)] if self.eos in tokens else tokens


def levenshtein(a: Sequence[object], b: Sequence[object]) -> int:
    """Return the smallest number of insertions, deletions and replacements that turn a into b.

    >>> levenshtein("kitten", "sitting")
    3
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


class MultiMetric(Metric):
    """A metric of one of several outputs: ``metric(y[index], t[index])``.

    Parameters
    ----------
    metric : Metric
        The metric.
    index : int
        Index of the output.
    name : str, optional
        Name of the object.
    """

    def __init__(self, metric: Metric, index: int, name: str | None = None) -> None:
        super().__init__(name)
        self.metric = instance("MultiMetric: metric", metric, Metric, "a metric, such as Accuracy(),")
        self.index = index
        self.metric_names, self.greater_is_better = metric.metric_names, metric.greater_is_better

    @property
    def is_additive(self) -> bool:
        return self.metric.is_additive

    def select_output(self, y: Outputs, t: Targets) -> tuple[Operand, Targets]:
        """Return the output at ``index`` and its target.

        Parameters
        ----------
        y, t : sequence of Tensor or op-tree
            All outputs and targets.
        """
        for label, x in (("outputs", y), ("targets", t)):
            if not isinstance(x, list | tuple) or not -len(x) <= self.index < len(x):
                raise ValueError(f"MultiMetric(index={self.index}): expected several {label}, got {describe(x)}")
        self.metric.be = self._be
        return cast(Sequence[Operand], y)[self.index], cast(Sequence[Targets], t)[self.index]

    def sums(self, y: Outputs, t: Targets, calcrange: slice = slice(0, None)) -> tuple[NDArray[np.float64], float]:
        return self.metric.sums(*self.select_output(y, t), calcrange)

    def merge(self, parts: Sequence[tuple[NDArray[np.float64], float]]) -> tuple[NDArray[np.float64], float]:
        return self.metric.merge(parts)

    def plot(self, values: NDArray[np.float64], axes: Axes) -> None:
        self.metric.plot(values, axes)

    def compute(self, sums: NDArray[np.float64], count: float) -> MetricResult:
        return self.metric.compute(sums, count)

    def __call__(self, y: Outputs, t: Targets, calcrange: slice = slice(0, None)) -> MetricValue:
        return self.metric(*self.select_output(y, t), calcrange)


class BLEUScore(Metric):
    """BLEU score of sentences against references, in percent: ``100 bp exp(mean_n ln(p_n + 1e-7))``, n = 1 to N.

    p_n is the fraction of all n-grams of the sentences that occur in a reference, each counted at most as often as in
    the reference with the most occurrences. The brevity penalty is ``bp = min(1, e^(1 - r/c))`` for c words, and r
    words in total in the references closest in length to their sentences.

    Parameters
    ----------
    unk : str
        The unknown word: n-grams that contain it never match.
    name : str, optional
        Name of the object.

    Attributes
    ----------
    bleu_n : list of float
        The scores of the last call for n-grams up to 1, 2, ..., N.

    References
    ----------
    Papineni et al. 2002, section 2; multi-bleu of Moses, which sums over all sentences.

    Examples
    --------
    >>> round(BLEUScore()(["the cat sat on the mat ."], [["the cat sat on a mat ."]], N=2), 1)
    75.6
    """

    metric_names: Sequence[str] = ("BLEU",)
    greater_is_better = True

    def __init__(self, unk: str = "<unk>", name: str | None = None) -> None:
        super().__init__(name)
        self.unk = unk
        self.bleu_n: list[float] = []

    def __call__(  # type: ignore[override]  # sentences, not operands
        self,
        y: Sequence[Sentence],
        t: Sequence[str | Sequence[Sentence]],
        calcrange: slice = slice(0, None),
        N: int = 4,
        brevity_penalty: bool = False,
        lower_case: bool = True,
    ) -> float:
        """Return the BLEU score.

        Parameters
        ----------
        y : sequence of str or list of str
            Sentences: strings, split at white space, or lists of words.
        t : sequence
            For each sentence a reference string or a list of references.
        calcrange : slice
            The sentences to use.
        N : int
            Length of the longest n-grams.
        brevity_penalty : bool
            Whether to apply the brevity penalty (default: bp = 1).
        lower_case : bool
            Whether to compare words in lower case.

        Returns
        -------
        float
            The score, 0 to 100.
        """
        N = integer(f"{self.classnm}: N", N)
        if isinstance(y, Operand):
            raise TypeError(f"BLEUScore: expected sentences, strings or lists of words, got {describe(y)}")
        if isinstance(y, str) or isinstance(t, str) or len(y) != len(t):
            raise ValueError(f"BLEUScore: expected as many sentences as lists of references, got {describe(y, t)}")

        def words(sentence: Sentence) -> list[str]:
            split = sentence.split() if isinstance(sentence, str) else list(sentence)
            return [word.lower() for word in split] if lower_case else split

        sentences = [words(sentence) for sentence in list(y)[calcrange]]
        references = [[words(r) for r in ([rs] if isinstance(rs, str) else rs)] for rs in list(t)[calcrange]]
        if not sentences or not all(references):
            raise ValueError(
                f"BLEUScore: expected a sentence in calcrange {calcrange}, and a reference for each, "
                f"got {describe(y, t)}"
            )
        pairs = list(zip(sentences, references, strict=True))
        (unk,) = words([self.unk])
        log_precisions = []
        for n in range(1, N + 1):
            correct = total = 0
            for sentence, refs in pairs:
                predicted, most = ngram_counts(sentence, n), Counter[tuple[str, ...]]()
                for reference in refs:
                    most |= ngram_counts(reference, n)
                correct += sum(count for gram, count in (predicted & most).items() if unk not in gram)
                total += sum(predicted.values())
            log_precisions.append(math.log((correct / total if total else 0) + 1e-7))
        factor = 100 * (compute_brevity_penalty(pairs) if brevity_penalty else 1.0)
        self.bleu_n = [factor * math.exp(sum(log_precisions[:n]) / n) for n in range(1, N + 1)]
        return self.bleu_n[-1]


def ngram_counts(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    """Return the number of occurrences of each n-gram."""
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def compute_brevity_penalty(pairs: list[tuple[list[str], list[list[str]]]]) -> float:
    """Return min(1, e^(1 - r/c)); of references equally close in length, the shorter one is used."""
    c = sum(len(sentence) for sentence, _ in pairs)
    r = sum(min((abs(len(x) - len(sentence)), len(x)) for x in references)[1] for sentence, references in pairs)
    return min(1.0, math.exp(1 - r / c)) if c else 0.0


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
