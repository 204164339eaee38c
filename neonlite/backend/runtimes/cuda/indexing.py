"""CUDA kernels for stages of one op: take, one-hot, random draws and argmax/argmin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from neonlite.backend.planning.plan import Plan
from neonlite.backend.planning.steps import Stage, Step
from neonlite.backend.runtimes.cuda.bounds_check import is_check_synchronous
from neonlite.backend.runtimes.cuda.codegen import MAX_BLOCKS, THREADS_PER_BLOCK, AddressFunction, FusedKernel, Launch
from neonlite.backend.runtimes.cuda.graph_capture import current_capture
from neonlite.backend.runtimes.cuda.op_templates import REDUCE_TEMPLATES, STORAGE_TYPES, substitute
from neonlite.backend.runtimes.cuda.random_kernels import (
    GRID_STRIDE_LOOP,
    PHILOX_KERNEL,
    VALUE_TEMPLATES,
    reserve_blocks,
)
from neonlite.backend.runtimes.cuda.user_kernels import RAW_KERNELS, UserKernel
from neonlite.ops.functions import index_error_message, normalize_indices
from neonlite.typing import NativeArray

WAIT_HINT = "set NEONLITE_WAIT=1 in the environment to raise this at the faulty call"

TAKE_KERNEL = """// y[row, i, e] = x[row, indices[i], e]; negative indices count from the end. Errors are recorded.
extern "C" __global__ void {name}({T}* y, const {T}* x, const {P}* indices, uint64* error_record, long long check_id,
                                  long long n, long long count, long long size, long long inner_size)
{
{over}
        const long long e = i % inner_size, outer_index = i / inner_size;
        const {P} index = indices[outer_index % count];
        const long long position = index < 0 ? index + size : index;
        const bool in_bounds = position >= 0 && position < size;
        y[i] = load_if(x + (outer_index / count * size + position) * inner_size + e, in_bounds);
        if (!in_bounds) report_index(error_record, check_id, index);
    }
}
"""

ONEHOT_KERNEL = """// y = 1 in the {row} of each label, else 0. A label out of range is recorded.
extern "C" __global__ void {name}({T}* y, const {P}* labels, uint64* error_record, long long check_id,
                                  long long n, long long width, long long classes)
{
{over}
        const long long row = i / width, column = i % width, label = labels[{column}];
        store(y[i], label == {row} ? 1.0f : 0.0f);
        if (label < 0 || label >= classes) report_index(error_record, check_id, label);
    }
}
"""


def single_op_kernel(plan: Plan, stage: Stage, runtime: Any) -> SingleOpKernel | FusedKernel | UserKernel | None:
    """Return the kernel of a stage of one op; None if there is none."""
    v = stage.steps[0]
    if plan.step_of(v).op in RAW_KERNELS:
        return UserKernel(plan, v, runtime)
    step = plan.step_of(v)
    if step.op.name in REDUCE_TEMPLATES and step.op.result_dtype == "index":
        return FusedKernel(plan, {v: step}, plan.shape(step.inputs[0]), [], [v])
    return (
        SingleOpKernel(plan, v, runtime)
        if is_gather(plan, step) or (step.op.name, step.dtype) in VALUE_TEMPLATES
        else None
    )


def is_gather(plan: Plan, step: Step) -> bool:
    """Return whether a step is a take or one-hot that has a kernel."""
    return step.op.name in ("take", "onehot") and all(isinstance(x, int) and plan.is_contiguous(x) for x in step.inputs)


class SingleOpKernel:
    """A kernel of a take, one-hot or random draw, with the interface of ``FusedKernel``."""

    workspace_bytes = 0

    def __init__(self, plan: Plan, v: int, runtime: Any) -> None:
        self.v, self.runtime, self.step = v, runtime, plan.step_of(v)
        self.inputs = [x for x in self.step.inputs if isinstance(x, int)]
        self.index_type = STORAGE_TYPES.get(plan.dtype(self.inputs[-1]), "")  # C type of the indices
        self.template = self.source()

    def source(self, name: str = "kernel") -> str:
        """Return the source of the kernel."""
        step, values = self.step, VALUE_TEMPLATES.get((self.step.op.name, self.step.dtype), "")
        classes = ["row", "column"] if step.attrs.get("axis") == 0 else ["column", "row"]
        return substitute(
            {"take": TAKE_KERNEL, "onehot": ONEHOT_KERNEL}.get(step.op.name, PHILOX_KERNEL),
            name=name,
            over=GRID_STRIDE_LOOP,
            values=values,
            scalars="",
            T=STORAGE_TYPES[step.dtype],
            P=self.index_type,
            row=classes[0],
            column=classes[1],
        )

    def argument_comments(self, describe: Callable[[int], str]) -> Iterator[str]:
        """Yield a comment for each array; ``describe`` returns the description of a value."""
        arrays = [] if self.step.kind == "random" else self.inputs
        names = ["y", "x", "indices"] if len(arrays) == 2 else ["y", "labels"]
        yield from (f"{name}: {describe(v)}" for name, v in zip(names, [self.v, *arrays], strict=False))

    def launches(self, values: dict[int, NativeArray], address_of: AddressFunction, workspace: int) -> Iterator[Launch]:
        """Yield (source, grid, threads, arguments). A random draw reserves its Philox blocks here."""
        step, n = self.step, math.prod(self.step.shape)
        arrays = [address_of(values[x])[0] for x in [self.v, *([] if step.kind == "random" else self.inputs)]]
        if step.op.name == "take":
            x, indices = (values[v] for v in self.inputs)
            axis = step.attrs["axis"]
            check = self._bounds_check(indices, x.shape[axis], "index")
            sizes = [*check, n, math.prod(indices.shape), x.shape[axis], math.prod(x.shape[axis + 1 :])]
        elif step.op.name == "onehot":
            classes = step.attrs["nclass"]
            sizes = [*self._bounds_check(values[self.inputs[0]], classes, "label"), n, step.shape[1], classes]
        else:
            size, n = n, -(-n // (4 if step.op.name == "randn" or step.dtype == "float64" else 8))
            sizes = [n, size, *reserve_blocks(values[self.inputs[0]].be.streams, "noise", n)]
        if n:
            yield self.template, (min(-(-n // THREADS_PER_BLOCK), MAX_BLOCKS), 1), THREADS_PER_BLOCK, [*arrays, *sizes]

    def _bounds_check(self, indices: NativeArray, size: int, noun: str) -> list[int]:
        """Return the address of the error record, and the id of the check for indices out of range."""
        allow_negative, bounds_checker = noun == "index", self.runtime.bounds_checker
        if (is_check_synchronous() and not current_capture()) or not math.prod(
            self.step.shape
        ):  # no kernel runs without elements
            normalize_indices(self.runtime.xp, indices, size, noun, allow_negative)
        message = f"be.{self.step.op.method}: {index_error_message(noun, '{}', size, allow_negative)}"
        return [bounds_checker.record_address(), bounds_checker.register(f"{message}; {WAIT_HINT}")]
