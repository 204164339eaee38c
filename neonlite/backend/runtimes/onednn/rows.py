"""Softmax, log-softmax and norms of rows by oneDNN, and their gradients, on top of batch norm and convolution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from ctypes import c_float, c_uint
from typing import NamedTuple

import numpy as np

from neonlite.backend.runtimes import data_address
from neonlite.backend.runtimes.numpy.templates import OP_COST
from neonlite.backend.runtimes.onednn import bindings as dnnl
from neonlite.backend.runtimes.onednn.convolution import (
    ARG_DIFF_SCALE,
    ARG_DIFF_SHIFT,
    ARG_MEAN,
    ARG_SCALE,
    ARG_SHIFT,
    ARG_VARIANCE,
    REDUCTION_MAX,
    REDUCTION_SUM,
    USE_SCALE,
    USE_SHIFT,
    OneDNNBatchNorm,
    check_writeable,
    create_row_reduction,
    run_blocks,
)
from neonlite.backend.runtimes.onednn.post_ops import MIN_WORK_PER_THREAD, ChainOp, get_chain
from neonlite.typing import NumPyArray as Array

SOFTMAX_ACCURATE, SOFTMAX_LOG = 0x30000, 0x30001  # dnnl_alg_kind_t
MAX_ROW_TERMS = 1 << 18  # elements of a row, for which normalized rows have an error of 2e-6: oneDNN adds in float32
# of the rows of which oneDNN adds the gradients of gamma and beta one by one: the error of the sums over 2**18 rows is
# 2e-6, and 1e-5 without blocks
GRADIENT_BLOCK_ELEMENTS = 1 << 17
MIN_GRADIENT_ROWS = 16  # of a block: the sums of each block are stored. 200 rows of 200,000 take 0.46 of the time of 1
MAX_SUM_TERMS = 1 << 12  # elements of a row of exponentials, whose sum by oneDNN is as precise as NumPy's
EXP_BLOCK_ELEMENTS = 1 << 18  # of the rows whose exponentials are computed at once; smaller blocks need more calls


class OneDNNRows(OneDNNBatchNorm):
    """Softmax, log-softmax and norms of float32 rows by oneDNN."""

    def computes_softmax(self, rows: tuple[int, ...]) -> bool:
        """Return whether oneDNN has a fast primitive that is precise: it adds the float32 elements of a row."""
        return rows[1] <= MAX_ROW_TERMS and self._get_cached(create_softmax, rows) is not None

    def softmax(self, x: Array, y: Array, *, is_masked: bool) -> None:
        """Compute the softmax y of each row of x. If ``is_masked``, that of a row of only -inf is 0, else NaN.

        In oneDNN, exp of a NaN is infinity, so that it makes this element NaN and the others of its row 0, or NaN, as
        an infinity does; NumPy computes these rows. Rows whose first element is positive are without them.
        """
        primitive = self._get_cached(create_softmax, x.shape)
        if not self.runtime.has_values:
            return
        check_writeable(y)
        self._execute(primitive, (x, y))
        if not np.minimum.reduce(y[:, 0]) > 0 and np.isnan(np.minimum.reduce(y, axis=None)):
            rows = np.isnan(y).any(axis=1)
            largest = x[rows].max(axis=1, keepdims=True)
            e = np.exp(x[rows] - (np.where(np.isfinite(largest), largest, 0) if is_masked else largest))
            total = e.sum(axis=1, keepdims=True)
            y[rows] = e / (np.where(total == 0, 1, total) if is_masked else total)

    def computes_softmax_backward(self, rows: tuple[int, ...]) -> bool:
        """Return whether oneDNN has a fast primitive that is precise."""
        return (
            rows[1] <= MAX_ROW_TERMS and self._get_cached(create_softmax_backward, rows, SOFTMAX_ACCURATE) is not None
        )

    def softmax_backward(self, dz: Array, z: Array, dx: Array) -> None:
        """Compute ``dx = z (dz - sum(z dz))`` of each row."""
        primitive = self._get_cached(create_softmax_backward, dz.shape, SOFTMAX_ACCURATE)
        if not self.runtime.has_values:
            return
        check_writeable(dx)
        self._execute(primitive, (z, dz, dx))

    def computes_log_softmax(self, rows: tuple[int, ...]) -> bool:
        """Return whether oneDNN has fast primitives that are precise."""
        return rows[1] <= MAX_ROW_TERMS and self._get_cached(create_log_softmax, log_softmax_block(rows)) is not None

    def log_softmax(self, x: Array, z: Array) -> None:
        """Compute ``z = d - log(sum(e^d))`` of ``d = x - max(x)`` of each row.

        oneDNN's log-softmax has up to 20 times the error of NumPy's functions. Here it computes all but the logarithms
        of the sums, in blocks of rows that stay in the caches, on oneDNN's threads: those of Python would compete with
        them after a product. As exp of a NaN is infinity in oneDNN, so is the sum of a row with a NaN or an infinity,
        whose results are NaN.
        """
        size, columns = log_softmax_block(x.shape)
        row_bytes = x.itemsize * columns
        buffer = self._arg_buffer(dnnl.ARG_WORKSPACE, size * (row_bytes + 2 * x.itemsize), x.dtype)
        if not self.runtime.has_values:
            return
        check_writeable(z)
        # of the buffer: exponentials, and the maximum and the sum of each row
        of_x, of_z, of_e = (data_address(array).value for array in (x, z, buffer))
        of_largest = of_e + size * row_bytes
        of_total = of_largest + size * x.itemsize
        threads = max(1, x.size * OP_COST["exp"] // MIN_WORK_PER_THREAD)
        for start in range(0, len(x), size):
            rows, offset = min(size, len(x) - start), start * row_bytes
            total = buffer[size * (columns + 1) :][:rows]
            block: LogSoftmax = self._get_cached(create_log_softmax, (rows, columns))
            with block.exp.library.use_threads(threads):
                block.maximum(of_x + offset, of_largest)
                block.exp(of_x + offset, of_largest, of_e)
                if block.total is None:
                    np.add.reduce(buffer[: rows * columns].reshape(rows, columns), axis=1, out=total)
                else:
                    block.total(of_e, of_total)
                np.log(total, out=total)
                np.putmask(total, np.isinf(total), np.nan)
                block.difference(of_x + offset, of_largest, of_total, of_z + offset)

    def computes_log_softmax_backward(self, rows: tuple[int, ...]) -> bool:
        """Return whether oneDNN has a fast primitive that is precise."""
        primitive = self._get_cached(create_softmax_backward, rows, SOFTMAX_LOG)
        return rows[1] <= MAX_ROW_TERMS and primitive is not None

    def log_softmax_backward(self, dz: Array, z: Array, dx: Array) -> None:
        """Compute ``dx = dz - e^z sum(dz)`` of each row of the result z of ``log_softmax``."""
        primitive = self._get_cached(create_softmax_backward, dz.shape, SOFTMAX_LOG)
        if not self.runtime.has_values:
            return
        check_writeable(dx)
        self._execute(primitive, (z, dz, dx))
        if np.isnan(np.minimum.reduce(z[:, 0])):  # of a row with a NaN, all are; exp of a NaN is infinity in oneDNN
            dx[np.isnan(z[:, 0])] = np.nan

    def computes_row_norm(self, rows: tuple[int, ...], eps: float) -> bool:
        """Return whether oneDNN has fast primitives that are precise."""
        if rows[1] > MAX_ROW_TERMS:
            return False
        forward = self._get_cached(create_row_norm, rows, eps, False)
        return forward is not None and self._get_cached(create_row_norm_backward, rows, eps, False) is not None

    def row_norm(self, x: Array, *arrays: Array, eps: float) -> None:
        """Compute rows ``y = gamma (x - mean) / sqrt(variance + eps) + beta``, and the statistics of each.

        ``arrays``: gamma and beta, of the size of a row, or neither; then y, and mean and variance of each row.
        """
        primitive = self._get_cached(create_row_norm, x.shape, eps, len(arrays) == 5)
        if not self.runtime.has_values:
            return
        check_writeable(*arrays[-3:])
        self._execute(primitive, (x, *arrays))

    def row_norm_backward(self, dz: Array, x: Array, mean: Array, variance: Array, *arrays: Array, eps: float) -> None:
        """Compute ``dx = (dz - mean(dz) - z mean(z dz)) / sqrt(variance + eps)``, where z are the normalized rows x.

        ``arrays``: dx; or gamma, dx and the gradients of gamma and beta, where dz is the error of ``gamma z + beta``.
        """
        if len(arrays) > 1:
            self._row_norm_backward_of_blocks(dz, x, mean, variance, *arrays, eps=eps)
            return
        primitive = self._get_cached(create_row_norm_backward, x.shape, eps, False)
        if not self.runtime.has_values:
            return
        check_writeable(*arrays)
        self._execute(primitive, (dz, x, mean, variance, *arrays))

    def _row_norm_backward_of_blocks(
        self, dz: Array, x: Array, mean: Array, variance: Array, gamma: Array, *results: Array, eps: float
    ) -> None:
        """Write the gradients of rows, gamma and beta; those of gamma and beta are sums over blocks of rows.

        The blocks depend on the shape alone, so that results do not depend on the number of threads.
        """
        (length, n), dx = x.shape, results[0]
        size = max(MIN_GRADIENT_ROWS, GRADIENT_BLOCK_ELEMENTS // n)
        parts = self.get_workspace("gradients of gamma and beta", (2, -(-length // size), n), x)

        def work(blocks: Iterator[int]) -> None:
            for i in blocks:
                rows = slice(i * size, min((i + 1) * size, length))
                # oneDNN expects beta, too, and does not read it: gamma takes its place
                arrays = dz[rows], x[rows], mean[rows], variance[rows], gamma, gamma, dx[rows], parts[0, i], parts[1, i]
                shape = rows.stop - rows.start, n
                self._execute_alone(self._get_cached(create_row_norm_backward, shape, eps, True), arrays)

        if not self.runtime.has_values:
            return
        check_writeable(*results)
        run_blocks(work, parts.shape[1], x.size)
        np.add.reduce(parts, axis=1, out=parts[:, 0])
        for part, result in zip(parts[:, 0], results[1:], strict=True):
            np.copyto(result, part)


# --- factories of primitives -----------------------------------------------------------------------------------------


def log_softmax_block(rows: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of the blocks of rows, whose exponentials stay in the caches."""
    count, columns = rows
    return max(1, min(count, EXP_BLOCK_ELEMENTS // columns)), columns


class LogSoftmax(NamedTuple):
    """The primitives of a block of rows: the maxima, the exponentials of differences, the sums, and the results.

    ``total``: None for rows that are so long that NumPy's sums are more precise.
    """

    maximum: dnnl.Primitive
    exp: dnnl.Primitive
    total: dnnl.Primitive | None
    difference: dnnl.Primitive


def create_log_softmax(library: dnnl.Library, rows: tuple[int, int]) -> LogSoftmax:
    """Create the primitives of ``x - max(x) - log(sum(e^(x - max(x))))`` of rows x, but for the logarithm."""
    if not library.has_precise_exp:
        raise dnnl.UnsupportedError(f"oneDNN {library.version}: exp without AVX2")
    column, less_max = (rows[0], 1), ChainOp("sub", 1)
    exp = get_chain((less_max, ChainOp("exp")), 2, frozenset())
    difference = get_chain((less_max, ChainOp("sub", 2)), 3, frozenset())
    return LogSoftmax(
        create_row_reduction(library, rows, REDUCTION_MAX),
        exp.create_primitive(library, (rows, column, rows)).primitive,
        create_row_reduction(library, rows, REDUCTION_SUM) if rows[1] <= MAX_SUM_TERMS else None,
        difference.create_primitive(library, (rows, column, column, rows)).primitive,
    )


def create_softmax(library: dnnl.Library, rows: tuple[int, int]) -> dnnl.Primitive:
    """Create the softmax of rows."""
    matrix = library.memory_desc(rows, (rows[1], 1))
    desc = softmax_desc(library, dnnl.FORWARD_INFERENCE, SOFTMAX_ACCURATE, matrix)
    return dnnl.Primitive(library, desc, {dnnl.ARG_SRC: matrix, dnnl.ARG_DST: matrix})


def softmax_desc(library: dnnl.Library, prop_kind: int, kind: int, matrix: dnnl.MemoryDesc) -> dnnl.Handle:
    """Return the primitive descriptor of the softmax or log-softmax of rows."""
    if not library.has_precise_exp:
        raise dnnl.UnsupportedError(f"oneDNN {library.version}: exp without AVX2")
    args = library.engine, prop_kind, kind, matrix.handle, matrix.handle, 1, library.default_attr
    return library.primitive_desc("softmax_forward", *args)


def create_softmax_backward(library: dnnl.Library, rows: tuple[int, int], kind: int) -> dnnl.Primitive:
    """Create the gradient of softmax or log-softmax of rows: arguments result, its error, and the error of the rows."""
    matrix = library.memory_desc(rows, (rows[1], 1))
    hint = softmax_desc(library, dnnl.FORWARD_TRAINING, kind, matrix)
    args = library.engine, kind, *[matrix.handle] * 3, 1, hint, library.default_attr
    descs = dict.fromkeys((dnnl.ARG_DST, dnnl.ARG_DIFF_DST, dnnl.ARG_DIFF_SRC), matrix)
    return dnnl.Primitive(library, library.primitive_desc("softmax_backward", *args), descs)


def row_norm_desc(
    library: dnnl.Library, matrix: dnnl.MemoryDesc, column: dnnl.MemoryDesc, eps: float, flags: int = 0
) -> dnnl.Handle:
    """Return the primitive descriptor of the normalization of rows."""
    handles = matrix.handle, matrix.handle, column.handle
    args = library.engine, dnnl.FORWARD_TRAINING, *handles, c_float(eps), c_uint(flags), library.default_attr
    return library.primitive_desc("layer_normalization_forward", *args)


def create_row_norm(library: dnnl.Library, rows: tuple[int, int], eps: float, is_scaled: bool) -> dnnl.Primitive:
    """Create the normalization of rows, with the arguments rows, gamma and beta or neither, result, statistics."""
    matrix, column = library.memory_desc(rows, (rows[1], 1)), library.memory_desc(rows[:1], (1,))
    row = library.memory_desc(rows[1:], (1,))
    scale = {ARG_SCALE: row, ARG_SHIFT: row} if is_scaled else {}
    descs = {dnnl.ARG_SRC: matrix, **scale, dnnl.ARG_DST: matrix, ARG_MEAN: column, ARG_VARIANCE: column}
    desc = row_norm_desc(library, matrix, column, eps, (USE_SCALE | USE_SHIFT) * is_scaled)
    return dnnl.Primitive(library, desc, descs)


def create_row_norm_backward(
    library: dnnl.Library, rows: tuple[int, int], eps: float, is_scaled: bool
) -> dnnl.Primitive:
    """Create the gradient of the normalization. If it computes those of gamma and beta, too, it runs on one thread.

    Arguments: the error of the result, rows, means, variances, beta and gamma or neither, the error of the rows, and
    the gradients of gamma and beta or neither.
    """
    matrix, column = library.memory_desc(rows, (rows[1], 1)), library.memory_desc(rows[:1], (1,))
    row, flags = library.memory_desc(rows[1:], (1,)), (USE_SCALE | USE_SHIFT) * is_scaled
    hint = row_norm_desc(library, matrix, column, eps, flags)
    handles = *[matrix.handle] * 3, column.handle
    kind = dnnl.BACKWARD if is_scaled else dnnl.BACKWARD_DATA
    args = library.engine, kind, *handles, c_float(eps), c_uint(flags), hint, library.default_attr
    descs = {dnnl.ARG_DIFF_DST: matrix, dnnl.ARG_SRC: matrix, ARG_MEAN: column, ARG_VARIANCE: column}
    descs |= {ARG_SHIFT: row, ARG_SCALE: row} if is_scaled else {}
    descs |= {dnnl.ARG_DIFF_SRC: matrix} | ({ARG_DIFF_SCALE: row, ARG_DIFF_SHIFT: row} if is_scaled else {})
    with library.use_threads(1) if is_scaled else nullcontext():
        return dnnl.Primitive(library, library.primitive_desc("layer_normalization_backward", *args), descs)
