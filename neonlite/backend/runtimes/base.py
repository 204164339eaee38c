"""Runtime, the interface to an array library; executors, and the reference executor, which evaluates op by op."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from neonlite.backend import measure, random, validation
from neonlite.backend.concurrency import parallel_for
from neonlite.backend.planning import Plan, steps
from neonlite.backend.primitives import ReferencePrimitives
from neonlite.backend.tensor import Tensor
from neonlite.tree_structure import Constant
from neonlite.typing import INT_DTYPES, BackendBase, DType, NativeArray, NumPyArray, has_bfloat16

# ops that run on bfloat16 itself: like views they compute no new values, or the result depends on the precision
DATA_MOVEMENT_OPS = ("stop_gradient", "take", "concat", "slice_backward", "nextafter")

Runner = Callable[[Sequence[NativeArray], Sequence[NativeArray]], None]


class Executor(Protocol):
    """An executor of plans."""

    def compile(self, plan: Plan) -> Runner:
        """Return ``run(targets, leaves)``, which writes the values of a plan to the arrays of its targets."""


class ReferenceExecutor:
    """The executor for any array-API namespace with writable arrays. All other executors are tested against it.

    Others call primitives of a library in plans; this one calls the forward functions of the op table only.
    """

    def __init__(self, runtime: Runtime, primitives: ReferencePrimitives | None = None) -> None:
        self.runtime = runtime
        self.xp = runtime.xp
        # the array-API standard has no bfloat16: operands are cast to float32, and results rounded
        self.bfloat16_dtype = runtime.dtype("bfloat16") if "bfloat16" in runtime.dtypes else None

    def compile(self, plan: Plan) -> Runner:
        """Return ``run(targets, leaves)``.

        The values of a plan are numbered: first its leaves, then the result of each step. ``run`` computes all of them,
        frees each after its last use, and then writes the outputs to the targets.
        """
        check_slice_steps(plan, self.runtime)
        dead_after = find_last_uses(plan)
        needs_copy = bool(plan.aliases) or len(plan.outputs) > 1  # aliases: targets that share memory with leaves

        def run(targets: Sequence[NativeArray], leaves: Sequence[NativeArray]) -> None:
            values: dict[int, NativeArray] = dict(enumerate(leaves))
            with validation.IgnoreFPErrors():
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

    def evaluate_step(self, step: steps.Step, values: dict[int, NativeArray]) -> NativeArray:
        """Return the value of one step, with the shape and dtype of the step."""
        inputs = [x.value if isinstance(x, Constant) else values[x] for x in step.inputs]
        if step.kind == "random":
            out = self.runtime.put(step.op.run(self.xp, *inputs, **step.attrs))
        else:
            out = step.op.run(self.xp, *self.operands(step, inputs), **step.attrs)
        if out.dtype != (dtype := self.runtime.dtype(step.dtype)):
            out = self.xp.astype(out, dtype)
        if out.shape != step.shape:
            out = (self.xp.broadcast_to if step.kind == "elementwise" else self.xp.reshape)(out, step.shape)
        return out

    def operands(self, step: steps.Step, inputs: Sequence[NativeArray]) -> list[NativeArray]:
        """Return the inputs as arrays, since array-API functions expect no Python scalars; bfloat16 as float32."""
        operands = [
            self.xp.asarray(x, dtype=self.runtime.dtype(step.compute_dtype)) if isinstance(x, int | float) else x
            for x in inputs
        ]
        if self.bfloat16_dtype is None or step.kind == "view" or step.op.name in DATA_MOVEMENT_OPS:
            return operands
        return [self.xp.astype(x, self.xp.float32) if x.dtype == self.bfloat16_dtype else x for x in operands]


# --- how it is made fast, and the rest ---


def find_last_uses(plan: Plan) -> dict[int, list[int]]:
    """Return {step: the values of earlier steps that no later step and no output uses}."""
    last_uses = {x: v for v in plan.step_values for x in plan.step_of(v).inputs if isinstance(x, int)}
    dead_after: dict[int, list[int]] = {}
    for x in last_uses.keys() - {*plan.outputs}:
        if x >= len(plan.leaves):
            dead_after.setdefault(last_uses[x], []).append(x)
    return dead_after


def check_slice_steps(plan: Plan, runtime: Runtime) -> None:
    """Raise IndexError for a slice with a negative step if arrays of the library have none."""
    step = min((step for s in plan.steps for _, _, step in s.attrs.get("index", ())), default=1)
    if step < 0 and not runtime.supports_negative_strides:
        raise IndexError(f"expected a step >= 1 on the runtime {runtime.name!r}, got {step}. Use be.take.")


# --- Runtime, the interface to an array library ---
#
# Namespace, dtypes, copies from and to NumPy, and device queries.

T = TypeVar("T")


class Graphs(Protocol):
    """The graphs of the blocks of a backend."""

    def replay(self, block: object, fn: Callable[[], T], uses: object) -> T:
        """Run a block or launch its graph, as in ``Backend.replay``."""

    def clear(self) -> None:
        """Free all graphs."""


class Runtime:
    """The array library of a backend. A subclass sets ``name`` and ``xp`` and implements ``put`` and ``get``.

    Arrays must be writable in place and have views. The other attributes and methods have defaults. A constructor sets
    ``xp``, if the class does not, and then calls ``super().__init__(device_id)``.

    Parameters
    ----------
    device_id : int
        The device, from 0 to ``devices - 1``.

    Attributes
    ----------
    name : str
        The name for ``gen_backend``.
    xp : module
        The namespace, which follows the array-API standard.
    dtypes : tuple of str
        The supported dtypes; by default those of the namespace.
    supports_negative_strides : bool
        Whether ``x[::-1]`` is a view.
    supports_half : bool
        Whether primitives compute in 16-bit floats; if not, they compute in float32.
    has_device_memory : bool
        Whether arrays are in the memory of a device, where a kernel fills them faster than a copy from the host.
    has_values : bool
        Whether arrays have values; not in a dry run, where primitives allocate workspaces but call no library.
    executor, primitives : class
        The executor of plans, called with the runtime and its primitives, and the primitives, called with the runtime.
    memory_tracker : MemoryTracker
        Counts the bytes allocated.

    Raises
    ------
    ValueError
        The device does not exist.
    TypeError
        The class lacks ``name``, ``xp``, ``put`` or ``get``.
    """

    name: str
    xp: ModuleType
    dtypes: tuple[str, ...] = ("float16", "float32", "float64", *INT_DTYPES)
    supports_negative_strides = True
    executor: Callable[[Runtime, ReferencePrimitives], Executor] = ReferenceExecutor
    primitives: Callable[[Runtime], ReferencePrimitives] = ReferencePrimitives
    supports_half = False
    has_device_memory = False
    has_values = True

    def __init__(self, device_id: int = 0) -> None:
        missing = [x for x in ("name", "xp") if not hasattr(self, x)]
        missing += [x for x in ("put", "get") if getattr(type(self), x) is getattr(Runtime, x)]
        if missing:
            raise TypeError(
                f"runtime {type(self).__name__}: expected name, xp, put and get, got no {' and no '.join(missing)}. "
                "Define them in the class; a constructor may also set name and xp before super().__init__(device_id)."
            )
        if isinstance(device_id, bool) or not isinstance(device_id, int) or not 0 <= device_id < self.devices:
            valid = "0" if self.devices == 1 else f"an integer from 0 to {self.devices - 1}"
            raise ValueError(f"runtime {self.name!r}: expected {valid} for device_id, got {device_id!r}")
        self.device_id = device_id
        self.memory_tracker = measure.MemoryTracker()
        if self.dtypes is Runtime.dtypes:
            self.dtypes = tuple(x for x in self.dtypes if hasattr(self.xp, x))

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def is_equivalent(self, other: Runtime) -> bool:
        """Return whether another runtime has the same class and device. A subclass with settings compares these too."""
        return type(other) is type(self) and other.device_id == self.device_id

    @property
    def devices(self) -> int:
        """The number of devices."""
        return 1

    def dtype(self, name: str) -> DType:
        """Return the library's dtype of a name, or NumPy's if the namespace has none of this name, such as bfloat16."""
        return getattr(self.xp, name, None) or np.dtype(name)

    def put(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to an array of the library."""
        raise NotImplementedError

    def adopt(self, array: NumPyArray) -> NativeArray:
        """Return an array of the library with the values of a NumPy array to which nothing else refers."""
        return self.put(array)

    def get(self, array: NativeArray) -> NumPyArray:
        """Copy an array of the library to a NumPy array."""
        raise NotImplementedError

    def write(self, array: NativeArray, values: NumPyArray, dtype: str) -> None:
        """Copy a NumPy array into an array of the library, cast to its dtype and broadcast to its shape."""
        with validation.IgnoreFPErrors():
            array[...] = self.put(values.astype(dtype))

    def numpy_view(self, array: NativeArray) -> NumPyArray:
        """Return a NumPy array that shares the memory of an array of the library; BufferError if it cannot."""
        return np.from_dlpack(array)

    def host_values(self, x: Tensor | NumPyArray) -> NumPyArray:
        """Return the values of a tensor, also of another backend, or of a NumPy array, for ``put`` and ``write``."""
        return x.numpy() if isinstance(x, Tensor) else x

    def read_only_view(self, array: NativeArray) -> NativeArray | None:
        """Return a read-only view of an array, or None if the library has none."""
        return None

    def address_and_strides(self, array: NativeArray) -> tuple[int, tuple[int, ...]]:
        """Return the address of the first element, and the strides in bytes."""
        view = self.numpy_view(array)
        return view.__array_interface__["data"][0], view.strides

    def reshape(self, array: NativeArray, shape: tuple[int, ...]) -> NativeArray:
        """Return a view of a contiguous array in another shape."""
        # an empty array shares no memory, so some libraries would report a copy
        return self.xp.reshape(array, shape, copy=None if 0 in shape else False)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> NativeArray:
        """Return an array of uninitialized values."""
        return self.xp.empty(shape, dtype=dtype)

    def free_unused(self) -> None:
        """Give memory that waits for new arrays back to the system."""

    def allocate(self, nbytes: int) -> NativeArray:
        """Return ``nbytes`` bytes of new memory, an array of uint8."""
        return self.xp.empty(nbytes, dtype=self.dtype("uint8"))

    def allocate_tracked(
        self, kind: str, purpose: str, nbytes: int, allocate: Callable[[], NativeArray]
    ) -> tuple[NativeArray, measure.Allocation]:
        """Allocate an arena or a workspace; return it with its record in the memory tracker.

        ``kind`` is "arena" or "workspaces". If ``allocate`` fails, raises OutOfMemoryError with the purpose.
        """
        self.check_device()
        try:
            buffer = allocate()
        except MemoryError as error:
            raise self.out_of_memory_error(f"{purpose}, {measure.format_bytes(nbytes)}") from error
        return buffer, self.memory_tracker.track(nbytes, kind)

    def allocation_error(self, error: Exception, what: str) -> Exception:
        """Convert an error of the library to a more specific one; ``what`` describes the allocation that failed."""
        error = self.translate_error(error)
        is_bare = isinstance(error, MemoryError) and not isinstance(error, measure.OutOfMemoryError)
        return self.out_of_memory_error(what) if is_bare else error

    def out_of_memory_error(self, what: str) -> measure.OutOfMemoryError:
        """Return the error of a failed allocation, with allocated and free bytes and how to use less memory."""
        info = self.mem_get_info()
        free = f", {measure.DeviceMemory(*info)} on the device" if info else ""
        return measure.OutOfMemoryError(
            f"out of memory allocating {what}: {self.name!r} holds {self.memory_tracker.usage()}{free}. Reduce the "
            "batch size, use dtype='float16', or delete unused tensors. model.summary(data) and be.dry_run() report "
            "the required memory in advance."
        )

    # --- random numbers ---

    def random_streams(self, seed: int | None) -> random.RandomStreams:
        """Return new random streams; without a seed, of a seed from the operating system."""
        return random.RandomStreams(seed, parallel_for)

    def fill_mask(self, streams: random.RandomStreams, out: Tensor, keep: float) -> None:
        """Fill a tensor from the stream "masks" with ones, with probability ``keep``, and zeros."""
        values = streams.mask("masks", np.empty(out.shape, out.info.dtype), keep)
        self.write(out._array, values, out.info.dtype)

    def fill_normal(self, streams: random.RandomStreams, out: Tensor, mean: float, stdv: float) -> None:
        """Fill a tensor from the stream "noise" with normally distributed numbers."""
        values = streams.normal("noise", out.shape, "float64") * stdv + mean
        self.write(out._array, values, out.info.dtype)

    # --- graphs ---

    def create_graphs(self, be: BackendBase) -> Graphs | None:
        """Return the object that captures and replays the blocks of a backend; None if each call runs the block."""
        return None

    # --- the device ---

    def synchronize(self) -> None:
        """Wait until the device has finished all work; raise the errors that it reported, such as IndexError."""

    def check_device(self) -> None:
        """Raise RuntimeError if this thread or process cannot use the device."""

    def mem_get_info(self) -> tuple[int, int] | None:
        """Return the free and total bytes of the device's memory; None for the host."""
        return None

    def translate_error(self, error: Exception) -> Exception:
        """Convert an error of the library to a more specific one if its cause is known; return others unchanged."""
        return error

    @property
    def flops(self) -> int | None:
        """The number of floating-point operations so far, which only dry runs count; else None."""
        return None

    # --- others ---

    def backend_title(self, backend_id: int) -> str:
        """Return the ``repr`` of a backend on this runtime, without brackets."""
        return f"backend {self.name} {backend_id}"

    def make_deterministic(self) -> None:
        """Make the library compute bit-identical results in every run."""

    def version_info(self) -> str:
        """Return the library's version, threads and devices in one line."""
        return f"{self.xp.__name__} {getattr(self.xp, '__version__', '')}".strip()


# --- the runtimes without code of their libraries beyond the array-API standard: PyTorch and array-api-strict ---


class StrictRuntime(Runtime):
    """Arrays of array-api-strict, which the constructor imports; op-trees run op by op."""

    name = "strict"

    def __init__(self, device_id: int = 0) -> None:
        import array_api_strict

        self.xp = array_api_strict
        super().__init__(device_id)

    def put(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to an array of array-api-strict."""
        return self.xp.asarray(np.array(array, order="C"))

    def get(self, array: NativeArray) -> NumPyArray:
        """Copy an array of array-api-strict to a NumPy array."""
        return np.array(np.from_dlpack(array))


# --- the 'torch' runtime: PyTorch CPU tensors through the array API ---


class TorchRuntime(Runtime):
    """PyTorch CPU tensors; op-trees run op by op. PyTorch is imported by the constructor."""

    name = "torch"
    dtypes: tuple[str, ...] = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
    supports_negative_strides = False

    def __init__(self, device_id: int = 0) -> None:
        import array_api_compat.torch as namespace
        import torch

        self.xp, self.torch = namespace, torch
        limit_threads_after_fork(torch)
        super().__init__(device_id)
        self.dtypes += ("bfloat16",) * has_bfloat16()

    def put(self, array: NumPyArray) -> NativeArray:
        """Copy a NumPy array to a PyTorch tensor."""
        copy = np.array(array, order="C")
        if copy.dtype.name == "bfloat16":  # PyTorch does not read the bfloat16 of ml_dtypes
            return self.torch.from_numpy(copy.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(copy)

    def get(self, array: NativeArray) -> NumPyArray:
        """Copy a PyTorch tensor to a NumPy array."""
        return np.array(self.numpy_view(array) if array.dtype == self.torch.bfloat16 else array.numpy(), order="C")

    def numpy_view(self, array: NativeArray) -> Any:
        """Return a NumPy array that shares the memory of a tensor."""
        if array.dtype == self.torch.bfloat16:
            return array.view(self.torch.int16).numpy().view("bfloat16")
        return super().numpy_view(array)

    def version_info(self) -> str:
        """Return the version and the number of threads."""
        return f"PyTorch {self.torch.__version__}, {self.torch.get_num_threads()} threads"


@cache
def limit_threads_after_fork(torch: Any) -> None:
    """Let PyTorch use one thread in forked processes: its OpenMP library waits for threads that do not exist there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
