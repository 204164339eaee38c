"""Where do parameters live?  Side by side in one buffer for all layers of a network, and so do their gradients.

An optimizer, a norm, a checkpoint is then one pass over one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from neonlite.backend import Tensor
from neonlite.layers.layer import Layer
from neonlite.optree import describe


class Learned:
    """An attribute for a parameter, its gradient or its state: what is assigned is copied into the tensor it has."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, layer: Any, owner: type | None = None) -> Any:
        return self if layer is None else layer.__dict__.get(self.name)

    def __set__(self, layer: Any, value: Any) -> None:
        have = layer.__dict__.get(self.name)
        if isinstance(have, Tensor) and getattr(value, "size", have.size) not in (1, have.size):
            raise ValueError(f"{layer.name}: {self.name} has the shape {have.shape}; got {describe(value)}")
        if have is None or value is None:
            if not isinstance(value, Tensor | None):
                raise TypeError(f"{layer.name} has no {self.name} yet to copy into: allocate() makes it, init fills it")
            layer.__dict__[self.name] = value
        elif value is not have:
            have[:] = value


class Slot(NamedTuple):
    """A parameter of a layer: the attributes of its tensor and of its gradient, its shape, and what fills it."""

    name: str
    gradient: str
    shape: tuple[int, ...]
    init: Any


class ParameterLayer(Layer):
    """A layer with weights W, filled by ``init`` (an initializer, an array or a tensor), and their gradient dW.

    ``states`` is what an optimizer keeps beside them. Own layers set ``weight_shape`` in ``configure``; those with more
    parameters than W override ``slots``.
    """

    has_params = True
    W = Learned()
    dW = Learned()

    def __init__(self, init: Any = None, name: str | None = None, parallelism: str = "Unknown") -> None:
        super().__init__(name, parallelism)
        self.init = init
        self.weight_shape: Any = None
        self.states: list[Any] = []

    def slots(self) -> list[Slot]:
        """Return the parameters, in the order in which optimizers and files have them."""
        return [Slot("W", "dW", self.weight_shape, self.init)]

    @property
    def learns(self) -> bool:
        """Whether an optimizer is to update it: not where the initializer has the name 'Identity'."""
        return getattr(self.init, "name", None) != "Identity"

    def allocate(self, shared_outputs: Tensor | None = None, accumulate_updates: bool = False) -> None:
        """Make the buffer of the outputs, and those of the parameters unless the network made them."""
        super().allocate(shared_outputs)
        if getattr(self, self.slots()[0].name) is None:
            allocate_parameters([self])
        for slot, parameter in zip(self.slots(), self.parameters, strict=True):
            if parameter.shape != slot.shape:
                raise ValueError(
                    f"{self.name}: {describe(parameter)} was made for other inputs; those of shape {self.in_shape} "
                    f"need {slot.shape}: make a new layer"
                )
        if accumulate_updates and not self.accumulated:
            self.accumulated = [self.be.zeros_like(x, name=f"{x.name}, accumulated") for x in self.gradients]

    @property
    def parameters(self) -> list[Tensor]:
        """The tensors that are learned."""
        return [getattr(self, slot.name) for slot in self.slots()]

    @property
    def gradients(self) -> list[Tensor]:
        """Their gradients, in the same order."""
        return [getattr(self, slot.gradient) for slot in self.slots()]

    def get_params(self) -> Any:
        """Return ``((W, dW), states)``, or a list of such for a layer with several parameters."""
        pairs = [(getattr(self, slot.name), getattr(self, slot.gradient)) for slot in self.slots()]
        if len(pairs) == 1:
            return pairs[0], self.states
        while len(self.states) < len(pairs):
            self.states.append([])
        return list(zip(pairs, self.states, strict=True))

    @property
    def stored(self) -> dict[str, Any]:
        """What a file keeps of this layer, tensors by name: the parameters."""
        return {slot.name: getattr(self, slot.name) for slot in self.slots()}

    def set_params(self, params: dict[str, Any]) -> None:
        """Copy arrays into what is stored, by name; KeyError when one is missing."""
        if missing := [name for name in self.stored if name not in params]:
            raise KeyError(f"{self.name}: there is no {missing[0]} among {', '.join(params)}")
        for name in self.stored:
            setattr(self, name, params[name])


def allocate_parameters(layers: Sequence[ParameterLayer]) -> None:
    """Give all parameters of some layers a place in one buffer, and their gradients in another; fill the parameters."""
    found = [(layer, slot) for layer in layers for slot in layer.slots()]
    if not found:
        return
    be = found[0][0].be
    total = sum(math.prod(slot.shape) for _, slot in found)
    flat, gradients = be.zeros((total, 1), name="parameters"), be.zeros((total, 1), name="gradients")
    start = 0
    for layer, slot in found:
        size = math.prod(slot.shape)
        for attribute, buffer in ((slot.name, flat), (slot.gradient, gradients)):
            view = buffer[start : start + size].reshape(slot.shape)
            view.name = f"{layer.name}.{attribute}"
            layer.__dict__[attribute] = view
        fill(getattr(layer, slot.name), slot.init)
        start += size


def fill(parameter: Tensor, init: Any) -> None:
    """Fill a parameter by an initializer, or with the values of an array or tensor."""
    if hasattr(init, "shape"):
        if tuple(init.shape) != parameter.shape:
            raise ValueError(f"{describe(parameter)} cannot take the values of its init, {tuple(init.shape)}")
        parameter[:] = init
    elif isinstance(init, list):  # an array, out of a description
        fill(parameter, parameter.backend.array(init, dtype=parameter.info.dtype))
    elif hasattr(init, "fill"):
        init.fill(parameter)
    else:
        raise TypeError(
            f"the init of {parameter.name} is an initializer such as Gaussian(), an array, or a tensor; got {init!r}"
        )
