"""Tests of benchmarks/steps.py: its tables, and that JAX's networks compute what neonlite's do."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import _table
import steps

ROW: dict[str, Any] = {"network": "lenet", "pass": "step", "threads": 1, "quiet": True}
ROW |= {"cpu s": 0.002, "torch s": 0.004, "torch.compile s": 0.001, "jax.jit s": 0.008}
ROW |= {"cpu / torch": 0.5, "cpu / torch.compile": 2.0, "cpu / jax.jit": 0.25}
ROW |= {"cpu first s": 0.02, "torch.compile first s": 30.0, "torch.compile second process s": 3.0, "jax.jit first s": 2}
ROW |= {"cpu bytes": 1e6, "torch.compile bytes": 2e6}


def tables(rows: list[dict[str, Any]]) -> list[list[dict[str, str]]]:
    """Return the rows of each table of the page, as {column: cell}."""
    page = steps.report(rows, ["cpu"], {}, "python benchmarks/steps.py")
    found = []
    for part in page.split(f"## {steps.FIRST}"):
        head, _, *lines = ([c.strip() for c in x.split("|")[1:-1]] for x in part.splitlines() if x.startswith("|"))
        found.append([dict(zip(head, cells, strict=True)) for cells in lines])
    return found


@pytest.fixture(autouse=True)
def all_peers(monkeypatch: Any) -> None:
    monkeypatch.setattr(steps, "OTHERS", [*steps.EAGER, steps.COMPILED, steps.JITTED])


def test_times_and_ratios_of_every_peer_are_in_the_first_table() -> None:
    (row,), _ = tables([ROW])
    assert [row[p] for p in ("cpu", "torch", "torch.compile", "jax.jit")] == ["2 ms", "4 ms", "1 ms", "8 ms"]
    assert [row[f"cpu × {p}"] for p in ("torch", "torch.compile", "jax.jit")] == ["0.50", "2.00", "0.25"]


def test_first_steps_and_memory_are_in_the_second_table() -> None:
    _, (row,) = tables([ROW])
    assert [row[f"{p}, first step"] for p in ("cpu", "torch.compile", "jax.jit")] == ["20 ms", "30 s", "2 s"]
    assert row["torch.compile, second process"] == "3 s"
    assert row["cpu, MB"] == "1.0"
    assert row["torch, MB"] == ""


def test_only_the_ratio_to_eager_pytorch_has_a_target() -> None:
    (row,), _ = tables([ROW | {"cpu / torch": 1.2}])
    assert [row[f"cpu × {p}"] for p in ("torch", "torch.compile")] == ["1.20 !", "2.00"]


def test_results_without_the_peers_have_a_page_too() -> None:
    results = json.loads((_table.RESULTS / "steps.json").read_text())["rows"]
    rows = [{key: value for key, value in row.items() if "torch." not in key and "jax" not in key} for row in results]
    times = tables(rows)[0]
    assert len(times) == len(rows)
    assert times[0]["torch.compile"] == times[0]["cpu × jax.jit"] == ""


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("jax"), reason="needs jax")
@pytest.mark.parametrize("name", [*steps.NETWORKS, *steps.CHARACTERS])
def test_jax_computes_the_losses_and_outputs_of_neonlite(name: str) -> None:
    found = steps.peers(steps.case_of(name), ["cpu"], steps.RATE, [steps.JITTED])
    assert list(steps.compare(name, found)) == ["cpu", "jax.jit"]
