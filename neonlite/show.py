"""How does an expression look?  As neon's triple, as a formula, as a drawing, or step by step with its values.

A tree may be 100,000 nodes deep, and a small tree of shared parts may unfold into more nodes than there are atoms. So
nothing here recurses, and nothing unfolds what a reader could not take in: beyond ``READABLE`` nodes an expression is
written as a list of named parts (``t1 = ...``, ``t2 = ...``, each used below its line), and a drawing shows the boxes
nearest to the result and says how many operands it leaves out.
"""

from __future__ import annotations

import re
from bisect import bisect, insort
from collections.abc import Callable, Iterator
from html import escape
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from unicodedata import east_asian_width

from neonlite.optree import Operand, OpTreeNode, label, postorder

READABLE = 200  # nodes, lines, operands or boxes: more than that nobody reads

SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "eq": "==", "ne": "!=", "lt": "<", "le": "<="}
SYMBOLS |= {"gt": ">", "ge": ">=", "dot": "@", "matmul": "@"}
COMMUTATIVE = {"add", "mul", "maximum", "minimum", "eq", "ne"}

Word = Callable[[Any], str]


# --- writing -------------------------------------------------------------------------------------------------------


def triple(tree: OpTreeNode) -> str:
    """Return the tree as neon prints it: ``({'shape': (2, 2), 'op': 'add'}, x0, x1)``."""
    return write(tree, list(postorder(tree)), spell_triple, label)


def infix(tree: OpTreeNode) -> str:
    """Return the tree as a formula: ``((1) / ((1) + (exp ((-1) * x))))``, numbers in brackets, tensors by name."""
    nodes = [node for node in postorder(tree) if node is tree or node.op != "pair"]
    return write(tree, nodes, spell_infix, lambda x: f"({x!r})" if isinstance(x, int | float) else label(x))


def spell_triple(node: OpTreeNode, word: Word) -> str:
    """Return one node as a triple; ``word`` spells its operands."""
    op = {**{k: node[0][k] for k in ("shape", "op") if k in node[0]}, **node[0]}
    return f"({op}, {', '.join('None' if x is None else word(x) for x in node[1:])})"


def spell_infix(node: OpTreeNode, word: Word) -> str:
    """Return one node as a formula: ``(x + y)``, or ``(sum x axis=(1,))`` when its op has no symbol."""
    operands = node.operands
    words = [word(x) for x in operands[:READABLE]]
    if node.op in SYMBOLS and len(words) == 2:
        return f"({words[0]} {SYMBOLS[node.op]} {words[1]})"
    more = [f"... {len(operands) - READABLE:,} more"] if len(operands) > READABLE else []
    return f"({' '.join([node.op, *words, *more, *attributes(node)])})"


def attributes(node: OpTreeNode) -> list[str]:
    """Return the attributes of an op as words: ``axis=(1,)``."""
    return [f"{name}={value!r}" for name, value in node.info.attrs.items()]


def write(tree: OpTreeNode, nodes: list[OpTreeNode], spell: Callable[[OpTreeNode, Word], str], leaf: Word) -> str:
    """Return the tree in one line; when that would hold more than ``READABLE`` nodes, a line for each distinct node."""
    texts: dict[int, str] = {}

    def word(x: Any) -> str:
        return texts.get(id(x)) or leaf(x)

    if unfolds(tree):
        for node in nodes:
            texts[id(node)] = spell(node, word)
        return texts[id(tree)]

    letter = part_letter(nodes)
    texts = {id(node): f"{letter}{i}" for i, node in enumerate(nodes, 1)}
    left = len(nodes) - READABLE + 1 if len(nodes) > READABLE else 0
    lines = [f"... {left:,} of {len(nodes):,} lines are left out: {letter}1 to {letter}{left}"] if left else []
    lines += [f"{texts[id(node)]} = {spell(node, word)}" for node in nodes[left:-1]]
    return "\n".join([*lines, spell(tree, word)])


def unfolds(tree: OpTreeNode) -> bool:
    """Return whether a tree has at most ``READABLE`` nodes, with a shared part counted at each use."""
    sizes: dict[int, int] = {}
    for node in postorder(tree):
        sizes[id(node)] = size = 1 + sum(sizes.get(id(x), 0) for x in node[1:])
        if size > READABLE:
            return False
    return True


def part_letter(nodes: list[OpTreeNode]) -> str:
    """Return what the names of parts begin with: t, as in t1, unless a tensor of the tree goes by such a name."""
    names = {label(x) for node in nodes for x in node[1:] if isinstance(x, Operand) and x.name}
    letter = "t"
    while any(re.fullmatch(letter + r"\d+", name) for name in names):
        letter += "t"
    return letter


# --- drawing -------------------------------------------------------------------------------------------------------


def draw(tree: OpTreeNode, form: str = "text") -> str:
    """Return a drawing with the result on top: "text", "mermaid", "dot" (Graphviz) or "svg".

    Parts and tensors that are used twice are drawn once; in text, later uses refer to the first by its number. At most
    ``READABLE`` boxes are drawn, those nearest to the result; dashed boxes say how many operands are left out.

    Raises
    ------
    ValueError
        The form is none of these.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}; a tree is drawn as {', '.join(map(repr, FORMS))}")
    return FORMS[form](Graph(tree))


class Box(NamedTuple):
    """What stands in a box: an op, a tensor, a number, or the rest that is not drawn."""

    kind: str
    words: str
    shape: str = ""
    op: str = ""

    @staticmethod
    def of(x: Any) -> Box:
        """Return the box of a node or a leaf."""
        if type(x) is OpTreeNode:
            return Box("op", " ".join([x.op, *attributes(x)]), str(x.info.shape), x.op)
        return Box("tensor", label(x), str(x.shape)) if isinstance(x, Operand) else Box("number", label(x))

    def __str__(self) -> str:
        return f"{self.words} {self.shape}".rstrip()


class Graph:
    """The boxes of a drawing, the result first; ``below[i]`` are the numbers of box i's operands, in their order."""

    def __init__(self, tree: OpTreeNode) -> None:
        self.boxes = [Box.of(tree)]
        self.below: list[list[int]] = [[]]
        number, queue = {id(tree): 0}, [tree]
        for node in queue:  # grows as it is walked: breadth first, so that the rest is what lies farthest down
            user, left = number[id(node)], 0
            for x in node.operands:
                i = number.get(id(x)) if isinstance(x, Operand) else None  # a number is drawn at each use
                if (i is None and len(self.boxes) >= READABLE) or len(self.below[user]) >= READABLE:
                    left += 1
                elif i is None:
                    i = self._add(user, Box.of(x))
                    number[id(x)] = i
                    queue += [x] if type(x) is OpTreeNode else []
                else:
                    self.below[user].append(i)
            if left:
                self._add(user, Box("rest", f"... {left:,} more operand{'s' * (left > 1)}"))
        # every user before its operands
        self.order = [number[id(node)] for node in postorder(tree) if id(node) in number][::-1]

    def _add(self, user: int, box: Box) -> int:
        self.boxes.append(box)
        self.below.append([])
        self.below[user].append(len(self.boxes) - 1)
        return len(self.boxes) - 1

    def edges(self) -> Iterator[tuple[int, int, str]]:
        """Yield (operand, user, which operand it is); the last is empty where the order does not matter."""
        for user, operands in enumerate(self.below):
            ordered = len(operands) > 1 and self.boxes[user].op not in COMMUTATIVE
            for place, operand in enumerate(operands, 1):
                yield operand, user, str(place) if ordered else ""


def text(graph: Graph) -> str:
    """Return an indented tree; a part that is used again has a number, by which later lines refer to it."""
    uses = [0] * len(graph.boxes)
    for operand, _, _ in graph.edges():
        uses[operand] += 1
    numbers: dict[int, int] = {}
    lines = []
    rest = [(0, "", "")]
    while rest:
        i, head, indent = rest.pop()
        box, again = graph.boxes[i], i in numbers
        if box.kind == "op" and uses[i] > 1:
            numbers.setdefault(i, len(numbers) + 1)
            head += f"#{numbers[i]} "
        lines.append(f"{head}{box}{', as above' if again else ''}")
        if not again:
            branches = [(j, indent + "├── ", indent + "│   ") for j in graph.below[i]]
            branches[-1:] = [(j, indent + "└── ", indent + "    ") for j in graph.below[i][-1:]]
            rest += reversed(branches)
    return "\n".join(lines)


def mermaid(graph: Graph) -> str:
    """Return a Mermaid flowchart, as notebooks and GitHub draw it; what is not plain goes as a character code."""
    brackets = {"op": "[{}]", "tensor": "([{}])", "number": "(({}))", "rest": "[{}]:::rest"}
    lines = ["flowchart BT"]
    for i, box in enumerate(graph.boxes):
        plain = re.sub(r"[^\w ().,=+/-]", lambda found: f"#{ord(found[0])};", str(box))
        quoted = f'"{plain}"'
        lines.append(f"    n{i}{brackets[box.kind].format(quoted)}")
    lines += [f"    n{i} -->{f'|{place}|' if place else ''} n{j}" for i, j, place in graph.edges()]
    return "\n".join([*lines, "    classDef rest stroke-dasharray: 4"])


def dot(graph: Graph) -> str:
    """Return a Graphviz digraph: ``dot -Tpng`` makes a picture of it."""
    shapes = {"op": "box", "tensor": "box, style=rounded", "number": "ellipse", "rest": "box, style=dashed"}
    lines = ["digraph tree {", "    rankdir=BT", "    node [fontname=monospace]"]
    for i, box in enumerate(graph.boxes):
        quoted = str(box).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'    n{i} [label="{quoted}", shape={shapes[box.kind]}]')
    lines += [f"    n{i} -> n{j}{f' [label={place}]' if place else ''}" for i, j, place in graph.edges()]
    return "\n".join([*lines, "}"])


# --- drawing boxes and lines ---------------------------------------------------------------------------------------

LETTER, TALL, PITCH, GAP = 7.3, 38, 78, 22  # pixels: width of a letter, height of a box, row to row, box to box
LONGEST = 34  # letters in a box; the whole stands in its tooltip
INK, PALE, LINE = "#1b1f24", "#57606a", "#7d8590"  # dark on light boxes, grey between: seen on white and on black
COLOURS = {
    "op": ("#dbe9f9", "#3b6ea5"),
    "tensor": ("#e1f2da", "#4c8c3a"),
    "number": ("#fcefd0", "#b0812c"),
    "rest": ("#eceef0", "#7d8590"),
}


def svg(graph: Graph) -> str:
    """Return a picture as SVG, complete in itself: ops square, tensors round, numbers in ellipses."""
    layout = Layout(graph)
    x, row, widths = layout.x, layout.row, layout.widths
    wide, high = max(c + w / 2 for c, w in zip(x, widths, strict=True)) + GAP, max(row) * PITCH + TALL + 2 * GAP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high}" viewBox="0 0 {wide:.0f} {high}" '
        'role="img" font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="12" '
        f'text-anchor="middle"><title>op-tree {marked(str(graph.boxes[0]))}</title>'
    ]
    lines, heads = [], []
    for user, operands in enumerate(layout.below):
        end = GAP + row[user] * PITCH + TALL
        if user >= len(graph.boxes):  # a bend: straight through its row
            lines.append(f"M{x[user]:.1f} {end}v{-TALL}")
        for v, port in zip(operands, layout.ports(user), strict=True):
            start, stop, to = end + PITCH - TALL, end, x[user] + port
            if user < len(graph.boxes):
                heads.append(f"M{to:.1f} {end}l-4 8h8z")
                stop += 7
            half = (start + stop) / 2
            lines.append(f"M{x[v]:.1f} {start}C{x[v]:.1f} {half} {to:.1f} {half} {to:.1f} {stop}")
    out.append(f'<path class="lines" fill="none" stroke="{LINE}" stroke-width="1.4" d="{"".join(lines)}"/>')
    out.append(f'<path class="heads" fill="{LINE}" d="{"".join(heads)}"/>')
    for i, box in enumerate(graph.boxes):
        middle, top, width, (fill, edge) = x[i], GAP + row[i] * PITCH, widths[i], COLOURS[box.kind]
        paint = f'fill="{fill}" stroke="{edge}"' + ' stroke-dasharray="4"' * (box.kind == "rest")
        out.append(f'<g class="{box.kind}"><title>{marked(str(box))}</title>')
        if box.kind == "number":
            place = f'cx="{middle:.1f}" cy="{top + TALL / 2}" rx="{width / 2}" ry="{TALL / 2 - 3}"'
            out.append(f"<ellipse {place} {paint}/>")
        else:
            corner = {"tensor": TALL / 2}.get(box.kind, 4)
            place = f'x="{middle - width / 2:.1f}" y="{top}" width="{width}" height="{TALL}" rx="{corner}"'
            out.append(f"<rect {place} {paint}/>")
        for words, colour, y in ((box.words, INK, 16 if box.shape else 23), (box.shape, PALE, 30)):
            if words:
                line = marked(shortened(words))
                out.append(f'<text x="{middle:.1f}" y="{top + y}" fill="{colour}">{line}</text>')
        out.append("</g>")
    return "\n".join([*out, "</svg>"])


def shortened(words: str) -> str:
    """Return the words as they fit a box."""
    return words if len(words) <= LONGEST else words[: LONGEST - 1] + "…"


def marked(words: str) -> str:
    """Return words as XML holds them: special characters escaped, forbidden ones replaced."""
    return escape(re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", words))


class Layout:
    """Where the boxes stand: in rows, each user above its operands (Sugiyama, Tagawa and Toda, 1981).

    A line that skips rows gets a *bend*, a vertex without a box, in each row between; the lines of one operand share
    them. The order within the rows is improved until few lines cross, then each row moves below what it is used by.
    """

    def __init__(self, graph: Graph) -> None:
        self.row = [0] * len(graph.boxes)
        for user in graph.order:
            for i in graph.below[user]:
                self.row[i] = max(self.row[i], self.row[user] + 1)
        longest = [max(letters(shortened(words)) for words in (box.words, box.shape, "..")) for box in graph.boxes]
        self.widths = [round(20 + LETTER * count) for count in longest]
        self.below: list[list[int]] = [[] for _ in graph.boxes]
        self._bend(graph)
        self.above: list[list[tuple[int, int]]] = [[] for _ in self.row]  # (user, which operand of it)
        for user, operands in enumerate(self.below):
            for place, v in enumerate(operands):
                self.above[v].append((user, place))
        self.rows = self._ordered()
        self.x = self._placed()

    def _bend(self, graph: Graph) -> None:
        bends: dict[tuple[int, int], int] = {}
        for user, operands in enumerate(graph.below):
            for i in operands:
                v = i
                for r in range(self.row[i] - 1, self.row[user], -1):
                    if (i, r) not in bends:
                        bends[i, r] = len(self.row)
                        self.row.append(r)
                        self.widths.append(2)
                        self.below.append([v])
                    v = bends[i, r]
                self.below[user].append(v)

    def ports(self, user: int) -> list[float]:
        """Return where the lines from the operands arrive: from left to right, counted from the middle."""
        return [self.widths[user] * (self._inside(user, place) - 0.5) for place in range(len(self.below[user]))]

    def _ordered(self) -> list[list[int]]:
        rows: list[list[int]] = [[] for _ in range(max(self.row) + 1)]
        seen: set[int] = set()
        rest = [0]
        while rest:  # first as a tree: depth first, operands from left to right
            v = rest.pop()
            if v not in seen:
                seen.add(v)
                rows[self.row[v]].append(v)
                rest += reversed(self.below[v])
        best, fewest = rows, self._crossings(rows)
        for turn in range(8):  # then each row by the mean place of its neighbours, down and up in turn
            if not fewest:
                break
            rows = [list(line) for line in rows]
            for r in range(1, len(rows)) if turn % 2 == 0 else range(len(rows) - 2, -1, -1):
                beside = {v: i for i, v in enumerate(rows[r - 1 if turn % 2 == 0 else r + 1])}
                middles = {v: self._middle(v, beside, i) for i, v in enumerate(rows[r])}
                rows[r].sort(key=middles.__getitem__)
            crossings = self._crossings(rows)
            if crossings < fewest:
                best, fewest = rows, crossings
        return best

    def _middle(self, v: int, beside: dict[int, int], alone: int) -> float:
        places = [beside[u] + self._inside(u, place) for u, place in self.above[v] if u in beside]
        places += [beside[w] for w in self.below[v] if w in beside]
        return sum(places) / len(places) if places else alone

    def _inside(self, user: int, place: int) -> float:
        return (place + 1) / (len(self.below[user]) + 1)

    def _crossings(self, rows: list[list[int]]) -> int:
        total = 0
        for upper, lower in pairwise(rows):
            at = {v: i for i, v in enumerate(upper)}
            passed: list[float] = []
            for v in lower:
                ends = sorted(at[u] + self._inside(u, place) for u, place in self.above[v])
                total += sum(len(passed) - bisect(passed, end) for end in ends)
                for end in ends:
                    insort(passed, end)
        return total

    def _placed(self) -> list[float]:
        x = [0.0] * len(self.row)
        gaps = [[0.0, *((self.widths[v] + self.widths[w]) / 2 + GAP for v, w in pairwise(line))] for line in self.rows]
        steps = [list(accumulate(gap)) for gap in gaps]
        ports = [self.ports(v) for v in range(len(self.row))]
        down, up = range(len(self.rows)), range(len(self.rows) - 1, -1, -1)
        for turn in range(16):
            for r in down if turn % 2 == 0 else up:
                wanted = []
                for v in self.rows[r]:
                    users = [x[u] + ports[u][place] for u, place in self.above[v]]
                    operands = [x[w] - port for w, port in zip(self.below[v], ports[v], strict=True)]
                    near = (users if turn % 2 == 0 else operands) if turn < 12 else users + operands
                    wanted.append(sum(near) / len(near) if near else x[v])
                for v, place in zip(self.rows[r], spread(wanted, steps[r]), strict=True):
                    x[v] = place
        left = min(c - w / 2 for c, w in zip(x, self.widths, strict=True)) - GAP
        return [c - left for c in x]


def letters(words: str) -> int:
    """Return how many letters wide the words are; Chinese and Japanese ones count twice."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in words)


def spread(wanted: list[float], steps: list[float]) -> list[float]:
    """Return the places nearest to those wanted, by least squares, no two closer than their ``steps`` are."""
    blocks: list[tuple[float, int]] = []  # (sum, count): neighbours that push each other move as one
    for place, step in zip(wanted, steps, strict=True):
        total, count = place - step, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    means = [total / count for total, count in blocks for _ in range(count)]
    return [mean + step for mean, step in zip(means, steps, strict=True)]


FORMS: dict[str, Callable[[Graph], str]] = {"text": text, "mermaid": mermaid, "dot": dot, "svg": svg}


# --- step by step --------------------------------------------------------------------------------------------------


class Steps:
    """An op-tree worked out node by node: iterate over (node, value), or print the table.

    Each distinct node is one step, operands before the ops that use them. All are worked out in one go, so that a part
    that is used twice, or a random draw, is the same in every step. Values are NumPy arrays.
    """

    def __init__(self, tree: OpTreeNode) -> None:
        self.nodes = [node for node in postorder(tree) if node.op not in ("pair", "assign")]
        self.values = [tensor.get() for tensor in tree.backend.evaluate(self.nodes)]

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[tuple[OpTreeNode, Any]]:
        return zip(self.nodes, self.values, strict=True)

    def __getitem__(self, i: int) -> tuple[OpTreeNode, Any]:
        return self.nodes[i], self.values[i]

    def _rows(self) -> list[tuple[str, str, str, str]]:
        names = {id(node): f"#{i}" for i, node in enumerate(self.nodes, 1)}
        left = max(0, len(self) - READABLE)
        rows = [("...", f"{left:,} steps are left out", "", "")] if left else []
        for i, (node, value) in list(enumerate(self, 1))[left:]:
            words = spell_infix(node, lambda x: names.get(id(x)) or label(x))[1:-1]
            rows.append((f"#{i}", words, str(value.shape), first_few(value)))
        return rows

    def __repr__(self) -> str:
        table = [("step", "op", "shape", "value"), *self._rows()]
        widths = [max(map(letters, column)) for column in zip(*table, strict=True)]
        return "\n".join(
            "  ".join(cell + " " * (width - letters(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in table
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{word}</th>" for word in ("step", "op", "shape", "value"))
        body = "".join(f"<tr>{''.join(f'<td>{marked(cell)}</td>' for cell in line)}</tr>" for line in self._rows())
        return f"<table><tr>{head}</tr>{body}</table>"


def first_few(value: Any, count: int = 4) -> str:
    """Return the first elements of an array: ``0.2689 0.5 0.7311 ...``."""
    words = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in value.reshape(-1)[:count].tolist()]
    return " ".join([*words, "..."] if value.size > count else words)
