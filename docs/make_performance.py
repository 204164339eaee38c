"""Which numbers are in performance.md?  Those of benchmarks/results: ``python docs/make_performance.py`` puts them in.

A table stands between ``<!-- steps -->`` and ``<!-- end -->``; ``<!-- optree: At a glance -->`` asks for the one below
that heading. With it come the command that was run, and the machine.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

PAGE = Path(__file__).parent / "performance.md"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
BLOCK = re.compile(r"<!-- (?P<name>\w+)(: (?P<heading>[^>]*))? -->\n.*?<!-- end -->", re.DOTALL)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
SAID = ("cpu", "cpus", "used by others", "python", "numpy", "mkl", "onednn-cpu-gomp", "torch", "jax", "threads")


def block(found: re.Match[str]) -> str:
    """Return what stands between two marks, and the marks."""
    name, heading = found["name"], found["heading"]
    mark = f"<!-- {name}{f': {heading}' if heading else ''} -->"
    path = RESULTS / f"{name}.md"
    if not path.exists():
        return f"{mark}\nNot measured yet: `python benchmarks/{name}.py`\n<!-- end -->"
    report = path.read_text()
    command = re.search(r"^`(python .*)`$", report, re.MULTILINE)
    about = json.loads(path.with_suffix(".json").read_text())["machine"]
    machine = ", ".join(f"{key} {about[key]}" for key in SAID if about.get(key) is not None)
    part = report.split(f"\n## {heading}\n", 1)[1] if heading else report
    table = TABLE.search(part)
    if command is None or table is None:
        raise ValueError(f"{path}: there is no command, or no table, to put into {PAGE.name}")
    return f"{mark}\n`{command[1]}` ({machine}):\n\n{table[0]}<!-- end -->"


def text() -> str:
    """Return the page with the tables of now."""
    return BLOCK.sub(block, PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(text())
