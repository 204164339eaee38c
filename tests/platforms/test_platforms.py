"""Tests of the core on other operating systems, which a process on Linux simulates."""

from __future__ import annotations

import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from helpers.parametrize import each
from helpers.platform_programs import PROGRAMS
from helpers.systems import SYSTEMS

from neonlite.backend.runtimes import INTEL_EXTRAS, install_hint

TESTS = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="simulates other systems on Linux")


@functools.cache
def run_programs(system: str) -> dict[str, str]:
    """Run all programs in a process that simulates a system; return a traceback for each, or an empty text."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, **SYSTEMS[system].environment, "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-X", "warn_default_encoding", "-m", "helpers.systems", system, folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        results = Path(folder) / "results.json"
        assert results.exists(), f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        found: dict[str, str] = json.loads(results.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("system", SYSTEMS)
@each("name", PROGRAMS)
def test_a_program_runs_on_a_simulated_system(system: str, name: str) -> None:
    error = run_programs(system)[name]
    assert not error, error


def test_the_extras_for_linux_on_x86_64_are_those_that_hints_know() -> None:
    extras = tomllib.loads((TESTS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    marker = "; sys_platform == 'linux' and platform_machine == 'x86_64'"
    assert {name for name, packages in extras.items() if all(x.endswith(marker) for x in packages)} == {*INTEL_EXTRAS}


def test_a_requirement_of_every_system_has_a_hint_on_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine in ("x86_64", "arm64"):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        assert install_hint("pip install torch") == "Install it: pip install torch"
