"""Operands of op-trees: checks, copies of arrays, and ``build_node``, which evaluates the node if ``out`` is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from neonlite.backend.creation import as_row, to_host_array
from neonlite.dtypes import LIMITS
from neonlite.messages import describe, truncate_message
from neonlite.ops import Op
from neonlite.ops.shapes import normalize_axes
from neonlite.optree import Operand, OpTreeNode, create_node
from neonlite.tree_inference import as_leaf, not_an_operand
from neonlite.tree_structure import Attrs
from neonlite.typing import ArrayLike, AxisLike, OperandLike

if TYPE_CHECKING:
    from neonlite.backend.base import BackendBase
    from neonlite.backend.tensor import Tensor


@overload
def build_node(
    be: BackendBase, op: Op, a: object, b: object = None, out: None = None, attrs: Attrs = ()
) -> OpTreeNode: ...
@overload
def build_node(
    be: BackendBase, op: Op, a: object, b: object, out: Tensor | None, attrs: Attrs = ()
) -> OpTreeNode | Tensor: ...
def build_node(
    be: BackendBase, op: Op, a: object, b: object = None, out: Tensor | None = None, attrs: Attrs = ()
) -> OpTreeNode | Tensor:
    """Return the node of an op, or ``out``, into which it is evaluated."""
    check_operands(be, op.method, *((a, b) if op.arity == 2 or b is not None else (a,)))
    node = create_node(op, a, b, attrs, be)
    return node if out is None else be.assign([out], [node])[0]


def check_operands(be: BackendBase, method: str, *operands: object) -> None:
    """Raise TypeError for an operand that is not a tensor, op-tree, scalar or array."""
    for x in operands:
        if as_leaf(x, None, be)[0] is NotImplemented if not isinstance(x, Operand) else False:
            raise not_an_operand(method, x)


def as_operand(be: BackendBase, x: OperandLike, method: str) -> Operand:
    """Return x as a tensor or op-tree: a scalar or array is copied to a tensor; a vector is a column."""
    if isinstance(x, Operand):
        return x
    array: Any = x
    if hasattr(x, "operand"):  # an array of neonlite.array_api
        operand: Operand = array.operand
        return operand if array.ndim > 1 else be.reshape(operand, -1, 1)
    check_operands(be, method, x)
    return be.array(x)


def as_rows(be: BackendBase, method: str, *operands: OperandLike) -> list[Any]:
    """Return the operands of an elementwise function of three, with arrays of one dimension as rows."""
    check_operands(be, method, *operands)
    tensors = [x for x in operands if isinstance(x, Operand)]

    def is_vector(x: Any) -> bool:
        return len(getattr(x, "shape", ())) == 1 and not hasattr(x, "operand")  # an array of the namespace is a row

    return [
        as_row(to_host_array(be, x, be.default_dtype_name), *tensors) if tensors and is_vector(x) else x
        for x in operands
    ]


def as_operands(be: BackendBase, arrays: Sequence[OperandLike], method: str) -> list[Operand]:
    """Return a list of one or more operands, each as a tensor or op-tree."""
    if not isinstance(arrays, list | tuple) or not arrays:
        raise TypeError(f"be.{method}: expected a list of one or more operands, got {describe(arrays)}")
    return [as_operand(be, x, method) for x in arrays]


def as_indices(be: BackendBase, x: ArrayLike, method: str, what: str) -> Operand:
    """Return indices as an operand with an integer dtype."""
    if not isinstance(x, Operand):
        x = _copy_indices(be, x, method, what)
    if x.info.dtype and "int" not in x.info.dtype:
        raise TypeError(
            f"be.{method}: expected integers as {what}, got {describe(x)} with dtype {x.info.dtype}. Use dtype='int32'."
        )
    if x.info.dtype == "uint64":  # runtimes compute with int64: an index that it does not hold is out of range
        return be.astype(be.minimum(x, LIMITS["int64"][1]), "int64")
    return x


def _copy_indices(be: BackendBase, x: ArrayLike, method: str, what: str) -> Tensor:
    import numpy as np

    array = np.asarray(x)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"be.{method}: expected integers as {what}, got {describe(x)} with dtype {array.dtype}")
    return be.array(array, dtype="uint64" if array.dtype == np.uint64 else "int64")


def check_axes(a: Operand, axis: AxisLike, method: str, ndim: int | None = None) -> tuple[int, ...]:
    """Return the axes of an operand as integers >= 0; an error names the method and the operand."""
    try:
        return normalize_axes(axis, a.ndim if ndim is None else ndim)
    except (ValueError, TypeError, IndexError) as error:
        raise type(error)(f"be.{method}({describe(a)}): {truncate_message(error)}") from None


def check_axis(a: Operand, axis: object, method: str, ndim: int | None = None) -> int:
    """Return one axis of an operand as an integer >= 0; an error names the method and the operand."""
    if isinstance(axis, bool) or not isinstance(axis, SupportsIndex):
        raise TypeError(f"be.{method}({describe(a)}): expected an integer as axis, got {axis!r}")
    return check_axes(a, (axis.__index__(),), method, ndim)[0]


def reduction_size(a: Operand, axis: AxisLike, method: str) -> int:
    """Return the number of elements that are reduced to one."""
    return math.prod(a.shape[i] for i in check_axes(a, axis, method))
