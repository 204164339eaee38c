"""The interface of executors, and the reference executor, which evaluates a plan op by op with array-API functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from neonlite.backend.errstate import IgnoreFPErrors
from neonlite.backend.planning.plan import Plan
from neonlite.backend.planning.steps import Step
from neonlite.tree_structure import Constant
from neonlite.typing import NativeArray

if TYPE_CHECKING:
    from neonlite.backend.primitives.reference import ReferencePrimitives
    from neonlite.backend.runtimes.base import Runtime

# ops that run on bfloat16 itself: like views they compute no new values, or the result depends on the precision
DATA_MOVEMENT_OPS = ("stop_gradient", "take", "concat", "slice_backward", "nextafter")

Runner = Callable[[Sequence[NativeArray], Sequence[NativeArray]], None]


class Executor(Protocol):
    """An executor of plans."""

    def compile(self, plan: Plan) -> Runner:
        """Return ``run(targets, leaves)``, which writes the values of a plan to the arrays of its targets."""


class ReferenceExecutor:
    """The executor for any array-API namespace with writable arrays. All other executors are tested against it."""

    def __init__(self, runtime: Runtime, primitives: ReferencePrimitives | None = None) -> None:
        self.runtime = runtime
        self.xp = runtime.xp
        # the array-API standard has no bfloat16: operands are cast to float32, and results rounded
        self.bfloat16_dtype = runtime.dtype("bfloat16") if "bfloat16" in runtime.dtypes else None

    def compile(self, plan: Plan) -> Runner:
        """Return ``run(targets, leaves)``.

        It computes all values, frees each after its last use, and then writes the outputs to the targets.
        """
        strides = [stride for step in plan.steps for _, _, stride in step.attrs.get("index", ())]
        if not self.runtime.supports_negative_strides and min(strides, default=1) < 0:
            step = min(strides)
            raise IndexError(f"expected a step >= 1 on the runtime {self.runtime.name!r}, got {step}. Use be.take.")
        count = len(plan.leaves)
        last: dict[int, int] = {}
        for v in plan.step_values:
            for x in plan.step_of(v).inputs:
                if isinstance(x, int):
                    last[x] = v
        last |= dict.fromkeys(plan.outputs, count + len(plan.steps))
        dead_after: dict[int, list[int]] = {}
        for x, last_step in last.items():
            if x >= count:
                dead_after.setdefault(last_step, []).append(x)
        needs_copy = bool(plan.aliases) or len(plan.outputs) > 1

        def run(targets: Sequence[NativeArray], leaves: Sequence[NativeArray]) -> None:
            values: dict[int, NativeArray] = dict(enumerate(leaves))
            with IgnoreFPErrors():
                for v in plan.step_values:
                    values[v] = self.evaluate_step(plan.step_of(v), values)
                    for x in dead_after.get(v, ()):
                        del values[x]
            results = [values[v] for v in plan.outputs]
            if needs_copy:  # a result may be a view of a target
                results = [self.xp.asarray(x, copy=True) for x in results]
            for target, x in zip(targets, results, strict=True):
                target[...] = x

        return run

    def evaluate_step(self, step: Step, values: dict[int, NativeArray]) -> NativeArray:
        """Return the value of one step, with the shape and dtype of the step."""
        if step.kind == "random":
            out = self.runtime.put(
                step.op.run(self.xp, *(values[x] for x in step.inputs if isinstance(x, int)), **step.attrs)
            )
        else:
            inputs = (x.value if isinstance(x, Constant) else values[x] for x in step.inputs)
            operands = [self.as_array(x, step.compute_dtype) for x in inputs]
            if self.bfloat16_dtype is not None and step.kind != "view" and step.op.name not in DATA_MOVEMENT_OPS:
                operands = [
                    self.xp.astype(x, self.xp.float32) if x.dtype == self.bfloat16_dtype else x for x in operands
                ]
            out = step.op.run(self.xp, *operands, **step.attrs)
        if out.dtype != (dtype := self.runtime.dtype(step.dtype)):
            out = self.xp.astype(out, dtype)
        if out.shape != step.shape:
            out = (self.xp.broadcast_to if step.kind == "elementwise" else self.xp.reshape)(out, step.shape)
        return out

    def as_array(self, x: NativeArray, dtype: str) -> NativeArray:
        """Return x, with a Python scalar as a 0-d array, since array-API functions expect arrays."""
        return self.xp.asarray(x, dtype=self.runtime.dtype(dtype)) if isinstance(x, int | float) else x
