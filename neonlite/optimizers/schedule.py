"""How large a step, in which epoch?  A schedule turns a learning rate and an epoch into a learning rate.

A schedule remembers nothing: an epoch has its rate whatever was asked before, so training can be taken up anywhere.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from neonlite.backend import NervanaObject
from neonlite.backend.numbers import check, number
from neonlite.optree import describe


class Schedule(NervanaObject):
    """The same rate in every epoch; and the base of all others, which say ``get_learning_rate``.

    With neon's older arguments: ``step_config`` = n is PowerSchedule(n, change); a list of epochs: the rate is taken
    times ``change`` at each; two lists: StepSchedule.
    """

    def __init__(self, step_config: Any = None, change: Any = 1.0) -> None:
        super().__init__()
        self.step_config = step_config
        self.change = change
        if isinstance(change, list | tuple):
            check_rates(self)
        else:
            check(self, "change", low=0)
        if isinstance(step_config, list | tuple):
            check_steps(self)
        elif step_config is not None:
            check(self, "step_config", low=1)

    def __post_init__(self) -> None:
        """Name it, once its arguments are set."""
        NervanaObject.__init__(self)

    def __repr__(self) -> str:
        return f"Schedule(step_config={self.step_config}, change={self.change})"

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        """Return the rate of an epoch, counted from 0, for an optimizer's learning rate."""
        if self.step_config is None:
            return learning_rate
        if not isinstance(self.step_config, list):
            return float(learning_rate * self.change ** (epoch // self.step_config))
        passed = bisect_right(self.step_config, epoch)
        if isinstance(self.change, list):
            return float(self.change[passed - 1]) if passed else learning_rate
        return float(learning_rate * self.change**passed)


def check_steps(schedule: Schedule) -> None:
    """Check that the epochs are numbers, each above the one before."""
    steps = [number(f"{schedule.classnm}: an epoch of step_config", x, 0) for x in schedule.step_config]
    if steps != sorted(set(steps)):
        raise ValueError(f"{schedule.classnm}: the epochs of step_config rise; got {steps}")
    schedule.step_config = steps


def check_rates(schedule: Schedule) -> None:
    """Check that there is a rate for each epoch at which it changes."""
    steps, change = schedule.step_config, schedule.change
    if not isinstance(steps, list | tuple) or not isinstance(change, list | tuple) or len(steps) != len(change):
        raise ValueError(
            f"{schedule.classnm} takes two lists of one length, epochs and their rates; "
            f"got step_config={describe(steps)} and change={describe(change)}"
        )
    schedule.change = [number(f"{schedule.classnm}: a rate of change", x, 0) for x in change]


CONSTANT = Schedule()


@dataclass(eq=False)
class StepSchedule(Schedule):
    """From epoch ``step_config[i]`` on, the rate is ``change[i]``; before the first, the optimizer's own.

    >>> [StepSchedule([2, 4], [0.1, 0.01]).get_learning_rate(1.0, epoch) for epoch in range(6)]
    [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    """

    step_config: Any
    change: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self)
        check_steps(self)


@dataclass(eq=False)
class PowerSchedule(Schedule):
    """``rate * change^floor(epoch / step)``."""

    step: float
    change: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "step", low=1)
        check(self, "change", low=0)

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        return float(learning_rate * self.change ** (epoch // self.step))


@dataclass(eq=False)
class ExpSchedule(Schedule):
    """``rate / (1 + decay * epoch)``."""

    decay: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "decay", low=0)

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        return learning_rate / (1 + self.decay * epoch)


@dataclass(eq=False)
class PolySchedule(Schedule):
    """``rate * (1 - epoch / total_epochs)^power``, and 0 from then on."""

    total_epochs: float
    power: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "total_epochs", low=1)
        check(self, "power", low=0)

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        left = max(1 - epoch / self.total_epochs, 0.0)
        return float(learning_rate * left**self.power) if left else 0.0


@dataclass(eq=False)
class ShiftSchedule(Schedule):
    """``rate * 2^(-shift_size * floor(epoch / interval))``: halved, quartered ... every so many epochs."""

    interval: float
    shift_size: float = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "interval", low=1)
        check(self, "shift_size", low=0)

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        return float(learning_rate * 2.0 ** (-self.shift_size * (epoch // self.interval)))


@dataclass(eq=False)
class CosineSchedule(Schedule):
    """``final + (rate - final) (1 + cos(pi epoch / total_epochs)) / 2``, and ``final`` from then on.

    Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, (5).
    """

    total_epochs: float
    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "total_epochs", low=1)
        check(self, "final", low=0)

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        share = (1 + math.cos(math.pi * min(epoch / self.total_epochs, 1.0))) / 2
        return self.final + (learning_rate - self.final) * share


@dataclass(eq=False)
class WarmupSchedule(Schedule):
    """Another schedule's rate, times ``(epoch + 1) / (epochs + 1)`` in the first ``epochs``.

    Source: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, 2.2.

    >>> [WarmupSchedule(3).get_learning_rate(1.0, epoch) for epoch in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    epochs: float
    schedule: Schedule = CONSTANT

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, "epochs", low=0)
        check_schedule(self)

    def get_learning_rate(self, learning_rate: float, epoch: float) -> float:
        rate = self.schedule.get_learning_rate(learning_rate, epoch)
        return rate * min((epoch + 1) / (self.epochs + 1), 1.0)


def check_schedule(thing: Any) -> None:
    """Check that what stands as ``schedule`` is one: anything with ``get_learning_rate(learning_rate, epoch)``."""
    if not callable(getattr(thing.schedule, "get_learning_rate", None)) or isinstance(thing.schedule, type):
        raise TypeError(f"{thing.classnm}: schedule is a Schedule; got {describe(thing.schedule)}")
