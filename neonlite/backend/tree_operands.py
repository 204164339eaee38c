"""Operands of op-trees: checks, copies of arrays, ``build_node``, which evaluates the tree for ``out``; and einsum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from neonlite.backend.creation import as_row, to_host_array
from neonlite.backend.validation import instance
from neonlite.messages import describe, truncate_message
from neonlite.ops import Op
from neonlite.ops.functions import normalize_axes
from neonlite.optree import Operand, OpTreeNode, create_node
from neonlite.tree_inference import as_leaf, not_an_operand
from neonlite.tree_structure import Attrs
from neonlite.typing import LIMITS, ArrayLike, AxisLike, BackendBase, OperandLike

if TYPE_CHECKING:
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


# --- Einstein summation: contract operands pairwise as op-trees, in the order chosen by opt_einsum ---


def einsum(be: BackendBase, subscripts: str, operands: Sequence[OperandLike]) -> Operand:
    """Return the op-tree of an einsum. Raises ValueError if the subscripts and the shapes do not match."""
    from opt_einsum import contract_path

    instance("be.einsum: subscripts", subscripts, str, "a string, such as 'ij,jk->ik',")
    trees = [as_operand(be, x, "einsum") for x in operands]
    call = f"be.einsum({subscripts!r}, {describe(*trees)})"
    shapes = [x.shape for x in trees]
    try:
        terms, output = parse_subscripts(subscripts, shapes)
        sizes = label_sizes(terms, shapes)
        path = contract_path(f"{','.join(terms)}->{output}", *shapes, shapes=True)[0]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{call}: {truncate_message(error)}") from None
    remaining = [Term(be, x, term, sizes) for x, term in zip(trees, terms, strict=True)]
    for chosen in path:
        pair = [remaining.pop(i) for i in sorted(chosen, reverse=True)][::-1]
        needed = set(output).union(*(p.labels for p in remaining))
        result = pair[0].sum_unused(needed.union(*(p.labels for p in pair[1:])))
        for other in pair[1:]:
            result = result.contract(other.sum_unused(needed | set(result.labels)), needed)
        remaining.append(result)
    return remaining[0].sum_unused(set(output)).transpose_to(output).tree


def parse_subscripts(subscripts: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str]:
    """Return the labels of each operand, and those of the result, with letters for "..."."""
    from opt_einsum.parser import parse_einsum_input

    if wrong := sorted(set(subscripts) - set(ascii_letters + ",.-> ")):
        raise ValueError(f"expected letters, commas and '->' as subscripts, got {wrong[0]!r}")
    inputs, output, _ = parse_einsum_input((subscripts, *shapes), shapes=True)
    return inputs.split(","), output


def label_sizes(terms: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Return {label: size}. Raises ValueError if a label has two sizes."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if len(term) != len(shape):
            hint = ". A vector is a column (n, 1) and needs two letters." if len(term) < 2 else ""
            raise ValueError(
                f"expected one letter per axis, got {term!r} with {len(term)} letters for an operand of shape "
                f"{shape}{hint}"
            )
        for label, n in zip(term, shape, strict=True):
            if sizes.setdefault(label, n) != n:
                raise ValueError(f"expected one size for the label {label!r}, got {sizes[label]} and {n}")
    return sizes


class Term:
    """An op-tree and the labels of its axes. A tree has two axes or more: those without a label are last, of size 1."""

    def __init__(self, be: BackendBase, tree: Operand, labels: str, sizes: dict[str, int]) -> None:
        self.be, self.tree, self.labels, self.sizes = be, tree, labels, sizes

    def _replace(self, tree: Operand, labels: str) -> Term:
        return Term(self.be, tree, labels, self.sizes)

    def num_elements(self, labels: str) -> int:
        """Return the product of the sizes of some labels."""
        return math.prod(self.sizes[x] for x in labels)

    def reshape(self, shape: Sequence[int]) -> Any:
        """Return the tree, reshaped."""
        return self.be.reshape(self.tree, tuple(shape))

    def transpose_to(self, labels: str) -> Term:
        """Return the term with its axes in the order of ``labels``."""
        if labels == self.labels or len(labels) < 2:
            return self
        axes = tuple(self.labels.index(x) for x in labels)
        return self._replace(self.be.transpose(self.tree, axes), labels)

    def sum_unused(self, needed: set[str]) -> Term:
        """Return the term with the diagonal of each repeated label, summed over the labels that are not needed."""
        term = self
        while repeated := next((x for x in term.labels if term.labels.count(x) > 1), None):
            term = term._take_diagonal(repeated)
        summed_axes = tuple(i for i, x in enumerate(term.labels) if x not in needed)
        if summed_axes:
            labels = "".join(x for x in term.labels if x in needed)
            term = term._replace(self.be.sum(term.tree, axis=summed_axes, keepdims=False), labels)
        return term

    def _take_diagonal(self, label: str) -> Term:
        """Return the diagonal of two axes with the same label: every (n + 1)th element of the two axes flattened."""
        i = self.labels.index(label)
        j = self.labels.index(label, i + 1)
        rest = [k for k in range(len(self.labels)) if k not in (i, j)]
        n, sizes = self.sizes[label], [self.sizes[self.labels[k]] for k in rest]
        tree = self.be.reshape(self.be.transpose(self.tree, (i, j, *rest)), (n * n, *(sizes or [1])))
        index = ((0, n, n + 1), *((0, m, 1) for m in tree.shape[1:]))
        return self._replace(self.be.build("slice", tree, index=index), label + "".join(self.labels[k] for k in rest))

    def contract(self, other: Term, needed: set[str]) -> Term:
        """Return the product of two terms, summed over the shared labels that are not needed: a batched matmul."""
        shared = [x for x in self.labels if x in other.labels]
        batch = "".join(x for x in shared if x in needed)
        contracted = "".join(x for x in shared if x not in needed)
        rows = "".join(x for x in self.labels if x not in shared)
        columns = "".join(x for x in other.labels if x not in shared)
        labels = batch + rows + columns
        shape = [self.sizes[x] for x in labels]
        if not contracted:
            x = self.transpose_to(batch + rows).reshape([*shape[: len(batch + rows)], *(1 for _ in columns)])
            y = other.transpose_to(batch + columns)
            y = y.reshape([*(self.sizes[a] for a in batch), *(1 for _ in rows), *(self.sizes[a] for a in columns)])
            return self._replace(x * y, labels)
        x = self.transpose_to(batch + rows + contracted)
        y = other.transpose_to(batch + contracted + columns)
        batch_size = [self.num_elements(batch)] if batch else []
        product = x.reshape([*batch_size, self.num_elements(rows), self.num_elements(contracted)]) @ y.reshape(
            [*batch_size, self.num_elements(contracted), self.num_elements(columns)]
        )
        return self._replace(self.be.reshape(product, tuple(shape)), labels)
