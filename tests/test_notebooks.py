"""Do the notebooks, the demo and the benchmarks still run, and do their claims hold?"""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    with open(path, encoding="utf-8") as file:
        return nbformat.read(file, as_version=nbformat.NO_CONVERT)


def test_there_are_notebooks_of_the_backend_op_trees_and_autodiff():
    assert {"01_backend", "02_optree", "03_autodiff"} <= {path.stem for path in NOTEBOOKS}


@every_notebook
def test_a_notebook_is_valid_and_every_cell_has_a_name_of_its_own(path):
    notebook = read(path)
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert notebook.metadata.kernelspec.name == "python3"


@every_notebook
def test_a_notebook_is_kept_without_outputs(path):
    code = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)


@every_notebook
def test_a_notebook_runs_from_top_to_bottom_and_its_assertions_hold(path):
    notebook = read(path)
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    printed = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output.text for output in printed if output.get("name") == "stderr"]


# --- the demo and the benchmarks -----------------------------------------------------------------------------------


def run(*arguments):
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, env=environment)


def demo(folder, before=""):
    script = ROOT / "examples" / "logistic.py"
    code = f"import runpy, sys; {before}; sys.argv = ['', {str(folder)!r}]; runpy.run_path({str(script)!r}, run_name="
    return run("-c", f"{code}'__main__')")
