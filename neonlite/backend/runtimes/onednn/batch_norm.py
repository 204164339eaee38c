"""Batch normalization of NHWC images by oneDNN: statistics of blocks of rows in the cache, then the normalization.

oneDNN adds the elements of a channel one after another, which is imprecise for many, and in parts that depend on the
number of threads. Here it computes the mean and the variance of each column of a block of rows, which have the channels
of several pixels one after another. Those of the channels are combined from them in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_uint
from typing import Any

import numpy as np

from neonlite.backend.concurrency import get_num_threads, parallel_for
from neonlite.backend.runtimes import data_address
from neonlite.backend.runtimes.numpy.stages import MIN_THREADED_ELEMENTS
from neonlite.backend.runtimes.onednn import bindings as dnnl
from neonlite.backend.runtimes.onednn.convolution import OneDNNConvolution
from neonlite.backend.runtimes.onednn.post_ops import execute
from neonlite.typing import NumPyArray as Array

ARG_MEAN, ARG_VARIANCE, ARG_SCALE, ARG_SHIFT = 49, 50, 51, 52
USE_GLOBAL_STATS, USE_SCALE, USE_SHIFT, FUSE_RELU = 1, 2, 4, 8  # dnnl_normalization_flags_t
BLOCK_ELEMENTS = 1 << 18  # of the rows whose statistics are computed at once; they stay in the L2 cache
FLOAT64_TEMPLATE = np.empty(0, np.float64)


class OneDNNBatchNorm(OneDNNConvolution):
    """Batch normalization of float32 images in NHWC by oneDNN, on top of convolution and pooling."""

    def computes_batch_norm(self, rows: tuple[int, int], eps: float) -> bool:
        """Return whether oneDNN has fast primitives for these rows."""
        block = self._get_cached(create_statistics, (block_rows(rows), rows[1]))
        return block is not None and self._get_cached(create_normalization, rows, eps, False) is not None

    def batch_norm(
        self, x: Array, gamma: Array, beta: Array, y: Array, mean: Array, variance: Array, *, eps: float, relu: bool
    ) -> None:
        """Compute ``y = gamma (x - mean) / sqrt(variance + eps) + beta``, or max(., 0) of it, and the statistics."""
        if not all(out.flags.writeable for out in (y, mean, variance)):  # oneDNN does not check
            raise ValueError("output array is read-only")
        (rows, columns), C = x.shape, mean.shape[1]
        size = block_rows(x.shape)
        parts = self.get_workspace("statistics", (2, rows // size, columns), x)
        if self.runtime.has_values:
            self._compute_parts(x, y, parts, size)
        self._combine_parts(parts.reshape(2, -1, C), mean, variance)
        vectors = self.get_workspace("channels", (4, columns // C, C), x)
        for vector, channels in zip(vectors, (gamma, beta, mean, variance), strict=True):
            np.copyto(vector, channels)
        # oneDNN's relu of NaN is 0; of finite parameters and statistics, the result is not NaN
        is_fused = relu and bool(np.isfinite(vectors[:, 0]).all())
        self._execute(self._get_cached(create_normalization, x.shape, eps, is_fused), (x, *vectors, y))
        if relu and not is_fused:
            np.maximum(y, 0, out=y)

    def _compute_parts(self, x: Array, y: Array, parts: Array, size: int) -> None:
        """Write the statistics of each block of rows; y is overwritten."""

        def work(blocks: Iterator[int]) -> None:
            primitive: dnnl.Primitive = self._get_cached(create_statistics, (size, x.shape[1]))
            scratchpad = [] if not primitive.needs_scratchpad else [self._byte_buffer("s", primitive.scratchpad_desc.nbytes)]
            for i in blocks:
                block = slice(i * size, (i + 1) * size)
                arrays = x[block], parts[0, i], parts[1, i], y[block], *scratchpad
                execute(primitive, 1, [data_address(array).value for array in arrays])

        count = len(x) // size
        if x.size >= MIN_THREADED_ELEMENTS and min(get_num_threads(), count) > 1:
            parallel_for(work, count, min(get_num_threads(), count))
        else:
            work(iter(range(count)))

    def _combine_parts(self, parts: Array, mean: Array, variance: Array) -> None:
        """Write the statistics of the channels: the mean variance, and the variance of the means."""
        means, variances = self.get_workspace("parts", parts.shape, FLOAT64_TEMPLATE)
        total: Any = self.get_workspace("totals", (2, 1, parts.shape[2]), FLOAT64_TEMPLATE)
        np.copyto(means, parts[0])
        np.copyto(variances, parts[1])
        np.divide(np.add.reduce(means, axis=0, out=total[0], keepdims=True), len(means), out=total[0])
        np.copyto(mean, total[0], casting="unsafe")
        np.square(np.subtract(means, total[0], out=means), out=means)
        np.add.reduce(np.add(variances, means, out=variances), axis=0, out=total[1], keepdims=True)
        np.copyto(variance, np.divide(total[1], len(means), out=total[1]), casting="unsafe")


# --- factories of primitives -----------------------------------------------------------------------------------------


def block_rows(rows: tuple[int, ...]) -> int:
    """Return the largest number of rows of a block that divides all rows."""
    count, columns = rows
    return next(n for n in range(max(1, min(count, BLOCK_ELEMENTS // columns)), 0, -1) if count % n == 0)


def create_batch_norm(
    library: dnnl.Library, rows: tuple[int, int], prop_kind: int, eps: float, flags: int, *args: int
) -> dnnl.Primitive:
    """Create a normalization of the columns of a matrix, with arguments matrix, vectors and result."""
    matrix = library.memory_desc((1, rows[1], rows[0]), (rows[0] * rows[1], 1, rows[1]))
    vector = library.memory_desc((rows[1],), (1,))
    kinds = prop_kind, matrix.handle, matrix.handle, c_float(eps), c_uint(flags), library.default_attr
    primitive_desc = library.primitive_desc("batch_normalization_forward", library.engine, *kinds)
    known = {dnnl.ARG_SRC: matrix, **dict.fromkeys(args, vector), dnnl.ARG_DST: matrix}
    return dnnl.Primitive(library, primitive_desc, known)


def create_statistics(library: dnnl.Library, rows: tuple[int, int]) -> dnnl.Primitive:
    """Create the normalization of a block, with arguments rows, means, variances and result, for one thread."""
    with library.use_threads(1):
        return create_batch_norm(library, rows, dnnl.FORWARD_TRAINING, 0.0, 0, ARG_MEAN, ARG_VARIANCE)


def create_normalization(library: dnnl.Library, rows: tuple[int, int], eps: float, relu: bool) -> dnnl.Primitive:
    """Create the normalization with given statistics; arguments: rows, gamma, beta, mean, variance and result."""
    flags = USE_GLOBAL_STATS | USE_SCALE | USE_SHIFT | FUSE_RELU * relu
    args = ARG_SCALE, ARG_SHIFT, ARG_MEAN, ARG_VARIANCE
    return create_batch_norm(library, rows, dnnl.FORWARD_INFERENCE, eps, flags, *args)
