"""How much memory is handed out?  A ledger: tensors, arenas and workspaces stand in it as long as they live."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from neonlite.backend.plan import size

MANY = 1000  # notes after which they are added up


class Memory(NamedTuple):
    """The bytes that a backend has handed out, and the most that it ever had; prints in words.

    ``tensors``: of those that own their memory; views, and arrays of other libraries, cost nothing. ``arena``:
    temporaries, registers and partial results of op-trees. ``workspaces``: what primitives work in.
    """

    tensors: int
    arena: int
    workspaces: int
    peak: int

    @property
    def total(self) -> int:
        """The bytes of all three."""
        return self.tensors + self.arena + self.workspaces

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {size(n)}" for name, n in zip(self._fields, self[:-1], strict=False))
        return f"{size(self.total)}: {parts}; peak {size(self.peak)}"


class NoRoom(MemoryError):
    """There is no room for something: with how much it takes, what is held, and what helps."""


class Held:
    """Some memory that is entered in a ledger: it lives as long as the memory does, and notes when that goes."""

    __slots__ = ("entry", "is_shown", "note", "stored")

    entry: tuple[str, int]
    note: Callable[[tuple[str, int]], None]
    stored: Any  # the room where its numbers may lie in another order
    is_shown: bool  # whether others may look at it without asking, so that it has no such room

    def __del__(self) -> None:
        self.note(self.entry)


class Ledger:
    """The memory that one runtime has handed out, and, in ``kept``, what each thread keeps to work in.

    What comes and goes is noted in a queue, and added up when somebody asks: a queue takes notes from all threads
    without a lock, in the order in which things happen, also from garbage that is collected at any moment.
    """

    def __init__(self) -> None:
        self.kept = threading.local()
        self.bytes = {"tensors": 0, "arena": 0, "workspaces": 0}
        self.total = self.peak = 0
        self.notes: deque[tuple[str, int]] = deque()
        self.note = self.notes.append
        self.lock = threading.RLock()  # of whoever adds up
        self.has_rooms = False  # whether numbers of a tensor may be elsewhere than in its memory, or ever were

    def hold(self, nbytes: int, kind: str = "tensors") -> Held:
        """Enter some bytes; the entry lasts as long as what is returned."""
        held = Held()  # this is called for every tensor: a constructor would take longer
        held.entry = (kind, -nbytes)
        held.note, held.stored, held.is_shown = self.note, None, False
        held.note((kind, nbytes))
        if len(self.notes) > MANY:
            self._add_up()
        return held

    def _add_up(self) -> None:
        with self.lock:
            bytes_of, next_note = self.bytes, self.notes.popleft
            while self.notes:
                kind, nbytes = next_note()
                bytes_of[kind] += nbytes
                self.total += nbytes
                if self.total > self.peak:
                    self.peak = self.total

    def memory(self) -> Memory:
        """Return what is held now."""
        with self.lock:
            self._add_up()
            return Memory(**self.bytes, peak=self.peak)

    def reset_peak(self) -> None:
        """Begin the peak anew, at what is held now."""
        with self.lock:
            self._add_up()
            self.peak = self.total

    def forget(self) -> None:
        """Let go of what all threads keep."""
        self.kept = threading.local()


class Room(NamedTuple):
    """The bytes of a device that are free, and all that it has; prints in words."""

    free: int
    total: int

    def __str__(self) -> str:
        return f"{size(self.free)} free of {size(self.total)}"
