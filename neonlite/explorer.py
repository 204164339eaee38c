"""The interactive explorer of op-trees: a drawing whose boxes show value, gradient and op, and the text of each box."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from neonlite.autodiff import Autodiff
from neonlite.backend.tensor import Tensor, display_values, format_values
from neonlite.messages import describe, label
from neonlite.ops import Op, missing_gradient
from neonlite.optree import Operand, OpTreeNode, postorder
from neonlite.tree_inference import evaluate_formula
from neonlite.typing import FLOAT_DTYPES, BackendBase

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
    from neonlite.visualize import OpTreeGraph, draw

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
    from pathlib import Path

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
