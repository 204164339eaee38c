"""What is a call in CUDA?  Stages that are no pass over elements in step: gathers, draws, and the place of an extreme.

Products are the array library's business, and what has no kernel here is worked out op by op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from neonlite.backend.cuda.draws import OVER, RANDOM, VALUES, counted
from neonlite.backend.cuda.graphs import recording
from neonlite.backend.cuda.kernels import BLOCKS, THREADS, Kernel, Launch, Layout
from neonlite.backend.cuda.own import RAW, Own
from neonlite.backend.cuda.words import MEMORY, REDUCE, fill
from neonlite.backend.plan import Plan, Stage
from neonlite.ops import in_range

TAKE = """// y[row, i, e] = x[row, places[i], e]; places below 0 count from the end
extern "C" __global__ void {name}({T}* y, const {T}* x, const {P}* places,
                                  long long n, long long count, long long size, long long each, long long* wrong)
{
{over}
        const long long e = i % each, slice = i / each;
        long long place = places[slice % count];
        if (wrong && (place < -size || place >= size)) wrong[0] = 1, wrong[1] = place, place = 0;
        y[i] = x[(slice / count * size + (place < 0 ? place + size : place)) * each + e];
    }
}
"""

ONEHOT = """// y = 1 in the {row} of each label, else 0
extern "C" __global__ void {name}({T}* y, const {P}* labels, long long n, long long width,
                                  long long classes, long long* wrong)
{
{over}
        const long long row = i / width, column = i % width, label = labels[{column}];
        if (wrong && (label < 0 || label >= classes)) wrong[0] = 1, wrong[1] = label;
        y[i] = {narrow}(label == {row} ? 1.0f : 0.0f);
    }
}
"""


def call(plan: Plan, stage: Stage, xp: Any) -> Call | Kernel | Own | None:
    """Return the kernel of a call; None when there is none."""
    v = stage.steps[0]
    if plan.made(v).op.name in RAW:
        return Own(plan, v, xp)
    step = plan.made(v)
    if step.op.name in REDUCE and step.op.result == "index":
        return Kernel(plan, {v: step}, plan.shape(step.ins[0]), [], [v])
    gathers = step.op.name in ("take", "onehot") and all(isinstance(x, int) and plan.contiguous(x) for x in step.ins)
    return Call(plan, v, xp) if gathers or (step.op.name, step.dtype) in VALUES else None


class Call:
    """A gather or a draw as a kernel: ``source()`` and ``launches()`` as a ``Kernel`` has them."""

    work = 0

    def __init__(self, plan: Plan, v: int, xp: Any) -> None:
        self.v, self.xp, self.step = v, xp, plan.made(v)
        self.inputs = [x for x in self.step.ins if isinstance(x, int)]
        self.read = MEMORY.get(plan.dtype(self.inputs[-1]), "")  # the type of indices
        self.text = self.source()

    def source(self, name: str = "kernel") -> str:
        """Return the text of the kernel."""
        step, values = self.step, VALUES.get((self.step.op.name, self.step.dtype), "")
        classes = ["row", "column"] if step.attrs.get("axis") == 0 else ["column", "row"]
        return fill(
            {"take": TAKE, "onehot": ONEHOT}.get(step.op.name, RANDOM),
            name=name,
            over=OVER,
            values=values,
            narrow="narrowed" if step.dtype == "float16" else f"({MEMORY[step.dtype]})",
            T=MEMORY[step.dtype],
            P=self.read,
            row=classes[0],
            column=classes[1],
        )

    def legend(self, named: Callable[[int], str]) -> Iterator[str]:
        """Yield what each argument is, in the words of ``named``."""
        arrays = [] if self.step.kind == "random" else self.inputs
        words = ["y", "x", "places"] if len(arrays) == 2 else ["y", "labels"]
        yield from (f"{name}: {named(v)}" for name, v in zip(words, [self.v, *arrays], strict=False))

    def launches(self, values: dict[int, Any], layout: Layout, work: int) -> Iterator[Launch]:
        """Yield (source, grid, arguments) of what is to be run; IndexError when an index is out of range."""
        step, n = self.step, math.prod(self.step.shape)
        arrays = [layout(values[x])[0] for x in [self.v, *([] if step.kind == "random" else self.inputs)]]
        if step.op.name == "take":
            x, places = (values[v] for v in self.inputs)
            axis = step.attrs["axis"]
            wrong = self._check(places, x.shape[axis], True)
            sizes = [n, math.prod(places.shape), x.shape[axis], math.prod(x.shape[axis + 1 :]), wrong]
        elif step.op.name == "onehot":
            wrong = self._check(values[self.inputs[0]], step.attrs["nclass"], False)
            sizes = [n, step.shape[1], step.attrs["nclass"], wrong]
        else:
            size, n = n, -(-n // (4 if step.op.name == "randn" or step.dtype == "float64" else 8))
            sizes = [n, size, *counted(values[self.inputs[0]].be.streams, "noise", n)]
        if n:
            yield self.text, (min(-(-n // THREADS), BLOCKS), 1), THREADS, [*arrays, *sizes]

    def _check(self, places: Any, size: int, below: bool) -> int:
        """Raise IndexError when an index is out of range: the card is asked for the least and the largest; return 0.

        While a graph is recorded there is nobody to ask: return where the kernel is to note it.
        """
        what = "index" if below else "label"
        if graph := recording():
            return graph.note(size, what, below)
        if math.prod(places.shape):
            low, high = int(self.xp.min(places)), int(self.xp.max(places))
            if low < (-size if below else 0) or high >= size:
                in_range(self.xp, places, size, what, below)
        return 0
