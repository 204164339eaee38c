"""Run a plan with NumPy, block by block: every stage is one pass over memory in pieces that stay in the cache.

Each elementwise region becomes a small Python function of ufunc calls with given outputs - ``Region.source`` shows it -
and of chains of ops that oneDNN does at once. It is called on the whole operands when they are small, and on one block
after another when they are not, shared by several threads when there is much to do (ufuncs release the interpreter's
lock). Where sums are cut depends on shapes alone, and partial sums are added in the order of the blocks, so results do
not depend on the number of threads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.executors.fusion import EFFORT, SLOTS, fuse
from neonlite.backend.executors.generic import Generic
from neonlite.backend.executors.numpy_words import BUFFERS, CALLS, OF_INTS, REDUCE, SHORT, WORDS, faster, words
from neonlite.backend.executors.pool import share, threads
from neonlite.backend.executors.quiet import Silence, hush, speak
from neonlite.backend.executors.sums import adding, factors_of
from neonlite.backend.plan import ALIGN, Const, Plan, Stage, Step, padded
from neonlite.ops import Axes, Shape, reduced

WHOLE = 1 << 17  # elements up to which a stage is run at once: its operands fit the cache as they are
BLOCK = 1 << 16  # elements of a block: a few of them, in float32, fit the second-level cache
LARGE = 1 << 18  # elements of a block, at most, where there is one op, or a chain
SHARES = 4  # of them, at least, where there are sums
RUN = 1 << 12  # elements along the last axis, at least, when a block is reduced along an earlier one
THREADED = 1 << 19  # elements from which a second thread may pay
WORTH = 1 << 21  # cheap ops on an element each from which it does
BOUND = 256  # plans and regions whose views a thread remembers

Array = np.ndarray[Any, Any]
Runner = Callable[[Sequence[Array], Sequence[Any]], None]

NONE: tuple[Any, Any] = (np.empty(0, np.uint8), None)  # the arena of a thread that needed none so far


class Place(NamedTuple):
    """Where an array lies in an arena."""

    start: int
    shape: Shape
    dtype: Any

    @property
    def end(self) -> int:
        """Where the next array may begin."""
        return self.start + padded(self.nbytes)

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)

    def of(self, arena: Array) -> Array:
        """Return the array."""
        array: Array = arena[self.start : self.start + self.nbytes].view(self.dtype).reshape(self.shape)
        return array


class Blocked:
    """The executor for NumPy arrays.

    All that it keeps is one arena a thread, as large as the largest of its plans needs: first come the temporaries of a
    plan, and behind them each stage in turn has its partial results, and registers for every worker.
    """

    def __init__(self, runtime: Any, primitives: Any) -> None:
        self.runtime = runtime
        self.generic = Generic(runtime)
        self.gemm = primitives.gemm
        self.ledger = runtime.ledger

    def compile(self, plan: Plan) -> Runner:
        """Return ``run(targets, leaves)`` for a plan, and say in ``plan.needs`` how much of the arena it takes."""
        stages = [Region(plan, s, self) if s.kind == "region" else Call(plan, s, self) for s in plan.stages]
        plan.needs = lambda: max((stage.needs() for stage in stages), default=0)
        if len(stages) == 1 and isinstance(stages[0], Region) and stages[0].is_whole_plan:
            return stages[0].runner()
        return Several(plan, stages, self).run

    # --- buffers, one set a thread ---

    def arena(self, nbytes: int) -> Array:
        """Return this thread's arena, at least so large."""
        kept = self.ledger.kept.__dict__
        if nbytes > kept.get("arena", NONE)[0].nbytes:
            kept.pop("bound", None)  # what is too small, and the views of it, go first
            kept.pop("arena", None)
            more = "temporaries of op-trees", nbytes + ALIGN, lambda: self.allocate(nbytes)
            kept["arena"] = self.runtime.taken("arena", *more)
        arena: Array = kept.get("arena", NONE)[0]
        return arena

    def allocate(self, nbytes: int) -> Array:
        """Return so many bytes of new memory, which begin with a cache line."""
        raw: Array = np.empty(nbytes + ALIGN, np.uint8)
        start = -raw.ctypes.data % ALIGN
        return raw[start : start + nbytes]

    def bound(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the views of the arena that this thread keeps for a plan or a region, made when first asked for."""
        try:
            return self.ledger.kept.bound[key]
        except (AttributeError, KeyError):
            made = make()
            bound: dict[Any, Any] = self.ledger.kept.__dict__.setdefault("bound", {})
            if len(bound) >= BOUND:
                bound.clear()
            bound[key] = made
            return made


class Several:
    """The runner of a plan with more than one stage, or with temporaries."""

    def __init__(self, plan: Plan, stages: Sequence[Region | Call], executor: Blocked) -> None:
        self.plan = plan
        self.stages = stages
        self.executor = executor
        self.views = {v: step for v, step in plan.numbered if step.kind == "view"}
        self.fixed = {v for v in self.views if plan.source(v) in plan.offsets}
        self.direct = [(i, v) for i, v in enumerate(plan.tops) if plan.direct[i]]
        self.direct += [(i, v) for v, i in plan.guests.items()]
        self.copied = [(i, v) for i, v in enumerate(plan.tops) if not plan.direct[i]]

    def run(self, targets: Sequence[Array], leaves: Sequence[Any]) -> None:
        """Work out all values, then write the targets that could not be written at once."""
        env = dict(enumerate(leaves))
        env.update(self.executor.bound(self, self._bind))
        for i, v in self.direct:
            env[v] = targets[i]
        state = hush()
        try:
            for stage in self.stages:
                stage.run(env, self)
            for i, v in self.copied:
                targets[i][...] = env[v]
        finally:
            speak(state)

    def value(self, v: int, env: dict[int, Any]) -> Any:
        """Return a value; a view is made when first read, after what it shows was worked out."""
        if v not in env:
            step = self.views[v]
            env[v] = step.op.run(np, self.value(step.ins[0], env), **step.attrs)  # type: ignore[arg-type]
        return env[v]

    def _bind(self) -> dict[int, Any]:
        """Return the temporaries of this thread, as arrays in its arena, and the views of them."""
        plan, env = self.plan, {}
        arena = self.executor.arena(plan.needs())
        for v, start in plan.offsets.items():
            env[v] = Place(start, plan.made(v).shape, plan.made(v).dtype).of(arena)
        for v in self.fixed:
            self.value(v, env)
        return env


class Call:
    """A stage that is one call: a product, a gather, a draw."""

    def __init__(self, plan: Plan, stage: Stage, executor: Blocked) -> None:
        self.plan = plan
        self.v = stage.steps[0]
        self.step = plan.made(self.v)
        self.executor = executor
        name, shapes = self.step.op.name, [plan.shape(x) for x in self.step.ins if isinstance(x, int)]
        self.call = executor.gemm if name in ("dot", "matmul") else CALLS.get(name)
        self.places: list[Place] = []  # of the buffers that it works in, behind the plan's temporaries
        self.end = plan.arena_bytes
        for shape, dtype in BUFFERS[name](self.step.dtype, *shapes, **self.step.attrs) if name in BUFFERS else ():
            self.places.append(Place(self.end, shape, dtype))
            self.end = self.places[-1].end

    def run(self, env: dict[int, Any], values: Several) -> None:
        """Write the result into its place."""
        step, out = self.step, env[self.v]
        if self.call is None:
            generic = self.executor.generic
            out[...] = generic.value(step, {x: values.value(x, env) for x in step.ins if isinstance(x, int)})
            return
        held = [self.executor.bound(self, self._bind)] if self.places else []
        self.call(*[values.value(x, env) for x in step.ins], out, *held, **step.attrs)  # type: ignore[arg-type]

    def _bind(self) -> list[Array]:
        """Return the buffers that it works in, in the arena of this thread."""
        arena = self.executor.arena(self.needs())
        return [place.of(arena) for place in self.places]

    def needs(self) -> int:
        """Return the bytes of the arena that are taken: those of the temporaries, and its own."""
        return self.end


class Region:
    """A stage that is one pass over a shape: elementwise steps, and the reductions that end it."""

    def __init__(self, plan: Plan, stage: Stage, executor: Blocked) -> None:
        self.plan = plan
        self.executor = executor
        self.domain = stage.domain
        self.steps = {v: plan.made(v) for v in stage.steps}
        self.size = math.prod(stage.domain)
        self.reductions = [v for v, s in self.steps.items() if s.kind == "reduction"]
        self.outputs = [v for v in self.steps if v not in self.reductions and (v in plan.stored or v in plan.tops)]
        self.inputs = [x for x in dict.fromkeys(self._operands()) if x not in self.steps]
        self.arguments = [*self.inputs, *self.outputs, *self.reductions]
        self.squeezed = any(not self.steps[v].attrs.get("keepdims", True) for v in self.reductions)
        self.steps, self.chains = fuse(plan, self.steps, stage.domain, self.outputs)
        self.together = self._all_by_onednn()
        self.block = self._block()
        self.tiled = self.size > (self.block if self.together else WHOLE)
        if self.tiled:
            self._lay_out()
        self._write()
        self._find_places()

    def _all_by_onednn(self) -> bool:
        """Tell whether all steps are chains that oneDNN can share out among threads of its own."""
        plan = self.plan
        if len(self.chains) < len(self.steps) or not all(map(plan.contiguous, (*self.inputs, *self.outputs))):
            return False
        shapes = {v: [plan.shape(x) for x in s.ins if plan.dtype(x)] + [self.domain] for v, s in self.steps.items()}
        return all(chain.alone(tuple(shapes[v])) for v, chain in self.chains.items())

    def _block(self) -> int:
        """Return the elements of a block: many where nothing has to stay in the cache from one op to the next.

        All threads are to have some. Where that could change sums, the number of threads must not matter.
        """
        if self.together:
            return LARGE if len(self.chains) > 1 else self.size
        if len(self.steps) - len(self.reductions) > 1:
            return BLOCK
        sums = any(self.steps[v].op.name == "sum" for v in self.reductions)
        shares = SHARES if sums else threads()
        return max(BLOCK, min(LARGE, -(-self.size // shares)))

    @property
    def at_once(self) -> int:
        """How many elements are worked out at once."""
        return math.prod(self.tile) if self.tiled else self.size

    def _operands(self) -> Iterator[int]:
        return (x for s in self.steps.values() for x in s.ins if isinstance(x, int))

    # --- geometry ---

    def _lay_out(self) -> None:
        """Merge axes that every operand walks together, and choose the size of a block along each axis that is left."""
        plan, ndim = self.plan, len(self.domain)
        shapes: list[tuple[Shape, bool]] = [(self.domain, plan.contiguous(v)) for v in self.outputs]
        shapes += [(plan.shape(v), plan.contiguous(v)) for v in self.inputs if plan.dtype(v)]
        padded = [((1,) * (ndim - len(shape)) + shape, contiguous) for shape, contiguous in shapes]
        flags = [tuple(a in self._axes(v) for v in self.reductions) for a in range(ndim)]

        def together(a: int, b: int) -> bool:
            return flags[a] == flags[b] and all(
                (shape[a] == shape[b] == 1) or (whole and shape[a] != 1 and shape[b] != 1) for shape, whole in padded
            )

        groups: list[list[int]] = []
        for axis in (a for a in range(ndim) if self.domain[a] != 1):
            if groups and together(groups[-1][-1], axis):
                groups[-1].append(axis)
            else:
                groups.append([axis])
        self.groups = groups
        self.sizes = [math.prod(self.domain[a] for a in group) for group in groups]
        self.cut = [[i for i, g in enumerate(groups) if flags[g[0]][k]] for k in range(len(self.reductions))]
        self.tile = self._tile({i for cut in self.cut for i in cut})
        self.counts = [-(-n // t) for n, t in zip(self.sizes, self.tile, strict=True)]
        self.blocks = math.prod(self.counts)
        self.walk = [self._walk(v) for v in (*self.inputs, *self.outputs)]

    def _walk(self, v: int) -> tuple[Shape | None, list[bool] | None]:
        """Return the merged shape of an operand and along which axes it is cut; (None, None) for a number."""
        if not self.plan.dtype(v):
            return None, None
        shape = self._merged(self.plan.shape(v))
        return shape, [n != 1 for n in shape]

    def _tile(self, cut: set[int]) -> list[int]:
        """Fill a block from the last axis; but first from a reduced earlier axis, so that partials are few."""
        last = len(self.sizes) - 1
        tile = [1] * len(self.sizes)
        room = self.block
        order = list(range(last, -1, -1))
        if cut and last not in cut:
            order = [*sorted(cut, reverse=True), *(i for i in order if i not in cut)]
            room //= min(RUN, self.sizes[last])
        for i in order:
            if i == last and last not in cut:
                room = self.block // math.prod(tile)
            pieces = -(-self.sizes[i] // max(1, min(self.sizes[i], room))) if self.sizes[i] else 1
            tile[i] = max(1, -(-self.sizes[i] // pieces))
            if i == last and pieces > 1:
                tile[i] = -(-tile[i] // ALIGN) * ALIGN  # blocks begin with a cache line
            room //= tile[i]
        return tile

    def _axes(self, v: int) -> Axes:
        axes: Axes = self.steps[v].attrs["axis"]
        return axes

    def _merged(self, shape: Shape) -> Shape:
        """Return a shape with its axes merged."""
        shape = (1,) * (len(self.domain) - len(shape)) + shape
        return tuple(math.prod(shape[a] for a in group) for group in self.groups)

    # --- places in the arena ---

    def _find_places(self) -> None:
        """Say where the partial results of all blocks lie, behind the plan's temporaries, and then the registers."""
        self.partials: dict[int, Place] = {}
        end = self.plan.arena_bytes
        for n, v in enumerate(self.reductions if self.tiled else []):
            dtype, cut = accumulator(self.steps[v]) or self.steps[v].dtype, self.cut[n]
            if dtype != self.steps[v].dtype or any(self.counts[k] > 1 for k in cut):  # else the result is the place
                shape = tuple(self.counts[k] if k in cut else size for k, size in enumerate(self.sizes))
                self.partials[n] = Place(end, shape, dtype)
                end = self.partials[n].end
        self.start = end
        self.places: list[Place] = []  # of the registers of the first worker
        for dtype in self.registers:
            self.places.append(Place(end, tuple(self.tile) if self.tiled else self.domain, dtype))
            end = self.places[-1].end
        self.size_of_registers = end - self.start

    @property
    def workers(self) -> int:
        """How many threads share the blocks."""
        pays = self.tiled and not self.together and self.size >= THREADED and self.size * self.effort >= WORTH
        return min(threads(), self.blocks) if pays else 1

    @cached_property
    def effort(self) -> int:
        """How many cheap ops take as long as what is done with one element; a chain is like two."""
        alone = sum(EFFORT.get(step.op.name, 1) for v, step in self.steps.items() if v not in self.chains)
        links = (link.op for chain in self.chains.values() for link in chain.links)
        return alone + 2 * len(self.chains) + sum(EFFORT.get(op, 0) for op in links)

    def needs(self, workers: int = 0) -> int:
        """Return the bytes of the arena that are taken: temporaries, partial results, registers of all workers."""
        return self.start + (workers or self.workers) * self.size_of_registers

    def _bind(self, workers: int) -> tuple[dict[int, Array], list[list[Array]]]:
        """Return the partial results, and the registers of each worker, in the arena of this thread."""
        arena = self.executor.arena(self.needs(workers))
        shifts = [k * self.size_of_registers for k in range(workers)]
        registers = [[p._replace(start=p.start + shift).of(arena) for p in self.places] for shift in shifts]
        return {n: place.of(arena) for n, place in self.partials.items()}, registers

    # --- the function ---

    def _write(self) -> None:
        """Write the region as a Python function of its inputs, outputs, results of reductions and scratch registers."""
        sums = self._sums()
        order = list(self.steps)
        last = {x: i for i, v in enumerate(order) for x in self.steps[v].ins if isinstance(x, int)}
        spells = {v: words(s, [not self.plan.dtype(x) for x in s.ins]) for v, s in self.steps.items()}
        spells |= dict.fromkeys(self.chains, "")  # they may write where an operand lies
        names: dict[str, Any] = {name: getattr(np, name) for name in NAMES}
        for v, step in self.steps.items():
            if v in self.chains:
                names[f"chain{v}"] = self.chains[v] if self.tiled and not self.together else self.chains[v].shared
            elif function := faster(step, self.at_once):
                names[f"fast_{step.op.name}"], spells[v] = function, f"fast_{step.op.name}({{x}}, {{z}})"
        outputs = {v: f"o{n}" for n, v in enumerate(self.outputs)}
        at = {v: i for i, v in enumerate(order)}
        late = [v for v in outputs if self._spoiled(v, v, at[v], last, spells[v])]
        place = {v: f"i{n}" for n, v in enumerate(self.inputs)}
        place |= self._registers(order, last, spells, outputs, late)

        def text(x: int | Const, dtype: str) -> str:
            if isinstance(x, int):
                return place[x]
            name = f"c{x.number}_{dtype}".replace("-", "m")
            names[name] = np.asarray(x.number, dtype)  # twice as fast as a Python number
            return name

        spares: dict[str, str] = {}  # registers that hold something within one step

        def spare(dtype: str) -> str:
            if dtype not in spares:
                spares[dtype] = f"r{len(self.registers)}"
                self.registers.append(dtype)
            return spares[dtype]

        lines: list[str] = []
        for i, v in enumerate(order):
            step, spell = self.steps[v], spells[v]
            operands = [text(x, step.common) for x in step.ins]
            if step.kind == "reduction":
                n = self.reductions.index(v)
                names[f"a{n}"] = tuple(self.cut[n]) if self.tiled else self._axes(v)
                names[f"d{n}"] = accumulator(step)
                line = f"{REDUCE[step.op.name]}.reduce({operands[0]}, axis=a{n}, dtype=d{n}, out=p{n}, keepdims=True)"
                if add := sums.get(v):
                    names[f"add{n}"] = add
                    line = f"add{n}({', '.join(operands)}, p{n})"
                lines.append(line)
            elif v in self.chains:
                lines.append(f"chain{v}({', '.join([*operands, place[v]])})")
            elif spell is None:
                names |= {f"f{i}": step.op.run, f"k{i}": step.attrs, "xp": np}
                lines.append(f"copyto({place[v]}, f{i}(xp, {', '.join(operands)}, **k{i}), casting='unsafe')")
            else:
                one, minus = (
                    text(Const(n), step.common) if f"{{{w}}}" in spell else "" for w, n in (("one", 1), ("minus", -1))
                )
                slots = dict(zip(SLOTS, operands, strict=False))
                slots |= {w: spare(dtype) for w, dtype in (("m", "bool"), ("s", step.dtype)) if f"{{{w}}}" in spell}
                lines += spell.format(z=place[v], one=one, minus=minus, **slots).split("; ")
        lines += [f"copyto({outputs[v]}, {place[v]})" for v in late]
        arguments = [
            *(place[v] for v in self.inputs),
            *outputs.values(),
            *(f"p{n}" for n in range(len(self.reductions))),
        ]
        arguments += [f"r{n}" for n in range(len(self.registers))]
        self.source = f"def region({', '.join(arguments)}):\n    " + "\n    ".join(lines)
        exec(compile(self.source, "<region>", "exec"), names)
        self.body: Callable[..., None] = names["region"]

    def _sums(self) -> dict[int, Callable[..., None]]:
        """Return what adds up faster than NumPy, by reductions, which take the factors of products of their own."""
        found = {}
        shape = tuple(self.tile) if self.tiled else self.domain
        for n, v in enumerate(self.reductions):
            step, axes = self.steps[v], tuple(self.cut[n]) if self.tiled else self._axes(v)
            (x,) = step.ins
            plain = isinstance(x, int) and x in self.steps and x not in self.chains and x not in self.outputs
            alone = plain and sum(x in other.ins for other in self.steps.values()) == 1
            factors = factors_of(self.plan, self.steps[x], self.domain) if alone else ()  # type: ignore[index]
            if add := adding(step, shape, axes, bool(factors)):
                found[v] = add
                if factors:
                    del self.steps[x]  # type: ignore[arg-type]
                    self.steps[v] = step._replace(ins=factors)
        return found

    def _registers(
        self,
        order: list[int],
        last: dict[int, int],
        spells: dict[int, str | None],
        outputs: dict[int, str],
        late: list[int],
    ) -> dict[int, str]:
        """Say where each value is put: in place of an operand that is not needed any more, an output, or a register.

        Values that take over one another's place form a chain; a chain that ends in an output lives there from the
        start, unless that would spoil an operand in its place. The other chains share registers.
        """
        at = {v: i for i, v in enumerate(order)}
        chain: dict[int, list[int]] = {}
        for i, v in enumerate(order):
            step, spell = self.steps[v], spells[v]
            if step.kind == "reduction":
                continue
            heirs = [
                x
                for x in dict.fromkeys(step.ins)
                if x in chain
                and x not in outputs
                and last[x] == i
                and self.steps[x].dtype == step.dtype
                and not any(read_late(spell, n) for n, y in enumerate(step.ins) if y == x)
            ]
            begun = chain[heirs[0]] if heirs else []
            shared = v in outputs and v not in late  # it may lie where an operand does
            chain[v] = (
                [] if shared and begun and self._spoiled(v, begun[0], at[begun[0]], last, spells[begun[0]]) else begun
            )
            chain[v].append(v)
        ends: dict[int, list[int]] = {}  # the chains that are read for the last time at each step
        for u in chain:
            if chain[u][-1] == u and u not in outputs:
                ends.setdefault(last[u], []).append(u)
        place: dict[int, str] = {}
        self.registers: list[str] = []
        free: dict[str, list[str]] = {}
        for i, v in enumerate(order):
            if v in chain and chain[v][0] == v:
                end, dtype = chain[v][-1], self.steps[v].dtype
                if end in outputs and end not in late:
                    name = outputs[end]
                elif free.get(dtype):
                    name = free[dtype].pop()
                else:
                    name = f"r{len(self.registers)}"
                    self.registers.append(dtype)
                place |= dict.fromkeys(chain[v], name)
            for u in ends.get(i, ()):
                free.setdefault(self.steps[u].dtype, []).append(place[u])
        return place

    def _clashing(self, v: int) -> list[int]:
        """Return the values that share memory with the target in which a value is put: leaves, and guests."""
        if v not in self.plan.tops or not self.plan.direct[i := self.plan.tops.index(v)]:
            return []
        guests = [guest for guest, target in self.plan.guests.items() if target == i]
        return guests + [leaf for target, leaf, _ in self.plan.clashes if target == i]

    def _spoiled(self, v: int, first: int, at: int, last: dict[int, int], spell: str | None) -> bool:
        """Tell whether output v, if written from value ``first`` on, spoils an operand in its place that is read later.

        ``at`` is where that is in the order of the steps, and ``spell`` how.
        """
        step = self.steps[first]
        return any(
            last.get(leaf, -1) > at
            or (last.get(leaf) == at and any(read_late(spell, n) for n, x in enumerate(step.ins) if x == leaf))
            for leaf in self._clashing(v)
        )

    # --- running ---

    @property
    def is_whole_plan(self) -> bool:
        """Whether the function itself is all there is to do: small operands, leaves only, targets written at once."""
        plan, results = self.plan, [*self.outputs, *self.reductions]
        return not (self.tiled or self.squeezed or plan.stored or sorted(results) != sorted(plan.tops)) and all(
            x < len(plan.leaves) for x in self.inputs
        )

    def runner(self) -> Runner:
        """Return the runner of a plan that is this region and nothing more."""
        body, bound, make = self.body, self.executor.bound, self._registers_of_one
        inputs, places = self.inputs, [self.plan.tops.index(v) for v in (*self.outputs, *self.reductions)]
        everything = inputs == list(range(len(self.plan.leaves))) and places == sorted(places)

        def run(targets: Sequence[Array], leaves: Sequence[Any]) -> None:
            state = hush()
            try:
                body(*leaves, *targets)
            finally:
                speak(state)

        def run_with_registers(targets: Sequence[Array], leaves: Sequence[Any]) -> None:
            registers = bound(self, make)
            state = hush()
            try:
                body(*[leaves[x] for x in inputs], *[targets[i] for i in places], *registers)
            finally:
                speak(state)

        return run if everything and not self.registers else run_with_registers

    def _registers_of_one(self) -> list[Array]:
        return self._bind(1)[1][0]

    def run(self, env: dict[int, Any], values: Several) -> None:
        """Work out the region: at once when it is small, else block by block."""
        for v in self.inputs:
            if v not in env:
                values.value(v, env)
        arrays = [env[v] for v in self.arguments]
        if self.squeezed:  # the function writes results with the reduced axes kept, as 1
            for n, v in enumerate(self.reductions, len(arrays) - len(self.reductions)):
                arrays[n] = arrays[n].reshape(reduced(self.domain, axis=self._axes(v)))
        if self.tiled:
            self._run_tiled(arrays)
        elif self.registers:
            self.body(*arrays, *self.executor.bound(self, self._registers_of_one))
        else:
            self.body(*arrays)

    def _run_tiled(self, arrays: list[Any]) -> None:
        results = arrays[len(arrays) - len(self.reductions) :]
        operands = [x if shape is None else x.reshape(shape) for x, (shape, _) in zip(arrays, self.walk, strict=False)]
        results = [x.reshape(self._merged(x.shape)) for x in results]
        workers = self.workers
        places, registers = self.executor.bound((self, workers), lambda: self._bind(workers))
        partials = [places.get(n, x) for n, x in enumerate(results)]
        operands += partials
        body, boxes, cut, free = self.body, self.boxes, self.cut, iter(registers)  # a worker takes one set

        def work(numbers: Iterator[int]) -> None:
            mine = operands + next(free)
            with Silence():
                for number in numbers:
                    body(*[x if box is None else x[box] for x, box in zip(mine, boxes[number], strict=True)])

        if workers > 1:
            share(work, self.blocks, workers)
        else:
            work(iter(range(self.blocks)))
        for n, (v, partial) in enumerate(zip(self.reductions, partials, strict=True)):
            if partial is not results[n]:
                ufunc = getattr(np, REDUCE[self.steps[v].op.name])
                ufunc.reduce(
                    partial, axis=tuple(cut[n]), dtype=accumulator(self.steps[v]), out=results[n], keepdims=True
                )

    @cached_property
    def boxes(self) -> list[list[tuple[slice, ...] | None]]:
        """What each block is of each operand, partial result and register; made when first run."""
        cuts = zip(self.sizes, self.tile, strict=True)
        slices = [[slice(i, min(i + t, n)) for i in range(0, n, t)] for n, t in cuts]
        return [self._box(number, slices) for number in range(self.blocks)]

    def _box(self, number: int, slices: list[list[slice]]) -> list[tuple[slice, ...] | None]:
        """Return what block ``number`` is of each operand, partial result and register."""
        at: list[int] = []  # its place in the grid, the last axis fastest
        for n in reversed(self.counts):
            number, i = divmod(number, n)
            at.insert(0, i)
        box = [s[i] for s, i in zip(slices, at, strict=True)]
        found: list[tuple[slice, ...] | None] = [
            None if cut is None else tuple([b if c else ALL for b, c in zip(box, cut, strict=True)])
            for _, cut in self.walk
        ]
        for cut in self.cut:
            found.append(tuple([slice(i, i + 1) if k in cut else box[k] for k, i in enumerate(at)]))
        return found + [tuple([slice(b.stop - b.start) for b in box])] * len(self.registers)


ALL = slice(None)
NAMES = sorted(
    {
        word
        for text in [*WORDS.values(), *SHORT.values(), *OF_INTS.values()]
        for word in re.findall(r"(?<!\.)\b([a-z_0-9]+)\(", text)
    }
    | {*REDUCE.values()}
)


def read_late(spell: str | None, n: int) -> bool:
    """Tell whether an op reads its operand n after it has begun to write the result: they need two places."""
    parts = (spell or "").split("; ")
    first = next((i for i, part in enumerate(parts) if "{z}" in part), len(parts))
    return any("{" + SLOTS[n] + "}" in part for part in parts[first + 1 :])


def accumulator(step: Step) -> Any:
    """Return the dtype in which a reduction is kept: float32 for sums of halves, 64 bits for sums of ints."""
    if step.op.name != "sum" or step.dtype in ("float32", "float64"):
        return None
    return np.dtype("float32" if step.dtype == "float16" else "uint64" if step.dtype[0] == "u" else "int64")
