"""oneDNN as an accelerator of the runtimes for NumPy arrays: recurrent layers, and mixins for the runtimes' classes.

Without oneDNN installed, NumPy or MKL computes everything; see ``neonlite.backend.runtimes.accelerated``. The executor
merges consecutive elementwise steps of a fused stage into chains that oneDNN runs in one pass. A step is appended to
the chain that computes its operand if no other step reads this operand. Results are bitwise equal to those without
chains, except for exp, tanh and the sigmoid, and the sign of a zero returned by maximum or minimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from ctypes import c_uint, c_void_p
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.planning import Plan
from neonlite.backend.planning.steps import Step
from neonlite.backend.runtimes import data_address
from neonlite.backend.runtimes.numpy import BlockedExecutor, NumPyPrimitives
from neonlite.backend.runtimes.numpy.templates import OP_COST
from neonlite.backend.runtimes.onednn import bindings as dnnl, post_ops
from neonlite.backend.runtimes.onednn.batch_norm import OneDNNBatchNorm
from neonlite.backend.runtimes.onednn.bindings import version_info
from neonlite.backend.runtimes.onednn.convolution import CACHE_LINE_BYTES, aligned_address
from neonlite.backend.runtimes.onednn.products import OneDNNMatmul
from neonlite.ops import OPS
from neonlite.ops.functions import Shape, contiguous_strides
from neonlite.tree_structure import Constant
from neonlite.typing import NumPyArray as Array

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


# --- the mixins: the executor, and the primitives ---

# elements times cost, below which a chain is slower than NumPy; by thresholds.py with one thread, with AVX-512 and
# without: the break-even is 1 << 17 for the sigmoid, above 1 << 20 for tanh and exp
MIN_CHAIN_COST = 1 << 18
MIN_EXACT_CHAIN_ELEMENTS = 1 << 15  # below it, a chain without an op of ``INEXACT_OPS`` is slower than NumPy
ZERO_COMPARISONS = {"gt": "gt_zero", "lt": "lt_zero"}  # names of comparisons with 0 in chains
MAX_OP_COST = 1 << 7  # an upper bound of the cost of a chain per element


class ChainBuilder(NamedTuple):
    """A chain under construction: its ops, its operands, and the steps it replaces."""

    ops: list[post_ops.ChainOp]
    operands: list[int | Constant]
    steps: list[int]

    @property
    def cost(self) -> int:
        """The cost per element."""
        return sum(OP_COST.get(link.op, 1) for link in self.ops)

    @property
    def is_exact(self) -> bool:
        """Whether results are bitwise equal to NumPy's."""
        return not any(link.op in post_ops.INEXACT_OPS for link in self.ops)

    def operand_index(self, x: int | Constant | None) -> int | None:
        """Return the index of an operand, added if it is new; None for None."""
        if x is None:
            return None
        if x not in self.operands:
            self.operands.append(x)
        return self.operands.index(x)


def fuse_chains(
    plan: Plan, steps: dict[int, Step], domain: Shape, live_out: Collection[int]
) -> tuple[dict[int, Step], dict[int, post_ops.FusedChain]]:
    """Return the steps of a stage with each chain merged into one step, and {last value of a chain: chain}.

    Values in ``live_out`` are read outside of the stage. A single op becomes a chain only if every step of the stage is
    part of a chain.
    """
    size = math.prod(domain)
    if size * MAX_OP_COST < MIN_CHAIN_COST:  # small trees do not load oneDNN
        return steps, {}

    def is_scalar(x: int | Constant) -> bool:
        return not plan.dtype(x)

    def is_full_shape(x: int | Constant) -> bool:
        return isinstance(x, int) and not is_scalar(x) and plan.shape(x) == domain

    def is_scaling(builder: ChainBuilder, link: post_ops.ChainOp) -> bool:
        return link.op == "neg" or (link.op == "mul" and is_scalar(builder.operands[link.operand or 0]))

    readers = count_readers(steps)
    builders: dict[int, ChainBuilder] = {}
    for v, step in (short_steps := fuse_sigmoid(steps, readers, live_out)).items():
        is_candidate = (
            step.kind == "elementwise" and step.shape == domain and step.dtype == step.compute_dtype == "float32"
        )
        if not is_candidate or not all(is_scalar(x) or plan.dtype(x) == "float32" for x in step.inputs):
            continue
        name, inputs = step.op.name, step.inputs
        if name == "mul" and inputs[0] == inputs[1]:
            name, inputs = "sqr", inputs[:1]
        elif name == "div" and inputs[0] == Constant(1):
            name, inputs = "reciprocal", inputs[1:]
        elif name in ZERO_COMPARISONS and inputs[1] == Constant(0):
            name, inputs = ZERO_COMPARISONS[name], inputs[:1]
        if len(inputs) > 2 or len(set(inputs)) < len(inputs):
            continue
        for n, x in enumerate(inputs):
            before = builders.get(x) if isinstance(x, int) and x not in live_out and readers[x] == 1 else None
            if before is None or len(before.ops) == post_ops.MAX_CHAIN_OPS:
                continue
            other = next((y for y in inputs if y != x), None)
            multiple = other == before.operands[0] and all(is_scaling(before, link) for link in before.ops)
            if post_ops.can_extend(
                before.ops, name, is_reversed=bool(n), is_binary=other is not None, propagates_nan=multiple
            ):
                builders[v] = before
                before.ops.append(post_ops.ChainOp(name, before.operand_index(other), bool(n)))
                before.steps.append(v)
                del builders[x]  # type: ignore[arg-type]
                break
        else:
            is_reversed = not is_full_shape(inputs[0]) and name != "div"
            first, *rest = reversed(inputs) if is_reversed else inputs
            if is_full_shape(first) and post_ops.can_start(name, all(map(is_scalar, rest))):
                builders[v] = builder = ChainBuilder([], [first], [v])
                builder.ops.append(
                    post_ops.ChainOp(name, builder.operand_index(rest[0] if rest else None), is_reversed)
                )
    are_all_chained = sum(len(builder.steps) for builder in builders.values()) == len(short_steps)
    total_cost = sum(builder.cost for builder in builders.values())
    # in a stage with sums, a chain also computes the product that NumPy would compute as part of a sum
    needs_all = size >= MIN_EXACT_CHAIN_ELEMENTS or any(step.kind == "reduction" for step in steps.values())
    chains = {v: builder for v, builder in builders.items() if are_all_chained or len(builder.ops) > 1}
    chains = {
        v: builder
        for v, builder in chains.items()
        if size * (total_cost if are_all_chained else builder.cost) >= MIN_CHAIN_COST
        and (needs_all or not builder.is_exact)
    }
    if not chains or dnnl.get_library() is None:
        return short_steps, {}
    inner = {u for v, builder in chains.items() for u in builder.steps if u != v}
    merged_steps = {v: step for v, step in short_steps.items() if v not in inner}
    fused = {}
    for v, builder in chains.items():
        scalars = frozenset(n for n, x in enumerate(builder.operands) if is_scalar(x))
        fused[v] = post_ops.get_chain(tuple(builder.ops), len(builder.operands), scalars)
        merged_steps[v] = merged_steps[v]._replace(inputs=tuple(builder.operands))
    return merged_steps, fused


def count_readers(steps: dict[int, Step]) -> dict[int | Constant, int]:
    """Return the number of steps that read each value."""
    readers: dict[int | Constant, int] = {}
    for step in steps.values():
        for x in dict.fromkeys(step.inputs):
            readers[x] = readers.get(x, 0) + 1
    return readers


def fuse_sigmoid(
    steps: dict[int, Step], readers: dict[int | Constant, int], live_out: Collection[int]
) -> dict[int, Step]:
    """Return the steps with ``1 / (1 + exp(-x))`` merged into one ``sig`` step, which has the same template."""
    result = dict(steps)

    def match_step(v: int | Constant | None, name: str, number: int | None = None) -> int | Constant | None:
        """Return the operand of step v other than ``number`` if v is the op ``name`` and has one reader; else None."""
        step = steps.get(v) if isinstance(v, int) and v not in live_out and readers.get(v) == 1 else None
        if step is None or step.op.name != name or not step.dtype == step.compute_dtype == "float32":
            return None
        others = [x for x in step.inputs if number is None or x != Constant(number)]
        return others[0] if len(others) == 1 else None

    for v, step in steps.items():
        if step.op.name == "div" and step.inputs[0] == Constant(1):
            total = step.inputs[1]
            power = match_step(total, "add", 1)
            negative = match_step(power, "exp")
            x = match_step(negative, "neg")
            x = match_step(negative, "mul", -1) if x is None else x
            if x is not None:
                result[v] = step._replace(op=OPS["sig"], inputs=(x,))
                for inner in (total, power, negative):
                    del result[inner]  # type: ignore[arg-type]
    return result


# --- registration ---

__all__ = ["MIXINS", "version_info"]


class OneDNNExecutor(BlockedExecutor):
    """The executor for NumPy arrays. Without oneDNN installed, NumPy computes all steps."""

    def fuse_chains(
        self, plan: Plan, steps: dict[int, Step], domain: Shape, live_out: Collection[int]
    ) -> tuple[dict[int, Step], dict[int, post_ops.FusedChain]]:
        """Return the steps of a stage with each chain merged into one, and {last value of a chain: chain}."""
        return fuse_chains(plan, steps, domain, live_out)

    def find_function(self, step: Step, size: int, in_order: bool) -> post_ops.EltwiseFunction | None:
        """Return oneDNN's function for a step on ``size`` elements, or None."""
        if in_order and step.op.name == "stop_gradient":  # oneDNN's copy is a transpose
            return None
        function = post_ops.ELTWISE_FUNCTIONS.get(step.op.name) if step.dtype == "float32" else None
        return function if function and function.min_size <= size else None


class OneDNNPrimitives(OneDNNRecurrent, OneDNNMatmul):
    """Image primitives, recurrent layers and large matrix products of float32 by oneDNN; the rest by the base class."""


MIXINS: dict[type, type] = {BlockedExecutor: OneDNNExecutor, NumPyPrimitives: OneDNNPrimitives}
