"""How are matrices multiplied on a card?  By cuBLAS, with a handle of our own and memory that is given to it.

CuPy's products cannot be captured in a graph, and do not add to what is there; these can. TF32, in which a card
multiplies float32 with 10 bits of precision, is used only where ``NEONLITE_TF32=1`` is in the environment, or
``be.runtime.driver.tf32 = True`` is set.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from neonlite.backend.primitives.products import Products
from neonlite.ops import HALVES

WORKSPACE = 32 << 20  # bytes that cuBLAS works in, as NVIDIA advises for its newest cards
KINDS = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
FLOAT32, TF32, FLOAT64 = 68, 77, 70  # cublasComputeType: halves are added up as float32
ANY = -1  # the algorithm that cuBLAS chooses


def tf32_is_wanted() -> bool:
    """Tell whether products of float32 may be rounded to TF32: ``NEONLITE_TF32=1`` in the environment."""
    return os.environ.get("NEONLITE_TF32") == "1"


class Matrix(NamedTuple):
    """A matrix, or a stack of them, in memory."""

    address: int
    pitch: int  # elements from a row to the next; from a column to the next, when it is transposed
    transposed: bool
    apart: int  # elements from a matrix of the stack to the next; 0 where one serves all


class Product(NamedTuple):
    """``C = alpha A B + beta C``: (m, k), (k, n), (m, n), ``stack`` times."""

    m: int
    n: int
    k: int
    stack: int
    a: Matrix
    b: Matrix
    c: Matrix
    dtype: str  # of A and B
    out: str  # of C: float32 where halves are added up further


class CardProducts(Products):
    """Products by the driver of a card."""

    def gemm(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``: (m, k), (k, n), (m, n), or stacks of them. With beta 0, c is not read."""
        form = None if a.dtype != b.dtype or not a.size * b.size * c.size else self.product(a, b, c)
        driver = getattr(self.runtime, "driver", None)
        if form is None or (driver is not None and not driver.multiply(form, alpha, beta)):
            if str(a.dtype) in HALVES:
                a, b = (self.xp.astype(x, self.xp.float32) for x in (a, b))
            super().gemm(a, b, c, alpha, beta)

    def summed(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha sum_x a[x] b[x] + beta c``: (X, m, k), (X, k, n), (m, n); halves are rounded once."""
        if c.dtype.itemsize > 2 or not a.shape[0]:
            super().summed(a, b, c, alpha, beta)
            return
        total = self.scratch("total", c.shape, self.xp.empty(0, dtype=self.xp.float32))
        super().summed(a, b, total, alpha)
        c[...] = total if beta == 0 else total + self.xp.astype(c, total.dtype) * beta

    def multiplied(self, products: Sequence[tuple[Any, Any, float]], c: Any, beta: float = 0.0) -> bool:
        """Compute ``c = beta c + alpha a b + ...`` where all lie so that it takes no room; tell whether they do."""
        forms = []
        for a, b, alpha in products:
            alike = a.dtype == b.dtype == c.dtype and a.size * b.size * c.size > 0
            if (form := self.product(a, b, c, copied=False) if alike else None) is None:
                return False
            forms.append((form, alpha))
        driver = self.runtime.driver  # which multiplies all, or none
        return all(driver.multiply(form, alpha, 1.0 if n else beta) for n, (form, alpha) in enumerate(forms))

    def product(self, a: Any, b: Any, c: Any, copied: bool = True) -> Product | None:
        """Return how a product is told to the driver, of copies where need be; None when it cannot be told."""
        if str(a.dtype) not in KINDS or max(a.ndim, b.ndim, c.ndim) > 3 or a.ndim < 2 or b.ndim < 2:
            return None
        found = self._lying(c)
        if found is None or (c.ndim == 2 and 3 in (a.ndim, b.ndim)):
            return None
        first, second = (
            self._lying(x) or (copied and self._copied(side, x)) for side, x in (("left", a), ("right", b))
        )
        if not (first and second):
            return None
        (m, k), n, stack = a.shape[-2:], b.shape[-1], c.shape[0] if c.ndim == 3 else 1
        return Product(m, n, k, stack, first, second, found, str(a.dtype), str(c.dtype))

    def _copied(self, side: str, x: Any) -> Matrix:
        """Return where a copy lies, row by row."""
        room = self.scratch(side, x.shape, x)
        room[...] = x
        apart = x.shape[-2] * x.shape[-1] * (x.ndim == 3 and x.shape[0] > 1)
        return Matrix(self.runtime.layout(room)[0], x.shape[-1], False, apart)

    def _lying(self, x: Any) -> Matrix | None:
        """Return where a matrix lies; None when neither its rows nor its columns are without gaps."""
        address, strides = self.runtime.layout(x)
        (rows, columns), size = x.shape[-2:], x.dtype.itemsize
        down, across = strides[-2] // size, strides[-1] // size
        apart = strides[0] // size if x.ndim == 3 and x.shape[0] > 1 else 0
        if apart < 0:
            return None
        if columns == 1 or across == 1:
            down = columns if rows == 1 else down
            if down >= columns:
                return Matrix(address, down, False, apart)
        if rows == 1 or down == 1:
            across = rows if columns == 1 else across
            if across >= rows:
                return Matrix(address, across, True, apart)
        return None


class Cublas:
    """cuBLAS: a handle for each thread."""

    def __init__(self, library: Any, allocate: Callable[[int], tuple[Any, int]], stream: Callable[[], int]) -> None:
        self.library, self.allocate, self.stream = library, allocate, stream
        self.local = threading.local()

    def handle(self) -> Any:
        """Return this thread's handle, on the current stream."""
        local, stream = self.local, self.stream()
        if not hasattr(local, "handle"):
            try:
                local.room, local.address = self.allocate(WORKSPACE)
            except MemoryError as error:
                raise MemoryError(
                    f"there is no room for the {WORKSPACE} bytes that cuBLAS works in: {error}"
                ) from error
            handle = ctypes.c_void_p()
            self._check("Create", ctypes.byref(handle))
            local.handle, local.stream = handle, None
        if local.stream != stream:  # cuBLAS forgets its workspace when the stream changes
            self._check("SetStream", local.handle, ctypes.c_void_p(stream))
            self._check("SetWorkspace", local.handle, ctypes.c_void_p(local.address), ctypes.c_size_t(WORKSPACE))
            local.stream = stream
        return local.handle

    def multiply(self, form: Product, alpha: float, beta: float, tf32: bool) -> None:
        """Compute a product. cuBLAS counts by columns, so it is told ``C^T = B^T A^T``."""
        if form.c.transposed:  # C^T lies as cuBLAS has it: C = A B
            a, b, m, n = form.a, form.b, form.m, form.n
            flipped = [int(x.transposed is False) for x in (a, b)]
        else:
            a, b, m, n = form.b, form.a, form.n, form.m
            flipped = [int(x.transposed) for x in (a, b)]
        wide = form.dtype == "float64"
        scale = ctypes.c_double if wide else ctypes.c_float
        compute = FLOAT64 if wide else TF32 if tf32 and form.dtype == "float32" else FLOAT32
        kind, whole = KINDS[form.dtype], ctypes.c_int64
        first, second, third = (
            (ctypes.c_void_p(x.address), kind if x is not form.c else KINDS[form.out], whole(x.pitch), whole(x.apart))
            for x in (a, b, form.c)
        )
        alpha_, beta_ = ctypes.byref(scale(alpha)), ctypes.byref(scale(beta))
        sizes = (whole(x) for x in (m, n, form.k))
        more = whole(form.stack), compute, ANY
        arguments = *flipped, *sizes, alpha_, *first, *second, beta_, *third, *more
        self._check("GemmStridedBatchedEx_64", self.handle(), *arguments, version="")

    def _check(self, name: str, *arguments: Any, version: str = "_v2") -> None:
        """Call a function of cuBLAS; RuntimeError with its status when it fails."""
        if status := getattr(self.library, f"cublas{name}{version}")(*arguments):
            raise RuntimeError(f"cublas{name} failed with the status {status} of cublasStatus_t")


def load() -> Any:
    """Return the library of cuBLAS that CuPy uses; None where there is none to be found."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
    except (ImportError, OSError, RuntimeError):  # CuPy multiplies instead
        return None
