"""Elementwise functions of float32 by oneDNN: single ones, transposed copies, and chains with post-ops.

The single functions are only those that are faster than NumPy's, measured in one thread on blocks in the cache: the
logistic function, and exp on CPUs without AVX-512. Each is called with ``(x, out)``, which may be the same array, and
runs in one thread; the caller divides work among threads. A transposed copy runs in OpenMP threads.

Each op of a chain has the previous result and at most one more value as operands, so intermediate values stay in
registers. Results are bitwise equal to NumPy's, except for exp, tanh and the logistic function, and for the sign of a
zero returned by minimum or maximum. A chain is called with its operands and ``out``, which may be one of them. It runs
in one thread, on blocks that the caller divides among threads, or with ``run_parallel`` in OpenMP threads, which start
about a hundred times as fast as Python's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from ctypes import c_float
from functools import lru_cache
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.concurrency import get_num_threads
from neonlite.backend.runtimes import data_address
from neonlite.backend.runtimes.numpy.templates import OP_COST, OP_TEMPLATES, UFUNCS
from neonlite.backend.runtimes.onednn import bindings as dnnl
from neonlite.ops.functions import Shape, contiguous_strides
from neonlite.typing import NumPyArray as Array

ELTWISE_LOGISTIC, ELTWISE_EXP = 0x29, 0x2A  # dnnl_alg_kind_t
FLOAT32_BYTES = 4
MIN_EXP_ARG = -86.9  # slightly below it oneDNN returns 0, although exp(x) is still a normal number
ONE, MINUS_ONE = np.float32(1), np.float32(-1)


class _ThreadState(threading.local):
    """Whether a thread is a worker of the pool: it uses oneDNN only here, so it keeps one OpenMP thread."""

    def __init__(self) -> None:
        self.is_worker = threading.current_thread().name.startswith("neonlite")
        if self.is_worker and (library := dnnl.get_library()):
            library.set_threads(1)


_thread = _ThreadState()


def execute(primitive: dnnl.Primitive, threads: int, addresses: Sequence[int]) -> None:
    """Execute a primitive; a thread that is not of the pool restores its number of OpenMP threads."""
    if _thread.is_worker:
        primitive(*addresses)
    else:
        with primitive.library.use_threads(threads):
            primitive(*addresses)


class EltwiseFunction:
    """An elementwise function of contiguous float32 arrays by oneDNN, with a NumPy fallback for all others."""

    def __init__(self, alg_kind: int, min_size: int, fallback: Callable[..., Any]) -> None:
        self.alg_kind, self.min_size, self.fallback = alg_kind, min_size, fallback

    def __call__(self, x: Array, out: Array) -> None:
        """Write the function of x into ``out``."""
        if x.size < self.min_size or not self.is_supported(x, out):
            self.fallback(x, out)
            return
        primitive = self.get_primitive(self.cache_key(x, out))
        if primitive is None:
            self.fallback(x, out)
        else:
            execute(primitive, self.num_threads(), (data_address(x).value, data_address(out).value))

    def num_threads(self) -> int:
        """Return the number of threads of a call."""
        return 1

    def is_supported(self, x: Array, out: Array) -> bool:
        """Return whether oneDNN can compute it."""
        return is_compatible(x, out) and bool(x.flags.c_contiguous and out.flags.c_contiguous)

    def cache_key(self, x: Array, out: Array) -> Any:
        """Return the cache key of the primitive for these arrays."""
        return x.size

    def create_primitive(self, library: dnnl.Library, key: Any) -> Any:
        """Create the primitive for a key."""
        if not library.has_precise_exp:
            raise dnnl.UnsupportedError(f"oneDNN {library.version}: exp and the logistic function without AVX2")
        row = library.memory_desc((key,), (1,)).handle
        args = dnnl.FORWARD_INFERENCE, self.alg_kind, row, row, c_float(0), c_float(0), library.default_attr
        return library.create_primitive(
            library.primitive_desc("eltwise_forward", library.engine, *args), dnnl.ARG_SRC, dnnl.ARG_DST
        )

    def get_primitive(self, key: Any) -> Any:
        """Return this thread's primitive for a key, or None if there is none."""
        threads = self.num_threads()
        key_in_thread = get_ident(), self, key, threads
        try:
            return dnnl.primitives[key_in_thread]
        except KeyError:
            pass
        primitive = None
        if library := dnnl.get_library():
            with suppress(dnnl.UnsupportedError), library.use_threads(threads):
                primitive = self.create_primitive(library, key)
        return dnnl.primitives.add(key_in_thread, primitive)


class ExpFunction(EltwiseFunction):
    """exp, by NumPy where oneDNN would lose a NaN or return 0 for a small normal number."""

    def is_supported(self, x: Array, out: Array) -> bool:
        """Return whether oneDNN can compute it; a comparison with NaN is False."""
        return super().is_supported(x, out) and bool(np.minimum.reduce(x, axis=None) >= MIN_EXP_ARG)


class TransposedCopy(EltwiseFunction):
    """A copy between arrays with different memory order, such as a transpose, which oneDNN copies in tiles."""

    def __init__(self) -> None:
        super().__init__(0, 0, copy_numpy)

    def num_threads(self) -> int:
        """Return the number of threads of a call."""
        return get_num_threads()

    def is_supported(self, x: Array, out: Array) -> bool:
        """Return whether oneDNN can copy, and is faster: the arrays differ in the stride of the last axis."""
        return is_compatible(x, out) and x.strides[-1] != out.strides[-1] and min(*x.strides, *out.strides) > 0

    def cache_key(self, x: Array, out: Array) -> Any:
        """Return the cache key: shape and strides."""
        return x.shape, x.strides, out.strides

    def create_primitive(self, library: dnnl.Library, key: Any) -> dnnl.Primitive:
        """Create the primitive for a shape and strides."""
        shape, *strides = key
        x, out = (library.memory_desc(shape, [n // FLOAT32_BYTES for n in each]) for each in strides)
        primitive = library.create_reorder(x, out)
        if primitive.needs_scratchpad:
            raise dnnl.UnsupportedError(
                "onednn reorder: expected a primitive without scratchpad, got one that needs it"
            )
        return primitive


def is_compatible(x: Array, out: Array) -> bool:
    """Return whether both arrays are aligned float32 of the same shape, and ``out`` is writable."""
    same = x.dtype == out.dtype == np.float32 and x.shape == out.shape
    return bool(same and x.flags.aligned and out.flags.aligned and out.flags.writeable)


def copy_numpy(x: Array, out: Array) -> None:
    """Copy an array into another with unsafe casting."""
    np.copyto(out, x, casting="unsafe")


def logistic_numpy(x: Array, out: Array) -> None:
    """Write ``1 / (1 + exp(-x))`` into ``out``."""
    one, minus = (ONE, MINUS_ONE) if out.dtype == np.float32 else (1, -1)
    np.multiply(x, minus, out)
    np.exp(out, out)
    np.add(one, out, out)
    np.divide(one, out, out)


# by op name
ELTWISE_FUNCTIONS: dict[str, EltwiseFunction] = {
    "sig": EltwiseFunction(ELTWISE_LOGISTIC, 1 << 13, logistic_numpy),
}
copy_transposed = TransposedCopy()
if not dnnl.numpy_uses_avx512():
    ELTWISE_FUNCTIONS["exp"] = ExpFunction(ELTWISE_EXP, 1 << 14, np.exp)


# --- fused elementwise chains ---

MAX_CHAIN_OPS = 16  # oneDNN allows 32 post-ops, and an op may be up to 5; NumPy computes a chain with more
MAX_CACHED_CHAINS = 1024  # by ops, operands and scalars
# elements times cost of the ops; with less, a busy process delays a second thread by more than that gains
MIN_WORK_PER_THREAD = 1 << 16
ARITHMETIC = {"add": 0x1FFF0, "mul": 0x1FFF1, "div": 0x1FFF4, "sub": 0x1FFF5}
MIN_MAX = {"maximum": 0x1FFF2, "minimum": 0x1FFF3}
BINARY_ALG = ARITHMETIC | MIN_MAX
# (algorithm, alpha, beta) of each function
ELTWISE_ALG = {
    "tanh": (0x21, 0, 0),
    "sqr": (0x23, 0, 0),
    "abs": (0x24, 0, 0),
    "sqrt": (0x25, 0, 0),
    "rint": (0x32, 0, 0),
}
ELTWISE_ALG |= {"sig": (ELTWISE_LOGISTIC, 0, 0), "exp": (ELTWISE_EXP, 0, 0), "reciprocal": (0x30, 1, -1)}
ARG_SRC_1, ARG_POST_OP = 2, 1 << 15  # DNNL_ARG_SRC_1, DNNL_ARG_ATTR_MULTIPLE_POST_OP(n) = n POST_OP
# operand slots: the constants 2^75, 0, 1 and -1, and the output
SLOT_2_75, SLOT_ZERO, SLOT_ONE, SLOT_MINUS_ONE, SLOT_OUT = -5, -4, -3, -2, -1
FLOAT32_TINY, FLOAT32_MAX = (float(x) for x in (np.finfo(np.float32).tiny, np.finfo(np.float32).max))

# 1 where x > 0, else 0. oneDNN's comparisons treat NaN as larger than 0; here the result for NaN is 0. Two
# multiplications by 2^75 make the smallest positive number greater than 1.
GT_ZERO = [("maximum", SLOT_ZERO), ("mul", SLOT_2_75), ("mul", SLOT_2_75), ("minimum", SLOT_ONE)]
# ops that need several oneDNN ops
COMPOSITE_OPS = {"neg": [("mul", SLOT_MINUS_ONE)], "gt_zero": GT_ZERO, "lt_zero": [("mul", SLOT_MINUS_ONE), *GT_ZERO]}
# ops whose results may differ from NumPy's in the last bits, or in the sign of a zero
INEXACT_OPS = {"exp", "tanh", "sig", "gt_zero", "lt_zero", *MIN_MAX}

# ops of chains that are not ops of the table
NUMPY_TEMPLATES = OP_TEMPLATES | {
    "reciprocal": "divide({one}, {x}, {z})",
    "gt_zero": "greater({x}, 0, {z})",
    "lt_zero": "less({x}, 0, {z})",
}
NUMPY_NAMESPACE = UFUNCS | {"ONE": np.float32(1), "MINUS_ONE": np.float32(-1)}


class ChainOp(NamedTuple):
    """An op of a chain. Its first operand is the previous result, or operand 0 for the first op.

    ``operand``: its second operand, if any. ``is_reversed``: the two are swapped.
    """

    op: str
    operand: int | None = None
    is_reversed: bool = False

    def numpy_code(self, previous: str) -> str:
        """Return NumPy code, with placeholders {0}, {1} ... for the operands and {z} for the output."""
        x, y = previous, f"{{{self.operand}}}"
        if self.is_reversed:
            x, y = y, x
        return NUMPY_TEMPLATES[self.op].format(x=x, y=y, z="{z}", one="ONE", minus_one="MINUS_ONE")

    def onednn_ops(self) -> list[tuple[str, int | None]]:
        """Return the ops of oneDNN. y - x becomes -x + y, which is bitwise equal."""
        if self.op in COMPOSITE_OPS:
            return list(COMPOSITE_OPS[self.op])
        if self.is_reversed and self.op == "sub":
            return [("mul", SLOT_MINUS_ONE), ("add", self.operand)]
        return [(self.op, self.operand)]


def can_start(op: str, is_scalar: bool) -> bool:
    """Return whether a chain can start with an op; ``is_scalar``: its second operand, if any, is a scalar.

    oneDNN's minimum and maximum return the second operand if one of them is NaN, so a leading one is applied twice; see
    ``FusedChain._onednn_ops``.
    """
    return op != "exp" and (
        op in ARITHMETIC or op in ELTWISE_ALG or op in COMPOSITE_OPS or (op in MIN_MAX and is_scalar)
    )


def can_extend(ops: Sequence[ChainOp], op: str, is_reversed: bool, is_binary: bool, propagates_nan: bool) -> bool:
    """Return whether an op can be appended to a chain.

    ``is_reversed``: the chain's result is the op's second operand. ``propagates_nan``: the chain's result is a scalar
    multiple of the other operand, and so is NaN where that is.
    """
    if op == "exp":
        return len(ops) == 1 and ops[0].op == "sub"
    if op in MIN_MAX:
        return propagates_nan
    if is_binary:
        return op in ARITHMETIC and not (is_reversed and op == "div")
    return op in ELTWISE_ALG or op in COMPOSITE_OPS


def numpy_code(ops: Iterable[ChainOp]) -> str:
    """Return the NumPy code of a chain, with placeholders for the operands and the output."""
    return "; ".join(op.numpy_code("{z}" if n else "{0}") for n, op in enumerate(ops))


def binary_operands(ops: Iterable[ChainOp]) -> list[tuple[str, int]]:
    """Return (op, second operand) of the ops that have two operands."""
    return [(op.op, op.operand) for op in ops if op.operand is not None]


class CompiledChain(NamedTuple):
    """The primitive of a chain, and the sources of its arguments."""

    primitive: dnnl.Primitive
    arg_sources: list[tuple[int | None, int]]  # (operand, 0), or (None, address) for a constant or scalar
    constants: Array  # the memory of constants and scalars


class FusedChain(EltwiseFunction):
    """A chain of float32 ops by oneDNN on contiguous arrays, with a NumPy fallback for all others.

    ``scalar_operands``: which of the ``num_operands`` operands are scalars. ``exp`` must follow a single difference.
    """

    def __init__(self, ops: tuple[ChainOp, ...], num_operands: int, scalar_operands: frozenset[int]) -> None:
        names = [f"x{n}" for n in range(num_operands)]
        lines = numpy_code(ops).format(*names, z="z").split("; ")
        scope = dict(NUMPY_NAMESPACE)
        exec("\n    ".join([f"def numpy_function({', '.join(names)}, z):", *lines]), scope)
        super().__init__(0, 0, self._run_numpy)
        self.numpy_function = scope["numpy_function"]
        self.ops, self.num_operands, self.scalar_operands = ops, num_operands, scalar_operands
        self.array_operands = [*(n for n in range(num_operands) if n not in scalar_operands), SLOT_OUT]
        self.late_operands = {n for _, n in binary_operands(ops[1:])} - scalar_operands  # read after a write
        self.op_names = [op.op for op in ops]
        self.cost = sum(OP_COST.get(name, 1) for name in self.op_names)
        self.has_exp = any(op.op == "exp" for op in ops)
        last = max((n for n, op in enumerate(ops) if op.op in MIN_MAX), default=-1)
        minimum = {"mul": FLOAT32_TINY} | dict.fromkeys(MIN_MAX, 0.0)  # of scalars up to the last minimum or maximum
        self.scalar_limits = [
            (n, minimum[op]) for op, n in binary_operands(ops[: last + 1]) if op in minimum and n in scalar_operands
        ]

    def __call__(self, *arrays: Array) -> None:
        """Run the chain on all arrays but the last, in one thread, and write the result into the last."""
        self.run(1, arrays)

    def run_parallel(self, *arrays: Array) -> None:
        """Run the chain in OpenMP threads; for little work in fewer than ``get_num_threads()``."""
        self.run(max(1, min(get_num_threads(), arrays[SLOT_OUT].size * self.cost // MIN_WORK_PER_THREAD)), arrays)

    def run(self, threads: int, arrays: Sequence[Array]) -> None:
        """Run the chain on all arrays but the last, and write the result into the last."""
        compiled: CompiledChain | None = self.get_primitive(self.cache_key(*arrays))
        if compiled is None or not self.is_supported(*arrays):
            self.fallback(*arrays)
            return
        primitive, arg_sources, constants = compiled
        for n in self.scalar_operands:
            constants[n] = arrays[n]
        addresses = [start if n is None else data_address(arrays[n]).value for n, start in arg_sources]
        execute(primitive, threads, addresses)

    def is_always_supported(self, shapes: tuple[Shape, ...]) -> bool:
        """Return whether oneDNN can run the chain for these shapes whatever the values are."""
        return not self.has_exp and self.get_primitive(shapes) is not None

    def cache_key(self, *arrays: Array) -> tuple[Shape, ...]:
        """Return the shapes of the array operands and the output."""
        return tuple([arrays[n].shape for n in self.array_operands])

    def is_supported(self, *arrays: Array) -> bool:
        """Return whether oneDNN gives the right result: exp needs an argument that is not NaN and not too small.

        Scalars up to the last minimum or maximum must be finite, and factors among them not 0 or subnormal.
        """
        for n in self.array_operands:
            flags = arrays[n].flags
            if not (flags.c_contiguous and flags.aligned):
                return False
        if not arrays[SLOT_OUT].flags.writeable:
            return False
        for n, minimum in self.scalar_limits:  # a generator would take a microsecond more
            if not minimum <= abs(arrays[n]) <= FLOAT32_MAX:
                return False
        if self.has_exp:
            low, high = np.minimum.reduce(arrays[0], axis=None), np.maximum.reduce(arrays[1], axis=None)
            return bool(low - high >= MIN_EXP_ARG)  # a comparison with NaN is false
        return True

    def create_primitive(self, library: dnnl.Library, shapes: tuple[Shape, ...]) -> CompiledChain:
        """Create the primitive for some shapes."""
        if not library.has_precise_exp and any(op.op in ("exp", "sig") for op in self.ops):
            raise dnnl.UnsupportedError(f"oneDNN {library.version}: exp and the logistic function without AVX2")
        descs = dict(zip(self.array_operands, broadcast_descs(library, shapes), strict=True))
        constants = np.zeros(self.num_operands - SLOT_2_75, np.float32)
        constants[SLOT_2_75], constants[SLOT_ONE], constants[SLOT_MINUS_ONE] = 2.0**75, 1, -1
        start, scalar_desc = data_address(constants).value, broadcast_descs(library, [(1,), shapes[SLOT_OUT]])[0]
        arg_sources: list[tuple[int | None, int]] = []
        arguments: dict[int, dnnl.MemoryDesc] = {}

        def add_argument(arg: int, slot: int) -> dnnl.Handle:
            """Record the source of an argument, and return its descriptor."""
            offset = slot % len(constants) * constants.itemsize
            arg_sources.append((slot, 0) if slot in descs else (None, start + offset))
            arguments[arg] = descs.get(slot, scalar_desc)
            return arguments[arg].handle

        (op, second), *others = self._onednn_ops()
        if second is None and not others:
            src, dst = add_argument(dnnl.ARG_SRC, 0), add_argument(dnnl.ARG_DST, SLOT_OUT)
            function, alpha, beta = ELTWISE_ALG[op]
            args = dnnl.FORWARD_INFERENCE, function, src, dst, c_float(alpha), c_float(beta), library.default_attr
            return CompiledChain(
                dnnl.Primitive(library, library.primitive_desc("eltwise_forward", library.engine, *args), arguments),
                arg_sources,
                constants,
            )
        if second is None:  # the first op must be binary
            others, op, second = [(op, None), *others], "mul", SLOT_ONE
        pair = BINARY_ALG[op], add_argument(dnnl.ARG_SRC, 0), add_argument(ARG_SRC_1, second)
        post_ops = library.create("post_ops", "post_ops_create")
        for count, (post_op, n) in enumerate(others, 1):
            if n is None:
                function, alpha, beta = ELTWISE_ALG[post_op]
                library.call("post_ops_append_eltwise", post_ops, function, c_float(alpha), c_float(beta))
            else:
                operand = add_argument(ARG_POST_OP * count | ARG_SRC_1, n)
                library.call("post_ops_append_binary", post_ops, BINARY_ALG[post_op], operand)
        attr = library.create("primitive_attr", "primitive_attr_create")
        library.call("primitive_attr_set_scratchpad_mode", attr, dnnl.SCRATCHPAD_USER)
        library.call("primitive_attr_set_post_ops", attr, post_ops)
        dst = add_argument(dnnl.ARG_DST, SLOT_OUT)
        primitive_desc = library.primitive_desc("binary", library.engine, *pair, dst, attr)
        primitive = dnnl.Primitive(library, primitive_desc, arguments)
        if primitive.needs_scratchpad:
            raise dnnl.UnsupportedError(
                f"oneDNN {library.version}: expected a binary primitive without scratchpad, got one that needs it"
            )
        return CompiledChain(primitive, arg_sources, constants)

    def _onednn_ops(self) -> list[tuple[str, int | None]]:
        """Return the oneDNN ops. A leading minimum or maximum is applied twice, so that NaN propagates."""
        steps = [step for op in self.ops for step in op.onednn_ops()]
        if self.ops[0].op in MIN_MAX:
            steps.insert(1, (self.ops[0].op, 0))
        return steps

    def _run_numpy(self, *arrays: Array) -> None:
        """Run the ops one by one, in a temporary if ``out`` overlaps an operand that is read after the first op."""
        out = arrays[SLOT_OUT]
        needs_copy = any(np.may_share_memory(arrays[n], out) for n in self.late_operands)
        z = np.empty_like(out) if needs_copy else out
        self.numpy_function(*arrays[:SLOT_OUT], z)
        if needs_copy:
            np.copyto(out, z)


@lru_cache(MAX_CACHED_CHAINS)
def get_chain(ops: tuple[ChainOp, ...], num_operands: int, scalar_operands: frozenset[int]) -> FusedChain:
    """Return the chain of some ops, cached."""
    return FusedChain(ops, num_operands, scalar_operands)


def broadcast_descs(library: dnnl.Library, shapes: Sequence[Shape]) -> list[dnnl.MemoryDesc]:
    """Return the descriptors of contiguous arrays that broadcast to the last one."""
    return [library.memory_desc(shape, contiguous_strides(shape)) for shape in merge_axes(shapes)]


def merge_axes(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes with the same number of axes, at least two: neighboring axes that broadcast alike are merged.

    If an operand (rows, 1) is repeated along rows, there are at least three axes, since only then oneDNN has fast code.
    """
    out = shapes[SLOT_OUT]
    shapes = [(1,) * (len(out) - len(shape)) + shape for shape in shapes]
    merged: list[list[int]] = []  # for each axis, its size in all arrays
    for sizes in zip(*shapes, strict=True):
        repeated = [size < sizes[SLOT_OUT] for size in sizes]
        if sizes[SLOT_OUT] == 1:
            continue
        if merged and repeated == [size < merged[-1][SLOT_OUT] for size in merged[-1]]:
            merged[-1] = [a * b for a, b in zip(merged[-1], sizes, strict=True)]
        else:
            merged.append(list(sizes))
    rows = len(merged) > 1 and any(
        1 == last < merged[-1][SLOT_OUT] and before > 1 for before, last in zip(*merged[-2:], strict=True)
    )
    while len(merged) < 2 + rows:
        merged.insert(0, [1] * len(shapes))
    return list(zip(*merged, strict=True))
