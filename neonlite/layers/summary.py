"""Layer.summary: shapes, parameters, FLOPs and memory of training, counted in a dry run without computing.

Two training steps are executed on a dry run of the backend, whose tensors have shapes and no values: by the program
that ``fit`` runs, or by ``fprop`` and ``bprop`` if the network has no program. The figures of single layers are those
of their ``fprop`` and ``bprop``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from neonlite import messages, typing
from neonlite.backend import Backend
from neonlite.backend.batch_size import DEFAULT_BATCH_SIZE
from neonlite.backend.measure import MemoryUsage, format_bytes
from neonlite.backend.objects import is_builtin
from neonlite.backend.validation import with_attributes
from neonlite.files import printable
from neonlite.layers.buffers import BufferOwner, iobuf_shape
from neonlite.layers.inference import assign_gradients, differentiated_outputs
from neonlite.programs import jit

DRY_RUN_STEPS = 2  # the first one allocates buffers that later steps reuse


@dataclass
class LayerSummary:
    """The row of a layer in a summary: its depth in containers, parameters, buffers and FLOPs."""

    depth: int
    name: str
    class_name: str
    out_shape: Any
    parameters: int = 0
    buffers: int = 0  # bytes of the buffers of ``fprop``, such as outputs
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
    rows = summarize_layers(*copy_to_dry_run(network, in_obj, cost, None)[:4])
    dry_run, net, data, cost, optimizer = copy_to_dry_run(network, in_obj, cost, optimizer)
    scale_errors = getattr(optimizer, "scale_errors", None)
    compute_gradients = make_step(net, cost, scale_errors)
    for _ in range(DRY_RUN_STEPS):
        before = dry_run.flops
        compute_gradients(*data)
        if optimizer is not None:
            optimizer.optimize(net.layers_to_optimize, epoch=0)
    memory = dry_run.memory()
    parameters = sum(p.size for p in net.parameters)
    frozen = parameters - sum(p.size for layer in net.layers_to_optimize for p in layer.parameters)
    purposes = sum_bytes_by_purpose(net, list(walk_layers(net)), cost, data, memory)
    includes = tuple(x for x, part in (("cost", cost), ("update", optimizer)) if part is not None)
    return Summary(rows, be.bsz, parameters, (dry_run.flops or 0) - (before or 0), purposes, memory, includes, frozen)


def copy_to_dry_run(network: Any, in_obj: Any, cost: Any, optimizer: Any) -> tuple[Any, Any, list[Any], Any, Any]:
    """Return a dry run, and copies on it: the network, inputs and targets (or errors) of zeros, cost and optimizer."""
    be = network.be
    dry_run = be.dry_run()
    net, cost, optimizer = copy.deepcopy((network, cost, optimizer), {id(be): dry_run})
    for _, layer in walk_layers(net):
        layer.be = dry_run
    if in_obj is not None:
        net.configure(in_obj)
    inputs = net.make_zero_inputs()
    if cost is None:
        return dry_run, net, [inputs, make_zero_buffers(dry_run, net.out_shape)], None, optimizer
    cost.initialize(net)
    return dry_run, net, [inputs, cost.make_zero_targets()], cost, optimizer


def make_step(net: Any, cost: Any, scale_errors: Any) -> Callable[[Any, Any], object]:
    """Return the function of inputs and targets (or errors) that computes the gradients as ``fit`` does."""
    if net.is_expression and all(is_builtin(type(x)) for x in (cost, *getattr(cost, "costs", ())) if x is not None):

        def compute_gradients(x: Any, t: Any) -> list[Any]:
            outputs = net(x, training=True)
            if cost is None:
                results = outputs if isinstance(t, list) else [outputs]
                errors = t if isinstance(t, list) else [t]
                errors = errors if scale_errors is None else [scale_errors(1 * error) for error in errors]
                roots = list(zip(results, errors, strict=True))
            else:
                results, roots = differentiated_outputs(net, cost, outputs, t, scale_errors)
            assign_gradients(net, roots)
            return list(results)

        net.allocate_parameters()
        return jit(compute_gradients)

    def run_layers(x: Any, t: Any) -> None:
        y: Any = net.fprop(x)  # a list for several outputs
        errors = t
        if cost is not None:
            cost.get_cost(y, t)
            errors = cost.get_errors(y, t)
        net.bprop(errors if scale_errors is None else scale_errors(errors))

    net.allocate_buffers()
    return run_layers


def summarize_layers(dry_run: Any, net: Any, data: list[Any], cost: Any) -> list[LayerSummary]:
    """Return the rows of all layers, whose FLOPs are those of ``fprop`` and ``bprop``."""
    layers = list(walk_layers(net))
    net.allocate_buffers()
    rows = [summarize_layer(depth, layer) for depth, layer in layers]
    for row, (_, layer) in zip(rows, layers, strict=True):
        count_flops(dry_run, row, layer)
    y = net.fprop(data[0])
    net.bprop(data[1] if cost is None else cost.get_errors(y, data[1]))
    return rows


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


def make_zero_buffers(be: Backend, shape: typing.LayerShape | list[Any]) -> Any:
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
