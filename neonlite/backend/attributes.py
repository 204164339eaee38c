"""Snapshots of objects' attributes, to detect whether any changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from neonlite.optree import Operand

OPAQUE: tuple[Any, ...] = (int, float, str, bytes, type(None), type, np.generic, np.ndarray, np.dtype)
OPAQUE += (Operand, BuiltinFunctionType, ModuleType)
SKIPPED_PACKAGE = "neonlite.backend"  # backends, plans and assignments depend only on attributes recorded elsewhere


class AttributeSnapshot:
    """The current attributes of objects, and of all objects that their attributes refer to, directly or indirectly.

    ``custom_class`` is the name of a class or function found among them that is not part of neonlite, so that its
    behavior may depend on more than attributes (see ``can_replay``); "" if there is none.
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        self.recorded: list[tuple[Any, Any, tuple[Any, ...]]] = []  # (container, names to ignore, values)
        self.custom_class = ""
        rest, visited = list(objects), set()
        while rest:
            x = rest.pop()
            if id(x) in visited or isinstance(x, OPAQUE) or type(x).__module__.startswith(SKIPPED_PACKAGE):
                continue
            visited.add(id(x))
            if isinstance(x, partial | MethodType):
                rest += [x.func, *x.args, x.keywords] if isinstance(x, partial) else [x.__self__, x.__func__]
                continue
            skipped: Any = ()
            if not isinstance(x, list | tuple | dict | set | frozenset):
                definition = x if isinstance(x, FunctionType) else type(x)
                if not can_replay(definition, x):
                    self.custom_class = definition.__qualname__
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
        except (TypeError, ValueError):  # == of two different tensors or arrays has no single truth value
            return False


def values(x: Any, skipped: Any = ()) -> tuple[Any, ...]:
    """Return the values of a container, except those of the names ``skipped``."""
    if skipped:
        return tuple([value for name, value in x.items() if name not in skipped])
    return tuple(x.values()) if isinstance(x, dict) else tuple(x)


def can_replay(definition: Any, x: Any) -> bool:
    """Return whether a class or function is part of neonlite, or the object ``x`` has ``can_replay = True``."""
    return is_builtin(definition) or getattr(x, "can_replay", False)


def is_builtin(definition: Any) -> bool:
    """Return whether a class or function is part of neonlite; subclasses that users define are not."""
    return str(definition.__module__).startswith("neonlite.")
