"""The code of README.md, the pages in docs/, the notebooks and the example, as Python files for type checkers."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?:python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def extract_page(text: str) -> str:
    """Return the Python blocks of a page, each line at its number in the page.

    An example whose expected output is a traceback is left out: it may be an error of types, too.
    """
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        first, code = text.count("\n", 0, block.start(1)), block[1]
        parts = [(0, code)]
        if code.lstrip().startswith(">>>"):
            examples = doctest.DocTestParser().get_examples(code)
            parts = [(x.lineno, x.source) for x in examples if x.exc_msg is None]
        for start, source in parts:
            for i, line in enumerate(source.splitlines(), first + start):
                lines[i] = line
    return "\n".join(lines) + "\n"


def extract_notebook(text: str) -> str:
    """Return the code cells of a notebook."""
    return "\n".join(
        "".join(cell["source"]) + "\n" for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"
    )


def write_programs(folder: Path) -> list[Path]:
    """Write the programs to a folder, and return their paths: docs_layers.py for docs/layers.md."""
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("examples/*.py")]
    extract = {".md": extract_page, ".ipynb": extract_notebook, ".py": str}
    paths = []
    for file in sorted(files):
        paths.append(folder / f"{'_'.join(file.relative_to(ROOT).with_suffix('').parts)}.py")
        paths[-1].write_text(extract[file.suffix](file.read_text(encoding="utf-8")), encoding="utf-8")
    return paths
