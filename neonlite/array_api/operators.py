"""The operators and methods of arrays, which call the functions of the namespace."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from neonlite.array_api import data_types, elementwise, indexing, manipulation, products, reductions
from neonlite.array_api.array import Array, describe_array
from neonlite.array_api.creation import asarray
from neonlite.optree import Operand
from neonlite.optree_numpy import EVALUATED

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
    elementwise: ("clip", "round"),
    data_types: ("astype",),
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
    "dot": "x @ y", "dstack": "stack", "einsum": "tensordot or vecdot", "fill": "x[...] = value",
    "flatten": "reshape(x, (-1,))", "hstack": "concat", "itemset": "x[i] = value",
    "inner": "vecdot", "norm": "linalg.vector_norm or linalg.matrix_norm", "ptp": "max(x) - min(x)",
    "ravel": "reshape(x, (-1,))", "rollaxis": "moveaxis", "split": "slices", "swapaxes": "permute_dims",
    "unique": "unique_values", "vstack": "concat",
}  # fmt: skip
REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}
FUNCTIONS: dict[str, Callable[..., Any]] = {}  # those of the namespace, by name
OPERANDS = (Array, bool, int, float, Operand, np.ndarray, np.generic)


def _binary(name: str, function: Callable[..., Array]) -> None:
    def operator(self: Array, other: Any) -> Any:
        return function(self, other) if isinstance(other, OPERANDS) else NotImplemented

    def reflected(self: Array, other: Any) -> Any:
        return function(other, self) if isinstance(other, OPERANDS) else NotImplemented

    def in_place(self: Array, other: Any) -> Any:
        if not isinstance(other, OPERANDS):
            return NotImplemented
        z = function(self, other)
        if z.shape != self.shape or z.dtype != self.dtype:
            raise (ValueError if z.shape != self.shape else TypeError)(
                f"in-place {name}: expected a result of the shape and dtype of {describe_array(self)}, got "
                f"{describe_array(z)}. Write x = x + y, or cast one of the operands with astype."
            )
        return self._replace(z)

    for prefix, method in (("", operator), ("r", reflected), ("i", in_place)):
        method.__name__ = f"__{prefix}{name}__"
        setattr(Array, method.__name__, method)


def _comparison(name: str, function: Callable[..., Array]) -> None:
    def operator(self: Array, other: Any) -> Any:
        return function(self, other) if isinstance(other, OPERANDS) else NotImplemented

    setattr(Array, f"__{name}__", operator)


def _reshape(self: Array, *shape: Any) -> Array:
    """Return the elements in another shape: ``x.reshape(2, 3)`` or ``x.reshape((2, 3))``."""
    return manipulation.reshape(self, shape[0] if len(shape) == 1 else shape)


def _transpose(x: Array, axes: Any = None) -> Array:
    """Return an array with its axes permuted, by default reversed, as ``np.transpose`` does."""
    return manipulation.permute_dims(x, tuple(reversed(range(x.ndim))) if axes is None else axes)


def _assign(self: Array, key: Any, value: Any) -> None:
    self._replace(indexing.replaced(self, key, value))


def _reduce(self: Array) -> tuple[Callable[..., Array], tuple[Any]]:
    return asarray, (self.numpy(),)


def _missing(self: Array, name: str) -> None:
    """Raise AttributeError, with what to use instead of an attribute of NumPy's arrays."""
    counterpart = COUNTERPARTS.get(name) or NUMPY_NAMES.get(name, name if name in FUNCTIONS else "")
    hint = f". Use {counterpart} of neonlite.array_api." if counterpart else ""
    raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)


def find_function(name: str) -> Callable[..., Any] | None:
    """Return the function of the namespace for the name of one of NumPy, or None."""
    return FUNCTIONS.get(NUMPY_NAMES.get(name, name))


def array_ufunc(self: Array, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """Compute a ufunc of NumPy by the function of the namespace that has its name."""
    name = ufunc.__name__
    function = find_function(REDUCTIONS.get(name, "") if method == "reduce" else name if method == "__call__" else "")
    if function is None or options.keys() - {"axis", "keepdims", "dtype"}:
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
        return function(*_evaluate(args), **_evaluate(kwargs))
    ours, name = find_function(function.__name__), f"{function.__module__}.{function.__name__}".replace("numpy", "np")
    if ours is None:
        counterpart = COUNTERPARTS.get(function.__name__)
        way_out = f"Use {counterpart}, or pass np.asarray(x)" if counterpart else "For NumPy's, pass np.asarray(x)"
        raise TypeError(f"{name}: expected a function of the array-API standard, as in neonlite.array_api. {way_out}.")
    try:
        inspect.signature(ours).bind(*args, **kwargs)
    except TypeError as error:
        way_out = f"Call array_api.{ours.__name__}{inspect.signature(ours)}, or pass np.asarray(x)."
        raise TypeError(f"{name}: {error}. {way_out}") from None
    return ours(*args, **kwargs)


def _evaluate(x: Any) -> Any:
    """Return arguments with NumPy arrays in place of arrays, tensors and op-trees."""
    if isinstance(x, Array | Operand):
        return np.asarray(x)
    if type(x) is dict:
        return {key: _evaluate(value) for key, value in x.items()}
    return type(x)(map(_evaluate, x)) if type(x) in (list, tuple) else x


def install(functions: dict[str, Callable[..., Any]]) -> None:
    """Define the operators and methods; ``functions`` are those of the namespace by name."""
    FUNCTIONS.update(functions, transpose=_transpose)
    for name, function in BINARY.items():
        _binary(name, getattr(elementwise, function))
    _binary("matmul", products.matmul)
    for name, function in COMPARISONS.items():
        _comparison(name, getattr(elementwise, function))
    for name, function in UNARY.items():
        setattr(Array, f"__{name}__", getattr(elementwise, function))
    for module, names in METHODS.items():
        for method in names:
            setattr(Array, method, getattr(module, method))
    methods: dict[str, Any] = {"__getitem__": indexing.get, "__setitem__": _assign, "__reduce__": _reduce}
    methods |= {
        "__getattr__": _missing,
        "reshape": _reshape,
        "__array_ufunc__": array_ufunc,
        "__array_function__": array_function,
    }
    for name, method in methods.items():
        setattr(Array, name, method)
    Array.__hash__ = None  # type: ignore[assignment]  # as in NumPy: == compares elements
