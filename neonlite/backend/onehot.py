"""One-hot tensors that remember their class ids, so that a product with one becomes a table lookup."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from neonlite.backend.tensor import Tensor


class OneHot(Tensor):
    """A read-only tensor (nclass, n) with a 1 in row ``ids[0, i]`` of each column i. Call ``update()`` to rewrite it.

    Parameters
    ----------
    nclass : int
        The number of classes, which is the number of rows.
    ids : Tensor
        The class ids, integers of shape (1, n).
    name : str, optional
        The name of the tensor.
    allow_empty : bool, default False
        Whether an id may be -1, which gives a column of zeros.

    Attributes
    ----------
    token_ids : Tensor or None
        The ids, if a layer may look them up instead of reading the columns. None with ``allow_empty``, and on runtimes
        without read-only arrays, where a write could make the columns differ from the ids.
    """

    __slots__ = ("_classes", "_writable", "ids", "token_ids")

    def __init__(self, nclass: int, ids: Tensor, name: str | None = None, allow_empty: bool = False) -> None:
        be = ids.backend
        dense = be.zeros((nclass, ids.size), name=name)
        read_only = be.runtime.read_only_view(dense._array)
        array = dense._array if read_only is None else read_only
        super().__init__(array, dense.info, name, allocation=dense.allocation)
        self._writable = dense
        self._classes = be.array(np.arange(nclass).reshape(-1, 1), dtype="int32")
        self.ids = ids
        self.token_ids = None if allow_empty or read_only is None else ids

    def update(self) -> OneHot:
        """Write the columns for the current ids.

        Returns
        -------
        OneHot
            The tensor itself.

        Raises
        ------
        IndexError
            An id is not a class.
        """
        lowest = -1 if self.token_ids is None else 0
        ids = self.ids.numpy()
        if ids.min(initial=0) < lowest or ids.max(initial=-1) >= self.shape[0]:
            raise IndexError(
                f"{self._describe()}.update: expected ids from {lowest} to {self.shape[0] - 1}, got {self.ids}"
            )
        # be.onehot would allocate, and does not accept -1
        self._writable[:] = self.backend.equal(self._classes, self.ids)
        return self

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise ValueError(
            f"{self._describe()}: expected a writable tensor, got a one-hot tensor. Change its ids "
            "and call update(), or copy it with be.array(t)."
        )
