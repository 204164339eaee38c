"""NumPy's functions that the standard does not have, composed of its functions, so that they are differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any

from neonlite.array_api import linalg, manipulation, reductions
from neonlite.array_api.array import Array, with_shape
from neonlite.array_api.data_types import as_array, check_arrays, convert
from neonlite.array_api.elementwise import multiply
from neonlite.array_api.linalg import check_numeric, matmul, tensordot, vecdot
from neonlite.array_api.manipulation import concat, moveaxis, permute_dims, reshape
from neonlite.backend.tree_operands import parse_subscripts
from neonlite.backend.validation import instance


def einsum(subscripts: str, *operands: Any, optimize: object = True) -> Array:
    """Return ``np.einsum`` of arrays, contracted pairwise in the order chosen by opt_einsum."""
    instance("np.einsum: subscripts", subscripts, str, "a string, such as 'ij,jk->ik',")
    arrays = check_numeric("einsum", *operands)
    terms, output = parse_subscripts(subscripts, [x.shape for x in arrays])
    unused = iter([x for x in ascii_letters if not any(x in term for term in terms)])  # for the axes put in front
    padded = ["".join([*(next(unused) for _ in range(2 - len(term))), *term]) for term in terms]
    be = arrays[0].backend
    tree = be.einsum(f"{','.join(padded)}->{output}", *(x.operand for x in arrays))
    sizes = {label: n for x, term in zip(arrays, terms, strict=True) for label, n in zip(term, x.shape, strict=True)}
    return with_shape(tree, tuple(sizes[label] for label in output), arrays[0].dtype, *arrays)


def transpose(a: Array, axes: Sequence[int] | None = None) -> Array:
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
    return matmul(a, b) if b.ndim <= 2 else tensordot(a, b, axes=([a.ndim - 1], [b.ndim - 2]))


def inner(a: Any, b: Any) -> Array:
    """Return the product over the last axes."""
    a, b = check_arrays("inner", a, b)
    return tensordot(a, b, axes=([a.ndim - 1], [b.ndim - 1])) if a.ndim and b.ndim else multiply(a, b)


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


def norm(x: Array, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:
    """Return a vector norm along an axis, or a matrix norm over two; by default the 2-norm of all elements."""
    if axis is None and (ord is None or x.ndim == 1):
        return linalg.vector_norm(x, ord=2 if ord is None else ord, keepdims=keepdims)
    axes = (*range(x.ndim),) if axis is None else (axis,) if hasattr(axis, "__index__") else tuple(axis)
    if len(axes) == 1:
        return linalg.vector_norm(x, axis=axes[0], ord=2 if ord is None else ord, keepdims=keepdims)
    z = linalg.matrix_norm(moveaxis(x, axes, (-2, -1)), ord="fro" if ord is None else ord, keepdims=keepdims)
    return moveaxis(z, (-2, -1), axes) if keepdims else z


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


# by their names in NumPy
FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f
    for f in (
        column_stack, cumprod, cumsum, dot, einsum, hstack, inner, norm, outer, ptp, ravel, searchsorted, swapaxes,
        take, transpose, vdot, vstack,
    )
}  # fmt: skip
