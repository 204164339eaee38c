"""Op-trees explained: the interactive drawing ``explore(tree)``, and the chain rule step by step."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache, reduce
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neonlite.autodiff import OPENED, Autodiff, operand_of
from neonlite.backend.tensor import Tensor, display_values, format_values, overlap
from neonlite.backend.validation import instance
from neonlite.messages import describe, label, listed
from neonlite.ops import Op, missing_gradient
from neonlite.optree import Operand, OpTreeNode, copy_node, postorder
from neonlite.tree_inference import evaluate_formula
from neonlite.typing import FLOAT_DTYPES, BackendBase
from neonlite.variables import Variable
from neonlite.visualize import Derivation, DerivationStep, OpTreeGraph, draw, format_rule

if TYPE_CHECKING:
    import anywidget


def explore(tree: OpTreeNode, max_nodes: int | None = 40) -> anywidget.AnyWidget:
    """Return an interactive drawing of an op-tree for notebooks: JupyterLab, VS Code and marimo.

    A click on a box, or Enter on a focused one, shows its shape and dtype, the statistics and first values of its value
    and of the gradient of the sum of the tree's elements with respect to it, and the description and gradient rule of
    its op. The tree is evaluated once, when this function is called. Where scripts do not run, the drawing is static.

    Parameters
    ----------
    tree : OpTreeNode
        The op-tree.
    max_nodes : int, optional
        The largest number of nodes to draw, as for ``tree.draw``; None: all. Default: 40.

    Returns
    -------
    anywidget.AnyWidget
        The widget. ``nodes`` has the texts of each box, the result first, and ``selected`` is the index of the box
        whose texts are shown.

    Raises
    ------
    ImportError
        anywidget is not installed.
    RuntimeError
        The backend is a dry run, which has no values.
    TypeError
        ``tree`` is not an op-tree.

    Examples
    --------
    >>> import neonlite as nl
    >>> be = nl.gen_backend("cpu")
    >>> x = be.array([[1.0, 2.0]], name="x")
    >>> explorer = nl.explore(be.square(x))
    >>> explorer.nodes[0]["op"], explorer.nodes[1]["gradient"].splitlines()[0]
    ('sqr: x^2', '[[2. 4.]]')
    """
    if not isinstance(tree, OpTreeNode):
        raise TypeError(f"explore: expected an op-tree, got {describe(tree)}")
    if not tree.backend.runtime.has_values:
        raise RuntimeError(f"explore: expected a backend with values, got {tree.backend!r}")
    svg = draw(tree, "svg", max_nodes)
    drawn = [node.operand for node in OpTreeGraph(tree, max_nodes).nodes]
    return widget_class()(svg=svg, nodes=describe_nodes(tree, drawn))


@cache
def widget_class() -> Any:
    """Return the class of the widget, which needs anywidget."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ImportError(
            'explore: expected anywidget, which is not installed. pip install "neonlite[notebook]"'
        ) from error

    class Explorer(anywidget.AnyWidget):  # type: ignore[misc]
        """A drawing and the texts of its boxes."""

        _esm = Path(__file__).with_suffix(".js")
        svg = traitlets.Unicode().tag(sync=True)
        nodes = traitlets.List(traitlets.Dict()).tag(sync=True)
        selected = traitlets.Int(0).tag(sync=True)

        def __repr__(self) -> str:
            return f"Explorer({self.nodes[0]['node']}, {len(self.nodes)} nodes)"

        def _repr_mimebundle_(self, **options: Any) -> Any:
            bundle, metadata = super()._repr_mimebundle_(**options)
            return {**bundle, "image/svg+xml": self.svg}, metadata

    return Explorer


# --- the texts of the boxes ------------------------------------------------------------------------------------------


def describe_nodes(tree: OpTreeNode, drawn: Sequence[Any]) -> list[dict[str, str]]:
    """Return the texts of the boxes, by their titles. All values and gradients are evaluated in one plan.

    Parameters
    ----------
    tree : OpTreeNode
        The op-tree.
    drawn : sequence
        The op-tree node, tensor or scalar of each box; None for omitted operands.
    """
    be = tree.backend
    grads, reason = gradient_trees(tree)
    operands = [x for x in drawn if isinstance(x, Operand) and x.info.get("op") != "assign"]
    wanted = [(id(x), grads.get(id(x))) for x in operands]
    results = iter(be.evaluate([*operands, *(dx for _, dx in wanted if dx is not None)]))
    values = {id(x): next(results) for x in operands}
    gradients = {i: next(results) for i, dx in wanted if dx is not None}
    dry_run = be.dry_run()
    texts = []
    for x in drawn:
        if not isinstance(x, Operand):
            texts.append({"node": "more operands" if x is None else label(x)})
            continue
        node = x.info["op"] if isinstance(x, OpTreeNode) else label(x)
        text = {"node": f"{node} {x.shape}", "dtype": x.info.dtype}
        if isinstance(x, OpTreeNode):
            text |= describe_op(dry_run, x)
        if id(x) in values:
            text["value"] = summarize_values(values[id(x)])
        text["gradient"] = summarize_values(gradients[id(x)]) if id(x) in gradients else reason or "0"
        texts.append(text)
    return texts


def gradient_trees(tree: OpTreeNode) -> tuple[dict[int, Operand], str]:
    """Return {id of a node or tensor: its gradient}, and why there is none."""
    if tree.info.dtype not in FLOAT_DTYPES:
        return {}, f"none: the result has dtype {tree.info.dtype}"
    tensors = (x for node in postorder(tree) for x in node.operands if isinstance(x, Tensor))
    try:
        leaves = {id(x) for x in tensors if x.info.dtype in FLOAT_DTYPES}
        return Autodiff(tree, tree.backend).backpropagate(leaves), ""
    except NotImplementedError as error:
        return {}, f"none: {error}"


def describe_op(dry_run: BackendBase, node: OpTreeNode) -> dict[str, str]:
    """Return the description of a node's op, its attributes, and its gradient rule for the shapes of the operands."""
    op: Any = node.info.op_def
    text = {"op": f"{op.name}: {op.doc}" if op.doc else op.name}
    if node.info.attrs:
        text["attributes"] = ", ".join(f"{name}={value!r}" for name, value in node.info.attrs.items())
    operands, z = named_operands(dry_run, node)
    if op.kind == "composite":
        text["formula"] = evaluate_formula(op, tuple(operands), tuple(node.info.attrs.items()), dry_run).pp()
    if op.opens_to_differentiate:
        text["gradient rule"] = "that of the formula"
    elif op.grad is None or op.grad is missing_gradient:
        text["gradient rule"] = "0" if op.grad is None else "none"
    else:
        rule = format_gradient_rule(dry_run, op, operands, z, node.info.attrs)
        text["gradient rule"] = "\n".join(f"{name} = {dx}" for name, dx in rule)
    return text


def named_operands(dry_run: BackendBase, node: OpTreeNode) -> tuple[list[Any], Tensor]:
    """Return the operands and the result of a node as tensors without values, named as in the formulas of its op."""
    names = chain(operand_names(node.info.op_def), (f"x{i}" for i in count(3)))  # type: ignore[arg-type]
    operands = [
        dry_run.empty(x.shape, dtype=x.info.dtype, name=name) if isinstance(x, Operand) else x
        for x, name in zip(node.operands, names, strict=False)
    ]
    return operands, dry_run.empty(node.shape, dtype=node.info.dtype, name="z")


def operand_names(op: Op) -> list[str]:
    """Return the names of an op's operands in formulas, such as x, y or indices."""
    parameters = inspect.signature(op.formula or op.run).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][1:] or ["x", "y"]


def format_gradient_rule(
    be: BackendBase, op: Op, operands: Sequence[Any], z: Tensor, attrs: dict[str, Any]
) -> list[tuple[str, str]]:
    """Return the gradient rule of an op that has one: ("dx", formula) for each tensor among the operands.

    Parameters
    ----------
    be : Backend
        The backend of the operands.
    op : Op
        The op.
    operands : sequence of Tensor or scalar
        The operands, with the names that the formulas use.
    z : Tensor
        A tensor of the result's shape and dtype.
    attrs : dict
        The attributes of the op.
    """
    dz = be.empty(z.shape, dtype=z.info.dtype, name="dz")
    grads: Any = op.grad and op.grad(be, dz, z, *operands, **attrs)
    formulas = ("0" if dx is None else dx.pp() if isinstance(dx, OpTreeNode) else label(dx) for dx in grads)
    pairs = zip(operands, formulas, strict=True)
    return [(f"d{x.name}", formula) for x, formula in pairs if isinstance(x, Operand)]


def summarize_values(t: Tensor) -> str:
    """Return the first values of a tensor, and its statistics."""
    values = display_values(t).astype("float64")
    finite = values[abs(values) < float("inf")]
    lines = [format_values(t)]
    if finite.size:
        lines += [f"min {finite.min():.4g}, max {finite.max():.4g}, mean {finite.mean():.4g}, std {finite.std():.4g}"]
    if finite.size < values.size:
        lines += [f"{values.size - finite.size:,} of {values.size:,} elements are NaN or infinite"]
    return "\n".join(lines)


# --- the chain rule, step by step -------------------------------------------------------------------------------------


def derive(tree: Any, tensors: Sequence[Any] = (), allow_unused: bool = False) -> Derivation:
    """Return the derivation of an op-tree or array with respect to tensors, or to all float tensors in it.

    ``Autodiff`` computes it, with a tensor in the place of each node and of each gradient, so that a rule is printed in
    the names of these tensors. Their values are computed when they are read.
    """
    root = operand_of(tree)
    instance("derivation: tree", root, OpTreeNode, "an op-tree")
    if root.info.dtype not in FLOAT_DTYPES:
        raise TypeError(
            f"derivation: expected an op-tree of floats, got {describe(root)} with dtype {root.info.dtype}, which has "
            "no derivative"
        )
    root = copy_node(root)  # the tree keeps the Autodiff of other callers
    operands = [x for z in postorder(root, opens=OPENED) for x in z.operands]
    leaves = list({id(x): x for x in operands if isinstance(x, Tensor)}.values())
    floats = [x for x in leaves if x.info.dtype in FLOAT_DTYPES]
    for x in [] if allow_unused else map(operand_of, tensors):
        instance("derivation: tensors", x, Tensor, "a tensor of the tree", ". Pass each: tree.derivation(W, b)")
        if not any(overlap(x, leaf) != "none" for leaf in floats):
            names = listed(sorted(map(label, floats))) or "none"
            raise ValueError(f"derivation: expected a float tensor of the tree, {names}, got {describe(x)}")
    be, derivation = root.backend, Derivation()
    error = be.ones(root.shape, dtype=root.info.dtype, name="1")
    recorder = Recorder(root, be, error, allow_unused=True)
    recorder.derivation, recorder.rules, recorder.dry_run = derivation, {}, be.dry_run()
    recorder.numbers = count(1)
    known = recorder._cache.known_values
    for x in leaves:
        owner, *views = whole_bases(x)
        if id(owner) not in known:
            name = derivation.define(short_name(owner) or f"x{len(derivation.inputs) + 1}")
            known[id(owner)] = Variable(owner.info, name, owner)
            derivation.inputs.append(known[id(owner)])
        known[id(x)] = reduce(
            lambda tree, view: be.build(view.view_op[0], tree, **view.view_op[1]), views, known[id(owner)]
        )
    recorder.add_values(root, derivation.values)
    variables = list(map(operand_of, tensors)) or list({id(x): x for x, *_ in map(whole_bases, floats)}.values())
    for x, dx in zip(variables, recorder.gradient_operands(tensors or variables), strict=True):
        if isinstance(dx, Tensor) and dx.name is None:
            dx.name = "0"
        rules: dict[str, str] = {}
        for y in leaves:
            rules |= recorder.rules.get(id(y), {}) if overlap(x, y) != "none" else {}
        known_name = known[id(x)].name if id(x) in known else ""
        recorder.add_gradient(known_name or short_name(x) or "x", dx, rules)
    return derivation


class Recorder(Autodiff):
    """An Autodiff that adds each gradient to a derivation, and continues with a tensor in its place."""

    derivation: Derivation
    rules: dict[int, dict[str, str]]  # {id of an operand: the rules of the ops that use it}
    dry_run: Any
    numbers: Iterator[int]  # of the values

    def add_values(self, root: OpTreeNode, steps: list[DerivationStep]) -> None:
        """Add a step for each node that has none, operands first; a tensor takes its place."""
        known: dict[int, Any] = self._cache.known_values
        nodes = [z for z in postorder(root, opens=OPENED) if id(z) not in known]
        last = next((z for z in reversed(nodes) if not OPENED(z.info.op_def)), None) if root is self.op_tree else None
        for z in nodes:
            if OPENED(z.info.op_def):
                known[id(z)] = known[id(z.opened)]
                steps[-1].notes[z.op] = ""
                continue
            a, b = known.get(id(z.left), z.left), known.get(id(z.right), z.right)
            known[id(z)] = tree = z if a is z.left and b is z.right else z._rebuild(z.info, a, b)
            if z.op != "pair":
                name = self.derivation.define("E" if z is last else f"v{next(self.numbers)}")
                steps.append(DerivationStep(name, tree, {str(z.shape): ""}))
                known[id(z)] = Variable(self.be.tensor_info(z.shape, z.info.dtype), name, tree)

    def add_gradient(self, name: str, dx: Operand, rules: dict[str, str]) -> Tensor:
        """Add a step for the gradient of what has a name, and return the tensor in its place."""
        step = DerivationStep(self.derivation.define_gradient(name), dx, rules)
        self.derivation.gradients.append(step)
        return Variable(self.be.tensor_info(dx.shape, dx.info.dtype), step.name, dx)

    def _add_parts(self, z: OpTreeNode, parts: list[Operand]) -> Operand:
        dz, name = super()._add_parts(z, parts), self._cache.known_values[id(z)].name
        is_known = isinstance(dz, Tensor) and dz.name == f"d{name}"  # the gradient of a composite op and its formula
        return dz if is_known else self.add_gradient(str(name), dz, self.rules.get(id(z), {}))

    def _differentiate_formula(self, z: OpTreeNode, dz: Operand) -> tuple[Operand | None, ...]:
        known = self._cache.known_values
        known[id(z.opened)] = known[id(z)]
        self.add_values(z.opened, self.derivation.gradients)
        return super()._differentiate_formula(z, dz)

    def _apply_rule(self, z: OpTreeNode, operands: tuple[Any, ...], dz: Operand) -> tuple[Operand | None, ...]:
        grads = super()._apply_rule(z, operands, dz)
        op: Any = z.info.op_def
        xs, result = named_operands(self.dry_run, z)
        error = self.dry_run.empty(z.shape, dtype=z.info.dtype, name="dz")
        rule = op.grad(self.dry_run, error, result, *xs, **z.info.attrs)
        for x, named, dx in zip(operands, xs, rule, strict=True):
            if dx is not None:
                self.rules.setdefault(id(x), {}).update(format_rule(z.op, label(named), dx))
        return grads


def short_name(x: Tensor) -> str:
    """Return the name of a tensor, of ``params['W']`` the last part; an empty string if it has none."""
    return re.sub(r".*\['(\w+)'\]", r"\1", label(x)) if x.name else ""


def whole_bases(x: Tensor) -> list[Any]:
    """Return the tensor of which a transposed or reshaped one of its name is a view, the views between, and it."""
    if x.base is None or x.view_op is None or x.base.size != x.size or x.base.name != x.name:
        return [x]
    return [*whole_bases(x.base), x]
