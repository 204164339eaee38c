"""Do the notebooks, the demo and the benchmarks run, and do their claims hold?"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}

every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def read(name):
    return nbformat.read(NOTEBOOKS[name], as_version=nbformat.NO_CONVERT)


@cache
def outputs(name):
    """Run a notebook, each cell of which must succeed, and return all its outputs."""
    notebook = read(name)
    NotebookClient(notebook, timeout=900).execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


# --- notebooks -----------------------------------------------------------------------------------------------------


def test_there_are_notebooks_of_the_backend_op_trees_and_autodiff():
    assert NOTEBOOKS.keys() >= {"01_backend", "02_optree", "03_autodiff", "04_layers", "05_training", "06_sequences"}
    assert "07_kernels" in NOTEBOOKS


@every_notebook
def test_a_notebook_is_valid_and_its_cells_have_names_of_their_own(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert notebook.metadata.kernelspec.name == "python3"


@every_notebook
def test_a_notebook_is_kept_without_outputs(name):
    cells = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@every_notebook
def test_a_notebook_runs_from_top_to_bottom_without_a_warning(name):
    assert not [output.text for output in outputs(name) if output.get("name") == "stderr"]


def test_a_training_shows_its_curves_its_mistakes_and_a_line_an_epoch():
    found = outputs("05_training")
    assert sum("image/png" in output.get("data", {}) for output in found) >= 5
    written = "".join(output.text for output in found if output.get("name") == "stdout")
    epochs = [line.split()[1] for line in written.split("\n") if line.startswith(("Epoch", "\rEpoch"))]
    assert epochs == [*map(str, range(30)), *map(str, range(6))]


def test_sequences_show_gates_gradients_a_copy_and_attention():
    assert sum("image/png" in output.get("data", {}) for output in outputs("06_sequences")) == 4


@pytest.mark.parametrize("name", ["01_backend", "02_optree", "03_autodiff", "04_layers"])
def test_op_trees_draw_themselves_in_a_notebook(name):
    assert any("<svg" in output.get("data", {}).get("image/svg+xml", "") for output in outputs(name))


# --- the demo ------------------------------------------------------------------------------------------------------


def demo(folder, before="", after=""):
    """Run the demo in a new process, with a picture in ``folder``, and some code before and after."""
    lines = ["import runpy, sys", before, f"sys.argv[1:] = [{str(folder)!r}]", "try:"]
    lines += [f"    runpy.run_path({str(ROOT / 'examples' / 'logistic.py')!r}, run_name='__main__')", "finally:"]
    return python("-c", "\n".join([*lines, f"    {after or 'pass'}"]))


def python(*arguments):
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, encoding="utf-8", env=environment)


def test_the_demo_proves_its_gradient_and_draws_its_tree(tmp_path):
    done = demo(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "((1) / ((1) + (exp ((-1) * x))))" in done.stdout
    assert "The gradient is right." in done.stdout
    assert (tmp_path / "logistic.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize("op", ["exp", "mul", "div"])
def test_the_demo_fails_when_a_derivative_is_wrong(tmp_path, op):
    wrong = f"from neonlite.ops import OPS; op = OPS[{op!r}]; right = op.grad"
    wrong += "; object.__setattr__(op, 'grad', lambda *xs: tuple(2 * dx for dx in right(*xs)))"
    done = demo(tmp_path, before=wrong)
    assert done.returncode == 1
    assert "The gradient is WRONG" in done.stdout


def test_the_demo_needs_the_core_dependencies_alone(tmp_path):
    done = demo(tmp_path, after="print('modules:', *{name.split('.')[0] for name in sys.modules})")
    modules = set(done.stdout.split("modules:")[1].split())
    assert {"neonlite", "numpy"} <= modules
    assert not modules & {"matplotlib", "torch", "numexpr", "array_api_strict", "h5py", "pooch", "pytest", "IPython"}


# --- the benchmarks ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_benchmark_runs_in_short_and_its_counter_counts():
    done = python(str(ROOT / "benchmarks" / "optree.py"), "--quick")
    assert (done.returncode, done.stderr) == (0, "")
    counts = dict(re.findall(r"^\| ([^|]*?) +\| +(\d+) \|$", done.stdout, re.MULTILINE))
    assert counts["logistic"] == "0"
    assert int(counts["logistic, numpy"]) >= 2
