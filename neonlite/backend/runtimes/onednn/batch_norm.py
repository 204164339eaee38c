"""Batch normalization of NHWC images by oneDNN: statistics of blocks of rows in the cache, then the normalization.

oneDNN adds the elements of a channel one after another, which is imprecise for many, and in parts that depend on the
number of threads. Here it computes the mean and the variance of each column of a block of rows, which have the channels
of several pixels one after another. Those of the channels are combined from them in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float, c_uint

import numpy as np

from neonlite.backend.concurrency import get_num_threads, parallel_for
from neonlite.backend.runtimes import data_address
from neonlite.backend.runtimes.numpy.stages import MIN_THREADED_ELEMENTS
from neonlite.backend.runtimes.onednn import bindings as dnnl
from neonlite.backend.runtimes.onednn.convolution import OneDNNConvolution, aligned_address
from neonlite.backend.runtimes.onednn.post_ops import execute
from neonlite.typing import NumPyArray as Array

ARG_MEAN, ARG_VARIANCE, ARG_SCALE, ARG_SHIFT = 49, 50, 51, 52
USE_GLOBAL_STATS, USE_SCALE, USE_SHIFT, FUSE_RELU = 1, 2, 4, 8  # dnnl_normalization_flags_t
BLOCK_ELEMENTS = 1 << 18  # of the rows whose statistics are computed at once; they stay in the L2 cache
MIN_BLOCK_ROWS = 16
COLUMN_MULTIPLE = 16  # of columns, without which oneDNN takes ten times as long or more
FLOAT64_TEMPLATE = np.empty(0, np.float64)


class OneDNNBatchNorm(OneDNNConvolution):
    """Batch normalization of float32 images in NHWC by oneDNN, on top of convolution and pooling."""

    def computes_batch_norm(self, rows: tuple[int, ...], eps: float) -> bool:
        """Return whether oneDNN has fast primitives for images with these rows of several pixels."""
        block = block_rows(rows), rows[1]
        if block[0] < MIN_BLOCK_ROWS or rows[1] % COLUMN_MULTIPLE:
            return False
        factories = (create_statistics, block), (create_normalization, rows, eps, False)
        return all(self._get_cached(*args) is not None for args in factories)

    def batch_norm(
        self, x: Array, gamma: Array, beta: Array, y: Array, mean: Array, variance: Array, *, eps: float, relu: bool
    ) -> None:
        """Compute ``y = gamma (x - mean) / sqrt(variance + eps) + beta``, or max(., 0) of it, and the statistics."""
        (rows, columns), C = x.shape, mean.shape[1]
        size = block_rows(x.shape)
        parts = self.get_workspace("parts", (2, rows // size, columns), x)
        wide = self.get_workspace("parts", (2, parts[0].size // C, C), FLOAT64_TEMPLATE)
        totals = self.get_workspace("totals", (2, C), FLOAT64_TEMPLATE)
        vectors = self.get_workspace("channels", (4, columns // C, C), x)
        if not self.runtime.has_values:
            return
        if not y.flags.writeable:  # oneDNN does not check
            raise ValueError("output array is read-only")
        self._compute_parts(x, y, parts, size)
        np.copyto(wide, parts.reshape(wide.shape))
        combine_parts(*wide, *totals)
        for out, total in zip((mean, variance), totals, strict=True):
            np.copyto(out, total, casting="unsafe")
        for vector, channels in zip(vectors, (gamma, beta, mean, variance), strict=True):
            np.copyto(vector, channels)
        # oneDNN's relu of NaN is 0; with finite parameters and statistics, no result is NaN
        is_fused = relu and bool(np.isfinite(vectors[:, 0]).all())
        self._execute(self._get_cached(create_normalization, x.shape, eps, is_fused), (x, *vectors, y))
        if relu and not is_fused:
            np.maximum(y, 0, out=y)

    def _compute_parts(self, x: Array, y: Array, parts: Array, size: int) -> None:
        """Write the means and the variances of each block of rows; y is overwritten."""
        count = parts.shape[1]

        def work(blocks: Iterator[int]) -> None:
            primitive = self._get_cached(create_statistics, (size, x.shape[1]))
            buffer = self._byte_buffer("onednn scratchpad", primitive.scratchpad_desc.nbytes)
            last = (aligned_address(buffer),) if primitive.needs_scratchpad else ()
            for i in blocks:
                block = slice(i * size, (i + 1) * size)
                arrays = x[block], parts[0, i], parts[1, i], y[block]
                execute(primitive, 1, (*(data_address(array).value for array in arrays), *last))

        workers = min(get_num_threads(), count) if x.size >= MIN_THREADED_ELEMENTS else 1
        if workers > 1:
            parallel_for(work, count, workers)
        else:
            work(iter(range(count)))


def combine_parts(means: Array, variances: Array, mean: Array, variance: Array) -> None:
    """Write the mean of means, and the mean of variances plus the variance of means; the parts are overwritten."""
    np.add.reduce(means, axis=0, out=mean)
    np.divide(mean, len(means), out=mean)
    np.square(np.subtract(means, mean, out=means), out=means)
    np.add.reduce(np.add(variances, means, out=variances), axis=0, out=variance)
    np.divide(variance, len(means), out=variance)


# --- factories of primitives -----------------------------------------------------------------------------------------


def block_rows(rows: tuple[int, ...]) -> int:
    """Return the largest number of rows of a block that divides all rows."""
    count, columns = rows
    return next(n for n in range(max(1, min(count, BLOCK_ELEMENTS // columns)), 0, -1) if count % n == 0)


def create_batch_norm(
    library: dnnl.Library, rows: tuple[int, int], prop_kind: int, eps: float, flags: int, *vectors: int
) -> dnnl.Primitive:
    """Create the normalization of each column of a matrix, with the arguments matrix, vectors and result."""
    count, columns = rows
    matrix = library.memory_desc((1, columns, count), (count * columns, 1, columns))
    vector = library.memory_desc((columns,), (1,))
    args = library.engine, prop_kind, matrix.handle, matrix.handle, c_float(eps), c_uint(flags), library.default_attr
    primitive_desc = library.primitive_desc("batch_normalization_forward", *args)
    descs = {dnnl.ARG_SRC: matrix, **dict.fromkeys(vectors, vector), dnnl.ARG_DST: matrix}
    return dnnl.Primitive(library, primitive_desc, descs)


def create_statistics(library: dnnl.Library, rows: tuple[int, int]) -> dnnl.Primitive:
    """Create the normalization of a block in one thread, with the arguments rows, means, variances and result."""
    with library.use_threads(1):
        return create_batch_norm(library, rows, dnnl.FORWARD_TRAINING, 0.0, 0, ARG_MEAN, ARG_VARIANCE)


def create_normalization(library: dnnl.Library, rows: tuple[int, int], eps: float, relu: bool) -> dnnl.Primitive:
    """Create the normalization by given statistics; arguments: rows, gamma, beta, means, variances and result."""
    flags = USE_GLOBAL_STATS | USE_SCALE | USE_SHIFT | FUSE_RELU * relu
    vectors = ARG_SCALE, ARG_SHIFT, ARG_MEAN, ARG_VARIANCE
    return create_batch_norm(library, rows, dnnl.FORWARD_INFERENCE, eps, flags, *vectors)
