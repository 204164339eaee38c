"""What is worth keeping of an assignment that comes again?  All but the numbers: targets, plan, and operands."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from neonlite.backend.stored import run
from neonlite.backend.tensor import Tensor


class Prepared:
    """An assignment that is planned; a call runs it. A copy is planned anew, for the copies of its tensors."""

    def __init__(self, be: Any, tensors: Sequence[Tensor], values: Sequence[Any]) -> None:
        self.be, self.tensors, self.values = be, list(tensors), list(values)
        self.tree = be._one(tensors, values)
        self.leaves: list[Any] | None = None
        if self.tree.leaves is not None:
            self.plan = be._planned(tensors, self.tree)
            self.arrays = [t.storage for t in tensors]
            self.leaves = [x.storage if isinstance(x, Tensor) else x for x in self.tree.leaves.values()]

    def __call__(self) -> None:
        if self.leaves is None:  # too many to carry: planned anew each time
            self.be._run_several(self.tensors, self.tree)
            return
        try:
            if self.plan.bounds:
                self.plan.check(self.leaves)
            if self.be.ledger.has_rooms:
                run(self.plan, self.tensors, self.tree.leaves.values())
            else:
                self.plan.run(self.arrays, self.leaves)
        except Exception as error:
            raise self.be._explained(error, self.tensors, self.tree) from error

    def __deepcopy__(self, memo: dict[int, Any]) -> Prepared:
        be, tensors, values = (copy.deepcopy(x, memo) for x in (self.be, self.tensors, self.values))
        return Prepared(be, tensors, values)
