"""Elementwise functions: each is an op of the op table, so that expressions of them are fused and differentiated."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

from neonlite.array_api.array import BOOL, DTYPE_OF_NAME, Array, as_boolean, as_dtype, new_array, result, same
from neonlite.array_api.data_types import as_array, check_array, convert, promote, promote_scalar, to_dtype
from neonlite.backend.validation import checks_names
from neonlite.messages import describe
from neonlite.ops import OP_TABLE, OPS, Op
from neonlite.ops.functions import broadcast_shapes
from neonlite.optree import create_node

OPS_BY_NAME = {name: op for op in OP_TABLE for name in op.names.split()} | {"round": OPS["rint"]}
FLOAT, REAL, INTEGER, ANY = "f", "iuf", "iu", "biuf"  # the kinds of dtypes that a function accepts
KIND_NAMES = {FLOAT: "floating-point", REAL: "numeric", INTEGER: "integer", "b": "boolean", "biu": "integer or boolean"}
P = ParamSpec("P")
SCALARS = (bool, int, float)
NUMBERS = (float, int)
UINT64, FLOAT64 = DTYPE_OF_NAME["uint64"], DTYPE_OF_NAME["float64"]


# --- functions from ops ---


def kinds_of(op: Op) -> str:
    """Return the kinds of dtypes that an op of the table accepts in the standard."""
    return INTEGER if op.integers_only else FLOAT if op.result_dtype == "float" else REAL


def unary(name: str, kinds: str = "", boolean: str = "") -> Callable[[Array], Array]:
    """Return the elementwise function of one array that computes an op.

    Parameters
    ----------
    name : str
        The name in the standard, one of those of the op.
    kinds : str
        The kinds of dtypes that it accepts; default those of the op.
    boolean : str
        The backend method for boolean arrays; default the same.
    """
    op = OPS_BY_NAME[name]
    kinds, returns_bool = kinds or kinds_of(op), op.result_dtype == "boolean"
    op_of_bools = OPS_BY_NAME[boolean] if boolean else op

    def function(x: Array, /) -> Array:
        if type(x) is not Array:
            x = check_array(name, x)
        if x._dtype.kind not in kinds:
            x = check_kind(name, kinds, x)
        is_bool = x._dtype is BOOL
        node = create_node(op_of_bools if is_bool else op, x.operand)
        dtype = BOOL if returns_bool or (is_bool and boolean) else DTYPE_OF_NAME[node.info.dtype]
        return new_array(as_boolean(node) if dtype is BOOL else node, x._shape, dtype, x.is_live, x.num_ops + 1)

    return described(function, name, op)


def binary(name: str, kinds: str = "", boolean: str = "") -> Callable[[Array | float, Array | float], Array]:
    """Return the elementwise function of two arrays, or an array and a Python number, that computes an op.

    Parameters
    ----------
    name, kinds, boolean
        As for ``unary``.
    """
    op = OPS_BY_NAME[name]
    kinds, returns_bool = kinds or kinds_of(op), op.result_dtype == "boolean"
    op_of_bools = OPS_BY_NAME[boolean] if boolean else op
    compares = returns_bool and op.order_signs is not None

    def function(x1: Array | float, x2: Array | float, /) -> Array:
        a: Any
        b: Any
        if type(x1) is Array and type(x2) in NUMBERS and x1._dtype.kind == "f" and "f" in kinds:  # the usual case
            a, b = x1, float(x2)
        else:
            if compares:
                x1, x2 = as_operands(name, x1, x2)
                if type(x1) is type(x2) is Array and x1._dtype is not x2._dtype and UINT64 in (x1._dtype, x2._dtype):
                    signed = x1 if x1._dtype.kind == "i" else x2
                    if signed._dtype.kind == "i":
                        is_true = (-1 if signed is x1 else 1) in (op.order_signs or ())
                        return compare_with_uint64(function, x1, x2, is_true)
            a, b = promoted(name, kinds, x1, x2, op.order_signs is None, compares)
        if type(a) is type(b) is Array and a._shape != b._shape:
            check_broadcast(name, a, b)
        if type(a) is not Array:
            is_bool, ndim, is_live, num_ops = b._dtype is BOOL, len(b._shape), b.is_live, b.num_ops
            node = create_node(op_of_bools if is_bool else op, a, b.operand)
        elif type(b) is not Array:
            is_bool, ndim, is_live, num_ops = a._dtype is BOOL, len(a._shape), a.is_live, a.num_ops
            node = create_node(op_of_bools if is_bool else op, a.operand, b)
        else:
            is_bool, ndim = a._dtype is BOOL, max(len(a._shape), len(b._shape))
            is_live, num_ops = a.is_live | b.is_live, a.num_ops + b.num_ops
            node = create_node(op_of_bools if is_bool else op, a.operand, b.operand)
        shape = node.info.shape
        if len(shape) != ndim:
            shape = shape[len(shape) - ndim :]
        dtype = BOOL if returns_bool or (is_bool and boolean) else DTYPE_OF_NAME[node.info.dtype]
        return new_array(as_boolean(node) if dtype is BOOL else node, shape, dtype, is_live, num_ops + 1)

    return described(function, name, op)


def described(function: Callable[P, Array], name: str, op: Op) -> Callable[P, Array]:
    """Return a function with its name, and a docstring from the op table."""
    parameters = ", ".join(inspect.signature(function).parameters)
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""Return {op.doc}, elementwise.

Parameters
----------
{parameters} : Array{" or number, at least one array" if "," in parameters else ""}
    The operand{"s, which broadcast" if "," in parameters else ""}.

Returns
-------
Array
    The result, not evaluated yet.
"""
    return function


def as_operands(name: str, x1: Any, x2: Any) -> tuple[Any, Any]:
    """Return two arguments as arrays, or as an array and a Python number; NumPy's scalars count as Python's."""
    if type(x1) is not Array:
        x1, x2 = (x.item() if isinstance(x, np.generic) else x for x in (x1, x2))
        if type(x1) in SCALARS and (type(x2) is Array or type(x2) not in SCALARS):
            return x1, check_array(name, x2)
        x1 = as_array(x1, x2) if type(x2) is Array else check_array(name, x1)
    if type(x2) is not Array:
        x2 = x2.item() if isinstance(x2, np.generic) else x2
        x2 = x2 if type(x2) in SCALARS else as_array(x2, x1)
    return x1, x2


def promoted(
    name: str, kinds: str, x1: Any, x2: Any, checks_range: bool = True, compares: bool = False
) -> tuple[Any, Any]:
    """Return two arguments in their common dtype: arrays, or an array and a Python number.

    Integers are compared with floats in NumPy's common dtype, float64 for most, as the result has no floating dtype.
    """
    x1, x2 = as_operands(name, x1, x2)
    if type(x1) is not Array:
        x2, x1 = with_scalar(name, kinds, x2, x1, checks_range, compares)
        return x1, x2
    if type(x2) is not Array:
        return with_scalar(name, kinds, x1, x2, checks_range, compares)
    if x1._dtype is not x2._dtype:
        dtype = as_dtype(np.promote_types(x1._dtype, x2._dtype)) if compares else promote(x1._dtype, x2._dtype)
        x1, x2 = to_dtype(x1, dtype), to_dtype(x2, dtype)
    if x1._dtype.kind not in kinds:
        x1, x2 = check_kind(name, kinds, x1), check_kind(name, kinds, x2)
    return x1, x2


def compare_with_uint64(compare: Callable[..., Array], x1: Array, x2: Array, is_true: bool) -> Array:
    """Compare an array of uint64 with one of signed integers exactly; ``is_true``: the result for negative ones."""
    signed = x1 if x1._dtype.kind == "i" else x2
    z = compare(*(to_dtype(maximum(x, 0), UINT64) if x is signed else x for x in (x1, x2)))
    return select(less(signed, 0), is_true, z)


def with_scalar(name: str, kinds: str, x: Array, scalar: Any, checks_range: bool, compares: bool) -> tuple[Array, Any]:
    """Return an array and a Python number in their common dtype."""
    kind = x._dtype.kind
    if kind == "f" and "f" in kinds:
        return x, float(scalar)
    if kind in "iu" and type(scalar) is int and checks_range:
        limits = np.iinfo(x.dtype)
        if not limits.min <= scalar <= limits.max:
            raise OverflowError(
                f"{name}: expected an integer from {limits.min} to {limits.max} for {x.dtype.name}, got {scalar}"
            )
    x = to_dtype(x, FLOAT64 if compares and type(scalar) is float else promote_scalar(x.dtype, scalar, x.backend))
    if x._dtype.kind not in kinds:
        x = check_kind(name, kinds, x)
    return x, float(scalar) if x._dtype.kind == "f" else scalar


def check_broadcast(name: str, x: Array, y: Array) -> None:
    """Raise ValueError unless the shapes of two arrays broadcast."""
    try:
        broadcast_shapes(x.shape, y.shape)
    except ValueError:
        raise ValueError(f"{name}: expected shapes that broadcast, got {describe(x)} and {describe(y)}") from None


def check_kind(name: str, kinds: str, x: Array) -> Array:
    """Return an argument of an accepted kind: integers become floats where floats are expected, as in NumPy."""
    if "f" in kinds and (x.dtype.kind in "iu" or (x.dtype == BOOL and kinds == FLOAT)):
        return to_dtype(x, np.dtype(x.backend.default_dtype_name))
    if x.dtype == BOOL and "i" in kinds:
        hint = "Cast it with astype(x, int64), or use logical_not, logical_and or logical_or."
    else:
        hint = "Cast it with astype."
    raise TypeError(f"{name}: expected an array of a {KIND_NAMES[kinds]} dtype, got {describe(x)}. {hint}")


abs = unary("abs")
acos = unary("acos")
acosh = unary("acosh")
add = binary("add")
asin = unary("asin")
asinh = unary("asinh")
atan = unary("atan")
atan2 = binary("atan2")
atanh = unary("atanh")
bitwise_and = binary("bitwise_and", "biu", boolean="bitwise_and")
bitwise_invert = unary("bitwise_invert", "biu", boolean="logical_not")
bitwise_left_shift = binary("bitwise_left_shift")
bitwise_or = binary("bitwise_or", "biu", boolean="bitwise_or")
bitwise_right_shift = binary("bitwise_right_shift")
bitwise_xor = binary("bitwise_xor", "biu", boolean="bitwise_xor")
ceil = unary("ceil")
copysign = binary("copysign")
cos = unary("cos")
cosh = unary("cosh")
divide = binary("divide")
equal = binary("equal", ANY)
erf = unary("erf")
exp = unary("exp")
expm1 = unary("expm1")
floor = unary("floor")
greater = binary("greater")
greater_equal = binary("greater_equal")
hypot = binary("hypot")
isfinite = unary("isfinite")
isinf = unary("isinf")
isnan = unary("isnan")
less = binary("less")
less_equal = binary("less_equal")
log = unary("log")
log10 = unary("log10")
log1p = unary("log1p")
log2 = unary("log2")
logaddexp = binary("logaddexp")
logical_and = binary("logical_and", ANY, boolean="bitwise_and")
logical_not = unary("logical_not", ANY)
logical_or = binary("logical_or", ANY, boolean="bitwise_or")
logical_xor = binary("logical_xor", ANY, boolean="bitwise_xor")
maximum = binary("maximum")
minimum = binary("minimum")
multiply = binary("multiply")
negative = unary("negative")
nextafter = binary("nextafter")
not_equal = binary("not_equal", ANY)
pow = binary("pow")
remainder = binary("remainder")
round = unary("round")
sign = unary("sign")
signbit = unary("signbit", FLOAT)
sin = unary("sin")
sinh = unary("sinh")
sqrt = unary("sqrt")
square = unary("square")
subtract = binary("subtract")
tan = unary("tan")
tanh = unary("tanh")
trunc = unary("trunc")


# --- functions composed of several ops ---


def positive(x: Array, /) -> Array:
    """Return the elements themselves.

    Parameters
    ----------
    x : Array
        The array.

    Returns
    -------
    Array
        Its elements.
    """
    x = check_array("positive", x)
    return x.__copy__() if x.dtype.kind in REAL else check_kind("positive", REAL, x)


def conj(x: Array, /) -> Array:
    """Return the complex conjugates of real numbers: the numbers themselves.

    Parameters
    ----------
    x : Array
        The array.

    Returns
    -------
    Array
        Its elements.
    """
    return positive(x)


def real(x: Array, /) -> Array:
    """Return the real parts of real numbers: the numbers themselves.

    Parameters
    ----------
    x : Array
        The array.

    Returns
    -------
    Array
        Its elements.
    """
    return positive(x)


def imag(x: Array, /) -> Array:
    """Return the imaginary parts of real numbers: zeros.

    Parameters
    ----------
    x : Array
        The array.

    Returns
    -------
    Array
        Zeros.
    """
    return multiply(positive(x), 0)


_floor_divide = binary("floor_divide")


def floor_divide(x1: Any, x2: Any, /) -> Array:
    """Return x1 / x2, rounded down, elementwise.

    Parameters
    ----------
    x1, x2 : Array or number, at least one array
        The operands, which broadcast.

    Returns
    -------
    Array
        The result, not evaluated yet.
    """
    x1, x2 = promoted("floor_divide", REAL, x1, x2)
    z = _floor_divide(x1, x2)
    if z.dtype.kind != "f":
        return z
    quotient = floor(divide(x1, x2))  # NumPy's floor_divide returns NaN where the standard has infinities
    for x in (x1, x2):
        z = select(isfinite(x), z, quotient) if isinstance(x, Array) else z if math.isfinite(x) else quotient
    return z


def reciprocal(x: Array, /) -> Array:
    """Return 1 / x, elementwise.

    Parameters
    ----------
    x : Array
        The array.

    Returns
    -------
    Array
        The result.
    """
    return divide(1.0, x)


@checks_names
def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """Return the elements, limited to an interval: min(max(x, min), max).

    Parameters
    ----------
    x : Array
        The array.
    min, max : Array or number, optional
        The limits, which broadcast; None for no limit.

    Returns
    -------
    Array
        The result, of the dtype of x.
    """
    x = check_array("clip", x, min, max)
    limited = same(x)
    for limit, function, inward in ((min, maximum, math.ceil), (max, minimum, math.floor)):
        limit = as_limit(x, limit, inward)
        limited = limited if limit is None else function(limited, limit)
    return to_dtype(limited, x.dtype)


def as_limit(x: Array, limit: Any, inward: Callable[[float], int]) -> Any:
    """Return a limit of ``clip``, for an array of integers as an integer: rounded into the interval, as in NumPy."""
    limit = limit.item() if isinstance(limit, np.generic) else limit
    if type(limit) is bool:
        return as_array(limit, x)
    if limit is None or x.dtype.kind not in "iu" or type(limit) is int:
        return limit
    if type(limit) is not float:
        limit = check_array("clip", limit)
        if promote(x.dtype, limit.dtype).kind == "f":
            raise TypeError(
                f"clip: expected limits that can be cast to {x.dtype.name}, got {describe(limit)}. Cast one of "
                "the arrays with astype."
            )
        return limit
    if limit == (-math.inf if inward is math.ceil else math.inf):
        return None
    if not math.isfinite(limit):
        raise ValueError(f"clip: expected a limit that leaves integers of {x.dtype.name}, got {limit}")
    return inward(limit)


def select(condition: Array, x1: Any, x2: Any) -> Array:
    """Return the elements of one array where a condition holds, else those of another one: ``where``."""
    condition = check_array("where", condition, x1, x2)
    if condition.dtype != BOOL:
        raise TypeError(f"where: expected a boolean condition, got {describe(condition)}. Use condition != 0.")
    if isinstance(x1, SCALARS) and isinstance(x2, SCALARS):
        both = convert(condition.backend, [x1, x2], name="where")
        x, y = both[0], both[1]
    else:
        like = check_array("where", x2 if isinstance(x1, SCALARS) else x1, condition)
        x, y = (as_array(value, like, "where") for value in (x1, x2))
    dtype = promote(x.dtype, y.dtype)
    x, y = to_dtype(x, dtype), to_dtype(y, dtype)
    node = condition.backend.where(condition.operand, x.operand, y.operand)
    return result(node, max(condition.ndim, x.ndim, y.ndim), dtype, condition, x, y)
