"""How does CUDA spell an op?  As an expression: {x}, {y}, {w} are its operands.

{f} is what a function and a number of the dtype end in ("f" for float, nothing for double), {T} the type in which the
result is kept in a register, {U} an unsigned type in which whole numbers wrap as NumPy's do. Floats of 16 bits are
computed in float, and each result is rounded to 16. A test holds these tables complete: every elementwise row of the op
table, every reduction, argmax and argmin has its words here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from neonlite.backend.plan import Const, Step
from neonlite.ops import FLOATS, HALVES, Op, bits

MEMORY = {"float16": "Half", "bfloat16": "BFloat16", "float32": "float", "float64": "double"}
MEMORY |= {"int8": "signed char", "int16": "short", "int32": "int", "int64": "long long"}
MEMORY |= {f"u{name}": f"unsigned {MEMORY[name].removeprefix('signed ')}" for name in list(MEMORY) if name[0] == "i"}
REGISTER = MEMORY | dict.fromkeys(HALVES, "float")

WORDS: dict[str, str] = {
    "neg": "-{x}",
    "abs": "fabs{f}({x})",
    "sgn": "{x} != {x} ? {x} : ({x} > 0) - ({x} < 0)",
    "sqr": "{x} * {x}",
    "sqrt": "sqrt{f}({x})",
    "exp": "exp{f}({x})",
    "exp2": "exp2{f}({x})",
    "log": "log{f}({x})",
    "log2": "log2{f}({x})",
    "safelog": "larger(log{f}(larger({x}, 0.0{f})), -50.0{f})",
    "sig": "1.0{f} / (1.0{f} + exp{f}(-{x}))",
    "tanh": "tanh{f}({x})",
    "rint": "rint{f}({x})",
    "finite": "{x} - {x} == 0",
    "cast": "({T}){x}",
    "stop_gradient": "{x}",
    "add": "{x} + {y}",
    "sub": "{x} - {y}",
    "mul": "{x} * {y}",
    "div": "{x} / {y}",
    "pow": "pow{f}({x}, {y})",
    "maximum": "larger({x}, {y})",
    "minimum": "smaller({x}, {y})",
    "shift": "{x} * copysign{f}(exp2{f}(rint{f}(log2{f}(fabs{f}({y})))), {y})",
    "eq": "{x} == {y}",
    "ne": "{x} != {y}",
    "lt": "{x} < {y}",
    "le": "{x} <= {y}",
    "gt": "{x} > {y}",
    "ge": "{x} >= {y}",
    "where": "{x} != 0 ? {y} : {w}",
}

OWN: dict[Op, str] = {}  # those of users' ops

# the words for whole numbers, where they differ
OF_INTS: dict[str, str] = {
    "neg": "0 - ({U}){x}",
    "abs": "{x} < 0 ? 0 - ({U}){x} : ({U}){x}",
    "sgn": "({x} > 0) - ({x} < 0)",
    "sqr": "({U}){x} * ({U}){x}",
    "rint": "{x}",
    "add": "({U}){x} + ({U}){y}",
    "sub": "({U}){x} - ({U}){y}",
    "mul": "({U}){x} * ({U}){y}",
    "pow": "power(({U}){x}, ({U}){y})",
}

# the same values in fewer or cheaper instructions, where an operand is a whole number that is part of the structure
SHORT: dict[tuple[str, int | None, int | None], str] = {("pow", None, 1): "{x}", ("pow", None, 2): "{x} * {x}"}

# ops whose result needs no rounding where their operands have none
EXACT = {"neg", "abs", "sgn", "rint", "finite", "stop_gradient", "maximum", "minimum", "where"}
EXACT |= {"eq", "ne", "lt", "le", "gt", "ge"}


class Reduction(NamedTuple):
    """How a reduction goes on: {x} is an element, {j} its place, {a} and {b} are what was found in two parts."""

    kind: str  # the type of what is found; {A} is the type in which numbers are kept
    start: str  # what is found in nothing; {low} and {high} are the least and the largest of {A}
    lift: str  # what is found in one element
    join: str
    result: str
    more: str = ""  # how {a} goes on with one element; "": by joining {a} and what is found in the element


REDUCE: dict[str, Reduction] = {
    "sum": Reduction("{A}", "0", "({A}){x}", "{a} + {b}", "{a}"),
    "max": Reduction("{A}", "{low}", "({A}){x}", "larger({a}, {b})", "{a}"),
    "min": Reduction("{A}", "{high}", "({A}){x}", "smaller({a}, {b})", "{a}"),
    "argmax": Reduction(
        "Best<{A}>", "{{low}, NOWHERE}", "Best<{A}>{({A}){x}, {j}}", "first_largest({a}, {b})", "{a}.place"
    ),
    "argmin": Reduction(
        "Best<{A}>", "{{high}, NOWHERE}", "Best<{A}>{({A}){x}, {j}}", "first_smallest({a}, {b})", "{a}.place"
    ),
}

# Two sums that wait for another reduction of the same elements, for m, can be had in one pass with it, from these:
# sum(exp(x - m)) = exps exp(greatest - m), and sum((x - m)^2) = squares + count (average - m)^2.
EXPS = Reduction("Exps<{A}>", "{{low}, 0}", "Exps<{A}>{({A}){x}, 1}", "joined({a}, {b})", "", "added({a}, ({A}){x})")
MOMENTS = Reduction(
    "Moments<{A}>", "{0, 0, 0}", "Moments<{A}>{1, ({A}){x}, 0}", "joined({a}, {b})", "", "added({a}, ({A}){x})"
)
REDUCE_EARLY: dict[str, Reduction] = {
    "greatest": EXPS._replace(result="{a}.greatest"),
    "exps": EXPS._replace(result="{a}.sum"),
    "count": MOMENTS._replace(result="{a}.count"),
    "average": MOMENTS._replace(result="{a}.mean"),
    "squares": MOMENTS._replace(result="{a}.squares"),
}

# type -> its least and its largest number
ENDS = {
    "float": ("-(float)INF", "(float)INF"),
    "double": ("-INF", "INF"),
    "long long": ("-0x7fffffffffffffffLL - 1", "0x7fffffffffffffffLL"),
    "unsigned long long": ("0ULL", "0xffffffffffffffffULL"),
}


def accumulator(step: Step) -> str:
    """Return the type in which a reduction keeps numbers: float for halves, 64 bits for whole numbers."""
    if step.common in FLOATS:
        return REGISTER[step.common]
    return "unsigned long long" if step.op.name == "sum" or step.common[0] == "u" else "long long"


def fill(text: str, **given: str) -> str:
    """Return a text with names in the places that are marked for them."""
    for place, name in given.items():
        text = text.replace(f"{{{place}}}", name)
    return text


def reduction(step: Step) -> Reduction:
    """Return the words for a reduction, over {x} and {j}, {a} and {b}."""
    kept = accumulator(step)
    low, high = ENDS[kept]
    found = REDUCE.get(step.op.name) or REDUCE_EARLY[step.op.name]
    return Reduction(*(fill(text, A=kept, low=low, high=high) for text in found))


def literal(number: int, dtype: str) -> str:
    """Return a small whole number in a dtype."""
    text = f"{number}.0{suffix(dtype)}" if dtype in FLOATS else f"({REGISTER[dtype]}){number}"
    return text if number >= 0 else f"({text})"


def suffix(dtype: str) -> str:
    """Return what functions and numbers of a dtype end in."""
    return "" if dtype == "float64" else "f"


def unsigned(dtype: str) -> str:
    """Return the unsigned type in which whole numbers of a dtype are added, so that they wrap."""
    return "unsigned long long" if bits(dtype) == 64 else "unsigned"


def words(step: Step, given: str) -> str | None:
    """Return the words for an elementwise step whose first operand is ``given`` in a dtype ("": it is a number).

    None when there are none: for a user's op that is not given in CUDA, and for whole numbers to a power that may be
    negative, which is an error that a kernel could not raise.
    """
    name = step.op.name
    if name == "cast":
        below_0 = given in FLOATS and step.dtype[0] == "u" and step.dtype != "uint64"
        return "({T})(long long){x}" if below_0 else WORDS[name]  # whole numbers below 0 wrap when they become unsigned
    plain = WORDS.get(name, OWN.get(step.op))
    consts = [x.number if isinstance(x, Const) else None for x in step.ins]
    if step.common not in FLOATS:
        may_fail = name == "pow" and step.common[0] != "u" and (consts[1] is None or consts[1] < 0)
        return None if may_fail else OF_INTS.get(name, plain)
    if name == "shift" and not step.attrs["value"]:
        return "{x} * exp2{f}({y})"
    if len(consts) == 2 and (short := SHORT.get((name, consts[0], consts[1]))):
        return short
    return plain


def spelled(step: Step, operands: Sequence[str], given: str) -> str | None:
    """Return an elementwise step as an expression of its operands; None when there are no words for it."""
    text = words(step, given)
    if text is None:
        return None
    if step.common not in FLOATS:
        text = fill(text, U=unsigned(step.common))
    text = fill(text, f=suffix(step.common), T=REGISTER[step.dtype], **dict(zip("xyw", operands, strict=False)))
    if step.dtype not in HALVES or step.op.name in EXACT or (step.op.name == "cast" and given == step.dtype):
        return text
    return rounded(text.removeprefix("(float)") if given == "float64" else text, step.dtype)  # a double is rounded once


def rounded(text: str, dtype: str) -> str:
    """Return a value in a register as memory of a dtype would keep it."""
    return f"rounded<{MEMORY[dtype]}>({text})" if dtype in HALVES else text


def narrowed(text: str, dtype: str) -> str:
    """Return a value in a register as it is stored."""
    return f"narrowed<{MEMORY[dtype]}>({text})" if dtype in HALVES else text


def widened(text: str, dtype: str) -> str:
    """Return what is in memory as it is in a register."""
    return f"widened({text})" if dtype in HALVES else text
