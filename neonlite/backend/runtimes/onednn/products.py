"""Matrix products and batch normalization by oneDNN."""

from __future__ import annotations

from contextlib import suppress
from ctypes import c_char, c_float, c_int64, c_void_p
from functools import lru_cache
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.planning import Plan
from neonlite.backend.runtimes import (
    ROW_MAJOR,
    data_address,
    get_openblas,
    matrix_order,
    may_share_memory,
    min_gemm_work,
    openmp_threads,
)
from neonlite.backend.runtimes.numpy import NumPyPrimitives
from neonlite.backend.runtimes.onednn import bindings as dnnl
from neonlite.typing import NumPyArray as Array

# multiply-adds, of all products of a stack and of a matrix-vector product, up to which OpenBLAS itself uses one thread.
# For more, setting its threads takes some microseconds: directly above, up to 0.4 of the product's time
MIN_WORK, MIN_VECTOR_WORK = 1 << 18, 1 << 13
FLOAT32 = np.dtype(np.float32)
# If the rows of the second operand are a multiple of ROW_ELEMENTS long, and it starts at a multiple of 32 bytes, a
# product of few rows takes up to 1.9 times as long as at another address: 12.3 ms, not 7.4, of (128, 512) by
# (512, 4096), on one thread of an AMD EPYC with AVX2; 1.0 times for other lengths of rows, transposed or not
ROW_ELEMENTS, SHIFT_BYTES = 1024, 16


class SgemmArgs(NamedTuple):
    """The arguments of ``dnnl_sgemm`` that depend only on shapes and strides."""

    is_transposed: bool  # c is column-major, so its transpose is computed
    flags_and_sizes: tuple[bytes | int, ...]  # transposition of each operand; m, n, k
    leading_dims: tuple[int, int, int]


def sgemm_args(a: Array, b: Array, c: Array) -> SgemmArgs | None:
    """Return the arguments for ``c = a b``, or None if strides have no GEMM equivalent."""
    (m, k), n = a.shape, b.shape[1]
    described = matrix_order(a), matrix_order(b), matrix_order(c)
    if None in described:
        return None
    (order_a, lda), (order_b, ldb), (order_c, ldc) = described  # type: ignore[misc]
    transpose_flags = [b"N" if order == order_c else b"T" for order in (order_a, order_b)]
    if order_c == ROW_MAJOR:
        return SgemmArgs(False, (*transpose_flags, m, n, k), (lda, ldb, ldc))
    return SgemmArgs(True, (*reversed(transpose_flags), n, m, k), (ldb, lda, ldc))


@lru_cache(1)
def get_sgemm(library: dnnl.Library) -> Any:
    """Return ``dnnl_sgemm`` with its argument types set."""
    sgemm = library.functions.dnnl_sgemm
    sgemm.argtypes = [*[c_char] * 2, *[c_int64] * 3, c_float, *[c_void_p, c_int64] * 2, c_float, c_void_p, c_int64]
    return sgemm


def get_batched_matmul(library: dnnl.Library, *stacks: Array) -> dnnl.Primitive | None:
    """Return this thread's primitive for the product of two stacks into a third, or None if there is no fast one."""
    key = get_ident(), "matmul", openmp_threads(), *((x.shape, x.strides) for x in stacks)
    with suppress(KeyError):
        return dnnl.primitives[key]
    primitive = None
    if all(step >= 0 and step % x.itemsize == 0 for x in stacks for step in x.strides):
        a, b, c = (library.memory_desc(x.shape, [step // x.itemsize for step in x.strides]) for x in stacks)
        args = (
            a.handle,
            b.handle,
            None,
            c.handle,
            None,
        )  # default attributes: oneDNN allocates the scratchpad of a few kB
        with suppress(dnnl.UnsupportedError):
            primitive_desc = library.primitive_desc("matmul", library.engine, *args)
            primitive = dnnl.Primitive(library, primitive_desc, {dnnl.ARG_SRC: a, dnnl.ARG_WEIGHTS: b, dnnl.ARG_DST: c})
    return dnnl.primitives.add(key, primitive)


class OneDNNMatmul(NumPyPrimitives):
    """Matrix products of float32 by oneDNN if it is installed; NumPy computes small products and other dtypes."""

    def gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c`` of matrices or stacks.

        Products that NumPy computes although oneDNN is used run on one thread of OpenBLAS; see ``SingleThreadedBLAS``.
        """
        m, n = c.shape[-2:]
        is_vector = min(m, n) == 1  # one operand is a vector
        library = None
        if c.size * a.shape[-1] > (MIN_VECTOR_WORK if is_vector else MIN_WORK):
            library = dnnl.get_library() if a.dtype == b.dtype == c.dtype == FLOAT32 else None
        if library is None:
            super().gemm(a, b, c, alpha, beta)
            return
        is_small = is_vector or m * n * a.shape[-1] <= min_gemm_work()  # one product
        is_plain_stack = a.ndim == b.ndim == c.ndim == 3 and not is_vector and alpha == 1 and beta == 0
        is_batched = is_plain_stack and c.size * a.shape[-1] > min_gemm_work()
        if is_batched and self._can_multiply(a, b, c, alpha) and self._try_batched(library, a, b, c):
            return
        if not is_small and c.ndim == 3:
            for x in range(len(c)):
                self.gemm(a[x] if a.ndim == 3 else a, b[x] if b.ndim == 3 else b, c[x], alpha, beta)
        elif not is_small and (args := sgemm_args(a, b, c)) and self._can_multiply(a, b, c, alpha):
            self._run_sgemm(library, args, a, b, c, alpha, beta)
        else:
            with get_openblas():
                super().gemm(a, b, c, alpha, beta)

    def operand_shifts(self, plan: Plan) -> dict[int, int]:
        """Return the shifts of second operands of products whose rows would be aligned to the same cache sets."""
        shifts = {}
        for _, step in plan.numbered_steps:
            if step.op.name == "dot" and step.dtype == "float32" and isinstance(step.inputs[1], int):
                v = plan.view_base(step.inputs[1])
                if plan.shape(step.inputs[1])[1] % ROW_ELEMENTS == 0 and v in plan.offsets:
                    shifts[v] = SHIFT_BYTES
        return shifts if shifts and dnnl.get_library() is not None else {}

    def _try_batched(self, library: dnnl.Library, a: Array, b: Array, c: Array) -> bool:
        """Multiply two stacks, or their transposes for a column-major c; return whether that was possible."""
        if c.strides[-2] < c.strides[-1]:
            a, b, c = (np.swapaxes(x, 1, 2) for x in (b, a, c))
        with library.use_threads():
            if (primitive := get_batched_matmul(library, a, b, c)) is None:
                return False
            self._execute_batched(primitive, a, b, c)
        return True

    def _execute_batched(self, primitive: dnnl.Primitive, *arrays: Array) -> None:
        if self.runtime.has_values:
            primitive(*(data_address(x).value for x in arrays))

    def _can_multiply(self, a: Array, b: Array, c: Array, alpha: float) -> bool:
        """Return whether the operands pass NumPy's checks: aligned, c writeable and disjoint, alpha not 0."""
        if not self.runtime.has_values:
            return alpha != 0
        is_aligned = a.flags.aligned and b.flags.aligned and c.flags.aligned
        if not is_aligned or not c.flags.writeable or alpha == 0:
            return False
        return not may_share_memory(a, c) and not may_share_memory(b, c)

    def _run_sgemm(
        self, library: dnnl.Library, args: SgemmArgs, a: Array, b: Array, c: Array, alpha: float, beta: float
    ) -> None:
        if not self.runtime.has_values:
            return
        first, second = (b, a) if args.is_transposed else (a, b)
        lda, ldb, ldc = args.leading_dims
        tail = data_address(first).value, lda, data_address(second).value, ldb, beta, data_address(c).value, ldc
        with library.use_threads():
            status = get_sgemm(library)(*args.flags_and_sizes, alpha, *tail)
        if status:
            raise RuntimeError(f"oneDNN {library.version}: dnnl_sgemm: status {status}")
