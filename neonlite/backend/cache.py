"""Cache, a dict of bounded size that forgets what was not used for longest; closing a backend empties its caches."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from neonlite.backend.lock import create_lock

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
