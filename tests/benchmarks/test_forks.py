"""Forked processes use neonlite after their parent did, also beside a fit: a short form of benchmarks/forks.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import forks

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes fork here")


@needs_fork
@pytest.mark.slow
@pytest.mark.parametrize("beside_fit", [False, True], ids=["alone", "beside a fit"])
@pytest.mark.parametrize("runtime", forks.RUNTIMES)
@pytest.mark.parametrize(
    "name", ["product", "one-channel convolution", "LSTM", "attention", "op-tree", "fork", "spawn"]
)
def test_no_child_hangs(runtime: str, name: str, beside_fit: bool) -> None:
    row = forks.case(runtime, name, 2 if name == "spawn" else 8, beside_fit)
    assert (row["hangs"], row["wrong"]) == (0, 0), row


@needs_fork
def test_a_child_that_hangs_or_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "LIMIT", 1)
    assert forks.fork(lambda: True) == ""
    assert forks.fork(lambda: False) == "wrong"
    assert forks.fork(lambda: 1 / 0 > 0) == f"status {4 << 8}"
    assert forks.fork(lambda: all(x == 0 for x in iter(int, 1))) == "hangs"
