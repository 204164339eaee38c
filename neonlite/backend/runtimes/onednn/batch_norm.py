"""Batch normalization by oneDNN: batch_normalization for NHWC images, layer_normalization and chains for feature rows.

CHWN images and features use layer_normalization over rows, since batch_normalization is slow there. The scale and shift
per row, and all gradients, which that primitive does not support, are computed by fused chains and row sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_uint

import numpy as np

from neonlite.backend.planning.layout import ImageShape
from neonlite.backend.runtimes.onednn.bindings import (
    ARG_DIFF_DST,
    ARG_DIFF_SRC,
    ARG_DST,
    ARG_SRC,
    BACKWARD,
    FORWARD_INFERENCE,
    FORWARD_TRAINING,
    Handle,
    Library,
    MemoryDesc,
    Primitive,
)
from neonlite.backend.runtimes.onednn.convolution import OneDNNConvolution
from neonlite.backend.runtimes.onednn.post_ops import ChainOp, get_chain
from neonlite.typing import NumPyArray as Array

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
