"""Write ops.md, the reference of all ops, from the op table: ``python docs/make_ops.py``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from neonlite import Backend
from neonlite.backend import tree_methods
from neonlite.explorer import format_gradient_rule, operand_names
from neonlite.ops import OP_TABLE, Op, missing_gradient

HEAD = """# The ops

Written by `python docs/make_ops.py` from the table in `neonlite/ops.py`.

The gradient column contains the gradient rules. `z` is the result of the op, and `dz` the gradient with respect to it.
`dx` and `dy` are the gradients with respect to the operands, as op-trees. **0** is a zero gradient. Rules ignore
broadcasting: autodiff sums each gradient to the shape of its operand.

Gradients are printed as by `pp()`: `@` is the matrix product, `.T` the transpose, and constants are in parentheses, as
in `((2) * x)`. Attributes that depend on shapes, such as `axis=(1,)`, are examples, for operands of shape (2, 3).

| op | method | value | gradient |
|---|---|---|---|
"""

MADE = """
## Composite functions

These methods build trees of the ops above.

| method | value |
|---|---|
"""

# Operand shapes and attributes for ops whose rules cannot be printed for operands of shape (2, 3), without attributes
# or, for reductions, with axis=(1,).
SYMBOLS: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "cast": ([(2, 3)], {"to": "float64"}),
    "shift": ([(2, 3), (2, 3)], {"value": True}),
    "dot": ([(2, 3), (3, 4)], {}),
    "matmul": ([(5, 2, 3), (5, 3, 4)], {}),
    "transpose": ([(2, 3)], {"axes": (1, 0)}),
    "reshape": ([(2, 3)], {"to": (3, 2)}),
    "broadcast": ([(1, 3)], {"to": (2, 3)}),
    "slice": ([(2, 3)], {"index": ((0, 2, 1), (1, 2, 1))}),
    "slice_backward": ([(2, 2)], {"index": ((0, 2, 1), (1, 2, 1)), "to": (2, 3)}),
    "concat": ([(2, 3), (2, 4)], {"axis": 1}),
    "take": ([(2, 3), (4, 1)], {"axis": 1}),
    "scatter_add": ([(2, 4), (4, 1)], {"axis": 1, "size": 3}),
}


def derivative(be: Backend, op: Op) -> str:
    """Return the gradients of an op's operands as formulas of the operands, the result z and its gradient dz."""
    if op.grad is None:
        return "**0**"
    if op.grad is missing_gradient:
        return "none: a structural op"
    shapes, attrs = SYMBOLS.get(op.name, ([(2, 3)] * op.arity, {"axis": (1,)} if op.kind == "reduction" else {}))
    operands = [
        be.empty(shape, name=name, dtype="int32" if name == "indices" else None)
        for shape, name in zip(shapes, operand_names(op), strict=False)
    ]
    node = be.build(op.name, *folded(be, operands), **attrs)
    rule = format_gradient_rule(be, op, operands, be.empty(node.shape, dtype=node.dtype, name="z"), attrs)
    return "<br>".join(f"{name} = {formula(dx)}" for name, dx in rule)


def folded(be: Backend, operands: list[Any]) -> list[Any]:
    """Return at most two operands: the last two of three are combined into a pair."""
    return operands if len(operands) < 3 else [operands[0], be.build("pair", *operands[1:])]


def formula(dx: str) -> str:
    """Return a gradient as code in a table cell."""
    return "**0**" if dx == "0" else code(dx)


def method(be: Backend, op: Op) -> str:
    """Return the name of the op's backend method, or an empty string if it has no public one."""
    return f"`be.{op.method}`" if hasattr(be, op.method) and op.kind != "structural" else ""


def code(text: str) -> str:
    """Return text as code in a table cell."""
    return f"`{cell(text)}`"


def cell(text: str) -> str:
    """Return text with vertical bars escaped, as they would end the table cell."""
    return text.replace("|", "\\|")


def text() -> str:
    """Return the text of the page."""
    be = Backend("cpu", rng_seed=0)
    rows = [f"| `{op.name}` | {method(be, op)} | {cell(op.doc)} | {derivative(be, op)} |" for op in OP_TABLE]
    excluded = {op.method for op in OP_TABLE} | {"build"}
    composite = [
        f"| `be.{name}` | {cell((inspect.getdoc(f) or '').splitlines()[0].removeprefix('Return ').rstrip('.'))} |"
        for name, f in vars(tree_methods).items()
        if getattr(Backend, name, None) is f and name not in excluded
    ]
    return HEAD + "\n".join(rows) + "\n" + MADE + "\n".join(composite) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("ops.md").write_text(text())
