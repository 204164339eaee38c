"""The command line trains, judges, shows, and tells mistakes in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neonlite.cli import main
from neonlite.models import Model
from neonlite.models.zoo import MODELS

FEW = ("-b", "cpu", "--no-progress-bar")


def said(capsys: Any, *arguments: str) -> str:
    assert main(arguments) == 0
    out: str = capsys.readouterr().out
    return out


def test_it_trains_keeps_goes_on_and_judges(capsys, tmp_path):
    file = str(tmp_path / "d.neon")
    text = said(capsys, "train", "digits", "-e", "3", "--save", file, *FEW)
    assert "digits: 1442 + 355 rows" in text
    assert "after 3 epochs" in text
    text = said(capsys, "train", "digits", "-e", "5", "--resume", file, "--save", file, *FEW)
    assert "after 5 epochs" in text
    right = float(text.split(" % of 355 right")[0].split()[-1])
    assert right > 90
    assert said(capsys, "eval", file, "-b", "cpu") == f"{right:.2f} % of 355 right\n"
    assert said(capsys, "eval", file, "digits", "-b", "cpu") == f"{right:.2f} % of 355 right\n"
    assert said(capsys, "draw", file, "-b", "cpu").startswith("layer ")


def test_a_training_that_is_taken_up_ends_as_one_that_never_stopped(tmp_path):
    whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
    run("train", "digits", "-e", "4", "--save", whole)
    stopped = subprocess.Popen(
        [sys.executable, "-m", "neonlite.cli", "train", "digits", "-e", "4", "-s", parts, "-b", "cpu"],
        stderr=subprocess.PIPE,
        text=True,
    )
    stopped.stderr.readline()  # the first epoch is done
    stopped.send_signal(signal.SIGINT)
    words = stopped.communicate()[1]
    if stopped.returncode:  # it had not come to its end
        assert stopped.returncode == 130
        assert f"to go on: neonlite train digits --resume {parts}\nstopped" in words
        run("train", "digits", "--resume", parts)
    assert Path(parts).read_bytes() == Path(whole).read_bytes()


def test_a_training_that_is_taken_up_may_take_longer_with_another_rate(tmp_path):
    file = tmp_path / "i.neon"
    assert main(["train", "iris", "-e", "2", "--save", str(file), *FEW]) == 0
    assert main(["train", "iris", "-e", "3", "--resume", str(file), "--lr", "0.5", "-s", f"{file}2", *FEW]) == 0
    model = Model(f"{file}2")
    assert model.epoch_index == 3
    assert model.optimizer.learning_rate == 0.5
    assert model.optimizer.schedule.total_epochs == 3
    assert Model(file).epoch_index == 2


def test_it_times_networks_on_the_runtimes_that_are_there(capsys, tmp_path):
    text = said(
        capsys, "bench", "mlp", "-b", "cpu", "-n", "2", "--shape", "9", "-z", "4", "--json", f"{tmp_path / 'times'}"
    )
    assert "medians of 2 steps of 4 rows of 9" in text
    (times,) = json.loads((tmp_path / "times").read_text())
    step, parts = times["ms"]["iteration"]["median"], (times["ms"][part]["median"] for part in ("fprop", "bprop"))
    assert 0 < max(parts) <= step
    assert f"mlp on cpu{step:>34.2f}"[:10] in text


def test_what_goes_on_keeps_the_file_that_is_asked_for_also_when_nothing_is_left_to_do(capsys, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    said(capsys, "train", "iris", "-e", "2", "--save", str(first), *FEW)
    said(capsys, "train", "iris", "--resume", str(first), "--save", str(second), *FEW)
    assert second.read_bytes() == first.read_bytes()


def test_a_file_is_judged_by_data_of_few_rows_and_not_by_other_data(capsys, tmp_path):
    file = str(tmp_path / "i")
    text = said(capsys, "train", "iris", "-e", "2", "--save", file, *FEW)
    right = float(text.split(" % of 30 right")[0].split()[-1])
    assert said(capsys, "eval", file, "-b", "cpu") == f"{right:.2f} % of 30 right\n"  # of minibatches of 128
    assert main(["eval", file, "digits", "-b", "cpu"]) == 1
    assert f"{file} takes inputs of 4; those of digits are (1, 8, 8)" in capsys.readouterr().err
    assert main(["train", "digits", "--resume", file, "-b", "cpu"]) == 1
    assert f"{file} learned from iris: neonlite train iris --resume {file}\n" in capsys.readouterr().err


def test_a_minibatch_may_have_more_rows_than_there_are_to_judge_by(capsys):
    assert " % of 355 right, after 1 epochs" in said(capsys, "train", "digits", "-z", "400", "-e", "1", *FEW)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train iris -b cpu --plot {folder}/c.doc", "c.doc: pictures end in "),
        ("train iris -b cpu --plot {folder}/no/c.png", "--plot: {folder}/no/c.png can not be written: there is no"),
        ("bench mlp mlpp -b cpu -n 1 -z 2 --shape 4", "there is no network and no file mlpp"),
        ("bench mlp -b cpu -n 1 -z 2 --shape 4 --json {folder}/no/t", "--json: {folder}/no/t can not be written"),
    ],
)
def test_what_would_go_wrong_at_the_end_is_told_at_the_beginning(capsys, tmp_path, arguments, words):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    assert main(arguments.format(folder=tmp_path).split()) == 1
    found = capsys.readouterr()
    assert words.format(folder=tmp_path) in found.err
    assert "neonlite: " in found.err
    assert "after" not in found.out
    assert "mlp on cpu" not in found.out


def test_ctrl_c_is_heard_while_it_starts(capsys, monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("neonlite.cli.parser", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_it_ends_in_silence_when_nobody_reads_on():
    command = [sys.executable, "-m", "neonlite.cli", "info"]
    env = {**os.environ, "PYTHONUNBUFFERED": ""}  # what is said is written when it ends
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


def run(*arguments: str) -> Any:
    command = [sys.executable, "-m", "neonlite.cli", *arguments, "-b", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_two_processes_with_one_seed_write_the_same_file(tmp_path):
    files = [tmp_path / name for name in ("one", "two", "other")]
    for file, seed in zip(files, "112", strict=True):
        run("train", "iris", "-e", "4", "--optimizer", "sgd", "-s", str(file), "-r", seed)
    one, two, other = (file.read_bytes() for file in files)
    assert one == two != other


def test_the_bar_is_one_line_an_epoch_in_a_pipe():
    lines = [line for line in run("train", "iris", "-e", "3").stderr.splitlines() if line.strip()]
    assert [line.split()[1] for line in lines] == ["0", "1", "2"]
    assert all("cost, validation" in line and "Accuracy" in line for line in lines)


def test_the_curves_are_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    said(capsys, "train", "iris", "-e", "2", "--plot", str(tmp_path / "c.png"), "-b", "cpu", "--no-progress-bar")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("model", MODELS)
def test_every_network_of_the_zoo_is_drawn(capsys, model):
    text = said(capsys, "draw", model, "--shape", "3", "32", "32", "-z", "4")
    assert "peak" in text
    assert "(Activation)" in text


def test_it_tells_what_is_installed(capsys):
    text = said(capsys, "info")
    assert "cpu     yes" in text
    assert re.search(r"^hdf5 +(yes  h5py [\d.]+|no   pip install)", text, re.MULTILINE)


def test_what_is_missing_is_told_with_the_line_that_brings_it(capsys, monkeypatch):
    monkeypatch.setattr("neonlite.cli.find_spec", lambda package: None)
    assert 'viz       no   pip install "neonlite[viz]"' in said(capsys, "info")
    assert main(["train", "iris", "--plot", "c.png"]) == 1
    assert '--plot draws with matplotlib: pip install "neonlite[viz]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train nothing", "invalid choice: 'nothing' (choose from"),
        ("train digits --model best", "invalid choice: 'best'"),
        ("train digits -e 0", "a whole number from 1; got 0"),
        ("train digits -z 2.5", "a whole number from 1; got 2.5"),
        ("train digits --lr 0", "a number above 0; got 0"),
        ("train digits --lr nan", "a number above 0; got nan"),
        ("train digits --optimizer best", "invalid choice: 'best'"),
        ("bench --shape 1 x", "a whole number from 1; got x"),
        ("", "required: COMMAND"),
    ],
)
def test_what_is_not_understood_is_told(capsys, arguments, words):
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("eval /nowhere digits", "/nowhere: there is no such file"),
        ("train digits -b gup", "'gup'"),
        ("train digits --resume /nowhere", "/nowhere: there is no such file"),
        ("train digits -w /nowhere", "digits.csv"),
        ("train digits --resume a --model mlp --seed 3", "--model, --seed: a settles that"),
        ("train digits --resume a --seed 0", "--seed: a settles that"),
        ("train iris --model lenet -b cpu", "C"),
        ("draw lenett", "did you mean lenet?"),
        ("bench best", "there is no network and no file best"),
    ],
)
def test_what_goes_wrong_is_one_line(capsys, arguments, words):
    assert main(arguments.split()) == 1
    err = capsys.readouterr().err
    assert err.startswith("neonlite: ")
    assert words in err
    assert "Traceback" not in err
