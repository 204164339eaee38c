"""Docstrings: module docstrings are statements, and public docstrings describe every parameter in NumPy's sections."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

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
every_object = pytest.mark.parametrize("name", sorted(OBJECTS))


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


@every_object
def test_every_parameter_of_a_public_object_is_described(name):
    thing = OBJECTS[name]
    if inspect.isclass(thing) and "__init__" not in vars(thing):
        return  # the constructor, and its docstring, are a base's
    undescribed = set(parameters(thing)) - described(thing.__doc__ or "")
    if undescribed:
        undescribed -= documented_by_bases(thing)
    assert not undescribed, f"{name}: no description of {sorted(undescribed)} in a section Parameters"


@every_object
def test_no_docstring_describes_a_parameter_that_does_not_exist(name):
    thing = OBJECTS[name]
    signature = inspect.signature(thing.__init__ if inspect.isclass(thing) else thing)
    if "kwargs" not in str(signature) and not (inspect.isclass(thing) and "__init__" not in vars(thing)):
        unknown = described(thing.__doc__ or "") - set(signature.parameters)
        assert not unknown, f"{name}: the section Parameters describes {sorted(unknown)}, which it does not take"


@every_object
def test_the_sections_of_a_docstring_are_those_of_numpy_in_their_order(name):
    found = [section for section in sections(OBJECTS[name].__doc__ or "") if section]
    assert found == [section for section in SECTIONS if section in found], name


FILES = [
    path for folder in ["neonlite", "tests", "benchmarks", "docs", "examples"] for path in (ROOT / folder).rglob("*.py")
]


@pytest.mark.parametrize("path", sorted(FILES), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_opens_with_a_statement(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    first = re.split(r"(?<=[.?!])\s", docstring or "")[0]
    assert first.endswith("."), f"{path.name} opens with {first!r}; say what it contains, in one sentence"
    assert "?" not in (docstring or "").split("\n")[0]
