"""Fusion: group steps into stages, each one pass over memory.

A fused stage is one pass over a domain: elementwise steps over one shape, and the reductions over it. Each product,
gather and random op is a call stage. Views cost nothing.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from neonlite.backend.planning.steps import Stage, Step, StepList
from neonlite.ops.shapes import Shape


def build_stages(plan: StepList) -> list[Stage]:
    """Group the steps into stages: as early as their operands allow, steps over the same shape together."""
    level = dict.fromkeys(range(len(plan.leaves)), 0)  # the level of a value's stage; stages run in order of level
    ready = dict(level)  # the first level whose stages can read the value from memory
    for v, step in plan.numbered_steps:
        inputs = [x for x in step.inputs if isinstance(x, int)]
        if step.kind == "view":
            level[v] = ready[v] = ready[inputs[0]]
            continue
        if domain := _iteration_domain(plan, step):
            fusable = [_can_fuse(plan, x, domain) for x in inputs]
            level[v] = max(
                [level[x] if can_fuse else ready[x] for x, can_fuse in zip(inputs, fusable, strict=True)], default=0
            )
        else:
            level[v] = max([ready[x] for x in inputs], default=0)
        ready[v] = level[v] + 1
    _sink_steps(plan, level)
    groups: dict[tuple[int, str, Any], list[int]] = defaultdict(list)
    for v, step in plan.numbered_steps:
        if step.kind != "view":
            domain = _iteration_domain(plan, step)
            groups[level[v], "fused" if domain else "call", domain or v].append(v)
    order = sorted(groups, key=lambda key: key[0])
    return [
        Stage(kind, domain if kind == "fused" else plan.shape(domain), groups[n, kind, domain])
        for n, kind, domain in order
    ]


def _iteration_domain(plan: StepList, step: Step) -> Shape | None:
    """Return the shape over which a step can run block by block; None if it cannot."""
    if step.kind == "reduction":
        return plan.shape(step.inputs[0])
    return step.shape if step.kind == "elementwise" else None


def _can_fuse(plan: StepList, x: int, domain: Shape) -> bool:
    """Return whether a stage over a domain can use a value that it computes itself, block by block."""
    step = plan.find_step(x)
    return step is not None and step.kind == "elementwise" and step.shape == domain


def _sink_steps(plan: StepList, level: dict[int, int]) -> None:
    """Sink each step into the only stage that reads it, so that its value stays in a register and is not stored.

    A reduction is moved to a later pass over its operand, if there is one.
    """
    readers: dict[int, list[int]] = defaultdict(list)
    for v, step in plan.numbered_steps:
        for x in {x for x in step.inputs if isinstance(x, int)}:
            readers[x].append(v)
    for v, step in reversed(plan.numbered_steps):
        needed = {level[u] for u in readers[v]}
        if not needed or any(plan.step_of(u).kind == "view" for u in readers[v]):
            continue
        if step.kind == "elementwise" and v not in plan.outputs and len(needed) == 1:
            if all(_iteration_domain(plan, plan.step_of(u)) == step.shape for u in readers[v]):
                level[v] = needed.pop()
        elif step.kind == "reduction":
            x, domain = step.inputs[0], _iteration_domain(plan, step)
            later_passes = {level[u] for u in readers[x] if _iteration_domain(plan, plan.step_of(u)) == domain}
            level[v] = max((n for n in later_passes if level[v] <= n < min(needed)), default=level[v])
