"""Which methods does the op table give a backend?  One a row: a function with name, docstring and signature.

Tab and ``?`` find them; ``rows.pyi``, written by ``python -m neonlite.backend.stub``, tells editors and type checkers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neonlite.ops import SHAPES, TABLE, Op
from neonlite.optree import build


class Rows:
    """The methods of the rows whose operands say all; those with more to say are written out in ``Words``."""


def _unary(op: Op) -> Callable[..., Any]:
    def method(self: Any, a: Any, out: Any = None) -> Any:
        node = build(op, a, None, (), self)
        return node if out is None and node is not NotImplemented else self._node(op, a, None, out)

    return method


def _binary(op: Op) -> Callable[..., Any]:
    def method(self: Any, a: Any, b: Any, out: Any = None) -> Any:
        node = NotImplemented if b is None else build(op, a, b, (), self)
        return node if out is None and node is not NotImplemented else self._node(op, a, b, out)

    return method


def _reduction(op: Op, everything: bool) -> Callable[..., Any]:
    def method(self: Any, a: Any, axis: Any = None, out: Any = None, keepdims: bool = True) -> Any:
        a = self._operand(a, op.method)
        axes = self._axes(a, axis, op.method)
        attrs = (("axis", axes),) if keepdims else (("axis", axes), ("keepdims", False))
        return self._node(op, a, None, out, attrs)

    def along(self: Any, a: Any, axis: Any = 1, out: Any = None, keepdims: bool = True) -> Any:
        return method(self, a, axis, out, keepdims)

    return method if everything else along


def method_of(op: Op) -> Callable[..., Any]:
    """Return the backend method of a row: a function with its name, docstring and signature."""
    if op.kind == "reduction" or op.result == "index":
        method = _reduction(op, op.kind == "reduction")
        doc = f"Return {op.doc} over one axis, several (a tuple), or all (None)."
    else:
        method = _unary(op) if op.arity == 1 else _binary(op)
        doc = f"Return {op.doc}."
    method.__name__, method.__qualname__, method.__doc__ = op.method, f"Backend.{op.method}", doc
    return method


ALIASES = {"fabs": "absolute", "true_divide": "divide"}

WRITTEN_OUT = (
    "where",
    "cast",
    "shift",
    "concat",
    "take",
    "scatter",
    "onehot",
    "unslice",
)  # in Words, or for derivatives alone

for _op in TABLE:
    if _op.kind in (*SHAPES, "library") and _op.name not in WRITTEN_OUT:
        setattr(Rows, _op.method, method_of(_op))
for _alias, _word in ALIASES.items():
    setattr(Rows, _alias, getattr(Rows, _word))
