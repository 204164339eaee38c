"""Which functions does oneDNN work out faster than NumPy?  The logistic function; and where there is no AVX-512, exp.

Measured in one thread, on blocks that stay in the cache; tanh, log, sqrt and others are as fast in NumPy, or faster.
Each takes ``(x, out)``, which may be one array, and runs in one thread of its own: whoever calls shares out the blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import c_float
from typing import Any

import numpy as np

from neonlite.backend.mkl.blas import address
from neonlite.backend.onednn.library import DST, INFERENCE, SRC, Call, Library, Unsupported, found, using_avx512

SIZES = 256  # numbers of elements for which a thread keeps a primitive
LOGISTIC, EXP = 0x29, 0x2A  # oneDNN's
LOWEST = -86.9  # a little below, oneDNN's exp is 0; it ought to be next to the smallest normal number
ONE, MINUS = np.float32(1), np.float32(-1)


class Function:
    """A function of float32 by oneDNN, of contiguous arrays; NumPy does the rest."""

    def __init__(self, kind: int, least: int, plain: Callable[[Any, Any], Any]) -> None:
        self.kind, self.least, self.plain = kind, least, plain
        self.held = threading.local()  # a primitive runs in one thread at a time

    def __call__(self, x: Any, out: Any) -> None:
        """Put the function of x into ``out``."""
        size = x.size
        if size < self.least or not self.fits(x, out):
            self.plain(x, out)
            return
        try:
            call = self.held.calls[size]
        except (AttributeError, KeyError):
            call = self._made(size)
        if call is None:
            self.plain(x, out)
        elif self.held.alone:
            call(address(x).value, address(out).value)
        else:
            with call.library.using(1):
                call(address(x).value, address(out).value)

    def fits(self, x: Any, out: Any) -> bool:
        """Tell whether oneDNN can do it."""
        flat = x.flags.c_contiguous and out.flags.c_contiguous
        return bool(flat and x.dtype == out.dtype == np.float32 and x.shape == out.shape)

    def _made(self, size: int) -> Call | None:
        """Return the primitive of this thread for so many elements; None when there is none."""
        library = found()
        calls: dict[int, Call | None] = self.held.__dict__.setdefault("calls", {})
        # a worker of ours does nothing else with oneDNN; other threads keep the number that they have
        self.held.alone = library is not None and threading.current_thread().name.startswith("neonlite")
        if len(calls) >= SIZES:
            calls.clear()
        try:
            calls[size] = row_function(library, self.kind, size) if library else None
        except Unsupported:
            calls[size] = None
        if library and self.held.alone:
            library.set_threads(1)
        return calls[size]


def row_function(library: Library, kind: int, size: int) -> Call:
    """Return the primitive for a function of so many elements, in one thread."""
    row = library.layout((size,), (1,)).handle
    args = INFERENCE, kind, row, row, c_float(0), c_float(0), library.plain
    with library.using(1):
        return library.primitive(library.describe("eltwise_forward", library.engine, *args), SRC, DST)


class Exp(Function):
    """exp: NumPy works it out where oneDNN loses a NaN, or a number below the smallest normal one."""

    def fits(self, x: Any, out: Any) -> bool:
        """Tell whether oneDNN can do it: a comparison with NaN is false."""
        return super().fits(x, out) and bool(np.minimum.reduce(x, axis=None) >= LOWEST)


def logistic(x: Any, out: Any) -> None:
    """Put ``1 / (1 + exp(-x))`` into an array."""
    one, minus = (ONE, MINUS) if out.dtype == np.float32 else (1, -1)
    np.multiply(x, minus, out)
    np.exp(out, out)
    np.add(one, out, out)
    np.divide(one, out, out)


# by the words of op-trees
FUNCTIONS: dict[str, Function] = {"sig": Function(LOGISTIC, 1 << 13, logistic)}
if not using_avx512():
    FUNCTIONS["exp"] = Exp(EXP, 1 << 14, np.exp)
