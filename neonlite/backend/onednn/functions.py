"""What does oneDNN work out faster than NumPy?  Logistic functions, turned copies; and where AVX-512 is not, exp.

Measured in one thread, on blocks that stay in the cache; tanh, log, sqrt and others are as fast in NumPy, or faster.
Each takes ``(x, out)``, which may be one array, and runs in one thread of its own: whoever calls shares out the blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_float
from typing import Any

import numpy as np

from neonlite.backend.mkl.blas import address
from neonlite.backend.onednn.library import DST, INFERENCE, SRC, Call, Library, Unsupported, found, using_avx512

SIZES = 256  # numbers of elements for which a thread keeps a primitive
LOGISTIC, EXP = 0x29, 0x2A  # oneDNN's
SINGLE = 4  # bytes of a number
LOWEST = -86.9  # a little below, oneDNN's exp is 0; it ought to be next to the smallest normal number
ONE, MINUS = np.float32(1), np.float32(-1)


class Function:
    """A function of float32 by oneDNN, of contiguous arrays; NumPy does the rest."""

    def __init__(self, kind: int, least: int, plain: Callable[..., Any]) -> None:
        self.kind, self.least, self.plain = kind, least, plain
        self.held = threading.local()  # a primitive runs in one thread at a time

    def __call__(self, x: Any, out: Any) -> None:
        """Put the function of x into ``out``."""
        if x.size < self.least or not self.fits(x, out):
            self.plain(x, out)
            return
        key = self.key(x, out)
        try:
            call = self.held.calls[key]
        except (AttributeError, KeyError):
            call = self._made(key)
        if call is None:
            self.plain(x, out)
        elif self.held.alone:
            call(address(x).value, address(out).value)
        else:
            with call.library.using(1):
                call(address(x).value, address(out).value)

    def fits(self, x: Any, out: Any) -> bool:
        """Tell whether oneDNN can do it."""
        return alike(x, out) and bool(x.flags.c_contiguous and out.flags.c_contiguous)

    def key(self, x: Any, out: Any) -> Any:
        """Return what the primitive depends on."""
        return x.size

    def make(self, library: Library, key: Any) -> Any:
        """Return the primitive for a key, in one thread."""
        if not library.precise:
            raise Unsupported(f"oneDNN {library.version}: exp and the logistic function without AVX2")
        row = library.layout((key,), (1,)).handle
        args = INFERENCE, self.kind, row, row, c_float(0), c_float(0), library.plain
        return library.primitive(library.describe("eltwise_forward", library.engine, *args), SRC, DST)

    def _made(self, key: Any) -> Any:
        """Return the primitive of this thread for a key; None when there is none."""
        library = found()
        calls: dict[Any, Any] = self.held.__dict__.setdefault("calls", {})
        # a worker of ours does nothing else with oneDNN; other threads keep the number that they have
        self.held.alone = library is not None and threading.current_thread().name.startswith("neonlite")
        if len(calls) >= SIZES:
            calls.clear()
        calls[key] = None
        if library:
            with suppress(Unsupported), library.using(1):
                calls[key] = self.make(library, key)
            if self.held.alone:
                library.set_threads(1)
        return calls[key]


class Exp(Function):
    """exp: NumPy works it out where oneDNN loses a NaN, or a number below the smallest normal one."""

    def fits(self, x: Any, out: Any) -> bool:
        """Tell whether oneDNN can do it: a comparison with NaN is false."""
        return super().fits(x, out) and bool(np.minimum.reduce(x, axis=None) >= LOWEST)


class Copy(Function):
    """A copy of an array that lies otherwise, as a transpose does: NumPy jumps through memory, oneDNN goes by tiles."""

    def __init__(self, least: int) -> None:
        super().__init__(0, least, copied)

    def fits(self, x: Any, out: Any) -> bool:
        """Tell whether oneDNN can do it, and gains by it: the last axis is not the nearest one in both."""
        return alike(x, out) and x.strides[-1] != out.strides[-1] and min(*x.strides, *out.strides) > 0

    def key(self, x: Any, out: Any) -> Any:
        """Return shape and strides."""
        return x.shape, x.strides, out.strides

    def make(self, library: Library, key: Any) -> Call:
        """Return the primitive for a shape and strides, in one thread."""
        shape, *strides = key
        x, out = (library.layout(shape, [n // SINGLE for n in each]) for each in strides)
        call = library.reorder(x, out)
        if call.spare:
            raise Unsupported("a copy that needs room to work in")
        return call


def alike(x: Any, out: Any) -> bool:
    """Tell whether both are float32, of one shape and aligned, and the second may be written."""
    same = x.dtype == out.dtype == np.float32 and x.shape == out.shape
    return bool(same and x.flags.aligned and out.flags.aligned and out.flags.writeable)


def copied(x: Any, out: Any) -> None:
    """Copy an array into another, cast."""
    np.copyto(out, x, casting="unsafe")


def logistic(x: Any, out: Any) -> None:
    """Put ``1 / (1 + exp(-x))`` into an array."""
    one, minus = (ONE, MINUS) if out.dtype == np.float32 else (1, -1)
    np.multiply(x, minus, out)
    np.exp(out, out)
    np.add(one, out, out)
    np.divide(one, out, out)


# by the words of op-trees
FUNCTIONS: dict[str, Function] = {"sig": Function(LOGISTIC, 1 << 13, logistic), "stop_gradient": Copy(1 << 12)}
if not using_avx512():
    FUNCTIONS["exp"] = Exp(EXP, 1 << 14, np.exp)
