"""Which stages share rows?  Those of a softmax, or of a normalization: reductions over the same axes, in turn.

A plan has a stage for each, and what they pass on goes through memory. Here they become one stage, of one of three
kinds:

* a ``region`` that reads rows once, and ends with what is elementwise over the results: ``x + sum(y)``;
* a ``tile`` is one kernel that keeps a row (or a column) in registers, from the first reduction to the last result:
  memory is read once and written once;
* ``passes``, for rows that are too long: nothing of a row's length goes through memory but operands and results, for
  what is elementwise is worked out anew in each pass. A sum that waits for another reduction of the same elements, as
  those of a softmax and of a variance do, is found in one pass with it (``REDUCE_EARLY``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from neonlite.backend.cuda.kernels import LONG, SEVERAL, THREADS, WARP, Array, Kernel, kernels, outlives
from neonlite.backend.cuda.words import MEMORY, REGISTER, narrowed, rounded, widened
from neonlite.backend.plan import Const, Plan, Stage, Step
from neonlite.ops import FLOATS, OPS, Axes, Op, bits, reduced

REGISTERS = 64  # of 32 bits, for what a lane keeps of its row
UNROLLED = 2048  # steps in the text of a lane, at most, as its loops are unrolled: compilers take long over long ones
SHARED = 48 << 10  # bytes of a block, at most
MANY = 512  # threads of a block, at most: 128 registers each
COALESCED = 16  # columns of a block, at least: 64 bytes side by side
PARALLEL = 1 << 15  # lanes, at least, where rows are long enough

# Sums that are found in one pass with what they wait for: their values, for who has no kernels.
EARLY: dict[str, Callable[..., Any]] = {
    "greatest": lambda xp, x, **at: xp.max(x, **at),
    "exps": lambda xp, x, axis, **_: xp.sum(xp.exp(x - xp.max(x, axis=axis, keepdims=True)), axis=axis),
    "count": lambda xp, x, **at: xp.sum(xp.ones_like(x), **at),
    "average": lambda xp, x, **at: xp.mean(x, **at),
    "squares": lambda xp, x, axis, **_: xp.sum((x - xp.mean(x, axis=axis, keepdims=True)) ** 2, axis=axis),
}
OPS_EARLY = {name: Op(name, run, None, kind="reduction") for name, run in EARLY.items()}


def share(plan: Plan) -> None:
    """Let stages of a plan that share rows be one, where that moves less memory."""
    done: list[Stage] = []
    rest = list(plan.stages)
    while rest:
        found = _gathered(plan, rest)
        for way in (_ended, _tile, _passes) if found else ():
            before, stage, after = found  # type: ignore[misc]
            if trial := way(plan, [*done, *before], stage, after):
                plan.__dict__.update(trial.__dict__)
                done, rest = plan.stages[: len(done) + len(before) + 1], after
                break
        else:
            done.append(rest.pop(0))


def _gathered(plan: Plan, stages: list[Stage]) -> tuple[list[Stage], Stage, list[Stage]] | None:
    """Return the stages that share rows with the first, as one, and those to run before and after; None if none do."""
    first, domain = stages[0], stages[0].domain
    cuts = _cuts(plan, first)
    if first.kind != "region" or len(cuts) != 1 or cuts == {()} or not math.prod(domain):
        return None
    kept = reduced(domain, axis=next(iter(cuts)))
    group, before, after = [first], [], []
    inside, behind = set(first.steps), set[int]()
    for stage in stages[1:]:
        reads = {x for v in stage.steps for x in plan.made(v).ins if isinstance(x, int)}
        sources = {plan.source(x) for x in reads}
        alike = stage.domain == domain and _cuts(plan, stage) <= cuts
        alike |= stage.domain == kept and not _cuts(plan, stage, among_ones=True)
        whole = all(plan.shape(x) in (domain, kept) for x in reads & inside) and not (sources - reads) & inside
        if stage.kind == "region" and alike and whole and reads & inside and not sources & behind:
            group.append(stage)
            inside.update(stage.steps)
        elif sources & (inside | behind):
            after.append(stage)
            behind.update(stage.steps)
        else:
            before.append(stage)
    if len(group) < 2 or sum(len(stage.steps) for stage in group) > LONG:
        return None
    if any(kernels(plan, stage) is None for stage in group):
        return None
    return before, Stage("tile", domain, [v for stage in group for v in stage.steps]), after


def _cuts(plan: Plan, stage: Stage, among_ones: bool = False) -> set[Axes]:
    """Return the sets of axes that reductions of a stage go over."""
    steps = [plan.made(v) for v in stage.steps]
    return {
        tuple(a for a in step.attrs["axis"] if among_ones or stage.domain[a] != 1)
        for step in steps
        if step.kind == "reduction"
    }


def _ended(plan: Plan, before: list[Stage], stage: Stage, after: list[Stage]) -> Plan | None:
    """Return the plan with a region whose results are worked with at its end; None when rows are read once more."""
    steps = {v: plan.made(v) for v in stage.steps}
    sums = {v for v, step in steps.items() if step.kind == "reduction"}
    known = {v for v, phase in phases(plan, stage.steps).items() if phase > 0}
    reads = [(v, x) for v, step in steps.items() if v not in sums for x in step.ins if x in steps]
    again = any(steps[v].shape == stage.domain != steps[x].shape for v, x in reads)
    if len(sums) > SEVERAL or again or not sums.isdisjoint(known):
        return None
    trial = copy.copy(plan)
    trial.regroup([*before, stage._replace(kind="region"), *after])
    return trial


def _tile(plan: Plan, before: list[Stage], stage: Stage, after: list[Stage]) -> Plan | None:
    """Return the plan with a tile; None when a row does not fit in registers."""
    trial = copy.copy(plan)
    trial.regroup([*before, stage, *after])
    return trial if Tile(trial, stage).fits else None


def _passes(plan: Plan, before: list[Stage], stage: Stage, after: list[Stage]) -> Plan | None:
    """Return the plan with passes that move less memory than the stages do; None when there are none."""
    trial = copy.copy(plan)
    trial.steps = list(plan.steps)
    stage = Stage("passes", stage.domain, _hastened(trial, stage))
    trial.regroup([*before, stage, *after])
    were = {plan.stage_of[v] for v in stage.steps if v in plan.stage_of}
    now = sum(sum(plan.traffic(plan.stages[i])) for i in were)
    moved = sum(trial._nbytes(x.v) for kernel in passes(trial, stage) for x in kernel.arrays)
    return trial if moved < now else None


# --- passes ---


def phases(plan: Plan, steps: Sequence[int]) -> dict[int, int]:
    """Return the pass in which each step can be worked out: a reduction is known in the pass after its own."""
    found: dict[int, int] = {}
    for v in steps:
        ins = [x for x in plan.made(v).ins if x in found]
        found[v] = max((found[x] + (plan.made(x).kind == "reduction") for x in ins), default=0)
    return found


def _hastened(plan: Plan, stage: Stage) -> list[int]:
    """Put sums that need not wait for another reduction into its pass; return all steps, operands first."""
    for v in stage.steps:
        total, phase = plan.made(v), phases(plan, _ordered(plan, stage.steps))

        def inner(x: Any, phase: dict[int, int] = phase) -> Step | None:
            return plan.made(x) if x in phase and plan.shape(x) == stage.domain else None

        e = inner(total.ins[0]) if total.op.name == "sum" else None
        squares = e and (e.op.name == "sqr" or (e.op.name == "mul" and e.ins[0] == e.ins[1]))
        far = inner(e.ins[0]) if e and (squares or e.op.name == "exp") else None
        if far is None or far.op.name != "sub":
            continue
        x, m = far.ins
        alike = plan.shape(x) == stage.domain and plan.shape(m) == total.shape
        alike &= plan.dtype(x) == plan.dtype(m) == total.dtype and total.dtype in FLOATS
        if alike and m in phase and phase.get(x, 0) < phase[v]:  # type: ignore[arg-type]
            plan.steps[v - len(plan.leaves)] = _early(plan, total, x, m, bool(squares))
    return _ordered(plan, stage.steps)


def _early(plan: Plan, total: Step, x: int | Const, m: int | Const, squares: bool) -> Step:
    """Return the step that makes sum((x - m)^2), or sum(exp(x - m)), of reductions of x alone, and add these."""

    def made(name: str, *ins: int | Const) -> int:
        reduces = name in OPS_EARLY
        op, attrs = (OPS_EARLY[name], total.attrs) if reduces else (OPS[name], {})
        plan.steps.append(total._replace(op=op, attrs=attrs, ins=ins))
        return plan.values[-1]

    if squares:
        gap = made("sqr", made("sub", made("average", x), m))
        name, ins = "add", (made("squares", x), made("mul", made("count", x), gap))
    else:
        name, ins = "mul", (made("exps", x), made("exp", made("sub", made("greatest", x), m)))
    return total._replace(op=OPS[name], ins=ins, attrs={})


def _ordered(plan: Plan, steps: Sequence[int]) -> list[int]:
    """Return steps, and those of their operands that no stage has yet, operands first."""
    found: dict[int, None] = {}
    todo = list(reversed(steps))
    while todo:
        v = todo[-1]
        missing = [x for x in plan.made(v).ins if isinstance(x, int) and x >= len(plan.leaves) and x not in found]
        missing = [x for x in missing if x in steps or (x not in plan.stage_of and plan.made(x).kind != "view")]
        todo.extend(missing)
        if not missing:
            found[todo.pop()] = None
    return list(found)


def passes(plan: Plan, stage: Stage) -> list[Kernel]:
    """Return the kernels of a stage of passes; what is of a row's length is worked out in each anew."""
    phase = phases(plan, stage.steps)
    steps = {v: plan.made(v) for v in stage.steps}
    wide = {v: step for v, step in steps.items() if step.kind != "reduction" and step.shape == stage.domain}
    sums = [v for v, step in steps.items() if step.kind == "reduction"]
    small = {v: step for v, step in steps.items() if v not in wide and v not in sums}
    kept = plan.shape(next(iter(small))) if small else ()
    read = {x for v in [*wide, *sums] for x in steps[v].ins}
    out = [v for v in steps if outlives(plan, v)]
    last = max(phase[v] for v in sums + [v for v in out if v in wide])
    found = []
    for p in range(last + 1):
        if early := [v for v in small if phase[v] == p and v in read]:
            found.append(Kernel(plan, small, kept, early, []))
        mine = [v for v in sums if phase[v] == p]
        parts = [mine[n : n + SEVERAL] for n in range(0, len(mine), SEVERAL)] or [[]]
        for part in parts:
            ys = [v for v in out if v in wide] if p == last and part is parts[-1] else []
            if ys or part:
                found.append(Kernel(plan, wide | {v: steps[v] for v in part}, stage.domain, ys, part))
    if late := [v for v in small if v in out and v not in read]:  # where operands may lie
        found.append(Kernel(plan, small, kept, late, []))
    return found


# --- a tile ---


class Tile(Kernel):
    """A kernel in which the lanes of a row keep it in registers; ``fits`` tells whether they can."""

    def __init__(self, plan: Plan, stage: Stage) -> None:
        steps = {v: plan.made(v) for v in stage.steps}
        sums = [v for v, step in steps.items() if step.kind == "reduction"]
        out = [v for v in steps if v not in sums and outlives(plan, v)]
        self.wide = [v for v in steps if v not in sums and steps[v].shape == stage.domain]
        self.phase = phases(plan, stage.steps)
        self.final = max(self.phase[v] for v in [*sums, *(v for v in out if v in self.wide)])
        readers: dict[Any, list[int]] = {}
        for v in [*self.wide, *sums]:
            for x in steps[v].ins:
                readers.setdefault(x, []).append(v)
        self.until: dict[int, int] = {}  # the last phase in which an operand, or what is elementwise, is read
        for x in [*reversed(self.wide), *(x for x in readers if isinstance(x, int) and x not in steps)]:
            needed = [self.phase[v] for v in readers.get(x, ())] + [self.final] * (x in out)
            self.phase[x], self.until[x] = min(needed), max(needed)  # what is elementwise waits until it is needed
        super().__init__(plan, steps, stage.domain, out, sums)

    def _share_out(self) -> None:
        """Give a row as few lanes as have room for it, but more where rows are few."""
        super()._share_out()
        self.keeps = [v for v in self.wide if self.until[v] > self.phase[v]]
        self.holds = [x for x in self.arrays if self._kept(x)]
        widths = {v: -(-bits(self.plan.dtype(v)) // 32) for v in self.keeps}
        widths |= {x.v: -(-bits(x.dtype) // 32) for x in self.holds}
        live = (sum(n for v, n in widths.items() if self.phase[v] <= p < self.until[v]) for p in range(self.final))
        most = max(live, default=1) or 1
        least = 1 if self.schedule == "rows" else min(COALESCED, 1 << (self.results - 1).bit_length())
        self.lanes = WARP if self.schedule == "rows" else 1

        def elements() -> int:
            return self.vector << (max(-(-self.reduced // (self.lanes * self.vector)), 1) - 1).bit_length()

        while 2 * self.lanes * least <= MANY and (
            elements() * most > REGISTERS // 2
            or (self.results * self.lanes < PARALLEL and self.lanes * self.vector < self.reduced)
        ):
            self.lanes *= 2
        self.elements = elements()
        self.threads = max(THREADS, self.lanes * least)
        self.places = self.threads // self.lanes
        self.blocks, self.parts, self.rooms = -(-self.results // self.places), 1, [0]
        self.counts = [self.results, self.reduced]
        room = self.threads * 24 * len(self.sums)
        self.fits = self.elements * most <= REGISTERS and room <= SHARED
        self.fits &= self.elements * len(self.wide) <= UNROLLED

    def _kept(self, x: Array) -> bool:
        """Tell whether an operand is kept: it is as large as the domain, and read in several phases."""
        return x.name[0] == "x" and x.sizes == self.sizes and self.until[x.v] > self.phase[x.v]

    def _single(self, x: Array) -> bool:
        """Tell whether an array has one element for a row."""
        return all(x.axes[a] < 0 for a in self.cut)

    def _reduction(self) -> list[str]:
        texts: dict[int, str] = {}
        once = []
        for x in self.arrays:
            if x.name[0] == "x" and self._single(x):
                once.append(f"    const {MEMORY[x.dtype]} {x.name}s = at({x.name} + {self._place(x)}, there);")
                texts[x.v] = widened(f"{x.name}s", x.dtype)
        body = [f"    Pack<{MEMORY[x.dtype]}, V> {x.name}s[R];" for x in self.holds]
        body += [f"    {REGISTER[self.steps[v].dtype]} r{self.numbered[v]}[R * V];" for v in self.keeps]
        for p in range(self.final + 2):
            body += self._work({v: step for v, step in self.small.items() if self.phase[v] == p}, texts, "    ")
            if p <= self.final:
                body += self._phase(p, texts)
        ends = [f"        {line}" for line in self._ends(texts)]
        body += ["    if (lane == 0 && there) {", *ends, "    }"] if ends else []
        return [
            f"    constexpr int R = {self.elements} / V;  // times V: the elements of a lane",
            *self._places(),
            "    const bool there = k < K;",
            *self._coordinates("k", self.kept, once + body, "    "),
            *once,
            *body,
        ]

    def _phase(self, p: int, texts: dict[int, str]) -> Iterator[str]:
        """Yield the lines from a look at each element to what the lanes found together."""
        indent = " " * 12
        steps = {v: step for v, step in self.steps.items() if v in self.wide and self.phase[v] == p}
        sums = [m for m, (_, results) in enumerate(self.sums) if self.phase[self.reductions[results[0]]] == p]
        used = {
            x for v in [*steps, *(self.reductions[self.sums[m].results[0]] for m in sums)] for x in self.steps[v].ins
        }
        ys = [x for x in self.arrays if x.name[0] == "y" and not self._single(x)] if p == self.final else []
        inner: list[str] = []
        for x in self.arrays:
            read = x.v in used and x.name[0] == "x" and not self._single(x)
            if x in ys or (read and not (self._kept(x) and self.phase[x.v] < p)):
                inner += self._read(x, {}, texts, indent, "[r]" * self._kept(x))
        inner += [f"{indent}#pragma unroll", f"{indent}for (int q = 0; q < V; ++q) {{"]
        inner += self._work(steps, texts, f"{indent}    ")
        kept = [v for v in steps if v in self.keeps]
        inner += [f"{indent}    r{self.numbered[v]}[r * V + q] = {texts[v]};" for v in kept]
        inner += [f"{indent}    {x.name}s.at[q] = {narrowed(texts[x.v], x.dtype)};" for x in ys]
        inner += [line for m in sums for line in self._collect(m, texts, f"{indent}    ")]
        inner += [f"{indent}}}", *(line for x in ys for line in self._write(x, {}, indent))]
        texts |= {v: f"r{self.numbered[v]}[r * V + q]" for v in kept}
        yield from (f"    {self.sums[m].words.kind} a{m} = {self.sums[m].words.start};" for m in sums)
        yield "    #pragma unroll"
        yield "    for (int r = 0; r < R; ++r) {"
        yield "        const Index j = (lane + r * LANES) * V;"
        yield "        if (there && j < J) {"
        yield from self._coordinates("j", self.cut, inner, indent)
        yield from inner
        yield "        }"
        yield "    }"
        for m in sums:
            yield from self._join(m, self.sums[m].words)
            for n in self.sums[m].results:
                step = self._summed(n)
                at = "threadIdx.x - lane" if self.schedule == "rows" else "place"
                text = rounded(self._result(n, m, at), step.dtype)
                yield f"    const {REGISTER[step.dtype]} t{n} = {text};  // {step.op.name}"
                texts[self.reductions[n]] = f"t{n}"
