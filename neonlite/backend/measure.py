"""Measurements of a backend: memory and its peak, and timing marks."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from neonlite.backend.concurrency import create_lock
from neonlite.typing import BackendBase


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes, formatted: 1.5 kB."""
    for unit in ("B", "kB", "MB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} GB"


# --- memory tracking: bytes allocated for tensors, arenas and workspaces, their peak, and errors of allocations ---

MAX_PENDING_RECORDS = 1000  # records in the queue before they are added to the totals


class MemoryUsage(NamedTuple):
    """The bytes that a backend has allocated now, and the largest total so far; prints with units.

    Attributes
    ----------
    tensors : int
        Bytes of tensors that own their memory. Views and arrays shared by other libraries are not counted.
    arena : int
        Bytes of temporaries, registers and partial results of op-trees.
    workspaces : int
        Bytes of the workspaces of primitives.
    peak : int
        The largest total since the backend was created, or since ``be.reset_peak()``.
    """

    tensors: int
    arena: int
    workspaces: int
    peak: int

    @property
    def total(self) -> int:
        """The bytes of tensors, arena and workspaces together."""
        return self.tensors + self.arena + self.workspaces

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {format_bytes(n)}" for name, n in zip(self._fields, self[:-1], strict=False))
        return f"{format_bytes(self.total)}: {parts}; peak {format_bytes(self.peak)}"


class OutOfMemoryError(MemoryError):
    """An allocation failed. The message has the requested bytes, the allocated bytes, and how to use less memory."""


class Allocation:
    """A tracked block of memory. It lives as long as the memory, and records the release when it is deleted."""

    __slots__ = ("add_record", "release_record")

    release_record: tuple[str, int]
    add_record: Callable[[tuple[str, int]], None]

    def __del__(self) -> None:
        if hasattr(self, "release_record"):  # else an error interrupted ``track``
            self.add_record(self.release_record)


class ExternalMemory:
    """Memory that the backend did not allocate."""


Memory = Allocation | ExternalMemory  # of a tensor, shared by its views


class ThreadEnd:
    """A thread's token: it is deleted when the thread ends, and then clears the thread's cache."""

    def __init__(self, tracker: MemoryTracker) -> None:
        self.tracker, self.thread = weakref.ref(tracker), threading.get_ident()

    def __del__(self) -> None:
        if hasattr(self, "thread") and (tracker := self.tracker()) is not None:  # else an error interrupted __init__
            tracker.by_thread.pop(self.thread, None)


class MemoryTracker:
    """The memory that one runtime has allocated, and each thread's cache of buffers, ``thread_cache``.

    ``thread_cache`` is not a ``threading.local``: Python's garbage collector does not see the values of one, so what
    they refer to, which may be a whole backend, would live as long as the thread.

    Allocations and releases are appended to a queue, and added to the totals on demand. A queue accepts records from
    all threads without a lock and in order, also from objects that are garbage-collected at an arbitrary moment.
    """

    def __init__(self) -> None:
        self.by_thread: dict[int, dict[Any, Any]] = {}
        self.current_stream: Callable[[], int] | None = None  # of a runtime with streams, which share no buffers
        self.ends = threading.local()  # each thread's ThreadEnd, with only a weak reference to this object
        self.bytes = {"tensors": 0, "arena": 0, "workspaces": 0}
        self.total = self.peak = 0
        self.pending_records: deque[tuple[str, int]] = deque()
        self.add_record = self.pending_records.append
        self.lock = create_lock()  # held while records are added to the totals

    def track(self, nbytes: int, kind: str = "tensors") -> Allocation:
        """Count ``nbytes`` as allocated until the returned object is deleted."""
        allocation = Allocation()  # no constructor, as this runs for every tensor
        allocation.add_record = self.add_record
        self.add_record((kind, nbytes))
        allocation.release_record = kind, -nbytes  # set last: ``__del__`` records a release only if it is set
        if len(self.pending_records) > MAX_PENDING_RECORDS:
            self._apply_records()
        return allocation

    def _apply_records(self) -> None:
        with self.lock:
            bytes_of, next_record = self.bytes, self.pending_records.popleft
            while self.pending_records:
                kind, nbytes = next_record()
                bytes_of[kind] += nbytes
                self.total += nbytes
                if self.total > self.peak:
                    self.peak = self.total

    def usage(self) -> MemoryUsage:
        """Return the bytes allocated now."""
        with self.lock:
            self._apply_records()
            return MemoryUsage(**self.bytes, peak=self.peak)

    def reset_peak(self) -> None:
        """Reset the peak to the bytes allocated now."""
        with self.lock:
            self._apply_records()
            self.peak = self.total

    @property
    def thread_cache(self) -> dict[Any, Any]:
        """The current thread's arena, workspaces and views of them, on its stream; cleared when the thread ends."""
        cache = self.by_thread.get(threading.get_ident())
        if cache is None:
            self.ends.token = ThreadEnd(self)
            cache = self.by_thread.setdefault(threading.get_ident(), {})
        return cache if self.current_stream is None else cache.setdefault(self.current_stream(), {})

    @contextmanager
    def separate_buffers(self) -> Iterator[None]:
        """Give the current thread other buffers in a ``with`` block, for plans that run while an op of a plan runs."""
        cache = self.thread_cache
        buffers = dict(cache)
        cache.clear()
        try:
            yield
        finally:
            cache.clear()
            cache.update(buffers)

    def clear_thread_cache(self) -> None:
        """Clear the caches of all threads."""
        self.by_thread.clear()


class DeviceMemory(NamedTuple):
    """The free and total bytes of a device; prints with units.

    Attributes
    ----------
    free : int
        Bytes that can be allocated.
    total : int
        All bytes of the device.
    """

    free: int
    total: int

    def __str__(self) -> str:
        return f"{format_bytes(self.free)} free of {format_bytes(self.total)}"


class MemoryMethods(BackendBase):
    """The methods of ``Backend`` for memory."""

    def memory(self) -> MemoryUsage:
        """Return the memory that the backend has allocated.

        Returns
        -------
        MemoryUsage
            Bytes of tensors, of the arena of op-trees and of workspaces, and their peak.

        Examples
        --------
        >>> import neonlite as nl
        >>> be = nl.Backend.allocate_backend("cpu")
        >>> x = be.zeros((1000, 250))
        >>> print(be.memory())
        1 MB: tensors 1 MB, arena 0 B, workspaces 0 B; peak 1 MB
        """
        return self.memory_tracker.usage()

    def device_memory(self) -> DeviceMemory | None:
        """Return the free and total memory of the device; ``be.memory()`` is what this backend has allocated.

        Returns
        -------
        DeviceMemory or None
            Free and total bytes; None for the host.
        """
        info = self.runtime.mem_get_info()
        return None if info is None else DeviceMemory(*info)

    def reset_peak(self) -> None:
        """Reset the peak of ``memory()`` to the bytes allocated now."""
        self.memory_tracker.reset_peak()


# --- timing marks of a backend, as in neon: record the time at which work is finished ---


class Mark:
    """A timing mark: the clock in seconds, None until recorded."""

    seconds: float | None = None


class TimingMethods(BackendBase):
    """The methods of ``Backend`` for timing marks."""

    def init_mark(self) -> Mark:
        """Create a timing mark.

        Returns
        -------
        Mark
            A mark for ``record_mark``.
        """
        return Mark()

    def record_mark(self, marker: Mark) -> None:
        """Record the time at which all work so far is finished.

        Parameters
        ----------
        marker : Mark
            The mark.
        """
        self.runtime.synchronize()
        marker.seconds = time.perf_counter()

    def synchronize_mark(self, marker: Mark) -> None:
        """Wait until the work before a mark is finished.

        Parameters
        ----------
        marker : Mark
            A recorded mark.
        """
        self.runtime.synchronize()

    def get_time(self, start: Mark, end: Mark) -> float:
        """Return the time between two marks.

        Parameters
        ----------
        start, end : Mark
            Recorded marks.

        Returns
        -------
        float
            Milliseconds.

        Raises
        ------
        ValueError
            A mark is not recorded.
        """
        if start.seconds is None or end.seconds is None:
            raise ValueError(
                "be.get_time: expected two recorded marks, got one that is not. Call be.record_mark first."
            )
        return (end.seconds - start.seconds) * 1e3
