"""What is worth doing, before how?  A plan: the steps of some op-trees, cut into stages, with a place for every value.

A plan knows structure only: shapes, dtypes, slots. It holds no tensor and no number, so that one plan serves every
tree of the same structure. Making it takes three passes over the steps:

1. equal sub-trees become one step, and operands are cast to a common dtype where they differ;
2. steps are gathered in *stages*: an elementwise region over one shape, with the reductions that end it, is one stage
   and one pass over memory; every product, gather and draw is a stage of its own; views cost nothing;
3. every value that outlives its stage gets a place: the target itself where that spoils no operand, else an offset in
   the arena, chosen by lifetime.

All values are worked out first, then all targets are written: the rule that makes ``x[:] = x.T`` and
``x[1:] = x[:-1]`` mean what they say.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from neonlite.ops import OPS, Op, Shape, bits, broadcast, c_strides, is_c
from neonlite.optree import Info, Leaves, program

ALIGN = 64  # bytes: a cache line


class Const(NamedTuple):
    """A small whole number that is part of the structure."""

    number: int


class Step(NamedTuple):
    """One op: ``ins`` are the numbers of values (leaves first, then steps) or constants."""

    op: Op
    attrs: dict[str, Any]
    ins: tuple[int | Const, ...]
    shape: Shape
    dtype: str
    common: str

    @property
    def kind(self) -> str:
        """How it may be run."""
        return self.op.kind

    @property
    def nbytes(self) -> int:
        """The bytes of its result."""
        return math.prod(self.shape) * bits(self.dtype) // 8


class Stage(NamedTuple):
    """Steps that run together: ``region`` (one pass over a shape), ``call``, or what an executor makes of several.

    A stage of several may hold, beside steps over its domain, some over the shape of its reductions.
    """

    kind: str
    domain: Shape
    steps: list[int]


class Plan:
    """How to work out some op-trees into some targets; ``print(plan)`` shows stages, bytes, temporaries and peak.

    ``clashes`` holds (target, leaf, "same" or "some") where memory is shared; ``crossed`` says that targets share
    memory among themselves.
    """

    run: Callable[[Sequence[Any], Sequence[Any]], None]  # set by the executor
    needs: Callable[[], int]  # the bytes that the executor keeps for a run: set by it, if it keeps any

    def __init__(
        self,
        trees: Sequence[Any],
        leaves: Leaves | None,
        targets: Sequence[Info],
        clashes: Iterable[tuple[int, int, str]] = (),
        crossed: bool = False,
    ) -> None:
        found, leaves, results = program(trees, leaves)
        self.leaves = [x.info if hasattr(x, "info") else type(x) for x in leaves.values()]
        self.names = [getattr(x, "name", None) or f"x{i}" for i, x in enumerate(leaves.values())]
        self.targets = list(targets)
        self.clashes = list(clashes)
        self.needs = lambda: 0
        self.used = 0  # when it was last used, for the cache
        self.distinct = len(found)  # distinct sub-trees of the trees
        self.steps: list[Step] = []
        self.strides: dict[int, tuple[float, ...]] = {}  # of views, in elements; NaN where they are unknown
        self.bounds: list[tuple[int, str]] = []  # leaves that are whole numbers, and the int dtypes they must fit
        numbers: list[int] = []  # the value of each instruction

        def value(x: Any) -> int | Const:
            return Const(x[0]) if isinstance(x, tuple) else numbers[x] if x >= 0 else -1 - x

        for op, attrs, operands, shape, dtype, common in found:
            numbers.append(self._add(op, dict(attrs), [value(x) for x in operands], shape, dtype, common))
        self.tops: list[int] = []
        for x, info in zip(results, self.targets, strict=True):
            self.tops.append(self._top(value(x), info))
        self.crossed = crossed
        self.viewed = {self.source(v) for v, step in self.numbered if step.kind == "view"}  # values that views show
        # what fails leaves all targets as they were; whole numbers may fail at a negative power
        self.failing = [v for v, s in self.numbered if s.op.may_fail or (s.op.name == "pow" and "int" in s.common)]
        self.regroup(self._stages())

    @cached_property
    def is_elementwise(self) -> bool:
        """Whether all is one shape, or a single number, and each element is made of those in its place alone.

        Then it does not matter in which order elements lie, if it is the same for all.
        """
        shape = self.targets[0].shape
        leaves = [x.shape for x in self.leaves if isinstance(x, Info)]
        made = all(step.kind == "elementwise" for step in self.steps) and not self.failing
        alike = all(s == shape or math.prod(s) == 1 for s in [*leaves, *(step.shape for step in self.steps)])
        return made and alike and all(target.shape == shape for target in self.targets)

    # --- steps ---

    def _add(self, op: Op, attrs: dict[str, Any], ins: list[int | Const], shape: Shape, dtype: str, common: str) -> int:
        self._note_bounds(ins[op.joined], common)
        if op.kind != "random":
            for i in range(len(ins))[op.joined]:
                if (have := self.dtype(ins[i])) and have != common:
                    ins[i] = self._add(OPS["cast"], {"to": common}, [ins[i]], self.shape(ins[i]), common, common)
        if op.kind in ("reduction", "view", "library"):  # these want arrays
            ins = [
                x if self.dtype(x) else self._add(OPS["cast"], {"to": common}, [x], (1, 1), common, common) for x in ins
            ]
        if op.kind == "elementwise":
            ins = [self._unstretched(x) for x in ins]
        if op.name == "reshape" and self._torn(ins[0], shape):  # type: ignore[arg-type]
            ins = [self._add(OPS["cast"], {"to": dtype}, ins, self.shape(ins[0]), dtype, dtype)]
        self.steps.append(Step(op, attrs, tuple(ins), shape, dtype, common))
        v = len(self.leaves) + len(self.steps) - 1
        if op.kind == "view":
            self.strides[v] = self._view_strides(self.steps[-1])
        return v

    def _note_bounds(self, operands: Sequence[int | Const], common: str) -> None:
        """Note which whole numbers have to fit an int dtype; OverflowError when one that is known does not."""
        if "int" in common:
            low, high = limits(common)
            for x in operands:
                if isinstance(x, Const) and not low <= x.number <= high:
                    raise OverflowError(overflow(x.number, common))
                if isinstance(x, int) and x < len(self.leaves) and self.leaves[x] is int:
                    self.bounds.append((x, common))

    def check(self, values: Sequence[Any]) -> None:
        """Raise OverflowError, before anything runs, when a number among the leaves does not fit where it is used."""
        for leaf, dtype in self.bounds:
            low, high = limits(dtype)
            if not low <= values[leaf] <= high:
                raise OverflowError(overflow(values[leaf], dtype))

    def _unstretched(self, x: int | Const) -> int | Const:
        """Return what a broadcast view was made of: elementwise steps stretch their operands anyway."""
        while isinstance(x, int) and (step := self.step(x)) and step.op.name == "broadcast":
            x = step.ins[0]
        return x

    def _top(self, x: int | Const, target: Info) -> int:
        """Return the value that becomes a target's: of its very shape and dtype, and of no other target."""
        step = self.step(x) if isinstance(x, int) else None
        if step and step.op.name == "cast" and step.dtype == target.dtype and len(self.targets) == 1:
            # nothing else reads it: what is cast is spread at once
            step = self.steps[x - len(self.leaves)] = step._replace(shape=target.shape)  # type: ignore[operator]
        fits = step and step.kind != "view" and step.shape == target.shape and step.dtype == target.dtype
        if not fits or x in self.tops:
            return self._add(
                OPS["cast"], {"to": target.dtype}, [x], target.shape, target.dtype, self.dtype(x) or target.dtype
            )
        return x  # type: ignore[return-value]

    def step(self, v: int) -> Step | None:
        """Return the step that makes a value; None for a leaf."""
        return self.steps[v - len(self.leaves)] if v >= len(self.leaves) else None

    def made(self, v: int) -> Step:
        """Return the step that makes a value that is no leaf."""
        return self.steps[v - len(self.leaves)]

    @property
    def numbered(self) -> list[tuple[int, Step]]:
        """The values that are steps: (number, step)."""
        return list(enumerate(self.steps, len(self.leaves)))

    def shape(self, x: int | Const) -> Shape:
        """Return the shape of a value; a number's is (1, 1)."""
        if isinstance(x, Const):
            return (1, 1)
        what = self.step(x) or self.leaves[x]
        return what.shape if isinstance(what, Step | Info) else (1, 1)

    def dtype(self, x: int | Const) -> str:
        """Return the dtype of a value; a number has none."""
        if isinstance(x, Const):
            return ""
        what = self.step(x) or self.leaves[x]
        return what.dtype if isinstance(what, Step | Info) else ""

    def contiguous(self, v: int) -> bool:
        """Tell whether a value's elements lie one after another."""
        if v in self.strides:
            return is_c(self.shape(v), self.strides[v])
        if v < len(self.leaves):
            what = self.leaves[v]
            return not isinstance(what, Info) or bool(what.attrs["contiguous"])
        return (
            v not in self.tops
            or not self.direct[self.tops.index(v)]
            or self.targets[self.tops.index(v)].attrs["contiguous"]
        )

    def _strides(self, v: int) -> tuple[float, ...]:
        """Return a value's strides, in elements, as it lies in memory; NaN where they are not known."""
        if v >= len(self.leaves) or self.contiguous(v):
            return self.strides.get(v) or c_strides(self.shape(v))
        return (math.nan,) * len(self.shape(v))

    def _view_strides(self, step: Step) -> tuple[float, ...]:
        """Return the strides of a view. Of what is reshaped they are known where its elements follow one another."""
        v: int = step.ins[0]  # type: ignore[assignment]
        shape, strides = self.shape(v), self._strides(v)
        if step.op.name == "transpose":
            return tuple(strides[a] for a in step.attrs["axes"])
        if step.op.name == "slice":
            return tuple(s * by for s, (_, _, by) in zip(strides, step.attrs["index"], strict=True))
        if step.op.name == "broadcast":
            repeated = (0.0,) * (len(step.shape) - len(shape))
            return repeated + tuple(s if n != 1 else 0.0 for n, s in zip(shape, strides, strict=True))
        return c_strides(step.shape) if is_c(shape, strides) else (math.nan,) * len(step.shape)

    def _torn(self, v: int, to: Shape) -> bool:
        """Tell whether a value takes another shape only as a copy: an axis of it runs over a gap between elements."""
        axes = [(n, s) for n, s in zip(self.shape(v), self._strides(v), strict=True) if n != 1]
        ends = {math.prod(to[a:]) for a in range(len(to))}  # after how many elements an axis begins anew
        inner = 1
        for (n, s), (_, outer) in itertools.pairwise(reversed(axes)):
            inner *= n
            if outer != n * s and inner not in ends:
                return True
        return False

    def source(self, v: int) -> int:
        """Return the value whose memory a view shows; any other value itself."""
        while (step := self.step(v)) and step.kind == "view":
            v = step.ins[0]  # type: ignore[assignment]
        return v

    @property
    def values(self) -> range:
        """The numbers of the values that are steps."""
        return range(len(self.leaves), len(self.leaves) + len(self.steps))

    # --- stages ---

    def regroup(self, stages: list[Stage]) -> None:
        """Run such stages, in this order, and find a place for every value by them."""
        self.stages, self.stage_of = stages, {v: i for i, stage in enumerate(stages) for v in stage.steps}
        self.last_read = self._last_reads()
        self.direct = [not self.crossed and self._direct(i) for i in range(len(self.tops))]
        self.stored = self._stored()
        self.guests = self._guests()
        self.offsets, self.arena_bytes = self._pack()

    def _stages(self) -> list[Stage]:
        """Gather the steps: as early as their operands allow, and together when they run over the same shape."""
        level = dict.fromkeys(range(len(self.leaves)), 0)  # the round in which a value is worked out
        ready = dict(level)  # the round in which it can be read from memory
        for v, step in self.numbered:
            ins = [x for x in step.ins if isinstance(x, int)]
            if step.kind == "view":
                level[v] = ready[v] = ready[ins[0]]
                continue
            if domain := self._domain(step):
                here = [self._flows(x, domain) for x in ins]
                level[v] = max([level[x] if flows else ready[x] for x, flows in zip(ins, here, strict=True)], default=0)
            else:
                level[v] = max([ready[x] for x in ins], default=0)
            ready[v] = level[v] + 1
        self._put_off(level)
        groups: dict[tuple[int, str, Any], list[int]] = defaultdict(list)
        for v, step in self.numbered:
            if step.kind != "view":
                domain = self._domain(step)
                groups[level[v], "region" if domain else "call", domain or v].append(v)
        order = sorted(groups, key=lambda key: key[0])
        return [
            Stage(kind, domain if kind == "region" else self.shape(domain), groups[n, kind, domain])
            for n, kind, domain in order
        ]

    def _domain(self, step: Step) -> Shape | None:
        """Return the shape over which a step runs block by block; None where it does not."""
        if step.kind == "reduction":
            return self.shape(step.ins[0])
        return step.shape if step.kind == "elementwise" else None

    def _put_off(self, level: dict[int, int]) -> None:
        """Put steps off until they are needed: what is read at once where it is made need not be written meanwhile.

        A reduction waits until its operand is read anyway.
        """
        readers: dict[int, list[int]] = defaultdict(list)
        for v, step in self.numbered:
            for x in {x for x in step.ins if isinstance(x, int)}:
                readers[x].append(v)
        for v, step in reversed(self.numbered):
            needed = {level[u] for u in readers[v]}
            if not needed or any(self.made(u).kind == "view" for u in readers[v]):
                continue
            if step.kind == "elementwise" and v not in self.tops and len(needed) == 1:
                if all(self._domain(self.made(u)) == step.shape for u in readers[v]):
                    level[v] = needed.pop()
            elif step.kind == "reduction":
                x, domain = step.ins[0], self._domain(step)
                beside = {level[u] for u in readers[x] if self._domain(self.made(u)) == domain}
                level[v] = max((n for n in beside if level[v] <= n < min(needed)), default=level[v])

    def _flows(self, x: int, domain: Shape) -> bool:
        """Tell whether a value can be used by the stage that makes it: it comes out block by block."""
        step = self.step(x)
        return step is not None and step.kind == "elementwise" and step.shape == domain

    def _last_reads(self) -> dict[int, int]:
        """Return the last stage that reads each value from memory."""
        last: dict[int, int] = {}
        for v, step in self.numbered:
            if step.kind != "view":
                for x in step.ins:
                    if isinstance(x, int):
                        u = self.source(x)
                        last[u] = max(last.get(u, -1), self.stage_of[v])
        return last

    # --- places ---

    def _direct(self, i: int) -> bool:
        """Tell whether a target can hold its value at once: no operand that shares its memory is read afterwards."""
        v = self.tops[i]
        step, here = self.made(v), self.stage_of[v]
        if any(self.stage_of[u] >= here and (u != v or step.kind != "library") for u in self.failing):
            return False
        if (step.kind != "elementwise" or v in self.viewed) and not self.targets[i].attrs["contiguous"]:
            return False
        for target, k, how in self.clashes:
            if target == i and (last := self.last_read.get(k, -1)) >= here:
                in_step = how == "same" and self._ends_stage(v) and k not in self.viewed
                if last > here or not in_step:
                    return False
        return True

    def _ends_stage(self, v: int) -> bool:
        """Tell whether a value is written, element by element, after its stage has read all that it reads."""
        stage = self.stages[self.stage_of[v]]
        at_once = self.made(v).shape == stage.domain or not any(v in self.made(u).ins for u in stage.steps)
        return self.made(v).kind == "elementwise" and at_once

    def _stored(self) -> dict[int, int]:
        """Return the values that outlive their stage and live in no target, each with the last stage to read it."""
        kept: dict[int, int] = {}
        placed = {v for v, direct in zip(self.tops, self.direct, strict=True) if direct}
        for v, step in self.numbered:
            if step.kind == "view" or v in placed:
                continue
            last = self.last_read.get(v, -1)
            if v in self.tops:
                kept[v] = len(self.stages)
            else:
                stage = self.stages[self.stage_of[v]]
                wide = step.kind == "elementwise" and step.shape == stage.domain
                if last > self.stage_of[v] or (stage.kind == "passes" and not wide):  # passes are several kernels
                    kept[v] = last
        return kept

    def _guests(self) -> dict[int, int]:
        """Return stored values that can live in a target until its own value is made: {value: target}.

        So ``e = exp(x)`` of a softmax, or ``W x`` before a bias is added, need no temporary.
        """
        guests: dict[int, int] = {}
        failed = max((self.stage_of[v] for v in self.failing), default=-1)
        for i, w in enumerate(self.tops):
            top = self.made(w)
            taken = any(target == i for target, _, _ in self.clashes) or not self.targets[i].attrs["contiguous"]
            if taken or not self.direct[i] or not self._ends_stage(w):
                continue
            here = self.stage_of[w]
            until = here - 1 if self.stages[here].kind == "products" else here  # each product is added at once
            free = -1  # the last stage in which the target is taken
            for v in sorted(self.stored, key=lambda v: self.stage_of[v]):
                step, first, last = self.made(v), self.stage_of[v], self.stored[v]
                fits = (step.shape, step.dtype) == (top.shape, top.dtype) and v not in self.viewed
                safe = max(free, failed) < first and last <= until
                if fits and safe and v not in self.tops and v not in guests:
                    guests[v], free = i, last
        return guests

    def _pack(self) -> tuple[dict[int, int], int]:
        """Give every stored value an offset in the arena; two share bytes only if their lives do not meet."""
        lives = [(self.stage_of[v], last, v) for v, last in self.stored.items() if v not in self.guests]
        offsets: dict[int, int] = {}
        for first, last, v in sorted(lives, key=lambda life: -self._padded(life[2])):
            busy = sorted(
                (offsets[u], offsets[u] + self._padded(u))
                for f, t, u in lives
                if u in offsets and f <= last and first <= t
            )
            at = 0
            for low, high in busy:
                if at + self._padded(v) <= low:
                    break
                at = max(at, high)
            offsets[v] = at
        return offsets, max((at + self._padded(v) for v, at in offsets.items()), default=0)

    def _padded(self, v: int) -> int:
        return padded(self.made(v).nbytes)

    # --- what it costs ---

    def traffic(self, stage: Stage) -> tuple[int, int]:
        """Return the bytes that a stage reads and writes."""
        inputs = {self.source(x) for v in stage.steps for x in self.made(v).ins if isinstance(x, int)}
        read = sum(self._nbytes(x) for x in inputs if x not in stage.steps)
        written = sum(self._nbytes(v) for v in stage.steps if v in self.stored or v in self.tops)
        return read, written

    def _nbytes(self, v: int) -> int:
        return math.prod(self.shape(v)) * bits(self.dtype(v)) // 8 if self.dtype(v) else 0

    @property
    def peak_bytes(self) -> int:
        """The bytes of all operands, targets and temporaries together."""
        return sum(map(self._nbytes, range(len(self.leaves)))) + sum(map(self._nbytes, self.tops)) + self.arena_bytes

    @property
    def flops(self) -> int:
        """The operations on numbers: one for each element that an op computes or reduces, 2 m n k for a product.

        Casts, copies, gathers, draws and a user's ops of kind "library" count nothing.
        """
        return sum(map(self._flops, self.steps))

    def _flops(self, step: Step) -> int:
        if step.op.name in ("dot", "matmul"):
            return 2 * math.prod(step.shape) * self.shape(step.ins[0])[-1]
        if step.kind == "reduction" or step.op.name in ("argmax", "argmin", "scatter"):
            return math.prod(self.shape(step.ins[0]))
        counts = step.kind == "elementwise" and step.op.name not in ("cast", "stop_gradient")
        return math.prod(step.shape) if counts else 0

    def __repr__(self) -> str:
        counts = [(self.distinct, "op"), (len(self.stages), "stage"), (len(self.offsets), "temporary buffer")]
        lines = [f"plan: {', '.join(f'{n} {word}' + 's' * (n != 1) for n, word in counts)}"]
        for i, stage in enumerate(self.stages):
            read, written = self.traffic(stage)
            ops = " ".join(self.made(v).op.name for v in stage.steps)
            lines.append(f"  {i + 1}. {stage.kind} {stage.domain}: {ops}; reads {size(read)}, writes {size(written)}")
        copies = self.direct.count(False)
        if copies:
            lines.append(f"  {len(self.stages) + 1}. copy into {copies} target{'s' * (copies > 1)}")
        lines.append(f"  arena {size(self.arena_bytes)}; peak {size(self.peak_bytes)}")
        return "\n".join(lines)


def padded(nbytes: int) -> int:
    """Return bytes rounded up to whole cache lines."""
    return -(-nbytes // ALIGN) * ALIGN


def limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest number of an int dtype."""
    n = bits(dtype)
    return (0, 2**n - 1) if dtype[0] == "u" else (-(2 ** (n - 1)), 2 ** (n - 1) - 1)


def overflow(number: int, dtype: str) -> str:
    """Return the words for a number that does not fit."""
    low, high = limits(dtype)
    return (
        f"the number {number} does not fit {dtype}, {low} to {high}: bring the tensor to a wider dtype with be.astype"
    )


def size(nbytes: float) -> str:
    """Return bytes in words: 1.5 kB."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"


def fits(value: Shape, target: Shape) -> bool:
    """Tell whether a value can be written into a target: the shapes broadcast to the target's."""
    try:
        return broadcast(value, target) == target
    except ValueError:
        return False
