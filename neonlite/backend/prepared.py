"""What is worth keeping of an assignment that comes again?  All but the numbers: targets, plan, and operands."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

from neonlite.backend.stored import run
from neonlite.backend.tensor import Tensor
from neonlite.optree import Operand

Assignment = tuple[Sequence[Tensor], Sequence[Any]]  # tensors, and their values


class Prepared:
    """An assignment that is planned; a call runs it. A copy is planned anew, for the copies of its tensors."""

    def __init__(self, be: Any, tensors: Sequence[Tensor], values: Sequence[Any]) -> None:
        self.be, self.tensors, self.values = be, list(tensors), list(values)
        self.tree = be._one(tensors, values)
        self.leaves: list[Any] | None = None
        if self.tree.leaves is not None:
            self.plan = be._planned(tensors, self.tree)
            self.leaves = list(self.tree.leaves.values())

    def __call__(self) -> None:
        if self.leaves is None:  # too many to carry: planned anew each time
            self.be._run_several(self.tensors, self.tree)
            return
        if self.be.closed:
            self.be._check_open()
        leaves = [x.storage if isinstance(x, Tensor) else x for x in self.leaves]
        try:
            if self.plan.bounds:
                self.plan.check(leaves)
            if self.be.ledger.has_rooms:
                run(self.plan, self.tensors, self.leaves)
            else:
                self.plan.run([t.storage for t in self.tensors], leaves)
        except Exception as error:
            raise self.be._explained(error, self.tensors, self.tree) from error

    def take(self, values: Sequence[Any]) -> bool:
        """Take other values, where they differ from those it has in numbers alone, and tell whether they do."""
        tree = self.be._one(self.tensors, values)
        if self.leaves is None or tree.leaves is None or tree[0] is not self.tree[0]:
            return False
        leaves = list(tree.leaves.values())
        if any(x is not y for x, y in zip(self.leaves, leaves, strict=True) if isinstance(x, Tensor)):
            return False
        self.values, self.tree, self.leaves = list(values), tree, leaves
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> Prepared:
        be, tensors, values = (copy.deepcopy(x, memo) for x in (self.be, self.tensors, self.values))
        return Prepared(be, tensors, values)


class Habit:
    """An assignment that is made again and again: for the same operands as the last time it is prepared."""

    def __init__(self) -> None:
        self.operands: tuple[Any, ...] = ()  # held, so that no others are taken for them
        self.assignment: Assignment = (), ()
        self.prepared: Callable[[], None] | None = None

    def __call__(self, be: Any, operands: tuple[Any, ...], spell: Callable[[], Assignment]) -> None:
        """Assign what ``spell()`` says, which depends on the operands and on nothing else that changes."""
        if len(operands) != len(self.operands) or not all(map(is_, operands, self.operands)):
            self.operands, self.prepared = (), None  # as long as there is nothing to remember
            self.assignment = spell()
            be.assign(*self.assignment)
            self.operands = operands
        elif self.prepared is not None:
            self.prepared()
        elif self.assignment[0] and all(isinstance(x, Operand) for x in self.assignment[1]):
            self.prepared = be.prepare(*self.assignment)
            self.prepared()
        else:
            be.assign(*self.assignment)

    def __deepcopy__(self, memo: dict[int, Any]) -> Habit:
        return Habit()  # the operands of a copy are others
