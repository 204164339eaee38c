"""Run a plan op by op in the words of the array-API standard: the reference that every other executor is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from neonlite.backend.executors.quiet import Silence
from neonlite.backend.plan import Const, Plan, Step

MOVES = ("stop_gradient", "take", "concat", "unslice")  # whose results are elements of their operands, and views

Runner = Callable[[Sequence[Any], Sequence[Any]], None]


class Generic:
    """The executor for any namespace whose arrays can be written in place."""

    def __init__(self, runtime: Any, primitives: Any = None) -> None:
        self.runtime = runtime
        self.xp = runtime.xp
        # the standard does not compute with it: it is widened before each step, and what comes of it is rounded
        self.narrow = runtime.dtype("bfloat16") if "bfloat16" in runtime.dtypes else None

    def compile(self, plan: Plan) -> Runner:
        """Return ``run(targets, leaves)``: all values first, then all writes; a value is dropped after its last use."""
        strides = [stride for step in plan.steps for _, _, stride in step.attrs.get("index", ())]
        if not self.runtime.negative_steps and min(strides, default=1) < 0:
            raise IndexError(f"the runtime {self.runtime.name!r} has no views with negative steps: use be.take")
        count = len(plan.leaves)
        last: dict[int, int] = {}
        for v in plan.values:
            for x in plan.made(v).ins:
                if isinstance(x, int):
                    last[x] = v
        last |= dict.fromkeys(plan.tops, count + len(plan.steps))
        dropped: dict[int, list[int]] = {}
        for x, at in last.items():
            if x >= count:
                dropped.setdefault(at, []).append(x)
        shared = bool(plan.clashes) or len(plan.tops) > 1

        def run(targets: Sequence[Any], leaves: Sequence[Any]) -> None:
            values: dict[int, Any] = dict(enumerate(leaves))
            with Silence():
                for v in plan.values:
                    values[v] = self.value(plan.made(v), values)
                    for x in dropped.get(v, ()):
                        del values[x]
            results = [values[v] for v in plan.tops]
            if shared:  # a result may be a view of an operand that is a target, too
                results = [self.xp.asarray(x, copy=True) for x in results]
            for target, x in zip(targets, results, strict=True):
                target[...] = x

        return run

    def value(self, step: Step, values: dict[int, Any]) -> Any:
        """Return the value of one step, in exactly its shape and dtype."""
        if step.kind == "random":
            out = self.runtime.put(
                step.op.run(self.xp, *(values[x] for x in step.ins if isinstance(x, int)), **step.attrs)
            )
        else:
            given = (x.number if isinstance(x, Const) else values[x] for x in step.ins)
            operands = [self.array(x, step.common) for x in given]
            if self.narrow is not None and step.kind != "view" and step.op.name not in MOVES:
                operands = [self.xp.astype(x, self.xp.float32) if x.dtype == self.narrow else x for x in operands]
            out = step.op.run(self.xp, *operands, **step.attrs)
        if out.dtype != (dtype := self.runtime.dtype(step.dtype)):
            out = self.xp.astype(out, dtype)
        if out.shape != step.shape:
            out = (self.xp.broadcast_to if step.kind == "elementwise" else self.xp.reshape)(out, step.shape)
        return out

    def array(self, x: Any, dtype: str) -> Any:
        """Return a number as an array: the standard computes with arrays."""
        return self.xp.asarray(x, dtype=self.runtime.dtype(dtype)) if isinstance(x, int | float) else x
