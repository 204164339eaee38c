"""The intermediate values of an op-tree as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neonlite.html_repr import table
from neonlite.messages import label
from neonlite.tree_structure import Triple, postorder
from neonlite.typing import NumPyArray
from neonlite.visualize.graph import display_width
from neonlite.visualize.printing import MAX_DISPLAYED_NODES, format_node_infix

HEADER = ("step", "op", "shape", "value")


class Steps:
    """The intermediate values of an op-tree: iterate over (node, value) pairs, or print the table.

    Each distinct node is one step, operands before the ops that use them. All nodes are evaluated together, so a shared
    sub-expression and a random sample have the same value in every step. Values are NumPy arrays.

    Parameters
    ----------
    tree : OpTreeNode
        The op-tree to evaluate.
    """

    def __init__(self, tree: Triple) -> None:
        self.nodes = [node for node in postorder(tree) if node.op not in ("pair", "assign")]
        self.values = [tensor.get() for tensor in tree.info.be.evaluate(self.nodes)]

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[tuple[Triple, Any]]:
        return zip(self.nodes, self.values, strict=True)

    def __getitem__(self, i: int) -> tuple[Triple, Any]:
        return self.nodes[i], self.values[i]

    def _rows(self) -> list[tuple[str, str, str, str]]:
        names = {id(node): f"#{i}" for i, node in enumerate(self.nodes, 1)}
        num_omitted = max(0, len(self) - MAX_DISPLAYED_NODES)
        rows = [("...", f"{num_omitted:,} steps omitted", "", "")] if num_omitted else []
        for i, (node, value) in list(enumerate(self, 1))[num_omitted:]:
            formula = format_node_infix(node, lambda x: names.get(id(x)) or label(x))[1:-1]
            rows.append((f"#{i}", formula, str(value.shape), format_first_values(value)))
        return rows

    def __repr__(self) -> str:
        lines = [HEADER, *self._rows()]
        widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                cell + " " * (width - display_width(cell)) for cell, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        return str(table(self._rows(), header=HEADER))


def format_first_values(value: NumPyArray, count: int = 4) -> str:
    """Return the first elements of an array, formatted: ``0.2689 0.5 0.7311 ...``."""
    texts = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in value.reshape(-1)[:count].tolist()]
    return " ".join([*texts, "..."] if value.size > count else texts)
