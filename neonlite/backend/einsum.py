"""Einstein summation: contract operands pairwise as op-trees, in the order chosen by opt_einsum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from neonlite.backend.tree_operands import as_operand
from neonlite.backend.validation import instance
from neonlite.messages import describe, truncate_message
from neonlite.optree import Operand
from neonlite.typing import OperandLike

if TYPE_CHECKING:
    from neonlite.backend.base import BackendBase


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
