"""Drawings of op-trees: indented text, Mermaid, Graphviz and SVG."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from neonlite.files import encodable
from neonlite.tree_structure import Triple
from neonlite.visualize.graph import OpTreeGraph
from neonlite.visualize.svg import render_svg

BRANCHES, ASCII_BRANCHES = ("├── ", "│   ", "└── "), ("|-- ", "|   ", "`-- ")


def draw(tree: Triple, format: str, max_nodes: int | None) -> str:
    """Return a drawing of an op-tree: ``tree.draw(format, max_nodes)``."""
    if format not in RENDERERS:
        raise ValueError(f"tree.draw: expected a format of {', '.join(map(repr, RENDERERS))}, got {format!r}")
    if max_nodes is not None and type(max_nodes) is not int:
        raise TypeError(f"tree.draw: expected an integer or None for max_nodes, got {max_nodes!r}")
    if max_nodes is not None and max_nodes < 1:
        raise ValueError(f"tree.draw: expected a positive max_nodes, got {max_nodes}. Pass None to draw all nodes.")
    return RENDERERS[format](OpTreeGraph(tree, max_nodes))


def render_text(graph: OpTreeGraph) -> str:
    """Return an indented tree. A node that is used more than once gets a number, which later lines refer to.

    The branches are ASCII characters if standard output cannot encode others.
    """
    uses = [0] * len(graph.nodes)
    for operand, _, _ in graph.edges():
        uses[operand] += 1
    can_encode = encodable("".join(BRANCHES), sys.stdout) == "".join(BRANCHES)
    branch, continuation, last_branch = BRANCHES if can_encode else ASCII_BRANCHES
    labels: dict[int, int] = {}
    lines = []
    stack = [(0, "", "")]
    while stack:
        i, prefix, indent = stack.pop()
        node, is_repeat = graph.nodes[i], i in labels
        if node.kind in ("op", "folded") and uses[i] > 1:
            labels.setdefault(i, len(labels) + 1)
            prefix += f"#{labels[i]} "
        lines.append(f"{prefix}{node}{', as above' if is_repeat else ''}")
        if not is_repeat:
            branches = [(j, indent + branch, indent + continuation) for j in graph.operands[i]]
            branches[-1:] = [(j, indent + last_branch, indent + "    ") for j in graph.operands[i][-1:]]
            stack += reversed(branches)
    return "\n".join(lines)


def render_mermaid(graph: OpTreeGraph) -> str:
    """Return a Mermaid flowchart for notebooks and GitHub; special characters are written as character codes."""
    brackets = {"op": "[{}]", "tensor": "([{}])", "number": "(({}))", "folded": "[[{}]]", "omitted": "[{}]:::omitted"}
    lines = ["flowchart BT"]
    for i, node in enumerate(graph.nodes):
        plain = re.sub(r"[^\w ().,=+/-]", lambda found: f"#{ord(found[0])};", str(node))
        quoted = f'"{plain}"'
        lines.append(f"    n{i}{brackets[node.kind].format(quoted)}")
    lines += [f"    n{i} -->{f'|{position}|' if position else ''} n{j}" for i, j, position in graph.edges()]
    return "\n".join([*lines, "    classDef omitted stroke-dasharray: 4"])


def render_dot(graph: OpTreeGraph) -> str:
    """Return a Graphviz digraph. Render it with ``dot -Tpng``."""
    shapes = {"op": "box", "tensor": "box, style=rounded", "number": "ellipse"}
    shapes |= {"folded": "box, peripheries=2", "omitted": "box, style=dashed"}
    lines = ["digraph tree {", "    rankdir=BT", "    node [fontname=monospace]"]
    for i, node in enumerate(graph.nodes):
        quoted = str(node).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'    n{i} [label="{quoted}", shape={shapes[node.kind]}]')
    lines += [f"    n{i} -> n{j}{f' [label={position}]' if position else ''}" for i, j, position in graph.edges()]
    return "\n".join([*lines, "}"])


RENDERERS: dict[str, Callable[[OpTreeGraph], str]] = {
    "text": render_text,
    "mermaid": render_mermaid,
    "dot": render_dot,
    "svg": render_svg,
}
