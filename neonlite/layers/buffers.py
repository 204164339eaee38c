"""Buffers of a minibatch: sizes from layer shapes, and reuse of memory across batch sizes; the summary of a layer.

The buffer of a shape (C, H, W) is (C H W, N), that of (F, T) is (F, T N), for the batch size N.
"""

from __future__ import annotations

import copy
import functools
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from neonlite import messages
from neonlite.backend import Backend, NervanaObject, Tensor
from neonlite.backend.batch_size import DEFAULT_BATCH_SIZE
from neonlite.backend.measure import MemoryUsage, format_bytes
from neonlite.backend.validation import with_attributes
from neonlite.files import printable
from neonlite.optree import Operand, OpTreeNode
from neonlite.typing import DTypeLike, LayerShape

Tensors = Tensor | list[Tensor] | tuple[Tensor, ...]  # the inputs or outputs of a layer: one tensor, or several
# The outputs: one tensor, or a list or tuple of several (Any, because few networks have several)
LayerOutputs = Tensor | Any
Operands = Operand | Sequence[Operand]  # inputs of a layer as an expression: tensors or op-trees
Trees = OpTreeNode | Any  # its outputs: an op-tree, or a list of several (Any, because few networks have several)
Deltas: TypeAlias = "Tensor | list[Deltas] | None"  # the gradients with respect to them; None: not computed


# --- shapes ---


def plain(shape: Any) -> Any:
    """Convert the integers of a shape, or of nested shapes, to Python ints; return other values unchanged."""
    if isinstance(shape, list | tuple):
        return [*map(plain, shape)] if isinstance(shape, list) else tuple(map(plain, shape))
    try:
        return operator.index(shape)
    except TypeError:
        return shape


def copy_tensors(x: Any) -> Any:
    """Return a new tensor with the values of a tensor, or a list of new tensors for a sequence of tensors."""
    if not isinstance(x, Tensor):
        return [copy_tensors(t) for t in x]
    copy = x.backend.empty_like(x)
    copy[:] = x
    return copy


def shape_of(in_obj: Any) -> Any:
    """Return the shape of a data set or tensor, or a shape itself, with Python ints."""
    shape = plain(in_obj)  # converted first, because NumPy integers have an attribute shape too
    return shape if isinstance(shape, int) else plain(getattr(in_obj, "shape", in_obj))


def shape_of_data(in_obj: Any, batch_size: int) -> Any:
    """Return the layer shape of a data set, a tensor (F, T N) or a shape; lists become tuples."""
    if isinstance(in_obj, Tensor):
        rows, columns = in_obj.shape
        return (rows, columns // batch_size) if batch_size and columns // batch_size > 1 else rows
    shape = shape_of(in_obj)
    return tuple(shape) if isinstance(shape, list) else shape


def num_features(shape: LayerShape) -> int:
    """Return the number of rows of the buffer of a shape: F for F and (F, T), C H W for (C, H, W)."""
    if isinstance(shape, int):
        return shape
    return int(shape[0]) if len(shape) == 2 else math.prod(shape)


def num_steps(shape: LayerShape) -> int:
    """Return the number of columns for each sample in the buffer of a shape: T for (F, T), else 1."""
    return int(shape[1]) if isinstance(shape, tuple) and len(shape) == 2 else 1


def iobuf_shape(shape: LayerShape) -> tuple[int, int]:
    """Return the argument of ``be.iobuf`` for a shape: rows, and columns for each sample."""
    return num_features(shape), num_steps(shape)


def num_elements(shape: LayerShape) -> int:
    """Return the number of elements for each sample in the buffer of a shape."""
    return num_features(shape) * num_steps(shape)


@functools.lru_cache
def tensor_shape(shape: LayerShape, batch_size: int) -> tuple[int, int]:
    """Return the shape of the buffer of a layer shape."""
    return num_features(shape), num_steps(shape) * batch_size


# --- reuse of memory ---

MAX_CACHED_VIEWS = 64  # of a layer


class BufferOwner(NervanaObject):
    """Base class of objects with buffers for a minibatch, whose size is ``be.bsz`` at allocation."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._buffers: dict[Any, Tensor] = {}  # the tensors that buffers are views of
        self._views: dict[Any, tuple[Tensor, Tensor]] = {}  # tensors and views of them by key

    def buffer(self, name: str, shape: LayerShape, dtype: DTypeLike = None, shared: Tensor | None = None) -> Tensor:
        """Return a zero-initialized buffer from ``be.iobuf``, in the memory of ``shared`` if given.

        A second call with the same name returns a view of the same memory if that is large enough, so changing the
        batch size does not reallocate buffers; with the same shape too, it returns the same tensor.

        Parameters
        ----------
        name : str
            Name of the buffer, unique within this object.
        shape : int or tuple
            Shape without the batch dimension.
        dtype : optional
            Default: the default dtype of the backend.
        shared : Tensor, optional
            Tensor whose memory to use.

        Returns
        -------
        Tensor
            Shape ``(num_features(shape), num_steps(shape) N)``.
        """
        be, sizes, full_name = self.be, iobuf_shape(shape), f"{self.name}.{name}"
        if shared is None:
            shared = self._buffers.get((name, dtype))
            if shared is None or shared.backend is not be or shared.size < num_elements(shape) * be.bsz:
                buffer = self._buffers[name, dtype] = be.iobuf(sizes, dtype=dtype, name=full_name)
                return buffer
        key = name, dtype, sizes, be.bsz
        return self.view(key, shared, lambda x: be.iobuf(sizes, shared=x, name=full_name)).fill(0)

    def view(self, key: Hashable, x: Tensor, make_view: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``make_view(x)``, the same tensor in every call with a key as long as x is the same tensor.

        A view that is the same tensor in every step keeps the assignments compiled that read it.

        Parameters
        ----------
        key : hashable
            Name of the view, unique within this object.
        x : Tensor
            The tensor.
        make_view : callable
            The function that returns the view.
        """
        known, view = self._views.get(key, (None, x))
        if known is not x:
            if len(self._views) >= MAX_CACHED_VIEWS:
                self._views.clear()
            view = make_view(x)
            self._views[key] = x, view
        return view


# --- Layer.summary: shapes, parameters, FLOPs and memory of training, counted in a dry run without computing ---
#
# Two training steps are executed on a dry run of the backend, whose tensors have shapes and no values. The reported
# memory equals that of a real run, to the byte.

DRY_RUN_STEPS = 2  # the first one allocates buffers that later steps reuse


@dataclass
class LayerSummary:
    """The row of a layer in a summary: its depth in containers, parameters, buffers and FLOPs."""

    depth: int
    name: str
    class_name: str
    out_shape: Any
    parameters: int = 0
    buffers: int = 0  # bytes of outputs, masks and so on; 0 if it works in place
    flops: int = 0

    def format_cells(self) -> tuple[str, ...]:
        """Return the cells of the row as text."""
        numbers = (
            f"{self.parameters:,}" if self.parameters else "",
            format_bytes(self.buffers) if self.buffers else "",
            format_count(self.flops) if self.flops else "",
        )
        name = f"{'  ' * self.depth}{printable(self.name, keep='')} ({self.class_name})"
        return name, str(self.out_shape), *numbers


@dataclass(repr=False)
class Summary:
    """The result of ``Layer.summary``; printed, it is a table.

    Parameters
    ----------
    rows : list of LayerSummary
        A row for each layer.
    batch_size : int
        The batch size.
    parameters : int
        The number of parameters.
    frozen : int
        The number of those that are not trained.
    flops : int
        FLOPs of a training step: one for each element that an op computes or reduces, 2 m n k for a matrix product.
    bytes_by_purpose : dict
        Bytes of tensors by purpose.
    memory : Memory
        The backend's memory after two steps.
    includes : tuple of str
        What the totals include besides the network: "cost", "update".
    """

    rows: list[LayerSummary]
    batch_size: int
    parameters: int
    flops: int
    bytes_by_purpose: dict[str, int]
    memory: MemoryUsage
    includes: tuple[str, ...] = ()
    frozen: int = 0

    @property
    def peak(self) -> int:
        """The peak memory of training, in bytes."""
        return self.memory.peak

    def totals(self) -> list[tuple[str, str]]:
        """Return the lines below the table: pairs of a purpose and its memory."""
        backend = {"temporaries of op-trees": self.memory.arena, "workspaces of primitives": self.memory.workspaces}
        transient = self.memory.peak - self.memory.total
        parts = {**self.bytes_by_purpose, **backend, "transient": transient}
        return [*((purpose, format_bytes(n)) for purpose, n in parts.items() if n), ("peak", format_bytes(self.peak))]

    def table(self) -> list[tuple[str, ...]]:
        """Return the header, the rows and the totals as tuples of strings."""
        head = ("layer", "outputs", "parameters", "buffers", "FLOPs/step")
        buffers = sum(row.buffers for row in self.rows)
        last = (
            f"total (with {' and '.join(self.includes)})" if self.includes else "total",
            "",
            f"{self.parameters:,}",
            format_bytes(buffers),
            format_count(self.flops),
        )
        return [head, *(row.format_cells() for row in self.rows), last]

    def __repr__(self) -> str:
        table = self.table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]

        def line(cells: tuple[str, ...]) -> str:
            left = [cell.ljust(w) for cell, w in zip(cells[:2], widths[:2], strict=True)]
            return "  ".join([*left, *(cell.rjust(w) for cell, w in zip(cells[2:], widths[2:], strict=True))]).rstrip()

        rule = "-" * (sum(widths) + 2 * len(widths) - 2)
        totals = self.totals()
        width = max(len(purpose) for purpose, _ in totals)
        below = [f"  {purpose.ljust(width)}  {n:>9}" for purpose, n in totals]
        lines = [line(table[0]), rule, *map(line, table[1:-1]), rule, line(table[-1])]
        return "\n".join([*lines, *self.notes(), "", self.memory_title, *below])

    def _repr_html_(self) -> str:
        head, *rows = self.table()
        notes = [*self.notes(), self.memory_title]
        return str(messages.stack(messages.table(rows, head), *notes, messages.table(self.totals())))

    def notes(self) -> list[str]:
        """Return the lines of text below the table of layers."""
        trained = self.parameters - self.frozen
        return [f"parameters: {trained:,} trained, {self.frozen:,} frozen"] if self.frozen else []

    @property
    def memory_title(self) -> str:
        """The line above the totals."""
        return f"Memory of training with minibatches of {self.batch_size}:"


def summarize(network: Any, in_obj: Any, cost: Any, optimizer: Any) -> Summary:
    """Return the summary of a network, as ``Layer.summary`` does."""
    be = network.be
    if not be.bsz:
        with be.batch_size(DEFAULT_BATCH_SIZE):
            return summarize(network, in_obj, cost, optimizer)
    if in_obj is None and network.in_shape is None:
        raise RuntimeError(
            f"{network.name}: expected a configured network, got one without shapes. Pass the shape of a sample: "
            "summary(shape)."
        )
    if cost is not None:
        kind, way_out = "a GeneralizedCost or Multicost", ". Pass GeneralizedCost(cost)."
        with_attributes(f"{network.name}.summary: cost", cost, "get_cost", kind, way_out)
    if optimizer is not None:
        with_attributes(f"{network.name}.summary: optimizer", optimizer, "optimize", "an optimizer, such as Adam(),")
    dry_run = be.dry_run()
    net, cost, optimizer = copy.deepcopy((network, cost, optimizer), {id(be): dry_run})
    layers = list(walk_layers(net))
    for _, layer in layers:
        layer.be = dry_run
    if in_obj is not None:
        net.configure(in_obj)
    data: list[Any] = [net.make_zero_inputs()]
    if cost is not None:
        cost.initialize(net)
        data.append(cost.make_zero_targets())
    else:
        data.append(make_zero_buffers(dry_run, net.out_shape))
    net.allocate()
    net.allocate_deltas()
    scale_errors = getattr(optimizer, "scale_errors", lambda errors: errors)
    rows = [summarize_layer(depth, layer) for depth, layer in layers]
    for step in range(DRY_RUN_STEPS):
        before = dry_run.flops
        if step == DRY_RUN_STEPS - 1:
            for row, (_, layer) in zip(rows, layers, strict=True):
                count_flops(dry_run, row, layer)
        errors = data[1]
        y: Any = net.fprop(data[0])  # a list for several outputs
        if cost is not None:
            cost.get_cost(y, data[1])
            errors = cost.get_errors(y, data[1])
        net.bprop(scale_errors(errors))
        if optimizer is not None:
            optimizer.optimize(net.layers_to_optimize, epoch=0)
    memory = dry_run.memory()
    parameters = sum(p.size for p in net.parameters)
    frozen = parameters - sum(p.size for layer in net.layers_to_optimize for p in layer.parameters)
    purposes = sum_bytes_by_purpose(net, layers, cost, data, memory)
    includes = tuple(x for x, part in (("cost", cost), ("update", optimizer)) if part is not None)
    return Summary(rows, be.bsz, parameters, (dry_run.flops or 0) - (before or 0), purposes, memory, includes, frozen)


def walk_layers(layer: BufferOwner, depth: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield (depth, layer) for a layer and all layers in it."""
    yield depth, layer
    for inner in getattr(layer, "layers", []):
        yield from walk_layers(inner, depth + 1)


def summarize_layer(depth: int, layer: Any) -> LayerSummary:
    """Return the row of a layer."""
    row = LayerSummary(depth, layer.name, layer.classnm, layer.out_shape)
    if not hasattr(layer, "layers"):
        row.parameters = sum(p.size for p in layer.parameters)
    row.buffers = sum(t.nbytes for (name, _), t in layer._buffers.items() if not name.startswith("deltas"))
    return row


def count_flops(dry_run: Any, row: LayerSummary, layer: Any) -> None:
    """Wrap fprop and bprop of a layer to count their FLOPs. Containers are not wrapped: their layers count."""

    def counting(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            before = dry_run.flops
            result = step(*args, **options)
            row.flops += dry_run.flops - before
            return result

        return run

    if not hasattr(layer, "layers"):
        layer.fprop, layer.bprop = counting(layer.fprop), counting(layer.bprop)


def make_zero_buffers(be: Backend, shape: LayerShape | list[Any]) -> Any:
    """Return a buffer for a layer shape; for a list of shapes a list."""
    return [make_zero_buffers(be, each) for each in shape] if isinstance(shape, list) else be.iobuf(iobuf_shape(shape))


def sum_bytes_by_purpose(
    net: Any, layers: list[tuple[int, Any]], cost: Any, data: Any, memory: MemoryUsage
) -> dict[str, int]:
    """Return the bytes of all tensors by purpose."""
    every = [layer for _, layer in layers]
    states = [s for layer in net.leaves() if layer.has_params for s in iter_tensors(getattr(layer, "states", []))]
    deltas = [t for layer in every for (name, _), t in layer._buffers.items() if name.startswith("deltas")]
    costs = [t for x in getattr(cost, "costs", [cost]) if x is not None for t in x._buffers.values()]
    result = {
        "parameters": total_nbytes(net.parameters),
        "gradients": total_nbytes(net.gradients),
        "optimizer states": total_nbytes(states),
        "deltas": total_nbytes(deltas),
        "cost": total_nbytes(costs),
        "inputs and targets": total_nbytes(iter_tensors(data)),
    }
    rest = memory.tensors - sum(result.values())
    return {"outputs, buffers of layers, copies for the update": rest} | result


def iter_tensors(nested: Any) -> Iterator[Any]:
    """Yield the tensors in nested lists."""
    for x in nested:
        if isinstance(x, list | tuple):
            yield from iter_tensors(x)
        else:
            yield x


def total_nbytes(tensors: Iterable[Any]) -> int:
    """Return the total size of the memory of tensors, in bytes."""
    return sum(root.nbytes for root in {id(t.root): t.root for t in tensors}.values())


def format_count(n: float) -> str:
    """Return a number as text with a unit prefix, such as 1.5 M."""
    for unit in ("", " k", " M", " G"):
        if n < 1000:
            return f"{n:.3g}{unit}"
        n /= 1000
    return f"{n:.3g} T"
