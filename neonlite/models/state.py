"""What is the state of a training?  Weights, what the optimizer keeps, how far it is, and where data and chance are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

import neonlite.optimizers  # noqa: F401 - a file names its classes
from neonlite.backend import NervanaObject
from neonlite.layers import Layer
from neonlite.layers.serialize import check_items, state_items
from neonlite.models.checkpoint import CheckpointError

PROGRESS = {"epoch_index": int, "minibatch_index": int, "epoch_cost": float, "total_cost": float}


class State(NamedTuple):
    """The state of a model, as a file has it: data for JSON, and arrays by name."""

    file: Any
    description: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    @staticmethod
    def of(model: Any, keep_states: bool = True) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the description and the arrays of a model; without ``keep_states`` those of the network alone."""
        if not model.initialized:
            raise RuntimeError(f"{model.name}: it has no weights yet: call initialize(dataset) or fit first")
        be = model.be
        description: dict[str, Any] = {
            "name": model.name,
            "layers": model.layers.get_description(),
            "in_shape": model.layers.in_shape,
            "backend": {"type": be.name, "datatype": be.default, "compat_mode": be.compat_mode, "batch_size": be.bsz},
        }
        arrays = {f"weights/{name}": array for name, array in model.get_weights().items()}
        if keep_states:
            description["training"] = {
                "rng_state": list(be.rng_get_state()),
                "optimizer": None if model.optimizer is None else model.optimizer.get_description(),
                "optimizer_state": None if model.optimizer is None else model.optimizer.get_state(),
                "data": model.data_state,
                **{word: getattr(model, word) for word in PROGRESS},
            }
            for layer in model.layers.leaves():
                for i, states in enumerate(kept(layer)):
                    arrays |= {f"states/{layer.name}/{i}/{k}": t.get() for k, t in enumerate(states)}
        return description, arrays

    def field(self, kind: Any, *path: str) -> Any:
        """Return what stands at a path of the description. CheckpointError when it is missing, or of another type."""
        value: Any = self.description
        for i, key in enumerate(path):
            if not isinstance(value, dict) or key not in value:
                raise CheckpointError(f"{self.file}: the description has no {'.'.join(path[: i + 1])}")
            value = value[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(f"{self.file}: {'.'.join(path)} is of another type: {type(value).__name__}")
        return value

    def checked(self, path: str, f: Callable[..., Any], *args: Any) -> Any:
        """Return ``f(*args)``; CheckpointError, which names the field, when that is refused."""
        try:
            return f(*args)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.file}: {path}: {error}") from None

    @property
    def in_shape(self) -> Any:
        """The shape of the inputs."""

        def shape(value: Any) -> Any:
            return tuple(map(shape, value)) if isinstance(value, list) else value

        found = self.field((int, list), "in_shape")
        several = isinstance(found, list) and any(isinstance(x, list) for x in found)
        return [shape(x) for x in found] if several else shape(found)

    def network(self) -> Any:
        """Return the network, made anew, without its weights."""
        return self.checked("layers", Layer.recursive_gen, self.field(dict, "layers"))

    def give(self, model: Any, load_states: bool = True) -> None:
        """Bring a model into this state: all of it, or, when anything does not fit, nothing."""
        weights: dict[str, NDArray[Any]] = {}
        states: dict[str, NDArray[Any]] = {}
        for name, array in self.arrays.items():
            kind, _, rest = name.partition("/")
            (weights if kind == "weights" else states)[rest] = array
        training = load_states and "training" in self.description
        optimizer = rng = None
        if training:
            progress = {word: self.field((int, float), "training", word) for word in PROGRESS}
            rng = tuple(self.field(list, "training", "rng_state"))
            data = self.field((dict, type(None)), "training", "data")
            optimizer = self.field((dict, type(None)), "training", "optimizer")
            if optimizer is not None:
                optimizer = self.checked("training.optimizer", NervanaObject.recursive_gen, optimizer)
                steps = self.field(dict, "training", "optimizer_state")
                self.checked("training.optimizer_state", optimizer.set_state, steps)
        before = model.be.rng_get_state()
        if rng is not None:
            self.checked("training.rng_state", model.be.rng_set_state, rng)
        try:
            found = self.checked("states", matched, model.layers, states) if training else []
            self.checked("weights", model.set_weights, weights)
        except CheckpointError:
            model.be.rng_set_state(before)
            raise
        for layer, lists in found:
            layer.set_states(lists)
        if training:
            vars(model).update(progress, data_state=data, optimizer=optimizer, loaded=True)


def kept(layer: Any) -> list[list[Any]]:
    """Return what an optimizer keeps with a layer: a list for each of its parameters."""
    if not layer.has_params:
        return []
    params = layer.get_params()
    return [states for _, states in (params if isinstance(params, list) else [params])]


def matched(network: Any, arrays: dict[str, NDArray[Any]]) -> list[tuple[Any, list[list[Any]]]]:
    """Return each layer with what an optimizer kept with it. ValueError when arrays and layers do not fit."""
    rest, found = dict(arrays), []
    for layer in network.leaves():
        lists: list[list[Any]] = []
        for i, _ in enumerate(kept(layer)):
            lists.append([])
            while (name := f"{layer.name}/{i}/{len(lists[-1])}") in rest:
                lists[-1].append(rest.pop(name))
        if lists:
            found.append((layer, lists))
    if rest:
        raise ValueError(f"no layer has a place for {', '.join(rest)}")
    check_items(network, [item for layer, lists in found for item in state_items(layer, lists)])
    return found
