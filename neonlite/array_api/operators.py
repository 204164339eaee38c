"""The operators and methods of arrays, which call the functions of the namespace."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from neonlite.array_api import data_types, elementwise, manipulation, numpy_functions, reductions
from neonlite.array_api.array import Array, result
from neonlite.array_api.creation import asarray
from neonlite.array_api.data_types import to_dtype
from neonlite.messages import NO_COMPLEX, describe
from neonlite.name_hints import ARRAY, add_hints
from neonlite.numpy_methods import REDUCTIONS, UFUNC_REDUCTIONS, accepts, evaluate
from neonlite.ops import OP_TABLE, SYNONYMS
from neonlite.optree import Operand
from neonlite.tree_inference import SEQUENCES

BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
COMPARISONS = {op.name: op.method for op in OP_TABLE if op.order_signs is not None and op.result_dtype == "boolean"}
UNARY = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}
METHODS = {
    reductions: ("cumulative_sum", *(name for name in REDUCTIONS if hasattr(reductions, name))),
    manipulation: ("squeeze",),
}
FUNCTIONS: dict[str, Callable[..., Any]] = {}  # those of the namespace, by name
USUAL_OPERANDS = {Array, float, int}
OPERANDS = (Array, bool, int, float, Operand, np.ndarray, np.generic)


def is_operand(other: object) -> bool:
    """Return whether an operator accepts an operand.

    TypeError for a list, which would be compared as a whole, and for a complex number.
    """
    if isinstance(other, SEQUENCES):
        raise TypeError(
            f"expected an array or a number as operand, got {describe(other)}. Create an array with asarray."
        )
    if isinstance(other, complex):
        raise TypeError(f"expected a real number as operand, got {other!r}. {NO_COMPLEX}")
    return isinstance(other, OPERANDS) or hasattr(other, "__dlpack__")


def _binary(name: str, function: Callable[..., Array]) -> None:
    def operator(self: Array, other: Any) -> Any:
        return function(self, other) if type(other) in USUAL_OPERANDS or is_operand(other) else NotImplemented

    def reflected(self: Array, other: Any) -> Any:
        return function(other, self) if type(other) in USUAL_OPERANDS or is_operand(other) else NotImplemented

    def in_place(self: Array, other: Any) -> Any:
        if not is_operand(other):
            return NotImplemented
        z = function(self, other)
        if z.shape != self.shape or not np.can_cast(z.dtype, self.dtype, "same_kind"):
            raise (ValueError if z.shape != self.shape else TypeError)(
                f"in-place {name}: expected a result of the shape and kind of {describe(self)}, got "
                f"{describe(z)}. Write x = {function.__name__}(x, y), or cast one of the operands with astype."
            )
        return self.replace(to_dtype(z, self.dtype))

    for prefix, method in {"": operator, "r": reflected, "i": in_place}.items():
        if name in COMPARISONS and prefix:
            continue
        method.__name__ = f"__{prefix}{name}__"
        setattr(Array, method.__name__, method)


def _reshape(self: Array, *shape: Any) -> Array:
    """Return the elements in another shape: ``x.reshape(2, 3)`` or ``x.reshape((2, 3))``."""
    return manipulation.reshape(self, shape[0] if len(shape) == 1 else shape)


def _format(self: Array, spec: str) -> str:
    return format(self.item(), spec) if spec else repr(self)


def _astype(self: Array, dtype: Any, *, copy: bool = True, device: str | None = None) -> Array:
    """Return the array cast to a dtype, which is a keyword in NumPy's method: ``x.astype(dtype=xp.float64)``."""
    return data_types.astype(self, dtype, copy=copy, device=device)


def _round(self: Array, digits: int = 0) -> Array:
    """Return the elements rounded to a number of decimal digits."""
    if not digits:
        return elementwise.round(self)
    return result(reductions.numeric("round", elementwise.REAL, self).operand.round(digits), self.ndim, None, self)


def _divmod(self: Array, other: Any) -> tuple[Array, Array]:
    return self // other, self % other


def _reflected_divmod(self: Array, other: Any) -> tuple[Array, Array]:
    return other // self, other % self


def _with_positional_axis(function: Callable[..., Array]) -> Callable[..., Array]:
    @functools.wraps(function)
    def method(self: Array, axis: Any = None, **options: Any) -> Array:
        return function(self, **({} if axis is None else {"axis": axis}), **options)

    return method


def _reduce(self: Array) -> tuple[Callable[..., Array], tuple[Any]]:
    return asarray, (self.numpy(),)


def find_function(name: str) -> Callable[..., Any] | None:
    """Return the function of the namespace for the name of one of NumPy, or None."""
    return next((FUNCTIONS[x] for x in (name, *SYNONYMS.get(name, ())) if x in FUNCTIONS), None)


def array_ufunc(self: Array, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """Compute a ufunc by the function of the namespace that has its name; another one, or other options, by NumPy."""
    name = ufunc.__name__
    function = None
    if method == "reduce":
        function, options = find_function(UFUNC_REDUCTIONS.get(name, "")), {"axis": 0, **options}
    elif method == "__call__":
        function = find_function(name)
    if function is None or options.keys() - {"axis", "keepdims", "dtype"} or not accepts(function, *inputs, **options):
        what = f"np.{name}" + (f".{method}" if method != "__call__" else "")
        return evaluate(what, getattr(ufunc, method), inputs, options)
    return function(*inputs, **options)


def array_function(self: Array, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
    """Compute a function by the one of the namespace that has its name; another one, or other arguments, by NumPy."""
    if function.__name__ in ("shape", "ndim", "size"):
        return getattr(args[0], function.__name__)
    ours, name = find_function(function.__name__), f"{function.__module__}.{function.__name__}".replace("numpy", "np")
    if (
        ours is None
        or (name in ("np.diagonal", "np.trace") and args[0].ndim != 2)
        or (name == "np.broadcast_arrays" and any(x is None for x in args))  # Matplotlib broadcasts None as well
    ):
        return evaluate(name, function, args, kwargs)
    signature = inspect.signature(ours)
    kinds = [x.kind for x in signature.parameters.values()]
    n = len(kinds) - kinds.count(inspect.Parameter.KEYWORD_ONLY)
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        n = len(args)
    positional, keywords = args[:n], kwargs
    if len(args) > n:  # NumPy's names of arguments that are keywords here
        # before NumPy 2.4, concatenate has no signature
        known = signature if function.__name__ == "concatenate" else inspect.signature(function)
        keywords = {**dict(zip(list(known.parameters)[n:], args[n:], strict=False)), **kwargs}
    if not accepts(ours, *positional, **keywords):
        return evaluate(name, function, args, kwargs)
    return ours(*positional, **keywords)


def required_arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a call of a function needs, with x for the standard's x1."""
    parameters = inspect.signature(function).parameters.values()
    return [x.name.replace("x1", "x") for x in parameters if x.default is x.empty and x.kind is not x.VAR_KEYWORD]


def install(functions: dict[str, Callable[..., Any]], linalg: dict[str, Callable[..., Any]]) -> None:
    """Define the operators and methods; the functions are those of the namespace and its ``linalg`` by name."""
    FUNCTIONS.update(linalg | functions | numpy_functions.FUNCTIONS, rint=elementwise.round)
    for name, function in (BINARY | COMPARISONS).items():
        _binary(name, getattr(elementwise, function))
    _binary("matmul", linalg["matmul"])
    for name, function in UNARY.items():
        setattr(Array, f"__{name}__", getattr(elementwise, function))
    for module, names in METHODS.items():
        for method in names:
            setattr(Array, method, _with_positional_axis(getattr(module, method)))
    methods: dict[str, Any] = {
        "__getitem__": manipulation.get,
        "__setitem__": manipulation.assign,
        "__reduce__": _reduce,
    }
    methods |= {"__format__": _format, "__round__": _round, "__divmod__": _divmod}
    methods["__rdivmod__"] = _reflected_divmod
    methods |= {"astype": _astype, "clip": elementwise.clip, "reshape": _reshape, "round": _round}
    methods |= {"__array_ufunc__": array_ufunc, "__array_function__": array_function}
    for name, method in methods.items():
        setattr(Array, name, method)
    add_hints(ARRAY)(Array)
    for prefix, group in {"xp": functions, "xp.linalg": linalg}.items():
        calls = {name: required_arguments(function) for name, function in group.items()}
        add_hints({f"{prefix}.{name}({', '.join(x)})": name for name, x in calls.items() if x[:1] == ["x"]})(Array)
    Array.__hash__ = None  # type: ignore[assignment]  # as in NumPy: == compares elements
