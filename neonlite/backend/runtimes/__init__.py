"""Which array libraries can carry a backend?  Those of ``KNOWN``, and those that join by ``neonlite.runtimes``.

A runtime is a class like ``runtimes/numpy_.py``'s; a package registers its own as an entry point of that group.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

# name -> (module, class, the pip line that brings what it needs)
KNOWN = {
    "cpu": ("neonlite.backend.runtimes.numpy_", "NumPy", "pip install numpy"),
    "mkl": ("neonlite.backend.runtimes.mkl_", "MKL", 'pip install "neonlite[mkl]"'),
    "torch": ("neonlite.backend.runtimes.torch_", "Torch", "pip install torch"),
    "gpu": (
        "neonlite.backend.runtimes.cupy_",
        "CuPy",
        'pip install "neonlite[cuda13]" (where nvidia-smi shows "CUDA Version: 12", "neonlite[cuda12]")',
    ),
    "strict": ("neonlite.backend.runtimes.strict", "Strict", "pip install array-api-strict"),
}
ALSO = {"nervanagpu": "gpu"}  # names of old


def choices() -> list[str]:
    """Return the names of the runtimes, sorted."""
    return sorted({*KNOWN, *_entry_points()})


def default() -> str:
    """Return the runtime of ``gen_backend()``: mkl when it is installed, else cpu."""
    from importlib.util import find_spec

    return "mkl" if find_spec("mkl") else "cpu"


def load(name: str, device_id: int = 0) -> Any:
    """Return the runtime of a name, on one of its devices.

    ValueError when the name is unknown or there is no such device, ImportError with the pip line when what it needs is
    not installed, RuntimeError when it is, but finds no device.
    """
    name = ALSO.get(name, name)
    if name in KNOWN:
        module, cls, pip = KNOWN[name]
        try:
            return getattr(import_module(module), cls)(device_id)
        except ImportError as error:
            raise ImportError(
                f"the backend {name!r} cannot be loaded: {error}. To install what it needs: {pip}"
            ) from error
    points = _entry_points()
    if name in points:
        try:
            found = points[name].load()
        except Exception as error:
            raise ImportError(f"the backend {name!r}, of {points[name].value}, cannot be loaded: {error}") from error
        return found(device_id)
    import difflib

    close = difflib.get_close_matches(str(name), choices(), 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"backend must be one of {tuple(choices())}; got {name!r}{hint}")


def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="neonlite.runtimes")}


class Found(NamedTuple):
    """A runtime as ``info`` found it."""

    name: str
    usable: bool
    about: str  # versions, threads and devices; or why it cannot be used, and the pip line


class Report(tuple[Found, ...]):
    """The runtimes of this machine; prints as a table."""

    def __repr__(self) -> str:
        wide = max(len(found.name) for found in self)
        return "\n".join(f"{f.name:<{wide}}  {'yes' if f.usable else 'no ':<3}  {f.about}" for f in self)


def info() -> Report:
    """Return what each runtime is on this machine: version, threads, devices; or why it is not there, and the way out.

    >>> import neonlite as nl
    >>> print(nl.backend.info())
    cpu     yes  NumPy ...
    """
    rows = []
    for name in sorted({*KNOWN, *_entry_points()}, key=[*KNOWN, *_entry_points()].index):
        try:
            rows.append(Found(name, True, load(name).about()))
        except (ImportError, RuntimeError) as error:
            rows.append(Found(name, False, str(error)))
    return Report(rows)
