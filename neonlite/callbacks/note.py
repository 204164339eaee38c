"""What is noted of a training?  Its costs, how well it does on data that it does not learn from, and its weights."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from neonlite.callbacks.callback import CHANGES, Callback, data_set, undisturbed, whole
from neonlite.layers import BatchNorm
from neonlite.optree import describe
from neonlite.transforms import PrecisionRecall

# --- what it costs ---------------------------------------------------------------------------------------------------


class TrainCost(Callback):
    """Notes the mean cost of the minibatches of each epoch, as "cost, train".

    ``mean`` is that of the last ``wsz`` minibatches; with ``minibatch_freq`` it is noted too, in every so many of them,
    as "cost, minibatches".
    """

    def __init__(self, wsz: int = 10, minibatch_freq: Any = 0) -> None:
        super().__init__(minibatch_freq=minibatch_freq)
        self.wsz = whole("TrainCost: wsz", wsz, 1)
        self.recent: deque[float] = deque(maxlen=wsz)
        self.before = 0.0

    @property
    def mean(self) -> float:
        """The mean cost of the last minibatches."""
        return sum(self.recent) / len(self.recent)

    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        self.before = self.model.epoch_cost

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self.recent.append(self.model.epoch_cost - self.before)
        if self.should_fire(minibatch, self.minibatch_freq):
            at = epoch + (minibatch + 1) / self.model.nbatches
            self.callbacks.history.note("cost, minibatches", at, self.mean)

    def on_epoch_end(self, epoch: int) -> None:
        self.callbacks.history.note("cost, train", epoch + 1, self.model.total_cost)

    def get_state(self) -> Any:
        return {"recent": list(self.recent)}

    def set_state(self, state: Any) -> None:
        self.recent = deque(numbers(self, state, "recent"), maxlen=self.wsz)


class TrainMulticost(TrainCost):
    """Notes, beside the cost, each of those that a ``Multicost`` adds up, as "cost, train 0" and so on, trunk first."""

    def __init__(self, wsz: int = 10, minibatch_freq: Any = 0) -> None:
        super().__init__(wsz, minibatch_freq)
        self.sums: list[float] = []  # of this epoch
        self.count = 0

    def on_train_begin(self, epochs: int) -> None:
        if not hasattr(self.model.cost, "costs"):
            raise ValueError(f"multicost=True is for a Multicost; the cost is {describe(self.model.cost)}")

    def on_epoch_begin(self, epoch: int) -> None:
        if not self.model.minibatch_index or len(self.sums) != len(self.model.cost.costs):
            self.sums, self.count = [0.0] * len(self.model.cost.costs), 0

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        super().on_minibatch_end(epoch, minibatch)
        costs = [float("nan") if cost.cost is None else cost.cost.item() for cost in self.model.cost.costs]
        self.sums = [total + cost for total, cost in zip(self.sums, costs, strict=True)]
        self.count += 1

    def on_epoch_end(self, epoch: int) -> None:
        super().on_epoch_end(epoch)
        for i, total in enumerate(self.sums):
            self.callbacks.history.note(f"cost, train {i}", epoch + 1, total / self.count)

    def get_state(self) -> Any:
        return {**super().get_state(), "sums": self.sums, "count": self.count}

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        self.sums = numbers(self, state, "sums")
        self.count = whole("TrainMulticost: count", state.get("count"), 0)


# --- how good it is --------------------------------------------------------------------------------------------------


class Judge(Callback):
    """Judges a data set every so many epochs and notes what it finds; one of your own says ``judge``."""

    def __init__(self, eval_set: Any, epoch_freq: Any = 1) -> None:
        super().__init__(epoch_freq)
        self.eval_set = data_set(f"{self.classnm}: eval_set", eval_set)

    def judge(self) -> dict[str, float]:
        """Return what is to be noted, by name."""
        raise NotImplementedError(f"{self.classnm}: write judge()")

    def on_epoch_end(self, epoch: int) -> None:
        if self.should_fire(epoch, self.epoch_freq):
            began = time.perf_counter()
            with undisturbed(self.eval_set):
                found = self.judge()
            for name, value in found.items():
                self.callbacks.history.note(name, epoch + 1, value)
            took = time.perf_counter() - began
            self.callbacks.seconds |= dict.fromkeys([*found][-1:], took)  # the line shows it behind the last of them


class Loss(Judge):
    """Notes the mean cost of a validation set, as "cost, validation"."""

    def judge(self) -> dict[str, float]:
        return {"cost, validation": self.model.eval_cost(self.eval_set)}


class Metric(Judge):
    """Notes a metric of a validation set, under its names."""

    def __init__(self, eval_set: Any, metric: Any, epoch_freq: Any = 1) -> None:
        super().__init__(eval_set, epoch_freq)
        if isinstance(metric, type):
            raise ValueError(f"a metric is an object, {metric.__name__}(); got the class")
        if not callable(metric) or not hasattr(metric, "metric_names"):
            raise TypeError(f"a metric is an object such as Accuracy(), with metric_names; got {describe(metric)}")
        self.metric = metric

    def judge(self) -> dict[str, float]:
        values = self.model.eval(self.eval_set, self.metric)
        return dict(zip(self.metric.metric_names, map(float, values), strict=True))


class MultiLabelStats(Judge):
    """Notes precision and recall of each label, as "Precision, LABEL" and "Recall, LABEL".

    ``metric``: PrecisionRecall(number of labels). Counted over the whole set; 0 where nothing is said, or true.
    """

    def __init__(self, eval_set: Any, labels: Sequence[str], metric: Any, epoch_freq: Any = 1) -> None:
        super().__init__(eval_set, epoch_freq)
        if not isinstance(metric, PrecisionRecall):
            raise TypeError(f"MultiLabelStats takes PrecisionRecall({len(labels)}); got {describe(metric)}")
        if len(labels) != metric.num_classes:
            raise ValueError(f"MultiLabelStats: {metric.num_classes} classes take as many labels; got {labels}")
        self.labels, self.metric = list(labels), metric

    def judge(self) -> dict[str, float]:
        n = len(self.labels)
        counts = [float(x) for x in self.model.eval(self.eval_set, self.fractions)]  # of all rows: right, said, true
        right, of = counts[:n], {"Precision": counts[n : 2 * n], "Recall": counts[2 * n :]}
        return {
            f"{word}, {label}": right[i] / of[word][i] if of[word][i] else 0.0
            for i, label in enumerate(self.labels)
            for word in of
        }

    def fractions(self, y: Any, t: Any, calcrange: Any) -> Any:
        """Return, for each label, in which parts of the columns it is right, said, and true."""
        return self.metric.columns(y, t).asnumpyarray()[:, calcrange].mean(axis=1)


# --- the weights -----------------------------------------------------------------------------------------------------


class Hist(Callback):
    """Notes how many elements of each layer's tensors have which magnitude, each epoch or each minibatch.

    ``filter_key``: the attributes of layers that are looked at, such as W and dW. Counted by ``Tensor.hist``, in powers
    of two, under "LAYER.W".
    """

    def __init__(self, plot_per_mini: bool = False, filter_key: Sequence[str] = ("W",)) -> None:
        super().__init__()
        if isinstance(filter_key, str) or not all(isinstance(key, str) for key in filter_key):
            raise TypeError(f"Hist: filter_key is a list of layers' attributes, such as ['W']; got {filter_key!r}")
        self.plot_per_mini, self.filter_key = plot_per_mini, list(filter_key)

    def look(self, at: float) -> None:
        """Note the histograms of now."""
        be = self.model.be
        for layer in self.model.layers.leaves():
            for key in self.filter_key:
                tag = f"{layer.name}.{key}"
                tensor: Any = getattr(layer, key, None)
                if hasattr(tensor, "hist"):
                    counts = tensor.hist(tag).get().ravel().tolist()
                    self.callbacks.history.note_histogram(tag, at, counts, be.hist_offset)
                    be.hist_buf.pop(tag)

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if self.plot_per_mini:
            self.look(epoch + (minibatch + 1) / self.model.nbatches)

    def on_epoch_end(self, epoch: int) -> None:
        if not self.plot_per_mini:
            self.look(epoch + 1)


class BatchNormTune(Callback):
    """Computes the statistics that BatchNorm layers have for inference anew, over a whole data set, before judging.

    They become the means over all minibatches, where the running ones lean on the last. ``tune_set``: that of
    ``Callbacks(train_set=...)`` unless given; a minibatch of another size than the first is left out. Training itself
    goes on with the same bits as without it.

    Source: Ioffe and Szegedy 2015, algorithm 2, with the population variance.
    """

    turn = CHANGES

    def __init__(self, tune_set: Any = None, epoch_freq: Any = 1) -> None:
        super().__init__(epoch_freq)
        self.tune_set: Any = None if tune_set is None else data_set("BatchNormTune: tune_set", tune_set)

    def on_train_begin(self, epochs: int) -> None:
        if self.tune_set is None:
            self.tune_set = self.callbacks.train_set
        if self.tune_set is None:
            raise ValueError("BatchNormTune goes through data: BatchNormTune(tune_set), or Callbacks(train_set=...)")

    def on_epoch_end(self, epoch: int) -> None:
        if not self.should_fire(epoch, self.epoch_freq):
            return
        layers = [layer for layer in self.model.layers.leaves() if isinstance(layer, BatchNorm)]
        before, chance = [layer.rho for layer in layers], self.model.be.rng_get_state()
        try:
            with undisturbed(self.tune_set):
                self.average(layers)
        finally:
            self.model.be.rng_set_state(chance)
            for layer, rho in zip(layers, before, strict=True):
                layer.rho = rho

    def average(self, layers: list[Any]) -> None:
        """Go through the data, each minibatch counting as much as those before: the part of the old is k / (k + 1)."""
        k, shape = 0, None
        for x, _ in self.tune_set:
            shapes = [t.shape for t in x] if isinstance(x, list | tuple) else x.shape
            shape = shape or shapes
            if shapes == shape:
                for layer in layers:
                    layer.rho = k / (k + 1)
                self.model.fprop(x)
                k += 1


class RunTimer(Callback):
    """Counts the seconds of the epochs that were done, in ``seconds``."""

    def __init__(self) -> None:
        super().__init__()
        self.began = self.seconds = 0.0

    def on_epoch_begin(self, epoch: int) -> None:
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int) -> None:
        self.seconds += time.perf_counter() - self.began


def numbers(callback: Callback, state: Any, name: str) -> list[float]:
    """Return a list of numbers in a state. ValueError when there is none of that name."""
    found = state.get(name) if isinstance(state, dict) else None
    if not isinstance(found, list) or not all(type(x) in (int, float) for x in found):
        raise ValueError(f"{callback.classnm}: {name} in its state is a list of numbers; got {describe(state)}")
    return [float(x) for x in found]
