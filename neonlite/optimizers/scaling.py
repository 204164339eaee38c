"""How are gradients that float16 cannot hold kept?  The errors are scaled up, and the gradients down again.

Source: Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from neonlite.backend.numbers import number
from neonlite.optimizers.optimizer import Optimizer, get_param_list, identity, in_memory_order, merged
from neonlite.optimizers.rules import MultiOptimizer
from neonlite.optree import describe

SKIPS = 40  # steps in a row, after which something else is wrong


@dataclass(eq=False)
class LossScaling(Optimizer):
    """Another optimizer, for errors that are multiplied by ``scale``: it divides the gradients by it, in float32.

    A step whose gradients are not all finite is skipped: weights and states stay as they were. ``dynamic``: the scale
    is halved then, and doubled after ``interval`` steps without; else it stays. ``skipped`` counts.

    ``LossScaling(Adam(learning_rate=0.001))``, and around a MultiOptimizer. A loop of your own says
    ``net.bprop(optimizer.scaled(errors))``. FloatingPointError after 40 steps skipped in a row.
    """

    optimizer: Optimizer
    scale: float = 2.0**10
    dynamic: bool = True
    interval: int = 2000
    name: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.optimizer, Optimizer) or isinstance(self.optimizer, LossScaling):
            raise TypeError(f"LossScaling takes an optimizer, such as Adam(); got {describe(self.optimizer)}")
        if not isinstance(self.dynamic, bool):
            raise TypeError(f"LossScaling: dynamic is True or False; got {self.dynamic!r}")
        if number("LossScaling: scale", self.scale, 0) == 0:
            raise ValueError(f"LossScaling: scale is a number above 0; got {self.scale!r}")
        if not isinstance(self.interval, int) or self.interval < 1:
            raise ValueError(f"LossScaling: interval is a whole number from 1; got {self.interval!r}")
        self.good = self.bad = self.skipped = 0  # steps since the last that was skipped, or was not; and in all
        self._factor: Any = None
        self._gradients: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "scale" and vars(self).get("_factor") is not None:
            self._factor.fill(value)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_factor": None, "_gradients": None}

    def scaled(self, errors: Any) -> Any:
        """Multiply errors by the scale, in place: a tensor, or a list of them. It lies on the card, for graphs."""
        if isinstance(errors, list | tuple):
            return [self.scaled(error) for error in errors]
        if self._factor is None or self._factor.backend is not errors.backend:
            self._factor = errors.backend.zeros((1, 1), dtype="float32").fill(self.scale)
        errors[:] = errors * self._factor
        return errors

    def optimize(self, layer_list: Iterable[Any], epoch: float) -> None:
        layer_list = list(layer_list)
        if self._factor is None:
            raise RuntimeError(
                "LossScaling: gradients are those of errors that it multiplied, net.bprop(optimizer.scaled(errors)), "
                "as model.fit has it; so it goes around a MultiOptimizer, and not into one"
            )
        if not self._finite(layer_list):
            self.skipped, self.bad, self.good = self.skipped + 1, self.bad + 1, 0
            if self.bad == SKIPS:
                raise FloatingPointError(
                    f"LossScaling: gradients were not finite {SKIPS} times in a row, at last at a scale of "
                    f"{self.scale:g}: the training went astray: a smaller learning rate, or scale, may help"
                )
            self._rescale(0.5)
            return
        each, self.optimizer.graphs = single(self.optimizer), self.graphs
        try:
            for optimizer in each:
                optimizer.divisor = self.scale
            self.optimizer.optimize(layer_list, epoch)
        finally:
            for optimizer in each:
                optimizer.divisor = 1
        self.t, self.good, self.bad = self.t + 1, self.good + 1, 0
        if self.good % self.interval == 0:
            self._rescale(2)

    def _rescale(self, times: float) -> None:
        if self.dynamic:
            self.scale *= times

    def _finite(self, layer_list: list[Any]) -> bool:
        """Tell whether all gradients are finite numbers."""
        parameters = get_param_list(layer_list)
        if not parameters:
            return True
        if self._gradients is None or self._gradients[0] != identity(parameters):
            rows = merged([(dw,) for (_, dw), _ in in_memory_order(parameters)])
            marks = rows[0][0].backend.zeros((len(rows), 1), dtype="float32")
            self._gradients = identity(parameters), parameters, rows, marks, list(marks)
        _, _, rows, marks, places = self._gradients
        for place, (dw,) in zip(places, rows, strict=True):
            place[:] = 1 - dw.backend.min(dw.backend.finite(dw), keepdims=False)
        return not marks.get().any()  # in a rehearsal, whose numbers are 0, the step is made

    def get_state(self) -> dict[str, Any]:
        own = {"t": self.t, "scale": float(self.scale), "good": self.good, "bad": self.bad, "skipped": self.skipped}
        return {**own, "optimizer": self.optimizer.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        if self.optimizer.get_state().keys() == state["optimizer"].keys():  # else it is another, and begins anew
            self.optimizer.set_state(state["optimizer"])
        for word, value in state.items():
            if word != "optimizer":
                setattr(self, word, value)


def single(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that a MultiOptimizer is made of, or the one."""
    if isinstance(optimizer, MultiOptimizer):
        return [x for part in optimizer.optimizer_mapping.values() for x in single(part)]
    return [optimizer]
