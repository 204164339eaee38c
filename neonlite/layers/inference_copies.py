"""InferenceCopies: copies of a network for inference, with the same parameters and buffers for another batch size."""

from __future__ import annotations

from collections.abc import Collection
from types import MethodType
from typing import Any

from neonlite.backend.attribute_snapshot import Untracked, same_objects
from neonlite.layers.weights import WeightOwner

MAX_MINIBATCHES = 2  # the total size of the cached copies, in minibatches


class InferenceCopies(Untracked):
    """Copies of a network that share its parameters and have their own buffers, one for each batch size.

    A copy is shallow: its layers have the attributes of the original, and ``allocate`` creates new buffers. All copies
    are recreated after any attribute of a layer has been set to another object.
    """

    def __init__(self) -> None:
        self._copies: dict[int, list[Any]] = {}  # batch size -> layers, the network first; least recently used first
        self._layers: list[tuple[WeightOwner, list[Any]]] = []  # each layer of the network, and its attributes
        self._nested: list[tuple[Collection[Any], list[Any]]] = []  # each list or dict of layers, and its values

    def of(self, network: Any, n: int, max_rows: int) -> Any:
        """Return a copy for n rows; cached copies have at most ``max_rows`` rows in total, and ``be.bsz`` must be n."""
        if not self._is_current(network):
            self._drop(0)
        layers = self._copies.pop(n, None)
        if layers is None:
            self._drop(max_rows - n)
            layers = self._copy(network)
            layers[0].allocate()
        self._copies[n] = layers
        return layers[0]

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()  # a copy of a layer has no copies

    def _drop(self, max_rows: int) -> None:
        """Drop the least recently used copies until the others have at most ``max_rows`` rows in total."""
        while self._copies and sum(self._copies) > max_rows:
            for layer in self._copies.pop(next(iter(self._copies))):
                vars(layer).clear()  # layers refer to each other; this frees their memory immediately

    def _is_current(self, network: Any) -> bool:
        """Return whether all layers have the same attributes as when they were copied."""
        if not self._layers or self._layers[0][0] is not network:
            return False
        current = ((vars(layer).values(), values) for layer, values in self._layers)
        return all(same_objects(now, before) for now, before in (*current, *self._nested))

    def _copy(self, network: Any) -> list[Any]:
        """Return shallow copies of a network and its layers, without buffers."""
        copies: dict[int, Any] = {}
        layers: list[tuple[WeightOwner, list[Any]]] = []
        nested: list[tuple[Collection[Any], list[Any]]] = []

        def copied(value: Any) -> Any:
            if isinstance(value, WeightOwner):
                if id(value) not in copies:
                    copies[id(value)] = object.__new__(type(value))
                    layers.append((value, list(vars(value).values())))
                return copies[id(value)]
            if isinstance(value, MethodType) and isinstance(value.__self__, WeightOwner):
                return MethodType(value.__func__, copied(value.__self__))
            if type(value) in (list, tuple, dict):
                items = value.values() if type(value) is dict else value
                new = [copied(x) for x in items]
                if not same_objects(new, items):
                    nested.append((items, list(items)))
                    return dict(zip(value, new, strict=True)) if type(value) is dict else type(value)(new)
            return value

        copied(network)
        for layer, _ in layers:  # grows in the loop
            vars(copies[id(layer)]).update({name: copied(x) for name, x in vars(layer).items()}, _buffers={})
        self._layers, self._nested = layers, nested
        return list(copies.values())
