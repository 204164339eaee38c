"""Copy the benchmark tables of benchmarks/results into performance.md: ``python docs/make_performance.py``.

The table of benchmarks/results/steps.md replaces the text between ``<!-- steps -->`` and ``<!-- end -->``. The comment
``<!-- optree: At a glance -->`` selects the table below that heading. The benchmark command and a description of the
machine are copied with each table.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

PAGE = Path(__file__).parent / "performance.md"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
BLOCK = re.compile(r"<!-- (?P<name>\w+)(: (?P<heading>[^>]*))? -->\n.*?<!-- end -->", re.DOTALL)
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
PEERS = ("torch", "jax", "scikit-learn")
MACHINE_KEYS = ("cpu", "cpus", "used by others", "python", "numpy", "mkl", "onednn-cpu-gomp", *PEERS, "threads")


def render_block(match: re.Match[str]) -> str:
    """Return a block with its current table, between its two comments."""
    name, heading = match["name"], match["heading"]
    mark = f"<!-- {name}{f': {heading}' if heading else ''} -->"
    path = RESULTS / f"{name}.md"
    report = path.read_text() if path.exists() else ""
    if not report or (heading and f"\n## {heading}\n" not in report):
        return f"{mark}\nNot measured yet: `python benchmarks/{name}.py`\n<!-- end -->"
    command = re.search(r"^`(python .*)`$", report, re.MULTILINE)
    about = json.loads(path.with_suffix(".json").read_text())["machine"]
    machine = ", ".join(f"{key} {about[key]}" for key in MACHINE_KEYS if about.get(key) is not None)
    part = report.split(f"\n## {heading}\n", 1)[1] if heading else report
    table = TABLE.search(part)
    if command is None or table is None:
        raise ValueError(f"{path}: expected a command and a table, got neither or only one of them")
    return f"{mark}\n`{command[1]}` ({machine}):\n\n{table[0]}<!-- end -->"


def text() -> str:
    """Return the page with the current tables."""
    return BLOCK.sub(render_block, PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(text())
