"""Weights, gradients and states of a network: as NumPy arrays, and summed over several passes.

``get_weights`` and ``set_weights``, ``get_state`` and ``set_state``, ``serialize`` and ``load_weights``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from neonlite.backend import Tensor, batch_size, objects, validation
from neonlite.backend.transaction import atomic, on_failure, restore_on_failure
from neonlite.initializers import compute_dtype
from neonlite.layers.buffers import BufferOwner
from neonlite.messages import describe
from neonlite.ops.functions import at_least_2d
from neonlite.typing import ArrayLike, NativeArray, NumPyArray

MAX_ERROR_ROWS = 20  # rows of the table in an error message
INT_LIMIT = 2**63  # integers in a file are below this

L = TypeVar("L", bound="WeightOwner")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def accumulates(bprop: Callable[Concatenate[L, Arguments], Result]) -> Callable[Concatenate[L, Arguments], Result]:
    """Decorate a ``bprop`` to add to the gradients after ``set_acc_on(True)``, instead of overwriting them.

    Parameters
    ----------
    bprop : callable
        The method of a layer.
    """

    @functools.wraps(bprop)
    def wrapper(self: L, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
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


class WeightOwner(BufferOwner):
    """Base class of objects with weights and state: layers and containers. ``persistent_tensors`` are saved.

    Examples
    --------
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
    acc_on: bool
    grad_accumulators: list[Tensor]
    _trainable: bool

    def leaves(self) -> Sequence[WeightOwner]:
        """Return all layers that are not containers, in order."""
        raise NotImplementedError

    @property
    def parameters(self) -> list[Tensor]:
        """The trainable tensors."""
        return []

    @property
    def num_parameters(self) -> int:
        """The number of trainable parameters of a configured layer."""
        return 0

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters, in the same order."""
        return []

    @property
    def persistent_tensors(self) -> dict[str, Tensor]:
        """The tensors that are saved in checkpoints, by name: parameters and running statistics."""
        return {}

    # --- state across minibatches ---

    progress: tuple[str, ...] = ()  # names of attributes that a minibatch of training changes

    @property
    def running_tensors(self) -> list[Tensor]:
        """The tensors, besides parameters, that a minibatch of training changes and the next one depends on."""
        return []

    def get_state(self) -> dict[str, NativeArray]:
        """Return the recurrent state with which the next minibatch starts: arrays by name; empty if there is none."""
        return {}

    def set_state(self, arrays: dict[str, NativeArray]) -> None:
        """Set the recurrent state with which the next minibatch starts.

        Parameters
        ----------
        arrays : dict
            Arrays by name, from ``get_state``. An empty dict resets the state.

        Raises
        ------
        ValueError
            If the names or shapes do not fit the layer.
        """
        self.check_state(arrays)

    def check_state(self, arrays: dict[str, NativeArray]) -> None:
        """Raise ValueError unless ``set_state`` accepts these arrays.

        Parameters
        ----------
        arrays : dict
            Arrays by name.
        """
        if arrays:
            raise ValueError(f"{self.name}: expected no recurrent state for {self.classnm}, got {', '.join(arrays)}.")

    # --- accumulation of gradients ---

    @validation.checks_arguments
    def set_acc_on(self, acc_on: bool) -> None:
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
        if acc_on and len(self.grad_accumulators) != len(self.parameters):
            raise BufferError(
                f"{self.name}: expected buffers for accumulating gradients, got none. Call "
                "allocate(accumulate_updates=True) first."
            )
        self.acc_on = acc_on

    def check_accumulation(self, accumulate_updates: bool) -> None:
        """Raise TypeError if gradients must be accumulated and the layer has no parameters.

        Parameters
        ----------
        accumulate_updates : bool
            The argument of ``allocate``.
        """
        if accumulate_updates and not self.has_params:
            raise TypeError(
                f"{self.name}: accumulate_updates: expected a layer with parameters, got {self.classnm}. Call "
                "allocate() without it, or allocate the whole network."
            )

    # --- weights ---

    def get_weights(self) -> dict[str, NativeArray]:
        """Return copies of all persistent tensors as NumPy arrays, by "layer.name" such as "fc.W"."""
        return {
            f"{x.name}.{name}": t.get() for x in layers_with_tensors(self) for name, t in x.persistent_tensors.items()
        }

    @validation.checks_arguments
    def set_weights(self, weights: Mapping[str, ArrayLike], partial: bool = False) -> None:
        """Copy weights into the persistent tensors.

        Parameters
        ----------
        weights : dict
            Arrays, lists or tensors by the names of ``get_weights``.
        partial : bool
            Accept a subset of the names.

        Raises
        ------
        ValueError
            If names are missing or unknown, or shapes differ; the message lists them in a table. No weight is changed.
        TypeError
            If ``weights`` is not a dict with names.
        """
        tensors, values = self.check_weights(weights, partial)
        atomic(write_arrays, [(tensors[key], to_host_array(value)) for key, value in values.items()])

    def check_weights(
        self, weights: object, partial: bool = False, hint: str = "partial=True accepts a subset"
    ) -> tuple[dict[tuple[str, str], Tensor], dict[tuple[str, str], ArrayLike]]:
        """Return tensors and arrays by (layer, name); raise the errors of ``set_weights``.

        Parameters
        ----------
        weights, partial
            As for ``set_weights``.
        hint : str
            What the error says about names, unless ``partial``.
        """
        if not (isinstance(weights, Mapping) and all(isinstance(key, str) for key in weights)):
            raise TypeError(
                f"{self.name}.set_weights: expected a dict of arrays by name, as from get_weights(), got "
                f"{describe(weights)}."
            )
        tensors = {(x.name, name): t for x in layers_with_tensors(self) for name, t in x.persistent_tensors.items()}
        keys = {f"{layer}.{name}": (layer, name) for layer, name in tensors}
        values = {keys.get(key, (key, "")): value for key, value in weights.items()}
        names = values if partial else tensors | values
        entries = [TensorEntry(*key, tensors.get(key), values.get(key)) for key in names]
        check_entries(self, entries, "get_weights() returns the valid names" if partial else hint)
        return tensors, values

    @validation.checks_arguments
    def serialize(self, keep_states: bool = True) -> dict[str, Any]:
        """Return the description of the network, with the weights and optimizer states of each layer as NumPy arrays.

        Parameters
        ----------
        keep_states : bool
            Include optimizer states.

        Returns
        -------
        dict
            The description. Layers have ``params``, a dict of arrays, and for each parameter an element of ``states``,
            a list of arrays, and of ``updates``, the kind of optimizer and its number of updates.
        """
        description = self.get_description()
        entries = {
            (x["type"], x["config"].get("name")): x for x in iter_dicts(description) if {"type", "config"} <= set(x)
        }
        for layer in layers_with_tensors(self):
            entry = entries.get((layer.modulenm, layer.name))
            if entry is None:
                raise ValueError(
                    f"{self.name}.serialize: expected a {layer.modulenm} named {layer.name} in the description, "
                    "got none."
                )
            entry["params"] = {name: t.get() for name, t in layer.persistent_tensors.items()}
            if keep_states:
                batch_size.check_states_are_local(f"{self.name}.serialize", layer.parameters)
                entry["states"] = [[t.get() for t in states] for _, states in parameter_states(layer)]
                entry["updates"] = get_updates(layer)
        return description

    @validation.checks_arguments
    def load_weights(self, pdict: dict[str, Any], load_states: bool = True) -> None:
        """Copy the weights and optimizer states of ``serialize`` into a network.

        Entries are matched by the names of layers if these are the same, else by position.

        Parameters
        ----------
        pdict : dict
            The result of ``serialize``.
        load_states : bool
            Load optimizer states as well.

        Raises
        ------
        ValueError
            If entries are missing or unknown, or shapes differ; the message lists them in a table. No weight is
            changed.
        """
        entries: list[TensorEntry] = []
        matches = match_entries(
            layers_with_tensors(self), [x for x in iter_dicts(pdict) if isinstance(x.get("params"), dict)]
        )
        for layer, entry in matches:
            name = entry_name(entry) if layer is None else layer.name
            tensors = {} if layer is None else layer.persistent_tensors
            params = {} if entry is None else entry["params"]
            entries += [TensorEntry(name, key, tensors.get(key), params.get(key)) for key in tensors | params]
            if load_states and layer is not None and "states" in (entry or {}):
                entries += state_entries(layer, entry["states"])
        check_entries(self, entries)
        arrays = [
            (tensor, to_host_array(entry["params"][key]))
            for layer, entry in matches
            for key, tensor in layer.persistent_tensors.items()
        ]

        def load() -> None:
            for layer, entry in matches:
                if load_states and "states" in entry:
                    layer.set_states(entry["states"], entry.get("updates"))
            write_arrays(arrays)

        atomic(load)

    def set_states(
        self, states: Sequence[Sequence[ArrayLike]], updates: Sequence[tuple[str, int] | None] | None = None
    ) -> None:
        """Set the optimizer states.

        Parameters
        ----------
        states : sequence
            For each parameter a list of arrays, as from ``serialize``.
        updates : sequence of (str, int), optional
            For each parameter the kind of optimizer and its number of updates, or None. Default: the states are those
            of the optimizer that updates the parameters next, after its number of updates ``t``.

        Raises
        ------
        ValueError
            If states do not have the shapes of the parameters, or ``updates`` are not valid.
        """
        pairs = parameter_states(self)
        check_entries(self, state_entries(self, states))
        checked = check_updates(self.name, updates, len(pairs))
        new = []
        for ((w, _), tensors), values, update in zip(pairs, states, checked, strict=True):
            is_same = len(tensors) == len(values)
            new_tensors = [*tensors] if is_same else [self.be.zeros(w.shape, dtype=compute_dtype(w)) for _ in values]
            new.append((w, tensors, update, new_tensors, [to_host_array(x) for x in values]))
        for w, tensors, update, new_tensors, arrays in new:
            restore_on_failure(w, "updates")
            if isinstance(tensors, batch_size.RemoteStates):
                restore_on_failure(w, "states")
                w.states = tensors = []
            on_failure(tensors.__setitem__, slice(None), [*tensors])
            write_arrays([*zip(new_tensors, arrays, strict=True)])
            w.updates, tensors[:] = update, new_tensors

    def get_param_attrs(self) -> dict[str, bool]:
        """Return neon's flags for parameters distributed over devices, as keyword arguments of ``be.array``."""
        return {"parallel": self.parallelism in ("Data", "Model"), "distributed": self.parallelism == "Model"}


def write_arrays(pairs: Sequence[tuple[Tensor, NumPyArray]]) -> None:
    """Write arrays to tensors, within a transaction, which restores the old values if it fails."""
    for tensor, array in pairs:
        on_failure(tensor.__setitem__, slice(None), tensor.get())
        tensor[:] = array


# --- layers and entries ----------------------------------------------------------------------------------------------


def layers_with_tensors(network: WeightOwner) -> list[Any]:
    """Return the layers of a network with persistent tensors. RuntimeError before they are allocated."""
    layers = []
    for layer in cast(list[Any], network.leaves()):
        if layer.has_params:
            layer.check_configured()
        if any(t is None for t in layer.persistent_tensors.values()):
            raise RuntimeError(f"{layer.name}: expected allocated weights, got none. Call allocate() first.")
        if layer.has_params and not layer.persistent_tensors:
            raise TypeError(
                f"{layer.name}: expected persistent_tensors for a layer with parameters, got none. Implement it."
            )
        layers += [layer] if layer.persistent_tensors else []
    return layers


def parameter_states(layer: Any) -> list[Any]:
    """Return ((W, dW), states) for each parameter of a layer."""
    params = layer.get_params() if layer.has_params else []
    return params if isinstance(params, list) else [params]


def get_updates(layer: Any) -> list[list[Any] | None]:
    """Return for each parameter of a layer the kind of optimizer and its number of updates, or None, as JSON data."""
    updates = [w.updates for (w, _), _ in parameter_states(layer)]
    return [None if x is None else [*x] for x in updates]


def check_updates(where: str, updates: Any, num_parameters: int) -> list[tuple[str, int] | None]:
    """Return the elements of ``get_updates`` as tuples; raise ValueError for anything else."""
    updates = [None] * num_parameters if updates is None else updates
    is_list = isinstance(updates, list | tuple) and len(updates) == num_parameters
    for x in updates if is_list else [updates]:
        is_pair = isinstance(x, list | tuple) and len(x) == 2 and isinstance(x[0], str) and type(x[1]) is int
        if not is_list or not (x is None or (is_pair and 0 <= x[1] < INT_LIMIT)):
            raise ValueError(
                f"{where}: expected for each of {num_parameters} parameters the kind of optimizer and its number of "
                f"updates, or None, got {describe(x)}."
            )
    return [None if x is None else (x[0], x[1]) for x in updates]


def iter_dicts(data: object) -> Iterator[dict[str, Any]]:
    """Yield all dicts in nested lists and dicts, the outer ones first."""
    if isinstance(data, dict):
        yield data
    for x in data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ():
        yield from iter_dicts(x)


def match_entries(layers: list[Any], entries: list[Any]) -> list[tuple[Any, Any]]:
    """Return pairs of layers and checkpoint entries: matched by name if the names are the same, else by position."""
    by_name = {entry_name(entry): entry for entry in entries}
    if len(by_name) == len(entries) and set(by_name) == {layer.name for layer in layers}:
        return [(layer, by_name[layer.name]) for layer in layers]
    return list(zip_longest(layers, merge_bias_entries(layers, entries)))


def merge_bias_entries(layers: list[Any], entries: list[Any]) -> list[Any]:
    """Return checkpoint entries; merge that of a Bias into the previous one if that layer is a Convolution_bias.

    Old checkpoints of neon store a ``Convolution_bias`` as two layers.
    """
    rest = list(entries)
    for i, layer in enumerate(layers):
        if "weight_bias" not in layer.persistent_tensors or i + 1 >= len(rest) or "weight_bias" in rest[i]["params"]:
            continue
        if rest[i + 1].get("type", "").rpartition(".")[2] == "Bias":
            bias = rest.pop(i + 1)
            rest[i] = rest[i] | {"params": rest[i]["params"] | {"weight_bias": bias["params"].get("W")}}
            if "states" in rest[i]:
                rest[i]["states"] = [*rest[i]["states"], *bias.get("states", [[]])]
            if "updates" in rest[i]:
                rest[i]["updates"] = [*rest[i]["updates"], *bias.get("updates", [None])]
    return rest


def entry_name(entry: dict[str, Any]) -> str:
    """Return the name of the layer of a checkpoint entry."""
    return str(entry.get("config", {}).get("name", ""))


# --- checks ----------------------------------------------------------------------------------------------------------


class TensorEntry(NamedTuple):
    """A tensor and the array for it: layer name, tensor name, and both, or None if missing."""

    layer: str
    name: str
    tensor: Tensor | None
    value: ArrayLike | None


def state_entries(layer: WeightOwner, states: Any) -> list[TensorEntry]:
    """Return the entries of optimizer states, which have the shape of their parameter."""
    entries = []
    for i, (pair, values) in enumerate(zip_longest(parameter_states(layer), states)):
        w = None if pair is None else pair[0][0]
        if pair is None or values is None:
            entries.append(TensorEntry(layer.name, f"states[{i}]", w, None if values is None else "a list"))
        entries += [TensorEntry(layer.name, f"states[{i}][{j}]", w, x) for j, x in enumerate(values or [])]
    return entries


def to_host_array(value: ArrayLike) -> NumPyArray:
    """Return values as a NumPy array of two or more dimensions."""
    array = objects.to_host_array(value)
    return array.reshape(at_least_2d(array.shape))


def describe_shape(value: ArrayLike | None) -> str:
    """Return the shape of an array as text; for anything else, a description."""
    try:
        return "nothing" if value is None else str(to_host_array(value).shape)
    except (RuntimeError, TypeError, ValueError):
        return describe(value)


def check_entries(network: WeightOwner, entries: list[TensorEntry], hint: str = "") -> None:
    """Raise ValueError with a table of all entries that do not fit."""
    table = [("layer", "name", "expected", "got")]
    for x in entries:
        expected = "nothing" if x.tensor is None else str(x.tensor.shape)
        actual = describe_shape(x.value)
        table += [(x.layer, x.name, expected, actual)] if x.tensor is None or expected != actual else []
    if len(table) > 1:
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table[: MAX_ERROR_ROWS + 1]]
        lines += [f"and {len(table) - MAX_ERROR_ROWS - 1} more"] if len(table) > MAX_ERROR_ROWS + 1 else []
        head = f"{network.name}: expected weights that fit the layers, got other names or shapes; none was changed"
        raise ValueError("\n".join([f"{head}; {hint}" if hint else head, *lines]))
