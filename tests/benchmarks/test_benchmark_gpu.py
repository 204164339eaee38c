"""Tests of benchmarks/gpu.py: it exits without a GPU, runs on a stand-in for CuPy, and checks its targets."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.standin_cupy import installed

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu

from neonlite.backend.runtimes import load_runtime


def test_it_exits_without_a_gpu(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gpu.main([]) == 0
    assert "nothing is measured, as there is no GPU: the runtime 'gpu' cannot be loaded" in capsys.readouterr().out
    with installed(driver=0):
        assert gpu.main(["--quick"]) == 0
    assert "There is no NVIDIA driver" in capsys.readouterr().out


def row(name: str) -> dict[str, Any]:
    """Return the record of a case on a stand-in for CuPy, beside PyTorch on the CPU."""
    with installed():
        return gpu.row(gpu.Libraries(load_runtime("gpu"), True, compiled=False, device="cpu"), name, 2)[1]


def test_it_runs_on_a_stand_in_and_prints_a_table(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_KERNELS", "0")
    with installed():
        report = gpu.run("1/(1+exp(-x))", True, found=False)
    (case,) = report["cases"].values()
    assert set(case["seconds"]) == {gpu.OURS, gpu.REPLAYED, gpu.CUPY}
    assert case["of floor"] > 0
    assert "CUPY_TF32=" in report["page"]
    assert "| 1/(1+exp(-x)), 1e8 |" in report["page"]


@pytest.mark.parametrize("kind", list(gpu.KINDS))
def test_chains_run_in_every_dtype(kind: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_KERNELS", "0")
    case = row(f"3 x conv 3x3 64->64, 56x56, N=128, fprop and bprop, {kind}")
    assert case["seconds"][gpu.OURS] > 0
    assert case["TF32"] == (kind == "TF32")


RUN = [
    "softmax over axis 0, (1000, 100000)",
    "step: mlp",
    "step: transformer, bfloat16",
    "attention forward + backward, 16 x 16 x 1024 x 64, bfloat16",
    "product of 8192 x 8192, bfloat16",
]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in RUN else pytest.mark.slow) for name in gpu.CASES]
)
def test_no_peer_fails_in_any_case(name: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("NEONLITE_KERNELS", "0")
    case = row(name)
    assert "errors" not in case
    assert {gpu.OURS, *([gpu.EAGER] if find_spec("torch") else [])} <= set(case["seconds"])


def test_a_peer_that_fails_loses_no_other(monkeypatch: Any) -> None:
    def fail() -> None:
        raise RuntimeError("no kernel image")

    peers = {gpu.OURS: lambda: 1, gpu.EAGER: gpu.lazily(fail), gpu.CUPY: lambda: 2}
    monkeypatch.setitem(gpu.CASES, "one", lambda of, be: gpu.Case(peers, most=1.0))
    case = row("one")
    assert case["errors"] == {gpu.EAGER: "RuntimeError: no kernel image"}
    assert set(case["seconds"]) == {gpu.OURS, gpu.CUPY}


def test_work_without_a_graph_is_measured_beside_its_replay() -> None:
    be = SimpleNamespace(graphs="graphs", replay=lambda name, work: "replayed")
    peers = gpu.ours(be, lambda: be.graphs)  # type: ignore[arg-type]
    assert (peers[gpu.OURS](), peers[gpu.REPLAYED](), be.graphs) == (None, "replayed", "graphs")


def test_every_target_has_a_case() -> None:
    assert len(gpu.CASES) == 31
    steps = ["mlp", *(f"{name}{kind}" for name in ("cifar", "resnet") for kind in ("", ", TF32", ", bfloat16"))]
    steps += ["lstm", "lstm, TF32", "transformer, TF32", "transformer, bfloat16"]
    steps += ["transformer of 6 blocks, 1024 features, 16 x 512, bfloat16"]
    assert [name for name in gpu.CASES if name.startswith("step: ")] == [f"step: {name}" for name in steps]


@pytest.mark.parametrize(("ours", "verdicts"), [(1.0, [True, True]), (2.0, [False, True]), (4.0, [False, False])])
def test_targets_are_relative_to_the_floor_and_to_the_fastest_peer(ours: float, verdicts: list[bool]) -> None:
    case = gpu.Case({}, of_floor=0.8, most=1.0)
    times = {gpu.OURS: [9.0] * 3, gpu.REPLAYED: [ours] * 3, gpu.EAGER: [2.0, 3.0, 3.0], gpu.JAX: [4.0] * 3}
    cells, found = gpu.evaluate(case, times, floor=0.9)
    assert [ok for _, ok in found["targets"]] == verdicts
    assert found["targets"][1][0].startswith("at most 1 x torch eager: ")
    assert found["of floor"] == pytest.approx(0.9 / ours)
    assert cells[:2] == ["9 s", f"{ours:.3g} s"]
    assert cells[-1].count("NO") == verdicts.count(False)
