"""Native libraries (oneDNN, MKL): where they are installed, how to install them, and the memory of NumPy arrays."""

from __future__ import annotations

import os
import platform
import site
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from neonlite.backend.thread_pool import get_num_threads
from neonlite.typing import NumPyArray as Array

ROW_MAJOR, COL_MAJOR = 101, 102  # CBLAS_LAYOUT
OBJECT_HEADER_BYTES = object.__basicsize__  # size of PyObject_HEAD, which precedes the data pointer
OVERLAP_MAX_WORK = 1000  # max_work of np.may_share_memory
MIN_GEMM_WORK = 1 << 20  # multiply-adds of a product up to which NumPy is faster, with several threads
ONE_THREAD_FACTOR = 4  # times as many with one thread

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


def library_folders() -> list[Path]:
    """Return the folders in which pip and conda install libraries: environment, base environment, and user folder."""
    prefixes = dict.fromkeys((sys.prefix, os.environ.get("CONDA_PREFIX"), sys.base_prefix, site.getuserbase()))
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
    return c_void_p.from_address(id(array) + OBJECT_HEADER_BYTES)


def may_share_memory(x: Array, y: Array) -> bool:
    """Return whether two arrays share an element, or True if the exact check would take too long."""
    return np.may_share_memory(x, y, OVERLAP_MAX_WORK)  # type: ignore[arg-type]
