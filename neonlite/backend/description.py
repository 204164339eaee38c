"""How does an object become data, and data an object?  By its class, and by what its constructor was given."""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import numpy as np

from neonlite.backend.bfloat16 import holds_numbers
from neonlite.optree import describe

_counts: dict[str, Iterator[int]] = defaultdict(itertools.count)  # of objects without a name, by class
_known: WeakValueDictionary[str, type[Described]] = WeakValueDictionary()  # by module and name; of two, the later one

OURS = ("neonlite.", "neon.")  # neon's descriptions have its own modules in them


class Described:
    """What has a name, ``ClassName_0`` unless given, and can be told as data: ``{"type": ..., "config": {...}}``.

    The constructor's arguments are attributes of the same names. ``type`` is a name, looked up among the classes that
    are defined by then, one's own as well; nothing is imported for it.

    >>> from neonlite.initializers import Gaussian, Initializer
    >>> description = Gaussian(scale=0.1, name="small").get_description()
    >>> description
    {'type': 'neonlite.initializers.Gaussian', 'config': {'loc': 0.0, 'scale': 0.1, 'name': 'small'}}
    >>> Initializer.recursive_gen(description)
    Gaussian(loc=0.0, scale=0.1, name='small')
    """

    told_by: ClassVar[dict[str, str]] = {}  # arguments that are attributes of other names

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _known[f"{cls.__module__}.{cls.__name__}"] = cls

    def __init__(self, name: str | None = None) -> None:
        self.name = f"{self.classnm}_{next(_counts[self.classnm])}" if name is None else name

    @property
    def classnm(self) -> str:
        """The name of the class."""
        return type(self).__name__

    @property
    def modulenm(self) -> str:
        """The name of the class and of the module that has it."""
        return f"{type(self).__module__}.{self.classnm}"

    def get_description(self, skip: Sequence[str] = ()) -> dict[str, Any]:
        """Return the type, and the name and the constructor's arguments but those in ``skip``, as data for JSON.

        Objects are told by their descriptions, arrays and tensors by nested lists. TypeError for what is no data, such
        as a function, and for an argument that is no attribute.
        """
        config = {}
        for name in arguments(type(self)):
            if name in skip:
                continue
            attribute = self.told_by.get(name, name)
            if not hasattr(self, attribute):
                raise TypeError(
                    f"{self.name}: the constructor of {self.classnm} takes {name}, and no attribute {attribute} tells "
                    f"what was given: set self.{attribute}, or write get_description and gen_class"
                )
            config[name] = described(getattr(self, attribute), f"{self.name}: {name}")
        if "name" not in skip:
            config.setdefault("name", self.name)
        return {"type": self.modulenm, "config": config}

    @classmethod
    def gen_class(cls, pdict: dict[str, Any]) -> Any:
        """Return a new object of this class from the ``config`` of a description."""
        given = {key: remade(value) for key, value in pdict.items()}
        name = None if "name" in arguments(cls) else given.pop("name", None)
        made = cls(**given)
        if name is not None:
            made.name = name
        taken(f"{made.name}")
        return made

    @classmethod
    def recursive_gen(cls, pdict: dict[str, Any]) -> Any:
        """Return a new object from a description; ValueError when its class is unknown, or not this one or below it."""
        if not isinstance(pdict, dict) or not {"type", "config"} <= set(pdict):
            raise TypeError(f"a description is {{'type': ..., 'config': {{...}}}}; got {describe(pdict)}")
        found = known(pdict["type"])
        if not issubclass(found, cls):
            raise ValueError(f"{pdict['type']} is no {cls.__name__}")
        return found.gen_class(pdict["config"])


def arguments(cls: type) -> list[str]:
    """Return the names of a constructor's arguments; where it takes any, those of the base class as well."""
    found: dict[str, None] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        found |= dict.fromkeys(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return list(found)


def described(value: Any, what: str) -> Any:
    """Return a value as data for JSON; TypeError, which says ``what`` it is, when it is none."""
    if isinstance(value, Described):
        return value.get_description()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return [described(x, f"{what}[{i}]") for i, x in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: described(x, f"{what}[{key!r}]") for key, x in value.items()}
    if type(value) in (bool, int, float):
        return value
    try:
        return host(value).tolist()
    except (TypeError, ValueError):
        raise TypeError(
            f"{what} is {describe(value)}, a {type(value).__name__}, which is no data: a description holds numbers, "
            "strings, lists, dicts with strings for keys, arrays, and objects that have one; write a class of your own "
            "below Transform, Initializer or what it is to be, with the constructor's arguments as attributes"
        ) from None


def host(value: Any) -> np.ndarray[Any, Any]:
    """Return numbers as an array on the host. TypeError or ValueError for what are none."""
    array = np.asarray(value.get() if hasattr(value, "shape") and hasattr(value, "get") else value)
    if not holds_numbers(array):
        raise TypeError(f"{describe(value)} is no array of numbers")
    return array


def remade(value: Any) -> Any:
    """Return the object of a description; other values as they are, with the objects in their lists and dicts."""
    if isinstance(value, list):
        return [remade(x) for x in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("type"), str) and isinstance(value.get("config"), dict):
        return Described.recursive_gen(value)
    return {key: remade(x) for key, x in value.items()}


def known(name: str) -> type[Described]:
    """Return the class of a type. ValueError, with those of like names, when there is none.

    A class that has moved to another module is found by its own name: one of neonlite's, or of neon's, among those of
    neonlite, and one of yours among yours. A name without a module is that of neonlite's class, else of yours.
    """
    if name in _known:
        return _known[name]
    classes, last = dict(_known), name.rpartition(".")[2]
    alike = [x for x in classes if x.rpartition(".")[2] == last]
    for kind in (ours(name),) if "." in name else (True, False):
        found = [x for x in alike if ours(x) == kind]
        if len(found) == 1:
            return classes[found[0]]
    from difflib import get_close_matches

    names = {path.rpartition(".")[2].lower(): path for path in classes}
    near = alike or [names[word] for word in get_close_matches(last.lower(), names)]
    raise ValueError(
        f"no class is of type {name!r}{'; near are ' + ', '.join(sorted(near)) if near else ''}; a class of your own "
        "is known once it is defined: import its module first"
    )


def ours(path: str) -> bool:
    """Tell whether a class, by its type, is one of neonlite's or neon's."""
    return path.startswith(OURS)


def taken(name: str) -> None:
    """Take note of a name such as ``Linear_3``: objects that are named later get other ones."""
    words, _, number = name.rpartition("_")
    if number.isdecimal() and number.isascii():
        _counts[words] = itertools.count(max(int(number) + 1, next(_counts[words])))
