"""Measure both sides of each threshold of neonlite: the constants that choose between two ways to compute the same.

python benchmarks/thresholds.py            # minutes; writes results/thresholds.json and .md
python benchmarks/thresholds.py --quick    # a smoke test of a minute; writes nothing
python benchmarks/thresholds.py --only MIN_CHAIN
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from _table import Effort, Work, cpus, machine, markdown, measure, ratio, save, seconds
from threadpoolctl import threadpool_limits

from neonlite.backend import Backend, NervanaObject, concurrency
from neonlite.backend.runtimes.onednn.bindings import get_library
from neonlite.distributed import mpiexec_command, world
from neonlite.layers import LSTM

# {name in this file: (module, name there)}; "CONSTANT key.attribute": the attribute of an item of a dictionary
CONSTANTS: dict[str, tuple[str, str]] = {
    "gathered windows": ("neonlite.backend.primitives", "MAX_GATHERED_BYTES"),
    "chain cost": ("neonlite.backend.runtimes.onednn", "MIN_CHAIN_COST"),
    "exact chain": ("neonlite.backend.runtimes.onednn", "MIN_EXACT_CHAIN_ELEMENTS"),
    "chain threads": ("neonlite.backend.runtimes.onednn.post_ops", "MIN_WORK_PER_THREAD"),
    "sigmoid": ("neonlite.backend.runtimes.onednn.post_ops", "ELTWISE_FUNCTIONS sig.min_size"),
    "transposed copy": ("neonlite.backend.primitives.rows", "MIN_TRANSPOSED"),
    "steps": ("neonlite.backend.runtimes.onednn.products", "MIN_STEPS"),
    "input ratio": ("neonlite.backend.runtimes.onednn.products", "MAX_INPUT_RATIO"),
    "parallel sum": ("neonlite.backend.runtimes.onednn.convolution", "MIN_PARALLEL_SUM"),
    "sum parts": ("neonlite.backend.runtimes.onednn.convolution", "MAX_SUM_PARTS"),
    "row elements": ("neonlite.backend.primitives.rows", "MAX_ROW_ELEMENTS"),
    "block rows": ("neonlite.backend.runtimes.onednn.convolution", "MIN_BLOCK_ROWS"),
    "bprop channels": ("neonlite.backend.runtimes.onednn.convolution", "MIN_BPROP_CHANNELS"),
    "product": ("neonlite.backend.runtimes.onednn.products", "MIN_WORK"),
    "vector product": ("neonlite.backend.runtimes.onednn.products", "MIN_VECTOR_WORK"),
    "gemm": ("neonlite.backend.runtimes", "MIN_GEMM_WORK"),
    "untiled": ("neonlite.backend.runtimes.numpy.stages", "MAX_UNTILED_ELEMENTS"),
    "block": ("neonlite.backend.runtimes.numpy.stages", "BLOCK_ELEMENTS"),
    "large block": ("neonlite.backend.runtimes.numpy.stages", "MAX_BLOCK_ELEMENTS"),
    "shared block": ("neonlite.backend.runtimes.numpy.stages", "MAX_SHARED_ELEMENTS"),
    "batch norm block": ("neonlite.backend.runtimes.onednn.convolution", "BLOCK_ELEMENTS"),
    "sum blocks": ("neonlite.backend.runtimes.numpy.stages", "MIN_SUM_BLOCKS"),
    "last axis": ("neonlite.backend.runtimes.numpy.stages", "MIN_LAST_AXIS_ELEMENTS"),
    "threaded elements": ("neonlite.backend.runtimes.numpy.stages", "MIN_THREADED_ELEMENTS"),
    "threaded cost": ("neonlite.backend.runtimes.numpy.stages", "MIN_THREADED_COST"),
    "pooling tile": ("neonlite.backend.runtimes.numpy", "TILE_ELEMENTS"),
    "gathered pixels": ("neonlite.backend.runtimes.numpy", "MAX_GATHERED_PIXELS"),
    "sum": ("neonlite.backend.runtimes.numpy.templates", "MIN_ELEMENTS"),
    "folded row": ("neonlite.backend.runtimes.numpy.templates", "FOLDED_ROW_ELEMENTS"),
    "scatter": ("neonlite.backend.runtimes.numpy.templates", "MAX_SCATTER_ELEMENTS"),
    "grouped copies": ("neonlite.backend.transaction", "MAX_GROUPED_SIZE"),
    "stored": ("neonlite.array_api.array", "MIN_STORED_BYTES"),
    "pending ops": ("neonlite.array_api.array", "MAX_PENDING_OPS"),
    "leaves": ("neonlite.optree", "MAX_TRACKED_LEAVES"),
    "gathered ranks": ("neonlite.distributed.communicator", "MAX_GATHERED_BYTES"),
    "local message": ("neonlite.distributed.communicator", "MAX_LOCAL_BYTES"),
}
FULL, QUICK = Effort(0.3, 0.006, 9), Effort(0.0, 0.001, 2)
REST = 0.11  # seconds until the threads of OpenBLAS stop spinning
MPI_ROUNDS, MPI_SECONDS = 25, 0.01  # of a sum over ranks
LOW, HIGH = 0, 1 << 40  # values of a threshold by which all sizes are above it, or below it
LIMIT = 1.1  # maximum time of the chosen way relative to the other
EQUAL = 0.05  # relative difference of two times that are called equal
FACTORS = (1 / 8, 1 / 2, 2, 8)  # other block sizes
NOTE = """\
Each number is the time of the way that neonlite chooses, divided by the time of the other way, to which the constant is
set: the median of the ratios of all rounds, in each of which both run once, in random order, in one process. Sizes are
in the unit of the constant, those in the middle directly below and above it. There both ways should take equally long,
and far from it the chosen one should be faster. `!`: it takes more than 1.1 times as long. "equal": the two differ by
at most 5 % at all four sizes, so the constant is not needed here. `~`: other processes used the machine meanwhile.
"NumPy": without oneDNN."""
BLOCK_NOTE = """\
Constants that limit how much is processed at once: the time with the constant, divided by that with the constant times
the number above."""

Create = Callable[[Backend, int], Work]


@dataclass
class Case:
    """Work of some sizes, each with the numbers of threads by which it is measured.

    ``where``: "oneDNN", "NumPy" (without oneDNN), "mkl", or a number of ranks.
    """

    constant: str
    work: str
    create: Create
    sizes: tuple[int, ...]
    threads: Sequence[int] = (1,)
    where: str = "oneDNN"

    @property
    def process(self) -> str:
        """The process that measures it: "oneDNN", "NumPy", or a number of ranks."""
        return "oneDNN" if self.where == "mkl" else self.where


@dataclass
class Threshold(Case):
    """Work of four sizes: far below a constant, directly below it, directly above it, far above it."""

    low: int = LOW
    rest: float = 0.0


@dataclass
class Block(Case):
    """Work of one size, of which a constant limits the part that is processed at once."""


# --- constants -------------------------------------------------------------------------------------------------------


def accessors(constant: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return the functions that read and set a constant."""
    module_name, name = CONSTANTS[constant]
    module, (name, _, item) = import_module(module_name), name.partition(" ")
    getattr(module, name)  # an error if there is none
    if not item:
        return partial(getattr, module, name), partial(setattr, module, name)
    key, attribute = item.split(".")
    value = getattr(module, name)[key]
    return partial(getattr, value, attribute), partial(setattr, value, attribute)


def forced(constant: str, value: Any, create: Create, size: int, runtime: str) -> Work:
    """Return work that is created and runs with another value of a constant."""
    set_value = accessors(constant)[1]
    set_value(value)
    NervanaObject.be = be = Backend(runtime, rng_seed=1, batch_size=BATCH)
    work = create(be, size)

    def run() -> None:
        NervanaObject.be = be
        set_value(value)
        work()

    return run


@contextmanager
def restored(constant: str) -> Iterator[Any]:
    """Give the value of a constant, and set it again at the end."""
    get_value, set_value = accessors(constant)
    value = get_value()
    try:
        yield value
    finally:
        set_value(value)


# --- op-trees --------------------------------------------------------------------------------------------------------

BATCH = 64
TREES: dict[str, Callable[..., Any]] = {
    "1 - tanh(x)^2": lambda be, x, y: 1 - be.square(be.tanh(x)),
    "1 / (1 + exp(-x))": lambda be, x, y: 1 / (1 + be.exp(-x)),
    "exp(x - y)": lambda be, x, y: be.exp(x - y),
    "(x / 2 + y) 1.5 - y, four times": lambda be, x, y: reduce(lambda z, _: (z * 0.5 + y) * 1.5 - y, range(4), x),
    "sigmoid(log(x))": lambda be, x, y: be.sig(be.log(x)),
    "sqrt(x y + 1) y - x": lambda be, x, y: be.sqrt(x * y + 1) * y - x,
    "sqrt(exp(x) y + 1) - x": lambda be, x, y: be.sqrt(be.exp(x) * y + 1) - x,
    "x + y": lambda be, x, y: x + y,
    "sum(exp(x) y)": lambda be, x, y: be.sum(be.exp(x) * y, axis=0),
    "max(x y)": lambda be, x, y: be.max(x * y),
    "max(abs(x))": lambda be, x, y: be.max(be.absolute(x)),
    "sum((x > 0) (x + y))": lambda be, x, y: be.sum((x > 0) * (x + y), axis=0),
    "sum(abs(x))": lambda be, x, y: be.sum(be.absolute(x)),
}


def tree(name: str, be: Backend, size: int, columns: int = 0, cost: int = 1) -> Work:
    """Return the assignment of an op-tree of two matrices with ``size / cost`` elements; 0 columns: one row."""
    elements = size // cost
    shape = (elements // columns, columns) if columns else (1, elements)
    x, y = (be.array(drawn(shape) + 0.1) for _ in range(2))
    value = TREES[name](be, x, y)
    return be.compile([be.empty(value.shape)], [value])


def batch_norm(be: Backend, size: int) -> Work:
    """Return the normalization of images in NHWC with 16 channels, as rows of 64 pixels."""
    x = drawn((size // 1024, 1024))
    gamma, beta, mean, variance = np.ones((4, 1, 16), np.float32)
    args = x, gamma, beta, np.empty_like(x), mean, variance
    return lambda: be.primitives.batch_norm(*args, eps=1e-5, relu=True)


def drawn(shape: Sequence[int], seed: int = 0) -> Any:
    """Return uniformly distributed float32 values in [0, 1)."""
    return np.random.default_rng(seed).random(shape, np.float32)


def transposed(columns: int, be: Backend, size: int) -> Work:
    """Return the copy of a transposed matrix."""
    x = be.array(drawn((size // columns, columns)))
    return be.compile([be.empty((columns, size // columns))], [x.T])


def sum_of(axis: int, columns: int, be: Backend, size: int) -> Work:
    """Return the sum along an axis of a matrix."""
    x = be.array(drawn((size // columns, columns)))
    value = be.sum(x, axis=axis)
    return be.compile([be.empty(value.shape)], [value])


def maximum_of_columns(be: Backend, columns: int) -> Work:
    """Return the maximum along the first axis of a matrix with some columns."""
    x = be.array(drawn((1000, columns)))
    value = be.max(x, axis=0)
    return be.compile([be.empty(value.shape)], [value])


def tree_of_leaves(be: Backend, count: int) -> Work:
    """Return the sum of many tensors, built and evaluated in each call."""
    leaves, out = [be.ones((8, 8)) for _ in range(count)], be.empty((8, 8))

    def run() -> None:
        value = leaves[0]
        for x in leaves[1:]:
            value = value + x
        out[:] = value

    return run


def scatter(axis: int, be: Backend, size: int) -> Work:
    """Return the gradient of a table lookup."""
    shape = (256, size // 256) if axis else (size // 256, 256)
    ids = be.array(np.random.default_rng(0).integers(0, 1000, (1, size // 256)), dtype="int32")
    value = be.build("scatter_add", be.array(drawn(shape)), ids, axis=axis, size=1000)
    return be.compile([be.empty(value.shape)], [value])


def copies(be: Backend, size: int) -> Work:
    """Return the snapshot of eight tensors with ``size`` elements each."""
    snapshot_type = import_module(CONSTANTS["grouped copies"][0]).Snapshot
    snapshot = snapshot_type([be.array(drawn((1, size))) for _ in range(8)])
    work: Work = snapshot.take
    return work


def vectors_between_convolutions(be: Backend, size: int) -> Work:
    """Return elementwise ops of images of 16 channels and of vectors, between two convolutions."""
    x, gamma, beta = be.array(drawn((16, 32, 32, size >> 14))), be.ones((16, 1, 1, 1)), be.ones((16, 1, 1, 1))
    first, second = (be.array(drawn((16, 1, 1, 16), seed)) for seed in (1, 2))
    y = be.conv(x, first)
    value = be.sum(be.conv(be.maximum(y * gamma - beta, 0) * y, second))
    return be.compile([be.empty(value.shape)], [value])


def batch_norm_of_blocks(be: Backend, rows: int) -> Work:
    """Return the normalization of images between two convolutions, in 131 blocks with some rows of 64 pixels."""
    x, gamma, beta = be.array(drawn((16, 8, 8, 131 * rows))), be.ones((16, 1)), be.zeros((16, 1))
    first, second = (be.array(drawn((16, 1, 1, 16), seed)) for seed in (1, 2))
    y = be.maximum(be.batch_norm(be.conv(x, first), gamma, beta), 0)
    value = be.sum(be.conv(y, second))
    return be.compile([be.empty(value.shape)], [value])


# --- arrays ----------------------------------------------------------------------------------------------------------


def shared_reduction(be: Backend, nbytes: int) -> Work:
    """Return the standardization of a matrix by the array API: the mean is an operand of three later expressions."""
    xp = be.array_api
    x = xp.asarray(drawn((64, nbytes // 256)))

    def run() -> None:
        difference = x - xp.mean(x, axis=0)
        variance = xp.mean(difference * difference, axis=0)
        for value in (variance, difference / xp.sqrt(variance + 1e-3)):
            np.asarray(value)

    return run


def loop(elements: int, be: Backend, ops: int) -> Work:
    """Return a loop over ``y = y / 2 + x`` by the array API, whose result is evaluated at the end."""
    x = be.array_api.asarray(drawn((elements,)))

    def run() -> None:
        y = x
        for _ in range(ops // 2):
            y = y * 0.5 + x
        np.asarray(y)

    return run


# --- products --------------------------------------------------------------------------------------------------------


def product(be: Backend, work: int) -> Work:
    """Return a product of square matrices with ``work`` multiply-adds."""
    n = round(work ** (1 / 3))
    a, b, c = be.array(drawn((n, work // n**2))), be.array(drawn((work // n**2, n))), be.empty((n, n))
    return partial(be.compound_dot, a, b, c)


def stack(be: Backend, work: int) -> Work:
    """Return products of eight pairs of matrices with ``work`` multiply-adds in all."""
    n = round((work / 8) ** (1 / 3))
    k = work // (8 * n * n)
    a, b = be.array(drawn((8, n, k))), be.array(drawn((8, k, n)))
    value = be.matmul(a, b)
    return be.compile([be.empty(value.shape)], [value])


def vector_product(be: Backend, work: int) -> Work:
    """Return the product of a matrix and a vector with ``work`` multiply-adds."""
    k = round(work**0.5)
    a, b, c = be.array(drawn((work // k, k))), be.array(drawn((k, 1))), be.empty((work // k, 1))
    return partial(be.compound_dot, a, b, c)


# --- images ----------------------------------------------------------------------------------------------------------


def convolution(passes: str, be: Backend, N: int, C: int, H: int, K: int, R: int, pad: int = 0) -> Work:
    """Return the passes of a convolution of N images (C, H, H) with K filters of R x R."""
    layer = be.conv_layer("float32", N=N, C=C, K=K, H=H, W=H, R=R, S=R, pad_h=pad, pad_w=pad)
    i, f, e = (be.array(drawn(dim) - 0.5) for dim in (layer.dimI, layer.dimF, layer.dimO))
    o, d, u = (be.empty(dim) for dim in (layer.dimO, layer.dimI, layer.dimF))
    work = {
        "fprop": lambda: be.fprop_conv(layer, i, f, o),
        "bprop": lambda: be.bprop_conv(layer, f, e, d),
        "update": lambda: be.update_conv(layer, i, e, u),
    }
    chosen = [work[name] for name in passes.split()]

    def run() -> None:
        for one in chosen:
            one()

    return run


def pooling(op: str, be: Backend, size: int) -> Work:
    """Return the pooling by 2 x 2 of 16 x 16 images with 16 channels and ``size`` elements."""
    layer = be.pool_layer("float32", op, max(1, size // 4096), 16, H=16, W=16, R=2, S=2, str_h=2, str_w=2)
    i, o = be.array(drawn(layer.dimI)), be.empty(layer.dimO)
    return lambda: be.fprop_pool(layer, i, o)


def roi_pooling(be: Backend, channels: int) -> Work:
    """Return RoI pooling of 64 regions of images of 32 x 32 to 7 x 7 bins."""
    images, out = be.array(drawn((channels, 32, 32, 1))), be.empty((channels, 7, 7, 64))
    argmax = be.empty((channels, 7, 7, 64), dtype="int32")
    corners = np.sort(np.random.default_rng(0).integers(0, 32, (64, 2, 2)), axis=1)
    regions = be.array(np.concatenate([np.zeros((64, 1)), corners.reshape(64, 4)], axis=1))
    return lambda: be.roipooling_fprop(images, regions, out, argmax, 64, channels, 32, 32, 7, 7, 1.0)


# --- recurrent layers ------------------------------------------------------------------------------------------------


def recurrent(be: Backend, F: int, T: int, H: int) -> Work:
    """Return fprop and bprop of an LSTM with F inputs, T steps, H hidden units and a batch size of 64."""
    layer = LSTM(H)
    layer.configure((F, T))
    layer.allocate()
    x = be.array(drawn((F, T * BATCH)))
    e = be.array(drawn((H, T * BATCH)) - 0.5)

    def run() -> None:
        layer.fprop(x)
        layer.bprop(e)

    return run


# --- ranks -----------------------------------------------------------------------------------------------------------


def rank_sum(deterministic: bool, be: Backend, nbytes: int) -> Work:
    """Return the sum of an array over all ranks."""
    x = np.zeros(nbytes // 4, np.float32)
    return lambda: world().all_reduce(x, deterministic)


# --- cases -----------------------------------------------------------------------------------------------------------


def around(value: int, far: int = 8) -> tuple[int, int, int, int]:
    """Return sizes far below a value, 5 % below it, 5 % above it, and far above it."""
    return value // far, value * 19 // 20, value * 21 // 20, value * far


MiB = 1 << 20
ALL_PASSES = "fprop bprop update"
THRESHOLDS = [
    *(
        Threshold(
            "chain cost", f"{name}, elements times {cost}", partial(tree, name, cost=cost), around(1 << 18), (1, 2)
        )
        for name, cost in (("1 - tanh(x)^2", 10), ("1 / (1 + exp(-x))", 8), ("exp(x - y)", 9))
    ),
    Threshold(
        "exact chain",
        name := "(x / 2 + y) 1.5 - y, four times",
        partial(tree, name),
        (1 << 14, *around(1 << 15, 16)[1:]),
        (1, 2),
    ),
    Threshold(
        "chain threads",
        "1 - tanh(x)^2, elements times 10 / 2",
        lambda be, n: tree("1 - tanh(x)^2", be, 2 * n, cost=10),
        around(1 << 16),
        (2,),
        low=1,
    ),
    Threshold("sigmoid", name := "sigmoid(log(x))", partial(tree, name), around(1 << 13)),
    *(
        Threshold("transposed copy", f"transposed matrix of {n} columns", partial(transposed, n), around(1 << 15, 16))
        for n in (32, 64)
    ),
    Threshold(
        "steps",
        "LSTM of 128 units, 128 inputs",
        lambda be, T: recurrent(be, 128, T, 128),
        (2, 4, 5, 20),
        (1, 2),
    ),
    Threshold(
        "input ratio",
        "LSTM of 64 units, 10 steps",
        lambda be, n: recurrent(be, 64 * n, 10, 64),
        (1, 4, 5, 16),
        (1, 2),
    ),
    Threshold("parallel sum", "max pooling", partial(pooling, "max"), around(MiB), (1, 2)),
    Threshold(
        "bprop channels",
        "bprop of a convolution by 5 x 5",
        lambda be, C: convolution("bprop", be, 128, C, 28, 20, 5),
        (1, 2, 3, 16),
        (1, 2),
    ),
    Threshold("block rows", "batch norm between convolutions", batch_norm_of_blocks, (2, 15, 17, 64), (1, 2)),
    Threshold("product", "square matrices", product, around(1 << 18), (1, 2), rest=REST),
    Threshold("product", "stacks of 8", stack, around(1 << 18), (1, 2), rest=REST),
    Threshold("vector product", "matrix and vector", vector_product, around(1 << 13, 32), (1, 2), rest=REST),
    *(
        Threshold("gemm", "square matrices", product, around(MiB * factor, 3), (threads,), where, rest=REST)
        for where in ("oneDNN", "mkl")
        for threads, factor in ((1, 4), (2, 1))
    ),
    Threshold("untiled", name := "sqrt(x y + 1) y - x", partial(tree, name), around(1 << 18), (1, 2), "NumPy", 1),
    Threshold("untiled", name := "max(x y)", partial(tree, name), around(1 << 18), (1, 2), "NumPy", 1),
    Threshold(
        "threaded elements",
        name := "sqrt(exp(x) y + 1) - x",
        partial(tree, name),
        around(1 << 19, 2),
        (2,),
        "NumPy",
    ),
    Threshold("threaded cost", name := "x + y", partial(tree, name), around(1 << 21, 4), (2,), "NumPy"),
    Threshold("sum", "rows of 64", partial(sum_of, 1, 64), around(1 << 13)),
    Threshold("sum", "rows of 2048", partial(sum_of, 1, 2048), (2048, 3 * 2048, 5 * 2048, 1 << 16)),
    Threshold("sum", "columns of 32", partial(sum_of, 0, 32), around(1 << 13)),
    Threshold("grouped copies", "snapshot of 8 tensors", copies, around(1 << 17), (1, 2)),
    Threshold("stored", "standardized columns", shared_reduction, around(1 << 18, 32)),
    Threshold("pending ops", "loop over arrays of 100", partial(loop, 100), (16, 62, 70, 512)),
    Threshold("pending ops", "loop over arrays of 100,000", partial(loop, 100_000), (16, 62, 70, 512)),
    Threshold("leaves", "sum of tensors", tree_of_leaves, (16, 124, 136, 1024)),
    Threshold("gathered ranks", "sum in the order of 3 ranks", partial(rank_sum, True), around(1 << 16), where="3"),
]
BLOCKS = [
    Block(
        "gathered windows",
        "convolution by 3 x 3, all passes",
        lambda be, n: convolution(ALL_PASSES, be, n, 16, 32, 32, 3),
        (128,),
        (1, 2),
        "NumPy",
    ),
    Block("sum parts", "max pooling", partial(pooling, "max"), (4 * MiB,), (1, 2)),
    Block("block", name := "sqrt(x y + 1) y - x", partial(tree, name), (2 * MiB,), (1, 2), "NumPy"),
    Block("large block", name := "max(abs(x))", partial(tree, name), (4 * MiB,), (1, 2), "NumPy"),
    Block("large block", name := "x + y", partial(tree, name), (4 * MiB,), (1, 2), "NumPy"),
    Block("shared block", name := "sum((x > 0) (x + y))", partial(tree, name, columns=1 << 10), (2 * MiB,), (2,)),
    Block("shared block", name := "sqrt(x y + 1) y - x", partial(tree, name), (2 * MiB,), (2,), "NumPy"),
    Block("row elements", "elementwise ops between convolutions", vectors_between_convolutions, (2 * MiB,), (1, 2)),
    Block("batch norm block", "batch norm of 16 channels", batch_norm, (2 * MiB,), (1, 2)),
    Block("sum blocks", name := "sum(abs(x))", partial(tree, name), (MiB // 2,), (1, 2), "NumPy"),
    Block("last axis", name := "sum(exp(x) y)", partial(tree, name, columns=1 << 14), (2 * MiB,), (1, 2), "NumPy"),
    Block("pooling tile", "max pooling", partial(pooling, "max"), (MiB,), where="NumPy"),
    Block("gathered pixels", "RoI pooling of 64 channels", roi_pooling, (64,)),
    Block("folded row", "maximum of 16 columns", maximum_of_columns, (16,)),
    Block("scatter", "gradient of a table (1000, 256), 16,384 indices", partial(scatter, 0), (4 * MiB,)),
    Block("scatter", "gradient of a table (256, 1000), 16,384 indices", partial(scatter, 1), (4 * MiB,)),
    Block("local message", "sum over 2 ranks, 40 MB", partial(rank_sum, False), (40_000_000,), where="2"),
]
CASES: list[Case] = [*THRESHOLDS, *BLOCKS]


# --- measuring -------------------------------------------------------------------------------------------------------


def measure_ranks(peers: dict[Any, Work], effort: Effort, rest: float = 0.0) -> tuple[dict[Any, list[float]], bool]:
    """Return the seconds per call of each peer in each round, of all ranks together, and True."""
    rounds = MPI_ROUNDS if effort is FULL else 2
    calls = {}
    for peer, work in peers.items():
        work()
        estimate = np.array([seconds(work, 3)])
        calls[peer] = max(1, round(MPI_SECONDS / float(world().broadcast(estimate)[0])))
    times: dict[Any, list[float]] = {peer: [] for peer in peers}
    for n in range(rounds):
        for peer in list(peers)[:: 1 if n % 2 else -1]:
            times[peer].append(seconds(peers[peer], calls[peer]))
    return times, True


def compare(case: Case, size: int, values: Sequence[Any], threads: int, effort: Effort) -> dict[str, Any]:
    """Return the ratios of the time with the first value of the constant to that with each other one."""
    concurrency.set_threads(threads)
    runtime, take = ("mkl" if case.where == "mkl" else "cpu"), (measure_ranks if case.where.isdigit() else measure)
    rest = case.rest if isinstance(case, Threshold) and threads > 1 and effort is FULL else 0.0
    with restored(case.constant), threadpool_limits(threads, "blas"):
        peers = {n: forced(case.constant, value, case.create, size, runtime) for n, value in enumerate(values)}
        times, quiet = take(peers, effort, rest)
    ratios = [ratio(times[n], times[0]) for n in range(1, len(values))]
    return {"ratios": ratios, "seconds": statistics.median(times[0]), "quiet": quiet}


def measured(case: Case, threads: int, effort: Effort) -> dict[str, Any]:
    """Return a row of one of the tables."""
    with restored(case.constant) as value:
        pass
    row = {"constant": case.constant, "value": value, "work": case.work, "threads": threads, "where": case.where}
    if isinstance(case, Threshold):
        row["sizes"] = case.sizes
        pairs = zip(case.sizes, (case.low, case.low, HIGH, HIGH), strict=True)
        parts = [compare(case, size, [value, other], threads, effort) for size, other in pairs]
    else:
        values = [value, *(max(1, round(value * factor)) for factor in FACTORS)]
        parts = [compare(case, case.sizes[0], values, threads, effort)]
    return row | {
        "ratios": [x for part in parts for x in part["ratios"]],
        "seconds": [part["seconds"] for part in parts],
        "quiet": all(part["quiet"] for part in parts),
    }


def selected(where: str, only: str) -> Iterator[tuple[Case, int]]:
    """Yield the cases of a process, each with its numbers of threads."""
    for case in CASES:
        is_installed = case.where != "mkl" or find_spec("mkl") is not None
        if case.process == where and only in CONSTANTS[case.constant][1] and is_installed:
            yield from ((case, n) for n in case.threads if n <= cpus())


def run_part(where: str, only: str, quick: bool, path: str) -> None:
    """Measure the cases of this process, and write their rows to a file."""
    rows = []
    for case, threads in selected(where, only):
        rows.append(measured(case, threads, QUICK if quick else FULL))
        if world().rank == 0:
            print(*line(rows[-1]), sep="  ", flush=True)
    if world().rank == 0:
        Path(path).write_text(json.dumps(rows))


def start(where: str, only: str, quick: bool) -> list[dict[str, Any]]:
    """Return the rows of a new process: without oneDNN, with it, or of several ranks."""
    if not any(selected(where, only)) or (where.isdigit() and not find_spec("mpi4py")):
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.json"
        command = [sys.executable, __file__, "--where", where, "--only", only, "--output", path, *["--quick"] * quick]
        if where.isdigit():
            command = mpiexec_command(command, int(where))
        environment = {"NEONLITE_ONEDNN": "0"} if where == "NumPy" else {}
        subprocess.run(command, env=os.environ | environment, check=True)
        rows: list[dict[str, Any]] = json.loads(Path(path).read_text())
    return rows


# --- the tables ------------------------------------------------------------------------------------------------------


def line(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row."""
    cells = [f"{x:.2f}{' !' if x > LIMIT else ''}" for x in row["ratios"]]
    if "sizes" in row:
        cells = [f"{size:,}: {cell}" for size, cell in zip(row["sizes"], cells, strict=True)]
    equal = "equal" if all(abs(x - 1) <= EQUAL for x in row["ratios"]) else ""
    kind = {"oneDNN": "", "NumPy": ", NumPy", "mkl": ", MKL"}.get(row["where"], "")
    name = CONSTANTS[row["constant"]][1]
    work = f"{row['work']}{kind}{'' if row['quiet'] else ' ~'}"
    return [name, f"{row['value']:,}", work, f"{row['threads']}", *cells, equal]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a smoke test, and write nothing")
    parser.add_argument("--only", default="", metavar="NAME", help="only the constants with this in their names")
    parser.add_argument("--where", help=argparse.SUPPRESS)
    parser.add_argument("--output", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.where:
        run_part(options.where, options.only, options.quick, options.output)
        return
    if get_library() is None:
        sys.exit('oneDNN is not installed: pip install "neonlite[onednn]"')
    processes = sorted({case.process for case in CASES})
    rows = [row for process in processes for row in start(process, options.only, options.quick)]
    order = list(CONSTANTS)
    rows.sort(key=lambda row: order.index(row["constant"]))
    about = machine("numpy", "onednn-cpu-gomp", "mkl", "mpich")
    words = "\n".join(f"- {key}: {value}" for key, value in about.items())
    command = f"`{' '.join(['python benchmarks/thresholds.py', *sys.argv[1:]])}`"
    head = ["constant", "value", "work", "threads"]
    sizes = markdown([*head, "far below", "below", "above", "far above", ""], [line(r) for r in rows if "sizes" in r])
    factors = [f"× {factor:g}" for factor in FACTORS]
    blocks = markdown([*head, *factors, ""], [line(row) for row in rows if "sizes" not in row])
    parts = ["# Thresholds", command, words, NOTE, sizes, "## Block sizes", BLOCK_NOTE, blocks]
    report = "\n\n".join(parts) + "\n"
    print(report)
    if not (options.quick or options.only):
        save("thresholds", {"machine": about, "rows": rows}, report)


if __name__ == "__main__":
    main()
