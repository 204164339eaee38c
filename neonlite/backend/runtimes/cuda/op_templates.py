"""CUDA templates of ops: elementwise expressions, reductions, and conversions between storage and compute types.

Placeholders: {x}, {y} and {w} are the operands; {f} is the suffix of functions and literals of the dtype ("f" for
float, nothing for double); {T} is the result's compute type; {U} is the unsigned type in which integers wrap around on
overflow, as in NumPy. 16-bit floats are computed in float, and each result is rounded to 16 bits. Templates are
optional: a stage with an op without one is computed by the array library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from neonlite.backend.planning.steps import Step
from neonlite.ops import Op
from neonlite.tree_structure import Constant
from neonlite.typing import FLOAT_DTYPES, HALF_DTYPES, dtype_bits

STORAGE_TYPES = {"float16": "Half", "bfloat16": "BFloat16", "float32": "float", "float64": "double"}
STORAGE_TYPES |= {"int8": "signed char", "int16": "short", "int32": "int", "int64": "long long"}
STORAGE_TYPES |= {
    f"u{name}": f"unsigned {STORAGE_TYPES[name].removeprefix('signed ')}"
    for name in list(STORAGE_TYPES)
    if name[0] == "i"
}
COMPUTE_TYPES = STORAGE_TYPES | dict.fromkeys(HALF_DTYPES, "float")

OP_TEMPLATES: dict[str, str] = {
    "neg": "-{x}",
    "abs": "fabs{f}({x})",
    "sgn": "{x} != {x} ? {x} : ({x} > 0) - ({x} < 0)",
    "sqr": "{x} * {x}",
    "sqrt": "sqrt{f}({x})",
    "exp": "exp{f}({x})",
    "exp2": "exp2{f}({x})",
    "log": "log{f}({x})",
    "log2": "log2{f}({x})",
    "safelog": "max_nan(log{f}(max_nan({x}, 0.0{f})), -50.0{f})",
    "sig": "1.0{f} / (1.0{f} + exp{f}(-{x}))",
    "tanh": "tanh{f}({x})",
    "rint": "rint{f}({x})",
    "finite": "{x} - {x} == 0",
    "cast": "({T}){x}",
    "isnan": "{x} != {x}",
    "isinf": "{x} == {x} && {x} - {x} != 0",
    "signbit": "copysign{f}(1.0{f}, {x}) < 0",
    "logical_not": "{x} == 0",
    "bitwise_invert": "~{x}",
    "stop_gradient": "{x}",
    "add": "{x} + {y}",
    "sub": "{x} - {y}",
    "mul": "{x} * {y}",
    "div": "{x} / {y}",
    "pow": "pow{f}({x}, {y})",
    "maximum": "max_nan({x}, {y})",
    "minimum": "min_nan({x}, {y})",
    "shift": "{x} * copysign{f}(exp2{f}(rint{f}(log2{f}(fabs{f}({y})))), {y})",
    "eq": "{x} == {y}",
    "ne": "{x} != {y}",
    "lt": "{x} < {y}",
    "le": "{x} <= {y}",
    "gt": "{x} > {y}",
    "ge": "{x} >= {y}",
    "floor_divide": "floor_divide<{T}>({x}, {y})",
    "remainder": "remainder_of<{T}>({x}, {y})",
    "logaddexp": "log_add_exp<{T}>({x}, {y})",
    "logical_and": "{x} != 0 && {y} != 0",
    "logical_or": "{x} != 0 || {y} != 0",
    "logical_xor": "({x} != 0) != ({y} != 0)",
    "bitwise_and": "{x} & {y}",
    "bitwise_or": "{x} | {y}",
    "bitwise_xor": "{x} ^ {y}",
    "bitwise_left_shift": "shift_left<{T}>({x}, {y})",
    "bitwise_right_shift": "shift_right<{T}>({x}, {y})",
    "where": "{x} != 0 ? {y} : {w}",
}
# ops that a function of the same name computes
CUDA_FUNCTIONS = {
    "{f}({x})": "log10 expm1 log1p sin cos tan asin acos atan sinh cosh asinh acosh atanh erf floor ceil trunc",
    "{f}({x}, {y})": "hypot atan2 copysign nextafter",
}
OP_TEMPLATES |= {name: name + arguments for arguments, names in CUDA_FUNCTIONS.items() for name in names.split()}

USER_TEMPLATES: dict[Op, str] = {}  # user-defined ops

# integer operands, where the template differs
INTEGER_TEMPLATES: dict[str, str] = {
    "neg": "0 - ({U}){x}",
    "abs": "{x} < 0 ? 0 - ({U}){x} : ({U}){x}",
    "sgn": "({x} > 0) - ({x} < 0)",
    "sqr": "({U}){x} * ({U}){x}",
    "rint": "{x}",
    "floor": "{x}",
    "ceil": "{x}",
    "trunc": "{x}",
    "signbit": "{x} < 0",
    "add": "({U}){x} + ({U}){y}",
    "sub": "({U}){x} - ({U}){y}",
    "mul": "({U}){x} * ({U}){y}",
    "pow": "int_pow(({U}){x}, ({U}){y})",
    "floor_divide": "int_floor_divide<{T}>({x}, {y})",
    "remainder": "int_remainder<{T}>({x}, {y})",
}

# 16-bit floats, where the template depends on the storage type {S}
HALF_TEMPLATES: dict[str, str] = {"nextafter": "next_half<{S}>({x}, {y})"}

# (op, first, second operand): cheaper templates with the same values for ops with an integer constant
CONSTANT_TEMPLATES: dict[tuple[str, int | None, int | None], str] = {
    ("pow", None, 1): "{x}",
    ("pow", None, 2): "{x} * {x}",
}

# ops whose results are representable in the dtype of their operands, so that they need no rounding
EXACT_OPS = {"neg", "abs", "sgn", "rint", "finite", "stop_gradient", "maximum", "minimum", "where"}
EXACT_OPS |= {"eq", "ne", "lt", "le", "gt", "ge"}
EXACT_OPS |= {"floor", "ceil", "trunc", "isnan", "isinf", "signbit", "copysign", "nextafter"}
EXACT_OPS |= {"logical_and", "logical_or", "logical_xor", "logical_not"}


class ReductionTemplate(NamedTuple):
    """The templates of a reduction: {x} is an element, {j} its index, {a} and {b} are accumulators."""

    acc_type: str  # accumulator type; {A} is the scalar type in it
    identity: str  # initial value; {low} and {high} are the limits of {A}
    from_element: str  # accumulator of one element
    combine: str
    result: str
    update: str = ""  # {a} with one more element; "": combine {a} with ``from_element``


REDUCE_TEMPLATES: dict[str, ReductionTemplate] = {
    "sum": ReductionTemplate("{A}", "0", "({A}){x}", "{a} + {b}", "{a}"),
    "prod": ReductionTemplate("{A}", "1", "({A}){x}", "{a} * {b}", "{a}"),
    "max": ReductionTemplate("{A}", "{low}", "({A}){x}", "max_nan({a}, {b})", "{a}"),
    "min": ReductionTemplate("{A}", "{high}", "({A}){x}", "min_nan({a}, {b})", "{a}"),
    "argmax": ReductionTemplate(
        "ArgValue<{A}>", "{{low}, NO_INDEX}", "ArgValue<{A}>{({A}){x}, {j}}", "combine_argmax({a}, {b})", "{a}.index"
    ),
    "argmin": ReductionTemplate(
        "ArgValue<{A}>", "{{high}, NO_INDEX}", "ArgValue<{A}>{({A}){x}, {j}}", "combine_argmin({a}, {b})", "{a}.index"
    ),
}

# Online reductions: sums that depend on another reduction m of the same elements, computed in the same pass:
# sum(exp(x - m)) = exp_sum exp(max - m), and sum((x - m)^2) = m2 + count (mean - m)^2.
ONLINE_EXP_SUM = ReductionTemplate(
    "OnlineExpSum<{A}>",
    "{{low}, 0}",
    "OnlineExpSum<{A}>{({A}){x}, 1}",
    "combine({a}, {b})",
    "",
    "update({a}, ({A}){x})",
)
WELFORD = ReductionTemplate(
    "Welford<{A}>", "{0, 0, 0}", "Welford<{A}>{1, ({A}){x}, 0}", "combine({a}, {b})", "", "update({a}, ({A}){x})"
)
ONLINE_TEMPLATES: dict[str, ReductionTemplate] = {
    "online_max": ONLINE_EXP_SUM._replace(result="{a}.max"),
    "online_exp_sum": ONLINE_EXP_SUM._replace(result="{a}.sum"),
    "online_count": WELFORD._replace(result="{a}.count"),
    "online_mean": WELFORD._replace(result="{a}.mean"),
    "online_m2": WELFORD._replace(result="{a}.m2"),
}

# type -> its lowest and highest value
TYPE_LIMITS = {
    "float": ("-(float)INF", "(float)INF"),
    "double": ("-INF", "INF"),
    "long long": ("-0x7fffffffffffffffLL - 1", "0x7fffffffffffffffLL"),
    "unsigned long long": ("0ULL", "0xffffffffffffffffULL"),
}


def accumulator_type(step: Step) -> str:
    """Return the scalar type of a reduction's accumulator: float for 16-bit floats, 64 bits for integers."""
    if step.compute_dtype in FLOAT_DTYPES:
        return COMPUTE_TYPES[step.compute_dtype]
    return "unsigned long long" if step.op.name in ("sum", "prod") or step.compute_dtype[0] == "u" else "long long"


def substitute(template: str, **values: str) -> str:
    """Return a template with its placeholders replaced."""
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template


def reduction_template(step: Step) -> ReductionTemplate:
    """Return the template of a reduction step, with its types substituted."""
    acc_type = accumulator_type(step)
    low, high = TYPE_LIMITS[acc_type]
    template = REDUCE_TEMPLATES.get(step.op.name) or ONLINE_TEMPLATES[step.op.name]
    return ReductionTemplate(*(substitute(text, A=acc_type, low=low, high=high) for text in template))


def literal(number: int, dtype: str) -> str:
    """Return the C literal of a small integer in a dtype."""
    text = f"{number}.0{suffix(dtype)}" if dtype in FLOAT_DTYPES else f"({COMPUTE_TYPES[dtype]}){number}"
    return text if number >= 0 else f"({text})"


def suffix(dtype: str) -> str:
    """Return the suffix of functions and literals of a dtype."""
    return "" if dtype == "float64" else "f"


def unsigned_type(dtype: str) -> str:
    """Return the unsigned type in which integers of a dtype are added, so that they wrap."""
    return "unsigned long long" if dtype_bits(dtype) == 64 else "unsigned"


def op_template(step: Step, operand_dtype: str) -> str | None:
    """Return the template of an elementwise step whose first operand has a dtype ("" for a scalar).

    None if there is no template: for a user's op without a CUDA expression, and for an integer power whose exponent may
    be negative, which raises an error that a kernel cannot raise.
    """
    name = step.op.name
    if name == "cast":
        if operand_dtype in FLOAT_DTYPES and step.dtype[0] == "u" and step.dtype != "uint64":
            return "({T})(long long){x}"  # negative values wrap
        if operand_dtype in FLOAT_DTYPES and step.dtype in ("int32", "int64"):
            return "float_to_int<{T}>({x})"
        return OP_TEMPLATES[name]
    template = OP_TEMPLATES.get(name, USER_TEMPLATES.get(step.op))
    consts = [x.value if isinstance(x, Constant) else None for x in step.inputs]
    if step.compute_dtype not in FLOAT_DTYPES:
        may_fail = name == "pow" and step.compute_dtype[0] != "u" and (consts[1] is None or consts[1] < 0)
        return None if may_fail else INTEGER_TEMPLATES.get(name, template)
    if name in HALF_TEMPLATES and step.compute_dtype in HALF_DTYPES:
        return substitute(HALF_TEMPLATES[name], S=STORAGE_TYPES[step.compute_dtype])
    if name == "shift" and not step.attrs["value"]:
        return "{x} * exp2{f}({y})"
    if len(consts) == 2 and (short := CONSTANT_TEMPLATES.get((name, consts[0], consts[1]))):
        return short
    return template


def op_expression(step: Step, operands: Sequence[str], operand_dtype: str) -> str | None:
    """Return an elementwise step as a C expression of its operands; None if there is no template.

    A third operand of a division is the reciprocal of the second one.
    """
    divides = step.op.name == "div" and len(operands) == 3 and operands != "xyw"
    template = "divide({x}, {y}, {w})" if divides else op_template(step, operand_dtype)
    if template is None:
        return None
    if step.compute_dtype not in FLOAT_DTYPES:
        template = substitute(template, U=unsigned_type(step.compute_dtype))
    template = substitute(
        template, f=suffix(step.compute_dtype), T=COMPUTE_TYPES[step.dtype], **dict(zip("xyw", operands, strict=False))
    )
    if (
        step.dtype not in HALF_DTYPES
        or step.op.name in EXACT_OPS
        or (step.op.name == "cast" and operand_dtype == step.dtype)
    ):
        return template
    return round_expression(
        template.removeprefix("(float)") if operand_dtype == "float64" else template, step.dtype
    )  # a double is rounded once


def round_expression(text: str, dtype: str) -> str:
    """Return the expression that rounds a value in a register to a dtype's precision."""
    return f"round_to<{STORAGE_TYPES[dtype]}>({text})" if dtype in HALF_DTYPES else text


def to_storage(text: str, dtype: str) -> str:
    """Return the expression that converts a value in a register to the storage type."""
    return f"to_storage<{STORAGE_TYPES[dtype]}>({text})" if dtype in HALF_DTYPES else text


def to_compute(text: str, dtype: str) -> str:
    """Return the expression that converts a value in memory to the compute type."""
    return f"to_compute({text})" if dtype in HALF_DTYPES else text
