"""The GPU driver, and the executor, which compiles each stage to generated kernels or array-library calls.

With ``NEONLITE_KERNELS=0`` in the environment, all stages use array-library calls.
"""

from __future__ import annotations

import copy
import ctypes
import math
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property, partial
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

from neonlite.backend.concurrency import Cache
from neonlite.backend.planning import Plan
from neonlite.backend.planning.steps import Stage, Step
from neonlite.backend.primitives.rows import choose_primitives, find_primitives, join_reorders, join_results
from neonlite.backend.runtimes.base import ReferenceExecutor, Runner
from neonlite.backend.runtimes.cuda import libraries
from neonlite.backend.runtimes.cuda.codegen import PREAMBLE, FusedKernel, region_kernels
from neonlite.backend.runtimes.cuda.convolution import Cudnn, load_frontend
from neonlite.backend.runtimes.cuda.graphs import CaptureError, current_capture, launch_kernel, record, repeat_launches
from neonlite.backend.runtimes.cuda.kernels import (
    WAIT_HINT,
    SingleOpKernel,
    UserKernel,
    are_kernels_enabled,
    is_check_synchronous,
    is_gather,
    single_op_kernel,
)
from neonlite.backend.runtimes.cuda.row_reduction import RowTileKernel, fuse_row_stages, pass_kernels
from neonlite.backend.validation import IgnoreFPErrors, warn
from neonlite.ops.functions import index_error_message, normalize_indices
from neonlite.typing import FLOAT_DTYPES, NativeArray

# --- the interface to the GPU driver and its CuPy implementation: memory, compilation, launches, graphs ---


class CompileError(RuntimeError):
    """A kernel did not compile; the message contains the compiler's log."""


class WrongDeviceError(RuntimeError):
    """The GPU is not usable here: in a forked child, or in a thread whose current device is another one."""


SPAWN_HINT = 'Start processes with multiprocessing.get_context("spawn")'


class Graph(Protocol):
    """A captured graph."""

    def launch(self) -> None:
        """Run the captured launches."""


class Driver(Protocol):
    """The interface by which executors and primitives use a GPU."""

    tf32: bool  # whether float32 matrix products and convolutions may use TF32

    @property
    def cudnn(self) -> Cudnn | None:
        """The cuDNN library, or None."""

    def allocate(self, nbytes: int) -> NativeArray:
        """Return an array of ``nbytes`` bytes (uint8) of the runtime's library."""

    def compile(self, source: str) -> libraries.Kernel:
        """Compile source with one kernel, named ``kernel``, and return it; CompileError if that fails."""

    def launch(
        self, kernel: libraries.Kernel, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> None:
        """Launch a kernel on a grid of blocks. Each argument has 64 bits: an address, an integer or a double."""

    def prepare_launch(
        self, kernel: libraries.Kernel, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> Callable[[], None]:
        """Return a function that repeats a launch on this stream, in a thread that has launched a kernel before."""

    def run(self, f: Callable[..., None], *arguments: object) -> None:
        """Call a function that runs array-library operations and writes into its arguments."""

    def capture(self) -> AbstractContextManager[Graph]:
        """Capture the launches of this thread without running them: ``with driver.capture() as graph: ...``.

        ``graph.launch()`` runs them, in memory that the graph holds.
        """

    def check_device(self) -> None:
        """Raise WrongDeviceError if this thread cannot use the GPU."""

    def current_stream(self) -> int:
        """Return the stream on which work is launched."""

    def gemm(self, desc: libraries.GemmDesc, alpha: float, beta: float) -> bool:
        """Compute a matrix product and return True, or return False where no library supports it."""

    def synchronize(self) -> None:
        """Wait until all work has finished."""


class CuPyDriver:
    """The driver of an NVIDIA GPU by CuPy and NVRTC.

    Work runs on CuPy's current stream. Methods raise WrongDeviceError in a forked child, or if the thread's current
    device is another one.
    """

    def __init__(self, cupy: ModuleType, device_id: int) -> None:
        self.cupy, self.device_id, self.tf32 = cupy, device_id, libraries.is_tf32_enabled()
        self.process_id, self.errstate = os.getpid(), import_module("cupyx").errstate

    def check_device(self, error: Exception | None = None) -> None:
        """Raise WrongDeviceError in a forked child or on another device; ``error`` is quoted in the message."""
        cause = f": {error}" if error else ""
        if os.getpid() != self.process_id:
            raise WrongDeviceError(
                f"gpu: expected the process that created the backend, got a forked child{cause}. CUDA contexts do not "
                f"survive a fork. {SPAWN_HINT}, or create the first backend in the child"
            )
        if (current := self.cupy.cuda.runtime.getDevice()) != self.device_id:
            raise WrongDeviceError(
                f"gpu: expected current device {self.device_id} of this thread, got {current}{cause}. "
                f"Call cupy.cuda.Device({self.device_id}).use() in this thread first"
            )

    def explain_error(self, error: Exception) -> Exception:
        """Return WrongDeviceError if it is the cause of an error, else the error."""
        if not isinstance(error, MemoryError | WrongDeviceError):
            try:
                self.check_device(error)
            except WrongDeviceError as cause:
                return cause
        return error

    def allocate(self, nbytes: int) -> NativeArray:
        """Return an array of ``nbytes`` bytes from CuPy's memory pool."""
        self.check_device()
        return self.cupy.empty(nbytes, dtype="uint8")

    def compile(self, source: str) -> libraries.Kernel:
        """Return a CuPy function for the current device."""
        self.check_device()
        try:
            return libraries.load_kernel(self.cupy, source)
        except self.cupy.cuda.compiler.CompileException as error:
            raise CompileError(f"NVRTC cannot compile a kernel: {error}") from error

    def launch(
        self, kernel: libraries.Kernel, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> None:
        """Launch a kernel on CuPy's current stream."""
        self.check_device()
        kernel(grid, (block,), tuple(arguments))  # CuPy passes int as 64 bits, and float as double

    def prepare_launch(
        self, kernel: libraries.Kernel, grid: tuple[int, int], block: int, arguments: Sequence[int | float]
    ) -> Callable[[], None]:
        """Return a launch on the current stream by the CUDA driver API, whose arguments are packed once.

        On another device or in a forked child CUDA itself raises an error, since the device is not checked.
        """
        n = len(arguments)
        packed = (ctypes.c_char * (8 * n)).from_buffer_copy(pack_arguments(arguments))
        base = ctypes.addressof(packed)
        pointers = (ctypes.c_void_p * n)(*range(base, base + 8 * n, 8))
        sizes = kernel.ptr, *grid, 1, block, 1, 1, 0
        relaunch: Any = partial(
            self.cupy.cuda.driver.launchKernel, *sizes, self.current_stream(), ctypes.addressof(pointers), 0
        )
        relaunch.keepalive = kernel, packed, pointers
        return relaunch

    def run(self, f: Callable[..., None], *arguments: object) -> None:
        """Call a function that runs CuPy operations on the current stream.

        Outside a capture, CuPy checks the results of linear algebra, for which it waits for the GPU.
        """
        self.check_device()
        with self.errstate(linalg="ignore" if current_capture() else "raise"):
            f(*arguments)

    @contextmanager
    def capture(self) -> Iterator[CapturedGraph]:
        """Capture on a separate stream, with memory from a pool that the graph holds.

        CaptureError if memory runs out: on a CUDA error CuPy's pool would free blocks that captured kernels use.
        """
        cuda = self.cupy.cuda

        def new_memory(nbytes: int) -> Any:
            try:
                return cuda.MemoryPointer(cuda.Memory(nbytes), 0)
            except cuda.runtime.CUDARuntimeError as error:
                raise CaptureError(f"graph capture: cannot allocate {nbytes} more bytes: {error}") from error

        pool = cuda.MemoryPool(new_memory)
        pool.set_limit(0)  # no limit: at a limit the pool would free blocks
        stream, captured = cuda.Stream(non_blocking=True), CapturedGraph(pool)
        with cuda.using_allocator(captured.pool.malloc), stream:
            stream.begin_capture()
            try:
                yield captured
            finally:
                captured.graph = stream.end_capture()  # fails after a call that cannot be captured

    def current_stream(self) -> int:
        """Return the pointer of CuPy's current stream."""
        return current_stream(self.cupy)

    @cached_property
    def cublas(self) -> libraries.Cublas | None:
        """The cuBLAS library; None where it is not found."""
        library = libraries.load_library("cublas")
        return None if library is None else shared_cublas(library, self.cupy, self.device_id)

    @cached_property
    def cudnn(self) -> Cudnn | None:
        """The cuDNN library; None where it is not installed, or (with a warning) cannot be used."""
        self.check_device()
        frontend = load_frontend()
        try:
            return None if frontend is None else shared_cudnn(frontend, self.cupy, self.device_id)
        except Exception as error:  # the frontend defines further exception classes
            warn(
                f"cuDNN is not available: {error}\nConvolutions use im2col and matrix products instead.",
                RuntimeWarning,
            )
            return None

    def gemm(self, desc: libraries.GemmDesc, alpha: float, beta: float) -> bool:
        """Compute a matrix product by cuBLAS on CuPy's current stream."""
        self.check_device()
        if self.cublas is None:
            return False
        return self.cublas.gemm(desc, alpha, beta, self.tf32)

    def synchronize(self) -> None:
        """Synchronize the current device."""
        self.cupy.cuda.Device().synchronize()


@cache
def shared_cublas(library: ctypes.CDLL, cupy: ModuleType, device_id: int) -> libraries.Cublas:
    """Return the cuBLAS library for a GPU; its handles are shared by all backends of the process."""

    def allocate_workspace(nbytes: int) -> tuple[NativeArray, int]:
        memory = cupy.empty(nbytes, dtype="uint8")
        return memory, memory.data.ptr

    return libraries.Cublas(library, allocate_workspace, lambda: current_stream(cupy))


@cache
def shared_cudnn(frontend: ModuleType, cupy: ModuleType, device_id: int) -> Cudnn:
    """Return the cuDNN library for a GPU; its handles and plans are shared by all backends of the process."""
    return Cudnn(frontend, lambda: current_stream(cupy), lambda f: measure_seconds(cupy, f))


def current_stream(cupy: ModuleType) -> int:
    """Return the pointer of CuPy's current stream."""
    return int(cupy.cuda.get_current_stream().ptr)


def measure_seconds(cupy: ModuleType, f: Callable[[], None]) -> float:
    """Call a function twice and return the GPU time of the second call in seconds."""
    f()
    start, end = (cupy.cuda.Event() for _ in range(2))
    start.record()
    f()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / 1000


def pack_arguments(arguments: Sequence[int | float]) -> bytes:
    """Return the arguments packed for a launch, 64 bits each."""
    return b"".join(struct.pack("d" if isinstance(x, float) else "q", x) for x in arguments)


class CapturedGraph:
    """A CUDA graph and the memory pool that it uses."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.graph: Any = None

    def launch(self) -> None:
        """Launch the graph on CuPy's current stream."""
        self.graph.launch()


# --- the executor ---

MAX_BOUND_PLANS = 256  # plans whose temporaries are cached per thread
# Float ops without a generated kernel, and what computes them instead of the array library.
FALLBACK_COMMENTS = dict.fromkeys(("dot", "matmul"), "cuBLAS computes it")
FALLBACK_COMMENTS["scatter_add"] = "the scatter-add kernels sort the indices and add the elements"


def stage_kernels(
    plan: Plan, stage: Stage, runtime: Any = None
) -> Sequence[FusedKernel | SingleOpKernel | UserKernel] | None:
    """Return the kernels of a stage; None if it has none."""
    if stage.kind == "fused":
        return region_kernels(plan, stage)
    if stage.kind == "row_tile":
        return [RowTileKernel(plan, stage)]
    if stage.kind == "row_passes":
        return pass_kernels(plan, stage)
    if stage.kind == "gemm_sum":
        return None
    kernel = single_op_kernel(plan, stage, runtime)
    return None if kernel is None else [kernel]


def plan_source(plan: Plan) -> str:
    """Return the source of all kernels of a plan, with comments on what each reads and writes."""
    plan = copy.copy(plan)  # fusing changes the plan, which may belong to an executor
    libraries.fuse_gemm_sums(plan)
    fuse_row_stages(plan)
    origins: dict[int, str] = {}  # value -> op and stage
    texts = [f"/*\n{plan}\n*/", PREAMBLE]
    for n, stage in enumerate(plan.stages, 1):
        origins |= {v: f"{plan.step_of(v).op.name} of stage {n}" for v in stage.steps}
        names = " ".join(plan.step_of(v).op.name for v in stage.steps)
        texts.append(f"// --- stage {n}: {stage.kind} {stage.domain}: {names} ---")
        kernels = stage_kernels(plan, stage)
        if kernels is None:
            floats = [plan.step_of(v).op.name for v in stage.steps if plan.step_of(v).dtype in FLOAT_DTYPES]
            fallback = next(
                (FALLBACK_COMMENTS[name] for name in floats if name in FALLBACK_COMMENTS),
                "the array library computes it",
            )
            texts[-1] += f"\n// No generated kernel: {fallback}."
        for m, kernel in enumerate(kernels or ()):
            name = f"stage_{n}" + f"_{m}" * (len(kernels or ()) > 1)
            lines = [f"// {line}" for line in kernel.argument_comments(partial(describe, plan, origins))]
            texts.append("\n".join([*lines, kernel.source(name)]))
            if isinstance(kernel, FusedKernel) and kernel.num_splits > 1:
                texts.append(kernel.finalize_source(f"{name}_joined")[0])
    return "\n".join(texts)


def describe(plan: Plan, origins: dict[int, str], v: int) -> str:
    """Return a description of a value: a tensor's name, or the op and stage that compute it."""
    description = plan.names[v] if v < len(plan.leaves) else origins.get(v, "")
    if not description:  # a view
        return f"{plan.step_of(v).op.name} of {describe(plan, origins, plan.step_of(v).inputs[0])}"  # type: ignore[arg-type]
    return f"{description} {plan.shape(v)} {plan.dtype(v)}".strip() if plan.dtype(v) else f"scalar {description}"


def copy_into(target: NativeArray, values: NativeArray) -> None:
    """Copy values into a target."""
    target[...] = values


class CudaExecutor:
    """The executor of runtimes with a driver: plans run as generated kernels.

    Each thread has an arena for temporaries and partial results of reductions. Compiled kernels are cached.
    """

    def __init__(self, runtime: Any, primitives: Any = None) -> None:
        self.runtime, self.memory_tracker = runtime, runtime.memory_tracker
        self.driver = runtime.driver
        self.generic, self.primitives = ReferenceExecutor(runtime), primitives
        self.compiled = Cache(libraries.MAX_CACHED_KERNELS, self.memory_tracker)  # {source: kernel, or None}

    def compile(self, plan: Plan) -> Runner:
        """Return ``run(targets, leaves)``, and set ``plan.required_arena_bytes``."""
        if not are_kernels_enabled():
            return partial(self.driver.run, self.generic.compile(plan))
        if not is_check_synchronous():  # errors are raised at the next synchronization
            plan.raising_values = [v for v in plan.raising_values if not is_gather(plan, plan.step_of(v))]
            plan.set_stages(plan.stages)
        choose_primitives(self.primitives, plan)
        join_results(self.primitives, plan)
        join_reorders(plan)
        libraries.fuse_gemm_sums(plan)
        fuse_row_stages(plan)
        plan.primitives = find_primitives(self.primitives, plan, self.compile)
        xp, views = self.runtime.xp, {v: step for v, step in plan.numbered_steps if step.kind == "view"}
        stages, joined = [], plan.join_parts()
        for stage in plan.stages:
            if joined.issuperset(stage.steps):
                continue
            ins = {x for v in stage.steps for x in plan.step_of(v).inputs if isinstance(x, int)}
            stages.append((stage, stage_kernels(plan, stage, self.runtime), sorted(ins & views.keys())))
        workspace_bytes = max(
            (kernel.workspace_bytes for _, kernels, _ in stages for kernel in kernels or ()), default=0
        )
        in_primitives = [x.required_arena_bytes() for call in plan.primitives.values() for x in call.plans]
        nbytes = max([plan.arena_bytes + workspace_bytes, *in_primitives])
        plan.required_arena_bytes = lambda: nbytes
        direct_outputs = [(i, v) for v, i in plan.outputs.items() if plan.is_direct[i]]
        direct_outputs += [(i, v) for i, values in plan.held_in_targets.items() for v in values]
        copied_outputs = [(i, v) for v, i in plan.outputs.items() if not plan.is_direct[i]]
        # The arguments of fused kernels depend on addresses and scalars alone, so that launches can be cached, as those
        # of most primitives. Random draws advance a counter, and gathers register checks.
        can_cache_launches = not copied_outputs and all(
            isinstance(kernel, FusedKernel) for _, kernels, _ in stages for kernel in kernels or ()
        )
        is_scalar = [not plan.dtype(v) for v in range(len(plan.leaves))]

        def value(v: int, values: dict[int, NativeArray]) -> NativeArray:
            """Return a value; a view is created when it is first read, after its base was computed."""
            if v not in values:
                step = views[v]
                values[v] = step.op.run(xp, value(step.inputs[0], values), **step.attrs)  # type: ignore[arg-type]
            return values[v]

        def run(targets: Sequence[NativeArray], leaves: Sequence[NativeArray]) -> None:
            nonlocal can_cache_launches
            caches = self.memory_tracker.thread_cache
            workspace, temporaries = self.bind_buffers(caches, run, plan) if nbytes or plan.offsets else (0, {})
            if not can_cache_launches or current_capture():  # a capture must see the arrays to keep them alive
                return run_stages(targets, leaves, workspace, temporaries)
            address_of = self.runtime.address_and_strides
            # 0.0 and -0.0 compare equal, but their representations differ
            leaf_keys = [
                (x or repr(x)) if scalar else address_of(x) for x, scalar in zip(leaves, is_scalar, strict=True)
            ]
            key = (run, workspace, self.driver.tf32, *map(address_of, targets), *leaf_keys)
            stages_of = partial(run_stages, targets, leaves, workspace, temporaries)
            can_cache_launches = repeat_launches(self.memory_tracker, caches, key, stages_of)
            return None

        def run_stages(targets: Any, leaves: Any, workspace: int, temporaries: dict[int, NativeArray]) -> None:
            values = {**dict(enumerate(leaves)), **temporaries}
            for i, v in direct_outputs:
                values[v] = targets[i]
            with IgnoreFPErrors():
                for stage, kernels, stage_views in stages:
                    for v in stage_views:
                        value(v, values)
                    self._run_stage(plan, stage, kernels, values, workspace)
                for i, v in copied_outputs:
                    self.driver.run(copy_into, targets[i], values[v])

        return run

    def _run_stage(
        self,
        plan: Plan,
        stage: Stage,
        kernels: Sequence[FusedKernel | SingleOpKernel | UserKernel] | None,
        values: dict[int, NativeArray],
        workspace: int,
    ) -> None:
        """Launch the kernels of a stage; if it has none, or one does not compile, compute it op by op."""
        launches = [
            x for kernel in kernels or () for x in kernel.launches(values, self.runtime.address_and_strides, workspace)
        ]
        compiled = [self.get_kernel(source) for source, *_ in launches]
        if kernels is None or None in compiled:
            if current_capture() and any(plan.step_of(v).kind == "random" for v in stage.steps):
                raise CaptureError(
                    "graph capture: expected random numbers drawn by kernels, got an op without a kernel"
                )
            self.driver.run(self._run_generic, plan, stage, values)
            return
        for kernel, (_, *arguments) in zip(compiled, launches, strict=True):
            launch_kernel(self.driver, kernel, *arguments)

    def _run_generic(self, plan: Plan, stage: Stage, values: dict[int, NativeArray]) -> None:
        """Compute a stage op by op, then copy its results to their buffers."""
        first = stage.steps[0]
        if call := plan.primitives.get(first):
            if not call.is_repeatable:
                record(None)
            call.run(*[values[x] for x in (*call.inputs, *call.outputs)])
            return
        if len(stage.steps) == 1 and self._try_primitive(plan.step_of(first), first, values):
            return
        if stage.kind == "gemm_sum" and self._try_gemm_sum(plan, stage, values):
            return
        record(None)
        results: dict[int, NativeArray] = {}
        for v in stage.steps:
            results[v] = self.generic.evaluate_step(plan.step_of(v), {**values, **results})
        stored = {v: x for v, x in results.items() if v in values}
        if len(stored) > 1:  # a result may be a view of an operand that another result overwrites
            stored = {v: self.runtime.xp.asarray(x, copy=True) for v, x in stored.items()}
        for v, x in stored.items():
            values[v][...] = x

    def _try_gemm_sum(self, plan: Plan, stage: Stage, values: dict[int, NativeArray]) -> bool:
        """Compute a sum of matrix products in its target and return True, or return False where that is impossible."""
        beta, products, top = 0.0, [], stage.steps[-1]
        for term in libraries.flatten_sum(plan, top)[0]:
            scalar = term.factor(values)
            if scalar == 0:  # libraries skip operands whose factor is 0, and so lose NaN
                return False
            if term.v in stage.steps:
                a, b = (values[x] for x in plan.step_of(term.v).inputs)  # type: ignore[index]
                products.append((a, b, scalar))
            else:
                beta = scalar
        return bool(self.primitives.gemm_accumulate(products, values[top], beta))

    def _try_primitive(self, step: Step, v: int, values: dict[int, NativeArray]) -> bool:
        """Compute a matrix product or scatter-add in its buffer and return True; False where that is impossible."""
        if v not in values or step.dtype not in FLOAT_DTYPES:
            return False
        out, operands = values[v], [values[x] for x in step.inputs if isinstance(x, int)]
        if step.op.name in ("dot", "matmul"):
            return bool(self.primitives.gemm_accumulate([(*operands, 1.0)], out))
        if step.op.name != "scatter_add" or not self.primitives.supports_scatter or operands[0].dtype != out.dtype:
            return False
        row_bytes = math.prod(out.shape[1:]) * out.dtype.itemsize
        if self.runtime.address_and_strides(out)[1] != (row_bytes, out.dtype.itemsize):
            return False
        record(None)
        xp, size, bounds_checker = self.runtime.xp, step.attrs["size"], self.runtime.bounds_checker
        if is_check_synchronous() and not current_capture():
            normalize_indices(xp, operands[1], size)
        indices = xp.astype(xp.reshape(operands[1], (-1,)), xp.int64)
        check = (
            bounds_checker.record_address(),
            bounds_checker.register(f"be.scatter_add: {index_error_message('index', '{}', size, True)}; {WAIT_HINT}"),
        )
        indices = xp.where(indices < 0, indices + size, indices)
        self.primitives.scatter(operands[0], indices, out, step.attrs["axis"], check)
        return True

    def get_kernel(self, source: str) -> libraries.Kernel:
        """Return the compiled kernel of a source; None, with a warning the first time, if it does not compile."""
        try:
            return self.compiled[source]
        except KeyError:
            pass
        kernel = None
        try:
            kernel = self.driver.compile(f"{PREAMBLE}\n{source}")
        except CompileError as error:
            warn(f"{error}\nThe stage is computed op by op instead.", RuntimeWarning)
        return self.compiled.add(source, kernel)

    # --- buffers, per thread ---

    def bind_buffers(self, caches: dict[Any, Any], key: object, plan: Plan) -> tuple[int, dict[int, NativeArray]]:
        """Return the address of the workspace and the temporaries of a plan, both in the arena of this thread."""
        arena = self.arena(plan.required_arena_bytes(), caches)
        bound = self._cache_in(caches, "bound_buffers", MAX_BOUND_PLANS)
        try:
            return bound[key]
        except KeyError:
            temporaries = {}
            for v, start in plan.offsets.items():
                step = plan.step_of(v)
                flat = arena[start : start + step.nbytes].view(self.runtime.dtype(step.dtype))
                temporaries[v] = self.runtime.reshape(flat, step.shape)
            buffers = self.runtime.address_and_strides(arena)[0] + plan.arena_bytes, temporaries
            return bound.add(key, buffers)

    def _cache_in(self, caches: dict[Any, Any], name: str, capacity: int) -> Cache:
        """Return one of the caches of a thread on a stream."""
        if name not in caches:
            caches[name] = Cache(capacity, self.memory_tracker)
        return caches[name]

    def arena(self, nbytes: int, thread_cache: dict[Any, Any] | None = None) -> NativeArray:
        """Return the arena of this thread on its stream, with at least ``nbytes`` bytes."""
        thread_cache = self.memory_tracker.thread_cache if thread_cache is None else thread_cache
        if nbytes > thread_cache.get("arena", (None, None, -1))[2]:  # nbytes may be 0
            thread_cache.pop("bound_buffers", None)  # free the small arena and its views first
            thread_cache.pop("arena", None)
            request = "temporaries of op-trees", nbytes, lambda: self.runtime.allocate(nbytes)
            thread_cache["arena"] = *self.runtime.allocate_tracked("arena", *request), nbytes
        return thread_cache["arena"][0]
