"""Where do deltas lie?  In as few buffers as the way back can do with: one is free again once its error was read.

The way back is gone once without numbers. Each layer says where its deltas are to lie, knowing where its error does,
and frees that; then the buffers are made, each as large as the largest that lies in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any


class Place:
    """A buffer to be: how many elements it has, who is to get it, and how many have yet to read what is in it."""

    def __init__(self, size: int, readers: float = 1) -> None:
        self.size, self.readers = size, readers
        self.takers: list[Callable[[Any], Any]] = []

    @property
    def exclusive(self) -> bool:
        """Whether one who reads it may write over it."""
        return self.readers == 1


class Deltas:
    """The places of a way back, in the order in which they are taken and freed."""

    def __init__(self) -> None:
        self.places: list[Place] = []

    def outside(self) -> Place:
        """Return the place of an error that comes from elsewhere, and is nobody's to write over."""
        return Place(0, math.inf)

    def take(self, size: int, taker: Callable[[Any], Any]) -> Place:
        """Return a free place for so many elements; ``taker`` is called with its buffer when that is made."""
        free = sorted((place for place in self.places if not place.readers), key=lambda place: place.size)
        place = next((place for place in free if place.size >= size), free[-1] if free else None)
        if place is None:
            place = Place(size)
            self.places.append(place)
        place.size, place.readers = max(place.size, size), 1
        place.takers.append(taker)
        return place

    def hold(self, place: Place | None, times: int = 1) -> None:
        """Note that there are more who read a place."""
        if place is not None:
            place.readers += times

    def free(self, place: Place | None) -> None:
        """Note that somebody has read a place, and needs it no more."""
        if place is not None:
            place.readers -= 1

    def allocate(self, make: Callable[[str, int], Any]) -> None:
        """Make the buffers, by ``make(name, elements)``, and hand them out."""
        for number, place in enumerate(self.places):
            buffer = make(f"deltas {number}", place.size)
            buffer.root.persist_values = False  # who takes a place again needs nothing of what was there
            for taker in place.takers:
                taker(buffer)


class Sum:
    """The sum of errors that come back from several sides: over one of them, where nobody else needs that."""

    def __init__(self) -> None:
        self.into: int | None = None  # over which of them
        self.own: Any = None  # where else

    def reserve(self, deltas: Deltas, places: Sequence[Place | None], size: int) -> Place | None:
        """Say where the sum is to lie, given where the errors do."""
        found = [i for i, place in enumerate(places) if place is not None]
        if len(found) < 2:
            self.into = found[0] if found else None
            return places[found[0]] if found else None
        self.into = next((i for i in found if places[i].exclusive), None)  # type: ignore[union-attr]
        target = places[self.into] if self.into is not None else deltas.take(size, self.give)
        for i in found:
            if i != self.into:
                deltas.free(places[i])
        return target

    def give(self, buffer: Any) -> None:
        """Take a place of its own."""
        self.own = buffer

    def add(self, errors: Sequence[Any]) -> Any:
        """Return the sum; None when there are no errors."""
        found = [error for error in errors if error is not None]
        if len(found) < 2:
            return found[0] if found else None
        target = self.own.share(found[0].shape) if self.into is None else errors[self.into]
        target[:] = sum(found[1:], found[0])
        return target
