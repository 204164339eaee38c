"""Generate op_methods.pyi, the type stub of the methods created from the op table."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neonlite.backend.op_methods import OpMethods

STUB_HEADER = """# Written by `python -m neonlite.backend.stubgen` from the op table.
from collections.abc import Callable
from typing import Any, overload

from neonlite.backend.tensor import Tensor
from neonlite.ops import Op
from neonlite.optree import OpTreeNode
from neonlite.typing import ArrayLike, AxisLike, OperandLike

def make_method(op: Op) -> Callable[..., Any]: ...

class OpMethods:
    num_redefinitions: int
"""


def render_stub() -> str:
    """Return the stub: every method of ``OpMethods`` with its signatures, without and with ``out``."""
    methods = sorted((name, f) for name, f in vars(OpMethods).items() if inspect.isfunction(f))
    return STUB_HEADER + "".join(render_overload(*method, has_out) for method in methods for has_out in (False, True))


def render_overload(name: str, method: Callable[..., Any], has_out: bool) -> str:
    """Return one signature of a method: the result is a tensor if it has ``out``, else an op-tree."""
    parts = ["self"]
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.name == "out":
            parts += (["*"] if has_out and "=" in parts[-1] else []) + [
                f"out: {'Tensor' if has_out else 'None = None'}"
            ]
        else:
            default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}".replace("'", '"')
            parts.append(f"{parameter.name}: {parameter.annotation}{default}")
    return f"    @overload\n    def {name}({', '.join(parts)}) -> {'Tensor' if has_out else 'OpTreeNode'}: ...\n"


if __name__ == "__main__":
    Path(__file__).with_name("op_methods.pyi").write_text(render_stub(), encoding="utf-8")
