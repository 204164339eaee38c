"""NumPy's OpenBLAS on one thread, for products of NumPy beside a library with its own threads.

OpenBLAS's threads spin for up to 0.1 seconds after a product, and take the CPUs from the threads that run the next
operation.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any


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
        maps = os.fsdecode(Path("/proc/self/maps").read_bytes())
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
