"""Tests of the neonlite command on CSV files: train, predict and eval."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neonlite import files, gen_backend
from neonlite.callbacks import Callback
from neonlite.cli import commands, main
from neonlite.data.csv_files import read_csv
from neonlite.models import Model
from neonlite.models.training_state import read_checkpoint, write_checkpoint
from neonlite.models.zoo import csv_mlp
from neonlite.optimizers import Adam, CosineSchedule

FEW = ("-b", "cpu", "--no-progress-bar")
CITIES = {"Paris": 10.0, "New York": 0.0, "Rome, Italy": -5.0}


def linear_rows(n: int = 300) -> list[list[Any]]:
    """Return rows (a, b, city, y) with y = 3 a - 0.2 b + a number for the city, without noise."""
    rng = np.random.default_rng(0)
    rows: list[list[Any]] = []
    for _ in range(n):
        a, b, city = rng.normal(), rng.uniform(0, 100), rng.choice([*CITIES])
        rows.append([f"{a:.6f}", f"{b:.6f}", str(city), f"{3 * a - 0.2 * b + CITIES[str(city)]:.6f}"])
    return rows


def write_csv(path: Path, header: list[str], rows: list[list[Any]], delimiter: str = ",") -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return str(path)


def read_rows(path: str | Path) -> list[list[str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return [*csv.reader(file)]


def run_main(capsys: Any, *arguments: str) -> str:
    """Run a command line, and return its standard output."""
    status = main(arguments)
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return str(captured.out)


def error_line(capsys: Any, *arguments: str) -> str:
    """Return the error of a command line, which must be one line."""
    capsys.readouterr()
    assert main(arguments) == 1
    err: str = capsys.readouterr().err
    assert err.startswith("neonlite: ")
    assert err.count("\n") == 1
    assert "NEONLITE_DEBUG" not in err
    return err


@pytest.fixture
def linear(tmp_path: Path) -> str:
    return write_csv(tmp_path / "linear.csv", ["a", "b", "city", "y"], linear_rows())


@pytest.fixture
def flowers(tmp_path: Path) -> str:
    """Two classes, which the sign of x - y separates with noise."""
    points = np.random.default_rng(1).normal(size=(120, 3)).round(4)
    rows = [[x, y, "above" if y + noise > x else "below"] for x, y, noise in points.tolist()]
    return write_csv(tmp_path / "flowers.csv", ["x", "y", "side"], rows)


# --- train, predict, eval --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_linear_rule_is_learned_predicted_and_evaluated(capsys, tmp_path, linear):
    file = str(tmp_path / "m.neon")
    text = run_main(capsys, "train", linear, "--target", "y", "--save", file, *FEW)
    assert "linear.csv: 300 rows; predicting numbers of y (numbers with decimals; for classes: --task classify)" in text
    assert "inputs: columns a, b, city (3 categories)\ntarget: numbers, standardized for training\n" in text
    mse, r2 = re.search(r"validation rows: mse (\S+), mae \S+, r2 (\S+) on 60 rows\n", text).groups()

    new = linear_rows(340)[300:]
    lines = run_main(capsys, "predict", file, write_csv(tmp_path / "new.csv", ["b", "a", "y", "city"], shuffled(new)))
    header, *values = lines.splitlines()
    expected = np.array([float(row[3]) for row in new])
    errors = np.array(values, float) - expected
    assert header == "y"
    assert np.mean(errors**2) < 0.05 * np.var(expected)
    assert float(r2) > 0.95
    assert float(mse) < 0.05 * np.var([float(row[3]) for row in linear_rows()])

    path = write_csv(tmp_path / "new.csv", ["a", "b", "city", "y"], new)
    got = run_main(capsys, "eval", file, path, "-b", "cpu")
    expected_r2 = 1 - np.sum(errors**2) / np.sum((expected - expected.mean()) ** 2)
    assert got == f"mse {np.mean(errors**2):.4g}, mae {np.mean(abs(errors)):.4g}, r2 {expected_r2:.4g} on 40 rows\n"


def shuffled(rows: list[list[Any]]) -> list[list[Any]]:
    """Return the columns in another order, with a target that must be ignored."""
    return [[b, a, "unknown", city] for a, b, city, _ in rows]


def test_labels_probabilities_and_metrics_equal_those_of_fit(capsys, tmp_path, flowers):
    file, (_, *rows) = str(tmp_path / "m.neon"), read_rows(flowers)
    options = [
        "--seed",
        "3",
        "--epochs",
        "9",
        "--hidden",
        "8",
        "--lr",
        "0.01",
        "-z",
        "16",
        "--validation-split",
        "0.25",
    ]
    text = run_main(capsys, "train", flowers, "--target", "side", "--save", file, "--patience", "0", *options, *FEW)
    assert "predicting classes of side (text)" in text
    assert "trained 9 epochs in " in text

    X = {name: np.array([float(row[i]) for row in rows]) for i, name in enumerate("xy")}
    y = np.array([row[2] for row in rows])
    gen_backend("cpu", rng_seed=3)
    model = Model(csv_mlp(2, [8]))
    history = model.fit(
        X,
        y,
        epochs=9,
        batch_size=16,
        optimizer=Adam(learning_rate=0.01, schedule=CosineSchedule(9)),
        validation_split=0.25,
        progress_bar=False,
    )
    labels, probabilities = model.predict_classes(X), model.predict_proba(X)
    assert f"validation rows: accuracy {100 * history['Accuracy'][-1]:.2f} % on 30 rows\n" in text

    assert run_main(capsys, "predict", file, flowers, "-b", "cpu").splitlines() == ["side", *labels]
    output = tmp_path / "p.csv"
    assert run_main(capsys, "predict", file, flowers, "--proba", "-o", str(output), "-b", "cpu") == ""
    header, *values = csv.reader(io.StringIO(output.read_text()))
    assert header == ["above", "below"]
    assert (np.array(values, np.float32) == probabilities).all()

    text = run_main(capsys, "eval", file, flowers, "-b", "cpu")
    counts = [[np.sum((y == t) & (labels == p)) for p in ("above", "below")] for t in ("above", "below")]
    assert f"accuracy {100 * np.mean(labels == y):.2f} % on 120 rows\n" in text
    matrix = [line.split() for line in text.splitlines()[-2:]]
    assert matrix == [[name, *map(str, row)] for name, row in zip(("above", "below"), counts, strict=True)]


def test_training_ends_early_with_the_weights_of_the_lowest_validation_cost(capsys, tmp_path, flowers):
    file = str(tmp_path / "m.neon")
    text = run_main(
        capsys, "train", flowers, "--target", "side", "--lr", "0.3", "--patience", "3", "--save", file, *FEW
    )
    epoch, epochs = (int(re.search(p, text)[1]) for p in (r"weights of epoch (\d+),", r"trained (\d+) epochs"))
    assert epochs == epoch + 3 < 200
    shown = re.search(r"validation rows: (accuracy .*) on 24 rows", text)[1]
    records = Model(file).loaded_state.callbacks["history"]["records"]
    assert shown == f"accuracy {100 * records['Accuracy'][epoch - 1][1]:.2f} %"


def test_without_a_validation_set_the_metrics_are_those_of_the_training_rows(capsys, flowers):
    text = run_main(capsys, "train", flowers, "--target", "side", "--validation-split", "0", "-e", "3", *FEW)
    assert "training rows: accuracy " in text
    assert " % on 120 rows\n" in text
    assert "weights of epoch" not in text


@pytest.mark.parametrize(
    ("values", "task", "words"),
    [
        ([0, 1, 2] * 10, None, "classes of t (few different integers; for numbers: --task regress)"),
        ([*range(30)], None, "numbers of t (many different integers; for classes: --task classify)"),
        ([*range(21)] * 3, None, "numbers of t (many different integers; for classes: --task classify)"),
        ([0.5, 1.5] * 15, None, "numbers of t (numbers with decimals; for classes: --task classify)"),
        ([2**63, 2**63 + 1] * 15, None, "classes of t (few different integers; for numbers: --task regress)"),
        (["no", "yes"] * 15, None, "classes of t (text)"),
        ([0, 1, 2] * 10, "regress", "numbers of t (--task regress)"),
        ([0.5, 1.5] * 15, "classify", "classes of t (--task classify)"),
    ],
)
def test_the_task_is_decided_by_the_target_and_printed(capsys, tmp_path, values, task, words):
    rows = [[i * 0.5, value] for i, value in enumerate(values)]
    path, file = write_csv(tmp_path / "t.csv", ["x", "t"], rows), str(tmp_path / "m")
    option = ["--task", task] if task else []
    text = run_main(capsys, "train", path, "--target", "t", "-e", "1", "--save", file, *option, *FEW)
    assert f"t.csv: {len(rows)} rows; predicting {words}\n" in text
    header, *predicted = run_main(capsys, "predict", file, path, "-b", "cpu").splitlines()
    assert header == "t"
    assert len(predicted) == len(rows)
    if "classes of" in words:
        assert set(predicted) <= {str(value) for value in values}


def test_ignored_columns_may_have_any_content_and_need_not_exist_later(capsys, tmp_path, flowers):
    names, *rows = read_rows(flowers)
    rows = [[*row, f"id {i}" if i else ""] for i, row in enumerate(rows)]
    path, file = write_csv(tmp_path / "with_id.csv", [*names, "id"], rows), str(tmp_path / "m")
    err = error_line(capsys, "train", path, "--target", "side", *FEW)
    assert "line 2: expected a value in column 'id', got an empty field." in err
    assert "or train without the column: --ignore id\n" in err
    text = run_main(capsys, "train", path, "--target", "side", "--ignore", "id", "-e", "1", "--save", file, *FEW)
    assert "inputs: columns x, y\n" in text
    run_main(capsys, "predict", file, flowers, "-b", "cpu")
    err = error_line(capsys, "train", path, "--target", "id", *FEW)
    assert err.endswith("got an empty field. Remove these rows, or replace the values\n")  # and not --ignore


def test_too_many_categories_name_the_option(capsys, tmp_path):
    path = write_csv(tmp_path / "t.csv", ["name", "t"], [[f"n{i}", i % 2] for i in range(40)])
    err = error_line(capsys, "train", path, "--target", "t", *FEW)
    assert "got column 'name' with 40 different values in 40 rows" in err
    assert "Ignore it: --ignore name" in err


def test_decimal_commas_are_named_with_the_path_of_the_file(capsys, tmp_path):
    rows = [[f"{i / 8:.3f}".replace(".", ","), f"{i % 3},5", f"c{i % 2}"] for i in range(60)]
    path = write_csv(tmp_path / "t.csv", ["x", "y", "t"], rows)
    err = error_line(capsys, "train", path, "--target", "t", *FEW)
    assert err.startswith(f"neonlite: {path}: expected a column of numbers or of categories, got column 'x' with 60 ")
    assert err.endswith("Ignore it: --ignore x, or replace the decimal commas by points.\n")
    main(["train", str(path), "--target", "t", "--ignore", "x", "-e", "1", *FEW])
    err = capsys.readouterr().err
    assert f"neonlite: warning: {path}: column 'y' has numbers as text, such as '0,5', and becomes categories." in err
    assert "For numbers, replace the decimal commas by points.\n" in err
    main(["train", str(path), "--target", "y", "--ignore", "x", "-e", "1", *FEW])
    assert "predicting classes of y (text; numbers have a decimal point)\n" in capsys.readouterr().out


def test_the_confusion_matrix_is_omitted_for_many_classes(capsys, tmp_path):
    path = write_csv(tmp_path / "t.csv", ["x", "t"], [[i, f"class {i % 21}"] for i in range(210)])
    text = run_main(capsys, "train", path, "--target", "t", "-e", "1", *FEW)
    assert "accuracy " in text
    assert "confusion matrix" not in text


def test_the_history_of_a_csv_file_is_plotted(capsys, tmp_path, flowers):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "c.png"
    run_main(capsys, "train", flowers, "--target", "side", "-e", "2", "--plot", str(plot), *FEW)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_control_characters_of_a_file_are_escaped(capsys, tmp_path):
    rows = [[i, f"a\x1b[2J{i % 2}"] for i in range(20)]
    path, file = write_csv(tmp_path / "t.csv", ["x", "t\x9b"], rows), str(tmp_path / "m")
    text = run_main(capsys, "train", path, "--target", "t\x9b", "-e", "1", "--save", file, *FEW)
    text += run_main(capsys, "eval", file, path, "-b", "cpu")
    text += error_line(capsys, "train", path, "--target", "t\x1b", *FEW)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)
    assert r"a\x1b[2J0" in text


def test_a_closed_pipe_ends_predict_silently(capsys, tmp_path):
    rows = [[i, i % 2] for i in range(20)]
    path, file = write_csv(tmp_path / "t.csv", ["x", "t"], rows), str(tmp_path / "m")
    run_main(capsys, "train", path, "--target", "t", "-e", "1", "--save", file, *FEW)
    command = [sys.executable, "-m", "neonlite.cli", "predict", file, path, "-b", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 141


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_delimiters_quotes_and_byte_order_marks_are_recognized(tmp_path, delimiter, newline, start):
    header, rows = ["a b", 'say "x"', "c,d;e"], [["1", "x, y; z\tw", "é"], ["-2.5e3", 'quoted "q"', " spaces "]]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator=newline).writerows([header, *rows[:1], [], *rows[1:]])
    (tmp_path / "t.csv").write_bytes((start + text.getvalue()).encode())
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((start + text.getvalue()).encode()))
    for name in "t.csv", "t.csv.gz":
        table = read_csv(tmp_path / name)
        assert table.names == header
        columns = [table.values(name).tolist() for name in header]
        assert columns == [[1, -2500], [*list(zip(*rows, strict=True))[1]], ["é", "spaces"]]
        assert [table.line(row) for row in range(len(table))] == [2, 4]


@pytest.mark.parametrize(
    ("fields", "kind", "expected"),
    [
        (["1", "-2", "+3"], "i", [1, -2, 3]),
        (["1", "2.5", "-.5e1", "3."], "f", [1, 2.5, -5, 3]),
        (["9" * 19, "1"], "f", [1e19, 1]),
        (["01", "02"], "T", ["01", "02"]),
        (["1", "two"], "T", ["1", "two"]),
        (["1_000", "2"], "T", ["1_000", "2"]),
        (["NA", "x"], "T", ["NA", "x"]),
    ],
)
def test_a_column_is_numbers_if_all_of_its_fields_are(tmp_path, fields, kind, expected):
    values = read_csv(Path(write_csv(tmp_path / "t.csv", ["x"], [[x] for x in fields]))).values("x")
    assert values.dtype.kind == kind
    assert values.tolist() == expected


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "t.csv: expected the names of columns and rows of data, got an empty file"),
        (b"\n \n", "t.csv: expected the names of columns and rows of data, got an empty file"),
        (b"a,t\n", "t.csv: expected rows of data, got the names of columns only"),
        (b"a,t\n1,2\n3\n", "t.csv: line 3: expected 2 fields, as in the header, got 1"),
        (b'a,t\n"1\n1",2\n\n3,4,5\n', "t.csv: line 5: expected 2 fields, as in the header, got 3"),
        (b"a,t,a\n1,2,3\n", "t.csv: line 1: expected different names of columns, got a more than once"),
        (b",a,t\n0,1,2\n", "t.csv: line 1: expected a name for each column, got none for column 1."),
        (b"5.1,3.5\n1,2\n", "t.csv: line 1: expected the names of the columns, got numbers."),
        (b"a,t\n1,2\n,3\n", "t.csv: line 3: expected a number in column 'a', got an empty field. Remove these rows"),
        (b"a,t\n1,2\n,\n3,4\n", "t.csv: line 3: expected a number in column"),
        (b"a,t\n1,2\nNaN,3\n", "t.csv: line 3: expected a number in column 'a', got 'NaN'. Remove these rows"),
        (b"a,t\n1,2\n2,\n", "t.csv: line 3: expected a number in column 't', got an empty field."),
        (b"a,t\n1,x\n2,\n", "t.csv: line 3: expected a value in column 't', got an empty field."),
        (b'a,t\n"1,2\n3,4\n', "t.csv: line 2 or later: expected fields with matching quotes: unexpected end of data"),
        (b"a,t\n\0\1\2", "t.csv: expected a CSV file in UTF-8, got binary data, or text in UTF-16"),
        (b"a,t\n1,2\ncaf\xe9,2\n", "t.csv: line 3: expected text in UTF-8, got the byte 0xe9. Convert it"),
        (b"a,b\n1,2\n", "--target t: expected a column of {folder}/t.csv, which has the columns a, b."),
        (b"t\n1\n", "t.csv: expected at least one column besides the target and ignored columns"),
        (
            b"a,t\n1,x\n2,x\n",
            "expected at least two classes in column 't', one of them in several rows, got 1 different value",
        ),
        (
            b"a,t\n1,x\n2,y\n",
            "expected at least two classes in column 't', one of them in several rows, got 2 different values",
        ),
        (b"a,t\n1,2.5\n", "expected rows both to train and to validate on, got 1 rows with --validation-split 0.2"),
    ],
)
def test_an_invalid_file_is_reported_with_its_line(capsys, tmp_path, data, words):
    (tmp_path / "t.csv").write_bytes(data)
    assert words.format(folder=tmp_path) in error_line(capsys, "train", f"{tmp_path}/t.csv", "--target", "t", *FEW)


def test_a_number_that_is_misspelled_in_many_numbers_is_reported(capsys, tmp_path):
    rows = [[i + 0.5, i % 2] for i in range(30)]
    rows[7][0] = "7,5"
    path = write_csv(tmp_path / "t.csv", ["x", "t"], rows)
    assert "line 9: expected a number in column 'x', got '7,5'. Numbers have a decimal point.\n" in error_line(
        capsys, "train", path, "--target", "t", *FEW
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train {csv}", "--target: expected the column to predict, one of x, y, side, got none"),
        ("train {csv} --target sides", "--target sides: expected a column of {csv}, which has the columns x, y, side."),
        ("train {csv} --target side --ignore z", "--ignore z: expected a column of {csv}"),
        ("train {csv} --target side --ignore x side", "--ignore: expected other columns than the target 'side'"),
        ("train {csv} --target side --task regress", "line 2: expected a number in column 'side', got 'above'"),
        ("train {csv} --target side --save {csv}", "--save and the data name one file"),
        ("train {csv} --target side --save {folder}/no/m", "there is no folder"),
        ("train {csv} --target side --model mlp", "--model cannot be used with a CSV file"),
        (
            "train {csv} --target side --lr 1 --resume {model}",
            "--target, --lr cannot be used with --resume: {model} contains these settings. Remove --target, --lr, or",
        ),
        ("train {csv} --resume {model}", "{model}: expected epochs left to train, got 1 of 1 trained. Pass --epochs 2"),
        (
            "train iris --resume {model}",
            "{model}: expected a network trained on iris, got one trained on a CSV file. Run: neonlite train data.csv",
        ),
        ("train {csv} --resume {iris}", "{iris}: expected a checkpoint of a training on a CSV file, neonlite train"),
        (
            "train {unknown} --resume {model} -e 2",
            "{unknown}: expected the 120 rows that {model} was trained on, got 2. To train on other rows, leave out",
        ),
        ("train iris --target side", "--target cannot be used with the data set iris"),
        ("train iris --hidden 8 --validation-split 0.1", "--hidden, --validation-split cannot be used with the data"),
        ("train {folder} --target side", "{folder}: expected a CSV file, got a folder"),
        ("train {folder}/none.csv --target side", "{folder}/none.csv: there is no such file"),
        ("predict {model} {folder}/none.csv", "{folder}/none.csv: there is no such file"),
        ("predict {folder}/none {csv}", "{folder}/none: there is no such file"),
        ("predict {csv} {csv}", "flowers.csv"),
        ("predict {model} {csv} -o {csv}", "--output and the data are one file"),
        ("predict {model} {csv} -o {model}", "--output and the checkpoint are one file"),
        ("predict {model} {csv} -o {folder}", "--output: expected the path of a file, got the folder"),
        ("predict {model} {other}", "other.csv: expected a column 'x', as in the training data, which has the col"),
        ("predict {iris} {csv}", "expected a network trained on a table, got another one. Use a checkpoint of"),
        ("eval {iris} {csv}", "expected a network trained on a table"),
        ("eval {model}", "expected a CSV file to evaluate on: neonlite eval {model} data.csv"),
        ("eval {model} {unknown}", "unknown.csv: line 3: expected in column 'side' one of the values of the training"),
        ("predict {numbers} {csv} --proba", "expected a network that predicts classes for --proba, got numbers"),
        ("predict {numbers} {unknown}", "unknown.csv: line 3: expected in column 'side' one of the values of the tra"),
    ],
)
def test_an_error_is_one_line(capsys, tmp_path, flowers, arguments, words):
    paths = {"csv": flowers, "folder": str(tmp_path)} | {
        name: str(tmp_path / name) for name in ("model", "numbers", "iris") if f"{{{name}}}" in arguments
    }
    for name, path in paths.items():
        options = {"model": [flowers, "--target", "side"], "numbers": [flowers, "--target", "x"], "iris": ["iris"]}
        if name in options:
            assert main(["train", *options[name], "-e", "1", "--save", path, *FEW]) == 0
    paths["other"] = write_csv(tmp_path / "other.csv", ["u", "side"], [[1, "above"]])
    paths["unknown"] = write_csv(tmp_path / "unknown.csv", ["x", "y", "side"], [[1, 2, "above"], [1, 2, "beside"]])
    assert words.format(**paths) in error_line(capsys, *arguments.format(**paths).split(), "-b", "cpu")


@pytest.mark.parametrize("option", ["--validation-split 1", "--validation-split -1", "--patience x", "--hidden 0"])
def test_invalid_options_are_reported(capsys, option):
    with pytest.raises(SystemExit):
        main(["train", "t.csv", "--target", "t", *option.split()])
    assert re.search(f"argument {option.split()[0]}(/--validation_split)?: expected ", capsys.readouterr().err)


class Interrupt(Callback):
    """A callback like Ctrl-C in the middle of an epoch."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_minibatch_end(self, epoch: int, minibatch: int) -> None:
        if (epoch, minibatch) == (self.epoch, 1):
            raise KeyboardInterrupt


@pytest.mark.parametrize("options", ["", "--ignore b --batch-size 50 --validation-split 0.3", "--validation-split 0"])
def test_a_resumed_training_has_the_weights_of_an_uninterrupted_one(capsys, monkeypatch, tmp_path, linear, options):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start = ("train", linear, "--target", "y", "-e", "8", "--patience", "3", "--seed", "5", *options.split(), *FEW)
    expected_text = run_main(capsys, *start, "--save", str(whole))
    make = commands.stopping_callbacks
    resume = ("train", linear, "--resume", str(parts), "--patience", "3", *FEW)
    for epoch, arguments in (4, [*start, "--save", str(parts)]), (6, resume):
        with monkeypatch.context() as patch:
            patch.setattr(commands, "stopping_callbacks", lambda patience, n=epoch: [*make(patience), Interrupt(n)])
            assert main(arguments) == 130
        error = f"to resume: neonlite train {linear} --resume {parts}\ninterrupted\n"
        assert capsys.readouterr().err.endswith(error)
        assert Model(parts).epoch_index == epoch
    assert run_main(capsys, "predict", str(parts), linear, "-b", "cpu").startswith("y\n")
    text = run_main(capsys, *resume)
    expected, resumed = Model(whole), Model(parts)
    assert resumed.epoch_index == expected.epoch_index == 8
    pairs = zip(expected.get_weights().values(), resumed.get_weights().values(), strict=True)
    assert all((a == b).all() for a, b in pairs)
    lines, expected_lines = (
        [line for line in x.splitlines() if not line.startswith(("trained", "model"))] for x in (text, expected_text)
    )
    assert lines == expected_lines


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ignore", ["x", 3], "metadata.csv.ignore: expected names of columns, got ['x', 3]"),
        ("ignore", "x", "metadata.csv.ignore: unexpected type str"),
        ("ignore", ["z"], "--ignore z: expected a column of"),
        ("batch_size", 32.0, "metadata.csv.batch_size: unexpected type float"),
        ("batch_size", -1, "--batch-size: expected a row for each of 1 processes, got -1"),
        ("validation_split", 2, "expected a finite number >= 0 and < 1 for validation_split, got 2"),
        ("rows", None, "metadata.csv.rows: unexpected type NoneType"),
    ],
)
def test_settings_of_a_changed_checkpoint_are_checked(capsys, tmp_path, flowers, name, value, words):
    file = tmp_path / "m"
    run_main(capsys, "train", flowers, "--target", "side", "-e", "1", "--save", str(file), *FEW)
    model = Model(file)
    model.metadata["csv"][name] = value
    model.save_params(file)
    assert words in error_line(capsys, "train", flowers, "--resume", str(file), "-e", "2", *FEW)


def test_resumed_training_may_have_more_epochs_and_another_file(capsys, tmp_path, flowers):
    first, second = tmp_path / "first", tmp_path / "second"
    run_main(capsys, "train", flowers, "--target", "side", "-e", "2", "--save", str(first), *FEW)
    before = first.read_bytes()
    run_main(capsys, "train", flowers, "--resume", str(first), "-e", "5", "-s", str(second), *FEW)
    assert Model(second).epoch_index == Model(second).optimizer.schedule.total_epochs == 5
    assert first.read_bytes() == before


# --- streams, and what is written ------------------------------------------------------------------------------------

LABELS = ["c\rr", "\u05d0\u200f", "plain", "=1+1", "two\nlines", "a,b"]
posix = pytest.mark.skipif(os.name == "nt", reason="FIFOs of POSIX")


@pytest.fixture
def labelled(tmp_path) -> tuple[str, str, list[str]]:
    """Return a model that predicts every label, the file of its rows, and their labels."""
    labels = [LABELS[i % 6] for i in range(60)]
    path, file = tmp_path / "t.csv", str(tmp_path / "m.neon")
    with path.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened, quoting=csv.QUOTE_ALL).writerows([["x", "t"], *zip("abcdef" * 10, labels, strict=True)])
    options = ["--hidden", "8", "--lr", "0.1", "-e", "40", "--save", file, "--validation-split", "0"]
    assert main(["train", str(path), "--target", "t", *options, *FEW]) == 0
    return file, str(path), labels


def test_predictions_are_one_text_in_a_file_in_a_pipe_and_for_other_readers(capfdbinary, tmp_path, labelled):
    pd = pytest.importorskip("pandas")
    file, path, labels = labelled
    output = tmp_path / "o.csv"
    capfdbinary.readouterr()
    for option in ([], ["--proba"]):
        assert main(["predict", file, path, "-b", "cpu", "-o", str(output), *option]) == 0
        assert capfdbinary.readouterr().out == b""
        assert main(["predict", file, path, "-b", "cpu", *option]) == 0
        assert capfdbinary.readouterr().out == output.read_bytes()
        rows = read_rows(output)
        assert len(rows) == 61
        assert [*pd.read_csv(output, dtype=str).columns] == rows[0]
        expected = sorted(LABELS) if option else ["t"]
        assert rows[0] == expected
    assert main(["predict", file, path, "-b", "cpu", "-o", str(output)]) == 0
    assert read_rows(output)[1:] == [[label] for label in labels]
    assert pd.read_csv(output, dtype=str)["t"].tolist() == labels


def test_predictions_are_escaped_on_a_terminal_only(capsys, monkeypatch, labelled):
    file, path, _ = labelled
    capsys.readouterr()
    assert "\r" in run_main(capsys, "predict", file, path, "-b", "cpu")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    text = run_main(capsys, "predict", file, path, "-b", "cpu")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200f]", text)
    assert r'"c\rr"' in text


def test_formulas_are_escaped_with_safe_cells_only(capsys, labelled):
    file, path, _ = labelled
    capsys.readouterr()
    for option, label in ([], "=1+1"), (["--safe-cells"], "'=1+1"):
        labels, (header, *_) = (
            [*csv.reader(io.StringIO(run_main(capsys, "predict", file, path, "-b", "cpu", *options), newline=""))]
            for options in (option, [*option, "--proba"])
        )
        assert [row[0] for row in labels[4::6]] == [label] * 10
        assert label in header


@posix
def test_fifos_are_read_and_written(capsys, tmp_path, labelled):
    file, path, _ = labelled
    capsys.readouterr()
    expected = run_main(capsys, "predict", file, path, "-b", "cpu")
    rows, output = tmp_path / "rows", tmp_path / "output"
    for fifo in rows, output:
        os.mkfifo(fifo)
    with ThreadPoolExecutor() as pool:
        pool.submit(rows.write_bytes, Path(path).read_bytes())
        read = pool.submit(output.read_bytes)
        assert run_main(capsys, "predict", file, str(rows), "-b", "cpu", "-o", str(output)) == ""
        assert read.result().decode() == expected
        pool.submit(rows.write_bytes, Path(path).read_bytes())
        assert " on 60 rows\n" in run_main(capsys, "eval", file, str(rows), "-b", "cpu")
        pool.submit(rows.write_bytes, Path(path).read_bytes())
        assert ": 60 rows; " in run_main(capsys, "train", str(rows), "--target", "t", "-e", "1", *FEW)
    assert rows.is_fifo()
    assert output.is_fifo()


@pytest.mark.long
@posix
def test_the_pipe_of_a_shell_is_read_and_written(capfdbinary, labelled):
    file, path, _ = labelled
    command = [sys.executable, "-m", "neonlite.cli", "predict", file, "/dev/stdin", "-b", "cpu"]
    outputs = [
        subprocess.run([*command, *option], input=Path(path).read_bytes(), capture_output=True, check=True).stdout
        for option in ([], ["-o", "/dev/stdout"])
    ]
    capfdbinary.readouterr()
    assert main(["predict", file, path, "-b", "cpu"]) == 0
    assert outputs == [capfdbinary.readouterr().out] * 2


@posix
@pytest.mark.parametrize("redirected", [">", ">>"])
def test_a_redirected_standard_output_gets_the_predictions_after_what_was_written_before(
    capfdbinary, tmp_path, labelled, redirected
):
    file, path, _ = labelled
    command = (
        f'(echo first; "{sys.executable}" -m neonlite.cli predict "{file}" "{path}" -b cpu -o /dev/stdout; echo last)'
    )
    (tmp_path / "out").write_bytes(b"before\n")
    subprocess.run(["sh", "-c", f'{command} {redirected} "{tmp_path}/out"'], check=True)
    capfdbinary.readouterr()
    assert main(["predict", file, path, "-b", "cpu"]) == 0
    before = b"before\n" * (redirected == ">>") + b"first\n"
    assert (tmp_path / "out").read_bytes() == before + capfdbinary.readouterr().out + b"last\n"


@pytest.mark.parametrize("command", ["predict", "eval"])
def test_a_warning_is_one_line_without_the_control_characters_of_a_file(capsys, tmp_path, labelled, command):
    file, path, _ = labelled
    description, arrays = read_checkpoint(file)
    weights = {name: np.full_like(x, np.nan) if name.endswith(".W") else x for name, x in arrays.items()}
    write_checkpoint(tmp_path / "m", {**description, "name": "x\x1b[31m\x07"}, weights)
    capsys.readouterr()
    main([command, f"{tmp_path}/m", path, "-b", "cpu"])
    err = capsys.readouterr().err
    assert err.startswith("neonlite: warning: x\\x1b[31m\\x07.")
    assert err.count("\n") == 1


@posix
def test_a_closed_standard_output_is_an_error_of_predict(labelled):
    file, path, _ = labelled
    line = f'"{sys.executable}" -m neonlite.cli predict "{file}" "{path}" >&-'
    ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "neonlite: expected an open standard output, got a closed one. Pass --output FILE\n"


@posix
def test_a_fifo_without_another_process_ends_with_an_error(capsys, monkeypatch, tmp_path, labelled):
    monkeypatch.setattr(files, "MAX_FIFO_SECONDS", 0.1)
    file, path, _ = labelled
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reads, writes = f"{fifo}: expected a process that reads it", f"{fifo}: expected a process that writes to it"
    assert writes in error_line(capsys, "predict", file, str(fifo), "-b", "cpu")
    assert reads in error_line(capsys, "predict", file, path, "-b", "cpu", "-o", str(fifo))
    assert "expected two files" in error_line(capsys, "predict", file, str(fifo), "-o", str(fifo))
    assert f"-n 2: expected a file, which each process reads; {fifo} is a FIFO" in error_line(
        capsys, "train", str(fifo), "--target", "t", "-n", "2"
    )
    assert fifo.is_fifo()


# --- the file of --save ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"a text", b"{}", b"\x02\0\0\0\0\0\0\0{}", b"a,b\n1,2\n" * 999])
@pytest.mark.parametrize("dataset", ["iris", "csv"])
def test_a_file_that_is_no_checkpoint_is_not_replaced(capsys, tmp_path, flowers, content, dataset):
    other = tmp_path / "notes.txt"
    other.write_bytes(content)
    arguments = [flowers, "--target", "side"] if dataset == "csv" else [dataset]
    err = error_line(capsys, "train", *arguments, "-e", "1", "--save", str(other), *FEW)
    assert f"--save: expected a new file, or a checkpoint, which is replaced; {other} is another file." in err
    assert capsys.readouterr().out == ""
    assert other.read_bytes() == content


def test_a_checkpoint_and_an_empty_file_are_replaced(capsys, tmp_path, flowers):
    file = tmp_path / "m"
    file.touch()
    for epochs in "12":
        run_main(capsys, "train", flowers, "--target", "side", "-e", epochs, "--save", str(file), *FEW)
        assert Model(file).epoch_index == int(epochs)
