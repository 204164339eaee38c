"""What is in a file that keeps a network?  Arrays and their names, as safetensors, and one description as JSON.

Nothing in a file is run or imported: classes are found by name among those that are defined (``Described``), and the
memory that it takes to read is bounded by its size, whatever it says: about once for arrays, and some thirty times at
worst, for a description of nothing but brackets. It is written beside the one that it replaces, under one fixed name,
and takes that one's place only when it is whole and on the disk. Checksums tell later whether it still is.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from neonlite.backend.bfloat16 import PIP, is_known

FORMAT = "neonlite 1"
NOT_OURS = "it is no checkpoint, or it was cut short; one is written by Model.save_params"
BESIDE = ".part"  # at the end of the name under which a file is written

Arrays = dict[str, np.ndarray[Any, Any]]


class CheckpointError(ValueError):
    """A file that is no checkpoint, or none for this network: says which file, and what in it."""


def write_checkpoint(path: Any, description: dict[str, Any], arrays: Arrays) -> None:
    """Write arrays and a description (JSON data) to a file, whole or not at all."""
    from safetensors.numpy import save

    whole = Path(path)
    part = whole.with_name(whole.name + BESIDE)
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps({**description, "crc32": checksums(description, arrays)})
    data = save(arrays, {FORMAT: text})  # one entry: the library writes several in any order
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


def read_checkpoint(path: Any) -> tuple[dict[str, Any], Arrays]:
    """Return the description and the arrays of a file.

    FileNotFoundError when there is none; CheckpointError when it is no checkpoint, or not as it was written;
    ImportError when it holds bfloat16 and ml_dtypes is not installed.
    """
    from safetensors import safe_open

    file, at, arrays = Path(path), "header", {}
    if not file.exists():
        raise FileNotFoundError(f"{file}: there is no such file")
    if not file.is_file():  # a pipe would be waited for, a device has no end
        raise CheckpointError(f"{file}: it is no regular file: {NOT_OURS}")
    try:
        with safe_open(file, "numpy") as found:
            metadata = found.metadata() or {}
            if FORMAT not in metadata:
                have = ", ".join(metadata)[:80] or "nothing"
                raise CheckpointError(f"{file}: it says {have} of itself, and not {FORMAT!r}: {NOT_OURS}")
            for at in found.keys():  # noqa: SIM118 - no mapping
                if found.get_slice(at).get_dtype() == "BF16" and not is_known():
                    raise ImportError(f"{file}: {at} is bfloat16, which NumPy has by ml_dtypes: {PIP}")
                arrays[at] = found.get_tensor(at)
        at = "description"
        description = json.loads(metadata[FORMAT])
        if not isinstance(description, dict):
            raise TypeError(f"it is a dict; got {type(description).__name__}")
        at, written = "crc32", description.pop("crc32", None)
        if not isinstance(written, dict):
            raise TypeError(f"it is a dict of checksums; got {type(written).__name__}")
        at, kept = "description", checksums(description, arrays)
    except (CheckpointError, OSError, ImportError):
        raise
    except Exception as error:  # whatever the library, NumPy or JSON have against it
        raise CheckpointError(f"{file}: {at}: {error}: {NOT_OURS}") from error
    if changed := [name for name in written | kept if written.get(name) != kept.get(name)]:
        raise CheckpointError(f"{file}: {', '.join(changed[:9])}: the bytes are not those that were written")
    return description, arrays


def checksums(description: dict[str, Any], arrays: Arrays) -> dict[str, int]:
    """Return the CRC-32 of a description, and of each array with its type and shape."""
    found = {"description": zlib.crc32(json.dumps(description).encode())}
    for name, array in arrays.items():
        found[name] = zlib.crc32(
            array.reshape(-1).view(np.uint8).data, zlib.crc32(f"{array.dtype.str}{array.shape}".encode())
        )
    return found
