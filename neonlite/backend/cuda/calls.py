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
from neonlite.backend.cuda.watch import at_once
from neonlite.backend.cuda.words import MEMORY, REDUCE, fill
from neonlite.backend.plan import Plan, Stage, Step
from neonlite.ops import in_range, out_of_range

WHERE = "NEONLITE_WAIT=1 in the environment shows where"

TAKE = """// y[row, i, e] = x[row, places[i], e]; places below 0 count from the end. One that is out of range is told of
extern "C" __global__ void {name}({T}* y, const {T}* x, const {P}* places, Word* failed, long long check,
                                  long long n, long long count, long long size, long long each)
{
{over}
        const long long e = i % each, slice = i / each;
        const {P} given = places[slice % count];
        const long long place = given < 0 ? given + size : given;
        const bool there = place >= 0 && place < size;
        y[i] = at(x + (slice / count * size + place) * each + e, there);
        if (!there) tell(failed, check, given);
    }
}
"""

ONEHOT = """// y = 1 in the {row} of each label, else 0. A label that is out of range is told of
extern "C" __global__ void {name}({T}* y, const {P}* labels, Word* failed, long long check,
                                  long long n, long long width, long long classes)
{
{over}
        const long long row = i / width, column = i % width, label = labels[{column}];
        put(y[i], label == {row} ? 1.0f : 0.0f);
        if (label < 0 || label >= classes) tell(failed, check, label);
    }
}
"""


def call(plan: Plan, stage: Stage, runtime: Any) -> Call | Kernel | Own | None:
    """Return the kernel of a call; None when there is none."""
    v = stage.steps[0]
    if plan.made(v).op in RAW:
        return Own(plan, v, runtime)
    step = plan.made(v)
    if step.op.name in REDUCE and step.op.result == "index":
        return Kernel(plan, {v: step}, plan.shape(step.ins[0]), [], [v])
    return Call(plan, v, runtime) if gathers(plan, step) or (step.op.name, step.dtype) in VALUES else None


def gathers(plan: Plan, step: Step) -> bool:
    """Tell whether a step is a gather that has a kernel."""
    return step.op.name in ("take", "onehot") and all(isinstance(x, int) and plan.contiguous(x) for x in step.ins)


class Call:
    """A gather or a draw as a kernel: ``source()`` and ``launches()`` as a ``Kernel`` has them."""

    work = 0

    def __init__(self, plan: Plan, v: int, runtime: Any) -> None:
        self.v, self.runtime, self.step = v, runtime, plan.made(v)
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
            more="",
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
        """Yield what is to be run; a draw takes its words from the stream now."""
        step, n = self.step, math.prod(self.step.shape)
        arrays = [layout(values[x])[0] for x in [self.v, *([] if step.kind == "random" else self.inputs)]]
        if step.op.name == "take":
            x, places = (values[v] for v in self.inputs)
            axis = step.attrs["axis"]
            check = self._check(places, x.shape[axis], "index")
            sizes = [*check, n, math.prod(places.shape), x.shape[axis], math.prod(x.shape[axis + 1 :])]
        elif step.op.name == "onehot":
            classes = step.attrs["nclass"]
            sizes = [*self._check(values[self.inputs[0]], classes, "label"), n, step.shape[1], classes]
        else:
            size, n = n, -(-n // (4 if step.op.name == "randn" or step.dtype == "float64" else 8))
            sizes = [n, size, *counted(values[self.inputs[0]].be.streams, "noise", n)]
        if n:
            yield self.text, (min(-(-n // THREADS), BLOCKS), 1), THREADS, [*arrays, *sizes]

    def _check(self, places: Any, size: int, what: str) -> list[int]:
        """Return where the kernel is to tell of an index that is out of range, and the number of the check."""
        below, watch = what == "index", self.runtime.watch
        if (at_once() and not recording()) or not math.prod(self.step.shape):  # then no kernel runs
            in_range(self.runtime.xp, places, size, what, below)
        words = f"be.{self.step.op.method}: {out_of_range(what, '{}', size, below)}"
        return [watch.address(), watch.check(f"{words}; {WHERE}")]
