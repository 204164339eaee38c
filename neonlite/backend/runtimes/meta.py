"""Meta arrays of dry runs: shape, dtype and strides without data, and the FLOPs of NumPy functions called with them.

They are like PyTorch's meta tensors. Every value reads as 0.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from neonlite.backend import random, validation
from neonlite.backend.concurrency import create_lock, parallel_for
from neonlite.backend.planning import Plan
from neonlite.backend.primitives import MatmulPrimitives, ReferencePrimitives, geometry
from neonlite.backend.runtimes.base import Runner, Runtime
from neonlite.backend.tensor import Tensor
from neonlite.messages import describe
from neonlite.typing import AxisLike, BackendBase, NativeArray, NumPyArray, ShapeLike

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

Shape = tuple[int, ...]


class FlopCounter:
    """Counts the floating-point operations of all threads."""

    def __init__(self) -> None:
        self.flops = 0
        self.lock = create_lock()
        self.local = threading.local()

    def add(self, n: int) -> None:
        """Add to the count."""
        if not getattr(self.local, "is_paused", False):
            with self.lock:
                self.flops += n

    @contextmanager
    def override(self, n: int) -> Iterator[None]:
        """Count exactly n operations for a ``with`` block; those that its code counts itself are ignored."""
        self.add(n)
        before, self.local.is_paused = getattr(self.local, "is_paused", False), True
        try:
            yield
        finally:
            self.local.is_paused = before


class NullBuffer:
    """An object with an array interface but no memory; NumPy never reads it."""

    def __init__(self, shape: Shape, dtype: DTypeLike) -> None:
        self.__array_interface__ = {"shape": shape, "typestr": np.dtype(dtype).str, "data": (64, False), "version": 3}


def make_null_array(shape: Shape, dtype: DTypeLike) -> NumPyArray:
    """Return a NumPy array without memory. A view sets its dtype, as an array interface has no name for bfloat16."""
    return np.asarray(NullBuffer(shape, dtype)).view(dtype)


class MetaArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array without memory. NumPy functions called with it return meta arrays of the result's shape and dtype.

    ``template`` is a NumPy array of this shape and these strides, whose elements must not be read. ``element`` is the
    value that every element has in a dry run: 0, or what ops compute from 0, such as True for ``x == 0``.
    """

    __slots__ = ("count", "element", "template")

    def __init__(self, template: NumPyArray, count: FlopCounter, element: NativeArray = None) -> None:
        self.template, self.count = template, count
        self.element = np.zeros((), template.dtype) if element is None else np.asarray(element)

    def new_like(self, shape: Shape, element: NativeArray = None) -> MetaArray:
        """Return a meta array of another shape, whose elements are ``element``."""
        element = np.zeros_like(self.element) if element is None else np.asarray(element)
        return MetaArray(make_null_array(shape, element.dtype), self.count, element)

    # --- properties ---

    shape = property(lambda self: self.template.shape, doc="The shape.")
    dtype = property(lambda self: self.template.dtype, doc="The dtype.")
    strides = property(lambda self: self.template.strides, doc="Bytes from an element to the next, along each axis.")
    flags = property(lambda self: self.template.flags, doc="NumPy's flags, such as contiguity.")
    ndim = property(lambda self: self.template.ndim, doc="The number of dimensions.")
    size = property(lambda self: self.template.size, doc="The number of elements.")
    itemsize = property(lambda self: self.template.itemsize, doc="The bytes of an element.")
    nbytes = property(lambda self: self.template.nbytes, doc="The bytes of all elements.")
    T = property(lambda self: self.make_view(np.transpose), doc="A view with the axes in reverse.")

    def __len__(self) -> int:
        return len(self.template)

    def __repr__(self) -> str:
        return f"<meta array {self.shape} {self.dtype}>"

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NumPyArray:
        return np.broadcast_to(np.zeros((), dtype or self.dtype), self.shape)

    def __array_namespace__(self, api_version: str | None = None) -> MetaNamespace:
        return MetaNamespace(self.count)

    def __dlpack__(self, **options: object) -> NoReturn:
        raise BufferError("expected a tensor with memory, got one of a dry run. t.get() returns zeros.")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    # --- scalars ---

    def item(self) -> Any:
        """Return the value that every element has."""
        return self.element.item()

    def __bool__(self) -> bool:
        return bool(self.element)

    def __int__(self) -> int:
        return int(self.element)

    def __float__(self) -> float:
        return float(self.element)

    # --- views and results ---

    def make_view(self, function: Callable[..., Any], *args: Any, **options: Any) -> MetaArray:
        """Return the view that a function returns for the template; it must not read elements."""
        return MetaArray(function(self.template, *args, **options), self.count, self.element)

    def __getitem__(self, index: NativeArray) -> MetaArray:
        return self.make_view(operator.getitem, check_basic_index(index))

    def __setitem__(self, index: NativeArray, value: NativeArray) -> None:
        check_broadcast(self.template[check_basic_index(index)].shape, value)

    def __getattr__(self, name: str) -> Any:
        """Return the function of NumPy of this name as a method, such as ``x.sum`` for ``np.sum``."""
        if name.startswith("_") or not hasattr(np, name):
            raise AttributeError(f"a meta array has no attribute {name!r}")
        return partial(getattr(np, name), self)

    def reshape(self, *shape: Any) -> MetaArray:
        """Return the array in another shape: a view if possible."""
        return reshape_rule(self, shape[0] if len(shape) == 1 else shape)

    def astype(self, dtype: DTypeLike, copy: bool = True, **_: object) -> MetaArray:
        """Return the array cast to another dtype."""
        return self if dtype == self.dtype and not copy else self.new_like(self.shape, self.element.astype(dtype))

    def view(self, dtype: DTypeLike) -> MetaArray:
        """Return the same bytes as another dtype."""
        return MetaArray(self.template.view(dtype), self.count)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: NativeArray, out: Any = (), **options: Any) -> Any:
        is_supported = ufunc.nout == 1 and (not ufunc.signature or ufunc is np.matmul)
        if not is_supported or method not in ("__call__", "reduce", "at"):
            raise TypeError(f"np.{ufunc.__name__}.{method} {NO_RULE_MESSAGE}")
        if method == "at":
            self.count.add(max(np.size(x) for x in inputs[1:]))
            return None
        target = out[0] if out else None
        if method == "reduce":
            return reduction_rule(ufunc.reduce)(self, *inputs, out=target, **options)
        if ufunc is np.matmul:
            return matmul_rule(self, inputs[0], inputs[1], target)
        if target is None:
            return elementwise_rule(ufunc)(self, *inputs, **options)
        check_broadcast(target.shape, *inputs)  # without a result array, as pooling has many such calls
        self.count.add(target.size)
        return target

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func not in FUNCTION_RULES:
            raise TypeError(f"np.{func.__name__} {NO_RULE_MESSAGE}")
        return FUNCTION_RULES[func](self, *args, **kwargs)


NO_RULE_MESSAGE = "has no shape rule for dry runs. Add one to FUNCTION_RULES in neonlite/backend/runtimes/meta.py."


def make_meta_array(shape: ShapeLike, dtype: DTypeLike, count: FlopCounter) -> MetaArray:
    """Return a contiguous meta array."""
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    return MetaArray(make_null_array(tuple(sizes), dtype), count)


def check_basic_index(index: NativeArray) -> tuple[Any, ...]:
    """Return a basic index with an ellipsis, so that even one element is a view; TypeError for arrays and lists."""
    parts = index if isinstance(index, tuple) else (index,)
    for x in parts:
        if not (x is None or x is ... or isinstance(x, slice | int | np.integer)) or isinstance(x, bool):
            raise TypeError(f"indexing with {describe(x)} {NO_RULE_MESSAGE}")
    return parts if any(x is ... for x in parts) else (*parts, ...)


def check_broadcast(shape: Shape, *values: NativeArray) -> None:
    """Raise ValueError if values do not broadcast to a shape."""
    for value in values:
        given = value.shape if isinstance(value, MetaArray) else np.shape(value)
        if given and given != shape and np.broadcast_shapes(shape, given) != shape:
            raise ValueError(f"expected a value that broadcasts to {shape}, got shape {given}")


def sample_element(x: NativeArray) -> Any:
    """Return a 0-d array with the dtype of an array, from which NumPy infers the dtype of a result."""
    if isinstance(x, np.ndarray):
        return np.asarray(x.flat[0]) if x.size else np.zeros((), x.dtype)
    return x.element if isinstance(x, MetaArray) else x


# --- shape rules of NumPy functions: called with a meta array and the arguments ---------------------------------------


def elementwise_rule(function: Callable[..., Any]) -> Callable[..., MetaArray]:
    """Return the rule of an elementwise function."""

    def run(meta: MetaArray, *inputs: NativeArray, **options: Any) -> MetaArray:
        with validation.IgnoreFPErrors():
            element = function(*map(sample_element, inputs), **{name: sample_element(x) for name, x in options.items()})
        shapes = {x.shape for x in inputs if isinstance(x, MetaArray | np.ndarray)}
        result = meta.new_like(shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes), element)
        result.count.add(result.size)
        return result

    return run


def reduction_rule(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of a reduction."""

    def run(
        meta: MetaArray,
        x: NativeArray,
        axis: AxisLike = None,
        *,
        out: NativeArray = None,
        keepdims: bool = False,
        **options: Any,
    ) -> Any:
        meta.count.add(x.size)
        axes = range(x.ndim) if axis is None else [a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,))]
        shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
        with validation.IgnoreFPErrors():
            return meta.new_like(shape, function(sample_element(x), **options)) if out is None else out

    return run


def view_rule(function: Callable[..., Any]) -> Callable[..., MetaArray]:
    """Return the rule of a function that returns a view."""
    return lambda meta, x, *args, **options: meta.make_view(function, *args, **options)


def matmul_rule(meta: MetaArray, a: NativeArray, b: NativeArray, out: NativeArray = None) -> NativeArray:
    """Return the product of matrices, or of stacks of them."""
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: the inner sizes of {a.shape} and {b.shape} differ")
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    meta.count.add(2 * math.prod(shape) * a.shape[-1])
    if out is None:
        return meta.new_like(shape, np.zeros((), np.result_type(a.dtype, b.dtype)))
    check_broadcast(out.shape, np.broadcast_to(0, shape))
    return out


def reshape_rule(x: MetaArray, shape: ShapeLike, order: str = "C", *, copy: bool | None = None) -> MetaArray:
    """Return a view in another shape if possible, else a copy, or an error if ``copy`` is False."""
    try:
        return x.make_view(np.reshape, shape, copy=False)
    except ValueError:
        sizes = np.reshape(x.__array__(), shape).shape  # raises if the sizes differ
        if copy is False:
            raise
        return x.new_like(sizes, x.element)


def concat_rule(meta: MetaArray, parts: Sequence[NativeArray], axis: int = 0, **_: object) -> MetaArray:
    """Return arrays joined along an axis."""
    first, total = parts[0], sum(part.shape[axis] for part in parts)
    shape = tuple(total if i == axis % first.ndim else n for i, n in enumerate(first.shape))
    return meta.new_like(shape, np.zeros((), np.result_type(*(part.dtype for part in parts))))


def take_rule(
    meta: MetaArray, x: NativeArray, indices: Any, axis: int | None = None, out: NativeArray = None, **_: object
) -> Any:
    """Return slices by their indices."""
    before, after = ((), ()) if axis is None else (x.shape[:axis], x.shape[axis:][1:])
    return meta.new_like((*before, *np.shape(indices), *after), sample_element(x)) if out is None else out


def like_rule(
    meta: MetaArray,
    x: NativeArray,
    *_: object,
    dtype: DTypeLike | None = None,
    shape: ShapeLike | None = None,
    **__: object,
) -> MetaArray:
    """Return a meta array of another array's shape and dtype."""
    return make_meta_array(x.shape if shape is None else shape, dtype or x.dtype, meta.count)


def qr_rule(x: MetaArray, _: object) -> tuple[MetaArray, MetaArray]:
    """Return Q and R of a matrix."""
    (m, n), k = x.shape, min(x.shape)
    return x.new_like((m, k)), x.new_like((k, n))


FUNCTION_RULES: dict[Any, Callable[..., Any]] = {
    np.reshape: lambda meta, x, *args, **options: reshape_rule(x, *args, **options),
    np.concatenate: concat_rule,
    np.take: take_rule,
    np.copyto: lambda meta, target, value, **_: check_broadcast(target.shape, value),
    np.shape: lambda meta, x: x.shape,
    np.size: lambda meta, x: x.size,
    np.astype: lambda meta, x, dtype, copy=True, **_: x.astype(dtype, copy=copy),
    np.argsort: lambda meta, x, **_: meta.new_like(x.shape, np.int64(0)),
    np.searchsorted: lambda meta, x, y, **_: meta.new_like(np.shape(y), np.int64(0)),
    np.copy: lambda meta, x, **_: x.new_like(x.shape, x.element),
    np.linalg.qr: qr_rule,
}
# Annotated, as mypy takes seconds to join the overloads of these functions.
Functions = tuple[Callable[..., Any], ...]
VIEW_FUNCTIONS: Functions = (np.transpose, np.moveaxis, np.swapaxes, np.squeeze, np.expand_dims, np.broadcast_to)
VIEW_FUNCTIONS += (np.flip, np.diagonal)
REDUCTION_FUNCTIONS: Functions = (np.sum, np.prod, np.mean, np.max, np.min, np.any, np.all, np.argmax, np.argmin)
FUNCTION_RULES |= {function: view_rule(function) for function in VIEW_FUNCTIONS}
FUNCTION_RULES[np.linalg.diagonal] = lambda meta, x: meta.make_view(np.diagonal, 0, -2, -1)
FUNCTION_RULES |= {function: reduction_rule(function) for function in REDUCTION_FUNCTIONS}
FUNCTION_RULES |= {function: elementwise_rule(function) for function in (np.where, np.clip, np.round)}
FUNCTION_RULES |= dict.fromkeys((np.empty_like, np.zeros_like, np.ones_like, np.full_like), like_rule)


class MetaNamespace(ModuleType):
    """The namespace of NumPy, whose creation functions return meta arrays."""

    def __init__(self, count: FlopCounter) -> None:
        super().__init__("numpy")
        self.count = count

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: ShapeLike, dtype: DTypeLike | None = None, **_: object) -> MetaArray:
        """Return a meta array."""
        return make_meta_array(shape, dtype or float, self.count)

    zeros = ones = empty

    def full(self, shape: ShapeLike, fill_value: float, dtype: DTypeLike | None = None, **_: object) -> MetaArray:
        """Return a meta array."""
        return make_meta_array(shape, dtype or np.asarray(fill_value).dtype, self.count)

    def asarray(self, x: NativeArray, dtype: DTypeLike | None = None, **_: object) -> Any:
        """Return a NumPy array; a meta array is returned as a meta array."""
        return x.astype(dtype or x.dtype, copy=False) if isinstance(x, MetaArray) else np.asarray(x, dtype)

    def from_dlpack(self, x: NativeArray) -> MetaArray:
        """Return a meta array of another array's shape, dtype and strides."""
        return MetaArray(np.from_dlpack(x), self.count)


# --- dry runs ---
#
# A runtime of meta arrays counts the memory and FLOPs of a program without computing any value.
#
# Everything else is the code of a real backend: plans are compiled, and primitives split their work and allocate their
# workspaces, so the memory tracker counts exactly the bytes of a real run. FLOPs are one operation for each element
# that an op computes or reduces, and 2 m n k for a product, in op-trees and in primitives.

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

    def random_streams(self, seed: int | None) -> random.RandomStreams:
        """Return random streams that compute no numbers for tensors."""
        return MetaStreams(seed, self.count)

    def fill_mask(self, streams: random.RandomStreams, out: Tensor, keep: float) -> None:
        """Check the arguments and advance the stream."""
        streams.mask("masks", out._array, keep)

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
        xp: Any = self.runtime.xp
        direct = {v: i for v, i in plan.outputs.items() if plan.is_direct[i]}
        others = {x for v, call in plan.primitives.items() for x in call.outputs if x != v}  # of another step's call
        calls = [call for v, call in plan.primitives.items() if v not in others]

        def run(targets: Sequence[NativeArray], leaves: Sequence[NativeArray]) -> None:
            if nbytes := plan.required_arena_bytes():
                self.executor.arena(nbytes)
            for step in draws:
                step.op.run(self.runtime.xp, *(leaves[x] for x in step.inputs), **step.attrs)  # type: ignore[index]
            with self.runtime.count.override(flops):
                for call in calls:
                    values = [
                        leaves[x]
                        if x < len(plan.leaves)
                        else targets[direct[x]]
                        if x in direct
                        else xp.empty(plan.shape(x), plan.dtype(x))
                        for x in (*call.inputs, *call.outputs)
                    ]
                    call.run(*values)

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


def conv_flops(layer: geometry.ConvLayer, *_: object) -> int:
    """Return 2 m n k for the product that a convolution, or one of its gradients, is."""
    return 2 * layer.sizeO * layer.sizeF // layer.K


def pool_flops(layer: geometry.PoolLayer, *_: object) -> int:
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
    recurrent_fprop = count_as("recurrent_fprop", lambda shape, *_: shape.flops)
    recurrent_bprop = count_as("recurrent_bprop", lambda shape, *_: 2 * shape.flops)


class MetaStreams(random.RandomStreams):
    """Random streams that advance as usual, but compute no numbers for tensors."""

    def __init__(self, seed: int | None, count: FlopCounter) -> None:
        self.count = count
        super().__init__(seed, parallel_for)

    def _new_array(self, purpose: str, shape: ShapeLike, dtype: DTypeLike, per_block: int) -> MetaArray:
        """Return a meta array and reserve its blocks."""
        array = make_meta_array(shape, np.dtype(dtype), self.count)
        self._reserve_blocks(purpose, -(-array.size // per_block))
        return array

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
        dtype = super().uniform(purpose, 0, dtype).dtype
        return self._new_array(purpose, shape, dtype, 4 if dtype == np.float64 else 8)

    def words(self, purpose: str, shape: Any, dtype: str = "uint64") -> NativeArray:
        return self._new_array(purpose, shape, dtype, 4)

    def new_mask(self, purpose: str, shape: Any, keep: float, dtype: str) -> NativeArray:
        return self._new_array(purpose, shape, "float64" if dtype == "float64" else "float32", 8)

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
        return self._new_array(purpose, shape, super().normal(purpose, 0, dtype).dtype, 4)

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
