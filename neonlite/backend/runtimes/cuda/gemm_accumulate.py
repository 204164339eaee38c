"""Fuse sums of matrix products into GEMM calls that accumulate in their target (beta = 1).

A GEMM computes ``C = alpha A B + beta C``, so a sum of products, and of the target itself, is a sequence of calls that
needs no temporary. In a plan it is a ``gemm_sum`` stage.
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple

from neonlite.backend.planning.plan import Plan
from neonlite.backend.planning.steps import Stage
from neonlite.dtypes import FLOAT_DTYPES
from neonlite.optree_structure import Constant
from neonlite.typing import NativeArray


class SumTerm(NamedTuple):
    """A term of a sum: a value, scalar factors and a sign."""

    v: int | Constant
    scalars: tuple[int | Constant, ...] = ()
    sign: float = 1.0

    def factor(self, values: dict[int, NativeArray]) -> float:
        """Return the product of the sign and the scalars."""
        return math.prod((x.value if isinstance(x, Constant) else values[x] for x in self.scalars), start=self.sign)


def fuse_gemm_sums(plan: Plan) -> None:
    """Replace sums of products by ``gemm_sum`` stages, where they can be accumulated in their target."""
    for i in range(len(plan.outputs)):
        if stages := _match_gemm_sum(plan, i):
            trial = copy.copy(plan)
            trial.set_stages(stages)
            if trial.is_direct[i]:
                plan.__dict__.update(trial.__dict__)


def _match_gemm_sum(plan: Plan, i: int) -> list[Stage] | None:
    """Return the stages with a ``gemm_sum`` stage for output i; None if it is no such sum or overwrites an operand."""
    output = plan.outputs[i]
    terms, add_steps = flatten_sum(plan, output)
    products = [v for v, *_ in terms if isinstance(v, int) and _is_product(plan, v)]
    addends = [v for v, *_ in terms if v not in products]
    aliased_leaves = {leaf for target, leaf, _ in plan.aliases if target == i}
    operands = {plan.view_base(x) for v in products for x in plan.step_of(v).inputs}  # type: ignore[arg-type]
    is_safe = (
        len(products) == len(set(products))
        and not plan.targets_alias
        and not operands & {*aliased_leaves, *plan.outputs}
    )
    is_in_place = len(addends) <= 1 and all(
        (i, v, "exact") in plan.aliases and plan.dtype(v) == plan.dtype(output) for v in addends
    )
    readers = [u for u, step in plan.numbered_steps if {*step.inputs} & {*products, *add_steps} - {output}]
    if len(terms) < 2 or not (products and is_safe and is_in_place) or not set(readers) <= {*add_steps}:
        return None
    if any(
        plan.step_of(v)[3:5] != plan.step_of(output)[3:5] or (v in plan.outputs and v != output)
        for v in (*products, *add_steps)
    ):
        return None
    moved_steps, position = {*products, *add_steps}, plan.stage_of[output]
    stages = [stage._replace(steps=[v for v in stage.steps if v not in moved_steps]) for stage in plan.stages]
    # the first product is written to the target already, before the other operands are read
    stages.insert(position, Stage("gemm_sum", plan.shape(output), [*products, *add_steps], writes_early=True))
    return [stage for stage in stages if stage.steps]


def _is_product(plan: Plan, v: int) -> bool:
    step = plan.find_step(v)
    return step is not None and step.op.name in ("dot", "matmul")


def flatten_sum(plan: Plan, output: int) -> tuple[list[SumTerm], list[int]]:
    """Return the terms of a value that is a sum, and the steps that add them, in topological order."""
    terms, add_steps, pending = list[SumTerm](), set[int](), [SumTerm(output)]
    while pending:
        term = pending.pop()
        step = plan.find_step(term.v) if isinstance(term.v, int) else None
        name, ins = (
            (step.op.name, step.inputs) if step and step.dtype == step.compute_dtype in FLOAT_DTYPES else ("", ())
        )
        scalars_in = [x for x in ins if not plan.dtype(x)]
        if term.v in add_steps:  # the same sum is added twice, but expanded only once
            terms.append(term)
        elif name in ("add", "sub") and not scalars_in:
            add_steps.add(term.v)  # type: ignore[arg-type]
            sign = -term.sign if name == "sub" else term.sign
            pending += [term._replace(v=ins[1], sign=sign), term._replace(v=ins[0])]
        elif name == "mul" and len(scalars_in) == 1:
            add_steps.add(term.v)  # type: ignore[arg-type]
            (x,) = (x for x in ins if plan.dtype(x))
            pending.append(term._replace(v=x, scalars=(*term.scalars, *scalars_in)))
        else:
            terms.append(term)
    return terms, sorted(add_steps)
