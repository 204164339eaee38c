"""Which steps become one?  Those in a row, each of which alone reads the one before it, where oneDNN has code for them.

A region is then fewer passes over its blocks; what comes out are the same bits, but for exp, tanh and the logistic
function, which is known by what it is made of, and for the sign of a zero that is a bound.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from neonlite.backend.plan import Const, Plan, Step
from neonlite.ops import OPS, Shape

if TYPE_CHECKING:
    from neonlite.backend.onednn.chains import Chain, Link

SLOTS = "xywabcdefghijklnopqrtuv"  # what the operands of a step are called in its words; m, s and z are others
ENOUGH = 1 << 16  # elements times ops from which a chain pays
SIGNS = {"gt": "rising", "lt": "falling"}  # comparisons with 0
MOST = 1 << 7  # ops that a chain may count for
# ops that take as long as so many cheap ones
EFFORT = dict.fromkeys(("exp", "exp2", "log", "log2", "safelog", "sig", "tanh"), 8) | {"pow": 16, "shift": 16}


class Growing(NamedTuple):
    """A chain that may go on: its links, its operands, and the steps that it stands for."""

    links: list[Link]
    operands: list[int | Const]
    members: list[int]

    @property
    def work(self) -> int:
        """How much there is to do with each element."""
        return sum(EFFORT.get(link.op, 1) for link in self.links)

    def taken(self, x: int | Const | None) -> int | None:
        """Return the number of an operand; None when there is none."""
        if x is None:
            return None
        if x not in self.operands:
            self.operands.append(x)
        return self.operands.index(x)


def fuse(
    plan: Plan, steps: dict[int, Step], domain: Shape, kept: Collection[int]
) -> tuple[dict[int, Step], dict[int, Chain]]:
    """Return the steps of a region with chains in place of theirs, and these by the value in which they end.

    What is ``kept`` is needed elsewhere as well. A single op is a chain where all the others are in one.
    """
    size = math.prod(domain)
    if size * MOST < ENOUGH:  # so that small trees load no library
        return steps, {}
    from neonlite.backend.onednn.chains import LONGEST, Link, begins, chain, continues
    from neonlite.backend.onednn.library import found

    def number(x: int | Const) -> bool:
        return not plan.dtype(x)

    def whole(x: int | Const) -> bool:
        return isinstance(x, int) and not number(x) and plan.shape(x) == domain

    def factor(grown: Growing, link: Link) -> bool:
        return link.op == "neg" or (link.op == "mul" and number(grown.operands[link.operand or 0]))

    readers = readers_of(steps)
    growing: dict[int, Growing] = {}
    for v, step in (short := with_logistic(steps, readers, kept)).items():
        fits = step.kind == "elementwise" and step.shape == domain and step.dtype == step.common == "float32"
        if not fits or not all(number(x) or plan.dtype(x) == "float32" for x in step.ins):
            continue
        name, ins = step.op.name, step.ins
        if name == "mul" and ins[0] == ins[1]:
            name, ins = "sqr", ins[:1]
        elif name == "div" and ins[0] == Const(1):
            name, ins = "reciprocal", ins[1:]
        elif name in SIGNS and ins[1] == Const(0):
            name, ins = SIGNS[name], ins[:1]
        if len(ins) > 2 or len(set(ins)) < len(ins):
            continue
        for n, x in enumerate(ins):
            before = growing.get(x) if isinstance(x, int) and x not in kept and readers[x] == 1 else None
            if before is None or len(before.links) == LONGEST:
                continue
            other = next((y for y in ins if y != x), None)
            multiple = other == before.operands[0] and all(factor(before, link) for link in before.links)
            if continues(before.links, name, turned=bool(n), binary=other is not None, multiple=multiple):
                growing[v] = before
                before.links.append(Link(name, before.taken(other), bool(n)))
                before.members.append(v)
                del growing[x]  # type: ignore[arg-type]
                break
        else:
            turned = not whole(ins[0]) and name != "div"
            first, *rest = reversed(ins) if turned else ins
            if whole(first) and begins(name, all(map(number, rest))):
                growing[v] = grown = Growing([], [first], [v])
                grown.links.append(Link(name, grown.taken(rest[0] if rest else None), turned))
    alone = sum(len(grown.members) for grown in growing.values()) == len(short)
    work = sum(grown.work for grown in growing.values())
    chains = {v: grown for v, grown in growing.items() if alone or len(grown.links) > 1}
    chains = {v: grown for v, grown in chains.items() if size * (work if alone else grown.work) >= ENOUGH}
    if not chains or found() is None:
        return short, {}
    inner = {u for v, grown in chains.items() for u in grown.members if u != v}
    merged = {v: step for v, step in short.items() if v not in inner}
    made = {}
    for v, grown in chains.items():
        numbers = frozenset(n for n, x in enumerate(grown.operands) if number(x))
        made[v] = chain(tuple(grown.links), len(grown.operands), numbers)
        merged[v] = merged[v]._replace(ins=tuple(grown.operands))
    return merged, made


def readers_of(steps: dict[int, Step]) -> dict[int | Const, int]:
    """Return how many steps read each value."""
    readers: dict[int | Const, int] = {}
    for step in steps.values():
        for x in dict.fromkeys(step.ins):
            readers[x] = readers.get(x, 0) + 1
    return readers


def with_logistic(steps: dict[int, Step], readers: dict[int | Const, int], kept: Collection[int]) -> dict[int, Step]:
    """Return steps with ``1 / (1 + exp(-x))`` as one, which has the same words."""
    short = dict(steps)

    def behind(v: int | Const | None, name: str, number: int | None = None) -> int | Const | None:
        """Return what step v, which is read here alone, does an op to, beside a number; None if it is another step."""
        step = steps.get(v) if isinstance(v, int) and v not in kept and readers.get(v) == 1 else None
        if step is None or step.op.name != name or not step.dtype == step.common == "float32":
            return None
        others = [x for x in step.ins if number is None or x != Const(number)]
        return others[0] if len(others) == 1 else None

    for v, step in steps.items():
        if step.op.name == "div" and step.ins[0] == Const(1):
            total = step.ins[1]
            power = behind(total, "add", 1)
            negative = behind(power, "exp")
            x = behind(negative, "neg")
            x = behind(negative, "mul", -1) if x is None else x
            if x is not None:
                short[v] = step._replace(op=OPS["sig"], ins=(x,))
                for inner in (total, power, negative):
                    del short[inner]  # type: ignore[arg-type]
    return short
