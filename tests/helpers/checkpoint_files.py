"""A model with a training state, changed checkpoints of it, and the check that they are rejected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.small_models import Interrupting, data, start
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import TrainingState, read_checkpoint, write_checkpoint
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti


def trained(optimizer: Any = None) -> Model:
    """Return a model with a training state."""
    model = start()
    with pytest.raises(KeyboardInterrupt):
        model.fit(data(shuffle=True), CrossEntropyMulti(), optimizer or Adam(), 3, callbacks=Interrupting(model, 4))
    return model


def full_state(model: Model) -> Any:
    """Return the complete state of a model."""
    description, arrays = TrainingState.from_model(model)
    return description, {name: (x.dtype, x.shape, x.tobytes()) for name, x in arrays.items()}


def assert_rejected(model: Model, path: Any, *messages: str, acts: Any = None) -> None:
    """Assert that a file is rejected, that the error contains its name and some texts, and that nothing changed."""
    before, mode = full_state(model), model.be.compat_mode
    for act in acts or (model.load_params, Model):
        with pytest.raises(CheckpointError) as error:
            act(path)
        assert str(error.value).startswith(f"{path}: ")
        assert len(str(error.value)) < 2000
        for word in messages:
            assert word in str(error.value)
        assert full_state(model) == before
        assert model.be.compat_mode == mode


def write_changed(valid_file: bytes, path: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Path:
    """Write a file with a changed description and arrays, and valid checksums."""
    path.write_bytes(valid_file)
    description, arrays = read_checkpoint(path)
    change(description, arrays)
    write_checkpoint(path, description, arrays)
    return path


def put(*path: Any, value: Any) -> Callable[[Any, Any], None]:
    """Return a function that sets a field of the description."""

    def change(description: Any, arrays: Any) -> None:
        for key in path[:-1]:
            description = description[key]
        description[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[Any, Any], None]:
    """Return a function that deletes a field of the description."""

    def change(description: Any, arrays: Any) -> None:
        for key in path[:-1]:
            description = description[key]
        del description[path[-1]]

    return change
