"""Run a plan with CUDA: every stage is a generated kernel or two; what has none is worked out op by op.

``NEONLITE_KERNELS=0`` in the environment works everything out op by op.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from neonlite.backend.cuda.accumulating import accumulate, terms_of
from neonlite.backend.cuda.calls import WHERE, Call, call, gathers
from neonlite.backend.cuda.draws import mask, normal
from neonlite.backend.cuda.driver import CompileError
from neonlite.backend.cuda.graphs import Uncapturable, recording
from neonlite.backend.cuda.kernels import PREAMBLE, Kernel, kernels
from neonlite.backend.cuda.launching import kernels_are_on
from neonlite.backend.cuda.own import Own
from neonlite.backend.cuda.primitives_scatter import ScatterPrimitives
from neonlite.backend.cuda.rows import Tile, passes, share
from neonlite.backend.cuda.watch import at_once
from neonlite.backend.executors.generic import Generic, Runner
from neonlite.backend.executors.quiet import Silence
from neonlite.backend.plan import Plan, Stage, Step
from neonlite.ops import FLOATS, in_range, out_of_range

BOUND = 256  # plans whose temporaries a thread remembers
AGAIN = 1024  # runs that a thread can launch again
# Who works out what plans have no kernel for, of floats; the array library does the rest.
OTHERS = dict.fromkeys(("dot", "matmul"), "cuBLAS works it out")
OTHERS["scatter"] = "the kernels of primitives_scatter.py sort the places, and add up"


def written(plan: Plan, stage: Stage, runtime: Any = None) -> Sequence[Kernel | Call | Own] | None:
    """Return the kernels of a stage; None when it has none."""
    if stage.kind == "region":
        return kernels(plan, stage)
    if stage.kind == "tile":
        return [Tile(plan, stage)]
    if stage.kind == "passes":
        return passes(plan, stage)
    if stage.kind == "products":
        return None
    found = call(plan, stage, runtime)
    return None if found is None else [found]


def source(plan: Plan) -> str:
    """Return the kernels of a plan as one text, with words on what each reads and writes."""
    plan = copy.copy(plan)  # it may be another executor's
    accumulate(plan)
    share(plan)
    made: dict[int, str] = {}  # value -> where it comes from
    texts = [f"/*\n{plan}\n*/", PREAMBLE]
    for n, stage in enumerate(plan.stages, 1):
        made |= {v: f"{plan.made(v).op.name} of stage {n}" for v in stage.steps}
        names = " ".join(plan.made(v).op.name for v in stage.steps)
        texts.append(f"// --- stage {n}: {stage.kind} {stage.domain}: {names} ---")
        found = written(plan, stage)
        if found is None:
            floats = [plan.made(v).op.name for v in stage.steps if plan.made(v).dtype in FLOATS]
            whose = next((OTHERS[name] for name in floats if name in OTHERS), "the array library works it out")
            texts[-1] += f"\n// It has no kernel here: {whose}."
        for m, kernel in enumerate(found or ()):
            name = f"stage_{n}" + f"_{m}" * (len(found or ()) > 1)
            lines = [f"// {line}" for line in kernel.legend(partial(named, plan, made))]
            texts.append("\n".join([*lines, kernel.source(name)]))
            if isinstance(kernel, Kernel) and kernel.parts > 1:
                texts.append(kernel.last(f"{name}_joined")[0])
    return "\n".join(texts)


def named(plan: Plan, made: dict[int, str], v: int) -> str:
    """Return words for a value: a tensor's name, or the step and the stage that make it."""
    words = plan.names[v] if v < len(plan.leaves) else made.get(v, "")
    if not words:  # a view
        return f"{plan.made(v).op.name} of {named(plan, made, plan.made(v).ins[0])}"  # type: ignore[arg-type]
    return f"{words} {plan.shape(v)} {plan.dtype(v)}".strip() if plan.dtype(v) else f"the number {words}"


def write(target: Any, values: Any) -> None:
    """Write values into a target."""
    target[...] = values


class Cuda:
    """The executor for arrays that a driver's kernels can reach; the runtime brings the driver.

    It keeps an arena a thread, for temporaries and for parts of reductions, and every kernel that it compiled.
    """

    def __init__(self, runtime: Any, primitives: Any = None) -> None:
        self.runtime, self.ledger = runtime, runtime.ledger
        self.driver: Any = getattr(runtime, "driver", None)  # a rehearsal has none
        self.generic, self.primitives = Generic(runtime), primitives
        self.compiled: dict[str, Any] = {}

    def compile(self, plan: Plan) -> Runner:
        """Return ``run(targets, leaves)``, and say in ``plan.needs`` how much of the arena it takes."""
        if not kernels_are_on():
            plain = self.generic.compile(plan)
            return plain if self.driver is None else partial(self.driver.call, plain)
        if not at_once():  # an index out of range is told of afterwards
            plan.failing = [v for v in plan.failing if not gathers(plan, plan.made(v))]
            plan.regroup(plan.stages)
        accumulate(plan)
        share(plan)
        xp, views = self.runtime.xp, {v: step for v, step in plan.numbered if step.kind == "view"}
        stages = []
        for stage in plan.stages:
            ins = {x for v in stage.steps for x in plan.made(v).ins if isinstance(x, int)}
            stages.append((stage, written(plan, stage, self.runtime), sorted(ins & views.keys())))
        work = max((kernel.work for _, found, _ in stages for kernel in found or ()), default=0)
        nbytes = plan.arena_bytes + work
        plan.needs = lambda: nbytes
        direct = [(i, v) for i, v in enumerate(plan.tops) if plan.direct[i]]
        direct += [(i, v) for v, i in plan.guests.items()]
        copied = [(i, v) for i, v in enumerate(plan.tops) if not plan.direct[i]]
        # What kernels of op-trees are given follows from where arrays are, and from numbers: it can be kept. A draw
        # counts its words, and a gather its checks.
        steady = not copied and all(isinstance(kernel, Kernel) for _, found, _ in stages for kernel in found or (None,))
        numbers = [not plan.dtype(v) for v in range(len(plan.leaves))]

        def value(v: int, values: dict[int, Any]) -> Any:
            """Return a value; a view is made when first read, after what it shows was worked out."""
            if v not in values:
                step = views[v]
                values[v] = step.op.run(xp, value(step.ins[0], values), **step.attrs)  # type: ignore[arg-type]
            return values[v]

        def run(targets: Sequence[Any], leaves: Sequence[Any]) -> None:
            room, temporaries = self.bound(run, plan) if nbytes or plan.offsets else (0, {})
            kept, key = self.ledger.kept.__dict__.setdefault("again", {}), None
            if steady and not recording():  # a graph has to see what memory it holds
                where = self.runtime.layout
                given = [(x or repr(x)) if number else where(x) for x, number in zip(leaves, numbers, strict=True)]
                key = (run, room, *map(where, targets), *given)  # 0.0 and -0.0 are equal, but for their texts
                if (again := kept.get(key)) is not None:
                    for launch in again:
                        launch()
                    return
            values = {**dict(enumerate(leaves)), **temporaries}
            for i, v in direct:
                values[v] = targets[i]
            launched: list[Any] = []
            with Silence():
                for stage, found, seen in stages:
                    for v in seen:
                        value(v, values)
                    launched.append(self._run(plan, stage, found, values, room))
                for i, v in copied:
                    self.driver.call(write, targets[i], values[v])
            if key and None not in launched:
                if len(kept) >= AGAIN:
                    kept.clear()
                kept[key] = [self.driver.prepare(*launch) for launches in launched for launch in launches]

        return run

    def _run(
        self, plan: Plan, stage: Stage, found: Sequence[Kernel | Call | Own] | None, values: dict[int, Any], room: int
    ) -> list[Any] | None:
        """Run the kernels of a stage, and return what was launched.

        When it has none, or one does not compile, which shows before any has run, work it out op by op and return None.
        """
        launches = [launch for kernel in found or () for launch in kernel.launches(values, self.runtime.layout, room)]
        compiled = [self.kernel(source) for source, *_ in launches]
        if found is None or None in compiled:
            if recording() and any(plan.made(v).kind == "random" for v in stage.steps):
                raise Uncapturable("random numbers without a kernel")
            self.driver.call(self._run_generic, plan, stage, values)
            return None
        launched = [(kernel, *launch[1:]) for kernel, launch in zip(compiled, launches, strict=True)]
        for launch in launched:
            self.driver.launch(*launch)
        return launched

    def _run_generic(self, plan: Plan, stage: Stage, values: dict[int, Any]) -> None:
        """Work a stage out op by op, and then write what outlives it into its place."""
        if len(stage.steps) == 1 and self._primitive(plan.made(stage.steps[0]), stage.steps[0], values):
            return
        if stage.kind == "products" and self._accumulated(plan, stage, values):
            return
        made: dict[int, Any] = {}
        for v in stage.steps:
            made[v] = self.generic.value(plan.made(v), {**values, **made})
        stored = {v: x for v, x in made.items() if v in values}
        if len(stored) > 1:  # one may be a view of an operand that another is written over
            stored = {v: self.runtime.xp.asarray(x, copy=True) for v, x in stored.items()}
        for v, x in stored.items():
            values[v][...] = x

    def _accumulated(self, plan: Plan, stage: Stage, values: dict[int, Any]) -> bool:
        """Have products added up in their target; tell whether that can be."""
        if not isinstance(self.primitives, ScatterPrimitives):
            return False
        beta, products, top = 0.0, [], stage.steps[-1]
        for term in terms_of(plan, top)[0]:
            factor = term.factor(values)
            if factor == 0:  # libraries take 0 times NaN for 0
                return False
            if term.v in stage.steps:
                a, b = (values[x] for x in plan.made(term.v).ins)  # type: ignore[index]
                products.append((a, b, factor))
            else:
                beta = factor
        return self.primitives.multiplied(products, values[top], beta)

    def _primitive(self, step: Step, v: int, values: dict[int, Any]) -> bool:
        """Have a product, or sums by place, written into its place; tell whether that can be."""
        if not isinstance(self.primitives, ScatterPrimitives) or v not in values or step.dtype not in FLOATS:
            return False
        out, operands = values[v], [values[x] for x in step.ins if isinstance(x, int)]
        if step.op.name in ("dot", "matmul"):
            return self.primitives.multiplied([(*operands, 1.0)], out)
        flat = self.runtime.layout(out)[1] == tuple(n * out.dtype.itemsize for n in (math.prod(out.shape[1:]), 1))
        if step.op.name != "scatter" or not flat or operands[0].dtype != out.dtype:
            return False
        xp, size, watch = self.runtime.xp, step.attrs["size"], self.runtime.watch
        if at_once() and not recording():
            in_range(xp, operands[1], size)
        places = xp.astype(xp.reshape(operands[1], (-1,)), xp.int64)
        told = watch.address(), watch.check(f"be.scatter: {out_of_range('index', '{}', size, True)}; {WHERE}")
        places = xp.where(places < 0, places + size, places)
        self.primitives.scatter(operands[0], places, out, step.attrs["axis"], told)
        return True

    def kernel(self, source: str) -> Any:
        """Return the compiled kernel of a text; None, with a warning the first time, when it does not compile."""
        if source not in self.compiled:
            try:
                self.compiled[source] = self.driver.compile(f"{PREAMBLE}\n{source}")
            except CompileError as error:
                warnings.warn(f"{error}\nIt is worked out op by op instead.", RuntimeWarning, stacklevel=2)
                self.compiled[source] = None
        return self.compiled[source]

    def mask(self, streams: Any, out: Any, limit: int) -> None:
        """Fill a contiguous tensor with ones, where the lane of a random word is below a limit, and zeros."""
        mask(self, streams, out, limit)

    def normal(self, streams: Any, out: Any, mean: float, stdv: float) -> None:
        """Fill a contiguous tensor of floats with normal numbers."""
        normal(self, streams, out, mean, stdv)

    # --- buffers, one set a thread ---

    def bound(self, key: Any, plan: Plan) -> tuple[int, dict[int, Any]]:
        """Return the address of the room to work in, behind a plan's temporaries in this thread's arena, and those."""
        arena, kept = self.arena(plan.needs()), self.ledger.kept.__dict__
        bound: dict[Any, Any] = kept.setdefault("bound", {})
        if key not in bound:
            if len(bound) >= BOUND:
                bound.clear()
            made = {}
            for v, start in plan.offsets.items():
                step = plan.made(v)
                flat = arena[start : start + step.nbytes].view(self.runtime.dtype(step.dtype))
                made[v] = self.runtime.reshape(flat, step.shape)
            bound[key] = self.runtime.layout(arena)[0] + plan.arena_bytes, made
        found: tuple[int, dict[int, Any]] = bound[key]
        return found

    def arena(self, nbytes: int) -> Any:
        """Return this thread's arena, at least so large."""
        kept = self.ledger.kept.__dict__
        if nbytes > kept.get("arena", (None, None, -1))[2]:  # nbytes is 0 where no value has elements
            kept.pop("bound", None)  # what is too small, and the views of it, go first
            kept.pop("arena", None)
            more = "temporaries of op-trees", nbytes, lambda: self.allocate(nbytes)
            kept["arena"] = *self.runtime.taken("arena", *more), nbytes
        return kept["arena"][0]

    def allocate(self, nbytes: int) -> Any:
        """Return so many bytes of new memory."""
        return self.driver.allocate(nbytes)
