"""The registry of built-in classes: the layers, transforms, optimizers and initializers that are not custom.

A package declares the classes that it exports. A subclass that a user defines is not built in.
"""

from __future__ import annotations

from collections.abc import Iterable

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
