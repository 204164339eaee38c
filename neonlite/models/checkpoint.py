"""Checkpoint files: safetensors arrays and a JSON description, written atomically, with checksums.

Reading a file executes no code from it and imports no modules: classes are looked up by name among those already
defined (``Serializable``). Memory use is proportional to the file size: about equal to it for arrays, and at most about
thirty times as large, for a description that consists of nested brackets.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from neonlite.backend.bfloat16 import INSTALL_COMMAND, is_available
from neonlite.files import printable, write_atomic

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
                if tensors.get_slice(part).get_dtype() == "BF16" and not is_available():
                    raise ImportError(f"{file}: {part} is bfloat16, for which NumPy needs ml_dtypes: {INSTALL_COMMAND}")
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
