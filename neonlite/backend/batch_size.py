"""The batch size of one thread, and the shard: what one of several processes computes of a training step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from neonlite.backend.tensor import Tensor
from neonlite.backend.validation import integer
from neonlite.messages import describe
from neonlite.typing import BackendBase


class Shard(NamedTuple):
    """The columns ``start`` to ``stop - 1`` of a minibatch of ``total`` columns, which all processes compute together.

    Parameters
    ----------
    start, stop : int
        The columns of this process.
    total : int
        Number of columns of the minibatch.
    communicator : Communicator
        Connects the processes.
    shards_states : bool
        Whether each process updates a part of the parameters only, those without ``RemoteStates``.
    """

    start: int
    stop: int
    total: int
    communicator: Any
    shards_states: bool = False

    def of(self, width: int) -> Shard:
        """Return the shard of a minibatch with fewer columns, in the same proportion.

        Parameters
        ----------
        width : int
            Number of columns of the minibatch.
        """
        if width == self.total:
            return self
        start, stop = (n * width // self.total for n in (self.start, self.stop))
        return self._replace(start=start, stop=stop, total=width)


class RemoteStates(tuple[()]):
    """The states of a parameter that another process updates: none in this one. See ``world().shard_states``."""


def check_states_are_local(where: str, parameters: Iterable[Tensor]) -> None:
    """Raise RuntimeError if another process has the optimizer states of a parameter."""
    if any(isinstance(w.states, RemoteStates) for w in parameters):
        raise RuntimeError(
            f"{where}: expected the optimizer states of all parameters, got those of one rank: the last fit was with "
            "world().shard_states. Save a checkpoint within fit, by Callbacks(save_path=...), and load that; or "
            "continue with fit(..., distributed=True) on all ranks; or save without states, by keep_states=False."
        )


@contextmanager
def use_shard(be: BackendBase, shard: Shard | None) -> Iterator[None]:
    """Use a shard within a ``with`` block, in the current thread: iterators then yield the columns of the shard only.

    Parameters
    ----------
    be : Backend
        The backend of the minibatches.
    shard : Shard or None
        The shard of a complete minibatch; None: all columns.
    """
    state = be.thread_bsz
    before = state.shard, state.minibatch_shard
    state.shard = state.minibatch_shard = shard
    try:
        yield
    finally:
        state.shard, state.minibatch_shard = before


def complete_batch_size(be: BackendBase) -> int:
    """Return the number of samples of a complete minibatch, of all processes together; 0 if it is not set."""
    return be.bsz if be.shard is None else be.shard.total


def global_batch_size(be: BackendBase) -> int:
    """Return the number of samples of the current minibatch, which may be partial, of all processes together."""
    return be.bsz if be.minibatch_shard is None else be.minibatch_shard.total


def draw_samples(be: BackendBase, draw: Callable[[int], Any], n: int, axis: int = -1) -> Any:
    """Return random numbers of n samples, along an axis of an op-tree, the same on any number of processes.

    ``draw(n)`` returns those of n samples; a process draws those of all processes, and takes its own.
    """
    if (shard := be.minibatch_shard) is None:
        return draw(n)
    drawn = draw(shard.total)
    index = [(0, size, 1) for size in drawn.shape]
    index[axis] = shard.start, n, 1
    return be.build("slice", drawn, index=tuple(index))


class ShardMethods(BackendBase):
    """The methods of ``Backend`` by which layers exchange columns of minibatches with other processes."""

    def distribute_data(self, tensor: Tensor, layer_parallelism: str) -> Tensor:
        """Return the part of an activation or error tensor that a layer of this process needs.

        Without ``Communicator.sharded``, there is one process, and this is the tensor itself.

        Parameters
        ----------
        tensor : Tensor
            The columns (F, n) of this process, or (F, N) of all processes.
        layer_parallelism : str
            "Data": the columns of this process. "Disabled" or "Unknown": the columns of all processes.

        Returns
        -------
        Tensor
            The tensor if it has these columns, else a view of it or a new tensor.

        Raises
        ------
        ValueError
            The parallelism is another one, such as "Model", or the tensor has another number of columns.
        """
        if (shard := self.minibatch_shard) is None:
            return tensor
        if layer_parallelism not in ("Data", "Disabled", "Unknown"):
            raise ValueError(
                "be.distribute_data: expected the parallelism 'Data', 'Disabled' or 'Unknown', got "
                f"{layer_parallelism!r}"
            )
        to_all = layer_parallelism != "Data"
        result = convert_columns(self, shard, tensor, to_all)
        if result is not tensor:
            self.distributed[id(result)] = result
        return result

    def revert_tensor(self, tensor: Tensor) -> Tensor:
        """Return a result of ``distribute_data`` with the columns that its argument had.

        Parameters
        ----------
        tensor : Tensor
            The tensor.

        Returns
        -------
        Tensor
            The tensor itself if ``distribute_data`` returned its argument, else a new one.
        """
        shard = self.minibatch_shard
        if shard is None or self.distributed.get(id(tensor)) is not tensor:
            return tensor
        return convert_columns(self, shard, tensor, to_all=tensor.shape[1] != shard.total)


def convert_columns(be: BackendBase, shard: Shard, tensor: Tensor, to_all: bool) -> Tensor:
    """Return the columns of all processes, or of this one, of a tensor with the others; or the tensor itself."""
    local, columns = shard.stop - shard.start, tensor.shape[1]
    if columns == (shard.total if to_all else local):
        return tensor
    if columns != (local if to_all else shard.total):
        raise ValueError(
            f"be.distribute_data: expected {local} columns, or {shard.total} of all processes, got {describe(tensor)}"
        )
    if not to_all:
        return tensor[:, shard.start : shard.stop]
    return be.array(np.concatenate(shard.communicator.all_gather_objects(tensor.get()), axis=1), tensor.info.dtype)


# --- the batch size of one thread: ``with be.batch_size(n): ...`` ---

DEFAULT_BATCH_SIZE = 32  # of Model.fit(X, y), and of summary() if be.bsz is not set


class BatchSize(threading.local):
    """The batch size of the current thread, None if it uses the backend's; and its shards, see ``Shard``."""

    value: int | None = None
    shard: Shard | None = None  # of a complete minibatch
    minibatch_shard: Shard | None = None  # of the current minibatch, which may be partial


def check_batch_size(n: object) -> int:
    """Return a batch size as a Python int; TypeError or ValueError otherwise."""
    return integer("be.bsz: the batch size (0 if not set)", n, 0)


def require_batch_size(be: BackendBase, where: str) -> int:
    """Return the batch size of a backend; ValueError if it is not set."""
    if not be.bsz:
        raise ValueError(
            f"{where}: expected a batch size, got none. Set it with gen_backend(batch_size=N), or be.bsz = N."
        )
    return be.bsz


class BatchSizeMethods(BackendBase):
    """The batch size of a backend."""

    @property
    def bsz(self) -> int:
        """The batch size N; 0 if it is not set."""
        value = self.thread_bsz.value
        return self._bsz if value is None else value

    @bsz.setter
    def bsz(self, n: int) -> None:
        n = check_batch_size(n)
        if self.thread_bsz.value is None:
            self._bsz = n
        else:
            self.thread_bsz.value = n

    @property
    def shard(self) -> Shard | None:
        """The columns of a complete minibatch that this process computes; None: all. See ``Communicator.sharded``."""
        return self.thread_bsz.shard

    @property
    def minibatch_shard(self) -> Shard | None:
        """The columns of the current minibatch, which may be partial, that this process computes; None: all."""
        return self.thread_bsz.minibatch_shard

    @contextmanager
    def batch_size(self, n: int) -> Iterator[None]:
        """Set ``be.bsz`` within a ``with`` block, for the current thread only.

        Parameters
        ----------
        n : int
            The batch size.
        """
        before = self.thread_bsz.value
        self.thread_bsz.value = check_batch_size(n)
        try:
            yield
        finally:
            self.thread_bsz.value = before
