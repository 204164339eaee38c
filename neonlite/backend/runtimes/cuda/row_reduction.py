"""Fuse stages that reduce the same rows (softmax, normalization) into one kernel or a few passes.

A plan has one stage per reduction, and writes intermediate values to memory. Here these stages are merged into one, of
one of three kinds:

* ``fused``: a kernel reads rows once, and computes elementwise steps on the results, such as ``x + sum(y)``, in its
  epilogue;
* ``row_tile``: one kernel that keeps a row (or a column) in registers, so that memory is read once and written once;
* ``row_passes``, for longer rows: only operands and results are in memory, and elementwise values are recomputed in
  each pass. A sum that depends on another reduction of the same elements, as in softmax and variance, is computed in
  the same pass by an online reduction (``ONLINE_TEMPLATES``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from neonlite.backend.planning import Plan
from neonlite.backend.planning.steps import Stage, Step
from neonlite.backend.runtimes.cuda import codegen, op_templates
from neonlite.ops import OPS, Op
from neonlite.ops.functions import Axes, reduction_shape
from neonlite.tree_structure import Constant
from neonlite.typing import FLOAT_DTYPES, NativeArray, dtype_bits

MAX_LANE_REGISTERS = 64  # 32-bit registers for a lane's part of a row
MAX_UNROLLED_STEPS = 2048  # steps in the unrolled loops of a lane, which bounds compile times
MAX_BLOCK_THREADS = 512  # threads of a block: 128 registers each
MIN_COALESCED_COLUMNS = 16  # adjacent columns of a block: 64 bytes
MIN_PARALLEL_LANES = 1 << 15  # lanes that a kernel should have, if rows are long enough

# Array-API implementations of the online reductions, for executors without kernels.
ONLINE_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "online_max": lambda xp, x, **at: xp.max(x, **at),
    "online_exp_sum": lambda xp, x, axis, **_: xp.sum(xp.exp(x - xp.max(x, axis=axis, keepdims=True)), axis=axis),
    "online_count": lambda xp, x, **at: xp.sum(xp.ones_like(x), **at),
    "online_mean": lambda xp, x, **at: xp.mean(x, **at),
    "online_m2": lambda xp, x, axis, **_: xp.sum((x - xp.mean(x, axis=axis, keepdims=True)) ** 2, axis=axis),
}
ONLINE_OPS = {name: Op(name, run, None, kind="reduction") for name, run in ONLINE_REDUCTIONS.items()}


def fuse_row_stages(plan: Plan) -> None:
    """Fuse stages of a plan that reduce the same rows, where that reduces memory traffic."""
    fused: list[Stage] = []
    pending = list(plan.stages)
    while pending:
        match = _match_row_stages(plan, pending)
        for strategy in (_fuse_epilogue, _fuse_tile, _fuse_passes) if match else ():
            before, stage, after = match  # type: ignore[misc]
            if trial := strategy(plan, [*fused, *before], stage, after):
                plan.__dict__.update(trial.__dict__)
                fused, pending = plan.stages[: len(fused) + len(before) + 1], after
                break
        else:
            fused.append(pending.pop(0))


def _match_row_stages(plan: Plan, stages: list[Stage]) -> tuple[list[Stage], Stage, list[Stage]] | None:
    """Merge the stages that reduce the rows of the first; return the stages before, the merged one and those after."""
    first, domain = stages[0], stages[0].domain
    cuts = _reduced_axes(plan, first)
    if first.kind != "fused" or len(cuts) != 1 or cuts == {()} or not math.prod(domain):
        return None
    result_shape = reduction_shape(domain, axis=next(iter(cuts)))
    group, before, after = [first], [], []
    grouped, dependents = set(first.steps), set[int]()
    for stage in stages[1:]:
        reads = {x for v in stage.steps for x in plan.step_of(v).inputs if isinstance(x, int)}
        sources = {plan.view_base(x) for x in reads}
        viewed = {plan.view_base(x) for x in reads if plan.view_base(x) != x}  # the base of a view must be in memory
        is_same_rows = stage.domain == domain and _reduced_axes(plan, stage) <= cuts
        is_same_rows |= stage.domain == result_shape and not _reduced_axes(plan, stage, include_unit_axes=True)
        has_full_rows = all(plan.shape(x) in (domain, result_shape) for x in reads & grouped) and not viewed & grouped
        if stage.kind == "fused" and is_same_rows and has_full_rows and reads & grouped and not sources & dependents:
            group.append(stage)
            grouped.update(stage.steps)
        elif sources & (grouped | dependents):
            after.append(stage)
            dependents.update(stage.steps)
        else:
            before.append(stage)
    if len(group) < 2 or sum(len(stage.steps) for stage in group) > codegen.MAX_KERNEL_STEPS:
        return None
    if any(codegen.region_kernels(plan, stage) is None for stage in group):
        return None
    return before, Stage("row_tile", domain, [v for stage in group for v in stage.steps]), after


def _reduced_axes(plan: Plan, stage: Stage, include_unit_axes: bool = False) -> set[Axes]:
    """Return the axes of each reduction of a stage."""
    steps = [plan.step_of(v) for v in stage.steps]
    return {
        tuple(a for a in step.attrs["axis"] if include_unit_axes or stage.domain[a] != 1)
        for step in steps
        if step.kind == "reduction"
    }


def _fuse_epilogue(plan: Plan, before: list[Stage], stage: Stage, after: list[Stage]) -> Plan | None:
    """Return the plan with the stages fused into one with an epilogue; None if rows must be read again."""
    steps = {v: plan.step_of(v) for v in stage.steps}
    reductions = {v for v, step in steps.items() if step.kind == "reduction"}
    later = {v for v, phase in phases(plan, stage.steps).items() if phase > 0}
    reads = [(v, x) for v, step in steps.items() if v not in reductions for x in step.inputs if x in steps]
    rereads = any(steps[v].shape == stage.domain != steps[x].shape for v, x in reads)
    if len(reductions) > codegen.MAX_KERNEL_REDUCTIONS or rereads or not reductions.isdisjoint(later):
        return None
    trial = copy.copy(plan)
    trial.set_stages([*before, stage._replace(kind="fused"), *after])
    return trial


def _fuse_tile(plan: Plan, before: list[Stage], stage: Stage, after: list[Stage]) -> Plan | None:
    """Return the plan with a row tile; None if a row does not fit in registers."""
    trial = copy.copy(plan)
    trial.set_stages([*before, stage, *after])
    return trial if RowTileKernel(trial, stage).is_supported else None


def _fuse_passes(plan: Plan, before: list[Stage], stage: Stage, after: list[Stage]) -> Plan | None:
    """Return the plan with row passes; None if they do not reduce memory traffic."""
    trial = copy.copy(plan)
    trial.steps = list(plan.steps)
    steps = _use_online_reductions(trial, stage)
    stage = Stage("row_passes", stage.domain, steps, passes_in_memory=True)
    trial.set_stages([*before, stage, *after])
    fused = {plan.stage_of[v] for v in stage.steps if v in plan.stage_of}
    current_bytes = sum(sum(plan.traffic(plan.stages[i])) for i in fused)
    fused_bytes = sum(trial._nbytes(x.v) for kernel in pass_kernels(trial, stage) for x in kernel.arrays)
    return trial if fused_bytes < current_bytes else None


# --- passes ---


def phases(plan: Plan, steps: Sequence[int]) -> dict[int, int]:
    """Return the first pass in which each step can be computed; a reduction's result is available in the next pass."""
    result: dict[int, int] = {}
    for v in steps:
        ins = [x for x in plan.step_of(v).inputs if x in result]
        result[v] = max((result[x] + (plan.step_of(x).kind == "reduction") for x in ins), default=0)
    return result


def _use_online_reductions(plan: Plan, stage: Stage) -> list[int]:
    """Replace sums that depend on another reduction by online reductions; return all steps in topological order."""
    for v in stage.steps:
        total, phase = plan.step_of(v), phases(plan, _topological_order(plan, stage.steps))

        def full_size_step(x: NativeArray, phase: dict[int, int] = phase) -> Step | None:
            return plan.step_of(x) if x in phase and plan.shape(x) == stage.domain else None

        e = full_size_step(total.inputs[0]) if total.op.name == "sum" else None
        squares = e and (e.op.name == "sqr" or (e.op.name == "mul" and e.inputs[0] == e.inputs[1]))
        inner_step = full_size_step(e.inputs[0]) if e and (squares or e.op.name == "exp") else None
        if inner_step is None or inner_step.op.name != "sub":
            continue
        x, m = inner_step.inputs
        is_match = plan.shape(x) == stage.domain and plan.shape(m) == total.shape
        is_match &= plan.dtype(x) == plan.dtype(m) == total.dtype and total.dtype in FLOAT_DTYPES
        if is_match and m in phase and phase.get(x, 0) < phase[v]:  # type: ignore[arg-type]
            plan.steps[v - len(plan.leaves)] = _online_sum(plan, total, x, m, bool(squares))
    return _topological_order(plan, stage.steps)


def _online_sum(plan: Plan, total: Step, x: int | Constant, m: int | Constant, squares: bool) -> Step:
    """Return the step for sum((x - m)^2) or sum(exp(x - m)), and add the online reductions of x that it uses."""

    def add_step(name: str, *ins: int | Constant) -> int:
        reduces = name in ONLINE_OPS
        op, attrs = (ONLINE_OPS[name], total.attrs) if reduces else (OPS[name], {})
        plan.steps.append(total._replace(op=op, attrs=attrs, inputs=ins))
        return plan.step_values[-1]

    if squares:
        squared_gap = add_step("sqr", add_step("sub", add_step("online_mean", x), m))
        name, ins = "add", (add_step("online_m2", x), add_step("mul", add_step("online_count", x), squared_gap))
    else:
        name, ins = (
            "mul",
            (add_step("online_exp_sum", x), add_step("exp", add_step("sub", add_step("online_max", x), m))),
        )
    return total._replace(op=OPS[name], inputs=ins, attrs={})


def _topological_order(plan: Plan, steps: Sequence[int]) -> list[int]:
    """Return the steps, and those of their operands that have no stage yet, in topological order."""
    order: dict[int, None] = {}
    stack = list(reversed(steps))
    while stack:
        v = stack[-1]
        missing = [x for x in plan.step_of(v).inputs if isinstance(x, int) and x >= len(plan.leaves) and x not in order]
        missing = [x for x in missing if x in steps or (x not in plan.stage_of and plan.step_of(x).kind != "view")]
        stack.extend(missing)
        if not missing:
            order[stack.pop()] = None
    return list(order)


def pass_kernels(plan: Plan, stage: Stage) -> list[codegen.FusedKernel]:
    """Return the kernels of row passes. Elementwise values of a row's length are recomputed in each."""
    phase = phases(plan, stage.steps)
    steps = {v: plan.step_of(v) for v in stage.steps}
    row_steps = {v: step for v, step in steps.items() if step.kind != "reduction" and step.shape == stage.domain}
    reductions = [v for v, step in steps.items() if step.kind == "reduction"]
    per_row = {v: step for v, step in steps.items() if v not in row_steps and v not in reductions}
    result_shape = plan.shape(next(iter(per_row))) if per_row else ()
    read = {x for v in [*row_steps, *reductions] for x in steps[v].inputs}
    outputs = [v for v in steps if codegen.is_stored(plan, v)]
    last = max(phase[v] for v in reductions + [v for v in outputs if v in row_steps])
    result = []
    for p in range(last + 1):
        if needed := [v for v in per_row if phase[v] == p and v in read]:
            result.append(codegen.FusedKernel(plan, per_row, result_shape, needed, []))
        current = [v for v in reductions if phase[v] == p]
        groups = [
            current[n : n + codegen.MAX_KERNEL_REDUCTIONS]
            for n in range(0, len(current), codegen.MAX_KERNEL_REDUCTIONS)
        ] or [[]]
        for group in groups:
            ys = [v for v in outputs if v in row_steps] if p == last and group is groups[-1] else []
            if ys or group:
                result.append(
                    codegen.FusedKernel(plan, row_steps | {v: steps[v] for v in group}, stage.domain, ys, group)
                )
    if rest := [v for v in per_row if v in outputs and v not in read]:  # last, since they may overwrite operands
        result.append(codegen.FusedKernel(plan, per_row, result_shape, rest, []))
    return result


# --- row tiles ---


class RowTileKernel(codegen.FusedKernel):
    """A kernel whose lanes keep a row in registers; ``is_supported``: whether it fits."""

    def __init__(self, plan: Plan, stage: Stage) -> None:
        steps, self.domain = {v: plan.step_of(v) for v in stage.steps}, stage.domain
        reductions = [v for v, step in steps.items() if step.kind == "reduction"]
        outputs = [v for v in steps if v not in reductions and codegen.is_stored(plan, v)]
        self.row_steps = [v for v in steps if v not in reductions and steps[v].shape == stage.domain]
        self.phases = phases(plan, stage.steps)
        self.last_phase = max(self.phases[v] for v in [*reductions, *(v for v in outputs if v in self.row_steps)])
        readers: dict[Any, list[int]] = {}
        for v in [*self.row_steps, *reductions]:
            for x in steps[v].inputs:
                readers.setdefault(x, []).append(v)
        self.last_use: dict[int, int] = {}  # value -> the last phase that reads it
        for x in [*reversed(self.row_steps), *(x for x in readers if isinstance(x, int) and x not in steps)]:
            needed = [self.phases[v] for v in readers.get(x, ())] + [self.last_phase] * (x in outputs)
            self.phases[x], self.last_use[x] = min(needed), max(needed)  # computed in the first phase that needs it
        super().__init__(plan, steps, stage.domain, outputs, reductions)

    def _choose_schedule(self) -> None:
        """Use the fewest lanes per row whose registers hold it, but more lanes if there are few rows."""
        super()._choose_schedule()
        self.varying = {*self.row_steps, *(x.v for x in self.arrays if not self._is_per_row(x))}  # along a row
        self.register_steps = [v for v in self.row_steps if self.last_use[v] > self.phases[v]]
        self.register_arrays = [x for x in self.arrays if self._is_in_registers(x)]
        widths = {v: -(-dtype_bits(self.plan.dtype(v)) // 32) for v in self.register_steps}
        widths |= {x.v: -(-dtype_bits(x.dtype) // 32) for x in self.register_arrays}
        live = (
            sum(n for v, n in widths.items() if self.phases[v] <= p < self.last_use[v]) for p in range(self.last_phase)
        )
        max_live = max(live, default=1) or 1  # registers per element
        min_results = (
            1 if self.schedule == "rows" else min(MIN_COALESCED_COLUMNS, 1 << (self.num_results - 1).bit_length())
        )
        self.lanes = codegen.WARP_SIZE if self.schedule == "rows" else 1

        def lane_elements() -> int:
            return self._packs(self.vector_width) * self.vector_width

        while 2 * self.lanes * min_results <= MAX_BLOCK_THREADS and (
            lane_elements() * max_live > MAX_LANE_REGISTERS // 2
            or (
                self.num_results * self.lanes < MIN_PARALLEL_LANES
                and self.lanes * self.vector_width < self.reduction_size
            )
        ):
            self.lanes *= 2
        self.lane_elements = lane_elements()
        self.threads = max(codegen.THREADS_PER_BLOCK, self.lanes * min_results)
        self.results_per_block = self.threads // self.lanes
        self.blocks, self.num_splits, self.partial_offsets = -(-self.num_results // self.results_per_block), 1, [0]
        self.counts = [self.num_results, self.reduction_size]
        shared_bytes = self.threads * 24 * len(self.accumulators)
        self.is_supported = (
            self.lane_elements * max_live <= MAX_LANE_REGISTERS and shared_bytes <= codegen.MAX_SHARED_BYTES
        )
        self.is_supported &= self.lane_elements * len(self.row_steps) <= MAX_UNROLLED_STEPS

    @property
    def has_vector_results(self) -> bool:
        """False: a lane keeps elements of one result."""
        return False

    def _constants(self, V: int) -> list[str]:
        return [*super()._constants(V), f"    constexpr int R = {self._packs(V)};  // packs per lane"]

    def _packs(self, V: int) -> int:
        """Return the number of packs of V elements per lane. Lanes have one less where the last one is incomplete."""
        return -(-self.reduction_size // (self.lanes * V))

    def _is_in_registers(self, x: codegen.KernelArray) -> bool:
        """Return whether an operand is kept in registers: it has the domain's size, and several phases read it."""
        return x.name[0] == "x" and x.sizes == self.sizes and self.last_use[x.v] > self.phases[x.v]

    def _reduction_body(self) -> list[str]:
        texts: dict[int, str] = {}
        once = []
        self.reciprocals = dict[str, str]()  # divisor -> its reciprocal
        self.offsets = dict[str, str]()  # array -> offset of the r-th pack from the first one of its lane
        for x in self.arrays:
            if self._is_per_row(x):
                if x.name[0] == "x":
                    c_type = op_templates.STORAGE_TYPES[x.dtype]
                    once.append(f"    const {c_type} {x.name}s = {x.name}[{self._element_offset(x)}];")
                    texts[x.v] = op_templates.to_compute(f"{x.name}s", x.dtype)
            elif len(self.reduced_axes) == 1:
                once.append(f"    {x.name} += {self._element_offset(x)};  // to the first pack of this lane")
                self.offsets[x.name] = f"r * {self._lane_stride(x)}"
        body = [f"    Pack<{op_templates.STORAGE_TYPES[x.dtype]}, V> {x.name}s[R];" for x in self.register_arrays]
        body += [
            f"    {op_templates.COMPUTE_TYPES[self.steps[v].dtype]} r{self.step_numbers[v]}[R * V];"
            for v in self.register_steps
        ]
        for p in range(self.last_phase + 2):
            body += self._compute(
                {v: step for v, step in self.epilogue_steps.items() if self.phases[v] == p}, texts, "    "
            )
            if p <= self.last_phase:
                body += self._phase_body(p, texts)
        ends = [f"        {line}" for line in self._epilogue_stores(texts)]
        body += ["    if (lane == 0 && active) {", *ends, "    }"] if ends else []
        lines = [
            *self._lane_indices("result"),
            "    const bool active = result < num_results;",
            "    const Index k = active ? result : num_results - 1;  // the last result may be computed several times",
            "    const int packs = ((R - 1) * LANES + lane) * V < reduction_size ? R : R - 1;  // of this lane",
            *self._axis_indices("k", self.result_axes, once + body, "    "),
        ]
        if len(self.reduced_axes) == 1:
            lines.append(f"    const Index i{self.reduced_axes[0]} = lane * V;")
        return [*lines, *once, *body]

    def _lane_stride(self, x: codegen.KernelArray) -> str:
        """Return the expression of the distance of the packs of a lane in an array."""
        (axis,) = self.reduced_axes
        if not x.contiguous:
            return f"LANES * V * {x.name}_{axis}"
        inner = [f"n{a}" for a in range(axis + 1, len(self.sizes)) if x.axes[a] >= 0 and self.sizes[a] != 1]
        return " * ".join(["LANES * V", *(["(long long)" + inner[0], *inner[1:]] if inner else [])])

    def _operands(self, step: Step, texts: dict[int, str]) -> list[str]:
        """Return the expressions of a step's operands; of a division by one value per row, also its reciprocal."""
        operands = super()._operands(step, texts)
        is_float = step.op.name == "div" and op_templates.COMPUTE_TYPES[step.compute_dtype] == "float"
        if is_float and step.shape == self.domain and step.inputs[1] not in self.varying:
            operands.append(self.reciprocals.setdefault(operands[1], f"d{len(self.reciprocals)}"))
        return operands

    def _phase_body(self, p: int, texts: dict[int, str]) -> Iterator[str]:
        """Yield the lines of a phase: loop over the elements, and reduce the accumulators."""
        indent = " " * 12
        steps = {v: step for v, step in self.steps.items() if v in self.row_steps and self.phases[v] == p}
        current = [
            m for m, (_, results) in enumerate(self.accumulators) if self.phases[self.reductions[results[0]]] == p
        ]
        operands = {
            x
            for v in [*steps, *(self.reductions[self.accumulators[m].reductions[0]] for m in current)]
            for x in self.steps[v].inputs
        }
        ys = [x for x in self.arrays if x.name[0] == "y" and not self._is_per_row(x)] if p == self.last_phase else []
        body, known = list[str](), set(self.reciprocals)
        for x in self.arrays:
            read = x.v in operands and x.name[0] == "x" and not self._is_per_row(x)
            if read and not (self._is_in_registers(x) and self.phases[x.v] < p):
                body += self._load(x, self.offsets, texts, indent, "[r]" * self._is_in_registers(x))
        body += [f"{indent}{self._loaded_type(x)} {x.name}s;" for x in ys]
        body += [f"{indent}#pragma unroll", f"{indent}for (int q = 0; q < V; ++q) {{"]
        body += self._compute(steps, texts, f"{indent}    ")
        saved = [v for v in steps if v in self.register_steps]
        body += [f"{indent}    r{self.step_numbers[v]}[r * V + q] = {texts[v]};" for v in saved]
        body += [f"{indent}    {x.name}s.at[q] = {op_templates.to_storage(texts[x.v], x.dtype)};" for x in ys]
        body += [line for m in current for line in self._accumulate(m, texts, f"{indent}    ")]
        body += [f"{indent}}}", *(line for x in ys for line in self._store(x, self.offsets, indent))]
        texts |= {v: f"r{self.step_numbers[v]}[r * V + q]" for v in saved}
        yield from (
            f"    {self.accumulators[m].template.acc_type} a{m} = {self.accumulators[m].template.identity};"
            for m in current
        )
        yield from (
            f"    const float {name} = reciprocal({y});" for y, name in self.reciprocals.items() if y not in known
        )
        loop = [
            "    #pragma unroll",
            "    for (int r = 0; r < R; ++r) {",
            "        if (r < packs) {",
            *self._pack_indices("(lane + r * LANES) * V", body, indent),
            *body,
            "        }",
            "    }",
        ]
        yield from ["    if (active) {", *(f"    {line}" for line in loop), "    }"] if ys else loop
        for m in current:
            yield from self._block_reduce(m, self.accumulators[m].template)
            for n in self.accumulators[m].reductions:
                step = self._reduction_step(n)
                at = "threadIdx.x - lane" if self.schedule == "rows" else "slot"
                text = op_templates.round_expression(self._result(n, m, at), step.dtype)
                yield f"    const {op_templates.COMPUTE_TYPES[step.dtype]} t{n} = {text};  // {step.op.name}"
                texts[self.reductions[n]] = f"t{n}"
