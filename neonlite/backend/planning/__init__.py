"""Execution plans: fuse the steps of op-trees into stages, and assign every value a target or an arena offset.

A plan depends on structure only (shapes, dtypes, aliasing), so one plan serves all trees of the same structure. It is
made in three passes over the steps:

1. Equal sub-trees are merged into one step, and operands are cast to the compute dtype of their op.
2. Steps are grouped into stages. A fused stage is one pass over memory: elementwise steps over one shape, and the
   reductions over it. Each product, gather and random op is a call stage. Views cost nothing.
3. Each value that outlives its stage is assigned memory: its target, if no operand is overwritten too early, else an
   offset in the arena, chosen by its lifetime.

All values are computed before targets that alias operands are written, so ``x[:] = x.T`` and ``x[1:] = x[:-1]`` work.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from neonlite import messages
from neonlite.backend.measure import format_bytes
from neonlite.backend.planning.steps import Stage, StepList, build_stages
from neonlite.ops.functions import Shape, is_contiguous
from neonlite.tree_structure import Info, Leaves
from neonlite.typing import OperandLike, dtype_bits

if TYPE_CHECKING:
    pass

PLAN_BYTES, STEP_BYTES = 6000, 1000  # host memory of a plan and of each step, as measured


class Plan(StepList):
    """An execution plan of op-trees and their targets. ``print(plan)`` shows its stages and memory.

    Parameters
    ----------
    trees : sequence of OpTreeNode
        The op-trees, one per target.
    leaves : dict or None
        {id: leaf} in the order of the arguments of ``run``; None for the order of appearance.
    targets : sequence of Info
        The Infos of the targets.
    aliases : iterable of (int, int, str)
        (target, leaf, "exact" or "partial") for each target and leaf that share memory.
    targets_alias : bool, default False
        Whether targets share memory with each other.
    arena_start : int, default 0
        The bytes of the arena that are left to the plan that runs this one.
    """

    run: Callable[[Sequence[Any], Sequence[Any]], None]  # set by the executor
    required_arena_bytes: Callable[[], int]  # set by the executor, if it uses an arena

    def __init__(
        self,
        trees: Sequence[OperandLike],
        leaves: Leaves | None,
        targets: Sequence[Info],
        aliases: Iterable[tuple[int, int, str]] = (),
        targets_alias: bool = False,
        arena_start: int = 0,
    ) -> None:
        super().__init__(trees, leaves, targets)
        self.aliases: dict[int, list[tuple[int, str]]] = {}  # {target: (leaf, "exact" or "partial") of each}
        for i, leaf, how in aliases:
            self.aliases.setdefault(i, []).append((leaf, how))
        self.targets_alias, self.arena_start = targets_alias, arena_start
        self.required_arena_bytes = lambda: 0
        self.primitives: dict[int, Any] = {}  # {value: the ``PrimitiveCall`` that computes it}; set by the executor
        self.reordered: set[int] = set()  # images whose axes have the order of ``layout``; set by the executor
        self.layout: Any = None  # NHWC or NCHW
        self.in_place: dict[int, int] = {}  # {temporary: the operand of its stage whose memory it overwrites}
        self.parts: dict[int, tuple[int, int]] = {}  # {temporary: the concat whose memory it is in, and its offset}
        self.plan_stages()

    def plan_stages(self) -> None:
        """Group the steps into stages, and assign memory to every value."""
        # values that have views
        self.viewed_values = {self.view_base(v) for v, step in self.numbered_steps if step.kind == "view"}
        # steps that may raise an error, which must run before any target is written; integer powers do for negative
        # exponents
        self.raising_values = [
            v
            for v, s in self.numbered_steps
            if s.op.may_raise or (s.op.may_raise_on_integers and "int" in s.compute_dtype)
        ]
        self.set_stages(build_stages(self))

    @property
    def nbytes(self) -> int:
        """The approximate host memory of the plan itself, and of the plans that its primitives run."""
        inner = {id(plan): plan.nbytes for call in self.primitives.values() for plan in call.plans}
        return PLAN_BYTES + STEP_BYTES * len(self.steps) + sum(inner.values())

    def is_contiguous(self, v: int) -> bool:
        """Return whether a value is contiguous.

        Parameters
        ----------
        v : int
            A value id.

        Returns
        -------
        bool
            Whether it is C-contiguous.
        """
        if v in self.strides:
            return is_contiguous(self.shape(v), self.strides[v])
        if v < len(self.leaves):
            leaf = self.leaves[v]
            return not isinstance(leaf, Info) or bool(leaf.attrs["contiguous"])
        return (
            v not in self.outputs
            or not self.is_direct[self.outputs[v]]
            or self.targets[self.outputs[v]].attrs["contiguous"]
        )

    def set_stages(self, stages: list[Stage]) -> None:
        """Set the stages, in the order they run, and assign memory to every value.

        Parameters
        ----------
        stages : list of Stage
            The stages.
        """
        self.stages, self.stage_of = stages, {v: i for i, stage in enumerate(stages) for v in stage.steps}
        # two, so that one of them is another value than any given one
        self.last_raising = sorted(self.raising_values, key=self.stage_of.__getitem__)[-2:]
        self.last_read = find_last_reads(self)
        self.is_direct = [not self.targets_alias and can_write_directly(self, v) for v in self.outputs]
        self.temporaries = find_temporaries(self)
        self.held_in_targets = assign_to_targets(self)
        self.in_place, self.parts = {}, {}
        self.offsets, self.arena_bytes = assign_offsets(self, {})

    def join_parts(self) -> set[int]:
        """Assign the operands of a concat along the first axis memory in its result, where they are temporaries.

        Returns
        -------
        set of int
            The values that need no step, since the steps of their operands write them.
        """
        joined: set[int] = set()
        for v, step in self.numbered_steps:
            if step.op.name != "concat" or step.attrs["axis"] or v not in self.offsets:
                continue
            used = self.outputs, self.parts, joined
            parts = [x for x in step.inputs if x in self.offsets and not any(x in values for values in used)]
            if len({*parts}) == len(step.inputs) and all(self.dtype(x) == step.dtype for x in parts):
                joined.add(v)
                ends = accumulate((self._nbytes(x) for x in parts), initial=0)
                self.parts |= {x: (v, end) for x, end in zip(parts, ends, strict=False)}
        if joined:
            self.offsets, self.arena_bytes = assign_offsets(self, {})
        return joined

    def reuse_operands(self, shifts: dict[int, int]) -> None:
        """Assign the arena offsets again, for stages that run block by block: temporaries overwrite dead operands.

        Writing to memory that has just been read is up to twice as fast, and takes less of it.

        Parameters
        ----------
        shifts : dict of int
            {value: bytes} of values that start beyond a multiple of the alignment.
        """
        separate = assign_offsets(self, shifts) if shifts else (self.offsets, self.arena_bytes)
        self.in_place = find_dead_operands(self, shifts)
        self.offsets, self.arena_bytes = assign_offsets(self, shifts) if self.in_place else separate
        if self.arena_bytes > separate[1]:  # longer lifetimes may leave larger gaps
            self.in_place = {}
            self.offsets, self.arena_bytes = separate

    # --- cost ---

    def traffic(self, stage: Stage) -> tuple[int, int]:
        """Return the bytes that a stage reads and writes, as (read, written).

        Parameters
        ----------
        stage : Stage
            A stage of the plan.

        Returns
        -------
        tuple of int
            The bytes read and the bytes written.
        """
        inputs = {self.view_base(x) for v in stage.steps for x in self.step_of(v).inputs if isinstance(x, int)}
        read = sum(self._nbytes(x) for x in inputs if x not in stage.steps)
        written = sum(self._nbytes(v) for v in stage.steps if v in self.temporaries or v in self.outputs)
        return read, written

    def _nbytes(self, v: int) -> int:
        return math.prod(self.shape(v)) * dtype_bits(self.dtype(v)) // 8 if self.dtype(v) else 0

    @property
    def peak_bytes(self) -> int:
        """The bytes of all operands, targets and temporaries together."""
        return sum(map(self._nbytes, range(len(self.leaves)))) + sum(map(self._nbytes, self.outputs)) + self.arena_bytes

    @property
    def flops(self) -> int:
        """The floating-point operations: one per element that an op computes or reduces, 2 m n k for a matrix product.

        Casts, copies, gathers, random numbers and custom ops of kind "library" count as 0.
        """
        return sum(step.op.flops(step.shape, *map(self.shape, step.inputs)) for step in self.steps)

    def _count(self) -> str:
        """Return the numbers of ops, stages and buffers."""
        counts = [
            (self.num_distinct_ops, "op"),
            (len(self.stages), "stage"),
            (len(self.offsets) - len(self.in_place), "temporary buffer"),
        ]
        return f"plan: {', '.join(f'{n} {word}' + 's' * (n != 1) for n, word in counts)}"

    def _stage_rows(self) -> list[tuple[str, ...]]:
        """Return the number, kind, domain, ops, and bytes read and written of each stage."""
        rows = []
        for i, stage in enumerate(self.stages, 1):
            ops = " ".join(self.step_of(v).op.name for v in stage.steps)
            bytes_moved = map(format_bytes, self.traffic(stage))
            rows.append((str(i), stage.kind, str(stage.domain), ops, *bytes_moved))
        return rows

    def _notes(self) -> list[str]:
        """Return the lines that follow the stages."""
        copies = self.is_direct.count(False)
        lines = [f"{len(self.stages) + 1}. copy into {copies} target{'s' * (copies > 1)}"] if copies else []
        return [*lines, f"arena {format_bytes(self.arena_bytes)}; peak {format_bytes(self.peak_bytes)}"]

    def __repr__(self) -> str:
        stages = [
            f"{i}. {kind} {domain}: {ops}; reads {read}, writes {written}"
            for i, kind, domain, ops, read, written in self._stage_rows()
        ]
        return "\n  ".join([self._count(), *stages, *self._notes()])

    def _repr_html_(self) -> str:
        header = ("", "stage", "shape", "ops", "reads", "writes")
        return str(messages.stack(self._count(), messages.table(self._stage_rows(), header), *self._notes()))


# --- buffer assignment ---
#
# A value that outlives its stage is stored in its target, in another target, or in the arena.
#
# A value is written directly to its target if no operand is overwritten too early. The other values that are stored are
# temporaries: they use the memory of a target that is written later, or an offset chosen by their lifetime.

ALIGNMENT_BYTES = 64  # a cache line


def find_last_reads(plan: Plan) -> dict[int, int]:
    """Return the last stage that reads each value from memory."""
    last: dict[int, int] = {}
    for v, step in plan.numbered_steps:
        is_view = step.kind == "view"  # of the first operand; another one is only to be known before
        for x in step.inputs[is_view:]:
            if isinstance(x, int):
                u = plan.view_base(x)
                last[u] = max(last.get(u, -1), plan.stage_of.get(u, -1) + 1 if is_view else plan.stage_of[v])
    return last


def can_write_directly(plan: Plan, v: int) -> bool:
    """Return whether a value can be written to its target directly: no aliased operand is read afterwards."""
    i, step, stage_index = plan.outputs[v], plan.step_of(v), plan.stage_of[v]
    if any(plan.stage_of[u] >= stage_index and (u != v or step.kind != "library") for u in plan.last_raising):
        return False
    if (step.kind != "elementwise" or v in plan.viewed_values) and not plan.targets[i].attrs["contiguous"]:
        return False
    for k, overlap_kind in plan.aliases.get(i, ()):
        if (last := plan.last_read.get(k, -1)) >= stage_index:
            in_step = overlap_kind == "exact" and _is_written_last(plan, v) and k not in plan.viewed_values
            if last > stage_index or not in_step:
                return False
    return True


def _is_written_last(plan: Plan, v: int) -> bool:
    """Return whether each element of a value is written after its stage has read the operands at this element."""
    step, stage = plan.step_of(v), plan.stages[plan.stage_of[v]]
    if step.kind != "elementwise":
        return False
    return step.shape == stage.domain or not any(v in plan.step_of(u).inputs for u in stage.steps)


def find_temporaries(plan: Plan) -> dict[int, int]:
    """Return the values that must be stored outside of their target: {value: the last stage that reads it}."""
    temporaries: dict[int, int] = {}
    written_directly = {v for v, direct in zip(plan.outputs, plan.is_direct, strict=True) if direct}
    for v, step in plan.numbered_steps:
        if step.kind == "view" or v in written_directly:
            continue
        last = plan.last_read.get(v, -1)
        if v in plan.outputs:
            temporaries[v] = len(plan.stages)
        else:
            stage = plan.stages[plan.stage_of[v]]
            in_registers = step.kind == "elementwise" and step.shape == stage.domain
            if last > plan.stage_of[v] or (stage.passes_in_memory and not in_registers):
                temporaries[v] = last
    return temporaries


def assign_to_targets(plan: Plan) -> dict[int, list[int]]:
    """Return {target: the temporaries that can use its memory, one after another, until its own value is written}.

    For example ``e = exp(x)`` of a softmax, or ``W x`` before a bias is added.
    """
    held: dict[int, list[int]] = {}
    last_raise = max((plan.stage_of[v] for v in plan.last_raising), default=-1)
    waiting: dict[tuple[Shape, str], list[int]] = {}  # in the order of their stages
    for v in sorted(plan.temporaries, key=plan.stage_of.__getitem__):
        if v not in plan.viewed_values and v not in plan.outputs:
            waiting.setdefault(plan.step_of(v)[3:5], []).append(v)
    for w, i in plan.outputs.items():
        output = plan.step_of(w)
        is_aliased = i in plan.aliases or not plan.targets[i].attrs["contiguous"]
        if is_aliased or not plan.is_direct[i] or not _is_written_last(plan, w):
            continue
        stage_index = plan.stage_of[w]
        until = stage_index - plan.stages[stage_index].writes_early
        alike = waiting.get((output.shape, output.dtype), [])
        k = bisect_right(alike, last_raise, key=plan.stage_of.__getitem__)
        while k < len(alike) and plan.stage_of[v := alike[k]] <= until:
            if (last := plan.temporaries[v]) > until:
                k += 1
                continue
            held.setdefault(i, []).append(alike.pop(k))
            k = bisect_right(alike, last, lo=k, key=plan.stage_of.__getitem__)  # those after its last use
    return held


def find_dead_operands(plan: Plan, excluded: Collection[int]) -> dict[int, int]:
    """Return {temporary: an operand of its stage that no later stage reads}: both have the shape of the stage."""
    found: dict[int, int] = {}
    dead: dict[int, dict[str, list[int]]] = {}  # {stage: its operands of each dtype}
    for v in plan.offsets:
        index, step = plan.stage_of[v], plan.step_of(v)
        stage = plan.stages[index]
        if stage.kind != "fused" or step.kind != "elementwise" or step.shape != stage.domain or v in excluded:
            continue
        if index not in dead:
            dead[index] = _dead_operands(plan, index, excluded)
        if alike := dead[index].get(step.dtype):
            found[v] = alike.pop()
    return found


def _dead_operands(plan: Plan, index: int, excluded: Collection[int]) -> dict[str, list[int]]:
    """Return {dtype: the operands of a stage, last first, of its shape, whose memory no later stage reads}."""
    stage = plan.stages[index]
    found: dict[str, list[int]] = {}
    operands = dict.fromkeys(x for u in stage.steps for x in plan.step_of(u).inputs if isinstance(x, int))
    bases = {x: plan.view_base(x) for x in operands}
    count = Counter(bases.values())
    for x, base in reversed(bases.items()):
        is_dead = base in plan.offsets and plan.stage_of[base] < index == plan.temporaries[base]
        is_alike = is_dead and plan.shape(x) == stage.domain and plan.is_contiguous(x)
        is_whole = is_alike and plan.step_of(base).nbytes == plan.step_of(x).nbytes and count[base] == 1
        if is_whole and base not in excluded:
            found.setdefault(plan.dtype(x), []).append(x)
    return found


def assign_offsets(plan: Plan, shifts: dict[int, int]) -> tuple[dict[int, int], int]:
    """Assign each temporary an arena offset, plus its shift; two overlap only if their lifetimes do not."""
    owners: dict[int, int] = {}  # {temporary: the first one in its memory, or the concat that it is a part of}
    used_in: dict[int, tuple[int, int]] = {}  # {the owner: the first and last stage in which the memory is in use}
    held = {v for values in plan.held_in_targets.values() for v in values}
    for v, last in sorted(plan.temporaries.items(), key=lambda item: plan.stage_of[item[0]]):
        if v not in held:
            owner = owners[plan.view_base(plan.in_place[v])] if v in plan.in_place else plan.parts.get(v, (v, 0))[0]
            first, before = used_in.get(owner, (plan.stage_of[v], -1))
            owners[v], used_in[owner] = owner, (first, max(before, last))
    lifetimes = [(align_bytes(plan.step_of(v).nbytes + shifts.get(v, 0)), *stages, v) for v, stages in used_in.items()]
    offsets: dict[int, int] = {}
    end = plan.arena_start
    used: defaultdict[int, list[int]] = defaultdict(list)  # {span of stages: memory in use in any of them}
    used_always: defaultdict[int, list[int]] = defaultdict(list)  # {span of stages: memory in use in all of them}
    for nbytes, first, last, v in sorted(lifetimes, key=lambda lifetime: -lifetime[0]):
        parts, enclosing = _spans(first, last, len(plan.stages) + 1)
        taken = [used[span] for span in parts if span in used]
        taken += [used_always[span] for span in enclosing if span in used_always]
        at, before = plan.arena_start, -1
        while at != before:
            before = at
            for ranges in taken:
                n = bisect_right(ranges, at) // 2 * 2
                while n < len(ranges) and ranges[n] < at + nbytes:  # the next range begins too early
                    at, n = ranges[n + 1], n + 2
        for span in parts:
            _add_range(used_always[span], at, at + nbytes)
        for span in (*parts, *enclosing):
            _add_range(used[span], at, at + nbytes)
        offsets[v] = at + shifts.get(v, 0)
        end = max(end, at + nbytes)
    return {v: offsets[owner] + plan.parts.get(v, (v, 0))[1] for v, owner in owners.items()}, end


def _spans(first: int, last: int, num_stages: int) -> tuple[list[int], set[int]]:
    """Return the spans, of a tree over the stages, that make up those of a lifetime, and those that enclose them.

    Span i consists of the spans 4 i to 4 i + 3; ``num_stages + k`` is stage k.
    """
    low, high, parts, enclosing = num_stages + first, num_stages + last + 1, [], set()
    while low < high:
        while low % 4 and low < high:
            parts.append(low)
            low += 1
        while high % 4 and low < high:
            high -= 1
            parts.append(high)
        low, high = low // 4, high // 4
    for span in parts:
        while (span := span // 4) and span not in enclosing:
            enclosing.add(span)
    return parts, enclosing


def _add_range(ranges: list[int], low: int, high: int) -> None:
    """Add a range to ranges, the sorted start and end of each; ranges that overlap or touch become one."""
    i, k = bisect_left(ranges, low), bisect_right(ranges, high)
    ranges[i:k] = [low][i % 2 :] + [high][k % 2 :]


def align_bytes(nbytes: int) -> int:
    """Return the bytes rounded up to a multiple of the cache line."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
