"""LossScaling: scale errors for float16 training, and skip updates whose gradients overflow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from neonlite.backend import Tensor
from neonlite.backend.transaction import atomic, restore_on_failure
from neonlite.backend.validation import check_attributes, check_keys, checked_dataclass, integer
from neonlite.optimizers.optimizer import (
    Optimizer,
    get_param_list,
    merge_contiguous,
    pass_last_write,
    sort_by_address,
    tensor_ids,
)
from neonlite.optimizers.rules import MultiOptimizer, OptimizerWrapper

if TYPE_CHECKING:
    from neonlite.layers import Layer

MAX_CONSECUTIVE_SKIPS = 40  # after that many, the scale is not the cause


@checked_dataclass
class LossScaling(OptimizerWrapper):
    """Wrap an optimizer: errors are multiplied by ``scale`` before the backward pass, and gradients divided by it.

    The division is in float32. A step whose gradients are not all finite is skipped: parameters and states are
    unchanged. With ``dynamic``, the scale is halved after a skipped step, and doubled after ``growth_interval`` steps
    without one. ``Model.fit`` scales the errors; in a custom training loop, call
    ``net.bprop(optimizer.scale_errors(errors))``.

    Parameters
    ----------
    optimizer : Optimizer or str
        The optimizer, or its name such as "adam". To use a MultiOptimizer, wrap it as a whole, not its optimizers.
    scale : float
        Initial factor of the errors; default: 1024.
    dynamic : bool
        Whether the scale is adapted; default: True.
    growth_interval : int
        Steps without overflow after which the scale is doubled; default: 2000.
    name : str, optional
        Name; default: the class name and a counter.

    Attributes
    ----------
    good_steps, consecutive_skips : int
        Updates since the last skipped step, and skipped steps since the last update.
    total_skips : int
        Number of skipped steps.

    Raises
    ------
    TypeError
        If ``optimizer`` is not an optimizer.
    ValueError
        If ``scale`` or ``growth_interval`` is not positive.
    FloatingPointError
        In ``optimize``, after 40 consecutive skipped steps.

    References
    ----------
    Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2.

    Examples
    --------
    >>> from neonlite.optimizers import Adam, LossScaling
    >>> optimizer = LossScaling(Adam(learning_rate=0.001), scale=2.0**15)
    """

    optimizer: Optimizer | str  # an Optimizer; the constructor also accepts its name
    scale: float = 2.0**10
    dynamic: bool = True
    growth_interval: int = 2000
    name: str | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attributes(self, "scale", above=0)
        self.growth_interval = integer("LossScaling: growth_interval", self.growth_interval)
        self.good_steps = self.consecutive_skips = self.total_skips = 0
        self._device_scale: Any = None
        self._finite_checks: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "scale" and vars(self).get("_device_scale") is not None:
            self._device_scale.fill(value)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_device_scale": None, "_finite_checks": None}

    def scale_errors(self, errors: Tensor | list[Tensor]) -> Tensor | list[Tensor]:
        """Multiply errors by the scale in place. Captured CUDA graphs read the current scale from device memory.

        Parameters
        ----------
        errors : Tensor or list of Tensor
            The errors of a cost.

        Returns
        -------
        Tensor or list of Tensor
            The same tensors.
        """
        if isinstance(errors, list | tuple):
            return [cast(Tensor, self.scale_errors(error)) for error in errors]
        if self._device_scale is None or self._device_scale.backend is not errors.backend:
            self._device_scale = errors.backend.zeros((1, 1), dtype="float32").fill(self.scale)
        errors[:] = errors * self._device_scale
        return errors

    def optimize(self, layer_list: Iterable[Layer], epoch: float) -> None:
        layer_list = list(layer_list)
        if self._device_scale is None:
            raise RuntimeError(
                "LossScaling: expected errors that were scaled before the backward pass, got none. Call "
                "net.bprop(optimizer.scale_errors(errors)), as Model.fit does; wrap a MultiOptimizer as a whole."
            )
        atomic(self._update_or_skip, layer_list, epoch, last=self)

    def _update_or_skip(self, layer_list: list[Layer], epoch: float) -> None:
        """Update parameters if all gradients are finite, else skip the step; then adapt the scale."""
        restore_on_failure(self, "t", "scale", "good_steps", "consecutive_skips", "total_skips")
        if not self._all_gradients_finite(layer_list):
            self.total_skips += 1
            self.consecutive_skips += 1
            self.good_steps = 0
            if self.consecutive_skips == MAX_CONSECUTIVE_SKIPS:
                raise FloatingPointError(
                    f"LossScaling: expected finite gradients, got NaN or infinity in {MAX_CONSECUTIVE_SKIPS} "
                    f"consecutive steps, down to a scale of {self.scale:g}. Training diverged: reduce the learning "
                    "rate or the scale."
                )
            self._rescale(0.5)
            return
        optimizers, self.wrapped.cuda_graphs = flatten_optimizers(self.wrapped), self.cuda_graphs
        for optimizer in optimizers:
            restore_on_failure(optimizer, "loss_scale")
            optimizer.loss_scale = self.scale
        self.t, self.good_steps, self.consecutive_skips = self.t + 1, self.good_steps + 1, 0
        if self.good_steps % self.growth_interval == 0:
            self._rescale(2)
        pass_last_write(self, self.wrapped)
        self.wrapped.optimize(layer_list, epoch)
        for optimizer in optimizers:
            optimizer.loss_scale = 1

    def _rescale(self, factor: float) -> None:
        if self.dynamic:
            self.scale *= factor

    def _all_gradients_finite(self, layer_list: list[Layer]) -> bool:
        """Return whether all gradients are finite."""
        parameters = get_param_list(layer_list)
        if not parameters:
            return True
        if self._finite_checks is None or self._finite_checks[0] != tensor_ids(parameters):
            rows = merge_contiguous([(dw,) for (_, dw), _ in sort_by_address(parameters)])
            overflows = rows[0][0].backend.zeros((len(rows), 1), dtype="float32")
            views = [overflows[i] for i in range(len(rows))]
            self._finite_checks = tensor_ids(parameters), parameters, rows, overflows, views
        _, _, rows, overflows, views = self._finite_checks
        for view, (dw,) in zip(views, rows, strict=True):
            view[:] = 1 - dw.backend.min(dw.backend.finite(dw), keepdims=False)
        return not overflows.get().any()  # zeros in a dry run, which therefore never skips a step

    def get_state(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("good_steps", "consecutive_skips", "total_skips")}
        return {"t": self.t, "scale": float(self.scale), **counts, "optimizer": self.wrapped.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        check_keys("LossScaling: the state", state, self.get_state())
        if self.wrapped.get_state().keys() == state["optimizer"].keys():  # else a different optimizer
            self.wrapped.set_state(state["optimizer"])
        for key, value in state.items():
            if key != "optimizer":
                setattr(self, key, value)


def flatten_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that a MultiOptimizer, LossScaling or Distributed contains, or the optimizer itself."""
    if isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        return flatten_optimizers(inner)
    if isinstance(optimizer, MultiOptimizer):
        return [x for part in optimizer.optimizer_mapping.values() for x in flatten_optimizers(part)]
    return [optimizer]
