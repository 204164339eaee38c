"""How does oneDNN multiply matrices?  Sooner than OpenBLAS, and by the threads that work on images and sequences.

Two libraries that each have threads get in each other's way: those of one look for work while the other's have some.
"""

from __future__ import annotations

from ctypes import c_char, c_float, c_int64, c_void_p
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.executors.pool import threads
from neonlite.backend.mkl.blas import ROWS, address, lie
from neonlite.backend.onednn.library import Library, found
from neonlite.backend.primitives.numpy_ import InPlace

SMALL = 1 << 18  # multiplications up to which NumPy is sooner, and uses one thread
FORMS = 1024  # forms of products that are remembered
SINGLE = np.dtype(np.float32)


class Form(NamedTuple):
    """A product as ``dnnl_sgemm`` is told of it: all that follows from shapes and strides."""

    turned: bool  # columns lie together in the result: its transpose is computed
    head: tuple[Any, ...]  # whether operands are transposed; m, n, k
    lda: int
    ldb: int
    ldc: int


@lru_cache(FORMS)
def formed(shapes: tuple[Any, ...], strides: tuple[Any, ...]) -> Form | None:
    """Return the form of a product of float32 matrices; None when oneDNN has no words for it."""
    (m, k), (k2, n), of_c = shapes
    if k != k2 or of_c != (m, n):
        return None
    lies = [lie(np.lib.stride_tricks.as_strided(SCALAR, x, s)) for x, s in zip(shapes, strides, strict=True)]
    if None in lies:
        return None
    (a, lda), (b, ldb), (c, ldc) = lies  # type: ignore[misc]
    ways = [b"N" if x == c else b"T" for x in (a, b)]
    if c == ROWS:
        return Form(False, (*ways, m, n, k), lda, ldb, ldc)
    return Form(True, (*reversed(ways), n, m, k), ldb, lda, ldc)


SCALAR = np.zeros(1, SINGLE)


@lru_cache(1)
def function(library: Library) -> Any:
    """Return ``dnnl_sgemm``, which knows what it takes."""
    sgemm = library.functions.dnnl_sgemm
    sgemm.argtypes = [*[c_char] * 2, *[c_int64] * 3, c_float, *[c_void_p, c_int64] * 2, c_float, c_void_p, c_int64]
    return sgemm


class Products(InPlace):
    """Products of float32 by oneDNN where it is installed; small ones, and those of other dtypes, by NumPy."""

    def gemm(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``: matrices, or stacks of them."""
        large = c.shape[-2] * c.shape[-1] * a.shape[-1] > SMALL
        if not (large and a.dtype == b.dtype == c.dtype == SINGLE and found()):
            super().gemm(a, b, c, alpha, beta)
        elif c.ndim == 3:
            for x in range(len(c)):
                self.gemm(a[x] if a.ndim == 3 else a, b[x] if b.ndim == 3 else b, c[x], alpha, beta)
        elif form := formed((a.shape, b.shape, c.shape), (a.strides, b.strides, c.strides)):
            first, second = (b, a) if form.turned else (a, b)
            self._multiply(form, first, second, c, alpha, beta)
        else:
            super().gemm(a, b, c, alpha, beta)

    def _multiply(self, form: Form, a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
        library = found()
        if library is None:
            return
        places = address(a).value, form.lda, address(b).value, form.ldb, beta, address(c).value, form.ldc
        with library.using(threads()):
            status = function(library)(*form.head, alpha, *places)
        if status:
            raise RuntimeError(f"oneDNN {library.version}: dnnl_sgemm: status {status}")
