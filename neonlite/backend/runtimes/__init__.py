"""The registry of runtimes (array libraries): built-in ones, entry points of neonlite.runtimes, and their status.

A runtime is a subclass of ``neonlite.backend.runtimes.base.Runtime``. Other packages register theirs as entry points
of the group ``neonlite.runtimes``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from neonlite.backend.runtimes.base import Runtime

T = TypeVar("T")

# name -> (module, class, command that installs the requirements)
BUILTIN_RUNTIMES = {
    "cpu": ("neonlite.backend.runtimes.numpy", "NumPyRuntime", "pip install numpy"),
    "mkl": ("neonlite.backend.runtimes.mkl", "MKLRuntime", 'pip install "neonlite[mkl]"'),
    "torch": ("neonlite.backend.runtimes.base", "TorchRuntime", "pip install torch"),
    "gpu": (
        "neonlite.backend.runtimes.cuda",
        "CuPyRuntime",
        'pip install "neonlite[cuda13]" (where nvidia-smi shows "CUDA Version: 12", "neonlite[cuda12]")',
    ),
    "strict": ("neonlite.backend.runtimes.base", "StrictRuntime", "pip install array-api-strict"),
}
# modules that compute parts of the runtimes for NumPy arrays faster. Each has ``MIXINS``, {class of a runtime: subclass
# of it that is used instead}, and ``version_info()``. One that is missing is left out.
ACCELERATORS = ("neonlite.backend.runtimes.onednn",)
ALIASES = {"nervanagpu": "gpu", "cuda": "gpu", "cupy": "gpu", "numpy": "cpu", "pytorch": "torch"}


def list_runtimes() -> list[str]:
    """Return the names of the runtimes.

    Returns
    -------
    list of str
        The names, sorted; also of runtimes that are not installed.
    """
    return sorted({*BUILTIN_RUNTIMES, *_entry_points()})


def default_runtime() -> str:
    """Return the runtime of ``gen_backend()``: "mkl" if it is installed, else "cpu"."""
    from importlib.util import find_spec

    spec = find_spec("mkl")
    return "mkl" if spec and spec.origin else "cpu"  # a folder without __init__.py, as any may be named, has no origin


def canonical(name: str) -> str:
    """Return the runtime's name for an alias; other names unchanged."""
    return ALIASES.get(name, name)


def load_runtime(runtime: str | Runtime, device_id: int = 0) -> Runtime:
    """Create the runtime with this name on one of its devices, or return a complete runtime unchanged.

    ValueError for an unknown name or device; TypeError for an incomplete runtime; ImportError, with the command to run,
    if a requirement is not installed; RuntimeError if it is installed but cannot run, for example without a GPU.
    """
    if not isinstance(runtime, str):
        return _check_runtime(runtime)
    name = canonical(runtime)
    if name in BUILTIN_RUNTIMES:
        module, cls, command = BUILTIN_RUNTIMES[name]
        try:
            builtin: type[Runtime] = getattr(import_module(module), cls)
            return builtin(device_id)
        except ImportError as error:
            from neonlite.backend.runtimes.numpy import install_hint

            raise ImportError(f"the runtime {name!r} cannot be loaded: {error}. {install_hint(command)}") from error
    points = _entry_points()
    if name in points:
        return _check_runtime(_load_entry_point(points[name])(device_id))
    from neonlite.messages import did_you_mean

    hint = did_you_mean(name, list_runtimes())
    raise ValueError(f"runtime: expected one of {tuple(list_runtimes())}, got {name!r}.{hint}")


@cache
def load_accelerators() -> list[ModuleType]:
    """Import the accelerators and return their modules, without those that are missing."""
    modules = []
    for name in ACCELERATORS:
        try:
            modules.append(import_module(name))
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    return modules


@cache
def accelerated(base: type[T]) -> type[T]:
    """Return a class of a runtime for NumPy arrays, with the mixins that accelerators have for it."""
    found = [module.MIXINS.items() for module in load_accelerators()]
    mixins = [mixin for pairs in found for cls, mixin in pairs if issubclass(base, cls)]
    return type(f"Accelerated{base.__name__}", (*mixins, base), {}) if mixins else base


def accelerator_versions() -> list[str]:
    """Return the version of each accelerator, or why it is not used."""
    return [module.version_info() for module in load_accelerators()]


def _load_entry_point(point: EntryPoint) -> type[Runtime]:
    """Return the class that a package registered; ImportError if there is none."""
    from neonlite.backend.runtimes.base import Runtime

    try:
        cls = point.load()
    except Exception as error:
        raise ImportError(f"the runtime {point.name!r}, of {point.value}, cannot be loaded: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, Runtime)):
        raise ImportError(
            f"the runtime {point.name!r}: expected a subclass of Runtime as its entry point, got {point.value!r}. "
            "Register 'package.module:Class'."
        )
    return cls


def _check_runtime(runtime: object) -> Runtime:
    """Return a runtime; TypeError if it is none or incomplete, ValueError if it has the name of a built-in one."""
    from neonlite.backend.runtimes.base import Runtime

    if not isinstance(runtime, Runtime):
        cls = runtime if isinstance(runtime, type) and issubclass(runtime, Runtime) else None
        hint = f"an instance, {cls.__name__}()" if cls else "a name, such as 'cpu'"
        raise TypeError(f"runtime: expected a name or an instance of Runtime, got {runtime!r}. Pass {hint}.")
    kind = type(runtime)
    if not hasattr(runtime, "memory_tracker"):
        raise TypeError(
            f"runtime {kind.__name__}: expected a constructor that calls super().__init__(device_id), got one that "
            "does not. Call it after setting xp."
        )
    builtin = BUILTIN_RUNTIMES.get(runtime.name)
    if builtin and runtime.has_values and builtin[:2] != (kind.__module__, kind.__qualname__):
        raise ValueError(
            f"runtime {kind.__name__}: expected a name that no built-in runtime has, got {runtime.name!r}. Set another "
            "name in the class."
        )
    return runtime


def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="neonlite.runtimes")}


class RuntimeInfo(NamedTuple):
    """The status of a runtime on this machine.

    Attributes
    ----------
    name : str
        The runtime's name.
    is_usable : bool
        Whether a backend can be created on it.
    details : str
        Versions, threads and devices; or why it cannot be used, with the command that installs it.
    """

    name: str
    is_usable: bool
    details: str


class RuntimeReport(tuple[RuntimeInfo, ...]):
    """The status of each runtime on this machine; prints as a table."""

    def __repr__(self) -> str:
        width = max(len(row.name) for row in self)
        return "\n".join(f"{row.name:<{width}}  {'yes' if row.is_usable else 'no ':<3}  {row.details}" for row in self)


def info() -> RuntimeReport:
    """Return the status of each runtime on this machine.

    Returns
    -------
    RuntimeReport
        A tuple of ``RuntimeInfo(name, is_usable, details)``, which prints as a table.

    Examples
    --------
    >>> import neonlite as nl
    >>> print(nl.backend.info())
    cpu     yes  NumPy ...
    """
    rows = []
    for name in sorted({*BUILTIN_RUNTIMES, *_entry_points()}, key=[*BUILTIN_RUNTIMES, *_entry_points()].index):
        try:
            rows.append(RuntimeInfo(name, True, load_runtime(name).version_info()))
        except Exception as error:
            rows.append(RuntimeInfo(name, False, str(error)))
    return RuntimeReport(rows)
