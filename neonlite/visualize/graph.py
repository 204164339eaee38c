"""The graph of a drawing: the nodes of an op-tree that are drawn, and the sub-trees that are folded into one box."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple
from unicodedata import east_asian_width

from neonlite.messages import label
from neonlite.tree_structure import Triple, info_of, postorder
from neonlite.visualize.printing import format_attrs, format_infix

MAX_LABEL_CHARS = 34  # of a line in a box

COMMUTATIVE = {"add", "mul", "maximum", "minimum", "eq", "ne"}


class GraphNode(NamedTuple):
    """A node of the drawing.

    Kinds: "op", "tensor", "number" (a scalar), "folded" (a sub-tree), "omitted" (operands that are not drawn).
    """

    kind: str
    text: str
    shape: str = ""
    operand: Any = None  # the op-tree node or leaf

    @staticmethod
    def from_operand(x: Any) -> GraphNode:
        """Return the graph node of an op-tree node or a leaf."""
        if isinstance(x, Triple):
            return GraphNode("op", " ".join([x.op, *format_attrs(x)]), str(x.info.shape), x)
        return (
            GraphNode("number", label(x), "", x)
            if info_of(x) is None
            else GraphNode("tensor", label(x), str(x.shape), x)
        )

    @staticmethod
    def folded(tree: Triple, num_ops: int) -> GraphNode:
        """Return the node of a folded sub-tree: its formula if that is short, else its op and the number of ops."""
        formula = format_infix(tree) if num_ops < MAX_LABEL_CHARS else ""
        is_short = 0 < len(formula) <= MAX_LABEL_CHARS
        return GraphNode("folded", formula if is_short else f"{tree.op}: {num_ops:,} ops", str(tree.info.shape), tree)

    def __str__(self) -> str:
        return f"{self.text} {self.shape}".rstrip()


class OpTreeGraph:
    """The nodes of a drawing, the result first. ``operands[i]`` are the indices of the operands of node i, in order.

    Ops are drawn in the order of their distance from the result, on the longest path. An op whose operands would exceed
    ``max_nodes`` is folded with its sub-tree; its operands in the drawing are the drawn ops that it contains.

    Parameters
    ----------
    tree : OpTreeNode
        The op-tree.
    max_nodes : int, optional
        The number of nodes above which sub-trees are folded; None to draw all.
    """

    def __init__(self, tree: Triple, max_nodes: int | None = None) -> None:
        limit = math.inf if max_nodes is None else max_nodes
        self.nodes = [GraphNode.from_operand(tree)]
        self.operands: list[list[int]] = [[]]
        index, folded, order = {id(tree): 0}, [], sort_by_distance(tree)
        for node in order:
            operands = node.operands
            if id(node) not in index:
                continue
            if node is not tree and (
                len(operands) > limit or len(self.nodes) + count_new_nodes(operands, index) > limit
            ):
                folded.append(node)
                continue
            user, num_omitted = index[id(node)], 0
            for x in operands:
                i = None if info_of(x) is None else index.get(id(x))  # a scalar is drawn at each use
                if len(self.operands[user]) >= limit or (i is None and len(self.nodes) >= limit):
                    num_omitted += 1
                elif i is None:
                    index[id(x)] = self._add(user, GraphNode.from_operand(x))
                else:
                    self.operands[user].append(i)
            if num_omitted:
                self._add(user, GraphNode("omitted", f"... {num_omitted:,} more operand{'s' * (num_omitted > 1)}"))
        for node in folded:
            self._fold(node, index)
        self.topological_order = [index[id(node)] for node in order if id(node) in index]  # users before operands

    def _add(self, user: int, node: GraphNode) -> int:
        self.nodes.append(node)
        self.operands.append([])
        self.operands[user].append(len(self.nodes) - 1)
        return len(self.nodes) - 1

    def _fold(self, tree: Triple, index: dict[int, int]) -> None:
        """Draw a sub-tree as one box."""
        hidden, drawn, stack = {id(tree)}, dict[int, None](), [tree]
        while stack:
            for x in stack.pop().operands:
                if isinstance(x, Triple) and id(x) in index:
                    drawn[index[id(x)]] = None
                elif isinstance(x, Triple) and id(x) not in hidden:
                    hidden.add(id(x))
                    stack.append(x)
        self.nodes[index[id(tree)]] = GraphNode.folded(tree, len(hidden))
        self.operands[index[id(tree)]] = list(drawn)

    def edges(self) -> Iterator[tuple[int, int, str]]:
        """Yield (operand, user, position of the operand); the position is empty if the order does not matter."""
        for user, operands in enumerate(self.operands):
            node = self.nodes[user]
            ordered = node.kind == "op" and len(operands) > 1 and node.operand.op not in COMMUTATIVE
            for position, operand in enumerate(operands, 1):
                yield operand, user, str(position) if ordered else ""


def sort_by_distance(tree: Triple) -> list[Triple]:
    """Return the nodes of a tree by their distance from the result on the longest path, so users before operands."""
    nodes = [node for node in postorder(tree) if node is tree or node.op != "pair"][::-1]
    distance = dict.fromkeys(map(id, nodes), 0)
    for node in nodes:
        for x in node.operands:
            if isinstance(x, Triple):
                distance[id(x)] = max(distance[id(x)], distance[id(node)] + 1)
    return sorted(nodes, key=lambda node: distance[id(node)])


def count_new_nodes(operands: tuple[Any, ...], index: dict[int, int]) -> int:
    """Return how many operands are not drawn yet: each tensor and op once, scalars at each use."""
    shared = {id(x) for x in operands if info_of(x) is not None} - index.keys()
    return len(shared) + sum(info_of(x) is None for x in operands)


def display_width(text: str) -> int:
    """Return the width of the text in characters; wide ones, such as Chinese and Japanese, count twice."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)
