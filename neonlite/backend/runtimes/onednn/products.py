"""Matrix products and batch normalization by oneDNN."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_char, c_float, c_int64, c_uint, c_void_p
from functools import lru_cache
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.planning import Plan
from neonlite.backend.planning.layout import ImageShape
from neonlite.backend.runtimes.numpy import (
    ROW_MAJOR,
    data_address,
    get_openblas,
    matrix_order,
    may_share_memory,
    min_gemm_work,
    openmp_threads,
)
from neonlite.backend.runtimes.numpy.pooling import NumPyPrimitives
from neonlite.backend.runtimes.onednn.bindings import (
    ARG_DIFF_DST,
    ARG_DIFF_SRC,
    ARG_DST,
    ARG_SRC,
    ARG_WEIGHTS,
    BACKWARD,
    FORWARD_INFERENCE,
    FORWARD_TRAINING,
    Handle,
    Library,
    MemoryDesc,
    Primitive,
    UnsupportedError,
    get_library,
    primitives,
)
from neonlite.backend.runtimes.onednn.convolution import OneDNNConvolution
from neonlite.backend.runtimes.onednn.post_ops import ChainOp, get_chain
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
def get_sgemm(library: Library) -> Any:
    """Return ``dnnl_sgemm`` with its argument types set."""
    sgemm = library.functions.dnnl_sgemm
    sgemm.argtypes = [*[c_char] * 2, *[c_int64] * 3, c_float, *[c_void_p, c_int64] * 2, c_float, c_void_p, c_int64]
    return sgemm


def get_batched_matmul(library: Library, *stacks: Array) -> Primitive | None:
    """Return this thread's primitive for the product of two stacks into a third, or None if there is no fast one."""
    key = get_ident(), "matmul", openmp_threads(), *((x.shape, x.strides) for x in stacks)
    with suppress(KeyError):
        return primitives[key]
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
        with suppress(UnsupportedError):
            primitive_desc = library.primitive_desc("matmul", library.engine, *args)
            primitive = Primitive(library, primitive_desc, {ARG_SRC: a, ARG_WEIGHTS: b, ARG_DST: c})
    return primitives.add(key, primitive)


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
            library = get_library() if a.dtype == b.dtype == c.dtype == FLOAT32 else None
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
        return shifts if shifts and get_library() is not None else {}

    def _try_batched(self, library: Library, a: Array, b: Array, c: Array) -> bool:
        """Multiply two stacks, or their transposes for a column-major c; return whether that was possible."""
        if c.strides[-2] < c.strides[-1]:
            a, b, c = (np.swapaxes(x, 1, 2) for x in (b, a, c))
        with library.use_threads():
            if (primitive := get_batched_matmul(library, a, b, c)) is None:
                return False
            self._execute_batched(primitive, a, b, c)
        return True

    def _execute_batched(self, primitive: Primitive, *arrays: Array) -> None:
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
        self, library: Library, args: SgemmArgs, a: Array, b: Array, c: Array, alpha: float, beta: float
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


# --- batch normalization: for NHWC images; for feature rows by layer_normalization and chains ---

ARG_MEAN, ARG_VARIANCE, ARG_SCALE, ARG_SHIFT, ARG_DIFF_SCALE, ARG_DIFF_SHIFT = 49, 50, 51, 52, 255, 256
USE_GLOBAL_STATS, USE_SCALE_SHIFT = 1, 2 | 4  # dnnl_normalization_flags_t
ROW_BLOCK_SIZE = 1 << 19  # elements of rows that are multiplied, and then summed, while they are in the cache
AFFINE = ChainOp("mul", 1), ChainOp("add", 2)  # x gamma + beta
CENTERED_PRODUCT = ChainOp("sub", 1), ChainOp("mul", 2)  # (x - mean) error
# ((x - mean) a + error - b) c
INPUT_GRADIENT = ChainOp("sub", 1), ChainOp("mul", 2), ChainOp("add", 3), ChainOp("sub", 4), ChainOp("mul", 5)


class OneDNNBatchNorm(OneDNNConvolution):
    """Batch normalization of float32 by oneDNN, on top of convolution and pooling."""

    supports_batch_norm = True

    def can_normalize(self, shape: ImageShape, eps: float) -> bool:
        """Return whether oneDNN can normalize images of this shape, forward and backward."""
        passes = (create_forward, (eps, False)), (create_forward, (eps, True)), (create_backward, (eps,))
        return all(self._get_cached(factory, shape, *options) is not None for factory, options in passes)

    def batch_norm_fprop(
        self, shape: ImageShape, x: Array, channel_vectors: Sequence[Array], y: Array, eps: float, inference: bool
    ) -> None:
        """Compute ``y = gamma (x - mean) / sqrt(var + eps) + beta`` of NHWC images.

        ``channel_vectors``, each (C,): gamma, beta, and the mean and population variance of x, which are outputs in
        training and inputs for inference.
        """
        if not inference and not are_writeable(*channel_vectors[2:]):
            raise ValueError("output array is read-only")
        self._execute(self._get_cached(create_forward, shape, eps, inference), (x, *channel_vectors, y))

    def batch_norm_bprop(
        self, shape: ImageShape, x: Array, error: Array, channel_vectors: Sequence[Array], d: Array, eps: float
    ) -> None:
        """Compute the gradient d with respect to NHWC images x, and those of gamma and beta; d may be ``error``.

        ``channel_vectors``: mean, variance, gamma, and the gradients of gamma and beta, which are outputs.
        """
        mean, var, gamma, grad_gamma, grad_beta = channel_vectors
        if not are_writeable(grad_gamma, grad_beta):
            raise ValueError("output array is read-only")
        primitive = self._get_cached(create_backward, shape, eps)
        self._execute(primitive, (x, mean, var, error, gamma, d, grad_gamma, grad_beta))

    def row_norm_fprop(self, x: Array, channel_vectors: Sequence[Array], y: Array, eps: float, rho: float) -> bool:
        """Compute ``y = gamma (x - mean) / sqrt(var + eps) + beta`` of rows; return False if oneDNN cannot.

        x and y (rows, size). ``channel_vectors``, each (rows, 1): mean and population variance of x, which are outputs;
        their running averages, updated as ``rho average + (1 - rho) value``; gamma and beta.
        """
        mean, var, gmean, gvar, gamma, beta = channel_vectors
        normalize = self._get_cached(create_row_norm, x.shape, eps)
        apply_affine = self._get_cached(create_row_chain, x.shape, AFFINE)
        if not (normalize and apply_affine and are_writeable(y, *channel_vectors[:4])):
            return False
        self._execute(normalize, (x, mean, var, y))
        self._execute(apply_affine, (y, gamma, beta, y))
        new_term = self.get_workspace("columns", mean.shape, mean)
        for average, value in ((gmean, mean), (gvar, var)):
            np.multiply(value, 1 - rho, out=new_term)
            np.add(np.multiply(average, rho, out=average), new_term, out=average)
        return True

    def row_norm_bprop(self, x: Array, error: Array, channel_vectors: Sequence[Array], d: Array, eps: float) -> bool:
        """Compute the gradient d with respect to x, and those of gamma and beta; return False if oneDNN cannot.

        x, error and d (rows, size); d may be ``error``. ``channel_vectors``, each (rows, 1): the gradients of gamma and
        beta, which are outputs; mean, variance and gamma.
        """
        grad_gamma, grad_beta, mean, var, gamma = channel_vectors
        count, size = x.shape
        block_rows = next(n for n in range(max(1, min(count, ROW_BLOCK_SIZE // size)), 0, -1) if count % n == 0)
        multiply = self._get_cached(create_row_chain, (block_rows, size), CENTERED_PRODUCT, 2)
        add, add_all = self._get_row_sum((block_rows, size)), self._get_row_sum(x.shape)
        combine = self._get_cached(create_row_chain, x.shape, INPUT_GRADIENT, 3)
        if not (multiply and add and add_all and combine and are_writeable(d, grad_gamma, grad_beta)):
            return False
        self._execute(add_all, (error, grad_beta))
        product = self.get_workspace("product", (block_rows, size), x)
        for start in range(0, count, block_rows):
            block = slice(start, start + block_rows)
            self._execute(multiply, (x[block], mean[block], error[block], product))
            self._execute(add, (product, grad_gamma[block]))
        # d = (error - (xhat grad_gamma + grad_beta) / size) gamma inv = ((x - mean) a + error - b) gamma inv
        inv, a, b = self.get_workspace("columns", (3, count, 1), x)
        np.divide(1, np.sqrt(np.add(var, eps, out=inv), out=inv), out=inv)
        np.multiply(grad_gamma, inv, out=grad_gamma)
        np.multiply(np.multiply(grad_gamma, inv, out=a), -1 / size, out=a)
        np.multiply(grad_beta, 1 / size, out=b)
        np.multiply(gamma, inv, out=inv)
        self._execute(combine, (x, mean, a, error, b, inv, d))
        return True


def are_writeable(*arrays: Array) -> bool:
    """Return whether all arrays are writeable, which oneDNN does not check."""
    return all(array.flags.writeable for array in arrays)


# --- factories of primitives -----------------------------------------------------------------------------------------


def create_descs(library: Library, shape: ImageShape) -> tuple[MemoryDesc, MemoryDesc]:
    """Return the descriptors of NHWC images, with dims (N, C, pixels), and of a vector of channels."""
    channels, pixels, batch_size = shape
    images = library.memory_desc((batch_size, channels, pixels), (channels * pixels, 1, channels))
    return images, library.memory_desc((channels,), (1,))


def create_forward_desc(library: Library, images: MemoryDesc, eps: float, inference: bool) -> Handle:
    """Return the primitive descriptor of the forward pass."""
    prop_kind = FORWARD_INFERENCE if inference else FORWARD_TRAINING
    flags = c_uint(USE_SCALE_SHIFT | USE_GLOBAL_STATS * inference)
    args = library.engine, prop_kind, images.handle, images.handle, c_float(eps), flags, library.default_attr
    return library.primitive_desc("batch_normalization_forward", *args)


def create_forward(library: Library, shape: ImageShape, eps: float, inference: bool) -> Primitive:
    """Create the forward pass, with arguments images, gamma, beta, mean, variance and normalized images."""
    images, vector = create_descs(library, shape)
    vectors = dict.fromkeys((ARG_SCALE, ARG_SHIFT, ARG_MEAN, ARG_VARIANCE), vector)
    primitive_desc = create_forward_desc(library, images, eps, inference)
    return Primitive(library, primitive_desc, {ARG_SRC: images, **vectors, ARG_DST: images})


def create_row_norm(library: Library, shape: Sequence[int], eps: float) -> Primitive:
    """Create the normalization of rows."""
    array, column = library.memory_desc(shape, (shape[1], 1)), library.memory_desc(shape[:1], (1,))
    handles = array.handle, array.handle, column.handle
    args = library.engine, FORWARD_TRAINING, *handles, c_float(eps), c_uint(0), library.default_attr
    primitive_desc = library.primitive_desc("layer_normalization_forward", *args)
    return Primitive(library, primitive_desc, {ARG_SRC: array, ARG_MEAN: column, ARG_VARIANCE: column, ARG_DST: array})


def create_row_chain(
    library: Library, shape: Sequence[int], ops: tuple[ChainOp, ...], full_operand: int = 0
) -> Primitive:
    """Create a chain over rows. Its operands are columns, except operands 0 and ``full_operand``."""
    column, count = (shape[0], 1), len(ops) + 1
    shapes = *(tuple(shape) if n in (0, full_operand) else column for n in range(count)), tuple(shape)
    return get_chain(ops, count, frozenset()).create_primitive(library, shapes).primitive


def create_backward(library: Library, shape: ImageShape, eps: float) -> Primitive:
    """Create the backward pass: arguments images, mean, variance, errors, gamma, then the gradients."""
    images, vector = create_descs(library, shape)
    hint = create_forward_desc(library, images, eps, inference=False)
    args = library.engine, BACKWARD, images.handle, images.handle, images.handle, c_float(eps), c_uint(USE_SCALE_SHIFT)
    primitive_desc = library.primitive_desc("batch_normalization_backward", *args, hint, library.default_attr)
    arguments = {
        ARG_SRC: images,
        ARG_MEAN: vector,
        ARG_VARIANCE: vector,
        ARG_DIFF_DST: images,
        ARG_SCALE: vector,
        ARG_DIFF_SRC: images,
    }
    return Primitive(library, primitive_desc, arguments | {ARG_DIFF_SCALE: vector, ARG_DIFF_SHIFT: vector})
