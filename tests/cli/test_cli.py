"""Tests of the neonlite command on data sets: train, eval, draw, bench, info, and one-line errors.

Tests ``neonlite/cli/__init__.py`` and ``neonlite/cli/commands.py``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neonlite import cli
from neonlite.callbacks import Callback
from neonlite.cli import commands, main
from neonlite.data import datasets, digits
from neonlite.models import Model
from neonlite.models.zoo import MODELS

FEW = ("-b", "cpu", "--no-progress-bar")


def run_main(capsys: Any, *arguments: str) -> str:
    assert main(arguments) == 0
    out: str = capsys.readouterr().out
    return out


@pytest.mark.long
def test_it_trains_saves_resumes_and_evaluates(capsys, tmp_path):
    file = str(tmp_path / "d.neon")
    text = run_main(capsys, "train", "digits", "-e", "3", "--save", file, *FEW)
    assert "digits: 1442 + 355 rows" in text
    assert "after 3 epochs" in text
    text = run_main(capsys, "train", "digits", "-e", "5", "--resume", file, "--save", file, *FEW)
    assert "after 5 epochs" in text
    accuracy = float(text.split(" % on 355 rows")[0].split()[-1])
    assert accuracy > 90
    assert run_main(capsys, "eval", file, "-b", "cpu") == f"accuracy {accuracy:.2f} % on 355 rows\n"
    assert run_main(capsys, "eval", file, "digits", "-b", "cpu") == f"accuracy {accuracy:.2f} % on 355 rows\n"
    assert run_main(capsys, "draw", file, "-b", "cpu").startswith("layer ")


def test_a_configuration_file_has_the_options_of_a_command(capsys, tmp_path):
    config, file = tmp_path / "run.cfg", tmp_path / "i.neon"
    config.write_text(f"epochs = 3\nlr: 0.125\nbackend = cpu\nno-progress-bar = true\nsave = {file}\n")
    assert "after 2 epochs" in run_main(capsys, "train", "iris", "-c", str(config), "--epochs", "2")
    optimizer = Model(file).optimizer
    assert (optimizer.learning_rate, optimizer.schedule.total_epochs) == (0.125, 2)
    config.write_text("hidden = 8\n")
    assert main(["train", "iris", "-c", str(config), *FEW]) == 1
    assert capsys.readouterr().err == "neonlite: --hidden cannot be used with the data set iris\n"
    config.write_text("shape = [3, 16, 16]\nbatch_size = 8\n")
    assert "(16, 16, 16)" in run_main(capsys, "draw", "-c", str(config), "lenet", "-b", "cpu")


def test_the_configuration_file_of_the_documentation_is_valid(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    (tmp_path / "run.cfg").write_text(page[page.index("# run.cfg") :].partition("```")[0])
    args = cli.make_parser().parse_args(["train", "t.csv", "--config", str(tmp_path / "run.cfg")])
    assert (args.target, args.batch_size, args.hidden, args.no_progress_bar) == ("species", 64, [64, 32], True)


def test_resumed_training_may_have_more_epochs(tmp_path):
    file = tmp_path / "i.neon"
    assert main(["train", "iris", "-e", "2", "--save", str(file), *FEW]) == 0
    assert main(["train", "iris", "-e", "3", "--resume", str(file), "-s", f"{file}2", *FEW]) == 0
    model = Model(f"{file}2")
    assert model.epoch_index == 3
    assert model.optimizer.schedule.total_epochs == 3
    assert Model(file).epoch_index == 2


@pytest.mark.parametrize(
    "option",
    [
        "--model mlp",
        "--batch-size 64",
        "--batch-size 128",
        "--optimizer sgd",
        "--optimizer adam",
        "--lr 0.5",
        "--seed 0",
    ],
)
def test_resuming_rejects_options_that_the_checkpoint_contains(capsys, tmp_path, option):
    file = tmp_path / "i.neon"
    run_main(capsys, "train", "iris", "-e", "1", "--save", str(file), *FEW)
    before = file.read_bytes()
    assert main(["train", "iris", "-e", "2", "--resume", str(file), *option.split(), *FEW]) == 1
    name = option.split()[0]
    words = (
        f"neonlite: {name} cannot be used with --resume: {file} contains this setting. Remove {name}, or train without"
    )
    assert words in capsys.readouterr().err
    assert file.read_bytes() == before


@pytest.mark.long
def test_training_ends_when_the_validation_cost_does_not_fall_and_saves_the_best_weights(capsys, tmp_path):
    file = str(tmp_path / "d.neon")
    text = run_main(capsys, "train", "digits", "--lr", "0.03", "--patience", "2", "--save", file, *FEW)
    model = Model(file)
    costs = [cost for _, cost in model.loaded_state.callbacks["history"]["records"]["val_loss"]]
    best = int(np.argmin(costs))
    assert model.epoch_index == len(costs) == best + 3 < 40
    assert f"weights of epoch {best + 1}, which has the lowest validation cost, {costs[best]:.4g}\n" in text
    X, y = digits().test
    accuracy = 100 * np.mean(model.predict(X).argmax(axis=1) == y)
    assert f"accuracy {accuracy:.2f} % on 355 rows, after {len(costs)} epochs in" in text
    before = next(iter(model.get_weights().values()))

    assert main(["train", "digits", "--resume", file, *FEW]) == 0
    err = capsys.readouterr().err
    assert f"early stopping ended this training after {len(costs)} epochs. Pass --patience 0 to continue.\n" in err
    assert (next(iter(Model(file).get_weights().values())) == before).all()

    text = run_main(capsys, "train", "digits", "--resume", file, "--patience", "0", "-e", f"{len(costs) + 1}", *FEW)
    assert f"after {len(costs) + 1} epochs in" in text
    assert "weights of epoch" not in text


class Interrupt(Callback):
    """A callback like Ctrl-C before epoch 4."""

    def on_epoch_begin(self, epoch: int) -> None:
        if epoch == 4:
            raise KeyboardInterrupt


def test_an_interrupted_training_ends_as_early_as_an_uninterrupted_one(monkeypatch, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ["--patience", "2", *FEW]
    assert main(["train", "iris", "--lr", "0.1", "--save", str(whole), *options]) == 0
    with monkeypatch.context() as patch:
        make = commands.stopping_callbacks
        patch.setattr(commands, "stopping_callbacks", lambda patience: [*make(patience), Interrupt()])
        assert main(["train", "iris", "--lr", "0.1", "--save", str(parts), *options]) == 130
    assert Model(parts).epoch_index == 4
    assert main(["train", "iris", "--resume", str(parts), *options]) == 0
    expected, resumed = Model(whole), Model(parts)
    assert 4 < resumed.epoch_index == expected.epoch_index < 60
    pairs = zip(expected.get_weights().values(), resumed.get_weights().values(), strict=True)
    assert all((a == b).all() for a, b in pairs)


def test_resuming_keeps_the_learning_rate_of_the_checkpoint(capsys, tmp_path):
    file = tmp_path / "i.neon"
    run_main(capsys, "train", "iris", "-e", "1", "--lr", "0.125", "--save", str(file), *FEW)
    run_main(capsys, "train", "iris", "-e", "2", "--resume", str(file), *FEW)
    assert Model(file).optimizer.learning_rate == 0.125


@pytest.mark.parametrize(("characters", "columns"), [(127, 1), (128, 1), (129, 2), (192, 2), (193, 3), (9 * 64, 8)])
def test_a_short_text_has_as_many_columns_as_have_a_next_character_in_each_step(cpu, monkeypatch, characters, columns):
    texts = {"train": "ab" * 5000, "valid": ("ab" * characters)[:characters]}
    monkeypatch.setattr(datasets, "load_corpus", lambda path, **_: datasets.Corpus("t", texts, 64, onehot_input=False))
    cpu.bsz = 50
    _, train, valid = commands.load_data("text", "t.txt")
    assert cpu.bsz == columns
    assert valid.nbatches == 1
    assert train.nbatches == 9999 // (64 * columns)


def test_bench_measures_networks_on_installed_runtimes(capsys, tmp_path):
    text = run_main(
        capsys, "bench", "mlp", "-b", "cpu", "-n", "2", "--shape", "9", "-z", "4", "--json", f"{tmp_path / 'times'}"
    )
    assert "medians of 2 steps of 4 rows of 9" in text
    (times,) = json.loads((tmp_path / "times").read_text())
    step, parts = times["ms"]["iteration"]["median"], (times["ms"][part]["median"] for part in ("fprop", "bprop"))
    assert 0 < max(parts) <= step
    assert f"mlp on cpu{step:>34.2f}"[:10] in text


def test_resuming_writes_the_file_of_save_also_without_an_epoch_left(capsys, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    run_main(capsys, "train", "iris", "-e", "2", "--save", str(first), *FEW)
    run_main(capsys, "train", "iris", "--resume", str(first), "--save", str(second), *FEW)
    assert second.read_bytes() == first.read_bytes()


def test_a_checkpoint_is_evaluated_on_few_rows_and_not_on_other_data(capsys, tmp_path):
    file = str(tmp_path / "i")
    text = run_main(capsys, "train", "iris", "-e", "2", "--save", file, *FEW)
    accuracy = float(text.split(" % on 30 rows")[0].split()[-1])
    assert run_main(capsys, "eval", file, "-b", "cpu") == f"accuracy {accuracy:.2f} % on 30 rows\n"  # batch size 128
    assert main(["eval", file, "digits", "-b", "cpu"]) == 1
    assert f"{file}: expected inputs of shape 4, got digits with inputs (1, 8, 8)" in capsys.readouterr().err
    assert main(["train", "digits", "--resume", file, "-b", "cpu"]) == 1
    err = capsys.readouterr().err
    assert f"{file}: expected a network trained on digits, got one trained on iris" in err
    assert f"Run: neonlite train iris --resume {file}\n" in err


def test_the_batch_size_may_exceed_the_validation_set(capsys):
    assert " % on 355 rows, after 1 epoch in" in run_main(capsys, "train", "digits", "-z", "400", "-e", "1", *FEW)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train iris -b cpu --plot {folder}/c.doc", "c.doc: expected an extension of an image file, one of "),
        ("train iris -b cpu --plot {folder}/no/c.png", "--plot: {folder}/no/c.png can not be written: there is no"),
        ("bench mlp mlpp -b cpu -n 1 -z 2 --shape 4", "got mlpp. Did you mean 'mlp'?"),
        ("bench mlp -b cpu -n 1 -z 2 --shape 4 --json {folder}/no/t", "--json: {folder}/no/t can not be written"),
    ],
)
def test_errors_of_output_files_are_raised_before_training(capsys, tmp_path, arguments, words):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    assert main(arguments.format(folder=tmp_path).split()) == 1
    captured = capsys.readouterr()
    assert words.format(folder=tmp_path) in captured.err
    assert "neonlite: " in captured.err
    assert "after" not in captured.out
    assert "mlp on cpu" not in captured.out


def test_ctrl_c_is_handled_during_startup(capsys, monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("neonlite.cli.make_parser", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def run(*arguments: str) -> Any:
    command = [sys.executable, "-m", "neonlite.cli", *arguments, "-b", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, check=True)


@pytest.mark.long
def test_two_processes_with_one_seed_write_the_same_file(tmp_path):
    files = [tmp_path / name for name in ("one", "two", "other")]
    for file, seed in zip(files, "112", strict=True):
        run("train", "iris", "-e", "4", "--optimizer", "sgd", "-s", str(file), "-r", seed)
    one, two, other = (file.read_bytes() for file in files)
    assert one == two != other


def test_the_bar_is_one_line_an_epoch_in_a_pipe():
    lines = [line for line in run("train", "iris", "-e", "3").stderr.splitlines() if line.strip()]
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]
    assert all("val_loss" in line and "Accuracy" in line for line in lines)


def test_the_history_is_plotted(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    run_main(capsys, "train", "iris", "-e", "2", "--plot", str(tmp_path / "c.png"), "-b", "cpu", "--no-progress-bar")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("model", MODELS)
def test_every_network_of_the_zoo_is_drawn(capsys, model):
    text = run_main(capsys, "draw", model, "--shape", "3", "32", "32", "-z", "4")
    assert "peak" in text
    assert "(Activation)" in text


def test_info_lists_what_is_installed(capsys):
    text = run_main(capsys, "info")
    assert "cpu     yes" in text
    assert re.search(r"^hdf5 +(yes  h5py [\d.]+|no   pip install)", text, re.MULTILINE)


def test_a_missing_package_is_reported_with_its_pip_command(capsys, monkeypatch):
    monkeypatch.setattr("neonlite.cli.commands.find_spec", lambda package: None)
    monkeypatch.setattr("neonlite.cli.commands.EXTRA_PACKAGES", {"viz": "a-package-that-does-not-exist"})
    assert 'viz          no   pip install "neonlite[viz]"' in run_main(capsys, "info")
    assert main(["train", "iris", "--plot", "c.png"]) == 1
    assert '--plot needs matplotlib: pip install "neonlite[viz]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train nothing", "invalid choice: 'nothing' (choose from"),
        ("train digit", "or a CSV file). Did you mean 'digits'?"),
        ("train digits --model best", "invalid choice: 'best'"),
        ("train digits -e 0", "expected a positive integer, got 0"),
        ("train digits -z 2.5", "expected a positive integer, got 2.5"),
        ("train digits --lr 0", "expected a positive number, got 0"),
        ("train digits --lr nan", "expected a positive number, got nan"),
        ("train digits --optimizer best", "invalid choice: 'best'"),
        ("bench --shape 1 x", "expected a positive integer, got x"),
        ("", "required: COMMAND"),
    ],
)
def test_invalid_arguments_are_reported(capsys, arguments, words):
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
        (
            "train digits --resume a --model mlp --seed 3",
            "--model, --seed cannot be used with --resume: a contains these settings. Remove --model, --seed, or",
        ),
        (
            "train digits --resume a --seed 0",
            "--seed cannot be used with --resume: a contains this setting. Remove --seed, or train without --resume.",
        ),
        ("train iris --model lenet -b cpu", "C"),
        ("draw lenett", "got lenett. Did you mean 'lenet'?"),
        ("bench best", "expected a file or one of the networks mlp"),
        (
            "train digits -z 2000 -b cpu",
            "a batch size of at most 1442, the number of rows, got 2000. Use --batch-size 1442 or less.\n",
        ),
    ],
)
def test_an_error_is_one_line(capsys, arguments, words):
    assert main(arguments.split()) == 1
    err = capsys.readouterr().err
    assert err.startswith("neonlite: ")
    assert words in err
    assert "Traceback" not in err


# --- NaN and infinity ------------------------------------------------------------------------------------------------


def test_diverged_training_fails_and_keeps_the_good_checkpoint(capsys, tmp_path):
    file = tmp_path / "d.neon"
    run_main(capsys, "train", "digits", "-e", "1", "--save", str(file), *FEW)
    good = file.read_bytes()
    with np.errstate(all="ignore"):
        assert main(["train", "digits", "-e", "9", "--save", str(file), "--lr", "1e38", *FEW]) == 1
    err = capsys.readouterr().err
    assert "neonlite: warning: digits.mlp: the cost is " in err
    assert (
        f"neonlite: training failed with NaN or infinity. The model was saved to {file}.nan instead of {file}. Reduce"
        in err
    )
    assert "Traceback" not in err
    assert file.read_bytes() == good
    failed = Model(f"{file}.nan")
    assert failed.nonfinite_weights()
    assert failed.epoch_index < 9  # it ended at once


def test_diverged_training_fails_also_without_a_checkpoint(capsys):
    with np.errstate(all="ignore"):
        assert main(["train", "iris", "--optimizer", "sgd", "--lr", "1e30", *FEW]) == 1
    assert "neonlite: training failed with NaN or infinity. Reduce --lr." in capsys.readouterr().err


def test_resuming_without_an_epoch_left_warns(capsys, tmp_path):
    file = str(tmp_path / "i.neon")
    run_main(capsys, "train", "iris", "-e", "1", "--save", file, *FEW)
    assert main(["train", "iris", "--resume", file, *FEW]) == 0
    assert "neonlite: warning: iris.mlp.fit: nothing was trained: --epochs 1 is the total" in (
        err := capsys.readouterr().err
    )
    assert "the model has trained 1 epoch. Pass --epochs 2 to train 1 more.\n" in err


def test_one_epoch_is_printed_in_the_singular(capsys):
    assert "after 1 epoch in " in run_main(capsys, "train", "iris", "-e", "1", *FEW)


@pytest.mark.parametrize("arguments", [["eval", "x\ny"], ["draw", "x\ny"], ["info", "-b", "x\ny"], ["bench", "x\ny"]])
def test_a_newline_in_an_argument_is_escaped_in_the_error(capsys, arguments):
    with suppress(SystemExit):  # errors of the parser
        assert main(arguments) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert r"x\ny" in line
