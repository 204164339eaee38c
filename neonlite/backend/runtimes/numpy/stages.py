"""ArenaSlot, the location of an array in the arena of a thread."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from threading import get_ident
from types import CodeType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from neonlite.backend.concurrency import Cache, get_num_threads, parallel_for
from neonlite.backend.measure import Allocation
from neonlite.backend.planning import ALIGNMENT_BYTES, Plan, align_bytes
from neonlite.backend.planning.steps import Stage, Step
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.runtimes.base import ReferenceExecutor, Runner, Runtime
from neonlite.backend.runtimes.numpy.templates import (
    OP_COST,
    OPERAND_NAMES,
    REDUCTION_UFUNCS,
    UFUNCS,
    accumulation_dtype,
    find_product_factors,
    select_reduction_function,
    template_of,
)
from neonlite.backend.validation import IgnoreFPErrors, ignore_fp_errors, restore_fp_errors
from neonlite.ops.functions import Axes, Shape, reduction_shape
from neonlite.tree_structure import Constant
from neonlite.typing import NativeArray, NumPyArray as Array, dtype_bits

T = TypeVar("T")


class ArenaSlot(NamedTuple):
    """The offset, shape and dtype of an array in an arena."""

    offset: int
    shape: Shape
    dtype: str | np.dtype[Any]

    @property
    def end(self) -> int:
        """The offset after this array, aligned."""
        return self.offset + align_bytes(self.nbytes)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def view(self, arena: Array) -> Array:
        """Return the array as a view of an arena."""
        array: Array = arena[self.offset : self.offset + self.nbytes].view(self.dtype).reshape(self.shape)
        return array


# --- fused stages ---
#
# Elementwise steps over one shape and reductions of their values, in one pass over cache-sized blocks.
#
# Each fused stage is compiled to a Python function, whose source is ``FusedStage.source``. It is called once for small
# operands, and once per block for larger ones. Several threads process the blocks of large operands in parallel, since
# ufuncs release the GIL. The extent of each partial sum depends on shapes only, and partial sums are added in block
# order, so results do not depend on the number of threads.

# constants measured by benchmarks/thresholds.py on an Intel CPU with AVX-512
MAX_UNTILED_ELEMENTS = 1 << 18  # a smaller stage runs in one call: up to a third faster, as its operands fit the cache
BLOCK_ELEMENTS = 1 << 16  # a few float32 blocks fit the L2 cache
# block size limit of stages with one op, or with chains only: sums, and two chains, are 1.1 to 2.5 times as fast as in
# blocks of BLOCK_ELEMENTS; max(abs(x)) takes 1.3 times as long
MAX_BLOCK_ELEMENTS = 1 << 18
MIN_SUM_BLOCKS = 4  # minimum number of blocks of a large stage with one op and sums
# the largest blocks that several threads share, and the smallest of cheap ops. A call on 64k float32 takes 5 to 20 us,
# and two threads that make such calls mostly wait for Python's lock: with blocks of 64k elements, sums of masked
# elements take twice as long; where blocks cannot be joined, sums over both axes of (128, 4096) in a training step take
# 1.4 times as long on two threads as on one
MAX_SHARED_ELEMENTS, MIN_SHARED_ELEMENTS = 1 << 18, 3 << 15
MAX_SHARED_BITS = 32  # of an element: calls on 64k float64 are long enough, and larger blocks leave the cache
# block size along the last axis, if only earlier axes are reduced; 1 << 9 to 1 << 15 differ by less than 15 %
MIN_LAST_AXIS_ELEMENTS = 1 << 12
# size, and elements times cost per element, from which a stage runs on several threads; 1.1 to 1.8 times slower while
# other processes use the CPUs
MIN_THREADED_ELEMENTS, MIN_THREADED_COST = 1 << 19, 1 << 21
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


MAX_CACHED_VIEWS = 256  # plans and stages with cached views, per thread
NO_ARENA: tuple[Array, Allocation | None] = (np.empty(0, np.uint8), None)  # of a thread before its first allocation


class StageExecutor:
    """The base class of ``BlockedExecutor``: the arena of each thread, and the hooks of other libraries."""

    def __init__(self, runtime: Runtime, primitives: ReferencePrimitives) -> None:
        self.runtime = runtime
        self.reference = ReferenceExecutor(runtime)
        self.primitives = primitives
        self.memory_tracker = runtime.memory_tracker
        self.by_thread = self.memory_tracker.by_thread

    # --- hooks for a library that computes some steps faster than NumPy ---

    def fuse_chains(
        self, plan: Plan, steps: dict[int, Step], domain: Shape, live_out: Collection[int]
    ) -> tuple[dict[int, Step], Mapping[int, Chain]]:
        """Return the steps of a stage with each chain merged into one, and {last value of a chain: chain}: none here.

        Values in ``live_out`` are read outside of the stage.
        """
        return steps, {}

    def find_function(self, step: Step, size: int) -> Callable[[Array, Array], None] | None:
        """Return a function (x, out) that is faster than NumPy for a step on ``size`` elements, or None: none here."""
        return None

    # --- buffers, per thread ---

    def arena(self, nbytes: int) -> Array:
        """Return the arena of this thread, with at least ``nbytes``."""
        thread_cache = self.memory_tracker.thread_cache
        if nbytes > thread_cache.get("arena", NO_ARENA)[0].nbytes:
            thread_cache.pop("bound", None)  # free the smaller arena and its views before allocating
            thread_cache.pop("arena", None)
            request = "temporaries of op-trees", nbytes + ALIGNMENT_BYTES, lambda: self.runtime.allocate(nbytes)
            thread_cache["arena"] = self.runtime.allocate_tracked("arena", *request)
        arena: Array = thread_cache.get("arena", NO_ARENA)[0]
        return arena

    def cached_views(self, key: object, create: Callable[[], T]) -> T:
        """Return the arena views of a plan or stage in this thread, created at first use."""
        try:
            return self.by_thread[get_ident()]["bound"][key]
        except KeyError:  # the error refers to the cache, and so to the arena, which ``create`` may free
            pass
        views = create()
        caches = self.memory_tracker.thread_cache
        if "bound" not in caches:
            caches["bound"] = Cache(MAX_CACHED_VIEWS, self.memory_tracker)
        return caches["bound"].add(key, views)


class FusedStage:
    """A stage of elementwise steps over one shape, and reductions of their values, in one pass."""

    def __init__(self, plan: Plan, stage: Stage, executor: StageExecutor) -> None:
        self.plan = plan
        self.executor = executor
        self.domain = stage.domain
        self.steps = {v: plan.step_of(v) for v in stage.steps}
        self.size = math.prod(stage.domain)
        self.reductions = [v for v, s in self.steps.items() if s.kind == "reduction"]
        stored = [v for v in self.steps if v in plan.temporaries or v in plan.outputs]
        self.outputs = [v for v in stored if self.steps[v].kind != "reduction"]
        self.inputs = sorted({x for x in self._operands() if x not in self.steps})
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
        self.source, self.generated, self.registers = code.source, code.function, code.registers
        self.function = self.generated if self.is_one_call else self.run
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
        self.combined_groups = self.reduced_groups  # the axes along which partial results are combined
        self.divided: tuple[int, int] | None = None  # (axis, tile): in a call, the axis is two, of tiles and of a tile
        self._join_tiles()
        self.merged_operands = [self._merge_operand(v) for v in (*self.inputs, *self.outputs)]

    def _join_tiles(self) -> None:
        """Let a block have several tiles if several threads share the blocks: along the last axis with several tiles.

        If sums are over this axis, it becomes two axes, of tiles and of the elements of a tile: each tile still has one
        partial sum, so that results do not depend on the number of threads.
        """
        limit = min(MAX_SHARED_ELEMENTS // math.prod(self.tile), self.num_blocks // get_num_threads())
        # oneDNN or NumPy computes exp of a block, depending on its smallest element
        if limit < 2 or get_num_threads() == 1 or not self.is_costly or not self.is_narrow or "exp" in self.op_names:
            return
        axis = max(i for i, n in enumerate(self.grid) if n > 1)
        reduced = self.reduced_groups[0] if self.reductions else []
        is_uneven = axis in reduced and self.merged_sizes[axis] % self.tile[axis] > 0
        if len(reduced) > 1 or is_uneven or any(axes != reduced for axes in self.reduced_groups):
            return
        size, tile, count = self.merged_sizes[axis], self.tile[axis], min(limit, self.grid[axis])
        if axis in reduced:
            self.divided = axis, tile
            self.reduced_groups = [[axis + 1] for _ in self.reductions]
            self.combined_groups = [[axis] for _ in self.reductions]
            self.merged_sizes[axis : axis + 1], self.tile[axis : axis + 1] = (size // tile, tile), (count, tile)
        else:
            self.tile[axis] = min(size, count * tile)
        self.grid = [-(-n // t) for n, t in zip(self.merged_sizes, self.tile, strict=True)]
        self.num_blocks = math.prod(self.grid)

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
            size, start = self.merged_sizes[i], ALIGNMENT_BYTES if i == last else 1  # blocks start at a cache line
            pieces = -(-size // max(1, min(size, budget))) if size else 1
            if i in reduced:  # equal tiles where possible, which blocks may join
                pieces = next((n for n in range(pieces, 2 * pieces) if size % (n * start) == 0), pieces)
            tile[i] = max(1, -(-size // pieces))
            if pieces > 1:
                tile[i] = -(-tile[i] // start) * start
            budget //= tile[i]
        return tile

    def _axes(self, v: int) -> Axes:
        axes: Axes = self.steps[v].attrs["axis"]
        return axes

    def axes_in_call(self, n: int) -> Axes:
        """Return the axes of reduction n in the arrays of one call of the function."""
        return tuple(self.reduced_groups[n]) if self.is_tiled else self._axes(self.reductions[n])

    def tile_and_axes(self, n: int) -> tuple[Shape, Axes]:
        """Return the shape of a part that reduction n reduces to one partial result, and its axes there."""
        shape, axes = self.shape_in_call, self.axes_in_call(n)
        if self.is_tiled and self.divided:
            i = self.divided[0]
            return shape[:i] + shape[i + 1 :], tuple(k - (k > i) for k in axes)
        return shape, axes

    @property
    def shape_in_call(self) -> Shape:
        """The shape of the largest block, or the domain if the stage is not tiled."""
        return tuple(self.tile) if self.is_tiled else self.domain

    def _merge_axes(self, shape: Shape) -> Shape:
        """Return a shape with the axes of each group merged, and one of them divided."""
        shape = (1,) * (len(self.domain) - len(shape)) + shape
        merged = [math.prod(shape[a] for a in group) for group in self.axis_groups]
        if self.divided:
            axis, tile = self.divided
            merged[axis : axis + 1] = (1, 1) if merged[axis] == 1 else (merged[axis] // tile, tile)
        return tuple(merged)

    # --- arena ---

    def _assign_arena_slots(self) -> None:
        """Assign arena slots to the partial results of all blocks, then to the registers."""
        self.partials: dict[int, ArenaSlot] = {}
        end = self.plan.arena_bytes
        for n, v in enumerate(self.reductions if self.is_tiled else []):
            dtype, reduced = accumulation_dtype(self.steps[v]) or self.steps[v].dtype, self.reduced_groups[n]
            shape = tuple(self.grid[k] if k in reduced else size for k, size in enumerate(self.merged_sizes))
            is_combined = any(shape[k] > 1 for k in self.combined_groups[n])
            if is_combined or dtype != self.steps[v].dtype:  # else it is written to the result
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
        is_worthwhile = self.is_tiled and not self.is_all_chains and self.is_costly and self.has_long_calls
        return min(get_num_threads(), self.num_blocks) if is_worthwhile else 1

    @property
    def is_costly(self) -> bool:
        """Whether several threads are worthwhile, if calls are long."""
        return self.size >= MIN_THREADED_ELEMENTS and self.size * self.cost_per_element >= MIN_THREADED_COST

    @property
    def has_long_calls(self) -> bool:
        """Whether the calls on a block are so long that several threads seldom wait for Python's lock."""
        is_cheap = all(OP_COST.get(name, 1) == 1 for name in self.op_names)
        return not (self.is_narrow and is_cheap) or math.prod(self.tile) >= MIN_SHARED_ELEMENTS

    @property
    def is_narrow(self) -> bool:
        """Whether no element has more than 32 bits."""
        return all(dtype_bits(step.dtype) <= MAX_SHARED_BITS for step in self.steps.values())

    @cached_property
    def cost_per_element(self) -> int:
        """The cost per element relative to a cheap op; the overhead of a chain counts as two."""
        plain = sum(OP_COST.get(step.op.name, 1) for v, step in self.steps.items() if v not in self.chains)
        chained = (name for chain in self.chains.values() for name in chain.op_names)
        return plain + 2 * len(self.chains) + sum(OP_COST.get(name, 0) for name in chained)

    @property
    def op_names(self) -> list[str]:
        """The names of the ops, those of chains included."""
        plain = [step.op.name for v, step in self.steps.items() if v not in self.chains]
        return plain + [name for chain in self.chains.values() for name in chain.op_names]

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
        return (
            not (plan.temporaries or sorted(results) != sorted(plan.outputs))
            and self.is_one_call
            and all(x < len(plan.leaves) for x in self.inputs)
        )

    def make_runner(self) -> Runner:
        """Return the runner of a plan that consists of this stage."""
        function, cached_views, create = self.generated, self.executor.cached_views, self.single_worker_registers
        inputs, target_indices = self.inputs, [self.plan.outputs[v] for v in (*self.outputs, *self.reductions)]
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

    @property
    def is_one_call(self) -> bool:
        """Whether a run is one call of the function with the arrays as they are."""
        return not (self.is_tiled or self.drops_axes)

    def single_worker_registers(self) -> list[Array]:
        """Return the registers of a stage that runs in one thread."""
        return self._make_views(1)[1][0]

    def buffers(self) -> list[Array]:
        """Return the buffers in the arena of this thread that the function takes after the arguments."""
        return self.single_worker_registers() if self.is_one_call else []

    def run(self, *given: Array) -> None:
        """Run the stage: in one call if it is small, else block by block."""
        arrays = [*given]
        if self.drops_axes:  # the generated function writes results with keepdims
            for n, v in enumerate(self.reductions, len(arrays) - len(self.reductions)):
                arrays[n] = arrays[n].reshape(reduction_shape(self.domain, axis=self._axes(v)))
        if self.is_tiled:
            self._run_tiled(arrays)
        else:
            self.generated(*arrays, *self.executor.cached_views(self, self.single_worker_registers))

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
        function, block_slices = self.generated, self.block_slices
        free_registers = iter(registers)  # one set per worker

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
                    axis=tuple(self.combined_groups[n]),
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


# --- code generation for fused stages ---
#
# A Python function that calls ufuncs with ``out=`` and library chains.
#
# The function is called once for small operands, and once per block for larger ones. Its arguments are the inputs,
# outputs, reduction results and registers of the stage. Registers are block-sized buffers for intermediate values.


@lru_cache(maxsize=1024)  # many stages have the same source, but other operands
def compile_source(source: str) -> CodeType:
    """Compile the source of a fused stage."""
    return compile(source, "<fused stage>", "exec")


class StageCode:
    """The generated function of a fused stage, its source, and the dtypes of its registers.

    A sum of products that is computed in one call removes the product from the steps of the stage.
    """

    source: str
    function: Callable[..., None]

    def __init__(self, stage: FusedStage) -> None:
        self.stage, self.plan, self.steps, self.chains = stage, stage.plan, stage.steps, stage.chains
        self.inputs, self.outputs, self.reductions = stage.inputs, stage.outputs, stage.reductions
        self.registers: list[str] = []
        self._generate()

    def _generate(self) -> None:
        """Generate the function and its source."""
        reductions = self._select_reduction_functions()
        order, elements = list(self.steps), math.prod(self.stage.shape_in_call)
        last = {x: i for i, v in enumerate(order) for x in self.steps[v].inputs if isinstance(x, int)}
        templates = {v: template_of(s) for v, s in self.steps.items()}
        templates |= dict.fromkeys(self.chains, "")  # chains may write in place
        names = dict(UFUNCS)
        for v, step in self.steps.items():
            if v in self.chains:
                is_worker = self.stage.is_tiled and not self.stage.is_all_chains
                names[f"chain{v}"] = self.chains[v] if is_worker else self.chains[v].run_parallel
            elif function := self.stage.executor.find_function(step, elements):
                names[f"fast_{step.op.name}"], templates[v] = function, f"fast_{step.op.name}({{x}}, {{z}})"
        outputs = {v: f"o{n}" for n, v in enumerate(self.outputs)}
        at = {v: i for i, v in enumerate(order)}
        copied_outputs = [v for v in outputs if self._overwrites_live_operand(v, v, at[v], last, templates[v])]
        location = {v: f"i{n}" for n, v in enumerate(self.inputs)}
        location |= self._allocate_registers(order, last, templates, outputs, copied_outputs)

        def text(x: int | Constant, dtype: str) -> str:
            if isinstance(x, int):
                return location[x]
            name = f"c{x.value}_{dtype}".replace("-", "m")
            names[name] = np.asarray(x.value, dtype)  # twice as fast as a Python scalar
            return name

        temporaries: dict[str, str] = {}  # registers used within one step

        def temporary_register(dtype: str) -> str:
            if dtype not in temporaries:
                temporaries[dtype] = f"r{len(self.registers)}"
                self.registers.append(dtype)
            return temporaries[dtype]

        def generic_call(v: int, n: int, operands: Sequence[str], **attrs: Any) -> str:
            """Return a call of the op's forward function, for an op without a template."""
            step = self.steps[v]
            names.update({f"f{n}": step.op.run, f"k{n}": step.attrs | attrs, "xp": np, "asarray": np.asarray})
            arrays = [
                text if self.plan.dtype(x) or isinstance(x, Constant) else f"asarray({text}, {step.compute_dtype!r})"
                for x, text in zip(step.inputs, operands, strict=True)
            ]
            return f"f{n}(xp, {', '.join(arrays)}, **k{n})"

        lines: list[str] = []
        numbers = {v: n for n, v in enumerate(self.reductions)}
        for i, v in enumerate(order):
            step, template = self.steps[v], templates[v]
            operands = [text(x, step.compute_dtype) for x in step.inputs]
            if step.kind == "reduction":
                n = numbers[v]
                names[f"a{n}"] = self.stage.axes_in_call(n)
                names[f"d{n}"] = accumulation_dtype(step)
                if function := reductions.get(v):
                    names[f"reduce{n}"] = function
                    lines.append(f"reduce{n}({', '.join(operands)}, p{n})")
                elif ufunc := REDUCTION_UFUNCS.get(step.op.name):
                    lines.append(f"{ufunc}.reduce({operands[0]}, axis=a{n}, dtype=d{n}, out=p{n}, keepdims=True)")
                else:
                    lines.append(f"copyto(p{n}, {generic_call(v, i, operands, keepdims=True)}, casting='unsafe')")
            elif v in self.chains:
                lines.append(f"chain{v}({', '.join([*operands, location[v]])})")
            elif template is None:
                lines.append(f"copyto({location[v]}, {generic_call(v, i, operands)}, casting='unsafe')")
            else:
                one, minus_one = (
                    text(Constant(n), step.compute_dtype) if f"{{{w}}}" in template else ""
                    for w, n in (("one", 1), ("minus_one", -1))
                )
                names_in_template = dict(zip(OPERAND_NAMES, operands, strict=False))
                names_in_template |= {
                    w: temporary_register(dtype)
                    for w, dtype in (("mask", "bool"), ("tmp", step.dtype))
                    if f"{{{w}}}" in template
                }
                lines += template.format(z=location[v], one=one, minus_one=minus_one, **names_in_template).split("; ")
        lines += [f"copyto({outputs[v]}, {location[v]})" for v in copied_outputs]
        arguments = [
            *(location[v] for v in self.inputs),
            *outputs.values(),
            *(f"p{n}" for n in range(len(self.reductions))),
        ]
        arguments += [f"r{n}" for n in range(len(self.registers))]
        self.source = f"def fused_stage({', '.join(arguments)}):\n    " + "\n    ".join(lines)
        exec(compile_source(self.source), names)
        self.function = names["fused_stage"]

    def _select_reduction_functions(self) -> dict[int, Callable[..., None]]:
        """Return {reduction: function} where that is faster than NumPy; a summed product is part of it."""
        functions = {}
        count = Counter(x for step in self.steps.values() for x in {*step.inputs})
        outputs = set(self.outputs)
        for n, v in enumerate(self.reductions):
            step = self.steps[v]
            (x,) = step.inputs
            is_step = isinstance(x, int) and x in self.steps and x not in self.chains and x not in outputs
            can_include = is_step and count[x] == 1 and step.op.name == "sum"
            factors = find_product_factors(self.plan, self.steps[x], self.stage.domain) if can_include else ()  # type: ignore[index]
            if function := select_reduction_function(step, *self.stage.tile_and_axes(n), bool(factors)):
                functions[v] = function
                if factors:
                    del self.steps[x]  # type: ignore[arg-type]
                    self.steps[v] = step._replace(inputs=factors)
        return functions

    def _allocate_registers(
        self,
        order: list[int],
        last: dict[int, int],
        templates: dict[int, str | None],
        outputs: dict[int, str],
        copied_outputs: list[int],
    ) -> dict[int, str]:
        """Assign each value the memory of a dead operand, an output, or a register: {value: name}.

        Values that reuse each other's memory form a group. A group that ends in an output uses the output's memory from
        its start, unless this overwrites an aliased operand that is still read. Other groups share registers.
        """
        at = {v: i for i, v in enumerate(order)}
        reuse_group: dict[int, list[int]] = {}
        for i, v in enumerate(order):
            step, template = self.steps[v], templates[v]
            if step.kind == "reduction":
                continue
            reusable = [
                x
                for x in dict.fromkeys(step.inputs)
                if x in reuse_group
                and x not in outputs
                and last[x] == i
                and self.steps[x].dtype == step.dtype
                and not any(reads_after_write(template, n) for n, y in enumerate(step.inputs) if y == x)
            ]
            group = reuse_group[reusable[0]] if reusable else []
            can_share = v in outputs and v not in copied_outputs  # it may reuse the memory of an operand
            reuse_group[v] = (
                []
                if can_share
                and group
                and self._overwrites_live_operand(v, group[0], at[group[0]], last, templates[group[0]])
                else group
            )
            reuse_group[v].append(v)
        last_uses: dict[int, list[int]] = {}  # {step index: the groups whose last use it is}
        for u in reuse_group:
            if reuse_group[u][-1] == u and u not in outputs:
                last_uses.setdefault(last[u], []).append(u)
        location: dict[int, str] = {}
        free: dict[str, list[str]] = {}
        for i, v in enumerate(order):
            if v in reuse_group and reuse_group[v][0] == v:
                end, dtype = reuse_group[v][-1], self.steps[v].dtype
                if end in outputs and end not in copied_outputs:
                    name = outputs[end]
                elif free.get(dtype):
                    name = free[dtype].pop()
                else:
                    name = f"r{len(self.registers)}"
                    self.registers.append(dtype)
                location |= dict.fromkeys(reuse_group[v], name)
            for u in last_uses.get(i, ()):
                free.setdefault(self.steps[u].dtype, []).append(location[u])
        return location

    def _aliased_values(self, v: int) -> list[int]:
        """Return the values that share the memory of a value: leaves and held temporaries, or a dead operand."""
        if (i := self.plan.outputs.get(v)) is None or not self.plan.is_direct[i]:
            return [self.plan.in_place[v]] if v in self.plan.in_place else []
        held = self.plan.held_in_targets.get(i, [])
        return held + [leaf for leaf, _ in self.plan.aliases.get(i, ())]

    def _overwrites_live_operand(self, v: int, first: int, at: int, last: dict[int, int], template: str | None) -> bool:
        """Return whether writing output ``v`` in place, starting with value ``first``, overwrites an aliased operand.

        That is, one that is still read later. ``at`` is the index of the step of ``first``, ``template`` its template.
        """
        step = self.steps[first]
        return any(
            last.get(leaf, -1) > at
            or (
                last.get(leaf) == at
                and any(reads_after_write(template, n) for n, x in enumerate(step.inputs) if x == leaf)
            )
            for leaf in self._aliased_values(v)
        )


def reads_after_write(template: str | None, n: int) -> bool:
    """Return whether an op reads its operand n after the first write to the result, so it cannot run in place."""
    calls = (template or "").split("; ")
    first = next((i for i, call in enumerate(calls) if "{z}" in call), len(calls))
    return any("{" + OPERAND_NAMES[n] + "}" in call for call in calls[first + 1 :])
