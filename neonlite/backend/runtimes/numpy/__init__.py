"""The 'cpu' runtime: NumPy arrays, and the blocked executor, which runs fused stages over cache-sized blocks.

Stages of elementwise ops and reductions, and their generated code, are in ``stages.py``. A subclass of the executor may
compute some steps by another library: see the hooks of ``StageExecutor``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from neonlite.backend.concurrency import get_num_threads
from neonlite.backend.errstate import copy_unsafe, ignore_fp_errors, restore_fp_errors
from neonlite.backend.planning import ALIGNMENT_BYTES, Plan
from neonlite.backend.planning.layout import write_chwn
from neonlite.backend.planning.steps import Stage
from neonlite.backend.primitives.rows import find_images, find_primitives, lay_out_images, pair_pools
from neonlite.backend.random import RandomStreams
from neonlite.backend.runtimes import accelerated, accelerator_versions
from neonlite.backend.runtimes.base import Runner, Runtime
from neonlite.backend.runtimes.native import data_address
from neonlite.backend.runtimes.numpy.pooling import NumPyPrimitives
from neonlite.backend.runtimes.numpy.stages import ArenaSlot, FusedStage, GetValue, StageExecutor
from neonlite.backend.runtimes.numpy.templates import CALL_BUFFERS, CALL_FUNCTIONS
from neonlite.backend.tensor import Tensor
from neonlite.ops import OPS
from neonlite.typing import NativeArray, NumPyArray
from neonlite.typing import NumPyArray as Array

TRANSPOSE = OPS["transpose"]


class BlockedExecutor(StageExecutor):
    """The executor for NumPy arrays.

    Each thread has one arena, as large as its largest plan requires. It contains the temporaries of a plan, followed by
    the partial results and registers (block-sized buffers for intermediate values) of the current stage.
    """

    def compile(self, plan: Plan) -> Runner:
        """Return ``run(targets, leaves)`` for a plan, and set ``plan.required_arena_bytes`` and ``primitives``."""
        lay_out_images(self.primitives, plan)
        if shifts := self.primitives.operand_shifts(plan):
            plan.shift_offsets(shifts)
        pair_pools(plan)
        plan.primitives = find_primitives(self.primitives, plan, self.compile)
        has_images = any(any(call.takes_images) for call in plan.primitives.values())
        if has_images and self.primitives.supports_nhwc:
            plan.images = find_images(plan)
            self.memory_tracker.has_layout_caches = True
        stages = [FusedStage(plan, s, self) if s.kind == "fused" else CallStage(plan, s, self) for s in plan.stages]
        plan.required_arena_bytes = lambda: max((stage.required_arena_bytes() for stage in stages), default=0)
        if len(stages) == 1 and isinstance(stages[0], FusedStage) and stages[0].is_whole_plan:
            return stages[0].make_runner()
        return MultiStageRunner(plan, stages, self).run


class MultiStageRunner:
    """The runner of a plan with more than one stage, or with temporaries."""

    def __init__(self, plan: Plan, stages: Sequence[FusedStage | CallStage], executor: StageExecutor) -> None:
        self.plan = plan
        self.stages = stages
        self.executor = executor
        self.views = {v: step for v, step in plan.numbered_steps if step.kind == "view"}
        self.arena_views = {v for v in self.views if plan.view_base(v) in plan.offsets}
        self.direct = [(i, v) for i, v in enumerate(plan.outputs) if plan.is_direct[i]]
        self.direct += [(i, v) for v, i in plan.held_in_targets.items()]
        self.copied = [(i, v) for i, v in enumerate(plan.outputs) if not plan.is_direct[i]]

    def run(self, targets: Sequence[Array], leaves: Sequence[NativeArray]) -> None:
        """Compute all values, then copy those that could not be written to their targets directly."""
        env = dict(enumerate(leaves))
        views, registers = self.executor.cached_views(self, self._make_views)
        env.update(views)
        for i, v in self.direct:
            env[v] = targets[i]
        state = ignore_fp_errors()
        try:
            for stage in self.stages:
                if stage in registers:  # what stage.run does in this case, without its call
                    for v in stage.views:  # type: ignore[union-attr]
                        if v not in env:
                            self.get_value(v, env)
                    stage.function(*map(env.__getitem__, stage.arguments), *registers[stage])  # type: ignore[misc, union-attr]
                else:
                    stage.run(env, self.get_value)
            for i, v in self.copied:
                targets[i][...] = env[v]
        finally:
            restore_fp_errors(state)

    def get_value(self, v: int, env: dict[int, NativeArray]) -> NativeArray:
        """Return a value. A view is created when first read, after its base was computed."""
        if v not in env:
            step: Any = self.views[v]
            base = step.inputs[0]
            x = env[base] if base in env else self.get_value(base, env)
            # NumPy's own function calls three others in Python
            env[v] = x.transpose(step.attrs["axes"]) if step.op is TRANSPOSE else step.op.run(np, x, **step.attrs)
        return env[v]

    def _make_views(self) -> tuple[dict[int, NativeArray], dict[object, list[Array]]]:
        """Return the temporaries in the arena of this thread and their views, and the registers of one-call stages."""
        plan: Plan = self.plan
        env: dict[int, NativeArray] = {}
        arena = self.executor.arena(plan.required_arena_bytes())
        for v, start in plan.offsets.items():
            env[v] = ArenaSlot(start, plan.step_of(v).shape, plan.step_of(v).dtype).view(arena)
        for v in self.arena_views:
            self.get_value(v, env)
        fused = (stage for stage in self.stages if isinstance(stage, FusedStage) and stage.is_one_call)
        return env, {stage: stage.single_worker_registers() for stage in fused}


class CallStage:
    """A stage of one library call: a matrix product, a gather, or random numbers."""

    def __init__(self, plan: Plan, stage: Stage, executor: StageExecutor) -> None:
        self.plan = plan
        self.v = stage.steps[0]
        self.step = plan.step_of(self.v)
        self.executor = executor
        name, shapes = self.step.op.name, [plan.shape(x) for x in self.step.inputs if isinstance(x, int)]
        self.function: Callable[..., None] | None = (
            executor.gemm if name in ("dot", "matmul") else CALL_FUNCTIONS.get(name)
        )
        self.primitive = plan.primitives.get(self.v)
        self.buffer_slots: list[ArenaSlot] = []  # arena slots of its buffers, after the plan's temporaries
        self.end_offset = plan.arena_bytes
        for shape, dtype in (
            CALL_BUFFERS[name](self.step.dtype, *shapes, **self.step.attrs) if name in CALL_BUFFERS else ()
        ):
            self.buffer_slots.append(ArenaSlot(self.end_offset, shape, dtype))
            self.end_offset = self.buffer_slots[-1].end

    def run(self, env: dict[int, NativeArray], get_value: GetValue) -> None:
        """Write the result."""
        step, out = self.step, env[self.v]
        if self.primitive is not None:
            inputs, outputs = self.primitive.inputs, self.primitive.outputs
            self.primitive.run(*[get_value(x, env) for x in inputs], *[env[v] for v in outputs])
            return
        if self.function is None:
            reference = self.executor.reference
            out[...] = reference.evaluate_step(step, {x: get_value(x, env) for x in step.inputs if isinstance(x, int)})
            return
        buffers = [self.executor.cached_views(self, self._make_views)] if self.buffer_slots else []
        operands = []
        for x in step.inputs:
            operands.append(env[x] if x in env else get_value(x, env))  # type: ignore[arg-type]
        self.function(*operands, out, *buffers, **step.attrs)

    def _make_views(self) -> list[Array]:
        """Return its buffers in the arena of this thread."""
        arena = self.executor.arena(self.required_arena_bytes())
        return [slot.view(arena) for slot in self.buffer_slots]

    def required_arena_bytes(self) -> int:
        """Return the arena size: the temporaries of the plan, and the buffers or the plans that the primitive runs."""
        plans = self.primitive.plans if self.primitive else ()
        return max([self.end_offset, *(plan.required_arena_bytes() for plan in plans)])


# --- the 'cpu' runtime: NumPy arrays ---


class NumPyRuntime(Runtime):
    """NumPy arrays; op-trees run block by block on several threads."""

    name = "cpu"
    xp = np

    @cached_property
    def executor(self) -> type[BlockedExecutor]:  # type: ignore[override]
        """The class of the executor, with what accelerators compute."""
        return accelerated(BlockedExecutor)

    @cached_property
    def primitives(self) -> type[NumPyPrimitives]:  # type: ignore[override]
        """The class of the primitives, with what accelerators compute."""
        return accelerated(NumPyPrimitives)

    def put(self, array: NumPyArray) -> NumPyArray:
        """Copy a NumPy array."""
        return np.array(array, order="C")

    get = put

    def adopt(self, array: NumPyArray) -> NumPyArray:
        """Return the array itself, if it is contiguous."""
        return np.ascontiguousarray(array)

    def write(self, array: NumPyArray, values: NumPyArray, dtype: str) -> None:
        """Copy an array into another one without an intermediate copy."""
        copy_unsafe(array, values)

    def allocate(self, nbytes: int) -> NumPyArray:
        """Return new memory, aligned to a cache line."""
        raw = np.empty(nbytes + ALIGNMENT_BYTES, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        return raw[start : start + nbytes]

    def fill_mask(self, streams: RandomStreams, out: Tensor, keep: float) -> None:
        """Fill a tensor with a random mask in place."""
        streams.mask("masks", write_chwn(out, overwrite=True), keep)

    def reshape(self, array: NumPyArray, shape: tuple[int, ...]) -> NumPyArray:
        """Return a view by the array's method, which is three times faster than NumPy's function."""
        return array.reshape(shape, copy=False)

    def numpy_view(self, array: NumPyArray) -> NumPyArray:
        """Return the array itself."""
        return array

    def address_and_strides(self, array: NumPyArray) -> tuple[int, tuple[int, ...]]:
        """Return the address of the first element, and the strides in bytes."""
        return data_address(array).value, array.strides

    def read_only_view(self, array: NumPyArray) -> NumPyArray:
        """Return a read-only view."""
        view = array.view()
        view.flags.writeable = False
        return view

    def version_info(self) -> str:
        """Return the versions and the number of threads."""
        return ", ".join((f"NumPy {np.__version__}", f"{get_num_threads()} threads", *accelerator_versions()))
