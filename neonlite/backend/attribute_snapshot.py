"""Snapshots of objects' attributes, to detect whether any changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from neonlite.backend.base import Untracked
from neonlite.backend.builtin_classes import is_builtin
from neonlite.optree import Operand

SCALARS: frozenset[type] = frozenset([int, float, bool, str, bytes, type(None)])
OPAQUE: tuple[type, ...] = (*SCALARS, type, np.generic, np.ndarray, np.dtype)
OPAQUE += (Operand, BuiltinFunctionType, ModuleType, Untracked)


class AttributeSnapshot:
    """The current attributes of objects, and of all objects that their attributes refer to, directly or indirectly.

    ``custom_class`` is the name of a class or function found among them whose behavior may depend on more than
    attributes (see ``can_replay``); "" if there is none.
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        self.containers: list[Iterable[Any]] = []  # their values are the current ones
        self.recorded: list[tuple[Any, ...]] = []
        self.custom_class = ""
        rest, visited = list(objects), set()
        while rest:
            x = rest.pop()
            if type(x) in SCALARS or id(x) in visited or isinstance(x, OPAQUE):
                continue
            visited.add(id(x))
            if isinstance(x, partial):
                rest += [x.func, *x.args, x.keywords]
                continue
            if isinstance(x, MethodType):
                rest.append(x.__self__)
                if getattr(type(x.__self__), x.__name__, None) is not x.__func__:  # not a method of the object's class
                    rest.append(x.__func__)
                continue
            values: Iterable[Any]
            if isinstance(x, dict):
                values = x.values()
            elif isinstance(x, list | tuple | set | frozenset):
                values = x
            else:
                if not can_replay(x):
                    self.custom_class = (x if isinstance(x, FunctionType) else type(x)).__qualname__
                if isinstance(x, FunctionType) or not hasattr(x, "__dict__"):
                    continue
                names = getattr(x, "result_attributes", ())
                values = ValuesExcept(vars(x), names) if names else vars(x).values()
            rest += values
            if not isinstance(x, tuple | frozenset):  # those are immutable
                self.containers.append(values)
                self.recorded.append(tuple(values))

    def is_unchanged(self) -> bool:
        """Return whether no attribute has changed since the snapshot."""
        try:
            return [*map(tuple, self.containers)] == self.recorded
        except Exception:  # == of two arrays has no truth value; another class may raise any error. Then they differ
            return False


class ValuesExcept:
    """The current values of a dict, except those of some names."""

    def __init__(self, x: dict[str, Any], names: Sequence[str]) -> None:
        self.dict, self.names = x, names

    def __iter__(self) -> Iterator[Any]:
        return iter([value for name, value in self.dict.items() if name not in self.names])


def same_objects(x: Collection[Any], y: Collection[Any]) -> bool:
    """Return whether two collections consist of the same objects, in the same order."""
    return len(x) == len(y) and all(map(is_, x, y))


def can_replay(x: object) -> bool:
    """Return whether an object depends only on its attributes: its class is built in, or has ``can_replay = True``."""
    return is_builtin(type(x)) or getattr(x, "can_replay", False)
