"""Checkpoints: files, and the state of training that they hold."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from neonlite.backend import batch_size, concurrency, objects, validation
from neonlite.backend.transaction import atomic, on_failure, restore_on_failure
from neonlite.data.iterator import POSITION, check_position
from neonlite.data.minibatches import Preprocessing
from neonlite.distributed.communicator import may_become_distributed
from neonlite.encoders.inputs import InputEncoder
from neonlite.encoders.targets import TargetEncoder
from neonlite.files import printable, write_atomic
from neonlite.initializers import Initializer, compute_dtype
from neonlite.layers import Layer, LayerContainer, buffers, images, parameter
from neonlite.layers.layer import set_trainable
from neonlite.layers.recurrent import other_batch_size
from neonlite.layers.weights import (
    INT_LIMIT,
    TensorEntry,
    check_entries,
    check_updates,
    get_updates,
    iter_dicts,
    parameter_states,
    to_host_array,
    write_arrays,
)
from neonlite.messages import truncate_message
from neonlite.models.training_data import check_encoders
from neonlite.optimizers import Optimizer, Schedule, wrappers
from neonlite.transforms import Transform
from neonlite.typing import FLOAT_DTYPES, INSTALL_ML_DTYPES, has_bfloat16, is_float_array

FORMAT = "neonlite 2"
INVALID_FILE_HINT = "The file is truncated, or was not written by Model.save_params."

Arrays = dict[str, np.ndarray[Any, Any]]


class CheckpointError(ValueError):
    """A file is not a checkpoint, or not one of this network; the message names the file and the field.

    Control characters in the message are escaped.

    Parameters
    ----------
    message : str
        The message.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def write_checkpoint(path: str | Path, description: dict[str, Any], arrays: Arrays) -> None:
    """Write arrays and a description (JSON data) to a file, atomically."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps({**description, "crc32": checksums(description, arrays)})
    write_atomic(path, save(arrays, {FORMAT: text}))  # one entry: safetensors does not preserve the order of several


def check_replaceable(what: str, path: Path) -> None:
    """Raise ValueError if a file exists at a path that is neither empty nor a checkpoint.

    ``what``: the argument's name, for the error message.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file() or not path.stat().st_size:
        return
    try:
        with safe_open(path, "numpy") as tensors:
            if any(name.startswith("neonlite ") for name in tensors.metadata() or {}):
                return
    except (SafetensorError, OSError):
        pass
    raise ValueError(
        f"{what}: expected a new file, or a checkpoint, which is replaced; {path} is another file. Remove it, or pass "
        "another path"
    )


def read_checkpoint(path: str | Path) -> tuple[dict[str, Any], Arrays]:
    """Return the description and the arrays of a file.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    CheckpointError
        The file is not a checkpoint, or its checksums do not match.
    ImportError
        It contains bfloat16 arrays and ml_dtypes is not installed.
    """
    from safetensors import safe_open

    file, part, arrays = Path(path), "header", {}
    if not file.exists():
        raise FileNotFoundError(f"{file}: there is no such file")
    if not file.is_file():  # reading a pipe may block, and a device may have no end
        raise CheckpointError(f"{file}: expected a regular file, written by Model.save_params")
    try:
        with safe_open(file, "numpy") as tensors:
            metadata = tensors.metadata() or {}
            if FORMAT not in metadata:
                have = ", ".join(metadata)[:80] or "nothing"
                raise CheckpointError(f"{file}: expected the format {FORMAT!r}, got {have}. {INVALID_FILE_HINT}")
            for part in tensors.keys():  # noqa: SIM118 - not a mapping
                if tensors.get_slice(part).get_dtype() == "BF16" and not has_bfloat16():
                    raise ImportError(
                        f"{file}: {part} is bfloat16, for which NumPy needs ml_dtypes: {INSTALL_ML_DTYPES}"
                    )
                arrays[part] = tensors.get_tensor(part)
        part = "description"
        description = json.loads(metadata[FORMAT])
        if not isinstance(description, dict):
            raise TypeError(f"expected a dict, got {type(description).__name__}")
        part, expected_crcs = "crc32", description.pop("crc32", None)
        if not isinstance(expected_crcs, dict):
            raise TypeError(f"expected a dict of checksums, got {type(expected_crcs).__name__}")
        part, actual_crcs = "description", checksums(description, arrays)
    except (CheckpointError, OSError, ImportError):
        raise
    except Exception as error:  # safetensors, NumPy and JSON raise many types
        raise CheckpointError(f"{file}: {part}: {error}. {INVALID_FILE_HINT}") from error
    if mismatched := [name for name in expected_crcs | actual_crcs if expected_crcs.get(name) != actual_crcs.get(name)]:
        raise CheckpointError(
            f"{file}: {', '.join(mismatched[:9])}: the checksum does not match; the file was modified"
        )
    return description, arrays


def checksums(description: dict[str, Any], arrays: Arrays) -> dict[str, int]:
    """Return the CRC-32 of the description, and of each array with its dtype and shape."""
    crcs = {"description": zlib.crc32(json.dumps(description).encode())}
    for name, array in arrays.items():
        crcs[name] = zlib.crc32(
            array.reshape(-1).view(np.uint8).data, zlib.crc32(f"{array.dtype.str}{array.shape}".encode())
        )
    return crcs


# --- save and restore the training state: weights, optimizer states, progress, data position and random streams ---

MATCHED_LAYERS = "layers are matched by name, or else those with weights by order and type"
MAX_ERROR_CHARS = 1000  # a file may contain strings of any length
MAX_GROWTH, SMALL_ROW = 300, 2**16  # limits of ``check_sizes``
ARRAY_KEY = "numpy.ndarray"  # of a reference to an array in the state of the callbacks
# the arrays that are named by a layer: their kind, and the separator and number of the parts of a name after the layer
RENAMED = (("weights", ".", 1), ("states", "/", 2), ("gradients", "/", 1), ("recurrent", "/", 1))


class TrainingState(NamedTuple):
    """The state of a model as in a checkpoint: a description (JSON data), and arrays by name."""

    file: Any
    description: dict[str, Any]
    arrays: Any

    @classmethod
    def read(cls, source: Any) -> TrainingState:
        """Return the state from a file, or from the return value of ``Model.serialize``.

        ``arrays`` is None if ``serialize`` returned none. Raises CheckpointError if the source is not a valid state.
        """
        if isinstance(source, dict):
            arrays = source.get("arrays")
            if not isinstance(arrays, dict | None):
                raise CheckpointError(f"the description: expected a dict of arrays, got {type(arrays).__name__}")
            return cls("the description", {k: x for k, x in source.items() if k != "arrays"}, arrays)
        return cls(source, *read_checkpoint(source))

    @staticmethod
    def describe(model: Any, keep_states: bool = True) -> dict[str, Any]:
        """Return the description of a model, as JSON data; without ``keep_states`` that of the network only.

        Raises TypeError for something that is not JSON data, such as an optimizer with a function.
        """
        if model.layers.in_shape is None:
            raise RuntimeError(
                f"{model.name}: expected a configured network, got none. Call initialize(dataset) or fit first."
            )
        names = Counter(layer.name for layer in model.layers.leaves())
        if repeated := [name for name, n in names.items() if n > 1]:
            raise ValueError(f"{model.name}: expected unique layer names to save, got {', '.join(repeated)} twice.")
        be, optimizer, preprocessing, shape = model.be, model.optimizer, model.preprocessing, model.layers.in_shape
        encoders = {"inputs": model.input_encoder, "targets": model.target_encoder}
        description: dict[str, Any] = {
            "name": model.name,
            "metadata": model.metadata,
            "layers": model.layers.get_description(),
            "in_shape": [x if isinstance(x, tuple) else (x,) for x in shape] if isinstance(shape, list) else shape,
            "preprocessing": None if preprocessing is None else preprocessing.get_description(),
            "encoders": {name: encoder.get_description() for name, encoder in encoders.items() if encoder is not None},
            "backend": {
                "type": be.name,
                "datatype": be.default_dtype_name,
                "compat_mode": be.compat_mode,
                "batch_size": batch_size.complete_batch_size(be),
            },
        }
        if keep_states:
            description["training"] = {
                "rng_state": list(be.rng_get_state()),
                "optimizer": None if optimizer is None else optimizer.get_description(),
                "optimizer_state": None if optimizer is None else optimizer.get_state(),
                "updates": {x.name: updates for x in model.layers.leaves() if any(updates := get_updates(x))},
                "frozen": [layer.name for layer in model.layers.leaves() if not layer.trainable],
                "data": model.data_state,
                "callbacks": split_arrays(model.callbacks_state)[0],
                **{name: getattr(model, name) for name in model.progress_fields},
                **model.resume_settings,
            }
        copy: dict[str, Any] = json.loads(json.dumps(description))  # shares nothing with the model
        return copy

    @staticmethod
    @concurrency.exclusive
    def from_model(
        model: Any, keep_states: bool = True, on_all_ranks: bool = True
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the description and the arrays of a model; without ``keep_states`` those of the network only.

        Without ``on_all_ranks``, only those of rank 0 are complete.
        """
        description = TrainingState.describe(model, keep_states)
        arrays = {f"weights/{name}": array for name, array in model.get_weights().items()}
        if model.preprocessing is not None and model.preprocessing.mean is not None:
            arrays["preprocessing/mean"] = model.preprocessing.mean
        if keep_states:
            layers = model.layers.leaves()
            recurrent = [layer.get_state() for layer in layers]
            if model.data_parallel is not None:
                recurrent = model.data_parallel.gather_states(recurrent)
            for name, states in iter_optimizer_states(model, on_all_ranks):
                arrays |= {f"states/{name}/{k}": array for k, array in enumerate(states)}
            for layer, state in zip(layers, recurrent, strict=True):
                arrays |= {f"recurrent/{layer.name}/{name}": array for name, array in state.items()}
            if model.accumulated_rows:
                sums = zip(numbered_gradients(model.layers), model.gradient_sums, strict=True)
                arrays |= {f"gradients/{key}": tensor.get() for key, tensor in sums}
            arrays |= {f"callbacks/{i}": array for i, array in enumerate(split_arrays(model.callbacks_state)[1])}
        return description, arrays

    # --- fields of the description ---

    def get_field(self, kind: Any, *path: str) -> Any:
        """Return a field of the description; raise CheckpointError if it is missing or of another type."""
        value: Any = self.description
        for i, key in enumerate(path):
            if not isinstance(value, dict) or key not in value:
                raise CheckpointError(f"{self.file}: expected the field {'.'.join(path[: i + 1])}, got none")
            value = value[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(f"{self.file}: {'.'.join(path)}: unexpected type {type(value).__name__}")
        return value

    def call_checked(self, path: str, f: Callable[..., Any], *args: Any) -> Any:
        """Return ``f(*args)``; raise CheckpointError, which names the field, for any error."""
        try:
            return f(*args)
        except Exception as error:
            text = str(error) or type(error).__name__
            text = text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]} ..."
            raise CheckpointError(f"{self.file}: {path}: {text}") from error

    def build_object(self, kind: Any, *path: str, parts: tuple[Any, ...] = ()) -> Any:
        """Return the described object of a class; nested objects must be of this class or of ``parts``."""

        def build() -> Any:
            for part in iter_dicts(description):
                is_object = isinstance(part.get("type"), str) and isinstance(part.get("config"), dict)
                if is_object and not issubclass(objects.find_class(part["type"]), (kind, *parts)):
                    raise ValueError(f"unexpected {part['type']}")
            return kind.recursive_gen(description)

        description = self.get_field(dict, *path)
        return self.call_checked(".".join(path), build)

    @property
    def in_shape(self) -> Any:
        """The shape of the inputs."""

        def shape(value: Any) -> Any:
            is_list = isinstance(value, list)
            return tuple(map(shape, value)) if is_list else self.call_checked("in_shape", check_index, value)

        value = self.get_field((int, list), "in_shape")
        if isinstance(value, list) and any(isinstance(x, list) for x in value):  # of several inputs
            return [shape(x[0] if isinstance(x, list) and len(x) == 1 else x) for x in value]
        return shape(value)

    @property
    def callbacks(self) -> Any:
        """The state of the callbacks, with its arrays."""
        state = self.description.get("training", {}).get("callbacks")
        return self.call_checked("training.callbacks", join_arrays, state, self.arrays or {})

    def preprocessing(self, arrays: dict[str, NDArray[Any]]) -> Preprocessing | None:
        """Return the preprocessing of the inputs, or None."""
        description = self.description.get("preprocessing")
        if arrays.keys() - ({"mean"} if description is not None else set()):
            raise CheckpointError(f"{self.file}: unexpected array preprocessing/{min(arrays)}")
        if description is None:
            return None
        args = description, arrays.get("mean"), self.in_shape
        return cast(Preprocessing, self.call_checked("preprocessing", Preprocessing.from_description, *args))

    def build_encoders(self) -> dict[str, Any]:
        """Return the encoders of inputs and targets, by attribute of a model; None if there are none."""
        described = self.get_field(dict, "encoders") if "encoders" in self.description else {}
        if unknown := described.keys() - {"inputs", "targets"}:
            raise CheckpointError(f"{self.file}: encoders: expected inputs and targets, got {', '.join(unknown)}")

        def build(kind: Any, name: str) -> Any:
            if name not in described:
                return None
            encoder = self.build_object(kind, "encoders", name)
            config, arguments = described[name]["config"], objects.constructor_arguments(type(encoder))
            # an argument that is missing would have its default
            self.call_checked(f"encoders.{name}", validation.check_keys, "the arguments", config, arguments)
            return encoder

        return {"input_encoder": build(InputEncoder, "inputs"), "target_encoder": build(TargetEncoder, "targets")}

    def get_progress(self, kinds: dict[str, type]) -> dict[str, Any]:
        """Return the progress of the training: scalars by name."""

        def get(name: str, kind: type) -> Any:
            is_older = name == "accumulated_rows" and name not in self.get_field(dict, "training")
            value = 0 if is_older else self.get_field((int, float), "training", name)
            return self.call_checked(f"training.{name}", float if kind is float else check_index, value)

        return {name: get(name, kind) for name, kind in kinds.items()}

    def check_settings(self, settings: dict[str, Any]) -> None:
        """Raise CheckpointError unless the training had these settings."""
        saved = self.get_field(dict, "training")
        differences = [
            f"expected {name} = {x!r}, got {saved.get(name)!r}" for name, x in settings.items() if saved.get(name) != x
        ]
        if differences:
            hint = "Use these settings, or load the weights only: weights_only=True, load_states=False."
            raise CheckpointError(f"{self.file}: training: {truncate_message('; '.join(differences))}. {hint}")

    # --- restoring a model ---

    def build_network(self) -> Any:
        """Return a new network, without weights."""
        return self.build_object(LayerContainer, "layers", parts=(Layer, Initializer, Transform))

    def build_optimizer(self) -> Any:
        """Return a new optimizer with its state; None if there was none."""
        if self.get_field((dict, type(None)), "training", "optimizer") is None:
            return None
        optimizer = self.build_object(Optimizer, "training", "optimizer", parts=(Schedule,))
        state = self.get_field(dict, "training", "optimizer_state")
        self.call_checked("training.optimizer_state", check_structure, state, optimizer.get_state())
        self.call_checked("training.optimizer_state", optimizer.set_state, state)
        return optimizer

    def get_updates(self, network: Any, optimizer: Any, names: dict[str, str]) -> dict[str, Any]:
        """Return for each layer the kinds of optimizer and numbers of updates of its parameters."""
        layers = {layer.name: len(parameter_states(layer)) for layer in network.leaves()}
        if "updates" in self.description["training"]:
            saved = {names.get(key, key): x for key, x in self.get_field(dict, "training", "updates").items()}
        else:  # an older file: all parameters were updated as often
            kinds = [] if optimizer is None else [(x.kind, x.t) for x in wrappers.flatten_optimizers(optimizer)]
            saved = {name: kinds * n for name, n in layers.items()} if len(kinds) == 1 else {}
        if unknown := saved.keys() - layers.keys():
            raise CheckpointError(f"{self.file}: training.updates: no layer for {', '.join(unknown)}")
        return {
            name: self.call_checked("training.updates", check_updates, name, saved.get(name), n)
            for name, n in layers.items()
        }

    def map_layer_names(self, network: Any, weights: Iterable[str]) -> dict[str, str]:
        """Return the name in the network for each name in the file; empty if layers are matched by name.

        If the layers differ, those with weights are matched by order and type. One of the file without a counterpart
        gets a name that no layer has, so that the error lists it.
        """
        leaves, file_leaves = network.leaves(), self.build_network().leaves()
        names, file_names = {x.name for x in leaves}, {x.name for x in file_leaves}
        if [*map(type, leaves)] != [*map(type, file_leaves)]:
            file_names = {name.rpartition(".")[0] for name in weights}
            if file_names <= names:
                return {}
            file_leaves = [x for x in file_leaves if x.name in file_names]
            types = {*map(type, file_leaves)}
            leaves = [x for x in leaves if type(x) in types]
        elif names == file_names:
            return {}
        pairs = zip(file_leaves, chain(leaves, repeat(None)), strict=False)
        return {x.name: y.name if type(x) is type(y) else f"the file's {x.name}" for x, y in pairs}

    def frozen_layers(self, network: Any, names: dict[str, str]) -> list[Layer] | None:
        """Return the layers that are not trained; None for a file of an older version, which does not list them."""
        if "frozen" not in self.get_field(dict, "training"):
            return None
        frozen = self.get_field(list, "training", "frozen")
        layers = {layer.name: layer for layer in network.leaves()}
        found: list[Layer] = self.call_checked("training.frozen", lambda: [layers[names.get(x, x)] for x in frozen])
        return found

    def restore(self, model: Any, load_states: bool = True) -> None:
        """Restore this state in a model. If anything does not match, raise CheckpointError without a change.

        A network that is not configured is configured with the input shape of the file; its weights are allocated, but
        not its minibatch buffers.
        """
        atomic(self._restore, model, load_states)

    def _restore(self, model: Any, load_states: bool) -> None:
        """Restore this state in a model, within a transaction, which restores the model if anything does not match."""
        arrays: dict[str, dict[str, NDArray[Any]]] = {
            kind: {} for kind in ("weights", "states", "gradients", "recurrent", "preprocessing", "callbacks")
        }
        for name, array in (self.arrays or {}).items():
            kind, _, rest = name.partition("/")
            if kind not in arrays:
                raise CheckpointError(f"{self.file}: expected arrays {'/..., '.join(arrays)}/..., got {name}")
            arrays[kind][rest] = array
        be, network = model.be, model.layers
        is_new = network.in_shape is None  # the network has the input shape of the file
        preprocessing = self.preprocessing(arrays["preprocessing"])
        encoders = self.build_encoders()
        of_callbacks = {f"callbacks/{key}": x for key, x in arrays["callbacks"].items()}
        names = self.map_layer_names(network, arrays["weights"])
        arrays = {
            kind: {rename_array(key, separator, num_parts, names): x for key, x in arrays[kind].items()}
            for kind, separator, num_parts in RENAMED
        }
        new = [x for x in network.leaves() if isinstance(x, parameter.ParameterLayer) and not x.is_allocated]
        on_failure(release_weights, new)
        if not model.initialized:
            if is_new:
                restore_on_failure(network, "in_shape")
            else:
                on_failure(network.configure, network.in_shape)
            restore_on_failure(be, "compat_mode")
            be.compat_mode = self.call_checked("backend.compat_mode", get_compat_mode, self.get_field(dict, "backend"))
            self.call_checked("layers, in_shape", configure, network, self.in_shape)
            if is_new:
                self.call_checked("layers, in_shape", check_sizes, network)
        on_failure(be.rng_set_state, be.rng_get_state())
        self.call_checked("weights", allocate_for_weights, network, new, arrays["weights"])
        tensors, weights = self.call_checked("weights", network.check_weights, arrays["weights"], False, MATCHED_LAYERS)
        floats = {key: x for key, x in of_callbacks.items() if is_float_array(x)}
        datatype = self.get_field(str, "backend", "datatype")
        dtypes = {".".join(key): t.info.dtype for key, t in tensors.items()}
        rounded = {key: dtype for key, dtype in dtypes.items() if dtype not in FLOAT_DTYPES}  # by Model.quantize
        self.call_checked("arrays", check_dtypes, {**arrays, "callbacks": floats}, datatype, rounded)
        recurrent = self.call_checked("recurrent", match_recurrent_states, network, arrays["recurrent"])
        write_arrays([(tensors[key], to_host_array(array)) for key, array in weights.items()])
        if "preprocessing" in self.description:  # optional
            self.call_checked("encoders", check_encoders, network.name, network, *encoders.values())
            restore_on_failure(network, "input_encoding")
            restore_on_failure(model, "target_encoder")
            model.preprocessing = preprocessing
            model.input_encoder, model.target_encoder = encoders["input_encoder"], encoders["target_encoder"]
        if load_states and "training" in self.description:
            self._restore_training(model, names, arrays, recurrent, of_callbacks)

    def _restore_training(
        self, model: Any, names: dict[str, str], arrays: Any, recurrent: list[Any], of_callbacks: dict[str, Any]
    ) -> None:
        """Restore what the next step of training depends on besides the weights."""
        be, network = model.be, model.layers
        self.check_settings(model.resume_settings)
        progress = self.get_progress(model.progress_fields)
        data = self.get_field((dict, type(None)), "training", "data")
        if data is not None and {*POSITION} <= data.keys():  # else of an iterator of another library
            self.call_checked("training.data", check_position, "the position", data)
            if data["minibatch"] != progress["minibatch_index"]:
                got = f"{progress['minibatch_index']} and {data['minibatch']}"
                raise CheckpointError(f"{self.file}: training: expected minibatch_index = data.minibatch, got {got}")
        optimizer = self.build_optimizer()
        self.call_checked("training.rng_state", be.rng_set_state, tuple(self.get_field(list, "training", "rng_state")))
        frozen = self.frozen_layers(network, names)
        if frozen is not None:
            on_failure(set_trainable, [x for x in network.leaves() if not x.trainable], False)
            on_failure(set_trainable, network.leaves(), True)
            set_trainable(network.leaves(), True)
            set_trainable(frozen, False)
        states = self.call_checked("states", match_optimizer_states, network, arrays["states"])
        rows = progress["accumulated_rows"]
        sums = self.call_checked("gradients", match_gradient_sums, network, arrays["gradients"], rows)
        updates = self.get_updates(network, optimizer, names)
        self.call_checked("states", check_numbers_of_states, dict(states), updates)
        for layer, lists in states:
            self.call_checked("states", layer.set_states, lists, updates[layer.name])
        # in several processes, fit selects the columns of each
        size = None if may_become_distributed() else be.bsz or None
        sizes = {layer.name: array.shape[1] for layer, state in recurrent for array in state.values()}
        lost = {name: n for name, n in sizes.items() if size not in (None, n)}
        for layer, state in recurrent:
            on_failure(layer.set_state, layer.get_state())
            layer.set_state({} if layer.name in lost else state)
        loaded = {"data_state": data, "optimizer": optimizer, "gradient_sums": sums}
        loaded["loaded_state"] = self._replace(arrays=of_callbacks)
        restore_on_failure(model, *progress, *loaded)
        vars(model).update(progress | loaded)
        if lost:
            validation.warn(f"{self.file}: {other_batch_size([*lost], next(iter(lost.values())), be.bsz)}")

    def resume(self, dataset: Any, callbacks: Any) -> None:
        """Restore the position of the training data, unless that is None, and the state of the callbacks."""
        data = self.get_field((dict, type(None)), "training", "data")
        if data is not None and hasattr(dataset, "set_state"):
            try:
                self.call_checked("training.data", dataset.set_state, data)
            except CheckpointError as error:
                hint = "To train on other data, use Model(path, weights_only=True)."
                raise CheckpointError(f"{str(error).rstrip('.')}. {hint}") from error.__cause__
        if self.callbacks is not None:
            self.call_checked("training.callbacks", callbacks.set_state, self.callbacks)


def split_arrays(state: Any) -> tuple[Any, list[NDArray[Any]]]:
    """Return JSON data with references ``{ARRAY_KEY: index}`` instead of its NumPy arrays, and these arrays."""
    arrays: list[NDArray[Any]] = []

    def split(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return {ARRAY_KEY: len(arrays) - 1}
        if isinstance(value, dict):
            return {key: split(x) for key, x in value.items()}
        return [split(x) for x in value] if isinstance(value, list | tuple) else value

    return split(state), arrays


def join_arrays(state: Any, arrays: Any) -> Any:
    """Return JSON data with the arrays "callbacks/0", ... instead of references to them."""
    if isinstance(state, dict):
        if state.keys() == {ARRAY_KEY}:
            return arrays[f"callbacks/{check_index(state[ARRAY_KEY])}"]
        return {key: join_arrays(x, arrays) for key, x in state.items()}
    return [join_arrays(x, arrays) for x in state] if isinstance(state, list) else state


def configure(network: Any, shape: Any) -> None:
    """Configure a network for inputs of a shape; raise ValueError for several shapes if it has one input."""
    network.configure(shape)
    if isinstance(shape, list) and not isinstance(network.in_shape, list):
        raise ValueError(f"expected the shape of one input, got {shape}")


def check_sizes(network: Any) -> None:
    """Raise ValueError if a file is small and its network large, as by a padding of a million pixels.

    The outputs of a layer for one row, and an image with its padding, may have ``MAX_GROWTH`` times as many elements
    as the row and all parameters.
    """
    shapes = network.in_shape if isinstance(network.in_shape, list) else [network.in_shape]
    limit = max(SMALL_ROW, MAX_GROWTH * (sum(map(buffers.num_elements, shapes)) + network.num_parameters))
    for layer in network.leaves():
        size = max(
            buffers.num_elements(layer.out_shape), layer.padded_size if isinstance(layer, images.ImageLayer) else 0
        )
        if size > limit:
            raise ValueError(
                f"{layer.name}: expected at most {limit} elements for a row, got {size}. If this is intended, create "
                "and configure the network in Python, and load the file with load_params."
            )


def match_recurrent_states(network: Any, arrays: dict[str, NDArray[Any]]) -> list[tuple[Any, dict[str, NDArray[Any]]]]:
    """Return each layer with its recurrent states; raise ValueError if arrays and layers do not match."""
    states: dict[str, dict[str, NDArray[Any]]] = {}
    for key, array in arrays.items():
        layer_name, _, name = key.rpartition("/")
        states.setdefault(layer_name, {})[name] = array
    result = [(layer, states.pop(layer.name, {})) for layer in network.leaves()]
    if states:
        raise ValueError(f"no layer for {', '.join(states)}")
    for layer, state in result:
        layer.check_state(state)
    return result


def rename_array(key: str, separator: str, num_parts: int, names: dict[str, str]) -> str:
    """Replace the layer's name, with which the name of an array starts."""
    layer, *rest = key.rsplit(separator, num_parts)
    return separator.join([names.get(layer, layer), *rest])


def get_compat_mode(backend: dict[str, Any]) -> Any:
    """Return the compatibility mode in the description of a backend; raise ValueError if it is unknown."""
    return validation.one_of("compat_mode", backend.get("compat_mode"), (None, "caffe"))


def check_index(value: Any) -> int:
    """Return a non-negative integer; raise ValueError for anything else."""
    if type(value) is not int or not 0 <= value < INT_LIMIT:
        raise ValueError(f"expected a non-negative integer, got {value!r}")
    return value


def check_structure(state: Any, template: Any) -> None:
    """Raise ValueError unless a state has the keys of a template, and non-negative integers where that has integers."""
    if isinstance(template, dict):
        validation.check_keys("the state", state, template)
        for key in template:
            check_structure(state[key], template[key])
    elif type(template) is int:
        check_index(state)


def allocate_for_weights(network: Any, new: list[Any], weights: dict[str, NDArray[Any]]) -> None:
    """Check arrays against the parameters of new layers; allocate the parameters, but no minibatch buffers."""
    specs = [(layer.name, spec) for layer in new for spec in layer.saved_specs()]
    entries = [TensorEntry(name, spec.name, spec, weights.get(f"{name}.{spec.name}")) for name, spec in specs]
    check_entries(network, entries, MATCHED_LAYERS)
    parameter.allocate_parameters(new)
    for layer in network.leaves():
        if any(t is None for t in layer.persistent_tensors.values()):
            if hasattr(layer, "init_params"):  # the running statistics of BatchNorm, weights of Model.quantize
                layer.init_params(layer.nfm)
            else:  # a custom layer
                layer.allocate()


def release_weights(layers: list[Any]) -> None:
    """Remove the weights of layers."""
    for layer in layers:
        for name in (*layer.persistent_tensors, *(spec.gradient for spec in layer.parameter_specs())):
            setattr(layer, name, None)


def check_dtypes(arrays: dict[str, dict[str, NDArray[Any]]], datatype: str, rounded: dict[str, str]) -> None:
    """Raise ValueError unless weights and states have the dtype of the backend, or that in which it computes.

    ``rounded``: the dtypes of other weights, by name.
    """
    floats = (
        ("float64",) if datatype == "float64" else ("float32", validation.one_of("datatype", datatype, FLOAT_DTYPES))
    )
    for kind, named in arrays.items():
        for name, array in named.items():
            dtypes = (rounded[name],) if kind == "weights" and name in rounded else floats
            if array.dtype.name not in dtypes:
                raise ValueError(
                    f"{kind}/{name}: expected {' or '.join(dict.fromkeys(dtypes))}, got {array.dtype.name}"
                )


def check_numbers_of_states(states: dict[Any, list[list[Any]]], updates: dict[str, Any]) -> None:
    """Raise ValueError unless each parameter that was updated has all states of its optimizer."""
    for layer, lists in states.items():
        for values, update in zip(lists, updates[layer.name], strict=True):
            names = [] if update is None else Optimizer.names_of_states(update[0])
            if update is not None and len(values) != len(names) and (values or update[1]):
                raise ValueError(f"{layer.name}: expected the states {', '.join(names) or 'none'}, got {len(values)}")


def match_gradient_sums(network: Any, arrays: Arrays, rows: int) -> list[Any]:
    """Return new tensors of arrays, one for each gradient; ValueError unless they match, and exist if rows do."""
    gradients = numbered_gradients(network) if rows else {}
    entries = [TensorEntry(key, "dW", gradients.get(key), arrays.get(key)) for key in gradients | arrays]
    check_entries(network, entries)
    return [network.be.array(arrays[key], dtype=compute_dtype(dw)) for key, dw in gradients.items()]


def iter_optimizer_states(model: Any, on_all_ranks: bool) -> Iterator[tuple[str, list[NDArray[Any]]]]:
    """Yield the optimizer states of each parameter, by its layer and number; without ``on_all_ranks`` on rank 0 only.

    With ``world().shard_states``, they are received from the ranks that have them, one parameter after another.
    """
    parallel = model.data_parallel
    if parallel is None:
        batch_size.check_states_are_local(model.name, model.layers.parameters)
    for layer in model.layers.leaves():
        for i, ((w, _), states) in enumerate(parameter_states(layer)):
            if parallel is not None and parallel.shards_states:
                arrays = parallel.gather_optimizer_states(w, states)
                if parallel.communicator.rank and not on_all_ranks:
                    continue
            else:
                arrays = [t.get() for t in states]
            yield f"{layer.name}/{i}", arrays


def numbered_gradients(network: Any) -> dict[str, Any]:
    """Return the gradients of all parameters by their layer and number: "fc/0"."""
    return {
        f"{layer.name}/{i}": dw for layer in network.leaves() for i, ((_, dw), _) in enumerate(parameter_states(layer))
    }


def match_optimizer_states(network: Any, arrays: dict[str, NDArray[Any]]) -> list[tuple[Any, list[list[Any]]]]:
    """Return each layer with its optimizer states; raise ValueError if arrays and layers do not match."""
    rest, result = dict(arrays), []
    for layer in network.leaves():
        lists: list[list[Any]] = []
        for i, _ in enumerate(parameter_states(layer)):
            lists.append([])
            while (name := f"{layer.name}/{i}/{len(lists[-1])}") in rest:
                lists[-1].append(rest.pop(name))
        if lists:
            result.append((layer, lists))
    if rest:
        raise ValueError(f"no layer for {', '.join(rest)}")
    return result
