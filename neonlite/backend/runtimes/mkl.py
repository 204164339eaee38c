"""The 'mkl' runtime: NumPy arrays, with matrix products by Intel MKL, called through ctypes.

The functions with the suffix ``_64`` take 64-bit integers, so that no array is too large for them.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_double, c_float, c_int, c_int64, c_void_p
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend import runtimes
from neonlite.backend.concurrency import Cache, get_num_threads
from neonlite.backend.runtimes.numpy import NumPyPrimitives, NumPyRuntime
from neonlite.ops.functions import Shape
from neonlite.typing import NumPyArray as Array

LIBRARY_PATTERNS = ("libmkl_rt.so.?", "mkl_rt.?.dll")  # file names in the packages of pip and conda
THREADING_LAYER_VAR = (
    "MKL_THREADING_LAYER"  # the OpenMP runtime of MKL; mkl-service sets it, and child processes inherit it
)
MAX_CACHED_CALLS = 1024  # by dtypes, shapes and strides


# --- loading -------------------------------------------------------------------------------------------------------


@cache
def load_library() -> Any:
    """Return libmkl_rt; ImportError if it is not installed or too old. Call it before mkl-service is imported.

    A process should load only one OpenMP runtime, since the threads of two would compete for the CPUs. MKL comes with
    Intel's, which, unlike libgomp, works in a forked process; PyTorch and oneDNN use it too if they are loaded later.
    If one of them has loaded libgomp first, mkl-service makes MKL use libgomp as well, provided that its symbols are
    global; they are made global here. In this case, MKL_THREADING_LAYER=INTEL inherited from a parent process would
    make mkl-service end the process, so it is replaced by GNU.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libgomp.so.1", os.RTLD_NOLOAD | os.RTLD_GLOBAL)
        if os.environ.get(THREADING_LAYER_VAR) == "INTEL":
            os.environ[THREADING_LAYER_VAR] = "GNU"
    folders = runtimes.library_folders()
    paths = [
        path for folder in folders for name in LIBRARY_PATTERNS for path in sorted(folder.glob(name), reverse=True)
    ]
    if not paths:
        raise ImportError(f"neither {' nor '.join(LIBRARY_PATTERNS)} is in {', '.join(map(str, folders))}")
    try:
        functions = ctypes.CDLL(str(paths[0]))
    except OSError as error:
        raise ImportError(str(error)) from None
    if not hasattr(functions, "cblas_sgemm_64"):
        raise ImportError(f"mkl: expected MKL 2023 or newer, got {paths[0]}")
    return functions


# --- GEMM calls ------------------------------------------------------------------------------------------------------

NO_TRANS, TRANS = 111, 112  # CBLAS_TRANSPOSE


class GemmCall(NamedTuple):
    """The part of a CBLAS call that depends only on dtypes, shapes and strides, and so can be cached."""

    function: Any  # of MKL
    scalar_type: Any  # the type of alpha and beta
    flags_and_sizes: tuple[Any, ...]  # order of c; transposition of a and b; m, n, k
    array_args: tuple[
        tuple[Any, ...], ...
    ]  # arguments after the address of each of a, b and c: leading dimension, strides
    overlap_ranges: tuple[tuple[int, int], ...]  # address differences, in bytes, at which a, and b, may overlap c
    itemsize: int
    is_batch_reduce: bool  # the products of a stack are summed
    num_calls: int  # number of calls of the function
    batch_strides: tuple[int, ...]  # bytes from a, b and c of one call to those of the next


def create_gemm_call(functions: dict[Any, Any], a: Array, b: Array, c: Array) -> GemmCall | None:
    """Return the CBLAS call for ``c = a b``, or None where dtypes, shapes or strides have no GEMM equivalent."""
    operands, function = (a, b, c), functions.get(c.dtype)
    if not a.dtype == b.dtype == c.dtype or not function or not all(x.size and x.ndim in (2, 3) for x in operands):
        return None
    (m, n), k, size = c.shape[-2:], a.shape[-1], c.itemsize
    orders = [runtimes.matrix_order(x) for x in operands]
    stacks = {x.shape[0] for x in operands if x.ndim == 3}
    steps = tuple(x.strides[0] if x.ndim == 3 else 0 for x in operands)
    is_batch_reduce = c.ndim == 2 and a.ndim == b.ndim == 3
    fits = (
        a.shape[-2] == m
        and b.shape[-2:] == (k, n)
        and len(stacks) <= 1
        and (not stacks or is_batch_reduce or c.ndim == 3)
    )
    if not fits or any(step % size for step in steps) or None in orders:
        return None
    (order_a, lda), (order_b, ldb), (order_c, ldc) = orders  # type: ignore[misc]
    num_calls = stacks.pop() if stacks else 1
    scalar_type, gemm, gemm_batched = function
    head = [c_int(x) for x in (order_c, *(NO_TRANS if x == order_c else TRANS for x in (order_a, order_b)))]
    tails = [[lda], [ldb], [ldc]]
    if num_calls > 1 and min(steps) >= 0 and steps[2] >= ldc * size * (m if order_c == runtimes.ROW_MAJOR else n):
        tails = [[ld, step // size] for ld, step in zip((lda, ldb, ldc), steps, strict=True)]
        tails[2].append(num_calls)
        gemm, num_calls = gemm_batched, 1
    *operand_ranges, c_range = [byte_range(x) for x in operands]
    return GemmCall(
        function=gemm,
        scalar_type=scalar_type,
        flags_and_sizes=(*head, *(c_int64(x) for x in (m, n, k))),
        array_args=tuple(tuple(map(c_int64, tail)) for tail in tails),
        overlap_ranges=tuple((c_range[0] - r[1], c_range[1] - r[0]) for r in operand_ranges),
        itemsize=size,
        is_batch_reduce=is_batch_reduce,
        num_calls=num_calls,
        batch_strides=steps,
    )


def byte_range(array: Array) -> tuple[int, int]:
    """Return the range of bytes that an array covers, relative to its address."""
    ends = [stride * (n - 1) for n, stride in zip(array.shape, array.strides, strict=True)]
    return sum(end for end in ends if end < 0), sum(end for end in ends if end > 0) + array.itemsize


class MKLMatmul(NumPyPrimitives):
    """Matrix products of float32 and float64 by MKL, with NumPy as the fallback for what BLAS does not support."""

    def __init__(self, runtime: Any) -> None:
        super().__init__(runtime)
        functions = load_library()
        self.set_threads = functions["MKL_Set_Num_Threads_Local"]
        self.gemm_functions = {
            np.dtype(dtype): (scalar_type, functions[f"cblas_{x}gemm_64"], functions[f"cblas_{x}gemm_batch_strided_64"])
            for x, dtype, scalar_type in (("s", np.float32, c_float), ("d", np.float64, c_double))
        }
        self.calls = Cache(MAX_CACHED_CALLS, runtime.memory_tracker)

    def gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c`` of matrices or stacks; by NumPy where MKL is not faster."""
        is_small = (
            c.size * a.shape[-1] <= runtimes.min_gemm_work() or c.size in c.shape
        )  # the latter: a matrix-vector product
        if beta == 0 and alpha == 1 and is_small:
            np.matmul(a, b, out=c)
        elif not self._try_gemm(a, b, c, alpha, beta, is_batch_reduce=False):
            super().gemm(a, b, c, alpha, beta)

    def find_gemm(self, dtypes: Sequence[str], a: Shape, b: Shape) -> Callable[..., None]:
        """Return the function (a, b, out) of a product: that of NumPy where ``gemm`` would call it only."""
        is_vector = 1 in (a[-2], b[-1]) and len(a) == len(b) == 2
        is_small = is_vector or runtimes.gemm_work(a, b) <= runtimes.min_gemm_work()
        return super().find_gemm(dtypes, a, b) if is_small else self.gemm

    def batch_reduce_gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha sum_x a[x] b[x] + beta c``, accumulated in c."""
        if not self._try_gemm(a, b, c, alpha, beta, is_batch_reduce=True):
            super().batch_reduce_gemm(a, b, c, alpha, beta)

    def get_call(self, a: Array, b: Array, c: Array) -> GemmCall | None:
        """Return the cached CBLAS call of a product, or None."""
        key = (a.dtype, a.shape, a.strides, b.dtype, b.shape, b.strides, c.dtype, c.shape, c.strides)
        try:
            call: GemmCall | None = self.calls[key]
        except KeyError:
            call = self.calls.add(key, create_gemm_call(self.gemm_functions, a, b, c))
        return call

    def _try_gemm(self, a: Array, b: Array, c: Array, alpha: float, beta: float, is_batch_reduce: bool) -> bool:
        """Multiply by MKL and return True, or return False if it cannot."""
        gemm_call = self.get_call(a, b, c)
        if gemm_call is None:
            return False
        if not self.runtime.has_values:
            return gemm_call.is_batch_reduce == is_batch_reduce and alpha != 0
        call, scalar, head, (args_a, args_b, args_c), (near_a, near_b), size, sums, num_calls, strides = gemm_call
        at_a, at_b, at_c = runtimes.data_address(a), runtimes.data_address(b), runtimes.data_address(c)
        a_start, b_start, c_start = at_a.value, at_b.value, at_c.value
        # NumPy checks that c is writable and overlaps no operand, and propagates NaN if alpha is 0; MKL does not
        if (
            sums != is_batch_reduce
            or (a_start | b_start | c_start) % size
            or not c.flags.writeable
            or alpha == 0
            or (near_a[0] < a_start - c_start < near_a[1] and runtimes.may_share_memory(a, c))
            or (near_b[0] < b_start - c_start < near_b[1] and runtimes.may_share_memory(b, c))
        ):
            return False
        previous = self.set_threads(runtimes.openmp_threads())  # MKL's number of threads for this Python thread
        call(*head, scalar(alpha), at_a, *args_a, at_b, *args_b, scalar(beta), at_c, *args_c)
        starts = a_start, b_start, c_start
        for x in range(1, num_calls):
            at_a, at_b, at_c = (c_void_p(at + x * stride) for at, stride in zip(starts, strides, strict=True))
            next_beta = scalar(1.0 if is_batch_reduce else beta)
            call(*head, scalar(alpha), at_a, *args_a, at_b, *args_b, next_beta, at_c, *args_c)
        self.set_threads(previous)
        return True


# --- the 'mkl' runtime: NumPy arrays, with matrix products by Intel MKL ---


class MKLRuntime(NumPyRuntime):
    """NumPy arrays; matrix products run in MKL, on the same number of threads."""

    name = "mkl"

    @cached_property
    def primitives(self) -> type[MKLMatmul]:  # type: ignore[override]
        """The class of the primitives, with what accelerators compute."""
        return runtimes.accelerated(MKLMatmul)

    def __init__(self, device_id: int = 0) -> None:
        super().__init__(device_id)
        with runtimes.short_spin_wait():
            load_library()  # first, as it selects MKL's threading layer
            import mkl

            mkl.get_max_threads()  # starts OpenMP
        self.mkl = mkl
        # MKL's conditional numerical reproducibility can be set only before its first product. It costs nothing on
        # Intel CPUs, so it is set here. Other CPUs have only the "compatible" branch, which is three times slower.
        is_fixed = bool(os.environ.get("MKL_CBWR")) or mkl.cbwr_get_auto_branch() == "compatible"
        self.is_reproducible = is_fixed or mkl.cbwr_set("auto") == "success"

    def make_deterministic(self) -> None:
        """Turn off MKL's dynamic number of threads; RuntimeError if MKL was used before its reproducibility was set."""
        if not self.is_reproducible:
            raise RuntimeError(
                "gen_backend: expected deterministic=True before any use of MKL in this process, got it after another "
                "package used MKL. Create the deterministic backend first, or start Python with the environment "
                "variable MKL_CBWR=AUTO."
            )
        self.mkl.set_dynamic(False)

    def version_info(self) -> str:
        """Return the versions and the number of threads."""
        version = re.search(r"Version ([\d.]+)", self.mkl.get_version_string())
        own = f"MKL {version and version[1]}", f"{get_num_threads()} threads", f"NumPy {np.__version__}"
        return ", ".join((*own, *runtimes.accelerator_versions()))
