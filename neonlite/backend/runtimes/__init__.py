"""Which array libraries can carry a backend?  A runtime is a name, a namespace, and the way to the host and back.

Write one as a class like ``runtimes/numpy_.py``'s and register it by the entry point ``neonlite.runtimes``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

# name -> (module, class, the pip line that brings what it needs)
KNOWN = {
    "cpu": ("neonlite.backend.runtimes.numpy_", "NumPy", "pip install numpy"),
    "strict": ("neonlite.backend.runtimes.strict", "Strict", "pip install array-api-strict"),
}


class Runtime(Protocol):
    """What a backend needs to know of an array library."""

    name: str
    xp: Any  # the array-API namespace
    dtypes: tuple[str, ...]  # the dtypes it has
    negative_steps: bool  # whether x[::-1] is a view
    executor: Callable[[Any], Any]  # makes the executor, given the runtime

    def put(self, array: Any) -> Any:
        """Return a NumPy array as an array of the library: a copy."""

    def get(self, array: Any) -> Any:
        """Return an array of the library as a NumPy array: a copy."""

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return a contiguous array in another shape: a view."""

    def wait(self) -> None:
        """Wait until all work is done."""


def choices() -> list[str]:
    """Return the names of the runtimes, sorted."""
    return sorted({*KNOWN, *_entry_points()})


def load(name: str) -> Runtime:
    """Return the runtime of a name; ValueError when it is unknown, ImportError with the pip line when it is absent."""
    if name in KNOWN:
        module, cls, pip = KNOWN[name]
        try:
            runtime: Runtime = getattr(import_module(module), cls)()
        except ImportError as error:
            raise ImportError(
                f"the backend {name!r} cannot be loaded: {error}. To install what it needs: {pip}"
            ) from error
        return runtime
    points = _entry_points()
    if name in points:
        try:
            made: Runtime = points[name].load()()
        except Exception as error:
            raise ImportError(f"the backend {name!r}, of {points[name].value}, cannot be loaded: {error}") from error
        return made
    import difflib

    close = difflib.get_close_matches(str(name), choices(), 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"backend must be one of {tuple(choices())}; got {name!r}{hint}")


def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="neonlite.runtimes")}
