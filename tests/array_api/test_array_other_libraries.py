"""Functions of SciPy, scikit-learn, array-api-extra and einops on arrays, and their derivatives."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import array_api_clients, scipy_calls, sklearn_calls
from helpers.runtimes import RUNTIMES

from neonlite import Backend

pytest.importorskip("scipy")
pytest.importorskip("einops")
pytest.importorskip("array_api_extra")


@functools.cache
def run_all(script: Any, runtime: str, *what: str) -> Any:
    """Run calls of a script on a runtime in a new process, where SciPy accepts arrays of other libraries."""
    command = [sys.executable, "-W", "ignore", script.__file__, runtime, *what]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "PYTHONPATH": path}
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not process.returncode, process.stderr
    return json.loads(process.stdout)


def run(script: Any, runtime: str, what: str) -> Any:
    """Return the problems of the calls of a script; one process computes those of several tests."""
    together = ["values", "gradients", *["declared"] * (script is scipy_calls)] if runtime == "cpu" else []
    return run_all(script, runtime, *(together if what in together else [what]))[what]


def differentiable(calls: list[str], library: str = "") -> set[str]:
    """Return the functions that are differentiated."""
    return {library + call.partition("(")[0].removeprefix("*") for call in calls if call.startswith("*")}


SCIPY = differentiable(scipy_calls.calls())
SKLEARN = differentiable(scipy_calls.split_calls(sklearn_calls.CALLS), "sklearn.")
REFUSED = {
    f"{module}.{name}": pattern
    for pattern, functions in scipy_calls.REFUSED.values()
    for module, names in functions.items()
    for name in names.split()
} | {name: pattern for pattern, names in sklearn_calls.REFUSED.values() for name in names}
SCRIPTS = {"SciPy": scipy_calls, "scikit-learn": sklearn_calls, "array-api-extra and einops": array_api_clients}
each_library = pytest.mark.parametrize("library", SCRIPTS)


@pytest.mark.long
@each_library
@pytest.mark.parametrize("runtime", [name for name in ("cpu", "torch") if name in RUNTIMES])
def test_gradients_of_functions_of_other_libraries_are_finite_differences(library: str, runtime: str) -> None:
    problems = run(SCRIPTS[library], runtime, "gradients")
    assert not {call: problem for call, problem in problems.items() if problem}
    assert len(problems) >= {"SciPy": len(SCIPY), "scikit-learn": len(SKLEARN)}.get(library, 15)


@pytest.mark.slow
@each_library
def test_derivatives_in_forward_mode_are_finite_differences_and_wrong_ones_are_reported(library: str) -> None:
    problems = run(SCRIPTS[library], "cpu", "derivatives")
    for call, problem in problems.items():
        is_refused = call.partition("(")[0] in {*REFUSED, "calibration.CalibratedClassifierCV"}  # it reads float(x)
        assert not problem or is_refused, f"{call}: {problem}"


PAGE = (Path(__file__).parents[2] / "docs" / "functions.md").read_text(encoding="utf-8")


def test_the_documentation_lists_the_functions_that_are_differentiated() -> None:
    rows = re.findall(r"^\| `((?:scipy|sklearn)[a-zA-Z._]*)` \| (.*) \|$", PAGE, re.MULTILINE)
    names = [f"{module}.{name}" for module, functions in rows for name in re.findall(r"`([^`]+)`", functions)]
    assert len(names) == len(set(names))
    assert set(names) == SCIPY | SKLEARN
    assert f"{len(SCIPY)} functions of SciPy" in PAGE
    assert f"{len(SKLEARN)} of scikit-learn" in PAGE


@pytest.mark.long
def test_the_example_of_the_documentation_prints_gradients() -> None:
    code = PAGE.partition("## Functions of other libraries")[2].partition("```python\n")[2].partition("```")[0]
    code += "\nprint(nl.jit(nl.grad(scipy.stats.skew))(t))"  # it reads no values
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not process.stderr
    skewness, _, compiled = re.findall(r"Array\([^)]*\)", process.stdout)
    assert compiled == skewness


@pytest.mark.long
def test_functions_of_array_api_extra_and_einops_return_arrays_with_the_values_of_numpy() -> None:
    assert not {call: problem for call, problem in run(array_api_clients, "cpu", "values").items() if problem}


@pytest.mark.long
def test_all_functions_of_scipy_for_the_standard_return_arrays_with_the_values_of_numpy() -> None:
    patterns = {name: pattern for name, pattern in REFUSED.items() if name.startswith("scipy.")}
    problems = run(scipy_calls, "cpu", "values")
    for call, problem in problems.items():
        assert re.search(patterns.pop(call.partition("(")[0], "^$"), problem), f"{call}: {problem}"
    assert not patterns
    assert not set(run(scipy_calls, "cpu", "declared")) - {call.partition("(")[0] for call in problems}, (
        "functions that are not called"
    )


@pytest.mark.long
def test_scikit_learn_returns_arrays_with_the_values_of_numpy() -> None:
    for call, problem in run(sklearn_calls, "cpu", "values").items():
        assert re.search(REFUSED.get(call.partition("(")[0], "^$"), problem), f"{call}: {problem}"


def test_numpy_functions_of_a_variable_are_reported_as_constants() -> None:
    be = Backend("cpu")
    x = be.array_api.variable([1.0, 2.0])
    with pytest.warns(UserWarning, match="no gradient"):
        np.asarray(x * 2)
    with pytest.warns(UserWarning, match="from_dlpack: .* no gradient"):
        np.from_dlpack(x * 2)
    with pytest.warns(UserWarning, match="np.atleast_1d: .* no gradient"):
        np.atleast_1d(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.asarray(be.array_api.ones(2) * 2)
        np.asarray(x > 1)
        (x * 2).numpy()
