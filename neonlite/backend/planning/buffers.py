"""Buffer assignment: a value that outlives its stage is stored in its target, in another target, or in the arena.

A value is written directly to its target if no operand is overwritten too early. The other values that are stored are
temporaries: they use the memory of a target that is written later, or an offset chosen by their lifetime.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neonlite.backend.planning.plan import Plan

ALIGNMENT_BYTES = 64  # a cache line


def find_last_reads(plan: Plan) -> dict[int, int]:
    """Return the last stage that reads each value from memory."""
    last: dict[int, int] = {}
    for v, step in plan.numbered_steps:
        if step.kind != "view":
            for x in step.inputs:
                if isinstance(x, int):
                    u = plan.view_base(x)
                    last[u] = max(last.get(u, -1), plan.stage_of[v])
    return last


def can_write_directly(plan: Plan, i: int) -> bool:
    """Return whether a value can be written to its target directly: no aliased operand is read afterwards."""
    v = plan.outputs[i]
    step, stage_index = plan.step_of(v), plan.stage_of[v]
    if any(plan.stage_of[u] >= stage_index and (u != v or step.kind != "library") for u in plan.raising_values):
        return False
    if (step.kind != "elementwise" or v in plan.viewed_values) and not plan.targets[i].attrs["contiguous"]:
        return False
    for target, k, overlap_kind in plan.aliases:
        if target == i and (last := plan.last_read.get(k, -1)) >= stage_index:
            in_step = overlap_kind == "exact" and _is_written_last(plan, v) and k not in plan.viewed_values
            if last > stage_index or not in_step:
                return False
    return True


def _is_written_last(plan: Plan, v: int) -> bool:
    """Return whether each element of a value is written after its stage has read the operands at this element."""
    stage = plan.stages[plan.stage_of[v]]
    in_one_pass = plan.step_of(v).shape == stage.domain or not any(v in plan.step_of(u).inputs for u in stage.steps)
    return plan.step_of(v).kind == "elementwise" and in_one_pass


def find_temporaries(plan: Plan) -> dict[int, int]:
    """Return the values that must be stored outside of their target: {value: the last stage that reads it}."""
    temporaries: dict[int, int] = {}
    outputs = set(plan.outputs)
    written_directly = {v for v, direct in zip(plan.outputs, plan.is_direct, strict=True) if direct}
    for v, step in plan.numbered_steps:
        if step.kind == "view" or v in written_directly:
            continue
        last = plan.last_read.get(v, -1)
        if v in outputs:
            temporaries[v] = len(plan.stages)
        else:
            stage = plan.stages[plan.stage_of[v]]
            in_registers = step.kind == "elementwise" and step.shape == stage.domain
            if last > plan.stage_of[v] or (stage.passes_in_memory and not in_registers):
                temporaries[v] = last
    return temporaries


def assign_to_targets(plan: Plan) -> dict[int, int]:
    """Return the temporaries that can use a target's memory until its own value is written: {value: target}.

    For example ``e = exp(x)`` of a softmax, or ``W x`` before a bias is added.
    """
    held: dict[int, int] = {}
    last_raise = max((plan.stage_of[v] for v in plan.raising_values), default=-1)
    temporaries = sorted(plan.temporaries, key=lambda v: plan.stage_of[v])
    outputs, aliased = set(plan.outputs), {target for target, _, _ in plan.aliases}
    for i, w in enumerate(plan.outputs):
        output = plan.step_of(w)
        is_aliased = i in aliased or not plan.targets[i].attrs["contiguous"]
        if is_aliased or not plan.is_direct[i] or not _is_written_last(plan, w):
            continue
        stage_index = plan.stage_of[w]
        until = stage_index - plan.stages[stage_index].writes_early
        occupied_until = -1  # the last stage in which the target's memory is in use
        for v in temporaries:
            step, first, last = plan.step_of(v), plan.stage_of[v], plan.temporaries[v]
            is_alike = (step.shape, step.dtype) == (output.shape, output.dtype) and v not in plan.viewed_values
            is_free = max(occupied_until, last_raise) < first and last <= until
            if is_alike and is_free and v not in outputs and v not in held:
                held[v], occupied_until = i, last
    return held


def assign_offsets(plan: Plan) -> tuple[dict[int, int], int]:
    """Assign each temporary an arena offset; two overlap only if their lifetimes do not."""
    lifetimes = [
        (align_bytes(plan.step_of(v).nbytes), plan.stage_of[v], last, v)
        for v, last in plan.temporaries.items()
        if v not in plan.held_in_targets
    ]
    offsets: dict[int, int] = {}
    used: list[tuple[int, int, int, int]] = []  # (offset, end, first, last), sorted
    for nbytes, first, last, v in sorted(lifetimes, key=lambda lifetime: -lifetime[0]):
        at = 0
        for low, high, f, t in used:
            if f <= last and first <= t:
                if at + nbytes <= low:
                    break
                at = max(at, high)
        offsets[v] = at
        insort(used, (at, at + nbytes, first, last))
    return offsets, max((high for _, high, _, _ in used), default=0)


def align_bytes(nbytes: int) -> int:
    """Return the bytes rounded up to a multiple of the cache line."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
