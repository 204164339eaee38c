"""Op-trees as text, and their drawings.

As text: neon triples, infix formulas, LaTeX, the chain rule step by step, and the table of intermediate values.
Drawings: indented text, Mermaid, Graphviz, and SVG pictures in a layered layout.

A tree may be 100,000 nodes deep, and a small tree with shared sub-expressions may expand to exponentially many nodes.
So no function here recurses, and the size of each output is limited.
"""

from __future__ import annotations

import math
import re
import sys
from bisect import bisect, insort
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any, NamedTuple
from unicodedata import east_asian_width

from neonlite.files import encodable
from neonlite.messages import escape, label, table
from neonlite.tree_structure import Triple, info_of, matrix_transpose_axes, postorder
from neonlite.typing import NumPyArray

__all__ = ["Derivation", "Steps", "draw", "format_infix", "format_latex", "format_triple"]

# --- op-trees as text: the graph of shown nodes, neon triples, infix formulas, and the table of intermediate values ---

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
        if info_of(x) is None:
            return GraphNode("number", label(x), "", x)
        return GraphNode("tensor", label(x), str(x.shape), x)

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
    if is_matrix_transpose(node):
        return texts[0].removesuffix(".T") if texts[0].endswith(".T") else f"{texts[0]}.T"
    op: Any = node.info.op_def
    if op.symbol and len(texts) == 2:
        return f"({texts[0]} {op.symbol} {texts[1]})"
    more = [f"... {len(operands) - MAX_DISPLAYED_NODES:,} more"] if len(operands) > MAX_DISPLAYED_NODES else []
    return f"({' '.join([node.op, *texts, *more, *format_attrs(node)])})"


def is_matrix_transpose(node: Triple) -> bool:
    """Return whether an op swaps the last two axes."""
    return node.op == "transpose" and node.info.attrs["axes"] == matrix_transpose_axes(node.left.ndim)


def format_attrs(node: Triple) -> list[str]:
    """Return the attributes of an op, formatted: ``axis=(1,)``; without those that are neutral."""
    neutral = node.info.op_def.neutral_attrs if node.info.op_def else {}
    attrs = node.info.attrs.items()
    return [f"{name}={x!r}" for name, x in attrs if name not in neutral or not has_only(neutral[name], x)]


def has_only(number: int, value: Any) -> bool:
    """Return whether each number of an attribute, of which tuples may be nested, is the given one."""
    return all(has_only(number, x) for x in value) if isinstance(value, tuple) else bool(value == number)


def format_tree(
    tree: Triple, nodes: list[Triple], format_node: Callable[[Triple, Formatter], str], format_leaf: Formatter
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
    omitted = f"... {num_omitted:,} of {len(nodes):,} lines omitted: {prefix}1 to {prefix}{num_omitted}"
    lines = [omitted] if num_omitted else []
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


# --- op-trees as LaTeX ---

# How tightly a formula binds: it is put in parentheses where a tighter one is needed
LOOSE, SUM, PRODUCT, MATRIX_PRODUCT, POWER, ATOM = range(6)
LATEX_OPS: dict[str, Any] = {  # the formula of an op, how tightly it binds, and how tightly each operand must bind
    "neg": ("-{}", LOOSE, PRODUCT),
    "add": ("{} + {}", SUM, LOOSE, SUM),
    "sub": ("{} - {}", SUM, LOOSE, PRODUCT),
    "mul": (r"{} \odot {}", PRODUCT, PRODUCT, PRODUCT),
    "div": (r"\frac{{{}}}{{{}}}", POWER, LOOSE, LOOSE),
    "dot": (r"{} \, {}", MATRIX_PRODUCT, MATRIX_PRODUCT, MATRIX_PRODUCT),
    "matmul": (r"{} \, {}", MATRIX_PRODUCT, MATRIX_PRODUCT, MATRIX_PRODUCT),
    "pow": ("{}^{{{}}}", POWER, ATOM, LOOSE),
    "sqr": ("{}^{{2}}", POWER, ATOM),
    "sqrt": (r"\sqrt{{{}}}", ATOM, LOOSE),
    "exp": ("e^{{{}}}", POWER, LOOSE),
    "abs": (r"\left|{}\right|", ATOM, LOOSE),
}
LATEX_FUNCTIONS = {name: rf"\{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "max", "min", "det")}
LATEX_FUNCTIONS |= {"log": r"\ln", "sig": r"\sigma", "maximum": r"\max", "minimum": r"\min"}
COMPARISONS = {"eq": "=", "ne": r"\ne", "lt": "<", "le": r"\le", "gt": ">", "ge": r"\ge"}
LATEX_OPS |= {name: (rf"\left[{{}} {symbol} {{}}\right]", ATOM, SUM, SUM) for name, symbol in COMPARISONS.items()}
GREEK_LETTERS = re.compile(
    "alpha|beta|gamma|delta|epsilon|eta|theta|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|phi|chi|psi|omega"
)


def format_latex(tree: object, format_name: Formatter | None = None) -> str:
    """Return a tree, tensor or number as LaTeX; ``format_name`` formats the labels of tensors."""
    if isinstance(tree, Triple) and not fits_on_line(tree):
        return rf"\cdots\ \mathrm{{({len(list(postorder(tree))):,}\ ops)}}"
    texts: dict[int, tuple[str, int]] = {}

    def format_operand(x: Any, level: int) -> str:
        text, binds = texts.get(id(x)) or format_latex_leaf(x, format_name or latex_name)
        return text if binds >= level else rf"\left({text}\right)"

    for node in postorder(tree):
        if node.op != "pair":
            texts[id(node)] = format_latex_node(node, format_operand)
    return format_operand(tree, LOOSE)


def format_latex_leaf(x: Any, format_name: Formatter) -> tuple[str, int]:
    """Return a tensor or number as LaTeX, and how tightly it binds."""
    if not isinstance(x, int | float):
        name = label(x)
        return (f"{format_name(name[:-2])}^{{\\top}}", POWER) if name.endswith(".T") else (format_name(name), ATOM)
    mantissa, _, exponent = f"{x:.6g}".replace("inf", r"\infty").partition("e")
    text = rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if exponent else mantissa
    return text, LOOSE if x < 0 else PRODUCT if exponent else ATOM


def format_latex_node(node: Triple, format_operand: Callable[[Any, int], str]) -> tuple[str, int]:
    """Return one node as LaTeX, and how tightly it binds; ``format_operand`` formats its operands for a level."""
    operands: tuple[Any, ...] = node.operands
    if is_matrix_transpose(node):
        text, top = format_operand(node.left, POWER), r"^{\top}"
        if text.endswith(top):
            return text.removesuffix(top), ATOM
        return f"{format_operand(node.left, ATOM)}{top}", POWER
    if node.op in LATEX_OPS:
        formula, binds, *levels = LATEX_OPS[node.op]
        has_number = any(info_of(x) is None or math.prod(x.shape) == 1 for x in operands)
        formula = formula.replace(r"\odot", r"\cdot") if has_number else formula
        return formula.format(*map(format_operand, operands, levels)), binds
    op: Any = node.info.op_def
    is_total = op.kind == "reduction" and len(node.info.attrs["axis"]) == node.left.ndim
    attrs = ",".join(map(format_latex_attr, [] if is_total else format_attrs(node)))
    subscript = f"_{{{attrs}}}" if attrs else ""
    if node.op == "sum":
        return rf"\sum{subscript} {format_operand(node.left, PRODUCT)}", LOOSE
    name = LATEX_FUNCTIONS.get(node.op, rf"\operatorname{{{escape_latex(node.op)}}}")
    arguments = r",\,".join(format_operand(x, LOOSE) for x in operands)
    return rf"{name}{subscript}\left({arguments}\right)", POWER


def format_latex_attr(text: str) -> str:
    """Return an attribute, such as ``axis=(1,)``, as LaTeX."""
    name, _, value = text.partition("=")
    axes = value.strip("()").rstrip(",")
    return rf"\mathrm{{axis}}\,{axes}" if name == "axis" else rf"\mathtt{{{escape_latex(text)}}}"


def latex_name(name: str) -> str:
    """Return the name of a tensor as LaTeX: ``W1`` with a subscript, Greek letters, longer names upright."""
    found = re.fullmatch(r"([^\W\d_]+)_?(\d*)", name)
    if found is None:
        return rf"\mathrm{{{escape_latex(name)}}}"
    word, index = found.groups()
    letter = word if len(word) == 1 else rf"\{word}" if GREEK_LETTERS.fullmatch(word) else rf"\mathrm{{{word}}}"
    return f"{letter}_{{{index}}}" if index else letter


def escape_latex(text: str) -> str:
    """Return text for the math mode of LaTeX, with its special characters escaped, or replaced by spaces."""
    return re.sub(r"([_#$%&{}])", r"\\\1", re.sub(r"[\\^~]", " ", text)).replace(" ", r"\,")


# --- the chain rule of an op-tree, step by step ---

MAX_RULE_CHARACTERS = 60  # of a longer rule, only the name of the op is printed
MAX_FORMULA_CHARACTERS = 48  # a longer formula does not widen the column of the others


class DerivationStep(NamedTuple):
    """A line of a derivation: a name, and what it names.

    Parameters
    ----------
    name : str
        The name: ``v1`` of a value, and ``dv1`` of the derivative of the result with respect to it.
    tree : OpTreeNode or Tensor
        The expression. Its tensors have the names and the values of earlier steps.
    notes : dict
        {text: LaTeX, if it is another text}. Of a value: its shape, and the composite ops of which it is the result. Of
        a gradient: the rules of the ops that use the value.
    """

    name: str
    tree: Any
    notes: dict[str, str]


class Derivation:
    """The values of an op-tree in the order of their computation, and its gradients in reverse: ``tree.derivation()``.

    It prints as text, and in notebooks as LaTeX.

    Attributes
    ----------
    inputs : list of Tensor
        The tensors of the tree, with their names in the derivation.
    values, gradients : list of DerivationStep
        The steps, forward and backward.
    """

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.values: list[DerivationStep] = []
        self.gradients: list[DerivationStep] = []
        self.latex_names: dict[str, str] = {}

    def define(self, name: str, latex: str = "") -> str:
        """Return a name that nothing has, like the given one, and remember how LaTeX prints it."""
        while name in self.latex_names:
            name += "'"
        self.latex_names[name] = latex or latex_name(name)
        return name

    def define_gradient(self, name: str) -> str:
        """Return the name of the derivative of the result with respect to what has the given name."""
        result = self.latex_names[self.values[-1].name]
        by = self.latex_names.get(name) or latex_name(name)
        return self.define(f"d{name}", rf"\frac{{\partial {result}}}{{\partial {by}}}")

    def __repr__(self) -> str:
        steps = [*self.values, *self.gradients]
        rows = [(s.name, format_formula(s.tree), ", ".join(s.notes)) for s in steps]
        name_width = max(len(name) for name, _, _ in rows)
        width = max(len(text) for _, text, _ in rows if len(text) <= MAX_FORMULA_CHARACTERS)
        lines = [f"{name:{name_width}} = {text:{width}}  {notes}".rstrip() for name, text, notes in rows]
        result, inputs = self.values[-1].name, ", ".join(f"{x.name} {x.shape}" for x in self.inputs)
        lines.insert(len(self.values), f"gradients, dx for d{result}/dx, with the rules of the ops z = op(x, y):")
        return "\n".join([f"{result} of {inputs}:", *lines])

    def _repr_latex_(self) -> str:
        """Return the steps as LaTeX, which notebooks display."""
        lines = []
        for step in (*self.values, *self.gradients):
            notes = [latex or rf"\mathrm{{{escape_latex(text)}}}" for text, latex in step.notes.items()]
            formula = format_latex(step.tree, lambda name: self.latex_names.get(name) or latex_name(name))
            lines.append(rf"{self.latex_names[step.name]} &= {formula} && " + r",\quad ".join(notes))
        return "$$\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}$$"


def format_rule(op: str, operand: str, gradient: Any) -> dict[str, str]:
    """Return the gradient rule of an op for an operand as {text: LaTeX}, or the name of the op if it is long."""
    text = format_formula(gradient)
    if len(text) > MAX_RULE_CHARACTERS:
        return {op: ""}
    latex = rf"\mathrm{{{escape_latex(op)}}}:\; {latex_name(f'd{operand}')} = {format_latex(gradient)}"
    return {f"{op}: d{operand} = {text}": latex}


def format_formula(tree: Any) -> str:
    """Return an op-tree or tensor in infix notation, without the outer parentheses; of a long one the number of ops."""
    if not isinstance(tree, Triple):
        return label(tree)
    if not fits_on_line(tree):
        return f"... {len(list(postorder(tree))):,} ops"
    text = format_infix(tree)
    return text[1:-1] if text.endswith(")") else text


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
        padded = [[x + " " * (w - display_width(x)) for x, w in zip(line, widths, strict=True)] for line in lines]
        return "\n".join("  ".join(line).rstrip() for line in padded)

    def _repr_html_(self) -> str:
        return str(table(self._rows(), header=HEADER))


def format_first_values(value: NumPyArray, count: int = 4) -> str:
    """Return the first elements of an array, formatted: ``0.2689 0.5 0.7311 ...``."""
    texts = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in value.reshape(-1)[:count].tolist()]
    return " ".join([*texts, "..."] if value.size > count else texts)


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
    width = max(c + w / 2 for c, w in zip(x, widths, strict=True)) + BOX_GAP_PX
    height = max(rank) * RANK_PITCH_PX + BOX_HEIGHT_PX + 2 * BOX_GAP_PX
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
        middle, top, node_width = x[i], BOX_GAP_PX + rank[i] * RANK_PITCH_PX, widths[i]
        fill, edge = BOX_COLORS[node.kind]
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
        count = len(self.operands[user])
        return [self.widths[user] * (self._port_fraction(user, i) - 0.5) for i in range(count)]

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
        users = [(u, i) for u, i in self.users[v] if u in neighbor_index]
        positions = [neighbor_index[u] + self._port_fraction(u, i) for u, i in users]
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
    f.__name__.removeprefix("render_"): f for f in (render_text, render_mermaid, render_dot, render_svg)
}
