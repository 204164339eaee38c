"""Matrix products, and recurrent layers of all time steps, by oneDNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_char, c_float, c_int64, c_uint, c_void_p
from functools import lru_cache
from itertools import accumulate, pairwise
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.planning import Plan
from neonlite.backend.runtimes import (
    ROW_MAJOR,
    data_address,
    gemm_work,
    get_openblas,
    matrix_order,
    may_share_memory,
    min_gemm_work,
    openmp_threads,
)
from neonlite.backend.runtimes.numpy import NumPyPrimitives
from neonlite.backend.runtimes.onednn import bindings as dnnl
from neonlite.backend.runtimes.onednn.convolution import CACHE_LINE_BYTES, OneDNNBatchNorm, aligned_address
from neonlite.ops.functions import Shape, contiguous_strides
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


def exceeds_min_work(m: int, n: int, work: int) -> bool:
    """Return whether OpenBLAS may use several threads for products (m, n) of so many multiply-adds in all."""
    return work > (MIN_VECTOR_WORK if min(m, n) == 1 else MIN_WORK)


class OneDNNMatmul(NumPyPrimitives):
    """Matrix products of float32 by oneDNN if it is installed; NumPy computes small products and other dtypes."""

    def gemm(self, a: Array, b: Array, c: Array, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compute ``c = alpha a b + beta c`` of matrices or stacks.

        Products that NumPy computes although oneDNN is used run on one thread of OpenBLAS; see ``SingleThreadedBLAS``.
        """
        m, n = c.shape[-2:]
        is_vector = min(m, n) == 1  # one operand is a vector
        is_float = a.dtype == b.dtype == c.dtype == FLOAT32
        library = dnnl.get_library() if is_float and exceeds_min_work(m, n, c.size * a.shape[-1]) else None
        if library is None:
            super().gemm(a, b, c, alpha, beta)
            return
        is_small = is_vector or m * n * a.shape[-1] <= min_gemm_work()  # one product
        is_plain_stack = a.ndim == b.ndim == c.ndim > 2 and not is_vector and alpha == 1 and beta == 0
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

    def find_gemm(self, dtypes: Sequence[str], a: Shape, b: Shape) -> Callable[..., None]:
        """Return the function (a, b, out) of a product: that of NumPy where ``gemm`` would call it only."""
        is_large = exceeds_min_work(a[-2], b[-1], gemm_work(a, b))
        return self.gemm if is_large and {*dtypes} == {"float32"} else super().find_gemm(dtypes, a, b)

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
            a, b, c = (np.swapaxes(x, -1, -2) for x in (b, a, c))
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


# --- LSTM and GRU layers: all time steps as one forward primitive and one backward primitive ---
#
# Each call reorders sequences from (F, T N) to (T, N, F), and results back. It also reorders the weights to oneDNN's
# gate order, since they change in each training step. Inputs, outputs and oneDNN's workspace are saved in one buffer
# for the backward pass.

Factory = Callable[..., Any]
PrimitiveCall = tuple[dnnl.Primitive, Sequence[Any]]  # with its arrays


DIFF_ARG_OFFSET = 128  # from an argument to its gradient
QUERY_EXEC_ARG = 255  # dnnl_query_exec_arg_md
DIRECTIONS = 1, 2  # left to right, right to left
MIN_STEPS = 5  # with fewer, NumPy step by step is faster, because of the reorders of the weights
FLOAT32_TEMPLATE = np.empty(0, np.float32)
MAX_INPUT_RATIO = 4  # inputs per hidden unit; with more, inputs may be one-hot, for which a table lookup is much faster


class CellKind(NamedTuple):
    """The number of states of a kind of cell, and the order of its gates.

    ``negates_update_gate``: the update gate of a GRU, oneDNN's first gate, scales the old state in oneDNN and the new
    one in neonlite, so its weights are negated: 1 - sigmoid(z) = sigmoid(-z).
    """

    num_states: int
    gate_order: tuple[int, ...]  # neonlite's index of each of oneDNN's gates; the permutation is its own inverse
    negates_update_gate: bool = False


PAGE_BYTES = 4096
CELL_KINDS = {"lstm": CellKind(2, (0, 1, 3, 2)), "gru": CellKind(1, (1, 0, 2), negates_update_gate=True)}


class RecurrentShape(NamedTuple):
    """The shape of a recurrent layer: T steps of batch size N, F inputs, H hidden units.

    ``is_reversed``: the layer starts at the last step.
    """

    kind: str
    T: int
    N: int
    F: int
    H: int
    is_reversed: bool

    @property
    def num_gates(self) -> int:
        """The number of gates."""
        return len(CELL_KINDS[self.kind].gate_order)

    @property
    def flops(self) -> int:
        """The FLOPs of the forward matrix products; the backward pass takes twice as many."""
        return 2 * self.T * self.N * self.num_gates * self.H * (self.F + self.H)


class RecurrentPrimitive(NamedTuple):
    """A primitive with the reorders of W_input and W_recur, and of their gradients."""

    primitive: dnnl.Primitive
    weight_reorders: list[dnnl.Primitive]
    gradient_reorders: list[dnnl.Primitive]


class OneDNNRecurrent(OneDNNBatchNorm):
    """Recurrent layers of float32 by oneDNN, on top of convolution and batch normalization."""

    def recurrent_shape(self, shape: Sequence[Any], dtype: str) -> RecurrentShape | None:
        """Return (kind, T, N, F, H, is_reversed) as a shape if oneDNN is faster than NumPy; else None."""
        s = RecurrentShape(*shape)
        if s.kind not in CELL_KINDS or dtype != "float32" or s.T < MIN_STEPS or s.F > MAX_INPUT_RATIO * s.H:
            return None
        has_forward = self._get_cached(create_forward, s, dnnl.FORWARD_TRAINING)
        return s if has_forward and self._get_cached(create_backward, s) else None

    def recurrent_workspace_size(self, shape: RecurrentShape) -> int:
        """Return the number of float32 elements of the buffer that is saved for the backward pass."""
        return -(-sum(self._saved_sizes(shape)) // 4)

    def recurrent_fprop(
        self,
        shape: RecurrentShape,
        weights: Sequence[Array],
        initial_states: Sequence[Array],
        final_states: Sequence[Array],
        saved: Array | None,
        x: Any,
        y: Array,
    ) -> None:
        """Compute the outputs y (H, T N) of inputs x (F, T N), and the final states, each (N, H).

        ``weights``: W_input, W_recur and b, gate by gate. ``saved``: the buffer for the backward pass, None for
        inference.
        """
        prop_kind = dnnl.FORWARD_INFERENCE if saved is None else dnnl.FORWARD_TRAINING
        recurrent = self._get_cached(create_forward, shape, prop_kind)
        descs = recurrent.primitive.memory_descs
        steps, packed_weights = self._reorder_weights(shape, recurrent, weights)
        if saved is None:
            xs, ys, *workspace = [
                self._byte_buffer(f"onednn {arg}", descs[arg].nbytes) for arg in (dnnl.ARG_SRC, dnnl.ARG_DST)
            ]
        else:
            xs, ys, *workspace = self._split_saved(shape, saved)
        xs = self._to_time_major(shape, x, xs, steps)
        outputs = y if is_time_major(y) else ys
        arrays = xs, *initial_states, *packed_weights, outputs, *final_states, *workspace
        steps.append((recurrent.primitive, arrays))
        if outputs is not y:
            steps.append((self._get_reorder(shape, y, False), (ys, y)))
        self._execute_all(steps)

    def recurrent_bprop(
        self,
        shape: RecurrentShape,
        weights: Sequence[Array],
        initial_states: Sequence[Array],
        final_states: Sequence[Array],
        saved: Array,
        x: Array | None,
        y: Array,
        error: Array,
        final_state_errors: Sequence[Array],
        initial_state_errors: Sequence[Array],
        gradients: Sequence[Array],
        deltas: Any,
        alpha: float,
        beta: float,
    ) -> None:
        """Compute the gradients of the weights and initial states, and ``deltas = alpha dE/dx + beta deltas``.

        ``x`` and ``y`` are those of the forward pass, x None if it had token ids. ``error`` is dE/dy,
        ``final_state_errors`` the gradients with respect to the final states. ``deltas`` may be None.
        """
        recurrent, kind = self._get_cached(create_backward, shape), CELL_KINDS[shape.kind]
        descs = recurrent.primitive.memory_descs
        steps, packed_weights = self._reorder_weights(shape, recurrent, weights)
        xs, ys, workspace = self._split_saved(shape, saved)
        xs, ys = x if x is not None and is_time_major(x) else xs, y if is_time_major(y) else ys
        diff_weights = dnnl.ARG_WEIGHTS + DIFF_ARG_OFFSET
        args = dnnl.ARG_DIFF_DST, dnnl.ARG_DIFF_SRC, diff_weights, diff_weights + 1
        errors, ds, *packed_gradients = [self._byte_buffer(f"onednn {arg}", descs[arg].nbytes) for arg in args]
        onednn_gradients = [self.get_workspace(f"onednn gradient {n}", g.shape, g) for n, g in enumerate(gradients)]
        packed_gradients.append(onednn_gradients[-1])
        for buffer in packed_gradients:
            buffer[...] = 0  # oneDNN adds to them
        errors = self._to_time_major(shape, error, errors, steps)
        result = deltas
        if deltas is not None and (alpha != 1 or beta != 0):
            result = self.get_workspace("result", deltas.shape, deltas)
        diff_src = result if result is not None and is_time_major(result) else ds
        forward = xs, *initial_states, *packed_weights, ys, *final_states, workspace
        backward = diff_src, *initial_state_errors, *packed_gradients, errors, *final_state_errors
        steps.append((recurrent.primitive, (*forward, *backward)))
        pairs = zip(recurrent.gradient_reorders, packed_gradients, onednn_gradients, strict=False)
        steps += [(reorder, pair) for reorder, *pair in pairs]
        if diff_src is not result and result is not None:
            steps.append((self._get_reorder(shape, result, False), (ds, result)))
        self._execute_all(steps)
        for onednn_gradient, gradient in zip(onednn_gradients, gradients, strict=True):
            reorder_gates(kind, onednn_gradient, gradient, kind.gate_order[0])
        if result is not deltas:
            np.multiply(result, alpha, out=result)
            if beta != 0:
                np.add(result, np.multiply(deltas, beta, out=deltas), out=result)
            deltas[...] = result

    def _get_reorder(self, shape: RecurrentShape, x: Array, to_time_major: bool) -> Any:
        """Return the primitive that copies an array (rows, T N) to (T, N, rows), or back."""
        strides = tuple(n // x.itemsize for n in x.strides)
        return self._get_cached(create_sequence_reorder, shape, x.shape[0], strides, to_time_major)

    def _to_time_major(self, shape: RecurrentShape, x: Array, buffer: Array, steps: list[PrimitiveCall]) -> Any:
        """Return an array (rows, T N) as (T, N, rows): itself, or the buffer, with a reorder appended to ``steps``."""
        if is_time_major(x):
            return x
        is_supported = x.dtype == np.float32 and min(x.strides) > 0
        if not is_supported or x.strides[0] % PAGE_BYTES == 0:  # all rows are in the same cache sets
            rows, columns = x.shape
            copy = self.get_workspace("onednn operand", (rows, columns + CACHE_LINE_BYTES // 4), FLOAT32_TEMPLATE)
            np.copyto(copy[:, :columns], x)
            x = copy[:, :columns]
        steps.append((self._get_reorder(shape, x, True), (x, buffer)))
        return buffer

    def _saved_sizes(self, shape: RecurrentShape) -> list[int]:
        """Return the bytes of the saved inputs, outputs and workspace, each with space for its alignment."""
        descs = self._get_cached(create_forward, shape, dnnl.FORWARD_TRAINING).primitive.memory_descs
        return [descs[arg].nbytes + CACHE_LINE_BYTES for arg in (dnnl.ARG_SRC, dnnl.ARG_DST, dnnl.ARG_WORKSPACE)]

    def _split_saved(self, shape: RecurrentShape, saved: Array) -> list[Any]:
        """Return the parts of the saved buffer: inputs, outputs and workspace."""
        memory, ends = saved.reshape(-1).view(np.uint8), list(accumulate(self._saved_sizes(shape)))
        return [memory[start:end] for start, end in pairwise((0, *ends))]

    def _reorder_weights(
        self, shape: RecurrentShape, recurrent: RecurrentPrimitive, weights: Sequence[Array]
    ) -> tuple[list[PrimitiveCall], list[Any]]:
        """Return the steps that reorder the weights for oneDNN, and the buffers that then hold them."""
        descs = recurrent.primitive.memory_descs
        onednn_weights = [self.get_workspace(f"onednn gates {n}", W.shape, W) for n, W in enumerate(weights)]
        for W, out in zip(weights, onednn_weights, strict=True):
            reorder_gates(CELL_KINDS[shape.kind], W, out, 0)
        packed = [
            self._byte_buffer(f"onednn {arg}", descs[arg].nbytes) for arg in (dnnl.ARG_WEIGHTS, dnnl.ARG_WEIGHTS + 1)
        ]
        pairs = zip(recurrent.weight_reorders, onednn_weights, packed, strict=False)
        steps: list[PrimitiveCall] = [(reorder, pair) for reorder, *pair in pairs]
        return steps, [*packed, onednn_weights[-1]]

    def _execute_all(self, steps: Sequence[PrimitiveCall]) -> None:
        """Execute primitives one after another, each on its arrays; byte buffers are aligned to a cache line."""
        nbytes = max(primitive.scratchpad_desc.nbytes for primitive, _ in steps)
        scratchpad = self._byte_buffer("onednn scratchpad", nbytes)
        if self.runtime.has_values:
            self._execute_steps(steps, scratchpad)

    def _execute_steps(self, steps: Sequence[PrimitiveCall], scratchpad: Array) -> None:
        address = aligned_address(scratchpad)
        with steps[0][0].library.use_threads():
            for primitive, arrays in steps:
                addresses = [aligned_address(x) if x.dtype == np.uint8 else data_address(x).value for x in arrays]
                primitive(*addresses, *(address,) * primitive.needs_scratchpad)


def is_time_major(x: Array) -> bool:
    """Return whether the memory order of an array (rows, T N) is that of (T, N, rows)."""
    return bool(x.dtype == np.float32 and x.flags.f_contiguous and x.flags.aligned)


def reorder_gates(kind: CellKind, gates: Array, out: Array, first: int) -> None:
    """Permute gates to oneDNN's order, or back; ``first``: the index of oneDNN's first gate in the output."""
    by_gate = out.reshape(len(kind.gate_order), -1)
    np.take(gates.reshape(by_gate.shape), kind.gate_order, axis=0, out=by_gate, mode="clip")
    if kind.negates_update_gate:
        np.negative(by_gate[first], out=by_gate[first])


# --- factories of primitives -----------------------------------------------------------------------------------------


class RecurrentDesc:
    """Memory and primitive descriptors of a recurrent layer."""

    def __init__(self, library: dnnl.Library, shape: RecurrentShape) -> None:
        self.library, self.shape = library, shape
        T, N, F, H, gates = shape.T, shape.N, shape.F, shape.H, shape.num_gates
        self.num_states = CELL_KINDS[shape.kind].num_states
        state, bias = [contiguous_desc(library, dims).handle for dims in ((1, 1, N, H), (1, 1, gates, H))]
        weights = [library.any_memory_desc((1, 1, n, gates, H)) for n in (F, H)]
        none = [None] * 2 * (shape.kind == "lstm")  # no peephole, no projection
        x, h = (contiguous_desc(library, (T, N, n)).handle for n in (F, H))
        self.memory_descs = [x, *[state] * self.num_states, *weights, *none, bias, h, *[state] * self.num_states]
        self.direction = DIRECTIONS[shape.is_reversed]

    def forward_desc(self, prop_kind: int) -> dnnl.Handle:
        """Return the primitive descriptor of the forward pass."""
        return self._primitive_desc("forward", prop_kind, *self.memory_descs, c_uint(0))

    def backward_desc(self) -> dnnl.Handle:
        """Return the primitive descriptor of the backward pass; gradients have the descriptors of their arguments."""
        hint = self.forward_desc(dnnl.FORWARD_TRAINING)
        return self._primitive_desc("backward", dnnl.BACKWARD, *self.memory_descs, *self.memory_descs, c_uint(0), hint)

    def _primitive_desc(self, name: str, prop_kind: int, *args: object) -> dnnl.Handle:
        library, kind = self.library, self.shape.kind
        args = library.engine, prop_kind, self.direction, *args, library.default_attr
        return library.create("primitive_desc", f"{kind}_{name}_primitive_desc_create", *args)

    def create_primitive(self, primitive_desc: dnnl.Handle, *more: int, is_backward: bool = False) -> dnnl.Primitive:
        """Create the primitive with inputs, states, weights, bias, outputs, final states, ``more`` and gradients."""
        states = range(self.num_states)
        initial_states, final_states = ([n + 1 + k for k in states] for n in (dnnl.ARG_SRC, dnnl.ARG_DST))
        args = [
            dnnl.ARG_SRC,
            *initial_states,
            dnnl.ARG_WEIGHTS,
            dnnl.ARG_WEIGHTS + 1,
            dnnl.ARG_BIAS,
            dnnl.ARG_DST,
            *final_states,
            *more,
        ]
        if is_backward:
            args += [arg + DIFF_ARG_OFFSET for arg in args if arg not in more]
        return dnnl.Primitive(
            self.library, primitive_desc, {arg: self.query_memory_desc(primitive_desc, arg) for arg in args}
        )

    def query_memory_desc(self, primitive_desc: dnnl.Handle, arg: int) -> dnnl.MemoryDesc:
        """Return the memory descriptor of an argument."""
        library = self.library
        desc = c_void_p(library.functions.dnnl_primitive_desc_query_md(primitive_desc, QUERY_EXEC_ARG, arg))
        return dnnl.MemoryDesc(library.functions, library.create("memory_desc", "memory_desc_clone", desc))

    def gates_desc(self, n: int) -> dnnl.MemoryDesc:
        """Return the descriptor of neonlite's weights of n inputs, gate by gate."""
        gates, H = self.shape.num_gates, self.shape.H
        return self.library.memory_desc((1, 1, n, gates, H), (gates * H * n, gates * H * n, 1, H * n, n))


def create_forward(library: dnnl.Library, shape: RecurrentShape, prop_kind: int) -> RecurrentPrimitive:
    """Create the forward pass, from inputs, initial states and weights to outputs, final states and workspace."""
    desc = RecurrentDesc(library, shape)
    more = [dnnl.ARG_WORKSPACE] * (prop_kind == dnnl.FORWARD_TRAINING)
    primitive = desc.create_primitive(desc.forward_desc(prop_kind), *more)
    weights = zip((shape.F, shape.H), (dnnl.ARG_WEIGHTS, dnnl.ARG_WEIGHTS + 1), strict=True)
    reorders = [library.create_reorder(desc.gates_desc(n), primitive.memory_descs[arg]) for n, arg in weights]
    return RecurrentPrimitive(primitive, reorders, [])


def create_backward(library: dnnl.Library, shape: RecurrentShape) -> RecurrentPrimitive:
    """Create the backward pass. Its arguments are those of the forward pass, then their gradients."""
    desc = RecurrentDesc(library, shape)
    primitive = desc.create_primitive(desc.backward_desc(), dnnl.ARG_WORKSPACE, is_backward=True)
    descs, weights = (
        primitive.memory_descs,
        list(zip((shape.F, shape.H), (dnnl.ARG_WEIGHTS, dnnl.ARG_WEIGHTS + 1), strict=True)),
    )
    weight_reorders = [library.create_reorder(desc.gates_desc(n), descs[arg]) for n, arg in weights]
    gradient_reorders = [library.create_reorder(descs[arg + DIFF_ARG_OFFSET], desc.gates_desc(n)) for n, arg in weights]
    return RecurrentPrimitive(primitive, weight_reorders, gradient_reorders)


def create_sequence_reorder(
    library: dnnl.Library, shape: RecurrentShape, rows: int, strides: tuple[int, int], to_time_major: bool
) -> dnnl.Primitive:
    """Create the copy of an array (rows, T N) to (T, N, rows), or back."""
    dims = shape.T, shape.N, rows
    down, across = strides
    outer, inner = library.memory_desc(dims, (shape.N * across, across, down)), contiguous_desc(library, dims)
    return library.create_reorder(outer, inner) if to_time_major else library.create_reorder(inner, outer)


def contiguous_desc(library: dnnl.Library, dims: Sequence[int]) -> dnnl.MemoryDesc:
    """Return the descriptor of a C-contiguous array."""
    return library.memory_desc(dims, contiguous_strides(tuple(dims)))
