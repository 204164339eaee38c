"""Generate the type stubs of the backend methods that build op-trees and of ``be.array_api``, for editors and checkers.

``python docs/make_stubs.py`` writes them. They are derived from the signatures and docstrings at run time.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_overloads

import neonlite
from neonlite import array_api
from neonlite.backend.op_methods import HAND_WRITTEN, OpMethods

OP_METHODS = """# Written by `python docs/make_stubs.py` from the op table, tree_methods.py and tree_operands.py.
from collections.abc import Callable, Sequence
from typing import Any, overload

from neonlite.backend.tensor import Tensor
from neonlite.backend.tree_operands import Padding, Sizes
from neonlite.ops import Op
from neonlite.optree import Operand, OpTreeNode
from neonlite.typing import ArrayLike, AxisLike, BackendBase, DTypeLike, OperandLike, ShapeLike

def make_method(op: Op) -> Callable[..., Any]: ...

class OpMethods(BackendBase):
    num_redefinitions: int

"""
ARRAY_NAMESPACE = """# Written by `python docs/make_stubs.py` from neonlite/array_api.
import builtins
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from neonlite.array_api import Array as _Array
from neonlite.array_api.data_types import NamespaceInfo
from neonlite.array_api.linalg import EighResult, QRResult, SlogdetResult, SVDResult
from neonlite.array_api.manipulation import Axis
from neonlite.array_api.random import Generator as _Generator
from neonlite.array_api.reductions import UniqueAll, UniqueCounts, UniqueInverse
from neonlite.backend import Backend
from neonlite.ops.functions import Shape

"""


def render_stubs() -> dict[str, str]:
    """Return {path in the package: text} of the stubs."""
    functions_of = {**HAND_WRITTEN, **{name: getattr(OpMethods, name) for name in vars(OpMethods)}}
    methods = sorted((name, f) for name, f in functions_of.items() if inspect.isfunction(f))
    op_methods = "".join(render_overloads(*method) for method in methods)
    modules: dict[str, Any] = {"Linalg": array_api.linalg, "Random": array_api.random, "Namespace": array_api}
    functions = ""
    for cls, module in modules.items():
        functions += f"class {cls}:\n"
        if module is array_api:
            functions += "    be: Backend\n    linalg: Linalg\n    random: Random\n"
            functions += "    def __init__(self, be: Backend) -> None: ...\n"
        names = [name for name in module.__all__ if name not in ("linalg", "random")]
        functions += "".join(render_member(name, getattr(module, name)) for name in names)
    return {
        "backend/op_methods.pyi": (OP_METHODS + op_methods).rstrip() + "\n",
        "array_namespace.pyi": (ARRAY_NAMESPACE + functions).rstrip() + "\n",
    }


def render_overloads(name: str, method: Callable[..., Any]) -> str:
    """Return the definitions of a method of the backend, without and with ``out``."""
    signatures = overloads(inspect.signature(method))
    return "".join("    @overload\n" + define(name, ["self", *xs], returns, method) for xs, returns in signatures)


def overloads(signature: inspect.Signature) -> Iterator[tuple[list[str], str]]:
    """Yield the parameters and the result of each overload: an op-tree, or the tensor that is passed as ``out``.

    A method that returns ``Operand`` may return its operand itself, which is a tensor or an op-tree.
    """
    parameters = list(signature.parameters.values())[1:]
    i = next(i for i, x in enumerate(parameters) if x.name == "out")
    before, out, after = parameters[:i], parameters[i], parameters[i + 1 :]
    no_out, tensor = out.replace(annotation="None"), out.replace(annotation="Tensor", default=out.empty)
    if signature.return_annotation == "Operand":
        tree = before[0].replace(annotation="OpTreeNode")
        yield render([tree, *before[1:], no_out, *after]), "OpTreeNode"
        yield render([*before, no_out, *after]), "Operand"
    else:
        yield render([*before, no_out, *after]), "OpTreeNode"
    keywords = [x.replace(kind=x.KEYWORD_ONLY) if x.kind is x.POSITIONAL_OR_KEYWORD else x for x in (tensor, *after)]
    if any(x.default is not x.empty for x in before):
        yield render([*before, *keywords]), "Tensor"
        if out.kind is out.KEYWORD_ONLY:
            return
        before = [x.replace(default=x.empty) for x in before]
    yield render([*before, tensor, *after]), "Tensor"


def render_member(name: str, value: object) -> str:
    """Return the definition of a function or constant of a namespace in the body of a class.

    The class defines the names ``Array`` and ``bool`` itself, so that annotations need others.
    """
    if inspect.isfunction(value):
        text = ""
        for function in get_overloads(value) or [value]:
            signature = inspect.signature(function)
            parameters = [x.replace(annotation=qualify(x.annotation)) for x in signature.parameters.values()]
            text += "    @overload\n" if function is not value else ""
            text += "    @staticmethod\n"
            text += define(name, render(parameters), qualify(signature.return_annotation), value)
        return text
    if value is array_api.Array or value is array_api.random.Generator:
        return f"    {name} = _{name}\n"
    type_name = f"np.dtype[np.{value}]" if hasattr(value, "itemsize") else type(value).__name__
    return f"    {name}: {type_name.replace('NoneType', 'None')}\n"


def qualify(annotation: str) -> str:
    """Return an annotation with names that the class ``Namespace`` does not define."""
    return re.sub(r"\b(Array|Generator)\b", r"_\1", re.sub(r"\bbool\b", "builtins.bool", annotation))


def render(parameters: Iterable[inspect.Parameter]) -> list[str]:
    """Return parameters with their annotations as they are written, and the marks ``/`` and ``*``."""
    parts: list[str] = []
    kind = None
    for x in parameters:
        if kind is x.POSITIONAL_ONLY and x.kind is not kind:
            parts.append("/")
        if x.kind is x.KEYWORD_ONLY and kind not in (x.kind, x.VAR_POSITIONAL):
            parts.append("*")
        stars = "*" if x.kind is x.VAR_POSITIONAL else "**" if x.kind is x.VAR_KEYWORD else ""
        default = "" if x.default is x.empty else f" = {x.default!r}".replace("'", '"')
        parts.append(f"{stars}{x.name}: {x.annotation}{default}")
        kind = x.kind
    return [*parts, "/"] if kind is inspect.Parameter.POSITIONAL_ONLY else parts


def define(name: str, parameters: list[str], returns: str, function: Callable[..., Any]) -> str:
    """Return the definition of a method with its summary, in lines of at most 120 characters as by ``ruff format``."""
    body = ", ".join(parameters)
    if len(f"    def {name}({body}) -> {returns}:") > 120:
        body = f"        {body}" if len(body) + 8 <= 120 else "\n".join(f"        {x}," for x in parameters)
        body = f"\n{body}\n    "
    summary = (inspect.getdoc(function) or "").partition("\n")[0]
    return f'    def {name}({body}) -> {returns}:\n        """{summary}"""\n\n'


if __name__ == "__main__":
    for path, text in render_stubs().items():
        (Path(neonlite.__file__).parent / path).write_text(text, encoding="utf-8")
