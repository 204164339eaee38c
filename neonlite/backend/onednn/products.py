"""How does oneDNN multiply matrices?  Sooner than OpenBLAS, and by the threads that work on images and sequences.

Two libraries that each have threads get in each other's way: those of one look for work while the other's have some.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from ctypes import c_char, c_float, c_int64, c_void_p
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.executors.pool import threads
from neonlite.backend.mkl.blas import ROWS, address, lie, share
from neonlite.backend.onednn.library import DST, SRC, WEIGHTS, Call, Library, Unsupported, found
from neonlite.backend.primitives.numpy_ import InPlace

SMALL = 1 << 18  # multiplications up to which NumPy is sooner, and uses one thread
SINGLE = np.dtype(np.float32)
KEPT = 256  # products of stacks for which a thread keeps a primitive


class Form(NamedTuple):
    """A product as ``dnnl_sgemm`` is told of it: all that follows from shapes and strides."""

    turned: bool  # columns lie together in the result: its transpose is computed, of the operands in turn
    head: tuple[bytes | int, ...]  # whether operands are transposed; m, n, k
    lds: tuple[int, int, int]  # how many elements one row, or column, is from the next


def formed(a: Any, b: Any, c: Any) -> Form | None:
    """Return the form of a product of matrices; None when oneDNN has no words for it."""
    (m, k), n = a.shape, b.shape[1]
    of_a, of_b, of_c = lie(a), lie(b), lie(c)
    if of_a is None or of_b is None or of_c is None:
        return None
    ways = [b"N" if of[0] == of_c[0] else b"T" for of in (of_a, of_b)]
    if of_c[0] == ROWS:
        return Form(False, (*ways, m, n, k), (of_a[1], of_b[1], of_c[1]))
    return Form(True, (*reversed(ways), n, m, k), (of_b[1], of_a[1], of_c[1]))


@lru_cache(1)
def function(library: Library) -> Any:
    """Return ``dnnl_sgemm``, which knows what it takes."""
    sgemm = library.functions.dnnl_sgemm
    sgemm.argtypes = [*[c_char] * 2, *[c_int64] * 3, c_float, *[c_void_p, c_int64] * 2, c_float, c_void_p, c_int64]
    return sgemm


held = threading.local()  # a primitive runs in one thread at a time


def stacked(library: Library, *stacks: Any) -> Call | None:
    """Return the product of two stacks of matrices, into a third; None when oneDNN has no fast one."""
    calls: dict[Any, Call | None] = held.__dict__.setdefault("calls", {})
    key = threads(), *((x.shape, x.strides) for x in stacks)
    if key not in calls:
        if len(calls) >= KEPT:
            calls.clear()
        calls[key] = None
        if all(step >= 0 and step % x.itemsize == 0 for x in stacks for step in x.strides):
            a, b, c = (library.layout(x.shape, [step // x.itemsize for step in x.strides]) for x in stacks)
            args = a.handle, b.handle, None, c.handle, None  # it works in memory of its own, of some kilobytes
            with suppress(Unsupported):
                description = library.describe("matmul", library.engine, *args)
                calls[key] = Call(library, description, {SRC: a, WEIGHTS: b, DST: c})
    return calls[key]


class Products(InPlace):
    """Products of float32 by oneDNN where it is installed; small ones, and those of other dtypes, as without."""

    def gemm(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``: matrices, or stacks of them."""
        m, n = c.shape[-2:]
        work = m * n * a.shape[-1]  # in one product
        stacks = a.ndim == b.ndim == c.ndim == 3 and alpha == 1 and beta == 0
        large = (work * len(c) if stacks else work) > SMALL and min(m, n) > 1  # with vectors, too, others are sooner
        library = found() if large and a.dtype == b.dtype == c.dtype == SINGLE else None
        if library is None:
            super().gemm(a, b, c, alpha, beta)
        elif stacks and self._fit(a, b, c, alpha) and self._stacked(library, a, b, c):
            return
        elif work <= SMALL:
            super().gemm(a, b, c, alpha, beta)
        elif c.ndim == 3:
            for x in range(len(c)):
                self.gemm(a[x] if a.ndim == 3 else a, b[x] if b.ndim == 3 else b, c[x], alpha, beta)
        elif (form := formed(a, b, c)) and self._fit(a, b, c, alpha):
            self._multiply(library, form, a, b, c, alpha, beta)
        else:
            super().gemm(a, b, c, alpha, beta)

    def _stacked(self, library: Library, a: Any, b: Any, c: Any) -> bool:
        """Multiply two stacks, or where columns lie together their transposes; tell whether that could be done."""
        if c.strides[-2] < c.strides[-1]:
            a, b, c = (np.swapaxes(x, 1, 2) for x in (b, a, c))
        with library.using(threads()):
            if (call := stacked(library, a, b, c)) is None:
                return False
            self._run_stacks(call, a, b, c)
        return True

    def _run_stacks(self, call: Call, *arrays: Any) -> None:
        call(*(address(x).value for x in arrays))

    def _fit(self, a: Any, b: Any, c: Any, alpha: float) -> bool:
        """Tell whether all is well at which NumPy looks and oneDNN does not: where it writes, and NaNs times 0."""
        aligned = a.flags.aligned and b.flags.aligned and c.flags.aligned
        return aligned and c.flags.writeable and alpha != 0 and not share(a, c) and not share(b, c)

    def _multiply(self, library: Library, form: Form, a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
        first, second = (b, a) if form.turned else (a, b)
        lda, ldb, ldc = form.lds
        places = address(first).value, lda, address(second).value, ldb, beta, address(c).value, ldc
        with library.using(threads()):
            status = function(library)(*form.head, alpha, *places)
        if status:
            raise RuntimeError(f"oneDNN {library.version}: dnnl_sgemm: status {status}")
