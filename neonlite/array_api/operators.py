"""The operators and methods of arrays, and NumPy's functions that the standard does not have."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any, overload

import numpy as np

from neonlite import messages, typing
from neonlite.array_api import data_types, elementwise, linalg, manipulation, reductions
from neonlite.array_api.array import Array, from_numpy, result
from neonlite.array_api.creation import asarray
from neonlite.array_api.data_types import as_array, check_arrays, convert, to_dtype
from neonlite.array_api.elementwise import multiply, select
from neonlite.array_api.linalg import matmul, vecdot
from neonlite.array_api.manipulation import concat, moveaxis, permute_dims, reshape
from neonlite.name_hints import ARRAY, add_hints
from neonlite.numpy_methods import REDUCTIONS, UFUNC_REDUCTIONS, accepts, evaluate
from neonlite.ops import OP_TABLE, SYNONYMS
from neonlite.optree import Operand
from neonlite.tree_inference import SEQUENCES
from neonlite.typing import NumPyArray


def transpose_array(a: Array, axes: Sequence[int] | None = None) -> Array:
    """Return an array with its axes permuted, by default reversed."""
    return permute_dims(a, tuple(reversed(range(a.ndim))) if axes is None else tuple(axes))


def swapaxes(a: Array, axis1: int, axis2: int) -> Array:
    """Return an array with two axes exchanged."""
    axes = list(range(a.ndim))
    axes[axis1], axes[axis2] = axes[axis2], axes[axis1]
    return permute_dims(a, tuple(axes))


def ravel(a: Array) -> Array:
    """Return the elements in C order, in one dimension."""
    return reshape(a, (-1,))


def dot(a: Any, b: Any) -> Array:
    """Return the product over the last axis of a, and the last but one of b."""
    a, b = check_arrays("dot", a, b)
    if not a.ndim or not b.ndim:
        return multiply(a, b)
    return matmul(a, b) if b.ndim <= 2 else linalg.tensordot(a, b, axes=([a.ndim - 1], [b.ndim - 2]))


def inner(a: Any, b: Any) -> Array:
    """Return the product over the last axes."""
    a, b = check_arrays("inner", a, b)
    return linalg.tensordot(a, b, axes=([a.ndim - 1], [b.ndim - 1])) if a.ndim and b.ndim else multiply(a, b)


def outer(a: Any, b: Any) -> Array:
    """Return the products of all pairs of elements."""
    a, b = check_arrays("outer", a, b)
    return multiply(reshape(a, (-1, 1)), reshape(b, (1, -1)))


def vdot(a: Any, b: Any) -> Array:
    """Return the sum of the products of the elements."""
    a, b = check_arrays("vdot", a, b)
    return vecdot(ravel(a), ravel(b))


def vstack(tup: Sequence[Any]) -> Array:
    """Return arrays below each other: vectors as rows."""
    return concat([x if x.ndim > 1 else reshape(x, (1, -1)) for x in check_arrays("vstack", *tup)], axis=0)


def hstack(tup: Sequence[Any]) -> Array:
    """Return arrays side by side: vectors end to end."""
    arrays = [x if x.ndim else reshape(x, (1,)) for x in check_arrays("hstack", *tup)]
    return concat(arrays, axis=min(arrays[0].ndim - 1, 1))


def column_stack(tup: Sequence[Any]) -> Array:
    """Return arrays side by side: vectors as columns."""
    return concat([x if x.ndim > 1 else reshape(x, (-1, 1)) for x in check_arrays("column_stack", *tup)], axis=1)


def take(a: Any, indices: Any, axis: int | None = None) -> Array:
    """Return the elements at indices along an axis, or of the elements in C order."""
    be = (a if isinstance(a, Array) else indices).backend
    x, index = (value if isinstance(value, Array) else convert(be, value) for value in (a, indices))
    if axis is None:
        x, axis = ravel(x), 0
    z = manipulation.take(x, ravel(index), axis=axis)
    i = axis % x.ndim
    return reshape(z, (*x.shape[:i], *index.shape, *x.shape[i + 1 :]))


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Array:
    """Return the positions at which values keep an array sorted."""
    like = a if isinstance(a, Array) else v
    indices = None if sorter is None else as_array(sorter, like)
    return reductions.searchsorted(as_array(a, like), as_array(v, like), side=side, sorter=indices)


def cumsum(a: Array, axis: int | None = None, dtype: Any = None) -> Array:
    """Return the cumulative sums along an axis, or of the elements in C order."""
    return reductions.cumulative_sum(ravel(a) if axis is None else a, axis=axis, dtype=dtype)


def cumprod(a: Array, axis: int | None = None, dtype: Any = None) -> Array:
    """Return the cumulative products along an axis, or of the elements in C order."""
    return reductions.cumulative_prod(ravel(a) if axis is None else a, axis=axis, dtype=dtype)


def ptp(a: Array, axis: Any = None, *, keepdims: bool = False) -> Array:
    """Return the largest minus the smallest element."""
    return reductions.max(a, axis=axis, keepdims=keepdims) - reductions.min(a, axis=axis, keepdims=keepdims)


def squeeze(a: Array, axis: Any = None) -> Array:
    """Return an array without axes of size 1, by default all of them."""
    return manipulation.squeeze(a, tuple(i for i, n in enumerate(a.shape) if n == 1) if axis is None else axis)


def append(arr: Any, values: Any, axis: int | None = None) -> Array:
    """Return an array with values at the end of an axis, or of the elements in C order."""
    return concat(check_arrays("append", arr, values), axis=axis)


def quantile(a: Any, q: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """Return quantiles over axes, by linear interpolation; NaN if an element is NaN."""
    (x,) = check_arrays("quantile", a)
    x = x if x.dtype.kind == "f" else to_dtype(x, np.dtype(x.backend.default_dtype_name))
    q = np.asarray(q, np.float64)
    if not ((q >= 0) & (q <= 1)).all():
        raise ValueError(f"quantile: expected q from 0 to 1, and for percentile from 0 to 100, got {q.tolist()}.")
    axes = manipulation.axes_of("quantile", x, axis)
    rest = [i for i in range(x.ndim) if i not in axes]
    y = reductions.sort(reshape(permute_dims(x, (*rest, *axes)), (*(x.shape[i] for i in rest), -1)))
    position = q.ravel() * (y.shape[-1] - 1)
    low, fraction = np.floor(position).astype(np.int64), position % 1
    z = y[..., low]
    if fraction.any():
        z = z * from_numpy(y.backend, 1 - fraction) + y[..., np.minimum(low + 1, y.shape[-1] - 1)] * fraction
    last = y[..., -1:]
    z = moveaxis(to_dtype(reductions.where(last == last, z, np.nan), x.dtype), -1, 0)
    return reshape(z, (*q.shape, *(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i in rest)))


def percentile(a: Any, q: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """Return percentiles over axes: quantiles for q / 100."""
    return quantile(a, np.asarray(q) / 100, axis, keepdims=keepdims)


def median(a: Any, axis: Any = None, *, keepdims: bool = False) -> Array:
    """Return the median over axes: the quantile for 0.5."""
    return quantile(a, 0.5, axis, keepdims=keepdims)


def rearrange(x: Array, positions: NumPyArray, fill: NumPyArray | None = None) -> Array:
    """Return the elements of x at positions in C order, counted from 1; ``fill``, by default 0, at a position of 0."""
    elements, indices = ravel(x), positions.ravel() - 1
    if not positions.all():
        elements, indices = concat([from_numpy(x.backend, np.zeros(1, x.dtype)), elements]), positions.ravel()
    z = reshape(manipulation.take_positions(elements, indices, 0), positions.shape)
    return z if fill is None else select(from_numpy(x.backend, positions > 0), z, from_numpy(x.backend, fill))


def positions_of(x: Array) -> NumPyArray:
    """Return the position of each element in C order, from 1 on."""
    return np.arange(1, x.size + 1).reshape(x.shape)


def pad(array: Array, pad_width: Any, mode: Any = "constant", **options: Any) -> Array:
    """Return an array with elements before and after those of each axis: constants, or elements of the array."""
    if (
        mode not in ("constant", "edge", "reflect", "symmetric", "wrap")
        or options.get("reflect_type", "even") != "even"
    ):
        return evaluate("np.pad", np.pad, (array, pad_width, mode), options)
    if mode == "constant":
        fill = np.pad(np.zeros(array.shape, array.dtype), pad_width, **options)
        return rearrange(array, np.pad(positions_of(array), pad_width), fill)
    return rearrange(array, np.pad(positions_of(array), pad_width, mode, **options))


def convolve(a: Any, v: Any, mode: str = "full") -> Array:
    """Return the convolution of two vectors: products of v and the parts of a."""
    a, v = sorted(linalg.check_numeric("convolve", a, v), key=lambda x: -x.size)
    n, m = a.size, v.size
    first, count = {"full": (0, n + m - 1), "same": ((m - 1) // 2, n), "valid": (m - 1, n - m + 1)}[mode]
    positions = np.arange(first, first + count)[:, None] - np.arange(m) + 1
    return matmul(rearrange(a, np.where((positions > 0) & (positions <= n), positions, 0)), v)


def _moving(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of NumPy that moves, repeats and removes elements, for arrays."""

    @functools.wraps(function)
    def move(x: Array, *args: Any, **options: Any) -> Any:
        z = function(positions_of(x), *args, **options)
        return [rearrange(x, part) for part in z] if isinstance(z, list) else rearrange(x, z)

    return move


# by their names in NumPy
NUMPY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        append, column_stack, convolve, cumprod, cumsum, dot, hstack, inner, median, outer, pad,
        percentile, ptp, quantile, ravel, searchsorted, squeeze, swapaxes, take, vdot, vstack,
    )
} | {"transpose": transpose_array}  # fmt: skip
MOVING = "array_split delete diag diagflat dsplit fliplr flipud hsplit resize rollaxis rot90 split vsplit"
NUMPY_FUNCTIONS |= {name: _moving(getattr(np, name)) for name in MOVING.split()}


# --- the operators and methods of arrays, which call the functions of the namespace ---

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
            f"expected an array or a number as operand, got {messages.describe(other)}. Create an array with asarray."
        )
    if isinstance(other, complex):
        raise TypeError(f"expected a real number as operand, got {other!r}. {messages.NO_COMPLEX}")
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
                f"in-place {name}: expected a result of the shape and kind of {messages.describe(self)}, got "
                f"{messages.describe(z)}. Write x = {function.__name__}(x, y), or cast one of the operands with astype."
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


def _astype(self: Array, dtype: Any, *, copy: bool = True, device: str | None = None) -> Array:
    """Return the array cast to a dtype, which is a keyword in NumPy's method: ``x.astype(dtype=xp.float64)``."""
    return data_types.astype(self, dtype, copy=copy, device=device)


def _round(self: Array, digits: int = 0) -> Array:
    """Return the elements rounded to a number of decimal digits."""
    if not digits:
        return elementwise.round(self)
    return result(reductions.numeric("round", elementwise.REAL, self).operand.round(digits), self.ndim, None, self)


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
    keywords = {"correction" if key == "ddof" else key: x for key, x in keywords.items()}
    if not accepts(ours, *positional, **keywords):
        return evaluate(name, function, args, kwargs)
    return ours(*positional, **keywords)


def required_arguments(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a call of a function needs, with x for the standard's x1."""
    parameters = inspect.signature(function).parameters.values()
    return [x.name.replace("x1", "x") for x in parameters if x.default is x.empty and x.kind is not x.VAR_KEYWORD]


def install(functions: dict[str, Callable[..., Any]], linalg: dict[str, Callable[..., Any]]) -> None:
    """Define the operators and methods; the functions are those of the namespace and its ``linalg`` by name."""
    FUNCTIONS.update(linalg | functions | NUMPY_FUNCTIONS, rint=elementwise.round)
    for name, function in (BINARY | COMPARISONS).items():
        _binary(name, getattr(elementwise, function))
    _binary("matmul", linalg["matmul"])
    for name, function in UNARY.items():
        setattr(Array, f"__{name}__", getattr(elementwise, function))
    for module, names in METHODS.items():
        for method in names:
            setattr(Array, method, _with_positional_axis(getattr(module, method)))
    methods: dict[str, Any] = {"__getitem__": manipulation.get, "__setitem__": manipulation.assign}
    methods |= {"__reduce__": _reduce, "__array_ufunc__": array_ufunc, "__array_function__": array_function}
    methods |= {"astype": _astype, "clip": elementwise.clip, "reshape": _reshape, "round": _round}
    for name, method in methods.items():
        setattr(Array, name, method)
    add_hints(ARRAY)(Array)
    for prefix, group in {"xp": functions, "xp.linalg": linalg}.items():
        calls = {name: required_arguments(function) for name, function in group.items()}
        add_hints({f"{prefix}.{name}({', '.join(x)})": name for name, x in calls.items() if x[:1] == ["x"]})(Array)
    Array.__hash__ = None  # type: ignore[assignment]  # as in NumPy: == compares elements


# --- einsum, tensordot and transpose of tensors, op-trees and arrays, which opt_einsum calls by these names ---


@overload
def einsum(subscripts: str, *operands: Operand) -> Operand: ...
@overload
def einsum(subscripts: str, *operands: Operand | Array) -> Operand | Array: ...
def einsum(subscripts: str, *operands: Operand | Array) -> Operand | Array:
    """Return an Einstein summation, which is differentiated.

    Parameters
    ----------
    subscripts : str
        The labels of the axes of each operand and of the result: ``"ij,jk->ik"``. A tensor needs two or more.
    *operands : Tensor, OpTreeNode or Array
        The operands.

    Returns
    -------
    OpTreeNode or Array
        An array if one of the operands is an array, else an op-tree.

    Examples
    --------
    >>> import neonlite as nl
    >>> x = nl.gen_backend("cpu").array_api.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> nl.einsum("ii", x)
    Array(5., dtype=float32)
    """
    if any(isinstance(x, Array) for x in operands):
        arrays: Any = operands
        return linalg.einsum(subscripts, *arrays)
    be = next((x.backend for x in operands if isinstance(x, Operand)), None) or typing.current_backend()
    return be.einsum(subscripts, *operands)


def tensordot(
    x: Operand | Array, y: Operand | Array, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Operand | Array:
    """Return the sum of products over axes of two operands.

    Parameters
    ----------
    x, y : Tensor, OpTreeNode or Array
        The operands.
    axes : int or pair of sequences of int, default 2
        The axes of x and of y to sum over; a number n stands for the last n of x and the first n of y.

    Returns
    -------
    OpTreeNode or Array
        The other axes of x, then those of y.
    """
    first, second = (range(x.ndim - axes, x.ndim), range(axes)) if isinstance(axes, int) else axes
    left, right = list(ascii_letters[: x.ndim]), list(ascii_letters[x.ndim : x.ndim + y.ndim])
    for i, j in zip(first, second, strict=True):
        right[j] = left[i]
    contracted = set(left) & set(right)
    output = [label for label in left + right if label not in contracted]
    return einsum(f"{''.join(left)},{''.join(right)}->{''.join(output)}", x, y)


def transpose(x: Operand | Array, axes: Sequence[int] | None = None) -> Operand | Array:
    """Return an operand with its axes permuted.

    Parameters
    ----------
    x : Tensor, OpTreeNode or Array
        The operand.
    axes : sequence of int, optional
        The permutation; by default, the axes are reversed.

    Returns
    -------
    Tensor, OpTreeNode or Array
        The operand, transposed.
    """
    if isinstance(x, Array):
        return transpose_array(x, axes)
    return x.backend.transpose(x, tuple(reversed(range(x.ndim)) if axes is None else axes))
