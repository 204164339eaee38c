"""Functions of SciPy, scikit-learn, array-api-extra and einops run on arrays; many are differentiated."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from helpers import array_api_clients, scipy_calls, sklearn_calls
from helpers.array_api_clients import DIFFERENTIABLE, OTHERS, expressions
from helpers.runtimes import RUNTIMES

from neonlite import Backend

pytest.importorskip("scipy")
pytest.importorskip("einops")
pytest.importorskip("array_api_extra")


def run(script: Any, runtime: str) -> Any:
    """Run all calls of a script on a runtime in a new process, where SciPy accepts arrays of other libraries."""
    command = [sys.executable, "-W", "ignore", script.__file__, runtime]
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "PYTHONPATH": path}
    process = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not process.returncode, process.stderr
    return json.loads(process.stdout)


@pytest.mark.long
@pytest.mark.parametrize("runtime", [name for name in ("cpu", "torch") if name in RUNTIMES])
def test_functions_written_for_the_standard_run_and_are_differentiated(runtime: str) -> None:
    problems = run(array_api_clients, runtime)
    assert not {expression: problem for expression, problem in problems.items() if problem}
    assert len(problems) == len(expressions(DIFFERENTIABLE)) + len(expressions(OTHERS))


@pytest.mark.long
def test_all_functions_of_scipy_for_the_standard_return_arrays_with_the_values_of_numpy() -> None:
    patterns = {
        f"{module}.{name}": pattern
        for pattern, functions in scipy_calls.REFUSED.values()
        for module, names in functions.items()
        for name in names.split()
    }
    problems, declared = run(scipy_calls, "cpu")
    for call, problem in problems.items():
        assert re.search(patterns.pop(call.partition("(")[0], "^$"), problem), f"{call}: {problem}"
    assert not patterns
    assert not set(declared) - {call.partition("(")[0] for call in problems}, "functions that are not called"


@pytest.mark.long
def test_scikit_learn_returns_arrays_with_the_values_of_numpy() -> None:
    patterns = {name: pattern for pattern, names in sklearn_calls.REFUSED.values() for name in names}
    for call, problem in run(sklearn_calls, "cpu").items():
        assert re.search(patterns.get(call.partition("(")[0], "^$"), problem), f"{call}: {problem}"


def test_numpy_functions_of_a_variable_are_reported_as_constants() -> None:
    be = Backend("cpu")
    x = be.array_api.variable([1.0, 2.0])
    with pytest.warns(UserWarning, match="no gradient"):
        np.asarray(x * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.asarray(be.array_api.ones(2) * 2)
        np.asarray(x > 1)
        (x * 2).numpy()
