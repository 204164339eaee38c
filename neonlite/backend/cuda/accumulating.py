"""Which sums take no temporary?  Those of products: each product is added to where the sum is to lie.

A library multiplies ``C = alpha A B + beta C`` in one go, so a sum of products, and of what is there already, is a few
of these in turn. In a plan they are a stage, ``products``.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

from neonlite.backend.plan import Const, Plan, Stage
from neonlite.ops import FLOATS


class Term(NamedTuple):
    """What is added to others: a value, times numbers, with a sign."""

    v: int | Const
    factors: tuple[int | Const, ...] = ()
    sign: float = 1.0

    def factor(self, values: dict[int, Any]) -> float:
        """Return what the value is multiplied with."""
        return math.prod((x.number if isinstance(x, Const) else values[x] for x in self.factors), start=self.sign)


def accumulate(plan: Plan) -> None:
    """Let sums of products be stages, where they can be added up in their target."""
    for i in range(len(plan.tops)):
        if stages := _gathered(plan, i):
            trial = copy.copy(plan)
            trial.regroup(stages)
            if trial.direct[i]:
                plan.__dict__.update(trial.__dict__)


def _gathered(plan: Plan, i: int) -> list[Stage] | None:
    """Return the stages with one for the sum of a target; None when it is no such sum, or would spoil an operand."""
    top = plan.tops[i]
    terms, inside = terms_of(plan, top)
    products = [v for v, *_ in terms if isinstance(v, int) and _multiplies(plan, v)]
    there = [v for v, *_ in terms if v not in products]
    shared = {leaf for target, leaf, _ in plan.clashes if target == i}
    operands = {plan.source(x) for v in products for x in plan.made(v).ins}  # type: ignore[arg-type]
    alone = len(products) == len(set(products)) and not plan.crossed and not operands & {*shared, *plan.tops}
    same = len(there) <= 1 and all((i, v, "same") in plan.clashes and plan.dtype(v) == plan.dtype(top) for v in there)
    readers = [u for u, step in plan.numbered if {*step.ins} & {*products, *inside} - {top}]
    if len(terms) < 2 or not (products and alone and same) or not set(readers) <= {*inside}:
        return None
    if any(plan.made(v)[3:5] != plan.made(top)[3:5] or (v in plan.tops and v != top) for v in (*products, *inside)):
        return None
    gone, here = {*products, *inside}, plan.stage_of[top]
    stages = [stage._replace(steps=[v for v in stage.steps if v not in gone]) for stage in plan.stages]
    stages.insert(here, Stage("products", plan.shape(top), [*products, *inside]))
    return [stage for stage in stages if stage.steps]


def _multiplies(plan: Plan, v: int) -> bool:
    step = plan.step(v)
    return step is not None and step.op.name in ("dot", "matmul")


def terms_of(plan: Plan, top: int) -> tuple[list[Term], list[int]]:
    """Return what adds up to a value, and the steps that add, operands first."""
    terms, inside, rest = list[Term](), set[int](), [Term(top)]
    while rest:
        term = rest.pop()
        step = plan.step(term.v) if isinstance(term.v, int) else None
        name, ins = (step.op.name, step.ins) if step and step.dtype == step.common in FLOATS else ("", ())
        numbers = [x for x in ins if not plan.dtype(x)]
        if term.v in inside:  # it is added twice: what it is made of is gone through once
            terms.append(term)
        elif name in ("add", "sub") and not numbers:
            inside.add(term.v)  # type: ignore[arg-type]
            sign = -term.sign if name == "sub" else term.sign
            rest += [term._replace(v=ins[1], sign=sign), term._replace(v=ins[0])]
        elif name == "mul" and len(numbers) == 1:
            inside.add(term.v)  # type: ignore[arg-type]
            (x,) = (x for x in ins if plan.dtype(x))
            rest.append(term._replace(v=x, factors=(*term.factors, *numbers)))
        else:
            terms.append(term)
    return terms, sorted(inside)
