"""How do weights leave a network and come back?  As arrays, by the names of layers and of what is in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from neonlite.backend.description import host
from neonlite.initializers import wide
from neonlite.layers.buffers import Buffered
from neonlite.ops import two_dims
from neonlite.optree import describe

ROWS = 20  # of the table in an error


class Stored(Buffered):
    """What files keep: the weights of a layer, or of all layers in a container. A layer says which: ``stored``.

    >>> import neonlite as nl
    >>> from neonlite.initializers import Constant
    >>> from neonlite.layers import Affine, Sequential
    >>> be = nl.gen_backend("cpu", batch_size=2)
    >>> net = Sequential(Affine(2, Constant(1), bias=Constant(0), name="fc")).configure(3)
    >>> net.allocate()
    >>> weights = net.get_weights()
    >>> {name: array.shape for name, array in weights.items()}
    {'fc.W': (2, 3), 'fc_bias.W': (2, 1)}
    >>> net.set_weights({"fc.W": 2 * weights["fc.W"]}, partial=True)
    """

    has_params: bool
    parallelism: str

    @property
    def stored(self) -> dict[str, Any]:
        """What a file keeps of this layer, tensors by name: parameters, and what else came of learning."""
        return {}

    def leaves(self) -> list[Any]:
        """Return all layers that are no containers, in order; of a layer, itself."""
        return [self]

    def get_weights(self) -> dict[str, Any]:
        """Return copies of all that is stored, as NumPy arrays: "fc.W" is the W of the layer fc."""
        return {f"{x.name}.{name}": t.get() for x in holders(self) for name, t in x.stored.items()}

    def set_weights(self, weights: dict[str, Any], partial: bool = False) -> None:
        """Copy arrays, lists or tensors in, by the names of ``get_weights``: all, or with ``partial`` those given.

        ValueError, before the first is written, with a table of all that is missing, unknown or of another shape;
        TypeError where the weights do not come by name.
        """
        if not (isinstance(weights, Mapping) and all(isinstance(key, str) for key in weights)):
            expected = "a dict of arrays by name, as get_weights() returns it"
            raise TypeError(f"{self.name}.set_weights takes {expected}; got {describe(weights)}")
        tensors = {(x.name, name): t for x in holders(self) for name, t in x.stored.items()}
        keys = {f"{layer}.{name}": (layer, name) for layer, name in tensors}
        given = {keys.get(key, (key, "")): value for key, value in weights.items()}
        items = [Item(*key, tensors.get(key), given.get(key)) for key in (given if partial else tensors | given)]
        hint = "get_weights() has the names there are" if partial else "partial=True sets only what is given"
        check_items(self, items, hint)
        for key, value in given.items():
            tensors[key][:] = array(value)

    def serialize(self, keep_states: bool = True) -> dict[str, Any]:
        """Return the description; each layer that has them with ``params``, NumPy arrays by name, and ``states``.

        ``states``: for each parameter, in order, a list of what the optimizer keeps with it.
        """
        description = self.get_description()
        places = {(x["type"], x["config"].get("name")): x for x in dicts(description) if {"type", "config"} <= set(x)}
        for layer in holders(self):
            place = places.get((layer.modulenm, layer.name))
            if place is None:
                raise ValueError(f"{layer.name}: the description of {self.name} has no {layer.modulenm} of that name")
            place["params"] = {name: t.get() for name, t in layer.stored.items()}
            if keep_states:
                place["states"] = [[t.get() for t in states] for _, states in pairs(layer)]
        return description

    def load_weights(self, pdict: dict[str, Any], load_states: bool = True) -> None:
        """Copy in what ``serialize`` returned: for layers of the same names, whatever the order; else one by one.

        ValueError, before the first is written, with a table of all that is missing, unknown or of another shape.
        """
        items: list[Item] = []
        found = paired(holders(self), [x for x in dicts(pdict) if isinstance(x.get("params"), dict)])
        for layer, entry in found:
            name = label(entry) if layer is None else layer.name
            tensors = {} if layer is None else layer.stored
            params = {} if entry is None else entry["params"]
            items += [Item(name, key, tensors.get(key), params.get(key)) for key in tensors | params]
            if load_states and layer is not None and "states" in (entry or {}):
                items += state_items(layer, entry["states"])
        check_items(self, items)
        for layer, entry in found:
            for key, tensor in layer.stored.items():
                tensor[:] = array(entry["params"][key])
            if load_states and "states" in entry:
                layer.set_states(entry["states"])

    def set_states(self, states: Sequence[Sequence[Any]]) -> None:
        """Take what an optimizer keeps, for each parameter a list of arrays, as ``serialize`` has it."""
        check_items(self, state_items(self, states))
        for ((w, _), own), given in zip(pairs(self), states, strict=True):
            if len(own) != len(given):
                own[:] = [self.be.zeros(w.shape, dtype=wide(w)) for _ in given]
            for tensor, value in zip(own, given, strict=True):
                tensor[:] = array(value)

    def get_param_attrs(self) -> dict[str, bool]:
        """Return how neon spreads the parameters over devices, as ``be.array`` takes it; there is one device here."""
        return {"parallel": self.parallelism in ("Data", "Model"), "distributed": self.parallelism == "Model"}


# --- who has what --------------------------------------------------------------------------------------------------


def holders(network: Any) -> list[Any]:
    """Return the layers of a network that files keep something of. RuntimeError before there are buffers."""
    found = []
    for layer in network.leaves():
        if layer.in_shape is None and layer.has_params:
            raise RuntimeError(f"{layer.name}: it has no shapes yet: call configure(shape), then allocate()")
        if any(t is None for t in layer.stored.values()):
            raise RuntimeError(f"{layer.name}: it has no weights yet: call allocate() first")
        if layer.has_params and not layer.stored:
            raise TypeError(f"{layer.name} has parameters, which files are to keep: give it stored, tensors by name")
        found += [layer] if layer.stored else []
    return found


def pairs(layer: Any) -> list[Any]:
    """Return ((W, dW), states) for each parameter of a layer."""
    params = layer.get_params() if layer.has_params else []
    return params if isinstance(params, list) else [params]


def dicts(data: Any) -> Iterator[dict[str, Any]]:
    """Yield all dicts in nested lists and dicts, the outer ones first."""
    if isinstance(data, dict):
        yield data
    for x in data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ():
        yield from dicts(x)


def paired(layers: list[Any], entries: list[Any]) -> list[tuple[Any, Any]]:
    """Return layers and the entries of a file for them: by names if these are the same, else one after another."""
    named = {label(entry): entry for entry in entries}
    if len(named) == len(entries) and set(named) == {layer.name for layer in layers}:
        return [(layer, named[layer.name]) for layer in layers]
    return list(zip_longest(layers, fused(layers, entries)))


def fused(layers: list[Any], entries: list[Any]) -> list[Any]:
    """Return the entries of a file, a Bias with the one before it where that is for a convolution with a bias.

    Old files of neon have two layers there.
    """
    rest = list(entries)
    for i, layer in enumerate(layers):
        if "weight_bias" not in layer.stored or i + 1 >= len(rest) or "weight_bias" in rest[i]["params"]:
            continue
        if rest[i + 1].get("type", "").rpartition(".")[2] == "Bias":
            bias = rest.pop(i + 1)
            rest[i] = rest[i] | {"params": rest[i]["params"] | {"weight_bias": bias["params"].get("W")}}
            if "states" in rest[i]:
                rest[i]["states"] = [*rest[i]["states"], *bias.get("states", [[]])]
    return rest


def label(entry: Any) -> str:
    """Return the name of the layer that an entry of a file is of."""
    return str(entry.get("config", {}).get("name", ""))


# --- does it fit ---------------------------------------------------------------------------------------------------


class Item(NamedTuple):
    """One tensor and the array for it: a layer, a name in it, and both, None for what there is not."""

    layer: str
    name: str
    tensor: Any
    value: Any


def state_items(layer: Any, states: Any) -> list[Item]:
    """Return the items of what an optimizer keeps: each has the shape of its parameter."""
    items = []
    for i, (pair, given) in enumerate(zip_longest(pairs(layer), states)):
        w = None if pair is None else pair[0][0]
        if pair is None or given is None:
            items.append(Item(layer.name, f"states[{i}]", w, None if given is None else "a list"))
        items += [Item(layer.name, f"states[{i}][{j}]", w, x) for j, x in enumerate(given or [])]
    return items


def array(value: Any) -> Any:
    """Return numbers as an array on the host, of two dimensions or more."""
    found = host(value)
    return found.reshape(two_dims(found.shape))


def words(value: Any) -> str:
    """Return the shape of an array in words, or what else there is."""
    try:
        return "nothing" if value is None else str(array(value).shape)
    except (RuntimeError, TypeError, ValueError):
        return describe(value)


def check_items(network: Any, items: list[Item], hint: str = "") -> None:
    """Raise ValueError, with a table of all items that do not fit."""
    table = [("layer", "name", "expected", "found")]
    for x in items:
        expected = "nothing" if x.tensor is None else str(x.tensor.shape)
        found = words(x.value)
        table += [(x.layer, x.name, expected, found)] if x.tensor is None or expected != found else []
    if len(table) > 1:
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table[: ROWS + 1]]
        lines += [f"and {len(table) - ROWS - 1} more"] if len(table) > ROWS + 1 else []
        head = f"{network.name}: weights and layers do not fit, and none was changed"
        raise ValueError("\n".join([f"{head}; {hint}" if hint else head, *lines]))
