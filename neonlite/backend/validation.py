"""Validation of arguments, and warnings that name the line of user code which called neonlite."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import FrameType
from typing import Any, NoReturn, ParamSpec, TypeVar, dataclass_transform

import numpy as np

from neonlite import name_hints, typing
from neonlite.backend.objects import Serializable
from neonlite.messages import describe, expected


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that names the line of user code that called into neonlite."""
    _, depth = entry_frame(sys._getframe(1))
    warnings.warn(message, category, stacklevel=depth + 2)


def called_from() -> str:
    """Return the function of neonlite that user code called, with the file and line of the call."""
    frame, _ = entry_frame(sys._getframe(1))
    caller = frame.f_back or frame
    return f"{frame.f_code.co_name}() at {caller.f_code.co_filename}:{caller.f_lineno}"


def entry_frame(frame: FrameType) -> tuple[FrameType, int]:
    """Return the frame of the function of neonlite that user code called, and its depth above ``frame``."""
    depth = 1
    while frame.f_back and frame.f_back.f_globals.get("__name__", "").partition(".")[0] == "neonlite":
        frame, depth = frame.f_back, depth + 1
    return frame, depth


CLOSED_MESSAGE = (
    "is closed: its tensors can still be read with .get(), but nothing can be evaluated. Create tensors and networks "
    "again on the backend that gen_backend() returns, or copy a tensor there with be.array(t)."
)


def check_open(be: typing.BackendBase) -> None:
    """Raise RuntimeError if the backend is closed."""
    if be.closed_by:
        raise RuntimeError(f"{be!r} {CLOSED_MESSAGE}")
    be.runtime.check_device()


# --- validation of arguments: integers, numbers, booleans, names, functions and instances of a class ---

P = ParamSpec("P")
T = TypeVar("T")


def expected_argument(name: str, kind: str, value: object, hint: str = "") -> str:
    """Return an error message. ``name`` is the caller's name and the argument's, such as "be.onehot: nclass"."""
    where, _, argument = name.rpartition(": ")
    return expected(where, f"{kind} for {argument.rstrip(',')}", describe(value), hint)


def check_number(
    name: str,
    value: object,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
    at_most: float = math.inf,
) -> float:
    """Return a finite number as a Python int or float; TypeError or ValueError otherwise.

    The number must satisfy low <= number < high and above < number <= at_most.
    """
    # isinstance of the abstract classes Real and Integral takes longer than all the rest
    if not isinstance(value, float | int | Real) or isinstance(value, bool):
        is_scalar = getattr(value, "size", None) == 1
        raise TypeError(expected_argument(name, "a number", value, "Convert it with float()." * is_scalar))
    try:
        x = float(value)
    except OverflowError:  # an integer of more than 308 digits
        x = math.inf
    if not math.isfinite(x) or not (low <= x < high and above < x <= at_most):
        limits = ((">=", low), (">", above), ("<", high), ("<=", at_most))
        bounds = [f"{symbol} {limit:g}" for symbol, limit in limits if math.isfinite(limit)]
        raise ValueError(expected_argument(name, f"a finite number {' and '.join(bounds)}".rstrip(), value))
    return int(value) if not isinstance(value, float) and isinstance(value, Integral) else x


def check_numbers(name: str, values: Iterable[Any] | None, count: int, each: str) -> list[float]:
    """Return ``count`` finite numbers, one for each ``each``, ones by default; TypeError or ValueError otherwise."""
    where, _, argument = name.rpartition(": ")
    numbers = [1.0] * count if values is None else [check_number(f"{where}: each of {argument}", x) for x in values]
    if len(numbers) != count:
        raise ValueError(expected_argument(name, f"one number for each {each}, {count} in all,", numbers))
    return numbers


def integer(name: str, value: Any, low: float = 1, high: float = math.inf) -> int:
    """Return an integer, low <= integer <= high, as a Python int; any integer type is accepted.

    TypeError for another type, such as a bool or an array of several elements; ValueError outside of the range.
    """
    try:
        if type(value).__name__ == "bool":  # also NumPy's, which is an integer for NumPy before 2.3
            raise TypeError
        n = operator.index(value)
    except TypeError:
        raise TypeError(expected_argument(name, integer_between(low, high), value)) from None
    if not low <= n <= high:
        raise ValueError(expected_argument(name, integer_between(low, high), value))
    return n


def integer_between(low: float, high: float) -> str:
    """Return the description of a range of integers, for an error message."""
    if math.isfinite(high):
        return f"an integer from {low} to {high}" if math.isfinite(low) else f"an integer <= {high}"
    return f"an integer >= {low}" if math.isfinite(low) else "an integer"


def boolean(name: str, value: object, way_out: str = "") -> bool:
    """Return a Python bool for a boolean, 0 or 1; TypeError for anything else."""
    try:
        return bool(value) if isinstance(value, bool | np.bool_) else bool(integer(name, value, 0, 1))
    except (TypeError, ValueError):
        raise TypeError(expected_argument(name, "True or False", value) + way_out) from None


def checks_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to raise TypeError for unknown names of arguments, and for booleans of another type.

    An argument annotated as bool may be True, False, 0 or 1. The constructor of a class with ``needs_base_init`` must
    also run that of the base class.
    """
    parameters = inspect.signature(function).parameters
    annotations = {name: p.annotation for name, p in parameters.items()}
    has_options = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if has_options and not any(map(is_boolean, annotations.values())):
        return function

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        given: dict[str, Any] = dict(zip(parameters, args, strict=False)) | kwargs
        where = function.__qualname__
        if function.__name__ == "__init__":
            where = str(given.get("name") or type(args[0]).__name__)
        elif args and isinstance(args[0], Serializable):
            where = f"{args[0].name}.{function.__name__}"
        if not (has_options or kwargs.keys() <= parameters.keys()):
            reject_options(where, [*parameters], [name for name in kwargs if name not in parameters])
        check_booleans(where, annotations, given)
        result = function(*args, **kwargs)
        if function.__name__ == "__init__" and "name" not in vars(args[0]) and needs_base_init(args[0]):
            raise TypeError(
                f"{where}: expected __init__ to call super().__init__(), got no call. Add it as the first line."
            )
        return result

    wrapper.__code__ = wrapper.__code__.replace(co_name=function.__name__)  # for tracebacks and ``called_from``
    return functools.wraps(function)(wrapper)


def checks_names(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of a backend or array namespace to raise TypeError for unknown names of arguments."""
    accepted = inspect.signature(function).parameters.keys()
    where = f"{'be' if 'self' in accepted else 'xp'}.{function.__name__}"

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if not kwargs.keys() <= accepted:
            reject_options(where, [*accepted], [name for name in kwargs if name not in accepted])
        return function(*args, **kwargs)

    wrapper.__code__ = wrapper.__code__.replace(co_name=function.__name__)  # for tracebacks and ``called_from``
    return functools.wraps(function)(wrapper)


def needs_base_init(obj: Any) -> bool:
    """Return whether an object cannot be used without the attributes that its base class's constructor sets."""
    return getattr(obj, "needs_base_init", False)


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def checked_dataclass(cls: type[T]) -> type[T]:
    """Make a class a dataclass, compared by identity, whose constructor checks its arguments."""
    result: type[T] = dataclasses.dataclass(eq=False)(cls)
    check_constructor(result)
    return result


def check_constructor(cls: type) -> None:
    """Apply ``checks_arguments`` to the constructor that a class defines."""
    if constructor := vars(cls).get("__init__"):
        type.__setattr__(cls, "__init__", checks_arguments(constructor))


def reject_options(where: str, accepted: list[str], options: list[str]) -> NoReturn:
    """Raise TypeError with the names of the arguments that a function has, and the one to pass instead."""
    accepted = [name for name in accepted if name not in ("self", "model", "be")]
    hint = name_hints.argument_hint(options[0], accepted)
    raise TypeError(f"{where}: expected the options {', '.join(accepted)}, got {', '.join(options)}. {hint}".rstrip())


def check_boolean_fields(obj: Any) -> None:
    """Convert 0 and 1 in the fields of a dataclass that are annotated as bool; TypeError for other values."""
    annotations = {field.name: field.type for field in dataclasses.fields(obj)}
    values = {name: getattr(obj, name) for name, annotation in annotations.items() if is_boolean(annotation)}
    check_booleans(type(obj).__name__, annotations, values)
    vars(obj).update({name: bool(value) for name, value in values.items()})  # also of a frozen dataclass


def check_booleans(where: str, annotations: dict[str, Any], values: dict[str, Any]) -> None:
    """Raise TypeError if a value whose name is annotated as bool is not True, False, 0 or 1, or None if optional."""
    for name, value in values.items():
        annotation = annotations.get(name)
        if is_boolean(annotation) and not (value is None and "None" in str(annotation)):
            boolean(f"{where}: {name}", value)


def is_boolean(annotation: Any) -> bool:
    """Return whether an annotation is bool, or optional bool, also as a string."""
    return annotation in (bool, "bool", bool | None, "bool | None")


def pair(name: str, value: object, low: int = 1) -> tuple[int, int]:
    """Return two integers >= low, given both or one that stands for both; TypeError or ValueError otherwise."""
    sizes = value if isinstance(value, tuple | list) else (value, value)
    if len(sizes) != 2:
        raise ValueError(expected_argument(name, f"{integer_between(low, math.inf)} or a pair of them", value))
    return integer(name, sizes[0], low), integer(name, sizes[1], low)


def one_of(name: str, value: T, choices: Iterable[object], way_out: str = "") -> T:
    """Return a value that is one of the choices, strings or None; ValueError otherwise."""
    choices = tuple(choices)
    if not any(value is x or (isinstance(value, str) and value == x) for x in choices):
        raise ValueError(expected_argument(name, f"one of {', '.join(map(repr, choices))}", value) + way_out)
    return value


def instance(name: str, value: object, cls: type[T], kind: str, way_out: str = "") -> T:
    """Return an instance of a class; TypeError otherwise. ``kind`` describes it, such as "a metric, Accuracy(),"."""
    if not isinstance(value, cls):
        if isinstance(value, type) and issubclass(value, cls):
            way_out = way_out or f". Pass an instance: {value.__name__}()"
        raise TypeError(expected_argument(name, kind, value) + way_out)
    return value


def by_name(*classes: type[T], **others: Callable[[], T]) -> dict[str, Callable[[], T]]:
    """Return classes by their names in lower case, and others by their keywords, in alphabetical order."""
    return dict(sorted([*((cls.__name__.lower(), cls) for cls in classes), *others.items()]))


def from_name(name: str, value: T | str, table: Mapping[str, Callable[[], T]], way_out: str = "") -> T:
    """Return the new object for a name in a table, case-insensitive, or a value that is not a string unchanged.

    ValueError, with all names, if a string is not one of them.
    """
    if not isinstance(value, str):
        return value
    if value.lower() not in table:
        raise ValueError(expected_argument(name, f"one of {', '.join(map(repr, table))}", value) + way_out)
    return table[value.lower()]()


def with_attributes(name: str, value: T, attributes: str, kind: str, way_out: str = "") -> T:
    """Return an object that has all attributes, such as "ndata __iter__"; TypeError for others, and for a class."""
    if isinstance(value, type) or not all(hasattr(value, x) for x in attributes.split()):
        if isinstance(value, type):
            way_out = way_out or f". Pass an instance: {value.__name__}()"
        raise TypeError(expected_argument(name, kind, value) + way_out)
    return value


def check_signature(name: str, function: Callable[..., Any], form: str, *args: Any, **kwargs: Any) -> None:
    """Raise TypeError unless a function of a user accepts arguments; ``form``: as it is called, "update(x, y)"."""
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        raise TypeError(f"{name}: expected {form}, got the parameters ({', '.join(signature.parameters)}).") from None


def sequence(name: str, value: Any, kind: str = "a list", way_out: str = "", count: int | None = None) -> Sequence[Any]:
    """Return a list or tuple of ``count`` elements; ValueError for another number, TypeError for other types."""
    if not isinstance(value, list | tuple):
        raise TypeError(expected_argument(name, kind, value) + way_out)
    if count not in (None, len(value)):
        raise ValueError(expected_argument(name, kind, value) + way_out)
    return value


def distinct(name: str, values: Any, kind: type[T]) -> list[T]:
    """Return a list of one or more different values of exactly one type; TypeError or ValueError otherwise."""
    result: list[T] = [*sequence(name, values)]
    if not all(type(x) is kind for x in result):
        raise TypeError(expected_argument(name, f"values of type {kind.__name__}", result))
    if not result or len({*result}) != len(result):
        raise ValueError(expected_argument(name, "one or more different values", result))
    return result


def check_keys(name: str, value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return a dict with the given keys and no others; ValueError for anything else."""
    names = tuple(names)
    if not isinstance(value, dict) or value.keys() != {*names}:
        raise ValueError(expected_argument(name, f"a dict with {', '.join(names)}", value))
    return value


def check_shape(name: str, value: Any, shape: tuple[int, ...], meaning: str = "", way_out: str = "") -> None:
    """Raise ValueError unless an array or tensor has a shape. ``meaning`` follows it, such as " = (nin * N, dim)"."""
    if value.shape != shape:
        where, _, argument = name.rpartition(": ")
        raise ValueError(f"{where}: expected {argument} of shape {shape}{meaning}, got {describe(value)}{way_out}")


def function(name: str, value: Any, kind: str = "a function", way_out: str = "") -> Any:
    """Return a callable; TypeError for anything else."""
    if not callable(value):
        raise TypeError(expected_argument(name, kind, value) + way_out)
    return value


def check_attributes(obj: Serializable, *names: str, **limits: float) -> None:
    """Check that attributes are finite numbers within the limits of ``check_number``, and convert them likewise."""
    for name in names:
        setattr(obj, name, check_number(f"{obj.classnm}: {name}", getattr(obj, name), **limits))


def import_extra(module: str, owner: str, extra: str) -> Any:
    """Return a module that an extra of the package installs; ImportError, with the pip command, if there is none."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f'{owner} needs {module.partition(".")[0]}: pip install "neonlite[{extra}]"') from None


# --- floating-point warnings of NumPy, suppressed faster than by np.errstate ---
#
# Infinities and NaNs are ordinary values on every runtime. ``np.errstate`` takes longer than a small op-tree; setting
# the context variable it is based on does not.

# The buffer size of ufuncs for non-contiguous operands. With NumPy's default of 8192 elements, each call allocates a
# buffer of this size per operand. If the buffer is smaller than a row, NumPy iterates over the rows without buffering.
UFUNC_BUFFER_ELEMENTS = 240

try:
    from numpy._core.umath import _extobj_contextvar, _make_extobj

    _IGNORE_ALL = _make_extobj(all="ignore", bufsize=UFUNC_BUFFER_ELEMENTS)

    # suppress NumPy's floating-point warnings in this context, and return the state for ``restore_fp_errors``
    ignore_fp_errors: Callable[[], Any] = functools.partial(_extobj_contextvar.set, _IGNORE_ALL)
    restore_fp_errors = _extobj_contextvar.reset
except ImportError:  # another NumPy version: the public, slower function

    def ignore_fp_errors() -> Any:
        """Suppress NumPy's floating-point warnings in this context; return the state for ``restore_fp_errors``."""
        state = np.errstate(all="ignore")
        state.__enter__()
        np.setbufsize(UFUNC_BUFFER_ELEMENTS)
        return state

    def restore_fp_errors(state: Any) -> None:
        """Restore the state before ``ignore_fp_errors``."""
        state.__exit__(None, None, None)


class IgnoreFPErrors:
    """Context manager that suppresses floating-point warnings: ``with IgnoreFPErrors(): ...``."""

    def __enter__(self) -> None:
        self.state = ignore_fp_errors()

    def __exit__(self, *_: object) -> None:
        restore_fp_errors(self.state)


def copy_unsafe(array: Any, values: Any) -> None:
    """Copy values into an array, cast to its dtype, without floating-point warnings."""
    state = ignore_fp_errors()
    try:
        np.copyto(array, values, casting="unsafe")
    finally:
        restore_fp_errors(state)
