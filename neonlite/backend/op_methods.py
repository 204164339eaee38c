"""Backend methods generated from the op table, one per op.

``make_method`` creates the function with its name, signature and docstring. ``python -m neonlite.backend.stubgen``
writes the type stub op_methods.pyi, for editors and type checkers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neonlite.backend.tree_operands import as_operand, build_node, check_axes
from neonlite.ops import OP_TABLE, SHAPE_FN_BY_KIND, Op
from neonlite.optree import Operand, build
from neonlite.typing import AxisLike, OperandLike

if TYPE_CHECKING:
    from neonlite.backend.backend import Backend
    from neonlite.backend.tensor import Tensor


class OpMethods:
    """The generated methods. Methods with more parameters than operands are written by hand in tree_methods.py."""

    num_redefinitions = 0  # of custom ops; a captured graph is invalid once it changes


def _unary_method(op: Op) -> Callable[..., Any]:
    def method(be: Backend, a: OperandLike, out: Tensor | None = None) -> Operand:
        node = build(op, a, None, (), be)
        return node if out is None and node is not NotImplemented else build_node(be, op, a, None, out)

    return method


def _binary_method(op: Op) -> Callable[..., Any]:
    def method(be: Backend, a: OperandLike, b: OperandLike, out: Tensor | None = None) -> Operand:
        node = NotImplemented if b is None else build(op, a, b, (), be)
        return node if out is None and node is not NotImplemented else build_node(be, op, a, b, out)

    return method


def _reduction_method(op: Op, reduce_all: bool) -> Callable[..., Any]:
    def method(
        be: Backend, a: OperandLike, axis: AxisLike = None, out: Tensor | None = None, keepdims: bool = True
    ) -> Operand:
        a = as_operand(be, a, op.method)
        axes = check_axes(a, axis, op.method)
        attrs = (("axis", axes),) if keepdims else (("axis", axes), ("keepdims", False))
        return build_node(be, op, a, None, out, attrs)

    def method_axis_1(
        be: Backend, a: OperandLike, axis: AxisLike = 1, out: Tensor | None = None, keepdims: bool = True
    ) -> Operand:
        return method(be, a, axis, out, keepdims)

    return method if reduce_all else method_axis_1


def make_method(op: Op) -> Callable[..., Any]:
    """Return the backend method of an op: a function with its name, signature and docstring."""
    if op.has_axis:
        method = _reduction_method(op, reduce_all=op.kind == "reduction")
    else:
        method = _unary_method(op) if op.arity == 1 else _binary_method(op)
    method.__name__, method.__qualname__ = op.method, f"Backend.{op.method}"
    method.__doc__ = make_docstring(op, method)
    return method


# {parameter: its entry in a docstring}
PARAMETER_DOCS = {
    "a": "a : Tensor, OpTreeNode, scalar or array\n    {operand}",
    "b": "b : Tensor, OpTreeNode, scalar or array\n    The second operand, y.",
    "axis": "axis : int, tuple of int or None, default {axis}\n    The axes to reduce; None for all axes.",
    "out": "out : Tensor, optional\n    Evaluate into this tensor now, instead of returning an op-tree.",
    "keepdims": (
        "keepdims : bool, default True\n    Keep the reduced axes with size 1; a result has two dimensions or more."
    ),
}

RESULT_DTYPES = {"boolean": ", 0 or 1 as floats", "index": ", int64", "float": ", a float"}


def make_docstring(op: Op, method: Callable[..., Any]) -> str:
    """Return the NumPy-style docstring of a generated method."""
    parameters = inspect.signature(method).parameters
    is_reduction, is_product = "axis" in parameters, op.name in ("dot", "matmul")
    operand = "The operand, x." if "b" not in parameters else "The first operand, x."
    summary = f"Return {op.doc}, over one axis, several or all." if is_reduction else f"Return {op.doc}."
    shape = (
        "with the reduced axes of size 1 or removed"
        if is_reduction
        else "of shape (..., m, n), for operands (..., m, k) and (..., k, n)"
        if is_product
        else "with the shape that the op's shape rule gives"
        if op.kind == "library"
        else "of the operands' broadcast shape"
        if "b" in parameters
        else "of the operand's shape"
    )
    entries = [
        PARAMETER_DOCS[name].format(operand=operand, axis=parameter.default)
        for name, parameter in parameters.items()
        if name != "be"
    ]
    returns = f"OpTreeNode or Tensor\n    An op-tree {shape}{RESULT_DTYPES.get(op.result_dtype, '')}; or ``out``."
    lines = [summary, "", "Parameters", "----------", *entries, "", "Returns", "-------", returns, ""]
    return "\n".join(lines)


ALIASES = {"fabs": "absolute", "true_divide": "divide"}

# ops with a hand-written method, and ops that only gradient rules build
NOT_GENERATED = ("where", "cast", "shift", "concat", "take", "scatter_add", "onehot", "slice_backward")

for _op in OP_TABLE:
    if _op.kind in (*SHAPE_FN_BY_KIND, "library") and _op.name not in NOT_GENERATED:
        setattr(OpMethods, _op.method, make_method(_op))
for _alias, _method_name in ALIASES.items():
    setattr(OpMethods, _alias, getattr(OpMethods, _method_name))
