"""Callbacks that record training cost, validation cost, metrics, histograms, and the outputs of GANs."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import isqrt, nan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neonlite.backend import Tensor
from neonlite.backend.validation import import_extra, instance, integer, sequence, with_attributes
from neonlite.callbacks.callback import PRIORITY_SAVE, PRIORITY_UPDATE, Callback, check_dataset, check_floats
from neonlite.files import check_writable, write_atomic
from neonlite.layers import BatchNorm
from neonlite.messages import describe
from neonlite.transforms import Cost, PrecisionRecall, get_metric

if TYPE_CHECKING:
    from numpy import floating
    from numpy.typing import NDArray

    from neonlite.data import NervanaDataIterator
    from neonlite.transforms import Metric

# --- training cost ---------------------------------------------------------------------------------------------------


class TrainCostCallback(Callback):
    """Record the mean cost of the minibatches of each epoch, as "loss".

    Parameters
    ----------
    wsz : int
        The number of minibatches of the moving average ``mean``. Default: 10.
    minibatch_freq : int or list of int
        Record ``mean`` as "loss_minibatches" every ``minibatch_freq`` minibatches; 0 for never. Default: 0.
    """

    is_multicost = False

    def __init__(self, wsz: int = 10, minibatch_freq: int | list[int] = 0) -> None:
        super().__init__(minibatch_freq=minibatch_freq)
        self.wsz = integer(f"{self.classnm}: wsz", wsz, 1)
        self.recent_costs: list[float] = []
        self.previous_epoch_cost = 0.0
        self.sums: list[float] = []  # the sums of each cost of a Multicost in this epoch
        self.count = 0

    @property
    def _state_fields(self) -> Mapping[str, Callable[[str, Any], Any]]:
        if not self.is_multicost:
            return {"recent_costs": check_floats}
        return {"recent_costs": check_floats, "sums": check_floats, "count": partial(integer, low=0)}

    @property
    def mean(self) -> float:
        """The mean cost of the last ``wsz`` minibatches."""
        return sum(self.recent_costs) / len(self.recent_costs)

    def on_train_begin(self, epochs: int) -> None:
        if self.is_multicost:
            with_attributes(f"{self.classnm}: cost", self.model.cost, "costs", "a Multicost")

    def on_epoch_begin(self, epoch: int) -> None:
        num_costs = len(self.model.cost.costs) if self.is_multicost else 0
        if not self.model.minibatch_index or len(self.sums) != num_costs:
            self.sums, self.count = [0.0] * num_costs, 0

    def on_minibatch_begin(self, epoch: int, minibatch: int) -> None:
        self.previous_epoch_cost = self.model.epoch_cost

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        self.recent_costs = [*self.recent_costs, self.model.epoch_cost - self.previous_epoch_cost][-self.wsz :]
        if self.should_fire(minibatch, self.minibatch_freq):
            epochs = epoch + (minibatch + 1) / self.model.nbatches
            self.callbacks.history.record("loss_minibatches", epochs, self.mean)
        if self.is_multicost:
            costs = [nan if cost.cost is None else cost.cost.item() for cost in self.model.cost.costs]
            self.sums = [total + cost for total, cost in zip(self.sums, costs, strict=True)]
            self.count += 1

    def on_epoch_end(self, epoch: int) -> None:
        self.callbacks.history.record("loss", epoch + 1, self.model.total_cost)
        for i, total in enumerate(self.sums):
            self.callbacks.history.record(f"loss_{i}", epoch + 1, total / self.count)


class TrainMulticostCallback(TrainCostCallback):
    """Also record each cost of a ``Multicost``, as "loss_0" and so on, the trunk first.

    Parameters
    ----------
    wsz : int
        The number of minibatches of the moving average ``mean``. Default: 10.
    minibatch_freq : int or list of int
        Record ``mean`` as "loss_minibatches" every ``minibatch_freq`` minibatches; 0 for never. Default: 0.
    """

    is_multicost = True


# --- evaluation ------------------------------------------------------------------------------------------------------


class EvalCallback(Callback):
    """Evaluate a data set every ``epoch_freq`` epochs and record the results; subclasses implement ``evaluate``.

    Parameters
    ----------
    eval_set : iterator
        The data set to evaluate; its position is restored.
    epoch_freq : int or list of int
        Evaluate every ``epoch_freq`` epochs, or in the epochs of these indices. Default: 1.
    """

    def __init__(self, eval_set: NervanaDataIterator, epoch_freq: int | list[int] = 1) -> None:
        super().__init__(epoch_freq)
        self.eval_set = check_dataset(f"{self.classnm}: eval_set", eval_set)

    def evaluate(self) -> dict[str, float]:
        """Return the values to record, by name."""
        raise NotImplementedError(f"{self.classnm}: implement evaluate()")

    def on_epoch_end(self, epoch: int) -> None:
        if self.should_fire(epoch, self.epoch_freq):
            start = time.perf_counter()
            with preserve_position(self.eval_set):
                values = self.evaluate()
            for name, value in values.items():
                self.callbacks.history.record(name, epoch + 1, value)
            seconds = time.perf_counter() - start
            self.callbacks.eval_seconds |= dict.fromkeys([*values][-1:], seconds)


class LossCallback(EvalCallback):
    """Record the mean cost on a validation set, as "val_loss".

    Parameters
    ----------
    eval_set : iterator
        The validation set.
    epoch_freq : int or list of int
        Evaluate every ``epoch_freq`` epochs, or in the epochs of these indices. Default: 1.
    """

    @property
    def record_names(self) -> list[str]:
        return ["val_loss"]

    def evaluate(self) -> dict[str, float]:
        return {"val_loss": self.model.eval_cost(self.eval_set)}


class MetricCallback(EvalCallback):
    """Record a metric on a validation set, under the names of the metric.

    It is computed before the first step, too, without a record: a metric that cannot be computed is an error then.

    Parameters
    ----------
    eval_set : iterator
        The validation set.
    metric : Metric, Cost or str
        The metric, such as ``Accuracy()``, a cost, or a short name such as "mse"; see
        ``neonlite.transforms.get_metric``.
    epoch_freq : int or list of int
        Evaluate every ``epoch_freq`` epochs, or in the epochs of these indices. Default: 1.
    """

    def __init__(
        self, eval_set: NervanaDataIterator, metric: Metric | Cost | str, epoch_freq: int | list[int] = 1
    ) -> None:
        super().__init__(eval_set, epoch_freq)
        if isinstance(metric, str | Cost):
            metric = get_metric(metric)
        kind = "a metric, such as Accuracy(),"
        self.metric = with_attributes("MetricCallback: metric", metric, "__call__ metric_names", kind)
        if not self.metric.metric_names:
            raise TypeError(
                f"MetricCallback: expected a metric of named values, such as Accuracy(), got {describe(metric)}"
            )

    @property
    def record_names(self) -> list[str]:
        return [*self.metric.metric_names]

    def on_train_begin(self, epochs: int) -> None:
        self.evaluate()  # raises an error if the metric cannot be computed, before the first step

    def evaluate(self) -> dict[str, float]:
        values = self.model.eval(self.eval_set, self.metric)
        return dict(zip(self.metric.metric_names, map(float, values), strict=True))


class MultiLabelStatsCallback(EvalCallback):
    """Record precision and recall of each label, as "Precision_LABEL" and "Recall_LABEL".

    They are computed over the whole data set; 0 if a label is never predicted, or is in no target.

    Parameters
    ----------
    eval_set : iterator
        The validation set.
    labels : sequence of str
        The names of the classes.
    metric : PrecisionRecall
        ``PrecisionRecall(len(labels))``.
    epoch_freq : int or list of int
        Evaluate every ``epoch_freq`` epochs, or in the epochs of these indices. Default: 1.
    """

    def __init__(
        self,
        eval_set: NervanaDataIterator,
        labels: Sequence[str],
        metric: PrecisionRecall,
        epoch_freq: int | list[int] = 1,
    ) -> None:
        super().__init__(eval_set, epoch_freq)
        instance("MultiLabelStatsCallback: metric", metric, PrecisionRecall, f"PrecisionRecall({len(labels)})")
        if len(labels) != metric.num_classes:
            raise ValueError(f"MultiLabelStatsCallback: expected {metric.num_classes} labels, got {labels}")
        self.labels, self.metric = list(labels), metric

    @property
    def record_names(self) -> list[str]:
        return [f"{name}_{label}" for label in self.labels for name in ("Precision", "Recall")]

    def evaluate(self) -> dict[str, float]:
        n = len(self.labels)
        # Fractions of all rows: those predicted correctly, those predicted, and those in the targets.
        fractions = [float(x) for x in self.model.eval(self.eval_set, self.column_fractions)]
        correct, totals = fractions[:n], zip(fractions[n : 2 * n], fractions[2 * n :], strict=True)
        values = [x / total if total else 0.0 for x, pair in zip(correct, totals, strict=True) for total in pair]
        return dict(zip(self.record_names, values, strict=True))

    def column_fractions(self, y: Tensor, t: Tensor, calcrange: slice) -> NDArray[floating]:
        """Return the fractions of columns with correct predictions, with predictions, and with targets of each label.

        Parameters
        ----------
        y : Tensor
            Outputs (F, N).
        t : Tensor
            Targets (F, N).
        calcrange : slice
            The columns to use.

        Returns
        -------
        numpy.ndarray
            (3 F,): true positives, predicted positives and positives of each label.
        """
        fractions: NDArray[floating] = self.metric.column_values(y, t).asnumpyarray()[:, calcrange].mean(axis=1)
        return fractions


@contextmanager
def preserve_position(dataset: NervanaDataIterator) -> Iterator[None]:
    """Restore the position of a data set at the end, as it may be the training set."""
    state = dataset.get_state() if hasattr(dataset, "get_state") else None
    try:
        yield
    finally:
        if hasattr(dataset, "set_state") and state is not None:
            dataset.set_state(state)


# --- weights ---------------------------------------------------------------------------------------------------------


class HistCallback(Callback):
    """Record histograms of the magnitudes in each layer's tensors, as "LAYER.W".

    ``Tensor.hist`` computes them; the bins are powers of two.

    Parameters
    ----------
    plot_per_mini : bool
        Whether to record after each minibatch instead of each epoch. Default: False.
    filter_key : sequence of str
        Attributes of layers, such as "W" and "dW". Default: ("W",).
    """

    def __init__(self, plot_per_mini: bool = False, filter_key: Sequence[str] = ("W",)) -> None:
        super().__init__()
        if isinstance(filter_key, str) or not all(isinstance(key, str) for key in filter_key):
            raise TypeError(
                f"HistCallback: expected filter_key as a list of layer attributes, such as ['W'], got {filter_key!r}"
            )
        self.plot_per_mini, self.filter_key = plot_per_mini, list(filter_key)

    def record_histograms(self, epochs: float) -> None:
        """Record a histogram of each tensor.

        Parameters
        ----------
        epochs : float
            The number of epochs trained so far, with a fraction within an epoch.
        """
        be = self.model.be
        for layer in self.model.layers.leaves():
            for key in self.filter_key:
                tag = f"{layer.name}.{key}"
                tensor = getattr(layer, key, None)
                if isinstance(tensor, Tensor):
                    counts = tensor.hist(tag).get().ravel().tolist()
                    self.callbacks.history.record_histogram(tag, epochs, counts, be.hist_offset)
                    be.hist_buf.pop(tag)

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if self.plot_per_mini:
            self.record_histograms(epoch + (minibatch + 1) / self.model.nbatches)

    def on_epoch_end(self, epoch: int) -> None:
        if not self.plot_per_mini:
            self.record_histograms(epoch + 1)


class BatchNormTuneCallback(Callback):
    """Recompute the inference statistics of BatchNorm layers over a whole data set, before evaluation.

    They become the means over all minibatches, instead of running means, which weight recent minibatches most.
    Minibatches of another size than the first are skipped. Training is bit-identical to training without this callback.

    Parameters
    ----------
    tune_set : iterator, optional
        The data set. Default: that of ``Callbacks(train_set=...)``.
    epoch_freq : int or list of int
        Run every ``epoch_freq`` epochs, or in the epochs of these indices. Default: 1.

    References
    ----------
    Ioffe and Szegedy 2015, Batch Normalization, algorithm 2, with the population variance.
    """

    priority = PRIORITY_UPDATE

    def __init__(self, tune_set: NervanaDataIterator | None = None, epoch_freq: int | list[int] = 1) -> None:
        super().__init__(epoch_freq)
        self.tune_set = None if tune_set is None else check_dataset("BatchNormTuneCallback: tune_set", tune_set)

    def on_train_begin(self, epochs: int) -> None:
        if self.tune_set is None:
            self.tune_set = self.callbacks.train_set
        if self.tune_set is None:
            raise ValueError(
                "BatchNormTuneCallback: expected a data set, got none. Pass tune_set, or use Callbacks(train_set=...)."
            )

    def on_epoch_end(self, epoch: int) -> None:
        if self.tune_set is None or not self.should_fire(epoch, self.epoch_freq):
            return
        layers = [layer for layer in self.model.layers.leaves() if isinstance(layer, BatchNorm)]
        before, rng_state = [layer.rho for layer in layers], self.model.be.rng_get_state()
        try:
            with self.model.be.lock, preserve_position(self.tune_set):
                self.average_statistics(layers, self.tune_set)
        finally:
            self.model.be.rng_set_state(rng_state)
            for layer, rho in zip(layers, before, strict=True):
                layer.rho = rho

    def average_statistics(self, layers: list[BatchNorm], tune_set: NervanaDataIterator) -> None:
        """Run the training forward pass over the data set, with equal weights for all minibatches.

        Parameters
        ----------
        layers : list of BatchNorm
            The layers to update: at minibatch k, ``rho`` is k / (k + 1).
        tune_set : iterator
            The data set.
        """
        k, shape = 0, None
        for x, _ in tune_set:
            shapes = [t.shape for t in x] if isinstance(x, list | tuple) else x.shape
            shape = shape or shapes
            if shapes == shape:
                for layer in layers:
                    layer.rho = k / (k + 1)
                self.model.fprop(x)
                k += 1


class RunTimerCallback(Callback):
    """Measure the total duration of the complete epochs, in seconds, as ``seconds``."""

    def __init__(self) -> None:
        super().__init__()
        self.start_time = self.seconds = 0.0

    def on_epoch_begin(self, epoch: int) -> None:
        self.start_time = time.perf_counter()

    def on_epoch_end(self, epoch: int) -> None:
        self.seconds += time.perf_counter() - self.start_time


# --- callbacks for GANs: costs of both networks, and images from the generator ---


class GANCallback(Callback):
    """Base class of callbacks for a ``GAN``."""

    def on_train_begin(self, epochs: int) -> None:
        with_attributes(f"{self.classnm}: model", self.model, "cost_gen", "a GAN")


class GANCostCallback(GANCallback):
    """Record the mean costs of both networks of a ``GAN``, as "loss_discriminator" and "loss_generator"."""

    def __init__(self) -> None:
        super().__init__()
        self.last_generator_step = 0
        self.cost_sum_and_count = [0.0, 0.0]  # of the generator's costs in this epoch

    @property
    def _state_fields(self) -> Mapping[str, Callable[[str, Any], Any]]:
        return {
            "cost_sum_and_count": lambda label, value: check_floats(label, sequence(label, value, "a pair", count=2))
        }

    def on_train_begin(self, epochs: int) -> None:
        super().on_train_begin(epochs)
        self.last_generator_step = self.model.gen_iterations

    def on_epoch_begin(self, epoch: int) -> None:
        if not self.model.minibatch_index:
            self.cost_sum_and_count = [0.0, 0.0]

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if self.model.gen_iterations > self.last_generator_step:
            self.last_generator_step = self.model.gen_iterations
            self.cost_sum_and_count = [self.cost_sum_and_count[0] + self.model.cost_gen, self.cost_sum_and_count[1] + 1]

    def on_epoch_end(self, epoch: int) -> None:
        self.callbacks.history.record("loss_discriminator", epoch + 1, self.model.total_cost)
        total, n = self.cost_sum_and_count
        if n:
            self.callbacks.history.record("loss_generator", epoch + 1, total / n)


class GANPlotCallback(GANCallback):
    """Save a grid of images from the generator of a ``GAN`` every ``epoch_freq`` epochs, as FILENAME_EPOCHS.png.

    The images are generated from the same noise each time.

    Parameters
    ----------
    filename : str or Path
        The path without the number of complete epochs; its extension sets the format. Default extension: .png.
    hw : int or tuple of int, optional
        The height and width of an image, or both as one integer. Default: those of the generator's outputs.
    num_samples : int
        The number of images. Default: 36.
    nchan : int, optional
        The number of channels, 1 or 3. Default: that of the generator's outputs.
    sym_range : bool
        Whether -1 is black and 1 is white. Default: False: the minimum of all images is black and the maximum is white.
    zoom : int
        The scale factor: each pixel of an image is drawn as ``zoom`` x ``zoom`` pixels. Default: 4.
    epoch_freq : int or list of int
        Run every ``epoch_freq`` epochs, or in the epochs of these indices. Default: 1.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """

    priority = PRIORITY_SAVE

    def __init__(
        self,
        filename: str | Path,
        hw: int | tuple[int, int] | None = None,
        num_samples: int = 36,
        nchan: int | None = None,
        sym_range: bool = False,
        zoom: int = 4,
        epoch_freq: int | list[int] = 1,
    ) -> None:
        super().__init__(epoch_freq)
        self.filename = check_writable("GANPlotCallback: filename", filename)
        sizes = [] if hw is None else [*hw] if isinstance(hw, tuple | list) else [hw, hw]
        self.hw = [integer("GANPlotCallback: hw", n) for n in sizes]
        self.num_samples = integer("GANPlotCallback: num_samples", num_samples)
        self.nchan = None if nchan is None else integer("GANPlotCallback: nchan", nchan)
        self.sym_range = sym_range
        self.zoom = integer("GANPlotCallback: zoom", zoom)
        self.imsave = import_extra("matplotlib.image", self.classnm, "viz").imsave

    def on_epoch_end(self, epoch: int) -> None:
        if self.should_fire(epoch, self.epoch_freq):
            path = Path(self.filename)
            suffix, image = path.suffix or ".png", io.BytesIO()
            grid = self.make_grid(self.model.generate(self.num_samples))
            self.imsave(image, grid, cmap="gray", format=suffix[1:].lower())
            write_atomic(path.with_name(f"{path.stem}_{epoch + 1}{suffix}"), image.getvalue())

    def make_grid(self, images: NDArray[floating]) -> NDArray[floating]:
        """Arrange images in a square grid.

        Parameters
        ----------
        images : numpy.ndarray
            (n, C, H, W) or (n, F).

        Returns
        -------
        numpy.ndarray
            One image of values from 0 to 1: (height, width), or (height, width, 3).
        """
        n, *shape = images.shape
        C, H, W = self.sizes(shape)
        low, high = (-1, 1) if self.sym_range else (images.min(), images.max())
        scaled = ((images - low) / ((high - low) or 1)).clip(0, 1).reshape(n, C, H, W)
        across = isqrt(n - 1) + 1
        down = -(-n // across)
        rows = scaled[[*range(n), *[0] * (down * across - n)]]
        rows[n:] = 0  # empty cells are black
        rows = rows.reshape(down, across, C, H, W).transpose(0, 3, 1, 4, 2).reshape(down * H, across * W, C)
        rows = rows.repeat(self.zoom, axis=0).repeat(self.zoom, axis=1)
        return rows[:, :, 0] if C == 1 else rows

    def sizes(self, shape: list[int]) -> tuple[int, int, int]:
        """Return the channels, height and width of the images.

        Parameters
        ----------
        shape : list of int
            The shape of one output of the generator.

        Raises
        ------
        ValueError
            The outputs are not images of 1 or 3 channels, or not of the size ``hw``.
        """
        C = self.nchan or (shape[0] if len(shape) == 3 else 1)
        side = isqrt(prod(shape) // C)
        H, W = self.hw or (shape[-2:] if len(shape) == 3 else (side, side))
        if prod(shape) != C * H * W or C not in (1, 3):
            size = f"shape {(C, H, W)} with " if self.hw or self.nchan else ""
            raise ValueError(
                f"GANPlotCallback: expected images of {size}1 or 3 channels, got outputs of shape {tuple(shape)}"
            )
        return C, H, W
