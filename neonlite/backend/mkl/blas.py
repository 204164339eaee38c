"""How is MKL found, and how is it called?  ``libmkl_rt`` through ctypes, on arrays of NumPy as they lie in memory.

The functions of MKL that end in ``_64`` take whole numbers of 64 bits, so that no array is too large for them.
"""

from __future__ import annotations

import ctypes
import os
import site
import sys
from contextlib import suppress
from ctypes import c_double, c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.executors.pool import threads
from neonlite.backend.primitives.numpy_ import InPlace

FILES = ("libmkl_rt.so.?", "mkl_rt.?.dll")  # as pip and conda name it
LAYER = "MKL_THREADING_LAYER"  # which OpenMP MKL uses; mkl-service writes it down for processes that come after
SMALL = 1 << 18  # multiplications up to which NumPy is sooner, and uses one thread
FORMS = 1024  # forms of products that are remembered
HEAD = object.__basicsize__  # bytes of the head of an object
EFFORT = 1000  # steps in which NumPy looks for an element that two arrays share


# --- finding it ----------------------------------------------------------------------------------------------------


@cache
def library() -> Any:
    """Return libmkl_rt; ImportError when there is none that can be used. To be called before mkl-service is loaded.

    A process needs one OpenMP, or the threads of two get in each other's way. MKL brings its own, which also works in a
    process that was forked, as GNU's does not; PyTorch and oneDNN, loaded later, use it as well. Where they came first,
    with GNU's, mkl-service lets MKL use GNU's, if it sees it: therefore GNU's is made global. A layer that a process
    inherits from one that used MKL's own would make mkl-service end it.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libgomp.so.1", os.RTLD_NOLOAD | os.RTLD_GLOBAL)
        if os.environ.get(LAYER) == "INTEL":
            os.environ[LAYER] = "GNU"
    places = folders()
    found = [path for place in places for file in FILES for path in sorted(place.glob(file), reverse=True)]
    if not found:
        raise ImportError(f"neither {' nor '.join(FILES)} is in {', '.join(map(str, places))}")
    try:
        loaded = ctypes.CDLL(str(found[0]))
    except OSError as error:
        raise ImportError(str(error)) from None
    if not hasattr(loaded, "cblas_sgemm_64"):
        raise ImportError(f"{found[0]} is older than MKL 2023")
    return loaded


def folders() -> list[Path]:
    """Return where pip and conda put libraries: in the environment, in what it was made from, in the user's folder."""
    prefixes = dict.fromkeys((sys.prefix, os.environ.get("CONDA_PREFIX"), sys.base_prefix, site.getuserbase()))
    return [Path(prefix, *("Library", "bin") if os.name == "nt" else ("lib",)) for prefix in prefixes if prefix]


# --- how BLAS is told of arrays --------------------------------------------------------------------------------------

ROWS, COLUMNS = 101, 102  # CBLAS's words for: the elements of a row, or of a column, are neighbours
AS_IT_IS, TRANSPOSED = 111, 112


class Form(NamedTuple):
    """A product as BLAS is told of it: all that follows from dtypes, shapes and strides."""

    call: Any  # the function of MKL
    number: Any  # the type of alpha and beta
    head: tuple[Any, ...]  # how c lies; whether a and b lie otherwise; m, n, k
    tails: tuple[tuple[Any, ...], ...]  # what follows the address of a, b and c
    near: tuple[tuple[int, int], ...]  # between which distances in bytes a, and b, may share memory with c
    size: int  # bytes of an element
    summed: bool  # the products of a stack are added up
    calls: int  # calls that it takes
    steps: tuple[int, ...]  # bytes from the a, b and c of one call to those of the next


def lie(array: Any) -> tuple[int, int] | None:
    """Return how matrices lie, by ROWS or COLUMNS, and how many elements one row or column is from the next.

    None when BLAS has no words for it. The stride of an axis of one element is arbitrary, and is not looked at.
    """
    (m, n), (down, across), size = array.shape[-2:], array.strides[-2:], array.itemsize
    if (n == 1 or across == size) and (m == 1 or (down >= n * size and down % size == 0)):
        return ROWS, n if m == 1 else down // size
    if (m == 1 or down == size) and across >= m * size and across % size == 0:
        return COLUMNS, across // size
    return None


def formed(functions: dict[Any, Any], a: Any, b: Any, c: Any) -> Form | None:
    """Return the form of the product of two arrays, into a third; None when BLAS has no words for it."""
    operands, function = (a, b, c), functions.get(c.dtype)
    if not a.dtype == b.dtype == c.dtype or not function or not all(x.size and x.ndim in (2, 3) for x in operands):
        return None
    (m, n), k, size = c.shape[-2:], a.shape[-1], c.itemsize
    lies = [lie(x) for x in operands]
    stacks = {x.shape[0] for x in operands if x.ndim == 3}
    steps = tuple(x.strides[0] if x.ndim == 3 else 0 for x in operands)
    summed = c.ndim == 2 and a.ndim == b.ndim == 3
    fits = a.shape[-2] == m and b.shape[-2:] == (k, n) and len(stacks) <= 1 and (not stacks or summed or c.ndim == 3)
    if not fits or any(step % size for step in steps) or None in lies:
        return None
    (of_a, lda), (of_b, ldb), (of_c, ldc) = lies  # type: ignore[misc]
    calls = stacks.pop() if stacks else 1
    number, one, many = function
    head = [c_int(x) for x in (of_c, *(AS_IT_IS if x == of_c else TRANSPOSED for x in (of_a, of_b)))]
    tails = [[lda], [ldb], [ldc]]
    if calls > 1 and min(steps) >= 0 and steps[2] >= ldc * size * (m if of_c == ROWS else n):
        tails = [[ld, step // size] for ld, step in zip((lda, ldb, ldc), steps, strict=True)]
        tails[2].append(calls)
        one, calls = many, 1
    *spans, ours = [span(x) for x in operands]
    return Form(
        call=one,
        number=number,
        head=(*head, *(c_int64(x) for x in (m, n, k))),
        tails=tuple(tuple(map(c_int64, tail)) for tail in tails),
        near=tuple((ours[0] - theirs[1], ours[1] - theirs[0]) for theirs in spans),
        size=size,
        summed=summed,
        calls=calls,
        steps=steps,
    )


def span(array: Any) -> tuple[int, int]:
    """Return between which bytes, counted from its address, the elements of an array lie."""
    ends = [stride * (n - 1) for n, stride in zip(array.shape, array.strides, strict=True)]
    return sum(end for end in ends if end < 0), sum(end for end in ends if end > 0) + array.itemsize


def address(array: Any) -> Any:
    """Return the address of an array's first element: what NumPy's C interface puts behind the head of the object.

    ``array.ctypes.data`` is the same, and takes five times as long.
    """
    return c_void_p.from_address(id(array) + HEAD)


def share(x: Any, y: Any) -> bool:
    """Tell whether two arrays share an element; also when it takes too long to find out."""
    return np.may_share_memory(x, y, EFFORT)  # type: ignore[arg-type]


class Products(InPlace):
    """Products of float32 and of float64 by MKL; what BLAS has no words for is left to NumPy."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        loaded = library()
        self.use_threads = loaded["MKL_Set_Num_Threads_Local"]
        self.functions = {
            np.dtype(dtype): (number, loaded[f"cblas_{x}gemm_64"], loaded[f"cblas_{x}gemm_batch_strided_64"])
            for x, dtype, number in (("s", np.float32, c_float), ("d", np.float64, c_double))
        }
        self.forms: dict[Any, Form | None] = {}

    def gemm(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c``, of matrices or stacks; where MKL gains nothing, NumPy does it."""
        if beta == 0 and alpha == 1 and (c.size * a.shape[-1] <= SMALL or c.size in c.shape):  # small, or a vector
            np.matmul(a, b, out=c)
        elif not self._multiplied(a, b, c, alpha, beta, summed=False):
            super().gemm(a, b, c, alpha, beta)

    def summed(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha sum_x a[x] b[x] + beta c``: each product is added in its place."""
        if not self._multiplied(a, b, c, alpha, beta, summed=True):
            super().summed(a, b, c, alpha, beta)

    def form(self, a: Any, b: Any, c: Any) -> Form | None:
        """Return the form of a product, which is found out once."""
        key = (a.dtype, a.shape, a.strides, b.dtype, b.shape, b.strides, c.dtype, c.shape, c.strides)
        try:
            return self.forms[key]
        except KeyError:
            if len(self.forms) >= FORMS:
                self.forms.clear()
            found = self.forms[key] = formed(self.functions, a, b, c)
            return found

    def _multiplied(self, a: Any, b: Any, c: Any, alpha: float, beta: float, summed: bool) -> bool:
        """Let MKL multiply, and return True; or False when it cannot."""
        form = self.form(a, b, c)
        if form is None:
            return False
        call, number, head, (of_a, of_b, of_c), (near_a, near_b), size, sums, calls, steps = form
        at_a, at_b, at_c = address(a), address(b), address(c)
        i, j, o = at_a.value, at_b.value, at_c.value
        # what NumPy looks at and MKL does not: where it writes, and NaNs when alpha is 0
        if (
            sums != summed
            or (i | j | o) % size
            or not c.flags.writeable
            or alpha == 0
            or (near_a[0] < i - o < near_a[1] and share(a, c))
            or (near_b[0] < j - o < near_b[1] and share(b, c))
        ):
            return False
        before = self.use_threads(threads())  # of MKL in this thread, as long as it multiplies for us
        call(*head, number(alpha), at_a, *of_a, at_b, *of_b, number(beta), at_c, *of_c)
        for x in range(1, calls):
            at_a, at_b, at_c = (c_void_p(at + x * step) for at, step in zip((i, j, o), steps, strict=True))
            call(*head, number(alpha), at_a, *of_a, at_b, *of_b, number(1.0 if summed else beta), at_c, *of_c)
        self.use_threads(before)
        return True
