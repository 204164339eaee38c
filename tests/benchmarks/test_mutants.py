"""Changed model files are refused, or used as they say: a short form of benchmarks/mutants.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import mutants


@pytest.mark.slow
@pytest.mark.parametrize("kind", mutants.KINDS)
def test_mutants_of_a_file_are_refused_or_consistent(kind):
    (row,) = mutants.campaign(60, [kind], first=10**6)
    assert row["held"], row["bad"]
    assert row["refused"] > 20


@pytest.mark.slow
def test_a_mutation_with_a_seed_is_the_same_each_time(tmp_path):
    sample = mutants.Sample("regressor", tmp_path)
    reports = [mutants.run(sample, 7, tmp_path / "mutant") for _ in range(2)]
    assert reports[0]["changes"] == reports[1]["changes"]
