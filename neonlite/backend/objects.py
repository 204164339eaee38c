"""Objects: their serialization, the attributes that built-in classes have, and snapshots that detect changes."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import is_, itemgetter
from reprlib import recursive_repr
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar, Self
from weakref import WeakValueDictionary

import numpy as np

from neonlite import name_hints, optree, typing
from neonlite.messages import describe, describe_setting, format_object

# --- serialization of named objects: a class and its constructor arguments as a JSON-compatible dict, and back ---

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
        return str(format_object(self.classnm, facts, stored_arguments(self)))

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
    if not typing.is_real_array(array):
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


# --- attributes: which ones built-in classes have, and snapshots that detect whether any changed ---

_builtin_classes: set[type] = set()


def declare_builtin(exports: Iterable[object]) -> None:
    """Declare the classes among the exports of a package, and their bases, to be built in."""
    for x in exports:
        if isinstance(x, type):
            _builtin_classes.update(x.__mro__)


def is_builtin(cls: type | None) -> bool:
    """Return whether a class is built in."""
    return cls in _builtin_classes


def defining_class(cls: type, name: str) -> type | None:
    """Return the class that defines an attribute that a class has or inherits; None if it has none."""
    for base in cls.__mro__:  # faster than a generator, as it runs several times for each layer and step
        if name in vars(base):
            return base
    return None


def has_builtin_method(cls: type, name: str) -> bool:
    """Return whether a built-in class defines a method that a class has or inherits."""
    return defining_class(cls, name) in _builtin_classes


# --- attributes of built-in objects: setting one that no code of the object's class sets is an error ---

STORE_ATTR, EXTENDED_ARG = dis.opmap["STORE_ATTR"], dis.opmap["EXTENDED_ARG"]


def check_attribute(obj: object, name: str) -> None:
    """Raise AttributeError unless an object may get a new attribute.

    Names with an underscore and objects of custom classes may get any.
    """
    cls: Any = type(obj)
    is_known = name.startswith("_") or hasattr(cls, name) or not cls.__module__.startswith("neonlite.")
    if not is_known and name not in (names := assigned_names(cls)):
        hint = name_hints.attribute_hint(
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
OPAQUE += (optree.Operand, BuiltinFunctionType, ModuleType, typing.Untracked)


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
            if isinstance(x, functools.partial):
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
