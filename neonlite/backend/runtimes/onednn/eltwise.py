"""Elementwise functions and transposed copies of float32 blocks by oneDNN (eltwise and reorder primitives).

These are only the functions that are faster than NumPy's, measured in one thread on blocks in the cache: the logistic
function, transposed copies, and exp on CPUs without AVX-512. Each is called with ``(x, out)``, which may be the same
array, and runs in one thread; the caller divides work among threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_float
from threading import get_ident
from typing import Any

import numpy as np

from neonlite.backend.runtimes.native import data_address
from neonlite.backend.runtimes.onednn.bindings import (
    ARG_DST,
    ARG_SRC,
    FORWARD_INFERENCE,
    Library,
    Primitive,
    UnsupportedError,
    get_library,
    numpy_uses_avx512,
    primitives,
)
from neonlite.typing import NumPyArray as Array

ELTWISE_LOGISTIC, ELTWISE_EXP = 0x29, 0x2A  # dnnl_alg_kind_t
FLOAT32_BYTES = 4
MIN_EXP_ARG = -86.9  # slightly below it oneDNN returns 0, although exp(x) is still a normal number
ONE, MINUS_ONE = np.float32(1), np.float32(-1)


class _ThreadState(threading.local):
    """Whether a thread is a worker of the pool: it uses oneDNN only here, so it keeps one OpenMP thread."""

    def __init__(self) -> None:
        self.is_worker = threading.current_thread().name.startswith("neonlite")
        if self.is_worker and (library := get_library()):
            library.set_threads(1)


_thread = _ThreadState()


def execute(primitive: Primitive, threads: int, addresses: Sequence[int]) -> None:
    """Execute a primitive; a thread that is not of the pool restores its number of OpenMP threads."""
    if _thread.is_worker:
        primitive(*addresses)
    else:
        with primitive.library.use_threads(threads):
            primitive(*addresses)


class EltwiseFunction:
    """An elementwise function of contiguous float32 arrays by oneDNN, with a NumPy fallback for all others."""

    def __init__(self, alg_kind: int, min_size: int, fallback: Callable[..., Any]) -> None:
        self.alg_kind, self.min_size, self.fallback = alg_kind, min_size, fallback

    def __call__(self, x: Array, out: Array) -> None:
        """Write the function of x into ``out``."""
        if x.size < self.min_size or not self.is_supported(x, out):
            self.fallback(x, out)
            return
        primitive = self.get_primitive(self.cache_key(x, out))
        if primitive is None:
            self.fallback(x, out)
        else:
            execute(primitive, 1, (data_address(x).value, data_address(out).value))

    def is_supported(self, x: Array, out: Array) -> bool:
        """Return whether oneDNN can compute it."""
        return is_compatible(x, out) and bool(x.flags.c_contiguous and out.flags.c_contiguous)

    def cache_key(self, x: Array, out: Array) -> Any:
        """Return the cache key of the primitive for these arrays."""
        return x.size

    def create_primitive(self, library: Library, key: Any) -> Any:
        """Create the primitive for a key, for one thread."""
        if not library.has_precise_exp:
            raise UnsupportedError(f"oneDNN {library.version}: exp and the logistic function without AVX2")
        row = library.memory_desc((key,), (1,)).handle
        args = FORWARD_INFERENCE, self.alg_kind, row, row, c_float(0), c_float(0), library.default_attr
        return library.create_primitive(
            library.primitive_desc("eltwise_forward", library.engine, *args), ARG_SRC, ARG_DST
        )

    def get_primitive(self, key: Any) -> Any:
        """Return this thread's primitive for a key, or None if there is none."""
        key_in_thread = get_ident(), self, key
        try:
            return primitives[key_in_thread]
        except KeyError:
            primitive = None
            if library := get_library():
                with suppress(UnsupportedError), library.use_threads(1):
                    primitive = self.create_primitive(library, key)
            return primitives.add(key_in_thread, primitive)


class ExpFunction(EltwiseFunction):
    """exp, by NumPy where oneDNN would lose a NaN or return 0 for a small normal number."""

    def is_supported(self, x: Array, out: Array) -> bool:
        """Return whether oneDNN can compute it; a comparison with NaN is False."""
        return super().is_supported(x, out) and bool(np.minimum.reduce(x, axis=None) >= MIN_EXP_ARG)


class TransposedCopy(EltwiseFunction):
    """A copy between arrays with different memory order, such as a transpose, which oneDNN copies in tiles."""

    def __init__(self, min_size: int) -> None:
        super().__init__(0, min_size, copy_numpy)

    def is_supported(self, x: Array, out: Array) -> bool:
        """Return whether oneDNN can copy, and is faster: the arrays differ in the stride of the last axis."""
        return is_compatible(x, out) and x.strides[-1] != out.strides[-1] and min(*x.strides, *out.strides) > 0

    def cache_key(self, x: Array, out: Array) -> Any:
        """Return the cache key: shape and strides."""
        return x.shape, x.strides, out.strides

    def create_primitive(self, library: Library, key: Any) -> Primitive:
        """Create the primitive for a shape and strides, for one thread."""
        shape, *strides = key
        x, out = (library.memory_desc(shape, [n // FLOAT32_BYTES for n in each]) for each in strides)
        primitive = library.create_reorder(x, out)
        if primitive.needs_scratchpad:
            raise UnsupportedError("onednn reorder: expected a primitive without scratchpad, got one that needs it")
        return primitive


def is_compatible(x: Array, out: Array) -> bool:
    """Return whether both arrays are aligned float32 of the same shape, and ``out`` is writable."""
    same = x.dtype == out.dtype == np.float32 and x.shape == out.shape
    return bool(same and x.flags.aligned and out.flags.aligned and out.flags.writeable)


def copy_numpy(x: Array, out: Array) -> None:
    """Copy an array into another with unsafe casting."""
    np.copyto(out, x, casting="unsafe")


def logistic_numpy(x: Array, out: Array) -> None:
    """Write ``1 / (1 + exp(-x))`` into ``out``."""
    one, minus = (ONE, MINUS_ONE) if out.dtype == np.float32 else (1, -1)
    np.multiply(x, minus, out)
    np.exp(out, out)
    np.add(one, out, out)
    np.divide(one, out, out)


# by op name
ELTWISE_FUNCTIONS: dict[str, EltwiseFunction] = {
    "sig": EltwiseFunction(ELTWISE_LOGISTIC, 1 << 13, logistic_numpy),
    "stop_gradient": TransposedCopy(1 << 12),
}
if not numpy_uses_avx512():
    ELTWISE_FUNCTIONS["exp"] = ExpFunction(ELTWISE_EXP, 1 << 14, np.exp)
