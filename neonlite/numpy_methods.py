"""NumPy's methods and functions of tensors and op-trees: ``t.sum()``, ``t.item()``, ``np.exp(t)``.

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
from typing import TYPE_CHECKING, Any, NoReturn, Self

from neonlite import name_hints, tree_structure
from neonlite.messages import describe
from neonlite.ops import OP_TABLE, SYNONYMS
from neonlite.ops.functions import Shape
from neonlite.typing import (
    LIMITS,
    AxisLike,
    BackendBase,
    DTypeLike,
    NestedLists,
    NumPyArray,
    Operand,
    OperandLike,
    Tensor,
)

if TYPE_CHECKING:
    import numpy as np


class Convertible:
    """The base class of ``Operand``: properties, and conversion to NumPy arrays, Python scalars and strings."""

    __slots__ = ()

    info: tree_structure.Info
    name: str | None
    if TYPE_CHECKING:  # Triple and Tensor define it

        @property
        def shape(self) -> Shape:
            """The shape, of at least two dimensions."""

    @property
    def backend(self) -> BackendBase:
        """The ``Backend``."""
        return self.info.be

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype."""
        return self.info.be.numpy_dtype(self.info.dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions, two or more."""
        return len(self.info.shape)

    @property
    def T(self) -> Self:
        """The operand with its last two axes exchanged."""
        raise NotImplementedError

    def transpose(self, *axes: int | Sequence[int] | Tensor | None, out: Tensor | None = None) -> Operand:
        """Return ``T``, or the operand with its axes permuted, or evaluate it into ``out``.

        Parameters
        ----------
        *axes : int, or one tuple of int
            The permutation; by default the last two axes are exchanged. As in neon, ``t.transpose(out)`` is accepted.
        out : Tensor, optional
            The tensor to write.

        Returns
        -------
        Tensor or OpTreeNode
            A view of a tensor, the transposed tree, or ``out``.
        """
        order: Any = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None
        if tree_structure.info_of(order) is not None:
            order, out = None, order
        value = self.T if order is None else self._permute(tuple(order))
        return value if out is None else self.backend.assign([out], [value])[0]

    def _permute(self, axes: tuple[int, ...]) -> Self:
        """Return the operand with its axes in another order."""
        raise NotImplementedError

    def get(self) -> NumPyArray:
        """Return a copy of the value as a NumPy array."""
        raise NotImplementedError

    def numpy(self) -> NumPyArray:
        """Return a copy of the value as a NumPy array; PyTorch's name of ``get``."""
        return self.get()

    def item(self, *index: int | tuple[int, ...]) -> float:
        """Return the value of a tensor or op-tree with one element, or of the element with an index.

        Parameters
        ----------
        *index : int, or one tuple of int
            The index of each axis, or one of the values in C order; by default there is exactly one element.

        Returns
        -------
        float or int
            The value as a Python scalar.

        Raises
        ------
        ValueError
            There is not exactly one element.

        Examples
        --------
        >>> import neonlite as nl
        >>> x = nl.gen_backend("cpu").array([[1.0, 2.0]])
        >>> x[0, 1].item(), float(x[0, 0] + 2)
        (2.0, 3.0)
        """
        shape = self.shape
        if math.prod(shape) != 1 and not index:
            raise ValueError(
                f"item() and float(): expected one element, got {describe(self)} with {math.prod(shape)}. Copy all "
                "values to NumPy with .get(), or select one with t[0, 0].item()."
            )
        value: float = self.get().item(*index)  # type: ignore[arg-type]
        return value

    def asnumpyarray(self) -> NumPyArray:
        """Return a copy of the value as a NumPy array; neon's name of ``get``."""
        return self.get()

    def to_numpy(self) -> NumPyArray:
        """Return a copy of the value as a NumPy array; pandas' name of ``get``, which Matplotlib and others call."""
        return self.get()

    def __arrow_c_stream__(self, requested_schema: object = None) -> NoReturn:
        raise not_for_arrow(self, "t.get()")

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __format__(self, spec: str) -> str:
        """Format the only element, as in ``f"{cost:.2f}"``; without a format, the whole operand."""
        return format(self.item(), spec) if spec else str(self)


def not_for_arrow(x: object, value: str) -> TypeError:
    """Return the exception for Arrow's protocol, by which polars and others would read columns."""
    return TypeError(f"{describe(x)}: expected a NumPy array for libraries that read Arrow's columns. Pass {value}.")


def device_of(be: BackendBase) -> str:
    """Return the name of the device of a backend."""
    return f"cuda:{be.runtime.device_id}" if be.runtime.has_device_memory else "cpu"


class ArrayMethods(Convertible):
    """The base class of ``Operand``: NumPy's methods, with the rules of the backend's methods of the same name.

    Results are op-trees of two dimensions or more. Reductions keep the reduced axes unless ``keepdims=False``.
    """

    __slots__ = ()

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.info.shape)

    @property
    def mT(self) -> Self:
        """The operand with its last two axes exchanged, like ``T``."""
        return self.T

    @property
    def device(self) -> str:
        """The device of the backend: "cpu", or as in "cuda:0"."""
        return device_of(self.info.be)

    def to_device(self, device: str, *, stream: None = None) -> Self:
        """Return the operand itself, which is on the device of its backend.

        Parameters
        ----------
        device : str
            The device of the operand.
        stream : None
            As in the array-API standard; there are no streams.

        Returns
        -------
        Tensor or OpTreeNode
            The operand.

        Raises
        ------
        ValueError
            It is on another device.
        """
        if stream is not None:
            raise ValueError(f"{describe(self)}.to_device: expected no stream, got {stream!r}. Leave it out.")
        if device != self.device:
            raise ValueError(
                f"{describe(self)}.to_device: expected {self.device!r}, got {device!r}. Copy the values to a "
                "backend of another device: nl.gen_backend(runtime).array(t)."
            )
        return self

    def astype(self, dtype: DTypeLike) -> Operand:
        """Return ``be.astype(t, dtype)``.

        Parameters
        ----------
        dtype : dtype or str
            The dtype.

        Returns
        -------
        Tensor or OpTreeNode
            An op-tree; the operand itself if it has this dtype.
        """
        return self.info.be.astype(self, dtype)

    def clip(
        self, min: OperandLike | None = None, max: OperandLike | None = None, out: Tensor | None = None
    ) -> Operand:
        """Return the values limited to an interval.

        Parameters
        ----------
        min, max : Tensor, OpTreeNode, scalar or array, optional
            The bounds; by default there is none.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree; or ``out``.

        Raises
        ------
        ValueError
            There is no bound.
        """
        be = self.info.be
        if min is None:
            if max is None:
                raise ValueError(f"{describe(self)}.clip: expected min, max or both, got neither")
            return be.minimum(self, max, out)
        if max is None:
            return be.maximum(self, min, out)
        return be.clip(self, min, max, out)

    def round(self, decimals: int = 0, out: Tensor | None = None) -> Operand:
        """Return the values rounded, ties to even.

        Parameters
        ----------
        decimals : int, default 0
            The number of decimal digits to keep; negative ones round to tens, hundreds and so on.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree; or ``out``.
        """
        be = self.info.be
        decimals = decimals.__index__()
        if "int" in self.info.dtype:
            return be.multiply(*self._rounded_quotient(10**-decimals), out) if decimals < 0 else be.rint(self, out)
        if decimals == 0:
            return be.rint(self, out)
        scale = 10.0 ** abs(decimals)
        if decimals > 0:
            return be.divide(be.rint(be.multiply(self, scale)), scale, out)
        return be.multiply(be.rint(be.divide(self, scale)), scale, out)

    def _rounded_quotient(self, divisor: int) -> tuple[Operand, int]:
        """Return integers divided by a power of ten, rounded, ties to even, and the divisor; 0 if it is too large."""
        be, dtype = self.info.be, self.info.dtype
        if divisor > LIMITS[dtype][1]:
            return be.multiply(self, 0), 0
        quotient = be.floor_divide(self, divisor)
        rest, half = be.subtract(self, be.multiply(quotient, divisor)), divisor // 2
        rounds_up = be.where(be.equal(rest, half), be.remainder(quotient, 2), be.astype(be.greater(rest, half), dtype))
        return be.add(quotient, rounds_up), divisor

    def ravel(self) -> Operand:
        """Return ``be.reshape(t, -1, 1)``: the values in C order, in one column.

        Returns
        -------
        Tensor or OpTreeNode
            An op-tree of shape (n, 1); the operand itself if it has this shape.
        """
        return self.info.be.reshape(self, -1, 1)

    flatten = ravel

    def tolist(self) -> NestedLists:
        """Return the values as nested lists of Python scalars.

        Returns
        -------
        list
            The values.
        """
        values: NestedLists = self.get().tolist()
        return values

    def __index__(self) -> int:
        if "int" not in self.info.dtype:
            raise TypeError(
                f"{describe(self)} as an index: expected an integer dtype, got {self.info.dtype}. Convert one element "
                "with int(t)."
            )
        return int(self.item())

    def __complex__(self) -> NoReturn:
        raise TypeError(f"complex({describe(self)}): expected real numbers; there is no complex dtype. Use float(t).")

    def __round__(self, ndigits: int | None = None) -> Operand:
        return self.round(ndigits or 0)

    def __pos__(self) -> Self:
        return self


# --- reductions, generated from the op table ---

# {method: (what it returns, the default of axis)}
REDUCTIONS: dict[str, tuple[str, int | None]] = {
    **{op.method: (op.doc, None if op.kind == "reduction" else 1) for op in OP_TABLE if op.has_axis},
    "mean": ("the mean", None),
    "var": ("the population variance", None),
    "std": ("the standard deviation", None),
    "any": ("1 if any element is not 0, else 0", None),
    "all": ("1 if no element is 0, else 0", None),
}
TRUTH = {"any": "max", "all": "min"}  # the reduction of t != 0


def _make_reduction(name: str, doc: str, default: int | None) -> Callable[..., Operand]:
    def method(
        self: Operand, axis: AxisLike = default, out: Tensor | None = None, keepdims: bool = True, **unknown: object
    ) -> Operand:
        x = self != 0 if name in TRUTH else self
        reduce: Callable[..., Operand] = getattr(self.info.be, TRUTH.get(name, name))
        if unknown:  # the backend's method refuses it
            reduce(x, **unknown)
        return reduce(x, axis=axis, out=out, keepdims=keepdims)

    method.__name__, method.__qualname__ = name, f"ArrayMethods.{name}"
    method.__doc__ = f"""Return {doc}, over one axis, several or all.

        Parameters
        ----------
        axis : int, tuple of int or None, default {default}
            The axes to reduce; None for all axes.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.
        keepdims : bool, default True
            Keep the reduced axes with size 1; a result has two dimensions or more.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree; or ``out``.
        """
    return name_hints.hide_unknown(method)


for _name, (_doc, _axis) in REDUCTIONS.items():
    setattr(ArrayMethods, _name, _make_reduction(_name, _doc, _axis))

# --- attributes of NumPy and PyTorch that are named otherwise ---

name_hints.add_hints(name_hints.OPERAND)(ArrayMethods)
for _op in OP_TABLE:
    if _op.kind == "elementwise":
        _call = f"be.{_op.method}({', '.join(['{t}', 'x', 'y'][: _op.arity])})"
        name_hints.add_hints({_call: _op.names})(ArrayMethods)


# {ufunc: operator}, where the operator chooses the op by the shapes or dtypes of its operands
OPERATORS = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "invert": "invert", "matmul": "matmul"}
# {ufunc: method of an operand} for ufunc.reduce
UFUNC_REDUCTIONS = {
    "add": "sum", "logical_and": "all", "logical_or": "any", "maximum": "max", "minimum": "min", "multiply": "prod",
}  # fmt: skip

# functions that plotting libraries call before they read the values: of tensors, their results are not expected to have
# a gradient
READERS = "atleast_1d broadcast_arrays histogram"


# --- functions ------------------------------------------------------------------------------------------------------


def _operand(be: Any, x: Any) -> Any:
    return be.array(x) if tree_structure.info_of(x) is None else x


def _reduction(name: str) -> Callable[..., Any]:
    def reduce(be: Any, a: Any, axis: Any = None, out: Any = None, *, keepdims: bool = True) -> Any:
        return getattr(_operand(be, a), name)(axis=axis, out=out, keepdims=keepdims)

    def reduce_with_dtype(
        be: Any, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, *, keepdims: bool = True
    ) -> Any:
        return reduce(be, a if dtype is None else be.astype(a, dtype), axis, out, keepdims=keepdims)

    return reduce_with_dtype if name in ("mean", "prod", "std", "sum", "var") else reduce


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
    **{name: _reduction(method) for method in REDUCTIONS for name in (method, *SYNONYMS.get(method, ()))},
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
    is_read = name.removeprefix("np.") in READERS.split() and not any(hasattr(x, "operand") for x in variables)
    if variables and has_floats(result) and "out" not in kwargs and not is_read:
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
    if tree_structure.info_of(x) is not None or hasattr(x, "operand"):
        return [x]
    items = x.values() if type(x) is dict else x if type(x) in (list, tuple) else ()
    return [y for item in items for y in find_operands(item)]


def read_only(x: Any) -> Any:
    """Return arguments with read-only NumPy arrays in place of tensors, op-trees and arrays of neonlite."""
    if tree_structure.info_of(x) is not None or hasattr(x, "operand"):
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
    if target is None or (tree_structure.info_of(target) is not None and target.info.op_def is None):
        function: Any = None
        if method == "reduce" and name in UFUNC_REDUCTIONS and inputs[0] is operand:
            function, options = FUNCTIONS[UFUNC_REDUCTIONS[name]], {"axis": 0, **options}
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
    if tree_structure.info_of(x) is not None:
        return getattr(x, f"__{name}__")(*() if y is None else (y,))
    return getattr(y, f"__r{name}__")(x)
