"""``neonlite train -n``: the same training in several processes, started by the command line."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from neonlite.models.training_state import read_checkpoint

if not find_spec("mpi4py") or not (Path(sys.executable).with_name("mpiexec").exists() or shutil.which("mpiexec")):
    pytest.skip('several processes need mpi4py and mpiexec: pip install "neonlite[mpi]"', allow_module_level=True)


def start(*arguments, **kwargs):
    command = [sys.executable, "-m", "neonlite.cli", *map(str, arguments)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, env=env, **kwargs)


def neonlite(*arguments):
    """Run a command; return its exit status, standard output and standard error."""
    process = start(*arguments)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def weights(path):
    return {name: x for name, x in read_checkpoint(path)[1].items() if name.startswith("weights/")}


def assert_close(a, b, limit):
    for name, x in weights(a).items():
        assert np.abs(x - weights(b)[name]).max() <= limit * np.abs(x).max(), name


@pytest.mark.long
def test_a_data_set_trains_in_two_processes_as_in_one(tmp_path):
    one, two = tmp_path / "one.neon", tmp_path / "two.neon"
    common = (
        "train",
        "digits",
        "-e",
        2,
        "-b",
        "cpu",
        "--optimizer",
        "sgd",
        "--no-progress-bar",
        "--patience",
        0,
        "--save",
    )
    results = [neonlite(*common, one), neonlite(*common, two, "-n", 2)]
    assert [status for status, _, _ in results] == [0, 0], results
    first, second = (re.sub(r"[\d.]+ s\b|\S+\.neon", "", output) for _, output, _ in results)
    assert first == second  # rank 0 prints the lines of one process, once
    assert_close(one, two, 1e-5)


@pytest.mark.long
def test_a_csv_file_trains_in_three_processes_as_in_one(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    table, one, three = tmp_path / "t.csv", tmp_path / "one.neon", tmp_path / "three.neon"
    lines = [",".join(f"{value:.6f}" for value in (*row, row @ [1, -2, 3])) for row in x]
    table.write_text("a,b,c,target\n" + "\n".join(lines) + "\n")
    common = "train", table, "--target", "target", "-e", 3, "--optimizer", "sgd", "--patience", 0, "--no-progress-bar"
    for path, n in ((one, 1), (three, 3)):
        status, output, errors = neonlite(*common, "--save", path, "-n", n)
        assert status == 0, (output, errors)
    assert_close(one, three, 1e-4)


@pytest.mark.long
def test_training_resumes_on_another_number_of_processes(tmp_path):
    path, whole = tmp_path / "a.neon", tmp_path / "whole.neon"
    common = "-b", "cpu", "--no-progress-bar", "--patience", 0
    new = "train", "digits", *common, "--optimizer", "sgd", "--lr", 0.05
    assert neonlite(*new, "-e", 4, "--save", whole, "-n", 2)[0] == 0
    process = start(*new, "-e", 4, "--save", path, "-n", 2)
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    if process.returncode:  # else the training had ended
        assert process.returncode == 128 + signal.SIGTERM, (output, errors)
        assert f"to resume: neonlite train digits --resume {path}" in errors
        status, output, errors = neonlite("train", "digits", *common, "--resume", path, "-e", 4, "-n", 4)
        assert status == 0, (output, errors)
    assert_close(path, whole, 1e-4)


KILLING = """
import os, pathlib, signal, threading, time
def kill():
    path = pathlib.Path(os.environ["CHECKPOINT"])
    while not path.exists():
        time.sleep(0.01)
    pathlib.Path(f"{path}.killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ.get("PMI_RANK") == "1" and not os.path.exists(os.environ["CHECKPOINT"]):
    threading.Thread(target=kill, daemon=True).start()
"""


@pytest.mark.long
@pytest.mark.parametrize("data", ["digits", "csv"])
def test_training_whose_process_is_killed_restarts_from_its_checkpoint(tmp_path, monkeypatch, data):
    path, whole, table = tmp_path / "a.neon", tmp_path / "whole.neon", tmp_path / "t.csv"
    table.write_text("a,b,target\n" + "".join(f"{i}.5,{i % 7}.5,{'xy'[i % 2]}\n" for i in range(2000)))
    source = ["digits"] if data == "digits" else [table, "--target", "target", "--hidden", 8]
    common = (
        "train",
        *source,
        "--no-progress-bar",
        "--patience",
        0,
        "--lr",
        0.01,
        "--seed",
        3,
        "-n",
        2,
        "-e",
        6,
        "--save",
    )
    status, output, errors = neonlite(*common, whole)
    assert status == 0, (output, errors)
    (tmp_path / "sitecustomize.py").write_text(KILLING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("CHECKPOINT", str(path))
    status, output, errors = neonlite(*common, path, "--restarts", 2)
    assert status == 0, (output, errors)
    assert path.with_name("a.neon.killed").exists()
    assert "restart 1 of 2" in errors
    assert_close(path, whole, 0)
    status, _, errors = neonlite(*common, path, "--restarts", 2)
    assert status
    assert (
        f"--restarts: expected a new file as --save, from which a restart resumes, got {path}, which exists" in errors
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--restarts", "1"], r"--restarts: expected the number of processes, such as -n 4, got none"),
        (["digits", "-n", "2", "--restarts", "1"], r"--restarts: expected a new file as --save.*, got none"),
        (["digits", "--hosts", "localhost"], r"--hosts: expected the number of processes, such as -n 4, got none"),
        (["digits", "-n", "3", "-z", "2"], r"rank 0:\n.*--batch-size: expected a row for each of 3 processes, got 2"),
        (["nothing.csv", "-n", "2"], r"nothing\.csv"),
    ],
)
def test_a_mistake_is_reported_once(arguments, message):
    status, _, errors = neonlite("train", *arguments)
    assert status != 0
    assert len(re.findall(message, errors)) == 1, errors


def test_without_mpi_the_error_names_the_pip_line(monkeypatch, capsys):
    from neonlite import cli, distributed

    monkeypatch.setattr(distributed, "find_spec", lambda name: None)
    assert cli.main(["train", "digits", "-n", "2"]) == 1
    assert 'pip install "neonlite[mpi]"' in capsys.readouterr().err
