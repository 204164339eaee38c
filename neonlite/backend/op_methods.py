"""Backend methods that build op-trees: those of tree_methods.py and tree_operands.py, and one per op of the op table.

``make_method`` creates the function with its name, signature and docstring. ``python docs/make_stubs.py``
writes the type stub op_methods.pyi, for editors and type checkers.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from neonlite import messages, name_hints
from neonlite.backend.tensor import Tensor
from neonlite.backend.tree_methods import TreeMethods
from neonlite.backend.tree_operands import ImageTreeMethods, as_indices, as_operand, build_node, check_axes, check_axis
from neonlite.backend.validation import boolean, check_number, integer, one_of, reject_options
from neonlite.ops import OP_TABLE, OPS, SHAPE_FN_BY_KIND, SYNONYMS, Op
from neonlite.optree import Operand, OpTreeNode, create_node
from neonlite.typing import AxisLike, BackendBase, OperandLike

CHOICES = {"side": ("left", "right"), "mode": ("reduced", "complete")}  # the values of an attribute


class OpMethods(TreeMethods, ImageTreeMethods):
    """The methods of ``Backend`` that build op-trees."""

    num_redefinitions = 0  # of custom ops; a captured graph is invalid once it changes


def _unary_method(op: Op) -> Callable[..., Any]:
    def method(be: BackendBase, a: OperandLike, out: Tensor | None = None) -> OpTreeNode | Tensor:
        node = create_node(op, a, None, (), be)
        return node if out is None and node is not NotImplemented else build_node(be, op, a, None, out)

    return method


def _binary_method(op: Op) -> Callable[..., Any]:
    def method(be: BackendBase, a: OperandLike, b: OperandLike, out: Tensor | None = None) -> OpTreeNode | Tensor:
        node = NotImplemented if b is None else create_node(op, a, b, (), be)
        return node if out is None and node is not NotImplemented else build_node(be, op, a, b, out)

    return method


def _reduction_method(op: Op, default: int | None) -> Callable[..., Any]:
    def method(
        be: BackendBase,
        a: OperandLike,
        axis: AxisLike = default,
        out: Tensor | None = None,
        keepdims: bool = True,
        **unknown: object,
    ) -> OpTreeNode | Tensor:
        if unknown:
            reject_options(f"be.{op.method}", ["a", "axis", "out", "keepdims"], [*unknown])
        a = as_operand(be, a, op.method)
        axes = check_axes(a, axis, op.method)
        attrs = (("axis", axes),) if keepdims else (("axis", axes), ("keepdims", False))
        return build_node(be, op, a, None, out, attrs)

    return name_hints.hide_unknown(method)


def _library_method(op: Op) -> Callable[..., Any]:
    """Return the method of a library or composite op: its parameters are those of ``op.run``, or of its formula.

    They are named "a" and "b" for x and y. Optional operands follow the others.
    """

    def method(be: BackendBase, *args: Any, **kwargs: Any) -> OpTreeNode | Tensor:
        values = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        if len(values) != len(names) or len(args) > len(names) or not kwargs.keys().isdisjoint(names[: len(args)]):
            if not kwargs.keys() <= {*names}:
                reject_options(f"be.{op.method}", names, [name for name in kwargs if name not in names])
            signature.bind(be, *args, **kwargs)  # raises TypeError
        operands = [
            as_indices(be, values[x], op.method, x) if x == "indices" else as_operand(be, values[x], op.method)
            for x in operand_names
            if values[x] is not None or x not in optional
        ]
        if optional and any(values[x] is not None for x in operand_names[len(operands) :]):
            given = [x for x in operand_names if values[x] is not None]
            missing = next(x for x in operand_names if values[x] is None)
            raise TypeError(f"be.{op.method}: expected {missing} as well as {given[-1]}, got None")
        attrs = tuple([(x.name, _check_attribute(op, operands[0], x, values[x.name])) for x in attributes])
        first, *rest = operands
        while len(rest) > 1:
            rest[-2:] = [build_node(be, OPS["pair"], *rest[-2:])]
        return build_node(be, op, first, rest[0] if rest else None, values["out"], attrs)

    parameters, attributes = parameters_of(op), keyword_parameters(op)
    by_name = {{"x": "a", "y": "b"}.get(x.name, x.name): x for x in parameters if x not in attributes}
    operand_names, optional = [*by_name], {name for name, x in by_name.items() if x.default is None}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    operand_types = {x: "ArrayLike" if x == "indices" else "OperandLike" for x in operand_names}
    signature = inspect.Signature(
        [inspect.Parameter("be", kind)]
        + [
            inspect.Parameter(x, kind, default=by_name[x].default, annotation=t + " | None" * (x in optional))
            for x, t in operand_types.items()
        ]
        + [x.replace(kind=kind, annotation=_type_of_attribute(op, x)) for x in attributes]
        + [inspect.Parameter("out", kind, default=None, annotation="Tensor | None")],
        return_annotation="OpTreeNode | Tensor",
    )
    names = [*signature.parameters][1:]
    defaults = {x.name: x.default for x in signature.parameters.values() if x.default is not x.empty}
    method.__signature__ = signature  # type: ignore[attr-defined]
    method.__annotations__ = {x.name: x.annotation for x in signature.parameters.values() if x.name != "be"}
    return method


def parameters_of(op: Op) -> list[inspect.Parameter]:
    """Return the parameters of an op's forward function, or of its formula, without xp or be."""
    return list(inspect.signature(op.formula or op.run).parameters.values())[1:]


def keyword_parameters(op: Op) -> list[inspect.Parameter]:
    """Return the keyword-only parameters of an op: its attributes."""
    return [x for x in parameters_of(op) if x.kind is x.KEYWORD_ONLY]


def _type_of_attribute(op: Op, parameter: inspect.Parameter) -> str:
    """Return the type of an attribute: that of its default; a composite op reduces one axis, several or all."""
    return "AxisLike" if parameter.name == "axis" and op.formula is not None else type(parameter.default).__name__


def _check_attribute(op: Op, a: Operand, parameter: inspect.Parameter, value: Any) -> Any:
    """Return the value of an attribute, of the type of its default; an axis as an integer >= 0."""
    name, where = parameter.name, f"be.{op.method}: {parameter.name}"
    if name == "axis":
        return (check_axis if op.formula is None else check_axes)(a, value, op.method)
    if name in CHOICES:
        return one_of(where, value, CHOICES[name])
    if isinstance(parameter.default, bool):
        return boolean(where, value)
    if isinstance(parameter.default, float):
        return check_number(where, value)
    if isinstance(parameter.default, int):
        return integer(where, value, low=-math.inf)
    try:  # of a custom op: of any type
        hash(value)
    except TypeError:
        raise TypeError(messages.expected(where, "a hashable value", value, "A tuple is one, a list is not.")) from None
    return value


def make_method(op: Op) -> Callable[..., Any]:
    """Return the backend method of an op: a function with its name, signature and docstring."""
    is_table_library_op = op in OP_TABLE and op.kind == "library"
    if op.has_axis:
        method = _reduction_method(op, None if op.kind == "reduction" else 1)
    elif len(parameters_of(op)) > 1 if op.kind == "composite" else is_table_library_op and keyword_parameters(op):
        method = _library_method(op)
    else:
        method = _unary_method(op) if op.arity == 1 else _binary_method(op)
    method.__name__, method.__qualname__ = op.method, f"Backend.{op.method}"
    method.__doc__ = make_docstring(op, method)
    return method


# {parameter: its entry in a docstring}
PARAMETER_DOCS = {
    "a": "a : Tensor, OpTreeNode, scalar or array\n    {operand}",
    "b": "b : Tensor, OpTreeNode, scalar or array\n    The second operand, y.",
    "indices": (
        "indices : Tensor or OpTreeNode of integers, or array of int\n    An index for each element of the result; "
        "negative ones count from the end."
    ),
    "values": "values : Tensor, OpTreeNode, scalar or array\n    The values to search for.",
    "axis": "axis : int, tuple of int or None, default {axis}\n    The axes; None for all axes.",
    "gamma": (
        "gamma : Tensor, OpTreeNode, scalar or array, optional\n    The scale; for images of C channels it has C "
        "elements, else it broadcasts to x."
    ),
    "beta": "beta : Tensor, OpTreeNode, scalar or array, optional\n    The shift, as gamma, which it needs.",
    "mask": "mask : Tensor, OpTreeNode, scalar or array\n    0 where x is left out; it broadcasts to x.",
    "attention: q": "q : Tensor, OpTreeNode, scalar or array\n    The queries (..., T, d).",
    "attention: k": "k : Tensor, OpTreeNode, scalar or array\n    The keys (..., S, d).",
    "attention: v": "v : Tensor, OpTreeNode, scalar or array\n    The values (..., S, e).",
    "attention: mask": (
        "mask : Tensor, OpTreeNode, scalar or array, optional\n    0 where a query may not attend to a key; it "
        "broadcasts to (..., T, S)."
    ),
    "slope": "slope : float, default 0.01\n    The slope for negative x.",
    "alpha": "alpha : float, default 1.0\n    The scale for negative x.",
    "t": "t : Tensor, OpTreeNode, scalar or array\n    The probabilities, of the shape of x.",
    "eps": "eps : float, default {axis}\n    What is added to the variance.",
    "groups": "groups : int, default 1\n    The number of groups.",
    "reverse": "reverse : bool, default False\n    Whether to start at the last element.",
    "descending": "descending : bool, default False\n    Whether the largest element is the first.",
    "side": (
        'side : {{"left", "right"}}\n    Whether to insert a value before ("left", the default) or after elements '
        "equal to it."
    ),
    "k": "k : int, default 0\n    The diagonal: 0 for the main one, k > 0 for one above it, k < 0 for one below it.",
    "upper": "upper : bool, default False\n    Whether to return the upper triangular factor, L^T.",
    "mode": (
        'mode : {{"reduced", "complete"}}\n    For m x n matrices, whether q has min(m, n) columns ("reduced", the '
        'default) or m. A gradient\n    needs m >= n and "reduced".'
    ),
    "full_matrices": (
        "full_matrices : bool, default False\n    Whether there are as many singular vectors as rows of x, for u, or "
        "columns, for vh, instead of the\n    smaller of both numbers. NumPy has True as the default. A gradient needs "
        "False."
    ),
    "out": "out : Tensor, optional\n    Evaluate into this tensor now, instead of returning an op-tree.",
    "keepdims": (
        "keepdims : bool, default True\n    Keep the reduced axes with size 1; a result has two dimensions or more."
    ),
}

PARAMETERS_OF_CELLS = {
    "W_input": "W_input : Tensor, OpTreeNode, scalar or array\n    The weights of x, (gates H, F), gate by gate.",
    "W_recur": "W_recur : Tensor, OpTreeNode, scalar or array\n    The weights of the previous h, (gates H, H).",
    "b": "b : Tensor, OpTreeNode, scalar or array\n    The biases, (gates H, 1).",
    "h": "h : Tensor, OpTreeNode, scalar or array\n    The initial state, (H, N).",
    "c": "c : Tensor, OpTreeNode, scalar or array\n    The initial cell state, (H, N).",
    "steps": "steps : int, default 1\n    The number T of time steps; column t N + n of x is step t of sequence n.",
    "reverse": "reverse : bool, default False\n    Whether to start at the last step.",
    "activation": (
        'activation : {{"tanh", "sig", "relu", "identity"}}\n    The activation function of the states; default "tanh".'
    ),
    "gate_activation": (
        'gate_activation : {{"tanh", "sig", "relu", "identity"}}\n    The activation function of the gates; default '
        '"sig".'
    ),
}
PARAMETER_DOCS |= {
    f"{cell}: {name}": entry for cell in ("rnn", "lstm", "gru") for name, entry in PARAMETERS_OF_CELLS.items()
}

RESULT_DTYPES = {"boolean": ", 0 or 1 as floats", "index": ", int64", "float": ", a float"}


def make_docstring(op: Op, method: Callable[..., Any]) -> str:
    """Return the NumPy-style docstring of a generated method."""
    parameters = inspect.signature(method).parameters
    is_reduction, is_product = op.has_axis, op.name in ("dot", "matmul")
    operand = "The operand, x." if "b" not in parameters else "The first operand, x."
    summary = f"Return {op.doc}, over one axis, several or all." if is_reduction else f"Return {op.doc}."
    shape = (
        "with the reduced axes of size 1 or removed"
        if is_reduction
        else "of shape (..., m, n), for operands (..., m, k) and (..., k, n)"
        if is_product
        else "with the shape that the op's shape rule gives"
        if op.kind == "library"
        else "with the shape of the formula"
        if op.kind == "composite"
        else "of the operands' broadcast shape"
        if "b" in parameters
        else "of the operand's shape"
    )
    entries = [
        f"axis : int, default {parameter.default}\n    The axis."
        if name == "axis" and not is_reduction and op.formula is None
        else _describe_parameter(op, parameter).format(operand=operand, axis=parameter.default)
        for name, parameter in parameters.items()
        if name != "be"
    ]
    returns = f"OpTreeNode or Tensor\n    An op-tree {shape}{RESULT_DTYPES.get(op.result_dtype, '')}; or ``out``."
    lines = [summary, "", "Parameters", "----------", *entries, "", "Returns", "-------", returns, ""]
    return "\n".join(lines)


def _describe_parameter(op: Op, parameter: inspect.Parameter) -> str:
    """Return the entry of a parameter in a docstring; in brief for one of a custom op."""
    name = parameter.name
    brief = f"{name} : {str(parameter.annotation).replace(' | None', ', optional')}\n    As in the formula."
    return PARAMETER_DOCS.get(f"{op.name}: {name}") or PARAMETER_DOCS.get(name, brief)


class _GeneratedMethod:
    """The method of an op in the class, until it is first used: ``import neonlite`` makes none."""

    def __init__(self, op: Op) -> None:
        self.op = op

    def __get__(self, be: object, cls: type) -> Callable[..., Any]:
        method = make_method(self.op)
        for name in (self.op.method, *SYNONYMS.get(self.op.method, ())):
            setattr(OpMethods, name, method)
        return getattr(cls if be is None else be, self.op.method)


HAND_WRITTEN = {**vars(ImageTreeMethods), **vars(TreeMethods)}

for _op in OP_TABLE:
    is_generated = _op.kind in (*SHAPE_FN_BY_KIND, "library", "composite") and _op.method not in HAND_WRITTEN
    if is_generated and _op.has_method:
        setattr(OpMethods, _op.method, _GeneratedMethod(_op))
for _name, _method in [*HAND_WRITTEN.items(), *vars(OpMethods).items()]:
    for _alias in SYNONYMS.get(_name, ()):
        setattr(OpMethods, _alias, _method)
