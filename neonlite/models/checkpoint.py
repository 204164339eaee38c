"""What is in a file that keeps a network?  Arrays and their names, as safetensors, and one description as JSON.

Nothing in a file is run or imported: classes are found by name among those that are defined (``Described``), and a
file cannot ask for more memory than it is long. It is written beside the one that it replaces, under one fixed name,
and takes that one's place only when it is whole and on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "neonlite 1"
NOT_OURS = "it is no checkpoint, or it was cut short; one is written by Model.save_params"
BESIDE = ".part"  # at the end of the name under which a file is written


class CheckpointError(ValueError):
    """A file that is no checkpoint, or none for this network: says which file, and what in it."""


def write_checkpoint(path: Any, description: dict[str, Any], arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays and a description (JSON data) to a file, whole or not at all."""
    from safetensors.numpy import save

    whole = Path(path)
    part = whole.with_name(whole.name + BESIDE)
    data = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        {FORMAT: json.dumps(description)},  # one entry: the library writes several in any order
    )
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, whole)
    with contextlib.suppress(OSError, AttributeError):  # not every system lets a folder be synchronized
        folder = os.open(whole.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_checkpoint(path: Any) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Return the description and the arrays of a file. CheckpointError when it is no checkpoint."""
    from safetensors import SafetensorError, safe_open

    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: there is no such file")
    try:
        with safe_open(file, "numpy") as found:
            metadata = found.metadata() or {}
            if FORMAT not in metadata:
                have = ", ".join(metadata) or "nothing"
                raise CheckpointError(f"{file}: it says {have} of itself, and not {FORMAT!r}: {NOT_OURS}")
            arrays = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118 - no mapping
        description = json.loads(metadata[FORMAT])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file}: {error}: {NOT_OURS}") from None
    if not isinstance(description, dict):
        raise CheckpointError(f"{file}: the description is no dict; got {type(description).__name__}")
    return description, arrays
