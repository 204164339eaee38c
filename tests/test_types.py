"""Types: the public signatures name the types of their parameters and results, so that an editor can complete them."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_overloads

import pytest

PUBLIC = ["backend", "layers", "models", "callbacks", "data", "optimizers", "transforms", "initializers"]
NAMESPACES = ["neonlite", *(f"neonlite.{name}" for name in PUBLIC)]
SPECIAL = {"__init__", "__call__", "__iter__", "__len__", "__getitem__", "__setitem__"}

# Any is allowed as the value of a dict of JSON data (a description or a state), and for the dtype of a NumPy array.
ALLOWED = re.compile(r"\bdict\[str, Any\]|\b(?:NDArray|np\.dtype)\[Any\]")


def functions(member: object) -> Iterator[Callable[..., Any]]:
    """Yield the functions of a member of a class: a method, or the getter and the setter of a property."""
    for function in (member.fget, member.fset) if isinstance(member, property) else (member,):
        function = inspect.unwrap(getattr(function, "__func__", getattr(function, "func", function)))
        if inspect.isfunction(function):
            yield function


def public_functions() -> dict[str, Callable[..., Any]]:
    """Return the functions, methods, constructors and properties of the public namespaces, by qualified name."""
    found = []
    for thing in (
        getattr(namespace, name) for namespace in map(import_module, NAMESPACES) for name in namespace.__all__
    ):
        if inspect.isclass(thing):
            bases = [base for base in thing.__mro__ if base.__module__.startswith("neonlite")]
            members = [item for base in bases for item in vars(base).items()]
            found += [f for name, x in members if not name.startswith("_") or name in SPECIAL for f in functions(x)]
        else:
            found += functions(thing)
    return {f"{f.__module__}.{f.__qualname__}": f for f in found if f.__module__.startswith("neonlite")}


FUNCTIONS = public_functions()


def untyped(annotations: dict[str, Any]) -> list[str]:
    """Return the annotations that are Any or contain it, except where ALLOWED."""
    texts = {name: x if isinstance(x, str) else inspect.formatannotation(x) for name, x in annotations.items()}
    return [
        f"{name}: {text}"
        for name, text in texts.items()
        if any(isinstance(x, ast.Name) and x.id == "Any" for x in ast.walk(ast.parse(ALLOWED.sub("dict", text))))
    ]


def test_the_public_functions_are_found():
    names = {name.rpartition("neonlite.")[2] for name in FUNCTIONS}
    assert {"backend.tree_methods.softmax", "layers.linear.Linear.__init__", "models.model.Model.fprop"} <= names
    assert {"transforms.cost.MeanSquared.__call__", "data.iterator.ResumableIterator.__iter__"} <= names
    assert len(names) > 900


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_no_public_signature_says_any(name):
    for signature in get_overloads(FUNCTIONS[name]) or [FUNCTIONS[name]]:  # callers see only the overloads
        assert not untyped(signature.__annotations__)


@pytest.mark.parametrize("text", ["Any", "Any | None", "Sequence[Any]", "Callable[..., Any]", "dict[int, list[Any]]"])
def test_any_is_found_in_nested_types(text):
    assert untyped({"x": text}) == [f"x: {text}"]
    assert not untyped({"x": "dict[str, Any] | NDArray[Any]", "y": "np.dtype[Any]", "z": "AnyLayer"})


@pytest.mark.slow
def test_pyright_agrees_with_mypy() -> None:
    pytest.importorskip("pyright")
    calls = Path(__file__).with_name("typed_calls.py")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(calls)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=calls.parents[1], check=False)
    assert result.returncode == 0, result.stdout
