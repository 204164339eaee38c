"""Concurrency: locks that are fair or released in a forked process, signals that wait, caches, and the thread pool."""

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

from neonlite.backend.validation import integer

# --- locks ---

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


# --- caches: dicts of bounded size that forget what was not used for longest; closing a backend empties its own ---

_caches: weakref.WeakSet[Cache] = weakref.WeakSet()
_caches_lock = create_lock()  # a set must not change while it is iterated


def count(key: object, value: object) -> int:
    """Return 1, the cost of an entry of a cache that is limited by the number of entries."""
    return 1


class Cache(dict[Any, Any]):
    """A bounded cache for all threads, in which a lookup ``cache[key]`` is one of a dict.

    It has two generations of half the capacity. Entries are added to the younger one. When this is full, it becomes the
    older one, whose entries are dropped; an entry that is looked up there returns to the younger one. So at least the
    half of the capacity that was used last is kept. ``cache.get(key)`` finds the younger generation only.

    Parameters
    ----------
    capacity : int
        The most that all entries may cost together.
    owner : object, optional
        The memory tracker of the backends whose closing empties the cache. Without one, closing any backend does.
    cost : callable, optional
        ``cost(key, value)`` of an entry; by default each costs 1.
    """

    __slots__ = ("__weakref__", "capacity", "cost", "lock", "older", "older_cost", "owner", "younger_cost")
    older: dict[Any, Any]
    younger_cost: int
    older_cost: int
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    def __init__(self, capacity: int, owner: object = None, cost: Callable[[Any, Any], int] = count) -> None:
        self.capacity, self.owner, self.cost = capacity, owner, cost
        self.lock = create_lock()  # held while the cache changes; lookups need no lock
        self.clear()
        with _caches_lock:
            _caches.add(self)

    def __reduce__(self) -> tuple[Any, ...]:  # a copy is empty: what is cached can be made again
        return Cache, (self.capacity, None, self.cost)

    def __len__(self) -> int:
        return super().__len__() + len(self.older)

    def __missing__(self, key: Any) -> Any:
        return self.add(key, self.older[key])

    def find(self, key: Any) -> Any:
        """Return the value of a key, or None."""
        try:
            return self[key]
        except KeyError:
            return None

    def values(self) -> list[Any]:  # type: ignore[override]
        """Return all values."""
        return [*self.older.values(), *super().values()]

    @property
    def total_cost(self) -> int:
        """The cost of all entries."""
        return self.younger_cost + self.older_cost

    def add(self, key: Any, value: Any) -> Any:
        """Cache a value and return it, or the one that is cached already."""
        with self.lock:
            if key in self:
                return self[key]
            if key in self.older:
                value = self.older[key]
            cost = self.cost(key, value)
            if 2 * (self.younger_cost + cost) > self.capacity:
                self.older, self.older_cost = dict(self), self.younger_cost
                super().clear()
                self.younger_cost = 0
            if self.total_cost + cost > self.capacity:  # after an entry that costs more than half of it
                self.older, self.older_cost = {}, 0
            self[key] = value
            self.younger_cost += cost
            if self.older.pop(key, self) is not self:
                self.older_cost -= cost
            return value

    def replace(self, key: Any, value: Any) -> Any:
        """Cache a value and return it, also in place of one that is cached already, and costs the same."""
        if self.add(key, value) is not value:
            self[key] = value
        return value

    def clear(self) -> None:
        """Drop all entries."""
        with self.lock:
            super().clear()
            self.older, self.younger_cost, self.older_cost = {}, 0, 0


def clear_caches(owner: object) -> None:
    """Empty the caches of a memory tracker, and those that belong to no backend."""
    with _caches_lock:
        caches = list(_caches)
    for cache in caches:
        if cache.owner is None or cache.owner is owner:
            cache.clear()


# --- the thread pool, which is created when it is first used, and again after a fork ---

_pool: Any = None
_num_threads = 0


def get_num_threads() -> int:
    """Return the number of threads: that of ``set_threads``, else OMP_NUM_THREADS, else the available CPUs.

    Returns
    -------
    int
        The number of threads.
    """
    global _num_threads
    if not _num_threads:
        env_value = (
            os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
        )  # OMP_NUM_THREADS may list one number per nesting level
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        _num_threads = int(env_value) if env_value.isdecimal() and int(env_value) else available
    return _num_threads


def set_threads(n: int) -> None:
    """Set the number of threads of this process.

    Results of op-trees do not depend on it; sums inside of primitives may differ in the last digits.

    Parameters
    ----------
    n : int
        The number of threads, at least 1.

    Raises
    ------
    ValueError
        ``n`` is less than 1.
    """
    global _num_threads, _pool
    _num_threads = integer("the number of threads", n)
    _pool = None  # the threads of the old pool end once it is no longer referenced


def parallel_for(work: Callable[[Iterator[int]], None], count: int, workers: int = 0) -> None:
    """Call ``work`` in several threads with one shared iterator over range(count), which yields each index once.

    Parameters
    ----------
    work : callable
        Called with the iterator of indices.
    count : int
        The number of indices.
    workers : int, optional
        The number of calls; the number of threads by default.
    """
    global _pool
    indices = iter(range(count))
    pool, num_threads = _pool, get_num_threads()
    if pool is None:
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(max(1, num_threads - 1), "neonlite")
        are_started = threading.Event()
        try:  # start all threads, as one that fails to start later would leave a part of the work done
            for _ in range(num_threads - 1):
                pool.submit(are_started.wait)
        finally:
            are_started.set()
        _pool = pool
    futures = [pool.submit(work, indices) for _ in range((workers or num_threads) - 1)]
    try:
        work(indices)
    finally:
        for _ in indices:  # after an error, skip the remaining indices
            pass
        errors = [future.exception() for future in futures]  # waits for all of them, so none writes after an error
    for error in filter(None, errors):
        raise error


def _reset_after_fork() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
