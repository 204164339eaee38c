"""Repeated work: blocks that a GPU replays as CUDA graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import TypeVar

from neonlite.typing import BackendBase

# --- backend methods for blocks of repeated work, which a GPU replays as CUDA graphs ---

T = TypeVar("T")


class Block:
    """The kinds of repeated work, for ``be.begin``, ``be.end`` and ``be.replay``."""

    epoch = 0
    minibatch = 1
    fprop = 2
    bprop = 3
    update = 4


class ReplayMethods(BackendBase):
    """The methods of ``Backend`` for blocks of repeated work."""

    def replay(self, block: Hashable, fn: Callable[[], T], uses: object = (), graphs: bool = True) -> T:
        """Call ``fn()``, a block of work that repeats, or replay it as a CUDA graph.

        On a GPU, the third call with nothing changed captures the block as a CUDA graph. Later calls launch the graph
        and return the captured result without calling ``fn``. Therefore ``fn`` must depend only on the values of
        tensors and the attributes of ``uses``, and must change only values of tensors. When one of these attributes,
        the batch size or the seed changes, ``fn`` is called and captured again. Random numbers are those that ``fn``
        would draw. An out-of-range index raises IndexError at the next read of a tensor. A block that cannot be
        captured is called every time; so is every block on other runtimes.

        Parameters
        ----------
        block : hashable
            The block's name, such as ``Block.minibatch``; blocks may be nested.
        fn : callable
            The work, a function without arguments.
        uses : sequence
            The objects whose attributes ``fn`` reads; default none.
        graphs : bool
            False calls ``fn`` without a graph, as does ``NEONLITE_GRAPHS=0`` in the environment; default True.

        Returns
        -------
        Any
            What ``fn`` returns.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.gen_backend("cpu")
        >>> total, x = be.zeros((1, 1)), be.ones((1, 3))
        >>> def add():
        ...     total[:] = total + be.sum(x)
        >>> for _ in range(4):
        ...     be.replay("add", add, uses=[total, x])
        >>> total.get()
        array([[12.]], dtype=float32)
        """
        if not graphs or self.graphs is None or os.environ.get("NEONLITE_GRAPHS") == "0":
            return fn()
        return self.graphs.replay(block, fn, uses)

    def begin(self, block: int, identifier: int) -> None:
        """Mark the start of a block of repeated work; for compatibility with neon, without effect.

        Parameters
        ----------
        block : int
            The kind of block, such as ``Block.minibatch``.
        identifier : int
            The number of the block.
        """

    def end(self, block: int, identifier: int) -> None:
        """Mark the end of a block of repeated work; for compatibility with neon, without effect.

        Parameters
        ----------
        block : int
            The kind of block, such as ``Block.minibatch``.
        identifier : int
            The number of the block.
        """
