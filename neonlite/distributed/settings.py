"""Compare the settings of the processes that train together: versions, runtimes, layers, data, optimizers."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import numpy as np

from neonlite.version import __version__

if TYPE_CHECKING:
    from neonlite.backend import Backend
    from neonlite.distributed.communicator import Communicator


def backend_settings(be: Backend) -> dict[str, Any]:
    """Return the settings on which the bits of an update depend: all processes must have the same."""
    return {
        "the version of neonlite": __version__,
        "the version of Python": platform.python_version(),
        "the version of NumPy": np.__version__,
        "the runtime": be.runtime.name,
        "the dtype": be.default_dtype_name,
        "deterministic": be.deterministic,
    }


def check_same(communicator: Communicator, where: str, settings: dict[str, Any]) -> None:
    """Raise ValueError on every process if their settings differ, with the ranks and the first difference.

    Parameters
    ----------
    communicator : Communicator
        Connects the processes.
    where : str
        The function of the error.
    settings : dict
        By their names for the error; nested lists and dicts of values.
    """
    everywhere = communicator.all_gather_objects(settings)
    for name in settings:
        values = [other[name] for other in everywhere]
        if ranks := [rank for rank, value in enumerate(values) if differ(value, values[0])]:
            part, first, other = first_difference(values[0], values[ranks[0]])
            raise ValueError(
                f"{where}: expected {name} to be the same on all processes, got {part}{first} on rank 0 and {other} on "
                f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}."
            )


def differ(x: Any, y: Any) -> bool:
    """Return whether two nested values differ; 1 and "1" do, the order of the keys of a dict does not matter."""
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() != y.keys() or any(differ(x[key], y[key]) for key in x)
    if isinstance(x, list) and isinstance(y, list):
        return len(x) != len(y) or any(map(differ, x, y))
    return repr(x) != repr(y)


def first_difference(x: Any, y: Any, path: str = "") -> tuple[str, object, object]:
    """Return the first elements in which nested values differ, after their keys, as in "config.rho = "."""
    pairs: list[tuple[object, Any, Any]] = []
    if isinstance(x, dict) and isinstance(y, dict) and x.keys() == y.keys():
        pairs = [(key, x[key], y[key]) for key in x]
    elif isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
        pairs = [(i, *pair) for i, pair in enumerate(zip(x, y, strict=True))]
    for key, a, b in pairs:
        if differ(a, b):
            return first_difference(a, b, f"{path}.{key}" if path else str(key))
    is_ambiguous = str(x) == str(y)  # such as 1 and "1"
    return f"{path} = " if path else "", repr(x) if is_ambiguous else x, repr(y) if is_ambiguous else y
