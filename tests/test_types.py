"""Types: the public signatures name the types of their parameters and results, so that an editor can complete them.

Tests ``neonlite/typing.py``.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_overloads

import pytest
from helpers.documentation_code import ROOT, extract_page, write_programs
from helpers.parametrize import each

import neonlite as nl
from neonlite import Backend
from neonlite.ops import OP_TABLE, OPS

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
    assert {"backend.tree_methods.TreeMethods.clip", "layers.linear.Linear.__init__"} <= names
    assert {"models.model.Model.save_params", "transforms.functions.MeanSquared.__call__"} <= names
    assert "data.iterator.ResumableIterator.__iter__" in names
    assert len(names) > 900


def test_no_public_signature_says_any():
    seen = {name: get_overloads(f) or [f] for name, f in FUNCTIONS.items()}  # callers see only the overloads
    found = {name: [untyped(x.__annotations__) for x in signatures] for name, signatures in seen.items()}
    assert not {name: annotations for name, annotations in found.items() if any(annotations)}


@pytest.mark.parametrize("text", ["Any", "Any | None", "Sequence[Any]", "Callable[..., Any]", "dict[int, list[Any]]"])
def test_any_is_found_in_nested_types(text):
    assert untyped({"x": text}) == [f"x: {text}"]
    assert not untyped({"x": "dict[str, Any] | NDArray[Any]", "y": "np.dtype[Any]", "z": "AnyLayer"})


# --- type checkers --------------------------------------------------------------------------------------------------


def check(*command: str | Path) -> str:
    """Return the output of a type checker, a module that runs in the root of the repository; "" without errors."""
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    line = [sys.executable, "-m", *map(str, command)]
    done = subprocess.run(line, capture_output=True, encoding="utf-8", cwd=ROOT, env=environment, check=False)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.long
def test_mypy_finds_no_errors_in_the_package_its_documentation_and_uses_of_every_public_name(
    cpu: Backend, tmp_path: Path
) -> None:
    """In one process, which checks the package once."""
    paths = write_programs(tmp_path)
    assert {"README", "docs_layers", "notebooks_04_layers", "examples_logistic"} <= {path.stem for path in paths}
    uses = tmp_path / "uses.py"
    uses.write_text(uses_of_public_names(cpu))
    report = check("mypy", "neonlite", "tests/typed_calls.py", uses, *paths)
    assert not report, report


@pytest.mark.slow
def test_the_code_of_the_documentation_has_no_errors_in_pyright(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    write_programs(tmp_path)
    assert not check("pyright", "--pythonpath", sys.executable, tmp_path)


@pytest.mark.slow
def test_pyright_agrees_with_mypy() -> None:
    pytest.importorskip("pyright")
    assert not check("pyright", "--pythonpath", sys.executable, Path(__file__).with_name("typed_calls.py"))


def test_the_code_of_a_page_keeps_its_line_numbers_and_leaves_out_errors_on_purpose() -> None:
    example = "```pycon\n>>> x = 1\n>>> x + ''\nTraceback (most recent call last):\nTypeError: ...\n```\n"
    page = f"Text\n{example}\n```python\ny = 2\n```\n"
    assert extract_page(page).splitlines() == ["", "", "x = 1", "", "", "", "", "", "", "y = 2", "", ""]


def public_names(obj: object) -> list[str]:
    """Return the public attributes, without those of tuples."""
    return [name for name in dir(obj) if not name.startswith("_") and not hasattr(tuple, name)]


def uses_of_public_names(cpu: Backend) -> str:
    """Return a program that uses every public attribute of the main classes, which a type checker must know."""
    xp, x = cpu.array_api, cpu.ones((2, 2))
    objects = {
        "nl.Backend": cpu,
        "nl.Tensor": x,
        "nl.OpTreeNode": cpu.exp(x),
        "nl.array_api.Array": xp.asarray([1.0]),
        "Namespace": xp,
        "nl.Model": nl.Model([nl.layers.Affine(1)]),
        "nl.Autodiff": nl.Autodiff(cpu.exp(x), cpu),
    }
    lines = ["import neonlite as nl", "from neonlite.array_namespace import Namespace"]
    defined = {op.method for op in OPS.values()} - {op.method for op in OP_TABLE}  # by tests that ran before
    for i, (name, obj) in enumerate(objects.items()):
        names = [x for x in public_names(obj) if x not in defined]
        lines += [f"def use_{i}(x: {name}) -> None:", *(f"    x.{attribute}" for attribute in names)]
    lines += ["def use_linalg(x: Namespace) -> None:", *(f"    x.linalg.{name}" for name in xp.linalg.__all__)]
    return "\n".join(lines) + "\n"


# --- completion -----------------------------------------------------------------------------------------------------

COMPLETED = {
    "be.": "exp softmax zeros fprop_conv array_api check_grad",
    "be.array_api.": "asarray sum float32 linalg variable",
    "be.array_api.linalg.": "svd det",
    "be.exp(x).": "pp astensor get T reshape sum",
    "x.": "get fill T reshape",
    "tree.": "pp astensor draw step",
    "model.": "fit predict save_params summary",
    "nl.Model.": "fit predict load_params",
    "nl.layers.": "Affine LSTM",
    "nl.Autodiff(tree, be).get_grad_op_tree(x).": "pp astensor",
}


@pytest.mark.long
@each("text, names", COMPLETED.items())
def test_jupyter_completes_names(text: str, names: str, cpu: Backend) -> None:
    jedi = pytest.importorskip("jedi")
    x = cpu.ones((2, 2))
    namespace = {"nl": nl, "be": cpu, "x": x, "tree": x * 2, "model": nl.Model([nl.layers.Affine(1)])}
    found = {completion.name for completion in jedi.Interpreter(text, [namespace]).complete()}
    assert found >= set(names.split())


def test_a_backend_has_its_namespace_as_an_attribute_as_jupyter_completes_no_names_of_properties(cpu: Backend) -> None:
    assert "array_api" in vars(cpu)
    assert set(dir(cpu.array_api)) == set(nl.array_api.__all__)
