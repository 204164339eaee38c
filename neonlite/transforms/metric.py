"""How good is an output?  A number to read, on the host; nothing is trained by it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from neonlite.optree import describe
from neonlite.transforms.cost import SmoothL1Loss
from neonlite.transforms.transform import Metric, alike, whole


def unmasked(t: Any) -> tuple[Any, Any]:
    """Return targets and their mask, given (t, mask), or t alone: the mask is then None."""
    return (t[0], t[1]) if isinstance(t, list | tuple) and len(t) == 2 else (t, None)


def weights(owner: Metric, t: Any, mask: Any) -> Any:
    """Return how much each column counts, (1, columns): the most that a mask has in it, 1 without a mask."""
    if mask is None:
        return owner.be.ones((1, t.shape[1]))
    if getattr(mask, "shape", None) not in (t.shape, (1, t.shape[1])):
        raise ValueError(
            f"{owner.classnm}: a mask has the shape of the targets, or (1, columns); "
            f"got {describe(mask)} for {describe(t)}"
        )
    return owner.be.max(mask, axis=0)


class OfColumns(Metric):
    """The base of metrics that are means over columns; with targets (t, mask), over those that the mask lets through.

    A mask has the shape of t, or (1, columns); a column counts as much as the most that the mask has in it. A class of
    your own gives ``each(y, t)``.
    """

    def each(self, y: Any, t: Any) -> Any:
        """Return an op-tree with a row for each name and a value for each column of y, given targets of its shape."""
        raise NotImplementedError(f"{self.classnm}: write each(y, t), an op-tree made with self.be")

    def columns(self, y: Any, t: Any) -> Any:
        t, mask = unmasked(t)
        alike(self, y, t)
        count = weights(self, t, mask)
        return self.be.concat([self.be.where(count, self.each(y, t) * count, 0), count])

    def sums(self, y: Any, t: Any, calcrange: Any = slice(0, None)) -> tuple[Any, float]:
        total = self.chosen(y, t, calcrange).sum(axis=1)
        return total[:-1], total[-1]

    def summary(self, sums: Any, count: float) -> Any:
        if not count:
            raise ValueError(f"{self.classnm}: the mask lets no column through")
        return sums / count


class LogLoss(OfColumns):
    """The mean over columns of ``-ln sum_i y_i t_i``: y (classes, N) probabilities, t one-hot, or (t, mask).

    The logarithm ends at -50.
    """

    metric_names: Sequence[str] = ("LogLoss",)

    def each(self, y: Any, t: Any) -> Any:
        return -self.be.safelog(self.be.sum(y * t, axis=0))


class TopKMisclassification(OfColumns):
    """The log loss, and the fractions of columns whose class is not the best, and not among the k best.

    y (classes, N), t one-hot, or (t, mask). Equal outputs share the places that are left: with b outputs above that of
    the right class and e equal to it, itself among them, ``misclassified = 1 - clip((k - b) / e, 0, 1)``.

    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> y, t = be.array([[0.5], [0.25], [0.25]]), be.array([[0.0], [1.0], [0.0]])
    >>> TopKMisclassification(k=2)(y, t)
    array([1.386, 1.   , 0.5  ])

    Source: Russakovsky et al. 2015, section 4.1 (top-5 error).
    """

    def __init__(self, k: int, name: str | None = None) -> None:
        super().__init__(name)
        whole(self, k=k)
        self.k = k
        self.metric_names = ["LogLoss", "Top1Misclass", f"Top{k}Misclass"]

    def each(self, y: Any, t: Any) -> Any:
        classes = y.shape[0]
        if self.k > classes:
            raise ValueError(f"TopKMisclassification: k = {self.k} is more than the {classes} classes of {describe(y)}")
        right = self.be.onehot(self.be.argmax(t, axis=0), axis=0, nclass=classes)
        score = self.be.sum(self.be.where(right, y, 0), axis=0)
        above, equal = self.be.sum(y > score, axis=0), self.be.sum(self.be.equal(y, score), axis=0)
        top1, topk = (1 - self.be.clip((k - above) / equal, 0, 1) for k in (1, self.k))
        return self.be.concat([-self.be.safelog(self.be.sum(y * t, axis=0)), top1, topk])


class Misclassification(OfColumns):
    """The fraction of columns where the largest elements of y and t (classes, N) stand in different rows.

    Of equal elements the first counts. With targets (t, mask) it is that of the columns that the mask lets through.
    ``steps`` is neon's number of time steps, and has no effect: all columns count.
    """

    metric_names: Sequence[str] = ("Top1Misclass",)

    def __init__(self, steps: int = 1, name: str | None = None) -> None:
        super().__init__(name)
        self.steps = steps

    def each(self, y: Any, t: Any) -> Any:
        if y.shape[0] == 1:
            raise ValueError(f"{self.classnm} compares two classes or more, a row each; got {describe(y)}")
        return self.be.not_equal(self.be.argmax(y, axis=0), self.be.argmax(t, axis=0))


class Accuracy(Misclassification):
    """The fraction of columns where the largest elements of y and t (classes, N), first of equals, share a row.

    With targets (t, mask) it is that of the columns that the mask lets through.
    """

    metric_names: Sequence[str] = ("Accuracy",)

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)

    def each(self, y: Any, t: Any) -> Any:
        return 1 - super().each(y, t)


class PrecisionRecall(Metric):
    """The means over classes of ``right / (said + epsilon)`` and ``right / (true + epsilon)``.

    y and t (num_classes, N) hold 0 and 1. Counted over columns: said where y is 1, true where t is, right where both
    are. ``binarize`` takes for y the one-hot of its largest element; y itself does not change. A class that nobody
    says, or that is never true, counts as 0.
    """

    metric_names: Sequence[str] = ("Precision", "Recall")

    def __init__(
        self, num_classes: int, binarize: bool = False, epsilon: float = 1e-6, name: str | None = None
    ) -> None:
        super().__init__(name)
        whole(self, num_classes=num_classes)
        self.num_classes, self.binarize, self.epsilon = num_classes, binarize, epsilon

    def columns(self, y: Any, t: Any) -> Any:
        alike(self, y, t)
        if y.shape[0] != self.num_classes:
            raise ValueError(f"PrecisionRecall: num_classes = {self.num_classes}, a row each; got {describe(y)}")
        if self.binarize:
            y = self.be.onehot(self.be.argmax(y, axis=0), axis=0, nclass=self.num_classes)
        return self.be.concat([y * t, y, t])

    def summary(self, sums: Any, count: float) -> Any:
        counts = sums.reshape(3, self.num_classes)
        return (counts[0] / (counts[1:] + self.epsilon)).mean(axis=1)


class ObjectDetection(Metric):
    """The accuracy of the regions' classes, and the smooth L1 loss of their boxes; means over regions.

    ``y = (scores (classes, R), boxes (4 classes, R))`` and ``t = (one-hot labels, boxes)`` or
    ``t = (one-hot labels, (boxes, mask))``: the mask, of the boxes' shape, is 1 for the boxes that count, else 0.

    Source: Girshick 2015, Fast R-CNN, section 2.3.
    """

    metric_names: Sequence[str] = ("Accuracy", "SmoothL1Loss")

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._accuracy, self._smooth = Accuracy(), SmoothL1Loss()

    def columns(self, y: Any, t: Any) -> Any:
        for what, x in (("y = (scores, boxes)", y), ("t = (labels, boxes) or (labels, (boxes, mask))", t)):
            if type(x) not in (list, tuple) or len(x) != 2:
                raise TypeError(f"ObjectDetection takes {what}; got {describe(x)}")
        (scores, boxes), (labels, targets) = y, t
        if type(targets) in (list, tuple):
            targets, mask = targets
            alike(self, boxes, mask, "boxes and their mask")
            boxes, targets = boxes * mask, targets * mask
        for part in (self._accuracy, self._smooth):
            part.be = self._be
        alike(self, scores, labels, "scores and their labels")
        alike(self, boxes, targets, "boxes and their targets")
        return self.be.concat([self._accuracy.each(scores, labels), self._smooth(boxes, targets)])


# --- of sequences --------------------------------------------------------------------------------------------------


class BitsPerCharacter(LogLoss):
    """The mean over columns of ``-log2 sum_i y_i t_i``: y (V, T * N) probabilities of tokens, t one-hot.

    With targets (t, mask) the mean is over the columns that the mask lets through. The logarithm ends at -50 / ln 2.
    """

    metric_names: Sequence[str] = ("BitsPerCharacter",)

    def summary(self, sums: Any, count: float) -> Any:
        return super().summary(sums, count) / math.log(2)


class Perplexity(LogLoss):
    """The exponential of the mean cross-entropy of a token: ``exp(mean(-ln sum_i y_i t_i))``, y (V, T * N), t one-hot.

    It is as if so many tokens were equally likely each time. With targets (t, mask) the mean is over the columns that
    the mask lets through; of a data set it is over all its tokens.

    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> y, t = be.array([[0.5, 0.25], [0.5, 0.75]]), be.array([[1.0, 1.0], [0.0, 0.0]])
    >>> round(Perplexity()(y, t), 3)  # the root of 2 * 4
    2.828
    """

    metric_names: Sequence[str] = ("Perplexity",)

    def summary(self, sums: Any, count: float) -> Any:
        return [math.exp(nats) for nats in super().summary(sums, count)]


class OfSequences(Metric):
    """The base of metrics that judge whole sequences: column t * N + n is step t of sequence n, N = be.bsz.

    ``calcrange`` takes the same sequences in each step, as that of ``Model.eval`` does. A class of your own gives
    ``columns(y, t)``, and ``sequences(values)`` of values (rows, T, n): one number a sequence.
    """

    def sequences(self, values: Any) -> Any:
        """Return a number for each of n sequences, given values (rows, T, n) on the host, the last row the mask."""
        raise NotImplementedError(f"{self.classnm}: write sequences(values)")

    def sums(self, y: Any, t: Any, calcrange: Any = slice(0, None)) -> tuple[Any, float]:
        values, total, N = self.chosen(y, t, calcrange), y.shape[1], self.be.bsz
        steps = total // N if N and not total % N else 0
        if not steps or values.shape[1] % steps:
            raise ValueError(
                f"{self.classnm}: columns are those of whole sequences, t * N + n; got {values.shape[1]} of "
                f"{total} with be.bsz = {N}"
            )
        values = values.reshape(len(values), steps, -1)
        values = values[:, :, values[-1].any(axis=0)]  # a sequence of which nothing counts is none
        return sum(self.sequences(values)), values.shape[2]

    def summary(self, sums: Any, count: float) -> Any:
        if not count:
            raise ValueError(f"{self.classnm}: the mask lets no sequence through")
        return [sums / count]


class SequenceAccuracy(OfSequences):
    """The fraction of sequences that are right in every step and every bit: y and t (F, T * N) agree when rounded.

    With ``onehot`` a step is right when the largest elements of y and t share a row, as of tokens. With targets
    (t, mask) only the steps count where the mask is not 0. N is be.bsz.
    """

    metric_names: Sequence[str] = ("SequenceAccuracy",)

    def __init__(self, onehot: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.onehot = onehot

    def columns(self, y: Any, t: Any) -> Any:
        t, mask = unmasked(t)
        alike(self, y, t)
        count = weights(self, t, mask)
        if self.onehot:
            wrong = self.be.not_equal(self.be.argmax(y, axis=0), self.be.argmax(t, axis=0))
        else:
            wrong = self.be.maximum(self.be.not_equal(y > 0.5, t > 0.5), self.be.not_equal(y, y))  # NaN is no bit
            if mask is not None and mask.shape == t.shape:
                wrong = wrong * self.be.not_equal(mask, 0)
            wrong = self.be.max(wrong, axis=0)
        return self.be.concat([wrong, count])

    def sequences(self, values: Any) -> Any:
        return 1.0 - ((values[0] != 0) & (values[1] != 0)).any(axis=0)


class EditDistance(OfSequences):
    """The mean over sequences of how many tokens are to be inserted, removed or replaced to come from y to t.

    y and t are one-hot or probabilities (V, T * N), of which the largest counts, or ids (1, T * N). With targets
    (t, mask) the tokens count where the mask is not 0. ``eos``: the number of a token at which a sequence ends, that of
    y at its own first one. N is be.bsz.

    Source: Wagner and Fischer, "The string-to-string correction problem", 1974.
    """

    metric_names: Sequence[str] = ("EditDistance",)

    def __init__(self, eos: int | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.eos = eos

    def columns(self, y: Any, t: Any) -> Any:
        t, mask = unmasked(t)
        alike(self, y, t)
        count = weights(self, t, mask)
        return self.be.concat([*((x if x.shape[0] == 1 else self.be.argmax(x, axis=0)) * 1.0 for x in (y, t)), count])

    def sequences(self, values: Any) -> Any:
        found = []
        for said, right, counts in values.transpose(2, 0, 1).tolist():
            # y may be longer or shorter than t where its own end says so
            there = [True] * len(counts) if self.eos in said else counts
            found.append(levenshtein(self._ended(said, there), self._ended(right, counts)))
        return found

    def _ended(self, tokens: list[float], counts: list[Any]) -> list[float]:
        """Return the tokens that count, up to the end."""
        kept = [token for token, counted in zip(tokens, counts, strict=True) if counted]
        return kept[: kept.index(self.eos)] if self.eos in kept else kept


def levenshtein(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the smallest number of insertions, removals and replacements that make b of a.

    >>> levenshtein("kitten", "sitting")
    3
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


class MultiMetric(Metric):
    """Another metric of one output out of several: ``metric(y[index], t[index])``."""

    def __init__(self, metric: Metric, index: int, name: str | None = None) -> None:
        super().__init__(name)
        if not isinstance(metric, Metric):
            raise TypeError(f"MultiMetric takes a metric, such as Accuracy(); got {describe(metric)}")
        self.metric, self.index = metric, index
        self.metric_names = metric.metric_names

    @property
    def adds_up(self) -> bool:
        return self.metric.adds_up

    def one(self, y: Any, t: Any) -> tuple[Any, Any]:
        """Return the output and its target."""
        for what, x in (("outputs", y), ("targets", t)):
            if type(x) not in (list, tuple) or not -len(x) <= self.index < len(x):
                raise ValueError(f"MultiMetric(index={self.index}) takes several {what}; got {describe(x)}")
        self.metric.be = self._be
        return y[self.index], t[self.index]

    def sums(self, y: Any, t: Any, calcrange: Any = slice(0, None)) -> tuple[Any, float]:
        return self.metric.sums(*self.one(y, t), calcrange)

    def summary(self, sums: Any, count: float) -> Any:
        return self.metric.summary(sums, count)

    def __call__(self, y: Any, t: Any, calcrange: Any = slice(0, None)) -> Any:
        return self.metric(*self.one(y, t), calcrange)


class BLEUScore(Metric):
    """How much of the sentences is in their references, in percent: ``100 bp exp(mean_n ln(p_n + 1e-7))``, n = 1 to N.

    p_n is the fraction of all n-grams of the sentences that stand in a reference too, each counted as often as it does
    in the reference that has most of it. The brevity penalty is ``bp = min(1, e^(1 - r/c))`` for c words, and r words
    in the references nearest in length; 1 unless ``brevity_penalty``. The word ``unk`` is never right.

    >>> round(BLEUScore()(["the cat sat on the mat ."], [["the cat sat on a mat ."]], N=2), 1)
    75.6

    Sentences are strings, split at white space, or lists of words; references are one such string, or a list of
    references, for each sentence. ``calcrange`` is a slice of the sentences.

    Source: Papineni et al. 2002, section 2; multi-bleu of Moses, which adds up over all sentences.
    """

    metric_names: Sequence[str] = ("BLEU",)

    def __init__(self, unk: str = "<unk>", name: str | None = None) -> None:
        super().__init__(name)
        self.unk = unk

    def __call__(
        self,
        y: Any,
        t: Any,
        calcrange: Any = slice(0, None),
        N: int = 4,
        brevity_penalty: bool = False,
        lower_case: bool = True,
    ) -> float:
        whole(self, N=N)
        if isinstance(y, str) or isinstance(t, str) or len(y) != len(t):
            raise ValueError(f"BLEUScore takes as many sentences as lists of references; got {describe(y, t)}")

        def words(sentence: Any) -> list[str]:
            split = sentence.split() if isinstance(sentence, str) else list(sentence)
            return [word.lower() for word in split] if lower_case else split

        sentences = [words(sentence) for sentence in list(y)[calcrange]]
        references = [[words(r) for r in ([rs] if isinstance(rs, str) else rs)] for rs in list(t)[calcrange]]
        if not sentences or not all(references):
            raise ValueError(
                f"BLEUScore needs a sentence in calcrange {calcrange}, and a reference for each; got {describe(y, t)}"
            )
        pairs = list(zip(sentences, references, strict=True))
        (unk,) = words([self.unk])
        logs = []
        for n in range(1, N + 1):
            right = total = 0
            for sentence, several in pairs:
                said, most = ngrams(sentence, n), Counter[tuple[str, ...]]()
                for reference in several:
                    most |= ngrams(reference, n)
                right += sum(count for gram, count in (said & most).items() if unk not in gram)
                total += sum(said.values())
            logs.append(math.log((right / total if total else 0) + 1e-7))
        score = 100 * math.exp(sum(logs) / N)
        return score * brevity(pairs) if brevity_penalty else score


def ngrams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    """Return how often each run of n words occurs."""
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def brevity(pairs: list[tuple[list[str], list[list[str]]]]) -> float:
    """Return the penalty for sentences shorter than the references nearest in length; the shorter of two as near."""
    c = sum(len(sentence) for sentence, _ in pairs)
    r = sum(min((abs(len(x) - len(sentence)), len(x)) for x in several)[1] for sentence, several in pairs)
    return min(1.0, math.exp(1 - r / c)) if c else 0.0
