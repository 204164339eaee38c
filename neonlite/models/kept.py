"""How does a model leave for a file, and come back?  As its state: data and arrays."""

from __future__ import annotations

import warnings
from typing import Any

from numpy.typing import NDArray

from neonlite.backend import NervanaObject
from neonlite.callbacks.callback import writable
from neonlite.models.checkpoint import write_checkpoint
from neonlite.models.state import State


class Kept(NervanaObject):
    """What models have to be kept, and to be brought back."""

    layers: Any
    listener: Any
    loaded: State | None
    initialize: Any

    @property
    def callbacks_state(self) -> Any:
        """What the listener of the training has to keep, or had when the file that was loaded was written."""
        return self.listener.get_state() if self.loaded is None else self.loaded.callbacks

    def get_weights(self) -> dict[str, NDArray[Any]]:
        """Return copies of all weights, as NumPy arrays: "fc.W" is the W of the layer fc."""
        found: dict[str, NDArray[Any]] = self.layers.get_weights()
        return found

    def set_weights(self, weights: dict[str, Any], partial: bool = False) -> None:
        """Copy arrays into the weights of their names: all, or with ``partial`` those given."""
        self.layers.set_weights(weights, partial)

    def save_params(self, path: Any, keep_states: bool = True) -> None:
        """Write a file from which the model is made anew, and with ``keep_states`` its training goes on.

        The file is there whole or not at all; one of that name stays until then.
        """
        writable(f"{self.name}.save_params", path)
        write_checkpoint(path, *State.of(self, keep_states))

    def load_params(self, path: Any, load_states: bool = True) -> None:
        """Take the weights of a file, and with ``load_states`` where its training was.

        CheckpointError, before anything is changed, when it is no such file, or one of another network.
        """
        State.read(path).give(self, load_states)

    def load_weights(self, path: Any, load_states: bool = True) -> None:
        """Do what ``load_params`` does, which is its name now."""
        warnings.warn("Model.load_weights is load_params now", DeprecationWarning, stacklevel=2)
        self.load_params(path, load_states)

    def get_description(self, get_weights: bool = False, keep_states: bool = False) -> dict[str, Any]:  # type: ignore[override]
        """Return what files say of the model, as data for JSON; with ``get_weights`` also the arrays, as "arrays"."""
        description, arrays = State.of(self, keep_states)
        return {**description, "arrays": arrays} if get_weights else description

    def serialize(self, fn: Any = None, keep_states: bool = True) -> dict[str, Any]:
        """Return the description with all arrays, and write it to a file if there is a path."""
        if fn is not None:
            self.save_params(fn, keep_states)
        return self.get_description(get_weights=True, keep_states=keep_states)

    def deserialize(self, model_dict: dict[str, Any], data: Any = None, load_states: bool = True) -> None:
        """Take what ``serialize`` returned, as ``load_params`` takes a file; then make buffers for data, if given."""
        self.load_params(model_dict, load_states)
        if data is not None:
            self.initialize(data)
