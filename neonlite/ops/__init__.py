"""The op table: name, forward function, gradient rule, shape rule, dtype rule and cost of every op.

* ``run(xp, x, y, **attrs)`` computes the value with array-API functions. ``xp`` is the array namespace.
* ``grad(be, dz, z, x, y, **attrs)`` is the gradient rule. Given the result ``z`` and its gradient ``dz = dE/dz``, it
  returns one op-tree per operand. ``None`` instead of the rule, or of one of the op-trees, is a zero gradient. An op
  without a rule raises NotImplementedError when it is differentiated.

Gradient rules ignore broadcasting: ``Autodiff`` sums each gradient over the axes along which its operand was repeated,
or repeats it along those that were summed. The backend methods, the type stub, docs/ops.md and most tests are generated
from this table; shape inference, the executors and Autodiff read it. Functions longer than a line and shape rules are
in functions.py, images.py, linalg.py and recurrent.py, the formulas of composite ops (``softmax``, ``layer_norm``) in
composites.py. Functions of several ops that print as these (``mean``, ``clip``) are methods of the backend, in
tree_methods.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from neonlite.ops import composites, functions, images, linalg, recurrent
from neonlite.ops.functions import Shape, Strides
from neonlite.typing import FLOAT_DTYPES


def missing_gradient(*_: object, **__: object) -> NoReturn:
    """Raise NotImplementedError: the gradient rule of an op that has none."""
    raise NotImplementedError


def opened_instead(*_: object, **__: object) -> NoReturn:
    """Raise NotImplementedError: the forward function of a composite op, of which the formula is evaluated."""
    raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Op:
    """The definition of an op. Ops compare equal by identity only.

    The first seven columns define it. The others are options, with defaults that are right for most elementwise ops.

    Parameters
    ----------
    name : str
        The name in op-trees: ``{'op': 'sub'}``.
    run : callable
        The forward function ``run(xp, *operands, **attrs)``; none for a composite op.
    grad : callable or None
        The gradient rule ``grad(be, dz, z, *operands, **attrs)``; None for a gradient of zero.
    doc : str
        A short description of the result, for docstrings and docs/ops.md.
    names : str
        The backend method, ``be.subtract``, and its aliases: "subtract sub"; the op's name by default.
    arity : int, default 1
        The number of operands; -1 for any number.
    kind : {"elementwise", "reduction", "view", "library", "random", "structural", "composite"}
        How executors run it. A view shares the memory of its operand, a library op is called once on complete arrays
        instead of block by block, and a structural op computes nothing. A composite op is the op-tree of its formula.
    formula : callable or None
        ``formula(be, *operands, **attrs)`` returns the value as an op-tree, which gives the derivatives without a rule;
        for a composite op also shape and dtype. 16-bit floats are cast to float32, and the result back.
    fuse : callable or None
        For a composite op: ``fuse(be, *operands, **attrs)`` returns the op of a library that computes it, as an
        op-tree; None where there is none.
    is_estimator : bool, default False
        Whether the gradient rule of a composite op estimates a derivative that the formula does not have.
    shape_fn, strides_fn, flops_fn : callable or None
        The result's shape, from the operands' shapes and the attributes; the strides of a view,
        ``strides_fn(strides, x_shape, z_shape, **attrs)``; and the floating-point operations,
        ``flops_fn(z_shape, *operand_shapes)``. None: the shape and operations of the kind, and unknown strides.
    result_dtype : {"same", "float", "boolean", "sum", "index", "explicit"}
        The result's dtype. "same": that of the operands. "float": the same for floats, the default dtype for integers.
        "boolean": 0 or 1 in such a float dtype. "sum": that of the operands, but 64 bits for integers. "index": int64.
        "explicit": the attribute ``to``.
    promoted_operands : slice
        The operands that are cast to one dtype before the op runs; all by default.
    compute_dtypes : tuple of str, default ()
        The dtypes in which the op computes, if not all; operands of another one are refused with TypeError.
    integers_only : bool, default False
        Whether floats are refused with TypeError.
    may_raise, may_raise_on_integers : bool, default False
        Whether ``run`` checks values and may raise; or only if they are integers.
    has_method : bool, default True
        Whether the backend has a method of this name; not if only gradient rules and other methods build the op.
    order_signs : tuple of int, optional
        For a comparison, the signs of x - y for which the result is 1; for an op that selects an operand by comparison,
        those for which it is x. Plans then know the result for a scalar out of the range of an integer operand.
    symbol, neutral_attrs : str, dict of str to int
        For formulas: the infix operator, "+"; and attributes to omit if each of their numbers is the given one.
    sample_range : tuple of float
        The interval from which tests sample the operands.
    """

    name: str
    run: Callable[..., Any] = opened_instead
    grad: Callable[..., Any] | None = missing_gradient
    doc: str = ""
    names: str = ""
    arity: int = 1
    kind: str = "elementwise"
    formula: Callable[..., Any] | None = None
    fuse: Callable[..., Any] | None = None
    is_estimator: bool = False
    # the result's shape, cost and dtype
    shape_fn: Callable[..., Shape] | None = None
    strides_fn: Callable[..., Strides] | None = None
    flops_fn: Callable[..., int] | None = None
    result_dtype: str = "same"
    # which operands are cast, which are refused
    promoted_operands: slice = field(default_factory=lambda: slice(None))
    compute_dtypes: tuple[str, ...] = ()
    integers_only: bool = False
    may_raise: bool = False
    may_raise_on_integers: bool = False
    # for methods, plans, formulas and tests
    has_method: bool = True
    order_signs: tuple[int, ...] | None = None
    symbol: str = ""
    neutral_attrs: dict[str, int] = field(default_factory=dict)
    sample_range: tuple[float, float] = (-2.0, 2.0)
    method: str = field(init=False)  # the first of the names
    opens_to_differentiate: bool = field(init=False)  # whether the derivative is that of the formula

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", self.names or self.name)
        object.__setattr__(self, "method", self.names.split()[0])
        object.__setattr__(self, "opens_to_differentiate", self.formula is not None and self.grad is missing_gradient)

    @property
    def has_axis(self) -> bool:
        """Whether the op reduces the axes that its attribute ``axis`` lists."""
        return self.kind == "reduction" or self.shape_fn is functions.nonempty_reduction_shape

    def flops(self, z: Shape, *operands: Shape) -> int:
        """Return the floating-point operations for the shapes of the result and the operands."""
        rule = self.flops_fn or FLOPS_FN_BY_KIND.get(self.kind)
        return rule(z, *operands) if rule else 0

    def __repr__(self) -> str:
        return f"<op {self.name}: {self.doc}>"


# --- the table: its elementary rows ---

POSITIVE_RANGE = (0.3, 3.0)
REDUCTION: dict[str, Any] = {"kind": "reduction"}
NONEMPTY: dict[str, Any] = {"shape_fn": functions.nonempty_reduction_shape}
VIEW: dict[str, Any] = {"kind": "view", "promoted_operands": slice(0, 1)}
PRODUCT: dict[str, Any] = {"kind": "library", "flops_fn": functions.matmul_flops, "symbol": "@"}

# fmt: off
ELEMENTARY_OPS: tuple[Op, ...] = (
    Op("neg", lambda xp, x: -x,
       lambda be, dz, z, x: (-dz,), "-x", "negative neg"),
    Op("abs", lambda xp, x: xp.abs(x),
       lambda be, dz, z, x: (dz * be.sgn(x),), "|x|", "absolute abs fabs"),
    Op("sgn", lambda xp, x: xp.sign(x),
       None, "the sign of x: -1, 0 or 1", "sgn sign"),
    Op("sqr", lambda xp, x: x * x,
       lambda be, dz, z, x: (dz * (2 * x),), "x^2", "square"),
    Op("sqrt", lambda xp, x: xp.sqrt(x),
       lambda be, dz, z, x: (dz * 0.5 / z,), "x^(1/2)", result_dtype="float", sample_range=POSITIVE_RANGE),
    Op("exp", lambda xp, x: xp.exp(x),
       lambda be, dz, z, x: (dz * z,), "e^x", result_dtype="float"),
    Op("log", lambda xp, x: xp.log(x),
       lambda be, dz, z, x: (dz / x,), "ln x", result_dtype="float", sample_range=POSITIVE_RANGE),
    Op("sig", lambda xp, x: 1.0 / (1.0 + xp.exp(-x)),
       lambda be, dz, z, x: (dz * (z * (1 - z)),), "1 / (1 + e^-x)", "sig sigmoid expit", result_dtype="float"),
    Op("tanh", lambda xp, x: xp.tanh(x),
       lambda be, dz, z, x: (dz * (1 - z * z),), "the hyperbolic tangent of x", result_dtype="float"),
    Op("add", lambda xp, x, y: x + y,
       lambda be, dz, z, x, y: (dz, dz), "x + y", arity=2, symbol="+"),
    Op("sub", lambda xp, x, y: x - y,
       lambda be, dz, z, x, y: (dz, -dz), "x - y", "subtract sub", 2, symbol="-"),
    Op("mul", lambda xp, x, y: x * y,
       lambda be, dz, z, x, y: (dz * y, dz * x), "x * y", "multiply mul", 2, symbol="*"),
    Op("div", lambda xp, x, y: x / y,
       lambda be, dz, z, x, y: (dz / y, -(dz * z) / y), "x / y", "divide true_divide div", 2, result_dtype="float",
       sample_range=POSITIVE_RANGE, symbol="/"),
    Op("maximum", lambda xp, x, y: xp.maximum(x, y),
       lambda be, dz, z, x, y: functions.grad_maximum(be, dz, z, x, y), "the elementwise maximum of x and y", arity=2,
       order_signs=(1,)),
    Op("where", lambda xp, c, x, y: xp.where(c != 0, x, y),
       lambda be, dz, z, c, x, y: (None, be.where(c, dz, 0), be.where(c, 0, dz)),
       "x where c is not 0, else y", arity=3, promoted_operands=slice(1, None)),
    Op("sum", functions.run_sum,
       lambda be, dz, z, x, axis, keepdims=True: (be.reshape(dz, functions.reduction_shape(x.shape, axis=axis)),),
       "the sum of the elements (int64 for integers, except uint64)", result_dtype="sum", **REDUCTION),
    Op("max", lambda xp, x, axis, keepdims=True: xp.max(x, axis=axis, keepdims=keepdims),
       functions.grad_minmax_reduction, "the largest element", "max amax", **REDUCTION, **NONEMPTY),
    Op("dot", lambda xp, x, y: x @ y,
       lambda be, dz, z, x, y: (be.dot(dz, y.T), be.dot(x.T, dz)),
       "the matrix product of two matrices", arity=2, shape_fn=functions.dot_shape, **PRODUCT),
    Op("transpose", lambda xp, x, axes: xp.permute_dims(x, axes),
       functions.grad_transpose, "x with its axes permuted", "transpose permute_dims permute",
       shape_fn=functions.transpose_shape, strides_fn=functions.transpose_strides, **VIEW),
    Op("reshape", lambda xp, x, to: xp.reshape(x, to),
       lambda be, dz, z, x, to: (be.reshape(dz, x.shape),), "x reshaped",
       shape_fn=functions.reshape_shape, strides_fn=functions.reshape_strides, **VIEW),
    Op("broadcast", lambda xp, x, to: xp.broadcast_to(x, to),
       lambda be, dz, z, x, to: (dz,), "x broadcast to a shape", "broadcast_to",
       shape_fn=functions.broadcast_to_shape, strides_fn=functions.broadcast_strides, **VIEW),
)
# fmt: on


# --- how it is made fast, and the rest ---

SHAPE_FN_BY_KIND: dict[str, Callable[..., Shape]] = {
    "elementwise": functions.broadcast_shapes,
    "reduction": functions.reduction_shape,
}
FLOPS_FN_BY_KIND: dict[str, Callable[..., int]] = {
    "elementwise": functions.flops_per_result,
    "reduction": functions.flops_per_operand,
}

LN2, LN10 = math.log(2.0), math.log(10.0)
TWO_OVER_SQRT_PI = 2 / math.sqrt(math.pi)
SAFELOG_FLOOR = math.exp(-50.0)
INVERSE_RANGE = (-0.9, 0.9)  # of asin, acos and atanh
INTEGERS: dict[str, Any] = {"integers_only": True}
LIBRARY: dict[str, Any] = {"kind": "library"}
GATHER: dict[str, Any] = {"kind": "library", "promoted_operands": slice(0, 1), "may_raise": True}
MATRIX: dict[str, Any] = {"kind": "library", "result_dtype": "float", "compute_dtypes": ("float32", "float64")}
MATRIX |= {"may_raise": True}
COMPOSITE: dict[str, Any] = {"kind": "composite", "result_dtype": "float"}
QUANTIZED: dict[str, Any] = COMPOSITE | {"grad": composites.no_gradient_of_rounding, "has_method": False}
QUANTIZED |= {"promoted_operands": slice(0, 1)}
CONVOLUTION: dict[str, Any] = {"kind": "library", "result_dtype": "float"}
CONVOLUTION |= {"neutral_attrs": {"strides": 1, "padding": 0, "dilation": 1, "groups": 1}}
POOLING: dict[str, Any] = {"kind": "library", "neutral_attrs": {"strides": 1, "padding": 0, "ceil": 0, "mean": 0}}
NO_METHOD: dict[str, Any] = {"has_method": False}
ATTENTION: dict[str, Any] = {"kind": "library", "result_dtype": "float"} | NO_METHOD


RECURRENCE: dict[str, Any] = {"kind": "library", "result_dtype": "float", "neutral_attrs": {"reverse": 0}}


def run_formula(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward function of an op with a formula of arrays."""
    return partial(recurrent.run_formula, formula, lambda name: OPS[name].run)


def recurrent_ops(name: str, formula: Callable[..., Any], arity: int, doc: str) -> tuple[Op, Op]:
    """Return the rows of a recurrent cell over all time steps, and of its backward pass."""
    backward = partial(recurrent.backward, name)
    gradients = f"the gradients of the operands of {name}, one after another in a row"
    return (
        Op(name, run_formula(formula), partial(recurrent.grad_sequence, name),
           f"h of all steps of {doc}, over x (F, T N)", arity=arity, formula=formula,
           shape_fn=partial(recurrent.sequence_shape, name), flops_fn=recurrent.sequence_flops, **RECURRENCE),
        Op(f"{name}_backward", run_formula(backward), doc=gradients, arity=-1, formula=backward,
           shape_fn=partial(recurrent.backward_shape, name), flops_fn=partial(recurrent.backward_flops, name),
           **RECURRENCE, **NO_METHOD),
    )  # fmt: skip


# fmt: off
OP_TABLE: tuple[Op, ...] = (
    *ELEMENTARY_OPS,
    # --- unary ---
    Op("exp2", lambda xp, x: 2.0**x,
       lambda be, dz, z, x: (dz * (z * LN2),), "2^x", result_dtype="float"),
    Op("log2", lambda xp, x: xp.log2(x),
       lambda be, dz, z, x: (dz / (x * LN2),), "log2 x", result_dtype="float", sample_range=POSITIVE_RANGE),
    Op("log10", lambda xp, x: xp.log10(x),
       lambda be, dz, z, x: (dz / (x * LN10),), "log10 x", result_dtype="float", sample_range=POSITIVE_RANGE),
    Op("safelog", lambda xp, x: xp.maximum(xp.log(xp.maximum(x, 0.0)), -50.0),
       lambda be, dz, z, x: (dz * (above := be.greater(x, SAFELOG_FLOOR)) / be.where(above, x, 1),),
       "ln max(x, e^-50)", result_dtype="float", sample_range=POSITIVE_RANGE),
    Op("expm1", lambda xp, x: xp.expm1(x),
       lambda be, dz, z, x: (dz * (z + 1),), "e^x - 1", result_dtype="float"),
    Op("log1p", lambda xp, x: xp.log1p(x),
       lambda be, dz, z, x: (dz / (1 + x),), "ln(1 + x)", result_dtype="float", sample_range=(-0.5, 2.0)),
    Op("sin", lambda xp, x: xp.sin(x),
       lambda be, dz, z, x: (dz * be.cos(x),), "the sine of x", result_dtype="float"),
    Op("cos", lambda xp, x: xp.cos(x),
       lambda be, dz, z, x: (-(dz * be.sin(x)),), "the cosine of x", result_dtype="float"),
    Op("tan", lambda xp, x: xp.tan(x),
       lambda be, dz, z, x: (dz * (1 + z * z),), "the tangent of x", result_dtype="float", sample_range=(-1.2, 1.2)),
    Op("asin", lambda xp, x: xp.asin(x),
       lambda be, dz, z, x: (dz / be.sqrt(1 - x * x),), "the inverse sine of x", "asin arcsin", result_dtype="float",
       sample_range=INVERSE_RANGE),
    Op("acos", lambda xp, x: xp.acos(x),
       lambda be, dz, z, x: (-dz / be.sqrt(1 - x * x),), "the inverse cosine of x", "acos arccos", result_dtype="float",
       sample_range=INVERSE_RANGE),
    Op("atan", lambda xp, x: xp.atan(x),
       lambda be, dz, z, x: (dz / (1 + x * x),), "the inverse tangent of x", "atan arctan", result_dtype="float"),
    Op("sinh", lambda xp, x: xp.sinh(x),
       lambda be, dz, z, x: (dz * be.cosh(x),), "the hyperbolic sine of x", result_dtype="float"),
    Op("cosh", lambda xp, x: xp.cosh(x),
       lambda be, dz, z, x: (dz * be.sinh(x),), "the hyperbolic cosine of x", result_dtype="float"),
    Op("asinh", lambda xp, x: xp.asinh(x),
       lambda be, dz, z, x: (dz / be.sqrt(x * x + 1),), "the inverse hyperbolic sine of x", "asinh arcsinh",
       result_dtype="float"),
    Op("acosh", lambda xp, x: xp.acosh(x),
       lambda be, dz, z, x: (dz / be.sqrt(x * x - 1),), "the inverse hyperbolic cosine of x", "acosh arccosh",
       result_dtype="float",
       sample_range=(1.2, 3.0)),
    Op("atanh", lambda xp, x: xp.atanh(x),
       lambda be, dz, z, x: (dz / (1 - x * x),), "the inverse hyperbolic tangent of x", "atanh arctanh",
       result_dtype="float",
       sample_range=INVERSE_RANGE),
    Op("erf", functions.run_erf,
       lambda be, dz, z, x: (dz * (TWO_OVER_SQRT_PI * be.exp(-(x * x))),), "the error function of x",
       result_dtype="float"),
    Op("floor", lambda xp, x: xp.floor(x),
       None, "the largest integer <= x"),
    Op("ceil", lambda xp, x: xp.ceil(x),
       None, "the smallest integer >= x"),
    Op("trunc", lambda xp, x: xp.trunc(x),
       None, "x rounded toward zero"),
    Op("rint", lambda xp, x: xp.round(x),
       None, "x rounded to the nearest integer, ties to even"),
    Op("finite", lambda xp, x: xp.isfinite(x),
       None, "1 where x is finite, else 0", "finite isfinite", result_dtype="boolean"),
    Op("isnan", lambda xp, x: xp.isnan(x),
       None, "1 where x is NaN, else 0", result_dtype="boolean"),
    Op("isinf", lambda xp, x: xp.isinf(x),
       None, "1 where x is infinite, else 0", result_dtype="boolean"),
    Op("signbit", functions.run_signbit,
       None, "1 where the sign bit of x is set, also for -0.0, else 0", result_dtype="boolean"),
    Op("logical_not", lambda xp, x: x == 0,
       None, "1 where x is 0, else 0", result_dtype="boolean"),
    Op("bitwise_invert", lambda xp, x: xp.bitwise_invert(x),
       None, "the bits of x inverted", "bitwise_invert invert bitwise_not", **INTEGERS),
    Op("cast", lambda xp, x, to: xp.astype(x, getattr(xp, to, xp.float32), copy=False),  # bfloat16: rounded later
       lambda be, dz, z, x, to: (be.astype(dz, x.info.dtype) if to in FLOAT_DTYPES else None,),
       "x cast to another dtype", "astype", result_dtype="explicit", promoted_operands=slice(0),
       flops_fn=functions.no_flops),
    Op("stop_gradient", lambda xp, x: x,
       None, "x, with zero gradient", flops_fn=functions.no_flops),
    # --- binary ---
    Op("floor_divide", functions.run_floor_divide,
       None, "x / y rounded down; 0 for integers where y is 0", arity=2, sample_range=POSITIVE_RANGE, symbol="//"),
    Op("remainder", functions.run_remainder,
       lambda be, dz, z, x, y: (dz, -(dz * be.floor_divide(x, y))),
       "x - y floor(x / y), with the sign of y; 0 for integers where y is 0", "remainder mod", arity=2,
       sample_range=POSITIVE_RANGE,
       symbol="%"),
    Op("hypot", lambda xp, x, y: xp.hypot(x, y),
       functions.grad_hypot, "(x^2 + y^2)^(1/2), without overflow", arity=2,
       result_dtype="float", sample_range=POSITIVE_RANGE),
    Op("atan2", lambda xp, x, y: xp.atan2(x, y),
       functions.grad_atan2,
       "the angle of the point (y, x), from -pi to pi", "atan2 arctan2", arity=2, result_dtype="float",
       sample_range=POSITIVE_RANGE),
    Op("logaddexp", lambda xp, x, y: xp.logaddexp(x, y),
       functions.grad_logaddexp, "ln(e^x + e^y)", arity=2,
       result_dtype="float"),
    Op("copysign", lambda xp, x, y: xp.copysign(x, y),
       lambda be, dz, z, x, y: (dz * (be.sgn(z) * be.sgn(x)), None), "|x| with the sign of y", arity=2,
       result_dtype="float"),
    Op("nextafter", lambda xp, x, y: xp.nextafter(x, y),
       lambda be, dz, z, x, y: (dz, None), "the next representable number after x toward y", arity=2,
       result_dtype="float"),
    Op("pow", functions.run_pow,
       functions.grad_pow, "x^y", "power pow", 2, sample_range=POSITIVE_RANGE, may_raise_on_integers=True, symbol="**"),
    Op("minimum", lambda xp, x, y: xp.minimum(x, y),
       lambda be, dz, z, x, y: functions.grad_maximum(be, dz, z, y, x), "the elementwise minimum of x and y", arity=2,
       order_signs=(-1,)),
    Op("shift", functions.run_shift,
       lambda be, dz, z, x, y, value: (be.shift(dz, y, value), None),
       "x times the power of two nearest to y; x * 2^y if value is False", arity=2, result_dtype="float"),
    Op("eq", lambda xp, x, y: x == y,
       None, "1 where x equals y, else 0", "equal", 2, result_dtype="boolean", order_signs=(), symbol="=="),
    Op("ne", lambda xp, x, y: x != y,
       None, "1 where x differs from y, else 0", "not_equal", 2, result_dtype="boolean", order_signs=(-1, 1),
       symbol="!="),
    Op("lt", lambda xp, x, y: x < y,
       None, "1 where x < y, else 0", "less", 2, result_dtype="boolean", order_signs=(-1,), symbol="<"),
    Op("le", lambda xp, x, y: x <= y,
       None, "1 where x <= y, else 0", "less_equal", 2, result_dtype="boolean", order_signs=(-1,), symbol="<="),
    Op("gt", lambda xp, x, y: x > y,
       None, "1 where x > y, else 0", "greater", 2, result_dtype="boolean", order_signs=(1,), symbol=">"),
    Op("ge", lambda xp, x, y: x >= y,
       None, "1 where x >= y, else 0", "greater_equal", 2, result_dtype="boolean", order_signs=(1,), symbol=">="),
    Op("logical_and", lambda xp, x, y: (x != 0) & (y != 0),
       None, "1 where x and y are not 0, else 0", arity=2, result_dtype="boolean"),
    Op("logical_or", lambda xp, x, y: (x != 0) | (y != 0),
       None, "1 where x or y is not 0, else 0", arity=2, result_dtype="boolean"),
    Op("logical_xor", lambda xp, x, y: (x != 0) ^ (y != 0),
       None, "1 where exactly one of x and y is not 0, else 0", arity=2, result_dtype="boolean"),
    Op("bitwise_and", lambda xp, x, y: xp.bitwise_and(x, y),
       None, "the bitwise AND of x and y", arity=2, symbol="&", **INTEGERS),
    Op("bitwise_or", lambda xp, x, y: xp.bitwise_or(x, y),
       None, "the bitwise OR of x and y", arity=2, symbol="|", **INTEGERS),
    Op("bitwise_xor", lambda xp, x, y: xp.bitwise_xor(x, y),
       None, "the bitwise XOR of x and y", arity=2, symbol="^", **INTEGERS),
    Op("bitwise_left_shift", lambda xp, x, y: xp.bitwise_left_shift(x, y),
       None, "x shifted left by y >= 0 bits", "bitwise_left_shift left_shift", arity=2, symbol="<<",
       sample_range=POSITIVE_RANGE, **INTEGERS),
    Op("bitwise_right_shift", lambda xp, x, y: xp.bitwise_right_shift(x, y),
       None, "x shifted right by y >= 0 bits", "bitwise_right_shift right_shift", arity=2, symbol=">>",
       sample_range=POSITIVE_RANGE, **INTEGERS),
    # --- reductions, over one axis, several or all ---
    Op("min", lambda xp, x, axis, keepdims=True: xp.min(x, axis=axis, keepdims=keepdims),
       functions.grad_minmax_reduction, "the smallest element", "min amin", **REDUCTION, **NONEMPTY),
    Op("prod", functions.run_prod,
       functions.grad_prod, "the product of the elements (int64 for integers, except uint64)",
       result_dtype="sum", **REDUCTION),
    Op("argmax", lambda xp, x, axis, keepdims=True: functions.run_arg_reduction(xp.argmax, xp, x, axis),
       None, "the index (int64) of the largest element, by default of each row, the first one on ties",
       result_dtype="index", flops_fn=functions.flops_per_operand, **LIBRARY, **NONEMPTY),
    Op("argmin", lambda xp, x, axis, keepdims=True: functions.run_arg_reduction(xp.argmin, xp, x, axis),
       None, "the index (int64) of the smallest element, by default of each row, the first one on ties",
       result_dtype="index", flops_fn=functions.flops_per_operand, **LIBRARY, **NONEMPTY),
    # --- products ---
    Op("matmul", lambda xp, x, y: x @ y,
       lambda be, dz, z, x, y: (dz @ y.T, x.T @ dz),
       "the matrix products of two batches of matrices", arity=2, shape_fn=functions.matmul_shape, **PRODUCT),
    # --- views ---
    Op("slice", lambda xp, x, index: x[functions.to_slices(index)],
       lambda be, dz, z, x, index: (be.build("slice_backward", dz, index=index, to=x.shape),),
       "a strided slice of x: (start, count, step) for each axis",
       shape_fn=functions.slice_shape, strides_fn=functions.slice_strides, **VIEW, **NO_METHOD),
    Op("after", lambda xp, x, y=None: x,
       lambda be, dz, z, x, y: (dz, None), "x; what is computed from it is computed after y", arity=2,
       shape_fn=functions.first_shape, strides_fn=lambda strides, x, z: strides, **VIEW, **NO_METHOD),
    # --- slices and indices ---
    Op("slice_backward", functions.run_slice_backward,
       lambda be, dz, z, x, index, to: (be.build("slice", dz, index=index),),
       "zeros with x written into a strided slice: the gradient of slice", shape_fn=functions.explicit_shape, **LIBRARY,
       **NO_METHOD),
    Op("concat", lambda xp, *parts, axis: xp.concat(parts, axis=axis),
       functions.grad_concat, "the operands concatenated along an axis", "concat concatenate cat", arity=-1,
       shape_fn=functions.concat_shape,
       **LIBRARY),
    Op("take", functions.run_take,
       lambda be, dz, z, x, indices, axis: (be.build("scatter_add", dz, indices, axis=axis, size=x.shape[axis]), None),
       "the slices of x at the given indices along an axis", arity=2, shape_fn=functions.take_shape, **GATHER),
    Op("scatter_add", functions.run_scatter_add,
       lambda be, dz, z, x, indices, axis, size: (be.take(dz, indices, axis), None),
       "zeros with the slices of x added at the given indices: the gradient of take",
       arity=2, shape_fn=functions.scatter_add_shape, flops_fn=functions.flops_per_operand, **GATHER, **NO_METHOD),
    Op("onehot", functions.run_onehot,
       None, "1 in the row (axis 0) or the column (axis 1) of each label, else 0",
       shape_fn=functions.onehot_shape, result_dtype="boolean", **GATHER),
    # --- order, and cumulative ops, along an axis ---
    Op("cumulative_sum", functions.run_cumulative_sum,
       lambda be, dz, z, x, axis, reverse=False: (be.cumulative_sum(dz, axis, not reverse),),
       "the sums of the elements up to each one along an axis, or from each one on (int64 for integers, except uint64)",
       shape_fn=functions.broadcast_shapes, result_dtype="sum", **LIBRARY),
    Op("cumulative_prod", functions.run_cumulative_prod,
       functions.grad_cumulative_prod,
       "the products of the elements up to each one along an axis (int64 for integers, except uint64)",
       shape_fn=functions.broadcast_shapes, result_dtype="sum", **LIBRARY),
    Op("sort", functions.run_sort,
       functions.grad_sort, "the elements in order along an axis", shape_fn=functions.broadcast_shapes, **LIBRARY),
    Op("argsort", functions.run_argsort,
       None, "the indices (int64) that sort x along an axis, with equal elements in their order",
       shape_fn=functions.broadcast_shapes, result_dtype="index", **LIBRARY),
    Op("searchsorted", functions.run_searchsorted,
       None, "the index (int64) in the sorted vector x at which each value is inserted to keep the order", arity=2,
       shape_fn=functions.searchsorted_shape, result_dtype="index", **LIBRARY),
    Op("take_along_axis", functions.run_take_along_axis,
       functions.grad_take_along_axis, "the elements of x at the given indices along an axis", arity=2,
       shape_fn=functions.take_along_axis_shape, **GATHER),
    Op("scatter_add_along_axis", functions.run_scatter_add_along_axis,
       functions.grad_scatter_add_along_axis,
       "zeros with the elements of x added at the given indices along an axis: the gradient of take_along_axis",
       arity=2, shape_fn=functions.scatter_add_along_axis_shape, flops_fn=functions.flops_per_operand,
       **GATHER, **NO_METHOD),
    # --- composite: op-trees with a name ---
    Op("softmax", grad=composites.grad_softmax, formula=composites.softmax,
       doc="e^x / sum(e^x) along an axis, without overflow", **COMPOSITE),
    Op("log_softmax", grad=composites.grad_log_softmax, formula=composites.log_softmax,
       doc="x - ln sum(e^x) along an axis, without overflow", **COMPOSITE),
    Op("masked_softmax", grad=composites.grad_masked_softmax, formula=composites.masked_softmax, arity=2,
       doc="the softmax along an axis over the elements where the mask is not 0; zeros if it is 0 everywhere",
       promoted_operands=slice(0, 1), **COMPOSITE),
    Op("logsumexp", formula=composites.logsumexp,
       doc="ln sum(e^x) along an axis, without overflow; -inf where all elements are -inf", **COMPOSITE),
    Op("cross_entropy", formula=composites.cross_entropy, arity=2,
       doc="the mean cross-entropy of the softmax of x with the probabilities t: -mean(sum(t log_softmax(x)))",
       **COMPOSITE),
    Op("silu", grad=composites.grad_silu, formula=composites.silu, doc="x / (1 + e^-x)", **COMPOSITE),
    Op("gelu", grad=composites.grad_gelu, formula=composites.gelu,
       doc="x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))", **COMPOSITE),
    Op("leaky_relu", formula=composites.leaky_relu, doc="max(x, 0) + slope min(x, 0)", **COMPOSITE),
    Op("elu", formula=composites.elu, doc="max(x, 0) + alpha (e^min(x, 0) - 1)", **COMPOSITE),
    Op("softplus", formula=lambda be, x: be.logaddexp(x, 0), doc="ln(1 + e^x)", **COMPOSITE),
    Op("normalize", grad=composites.grad_normalize, formula=composites.normalize,
       doc="(x - mean) / sqrt(variance + eps) along an axis", **COMPOSITE),
    Op("layer_norm", formula=composites.layer_norm, arity=-1,
       doc="(x - mean) / sqrt(variance + eps) gamma + beta along an axis", **COMPOSITE),
    Op("rms_norm", formula=composites.rms_norm, arity=-1,
       doc="x / sqrt(mean(x^2) + eps) gamma along an axis", **COMPOSITE),
    Op("batch_norm", grad=composites.grad_batch_norm, formula=composites.batch_norm, arity=-1,
       doc="images (C, H, W, N), each channel normalized over the pixels and samples of the minibatch", **COMPOSITE),
    Op("shift_batch_norm", grad=composites.grad_shift_batch_norm, formula=composites.shift_batch_norm, arity=-1,
       doc="batch_norm by products with powers of two", is_estimator=True, **COMPOSITE),
    Op("group_norm", formula=composites.group_norm, arity=-1,
       doc="images (C, H, W, N), each group of channels of each sample normalized", **COMPOSITE),
    Op("instance_norm", formula=lambda be, x, gamma=None, beta=None, *, eps=1e-5:
       composites.group_norm(be, x, gamma, beta, groups=max(1, x.shape[0]), eps=eps), arity=-1,
       doc="images (C, H, W, N), each channel of each sample normalized", **COMPOSITE),
    Op("attention", formula=composites.attention, arity=-1,
       doc="scaled dot-product attention, softmax(q k^T / sqrt(d)) v", promoted_operands=slice(0, 3),
       fuse=composites.fuse_attention, **COMPOSITE),
    Op("quantized_dot", formula=composites.quantized_dot, arity=-1,
       doc="W x of weights of int8 or bfloat16, and x rounded to it", **QUANTIZED),
    Op("quantized_conv", formula=composites.quantized_conv, arity=-1,
       doc="conv of images rounded to int8 or bfloat16, and filters of it", **QUANTIZED),
    # --- images (C, *sizes, N) ---
    Op("conv", images.run_convolution,
       images.grad_convolution, "the correlation of images (C, H, W, N) with filters (C, R, S, K)", arity=2,
       shape_fn=images.convolution_shape, flops_fn=images.convolution_flops, **CONVOLUTION),
    Op("conv_backward", images.run_convolution_backward,
       images.grad_convolution_backward, "the gradient of conv with respect to the images", arity=2,
       shape_fn=functions.explicit_shape, flops_fn=images.convolution_backward_flops, **CONVOLUTION, **NO_METHOD),
    Op("conv_update", images.run_convolution_update,
       images.grad_convolution_update, "the gradient of conv with respect to the filters", arity=2,
       shape_fn=functions.explicit_shape, flops_fn=images.convolution_update_flops, **CONVOLUTION, **NO_METHOD),
    Op("max_pool", images.run_max_pool,
       images.grad_max_pool, "the largest pixel of each window", shape_fn=images.pooling_shape,
       flops_fn=functions.flops_per_operand, **POOLING, **NO_METHOD),
    Op("max_pool_indices", images.run_max_pool_indices,
       None, "the position in each window of its first largest pixel", shape_fn=images.pooling_shape,
       result_dtype="explicit", promoted_operands=slice(0), **POOLING, **NO_METHOD),
    Op("max_pool_take", images.run_max_pool_take,
       lambda be, dz, z, x, y, **options: (be.build("max_unpool", dz, y, to=x.shape, **options), None),
       "the pixel at a position in each window", arity=2, shape_fn=images.max_pool_take_shape,
       promoted_operands=slice(0, 1), **POOLING, **NO_METHOD),
    Op("max_unpool", images.run_max_unpool,
       lambda be, dz, z, x, y, to, **options: (be.build("max_pool_take", dz, y, **options), None),
       "zeros with x added at a position in each window: the gradient of max_pool", arity=2,
       shape_fn=functions.explicit_shape, promoted_operands=slice(0, 1), flops_fn=functions.flops_per_operand,
       **POOLING, **NO_METHOD),
    Op("roi_pool_indices", images.run_roi_pool_indices,
       None, "the index of the largest pixel of each bin of regions (5, R), -1 for a bin without pixels", arity=2,
       shape_fn=images.roi_pool_indices_shape, result_dtype="index", flops_fn=functions.flops_per_operand,
       promoted_operands=slice(0), may_raise=True, **LIBRARY, **NO_METHOD),
    Op("sum_pool", images.run_sum_pool,
       lambda be, dz, z, x, **options: (be.build("sum_unpool", dz, to=x.shape, **options),),
       "the sum or the mean of each window", result_dtype="float", shape_fn=images.pooling_shape,
       flops_fn=functions.flops_per_operand, **POOLING, **NO_METHOD),
    Op("sum_unpool", images.run_sum_unpool,
       lambda be, dz, z, x, to, **options: (be.build("sum_pool", dz, **options),),
       "zeros with x added to each pixel of a window: the gradient of sum_pool", result_dtype="float",
       shape_fn=functions.explicit_shape, flops_fn=functions.flops_per_operand, **POOLING, **NO_METHOD),
    # --- recurrence over time: sequences (F, T N) ---
    *recurrent_ops("rnn", recurrent.rnn, 5, "a simple recurrent layer"),
    *recurrent_ops("lstm", recurrent.lstm, 6, "an LSTM"),
    Op("lstm_state", run_formula(recurrent.final_cell_state), recurrent.grad_state,
       "c after the last step of lstm, of its result and its operands", arity=-1,
       formula=recurrent.final_cell_state, shape_fn=recurrent.state_shape, flops_fn=functions.no_flops,
       **RECURRENCE, **NO_METHOD),
    *recurrent_ops("gru", recurrent.gru, 5, "a GRU"),
    # --- attention that a library computes, of q, k and v, or of x (T, N, 3, heads, d) ---
    Op("fused_attention", run_formula(composites.fused_attention), composites.grad_fused_attention,
       "softmax(q k^T / sqrt(d)) v of all heads", formula=composites.fused_attention, arity=-1,
       shape_fn=composites.attention_shape, flops_fn=composites.attention_flops, **ATTENTION),
    Op("attention_stats", run_formula(composites.attention_stats), doc="ln sum(e^(q k^T / sqrt(d))) of each query",
       formula=composites.attention_stats, arity=-1, shape_fn=composites.attention_stats_shape,
       **ATTENTION | {"result_dtype": "explicit", "promoted_operands": slice(0)}),
    Op("fused_attention_backward", run_formula(composites.fused_attention_backward), arity=-1,
       doc="the gradient of an operand of fused_attention, from its error, result, operands and stats",
       formula=composites.fused_attention_backward, shape_fn=composites.attention_backward_shape,
       flops_fn=composites.attention_backward_flops, **ATTENTION | {"promoted_operands": slice(0, -1)}),
    # --- linear algebra: matrices on the last two axes ---
    Op("tril", lambda xp, x, *, k=0: xp.tril(x, k=k),
       lambda be, dz, z, x, k=0: (be.tril(dz, k),), "x with 0 above diagonal k of its matrices",
       shape_fn=functions.broadcast_shapes, **LIBRARY),
    Op("triu", lambda xp, x, *, k=0: xp.triu(x, k=k),
       lambda be, dz, z, x, k=0: (be.triu(dz, k),), "x with 0 below diagonal k of its matrices",
       shape_fn=functions.broadcast_shapes, **LIBRARY),
    Op("cholesky", linalg.run_cholesky,
       linalg.grad_cholesky,
       "the triangular factor L of positive definite matrices, L L^T = (x + x^T) / 2; L^T if upper",
       shape_fn=linalg.square_shape, **MATRIX),
    Op("solve", linalg.run_solve,
       linalg.grad_solve, "the solution z of the linear systems x z = y", arity=2,
       shape_fn=linalg.solve_shape, **MATRIX),
    Op("inv", linalg.run_inv,
       linalg.grad_inv, "the inverse of square matrices", shape_fn=linalg.square_shape, **MATRIX),
    Op("det", lambda xp, x: xp.linalg.det(x),
       lambda be, dz, z, x: (dz * be.cofactors(x),), "the determinant of square matrices, of shape (..., 1, 1)",
       shape_fn=linalg.determinant_shape, **MATRIX),
    Op("cofactors", linalg.run_cofactors,
       lambda be, dz, z, x: (be.build("cofactors_backward", dz, x),),
       "the cofactors of square matrices: the gradient of det, det(x) x^-T for invertible matrices",
       shape_fn=linalg.square_shape, **MATRIX),
    Op("cofactors_backward", linalg.run_cofactors_backward,
       linalg.grad_cofactors_backward, "the gradient of cofactors", arity=2,
       shape_fn=linalg.cofactors_backward_shape, **MATRIX, **NO_METHOD),
    Op("pinv", linalg.run_pinv,
       linalg.grad_pinv,
       "the pseudo-inverse of x; singular values up to y times the largest one count as 0", arity=2,
       shape_fn=linalg.pinv_shape, **MATRIX),
    Op("slogdet_sign", lambda xp, x: xp.linalg.slogdet(x)[0],
       None, "the sign of the determinant of square matrices, of shape (..., 1, 1)",
       shape_fn=linalg.determinant_shape, **MATRIX),
    Op("slogdet_logabsdet", lambda xp, x: xp.linalg.slogdet(x)[1],
       lambda be, dz, z, x: (dz * be.inv(x).T,), "ln |det x| of square matrices, of shape (..., 1, 1)",
       shape_fn=linalg.determinant_shape, **MATRIX),
    Op("qr_q", lambda xp, x, *, mode="reduced": linalg.run_qr(xp, x, mode, 0),
       linalg.grad_qr_q, "q of the QR decomposition x = q r: orthonormal columns",
       shape_fn=linalg.left_factor_shape, **MATRIX),
    Op("qr_r", lambda xp, x, *, mode="reduced": linalg.run_qr(xp, x, mode, 1),
       linalg.grad_qr_r, "r of the QR decomposition x = q r: upper triangular matrices",
       shape_fn=linalg.qr_r_shape, **MATRIX),
    Op("svd_u", lambda xp, x, *, full_matrices=False: linalg.run_svd(xp, x, full_matrices, 0),
       linalg.grad_svd_u, "u of the singular value decomposition x = u diag(s) vh: the left singular vectors",
       shape_fn=linalg.left_factor_shape, **MATRIX),
    Op("svd_s", lambda xp, x: linalg.run_svd(xp, x, False, 1),
       linalg.grad_svd_s, "the singular values of x in descending order, as rows",
       shape_fn=linalg.svd_s_shape, **MATRIX),
    Op("svd_vh", lambda xp, x, *, full_matrices=False: linalg.run_svd(xp, x, full_matrices, 2),
       linalg.grad_svd_vh,
       "vh of the singular value decomposition x = u diag(s) vh: the right singular vectors, as rows",
       shape_fn=linalg.svd_vh_shape, **MATRIX),
    Op("eigh_values", lambda xp, x: linalg.run_eigh(xp, x, 0),
       linalg.grad_eigh_values, "the eigenvalues of (x + x^T) / 2 in ascending order, as rows",
       shape_fn=linalg.eigenvalues_shape, **MATRIX),
    Op("eigh_vectors", lambda xp, x: linalg.run_eigh(xp, x, 1),
       linalg.grad_eigh_vectors, "the eigenvectors of (x + x^T) / 2, as columns",
       shape_fn=linalg.square_shape, **MATRIX),
    # --- random: the operand is a RandomSource, so that two nodes are two independent samples ---
    Op("rand", lambda xp, source, to: source.uniform(to),
       None, "random numbers from the uniform distribution on [0, 1)", kind="random",
       shape_fn=functions.explicit_shape),
    Op("randn", lambda xp, source, to: source.normal(to),
       None, "random numbers from the standard normal distribution",
       kind="random", shape_fn=functions.explicit_shape),
    Op("random_mask", lambda xp, source, to, keep: source.mask(to, keep),
       None, "ones with the probability keep, and zeros", kind="random", shape_fn=functions.explicit_shape),
    Op("random_words", lambda xp, source, to: source.words(to),
       None, "random words of 64 bits, as signed integers", kind="random", shape_fn=functions.explicit_shape,
       result_dtype="index", **NO_METHOD),
    # --- structural ---
    Op("assign", lambda xp, x, y: y,
       missing_gradient, "y, written to the tensor x", arity=2, kind="structural", promoted_operands=slice(0, 1)),
    Op("pair", lambda xp, *xs: xs,
       missing_gradient, "a pair of operands, for ops with more than two", arity=-1, kind="structural"),
)
# fmt: on

OPS: dict[str, Op] = {op.name: op for op in OP_TABLE}

# {name: the other names of the function}: of the backend's methods, and the functions of ``neonlite.array_api``
SYNONYMS = {
    name: [x for x in names.split() if x != name]
    for names in (*(op.names for op in OP_TABLE), "asarray array tensor", "round around")
    for name in names.split()
}
