"""Dry runs: a runtime of meta arrays counts the memory and FLOPs of a program without computing any value.

Everything else is the code of a real backend: plans are compiled, and primitives split their work and allocate their
workspaces, so the memory tracker counts exactly the bytes of a real run. FLOPs are one operation for each element that
an op computes or reduces, and 2 m n k for a product, in op-trees and in primitives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from neonlite.backend.planning.layout import write_chwn
from neonlite.backend.planning.plan import Plan
from neonlite.backend.primitives.matmul import MatmulPrimitives
from neonlite.backend.primitives.reference import ReferencePrimitives
from neonlite.backend.random import RandomStreams
from neonlite.backend.runtimes.base import Runtime
from neonlite.backend.runtimes.meta_arrays import FlopCounter, MetaArray, MetaNamespace, make_meta_array
from neonlite.backend.tensor import Tensor
from neonlite.backend.thread_pool import parallel_for
from neonlite.typing import NativeArray, NumPyArray

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from neonlite.backend.base import BackendBase
    from neonlite.backend.primitives.geometry import ConvLayer, PoolLayer
    from neonlite.backend.runtimes.reference.executor import Runner

T = TypeVar("T")


class MetaRuntime(Runtime):
    """A runtime whose arrays are meta arrays, with the executor and primitives of a real runtime.

    Parameters
    ----------
    real : Runtime
        The runtime to imitate.
    source : str
        The backend to imitate, for the ``repr`` of the dry run.
    """

    has_values = False

    def __init__(self, real: Runtime, source: str) -> None:
        real = real.real if isinstance(real, MetaRuntime) else real
        self.count = FlopCounter()
        self.name, self.xp = real.name, MetaNamespace(self.count)
        super().__init__()
        self.real: Runtime = real
        self.source, self.driver = source, StubDriver()
        self.dtypes, self.device_id = real.dtypes, real.device_id
        self.supports_negative_strides, self.supports_half = real.supports_negative_strides, real.supports_half
        self.has_device_memory = real.has_device_memory
        self.executor: Any = MetaExecutor
        primitives: Any = real.primitives if is_subclass(real.primitives, MatmulPrimitives) else ReferencePrimitives
        self.primitives = type("Primitives", (MetaPrimitives, primitives), {})

    def put(self, array: NumPyArray) -> MetaArray:
        """Return a meta array."""
        return make_meta_array(array.shape, array.dtype, self.count)

    def get(self, array: MetaArray) -> NumPyArray:
        """Return zeros."""
        return np.zeros(array.shape, array.dtype)

    def write(self, array: MetaArray, values: NumPyArray, dtype: str) -> None:
        """Do nothing."""

    def numpy_view(self, array: MetaArray) -> NumPyArray:
        """Return read-only zeros without memory."""
        return array.__array__()

    def address_and_strides(self, array: MetaArray) -> tuple[int, tuple[int, ...]]:
        """Return the address, which only arrays of other libraries have, and the strides."""
        return array.template.__array_interface__["data"][0], array.strides

    def allocate(self, nbytes: int) -> NumPyArray:
        """Return an array of that many bytes without memory."""
        return np.broadcast_to(np.uint8(0), nbytes)

    def random_streams(self, seed: int | None) -> RandomStreams:
        """Return random streams that compute no numbers for tensors."""
        return MetaStreams(seed, self.count)

    def fill_mask(self, streams: RandomStreams, out: Tensor, keep: float) -> None:
        """Check the arguments and advance the stream."""
        streams.mask("masks", write_chwn(out, overwrite=True), keep)

    def create_graphs(self, be: BackendBase) -> MetaGraphs | None:
        """Return graphs that call each block, if the real runtime has graphs."""
        return None if self.real.create_graphs(be) is None else MetaGraphs()

    def host_values(self, x: Tensor | NumPyArray) -> NativeArray:
        """Return a meta array."""
        return make_meta_array(x.shape, x.info.dtype if isinstance(x, Tensor) else x.dtype, self.count)

    def backend_title(self, backend_id: int) -> str:
        """Return "dry run", the id and the imitated backend."""
        return f"dry run {backend_id} of {self.source}"

    @property
    def flops(self) -> int:
        """The number of floating-point operations so far."""
        return self.count.flops

    def version_info(self) -> str:
        """Return the version of the real runtime."""
        return f"dry run of {self.real.version_info()}"


def is_subclass(value: object, base: type) -> bool:
    """Return whether a value is a class, and a subclass of another one."""
    return isinstance(value, type) and issubclass(value, base)


class MetaExecutor:
    """Compiles plans with the executor of the real runtime and allocates their arena, but computes nothing."""

    def __init__(self, runtime: MetaRuntime, primitives: ReferencePrimitives) -> None:
        self.runtime = runtime
        self.executor: Any = runtime.real.executor(runtime, primitives)

    def compile(self, plan: Plan) -> Runner:
        """Return a function that allocates what a run of the plan would, and counts its FLOPs."""
        self.executor.compile(plan)
        flops, draws = plan.flops, [step for step in plan.steps if step.kind == "random"]

        def run(targets: Sequence[NativeArray], leaves: Sequence[NativeArray]) -> None:
            if nbytes := plan.required_arena_bytes():
                self.executor.arena(nbytes)
            for step in draws:
                step.op.run(self.runtime.xp, *(leaves[x] for x in step.inputs), **step.attrs)  # type: ignore[index]
            self.runtime.count.add(flops)

        return run


def count_as(name: str, flops: Callable[..., int]) -> Any:
    """Return a primitive that allocates its workspaces, and counts ``flops(*args)`` whatever its algorithm computes."""

    def primitive(self: MetaPrimitives, *args: Any, **options: Any) -> None:
        with self.runtime.count.override(flops(*args)):
            getattr(super(MetaPrimitives, self), name)(*args, **options)

    return primitive


def count_if_done(name: str, flops: Callable[..., int]) -> Any:
    """Return a primitive that allocates its workspaces, and counts ``flops(*args)`` if it is supported."""

    def primitive(self: MetaPrimitives, *args: Any) -> bool:
        done = bool(getattr(super(MetaPrimitives, self), name)(*args))
        self.runtime.count.add(done * flops(*args))
        return done

    return primitive


def conv_flops(layer: ConvLayer, *_: object) -> int:
    """Return 2 m n k for the product that a convolution, or one of its gradients, is."""
    return 2 * layer.sizeO * layer.sizeF // layer.K


def pool_flops(layer: PoolLayer, *_: object) -> int:
    """Return an operation for each element of each window."""
    return layer.sizeO * math.prod(layer.JTRS)


class MetaPrimitives(ReferencePrimitives):
    """Mixin of primitives in a dry run: allocate workspaces and count FLOPs, 2 m n k for a product by any algorithm."""

    gemm = count_as("gemm", lambda a, b, c, *_: 2 * c.size * a.shape[-1])
    batch_reduce_gemm = count_as("batch_reduce_gemm", lambda a, b, c, *_: 2 * a.size * c.shape[-1])
    conv_fprop = count_as("conv_fprop", conv_flops)
    try_conv_bias = count_if_done("try_conv_bias", lambda layer, *_: conv_flops(layer) + layer.sizeO)
    conv_bprop = count_as("conv_bprop", conv_flops)
    conv_update = count_as("conv_update", conv_flops)
    pool_fprop = count_as("pool_fprop", pool_flops)
    pool_bprop = count_as("pool_bprop", pool_flops)
    batch_norm_fprop = count_as("batch_norm_fprop", lambda form, *_: 8 * math.prod(form))
    batch_norm_bprop = count_as("batch_norm_bprop", lambda form, *_: 12 * math.prod(form))
    row_norm_fprop = count_if_done("row_norm_fprop", lambda x, *_: 8 * x.size)
    row_norm_bprop = count_if_done("row_norm_bprop", lambda x, *_: 12 * x.size)
    recurrent_fprop = count_as("recurrent_fprop", lambda shape, *_: shape.flops)
    recurrent_bprop = count_as("recurrent_bprop", lambda shape, *_: 2 * shape.flops)


class MetaStreams(RandomStreams):
    """Random streams that advance as usual, but compute no numbers for tensors."""

    def __init__(self, seed: int | None, count: FlopCounter) -> None:
        self.count = count
        super().__init__(seed, parallel_for)

    def uniform(
        self,
        purpose: str,
        shape: int | tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
        out: NativeArray = None,
    ) -> NativeArray:
        """Return a meta array and reserve its blocks; fill a NumPy array as usual."""
        if out is not None or shape is None:
            return super().uniform(purpose, shape, dtype, out)
        array = make_meta_array(shape, super().uniform(purpose, 0, dtype).dtype, self.count)
        self._reserve_blocks(purpose, -(-array.size // (4 if array.itemsize == 8 else 8)))
        return array

    def normal(
        self,
        purpose: str,
        shape: int | tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
        out: NativeArray = None,
    ) -> NativeArray:
        """Return a meta array and reserve its blocks; fill a NumPy array as usual."""
        if out is not None or shape is None:
            return super().normal(purpose, shape, dtype, out)
        array = make_meta_array(shape, super().normal(purpose, 0, dtype).dtype, self.count)
        self._reserve_blocks(purpose, -(-array.size // 4))
        return array

    def mask(self, purpose: str, out: NativeArray, keep: float) -> NativeArray:
        """Check the arguments and reserve the blocks of a mask."""
        if not isinstance(out, MetaArray):
            return super().mask(purpose, out, keep)
        super().mask(purpose, np.empty(0, out.dtype), keep)
        self._reserve_blocks(purpose, -(-out.size // 8))
        return out


class MetaGraphs:
    """Graphs of a dry run: blocks are called, never captured."""

    def replay(self, block: object, fn: Callable[[], T], uses: object) -> T:
        """Call the block."""
        return fn()

    def clear(self) -> None:
        """Do nothing."""


class StubDriver:
    """A stub of a GPU's driver for dry runs: kernels are not compiled, and launches do nothing."""

    tf32 = False
    cudnn = None

    def compile(self, source: str) -> None:
        """Compile nothing."""

    def launch(self, kernel: object, grid: tuple[int, int], block: int, arguments: object) -> None:
        """Launch nothing."""

    def run(self, f: Callable[..., None], *arguments: object) -> None:
        """Call a function."""
        f(*arguments)

    def gemm(self, desc: object, alpha: float, beta: float) -> bool:
        """Return True: any product is supported."""
        return True
