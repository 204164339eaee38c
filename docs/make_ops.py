"""What does every op compute, and what is its derivative?  ``python docs/make_ops.py`` writes ops.md from the table."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from neonlite import Backend
from neonlite.backend.words import Words
from neonlite.ops import TABLE, Op, missing
from neonlite.optree import label

HEAD = """# The ops

Written by `python docs/make_ops.py` from the table in `neonlite/ops.py`.

The derivative column prints each row's rule on symbols: given the error `dz` of the result `z` it is the error of each
operand, an op-tree like any other. **flat** means zero wherever the derivative exists. What broadcasting stretched is
summed back afterwards, so no rule speaks of it.

| op | method | value | derivative |
|---|---|---|---|
"""

MADE = """
## Made of ops

These have no row: each is a small tree, and value, derivative and speed follow from the rows above.

| method | value |
|---|---|
"""

# The shapes and attributes on which the rules are printed, where two operands of shape (2, 3) do not say enough.
SYMBOLS: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "cast": ([(2, 3)], {"to": "float64"}),
    "shift": ([(2, 3), (2, 3)], {"value": True}),
    "sum": ([(2, 3)], {"axis": (1,)}),
    "max": ([(2, 3)], {"axis": (1,)}),
    "min": ([(2, 3)], {"axis": (1,)}),
    "dot": ([(2, 3), (3, 4)], {}),
    "matmul": ([(5, 2, 3), (5, 3, 4)], {}),
    "transpose": ([(2, 3)], {"axes": (1, 0)}),
    "reshape": ([(2, 3)], {"to": (3, 2)}),
    "broadcast": ([(1, 3)], {"to": (2, 3)}),
    "slice": ([(2, 3)], {"index": ((0, 2, 1), (1, 2, 1))}),
    "unslice": ([(2, 2)], {"index": ((0, 2, 1), (1, 2, 1)), "to": (2, 3)}),
    "concat": ([(2, 3), (2, 4)], {"axis": 1}),
    "take": ([(2, 3), (4, 1)], {"axis": 1}),
    "scatter": ([(2, 4), (4, 1)], {"axis": 1, "size": 3}),
}


def derivative(be: Backend, op: Op) -> str:
    """Return the errors of an op's operands as formulas over them, the result z and its error dz."""
    if op.grad is None:
        return "**flat**"
    if op.grad is missing:
        return "none: it holds a tree together"
    shapes, attrs = SYMBOLS.get(op.name, ([(2, 3)] * op.arity, {}))
    operands = [
        be.empty(shape, name=name, dtype="int32" if name == "indices" else None)
        for shape, name in zip(shapes, names(op), strict=False)
    ]
    node = be.build(op.name, *folded(be, operands), **attrs)
    dz, z = (be.empty(node.shape, dtype=node.dtype, name=name) for name in ("dz", "z"))
    errors = op.grad(be, dz, z, *operands, **attrs)
    return "<br>".join(f"d{x.name} = {formula(dx)}" for x, dx in zip(operands, errors, strict=True))


def names(op: Op) -> list[str]:
    """Return what a row calls its operands, such as x, y or indices."""
    operands = [p.name for p in inspect.signature(op.run).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    return operands or ["x", "y"]


def folded(be: Backend, operands: list[Any]) -> list[Any]:
    """Return the operands in two places: a pair holds the last two of three."""
    return operands if len(operands) < 3 else [operands[0], be.build("pair", *operands[1:])]


def formula(dx: Any) -> str:
    """Return an error as code in a table's cell."""
    return "**flat**" if dx is None else code(dx.pp() if hasattr(dx, "pp") else label(dx))


def method(be: Backend, op: Op) -> str:
    """Return the word on the backend, if there is one for users."""
    return f"`be.{op.method}`" if hasattr(be, op.method) and op.kind != "tie" else ""


def code(text: str) -> str:
    """Return text as code in a table's cell."""
    return f"`{cell(text)}`"


def cell(text: str) -> str:
    """Return text in which a bar does not end the cell."""
    return text.replace("|", "\\|")


def text() -> str:
    """Return the page."""
    be = Backend("cpu", rng_seed=0)
    rows = [f"| `{op.name}` | {method(be, op)} | {cell(op.doc)} | {derivative(be, op)} |" for op in TABLE]
    own = {op.method for op in TABLE} | {"build", "define_op", "elementwise_kernel", "raw_kernel"}
    made = [
        f"| `be.{name}` | {cell((inspect.getdoc(f) or '').splitlines()[0].removeprefix('Return ').rstrip('.'))} |"
        for name, f in vars(Words).items()
        if inspect.isfunction(f) and not name.startswith("_") and name not in own
    ]
    return HEAD + "\n".join(rows) + "\n" + MADE + "\n".join(made) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("ops.md").write_text(text())
