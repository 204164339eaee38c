"""NumPy's functions of tensors and op-trees: ``np.exp(t)``, ``np.sum(t, axis=0)`` and others build op-trees.

``array_ufunc`` and ``array_function`` implement NumPy's protocols ``__array_ufunc__`` and ``__array_function__``. A
function with a backend method builds its op-tree, which has two dimensions or more; reductions keep the reduced axes
unless ``keepdims=False``. NumPy computes any other function, or one with other arguments, from the values, and returns
NumPy arrays, which are constants: a warning says that they have no gradient.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from neonlite.messages import describe
from neonlite.optree_structure import info_of

if TYPE_CHECKING:
    from neonlite.optree import Operand

# {ufunc: operator}, where the operator chooses the op by the shapes or dtypes of its operands
OPERATORS = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "invert": "invert", "matmul": "matmul"}
# {ufunc: method of an operand} for ufunc.reduce
REDUCTIONS = {
    "add": "sum", "logical_and": "all", "logical_or": "any", "maximum": "max", "minimum": "min", "multiply": "prod",
}  # fmt: skip

# functions that plotting libraries call before they read the values: their results are not expected to have a gradient
READERS = "atleast_1d broadcast_arrays histogram"


# --- functions ------------------------------------------------------------------------------------------------------


def _operand(be: Any, x: Any) -> Any:
    return be.array(x) if info_of(x) is None else x


def _reduction(name: str) -> Callable[..., Any]:
    def reduce(be: Any, a: Any, axis: Any = None, out: Any = None, *, keepdims: bool = True) -> Any:
        return getattr(_operand(be, a), name)(axis=axis, out=out, keepdims=keepdims)

    return reduce


def _reduction_with_dtype(name: str) -> Callable[..., Any]:
    def reduce(be: Any, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, *, keepdims: bool = True) -> Any:
        x = a if dtype is None else be.astype(a, dtype)
        return getattr(_operand(be, x), name)(axis=axis, out=out, keepdims=keepdims)

    return reduce


def _clip(
    be: Any, a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None
) -> Any:
    low, high = min if a_min is None else a_min, max if a_max is None else a_max
    return _operand(be, a).clip(low, high, out)


def _transpose(be: Any, a: Any, axes: Sequence[int] | None = None) -> Any:
    x = _operand(be, a)
    return be.transpose(x, tuple(reversed(range(x.ndim)) if axes is None else axes))


def _swapaxes(be: Any, a: Any, axis1: int, axis2: int) -> Any:
    axes = list(range(a.ndim))
    axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    return be.transpose(a, axes)


def _cumulate(be: Any, method: Callable[..., Any], a: Any, axis: int | None) -> Any:
    return method(be.reshape(a, -1, 1), 0) if axis is None else method(a, axis)


def _float_power(be: Any, x1: Any, x2: Any, out: Any = None) -> Any:
    x = _operand(be, x1)  # scalars and arrays in the default dtype
    return be.power(be.astype(x, be.default_dtype_name) if "int" in x.info.dtype else x, x2, out)


def _einsum(be: Any, *operands: Any, out: Any = None, optimize: object = None) -> Any:
    return be.einsum(*operands, out=out)


# functions with a backend method of the same name, without "linalg.", and the same order of arguments
SAME_ARGUMENTS = (
    "around broadcast_to concatenate dot linalg.cholesky linalg.det linalg.inv linalg.solve round stack take "
    "take_along_axis tril triu where"
)
# {function: what it returns}, with NumPy's names and order of arguments
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _reduction_with_dtype(name) for name in ("mean", "prod", "std", "sum", "var")},
    **{name: _reduction(name) for name in ("all", "any", "argmax", "argmin", "max", "min")},
    "amax": _reduction("max"),
    "amin": _reduction("min"),
    "argsort": lambda be, a, axis=-1: be.argsort(a, axis),
    "clip": _clip,
    "copy": lambda be, a: be.array(a, a.info.dtype),
    "cumprod": lambda be, a, axis=None: _cumulate(be, be.cumulative_prod, a, axis),
    "cumsum": lambda be, a, axis=None: _cumulate(be, be.cumulative_sum, a, axis),
    "einsum": _einsum,
    "hstack": lambda be, tup: be.concat(tup, 1),
    "matrix_transpose": lambda be, x: be.transpose(x),
    "ndim": lambda be, a: a.ndim,
    "ones_like": lambda be, a, dtype=None: be.ones_like(a, dtype or a.info.dtype),
    "ravel": lambda be, a: be.reshape(a, -1, 1),
    "reshape": lambda be, a, shape: be.reshape(a, shape),
    "shape": lambda be, a: a.shape,
    "size": lambda be, a, axis=None: math.prod(a.shape) if axis is None else a.shape[axis],
    "sort": lambda be, a, axis=-1: be.sort(a, axis),
    "swapaxes": _swapaxes,
    "transpose": _transpose,
    "vstack": lambda be, tup: be.concat(tup, 0),
    "zeros_like": lambda be, a, dtype=None: be.zeros_like(a, dtype or a.info.dtype),
}


def array_function(
    operand: Operand, func: Callable[..., Any], types: Iterable[type], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Return an op-tree for a NumPy function of tensors and op-trees, or what NumPy computes from their values.

    Parameters
    ----------
    operand : Tensor or OpTreeNode
        The first tensor or op-tree of the arguments.
    func : callable
        NumPy's function.
    types : iterable of type
        The types with this protocol.
    args, kwargs
        The arguments.
    """
    name = f"{func.__module__}.{func.__name__}".removeprefix("numpy.")
    be: Any = operand.backend
    is_method = name in SAME_ARGUMENTS.split()
    function = getattr(type(be), name.removeprefix("linalg.")) if is_method else FUNCTIONS.get(name)
    if function is None or not accepts(function, be, *args, **kwargs):
        return evaluate(f"np.{name}", func, args, kwargs)
    return function(be, *args, **kwargs)


def accepts(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Return whether a function has parameters for these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


# --- functions that NumPy computes ----------------------------------------------------------------------------------


def evaluate(name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return what a function of NumPy computes from the values of tensors, op-trees and arrays, as NumPy arrays.

    A warning says that a floating-point result of a variable, tensor or op-tree has no gradient.

    Parameters
    ----------
    name : str
        The name of the function.
    function : callable
        The function.
    args, kwargs
        The arguments.

    Raises
    ------
    TypeError
        The function writes to a tensor or array.
    """
    if find_operands(kwargs.get("out")):
        raise not_writable(name, args)
    try:
        result = function(*read_only(args), **read_only(kwargs))
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise not_writable(name, args) from None
    variables = [x for x in find_operands((args, kwargs)) if getattr(x, "is_live", True) and x.dtype.kind not in "biu"]
    if variables and has_floats(result) and "out" not in kwargs and name.removeprefix("np.") not in READERS.split():
        warnings.warn(
            f"{name}: NumPy computes a constant, which has no gradient, from {describe(variables[0])}. Pass its value, "
            f"{'x.numpy()' if hasattr(variables[0], 'operand') else 't.get()'}, if you need none; or use functions of "
            "the backend or of neonlite.array_api.",
            stacklevel=3,
        )
    return copy_views(result)


def not_writable(name: str, args: Sequence[Any]) -> TypeError:
    """Return the exception for a function of NumPy that would write to a tensor or array of neonlite."""
    return TypeError(
        f"{name}({describe(*args)}): expected a NumPy array to write to. Assign the values, t[...] = values; or write "
        "to a copy, np.array(t)"
    )


def find_operands(x: Any) -> list[Any]:
    """Return the tensors, op-trees and arrays of neonlite in arguments."""
    if info_of(x) is not None or hasattr(x, "operand"):
        return [x]
    items = x.values() if type(x) is dict else x if type(x) in (list, tuple) else ()
    return [y for item in items for y in find_operands(item)]


def read_only(x: Any) -> Any:
    """Return arguments with read-only NumPy arrays in place of tensors, op-trees and arrays of neonlite."""
    if info_of(x) is not None or hasattr(x, "operand"):
        values = (x.numpy() if hasattr(x, "numpy") else x.get()).view()
        values.flags.writeable = False
        return values
    if type(x) is dict:
        return {key: read_only(value) for key, value in x.items()}
    return type(x)(map(read_only, x)) if type(x) in (list, tuple) else x


def has_floats(x: Any) -> bool:
    """Return whether the result of a function has floating-point numbers."""
    if isinstance(x, list | tuple):
        return any(map(has_floats, x))
    return getattr(getattr(x, "dtype", None), "kind", "") in ("f", "c")


def copy_views(x: Any) -> Any:
    """Return the result of a function with copies of read-only arrays, which are views of its arguments."""
    if isinstance(x, list | tuple):
        items = map(copy_views, x)
        return x._make(items) if hasattr(x, "_make") else type(x)(items)
    is_read_only = getattr(x, "ndim", 0) and x.__array_interface__["data"][1]  # x.flags.writeable may warn
    return x.copy() if is_read_only else x


# --- ufuncs ---------------------------------------------------------------------------------------------------------


class ArrayUfunc:
    """``__array_ufunc__``: ``array_ufunc`` for NumPy, which reads it from the class.

    CuPy and ``np.ma`` read it from the object. There it is None, so ``cupy_array + t`` calls ``t.__radd__``.
    """

    def __get__(self, operand: Operand | None, owner: type) -> Callable[..., Any] | None:
        return array_ufunc if operand is None else None


def array_ufunc(operand: Operand, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
    """Return the op-tree of a ufunc of tensors and op-trees, or ``out``, or what NumPy computes from their values.

    Parameters
    ----------
    operand : Tensor or OpTreeNode
        The first tensor or op-tree of the arguments.
    ufunc : numpy.ufunc
        The function.
    method : str
        "__call__"; or "reduce" for a sum, product, maximum, minimum, any or all.
    *inputs : Tensor, OpTreeNode, scalar or array
        The operands.
    out : tuple of Tensor or numpy.ndarray, optional
        Write to this tensor or array now, instead of returning an op-tree.
    **options
        ``axis``, ``dtype`` and ``keepdims`` of "reduce".
    """
    be, name = operand.backend, ufunc.__name__
    target = out[0] if out else None
    if target is None or (info_of(target) is not None and target.info.op_def is None):
        function: Any = None
        if method == "reduce" and name in REDUCTIONS and inputs[0] is operand:
            function, options = FUNCTIONS[REDUCTIONS[name]], {"axis": 0, **options}
        elif method == "__call__" and ufunc.nout == 1 and not options:
            if name in OPERATORS:
                tree = _apply_operator(OPERATORS[name], *inputs)
                return tree if target is None else be.assign([target], [tree])[0]
            function = _float_power if name == "float_power" else getattr(type(be), name, None)
        if function is not None and accepts(function, be, *inputs, out=target, **options):
            return function(be, *inputs, out=target, **options)
    options = {**options, "out": out} if out else options
    what = f"np.{name}" + (f".{method}" if method != "__call__" else "")
    return evaluate(what, getattr(ufunc, method), inputs, options)


def _apply_operator(name: str, x: Any, y: Any = None) -> Any:
    if info_of(x) is not None:
        return getattr(x, f"__{name}__")(*() if y is None else (y,))
    return getattr(y, f"__r{name}__")(x)
