"""What would it take?  A rehearsal: a backend on which everything is played through, and nothing is computed.

Its arrays are *ghosts*: shape, dtype and strides, and no memory behind them. The code that runs is the real one - plans
are made, primitives walk over their slices and ask for their buffers - and so the ledger has the very entries that it
would have. Every number is as if it were 0.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import numpy as np

from neonlite.backend.backend import Backend
from neonlite.backend.cuda.executor import Cuda
from neonlite.backend.cuda.graphs import Graphs
from neonlite.backend.executors.blocked import Blocked
from neonlite.backend.executors.generic import Generic
from neonlite.backend.executors.pool import share
from neonlite.backend.executors.quiet import Silence
from neonlite.backend.plan import Plan
from neonlite.backend.primitives.generic import Generic as Plain
from neonlite.backend.primitives.products import Products
from neonlite.backend.random import Streams
from neonlite.backend.runtimes.base import Runtime
from neonlite.backend.stored import written
from neonlite.backend.tensor import Tensor
from neonlite.optree import OpTreeNode, describe

Shape = tuple[int, ...]


class Count:
    """The operations on numbers so far, of all threads."""

    def __init__(self) -> None:
        self.flops = 0
        self.lock = threading.Lock()
        self.local = threading.local()

    def add(self, n: int) -> None:
        """Count some more."""
        if not getattr(self.local, "silent", False):
            with self.lock:
                self.flops += n

    @contextmanager
    def instead(self, n: int) -> Iterator[None]:
        """Count so many for whatever is done meanwhile."""
        self.add(n)
        before, self.local.silent = getattr(self.local, "silent", False), True
        try:
            yield
        finally:
            self.local.silent = before


# --- arrays of nothing -----------------------------------------------------------------------------------------------


class Nowhere:
    """What NumPy takes for the memory of an array; it is never looked at."""

    def __init__(self, shape: Shape, dtype: Any) -> None:
        self.__array_interface__ = {"shape": shape, "typestr": np.dtype(dtype).str, "data": (64, False), "version": 3}


def nowhere(shape: Shape, dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array of NumPy whose elements are nowhere; a view, as an interface does not know bfloat16 by name."""
    return np.asarray(Nowhere(shape, dtype)).view(dtype)


class Ghost(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that has no memory: what NumPy computes with it is a ghost again, of the right shape and dtype.

    ``form`` is an array of NumPy of this shape and these strides; its elements are nowhere, and nobody may touch them.
    ``cell`` is what each would be: 0 when read from memory, and what was computed of that, as True of ``x == 0``.
    """

    __slots__ = ("cell", "count", "form")

    def __init__(self, form: np.ndarray[Any, Any], count: Count, cell: Any = None) -> None:
        self.form, self.count = form, count
        self.cell = np.zeros((), form.dtype) if cell is None else np.asarray(cell)

    def like(self, shape: Shape, cell: Any = None) -> Ghost:
        """Return another, each element of which would be ``cell``."""
        cell = np.zeros_like(self.cell) if cell is None else np.asarray(cell)
        return Ghost(nowhere(shape, cell.dtype), self.count, cell)

    # --- what it is ---

    shape = property(lambda self: self.form.shape, doc="The sizes.")
    dtype = property(lambda self: self.form.dtype, doc="The dtype.")
    strides = property(lambda self: self.form.strides, doc="Bytes from an element to the next, along each axis.")
    flags = property(lambda self: self.form.flags, doc="How the elements would lie.")
    ndim = property(lambda self: self.form.ndim, doc="The number of dimensions.")
    size = property(lambda self: self.form.size, doc="The number of elements.")
    itemsize = property(lambda self: self.form.itemsize, doc="The bytes of an element.")
    nbytes = property(lambda self: self.form.nbytes, doc="The bytes that the elements would take.")
    T = property(lambda self: self.seen(np.transpose), doc="A view with the axes in reverse.")

    def __len__(self) -> int:
        return len(self.form)

    def __repr__(self) -> str:
        return f"<ghost {self.shape} {self.dtype}>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.broadcast_to(np.zeros((), dtype or self.dtype), self.shape)

    def __array_namespace__(self, api_version: str | None = None) -> Namespace:
        return Namespace(self.count)

    def __dlpack__(self, **options: Any) -> NoReturn:
        raise BufferError("a tensor of a rehearsal has no memory to share: t.get() gives zeros")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    # --- one of its numbers ---

    def item(self) -> Any:
        """Return a number."""
        return self.cell.item()

    def __bool__(self) -> bool:
        return bool(self.cell)

    def __int__(self) -> int:
        return int(self.cell)

    def __float__(self) -> float:
        return float(self.cell)

    # --- parts, views, results ---

    def seen(self, function: Callable[..., Any], *args: Any, **options: Any) -> Ghost:
        """Return the view that a function makes, which looks at none of the elements."""
        return Ghost(function(self.form, *args, **options), self.count, self.cell)

    def __getitem__(self, index: Any) -> Ghost:
        return self.seen(operator.getitem, plain(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        fill(self.form[plain(index)].shape, value)

    def __getattr__(self, name: str) -> Any:
        """Return a method, as ``x.sum`` of ``np.sum``."""
        if name.startswith("_") or not hasattr(np, name):
            raise AttributeError(f"a ghost has no {name}")
        return partial(getattr(np, name), self)

    def reshape(self, *shape: Any) -> Ghost:
        """Return it in another shape: a view where that can be."""
        return reshape(self, shape[0] if len(shape) == 1 else shape)

    def astype(self, dtype: Any, copy: bool = True, **_: Any) -> Ghost:
        """Return it in another dtype."""
        return self if dtype == self.dtype and not copy else self.like(self.shape, self.cell.astype(dtype))

    def view(self, dtype: Any) -> Ghost:
        """Return its bytes as those of another dtype."""
        return Ghost(self.form.view(dtype), self.count)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        known = ufunc.nout == 1 and (not ufunc.signature or ufunc is np.matmul)
        if not known or method not in ("__call__", "reduce", "at"):
            raise TypeError(f"np.{ufunc.__name__}.{method} {UNKNOWN}")
        if method == "at":
            self.count.add(max(np.size(x) for x in inputs[1:]))
            return None
        place = out[0] if out else None
        if method == "reduce":
            return reduction(ufunc.reduce)(self, *inputs, out=place, **options)
        if ufunc is np.matmul:
            return product(self, inputs[0], inputs[1], place)
        if place is None:
            return elementwise(ufunc)(self, *inputs, **options)
        fill(place.shape, *inputs)  # the short way, as pieces of a pooling are many
        self.count.add(place.size)
        return place

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func not in FUNCTIONS:
            raise TypeError(f"np.{func.__name__} {UNKNOWN}")
        return FUNCTIONS[func](self, *args, **kwargs)


UNKNOWN = "is not known to a rehearsal: say in neonlite/backend/rehearsal.py what shape its result has"


def ghost(shape: Any, dtype: Any, count: Count) -> Ghost:
    """Return a contiguous array of nothing."""
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    return Ghost(nowhere(tuple(sizes), dtype), count)


def plain(index: Any) -> tuple[Any, ...]:
    """Return an index that makes a view, also of a single element; TypeError for one of arrays or lists."""
    parts = index if isinstance(index, tuple) else (index,)
    for x in parts:
        if not (x is None or x is ... or isinstance(x, slice | int | np.integer)) or isinstance(x, bool):
            raise TypeError(f"an index of {describe(x)} {UNKNOWN}")
    return parts if any(x is ... for x in parts) else (*parts, ...)


def fill(shape: Shape, *values: Any) -> None:
    """Raise ValueError when values do not broadcast to a shape."""
    for value in values:
        found = value.shape if isinstance(value, Ghost) else np.shape(value)
        if found and found != shape and np.broadcast_shapes(shape, found) != shape:
            raise ValueError(f"could not broadcast {found} into shape {shape}")


def one(x: Any) -> Any:
    """Return an array of no dimensions for an array: what NumPy makes of it has the dtype that is looked for."""
    if isinstance(x, np.ndarray):
        return np.asarray(x.flat[0]) if x.size else np.zeros((), x.dtype)
    return x.cell if isinstance(x, Ghost) else x


# --- what functions of NumPy make: each rule is given the ghost that was asked, then what the function was -----------


def elementwise(function: Callable[..., Any]) -> Callable[..., Ghost]:
    """Return the rule of a function that computes element by element."""

    def run(asked: Ghost, *inputs: Any, **options: Any) -> Ghost:
        with Silence():
            cell = function(*map(one, inputs), **{name: one(x) for name, x in options.items()})
        shapes = {x.shape for x in inputs if isinstance(x, Ghost | np.ndarray)}
        made = asked.like(shapes.pop() if len(shapes) == 1 else np.broadcast_shapes(*shapes), cell)
        made.count.add(made.size)
        return made

    return run


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rule of a function that takes many elements to one."""

    def run(asked: Ghost, x: Any, axis: Any = None, *, out: Any = None, keepdims: bool = False, **options: Any) -> Any:
        asked.count.add(x.size)
        axes = range(x.ndim) if axis is None else [a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,))]
        shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
        with Silence():
            return asked.like(shape, function(one(x), **options)) if out is None else out

    return run


def viewing(function: Callable[..., Any]) -> Callable[..., Ghost]:
    """Return the rule of a function that shows an array in another way."""
    return lambda asked, x, *args, **options: asked.seen(function, *args, **options)


def product(asked: Ghost, a: Any, b: Any, out: Any = None) -> Any:
    """Return a matrix product, or a stack of them."""
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul: the inner sizes of {a.shape} and {b.shape} differ")
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    asked.count.add(2 * math.prod(shape) * a.shape[-1])
    if out is None:
        return asked.like(shape, np.zeros((), np.result_type(a.dtype, b.dtype)))
    fill(out.shape, np.broadcast_to(0, shape))
    return out


def reshape(x: Ghost, shape: Any, order: str = "C", *, copy: bool | None = None) -> Ghost:
    """Return a ghost in another shape: a view where that can be, else, unless ``copy`` is False, a copy."""
    try:
        return x.seen(np.reshape, shape, copy=False)
    except ValueError:
        sizes = np.reshape(x.__array__(), shape).shape  # raises, too, where the shape does not fit
        if copy is False:
            raise
        return x.like(sizes, x.cell)


def concat(asked: Ghost, parts: Any, axis: int = 0, **_: Any) -> Ghost:
    """Return parts laid end to end."""
    first, total = parts[0], sum(part.shape[axis] for part in parts)
    shape = tuple(total if i == axis % first.ndim else n for i, n in enumerate(first.shape))
    return asked.like(shape, np.zeros((), np.result_type(*(part.dtype for part in parts))))


def take(asked: Ghost, x: Any, indices: Any, axis: int | None = None, out: Any = None, **_: Any) -> Any:
    """Return chosen slices."""
    before, after = ((), ()) if axis is None else (x.shape[:axis], x.shape[axis:][1:])
    return asked.like((*before, *np.shape(indices), *after), one(x)) if out is None else out


def alike(asked: Ghost, x: Any, *_: Any, dtype: Any = None, shape: Any = None, **__: Any) -> Ghost:
    """Return a ghost of another array's shape and dtype."""
    return ghost(x.shape if shape is None else shape, dtype or x.dtype, asked.count)


def qr(x: Ghost, _: Any) -> tuple[Ghost, Ghost]:
    """Return Q and R of a matrix."""
    (m, n), k = x.shape, min(x.shape)
    return x.like((m, k)), x.like((k, n))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.reshape: lambda asked, x, *args, **options: reshape(x, *args, **options),
    np.concatenate: concat,
    np.take: take,
    np.copyto: lambda asked, place, value, **_: fill(place.shape, value),
    np.shape: lambda asked, x: x.shape,
    np.size: lambda asked, x: x.size,
    np.astype: lambda asked, x, dtype, copy=True, **_: x.astype(dtype, copy=copy),
    np.argsort: lambda asked, x, **_: asked.like(x.shape, np.int64(0)),
    np.searchsorted: lambda asked, x, y, **_: asked.like(np.shape(y), np.int64(0)),
    np.copy: lambda asked, x, **_: x.like(x.shape, x.cell),
    np.linalg.qr: qr,
}
VIEWS = (np.transpose, np.moveaxis, np.swapaxes, np.squeeze, np.expand_dims, np.broadcast_to, np.flip)
REDUCTIONS = (np.sum, np.prod, np.mean, np.max, np.min, np.any, np.all, np.argmax, np.argmin)
FUNCTIONS |= {function: viewing(function) for function in (*VIEWS, np.diagonal)}
FUNCTIONS[np.linalg.diagonal] = lambda asked, x: asked.seen(np.diagonal, 0, -2, -1)
FUNCTIONS |= {function: reduction(function) for function in REDUCTIONS}
FUNCTIONS |= {function: elementwise(function) for function in (np.where, np.clip, np.round)}
FUNCTIONS |= dict.fromkeys((np.empty_like, np.zeros_like, np.ones_like, np.full_like), alike)


class Namespace:
    """NumPy, whose new arrays are ghosts."""

    def __init__(self, count: Count) -> None:
        self.count = count

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = None, **_: Any) -> Ghost:
        """Return an array of nothing."""
        return ghost(shape, dtype or float, self.count)

    zeros = ones = empty

    def full(self, shape: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Ghost:
        """Return an array of nothing."""
        return ghost(shape, dtype or np.asarray(fill_value).dtype, self.count)

    def asarray(self, x: Any, dtype: Any = None, **_: Any) -> Any:
        """Return an array: a ghost as it is."""
        return x.astype(dtype or x.dtype, copy=False) if isinstance(x, Ghost) else np.asarray(x, dtype)

    def from_dlpack(self, x: Any) -> Ghost:
        """Return an array of nothing that lies as another does."""
        return Ghost(np.from_dlpack(x), self.count)


# --- the parts of the backend ----------------------------------------------------------------------------------------


class Rehearsed(Runtime):
    """A runtime that has no memory."""

    def __init__(self, real: Any) -> None:
        super().__init__()
        self.real = real = getattr(real, "real", real)
        self.name, self.dtypes, self.device_id = real.name, real.dtypes, real.device_id
        self.negative_steps, self.halves = real.negative_steps, real.halves
        self.count = Count()
        self.xp = Namespace(self.count)
        kinds = [(Blocked, Blocks), (Cuda, Kernels)]
        self.executor = next((played for kind, played in kinds if derived(real.executor, kind)), OpByOp)
        primitives: Any = real.primitives if derived(real.primitives, Products) else Plain
        self.primitives = type("Primitives", (Primitives, primitives), {})

    def put(self, array: Any) -> Any:
        """Return an array of nothing."""
        return ghost(array.shape, array.dtype, self.count)

    def get(self, array: Any) -> Any:
        """Return zeros."""
        return np.zeros(array.shape, array.dtype)

    def write(self, array: Any, values: Any, dtype: str) -> None:
        """Write nothing."""

    def share(self, array: Any) -> Any:
        """Return zeros that take no memory, and cannot be written to."""
        return array.__array__()

    def layout(self, array: Any) -> tuple[int, Shape]:
        """Return the address, which arrays of other libraries have, and the strides."""
        return array.form.__array_interface__["data"][0], array.strides

    def about(self) -> str:
        """Return what it stands for."""
        return f"a rehearsal of {self.real.about()}"


def derived(thing: Any, base: type) -> bool:
    """Tell whether something is a class that has another among its bases."""
    return isinstance(thing, type) and issubclass(thing, base)


class Played:
    """What stands in front of an executor: plans are made, and take what they need, but nothing is worked out."""

    runtime: Any
    arena: Callable[[int], Any]

    def compile(self, plan: Plan) -> Callable[[Any, Any], None]:
        """Return a function that takes what a run of the plan would take."""
        super().compile(plan)  # type: ignore[misc]
        flops, draws = plan.flops, [step for step in plan.steps if step.kind == "random"]

        def run(targets: Any, leaves: Any) -> None:
            if nbytes := plan.needs():
                self.arena(nbytes)
            for step in draws:
                step.op.run(self.runtime.xp, *(leaves[x] for x in step.ins), **step.attrs)
            self.runtime.count.add(flops)

        return run


class Blocks(Played, Blocked):
    """The executor for a runtime whose own works block by block."""

    def allocate(self, nbytes: int) -> Any:
        """Return a stand-in for so much memory."""
        return np.broadcast_to(np.uint8(0), nbytes)


class Kernels(Played, Cuda):
    """The executor for a runtime whose own runs kernels."""

    allocate = Blocks.allocate


class OpByOp(Played, Generic):
    """The executor for a runtime whose own keeps nothing."""


class Primitives:
    """What stands in front of a runtime's primitives: a product counts 2 m n k, however it is worked out."""

    runtime: Any
    form: Callable[..., Any]

    def gemm(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Take the buffers of ``c = alpha a b + beta c``."""
        with self.runtime.count.instead(2 * c.size * a.shape[-1]):
            super().gemm(a, b, c, alpha, beta)  # type: ignore[misc]

    def summed(self, a: Any, b: Any, c: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Take the buffers of ``c = alpha sum_x a[x] b[x] + beta c``."""
        with self.runtime.count.instead(2 * a.size * c.shape[-1]):
            super().summed(a, b, c, alpha, beta)  # type: ignore[misc]

    def conv_fprop(self, layer: Any, *args: Any) -> None:
        """Take the buffers of a convolution."""
        with self.runtime.count.instead(2 * layer.sizeO * layer.sizeF // layer.K):
            super().conv_fprop(layer, *args)  # type: ignore[misc]

    def conv_with_bias(self, layer: Any, *args: Any) -> bool:
        """Take the buffers of a convolution to which a bias is added, if that can be done at once."""
        added = bool(super().conv_with_bias(layer, *args))  # type: ignore[misc]
        self.runtime.count.add(added * (2 * layer.sizeO * layer.sizeF // layer.K + layer.sizeO))
        return added

    def conv_bprop(self, layer: Any, *args: Any) -> None:
        """Take the buffers of its derivative by the images."""
        with self.runtime.count.instead(2 * layer.sizeO * layer.sizeF // layer.K):
            super().conv_bprop(layer, *args)  # type: ignore[misc]

    def conv_update(self, layer: Any, *args: Any) -> None:
        """Take the buffers of its derivative by the filters."""
        with self.runtime.count.instead(2 * layer.sizeO * layer.sizeF // layer.K):
            super().conv_update(layer, *args)  # type: ignore[misc]

    def norm_fprop(self, form: Any, *args: Any) -> None:
        """Take the buffers of a batch normalization where images lie apart."""
        with self.runtime.count.instead(8 * math.prod(form)):
            super().norm_fprop(form, *args)  # type: ignore[misc]

    def norm_bprop(self, form: Any, *args: Any) -> None:
        """Take the buffers of its derivatives."""
        with self.runtime.count.instead(12 * math.prod(form)):
            super().norm_bprop(form, *args)  # type: ignore[misc]

    def norm_rows_fprop(self, x: Any, *args: Any) -> bool:
        """Take the buffers of rows that are normalized, if that can be done."""
        done = bool(super().norm_rows_fprop(x, *args))  # type: ignore[misc]
        self.runtime.count.add(done * 8 * x.size)
        return done

    def norm_rows_bprop(self, x: Any, *args: Any) -> bool:
        """Take the buffers of their derivatives, if that can be done."""
        done = bool(super().norm_rows_bprop(x, *args))  # type: ignore[misc]
        self.runtime.count.add(done * 12 * x.size)
        return done

    def recurrent_fprop(self, way: Any, *args: Any) -> None:
        """Take the buffers of a way through time."""
        with self.runtime.count.instead(way.flops):
            super().recurrent_fprop(way, *args)  # type: ignore[misc]

    def recurrent_bprop(self, way: Any, *args: Any) -> None:
        """Take the buffers of the way back."""
        with self.runtime.count.instead(2 * way.flops):
            super().recurrent_bprop(way, *args)  # type: ignore[misc]

    def _execute(self, *args: Any) -> None:
        """Do what oneDNN would do: nothing."""

    _run_all = _show = _multiply = _run_stacks = _execute

    def _start(self, room: Any) -> int:
        """Return where a room begins, as there are no cache lines."""
        return 0

    def _finite(self, i: Any) -> bool:
        """Tell whether oneDNN may look for maxima."""
        return True

    def _fit(self, a: Any, b: Any, c: Any, alpha: float) -> bool:
        """Tell whether oneDNN would multiply these."""
        return alpha != 0

    def _multiplied(self, a: Any, b: Any, c: Any, alpha: float, beta: float, summed: bool) -> bool:
        """Tell whether MKL would multiply these."""
        form = self.form(a, b, c)
        return form is not None and form.summed == summed and alpha != 0


class Unsaid(Streams):
    """Random numbers that nobody looks at: draws for tensors take their blocks of a stream, and say no number."""

    def __init__(self, seed: int | None, count: Count) -> None:
        self.count = count
        super().__init__(seed, share)

    def uniform(self, purpose: str, shape: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Return an array of nothing, unless there is one to fill."""
        if out is not None or shape is None:
            return super().uniform(purpose, shape, dtype, out)
        made = ghost(shape, super().uniform(purpose, 0, dtype).dtype, self.count)
        self._take(purpose, -(-made.size // (4 if made.itemsize == 8 else 8)))
        return made

    def normal(self, purpose: str, shape: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """Return an array of nothing, unless there is one to fill."""
        if out is not None or shape is None:
            return super().normal(purpose, shape, dtype, out)
        made = ghost(shape, super().normal(purpose, 0, dtype).dtype, self.count)
        self._take(purpose, -(-made.size // 4))
        return made

    def mask(self, purpose: str, out: Any, keep: float) -> Any:
        """Take the blocks of a mask, after the checks."""
        if not isinstance(out, Ghost):
            return super().mask(purpose, out, keep)
        super().mask(purpose, np.empty(0, out.dtype), keep)
        self._take(purpose, -(-out.size // 8))
        return out


class Unrecorded(Graphs):
    """The graphs of a rehearsal: blocks are run as they are."""

    def replay(self, name: Any, fn: Callable[[], Any], uses: Any) -> Any:
        """Run a block."""
        return fn()


class Rehearsal(Backend):
    """A backend like another one that computes nothing: ``be.rehearsal()`` makes it.

    Every number is as if it were 0, and checks of values pass. ``memory()`` tells what the real backend would have
    handed out, to the byte; ``flops`` what it would have computed: one for each element that an op computes or reduces,
    and 2 m n k for a product, in op-trees as in primitives.
    """

    define_op = Backend.define_op  # for all backends, and not for rehearsals alone
    elementwise_kernel, raw_kernel = Backend.elementwise_kernel, Backend.raw_kernel

    def __init__(self, be: Backend) -> None:
        self.of = repr(be)
        super().__init__(Rehearsed(be.runtime), be.rng_seed, be.default, be.compat_mode, be.deterministic, be.bsz)
        self._graphs = None if be.graphs is None else Unrecorded(self)
        self.hist_bins, self.hist_offset = be.hist_bins, be.hist_offset
        self.rng_set_state(be.rng_get_state())

    def __repr__(self) -> str:
        return f"<rehearsal {self.number} of {self.of}>"

    @property
    def flops(self) -> int:
        """The operations on numbers so far."""
        return int(self.runtime.count.flops)

    def nms(self, detections: Any, threshold: float, normalized: bool = False) -> NoReturn:
        """Raise RuntimeError: which boxes stay depends on values."""
        raise RuntimeError(f"be.nms depends on values, and {self!r} has none")

    def check_grad(self, *_: Any, **__: Any) -> NoReturn:
        """Raise RuntimeError: derivatives are checked by values."""
        raise RuntimeError(f"be.check_grad depends on values, and {self!r} has none")

    def _streams(self, seed: int | None) -> Streams:
        return Unsaid(seed, self.runtime.count)

    def _host(self, values: Any, what: str = "be.array") -> Any:
        if isinstance(values, OpTreeNode):
            values = values.astensor()
        if isinstance(values, Tensor):
            return ghost(values.shape, values.info.dtype, self.runtime.count)
        return values if isinstance(values, Ghost) else self.runtime.put(super()._host(values, what))

    def _fill(self, out: Tensor, fill: Callable[[Any], Any]) -> None:
        self._check_open()
        fill(written(out, whole=True))
