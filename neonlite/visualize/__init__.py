"""Drawings of op-trees: indented text, Mermaid, Graphviz, and SVG pictures in a layered layout.

A tree may be 100,000 nodes deep, and a small tree with shared sub-expressions may expand to exponentially many nodes.
So no function here recurses, and the size of each output is limited.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect, insort
from collections.abc import Callable
from itertools import accumulate, pairwise

from neonlite.files import encodable
from neonlite.messages import escape
from neonlite.tree_structure import Triple
from neonlite.visualize.text import MAX_LABEL_CHARS, OpTreeGraph, Steps, display_width, format_infix, format_triple

__all__ = ["Steps", "draw", "format_infix", "format_triple"]


# --- drawings of op-trees: indented text, Mermaid, Graphviz, and SVG pictures in a layered layout ---

CHAR_WIDTH_PX = 7.3
BOX_HEIGHT_PX = 38
RANK_PITCH_PX = 78  # from the top of a box to the top of a box one rank below
BOX_GAP_PX = 22  # between two boxes of a rank
# dark text on light boxes and gray lines between them are visible on a white and on a black page
TEXT_COLOR, SHAPE_COLOR, EDGE_COLOR = "#1b1f24", "#57606a", "#7d8590"
BOX_COLORS = {
    "op": ("#dbe9f9", "#3b6ea5"),
    "tensor": ("#e1f2da", "#4c8c3a"),
    "number": ("#fcefd0", "#b0812c"),
    "folded": ("#ece3f5", "#7d5ba6"),
    "omitted": ("#eceef0", "#7d8590"),
}


def render_svg(graph: OpTreeGraph) -> str:
    """Return a self-contained SVG picture: ops in boxes, tensors in rounded boxes, scalars in ellipses."""
    layout = LayeredGraphLayout(graph)
    x, rank, widths = layout.x, layout.rank, layout.widths
    width, height = (
        max(c + w / 2 for c, w in zip(x, widths, strict=True)) + BOX_GAP_PX,
        max(rank) * RANK_PITCH_PX + BOX_HEIGHT_PX + 2 * BOX_GAP_PX,
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" '
        'role="img" font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="12" '
        f'text-anchor="middle"><title>op-tree {escape(str(graph.nodes[0]))}</title>'
    ]
    lines, heads = [], []
    for user, operands in enumerate(layout.operands):
        end = BOX_GAP_PX + rank[user] * RANK_PITCH_PX + BOX_HEIGHT_PX
        if user >= len(graph.nodes):  # a dummy vertex: a straight line through its rank
            lines.append(f"M{x[user]:.1f} {end}v{-BOX_HEIGHT_PX}")
        for v, port in zip(operands, layout.ports(user), strict=True):
            start, stop, to = end + RANK_PITCH_PX - BOX_HEIGHT_PX, end, x[user] + port
            if user < len(graph.nodes):
                heads.append(f"M{to:.1f} {end}l-4 8h8z")
                stop += 7
            half = (start + stop) / 2
            lines.append(f"M{x[v]:.1f} {start}C{x[v]:.1f} {half} {to:.1f} {half} {to:.1f} {stop}")
    out.append(f'<path class="lines" fill="none" stroke="{EDGE_COLOR}" stroke-width="1.4" d="{"".join(lines)}"/>')
    out.append(f'<path class="heads" fill="{EDGE_COLOR}" d="{"".join(heads)}"/>')
    for i, node in enumerate(graph.nodes):
        middle, top, node_width, (fill, edge) = (
            x[i],
            BOX_GAP_PX + rank[i] * RANK_PITCH_PX,
            widths[i],
            BOX_COLORS[node.kind],
        )
        paint = f'fill="{fill}" stroke="{edge}"' + ' stroke-dasharray="4"' * (node.kind == "omitted")
        out.append(f'<g class="{node.kind}"><title>{escape(str(node))}</title>')
        if node.kind == "number":
            geometry = (
                f'cx="{middle:.1f}" cy="{top + BOX_HEIGHT_PX / 2}" rx="{node_width / 2}" ry="{BOX_HEIGHT_PX / 2 - 3}"'
            )
            out.append(f"<ellipse {geometry} {paint}/>")
        else:
            corner = {"tensor": BOX_HEIGHT_PX / 2}.get(node.kind, 4)
            left = middle - node_width / 2
            geometry = f'x="{left:.1f}" y="{top}" width="{node_width}" height="{BOX_HEIGHT_PX}" rx="{corner}"'
            out.append(f"<rect {geometry} {paint}/>")
        for text, color, y in ((node.text, TEXT_COLOR, 16 if node.shape else 23), (node.shape, SHAPE_COLOR, 30)):
            if text:
                line = escape(truncate_label(text))
                out.append(f'<text x="{middle:.1f}" y="{top + y}" fill="{color}">{line}</text>')
        out.append("</g>")
    return "\n".join([*out, "</svg>"])


def truncate_label(text: str) -> str:
    """Return the text of a line in a box, cut to ``MAX_LABEL_CHARS``; the tooltip has the whole text."""
    return text if len(text) <= MAX_LABEL_CHARS else text[: MAX_LABEL_CHARS - 1] + "…"


class LayeredGraphLayout:
    """Positions of the boxes: ranks, with each user above its operands (Sugiyama, Tagawa and Toda, 1981).

    An edge that skips ranks gets a dummy vertex in each rank between; the edges of one operand share them. Sweeps
    reorder the ranks to reduce edge crossings, then shift the boxes of each rank towards their users and operands.
    """

    def __init__(self, graph: OpTreeGraph) -> None:
        self.rank = [0] * len(graph.nodes)
        for user in graph.topological_order:
            for i in graph.operands[user]:
                self.rank[i] = max(self.rank[i], self.rank[user] + 1)
        label_widths = [
            max(display_width(truncate_label(text)) for text in (node.text, node.shape, "..")) for node in graph.nodes
        ]
        self.widths = [round(20 + CHAR_WIDTH_PX * count) for count in label_widths]
        self.operands: list[list[int]] = [[] for _ in graph.nodes]
        self._insert_dummy_vertices(graph)
        self.users: list[list[tuple[int, int]]] = [[] for _ in self.rank]  # (user, operand index)
        for user, operands in enumerate(self.operands):
            for operand_index, v in enumerate(operands):
                self.users[v].append((user, operand_index))
        self.ranks = self._order_ranks()
        self.x = self._assign_positions()

    def _insert_dummy_vertices(self, graph: OpTreeGraph) -> None:
        dummies: dict[tuple[int, int], int] = {}
        for user, operands in enumerate(graph.operands):
            for i in operands:
                v = i
                for r in range(self.rank[i] - 1, self.rank[user], -1):
                    if (i, r) not in dummies:
                        dummies[i, r] = len(self.rank)
                        self.rank.append(r)
                        self.widths.append(2)
                        self.operands.append([v])
                    v = dummies[i, r]
                self.operands[user].append(v)

    def ports(self, user: int) -> list[float]:
        """Return the x coordinate, relative to the center of a box, at which the edge of each operand ends."""
        return [
            self.widths[user] * (self._port_fraction(user, operand_index) - 0.5)
            for operand_index in range(len(self.operands[user]))
        ]

    def _order_ranks(self) -> list[list[int]]:
        ranks: list[list[int]] = [[] for _ in range(max(self.rank) + 1)]
        seen: set[int] = set()
        stack = [0]
        while stack:  # initial order: depth first, operands from left to right
            v = stack.pop()
            if v not in seen:
                seen.add(v)
                ranks[self.rank[v]].append(v)
                stack += reversed(self.operands[v])
        best, fewest = ranks, self._count_crossings(ranks)
        for sweep in range(8):  # sort each rank by barycenter, downwards and upwards in turn
            if not fewest:
                break
            ranks = [list(rank) for rank in ranks]
            for r in range(1, len(ranks)) if sweep % 2 == 0 else range(len(ranks) - 2, -1, -1):
                neighbor_index = {v: i for i, v in enumerate(ranks[r - 1 if sweep % 2 == 0 else r + 1])}
                barycenters = {v: self._barycenter(v, neighbor_index, i) for i, v in enumerate(ranks[r])}
                ranks[r].sort(key=barycenters.__getitem__)
            crossings = self._count_crossings(ranks)
            if crossings < fewest:
                best, fewest = ranks, crossings
        return best

    def _barycenter(self, v: int, neighbor_index: dict[int, int], default: int) -> float:
        positions = [
            neighbor_index[u] + self._port_fraction(u, operand_index)
            for u, operand_index in self.users[v]
            if u in neighbor_index
        ]
        positions += [neighbor_index[w] for w in self.operands[v] if w in neighbor_index]
        return sum(positions) / len(positions) if positions else default

    def _port_fraction(self, user: int, operand_index: int) -> float:
        return (operand_index + 1) / (len(self.operands[user]) + 1)

    def _count_crossings(self, ranks: list[list[int]]) -> int:
        total = 0
        for upper, lower in pairwise(ranks):
            position = {v: i for i, v in enumerate(upper)}
            seen_ends: list[float] = []
            for v in lower:
                ends = sorted(position[u] + self._port_fraction(u, operand_index) for u, operand_index in self.users[v])
                total += sum(len(seen_ends) - bisect(seen_ends, end) for end in ends)
                for end in ends:
                    insort(seen_ends, end)
        return total

    def _assign_positions(self) -> list[float]:
        x = [0.0] * len(self.rank)
        gaps = [
            [0.0, *((self.widths[v] + self.widths[w]) / 2 + BOX_GAP_PX for v, w in pairwise(rank))]
            for rank in self.ranks
        ]
        steps = [list(accumulate(gap)) for gap in gaps]
        ports = [self.ports(v) for v in range(len(self.rank))]
        down, up = range(len(self.ranks)), range(len(self.ranks) - 1, -1, -1)
        for sweep in range(16):
            for r in down if sweep % 2 == 0 else up:
                desired = []
                for v in self.ranks[r]:
                    users = [x[u] + ports[u][operand_index] for u, operand_index in self.users[v]]
                    operands = [x[w] - port for w, port in zip(self.operands[v], ports[v], strict=True)]
                    neighbors = (users if sweep % 2 == 0 else operands) if sweep < 12 else users + operands
                    desired.append(sum(neighbors) / len(neighbors) if neighbors else x[v])
                for v, position in zip(self.ranks[r], separate_positions(desired, steps[r]), strict=True):
                    x[v] = position
        left = min(c - w / 2 for c, w in zip(x, self.widths, strict=True)) - BOX_GAP_PX
        return [c - left for c in x]


def separate_positions(desired: list[float], steps: list[float]) -> list[float]:
    """Return the positions p closest to the desired ones in least squares, with p - ``steps`` not decreasing."""
    blocks: list[tuple[float, int]] = []  # (sum, count): neighbors that touch move as one (pool adjacent violators)
    for position, step in zip(desired, steps, strict=True):
        total, count = position - step, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    means = [total / count for total, count in blocks for _ in range(count)]
    return [mean + step for mean, step in zip(means, steps, strict=True)]


# --- drawings of op-trees: indented text, Mermaid, Graphviz and SVG ---

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
