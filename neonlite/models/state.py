"""What is the state of a training?  Weights, what the optimizer keeps, how far it is, and where data and chance are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from neonlite.backend.description import known
from neonlite.initializers import Initializer
from neonlite.layers import Layer, LayerContainer
from neonlite.layers.parameter import ParameterLayer, allocate_parameters
from neonlite.layers.serialize import Item, check_items, dicts, pairs, state_items
from neonlite.models.checkpoint import CheckpointError, read_checkpoint
from neonlite.optimizers import Optimizer, Schedule
from neonlite.optree import shortened
from neonlite.transforms import Transform

MANY = 1000  # letters of an error: what a file says may be as long as the file
WHOLE = 2**63  # what whole numbers in a file stay below


class State(NamedTuple):
    """The state of a model, as a file has it: data for JSON, and arrays by name."""

    file: Any
    description: dict[str, Any]
    arrays: Any

    @classmethod
    def read(cls, source: Any) -> State:
        """Return the state that a file has, or a dict of ``Model.serialize``; its arrays are None where that has none.

        What is wrong with it is told by CheckpointError.
        """
        if isinstance(source, dict):
            arrays = source.get("arrays")
            if not isinstance(arrays, dict | None):
                raise CheckpointError(f"the description: arrays are a dict; got {type(arrays).__name__}")
            return cls("the description", {k: x for k, x in source.items() if k != "arrays"}, arrays)
        return cls(source, *read_checkpoint(source))

    @staticmethod
    def of(model: Any, keep_states: bool = True) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the description and the arrays of a model; without ``keep_states`` those of the network alone."""
        if model.layers.in_shape is None:
            raise RuntimeError(f"{model.name}: it has no weights yet: call initialize(dataset) or fit first")
        be, optimizer = model.be, model.optimizer
        description: dict[str, Any] = {
            "name": model.name,
            "notes": model.notes,
            "layers": model.layers.get_description(),
            "in_shape": model.layers.in_shape,
            "backend": {"type": be.name, "datatype": be.default, "compat_mode": be.compat_mode, "batch_size": be.bsz},
        }
        arrays = {f"weights/{name}": array for name, array in model.get_weights().items()}
        if keep_states:
            description["training"] = {
                "rng_state": list(be.rng_get_state()),
                "optimizer": None if optimizer is None else optimizer.get_description(),
                "optimizer_state": None if optimizer is None else optimizer.get_state(),
                "data": model.data_state,
                "callbacks": model.callbacks_state,
                **{word: getattr(model, word) for word in model.progress},
                **model.settings,
            }
            for layer in model.layers.leaves():
                for i, (_, states) in enumerate(pairs(layer)):
                    arrays |= {f"states/{layer.name}/{i}/{k}": t.get() for k, t in enumerate(states)}
                arrays |= {f"carried/{layer.name}/{name}": array for name, array in layer.carried.items()}
        return json.loads(json.dumps(description)), arrays  # nothing in it is shared with the model

    # --- what it says ---

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
        """Return ``f(*args)``; CheckpointError, which names the field, when that is refused, for whatever reason."""
        try:
            return f(*args)
        except Exception as error:
            words = str(error) or type(error).__name__
            words = words if len(words) <= MANY else f"{words[:MANY]} ..."
            raise CheckpointError(f"{self.file}: {path}: {words}") from error

    def made(self, kind: Any, *path: str, parts: tuple[Any, ...]) -> Any:
        """Return the object of a kind that is described, made of objects of some other kinds, and of no more."""

        def make() -> Any:
            for part in dicts(description):
                named = isinstance(part.get("type"), str) and isinstance(part.get("config"), dict)
                if named and not issubclass(known(part["type"]), (kind, *parts)):
                    raise ValueError(f"{part['type']} has no place here")
            return kind.recursive_gen(description)

        description = self.field(dict, *path)
        return self.checked(".".join(path), make)

    @property
    def in_shape(self) -> Any:
        """The shape of the inputs."""

        def shape(value: Any) -> Any:
            return tuple(map(shape, value)) if isinstance(value, list) else value

        found = self.field((int, list), "in_shape")
        several = isinstance(found, list) and any(isinstance(x, list) for x in found)
        return [shape(x) for x in found] if several else shape(found)

    @property
    def callbacks(self) -> Any:
        """What the listener of the training had to keep."""
        return self.description.get("training", {}).get("callbacks")

    def progress(self, kinds: dict[str, type]) -> dict[str, Any]:
        """Return how far the training is: numbers by name."""

        def one(word: str, kind: type) -> Any:
            value = self.field((int, float), "training", word)
            return self.checked(f"training.{word}", float if kind is float else whole, value)

        return {word: one(word, kind) for word, kind in kinds.items()}

    def compare(self, settings: dict[str, Any]) -> None:
        """Raise CheckpointError unless the training had these settings."""
        had = self.field(dict, "training")
        differ = [f"{word} = {had.get(word)!r}, here {x!r}" for word, x in settings.items() if had.get(word) != x]
        if differ:
            way_out = "give the same, or take the weights alone: weights_only=True, load_states=False"
            raise CheckpointError(f"{self.file}: training: {shortened('; '.join(differ))}: {way_out}")

    # --- a model is brought into it ---

    def network(self) -> Any:
        """Return the network, made anew, without weights."""
        return self.made(LayerContainer, "layers", parts=(Layer, Initializer, Transform))

    def optimizer(self) -> Any:
        """Return the optimizer, made anew, with its state; None when there was none."""
        if self.field((dict, type(None)), "training", "optimizer") is None:
            return None
        optimizer = self.made(Optimizer, "training", "optimizer", parts=(Schedule,))
        state = self.field(dict, "training", "optimizer_state")
        self.checked("training.optimizer_state", same_form, state, optimizer.get_state())
        self.checked("training.optimizer_state", optimizer.set_state, state)
        return optimizer

    def names(self, network: Any) -> dict[str, str]:
        """Return what the layers of the file are called in a network: the same, or else one after another."""
        mine, theirs = network.leaves(), self.network().leaves()
        if {x.name for x in mine} == {x.name for x in theirs} or [*map(type, mine)] != [*map(type, theirs)]:
            return {}
        return {old.name: new.name for old, new in zip(theirs, mine, strict=True)}

    def give(self, model: Any, load_states: bool = True) -> None:
        """Bring a model into this state: all of it, or, when anything does not fit, nothing.

        A network without shapes gets those of the file, and weights, but no buffers for a minibatch.
        """
        arrays: dict[str, dict[str, NDArray[Any]]] = {"weights": {}, "states": {}, "carried": {}}
        for name, array in (self.arrays or {}).items():
            kind, _, rest = name.partition("/")
            if kind not in arrays:
                raise CheckpointError(f"{self.file}: {name}: arrays are weights/..., states/... and carried/...")
            arrays[kind][rest] = array
        be, network = model.be, model.layers
        names = self.names(network)
        arrays = {
            "weights": {renamed(key, ".", 1, names): x for key, x in arrays["weights"].items()},
            "states": {renamed(key, "/", 2, names): x for key, x in arrays["states"].items()},
            "carried": {renamed(key, "/", 1, names): x for key, x in arrays["carried"].items()},
        }
        training = load_states and "training" in self.description
        new = [x for x in network.leaves() if isinstance(x, ParameterLayer) and x.parameters[0] is None]
        before = be.rng_get_state(), be.compat_mode, network.in_shape
        try:
            if training:
                self.compare(model.settings)
                progress = self.progress(model.progress)
                data = self.field((dict, type(None)), "training", "data")
                optimizer, rng = self.optimizer(), tuple(self.field(list, "training", "rng_state"))
            if not model.initialized:
                be.compat_mode = self.checked("backend.compat_mode", compatible, self.field(dict, "backend"))
                self.checked("layers, in_shape", network.configure, self.in_shape)
            self.checked("weights", hold, network, new, arrays["weights"])
            states = self.checked("states", matched, network, arrays["states"]) if training else []
            carried = self.checked("carried", remembered, network, arrays["carried"])
            if training:
                self.checked("training.rng_state", be.rng_set_state, rng)
            self.checked("weights", network.set_weights, arrays["weights"])
        except BaseException:
            release(new)
            be.rng_set_state(before[0])
            be.compat_mode, network.in_shape = before[1:]
            if before[2] is not None:
                network.configure(before[2])
            raise
        for layer, lists in states:
            layer.set_states(lists)
        if training:
            for layer, memory in carried:
                layer.carry(memory)
            vars(model).update(progress, data_state=data, optimizer=optimizer, loaded=self._replace(arrays={}))

    def take_up(self, dataset: Any, listener: Any) -> None:
        """Bring the data of a training to where it was, and a listener into the state of the one before."""
        data = self.field((dict, type(None)), "training", "data")
        if data is not None and hasattr(dataset, "set_state"):
            try:
                self.checked("training.data", dataset.set_state, data)
            except CheckpointError as error:
                way_out = "Model(path, weights_only=True) begins anew with other data"
                raise CheckpointError(f"{error}; {way_out}") from error.__cause__
        if self.callbacks is not None:
            self.checked("training.callbacks", listener.set_state, self.callbacks)


def remembered(network: Any, arrays: dict[str, NDArray[Any]]) -> list[tuple[Any, dict[str, NDArray[Any]]]]:
    """Return each layer with what it carries on to the next minibatch. ValueError when arrays and layers do not fit."""
    memories: dict[str, dict[str, NDArray[Any]]] = {}
    for key, array in arrays.items():
        name, _, state = key.rpartition("/")
        memories.setdefault(name, {})[state] = array
    found = [(layer, memories.pop(layer.name, {})) for layer in network.leaves()]
    if memories:
        raise ValueError(f"no layer has a place for {', '.join(memories)}")
    for layer, memory in found:
        layer.check_carried(memory)
    return found


def renamed(key: str, mark: str, parts: int, names: dict[str, str]) -> str:
    """Return the name of an array, which begins with a layer's, with that layer's new name."""
    layer, *rest = key.rsplit(mark, parts)
    return mark.join([names.get(layer, layer), *rest])


def compatible(backend: dict[str, Any]) -> Any:
    """Return the mode of a backend that is described. ValueError when there is none like it."""
    mode = backend.get("compat_mode")
    if mode not in (None, "caffe"):
        raise ValueError(f"it is None or 'caffe'; got {mode!r}")
    return mode


def whole(value: Any) -> int:
    """Return a whole number from 0. ValueError for anything else."""
    if type(value) is not int or not 0 <= value < WHOLE:
        raise ValueError(f"it is a whole number from 0; got {value!r}")
    return value


def same_form(state: Any, new: Any) -> None:
    """Raise ValueError unless a state has all entries of a new one, with whole numbers from 0 where that has them."""
    if isinstance(new, dict):
        if not isinstance(state, dict) or state.keys() != new.keys():
            raise ValueError(f"it has {', '.join(new)}; got {state!r}")
        for key in new:
            same_form(state[key], new[key])
    elif type(new) is int:
        whole(state)


def hold(network: Any, new: list[Any], weights: dict[str, NDArray[Any]]) -> None:
    """Give new layers their weights, without buffers for a minibatch. ValueError, before, unless arrays fit them."""
    slots = [(layer.name, slot) for layer in new for slot in layer.slots()]
    check_items(network, [Item(name, slot.name, slot, weights.get(f"{name}.{slot.name}")) for name, slot in slots])
    allocate_parameters(new)
    for layer in network.leaves():
        if any(t is None for t in layer.stored.values()):
            if hasattr(layer, "init_params"):  # statistics, as large as parameters
                layer.init_params(layer.nfm)
            else:  # one of your own
                layer.allocate()


def release(layers: list[Any]) -> None:
    """Take from layers the weights that they were given."""
    for layer in layers:
        for name in (*layer.stored, *(slot.gradient for slot in layer.slots())):
            setattr(layer, name, None)


def matched(network: Any, arrays: dict[str, NDArray[Any]]) -> list[tuple[Any, list[list[Any]]]]:
    """Return each layer with what an optimizer kept with it. ValueError when arrays and layers do not fit."""
    rest, found = dict(arrays), []
    for layer in network.leaves():
        lists: list[list[Any]] = []
        for i, _ in enumerate(pairs(layer)):
            lists.append([])
            while (name := f"{layer.name}/{i}/{len(lists[-1])}") in rest:
                lists[-1].append(rest.pop(name))
        if lists:
            found.append((layer, lists))
    if rest:
        raise ValueError(f"no layer has a place for {', '.join(rest)}")
    check_items(network, [item for layer, lists in found for item in state_items(layer, lists)])
    return found
