"""Functions of SciPy, array-api-extra and einops run on arrays, and are differentiated."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from helpers import array_api_clients
from helpers.array_api_clients import DIFFERENTIABLE, OTHERS, expressions
from helpers.runtimes import RUNTIMES

from neonlite import Backend

pytest.importorskip("scipy")
pytest.importorskip("einops")
pytest.importorskip("array_api_extra")


@functools.cache
def run(runtime: str) -> dict[str, str]:
    """Run all expressions on a runtime in a new process, where SciPy accepts arrays of other libraries."""
    command = [sys.executable, "-W", "ignore", array_api_clients.__file__, runtime]
    process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SCIPY_ARRAY_API": "1"})
    assert not process.returncode, process.stderr
    return dict(json.loads(process.stdout))


@pytest.mark.parametrize("runtime", [name for name in ("cpu", "torch") if name in RUNTIMES])
def test_functions_written_for_the_standard_run_and_are_differentiated(runtime: str) -> None:
    problems = {expression: problem for expression, problem in run(runtime).items() if problem}
    assert not problems
    assert len(run(runtime)) == len(expressions(DIFFERENTIABLE)) + len(expressions(OTHERS))


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
