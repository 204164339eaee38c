"""Accumulation of gradients over several calls of a layer's bprop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from neonlite.backend.validation import checks_arguments

if TYPE_CHECKING:
    from neonlite.layers.layer import Layer

L = TypeVar("L", bound="Layer")
Arguments = ParamSpec("Arguments")
Deltas = TypeVar("Deltas")


def accumulates(
    bprop: Callable[Concatenate[L, Arguments], Deltas],
) -> Callable[Concatenate[L, Arguments], Deltas]:
    """Decorate a ``bprop`` to add to the gradients after ``set_acc_on(True)``, instead of overwriting them.

    Parameters
    ----------
    bprop : callable
        The method of a layer.
    """

    @functools.wraps(bprop)
    def wrapper(self: L, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Deltas:
        if not hasattr(self, "acc_on"):
            raise TypeError(f"Layer.accumulates: expected the bprop of a Layer, got that of {self!r}.")
        if not (self.acc_on and self._trainable):
            return bprop(self, *args, **kwargs)
        self.be.assign(self.grad_accumulators, self.gradients)
        self.acc_on = False  # a bprop called by this one must not accumulate again
        try:
            deltas = bprop(self, *args, **kwargs)
        finally:
            self.acc_on = True
        self.be.assign(self.gradients, [x + y for x, y in zip(self.gradients, self.grad_accumulators, strict=True)])
        return deltas

    return wrapper


@checks_arguments
def set_acc_on(layer: Layer, acc_on: bool) -> None:
    """Set whether ``bprop`` adds to the gradients instead of overwriting them.

    Parameters
    ----------
    acc_on : bool
        Whether to accumulate.

    Raises
    ------
    BufferError
        If the layer was not allocated with ``accumulate_updates=True``.
    """
    if acc_on and len(layer.grad_accumulators) != len(layer.parameters):
        raise BufferError(
            f"{layer.name}: expected buffers for accumulating gradients, got none. Call "
            "allocate(accumulate_updates=True) first."
        )
    layer.acc_on = acc_on


def check_accumulation(layer: Layer, accumulate_updates: bool) -> None:
    """Raise TypeError if gradients must be accumulated and the layer has no parameters.

    Parameters
    ----------
    accumulate_updates : bool
        The argument of ``allocate``.
    """
    if accumulate_updates and not layer.has_params:
        raise TypeError(
            f"{layer.name}: accumulate_updates: expected a layer with parameters, got {layer.classnm}. Call "
            "allocate() without it, or allocate the whole network."
        )
