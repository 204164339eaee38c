"""benchmarks/gpu_check.py: its steps run on the stand-ins, and their results are reported in a table."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.standin_cudnn import Frontend, Graph
from helpers.standin_cupy import installed

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu_check
from gpu_check import FAILED, NO_GPU, NOT_RUN, PASSED, Result

simulates = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")


def test_without_a_gpu_it_reports_the_steps_that_could_not_run() -> None:
    done = subprocess.run([sys.executable, gpu_check.__file__], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    lines = done.stdout.splitlines()
    needed = [name for name, step in gpu_check.STEPS.items() if step.needs_gpu]
    assert lines[-1].endswith("these steps could not be run: " + ", ".join(needed))
    assert [line.split("  ")[0] for line in lines[-len(gpu_check.STEPS) - 2 : -2]] == [*gpu_check.STEPS]
    assert any(line.startswith("numpy 2") for line in lines)


@simulates
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("by_cudnn", [False, True])
def test_convolutions_are_compared_with_those_of_the_cpu(
    by_cudnn: bool, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few:
        monkeypatch.setattr(gpu_check, "GEOMETRIES", gpu_check.GEOMETRIES[2:3])
    with installed():
        if by_cudnn:
            monkeypatch.setitem(sys.modules, "cudnn", frontend := Frontend())
        assert gpu_check.convolutions(by_cudnn).endswith(" results as on the CPU")
        if by_cudnn:
            assert {graph.operation for graph in frontend.graphs} == {"fprop", "dgrad", "wgrad"}


@simulates
def test_a_wrong_convolution_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    convolved = gpu_check.convolved

    def doubled(be: Any, dtype: str, *more: Any) -> Any:
        return (x * (1 + (dtype == "float16")) for x in convolved(be, dtype, *more))

    monkeypatch.setattr(gpu_check, "convolved", doubled)
    monkeypatch.setattr(gpu_check, "GEOMETRIES", gpu_check.GEOMETRIES[2:3])
    with installed(), pytest.raises(AssertionError, match=r"6 of 24 are too far .* float16 \(5, 7"):
        gpu_check.convolutions(False)


def test_convolutions_by_cudnn_are_not_run_where_it_is_not_installed() -> None:
    with installed(), pytest.raises(gpu_check.NotRun, match="nvidia-cudnn-frontend"):
        gpu_check.convolutions(True)


@simulates
def test_attention_is_compared_with_that_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed():
        monkeypatch.setitem(sys.modules, "cudnn", frontend := Frontend())
        assert gpu_check.attention() == "32 results as on the CPU"
        assert [len(graph.heads) for graph in frontend.graphs] == [3, 6] * 6
        monkeypatch.setattr(Graph, "_run_attention", lambda *_: None)
        with pytest.raises(AssertionError, match=r"32 are too far .* float16 causal=False \(48, 165\)"):
            gpu_check.attention()


@simulates
@pytest.mark.slow
def test_every_kind_of_kernel_is_compared_with_the_cpu() -> None:
    with installed():
        assert gpu_check.kernels().endswith(" results as on the CPU")


@simulates
@pytest.mark.slow
def test_training_with_graphs_is_compared_with_training_without() -> None:
    with installed():
        assert gpu_check.graphs().startswith("9 weights have the same bits; <graphs of <backend gpu")


@pytest.mark.parametrize(
    ("offset", "report", "message"), [(1.0, "captured; captured", "not equal"), (0.0, "", "captured: $")]
)
def test_graphs_with_other_bits_or_that_are_not_captured_are_reported(
    offset: float, report: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "trained", lambda graphs: ([np.full(3, offset * graphs)], report))
    with pytest.raises(AssertionError, match=message):
        gpu_check.graphs()


def test_the_device_and_missing_libraries_are_reported() -> None:
    with installed():
        assert "device: Stand-in" in gpu_check.device()
        assert gpu_check.device().endswith("not found: nvrtc, cudart, cublas, cublasLt, cudnn")


def test_a_sanitizer_that_is_not_here_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: None)
    with pytest.raises(gpu_check.NotRun, match="compute-sanitizer is not here"):
        gpu_check.sanitizer()


def test_a_step_that_crashes_or_hangs_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = gpu_check.run_step("packages", 0.001)
    assert (result.verdict, result.words) == (FAILED, "it took longer than 0 s")
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    assert gpu_check.run_step("packages", 9).verdict == FAILED


def test_later_steps_run_after_a_failure_but_not_without_a_gpu_or_after_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdicts = {"kernels": FAILED, "graphs": NOT_RUN}
    monkeypatch.setattr(gpu_check, "run_step", lambda name, s: Result(verdicts.get(name, PASSED), 1.0, name, "log"))
    results = gpu_check.run_steps([*gpu_check.STEPS])
    assert [results[name].verdict for name in ("packages", "kernels", "graphs", "benchmark")] == [
        PASSED,
        FAILED,
        NOT_RUN,
        PASSED,
    ]
    assert gpu_check.exit_code(results) == 1
    verdicts = {"GPU": NO_GPU, "packages": NOT_RUN}
    results = gpu_check.run_steps([*gpu_check.STEPS])
    assert {x.verdict for name, x in results.items() if name != "packages"} == {NO_GPU}
    assert gpu_check.exit_code(results) == 2
    results = gpu_check.run_steps([*gpu_check.STEPS], minutes=0)
    assert {x.words for x in results.values()} == {"the 0 minutes are over"}
    assert gpu_check.exit_code({"packages": Result(PASSED, 1.0, ""), "graphs": Result(NOT_RUN, 1.0, "")}) == 0
