"""Which steps become one?  Those in a row, each of which alone reads the one before it, where oneDNN has code for them.

A region is then fewer passes over its blocks; what comes out are the same bits, but for exp and the logistic function.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from neonlite.backend.plan import Const, Plan, Step
from neonlite.ops import Shape

if TYPE_CHECKING:
    from neonlite.backend.onednn.chains import Chain, Link

SLOTS = "xywabcdefghijklnopqrtuv"  # what the operands of a step are called in its words; m, s and z are others
ENOUGH = 1 << 16  # elements times ops from which a chain pays
MOST = 1 << 7  # ops that a chain may count for
# ops that take as long as so many cheap ones
EFFORT = dict.fromkeys(("exp", "exp2", "log", "log2", "safelog", "sig", "tanh"), 8) | {"pow": 16, "shift": 16}
FIRST = {"add", "sub", "mul", "div"}  # ops with which a chain may begin


class Fused(NamedTuple):
    """A chain in place of some steps, and what it does in NumPy's words."""

    chain: Chain
    words: str


class Growing(NamedTuple):
    """A chain that may go on: its links, its operands, and the steps that it stands for."""

    links: list[Link]
    operands: list[int | Const]
    members: list[int]

    @property
    def work(self) -> int:
        """How much there is to do with each element."""
        return sum(EFFORT.get(link.op, 1) for link in self.links)

    def taken(self, x: int | Const) -> int:
        """Return the number of an operand."""
        if x not in self.operands:
            self.operands.append(x)
        return self.operands.index(x)


def fuse(
    plan: Plan, steps: dict[int, Step], domain: Shape, kept: Collection[int]
) -> tuple[dict[int, Step], dict[int, Fused]]:
    """Return the steps of a region with chains in place of theirs, and these by the value in which they end.

    What is ``kept`` is needed elsewhere as well.
    """
    size = math.prod(domain)
    if size * MOST < ENOUGH:  # so that small trees load no library
        return steps, {}
    from neonlite.backend.onednn.chains import LONGEST, Link, chain, continues, spelled
    from neonlite.backend.onednn.library import found

    readers: dict[int | Const, int] = {}
    for step in steps.values():
        for x in dict.fromkeys(step.ins):
            readers[x] = readers.get(x, 0) + 1

    def number(x: int | Const) -> bool:
        return not plan.dtype(x)

    def whole(x: int | Const) -> bool:
        return isinstance(x, int) and not number(x) and plan.shape(x) == domain

    growing: dict[int, Growing] = {}
    for v, step in steps.items():
        fits = step.kind == "elementwise" and step.shape == domain and step.dtype == step.common == "float32"
        if not fits or not all(number(x) or plan.dtype(x) == "float32" for x in step.ins):
            continue
        name, ins = step.op.name, step.ins
        for n, x in enumerate(ins):
            if not isinstance(x, int) or x in kept or readers[x] > 1:
                continue
            before = growing.get(x)
            if before is None or len(before.links) == LONGEST:
                continue
            others = [y for y in ins if y != x]
            op = "sqr" if name == "mul" and len(ins) == 2 and not others else name
            if len(others) < 2 and continues(before.links, op, turned=bool(n), binary=bool(others)):
                growing[v] = before
                before.links.append(Link(op, before.taken(others[0]), bool(n)) if others else Link(op))
                before.members.append(v)
                del growing[x]
                break
        else:
            if name in FIRST:
                first, second = ins if whole(ins[0]) or name in ("sub", "div") else reversed(ins)
                if whole(first) and first != second:
                    growing[v] = grown = Growing([], [first], [v])
                    grown.links.append(Link(name, grown.taken(second)))
    chains = {v: grown for v, grown in growing.items() if len(grown.links) > 1 and size * grown.work >= ENOUGH}
    if not chains or found() is None:
        return steps, {}
    inner = {u for v, grown in chains.items() for u in grown.members if u != v}
    merged = {v: step for v, step in steps.items() if v not in inner}
    fused = {}
    for v, grown in chains.items():
        numbers = frozenset(n for n, x in enumerate(grown.operands) if number(x))
        words = spelled(grown.links).format(*(f"{{{slot}}}" for slot in SLOTS), z="{z}")
        fused[v] = Fused(chain(tuple(grown.links), len(grown.operands), numbers), words)
        merged[v] = merged[v]._replace(ins=tuple(grown.operands))
    return merged, fused
