"""Tests that the notebooks, the example and the benchmarks run, and show what they state."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}

every_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def read(name):
    return nbformat.read(NOTEBOOKS[name], as_version=nbformat.NO_CONVERT)


def outputs(name):
    """Run all cells of a notebook, which must succeed, and return their outputs."""
    notebook = read(name)
    NotebookClient(notebook, timeout=500, startup_timeout=500).execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def has_carriage_returns(results):
    """Return whether outputs have carriage returns, which overwrite a line of a terminal; LaTeX has backslashes."""
    return "\\r" in json.dumps(results).replace("\\\\", "")


# --- notebooks -----------------------------------------------------------------------------------------------------


def test_there_are_notebooks_of_the_backend_op_trees_and_autodiff():
    assert NOTEBOOKS.keys() >= {"01_backend", "02_optree", "03_autodiff", "04_layers", "05_training", "06_sequences"}
    assert NOTEBOOKS.keys() >= {"07_kernels", "08_array_api", "09_functions", "10_other_libraries"}


@every_notebook
def test_a_notebook_is_valid_and_the_ids_of_its_cells_are_unique(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert notebook.metadata.kernelspec.name == "python3"


@every_notebook
def test_a_notebook_is_committed_without_outputs(name):
    cells = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


def draws_op_trees(results):
    assert any("<svg" in output.get("data", {}).get("image/svg+xml", "") for output in results)


def plots_curves_and_errors_and_prints_a_line_an_epoch(results):
    assert sum("image/png" in output.get("data", {}) for output in results) >= 5
    texts = [output.get("data", {}).get("text/plain", "").split("\n") for output in results]
    epochs = [line.split()[1] for lines in texts for line in lines if line.startswith("Epoch")]
    assert epochs == [f"{epoch}/{n}" for n in (30, 6) for epoch in range(1, n + 1)]


def plots_gates_gradients_a_copy_and_attention(results):
    assert sum("image/png" in output.get("data", {}) for output in results) == 4


def derives_a_gradient_and_plots_two_curves(results):
    assert any("begin{aligned}" in output.get("data", {}).get("text/latex", "") for output in results)
    assert sum("image/png" in output.get("data", {}) for output in results) == 2


CHECKS = dict.fromkeys(["01_backend", "02_optree", "03_autodiff", "04_layers"], draws_op_trees)
CHECKS |= {
    "05_training": plots_curves_and_errors_and_prints_a_line_an_epoch,
    "06_sequences": plots_gates_gradients_a_copy_and_attention,
    "09_functions": derives_a_gradient_and_plots_two_curves,
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "06_sequences" else ()) for name in NOTEBOOKS]
)
def test_a_notebook_runs_without_a_warning_and_shows_the_expected_outputs(name):
    results = outputs(name)
    assert not [output.text for output in results if output.get("name") == "stderr"]
    assert not has_carriage_returns(results)
    if name in CHECKS:
        CHECKS[name](results)


@pytest.mark.slow
@every_notebook
def test_each_cell_runs_twice_and_the_later_ones_after_the_first_one_again(name):
    notebook = read(name)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    order = [cell for cell in cells for _ in range(2)] + cells
    notebook.cells = [nbformat.v4.new_code_cell(cell.source) for cell in order]
    NotebookClient(notebook, timeout=500, startup_timeout=500).execute()  # a cell that fails raises an error
    assert not has_carriage_returns(notebook)


# --- the example ---------------------------------------------------------------------------------------------------


def run_example(folder, before="", after=""):
    """Run the example in a new process, with its drawing in ``folder``, and code before and after it."""
    lines = ["import runpy, sys", before, f"sys.argv[1:] = [{str(folder)!r}]", "try:"]
    lines += [f"    runpy.run_path({str(ROOT / 'examples' / 'logistic.py')!r}, run_name='__main__')", "finally:"]
    return python("-c", "\n".join([*lines, f"    {after or 'pass'}"]))


def python(*arguments):
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, encoding="utf-8", env=environment)


def test_the_example_checks_its_gradient_and_draws_its_tree(tmp_path):
    done = run_example(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "((1) / ((1) + (exp ((-1) * x))))" in done.stdout
    assert "The gradient is correct." in done.stdout
    assert (tmp_path / "logistic.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.parametrize("op", ["exp", "mul", "div"])
def test_the_example_fails_if_a_derivative_is_wrong(tmp_path, op):
    wrong = f"from neonlite.ops import OPS; op = OPS[{op!r}]; correct = op.grad"
    wrong += "; object.__setattr__(op, 'grad', lambda *xs: tuple(2 * dx for dx in correct(*xs)))"
    done = run_example(tmp_path, before=wrong)
    assert done.returncode == 1
    assert "The gradient is WRONG" in done.stdout


def test_the_example_needs_only_the_core_dependencies(tmp_path):
    done = run_example(tmp_path, after="print('modules:', *{name.split('.')[0] for name in sys.modules})")
    modules = set(done.stdout.split("modules:")[1].split())
    assert {"neonlite", "numpy"} <= modules
    assert not modules & {"matplotlib", "torch", "numexpr", "array_api_strict", "h5py", "pooch", "pytest", "IPython"}


# --- benchmarks ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_benchmark_runs_quickly_and_counts_buffers():
    done = python(str(ROOT / "benchmarks" / "optree.py"), "--quick")
    assert (done.returncode, done.stderr) == (0, "")
    counts = dict(re.findall(r"^\| ([^|]*?) +\| +(\d+) \|$", done.stdout, re.MULTILINE))
    assert counts["logistic"] == "0"
    assert int(counts["logistic, numpy"]) >= 2
