"""The ops for recurrence over time in plans: by a fused primitive of the runtime, or by a compiled plan of one step.

A forward step saves what other steps of the plan read: its backward step the gates and more, and ``lstm_state`` the
last c. Without a forward step in the plan, these compute the forward pass again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from threading import get_ident
from typing import Any, NamedTuple

from neonlite.backend.planning import Plan
from neonlite.backend.planning.steps import Step
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.tensor import Tensor
from neonlite.ops.functions import Shape, contiguous_strides
from neonlite.ops.recurrent import CELLS, activation_names, derivatives_of, functions_of
from neonlite.tree_structure import untraced
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, NativeArray as Array

CompilePlan = Callable[[Plan], Callable[[Sequence[Array], Sequence[Array]], None]]  # of an executor
FUSED_FUNCTIONS = ["tanh", "sig"]  # the activation functions of fused primitives
BACKWARD, STATE = "_backward", "_state"  # ends of the names of the ops that read what a forward step saves


def find_recurrences(
    primitives: ReferencePrimitives, plan: Plan, compile_plan: CompilePlan
) -> dict[int, tuple[Callable[..., None], Recurrence]]:
    """Return, for the values of a plan that are recurrent steps, what computes them from their operands.

    ``compile_plan``: the function of the executor, for the plans of single steps.
    """
    steps = [(v, step, *split_name(step)) for v, step in plan.numbered_steps]
    steps = [(v, step, cell, end) for v, step, cell, end in steps if cell in CELLS]
    sources = {v: x for v, step, *_ in steps if (x := find_forward(plan, step)) is not None}
    readers = {(sources[v], end) for v, _, _, end in steps if v in sources}
    found: dict[int, tuple[Callable[..., None], Recurrence]] = {}
    for v, step, _, end in steps:
        shapes, dtype = [*map(plan.shape, step.inputs), step.shape], step.dtype
        if dtype not in FLOAT_DTYPES or any(0 in shape for shape in shapes):
            continue
        if v in sources:
            recurrence = found[sources[v]][1]
        else:
            planned = PlannedStep(primitives, plan, step, operands_of(step), f"recurrence {len(found)}", compile_plan)
            recurrence = make_recurrence(planned, end == BACKWARD or (v, BACKWARD) in readers)
            recurrence.saves_state = (v, STATE) in readers
        run = recurrence.run_state if end else recurrence.run_forward
        if end == BACKWARD:
            run = recurrence.run_backward(reads_before(plan, v, math.prod(plan.shape(operands_of(step)[0]))))
        found[v] = run, recurrence
    return found


def split_name(step: Step) -> tuple[str, str]:
    """Return the name of the cell of a recurrent step, and the end of that of its op."""
    name = step.op.name
    end = next((end for end in (BACKWARD, STATE) if name.endswith(end)), "")
    return name.removesuffix(end), end


def operands_of(step: Step) -> Sequence[Any]:
    """Return the values of x, W_input, W_recur, b and the initial states of a recurrent step."""
    return step.inputs[num_results(step) :]


def num_results(step: Step) -> int:
    """Return how many operands, errors and the result y, precede those of the forward step."""
    cell, end = split_name(step)
    return 1 + CELLS[cell].num_states if end == BACKWARD else int(end == STATE)


def find_forward(plan: Plan, step: Step) -> int | None:
    """Return the value of the forward step of which a step reads what it saves; None if the plan has none."""
    count = num_results(step)
    y: Any = step.inputs[count - 1] if count else None
    source = plan.find_step(y) if isinstance(y, int) else None
    is_same = source is not None and (source.op.name, source.inputs, source.attrs) == (
        split_name(step)[0],
        operands_of(step),
        step.attrs,
    )
    return y if is_same else None


def reads_before(plan: Plan, v: int, column: int) -> bool:
    """Return whether the plan reads a column of a row before the given one."""
    readers = [step for step in plan.steps if v in step.inputs]
    return v in plan.outputs or any(step.op.name != "slice" or step.attrs["index"][1][0] < column for step in readers)


class PlannedStep(NamedTuple):
    """A recurrent step of a plan, and the values of x, W_input, W_recur, b and the initial states."""

    primitives: ReferencePrimitives
    plan: Plan
    step: Step
    operands: Sequence[int]
    name: str
    compile_plan: CompilePlan


def make_recurrence(planned: PlannedStep, is_training: bool) -> Recurrence:
    """Return what computes a recurrent step: a fused primitive if the runtime has a fast one for it."""
    key = find_fused(planned.primitives, planned.plan, planned.step)
    return StepRecurrence(planned, is_training) if key is None else FusedRecurrence(planned, is_training, key)


def find_fused(primitives: ReferencePrimitives, plan: Plan, step: Step) -> Any:
    """Return the key of the fused primitive that computes a step; None if the runtime has no fast one for it."""
    kind = split_name(step)[0]
    if kind not in CELLS or activation_names(step.attrs) != FUSED_FUNCTIONS:
        return None
    x, _, W_recur, *_ = map(plan.shape, operands_of(step))
    T, reverse = step.attrs["steps"], step.attrs["reverse"]
    return primitives.recurrent_shape((kind, T, x[1] // T, x[0], W_recur[1], reverse), compute_dtype(step))


def store_by_time(primitives: ReferencePrimitives, plan: Plan) -> None:
    """Let a plan store sequences (H, T N) as (T N, H), if fused primitives and products are all that access them.

    This is the memory order of fused primitives, which otherwise copy sequences, and products are as fast in both.
    """
    fused = {v for v, step in plan.numbered_steps if find_fused(primitives, plan, step) is not None}
    if not fused:
        return
    products = {v for v, step in plan.numbered_steps if step.op.name == "dot"}

    def readers(x: int) -> list[int]:
        return [v for v, step in plan.numbered_steps if x in step.inputs]

    def are_suitable(x: int) -> bool:
        """Return whether what reads a value is as fast if it is stored by time."""
        return all(v in fused | products or is_suitable_view(v) for v in readers(x))

    def is_suitable_view(v: int) -> bool:
        """Return whether a value is a slice, which is read as fast with a stride, or a transpose for a product."""
        name = plan.step_of(v).op.name
        return (name == "slice" and not is_reshaped(v)) or (name == "transpose" and are_suitable(v))

    def is_reshaped(x: int) -> bool:
        """Return whether a reshape, which is a view of the strides that were planned, reads a value or its views."""
        views = [(v, plan.step_of(v).op.name) for v in readers(x) if plan.step_of(v).kind == "view"]
        return any(name == "reshape" or is_reshaped(v) for v, name in views)

    for v in plan.offsets:
        step = plan.step_of(v)
        is_sequence = v in fused and not split_name(step)[1]
        is_read = v in products and any(y in fused for y in readers(v))
        if (is_sequence or is_read) and len(step.shape) == 2 and step.dtype == "float32" and are_suitable(v):
            plan.set_strides(v, (1, step.shape[0]))


def compute_dtype(step: Step) -> str:
    """Return the dtype in which a recurrent step is computed: float32 for 16-bit floats."""
    return "float32" if step.dtype in HALF_DTYPES else step.dtype


class Recurrence(ABC):
    """All steps of a recurrent step of a plan.

    ``is_training``: the forward pass saves values for the backward pass. ``saves_state``: and the last c of an LSTM.
    """

    saves_state = False

    def __init__(self, planned: PlannedStep, is_training: bool) -> None:
        self.primitives, self.plan, self.step, self.operands, self.name, _ = planned
        self.is_training, self.T = is_training, self.step.attrs["steps"]
        self.shapes: list[Shape] = [*map(self.plan.shape, self.operands)]
        self.H, self.N = self.shapes[2][1], self.shapes[0][1] // self.T
        self.plans: list[Plan] = []  # of one step
        # {thread: what the last forward pass saved}, for the backward pass and for the step that reads the last c
        self.saved: dict[int, Any] = {}
        self.saved_states: dict[int, Array] = {}

    @abstractmethod
    def forward(self, operands: Sequence[Array], y: Array) -> Any:
        """Write h of all steps, and return what the backward pass reads."""

    @abstractmethod
    def last_cell_state(self, saved: Any) -> Array:
        """Return c after the last step, (H, N), of what ``forward`` has returned."""

    @abstractmethod
    def backward(
        self, errors: Sequence[Array], y: Array, operands: Sequence[Array], saved: Any, gradients: Sequence[Any]
    ) -> None:
        """Write the gradients of the operands, of which that of x may be None, given the errors of y and the last c."""

    def run_forward(self, *arrays: Array) -> None:
        """Compute the forward step from its operands and its result."""
        *operands, y = self.widen(arrays)
        saved = self.forward(operands, y)
        if self.is_training:
            self.saved[get_ident()] = saved
        if self.saves_state:
            self.saved_states[get_ident()] = self.last_cell_state(saved)
        if y is not arrays[-1]:
            arrays[-1][...] = y

    def run_state(self, *arrays: Array) -> None:
        """Compute c after the last step from the operands of that step and its result."""
        state = self.saved_states.pop(get_ident(), None)
        if state is None:
            y, *operands, _ = self.widen(arrays)
            state = self.last_cell_state(self.forward(operands, self.workspace("outputs", y.shape, y)))
        arrays[-1][...] = state

    def run_backward(self, needs_dx: bool) -> Callable[..., None]:
        """Return the function that computes the backward step from its operands and its result."""
        ends = [0, *accumulate(map(math.prod, self.shapes))]
        reshape, num_errors = self.primitives.runtime.reshape, len(self.shapes) - 4

        def run(*arrays: Array) -> None:
            *values, row = self.widen(arrays)
            *errors, y = values[: num_errors + 1]
            operands = values[num_errors + 1 :]
            saved = self.saved.get(get_ident())
            if saved is None:
                saved = self.forward(operands, self.workspace("outputs", y.shape, y))
            parts = zip(pairwise(ends), self.shapes, strict=True)
            gradients: list[Any] = [reshape(row[:, start:end], shape) for (start, end), shape in parts]
            if not needs_dx:
                gradients[0] = None
            self.backward(errors, y, operands, saved, gradients)
            if row is not arrays[-1]:
                arrays[-1][...] = row

        return run

    def widen(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the operands and the result of the step, copied if they are 16-bit floats."""
        xp = self.primitives.xp
        return [xp.astype(x, xp.float32) for x in arrays] if self.step.dtype in HALF_DTYPES else arrays

    def workspace(self, purpose: str, shape: Shape, like: Array) -> Array:
        """Return an uninitialized array."""
        return self.primitives.get_workspace(f"{purpose} of {self.name}", shape, like)


class FusedRecurrence(Recurrence):
    """All steps by a primitive of the runtime."""

    def __init__(self, planned: PlannedStep, is_training: bool, key: Any) -> None:
        super().__init__(planned, is_training)
        self.key = key

    def forward(self, operands: Sequence[Array], y: Array) -> Any:
        """Write h of all steps, and return the reserve space and the initial and final states, (N, H) each."""
        x, *weights = operands[:4]
        states = operands[4:]
        initial, final = (
            [self.workspace(f"{name} state {k}", (self.N, self.H), x) for k in range(len(states))]
            for name in ("initial", "final")
        )
        for array, state in zip(initial, states, strict=True):
            array[...] = state.T
        size = self.primitives.recurrent_workspace_size(self.key) if self.is_training else 0
        reserve = self.workspace("reserve space", (size,), x) if size else None
        self.primitives.recurrent_fprop(self.key, weights, initial, final, reserve, x, y)
        return reserve, initial, final

    def last_cell_state(self, saved: Any) -> Array:
        """Return c after the last step, (H, N), of what ``forward`` has returned."""
        return saved[2][1].T

    def backward(
        self, errors: Sequence[Array], y: Array, operands: Sequence[Array], saved: Any, gradients: Sequence[Any]
    ) -> None:
        """Write the gradients of the operands."""
        (x, *weights), (reserve, initial, final) = operands[:4], saved
        final_errors, initial_errors = (
            [self.workspace(f"{name} error {k}", state.shape, x) for k, state in enumerate(initial)]
            for name in ("final", "initial")
        )
        final_errors[0][...] = 0
        for array, error in zip(final_errors[1:], errors[1:], strict=True):
            array[...] = error.T
        dx, *dweights = gradients[:4]
        arrays = weights, initial, final, reserve, x, y, errors[0], final_errors, initial_errors, dweights, dx
        self.primitives.recurrent_bprop(self.key, *arrays, 1.0, 0.0)
        for gradient, error in zip(gradients[4:], initial_errors, strict=True):
            gradient[...] = error.T


class StepRecurrence(Recurrence):
    """A compiled plan of one step, run for all steps; weight gradients are products over all steps."""

    def __init__(self, planned: PlannedStep, is_training: bool) -> None:
        super().__init__(planned, is_training)
        self.cell, names = CELLS[split_name(self.step)[0]], activation_names(self.step.attrs)
        self.order = [*range(self.T)][:: -1 if self.step.attrs["reverse"] else 1]
        be = self.plan.targets[0].be
        self.be, self.compile_plan = be, planned.compile_plan
        state, dz_shape = (self.H, self.N), (self.shapes[1][0], self.N)
        W_recur = self.placeholder(self.plan.shape(self.operands[2]), self.plan.is_contiguous(self.operands[2]))
        e, y = (self.placeholder(state, False) for _ in range(2))
        z = [self.placeholder((gates * self.H, self.N)) for gates in self.cell.gates_of_parts]
        previous, states, errors = ([self.placeholder(state) for _ in range(self.cell.num_states)] for _ in range(3))
        saved = [self.placeholder(state) for _ in range(self.cell.num_saved)]
        with untraced():
            new, others, sums = self.cell.step(be, z, previous, W_recur, functions_of(be, names))
            targets, trees = [y, *states], [be.stop_gradient(new[0]), *new]  # a value is written to one target
            if is_training:
                targets, trees = [*targets, *saved], [*trees, *others]
            aliases = [(len(targets) + n, n, "exact") for n in range(len(z))]  # products are added to z
            self.run_step = self.compile([*trees, *sums], [*targets, *z], [*z, W_recur, *previous], aliases)
            if is_training:
                derivatives = derivatives_of(be, names)
                total = [e + errors[0], *errors[1:]]
                dz, new = self.cell.step_backward(be, total, previous, states, saved, W_recur, derivatives)
                targets, leaves = [self.placeholder(dz_shape), *errors], [e, *errors, *previous]
                self.run_step_backward = self.compile([dz, *new], targets, [*leaves, *states, *saved, W_recur])

    def placeholder(self, shape: Shape, is_contiguous: bool = True) -> Tensor:
        """Return a tensor without an array, for plans; with gaps unless it is contiguous."""
        strides = None if is_contiguous else tuple(2 * n for n in contiguous_strides(shape))
        return Tensor(None, self.be.tensor_info(shape, compute_dtype(self.step), strides))

    def compile(
        self,
        trees: Sequence[Any],
        targets: Sequence[Tensor],
        leaves: Sequence[Tensor],
        aliases: Sequence[tuple[int, int, str]] = (),
    ) -> Callable[..., None]:
        """Return the function ``run(targets, leaves)`` of a plan, which uses the arena after the temporaries."""
        infos = [x.info for x in targets]
        plan = Plan(trees, {id(x): x for x in leaves}, infos, aliases, arena_start=self.plan.arena_bytes)
        run = self.compile_plan(plan)
        self.plans.append(plan)
        return run

    def initial_states(self, operands: Sequence[Array]) -> list[Array]:
        """Return the initial states as contiguous arrays, which the plans of steps expect."""
        states = list(operands[4:])
        for k, v in enumerate(self.operands[4:]):
            if not self.plan.is_contiguous(v):
                copy = self.workspace(f"initial state {k}", states[k].shape, states[k])
                copy[...] = states[k]
                states[k] = copy
        return states

    def columns(self, x: Array, t: int) -> Array:
        """Return the columns of a step."""
        return x[:, t * self.N : (t + 1) * self.N]

    def forward(self, operands: Sequence[Array], y: Array) -> Any:
        """Write h of all steps, and return the states and saved values of each step, (T, number, H, N)."""
        (x, W_input, W_recur, b), states = operands[:4], self.initial_states(operands)
        num_states = len(states)
        count = num_states + self.cell.num_saved if self.is_training else num_states
        buffer = self.workspace("steps", (self.T if self.is_training else 2, count, self.H, self.N), x)
        z = self.workspace("gates", (self.T, W_input.shape[0], self.N), x)
        if not self.primitives.runtime.has_values:
            return buffer
        xp = self.primitives.xp
        self.primitives.gemm(W_input, xp.permute_dims(xp.reshape(x, (-1, self.T, self.N)), (1, 0, 2)), z)
        z += b
        ends = [0, *accumulate(self.cell.gates_of_parts)]
        for i, t in enumerate(self.order):
            values = [buffer[t if self.is_training else i % 2, k, ...] for k in range(count)]
            parts = [z[t, start * self.H : end * self.H, ...] for start, end in pairwise(ends)]
            self.run_step([self.columns(y, t), *values, *parts], [*parts, W_recur, *states])
            states = values[:num_states]
        return buffer

    def last_cell_state(self, saved: Any) -> Array:
        """Return c after the last step, (H, N), of what ``forward`` has returned."""
        return saved[self.order[-1] if self.is_training else (self.T - 1) % 2, 1, ...]

    def backward(
        self, errors: Sequence[Array], y: Array, operands: Sequence[Array], saved: Any, gradients: Sequence[Any]
    ) -> None:
        """Write the gradients of the operands."""
        (x, W_input, W_recur), states = operands[:3], self.initial_states(operands)
        num_states, T, N = len(states), self.T, self.N
        by_time = self.workspace("gates", (T, W_recur.shape[0], N), x)
        dz = self.workspace("errors of gates", (W_recur.shape[0], T, N), x)
        buffers = self.workspace("errors", (2, num_states, self.H, N), x)
        if not self.primitives.runtime.has_values:
            return
        values = [[saved[t, k, ...] for k in range(saved.shape[1])] for t in self.order]
        e, *final_errors = errors
        errors, targets = ([buffers[i, k, ...] for k in range(num_states)] for i in range(2))
        for error, value in zip(errors, [0, *final_errors], strict=True):
            error[...] = value
        for i in reversed(range(T)):
            t, previous = self.order[i], values[i - 1][:num_states] if i else states
            self.run_step_backward(
                [by_time[t, ...], *targets], [self.columns(e, t), *errors, *previous, *values[i], W_recur]
            )
            errors, targets = targets, errors
        gemm, xp, (dx, dW_input, dW_recur, db, *dstates) = self.primitives.gemm, self.primitives.xp, gradients
        dz[...] = xp.permute_dims(by_time, (1, 0, 2))
        dz = self.primitives.runtime.reshape(dz, (-1, T * N))
        rows, first = self.cell.gates_of_h * self.H, self.order[0]
        gemm(self.columns(dz, first)[:rows, :], states[0].T, dW_recur[:rows, :])
        if T > 1:
            later, before = (slice(N, None), slice(None, -N))[:: 1 if first == 0 else -1]
            gemm(dz[:rows, later], y[:, before].T, dW_recur[:rows, :], 1.0, 1.0)
        if rows < dz.shape[0]:  # (T, H, N) -> (T N, H)
            rh = self.workspace("r h", (T, N, self.H), x)
            rh[...] = xp.permute_dims(saved[:, num_states, ...], (0, 2, 1))
            gemm(dz[rows:, :], self.primitives.runtime.reshape(rh, (T * N, self.H)), dW_recur[rows:, :])
        gemm(dz, x.T, dW_input)
        db[...] = xp.sum(dz, axis=1, keepdims=True)
        if dx is not None:
            gemm(W_input.T, dz, dx)
        for gradient, error in zip(dstates, errors, strict=True):
            gradient[...] = error
