"""Learning-rate schedules: the learning rate as a pure function of the epoch, or of the number of updates.

Schedules have no state, so training can resume at any epoch. Each is a schedule of the index of the epoch, as in neon;
within an ``UpdateSchedule``, its epochs are updates. The position may be a tensor, as in a compiled function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from neonlite import messages, name_hints
from neonlite.backend import NervanaObject, validation
from neonlite.optree import Operand


@name_hints.add_hints(name_hints.SCHEDULE)
class Schedule(NervanaObject):
    """Constant learning rate, and base class of schedules, which implement ``get_learning_rate``.

    For compatibility with older versions of neon, it takes arguments: an integer ``step_config`` selects
    PowerSchedule(step_config, change); a list of epochs multiplies the rate by ``change`` at each of them; two lists
    select StepSchedule(step_config, change).

    Parameters
    ----------
    step_config : int or list of int, optional
        Epochs between changes, or the epochs at which the rate changes; default: a constant rate.
    change : float or list of float
        Factor at each change, or the new rate at each change; default: 1.

    Raises
    ------
    ValueError
        If epochs are not increasing, or the lists have different lengths.

    Examples
    --------
    >>> from neonlite.optimizers import Schedule
    >>> [Schedule([2, 3], 0.5).get_learning_rate(1.0, epoch) for epoch in range(5)]
    [1.0, 1.0, 0.5, 0.25, 0.25]
    """

    needs_base_init = True
    counts_updates: bool = False  # whether the position is the number of updates, and not the epoch
    lower_limits: ClassVar[dict[str, float]] = {}  # of the arguments of a subclass

    def __init__(self, step_config: int | Sequence[int] | None = None, change: float | Sequence[float] = 1.0) -> None:
        super().__init__()
        self.step_config: Any = step_config
        self.change: Any = change
        if isinstance(change, list | tuple):
            check_rates(self)
        else:
            validation.check_attributes(self, "change", low=0)
        if isinstance(step_config, list | tuple):
            check_epochs(self)
        elif step_config is not None:
            validation.check_attributes(self, "step_config", low=1)

    def __post_init__(self) -> None:
        """Set the name, and check the numbers."""
        NervanaObject.__init__(self)
        for name, low in self.lower_limits.items():
            validation.check_attributes(self, name, low=low)
        if hasattr(self, "schedule"):  # of which this one makes another
            check_schedule(self)
            self.counts_updates |= counts_updates(self.schedule)

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        """Return the learning rate of an epoch.

        Parameters
        ----------
        learning_rate : float
            The learning rate of the optimizer.
        epoch : float
            Index of the epoch, from 0.

        Returns
        -------
        float
            The learning rate of the epoch.
        """
        if self.step_config is None:
            return learning_rate
        if not isinstance(self.step_config, list):
            return learning_rate * self.change ** (epoch // self.step_config)
        rate: float = learning_rate
        for k, step in enumerate(self.step_config):
            rate = choose(epoch >= step, self.change[k] if isinstance(self.change, list) else rate * self.change, rate)
        return rate


def choose(condition: Any, x: Any, y: Any) -> float:
    """Return x if a condition holds, else y, also for a condition of tensors."""
    z: float = condition.backend.where(condition, x, y) if isinstance(condition, Operand) else x if condition else y
    return z


def smaller(x: Any, y: Any) -> float:
    """Return the smaller of two numbers or tensors."""
    return choose(x < y, x, y)


def cosine_ramp(fraction: Any) -> float:
    """Return (1 - cos(pi x)) / 2, which rises from 0 to 1 as x does, and stays there."""
    angle = math.pi * smaller(fraction, 1.0)
    return (1 - (angle.backend.cos(angle) if isinstance(angle, Operand) else math.cos(angle))) / 2


def check_epochs(schedule: Schedule) -> None:
    """Raise ValueError unless the epochs of a schedule are increasing."""
    steps = [
        validation.check_number(f"{schedule.classnm}: an epoch of step_config", x, 0) for x in schedule.step_config
    ]
    if steps != sorted(set(steps)):
        raise ValueError(f"{schedule.classnm}: expected increasing epochs in step_config, got {steps}.")
    schedule.step_config = steps


def check_rates(schedule: Schedule) -> None:
    """Raise ValueError unless there is a rate for each epoch at which it changes."""
    steps, change = schedule.step_config, schedule.change
    if not isinstance(steps, list | tuple) or not isinstance(change, list | tuple) or len(steps) != len(change):
        raise ValueError(
            f"{schedule.classnm}: expected two lists of the same length, epochs and rates, "
            f"got step_config={messages.describe(steps)} and change={messages.describe(change)}."
        )
    schedule.change = [validation.check_number(f"{schedule.classnm}: a rate of change", x, 0) for x in change]


CONSTANT_SCHEDULE = Schedule()


@validation.checked_dataclass
class StepSchedule(Schedule):
    """Piecewise constant rate: ``change[i]`` from epoch ``step_config[i]`` on, before them that of the optimizer.

    Parameters
    ----------
    step_config : list of int
        Epochs at which the rate changes, increasing.
    change : list of float
        New rate at each of these epochs.

    Examples
    --------
    >>> from neonlite.optimizers import StepSchedule
    >>> [StepSchedule([2, 4], [0.1, 0.01]).get_learning_rate(1.0, epoch) for epoch in range(6)]
    [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    """

    step_config: Sequence[int]
    change: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self)
        check_epochs(self)


@validation.checked_dataclass
class PowerSchedule(Schedule):
    """Step decay: ``rate * change^floor(epoch / step_config)``.

    Parameters
    ----------
    step_config : float
        Number of epochs between changes, at least 1.
    change : float
        Factor at each change.
    """

    step_config: float
    change: float

    lower_limits: ClassVar = {"step_config": 1, "change": 0}

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        return learning_rate * self.change ** (epoch // self.step_config)


@validation.checked_dataclass
class ExpSchedule(Schedule):
    """Inverse time decay: ``rate / (1 + decay * epoch)``.

    Parameters
    ----------
    decay : float
        Decay per epoch.
    """

    decay: float

    lower_limits: ClassVar = {"decay": 0}

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        return learning_rate / (1 + self.decay * epoch)


@validation.checked_dataclass
class PolySchedule(Schedule):
    """Polynomial decay: ``rate * (1 - epoch / total_epochs)^power``, and 0 after ``total_epochs``.

    Parameters
    ----------
    total_epochs : float
        Epoch at which the rate reaches 0.
    power : float
        Exponent.
    """

    total_epochs: float
    power: float

    lower_limits: ClassVar = {"total_epochs": 1, "power": 0}

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        remaining = choose(epoch < self.total_epochs, 1 - epoch / self.total_epochs, 0.0)
        return choose(remaining > 0, learning_rate * remaining**self.power, 0.0)


@validation.checked_dataclass
class ShiftSchedule(Schedule):
    """Step decay by powers of two: ``rate * 2^(-shift_size * floor(epoch / interval))``.

    Parameters
    ----------
    interval : float
        Number of epochs between changes, at least 1.
    shift_size : float
        Number of halvings at each change; default: 1.
    """

    interval: float
    shift_size: float = 1

    lower_limits: ClassVar = {"interval": 1, "shift_size": 0}

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        return learning_rate * 2.0 ** (-self.shift_size * (epoch // self.interval))


@validation.checked_dataclass
class CosineSchedule(Schedule):
    """Cosine annealing: ``final + (rate - final) (1 + cos(pi epoch / total_epochs)) / 2``, then ``final``.

    With a warmup, the rate is ``rate (epoch + 1) / (warmup + 1)`` before the epoch ``warmup``; from there on, the
    cosine has the remaining ``total_epochs - warmup`` epochs.

    Parameters
    ----------
    total_epochs : float
        Epoch at which the rate reaches ``final``.
    final : float
        Final rate; default: 0.
    warmup : float
        Number of epochs of warmup, less than ``total_epochs``; default: 0.

    References
    ----------
    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, equation 5.
    """

    total_epochs: float
    final: float = 0.0
    warmup: float = 0.0

    lower_limits: ClassVar = {"total_epochs": 1, "final": 0, "warmup": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.check_number(f"{self.classnm}: warmup", self.warmup, 0, self.total_epochs)

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        fraction = 1 - cosine_ramp((epoch - self.warmup) / (self.total_epochs - self.warmup))
        rising = learning_rate * (epoch + 1) / (self.warmup + 1)
        return choose(epoch < self.warmup, rising, self.final + (learning_rate - self.final) * fraction)


@validation.checked_dataclass
class OneCycleSchedule(Schedule):
    """One cycle: from ``rate / div_factor`` up to the rate, then down to a small one, each along a half cosine.

    The rate of the optimizer is reached at ``peak = pct_start total_epochs - 1``. From ``total_epochs - 1`` on, it is
    ``rate / div_factor / final_div_factor``. This is PyTorch's OneCycleLR, without its cycle of the momentum.

    Parameters
    ----------
    total_epochs : float
        Number of epochs of the cycle; in an ``UpdateSchedule``, of updates.
    pct_start : float
        Fraction of them in which the rate increases, less than 1; default: 0.3.
    div_factor, final_div_factor : float
        The rate divided by the first rate, and the first rate divided by the last one; default: 25 and 10,000.

    References
    ----------
    Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates", 2018.

    Examples
    --------
    >>> from neonlite.optimizers import OneCycleSchedule
    >>> [round(OneCycleSchedule(10, 0.4).get_learning_rate(1.0, epoch), 2) for epoch in range(10)]
    [0.04, 0.28, 0.76, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07, 0.0]
    """

    total_epochs: float
    pct_start: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4

    lower_limits: ClassVar = {"div_factor": 1, "final_div_factor": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.check_attributes(self, "pct_start", above=0, high=1)
        validation.check_number(
            f"{self.classnm}: pct_start * total_epochs", self.pct_start * self.total_epochs, above=1
        )

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        first, peak = learning_rate / self.div_factor, self.pct_start * self.total_epochs - 1
        rising = first + (learning_rate - first) * cosine_ramp(epoch / peak)
        last = first / self.final_div_factor
        falling = learning_rate + (last - learning_rate) * cosine_ramp((epoch - peak) / (self.total_epochs - 1 - peak))
        return choose(epoch < peak, rising, falling)


@validation.checked_dataclass
class WarmupSchedule(Schedule):
    """Linear warmup: multiply the rate of a schedule by ``(epoch + 1) / (epochs + 1)`` in the first ``epochs``.

    Parameters
    ----------
    epochs : float
        Number of epochs of warmup; 0: no warmup.
    schedule : Schedule
        The schedule; default: constant.

    References
    ----------
    Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, section 2.2.

    Examples
    --------
    >>> from neonlite.optimizers import WarmupSchedule
    >>> [WarmupSchedule(3).get_learning_rate(1.0, epoch) for epoch in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    epochs: float
    schedule: Schedule = CONSTANT_SCHEDULE

    lower_limits: ClassVar = {"epochs": 0}

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        rate = self.schedule.get_learning_rate(learning_rate, epoch)
        return rate * smaller((epoch + 1) / (self.epochs + 1), 1.0)


@validation.checked_dataclass
class ReducedSchedule(Schedule):
    """The rates of a schedule times ``scale``, but not reduced below ``min_rate``.

    Formula: ``max(scale * rate, min(rate, min_rate))`` for the rate of the schedule.

    Parameters
    ----------
    schedule : Schedule
        The schedule.
    scale : float
        The factor, from 0 to 1.
    min_rate : float
        Rates are not reduced below it; lower rates are unchanged. Default: 0.

    Examples
    --------
    >>> from neonlite.optimizers import PowerSchedule, ReducedSchedule
    >>> schedule = ReducedSchedule(PowerSchedule(1, 0.5), 0.1, min_rate=0.03)
    >>> [schedule.get_learning_rate(1.0, epoch) for epoch in range(4)]
    [0.1, 0.05, 0.03, 0.03]
    """

    schedule: Schedule
    scale: float
    min_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.check_attributes(self, "scale", low=0, at_most=1)
        validation.check_attributes(self, "min_rate", low=0)

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        rate = self.schedule.get_learning_rate(learning_rate, epoch)
        limit, reduced = smaller(rate, self.min_rate), self.scale * rate
        return choose(reduced > limit, reduced, limit)


@validation.checked_dataclass
class UpdateSchedule(Schedule):
    """A schedule whose epochs are updates of the parameters: the rate of each step instead of that of each epoch.

    The position is the number of updates t before a step, from 0: that of the parameter, which checkpoints store and
    ``fit`` continues. A skipped step of a ``LossScaling`` is no update. ``epoch=`` has no effect. ``fit`` makes
    ``epochs * dataset.nbatches`` updates; with ``accumulate``, ``ceil(dataset.nbatches / accumulate)`` in each epoch.

    Parameters
    ----------
    schedule : Schedule
        The schedule, with numbers of updates as numbers of epochs. ``PowerSchedule(1, 0.999)`` decays exponentially.

    Examples
    --------
    >>> from neonlite.optimizers import Adam, CosineSchedule, UpdateSchedule
    >>> optimizer = Adam(0.003, schedule=UpdateSchedule(CosineSchedule(10_000, warmup=500)))
    >>> optimizer.t = 499
    >>> round(optimizer.get_rate(epoch=0), 4)
    0.003
    """

    schedule: Schedule

    counts_updates = True

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        return self.schedule.get_learning_rate(learning_rate, epoch)


def counts_updates(schedule: Any) -> bool:
    """Return whether the position of a schedule, maybe of a custom class, is the number of updates."""
    return getattr(schedule, "counts_updates", False)


def check_schedule(owner: Any) -> None:
    """Raise TypeError unless the attribute ``schedule`` has ``get_learning_rate(learning_rate, epoch)``."""
    schedule = validation.with_attributes(
        f"{owner.classnm}: schedule", owner.schedule, "get_learning_rate", "a Schedule, such as CosineSchedule(10),"
    )
    name, method = type(schedule).__name__, "get_learning_rate(learning_rate, epoch)"
    is_inherited = getattr(type(schedule), "get_learning_rate", None) is Schedule.get_learning_rate
    if is_inherited and type(schedule) is not Schedule and schedule.step_config is None:
        raise TypeError(f"{name}: expected a method {method}, got none. Implement it.")
    validation.check_signature(f"{name}.get_learning_rate", schedule.get_learning_rate, method, 1.0, 0)
