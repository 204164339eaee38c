"""Locks: a fair lock for the batch size and layers of a backend, and locks that are released in a forked process."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast

Method = TypeVar("Method", bound=Callable[..., Any])
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def create_lock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked child: the thread that holds it does not exist there."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _release_after_fork() -> None:
    for lock in _locks:
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_after_fork)


class FairLock:
    """A fair reentrant lock: a thread that releases it cannot acquire it again before a waiting thread.

    A thread acquires the gate, then the lock, then releases the gate. So while one thread waits for the lock, the
    others wait for the gate.
    """

    def __init__(self) -> None:
        self._gate, self._lock = threading.Lock(), threading.RLock()

    def __enter__(self) -> None:
        if self._lock._is_owned():  # type: ignore[attr-defined]
            self._lock.acquire()
            return
        try:
            with self._gate:
                self._lock.acquire()
        except BaseException:  # Ctrl-C
            if self._lock._is_owned():  # type: ignore[attr-defined]
                self._lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def exclusive(method: Method) -> Method:
    """Decorate a method to run while holding the lock of its backend, ``self.be.lock``."""

    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.be.lock:
            return method(self, *args, **kwargs)

    return cast(Method, locked)
