"""What is a stage in CUDA?  A kernel or two: one pass over a domain each, written here as text.

A kernel computes steps that are elementwise over a domain, stores some of them, and may reduce others over the same
axes. Axes that all its arrays walk together are merged first, so most kernels see one axis or two. The text knows
which axes there are, dtypes, and how each array lies on the axes; sizes, strides and numbers are arguments. So one
kernel serves every shape of a structure, and its text is what it is remembered by.

Three schedules, each of blocks of 256 threads:

* ``map``: a thread takes V elements side by side, 16 bytes, where memory is aligned, and goes on with a stride;
* ``rows``: elements that are reduced lie side by side. 32 or 256 lanes share a result, each with V elements at a time;
* ``columns``: results lie side by side, and so do their threads: reads are coalesced. The lanes of a result are apart.

Lanes join what they found in shared memory, in a tree. Where results are few, several blocks share one, and a second
kernel joins their parts, in order. How work is shared out depends on shapes alone, so the bits of a sum do, too. What
is elementwise over results is worked out where they are known: by the first lane of each, at the end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neonlite.backend.cuda.words import (
    MEMORY,
    REDUCE,
    REGISTER,
    Reduction,
    fill,
    literal,
    narrowed,
    reduction,
    rounded,
    spelled,
    widened,
)
from neonlite.backend.plan import Const, Plan, Stage, Step, padded
from neonlite.ops import FLOATS, HALVES, Axes, Shape, bits

THREADS = 256  # in a block
BLOCKS = 4096  # of a map, at most
SHARED_BLOCKS = 512  # as many blocks, at least, share a large reduction
LANE = 16  # elements that a lane goes through, at least, before another block shares its result
LONGEST = 4096  # and at most, so that rounding errors of a sum stay small
WARP = 32
SEVERAL = 16  # reductions in one kernel, at most: they have 48 kB of shared memory
LONG = 400  # steps of a kernel, and operands, at most: compilers take long over long ones

PREAMBLE = Path(__file__).with_name("preamble.cuh").read_text()

Layout = Callable[[Any], tuple[int, tuple[int, ...]]]  # address and strides of an array, in bytes
Launch = tuple[str, tuple[int, int], int, list[int | float]]  # source, grid, threads of a block, arguments


class Array(NamedTuple):
    """An array that a kernel reads or writes."""

    v: int
    name: str  # x0, x1 ... are read, y0, y1 ... written
    dtype: str
    axes: Shape  # its own axis on each merged axis, for strides; -1 where it has none and is repeated
    sizes: Shape  # along the merged axes
    contiguous: bool


def kernels(plan: Plan, stage: Stage) -> list[Kernel] | None:
    """Return the kernels of a region; None when CUDA has no words for one of its steps, or it has too many of them.

    There is one for each set of axes that are reduced, and the last stores the elementwise results: they may lie where
    operands do.
    """
    steps = {v: plan.made(v) for v in stage.steps}
    if len(steps) > LONG or len({x for step in steps.values() for x in step.ins}) > LONG:
        return None
    for step in steps.values():
        if step.kind == "elementwise" and spelled(step, "xyw", _given(plan, step)) is None:
            return None
        if step.kind == "reduction" and step.op.name not in REDUCE:
            return None
    groups: dict[tuple[Axes, int], list[int]] = {}
    for n, v in enumerate(v for v, step in steps.items() if step.kind == "reduction"):
        axes = tuple(a for a in steps[v].attrs["axis"] if stage.domain[a] != 1)
        groups.setdefault((axes, n // SEVERAL), []).append(v)
    stored = [v for v, s in steps.items() if s.kind != "reduction" and outlives(plan, v)]
    if not stored and not groups:
        return []
    last = len(groups) - 1
    found = [Kernel(plan, steps, stage.domain, stored if n == last else [], vs) for n, vs in enumerate(groups.values())]
    return found or [Kernel(plan, steps, stage.domain, stored, [])]


def outlives(plan: Plan, v: int) -> bool:
    """Tell whether a value is written, as it is read by another kernel or is a target's."""
    return v in plan.stored or v in plan.tops


def _given(plan: Plan, step: Step) -> str:
    return plan.dtype(step.ins[0])


class Sum(NamedTuple):
    """What a kernel adds up: the words, and the reductions (by their places among the kernel's) that are had of it."""

    words: Reduction
    results: list[int]


class Kernel:
    """A pass over a domain. ``source()`` is its text, ``launches()`` what is to be run with which arguments."""

    threads = THREADS

    def __init__(
        self, plan: Plan, steps: dict[int, Step], domain: Shape, outputs: Sequence[int], reductions: Sequence[int]
    ) -> None:
        self.plan, self.outputs, self.reductions = plan, list(outputs), list(reductions)
        self.used: list[int] = []  # the axes whose sizes are arguments
        wanted = {*outputs, *reductions}
        for v in reversed(steps):
            if v in wanted:
                wanted.update(x for x in steps[v].ins if isinstance(x, int))
        self.steps = {v: step for v, step in steps.items() if v in wanted}
        self.small = {v: step for v, step in self.steps.items() if v not in reductions and step.shape != domain}
        self.numbered = {v: n for n, v in enumerate(v for v in self.steps if v not in reductions)}
        operands = dict.fromkeys((x, step.common) for step in self.steps.values() for x in step.ins)
        inputs = dict.fromkeys(x for x, _ in operands if isinstance(x, int) and x not in self.steps and plan.dtype(x))
        # numbers, as the widest type of their kind: the kernel rounds them
        self.numbers = {
            (x, wide): f"c{n}"
            for n, (x, wide) in enumerate(
                dict.fromkeys(
                    (x, "double" if common in FLOATS else "long long")
                    for x, common in operands
                    if isinstance(x, int) and x not in self.steps and not plan.dtype(x)
                )
            )
        }
        self.told = [n for n, v in enumerate(reductions) if outlives(plan, v)]  # those whose results are written
        sums: dict[Any, Sum] = {}
        for n, v in enumerate(reductions):
            step, words = self.steps[v], reduction(self.steps[v])
            sums.setdefault((step.ins, step.common, words._replace(result="")), Sum(words, [])).results.append(n)
        self.sums = list(sums.values())
        self._lay_out(domain, list(inputs))
        late = {*self.small, *(x for step in self.small.values() for x in step.ins)}
        early = {v for v in self.steps if v not in self.small}
        early |= {x for v in early for x in self.steps[v].ins}  # type: ignore[misc]
        self.late = [x for x in self.arrays if x.v in late]  # what is read and written where results are known
        self.early = [x for x in self.arrays if x.v in early]
        self._share_out()

    # --- geometry ---

    def _lay_out(self, domain: Shape, inputs: list[int]) -> None:
        """Merge axes that every array walks together."""
        plan, ndim = self.plan, len(domain)
        arrays = [(v, f"x{n}", plan.shape(v)) for n, v in enumerate(inputs)]
        arrays += [(v, f"y{n}", plan.shape(v)) for n, v in enumerate(self.outputs)]
        shapes = {name: (1,) * (ndim - len(shape)) + shape for _, name, shape in arrays}
        reduced = self.steps[self.reductions[0]].attrs["axis"] if self.reductions else ()

        def together(a: int, b: int) -> bool:
            return (a in reduced) == (b in reduced) and all(
                shapes[name][a] == shapes[name][b] == 1
                or (plan.contiguous(v) and shapes[name][a] != 1 and shapes[name][b] != 1)
                for v, name, _ in arrays
            )

        groups: list[list[int]] = []
        for a in (a for a in range(ndim) if domain[a] != 1):
            if groups and together(groups[-1][-1], a):
                groups[-1].append(a)
            else:
                groups.append([a])
        groups = groups or [[]]
        self.sizes = tuple(math.prod(domain[a] for a in group) for group in groups)
        self.cut = [i for i, group in enumerate(groups) if group and group[0] in reduced]
        self.kept = [i for i in range(len(groups)) if i not in self.cut]
        self.arrays: list[Array] = []
        for v, name, shape in arrays:
            short = ndim - len(shape)
            axes = tuple(g[-1] - short if g and shapes[name][g[-1]] != 1 else -1 for g in groups)
            sizes = tuple(math.prod(shapes[name][a] for a in g) for g in groups)
            self.arrays.append(Array(v, name, plan.dtype(v), axes, sizes, plan.contiguous(v)))

    def _share_out(self) -> None:
        """Choose the schedule, and how many elements a thread takes at once."""
        self.size = math.prod(self.sizes)
        self.results = math.prod(self.sizes[a] for a in self.kept)
        self.reduced = math.prod(self.sizes[a] for a in self.cut)
        self.schedule = "map" if not self.reductions else "rows" if len(self.sizes) - 1 in self.cut else "columns"
        self.index = "unsigned" if self.size < 2**31 else "long long"
        side_by_side = [(x.name, bits(x.dtype) // 8) for x in self.early if x.contiguous and self._moves(x)]
        wide = 16 // max((nbytes for _, nbytes in side_by_side), default=16)
        self.vector = 1 if self.schedule == "columns" or self.sizes[-1] % wide else wide
        self.aligned = [(name, self.vector * nbytes) for name, nbytes in side_by_side]
        self.lanes = 1
        if self.schedule == "rows":
            each = self.reduced // (WARP * self.vector)  # steps of a lane, of 32
            self.lanes = WARP if each <= (32 if self.results >= 4096 else 4) else THREADS
        elif self.schedule == "columns":
            while self.lanes < min(self.reduced, THREADS // WARP):
                self.lanes *= 2
            while self.lanes < THREADS and THREADS // self.lanes >= 2 * max(self.results, 1):
                self.lanes *= 2
        self.places = THREADS // self.lanes
        self.blocks = -(-self.results // self.places)
        each = self.lanes * self.vector
        few = min(SHARED_BLOCKS // max(self.blocks, 1), self.reduced // (each * LANE))
        self.parts = max(1, few, -(-self.reduced // (each * LONGEST))) if self.reductions else 1
        chunk = -(-self.reduced // (self.parts * self.vector)) * self.vector
        self.counts = [self.results, self.reduced, chunk] if self.reductions else [self.size]
        kinds = {"float": 4, "double": 8, "long long": 8, "unsigned long long": 8}
        self.rooms = [0]  # where the parts of each reduction lie in what is to work in, and where they end
        for found, _ in self.sums if self.parts > 1 else ():
            self.rooms.append(self.rooms[-1] + padded(kinds.get(found.kind, 24) * self.parts * self.results))
        self.texts: dict[tuple[str, int], str] = {}
        self.lasts: dict[str, tuple[str, list[int]]] = {}

    def _moves(self, x: Array) -> bool:
        """Tell whether an array goes on along the last axis; else one element serves all."""
        return x.sizes[-1] == self.sizes[-1] if x.contiguous else x.axes[-1] >= 0

    # --- the text ---

    def source(self, name: str = "kernel", vector: int | None = None) -> str:
        """Return the text of the kernel, for V elements at a time (its own choice unless told)."""
        V = vector or self.vector
        if (name, V) in self.texts:
            return self.texts[name, V]
        body = self._map() if self.schedule == "map" else self._reduction()
        self.used, sizes = used(body)
        head = [f"    constexpr int V = {V};  // elements side by side, for one thread at once"]
        if self.reductions:
            words = "threads of a result, results of a block"
            head.append(f"    constexpr int LANES = {self.lanes}, PLACES = {self.places};  // {words}")
        text = self.texts[name, V] = "\n".join(
            [
                *(f"// {line}" for line in self.formulas()),
                f'extern "C" __global__ void __launch_bounds__({self.threads}) {name}(',
                f"    {', '.join([*self._parameters(), *(f'long long N{a}' for a in self.used)])})",
                "{",
                f"    typedef {self.index} Index;",
                *head,
                *sizes,
                *body,
                "}",
                "",
            ]
        )
        return text

    def formulas(self) -> Iterator[str]:
        """Yield what is computed, a line for each result; parts that several use are spelled out in each."""
        texts: dict[int, str] = {x.v: x.name for x in self.arrays if x.name[0] == "x"}
        texts |= {x: name for (x, _), name in self.numbers.items()}
        for v, step in self.steps.items():
            words = [str(x.number) if isinstance(x, Const) else texts[x] for x in step.ins]
            sign = SIGNS.get(step.op.name)
            text = f"({words[0]} {sign} {words[1]})" if sign else f"{step.op.name}({', '.join(words)})"
            texts[v] = text if len(text) < 90 else "..."
        yield from (f"y{n} = {texts[v]}" for n, v in enumerate(self.outputs))
        where = f" over axis {' and '.join(map(str, self.cut))} of {len(self.sizes)}" if len(self.sizes) > 1 else ""
        yield from (f"s{n} = {texts[v]}{where}" for n, v in enumerate(self.reductions))

    def legend(self, named: Callable[[int], str]) -> Iterator[str]:
        """Yield what each argument is, in the words of ``named``."""
        yield from (f"{x.name}: {named(x.v)}" for x in self.arrays)
        yield from (f"{name}: {named(x)}" for (x, _), name in self.numbers.items())
        yield from (f"s{n}: {named(v)}" for n, v in enumerate(self.reductions))

    def _parameters(self) -> list[str]:
        """Return the parameters but for sizes; ``launches`` gives the arguments in the same order."""
        shared = [f"{found.kind}* s{m}" for m, (found, _) in enumerate(self.sums)]
        arrays, results = (self.early, shared) if self.parts > 1 else (self.arrays, self._told())
        counts = ("K", "J", "chunk")[: len(self.counts)] if self.reductions else ("I",)
        return [*self._pointers(arrays), *results, *self._numbers(arrays), *(f"long long {name}" for name in counts)]

    def _pointers(self, arrays: Sequence[Array]) -> list[str]:
        return [f"{'const ' * (x.name[0] == 'x')}{MEMORY[x.dtype]}* {x.name}" for x in arrays]

    def _told(self) -> list[str]:
        return [f"{MEMORY[self._summed(n).dtype]}* s{n}" for n in self.told]

    def _numbers(self, arrays: Sequence[Array]) -> list[str]:
        """Return the parameters for the numbers of the tree, and for strides."""
        strides = [f"long long {x.name}_{a}" for x in arrays for a in self._steps(x)]
        return [f"{wide} {name}" for (_, wide), name in self.numbers.items()] + strides

    def _steps(self, x: Array) -> list[int]:
        """Return the axes on which an array has a stride of its own."""
        return [] if x.contiguous else [a for a in range(len(self.sizes)) if x.axes[a] >= 0]

    def _map(self) -> list[str]:
        inner = self._pass({x.name: "i" for x in self.arrays if x.contiguous and x.sizes == self.sizes}, "        ")
        return [
            "    const Index stride = (Index)gridDim.x * blockDim.x * V;",
            "    for (Index i = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * V; i < I; i += stride) {",
            *self._coordinates("i", list(range(len(self.sizes))), inner, "        "),
            *inner,
            "    }",
        ]

    def _reduction(self) -> list[str]:
        inner = self._pass({}, "            ")
        lines = [
            *self._places(),
            "    const Index first = blockIdx.y * (Index)chunk, end = first + chunk < J ? first + chunk : J;",
        ]
        lines += [f"    {found.kind} a{m} = {found.start};" for m, (found, _) in enumerate(self.sums)]
        lines += [
            "    if (k < K) {",
            *self._coordinates("k", self.kept, inner, "        "),
            "        #pragma unroll 4",
            "        for (Index j = first + lane * V; j < end; j += LANES * V) {",
            *self._coordinates("j", self.cut, inner, "            "),
            *inner,
            "        }",
            "    }",
        ]
        for m, (found, _) in enumerate(self.sums):
            lines += self._join(m, found)
            if self.parts > 1:
                lines.append(f"    if (lane == 0 && k < K) s{m}[blockIdx.y * K + k] = p{m}[threadIdx.x];")
        return lines if self.parts > 1 else lines + self._ending()

    def _ending(self) -> list[str]:
        """Return the lines in which the first lane of a result makes of it what is elementwise, and writes."""
        indent, texts, lines = " " * 8, dict[int, str](), list[str]()
        for m, (_, results) in enumerate(self.sums):
            for n in results:
                step, text = self._summed(n), self._result(n, m)
                if self.small:
                    text = rounded(text, step.dtype)
                    lines.append(f"{indent}const {REGISTER[step.dtype]} t{n} = {text};  // {step.op.name}")
                    text = f"t{n}"
                texts[self.reductions[n]] = text
        for x in self.late:
            if x.name[0] == "x":
                lines.append(f"{indent}const {MEMORY[x.dtype]} {x.name}t = {x.name}[{self._place(x)}];")
                texts[x.v] = widened(f"{x.name}t", x.dtype)
        lines += self._work(self.small, texts, indent)
        lines += [f"{indent}{text}" for text in self._ends(texts)]
        return ["    if (lane == 0 && k < K) {", *self._coordinates("k", self.kept, lines, indent), *lines, "    }"]

    def _ends(self, texts: dict[int, str]) -> list[str]:
        """Return what writes that of which there is one for each result."""
        small = [x for x in self.arrays if x.v in self.small and x.name[0] == "y"]
        ends = [f"{x.name}[{self._place(x)}] = {narrowed(texts[x.v], x.dtype)};" for x in small]
        told = [(n, self.reductions[n]) for n in self.told]
        return ends + [f"s{n}[k] = {narrowed(texts[v], self._summed(n).dtype)};" for n, v in told]

    def _places(self) -> list[str]:
        """Return the lines in which a thread finds its lane, and the result it works for."""
        whose = ("% LANES", "/ LANES") if self.schedule == "rows" else ("/ PLACES", "% PLACES")
        return [
            f"    const int lane = threadIdx.x {whose[0]}, place = threadIdx.x {whose[1]};",
            "    const Index k = (Index)blockIdx.x * PLACES + place;  // the number of the result",
        ]

    def _join(self, m: int, found: Reduction) -> list[str]:
        return join(m, found, "1" if self.schedule == "rows" else "PLACES", self.threads)

    def _result(self, n: int, m: int, at: str = "threadIdx.x") -> str:
        """Return the value of a reduction, had of what the lanes found together."""
        return fill(reduction(self._summed(n)).result, a=f"p{m}[{at}]")

    def _summed(self, n: int) -> Step:
        return self.steps[self.reductions[n]]

    def _coordinates(self, flat: str, axes: list[int], inner: list[str], indent: str) -> list[str]:
        """Return the places on some axes, of those that are used, from their number in C order."""
        text = "\n".join(inner)
        lines = []
        for a in axes:
            if re.search(rf"\bi{a}\b", text):
                after = [f"n{b}" for b in axes if b > a]
                place = " / ".join([flat, *after]) if len(after) < 2 else f"{flat} / ({' * '.join(after)})"
                lines.append(f"{indent}const Index i{a} = {place}{f' % n{a}' * (a != axes[0])};")
        return lines

    def _place(self, x: Array) -> str:
        """Return where an array's element lies: the place on each axis times the elements that follow."""
        if not x.contiguous:
            return " + ".join(f"i{a} * {x.name}_{a}" for a in self._steps(x)) or "0"
        text = ""
        for a in range(len(self.sizes)):
            if x.axes[a] >= 0 and self.sizes[a] != 1:
                text = f"({text}) * n{a} + i{a}" if " " in text else f"{text} * n{a} + i{a}" if text else f"i{a}"
        return text or "0"

    def _pass(self, places: dict[str, str], indent: str) -> list[str]:
        """Return the lines that read V elements of each operand, work out the steps, and store and collect."""
        texts: dict[int, str] = {}
        lines = [line for x in self.early for line in self._read(x, places, texts, indent)]
        ys = [x for x in self.early if x.name[0] == "y"]
        lines += [f"{indent}#pragma unroll", f"{indent}for (int q = 0; q < V; ++q) {{"]
        lines += self._work({v: s for v, s in self.steps.items() if v not in self.small}, texts, f"{indent}    ")
        lines += [f"{indent}    {x.name}s.at[q] = {narrowed(texts[x.v], x.dtype)};" for x in ys]
        lines += [line for m in range(len(self.sums)) for line in self._collect(m, texts, f"{indent}    ")]
        lines.append(f"{indent}}}")
        return lines + [line for x in ys for line in self._write(x, places, indent)]

    def _read(
        self, x: Array, places: dict[str, str], texts: dict[int, str], indent: str, row: str = ""
    ) -> Iterator[str]:
        """Yield the lines that read V elements of an array, or the one that serves all; and note how each is spelled.

        ``row``: the place of the V elements among those that are kept, where several are.
        """
        kind, place, moves = MEMORY[x.dtype], places.get(x.name) or self._place(x), self._moves(x)
        const = "" if row else f"const {f'Pack<{kind}, V>' if moves else kind} "
        if x.name[0] == "y":
            yield f"{indent}Pack<{kind}, V> {x.name}s;"
            return
        if moves and x.contiguous:
            yield f"{indent}{const}{x.name}s{row} = load<V>({x.name} + {place});"
        elif moves:
            along = f" + q * {x.name}_{len(self.sizes) - 1}"
            if not row:
                yield f"{indent}Pack<{kind}, V> {x.name}s;"
            yield f"{indent}for (int q = 0; q < V; ++q) {x.name}s{row}.at[q] = {x.name}[{place}{along}];"
        else:
            yield f"{indent}{const}{x.name}s{row} = {x.name}[{place}];"
        text = f"{x.name}s{row}" + ".at[q]" * moves
        texts[x.v] = widened(text, x.dtype)

    def _work(self, steps: dict[int, Step], texts: dict[int, str], indent: str) -> Iterator[str]:
        """Yield the lines that work out steps for one element, and note the name of each."""
        for v, step in steps.items():
            if v not in self.reductions:
                words = spelled(step, [self._operand(x, step, texts) for x in step.ins], _given(self.plan, step))
                texts[v] = f"v{self.numbered[v]}"
                yield f"{indent}const {REGISTER[step.dtype]} {texts[v]} = {words};  // {step.op.name}"

    def _collect(self, m: int, texts: dict[int, str], indent: str) -> Iterator[str]:
        """Yield the line that adds one element to a sum."""
        found, results = self.sums[m]
        step = self._summed(results[0])
        x, j = self._operand(step.ins[0], step, texts), "(long long)j + q"
        more = fill(found.more, a=f"a{m}", x=x) or fill(found.join, a=f"a{m}", b=fill(found.lift, x=x, j=j))
        yield f"{indent}a{m} = {more};"

    def _write(self, x: Array, places: dict[str, str], indent: str) -> Iterator[str]:
        """Yield the line that writes V elements."""
        place = places.get(x.name) or self._place(x)
        if x.contiguous:
            yield f"{indent}store({x.name} + {place}, {x.name}s);"
        else:
            along = f" + q * {x.name}_{len(self.sizes) - 1}" * (x.axes[-1] >= 0)
            yield f"{indent}for (int q = 0; q < V; ++q) {x.name}[{place}{along}] = {x.name}s.at[q];"

    def _operand(self, x: int | Const, step: Step, texts: dict[int, str]) -> str:
        """Return an operand of a step: a small number, an argument, an element, or what an earlier step made."""
        if isinstance(x, Const):
            return literal(x.number, step.common)
        if x in texts:
            return texts[x]
        number = self.numbers[x, "double" if step.common in FLOATS else "long long"]
        return rounded(number, step.common) if step.common in HALVES else f"(({REGISTER[step.common]}){number})"

    # --- running ---

    @property
    def work(self) -> int:
        """The bytes in which blocks leave their parts of results."""
        return self.rooms[-1]

    def launches(self, values: dict[int, Any], layout: Layout, work: int) -> Iterator[Launch]:
        """Yield (source, grid, arguments) of what is to be run, in order; at ``work`` there is room for parts."""
        if (self.results if self.reductions else self.size) == 0:
            return
        at = {x.name: layout(values[x.v]) for x in self.arrays}
        V = self.vector
        for name, nbytes in self.aligned:
            if at[name][0] % nbytes:
                V = 1
        told = [layout(values[self.reductions[n]])[0] for n in self.told]
        rooms = [work + room for room in self.rooms[:-1]]
        numbers: list[int | float] = [
            float(values[x]) if wide == "double" else wrapped(int(values[x])) for x, wide in self.numbers
        ]

        def given(arrays: Sequence[Array], *results: int) -> list[int | float]:
            strides = [at[x.name][1][x.axes[a]] // (bits(x.dtype) // 8) for x in arrays for a in self._steps(x)]
            return [*(at[x.name][0] for x in arrays), *results, *numbers, *strides]

        source = self.source(vector=V)
        arguments = given(self.early, *rooms) if self.parts > 1 else given(self.arrays, *told)
        blocks = self.blocks if self.reductions else min(-(-self.size // (THREADS * V)), BLOCKS)
        sizes = [self.sizes[a] for a in self.used]
        yield source, (blocks, self.parts), self.threads, [*arguments, *self.counts, *sizes]
        if self.parts > 1:
            source, used = self.last()
            arguments = [*given(self.late, *told, *rooms), self.parts, self.results, *(self.sizes[a] for a in used)]
            yield source, (-(-self.results // WARP), 1), THREADS, arguments

    def last(self, name: str = "kernel") -> tuple[str, list[int]]:
        """Return the kernel that joins parts, part p of result k is p0[p K + k], and the axes of which it has sizes."""
        if name in self.lasts:
            return self.lasts[name]
        joined = [fill(found.join, a=f"a{m}", b=f"parts{m}[p * K + k]") for m, (found, _) in enumerate(self.sums)]
        body = [
            f"    constexpr int LANES = {THREADS // WARP}, PLACES = {WARP};",
            "    const int lane = threadIdx.x / PLACES, place = threadIdx.x % PLACES;",
            "    const long long k = (long long)blockIdx.x * PLACES + place;",
            *(f"    {found.kind} a{m} = {found.start};" for m, (found, _) in enumerate(self.sums)),
            "    if (k < K)",
            "        for (long long p = lane; p < P; p += LANES) {",
            *(f"            a{m} = {text};" for m, text in enumerate(joined)),
            "        }",
            *(line for m, (found, _) in enumerate(self.sums) for line in join(m, found, "PLACES")),
            *self._ending(),
        ]
        axes, sizes = used(body)
        parts = [f"const {found.kind}* parts{m}" for m, (found, _) in enumerate(self.sums)]
        parameters = [*self._pointers(self.late), *self._told(), *parts, *self._numbers(self.late)]
        parameters += [f"long long {name}" for name in ("P", "K", *(f"N{a}" for a in axes))]
        text = "\n".join(
            [
                f"// the parts of {' and '.join(self.steps[v].op.name for v in self.reductions)}, joined",
                f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}(',
                f"    {', '.join(parameters)})",
                "{",
                f"    typedef {self.index} Index;",
                *sizes,
                *body,
                "}",
                "",
            ]
        )
        self.lasts[name] = text, axes
        return self.lasts[name]


def used(body: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the axes whose sizes are read, and the lines that take them from the arguments."""
    axes = sorted({int(n) for n in re.findall(r"\bn(\d+)\b", "\n".join(body))})
    return axes, [f"    const Index {', '.join(f'n{a} = N{a}' for a in axes)};"] if axes else []


def join(n: int, found: Reduction, apart: str, threads: int = THREADS) -> list[str]:
    """Return the lines in which the lanes of a result join what they found: one half with the other, and so on."""
    other = f"p{n}[threadIdx.x + far * {apart}]"
    return [
        f"    __shared__ {found.kind} p{n}[{threads}];",
        f"    p{n}[threadIdx.x] = a{n};",
        "    __syncthreads();",
        "    for (int far = LANES / 2; far; far /= 2) {",
        f"        if (lane < far) p{n}[threadIdx.x] = {fill(found.join, a=f'p{n}[threadIdx.x]', b=other)};",
        "        __syncthreads();",
        "    }",
    ]


def wrapped(number: int) -> int:
    """Return a whole number of 64 bits as a signed one of the same bits."""
    return (number + 2**63) % 2**64 - 2**63


SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<="}
SIGNS |= {"gt": ">", "ge": ">="}
