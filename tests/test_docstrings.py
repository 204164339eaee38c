"""Docstrings: module docstrings are statements, and public docstrings describe every parameter in NumPy's sections."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from neonlite import Backend, Tensor
from neonlite.layers import Layer
from neonlite.models import Model
from neonlite.optree import OpTreeNode

ROOT = Path(__file__).parents[1]
SECTIONS = [
    "Parameters",
    "Attributes",
    "Returns",
    "Yields",
    "Raises",
    "Warns",
    "See Also",
    "Notes",
    "References",
    "Examples",
]
PUBLIC = ["backend", "layers", "models", "callbacks", "data", "optimizers", "transforms", "initializers", "sklearn"]
NAMESPACES = ["neonlite", *(f"neonlite.{name}" for name in PUBLIC)]


def public_objects() -> dict[str, Any]:
    """Return the functions, classes and methods that users reach through the public namespaces, by qualified name."""
    objects: dict[str, Any] = {}
    for namespace in map(import_module, NAMESPACES):
        for name in namespace.__all__ if hasattr(namespace, "__all__") else vars(namespace):
            thing = getattr(namespace, name)
            if name.startswith("_") or not getattr(thing, "__module__", "").startswith("neonlite"):
                continue
            if inspect.isclass(thing):
                objects[f"{thing.__module__}.{thing.__qualname__}"] = thing
                objects |= {f"{m.__module__}.{m.__qualname__}": m for m in methods(thing)}
            elif inspect.isfunction(thing):
                objects[f"{thing.__module__}.{thing.__qualname__}"] = thing
    return objects


def methods(cls: type) -> Iterator[Any]:
    """Yield the public methods of a class and of its bases in the package that have a docstring."""
    for base in cls.__mro__:
        if base.__module__.startswith("neonlite"):
            for name, member in vars(base).items():
                function = getattr(member, "__func__", member)
                if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
                    yield function


OBJECTS = public_objects()


def sections(docstring: str) -> dict[str, str]:
    """Return the sections of a docstring by their headings; the text before the first one is under ''."""
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def described(docstring: str) -> set[str]:
    """Return the parameters that a docstring describes: ``name : type`` or ``name, other : type``."""
    text = sections(docstring).get("Parameters", "")
    heads = re.findall(r"^([*\w][\w*, ]*?)(?: :.*)?$", text, flags=re.MULTILINE)
    return {name.strip().lstrip("*") for head in heads for name in head.split(",")}


def parameters(thing: Any) -> list[str]:
    """Return the names of the parameters that a caller passes; those of a class are its constructor's."""
    signature = inspect.signature(thing.__init__ if inspect.isclass(thing) else thing)
    bound = ["self", "cls"]
    # classes that hold functions of other modules
    for holder, first in ((Backend, "be"), (Layer, "layer"), (Model, "model"), (OpTreeNode, "tree"), (Tensor, "t")):
        if getattr(holder, getattr(thing, "__name__", ""), None) is thing:
            bound.append(first)
    return [name for name in signature.parameters if name not in bound and not name.startswith("_")]


def documented_by_bases(thing: Any) -> set[str]:
    """Return what the classes that a method overrides, or a class inherits from, say about parameters."""
    if inspect.isclass(thing):
        return {name for base in thing.__mro__ if base.__doc__ for name in described(base.__doc__)}
    owner, _, name = f"{thing.__module__}.{thing.__qualname__}".rpartition(".")
    names: set[str] = set()
    for cls in (x for x in OBJECTS.values() if inspect.isclass(x)):
        if any(f"{base.__module__}.{base.__qualname__}" == owner for base in cls.__mro__):
            for base in cls.__mro__:
                if (doc := getattr(vars(base).get(name), "__doc__", None)) is not None:
                    names |= described(doc)
    return names


def undescribed(thing: Any) -> set[str]:
    """Return the parameters that neither the docstring of an object nor those of its bases describe."""
    if inspect.isclass(thing) and "__init__" not in vars(thing):
        return set()  # the constructor, and its docstring, are a base's
    missing = set(parameters(thing)) - described(thing.__doc__ or "")
    return missing - documented_by_bases(thing) if missing else missing


def unknown(thing: Any) -> set[str]:
    """Return what the docstring of an object describes as parameters and the object does not take."""
    signature = inspect.signature(thing.__init__ if inspect.isclass(thing) else thing)
    if "kwargs" in str(signature) or (inspect.isclass(thing) and "__init__" not in vars(thing)):
        return set()
    return described(thing.__doc__ or "") - set(signature.parameters)


def test_every_parameter_of_a_public_object_is_described():
    assert not {name: missing for name, thing in OBJECTS.items() if (missing := undescribed(thing))}


def test_no_docstring_describes_a_parameter_that_does_not_exist():
    assert not {name: words for name, thing in OBJECTS.items() if (words := unknown(thing))}


def test_the_sections_of_a_docstring_are_those_of_numpy_in_their_order():
    found = {name: [x for x in sections(thing.__doc__ or "") if x] for name, thing in OBJECTS.items()}
    assert not {name: x for name, x in found.items() if x != [section for section in SECTIONS if section in x]}


FILES = [
    path for folder in ["neonlite", "tests", "benchmarks", "docs", "examples"] for path in (ROOT / folder).rglob("*.py")
]


def test_a_module_opens_with_a_statement():
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
    docstrings = {path: re.match(r'(?:#.*\n)*"""(.+?)"""', text, re.DOTALL) for path, text in texts.items()}
    opening = {path: docstring[1] if docstring else "" for path, docstring in docstrings.items()}
    first = {path: re.split(r"(?<=[.?!])\s", text)[0] for path, text in opening.items()}
    others = {path: x for path, x in first.items() if not x.endswith(".") or "?" in opening[path].split("\n")[0]}
    assert not others, "the first sentence says what the module contains"
