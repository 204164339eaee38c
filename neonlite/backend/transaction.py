"""Transactions: a training step that fails is rolled back.

``atomic(step)`` runs a step. Before code in it changes state that later steps depend on, it registers how to undo the
change: ``Snapshot(tensors).take()`` for tensors, ``restore_on_failure(object, "name")`` for attributes. Values that
every step recomputes, such as outputs and gradients, need neither; nor does the last write of a transaction, see
``begin_last_write``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from operator import is_
from typing import Any, TypeVar

from neonlite.backend.concurrency import DeferredInterrupt, uninterrupted
from neonlite.backend.tensor import Tensor
from neonlite.typing import Untracked

T = TypeVar("T")
MAX_GROUPED_SIZE = 1 << 17  # elements; all tensors up to this size are copied in one plan, larger ones in one plan each


class Log(threading.local):
    """The current thread's transaction."""

    undo: list[tuple[Callable[..., Any], Any]] | None = None  # None outside of transactions
    last: object = None  # the object whose write is the last statement of the transaction that may fail
    is_writing = False  # whether this write has begun

    def __init__(self) -> None:
        self.interrupt = DeferredInterrupt()  # defers every Ctrl-C from this write to the end of the transaction
        self.interrupt.is_deferring = True


log = Log()


def atomic(fn: Callable[..., T], *args: Any, last: object = None) -> T:
    """Return ``fn(*args)``. If it raises, undo the registered changes in reverse order.

    A nested call is part of the outer transaction. ``last`` is the object, if any, whose write is the last statement in
    ``fn`` that may fail; see ``begin_last_write``.

    >>> from neonlite.backend.transaction import atomic, restore_on_failure
    >>> class Counter:
    ...     n = 0
    >>> def count():
    ...     restore_on_failure(counter, "n")
    ...     counter.n += 1
    ...     raise MemoryError
    >>> counter = Counter()
    >>> atomic(count)
    Traceback (most recent call last):
    MemoryError
    >>> counter.n
    0
    """
    if log.undo is not None:
        return fn(*args)
    undo: list[tuple[Callable[..., Any], Any]] = []
    try:
        log.undo, log.last = undo, last
        result = fn(*args)
        log.undo = None
    except BaseException:
        log.undo = None
        with uninterrupted(), ExitStack() as stack:  # runs all callbacks, also if one raises
            for call, arguments in undo:
                stack.callback(call, *arguments)
        raise
    finally:
        is_writing, log.last, log.is_writing = log.is_writing, None, False
        if is_writing:
            log.interrupt.__exit__(None, None, None)
    return result


def begin_last_write(owner: object) -> bool:
    """Return whether the write of ``owner`` is the last statement of the transaction that may fail.

    If so, a write that fails as a whole or not at all, such as one assignment, needs no copies to be undone. From now
    on Ctrl-C is deferred to the end of the transaction.
    """
    if log.last is not owner:
        return False
    if not log.is_writing:
        log.is_writing = True
        log.interrupt.__enter__()
    return True


def on_failure(undo: Callable[..., Any], *args: Any) -> None:
    """Register ``undo(*args)`` to run if the transaction fails; do nothing outside of transactions."""
    if log.undo is not None:
        log.undo.append((undo, args))


def restore_on_failure(obj: object, *names: str) -> None:
    """Register the current values of attributes, to restore them if the transaction fails."""
    on_failure(set_attributes, obj, {name: getattr(obj, name) for name in names})


def set_attributes(obj: object, values: dict[str, object]) -> None:
    """Set attributes by name."""
    for name, value in values.items():
        setattr(obj, name, value)


class Snapshot(Untracked):
    """Copies of tensors, allocated once, from which a failed transaction restores them.

    All tensors, one or more, belong to one backend.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.be = self.tensors[0].backend
        pairs = [(t, self.be.empty(t.shape, dtype=t.info.dtype)) for t in self.tensors]
        groups = [[pair] for pair in pairs if pair[0].size > MAX_GROUPED_SIZE]
        groups += [small] if (small := [pair for pair in pairs if pair[0].size <= MAX_GROUPED_SIZE]) else []
        self.copies = [self.be.compile([c for _, c in group], [t for t, _ in group]) for group in groups]
        self.restorations = [self.be.compile([t for t, _ in group], [c for _, c in group]) for group in groups]

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether the snapshot is of these tensors."""
        return len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))

    def take(self, graphs: bool = True) -> None:
        """Copy the tensors, and register the copies, to restore them if the transaction fails.

        ``graphs`` is whether a GPU may replay the copies as a CUDA graph.
        """
        if (run, (self.restorations,)) in (log.undo or ()):
            return  # the transaction has copied them before
        if self.be.graphs is None:
            run(self.copies)
        else:
            self.be.replay("snapshot", partial(run, self.copies), [self], graphs)
        on_failure(run, self.restorations)


def run(assignments: Sequence[Callable[[], None]]) -> None:
    """Run compiled assignments."""
    for assign in assignments:
        assign()
