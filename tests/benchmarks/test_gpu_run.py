"""benchmarks/gpu_run.py: parts that crash, hang or are killed lose no rows and stop no others; and what parts find."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.standin_cupy import installed

from neonlite import Backend
from neonlite.backend.primitives.geometry import Layout
from neonlite.backend.runtimes.cuda.convolution import plan_name, read_plan_table

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu
import gpu_run
from gpu_run import FAILED, NOT_RUN, PASSED, NotRun, Part, Run

simulates = pytest.mark.skipif(shutil.which("g++") is None, reason="kernels are simulated with g++, which is not here")

ROW = "import json, os, signal, subprocess, sys, time; file = open(sys.argv[1] + '/rows.jsonl', 'a', buffering=1)\n"
ROW += "def row(name, verdict='passed'):\n    found = {'part': sys.argv[2], 'name': name, 'verdict': verdict}\n"
ROW += "    file.write('\\n' + json.dumps(found | {'seconds': 0, 'found': name}))\n    file.flush()\n"


def fake_parts(monkeypatch: pytest.MonkeyPatch, programs: dict[str, str], **beside: bool) -> list[str]:
    """Replace the parts by programs that call ``row(name)``; return the list of the processes that start."""
    started = []

    def start(part: str, out: Path, seconds: float, quick: bool) -> Any:
        started.append(part)
        code = ROW + programs.get(part, "time.sleep(99)")
        return subprocess.Popen([sys.executable, "-c", code, str(out), part], start_new_session=True)

    monkeypatch.setattr(gpu_run, "start", start)
    parts = {part: Part(lambda run: None, 1.0, beside.get(part, False)) for part in programs}
    monkeypatch.setattr(gpu_run, "PARTS", parts)
    return started


def verdicts(out: Path) -> dict[str, tuple[str, str]]:
    return {row["part"]: (row["verdict"], row["found"]) for row in gpu_run.read(out) if not row["name"]}


def run(out: Path, part: str = "A", end: float = 1e12) -> Run:
    return Run(part, out, end, True, "cpu")


# --- parts -----------------------------------------------------------------------------------------------------------


def test_parts_that_crash_hang_or_are_killed_stop_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    programs = {
        "A": "row('first'); os.abort()",
        "B": "row('second'); os.kill(os.getpid(), signal.SIGKILL)",
        "C": "row('third'); p = subprocess.Popen(['sleep', '99']); row(str(p.pid)); time.sleep(99)",
        "D": "row('fourth', 'FAILED'); row('fifth')",
        "E": "pass",
        "F": "row('last')",
    }
    fake_parts(monkeypatch, programs)
    assert gpu_run.main(["--out", str(tmp_path), "--seconds", "12"]) == 1
    found = verdicts(tmp_path)
    assert [found[part][0] for part in programs] == [FAILED] * 5 + [PASSED]
    assert found["A"][1] == "it ended with -6; 1 rows"
    assert found["B"][1] == "it ended with -9; 1 rows"
    assert found["C"][1].startswith("it took longer than ")
    assert found["D"][1] == "1 rows, not fourth"
    assert [row["name"] for row in gpu_run.read(tmp_path) if row["part"] == "B"] == ["second", ""]
    (child,) = (row["name"] for row in gpu_run.read(tmp_path) if row["name"].isdigit())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"  # ended
    assert "F: passed" in capfd.readouterr().out


def test_only_failed_repeats_parts_that_have_not_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = fake_parts(monkeypatch, {"A": "row('a')", "B": "row('b', 'FAILED')", "C": "row('c')"})
    assert gpu_run.main(["--out", str(tmp_path), "--seconds", "9", "--only", "AB"]) == 1
    started.clear()
    assert gpu_run.main(["--out", str(tmp_path), "--seconds", "9", "--only", "failed"]) == 1
    assert started == ["B", "C"]
    started = fake_parts(monkeypatch, {"A": "", "B": "row('b')", "C": ""})
    assert gpu_run.main(["--out", str(tmp_path), "--seconds", "9", "--only", "failed"]) == 0
    assert started == ["B"]


def test_time_that_a_part_leaves_is_shared_by_later_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, limits = [0.0], {}
    monkeypatch.setattr(gpu_run, "PARTS", {part: Part(lambda run: None, 10.0) for part in "ABC"})
    monkeypatch.setattr(gpu_run.time, "monotonic", lambda: now[0])

    def run_part(part: str, out: Path, seconds: float, quick: bool) -> None:
        limits[part] = seconds
        now[0] += {"A": 4.0, "B": 13.0, "C": 0.0}[part]
        gpu_run.append(out, part=part, name="", verdict=PASSED, seconds=0, found="")

    monkeypatch.setattr(gpu_run, "run_part", run_part)
    gpu_run.run_parts(["A", "B", "C"], tmp_path, 30.0, False)
    assert limits == {"A": 10.0, "B": 13.0, "C": 13.0}


def test_processes_fill_caches_beside_some_parts_and_are_ended_before_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = fake_parts(monkeypatch, dict.fromkeys("ABCD", "row('x')"), B=True, C=True)
    ended: list[int] = []
    kill = gpu_run.kill
    monkeypatch.setattr(gpu_run, "kill", lambda process: ended.append(len(started)) or kill(process))
    gpu_run.run_parts([*"ABCD"], tmp_path, 30.0, False)
    fillers = [*map(str, range(gpu_run.FILLERS))]
    assert started == ["A", *fillers, "B", "C", "D"]
    assert ended == [1, 8, 9, *[9] * len(fillers), 10]  # as many processes had started


# --- rows ------------------------------------------------------------------------------------------------------------


def test_rows_are_appended_at_once_and_those_that_passed_are_not_repeated(tmp_path: Path) -> None:
    calls = []

    def work(n: float = 1) -> float:
        calls.append(n)
        assert [row["found"] for row in gpu_run.read(tmp_path)] == ["it broke off"]  # until it returns
        return 1 / n

    for n in (0, 1):  # the first run fails in its second row
        run(tmp_path).row("good", work)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu_run.traceback, "print_exc", lambda: None)
            run(tmp_path).row("bad", lambda n=n: 1 / n)
    assert calls == [1]
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().split("\n")[2::2]]
    assert [(line["name"], line["verdict"]) for line in lines] == [("good", PASSED), ("bad", FAILED), ("bad", PASSED)]
    assert lines[1]["found"] == "ZeroDivisionError: division by zero"
    assert [row["verdict"] for row in gpu_run.read(tmp_path)] == [PASSED, PASSED]


def test_what_is_not_installed_is_no_failure_and_no_row_starts_after_the_end(tmp_path: Path) -> None:
    def absent() -> str:
        raise NotRun("PyTorch is not installed")

    run(tmp_path).row("absent", absent)
    run(tmp_path, end=time.monotonic() - 1).row("late", lambda: 1 / 0)
    found = {row["name"]: (row["verdict"], row["found"]) for row in gpu_run.read(tmp_path)}
    assert found == {"absent": (PASSED, "PyTorch is not installed"), "late": (NOT_RUN, "the time was over")}


def test_a_line_that_a_kill_cut_loses_no_other(tmp_path: Path) -> None:
    run(tmp_path).row("first", lambda: 1)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('\n{"part": "A", "na')
    gpu_run.append(tmp_path, part="A", name="second", verdict=PASSED, found=2)
    assert [row["found"] for row in gpu_run.read(tmp_path)] == [1, 2]


def test_the_output_is_short(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, targets = dict.fromkeys(gpu.PEERS, 1.234567e-3), [("at least 93% of floor: 92%", False), ("ok", True)]
    found: dict[str, Any] = {"seconds": seconds, "of floor": 0.92, "targets": targets, "errors": {gpu.JAX: "x" * 999}}
    for n in range(400):
        gpu_run.append(tmp_path, part="F", name=f"row {n}", verdict=PASSED, seconds=1.0, found=found)
        gpu_run.append(tmp_path, part="I", name=f"row {n}", verdict=FAILED, seconds=1.0, found="x" * 999)
    fake_parts(monkeypatch, {part: f"row('{part * 999}', 'FAILED')" for part in "ABCDEGH"})
    gpu_run.main(["--out", str(tmp_path), "--seconds", "30"])
    output = capfd.readouterr().out
    assert len(output) <= 12_000
    assert output.count("I row") == gpu_run.MAX_FAILURES
    assert "F row 0: us ours 1234.6, replayed 1234.6, eager 1234.6" in output
    assert "at least 93% of floor: 92% !; ok\n" in output
    assert output.endswith("the rest is in rows.jsonl\n")


# --- what parts find -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["0", pytest.param("1", marks=[pytest.mark.slow, simulates])])
def test_parts_run_on_stand_ins(kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels: those that need none; each other row is of fractions of a second."""
    monkeypatch.setenv("NEONLITE_KERNELS", kernels)
    monkeypatch.setattr(gpu_run, "find_spec", lambda name: None)
    names = {"F": ["step: mlp"], "G": ["product of 8192 x 8192, TF32"]}
    monkeypatch.setattr(gpu_run, "names_of", names.get)
    monkeypatch.setattr(gpu_run.shutil, "which", lambda name: None)
    parts = "AFGDHI" if kernels == "0" else "BCE"
    for part in parts:
        gpu_run.run_here(part, tmp_path, 1e12, True)
    rows = gpu_run.read(tmp_path)
    assert {row["part"] for row in rows} == {*parts}
    assert [row for row in rows if row["verdict"] != PASSED] == []
    if kernels == "1":
        monkeypatch.setenv("NEONLITE_PLANS", str(tmp_path / "plans.json"))
        table = read_plan_table(91900)
        assert len(table) == 4 * 4 * 2  # dtypes, passes, layouts
        # of the stand-in's plans, the first nine use tensor cores
        cores = {f"eng{n}_k2=1" for n in range(9)}
        assert all((engine in cores) == ("float32" not in name) for name, engine in table.items())
        layer = Backend("cpu").conv_layer("float32", 2, 3, 4, 1, 6, 6, 1, 3, 3, 0, 1, 1)
        assert plan_name("fprop", layer, Layout.NCHW, False, bias=True, relu=True) in table


def test_sums_that_are_rounded_twice_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEONLITE_KERNELS", "0")

    def dot(be: Any, x: Any, y: Any) -> Any:
        half = np.array(x.get()[:, ::2]).astype(x.dtype), np.array(x.get()[:, 1::2]).astype(x.dtype)
        parts = [(a.astype(float) @ y.get()[n::2].astype(float)).astype(x.dtype) for n, a in enumerate(half)]
        return be.array(parts[0], dtype=str(x.dtype)) + be.array(parts[1], dtype=str(x.dtype))

    with installed():
        assert gpu_run.long_sums(4096) == "each sum is rounded once"
        monkeypatch.setattr(gpu_run.Backend, "dot", dot)
        with pytest.raises(AssertionError, match=r"float16: .* sums are not rounded once"):
            gpu_run.long_sums(4096)


@pytest.mark.parametrize(("seconds", "fails", "wanted"), [(5e-5, False, 1e-5), (5e-5, True, 5e-5), (2e-4, False, 2e-4)])
def test_short_launches_are_timed_as_a_replay(
    seconds: float, fails: bool, wanted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    @contextmanager
    def capture() -> Iterator[Any]:
        calls.clear()
        yield SimpleNamespace(launch="replay")
        if fails:
            raise RuntimeError("the capture was invalidated")

    times = {"replay": 1e-4}  # of ten calls
    monkeypatch.setattr(gpu_run.gpu, "between_events", lambda cupy, f, launches: times.get(f, seconds))
    driver = SimpleNamespace(cupy=None, capture=capture)
    assert gpu_run.gpu_seconds(driver, lambda: calls.append(1)) == pytest.approx(wanted)
    assert len(calls) == (10 if seconds < gpu_run.SHORT_SECONDS else 1)


def test_results_with_other_bits_are_reported() -> None:
    gpu_run.same("a replay", [b"a", b"b"], [b"a", b"b"])
    with pytest.raises(AssertionError, match=r"a replay: results \[1\] of 2 have other bits"):
        gpu_run.same("a replay", [b"a", b"b"], [b"a", b"c"])


def test_shares_of_a_profile() -> None:
    found = gpu_run.shares([("a", 0.0, 3.0), ("b", 6.0, 9.0), ("a", 9.0, 12.0)])
    assert found == {"us": 4.0, "busy": 0.75, "kernels": 1.0, "top": {"a": [2 / 3, 2.0], "b": [1 / 3, 1.0]}}
    assert gpu_run.shares([])["kernels"] == 0


def test_a_process_runs_a_part(tmp_path: Path) -> None:
    environment = {**os.environ, "NEONLITE_KERNELS": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, gpu_run.__file__, "--out", str(tmp_path), "--seconds", "90", "--only", "D", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "D attention forward + backward, 16 x 16 x 512 x 64, bfloat16: passed" in done.stdout
    assert "'cuDNN'" in (tmp_path / "log.txt").read_text()
