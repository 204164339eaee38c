"""The registry of runtimes (array libraries): built-in ones, entry points, and their status; native libraries.

A runtime is a subclass of ``neonlite.backend.runtimes.base.Runtime``. Other packages register theirs as entry points
of the group ``neonlite.runtimes``.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import site
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from itertools import product
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from neonlite.backend.concurrency import get_num_threads
from neonlite.backend.runtimes.base import Runtime
from neonlite.typing import NumPyArray as Array

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from pathlib import Path

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


# --- native libraries: where they are installed, and the memory of NumPy arrays ---

ROW_MAJOR, COL_MAJOR = 101, 102  # CBLAS_LAYOUT
OBJECT_HEADER_BYTES = object.__basicsize__  # size of PyObject_HEAD, which precedes the data pointer
OVERLAP_MAX_WORK = 1000  # max_work of np.may_share_memory
# multiply-adds of a product, or of a stack, up to which NumPy is faster with several threads, and times as many with
# one thread. By benchmarks/thresholds.py both take equally long there with one thread; with two, while other processes
# use the CPUs, NumPy is faster up to 4 times as many
MIN_GEMM_WORK, ONE_THREAD_FACTOR = 1 << 20, 4

INTEL_EXTRAS = ("onednn", "mkl")  # whose packages are for Linux on x86-64, as pyproject.toml says

# environment variables: for libgomp iterations, about the time between two calls of a small network; for Intel's OpenMP
# milliseconds
SPIN_WAITS = {"GOMP_SPINCOUNT": "6000", "KMP_BLOCKTIME": "1"}

_max_openmp_threads = 1 << 30


def openmp_threads() -> int:
    """Return the number of threads of oneDNN and MKL: that of ``get_num_threads``, and 1 in a forked process."""
    return min(get_num_threads(), _max_openmp_threads)


def _limit_after_fork() -> None:
    # libgomp in a forked process waits for threads that do not exist there, unless it uses one thread
    global _max_openmp_threads
    _max_openmp_threads = 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_limit_after_fork)


@contextmanager
def short_spin_wait() -> Iterator[None]:
    """Load an OpenMP library whose idle threads soon sleep instead of busy-waiting.

    By default they spin for up to 200 ms, and take the CPU from threads of other processes. Variables that are set in
    the environment take precedence.
    """
    names = () if "OMP_WAIT_POLICY" in os.environ else SPIN_WAITS.keys() - os.environ.keys()
    os.environ.update({name: SPIN_WAITS[name] for name in names})
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def min_gemm_work() -> int:
    """Return the number of multiply-adds up to which NumPy computes a product faster than MKL and oneDNN."""
    return MIN_GEMM_WORK * (ONE_THREAD_FACTOR if get_num_threads() == 1 else 1)


def gemm_work(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Return the number of multiply-adds of a product of matrices or stacks of these shapes."""
    return math.prod(np.broadcast_shapes(a[:-2], b[:-2])) * math.prod(a[-2:]) * b[-1]


def library_folders() -> list[Path]:
    """Return the folders in which pip and conda install libraries: environment, base environment, and user folder."""
    prefixes = dict.fromkeys((sys.prefix, os.environ.get("CONDA_PREFIX"), sys.base_prefix, site.getuserbase()))
    from pathlib import Path  # imported here, as it takes 5 ms

    return [Path(prefix, *("Library", "bin") if os.name == "nt" else ("lib",)) for prefix in prefixes if prefix]


def install_hint(command: str) -> str:
    """Return a sentence with the command that installs a library, or with the systems that have packages of it."""
    is_intel_linux = sys.platform == "linux" and platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc"
    if not is_intel_linux and any(f"neonlite[{extra}]" in command for extra in INTEL_EXTRAS):
        return "There are packages for Linux with glibc on x86-64 only"
    return f"Install it: {command}"


def matrix_order(array: Array) -> tuple[int, int] | None:
    """Return (ROW_MAJOR or COL_MAJOR, leading dimension in elements) of matrices, or None if BLAS cannot read them.

    The stride of an axis of size 1 is arbitrary and ignored.
    """
    (m, n), (down, across), size = array.shape[-2:], array.strides[-2:], array.itemsize
    if (n == 1 or across == size) and (m == 1 or (down >= n * size and down % size == 0)):
        return ROW_MAJOR, n if m == 1 else down // size
    if (m == 1 or down == size) and across >= m * size and across % size == 0:
        return COL_MAJOR, across // size
    return None


def data_address(array: Array) -> Any:
    """Return the address of an array's first element as ``c_void_p``, read from the C struct of the array object.

    It equals ``array.ctypes.data``, and takes a fifth of the time.
    """
    return ctypes.c_void_p.from_address(id(array) + OBJECT_HEADER_BYTES)


def may_share_memory(x: Array, y: Array) -> bool:
    """Return whether two arrays share an element, or True if the exact check would take too long."""
    return np.may_share_memory(x, y, OVERLAP_MAX_WORK)  # type: ignore[arg-type]


# --- NumPy's OpenBLAS on one thread, for products of NumPy beside a library with its own threads ---
#
# OpenBLAS's threads spin for up to 0.1 seconds after a product, and take the CPUs from the threads that run the next
# operation.


class SingleThreadedBLAS:
    """Context manager in which OpenBLAS runs on one thread; afterwards it has as many as before.

    The number of threads is one of the process, so only the first Python thread that enters sets it, and the last one
    that leaves restores it.
    """

    def __init__(self, get_threads: Callable[[], int], set_threads: Callable[[int], object]) -> None:
        self.get_threads, self.set_threads = get_threads, set_threads
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Start without any thread inside, as in a forked process."""
        self.lock, self.depth, self.threads = Lock(), 0, 1

    def __enter__(self) -> None:
        with self.lock:
            self.depth += 1
            if self.depth == 1:
                self.threads = self.get_threads()
                if self.threads > 1:
                    self.set_threads(1)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0 and self.threads > 1:
                self.set_threads(self.threads)


@cache
def get_openblas() -> AbstractContextManager[None]:
    """Return the context manager for NumPy's OpenBLAS; one without effect if NumPy uses another BLAS library.

    It is found among the files that the process has mapped, so only on Linux, as oneDNN.
    """
    try:
        with open("/proc/self/maps", "rb") as file:
            maps = os.fsdecode(file.read())
    except OSError:  # not Linux
        return nullcontext()
    fields = (line.split(maxsplit=5) for line in maps.splitlines())  # the last one is the path, which may have spaces
    paths = {path for *_, path in fields if "openblas" in os.path.basename(path)}
    for path in sorted(paths, key=lambda path: "numpy" not in path):  # SciPy's wheels have another one
        try:
            library = ctypes.PyDLL(path)
        except OSError:  # the file was removed, as by an upgrade of NumPy
            continue
        for prefix, suffix in product(("scipy_", ""), ("64_", "")):
            names = (f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set"))
            functions: list[Any] = [getattr(library, name, None) for name in names]
            if all(functions):
                return SingleThreadedBLAS(*functions)
    return nullcontext()
