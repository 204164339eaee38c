"""Where are numbers while a library has them in an order of its own?  In a room that goes with the tensor's memory.

Convolutions are fast where the maps of a pixel lie side by side: they read and write images (C, D, H, W, N) as
(N, D, H, W, C). What one leaves in a room the next takes from there, and ops that look at each element alone are done
there. Whoever reads the memory itself has the numbers copied there first, once. Who prefers such an order is oneDNN on
the CPU, and cuDNN on a card.

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


class Here(threading.local):
    """What belongs to a thread."""

    moves: Moves | None = None  # of the block that it records


_here = Here()


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


class State(NamedTuple):
    """Where the numbers of some memory are: the attributes of its room."""

    apart: bool = False  # whether the room has the numbers
    in_order: bool = True  # whether the memory has them
    span: tuple[int, int] = (0, 0)  # of the memory, in elements
    form: Form = Form(0, 0, 0)
    array: Any = None  # the stretch of the memory, as a row
    place: Any = None  # the room, as a row that is as long or longer
    entry: Any = None  # of the room in the ledger
    owner: Any = None  # a weak reference to the tensor whose numbers they are


class Stored:
    """The room of some memory. Numbers of a stretch are in the memory, in the room if they lie *apart*, or in both."""

    apart: bool
    in_order: bool
    span: tuple[int, int]
    form: Form
    array: Any
    place: Any
    entry: Any
    owner: Any
    __slots__ = (*State._fields, "keeper", "matrix")

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.matrix: Any = None  # the room as a tensor (pixels of all images, maps), when one was asked for
        self.state = State()

    @property
    def state(self) -> State:
        """Where the numbers are now."""
        return State(*[getattr(self, name) for name in State._fields])

    @state.setter
    def state(self, state: State) -> None:
        for name, value in zip(State._fields, state, strict=True):
            setattr(self, name, value)

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
    if _here.moves is not None:
        _here.moves.look(t.memory)
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
        if _here.moves is not None:
            raise RuntimeError("memory is shown to others for the first time, and so loses its room")
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
    if _here.moves is not None:
        _here.moves.look(t.memory)
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
        return form_of(self.array)

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


def read_images(x: Any) -> Any:
    """Return the array of images, with the numbers in it; an array is returned as it is, as is None."""
    return x.read() if isinstance(x, Images) else x


def written_images(x: Any, beta: float = 0.0) -> Any:
    """Return the array of images that are to be written; with beta 0 it does not matter what they were."""
    return x.written(whole=beta == 0) if isinstance(x, Images) else x


def form_of(array: Any) -> Form:
    """Return the sizes of images (C, D, H, W, N)."""
    maps, *_, images = array.shape
    return Form(maps, array.size // (maps * images), images)


def may_take(x: Any, others: Sequence[Any]) -> bool:
    """Tell whether results may be left apart: in the room of a memory of which no other argument has a part."""
    if not isinstance(x, Images) or not can_lie_apart(x.tensor):
        return False
    return not any(isinstance(y, Images) and y.tensor.memory is x.tensor.memory for y in others)


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
        if not can_lie_apart(t) or sum(t.memory is other.memory for other in targets) > 1:
            return None
        stored = t.memory.stored
        if stored is not None and stored.apart and stored.span != t.span:  # others have its room: until now?
            gone = stored.in_order or covers(t, stored) or begins_anew(t, stored)
            if not gone or any(x.memory is t.memory for x in operands):
                return None
    return like if all(brought(x, like.form, like.keeper) for x in others) else None


# --- what is recorded ------------------------------------------------------------------------------------------------


class Moves:
    """Where a recorded block finds numbers, and where it leaves them: what is launched asks nobody, so it must be told.

    ``with moves: ...`` records: rooms are then said to be as they were, as nothing has run.
    """

    def __init__(self, ledger: Any) -> None:
        self.ledger, self.had_rooms = ledger, ledger.has_rooms
        self.before: dict[Held, State | None] = {}  # memory -> its room when first looked at; None where there is none
        self.after: dict[Held, State | None] = {}

    def look(self, memory: Any) -> None:
        """Be told that the block depends on where the numbers of a memory are."""
        if isinstance(memory, Held) and not memory.is_shown and memory not in self.before:
            self.before[memory] = memory.stored and memory.stored.state

    def __enter__(self) -> Moves:
        _here.moves = self
        return self

    def __exit__(self, *_: object) -> None:
        _here.moves = None
        self.after = {memory: memory.stored and memory.stored.state for memory in self.before}
        self._set(self.before)

    def begin(self) -> bool:
        """Bring all numbers to where the block finds them; tell whether that can be: its rooms may be gone."""
        if self.had_rooms != self.ledger.has_rooms or not all(map(self._has_room, self.before)):
            return False
        for memory, state in self.before.items():
            if (stored := memory.stored) is not None:
                bring(stored, state)
        return True

    def end(self) -> None:
        """Say that the block has run."""
        self._set(self.after)

    def _set(self, states: dict[Held, State | None]) -> None:
        for memory, state in states.items():
            if (stored := memory.stored) is not None and state is not None:
                stored.state = state
            elif stored is not None:
                stored.apart, stored.in_order = False, True

    def _has_room(self, memory: Held) -> bool:
        """Tell whether a memory has the very room that the block knows, if it knows one."""
        known = [state for state in (self.before[memory], self.after[memory]) if state is not None]
        if not known:
            return True
        return memory.stored is not None and all(x.place is None or x.place is memory.stored.place for x in known)


def bring(stored: Stored, state: State | None) -> None:
    """Bring numbers to where they once were. That they may be elsewhere as well does no harm."""
    same = state is not None and state.apart and stored.apart and same_images(stored.state, state)
    if stored.apart and not (same and state and not state.in_order):
        stored.settle()
    if state is not None and state.apart and not same:
        stored.keeper.turn(state.form, state.array, state.place[: state.array.size], False)
        stored.state = state._replace(in_order=True)


def same_images(one: State, other: State) -> bool:
    """Tell whether two states are of the same tensor, as the same images."""
    owners = [state.owner and state.owner() for state in (one, other)]
    return one.span == other.span and one.form == other.form and owners[0] is owners[1]
