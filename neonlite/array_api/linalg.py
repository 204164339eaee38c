"""Matrix and vector products, which both the namespace and its ``linalg`` extension have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np

from neonlite.array_api.array import BOOL, Array, from_numpy, result, with_shape
from neonlite.array_api.data_types import as_array, as_integers, broadcast_to, check_arrays, finfo, promote, to_dtype
from neonlite.array_api.elementwise import FLOAT, abs, equal, greater, multiply, not_equal, pow, promoted, select
from neonlite.array_api.manipulation import (
    axes_of,
    axis_of,
    expand_dims,
    matrix_transpose as matrix_transpose,
    moveaxis,
    ordered_axes,
    permute_dims,
    reshape,
    squeeze,
    stack,
)
from neonlite.array_api.reductions import count_nonzero, max as max_of, min as min_of, numeric, root, sum as sum_of
from neonlite.backend import tree_operands, validation
from neonlite.messages import describe
from neonlite.name_hints import module_getattr
from neonlite.ops.functions import broadcast_shapes


def check_numeric(name: str, *arrays: Any) -> list[Array]:
    """Return arrays in their common dtype. TypeError for boolean ones."""
    checked = check_arrays(name, *arrays)
    dtype = checked[0].dtype
    for x in checked:
        if x.dtype == BOOL:
            raise TypeError(f"{name}: expected numeric arrays, got {describe(x)}. Cast it with astype.")
        dtype = promote(dtype, x.dtype)
    return [to_dtype(x, dtype) for x in checked]


def matmul(x1: Array, x2: Array, /) -> Array:
    """Return the matrix products of the last two axes; the other axes broadcast. A vector is a row or a column.

    Parameters
    ----------
    x1 : Array
        Matrices (..., m, k), or a vector (k,).
    x2 : Array
        Matrices (..., k, n), or a vector (k,).

    Returns
    -------
    Array
        Matrices (..., m, n), without the axis of a vector.

    Raises
    ------
    ValueError
        The shapes do not fit.
    """
    x1, x2 = check_numeric("matmul", x1, x2)
    if not x1.ndim or not x2.ndim or x1.shape[-1] != x2.shape[-2 if x2.ndim > 1 else 0]:
        raise ValueError(f"matmul: expected arrays (..., m, k) and (..., k, n), got {describe(x1)} and {describe(x2)}")
    left = x1 if x1.ndim > 1 else reshape(x1, (1, -1))
    right = x2 if x2.ndim > 1 else reshape(x2, (-1, 1))
    if left.ndim == right.ndim == 2:
        z = _matrices(left, right)
    else:
        batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = (broadcast_to(x, (*batch, *x.shape[-2:])) for x in (left, right))
        stacks = [reshape(x, (math.prod(batch), *x.shape[-2:])) for x in (left, right)]
        z = reshape(_matrices(*stacks), (*batch, left.shape[-2], right.shape[-1]))
    z = z if x1.ndim > 1 else squeeze(z, -2)
    return z if x2.ndim > 1 else squeeze(z, -1)


def _matrices(x: Array, y: Array) -> Array:
    """Return the product of two matrices, or of two stacks of them; of integers as a sum of products."""
    if x.dtype.kind != "f" or not x.shape[-1]:
        left, right = reshape(x, (*x.shape, 1)), reshape(y, (*y.shape[:-2], 1, *y.shape[-2:]))
        return sum_of(multiply(left, right), axis=-2, dtype=x.dtype)
    return result(x.operand @ y.operand, x.ndim, x.dtype, x, y)


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Return the sum of products over axes of two arrays.

    Parameters
    ----------
    x1, x2 : Array
        The arrays.
    axes : int or pair of sequences of int
        The axes of x1 and of x2 to sum over; a number n stands for the last n of x1 and the first n of x2.

    Returns
    -------
    Array
        The other axes of x1, then those of x2.
    """
    x1, x2 = check_numeric("tensordot", x1, x2)
    if hasattr(axes, "__index__"):
        (n,) = as_integers("tensordot: axes", axes)
        if not 0 <= n <= min(x1.ndim, x2.ndim):
            raise ValueError(
                f"tensordot: expected 0 to {min(x1.ndim, x2.ndim)} axes, got {n}, for {describe(x1)} and {describe(x2)}"
            )
        axes = range(x1.ndim - n, x1.ndim), range(n)
    elif len(axes) != 2:
        raise ValueError(f"tensordot: expected a number of axes, or two sequences of axes, got {axes}")
    first, second = (ordered_axes("tensordot", x, each) for x, each in zip((x1, x2), axes, strict=True))
    rest1, rest2 = ([i for i in range(x.ndim) if i not in each] for x, each in ((x1, first), (x2, second)))
    if [x1.shape[i] for i in first] != [x2.shape[i] for i in second]:
        raise ValueError(f"tensordot: expected equal sizes of axes {axes}, got {describe(x1)} and {describe(x2)}")
    k = math.prod(x1.shape[i] for i in first)
    shape1, shape2 = tuple(x1.shape[i] for i in rest1), tuple(x2.shape[i] for i in rest2)
    left = reshape(permute_dims(x1, (*rest1, *first)), (math.prod(shape1), k))
    right = reshape(permute_dims(x2, (*second, *rest2)), (k, math.prod(shape2)))
    return reshape(_matrices(left, right), shape1 + shape2)


def axis_from_end(name: str, x1: Array, x2: Array, axis: int) -> int:
    """Return an axis of two arrays as a negative number; it counts from the start only for as many dimensions."""
    first, second = (axis_of(name, x, axis) - x.ndim for x in (x1, x2))
    if first != second:
        raise ValueError(
            f"{name}: expected a negative axis for different numbers of dimensions, got {axis}, for "
            f"{describe(x1)} and {describe(x2)}"
        )
    return first


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Return the dot products along an axis; the other axes broadcast.

    Parameters
    ----------
    x1, x2 : Array
        The arrays.
    axis : int
        The axis, counted from the end; default the last.

    Returns
    -------
    Array
        The products, without the axis.
    """
    x1, x2 = check_numeric("vecdot", x1, x2)
    axis = axis_from_end("vecdot", x1, x2, axis)
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"vecdot: expected equal sizes on axis {axis}, got {describe(x1)} and {describe(x2)}")
    return sum_of(multiply(x1, x2), axis=axis, dtype=x1.dtype)


def einsum(subscripts: str, /, *operands: Array, optimize: object = True) -> Array:
    """Return an Einstein summation, contracted pairwise in the order chosen by opt_einsum.

    Parameters
    ----------
    subscripts : str
        The labels of the axes of each operand and of the result, as in ``"ij,jk->ik"``; "..." for other axes.
    *operands : Array
        The operands.
    optimize : object
        For compatibility with NumPy, without effect.
    """
    validation.instance("einsum: subscripts", subscripts, str, "a string, such as 'ij,jk->ik',")
    arrays = check_numeric("einsum", *operands)
    terms, output = tree_operands.parse_subscripts(subscripts, [x.shape for x in arrays])
    unused = iter([x for x in ascii_letters if not any(x in term for term in terms)])  # for the axes put in front
    padded = ["".join([*(next(unused) for _ in range(2 - len(term))), *term]) for term in terms]
    tree = arrays[0].backend.einsum(f"{','.join(padded)}->{output}", *(x.operand for x in arrays))
    sizes = {label: n for x, term in zip(arrays, terms, strict=True) for label, n in zip(term, x.shape, strict=True)}
    return with_shape(tree, tuple(sizes[label] for label in output), arrays[0].dtype, *arrays)


__all__ = ["einsum", "matmul", "matrix_transpose", "tensordot", "vecdot"]


# --- the extension ``linalg``: products, decompositions, equations, determinants and norms of matrices ---


class EighResult(NamedTuple):
    """The result of ``eigh``."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """The result of ``qr``."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """The result of ``slogdet``."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """The result of ``svd``."""

    U: Array
    S: Array
    Vh: Array


def matrices(name: str, argument: Any, is_square: bool = False) -> Array:
    """Return an argument as an array of floating-point matrices, square if required."""
    x: Array = numeric(name, FLOAT, argument)
    if x.ndim < 2 or (is_square and x.shape[-1] != x.shape[-2]):
        kind = "square matrices" if is_square else "matrices"
        raise ValueError(f"linalg.{name}: expected {kind} in the last two axes, got {describe(x)}")
    return x


def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """Return the triangular factors L of positive definite matrices, L L^T = x.

    Parameters
    ----------
    x : Array
        Symmetric positive definite matrices (..., n, n).
    upper : bool
        Return L^T instead of L.

    Returns
    -------
    Array
        The factors, of the shape of x.
    """
    x = matrices("cholesky", x, is_square=True)
    return with_shape(x.backend.cholesky(x.operand, upper=upper), x.shape, None, x)


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Return the cross products of vectors with three elements along an axis.

    Parameters
    ----------
    x1, x2 : Array
        The arrays, which broadcast.
    axis : int
        The axis; default the last.

    Returns
    -------
    Array
        The products.
    """
    x1, x2 = check_arrays("cross", x1, x2)
    axis = axis_from_end("cross", x1, x2, axis)
    if x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ValueError(f"linalg.cross: expected size 3 on axis {axis}, got {describe(x1)} and {describe(x2)}")
    (a, b, c), (d, e, f) = ([moveaxis(x, axis, 0)[i] for i in range(3)] for x in (x1, x2))
    return stack([b * f - c * e, c * d - a * f, a * e - b * d], axis=axis)


def det(x: Array, /) -> Array:
    """Return the determinants of square matrices.

    Parameters
    ----------
    x : Array
        The matrices (..., n, n).

    Returns
    -------
    Array
        The determinants (...).
    """
    x = matrices("det", x, is_square=True)
    return with_shape(x.backend.det(x.operand), x.shape[:-2], None, x)


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """Return the diagonals of matrices.

    Parameters
    ----------
    x : Array
        The matrices.
    offset : int
        The diagonal: 0 is the main one, positive ones are above.

    Returns
    -------
    Array
        The diagonals, in the last axis.
    """
    (x,) = check_arrays("diagonal", x)
    if x.ndim < 2:
        raise ValueError(f"linalg.diagonal: expected at least two dimensions, got {describe(x)}")
    rows = np.arange(max(0, min(x.shape[-2] + min(offset, 0), x.shape[-1] - max(offset, 0))))
    return x[..., rows - min(offset, 0), rows + max(offset, 0)]


def eigh(x: Array, /) -> EighResult:
    """Return the eigenvalues and eigenvectors of symmetric matrices.

    Parameters
    ----------
    x : Array
        The matrices (..., n, n).

    Returns
    -------
    EighResult
        ``eigenvalues`` (..., n) in ascending order, and ``eigenvectors`` (..., n, n), as columns.
    """
    x = matrices("eigh", x, is_square=True)
    return EighResult(eigvalsh(x), with_shape(x.backend.eigh_vectors(x.operand), x.shape, None, x))


def eigvalsh(x: Array, /) -> Array:
    """Return the eigenvalues of symmetric matrices.

    Parameters
    ----------
    x : Array
        The matrices (..., n, n).

    Returns
    -------
    Array
        The eigenvalues (..., n), in ascending order.
    """
    x = matrices("eigvalsh", x, is_square=True)
    return with_shape(x.backend.eigh_values(x.operand), x.shape[:-1], None, x)


def inv(x: Array, /) -> Array:
    """Return the inverses of square matrices.

    Parameters
    ----------
    x : Array
        The matrices (..., n, n).

    Returns
    -------
    Array
        The inverses.
    """
    x = matrices("inv", x, is_square=True)
    return with_shape(x.backend.inv(x.operand), x.shape, None, x)


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Return the norms of matrices.

    Parameters
    ----------
    x : Array
        The matrices.
    keepdims : bool
        Whether the last two axes stay, with size 1.
    ord : {"fro", "nuc", 1, -1, 2, -2, inf, -inf}
        The norm: Frobenius, the sum of the singular values, the largest or smallest sum of the magnitudes of a column
        (1, -1) or a row (inf, -inf), or the largest or smallest singular value (2, -2).

    Returns
    -------
    Array
        The norms.
    """
    x = matrices("matrix_norm", x)
    if ord == "fro":
        return root(sum_of(x * x, axis=(-2, -1), keepdims=keepdims))
    if ord in ("nuc", 2, -2):
        reduce = {"nuc": sum_of, 2: max_of, -2: min_of}[ord]
        z = reduce(svdvals(x), axis=-1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = sum_of(abs(x), axis=-2 if ord in (1, -1) else -1)
        z = (max_of if ord > 0 else min_of)(sums, axis=-1)
    else:
        raise ValueError(f"linalg.matrix_norm: expected ord 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}")
    return reshape(z, (*x.shape[:-2], 1, 1)) if keepdims else z


def matrix_power(x: Array, n: int, /) -> Array:
    """Return powers of square matrices.

    Parameters
    ----------
    x : Array
        The matrices (..., m, m).
    n : int
        The exponent; negative ones are powers of the inverse.

    Returns
    -------
    Array
        The powers.
    """
    x, n = matrices("matrix_power", x, is_square=True), validation.integer("linalg.matrix_power: n", n, -math.inf)
    if n < 0:
        return matrix_power(inv(x), -n)
    z = broadcast_to(from_numpy(x.backend, np.eye(x.shape[-1], dtype=x.dtype)), x.shape)
    while n:  # the binary digits of n
        if n % 2:
            z = matmul(z, x)
        x, n = (matmul(x, x) if n > 1 else x), n // 2
    return z


def matrix_rank(x: Array, /, *, rtol: Any = None) -> Array:
    """Return the ranks of matrices: the numbers of singular values above a threshold.

    Parameters
    ----------
    x : Array
        The matrices (..., m, n).
    rtol : float or Array, optional
        The threshold relative to the largest singular value; default max(m, n) times the machine epsilon.

    Returns
    -------
    Array
        The ranks, int64.
    """
    x = matrices("matrix_rank", x)
    s, threshold = svdvals(x), _relative_threshold(x, rtol)
    return count_nonzero(greater(s, max_of(s, axis=-1, keepdims=True) * threshold if s.shape[-1] else 0.0), axis=-1)


def _relative_threshold(x: Array, rtol: Any) -> Array:
    """Return rtol, of the shape of the batch of x or a number, as an array with an axis for the singular values."""
    rtol = max(x.shape[-2:]) * finfo(x.dtype).eps if rtol is None else rtol
    return expand_dims(to_dtype(as_array(rtol, x), x.dtype), axis=-1)


def norm(x: Array, /, ord: Any = None, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Return a vector norm along an axis, or a matrix norm over two, as ``np.linalg.norm``.

    Parameters
    ----------
    x : Array
        The array.
    ord : number or str, optional
        The order, as for ``vector_norm`` or ``matrix_norm``; default the root of the sum of the squares.
    axis : int or pair of int, optional
        The axis of the vectors, or the axes of the matrices; default all.
    keepdims : bool
        Whether the axes stay, with size 1.
    """
    if axis is None and (ord is None or x.ndim == 1):
        return vector_norm(x, ord=2 if ord is None else ord, keepdims=keepdims)
    axes = (*range(x.ndim),) if axis is None else (axis,) if isinstance(axis, SupportsIndex) else tuple(axis)
    if len(axes) == 1:
        return vector_norm(x, axis=axes[0], ord=2 if ord is None else ord, keepdims=keepdims)
    z = matrix_norm(moveaxis(x, axes, (-2, -1)), ord="fro" if ord is None else ord, keepdims=keepdims)
    return moveaxis(z, (-2, -1), axes) if keepdims else z


def outer(x1: Array, x2: Array, /) -> Array:
    """Return the outer product of two vectors.

    Parameters
    ----------
    x1, x2 : Array
        The vectors (m,) and (n,).

    Returns
    -------
    Array
        The matrix (m, n) of all products.
    """
    x1, x2 = check_arrays("outer", x1, x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ValueError(f"linalg.outer: expected two vectors, got {describe(x1)} and {describe(x2)}")
    return reshape(x1, (-1, 1)) * reshape(x2, (1, -1))


def pinv(x: Array, /, *, rtol: Any = None) -> Array:
    """Return the pseudo-inverses of matrices, by the singular value decomposition.

    Parameters
    ----------
    x : Array
        The matrices (..., m, n).
    rtol : float or Array, optional
        The relative threshold of singular values that count as 0; default max(m, n) times the machine epsilon.

    Returns
    -------
    Array
        The pseudo-inverses (..., n, m).
    """
    x = matrices("pinv", x)
    threshold = _relative_threshold(x, rtol)
    batch = broadcast_shapes(x.shape[:-2], threshold.shape[:-1])
    operand = x.backend.pinv(x.operand, expand_dims(threshold, axis=-1).operand)
    return with_shape(operand, (*batch, x.shape[-1], x.shape[-2]), None, x, threshold)


def qr(x: Array, /, *, mode: str = "reduced") -> QRResult:
    """Return the QR decompositions of matrices, x = Q R.

    Parameters
    ----------
    x : Array
        The matrices (..., m, n).
    mode : {"reduced", "complete"}
        "reduced": Q (..., m, k) with k = min(m, n); "complete": Q (..., m, m).

    Returns
    -------
    QRResult
        ``Q``, with orthonormal columns, and ``R``, upper triangular.
    """
    x = matrices("qr", x)
    if mode not in ("reduced", "complete"):
        raise ValueError(f"linalg.qr: expected mode 'reduced' or 'complete', got {mode!r}")
    (m, n), batch = x.shape[-2:], x.shape[:-2]
    k = min(m, n) if mode == "reduced" else m
    q, r = (f(x.operand, mode=mode) for f in (x.backend.qr_q, x.backend.qr_r))
    return QRResult(with_shape(q, (*batch, m, k), None, x), with_shape(r, (*batch, k, n), None, x))


def slogdet(x: Array, /) -> SlogdetResult:
    """Return the signs and the logarithms of the magnitudes of the determinants of square matrices.

    Parameters
    ----------
    x : Array
        The matrices (..., n, n).

    Returns
    -------
    SlogdetResult
        ``sign`` and ``logabsdet``, each (...).
    """
    x = matrices("slogdet", x, is_square=True)
    be, shape = x.backend, x.shape[:-2]
    parts = be.slogdet_sign(x.operand), be.slogdet_logabsdet(x.operand)
    return SlogdetResult(*(with_shape(part, shape, None, x) for part in parts))


def solve(x1: Array, x2: Array, /) -> Array:
    """Return the solutions z of linear equations x1 z = x2.

    Parameters
    ----------
    x1 : Array
        Square matrices (..., n, n).
    x2 : Array
        Matrices (..., n, k), or a vector (n,).

    Returns
    -------
    Array
        The solutions, (..., n, k) or (..., n).
    """
    x1, x2 = check_arrays("solve", x1, x2)
    x1, x2 = promoted("solve", FLOAT, x1, x2)
    x1 = matrices("solve", x1, is_square=True)
    right = x2 if x2.ndim > 1 else reshape(x2, (-1, 1))
    if right.shape[-2] != x1.shape[-1]:
        raise ValueError(
            f"linalg.solve: expected (..., n, n) and (..., n, k) or (n,), got {describe(x1)} and {describe(x2)}"
        )
    batch = broadcast_shapes(x1.shape[:-2], right.shape[:-2])
    left, right = (broadcast_to(x, (*batch, *x.shape[-2:])) for x in (x1, right))
    shape = right.shape if x2.ndim > 1 else right.shape[:-1]
    return with_shape(left.backend.solve(left.operand, right.operand), shape, None, left, right)


def svd(x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    """Return the singular value decompositions of matrices, x = U diag(S) Vh.

    Parameters
    ----------
    x : Array
        The matrices (..., m, n).
    full_matrices : bool
        Return U (..., m, m) and Vh (..., n, n); if False (..., m, k) and (..., k, n), with k = min(m, n).

    Returns
    -------
    SVDResult
        ``U``, ``S`` (..., k) in descending order, and ``Vh``.
    """
    x = matrices("svd", x)
    (m, n), batch = x.shape[-2:], x.shape[:-2]
    k, be = min(m, n), x.backend
    u, vh = (f(x.operand, full_matrices=full_matrices) for f in (be.svd_u, be.svd_vh))
    rows, columns = (m, n) if full_matrices else (k, k)
    left, right = with_shape(u, (*batch, m, rows), None, x), with_shape(vh, (*batch, columns, n), None, x)
    return SVDResult(left, svdvals(x), right)


def svdvals(x: Array, /) -> Array:
    """Return the singular values of matrices.

    Parameters
    ----------
    x : Array
        The matrices (..., m, n).

    Returns
    -------
    Array
        The singular values (..., min(m, n)), in descending order.
    """
    x = matrices("svdvals", x)
    return with_shape(x.backend.svd_s(x.operand), (*x.shape[:-2], min(x.shape[-2:])), None, x)


def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Return the sums of diagonals of matrices.

    Parameters
    ----------
    x : Array
        The matrices.
    offset : int
        The diagonal, as for ``diagonal``.
    dtype : dtype, optional
        The dtype of the result, as for ``sum``.

    Returns
    -------
    Array
        The sums.
    """
    return sum_of(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def vector_norm(
    x: Array, /, *, axis: int | Sequence[int] | None = None, keepdims: bool = False, ord: int | float = 2
) -> Array:
    """Return the norms of vectors: the sum of ``|x|^ord``, to the power of 1 / ord.

    The gradient is 0 for a vector of zeros, and for ord < 1 at each element that is 0.

    Parameters
    ----------
    x : Array
        The array.
    axis : int or tuple of int, optional
        The axes of the vectors; default all.
    keepdims : bool
        Whether the axes stay, with size 1.
    ord : number
        The order; inf and -inf for the largest and smallest magnitude, 0 for the number of elements that are not 0.

    Returns
    -------
    Array
        The norms.
    """
    x = numeric("vector_norm", FLOAT, x)
    axes = axes_of("vector_norm", x, tuple(axis) if isinstance(axis, list) else axis)
    if ord in (math.inf, -math.inf):
        return (max_of if ord > 0 else min_of)(abs(x), axis=axes, keepdims=keepdims)
    if ord == 0:
        return sum_of(to_dtype(not_equal(x, 0), x.dtype), axis=axes, keepdims=keepdims)
    if ord == 1:
        return sum_of(abs(x), axis=axes, keepdims=keepdims)
    powers = x * x if ord == 2 else pow(abs(x), float(ord))
    if ord < 1:  # the derivative of a power at 0 is infinite
        powers = select(equal(x, 0.0), 0.0 if ord > 0 else math.inf, powers)
    return root(sum_of(powers, axis=axes, keepdims=keepdims), ord)


__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "norm", "outer", "pinv", "qr", "slogdet", "solve", "svd",
    "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__)
