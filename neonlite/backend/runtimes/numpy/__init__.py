"""The 'cpu' runtime: NumPy arrays, native libraries, and the blocked executor, which runs stages over blocks.

Stages of elementwise ops and reductions, and their generated code, are in ``stages.py``. A subclass of the executor may
compute some steps by another library: see the hooks of ``StageExecutor``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import site
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import c_void_p
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from neonlite.backend.concurrency import get_num_threads
from neonlite.backend.planning import ALIGNMENT_BYTES, Plan
from neonlite.backend.planning.layout import write_chwn
from neonlite.backend.planning.steps import Stage
from neonlite.backend.primitives.rows import find_images, find_primitives, lay_out_images, pair_pools
from neonlite.backend.random import RandomStreams
from neonlite.backend.runtimes import accelerated, accelerator_versions
from neonlite.backend.runtimes.base import Runner, Runtime
from neonlite.backend.runtimes.numpy.pooling import NumPyPrimitives
from neonlite.backend.runtimes.numpy.stages import ArenaSlot, FusedStage, GetValue, StageExecutor
from neonlite.backend.runtimes.numpy.templates import CALL_BUFFERS, CALL_FUNCTIONS
from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import copy_unsafe, ignore_fp_errors, restore_fp_errors
from neonlite.ops import OPS
from neonlite.typing import NativeArray, NumPyArray
from neonlite.typing import NumPyArray as Array

# --- native libraries: where they are installed, and the memory of NumPy arrays ---

ROW_MAJOR, COL_MAJOR = 101, 102  # CBLAS_LAYOUT
OBJECT_HEADER_BYTES = object.__basicsize__  # size of PyObject_HEAD, which precedes the data pointer
OVERLAP_MAX_WORK = 1000  # max_work of np.may_share_memory
# multiply-adds of a product, or of a stack, up to which NumPy is faster with several threads, and times as many with
# one thread. By benchmarks/thresholds.py both take equally long there with one thread; with two, while other processes
# use the CPUs, NumPy is faster up to 4 times as many
MIN_GEMM_WORK, ONE_THREAD_FACTOR = 1 << 20, 4

INTEL_EXTRAS = ("onednn", "mkl")  # whose packages are for Linux on x86-64, as pyproject.toml says

# environment variables: for libgomp iterations, about the time between two calls of a small network; for Intel's OpenMP
# milliseconds
SPIN_WAITS = {"GOMP_SPINCOUNT": "6000", "KMP_BLOCKTIME": "1"}

_max_openmp_threads = 1 << 30


def openmp_threads() -> int:
    """Return the number of threads of oneDNN and MKL: that of ``get_num_threads``, and 1 in a forked process."""
    return min(get_num_threads(), _max_openmp_threads)


def _limit_after_fork() -> None:
    # libgomp in a forked process waits for threads that do not exist there, unless it uses one thread
    global _max_openmp_threads
    _max_openmp_threads = 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_limit_after_fork)


@contextmanager
def short_spin_wait() -> Iterator[None]:
    """Load an OpenMP library whose idle threads soon sleep instead of busy-waiting.

    By default they spin for up to 200 ms, and take the CPU from threads of other processes. Variables that are set in
    the environment take precedence.
    """
    names = () if "OMP_WAIT_POLICY" in os.environ else SPIN_WAITS.keys() - os.environ.keys()
    os.environ.update({name: SPIN_WAITS[name] for name in names})
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def min_gemm_work() -> int:
    """Return the number of multiply-adds up to which NumPy computes a product faster than MKL and oneDNN."""
    return MIN_GEMM_WORK * (ONE_THREAD_FACTOR if get_num_threads() == 1 else 1)


def library_folders() -> list[Path]:
    """Return the folders in which pip and conda install libraries: environment, base environment, and user folder."""
    prefixes = dict.fromkeys((sys.prefix, os.environ.get("CONDA_PREFIX"), sys.base_prefix, site.getuserbase()))
    return [Path(prefix, *("Library", "bin") if os.name == "nt" else ("lib",)) for prefix in prefixes if prefix]


def install_hint(command: str) -> str:
    """Return a sentence with the command that installs a library, or with the systems that have packages of it."""
    is_intel_linux = sys.platform == "linux" and platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc"
    if not is_intel_linux and any(f"neonlite[{extra}]" in command for extra in INTEL_EXTRAS):
        return "There are packages for Linux with glibc on x86-64 only"
    return f"Install it: {command}"


def matrix_order(array: Array) -> tuple[int, int] | None:
    """Return (ROW_MAJOR or COL_MAJOR, leading dimension in elements) of matrices, or None if BLAS cannot read them.

    The stride of an axis of size 1 is arbitrary and ignored.
    """
    (m, n), (down, across), size = array.shape[-2:], array.strides[-2:], array.itemsize
    if (n == 1 or across == size) and (m == 1 or (down >= n * size and down % size == 0)):
        return ROW_MAJOR, n if m == 1 else down // size
    if (m == 1 or down == size) and across >= m * size and across % size == 0:
        return COL_MAJOR, across // size
    return None


def data_address(array: Array) -> Any:
    """Return the address of an array's first element as ``c_void_p``, read from the C struct of the array object.

    It equals ``array.ctypes.data``, and takes a fifth of the time.
    """
    return c_void_p.from_address(id(array) + OBJECT_HEADER_BYTES)


def may_share_memory(x: Array, y: Array) -> bool:
    """Return whether two arrays share an element, or True if the exact check would take too long."""
    return np.may_share_memory(x, y, OVERLAP_MAX_WORK)  # type: ignore[arg-type]


# --- NumPy's OpenBLAS on one thread, for products of NumPy beside a library with its own threads ---
#
# OpenBLAS's threads spin for up to 0.1 seconds after a product, and take the CPUs from the threads that run the next
# operation.


class SingleThreadedBLAS:
    """Context manager in which OpenBLAS runs on one thread; afterwards it has as many as before.

    The number of threads is one of the process, so only the first Python thread that enters sets it, and the last one
    that leaves restores it.
    """

    def __init__(self, get_threads: Callable[[], int], set_threads: Callable[[int], object]) -> None:
        self.get_threads, self.set_threads = get_threads, set_threads
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Start without any thread inside, as in a forked process."""
        self.lock, self.depth, self.threads = Lock(), 0, 1

    def __enter__(self) -> None:
        with self.lock:
            self.depth += 1
            if self.depth == 1:
                self.threads = self.get_threads()
                if self.threads > 1:
                    self.set_threads(1)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0 and self.threads > 1:
                self.set_threads(self.threads)


@cache
def get_openblas() -> AbstractContextManager[None]:
    """Return the context manager for NumPy's OpenBLAS; one without effect if NumPy uses another BLAS library.

    It is found among the files that the process has mapped, so only on Linux, as oneDNN.
    """
    try:
        maps = os.fsdecode(Path("/proc/self/maps").read_bytes())
    except OSError:  # not Linux
        return nullcontext()
    fields = (line.split(maxsplit=5) for line in maps.splitlines())  # the last one is the path, which may have spaces
    paths = {path for *_, path in fields if "openblas" in os.path.basename(path)}
    for path in sorted(paths, key=lambda path: "numpy" not in path):  # SciPy's wheels have another one
        try:
            library = ctypes.PyDLL(path)
        except OSError:  # the file was removed, as by an upgrade of NumPy
            continue
        for prefix, suffix in product(("scipy_", ""), ("64_", "")):
            names = (f"{prefix}openblas_{verb}_num_threads{suffix}" for verb in ("get", "set"))
            functions: list[Any] = [getattr(library, name, None) for name in names]
            if all(functions):
                return SingleThreadedBLAS(*functions)
    return nullcontext()


# --- the blocked executor ---

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
