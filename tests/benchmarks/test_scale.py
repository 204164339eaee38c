"""benchmarks/scale.py: each of its cases runs, and its exponent is that of the times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import scale


@pytest.mark.parametrize("name", scale.CASES)
def test_each_case_runs(name: str) -> None:
    assert scale.first_call(name, 3) > 0


def test_the_exponent_is_that_of_the_largest_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "first_call", lambda name, n: 1e-9 * n**2 if n > 100 else 1.0)
    row = scale.measure("concat of n arrays", [100, 1000, 10_000], 60)
    assert row["exponent"] == pytest.approx(2)
    assert scale.cells(row, [1000])[1:] == ["1 ms", "2.00 !"]
    monkeypatch.setattr(scale, "first_call", lambda name, n: 0.1 * n)
    assert list(scale.measure("concat of n arrays", [10, 100, 1000, 10_000], 60)["seconds"]) == [10, 100]
