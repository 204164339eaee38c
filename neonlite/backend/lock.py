"""Locks that are fair or released in a forked process, and signals that wait until work is complete."""

from __future__ import annotations

import functools
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from time import monotonic
from types import FrameType
from typing import Any, ParamSpec, TypeVar, cast

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


# --- defer Ctrl-C and the signals that end a process, until the work in progress is in a consistent state ---

P = ParamSpec("P")
T = TypeVar("T")

# The signals that end training, and their default handlers.
ENDING: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
if hasattr(signal, "SIGHUP"):  # not on Windows
    ENDING[signal.SIGHUP] = signal.SIG_DFL


class Terminated(SystemExit):
    """Raised after SIGTERM or SIGHUP. If it is not caught, the process exits with 128 + the signal number.

    Parameters
    ----------
    number : int
        The signal number.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class Active:
    """The object that defers Ctrl-C in the main thread, or None."""

    interrupt: DeferredInterrupt | None = None


class DeferredInterrupt:
    """Context manager that defers Ctrl-C until ``raise_if_pending`` or its end; in training, SIGTERM and SIGHUP too.

    A second signal is raised immediately, except within ``defer``. Ctrl-C raises KeyboardInterrupt, the others
    ``Terminated``. Signals that are ignored, such as SIGHUP under nohup, or that have another handler, such as that of
    an outer DeferredInterrupt, are not affected; nor are signals outside of the main thread, where Python does not
    deliver them.

    Parameters
    ----------
    is_training : bool
        Whether signals end training, after a complete step, and not before the end of an evaluation within it.
    """

    def __init__(self, is_training: bool = False) -> None:
        self.is_training = is_training
        self.pending_signal: int | None = None  # a signal number
        self.is_deferring = False
        self.is_agreed = True  # with several processes: whether all know of the pending signal
        self.previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> DeferredInterrupt:
        self.pending_signal = None
        if Active.interrupt is None and threading.current_thread() is threading.main_thread():
            for number in ENDING if self.is_training else (signal.SIGINT,):
                if signal.getsignal(number) == ENDING[number]:
                    self.previous_handlers[number] = signal.signal(number, self.handle_signal)
            if signal.SIGINT in self.previous_handlers:
                Active.interrupt = self
        return self

    def handle_signal(self, signum: int, frame: FrameType | None) -> None:
        """Record a signal; raise the second one immediately, unless within ``defer``."""
        if self.pending_signal is not None and not self.is_deferring:
            raise ended_by(signum)
        self.pending_signal = signum

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Defer every signal while the context is active."""
        before, self.is_deferring = self.is_deferring, True
        try:
            yield
        finally:
            self.is_deferring = before

    def raise_if_pending(self) -> None:
        """Raise KeyboardInterrupt or Terminated if a signal is pending, and several processes have agreed on it."""
        if self.pending_signal is not None and self.is_agreed:
            number, self.pending_signal = self.pending_signal, None
            raise ended_by(number)

    def agree_on(self, signum: int) -> None:
        """Make a signal that any process has received pending on this one.

        Parameters
        ----------
        signum : int
            The signal number.
        """
        self.pending_signal, self.is_agreed = signum, True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.is_deferring = True
        if Active.interrupt is self:
            Active.interrupt = None
        while self.previous_handlers:
            signal.signal(*self.previous_handlers.popitem())
        self.is_agreed = True
        if error is None and self.pending_signal is not None:
            self.raise_if_pending()
        if self.pending_signal not in (None, signal.SIGINT) and isinstance(
            error, Exception
        ):  # the error may be a result of the signal, as after a closed terminal
            raise ended_by(self.pending_signal) from error


def _end_in_child() -> None:
    """End a forked child by a signal as any other process: the work in progress is that of its parent."""
    Active.interrupt = None
    for number, default in ENDING.items():
        if isinstance(getattr(signal.getsignal(number), "__self__", None), DeferredInterrupt):
            signal.signal(number, default)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_in_child)


def ended_by(number: int) -> BaseException:
    """Return the exception to raise for a signal."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


def active_interrupt() -> DeferredInterrupt | None:
    """Return the object that defers Ctrl-C in this thread, or None."""
    return Active.interrupt if threading.current_thread() is threading.main_thread() else None


def defers_interrupt(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to raise KeyboardInterrupt only where it calls ``raise_interrupt``, and at its end.

    So Ctrl-C does not end a context manager halfway, which would leave a lock, a batch size or a backend set. A second
    Ctrl-C is raised immediately.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with DeferredInterrupt():
            return function(*args, **kwargs)

    return wrapper


def raise_interrupt() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed; within a training do nothing, which ends after a step."""
    active = active_interrupt()
    if active is not None and not active.is_training:
        active.raise_if_pending()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defer every Ctrl-C to the end of the context."""
    active = active_interrupt()
    with DeferredInterrupt() if active is None else nullcontext(active) as interrupt, interrupt.defer():
        yield
