"""Where are numbers while a library has them in an order of its own?  In a room that goes with the tensor's memory.

Convolutions are fast where the maps of a pixel lie side by side: they read and write images (C, D, H, W, N) as
(N, D, H, W, C). What one leaves in a room the next takes from there, and ops that look at each element alone are done
there. Whoever reads the memory itself has the numbers copied there first, once.

A room belongs to memory and not to a tensor, so that all views see the same; it has the numbers of one stretch of that
memory at a time. Memory that others may look at without asking has none.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from neonlite.backend.memory import Held
from neonlite.optree import Operand

MOVING = threading.RLock()  # held by who copies between a memory and its room


def _forked() -> None:
    global MOVING
    MOVING = threading.RLock()  # some thread may have held it that is not in the new process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Form(NamedTuple):
    """The sizes of images as far as order goes: (maps, pixels, images) lie as (images, pixels, maps) in a room."""

    maps: int
    pixels: int
    images: int


class Keeper(Protocol):
    """What makes rooms, and copies."""

    def room(self, like: Any) -> tuple[Any, Any]:
        """Return a row of as many elements as another, and its entry in the ledger."""

    def turn(self, form: Form, array: Any, room: Any, back: bool) -> None:
        """Copy images from the memory's order to the room's, or back."""


class Stored:
    """The room of some memory. Numbers of a stretch are in the memory, in the room if they lie *apart*, or in both."""

    __slots__ = ("apart", "array", "entry", "form", "in_order", "keeper", "owner", "place", "span")

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.apart = False  # whether the room has the numbers
        self.in_order = True  # whether the memory has them
        self.span = 0, 0  # of the memory, in elements
        self.form = Form(0, 0, 0)
        self.array: Any = None  # the stretch of the memory, as a row
        self.place: Any = None  # the room, as a row that is as long or longer
        self.entry: Any = None  # of the room in the ledger
        self.owner: Any = None  # a weak reference to the tensor whose numbers they are

    @property
    def room(self) -> Any:
        """The numbers as they lie apart, as a row."""
        return self.place[: self.array.size]

    def has(self, t: Any, form: Form) -> bool:
        """Tell whether what lies apart is just this tensor, as just these images."""
        return self.span == t.span and self.form == form and bool(t.is_contiguous)

    def settle(self) -> None:
        """See to it that the memory has the numbers."""
        with MOVING:
            if not self.in_order:
                self.keeper.turn(self.form, self.array, self.room, True)
                self.in_order = True

    def emptied(self, size: int, like: Any) -> Any:
        """Return a row of the room, to be written: as long as it has to be."""
        if self.place is None or self.place.size < size:
            self.apart, self.place, self.entry = False, None, None  # what is too small goes first
            self.place, self.entry = self.keeper.room(like)
        return self.place[:size]

    def hold(self, t: Any, form: Form, in_order: bool) -> None:
        """Say that the room has the numbers of a contiguous tensor, and whether its memory has them as well."""
        self.span, self.form, self.array = t.span, form, t.storage.reshape(-1)
        self.apart, self.in_order, self.owner = True, in_order, weakref.ref(t)


class Emptied(NamedTuple):
    """A room that is being written. Until that has ended, what was there before is what counts."""

    stored: Stored
    tensor: Any
    form: Form
    room: Any  # as a row

    def end(self, in_order: bool) -> None:
        """Say that the numbers are in the room, and whether they are in the memory as well."""
        self.stored.hold(self.tensor, self.form, in_order)


def found(t: Any) -> Stored | None:
    """Return the room that has numbers of a tensor, of some of its elements at least; None when there is none."""
    stored: Stored | None = getattr(t.memory, "stored", None)
    if stored is None or not stored.apart or t.span[0] >= stored.span[1] or stored.span[0] >= t.span[1]:
        return None
    return stored


def read(t: Any) -> Any:
    """Return the array of a tensor, with its numbers in it."""
    if (stored := found(t)) and not stored.in_order:
        stored.settle()
    return t.storage


def written(t: Any, whole: bool = False) -> Any:
    """Return the array of a tensor that is to be written. ``whole``: every element is, whatever it was."""
    if stored := found(t):
        if not (whole and (covers(t, stored) or begins_anew(t, stored))):
            stored.settle()
        stored.apart, stored.in_order = False, True
    return t.storage


def covers(t: Any, stored: Stored) -> bool:
    """Tell whether nothing that a room has is left when all of a tensor is written."""
    (start, end), (first, last) = t.span, stored.span
    return bool(t.is_contiguous and start <= first and last <= end)


def begins_anew(t: Any, stored: Stored) -> bool:
    """Tell whether a place is taken by another tensor, of values that are not to persist, as those of deltas."""
    if not t.is_contiguous or t.span[0] != stored.span[0] or t.root.persist_values:
        return False
    line, owner = [t], stored.owner and stored.owner()
    while line[-1].base is not None:
        line.append(line[-1].base)
    before = owner
    while before is not None and (before.base is not None or before is owner):
        if any(before is x for x in line):  # a part of what lies there, or another view of it
            return False
        before = before.base
    return owner is not None


def shown(t: Any) -> Any:
    """Return the array of a tensor, of which others know from now on: its memory has no room any more."""
    memory = t.memory
    if isinstance(memory, Held) and not memory.is_shown:
        with MOVING:
            if memory.stored:
                memory.stored.settle()
            memory.stored, memory.is_shown = None, True
    return t.storage


def can_lie_apart(t: Any) -> bool:
    """Tell whether a tensor may have a room: where its elements are neighbors, in memory that nobody else knows."""
    return isinstance(t.memory, Held) and not t.memory.is_shown and t.is_contiguous


def room_of(t: Any, keeper: Keeper) -> Stored:
    """Return the room of a tensor's memory, made when first asked for."""
    if t.memory.stored is None:
        with MOVING:
            t.memory.stored = t.memory.stored or Stored(keeper)
            t.backend.ledger.has_rooms = True
    stored: Stored = t.memory.stored
    return stored


def emptied(t: Any, form: Form, keeper: Keeper) -> Emptied:
    """Return the room of a tensor, all of which is to be written there."""
    stored = room_of(t, keeper)
    with MOVING:
        if stored.apart and (stored.in_order or not (covers(t, stored) or begins_anew(t, stored))):
            stored.settle()
            stored.apart = False
        return Emptied(stored, t, form, stored.emptied(math.prod(t.shape), t.storage.reshape(-1)))


class Images(NamedTuple):
    """Images of a tensor, for a primitive that looks where they lie. ``array``: (C, D, H, W, N), not read yet."""

    tensor: Any
    array: Any

    @property
    def dtype(self) -> Any:
        """That of the numbers."""
        return self.array.dtype

    @property
    def form(self) -> Form:
        """The sizes."""
        maps, *_, images = self.array.shape
        return Form(maps, self.array.size // (maps * images), images)

    @property
    def apart(self) -> Any:
        """The room that has just these images, which the memory has not; None where there is none."""
        stored = found(self.tensor)
        return stored if stored and not stored.in_order and stored.has(self.tensor, self.form) else None

    def read(self) -> Any:
        """Return the array, with the numbers in it."""
        read(self.tensor)
        return self.array

    def written(self, whole: bool = False) -> Any:
        """Return the array, to be written."""
        written(self.tensor, whole)
        return self.array


def brought(t: Any, form: Form, keeper: Keeper) -> Stored | None:
    """Return the room with the numbers of a tensor, copied there unless they are; None if it has others."""
    if not can_lie_apart(t):
        return None
    stored = room_of(t, keeper)
    with MOVING:
        if not stored.apart:
            empty = emptied(t, form, keeper)
            keeper.turn(form, t.storage, empty.room, False)
            empty.end(in_order=True)
        return stored if stored.has(t, form) else None


# --- plans -----------------------------------------------------------------------------------------------------------


def run(plan: Any, targets: Sequence[Any], leaves: Collection[Any]) -> None:
    """Run a plan in rooms, where all that it works on lies apart and alike; else in the memory of its tensors."""
    like = common(plan, targets, [x for x in leaves if isinstance(x, Operand)])
    if like is None:
        values = [read(x) if isinstance(x, Operand) else x for x in leaves]
        plan.run([written(t, whole=not plan.failing) for t in targets], values)
        return
    form, keeper, shape = like.form, like.keeper, targets[0].shape

    def value(x: Any) -> Any:
        if not isinstance(x, Operand):
            return x
        return x.memory.stored.room.reshape(shape) if x.shape == shape else read(x)  # type: ignore[attr-defined]

    values = [value(x) for x in leaves]
    rooms = [emptied(t, form, keeper) for t in targets]
    plan.run([empty.room.reshape(shape) for empty in rooms], values)
    for empty in rooms:
        empty.end(in_order=False)


def common(plan: Any, targets: Sequence[Any], operands: Sequence[Any]) -> Stored | None:
    """Return a room that lies as those of all operands, if a plan can be run there; None if it cannot, or should not.

    It should where that takes no more copies than to have all operands in order.
    """
    rooms = [(x, stored) for x in operands if (stored := found(x)) and not stored.in_order]
    if not rooms or not plan.is_elementwise:
        return None
    (_, like), shape = rooms[0], targets[0].shape
    wide = {(*x.span, x.strides, id(x.memory)): x for x in operands if x.shape == shape}.values()
    if any(x.shape != shape or not stored.has(x, like.form) for x, stored in rooms):
        return None
    others = [x for x in wide if not ((stored := found(x)) and stored.has(x, like.form))]
    if 2 * len(others) > len(wide):
        return None
    for t in targets:
        stored = t.memory.stored if can_lie_apart(t) else None
        mine = can_lie_apart(t) and (stored is None or not stored.apart or stored.span == t.span)
        if not mine or sum(t.memory is other.memory for other in targets) > 1:
            return None
    return like if all(brought(x, like.form, like.keeper) for x in others) else None
