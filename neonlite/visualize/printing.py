"""Op-trees as text: neon triples and infix formulas.

A tree may be 100,000 nodes deep, and a small tree with shared sub-expressions may expand to exponentially many nodes.
So no function here recurses, and no output has more than ``MAX_DISPLAYED_NODES`` nodes: a longer expression is printed
as a list of named sub-expressions (``t1 = ...``, ``t2 = ...``, each defined before it is used).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from neonlite.messages import label
from neonlite.ops import OPS
from neonlite.tree_structure import Triple, info_of, postorder

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
    """Return the attributes of an op, formatted: ``axis=(1,)``."""
    return [f"{name}={value!r}" for name, value in node.info.attrs.items()]


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
