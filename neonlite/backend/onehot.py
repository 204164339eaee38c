"""What may be known of a tensor whose columns have one 1 each?  Where it is: a product with it is a look-up."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from neonlite.backend.tensor import Tensor


class OneHot(Tensor):
    """Columns with a 1 in the row that ``ids`` (1, n) says: (nclass, n). Only ``show()`` writes them.

    ``words`` are the ids where a layer may go by them: it is None while some are -1, for a column of zeros, and on
    runtimes whose arrays cannot be closed to writing, so that ones may be elsewhere than where ids say.
    """

    __slots__ = ("_classes", "_open", "ids", "words")

    def __init__(self, nclass: int, ids: Tensor, name: str | None = None) -> None:
        be = ids.backend
        dense = be.zeros((nclass, ids.size), name=name)
        closed = be.runtime.closed(dense._array)
        super().__init__(dense._array if closed is None else closed, dense.info, name, memory=dense.memory)
        self._open = dense
        self._classes = be.array(np.arange(nclass).reshape(-1, 1), dtype="int32")
        self.ids = ids
        self.words: Tensor | None = None

    def show(self, all_known: bool = True) -> OneHot:
        """Write the ones where ids are now, and return the tensor; ``all_known``: no id is -1."""
        self._open[:] = self.backend.equal(self._classes, self.ids)  # be.onehot would allocate, and refuse -1
        self.words = self.ids if all_known and self._array is not self._open._array else None
        return self

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise ValueError(f"{self._words()} shows words as one-hot columns and is not written: copy it, be.array(t)")
