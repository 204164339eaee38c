"""Tests of the core on other operating systems, which a process on Linux simulates."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from helpers.platform_programs import PROGRAMS
from helpers.systems import SYSTEMS

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="simulates other systems on Linux")


@functools.cache
def run_programs(system: str) -> dict[str, str]:
    """Run all programs in a process that simulates a system; return a traceback for each, or an empty text."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, **SYSTEMS[system].environment, "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, "-X", "warn_default_encoding", "-m", "helpers.systems", system, str(results)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        assert results.exists(), f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        found: dict[str, str] = json.loads(results.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_program_runs_on_a_simulated_system(system: str, name: str) -> None:
    error = run_programs(system)[name]
    assert not error, error
