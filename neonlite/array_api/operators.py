"""The operators and methods of arrays, which call the functions of the namespace."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from neonlite.array_api import data_types, elementwise, indexing, manipulation, products, reductions
from neonlite.array_api.array import Array, describe_array, result
from neonlite.array_api.creation import asarray
from neonlite.array_api.promotion import to_dtype
from neonlite.messages import NO_COMPLEX
from neonlite.optree import Operand
from neonlite.optree_numpy import EVALUATED, REDUCTIONS, evaluated

BINARY = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
COMPARISONS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
UNARY = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}
METHODS = {
    reductions: ("all", "any", "argmax", "argmin", "cumulative_sum", "max", "mean", "min", "prod", "std", "sum", "var"),
    manipulation: ("squeeze",),
}
# names of NumPy's functions that differ from those of the standard
NUMPY_NAMES = {
    "true_divide": "divide", "absolute": "abs", "power": "pow", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "arctan2": "atan2", "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "mod": "remainder", "rint": "round",
    "concatenate": "concat", "amax": "max", "amin": "min", "cumsum": "cumulative_sum", "cumprod": "cumulative_prod",
    "around": "round",
}  # fmt: skip
# for functions of NumPy that are not in the standard, what to use
COUNTERPARTS = {
    "append": "concat", "array_split": "slices", "average": "mean", "copy": "asarray(x, copy=True)", "delete": "a mask",
    "dot": "x @ y", "dstack": "stack",
    "einsum": "tensordot or vecdot", "fill": "x[...] = value",
    "flatten": "reshape(x, (-1,))", "hstack": "concat", "itemset": "x[i] = value",
    "inner": "vecdot", "norm": "linalg.vector_norm or linalg.matrix_norm", "ptp": "max(x) - min(x)",
    "ravel": "reshape(x, (-1,))", "rollaxis": "moveaxis", "split": "slices", "swapaxes": "permute_dims",
    "unique": "unique_values", "vstack": "concat",
}  # fmt: skip
COMPLEX_NAMES = ("complex64", "complex128", "fft")
FUNCTIONS: dict[str, Callable[..., Any]] = {}  # those of the namespace, by name
USUAL_OPERANDS = {Array, float, int}
OPERANDS = (Array, bool, int, float, Operand, np.ndarray, np.generic)


def is_operand(other: object) -> bool:
    """Return whether an operator accepts an operand.

    TypeError for a list, which would be compared as a whole, and for a complex number.
    """
    if isinstance(other, list | tuple):
        raise TypeError(f"expected an array or a number as operand, got {other!r}. Create an array with asarray.")
    if isinstance(other, complex):
        raise TypeError(f"expected a real number as operand, got {other!r}. {NO_COMPLEX}")
    return isinstance(other, OPERANDS)


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
                f"in-place {name}: expected a result of the shape and kind of {describe_array(self)}, got "
                f"{describe_array(z)}. Write x = {function.__name__}(x, y), or cast one of the operands with astype."
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
    return format(self.item() if spec and not self.shape else repr(self), spec)


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


def _transpose(x: Array, axes: Any = None) -> Array:
    """Return an array with its axes permuted, by default reversed, as ``np.transpose`` does."""
    return manipulation.permute_dims(x, tuple(reversed(range(x.ndim))) if axes is None else axes)


def _reduce(self: Array) -> tuple[Callable[..., Array], tuple[Any]]:
    return asarray, (self.numpy(),)


def _hint(name: str) -> str:
    """Return what to use instead of a name of NumPy's, for an error message."""
    if name in COMPLEX_NAMES:
        return f". {NO_COMPLEX}"
    counterpart = COUNTERPARTS.get(name) or NUMPY_NAMES.get(name, name if name in FUNCTIONS else "")
    return f". Use {counterpart} of neonlite.array_api." if counterpart else ""


def _missing(self: Array, name: str) -> None:
    raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{_hint(name)}", name=name, obj=self)


def missing_function(name: str) -> AttributeError:
    """Return the exception for a name that the namespace does not have."""
    return AttributeError(f"module 'neonlite.array_api' has no attribute {name!r}{_hint(name)}", name=name)


def find_function(name: str) -> Callable[..., Any] | None:
    """Return the function of the namespace for the name of one of NumPy, or None."""
    return FUNCTIONS.get(NUMPY_NAMES.get(name, name))


def array_ufunc(self: Array, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """Compute a ufunc of NumPy by the function of the namespace that has its name."""
    name = ufunc.__name__
    function, supported = None, set()
    if method == "reduce":
        function, supported = find_function(REDUCTIONS.get(name, "")), {"axis", "keepdims", "dtype"}
        options = {"axis": 0, **options}
    elif method == "__call__":
        function = find_function(name)
    if function is None or options.keys() - supported:
        call = f"np.{name}" + (f".{method}" if method != "__call__" else "")
        raise TypeError(
            f"{call}: expected a function of the namespace {self.backend.array_api!r} without out and where, got "
            f"{call}({', '.join([*map(describe_array, inputs), *options])}). For NumPy's function, pass np.asarray(x)."
        )
    return function(*inputs, **options)


def array_function(self: Array, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
    """Compute a function of NumPy by the one of the namespace that has its name; comparisons and files by NumPy."""
    if function.__name__ in ("shape", "ndim", "size"):
        return getattr(args[0], function.__name__)
    if function.__name__ in EVALUATED.split():
        return function(*evaluated(args), **evaluated(kwargs))
    ours, name = find_function(function.__name__), f"{function.__module__}.{function.__name__}".replace("numpy", "np")
    if ours is None:
        counterpart = COUNTERPARTS.get(function.__name__)
        way_out = f"Use {counterpart}, or pass np.asarray(x)" if counterpart else "For NumPy's, pass np.asarray(x)"
        raise TypeError(f"{name}: expected a function of the array-API standard, as in neonlite.array_api. {way_out}.")
    if name in ("np.diagonal", "np.trace") and args[0].ndim != 2:
        raise TypeError(
            f"{name}: expected two dimensions, got {describe_array(args[0])}. Use array_api.linalg.{name[3:]}."
        )
    signature = inspect.signature(ours)
    n = sum(x.kind is not inspect.Parameter.KEYWORD_ONLY for x in signature.parameters.values())
    try:
        if len(args) > n:  # NumPy's names of arguments that are keywords here
            # before NumPy 2.4, concatenate has no signature
            known = signature if function.__name__ == "concatenate" else inspect.signature(function)
            names = list(known.parameters)[n:]
            args, kwargs = args[:n], {**dict(zip(names, args[n:], strict=False)), **kwargs}
        signature.bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        way_out = f"Call array_api.{ours.__name__}{signature}, or pass np.asarray(x)."
        raise TypeError(f"{name}: {error}. {way_out}") from None
    return ours(*args, **kwargs)


def install(functions: dict[str, Callable[..., Any]]) -> None:
    """Define the operators and methods; ``functions`` are those of the namespace by name."""
    FUNCTIONS.update(functions, transpose=_transpose)
    for name, function in (BINARY | COMPARISONS).items():
        _binary(name, getattr(elementwise, function))
    _binary("matmul", products.matmul)
    for name, function in UNARY.items():
        setattr(Array, f"__{name}__", getattr(elementwise, function))
    for module, names in METHODS.items():
        for method in names:
            setattr(Array, method, _with_positional_axis(getattr(module, method)))
    methods: dict[str, Any] = {"__getitem__": indexing.get, "__setitem__": indexing.assign, "__reduce__": _reduce}
    methods |= {"__getattr__": _missing, "__format__": _format, "__round__": _round, "__divmod__": _divmod}
    methods["__rdivmod__"] = _reflected_divmod
    methods |= {"astype": _astype, "clip": elementwise.clip, "reshape": _reshape, "round": _round}
    methods |= {"__array_ufunc__": array_ufunc, "__array_function__": array_function}
    for name, method in methods.items():
        setattr(Array, name, method)
    Array.__hash__ = None  # type: ignore[assignment]  # as in NumPy: == compares elements
