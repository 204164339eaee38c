"""What may be known of a tensor whose columns have one 1 each?  Where it is: a product with it is a look-up."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from neonlite.backend.tensor import Tensor


class OneHot(Tensor):
    """Columns with a 1 in the row that ``ids`` (1, n) says: (nclass, n). Only ``show()`` writes them.

    With ``gaps`` an id may be -1, for a column of zeros. ``words`` are the ids where a layer may go by them: it is None
    with gaps, and on runtimes whose arrays cannot be closed to writing, so that ones may be elsewhere than ids say.
    """

    __slots__ = ("_classes", "_open", "ids", "words")

    def __init__(self, nclass: int, ids: Tensor, name: str | None = None, gaps: bool = False) -> None:
        be = ids.backend
        dense = be.zeros((nclass, ids.size), name=name)
        closed = be.runtime.closed(dense._array)
        super().__init__(dense._array if closed is None else closed, dense.info, name, memory=dense.memory)
        self._open = dense
        self._classes = be.array(np.arange(nclass).reshape(-1, 1), dtype="int32")
        self.ids = ids
        self.words = None if gaps or closed is None else ids

    def show(self) -> OneHot:
        """Write the ones where ids are now, and return the tensor. IndexError for an id that is no class."""
        lowest = -1 if self.words is None else 0
        ids = self.ids.peek()
        if ids.min(initial=0) < lowest or ids.max(initial=-1) >= self.shape[0]:
            raise IndexError(f"{self._words()}: ids are from {lowest} to {self.shape[0] - 1}; got {self.ids}")
        self._open[:] = self.backend.equal(self._classes, self.ids)  # be.onehot would allocate, and refuse -1
        return self

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise ValueError(f"{self._words()} shows words as one-hot columns and is not written: copy it, be.array(t)")
