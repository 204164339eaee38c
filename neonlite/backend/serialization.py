"""Serialization of named objects: a class and its constructor arguments as a JSON-compatible dict, and back."""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from reprlib import recursive_repr
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import numpy as np

from neonlite import messages
from neonlite.messages import describe, describe_setting
from neonlite.typing import is_real_array

_name_counters: dict[str, Iterator[int]] = defaultdict(itertools.count)  # class name -> number of the next default name
_classes: WeakValueDictionary[str, type[Serializable]] = WeakValueDictionary()  # registered name -> the latest class

LIBRARY_PREFIXES = ("neonlite.", "neon.")  # descriptions written by neon name neon's modules


class Serializable:
    """Base of named objects that serialize to ``{"type": ..., "config": {...}}``.

    A subclass stores each constructor argument in an attribute of the same name, or of the name that
    ``config_attributes`` gives, except for ``alternative_arguments``. ``type`` is looked up among the classes defined
    so far, custom ones included; nothing is imported. The default name is ``ClassName_0``, ``ClassName_1``, ...

    Parameters
    ----------
    name : str, optional
        The object's name.

    Examples
    --------
    >>> from neonlite.initializers import Gaussian, Initializer
    >>> description = Gaussian(scale=0.1, name="small").get_description()
    >>> description
    {'type': 'neonlite.initializers.Gaussian', 'config': {'loc': 0.0, 'scale': 0.1, 'name': 'small'}}
    >>> Initializer.recursive_gen(description)
    Gaussian(loc=0.0, scale=0.1, name='small')
    """

    config_attributes: ClassVar[dict[str, str]] = {}  # constructor argument -> attribute, where the names differ
    alternative_arguments: ClassVar[tuple[str, ...]] = ()  # constructor arguments that set the attribute of another one

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _classes[registered_name(class_path(cls))] = cls

    def __init__(self, name: str | None = None) -> None:
        if not isinstance(name, str | None):
            raise TypeError(f"{self.classnm}: expected a string for name, got {describe(name)}")
        self.name = f"{self.classnm}_{next(_name_counters[self.classnm])}" if name is None else name

    def __repr__(self) -> str:
        """Return the class with the constructor's arguments that the object stores, besides its name."""
        described = [f"{x}={describe_setting(value)}" for x, value in stored_arguments(self).items()]
        return f"{self.classnm}({', '.join(described)})"

    @recursive_repr("...")
    def _repr_html_(self) -> str:
        """Return the class with the name, ``repr_details`` and the constructor's arguments, for notebooks."""
        facts = [repr(self.name), *self.repr_details()]
        return str(messages.format_object(self.classnm, facts, stored_arguments(self)))

    def repr_details(self) -> list[str]:
        """Return what the printed object says besides its name and the constructor's arguments.

        Returns
        -------
        list of str
            Short texts, such as shapes.
        """
        return []

    @property
    def classnm(self) -> str:
        """The name of the class."""
        return type(self).__name__

    @property
    def modulenm(self) -> str:
        """The name of the class with its module, as in ``neonlite.layers.linear.Linear``."""
        return class_path(type(self))

    def get_description(self, skip: Sequence[str] = ()) -> dict[str, Any]:
        """Return the class and the constructor arguments as a JSON-compatible dict.

        Parameters
        ----------
        skip : sequence of str
            Constructor arguments to leave out.

        Returns
        -------
        dict
            ``{"type": "module.Class", "config": {argument: value}}``. Nested objects become their descriptions, arrays
            and tensors nested lists.

        Raises
        ------
        TypeError
            A value cannot be serialized, such as a function, or an argument has no attribute.
        """
        config = {}
        for argument in constructor_arguments(type(self)):
            if argument in skip or argument in self.alternative_arguments:
                continue
            attribute = self.config_attributes.get(argument, argument)
            if not hasattr(self, attribute):
                raise TypeError(
                    f"{self.name}.get_description: expected an attribute {attribute!r} with the value of the "
                    f"constructor argument {argument!r} of {self.classnm}, got none. Set self.{attribute} in __init__, "
                    "or override get_description and gen_class."
                )
            config[argument] = serialize(getattr(self, attribute), f"{self.name}: {argument}")
        if "name" not in skip:
            config.setdefault("name", self.name)
        return {"type": self.modulenm, "config": config}

    @classmethod
    def gen_class(cls, pdict: dict[str, Any]) -> Self:
        """Create an object of this class from the ``config`` of a description.

        Parameters
        ----------
        pdict : dict
            The constructor arguments, nested objects as descriptions.

        Returns
        -------
        Serializable
            The new object.
        """
        kwargs = {key: deserialize(value) for key, value in pdict.items()}
        name = None if "name" in constructor_arguments(cls) else kwargs.pop("name", None)
        obj = cls(**kwargs)
        if name is not None:
            obj.name = name
        reserve_name(f"{obj.name}")
        return obj

    @classmethod
    def recursive_gen(cls, pdict: dict[str, Any]) -> Self:
        """Create an object from a description.

        Parameters
        ----------
        pdict : dict
            What ``get_description`` returned: ``{"type": ..., "config": {...}}``.

        Returns
        -------
        Serializable
            An object of the class ``type``.

        Raises
        ------
        TypeError
            The argument is not a description.
        ValueError
            No class of that name is defined, or it is not a subclass of this one.
        """
        if not isinstance(pdict, dict) or not {"type", "config"} <= set(pdict):
            raise TypeError(f"expected a description {{'type': ..., 'config': {{...}}}}, got {describe(pdict)}")
        found = find_class(pdict["type"])
        if not issubclass(found, cls):
            raise ValueError(f"expected a description of a {cls.__name__}, got one of type {pdict['type']!r}")
        return found.gen_class(pdict["config"])


def stored_arguments(obj: Serializable) -> dict[str, Any]:
    """Return {constructor argument: value} of those that an object stores, besides its name."""
    arguments = {x: obj.config_attributes.get(x, x) for x in constructor_arguments(type(obj)) if x != "name"}
    return {x: vars(obj)[attribute] for x, attribute in arguments.items() if attribute in vars(obj)}


def constructor_arguments(cls: type) -> list[str]:
    """Return the names of a constructor's arguments; with **kwargs, those of the base class's constructor as well."""
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        names |= dict.fromkeys(p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return list(names)


def serialize(value: Any, name: str) -> Any:
    """Return a value as JSON-compatible data; TypeError, with the value's name, if that is not possible."""
    if isinstance(value, Serializable):
        return value.get_description()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return [serialize(x, f"{name}[{i}]") for i, x in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: serialize(x, f"{name}[{key!r}]") for key, x in value.items()}
    if type(value) in (bool, int, float):
        return value
    try:
        return to_host_array(value).tolist()
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}: expected a value that can be serialized, got {describe(value)}, a {type(value).__name__}. "
            "A description holds numbers, strings, lists, dicts with string keys, arrays, and objects with "
            "get_description; write a subclass of Transform, Initializer or the like whose constructor arguments are "
            "attributes."
        ) from None


def to_host_array(value: Any) -> np.ndarray[Any, Any]:
    """Return real numbers as a NumPy array; TypeError or ValueError for anything else."""
    array = np.asarray(value.get() if hasattr(value, "shape") and hasattr(value, "get") else value)
    if not is_real_array(array):
        raise TypeError(f"expected an array of numbers, got {describe(value)}")
    return array


def deserialize(value: Any) -> Any:
    """Create the objects that a value describes, also within lists and dicts; return other values unchanged."""
    if isinstance(value, list):
        return [deserialize(x) for x in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("type"), str) and isinstance(value.get("config"), dict):
        return Serializable.recursive_gen(value)
    return {key: deserialize(x) for key, x in value.items()}


def find_class(name: str) -> type[Serializable]:
    """Return the class of a ``type``; ValueError, with similar names, if no such class is defined.

    If the module of a custom class does not match, its name alone is looked up. A name without a module may be a class
    of the library or a custom one, the library's first.
    """
    names = [registered_name(name)] if "." in name else [registered_name(f"{LIBRARY_PREFIXES[0]}{name}"), name]
    for registered in names:
        if (found := _classes.get(registered)) is not None:
            return found
    classes, last = list(_classes.values()), name.rpartition(".")[2]
    same_name = [x for x in classes if x.__name__ == last]
    custom = [x for x in same_name if not is_library_class(class_path(x))]
    if len(custom) == 1 and not is_library_class(name):
        return custom[0]
    from difflib import get_close_matches

    by_name = {x.__name__.lower(): x for x in classes}
    suggestions = same_name or [by_name[word] for word in get_close_matches(last.lower(), by_name)]
    similar = f" Similar names: {', '.join(sorted(map(class_path, suggestions)))}." if suggestions else ""
    raise ValueError(
        f"expected the type of a defined class, got {name!r}.{similar} A custom class must be defined first: import "
        "its module."
    )


def class_path(cls: type) -> str:
    """Return the name of a class with its module, the ``type`` in a description."""
    return f"{cls.__module__}.{cls.__name__}"


def registered_name(path: str) -> str:
    """Return the name under which a class is registered: of one of the library without its module, which may change."""
    return LIBRARY_PREFIXES[0] + path.rpartition(".")[2] if is_library_class(path) else path


def is_library_class(path: str) -> bool:
    """Return whether a ``type`` names a class of neonlite or neon."""
    return path.startswith(LIBRARY_PREFIXES)


def reserve_name(name: str) -> None:
    """Reserve a name such as ``Linear_3``, so that no later default name equals it."""
    prefix, _, number = name.rpartition("_")
    if number.isdecimal() and number.isascii():
        _name_counters[prefix] = itertools.count(max(int(number) + 1, next(_name_counters[prefix])))
