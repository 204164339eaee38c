"""Fused stages: elementwise steps over one shape and reductions of their values, in one pass over cache-sized blocks.

Each fused stage is compiled to a Python function, whose source is ``FusedStage.source``. It is called once for small
operands, and once per block for larger ones. Several threads process the blocks of large operands in parallel, since
ufuncs release the GIL. The extent of each partial sum depends on shapes only, and partial sums are added in block
order, so results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from neonlite.backend.errstate import IgnoreFPErrors, ignore_fp_errors, restore_fp_errors
from neonlite.backend.planning.buffers import ALIGNMENT_BYTES
from neonlite.backend.planning.plan import Plan
from neonlite.backend.planning.steps import Stage
from neonlite.backend.runtimes.numpy.arena import ArenaSlot
from neonlite.backend.runtimes.numpy.stage_code import StageCode
from neonlite.backend.runtimes.numpy.summation import accumulation_dtype
from neonlite.backend.runtimes.numpy.templates import OP_COST, REDUCTION_UFUNCS
from neonlite.backend.runtimes.reference.executor import Runner
from neonlite.backend.thread_pool import get_num_threads, parallel_for
from neonlite.ops.shapes import Axes, Shape, reduction_shape
from neonlite.typing import NativeArray
from neonlite.typing import NumPyArray as Array

if TYPE_CHECKING:
    from neonlite.backend.runtimes.numpy.executor import BlockedExecutor, MultiStageRunner

MAX_UNTILED_ELEMENTS = 1 << 17  # a smaller stage runs in one call, as its operands fit the cache
BLOCK_ELEMENTS = 1 << 16  # a few float32 blocks fit the L2 cache
MAX_BLOCK_ELEMENTS = 1 << 18  # block size limit of stages with one op, or with chains only
MIN_SUM_BLOCKS = 4  # minimum number of blocks of a large stage with one op and sums
MIN_LAST_AXIS_ELEMENTS = 1 << 12  # block size along the last axis, if only earlier axes are reduced
MIN_THREADED_ELEMENTS = 1 << 19  # size of a stage from which it runs on several threads
MIN_THREADED_COST = 1 << 21  # elements times cost per element from which a stage runs on several threads
FULL_SLICE = slice(None)


class Chain(Protocol):
    """Consecutive elementwise steps of a stage that a library computes in one call, with operands and ``out``."""

    @property
    def op_names(self) -> Sequence[str]:
        """The names of the ops."""

    def __call__(self, *arrays: Array) -> None:
        """Run in the calling thread."""

    def run_parallel(self, *arrays: Array) -> None:
        """Run on the threads of the library."""

    def is_always_supported(self, shapes: tuple[Shape, ...]) -> bool:
        """Return whether the library supports these shapes of operands and ``out``, whatever the values are."""


class FusedStage:
    """A stage of elementwise steps over one shape, and reductions of their values, in one pass."""

    def __init__(self, plan: Plan, stage: Stage, executor: BlockedExecutor) -> None:
        self.plan = plan
        self.executor = executor
        self.domain = stage.domain
        self.steps = {v: plan.step_of(v) for v in stage.steps}
        self.size = math.prod(stage.domain)
        self.reductions = [v for v, s in self.steps.items() if s.kind == "reduction"]
        self.outputs = [
            v for v in self.steps if v not in self.reductions and (v in plan.temporaries or v in plan.outputs)
        ]
        self.inputs = sorted(x for x in set(self._operands()) if x not in self.steps)
        self.views = [v for v, step in plan.numbered_steps if step.kind == "view" and v in self.inputs]
        self.arguments = [*self.inputs, *self.outputs, *self.reductions]
        self.drops_axes = any(not self.steps[v].attrs.get("keepdims", True) for v in self.reductions)
        self.steps, self.chains = executor.fuse_chains(plan, self.steps, stage.domain, self.outputs)
        self.is_all_chains = self._is_all_chains()
        self.block_elements = self._choose_block_size()
        can_tile = all(
            self.steps[v].op.name in REDUCTION_UFUNCS for v in self.reductions
        )  # and combine partial results
        self.is_tiled = can_tile and self.size > (self.block_elements if self.is_all_chains else MAX_UNTILED_ELEMENTS)
        if self.is_tiled:
            self._plan_tiling()
        code = StageCode(self)
        self.source, self.function, self.registers = code.source, code.function, code.registers
        self._assign_arena_slots()

    def _is_all_chains(self) -> bool:
        """Return whether all steps are chains that run on the threads of their library."""
        plan = self.plan
        if len(self.chains) < len(self.steps) or not all(map(plan.is_contiguous, (*self.inputs, *self.outputs))):
            return False
        shapes = {v: [plan.shape(x) for x in s.inputs if plan.dtype(x)] + [self.domain] for v, s in self.steps.items()}
        return all(chain.is_always_supported(tuple(shapes[v])) for v, chain in self.chains.items())

    def _choose_block_size(self) -> int:
        """Return the block size: large if no value has to stay in the cache between two ops.

        Every thread should get a block. With sums, however, the block size must not depend on the number of threads, so
        that results do not depend on it either.
        """
        if self.is_all_chains:
            return MAX_BLOCK_ELEMENTS if len(self.chains) > 1 else self.size
        if len(self.steps) - len(self.reductions) > 1:
            return BLOCK_ELEMENTS
        sums = any(self.steps[v].op.name in ("sum", "prod") for v in self.reductions)
        shares = MIN_SUM_BLOCKS if sums else get_num_threads()
        return max(BLOCK_ELEMENTS, min(MAX_BLOCK_ELEMENTS, -(-self.size // shares)))

    def _operands(self) -> Iterator[int]:
        return (x for s in self.steps.values() for x in s.inputs if isinstance(x, int))

    # --- tiling ---

    def _plan_tiling(self) -> None:
        """Merge axes that are contiguous in every operand, and choose the block size along each merged axis."""
        plan, ndim = self.plan, len(self.domain)
        shapes: list[tuple[Shape, bool]] = [(self.domain, plan.is_contiguous(v)) for v in self.outputs]
        shapes += [(plan.shape(v), plan.is_contiguous(v)) for v in self.inputs if plan.dtype(v)]
        padded = [((1,) * (ndim - len(shape)) + shape, contiguous) for shape, contiguous in shapes]
        flags = [tuple(a in self._axes(v) for v in self.reductions) for a in range(ndim)]

        def can_merge(a: int, b: int) -> bool:
            return flags[a] == flags[b] and all(
                (shape[a] == shape[b] == 1) or (contiguous and shape[a] != 1 and shape[b] != 1)
                for shape, contiguous in padded
            )

        groups: list[list[int]] = []
        for axis in (a for a in range(ndim) if self.domain[a] != 1):
            if groups and can_merge(groups[-1][-1], axis):
                groups[-1].append(axis)
            else:
                groups.append([axis])
        self.axis_groups = groups
        self.merged_sizes = [math.prod(self.domain[a] for a in group) for group in groups]
        self.reduced_groups = [[i for i, g in enumerate(groups) if flags[g[0]][k]] for k in range(len(self.reductions))]
        self.tile = self._choose_tile({i for cut in self.reduced_groups for i in cut})
        self.grid = [-(-n // t) for n, t in zip(self.merged_sizes, self.tile, strict=True)]
        self.num_blocks = math.prod(self.grid)
        self.merged_operands = [self._merge_operand(v) for v in (*self.inputs, *self.outputs)]

    def _merge_operand(self, v: int) -> tuple[Shape | None, list[bool] | None]:
        """Return the merged shape of an operand and which of its axes are split; (None, None) for a scalar."""
        if not self.plan.dtype(v):
            return None, None
        shape = self._merge_axes(self.plan.shape(v))
        return shape, [n != 1 for n in shape]

    def _choose_tile(self, reduced: set[int]) -> list[int]:
        """Return the block size along each merged axis, chosen from the last axis to the first.

        If only earlier axes are reduced, these come first, which keeps the number of partial results small.
        """
        last = len(self.merged_sizes) - 1
        tile = [1] * len(self.merged_sizes)
        budget = self.block_elements
        order = list(range(last, -1, -1))
        if reduced and last not in reduced:
            order = [*sorted(reduced, reverse=True), *(i for i in order if i not in reduced)]
            budget //= min(MIN_LAST_AXIS_ELEMENTS, self.merged_sizes[last])
        for i in order:
            if i == last and last not in reduced:
                budget = self.block_elements // math.prod(tile)
            pieces = (
                -(-self.merged_sizes[i] // max(1, min(self.merged_sizes[i], budget))) if self.merged_sizes[i] else 1
            )
            tile[i] = max(1, -(-self.merged_sizes[i] // pieces))
            if i == last and pieces > 1:
                tile[i] = -(-tile[i] // ALIGNMENT_BYTES) * ALIGNMENT_BYTES  # blocks start at a cache line
            budget //= tile[i]
        return tile

    def _axes(self, v: int) -> Axes:
        axes: Axes = self.steps[v].attrs["axis"]
        return axes

    def axes_in_call(self, n: int) -> Axes:
        """Return the axes of reduction n in the arrays of one call of the function."""
        return tuple(self.reduced_groups[n]) if self.is_tiled else self._axes(self.reductions[n])

    @property
    def shape_in_call(self) -> Shape:
        """The shape of the largest block, or the domain if the stage is not tiled."""
        return tuple(self.tile) if self.is_tiled else self.domain

    def _merge_axes(self, shape: Shape) -> Shape:
        """Return a shape with the axes of each group merged."""
        shape = (1,) * (len(self.domain) - len(shape)) + shape
        return tuple(math.prod(shape[a] for a in group) for group in self.axis_groups)

    # --- arena ---

    def _assign_arena_slots(self) -> None:
        """Assign arena slots to the partial results of all blocks, then to the registers."""
        self.partials: dict[int, ArenaSlot] = {}
        end = self.plan.arena_bytes
        for n, v in enumerate(self.reductions if self.is_tiled else []):
            dtype, reduced = accumulation_dtype(self.steps[v]) or self.steps[v].dtype, self.reduced_groups[n]
            if dtype != self.steps[v].dtype or any(
                self.grid[k] > 1 for k in reduced
            ):  # else it is written to the result
                shape = tuple(self.grid[k] if k in reduced else size for k, size in enumerate(self.merged_sizes))
                self.partials[n] = ArenaSlot(end, shape, dtype)
                end = self.partials[n].end
        self.registers_offset = end
        self.register_slots: list[ArenaSlot] = []  # the registers of the first worker
        for dtype in self.registers:
            self.register_slots.append(ArenaSlot(end, self.shape_in_call, dtype))
            end = self.register_slots[-1].end
        self.register_bytes = end - self.registers_offset

    @property
    def num_workers(self) -> int:
        """The number of threads that share the blocks."""
        is_worthwhile = (
            self.is_tiled
            and not self.is_all_chains
            and self.size >= MIN_THREADED_ELEMENTS
            and self.size * self.cost_per_element >= MIN_THREADED_COST
        )
        return min(get_num_threads(), self.num_blocks) if is_worthwhile else 1

    @cached_property
    def cost_per_element(self) -> int:
        """The cost per element relative to a cheap op; the overhead of a chain counts as two."""
        plain = sum(OP_COST.get(step.op.name, 1) for v, step in self.steps.items() if v not in self.chains)
        chained = (name for chain in self.chains.values() for name in chain.op_names)
        return plain + 2 * len(self.chains) + sum(OP_COST.get(name, 0) for name in chained)

    def required_arena_bytes(self, workers: int = 0) -> int:
        """Return the arena size: temporaries of the plan, partial results, and registers of all workers."""
        return self.registers_offset + (workers or self.num_workers) * self.register_bytes

    def _make_views(self, workers: int) -> tuple[dict[int, Array], list[list[Array]]]:
        """Return the partial results, and the registers of each worker, in the arena of this thread."""
        arena = self.executor.arena(self.required_arena_bytes(workers))
        shifts = [k * self.register_bytes for k in range(workers)]
        registers = [[p._replace(offset=p.offset + shift).view(arena) for p in self.register_slots] for shift in shifts]
        return {n: slot.view(arena) for n, slot in self.partials.items()}, registers

    # --- running ---

    @property
    def is_whole_plan(self) -> bool:
        """Whether one function call computes the plan: operands are small leaves, targets are written directly."""
        plan, results = self.plan, [*self.outputs, *self.reductions]
        return not (
            self.is_tiled or self.drops_axes or plan.temporaries or sorted(results) != sorted(plan.outputs)
        ) and all(x < len(plan.leaves) for x in self.inputs)

    def make_runner(self) -> Runner:
        """Return the runner of a plan that consists of this stage."""
        function, cached_views, create = self.function, self.executor.cached_views, self._single_worker_registers
        inputs, target_indices = self.inputs, [self.plan.outputs.index(v) for v in (*self.outputs, *self.reductions)]
        in_order = inputs == list(range(len(self.plan.leaves))) and target_indices == sorted(target_indices)

        def run(targets: Sequence[Array], leaves: Sequence[NativeArray]) -> None:
            state = ignore_fp_errors()
            try:
                function(*leaves, *targets)
            finally:
                restore_fp_errors(state)

        def run_with_registers(targets: Sequence[Array], leaves: Sequence[NativeArray]) -> None:
            registers = cached_views(self, create)
            if not in_order:
                leaves, targets = [leaves[x] for x in inputs], [targets[i] for i in target_indices]
            state = ignore_fp_errors()
            try:
                function(*leaves, *targets, *registers)
            finally:
                restore_fp_errors(state)

        return run if in_order and not self.registers else run_with_registers

    def _single_worker_registers(self) -> list[Array]:
        return self._make_views(1)[1][0]

    def run(self, env: dict[int, Array], values: MultiStageRunner) -> None:
        """Run the stage: in one call if it is small, else block by block."""
        for v in self.views:
            if v not in env:
                values.get_value(v, env)
        arrays = [env[v] for v in self.arguments]
        if self.drops_axes:  # the function writes results with keepdims
            for n, v in enumerate(self.reductions, len(arrays) - len(self.reductions)):
                arrays[n] = arrays[n].reshape(reduction_shape(self.domain, axis=self._axes(v)))
        if self.is_tiled:
            self._run_tiled(arrays)
        elif self.registers:
            self.function(*arrays, *self.executor.cached_views(self, self._single_worker_registers))
        else:
            self.function(*arrays)

    def _run_tiled(self, arrays: list[Array]) -> None:
        results = arrays[len(arrays) - len(self.reductions) :]
        operands = [
            x if shape is None else x.reshape(shape)
            for x, (shape, _) in zip(arrays, self.merged_operands, strict=False)
        ]
        results = [x.reshape(self._merge_axes(x.shape)) for x in results]
        workers = self.num_workers
        partial_views, registers = self.executor.cached_views((self, workers), lambda: self._make_views(workers))
        partials = [partial_views.get(n, x) for n, x in enumerate(results)]
        operands += partials
        function, block_slices, reduced, free_registers = (
            self.function,
            self.block_slices,
            self.reduced_groups,
            iter(registers),
        )  # one set per worker

        def work(block_indices: Iterator[int]) -> None:
            arrays_of_worker = operands + next(free_registers)
            with IgnoreFPErrors():
                for index in block_indices:
                    function(
                        *[
                            x if slices is None else x[slices]
                            for x, slices in zip(arrays_of_worker, block_slices[index], strict=True)
                        ]
                    )

        if workers > 1:
            parallel_for(work, self.num_blocks, workers)
        else:
            work(iter(range(self.num_blocks)))
        for n, (v, partial) in enumerate(zip(self.reductions, partials, strict=True)):
            if partial is not results[n]:
                ufunc = getattr(np, REDUCTION_UFUNCS[self.steps[v].op.name])
                ufunc.reduce(
                    partial,
                    axis=tuple(reduced[n]),
                    dtype=accumulation_dtype(self.steps[v]),
                    out=results[n],
                    keepdims=True,
                )

    @cached_property
    def block_slices(self) -> list[list[tuple[slice, ...] | None]]:
        """The slices of each operand, partial result and register, for each block."""
        axes = zip(self.merged_sizes, self.tile, strict=True)
        slices = [[slice(i, min(i + t, n)) for i in range(0, n, t)] for n, t in axes]
        return [self._slice_block(index, slices) for index in range(self.num_blocks)]

    def _slice_block(self, index: int, slices: list[list[slice]]) -> list[tuple[slice, ...] | None]:
        """Return the slices of one block, of each operand, partial result and register."""
        coordinates: list[int] = []  # in the grid of blocks, in C order
        for n in reversed(self.grid):
            index, i = divmod(index, n)
            coordinates.insert(0, i)
        block = [s[i] for s, i in zip(slices, coordinates, strict=True)]
        result: list[tuple[slice, ...] | None] = [
            None if is_split is None else tuple([b if c else FULL_SLICE for b, c in zip(block, is_split, strict=True)])
            for _, is_split in self.merged_operands
        ]
        for is_split in self.reduced_groups:
            result.append(tuple([slice(i, i + 1) if k in is_split else block[k] for k, i in enumerate(coordinates)]))
        return result + [tuple([slice(b.stop - b.start) for b in block])] * len(self.registers)
