"""Op-trees as text: the graph of shown nodes, neon triples, infix formulas, and the table of intermediate values."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unicodedata import east_asian_width

from neonlite.messages import label, table
from neonlite.ops import OPS
from neonlite.tree_structure import Triple, info_of, postorder
from neonlite.typing import NumPyArray

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


# --- op-trees as text: neon triples and infix formulas ---

MAX_DISPLAYED_NODES = 200  # also the limit of lines, and of operands of one op

Formatter = Callable[[Any], str]


def format_triple(tree: Triple) -> str:
    """Return the tree as neon prints it: ``({'shape': (2, 2), 'op': 'add'}, x0, x1)``."""
    return format_tree(tree, list(postorder(tree)), format_node_triple, label)


def format_infix(tree: Triple) -> str:
    """Return the tree as an infix formula, scalars in parentheses: ``((1) / ((1) + (exp ((-1) * x))))``."""
    nodes = [node for node in postorder(tree) if node is tree or node.op != "pair"]
    return format_tree(tree, nodes, format_node_infix, lambda x: f"({x!r})" if isinstance(x, int | float) else label(x))


def format_node_triple(node: Triple, format_operand: Formatter) -> str:
    """Return one node as a triple; ``format_operand`` formats its operands."""
    op = {**{k: node.info[k] for k in ("shape", "op") if k in node.info}, **node.info}
    return f"({op}, {', '.join('None' if x is None else format_operand(x) for x in (node.left, node.right))})"


def format_node_infix(node: Triple, format_operand: Formatter) -> str:
    """Return one node as a formula: ``(x + y)``, or ``(sum x axis=(1,))`` if its op has no symbol."""
    operands = node.operands
    texts = [format_operand(x) for x in operands[:MAX_DISPLAYED_NODES]]
    if (symbol := OPS[node.op].symbol) and len(texts) == 2:
        return f"({texts[0]} {symbol} {texts[1]})"
    more = [f"... {len(operands) - MAX_DISPLAYED_NODES:,} more"] if len(operands) > MAX_DISPLAYED_NODES else []
    return f"({' '.join([node.op, *texts, *more, *format_attrs(node)])})"


def format_attrs(node: Triple) -> list[str]:
    """Return the attributes of an op, formatted: ``axis=(1,)``; without those that are neutral."""
    neutral = node.info.op_def.neutral_attrs if node.info.op_def else {}
    attrs = node.info.attrs.items()
    return [f"{name}={x!r}" for name, x in attrs if name not in neutral or not has_only(neutral[name], x)]


def has_only(number: int, value: Any) -> bool:
    """Return whether each number of an attribute, of which tuples may be nested, is the given one."""
    return all(has_only(number, x) for x in value) if isinstance(value, tuple) else bool(value == number)


def format_tree(
    tree: Triple,
    nodes: list[Triple],
    format_node: Callable[[Triple, Formatter], str],
    format_leaf: Formatter,
) -> str:
    """Return the tree in one line, or one line per distinct node if it has more than ``MAX_DISPLAYED_NODES``."""
    texts: dict[int, str] = {}

    def format_operand(x: Any) -> str:
        return texts.get(id(x)) or format_leaf(x)

    if fits_on_line(tree):
        for node in nodes:
            texts[id(node)] = format_node(node, format_operand)
        return texts[id(tree)]

    prefix = subexpression_prefix(nodes)
    texts = {id(node): f"{prefix}{i}" for i, node in enumerate(nodes, 1)}
    num_omitted = len(nodes) - MAX_DISPLAYED_NODES + 1 if len(nodes) > MAX_DISPLAYED_NODES else 0
    lines = (
        [f"... {num_omitted:,} of {len(nodes):,} lines omitted: {prefix}1 to {prefix}{num_omitted}"]
        if num_omitted
        else []
    )
    lines += [f"{texts[id(node)]} = {format_node(node, format_operand)}" for node in nodes[num_omitted:-1]]
    return "\n".join([*lines, format_node(tree, format_operand)])


def fits_on_line(tree: Triple) -> bool:
    """Return whether a tree has at most ``MAX_DISPLAYED_NODES`` nodes, shared ones counted at each use."""
    sizes: dict[int, int] = {}
    for node in postorder(tree):
        sizes[id(node)] = size = 1 + sum(sizes.get(id(x), 0) for x in (node.left, node.right))
        if size > MAX_DISPLAYED_NODES:
            return False
    return True


def subexpression_prefix(nodes: list[Triple]) -> str:
    """Return the prefix of the sub-expressions' names: t, as in t1, or tt, ttt if a tensor has such a name."""
    names = {label(x) for node in nodes for x in (node.left, node.right) if info_of(x) is not None and x.name}
    prefix = "t"
    while any(re.fullmatch(prefix + r"\d+", name) for name in names):
        prefix += "t"
    return prefix


# --- the intermediate values of an op-tree as a table ---

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
