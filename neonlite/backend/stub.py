"""How do editors learn of the methods made from the op table?  ``python -m neonlite.backend.stub`` writes rows.pyi."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from neonlite.backend.rows import Rows

HEAD = """# Written by `python -m neonlite.backend.stub` from the op table.
from collections.abc import Callable
from typing import Any

from neonlite.ops import Op

def method_of(op: Op) -> Callable[..., Any]: ...

class Rows:
"""


def text() -> str:
    """Return the stub: every method of ``Rows`` with its signature."""
    methods = sorted((name, f) for name, f in vars(Rows).items() if inspect.isfunction(f))
    lines = [f"    def {name}{inspect.signature(f)}: ...\n" for name, f in methods]
    return HEAD + re.sub(r"'(\w+)'", r"\1", "".join(lines)).replace("self: Any", "self")


if __name__ == "__main__":
    Path(__file__).with_name("rows.pyi").write_text(text())
