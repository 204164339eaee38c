"""Tests of benchmarks/gpu.py: it exits without a GPU, runs on a stand-in for CuPy, and checks its targets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.standin_cupy import installed

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu


def test_it_exits_without_a_gpu(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gpu.main([]) == 0
    assert "nothing is measured, as there is no GPU: the runtime 'gpu' cannot be loaded" in capsys.readouterr().out
    with installed(driver=0):
        assert gpu.main(["--quick"]) == 0
    assert "There is no NVIDIA driver" in capsys.readouterr().out


def test_it_runs_on_a_stand_in_and_prints_a_table(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_KERNELS", "0")
    with installed():
        report = gpu.run("1/(1+exp(-x))", True, found=False)
    (case,) = report["cases"].values()
    assert set(case["seconds"]) == {gpu.OURS, gpu.CUPY}
    assert case["of floor"] > 0
    assert "CUPY_TF32=" in report["page"]
    assert "| 1/(1+exp(-x)), 1e8 |" in report["page"]


@pytest.mark.parametrize("kind", list(gpu.KINDS))
def test_chains_run_in_every_dtype(kind: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_KERNELS", "0")
    with installed():
        report = gpu.run(f"fprop and bprop, {kind}", True, found=False)
    (case,) = report["cases"].values()
    assert case["seconds"][gpu.OURS] > 0
    assert case["TF32"] == (kind == "TF32")


def test_every_target_has_a_case() -> None:
    assert len(gpu.CASES) == 20
    steps = ("mlp", "cifar", "cifar, TF32", "lstm", "lstm, TF32", "resnet", "resnet, TF32")
    assert [name for name in gpu.CASES if name.startswith("step: ")] == [f"step: {name}" for name in steps]


@pytest.mark.parametrize(("ours", "verdicts"), [(1.0, [True, True]), (2.0, [False, True]), (4.0, [False, False])])
def test_targets_are_relative_to_the_floor_and_to_peers(ours: float, verdicts: list[bool]) -> None:
    case = gpu.Case({}, of_floor=0.8, most=((gpu.EAGER, 1.0), ("not there", 1.0)))
    cells, found = gpu.evaluate(case, {gpu.OURS: [ours] * 3, gpu.EAGER: [2.0, 3.0, 3.0]}, floor=0.9)
    assert [ok for _, ok in found["targets"]] == verdicts
    assert found["of floor"] == pytest.approx(0.9 / ours)
    assert cells[0].startswith(f"{ours:.3g} s")
    assert cells[-1].count("NO") == verdicts.count(False)
