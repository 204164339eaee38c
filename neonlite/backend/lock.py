"""Locks: a fair lock for the batch size and layers of a backend, and locks that are released in a forked process."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from operator import attrgetter
from time import monotonic
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])
FORK_WAIT = 2.0  # seconds that a fork waits for the steps and predictions of other threads
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_fair_locks: weakref.WeakSet[FairLock] = weakref.WeakSet()
_held = threading.local()  # its attribute ``locks``: the fair locks that this thread holds during a fork


class FairLock:
    """A fair reentrant lock: a thread that releases it cannot acquire it again before a waiting thread.

    A thread acquires the gate, then the lock, then releases the gate. So while one thread waits for the lock, the
    others wait for the gate. A fork waits until no other thread holds the lock, for at most ``FORK_WAIT`` seconds, so
    that the child has the weights of a complete step, and no locks that a library holds during one.
    """

    # a function in C, since a Python function could be interrupted by Ctrl-C before its first statement
    __exit__ = cast(Callable[..., None], property(attrgetter("_lock.__exit__")))

    def __init__(self) -> None:
        self._gate, self._lock = create_lock(), create_lock()
        _fair_locks.add(self)

    def __enter__(self) -> None:
        acquired: list[bool] = []
        try:
            # ``+=`` acquires and records it in C: Ctrl-C comes before or after both
            if self._lock._is_owned():  # type: ignore[attr-defined]
                acquired += map(self._lock.acquire, (True,))
            else:
                with self._gate:
                    acquired += map(self._lock.acquire, (True,))
        except BaseException:
            if acquired:
                self._lock.release()
            raise

    def acquire(self, timeout: float) -> bool:
        """Wait for the lock for at most ``timeout`` seconds; return whether this thread has acquired it."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            return self._lock.acquire()
        deadline = monotonic() + timeout
        if not self._gate.acquire(timeout=timeout):
            return False
        try:
            return self._lock.acquire(timeout=max(0.0, deadline - monotonic()))
        finally:
            self._gate.release()

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


def create_lock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked child if another thread held it."""
    lock = threading.RLock()
    free_after_fork(lock)
    return lock


def free_after_fork(lock: Any) -> None:
    """Make a lock free in a forked child if another thread held it: that thread does not exist there."""
    _locks.add(lock)


def _before_fork() -> None:
    deadline = monotonic() + FORK_WAIT
    _held.locks = [lock for lock in list(_fair_locks) if lock.acquire(max(0.0, deadline - monotonic()))]


def _after_fork() -> None:
    for lock in _held.__dict__.pop("locks", ()):
        lock.release()


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


def exclusive(method: Method) -> Method:
    """Decorate a method to run while holding the lock of its backend, ``self.be.lock``."""

    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.be.lock:
            return method(self, *args, **kwargs)

    return cast(Method, locked)
