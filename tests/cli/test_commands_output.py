"""Tests of errors of the neonlite command: they are one line, and control characters of files are escaped."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest

from neonlite import gen_backend
from neonlite.backend.measure import OutOfMemoryError
from neonlite.callbacks import Callbacks, History
from neonlite.cli import commands, main
from neonlite.data import digits
from neonlite.files import printable
from neonlite.models import CheckpointError, Model
from neonlite.models.training_state import read_checkpoint, write_checkpoint
from neonlite.optimizers import Adam
from neonlite.transforms import CrossEntropyMulti

ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\r\u202e"


def control_characters(text: str) -> list[str]:
    """Return the control characters of a text, other than newlines and tabs."""
    return re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)


# --- errors ----------------------------------------------------------------------------------------------------------

HINT = "Set NEONLITE_DEBUG=1 in the environment to print the traceback.\n"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "neonlite: out of memory. Reduce --batch-size.\n"),
        (OutOfMemoryError("3 GB exceed the limit"), "neonlite: 3 GB exceed the limit\n"),
        (TypeError("no number"), f"neonlite: TypeError: no number. {HINT}"),
        (KeyError("vocab"), f"neonlite: KeyError: 'vocab'. {HINT}"),
        (OverflowError("too large"), f"neonlite: OverflowError: too large. {HINT}"),
        (AttributeError("no attribute"), f"neonlite: AttributeError: no attribute. {HINT}"),
        (AssertionError(), f"neonlite: AssertionError: . {HINT}"),
        (NotImplementedError(), f"neonlite: NotImplementedError: . {HINT}"),
        (ValueError("a mistake"), "neonlite: a mistake\n"),
        (ValueError(f"it says {ESCAPES}"), f"neonlite: it says {ascii(ESCAPES)[1:-1]}\n"),
    ],
)
def test_an_error_is_one_line_and_neonlite_debug_raises_it(capsys, monkeypatch, error, words):
    def run_info(args: Any) -> None:
        raise error

    monkeypatch.setattr(commands, "run_info", run_info)
    monkeypatch.delenv("NEONLITE_DEBUG", raising=False)
    assert main(["info"]) == 1
    assert capsys.readouterr().err == words
    monkeypatch.setenv("NEONLITE_DEBUG", "1")
    with pytest.raises(type(error)):
        main(["info"])


def test_the_help_describes_how_to_print_a_traceback(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "NEONLITE_DEBUG=1 in the environment" in " ".join(capsys.readouterr().out.split())


def test_an_error_for_a_too_large_number_is_one_line(capsys):
    assert main(["draw", "mlp", "-b", "cpu", "-z", "9" * 30]) == 1
    err = capsys.readouterr().err
    assert err.startswith("neonlite: ")
    assert err.count("\n") == 1


# --- closed or full output -------------------------------------------------------------------------------------------


def run(arguments: str, redirected: str, **env: str) -> tuple[int, str]:
    """Run a command line with redirections of a shell; return its exit status, and what it wrote to stderr."""
    line = f'"{sys.executable}" -m neonlite.cli {arguments} {redirected}'
    completed = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, env={**os.environ, **env})
    return completed.returncode, completed.stderr


@pytest.mark.skipif(os.name == "nt", reason="redirections of a POSIX shell")
@pytest.mark.parametrize(
    ("redirected", "status", "words"),
    [
        (">&-", 0, ""),
        ("> /dev/full", 1, r"neonlite: \[Errno 28\] No space left on device\n"),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_or_full_standard_output_prints_no_traceback(redirected, status, words, unbuffered):
    if "full" in redirected and not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    returncode, err = run("draw mlp -b cpu", redirected, PYTHONUNBUFFERED=unbuffered)
    assert returncode == status
    assert re.fullmatch(words, err)


@pytest.mark.parametrize(
    ("arguments", "unbuffered", "status"),
    [
        ("info", "", 141),  # output is written at exit
        ("draw resnet -b cpu", "", 141),
        ("draw resnet -b cpu", "1", 141),
        ("--help", "", 0),
    ],
)
def test_it_ends_silently_when_its_output_pipe_is_closed(arguments, unbuffered, status):
    command = [sys.executable, "-m", "neonlite.cli", *arguments.split()]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    nobody, pipe = os.pipe()
    os.close(nobody)
    completed = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, env=env)
    os.close(pipe)
    assert (completed.returncode, completed.stderr) == (status, "")


def test_an_error_without_standard_error_returns_its_status():
    assert run("eval /nowhere", "2>&- >&-")[0] == 1


# --- text that comes from a file -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the contents of the checkpoints of two networks, and the text that one of them was trained on."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "t.txt").write_text("the cat sat on the mat. " * 60)
    contents: dict[str, Any] = {"text": folder / "t.txt"}
    for name, more in (("iris", []), ("text", ["-w", str(folder / "t.txt"), "--model", "gru", "-z", "2"])):
        options = ["-e", "1", "-b", "cpu", "--no-progress-bar", "--save", str(folder / name)]
        assert main(["train", name, *options, *more]) == 0
        contents[f"{name}.neon"] = read_checkpoint(folder / name)
    return contents


def run_main(capsys: Any, *arguments: str) -> str:
    """Run a command line and return its output, which must not contain control characters."""
    capsys.readouterr()
    main(arguments)
    text = "".join(capsys.readouterr())
    assert not control_characters(text)
    return text


def test_names_of_layers_are_printed_escaped(files, capsys, tmp_path):
    description, arrays = copy_of(files["iris.neon"])
    first = description["layers"]["config"]["layers"][0]["config"]
    old, first["name"] = first["name"], f"evil{ESCAPES}\nlayer"
    arrays = {key.replace(f"/{old}.", f"/{first['name']}."): x for key, x in arrays.items() if "states" not in key}
    del description["training"]
    write_checkpoint(tmp_path / "m", description, arrays)
    text = run_main(capsys, "draw", str(tmp_path / "m"), "-b", "cpu")
    assert r"evil\x1b[2J\x1b]0;title\x07\x9b31m\r\u202e\nlayer" in text
    model = Model(tmp_path / "m")
    assert model.layers.layers[0].name == first["name"]  # not changed by printing
    assert not control_characters(str(model))
    assert not control_characters(str(model.summary()))


def test_tokens_of_a_vocabulary_are_printed_escaped_except_newlines(files, capsys, tmp_path):
    description, arrays = copy_of(files["text.neon"])
    vocab = description["metadata"]["vocab"]
    description["metadata"]["vocab"] = [f"{ESCAPES}{i}\n" for i in range(len(vocab) - 1)] + ["x"]
    write_checkpoint(tmp_path / "m", description, arrays)
    text = run_main(capsys, "sample", str(tmp_path / "m"), "--prompt", "x", "--temperature", "9", "-b", "cpu")
    assert r"\x1b[2J" in text
    assert text.count("\n") > 9


@pytest.mark.parametrize("vocab", [None, 7, "abc", {"a": 0}, [1, 2], [], ["a", None]])
def test_an_invalid_vocabulary_is_reported(files, capsys, tmp_path, vocab):
    description, arrays = copy_of(files["text.neon"])
    description["metadata"]["vocab"] = vocab
    write_checkpoint(tmp_path / "m", description, arrays)
    text = run_main(capsys, "sample", str(tmp_path / "m"), "-b", "cpu")
    assert "expected a checkpoint with a vocabulary, got none" in text
    if vocab is not None:
        text = run_main(capsys, "eval", str(tmp_path / "m"), "-w", str(files["text"]), "-b", "cpu")
        assert "vocabulary" in text
        assert "NEONLITE_DEBUG" not in text


def test_a_too_short_vocabulary_is_reported(files, capsys, tmp_path):
    description, arrays = copy_of(files["text.neon"])
    description["metadata"]["vocab"] = ["a"]
    write_checkpoint(tmp_path / "m", description, arrays)
    words = "as many outputs as the vocabulary, 1, got more"
    assert words in run_main(capsys, "sample", str(tmp_path / "m"), "--temperature", "9", "-b", "cpu")


@pytest.mark.parametrize("value", [True, None, "4", 2.5, -1, 10**30, [True], [None, 4], {}])
def test_an_invalid_shape_is_reported(files, capsys, tmp_path, value):
    description, arrays = copy_of(files["iris.neon"])
    description["in_shape"] = value
    write_checkpoint(tmp_path / "m", description, arrays)
    text = run_main(capsys, "draw", str(tmp_path / "m"), "-b", "cpu")
    assert text.startswith("neonlite: ")
    assert "NEONLITE_DEBUG" not in text


def test_names_in_the_history_of_a_file_are_printed_escaped(files, capsys, tmp_path):
    description, arrays = copy_of(files["iris.neon"])
    description["training"]["callbacks"]["history"]["records"][f"evil{ESCAPES}"] = [[1.0, 0.5], [2.0, 0.5]]
    write_checkpoint(tmp_path / "m", description, arrays)
    assert r"evil\x1b[2J" in run_main(capsys, "train", "iris", "--resume", str(tmp_path / "m"), "-e", "2", "-b", "cpu")
    found = History()
    found.record(f"a{ESCAPES}\n", 1, 2)
    for text in (repr(found), found._repr_html_()):
        assert r"a\x1b[2J" in text
        assert not control_characters(text)
    assert repr(found).count("\n") == 1
    with pytest.raises(KeyError) as error:
        found["b"]
    assert not control_characters(error.value.args[0])


def test_the_log_of_a_training_is_escaped():
    gen_backend("cpu", batch_size=32)
    train, _ = digits().iterators()
    model = Model(commands.make_network("mlp"))
    callbacks = Callbacks(model, progress_bar=False)
    callbacks.history.record(f"evil{ESCAPES}", 1, 0.5)
    with TestCase().assertLogs("neonlite", "INFO") as log:
        model.fit(train, CrossEntropyMulti(), Adam(), 1, callbacks)
    (message,) = [record.getMessage() for record in log.records]
    assert r"evil\x1b[2J" in message
    assert not control_characters(message)


@pytest.mark.parametrize("path", [("metadata", "text"), ("layers", "type"), ("backend", "compat_mode")])
def test_strings_of_a_description_are_escaped_in_errors(files, capsys, tmp_path, path):
    description, arrays = copy_of(files["text.neon"])
    entry = description
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] = f"evil{ESCAPES}.x"
    write_checkpoint(tmp_path / "m", description, arrays)
    assert r"\x1b[2J" in run_main(capsys, "eval", str(tmp_path / "m"), "-b", "cpu")


def test_an_error_of_a_checkpoint_is_escaped_also_in_python():
    assert str(CheckpointError(f"it says {ESCAPES}")) == f"it says {ascii(ESCAPES)[1:-1]}"


def test_newlines_and_tabs_are_kept_in_texts_and_escaped_in_names():
    assert printable("a\tb\nc\x00\ud800") == "a\tb\nc\\x00\\ud800"
    assert printable("a\tb\nc", keep="") == "a\\tb\\nc"
    assert printable("naïve — 猫 😀 \xa0") == "naïve — 猫 😀 \xa0"


def copy_of(contents: tuple[dict[str, Any], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a copy of the contents of a file, which a test may change."""
    import copy

    return copy.deepcopy(contents[0]), dict(contents[1])
