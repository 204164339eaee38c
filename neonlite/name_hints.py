"""Hints in errors for names of NumPy, PyTorch, Keras, JAX and scikit-learn, from the tables of name_hints.txt."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from neonlite.messages import did_you_mean
from neonlite.ops import SYNONYMS

T = TypeVar("T")

MODULES = (
    "array_api", "callbacks", "data", "distributed", "initializers", "layers", "models", "optimizers", "transforms",
    "visualize",
)  # fmt: skip


def read_tables(path: Path) -> dict[str, dict[str, str]]:
    """Return the tables of a file by their names: {what to use: names}; the file describes its format."""
    tables: dict[str, dict[str, str]] = {}
    table: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        names, arrow, counterpart = line.partition(" -> ")
        if arrow and not line.startswith("#"):
            table[counterpart] = names
        elif line.startswith("["):
            table = tables[line[1:-1]] = {}
        elif line.startswith("include "):
            table.update(tables[line.removeprefix("include ")])
    return tables


TABLES = read_tables(Path(__file__).with_suffix(".txt"))


def look_up(table: dict[str, str], name: str, accepted: Collection[str] | None = None) -> str | None:
    """Return what to use instead of a name, from one of the tables, or None if it is unknown.

    Parameters
    ----------
    table : dict
        {what to use: names}.
    name : str
        The name.
    accepted : collection of str, optional
        The arguments or attributes that can be used; by default, what the table says.
    """
    for counterpart, names in table.items():
        if name in names.split() and (accepted is None or counterpart.partition(";")[0] in accepted):
            return counterpart.replace("{name}", name)
    return None


def normalize(name: str) -> str:
    """Return the name of a class without underscores, in lower case: "glorotuniform" for ``glorot_uniform_``."""
    return name.replace("_", "").lower()


def find_class(name: str) -> str | None:
    """Return what to use instead of the name of a class, after "neonlite.", or None if it is unknown."""
    own = {f"{m}.{x}": x for m in MODULES for x in getattr(import_module(f"neonlite.{m}"), "__all__", ())}
    known = own, TABLES["CLASSES"]
    tables = *known, *({x: normalize(names) for x, names in table.items()} for table in known)
    names = name, name, normalize(name), normalize(name)
    return next(filter(None, map(look_up, tables, names)), None)


def find_in_backend(name: str) -> str | None:
    """Return what to use instead of the name of a function, or None if it is unknown."""
    counterpart = look_up(TABLES["BACKEND"], name)
    if counterpart is None and callable(getattr(sys.modules["neonlite"].Backend, name, None)):
        return f"be.{name}"
    return counterpart


def find_in_array_api(name: str) -> str | None:
    """Return what to use instead of a name of ``neonlite.array_api`` or its linalg, or None if it is unknown."""
    if (counterpart := look_up(TABLES["ARRAY_API"], name)) is not None:
        return counterpart
    xp = sys.modules["neonlite.array_api"]
    for x in (name, *SYNONYMS.get(name, ())):
        for prefix, module in (("xp", xp), ("xp.linalg", xp.linalg)):
            if x in module.__all__:
                return f"{prefix}.{x}"
    return look_up(TABLES["BACKEND"], name)


def find_name(module: str, name: str) -> str | None:
    """Return what to use instead of a name that a module does not have, or None if it is unknown."""
    if module.startswith("neonlite.array_api"):
        return find_in_array_api(name)
    classes = (f"neonlite.{x}" for x in (find_class(name),) if x)
    if module == "neonlite":
        return look_up(TABLES["NAMESPACE"], name) or find_in_backend(name) or next(classes, None)
    return next(classes, None) or find_in_backend(name)


def use(counterpart: str, given: str = "") -> str:
    """Return a sentence that says what to use, and how to create the objects in it, except the given one."""
    created = {"be": "be = nl.gen_backend()", "xp": "xp = nl.array_api"}
    code = counterpart.partition(";")[0]
    needed = [creation for x, creation in created.items() if re.search(rf"\b{x}\.", code) and x != given]
    return f"Use {counterpart}{', with ' if needed else ''}{' and '.join(needed)}."


def is_import() -> bool:
    """Return whether ``from module import name`` calls the ``__getattr__`` of the module that calls this function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name == "__getattr__":
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap"


def module_getattr(module: str) -> Callable[[str], object]:
    """Return a module's ``__getattr__``, whose error says where a name is, or what it is called in neonlite.

    Parameters
    ----------
    module : str
        The name of the module.
    """

    def __getattr__(name: str) -> object:
        hint = ""
        if not name.startswith("_"):
            counterpart = find_name(module, name)
            found = sys.modules[module]
            if name in vars(found):  # a module that the search for the name has imported
                return vars(found)[name]
            known = [x for x in (*dir(found), *getattr(found, "__all__", ())) if not x.startswith("_")]
            hint = did_you_mean(name, known) if counterpart is None else f" {use(counterpart)}"
        if hint and is_import():
            # "from module import name" replaces the message of an AttributeError
            raise ImportError(f"cannot import name {name!r} from {module!r}.{hint}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}{'.' if hint else ''}{hint}")

    return __getattr__


def argument_hint(name: str, accepted: list[str]) -> str:
    """Return a sentence with the argument to pass instead of an unknown one, or an empty string.

    Parameters
    ----------
    name : str
        The unknown name.
    accepted : list of str
        The names that the function accepts.
    """
    counterpart = look_up(TABLES["ARGUMENTS"], name, accepted)
    if counterpart is not None:
        argument, _, comment = counterpart.partition("; ")
        return f"Did you mean {argument!r}{', as in ' * bool(comment)}{comment}?"
    if (reason := look_up(TABLES["OMITTED_ARGUMENTS"], name)) is not None:
        return f"Leave it out: {reason}."
    return did_you_mean(name, accepted).lstrip()


def hide_unknown(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose signature, for editors and stubs, lacks its last parameter, ``**unknown``.

    A function that is called often refuses unknown arguments itself: a decorator would slow down every call.
    """
    signature = inspect.signature(function)
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=list(signature.parameters.values())[:-1]
    )
    return function


def attribute_hint(name: str, known: list[str]) -> str:
    """Return a sentence with the attribute to set instead of an unknown one.

    Parameters
    ----------
    name : str
        The unknown name.
    known : list of str
        The names that the object has.
    """
    from difflib import get_close_matches  # not loaded by ``import neonlite``

    similar = get_close_matches(name, known, 1)
    found = (look_up(TABLES["ATTRIBUTES"], name, known) or next(iter(similar), "")).partition(";")[0]
    return f"Set {found}." if found else "Only objects of custom classes may have attributes of any name."


class MissingAttribute:
    """An attribute that the objects of a class do not have; the AttributeError says what to use.

    ``__getattr__`` could do this as well, but would slow down every other attribute.
    """

    def __init__(self, name: str, counterpart: str) -> None:
        self.name, self.counterpart = name, counterpart

    def __get__(self, obj: object, owner: type) -> NoReturn:
        counterpart = self.counterpart.replace("{t}", "tree" if owner.__name__ == "OpTreeNode" else "t")
        hint = use(counterpart.replace("{name}", self.name), given="be")
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self.name!r}. {hint}")


def add_hints(table: dict[str, str]) -> Callable[[type[T]], type[T]]:
    """Decorate a class to raise an AttributeError with a hint for the names of a table that it does not have.

    Parameters
    ----------
    table : dict
        {what to use: names}.
    """

    def decorate(cls: type[T]) -> type[T]:
        missing = {name: counterpart for counterpart, names in table.items() for name in names.split()}
        for name, counterpart in missing.items():
            if not hasattr(cls, name):
                setattr(cls, name, MissingAttribute(name, counterpart))
        cls.__dir__ = list_names  # type: ignore[assignment, method-assign]
        return cls

    return decorate


def list_names(obj: object) -> list[str]:
    """Return the names of an object's attributes, without those of ``MissingAttribute``."""
    missing = {name for cls in type(obj).__mro__ for name, x in vars(cls).items() if type(x) is MissingAttribute}
    return [name for name in object.__dir__(obj) if name not in missing or hasattr(obj, name)]
