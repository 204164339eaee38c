"""The command line trains, judges, shows, and tells mistakes in one line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from neonlite.cli import main
from neonlite.models.zoo import MODELS


def said(capsys: Any, *arguments: str) -> str:
    assert main(arguments) == 0
    out: str = capsys.readouterr().out
    return out


def test_it_trains_keeps_goes_on_and_judges(capsys, tmp_path):
    file = str(tmp_path / "d.neon")
    few = ("-b", "cpu", "--no-progress-bar")
    text = said(capsys, "train", "digits", "-e", "3", "--save", file, *few)
    assert "digits: 1442 + 355 rows" in text
    assert "after 3 epochs" in text
    text = said(capsys, "train", "digits", "-e", "5", "--resume", file, "--save", file, *few)
    assert "after 5 epochs" in text
    right = float(text.split(" % of 355 right")[0].split()[-1])
    assert right > 90
    assert said(capsys, "eval", file, "digits", "-b", "cpu") == f"{right:.2f} % of 355 right\n"


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
    assert "cpu     yes" in said(capsys, "info")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train nothing", "invalid choice: 'nothing' (choose from"),
        ("train digits --model best", "invalid choice: 'best'"),
        ("train digits -e 0", "a whole number from 1; got 0"),
        ("train digits -z 2.5", "a whole number from 1; got 2.5"),
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
    ],
)
def test_what_goes_wrong_is_one_line(capsys, arguments, words):
    assert main(arguments.split()) == 1
    err = capsys.readouterr().err
    assert err.startswith("neonlite: ")
    assert words in err
    assert "Traceback" not in err
