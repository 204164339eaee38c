"""Snapshots of objects' attributes, to detect whether any changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from neonlite.backend.builtin_classes import is_builtin
from neonlite.optree import Operand


class Untracked:
    """Base of classes whose objects snapshots do not look into: they depend only on what is recorded elsewhere."""

    __slots__ = ()


OPAQUE: tuple[type, ...] = (int, float, str, bytes, type(None), type, np.generic, np.ndarray, np.dtype)
OPAQUE += (Operand, BuiltinFunctionType, ModuleType, Untracked)


class AttributeSnapshot:
    """The current attributes of objects, and of all objects that their attributes refer to, directly or indirectly.

    ``custom_class`` is the name of a class or function found among them whose behavior may depend on more than
    attributes (see ``can_replay``); "" if there is none.
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        self.recorded: list[tuple[Any, Any, tuple[Any, ...]]] = []  # (container, names to ignore, values)
        self.custom_class = ""
        rest, visited = list(objects), set()
        while rest:
            x = rest.pop()
            if id(x) in visited or isinstance(x, OPAQUE):
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
            skipped: Any = ()
            if not isinstance(x, list | tuple | dict | set | frozenset):
                if not can_replay(x):
                    self.custom_class = (x if isinstance(x, FunctionType) else type(x)).__qualname__
                if isinstance(x, FunctionType) or not hasattr(x, "__dict__"):
                    continue
                skipped, x = getattr(x, "result_attributes", ()), vars(x)
            rest += (current := values(x, skipped))
            if not isinstance(x, tuple | frozenset):  # those are immutable
                self.recorded.append((x, skipped, current))

    def is_unchanged(self) -> bool:
        """Return whether no attribute has changed since the snapshot."""
        try:
            return all(values(x, skipped) == recorded for x, skipped, recorded in self.recorded)
        except Exception:  # == of two arrays has no truth value; another class may raise any error. Then they differ
            return False


def values(x: Any, skipped: Any = ()) -> tuple[Any, ...]:
    """Return the values of a container, except those of the names ``skipped``."""
    if skipped:
        return tuple([value for name, value in x.items() if name not in skipped])
    return tuple(x.values()) if isinstance(x, dict) else tuple(x)


def can_replay(x: object) -> bool:
    """Return whether an object depends only on its attributes: its class is built in, or has ``can_replay = True``."""
    return is_builtin(type(x)) or getattr(x, "can_replay", False)
