"""Backend methods that build op-trees: indexing, reductions, random numbers, composite functions, and custom ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neonlite.backend.random import mask_threshold
from neonlite.backend.tensor import Tensor
from neonlite.backend.tree_operands import (
    as_indices,
    as_operand,
    as_operands,
    as_rows,
    build_node,
    check_axis,
    einsum,
    reduction_size,
)
from neonlite.backend.validation import checks_names, integer
from neonlite.messages import describe
from neonlite.ops import LN2, OPS
from neonlite.ops.functions import widen_half
from neonlite.optree import Operand, OpTreeNode
from neonlite.tree_inference import unknown_op
from neonlite.tree_structure import RandomSource, matrix_transpose_axes
from neonlite.typing import FLOAT_DTYPES, ArrayLike, AxisLike, BackendBase, DTypeLike, OperandLike, ShapeLike


class TreeMethods(BackendBase):
    """The methods of ``Backend`` that build op-trees, and are not generated from the op table."""

    def build(
        self, op: str, a: OperandLike, b: OperandLike | None = None, out: Tensor | None = None, **attrs: object
    ) -> OpTreeNode | Tensor:
        """Build the op-tree node of an op.

        Parameters
        ----------
        op : str
            The name of the op in the op table.
        a : Tensor, OpTreeNode, scalar or array
            The first operand.
        b : Tensor, OpTreeNode, scalar or array, optional
            The second operand.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.
        **attrs
            The attributes of the op.

        Returns
        -------
        OpTreeNode or Tensor
            The node; or ``out``.

        Raises
        ------
        TypeError
            An operand is not a tensor, op-tree, scalar or array; or there is no op of the name.
        """
        if op not in OPS:
            raise unknown_op("be.build", op)
        return build_node(self, OPS[op], a, b, out, tuple(attrs.items()))

    # --- ops with attributes, or more than two operands ---

    def where(
        self, condition: OperandLike, a: OperandLike, b: OperandLike, out: Tensor | None = None
    ) -> OpTreeNode | Tensor:
        """Return ``a`` where the condition is not 0, else ``b``.

        Parameters
        ----------
        condition : Tensor, OpTreeNode, scalar or array
            The condition.
        a : Tensor, OpTreeNode, scalar or array
            The values where the condition is not 0.
        b : Tensor, OpTreeNode, scalar or array
            The values where the condition is 0.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the operands' broadcast shape; or ``out``.
        """
        condition, a, b = as_rows(self, "where", condition, a, b)
        return build_node(self, OPS["where"], condition, build_node(self, OPS["pair"], a, b), out)

    def shift(
        self, a: OperandLike, b: OperandLike, value: bool = True, out: Tensor | None = None
    ) -> OpTreeNode | Tensor:
        """Return ``a`` times the power of two nearest to ``b``, AP2(b).

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        b : Tensor, OpTreeNode, scalar or array
            The factor, or the exponent.
        value : bool, default True
            Whether ``b`` is a factor to round. If False, the result is ``a * 2^b``.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the operands' broadcast shape; or ``out``.
        """
        return build_node(self, OPS["shift"], a, b, out, (("value", bool(value)),))

    def transpose(
        self, a: OperandLike, axes: Sequence[int] | None = None, out: Tensor | None = None
    ) -> OpTreeNode | Tensor:
        """Return ``a`` with its axes permuted.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        axes : sequence of int, optional
            The permutation; by default the last two axes are swapped.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree, a view; or ``out``.
        """
        a = as_operand(self, a, "transpose")
        if axes is None:
            axes = matrix_transpose_axes(a.ndim)
        elif not isinstance(axes, tuple | list):
            raise TypeError(
                f"be.transpose({describe(a)}): expected a permutation of {a.ndim} axes, got {describe(axes)}"
            )
        axes = tuple(int(x) % a.ndim if hasattr(x, "__index__") and -a.ndim <= x < a.ndim else x for x in axes)
        return build_node(self, OPS["transpose"], a, None, out, (("axes", axes),))

    def reshape(self, a: OperandLike, *shape: ShapeLike, out: Tensor | None = None) -> Operand:
        """Return ``a`` with another shape of the same size.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        *shape : int, or one tuple of int
            The new shape; one size may be -1, which is inferred.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree, a view; or ``out``.
        """
        a = as_operand(self, a, "reshape")
        to = self.shape_of(shape[0] if len(shape) == 1 else shape, allow_unknown=True)
        if -1 in to:  # the attribute holds the inferred shape, so that equal nodes share a structure
            to = build_node(self, OPS["reshape"], a, None, None, (("to", to),)).shape
        if to == a.shape and out is None:
            return a
        return build_node(self, OPS["reshape"], a, None, out, (("to", to),))

    def broadcast_to(self, a: OperandLike, shape: ShapeLike, out: Tensor | None = None) -> Operand:
        """Return ``a`` broadcast to a shape.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        shape : tuple of int
            The shape.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree, a view; or ``out``.
        """
        a, to = as_operand(self, a, "broadcast_to"), self.shape_of(shape)
        return a if to == a.shape and out is None else build_node(self, OPS["broadcast"], a, None, out, (("to", to),))

    def astype(self, a: OperandLike, dtype: DTypeLike, out: Tensor | None = None) -> Operand:
        """Return ``a`` cast to a dtype, like NumPy's ``astype``.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        dtype : dtype or str
            The dtype.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the operand's shape; or ``out``.
        """
        a, to = as_operand(self, a, "astype"), self.dtype_name(dtype)
        return a if to == a.info.dtype and out is None else build_node(self, OPS["cast"], a, None, out, (("to", to),))

    @checks_names
    def take(
        self, a: OperandLike, indices: ArrayLike, axis: int | None = None, out: Tensor | None = None
    ) -> OpTreeNode | Tensor:
        """Return the slices of ``a`` at the given indices along an axis.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        indices : Tensor or OpTreeNode of integers, or array of int
            The indices; negative ones count from the end. An array or list is copied.
        axis : int, optional
            The axis; by default all elements are indexed, in memory order, as one column.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree with one slice per index along the axis; or ``out``.

        Raises
        ------
        IndexError
            An index is out of range. Raised when the tree is evaluated.
        """
        a = as_operand(self, a, "take")
        if axis is None:
            a, axis = self.reshape(a, -1, 1), 0
        axis = check_axis(a, axis, "take")
        return build_node(self, OPS["take"], a, as_indices(self, indices, "take", "indices"), out, (("axis", axis),))

    @checks_names
    def onehot(
        self, indices: ArrayLike, axis: int, out: Tensor | None = None, nclass: int | None = None
    ) -> OpTreeNode | Tensor:
        """Return 1 in the row or column of each label, else 0.

        Parameters
        ----------
        indices : Tensor or OpTreeNode of integers, or array of int
            The n labels.
        axis : {0, 1}
            0 for a row per class, 1 for a column per class.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.
        nclass : int, optional
            The number of classes; by default that of the tensor the result is assigned to.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of shape (nclass, n) or (n, nclass); or ``out``.

        Raises
        ------
        IndexError
            A label is out of range. Raised when the tree is evaluated.
        """
        if axis not in (0, 1):
            raise ValueError(
                f"be.onehot: expected axis 0 (a row per class) or 1 (a column per class), got {describe(axis)}"
            )
        axis = int(axis)
        if out is not None and nclass is None:
            nclass = out.shape[axis]
        if nclass is not None:
            nclass = integer("be.onehot: nclass, the number of classes,", nclass)
        labels = as_indices(self, indices, "onehot", "labels")
        return build_node(self, OPS["onehot"], labels, None, out, (("axis", axis), ("nclass", nclass or 0)))

    @checks_names
    def concat(self, arrays: Sequence[OperandLike], axis: int = 0, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return operands concatenated along an axis.

        Parameters
        ----------
        arrays : list of Tensor, OpTreeNode, scalar or array
            The operands; their shapes may differ along this axis only.
        axis : int, default 0
            The axis.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree; or ``out``.
        """
        arrays = as_operands(self, arrays, "concat")
        axis = check_axis(arrays[0], axis, "concat")
        first, rest = arrays[0], arrays[1:]
        pair = rest.pop() if rest else None
        while rest:
            pair = build_node(self, OPS["pair"], rest.pop(), pair)
        return build_node(self, OPS["concat"], first, pair, out, (("axis", axis),))

    @checks_names
    def stack(self, arrays: Sequence[OperandLike], axis: int = 0, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return operands stacked along a new axis.

        Parameters
        ----------
        arrays : list of Tensor, OpTreeNode, scalar or array
            The operands, all of one shape.
        axis : int, default 0
            The position of the new axis.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree; or ``out``.
        """
        arrays = as_operands(self, arrays, "stack")
        if len({x.shape for x in arrays}) > 1:
            raise ValueError(f"be.stack: expected operands of one shape, got {describe(*arrays)}")
        axis = check_axis(arrays[0], axis, "stack", arrays[0].ndim + 1)
        return self.concat([self.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in arrays], axis, out)

    @checks_names
    def rand(self, *shape: ShapeLike, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return random numbers from the uniform distribution on [0, 1), new ones at each evaluation.

        Parameters
        ----------
        *shape : int, or one tuple of int
            The shape; that of ``out`` by default.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of this shape; or ``out``.
        """
        return _random_node(self, "rand", shape, out)

    @checks_names
    def randn(self, *shape: ShapeLike, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return random numbers from the standard normal distribution, new ones at each evaluation.

        Parameters
        ----------
        *shape : int, or one tuple of int
            The shape; that of ``out`` by default.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of this shape; or ``out``.
        """
        return _random_node(self, "randn", shape, out)

    @checks_names
    def random_mask(self, *shape: ShapeLike, keep: float = 0.5, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return ones with a probability, and zeros, new ones at each evaluation, as for dropout.

        Parameters
        ----------
        *shape : int, or one tuple of int
            The shape; that of ``out`` by default.
        keep : float, default 0.5
            The probability of a one, from 0 to 1.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of this shape; or ``out``.
        """
        mask_threshold(keep)  # raises an error
        return _random_node(self, "random_mask", shape, out, ("keep", float(keep)))

    def einsum(self, subscripts: str, *operands: OperandLike, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return an Einstein summation as an op-tree of pairwise contractions.

        The order of contractions is chosen by opt_einsum when the tree is built.

        Parameters
        ----------
        subscripts : str
            The labels of the axes of each operand and of the result: ``"ij,jk->ik"``.
        *operands : Tensor, OpTreeNode, scalar or array
            The operands. A tensor has two dimensions or more, and needs as many labels.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree; or ``out``.

        Raises
        ------
        ValueError
            The subscripts and the shapes do not match.
        """
        tree = einsum(self, subscripts, operands)
        tree = tree if isinstance(tree, OpTreeNode) else tree * 1  # an operand itself, as in "ij->ij"
        return tree if out is None else self.assign([out], [tree])[0]

    # --- composite functions ---

    def reciprocal(self, a: OperandLike, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return ``1 / a``.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the operand's shape; or ``out``.
        """
        return build_node(self, OPS["div"], 1, a, out)

    @checks_names
    def clip(
        self, a: OperandLike, a_min: OperandLike, a_max: OperandLike, out: Tensor | None = None
    ) -> OpTreeNode | Tensor:
        """Return ``min(max(a, a_min), a_max)``.

        The gradient is 0 at a bound that is a scalar.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        a_min : Tensor, OpTreeNode, scalar or array
            The lower bound.
        a_max : Tensor, OpTreeNode, scalar or array
            The upper bound.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the operands' broadcast shape; or ``out``.
        """
        a, a_min, a_max = as_rows(self, "clip", a, a_min, a_max)
        return build_node(self, OPS["minimum"], build_node(self, OPS["maximum"], a, a_min), a_max, out)

    @checks_names
    def round(self, a: OperandLike, decimals: int = 0, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return the values rounded to a number of decimal digits, ties to even.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        decimals : int, default 0
            The number of decimal digits to keep; negative ones round to tens, hundreds and so on.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the operand's shape; or ``out``.
        """
        return as_operand(self, a, "round").round(decimals, out)

    def relu(self, a: OperandLike, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return ``max(a, 0)``, the rectified linear unit.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the operand's shape; or ``out``.
        """
        return build_node(self, OPS["maximum"], a, 0, out)

    def sig2(self, a: OperandLike, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return ``1 / (1 + 2^-a)``.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the operand's shape; or ``out``.
        """
        return build_node(self, OPS["sig"], build_node(self, OPS["mul"], a, LN2), None, out)

    def tanh2(self, a: OperandLike, out: Tensor | None = None) -> OpTreeNode | Tensor:
        """Return ``(2^2a - 1) / (2^2a + 1)``.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the operand's shape; or ``out``.
        """
        return build_node(self, OPS["tanh"], build_node(self, OPS["mul"], a, LN2), None, out)

    @checks_names
    def mean(
        self,
        a: OperandLike,
        axis: AxisLike = None,
        partial: object = None,
        out: Tensor | None = None,
        keepdims: bool = True,
    ) -> OpTreeNode | Tensor:
        """Return the mean over one axis, several or all.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        axis : int, tuple of int or None, default None
            The axes to reduce; None for all axes.
        partial : optional
            Accepted as in neon, and ignored.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.
        keepdims : bool, default True
            Keep the reduced axes with size 1; a result has two dimensions or more.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree with the reduced axes of size 1 or removed; or ``out``.
        """
        x, dtype = _to_accumulation_dtype(self, a, axis, "mean")
        return self.astype(_mean(self, x, axis, keepdims), dtype, out)  # type: ignore[return-value]

    @checks_names
    def var(
        self,
        a: OperandLike,
        axis: AxisLike = None,
        partial: object = None,
        out: Tensor | None = None,
        keepdims: bool = True,
        binary: bool = False,
    ) -> OpTreeNode | Tensor:
        """Return the population variance, ``mean((a - mean(a))^2)``, over one axis, several or all.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        axis : int, tuple of int or None, default None
            The axes to reduce; None for all axes.
        partial : optional
            Accepted as in neon, and ignored.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.
        keepdims : bool, default True
            Keep the reduced axes with size 1; a result has two dimensions or more.
        binary : bool, default False
            Multiply by the nearest power of two (``shift``) instead of squaring.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree with the reduced axes of size 1 or removed; or ``out``.
        """
        x, dtype = _to_accumulation_dtype(self, a, axis, "var")
        return self.astype(_variance(self, x, axis, keepdims, binary), dtype, out)  # type: ignore[return-value]

    @checks_names
    def std(
        self,
        a: OperandLike,
        axis: AxisLike = None,
        partial: object = None,
        out: Tensor | None = None,
        keepdims: bool = True,
        binary: bool = False,
    ) -> OpTreeNode | Tensor:
        """Return the standard deviation, the square root of ``var``, over one axis, several or all.

        The gradient is 0 where it is 0, a subgradient.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        axis : int, tuple of int or None, default None
            The axes to reduce; None for all axes.
        partial : optional
            Accepted as in neon, and ignored.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.
        keepdims : bool, default True
            Keep the reduced axes with size 1; a result has two dimensions or more.
        binary : bool, default False
            Multiply by the nearest power of two (``shift``) instead of squaring.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree with the reduced axes of size 1 or removed; or ``out``.
        """
        x, dtype = _to_accumulation_dtype(self, a, axis, "std")
        variance = _variance(self, x, axis, keepdims, binary)
        return self.astype(self.where(self.equal(variance, 0), 0, self.sqrt(variance)), dtype, out)  # type: ignore[return-value]

    def binarize(
        self, a: OperandLike, stochastic: bool | Tensor = True, out: Tensor | None = None, **ignored: object
    ) -> OpTreeNode | Tensor:
        """Return +1 where ``a >= 0``, else -1; if stochastic, +1 with probability ``clip((a + 1) / 2, 0, 1)``.

        neon's order of arguments, ``binarize(a, out, stochastic)``, is accepted as well.

        Parameters
        ----------
        a : Tensor, OpTreeNode, scalar or array
            The operand.
        stochastic : bool, default True
            Whether to sample.
        out : Tensor, optional
            Evaluate into this tensor now, instead of returning an op-tree.
        **ignored
            Accepted as in neon, and ignored.

        Returns
        -------
        OpTreeNode or Tensor
            An op-tree of the operand's shape; or ``out``.
        """
        if isinstance(stochastic, Operand):
            out, stochastic = stochastic, out is None or bool(out)
        a = as_operand(self, a, "binarize")
        if stochastic:
            return build_node(self, OPS["sub"], 2 * (self.rand(a.shape) < self.clip((a + 1) / 2, 0, 1)), 1, out)
        return build_node(self, OPS["sub"], 2 * (a >= 0), 1, out)


def _random_node(
    be: BackendBase, op: str, shape: tuple[ShapeLike, ...], out: Tensor | None, *attrs: tuple[str, Any]
) -> OpTreeNode | Tensor:
    if not shape and out is not None:
        shape = out.shape
    to = be.shape_of(shape[0] if len(shape) == 1 else shape)
    return build_node(be, OPS[op], RandomSource(be), None, out, (*attrs, ("to", to)))


def _to_accumulation_dtype(be: BackendBase, a: OperandLike, axis: AxisLike, method: str) -> tuple[Operand, str]:
    """Return ``a`` in a dtype for sums and squares (float32 for 16-bit floats), and the dtype of the result."""
    a = as_operand(be, a, method)
    if reduction_size(a, axis, method) == 0:
        raise ValueError(f"be.{method}({describe(a)}): expected at least one element along axis {axis}, got none")
    dtype = a.info.dtype if a.info.dtype in FLOAT_DTYPES else be.default_dtype_name
    return widen_half(be, be.astype(a, dtype)), dtype


def _mean(be: BackendBase, a: Operand, axis: AxisLike, keepdims: bool = True) -> OpTreeNode:
    return be.sum(a, axis=axis, keepdims=keepdims) * (1.0 / reduction_size(a, axis, "mean"))


def _variance(be: BackendBase, a: Operand, axis: AxisLike, keepdims: bool, binary: bool) -> OpTreeNode:
    d = a - _mean(be, a, axis)
    return _mean(be, be.shift(d, d) if binary else be.square(d), axis, keepdims)
