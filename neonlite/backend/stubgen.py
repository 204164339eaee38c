"""Generate op_methods.pyi, the type stub of the backend methods that build op-trees."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from neonlite.backend.op_methods import OpMethods

STUB_HEADER = """# Written by `python -m neonlite.backend.stubgen` from the op table and tree_methods.py.
from collections.abc import Callable, Sequence
from typing import Any, overload

from neonlite.backend.tensor import Tensor
from neonlite.ops import Op
from neonlite.optree import Operand, OpTreeNode
from neonlite.typing import ArrayLike, AxisLike, DTypeLike, OperandLike, ShapeLike

def make_method(op: Op) -> Callable[..., Any]: ...

class OpMethods:
    num_redefinitions: int
"""


def render_stub() -> str:
    """Return the stub: every method of ``OpMethods`` with its signatures, without and with ``out``."""
    methods = sorted((name, f) for name, f in vars(OpMethods).items() if inspect.isfunction(f))
    return STUB_HEADER + "".join(
        f"    @overload\n{wrap(f'def {name}(', parameters, f') -> {returns}: ...')}\n"
        for name, method in methods
        for parameters, returns in overloads(inspect.signature(method))
    )


def wrap(head: str, parameters: list[str], tail: str) -> str:
    """Return a definition in as many lines as ``ruff format`` writes: at most 120 characters each."""
    line = f"    {head}{', '.join(parameters)}{tail}"
    if len(line) <= 120:
        return line
    inner = f"        {', '.join(parameters)}"
    if len(inner) > 120:
        inner = "\n".join(f"        {parameter}," for parameter in parameters)
    return f"    {head}\n{inner}\n    {tail}"


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
        before = [x.replace(default=x.empty) for x in before]
    yield render([*before, tensor, *after]), "Tensor"


def render(parameters: list[inspect.Parameter]) -> list[str]:
    """Return the parameters of a method, with their annotations as they are written."""
    parts = ["self"]
    for x in parameters:
        if x.kind is x.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        stars = "*" if x.kind is x.VAR_POSITIONAL else "**" if x.kind is x.VAR_KEYWORD else ""
        default = "" if x.default is x.empty else f" = {x.default!r}".replace("'", '"')
        parts.append(f"{stars}{x.name}: {x.annotation}{default}")
    return parts


if __name__ == "__main__":
    Path(__file__).with_name("op_methods.pyi").write_text(render_stub())
