"""Attributes of built-in objects: setting one that no code of the object's class sets is an error.

Otherwise a typo, or an attribute of another library such as ``requires_grad``, would silently have no effect.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from neonlite.messages import describe
from neonlite.name_hints import attribute_hint

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
