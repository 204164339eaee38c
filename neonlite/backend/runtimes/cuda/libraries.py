"""CUDA libraries: load them, a handle for each thread, and NVRTC with a cache of compiled kernels on disk."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import stat
import sys
import threading
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeAlias, TypeVar

from neonlite.backend.validation import warn
from neonlite.files import write_atomic


@cache
def load_library(name: str) -> ctypes.CDLL | None:
    """Return an NVIDIA library, such as "cublas", loaded by ctypes; None where it is not installed.

    ``cuda.pathfinder``, a dependency of CuPy, is tried first. It does not search the folders of PYTHONPATH, so if it
    fails, all folders of ``sys.path`` are searched.
    """
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, OSError, RuntimeError):  # no pathfinder, or it does not find the library
        paths = [path for folder in sys.path for path in Path(folder or ".").glob(f"nvidia/*/lib/lib{name}.so.*")]
    for path in sorted(paths, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)], reverse=True):
        try:
            return ctypes.CDLL(str(path))
        except OSError:  # for another platform, or incomplete
            continue
    return None


# --- library handles: one for each thread that is running ---

T = TypeVar("T")


class PerThread(Generic[T]):
    """Gives each thread its own object, and that of a thread that has ended to the next new one.

    A handle of cuBLAS or cuDNN holds tens of megabytes of GPU memory, so it is reused and never destroyed.

    Parameters
    ----------
    create : callable
        ``create()`` returns a new object.
    """

    def __init__(self, create: Callable[[], T]) -> None:
        self.create = create
        self.free: list[T] = []
        self.local = threading.local()

    def get(self) -> T:
        """Return the object of this thread."""
        loan: Loan[T] | None = getattr(self.local, "loan", None)
        if loan is None:
            try:
                value = self.free.pop()
            except IndexError:
                value = self.create()
            self.local.loan = loan = Loan(value)
            weakref.finalize(loan, self.free.append, value).atexit = False
        return loan.value


class Loan(Generic[T]):
    """Refers to the object of a thread, and is freed when the thread ends."""

    def __init__(self, value: T) -> None:
        self.value = value


# --- the disk cache of compiled kernels: a private folder of files with a checksum ---
#
# The files contain code that is executed, so only the user or root may have write access to them and to the folder.
# Each file ends with the SHA-256 of its contents; a damaged file is compiled again.


def cache_folder() -> Path:
    """Return the cache folder: ``NEONLITE_CACHE``, else "neonlite" in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("NEONLITE_CACHE") or Path(home, "neonlite"))


def create_folder() -> Path:
    """Return the cache folder, created if it is missing.

    OSError where it cannot be created; RuntimeError if other users have write access to it.
    """
    folder = cache_folder()
    folder.mkdir(0o700, parents=True, exist_ok=True)
    check_private(folder)
    return folder


def read_binary(path: Path) -> bytes | None:
    """Return the contents that ``write_binary`` wrote; None for a missing, damaged or not private file.

    RuntimeError if other users have write access to the folder.
    """
    if path.parent.exists():
        check_private(path.parent)
    try:
        contents, status = path.read_bytes(), path.lstat()
    except OSError:
        return None
    is_intact = append_hash(contents[:-32]) == contents and stat.S_ISREG(status.st_mode) and is_private(status)
    return contents[:-32] if is_intact else None


def write_binary(path: Path, binary: bytes) -> None:
    """Write a compiled kernel to a file of the cache folder. OSError where that fails."""
    create_folder()
    if path.exists() and not is_private(path.lstat()):
        path.unlink()  # a new file gets a private mode
    write_atomic(path, append_hash(binary), 0o600)


def append_hash(contents: bytes) -> bytes:
    """Return the contents followed by their SHA-256, which library loaders ignore."""
    return contents + hashlib.sha256(contents).digest()


def is_private(status: os.stat_result) -> bool:
    """Return whether only the current user or root has write access to a file or folder."""
    return os.name == "nt" or (status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def check_private(folder: Path) -> None:
    """Raise RuntimeError if other users have write access to a folder, since its files are executed."""
    status = folder.stat()
    if not is_private(status):
        raise RuntimeError(
            f"compiled kernels in {folder} are not loaded: expected a folder of user {os.getuid()} without write "
            f"access for others, got one of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):o}. "
            f"Run chmod go-w {folder}, or set NEONLITE_CACHE to another folder"
        )


# --- compile CUDA kernels with NVRTC, and cache their binaries on disk ---
#
# CuPy's ``RawKernel`` is not used: it appends ``-ftz=true`` to its options, which flushes denormal numbers (float32
# below 1.2e-38) to 0.

MAX_CACHED_KERNELS = 8192  # of each cache of compiled kernels
Kernel: TypeAlias = Any  # a compiled kernel of a driver: a function of CuPy, or of the simulator's C library
# --fmad=false: x * y + z is rounded twice, so that + - * / and sqrt give the same bits on every runtime.
# --ftz=false: denormal numbers are not flushed to 0, for the same reason.
OPTIONS = ("-std=c++17", "--fmad=false", "--ftz=false")


def load_kernel(cupy: ModuleType, source: str) -> Kernel:
    """Return the kernel named ``kernel`` in a source as a CuPy function for the current device.

    The binary comes from the cache folder (``NEONLITE_CACHE``) or is compiled and written there.
    """
    cuda = cupy.cuda
    versions = cuda.Device().compute_capability, cuda.nvrtc.getVersion(), os.environ.get("CUPY_COMPILE_WITH_PTX")
    name = hashlib.sha256(repr((versions, OPTIONS, source)).encode()).hexdigest()[:32]
    path = cache_folder() / f"{name}.cubin"
    if (binary := read_binary(path)) is None:
        code, _ = cuda.compiler.compile_using_nvrtc(source, OPTIONS, filename="kernel.cu", cache_in_memory=True)
        binary = code.encode() if isinstance(code, str) else code  # PTX is text
        try:
            write_binary(path, binary)
        except OSError as error:
            warn(
                f"compiled kernels cannot be cached in {path.parent}: {error}. Set NEONLITE_CACHE to another folder",
                RuntimeWarning,
            )
    module = cuda.Module()
    module.load(binary)
    return module.get_function("kernel")
