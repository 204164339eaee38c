"""Attributes of objects: which ones built-in classes have, and snapshots that detect whether any changed."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import is_, itemgetter
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from neonlite.messages import describe
from neonlite.name_hints import attribute_hint
from neonlite.optree import Operand
from neonlite.typing import Untracked

_builtin_classes: set[type] = set()


def declare_builtin(exports: Iterable[object]) -> None:
    """Declare the classes among the exports of a package, and their bases, to be built in."""
    for x in exports:
        if isinstance(x, type):
            _builtin_classes.update(x.__mro__)


def is_builtin(cls: type) -> bool:
    """Return whether a class is built in."""
    return cls in _builtin_classes


def has_builtin_method(cls: type, name: str) -> bool:
    """Return whether a built-in class defines a method that a class has or inherits."""
    return is_builtin(next(base for base in cls.__mro__ if name in vars(base)))


# --- attributes of built-in objects: setting one that no code of the object's class sets is an error ---

STORE_ATTR, EXTENDED_ARG = dis.opmap["STORE_ATTR"], dis.opmap["EXTENDED_ARG"]


def check_attribute(obj: object, name: str) -> None:
    """Raise AttributeError unless an object may get a new attribute.

    Names with an underscore and objects of custom classes may get any.
    """
    cls: Any = type(obj)
    is_known = name.startswith("_") or hasattr(cls, name) or not cls.__module__.startswith("neonlite.")
    if not is_known and name not in (names := assigned_names(cls)):
        hint = attribute_hint(
            name, [x for x in {*names, *dir(cls)} if not x.startswith("_") and (x in names or hasattr(cls, x))]
        )
        where = vars(obj).get("name") or cls.__name__
        raise AttributeError(f"{where}: expected an attribute of {cls.__name__}, got {describe(name)}. {hint}")


@functools.cache
def assigned_names(cls: type) -> frozenset[str]:
    """Return the names of all attributes that a class, or one of its bases, declares or sets."""
    functions = [x for base in cls.__mro__ for value in vars(base).values() for x in functions_of(value)]
    declared = [name for base in cls.__mro__ for name in inspect.get_annotations(base)]
    return frozenset([*declared, *(name for function in functions for name in stored_names(function.__code__))])


def functions_of(value: Any) -> Iterator[FunctionType]:
    """Yield the functions of a value in the namespace of a class: a function, method or property."""
    for x in (value, *(getattr(value, name, None) for name in ("fget", "fset", "func", "__func__", "__wrapped__"))):
        if isinstance(x, FunctionType):
            yield x


def stored_names(code: CodeType) -> Iterator[str]:
    """Yield the names of attributes that a function, or a function in it, sets."""
    extension = 0
    for opcode, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        if opcode == STORE_ATTR:
            yield code.co_names[extension | argument]
        extension = (extension | argument) << 8 if opcode == EXTENDED_ARG else 0
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from stored_names(constant)


# --- snapshots of objects' attributes, to detect whether any changed ---

SCALARS: frozenset[type] = frozenset([int, float, bool, str, bytes, type(None)])
OPAQUE: tuple[type, ...] = (*SCALARS, type, np.generic, np.ndarray, np.dtype)
OPAQUE += (Operand, BuiltinFunctionType, ModuleType, Untracked)


class AttributeSnapshot:
    """The current attributes of objects, and of all objects that their attributes refer to, directly or indirectly.

    ``custom_class`` is the name of a class or function found among them whose behavior may depend on more than
    attributes (see ``can_replay``); "" if there is none. ``excluded`` is the name of the attribute in which a class
    lists the attributes that are left out.
    """

    def __init__(self, objects: Sequence[Any], excluded: str = "result_attributes") -> None:
        self.parts: list[tuple[Callable[[Any], Any], Any]] = []  # functions of containers, and the containers
        self.recorded: list[Any] = []  # what the functions returned
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
            values: Any = x.values() if isinstance(x, dict) else x
            if not isinstance(x, dict | list | tuple | set | frozenset):
                if not can_replay(x):
                    self.custom_class = (x if isinstance(x, FunctionType) else type(x)).__qualname__
                if isinstance(x, FunctionType) or not hasattr(x, "__dict__"):
                    continue
                values = vars(x).values()
                if names := getattr(x, excluded, ()):
                    rest += self._record_attributes(vars(x), [name for name in vars(x) if name not in names])
                    continue
            rest += values
            if not isinstance(x, tuple | frozenset):  # those are immutable
                self._record(tuple, values)

    def _record(self, read: Callable[[Any], Any], container: Any) -> None:
        """Compare what a function returns of a container."""
        self.parts.append((read, container))
        self.recorded.append(read(container))

    def _record_attributes(self, attributes: dict[str, Any], names: Sequence[str]) -> list[Any]:
        """Compare some attributes, and their number, as a new one may hide one of the class; return their values."""
        self._record(len, attributes)
        if names:
            self._record(itemgetter(*names), attributes)
        return [attributes[name] for name in names]

    def is_unchanged(self) -> bool:
        """Return whether no attribute has changed since the snapshot."""
        try:
            return [read(container) for read, container in self.parts] == self.recorded
        except Exception:  # == of two arrays has no truth value; another class may raise any error. Then they differ
            return False


def same_objects(x: Collection[Any], y: Collection[Any]) -> bool:
    """Return whether two collections consist of the same objects, in the same order."""
    return len(x) == len(y) and all(map(is_, x, y))


def can_replay(x: object) -> bool:
    """Return whether an object depends only on its attributes: its class is built in, or has ``can_replay = True``."""
    return is_builtin(type(x)) or getattr(x, "can_replay", False)
