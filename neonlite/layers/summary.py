"""What will training take?  Shapes, parameters, arithmetic and memory, known before anything is run.

Two steps of training are gone through on a rehearsal of the backend, where tensors have shapes and no numbers: what is
counted there is what a run will take, to the byte.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from neonlite.backend.memory import Memory
from neonlite.backend.plan import size
from neonlite.layers.buffers import by_columns

STEPS = 2  # the first makes what is kept from then on


@dataclass
class Row:
    """A layer in a summary: how deep in containers it is, and what it has of its own."""

    level: int
    name: str
    kind: str
    out_shape: Any
    parameters: int = 0
    buffers: int = 0  # bytes of outputs, masks and the like; 0 where it works in place
    flops: int = 0

    @property
    def cells(self) -> tuple[str, ...]:
        """The row in words."""
        numbers = (
            f"{self.parameters:,}" if self.parameters else "",
            size(self.buffers) if self.buffers else "",
            amount(self.flops) if self.flops else "",
        )
        return f"{'  ' * self.level}{self.name} ({self.kind})", str(self.out_shape), *numbers


@dataclass
class Summary:
    """What a network takes to be trained; printed, it is a table.

    ``flops`` of a step: one for each element that an op computes or reduces, 2 m n k for a product. ``held``: bytes of
    tensors by what they are for. ``memory``: what the backend will have handed out after two steps; its ``peak`` is the
    most at any time.
    """

    rows: list[Row]
    batch_size: int
    parameters: int
    flops: int
    held: dict[str, int]
    memory: Memory

    @property
    def peak(self) -> int:
        """The bytes that training takes at most."""
        return self.memory.peak

    def totals(self) -> list[tuple[str, str]]:
        """Return what is below the rows."""
        kept = {"temporaries of op-trees": self.memory.arena, "workspaces of primitives": self.memory.workspaces}
        passing = self.memory.peak - self.memory.total
        parts = {**self.held, **kept, "passing": passing}
        return [*((what, size(n)) for what, n in parts.items() if n), ("peak", size(self.peak))]

    def table(self) -> list[tuple[str, ...]]:
        """Return the head, the rows, and the sums over them."""
        head = ("layer", "outputs", "parameters", "buffers", "flops a step")
        buffers = sum(row.buffers for row in self.rows)
        last = ("all, with cost and update", "", f"{self.parameters:,}", size(buffers), amount(self.flops))
        return [head, *(row.cells for row in self.rows), last]

    def __str__(self) -> str:
        table = self.table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]

        def line(cells: tuple[str, ...]) -> str:
            left = [cell.ljust(w) for cell, w in zip(cells[:2], widths[:2], strict=True)]
            return "  ".join([*left, *(cell.rjust(w) for cell, w in zip(cells[2:], widths[2:], strict=True))]).rstrip()

        rule = "-" * (sum(widths) + 2 * len(widths) - 2)
        totals = self.totals()
        wide = max(len(what) for what, _ in totals)
        below = [f"  {what.ljust(wide)}  {n:>9}" for what, n in totals]
        lines = [line(table[0]), rule, *map(line, table[1:-1]), rule, line(table[-1])]
        return "\n".join([*lines, "", f"Memory of training with minibatches of {self.batch_size}:", *below])

    def _repr_html_(self) -> str:
        def cells(row: Iterable[str], tag: str = "td") -> str:
            return "<tr>" + "".join(f"<{tag} style='white-space: pre'>{escape(x)}</{tag}>" for x in row) + "</tr>"

        head, *rows = self.table()
        table = f"<table>{cells(head, 'th')}{''.join(map(cells, rows))}</table>"
        below = f"<table>{''.join(map(cells, self.totals()))}</table>"
        return f"{table}<p>Memory of training with minibatches of {self.batch_size}:</p>{below}"


def summary(network: Any, in_obj: Any = None, cost: Any = None, optimizer: Any = None) -> Summary:
    """Return what a network takes to be trained, with a cost and an optimizer where they are given.

    ``in_obj``: the inputs' shape, for a network that is not configured yet. The network stays as it is.
    """
    be = network.be
    if not be.bsz:
        raise ValueError(f"{network.name}: the batch size is not set yet: gen_backend(batch_size=N), or be.bsz = N")
    if in_obj is None and network.in_shape is None:
        raise RuntimeError(f"{network.name}: it has no shapes yet: summary(in_obj=shape), or configure(shape) first")
    stage = be.rehearsal()
    net, cost, optimizer = copy.deepcopy((network, cost, optimizer), {id(be): stage})
    layers = list(outline(net))
    for _, layer in layers:
        layer.be = stage
    if in_obj is not None:
        net.configure(in_obj)
    data = [net.blank_inputs()]
    if cost is not None:
        cost.initialize(net)
        data.append(cost.blank_targets())
    else:
        data.append(blank(stage, net.out_shape))
    net.allocate()
    net.allocate_deltas()
    rows = [row(level, layer) for level, layer in layers]
    for step in range(STEPS):
        before = stage.flops
        if step == STEPS - 1:
            for found, (_, layer) in zip(rows, layers, strict=True):
                count(stage, found, layer)
        y, errors = net.fprop(data[0]), data[1]
        if cost is not None:
            cost.get_cost(y, data[1])
            errors = cost.get_errors(y, data[1])
        net.bprop(optimizer.scaled(errors) if hasattr(optimizer, "scaled") else errors)
        if optimizer is not None:
            optimizer.optimize(net.layers_to_optimize, epoch=0)
    memory = stage.memory()
    parameters = sum(p.size for p in net.parameters)
    return Summary(rows, be.bsz, parameters, stage.flops - before, purposes(net, layers, cost, data, memory), memory)


def outline(layer: Any, level: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield a layer and all layers in it, and how deep each is."""
    yield level, layer
    for inner in getattr(layer, "layers", []):
        yield from outline(inner, level + 1)


def row(level: int, layer: Any) -> Row:
    """Return what a layer has of its own."""
    found = Row(level, layer.name, layer.classnm, layer.out_shape)
    if not hasattr(layer, "layers"):
        found.parameters = sum(p.size for p in layer.parameters)
    found.buffers = sum(t.nbytes for (name, _), t in layer._memory.items() if not name.startswith("deltas"))
    return found


def count(stage: Any, found: Row, layer: Any) -> None:
    """Have a layer count from now on what is computed in it, unless it has layers, which do."""

    def counting(step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            before = stage.flops
            result = step(*args, **options)
            found.flops += stage.flops - before
            return result

        return run

    if not hasattr(layer, "layers"):
        layer.fprop, layer.bprop = counting(layer.fprop), counting(layer.bprop)


def blank(be: Any, shape: Any) -> Any:
    """Return a buffer for a minibatch of a shape; for a list of shapes a list."""
    return [blank(be, each) for each in shape] if isinstance(shape, list) else be.iobuf(by_columns(shape))


def purposes(net: Any, layers: list[tuple[int, Any]], cost: Any, data: Any, memory: Memory) -> dict[str, int]:
    """Return the bytes of all tensors, by what they are for."""
    every = [layer for _, layer in layers]
    states = [s for layer in net.leaves() if layer.has_params for s in tensors(layer.states)]
    deltas = [t for layer in every for (name, _), t in layer._memory.items() if name.startswith("deltas")]
    costs = [t for x in getattr(cost, "costs", [cost]) if x is not None for t in x._memory.values()]
    found = {
        "parameters": nbytes(net.parameters),
        "gradients": nbytes(net.gradients),
        "states of the optimizer": nbytes(states),
        "deltas": nbytes(deltas),
        "cost": nbytes(costs),
        "inputs and targets": nbytes(tensors(data)),
    }
    rest = memory.tensors - sum(found.values())
    return {"outputs and what goes with them": rest} | found


def tensors(nested: Any) -> Iterator[Any]:
    """Yield the tensors in nested lists."""
    for x in nested:
        if isinstance(x, list | tuple):
            yield from tensors(x)
        else:
            yield x


def nbytes(found: Iterable[Any]) -> int:
    """Return the bytes of the memory in which some tensors lie."""
    return sum(root.nbytes for root in {id(t.root): t.root for t in found}.values())


def amount(n: float) -> str:
    """Return a number in words: 1.5 M."""
    for unit in ("", " k", " M", " G"):
        if n < 1000:
            return f"{n:.3g}{unit}"
        n /= 1000
    return f"{n:.3g} T"
