"""einsum, tensordot and transpose of tensors, op-trees and arrays: the functions that opt_einsum calls by these names.

``opt_einsum.contract("ij,jk,kl->il", x, y, z)`` reads them from the package of its first operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import overload

from neonlite.array_api import Array, operators
from neonlite.backend import current_backend
from neonlite.optree import Operand


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
        return operators.einsum(subscripts, *operands)
    be = next((x.backend for x in operands if isinstance(x, Operand)), None) or current_backend()
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
        return operators.transpose(x, axes)
    return x.backend.transpose(x, tuple(reversed(range(x.ndim)) if axes is None else axes))
