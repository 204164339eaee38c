"""How do editors learn of the methods made from the op table?  ``python -m neonlite.backend.stub`` writes rows.pyi."""

from __future__ import annotations

import inspect
from pathlib import Path

from neonlite.backend.rows import Rows

HEAD = '''# Written by `python -m neonlite.backend.stub` from the op table.
from collections.abc import Callable
from typing import Any

from neonlite.ops import Op

def method_of(op: Op) -> Callable[..., Any]: ...

class Rows:
'''


def text() -> str:
    """Return the stub: every method of ``Rows`` with its signature and docstring."""
    methods = {name: f for name, f in vars(Rows).items() if inspect.isfunction(f)}
    return HEAD + "".join(
        f'    def {name}{inspect.signature(f)}:\n        """{f.__doc__}"""\n'.replace("'Any'", "Any").replace("self: Any", "self")
        for name, f in sorted(methods.items())
    )


if __name__ == "__main__":
    Path(__file__).with_name("rows.pyi").write_text(text())
