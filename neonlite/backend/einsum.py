"""How does Einstein's sum become a tree?  As products of two operands at a time, in opt_einsum's order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from neonlite.optree import describe, shortened


def einsum(be: Any, subscripts: str, operands: Sequence[Any]) -> Any:
    """Return the tree of an einsum; ValueError where letters and shapes do not fit."""
    from opt_einsum import contract_path
    from opt_einsum.parser import parse_einsum_input

    if not isinstance(subscripts, str):
        raise TypeError(
            f"be.einsum's first argument is the subscripts, such as 'ij,jk->ik'; got {describe(subscripts)}"
        )
    operands = [be._operand(x, "einsum") for x in operands]
    words = f"be.einsum({subscripts!r}, {describe(*operands)})"
    shapes = [x.shape for x in operands]
    try:
        if wrong := sorted(set(subscripts) - set(ascii_letters + ",.-> ")):
            raise ValueError(f"axes are named by letters; got {wrong[0]!r}")
        inputs, output, _ = parse_einsum_input((subscripts, *shapes), shapes=True)
        terms = inputs.split(",")
        sizes = sizes_of(terms, shapes)
        path = contract_path(f"{inputs}->{output}", *shapes, shapes=True)[0]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{words}: {shortened(error)}") from None
    parts = [Part(be, x, term, sizes) for x, term in zip(operands, terms, strict=True)]
    for chosen in path:
        pair = [parts.pop(i) for i in sorted(chosen, reverse=True)][::-1]
        kept = set(output).union(*(p.letters for p in parts))
        result = pair[0].alone(kept.union(*(p.letters for p in pair[1:])))
        for other in pair[1:]:
            result = result.times(other.alone(kept | set(result.letters)), kept)
        parts.append(result)
    return parts[0].alone(set(output)).arranged(output).tree


def sizes_of(terms: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Return {letter: size}; ValueError where a letter stands for two sizes."""
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if len(term) != len(shape):
            hint = "; a vector is a column, (n, 1), and needs two letters" if len(term) < 2 else ""
            raise ValueError(
                f"{term!r} has {len(term)} letters for an operand of {len(shape)} dimensions, {shape}{hint}"
            )
        for letter, n in zip(term, shape, strict=True):
            if sizes.setdefault(letter, n) != n:
                raise ValueError(f"the letter {letter!r} stands for {sizes[letter]} and for {n}: they must be equal")
    return sizes


class Part:
    """A tree and the letters of its axes; fewer than two letters leave axes of size 1 at the end."""

    def __init__(self, be: Any, tree: Any, letters: str, sizes: dict[str, int]) -> None:
        self.be, self.tree, self.letters, self.sizes = be, tree, letters, sizes

    def _with(self, tree: Any, letters: str) -> Part:
        return Part(self.be, tree, letters, self.sizes)

    def count(self, letters: str) -> int:
        """Return the number of elements along some letters."""
        return math.prod(self.sizes[x] for x in letters)

    def shaped(self, shape: Sequence[int]) -> Any:
        """Return the tree in another shape."""
        return self.be.reshape(self.tree, tuple(shape))

    def arranged(self, letters: str) -> Part:
        """Return the part with its axes in the order of ``letters``."""
        if letters == self.letters or len(letters) < 2:
            return self
        axes = tuple(self.letters.index(x) for x in letters)
        return self._with(self.be.transpose(self.tree, axes), letters)

    def alone(self, kept: set[str]) -> Part:
        """Return the part with repeated letters made one (the diagonal), and summed over letters that nobody keeps."""
        part = self
        while twice := next((x for x in part.letters if part.letters.count(x) > 1), None):
            part = part._diagonal(twice)
        gone = tuple(i for i, x in enumerate(part.letters) if x not in kept)
        if gone:
            letters = "".join(x for x in part.letters if x in kept)
            part = part._with(self.be.sum(part.tree, axis=gone, keepdims=False), letters)
        return part

    def _diagonal(self, letter: str) -> Part:
        """Return the part with two axes of one letter made one: every (n + 1)th element of the two as one axis."""
        i = self.letters.index(letter)
        j = self.letters.index(letter, i + 1)
        rest = [k for k in range(len(self.letters)) if k not in (i, j)]
        n, sizes = self.sizes[letter], [self.sizes[self.letters[k]] for k in rest]
        tree = self.be.reshape(self.be.transpose(self.tree, (i, j, *rest)), (n * n, *(sizes or [1])))
        index = ((0, n, n + 1), *((0, m, 1) for m in tree.shape[1:]))
        return self._with(self.be.build("slice", tree, index=index), letter + "".join(self.letters[k] for k in rest))

    def times(self, other: Part, kept: set[str]) -> Part:
        """Return the product of two parts, summed over the letters that both have and nobody keeps."""
        both = [x for x in self.letters if x in other.letters]
        stack = "".join(x for x in both if x in kept)
        summed = "".join(x for x in both if x not in kept)
        rows = "".join(x for x in self.letters if x not in both)
        columns = "".join(x for x in other.letters if x not in both)
        letters = stack + rows + columns
        shape = [self.sizes[x] for x in letters]
        if not summed:
            x = self.arranged(stack + rows).shaped([*shape[: len(stack + rows)], *(1 for _ in columns)])
            y = other.arranged(stack + columns)
            y = y.shaped([*(self.sizes[a] for a in stack), *(1 for _ in rows), *(self.sizes[a] for a in columns)])
            return self._with(x * y, letters)
        x = self.arranged(stack + rows + summed)
        y = other.arranged(stack + summed + columns)
        depth = [self.count(stack)] if stack else []
        product = x.shaped([*depth, self.count(rows), self.count(summed)]) @ y.shaped(
            [*depth, self.count(summed), self.count(columns)]
        )
        return self._with(self.be.reshape(product, tuple(shape)), letters)
